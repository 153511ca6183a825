//! `halflap completions`: completion scripts for shells, generated from the arguments.

use std::fmt::Write;

use clap::{Arg, Command};
use halflap::cost::{Device, Link};
use halflap::pass::{Pass, Settings};

use crate::args::{Rewrites, Shell};

/// The script for a shell.
pub fn script(shell: Shell, program: &Command) -> String {
    let commands: Vec<CommandSpec> = program.get_subcommands().map(CommandSpec::of).collect();
    let own = CommandSpec::of(program);
    match shell {
        Shell::Bash => bash(&own, &commands),
        Shell::Zsh => zsh(&own, &commands),
        Shell::Fish => fish(&own, &commands),
    }
}

/// What can be typed after a command.
struct CommandSpec {
    name: String,
    about: String,
    options: Vec<OptionSpec>,
}

/// An option.
struct OptionSpec {
    long: String,
    short: Option<char>,
    about: String,
    value: OptionValue,
}

/// What comes after an option.
enum OptionValue {
    Nothing,
    /// A value that may be left out, and else follows after `=`.
    Perhaps,
    OneOf(Vec<String>),
    /// One of these, or a file.
    OneOfOrFile(Vec<String>),
    Text(String),
}

/// Values that an option is parsed from and clap does not know.
fn known_values(option: &str) -> Option<OptionValue> {
    let owned = |name: &str| name.to_owned();
    Some(match option {
        "device" => OptionValue::OneOfOrFile(Device::NAMES.map(owned).to_vec()),
        "link" => OptionValue::OneOf(Link::names().map(owned).collect()),
        "passes" => OptionValue::OneOf(Pass::ALL.map(|pass| owned(pass.name())).to_vec()),
        "set" => OptionValue::OneOf(Settings::NAMES.map(|name| format!("{name}=")).to_vec()),
        "rewrite" => {
            let all = ["exact", "all", "none"].into_iter().chain(Rewrites::names());
            OptionValue::OneOf(all.map(owned).collect())
        }
        _ => return None,
    })
}

impl CommandSpec {
    fn of(command: &Command) -> CommandSpec {
        let options = command.get_arguments().filter(|arg| !arg.is_hide_set());
        CommandSpec {
            name: command.get_name().to_owned(),
            about: command
                .get_about()
                .map_or(String::new(), |about| first_line(&about.to_string())),
            options: options.filter_map(OptionSpec::of).collect(),
        }
    }
}

impl OptionSpec {
    /// None for what has no name, such as a file.
    fn of(arg: &Arg) -> Option<OptionSpec> {
        Some(OptionSpec {
            long: arg.get_long()?.to_owned(),
            short: arg.get_short(),
            about: arg.get_help().map_or(String::new(), |about| first_line(&about.to_string())),
            value: OptionValue::of(arg),
        })
    }

    /// As it is typed, the long form first.
    fn typed(&self) -> impl Iterator<Item = String> {
        let short = self.short.map(|letter| format!("-{letter}"));
        std::iter::once(format!("--{}", self.long)).chain(short)
    }
}

impl OptionValue {
    fn of(arg: &Arg) -> OptionValue {
        if let Some(known) = arg.get_long().and_then(known_values) {
            return known;
        }
        let count = arg.get_num_args().unwrap_or_default();
        let known: Vec<String> =
            arg.get_possible_values().iter().map(|value| value.get_name().to_owned()).collect();
        match () {
            () if !arg.get_action().takes_values() => OptionValue::Nothing,
            () if count.min_values() == 0 => OptionValue::Perhaps,
            () if !known.is_empty() => OptionValue::OneOf(known),
            () => {
                let name = arg.get_value_names().and_then(|names| names.first());
                OptionValue::Text(name.map_or("VALUE".to_owned(), |name| name.to_string()))
            }
        }
    }
}

/// A word's description in one line: its first sentence or line.
fn first_line(about: &str) -> String {
    let line = about.lines().next().unwrap_or_default();
    let end = line.find(". ").or_else(|| line.find(" [")).unwrap_or(line.len());
    line[..end].trim_end_matches(['.', ';', ':']).to_owned()
}

/// How bash finds out which command it is, and what stands before the word that is completed.
const BASH: &str = r#"_halflap() {
    local current=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]}
    local command= words= word
    if [[ $current == = ]]; then current=
    elif [[ $before == = ]]; then before=${COMP_WORDS[COMP_CWORD-2]}; fi
    for word in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do
        case $word in
            COMMANDS) command=$word; break ;;
        esac
    done
    case $command:$before in
"#;

fn bash(own: &CommandSpec, commands: &[CommandSpec]) -> String {
    let names: Vec<&str> = commands.iter().map(|command| command.name.as_str()).collect();
    let mut text = BASH.replace("COMMANDS", &names.join("|"));
    for command in commands {
        for option in &command.options {
            let name = &command.name;
            let typed: Vec<String> =
                option.typed().map(|typed| format!("{name}:{typed}")).collect();
            let words = match &option.value {
                OptionValue::Nothing | OptionValue::Perhaps => continue,
                OptionValue::OneOf(known) | OptionValue::OneOfOrFile(known) => known.join(" "),
                OptionValue::Text(_) => String::new(),
            };
            // If no word matches, bash completes file names.
            let _ = writeln!(text, "        {}) words='{words}' ;;", typed.join("|"));
        }
    }
    let all =
        |words: &CommandSpec| words.options.iter().flat_map(OptionSpec::typed).collect::<Vec<_>>();
    let _ = writeln!(text, "        :*) words='{} {}' ;;", names.join(" "), all(own).join(" "));
    for command in commands {
        let _ = writeln!(
            text,
            "        {}:*) [[ $current == -* ]] && words='{} --help' ;;",
            command.name,
            all(command).join(" ")
        );
    }
    text.push_str("    esac\n    COMPREPLY=($(compgen -W \"$words\" -- \"$current\"))\n");
    // A value comes right after the name.
    text.push_str("    [[ ${COMPREPLY[0]} == *= ]] && compopt -o nospace 2> /dev/null\n}\n");
    text.push_str("complete -o bashdefault -o default -F _halflap halflap\n");
    text
}

fn zsh(own: &CommandSpec, commands: &[CommandSpec]) -> String {
    let mut text =
        "#compdef halflap\n\n_halflap() {\n    local state line\n    local -a commands=(\n"
            .to_owned();
    for CommandSpec { name, about, .. } in commands {
        let _ = writeln!(text, "        '{name}:{}'", between_quotes(about));
    }
    text.push_str("    )\n    _arguments -C");
    for option in &own.options {
        let _ = write!(text, " {}", zsh_option(option));
    }
    text.push_str(" '1:command:->command' '*::argument:->argument'\n    case $state in\n");
    text.push_str("        command) _describe command commands ;;\n");
    text.push_str("        argument) case $line[1] in\n");
    for command in commands {
        let _ = write!(text, "            {}) _arguments", command.name);
        for option in &command.options {
            let _ = write!(text, " \\\n                {}", zsh_option(option));
        }
        text.push_str(" '*:file:_files' ;;\n");
    }
    text.push_str("        esac ;;\n    esac\n}\n\n");
    text.push_str("if [[ $funcstack[1] == _halflap ]]; then _halflap \"$@\"; ");
    text.push_str("else compdef _halflap halflap; fi\n");
    text
}

fn zsh_option(option: &OptionSpec) -> String {
    let about = between_quotes(&option.about).replace('[', "\\[").replace(']', "\\]");
    let value = match &option.value {
        OptionValue::Nothing => String::new(),
        OptionValue::Perhaps => "::value:_files".to_owned(),
        OptionValue::OneOf(known) => format!(":value:({})", known.join(" ")),
        OptionValue::OneOfOrFile(known) => {
            format!(":value:{{compadd {}; _files}}", known.join(" "))
        }
        OptionValue::Text(name) => format!(":{}:_files", between_quotes(name).replace(':', "\\:")),
    };
    let long = match option.value {
        OptionValue::Nothing => format!("--{}", option.long),
        OptionValue::Perhaps => format!("--{}=-", option.long),
        _ => format!("--{}=", option.long),
    };
    match option.short {
        None => format!("'{long}[{about}]{value}'"),
        Some(short) => {
            let both = format!("(-{short} --{})", option.long);
            let after = if matches!(option.value, OptionValue::Nothing) { "" } else { "+" };
            format!("'{both}'{{-{short}{after},{long}}}'[{about}]{value}'")
        }
    }
}

fn fish(own: &CommandSpec, commands: &[CommandSpec]) -> String {
    let mut text = String::new();
    for CommandSpec { name, about, .. } in commands {
        let _ = writeln!(
            text,
            "complete -c halflap -n __fish_use_subcommand -f -a {name} -d '{}'",
            between_quotes(about)
        );
    }
    for option in &own.options {
        let _ = writeln!(text, "complete -c halflap{}", fish_option(option));
    }
    for CommandSpec { name, options, .. } in commands {
        for option in options {
            let of = format!("-n '__fish_seen_subcommand_from {name}'");
            let _ = writeln!(text, "complete -c halflap {of}{}", fish_option(option));
        }
    }
    text
}

fn fish_option(option: &OptionSpec) -> String {
    let short = option.short.map_or(String::new(), |letter| format!(" -s {letter}"));
    let value = match &option.value {
        OptionValue::Nothing | OptionValue::Perhaps => String::new(),
        OptionValue::OneOf(known) => format!(" -x -a '{}'", known.join(" ")),
        OptionValue::OneOfOrFile(known) => format!(" -r -a '{}'", known.join(" ")),
        OptionValue::Text(_) => " -r".to_owned(),
    };
    format!(" -l {}{short}{value} -d '{}'", option.long, between_quotes(&option.about))
}

/// Text between single quotes, in all three shells.
fn between_quotes(text: &str) -> String {
    text.replace('\\', "").replace('\'', "\u{2019}")
}

#[cfg(test)]
mod tests {
    use std::process::Command as Process;

    use clap::CommandFactory;

    use super::*;
    use crate::args::Args;

    /// What bash offers after these words.
    fn offered(words: &[&str]) -> Vec<String> {
        let typed: Vec<String> = words.iter().map(|word| format!("'{word}'")).collect();
        let asked = format!(
            "{}\nCOMP_WORDS=({}); COMP_CWORD={}\n_halflap; printf '%s\\n' \"${{COMPREPLY[@]}}\"",
            script(Shell::Bash, &Args::command()),
            typed.join(" "),
            words.len() - 1
        );
        let done = Process::new("bash").args(["-c", &asked]).output().expect("bash runs");
        assert_eq!(String::from_utf8_lossy(&done.stderr), "", "{words:?}");
        let lines = String::from_utf8(done.stdout).expect("it prints text");
        lines.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect()
    }

    #[test]
    fn bash_completes_commands_options_and_values() {
        assert_eq!(offered(&["halflap", "sc"]), ["schedule"]);
        assert_eq!(offered(&["halflap", "-v", "what"]), ["what-if"]);
        assert_eq!(offered(&["halflap", "schedule", "--memory-b"]), ["--memory-budget"]);
        assert_eq!(offered(&["halflap", "schedule", "g.json", "--effort", "t"]), ["thorough"]);
        assert_eq!(offered(&["halflap", "schedule", "--effort", "=", "q"]), ["quick"]);
        assert_eq!(offered(&["halflap", "completions", "--"]), ["--help"]);
        assert_eq!(offered(&["halflap", "schedule", "--device", "mi35"]), ["mi350x", "mi355x"]);
        assert_eq!(offered(&["halflap", "explain", "--link", "netw"]), ["network"]);
        assert_eq!(
            offered(&["halflap", "schedule", "--passes", "sink_waits_"]),
            ["sink_waits_iterative"]
        );
        assert_eq!(offered(&["halflap", "schedule", "--rewrite", "ex"]), ["exact"]);
        let setting = offered(&["halflap", "schedule", "--set", "reorder_iterative_debug_m"]);
        assert!(setting.iter().all(|name| name.ends_with('=')) && !setting.is_empty());
        // Names of files are bash's own to complete.
        assert!(offered(&["halflap", "schedule", "g"]).is_empty());
        assert!(offered(&["halflap", "schedule", "--profile", "g"]).is_empty());
        // What a command has not is not offered, nor what is for tests alone.
        assert!(offered(&["halflap", "align", "--effort"]).is_empty());
        assert!(offered(&["halflap", "run", "--inj"]).is_empty());
    }

    #[test]
    fn every_shell_knows_every_option() {
        let program = Args::command();
        let scripts = [Shell::Bash, Shell::Zsh, Shell::Fish].map(|shell| script(shell, &program));
        for command in program.get_subcommands() {
            for option in command.get_opts().filter(|option| !option.is_hide_set()) {
                let long = option.get_long().expect("every option has a long name");
                for (text, before) in scripts.iter().zip(["--", "--", "-l "]) {
                    let of: Vec<&str> = text
                        .lines()
                        .filter(|line| line.contains(&format!("{before}{long}")))
                        .collect();
                    assert!(!of.is_empty(), "{} {long}", command.get_name());
                }
            }
            assert!(scripts.iter().all(|text| text.contains(command.get_name())));
        }
        // A quote that is not closed would end a script early.
        for text in &scripts[1..] {
            let lines = text.lines().filter(|line| line.contains("[") || line.contains("-d "));
            for line in lines {
                assert_eq!(line.matches('\'').count() % 2, 0, "{line}");
            }
        }
    }
}
