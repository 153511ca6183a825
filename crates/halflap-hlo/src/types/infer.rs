//! Result shapes that the text omits. Most checking rules derive the result; here are those that
//! otherwise need it.

use super::{ElementType, Mismatch, Opcode, RuleResult, RuleView, Type, products, shape_of};
use crate::{Array, Shape};

/// Applies the rule of an instruction without a shape.
pub(super) fn infer(view: RuleView<'_>) -> RuleResult {
    use Opcode as O;
    match view.module.instruction(view.instr).opcode {
        O::Call => given_by_callee(view),
        O::Conditional => given_by_callee(view),
        O::Map => map(view),
        O::Broadcast => broadcast(view),
        O::AfterAll => view.gives_shape(&Shape::Token),
        O::TopK => top_k(view),
        O::GetDimensionSize => view.gives(&Type::scalar(ElementType::S32)),
        O::SetDimensionSize => set_size(view),
        O::RaggedDot => products::ragged_dot(view),
        O::ScaledDot => products::scaled_dot(view),
        O::Scan => scan(view),
        opcode => view.rule(opcode),
    }
}

/// The result of the first computation that it names.
fn given_by_callee(view: RuleView<'_>) -> RuleResult {
    match view.module.called(view.instr).first() {
        Some(&callee) => view.gives_shape(&view.module.instruction(view.module.root(callee)).shape),
        None => Ok(()),
    }
}

/// The operand's dimensions, of what the function gives.
fn map(view: RuleView<'_>) -> RuleResult {
    let root =
        view.module.computation_in(view.instr, "to_apply").map(|callee| view.module.root(callee));
    let element = root.and_then(|root| Some(view.module.instruction(root).shape.array()?.element));
    match element {
        Some(element) => view.gives(&Type::new(element, &view.array(0)?.dims)),
        None => Ok(()),
    }
}

/// Without a shape, `dimensions` are the sizes of dimensions that are put before the operand's.
fn broadcast(view: RuleView<'_>) -> RuleResult {
    let operand = view.array(0)?;
    let sizes = view.module.numbers(view.instr, "dimensions");
    let sizes: Option<Vec<u64>> = sizes.iter().map(|&size| u64::try_from(size).ok()).collect();
    let mut dims = sizes.ok_or_else(|| view.attribute_should("dimensions", "sizes"))?;
    dims.extend(&operand.dims);
    view.gives(&Type::new(operand.element, &dims))
}

fn top_k(view: RuleView<'_>) -> RuleResult {
    let mut largest = Type::of(view.array(0)?);
    let count = view.module.attribute(view.instr, "k").and_then(|k| k.trim().parse().ok());
    match (largest.dims.last_mut(), count) {
        (Some(last), Some(count)) if count <= *last => *last = count,
        (None, _) => return Err(view.operand_should(0, "of at least one dimension")),
        _ => return Err(view.attribute_should("k", "at most the last dimension")),
    }
    let places = Type::new(ElementType::S32, &largest.dims);
    view.gives_all(&[largest, places])
}

fn set_size(view: RuleView<'_>) -> RuleResult {
    let array = Array { dynamic: true, ..view.array(0)?.clone() };
    view.gives_shape(&Shape::Array(array))
}

/// The function's results for one element: the last ones are carried, the others exist once for
/// each element.
fn scan(view: RuleView<'_>) -> RuleResult {
    let module = view.module;
    let Some(callee) = module.computation_in(view.instr, "to_apply") else { return Ok(()) };
    let places = view.array(0)?;
    let dim = view.dim("dimensions", places.dims.len())?;
    let carries =
        module.numbers(view.instr, "num_carries").first().map_or(0, |&count| count.max(0) as usize);
    let along = |shape: &Shape| -> Result<Shape, Mismatch> {
        let mut each = Type::of(shape.array().ok_or_else(|| view.result_should("arrays"))?);
        let dim = dim.min(each.dims.len());
        each.dims.insert(dim, places.dims[dim]);
        Ok(shape_of(&each))
    };
    match &module.instruction(module.root(callee)).shape {
        Shape::Tuple(parts) => {
            let stacked = parts.len().saturating_sub(carries);
            let each = parts.iter().enumerate();
            let each = each
                .map(|(index, part)| if index < stacked { along(part) } else { Ok(part.clone()) });
            view.gives_shape(&Shape::Tuple(each.collect::<Result<_, _>>()?))
        }
        shape if carries > 0 => view.gives_shape(shape),
        shape => view.gives_shape(&along(shape)?),
    }
}
