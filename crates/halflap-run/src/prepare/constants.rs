//! What a module's author intended: values computed from constants alone, and infinite constants
//! that a fusion passes on, such as what it masks scores with.

use std::collections::BTreeSet;

use halflap_hlo::ids::InstrId;
use halflap_hlo::{Literal, Module, Opcode};

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

/// Whether an instruction only puts elements of its operands beside each other. The NaN of a
/// constant among them are intended: they mark elements that have no value yet. What a `select`
/// picks depends on data, so that its NaN may be a surprise.
pub(super) fn only_moves(module: &Module, instr: InstrId) -> bool {
    match module.instruction(instr).opcode {
        Opcode::Concatenate | Opcode::DynamicUpdateSlice | Opcode::Pad => true,
        Opcode::Scatter => module
            .called(instr)
            .iter()
            .all(|&with| module.instruction(module.root(with)).opcode == Opcode::Parameter),
        _ => false,
    }
}

/// Infinities, by their signs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct MeantInfinities {
    positive: bool,
    negative: bool,
}

impl MeantInfinities {
    /// Those that a fusion's results can have from its own constants.
    pub(super) fn of(module: &Module, instr: InstrId) -> MeantInfinities {
        let mut found = MeantInfinities::default();
        let is_fusion = module.instruction(instr).opcode == Opcode::Fusion;
        let called = if is_fusion { module.called(instr) } else { &[] };
        let mut open: Vec<(InstrId, bool)> =
            called.iter().map(|&computation| (module.root(computation), false)).collect();
        let mut seen: BTreeSet<(InstrId, bool)> = open.iter().copied().collect();
        while let Some((instr, is_negated)) = open.pop() {
            found.add(module, instr, is_negated);
            let operands = module.operands(instr);
            for (place, negates) in passed_on(module.instruction(instr).opcode, operands.len()) {
                let next = (operands[place].of, is_negated != negates);
                if seen.insert(next) {
                    open.push(next);
                }
            }
        }
        found
    }

    fn add(&mut self, module: &Module, instr: InstrId, is_negated: bool) {
        let is_constant = module.instruction(instr).opcode == Opcode::Constant;
        let Some(Literal::Float(numbers)) = is_constant.then(|| module.literal(instr)).flatten()
        else {
            return;
        };
        for number in numbers.into_iter().filter(|number| number.is_infinite()) {
            match (number > 0.0) != is_negated {
                true => self.positive = true,
                false => self.negative = true,
            }
        }
    }

    /// Whether an infinity of this sign is among them.
    pub(crate) fn has(self, number: f64) -> bool {
        if number > 0.0 { self.positive } else { self.negative }
    }
}

/// The operands whose infinities an operation passes on, and whether it negates them.
fn passed_on(opcode: Opcode, count: usize) -> Vec<(usize, bool)> {
    use Opcode::*;
    let (same, negated): (Vec<usize>, Vec<usize>) = match opcode {
        Bitcast | Broadcast | Convert | Copy | DynamicSlice | Reshape | Reverse | Slice
        | Transpose => (vec![0], vec![]),
        Add | Concatenate | Tuple => ((0..count).collect(), vec![]),
        DynamicUpdateSlice | Pad => (vec![0, 1], vec![]),
        Select => (vec![1, 2], vec![]),
        Subtract => (vec![0], vec![1]),
        Negate => (vec![], vec![0]),
        _ => (vec![], vec![]),
    };
    let same = same.into_iter().map(|place| (place, false));
    let negated = negated.into_iter().map(|place| (place, true));
    same.chain(negated).filter(|(place, _)| *place < count).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fusion_passes_on_its_infinite_constants() {
        let fusion = |root: &str| {
            let text = format!(
                "HloModule m\n\nf {{\n  x = f32[4] parameter(0)\n  m = pred[4] parameter(1)\n  \
                 n = f32[] constant(-inf)\n  b = f32[4] broadcast(n), dimensions={{}}\n  \
                 s = f32[4] select(m, x, b)\n  ROOT r = f32[4] {root}\n}}\n\nENTRY e {{\n  \
                 p = f32[4] parameter(0)\n  q = pred[4] parameter(1)\n  \
                 ROOT o = f32[4] fusion(p, q), kind=kLoop, calls=f\n}}\n"
            );
            let module = Module::read(text).unwrap();
            let found = MeantInfinities::of(&module, module.root(module.entry()));
            (found.has(f64::INFINITY), found.has(f64::NEG_INFINITY))
        };
        assert_eq!(fusion("copy(s)"), (false, true));
        assert_eq!(fusion("subtract(x, s)"), (true, false));
        assert_eq!(fusion("subtract(s, x)"), (false, true));
        assert_eq!(fusion("exponential(s)"), (false, false));
    }

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
