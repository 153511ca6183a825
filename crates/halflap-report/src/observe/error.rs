//! Why a trace could not be read.

use thiserror::Error;

use super::scan::ScanFault;
use crate::printable;

/// The position of an error in the unpacked text of a trace.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct TracePlace {
    /// The number of bytes before it.
    pub byte: u64,
    /// The line, from 1.
    pub line: u64,
    /// The column in bytes, from 1.
    pub column: u64,
    /// The number of the event, from 0, if it is in one.
    pub event: Option<u64>,
    /// That event's name, as far as it was read; truncated.
    pub name: String,
}

impl std::fmt::Display for TracePlace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "line {} column {} (byte {})", self.line, self.column, self.byte)?;
        match (self.event, self.name.is_empty()) {
            (None, _) => Ok(()),
            (Some(event), true) => write!(f, ", event {event}"),
            (Some(event), false) => write!(f, ", event {event} '{}'", printable(&self.name)),
        }
    }
}

/// Why bytes are not a trace. The message has the position and what was expected; the caller adds
/// the file's name.
#[derive(Debug, Error)]
#[allow(missing_docs)]
#[non_exhaustive]
pub enum TraceError {
    #[error("cannot be read after {after} unpacked bytes: {error}")]
    Unreadable { after: u64, error: std::io::Error },
    #[error("{place}: {problem}")]
    Wrong { place: Box<TracePlace>, problem: String },
    #[error("{place}: the text ends here: the trace is truncated")]
    CutOff { place: Box<TracePlace> },
    #[error("{place}: one value is larger than {} MiB; no profiler writes such values", most >> 20)]
    TooLarge { place: Box<TracePlace>, most: usize },
    #[error(
        "no 'traceEvents': a trace is a JSON object with a list of that name, as torch.profiler's \
         export_chrome_trace writes it, or such a list alone"
    )]
    NoEvents,
    #[error(
        "none of its {events} events is work of a GPU (category kernel, gpu_memcpy or gpu_memset) \
         or a collective of gloo: profile with ProfilerActivity.CUDA or, on CPUs, a program that \
         communicates over gloo"
    )]
    NoWork { events: u64 },
    #[error("{0}")]
    Host(String),
    #[error(
        "its {of} events ({negative}) all have a negative duration: its times are wrong, and \
         nothing is left to analyse"
    )]
    OnlyNegative { of: &'static str, negative: u64 },
    #[error("'distributedInfo' is malformed: {0}")]
    DistributedInfo(String),
}

impl ScanFault {
    /// In words.
    pub(super) fn describe(&self) -> String {
        match self {
            ScanFault::Expected(what) => format!("not JSON: expected {what}"),
            ScanFault::TooDeep => "lists and objects are nested too deeply".to_owned(),
            ScanFault::Field { name, found, right } => {
                format!("'{name}' is {}; it must be {right}", printable(found))
            }
            ScanFault::TooMany { what, most } => {
                format!("more than {most} {what}: profile fewer steps")
            }
        }
    }
}
