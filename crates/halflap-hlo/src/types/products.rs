//! Operations that compute an element from many: products, windows, reductions, sorts,
//! factorizations.

use super::{ElementType, Mismatch, Opcode, RuleResult, RuleView, Type, without};
use crate::{ConvDims, WindowDim};

/// Corresponding dimensions of both operands must have the same size.
fn paired(
    view: RuleView<'_>,
    lhs_key: &'static str,
    rhs_key: &'static str,
) -> Result<[Vec<usize>; 2], Mismatch> {
    let (lhs, rhs) = (view.array(0)?, view.array(1)?);
    let (lhs_dims, rhs_dims) =
        (view.dims(lhs_key, lhs.dims.len())?, view.dims(rhs_key, rhs.dims.len())?);
    if lhs_dims.len() != rhs_dims.len() {
        return Err(view.attribute_should(
            rhs_key,
            format!("{} dimensions, as {lhs_key} has", lhs_dims.len()),
        ));
    }
    for (&left, &right) in lhs_dims.iter().zip(&rhs_dims) {
        if lhs.dims[left] != rhs.dims[right] {
            return Err(
                view.operand_should(1, format!("of {} in dimension {right}", lhs.dims[left]))
            );
        }
    }
    Ok([lhs_dims, rhs_dims])
}

/// The result's element type may differ from the operands'.
pub(super) fn dot(view: RuleView<'_>) -> RuleResult {
    // A sparse dot has its metadata as a further operand.
    if view.count() > 2 {
        return Ok(());
    }
    let (lhs, rhs) = (view.array(0)?, view.array(1)?);
    let [lhs_batch, rhs_batch] = paired(view, "lhs_batch_dims", "rhs_batch_dims")?;
    let [lhs_sum, rhs_sum] = paired(view, "lhs_contracting_dims", "rhs_contracting_dims")?;
    let mut dims: Vec<u64> = lhs_batch.iter().map(|&dim| lhs.dims[dim]).collect();
    dims.extend(without(&lhs.dims, &[lhs_batch, lhs_sum].concat()));
    dims.extend(without(&rhs.dims, &[rhs_batch, rhs_sum].concat()));
    view.gives_dims(&dims)
}

/// One product for each group of rows. Where groups divide what is summed over, there is one result
/// for each.
pub(super) fn ragged_dot(view: RuleView<'_>) -> RuleResult {
    let (lhs, rhs, sizes) = (view.array(0)?, view.array(1)?, view.array(2)?);
    let [lhs_batch, rhs_batch] = paired(view, "lhs_batch_dims", "rhs_batch_dims")?;
    let [lhs_sum, rhs_sum] = paired(view, "lhs_contracting_dims", "rhs_contracting_dims")?;
    let ragged = view.dims("lhs_ragged_dims", lhs.dims.len())?;
    let groups = view.dims("rhs_group_dims", rhs.dims.len())?;
    let mut dims: Vec<u64> = Vec::new();
    if ragged.iter().any(|dim| lhs_sum.contains(dim)) {
        dims.extend(sizes.dims.last());
    }
    dims.extend(lhs_batch.iter().map(|&dim| lhs.dims[dim]));
    dims.extend(without(&lhs.dims, &[lhs_batch, lhs_sum].concat()));
    dims.extend(without(&rhs.dims, &[rhs_batch, rhs_sum, groups].concat()));
    view.gives(&Type::new(lhs.element, &dims))
}

/// The second and the fourth operand scale the first and the third.
pub(super) fn scaled_dot(view: RuleView<'_>) -> RuleResult {
    let (lhs, rhs) = (view.array(0)?, view.array(2)?);
    let of = |key, rank: usize| view.dims(key, rank);
    let (lhs_rank, rhs_rank) = (lhs.dims.len(), rhs.dims.len());
    let (lhs_batch, rhs_batch) = (of("lhs_batch_dims", lhs_rank)?, of("rhs_batch_dims", rhs_rank)?);
    let (lhs_sum, rhs_sum) =
        (of("lhs_contracting_dims", lhs_rank)?, of("rhs_contracting_dims", rhs_rank)?);
    let mut dims: Vec<u64> = lhs_batch.iter().map(|&dim| lhs.dims[dim]).collect();
    dims.extend(without(&lhs.dims, &[lhs_batch, lhs_sum].concat()));
    dims.extend(without(&rhs.dims, &[rhs_batch, rhs_sum].concat()));
    view.gives(&Type::new(lhs.element, &dims))
}

/// How often a window fits into a dimension.
fn window_count(size: u64, window: &WindowDim) -> u64 {
    let dilated = |size: u64, by: u64| {
        if size == 0 { 0 } else { (i128::from(size) - 1) * i128::from(by) + 1 }
    };
    let padded =
        dilated(size, window.lhs_dilate) + i128::from(window.pad_low) + i128::from(window.pad_high);
    let left = padded - dilated(window.size, window.rhs_dilate);
    match padded <= 0 || left < 0 {
        true => 0,
        false => u64::try_from(left / i128::from(window.stride) + 1).unwrap_or(u64::MAX),
    }
}

/// What an array's dimensions become under the instruction's window.
fn windowed(view: RuleView<'_>, dims: &[u64]) -> Result<Vec<u64>, Mismatch> {
    let window = view.module.window(view.instr);
    if window.dims.len() != dims.len() {
        return Err(view.attribute_should("window", format!("of {} dimensions", dims.len())));
    }
    Ok(dims.iter().zip(&window.dims).map(|(&size, window)| window_count(size, window)).collect())
}

fn group_count(view: RuleView<'_>, key: &str) -> u64 {
    let count = view.module.numbers(view.instr, key).first().copied().unwrap_or(1);
    u64::try_from(count).map_or(1, |count| count.max(1))
}

pub(super) fn convolution(view: RuleView<'_>) -> RuleResult {
    let (input, kernel) = (view.array(0)?, view.array(1)?);
    let Some(labels) = view.module.conv_dims(view.instr) else { return Ok(()) };
    let rank = labels.input_spatial.len() + 2;
    // A meaningless label would let the others exceed the rank.
    if !all_dims(&labels)
        .iter()
        .all(|dims| dims.len() == rank && dims.iter().all(|&dim| dim < rank))
    {
        return Err(view.attribute_should("dim_labels", "such as b01f_01io->b01f, of one rank"));
    }
    for (index, array) in [input, kernel].into_iter().enumerate() {
        if array.dims.len() != rank {
            return Err(
                view.operand_should(index, format!("of {rank} dimensions, as dim_labels say"))
            );
        }
    }
    let batches = convolved_groups(view, &labels)?;
    let spatial: Vec<u64> = labels.input_spatial.iter().map(|&dim| input.dims[dim]).collect();
    let mut dims = vec![0; rank];
    dims[labels.output_batch] = input.dims[labels.input_batch] / batches;
    dims[labels.output_feature] = kernel.dims[labels.kernel_output];
    for (&dim, size) in labels.output_spatial.iter().zip(windowed(view, &spatial)?) {
        dims[dim] = size;
    }
    view.gives_dims(&dims)
}

/// The places of all labels: of input, kernel and output.
fn all_dims(labels: &ConvDims) -> [Vec<usize>; 3] {
    let ConvDims { input_spatial, kernel_spatial, output_spatial, .. } = labels;
    let input = [&[labels.input_batch, labels.input_feature], &input_spatial[..]].concat();
    let kernel = [&[labels.kernel_input, labels.kernel_output], &kernel_spatial[..]].concat();
    [input, kernel, [&[labels.output_batch, labels.output_feature], &output_spatial[..]].concat()]
}

/// Checks that the kernel matches the window and a group's features; returns the number of batch
/// groups.
fn convolved_groups(view: RuleView<'_>, labels: &ConvDims) -> Result<u64, Mismatch> {
    let (input, kernel) = (view.array(0)?, view.array(1)?);
    let (features, batches) =
        (group_count(view, "feature_group_count"), group_count(view, "batch_group_count"));
    let output = kernel.dims[labels.kernel_output];
    let is_shared =
        |size: u64, groups: u64| size.is_multiple_of(groups) && output.is_multiple_of(groups);
    if !is_shared(input.dims[labels.input_feature], features) {
        return Err(view.attribute_should("feature_group_count", "what divides the features"));
    }
    if !is_shared(input.dims[labels.input_batch], batches) {
        return Err(
            view.attribute_should("batch_group_count", "what divides the batch and the features")
        );
    }
    let mut right = Type::of(kernel);
    right.dims[labels.kernel_input] = input.dims[labels.input_feature] / features;
    for (&dim, window) in labels.kernel_spatial.iter().zip(&view.module.window(view.instr).dims) {
        right.dims[dim] = window.size;
    }
    view.takes(1, &right)?;
    Ok(batches)
}

/// Arrays of the same dimensions and as many scalars to begin with; gives the element types.
fn with_inits(view: RuleView<'_>) -> Result<Vec<ElementType>, Mismatch> {
    if view.count() < 2 || !view.count().is_multiple_of(2) {
        return Err(Mismatch::Operands {
            found: view.count(),
            right: "as many arrays as initial values".to_owned(),
        });
    }
    let arrays = view.count() / 2;
    let dims = &view.array(0)?.dims;
    let mut elements = Vec::with_capacity(arrays);
    for index in 0..arrays {
        let element = view.array(index)?.element;
        view.takes(index, &Type::new(element, dims))?;
        view.takes(arrays + index, &Type::scalar(element))?;
        elements.push(element);
    }
    Ok(elements)
}

/// That elements are reduced by a computation that takes and gives them, to arrays of these
/// dimensions.
fn reduces(view: RuleView<'_>, elements: &[ElementType], dims: &[u64]) -> RuleResult {
    let right: Vec<Type> = elements.iter().map(|&element| Type::new(element, dims)).collect();
    view.gives_all(&right)?;
    let scalars: Vec<Type> = elements.iter().map(|&element| Type::scalar(element)).collect();
    view.applies("to_apply", &[&scalars[..], &scalars[..]].concat(), &scalars)
}

pub(super) fn reduce(view: RuleView<'_>) -> RuleResult {
    let elements = with_inits(view)?;
    let dims = &view.array(0)?.dims;
    let reduced = view.dims("dimensions", dims.len())?;
    reduces(view, &elements, &without(dims, &reduced))
}

pub(super) fn reduce_window(view: RuleView<'_>) -> RuleResult {
    let elements = with_inits(view)?;
    reduces(view, &elements, &windowed(view, &view.array(0)?.dims)?)
}

pub(super) fn select_and_scatter(view: RuleView<'_>) -> RuleResult {
    let operand = Type::of(view.array(0)?);
    view.takes(1, &Type::new(operand.element, &windowed(view, &operand.dims)?))?;
    let scalar = Type::scalar(operand.element);
    view.takes(2, &scalar)?;
    view.gives(&operand)?;
    let two = [scalar.clone(), scalar.clone()];
    view.applies("select", &two, &[Type::scalar(ElementType::Pred)])?;
    view.applies("scatter", &two, &[scalar])
}

/// The comparison takes two elements of each operand.
pub(super) fn sort(view: RuleView<'_>) -> RuleResult {
    let dims = &view.array(0)?.dims;
    view.dim("dimensions", dims.len())?;
    let (mut right, mut compared) = (Vec::new(), Vec::new());
    for index in 0..view.count() {
        let element = view.array(index)?.element;
        right.push(Type::new(element, dims));
        view.takes(index, &right[index])?;
        compared.extend([Type::scalar(element), Type::scalar(element)]);
    }
    view.gives_all(&right)?;
    view.applies("to_apply", &compared, &[Type::scalar(ElementType::Pred)])
}

/// The largest along the last dimension, and where they were.
pub(super) fn top_k(view: RuleView<'_>) -> RuleResult {
    let operand = Type::of(view.array(0)?);
    let count = view.result.parts().first().and_then(|part| part.array()?.dims.last().copied());
    let mut right = operand.clone();
    match (right.dims.last_mut(), count) {
        (Some(last), Some(count)) if count <= *last => *last = count,
        (None, _) => return Err(view.operand_should(0, "of at least one dimension")),
        _ => return Err(view.result_should(format!("as much as {operand} has, or less"))),
    }
    let places = Type::new(ElementType::S32, &right.dims);
    view.gives_all(&[right, places])
}

/// Most operands have a number for each feature, and so have all results but the first.
pub(super) fn batch_norm(view: RuleView<'_>, opcode: Opcode) -> RuleResult {
    let all = Type::of(view.array(0)?);
    let dim = view.dim("feature_index", all.dims.len())?;
    let each = Type::new(all.element, &[all.dims[dim]]);
    let last = match opcode {
        Opcode::BatchNormTraining => 2,
        Opcode::BatchNormGrad => 3,
        _ => 4,
    };
    (1..=last).try_for_each(|index| view.takes(index, &each))?;
    match opcode {
        Opcode::BatchNormInference => view.gives(&all),
        Opcode::BatchNormTraining => view.gives_all(&[all, each.clone(), each]),
        _ => {
            view.takes(4, &all)?;
            view.gives_all(&[all, each.clone(), each])
        }
    }
}

/// Two numbers say how they are distributed.
pub(super) fn random(view: RuleView<'_>) -> RuleResult {
    let result = view.result.array().ok_or_else(|| view.result_should("an array"))?;
    (0..view.count()).try_for_each(|index| view.takes(index, &Type::scalar(result.element)))
}

/// The result may include the new state.
pub(super) fn random_bits(view: RuleView<'_>) -> RuleResult {
    let state = Type::of(view.array(0)?);
    match view.result.parts().first().and_then(|part| part.array()) {
        Some(after) if !state.is(after) => {
            Err(view.result_should(format!("a tuple of {state} and the bits")))
        }
        _ => Ok(()),
    }
}

/// The size of the square matrices in an operand, and how many of them there are.
fn matrices(view: RuleView<'_>) -> Result<(u64, &[u64]), Mismatch> {
    match &view.array(0)?.dims[..] {
        [batch @ .., rows, columns] if rows == columns => Ok((*rows, batch)),
        _ => Err(view.operand_should(0, "square matrices")),
    }
}

pub(super) fn cholesky(view: RuleView<'_>) -> RuleResult {
    matrices(view)?;
    view.gives(&Type::of(view.array(0)?))
}

pub(super) fn triangular_solve(view: RuleView<'_>) -> RuleResult {
    let (size, batch) = matrices(view)?;
    let given = view.array(1)?;
    let is_left = view.module.attribute(view.instr, "left_side") == Some("true");
    let fits = match &given.dims[..] {
        [theirs @ .., rows, columns] => {
            theirs == batch && size == if is_left { *rows } else { *columns }
        }
        _ => false,
    };
    if !fits || given.element != view.array(0)?.element {
        let side = if is_left { "rows" } else { "columns" };
        return Err(view.operand_should(1, format!("matrices of {size} {side}, like operand 1")));
    }
    view.gives(&Type::of(given))
}

/// For real inputs, half of the result is enough.
pub(super) fn fft(view: RuleView<'_>) -> RuleResult {
    let operand = Type::of(view.array(0)?);
    let lengths: Vec<u64> =
        view.module.numbers(view.instr, "fft_length").iter().map(|&size| size as u64).collect();
    let (Some(&last), Some(kept)) = (lengths.last(), operand.dims.len().checked_sub(lengths.len()))
    else {
        return Err(view.attribute_should("fft_length", format!("for dimensions of {operand}")));
    };
    let kind = view.module.attribute(view.instr, "fft_type").unwrap_or("FFT");
    let (mut takes, mut gives) = (operand.clone(), operand.clone());
    takes.dims.splice(kept.., lengths.iter().copied());
    gives.dims.clone_from(&takes.dims);
    let half = |of: &mut Type| {
        if let Some(dim) = of.dims.last_mut() {
            *dim = last / 2 + 1;
        }
    };
    gives.element = match (kind, operand.element) {
        ("RFFT", ElementType::F32) => ElementType::C64,
        ("RFFT", ElementType::F64) => ElementType::C128,
        ("IRFFT", ElementType::C64) => ElementType::F32,
        ("IRFFT", ElementType::C128) => ElementType::F64,
        (_, element) => element,
    };
    match kind {
        "RFFT" => half(&mut gives),
        "IRFFT" => half(&mut takes),
        _ => {}
    }
    view.takes(0, &takes)?;
    view.gives(&gives)
}
