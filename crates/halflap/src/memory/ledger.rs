//! The ledger: a [`Timeline`] that follows swaps of neighbouring blocks.
//!
//! A swap exchanges a group of operations with one neighbour, the candidate. Only two things can
//! change: the level of the two, and which of them frees a buffer that both use: that free moves to
//! the one that now comes last. Invariant, for neighbours `op`, `next` in the order:
//! `level(next).before() == level(op).post_free()`.
//!
//! [`Ledger::quote`] and [`Ledger::commit`] cost the size of the blocks and of what the candidate
//! uses, never the size of the graph. While no free changes hands, a quote is a few loads.

use super::{Level, Timeline};
use crate::graph::Graph;
use crate::ids::{BufId, IdVec, OpId};
use crate::order::{Block, Direction, Order};
use crate::units::Bytes;

/// Where the freeable inputs are charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InputCharge {
    /// To no operation: they are alive before the first one.
    Baseline,
    /// To the operation that is first when the ledger is opened, and they move with it: torch.
    FirstOperation,
}

/// A swap under consideration: `candidate` is next to `group`, on the side of `direction`.
#[derive(Clone, Copy, Debug)]
pub struct Swap<'a> {
    /// The program.
    pub graph: &'a Graph,
    /// The order before the swap.
    pub order: &'a Order,
    /// The operations that move in `direction`.
    pub group: &'a Block,
    /// The member of the group that is farthest from `candidate`.
    pub far_end: OpId,
    /// The operation that moves the other way.
    pub candidate: OpId,
    /// The direction in which the group moves.
    pub direction: Direction,
}

/// A free that a swap moves from one operation to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FreeTransfer {
    /// What is freed.
    pub buffer: BufId,
    /// The operation that frees it before the swap.
    pub from: OpId,
    /// The operation that frees it after the swap.
    pub to: OpId,
}

/// The effect of a swap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Quote {
    /// The largest `post_alloc` of group and candidate after the swap.
    pub peak: Bytes,
    /// The largest `post_alloc` of the group after the swap.
    pub group_peak: Bytes,
    /// By how much the group's levels shift, where no free changes hands.
    shift: Bytes,
    /// The candidate's `post_alloc` after the swap, where no free changes hands.
    post_alloc: Bytes,
}

/// The memory of every operation, kept up to date.
#[derive(Clone, Debug)]
pub struct Ledger {
    levels: IdVec<OpId, Level>,
    freed_by: IdVec<BufId, Option<OpId>>,
    peak_at_start: Bytes,
    /// The frees that the last quoted swap would move.
    transfers: Vec<FreeTransfer>,
    /// Scratch space for the levels of a swap that moves frees.
    swapped: Vec<(OpId, Level)>,
}

impl Ledger {
    /// Opens the ledger for an order.
    pub fn open(graph: &Graph, order: &Order, charge: InputCharge) -> Ledger {
        let Timeline { mut levels, freed_by, baseline, peak } = Timeline::of(graph, order);
        if let (InputCharge::FirstOperation, Some(&first)) = (charge, order.as_slice().first()) {
            levels[first].alloc += baseline;
        }
        Ledger { levels, freed_by, peak_at_start: peak, transfers: Vec::new(), swapped: Vec::new() }
    }

    /// The peak of the order that the ledger was opened for.
    pub fn peak_at_start(&self) -> Bytes {
        self.peak_at_start
    }

    /// The level of one operation.
    #[inline]
    pub fn level(&self, op: OpId) -> Level {
        self.levels[op]
    }

    /// The operation that frees a buffer, according to the ledger.
    #[inline]
    pub fn freed_by(&self, buffer: BufId) -> Option<OpId> {
        self.freed_by[buffer]
    }

    /// The frees that changed hands in the last swap.
    pub fn transfers(&self) -> &[FreeTransfer] {
        &self.transfers
    }

    /// What a swap would do, where no free can change hands and `group_peak` is the group's now.
    #[inline]
    pub fn quote(&mut self, swap: &Swap<'_>, group_peak: Bytes) -> Quote {
        self.transfers.clear();
        let (shift, post_alloc) = self.shifts(swap);
        let group_peak = group_peak + shift;
        Quote { peak: group_peak.max(post_alloc), group_peak, shift, post_alloc }
    }

    /// What a swap would do, where frees may change hands.
    pub fn quote_sharing(&mut self, swap: &Swap<'_>, group_peak: Bytes) -> Quote {
        let mut quote = self.quote(swap, group_peak);
        self.find_transfers(swap);
        if !self.transfers.is_empty() {
            self.account_swapped(swap);
            let post_allocs = |of_group: bool| {
                let counted =
                    self.swapped.iter().filter(move |(op, _)| !of_group || *op != swap.candidate);
                counted.map(|(_, level)| level.post_alloc).max()
            };
            quote.peak = post_allocs(false).unwrap_or(quote.peak);
            quote.group_peak = post_allocs(true).unwrap_or(quote.group_peak);
        }
        quote
    }

    /// Records the swap that was quoted last; call it before the order is rotated. Whether last
    /// users are updated is the caller's choice, because torch does not do so when a wait sinks.
    #[inline]
    pub fn commit(&mut self, swap: &Swap<'_>, quote: Quote, last_uses_follow: bool) {
        if !self.transfers.is_empty() {
            return self.commit_transfers(last_uses_follow);
        }
        for &op in swap.order.block(swap.group) {
            self.levels[op].post_alloc += quote.shift;
        }
        self.levels[swap.candidate].post_alloc = quote.post_alloc;
    }

    fn commit_transfers(&mut self, last_uses_follow: bool) {
        for &(op, level) in &self.swapped {
            self.levels[op] = level;
        }
        if last_uses_follow {
            for transfer in &self.transfers {
                self.freed_by[transfer.buffer] = Some(transfer.to);
            }
        }
    }

    /// By how much the group's levels shift, and the candidate's new `post_alloc`.
    #[inline(always)]
    fn shifts(&self, swap: &Swap<'_>) -> (Bytes, Bytes) {
        let (candidate, far_end) = (self.levels[swap.candidate], self.levels[swap.far_end]);
        match swap.direction {
            Direction::Earlier => (-candidate.delta(), far_end.post_free() + candidate.free),
            Direction::Later => (candidate.delta(), far_end.before() + candidate.alloc),
        }
    }

    /// Whether a swap would make a free change hands.
    pub fn transfers_free(&self, swap: &Swap<'_>) -> bool {
        swap.graph.uses(swap.candidate).iter().any(|&buffer| self.transfer(swap, buffer).is_some())
    }

    /// How a swap would make the free of a buffer that the candidate uses change hands: from the
    /// old last user to the new one, if one is the candidate and the other in the group.
    fn transfer(&self, swap: &Swap<'_>, buffer: BufId) -> Option<FreeTransfer> {
        let Swap { graph, order, group, candidate, direction, .. } = *swap;
        let from = self.freed_by[buffer]?;
        let to = match direction {
            Direction::Earlier => group.contains(order.pos(from)).then_some(candidate),
            Direction::Later if from != candidate => None,
            Direction::Later => {
                let in_group = graph
                    .users(buffer)
                    .iter()
                    .copied()
                    .filter(|&user| group.contains(order.pos(user)));
                in_group.max_by_key(|&user| order.pos(user))
            }
        };
        to.map(|to| FreeTransfer { buffer, from, to })
    }

    fn find_transfers(&mut self, swap: &Swap<'_>) {
        let mut transfers = std::mem::take(&mut self.transfers);
        transfers.clear();
        transfers.extend(
            swap.graph
                .uses(swap.candidate)
                .iter()
                .filter_map(|&buffer| self.transfer(swap, buffer)),
        );
        self.transfers = transfers;
    }

    /// Works out group and candidate in their new sequence, with the frees that change hands.
    fn account_swapped(&mut self, swap: &Swap<'_>) {
        let group = swap.order.block(swap.group);
        let candidate = std::slice::from_ref(&swap.candidate);
        let (leader, first, second) = match swap.direction {
            Direction::Earlier => (swap.candidate, group, candidate),
            Direction::Later => (swap.far_end, candidate, group),
        };
        self.swapped.clear();
        let mut alive = self.levels[leader].before();
        for &op in first.iter().chain(second) {
            let mut level = self.levels[op];
            for transfer in &self.transfers {
                let size = swap.graph.size_free(transfer.buffer);
                if transfer.from == op {
                    level.free -= size;
                }
                if transfer.to == op {
                    level.free += size;
                }
            }
            level.post_alloc = alive + level.alloc;
            alive = level.post_free();
            self.swapped.push((op, level));
        }
    }
}
