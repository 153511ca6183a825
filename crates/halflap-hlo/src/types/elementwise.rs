//! Elementwise operations: operands and result have the same dimensions.

use super::{ElementType, Opcode, RuleResult, RuleView, Type};

pub(super) fn check(view: RuleView<'_>, opcode: Opcode) -> RuleResult {
    match opcode {
        Opcode::Convert => view.gives_dims(&view.array(0)?.dims),
        Opcode::StochasticConvert => stochastic_convert(view),
        Opcode::Compare => compare(view),
        Opcode::IsFinite => view.gives(&Type::new(ElementType::Pred, &view.array(0)?.dims)),
        Opcode::Select => select(view),
        Opcode::Clamp => clamp(view),
        Opcode::Complex => complex(view),
        Opcode::Real | Opcode::Imag | Opcode::Abs => part(view),
        Opcode::BitcastConvert => bitcast_convert(view),
        Opcode::Map => map(view),
        Opcode::ReducePrecision => reduce_precision(view),
        _ => same(view),
    }
}

/// Operands that are all like the result; the first says what is right.
fn same(view: RuleView<'_>) -> RuleResult {
    let first = Type::of(view.array(0)?);
    (1..view.count()).try_for_each(|index| view.takes(index, &first))?;
    view.gives(&first)
}

/// A format needs a bit of exponent, but none of mantissa.
fn reduce_precision(view: RuleView<'_>) -> RuleResult {
    let bits = |key| match view.module.numbers(view.instr, key)[..] {
        [number] => number,
        _ => -1,
    };
    if bits("exponent_bits") < 1 {
        return Err(view.attribute_should("exponent_bits", "1 or more"));
    }
    if bits("mantissa_bits") < 0 {
        return Err(view.attribute_should("mantissa_bits", "0 or more"));
    }
    same(view)
}

fn stochastic_convert(view: RuleView<'_>) -> RuleResult {
    let dims = &view.array(0)?.dims;
    let random = view.array(1)?;
    view.takes(1, &Type::new(random.element, dims))?;
    view.gives_dims(dims)
}

fn compare(view: RuleView<'_>) -> RuleResult {
    let first = Type::of(view.array(0)?);
    view.takes(1, &first)?;
    view.gives(&Type::new(ElementType::Pred, &first.dims))
}

/// The predicate may be a scalar, which chooses one of the two as a whole.
fn select(view: RuleView<'_>) -> RuleResult {
    let Some(on_true) = view.operand(1)?.array() else { return Ok(()) };
    let on_true = Type::of(on_true);
    let dims: &[u64] = if view.array(0)?.dims.is_empty() { &[] } else { &on_true.dims };
    view.takes(0, &Type::new(ElementType::Pred, dims))?;
    view.takes(2, &on_true)?;
    view.gives(&on_true)
}

/// The limits may be scalars.
fn clamp(view: RuleView<'_>) -> RuleResult {
    let clamped = Type::of(view.array(1)?);
    for limit in [0, 2] {
        if !Type::scalar(clamped.element).is(view.array(limit)?) {
            view.takes(limit, &clamped)?;
        }
    }
    view.gives(&clamped)
}

fn complex(view: RuleView<'_>) -> RuleResult {
    let real = Type::of(view.array(0)?);
    view.takes(1, &real)?;
    let element = match real.element {
        ElementType::F32 => ElementType::C64,
        ElementType::F64 => ElementType::C128,
        _ => return Err(view.operand_should(0, "of f32 or f64")),
    };
    view.gives(&Type::new(element, &real.dims))
}

/// A real number is its own real part and has a real absolute value.
fn part(view: RuleView<'_>) -> RuleResult {
    let whole = view.array(0)?;
    let element = match whole.element {
        ElementType::C64 => ElementType::F32,
        ElementType::C128 => ElementType::F64,
        other => other,
    };
    view.gives(&Type::new(element, &whole.dims))
}

/// Between types of different sizes, the last dimension counts how many small elements make a large
/// one.
fn bitcast_convert(view: RuleView<'_>) -> RuleResult {
    let operand = view.array(0)?;
    let result = view.result.array().ok_or_else(|| view.result_should("an array"))?;
    let (from, to) = (u64::from(operand.element.bits()), u64::from(result.element.bits()));
    let mut dims = operand.dims.clone();
    if from > to {
        dims.push(from / to.max(1));
    } else if from < to && dims.pop() != Some(to / from.max(1)) {
        return Err(
            view.operand_should(0, format!("with a last dimension of {}", to / from.max(1)))
        );
    }
    view.gives_dims(&dims)
}

fn map(view: RuleView<'_>) -> RuleResult {
    let dims = &view.array(0)?.dims;
    let mut scalars = Vec::with_capacity(view.count());
    for index in 0..view.count() {
        let element = view.array(index)?.element;
        view.takes(index, &Type::new(element, dims))?;
        scalars.push(Type::scalar(element));
    }
    view.gives_dims(dims)?;
    let given: Vec<Type> =
        view.result.array().map(|array| Type::scalar(array.element)).into_iter().collect();
    view.applies("to_apply", &scalars, &given)
}
