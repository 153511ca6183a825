//! A lower bound on the step time of every order that keeps some edges.
//!
//! Every stream is a machine that runs one operation at a time. An operation cannot start before its
//! head has passed: all that it waits for must have run, and what of that shares a machine ran one
//! after the other. What comes after the launch of an asynchronous collective waits for all that the
//! compute stream ran before that launch, and not for the collective. Likewise its tail must pass
//! after it. For operations with heads and tails on one machine, letting the one with the longest tail
//! run first and be interrupted (Jackson's rule) gives a time that no order can beat.
//!
//! An order-only edge says no more than an issued one does: which operation comes first. But what comes
//! first on the compute stream has ended, and so has a collective when another one starts on its stream,
//! which runs what it is given in sequence.
//!
//! Where compute and communication slow each other, time in which both run is worth less, and there
//! is only so much of it (`contended`).

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use super::Machine;
use crate::graph::{Edges, Graph, OpKind, Streams};
use crate::ids::{Id, IdVec, OpId, StreamId};
use crate::units::Nanos;

/// Up to so many jobs, all that each waits for is looked at, at a bit a pair; in longer programs only
/// the longest path to it.
const CLOSURES: usize = 30_000;

/// What no order can beat, of those that keep some edges.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bound {
    /// Their steps are at least this long.
    pub time: Nanos,
    /// What they keep: with [`Edges::All`] the order of collectives, too.
    pub edges: Edges,
}

impl Bound {
    /// Whether a step is as short as the bound, but for rounding: no order that keeps the edges is faster.
    pub fn is_reached_by(self, step_time: Nanos) -> bool {
        step_time.0 <= self.time.0 * (1.0 + 1e-9)
    }
}

/// No order of the program that keeps `edges` has a shorter step on that machine, with a host that
/// takes no time: that only adds to it.
pub fn lower_bound(graph: &Graph, machine: &Machine, edges: Edges) -> Bound {
    let jobs = Jobs::new(graph, machine, edges);
    let reversed: Vec<usize> = jobs.sequence.iter().rev().copied().collect();
    let head = jobs.heads(&jobs.sequence, &jobs.before);
    let tail = jobs.heads(&reversed, &inverse(&jobs.before));
    let all = |&job: &usize| Job { head: head[job], left: jobs.time[job], tail: tail[job] };
    let path = jobs.sequence.iter().map(all).map(|job| job.head + job.left + job.tail).fold(0.0, f64::max);
    let one_machine = (0..jobs.machines).map(|machine| {
        let on_it = jobs.sequence.iter().filter(|&&job| jobs.on[job].contains(&machine));
        jackson(on_it.map(all).collect())
    });
    let streams = (0..machine.streams.len()).map(StreamId::from_index);
    let streams = streams.map(|stream| contended(graph, machine, stream));
    Bound { time: Nanos(one_machine.chain(streams).fold(path, f64::max)), edges }
}

/// What no order can beat because compute and the collectives of one stream slow each other.
///
/// Of a step, let `both` be the time in which both run, and let each also run alone. Compute has
/// `compute` to do and does `both / slowdown` of it beside the stream; the stream has `sent` to do and
/// does `both / comm_slowdown` of it beside compute. So the step takes at least
/// `compute + sent + both * (1 - 1 / slowdown - 1 / comm_slowdown)`, and `both` is at most what either
/// takes if it never runs alone.
fn contended(graph: &Graph, machine: &Machine, stream: StreamId) -> f64 {
    if !machine.is_contended() {
        return 0.0;
    }
    let sum = |ops: &dyn Fn(OpId) -> bool| -> f64 {
        graph.ops().filter(|&op| ops(op)).map(|op| machine.times.of(op).0).sum()
    };
    let compute = sum(&|op| matches!(graph.kind(op), OpKind::Compute | OpKind::Wait));
    let is_sent = |op| graph.kind(op) == OpKind::AsyncCollective && machine.streams.of(op) == Some(stream);
    let sent = sum(&is_sent);
    let Machine { slowdown, comm_slowdown, .. } = *machine;
    let both = (slowdown * compute).min(comm_slowdown * sent);
    let saved = (1.0 / slowdown + 1.0 / comm_slowdown - 1.0).max(0.0);
    compute + sent - both * saved
}

/// What must have ended before what starts.
///
/// Every operation is a job of the same number. Where others must come after its launch alone, one
/// that lets the compute stream go on is two: they come after its issue, which takes no time.
struct Jobs {
    /// All jobs, each behind those that must have ended before it.
    sequence: Vec<usize>,
    before: Vec<Vec<usize>>,
    time: Vec<f64>,
    /// The machines that run each: the compute stream is number 0 and runs synchronous collectives,
    /// too; behind it come the communication streams.
    on: Vec<Vec<usize>>,
    machines: usize,
}

impl Jobs {
    fn new(graph: &Graph, machine: &Machine, edges: Edges) -> Jobs {
        let mut jobs = Jobs {
            sequence: Vec::new(),
            before: vec![Vec::new(); graph.len()],
            time: graph.ops().map(|op| machine.times.of(op).0).collect(),
            on: graph.ops().map(|op| machines_of(graph, machine, op)).collect(),
            machines: 1 + machine.streams.len(),
        };
        let is_split = split(graph, edges);
        // Where no job is split, what comes first has ended anyway.
        let mut ahead = is_split.as_slice().contains(&true).then(|| Ahead::new(&machine.streams));
        let mut issue: IdVec<OpId, Option<usize>> = IdVec::filled(None, graph.len());
        for op in graph.ops() {
            let launch = |&pred: &OpId| issue[pred].unwrap_or(pred.index());
            let in_front = graph.preds(op, edges);
            let mut before: Vec<usize> = in_front.iter().map(launch).collect();
            if is_split[op] {
                let number = jobs.add_issue(before);
                issue[op] = Some(number);
                before = vec![number];
            }
            let ahead = ahead.as_mut().map_or(Vec::new(), |ahead| ahead.of(op, in_front));
            let awaited = graph.preds(op, Edges::Awaited).iter().chain(&ahead);
            before.extend(awaited.map(|pred| pred.index()));
            before.sort_unstable();
            before.dedup();
            jobs.before[op.index()] = before;
            jobs.sequence.push(op.index());
        }
        jobs
    }

    fn add_issue(&mut self, before: Vec<usize>) -> usize {
        let number = self.before.len();
        self.sequence.push(number);
        self.before.push(before);
        self.time.push(0.0);
        self.on.push(Vec::new());
        number
    }

    /// How long after the start each job can begin at the earliest.
    fn heads(&self, sequence: &[usize], near: &[Vec<usize>]) -> Vec<f64> {
        let len = self.time.len();
        let words = if len <= CLOSURES { len.div_ceil(64) } else { 0 };
        let mut before = vec![0u64; len * words];
        let mut heads = vec![0.0; len];
        let mut row = vec![0u64; words];
        for &job in sequence {
            let mut head: f64 = 0.0;
            row.fill(0);
            for &other in &near[job] {
                row.iter_mut().zip(&before[other * words..(other + 1) * words]).for_each(|(to, from)| *to |= from);
                if words > 0 {
                    row[other / 64] |= 1 << (other % 64);
                }
                head = head.max(heads[other] + self.time[other]);
            }
            heads[job] = self.longest_load(&row).max(head);
            before[job * words..(job + 1) * words].copy_from_slice(&row);
        }
        heads
    }

    /// How long the machine that has most to do takes for a set of jobs.
    fn longest_load(&self, set: &[u64]) -> f64 {
        let mut load = vec![0.0; self.machines];
        for (word, &bits) in set.iter().enumerate() {
            let mut bits = bits;
            while bits != 0 {
                let job = word * 64 + bits.trailing_zeros() as usize;
                bits &= bits - 1;
                self.on[job].iter().for_each(|&machine| load[machine] += self.time[job]);
            }
        }
        load.into_iter().fold(0.0, f64::max)
    }
}

fn machines_of(graph: &Graph, machine: &Machine, op: OpId) -> Vec<usize> {
    let compute = (graph.kind(op) != OpKind::AsyncCollective).then_some(0);
    let stream = machine.streams.of(op).map(|stream| 1 + stream.index());
    compute.into_iter().chain(stream).collect()
}

/// Which collectives are ahead of others on their streams.
struct Ahead<'a> {
    streams: &'a Streams,
    /// The last collective of each stream that is known to come no later than an operation.
    last: IdVec<OpId, Vec<Option<OpId>>>,
}

impl Ahead<'_> {
    fn new(streams: &Streams) -> Ahead<'_> {
        Ahead { streams, last: Vec::new().into() }
    }

    /// The collectives that must have ended when the next operation starts, because they were issued before
    /// it on its stream; `in_front` is what comes before it.
    fn of(&mut self, op: OpId, in_front: &[OpId]) -> Vec<OpId> {
        let mut last = vec![None; self.streams.len()];
        for &pred in in_front {
            last.iter_mut().zip(&self.last[pred]).for_each(|(last, &other)| *last = other.max(*last));
        }
        let mut ahead = Vec::new();
        if let Some(stream) = self.streams.of(op) {
            ahead.extend(in_front.iter().filter_map(|&pred| self.last[pred][stream.index()]));
            last[stream.index()] = Some(op);
        }
        self.last.push(last);
        ahead
    }
}

/// Which operations are two jobs: those that let the compute stream go on, and whose launch another
/// one comes after, or another one's issue.
fn split(graph: &Graph, edges: Edges) -> IdVec<OpId, bool> {
    let mut split = IdVec::filled(false, graph.len());
    for op in graph.ops().rev() {
        let awaited_by = graph.succs(op, Edges::Awaited);
        let launches = |succ: &OpId| split[*succ] || awaited_by.binary_search(succ).is_err();
        let goes_on = matches!(graph.kind(op), OpKind::AsyncCollective | OpKind::MultiOutput);
        split[op] = goes_on && graph.succs(op, edges).iter().any(launches);
    }
    split
}

/// For each job, those behind it.
fn inverse(before: &[Vec<usize>]) -> Vec<Vec<usize>> {
    let mut after = vec![Vec::new(); before.len()];
    for (job, list) in before.iter().enumerate() {
        list.iter().for_each(|&other| after[other].push(job));
    }
    after
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
