//! What a piece of an instruction's result needs of its operands.

use crate::ids::InstrId;
use crate::{Array, Module, Opcode};

/// What a piece of a result needs of an operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NeededPart {
    /// All of it.
    Whole,
    /// The same piece of it, along this dimension.
    Piece(usize),
}

use NeededPart::{Piece, Whole};

/// What each of so many equal pieces of a result along a dimension needs of every operand; `None`
/// if the pieces cannot be computed apart from each other, or are not equal.
pub(super) fn needed(
    module: &Module,
    instr: InstrId,
    dim: usize,
    pieces: u64,
) -> Option<Vec<NeededPart>> {
    let result = fixed(module.instruction(instr).shape.array()?)?;
    let operands = module.operands(instr).iter();
    let operands: Vec<&Array> = operands
        .map(|operand| module.operand_shape(operand).array().and_then(fixed))
        .collect::<Option<_>>()?;
    let needed = along(module, instr, dim, &operands)?;
    // Of a single row it cannot be told which dimension it was of before a reshape.
    let least = if module.instruction(instr).opcode == Opcode::Reshape { 2 } else { 1 };
    let is_even = |extent: Option<&u64>| {
        extent.is_some_and(|&extent| extent >= least * pieces && extent.is_multiple_of(pieces))
    };
    let is_cut = |(part, array): (&NeededPart, &&Array)| match part {
        Whole => true,
        Piece(dim) => is_even(array.dims.get(*dim)),
    };
    let is_all_even = is_even(result.dims.get(dim)) && needed.iter().zip(&operands).all(is_cut);
    (is_all_even && needed.len() == operands.len()).then_some(needed)
}

fn fixed(array: &Array) -> Option<&Array> {
    (!array.dynamic).then_some(array)
}

/// The dimensions of operands that a dimension of the result runs along.
fn along(
    module: &Module,
    instr: InstrId,
    dim: usize,
    operands: &[&Array],
) -> Option<Vec<NeededPart>> {
    let numbers = |key: &str| -> Vec<usize> {
        let numbers = module.numbers(instr, key);
        numbers.into_iter().filter_map(|number| usize::try_from(number).ok()).collect()
    };
    let result = module.instruction(instr).shape.array()?;
    match (module.instruction(instr).opcode, operands) {
        (Opcode::Broadcast, [_]) => {
            let from = numbers("dimensions").iter().position(|&to| to == dim);
            Some(vec![from.map_or(Whole, Piece)])
        }
        (Opcode::Transpose, [_]) => Some(vec![Piece(*numbers("dimensions").get(dim)?)]),
        (Opcode::Reshape, [of]) => Some(vec![Piece(block_dim(&of.dims, &result.dims, dim)?)]),
        (Opcode::Reduce, [of, _]) => {
            let summed = numbers("dimensions");
            let mut kept = (0..of.dims.len()).filter(|dim| !summed.contains(dim));
            Some(vec![Piece(kept.nth(dim)?), Whole])
        }
        (Opcode::Slice, [of]) => {
            let is_all = of.dims.get(dim) == result.dims.get(dim);
            is_all.then(|| vec![Piece(dim)])
        }
        (Opcode::Concatenate, all) => {
            (!numbers("dimensions").contains(&dim)).then(|| vec![Piece(dim); all.len()])
        }
        (Opcode::Dot, [lhs, rhs]) => product(&numbers, dim, [lhs, rhs]),
        (Opcode::AllReduce | Opcode::CollectivePermute, [_]) => Some(vec![Piece(dim)]),
        (Opcode::AllGather | Opcode::ReduceScatter | Opcode::AllToAll, [_]) => {
            let moved = numbers("dimensions");
            (moved.len() == 1 && !moved.contains(&dim)).then(|| vec![Piece(dim)])
        }
        (opcode, all) => {
            let is_pointwise = opcode.is_elementwise() && opcode != Opcode::Map;
            let part = |array: &&Array| match array.dims == result.dims {
                true => Some(Piece(dim)),
                // A number for all elements, as a clamp may have.
                false => array.dims.is_empty().then_some(Whole),
            };
            (is_pointwise || opcode == Opcode::Copy)
                .then(|| all.iter().map(part).collect())
                .flatten()
        }
    }
}

/// The dimension of a product's operands that a dimension of the result runs along: first those
/// that it goes through in step, then those of the left operand, then those of the right one.
fn product(
    numbers: &dyn Fn(&str) -> Vec<usize>,
    dim: usize,
    operands: [&Array; 2],
) -> Option<Vec<NeededPart>> {
    let [left, right] = [numbers("lhs_batch_dims"), numbers("rhs_batch_dims")];
    if let (Some(&left), Some(&right)) = (left.get(dim), right.get(dim)) {
        return Some(vec![Piece(left), Piece(right)]);
    }
    let free = |side: usize, batch: &[usize], summed: Vec<usize>| {
        let all = (0..operands[side].dims.len())
            .filter(move |dim| !batch.contains(dim) && !summed.contains(dim));
        all.map(|dim| (side, dim)).collect::<Vec<_>>()
    };
    let rows = free(0, &left, numbers("lhs_contracting_dims"));
    let columns = free(1, &right, numbers("rhs_contracting_dims"));
    let (side, of) = rows.into_iter().chain(columns).nth(dim.checked_sub(left.len())?)?;
    Some(match side {
        0 => vec![Piece(of), Whole],
        _ => vec![Whole, Piece(of)],
    })
}

/// The dimension before a reshape whose equal pieces are those of a dimension after it: both begin
/// after equally many elements, so that each piece is the same range of elements.
fn block_dim(before: &[u64], after: &[u64], dim: usize) -> Option<usize> {
    let outer = |dims: &[u64], dim: usize| dims[..dim].iter().product::<u64>();
    let wanted = outer(after, dim);
    // Dimensions of one element begin where the next one does.
    let mut same = (0..before.len()).filter(|&of| outer(before, of) == wanted && before[of] > 1);
    same.next()
}
