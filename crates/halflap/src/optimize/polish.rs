//! More slack where it is free: each collective as early as it can start, each wait as late as it
//! can be, without a longer step.
//!
//! The effect of a move on slack is found by running the order again from there until nothing
//! changes any more: moves that change little cost little, however long the order is.

use super::anneal::Found;
use super::board::{Board, Move};
use super::program::Program;
use crate::graph::OpKind;

/// What a move must gain, in nanoseconds: less is rounding.
const LEAST: f64 = 1e-3;

/// The same order with more slack.
pub(super) fn polished(program: &Program, order: &[u32], limit: i64) -> Found {
    let mut board = Board::new(program, order.to_vec());
    if board.excess(limit) == 0 {
        let mut polish = Polish::new(program, board, limit);
        polish.stretch_all();
        board = polish.board;
    }
    Found { peak: board.peak(), order: board.order }
}

/// The board's times are up to date everywhere, except for tails.
struct Polish<'p> {
    program: &'p Program,
    board: Board<'p>,
    limit: i64,
    /// The longest allowed step.
    step_time: f64,
    /// The slack of every operation.
    slack: Vec<f64>,
    /// Its value before a move.
    before: Vec<(usize, f64)>,
}

impl<'p> Polish<'p> {
    fn new(program: &'p Program, mut board: Board<'p>, limit: i64) -> Polish<'p> {
        let step_time = board.step_time();
        let slack = (0..program.len).map(|op| board.slack_of(op)).collect();
        Polish { program, board, limit, step_time, slack, before: Vec::new() }
    }

    fn stretch_all(&mut self) {
        for place in 0..self.program.len {
            if self.kind_at(place) == OpKind::AsyncCollective {
                self.stretch(place, self.board.room(place).0);
            }
        }
        for place in (0..self.program.len).rev() {
            if self.kind_at(place) == OpKind::Wait {
                self.stretch(place, self.board.room(place).1);
            }
        }
    }

    fn kind_at(&self, place: usize) -> OpKind {
        self.program.ops[self.board.order[place] as usize].kind
    }

    /// Moves towards a place, all the way or part of it, if that leaves more slack.
    fn stretch(&mut self, from: usize, goal: usize) {
        for to in [goal, from.midpoint(goal), (3 * from + goal) / 4] {
            let step = Move { from, to };
            if to == from
                || !self.board.fits(step, self.limit)
                || self.board.ask_time(step, self.step_time) > self.step_time
            {
                continue;
            }
            if self.gained(step) > LEAST {
                return;
            }
            self.undo(step);
        }
    }

    /// Makes a move; returns the slack that it gains.
    fn gained(&mut self, step: Move) -> f64 {
        self.board.make(step);
        let same_from = self.board.rerun(step);
        self.before.clear();
        let mut gained = 0.0;
        for place in step.from.min(step.to)..same_from {
            let op = self.board.order[place];
            let waits_for = self.program.gated_by(&self.program.ops[op as usize]);
            for op in waits_for.iter().copied().chain([op]).map(|op| op as usize) {
                let now = self.board.slack_of(op);
                gained += now - self.slack[op];
                self.before.push((op, self.slack[op]));
                self.slack[op] = now;
            }
        }
        gained
    }

    fn undo(&mut self, Move { from, to }: Move) {
        let back = Move { from: to, to: from };
        self.board.make(back);
        self.board.rerun(back);
        // The first note about an operation holds its original value.
        for &(op, slack) in self.before.iter().rev() {
            self.slack[op] = slack;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::Times;
    use crate::graph::Edges;
    use crate::simulate::Machine;
    use crate::test_programs::{self, Random};

    /// The slack that is kept up to date is the slack of the whole order, and it grows.
    #[test]
    fn slack_grows_and_the_step_does_not() {
        let mut grown = 0;
        for seed in 0..300 {
            let graph = test_programs::graph(&mut Random(seed), 60);
            let machine = Machine::new(&graph, Times::given(&graph).unwrap());
            let program = Program::new(&graph, &machine, Edges::Real);
            let order: Vec<u32> = (0..graph.len() as u32).collect();
            let mut before = Board::new(&program, order.clone());
            let (limit, slack, step_time) = (before.peak(), before.slack(), before.step_time());
            let found = polished(&program, &order, limit);
            let mut after = Board::new(&program, found.order);
            assert!(after.peak() <= limit && after.step_time() <= step_time + 1e-6, "seed {seed}");
            assert!(after.slack() >= slack - 1e-6, "seed {seed}");
            grown += usize::from(after.slack() > slack + 1.0);
            let mut polish = Polish::new(&program, before, limit);
            polish.stretch_all();
            let kept: f64 = polish.slack.iter().sum();
            assert!((kept - after.slack()).abs() < 1e-6 * kept.max(1.0), "seed {seed}");
        }
        assert!(grown > 50, "only {grown} grew");
    }
}
