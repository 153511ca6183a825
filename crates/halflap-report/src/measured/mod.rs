//! A measured step of real ranks, compared with the same step simulated.
//!
//! [`Step`] holds what was measured: the compiled graphs of a step in the orders that ran, and for
//! each rank when every operation and every transfer started and ended. [`Comparison`] simulates
//! these orders and says where a step's time went, and which operations differ most.

mod step_json;

pub use step_json::{StepError, read_step};

use std::sync::Arc;

use halflap::graph::{Graph, OpKind};
use halflap::ids::{Id, OpId};
use halflap::order::Order;
use halflap::simulate::{Machine, Simulation, simulate};
use halflap::units::Nanos;

/// A measured step.
#[derive(Clone, Debug)]
pub struct Step {
    /// Its graphs, in the order in which they ran.
    pub parts: Vec<StepPart>,
    /// What was measured on each rank.
    pub ranks: Vec<RankStep>,
    /// The part of a step that no order changes, if known before: `None` takes it from this
    /// measurement.
    pub outside: Option<Nanos>,
}

/// A graph in the order that ran.
#[derive(Clone, Debug)]
pub struct StepPart {
    /// Its name: `forward`.
    pub name: String,
    /// The program, with the run times that it is simulated with.
    pub graph: Arc<Graph>,
    /// The order that ran.
    pub order: Order,
    /// What it is simulated on.
    pub machine: Machine,
}

/// A step on one rank. Times count from its beginning.
#[derive(Clone, Debug)]
pub struct RankStep {
    /// How long the step took.
    pub time: Nanos,
    /// One for each part.
    pub parts: Vec<PartRun>,
}

/// A graph on one rank.
#[derive(Clone, Debug)]
pub struct PartRun {
    /// When its program was called.
    pub begin: Nanos,
    /// When it returned.
    pub end: Nanos,
    /// What the rank itself did: kernels, issuing collectives, waiting for them.
    pub ran: Vec<MeasuredSpan>,
    /// Collectives on the wire, from when all their ranks had arrived.
    pub transfers: Vec<MeasuredSpan>,
}

/// An operation and its time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MeasuredSpan {
    /// Which.
    pub op: OpId,
    /// From when.
    pub start: Nanos,
    /// Until when.
    pub end: Nanos,
}

impl MeasuredSpan {
    /// How long.
    pub fn time(&self) -> Nanos {
        self.end - self.start
    }
}

/// Where a step's time went.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct StepSpent {
    /// Kernels.
    pub compute: Nanos,
    /// Waiting for collectives.
    pub waiting: Nanos,
    /// Issuing collectives. The simulator counts it as a part of `outside`.
    pub issuing: Nanos,
    /// All else: autograd, the optimizer, Python.
    pub outside: Nanos,
}

impl StepSpent {
    /// The step.
    pub fn total(&self) -> Nanos {
        self.compute + self.waiting + self.issuing + self.outside
    }

    fn on_rank(step: &Step, rank: &RankStep) -> StepSpent {
        let mut spent = StepSpent::default();
        for (part, run) in step.parts.iter().zip(&rank.parts) {
            for span in &run.ran {
                *match part.graph.kind(span.op) {
                    OpKind::Compute | OpKind::MultiOutput => &mut spent.compute,
                    OpKind::AsyncCollective => &mut spent.issuing,
                    OpKind::Wait | OpKind::SyncCollective => &mut spent.waiting,
                } += span.time();
            }
        }
        spent.outside = rank.time - spent.compute - spent.waiting - spent.issuing;
        spent
    }

    fn mean(all: &[StepSpent]) -> StepSpent {
        let mean = |of: fn(&StepSpent) -> Nanos| {
            Nanos(all.iter().map(|one| of(one).0).sum::<f64>() / all.len() as f64)
        };
        StepSpent {
            compute: mean(|one| one.compute),
            waiting: mean(|one| one.waiting),
            issuing: mean(|one| one.issuing),
            outside: mean(|one| one.outside),
        }
    }
}

/// What is compared for an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ComparedPart {
    /// A kernel's run time.
    Kernel,
    /// A collective's time on the wire.
    Transfer,
    /// How long a rank was stalled at a wait.
    Wait,
}

/// An operation: measured, as the mean over ranks, and simulated.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct OpDifference {
    /// The place of its part in the step.
    pub part: usize,
    /// The operation.
    pub op: OpId,
    /// What is compared.
    pub what: ComparedPart,
    /// As measured.
    pub measured: Nanos,
    /// As it is simulated.
    pub simulated: Nanos,
}

impl OpDifference {
    /// How much longer it took than simulated.
    pub fn excess(&self) -> Nanos {
        self.measured - self.simulated
    }
}

/// A measured step compared with its simulation.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Comparison {
    /// For each part.
    pub simulations: Vec<Simulation>,
    /// The mean over ranks.
    pub measured: StepSpent,
    /// The same, simulated.
    pub simulated: StepSpent,
    /// Every operation, the largest difference first.
    pub differences: Vec<OpDifference>,
}

impl Comparison {
    /// Simulates a step and compares.
    pub fn of(step: &Step) -> Comparison {
        let simulated_part =
            |part: &StepPart| simulate(&part.graph, part.order.as_slice(), &part.machine);
        let simulations: Vec<Simulation> = step.parts.iter().map(simulated_part).collect();
        let of_ranks: Vec<StepSpent> =
            step.ranks.iter().map(|rank| StepSpent::on_rank(step, rank)).collect();
        let measured = StepSpent::mean(&of_ranks);
        let waiting: Nanos = simulations.iter().map(|one| one.compute_idle).sum();
        let whole: Nanos = simulations.iter().map(|one| one.step_time).sum();
        let outside = step.outside.unwrap_or(measured.outside + measured.issuing);
        let simulated =
            StepSpent { compute: whole - waiting, waiting, issuing: Nanos::ZERO, outside };
        let mut differences: Vec<OpDifference> = simulations
            .iter()
            .enumerate()
            .flat_map(|(part, simulation)| differences(step, part, simulation))
            .collect();
        // Stable: equal ones stay in the order of the step.
        differences.sort_by(|a, b| b.excess().0.abs().total_cmp(&a.excess().0.abs()));
        Comparison { simulations, measured, simulated, differences }
    }
}

/// The operations of a part, in its order.
fn differences(step: &Step, place: usize, simulation: &Simulation) -> Vec<OpDifference> {
    let StepPart { graph, order, .. } = &step.parts[place];
    let mut stalls = vec![Nanos::ZERO; graph.len()];
    for exposure in &simulation.exposures {
        stalls[exposure.at.index()] += exposure.time;
    }
    let runs: Vec<&PartRun> = step.ranks.iter().map(|rank| &rank.parts[place]).collect();
    let ran = means(graph.len(), runs.iter().map(|run| &run.ran[..]));
    let sent = means(graph.len(), runs.iter().map(|run| &run.transfers[..]));
    let difference = |&op: &OpId| {
        let alone = simulation.end[op] - simulation.start[op];
        let (what, measured, simulated) = match graph.kind(op) {
            OpKind::MultiOutput => return None,
            OpKind::Compute => (ComparedPart::Kernel, ran[op.index()], alone),
            OpKind::AsyncCollective => (ComparedPart::Transfer, sent[op.index()], alone),
            OpKind::SyncCollective => (ComparedPart::Wait, ran[op.index()], alone),
            OpKind::Wait => (ComparedPart::Wait, ran[op.index()], stalls[op.index()]),
        };
        Some(OpDifference { part: place, op, what, measured: measured?, simulated })
    };
    order.as_slice().iter().filter_map(difference).collect()
}

/// The time of each operation: the mean over the lists that have it.
fn means<'a>(len: usize, lists: impl Iterator<Item = &'a [MeasuredSpan]>) -> Vec<Option<Nanos>> {
    let mut sums = vec![(0.0, 0); len];
    for span in lists.flatten() {
        let (sum, count) = &mut sums[span.op.index()];
        *sum += span.time().0;
        *count += 1;
    }
    sums.into_iter()
        .map(|(sum, count)| (count > 0).then(|| Nanos(sum / f64::from(count))))
        .collect()
}
