//! The kind of a file, to name the command that it is for.

use std::io::Read;

use flate2::read::MultiGzDecoder;
use halflap::import;

/// How much of a file is examined.
const START: u64 = 1 << 16;

/// Kinds of files that commands read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    Graph,
    Module,
    Trace,
    Schedule,
    Profile,
    Step,
}

/// The formats that say what they are.
const FORMATS: [(&str, FileKind); 4] = [
    ("halflap.graph/1", FileKind::Graph),
    ("halflap.schedule/1", FileKind::Schedule),
    ("halflap.profile/1", FileKind::Profile),
    ("halflap.timeline/1", FileKind::Step),
];

impl FileKind {
    /// What bytes are, to judge by their beginning.
    pub fn of(bytes: &[u8]) -> Option<FileKind> {
        let start = start_of(bytes);
        if import::is_module(&start) {
            return Some(FileKind::Module);
        }
        let text = String::from_utf8_lossy(&start);
        if let Some(format) = format_of(&text) {
            return FORMATS.iter().find(|(name, _)| *name == format).map(|(_, kind)| *kind);
        }
        let is_list = text.trim_start().starts_with('[') && text.contains("\"ph\"");
        (is_list || text.contains("\"traceEvents\"")).then_some(FileKind::Trace)
    }

    /// The error if another kind is expected, with the command that reads this one.
    pub fn instead(self) -> &'static str {
        match self {
            FileKind::Graph => {
                "it is a graph (halflap.graph/1): halflap schedule and halflap explain read it"
            }
            FileKind::Module => "it is an HLO module: halflap schedule and halflap run read it",
            FileKind::Trace => "it is a profiler's trace: halflap analyze reads it",
            FileKind::Schedule => {
                "it is a schedule (halflap.schedule/1): halflap explain GRAPH SCHEDULE reads it"
            }
            FileKind::Profile => {
                "it is a profile (halflap.profile/1): give it to halflap schedule GRAPH --profile"
            }
            FileKind::Step => {
                "it is a measured step (halflap.timeline/1): halflap timeline reads it"
            }
        }
    }
}

/// The problem with bytes that are not of the kind that was expected.
pub fn problem(bytes: &[u8], expected: FileKind, error: &dyn std::fmt::Display) -> String {
    match FileKind::of(bytes).filter(|kind| *kind != expected) {
        Some(kind) => kind.instead().to_owned(),
        None => error.to_string(),
    }
}

/// The beginning, unpacked. Damage further on is reported elsewhere.
fn start_of(bytes: &[u8]) -> Vec<u8> {
    let mut start = Vec::new();
    let _ = match bytes.starts_with(&[0x1f, 0x8b]) {
        true => MultiGzDecoder::new(bytes).take(START).read_to_end(&mut start),
        false => bytes.take(START).read_to_end(&mut start),
    };
    start
}

/// The value of the first field of that name.
fn format_of(text: &str) -> Option<&str> {
    let value = text.split_once("\"format\"")?.1.trim_start().strip_prefix(':')?;
    value.trim_start().strip_prefix('"')?.split('"').next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_known_by_their_beginning() {
        let of = |text: &str| FileKind::of(text.as_bytes());
        assert_eq!(of(r#"{ "format" : "halflap.graph/1", "nodes": []"#), Some(FileKind::Graph));
        assert_eq!(of(r#"{"schemaVersion": 1, "traceEvents": ["#), Some(FileKind::Trace));
        assert_eq!(of(r#" [{"ph": "X"}]"#), Some(FileKind::Trace));
        assert_eq!(of("HloModule m\n"), Some(FileKind::Module));
        assert_eq!(of(r#"["a", "b"]"#), None);
        assert_eq!(of(r#"{"format": "other/1"}"#), None);
        assert_eq!(of(""), None);
    }
}
