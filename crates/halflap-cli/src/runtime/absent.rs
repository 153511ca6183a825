//! Stands in for the runtime where halflap is built without it.

use std::str::FromStr;

/// Why a command does not work.
pub const ABSENT: &str = "built without the runtime; install with default features";

/// Without the runtime, no fault can be injected.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fault {}

impl FromStr for Fault {
    type Err = &'static str;

    fn from_str(_: &str) -> Result<Fault, &'static str> {
        Err(ABSENT)
    }
}

/// Without the runtime, no link is emulated.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum EmulatedLink {}

impl FromStr for EmulatedLink {
    type Err = &'static str;

    fn from_str(_: &str) -> Result<EmulatedLink, &'static str> {
        Err(ABSENT)
    }
}

/// Ctrl-C ends the process at once: only the runtime may contain the unsafe code of a handler.
pub mod interrupt {
    pub struct Listening;

    impl Listening {
        pub fn start() -> Listening {
            Listening
        }
    }

    pub fn is_asked() -> bool {
        false
    }
}
