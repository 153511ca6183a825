//! Keyword arguments of Python as requests of the library.

use std::fmt::Display;
use std::str::FromStr;

use halflap::memory::Budget;
use halflap::pass::Pass;
use halflap::units::{Bytes, Nanos};
use halflap_cli::place::{Input, Output};
use halflap_cli::request::{
    self, Against, ArtifactArgs, CollectiveArgs, CostArgs, DEFAULT_TUNE, DebugArgs, Emit,
    MachineArgs, NanAsserts, OrderArgs, PictureArgs, Rewrites, Run, Schedule, SearchArgs,
    ValueEnum,
};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyFloat, PyInt, PyString};

use crate::{BadInput, PyInput};

/// Keyword arguments, each of which is taken once. None means that it is not given.
pub struct Options<'py>(Bound<'py, PyDict>);

impl<'py> Options<'py> {
    pub fn new(given: &Bound<'py, PyDict>) -> PyResult<Options<'py>> {
        given.copy().map(Options)
    }

    /// Refuses arguments that were not used.
    pub fn finish(self) -> PyResult<()> {
        match self.0.keys().iter().next() {
            Some(name) => Err(BadInput::new_err(format!("unexpected argument {name} found"))),
            None => Ok(()),
        }
    }

    fn take(&self, name: &str) -> PyResult<Option<Bound<'py, PyAny>>> {
        let value = self.0.get_item(name)?;
        if value.is_some() {
            self.0.del_item(name)?;
        }
        Ok(value.filter(|value| !value.is_none()))
    }

    /// A value as what it must be.
    fn typed<T>(
        &self,
        name: &str,
        read: impl Fn(&Bound<'py, PyAny>) -> Result<T, String>,
    ) -> PyResult<Option<T>> {
        let Some(value) = self.take(name)? else { return Ok(None) };
        read(&value).map(Some).map_err(|why| invalid(name, &value, &why))
    }

    /// Each value of a list, or the only one.
    fn each<T>(
        &self,
        name: &str,
        read: impl Fn(&Bound<'py, PyAny>) -> Result<T, String>,
    ) -> PyResult<Option<Vec<T>>> {
        let Some(value) = self.take(name)? else { return Ok(None) };
        let values = match value.is_instance_of::<PyString>() || value.try_iter().is_err() {
            true => vec![value],
            false => value.try_iter()?.collect::<PyResult<Vec<_>>>()?,
        };
        let read =
            |value: &Bound<'py, PyAny>| read(value).map_err(|why| invalid(name, value, &why));
        values.iter().map(read).collect::<PyResult<Vec<T>>>().map(Some)
    }

    /// The same; text may have several values, with commas between.
    fn listed<T>(
        &self,
        name: &str,
        read: impl Fn(&Bound<'py, PyAny>) -> Result<T, String>,
    ) -> PyResult<Option<Vec<T>>> {
        if let Some(value) = self.0.get_item(name)?
            && let Ok(text) = value.cast::<PyString>()
        {
            let parts: Vec<String> =
                text.to_str()?.split(',').map(|part| part.trim().into()).collect();
            self.0.set_item(name, parts)?;
        }
        self.each(name, read)
    }

    fn flag(&self, name: &str) -> PyResult<bool> {
        let read = |value: &Bound<'py, PyAny>| value.is_truthy().map_err(|error| error.to_string());
        Ok(self.typed(name, read)?.unwrap_or(false))
    }

    /// How the optimizer searches.
    fn search(&self) -> PyResult<SearchArgs> {
        Ok(SearchArgs {
            memory_budget: self.typed("memory_budget", budget)?,
            collective_order: self
                .typed("collective_order", |value| request::choice(&text(value)?))?,
            effort: self.typed("effort", |value| request::choice(&text(value)?))?,
            threads: self.typed("threads", count)?,
        })
    }

    /// How the order of collectives is treated.
    pub fn collectives(&self) -> PyResult<CollectiveArgs> {
        Ok(CollectiveArgs {
            collective_order: self
                .typed("collective_order", |value| request::choice(&text(value)?))?,
            order_collectives: self
                .typed("order_collectives", |value| request::choice(&text(value)?))?,
        })
    }

    /// What orders are simulated on.
    pub fn machine(&self) -> PyResult<MachineArgs> {
        let costs = CostArgs {
            device: self.typed("device", input)?,
            ranks_per_node: self.typed("ranks_per_node", count)?,
            link: self.typed("link", text)?,
            profile: self.typed("profile", input)?,
        };
        if costs.ranks_per_node.is_some() && costs.device.is_none() {
            let problem = "the following required arguments were not provided:\n  device";
            return Err(BadInput::new_err(problem));
        }
        let slowdown = |value: &Bound<'py, PyAny>| number(value).and_then(request::slowdown);
        let defaults = MachineArgs::default();
        Ok(MachineArgs {
            costs,
            slowdown: self.typed("slowdown", slowdown)?,
            comm_slowdown: self.typed("comm_slowdown", slowdown)?,
            launch: self
                .typed("launch", |value| request::duration(&text(value)?))?
                .unwrap_or(defaults.launch),
            comm_streams: self
                .typed("comm_streams", |value| request::choice(&text(value)?))?
                .unwrap_or(defaults.comm_streams),
        })
    }

    pub fn computation(&self) -> PyResult<Option<String>> {
        self.typed("computation", text)
    }

    pub fn node(&self) -> PyResult<Option<String>> {
        self.typed("node", text)
    }

    pub fn memory_budget(&self) -> PyResult<Option<Budget>> {
        self.typed("memory_budget", budget)
    }

    /// The memory limits of a sweep.
    pub fn budgets(&self) -> PyResult<Option<Vec<Budget>>> {
        self.listed("memory", budget)
    }

    /// The speeds of a sweep.
    pub fn bandwidths(&self) -> PyResult<Option<Vec<f64>>> {
        self.listed("bandwidth", |value| number(value).and_then(request::bandwidth))
    }

    pub fn effort(&self) -> PyResult<Option<request::EffortArg>> {
        self.typed("effort", |value| request::choice(&text(value)?))
    }

    pub fn threads(&self) -> PyResult<Option<u16>> {
        self.typed("threads", count)
    }

    /// A search for the best order of a program, or passes.
    pub fn schedule(&self, program: Input) -> PyResult<Schedule> {
        let emit = |value: &Bound<'py, PyAny>| request::choice::<Emit>(&text(value)?);
        Ok(Schedule {
            passes: self.listed("passes", parsed::<Pass>)?.unwrap_or_default(),
            settings: self.settings()?,
            search: self.search()?,
            machine: self.machine()?,
            compat: self.typed("compat", |value| request::choice(&text(value)?))?,
            check_memory: self.flag("check_memory")?,
            order_collectives: self
                .typed("order_collectives", |value| request::choice(&text(value)?))?,
            rewrite: self.rewrite()?,
            without: self.listed("without", text)?.unwrap_or_default(),
            recipes_only: self.flag("recipes_only")?,
            merge: self.each("merge", text)?.unwrap_or_default(),
            emit: self.typed("emit", emit)?,
            which: request::WhichArgs { computation: self.computation()? },
            ..Schedule::new(program)
        })
    }

    /// A run of a module on all its ranks.
    pub fn run(&self, module: Input) -> PyResult<Run> {
        let defaults = Run::new(module);
        let limit = |value: &Bound<'py, PyAny>| request::limit(&text(value)?);
        Ok(Run {
            ranks: self.typed("ranks", count)?,
            orders: OrderArgs {
                input_order: self.flag("input_order")?,
                no_fuse: self.flag("no_fuse")?,
                search: self.search()?,
            },
            steps: self.typed("steps", count)?.unwrap_or(defaults.steps),
            timeout: self.typed("timeout", limit)?.unwrap_or(defaults.timeout),
            emulate_link: self.typed("emulate_link", parsed)?,
            seed: self.typed("seed", whole)?.unwrap_or(defaults.seed),
            custom_calls: self.each("custom_calls", text)?.unwrap_or_default(),
            threads_per_rank: self.typed("threads_per_rank", count)?,
            compare: self.flag("compare")?,
            tune: self.tune()?,
            memory_budgets: self.listed("memory_budgets", budget)?.unwrap_or_default(),
            order_out: self.typed("order_out", text)?,
            profile_out: self.typed("profile_out", text)?,
            json: self.flag("json")?,
            debug: self.debug()?,
            artifacts: ArtifactArgs {
                artifacts: self.typed("artifacts", text)?,
                overwrite: self.flag("overwrite")?,
            },
            pictures: PictureArgs {
                report: self.typed("report", text)?.map(Output::File),
                trace: self.typed("trace", text)?,
            },
            machine: self.machine()?,
            ..defaults
        })
    }

    /// How long orders are tried: a time, or True for as long as by default.
    fn tune(&self) -> PyResult<Option<Nanos>> {
        self.typed("tune", |value| match value.cast::<PyBool>() {
            Ok(_) => Ok(DEFAULT_TUNE),
            Err(_) => request::limit(&text(value)?),
        })
    }

    /// Checks while a module runs.
    fn debug(&self) -> PyResult<DebugArgs> {
        let choice = |value: &Bound<'py, PyAny>| request::choice(&text(value)?);
        let defaults = DebugArgs::default();
        Ok(DebugArgs {
            check_lifetimes: self
                .typed("check_lifetimes", |value| request::choice(&text(value)?))?
                .unwrap_or(defaults.check_lifetimes),
            debug_values: self.typed("debug_values", level)?.unwrap_or(defaults.debug_values),
            filter_kernels: self.typed("filter_kernels", text)?,
            values_dir: self.typed("values_dir", text)?.unwrap_or(defaults.values_dir),
            check_inputs: self.flag("check_inputs")?,
            nan_asserts: self
                .typed("nan_asserts", |value| switched(value, NanAsserts::Nan))?
                .unwrap_or(defaults.nan_asserts),
            nan_origins: self.typed("nan_origins", text)?,
            no_memory_caching: self
                .typed("no_memory_caching", |value| switched(value, Against::End))?
                .unwrap_or(defaults.no_memory_caching),
            launch_blocking: self.flag("launch_blocking")?,
            canaries: self.typed("canaries", choice)?,
            flight_recorder: self.typed("flight_recorder", text)?,
            fault_report: self.typed("fault_report", text)?,
            inject: Vec::new(),
        })
    }

    /// Settings of passes, by name.
    fn settings(&self) -> PyResult<Vec<String>> {
        let Some(settings) = self.take("settings")? else { return Ok(Vec::new()) };
        let settings = settings.cast_into::<PyDict>()?;
        Ok(settings.iter().map(|(name, value)| format!("{name}={value}")).collect())
    }

    /// True, one of the words of the command, or names of rewrites.
    pub fn rewrite(&self) -> PyResult<Option<Rewrites>> {
        let Some(value) = self.take("rewrite")? else { return Ok(None) };
        if let Ok(is_wanted) = value.cast::<PyBool>() {
            let is_wanted = is_wanted.is_true();
            return Ok(is_wanted.then(Rewrites::exact));
        }
        let text = match value.is_instance_of::<PyString>() {
            true => value.to_string(),
            false => value.extract::<Vec<String>>()?.join(","),
        };
        text.parse().map(Some).map_err(|why: String| invalid("rewrite", &text, &why))
    }
}

/// A value that is not what it must be. What can be chosen from is on a line of its own.
fn invalid(name: &str, value: &impl Display, why: &str) -> PyErr {
    let between = if why.starts_with('[') { "\n  " } else { ": " };
    BadInput::new_err(format!("invalid value '{value}' for {name}{between}{why}"))
}

/// A choice by its name, or True for the usual one.
fn switched<T: ValueEnum>(value: &Bound<'_, PyAny>, usual: T) -> Result<T, String> {
    match value.cast::<PyBool>() {
        Ok(_) => Ok(usual),
        Err(_) => request::choice(&text(value)?),
    }
}

/// A file, or what is in memory.
fn input(value: &Bound<'_, PyAny>) -> Result<Input, String> {
    let given = value.extract::<PyInput>().map_err(|_| "it must be a path".to_owned())?;
    Ok(given.into())
}

fn text(value: &Bound<'_, PyAny>) -> Result<String, String> {
    value.extract().map_err(|_| "it must be text".to_owned())
}

fn parsed<T: FromStr<Err: Display>>(value: &Bound<'_, PyAny>) -> Result<T, String> {
    text(value)?.parse().map_err(|error: T::Err| error.to_string())
}

/// A number; text that is one will do, as it does for the command.
fn number(value: &Bound<'_, PyAny>) -> Result<f64, String> {
    let number =
        value.extract().ok().or_else(|| text(value).ok()?.trim_end_matches('x').parse().ok());
    number.ok_or_else(|| "it must be a number".to_owned())
}

/// How many: at least one.
fn count<T: TryFrom<i64>>(value: &Bound<'_, PyAny>) -> Result<T, String> {
    let whole = value.extract::<i64>().ok().or_else(|| text(value).ok()?.parse().ok());
    let count = whole.filter(|&whole| whole > 0).and_then(|whole| T::try_from(whole).ok());
    count.ok_or_else(|| "it must be an integer of at least 1".to_owned())
}

/// An integer of 0 or more.
fn whole(value: &Bound<'_, PyAny>) -> Result<u64, String> {
    let whole = value.extract::<u64>().ok().or_else(|| text(value).ok()?.parse().ok());
    whole.ok_or_else(|| "it must be an integer of 0 or more".to_owned())
}

fn level(value: &Bound<'_, PyAny>) -> Result<u8, String> {
    let level = whole(value).ok().and_then(|level| u8::try_from(level).ok());
    level.filter(|level| *level <= 3).ok_or_else(|| "it must be 0, 1, 2 or 3".to_owned())
}

/// A multiple of the input order's peak, a number of bytes, or either as text.
fn budget(value: &Bound<'_, PyAny>) -> Result<Budget, String> {
    let bad = || Budget::from_str(&value.to_string()).map_err(|error| error.to_string());
    if value.is_instance_of::<PyBool>() {
        return bad();
    }
    if let Ok(times) = value.cast::<PyFloat>() {
        let times = times.value();
        return if (0.0..=9e18).contains(&times) { Ok(Budget::Times(times)) } else { bad() };
    }
    if value.is_instance_of::<PyInt>() {
        let bytes = value.extract::<i64>().ok().filter(|bytes| *bytes >= 0);
        return bytes.map_or_else(bad, |bytes| Ok(Budget::Absolute(Bytes(bytes))));
    }
    parsed(value)
}
