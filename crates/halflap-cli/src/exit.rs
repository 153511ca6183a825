//! How a command ends: 0 done, 1 a check failed or a run did not complete, 2 bad input or usage, 3
//! a bug in halflap, 4 a search was interrupted and its best order so far was written, 5 two
//! modules are not proved to be the same but their runs agree, or the runs took too long.

use std::any::Any;
use std::fmt::Display;
use std::io::Write;

/// Why a command failed.
#[derive(Debug)]
pub enum Failed {
    /// The answer is no. Printed on standard output, because it is the answer.
    Wrong(String),
    /// The answer is neither yes nor no: nothing is proved, but the runs agree, or they took too
    /// long. Printed like an answer.
    OnlyRan(String),
    /// Bad input or usage.
    BadInput(String),
    /// Nothing was found within the memory limit, which is bad input, too.
    NothingFits(String),
    /// Our own bug.
    OurBug(String),
    /// What was run did not complete.
    BrokenRun(String),
    /// Another rank reports why.
    ToldElsewhere(u8),
    /// Torch's bug, in a pass that reproduces it.
    TorchDrifts(String),
    /// The reader of our output is gone.
    NobodyReads,
    /// The caller interrupted the command.
    Stopped,
    /// The user interrupted a search; the best order so far was written.
    Interrupted,
}

impl Failed {
    /// Bad input in a file.
    pub fn in_file(file: &str, problem: impl Display) -> Failed {
        Failed::BadInput(format!("{file}: {problem}"))
    }

    /// Whether the input is at fault.
    pub fn is_bad_input(&self) -> bool {
        matches!(self, Failed::BadInput(_) | Failed::NothingFits(_))
    }

    /// The message, without prefix and suffix.
    pub fn problem(&self) -> String {
        match self {
            Failed::Wrong(text)
            | Failed::OnlyRan(text)
            | Failed::BadInput(text)
            | Failed::NothingFits(text)
            | Failed::OurBug(text)
            | Failed::BrokenRun(text)
            | Failed::TorchDrifts(text) => text.clone(),
            Failed::ToldElsewhere(_)
            | Failed::NobodyReads
            | Failed::Stopped
            | Failed::Interrupted => String::new(),
        }
    }

    /// A broken invariant, reported by a panic.
    pub fn from_panic(payload: &(dyn Any + Send)) -> Failed {
        let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
        let text = text.or_else(|| payload.downcast_ref::<String>().cloned());
        Failed::OurBug(text.unwrap_or_else(|| "unknown".to_owned()))
    }

    /// The exit code.
    pub fn code(&self) -> u8 {
        match self {
            Failed::Wrong(_) | Failed::BrokenRun(_) => 1,
            Failed::BadInput(_) | Failed::NothingFits(_) => 2,
            Failed::OurBug(_) | Failed::TorchDrifts(_) => 3,
            Failed::ToldElsewhere(code) => *code,
            Failed::NobodyReads => 0,
            Failed::Stopped => 130,
            Failed::Interrupted => 4,
            Failed::OnlyRan(_) => 5,
        }
    }

    /// Prints it, and returns the exit code.
    pub fn report(self) -> u8 {
        let code = self.code();
        match self {
            Failed::Wrong(answer) | Failed::OnlyRan(answer) => {
                // If the reader is gone, the exit code still has the answer.
                let _ = writeln!(std::io::stdout(), "{answer}");
            }
            Failed::BadInput(problem) | Failed::NothingFits(problem) => {
                eprintln!("error: {problem}");
            }
            Failed::OurBug(problem) => {
                eprintln!(
                    "internal error: {problem}\nThis is a bug in halflap; the input is not at \
                     fault. Please report it with the graph."
                );
            }
            Failed::TorchDrifts(problem) => {
                eprintln!(
                    "error: {problem}\nThis is what torch does, too; without --compat it does not \
                     happen."
                );
            }
            Failed::BrokenRun(problem) => {
                eprintln!("error: {problem}");
            }
            Failed::Interrupted => {
                eprintln!("interrupted: this is the best order so far, proved like any other")
            }
            Failed::ToldElsewhere(_) | Failed::NobodyReads | Failed::Stopped => {}
        }
        code
    }
}

/// What runs of two modules have shown.
pub struct RunsCompared {
    pub said: String,
    /// Whether all that were asked for fitted into the time.
    pub is_complete: bool,
}
