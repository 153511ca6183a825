//! Ragged all-to-all: members send each other pieces of different, data-dependent lengths.
//!
//! Operands: the rows to send, the array into whose copy rows are received, and for each piece of
//! each member the first row, the number of rows, the position at the receiver, and the number of
//! rows to receive. The data may be wrong, so every member checks the pieces of all members before
//! anything is copied: all find the same problem.

use halflap_hlo::Module;
use halflap_hlo::ids::InstrId;

use crate::failure::{RaggedFault, RaggedProblem};
use crate::kernel::{ArrayType, Gap, Unsupported, leaf_kinds, operand_leaves};
use crate::tensor::DType;

/// How many operands there are.
pub(crate) const OPERANDS: usize = 6;

/// What is the same on all ranks.
#[derive(Clone, Debug)]
pub(crate) struct Ragged {
    /// The bytes of a row: what offsets and sizes count.
    pub(crate) row: usize,
    /// The bytes of each operand.
    pub(crate) lens: [usize; OPERANDS],
    /// The type of rows' elements.
    pub(crate) element: DType,
    /// The type of offsets and sizes.
    pub(crate) dtype: DType,
}

/// A piece that one member sends to another.
struct RaggedPiece {
    first: i64,
    count: i64,
    place: i64,
    expected: i64,
}

/// The operands of one member.
pub(crate) type RaggedOperands<'a> = [&'a [u8]; OPERANDS];

/// One number of an array of offsets or sizes.
fn number(array: &[u8], dtype: DType, at: usize) -> i64 {
    let bytes = array.get(at * dtype.size()..).unwrap_or_default();
    let short = || bytes.first_chunk().copied().unwrap_or_default();
    let long = || bytes.first_chunk().copied().unwrap_or_default();
    match dtype {
        DType::S32 => i64::from(i32::from_le_bytes(short())),
        DType::U32 => i64::from(u32::from_le_bytes(short())),
        // Larger numbers are out of bounds for any array.
        DType::U64 => i64::try_from(u64::from_le_bytes(long())).unwrap_or(i64::MAX),
        _ => i64::from_le_bytes(long()),
    }
}

/// Whether this many rows, starting at one, lie within an array.
fn is_within(first: i64, count: i64, rows: usize) -> bool {
    let end = first.checked_add(count).filter(|_| first >= 0 && count >= 0);
    end.is_some_and(|end| usize::try_from(end).is_ok_and(|end| end <= rows))
}

impl Ragged {
    /// Reads an instruction that is one, or starts one.
    pub(crate) fn of(module: &Module, instr: InstrId) -> Result<Ragged, Unsupported> {
        let mut kinds: Vec<ArrayType> = Vec::new();
        for operand in module.operands(instr) {
            kinds.extend_from_slice(
                &leaf_kinds(module, operand.of)?[operand_leaves(module, operand)],
            );
        }
        let misshapen = |_| Unsupported::new(module, instr, Gap::Shape);
        let kinds: [ArrayType; OPERANDS] = kinds.try_into().map_err(misshapen)?;
        let row = kinds[0].dims.iter().skip(1).product::<usize>() * kinds[0].dtype.size();
        let lens = kinds.each_ref().map(ArrayType::bytes);
        Ok(Ragged { row, lens, element: kinds[0].dtype, dtype: kinds[2].dtype })
    }

    fn rows(&self, operand: usize) -> usize {
        self.lens[operand].checked_div(self.row).unwrap_or(0)
    }

    /// The pieces that one member sends to another.
    fn pieces<'a>(
        &'a self,
        members: &'a [RaggedOperands<'a>],
        sender: usize,
        receiver: usize,
    ) -> impl Iterator<Item = RaggedPiece> + 'a {
        let each = self.lens[2] / self.dtype.size() / members.len().max(1);
        let of = move |member: usize, operand: usize, other: usize, piece: usize| {
            number(members[member][operand], self.dtype, other * each + piece)
        };
        (0..each).map(move |piece| RaggedPiece {
            first: of(sender, 2, receiver, piece),
            count: of(sender, 3, receiver, piece),
            place: of(sender, 4, receiver, piece),
            expected: of(receiver, 5, sender, piece),
        })
    }

    /// Checks all pieces; returns the first problem, by sender and receiver.
    pub(crate) fn check(&self, members: &[RaggedOperands<'_>]) -> Result<(), RaggedFault> {
        let [taken, given] = [self.rows(0), self.rows(1)];
        for (sender, receiver) in
            (0..members.len()).flat_map(|a| (0..members.len()).map(move |b| (a, b)))
        {
            for RaggedPiece { first, count, place, expected } in
                self.pieces(members, sender, receiver)
            {
                let problem = if !is_within(first, count, taken) {
                    RaggedProblem::Taken { first, count, rows: taken }
                } else if !is_within(place, count, given) {
                    RaggedProblem::Given { first: place, count, rows: given }
                } else if count != expected {
                    RaggedProblem::Differs { sent: count, expected }
                } else {
                    continue;
                };
                return Err(RaggedFault { sender, receiver, problem });
            }
        }
        Ok(())
    }

    /// What one member receives, once everything has been checked.
    pub(crate) fn fill(&self, members: &[RaggedOperands<'_>], receiver: usize, out: &mut [u8]) {
        out.copy_from_slice(members[receiver][1]);
        for (sender, operands) in members.iter().enumerate() {
            for RaggedPiece { first, count, place, .. } in self.pieces(members, sender, receiver) {
                let [first, count, place] =
                    [first, count, place].map(|rows| rows as usize * self.row);
                out[place..place + count].copy_from_slice(&operands[0][first..first + count]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(numbers: &[i32]) -> Vec<u8> {
        numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
    }

    /// Two members; the first keeps one row and sends two, the second sends one.
    fn members() -> [[Vec<u8>; OPERANDS]; 2] {
        let of = |rows: &[i32], counts: [[i32; 2]; 4]| {
            let [first, sent, place, expected] = counts.map(|numbers| bytes(&numbers));
            [bytes(rows), bytes(&[9, 9, 9, 9]), first, sent, place, expected]
        };
        [
            of(&[1, 2, 3], [[0, 1], [1, 2], [0, 0], [1, 1]]),
            of(&[4, 5, 6], [[2, 0], [1, 0], [3, 0], [2, 0]]),
        ]
    }

    fn views(members: &[[Vec<u8>; OPERANDS]; 2]) -> Vec<RaggedOperands<'_>> {
        members.iter().map(|member| member.each_ref().map(Vec::as_slice)).collect()
    }

    const RAGGED: Ragged =
        Ragged { row: 4, lens: [12, 16, 8, 8, 8, 8], element: DType::S32, dtype: DType::S32 };

    #[test]
    fn pieces_come_to_their_places() {
        let members = members();
        let members = views(&members);
        RAGGED.check(&members).unwrap();
        let mut out = vec![0; 16];
        RAGGED.fill(&members, 0, &mut out);
        assert_eq!(out, bytes(&[1, 9, 9, 6]));
        RAGGED.fill(&members, 1, &mut out);
        assert_eq!(out, bytes(&[2, 3, 9, 9]));
    }

    #[test]
    fn wrong_pieces_are_refused() {
        let problem = |operand: usize, numbers: [i32; 2]| {
            let mut members = members();
            members[0][operand] = bytes(&numbers);
            RAGGED.check(&views(&members)).unwrap_err()
        };
        let fault = problem(2, [0, 2]);
        assert_eq!((fault.sender, fault.receiver), (0, 1));
        assert_eq!(fault.problem, RaggedProblem::Taken { first: 2, count: 2, rows: 3 });
        assert_eq!(
            problem(3, [-1, 2]).problem,
            RaggedProblem::Taken { first: 0, count: -1, rows: 3 }
        );
        assert_eq!(
            problem(4, [0, 3]).problem,
            RaggedProblem::Given { first: 3, count: 2, rows: 4 }
        );
        assert_eq!(problem(3, [1, 1]).problem, RaggedProblem::Differs { sent: 1, expected: 2 });
    }
}
