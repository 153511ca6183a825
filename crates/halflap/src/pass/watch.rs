//! An observer of every swap.

use crate::graph::Graph;
use crate::ids::OpId;
use crate::memory::{Ledger, LedgerMismatch, compare};
use crate::order::{Block, Order};
use crate::units::Bytes;

/// The state after a swap.
#[non_exhaustive]
pub struct SwapView<'a> {
    /// The program.
    pub graph: &'a Graph,
    /// The order after the swap.
    pub order: &'a Order,
    /// The ledger after the swap.
    pub ledger: &'a Ledger,
    /// The operations that moved.
    pub group: &'a Block,
    /// The operation that they passed.
    pub candidate: OpId,
    /// What the pass may use.
    pub limit: Bytes,
    /// How many operations have been slid before.
    pub slid: usize,
}

/// Sees every swap of a pass, and may end it.
pub trait Watch {
    /// Called after every swap.
    fn swapped(&mut self, view: &SwapView<'_>) -> Result<(), Box<LedgerMismatch>>;
}

/// No observer: costs nothing.
pub struct NoWatch;

impl Watch for NoWatch {
    #[inline]
    fn swapped(&mut self, _: &SwapView<'_>) -> Result<(), Box<LedgerMismatch>> {
        Ok(())
    }
}

/// Compares the ledger with the full account after every swap.
#[derive(Default)]
pub struct LedgerCheck<F> {
    /// Called after every swap that was found correct, with the number of operations slid before.
    pub on_swap: F,
}

impl<F: FnMut(usize)> Watch for LedgerCheck<F> {
    fn swapped(&mut self, view: &SwapView<'_>) -> Result<(), Box<LedgerMismatch>> {
        let SwapView { graph, order, ledger, group, candidate, limit, slid } = *view;
        compare(graph, order, ledger, limit).map_err(|(first, truth)| {
            Box::new(LedgerMismatch {
                order: order.clone(),
                candidate,
                group: order.block(group).to_vec(),
                first,
                transfers: ledger.transfers().to_vec(),
                base: ledger.peak_at_start(),
                limit,
                ledger: ledger.clone(),
                truth,
            })
        })?;
        (self.on_swap)(slid);
        Ok(())
    }
}
