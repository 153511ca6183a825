//! Where the compute stream stalls.

use crate::ids::OpId;
use crate::units::Nanos;

/// A stall of the compute stream.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Exposure {
    /// Before which operation.
    pub at: OpId,
    /// For which collective; the operation itself where it is for none.
    pub of: OpId,
    /// From when.
    pub start: Nanos,
    /// For how long.
    pub time: Nanos,
    /// Why.
    pub cause: Cause,
}

impl Exposure {
    /// Whether communication is exposed, as opposed to nothing being issued.
    pub fn is_communication(&self) -> bool {
        self.cause != Cause::Issued
    }
}

/// A collective that the compute stream waits for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waited {
    pub(crate) collective: OpId,
    /// The total.
    pub(crate) exposed: Nanos,
    /// The first operation that waits; the collective itself where it ends the step.
    pub(crate) at: OpId,
}

/// Why the compute stream stalled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The operation needs the collective's result.
    Needed,
    /// The collective is synchronous.
    Synchronous,
    /// The host had not issued the operation yet, or a peer had not come to the collective: no
    /// communication runs that could be hidden.
    Issued,
    /// Nothing was left to compute.
    EndOfStep,
}
