//! Ragged collectives whose offsets and sizes are inconsistent.

use thiserror::Error;

use super::Failure;

/// What is wrong with a piece that a rank sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum RaggedProblem {
    /// The sender does not have the rows.
    #[error("sends {count} rows from row {first} on, of an array of {rows}")]
    Taken {
        /// The first of them.
        first: i64,
        /// How many there are.
        count: i64,
        /// How many the array has.
        rows: usize,
    },
    /// The receiver has no room for them.
    #[error("sends {count} rows to row {first} of an array of {rows}")]
    Given {
        /// Where the first one goes.
        first: i64,
        /// How many there are.
        count: i64,
        /// How many the array has.
        rows: usize,
    },
    /// The receiver expects another number.
    #[error("sends {sent} rows where {expected} are expected")]
    Differs {
        /// How many are sent.
        sent: i64,
        /// How many the receiver expects.
        expected: i64,
    },
}

/// What is wrong, and between whom, by their places in their group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RaggedFault {
    pub(crate) sender: usize,
    pub(crate) receiver: usize,
    pub(crate) problem: RaggedProblem,
}

impl Failure {
    /// A ragged collective of a set of ranks with inconsistent data.
    pub(crate) fn ragged(collective: &str, set: &[u32], fault: RaggedFault) -> Failure {
        let RaggedFault { sender, receiver, problem } = fault;
        let [rank, receiver] = [sender, receiver].map(|place| set[place] as usize);
        Failure::Ragged { rank, receiver, collective: collective.to_owned(), problem }
    }
}
