//! Runs passes in sequence and proves each result: no order leaves without a proof.

use thiserror::Error;

use crate::cost::Times;
use crate::graph::{Edges, Graph};
use crate::memory::{LedgerMismatch, Timeline};
use crate::order::Order;
use crate::overlap::Fidelity;
use crate::pass::{LedgerCheck, NoWatch, Options, Pass, PassOutcome, Runner, Slide};
use crate::units::Bytes;
use crate::verify::{self, Demands, OrderEdges, Violation};

/// A request for a schedule.
#[derive(Clone, Debug)]
pub struct Request {
    /// The passes, one after the other.
    pub passes: Vec<Pass>,
    /// How they behave.
    pub options: Options,
    /// Compare the ledger with the full account after every swap.
    pub check_memory: bool,
}

impl Request {
    /// Which edges the result keeps: all, if every pass keeps those that it was given.
    pub fn edges(&self) -> Edges {
        let keeps = |pass: &Pass| pass.promise(&self.options).order_edges;
        if self.passes.iter().all(keeps) { Edges::All } else { Edges::Real }
    }
}

/// Observes the making of a schedule. The library has no clock and no terminal: callers measure and
/// show progress here.
pub trait Observer {
    /// A pass is about to run.
    fn pass_started(&mut self, _pass: Pass) {}
    /// A pass has run; its result is not verified yet.
    fn pass_finished(&mut self, _pass: Pass) {}
    /// A swap was made and checked, and this much of the pass is done, from 0 to 1; only with
    /// [`Request::check_memory`].
    fn swap_checked(&mut self, _part: f64) {}
}

/// No observer.
pub struct NoObserver;

impl Observer for NoObserver {}

/// A proved order, and how it came about.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Schedule {
    /// The order.
    pub order: Order,
    /// The input order's peak.
    pub peak_before: Bytes,
    /// The order's peak.
    pub peak: Bytes,
    /// What each pass did, in sequence.
    pub passes: Vec<PassRun>,
}

/// What one pass did.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PassRun {
    /// The pass.
    pub pass: Pass,
    /// Swaps made.
    pub moves: usize,
    /// What became of each operation that was slid.
    pub slides: Vec<Slide>,
    /// The peak of the order that it gave.
    pub peak: Bytes,
    /// The limit that torch's pass has and does not keep; always `None` for fixed passes.
    pub exceeded_limit: Option<Bytes>,
}

/// Our own bug, or torch's in a pass that is to behave like it.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Failure {
    /// The ledger is wrong.
    #[error("{}: the memory ledger does not hold after a swap", pass.name())]
    Ledger {
        /// The pass that ran.
        pass: Pass,
        /// The swap, the ledger and the truth.
        mismatch: Box<LedgerMismatch>,
    },
    /// A pass gave an order that is not valid.
    #[error("{}: the result is not valid: {violation}", pass.name())]
    Unproved {
        /// The pass that ran.
        pass: Pass,
        /// What is wrong.
        violation: Violation,
    },
}

/// Runs the passes on the input order.
pub fn run(
    graph: &Graph,
    times: &Times,
    request: &Request,
    observer: &mut impl Observer,
) -> Result<Schedule, Failure> {
    let mut order = Order::of_input(graph);
    let peak_before = Timeline::of(graph, &order).peak;
    let mut passes: Vec<PassRun> = Vec::with_capacity(request.passes.len());
    for &pass in &request.passes {
        let given_peak = passes.last().map_or(peak_before, |run| run.peak);
        let step = PassStep { graph, times, request, pass, given: &order, given_peak };
        let (next, run) = step.run(observer)?;
        order = next;
        passes.push(run);
    }
    let peak = passes.last().map_or(peak_before, |run| run.peak);
    Ok(Schedule { order, peak_before, peak, passes })
}

/// One pass of a request, on the order that the one before it gave.
struct PassStep<'a> {
    graph: &'a Graph,
    times: &'a Times,
    request: &'a Request,
    pass: Pass,
    given: &'a Order,
    given_peak: Bytes,
}

impl PassStep<'_> {
    fn run(&self, observer: &mut impl Observer) -> Result<(Order, PassRun), Failure> {
        let PassStep { graph, times, request, pass, .. } = *self;
        let runner = Runner { graph, times, options: &request.options };
        observer.pass_started(pass);
        let outcome = match request.check_memory || request.options.settings.debug_memory_recompute
        {
            true => {
                let targets =
                    graph.ops().filter(|&op| pass.slides(graph.kind(op))).count().max(1) as f64;
                let on_swap = |slid| observer.swap_checked(slid as f64 / targets);
                runner.run(pass, self.given, &mut LedgerCheck { on_swap })
            }
            false => runner.run(pass, self.given, &mut NoWatch),
        };
        observer.pass_finished(pass);
        let PassOutcome { order, moves, slides } =
            outcome.map_err(|mismatch| Failure::Ledger { pass, mismatch })?;
        let (peak, exceeded_limit) = self.prove(&order)?;
        Ok((order, PassRun { pass, moves, slides, peak, exceeded_limit }))
    }

    /// Proves what the pass promises; returns the peak, and the limit if it is exceeded. That torch
    /// exceeds its own budget is a fact to report, not a bug.
    fn prove(&self, order: &Order) -> Result<(Bytes, Option<Bytes>), Failure> {
        let promise = self.pass.promise(&self.request.options);
        let limit = promise.memory_limit(self.given_peak);
        let order_edges = match promise.order_edges {
            true if self.pass.sorts_anew() => OrderEdges::Kept,
            true => OrderEdges::KeptSince(self.given.as_slice()),
            false => OrderEdges::Free,
        };
        let is_torch = self.request.options.fidelity == Fidelity::Torch;
        let demands = Demands { order_edges, memory_limit: if is_torch { None } else { limit } };
        let proof = verify::verify(self.graph, order.as_slice(), &demands);
        let proof = proof.map_err(|violation| Failure::Unproved { pass: self.pass, violation })?;
        Ok((proof.peak, limit.filter(|&limit| proof.peak > limit)))
    }
}
