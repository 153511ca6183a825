//! Advice: what would shorten a step further. More memory, another order of collectives, merged
//! collectives, less to send.
//!
//! Each change is tried with a quick search from the current order, so that a saving is one that
//! was found and not an estimate. Where a change cannot be tried, the upper limit of its saving is
//! given.

use std::collections::BTreeSet;
use std::ops::ControlFlow;

use crate::cost::Costs;
use crate::evaluate::Setup;
use crate::graph::Edges;
use crate::ids::{Id, OpId, UnitId};
use crate::improve::{Allowed, Estimate, PlanOrder, Request, estimate, looked_up};
use crate::memory::Budget;
use crate::optimize::{Effort, Task, optimize, within_or_least};
use crate::order::Order;
use crate::rewrite::{CopyCost, Prices, TAIL};
use crate::simulate::{Cause, Exposure, Machine, Simulation, lower_bound, simulate};
use crate::units::{Bytes, Nanos};
use crate::workload::{Decided, Model, Priced, Search, SearchError, Workload};

/// A request for advice on orders.
pub struct AdviceCase<'a, T> {
    /// The program.
    pub workload: &'a Workload,
    /// What it is simulated with.
    pub model: &'a Model,
    /// How the orders were found, or how they would be.
    pub search: &'a Search,
    /// The orders as they are, one for each unit.
    pub decided: &'a [Decided<T>],
    /// Whether they were searched for: otherwise a search is the first advice.
    pub is_searched: bool,
    /// A quick search that knows no order, as the user would make it: what it finds within a
    /// budget, one order for each unit. Without it, trials take its place.
    pub afresh: Option<&'a dyn Fn(Budget) -> Option<Vec<Order>>>,
    /// Whether the program may be changed.
    pub is_mergeable: bool,
    /// Called with the fraction of the work that is done; returns whether to continue.
    pub progress: &'a (dyn Fn(f64) -> ControlFlow<()> + Sync),
}

/// Something that makes the step shorter.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Advice {
    /// What it is.
    pub lever: Lever,
    /// The step that the saving is relative to: the current one or, if a better order is advised as
    /// well, the step in that order.
    pub from: Nanos,
    /// How much shorter the step becomes.
    pub saves: Nanos,
    /// The resulting step.
    pub step_time: Nanos,
    /// Whether the saving is an upper limit and not one that a search found.
    pub is_at_most: bool,
}

/// What can be changed.
#[derive(Clone, Debug, PartialEq)]
pub enum Lever {
    /// The order that a search finds within the same limits.
    Reorder,
    /// A larger memory limit.
    Memory {
        /// The limit, as it would be asked for.
        budget: Budget,
        /// How much more is alive at the peak.
        more: Bytes,
    },
    /// Collectives need not keep their order.
    FreeOrder,
    /// Collectives are merged.
    Merge {
        /// How many.
        collectives: usize,
        /// Into how many.
        into: usize,
        /// The bytes of all of them.
        bytes: Bytes,
    },
    /// Collectives that block become asynchronous.
    Asynchronous {
        /// How many.
        collectives: usize,
    },
    /// Collectives at the start of the step, with no compute before them to hide behind.
    StartOfStep {
        /// How many.
        collectives: usize,
    },
    /// Collectives at the end of the step, with no compute after them.
    EndOfStep {
        /// How many.
        collectives: usize,
    },
    /// Ranks exchange the rows that are looked up in a weight, instead of gathering all of it.
    ExchangeRows {
        /// The all-gather, of the only unit.
        gather: OpId,
        /// What is looked up.
        rows: Bytes,
    },
    /// Collectives take half as long: half the bytes, or twice the bandwidth.
    HalfTheBytes,
    /// A longer search.
    Effort,
}

impl Lever {
    /// Whether an option of the command is enough; otherwise the program or the hardware changes.
    pub fn is_option(&self) -> bool {
        match self {
            Lever::Reorder | Lever::Memory { .. } | Lever::FreeOrder | Lever::Merge { .. } => true,
            Lever::Asynchronous { .. } | Lever::StartOfStep { .. } | Lever::EndOfStep { .. } => {
                false
            }
            Lever::ExchangeRows { .. } | Lever::HalfTheBytes | Lever::Effort => false,
        }
    }
}

/// The most lines of advice.
const MOST: usize = 3;

/// The smallest saving, as a fraction of the step, that is worth a line.
const LEAST: f64 = 0.01;

/// The multiples of the limit that are tried; the last one shows what any amount of memory can
/// save.
const LIMITS: [f64; 5] = [1.1, 1.25, 1.5, 2.0, 4.0];

/// The fraction of that saving that a smaller limit must reach to be preferred.
const ENOUGH: f64 = 0.8;

/// The longest programs for which probes are quick.
const LONGEST: usize = 20_000;

/// The advice, largest saving first: options of the command, then changes to the program. `None` if
/// it was stopped.
pub fn advise<T>(case: &AdviceCase<'_, T>) -> Option<Vec<Advice>> {
    let Some(entry) = case.decided.last() else { return Some(Vec::new()) };
    if (case.progress)(0.0).is_break() {
        return None;
    }
    let step = entry.result.step_time();
    let mut asked =
        AdviceSearch { case, step, base: step, better: None, at: 0.0, known: Vec::new() };
    let mut lines = asked.by_option();
    let mut others = asked.by_hand();
    if (case.progress)(1.0).is_break() {
        return None;
    }
    for lines in [&mut lines, &mut others] {
        lines.retain(|advice| advice.saves.0 > asked.step.0 * LEAST);
        // The sort is stable: equal savings stay in the order in which they were tried. All others
        // are relative to a better order.
        let later = |advice: &Advice| advice.lever != Lever::Reorder;
        lines.sort_by(|a, b| later(a).cmp(&later(b)).then(b.saves.0.total_cmp(&a.saves.0)));
    }
    lines.extend(others);
    lines.truncate(MOST);
    Some(lines)
}

/// How a trial differs from the search that found the orders.
#[derive(Clone, Copy)]
struct AdviceTrial {
    /// How many times the memory limit.
    limit: f64,
    edges: Edges,
    /// The factor on the run times of collectives.
    communication: f64,
    /// The budget to be kept instead, by a search that knows no order: what a user would do.
    afresh: Option<Budget>,
}

/// A trial, and its share of all the work.
#[derive(Clone, Copy)]
struct Attempt {
    trial: AdviceTrial,
    from: f64,
    until: f64,
    /// Of the unit that is searched.
    memory_limit: Bytes,
}

/// The result of a trial.
struct AdviceTried {
    step_time: Nanos,
    /// The entry in its order.
    simulation: Simulation,
    /// Every unit's order.
    orders: Vec<Order>,
    /// What is alive at the peak of the entry.
    peak: Bytes,
    /// The budget that all units keep.
    budget: Budget,
}

struct AdviceSearch<'a, T> {
    case: &'a AdviceCase<'a, T>,
    /// The step as it is.
    step: Nanos,
    /// The step in a better order, if that is worth a line.
    base: Nanos,
    /// The entry in that order.
    better: Option<Simulation>,
    /// The fraction of the work that is done.
    at: f64,
    /// Orders of all units that were found on the way.
    known: Vec<Vec<Order>>,
}

impl<T> AdviceSearch<'_, T> {
    fn plain(&self) -> AdviceTrial {
        let edges = self.case.search.edges;
        AdviceTrial { limit: 1.0, edges, communication: 1.0, afresh: None }
    }

    fn is_long(&self) -> bool {
        self.case.decided.iter().any(|done| done.priced.graph.len() > LONGEST)
    }

    fn line(&self, lever: Lever, step_time: Nanos) -> Advice {
        let from = self.base;
        Advice { lever, from, saves: from - step_time, step_time, is_at_most: false }
    }

    fn at_most(&self, lever: Lever, saves: Nanos) -> Advice {
        let from = self.base;
        Advice { lever, from, saves, step_time: from - saves, is_at_most: true }
    }

    /// The entry in the order that savings are relative to.
    fn simulation(&self) -> Option<&Simulation> {
        let own = self.case.decided.last().map(|entry| &entry.result.simulation);
        self.better.as_ref().or(own)
    }

    /// Advice that an option of the command carries out.
    fn by_option(&mut self) -> Vec<Advice> {
        let mut lines = Vec::new();
        // If a search is advised as well, the others count only what they save beyond it.
        if !self.case.is_searched
            && let Some(tried) = self.better_order()
        {
            lines.push(self.line(Lever::Reorder, tried.step_time));
            self.known.push(tried.orders);
            if (self.step - tried.step_time).0 > self.step.0 * LEAST {
                self.base = tried.step_time;
                self.better = Some(tried.simulation);
            }
        }
        let least = self.base * (1.0 - LEAST);
        lines.extend(self.memory(least));
        let free = AdviceTrial { edges: Edges::Real, ..self.plain() };
        if self.case.search.edges == Edges::All
            && self.could_save(free)
            && let Some(tried) = self.try_out(free, 0.7)
        {
            lines.push(self.line(Lever::FreeOrder, tried.step_time));
        }
        // However they are merged, collectives take some time.
        if self.could_save(AdviceTrial { communication: 0.0, ..self.plain() })
            && let Some(found) = self.merged()
        {
            let Estimate { step_time, collectives, into, bytes } = found;
            lines.push(self.line(Lever::Merge { collectives, into, bytes }, step_time));
        }
        let is_better =
            |advice: &Advice| advice.lever == Lever::Reorder || advice.step_time < least;
        lines.retain(is_better);
        lines
    }

    /// Advice that needs a change to the program or to the hardware.
    fn by_hand(&mut self) -> Vec<Advice> {
        let stalled = self.simulation().map_or(Vec::new(), stalled).into_iter();
        let mut lines: Vec<Advice> =
            stalled.map(|(lever, time)| self.at_most(lever, time)).collect();
        lines.extend(self.rows());
        let half = AdviceTrial { communication: 0.5, ..self.plain() };
        if self.could_save(half)
            && let Some(tried) = self.try_out(half, 0.95)
        {
            lines.push(self.line(Lever::HalfTheBytes, tried.step_time));
        }
        if self.case.is_searched
            && self.case.search.effort != Effort::Thorough
            && let Some(gap) = self.gap(self.plain())
        {
            lines.push(self.at_most(Lever::Effort, gap));
        }
        lines
    }

    /// The gathered weight whose rows are worth most, of a program of one unit.
    fn rows(&self) -> Option<Advice> {
        let [only] = self.case.decided else { return None };
        let priced = &only.priced;
        let graph = priced.graph.as_ref().clone().with_given(|op| priced.machine.times.of(op));
        let setup = Setup { graph: &graph, machine: &priced.machine };
        let found = looked_up(setup, self.simulation()?, &self.prices());
        let most = found.into_iter().max_by(|a, b| a.saved.0.total_cmp(&b.saved.0))?;
        let lever = Lever::ExchangeRows { gather: most.gather, rows: most.rows };
        Some(self.at_most(lever, most.saved))
    }

    fn prices(&self) -> Prices<'_> {
        let costs = &self.case.model.costs;
        let copy = costs.device.as_ref().map_or_else(CopyCost::default, CopyCost::of);
        Prices { copy, costs, tail: TAIL }
    }

    /// The smallest of the limits that saves most of what memory can save.
    fn memory(&mut self, least: Nanos) -> Option<Advice> {
        let of = |asked: &Self, limit| AdviceTrial { limit, ..asked.plain() };
        let last = LIMITS.len() - 1;
        let most = of(self, LIMITS[last]);
        if self.is_long() || self.gap(most).is_some_and(|gap| self.step - gap >= least) {
            return None;
        }
        let best = self.try_out(most, 0.3).filter(|tried| tried.step_time < least)?;
        let enough = self.base - (self.base - best.step_time) * ENOUGH;
        let mut found = best;
        let (mut low, mut high) = (0, last);
        while low < high {
            let middle = (low + high) / 2;
            let trial = of(self, LIMITS[middle]);
            let could = self.gap(trial).is_none_or(|gap| self.step - gap <= enough);
            let until = 0.3 + 0.1 * (last - middle) as f64;
            match could.then(|| self.try_out(trial, until)).flatten() {
                Some(tried) if tried.step_time <= enough => {
                    found = tried;
                    high = middle;
                }
                _ => low = middle + 1,
            }
        }
        let found = self.confirmed(found, LIMITS[high], least)?;
        let entry = self.case.decided.last()?;
        let more = (found.peak - entry.result.peak()).max(Bytes::ZERO);
        Some(self.line(Lever::Memory { budget: found.budget, more }, found.step_time))
    }

    /// What a quick search comes to within that budget, or else within the limit of the trial, if
    /// such a search is what will be made: it begins elsewhere than the trial did. Longer ones find
    /// no less than the trial, unless what callees may use depends on the budget.
    fn confirmed(&mut self, found: AdviceTried, times: f64, least: Nanos) -> Option<AdviceTried> {
        if self.case.search.effort != Effort::Quick && self.case.decided.len() == 1 {
            return Some(found).filter(|tried| tried.step_time < least);
        }
        let whole = match self.case.search.memory {
            Budget::Times(own) => Budget::Times((own * times * 100.0).round() / 100.0),
            Budget::Absolute(own) => Budget::Absolute(Bytes((own.0 as f64 * times) as i64)),
        };
        for budget in [found.budget, whole] {
            let again = self.try_afresh(budget, self.at);
            if let Some(again) = again.filter(|again| again.step_time < least) {
                return Some(AdviceTried { budget, ..again });
            }
        }
        None
    }

    /// Whether a trial could save enough, as far as is known without a search; where none is made,
    /// nothing is known.
    fn could_save(&self, trial: AdviceTrial) -> bool {
        !self.is_long() && self.gap(trial).is_none_or(|gap| gap.0 > self.step.0 * LEAST)
    }

    /// How far a program of one unit is from its lower bound.
    fn gap(&self, trial: AdviceTrial) -> Option<Nanos> {
        let [only] = self.case.decided else { return None };
        let limit = self.whole(trial);
        let machine = self.machine(&only.priced, trial, &[]);
        let bound = lower_bound(&only.priced.graph, &machine, trial.edges, limit);
        Some((self.step - bound.time).max(Nanos::ZERO))
    }

    /// The order that a quick search finds as it was asked for.
    fn better_order(&mut self) -> Option<AdviceTried> {
        match self.case.afresh {
            Some(_) => self.try_afresh(self.case.search.memory, 0.2),
            None => self.try_out(self.plain(), 0.2),
        }
    }

    /// What a quick search finds within a budget if it knows no order: what a user would do.
    fn try_afresh(&mut self, budget: Budget, until: f64) -> Option<AdviceTried> {
        let Some(search) = self.case.afresh else {
            return self.try_out(AdviceTrial { afresh: Some(budget), ..self.plain() }, until);
        };
        let from = std::mem::replace(&mut self.at, until);
        if self.is_long() || (self.case.progress)(from).is_break() {
            return None;
        }
        let orders = search(budget)?;
        let walked = self.case.workload.walk(self.case.model, |priced| {
            Ok::<_, SearchError>((orders[priced.unit.index()].clone(), ()))
        });
        self.tried(walked.ok()?, None)
    }

    /// The limit of the whole in a trial.
    fn whole(&self, trial: AdviceTrial) -> Bytes {
        let Some(entry) = self.case.decided.last() else { return Bytes::ZERO };
        let before = entry.priced.peak_before();
        if let Some(budget) = trial.afresh {
            return budget.limit(before);
        }
        // An order that was given may need more than the limit.
        let limit = self.case.search.memory.limit(before).max(entry.result.peak());
        Bytes((limit.0 as f64 * trial.limit) as i64)
    }

    /// A quick search for orders of all units; reports progress.
    fn try_out(&mut self, trial: AdviceTrial, until: f64) -> Option<AdviceTried> {
        let from = std::mem::replace(&mut self.at, until);
        if self.is_long() || (self.case.progress)(from).is_break() {
            return None;
        }
        let limits = self.case.workload.limits(self.case.decided, self.whole(trial));
        let mut steps: Vec<Nanos> = Vec::new();
        let mut last = None;
        let walked = self.case.workload.walk(self.case.model, |priced| {
            let machine = self.machine(priced, trial, &steps);
            let memory_limit = limits[priced.unit];
            let attempt = Attempt { trial, from, until, memory_limit };
            let order = self.search(priced, &machine, attempt)?;
            let simulation = simulate(&priced.graph, order.as_slice(), &machine);
            steps.push(simulation.step_time);
            last = Some(simulation);
            Ok::<_, SearchError>((order, ()))
        });
        self.tried(walked.ok()?, last)
    }

    /// Orders, with the entry's simulation if that is another than by the model.
    fn tried(&self, units: Vec<Decided<()>>, last: Option<Simulation>) -> Option<AdviceTried> {
        let entry = units.last()?;
        let (budget, peak) = (self.budget(entry), entry.result.peak());
        let simulation = last.unwrap_or_else(|| entry.result.simulation.clone());
        let orders = units.into_iter().map(|unit| unit.result.order).collect();
        Some(AdviceTried { step_time: simulation.step_time, simulation, orders, peak, budget })
    }

    fn search(
        &self,
        priced: &Priced,
        machine: &Machine,
        Attempt { trial, from, until, memory_limit }: Attempt,
    ) -> Result<Order, SearchError> {
        let (case, unit) = (self.case, priced.unit);
        let own = &case.decided[unit.index()].result.order;
        if !case.workload.is_searched(priced, memory_limit) {
            return Ok(own.clone());
        }
        let mut known = Vec::new();
        if trial.afresh.is_none() {
            known.push(own.clone());
            known.extend(self.known.iter().map(|orders| orders[unit.index()].clone()));
        }
        let task = Task {
            graph: &priced.graph,
            machine,
            memory_limit,
            edges: trial.edges,
            known: &known,
            effort: Effort::Quick,
            threads: case.search.threads,
            progress: &|part| (case.progress)(from + (until - from) * part),
        };
        let found = match case.workload.is_entry(unit) {
            true => optimize(&task),
            false => within_or_least(&task, optimize),
        };
        found.map(|found| found.order).map_err(|error| SearchError::Order { unit, error })
    }

    /// What a unit runs on, with faster communication also in what it calls.
    fn machine(&self, priced: &Priced, trial: AdviceTrial, steps: &[Nanos]) -> Machine {
        let mut machine = priced.machine.clone();
        if trial.communication == 1.0 {
            return machine;
        }
        let is_collective = |op| priced.graph.kind(op).is_collective();
        machine.times = machine.times.map(|op, time| match is_collective(op) {
            true => time * trial.communication,
            false => time,
        });
        for call in &self.case.workload.units[priced.unit].calls {
            machine.times.set(call.op, call.time(|of: UnitId| steps[of.index()]));
        }
        machine
    }

    /// The budget, as it was given, that orders keep.
    fn budget(&self, entry: &Decided<()>) -> Budget {
        let (needed, before) = (entry.result.peak(), entry.priced.peak_before());
        match self.case.search.memory {
            Budget::Times(_) => {
                let times = (needed.0 as f64 / before.0.max(1) as f64).max(1.0);
                // Two decimals, and no less than what is needed.
                Budget::Times((times * 100.0 - 1e-9).ceil() / 100.0)
            }
            Budget::Absolute(_) => Budget::Absolute(Bytes((needed.0 + 0xf_ffff) & !0xf_ffff)),
        }
    }

    /// A few plans of merges, each with a quick search; for a program of one unit.
    fn merged(&self) -> Option<Estimate> {
        let case = self.case;
        let [only] = case.decided else { return None };
        if !case.is_mergeable || self.is_long() {
            return None;
        }
        let priced = &only.priced;
        let graph = priced.graph.as_ref().clone().with_given(|op| priced.machine.times.of(op));
        let model = Model { costs: Costs::default(), ..case.model.clone() };
        let task = Task {
            graph: &graph,
            machine: &priced.machine,
            memory_limit: self.whole(self.plain()),
            edges: case.search.edges,
            known: &[],
            effort: Effort::Quick,
            threads: case.search.threads,
            progress: &|_| (case.progress)(0.8),
        };
        estimate(
            &Request {
                task: &task,
                model: &model,
                prices: &self.prices(),
                allowed: &Allowed::exact(),
                left_out: &[],
                plan_order: PlanOrder::Sketched,
                alone: None,
            },
            self.known.last().map_or(&only.result.order, |orders| &orders[0]),
        )
    }
}

/// Stalls of compute that no order changes, in one run of the entry.
fn stalled(simulation: &Simulation) -> Vec<(Lever, Nanos)> {
    let mut exposures: Vec<&Exposure> = simulation.exposures.iter().collect();
    exposures.sort_by(|a, b| a.start.0.total_cmp(&b.start.0));
    let (mut blocking, mut start, mut end) = <(Stalls, Stalls, Stalls)>::default();
    let mut stood = Nanos::ZERO;
    for exposure in exposures {
        let computed = exposure.start - stood;
        stood += exposure.time;
        match exposure.cause {
            Cause::Synchronous => blocking.add(exposure),
            Cause::EndOfStep => end.add(exposure),
            Cause::Needed if computed < simulation.step_time * LEAST => start.add(exposure),
            Cause::Needed | Cause::Issued => {}
        }
    }
    vec![
        (Lever::Asynchronous { collectives: blocking.count() }, blocking.time),
        (Lever::StartOfStep { collectives: start.count() }, start.time),
        (Lever::EndOfStep { collectives: end.count() }, end.time),
    ]
}

#[derive(Default)]
struct Stalls {
    of: BTreeSet<OpId>,
    time: Nanos,
}

impl Stalls {
    fn add(&mut self, exposure: &Exposure) {
        self.of.insert(exposure.of);
        self.time += exposure.time;
    }

    fn count(&self) -> usize {
        self.of.len()
    }
}
