//! Why a file could not be read; runs only after reading failed.
//!
//! The text is read again, and the path into it is tracked, so that the message can name the node
//! at fault and not just the byte.

use std::borrow::Cow;

use serde_json::Value;
use serde_path_to_error::Segment;

use super::ImportError;
use super::graph_json::{self, FORMAT};

/// Says where in `text` the reader failed, and why.
pub(super) fn explain(text: &[u8], error: &serde_json::Error) -> ImportError {
    let readable = quote_non_finite(text);
    let was_non_finite = matches!(readable, Cow::Owned(_));
    let value: Option<Value> = serde_json::from_slice(&readable).ok();
    if let Some(value) = &value
        && let Some(found) = other_format(value)
    {
        return ImportError::UnknownFormat { found };
    }
    let mut reader = serde_json::Deserializer::from_slice(&readable);
    let mut track = serde_path_to_error::Track::new();
    let typed =
        graph_json::parse(serde_path_to_error::Deserializer::new(&mut reader, &mut track)).err();
    let message = strip_position(typed.as_ref().unwrap_or(error));
    let place = typed.and_then(|_| place(&track.path(), value.as_ref()));
    // NaN, which is not JSON, has been read as a string, so that the error can name the node and
    // field.
    let non_finite = was_non_finite && message.contains("expected a number");
    if !non_finite && (error.is_syntax() || error.is_eof()) {
        return ImportError::NotJson {
            line: error.line(),
            column: error.column(),
            message: strip_position(error),
            inside: place.map_or(String::new(), |place| format!(" (in {place})")),
        };
    }
    let message = match non_finite {
        true => "is not finite; it must be a number".to_owned(),
        false => message.replace("expected u32", "expected an integer from 0 to 4294967295"),
    };
    ImportError::Field { place: place.unwrap_or_else(|| "the file".to_owned()), message }
}

/// The format that the file says it has, if that is not ours.
fn other_format(value: &Value) -> Option<String> {
    let object = value.as_object()?;
    match object.get("format") {
        Some(Value::String(format)) if format == FORMAT => None,
        Some(found) => Some(found.to_string()),
        None => Some("(no field 'format')".to_owned()),
    }
}

/// `node 'op3', field 'deps[0].kinds'`.
fn place(path: &serde_path_to_error::Path, value: Option<&Value>) -> Option<String> {
    let mut segments = path.iter();
    let Some(Segment::Map { key: table }) = segments.next() else { return None };
    let Some(Segment::Seq { index }) = segments.next() else {
        return Some(format!("field '{path}'"));
    };
    let what = match table.as_str() {
        "nodes" => "node",
        "buffers" => "buffer",
        "inputs" => "input",
        _ => return Some(format!("field '{path}'")),
    };
    let name = value.and_then(|value| value.get(table)?.get(index)?.get("name")?.as_str());
    let entry = name.map_or(format!("{what} {index}"), |name| format!("{what} '{name}'"));
    let whole = path.to_string();
    let field =
        whole.strip_prefix(&format!("{table}[{index}]")).unwrap_or("").trim_start_matches('.');
    Some(if field.is_empty() || field == "?" { entry } else { format!("{entry}, field '{field}'") })
}

/// serde's message without the position in the text, which is given elsewhere or not useful.
fn strip_position(error: &serde_json::Error) -> String {
    let message = error.to_string();
    match message.rfind(" at line ") {
        Some(end) => message[..end].to_owned(),
        None => message,
    }
}

/// Python writes `NaN` and `Infinity`, which are not JSON. They are read as strings, so that the
/// error can name the node.
pub(crate) fn quote_non_finite(text: &[u8]) -> Cow<'_, [u8]> {
    const TOKENS: [&[u8]; 3] = [b"-Infinity", b"Infinity", b"NaN"];
    let mut quoted: Option<Vec<u8>> = None;
    let (mut at, mut in_string) = (0, false);
    while at < text.len() {
        let token = TOKENS.iter().find(|token| !in_string && text[at..].starts_with(token));
        let step = match (text[at], token) {
            (_, Some(token)) => {
                let out = quoted.get_or_insert_with(|| text[..at].to_vec());
                out.push(b'"');
                out.extend_from_slice(token);
                out.push(b'"');
                at += token.len();
                continue;
            }
            (b'\\', None) if in_string => 2.min(text.len() - at),
            (b'"', None) => {
                in_string = !in_string;
                1
            }
            _ => 1,
        };
        if let Some(out) = &mut quoted {
            out.extend_from_slice(&text[at..at + step]);
        }
        at += step;
    }
    quoted.map_or(Cow::Borrowed(text), Cow::Owned)
}
