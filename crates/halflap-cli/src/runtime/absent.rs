//! Stands in for the runtime where halflap is built without it.

use std::str::FromStr;

/// Why a command does not work.
pub const ABSENT: &str = "built without the runtime; install with default features";

/// There is nothing to inject a fault into.
#[derive(Clone, Copy, Debug)]
pub enum Fault {}

impl FromStr for Fault {
    type Err = &'static str;

    fn from_str(_: &str) -> Result<Fault, &'static str> {
        Err(ABSENT)
    }
}

/// There is nothing to be sent over a link.
#[derive(Clone, Copy, Debug)]
pub enum EmulatedLink {}

impl FromStr for EmulatedLink {
    type Err = &'static str;

    fn from_str(_: &str) -> Result<EmulatedLink, &'static str> {
        Err(ABSENT)
    }
}

/// Ctrl-C ends the process at once: only the runtime may have the unsafe code of a handler.
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
