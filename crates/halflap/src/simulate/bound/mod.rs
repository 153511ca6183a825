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

mod ahead;
mod chain;
mod closed;
mod event;
mod implied;
mod jackson;
mod jobs;
mod kept;
mod moments;
mod network;
mod simplex;

use super::Machine;
use crate::graph::{Edges, Graph, OpKind};
use crate::ids::{Id, OpId, StreamId};
use crate::memory::Timeline;
use crate::order::Order;
use crate::units::{Bytes, Nanos};
use jackson::{Job, jackson};
use jobs::{Ends, Jobs};
use kept::Kept;
use moments::{Moments, path};
use network::Network;

/// What no order can beat, of those that keep some edges and a memory limit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bound {
    /// Their steps are at least this long.
    pub time: Nanos,
    /// What they keep: with [`Edges::All`] the order of collectives, too.
    pub edges: Edges,
    /// Why they are.
    pub basis: Basis,
}

/// What a bound rests on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Basis {
    /// What the compute stream has to do, and what must come before and after it.
    Compute,
    /// What a communication stream has to do, and what must come before and after it.
    Stream(StreamId),
    /// All that must run before and after this operation.
    Path(OpId),
    /// Compute and this stream's collectives slow each other.
    Contention(StreamId),
    /// What can have run before the start of the first operation, and what is left for after the start
    /// of the last, which needs the first or is the same.
    Cut {
        /// The first operation.
        first: OpId,
        /// The last one.
        last: OpId,
        /// Whether the memory limit is part of it.
        memory: bool,
    },
}

impl Bound {
    /// Whether a step is as short as the bound, but for rounding: no order that keeps the edges is faster.
    pub fn is_reached_by(self, step_time: Nanos) -> bool {
        step_time.0 <= self.time.0 * (1.0 + 1e-9)
    }
}

/// No order of the program that keeps `edges` and has at most so much alive has a shorter step on that
/// machine, with a host that takes no time: that only adds to it.
pub fn lower_bound(graph: &Graph, machine: &Machine, edges: Edges, memory_limit: Bytes) -> Bound {
    let case = Case { graph, machine, edges, memory_limit };
    let plain = case.bound(&Kept::new(graph, edges, &[]));
    // What is in order because of memory is in the input order, too, if that is within the limit. In
    // long programs it would take longer to find than it is worth.
    if graph.len() > LONG || Timeline::of(graph, &Order::of_input(graph)).peak > memory_limit {
        return plain;
    }
    let implied = case.implied(&Kept::new(graph, edges, &[]));
    if implied.is_empty() {
        return plain;
    }
    let bound = case.bound(&Kept::new(graph, edges, &implied));
    if bound.time > plain.time { bound } else { plain }
}

/// The longest programs that are asked what memory puts in order.
const LONG: usize = 1_500;

/// What is to be bounded.
struct Case<'a> {
    graph: &'a Graph,
    machine: &'a Machine,
    edges: Edges,
    memory_limit: Bytes,
}

impl Case<'_> {
    fn bound(&self, kept: &Kept) -> Bound {
        let jobs = Jobs::new(self.graph, self.machine, kept);
        let ends = jobs.ends();
        let (time, basis) = one_machine(self.graph, self.machine, &jobs, &ends);
        let bound = Bound { time: Nanos(time), edges: self.edges, basis };
        let network = Network::new(self.graph, self.machine, kept, &ends);
        let moments =
            Moments { path: path(&jobs, self.graph), jobs: &jobs, ends: &ends, network: &network };
        match moments.prove(bound.time, self.memory_limit) {
            Some((time, basis)) if time > bound.time => Bound { time, basis, ..bound },
            _ => bound,
        }
    }

    /// What memory puts in order.
    fn implied(&self, kept: &Kept) -> Vec<implied::Precedence> {
        let jobs = Jobs::new(self.graph, self.machine, kept);
        let ends = jobs.ends();
        let network = Network::new(self.graph, self.machine, kept, &ends);
        implied::find(self.graph, &network, &path(&jobs, self.graph), self.memory_limit.0 as f64)
    }
}

/// What holds for every machine by itself.
fn one_machine(graph: &Graph, machine: &Machine, jobs: &Jobs, ends: &Ends) -> (f64, Basis) {
    let all =
        |&job: &usize| Job { head: ends.head[job], left: jobs.time[job], tail: ends.tail[job] };
    let on_machine = |number: usize| {
        let on_it = jobs.sequence.iter().filter(|&&job| jobs.on[job].contains(&number));
        jackson(on_it.map(all).collect())
    };
    let streams = || (0..machine.streams.len()).map(StreamId::from_index);
    let path = graph.ops().map(|op| {
        let Job { head, left, tail } = all(&op.index());
        (head + left + tail, Basis::Path(op))
    });
    let one_stream =
        streams().map(|stream| (on_machine(1 + stream.index()), Basis::Stream(stream)));
    let slowed =
        streams().map(|stream| (contended(graph, machine, stream), Basis::Contention(stream)));
    let others = one_stream.chain(path).chain(slowed);
    let larger = |a: (f64, Basis), b: (f64, Basis)| if b.0 > a.0 { b } else { a };
    others.fold((on_machine(0), Basis::Compute), larger)
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
    let is_sent =
        |op| graph.kind(op) == OpKind::AsyncCollective && machine.streams.of(op) == Some(stream);
    let sent = sum(&is_sent);
    let Machine { slowdown, comm_slowdown, .. } = *machine;
    let both = (slowdown * compute).min(comm_slowdown * sent);
    let saved = (1.0 / slowdown + 1.0 / comm_slowdown - 1.0).max(0.0);
    compute + sent - both * saved
}
