//! The command as a user meets it: what it prints, what it writes, how it ends.

mod align;
#[path = "../common/mod.rs"]
mod common;
mod files;
mod optimizer;
mod orders;
mod passes;
mod times;

/// A pass that moves much.
const REORDER: &str = "reorder_communication_preserving_peak_memory";
