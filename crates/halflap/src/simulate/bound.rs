//! A lower bound on the step time of any order.
//!
//! Every stream is a machine that runs one operation at a time. An operation cannot start before its
//! head has passed: all that it depends on must have run, and what of that shares a machine ran one
//! after the other. Likewise its tail must pass after it. For operations with heads and tails on one
//! machine, letting the one with the longest tail run first and be interrupted (Jackson's rule) gives
//! a time that no order can beat.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use super::Machine;
use crate::graph::{Edges, Graph, OpKind};
use crate::ids::{Id, OpId};
use crate::units::Nanos;

/// Up to so many operations, all that each depends on is looked at, at a bit a pair; in longer
/// programs only the longest path to it.
const CLOSURES: usize = 30_000;

/// No order of the program has a shorter step on that machine, without contention and with a host
/// that takes no time: either only adds to it.
pub fn lower_bound(graph: &Graph, machine: &Machine) -> Nanos {
    let machines = machines(graph, machine);
    let time = |op: OpId| machine.times.of(op).0;
    let ops: Vec<OpId> = graph.ops().collect();
    let reversed: Vec<OpId> = graph.ops().rev().collect();
    let loads = Loads { graph, machine, machines: &machines };
    let head = loads.heads(&ops, |op| graph.preds(op, Edges::Real));
    let tail = loads.heads(&reversed, |op| graph.succs(op, Edges::Real));
    let path = ops.iter().map(|&op| head[op.index()] + time(op) + tail[op.index()]).fold(0.0, f64::max);
    let one_machine = machines.iter().map(|jobs| {
        jackson(jobs.iter().map(|&op| Job { head: head[op.index()], left: time(op), tail: tail[op.index()] }).collect())
    });
    Nanos(one_machine.fold(path, f64::max))
}

/// Whether a step is as short as the bound, but for rounding: no order is faster.
pub fn is_optimal(step_time: Nanos, bound: Nanos) -> bool {
    step_time.0 <= bound.0 * (1.0 + 1e-9)
}

/// What runs one at a time: the compute stream with synchronous collectives, and each communication
/// stream.
fn machines(graph: &Graph, machine: &Machine) -> Vec<Vec<OpId>> {
    let compute = graph.ops().filter(|&op| graph.kind(op) != OpKind::AsyncCollective).collect();
    let of_stream = |stream: usize| {
        let on_it = |op: &OpId| machine.streams.of(*op).is_some_and(|of| of.index() == stream);
        graph.ops().filter(on_it).collect()
    };
    std::iter::once(compute).chain((0..machine.streams.len()).map(of_stream)).collect()
}

struct Loads<'a> {
    graph: &'a Graph,
    machine: &'a Machine,
    machines: &'a [Vec<OpId>],
}

impl Loads<'_> {
    /// How long after the start each operation can begin at the earliest.
    fn heads<'g>(&self, order: &[OpId], near: impl Fn(OpId) -> &'g [OpId]) -> Vec<f64> {
        let len = self.graph.len();
        let words = if len <= CLOSURES { len.div_ceil(64) } else { 0 };
        let mut before = vec![0u64; len * words];
        let mut heads = vec![0.0; len];
        let mut on: Vec<Vec<usize>> = vec![Vec::new(); len];
        for (index, jobs) in self.machines.iter().enumerate() {
            jobs.iter().for_each(|op| on[op.index()].push(index));
        }
        let mut load = vec![0.0; self.machines.len()];
        let mut row = vec![0u64; words];
        for &op in order {
            let mut head: f64 = 0.0;
            row.fill(0);
            for &other in near(op) {
                let index = other.index();
                row.iter_mut().zip(&before[index * words..(index + 1) * words]).for_each(|(to, from)| *to |= from);
                if words > 0 {
                    row[index / 64] |= 1 << (index % 64);
                }
                head = head.max(heads[index] + self.machine.times.of(other).0);
            }
            load.fill(0.0);
            for (word, &bits) in row.iter().enumerate() {
                let mut bits = bits;
                while bits != 0 {
                    let index = word * 64 + bits.trailing_zeros() as usize;
                    bits &= bits - 1;
                    let time = self.machine.times.of(OpId::from_index(index)).0;
                    on[index].iter().for_each(|&machine| load[machine] += time);
                }
            }
            heads[op.index()] = load.iter().copied().fold(head, f64::max);
            before[op.index() * words..(op.index() + 1) * words].copy_from_slice(&row);
        }
        heads
    }
}

#[derive(Clone, Copy)]
struct Job {
    head: f64,
    left: f64,
    tail: f64,
}

/// Ready jobs: the longest tail first.
struct Ready(Job);

impl PartialEq for Ready {
    fn eq(&self, other: &Ready) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}
impl Eq for Ready {}
impl PartialOrd for Ready {
    fn partial_cmp(&self, other: &Ready) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Ready {
    fn cmp(&self, other: &Ready) -> Ordering {
        self.0.tail.total_cmp(&other.0.tail)
    }
}

/// Jackson's preemptive schedule on one machine.
fn jackson(mut jobs: Vec<Job>) -> f64 {
    jobs.retain(|job| job.left > 0.0);
    jobs.sort_by(|a, b| a.head.total_cmp(&b.head));
    let (mut now, mut best) = (0.0f64, 0.0f64);
    let mut coming = jobs.into_iter().peekable();
    let mut ready: BinaryHeap<Ready> = BinaryHeap::new();
    loop {
        if ready.is_empty() {
            let Some(next) = coming.peek() else { return best };
            now = now.max(next.head);
        }
        while let Some(job) = coming.next_if(|job| job.head <= now) {
            ready.push(Ready(job));
        }
        let Some(Ready(mut job)) = ready.pop() else { return best };
        let until = coming.peek().map_or(f64::INFINITY, |next| next.head);
        let run = job.left.min(until - now);
        now += run;
        job.left -= run;
        if job.left <= 1e-9 {
            best = best.max(now + job.tail);
        } else {
            ready.push(Ready(job));
        }
    }
}
