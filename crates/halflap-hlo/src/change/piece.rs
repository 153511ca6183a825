//! The text of a piece of an instruction.

use crate::draft::Draft;
use crate::ids::InstrId;
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
    let tail = mark.tail.map_or(String::new(), |tail| format!(",{}", tail.0));
    let pieces = format!("{PIECES}=\"{}{tail}\"", mark.pieces);
    let mut marked = format!("{{{pieces}}}");
    let mut text = String::new();
    for (key, value) in module.attributes(instr) {
        match key {
            "sharding" => {}
            "frontend_attributes" if is_product => {
                let inside = value.trim().trim_start_matches('{').trim_end_matches('}');
                marked = format!("{{{inside},{pieces}}}");
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
        text.push_str(&format!(", frontend_attributes={marked}"));
    }
    text
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
