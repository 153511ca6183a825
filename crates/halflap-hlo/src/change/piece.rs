//! The text of a piece of an instruction.

use crate::draft::Draft;
use crate::ids::InstrId;
use crate::lex::numbers_in;
use crate::work::PIECES;
use crate::{Module, Opcode};
use halflap::units::Bytes;

/// Which piece of an instruction.
#[derive(Clone, Copy)]
pub(super) struct PieceMark {
    pub(super) piece: u64,
    pub(super) pieces: u64,
    /// The bytes of a product's result that a piece takes longer by, if not the usual ones.
    pub(super) tail: Option<Bytes>,
    /// The dimension of the result that is cut.
    pub(super) dim: usize,
}

/// The attributes of an instruction, as a piece of it has them, with a comma before each. Pieces of
/// a product are marked, so that their price is the same when the text is read again; pieces of a
/// collective have channels of their own.
pub(super) fn piece_attributes(
    module: &Module,
    draft: &mut Draft<'_>,
    instr: InstrId,
    mark: PieceMark,
) -> String {
    let opcode = module.instruction(instr).opcode;
    let is_product = opcode == Opcode::Dot;
    let mut marked = piece_mark(mark, "");
    let mut text = String::new();
    for (key, value) in module.attributes(instr) {
        match key {
            "sharding" => {}
            "frontend_attributes" if is_product => {
                marked = piece_mark(mark, value.trim().trim_matches(['{', '}']));
            }
            "channel_id" if mark.piece > 0 => {
                text.push_str(&format!(", channel_id={}", draft.fresh_channel()));
            }
            "slice" if opcode == Opcode::Slice => {
                text.push_str(&format!(", slice={{{}}}", sliced(module, instr, mark)));
            }
            _ => text.push_str(&format!(", {key}={value}")),
        }
    }
    if is_product {
        text.push_str(&format!(", frontend_attributes={{{marked}}}"));
    }
    text
}

/// What a piece of a product says of itself, beside what the product said. A piece of a piece is
/// one of more.
fn piece_mark(mark: PieceMark, before: &str) -> String {
    let (others, known) = before.split_once(PIECES).unwrap_or((before, ""));
    let mut quoted = known.splitn(3, '"').skip(1);
    let given = numbers_in(quoted.next().unwrap_or("")).first().copied().unwrap_or(1);
    let pieces = mark.pieces.saturating_mul(u64::try_from(given).unwrap_or(1));
    let tail = mark.tail.map_or(String::new(), |tail| format!(",{}", tail.0));
    let own = format!("{PIECES}=\"{pieces}{tail}\"");
    let others = [others, quoted.next().unwrap_or("")].map(|part| part.trim_matches([',', ' ']));
    let all = others.into_iter().filter(|part| !part.is_empty()).chain([own.as_str()]);
    all.collect::<Vec<_>>().join(",")
}

/// What a slice takes of each dimension of a piece: all of the one that is cut.
fn sliced(module: &Module, instr: InstrId, mark: PieceMark) -> String {
    let ranges = module.slice_dims(instr).into_iter().enumerate();
    let range = |(dim, of): (usize, crate::SliceDim)| match (dim == mark.dim, of.stride) {
        (true, _) => format!("[0:{}]", of.limit / mark.pieces),
        (false, 1) => format!("[{}:{}]", of.start, of.limit),
        (false, stride) => format!("[{}:{}:{stride}]", of.start, of.limit),
    };
    ranges.map(range).collect::<Vec<_>>().join(", ")
}

/// The text of a slice that is a piece of an operand along a dimension.
pub(super) fn slice_text(of: &str, dims: &[u64], mark: PieceMark) -> String {
    let size = dims[mark.dim] / mark.pieces;
    let range = |(dim, &extent): (usize, &u64)| match dim == mark.dim {
        true => format!("[{}:{}]", mark.piece * size, (mark.piece + 1) * size),
        false => format!("[0:{extent}]"),
    };
    let ranges: Vec<String> = dims.iter().enumerate().map(range).collect();
    format!("slice({of}), slice={{{}}}", ranges.join(", "))
}

/// The text of an instruction's pieces put together along a dimension, with its source.
pub(super) fn whole_text(module: &Module, of: InstrId, pieces: &[String], dim: usize) -> String {
    let mut text = format!("concatenate({}), dimensions={{{dim}}}", pieces.join(", "));
    if let Some(metadata) = module.attribute(of, "metadata") {
        text.push_str(&format!(", metadata={metadata}"));
    }
    text
}
