//! Masks of zeros and ones, whose logarithm a program adds to scores: `log(0)` is then meant.

use halflap_hlo::ids::InstrId;
use halflap_hlo::{Array, Literal, Opcode};

use super::flat::Flat;

/// Why an array is a mask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MaskOrigin {
    /// It is made of booleans, or of a constant of zeros and ones.
    Program,
    /// It is an input of the module, if that has zeros and ones alone.
    Input,
}

/// What is known of an array's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MaskElements {
    Zeros,
    Ones,
    Mask,
    /// Those of an input.
    Input,
    Other,
}

impl MaskElements {
    /// Of arrays whose elements are beside each other, or of one of which the other picks some.
    fn with(self, other: MaskElements) -> MaskElements {
        match (self, other) {
            (MaskElements::Other, _) | (_, MaskElements::Other) => MaskElements::Other,
            (MaskElements::Input, _) | (_, MaskElements::Input) => MaskElements::Input,
            (own, other) if own == other => own,
            _ => MaskElements::Mask,
        }
    }

    fn of_literal(literal: Literal) -> MaskElements {
        let numbers: Vec<f64> = match literal {
            Literal::Whole(numbers) => numbers.into_iter().map(|number| number as f64).collect(),
            Literal::Float(numbers) => numbers,
            Literal::Complex(_) | Literal::LeftOut => return MaskElements::Other,
        };
        let each = numbers.into_iter().map(|number| match number {
            0.0 => MaskElements::Zeros,
            1.0 => MaskElements::Ones,
            _ => MaskElements::Other,
        });
        each.reduce(MaskElements::with).unwrap_or(MaskElements::Other)
    }
}

/// Deeper chains of instructions are not followed.
const DEEPEST: usize = 24;

impl Flat<'_> {
    /// Whether an instruction is the logarithm of a mask, and of which.
    pub(super) fn masked_log(&self, instr: InstrId) -> Option<MaskOrigin> {
        if self.opcode(instr) != Opcode::Log {
            return None;
        }
        match self.elements(self.module.operands(instr).first()?.of, DEEPEST) {
            MaskElements::Mask => Some(MaskOrigin::Program),
            MaskElements::Input => Some(MaskOrigin::Input),
            _ => None,
        }
    }

    fn elements(&self, instr: InstrId, depth: usize) -> MaskElements {
        use Opcode::*;
        let instr = self.maker(instr);
        if let Some(literal) = self.module.literal(instr) {
            return MaskElements::of_literal(literal);
        }
        let is_boolean = |array: &Array| array.element.name() == "pred";
        if self.module.instruction(instr).shape.array().is_some_and(is_boolean) {
            return MaskElements::Mask;
        }
        let operands = self.module.operands(instr);
        let Some(deeper) = depth.checked_sub(1) else { return MaskElements::Other };
        let of = |place: usize| {
            operands.get(place).map_or(MaskElements::Other, |each| self.elements(each.of, deeper))
        };
        let of_all = || {
            let all = (0..operands.len()).map(of);
            all.reduce(MaskElements::with).unwrap_or(MaskElements::Other)
        };
        match self.opcode(instr) {
            Parameter if self.module.computation_of(instr) == self.module.entry() => {
                MaskElements::Input
            }
            Bitcast | Broadcast | Convert | DynamicSlice | Gather | Reshape | Reverse | Slice
            | Transpose | AllGather | CollectivePermute => of(0),
            Concatenate | Pad | Multiply | Minimum | Maximum | And | Or => of_all(),
            DynamicUpdateSlice => of(0).with(of(1)),
            Select => of(1).with(of(2)),
            Subtract if of(0) == MaskElements::Ones => match of(1) {
                MaskElements::Zeros => MaskElements::Ones,
                MaskElements::Ones => MaskElements::Zeros,
                other => other,
            },
            _ => MaskElements::Other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use halflap_hlo::Module;

    fn logs(body: &str) -> Option<MaskOrigin> {
        let text = format!(
            "HloModule m\n\nENTRY e {{\n  p = f32[4] parameter(0)\n  q = f32[4] parameter(1)\n  \
             i = f32[] constant(1)\n  o = f32[] constant(0)\n  \
             ones = f32[4] broadcast(i), dimensions={{}}\n  \
             zeros = f32[4] broadcast(o), dimensions={{}}\n  \
             c = pred[4] compare(p, q), direction=GT\n{body}  ROOT l = f32[4] log(m)\n}}\n"
        );
        let module = Module::read(text).unwrap();
        Flat::new(&module).masked_log(module.root(module.entry()))
    }

    #[test]
    fn masks_are_made_of_booleans_constants_and_inputs() {
        let made = |line: &str| logs(&format!("  m = f32[4] {line}\n"));
        let program = Some(MaskOrigin::Program);
        assert_eq!(made("convert(c)"), program);
        assert_eq!(made("select(c, ones, zeros)"), program);
        assert_eq!(made("constant({0, 1, 1, 0})"), program);
        assert_eq!(made("reshape(p)"), Some(MaskOrigin::Input));
        assert_eq!(made("subtract(ones, p)"), Some(MaskOrigin::Input));
        // Numbers that may happen to be zero.
        for line in ["add(p, q)", "exponential(p)", "subtract(p, q)", "copy(zeros)"] {
            assert_eq!(made(line), None, "{line}");
        }
        assert_eq!(logs("  f = f32[4] convert(c)\n  m = f32[4] subtract(f, f)\n"), None);
    }
}
