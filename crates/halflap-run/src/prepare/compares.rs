//! Comparisons of floating-point numbers, in which a NaN gets lost: it is neither less nor greater
//! than anything.

use halflap_hlo::ids::InstrId;
use halflap_hlo::{Array, Module, Opcode};

/// Whether an instruction compares floating-point numbers, in what it applies, too. A number that
/// is compared with itself is asked whether it is NaN.
pub(super) fn compares(module: &Module, instr: InstrId) -> bool {
    match module.instruction(instr).opcode {
        Opcode::Compare => {
            let [left, right] = module.operands(instr) else { return false };
            let is_float = |array: &Array| !array.element.name().starts_with(['p', 's', 'u']);
            module.operand_shape(left).array().is_some_and(is_float) && left.of != right.of
        }
        Opcode::Reduce | Opcode::ReduceWindow | Opcode::Sort => {
            let inner = module.called(instr).iter().flat_map(|&with| module.instructions(with));
            inner.into_iter().any(|inner| compares(module, inner))
        }
        _ => false,
    }
}

/// Whether an instruction asks which numbers are NaN.
pub(super) fn asks(module: &Module, instr: InstrId) -> bool {
    match (module.instruction(instr).opcode, module.operands(instr)) {
        (Opcode::IsFinite, _) => true,
        // Integers have no NaN to ask for.
        (Opcode::Compare, [left, right]) => left.of == right.of,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_not_compared_with_itself() {
        let compared = |with: &str, kind: &str| {
            let text = format!(
                "HloModule m\n\nENTRY e {{\n  p = {kind}[4] parameter(0)\n  \
                 q = {kind}[4] parameter(1)\n  \
                 ROOT c = pred[4] compare(p, {with}), direction=NE\n}}\n"
            );
            let module = Module::read(text).unwrap();
            compares(&module, module.root(module.entry()))
        };
        assert!(compared("q", "f32") && compared("q", "bf16"));
        assert!(!compared("p", "f32") && !compared("q", "s32"));
    }
}
