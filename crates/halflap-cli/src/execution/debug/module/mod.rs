//! `halflap debug MODULE`: the guide for a module. Every stage is a separate process: a crash or a
//! hang is a result.

mod again;
mod origins;
mod run;
mod values;

use std::path::Path;
use std::time::{Duration, Instant};

use halflap_hlo::ids::InstrId;
use halflap_hlo::{Module, Opcode};
use halflap_run::check::{Beyond, Side};
use halflap_run::tensor::Npz;
use serde_json::Value as Json;

use super::child::End;
use super::report::{Diagnosis, Kind, Report, StrayCollective};
use crate::args;
use crate::execution::diff;
use crate::exit::Failed;
use crate::files;
use crate::kind::{self, FileKind};
use crate::place;
use again::{Alone, CommandWords, Commands};
use origins::{NonFiniteOrigin, OriginsReport};
use run::{Memory, ModuleRun, ModuleSession, StageOptions};
use values::{Place, Saved};

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
    let mut walk =
        Walk { session, module, overrun: None, left: None, last, alone: None, kind: None };
    let mut finding = walk.walk()?;
    if let Some(finding) = &mut finding {
        // Faults that are caught in different ways have the same fields.
        let source = finding.kernel.as_deref().map_or(Vec::new(), |kernel| walk.source(kernel));
        finding.source =
            if source.is_empty() { std::mem::take(&mut finding.source) } else { source };
        let commands =
            Commands { alone: walk.alone.take(), whole: walk.session.whole(&walk.last, finding) };
        walk.session.prove(&commands, walk.kind.as_deref(), finding)?;
    }
    walk.session.report.finding = finding;
    Ok(walk.session.report)
}

/// What to run again, with values.
struct CloserLook<'a> {
    kernel: &'a str,
    memory: Memory,
    /// The kernels whose values are saved.
    filter: Vec<String>,
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
}

/// A run that takes no longer than this can be repeated a few times without a noticeable wait.
const BRIEF: Duration = Duration::from_secs(1);

/// Seeds taken from the time of day change within this time.
const SECOND: Duration = Duration::from_millis(1100);

fn text<'j>(fault: &'j Json, name: &str) -> Option<&'j str> {
    fault[name].as_str().filter(|text| !text.is_empty())
}

fn rank_of(fault: &Json) -> Option<usize> {
    fault["rank"].as_u64().map(|rank| rank as usize)
}

/// A crash with an unknown culprit.
fn is_nobodys(fault: &Json) -> bool {
    text(fault, "kind") == Some("crash") && text(fault, "kernel").is_none()
}

/// A kernel that was caught at memory that it must not touch.
fn is_astray(fault: &Json) -> bool {
    matches!(
        text(fault, "kind"),
        Some("out-of-bounds" | "use-after-free" | "write-to-input" | "not-its-own")
    )
}

/// Whether guards are to blame: unfused instructions with guard pages may need more memory than
/// available, and arrays that end with their page are not aligned, which some custom calls rely on.
fn is_of_guards(kind: &str, unguarded: &ModuleRun) -> bool {
    kind == "no-memory" || (kind == "unaligned" && unguarded.end.is_good())
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
        let first = said.lines().next().unwrap_or("").to_owned();
        self.session.report.stage(name, first);
    }

    fn walk(&mut self) -> Result<Option<Diagnosis>, Failed> {
        self.session.find_order()?;
        let begun = Instant::now();
        let plain = self.stage("plain run", &StageOptions::new("plain", Memory::Cached, &[]))?;
        let took = begun.elapsed();
        if plain.end == End::Code(2) {
            return self.bad_input(&plain).map(Some);
        }
        if let Some(finding) = plain.fault().and_then(|fault| apart(&fault)) {
            return self.stuck(finding).map(Some);
        }
        let checks = ["--check-inputs", "--check-lifetimes", "assert"];
        let sanity =
            self.traced("sanity checks", &StageOptions::new("sanity", Memory::Cached, &checks))?;
        if let Some(fault) = sanity.fault().filter(|fault| text(fault, "kind") == Some("lifetime"))
        {
            return Ok(Some(lifetime(&fault)));
        }
        let finding = match sanity.origins() {
            Some(origins) => self.spoiled(&origins)?,
            // It did not complete, so every NaN counts.
            None => self.first_nan()?,
        };
        if finding.is_some() {
            return Ok(finding);
        }
        let ended = Instant::now();
        for memory in [Memory::End, Memory::Start] {
            if let Some(finding) = self.guarded(&sanity, memory)? {
                return Ok(Some(finding));
            }
        }
        if let Some(rounding) = sanity.origins().as_ref().and_then(OriginsReport::rounding) {
            return Ok(Some(rounds(rounding)));
        }
        if !self.session.args.run.custom_calls.is_empty()
            && sanity.end.is_good()
            && let Some(finding) = self.varies(&sanity, ended)?
        {
            return Ok(Some(finding));
        }
        let finding = self.leftover(&plain)?;
        if finding.is_none() && took < BRIEF {
            self.leaks()?;
        }
        Ok(finding)
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

    /// NaN in results; infinities are recorded for later, and what may be intended is noted.
    fn spoiled(&mut self, origins: &OriginsReport) -> Result<Option<Diagnosis>, Failed> {
        self.session.report.notes.extend(origins.clamped());
        if let Some(cause) =
            origins.nan().filter(|cause| cause.is_made() || cause.origin["how"] == "input")
        {
            let results = origins.spoiled("nan");
            self.session.report.stage("origin of NaN", format!("{} has NaN", results));
            return self.memory_first(&cause, &results, Memory::Cached).map(Some);
        }
        self.session.report.notes.extend(origins.hidden());
        let unwritten = origins.nan().filter(|cause| cause.origin["how"] == "unwritten");
        let unwritten = unwritten.map(|cause| (cause, origins.spoiled("nan")));
        let infinite = || origins.infinity().map(|cause| (cause, origins.spoiled("infinity")));
        self.left = unwritten.or_else(infinite);
        let intended = origins.intended().filter(|_| self.left.is_none());
        self.session.report.is_not_finite = intended.is_some();
        self.session.report.notes.extend(intended);
        Ok(None)
    }

    /// The first NaN of a run that does not complete.
    fn first_nan(&mut self) -> Result<Option<Diagnosis>, Failed> {
        let ran = self
            .stage("first NaN", &StageOptions::new("sanity", Memory::Cached, &["--nan-asserts"]))?;
        let Some(fault) = ran.fault().filter(|fault| text(fault, "kind") == Some("not-finite"))
        else {
            return Ok(None);
        };
        let how = if fault["is_input"] == true { "unwritten" } else { "made" };
        let mut origin = fault.clone();
        origin["how"] = how.into();
        let results = "no result, because the run does not complete";
        self.memory_first(&NonFiniteOrigin::at(origin), results, Memory::Cached).map(Some)
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

    /// One run with guard pages, one kernel at a time.
    fn guarded(
        &mut self,
        unguarded: &ModuleRun,
        memory: Memory,
    ) -> Result<Option<Diagnosis>, Failed> {
        let (name, stage) = match memory {
            Memory::Start => ("guard before", "guard-start"),
            _ => ("guard behind", "guard-end"),
        };
        let ran = self.traced(name, &StageOptions::new(stage, memory, &["--launch-blocking"]))?;
        let Some(fault) = ran.fault() else {
            let differs = unguarded.end.is_good()
                && ran.end.is_good()
                && unguarded.results() != ran.results();
            let origins = ran.origins();
            let cause = origins.as_ref().and_then(OriginsReport::nan);
            return match (cause, &origins) {
                // New memory is NaN, so that unwritten memory shows.
                (Some(cause), Some(origins)) if differs || !unguarded.end.is_good() => {
                    self.memory_first(&cause, &origins.spoiled("nan"), memory).map(Some)
                }
                _ if differs => self.silent(memory),
                _ => Ok(None),
            };
        };
        match text(&fault, "kind") {
            Some(kind) if is_of_guards(kind, unguarded) => {
                self.session.report.notes.push(format!("{name}: {}", fault_words(&fault)));
                Ok(None)
            }
            Some("overrun") => {
                self.overrun.get_or_insert(fault);
                Ok(None)
            }
            _ => match apart(&fault) {
                Some(finding) => self.stuck(finding).map(Some),
                None if is_nobodys(&fault) => self.unexplained(&ran).map(Some),
                None => self.memory_fault(&fault, memory).map(Some),
            },
        }
    }

    /// A NaN, unless a custom call makes an invalid memory access: that may be the cause.
    fn memory_first(
        &mut self,
        cause: &NonFiniteOrigin,
        results: &str,
        memory: Memory,
    ) -> Result<Diagnosis, Failed> {
        let guards: &[Memory] = match memory {
            _ if self.session.args.run.custom_calls.is_empty() => &[],
            Memory::Start => &[Memory::Start],
            Memory::Cached | Memory::End => &[Memory::End, Memory::Start],
        };
        for &guard in guards {
            let ran = self.stage(
                "memory alone",
                &StageOptions::new("memory-alone", guard, &["--launch-blocking"]),
            )?;
            if let Some(fault) = ran.fault().filter(is_astray) {
                return self.memory_fault(&fault, guard);
            }
        }
        self.caused(cause, memory, results)
    }

    /// A kernel that accessed invalid memory, or ended the process.
    fn memory_fault(&mut self, fault: &Json, memory: Memory) -> Result<Diagnosis, Failed> {
        let kind = match text(fault, "kind") {
            Some("out-of-bounds" | "overrun") => Kind::OutOfBounds,
            Some("use-after-free") => Kind::AfterFree,
            Some("write-to-input") => Kind::WriteToInput,
            Some("not-its-own") => Kind::NotItsOwn,
            _ => Kind::Crash,
        };
        let mut finding = Diagnosis::new(kind, fault_words(fault));
        finding.kernel = text(fault, "kernel").map(str::to_owned);
        locate(&mut finding, fault);
        if let Some(kernel) = finding.kernel.clone()
            && let Some(again) = self.values(&kernel, memory, &mut finding)?
            && again["kind"] == fault["kind"]
        {
            // One report speaks of one rank.
            finding.what = fault_words(&again);
        }
        Ok(finding)
    }

    /// Ranks that wait, or a kernel that hangs: its source line, and its inputs.
    fn stuck(&mut self, mut finding: Diagnosis) -> Result<Diagnosis, Failed> {
        let Some(kernel) = finding.kernel.clone() else { return Ok(finding) };
        if finding.source.is_empty() {
            finding.source = self.source(&kernel);
        }
        let opcode = self.instruction(&kernel).map(|instr| self.module.opcode_name(instr));
        if opcode.is_some_and(|name| name != "while") && !self.is_collective(&kernel) {
            let look = CloserLook {
                kernel: &kernel,
                memory: Memory::Cached,
                filter: vec![kernel.clone()],
            };
            self.look_closer(look, &mut finding)?;
        }
        Ok(finding)
    }

    /// The values of a kernel and those that made its inputs, and of no other.
    fn values(
        &mut self,
        kernel: &str,
        memory: Memory,
        finding: &mut Diagnosis,
    ) -> Result<Option<Json>, Failed> {
        let mut filter = self.producers(kernel)?;
        filter.push(kernel.to_owned());
        self.look_closer(CloserLook { kernel, memory, filter }, finding)
    }

    /// Runs it again and saves values of some kernels; returns the fault reported for the kernel
    /// this time.
    fn look_closer(
        &mut self,
        look: CloserLook<'_>,
        finding: &mut Diagnosis,
    ) -> Result<Option<Json>, Failed> {
        let CloserLook { kernel, memory, filter } = look;
        let folder = self.session.path("values");
        let options = vec![
            "--debug-values=1".to_owned(),
            format!("--values-dir={}", folder.display()),
            format!("--filter-kernels={}", filter.join(",")),
            "--launch-blocking".to_owned(),
        ];
        let asked = StageOptions { stage: "values-run", memory, options };
        let ran = self.session.run(&asked)?;
        self.session.report.stage("values", format!("of {}", filter.join(", ")));
        // If all ranks fail in the same way, another one may be first this time, and only its
        // values are saved.
        let again = ran.fault().filter(|fault| text(fault, "kernel") == Some(kernel));
        if let Some(again) = &again {
            locate(finding, again);
        }
        let Ok(saved) = Saved::read(&folder) else { return Ok(again) };
        // A kernel that ends the process at once leaves some ranks no time to save its inputs; any
        // rank that did is enough.
        let any = || saved.find(kernel, None).filter(|_| finding.kind == Kind::Crash);
        let exact = finding.rank.and_then(|rank| saved.at(kernel, rank, &finding.iteration));
        if let Some(place) = exact.or_else(|| saved.find(kernel, finding.rank)).or_else(any) {
            finding.rank = Some(place.rank);
            (finding.went_in, finding.came_out) = saved.around(place);
        }
        self.remember_alone(kernel, memory, finding);
        Ok(again)
    }

    /// Only a collective needs the values of all ranks.
    fn remember_alone(&mut self, kernel: &str, memory: Memory, finding: &Diagnosis) {
        let rank = finding.rank.filter(|_| !self.is_collective(kernel));
        self.alone = Some(self.session.alone(&Alone { kernel, memory, rank }, finding));
    }

    /// A kernel that corrupts results.
    fn caused(
        &mut self,
        cause: &NonFiniteOrigin,
        memory: Memory,
        results: &str,
    ) -> Result<Diagnosis, Failed> {
        let kernel = cause.kernel().to_owned();
        let kind = match memory {
            _ if !cause.is_nan => Kind::Infinity,
            Memory::Cached => Kind::NotANumber,
            _ => Kind::Uninitialised,
        };
        let mut finding = Diagnosis::new(kind, self.sentence(cause, memory, results));
        finding.kernel = Some(kernel.clone()).filter(|kernel| !kernel.is_empty());
        locate(&mut finding, &cause.origin);
        let asserts = if cause.is_nan { "--nan-asserts" } else { "--nan-asserts=inf" };
        self.last = StageOptions::new("sanity", memory, &[asserts]);
        self.last
            .options
            .extend((memory != Memory::Cached).then(|| "--launch-blocking".to_owned()));
        self.kind = Some("not-finite".to_owned());
        if let Some(kernel) = finding.kernel.clone() {
            let mut filter = self.producers(&kernel)?;
            filter.push(kernel.clone());
            self.look_closer(CloserLook { kernel: &kernel, memory, filter }, &mut finding)?;
        }
        Ok(finding)
    }

    /// What is wrong, in a sentence.
    fn sentence(&self, cause: &NonFiniteOrigin, memory: Memory, results: &str) -> String {
        let (kernel, origin) = (cause.kernel(), &cause.origin);
        let buffer = text(origin, "buffer").unwrap_or("");
        let given = match origin["of"].as_array().is_some_and(|of| !of.is_empty()) {
            true => "infinite inputs",
            false => "finite numbers",
        };
        let what = match (&cause.victim, memory) {
            (Some(victim), _) => {
                format!(
                    "'{kernel}' makes an infinity from finite numbers, and '{victim}' makes NaN \
                     from it"
                )
            }
            _ if origin["how"] == "input" => {
                format!("input '{buffer}' has NaN; '{kernel}' is the first kernel that reads it")
            }
            (None, Memory::Cached) if origin["how"] == "unwritten" => {
                format!("'{kernel}' reads NaN from '{buffer}', which no kernel wrote there")
            }
            (None, Memory::Cached) if cause.is_nan => format!("'{kernel}' makes NaN from {given}"),
            (None, Memory::Cached) => format!("'{kernel}' makes an infinity from finite numbers"),
            _ if origin["how"] == "unwritten" => {
                format!("'{kernel}' reads '{buffer}', which no kernel has written")
            }
            _ => format!("'{kernel}' leaves memory of its output '{buffer}' unwritten"),
        };
        format!("{what}; it reaches {results}{}", cause.others())
    }

    fn blame(&mut self, saved: &Saved, place: Place, finding: &mut Diagnosis) {
        let Some(entry) = saved.kernel(place) else { return };
        finding.kernel = Some(entry.kernel.clone());
        finding.rank = Some(place.rank);
        finding.source = entry.source.clone().into_iter().collect();
        (finding.went_in, finding.came_out) = saved.around(place);
        self.remember_alone(&entry.kernel, Memory::Cached, finding);
    }

    /// Every array of every kernel.
    fn save_all(&mut self, options: &[&str]) -> Result<Saved, Failed> {
        let folder = self.session.path("values");
        let mut asked = StageOptions::new("values-run", Memory::Cached, options);
        asked.options.push("--debug-values=1".to_owned());
        asked.options.push(format!("--values-dir={}", folder.display()));
        self.session.run(&asked)?;
        self.session.report.stage("values", "of all kernels");
        Saved::read(&folder)
    }

    /// An array that changed between its producer and a reader: a custom call in between wrote to
    /// it.
    fn clobbered(&mut self) -> Result<Option<Diagnosis>, Failed> {
        let saved = self.save_all(&["--launch-blocking"])?;
        let Some((maker, reader, buffer)) = saved.changed()? else { return Ok(None) };
        let between = saved.between(maker, reader);
        let Some(kernel) = between.iter().find(|name| self.is_custom(name)).or(between.first())
        else {
            return Ok(None);
        };
        let taker = saved.kernel(reader).map_or("", |entry| entry.kernel.as_str());
        let what = format!(
            "'{kernel}' writes to '{buffer}', which is not its own: '{taker}' finds it changed"
        );
        let mut finding = Diagnosis::new(Kind::OutOfBounds, what);
        finding.buffer = Some(buffer);
        finding.rank = Some(maker.rank);
        if let Some(place) = saved.find(kernel, finding.rank) {
            self.blame(&saved, place, &mut finding);
        }
        Ok(Some(finding))
    }

    fn is_custom(&self, kernel: &str) -> bool {
        self.instruction(kernel)
            .is_some_and(|instr| self.module.opcode_name(instr) == "custom-call")
    }

    /// Results that depend on buffer addresses, or vary at random: a kernel reads memory that it
    /// should not.
    fn silent(&mut self, memory: Memory) -> Result<Option<Diagnosis>, Failed> {
        let mut folders = Vec::new();
        let stages = [
            ("values-cached", Memory::Cached),
            ("values-guarded", memory),
            ("values-again", Memory::Cached),
        ];
        for (stage, memory) in stages {
            let folder = self.session.path(&format!("{stage}-saved"));
            let mut asked =
                StageOptions::new(stage, memory, &["--debug-values=1", "--launch-blocking"]);
            asked.options.push(format!("--values-dir={}", folder.display()));
            self.session.run(&asked)?;
            folders.push(folder);
        }
        self.session.report.stage("values", format!("as always, and with {}", memory.words()));
        let Some((kernel, rank)) = diff::first_apart(&folders[0], &folders[1])? else {
            return Ok(None);
        };
        let is_chance =
            diff::first_apart(&folders[0], &folders[2])?.is_some_and(|(other, _)| other == kernel);
        let (kind, what) = match is_chance {
            true => (
                Kind::Chance,
                format!("'{kernel}' gives different values every time, from the same inputs"),
            ),
            false => {
                let why =
                    "it reads memory that it was not given, or does not write all of its output";
                (
                    Kind::Uninitialised,
                    format!(
                        "'{kernel}' gives different values when its memory is elsewhere: {why}"
                    ),
                )
            }
        };
        let mut finding = Diagnosis::new(kind, what);
        finding.rank = Some(rank);
        finding.source = self.source(&kernel);
        finding.kernel = Some(kernel.clone());
        self.values(&kernel, memory, &mut finding)?;
        Ok(Some(finding))
    }

    /// Results that depend on when a module is run: a custom call that is seeded by the time of
    /// day.
    fn varies(&mut self, before: &ModuleRun, ended: Instant) -> Result<Option<Diagnosis>, Failed> {
        std::thread::sleep(SECOND.saturating_sub(ended.elapsed()));
        let later = self.session.run(&StageOptions::new("later", Memory::Cached, &[]))?;
        if !later.end.is_good() || later.results() == before.results() {
            return Ok(None);
        }
        let mut folders = Vec::new();
        for stage in ["values-first", "values-later"] {
            let folder = self.session.path(&format!("{stage}-saved"));
            let mut asked = StageOptions::new(stage, Memory::Cached, &["--debug-values=1"]);
            asked.options.push(format!("--values-dir={}", folder.display()));
            self.session.run(&asked)?;
            folders.push(folder);
            std::thread::sleep(SECOND);
        }
        self.session.report.stage("values", "of two runs, more than a second apart");
        let Some((kernel, rank)) = diff::first_apart(&folders[0], &folders[1])? else {
            return Ok(None);
        };
        let what =
            format!("'{kernel}' gives different values at another time, from the same inputs");
        let mut finding = Diagnosis::new(Kind::Chance, what);
        finding.rank = Some(rank);
        finding.kernel = Some(kernel.clone());
        self.values(&kernel, Memory::Cached, &mut finding)?;
        Ok(Some(finding))
    }

    /// A process that ended without an explanation: the kernel that it was in.
    fn unexplained(&mut self, plain: &ModuleRun) -> Result<Diagnosis, Failed> {
        let asked =
            StageOptions::new("names", Memory::Cached, &["--debug-values=3", "--launch-blocking"]);
        let names = self.session.run(&asked)?;
        let open = open_launches(&names.printed());
        let said = open.first().map_or("no kernel".to_owned(), |(kernel, _)| format!("'{kernel}'"));
        self.session.report.stage("kernel names", format!("it was in {said}"));
        let what = match open.first() {
            Some((kernel, _)) => format!("the process {} in '{kernel}'", plain.end),
            None => format!("the process {}: {}", plain.end, plain.complaint()),
        };
        let mut finding =
            Diagnosis::new(if plain.end == End::TimedOut { Kind::Hang } else { Kind::Crash }, what);
        if let Some((kernel, rank)) = open.first() {
            finding.kernel = Some(kernel.clone());
            finding.rank = *rank;
            finding.source = self.source(kernel);
            self.values(&kernel.clone(), Memory::Cached, &mut finding)?;
        }
        Ok(finding)
    }

    fn instruction(&self, name: &str) -> Option<InstrId> {
        let all = self
            .module
            .computations()
            .flat_map(|computation| self.module.instructions(computation));
        all.into_iter().find(|&instr| self.module.instruction_name(instr) == name)
    }

    fn source(&self, kernel: &str) -> Vec<String> {
        let source = self.instruction(kernel).map(|instr| self.module.source(instr));
        source.filter(|source| !source.is_empty()).into_iter().collect()
    }

    /// Whether it needs other ranks.
    fn is_collective(&self, kernel: &str) -> bool {
        let opcode = self.instruction(kernel).map(|instr| self.module.instruction(instr).opcode);
        opcode.is_some_and(|opcode| {
            opcode.is_of_collective() || matches!(opcode, Opcode::Send | Opcode::Recv)
        })
    }

    /// The launched kernels that produced a kernel's inputs.
    fn producers(&mut self, kernel: &str) -> Result<Vec<String>, Failed> {
        let asked = StageOptions::new("names", Memory::Cached, &["--debug-values=3"]);
        let names = self.session.run(&asked)?;
        let printed = names.printed();
        let launched: Vec<&str> =
            printed.lines().filter_map(|line| launched(line).map(|(_, name, _)| name)).collect();
        Ok(self.launched_before(kernel, &|name| launched.contains(&name)))
    }

    /// The producers of an instruction's operands: the nearest ones that are launched.
    fn launched_before(&self, kernel: &str, is_launched: &dyn Fn(&str) -> bool) -> Vec<String> {
        let mut found = Vec::new();
        let mut open: Vec<InstrId> = self.instruction(kernel).into_iter().collect();
        let mut seen = open.clone();
        while let Some(instr) = open.pop() {
            for operand in self.module.operands(instr) {
                if seen.contains(&operand.of) {
                    continue;
                }
                seen.push(operand.of);
                let name = self.module.instruction_name(operand.of);
                match is_launched(name) {
                    true => found.push(name.to_owned()),
                    false => open.push(operand.of),
                }
            }
        }
        found.sort();
        found
    }
}

/// Whether there are arrays at all: a folder, or an archive of them.
fn can_be_read(inputs: &str) -> bool {
    let is_archive = || files::read_file(inputs).is_ok_and(|bytes| Npz::read(&bytes).is_ok());
    Path::new(inputs).is_dir() || is_archive()
}

/// Ranks that wait for each other or for a kernel.
fn apart(fault: &Json) -> Option<Diagnosis> {
    let kind = match text(fault, "kind")? {
        "timed-out" | "endless" => Kind::Hang,
        "diverged" | "plans-differ" | "ragged" | "untaken" => Kind::Apart,
        _ => return None,
    };
    let account = &fault["account"];
    let what = text(account, "text")
        .or_else(|| text(fault, "message"))
        .unwrap_or("ranks wait for each other");
    let mut finding = Diagnosis::new(kind, what.to_owned());
    let ranks = account["ranks"].as_array().and_then(|ranks| ranks.first()?.as_u64());
    finding.rank = ranks.map(|rank| rank as usize).or_else(|| rank_of(fault));
    let named = text(account, "collective")
        .or_else(|| text(fault, "collective"))
        .or_else(|| text(fault, "kernel"));
    finding.kernel = named.map(str::to_owned);
    if let Some((rank, kernel)) =
        running(text(fault, "message").unwrap_or("")).filter(|_| named.is_none())
    {
        (finding.rank, finding.kernel) = (Some(rank), Some(kernel));
    }
    finding.stray = stray(&account["stray"]);
    let rank = finding.rank;
    locate(&mut finding, fault);
    finding.rank = rank;
    finding.source = text(account, "source")
        .or_else(|| text(fault, "source"))
        .map(str::to_owned)
        .into_iter()
        .collect();
    Some(finding)
}

/// What a diverging rank reached instead of the others' collective.
fn stray(json: &Json) -> Option<StrayCollective> {
    let differences =
        json["differences"].as_array()?.iter().filter_map(Json::as_str).map(str::to_owned);
    Some(StrayCollective {
        collective: text(json, "collective")?.to_owned(),
        source: text(json, "source").map(str::to_owned),
        differences: differences.collect(),
    })
}

/// The first rank that runs a kernel while all others wait: `  rank 0: runs dot.5 (step 3 of main,
/// 5 s)`.
fn running(message: &str) -> Option<(usize, String)> {
    message.lines().find_map(|line| {
        let (rank, rest) = line.trim().strip_prefix("rank ")?.split_once(": runs ")?;
        let (kernel, _) = rest.split_once(" (")?;
        Some((rank.parse().ok()?, kernel.to_owned()))
    })
}

fn lifetime(fault: &Json) -> Diagnosis {
    let mut finding = Diagnosis::new(Kind::Lifetime, fault_words(fault));
    finding.kernel = text(fault, "kernel").map(str::to_owned);
    locate(&mut finding, fault);
    finding
}

/// A custom call that changes its thread's rounding mode.
fn rounds(launch: &Json) -> Diagnosis {
    let kernel = text(launch, "kernel").unwrap_or("");
    let what = format!(
        "'{kernel}' changes its thread's rounding mode: without a reset, later kernels of the rank would round \
         differently"
    );
    let mut finding = Diagnosis::new(Kind::Rounding, what);
    finding.kernel = Some(kernel.to_owned());
    locate(&mut finding, launch);
    finding
}

/// Where a fault is, as far as it is known.
fn locate(finding: &mut Diagnosis, fault: &Json) {
    finding.rank = rank_of(fault).or(finding.rank);
    finding.buffer = text(fault, "buffer").map(str::to_owned).or(finding.buffer.take());
    let step = fault["step"].as_u64().map(|step| step as usize);
    finding.step = text(fault, "computation").map(str::to_owned).zip(step).or(finding.step.take());
    let numbers =
        fault["iteration"].as_array().map(|numbers| numbers.iter().filter_map(Json::as_u64));
    if let Some(numbers) = numbers {
        finding.iteration = numbers.map(|number| number as u32).collect();
    }
    if let Some(source) = text(fault, "source") {
        finding.source = vec![source.to_owned()];
    }
}

/// A fault in words: its own message, or one made from its fields.
fn fault_words(fault: &Json) -> String {
    if let Some(message) = text(fault, "message") {
        return message.to_owned();
    }
    let kernel = match text(fault, "kernel") {
        Some(kernel) if fault["is_thread"] == true => format!("a thread that '{kernel}' started"),
        Some(kernel) => format!("'{kernel}'"),
        None => "a thread that runs no kernel".to_owned(),
    };
    let does = if fault["access"] == "write" { "writes" } else { "reads" };
    let (offset, bytes) =
        (fault["offset"].as_i64().unwrap_or(0), fault["bytes"].as_i64().unwrap_or(0));
    let buffer = text(fault, "buffer").unwrap_or("");
    match text(fault, "kind") {
        Some("out-of-bounds") => {
            let place = match offset < 0 {
                true => Beyond(Side::Start, offset.unsigned_abs() as usize),
                false => Beyond(Side::End, (offset - bytes).unsigned_abs() as usize),
            };
            format!("{kernel} {does} {place} of '{buffer}' ({bytes} bytes)")
        }
        Some("use-after-free") => {
            let after = text(fault, "freed_after").unwrap_or("its last use");
            format!("{kernel} {does} byte {offset} of '{buffer}', which was freed after '{after}'")
        }
        Some("write-to-input") => {
            format!("{kernel} writes to its input '{buffer}', at byte {offset}")
        }
        Some("not-its-own") => {
            format!(
                "{kernel} {does} byte {offset} of '{buffer}', which is alive and was not given to \
                 it"
            )
        }
        _ => format!("{kernel} ends the process: {}", text(fault, "signal").unwrap_or("a signal")),
    }
}

/// `[ before_launch: KERNEL ]  (rank 1)`: before or after, the name, the rank.
fn launched(line: &str) -> Option<(bool, &str, Option<usize>)> {
    let (inside, around) = line.strip_prefix("[ ")?.split_once(" ]")?;
    let (when, kernel) = inside.split_once(": ")?;
    let rank = around.split_once("rank ").map(|(_, rest)| {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        rest[..digits].parse().unwrap_or(0)
    });
    match when {
        "before_launch" => Some((true, kernel, rank)),
        "after_launch" => Some((false, kernel, rank)),
        _ => None,
    }
}

/// Kernels that were launched and did not return.
fn open_launches(printed: &str) -> Vec<(String, Option<usize>)> {
    let mut open: Vec<(String, Option<usize>)> = Vec::new();
    for (is_before, kernel, rank) in printed.lines().filter_map(launched) {
        match is_before {
            true => open.push((kernel.to_owned(), rank)),
            false => open.retain(|launch| *launch != (kernel.to_owned(), rank)),
        }
    }
    open
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_that_did_not_come_back() {
        let printed = "[ before_launch: a ]  (rank 1)\n[ before_launch: a ]  (rank 2)\n[ after_launch: a ]  (rank 1)\nx\n";
        assert_eq!(open_launches(printed), [("a".to_owned(), Some(2))]);
        assert_eq!(open_launches("[ before_launch: k ]\n"), [("k".to_owned(), None)]);
    }
}
