//! Slices of values, and what is computed of them as slices of what is computed of the whole.

use std::rc::Rc;

use super::nodes::{Form, NodeId, NodeOp, Nodes};
use crate::Opcode;
use crate::lex::numbers_in;

/// A slice of a dimension: where it begins on each device, and of what it is one.
#[derive(Clone)]
pub(super) struct ValueSlice {
    pub(super) dim: usize,
    pub(super) starts: Rc<Vec<u64>>,
    pub(super) whole: NodeId,
}

impl ValueSlice {
    /// Whether it begins at the same place on all devices of each group, and each is in one.
    fn is_common(&self, groups: &[Vec<u32>]) -> bool {
        let start = |device: &u32| self.starts.get(*device as usize);
        let devices: usize = groups.iter().map(Vec::len).sum();
        devices == self.starts.len()
            && groups.iter().all(|group| group.iter().all(|of| start(of) == start(&group[0])))
    }
}

impl Nodes {
    fn slice(&self, id: NodeId) -> Option<ValueSlice> {
        let node = self.node(id);
        match &node.what {
            NodeOp::Shard { dim, starts } => {
                Some(ValueSlice { dim: *dim, starts: starts.clone(), whole: node.inputs[0] })
            }
            _ => None,
        }
    }

    /// The slices that a value is a slice of, the last first.
    pub(super) fn slices(&self, id: NodeId) -> Vec<ValueSlice> {
        std::iter::successors(self.slice(id), |slice| self.slice(slice.whole)).collect()
    }

    /// Of slices of slices, the last that is wanted, and the value with the others alone.
    pub(super) fn without(
        &mut self,
        id: NodeId,
        wanted: &dyn Fn(&ValueSlice) -> bool,
    ) -> Option<ValueSlice> {
        let slice = self.slice(id)?;
        if wanted(&slice) {
            return Some(slice);
        }
        let inner = self.without(slice.whole, wanted)?;
        let mut dims = self.node(id).form.dims()?.to_vec();
        dims[inner.dim] = self.node(inner.whole).form.dims()?[inner.dim];
        let form = self.node(id).form.with_dims(&dims);
        let whole = self.shard(ValueSlice { whole: inner.whole, ..slice }, form);
        Some(ValueSlice { whole, ..inner })
    }

    /// A longer slice along the same dimension, of which this slice was taken: slices of a
    /// dimension that follow each other are one, from which it cannot be seen where the first
    /// began.
    pub(super) fn longer_slice(
        &mut self,
        input: NodeId,
        cut: &ValueSlice,
        whole: &[u64],
    ) -> Option<NodeId> {
        let slice = self.without(input, &|slice: &ValueSlice| slice.dim == cut.dim)?;
        let (extents, part) = (self.node(slice.whole).form.dims()?, self.node(input).form.dims()?);
        let is_other = |dim: usize| dim == cut.dim || part.get(dim) == whole.get(dim);
        let room = extents.get(cut.dim)?.checked_sub(*whole.get(cut.dim)?)?;
        if part.len() != whole.len() || !(0..part.len()).all(is_other) {
            return None;
        }
        let begin = |(start, cut): (&u64, &u64)| start.checked_sub(*cut).filter(|at| *at <= room);
        let starts = slice.starts.iter().zip(&*cut.starts).map(begin).collect::<Option<_>>()?;
        let form = self.node(input).form.with_dims(whole);
        Some(self.shard(ValueSlice { starts: Rc::new(starts), ..slice }, form))
    }

    /// A slice in normal form: of slices of slices, that of the first dimension is the last.
    pub(super) fn shard(&mut self, slice: ValueSlice, form: Form) -> NodeId {
        if let Some(before) = self.slice_before(&slice, &form) {
            return self.shard(before, form);
        }
        let ValueSlice { dim, starts, whole: of } = slice;
        let what = NodeOp::Shard { dim, starts: starts.clone() };
        if let Some(zeros) = self.of_zeros(&what, &form, &[of]) {
            return zeros;
        }
        let inner = self.slice(of).filter(|inner| inner.dim <= dim);
        let Some(inner) = inner else {
            return self.plain(NodeOp::Shard { dim, starts }, form, vec![of]);
        };
        let whole = inner.whole;
        if inner.dim == dim {
            let both = inner.starts.iter().zip(&*starts).map(|(a, b)| a + b).collect();
            return self.shard(ValueSlice { dim, starts: Rc::new(both), whole }, form);
        }
        let (Some(extents), Some(part)) = (self.node(whole).form.dims(), form.dims()) else {
            return self.plain(NodeOp::Shard { dim, starts }, form, vec![of]);
        };
        let mut dims = extents.to_vec();
        dims[dim] = part[dim];
        let outer = self.shard(ValueSlice { dim, starts, whole }, form.with_dims(&dims));
        let what = NodeOp::Shard { dim: inner.dim, starts: inner.starts };
        self.plain(what, form, vec![outer])
    }

    /// A slice, a product of one, or slices put together again.
    pub(super) fn of_slices(
        &mut self,
        what: &NodeOp,
        form: &Form,
        inputs: &[NodeId],
    ) -> Option<NodeId> {
        let NodeOp::Op { opcode, attributes, .. } = what else { return None };
        let numbers = |key: &str| {
            let found = attributes.iter().find(|(own, _)| own == key);
            found.map_or(Vec::new(), |(_, text)| numbers_in(text))
        };
        match (opcode, inputs) {
            (Opcode::Slice, &[input]) => self.cut(form, input, &numbers("slice")),
            (Opcode::Concatenate, inputs) => {
                self.put_together(form, inputs, &numbers("dimensions"))
            }
            (Opcode::Dot, &[lhs, rhs]) => {
                let taken = [
                    ("lhs_contracting_dims", "lhs_batch_dims"),
                    ("rhs_contracting_dims", "rhs_batch_dims"),
                ]
                .map(|(summed, batch)| [numbers(summed), numbers(batch)].concat());
                let batch = numbers("lhs_batch_dims").len();
                self.product(what, form, Operands { of: [lhs, rhs], taken, batch })
                    .or_else(|| self.in_step(what, form, [lhs, rhs]))
            }
            _ => None,
        }
    }

    /// A slice of one dimension, of every element in it: where each begins and ends, and no
    /// strides.
    fn cut(&mut self, form: &Form, input: NodeId, limits: &[i64]) -> Option<NodeId> {
        let whole = self.node(input).form.dims()?.to_vec();
        let part = form.dims()?;
        let mut cut = (0..whole.len()).filter(|&dim| part.get(dim) != whole.get(dim));
        let (Some(dim), None) = (cut.next(), cut.next()) else { return None };
        let (Some(&start), true) = (limits.get(2 * dim), limits.len() == 2 * whole.len()) else {
            return None;
        };
        let starts = Rc::new(vec![u64::try_from(start).ok()?; self.device_count()]);
        Some(self.shard(ValueSlice { dim, starts, whole: input }, form.clone()))
    }

    /// Slices of a value in their sequence: the value, or a longer slice of it.
    fn put_together(&mut self, form: &Form, inputs: &[NodeId], dims: &[i64]) -> Option<NodeId> {
        let &[dim] = dims else { return None };
        let is_along = |slice: &ValueSlice| slice.dim as i64 == dim;
        let first = self.without(*inputs.first()?, &is_along)?;
        let mut length = 0;
        for &input in inputs {
            let slice = self.without(input, &is_along)?;
            let mut starts = slice.starts.iter().zip(&*first.starts);
            let is_next = starts.all(|(&start, &begin)| start == begin + length);
            if slice.whole != first.whole || !is_next {
                return None;
            }
            length += self.node(input).form.dims()?[slice.dim];
        }
        let whole = self.node(first.whole).form.clone();
        let mut part = whole.dims()?.to_vec();
        let is_all = *part.get(first.dim)? == length && first.starts.iter().all(|&at| at == 0);
        part[first.dim] = length;
        if whole.with_dims(&part) != *form {
            return None;
        }
        Some(if is_all { first.whole } else { self.shard(first, form.clone()) })
    }

    /// A product of a slice of rows or columns.
    fn product(&mut self, what: &NodeOp, form: &Form, given: Operands) -> Option<NodeId> {
        for (place, &operand) in given.of.iter().enumerate() {
            let results = given.result_dims(self, place)?;
            let is_free = |slice: &ValueSlice| results[slice.dim].is_some();
            let Some(slice) = self.without(operand, &is_free) else { continue };
            let Some(result_dim) = results[slice.dim] else { continue };
            let extent = self.node(slice.whole).form.dims()?[slice.dim];
            let mut dims = form.dims()?.to_vec();
            *dims.get_mut(result_dim)? = extent;
            let mut inputs = given.of.to_vec();
            inputs[place] = slice.whole;
            let whole = self.op(what.clone(), form.with_dims(&dims), inputs);
            return Some(
                self.shard(
                    ValueSlice { dim: result_dim, starts: slice.starts, whole },
                    form.clone(),
                ),
            );
        }
        None
    }

    /// A collective on the same slice of every member's value.
    pub(super) fn communicated(
        &mut self,
        what: &NodeOp,
        form: &Form,
        input: NodeId,
    ) -> Option<NodeId> {
        let NodeOp::Collective { opcode, members, dimensions, .. } = what else { return None };
        let is_moved = match opcode {
            // Each element of a scattered sum stays with its rank, and so is summed as before.
            Opcode::AllGather
            | Opcode::AllToAll
            | Opcode::ReduceScatter
            | Opcode::CollectivePermute => true,
            // Which rank adds up an element first may depend on its place.
            Opcode::AllReduce => self.any_sum_order || self.is_order_free(what, input),
            _ => false,
        };
        let is_listed = !members.groups.is_empty();
        let is_free = |slice: &ValueSlice| {
            let is_common = match is_listed {
                true => slice.is_common(&members.groups),
                // Messages go from device to device.
                false => slice.starts.iter().all(|start| *start == slice.starts[0]),
            };
            !dimensions.contains(&(slice.dim as i64)) && is_common
        };
        let slice = self.without(input, &is_free).filter(|_| is_moved)?;
        let mut dims = form.dims()?.to_vec();
        *dims.get_mut(slice.dim)? = self.node(slice.whole).form.dims()?[slice.dim];
        let whole = self.collective(what.clone(), form.with_dims(&dims), slice.whole);
        Some(self.shard(ValueSlice { whole, ..slice }, form.clone()))
    }
}

/// The operands of a product.
struct Operands {
    of: [NodeId; 2],
    /// The dimensions of each that are summed over, or that the product goes through in step.
    taken: [Vec<i64>; 2],
    /// How many are the latter.
    batch: usize,
}

impl Operands {
    /// Which dimensions of the product those of an operand are, if they are any.
    fn result_dims(&self, nodes: &Nodes, place: usize) -> Option<Vec<Option<usize>>> {
        let mut next = self.batch;
        let mut found = Vec::new();
        for of in 0..=place {
            let rank = nodes.node(self.of[of]).form.dims()?.len();
            let mut result = |dim: usize| {
                let is_free = !self.taken[of].contains(&(dim as i64));
                next += usize::from(is_free);
                is_free.then(|| next - 1)
            };
            found = (0..rank).map(&mut result).collect();
        }
        Some(found)
    }
}
