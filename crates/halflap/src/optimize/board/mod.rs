//! The board: an order in time and in memory, on which operations can be moved.
//!
//! Evaluating a move costs its length, not the length of the order.
//!
//! *Time.* The step time is a longest path. Before the move it is unchanged; after it, the rest of
//! the order depends on a few numbers, whose longest paths to the end of the step are kept.
//! Forward, for every place: `now`, when the compute stream reaches it, and `free`, when each
//! communication stream is free. Backward: `tail_now` and `tail_free`, the longest paths from there
//! to the end, and for each operation `tail`, from its start. A collective is under way from its
//! place to its gates, the operations that need it. A cut through the order then gives the step
//! time: the largest of `now` and `free` with their tails, and of every collective under way across
//! the cut with its end and the tail of its gate.
//!
//! *Memory.* Only levels between the two places change, and only the buffers that the moved
//! operation uses can change who frees them.
//!
//! Times are updated only where they are needed: forward up to the first place of a move, backward
//! down to just after its last one. So moves that follow each other along the order cost their own
//! lengths, wherever they are.
//!
//! Invariants: `order[pos[op]] == op`. `now` and `free` are valid up to the place `ahead`, and so
//! are the ends of operations before it; tails are valid from the place `behind` on. Levels are
//! valid everywhere. Only `make`, `drag` with `settle` or `undo`, `enter` and `reach` write.

mod memory;
mod time;

pub(super) use memory::OverLimit;

use std::ops::Range;

use super::program::Program;
use crate::graph::OpKind;

/// A move of the operation at `from` to `to`; those in between close up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Move {
    pub(super) from: usize,
    pub(super) to: usize,
}

impl Move {
    fn first(self) -> usize {
        self.from.min(self.to)
    }

    fn last(self) -> usize {
        self.from.max(self.to)
    }
}

/// See the module's documentation.
pub(super) struct Board<'p> {
    program: &'p Program,
    pub(super) order: Vec<u32>,
    pos: Vec<u32>,
    /// The places that moves stay in.
    region: Range<usize>,
    /// Up to where times are up to date, and from where on tails are.
    ahead: usize,
    behind: usize,
    now: Vec<f64>,
    free: Vec<f64>,
    end: Vec<f64>,
    tail_now: Vec<f64>,
    tail_free: Vec<f64>,
    tail: Vec<f64>,
    /// What is alive while the operation at each place runs.
    level: Vec<i64>,
    /// What each operation frees.
    freed: Vec<i64>,
    /// The collectives that may be under way across a cut in the region, by place.
    under_way: Vec<u32>,
    /// How many operations were visited so far: the cost of the work, the same on every machine.
    pub(super) work: u64,
    trial: time::Trial,
    breaks: Vec<memory::Break>,
    levels: Vec<i64>,
    dragged: Vec<u32>,
    held: memory::SpanBefore,
}

impl<'p> Board<'p> {
    pub(super) fn new(program: &'p Program, order: Vec<u32>) -> Board<'p> {
        let (len, streams) = (program.len, program.streams);
        let mut pos = vec![0; len];
        for (place, &op) in order.iter().enumerate() {
            pos[op as usize] = place as u32;
        }
        let mut board = Board {
            program,
            order,
            pos,
            region: 0..len,
            ahead: 0,
            behind: len,
            now: vec![0.0; len + 1],
            free: vec![0.0; (len + 1) * streams],
            end: vec![0.0; len],
            tail_now: vec![0.0; len + 1],
            tail_free: vec![0.0; (len + 1) * streams],
            tail: vec![0.0; len],
            level: vec![0; len],
            freed: vec![0; len],
            under_way: Vec::new(),
            work: 0,
            trial: time::Trial::new(len, streams),
            breaks: Vec::new(),
            levels: Vec::new(),
            dragged: Vec::new(),
            held: memory::SpanBefore::default(),
        };
        board.account();
        board.find_under_way();
        board
    }

    /// Restricts moves to this region from now on.
    pub(super) fn enter(&mut self, region: &Range<usize>) {
        self.region = region.clone();
        self.find_under_way();
    }

    fn find_under_way(&mut self) {
        let Range { start: first, end } = self.region;
        let (program, pos) = (self.program, &self.pos);
        let spans = |op: &u32| {
            let mut gates = program.gates(&program.ops[*op as usize]).iter();
            (pos[*op as usize] as usize) < end
                && gates.any(|&gate| pos[gate as usize] as usize >= first)
        };
        self.under_way.clear();
        self.under_way.extend(program.asynchronous.iter().copied().filter(spans));
        self.under_way.sort_unstable_by_key(|&op| pos[op as usize]);
    }

    /// The first and last place in the region where the operation at `from` could go.
    pub(super) fn room(&self, from: usize) -> (usize, usize) {
        let op = self.order[from] as usize;
        let Range { start: first, end } = self.region;
        let after = self
            .program
            .preds
            .of(op)
            .iter()
            .map(|&pred| self.pos[pred as usize] as usize + 1)
            .max();
        let before =
            self.program.succs.of(op).iter().map(|&succ| self.pos[succ as usize] as usize).min();
        (after.unwrap_or(0).max(first), before.unwrap_or(usize::MAX).min(end) - 1)
    }

    /// Makes a move.
    pub(super) fn make(&mut self, step: Move) {
        let moved = self.order[step.from] as usize;
        let (first, last) = (step.first(), step.last());
        self.move_memory(step);
        if step.to > step.from {
            self.order[first..=last].rotate_left(1);
        } else {
            self.order[first..=last].rotate_right(1);
        }
        for place in first..=last {
            self.pos[self.order[place] as usize] = place as u32;
        }
        self.outdate(step);
        if self.program.ops[moved].kind == OpKind::AsyncCollective {
            self.sort_under_way();
        }
    }

    /// Keeps what `drag` did in the span of a move.
    pub(super) fn settle(&mut self, span: Move) {
        self.outdate(span);
        self.sort_under_way();
    }

    /// Operations in a span changed places: times are out of date from there on, tails up to there.
    fn outdate(&mut self, span: Move) {
        self.ahead = self.ahead.min(span.first());
        self.behind = self.behind.max(span.last() + 1);
    }

    /// Moves an operation to a place that its dependencies rule out, and takes along the operations
    /// in the way, if levels stay within a limit. Returns whether it did; then it must be settled
    /// or undone.
    pub(super) fn drag(&mut self, step: Move, limit: i64) -> bool {
        // If everything there is bound together, it is where it should be.
        if !self.find_dragged(step) || self.dragged.len() > step.last() - step.first() {
            return false;
        }
        let pos = &self.pos;
        self.dragged.sort_unstable_by_key(|&op| pos[op as usize]);
        self.hold(step);
        self.arrange(step);
        self.hand_over_frees();
        let fits = self.account_span(step, limit);
        if !fits {
            self.undo(step);
        }
        fits
    }

    /// Moves everything that is dragged to one end of the span of a move, and the rest to the
    /// other.
    fn arrange(&mut self, step: Move) {
        let (first, count) = (step.first(), self.dragged.len());
        let others = self.held.order.len() - count;
        let (mut dragged_to, mut other_to) =
            if step.to < step.from { (first, first + count) } else { (first + others, first) };
        let mut dragged = self.dragged.iter().copied().peekable();
        for &op in &self.held.order {
            let to = match dragged.next_if_eq(&op) {
                Some(_) => &mut dragged_to,
                None => &mut other_to,
            };
            self.order[*to] = op;
            self.pos[op as usize] = *to as u32;
            *to += 1;
        }
    }

    /// Reverts what `drag` did.
    pub(super) fn undo(&mut self, step: Move) {
        for (place, &op) in (step.first()..).zip(&self.held.order) {
            self.order[place] = op;
            self.pos[op as usize] = place as u32;
        }
        self.take_back_memory(step);
    }

    /// The operation, and everything between it and the place that is tied to it by dependencies.
    fn find_dragged(&mut self, step: Move) -> bool {
        const MOST: usize = 10;
        let earlier = step.to < step.from;
        let bound = if earlier { &self.program.preds } else { &self.program.succs };
        self.dragged.clear();
        self.dragged.push(self.order[step.from]);
        let mut next = 0;
        while next < self.dragged.len() {
            for &other in bound.of(self.dragged[next] as usize) {
                let place = self.pos[other as usize] as usize;
                let in_between = if earlier { place >= step.to } else { place <= step.to };
                if in_between && !self.dragged.contains(&other) {
                    self.dragged.push(other);
                }
            }
            if self.dragged.len() > MOST {
                return false;
            }
            next += 1;
        }
        true
    }

    /// One operation was moved: a single insertion pass restores the order.
    fn sort_under_way(&mut self) {
        let (pos, list) = (&self.pos, &mut self.under_way);
        for index in 1..list.len() {
            let mut at = index;
            while at > 0 && pos[list[at - 1] as usize] > pos[list[at] as usize] {
                list.swap(at - 1, at);
                at -= 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::Times;
    use crate::graph::{Edges, Graph};
    use crate::ids::{Id, OpId};
    use crate::memory::Timeline;
    use crate::optimize::program::Program;
    use crate::order::Order;
    use crate::simulate::{Machine, simulate};

    use crate::test_programs::{self, Random};

    struct Truth<'a> {
        graph: &'a Graph,
        machine: &'a Machine,
    }

    impl Truth<'_> {
        /// The board against the simulator and the full account of memory.
        fn check(&self, board: &mut Board<'_>, step_time: f64) {
            assert_eq!(board.step_time(), step_time);
            let ops: Vec<OpId> =
                board.order.iter().map(|&op| OpId::from_index(op as usize)).collect();
            assert_eq!(simulate(self.graph, &ops, self.machine).step_time.0, step_time);
            let order = Order::from_ops(self.graph.len(), ops).unwrap();
            let truth = Timeline::of(self.graph, &order);
            assert_eq!(truth.peak.0, board.peak());
            for (place, &op) in order.as_slice().iter().enumerate() {
                assert_eq!(truth.levels[op].post_alloc.0, board.level[place]);
            }
        }
    }

    /// Random moves and drags in random regions: what was asked is what happens.
    #[test]
    fn answers_are_what_moves_do() {
        let mut moved = 0;
        for seed in 0..600 {
            let random = &mut Random(seed);
            // Whole numbers, so that a path has one length whichever way it is added up.
            let graph = test_programs::graph(random, 50);
            let whole = |op: OpId, _| match graph.kind(op) {
                crate::graph::OpKind::MultiOutput => crate::units::Nanos::ZERO,
                _ => crate::units::Nanos((op.index() * 37 % 11) as f64),
            };
            if graph.len() < 2 {
                continue;
            }
            let machine = Machine::new(&graph, Times::given(&graph).unwrap().map(whole));
            let program = Program::new(&graph, &machine, Edges::Real);
            let mut board = Board::new(&program, (0..graph.len() as u32).collect());
            let truth = Truth { graph: &graph, machine: &machine };
            let step_time = board.step_time();
            truth.check(&mut board, step_time);
            for _ in 0..6 {
                let first = random.below(graph.len() - 1);
                let region = first..first + 2 + random.below(graph.len() - first - 1);
                board.enter(&region);
                for _ in 0..10 {
                    moved += usize::from(try_one(&mut board, random, &region, &truth));
                }
            }
        }
        assert!(moved > 5_000, "only {moved} moves");
    }

    fn try_one(
        board: &mut Board<'_>,
        random: &mut Random,
        region: &Range<usize>,
        truth: &Truth<'_>,
    ) -> bool {
        let from = region.start + random.below(region.len());
        if random.chance(30) {
            let step = Move { from, to: region.start + random.below(region.len()) };
            let before = (board.step_time(), board.order.clone(), board.level.clone());
            let limit = board.peak() + random.below(3) as i64 * 1000 - 1000;
            let is_dragged = board.drag(step, limit);
            if is_dragged && random.chance(50) {
                board.undo(step);
            } else if is_dragged {
                assert!(board.peak_between(step.first(), step.last()) <= limit);
                let asked = board.ask_unsettled(step, before.0);
                board.settle(step);
                truth.check(board, asked);
                return true;
            }
            assert_eq!((board.step_time(), board.order.clone(), board.level.clone()), before);
            truth.check(board, before.0);
            return false;
        }
        let (low, high) = board.room(from);
        let to = low + random.below(high - low + 1);
        if to == from {
            return false;
        }
        let step = Move { from, to };
        let excess = board.excess(1000) + board.ask_excess(step, 1000);
        let known = board.step_time();
        let (time, peak) = (board.ask_time(step, known), board.ask_peak(step));
        board.make(step);
        assert_eq!(board.peak_between(step.first(), step.last()), peak);
        assert_eq!(board.excess(1000), excess);
        truth.check(board, time);
        assert_eq!(board.step_time(), time);
        true
    }
}
