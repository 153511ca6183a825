//! A synchronous collective as a start and an end.
//!
//! The end has the collective's name, so that its readers stay the same; the start gets a new name.
//! XLA accepts `reduce-scatter-start` and similar forms as well as the three that are real opcodes.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use super::steps::{NodePart, NodePlace};
use super::{Module, Opcode};
use crate::ids::InstrId;

/// The name of a node: that of the instruction, or for its start, `all-gather-start.3`.
pub(super) fn name(module: &Module, place: NodePlace) -> String {
    let name = module.instruction_name(place.instr);
    if place.part != NodePart::Start {
        return name.to_owned();
    }
    let mut unique = match name.rsplit_once('.') {
        Some((stem, number)) if number.bytes().all(|byte| byte.is_ascii_digit()) => {
            format!("{stem}-start.{number}")
        }
        _ => format!("{name}-start"),
    };
    // Names are unique in the whole module, so that profiles can identify instructions. The
    // instruction's name is unique, and so are the names of starts, which add the same suffix.
    while module.has_instruction(&unique) {
        unique.push_str(".split");
    }
    unique
}

/// Channels of synchronous collectives that share theirs with one before them in their computation,
/// as those that JAX writes in a `shard_map` do. Two of them must not be in flight on one channel.
pub(super) fn own_channels(module: &Module) -> BTreeMap<InstrId, u64> {
    let channel = |instr| module.attribute(instr, "channel_id")?.trim().parse::<u64>().ok();
    let all = module.computations().flat_map(|id| module.instructions(id));
    let last = all.filter_map(channel).max().unwrap_or(0);
    let mut own = BTreeMap::new();
    for computation in module.computations() {
        let mut taken = BTreeSet::new();
        for instr in module.instructions(computation) {
            if !module.instruction(instr).opcode.is_sync_collective() {
                continue;
            }
            if channel(instr).is_some_and(|channel| !taken.insert(channel)) {
                own.insert(instr, last.saturating_add(1 + own.len() as u64));
            }
        }
    }
    own
}

/// The start of a collective that is split.
pub(super) struct SplitStart {
    pub(super) name: String,
    /// Another channel than the collective has.
    pub(super) channel: Option<u64>,
}

/// The text of a start or an end, on a channel of its own if it has one.
pub(super) fn write_part(module: &Module, place: NodePlace, start: &SplitStart, out: &mut String) {
    let SplitStart { name: start, channel } = start;
    let instr = place.instr;
    let instruction = module.instruction(instr);
    let percent =
        if module.text[..instruction.name.start as usize].ends_with('%') { "%" } else { "" };
    let name = module.instruction_name(instr);
    let opcode = module.opcode_name(instr);
    let shape = shape_text(module, instr);
    // Formatting into a string does not fail.
    let _ = match place.part {
        NodePart::Start => {
            let held = held_shape(module, instr, &shape);
            let payload = module.payload(instr);
            write!(out, "{percent}{start} = {held} {opcode}-start({payload})")
        }
        NodePart::Done | NodePart::Whole => {
            let is_root = module.root(module.computation_of(instr)) == instr;
            let root = if is_root { "ROOT " } else { "" };
            write!(out, "{root}{percent}{name} = {shape} {opcode}-done({percent}{start})")
        }
    };
    let own = |key: &str| match place.part {
        NodePart::Start => key != "control-successors",
        // Attributes for display are on both; the others belong to the start.
        _ => matches!(key, "metadata" | "frontend_attributes"),
    };
    for (key, value) in module.attributes(instr).filter(|(key, _)| own(key)) {
        let _ = match channel.filter(|_| key == "channel_id") {
            Some(channel) => write!(out, ", {key}={channel}"),
            None => write!(out, ", {key}={value}"),
        };
    }
}

/// Whether an instruction is written as the root.
pub(super) fn is_marked(module: &Module, instr: InstrId) -> bool {
    let instruction = module.instruction(instr);
    let before = &module.text[instruction.text.start as usize..instruction.name.start as usize];
    before.trim_end_matches('%').trim_end().ends_with("ROOT")
}

/// The instruction's shape as it is written.
pub(super) fn shape_text(module: &Module, instr: InstrId) -> String {
    let instruction = module.instruction(instr);
    let between =
        &module.text[instruction.name.end as usize..instruction.opcode_name.start as usize];
    match between.trim_start().trim_start_matches('=').trim() {
        // The text omits it.
        "" => print_shape(module, &instruction.shape),
        written => written.to_owned(),
    }
}

/// A start's result: the operands, and the eventual results.
fn held_shape(module: &Module, instr: InstrId, shape: &str) -> String {
    let operands: Vec<String> =
        module.operands(instr).iter().map(|operand| operand_text(module, operand)).collect();
    match (module.instruction(instr).opcode, operands.as_slice()) {
        (Opcode::AllReduce, _) => shape.to_owned(),
        (Opcode::AllGather | Opcode::CollectivePermute, [operand]) => {
            format!("({operand}, {shape})")
        }
        (_, operands) => format!("(({}), {shape})", operands.join(", ")),
    }
}

/// The shape of an operand, as its maker's is written.
fn operand_text(module: &Module, operand: &super::Operand) -> String {
    let path = module.path(operand);
    let whole = shape_text(module, operand.of);
    if path.is_empty() {
        return whole;
    }
    print_shape(module, module.operand_shape(operand))
}

fn print_shape(module: &Module, shape: &super::Shape) -> String {
    match shape {
        super::Shape::Token => "token[]".to_owned(),
        super::Shape::Opaque => "opaque[]".to_owned(),
        super::Shape::Tuple(parts) => {
            format!(
                "({})",
                parts.iter().map(|part| print_shape(module, part)).collect::<Vec<_>>().join(", ")
            )
        }
        super::Shape::Array(array) => {
            let dims: Vec<String> = array.dims.iter().map(u64::to_string).collect();
            format!("{}[{}]{}", array.element.name(), dims.join(","), module.str(array.layout))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shared_channel_is_kept_by_the_first() {
        let text = "HloModule m, num_partitions=2\nadd {\n a = f32[] parameter(0)\n b = f32[] \
            parameter(1)\n ROOT s = f32[] add(a, b)\n}\nENTRY e {\n p = f32[4] parameter(0)\n \
            x = f32[4] all-reduce(p), channel_id=1, replica_groups={{0,1}}, \
            use_global_device_ids=true, to_apply=add\n \
            y = f32[4] collective-permute(p), channel_id=1, source_target_pairs={{0,1},{1,0}}\n \
            z = f32[4] collective-permute(p), channel_id=3, source_target_pairs={{0,1},{1,0}}\n \
            w = f32[8] all-gather(p), channel_id=1, replica_groups={{0,1}}, dimensions={0}, \
            use_global_device_ids=true\n ROOT t = (f32[4], f32[4], f32[4], f32[8]) \
            tuple(x, y, z, w)\n}\n";
        let module = Module::read(text.to_owned()).unwrap();
        let own = own_channels(&module);
        let named: Vec<(&str, u64)> = own
            .iter()
            .map(|(&instr, &channel)| (module.instruction_name(instr), channel))
            .collect();
        assert_eq!(named, [("y", 4), ("w", 5)]);
    }
}
