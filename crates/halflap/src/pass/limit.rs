//! Why an operation stopped: a decision, not an error.

use crate::ids::OpId;
use crate::units::{Bytes, Nanos};

/// Why an operation stopped moving. Rendered by halflap-report, never here.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Limit {
    /// Nothing stands beyond it.
    ProgramEdge,
    /// The collective is hidden, with the requested margin.
    FullyHidden,
    /// The order of collectives would change.
    CollectiveOrder {
        /// The neighbour that must stay where it is.
        with: OpId,
    },
    /// The neighbour produces what the group needs, or needs what it produces.
    DataDependency {
        /// The neighbour.
        on: OpId,
        /// Why the group could not carry it along.
        not_grouped: NotGrouped,
    },
    /// More would be exposed elsewhere than is hidden here.
    ExposedTimeGrows {
        /// The neighbour.
        candidate: OpId,
        /// The total.
        by: Nanos,
    },
    /// Too much would be alive.
    PeakMemory {
        /// The neighbour.
        candidate: OpId,
        /// The peak of group and neighbour after the swap.
        would_be: Bytes,
        /// The peak of the order that the pass was given.
        base: Bytes,
        /// What the pass may use.
        limit: Bytes,
    },
}

/// Why a group could not carry a neighbour along.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotGrouped {
    /// It is a collective, which must not move along.
    Collective,
    /// It is a wait, which was placed already.
    Wait,
    /// It is a matrix multiplication: compute to hide behind, if run times are ignored.
    GemmLike,
    /// The pass moves one operation at a time.
    Never,
}
