//! Compares the ledger with the full account after a swap.

use super::{FreeTransfer, Ledger, Timeline};
use crate::graph::Graph;
use crate::ids::OpId;
use crate::order::Order;
use crate::units::Bytes;

/// A wrong ledger, or an order that needs more than the ledger allowed, with details of the swap
/// after which it was noticed.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct LedgerMismatch {
    /// The order after the swap.
    pub order: Order,
    /// The operation that was swapped with the group.
    pub candidate: OpId,
    /// The operations that moved, first to last.
    pub group: Vec<OpId>,
    /// The first operation whose figures are wrong; `None` if only the peak is.
    pub first: Option<OpId>,
    /// The frees that moved to another operation in the swap, by the ledger.
    pub transfers: Vec<FreeTransfer>,
    /// The peak of the order that the pass was given.
    pub base: Bytes,
    /// What the pass may use.
    pub limit: Bytes,
    /// The ledger's figures.
    pub ledger: Ledger,
    /// The true figures.
    pub truth: Timeline,
}

/// Compares every operation's `post_alloc` and `post_free`, and the peak with its limit.
/// Gives the first operation that differs, or `None` in its place where only the peak is exceeded.
pub fn compare(
    graph: &Graph,
    order: &Order,
    ledger: &Ledger,
    limit: Bytes,
) -> Result<(), (Option<OpId>, Timeline)> {
    let truth = Timeline::of(graph, order);
    let differs = |op: &&OpId| {
        let (books, level) = (ledger.level(**op), truth.levels[**op]);
        books.post_alloc != level.post_alloc || books.post_free() != level.post_free()
    };
    match order.as_slice().iter().find(differs) {
        Some(&op) => Err((Some(op), truth)),
        None if truth.peak > limit => Err((None, truth)),
        None => Ok(()),
    }
}
