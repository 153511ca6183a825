//! One stage: the command under variables, and what it left behind.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use halflap_run::check::{Beyond, Side};
use serde_json::Value as Json;

use super::generated::{self, GeneratedCall, GeneratedGraph};
use super::launches::{self, PrintedEvent};
use super::lifetimes;
use super::python::{self, Exception, Frame};
use super::suspect::{self, LastCall, Suspect};
use super::{End, Kind, Report, every_so_often, text};
use crate::args;
use crate::execution::debug::child::ChildTask;
use crate::execution::debug::report::ArrayFacts;
use crate::exit::Failed;
use crate::files::quoted;

/// Where guard pages are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Guard {
    Off,
    End,
    Start,
}

impl Guard {
    pub fn stage(self) -> &'static str {
        match self {
            Guard::Off => "unguarded",
            Guard::End => "guard-end",
            Guard::Start => "guard-start",
        }
    }
}

/// The variables of a stage.
#[derive(Debug, Clone)]
pub struct Variables {
    set: Vec<(&'static str, String)>,
    guard: Guard,
    /// Whether Inductor tracks the lifetimes of buffers.
    tracks: bool,
}

impl Variables {
    /// As the user runs the program.
    pub fn plain() -> Variables {
        Variables { set: Vec::new(), guard: Guard::Off, tracks: false }
    }

    /// Step 1 of the guide.
    pub fn sanity() -> Variables {
        let set = [
            ("TORCHINDUCTOR_NAN_ASSERTS", "1"),
            ("TORCHINDUCTOR_SIZE_ASSERTS", "1"),
            ("AOTI_RUNTIME_CHECK_INPUTS", "1"),
        ];
        Variables { set: owned(&set), guard: Guard::Off, tracks: false }
    }

    /// Buffer lifetimes; C++ wrappers do not report them.
    pub fn lifetimes() -> Variables {
        let set = [("TORCHINDUCTOR_CPP_WRAPPER", "0"), ("INDUCTOR_PROVENANCE", "1")];
        Variables { set: owned(&set), guard: Guard::Off, tracks: true }
    }

    /// Step 2: faults happen at the faulting access, every time; and uninitialised memory is NaN.
    pub fn guarded(guard: Guard) -> Variables {
        let mut variables = Variables { guard, ..Variables::sanity() };
        variables.set.extend(owned(&[
            ("PYTORCH_NO_CUDA_MEMORY_CACHING", "1"),
            ("CUDA_LAUNCH_BLOCKING", "1"),
            ("TORCH_SHOW_CPP_STACKTRACES", "1"),
            // A tensor at the end of its page may start at any address.
            ("TORCHINDUCTOR_ALIGNMENT_ASSERTS", "0"),
        ]));
        variables
    }

    /// Step 3: which kernel it is in.
    pub fn names(guard: Guard) -> Variables {
        let mut variables = Variables::guarded(guard);
        variables.set.retain(|(name, _)| *name != "TORCHINDUCTOR_NAN_ASSERTS");
        variables.set.extend(owned(&[
            ("AOT_INDUCTOR_DEBUG_INTERMEDIATE_VALUE_PRINTER", "3"),
            // Wrappers in Python print no names.
            ("TORCHINDUCTOR_CPP_WRAPPER", "1"),
            ("INDUCTOR_PROVENANCE", "1"),
        ]));
        variables
    }

    /// Step 3: inputs and outputs of these kernels, or of all.
    pub fn values(guard: Guard, kernels: &[&str]) -> Variables {
        let mut variables = Variables::names(guard);
        variables.set.retain(|(name, _)| *name != "AOT_INDUCTOR_DEBUG_INTERMEDIATE_VALUE_PRINTER");
        variables.set.push(("AOT_INDUCTOR_DEBUG_INTERMEDIATE_VALUE_PRINTER", "2".to_owned()));
        if !kernels.is_empty() {
            variables.set.push(("AOT_INDUCTOR_FILTERED_KERNELS_TO_PRINT", kernels.join(",")));
        }
        variables
    }
}

fn owned(set: &[(&'static str, &str)]) -> Vec<(&'static str, String)> {
    set.iter().map(|(name, value)| (*name, (*value).to_owned())).collect()
}

/// A debug session of a command.
pub struct CommandSession<'a> {
    args: &'a args::Debug,
    folder: PathBuf,
    helper: Option<PathBuf>,
    is_loud: bool,
    pub report: Report,
}

const HELPER: &str = include_str!("guard.c");
/// The folder of modules that Python imports before the program.
const HOOK: &str = "hook";

impl<'a> CommandSession<'a> {
    pub fn open(
        args: &'a args::Debug,
        folder: &Path,
        is_loud: bool,
    ) -> Result<CommandSession<'a>, Failed> {
        let cannot = |error: std::io::Error| {
            Failed::in_file(&folder.display().to_string(), format!("cannot be written: {error}"))
        };
        // Children run in other folders.
        let folder = fs::canonicalize(folder).map_err(cannot)?;
        let mut report = Report::new(&folder);
        fs::write(folder.join("guard.c"), HELPER).map_err(cannot)?;
        fs::create_dir_all(folder.join(HOOK)).map_err(cannot)?;
        fs::write(folder.join(HOOK).join("sitecustomize.py"), lifetimes::MODULE).map_err(cannot)?;
        let helper = compile(&folder);
        if helper.is_none() {
            report.notes.push(
                "there is no C compiler (cc): tensors got no guard pages, only the checks of the C library".to_owned(),
            );
        }
        Ok(CommandSession { args, folder, helper, is_loud, report })
    }

    pub fn has_no_guard(&self) -> bool {
        self.helper.is_none()
    }

    /// Runs the command under some variables.
    pub fn run(&mut self, stage: &str, variables: Variables) -> Result<CommandRun, Failed> {
        self.run_while(stage, variables, &mut |_| false)
    }

    /// The same, until something bad was printed.
    pub fn run_until_bad(
        &mut self,
        stage: &str,
        variables: Variables,
        infinities: bool,
    ) -> Result<CommandRun, Failed> {
        let mut is_due = every_so_often();
        self.run_while(stage, variables, &mut |folder| {
            is_due()
                && CommandRun::look(folder).is_some_and(|ran| ran.first_bad(infinities).is_some())
        })
    }

    fn run_while(
        &mut self,
        stage: &str,
        variables: Variables,
        is_enough: &mut dyn FnMut(&Path) -> bool,
    ) -> Result<CommandRun, Failed> {
        let folder = self.folder.join(stage);
        let all = self.variables(&folder, &variables);
        let task = ChildTask {
            command: &self.args.command,
            variables: all,
            is_ours: false,
            folder: folder.clone(),
            timeout: Duration::from_nanos(
                self.args.timeout.map_or(600_000_000_000, |time| time.0 as u64),
            ),
            is_loud: self.is_loud,
        };
        let end = task.run(is_enough)?;
        Ok(CommandRun { end, folder, variables })
    }

    /// Everything that is set for a child: the stage's variables and those that we need for its
    /// output.
    fn variables(&self, folder: &Path, variables: &Variables) -> Vec<(&'static str, OsString)> {
        let mut all: Vec<(&'static str, OsString)> = vec![
            ("PYTHONFAULTHANDLER", "1".into()),
            ("PYTHONUNBUFFERED", "1".into()),
            ("TORCH_TRACE", folder.join("trace").into()),
            ("HALFLAP_OUT", folder.join("out.txt").into()),
            ("HALFLAP_ERR", folder.join("err.txt").into()),
        ];
        all.extend(variables.set.iter().map(|(name, value)| (*name, value.into())));
        if !variables.set.is_empty() {
            // All stages share the user's compiled kernels, which have the hash of their source.
            // Whole graphs there were compiled without these variables, or with those of another
            // stage: they are compiled again.
            all.push(("TORCHINDUCTOR_FX_GRAPH_CACHE", "0".into()));
            all.push(("TORCHINDUCTOR_AUTOGRAD_CACHE", "0".into()));
        }
        if variables.tracks {
            let theirs = std::env::var_os("PYTHONPATH").filter(|path| !path.is_empty());
            let mut path = self.folder.join(HOOK).into_os_string();
            theirs.iter().for_each(|theirs| {
                path.push(":");
                path.push(theirs);
            });
            all.push(("PYTHONPATH", path));
        }
        let before = std::env::var("LD_PRELOAD").unwrap_or_default();
        match &self.helper {
            Some(helper) => {
                all.push(("LD_PRELOAD", format!("{} {before}", helper.display()).trim().into()));
                match variables.guard {
                    Guard::Off => {}
                    Guard::End => all.push(("HALFLAP_GUARD", "end".into())),
                    Guard::Start => all.push(("HALFLAP_GUARD", "start".into())),
                }
            }
            None if variables.guard != Guard::Off => {
                all.push(("LD_PRELOAD", format!("libc_malloc_debug.so.0 {before}").trim().into()));
                all.push(("MALLOC_CHECK_", "3".into()));
                all.push(("MALLOC_PERTURB_", "165".into()));
            }
            None => {}
        }
        all
    }

    /// The command that reproduces it.
    pub fn again(&self, variables: &Variables) -> String {
        let own = ["TORCH_TRACE", "HALFLAP_OUT", "HALFLAP_ERR"];
        let again = self.folder.join("again");
        let set =
            self.variables(&again, variables).into_iter().filter(|(name, _)| !own.contains(name));
        let set = set.map(|(name, value)| format!("{name}={}", quoted(&value.to_string_lossy())));
        let command = self.args.command.iter().map(|word| quoted(&word.to_string_lossy()));
        set.chain(command).collect::<Vec<_>>().join(" ")
    }
}

/// Compiles the library that guards memory, if there is a compiler.
fn compile(folder: &Path) -> Option<PathBuf> {
    let library = folder.join("guard.so");
    let compiler = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
    let mut command = Command::new(compiler);
    command
        .args(["-O1", "-shared", "-fPIC", "-o"])
        .arg(&library)
        .arg(folder.join("guard.c"))
        .arg("-ldl");
    let status = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
    status.ok().filter(std::process::ExitStatus::success).map(|_| library)
}

/// An invalid memory access, as reported by the guard library.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadAccess {
    kind: String,
    distance: usize,
    size: usize,
    access: String,
}

impl BadAccess {
    /// `halflap-guard: kind=after-end distance=0 size=4096 access=write`
    fn parse(text: &str) -> Option<BadAccess> {
        let line = text
            .lines()
            .find_map(|line| line.split_once("halflap-guard: ").map(|(_, rest)| rest))?;
        let field = |name: &str| {
            line.split(' ').find_map(|part| part.split_once('=').filter(|(key, _)| *key == name))
        };
        let number =
            |name: &str| field(name).and_then(|(_, value)| value.trim().parse().ok()).unwrap_or(0);
        let kind = field("kind")?.1.trim().to_owned();
        let access = field("access").map_or("touches", |(_, value)| value.trim()).to_owned();
        (kind != "no-room").then(|| BadAccess {
            kind,
            distance: number("distance"),
            size: number("size"),
            access,
        })
    }

    pub fn kind(&self) -> Kind {
        match self.kind.as_str() {
            "after-free" | "bad-free" => Kind::AfterFree,
            _ => Kind::OutOfBounds,
        }
    }

    pub fn words(&self) -> String {
        let does = match self.access.as_str() {
            "write" => "writes",
            "read" => "reads",
            _ => "touches memory",
        };
        let BadAccess { distance, size, .. } = self;
        match self.kind.as_str() {
            "after-end" => {
                format!("{does} {} of a tensor of {size} bytes", Beyond(Side::End, *distance))
            }
            "before-start" => {
                format!("{does} {} of a tensor of {size} bytes", Beyond(Side::Start, *distance))
            }
            "bad-free" => {
                "frees memory twice, or memory that is not the start of a tensor".to_owned()
            }
            _ => format!("{does} a tensor of {size} bytes, at byte {distance}, after it was freed"),
        }
    }
}

/// A stage that was run.
pub struct CommandRun {
    pub end: End,
    folder: PathBuf,
    pub variables: Variables,
}

impl CommandRun {
    /// A stage that still runs.
    fn look(folder: &Path) -> Option<CommandRun> {
        const ENOUGH: u64 = 64 << 20;
        let size = fs::metadata(folder.join("out.txt")).map_or(0, |file| file.len());
        let ran = CommandRun {
            end: End::TimedOut,
            folder: folder.to_owned(),
            variables: Variables::plain(),
        };
        (size < ENOUGH).then_some(ran)
    }

    /// The ranks whose output is kept apart; all of it together first.
    fn ranks(&self) -> Vec<Option<usize>> {
        let names = fs::read_dir(&self.folder)
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.file_name());
        let number =
            |name: OsString| name.to_str()?.strip_prefix("err.txt.rank_")?.parse::<usize>().ok();
        let mut ranks: Vec<usize> = names.filter_map(number).collect();
        ranks.sort_unstable();
        [None].into_iter().chain(ranks.into_iter().map(Some)).collect()
    }

    fn file(&self, name: &str, rank: Option<usize>) -> String {
        let name = rank.map_or(name.to_owned(), |rank| format!("{name}.rank_{rank}"));
        text(&self.folder.join(name))
    }

    fn events(&self, rank: Option<usize>) -> Vec<PrintedEvent> {
        launches::events(&self.file("out.txt", rank))
    }

    /// The last lines that it printed to standard error, or else at all.
    pub fn last_words(&self) -> Vec<String> {
        const MOST: usize = 3;
        let last = |name: &str, rank: Option<usize>| -> Vec<String> {
            let text = self.file(name, rank);
            let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
            let mut last: Vec<String> = lines.rev().take(MOST).map(str::to_owned).collect();
            last.reverse();
            last
        };
        let places = ["err.txt", "out.txt"];
        let each = places
            .iter()
            .flat_map(|name| self.ranks().into_iter().map(move |rank| last(name, rank)));
        each.into_iter().find(|words| !words.is_empty()).unwrap_or_default()
    }

    pub fn graphs(&self) -> Vec<GeneratedGraph> {
        generated::graphs(&self.folder.join("trace"))
    }

    /// JSON that follows a given prefix, by rank.
    pub fn told(&self, words: &str) -> Vec<(Option<usize>, Json)> {
        let of_rank = |rank: Option<usize>| {
            let text = self.file("err.txt", rank);
            let record = |line: &str| serde_json::from_str(line.split_once(words)?.1).ok();
            text.lines().filter_map(record).map(|record| (rank, record)).collect::<Vec<_>>()
        };
        self.ranks().into_iter().flat_map(of_rank).collect()
    }

    /// The exception that ended it.
    pub fn exception(&self) -> Option<(Option<usize>, Exception)> {
        self.exceptions().into_iter().next()
    }

    /// The exceptions that ended its ranks: first that of the rank to blame, then those that only
    /// report that other ranks left, and last the launcher's.
    pub fn exceptions(&self) -> Vec<(Option<usize>, Exception)> {
        if self.end.is_good() {
            return Vec::new();
        }
        let mut ranks = self.ranks();
        ranks.rotate_left(1);
        let told = ranks
            .into_iter()
            .map(|rank| Some((rank, python::exception(&self.file("err.txt", rank))?)));
        let mut told: Vec<_> = told.flatten().collect();
        let first = self.first_failure().map(|(rank, _)| rank);
        told.sort_by_key(|(rank, exception)| {
            (rank.is_none(), exception.is_echo(), Some(*rank) != first)
        });
        told
    }

    /// torchrun's report of the rank that failed first.
    fn first_failure(&self) -> Option<(Option<usize>, i32)> {
        let (rank, code) = python::first_failure(&self.file("err.txt", None))?;
        Some((Some(rank), code))
    }

    /// The rank that a signal ended, and which.
    pub fn crash(&self) -> Option<(Option<usize>, i32)> {
        if self.end.is_good() {
            return None;
        }
        let said = self.rank_that_says().map(|rank| (rank, signal_of(&self.file("err.txt", rank))));
        // The launcher ends the remaining ranks by SIGTERM.
        let killed =
            || self.first_failure().filter(|(_, code)| *code < 0).map(|(rank, code)| (rank, -code));
        match self.end {
            End::Signal(number) => Some((said.and_then(|(rank, _)| rank), number)),
            // Our own signal ended it, to see where it was.
            End::TimedOut => said.filter(|(rank, _)| self.guard_fault(*rank).is_some()),
            _ => said.or_else(killed),
        }
    }

    /// The rank that reports how it ended: preferably by a memory fault.
    pub fn rank_that_says(&self) -> Option<Option<usize>> {
        let fatal =
            |rank: &Option<usize>| self.file("err.txt", *rank).contains("Fatal Python error");
        let mut ranks = self.ranks();
        ranks.rotate_left(1);
        let guarded = ranks.iter().find(|rank| self.guard_fault(**rank).is_some());
        guarded.or_else(|| ranks.iter().find(|rank| fatal(rank))).copied()
    }

    pub fn guard_fault(&self, rank: Option<usize>) -> Option<BadAccess> {
        BadAccess::parse(&self.file("err.txt", rank))
    }

    /// Where Python was when it was ended.
    pub fn stack(&self, rank: Option<usize>) -> Vec<Frame> {
        python::fatal_stack(&self.file("err.txt", rank))
    }

    /// Where each rank was when it was ended: the line of the program, and the innermost call that
    /// it was in.
    pub fn standing(&self) -> Vec<Stand> {
        let place = |rank: usize| {
            let stack = self.stack(Some(rank));
            let own = stack.iter().find(|frame| frame.is_own())?;
            let inner =
                stack.iter().find(|frame| frame.is_generated()).map(|frame| frame.code.as_str());
            let inner = inner
                .filter(|code| !code.is_empty())
                .or(stack.first().map(|frame| frame.function.as_str()))?;
            let words = format!("{}, in {inner}", own.render());
            Some(Stand { rank, words, collective: stack.iter().find_map(collective) })
        };
        self.ranks().into_iter().flatten().filter_map(place).collect()
    }

    /// The ranks that ended without any output.
    pub fn silent_ranks(&self) -> Vec<usize> {
        let is_silent = |rank: &usize| {
            let said = self.file("err.txt", Some(*rank));
            python::exception(&said).is_none() && python::fatal_stack(&said).is_empty()
        };
        self.ranks().into_iter().flatten().filter(is_silent).collect()
    }

    /// Who first produced a bad value. Values from a collective come from another rank.
    pub fn first_bad(&self, infinities: bool) -> Option<(Option<usize>, Suspect)> {
        let graphs = self.graphs();
        let each = self.ranks().into_iter().filter_map(|rank| {
            Some((rank, suspect::first_bad(&self.events(rank), &graphs, infinities)?))
        });
        let mut each: Vec<_> = each.collect();
        let is_carried = |suspect: &Suspect| match suspect {
            Suspect::Kernel { call, .. } => call.is_collective(),
            Suspect::Input(_) => false,
        };
        each.sort_by_key(|(_, suspect)| is_carried(suspect));
        each.into_iter().next()
    }

    /// The kernel that it was in.
    pub fn last_call(&self) -> Option<LastCall> {
        let rank = self.crash().and_then(|(rank, _)| rank);
        suspect::last_call(&self.events(rank), &self.graphs())
    }

    /// The last printed state of each tensor that a call reads.
    pub fn last_values(&self, rank: Option<usize>, call: &GeneratedCall) -> Vec<ArrayFacts> {
        let mut last: Vec<ArrayFacts> = Vec::new();
        for event in self.events(rank) {
            let (PrintedEvent::Input(tensor) | PrintedEvent::Tensor(_, _, tensor)) = event else {
                continue;
            };
            if !call.reads.contains(&tensor.value.buffer) {
                continue;
            }
            last.retain(|value| value.buffer != tensor.value.buffer);
            last.push(tensor.value);
        }
        last
    }
}

/// Where a rank was when it was ended.
pub struct Stand {
    pub rank: usize,
    /// The line of the program, and the innermost call that it was in.
    pub words: String,
    /// The collective that it was in, if it was in one.
    pub collective: Option<String>,
}

/// The collective that a frame calls or is.
fn collective(frame: &Frame) -> Option<String> {
    const NAMES: [&str; 12] = [
        "all_gather_into_tensor",
        "reduce_scatter_tensor",
        "all_to_all_single",
        "all_gather",
        "reduce_scatter",
        "all_reduce",
        "all_to_all",
        "broadcast",
        "barrier",
        "scatter",
        "gather",
        "reduce",
    ];
    let is_distributed = frame.file.contains("distributed") || frame.code.contains("c10d");
    let named = |name: &&&str| match is_distributed {
        true => frame.function == **name || frame.code.contains(&format!(".{name}")),
        false => frame.code.contains(&format!("dist.{name}(")),
    };
    NAMES.iter().find(named).map(|name| (*name).to_owned())
}

/// The signal that Python's fault handler reports.
fn signal_of(text: &str) -> i32 {
    let names = [
        ("Segmentation fault", 11),
        ("Aborted", 6),
        ("Floating", 8),
        ("Bus error", 7),
        ("Illegal", 4),
    ];
    let line = text.lines().find(|line| line.contains("Fatal Python error")).unwrap_or("");
    names.iter().find(|(name, _)| line.contains(name)).map_or(11, |(_, number)| *number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_guard_says_is_said_in_words() {
        let fault = BadAccess::parse(
            "x\nhalflap-guard: kind=before-start distance=4 size=512 access=write\ny",
        )
        .unwrap();
        assert_eq!(fault.words(), "writes 4 bytes before the start of a tensor of 512 bytes");
        assert_eq!(fault.kind(), Kind::OutOfBounds);
        assert_eq!(BadAccess::parse("halflap-guard: kind=no-room"), None);
    }
}
