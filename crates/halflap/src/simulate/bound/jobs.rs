//! What must have ended before each job starts, and how long that takes at least.

use super::ahead::Ahead;
use super::jackson::Job;
use super::kept::Kept;
use crate::graph::{Edges, Graph, OpKind};
use crate::ids::{Id, IdVec, OpId};
use crate::simulate::Machine;

/// Up to this many jobs, everything that each waits for is considered, at one bit a pair; in longer
/// programs only the longest path.
const CLOSURES: usize = 30_000;
/// Up to this many, so is the earliest start of each of those.
const RELEASED: usize = 2_000;

/// The precedences between jobs.
///
/// Every operation is a job of the same number. If others must only follow its launch, an
/// asynchronous one is two jobs: they follow its issue, which takes no time.
pub(super) struct Jobs {
    /// All jobs, each after those that must have ended before it.
    pub(super) sequence: Vec<usize>,
    pub(super) before: Vec<Vec<usize>>,
    pub(super) time: Vec<f64>,
    /// The machines that run each job: the compute stream is number 0 and also runs synchronous
    /// collectives; the communication streams follow.
    pub(super) on: Vec<Vec<usize>>,
    pub(super) machines: usize,
}

impl Jobs {
    pub(super) fn new(graph: &Graph, machine: &Machine, kept: &Kept) -> Jobs {
        let mut jobs = Jobs {
            sequence: Vec::new(),
            before: vec![Vec::new(); graph.len()],
            time: graph.ops().map(|op| machine.times.of(op).0).collect(),
            on: graph.ops().map(|op| machines_of(graph, machine, op)).collect(),
            machines: 1 + machine.streams.len(),
        };
        let is_split = split(graph, kept);
        // Without split jobs, what comes first has ended anyway.
        let mut ahead =
            is_split.as_slice().contains(&true).then(|| Ahead::new(&machine.streams, graph.len()));
        let mut issue: IdVec<OpId, Option<usize>> = IdVec::filled(None, graph.len());
        for &op in &kept.sequence {
            let launch = |&pred: &OpId| issue[pred].unwrap_or(pred.index());
            let in_front = &kept.preds(graph, op);
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

    /// The earliest start of each job after the start of the step, and its latest end before the
    /// end of the step.
    pub(super) fn ends(&self) -> Ends {
        let reversed: Vec<usize> = self.sequence.iter().rev().copied().collect();
        let head = self.heads(&self.sequence, &self.before);
        Ends { head, tail: self.heads(&reversed, &inverse(&self.before)) }
    }

    fn heads(&self, sequence: &[usize], near: &[Vec<usize>]) -> Vec<f64> {
        let len = self.time.len();
        let words = if len <= CLOSURES { len.div_ceil(64) } else { 0 };
        let mut before = vec![0u64; len * words];
        let mut loads = vec![0.0; len * self.machines];
        let mut heads = vec![0.0; len];
        let mut row = vec![0u64; words];
        let mut load = vec![0.0; self.machines];
        let mut by_head: Vec<usize> = Vec::new();
        let later =
            |heads: &[f64], a: &usize, b: &usize| heads[*a].total_cmp(&heads[*b]).then(a.cmp(b));
        for &job in sequence {
            // Most of what a job waits for, the last of its direct predecessors has waited for,
            // too.
            let Some(&last) = near[job].iter().max_by(|a, b| later(&heads, a, b)) else {
                by_head.insert(0, job);
                continue;
            };
            row.copy_from_slice(&before[last * words..(last + 1) * words]);
            load.copy_from_slice(&loads[last * self.machines..(last + 1) * self.machines]);
            let mut head: f64 = 0.0;
            for &other in &near[job] {
                head = head.max(heads[other] + self.time[other]);
                if words > 0 {
                    self.load_more(
                        &mut load,
                        &mut row,
                        &before[other * words..(other + 1) * words],
                    );
                    self.load_job(&mut load, &mut row, other);
                }
            }
            // If a job waits for only one job directly, that one has waited for all the rest.
            if len <= RELEASED && near[job].len() > 1 {
                let waited = by_head.iter().filter(|&&job| row[job / 64] & (1 << (job % 64)) != 0);
                head = head.max(self.released(waited, &heads));
            }
            heads[job] = load.iter().copied().fold(head, f64::max);
            if len <= RELEASED {
                let place = by_head.partition_point(|&other| heads[other] <= heads[job]);
                by_head.insert(place, job);
            }
            before[job * words..(job + 1) * words].copy_from_slice(&row);
            loads[job * self.machines..(job + 1) * self.machines].copy_from_slice(&load);
        }
        heads
    }

    /// When the last machine has finished some jobs, which start as early as possible: no sequence
    /// is faster than that of their heads, in which they are given.
    fn released<'a>(&self, jobs: impl Iterator<Item = &'a usize>, heads: &[f64]) -> f64 {
        let mut until = vec![0.0f64; self.machines];
        for &job in jobs {
            for &machine in &self.on[job] {
                until[machine] = until[machine].max(heads[job]) + self.time[job];
            }
        }
        until.into_iter().fold(0.0, f64::max)
    }

    /// Adds the jobs of a set that are not yet in another one to that one, and to the machines'
    /// work.
    fn load_more(&self, load: &mut [f64], row: &mut [u64], set: &[u64]) {
        for (word, (to, &from)) in row.iter_mut().zip(set).enumerate() {
            let mut more = from & !*to;
            *to |= from;
            while more != 0 {
                let job = word * 64 + more.trailing_zeros() as usize;
                more &= more - 1;
                self.on[job].iter().for_each(|&machine| load[machine] += self.time[job]);
            }
        }
    }

    fn load_job(&self, load: &mut [f64], row: &mut [u64], job: usize) {
        let bit = 1 << (job % 64);
        if row[job / 64] & bit == 0 {
            row[job / 64] |= bit;
            self.on[job].iter().for_each(|&machine| load[machine] += self.time[job]);
        }
    }
}

/// The minimum distances of jobs from both ends of the step.
pub(super) struct Ends {
    pub(super) head: Vec<f64>,
    pub(super) tail: Vec<f64>,
}

impl Ends {
    /// An operation as a job of this length.
    pub(super) fn job(&self, op: OpId, time: f64) -> Job {
        Job { head: self.head[op.index()], left: time, tail: self.tail[op.index()] }
    }
}

fn machines_of(graph: &Graph, machine: &Machine, op: OpId) -> Vec<usize> {
    let compute = (graph.kind(op) != OpKind::AsyncCollective).then_some(0);
    let stream = machine.streams.of(op).map(|stream| 1 + stream.index());
    compute.into_iter().chain(stream).collect()
}

/// The operations that are two jobs: asynchronous ones whose launch, or whose issue, another
/// operation must follow.
fn split(graph: &Graph, kept: &Kept) -> IdVec<OpId, bool> {
    let mut split = IdVec::filled(false, graph.len());
    for &op in kept.sequence.iter().rev() {
        let awaited_by = graph.succs(op, Edges::Awaited);
        let launches = |succ: &OpId| split[*succ] || awaited_by.binary_search(succ).is_err();
        let goes_on = matches!(graph.kind(op), OpKind::AsyncCollective | OpKind::MultiOutput);
        split[op] = goes_on && kept.succs(graph, op).iter().any(launches);
    }
    split
}

/// The successors of each job.
fn inverse(before: &[Vec<usize>]) -> Vec<Vec<usize>> {
    let mut after = vec![Vec::new(); before.len()];
    for (job, list) in before.iter().enumerate() {
        list.iter().for_each(|&other| after[other].push(job));
    }
    after
}
