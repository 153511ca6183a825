//! Tuples, and instructions that run other computations.

use super::{ElementType, Mismatch, RuleResult, RuleView, Type, are_alike, shown};
use crate::Shape;
use crate::ids::ComputationId;

/// Instructions that return their operand, which may be a tuple.
pub(super) fn same(view: RuleView<'_>) -> RuleResult {
    view.gives_shape(view.operand(0)?)
}

/// The done of an asynchronous operation: it returns a part of the start's result.
pub(super) fn done(view: RuleView<'_>, part: usize) -> RuleResult {
    match view.operand(0)?.parts().get(part) {
        Some(right) => view.gives_shape(right),
        None => Err(view.operand_should(0, "a tuple with what was started")),
    }
}

pub(super) fn tuple(view: RuleView<'_>) -> RuleResult {
    let operands = (0..view.count())
        .map(|index| view.operand(index).cloned())
        .collect::<Result<Vec<_>, _>>()?;
    view.gives_shape(&Shape::Tuple(operands))
}

pub(super) fn get_tuple_element(view: RuleView<'_>) -> RuleResult {
    let tuple = view.operand(0)?;
    let index = view.module.tuple_index(view.instr);
    match index.and_then(|index| tuple.parts().get(index as usize)) {
        Some(right) => view.gives_shape(right),
        None => Err(view.attribute_should("index", format!("below {}", tuple.parts().len()))),
    }
}

pub(super) fn call(view: RuleView<'_>) -> RuleResult {
    let Some(&callee) = view.module.called(view.instr).first() else { return Ok(()) };
    let operands =
        (0..view.count()).map(|index| view.operand(index)).collect::<Result<Vec<_>, _>>()?;
    parameters(view, callee, &operands)?;
    root(view, callee, view.result)
}

pub(super) fn repeat(view: RuleView<'_>) -> RuleResult {
    let state = view.operand(0)?;
    view.gives_shape(state)?;
    if let Some(condition) = view.module.computation_in(view.instr, "condition") {
        parameters(view, condition, &[state])?;
        root(view, condition, &super::shape_of(&Type::scalar(ElementType::Pred)))?;
    }
    let Some(body) = view.module.computation_in(view.instr, "body") else { return Ok(()) };
    parameters(view, body, &[state])?;
    root(view, body, state)
}

/// Branches are chosen by a predicate or by their number; each takes its own operand.
pub(super) fn conditional(view: RuleView<'_>) -> RuleResult {
    let selector = view.array(0)?;
    let is_selector = matches!(selector.element, ElementType::Pred | ElementType::S32)
        && selector.dims.is_empty();
    if !is_selector {
        return Err(view.operand_should(0, "pred[] or s32[]"));
    }
    let branches = view.module.called(view.instr);
    if view.count() != branches.len() + 1 {
        let right = format!("{}: one to choose by, and one for each branch", branches.len() + 1);
        return Err(Mismatch::Operands { found: view.count(), right });
    }
    for (index, &branch) in branches.iter().enumerate() {
        parameters(view, branch, &[view.operand(index + 1)?])?;
        root(view, branch, view.result)?;
    }
    Ok(())
}

/// Checks that a computation takes these shapes.
pub(super) fn parameters(
    view: RuleView<'_>,
    callee: ComputationId,
    right: &[&Shape],
) -> RuleResult {
    let module = view.module;
    let computation = || module.computation_name(callee).to_owned();
    let found = module.parameters(callee);
    if found.len() != right.len() {
        return Err(Mismatch::Parameters {
            computation: computation(),
            found: found.len(),
            right: right.len(),
        });
    }
    for (number, (parameter, right)) in found.into_iter().zip(right).enumerate() {
        let shape = parameter.map(|parameter| &module.instruction(parameter).shape);
        if !shape.is_some_and(|shape| are_alike(shape, right)) {
            let is = shape.map_or_else(|| "missing".to_owned(), shown);
            return Err(Mismatch::Parameter {
                computation: computation(),
                number,
                is,
                right: shown(right),
            });
        }
    }
    Ok(())
}

/// Checks that a computation returns this.
pub(super) fn root(view: RuleView<'_>, callee: ComputationId, right: &Shape) -> RuleResult {
    let is = &view.module.instruction(view.module.root(callee)).shape;
    match are_alike(is, right) {
        true => Ok(()),
        false => Err(Mismatch::Gives {
            computation: view.module.computation_name(callee).to_owned(),
            is: shown(is),
            right: shown(right),
        }),
    }
}
