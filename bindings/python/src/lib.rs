//! The part of the Python module that is written in Rust: typed requests, during which the
//! interpreter is free and Ctrl-C works. The public functions are in `python/halflap`.

mod json;
mod options;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use halflap::cost::{Costs, Device};
use halflap::graph::{Collective, Graph, GroupParts, OpKind, OpParts, Parts};
use halflap::units::{Bytes, Flops, Nanos};
use halflap_cli::Failed;
use halflap_cli::ask::{self, Figures, StopSignal};
use halflap_cli::place::Input;
use halflap_cli::request::{
    Analyze, Explain, Ordered, Request, Run, Simulate, Timeline, Verify, WhatIf, WhichArgs,
};
use options::Options;
use pyo3::create_exception;
use pyo3::exceptions::{PyException, PyKeyboardInterrupt};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

create_exception!(halflap, Error, PyException, "What halflap cannot do, and why.");
create_exception!(
    halflap,
    BadInput,
    Error,
    "The input or an option is at fault; the message names the place."
);
create_exception!(halflap, NotValid, Error, "An order was to be proved, and it is wrong.");
create_exception!(halflap, RunFailed, Error, "What was run did not complete.");
create_exception!(halflap, InternalError, Error, "A bug in halflap; the input is not at fault.");

/// How often Ctrl-C is checked for.
const BETWEEN: Duration = Duration::from_millis(20);
/// How long a command may take to stop before it is abandoned.
const PATIENCE: Duration = Duration::from_secs(2);

/// Orders and their figures: nothing was rendered for them.
#[pyclass(frozen, get_all, name = "Figures")]
struct PyFigures {
    /// The names of nodes in their new order, by computation; a graph's has no name.
    orders: Vec<(String, Vec<String>)>,
    step_time: f64,
    step_time_before: f64,
    exposed: f64,
    exposed_before: f64,
    peak_memory: i64,
    peak_memory_before: i64,
    bound: Option<f64>,
}

impl PyFigures {
    fn of(figures: Figures) -> PyFigures {
        let Figures { orders, step_time, exposed, peak, bound } = figures;
        PyFigures {
            orders,
            step_time: step_time.after.0,
            step_time_before: step_time.before.0,
            exposed: exposed.after.0,
            exposed_before: exposed.before.0,
            peak_memory: peak.after.0,
            peak_memory_before: peak.before.0,
            bound: bound.map(|bound| bound.0),
        }
    }
}

/// What a command found: rendered only when that is asked for, and never worked out again.
#[pyclass(frozen, name = "Held")]
struct PyHeld(ask::FoundAnswer);

#[pymethods]
impl PyHeld {
    /// As JSON.
    fn json(&self, py: Python<'_>) -> PyResult<String> {
        py.detach(|| self.0.json()).map_err(raised)
    }

    /// As the command prints it.
    fn text(&self, py: Python<'_>) -> PyResult<String> {
        py.detach(|| self.0.text()).map_err(raised)
    }

    /// As a page to look at in a browser.
    fn page(&self, py: Python<'_>) -> PyResult<String> {
        let page = py.detach(|| self.0.page()).map_err(raised)?;
        Ok(String::from_utf8_lossy(&page).into_owned())
    }

    /// The orders and their figures, of a schedule or a simulation.
    fn figures(&self, py: Python<'_>) -> PyResult<PyFigures> {
        let found = py.detach(|| self.0.figures()).map(PyFigures::of);
        found.ok_or_else(|| InternalError::new_err("this answer has no figures"))
    }

    /// Measured times in nanoseconds by name, of an analysis.
    fn profile(&self) -> BTreeMap<String, f64> {
        let times = self.0.profile().unwrap_or_default();
        times.into_iter().map(|(name, time)| (name, time.0)).collect()
    }

    /// The program again, as it was changed.
    fn program(&self, py: Python<'_>) -> PyResult<String> {
        py.detach(|| self.0.program()).map_err(raised)
    }

    /// What it warned of.
    #[getter]
    fn warnings(&self) -> Vec<String> {
        self.0.warnings.clone()
    }
}

/// What a request reads: the path of a file, or a name for messages and what is in memory.
#[derive(FromPyObject)]
enum PyInput {
    File(String),
    Memory(String, Vec<u8>),
}

impl From<PyInput> for Input {
    fn from(given: PyInput) -> Input {
        match given {
            PyInput::File(path) => Input::File(path),
            PyInput::Memory(name, bytes) => Input::Memory { name, bytes: bytes.into() },
        }
    }
}

/// Does work on another thread, because only this one can receive signals; its result is dropped
/// once we gave up.
fn apart<T: Send + 'static>(
    py: Python<'_>,
    work: impl FnOnce(StopSignal) -> Result<T, Failed> + Send + 'static,
) -> PyResult<T> {
    let stop = StopSignal::default();
    let (sender, mut answers) = channel();
    let to_stop = stop.clone();
    thread::spawn(move || _ = sender.send(work(to_stop)));
    answered(py, &mut answers, &stop)?.map_err(raised)
}

fn find(py: Python<'_>, request: Request) -> PyResult<PyHeld> {
    apart(py, move |stop| ask::find(&request, stop)).map(PyHeld)
}

/// The best order of a program, or what passes make of it.
#[pyfunction]
fn schedule(py: Python<'_>, program: PyInput, options: &Bound<'_, PyDict>) -> PyResult<PyHeld> {
    let options = Options::new(options)?;
    let request = options.schedule(program.into())?;
    options.finish()?;
    find(py, Request::Schedule(Box::new(request)))
}

/// A program in an order, or in its own, with what both questions about it have in common.
fn ordered(program: PyInput, order: Option<PyInput>, options: &Options<'_>) -> PyResult<Ordered> {
    Ok(Ordered {
        collectives: options.collectives()?,
        machine: options.machine()?,
        which: WhichArgs { computation: options.computation()? },
        ..Ordered::new(program, order.map(Input::from))
    })
}

/// An order in time.
#[pyfunction]
fn simulate(
    py: Python<'_>,
    program: PyInput,
    order: Option<PyInput>,
    options: &Bound<'_, PyDict>,
) -> PyResult<PyHeld> {
    let options = Options::new(options)?;
    let request = Simulate { of: ordered(program, order, &options)? };
    options.finish()?;
    find(py, Request::Simulate(Box::new(request)))
}

/// What holds collectives that are exposed.
#[pyfunction]
fn explain(
    py: Python<'_>,
    program: PyInput,
    order: Option<PyInput>,
    options: &Bound<'_, PyDict>,
) -> PyResult<PyHeld> {
    let options = Options::new(options)?;
    let (node, memory_budget) = (options.node()?, options.memory_budget()?);
    let rewrite = options.rewrite()?;
    let of = ordered(program, order, &options)?;
    let request = Explain { of, node, memory_budget, rewrite, no_advice: false };
    options.finish()?;
    find(py, Request::Explain(Box::new(request)))
}

/// What more memory or a faster network would gain.
#[pyfunction]
fn what_if(
    py: Python<'_>,
    program: PyInput,
    schedule: Option<PyInput>,
    options: &Bound<'_, PyDict>,
) -> PyResult<PyHeld> {
    let options = Options::new(options)?;
    let defaults = WhatIf::new(program, schedule.map(Input::from));
    let request = WhatIf {
        memory: options.budgets()?.unwrap_or_else(|| defaults.memory.clone()),
        bandwidth: options.bandwidths()?.unwrap_or_else(|| defaults.bandwidth.clone()),
        collectives: options.collectives()?,
        rewrite: options.rewrite()?,
        effort: options.effort()?,
        threads: options.threads()?,
        machine: options.machine()?,
        which: WhichArgs { computation: options.computation()? },
        ..defaults
    };
    options.finish()?;
    find(py, Request::WhatIf(Box::new(request)))
}

/// Proves an order; gives what it needs, and warnings.
#[pyfunction]
fn verify(
    py: Python<'_>,
    program: PyInput,
    order: PyInput,
    options: &Bound<'_, PyDict>,
) -> PyResult<(String, Vec<String>)> {
    let options = Options::new(options)?;
    let collectives = options.collectives()?;
    let defaults = Verify::new(program, order);
    let request = Verify {
        memory_budget: options.memory_budget()?,
        collective_order: collectives.collective_order.unwrap_or(defaults.collective_order),
        order_collectives: collectives.order_collectives,
        ..defaults
    };
    options.finish()?;
    let proved = apart(py, move |stop| ask::prove(&request, stop))?;
    Ok((proved.text, proved.warnings))
}

/// What a run gave: an archive of the outputs of every rank, the summary, and warnings.
#[pyclass(frozen, name = "Ran")]
struct PyRan(ask::RanModule);

#[pymethods]
impl PyRan {
    #[getter]
    fn outputs<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.0.outputs)
    }

    #[getter]
    fn text(&self) -> &str {
        &self.0.text
    }

    #[getter]
    fn warnings(&self) -> Vec<String> {
        self.0.warnings.clone()
    }
}

/// Runs a module on all its ranks, with an archive of their inputs.
#[pyfunction]
fn run(
    py: Python<'_>,
    module: PyInput,
    order: Option<PyInput>,
    inputs: PyInput,
    options: &Bound<'_, PyDict>,
) -> PyResult<PyRan> {
    let options = Options::new(options)?;
    let (order, inputs) = (order.map(Input::from), Some(inputs.into()));
    let request = Run { order, inputs, ..options.run(module.into())? };
    options.finish()?;
    refuse_conflicts(&request)?;
    apart(py, move |stop| ask::run(&request, stop)).map(PyRan)
}

/// Refuses what the command refuses: orders that are tried are not given.
fn refuse_conflicts(request: &Run) -> PyResult<()> {
    let with = |one: &str, other: &str| {
        Err(BadInput::new_err(format!("the argument {one} cannot be used with {other}")))
    };
    let Run { order, orders, tune, memory_budgets, compare, .. } = request;
    match tune {
        Some(_) if order.is_some() => with("tune", "order"),
        Some(_) if orders.input_order => with("tune", "input_order"),
        Some(_) if *compare => with("tune", "compare"),
        _ if order.is_some() && orders.input_order => with("order", "input_order"),
        None if !memory_budgets.is_empty() => {
            Err(BadInput::new_err("memory_budgets are what tune tries, and tune is not given"))
        }
        _ if !memory_budgets.is_empty() && orders.search.memory_budget.is_some() => {
            with("memory_budgets", "memory_budget")
        }
        _ => Ok(()),
    }
}

/// What ran, from traces.
#[pyfunction]
fn analyze(py: Python<'_>, traces: Vec<String>) -> PyResult<PyHeld> {
    if traces.is_empty() {
        return Err(BadInput::new_err("there is no trace to read: name one for each rank"));
    }
    let traces = traces.into_iter().map(Input::File).collect();
    find(py, Request::Analyze(Analyze::new(traces)))
}

/// A measured step beside its simulation.
#[pyfunction]
fn timeline(py: Python<'_>, step: PyInput) -> PyResult<PyHeld> {
    find(py, Request::Timeline(Timeline::new(step)))
}

/// Waits for an answer, and for signals.
fn answered<T: Send>(py: Python<'_>, answers: &mut Receiver<T>, stop: &StopSignal) -> PyResult<T> {
    let mut told: Option<(PyErr, Instant)> = None;
    loop {
        let own = &mut *answers;
        let next = py.detach(move || own.recv_timeout(BETWEEN));
        match (next, &told) {
            (Ok(answer), None) => return Ok(answer),
            (Err(RecvTimeoutError::Timeout), None) => {
                if let Err(signal) = py.check_signals() {
                    stop.ask();
                    told = Some((signal, Instant::now()));
                }
            }
            (Err(RecvTimeoutError::Timeout), Some((_, since))) if since.elapsed() < PATIENCE => {}
            (_, Some((signal, _))) => return Err(signal.clone_ref(py)),
            (Err(RecvTimeoutError::Disconnected), None) => {
                return Err(InternalError::new_err("the command ended without an answer"));
            }
        }
    }
}

fn raised(failed: Failed) -> PyErr {
    match failed {
        Failed::BadInput(problem) | Failed::NothingFits(problem) => BadInput::new_err(problem),
        Failed::Wrong(problem) | Failed::OnlyRan(problem) => NotValid::new_err(problem),
        Failed::BrokenRun(problem) => RunFailed::new_err(problem),
        Failed::OurBug(problem) | Failed::TorchDrifts(problem) => InternalError::new_err(problem),
        Failed::Stopped | Failed::Interrupted => PyKeyboardInterrupt::new_err(()),
        other @ (Failed::ToldElsewhere(_) | Failed::NobodyReads) => {
            InternalError::new_err(format!("{other:?}"))
        }
    }
}

/// Is the `halflap` command; gives its exit code.
#[pyfunction]
fn main(py: Python<'_>, arguments: Vec<OsString>) -> u8 {
    py.detach(|| halflap_cli::main_with(arguments))
}

/// The operations and bytes of one kernel.
type KernelWork = (f64, i64);
/// A collective's kind, the ranks that take part, and its bytes.
type Issued = (String, Vec<u32>, i64);

/// What stands for a device: a preset's name, or the content of the file that `name` is or that
/// `text` would be in. Refuses what the command refuses, in the same words.
#[pyfunction]
#[pyo3(signature = (name, text=None))]
fn described_device(name: &str, text: Option<Vec<u8>>) -> PyResult<String> {
    match text {
        None => halflap_cli::described_device(name).map_err(raised),
        Some(text) => {
            Device::tidied(&text).map_err(|error| BadInput::new_err(format!("{name}: {error}")))
        }
    }
}

/// The preset for what a driver calls its device.
#[pyfunction]
fn reported_device(name: &str) -> Option<&'static str> {
    Device::reported(name)
}

/// How many ranks share a node with a device as described, and whether a launcher knows better.
#[pyfunction]
fn ranks_per_node(device: &str) -> PyResult<(u32, bool)> {
    figures(device).map(|device| (device.ranks_per_node, device.is_usual))
}

/// The figures of a device as described.
fn figures(device: &str) -> PyResult<Device> {
    match device.starts_with('{') {
        true => {
            Device::read(device.as_bytes()).map_err(|error| BadInput::new_err(error.to_string()))
        }
        false => Device::named(device).map_err(|error| BadInput::new_err(error.to_string())),
    }
}

/// The run times in nanoseconds of kernels and of collectives as the model of a device has them. A
/// kernel that does nothing takes no time.
#[pyfunction]
#[pyo3(signature = (device, work, issued, ranks_per_node=None))]
fn modelled_times(
    device: &str,
    work: Vec<KernelWork>,
    issued: Vec<Issued>,
    ranks_per_node: Option<u32>,
) -> PyResult<(Vec<f64>, Vec<f64>)> {
    let mut device = figures(device)?;
    device.ranks_per_node = ranks_per_node.unwrap_or(device.ranks_per_node);
    let costs = Costs { device: Some(device), ..Costs::default() };
    let kernels =
        work.iter().enumerate().map(|(number, &(flops, bytes))| kernel(number, flops, bytes));
    let kernels = kernels.collect();
    let mut parts = Parts { ops: kernels, ..Parts::default() };
    for (op, ranks, bytes) in issued {
        let (group_size, name) = (ranks.len() as u32, parts.groups.len().to_string());
        let group = parts.groups.push(GroupParts::new(name, ranks));
        let collective = Collective::named(op, group, group_size, Bytes(bytes));
        let mut op = kernel(parts.ops.len(), 0.0, 0);
        (op.kind, op.collective) = (OpKind::AsyncCollective, Some(collective));
        parts.ops.push(op);
    }
    let bad = |error: &dyn std::fmt::Display| BadInput::new_err(error.to_string());
    let graph = Graph::new(parts).map_err(|error| bad(&error))?;
    let times = costs.times(&graph).map_err(|error| bad(&error))?;
    let mut times: Vec<f64> = graph.ops().map(|op| times.of(op).0).collect();
    let communicated = times.split_off(work.len());
    Ok((times, communicated))
}

/// A node that computes, with nothing around it; a time is given, for what the model has no figures
/// for.
fn kernel(number: usize, flops: f64, bytes: i64) -> OpParts {
    let does_anything = flops > 0.0 || bytes > 0;
    OpParts {
        runtime: Some(Nanos::ZERO),
        flops: (flops > 0.0).then_some(Flops(flops)),
        bytes: does_anything.then_some(Bytes(bytes)),
        ..OpParts::compute(number.to_string())
    }
}

/// What is written in Rust.
#[pymodule]
fn _halflap(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add("Error", py.get_type::<Error>())?;
    module.add("BadInput", py.get_type::<BadInput>())?;
    module.add("NotValid", py.get_type::<NotValid>())?;
    module.add("RunFailed", py.get_type::<RunFailed>())?;
    module.add("InternalError", py.get_type::<InternalError>())?;
    module.add_class::<PyHeld>()?;
    module.add_class::<PyFigures>()?;
    module.add_class::<PyRan>()?;
    module.add_function(wrap_pyfunction!(run, module)?)?;
    module.add_function(wrap_pyfunction!(schedule, module)?)?;
    module.add_function(wrap_pyfunction!(simulate, module)?)?;
    module.add_function(wrap_pyfunction!(explain, module)?)?;
    module.add_function(wrap_pyfunction!(what_if, module)?)?;
    module.add_function(wrap_pyfunction!(verify, module)?)?;
    module.add_function(wrap_pyfunction!(analyze, module)?)?;
    module.add_function(wrap_pyfunction!(timeline, module)?)?;
    module.add_function(wrap_pyfunction!(main, module)?)?;
    module.add_function(wrap_pyfunction!(described_device, module)?)?;
    module.add_function(wrap_pyfunction!(reported_device, module)?)?;
    module.add_function(wrap_pyfunction!(ranks_per_node, module)?)?;
    module.add_function(wrap_pyfunction!(modelled_times, module)?)?;
    module.add_function(wrap_pyfunction!(json::to_json, module)?)
}
