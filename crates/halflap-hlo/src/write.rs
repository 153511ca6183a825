//! A module as text again: the same text, with some computations in other orders.

use std::collections::BTreeMap;

use super::nature::is_free;
use super::proof::{WriteError, prove};
use super::split::{self, SplitStart};
use super::steps::{NodePart, NodePlace};
use super::{Module, Phase};
use crate::ids::{ComputationId, InstrId};
use halflap::ids::{Id, IdVec};

/// Writes a module as [`write()`] does, reads the text back and compares it with the module and the
/// orders: text that fails the check is never returned.
pub fn write_proved(
    module: &Module,
    orders: &[(ComputationId, Vec<NodePlace>)],
) -> Result<String, WriteError> {
    let text = write(module, orders);
    prove(module, orders, &text)?;
    Ok(text)
}

/// Writes a module with some computations in the given orders, which must hold every node of their
/// graphs once. The module is then a scheduled one. Without orders, the text is as it was read.
pub fn write(module: &Module, orders: &[(ComputationId, Vec<NodePlace>)]) -> String {
    let mut order_of: IdVec<ComputationId, Option<&[NodePlace]>> =
        IdVec::filled(None, module.computations().len());
    for (computation, order) in orders {
        order_of[*computation] = Some(order);
    }
    let channels = split::own_channels(module);
    let mut out = String::with_capacity(module.text.len() + module.text.len() / 8);
    write_preamble(module, orders.is_empty(), &mut out);
    for id in module.computations() {
        let computation = &module.computations[id];
        out.push_str(module.str(computation.head));
        match order_of[id] {
            None => {
                for instr in module.instructions(id) {
                    let instruction = module.instruction(instr);
                    out.push_str(module.str(instruction.lead));
                    out.push_str(module.str(instruction.text));
                }
            }
            Some(order) => {
                let ordered = OrderedComputation { id, order, channels: &channels };
                write_ordered(module, &ordered, &mut out);
            }
        }
        out.push_str(module.str(computation.tail));
    }
    out.push_str(module.str(module.trailer));
    out
}

/// The module's head, which says that it is scheduled.
fn write_preamble(module: &Module, is_unchanged: bool, out: &mut String) {
    let text = module.str(module.preamble);
    if is_unchanged || module.is_scheduled() {
        out.push_str(text);
        return;
    }
    let attributes =
        &module.all_attributes[module.attributes.start as usize..module.attributes.end as usize];
    match attributes.iter().find(|attribute| module.str(attribute.key) == "is_scheduled") {
        Some(attribute) => {
            out.push_str(&text[..attribute.value.start as usize]);
            out.push_str("true");
            out.push_str(&text[attribute.value.end as usize..]);
        }
        None if module.name.is_empty() => {
            out.push_str(&format!("HloModule {}, is_scheduled=true\n\n", module.name()));
            out.push_str(text);
        }
        None => {
            let (before, after) = text.split_at(module.name.end as usize);
            out.push_str(before);
            out.push_str(", is_scheduled=true");
            out.push_str(after);
        }
    }
}

/// How a GPU's backend configuration says whether a start and its done run synchronously.
const TOGETHER: &str = "\"is_sync\":true";
const APART: &str = "\"is_sync\":false";

/// Which instructions are written, and which wait for others.
struct Writer<'a> {
    module: &'a Module,
    base: usize,
    /// How many operands of each instruction without a node are not written yet.
    missing: Vec<u32>,
    /// For each instruction, those without a node that take its value.
    takers: Vec<Vec<InstrId>>,
    out: &'a mut String,
}

/// A computation, and how it is written.
struct OrderedComputation<'a> {
    id: ComputationId,
    order: &'a [NodePlace],
    /// Channels that collectives get when they are split.
    channels: &'a BTreeMap<InstrId, u64>,
}

fn write_ordered(module: &Module, computation: &OrderedComputation<'_>, out: &mut String) {
    let &OrderedComputation { id, order, channels } = computation;
    let instructions: Vec<InstrId> = module.instructions(id).collect();
    let base = instructions.first().map_or(0, |first| first.index());
    let mut has_node = vec![false; instructions.len()];
    order.iter().for_each(|place| has_node[place.instr.index() - base] = true);
    let mut writer = Writer {
        module,
        base,
        missing: vec![0; instructions.len()],
        takers: vec![Vec::new(); instructions.len()],
        out,
    };
    let free = || instructions.iter().copied().filter(|instr| !has_node[instr.index() - base]);
    debug_assert!(free().all(|instr| is_free(module, instr)));
    for instr in free() {
        for operand in module.operands(instr) {
            writer.missing[instr.index() - base] += 1;
            writer.takers[operand.of.index() - base].push(instr);
        }
    }
    // Instructions without operands come first, in their old order.
    for instr in free().filter(|&instr| module.operands(instr).is_empty()) {
        writer.whole(instr);
    }
    for &place in order {
        match place.part {
            NodePart::Whole => writer.whole(place.instr),
            part => {
                let name = split::name(module, NodePlace { part: NodePart::Start, ..place });
                let channel = channels.get(&place.instr).copied();
                writer.part(place, &SplitStart { name, channel }, part);
            }
        }
    }
}

impl Writer<'_> {
    fn whole(&mut self, instr: InstrId) {
        let instruction = self.module.instruction(instr);
        self.lead(instr);
        let text = self.module.str(instruction.text);
        // A pair may be marked to run synchronously, which would undo the schedule.
        match instruction.opcode.phase() == Some(Phase::Start) && text.contains(TOGETHER) {
            true => self.out.push_str(&text.replace(TOGETHER, APART)),
            false => self.out.push_str(text),
        }
        self.written(instr);
    }

    /// The prefix of an instruction. One that was the root because it came last need not be last
    /// now.
    fn lead(&mut self, instr: InstrId) {
        let (module, instruction) = (self.module, self.module.instruction(instr));
        self.out.push_str(module.str(instruction.lead));
        let is_root = module.root(instruction.computation) == instr;
        if is_root && !split::is_marked(module, instr) {
            self.out.push_str("ROOT ");
        }
    }

    fn part(&mut self, place: NodePlace, start: &SplitStart, part: NodePart) {
        let lead = self.module.str(self.module.instruction(place.instr).lead);
        self.out.push_str(lead);
        split::write_part(self.module, place, start, self.out);
        if part == NodePart::Done {
            self.written(place.instr);
        }
    }

    /// Writes those without a node that waited for this one, and those that waited for them.
    fn written(&mut self, instr: InstrId) {
        let mut open = vec![instr];
        while let Some(instr) = open.pop() {
            let takers = std::mem::take(&mut self.takers[instr.index() - self.base]);
            for taker in takers {
                let missing = &mut self.missing[taker.index() - self.base];
                *missing -= 1;
                if *missing == 0 {
                    self.lead(taker);
                    self.out.push_str(self.module.str(self.module.instruction(taker).text));
                    open.push(taker);
                }
            }
        }
    }
}
