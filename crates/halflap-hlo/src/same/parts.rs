//! What moves, spreads or sums elements without mixing those of a dimension: done to a slice along
//! it, it gives a slice of what it gives of the whole.

use std::rc::Rc;

use super::nodes::{Form, NodeId, NodeOp, Nodes};
use super::slices::ValueSlice;
use crate::Opcode;

/// The whole of what is computed of slices.
struct LiftedWhole {
    inputs: Vec<NodeId>,
    /// The dimension of the result that is sliced.
    dim: usize,
    /// How long it is in the whole.
    extent: u64,
    /// Where the slice begins on each device.
    starts: Rc<Vec<u64>>,
}

impl Nodes {
    /// Movement, a broadcast or a sum of slices, as a slice of that of the whole.
    pub(super) fn of_parts(
        &mut self,
        what: &NodeOp,
        form: &Form,
        inputs: &[NodeId],
    ) -> Option<NodeId> {
        let NodeOp::Op { opcode, .. } = what else { return None };
        let dims = dims_of(what, "dimensions");
        let lifted = match (opcode, inputs) {
            (Opcode::Broadcast, &[input]) => self.of_one(input, &[], |dim| dims.get(dim).copied()),
            (Opcode::Transpose, &[input]) => {
                self.of_one(input, &[], |dim| dims.iter().position(|&of| of == dim))
            }
            (Opcode::Reduce, &[input, init]) => {
                let place = |dim: usize| Some(dim - dims.iter().filter(|&&of| of < dim).count());
                let lifted = self.of_one(input, &dims, place)?;
                let inputs = vec![lifted.inputs[0], init];
                Some(LiftedWhole { inputs, ..lifted })
            }
            (Opcode::Reshape, &[input]) => self.reshaped_slice(form, input),
            (Opcode::Concatenate, inputs) => self.side_by_side(inputs, &dims),
            _ => None,
        }?;
        self.slice_of(what, form, lifted)
    }

    /// A slice of an operation on the whole.
    fn slice_of(&mut self, what: &NodeOp, form: &Form, lifted: LiftedWhole) -> Option<NodeId> {
        let LiftedWhole { inputs, dim, extent, starts } = lifted;
        let mut dims = form.dims()?.to_vec();
        *dims.get_mut(dim)? = extent;
        let whole = self.op(what.clone(), form.with_dims(&dims), inputs);
        Some(self.shard(ValueSlice { dim, starts, whole }, form.clone()))
    }

    /// What an operation of one operand does with a slice along a dimension that it does not mix.
    fn of_one(
        &mut self,
        input: NodeId,
        mixed: &[usize],
        place: impl Fn(usize) -> Option<usize>,
    ) -> Option<LiftedWhole> {
        let slice = self.without(input, &|slice: &ValueSlice| !mixed.contains(&slice.dim))?;
        let extent = self.node(slice.whole).form.dims()?[slice.dim];
        let dim = place(slice.dim)?;
        Some(LiftedWhole { inputs: vec![slice.whole], dim, extent, starts: slice.starts })
    }

    /// A reshape of a slice, if the slice is a range of elements of a dimension afterwards: one
    /// with as many elements before it. A single row that is taken out of a stack stays one.
    fn reshaped_slice(&mut self, form: &Form, input: NodeId) -> Option<LiftedWhole> {
        let extents = self.node(input).form.dims()?.to_vec();
        let slice = self.without(input, &|slice: &ValueSlice| extents[slice.dim] > 1)?;
        let (before, whole) =
            (self.node(input).form.dims()?, self.node(slice.whole).form.dims()?.to_vec());
        let after = form.dims()?;
        let outer: u64 = before[..slice.dim].iter().product();
        let inner: u64 = before[slice.dim + 1..].iter().product();
        for dim in 0..after.len() {
            let own_outer: u64 = after[..dim].iter().product();
            let own_inner: u64 = after[dim + 1..].iter().product();
            let fits = |elements: u64| own_inner > 0 && elements.is_multiple_of(own_inner);
            let is_even = || slice.starts.iter().all(|&start| fits(start * inner));
            let elements = whole[slice.dim] * inner;
            if own_outer == outer && after[dim] > 1 && fits(elements) && is_even() {
                let start = |&start: &u64| start * inner / own_inner;
                let starts = Rc::new(slice.starts.iter().map(start).collect());
                let extent = elements / own_inner;
                return Some(LiftedWhole { inputs: vec![slice.whole], dim, extent, starts });
            }
        }
        None
    }

    /// Slices that are put together along another dimension, all of the same part.
    fn side_by_side(&mut self, inputs: &[NodeId], along: &[usize]) -> Option<LiftedWhole> {
        let &first = inputs.first()?;
        let first = self.without(first, &|slice: &ValueSlice| !along.contains(&slice.dim))?;
        let extent = self.node(first.whole).form.dims()?[first.dim];
        let is_same = |slice: &ValueSlice| slice.dim == first.dim && slice.starts == first.starts;
        let mut wholes = Vec::with_capacity(inputs.len());
        for &input in inputs {
            let whole = self.without(input, &is_same)?.whole;
            if self.node(whole).form.dims()?[first.dim] != extent {
                return None;
            }
            wholes.push(whole);
        }
        let starts = first.starts.clone();
        Some(LiftedWhole { inputs: wholes, dim: first.dim, extent, starts })
    }

    /// A product of both operands' slices along a dimension that it goes through in step.
    pub(super) fn in_step(
        &mut self,
        what: &NodeOp,
        form: &Form,
        inputs: [NodeId; 2],
    ) -> Option<NodeId> {
        let [left, right] = ["lhs_batch_dims", "rhs_batch_dims"].map(|key| dims_of(what, key));
        let is_batch = |slice: &ValueSlice| left.contains(&slice.dim);
        let lhs = self.without(inputs[0], &is_batch)?;
        let dim = left.iter().position(|&of| of == lhs.dim)?;
        let other = *right.get(dim)?;
        let is_same = |slice: &ValueSlice| slice.dim == other && slice.starts == lhs.starts;
        let rhs = self.without(inputs[1], &is_same)?;
        let extent = self.node(lhs.whole).form.dims()?[lhs.dim];
        if self.node(rhs.whole).form.dims()?[other] != extent {
            return None;
        }
        let inputs = vec![lhs.whole, rhs.whole];
        self.slice_of(what, form, LiftedWhole { inputs, dim, extent, starts: lhs.starts })
    }
}

/// The dimensions that an attribute lists.
pub(super) fn dims_of(what: &NodeOp, key: &str) -> Vec<usize> {
    let NodeOp::Op { attributes, .. } = what else { return Vec::new() };
    let found = attributes.iter().find(|(own, _)| own == key);
    let numbers = found.map_or(Vec::new(), |(_, text)| crate::lex::numbers_in(text));
    numbers.into_iter().filter_map(|number| usize::try_from(number).ok()).collect()
}
