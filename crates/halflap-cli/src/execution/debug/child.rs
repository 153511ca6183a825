//! Children: a command under a variation of its environment, with its output in files, limits on
//! time and on the output's size. However a child ends, that is a result, not a failure.

use std::ffi::OsString;
use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use halflap_run::process::{Ending, ProcessGroup};

use crate::exit::Failed;
use crate::files::quoted;
use crate::log::{self, LogLevel, LogTopic};
use crate::progress::Notice;

/// The output limit of a child; beyond it, the child is ended.
const MOST_OUTPUT: u64 = 2 << 30;
/// How much of a child's output is read: only the end, if it is longer.
const MOST_READ: u64 = 256 << 20;
const LOOK: Duration = Duration::from_millis(20);
/// How long a terminated child may take to print where it was.
const LAST_WORDS: Duration = Duration::from_secs(3);

/// How a child ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    Code(i32),
    Signal(i32),
    TimedOut,
    TooMuchOutput,
}

impl End {
    pub fn is_good(self) -> bool {
        self == End::Code(0)
    }

    fn of(status: ExitStatus) -> End {
        match (status.code(), status.signal()) {
            (Some(code), _) => End::Code(code),
            (None, signal) => End::Signal(signal.unwrap_or(0)),
        }
    }
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            End::Code(0) => write!(f, "completed"),
            End::Code(code) => write!(f, "ended with code {code}"),
            End::Signal(number) => write!(f, "was ended by {}", signal_name(*number)),
            End::TimedOut => write!(f, "timed out"),
            End::TooMuchOutput => write!(f, "printed more than {} GiB", MOST_OUTPUT >> 30),
        }
    }
}

/// A signal in words.
pub fn signal_name(number: i32) -> String {
    let name = match number {
        4 => "SIGILL (an illegal instruction)",
        6 => "SIGABRT (abort)",
        7 => "SIGBUS (an invalid address)",
        8 => "SIGFPE (an integer division by zero)",
        9 => "SIGKILL (killed from outside, perhaps out of memory)",
        11 => "SIGSEGV (an invalid memory access)",
        15 => "SIGTERM (terminated from outside)",
        _ => return format!("signal {number}"),
    };
    name.to_owned()
}

/// A command and where its output goes.
pub struct ChildTask<'a> {
    pub command: &'a [OsString],
    pub variables: Vec<(&'static str, OsString)>,
    /// Whether our own settings in the environment are hidden from it.
    pub is_ours: bool,
    /// Output goes to out.txt and err.txt here.
    pub folder: PathBuf,
    pub timeout: Duration,
    /// Whether its output is passed on to our standard error.
    pub is_loud: bool,
}

/// The stage that runs and, once it takes seconds, for how long; on a terminal.
struct StageNotice {
    stage: String,
    notice: Notice,
    began: Instant,
    seconds: u64,
}

impl StageNotice {
    fn new(stage: &str) -> StageNotice {
        let notice = Notice::new(&format!("debugging: {stage} ..."));
        StageNotice { stage: stage.to_owned(), notice, began: Instant::now(), seconds: 0 }
    }

    fn go_on(&mut self) {
        let seconds = self.began.elapsed().as_secs();
        if seconds > self.seconds {
            self.seconds = seconds;
            self.notice.show(&format!("debugging: {} ... {seconds} s", self.stage));
        }
    }
}

impl ChildTask<'_> {
    pub fn out(&self) -> PathBuf {
        self.folder.join("out.txt")
    }

    pub fn err(&self) -> PathBuf {
        self.folder.join("err.txt")
    }

    /// Runs it. While it runs, `is_enough` may end it early.
    pub fn run(&self, is_enough: &mut dyn FnMut(&Path) -> bool) -> Result<End, Failed> {
        let cannot = |path: &Path, error: io::Error| {
            Failed::in_file(&path.display().to_string(), format!("cannot be written: {error}"))
        };
        fs::create_dir_all(&self.folder).map_err(|error| cannot(&self.folder, error))?;
        // Several processes append, so that they do not overwrite each other.
        let append = |path: PathBuf| {
            let file = OpenOptions::new().create(true).append(true).open(&path);
            file.map_err(|error| cannot(&path, error))
        };
        let [program, arguments @ ..] = self.command else {
            return Err(Failed::BadInput("there is no command".to_owned()));
        };
        let mut command = Command::new(program);
        command.args(arguments).envs(self.variables.iter().map(|(name, value)| (*name, value)));
        let ours = std::env::vars_os()
            .map(|(name, _)| name)
            .filter(|name| name.to_string_lossy().starts_with("HALFLAP_"));
        ours.filter(|_| self.is_ours).for_each(|name| {
            command.env_remove(name);
        });
        command.stdin(Stdio::null()).stdout(append(self.out())?).stderr(append(self.err())?);
        let failed = |error: io::Error| {
            Failed::in_file(&program.to_string_lossy(), format!("cannot be run: {error}"))
        };
        log::say(LogTopic::Debug, LogLevel::Info, || {
            format!("{}: {}", self.folder.display(), self.words())
        });
        let stage = self
            .folder
            .file_name()
            .map_or(String::new(), |name| name.to_string_lossy().into_owned());
        let mut shown = StageNotice::new(&stage);
        let mut group = ProcessGroup::spawn(&mut command).map_err(failed)?;
        let mut looks = |folder: &Path| {
            shown.go_on();
            is_enough(folder)
        };
        self.watch(&mut group, &mut looks).map_err(failed)
    }

    /// The command as it could be typed.
    fn words(&self) -> String {
        let set = self
            .variables
            .iter()
            .map(|(name, value)| format!("{name}={}", quoted(&value.to_string_lossy())));
        let words = self.command.iter().map(|word| quoted(&word.to_string_lossy()));
        set.chain(words).collect::<Vec<_>>().join(" ")
    }

    fn watch(
        &self,
        group: &mut ProcessGroup,
        is_enough: &mut dyn FnMut(&Path) -> bool,
    ) -> io::Result<End> {
        let began = Instant::now();
        let mut passed = [0; 2];
        loop {
            let status = group.child.try_wait()?;
            group.end_if_interrupted()?;
            if self.is_loud {
                pass_on(&self.out(), &mut passed[0]);
                pass_on(&self.err(), &mut passed[1]);
            }
            if let Some(status) = status {
                // Processes that it left behind are ended.
                group.end(Ending::Kill);
                return Ok(End::of(status));
            }
            let size = |path: PathBuf| fs::metadata(path).map_or(0, |file| file.len());
            if is_enough(&self.folder) {
                return self.finish(group, End::Code(0));
            }
            if began.elapsed() > self.timeout {
                // Python prints its stack when it is aborted.
                group.end(Ending::Abort);
                return self.finish(group, End::TimedOut);
            }
            if size(self.out()) + size(self.err()) > MOST_OUTPUT {
                return self.finish(group, End::TooMuchOutput);
            }
            std::thread::sleep(LOOK);
        }
    }

    fn finish(&self, group: &mut ProcessGroup, end: End) -> io::Result<End> {
        let told = Instant::now();
        while end == End::TimedOut && told.elapsed() < LAST_WORDS && !group.is_gone()? {
            std::thread::sleep(LOOK);
        }
        group.end(Ending::Kill);
        group.child.wait()?;
        Ok(end)
    }
}

/// Prints what was appended to a file since the last time.
fn pass_on(path: &Path, from: &mut u64) {
    let mut new = Vec::new();
    let read = File::open(path).and_then(|mut file| {
        file.seek(SeekFrom::Start(*from))?;
        file.take(MOST_READ).read_to_end(&mut new)
    });
    // If printing fails, the output is still in the file.
    if read.is_ok() && io::stderr().write_all(&new).is_ok() {
        *from += new.len() as u64;
    }
}

/// The text of a file: invalid UTF-8 is replaced, and only the end of a long text is kept.
pub fn text(path: &Path) -> String {
    let read = || -> io::Result<Vec<u8>> {
        let mut file = File::open(path)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(MOST_READ)))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    String::from_utf8_lossy(&read().unwrap_or_default()).into_owned()
}
