//! A loop's values in other variables.
//!
//! Let `z = R(y)` be a value of some elements of a loop's state. If everything after the loop needs
//! these elements only through `z`, and if at the end of each iteration `z` and the other elements
//! are functions of what `z` and the others were at its start, then the loop can carry `z` instead:
//! it starts as `R` of what the elements start with, and by induction over the iterations it is `R`
//! of them whenever an iteration ends. A gradient that is summed up one iteration late is such a
//! pair: of a buffer, and of what is still to be added to it or stored in it.
//!
//! If `R` communicates, every rank must have run as many iterations as the others: a collective
//! after a loop takes what each rank has at its own end, one in the loop what all have in the same
//! iteration.
//!
//! Elements that nothing needs are not carried at all.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::loops::Carried;
use super::nodes::{Form, NodeId, NodeOp, Nodes};
use crate::Opcode;

/// How many values after a loop are tried.
const MOST_TRIED: usize = 64;

/// A loop, and what is needed of it.
struct LoopUse {
    looped: NodeId,
    /// What needs it.
    root: NodeId,
    carried: Carried,
    /// Its results that are needed, by their places.
    outputs: BTreeMap<usize, NodeId>,
}

/// What needs a loop.
struct LoopReader {
    root: NodeId,
    /// What stands for an element in it, and the element's place.
    held: Option<(NodeId, usize)>,
}

/// A value after a loop that depends on elements of its state.
struct Replacement {
    value: NodeId,
    of: BTreeSet<usize>,
}

impl Nodes {
    /// A value in which loops carry as few elements as these rules allow.
    pub(super) fn settled(&mut self, mut root: NodeId) -> NodeId {
        let mut done = BTreeSet::new();
        loop {
            let all = self.needed(root, &HashMap::new());
            let is_open = |id: &&NodeId| !done.contains(*id) && self.is_loop(**id);
            let Some(&looped) = all.iter().find(is_open) else { return root };
            done.insert(looped);
            // A loop that has changed is another one, and its turn comes again.
            if let Some(used) = self.used(root, looped, &all) {
                root = self.without_unread(&used).or_else(|| self.changed(&used)).unwrap_or(root);
            }
        }
    }

    fn is_loop(&self, id: NodeId) -> bool {
        matches!(self.node(id).what, NodeOp::Op { opcode: Opcode::While, .. })
    }

    /// What is needed of a loop, if that is elements alone.
    fn used(&mut self, root: NodeId, looped: NodeId, all: &BTreeSet<NodeId>) -> Option<LoopUse> {
        let mut outputs = BTreeMap::new();
        for &id in all {
            let node = self.node(id);
            match node.what {
                NodeOp::Element(place) if node.inputs == [looped] => {
                    outputs.insert(place as usize, id);
                }
                _ if node.inputs.contains(&looped) => return None,
                _ => {}
            }
        }
        let NodeOp::Op { called, .. } = &self.node(looped).what else { return None };
        let gives = |&function: &NodeId| {
            let root = self.node(function).inputs.first();
            root.is_some_and(|&root| self.node(root).form == self.node(looped).form)
        };
        let (bodies, tests): (Vec<NodeId>, Vec<NodeId>) =
            called.clone().into_iter().partition(gives);
        let (&[body], &[test]) = (&bodies[..], &tests[..]) else { return None };
        let carried = self.carried(looped, body, test)?;
        Some(LoopUse { looped, root, carried, outputs })
    }

    /// The same value with a loop without the elements that nothing needs.
    fn without_unread(&mut self, used: &LoopUse) -> Option<NodeId> {
        let LoopUse { carried, outputs, .. } = used;
        let kept = self.read_elements(carried, &outputs.keys().copied().collect());
        if kept.len() == carried.begins.len() {
            return None;
        }
        let mut short = carried.clone();
        for place in (0..short.begins.len()).filter(|place| !kept.contains(place)) {
            short.begins[place] = None;
        }
        self.with_loop(used, &short, LoopReader { root: used.root, held: None })
    }

    /// The elements that are needed after a loop, by its condition, or by others of them.
    fn read_elements(&self, carried: &Carried, outputs: &BTreeSet<usize>) -> BTreeSet<usize> {
        let mut kept = outputs.clone();
        kept.extend(self.elements_in(carried, carried.condition));
        let mut open: Vec<usize> = kept.iter().copied().collect();
        while let Some(place) = open.pop() {
            for other in self.elements_in(carried, carried.ends[place]) {
                if kept.insert(other) {
                    open.push(other);
                }
            }
        }
        kept
    }

    /// The elements that a value of an iteration depends on.
    fn elements_in(&self, carried: &Carried, value: NodeId) -> Vec<usize> {
        let seen = self.needed(value, &HashMap::new());
        let begins = carried.begins.iter().enumerate();
        let is_in = |begins: &Option<NodeId>| begins.is_some_and(|begins| seen.contains(&begins));
        begins.filter(|(_, begins)| is_in(begins)).map(|(place, _)| place).collect()
    }

    /// The same value with another loop in the place of one, whose elements keep their places among
    /// those that are left.
    fn with_loop(
        &mut self,
        used: &LoopUse,
        carried: &Carried,
        reader: LoopReader,
    ) -> Option<NodeId> {
        let short = self.short(used.looped, carried)?;
        let mut places = HashMap::new();
        for (index, place) in (0..).zip(carried.kept()) {
            let element = self.element(short, index);
            match reader.held.filter(|&(_, at)| at == place) {
                Some((held, _)) => places.insert(held, element),
                None => used.outputs.get(&place).and_then(|&old| places.insert(old, element)),
            };
        }
        self.with(reader.root, &places, used.looped)
    }

    /// The same value with a loop that carries a function of some elements instead of them.
    fn changed(&mut self, used: &LoopUse) -> Option<NodeId> {
        let replacements = self.replacements(used);
        replacements
            .into_iter()
            .take(MOST_TRIED)
            .find_map(|replacement| self.tried(used, &replacement))
    }

    /// Values after a loop that follow from two or more of its elements alone.
    fn replacements(&self, used: &LoopUse) -> Vec<Replacement> {
        // Which elements a value depends on; it has none if it depends on something else, too.
        let mut of: HashMap<NodeId, BTreeSet<usize>> = HashMap::new();
        for (&place, &output) in &used.outputs {
            of.insert(output, BTreeSet::from([place]));
        }
        let mut found = Vec::new();
        let outputs: HashMap<NodeId, NodeId> = used.outputs.values().map(|&id| (id, id)).collect();
        for id in self.needed(used.root, &outputs) {
            let node = self.node(id);
            let inputs = node.inputs.iter().map(|input| of.get(input));
            let Some(inputs) = inputs.collect::<Option<Vec<_>>>() else { continue };
            if !is_function(&node.what) {
                continue;
            }
            let all: BTreeSet<usize> = inputs.into_iter().flatten().copied().collect();
            let has_form = |place: &usize| self.node(used.outputs[place]).form == node.form;
            if all.len() > 1 && all.iter().any(has_form) {
                found.push(Replacement { value: id, of: all.clone() });
            }
            of.insert(id, all);
        }
        found
    }

    /// Whether a value after a loop takes a collective of its results.
    fn communicates(&self, used: &LoopUse, value: NodeId) -> bool {
        let results = used.outputs.values().map(|&id| (id, id)).collect();
        let is_collective = |&id: &NodeId| matches!(self.node(id).what, NodeOp::Collective { .. });
        self.needed(value, &results).iter().any(is_collective)
    }

    /// Whether all ranks run a loop equally often, because its condition follows from constants.
    fn counts_alike(&self, carried: &Carried) -> bool {
        let counters = self.read_elements(carried, &BTreeSet::new());
        let begins: HashMap<NodeId, NodeId> =
            carried.begins.iter().flatten().map(|&id| (id, id)).collect();
        let is_alike =
            |id: NodeId| self.needed(id, &begins).into_iter().all(|id| self.is_alike(id));
        is_alike(carried.condition)
            && counters
                .iter()
                .all(|&place| is_alike(carried.starts[place]) && is_alike(carried.ends[place]))
    }

    /// Whether an operation gives the same on all ranks if its inputs are the same on all.
    fn is_alike(&self, id: NodeId) -> bool {
        use Opcode as O;
        let what = &self.node(id).what;
        match what {
            NodeOp::Literal(_) | NodeOp::Tuple | NodeOp::Element(_) => true,
            NodeOp::Op { opcode: O::PartitionId | O::ReplicaId, .. } => false,
            // A fusion's parameters are its inputs.
            NodeOp::Op { called, .. } => {
                let inside = called.iter().flat_map(|&of| self.needed(of, &HashMap::new()));
                let is_inside = |id: NodeId| match self.node(id).what {
                    NodeOp::Parameter(_) | NodeOp::Function => true,
                    _ => self.is_alike(id),
                };
                is_function(what) && inside.into_iter().all(is_inside)
            }
            _ => false,
        }
    }

    fn tried(&mut self, used: &LoopUse, replacement: &Replacement) -> Option<NodeId> {
        let LoopUse { carried, outputs, .. } = used;
        let &Replacement { value, ref of } = replacement;
        if self.communicates(used, value) && !self.counts_alike(carried) {
            return None;
        }
        let mut put = |with: &dyn Fn(usize) -> Option<NodeId>| {
            let pairs = of.iter().map(|&place| Some((outputs[&place], with(place)?)));
            let places = pairs.collect::<Option<HashMap<_, _>>>()?;
            self.with(value, &places, used.looped)
        };
        let begins = put(&|place| carried.begins[place])?;
        let ends = put(&|place| Some(carried.ends[place]))?;
        let starts = put(&|place| Some(carried.starts[place]))?;
        let form = self.node(value).form.clone();
        let held = self.plain(NodeOp::Held, form.clone(), Vec::new());
        let root = self.replaced(used.root, &HashMap::from([(value, held)]));
        let place = HashMap::from([(begins, held)]);
        let mut other = carried.clone();
        other.condition = self.replaced(carried.condition, &place);
        other.ends = carried.ends.iter().map(|&end| self.replaced(end, &place)).collect();
        let end = self.replaced(ends, &place);
        let after = self.needed(root, &HashMap::new());
        let mut wanted: BTreeSet<usize> = outputs
            .iter()
            .filter(|(_, output)| after.contains(output))
            .map(|(&place, _)| place)
            .collect();
        wanted.extend(self.elements_in(carried, end));
        let kept = self.read_elements(&other, &wanted);
        let gone: Vec<usize> = of.iter().copied().filter(|place| !kept.contains(place)).collect();
        let &[at, _, ..] = &gone[..] else { return None };
        let has_form =
            matches!(&self.node(used.looped).form, Form::Tuple(parts) if parts[at] == form);
        if !has_form {
            return None;
        }
        for place in (0..other.begins.len()).filter(|place| !kept.contains(place)) {
            other.begins[place] = None;
        }
        other.begins[at] = Some(held);
        (other.ends[at], other.starts[at]) = (end, starts);
        self.with_loop(used, &other, LoopReader { root, held: Some((held, at)) })
    }
}

/// Whether an operation gives the same whenever its inputs are the same.
fn is_function(what: &NodeOp) -> bool {
    use Opcode as O;
    match what {
        NodeOp::Literal(_)
        | NodeOp::Tuple
        | NodeOp::Element(_)
        | NodeOp::Shard { .. }
        | NodeOp::Blocks(_) => true,
        NodeOp::Collective { .. } => true,
        NodeOp::Op { opcode, .. } => match opcode {
            O::Fusion
            | O::Broadcast
            | O::Reshape
            | O::Bitcast
            | O::Transpose
            | O::Slice
            | O::DynamicSlice
            | O::DynamicUpdateSlice
            | O::Concatenate
            | O::Pad
            | O::Iota
            | O::Dot
            | O::Reduce
            | O::PartitionId
            | O::ReplicaId => true,
            opcode => opcode.is_elementwise(),
        },
        NodeOp::Parameter(_) | NodeOp::Started | NodeOp::Function | NodeOp::Held => false,
    }
}
