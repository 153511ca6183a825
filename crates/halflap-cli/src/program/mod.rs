//! Every command on an HLO module: one graph after the other, callees first.

mod draw;
mod orders;
mod plans;
mod schedule;
mod show;

pub use orders::{explain, simulate, verify, what_if};
pub use plans::{Found, Which};
pub use schedule::schedule;

use std::time::Instant;

use halflap::cost::{CostError, Costs, Device};
use halflap::graph::Graph;
use halflap::hlo::Module;
use halflap::import::read_module;
use halflap::memory::Timeline;
use halflap::order::Order;
use halflap::program::{Ran, Unit, Walk, likely_device, profile_of};
use halflap::simulate::{Machine, simulate as run_order};
use halflap::units::Nanos;

use crate::args::MachineArgs;
use crate::costs;
use crate::exit::Failed;
use crate::files;
use crate::machine;

/// A module, and where its run times come from.
pub struct Source<'a> {
    path: &'a str,
    pub module: Module,
    costs: Costs,
    /// The device that is assumed, because none was named.
    assumed: Option<&'static str>,
    args: &'a MachineArgs,
    read_seconds: f64,
}

/// A computation with run times, and what it is simulated on.
struct Ready {
    unit: Unit,
    /// The unit's graph with run times.
    graph: Graph,
    machine: Machine,
    /// The same with all callees in the module's own order.
    before: Machine,
}

/// What became of a computation.
struct Done<T> {
    ready: Ready,
    order: Order,
    step_time_before: Nanos,
    step_time: Nanos,
    /// What is exposed in one run of it and of all that it runs, before and now.
    exposed_in_all: (Nanos, Nanos),
    result: T,
}

impl<'a> Source<'a> {
    pub fn read(path: &'a str, args: &'a MachineArgs) -> Result<Source<'a>, Failed> {
        let started = Instant::now();
        let bytes = files::read(path)?;
        let module = read_module(&bytes).map_err(|error| Failed::in_file(files::name_of(path), error))?;
        let read_seconds = started.elapsed().as_secs_f64();
        let mut costs = costs::read(&args.costs, path)?;
        let assumed = costs.device.is_none().then(|| likely_device(&module));
        if let Some(name) = assumed {
            let device = Device::named(name).map_err(|unknown| Failed::OurBug(unknown.to_string()))?;
            costs.device = Some(device);
        }
        let source = Source { path, module, costs, assumed, args, read_seconds };
        source.check_profile()?;
        Ok(source)
    }

    /// Every name in a profile must be an instruction: one that is not belongs to another module.
    fn check_profile(&self) -> Result<(), Failed> {
        let (Some(profile), Some(path)) = (&self.costs.profile, &self.args.costs.profile) else { return Ok(()) };
        let module = &self.module;
        let mut names: Vec<&str> = module
            .computations()
            .flat_map(|computation| module.instructions(computation))
            .map(|instr| module.instruction_name(instr))
            .collect();
        names.sort_unstable();
        let is_known = |name: &&str| names.binary_search(&name.trim_start_matches('%')).is_ok();
        let unknown: Vec<&str> = profile.names().filter(|name| !is_known(name)).collect();
        match unknown.split_first() {
            // A profile has what ran, which the compiler may have named after this text was written.
            Some((first, _)) if unknown.len() == profile.names().count() => {
                let problem = format!("no name is one of the module's instructions; the first is '{first}'");
                Err(Failed::in_file(files::name_of(path), problem))
            }
            Some((first, others)) => {
                let more = if others.is_empty() { String::new() } else { format!(" and {} more", others.len()) };
                files::warn(&format!("{}: '{first}'{more} is no instruction of the module", files::name_of(path)));
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// Where run times come from, for people.
    fn device(&self) -> Option<String> {
        let name = self.assumed?;
        Some(format!("{name} is assumed, because none was named: --device models another"))
    }

    /// Goes through all computations. `find` gives an order of each, and what else is to be kept.
    fn walk<T>(&self, mut find: impl FnMut(&Ready) -> Result<(Order, T), Failed>) -> Result<Vec<Done<T>>, Failed> {
        let mut walk = Walk::new(&self.module);
        let mut all = Vec::new();
        while let Some(unit) = walk.next_unit() {
            let unit = unit.map_err(|error| Failed::in_file(files::name_of(self.path), error))?;
            let ready = self.ready(&self.costs, &walk, unit)?;
            let (order, result) = find(&ready)?;
            let input = Order::of_input(&ready.graph);
            let step_time_before = run_order(&ready.graph, input.as_slice(), &ready.before).step_time;
            let step_time = run_order(&ready.graph, order.as_slice(), &ready.machine).step_time;
            walk.finish(
                &ready.unit,
                &Ran { step_time, step_time_before, peak: Timeline::of(&ready.graph, &order).peak },
            );
            let mut done =
                Done { ready, order, step_time_before, step_time, exposed_in_all: (Nanos::ZERO, Nanos::ZERO), result };
            done.exposed_in_all = done.with_callees(&all);
            all.push(done);
        }
        Ok(all)
    }

    fn ready(&self, costs: &Costs, walk: &Walk<'_>, unit: Unit) -> Result<Ready, Failed> {
        let mut costs = costs.clone();
        costs.profile = costs.profile.map(|profile| profile_of(&unit, &profile));
        let times = costs.times(&unit.lowered.graph).map_err(|error| match (&error, &self.args.costs.profile) {
            (CostError::Profile(_), Some(profile)) => Failed::in_file(files::name_of(profile), error),
            _ => Failed::in_file(files::name_of(self.path), error),
        })?;
        let graph = unit.lowered.graph.clone().with_runtimes(|op| times.of(op));
        let before = machine::with_times(&graph, walk.times_before(&unit, &times), self.args);
        let machine = machine::with_times(&graph, times, self.args);
        Ok(Ready { unit, graph, machine, before })
    }
}

impl<T> Done<T> {
    /// How long compute stands still for communication in one run, before and now.
    fn exposed(&self) -> (Nanos, Nanos) {
        let Ready { graph, machine, before, .. } = &self.ready;
        let exposed = |order: &Order, machine: &Machine| {
            halflap::report::total_exposed(&run_order(graph, order.as_slice(), machine))
        };
        (exposed(&Order::of_input(graph), before), exposed(&self.order, machine))
    }

    /// The same with all that it runs; of a conditional's branches with the one whose time counts.
    fn with_callees(&self, others: &[Done<T>]) -> (Nanos, Nanos) {
        let find = |callee| others.iter().find(|done| done.ready.unit.computation == callee);
        let (mut before, mut now) = self.exposed();
        for call in &self.ready.unit.lowered.calls {
            let called: Vec<(&Done<T>, f64)> =
                call.callees.iter().filter_map(|&(callee, times)| Some((find(callee)?, times))).collect();
            let longest = |time: fn(&Done<T>) -> Nanos| {
                called
                    .iter()
                    .copied()
                    .max_by(|a, b| time(a.0).0.total_cmp(&time(b.0).0))
                    .into_iter()
                    .collect::<Vec<_>>()
            };
            let (was, is) = match call.is_choice {
                true => (longest(|done| done.step_time_before), longest(|done| done.step_time)),
                false => (called.clone(), called),
            };
            before += was.iter().map(|(done, times)| done.exposed_in_all.0 * *times).sum();
            now += is.iter().map(|(done, times)| done.exposed_in_all.1 * *times).sum();
        }
        (before, now)
    }
}

/// The computation that was asked for, or the one with the most exposed communication.
fn chosen<'d, T>(source: &Source<'_>, all: &'d [Done<T>], name: Option<&str>) -> Result<&'d Done<T>, Failed> {
    let name_of = |done: &Done<T>| source.module.computation_name(done.ready.unit.computation);
    if let Some(name) = name {
        let found = all.iter().find(|done| name_of(done) == name.trim_start_matches('%'));
        return found.ok_or_else(|| {
            let known: Vec<&str> =
                all.iter().rev().filter(|done| done.ready.unit.communicates()).take(8).map(name_of).collect();
            let problem = format!("--computation: none that runs is called '{name}'; there are {}", known.join(", "));
            Failed::BadInput(problem)
        });
    }
    let exposed = |done: &&Done<T>| done.exposed().1.0 * done.ready.unit.runs;
    let most = all.iter().rev().max_by(|a, b| exposed(a).total_cmp(&exposed(b)));
    most.ok_or_else(|| Failed::OurBug("a module without an entry was read".to_owned()))
}
