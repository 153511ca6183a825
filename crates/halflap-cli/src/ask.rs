//! Answers to programs, which ask with the requests of [`crate::request`] and no command line.
//!
//! Programs such as the Python module get the answers and the errors of the command. Nothing is
//! printed: warnings are part of an answer, which is rendered only on demand. While a request is
//! answered, its thread knows how the program would end it ([`StopSignal`]).

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use halflap::units::Nanos;

use crate::answer::Answer;
pub use crate::answer::Figures;
use crate::args::PictureArgs;
use crate::exit::Failed;
use crate::place::Output;
use crate::request::{Request, Run, Verify};

/// Requests an early end of the work on a request.
#[derive(Clone, Debug, Default)]
pub struct StopSignal(Arc<AtomicBool>);

impl StopSignal {
    /// Requests it.
    pub fn ask(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether it was requested.
    pub fn is_asked_for(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// A program that waits for this thread.
struct WaitingProgram {
    stop: StopSignal,
    warnings: Vec<String>,
}

thread_local! {
    static CALLER: RefCell<Option<WaitingProgram>> = const { RefCell::new(None) };
}

/// A result and its warnings. It is rendered on demand.
pub struct FoundAnswer {
    found: Box<dyn Answer>,
    /// Its warnings.
    pub warnings: Vec<String>,
}

/// Answers a request.
pub fn find(request: &Request, stop: StopSignal) -> Result<FoundAnswer, Failed> {
    let (found, warnings) = called(stop, || crate::guarded(|| crate::found(request)));
    Ok(FoundAnswer { found: found?, warnings })
}

/// What was proved, in a line.
pub struct ProvedText {
    /// What was proved.
    pub text: String,
    /// Warnings.
    pub warnings: Vec<String>,
}

/// Proves an order; fails with [`Failed::Wrong`] if it is wrong.
pub fn prove(request: &Verify, stop: StopSignal) -> Result<ProvedText, Failed> {
    let (text, warnings) = called(stop, || crate::guarded(|| crate::proved(request)));
    Ok(ProvedText { text: text?, warnings })
}

/// The result of running a module.
pub struct RanModule {
    /// The outputs of every rank: an `.npz` archive of arrays named `out_NNN_rK`.
    pub outputs: Vec<u8>,
    /// The summary.
    pub text: String,
    /// Warnings.
    pub warnings: Vec<String>,
}

/// Runs a module on threads.
pub fn run(request: &Run, stop: StopSignal) -> Result<RanModule, Failed> {
    let (outputs, summary) = (Output::memory(), Output::memory());
    let mut request = request.clone();
    (request.output, request.summary) = (Some(outputs.clone()), summary.clone());
    let (done, warnings) = called(stop, || crate::guarded(|| crate::ran(&request)));
    done?;
    let text = String::from_utf8_lossy(&summary.taken()).into_owned();
    Ok(RanModule { outputs: outputs.taken(), text, warnings })
}

impl FoundAnswer {
    /// As JSON.
    pub fn json(&self) -> Result<String, Failed> {
        self.rendered(|found| found.json())
    }

    /// As text.
    pub fn text(&self) -> Result<String, Failed> {
        self.rendered(|found| found.text())
    }

    /// A page for a browser.
    pub fn page(&self) -> Result<Vec<u8>, Failed> {
        let page = Output::memory();
        let pictures = PictureArgs { report: Some(page.clone()), trace: None };
        self.rendered(|found| found.draw(&pictures))?;
        Ok(page.taken())
    }

    /// The orders and their figures, if it has any.
    pub fn figures(&self) -> Option<Figures> {
        self.found.figures()
    }

    /// Measured times by name, if this is an analysis of traces.
    pub fn profile(&self) -> Option<BTreeMap<String, Nanos>> {
        self.found.profile()
    }

    /// The changed program: an HLO module in its new orders, or a graph.
    pub fn program(&self) -> Result<String, Failed> {
        self.rendered(|found| found.program())
    }

    fn rendered<T>(&self, render: impl Fn(&dyn Answer) -> Result<T, Failed>) -> Result<T, Failed> {
        called(StopSignal::default(), || render(self.found.as_ref())).0
    }
}

/// Does work for a program; also returns the warnings.
fn called<T>(stop: StopSignal, work: impl FnOnce() -> T) -> (T, Vec<String>) {
    CALLER.set(Some(WaitingProgram { stop, warnings: Vec::new() }));
    let done = work();
    (done, CALLER.take().map(|caller| caller.warnings).unwrap_or_default())
}

/// Whether a program waits for this thread, and not a person at a terminal.
pub(crate) fn is_called() -> bool {
    CALLER.with_borrow(Option::is_some)
}

/// Keeps a warning for the program that waits; returns whether one does.
pub(crate) fn warn(text: &str) -> bool {
    CALLER.with_borrow_mut(|caller| match caller {
        Some(caller) => {
            caller.warnings.push(text.to_owned());
            true
        }
        None => false,
    })
}

/// How the program that waits ends the work early.
pub(crate) fn stop() -> Option<StopSignal> {
    CALLER.with_borrow(|caller| caller.as_ref().map(|caller| caller.stop.clone()))
}
