//! How a command ends: 0 done, 1 what was asked to be checked is wrong or a run did not come to its end, 2 bad input or usage, 3 our
//! own bug.

use std::any::Any;
use std::fmt::Display;
use std::io::Write;

/// Why a command did not do what was asked.
#[derive(Debug)]
pub enum Failed {
    /// The answer is no. Said on standard output, because it is the answer.
    Wrong(String),
    /// The input or the arguments are at fault.
    BadInput(String),
    /// We are.
    OurBug(String),
    /// What was run did not come to its end.
    BrokenRun(String),
    /// Another rank says why, or has said it.
    ToldElsewhere(u8),
    /// Torch is, in a pass that was asked to behave like it.
    TorchDrifts(String),
    /// Whoever read our output went away.
    NobodyReads,
    /// Whoever asked does not want to know any more.
    Stopped,
}

impl Failed {
    /// Bad input in a file.
    pub fn in_file(file: &str, problem: impl Display) -> Failed {
        Failed::BadInput(format!("{file}: {problem}"))
    }

    /// What is said of it, without what comes before and after.
    pub fn problem(&self) -> String {
        match self {
            Failed::Wrong(text)
            | Failed::BadInput(text)
            | Failed::OurBug(text)
            | Failed::BrokenRun(text)
            | Failed::TorchDrifts(text) => text.clone(),
            Failed::ToldElsewhere(_) | Failed::NobodyReads | Failed::Stopped => String::new(),
        }
    }

    /// A broken invariant that came as a panic.
    pub fn from_panic(payload: &(dyn Any + Send)) -> Failed {
        let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
        let text = text.or_else(|| payload.downcast_ref::<String>().cloned());
        Failed::OurBug(text.unwrap_or_else(|| "unknown".to_owned()))
    }

    /// The exit code.
    pub fn code(&self) -> u8 {
        match self {
            Failed::Wrong(_) | Failed::BrokenRun(_) => 1,
            Failed::BadInput(_) => 2,
            Failed::OurBug(_) | Failed::TorchDrifts(_) => 3,
            Failed::ToldElsewhere(code) => *code,
            Failed::NobodyReads => 0,
            Failed::Stopped => 130,
        }
    }

    /// Says it, and gives the exit code.
    pub fn report(self) -> u8 {
        let code = self.code();
        match self {
            Failed::Wrong(answer) => {
                // A reader that is gone does not need the answer; the code has it, too.
                let _ = writeln!(std::io::stdout(), "{answer}");
            }
            Failed::BadInput(problem) => {
                eprintln!("error: {problem}");
            }
            Failed::OurBug(problem) => {
                eprintln!(
                    "internal error: {problem}\nThis is a bug in halflap; the input is not at fault. Please report it with the graph."
                );
            }
            Failed::TorchDrifts(problem) => {
                eprintln!("error: {problem}\nThis is what torch does, too; without --compat it does not happen.");
            }
            Failed::BrokenRun(problem) => {
                eprintln!("error: {problem}");
            }
            Failed::ToldElsewhere(_) | Failed::NobodyReads | Failed::Stopped => {}
        }
        code
    }
}
