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
mod cases;
mod chain;
mod closed;
mod event;
mod implied;
mod jackson;
mod jobs;
mod kept;
mod moments;
mod network;
mod shave;
mod simplex;

use super::Machine;
use crate::graph::{Edges, Graph, OpKind};
use crate::ids::{Id, OpId, StreamId};
use crate::memory::Timeline;
use crate::order::Order;
use crate::units::{Bytes, Nanos};
use implied::Precedence;
use jackson::{Job, jackson};
use jobs::{Ends, Jobs};
use kept::Kept;
use moments::{Moments, Proof, path};
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
    /// Whether the memory limit is part of that: with more memory, less would be proved.
    pub memory: bool,
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
    },
    /// Every order that could be faster was tried.
    AllOrders,
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
    Bounded { graph, machine, edges, memory_limit }.lower_bound()
}

/// The orders of a program that a bound is for.
#[derive(Clone, Copy, Debug)]
pub struct Bounded<'a> {
    /// The program.
    pub graph: &'a Graph,
    /// What it runs on.
    pub machine: &'a Machine,
    /// What orders keep.
    pub edges: Edges,
    /// The most that they may have alive.
    pub memory_limit: Bytes,
}

/// The longest programs that are asked what memory puts in order.
const LONG: usize = 1_500;

/// How many cases are looked at, times the program's length, and at most.
const CASES: usize = 16_000;
const MOST_CASES: usize = 60;

/// How close to its bound a step must be so that more is tried to prove that it is the shortest, as a
/// part of it.
const CLOSE: f64 = 0.05;
/// The longest programs for which that is done: in longer ones few tests could be made.
const SHORT: usize = 500;

/// A program as the bound looks at it.
struct Ready {
    jobs: Jobs,
    ends: Ends,
    network: Network,
    path: Vec<OpId>,
}

/// A bound, and what moments prove, if that is less.
struct Proved {
    bound: Bound,
    cut: Option<Proof>,
}

impl Bounded<'_> {
    /// See [`lower_bound`].
    pub fn lower_bound(&self) -> Bound {
        let ready = self.plain();
        let plain = self.proved(&ready);
        let implied = self.implied(&ready);
        if !implied.is_empty()
            && let Some(ordered) = self.ready(&implied)
        {
            let forced = self.proved(&ordered);
            if forced.bound.time > plain.bound.time {
                return Bound { memory: true, ..self.in_cases(&ordered, forced) };
            }
        }
        self.in_cases(&ready, plain)
    }

    /// A bound, or what more can be proved where an order is known whose step is close to it: a faster
    /// order would have to keep more than others do. No order is faster than the lesser of what is
    /// proved of those and the known step.
    pub fn sharpened(&self, bound: Bound, step_time: Nanos) -> Bound {
        let is_close = step_time.0 <= bound.time.0 * (1.0 + CLOSE);
        if bound.is_reached_by(step_time) || !is_close || self.graph.len() > SHORT {
            return bound;
        }
        let implied = self.implied(&self.plain());
        let pairs = shave::shave(self, &implied, step_time);
        let left = self.ready(&pairs).map(|ready| self.proved(&ready).bound);
        let basis = left.map_or(bound.basis, |left| left.basis);
        let time = left.map_or(step_time, |left| left.time.min(step_time));
        if time <= bound.time {
            return bound;
        }
        let memory = bound.memory || !implied.is_empty() || left.is_some_and(|left| left.memory);
        Bound { time, basis, memory, ..bound }
    }

    /// What memory alone puts in order. That is in the input order, too, if that is within the limit.
    /// In long programs it would take longer to find than it is worth.
    fn implied(&self, ready: &Ready) -> Vec<Precedence> {
        let Bounded { graph, memory_limit, .. } = *self;
        match graph.len() > LONG || Timeline::of(graph, &Order::of_input(graph)).peak > memory_limit
        {
            true => Vec::new(),
            false => implied::find(graph, &ready.network, &ready.path, memory_limit.0 as f64),
        }
    }

    /// The program as it is.
    fn plain(&self) -> Ready {
        self.ready(&[]).expect("the input order keeps the program's own edges")
    }

    /// The program where some operations come before others, if there is such an order.
    fn ready(&self, pairs: &[Precedence]) -> Option<Ready> {
        let kept = Kept::new(self.graph, self.edges, pairs)?;
        let jobs = Jobs::new(self.graph, self.machine, &kept);
        let ends = jobs.ends();
        let network = Network::new(self.graph, self.machine, &kept, &ends);
        Some(Ready { path: path(&jobs, self.graph), jobs, ends, network })
    }

    /// What every machine by itself proves of the orders that have some operations before others;
    /// `None` if there are none.
    fn one_machine(&self, pairs: &[Precedence]) -> Option<(f64, Basis)> {
        let kept = Kept::new(self.graph, self.edges, pairs)?;
        let jobs = Jobs::new(self.graph, self.machine, &kept);
        Some(one_machine(self.graph, self.machine, &jobs, &jobs.ends()))
    }

    fn proved(&self, ready: &Ready) -> Proved {
        let (time, basis) = one_machine(self.graph, self.machine, &ready.jobs, &ready.ends);
        let bound = Bound { time: Nanos(time), edges: self.edges, basis, memory: false };
        let mut moments = Moments::new(ready, bound.time, self.memory_limit);
        let cut = moments.prove();
        Proved { bound: with_cut(bound, &moments, cut.as_ref()), cut }
    }

    /// Looks at cases, as many as take about as long as what was done so far.
    fn in_cases(&self, ready: &Ready, proved: Proved) -> Bound {
        let Proved { bound, cut } = proved;
        let Some(cut) = cut.filter(|cut| !cut.places.is_empty()) else { return bound };
        let most = (CASES / self.graph.len().max(1)).min(MOST_CASES);
        let mut moments = Moments::new(ready, bound.time, self.memory_limit);
        let cut = cases::prove(&mut moments, cut, most);
        with_cut(bound, &moments, Some(&cut))
    }
}

/// A bound, or what moments prove, if that is more.
fn with_cut(bound: Bound, moments: &Moments<'_>, cut: Option<&Proof>) -> Bound {
    let more = cut.filter(|cut| cut.time > bound.time.0);
    let basis = more.and_then(|cut| Some((cut, moments.basis(cut)?)));
    basis.map_or(bound, |(cut, basis)| Bound {
        time: Nanos(cut.time),
        basis,
        memory: cut.memory,
        ..bound
    })
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
