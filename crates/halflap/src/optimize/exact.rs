//! Exact search for the smallest programs: visits every order that could still be better.

use super::program::Program;
use crate::graph::OpKind;

/// Up to this many operations, all orders can be visited.
pub(super) const MOST: usize = 10;

/// The order with the shortest step within the limit, if any order is within it.
pub(super) fn search(program: &Program, limit: i64) -> Option<Vec<u32>> {
    let mut tree = Tree {
        program,
        limit,
        best: (f64::INFINITY, None),
        order: Vec::new(),
        end: vec![0.0; program.len],
        missing: (0..program.len).map(|op| program.preds.of(op).len()).collect(),
        left: (0..program.size_free.len()).map(|buffer| program.users.of(buffer).len()).collect(),
    };
    let compute = (0..program.len).filter(|&op| program.ops[op].kind != OpKind::AsyncCollective);
    let to_compute = compute.map(|op| program.ops[op].time).sum();
    let state =
        State { now: 0.0, free: vec![0.0; program.streams], alive: program.baseline, to_compute };
    tree.descend(&state);
    tree.best.1
}

/// A partial order in time and memory.
#[derive(Clone)]
struct State {
    now: f64,
    free: Vec<f64>,
    alive: i64,
    /// The remaining work of the compute stream.
    to_compute: f64,
}

struct Tree<'p> {
    program: &'p Program,
    limit: i64,
    best: (f64, Option<Vec<u32>>),
    order: Vec<u32>,
    end: Vec<f64>,
    missing: Vec<usize>,
    /// How many users of each buffer have not run yet.
    left: Vec<usize>,
}

impl Tree<'_> {
    fn descend(&mut self, state: &State) {
        let ended = state.free.iter().copied().fold(state.now + state.to_compute, f64::max);
        if ended >= self.best.0 {
            return;
        }
        if self.order.len() == self.program.len {
            self.best = (ended, Some(self.order.clone()));
            return;
        }
        for op in 0..self.program.len {
            if self.missing[op] == 0 && !self.order.contains(&(op as u32)) {
                self.take(op, state);
            }
        }
    }

    fn take(&mut self, op: usize, state: &State) {
        let program = self.program;
        let alive = state.alive + program.alloc[op];
        if alive > self.limit {
            return;
        }
        let next = self.run(op, state, alive);
        self.order.push(op as u32);
        program.succs.of(op).iter().for_each(|&succ| self.missing[succ as usize] -= 1);
        self.descend(&next);
        program.succs.of(op).iter().for_each(|&succ| self.missing[succ as usize] += 1);
        program.uses.of(op).iter().for_each(|&buffer| self.left[buffer as usize] += 1);
        self.order.pop();
    }

    fn run(&mut self, op: usize, state: &State, alive: i64) -> State {
        let program = self.program;
        let mut next = State { alive: alive - program.free_self[op], ..state.clone() };
        for &buffer in program.uses.of(op) {
            self.left[buffer as usize] -= 1;
            if self.left[buffer as usize] == 0 {
                next.alive -= program.size_free[buffer as usize];
            }
        }
        let gates = program.gated_by(&program.ops[op]).iter();
        let ready = gates.fold(state.now, |ready, &gate| ready.max(self.end[gate as usize]));
        let stream = program.ops[op].stream as usize;
        let is_collective = program.ops[op].kind.is_collective();
        let ended = if is_collective { ready.max(state.free[stream]) } else { ready }
            + program.ops[op].time;
        self.end[op] = ended;
        if is_collective {
            next.free[stream] = ended;
        }
        if program.ops[op].kind != OpKind::AsyncCollective {
            next.now = ended;
            next.to_compute -= program.ops[op].time;
        }
        next
    }
}
