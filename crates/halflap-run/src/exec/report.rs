//! What is known of a run.

use std::time::Instant;

use halflap::ids::StreamId;
use halflap::units::{Bytes, Nanos};

use crate::tensor::Tensor;

/// Where something ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Lane {
    /// On the compute stream.
    Compute,
    /// Beside it.
    Stream(StreamId),
}

/// A time in which something ran, in one step of a run.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    /// What: the number of a label of [`super::Prepared`].
    pub label: u32,
    /// Where.
    pub lane: Lane,
    /// When it began; for a collective, when this rank had come to it.
    pub start: Instant,
    /// For a collective, when all had come, if that is known.
    pub met: Option<Instant>,
    /// When it was over.
    pub end: Instant,
}

/// What one rank did.
#[derive(Debug, Default)]
pub struct RankOutcome {
    /// The arrays of the root.
    pub outputs: Vec<Tensor>,
    /// How long each step took.
    pub steps: Vec<Nanos>,
    /// When each step began.
    pub began: Vec<Instant>,
    /// What ran in each step.
    pub spans: Vec<Vec<Span>>,
    /// The most that was requested at once.
    pub peak: Bytes,
    /// What was taken from the system.
    pub reserved: Bytes,
}

/// What all ranks of a process did.
#[derive(Debug, Default)]
pub struct Outcome {
    /// One for each rank.
    pub ranks: Vec<RankOutcome>,
}
