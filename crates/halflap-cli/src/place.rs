//! Where requests read and write: files, or the memory of the program that asks.

use std::sync::{Arc, Mutex, PoisonError};

use crate::exit::Failed;

/// What a request reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// A file, or standard input for `-`.
    File(String),
    /// Data in memory, with a name for messages.
    Memory {
        /// The name.
        name: String,
        /// The content.
        bytes: Arc<[u8]>,
    },
}

impl Input {
    /// What messages call it.
    pub fn name(&self) -> &str {
        match self {
            Input::File(path) => name_of(path),
            Input::Memory { name, .. } => name,
        }
    }

    /// The file, if it is one; `-` is standard input.
    pub fn path(&self) -> Option<&str> {
        match self {
            Input::File(path) => Some(path),
            Input::Memory { .. } => None,
        }
    }

    /// Whether it is standard input.
    pub fn is_stdin(&self) -> bool {
        self.path() == Some("-")
    }
}

/// What messages call a file.
pub(crate) fn name_of(path: &str) -> &str {
    if path == "-" { "standard input" } else { path }
}

impl From<String> for Input {
    fn from(path: String) -> Input {
        Input::File(path)
    }
}

impl From<&str> for Input {
    fn from(path: &str) -> Input {
        Input::File(path.to_owned())
    }
}

/// An error if two inputs are standard input.
pub(crate) fn refuse_both_stdin(
    first: &Input,
    second: Option<&Input>,
    names: &str,
) -> Result<(), Failed> {
    match first.is_stdin() && second.is_some_and(Input::is_stdin) {
        true => Err(Failed::BadInput(format!("only one of {names} can come from standard input"))),
        false => Ok(()),
    }
}

/// Where a request writes.
#[derive(Clone, Debug)]
pub enum Output {
    /// A file, or standard output for `-`.
    File(String),
    /// Memory of the embedding program.
    Memory(Arc<Mutex<Vec<u8>>>),
}

impl Output {
    /// Empty memory.
    pub fn memory() -> Output {
        Output::Memory(Arc::default())
    }

    /// What is printed.
    pub(crate) fn stdout() -> Output {
        Output::File("-".to_owned())
    }

    /// The file, if it is one; `-` is standard output.
    pub fn path(&self) -> Option<&str> {
        match self {
            Output::File(path) => Some(path),
            Output::Memory(_) => None,
        }
    }

    /// What was written to memory.
    pub fn taken(&self) -> Vec<u8> {
        match self {
            Output::File(_) => Vec::new(),
            Output::Memory(bytes) => {
                std::mem::take(&mut *bytes.lock().unwrap_or_else(PoisonError::into_inner))
            }
        }
    }
}

impl From<String> for Output {
    fn from(path: String) -> Output {
        Output::File(path)
    }
}
