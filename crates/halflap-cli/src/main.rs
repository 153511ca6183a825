//! The `halflap` command.

use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::from(halflap_cli::main_with(std::env::args_os()))
}
