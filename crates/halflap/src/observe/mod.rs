//! What really ran: traces of the profiler, and what they show of communication and compute.

mod build;
mod class;
mod decimal;
mod error;
mod event;
mod kineto;
mod names;
mod scan;
mod trace;
mod window;

pub use build::Limits;
pub use class::{Class, Operation};
pub use error::{Place, TraceError};
pub use kineto::read_trace;
pub use trace::{Group, GroupName, Kernel, Lane, Launch, Moment, Oddities, Slice, Trace};
