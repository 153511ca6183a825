//! Errors about run times, in the user's terms.

use thiserror::Error;

use crate::Unknown;
use crate::import::ImportError;

/// Why there is no time for every operation. Every variant names the operation at fault.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[allow(missing_docs)]
#[non_exhaustive]
pub enum CostError {
    #[error(
        "node '{node}' has no run time (runtime_ns is null): model it with --device (or --link, \
         for collectives alone), or measure it and give --profile"
    )]
    NotGiven { node: String },
    #[error(
        "node '{node}' has no run time, and neither flops nor bytes to model one from: give it \
         one of the three, or its time in --profile"
    )]
    NoFigures { node: String },
    #[error(
        "node '{node}' has no run time, and --link models collectives alone: add --device, or \
         give its time in --profile"
    )]
    OnlyCollectives { node: String },
    #[error(
        "node '{node}' has no run time, and its operation '{op}' cannot be modelled: known are \
         {}; give its time in --profile",
        super::collectives::modelled()
    )]
    UnknownCollective { node: String, op: String },
    #[error(
        "node '{node}' would take more than 292 years: its size or the device's rates cannot be \
         right"
    )]
    TooLong { node: String },
    #[error(transparent)]
    Profile(#[from] ProfileError),
}

/// Why measured times are refused. The caller adds the file's name.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[allow(missing_docs)]
#[non_exhaustive]
pub enum ProfileError {
    #[error("not a profile: {0}; it must be a JSON object of node names and nanoseconds")]
    NotAnObject(String),
    #[error(
        "not a profile in XLA's text form: {problem} at line {line} column {column}; it must hold \
         costs {{ name: \"...\" cost_us: ... }}"
    )]
    NotText { line: usize, column: usize, problem: &'static str },
    #[error("field '{field}': {value}; it must be {right}")]
    BadField { field: &'static str, value: String, right: &'static str },
    #[error(
        "node '{node}': time {value} is {problem}; it must be a time in nanoseconds, zero or more"
    )]
    BadTime { node: String, value: String, problem: &'static str },
    #[error("'{name}' is not a node of the graph{}{}", others(*more), meant(nearest.as_deref()))]
    UnknownNode { name: String, nearest: Option<String>, more: usize },
}

/// Why bytes are not a device. The caller adds the file's name.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[allow(missing_docs)]
#[non_exhaustive]
pub enum DeviceError {
    #[error(
        "not a device: {problem}; it must be a JSON object with {}",
        super::device::REQUIRED.join(", ")
    )]
    NotAnObject { problem: String },
    #[error("field '{field}' is missing: a device has {}", super::device::REQUIRED.join(", "))]
    Missing { field: &'static str },
    #[error("field '{field}': {value} is {problem}; it must be {right}")]
    BadField { field: &'static str, value: String, problem: &'static str, right: &'static str },
    #[error(transparent)]
    UnknownField(#[from] Unknown),
}

/// Why a name is not a link.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[allow(missing_docs)]
#[non_exhaustive]
pub enum LinkError {
    #[error(transparent)]
    Unknown(#[from] Unknown),
    #[error(
        "'{name}' is a device's own link: say whose with --device, or name one of {}",
        super::link::names().join(", ")
    )]
    NeedsDevice { name: &'static str },
}

/// Why bytes are not a JSON object; converted to one of the above by the caller.
#[derive(Debug, Error)]
pub(super) enum ObjectError {
    #[error(transparent)]
    Unreadable(#[from] ImportError),
    #[error(transparent)]
    NotJson(#[from] serde_json::Error),
}

fn others(more: usize) -> String {
    match more {
        0 => String::new(),
        1 => ", nor is another name".to_owned(),
        more => format!(", nor are {more} other names"),
    }
}

fn meant(nearest: Option<&str>) -> String {
    match nearest {
        Some(nearest) => format!("; did you mean '{nearest}'?"),
        None => "; was it measured on another program?".to_owned(),
    }
}
