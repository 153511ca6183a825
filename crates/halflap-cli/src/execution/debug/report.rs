//! The result of a debug session: as text and as JSON (halflap.debug/1).

use std::path::Path;
use std::time::Instant;

use halflap_report::{Style, labelled, printable, printable_end};
use serde_json::{Value as Json, json};

/// The kind of fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    NotANumber,
    Infinity,
    Uninitialised,
    OutOfBounds,
    AfterFree,
    WriteToInput,
    NotItsOwn,
    Chance,
    Lifetime,
    Apart,
    Crash,
    Hang,
    WrongInput,
    Rounding,
    Exception,
}

impl Kind {
    pub fn name(self) -> &'static str {
        match self {
            Kind::NotANumber => "nan",
            Kind::Infinity => "infinity",
            Kind::Uninitialised => "uninitialised",
            Kind::OutOfBounds => "out-of-bounds",
            Kind::AfterFree => "after-free",
            Kind::Chance => "chance",
            Kind::WriteToInput => "write-to-input",
            Kind::NotItsOwn => "not-its-own",
            Kind::Lifetime => "lifetime",
            Kind::Apart => "apart",
            Kind::Crash => "crash",
            Kind::Hang => "hang",
            Kind::WrongInput => "wrong-input",
            Kind::Rounding => "rounding",
            Kind::Exception => "exception",
        }
    }
}

/// An input or output of a kernel.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ArrayFacts {
    pub buffer: String,
    /// The operand or result, if it has its own name.
    pub operand: Option<String>,
    /// Its type and shape.
    pub kind: String,
    /// Minimum, maximum, mean and so on.
    pub facts: Vec<(String, String)>,
}

impl ArrayFacts {
    fn render(&self) -> String {
        let facts: Vec<String> =
            self.facts.iter().map(|(name, fact)| format!("{name} {fact}")).collect();
        let name = self.operand.as_ref().unwrap_or(&self.buffer);
        format!("{} {}: {}", printable(name), self.kind, facts.join(", "))
    }

    fn json(&self) -> Json {
        let facts = self.facts.iter().map(|(name, fact)| (name.clone(), Json::from(fact.as_str())));
        let facts = Json::Object(facts.collect());
        json!({ "operand": self.operand, "buffer": self.buffer, "type": self.kind, "facts": facts })
    }
}

/// What is wrong, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Diagnosis {
    pub kind: Kind,
    /// In a sentence.
    pub what: String,
    /// The first kernel or collective that misbehaves.
    pub kernel: Option<String>,
    /// The instruction inside of the kernel that does.
    pub instruction: Option<String>,
    /// The buffer at fault, or the first to show it.
    pub buffer: Option<String>,
    pub rank: Option<usize>,
    /// The computation, and the step of its plan.
    pub step: Option<(String, usize)>,
    /// The iteration of each enclosing loop, outermost first.
    pub iteration: Vec<u32>,
    /// Whether it is a loop that took too long, but may end.
    pub is_unproven_loop: bool,
    /// Whether checks see the fault at another kernel than the one to blame.
    pub is_seen_elsewhere: bool,
    /// Where in the user's program.
    pub source: Vec<String>,
    /// What a diverging rank reached instead.
    pub stray: Option<StrayCollective>,
    pub went_in: Vec<ArrayFacts>,
    pub came_out: Vec<ArrayFacts>,
    /// The command that reproduces it.
    pub reproduce: Option<String>,
    /// Whether it does, if that was tried.
    pub shown: Option<Reproduced>,
}

impl Diagnosis {
    pub fn new(kind: Kind, what: String) -> Diagnosis {
        let (went_in, came_out) = Default::default();
        Diagnosis {
            kind,
            what,
            kernel: None,
            instruction: None,
            buffer: None,
            rank: None,
            step: None,
            iteration: Vec::new(),
            is_unproven_loop: false,
            is_seen_elsewhere: false,
            source: Vec::new(),
            stray: None,
            went_in,
            came_out,
            reproduce: None,
            shown: None,
        }
    }
}

/// The collective of a rank that diverges.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StrayCollective {
    pub collective: String,
    pub source: Option<String>,
    /// The computation, and the step of its plan.
    pub step: Option<(String, u64)>,
    /// What differs from the others' collective.
    pub differences: Vec<String>,
}

impl StrayCollective {
    fn render(&self) -> String {
        let source = self.source.as_ref().map_or(String::new(), |source| format!(" ({source})"));
        let step = self.step.as_ref();
        let step = step.map_or(String::new(), |(computation, step)| {
            format!(", step {step} of {}", printable(computation))
        });
        let differ =
            self.differences.iter().map(|difference| format!("; {difference}")).collect::<String>();
        format!("'{}'{source}{step}{differ}", printable(&self.collective))
    }

    fn json(&self) -> Json {
        let StrayCollective { collective, source, step, differences } = self;
        let (computation, step) = step.clone().unzip();
        json!({
            "collective": collective, "source": source, "computation": computation, "step": step,
            "differences": differences,
        })
    }
}

/// Whether a command reproduces a fault.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reproduced {
    Yes,
    /// Yes, but the kernel alone does not.
    OnlyWhole,
    /// Yes; what the kernel alone would need was not saved.
    NotSaved,
    /// Every run gives different values; a single one shows nothing.
    Chance,
    /// The run only warns.
    Said,
    /// Two runs must be compared to see it.
    Compared,
    /// It completed this time, or could not be run.
    NotThisTime,
}

impl Reproduced {
    fn is_shown(&self) -> bool {
        matches!(self, Reproduced::Yes | Reproduced::OnlyWhole | Reproduced::NotSaved)
    }

    fn words(&self) -> &'static str {
        match self {
            Reproduced::Yes => "yes, it was tried",
            Reproduced::OnlyWhole => {
                "yes, it was tried; the kernel alone does not, because the fault depends on earlier work"
            }
            Reproduced::NotSaved => {
                "yes, it was tried; the inputs of the kernel alone could not be saved"
            }
            Reproduced::Chance => {
                "no, because one run alone looks fine: compare the values of two with 'halflap \
                 diff'"
            }
            Reproduced::Compared => {
                "no, because one run alone looks fine: use 'halflap diff' to compare its outputs with and without \
                 --no-memory-caching"
            }
            Reproduced::Said => "no, because the run goes on: it warns on standard error",
            Reproduced::NotThisTime => {
                "no, because it does not happen every time, or depends on something that only this run had"
            }
        }
    }
}

/// One thing that was tried.
#[derive(Debug, Clone)]
pub struct DebugStage {
    pub name: &'static str,
    pub result: String,
    /// How long it took.
    pub seconds: f64,
}

/// When the last stage ended, or the session began.
#[derive(Debug)]
struct Since(Instant);

impl Default for Since {
    fn default() -> Since {
        Since(Instant::now())
    }
}

/// The result of a session.
#[derive(Debug, Default)]
pub struct Report {
    pub finding: Option<Diagnosis>,
    pub stages: Vec<DebugStage>,
    /// What could not be checked, and why; and what may be intended.
    pub notes: Vec<String>,
    /// Whether results have NaN or infinities although nothing is at fault.
    pub is_not_finite: bool,
    /// Where everything is kept.
    pub folder: String,
    since: Since,
}

impl Report {
    /// Of a session that begins now, and keeps everything in a folder.
    pub fn new(folder: &Path) -> Report {
        Report { folder: folder.display().to_string(), ..Report::default() }
    }

    pub fn stage(&mut self, name: &'static str, result: impl Into<String>) {
        let before = std::mem::take(&mut self.since);
        let seconds = (self.since.0 - before.0).as_secs_f64();
        self.stages.push(DebugStage { name, result: result.into(), seconds });
    }

    /// The outcome, in a few words.
    pub fn verdict(&self) -> String {
        match &self.finding {
            Some(finding) => finding.what.clone(),
            None if self.is_not_finite => {
                "no fault was found, but results are not finite: see the note".to_owned()
            }
            None => "nothing wrong was found".to_owned(),
        }
    }

    /// As text.
    pub fn render(&self, style: &Style) -> String {
        let mut lines = Vec::new();
        match &self.finding {
            None => lines.push(("verdict", self.verdict())),
            Some(finding) => finding_lines(finding, &mut lines),
        }
        for stage in &self.stages {
            lines.push((stage.name, stage.result.clone()));
        }
        lines.extend(self.notes.iter().map(|note| ("note", note.clone())));
        lines.push(("kept in", whole(&self.folder)));
        lines.iter().map(|(label, value)| labelled(label, value, style)).collect()
    }

    /// As JSON.
    pub fn json(&self) -> Json {
        let stages = self.stages.iter().map(
            |stage| json!({ "name": stage.name, "result": stage.result, "seconds": stage.seconds }),
        );
        json!({
            "format": "halflap.debug/1",
            "verdict": if self.finding.is_some() { "fault" } else { "clean" },
            "finding": self.finding.as_ref().map(finding_json),
            "stages": stages.collect::<Vec<_>>(),
            "notes": self.notes,
            "not_finite": self.is_not_finite,
            "folder": self.folder,
        })
    }
}

fn finding_lines(finding: &Diagnosis, lines: &mut Vec<(&'static str, String)>) {
    lines.push(("wrong", finding.what.clone()));
    lines.extend(finding.kernel.as_ref().map(|kernel| ("kernel", printable(kernel))));
    lines.extend(finding.instruction.as_ref().map(|name| ("instruction", printable(name))));
    lines.extend(finding.buffer.as_ref().map(|buffer| ("buffer", printable(buffer))));
    lines.extend(finding.rank.map(|rank| ("rank", rank.to_string())));
    lines.extend(
        finding
            .step
            .as_ref()
            .map(|(computation, step)| ("step", format!("{step} of {computation}"))),
    );
    let numbers: Vec<String> = finding.iteration.iter().map(u32::to_string).collect();
    lines.extend((!numbers.is_empty()).then(|| ("iteration", numbers.join(", "))));
    lines.extend(finding.source.iter().map(|place| ("source", whole(place))));
    lines.extend(finding.stray.iter().map(|stray| ("instead", stray.render())));
    lines.extend(finding.went_in.iter().map(|value| ("went in", value.render())));
    lines.extend(finding.came_out.iter().map(|value| ("came out", value.render())));
    lines.extend(finding.reproduce.as_ref().map(|command| ("again", command.clone())));
    lines.extend(finding.shown.as_ref().map(|shown| ("shows it", shown.words().to_owned())));
}

/// A text that is never truncated.
fn whole(text: &str) -> String {
    printable_end(text, usize::MAX - 1)
}

fn finding_json(finding: &Diagnosis) -> Json {
    let values = |values: &[ArrayFacts]| values.iter().map(ArrayFacts::json).collect::<Vec<_>>();
    json!({
        "kind": finding.kind.name(),
        "what": finding.what,
        "kernel": finding.kernel,
        "instruction": finding.instruction,
        "buffer": finding.buffer,
        "rank": finding.rank,
        "computation": finding.step.as_ref().map(|(computation, _)| computation),
        "step": finding.step.as_ref().map(|(_, step)| step),
        "iteration": finding.iteration,
        "source": finding.source,
        "stray": finding.stray.as_ref().map(StrayCollective::json),
        "in": values(&finding.went_in),
        "out": values(&finding.came_out),
        "reproduce": finding.reproduce,
        "shows_again": finding.shown.as_ref().map(Reproduced::is_shown),
        "shows_again_words": finding.shown.as_ref().map(Reproduced::words),
    })
}
