//! Overlap: how much compute hides a collective in an order.
//!
//! The overlap of a collective is the run time of the operations other than collectives after it,
//! up to the first of
//! - an operation that waits for it to end: a reader of its output, handed out or not,
//! - a synchronous collective,
//! - the wait of a collective on the same stream that was issued after it.
//!
//! A wait has the overlap of its collective, the last issued one if it has several, so that both
//! ends of a pair give one number. That is [`Fidelity::Fixed`]. [`Fidelity::Torch`] keeps torch's
//! two rules, which differ from it and from each other; they are spelled out at
//! `torch_of_collective` and `torch_of_wait`.
//!
//! A measurement costs time in proportion to its window.

use std::ops::Range;

use crate::cost::Times;
use crate::graph::{Assignment, Edges, Graph, OpKind, Streams};
use crate::ids::{Id, IdVec, OpId, Pos};
use crate::order::Order;
use crate::units::Nanos;

/// Whether a pass behaves exactly as torch's does, bugs included, or as it was meant to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fidelity {
    /// Exactly as torch 2.10 does (`simple_overlap`: torch 2.15).
    Torch,
    /// With torch's known bugs fixed.
    Fixed,
}

/// The run times that count, and the rule.
#[derive(Clone, Debug)]
pub struct Overlap<'g> {
    graph: &'g Graph,
    streams: Streams,
    fidelity: Fidelity,
    times: IdVec<OpId, Nanos>,
    /// Whether times can be added in any sequence without rounding. If not, a sum is recomputed in
    /// torch's order, to decide as torch does.
    exact: bool,
}

/// What comes after a collective in an order.
struct After<'a> {
    order: &'a Order,
    collective: OpId,
    /// Who reads the collective.
    readers: &'a [OpId],
}

/// How much of a collective is hidden.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Hiding {
    /// The collective or wait that was measured.
    pub of: OpId,
    /// The collective's run time.
    pub comm_time: Nanos,
    /// The run time that hides it.
    pub comp_time: Nanos,
    /// Where that time is spent; empty, if there is no collective to hide.
    window: Option<HidingWindow>,
}

/// The places whose operations hide a collective.
#[derive(Clone, Debug, PartialEq)]
struct HidingWindow {
    places: Range<Pos>,
    counts_collectives: bool,
}

impl Hiding {
    /// The exposed part of the collective; negative if there is compute to spare.
    #[inline]
    pub fn exposed(&self) -> Nanos {
        self.comm_time - self.comp_time
    }
}

impl<'g> Overlap<'g> {
    /// Measures with these run times.
    pub fn new(graph: &'g Graph, times: &Times, fidelity: Fidelity) -> Overlap<'g> {
        let times: IdVec<OpId, Nanos> = graph.ops().map(|op| times.of(op)).collect();
        Overlap {
            graph,
            streams: Streams::assign(graph, Assignment::SharedRanks),
            fidelity,
            exact: sums_are_exact(&times),
            times,
        }
    }

    /// The run time of an operation.
    #[inline]
    pub fn time(&self, op: OpId) -> Nanos {
        self.times[op]
    }

    /// What hides a collective, seen from it.
    pub fn of_collective(&self, order: &Order, collective: OpId) -> Hiding {
        match self.fidelity {
            Fidelity::Torch => self.torch_of_collective(order, collective),
            Fidelity::Fixed => self.fixed_of_collective(order, collective),
        }
    }

    /// What hides a wait's collective, seen from the wait.
    pub fn of_wait(&self, order: &Order, wait: OpId) -> Hiding {
        if self.fidelity == Fidelity::Torch {
            return self.torch_of_wait(order, wait);
        }
        let last_issued = self
            .graph
            .waits_for(wait)
            .iter()
            .copied()
            .max_by_key(|&collective| order.pos(collective));
        match last_issued {
            Some(collective) => Hiding { of: wait, ..self.of_collective(order, collective) },
            None => {
                Hiding { of: wait, comm_time: Nanos::ZERO, comp_time: Nanos::ZERO, window: None }
            }
        }
    }

    /// What hides a collective, or a wait's collective.
    pub fn of(&self, order: &Order, op: OpId) -> Hiding {
        match self.graph.kind(op) {
            OpKind::Wait => self.of_wait(order, op),
            _ => self.of_collective(order, op),
        }
    }

    /// Keeps a measurement up to date after a swap put `neighbour` directly next to its subject:
    /// after a collective, or before a wait. Compute adds its run time; for all else it is
    /// recomputed.
    pub fn follow(&self, order: &Order, neighbour: OpId, hiding: &mut Hiding) {
        let op = hiding.of;
        let is_wait = self.graph.kind(op) == OpKind::Wait;
        if !self.exact
            || self.graph.kind(neighbour) != OpKind::Compute
            || (is_wait && self.reads(neighbour, op))
        {
            *hiding = self.of(order, op);
            return;
        }
        let Some(window) = &mut hiding.window else { return };
        let Range { start, end } = window.places;
        let (at, next) = (order.pos(neighbour), Pos::from_index(order.pos(neighbour).index() + 1));
        window.places = match is_wait {
            // The window had ended before.
            true if end != at => return,
            true => start..next,
            false => at..end,
        };
        hiding.comp_time += self.times[neighbour];
        debug_assert_eq!(*hiding, self.of(order, op));
    }

    /// Whether `op` reads what `wait` waits for.
    fn reads(&self, op: OpId, wait: OpId) -> bool {
        let needed = self.graph.gated_by(op);
        self.graph.waits_for(wait).iter().any(|collective| needed.binary_search(collective).is_ok())
    }

    /// The operations that hide it, in their order.
    pub fn hidden_by(&self, order: &Order, hiding: &Hiding) -> Vec<OpId> {
        let Some(window) = &hiding.window else { return Vec::new() };
        let counts = |op| window.counts_collectives || !self.graph.kind(op).is_collective();
        let ops = order.slice(window.places.clone());
        let mut hidden_by = Vec::with_capacity(ops.len());
        hidden_by
            .extend(ops.iter().copied().filter(|&op| counts(op) && self.times[op] > Nanos::ZERO));
        hidden_by
    }

    /// The fixed rule: see the head of this file.
    fn fixed_of_collective(&self, order: &Order, collective: OpId) -> Hiding {
        let start = order.pos(collective);
        let stream = self.streams.of(collective);
        let issued_later =
            |&other: &OpId| order.pos(other) > start && self.streams.of(other) == stream;
        let after = After { order, collective, readers: self.graph.gates(collective) };
        self.until(after, |op, kind| match kind {
            OpKind::SyncCollective => true,
            OpKind::Wait => self.graph.waits_for(op).iter().any(issued_later),
            OpKind::Compute | OpKind::AsyncCollective | OpKind::MultiOutput => false,
        })
    }

    /// Torch's rule seen from a collective: up to a real reader, a synchronous collective, or a
    /// wait that depends on it for order alone and comes after another asynchronous collective.
    /// (The intent was the wait of that other one; the test is on the wrong variable.)
    fn torch_of_collective(&self, order: &Order, collective: OpId) -> Hiding {
        let counts = |edges| self.graph.succs(collective, edges).len();
        let has_order_only = counts(Edges::All) > counts(Edges::Real);
        let mut other_found = false;
        let after = After { order, collective, readers: self.graph.succs(collective, Edges::Real) };
        self.until(after, |op, kind| match kind {
            OpKind::SyncCollective => true,
            OpKind::AsyncCollective => {
                other_found = true;
                false
            }
            OpKind::Wait => has_order_only && other_found && self.depends(op, collective),
            OpKind::Compute | OpKind::MultiOutput => false,
        })
    }

    /// From after a collective to its first reader, or to the first operation that `ends`.
    #[inline(always)]
    fn until(&self, after: After<'_>, mut ends: impl FnMut(OpId, OpKind) -> bool) -> Hiding {
        let After { order, collective, readers } = after;
        let start = order.pos(collective).index() + 1;
        let read = readers
            .iter()
            .map(|&reader| order.pos(reader).index())
            .min()
            .unwrap_or(order.len())
            .max(start);
        let (mut end, mut comp_time) = (start, Nanos::ZERO);
        for &op in &order.as_slice()[start..read] {
            let kind = self.graph.kind(op);
            if ends(op, kind) {
                break;
            }
            if !kind.is_collective() {
                comp_time += self.times[op];
            }
            end += 1;
        }
        let places = Pos::from_index(start)..Pos::from_index(end);
        let window = Some(HidingWindow { places, counts_collectives: false });
        Hiding { of: collective, comm_time: self.times[collective], comp_time, window }
    }

    /// Torch's rule seen from a wait: from after the nearest collective that it depends on in any
    /// way, or from the start, with no communication to hide. Walking back to it, a synchronous
    /// collective, or an asynchronous one with a wait in between, restarts the sum; and
    /// asynchronous collectives count as compute, including the one that restarted it.
    fn torch_of_wait(&self, order: &Order, wait: OpId) -> Hiding {
        // An order-only edge may be broken by now: only what comes before the wait is found.
        let before =
            |op: &OpId| self.graph.kind(*op).is_collective() && order.pos(*op) < order.pos(wait);
        let depends_on = self.graph.preds(wait, Edges::All).iter().copied();
        let collective = depends_on.filter(before).max_by_key(|&op| order.pos(op));
        let window = self.torch_window_of_wait(order, wait, collective);
        // Backwards, the order in which torch adds.
        let ops = order.slice(window.places.clone()).iter().rev();
        Hiding {
            of: wait,
            comm_time: collective.map_or(Nanos::ZERO, |op| self.times[op]),
            comp_time: ops.map(|&op| self.times[op]).sum(),
            window: Some(window),
        }
    }

    fn torch_window_of_wait(
        &self,
        order: &Order,
        wait: OpId,
        collective: Option<OpId>,
    ) -> HidingWindow {
        let start = collective.map_or(0, |op| order.pos(op).index() + 1);
        let end = order.pos(wait);
        let waited_before_end = |op: OpId| {
            let waits = self
                .graph
                .succs(op, Edges::All)
                .iter()
                .filter(|&&succ| self.graph.kind(succ) == OpKind::Wait);
            waits.map(|&wait| order.pos(wait)).any(|pos| order.pos(op) < pos && pos < end)
        };
        let ops = &order.as_slice()[start..end.index()];
        let restart = ops.iter().position(|&op| match self.graph.kind(op) {
            OpKind::SyncCollective => true,
            OpKind::AsyncCollective => waited_before_end(op),
            OpKind::Compute | OpKind::Wait | OpKind::MultiOutput => false,
        });
        let length = match restart {
            Some(at) if self.graph.kind(ops[at]) == OpKind::AsyncCollective => at + 1,
            Some(at) => at,
            None => ops.len(),
        };
        HidingWindow {
            places: Pos::from_index(start)..Pos::from_index(start + length),
            counts_collectives: true,
        }
    }

    fn depends(&self, op: OpId, on: OpId) -> bool {
        self.graph.preds(op, Edges::All).binary_search(&on).is_ok()
    }
}

/// Integers whose total a float can hold exactly: every partial sum is one, too.
fn sums_are_exact(times: &IdVec<OpId, Nanos>) -> bool {
    const MOST: f64 = (1u64 << 53) as f64;
    let times = times.as_slice();
    times.iter().all(|time| time.0.fract() == 0.0)
        && times.iter().map(|time| time.0).sum::<f64>() < MOST
}
