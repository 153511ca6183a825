//! The command that reproduces a fault; it is tried, to see whether it does.

use std::ffi::OsString;
use std::time::Duration;

use super::run::{Memory, ModuleRun, ModuleSession, StageOptions};
use crate::execution::debug::child::End;
use crate::execution::debug::report::{Diagnosis, Kind, Reproduced};
use crate::exit::Failed;
use crate::files::quoted;

/// Words after `halflap`.
pub type CommandWords = Vec<String>;

/// A command that may reproduce a fault.
pub struct Commands {
    /// The kernel that is to blame, alone.
    pub alone: Option<CommandWords>,
    /// The whole module.
    pub whole: CommandWords,
}

/// A kernel that is run alone.
pub struct Alone<'a> {
    /// Its name.
    pub kernel: &'a str,
    /// Where buffers are placed.
    pub memory: Memory,
    /// The rank whose values it takes; `None` for all ranks.
    pub rank: Option<usize>,
}

/// A kernel, and in which iteration: `add.5@2.0`.
fn launch(kernel: &str, finding: &Diagnosis) -> String {
    let numbers: Vec<String> = finding.iteration.iter().map(u32::to_string).collect();
    if numbers.is_empty() { kernel.to_owned() } else { format!("{kernel}@{}", numbers.join(".")) }
}

/// A time as options take it.
fn seconds(time: Duration) -> String {
    format!("{}s", time.as_secs_f64())
}

/// A command as it could be typed.
fn typed(words: &[String]) -> String {
    let words = words.iter().map(|word| quoted(word));
    std::iter::once("halflap".to_owned()).chain(words).collect::<Vec<_>>().join(" ")
}

impl ModuleSession<'_> {
    /// One kernel on its saved values, of one rank or of all.
    pub fn alone(&self, alone: &Alone<'_>, finding: &Diagnosis) -> CommandWords {
        let Alone { kernel, memory, rank } = *alone;
        let all = self.path("values");
        let values = rank.map_or(all.clone(), |rank| all.join(format!("rank_{rank}")));
        let given = values.display().to_string();
        let mut words: CommandWords =
            vec!["run".into(), self.module.clone(), "--only".into(), launch(kernel, finding)];
        words.extend(["--inputs".to_owned(), given]);
        let libraries = self.args.run.custom_calls.iter();
        words.extend(libraries.flat_map(|path| ["--custom-calls".to_owned(), path.clone()]));
        words.push(
            if finding.kind == Kind::Infinity { "--nan-asserts=inf" } else { "--nan-asserts" }
                .to_owned(),
        );
        words.extend(memory.option().map(str::to_owned));
        words.extend((memory != Memory::Cached).then(|| "--launch-blocking".to_owned()));
        words.extend(self.limit(finding));
        words
    }

    /// The whole module, as in the stage that found it.
    pub fn whole(&self, asked: &StageOptions, finding: &Diagnosis) -> CommandWords {
        let passed_on =
            self.passed_on().into_iter().map(|word| word.to_string_lossy().into_owned());
        let mut words: CommandWords = vec!["run".into(), self.module.clone()];
        words.extend(passed_on);
        words.extend(asked.memory.option().map(str::to_owned));
        words.extend(self.is_unfused(asked).then(|| "--no-fuse".to_owned()));
        words.extend(asked.options.iter().cloned());
        words.extend(self.limit(finding));
        words
    }

    /// A hang must be ended.
    fn limit(&self, finding: &Diagnosis) -> Vec<String> {
        match finding.kind {
            Kind::Hang | Kind::Apart => {
                let mut words = vec!["--timeout".to_owned(), seconds(self.kernel_time())];
                if finding.is_unproven_loop {
                    words.extend(["--loop-timeout".to_owned(), seconds(self.loop_time())]);
                }
                words
            }
            _ => Vec::new(),
        }
    }

    /// Tries the commands, first the kernel alone, and takes the first that shows the fault.
    pub fn prove(
        &self,
        commands: &Commands,
        kind: Option<&str>,
        finding: &mut Diagnosis,
    ) -> Result<(), Failed> {
        let Commands { alone, whole } = commands;
        let mut shown = Reproduced::Yes;
        for command in alone.iter().chain([whole]) {
            let ran = self.own("again", command.iter().map(OsString::from).collect())?;
            // The whole module fails as before; a kernel alone may fail in another way.
            if shows(&ran, kind.filter(|_| command != whole), finding) {
                finding.reproduce = Some(typed(command));
                finding.shown = Some(shown);
                return Ok(());
            }
            shown =
                if ran.end == End::Code(2) { Reproduced::NotSaved } else { Reproduced::OnlyWhole };
        }
        finding.reproduce = Some(typed(alone.as_ref().unwrap_or(whole)));
        finding.shown = Some(match finding.kind {
            Kind::Chance => Reproduced::Chance,
            Kind::Rounding => Reproduced::Said,
            Kind::Uninitialised => Reproduced::Compared,
            _ => Reproduced::NotThisTime,
        });
        Ok(())
    }
}

/// Whether a run reproduces the fault: the same kind and the same kernel, as far as both are
/// reported.
fn shows(ran: &ModuleRun, kind: Option<&str>, finding: &Diagnosis) -> bool {
    let fault = ran.fault().unwrap_or_default();
    let agree = |said: &serde_json::Value, known: Option<&str>| {
        said.as_str().zip(known).is_none_or(|(a, b)| a == b)
    };
    // Whether diverging ranks meet or wait for each other depends on timing.
    let kind = kind.filter(|_| !matches!(finding.kind, Kind::Hang | Kind::Apart));
    let is_astray = |kind: Option<&str>| matches!(kind, Some("crash" | "out-of-bounds"));
    // Whether a far address belongs to a buffer is random.
    let is_kind =
        agree(&fault["kind"], kind) || is_astray(kind) && is_astray(fault["kind"].as_str());
    let kernel = finding.kernel.as_deref().filter(|_| !finding.is_seen_elsewhere);
    let is_same = agree(&fault["kernel"], kernel) && is_kind;
    is_same
        && match ran.end {
            End::Code(0) => false,
            End::Code(2) => finding.kind == Kind::WrongInput,
            End::TimedOut => finding.kind == Kind::Hang,
            _ => true,
        }
}
