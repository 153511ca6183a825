//! Memory: how much is alive at each operation of an order.
//!
//! Operations run one after the other. Each allocates its outputs (`post_alloc`), runs, and frees
//! the buffers that it is the last to use and its own unused outputs (`post_free`). Freeable inputs
//! are alive from the start. The peak is the largest `post_alloc`, and at least zero.
//!
//! [`Timeline`] computes that from scratch; [`Ledger`] follows swaps. The first checks the second.

mod budget;
mod check;
mod ledger;
mod timeline;

pub use budget::{BadBudget, Budget};
pub use check::{LedgerMismatch, compare};
pub use ledger::{FreeTransfer, InputCharge, Ledger, Quote, Swap};
pub use timeline::{Level, Timeline};
