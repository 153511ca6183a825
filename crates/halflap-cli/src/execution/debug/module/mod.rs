//! `halflap debug MODULE`: the guide for a module. Every stage is a separate process: a crash or a
//! hang is a result.
//!
//! | part | what it does |
//! | --- | --- |
//! | here | the order of the stages, and when an answer is conclusive |
//! | `numbers`, `origins` | NaN and infinities, and where they come from |
//! | `memory` | guard pages, arrays that change, processes that end |
//! | `chance` | results that differ between runs |
//! | `waits` | ranks that wait, kernels and loops that do not end |
//! | `look`, `values`, `launched` | what goes into the kernel that is to blame, and what comes out |
//! | `again` | the command that reproduces the fault |
//! | `fault`, `run` | one run, and the fault that it reports |

mod again;
mod chance;
mod fault;
mod launched;
mod look;
mod memory;
mod numbers;
mod origins;
mod run;
mod values;
mod waits;

use std::path::Path;
use std::time::{Duration, Instant};

use halflap_hlo::Module;
use halflap_run::tensor::Npz;
use serde_json::Value as Json;

use super::child::End;
use super::report::{Diagnosis, Kind, Report};
use crate::args;
use crate::exit::Failed;
use crate::files;
use crate::kind::{self, FileKind};
use crate::place;
use again::{CommandWords, Commands};
use fault::{is_nobodys, lifetime, rounds, text};
use origins::{NonFiniteOrigin, OriginsReport};
use run::{Memory, ModuleRun, ModuleSession, StageOptions};
use waits::apart;

/// A module that was read, and from where.
pub struct GivenModule {
    path: String,
    module: Module,
}

/// Reads a module.
pub fn read(path: &str) -> Result<GivenModule, Failed> {
    let bytes = files::read_file(path)?;
    let module = halflap_hlo::read_module(&bytes).map_err(|error| {
        Failed::in_file(place::name_of(path), kind::problem(&bytes, FileKind::Module, &error))
    })?;
    Ok(GivenModule { path: path.to_owned(), module })
}

/// Walks the guide.
pub fn debug(
    args: &args::Debug,
    given: GivenModule,
    folder: &Path,
    is_loud: bool,
) -> Result<Report, Failed> {
    let GivenModule { mut path, module } = given;
    // Input that can be read only once is kept for all stages.
    if path == "-" {
        path = folder.join("module.txt").display().to_string();
        files::put(&path, module.text())?;
    }
    let session = ModuleSession::open(args, path, folder, is_loud);
    let last = StageOptions::new("plain", Memory::Cached, &[]);
    let plain_took = Duration::ZERO;
    let mut walk = Walk {
        session,
        module,
        overrun: None,
        left: None,
        last,
        alone: None,
        kind: None,
        plain_took,
    };
    let mut finding = walk.walk()?;
    if let Some(finding) = &mut finding {
        // Faults that are caught in different ways have the same fields.
        let source = walk.source_of(finding);
        finding.source =
            if source.is_empty() { std::mem::take(&mut finding.source) } else { source };
        let commands =
            Commands { alone: walk.alone.take(), whole: walk.session.whole(&walk.last, finding) };
        walk.session.prove(&commands, walk.kind.as_deref(), finding)?;
    }
    walk.session.report.finding = finding;
    Ok(walk.session.report)
}

struct Walk<'a> {
    session: ModuleSession<'a>,
    module: Module,
    /// An overrun by an unknown kernel: reported if no other stage finds the culprit.
    overrun: Option<Json>,
    /// The cause of infinite results, or of NaN that no kernel produced: reported if nothing else
    /// is wrong.
    left: Option<(NonFiniteOrigin, String)>,
    /// The last stage, except those that only collect details.
    last: StageOptions,
    /// The command that runs the kernel that is to blame alone.
    alone: Option<CommandWords>,
    /// The kind of fault that the runs reported.
    kind: Option<String>,
    /// How long the plain run took.
    plain_took: Duration,
}

/// The run in which lifetimes and numbers are checked, and how long it took.
struct CheckedRun {
    ran: ModuleRun,
    took: Duration,
}

impl CheckedRun {
    /// Whether a loop has not ended in time, which need not be endless: checks slow it down.
    fn is_cut_short(&self) -> bool {
        let fault = self.ran.fault();
        fault.is_some_and(|fault| {
            text(&fault, "kind") == Some("endless") && fault["is_proven"] == false
        })
    }

    /// The note on a loop that ends without checks.
    fn too_slow(&self) -> String {
        format!(
            "checking every kernel takes too long here: after {} s a loop that ends without checks had not \
             ended with them, so values and memory were not checked. A larger --timeout gives the checks \
             more time",
            self.took.as_secs()
        )
    }
}

/// A run that takes no longer than this can be repeated a few times without a noticeable wait.
const BRIEF: Duration = Duration::from_secs(1);

/// How many lines of a list a stage's line has.
const LISTED: usize = 4;

/// The first line of a message; if that announces a list, the list follows it.
fn in_a_line(said: &str) -> String {
    let mut lines = said.lines();
    let first = lines.next().unwrap_or("");
    let items: Vec<&str> = lines.take_while(|line| line.starts_with(' ')).map(str::trim).collect();
    if !first.ends_with(':') || items.is_empty() {
        return first.to_owned();
    }
    let more = items.len().saturating_sub(LISTED);
    let more = if more > 0 { format!("; and {more} more") } else { String::new() };
    format!("{first} {}{more}", items[..items.len().min(LISTED)].join("; "))
}

#[cfg(test)]
#[test]
fn a_list_is_part_of_the_line_that_announces_it() {
    assert_eq!(in_a_line("it ended. Why:\n  a: b\n  c\nflight: x"), "it ended. Why: a: b; c");
    assert_eq!(in_a_line("it ended\n  a"), "it ended");
    let many: String = (0..9).map(|rank| format!("\n  rank {rank}")).collect();
    assert_eq!(
        in_a_line(&format!("Why:{many}")),
        "Why: rank 0; rank 1; rank 2; rank 3; and 5 more"
    );
}

impl Walk<'_> {
    fn stage(&mut self, name: &'static str, asked: &StageOptions) -> Result<ModuleRun, Failed> {
        let ran = self.session.run(asked)?;
        self.note(name, asked, &ran);
        Ok(ran)
    }

    /// The same, also tracking NaN and infinities to the results.
    fn traced(&mut self, name: &'static str, asked: &StageOptions) -> Result<ModuleRun, Failed> {
        let ran = self.session.trace(asked)?;
        self.note(name, asked, &ran);
        Ok(ran)
    }

    /// Reports a stage's result.
    fn note(&mut self, name: &'static str, asked: &StageOptions, ran: &ModuleRun) {
        self.last = asked.clone();
        if let Some(fault) = ran.fault() {
            self.kind = text(&fault, "kind").map(str::to_owned);
        }
        let said = match ran.fault() {
            Some(fault) => text(&fault, "message").map_or_else(|| ran.complaint(), str::to_owned),
            None if ran.end.is_good() => "nothing".to_owned(),
            None => format!("it {}: {}", ran.end, ran.complaint()),
        };
        self.session.report.stage(name, in_a_line(&said));
    }

    /// All stages, up to the first that is conclusive.
    fn walk(&mut self) -> Result<Option<Diagnosis>, Failed> {
        self.session.find_order()?;
        let begun = Instant::now();
        let plain = self.stage("plain run", &StageOptions::new("plain", Memory::Cached, &[]))?;
        self.plain_took = begun.elapsed();
        let is_brief = self.plain_took < BRIEF;
        if let Some(finding) = self.at_once(&plain)? {
            return Ok(Some(finding));
        }
        let checks = ["--check-inputs", "--check-lifetimes", "assert"];
        let checking = Instant::now();
        let sanity =
            self.traced("sanity checks", &StageOptions::new("sanity", Memory::Cached, &checks))?;
        let checked = CheckedRun { ran: sanity, took: checking.elapsed() };
        if plain.end.is_good() && checked.is_cut_short() {
            self.session.report.notes.push(checked.too_slow());
            return self.leftover(&plain);
        }
        if let Some(finding) = self.unsound(&checked)? {
            return Ok(Some(finding));
        }
        let finding = self.leftover(&plain)?;
        if finding.is_none() && is_brief {
            self.leaks()?;
        }
        Ok(finding)
    }

    /// What the plain run alone says: inputs that do not fit, ranks that wait for each other.
    fn at_once(&mut self, plain: &ModuleRun) -> Result<Option<Diagnosis>, Failed> {
        if plain.end == End::Code(2) {
            return self.bad_input(plain).map(Some);
        }
        match plain.fault().and_then(|fault| apart(&fault)) {
            Some(finding) => self.stuck(finding).map(Some),
            None => Ok(None),
        }
    }

    /// What the checked run shows: lifetimes, NaN, invalid accesses, results that differ.
    fn unsound(&mut self, checked: &CheckedRun) -> Result<Option<Diagnosis>, Failed> {
        let fault = checked.ran.fault();
        if let Some(fault) = fault.filter(|fault| text(fault, "kind") == Some("lifetime")) {
            return Ok(Some(lifetime(&fault)));
        }
        let origins = checked.ran.origins();
        let finding = match &origins {
            Some(origins) => self.spoiled(origins)?,
            // It did not complete, so every NaN counts.
            None => self.first_nan()?,
        };
        if finding.is_some() {
            return Ok(finding);
        }
        let ended = Instant::now();
        if let Some(finding) = self.fenced(checked)? {
            return Ok(Some(finding));
        }
        if let Some(rounding) = origins.as_ref().and_then(OriginsReport::rounding) {
            return Ok(Some(rounds(rounding)));
        }
        match !self.session.args.run.custom_calls.is_empty() && checked.ran.end.is_good() {
            true => self.varies(&checked.ran, ended),
            false => Ok(None),
        }
    }

    /// Runs with guard pages on either side, where they can find anything.
    fn fenced(&mut self, checked: &CheckedRun) -> Result<Option<Diagnosis>, Failed> {
        if checked.took > BRIEF && checked.ran.end.is_good() && !self.has_foreign_code() {
            let why = "left out: the run is long, and only custom calls access memory freely";
            self.session.report.stage("guard pages", why);
            return Ok(None);
        }
        for memory in [Memory::End, Memory::Start] {
            if let Some(finding) = self.guarded(&checked.ran, memory)? {
                return Ok(Some(finding));
            }
        }
        Ok(None)
    }

    /// Whether anything runs that can access memory as it likes: the kernels of the runtime cannot.
    fn has_foreign_code(&self) -> bool {
        let args = &self.session.args.run;
        !args.custom_calls.is_empty() || !args.inject.is_empty()
    }

    /// Notes on custom calls that leak memory at every call.
    fn leaks(&mut self) -> Result<(), Failed> {
        let args = &self.session.args.run;
        if args.custom_calls.is_empty() {
            return Ok(());
        }
        let mut options = vec!["--launch-blocking"];
        if args.steps == 1 {
            options.extend(["--steps", "16"]);
        }
        let asked = StageOptions::new("leaks", Memory::Cached, &options);
        let notes = self.session.trace(&asked)?.origins().map(|origins| origins.leaks());
        let notes = notes.unwrap_or_default();
        let said = if notes.is_empty() { "nothing".to_owned() } else { notes.join("; ") };
        self.session.report.stage("memory that is kept", said);
        self.session.report.notes.extend(notes);
        Ok(())
    }

    /// Faults that fit no stage: a crash that only happens without guards, a silent exit, infinite
    /// results.
    fn leftover(&mut self, plain: &ModuleRun) -> Result<Option<Diagnosis>, Failed> {
        let fault =
            plain.fault().filter(|fault| !is_nobodys(fault)).or_else(|| self.overrun.take());
        if let Some(fault) = fault {
            return self.memory_fault(&fault, Memory::Cached).map(Some);
        }
        if !plain.end.is_good() {
            return self.unexplained(plain).map(Some);
        }
        if !self.session.args.run.custom_calls.is_empty()
            && let Some(finding) = self.clobbered()?
        {
            return Ok(Some(finding));
        }
        match self.left.take() {
            Some((cause, results)) => self.caused(&cause, Memory::Cached, &results).map(Some),
            None => Ok(None),
        }
    }

    /// Bad input is the user's: an array that does not fit the module is a finding like others, an
    /// unreadable file is an error.
    fn bad_input(&mut self, plain: &ModuleRun) -> Result<Diagnosis, Failed> {
        let problem = plain.complaint();
        let inputs = self.session.args.run.inputs.as_deref();
        if !inputs.is_some_and(|inputs| problem.starts_with(inputs) && can_be_read(inputs)) {
            return Err(Failed::BadInput(problem));
        }
        let checked = self.stage(
            "sanity checks",
            &StageOptions::new("sanity", Memory::Cached, &["--check-inputs"]),
        )?;
        let all = checked.complaint();
        Ok(Diagnosis::new(Kind::WrongInput, if all.is_empty() { problem } else { all }))
    }
}

/// Whether there are arrays at all: a folder, or an archive of them.
fn can_be_read(inputs: &str) -> bool {
    let is_archive = || files::read_file(inputs).is_ok_and(|bytes| Npz::read(&bytes).is_ok());
    Path::new(inputs).is_dir() || is_archive()
}
