//! The action for every instruction, decided before the first one runs.

use std::collections::HashMap;

use halflap_hlo::ids::{ComputationId, InstrId};
use halflap_hlo::{Module, Opcode, Phase};
use thiserror::Error;

use super::collective::Collective;
use super::{Action, Arrange, Line, Repeated};
use crate::kernel::{Kernel, Libraries, Unsupported, What, operand_leaves};

/// Why a module could not be evaluated.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[allow(missing_docs)]
pub enum EvaluateError {
    #[error(transparent)]
    Unsupported(#[from] Unsupported),
    #[error("the module runs on {expected} ranks, and inputs of {given} were given")]
    Ranks { expected: usize, given: usize },
    #[error("rank {rank} takes {expected} arrays, and {given} were given")]
    Inputs { rank: usize, expected: usize, given: usize },
    #[error("input {index} of rank {rank} is {given}, and must be {expected}")]
    Input { rank: usize, index: usize, expected: String, given: String },
    #[error(
        "'{instruction}' communicates with rank {missing}, which did not come to it: it left a loop or took another branch"
    )]
    Diverged { instruction: String, missing: usize },
}

/// The lines of every computation that the entry reaches.
pub(super) fn prepare(
    module: &Module,
    libraries: &Libraries,
) -> Result<HashMap<ComputationId, Vec<Line>>, EvaluateError> {
    let mut prepared = HashMap::new();
    let mut open = vec![module.entry()];
    while let Some(computation) = open.pop() {
        if prepared.contains_key(&computation) {
            continue;
        }
        let mut lines = Vec::new();
        for instr in module.instructions(computation) {
            let action = action(module, instr, libraries)?;
            called(&action, &mut open);
            lines.push(Line { instr, action, dead: Vec::new() });
        }
        mark_dead(module, computation, &mut lines);
        prepared.insert(computation, lines);
    }
    Ok(prepared)
}

fn called(action: &Action, open: &mut Vec<ComputationId>) {
    match action {
        Action::Call(callee) => open.push(*callee),
        Action::While(Repeated { condition, body }) => open.extend([*condition, *body]),
        Action::Conditional(branches) => open.extend(branches),
        Action::Start { inner, .. } => called(inner, open),
        _ => {}
    }
}

/// After which line each value is dropped.
fn mark_dead(module: &Module, computation: ComputationId, lines: &mut [Line]) {
    let mut last: HashMap<InstrId, usize> = HashMap::new();
    for (place, line) in lines.iter().enumerate() {
        last.insert(line.instr, place);
        last.extend(module.operands(line.instr).iter().map(|operand| (operand.of, place)));
    }
    last.remove(&module.root(computation));
    let instrs: Vec<InstrId> = lines.iter().map(|line| line.instr).collect();
    for instr in instrs {
        if let Some(&place) = last.get(&instr) {
            lines[place].dead.push(instr);
        }
    }
}

fn action(module: &Module, instr: InstrId, libraries: &Libraries) -> Result<Action, EvaluateError> {
    let opcode = module.instruction(instr).opcode;
    let shape = || EvaluateError::from(Unsupported::new(module, instr, What::Shape));
    let computation = |key| module.computation_in(instr, key).ok_or_else(shape);
    Ok(match opcode {
        Opcode::Parameter => Action::Parameter(module.parameter_number(instr).ok_or_else(shape)?),
        Opcode::Tuple
        | Opcode::Copy
        | Opcode::OptimizationBarrier
        | Opcode::OptBarrierLong
        | Opcode::Domain => Action::Pass,
        Opcode::GetTupleElement => Action::Take(element(module, instr).ok_or_else(shape)?),
        Opcode::Call => Action::Call(computation("to_apply")?),
        Opcode::While => {
            let condition = computation("condition")?;
            Action::While(Repeated { condition, body: computation("body")? })
        }
        Opcode::Conditional => Action::Conditional(module.called(instr).to_vec()),
        Opcode::CopyStart => {
            Action::Start { instr, inner: Box::new(Action::Pass), arrange: Arrange::OutIn }
        }
        Opcode::AsyncStart => {
            let callee = *module.called(instr).first().ok_or_else(shape)?;
            Action::Start { instr, inner: Box::new(Action::Call(callee)), arrange: Arrange::InOut }
        }
        Opcode::AsyncUpdate => Action::Pass,
        _ if opcode.phase() == Some(Phase::Update) => Action::Pass,
        _ if opcode.phase() == Some(Phase::Done) => {
            Action::Take(done(module, instr).ok_or_else(shape)?)
        }
        _ => match Collective::of(module, instr)? {
            Some(collective) if opcode.phase().is_none() => Action::Collective(collective),
            Some(collective) => {
                let arrange =
                    if opcode == Opcode::AllReduceStart { Arrange::Out } else { Arrange::InOut };
                Action::Start { instr, inner: Box::new(Action::Collective(collective)), arrange }
            }
            None if opcode.phase() == Some(Phase::Start) => Action::Start {
                instr,
                inner: Box::new(Action::Kernel(Kernel::compile_with(module, instr, libraries)?)),
                arrange: Arrange::InOut,
            },
            None => Action::Kernel(Kernel::compile_with(module, instr, libraries)?),
        },
    })
}

/// The leaves that a get-tuple-element takes of its operand.
fn element(module: &Module, instr: InstrId) -> Option<std::ops::Range<usize>> {
    let [operand] = module.operands(instr) else { return None };
    let index = module.tuple_index(instr)? as usize;
    let parts = module.operand_shape(operand).parts();
    let first = parts.get(..index)?.iter().map(|part| part.leaf_count()).sum();
    Some(first..first + parts.get(index)?.leaf_count())
}

/// The leaves of a start's value that its done returns.
fn done(module: &Module, instr: InstrId) -> Option<std::ops::Range<usize>> {
    let [operand] = module.operands(instr) else { return None };
    let given = module.instruction(instr).shape.leaf_count();
    let held = operand_leaves(module, operand).len();
    if module.instruction(instr).opcode == Opcode::CopyDone || held == given {
        return Some(0..given);
    }
    // Inputs come before outputs; updates pass on the start's value.
    let mut start = operand.of;
    while module.instruction(start).opcode.phase() == Some(Phase::Update) {
        start = module.operands(start).first()?.of;
    }
    let taken = module
        .operands(start)
        .iter()
        .map(|operand| operand_leaves(module, operand).len())
        .sum::<usize>();
    (taken + given <= held).then_some(taken..taken + given)
}
