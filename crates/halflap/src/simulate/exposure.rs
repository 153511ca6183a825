//! Where the compute stream stands still.

use crate::ids::OpId;
use crate::units::Nanos;

/// A time in which the compute stream stood still for communication.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Exposure {
    /// Before which operation.
    pub at: OpId,
    /// For which collective.
    pub of: OpId,
    /// From when.
    pub start: Nanos,
    /// For how long.
    pub time: Nanos,
    /// Why.
    pub cause: Cause,
}

/// Why the compute stream stood still.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The operation needs the collective's result.
    Needed,
    /// The collective is synchronous.
    Synchronous,
    /// The host had not issued the operation yet, or the stream of a synchronous collective was busy.
    Issued,
    /// Nothing was left to compute.
    EndOfStep,
}
