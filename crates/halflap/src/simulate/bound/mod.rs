//! A lower bound on the step time of every order that keeps some edges.
//!
//! Every stream is a machine that runs one operation at a time. An operation cannot start before
//! its head has passed: everything that it waits for must have run, and operations among those that
//! share a machine ran one after the other. An operation that only follows the launch of an
//! asynchronous collective waits for everything that the compute stream ran before that launch, and
//! not for the collective. Likewise its tail must pass after it. For jobs with heads and tails on
//! one machine, running the one with the longest tail first, with preemption (Jackson's rule),
//! gives a time that no order can beat.
//!
//! An order-only edge says no more than an issued one: which operation comes first. But an
//! operation on the compute stream has ended when the next one starts, and so has a collective when
//! another one starts on its stream, which runs collectives in sequence.
//!
//! If compute and communication slow each other down, time in which both run is worth less, and
//! there is only a limited amount of it (`contended`).

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

/// A lower bound on the steps of all orders that keep some edges and a memory limit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bound {
    /// No step is shorter.
    pub time: Nanos,
    /// The edges that orders keep: with [`Edges::All`] also the order of collectives.
    pub edges: Edges,
    /// What it rests on.
    pub basis: Basis,
    /// Whether the memory limit contributes: with more memory, less would be proved.
    pub memory: bool,
}

/// What a bound rests on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Basis {
    /// The work of the compute stream, with what must come before and after it.
    Compute,
    /// The work of a communication stream, with what must come before and after it.
    Stream(StreamId),
    /// Everything that must run before and after this operation.
    Path(OpId),
    /// Compute and this stream's collectives slow each other.
    Contention(StreamId),
    /// What can have run before the start of the first operation, and what is left after the start
    /// of the last one, which needs the first or is the same.
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
    /// Whether a step reaches the bound, up to rounding: no order that keeps the edges is faster.
    pub fn is_reached_by(self, step_time: Nanos) -> bool {
        step_time.0 <= self.time.0 * (1.0 + 1e-9)
    }
}

/// A lower bound on the step of every order that keeps `edges` and the memory limit, on that
/// machine without host time, which only adds to a step.
pub fn lower_bound(graph: &Graph, machine: &Machine, edges: Edges, memory_limit: Bytes) -> Bound {
    Bounded { graph, machine, edges, memory_limit }.prove().bound
}

/// The orders that a bound is for.
#[derive(Clone, Copy, Debug)]
pub struct Bounded<'a> {
    /// The program.
    pub graph: &'a Graph,
    /// What it runs on.
    pub machine: &'a Machine,
    /// The edges that they keep.
    pub edges: Edges,
    /// The memory limit.
    pub memory_limit: Bytes,
}

/// The longest programs for which precedences implied by memory are searched.
const LONG: usize = 1_500;

/// How many cases are examined, times the program's length, and at most.
const CASES: usize = 16_000;
const MOST_CASES: usize = 60;

/// How close to its bound a step must be, as a fraction of it, so that more is tried to prove it
/// optimal.
const CLOSE: f64 = 0.05;
/// The longest programs for which that is done: in longer ones only a few tests could be made.
const SHORT: usize = 500;

/// A program prepared for proving bounds.
struct Ready {
    jobs: Jobs,
    ends: Ends,
    network: Network,
    path: Vec<OpId>,
}

/// A bound, and the proof by moments.
struct Proved {
    bound: Bound,
    cut: Option<Proof>,
}

/// A lower bound, with what is needed to sharpen it once an order is known.
#[derive(Clone, Debug)]
pub struct BoundProof<'a> {
    /// The bound.
    pub bound: Bound,
    of: Bounded<'a>,
    /// Precedences implied by the memory limit.
    implied: Vec<Precedence>,
}

impl<'a> Bounded<'a> {
    /// Proves the bound of [`lower_bound`].
    pub fn prove(self) -> BoundProof<'a> {
        let ready = self.plain();
        let implied = self.implied(&ready);
        BoundProof { bound: self.lower_bound(&ready, &implied), of: self, implied }
    }

    /// Proves what each machine by itself shows, which takes a small part of the time.
    pub(crate) fn prove_by_machines(self) -> BoundProof<'a> {
        let (time, basis) =
            self.one_machine(&[]).expect("the input order keeps the program's own edges");
        let bound = Bound { time: Nanos(time), edges: self.edges, basis, memory: false };
        BoundProof { bound, of: self, implied: Vec::new() }
    }

    /// Proves what the work of compute alone shows, which takes next to no time.
    pub(crate) fn prove_by_work(self) -> BoundProof<'a> {
        let is_compute = |op: &OpId| self.graph.kind(*op) == OpKind::Compute;
        let work = self.graph.ops().filter(is_compute).map(|op| self.machine.times.of(op).0).sum();
        let (edges, basis) = (self.edges, Basis::Compute);
        let bound = Bound { time: Nanos(work), edges, basis, memory: false };
        BoundProof { bound, of: self, implied: Vec::new() }
    }

    fn lower_bound(&self, ready: &Ready, implied: &[Precedence]) -> Bound {
        let plain = self.proved(ready);
        if !implied.is_empty()
            && let Some(ordered) = self.ready(implied)
        {
            let forced = self.proved(&ordered);
            if forced.bound.time > plain.bound.time {
                return Bound { memory: true, ..self.in_cases(&ordered, forced) };
            }
        }
        self.in_cases(ready, plain)
    }

    /// The precedences that the memory limit implies. The input order has them, too, if it is
    /// within the limit. In long programs finding them costs more than it is worth.
    fn implied(&self, ready: &Ready) -> Vec<Precedence> {
        let Bounded { graph, memory_limit, .. } = *self;
        match graph.len() > LONG || Timeline::of(graph, &Order::of_input(graph)).peak > memory_limit
        {
            true => Vec::new(),
            false => implied::find(graph, &ready.network, &ready.path, memory_limit.0 as f64),
        }
    }

    /// The program without additional precedences.
    fn plain(&self) -> Ready {
        self.ready(&[]).expect("the input order keeps the program's own edges")
    }

    /// The program with additional precedences, if any order satisfies them.
    fn ready(&self, pairs: &[Precedence]) -> Option<Ready> {
        let kept = Kept::new(self.graph, self.edges, pairs)?;
        let jobs = Jobs::new(self.graph, self.machine, &kept);
        let ends = jobs.ends();
        let network = Network::new(self.graph, self.machine, &kept, &ends);
        Some(Ready { path: path(&jobs, self.graph), jobs, ends, network })
    }

    /// What each machine alone proves about the orders with these precedences; `None` if there are
    /// no such orders.
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

    /// Examines cases, for about as long as the work so far took.
    fn in_cases(&self, ready: &Ready, proved: Proved) -> Bound {
        let Proved { bound, cut } = proved;
        let Some(cut) = cut.filter(|cut| !cut.places.is_empty()) else { return bound };
        let most = (CASES / self.graph.len().max(1)).min(MOST_CASES);
        let mut moments = Moments::new(ready, bound.time, self.memory_limit);
        let cut = cases::prove(&mut moments, cut, most);
        with_cut(bound, &moments, Some(&cut))
    }
}

impl BoundProof<'_> {
    /// The bound, or a better one if an order is known whose step is close to it: every faster
    /// order must satisfy further precedences. The lesser of what is proved with those and the
    /// known step is a bound for all orders.
    pub fn sharpened(&self, step_time: Nanos) -> Bound {
        let BoundProof { bound, of, ref implied } = *self;
        let is_close = step_time.0 <= bound.time.0 * (1.0 + CLOSE);
        if bound.is_reached_by(step_time) || !is_close || of.graph.len() > SHORT {
            return bound;
        }
        let pairs = shave::shave(&of, implied, step_time);
        let left = of.ready(&pairs).map(|ready| of.proved(&ready).bound);
        let basis = left.map_or(bound.basis, |left| left.basis);
        let time = left.map_or(step_time, |left| left.time.min(step_time));
        if time <= bound.time {
            return bound;
        }
        let memory = bound.memory || !implied.is_empty() || left.is_some_and(|left| left.memory);
        Bound { time, basis, memory, ..bound }
    }
}

/// The better of a bound and the proof by moments.
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

/// The bounds of single machines.
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

/// A bound because compute and the collectives of one stream slow each other.
///
/// In a step, let `both` be the time in which both run; each may also run alone. Compute has
/// `compute` to do and does `both / slowdown` of it beside the stream; the stream has `sent` to do
/// and does `both / comm_slowdown` of it beside compute. So the step takes at least
/// `compute + sent - both * saved`, where `saved` is `1 / slowdown + 1 / comm_slowdown - 1`, and
/// `both` is at most what either takes if it never runs alone.
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
