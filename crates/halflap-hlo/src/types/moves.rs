//! Instructions that only move elements.

use super::{ElementType, Mismatch, RuleResult, RuleView, Type, without};

pub(super) fn broadcast(view: RuleView<'_>) -> RuleResult {
    let operand = view.array(0)?;
    let result = view.result.array().ok_or_else(|| view.result_should("an array"))?;
    let dims = view.dims("dimensions", result.dims.len())?;
    if dims.len() != operand.dims.len() {
        let right =
            format!("{} dimensions of the result, as many as the operand has", operand.dims.len());
        return Err(view.attribute_should("dimensions", right));
    }
    let mut right = Type::new(operand.element, &result.dims);
    for (&dim, &size) in dims.iter().zip(&operand.dims) {
        right.dims[dim] = size;
    }
    view.gives(&right)
}

pub(super) fn reshape(view: RuleView<'_>) -> RuleResult {
    let operand = view.array(0)?;
    let fits = |result: &super::Array| {
        result.element == operand.element && result.elements() == operand.elements()
    };
    match view.result.array().is_some_and(fits) {
        true => Ok(()),
        false => Err(view.result_should(format!(
            "{} elements of {}",
            operand.elements(),
            operand.element.name()
        ))),
    }
}

/// Any shape of the same number of bytes. Layouts say how elements of less than a byte are packed.
pub(super) fn bitcast(view: RuleView<'_>) -> RuleResult {
    let (Some(operand), Some(result)) = (view.operand(0)?.array(), view.result.array()) else {
        return Ok(());
    };
    let bits =
        |array: &super::Array| u128::from(array.elements()) * u128::from(array.element.bits());
    if operand.element.bits() < 8 || result.element.bits() < 8 || bits(operand) == bits(result) {
        return Ok(());
    }
    Err(view.result_should(format!("of {} bytes", bits(operand) / 8)))
}

pub(super) fn transpose(view: RuleView<'_>) -> RuleResult {
    let operand = view.array(0)?;
    let order = view.dims("dimensions", operand.dims.len())?;
    if order.len() != operand.dims.len() {
        return Err(
            view.attribute_should("dimensions", format!("all {} dimensions", operand.dims.len()))
        );
    }
    let dims: Vec<u64> = order.iter().map(|&dim| operand.dims[dim]).collect();
    view.gives(&Type::new(operand.element, &dims))
}

pub(super) fn reverse(view: RuleView<'_>) -> RuleResult {
    let operand = view.array(0)?;
    view.dims("dimensions", operand.dims.len())?;
    view.gives(&Type::of(operand))
}

pub(super) fn slice(view: RuleView<'_>) -> RuleResult {
    let operand = view.array(0)?;
    let slices = view.module.slice_dims(view.instr);
    let fits = slices
        .iter()
        .zip(&operand.dims)
        .all(|(slice, &dim)| slice.start <= slice.limit && slice.limit <= dim && slice.stride > 0);
    if slices.len() != operand.dims.len() || !fits {
        return Err(view.attribute_should("slice", format!("within {}", Type::of(operand))));
    }
    let dims: Vec<u64> =
        slices.iter().map(|slice| (slice.limit - slice.start).div_ceil(slice.stride)).collect();
    view.gives(&Type::new(operand.element, &dims))
}

/// `padding=low_high_interior`, for each dimension; negative padding crops.
pub(super) fn pad(view: RuleView<'_>) -> RuleResult {
    let operand = view.array(0)?;
    view.takes(1, &Type::scalar(operand.element))?;
    let text = view.module.attribute(view.instr, "padding").unwrap_or("");
    let sides = |text: &str| {
        text.split('_').map(|side| side.trim().parse::<i64>().ok()).collect::<Option<Vec<_>>>()
    };
    let padding: Option<Vec<Vec<i64>>> =
        text.split('x').filter(|part| !part.is_empty()).map(sides).collect();
    let right = || {
        view.attribute_should(
            "padding",
            format!("low_high for each of {} dimensions", operand.dims.len()),
        )
    };
    let padding =
        padding.filter(|padding| padding.len() == operand.dims.len()).ok_or_else(right)?;
    let padded = |(sides, &dim): (&Vec<i64>, &u64)| -> Option<u64> {
        let (low, high, interior) = match sides[..] {
            [low, high] => (low, high, 0),
            [low, high, interior] if interior >= 0 => (low, high, interior),
            _ => return None,
        };
        let dim = i128::from(dim);
        let size =
            dim + (dim - 1).max(0) * i128::from(interior) + i128::from(low) + i128::from(high);
        u64::try_from(size).ok()
    };
    let dims: Option<Vec<u64>> = padding.iter().zip(&operand.dims).map(padded).collect();
    view.gives(&Type::new(operand.element, &dims.ok_or_else(right)?))
}

pub(super) fn concatenate(view: RuleView<'_>) -> RuleResult {
    let mut right = Type::of(view.array(0)?);
    let dim = view.dim("dimensions", right.dims.len())?;
    for index in 1..view.count() {
        let mut alike = right.clone();
        let size = view.array(index)?.dims.get(dim).copied().unwrap_or(right.dims[dim]);
        alike.dims[dim] = size;
        view.takes(index, &alike)?;
        right.dims[dim] = right.dims[dim].saturating_add(size);
    }
    view.gives(&right)
}

pub(super) fn iota(view: RuleView<'_>) -> RuleResult {
    let result = view.result.array().ok_or_else(|| view.result_should("an array"))?;
    view.dim("iota_dimension", result.dims.len()).map(|_| ())
}

/// Starts are scalars, one for each dimension, or all in one vector.
fn starts(view: RuleView<'_>, first: usize, rank: usize) -> RuleResult {
    let is_vector = view.count() == first + 1 && view.array(first)?.dims.len() == 1;
    if is_vector {
        let element = view.array(first)?.element;
        return view.takes(first, &Type::new(element, &[rank as u64]));
    }
    if view.count() != first + rank {
        let right = format!("{}: one start for each of {rank} dimensions", first + rank);
        return Err(Mismatch::Operands { found: view.count(), right });
    }
    for index in first..view.count() {
        let element = view.array(index)?.element;
        if !is_index(element) {
            return Err(view.operand_should(index, "of integers"));
        }
        view.takes(index, &Type::scalar(element))?;
    }
    Ok(())
}

fn is_index(element: ElementType) -> bool {
    use ElementType as E;
    matches!(
        element,
        E::S8 | E::S16 | E::S32 | E::S64 | E::U8 | E::U16 | E::U32 | E::U64 | E::Other { .. }
    )
}

/// Sizes that an attribute gives, which must be within an array.
fn sizes(view: RuleView<'_>, key: &'static str, within: &Type) -> Result<Vec<u64>, Mismatch> {
    let sizes: Option<Vec<u64>> =
        view.module.numbers(view.instr, key).iter().map(|&size| u64::try_from(size).ok()).collect();
    let fits = |sizes: &Vec<u64>| {
        sizes.len() == within.dims.len()
            && sizes.iter().zip(&within.dims).all(|(size, dim)| size <= dim)
    };
    sizes.filter(fits).ok_or_else(|| view.attribute_should(key, format!("within {within}")))
}

pub(super) fn dynamic_slice(view: RuleView<'_>) -> RuleResult {
    let operand = Type::of(view.array(0)?);
    let sizes = sizes(view, "dynamic_slice_sizes", &operand)?;
    starts(view, 1, sizes.len())?;
    view.gives(&Type::new(operand.element, &sizes))
}

pub(super) fn dynamic_update_slice(view: RuleView<'_>) -> RuleResult {
    let (operand, update) = (view.array(0)?, view.array(1)?);
    let fits = update.element == operand.element
        && update.dims.len() == operand.dims.len()
        && update.dims.iter().zip(&operand.dims).all(|(size, dim)| size <= dim);
    if !fits {
        return Err(view.operand_should(1, format!("within {}", Type::of(operand))));
    }
    starts(view, 2, operand.dims.len())?;
    view.gives(&Type::of(operand))
}

/// The dimensions of indices without the one along which an index lies, and how long an index is.
fn index_dims(view: RuleView<'_>, operand: usize) -> Result<(Vec<u64>, usize), Mismatch> {
    let indices = view.array(operand)?;
    if !is_index(indices.element) {
        return Err(view.operand_should(operand, "of integers"));
    }
    let rank = indices.dims.len();
    let dim = view.dim("index_vector_dim", rank + 1)?;
    Ok((without(&indices.dims, &[dim]), indices.dims.get(dim).map_or(1, |&size| size as usize)))
}

/// Checks that an index has as many parts as the dimensions it indexes.
fn index_map(view: RuleView<'_>, key: &'static str, rank: usize, parts: usize) -> RuleResult {
    match view.dims(key, rank)?.len() == parts {
        true => Ok(()),
        false => Err(view
            .attribute_should(key, format!("{parts} dimensions, as many as an index has parts"))),
    }
}

/// Puts a window's dimensions where they are in an array, and the others in the rest.
fn interleaved(window: &[u64], places: &[usize], others: &[u64]) -> Vec<u64> {
    let mut sorted = places.to_vec();
    sorted.sort_unstable();
    let (mut window, mut others) = (window.iter(), others.iter());
    let rank = window.len() + others.len();
    let next = |dim: usize| if sorted.contains(&dim) { window.next() } else { others.next() };
    (0..rank).filter_map(next).copied().collect()
}

pub(super) fn gather(view: RuleView<'_>) -> RuleResult {
    let operand = Type::of(view.array(0)?);
    let rank = operand.dims.len();
    let sizes = sizes(view, "slice_sizes", &operand)?;
    let (others, parts) = index_dims(view, 1)?;
    index_map(view, "start_index_map", rank, parts)?;
    let mut dropped = view.dims("collapsed_slice_dims", rank)?;
    dropped.extend(batching(view, "operand_batching_dims", "start_indices_batching_dims")?);
    if dropped.iter().any(|&dim| sizes[dim] > 1) {
        return Err(view.attribute_should("slice_sizes", "1 in collapsed and batching dimensions"));
    }
    let window = without(&sizes, &dropped);
    let places = view.dims("offset_dims", window.len() + others.len())?;
    if places.len() != window.len() {
        return Err(view.attribute_should(
            "offset_dims",
            format!("{} dimensions of the result", window.len()),
        ));
    }
    view.gives(&Type::new(operand.element, &interleaved(&window, &places, &others)))
}

/// The operand's batching dimensions, each of which goes with one of the indices, as long.
fn batching(
    view: RuleView<'_>,
    key: &'static str,
    indices_key: &'static str,
) -> Result<Vec<usize>, Mismatch> {
    let operand = view.array(0)?;
    let dims = view.dims(key, operand.dims.len())?;
    // The indices come after all arrays: one of a gather, as many as updates of a scatter.
    let indices = view.array(view.count() / 2)?;
    let theirs = view.dims(indices_key, indices.dims.len())?;
    let is_as_long = |(&dim, &their): (&usize, &usize)| operand.dims[dim] == indices.dims[their];
    match dims.len() == theirs.len() && dims.iter().zip(&theirs).all(is_as_long) {
        true => Ok(dims),
        false => Err(view.attribute_should(indices_key, format!("as many and as long as {key}"))),
    }
}

/// Arrays, indices, and as many updates as arrays.
pub(super) fn scatter(view: RuleView<'_>) -> RuleResult {
    if view.count() < 3 || view.count().is_multiple_of(2) {
        let right = "arrays, indices, and as many updates as arrays".to_owned();
        return Err(Mismatch::Operands { found: view.count(), right });
    }
    let arrays = view.count() / 2;
    let first = view.array(0)?;
    let mut right = Vec::with_capacity(arrays);
    for index in 0..arrays {
        let array = Type::new(view.array(index)?.element, &first.dims);
        view.takes(index, &array)?;
        update(view, index + arrays + 1, &array)?;
        right.push(array);
    }
    view.gives_all(&right)?;
    let scalars: Vec<Type> = right.iter().map(|array| Type::scalar(array.element)).collect();
    view.applies("to_apply", &[&scalars[..], &scalars[..]].concat(), &scalars)
}

/// An update has the dimensions of the indices, and those of a window that is within the array.
fn update(view: RuleView<'_>, index: usize, array: &Type) -> RuleResult {
    let rank = array.dims.len();
    let (others, parts) = index_dims(view, view.count() / 2)?;
    index_map(view, "scatter_dims_to_operand_dims", rank, parts)?;
    let mut inserted = view.dims("inserted_window_dims", rank)?;
    inserted.extend(batching(view, "input_batching_dims", "scatter_indices_batching_dims")?);
    let most = without(&array.dims, &inserted);
    let updates = view.array(index)?;
    let places = view.dims("update_window_dims", most.len() + others.len())?;
    if places.len() != most.len() {
        return Err(view.attribute_should(
            "update_window_dims",
            format!("{} dimensions of the updates", most.len()),
        ));
    }
    let most = Type::new(array.element, &interleaved(&most, &places, &others));
    let fits = |(dim, (&size, &most)): (usize, (&u64, &u64))| {
        size == most || size < most && places.contains(&dim)
    };
    let is_within = updates.dims.iter().zip(&most.dims).enumerate().all(fits);
    match updates.element == array.element && updates.dims.len() == most.dims.len() && is_within {
        true => Ok(()),
        false => Err(view.operand_should(index, format!("{most}, or less where a window is"))),
    }
}
