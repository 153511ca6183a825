//! Values computed from constants alone: their content is intended by the module's author.

use std::collections::BTreeSet;

use halflap_hlo::ids::InstrId;
use halflap_hlo::{Module, Opcode};

/// All instructions that depend on constants alone.
pub(super) fn of_constants(module: &Module) -> BTreeSet<InstrId> {
    let mut known = BTreeSet::new();
    for instr in module.computations().flat_map(|computation| module.instructions(computation)) {
        let is_of_known =
            || module.operands(instr).iter().all(|operand| known.contains(&operand.of));
        if depends_on_operands_alone(module.instruction(instr).opcode) && is_of_known() {
            known.insert(instr);
        }
    }
    known
}

fn depends_on_operands_alone(opcode: Opcode) -> bool {
    use Opcode::*;
    let moves = matches!(
        opcode,
        Bitcast | Broadcast | Concatenate | Copy | Pad | Reshape | Reverse | Slice | Transpose
    );
    let passes_on = matches!(opcode, CopyStart | CopyDone | GetTupleElement | Tuple);
    moves || passes_on || opcode.is_elementwise() || matches!(opcode, Constant | Fusion | Iota)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_takes_anything_else_is_not_of_constants() {
        let text = "HloModule m\n\nENTRY e {\n  p = f32[4] parameter(0)\n  n = f32[] constant(nan)\n  \
                    b = f32[4] broadcast(n), dimensions={}\n  d = f32[4] negate(b)\n  \
                    c = f32[4] custom-call(b), custom_call_target=\"f\"\n  a = f32[4] add(p, d)\n  \
                    ROOT r = f32[4] add(a, c)\n}\n";
        let module = Module::read(text.to_owned()).unwrap();
        let names: BTreeSet<&str> =
            of_constants(&module).into_iter().map(|instr| module.instruction_name(instr)).collect();
        assert_eq!(names, BTreeSet::from(["n", "b", "d"]));
    }
}
