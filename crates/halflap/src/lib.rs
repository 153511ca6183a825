//! halflap lets communication overlap with compute in distributed tensor programs, without adding
//! memory.
//!
//! A program is a [`workload::Workload`]: graphs that call each other. A captured graph is a
//! workload of one unit, an HLO module has one for each computation that runs.
//! [`workload::Workload::optimize`] finds the order of each that hides the most communication
//! within a memory limit, and [`verify`] proves it before it is returned.
//!
//! # A graph
//!
//! ```
//! use halflap::workload::{Model, Search, Workload};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let bytes = std::fs::read("../../tests/corpus/ddp_mlp_4.graph.json.gz")?;
//! let workload = Workload::from(halflap::import::read_graph(&bytes)?);
//! let decision = workload.optimize(&Model::default(), &Search::default())?;
//! let (step, peak) = (decision.step_time(), decision.peak());
//! assert!(step.after < step.before && peak.after <= peak.before);
//! let unit = &decision.units[0];
//! for &op in unit.result.order.as_slice() {
//!     println!("{} at {}", unit.priced.graph.name(op), unit.result.simulation.start[op]);
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # An HLO module
//!
//! ```
//! use halflap::cost::{Costs, Device};
//! use halflap_hlo::LoweredModule;
//! use halflap::workload::{Model, Search};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let bytes = std::fs::read("../../tests/hlo/fsdp_L2_scan.after_spmd_partitioning.txt.gz")?;
//! let module = halflap_hlo::read_module(&bytes)?;
//! let lowered = LoweredModule::of(&module)?;
//! let costs = Costs { device: Some(Device::named("h100")?), ..Costs::default() };
//! let model = Model { costs, ..Model::default() };
//! let decision = lowered.workload.optimize(&model, &Search::default())?;
//! println!("{} -> {}", decision.step_time().before, decision.step_time().after);
//! let text = lowered.text(&module, |unit| decision.order(unit))?;
//! # assert!(halflap::import::is_module(text.as_bytes()));
//! # Ok(())
//! # }
//! ```
//!
//! [`schedule`] runs torch's passes instead, [`explain`](mod@explain) says why communication is
//! still exposed; the crate `halflap-report` renders. ARCHITECTURE.md in the repository describes
//! each part and its dependencies. The library does no I/O and reads no clock.

// The test programs are made through the crate's own name, inside and outside of it.
#[cfg(test)]
extern crate self as halflap;
#[cfg(test)]
#[path = "../tests/common/random.rs"]
#[allow(dead_code, missing_docs)]
mod test_programs;

pub mod advise;
pub mod align;
pub mod collective;
pub mod cost;
pub mod evaluate;
pub mod explain;
pub mod export;
pub mod graph;
pub mod ids;
pub mod import;
pub mod improve;
pub mod memory;
mod nearest;
pub mod optimize;
pub mod order;
pub mod origin;
pub mod overlap;
pub mod pass;
mod random;
pub mod rewrite;
pub mod robustness;
pub mod schedule;
pub mod simulate;
pub mod units;
pub mod verify;
pub mod verify_rewrite;
pub mod workload;

pub use nearest::{Unknown, nearest};

/// The examples in docs/library.md, compiled.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/library.md")]
struct Library;
