//! One stage: our own command on the module, in its own process.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value as Json;

use super::origins::OriginsReport;
use crate::args;
use crate::execution::debug::child::{self, ChildTask, End};
use crate::execution::debug::report::Report;
use crate::exit::Failed;

/// The file with the origins of NaN and infinities, in a stage's folder.
const ORIGINS: &str = "origins.json";

/// Stages in which the heap is filled before it is handed out.
pub const LATER: &str = "later";
pub const VALUES_LATER: &str = "values-later";

/// Where guard pages stand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Memory {
    Cached,
    End,
    Start,
}

impl Memory {
    pub fn option(self) -> Option<&'static str> {
        match self {
            Memory::Cached => None,
            Memory::End => Some("--no-memory-caching=end"),
            Memory::Start => Some("--no-memory-caching=start"),
        }
    }

    pub fn words(self) -> &'static str {
        match self {
            Memory::Cached => "memory as always",
            Memory::End => "every buffer right before a guard page",
            Memory::Start => "every buffer right after a guard page",
        }
    }
}

/// A debug session of a module.
pub struct ModuleSession<'a> {
    pub args: &'a args::Debug,
    pub module: String,
    folder: PathBuf,
    is_loud: bool,
    /// The order that is run, where we had to find one.
    order: Option<String>,
    pub report: Report,
}

/// The options of a stage, besides running the module.
#[derive(Debug, Clone)]
pub struct StageOptions {
    pub stage: &'static str,
    pub memory: Memory,
    pub options: Vec<String>,
    /// How long a loop may take here, if that is less than elsewhere.
    pub limit: Option<Duration>,
}

impl StageOptions {
    pub fn new(stage: &'static str, memory: Memory, options: &[&str]) -> StageOptions {
        StageOptions {
            stage,
            memory,
            options: options.iter().map(|option| (*option).to_owned()).collect(),
            limit: None,
        }
    }

    /// The same, in a limited time.
    pub fn within(self, limit: Duration) -> StageOptions {
        StageOptions { limit: Some(limit), ..self }
    }
}

impl<'a> ModuleSession<'a> {
    pub fn open(
        args: &'a args::Debug,
        module: String,
        folder: &Path,
        is_loud: bool,
    ) -> ModuleSession<'a> {
        let report = Report::new(folder);
        ModuleSession { args, module, folder: folder.to_owned(), is_loud, order: None, report }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Finds the order once, for all stages.
    pub fn find_order(&mut self) -> Result<(), Failed> {
        if self.args.run.order.is_some() || self.args.run.input_order {
            return Ok(());
        }
        let order = self.folder.join("order.json");
        let words: [OsString; 5] = [
            crate::execution::debug::own_executable()?.into(),
            "schedule".into(),
            self.module.clone().into(),
            "-o".into(),
            order.clone().into(),
        ];
        let (timeout, is_loud) = (Duration::from_secs(3600), self.is_loud);
        let folder = self.folder.join("order");
        let task = ChildTask {
            command: &words,
            variables: Vec::new(),
            is_ours: true,
            folder,
            timeout,
            is_loud,
        };
        // If it is not found, the run says why.
        self.order = task.run(&mut |_| false)?.is_good().then(|| order.display().to_string());
        Ok(())
    }

    /// The same, which also follows NaN and infinities to the results.
    pub fn trace(&self, asked: &StageOptions) -> Result<ModuleRun, Failed> {
        let path = self.folder.join(asked.stage).join(ORIGINS);
        let mut traced = asked.clone();
        traced.options.push(format!("--nan-origins={}", path.display()));
        self.run(&traced)
    }

    /// Runs the module once more.
    pub fn run(&self, asked: &StageOptions) -> Result<ModuleRun, Failed> {
        let loop_time = asked.limit.unwrap_or(Duration::MAX).min(self.loop_time());
        let nanos = |time: Duration| OsString::from(format!("{}ns", time.as_nanos()));
        let mut command: Vec<OsString> = vec!["run".into(), self.module.clone().into()];
        command.extend(self.passed_on());
        command.extend(["-o".into(), self.folder.join(asked.stage).join("out.npz").into()]);
        command.extend(["--timeout".into(), nanos(self.kernel_time())]);
        command.extend(["--loop-timeout".into(), nanos(loop_time)]);
        command.extend(asked.memory.option().map(OsString::from));
        command.extend(self.is_unfused(asked).then(|| OsString::from("--no-fuse")));
        command.extend(asked.options.iter().map(OsString::from));
        self.own(asked.stage, command)
    }

    /// First as the user runs it; then unfused, with every instruction as its own kernel.
    pub fn is_unfused(&self, asked: &StageOptions) -> bool {
        asked.stage != "plain" || self.args.run.no_fuse
    }

    /// Runs our own command; its machine-readable output goes to the stage's folder.
    pub fn own(&self, stage: &str, words: Vec<OsString>) -> Result<ModuleRun, Failed> {
        let folder = self.folder.join(stage);
        // Files of an earlier run of the stage do not apply to this one.
        let _ = fs::remove_dir_all(&folder);
        let mut command: Vec<OsString> = vec![crate::execution::debug::own_executable()?.into()];
        command.extend(words);
        command.extend(["--fault-report".into(), folder.join("fault.jsonl").into_os_string()]);
        let mut recorder = OsString::from("--flight-recorder=");
        recorder.push(folder.join("flight.json"));
        command.push(recorder);
        // The allocator then fills what it hands out, so that nothing can pass for zeros.
        let is_filled = matches!(stage, LATER | VALUES_LATER);
        let fill = is_filled.then(|| ("MALLOC_PERTURB_", OsString::from("165")));
        let task = ChildTask {
            command: &command,
            variables: fill.into_iter().collect(),
            is_ours: true,
            folder: folder.clone(),
            // A run of many kernels takes longer than one of them may.
            timeout: self.loop_time() + Duration::from_secs(20),
            is_loud: self.is_loud,
        };
        let end = task.run(&mut |_| false)?;
        Ok(ModuleRun { end, folder })
    }

    /// The time limit for a loop that may terminate.
    pub fn loop_time(&self) -> Duration {
        self.kernel_time() * 5 + Duration::from_secs(100)
    }

    pub fn kernel_time(&self) -> Duration {
        Duration::from_nanos(self.args.timeout.map_or(20_000_000_000, |time| time.0 as u64))
    }

    /// The user's options for the run.
    pub fn passed_on(&self) -> Vec<OsString> {
        let args = &self.args.run;
        let mut words: Vec<OsString> = Vec::new();
        let mut named = |name: &str, value: Option<String>| {
            words.extend(value.into_iter().flat_map(|value| [OsString::from(name), value.into()]));
        };
        named("--ranks", args.ranks.map(|ranks| ranks.to_string()));
        named("--inputs", args.inputs.clone());
        named("--order", args.order.clone().or_else(|| self.order.clone()));
        named("--steps", (args.steps != 1).then(|| args.steps.to_string()));
        named("--seed", (args.seed != 0).then(|| args.seed.to_string()));
        args.custom_calls.iter().for_each(|path| named("--custom-calls", Some(path.clone())));
        args.inject.iter().for_each(|fault| named("--inject", Some(fault.clone())));
        args.order_for.iter().for_each(|other| named("--order-for", Some(other.clone())));
        if args.input_order {
            words.push("--input-order".into());
        }
        words
    }
}

/// A stage that was run.
pub struct ModuleRun {
    pub end: End,
    pub folder: PathBuf,
}

impl ModuleRun {
    /// The reported fault: the first of several lines.
    pub fn fault(&self) -> Option<Json> {
        let text = child::text(&self.folder.join("fault.jsonl"));
        text.lines().find_map(|line| serde_json::from_str(line).ok())
    }

    /// What it says of the origins of its NaN and infinities.
    pub fn origins(&self) -> Option<OriginsReport> {
        OriginsReport::read(&child::text(&self.folder.join(ORIGINS)))
    }

    /// Its error message, without our own prefix.
    pub fn complaint(&self) -> String {
        let text = child::text(&self.folder.join("err.txt"));
        let lines: Vec<&str> = text.lines().collect();
        let start = lines.iter().position(|line| line.contains("error: ")).unwrap_or(0);
        let told = lines[start..].join("\n");
        let told = told
            .strip_prefix("internal error: ")
            .or_else(|| told.strip_prefix("error: "))
            .unwrap_or(&told);
        told.trim().to_owned()
    }

    pub fn printed(&self) -> String {
        child::text(&self.folder.join("out.txt"))
    }

    /// The arrays that it gave, byte for byte.
    pub fn results(&self) -> Option<Vec<u8>> {
        fs::read(self.folder.join("out.npz")).ok()
    }
}
