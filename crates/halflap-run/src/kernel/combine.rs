//! The reductions of collectives.

use halflap_hlo::ids::InstrId;
use halflap_hlo::{Module, Opcode};

use super::block::{self, BlockFn, MOST_READ, computed_as};
use super::build::FormulaBuilder;
use super::error::{Gap, Unsupported};
use crate::tensor::{AlignedBytes, DType};

/// How the ranks' parts of an array are combined: one operation, element by element. bf16 and f16
/// are combined in f32 and rounded once.
#[derive(Clone, Copy, Debug)]
pub struct Combiner {
    dtype: DType,
    opcode: Opcode,
    run: BlockFn,
}

impl Combiner {
    /// The reduction of a collective; `dtype` is the type of the array.
    pub fn of(module: &Module, instr: InstrId, dtype: DType) -> Result<Combiner, Unsupported> {
        use Opcode as O;
        let opcode = FormulaBuilder::applied(module, instr, "to_apply")?.single_binary();
        let known = opcode.filter(|opcode| {
            matches!(
                opcode,
                O::Add | O::Multiply | O::Minimum | O::Maximum | O::And | O::Or | O::Xor
            )
        });
        let run = known.and_then(|opcode| Some((opcode, block::binary(opcode, dtype)?)));
        let (opcode, run) = run.ok_or_else(|| Unsupported::new(module, instr, Gap::Reduction))?;
        Ok(Combiner { dtype, opcode, run })
    }

    /// The operation.
    pub fn opcode(&self) -> Opcode {
        self.opcode
    }

    /// Combines parts of the same length, in order. Panics if lengths differ or memory is not
    /// aligned to the type.
    pub fn combine(&self, parts: &[&[u8]], out: &mut [u8]) {
        const BLOCK: usize = 1024;
        let (stored, size) = (self.dtype.size(), computed_as(self.dtype).size());
        let is_right = |part: &&[u8]| {
            part.len() == out.len() && part.as_ptr().align_offset(self.dtype.align()) == 0
        };
        assert!(parts.iter().all(is_right) && out.as_ptr().align_offset(self.dtype.align()) == 0);
        let mut memory = AlignedBytes::zeros(3 * BLOCK * size);
        let mut blocks =
            [0, 1, 2].map(|index| memory.as_mut_ptr().wrapping_add(index * BLOCK * size));
        let len = out.len() / stored;
        for first in (0..len).step_by(BLOCK) {
            let count = BLOCK.min(len - first);
            for (index, part) in parts.iter().enumerate() {
                let from = part[first * stored..].as_ptr();
                let [sum, value, next] = blocks;
                // SAFETY: blocks of `count` elements that do not overlap, and the part has as many.
                unsafe {
                    load(self.dtype, from, if index == 0 { sum } else { value }, count);
                    if index > 0 {
                        (self.run)(
                            &[
                                sum.cast_const(),
                                value.cast_const(),
                                sum.cast_const(),
                                sum.cast_const(),
                            ],
                            next,
                            count,
                        );
                        blocks = [next, value, sum];
                    }
                }
            }
            let to = out[first * stored..].as_mut_ptr();
            // SAFETY: the output has `count` more elements.
            unsafe {
                match block::narrow(self.dtype) {
                    Some(narrow) => narrow(&[blocks[0].cast_const(); MOST_READ], to, count),
                    None => std::ptr::copy_nonoverlapping(blocks[0], to, count * size),
                }
            }
        }
    }
}

/// # Safety
/// `from` must hold `count` stored elements, `to` as many computed ones.
unsafe fn load(dtype: DType, from: *const u8, to: *mut u8, count: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        match block::widen(dtype) {
            Some(widen) => widen(&[from; MOST_READ], to, count),
            None => std::ptr::copy_nonoverlapping(from, to, count * dtype.size()),
        }
    }
}
