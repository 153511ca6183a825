//! Collectives one after the other as one among more devices, and blocks that change places.

use std::collections::BTreeSet;
use std::rc::Rc;

use super::nodes::{Form, Members, NodeId, NodeOp, Nodes, sorted};
use super::slices::ValueSlice;
use crate::Opcode;
use crate::lex::numbers_in;

/// Equal blocks of a dimension in another sequence.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct BlockOrder {
    pub(super) dim: usize,
    /// Where the block was that is now at a place.
    pub(super) before: Rc<Vec<u64>>,
}

impl BlockOrder {
    /// The blocks of a table, row by row, read column by column.
    fn transposed(dim: usize, rows: u64, columns: u64) -> BlockOrder {
        let before = |place: u64| place % rows * columns + place / rows;
        BlockOrder { dim, before: Rc::new((0..rows * columns).map(before).collect()) }
    }

    fn count(&self) -> u64 {
        self.before.len() as u64
    }

    fn is_same(&self) -> bool {
        (0..).zip(&*self.before).all(|(place, &before)| place == before)
    }

    /// The same with more blocks, each a part of one of these.
    fn finer(&self, count: u64) -> Option<BlockOrder> {
        let each = count.checked_div(self.count())?;
        let part = |place: u64| self.before[(place / each) as usize] * each + place % each;
        let is_even = each * self.count() == count;
        let before = || Rc::new((0..count).map(part).collect());
        is_even.then(|| BlockOrder { dim: self.dim, before: before() })
    }

    /// This after another one.
    fn after(&self, first: &BlockOrder) -> Option<BlockOrder> {
        let count = self.count().max(first.count());
        let [last, first] = [self.finer(count)?, first.finer(count)?];
        let before = last.before.iter().map(|&place| first.before[place as usize]).collect();
        (self.dim == first.dim).then(|| BlockOrder { dim: self.dim, before: Rc::new(before) })
    }

    /// The sequence of groups' members, as that of ascending ones, if it is the same in all.
    fn of_members(dim: usize, groups: &[Vec<u32>]) -> Option<BlockOrder> {
        let place = |group: &Vec<u32>| -> Vec<u64> {
            let smaller = |of: &u32| group.iter().filter(|other| *other < of).count() as u64;
            group.iter().map(smaller).collect()
        };
        let before = place(groups.first()?);
        let is_one = groups.iter().all(|group| place(group) == before);
        is_one.then(|| BlockOrder { dim, before: Rc::new(before) })
    }
}

impl Nodes {
    /// A collective of the result of another one of its kind.
    pub(super) fn in_levels(
        &mut self,
        what: &NodeOp,
        form: &Form,
        input: NodeId,
    ) -> Option<NodeId> {
        let NodeOp::Collective { opcode, members, dimensions, attributes, reducer } = what else {
            return None;
        };
        let node = self.node(input).clone();
        let NodeOp::Collective { members: first, .. } = &node.what else { return None };
        let of = |members: &Rc<Members>| NodeOp::Collective {
            opcode: *opcode,
            members: members.clone(),
            dimensions: dimensions.clone(),
            attributes: attributes.clone(),
            reducer: *reducer,
        };
        if node.what != of(first) || !self.may_be_joined(what, input) {
            return None;
        }
        let joined = joined(first, members, self.device_count(), *opcode == Opcode::AllGather)?;
        Some(self.collective(of(&Rc::new(joined)), form.clone(), *node.inputs.first()?))
    }

    /// Whether two collectives of this kind may become one: gathers always, reductions if the order
    /// of summation may change or does not matter. That of two sums of two numbers does.
    fn may_be_joined(&self, what: &NodeOp, input: NodeId) -> bool {
        let NodeOp::Collective { opcode, reducer, .. } = what else { return false };
        let known = [Opcode::Add, Opcode::Multiply, Opcode::Maximum, Opcode::Minimum];
        let is_known =
            || reducer.and_then(|of| self.reducer(of)).is_some_and(|of| known.contains(&of));
        let element = self.node(input).form.element();
        let is_whole = element.is_some_and(|element| element.name().starts_with(['s', 'u']));
        match opcode {
            Opcode::AllGather => true,
            Opcode::AllReduce => (self.any_sum_order || is_whole) && is_known(),
            _ => false,
        }
    }

    /// An all-gather of the slices of a value that is the same on all devices of each group.
    pub(super) fn gathered(&mut self, what: &NodeOp, form: &Form, input: NodeId) -> Option<NodeId> {
        let NodeOp::Collective { members, dimensions, .. } = what else { return None };
        let &[dim] = &dimensions[..] else { return None };
        let size = *self.node(input).form.dims()?.get(usize::try_from(dim).ok()?)?;
        let devices: usize = members.groups.iter().map(Vec::len).sum();
        let is_next = |slice: &ValueSlice, (place, &device): (u64, &u32)| {
            slice.starts.get(device as usize) == Some(&(place * size))
        };
        let is_own = |slice: &ValueSlice| {
            let mut groups = members.groups.iter();
            slice.dim as i64 == dim
                && devices == slice.starts.len()
                && groups.all(|group| (0..).zip(group).all(|of| is_next(slice, of)))
        };
        let whole = self.without(input, &is_own)?.whole;
        let is_all = self.node(whole).form == *form && self.is_uniform(whole, &members.groups);
        is_all.then_some(whole)
    }

    /// A reshape of a transposed reshape that only lets blocks of one dimension change places.
    pub(super) fn reshaped(&mut self, form: &Form, inputs: &[NodeId]) -> Option<NodeId> {
        let of = |id: NodeId, opcode: Opcode| {
            let node = self.node(id);
            let is_it = matches!(&node.what, NodeOp::Op { opcode: own, .. } if *own == opcode);
            node.inputs.first().copied().filter(|_| is_it)
        };
        let &[turned] = inputs else { return None };
        let split = of(turned, Opcode::Transpose)?;
        let whole = of(split, Opcode::Reshape)?;
        let NodeOp::Op { attributes, .. } = &self.node(turned).what else { return None };
        let sequence = numbers_in(&attributes.iter().find(|(key, _)| key == "dimensions")?.1);
        let dim = (0..).zip(&sequence).position(|(place, &of)| place != of)?;
        let mut swapped: Vec<i64> = (0..).take(sequence.len()).collect();
        if dim + 2 >= swapped.len() {
            return None;
        }
        swapped.swap(dim, dim + 1);
        let (dims, parts) = (form.dims()?, self.node(split).form.dims()?);
        let (rows, columns) = (*parts.get(dim)?, *parts.get(dim + 1)?);
        let size = dims.get(dim)?.checked_div(rows * columns)?;
        let expected = [&dims[..dim], &[rows, columns, size], &dims[dim + 1..]].concat();
        let is_table = sequence == swapped && *parts == expected[..];
        let is_same = self.node(whole).form == *form && rows * columns * size == dims[dim];
        let sequence = || BlockOrder::transposed(dim, rows, columns);
        (is_table && is_same).then(|| self.blocks(sequence(), form.clone(), whole))
    }

    /// Blocks in another sequence, in normal form: what is gathered is gathered in that sequence.
    pub(super) fn blocks(&mut self, moved: BlockOrder, form: Form, of: NodeId) -> NodeId {
        let node = self.node(of).clone();
        let inner = match &node.what {
            NodeOp::Blocks(first) => moved.after(first).zip(node.inputs.first().copied()),
            _ => None,
        };
        if let Some((both, of)) = inner {
            return self.blocks(both, form, of);
        }
        if moved.is_same() {
            return of;
        }
        let gathered = gathered_in(&node.what, &moved).zip(node.inputs.first().copied());
        match gathered {
            Some((what, input)) => self.collective(what, form, input),
            None => self.plain(NodeOp::Blocks(moved), form, vec![of]),
        }
    }

    /// An all-reduce of moved blocks, as moved blocks of the all-reduce. Blocks are also moved if
    /// they were gathered in another sequence than that of the ranks.
    pub(super) fn of_blocks(
        &mut self,
        what: &NodeOp,
        form: &Form,
        input: NodeId,
    ) -> Option<NodeId> {
        // Which rank adds up an element first may depend on its place.
        if !self.any_sum_order && !self.is_order_free(what, input) {
            return None;
        }
        let node = self.node(input).clone();
        let &[of] = &node.inputs[..] else { return None };
        let (moved, of) = match &node.what {
            NodeOp::Blocks(moved) => (moved.clone(), of),
            NodeOp::Collective { opcode: Opcode::AllGather, members, dimensions, .. } => {
                let dim = usize::try_from(*dimensions.first()?).ok()?;
                let moved = BlockOrder::of_members(dim, &members.groups)?;
                if moved.is_same() {
                    return None;
                }
                let ascending = with_members(&node.what, sorted(members))?;
                (moved, self.collective(ascending, node.form, of))
            }
            _ => return None,
        };
        let reduced = self.collective(what.clone(), form.clone(), of);
        Some(self.blocks(moved, form.clone(), reduced))
    }

    /// A slice within one block each, as a slice of what the blocks were before they moved.
    pub(super) fn slice_before(&self, slice: &ValueSlice, form: &Form) -> Option<ValueSlice> {
        let node = self.node(slice.whole);
        let (NodeOp::Blocks(moved), &[whole]) = (&node.what, &node.inputs[..]) else {
            return None;
        };
        let block = node.form.dims()?.get(moved.dim)?.checked_div(moved.count())?;
        let size = *form.dims()?.get(moved.dim)?;
        let start = |&start: &u64| {
            let place = start.checked_div(block)?;
            let is_within = size > 0 && place == (start + size - 1) / block;
            let before = moved.before.get(usize::try_from(place).ok()?)?;
            is_within.then(|| before * block + start % block)
        };
        let starts = slice.starts.iter().map(start).collect::<Option<Vec<u64>>>();
        let starts = starts.filter(|_| moved.dim == slice.dim)?;
        Some(ValueSlice { dim: slice.dim, starts: Rc::new(starts), whole })
    }
}

/// A gather whose blocks are moved, as a gather in another sequence.
fn gathered_in(gather: &NodeOp, moved: &BlockOrder) -> Option<NodeOp> {
    let NodeOp::Collective { opcode: Opcode::AllGather, members, dimensions, .. } = gather else {
        return None;
    };
    let turned = |group: &Vec<u32>| -> Option<Vec<u32>> {
        let order = moved.finer(group.len() as u64)?;
        order.before.iter().map(|&at| group.get(at as usize).copied()).collect()
    };
    let groups: Option<Vec<Vec<u32>>> = members.groups.iter().map(turned).collect();
    let mut groups = groups.filter(|_| dimensions[..] == [moved.dim as i64])?;
    groups.sort_unstable();
    with_members(gather, Members { groups, pairs: Vec::new() })
}

/// The same collective among others.
fn with_members(what: &NodeOp, among: Members) -> Option<NodeOp> {
    let mut what = what.clone();
    let NodeOp::Collective { members, .. } = &mut what else { return None };
    *members = Rc::new(among);
    Some(what)
}

/// The members of one collective for two, of which the second takes what the first gives. What a
/// device has in the end is from the groups of all members of its second group; each device must be
/// in there once, and all of them must have the same.
fn joined(first: &Members, second: &Members, devices: usize, is_listed: bool) -> Option<Members> {
    let mut group_of: Vec<Option<&Vec<u32>>> = vec![None; devices];
    for group in &first.groups {
        for &device in group {
            *group_of.get_mut(device as usize)? = Some(group);
        }
    }
    let mut from: Vec<Option<Rc<Vec<u32>>>> = vec![None; devices];
    for group in &second.groups {
        let parts = group.iter().map(|&device| *group_of.get(device as usize)?);
        let parts = parts.collect::<Option<Vec<_>>>()?;
        let mut all: Vec<u32> = parts.into_iter().flatten().copied().collect();
        let each: BTreeSet<u32> = all.iter().copied().collect();
        if each.len() != all.len() {
            return None;
        }
        if !is_listed {
            all.sort_unstable();
        }
        let all = Rc::new(all);
        for &device in group {
            *from.get_mut(device as usize)? = Some(all.clone());
        }
    }
    let mut groups = BTreeSet::new();
    for (device, all) in (0..).zip(&from) {
        let all = all.as_ref()?;
        let is_same =
            |other: &u32| from.get(*other as usize).is_some_and(|of| of.as_ref() == Some(all));
        if !all.contains(&device) || !all.iter().all(is_same) {
            return None;
        }
        groups.insert(all.to_vec());
    }
    Some(Members { groups: groups.into_iter().collect(), pairs: Vec::new() })
}
