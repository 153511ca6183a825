//! What a module's author intended: values computed from constants alone, and NaN and infinities of
//! constants that mark elements, such as what scores are masked with.

use std::collections::BTreeSet;

use halflap_hlo::ids::InstrId;
use halflap_hlo::{Array, Literal, Module, Opcode};

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

pub(super) fn depends_on_operands_alone(opcode: Opcode) -> bool {
    use Opcode::*;
    let moves = matches!(
        opcode,
        Bitcast | Broadcast | Concatenate | Copy | Pad | Reshape | Reverse | Slice | Transpose
    );
    let passes_on = matches!(opcode, CopyStart | CopyDone | GetTupleElement | Tuple);
    moves || passes_on || opcode.is_elementwise() || matches!(opcode, Constant | Fusion | Iota)
}

/// What an instruction does with the elements of its operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Handling {
    /// It puts them beside each other, or picks some. The NaN of a constant among them are
    /// intended: they mark elements that have no value.
    Moves,
    /// It computes each element of its results from those at one place.
    Computes,
    /// It combines elements: one that NaN marks spoils others.
    Combines,
}

impl Handling {
    /// That of an instruction, given the values computed from statuses.
    pub(super) fn of(module: &Module, instr: InstrId, statuses: &BTreeSet<InstrId>) -> Handling {
        use Opcode::*;
        let operands = module.operands(instr);
        match module.instruction(instr).opcode {
            Bitcast | Broadcast | Concatenate | Copy | DynamicSlice | DynamicUpdateSlice
            | Gather | Pad | Reshape | Reverse | Slice | Transpose => Handling::Moves,
            // What stands in for the results of a function that failed is no mark, nor is what a
            // function gives for numbers that it is not defined for.
            Select if !statuses.contains(&operands[0].of) && !is_of_function(module, instr) => {
                Handling::Moves
            }
            Scatter => match only_replaces(module, instr) {
                true => Handling::Moves,
                false => Handling::Combines,
            },
            Reduce | ReduceWindow | Dot | Convolution => Handling::Combines,
            _ => Handling::Computes,
        }
    }
}

/// The functions of which JAX makes several instructions, with a `select` that gives NaN outside of
/// their domain.
const FUNCTIONS: [&str; 12] = [
    "acos",
    "acosh",
    "asin",
    "atanh",
    "digamma",
    "erf_inv",
    "igamma",
    "igammac",
    "lgamma",
    "polygamma",
    "regularized_incomplete_beta",
    "zeta",
];

/// Whether an instruction is part of such a function.
fn is_of_function(module: &Module, instr: InstrId) -> bool {
    FUNCTIONS.contains(&module.operation(instr).as_str())
}

/// Whether a scatter puts updates in the place of what was there.
fn only_replaces(module: &Module, instr: InstrId) -> bool {
    let is_parameter = |&with| module.instruction(module.root(with)).opcode == Opcode::Parameter;
    module.called(instr).iter().all(is_parameter)
}

/// Whether an instruction is a constant with NaN or infinities.
pub(super) fn has_marks(module: &Module, instr: InstrId) -> bool {
    match module.literal(instr) {
        Some(Literal::Float(numbers)) => numbers.iter().any(|number| !number.is_finite()),
        _ => false,
    }
}

/// How the names of functions begin that give a status beside their results.
const WITH_STATUS: [&str; 3] = ["lapack_", "cusolver", "hipsolver"];

/// All integers and booleans that depend on the status of a library's function.
pub(super) fn of_status(module: &Module) -> BTreeSet<InstrId> {
    let mut known = BTreeSet::new();
    let all = || module.computations().flat_map(|computation| module.instructions(computation));
    let gives_status = |&instr: &InstrId| {
        let is_custom = module.instruction(instr).opcode == Opcode::CustomCall;
        let target = module.attribute(instr, "custom_call_target").filter(|_| is_custom);
        let target = target.unwrap_or_default().trim_matches('"');
        WITH_STATUS.iter().any(|start| target.starts_with(start))
    };
    known.extend(all().filter(gives_status));
    // Callers come after what they call, and hand it what comes before them: a few rounds do.
    let mut before = usize::MAX;
    while !known.is_empty() && known.len() != before {
        before = known.len();
        for instr in all() {
            pass_on_status(module, instr, &mut known);
        }
    }
    known
}

/// Adds an instruction that depends on known ones, and the parameters that it hands them to.
fn pass_on_status(module: &Module, instr: InstrId, known: &mut BTreeSet<InstrId>) {
    let instruction = module.instruction(instr);
    if !matches!(instruction.opcode, Opcode::Fusion | Opcode::Call) {
        let is_known = module.operands(instr).iter().any(|operand| known.contains(&operand.of));
        let is_discrete = |array: &Array| array.element.name().starts_with(['p', 's', 'u']);
        let is_status = instruction.shape.array().is_some_and(is_discrete);
        if is_known && is_status {
            known.insert(instr);
        }
        return;
    }
    for &callee in module.called(instr) {
        let parameters = module.parameters(callee);
        for (operand, parameter) in module.operands(instr).iter().zip(parameters) {
            if known.contains(&operand.of) {
                known.extend(parameter);
            }
        }
        if known.contains(&module.root(callee)) {
            known.insert(instr);
        }
    }
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

    /// A `select` of the program, and one of a function that it calls.
    #[test]
    fn what_a_function_gives_outside_of_its_domain_is_no_mark() {
        let handling = |operation: &str| {
            let text = format!(
                "HloModule m\n\nENTRY e {{\n  p = f32[4] parameter(0)\n  g = pred[4] parameter(1)\n  \
                 n = f32[4] constant({{nan, nan, nan, nan}})\n  \
                 ROOT r = f32[4] select(g, n, p), metadata={{op_name=\"jit(f)/{operation}\"}}\n}}\n"
            );
            let module = Module::read(text).unwrap();
            Handling::of(&module, module.root(module.entry()), &BTreeSet::new())
        };
        assert_eq!(handling("jit(_where)/select_n"), Handling::Moves);
        assert_eq!(handling("atanh"), Handling::Computes);
    }

    /// A factor whose status a fusion turns into a condition, and a mask of data.
    #[test]
    fn what_replaces_a_failure_is_no_mark() {
        let text = "HloModule m\n\nchosen {\n  a = f32[4] parameter(0)\n  s = s32[] parameter(1)\n  \
                    z = s32[] constant(0)\n  g = pred[] compare(s, z), direction=EQ\n  \
                    b = pred[4] broadcast(g), dimensions={}\n  n = f32[] constant(nan)\n  \
                    w = f32[4] broadcast(n), dimensions={}\n  \
                    ROOT failed = f32[4] select(b, a, w)\n}\n\nENTRY e {\n  \
                    p = f32[4] parameter(0)\n  q = f32[4] parameter(1)\n  \
                    c = (f32[4], s32[]) custom-call(p), custom_call_target=\"lapack_spotrf_ffi\"\n  \
                    x = f32[4] get-tuple-element(c), index=0\n  \
                    i = s32[] get-tuple-element(c), index=1\n  \
                    m = pred[4] compare(p, q), direction=GT\n  marked = f32[4] select(m, p, q)\n  \
                    f = f32[4] fusion(x, i), kind=kLoop, calls=chosen\n  \
                    ROOT r = f32[4] add(f, marked)\n}\n";
        let module = Module::read(text.to_owned()).unwrap();
        let statuses = of_status(&module);
        let handling = |name: &str| {
            let mut all = module.computations().flat_map(|of| module.instructions(of));
            let instr = all.find(|&instr| module.instruction_name(instr) == name).unwrap();
            Handling::of(&module, instr, &statuses)
        };
        assert_eq!(handling("failed"), Handling::Computes);
        assert_eq!((handling("marked"), handling("r")), (Handling::Moves, Handling::Computes));
    }
}
