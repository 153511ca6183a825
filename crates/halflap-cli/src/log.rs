//! Logging to standard error: `-v` for all parts, or by part with
//! `HALFLAP_LOG=search=debug,exec=trace`.

use std::sync::OnceLock;

use crate::exit::Failed;

/// The part that a message comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogTopic {
    /// Reading programs, finding and proving orders.
    Search,
    /// Plans of modules.
    Plan,
    /// Running modules.
    Exec,
    /// Walking the debugging guide.
    Debug,
}

const PARTS: [(&str, LogTopic); 4] = [
    ("search", LogTopic::Search),
    ("plan", LogTopic::Plan),
    ("exec", LogTopic::Exec),
    ("debug", LogTopic::Debug),
];

/// The log level.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum LogLevel {
    Off,
    Info,
    Debug,
    Trace,
}

const LEVELS: [(&str, LogLevel); 4] = [
    ("off", LogLevel::Off),
    ("info", LogLevel::Info),
    ("debug", LogLevel::Debug),
    ("trace", LogLevel::Trace),
];

static LEVEL_OF: OnceLock<[LogLevel; PARTS.len()]> = OnceLock::new();

/// Sets the levels once.
pub fn start(is_verbose: bool) -> Result<(), Failed> {
    let asked = std::env::var("HALFLAP_LOG").unwrap_or_default();
    let least = if is_verbose { LogLevel::Info } else { LogLevel::Off };
    let levels = levels(&asked, least)
        .map_err(|problem| Failed::BadInput(format!("HALFLAP_LOG: {problem}")))?;
    // If a process runs the command twice, the first setting stays.
    let _ = LEVEL_OF.set(levels);
    Ok(())
}

/// `debug` for all parts, or `search=debug,exec=trace`; parts that are not named log the least.
fn levels(asked: &str, least: LogLevel) -> Result<[LogLevel; PARTS.len()], String> {
    let mut levels = [least; PARTS.len()];
    for word in asked.split(',').map(str::trim).filter(|word| !word.is_empty()) {
        let (part, level) = word
            .split_once('=')
            .map_or((None, word), |(part, level)| (Some(part.trim()), level.trim()));
        let level = LEVELS.iter().find(|(name, _)| *name == level).map(|(_, level)| *level);
        let level =
            level.ok_or_else(|| format!("'{word}': a level is off, info, debug or trace"))?;
        match part {
            None => levels.fill(level),
            Some(part) => {
                let place = PARTS.iter().position(|(name, _)| *name == part);
                levels[place
                    .ok_or_else(|| format!("'{word}': a part is search, plan, exec or debug"))?] =
                    level;
            }
        }
    }
    Ok(levels)
}

/// Whether a part logs at this level.
pub fn takes(part: LogTopic, level: LogLevel) -> bool {
    let place = PARTS.iter().position(|(_, other)| *other == part);
    LEVEL_OF.get().zip(place).is_some_and(|(levels, place)| level <= levels[place])
}

/// Logs a message, if its part is at this level.
pub fn say(part: LogTopic, level: LogLevel, text: impl FnOnce() -> String) {
    if takes(part, level) {
        let name = PARTS.iter().find(|(_, other)| *other == part).map_or("", |(name, _)| name);
        eprintln!("{name}: {}", text());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_have_levels_of_their_own() {
        let all = levels("search=debug, exec=trace", LogLevel::Info).unwrap();
        assert_eq!(all, [LogLevel::Debug, LogLevel::Info, LogLevel::Trace, LogLevel::Info]);
        assert_eq!(levels("debug", LogLevel::Off).unwrap(), [LogLevel::Debug; 4]);
        assert!(levels("serach=debug", LogLevel::Off).unwrap_err().contains("a part is"));
        assert!(levels("search=loud", LogLevel::Off).unwrap_err().contains("a level is"));
    }
}
