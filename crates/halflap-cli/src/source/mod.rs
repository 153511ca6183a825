//! What a command works on: a graph or an HLO module, with run times.

mod module;
mod orders;

pub use module::ModuleSource;
pub use orders::Orders;

use std::time::Instant;

use halflap::cost::{CostError, Costs, Device};
use halflap::ids::{IdVec, UnitId};
use halflap::import;
use halflap::order::Order;
use halflap::workload::{Decided, Model, Priced, UnitError, Workload};
use halflap_hlo::{Devices, LoweredModule, LoweredUnit, Module, likely_device};

use crate::args::{ChainWhich, MachineArgs, WhichArgs};
use crate::costs;
use crate::exit::Failed;
use crate::files;
use crate::machine;
use crate::place::Input;
use crate::progress::Notice;

/// A program with run times.
#[derive(Clone)]
pub struct ProgramSource {
    pub input: Input,
    pub workload: Workload,
    pub model: Model,
    /// The device that is assumed, because none was named.
    pub assumed: Option<&'static str>,
    pub read_seconds: f64,
    /// Where measured times come from.
    profile: Option<Input>,
}

/// The module that units are computations of.
#[derive(Clone)]
pub struct Hlo {
    pub module: Module,
    pub units: IdVec<UnitId, LoweredUnit>,
}

/// A graph, or a module.
#[derive(Clone)]
pub struct Subject {
    pub source: ProgramSource,
    pub hlo: Option<Hlo>,
}

impl Subject {
    /// Reads a program; collectives of a graph are chained first, where that is requested.
    pub fn read(
        input: &Input,
        args: &MachineArgs,
        chain: Option<ChainWhich>,
    ) -> Result<Subject, Failed> {
        Subject::read_for(input, args, Readers { chain, ranks: None })
    }

    /// Reads a program to be run on this many ranks.
    pub fn read_on(
        input: &Input,
        args: &MachineArgs,
        ranks: Option<RankCount>,
    ) -> Result<Subject, Failed> {
        Subject::read_for(input, args, Readers { chain: None, ranks })
    }

    /// Rejects an unknown computation before any search.
    pub fn check(&self, which: &WhichArgs) -> Result<(), Failed> {
        let Some(name) = which.computation.as_deref() else { return Ok(()) };
        let wanted = name.trim_start_matches('%');
        let mut units = self.source.workload.units.as_slice().iter();
        match self.hlo.is_some() {
            true if units.any(|unit| unit.name == wanted) => Ok(()),
            true => Err(self.source.unknown_computation(name)),
            false => {
                let problem = format!(
                    "--computation {name}: a graph has none; HLO modules have computations"
                );
                Err(Failed::in_file(self.source.input.name(), problem))
            }
        }
    }

    /// Another module of the same file, with the same model of run times.
    pub fn changed_to(&self, module: Module) -> Result<Subject, Failed> {
        let lowered = LoweredModule::of(&module);
        let LoweredModule { workload, units } =
            lowered.map_err(|error| Failed::OurBug(error.to_string()))?;
        let ProgramSource { input, model, assumed, read_seconds, profile, .. } = &self.source;
        let source = ProgramSource {
            input: input.clone(),
            workload,
            model: model.clone(),
            assumed: *assumed,
            read_seconds: *read_seconds,
            profile: profile.clone(),
        };
        Ok(Subject { source, hlo: Some(Hlo { module, units }) })
    }

    fn read_for(
        input: &Input,
        args: &MachineArgs,
        Readers { chain, ranks }: Readers,
    ) -> Result<Subject, Failed> {
        let started = Instant::now();
        let _notice = Notice::new(&format!("reading {}", input.name()));
        let bytes = files::read(input)?;
        let (workload, hlo) = match import::is_module(&bytes) {
            true if chain.is_some() => return Err(no_chains()),
            true => {
                let (workload, hlo) = read_module(input, &bytes, ranks)?;
                (workload, Some(hlo))
            }
            false => (files::chained(files::parse_graph(input, &bytes)?, chain).into(), None),
        };
        let read_seconds = started.elapsed().as_secs_f64();
        let mut costs = costs::read(&args.costs, input)?;
        let assumed = hlo
            .as_ref()
            .and_then(|hlo| assume_device(&mut costs, &hlo.module).transpose())
            .transpose()?;
        let profile = args.costs.profile.clone();
        if let Some(hlo) = &hlo {
            check_profile(&hlo.module, &costs, profile.as_ref())?;
        }
        let model = machine::model(costs, args);
        let input = input.clone();
        Ok(Subject {
            source: ProgramSource { input, workload, model, assumed, read_seconds, profile },
            hlo,
        })
    }
}

/// What a program is read for.
struct Readers {
    /// Which collectives of a graph are chained.
    chain: Option<ChainWhich>,
    /// How many ranks a module is run on.
    ranks: Option<RankCount>,
}

/// The requested number of ranks.
#[derive(Clone, Copy, Debug)]
pub enum RankCount {
    /// As many as were asked for.
    Asked(usize),
    /// As many as there are processes.
    Started(usize),
}

fn read_module(
    input: &Input,
    bytes: &[u8],
    ranks: Option<RankCount>,
) -> Result<(Workload, Hlo), Failed> {
    let in_file = |error: &dyn std::fmt::Display| Failed::in_file(input.name(), error);
    let module = halflap_hlo::read_module(bytes).map_err(|error| in_file(&error))?;
    let module = match ranks {
        Some(ranks) => on_ranks(module, ranks).map_err(|problem| in_file(&problem))?,
        None => module,
    };
    let LoweredModule { workload, units } =
        LoweredModule::of(&module).map_err(|error| in_file(&error))?;
    Ok((workload, Hlo { module, units }))
}

/// A module for this many ranks, if it is partitioned for them or does not say.
pub fn on_ranks(module: Module, ranks: RankCount) -> Result<Module, String> {
    let own = module.devices().count() as usize;
    let (RankCount::Asked(count) | RankCount::Started(count)) = ranks;
    let said = match ranks {
        RankCount::Asked(count) => format!("--ranks {count}"),
        RankCount::Started(count) => format!("with {count} processes"),
    };
    match (module.assumed_devices(), ranks) {
        _ if count == own => Ok(module),
        (None, RankCount::Asked(_)) => {
            Err(format!("{said}: the module is partitioned for {own} ranks"))
        }
        (None, RankCount::Started(_)) => Ok(module),
        (Some(_), _) => {
            let grown = module.for_devices(u32::try_from(count).unwrap_or(0));
            grown.ok_or_else(|| {
                format!("{said}: its collectives name {own} ranks; there must be as many or more")
            })
        }
    }
}

/// How many ranks are assumed, for display, if a module that communicates does not say.
pub fn assumed_ranks(module: &Module) -> Option<String> {
    let Devices { replicas, partitions } =
        module.assumed_devices().filter(|devices| devices.count() > 1)?;
    let ranks = match (replicas, partitions) {
        (1, partitions) => format!("{partitions} partitions are"),
        (replicas, 1) => format!("{replicas} replicas are"),
        (replicas, partitions) => format!("{replicas} replicas of {partitions} partitions are"),
    };
    Some(format!(
        "{ranks} assumed, because the module has neither replica_count nor num_partitions"
    ))
}

/// Why collectives of a module are not chained.
fn no_chains() -> Failed {
    let why = "all devices run the same module, so any order works";
    Failed::BadInput(format!("--order-collectives is not for HLO modules: {why}"))
}

/// The device that a module seems to be for, where none was named.
fn assume_device(costs: &mut Costs, module: &Module) -> Result<Option<&'static str>, Failed> {
    if costs.device.is_some() {
        return Ok(None);
    }
    let name = likely_device(module);
    let device = Device::named(name).map_err(|unknown| Failed::OurBug(unknown.to_string()))?;
    costs.device = Some(device);
    Ok(Some(name))
}

/// A profile must name at least one of the module's instructions, or it belongs to another module.
fn check_profile(module: &Module, costs: &Costs, input: Option<&Input>) -> Result<(), Failed> {
    let (Some(profile), Some(input)) = (&costs.profile, input) else { return Ok(()) };
    let is_known = |name: &&str| module.has_instruction(name.trim_start_matches('%'));
    let unknown: Vec<&str> = profile.names().filter(|name| !is_known(name)).collect();
    match unknown.split_first() {
        // A profile has what ran, which the compiler may have named after this text was written.
        Some((first, _)) if unknown.len() == profile.names().count() => {
            let problem =
                format!("no name is an instruction of the module; the first is '{first}'");
            Err(Failed::in_file(input.name(), problem))
        }
        Some((first, others)) => {
            let more = if others.is_empty() {
                String::new()
            } else {
                format!(" and {} more", others.len())
            };
            files::warn(&format!(
                "{}: '{first}'{more} is not an instruction of the module",
                input.name()
            ));
            Ok(())
        }
        None => Ok(()),
    }
}

/// Why a walk ended.
enum Ended {
    Priced(CostError),
    Decided(Failed),
}

impl From<UnitError> for Ended {
    fn from(UnitError { error, .. }: UnitError) -> Ended {
        Ended::Priced(error)
    }
}

impl ProgramSource {
    /// Another program of the same file, which gives all its run times itself.
    pub fn changed_to(&self, workload: Workload) -> ProgramSource {
        let model = Model { costs: Costs::default(), ..self.model.clone() };
        let ProgramSource { input, assumed, read_seconds, .. } = self;
        ProgramSource {
            input: input.clone(),
            workload,
            model,
            assumed: *assumed,
            read_seconds: *read_seconds,
            profile: None,
        }
    }

    /// Visits all units, callees first; `decide` returns an order for each, and data to keep.
    pub fn walk<T>(
        &self,
        decide: impl FnMut(&Priced) -> Result<(Order, T), Failed>,
    ) -> Result<Vec<Decided<T>>, Failed> {
        self.walk_with(&self.model, decide)
    }

    /// The same with another model.
    pub fn walk_with<T>(
        &self,
        model: &Model,
        mut decide: impl FnMut(&Priced) -> Result<(Order, T), Failed>,
    ) -> Result<Vec<Decided<T>>, Failed> {
        let done = self.workload.walk(model, |priced| decide(priced).map_err(Ended::Decided));
        done.map_err(|ended| match (ended, &self.profile) {
            (Ended::Decided(failed), _) => failed,
            (Ended::Priced(error @ CostError::Profile(_)), Some(profile)) => {
                Failed::in_file(profile.name(), error)
            }
            (Ended::Priced(error), _) => Failed::in_file(self.input.name(), error),
        })
    }

    /// Where run times come from, for display.
    pub fn device(&self) -> Option<String> {
        let name = self.assumed?;
        Some(format!("{name} is assumed, because no device was given: --device selects another"))
    }

    /// The name of a unit.
    pub fn name_of(&self, unit: UnitId) -> &str {
        &self.workload.units[unit].name
    }

    /// The unit that was requested, or the one with the most exposed communication.
    pub fn chosen<'d, T>(
        &self,
        all: &'d [Decided<T>],
        name: Option<&str>,
    ) -> Result<&'d Decided<T>, Failed> {
        if let Some(name) = name {
            let wanted = name.trim_start_matches('%');
            let found = all.iter().find(|done| self.name_of(done.priced.unit) == wanted);
            return found.ok_or_else(|| self.unknown_computation(name));
        }
        let exposed = |done: &&Decided<T>| {
            done.exposed().after.0 * self.workload.units[done.priced.unit].runs
        };
        let most = all.iter().rev().max_by(|a, b| exposed(a).total_cmp(&exposed(b)));
        most.ok_or_else(|| Failed::OurBug("a program without units was read".to_owned()))
    }

    /// Lists what exists.
    pub fn unknown_computation(&self, name: &str) -> Failed {
        let units = self.workload.units.as_slice().iter().rev();
        let known: Vec<&str> = units
            .filter(|unit| unit.communicates())
            .take(8)
            .map(|unit| unit.name.as_str())
            .collect();
        let there = if known.is_empty() {
            "none communicates".to_owned()
        } else {
            format!("there are {}", known.join(", "))
        };
        Failed::BadInput(format!("--computation: none that runs is called '{name}'; {there}"))
    }
}
