//! Values as a graph in which equal ones are the same node.
//!
//! Nodes are made in a normal form, by rules that say which programs compute the same:
//! - a reduce-scatter is a slice of an all-reduce (another order of sums),
//! - an elementwise operation on slices is a slice of the operation on the whole,
//! - a convert after data movement is the same movement after the convert,
//! - a product of matrices of a slice of rows or columns is a slice of the product of the whole,
//!   and so is one of slices of a dimension that it goes through in step,
//! - movement, broadcasts and sums along other dimensions than that of a slice give a slice of what
//!   they give of the whole (`parts`),
//! - a collective on the same slice of every member's value is a slice of that on the whole values,
//! - slices of a value that are put together in their sequence are that value (these in `slices`),
//! - gathers one after the other are one gather in the sequence that both give, and sums of sums
//!   one sum (another order) if every device is in it once; blocks of a dimension that a transpose
//!   lets change places are gathered in another sequence, or sliced at another place (`levels`),
//! - slices of a value that is the same on all devices of a group, gathered in their sequence, are
//!   that value,
//! - a sum over slices, summed over the ranks that have them, is the sum of the whole (another
//!   order),
//! - of a collective with several operands, each result is that of a collective with one,
//! - copies and barriers pass values on,
//! - what is computed of zeros alone, or moved, is zeros where that holds for every bit (`zeros`),
//! - a loop's values that follow from its other values are left out (`loops`),
//! - values after a loop, and in it, that need some of its elements only through a function of them
//!   need only that function (`state`).

use std::collections::{BTreeSet, HashMap};
use std::rc::Rc;

use halflap::ids::IdVec;

use super::levels::BlockOrder;
use super::parts::dims_of;
use super::slices::ValueSlice;
use crate::lex::numbers_in;
use crate::{Devices, ElementType, Opcode, Shape};

halflap::ids! {
    /// A value.
    NodeId
}

/// A shape without its layout.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Form {
    Array { element: ElementType, dims: Vec<u64>, dynamic: bool },
    Tuple(Vec<Form>),
    Other,
}

impl Form {
    pub(super) fn of(shape: &Shape) -> Form {
        match shape {
            Shape::Array(array) => Form::Array {
                element: array.element,
                dims: array.dims.clone(),
                dynamic: array.dynamic,
            },
            Shape::Tuple(parts) => Form::Tuple(parts.iter().map(Form::of).collect()),
            Shape::Token | Shape::Opaque => Form::Other,
        }
    }

    pub(super) fn dims(&self) -> Option<&[u64]> {
        match self {
            Form::Array { dims, dynamic: false, .. } => Some(dims),
            _ => None,
        }
    }

    pub(super) fn element(&self) -> Option<ElementType> {
        match self {
            Form::Array { element, .. } => Some(*element),
            _ => None,
        }
    }

    pub(super) fn with_dims(&self, dims: &[u64]) -> Form {
        match self {
            Form::Array { element, .. } => {
                Form::Array { element: *element, dims: dims.to_vec(), dynamic: false }
            }
            other => other.clone(),
        }
    }

    fn part(&self, index: u32) -> Form {
        match self {
            Form::Tuple(parts) => parts.get(index as usize).cloned().unwrap_or(Form::Other),
            _ => Form::Other,
        }
    }
}

/// Who communicates with whom.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Members {
    pub(super) groups: Vec<Vec<u32>>,
    pub(super) pairs: Vec<(u32, u32)>,
}

/// What a node does with its inputs.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum NodeOp {
    Parameter(usize),
    /// A constant, as it is written.
    Literal(String),
    Tuple,
    Element(u32),
    /// The value of a start, before its end.
    Started,
    /// What a computation does with its parameters: its root, and the last of its side effects.
    Function,
    /// Stands for a value while others are put in other terms.
    Held,
    Collective {
        opcode: Opcode,
        members: Rc<Members>,
        /// Along which dimension, if that matters.
        dimensions: Vec<i64>,
        /// What is left of its attributes.
        attributes: Rc<Vec<(String, String)>>,
        /// The function that reduces.
        reducer: Option<NodeId>,
    },
    /// The slice of a dimension that begins at another place on each device.
    Shard {
        dim: usize,
        starts: Rc<Vec<u64>>,
    },
    /// Blocks of a dimension in another sequence.
    Blocks(BlockOrder),
    Op {
        opcode: Opcode,
        name: String,
        attributes: Rc<Vec<(String, String)>>,
        /// The functions that it runs.
        called: Vec<NodeId>,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Node {
    pub(super) what: NodeOp,
    pub(super) form: Form,
    pub(super) inputs: Vec<NodeId>,
}

/// The nodes of two programs.
pub(super) struct Nodes {
    all: IdVec<NodeId, Node>,
    /// Looked up only.
    known: HashMap<Node, NodeId>,
    /// Whether the order of summation may change.
    pub(super) any_sum_order: bool,
    pub(super) devices: Devices,
    /// Integers that follow from the device alone. Looked up only.
    pub(super) numbers: HashMap<NodeId, Option<Rc<Vec<i64>>>>,
}

impl Nodes {
    pub(super) fn new(devices: Devices, any_sum_order: bool) -> Nodes {
        let (all, known, numbers) = (IdVec::default(), HashMap::new(), HashMap::new());
        Nodes { all, known, any_sum_order, devices, numbers }
    }

    pub(super) fn node(&self, id: NodeId) -> &Node {
        &self.all[id]
    }

    /// A node as it is.
    pub(super) fn plain(&mut self, what: NodeOp, form: Form, inputs: Vec<NodeId>) -> NodeId {
        let node = Node { what, form, inputs };
        if let Some(&id) = self.known.get(&node) {
            return id;
        }
        let id = self.all.push(node.clone());
        self.known.insert(node, id);
        id
    }

    /// An element of a value, which is a tuple.
    pub(super) fn element(&mut self, of: NodeId, index: u32) -> NodeId {
        let node = self.node(of);
        if let (NodeOp::Tuple, Some(&part)) = (&node.what, node.inputs.get(index as usize)) {
            return part;
        }
        let form = node.form.part(index);
        self.plain(NodeOp::Element(index), form, vec![of])
    }

    /// An operation, in normal form.
    pub(super) fn op(&mut self, what: NodeOp, form: Form, inputs: Vec<NodeId>) -> NodeId {
        let NodeOp::Op { opcode, .. } = &what else { return self.plain(what, form, inputs) };
        let opcode = *opcode;
        if let Some(zeros) = self.of_zeros(&what, &form, &inputs) {
            return zeros;
        }
        if opcode == Opcode::Convert
            && let Some(moved) = self.converted(&what, &form, &inputs)
        {
            return moved;
        }
        if opcode == Opcode::DynamicSlice
            && let Some((dim, starts)) = self.sliced(&form, &inputs)
        {
            return self.shard(ValueSlice { dim, starts, whole: inputs[0] }, form);
        }
        if opcode == Opcode::Reshape
            && let Some(moved) = self.reshaped(&form, &inputs)
        {
            return moved;
        }
        if let Some(known) = self.of_slices(&what, &form, &inputs) {
            return known;
        }
        if let Some(known) = self.of_parts(&what, &form, &inputs) {
            return known;
        }
        if opcode.is_elementwise()
            && opcode != Opcode::Map
            && let Some(lifted) = self.lifted(&what, &form, &inputs)
        {
            return lifted;
        }
        self.plain(what, form, inputs)
    }

    /// A collective of one operand, in normal form.
    pub(super) fn collective(&mut self, what: NodeOp, form: Form, input: NodeId) -> NodeId {
        if let Some(zeros) = self.sent_zeros(&what, &form, input) {
            return zeros;
        }
        if let Some(known) = self.communicated(&what, &form, input) {
            return known;
        }
        let known = match &what {
            NodeOp::Collective { opcode: Opcode::AllReduce, .. } => self
                .summed(&what, input)
                .or_else(|| self.in_levels(&what, &form, input))
                .or_else(|| self.of_blocks(&what, &form, input)),
            NodeOp::Collective { opcode: Opcode::AllGather, .. } => {
                self.in_levels(&what, &form, input).or_else(|| self.gathered(&what, &form, input))
            }
            NodeOp::Collective { opcode: Opcode::ReduceScatter, .. }
                if self.any_sum_order || self.is_order_free(&what, input) =>
            {
                self.scattered(&what, &form, input)
            }
            _ => None,
        };
        known.unwrap_or_else(|| {
            let what = self.in_any_sequence(what, input);
            self.plain(what, form, vec![input])
        })
    }

    /// The members of an all-reduce in ascending order, if their order does not matter.
    fn in_any_sequence(&self, what: NodeOp, input: NodeId) -> NodeOp {
        let is_free = self.any_sum_order || self.is_order_free(&what, input);
        match what {
            NodeOp::Collective {
                opcode: opcode @ Opcode::AllReduce,
                members,
                dimensions,
                attributes,
                reducer,
            } if is_free => {
                let members = Rc::new(sorted(&members));
                NodeOp::Collective { opcode, members, dimensions, attributes, reducer }
            }
            what => what,
        }
    }

    /// A reduce-scatter as a slice of an all-reduce.
    fn scattered(&mut self, what: &NodeOp, form: &Form, input: NodeId) -> Option<NodeId> {
        let NodeOp::Collective { members, dimensions, attributes, reducer, .. } = what else {
            return None;
        };
        let whole = self.node(input).form.clone();
        let (full, part) = (whole.dims()?, form.dims()?);
        let &[dim] = &dimensions[..] else { return None };
        let dim = usize::try_from(dim).ok()?;
        let is_kept = |other: usize| other == dim || full.get(other) == part.get(other);
        if full.len() != part.len() || !(0..full.len()).all(is_kept) {
            return None;
        }
        let size = *part.get(dim)?;
        let mut starts = vec![u64::MAX; self.device_count()];
        for (place, &device) in members.groups.iter().flat_map(|group| group.iter().enumerate()) {
            *starts.get_mut(device as usize)? = place as u64 * size;
        }
        let is_even = members.groups.iter().all(|group| group.len() as u64 * size == full[dim]);
        if !is_even || starts.contains(&u64::MAX) {
            return None;
        }
        let all = NodeOp::Collective {
            opcode: Opcode::AllReduce,
            members: members.clone(),
            dimensions: Vec::new(),
            attributes: attributes.clone(),
            reducer: *reducer,
        };
        let whole = self.collective(all, whole, input);
        Some(self.shard(ValueSlice { dim, starts: Rc::new(starts), whole }, form.clone()))
    }

    pub(super) fn device_count(&self) -> usize {
        self.devices.count() as usize
    }

    /// A convert of moved data as moved data that was converted.
    fn converted(&mut self, what: &NodeOp, form: &Form, inputs: &[NodeId]) -> Option<NodeId> {
        let &[input] = inputs else { return None };
        let node = self.node(input).clone();
        let moves = matches!(
            &node.what,
            NodeOp::Collective {
                opcode: Opcode::AllGather
                    | Opcode::AllToAll
                    | Opcode::CollectivePermute
                    | Opcode::CollectiveBroadcast,
                ..
            }
        );
        let (&[from], Form::Array { element, .. }) = (&node.inputs[..], form) else { return None };
        let sent = self.node(from).form.clone();
        let Form::Array { dims, dynamic: false, .. } = sent else { return None };
        if !moves || node.form.dims()? != form.dims()? {
            return None;
        }
        let form_before = Form::Array { element: *element, dims, dynamic: false };
        let before = self.op(what.clone(), form_before, vec![from]);
        Some(self.collective(node.what, form.clone(), before))
    }

    /// Which dimension a dynamic slice cuts, and where it begins on each device.
    fn sliced(&mut self, form: &Form, inputs: &[NodeId]) -> Option<(usize, Rc<Vec<u64>>)> {
        let (&of, starts) = inputs.split_first()?;
        let whole = self.node(of).form.dims()?.to_vec();
        let part = form.dims()?;
        let mut cut = (0..whole.len()).filter(|&dim| part.get(dim) != whole.get(dim));
        let (Some(dim), None) = (cut.next(), cut.next()) else { return None };
        let room = whole[dim].checked_sub(part[dim])?;
        let numbers = self.numbers(*starts.get(dim)?)?;
        // A slice that would reach beyond the end begins earlier.
        let start = |&number: &i64| u64::try_from(number.max(0)).unwrap_or(0).min(room);
        Some((dim, Rc::new(numbers.iter().map(start).collect())))
    }

    /// An operation on slices, as a slice of the operation on the whole.
    fn lifted(&mut self, what: &NodeOp, form: &Form, inputs: &[NodeId]) -> Option<NodeId> {
        let mut slices = inputs.iter().flat_map(|&input| self.slices(input)).collect::<Vec<_>>();
        slices.dedup_by(|a, b| (a.dim, &a.starts) == (b.dim, &b.starts));
        for ValueSlice { dim, starts, whole: of } in slices {
            let mut whole = form.dims()?.to_vec();
            *whole.get_mut(dim)? = *self.node(of).form.dims()?.get(dim)?;
            let cut = ValueSlice { dim, starts, whole: of };
            let all = inputs.iter().map(|&input| self.before_cut(input, &cut, &whole));
            let Some(all) = all.collect::<Option<Vec<_>>>() else { continue };
            let full = self.op(what.clone(), form.with_dims(&whole), all);
            return Some(self.shard(ValueSlice { whole: full, ..cut }, form.clone()));
        }
        None
    }

    /// An operand of which this slice was taken, given the extents of the whole.
    fn before_cut(&mut self, input: NodeId, cut: &ValueSlice, whole: &[u64]) -> Option<NodeId> {
        let is_same = |slice: &ValueSlice| slice.dim == cut.dim && slice.starts == cut.starts;
        if let Some(slice) = self.without(input, &is_same) {
            return (self.node(slice.whole).form.dims() == Some(whole)).then_some(slice.whole);
        }
        if let Some(longer) = self.longer_slice(input, cut, whole) {
            return Some(longer);
        }
        self.spread_over(input, cut.dim, whole)
    }

    /// A value whose elements along a dimension are all the same, with other extents.
    fn spread_over(&mut self, id: NodeId, dim: usize, whole: &[u64]) -> Option<NodeId> {
        let node = self.node(id).clone();
        if node.form.dims()?.is_empty() {
            // A number for all elements.
            return Some(id);
        }
        if let NodeOp::Shard { dim: other, starts } = &node.what {
            let &[of] = &node.inputs[..] else { return None };
            let mut extents = whole.to_vec();
            *extents.get_mut(*other)? = *self.node(of).form.dims()?.get(*other)?;
            let of = self.spread_over(of, dim, &extents).filter(|_| *other != dim)?;
            let slice = ValueSlice { dim: *other, starts: starts.clone(), whole: of };
            return Some(self.shard(slice, node.form.with_dims(whole)));
        }
        let is_spread = matches!(node.what, NodeOp::Op { opcode: Opcode::Broadcast, .. })
            && !dims_of(&node.what, "dimensions").contains(&dim);
        is_spread.then(|| self.op(node.what, node.form.with_dims(whole), node.inputs))
    }

    /// A sum over slices that is summed over their ranks, as the sum of the whole.
    fn summed(&mut self, what: &NodeOp, input: NodeId) -> Option<NodeId> {
        let NodeOp::Collective { members, reducer, .. } = what else { return None };
        let sum = self.node(input).clone();
        let NodeOp::Op { opcode: Opcode::Reduce, attributes: own, called, .. } = &sum.what else {
            return None;
        };
        let &[part, init] = &sum.inputs[..] else { return None };
        let node = self.node(part).clone();
        let NodeOp::Shard { dim, starts } = &node.what else { return None };
        let is_free = self.any_sum_order || sum.form.element()?.name().starts_with(['s', 'u']);
        let is_same_sum = reducer.is_some_and(|reducer| {
            called[..] == [reducer] && self.reducer(reducer) == Some(Opcode::Add)
        });
        let summed = own.iter().find(|(key, _)| key == "dimensions")?;
        let is_zero = matches!(&self.node(init).what, NodeOp::Literal(text) if text == "0");
        let is_summed = numbers_in(&summed.1).contains(&(*dim as i64));
        if !(is_free && is_zero && is_summed && is_same_sum) {
            return None;
        }
        let size = node.form.dims()?[*dim];
        let whole = node.inputs[0];
        let extent = self.node(whole).form.dims()?[*dim];
        let covers = |group: &Vec<u32>| {
            let mut places: Vec<u64> = group.iter().map(|&d| starts[d as usize]).collect();
            places.sort_unstable();
            let is_next = |(at, &start): (usize, &u64)| start == at as u64 * size;
            places.iter().enumerate().all(is_next) && places.len() as u64 * size == extent
        };
        if !members.groups.iter().all(covers) || !self.is_uniform(whole, &members.groups) {
            return None;
        }
        Some(self.plain(sum.what.clone(), sum.form.clone(), vec![whole, init]))
    }

    /// Whether a value is the same on all devices of each group.
    pub(super) fn is_uniform(&self, id: NodeId, groups: &[Vec<u32>]) -> bool {
        let (mut open, mut seen) = (vec![id], BTreeSet::new());
        while let Some(id) = open.pop() {
            if !seen.insert(id) {
                continue;
            }
            let node = self.node(id);
            match &node.what {
                NodeOp::Literal(_) => {}
                NodeOp::Collective { opcode: Opcode::AllReduce, members, .. } => {
                    let within = |group: &Vec<u32>| {
                        members.groups.iter().any(|all| group.iter().all(|d| all.contains(d)))
                    };
                    if !groups.iter().all(within) {
                        return false;
                    }
                }
                NodeOp::Op { opcode, .. }
                    if (opcode.is_elementwise() && *opcode != Opcode::Map)
                        || *opcode == Opcode::Broadcast =>
                {
                    open.extend(&node.inputs);
                }
                NodeOp::Blocks(_) => open.extend(&node.inputs),
                _ => return false,
            }
        }
        true
    }

    /// What a function does with its two parameters, if that is one operation.
    pub(super) fn reducer(&self, function: NodeId) -> Option<Opcode> {
        let root = self.node(*self.node(function).inputs.first()?);
        let NodeOp::Op { opcode, .. } = root.what else { return None };
        let parameter = |&id: &NodeId| match self.node(id).what {
            NodeOp::Parameter(number) => Some(number),
            _ => None,
        };
        let mut numbers: Vec<usize> = root.inputs.iter().map(parameter).collect::<Option<_>>()?;
        numbers.sort_unstable();
        (numbers == [0, 1]).then_some(opcode)
    }

    /// Whether a reduction gives the same bits in every order.
    pub(super) fn is_order_free(&self, what: &NodeOp, input: NodeId) -> bool {
        let NodeOp::Collective { members, reducer, .. } = what else { return false };
        let known = [Opcode::Add, Opcode::Multiply, Opcode::Maximum, Opcode::Minimum];
        let is_known = reducer
            .and_then(|function| self.reducer(function))
            .is_some_and(|opcode| known.contains(&opcode));
        let name = self.node(input).form.element().map_or("", ElementType::name);
        let is_whole = name.starts_with(['s', 'u']) || name == "pred";
        is_known && (is_whole || members.groups.iter().all(|group| group.len() <= 2))
    }
}

/// The same sets, each and all ascending.
pub(super) fn sorted(members: &Members) -> Members {
    let mut groups = members.groups.clone();
    groups.iter_mut().for_each(|group| group.sort_unstable());
    groups.sort_unstable();
    Members { groups, pairs: members.pairs.clone() }
}
