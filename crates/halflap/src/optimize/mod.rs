//! The optimizer: the order with the shortest simulated step within a memory limit.
//!
//! Independent annealing chains start from the best order that is known without search (the input
//! order, or the fixed passes' result), and the best result is taken: the shortest step, then the
//! most slack, then the lowest peak. The smallest programs are searched exactly. The work is
//! bounded in steps, so that the result is the same on every machine, and chains share nothing, so
//! that it is the same on any number of threads.

mod anneal;
mod board;
mod exact;
mod polish;
mod probe;
mod program;
mod settle;
mod sketch;

pub(crate) use probe::{Probe, Side};
pub(crate) use program::Program;
pub(crate) use sketch::{FirstLook, Sketch, sketch};

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use thiserror::Error;

use crate::graph::{Edges, Graph};
use crate::ids::{Id, OpId};
use crate::memory::Timeline;
use crate::order::Order;
use crate::overlap::Fidelity;
use crate::pass::{NoWatch, Options, Pass, Runner, Settings};
use crate::robustness::Robustness;
use crate::simulate::{Basis, Bound, BoundProof, Bounded, Machine, lower_bound, simulate};
use crate::units::{Bytes, Nanos};
use crate::verify::{Demands, OrderEdges, Violation, verify};
use anneal::{Chain, Found, anneal};
use board::Board;
use polish::polished;

/// How much work is done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Effort {
    /// About a twelfth of the default's.
    Quick,
    /// Half a second for a thousand operations.
    #[default]
    Default,
    /// About seven times the default's, and exact search if possible.
    Thorough,
    /// Half the search of `Quick`, to compare programs: no slack is added to the order, its last
    /// moves are not made, and next to nothing is proved of the lower bound. All of these take
    /// longer than the search.
    Sketch,
}

/// Chains that run side by side.
struct Stage {
    chains: usize,
    /// How many steps each chain takes.
    steps: usize,
    /// How many times the initial temperature is halved before they start. Chains that start hot
    /// search widely from the first order; those that start cool refine the best order so far.
    cooled: f64,
    /// Whether they make room for moves that exceed the memory limit.
    makes_room: bool,
}

impl Effort {
    /// The lower efforts and this one. Each runs after all lower ones, and the best order of all is
    /// taken: more effort never gives a slower order.
    fn rungs(self) -> &'static [Effort] {
        const RUNGS: [Effort; 3] = [Effort::Quick, Effort::Default, Effort::Thorough];
        match self {
            Effort::Sketch => &[Effort::Sketch],
            _ => &RUNGS[..=self as usize],
        }
    }

    /// What it does beyond the lower efforts.
    fn stages(self, len: usize) -> Vec<Stage> {
        // In hundredths of the default: half a second for a thousand operations on two cores, and
        // three for any number.
        let hundredth = (2_600 + 17 * len / 10).max((12 * len).saturating_sub(7_700)).min(18_300);
        let stage = |chains, hundredths, cooled| {
            let makes_room = false;
            Stage { chains, steps: hundredth * hundredths, cooled, makes_room }
        };
        // If memory is tight they find orders that the others do not, and vice versa.
        let roomy = |chains, hundredths, cooled| {
            let makes_room = true;
            Stage { makes_room, ..stage(chains, hundredths, cooled) }
        };
        match self {
            Effort::Sketch => vec![stage(2, 3, 0.0), stage(2, 3, 5.0)],
            Effort::Quick => vec![stage(2, 6, 0.0), stage(2, 6, 5.0)],
            // Many chains would each visit a part of the order too rarely: instead a few search
            // widely and run longer.
            Effort::Default if len > LONG => {
                vec![stage(2, 36, 0.0), stage(2, 54, 4.0), roomy(2, 36, 4.0)]
            }
            Effort::Default => {
                vec![stage(6, 18, 0.0), stage(2, 36, 4.0), roomy(2, 18, 0.0), roomy(2, 36, 4.0)]
            }
            Effort::Thorough => vec![stage(8, 150, 0.0), roomy(4, 200, 4.0)],
        }
    }

    /// Refines an order with different times.
    fn refining(self, len: usize) -> Vec<Stage> {
        let rungs = self.rungs().iter().take(2);
        let mut stages: Vec<Stage> = rungs.flat_map(|rung| rung.stages(len)).collect();
        stages.retain(|stage| stage.cooled > 0.0 && !stage.makes_room);
        stages
    }
}

/// The longest programs that many chains search.
const LONG: usize = 7_000;

/// How often the search is repeated with the times that result from compute and communication
/// slowing each other.
const REFINED: usize = 2;

/// Where a search starts, and its lower bound.
#[derive(Clone, Copy)]
struct Start<'a> {
    /// The best one first.
    orders: &'a [Vec<u32>],
    bound: Bound,
}

/// What to optimize.
pub struct Task<'a> {
    /// The program.
    pub graph: &'a Graph,
    /// What it runs on.
    pub machine: &'a Machine,
    /// The memory limit.
    pub memory_limit: Bytes,
    /// Which edges are kept: with [`Edges::All`] collectives stay in order.
    pub edges: Edges,
    /// Orders to start from, besides the input order; the result is no worse than any of them.
    pub known: &'a [Order],
    /// How much work is done.
    pub effort: Effort,
    /// How many threads may work; does not change the result.
    pub threads: usize,
    /// Called from several threads with the fraction of the work that is done; returns whether to
    /// continue.
    pub progress: &'a (dyn Fn(f64) -> ControlFlow<()> + Sync),
}

/// A proved order.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Optimized {
    /// The order.
    pub order: Order,
    /// Its step time.
    pub step_time: Nanos,
    /// The lower bound for orders that keep the task's edges.
    pub bound: Bound,
    /// Its peak.
    pub peak: Bytes,
    /// The result compared with the input order under variations.
    pub robustness: Robustness,
    /// Whether this is the input order, because what was found is worse in most variations.
    pub input_kept: bool,
}

/// Why there is no order.
#[derive(Debug, Error)]
#[allow(missing_docs)]
#[non_exhaustive]
pub enum OptimizeError {
    #[error(
        "no order was found that needs at most {limit} ({} bytes); the smallest peak reached is \
         {smallest} ({} bytes)",
        limit.0, smallest.0
    )]
    NoOrderWithin { limit: Bytes, smallest: Bytes },
    /// Our own bug.
    #[error("the result is not valid: {0}")]
    Unproved(Violation),
    /// The caller no longer wants a result: [`Task::progress`] said so.
    #[error("stopped before an order was found")]
    Stopped,
}

/// Finds an order.
pub fn optimize(task: &Task<'_>) -> Result<Optimized, OptimizeError> {
    match optimize_so_far(task)? {
        SoFar { is_stopped: true, .. } => Err(OptimizeError::Stopped),
        SoFar { best, .. } => Ok(best),
    }
}

/// The result of a search or, if no order is within the limit, of one for the least memory that was
/// reached: for a callee, whose callers may still make room for it.
pub fn within_or_least<T>(
    task: &Task<'_>,
    search: impl Fn(&Task<'_>) -> Result<T, OptimizeError>,
) -> Result<T, OptimizeError> {
    match search(task) {
        Err(OptimizeError::NoOrderWithin { smallest, .. }) => {
            search(&Task { memory_limit: smallest, ..*task })
        }
        found => found,
    }
}

/// Proves an order that is known, and searches no further.
pub(crate) fn proved_order(task: &Task<'_>, order: &Order) -> Result<Optimized, OptimizeError> {
    let &Task { graph, machine, edges, memory_limit, .. } = task;
    let program = Program::new(graph, machine, edges);
    let mut candidates = Candidates::new(task, &program);
    candidates.extend([Found::new(&program, numbers(order))]);
    candidates.chosen(&Bounded { graph, machine, edges, memory_limit }.prove_by_machines())
}

/// The best order found, and whether the search completed.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SoFar {
    /// The order, which is proved like any other.
    pub best: Optimized,
    /// Whether [`Task::progress`] ended the search early.
    pub is_stopped: bool,
}

/// Finds an order; if the search is stopped, the best so far, which is no worse than the input
/// order within the limit.
pub fn optimize_so_far(task: &Task<'_>) -> Result<SoFar, OptimizeError> {
    let stopped = AtomicBool::new(false);
    let progress = |part: f64| {
        let told = (task.progress)(part);
        stopped.fetch_or(told.is_break(), Ordering::Relaxed);
        told
    };
    let best = best_of(&Task { progress: &progress, ..*task });
    let is_stopped = stopped.load(Ordering::Relaxed);
    match best {
        // A stopped search that found nothing within the limit proves nothing.
        Err(OptimizeError::NoOrderWithin { .. }) if is_stopped => Err(OptimizeError::Stopped),
        best => Ok(SoFar { best: best?, is_stopped }),
    }
}

/// The best of everything found until the search ended or was stopped.
fn best_of(task: &Task<'_>) -> Result<Optimized, OptimizeError> {
    let program = Program::new(task.graph, task.machine, task.edges);
    let starts = starts(task);
    let &Task { graph, machine, edges, memory_limit, .. } = task;
    let bounded = Bounded { graph, machine, edges, memory_limit };
    let mut proved = match task.effort {
        Effort::Sketch => bounded.prove_by_work(),
        _ => bounded.prove(),
    };
    let mut candidates = Candidates::new(task, &program);
    candidates.extend(starts.iter().map(|order| Found::new(&program, order.clone())));
    // Orders within the limit come first; if there are none, the closest one is enough.
    let within = candidates.ranked.len().max(1);
    let rungs = task.effort.rungs();
    let stages = |rung: &Effort| rung.stages(program.len);
    let steps = rungs.iter().flat_map(stages).map(|stage| stage.chains * stage.steps).sum();
    let start = Start { orders: &starts[..within], bound: uncontended(task, proved.bound) };
    let mut hunt = Hunt::new(task, &program, start, steps);
    for &rung in rungs {
        let exact = exact_order(&hunt, rung);
        candidates.extend(climb(&mut hunt, rung, exact.as_deref()));
        if task.machine.is_contended() {
            refine(&mut candidates, rung);
        }
        if rung != Effort::Sketch {
            candidates.settle(proved.bound);
        }
        if let Some(bound) = exact.and_then(|order| exhausted(task, &order)) {
            proved.bound = bound;
        }
        if hunt.is_stopped() || candidates.reach(proved.bound) {
            break;
        }
    }
    candidates.chosen(&proved)
}

/// The lower bound without contention, which the search itself does not model.
fn uncontended(task: &Task<'_>, bound: Bound) -> Bound {
    match task.machine.is_contended() {
        true => lower_bound(task.graph, &task.machine.uncontended(), task.edges, task.memory_limit),
        false => bound,
    }
}

/// The order that exact search finds, if a rung makes one and an order is within the limit.
fn exact_order(hunt: &Hunt<'_>, rung: Effort) -> Option<Vec<u32>> {
    let is_possible = rung == Effort::Thorough && hunt.program.len <= exact::MOST;
    is_possible.then(|| exact::search(hunt.program, hunt.task.memory_limit.0)).flatten()
}

/// What exact search proves: no order is faster than the one it found. It models neither contention
/// nor host time nor late peers.
fn exhausted(task: &Task<'_>, order: &[u32]) -> Option<Bound> {
    let Machine { launch, peers, .. } = task.machine;
    if task.machine.is_contended() || *launch > Nanos::ZERO || peers.is_some() {
        return None;
    }
    let time = simulate(task.graph, &ops_of(order), task.machine).step_time;
    Some(Bound { time, edges: task.edges, basis: Basis::AllOrders, memory: true })
}

/// The orders that one more rung finds: by exact search if possible, otherwise by annealing.
/// Programs without an order within the limit are annealed, too, to see how close one can come.
fn climb(hunt: &mut Hunt<'_>, rung: Effort, exact: Option<&[u32]>) -> Vec<Found> {
    let program = hunt.program;
    match exact {
        Some(order) => {
            let polished = polished(program, order, hunt.task.memory_limit.0);
            vec![polished, Found::new(program, order.to_vec())]
        }
        None => hunt.run(&rung.stages(program.len)),
    }
}

/// Refines the best order so far with the times that its operations take under contention, and
/// repeats that with the result: the search itself does not model contention.
fn refine(candidates: &mut Candidates<'_>, rung: Effort) {
    let task = candidates.task;
    let goes_on = |_: f64| (task.progress)(1.0);
    let quiet = Task { progress: &goes_on, ..*task };
    for _ in 0..REFINED {
        let Some(best) = candidates.best() else { return };
        let ran = simulate(task.graph, &best.ops, task.machine);
        let lasted = |op: OpId, time: Nanos| time.max(ran.end[op] - ran.start[op]);
        let machine =
            Machine { times: task.machine.times.map(lasted), ..task.machine.uncontended() };
        let program = Program::new(task.graph, &machine, task.edges);
        let bound = lower_bound(task.graph, &machine, task.edges, task.memory_limit);
        let order: Vec<u32> = best.ops.iter().map(|op| op.index() as u32).collect();
        let start = Start { orders: std::slice::from_ref(&order), bound };
        let found = Hunt::new(&quiet, &program, start, 1).run(&rung.refining(program.len));
        candidates.extend(found);
        if (task.progress)(1.0).is_break() {
            return;
        }
    }
}

fn ops_of(order: &[u32]) -> Vec<OpId> {
    order.iter().map(|&op| OpId::from_index(op as usize)).collect()
}

fn prove(task: &Task<'_>, ops: Vec<OpId>) -> Result<(Bytes, Order), OptimizeError> {
    let order_edges = if task.edges == Edges::All { OrderEdges::Kept } else { OrderEdges::Free };
    let demands = Demands { order_edges, memory_limit: Some(task.memory_limit) };
    let proof = verify(task.graph, &ops, &demands).map_err(OptimizeError::Unproved)?;
    let order =
        Order::from_ops(task.graph.len(), ops).expect("it was verified to be a permutation");
    Ok((proof.peak, order))
}

/// An order with what it is ranked by.
struct Ranked {
    ops: Vec<OpId>,
    step_time: Nanos,
    slack: f64,
    peak: i64,
}

impl Ranked {
    /// Times that differ by less than a thousandth of a nanosecond are equal but for rounding.
    fn compare(&self, other: &Ranked) -> std::cmp::Ordering {
        let rounded = |time: Nanos| (time.0 * 1e3).round();
        let by_time = rounded(self.step_time).total_cmp(&rounded(other.step_time));
        by_time.then(other.slack.total_cmp(&self.slack)).then(self.peak.cmp(&other.peak))
    }
}

/// Everything found.
struct Candidates<'a> {
    task: &'a Task<'a>,
    program: &'a Program,
    /// Orders within the limit, in the order in which they were found.
    ranked: Vec<Ranked>,
    /// The smallest peak of all.
    smallest: i64,
}

impl<'a> Candidates<'a> {
    fn new(task: &'a Task<'a>, program: &'a Program) -> Candidates<'a> {
        Candidates { task, program, ranked: Vec::new(), smallest: i64::MAX }
    }

    fn extend(&mut self, found: impl IntoIterator<Item = Found>) {
        for Found { order, peak } in found {
            self.smallest = self.smallest.min(peak);
            if peak > self.task.memory_limit.0 {
                continue;
            }
            let ops = ops_of(&order);
            let step_time = simulate(self.task.graph, &ops, self.task.machine).step_time;
            let slack = Board::new(self.program, order).slack();
            self.ranked.push(Ranked { ops, step_time, slack, peak });
        }
    }

    fn best(&self) -> Option<&Ranked> {
        self.ranked.iter().min_by(|a, b| a.compare(b))
    }

    fn reach(&self, bound: Bound) -> bool {
        self.best().is_some_and(|best| bound.is_reached_by(best.step_time))
    }

    /// Adds the results of the last moves of the best orders.
    fn settle(&mut self, bound: Bound) {
        let Some(best) = self.best() else { return };
        if let Some(settled) = settle::settled(self.task, self.program, best, bound) {
            self.extend([Found::new(self.program, settled)]);
        }
    }

    /// The error if nothing is within the limit.
    fn none_within(&self) -> OptimizeError {
        let smallest = Bytes(self.smallest);
        OptimizeError::NoOrderWithin { limit: self.task.memory_limit, smallest }
    }

    /// The best order that is not worse than the input order in most variations, proved.
    fn chosen(mut self, proved: &BoundProof<'_>) -> Result<Optimized, OptimizeError> {
        let Task { graph, machine, .. } = *self.task;
        self.ranked.sort_by(Ranked::compare);
        let input: Vec<OpId> = graph.ops().collect();
        let robustness = |ranked: &Ranked| Robustness::of(graph, machine, &input, &ranked.ops);
        let Some(best) = self.ranked.first() else { return Err(self.none_within()) };
        let of_best = robustness(best);
        let tried = [(best, of_best.clone())].into_iter();
        let mut tried =
            tried.chain(self.ranked[1..].iter().map(|ranked| (ranked, robustness(ranked))));
        let kept = tried.find(|(_, robustness)| !robustness.is_lost());
        let (ranked, robustness) = kept.unwrap_or((best, of_best.clone()));
        let input_kept = of_best.is_lost() && ranked.ops == input;
        let (peak, order) = prove(self.task, ranked.ops.clone())?;
        let step_time = simulate(graph, order.as_slice(), machine).step_time;
        let robustness = if input_kept { of_best } else { robustness };
        // At quick effort, proving that a step is optimal is not worth the time.
        let bound = match self.task.effort {
            Effort::Quick | Effort::Sketch => proved.bound,
            _ => proved.sharpened(best.step_time),
        };
        // The order of summation affects rounding.
        let time =
            if bound.is_reached_by(step_time) { bound.time.min(step_time) } else { bound.time };
        let bound = Bound { time, ..bound };
        Ok(Optimized { order, step_time, bound, peak, robustness, input_kept })
    }
}

/// Annealing, stage by stage.
struct Hunt<'a> {
    task: &'a Task<'a>,
    program: &'a Program,
    start: Start<'a>,
    /// The best order to continue from.
    best: (Key, Vec<u32>),
    /// How many stages are done: each chain has its own random seed.
    stages: usize,
    /// How many steps will be made in all.
    steps: usize,
    done: AtomicUsize,
    stopped: AtomicBool,
}

impl<'a> Hunt<'a> {
    fn new(task: &'a Task<'a>, program: &'a Program, start: Start<'a>, steps: usize) -> Hunt<'a> {
        let first = &start.orders[0];
        let best = (key(task, program, first), first.clone());
        let (done, stopped) = (AtomicUsize::new(0), AtomicBool::new(false));
        Hunt { task, program, start, best, stages: 0, steps, done, stopped }
    }

    fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }

    /// Runs stages until the bound is reached; returns what every chain found, and the best one
    /// with more slack.
    fn run(&mut self, stages: &[Stage]) -> Vec<Found> {
        let mut found = Vec::new();
        for stage in stages {
            if self.best.0.is_at(self.start.bound) || self.is_stopped() {
                break;
            }
            let more =
                on_threads(self.task.threads, stage.chains, &|index| self.chain(stage, index));
            for found in &more {
                let key = key(self.task, self.program, &found.order);
                if key.compare(&self.best.0).is_lt() {
                    self.best = (key, found.order.clone());
                }
            }
            found.extend(more);
            self.stages += 1;
        }
        if !self.is_stopped() && self.task.effort != Effort::Sketch {
            found.push(polished(self.program, &self.best.1, self.task.memory_limit.0));
        }
        found
    }

    fn chain(&self, stage: &Stage, index: usize) -> Found {
        let orders = self.start.orders;
        // Most chains search around the best known order, some around the others.
        let other = if index < 4 { 0 } else { (index - 3) % orders.len() };
        let from = if stage.cooled > 0.0 { &self.best.1 } else { &orders[other] };
        let chain = Chain {
            seed: (100 * self.stages + index) as u64,
            steps: stage.steps,
            cooled: stage.cooled,
            makes_room: stage.makes_room,
            limit: self.task.memory_limit.0,
            bound: self.start.bound.time.0,
        };
        anneal(self.program, from, &chain, &|steps| self.tick(steps))
    }

    fn tick(&self, steps: usize) -> ControlFlow<()> {
        let done = self.done.fetch_add(steps, Ordering::Relaxed) + steps;
        let told = (self.task.progress)((done as f64 / self.steps as f64).min(1.0));
        // Once stopped, always stopped: chains that start later stop, too.
        match self.stopped.fetch_or(told.is_break(), Ordering::Relaxed) || told.is_break() {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    }
}

/// How good an order is to continue from: the smallest excess over the limit, then the shortest
/// step.
#[derive(Clone, Copy)]
struct Key {
    excess: i64,
    step_time: f64,
}

impl Key {
    fn compare(&self, other: &Key) -> std::cmp::Ordering {
        self.excess.cmp(&other.excess).then(self.step_time.total_cmp(&other.step_time))
    }

    fn is_at(&self, bound: Bound) -> bool {
        self.excess == 0 && bound.is_reached_by(Nanos(self.step_time))
    }
}

fn key(task: &Task<'_>, program: &Program, order: &[u32]) -> Key {
    let mut board = Board::new(program, order.to_vec());
    Key { excess: (board.peak() - task.memory_limit.0).max(0), step_time: board.step_time() }
}

/// Runs `count` jobs on as many threads as may work; the results are in the order of the jobs.
fn on_threads(threads: usize, count: usize, run: &(dyn Fn(usize) -> Found + Sync)) -> Vec<Found> {
    let workers = threads.clamp(1, count);
    let share = |worker: usize| {
        (worker..count).step_by(workers).map(|index| (index, run(index))).collect::<Vec<_>>()
    };
    let mut all = std::thread::scope(|scope| {
        let others: Vec<_> =
            (1..workers).map(|worker| scope.spawn(move || share(worker))).collect();
        let mut all = share(0);
        for other in others {
            all.extend(other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        }
        all
    });
    all.sort_by_key(|(index, _)| *index);
    all.into_iter().map(|(_, found)| found).collect()
}

/// Orders that are known without search, the best to start from first.
fn starts(task: &Task<'_>) -> Vec<Vec<u32>> {
    let graph = task.graph;
    let mut settings = Settings::default();
    for iterative in [&mut settings.reorder, &mut settings.sink] {
        iterative.use_runtime_estimations = true;
        iterative.peak_memory_budget = 0.0;
        iterative.unsafe_collectives_reorder = task.edges == Edges::Real;
    }
    let options = Options { settings, fidelity: Fidelity::Fixed };
    let runner = Runner { graph, times: &task.machine.times, options: &options };
    let mut orders = vec![Order::of_input(graph)];
    for pass in [Pass::SimpleOverlap, Pass::ReorderCommunicationPreservingPeakMemory] {
        orders.extend(runner.run(pass, &orders[0], &mut NoWatch).ok().map(|outcome| outcome.order));
    }
    orders.extend(task.known.iter().cloned());
    ranked_starts(task, orders)
}

/// Orders to start from, the best first: within the limit if there are such, and then by step time.
fn ranked_starts(task: &Task<'_>, orders: Vec<Order>) -> Vec<Vec<u32>> {
    let graph = task.graph;
    // The search ignores contention, and so gives the same result with it.
    let machine = task.machine.uncontended();
    let key = |order: &Order| Key {
        excess: (Timeline::of(graph, order).peak - task.memory_limit).0.max(0),
        step_time: simulate(graph, order.as_slice(), &machine).step_time.0,
    };
    let mut keyed: Vec<(Key, Order)> =
        orders.into_iter().map(|order| (key(&order), order)).collect();
    keyed.sort_by(|(a, _), (b, _)| a.compare(b));
    keyed.iter().map(|(_, order)| numbers(order)).collect()
}

/// An order as the search has it.
fn numbers(order: &Order) -> Vec<u32> {
    order.as_slice().iter().map(|op| op.index() as u32).collect()
}
