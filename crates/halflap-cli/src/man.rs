//! `halflap man`: the manual page, generated from the arguments.

use std::fmt::Write;

use clap::{Arg, Command};

/// Exit codes, as docs/command.md has them.
const EXIT: [(&str, &str); 6] = [
    ("0", "Success; debug and diff found nothing."),
    ("1", "A check failed, a run did not complete, or debug or diff found something."),
    ("2", "Bad input or usage; the message names the place."),
    ("3", "A bug in halflap, or a ledger mismatch that --check-memory found."),
    (
        "4",
        "Ctrl-C ended the search of schedule, and the best order so far was written; or a \
         custom call ended a run.",
    ),
    ("130", "Ctrl-C ended any other command."),
];

/// The page, for man(1).
pub fn page(program: &Command) -> String {
    let version = program.get_version().unwrap_or_default();
    let about = program.get_about().map_or(String::new(), |about| about.to_string());
    let mut text = format!(".TH HALFLAP 1 \"\" \"halflap {version}\"\n.SH NAME\n");
    let _ = writeln!(text, "halflap \\- {}", roff(about.trim_end_matches('.')));
    text.push_str(".SH SYNOPSIS\n\\fBhalflap\\fR \\fICOMMAND\\fR [\\fIOPTIONS\\fR]\n");
    text.push_str(".SH OPTIONS\n");
    program.get_arguments().for_each(|arg| option(arg, &mut text));
    text.push_str(".SH COMMANDS\n");
    for command in program.get_subcommands().filter(|command| !command.is_hide_set()) {
        described(command, &mut text);
    }
    text.push_str(".SH EXIT STATUS\n");
    for (code, meaning) in EXIT {
        let _ = writeln!(text, ".TP\n\\fB{code}\\fR\n{}", roff(meaning));
    }
    text.push_str(".SH ENVIRONMENT\n");
    for (variable, of) in variables(program) {
        let _ = writeln!(text, ".TP\n\\fB{}\\fR\n{}", roff(&variable), roff(&of));
    }
    text
}

fn described(command: &Command, text: &mut String) {
    let name = command.get_name();
    let _ = writeln!(text, ".SS halflap {}", roff(name));
    let about = command.get_about().map_or(String::new(), |about| about.to_string());
    let _ = writeln!(text, "{}.", roff(about.trim_end_matches('.')));
    let arguments = || command.get_arguments().filter(|arg| !arg.is_hide_set());
    arguments().filter(|arg| arg.is_positional()).for_each(|arg| option(arg, text));
    let mut headings: Vec<Option<&str>> = Vec::new();
    for arg in arguments().filter(|arg| !arg.is_positional()) {
        if !headings.contains(&arg.get_help_heading()) {
            headings.push(arg.get_help_heading());
        }
    }
    for heading in headings {
        if let Some(heading) = heading {
            let _ = writeln!(text, ".PP\n{}:", roff(heading));
        }
        let of = arguments().filter(|arg| !arg.is_positional());
        of.filter(|arg| arg.get_help_heading() == heading).for_each(|arg| option(arg, text));
    }
}

/// An option or an argument, and what it means.
fn option(arg: &Arg, text: &mut String) {
    let names = arg.get_short().map(|letter| format!("-{letter}"));
    let names = names.into_iter().chain(arg.get_long().map(|long| format!("--{long}")));
    let names: Vec<String> = names.map(|name| format!("\\fB{}\\fR", roff(&name))).collect();
    let values: Vec<String> = match arg.get_action().takes_values() {
        true => {
            arg.get_value_names().unwrap_or_default().iter().map(|name| name.to_string()).collect()
        }
        false => Vec::new(),
    };
    let values: Vec<String> = values.iter().map(|name| format!("\\fI{}\\fR", roff(name))).collect();
    let head: Vec<String> =
        [names.join(", "), values.join(" ")].into_iter().filter(|part| !part.is_empty()).collect();
    let help =
        arg.get_long_help().or(arg.get_help()).map_or(String::new(), |help| help.to_string());
    let help = help.replace('\n', " ");
    let _ = writeln!(text, ".TP\n{}\n{}.", head.join(" "), roff(help.trim_end_matches('.')));
    let known = arg.get_possible_values();
    if arg.get_action().takes_values() && !known.is_empty() {
        let known: Vec<&str> = known.iter().map(|value| value.get_name()).collect();
        let _ = writeln!(text, "One of {}.", roff(&known.join(", ")));
    }
}

/// The variables that options are read from, and which these are.
fn variables(program: &Command) -> Vec<(String, String)> {
    let mut found: Vec<(String, String)> = Vec::new();
    for command in program.get_subcommands() {
        for arg in command.get_arguments() {
            let (Some(variable), Some(long)) = (arg.get_env(), arg.get_long()) else { continue };
            let variable = variable.to_string_lossy().into_owned();
            if !found.iter().any(|(name, _)| *name == variable) {
                found.push((variable, format!("As --{long}.")));
            }
        }
    }
    found
}

/// Text escaped for roff.
fn roff(text: &str) -> String {
    let plain = text.replace('\\', "\\e").replace('-', "\\-");
    if plain.starts_with(['.', '\'']) { format!("\\&{plain}") } else { plain }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::args::Args;

    #[test]
    fn the_page_has_everything_that_can_be_typed() {
        let program = Args::command();
        let text = page(&program);
        for command in program.get_subcommands() {
            let start = text.find(&format!(".SS halflap {}\n", roff(command.get_name())));
            let of = &text[start.expect("every command has a section")..];
            let of = &of[..of[3..].find("\n.S").map_or(of.len(), |end| end + 3)];
            for option in command.get_opts() {
                let long = roff(&format!("--{}", option.get_long().unwrap_or_default()));
                let is_there = of.contains(&format!("\\fB{long}\\fR"));
                assert_eq!(is_there, !option.is_hide_set(), "{} {long}", command.get_name());
            }
        }
        assert!(text.contains(".SH EXIT STATUS\n.TP\n\\fB0\\fR\n") && text.contains("\\fB130\\fR"));
        assert!(text.contains("\\fBHALFLAP_ARTIFACTS\\fR\nAs \\-\\-artifacts.\n"), "{text}");
        // A line that begins with a dot is a request: all of them must be known to man.
        let known = [".TH", ".SH", ".SS", ".TP", ".PP"];
        for line in text.lines().filter(|line| line.starts_with(['.', '\''])) {
            assert!(known.iter().any(|request| line.starts_with(request)), "{line}");
        }
    }
}
