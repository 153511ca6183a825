//! The optimizer, as requested on the command line.

use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use halflap::graph::{Edges, Graph};
use halflap::ids::UnitId;
use halflap::improve::{Allowed, ImproveError, Improved, PlanOrder, Request, improve};
use halflap::memory::Budget;
use halflap::optimize::{OptimizeError, Optimized, SoFar, Task, optimize_so_far, within_or_least};
use halflap::order::Order;
use halflap::rewrite::Prices;
use halflap::robustness::Robustness;
use halflap::simulate::{Bound, Bounded, Machine};
use halflap::units::{Bytes, Nanos};
use halflap::workload::{Decided, Priced, Search};
use halflap_report::OptimizerRun;

use crate::args::{EffortArg, SearchArgs};
use crate::ask;
use crate::exit::Failed;
use crate::machine;
use crate::progress::Bar;
use crate::source::ProgramSource;

/// The results of a search, besides the order.
#[derive(Clone)]
pub struct SearchOutcome {
    pub bound: Bound,
    pub robustness: Robustness,
    pub input_kept: bool,
    pub limit: Bytes,
    pub seconds: f64,
    /// Whether it is the best found before the search was interrupted.
    pub is_interrupted: bool,
}

impl SearchOutcome {
    /// The same as JSON; `robustness` is that of the whole result.
    pub fn described<'a>(&self, args: &SearchArgs, robustness: &'a Robustness) -> OptimizerRun<'a> {
        OptimizerRun {
            seconds: self.seconds,
            effort: args.effort.unwrap_or(EffortArg::Default).name(),
            memory_limit: self.limit,
            input_kept: self.input_kept,
            is_interrupted: self.is_interrupted,
            robustness,
        }
    }
}

/// Smaller limits that a search within more is compared with, as multiples of what the input order
/// needs: it is not exact, and with more memory it may find a slower order. At these multiples, and
/// from one of them to any larger limit, more memory never gives a longer step.
const SMALLER: [f64; 4] = [1.0, 1.2, 1.5, 2.0];

/// How many times what the input order needs was asked for.
pub fn times_asked(args: &SearchArgs, peak_before: Bytes) -> f64 {
    let limit = args.memory_budget.unwrap_or(Budget::Times(1.0)).limit(peak_before);
    limit.0 as f64 / peak_before.0.max(1) as f64
}

/// How hard a search is, and within which limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rung {
    effort: EffortArg,
    /// Which of the smaller limits it is within, if it is.
    smaller: Option<usize>,
    /// Whether units that others run may need no more than in their input orders, even if there is
    /// more: what they take, their callers cannot use.
    leaves_free: bool,
}

impl Rung {
    /// What was asked for.
    pub fn asked(args: &SearchArgs) -> Rung {
        let effort = args.effort.unwrap_or(EffortArg::Default);
        Rung { effort, smaller: None, leaves_free: false }
    }

    /// The same with the effort that rewrites are tried with.
    pub fn sketched(self) -> Rung {
        Rung { effort: EffortArg::Sketch, ..self }
    }

    /// The same with little effort.
    pub fn quick(self) -> Rung {
        Rung { effort: EffortArg::Quick, ..self }
    }

    /// All searches with less effort or memory that could give a faster step, the hardest first,
    /// where so many times what the input order needs was asked for. The orders of a module's
    /// computations depend on each other, and so do rewrites and orders; for a single graph, more
    /// effort includes everything that less does.
    pub fn lesser(self, times_asked: f64, is_single: bool) -> Vec<Rung> {
        // One that equals the requested limit is no other.
        let below = SMALLER.iter().take_while(|&&times| times < times_asked - 1e-6).count();
        let limits: Vec<Option<usize>> = match self.smaller {
            None => std::iter::once(None).chain((0..below).rev().map(Some)).collect(),
            Some(most) => (0..=most).rev().map(Some).collect(),
        };
        let efforts = [EffortArg::Thorough, EffortArg::Default, EffortArg::Quick];
        let efforts = efforts.into_iter().skip_while(|&effort| effort != self.effort);
        let efforts = efforts.filter(|&effort| !is_single || effort == self.effort);
        let of = |effort| limits.iter().map(move |&smaller| Rung { effort, smaller, ..self });
        efforts.flat_map(of).filter(|&rung| rung != self).collect()
    }
}

/// The best of the orders found by a search and by lesser ones: the search is not exact, and a
/// larger budget or effort may find a slower order.
pub fn best<T>(
    times_asked: f64,
    from: Rung,
    walk: impl Fn(Rung) -> Result<Vec<Decided<T>>, Failed>,
    is_best: impl Fn(&[Decided<T>]) -> bool,
) -> Result<Vec<Decided<T>>, Failed> {
    let mut best = walk(from);
    let is_single = best.as_ref().is_ok_and(|all| all.len() == 1);
    for rung in from.lesser(times_asked, is_single) {
        match &best {
            Err(Failed::Stopped) => break,
            Ok(all) if is_best(all) => break,
            _ => best = shorter(best, walk(rung))?,
        }
    }
    best
}

/// The first result, unless the other is shorter; only a stop is an error.
fn shorter<T>(
    best: Result<Vec<Decided<T>>, Failed>,
    other: Result<Vec<Decided<T>>, Failed>,
) -> Result<Result<Vec<Decided<T>>, Failed>, Failed> {
    // Times that differ by less are equal but for rounding.
    let time = |all: &[Decided<T>]| {
        all.last().map_or(0.0, |entry| (entry.result.step_time().0 * 1e3).round())
    };
    let known = best.as_ref().map_or(f64::INFINITY, |all| time(all));
    match other {
        Err(Failed::Stopped) => Err(Failed::Stopped),
        Ok(all) if time(&all) < known => Ok(Ok(all)),
        _ => Ok(best),
    }
}

/// A program with its order that a search chose.
pub trait ChosenProgram {
    fn step_time(&self) -> Nanos;
    /// Whether nothing that could be chosen makes it shorter: all communication is hidden, and no
    /// rewrite saves compute.
    fn is_shortest(&self) -> bool;
    /// The step of the best order of the program as it was.
    fn order_alone(&mut self) -> Option<&mut Nanos>;
}

/// The best choice of a search and of lesser ones, and whose it is: with less effort or memory
/// other rewrites are chosen, which may be better.
pub fn best_choice<C: ChosenProgram>(
    args: &SearchArgs,
    peak_before: Bytes,
    choose: impl Fn(Rung) -> Result<C, Failed>,
) -> Result<(Rung, C), Failed> {
    let asked = Rung::asked(args);
    let mut best = (asked, choose(asked)?);
    for rung in asked.lesser(times_asked(args, peak_before), false) {
        if best.1.is_shortest() {
            break;
        }
        let mut other = match choose(rung) {
            Err(failed) if failed.is_bad_input() => continue,
            other => other?,
        };
        if other.step_time() >= best.1.step_time() {
            continue;
        }
        if let (Some(other), Some(best)) = (other.order_alone(), best.1.order_alone()) {
            *other = (*other).min(*best);
        }
        best = (rung, other);
    }
    Ok(best)
}

/// The search that was asked for, as the library takes it.
pub fn requested(args: &SearchArgs, edges: Edges) -> Search {
    Search {
        memory: args.memory_budget.unwrap_or(Budget::Times(1.0)),
        edges,
        effort: machine::effort(args.effort.unwrap_or(EffortArg::Default)),
        threads: machine::threads(args.threads),
    }
}

/// The requirements on an order.
#[derive(Clone, Copy)]
pub struct Wanted<'a> {
    pub args: &'a SearchArgs,
    pub rung: Rung,
    /// Whether collectives were chained.
    pub is_chained: bool,
    /// Where the program came from.
    pub source: &'a ProgramSource,
    /// The most that may be alive.
    pub limits: MemoryLimits,
}

impl Wanted<'_> {
    pub fn edges(&self) -> Edges {
        machine::edges(self.args.collective_order, self.is_chained)
    }
}

/// The best order of a unit.
pub fn search(wanted: &Wanted<'_>, priced: &Priced) -> Result<(Order, SearchOutcome), Failed> {
    sought(wanted, priced).map_err(|error| failed(wanted, priced, error))
}

fn sought(wanted: &Wanted<'_>, priced: &Priced) -> Result<(Order, SearchOutcome), OptimizeError> {
    let is_entry = wanted.source.workload.is_entry(priced.unit);
    let (found, seconds) = timed(wanted, priced, |task| match is_entry {
        true => optimize_so_far(task),
        false => within_or_least(task, optimize_so_far),
    });
    let SoFar { best, is_stopped, .. } = found?;
    // A program that calls us does not want a partial result.
    if is_stopped && ask::is_called() {
        return Err(OptimizeError::Stopped);
    }
    let MemoryLimits { asked, used } = wanted.limits;
    let Optimized { order, bound, step_time, robustness, input_kept, peak, .. } = best;
    // What a callee needs at least, its callers have made room for.
    let limit = asked.max(peak);
    // Results are compared with the requested limit.
    let bound = match asked == used {
        true => bound,
        false => bound_beside(priced, bound.edges, asked, step_time),
    };
    let is_interrupted = is_stopped;
    Ok((order, SearchOutcome { bound, robustness, input_kept, limit, seconds, is_interrupted }))
}

/// The searches of one command, each done once: rewrites leave most computations of a module as
/// they are, and choosing with less effort tries what choosing with more has tried.
#[derive(Default)]
pub struct KnownSearches {
    all: RefCell<Vec<KnownSearch>>,
}

/// A search and its result, which depends on nothing else but the command's arguments.
struct KnownSearch {
    graph: Arc<Graph>,
    machine: Machine,
    limits: MemoryLimits,
    effort: EffortArg,
    found: KnownOrder,
}

#[derive(Clone)]
enum KnownOrder {
    Best(Order, Box<SearchOutcome>),
    NoneWithin { limit: Bytes, smallest: Bytes },
}

impl KnownSearches {
    /// The same as [`search`].
    pub fn search(
        &self,
        wanted: &Wanted<'_>,
        priced: &Priced,
    ) -> Result<(Order, SearchOutcome), Failed> {
        let (limits, effort) = (wanted.limits, wanted.rung.effort);
        let is_same = |known: &&KnownSearch| {
            known.effort == effort
                && known.limits == limits
                && known.machine == priced.machine
                && known.graph == priced.graph
        };
        let known = self.all.borrow().iter().find(is_same).map(|known| known.found.clone());
        let found = match known {
            Some(KnownOrder::Best(order, outcome)) => {
                return Ok((order, SearchOutcome { seconds: 0.0, ..*outcome }));
            }
            Some(KnownOrder::NoneWithin { limit, smallest }) => {
                Err(OptimizeError::NoOrderWithin { limit, smallest })
            }
            None => sought(wanted, priced),
        };
        let known = match &found {
            Ok((order, outcome)) if !outcome.is_interrupted => {
                Some(KnownOrder::Best(order.clone(), Box::new(outcome.clone())))
            }
            &Err(OptimizeError::NoOrderWithin { limit, smallest }) => {
                Some(KnownOrder::NoneWithin { limit, smallest })
            }
            _ => None,
        };
        if let Some(found) = known {
            let (graph, machine) = (priced.graph.clone(), priced.machine.clone());
            self.all.borrow_mut().push(KnownSearch { graph, machine, limits, effort, found });
        }
        found.map_err(|error| failed(wanted, priced, error))
    }
}

/// The lower bound of all orders within a limit, sharpened by a known order's step.
pub fn bound_beside(priced: &Priced, edges: Edges, memory_limit: Bytes, step: Nanos) -> Bound {
    let Priced { graph, machine, .. } = priced;
    Bounded { graph, machine, edges, memory_limit }.prove().sharpened(step)
}

/// How a program may be changed.
pub struct ChangeScope<'a> {
    pub prices: &'a Prices<'a>,
    pub allowed: &'a Allowed,
    pub left_out: &'a [usize],
    pub plan_order: PlanOrder,
    /// The program as it is in its best order, if that is known.
    pub alone: Option<&'a OrderedUnit>,
}

/// The best order of a graph together with the rewrites that shorten it.
pub fn improved(
    wanted: &Wanted<'_>,
    priced: &Priced,
    way: &ChangeScope<'_>,
) -> Result<(Improved, SearchOutcome), Failed> {
    let &ChangeScope { prices, allowed, left_out, plan_order, alone } = way;
    let model = &wanted.source.model;
    let graph = wanted.source.workload.entry().map_or(&priced.graph, |unit| &unit.graph);
    let (found, seconds) = timed(wanted, priced, |task| {
        let task = Task { graph, ..*task };
        let alone = alone.map(|unit| &unit.result.order);
        improve(&Request { task: &task, model, prices, allowed, left_out, plan_order, alone })
    });
    let found = found.map_err(|error| match error {
        ImproveError::Optimize(error) => failed(wanted, priced, error),
        ImproveError::Rewrite(error) => Failed::OurBug(error.to_string()),
    })?;
    if let (None, Some(outcome)) = (&found.changed, alone.and_then(|unit| unit.found.clone())) {
        let seconds = outcome.seconds + seconds;
        return Ok((found, SearchOutcome { seconds, ..outcome }));
    }
    let best = found.changed.as_ref().map_or(&found.unchanged, |changed| &changed.optimized);
    let Optimized { bound, robustness, input_kept, .. } = best.clone();
    let seconds = alone.and_then(|unit| unit.found.as_ref()).map_or(0.0, |of| of.seconds) + seconds;
    let limit = wanted.limits.asked;
    let is_interrupted = false;
    let outcome = SearchOutcome { bound, robustness, input_kept, limit, seconds, is_interrupted };
    Ok((found, outcome))
}

/// The most that may be alive.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MemoryLimits {
    asked: Bytes,
    /// On this rung.
    used: Bytes,
}

impl MemoryLimits {
    /// Of a whole program, which needs so much in its input orders.
    pub fn of(args: &SearchArgs, rung: Rung, peak_before: Bytes) -> MemoryLimits {
        let asked = args.memory_budget.unwrap_or(Budget::Times(1.0)).limit(peak_before);
        MemoryLimits {
            asked,
            used: rung.smaller.map_or(asked, |which| smaller_limit(which, asked, peak_before)),
        }
    }
}

/// One of the smaller limits, or what was asked for if that is less.
fn smaller_limit(which: usize, asked: Bytes, peak_before: Bytes) -> Bytes {
    asked.min(Budget::Times(SMALLER[which]).limit(peak_before))
}

/// The memory limits of a program's units, by name: all together need at most what the whole may.
#[derive(Clone, Debug)]
pub struct ProgramLimits {
    /// What the whole program needs in its input orders: the base of the budget.
    peak_before: Bytes,
    of: BTreeMap<String, UnitLimits>,
}

/// The most that a unit may need.
#[derive(Clone, Copy, Debug)]
struct UnitLimits {
    asked: Bytes,
    /// If the whole is within one of the smaller limits.
    at_smaller: [Bytes; SMALLER.len()],
}

impl UnitLimits {
    fn on(self, rung: Rung) -> MemoryLimits {
        let used = rung.smaller.map_or(self.asked, |which| self.at_smaller[which]);
        MemoryLimits { asked: self.asked, used }
    }
}

impl ProgramLimits {
    /// Of a program in its input orders.
    pub fn of_input<T>(
        source: &ProgramSource,
        own: &[Decided<T>],
        args: &SearchArgs,
    ) -> ProgramLimits {
        let peak_before = own.last().map_or(Bytes::ZERO, |entry| entry.priced.peak_before());
        ProgramLimits::of(source, own, args, peak_before)
    }

    fn of<T>(
        source: &ProgramSource,
        own: &[Decided<T>],
        args: &SearchArgs,
        peak_before: Bytes,
    ) -> ProgramLimits {
        let whole = args.memory_budget.unwrap_or(Budget::Times(1.0)).limit(peak_before);
        let limits = |whole| source.workload.limits(own, whole);
        let asked = limits(whole);
        let at_smaller = std::array::from_fn::<_, { SMALLER.len() }, _>(|which| {
            let less = smaller_limit(which, whole, peak_before);
            if less < whole { limits(less) } else { asked.clone() }
        });
        let one = |unit: UnitId| {
            let at_smaller = at_smaller.each_ref().map(|limits| limits[unit]);
            let limits = UnitLimits { asked: asked[unit], at_smaller };
            (source.name_of(unit).to_owned(), limits)
        };
        ProgramLimits { peak_before, of: source.workload.units.ids().map(one).collect() }
    }

    /// What a unit may need, if it is known.
    pub fn on(&self, rung: Rung, unit: &str) -> Option<Bytes> {
        self.of.get(unit).map(|limits| limits.on(rung).used)
    }

    /// Those of a program that was changed: what both have keeps its limit.
    fn for_changed(
        &self,
        source: &ProgramSource,
        args: &SearchArgs,
    ) -> Result<Cow<'_, ProgramLimits>, Failed> {
        if source.workload.units.ids().all(|unit| self.of.contains_key(source.name_of(unit))) {
            return Ok(Cow::Borrowed(self));
        }
        let own = source.walk(|priced| Ok((priced.input.order.clone(), ())))?;
        let mut all = ProgramLimits::of(source, &own, args, self.peak_before);
        all.of.extend(self.of.iter().map(|(name, limits)| (name.clone(), *limits)));
        Ok(Cow::Owned(all))
    }
}

/// Searches for the orders of programs that differ little.
pub struct ProgramSearch<'a> {
    args: &'a SearchArgs,
    /// Whether collectives were chained.
    is_chained: bool,
    known: KnownSearches,
}

/// A unit in the order that was found; its own, without a search, if it cannot overlap anything
/// and is within its limit.
pub type OrderedUnit = Decided<Option<SearchOutcome>>;

impl ProgramSearch<'_> {
    pub fn new(args: &SearchArgs, is_chained: bool) -> ProgramSearch<'_> {
        ProgramSearch { args, is_chained, known: KnownSearches::default() }
    }

    /// The best orders of all units, as they were asked for.
    pub fn asked(&self, source: &ProgramSource) -> Result<Vec<OrderedUnit>, Failed> {
        let own = source.walk(|priced| Ok((priced.input.order.clone(), ())))?;
        let limits = ProgramLimits::of_input(source, &own, self.args);
        self.all(source, Rung::asked(self.args), &limits)
    }

    /// The same of a program that may have been changed since its limits were known. Search time
    /// that belongs to no single unit is counted in the last one.
    pub fn all(
        &self,
        source: &ProgramSource,
        from: Rung,
        limits: &ProgramLimits,
    ) -> Result<Vec<OrderedUnit>, Failed> {
        let started = Instant::now();
        let limits = limits.for_changed(source, self.args)?;
        let walk = |rung: Rung| self.either(source, rung, &limits);
        let is_last = |all: &[OrderedUnit]| all.iter().all(is_at_bound) || is_interrupted(all);
        let mut all = best(times_asked(self.args, limits.peak_before), from, walk, is_last)?;
        let mut found: Vec<&mut SearchOutcome> =
            all.iter_mut().filter_map(|unit| unit.found.as_mut()).collect();
        let rest =
            started.elapsed().as_secs_f64() - found.iter().map(|found| found.seconds).sum::<f64>();
        if let Some(last) = found.last_mut() {
            last.seconds += rest.max(0.0);
        }
        Ok(all)
    }

    /// The orders on a rung, the better of two: where units take memory that is free in their
    /// callers, and where they leave it to them.
    fn either(
        &self,
        source: &ProgramSource,
        rung: Rung,
        limits: &ProgramLimits,
    ) -> Result<Vec<OrderedUnit>, Failed> {
        let first = self.walk(source, rung, limits)?;
        let is_other = |unit: &OrderedUnit| {
            let before = unit.priced.peak_before();
            let limit = limits.on(rung, source.name_of(unit.priced.unit));
            let squeezed = limit.is_some_and(|limit| limit < before);
            let is_called = !source.workload.is_entry(unit.priced.unit);
            unit.found.is_some() && is_called && (squeezed || unit.result.peak() > before)
        };
        let is_compared = rung.effort != EffortArg::Sketch && first.iter().any(is_other);
        if !is_compared || is_interrupted(&first) {
            return Ok(first);
        }
        let rung = Rung { leaves_free: true, ..rung };
        shorter(Ok(first), self.walk(source, rung, limits))?
    }

    fn walk(
        &self,
        source: &ProgramSource,
        rung: Rung,
        limits: &ProgramLimits,
    ) -> Result<Vec<OrderedUnit>, Failed> {
        source.walk(|priced| {
            let name = source.name_of(priced.unit);
            let mut own = limits.of.get(name).ok_or_else(|| unlimited(name))?.on(rung);
            if rung.leaves_free && !source.workload.is_entry(priced.unit) {
                own.used = priced.peak_before();
                own.asked = own.asked.max(own.used);
            }
            let is_graph = name.is_empty();
            if !is_graph && !source.workload.is_searched(priced, own.used) {
                return Ok((priced.input.order.clone(), None));
            }
            let (args, is_chained) = (self.args, self.is_chained);
            let wanted = Wanted { args, rung, is_chained, source, limits: own };
            let (order, outcome) = self.known.search(&wanted, priced)?;
            Ok((order, Some(outcome)))
        })
    }
}

fn unlimited(unit: &str) -> Failed {
    Failed::OurBug(format!("computation '{unit}' has no memory limit"))
}

fn is_at_bound(unit: &OrderedUnit) -> bool {
    unit.found.as_ref().is_none_or(|found| found.bound.is_reached_by(unit.result.step_time()))
}

/// Whether a search was ended early.
pub fn is_interrupted(all: &[OrderedUnit]) -> bool {
    all.iter().any(|unit| unit.found.as_ref().is_some_and(|found| found.is_interrupted))
}

/// Runs a search with progress; returns its result and duration in seconds.
fn timed<T>(wanted: &Wanted<'_>, priced: &Priced, search: impl FnOnce(&Task<'_>) -> T) -> (T, f64) {
    let args = wanted.args;
    let bar = Bar::new("optimizing");
    let started = Instant::now();
    let found = search(&Task {
        graph: &priced.graph,
        machine: &priced.machine,
        memory_limit: wanted.limits.used,
        edges: wanted.edges(),
        known: &[],
        effort: machine::effort(wanted.rung.effort),
        threads: machine::threads(args.threads),
        progress: &|part| bar.show(part),
    });
    bar.clear();
    (found, started.elapsed().as_secs_f64())
}

fn failed(wanted: &Wanted<'_>, priced: &Priced, error: OptimizeError) -> Failed {
    let source = wanted.source;
    let unit = source.name_of(priced.unit);
    let of = if unit.is_empty() { String::new() } else { format!(" (computation '{unit}')") };
    match error {
        OptimizeError::NoOrderWithin { .. } => {
            Failed::NothingFits(format!("{}: {error}{of}", source.input.name()))
        }
        OptimizeError::Stopped => Failed::Stopped,
        _ => Failed::OurBug(error.to_string()),
    }
}
