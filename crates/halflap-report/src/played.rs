//! An order as it would run: the input for drawing it.

use halflap::evaluate::{Evaluation, Setup};
use halflap::graph::{Graph, OpKind};
use halflap::ids::OpId;
use halflap::memory::Timeline;
use halflap::order::Order;
use halflap::origin::Origin;
use halflap::simulate::{Machine, Simulation};
use halflap::units::{Bytes, Nanos};

/// An order on streams, with its memory.
pub struct Played<'a> {
    /// What to call it: `before`, `after`.
    pub name: &'static str,
    /// The program.
    pub graph: &'a Graph,
    /// What it runs on.
    pub machine: &'a Machine,
    /// The order.
    pub order: &'a Order,
    /// When everything runs.
    pub simulation: &'a Simulation,
    /// What is alive.
    pub memory: &'a Timeline,
    /// The origin that maps this program to the one it is compared with, if they differ.
    pub origin: Option<&'a Origin>,
}

/// What is alive from a time on.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct MemoryStep {
    /// From when.
    pub time: Nanos,
    /// How much.
    pub bytes: Bytes,
}

impl<'a> Played<'a> {
    /// An evaluated order.
    pub fn new(name: &'static str, setup: Setup<'a>, evaluation: &'a Evaluation) -> Played<'a> {
        let Setup { graph, machine } = setup;
        let Evaluation { order, simulation, memory, .. } = evaluation;
        Played { name, graph, machine, order, simulation, memory, origin: None }
    }

    /// The same for a program that was rewritten into the one that it is shown beside.
    pub fn changed_by(self, origin: &'a Origin) -> Played<'a> {
        Played { origin: Some(origin), ..self }
    }

    /// What is alive over time, two steps for each operation of the order: while it runs, and when
    /// it has freed what it used last. An asynchronous collective takes its memory when it is
    /// issued.
    pub fn memory_steps(&self) -> Vec<MemoryStep> {
        let mut steps = Vec::with_capacity(2 * self.order.len());
        let (mut now, mut host) = (Nanos::ZERO, Nanos::ZERO);
        for &op in self.order.as_slice() {
            let kind = self.graph.kind(op);
            if kind != OpKind::MultiOutput {
                host += self.machine.launch;
            }
            let (start, end) = match kind {
                OpKind::AsyncCollective => (now.max(host), now.max(host)),
                _ => self.times(op),
            };
            now = end;
            let level = self.memory.levels[op];
            steps.push(MemoryStep { time: start, bytes: level.post_alloc });
            steps.push(MemoryStep { time: end, bytes: level.post_free() });
        }
        steps
    }

    /// From when until when an operation runs.
    pub fn times(&self, op: OpId) -> (Nanos, Nanos) {
        (self.simulation.start[op], self.simulation.end[op])
    }
}
