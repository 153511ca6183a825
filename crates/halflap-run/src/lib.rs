//! Runs HLO modules: arrays, kernels for every instruction that computes, and a plain evaluation of
//! whole modules on all their ranks.
//!
//! [`tensor`] is memory with a type. [`kernel`] makes of an instruction, a fusion or a group of
//! instructions something that can run on any thread without allocating. [`evaluate`] runs a module
//! on all ranks in lock-step in one thread: the oracle of whatever runs it faster.

pub mod evaluate;
pub mod kernel;
pub mod tensor;
