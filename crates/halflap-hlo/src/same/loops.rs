//! Values that a loop carries although they follow from its other values.
//!
//! Let an element of a loop's state be, at the end of every iteration, a function of the other
//! elements at that time, and the same function of them before the first iteration. Then it is that
//! function of them whenever an iteration or the condition starts, and when the loop ends. So it
//! can be left out if that function replaces it wherever it is read. A gather for the next
//! iteration is such an element: of the weights, which stay, and of the counter.

use std::collections::{BTreeSet, HashMap};

use super::nodes::{Form, NodeId, NodeOp, Nodes};
use super::slices::ValueSlice;

/// A loop whose values are elements of one tuple, with what is still carried.
#[derive(Clone)]
pub(super) struct Carried {
    /// The parameter of body and condition.
    parameter: NodeId,
    /// Each element when an iteration starts; `None` if it is left out.
    pub(super) begins: Vec<Option<NodeId>>,
    /// The same when it ends, and before the first one.
    pub(super) ends: Vec<NodeId>,
    pub(super) starts: Vec<NodeId>,
    pub(super) condition: NodeId,
    /// What an iteration did.
    body: NodeId,
    /// What replaces the omitted elements at the start of an iteration.
    left_out: Vec<(usize, NodeId)>,
}

impl Carried {
    /// The places of what is still carried.
    pub(super) fn kept(&self) -> Vec<usize> {
        (0..self.begins.len()).filter(|&place| self.begins[place].is_some()).collect()
    }
}

impl Nodes {
    /// A loop without redundant elements, as a tuple of all its results; the loop itself if there
    /// are none.
    pub(super) fn shortened(&mut self, looped: NodeId, body: NodeId, test: NodeId) -> NodeId {
        let Some(mut carried) = self.carried(looped, body, test) else { return looped };
        for element in (0..carried.ends.len()).rev() {
            if let Some(value) = self.follows(&carried, element) {
                self.leave_out(&mut carried, element, value);
            }
        }
        match carried.left_out.is_empty() {
            true => looped,
            false => self.rebuilt(looped, carried).unwrap_or(looped),
        }
    }

    pub(super) fn carried(
        &mut self,
        looped: NodeId,
        body: NodeId,
        test: NodeId,
    ) -> Option<Carried> {
        let node = self.node(looped).clone();
        let (&[init], Form::Tuple(parts)) = (&node.inputs[..], &node.form) else { return None };
        // A loop with side effects is more than its values.
        let (&[root], &[condition]) = (&self.node(body).inputs[..], &self.node(test).inputs[..])
        else {
            return None;
        };
        let root = self.node(root).clone();
        if root.what != NodeOp::Tuple || root.inputs.len() != parts.len() {
            return None;
        }
        let parameter = self.plain(NodeOp::Parameter(0), node.form.clone(), Vec::new());
        let all = 0..parts.len() as u32;
        let begins = all.clone().map(|index| Some(self.element(parameter, index))).collect();
        let starts = all.map(|index| self.element(init, index)).collect();
        let left_out = Vec::new();
        Some(Carried { parameter, begins, ends: root.inputs, starts, condition, body, left_out })
    }

    /// An element as a function of the others when an iteration begins, if it is one at the end of
    /// each and before the first.
    fn follows(&mut self, carried: &Carried, element: usize) -> Option<NodeId> {
        let others = || {
            let places = carried.begins.iter().enumerate().filter(|(place, _)| *place != element);
            places.filter_map(|(place, begins)| Some((place, (*begins)?)))
        };
        let of_ends = others().map(|(place, begins)| (carried.ends[place], begins)).rev().collect();
        let value = self.with(carried.ends[element], &of_ends, carried.parameter)?;
        let of_begins = others().map(|(place, begins)| (begins, carried.starts[place])).collect();
        let start = self.with(value, &of_begins, carried.parameter)?;
        (start == carried.starts[element]).then_some(value)
    }

    fn leave_out(&mut self, carried: &mut Carried, element: usize, value: NodeId) {
        let Some(begins) = carried.begins[element].take() else { return };
        let place = &HashMap::from([(begins, value)]);
        let put = |nodes: &mut Nodes, id: NodeId| nodes.replaced(id, place);
        carried.condition = put(self, carried.condition);
        carried.ends = carried.ends.iter().map(|&end| put(self, end)).collect();
        for (_, other) in &mut carried.left_out {
            *other = self.replaced(*other, place);
        }
        carried.left_out.push((element, value));
    }

    /// All results of a loop, of which only the remaining elements are carried.
    fn rebuilt(&mut self, looped: NodeId, carried: Carried) -> Option<NodeId> {
        let short = self.short(looped, &carried)?;
        let all = self.given(short, &carried)?;
        let form = self.node(looped).form.clone();
        Some(self.plain(NodeOp::Tuple, form, all))
    }

    /// The loop of the remaining elements.
    pub(super) fn short(&mut self, looped: NodeId, carried: &Carried) -> Option<NodeId> {
        let node = self.node(looped).clone();
        let (Form::Tuple(parts), NodeOp::Op { opcode, name, attributes, called }) =
            (&node.form, &node.what)
        else {
            return None;
        };
        let kept = carried.kept();
        let form = Form::Tuple(kept.iter().map(|&place| parts[place].clone()).collect());
        let parameter = self.plain(NodeOp::Parameter(0), form.clone(), Vec::new());
        let mut begins = HashMap::new();
        for (index, &place) in (0..).zip(&kept) {
            begins.insert(carried.begins[place]?, self.element(parameter, index));
        }
        let mut ends = Vec::with_capacity(kept.len());
        for &place in &kept {
            ends.push(self.with(carried.ends[place], &begins, carried.parameter)?);
        }
        let root = self.plain(NodeOp::Tuple, form.clone(), ends);
        let condition = self.with(carried.condition, &begins, carried.parameter)?;
        let [body, test] =
            [root, condition].map(|id| self.plain(NodeOp::Function, Form::Other, vec![id]));
        let run = |&old: &NodeId| if old == carried.body { body } else { test };
        let starts = kept.iter().map(|&place| carried.starts[place]).collect();
        let init = self.plain(NodeOp::Tuple, form.clone(), starts);
        let what = NodeOp::Op {
            opcode: *opcode,
            name: name.clone(),
            attributes: attributes.clone(),
            called: called.iter().map(run).collect(),
        };
        Some(self.plain(what, form, vec![init]))
    }

    /// All results of the original loop: the remaining elements, and what follows from them.
    fn given(&mut self, short: NodeId, carried: &Carried) -> Option<Vec<NodeId>> {
        let mut ended = HashMap::new();
        for (index, place) in (0..).zip(carried.kept()) {
            ended.insert(carried.begins[place]?, self.element(short, index));
        }
        let mut all = Vec::with_capacity(carried.begins.len());
        for (place, begins) in carried.begins.iter().enumerate() {
            let value = carried.left_out.iter().find(|(element, _)| *element == place);
            let value = begins.or(value.map(|&(_, value)| value))?;
            all.push(self.with(value, &ended, carried.parameter)?);
        }
        Some(all)
    }

    /// A value with others in place of some; `None` if it needs `never` apart from those.
    pub(super) fn with(
        &mut self,
        id: NodeId,
        places: &HashMap<NodeId, NodeId>,
        never: NodeId,
    ) -> Option<NodeId> {
        let seen = self.needed(id, places);
        (!seen.contains(&never)).then(|| self.put_in(&seen, id, places))
    }

    /// A value with others in place of some.
    pub(super) fn replaced(&mut self, id: NodeId, places: &HashMap<NodeId, NodeId>) -> NodeId {
        self.put_in(&self.needed(id, places), id, places)
    }

    /// A value and all that it needs, but for what is replaced.
    pub(super) fn needed(&self, id: NodeId, places: &HashMap<NodeId, NodeId>) -> BTreeSet<NodeId> {
        let (mut open, mut seen) = (vec![id], BTreeSet::new());
        while let Some(id) = open.pop() {
            if !places.contains_key(&id) && seen.insert(id) {
                open.extend(&self.node(id).inputs);
            }
        }
        seen
    }

    /// Creates nodes again, each after its inputs.
    fn put_in(
        &mut self,
        seen: &BTreeSet<NodeId>,
        id: NodeId,
        places: &HashMap<NodeId, NodeId>,
    ) -> NodeId {
        // Looked up only.
        let mut new = places.clone();
        for &old in seen {
            let node = self.node(old).clone();
            let inputs: Vec<NodeId> =
                node.inputs.iter().map(|input| *new.get(input).unwrap_or(input)).collect();
            let made = match (&node.what, &inputs[..]) {
                _ if inputs == node.inputs => old,
                (NodeOp::Element(index), &[of]) => self.element(of, *index),
                (NodeOp::Collective { .. }, &[input]) => {
                    self.collective(node.what, node.form, input)
                }
                (NodeOp::Shard { dim, starts }, &[whole]) => {
                    let slice = ValueSlice { dim: *dim, starts: starts.clone(), whole };
                    self.shard(slice, node.form)
                }
                (NodeOp::Blocks(moved), &[of]) => self.blocks(moved.clone(), node.form, of),
                _ => self.op(node.what, node.form, inputs),
            };
            new.insert(old, made);
        }
        new.get(&id).copied().unwrap_or(id)
    }
}
