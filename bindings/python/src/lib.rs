//! The part of the Python module that is written in Rust: commands on data in memory, with the interpreter
//! free meanwhile and Ctrl-C heard. What people call is in `python/halflap`.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use halflap::cost::{Costs, Device};
use halflap::import::read_graph;
use halflap_cli::Failed;
use halflap_cli::desk::{self, Answer, Call, Stop};
use pyo3::create_exception;
use pyo3::exceptions::{PyException, PyKeyboardInterrupt};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

create_exception!(_halflap, Error, PyException, "What halflap cannot do, and why.");
create_exception!(_halflap, BadInput, Error, "The input or an option is at fault; the message names the place.");
create_exception!(_halflap, NotValid, Error, "An order was to be proved, and it is wrong.");
create_exception!(_halflap, RunFailed, Error, "What was run did not come to its end.");
create_exception!(_halflap, InternalError, Error, "A bug in halflap; the input is not at fault.");

/// How often Ctrl-C is listened for.
const BETWEEN: Duration = Duration::from_millis(20);
/// How long a command that was told to end may take for it before it is left to itself.
const PATIENCE: Duration = Duration::from_secs(2);

/// What a command wrote by name, what it printed and what it warned of.
type Told = (BTreeMap<String, Py<PyBytes>>, String, Vec<String>);

/// Runs a command on data in memory: names in angle brackets are read from `given`, and what is written to
/// such names is given back. Other threads of Python run meanwhile, and Ctrl-C ends it.
#[pyfunction]
fn call(py: Python<'_>, arguments: Vec<OsString>, given: BTreeMap<String, Vec<u8>>) -> PyResult<Told> {
    let stop = Stop::default();
    let (sender, mut answers) = channel();
    let call = Call { arguments, given, stop: stop.clone() };
    // Its own thread, because only this one can be told of signals; the answer has no reader once we gave up.
    thread::spawn(move || _ = sender.send(desk::call(call)));
    let answer = answered(py, &mut answers, &stop)?;
    if let Some(failed) = answer.failed {
        return Err(raised(failed));
    }
    let written = answer.written.into_iter().map(|(name, bytes)| (name, PyBytes::new(py, &bytes).unbind())).collect();
    Ok((written, answer.printed, answer.warnings))
}

/// Waits for an answer, and for signals.
fn answered(py: Python<'_>, answers: &mut Receiver<Answer>, stop: &Stop) -> PyResult<Answer> {
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
        other @ (Failed::ToldElsewhere(_) | Failed::NobodyReads) => InternalError::new_err(format!("{other:?}")),
    }
}

/// Is the `halflap` command; gives its exit code.
#[pyfunction]
fn main(py: Python<'_>, arguments: Vec<OsString>) -> u8 {
    py.detach(|| halflap_cli::main_with(arguments))
}

/// The run time in nanoseconds of every node of a graph as the model of a device has it.
#[pyfunction]
fn modelled_times(py: Python<'_>, graph: Vec<u8>, device: &str) -> PyResult<Vec<f64>> {
    let bad = |error: &dyn std::fmt::Display| BadInput::new_err(error.to_string());
    py.detach(|| {
        let graph = read_graph(&graph).map_err(|error| bad(&error))?;
        let device = Device::named(device).map_err(|error| bad(&error))?;
        let costs = Costs { device: Some(device), ..Costs::default() };
        let times = costs.times(&graph).map_err(|error| bad(&error))?;
        Ok(graph.ops().map(|op| times.of(op).0).collect())
    })
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
    module.add_function(wrap_pyfunction!(call, module)?)?;
    module.add_function(wrap_pyfunction!(main, module)?)?;
    module.add_function(wrap_pyfunction!(modelled_times, module)?)
}
