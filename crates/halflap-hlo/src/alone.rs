//! One instruction as its own module, with its operands as parameters.

use super::{Devices, Module, Operand, Phase, Shape};
use crate::ids::InstrId;

/// The text of a module that consists of one instruction, for these devices. Its parameters are the
/// instruction's operands, each once, in order. Anything that it starts, it also ends.
pub fn alone(module: &Module, instr: InstrId, devices: Devices) -> String {
    let Devices { replicas, partitions } = devices;
    let mut text =
        format!("HloModule only, replica_count={replicas}, num_partitions={partitions}\n");
    // After the first line come tables that metadata refers to.
    text.push_str(&module.str(module.preamble)[module.header.end as usize..]);
    for id in module.computations().filter(|&id| id != module.entry()) {
        let computation = &module.computations[id];
        text.push_str(module.str(computation.head));
        for instr in module.instructions(id) {
            let instruction = module.instruction(instr);
            text.push_str(module.str(instruction.lead));
            text.push_str(module.str(instruction.text));
        }
        text.push_str(module.str(computation.tail));
    }
    text.push_str("\n\nENTRY only_one {\n");
    let operands = unique(module, instr);
    for (number, operand) in operands.iter().enumerate() {
        let shape = shape_text(module, module.operand_shape(operand));
        text.push_str(&format!("  only_{number} = {shape} parameter({number})\n"));
    }
    match done(module, instr) {
        None => text.push_str(&format!("  ROOT {}\n}}\n", renamed(module, instr, &operands))),
        Some(done) => {
            text.push_str(&format!("  {}\n", renamed(module, instr, &operands)));
            text.push_str(&format!(
                "  ROOT {}\n}}\n",
                without_controls(module.str(module.instruction(done).text))
            ));
        }
    }
    text
}

/// The operands, each once.
fn unique(module: &Module, instr: InstrId) -> Vec<Operand> {
    let mut unique: Vec<Operand> = Vec::new();
    for operand in module.operands(instr) {
        if !unique.iter().any(|other| is_same(module, other, operand)) {
            unique.push(*operand);
        }
    }
    unique
}

fn is_same(module: &Module, a: &Operand, b: &Operand) -> bool {
    a.of == b.of && module.path(a) == module.path(b)
}

/// The instruction that ends what this one starts.
fn done(module: &Module, instr: InstrId) -> Option<InstrId> {
    if module.instruction(instr).opcode.phase() != Some(Phase::Start) {
        return None;
    }
    module.instructions(module.computation_of(instr)).find(|&other| {
        module.instruction(other).opcode.phase() == Some(Phase::Done)
            && module.operands(other).iter().any(|operand| operand.of == instr)
    })
}

/// An instruction's text with parameters in place of its operands.
fn renamed(module: &Module, instr: InstrId, operands: &[Operand]) -> String {
    let instruction = module.instruction(instr);
    let number =
        |operand: &Operand| operands.iter().position(|other| is_same(module, other, operand));
    let names =
        module.operands(instr).iter().filter_map(number).map(|number| format!("only_{number}"));
    let names: Vec<String> = names.collect();
    let before = &module.text[instruction.text.start as usize..instruction.payload.start as usize];
    let after = &module.text[instruction.payload.end as usize..instruction.text.end as usize];
    // Without operands, the text between the parentheses has another meaning, as for iota.
    let payload =
        if names.is_empty() { module.payload(instr).to_owned() } else { names.join(", ") };
    without_controls(&format!("{before}{payload}{after}"))
}

/// Predecessors are absent; and the root is marked elsewhere.
fn without_controls(text: &str) -> String {
    const KEY: &str = ", control-predecessors={";
    let text = text.trim_start().trim_start_matches("ROOT ");
    match text.split_once(KEY) {
        None => text.to_owned(),
        Some((before, rest)) => {
            format!("{before}{}", rest.split_once('}').map_or("", |(_, after)| after))
        }
    }
}

fn shape_text(module: &Module, shape: &Shape) -> String {
    match shape {
        Shape::Array(array) => {
            let dims: Vec<String> = array.dims.iter().map(u64::to_string).collect();
            format!("{}[{}]{}", array.element.name(), dims.join(","), module.str(array.layout))
        }
        Shape::Tuple(parts) => {
            let parts: Vec<String> = parts.iter().map(|part| shape_text(module, part)).collect();
            format!("({})", parts.join(", "))
        }
        Shape::Token => "token[]".to_owned(),
        Shape::Opaque => "opaque[]".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instruction_takes_parameters_in_place_of_its_operands() {
        let text = "HloModule m, num_partitions=2, input_output_alias={}\n\nadd {\n  a = f32[] parameter(0)\n  b = f32[] parameter(1)\n  ROOT s = f32[] add(a, b)\n}\n\nENTRY main {\n  p = f32[8]{0} parameter(0)\n  q = f32[8]{0} exponential(p)\n  m = f32[8]{0} multiply(q, p), control-predecessors={p}\n  ROOT r = f32[8]{0} all-reduce(m), replica_groups={{0,1}}, to_apply=add\n}\n";
        let module = Module::read(text.to_owned()).unwrap();
        let find = |name: &str| {
            module
                .instructions(module.entry())
                .find(|&instr| module.instruction_name(instr) == name)
                .unwrap()
        };
        let only = alone(&module, find("m"), Devices { replicas: 1, partitions: 1 });
        assert!(only.ends_with("ENTRY only_one {\n  only_0 = f32[8]{0} parameter(0)\n  only_1 = f32[8]{0} parameter(1)\n  ROOT m = f32[8]{0} multiply(only_0, only_1)\n}\n"), "{only}");
        let again = Module::read(alone(&module, find("r"), module.devices())).unwrap();
        assert_eq!(
            (again.devices(), again.opcode_name(again.root(again.entry()))),
            (Devices { replicas: 1, partitions: 2 }, "all-reduce")
        );
    }
}
