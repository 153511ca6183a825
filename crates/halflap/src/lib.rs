//! halflap lets communication overlap with compute in distributed tensor programs, without adding
//! memory.
//!
//! The flow: [`import`] bytes to a [`graph::Graph`], [`schedule::run`] passes on it, which verifies
//! every order with [`verify`], and [`report`] the result. ARCHITECTURE.md in the repository says
//! what each part is and must not know. The library does no I/O and reads no clock.

// The test programs are made through the crate's own name, inside and outside of it.
#[cfg(test)]
extern crate self as halflap;
#[cfg(test)]
#[path = "../tests/common/modules.rs"]
#[allow(dead_code, missing_docs)]
mod test_modules;
#[cfg(test)]
#[path = "../tests/common/orders.rs"]
#[allow(missing_docs)]
mod test_orders;
#[cfg(test)]
use test_modules as modules;
#[cfg(test)]
#[path = "../tests/common/random.rs"]
#[allow(dead_code, missing_docs)]
mod test_programs;

pub mod align;
pub mod cost;
pub mod explain;
pub mod graph;
pub mod hlo;
pub mod ids;
pub mod import;
pub mod measured;
pub mod memory;
mod nearest;
pub mod observe;
pub mod optimize;
pub mod order;
pub mod overlap;
pub mod pass;
pub mod plan;
pub mod program;
mod random;
pub mod report;
pub mod schedule;
pub mod simulate;
pub mod trust;
pub mod units;
pub mod verify;

pub use nearest::{Unknown, nearest};

/// The example in README.md, compiled.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
