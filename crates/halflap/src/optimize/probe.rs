//! What moving one operation would save: the board's answers, for explanations.

use std::ops::RangeInclusive;

use super::board::{Board, Move};
use super::program::Program;
use crate::graph::{Edges, Graph};
use crate::ids::{Id, OpId, Pos};
use crate::order::Order;
use crate::units::{Bytes, Nanos};

/// On which side of its place other places are tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Earlier,
    Later,
}

/// What other places would save.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Worth {
    /// The most that is saved at a place within the limit.
    pub(crate) saved: Nanos,
    /// The smallest excess over the limit of a place that saves time, if memory alone rules out all
    /// such places.
    pub(crate) barred_by: Option<Bytes>,
    /// Where the most is saved.
    pub(crate) best: Option<Pos>,
}

/// An order whose operations can be tried at other places.
pub(crate) struct Probe<'a> {
    graph: &'a Graph,
    order: &'a Order,
    board: Board<'a>,
    step_time: f64,
    limit: Bytes,
}

/// How many places are tried on a side: all of them if there are no more, else evenly spaced ones.
const PLACES: usize = 48;

impl<'a> Probe<'a> {
    /// An order of a program within a limit.
    pub(crate) fn new(
        program: &'a Program,
        graph: &'a Graph,
        order: &'a Order,
        limit: Bytes,
    ) -> Probe<'a> {
        let ops = order.as_slice().iter().map(|op| op.index() as u32).collect();
        let mut board = Board::new(program, ops);
        Probe { graph, order, step_time: board.step_time(), board, limit }
    }

    /// What an operation would save at other places on that side that keep `edges`.
    pub(crate) fn worth(&mut self, op: OpId, side: Side, edges: Edges) -> Worth {
        let reach = self.reach(op, side, edges);
        self.try_at(op, side, 1..=reach)
    }

    /// What an operation would save at places on that side that only order-only edges rule out.
    pub(crate) fn worth_free(&mut self, op: OpId, side: Side) -> Worth {
        let [kept, free] = [Edges::All, Edges::Real].map(|edges| self.reach(op, side, edges));
        self.try_at(op, side, kept + 1..=free)
    }

    /// How many operations were visited so far.
    pub(super) fn work(&self) -> u64 {
        self.board.work
    }

    /// How far an operation can go alone.
    fn reach(&self, op: OpId, side: Side, edges: Edges) -> usize {
        let place = |&other: &OpId| self.order.pos(other).index();
        let from = place(&op);
        match side {
            Side::Earlier => {
                let last = self.graph.preds(op, edges).iter().map(place).max();
                last.map_or(from, |last| from - 1 - last)
            }
            Side::Later => {
                let next = self.graph.succs(op, edges).iter().map(place).min();
                next.unwrap_or(self.order.len()) - 1 - from
            }
        }
    }

    /// What an operation would save at these distances.
    fn try_at(&mut self, op: OpId, side: Side, away: RangeInclusive<usize>) -> Worth {
        let from = self.order.pos(op).index();
        let mut worth = Worth::default();
        for distance in spread(away) {
            let to = if side == Side::Earlier { from - distance } else { from + distance };
            let step = Move { from, to };
            let saved = self.step_time - self.board.ask_time(step, self.step_time);
            // Less than a nanosecond is rounding.
            if saved >= 1.0 {
                let over = Bytes(self.board.ask_peak(step)) - self.limit;
                worth.add(Pos::from_index(to), Nanos(saved), over);
            }
        }
        worth
    }
}

impl Worth {
    /// A place that saves time and exceeds the limit by at most this much.
    fn add(&mut self, place: Pos, saved: Nanos, over: Bytes) {
        if over > Bytes::ZERO {
            self.barred_by = Some(self.barred_by.map_or(over, |least| least.min(over)));
        } else if saved > self.saved {
            (self.saved, self.best) = (saved, Some(place));
        }
    }
}

/// All of a range, or as many of it as are tried, the last among them.
fn spread(range: RangeInclusive<usize>) -> impl Iterator<Item = usize> {
    let (start, count) = (*range.start(), range.count());
    let tried = count.min(PLACES);
    (1..=tried).map(move |index| start + index * count / tried - 1)
}
