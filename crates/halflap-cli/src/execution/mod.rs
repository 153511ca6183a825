//! Commands that run modules, or programs of torch, and what they need of the runtime.

mod debug;
mod diff;
mod plan;
mod plans;
mod run;
mod same;

pub use debug::{remember_name, run as debug};
pub use diff::run as diff;
pub use plan::run as plan;
pub use run::run;
pub use same::compare;
