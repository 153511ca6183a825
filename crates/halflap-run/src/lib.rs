//! Runs HLO modules: arrays, kernels for every instruction that computes, plans on ranks that
//! communicate, and a plain evaluation of whole modules.
//!
//! [`tensor`] is memory with a type. [`kernel`] compiles an instruction, a fusion or a group of
//! instructions to run on any thread without allocating. [`exec`] runs a plan on ranks that have
//! streams, with [`comm`] between them, and [`check`] optionally checks it. [`evaluate`] runs a
//! module on all ranks in lock-step in one thread: the reference for the faster executor.
//! [`process`] runs it in other processes.

mod address;
pub mod check;
pub mod comm;
pub mod evaluate;
pub mod exec;
mod failure;
pub mod interrupt;
pub mod kernel;
mod prepare;
pub mod process;
mod slice;
mod sync;
pub mod tensor;
