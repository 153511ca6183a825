//! The simulator: when every operation would run.
//!
//! One compute stream runs compute operations and waits, in order. Each communication stream runs
//! its collectives in the order in which they are issued. A collective starts when the compute
//! stream has come to it, what it needs is there and its stream is free; an operation that needs a
//! collective's result stops the compute stream until it is there; a synchronous collective
//! occupies both streams. The step ends when everything has.
//!
//! Three effects can be added: compute and communication are slower while they run beside each
//! other, the host needs time to issue an operation, which cannot start before it was issued, and
//! streams can share the bandwidth of a link.

mod beside;
mod bound;
mod exposure;
mod shared;

pub use bound::{Basis, Bound, BoundProof, Bounded, lower_bound};
pub(crate) use exposure::Waited;
pub use exposure::{Cause, Exposure};
pub use shared::Sharing;

use beside::{OpenTransfer, UnderWay};
use shared::SharedLinks;

use crate::cost::Times;
use crate::graph::{Assignment, Graph, OpKind, Streams};
use crate::ids::{IdVec, OpId, StreamId};
use crate::units::Nanos;

/// What orders are simulated on.
///
/// ```
/// use halflap::{cost::Times, order::Order, simulate::{Machine, simulate}};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let bytes = std::fs::read("../../tests/corpus/ddp_mlp_4.graph.json.gz")?;
/// let graph = halflap::import::read_graph(&bytes)?;
/// let quiet = Machine::new(&graph, Times::given(&graph)?);
/// // Compute is 20% slower while communication runs.
/// let mut busy = quiet.clone();
/// busy.slowdown = 1.2;
/// let order = Order::of_input(&graph);
/// let step = |machine: &Machine| simulate(&graph, order.as_slice(), machine).step_time;
/// assert!(step(&busy) >= step(&quiet));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Machine {
    /// The streams of collectives.
    pub streams: Streams,
    /// How long operations take.
    pub times: Times,
    /// The factor on compute while communication runs beside it: 1 is no slowdown.
    pub slowdown: f64,
    /// The factor on communication while compute runs beside it: 1 is no slowdown.
    pub comm_slowdown: f64,
    /// The time that the host needs to issue an operation.
    pub launch: Nanos,
    /// The earliest start of each collective, because another rank arrives later.
    pub peers: Option<IdVec<OpId, Nanos>>,
    /// How collectives of different streams share links, if they do.
    pub sharing: Option<Sharing>,
}

impl Machine {
    /// Streams by shared ranks, no contention, no host time, ranks in step.
    pub fn new(graph: &Graph, times: Times) -> Machine {
        let streams = Streams::assign(graph, Assignment::SharedRanks);
        Machine {
            sharing: Sharing::of(graph, &streams, &times),
            streams,
            times,
            slowdown: 1.0,
            comm_slowdown: 1.0,
            launch: Nanos::ZERO,
            peers: None,
        }
    }

    /// The same without contention: nothing is slower because of what runs beside it.
    pub fn uncontended(&self) -> Machine {
        Machine { slowdown: 1.0, comm_slowdown: 1.0, sharing: None, ..self.clone() }
    }

    /// Whether compute and communication slow each other, or collectives share links.
    pub fn is_contended(&self) -> bool {
        self.slowdown > 1.0 || self.comm_slowdown > 1.0 || self.sharing.is_some()
    }
}

/// An order in time.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Simulation {
    /// The end of the step.
    pub step_time: Nanos,
    /// When each operation starts.
    pub start: IdVec<OpId, Nanos>,
    /// When each operation ends.
    pub end: IdVec<OpId, Nanos>,
    /// The stalls of the compute stream, with their causes.
    pub exposures: Vec<Exposure>,
    /// How long the compute stream was idle before the step's end.
    pub compute_idle: Nanos,
    /// How long each communication stream was idle before the step's end.
    pub stream_idle: IdVec<StreamId, Nanos>,
}

impl Simulation {
    /// How long the compute stream stalls on collectives in total.
    pub fn exposed(&self) -> Nanos {
        self.exposures
            .iter()
            .filter(|exposure| exposure.is_communication())
            .map(|exposure| exposure.time)
            .sum()
    }

    /// The collectives that the compute stream waits for, the longest wait first.
    pub(crate) fn waited_for(&self) -> Vec<Waited> {
        let mut exposed: IdVec<OpId, (Nanos, Option<OpId>)> =
            IdVec::filled((Nanos::ZERO, None), self.start.len());
        for exposure in self.exposures.iter().filter(|exposure| exposure.is_communication()) {
            let entry = &mut exposed[exposure.of];
            *entry = (entry.0 + exposure.time, entry.1.or(Some(exposure.at)));
        }
        let mut waited: Vec<Waited> = exposed
            .iter()
            .filter_map(|(collective, &(exposed, at))| {
                Some(Waited { collective, exposed, at: at? })
            })
            .filter(|waited| waited.exposed > Nanos::ZERO)
            .collect();
        waited.sort_by(|a, b| {
            b.exposed.0.total_cmp(&a.exposed.0).then(a.collective.cmp(&b.collective))
        });
        waited
    }
}

/// Simulates an order.
pub fn simulate(graph: &Graph, order: &[OpId], machine: &Machine) -> Simulation {
    let mut clock = StreamClock::new(graph, machine);
    for &op in order {
        clock.run(op);
    }
    clock.finish()
}

/// The stalls of the compute stream, and the collective of each.
struct ComputeStall {
    at: OpId,
    of: OpId,
    cause: Cause,
}

struct StreamClock<'a> {
    graph: &'a Graph,
    machine: &'a Machine,
    /// When the host has issued everything so far.
    host: Nanos,
    /// When the compute stream has finished everything so far.
    now: Nanos,
    free: IdVec<StreamId, Nanos>,
    /// What communicates now or later, if there is contention and nothing shares a link.
    under_way: Option<UnderWay>,
    /// The same if links are shared.
    shared: Option<SharedLinks<'a>>,
    /// The collectives of each stream, in the order in which they were issued.
    issued: IdVec<StreamId, Vec<OpId>>,
    compute_busy: Nanos,
    start: IdVec<OpId, Nanos>,
    end: IdVec<OpId, Nanos>,
    exposures: Vec<Exposure>,
}

impl<'a> StreamClock<'a> {
    fn new(graph: &'a Graph, machine: &'a Machine) -> StreamClock<'a> {
        let streams = machine.streams.len();
        StreamClock {
            graph,
            machine,
            host: Nanos::ZERO,
            now: Nanos::ZERO,
            free: IdVec::filled(Nanos::ZERO, streams),
            under_way: (machine.is_contended() && machine.sharing.is_none())
                .then(|| UnderWay::new(streams)),
            shared: machine.sharing.is_some().then(|| SharedLinks::new(graph, machine)),
            issued: IdVec::filled(Vec::new(), streams),
            compute_busy: Nanos::ZERO,
            start: IdVec::filled(Nanos::ZERO, graph.len()),
            end: IdVec::filled(Nanos::ZERO, graph.len()),
            exposures: Vec::new(),
        }
    }

    fn run(&mut self, op: OpId) {
        let kind = self.graph.kind(op);
        if kind != OpKind::MultiOutput {
            self.host += self.machine.launch;
        }
        match kind {
            OpKind::AsyncCollective | OpKind::SyncCollective if self.shared.is_some() => {
                self.share(op, kind);
            }
            OpKind::AsyncCollective => self.start_collective(op),
            OpKind::SyncCollective => self.run_synchronous(op),
            OpKind::Compute | OpKind::Wait => self.run_compute(op),
            OpKind::MultiOutput => {
                let now = self.now.max(self.host);
                (self.start[op], self.end[op]) = (now, now);
            }
        }
    }

    fn start_collective(&mut self, op: OpId) {
        let Some(stream) = self.machine.streams.of(op) else { return };
        let ready = self.ready(op).max(self.peers_ready(op));
        let start = ready.max(self.free[stream]);
        let end = start + self.machine.times.of(op);
        (self.start[op], self.end[op], self.free[stream]) = (start, end, end);
        self.issued[stream].push(op);
        if let Some(under_way) = &mut self.under_way {
            under_way.add(stream, OpenTransfer { op, ready, left: end - start });
        }
    }

    /// Runs a collective that may share its link.
    fn share(&mut self, op: OpId, kind: OpKind) {
        let issued = self.now.max(self.host).max(self.peers_ready(op));
        let Some(shared) = &mut self.shared else { return };
        shared.issue(op, issued, self.now);
        self.place();
        if kind == OpKind::SyncCollective {
            let (start, end) = (self.start[op], self.end[op]);
            self.stall(op, start);
            self.now = end;
            let (time, cause) = (end - start, Cause::Synchronous);
            self.exposures.push(Exposure { at: op, of: op, start, time, cause });
        }
        if let Some(stream) = self.machine.streams.of(op) {
            self.issued[stream].push(op);
        }
    }

    /// Where everything that shares links is, if nothing else is issued.
    fn place(&mut self) {
        let placed = self.shared.as_mut().map(SharedLinks::placed);
        for (op, start, end) in placed.into_iter().flatten() {
            (self.start[op], self.end[op]) = (start, end);
        }
    }

    fn run_synchronous(&mut self, op: OpId) {
        let ready = self.ready(op);
        let stream = self.machine.streams.of(op);
        let start =
            stream.map_or(ready, |stream| ready.max(self.free[stream])).max(self.peers_ready(op));
        let time = self.machine.times.of(op);
        self.stall(op, start);
        self.now = start + time;
        (self.start[op], self.end[op]) = (start, self.now);
        if let Some(stream) = stream {
            self.free[stream] = self.now;
            self.issued[stream].push(op);
        }
        self.exposures.push(Exposure { at: op, of: op, start, time, cause: Cause::Synchronous });
    }

    fn run_compute(&mut self, op: OpId) {
        let start = self.ready(op);
        self.stall(op, start);
        let end = self.finish_compute(start, self.machine.times.of(op));
        self.compute_busy += end - start;
        self.now = end;
        (self.start[op], self.end[op]) = (start, end);
    }

    /// When all other ranks have come to a collective.
    fn peers_ready(&self, op: OpId) -> Nanos {
        self.machine.peers.as_ref().map_or(Nanos::ZERO, |peers| peers[op])
    }

    /// When `op` could start, considering its inputs: only collectives can keep it waiting, because
    /// everything else ran on the compute stream before.
    fn ready(&self, op: OpId) -> Nanos {
        let gated_by = self.graph.gated_by(op).iter();
        gated_by.fold(self.now.max(self.host), |ready, &collective| ready.max(self.end[collective]))
    }

    /// The end of compute that starts at `start`. With contention, the ends of what is in flight
    /// move, too.
    fn finish_compute(&mut self, start: Nanos, time: Nanos) -> Nanos {
        if let Some(shared) = self.shared.as_mut().filter(|shared| shared.slows_compute()) {
            let end = shared.run_beside(start, time);
            self.place();
            return end;
        }
        let Some(under_way) = &mut self.under_way else { return start + time };
        let end = under_way.run_beside(start, time, self.machine);
        for (stream, transfers) in under_way.placed() {
            for (op, from, until) in transfers {
                (self.start[op], self.end[op], self.free[stream]) = (from, until, until);
            }
        }
        end
    }

    fn finish(mut self) -> Simulation {
        let step_time =
            self.end.as_slice().iter().fold(Nanos::ZERO, |latest, &end| latest.max(end));
        let last = self.end.iter().find(|(_, end)| **end == step_time).map(|(op, _)| op);
        if let Some(op) = last.filter(|_| step_time > self.now) {
            self.expose(ComputeStall { at: op, of: op, cause: Cause::EndOfStep }, step_time);
        }
        let is_contended = self.machine.is_contended();
        let taken = |op: OpId| match is_contended {
            true => self.end[op] - self.start[op],
            false => self.machine.times.of(op),
        };
        let busy = |ops: &Vec<OpId>| ops.iter().fold(Nanos::ZERO, |sum, &op| sum + taken(op));
        let stream_idle = self.issued.as_slice().iter().map(|ops| step_time - busy(ops)).collect();
        Simulation {
            step_time,
            start: self.start,
            end: self.end,
            exposures: self.exposures,
            compute_idle: step_time - self.compute_busy,
            stream_idle,
        }
    }

    /// Records a stall of the compute stream until `until` before `op`: on collectives while one is
    /// awaited, then on the host or on peers.
    fn stall(&mut self, op: OpId, until: Nanos) {
        let blocker = self.blocker(op);
        let communicates_until = blocker.map_or(self.now, |of| self.end[of].min(until));
        if let Some(of) = blocker.filter(|_| communicates_until > self.now) {
            self.expose(ComputeStall { at: op, of, cause: Cause::Needed }, communicates_until);
        }
        self.wait_for_host(op, self.now.max(communicates_until), until);
    }

    /// The collective that an operation waits for longest; a synchronous one waits for its stream,
    /// too.
    fn blocker(&self, op: OpId) -> Option<OpId> {
        let needed = self.graph.gated_by(op).iter().copied();
        let ahead =
            self.machine.streams.of(op).and_then(|stream| self.issued[stream].last().copied());
        needed.chain(ahead).max_by(|&a, &b| self.end[a].0.total_cmp(&self.end[b].0).then(b.cmp(&a)))
    }

    /// Charges a stall to the collectives that ran in that time: the one that is waited for, and
    /// those that it had to wait for itself.
    fn expose(&mut self, stall: ComputeStall, until: Nanos) {
        let ComputeStall { at, of, cause } = stall;
        let (mut running, mut left) = (of, until);
        loop {
            let start = self.start[running].max(self.now);
            if left > start {
                self.exposures.push(Exposure { at, of: running, start, time: left - start, cause });
                left = start;
            }
            if left <= self.now {
                return;
            }
            match self.held_up_by(running) {
                Some(before) => running = before,
                None => return self.wait_for_host(at, self.now, left),
            }
        }
    }

    /// The collective whose end let another one start: on the same stream, or because that one
    /// needs it.
    fn held_up_by(&self, op: OpId) -> Option<OpId> {
        let issued =
            self.machine.streams.of(op).map_or(&[][..], |stream| self.issued[stream].as_slice());
        let place = issued.iter().rposition(|&other| other == op);
        let ahead = place.and_then(|place| issued[..place].last().copied());
        let needed = self.graph.gated_by(op).iter().copied();
        ahead.into_iter().chain(needed).find(|&before| self.end[before] == self.start[op])
    }

    /// Records a stall on no collective.
    fn wait_for_host(&mut self, at: OpId, start: Nanos, until: Nanos) {
        if until > start {
            self.exposures.push(Exposure {
                at,
                of: at,
                start,
                time: until - start,
                cause: Cause::Issued,
            });
        }
    }
}
