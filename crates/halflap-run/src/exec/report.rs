//! The outcome of a run.

use std::sync::Arc;
use std::time::Instant;

use halflap::ids::{Id, StreamId};
use halflap::units::{Bytes, Nanos};

use super::{Failure, Prepared};
use crate::tensor::{NpyError, Tensor, read_npy, write_npy};

/// Where something ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RunLane {
    /// On the compute stream.
    Compute,
    /// On a communication stream.
    Stream(StreamId),
}

/// A time span in which something ran, as recorded by its stream.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Noted {
    pub(crate) label: u32,
    pub(crate) lane: RunLane,
    pub(crate) start: Instant,
    pub(crate) met: Option<Instant>,
    pub(crate) end: Instant,
}

/// A time span in which something ran, relative to the start of its step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RunSpan {
    /// What ran: the number of a label of [`super::Prepared`].
    pub label: u32,
    /// Where it ran.
    pub lane: RunLane,
    /// When it began; for a collective, when this rank arrived.
    pub start: Nanos,
    /// For a collective, when all ranks had arrived, if known.
    pub met: Option<Nanos>,
    /// When it ended.
    pub end: Nanos,
}

impl Noted {
    /// The same, counted from the beginning of a step.
    pub(crate) fn since(&self, began: Instant) -> RunSpan {
        let since = |time: Instant| Nanos(time.saturating_duration_since(began).as_nanos() as f64);
        let Noted { label, lane, start, met, end } = *self;
        RunSpan { label, lane, start: since(start), met: met.map(since), end: since(end) }
    }
}

/// What one rank did.
#[derive(Debug, Default, PartialEq)]
pub struct RankOutcome {
    /// The arrays of the root.
    pub outputs: Vec<Tensor>,
    /// How long each step took.
    pub steps: Vec<Nanos>,
    /// What ran in each step, or in the last ones if there are many.
    pub spans: Vec<Vec<RunSpan>>,
    /// The peak of requested bytes.
    pub peak: Bytes,
    /// The bytes allocated from the system.
    pub reserved: Bytes,
}

/// What all ranks did.
#[derive(Debug, Default)]
pub struct Outcome {
    /// One for each rank.
    pub ranks: Vec<RankOutcome>,
}

impl Outcome {
    /// What ranks did, if they requested the planned memory; a difference is a bug in the plan.
    pub(crate) fn checked(self, programs: &[Arc<Prepared>]) -> Result<Outcome, Failure> {
        for (rank, (of, program)) in self.ranks.iter().zip(programs).enumerate() {
            if !program.is_planned(of.peak) {
                let (requested, planned) = (of.peak.0, program.peak);
                return Err(Failure::MemoryDiffers { rank, requested, planned });
            }
        }
        Ok(self)
    }
}

impl RankOutcome {
    /// As bytes, for ranks that are processes.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let number = |out: &mut Vec<u8>, number: u64| out.extend(number.to_le_bytes());
        number(&mut out, self.peak.0 as u64);
        number(&mut out, self.reserved.0 as u64);
        number(&mut out, self.steps.len() as u64);
        self.steps.iter().for_each(|step| number(&mut out, step.0.to_bits()));
        number(&mut out, self.spans.len() as u64);
        for spans in &self.spans {
            number(&mut out, spans.len() as u64);
            for span in spans {
                let lane = match span.lane {
                    RunLane::Compute => 0,
                    RunLane::Stream(stream) => stream.index() as u64 + 1,
                };
                let met = span.met.map_or(u64::MAX, |met| met.0.to_bits());
                let all = [
                    u64::from(span.label),
                    lane,
                    span.start.0.to_bits(),
                    met,
                    span.end.0.to_bits(),
                ];
                all.into_iter().for_each(|field| number(&mut out, field));
            }
        }
        number(&mut out, self.outputs.len() as u64);
        for output in &self.outputs {
            let bytes = write_npy(output);
            number(&mut out, bytes.len() as u64);
            out.extend(bytes);
        }
        out
    }

    /// Reads what [`RankOutcome::to_bytes`] wrote; `None` if the bytes are something else.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<RankOutcome> {
        let mut reader = OutcomeReader { bytes };
        let mut outcome = RankOutcome {
            peak: Bytes(reader.number()? as i64),
            reserved: Bytes(reader.number()? as i64),
            ..RankOutcome::default()
        };
        for _ in 0..reader.number()? {
            outcome.steps.push(reader.nanos()?);
        }
        for _ in 0..reader.number()? {
            let count = reader.number()?;
            outcome.spans.push((0..count).map(|_| reader.span()).collect::<Option<_>>()?);
        }
        for _ in 0..reader.number()? {
            let len = reader.number()? as usize;
            let array: Result<Tensor, NpyError> = read_npy(reader.take(len)?);
            outcome.outputs.push(array.ok()?);
        }
        Some(outcome)
    }
}

struct OutcomeReader<'a> {
    bytes: &'a [u8],
}

impl<'a> OutcomeReader<'a> {
    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.bytes.split_at_checked(len)?;
        self.bytes = rest;
        Some(taken)
    }

    fn number(&mut self) -> Option<u64> {
        self.take(8).and_then(|bytes| bytes.try_into().ok()).map(u64::from_le_bytes)
    }

    fn nanos(&mut self) -> Option<Nanos> {
        self.number().map(|bits| Nanos(f64::from_bits(bits)))
    }

    fn span(&mut self) -> Option<RunSpan> {
        let label = self.number()? as u32;
        let lane = match self.number()? {
            0 => RunLane::Compute,
            stream => RunLane::Stream(StreamId::from_index(stream as usize - 1)),
        };
        let start = self.nanos()?;
        let met = self.number()?;
        let met = (met != u64::MAX).then(|| Nanos(f64::from_bits(met)));
        Some(RunSpan { label, lane, start, met, end: self.nanos()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outcome_there_and_back() {
        let span = |lane, met| RunSpan { label: 3, lane, start: Nanos(1.5), met, end: Nanos(2e9) };
        let spans = vec![
            span(RunLane::Compute, None),
            span(RunLane::Stream(StreamId::from_index(1)), Some(Nanos(7.0))),
        ];
        let outcome = RankOutcome {
            outputs: vec![Tensor::of(&[2], &[1.0f32, -2.0])],
            steps: vec![Nanos(13.0), Nanos(12.0)],
            spans: vec![spans],
            peak: Bytes(17),
            reserved: Bytes(64),
        };
        let bytes = outcome.to_bytes();
        assert_eq!(RankOutcome::from_bytes(&bytes), Some(outcome));
        assert_eq!(RankOutcome::from_bytes(&bytes[..bytes.len() - 1]), None);
    }
}
