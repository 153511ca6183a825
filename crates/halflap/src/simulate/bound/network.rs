//! What can have come before a moment, as nodes with requirements.
//!
//! The moment is the start of an operation on the compute stream. What came before it in the order
//! is a closed set; the part of it that has ended is another. Operations of the compute stream have
//! ended if they came before, so they are one node; an asynchronous collective is two, its issue
//! and its end. A buffer that is freed is a node, too, and needs all of its users.

use super::ahead::Ahead;
use super::closed::{Needs, Node};
use super::jackson::{Core, Job, core};
use super::jobs::Ends;
use super::kept::Kept;
use crate::graph::{Edges, Graph, OpKind};
use crate::ids::{BufId, Id, IdVec, OpId, StreamId};
use crate::simulate::Machine;

/// Work on a machine that a node represents.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Work {
    /// The compute stream is number 0; the communication streams follow.
    pub(super) machine: usize,
    /// Whether it is among the jobs that determine how long the machine takes.
    pub(super) is_core: bool,
    pub(super) time: f64,
    /// Whether it has been done before the moment.
    pub(super) is_done: bool,
    /// Whether it can have been done before the moment.
    pub(super) is_begun: bool,
}

/// All nodes of a program. The first ones represent that the operations came before the moment.
pub(super) struct Network {
    pub(super) needs: Needs,
    pub(super) work: Vec<Work>,
    /// What each node adds to the memory alive.
    pub(super) memory: Vec<f64>,
    /// The memory alive initially.
    pub(super) baseline: f64,
    /// What each operation allocates.
    pub(super) alloc: IdVec<OpId, f64>,
    /// Each machine twice: with all its work and, after all of these, with its core only.
    pub(super) lanes: Vec<Lane>,
    /// The machine that runs each operation besides the compute stream; number 0 if none does.
    beside: IdVec<OpId, usize>,
}

/// Work of one machine, and its minimum distance from both ends of the step.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lane {
    pub(super) total: f64,
    pub(super) ends: Core,
}

impl Network {
    pub(super) fn new(graph: &Graph, machine: &Machine, kept: &Kept, ends: &Ends) -> Network {
        let alloc = |op: OpId| {
            graph.outputs(op).iter().map(|&buffer| graph.size_alloc(buffer).0 as f64).sum()
        };
        let inputs = graph.buffers().filter(|&buffer| graph.maker(buffer).is_none());
        let mut builder = Builder::new(graph, machine, kept);
        for &op in &kept.sequence {
            builder.add_op(op);
        }
        for buffer in graph.buffers().filter(|&buffer| !graph.is_output(buffer)) {
            builder.add_free(buffer);
        }
        let lanes = builder.find_cores(ends);
        Network {
            needs: Needs::new(&builder.needs),
            work: builder.work,
            lanes,
            memory: builder.memory,
            baseline: inputs.map(|buffer| graph.size_alloc(buffer).0 as f64).sum(),
            alloc: graph.ops().map(alloc).collect(),
            beside: builder.beside,
        }
    }

    /// How long after the start of an operation of the compute stream nothing can be issued to each
    /// lane: until the operation has run, unless the lane runs it, too.
    pub(super) fn held(&self, op: OpId) -> Vec<f64> {
        let machines = self.lanes.len() / 2;
        let is_held = |lane: usize| ![0, self.beside[op]].contains(&(lane % machines));
        let time = self.work[came_before(op).index()].time;
        (0..self.lanes.len()).map(|lane| if is_held(lane) { time } else { 0.0 }).collect()
    }

    /// What comes before an operation in the input order: operations, everything that these need,
    /// and all buffers without other users.
    pub(super) fn input_before(&self, op: OpId) -> Vec<bool> {
        let ops = self.alloc.len();
        let mut taken = vec![false; self.needs.len()];
        let mut left: Vec<Node> = (0..op.index()).map(Node::from_index).collect();
        while let Some(node) = left.pop() {
            if !taken[node.index()] {
                taken[node.index()] = true;
                left.extend(self.needs.of(node));
            }
        }
        for node in (ops..self.needs.len()).map(Node::from_index) {
            let is_freed = self.memory[node.index()] < 0.0;
            taken[node.index()] |=
                is_freed && self.needs.of(node).iter().all(|need| taken[need.index()]);
        }
        taken
    }
}

pub(super) fn came_before(op: OpId) -> Node {
    Node::from_index(op.index())
}

struct Builder<'a> {
    graph: &'a Graph,
    machine: &'a Machine,
    kept: &'a Kept,
    ahead: Ahead<'a>,
    needs: Vec<Vec<Node>>,
    work: Vec<Work>,
    memory: Vec<f64>,
    /// The operation of a node's work.
    op_of: Vec<Option<OpId>>,
    /// The node that represents the end of an operation.
    ended: IdVec<OpId, Node>,
    /// The number of each stream's machine, for streams with work.
    machine_of: IdVec<StreamId, Option<usize>>,
    machines: usize,
    beside: IdVec<OpId, usize>,
}

impl<'a> Builder<'a> {
    fn new(graph: &'a Graph, machine: &'a Machine, kept: &'a Kept) -> Builder<'a> {
        Builder {
            graph,
            machine,
            kept,
            ahead: Ahead::new(&machine.streams, graph.len()),
            needs: vec![Vec::new(); graph.len()],
            work: vec![Work::default(); graph.len()],
            memory: vec![0.0; graph.len()],
            op_of: graph.ops().map(Some).collect(),
            ended: graph.ops().map(came_before).collect(),
            machine_of: IdVec::filled(None, machine.streams.len()),
            machines: 1,
            beside: IdVec::filled(0, graph.len()),
        }
    }

    fn add_op(&mut self, op: OpId) {
        let (graph, node) = (self.graph, came_before(op));
        let in_front = &self.kept.preds(graph, op);
        let ahead = self.ahead.of(op, in_front);
        let ended: Vec<Node> = graph
            .preds(op, Edges::Awaited)
            .iter()
            .chain(&ahead)
            .map(|&pred| self.ended[pred])
            .collect();
        self.needs[node.index()].extend(in_front.iter().map(|&pred| came_before(pred)));
        let time = self.machine.times.of(op).0;
        let stream = self.machine.streams.of(op).map_or(0, |stream| self.machine_of(stream));
        self.beside[op] = stream;
        let ran = Work { machine: 0, is_core: false, time, is_done: true, is_begun: true };
        let allocated: i64 =
            graph.outputs(op).iter().map(|&buffer| graph.size_alloc(buffer).0).sum();
        self.memory[node.index()] += allocated as f64;
        match graph.kind(op) {
            OpKind::Compute | OpKind::Wait => self.work[node.index()] = ran,
            OpKind::SyncCollective => {
                self.work[node.index()] = ran;
                let on_stream = self.add(vec![node], Work { machine: stream, ..ran });
                self.op_of[on_stream.index()] = Some(op);
                self.needs[node.index()].push(on_stream);
            }
            OpKind::AsyncCollective => {
                self.work[node.index()] = Work { machine: stream, is_done: false, ..ran };
                self.ended[op] =
                    self.add(vec![node], Work { machine: stream, is_begun: false, ..ran });
            }
            OpKind::MultiOutput => self.ended[op] = self.add(vec![node], Work::default()),
        }
        let ends = self.ended[op].index();
        self.op_of[ends] = Some(op);
        self.needs[ends].extend(ended);
        self.needs[ends].sort_unstable();
        self.needs[ends].dedup();
    }

    fn machine_of(&mut self, stream: StreamId) -> usize {
        let new = self.machines;
        let number = *self.machine_of[stream].get_or_insert(new);
        self.machines = new.max(number + 1);
        number
    }

    /// Marks the core of each machine; returns all lanes.
    fn find_cores(&mut self, ends: &Ends) -> Vec<Lane> {
        let mut jobs: Vec<Vec<Job>> = vec![Vec::new(); self.machines];
        for (&op, work) in self.op_of.iter().zip(&self.work) {
            if work.is_done && work.time > 0.0 {
                jobs[work.machine].extend(op.map(|op| ends.job(op, work.time)));
            }
        }
        let cores: Vec<Core> = jobs.iter().map(|jobs| core(jobs)).collect();
        for (&op, work) in self.op_of.iter().zip(&mut self.work) {
            work.is_core = op.is_some_and(|op| cores[work.machine].has(ends.job(op, work.time)));
        }
        let lane = |jobs: &Vec<Job>, core: Core| {
            let of = |of: fn(&Job) -> f64| jobs.iter().filter(|job| core.has(**job)).map(of);
            let ends = Core {
                head: of(|job| job.head).fold(f64::INFINITY, f64::min),
                tail: of(|job| job.tail).fold(f64::INFINITY, f64::min),
            };
            Lane { total: of(|job| job.left).sum(), ends }
        };
        let whole = jobs.iter().map(|jobs| lane(jobs, Core::default()));
        whole.chain(jobs.iter().zip(&cores).map(|(jobs, core)| lane(jobs, *core))).collect()
    }

    fn add(&mut self, needs: Vec<Node>, work: Work) -> Node {
        self.needs.push(needs);
        self.work.push(work);
        self.memory.push(0.0);
        self.op_of.push(None);
        Node::from_index(self.needs.len() - 1)
    }

    /// A buffer is freed with its last user; if that is always the same one, or its producer
    /// because it has no users, no node is needed.
    fn add_free(&mut self, buffer: BufId) {
        let size = self.graph.size_free(buffer).0 as f64;
        let users = self.graph.users(buffer);
        let only = users.last().copied().or(self.graph.maker(buffer));
        let Some(last) = only.filter(|_| size != 0.0) else { return };
        let preds = self.kept.preds(self.graph, last);
        let is_last = users.iter().all(|user| *user == last || preds.binary_search(user).is_ok());
        let node = match is_last {
            true => came_before(last),
            false => {
                self.add(users.iter().map(|&user| came_before(user)).collect(), Work::default())
            }
        };
        self.memory[node.index()] -= size;
    }
}
