//! Proves that two modules compute the same.
//!
//! Both become values of one graph, in a normal form; equal values are the same node. So the proof
//! needs no names, no orders and no claim about what was changed, and it shares no code with what
//! changes modules.

mod channels;
mod contrast;
mod levels;
mod loops;
mod nodes;
mod numbers;
mod parts;
mod read;
mod slices;
mod state;
mod zeros;

use std::collections::{BTreeSet, HashMap};

use thiserror::Error;

use crate::ids::InstrId;
use crate::{Module, nature};
use contrast::contrast;
use halflap::ids::Id;
use nodes::{NodeId, NodeOp, Nodes};
use read::ReadModule;

/// How equal the results of two modules are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sameness {
    /// To the last bit.
    Exact,
    /// Up to the order of summation.
    SumOrder,
}

/// What is not proved to be the same.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum Different {
    #[error("the modules' attribute '{key}' differs: {before} and {after}")]
    Attribute { key: String, before: String, after: String },
    #[error("one is for {before} devices, the other for {after}")]
    Devices { before: u64, after: u64 },
    #[error(
        "'{before}' (line {line}) is not computed; '{after}' is in its place (line {after_line}): \
         expected {expected}, found {found}"
    )]
    Value {
        before: String,
        line: usize,
        after: String,
        after_line: usize,
        /// What differs, before and after.
        expected: String,
        found: String,
    },
    #[error("the results differ, but no single instruction can be named")]
    Results,
    #[error(
        "'{second}' (line {line}) starts on channel {channel} while '{first}' is in flight on it: \
         each needs a channel of its own"
    )]
    Channel { first: String, second: String, line: usize, channel: String },
    #[error("the control dependency of '{after}' on '{before}' is missing")]
    Control { before: String, after: String },
}

/// Proves that two modules compute the same from the same inputs.
pub fn same(before: &Module, after: &Module) -> Result<Sameness, Different> {
    same_header(before, after)?;
    own_channels(before, after)?;
    let is_same = |any_sum_order: bool| {
        let plain = compared(before, after, Terms { any_sum_order, settled: false });
        let settled = || compared(before, after, Terms { any_sum_order, settled: true });
        // What differs is said in the terms of the texts.
        plain.or_else(|different| settled().map_err(|_| different))
    };
    match is_same(false) {
        Ok(()) => Ok(Sameness::Exact),
        Err(_) => is_same(true).map(|()| Sameness::SumOrder),
    }
}

/// In which terms two modules are compared.
#[derive(Clone, Copy)]
struct Terms {
    /// Whether the order of summation may change.
    any_sum_order: bool,
    /// Whether loops carry as little as they can.
    settled: bool,
}

/// The modules' own attributes, except their names and whether they are scheduled.
fn same_header(before: &Module, after: &Module) -> Result<(), Different> {
    let (devices, others) = (before.devices(), after.devices());
    if devices != others {
        return Err(Different::Devices { before: devices.count(), after: others.count() });
    }
    let attributes = |module: &Module| -> BTreeSet<(String, String)> {
        let range = module.attributes.start as usize..module.attributes.end as usize;
        let all = module.all_attributes[range].iter();
        all.map(|pair| (module.str(pair.key).to_owned(), module.str(pair.value).to_owned()))
            .filter(|(key, _)| key != "is_scheduled")
            .collect()
    };
    let (old, new) = (attributes(before), attributes(after));
    match old.symmetric_difference(&new).next() {
        None => Ok(()),
        Some((key, _)) => {
            let value = |module: &Module| module.module_attribute(key).unwrap_or("none").to_owned();
            Err(Different::Attribute {
                key: key.clone(),
                before: value(before),
                after: value(after),
            })
        }
    }
}

/// Collectives do not share a channel while they are in flight, unless they did before.
fn own_channels(before: &Module, after: &Module) -> Result<(), Different> {
    let Some([first, second]) = channels::in_flight_together(after) else { return Ok(()) };
    if channels::in_flight_together(before).is_some() {
        return Ok(());
    }
    let name = |instr| after.instruction_name(instr).to_owned();
    let channel = after.attribute(nature::started(after, second).0, "channel_id").unwrap_or("");
    Err(Different::Channel {
        first: name(first),
        second: name(second),
        line: after.line_of(second),
        channel: channel.to_owned(),
    })
}

fn compared(before: &Module, after: &Module, terms: Terms) -> Result<(), Different> {
    let mut nodes = Nodes::new(before.devices(), terms.any_sum_order);
    let old = ReadModule::new(before, &mut nodes, terms.settled);
    let new = ReadModule::new(after, &mut nodes, terms.settled);
    let both = (old.function(before.entry()), new.function(after.entry()));
    if both.0 != both.1 {
        let (Some(a), Some(b)) = both else { return Err(Different::Results) };
        return Err(difference(&nodes, &old, &new, [a, b]));
    }
    same_controls(&nodes, &old, &new)
}

/// The first values that differ although their inputs are equal.
fn difference(
    nodes: &Nodes,
    old: &ReadModule<'_>,
    new: &ReadModule<'_>,
    entries: [NodeId; 2],
) -> Different {
    // Looked up only.
    let named = |read: &ReadModule<'_>| -> HashMap<NodeId, InstrId> {
        let all = (0..read.module.len()).map(InstrId::from_index).rev();
        all.filter_map(|instr| Some((read.values[instr]?, instr))).collect()
    };
    let (names, new_names) = (named(old), named(new));
    let [mut a, mut b] = entries;
    let mut last = None;
    loop {
        if let (Some(&before), Some(&after)) = (names.get(&a), new_names.get(&b)) {
            last = Some((before, after));
        }
        let (left, right) = (nodes.node(a), nodes.node(b));
        let called = |what: &NodeOp| match what {
            NodeOp::Op { called, .. } => called.clone(),
            NodeOp::Collective { reducer, .. } => reducer.iter().copied().collect(),
            _ => Vec::new(),
        };
        let inputs = left.inputs.iter().zip(&right.inputs);
        let (calls, others) = (called(&left.what), called(&right.what));
        let mut pairs = inputs.chain(calls.iter().zip(&others));
        match pairs.find(|(a, b)| a != b) {
            Some((&left, &right)) => (a, b) = (left, right),
            None => break,
        }
    }
    let Some((before, after)) = last else { return Different::Results };
    let [expected, found] = contrast(nodes.node(a), nodes.node(b));
    Different::Value {
        expected,
        found,
        before: old.module.instruction_name(before).to_owned(),
        line: old.module.line_of(before),
        after: new.module.instruction_name(after).to_owned(),
        after_line: new.module.line_of(after),
    }
}

/// Every control dependency must still be there.
fn same_controls(
    nodes: &Nodes,
    old: &ReadModule<'_>,
    new: &ReadModule<'_>,
) -> Result<(), Different> {
    let value = |read: &ReadModule<'_>, instr: InstrId| {
        let id = read.values[instr]?;
        let node = nodes.node(id);
        // A start stands for its result.
        Some(match node.what {
            NodeOp::Started => *node.inputs.first()?,
            _ => id,
        })
    };
    let kept: BTreeSet<(Option<NodeId>, Option<NodeId>)> = new
        .module
        .controls
        .iter()
        .map(|&(later, earlier)| (value(new, later), value(new, earlier)))
        .collect();
    for &(later, earlier) in &old.module.controls {
        if !kept.contains(&(value(old, later), value(old, earlier))) {
            let name = |instr: InstrId| old.module.instruction_name(instr).to_owned();
            return Err(Different::Control { before: name(earlier), after: name(later) });
        }
    }
    Ok(())
}
