//! The part of the Python module that is written in Rust: commands on data in memory, with the interpreter
//! free meanwhile and Ctrl-C heard. What people call is in `python/halflap`.

mod json;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use halflap::cost::{Costs, Device};
use halflap::graph::{Collective, Graph, GroupParts, OpKind, OpParts, Parts};
use halflap::units::{Bytes, Flops, Nanos};
use halflap_cli::Failed;
use halflap_cli::desk::{self, DeskCall, Stop};
use pyo3::create_exception;
use pyo3::exceptions::{PyException, PyKeyboardInterrupt};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

create_exception!(halflap, Error, PyException, "What halflap cannot do, and why.");
create_exception!(
    halflap,
    BadInput,
    Error,
    "The input or an option is at fault; the message names the place."
);
create_exception!(halflap, NotValid, Error, "An order was to be proved, and it is wrong.");
create_exception!(halflap, RunFailed, Error, "What was run did not come to its end.");
create_exception!(halflap, InternalError, Error, "A bug in halflap; the input is not at fault.");

/// How often Ctrl-C is listened for.
const BETWEEN: Duration = Duration::from_millis(20);
/// How long a command that was told to end may take for it before it is left to itself.
const PATIENCE: Duration = Duration::from_secs(2);

/// What a command wrote by name, what it printed and what it warned of.
type Told = (BTreeMap<String, Py<PyBytes>>, String, Vec<String>);

/// Runs a command on data in memory: names in angle brackets are read from `given`, and what is written to
/// such names is given back. Other threads of Python run meanwhile, and Ctrl-C ends it.
#[pyfunction]
fn call(
    py: Python<'_>,
    arguments: Vec<OsString>,
    given: BTreeMap<String, Vec<u8>>,
) -> PyResult<Told> {
    let stop = Stop::default();
    let (sender, mut answers) = channel();
    let call = DeskCall { arguments, given, stop: stop.clone() };
    // Its own thread, because only this one can be told of signals; the answer has no reader once we gave up.
    thread::spawn(move || _ = sender.send(desk::call(call)));
    let answer = answered(py, &mut answers, &stop)?;
    if let Some(failed) = answer.failed {
        return Err(raised(failed));
    }
    let written = answer
        .written
        .into_iter()
        .map(|(name, bytes)| (name, PyBytes::new(py, &bytes).unbind()))
        .collect();
    Ok((written, answer.printed, answer.warnings))
}

/// What a command found: rendered only when that is asked for, and never worked out again.
#[pyclass(frozen)]
struct Held(desk::FoundAnswer);

#[pymethods]
impl Held {
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

    /// What it warned of.
    #[getter]
    fn warnings(&self) -> Vec<String> {
        self.0.warnings.clone()
    }
}

/// Runs `schedule`, `simulate`, `explain` or `what-if` on data in memory, as `call` does; nothing is rendered.
#[pyfunction]
fn find(
    py: Python<'_>,
    arguments: Vec<OsString>,
    given: BTreeMap<String, Vec<u8>>,
) -> PyResult<Held> {
    let stop = Stop::default();
    let (sender, mut answers) = channel();
    let call = DeskCall { arguments, given, stop: stop.clone() };
    thread::spawn(move || _ = sender.send(desk::find(call)));
    answered(py, &mut answers, &stop)?.map(Held).map_err(raised)
}

/// Waits for an answer, and for signals.
fn answered<T: Send>(py: Python<'_>, answers: &mut Receiver<T>, stop: &Stop) -> PyResult<T> {
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
        Failed::BadInput(problem) => BadInput::new_err(problem),
        Failed::Wrong(problem) => NotValid::new_err(problem),
        Failed::BrokenRun(problem) => RunFailed::new_err(problem),
        Failed::OurBug(problem) | Failed::TorchDrifts(problem) => InternalError::new_err(problem),
        Failed::Stopped => PyKeyboardInterrupt::new_err(()),
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
type Work = (f64, i64);
/// A collective's kind, the ranks that take part, and its bytes.
type Issued = (String, Vec<u32>, i64);

/// What stands for a device: a preset's name, or the content of the file that `name` is or that `text` would be
/// in. Refuses what the command refuses, in the same words.
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

/// The run times in nanoseconds of kernels and of collectives as the model of a device has them. A kernel that
/// does nothing takes no time.
#[pyfunction]
#[pyo3(signature = (device, work, issued, ranks_per_node=None))]
fn modelled_times(
    device: &str,
    work: Vec<Work>,
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

/// A node that computes, with nothing around it; a time is given, for what the model has no figures for.
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
    module.add_class::<Held>()?;
    module.add_function(wrap_pyfunction!(call, module)?)?;
    module.add_function(wrap_pyfunction!(find, module)?)?;
    module.add_function(wrap_pyfunction!(main, module)?)?;
    module.add_function(wrap_pyfunction!(described_device, module)?)?;
    module.add_function(wrap_pyfunction!(reported_device, module)?)?;
    module.add_function(wrap_pyfunction!(ranks_per_node, module)?)?;
    module.add_function(wrap_pyfunction!(modelled_times, module)?)?;
    module.add_function(wrap_pyfunction!(json::to_json, module)?)
}
