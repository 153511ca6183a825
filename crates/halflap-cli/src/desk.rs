//! Requests of programs: files are on a desk, in memory, and nothing is printed.
//!
//! Programs that have a graph in memory, such as the Python module, make the same requests as the
//! command ([`crate::request`]) and so get the same answers and the same errors. A name in angle
//! brackets, such as `<graph>`, lies on the desk; every other name is that of a file. A desk belongs to
//! the thread that works. [`call`] runs a command of any kind by its arguments.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use clap::Parser;
use halflap::units::Nanos;

use crate::answer::Answer;
pub use crate::answer::Figures;
use crate::args::{Args, PictureArgs};
use crate::exit::Failed;
use crate::request::{Request, Verify};

/// Asks a command on a desk to end early.
#[derive(Clone, Debug, Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Asks.
    pub fn ask(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether it was asked.
    pub fn is_asked_for(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// A command's input.
#[derive(Debug, Default)]
pub struct DeskCall {
    /// What would be typed after `halflap`.
    pub arguments: Vec<OsString>,
    /// What is read under names in angle brackets.
    pub given: BTreeMap<String, Vec<u8>>,
    /// To end it early.
    pub stop: Stop,
}

/// A command's output.
#[derive(Debug, Default)]
pub struct DeskAnswer {
    /// What it wrote under names in angle brackets.
    pub written: BTreeMap<String, Vec<u8>>,
    /// What it would have printed.
    pub printed: String,
    /// Its warnings.
    pub warnings: Vec<String>,
    /// Why it failed.
    pub failed: Option<Failed>,
}

struct Desk {
    given: BTreeMap<String, Vec<u8>>,
    stop: Stop,
    answer: DeskAnswer,
}

thread_local! {
    static DESK: RefCell<Option<Desk>> = const { RefCell::new(None) };
}

/// Runs a command on a desk of this thread.
pub fn call(call: DeskCall) -> DeskAnswer {
    let DeskCall { arguments, given, stop } = call;
    let args = match parsed(arguments) {
        Ok(args) => args,
        Err(failed) => return DeskAnswer { failed: Some(failed), ..DeskAnswer::default() },
    };
    let (result, mut answer) = on_desk(given, stop, || crate::guarded(|| crate::dispatch(&args)));
    answer.failed = result.err();
    answer
}

/// What is read under names in angle brackets, and how the work is ended early.
#[derive(Debug, Default)]
pub struct DeskInputs {
    /// What is read under names in angle brackets.
    pub files: BTreeMap<String, Vec<u8>>,
    /// To end it early.
    pub stop: Stop,
}

/// A result and its warnings. It is rendered on demand.
pub struct FoundAnswer {
    found: Box<dyn Answer>,
    /// Its warnings.
    pub warnings: Vec<String>,
}

/// Answers a request.
pub fn find(request: &Request, given: DeskInputs) -> Result<FoundAnswer, Failed> {
    let (found, answer) =
        on_desk(given.files, given.stop, || crate::guarded(|| crate::found(request)));
    Ok(FoundAnswer { found: found?, warnings: answer.warnings })
}

/// What was proved, in a line.
pub struct Proved {
    /// What was proved.
    pub text: String,
    /// Warnings.
    pub warnings: Vec<String>,
}

/// Proves an order; fails with [`Failed::Wrong`] where it is wrong.
pub fn prove(request: &Verify, given: DeskInputs) -> Result<Proved, Failed> {
    let prove = || crate::guarded(|| crate::proved(request));
    let (text, answer) = on_desk(given.files, given.stop, prove);
    Ok(Proved { text: text?, warnings: answer.warnings })
}

impl FoundAnswer {
    /// For machines.
    pub fn json(&self) -> Result<String, Failed> {
        self.rendered(|found| found.json())
    }

    /// For people.
    pub fn text(&self) -> Result<String, Failed> {
        self.rendered(|found| found.text())
    }

    /// A page to look at in a browser.
    pub fn page(&self) -> Result<Vec<u8>, Failed> {
        const PAGE: &str = "<page>";
        let pictures = PictureArgs { report: Some(PAGE.to_owned()), trace: None };
        let draw = || self.found.draw(&pictures);
        let (drawn, mut answer) = on_desk(BTreeMap::new(), Stop::default(), draw);
        drawn?;
        Ok(answer.written.remove(PAGE).unwrap_or_default())
    }

    /// The orders and their figures, if it has any.
    pub fn figures(&self) -> Option<Figures> {
        self.found.figures()
    }

    /// Measured times by name, if this is an analysis of traces.
    pub fn profile(&self) -> Option<BTreeMap<String, Nanos>> {
        self.found.profile()
    }

    /// The program again, as it was changed: an HLO module in its new orders, or a graph.
    pub fn program(&self) -> Result<String, Failed> {
        self.rendered(|found| found.program())
    }

    fn rendered(
        &self,
        render: impl Fn(&dyn Answer) -> Result<String, Failed>,
    ) -> Result<String, Failed> {
        on_desk(BTreeMap::new(), Stop::default(), || render(self.found.as_ref())).0
    }
}

fn parsed(arguments: Vec<OsString>) -> Result<Args, Failed> {
    let typed = std::iter::once(OsString::from("halflap")).chain(arguments);
    Args::try_parse_from(typed).map_err(|wrong| Failed::BadInput(told(&wrong)))
}

/// Runs a function with a desk on this thread; also returns the final content of the desk.
fn on_desk<T>(
    given: BTreeMap<String, Vec<u8>>,
    stop: Stop,
    work: impl FnOnce() -> T,
) -> (T, DeskAnswer) {
    DESK.set(Some(Desk { given, stop, answer: DeskAnswer::default() }));
    let done = work();
    (done, DESK.take().map(|desk| desk.answer).unwrap_or_default())
}

/// Whether this thread has a desk.
pub(crate) fn is_in_use() -> bool {
    DESK.with_borrow(Option::is_some)
}

/// An argument error, without the hints for a shell.
fn told(wrong: &clap::Error) -> String {
    let text = wrong.render().to_string();
    let end =
        ["\n\nUsage:", "\n\nFor more information"].iter().filter_map(|end| text.find(end)).min();
    text[..end.unwrap_or(text.len())].trim_start_matches("error: ").trim_end().to_owned()
}

/// Whether a name is on the desk, if there is one.
pub(crate) fn holds(name: &str) -> bool {
    name.starts_with('<') && name.ends_with('>') && DESK.with_borrow(Option::is_some)
}

/// What was given under a name.
pub(crate) fn read(name: &str) -> Option<Vec<u8>> {
    DESK.with_borrow(|desk| desk.as_ref()?.given.get(name).cloned())
}

pub(crate) fn write(name: &str, bytes: Vec<u8>) {
    with(|answer| _ = answer.written.insert(name.to_owned(), bytes));
}

/// Keeps what would be printed.
pub(crate) fn print(text: &[u8]) {
    with(|answer| answer.printed.push_str(&String::from_utf8_lossy(text)));
}

/// Keeps a warning; returns whether there is a desk.
pub(crate) fn warn(text: &str) -> bool {
    with(|answer| answer.warnings.push(text.to_owned()))
}

/// How to interrupt the command, if it is on a desk.
pub(crate) fn stop() -> Option<Stop> {
    DESK.with_borrow(|desk| desk.as_ref().map(|desk| desk.stop.clone()))
}

fn with(change: impl FnOnce(&mut DeskAnswer)) -> bool {
    DESK.with_borrow_mut(|desk| match desk {
        Some(desk) => {
            change(&mut desk.answer);
            true
        }
        None => false,
    })
}
