//! The action for every instruction, decided before the first one runs.

use std::collections::HashMap;

use halflap_hlo::ids::{ComputationId, InstrId};
use halflap_hlo::{Module, Opcode, Phase};
use thiserror::Error;

use super::collective::EvaluatedCollective;
use super::{Arrange, InstrAction, ProgramLine, Repeated};
use crate::failure::RaggedProblem;
use crate::kernel::{Gap, Kernel, Libraries, Unsupported, operand_leaves};

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
        "'{instruction}' communicates with rank {missing}, which did not reach it: it left a loop or took another branch"
    )]
    Diverged { instruction: String, missing: usize },
    #[error("rank {rank}: '{instruction}' {problem}")]
    Ragged { instruction: String, rank: usize, problem: RaggedProblem },
}

/// The lines of every computation that the entry reaches.
pub(super) fn prepare(
    module: &Module,
    libraries: &Libraries,
) -> Result<HashMap<ComputationId, Vec<ProgramLine>>, EvaluateError> {
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
            lines.push(ProgramLine { instr, action, dead: Vec::new() });
        }
        mark_dead(module, computation, &mut lines);
        prepared.insert(computation, lines);
    }
    Ok(prepared)
}

fn called(action: &InstrAction, open: &mut Vec<ComputationId>) {
    match action {
        InstrAction::Call(callee) => open.push(*callee),
        InstrAction::While(Repeated { condition, body }) => open.extend([*condition, *body]),
        InstrAction::Conditional(branches) => open.extend(branches),
        InstrAction::Start { inner, .. } => called(inner, open),
        _ => {}
    }
}

/// After which line each value is dropped.
fn mark_dead(module: &Module, computation: ComputationId, lines: &mut [ProgramLine]) {
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

fn action(
    module: &Module,
    instr: InstrId,
    libraries: &Libraries,
) -> Result<InstrAction, EvaluateError> {
    let opcode = module.instruction(instr).opcode;
    let shape = || EvaluateError::from(Unsupported::new(module, instr, Gap::Shape));
    let computation = |key| module.computation_in(instr, key).ok_or_else(shape);
    Ok(match opcode {
        Opcode::Parameter => {
            InstrAction::Parameter(module.parameter_number(instr).ok_or_else(shape)?)
        }
        Opcode::Tuple
        | Opcode::Copy
        | Opcode::OptimizationBarrier
        | Opcode::OptBarrierLong
        | Opcode::Domain => InstrAction::Pass,
        Opcode::GetTupleElement => InstrAction::Take(element(module, instr).ok_or_else(shape)?),
        Opcode::Call => InstrAction::Call(computation("to_apply")?),
        Opcode::While => {
            let condition = computation("condition")?;
            InstrAction::While(Repeated { condition, body: computation("body")? })
        }
        Opcode::Conditional => InstrAction::Conditional(module.called(instr).to_vec()),
        Opcode::CopyStart => InstrAction::Start {
            instr,
            inner: Box::new(InstrAction::Pass),
            arrange: Arrange::OutIn,
        },
        Opcode::AsyncStart => {
            let callee = *module.called(instr).first().ok_or_else(shape)?;
            InstrAction::Start {
                instr,
                inner: Box::new(InstrAction::Call(callee)),
                arrange: Arrange::InOut,
            }
        }
        Opcode::AsyncUpdate => InstrAction::Pass,
        _ if opcode.phase() == Some(Phase::Update) => InstrAction::Pass,
        _ if opcode.phase() == Some(Phase::Done) => {
            InstrAction::Take(done(module, instr).ok_or_else(shape)?)
        }
        _ => match EvaluatedCollective::of(module, instr)? {
            Some(collective) if opcode.phase().is_none() => InstrAction::Collective(collective),
            Some(collective) => {
                let arrange =
                    if opcode == Opcode::AllReduceStart { Arrange::Out } else { Arrange::InOut };
                InstrAction::Start {
                    instr,
                    inner: Box::new(InstrAction::Collective(collective)),
                    arrange,
                }
            }
            None if opcode.phase() == Some(Phase::Start) => InstrAction::Start {
                instr,
                inner: Box::new(InstrAction::Kernel(Kernel::compile_with(
                    module, instr, libraries,
                )?)),
                arrange: Arrange::InOut,
            },
            None => InstrAction::Kernel(Kernel::compile_with(module, instr, libraries)?),
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
