//! Bytes to a [`Graph`], and to orders of it; whether bytes are an HLO module instead.
//!
//! Graphs are `halflap.graph/1`, JSON, plain or gzipped. A good file takes one typed pass; only a
//! bad one is read again, to say where and what is wrong.

mod diagnose;
mod graph_json;
mod gzip;
mod order_json;

pub(crate) use diagnose::quote_non_finite;
pub(crate) use graph_json::FORMAT as GRAPH_FORMAT;
pub use gzip::unzip;
pub use order_json::{OrderError, read_order, read_orders};

use thiserror::Error;

use crate::graph::{Graph, GraphError};

/// Why bytes are not a program. The message has the position and what was expected; the caller adds
/// the file's name.
#[derive(Debug, Error)]
#[allow(missing_docs)]
#[non_exhaustive]
pub enum ImportError {
    #[error("{0}; a gzip file must be whole")]
    Gzip(String),
    #[error("it unpacks to more than {most} bytes: no real program is that large")]
    TooLarge { most: u64 },
    #[error("not JSON: {message} at line {line} column {column}{inside}")]
    NotJson { line: usize, column: usize, message: String, inside: String },
    #[error(
        "it is neither a {} JSON object nor an HLO module, which begins with \"HloModule\"",
        graph_json::FORMAT
    )]
    Neither,
    #[error("unknown format {found}: 'format' must be \"{}\"", graph_json::FORMAT)]
    UnknownFormat { found: String },
    #[error("{place}: {message}")]
    Field { place: String, message: String },
    #[error(transparent)]
    Graph(#[from] GraphError),
    #[error(
        "it is an HLO module; what is needed here is a graph (halflap.graph/1), which has run times"
    )]
    NotAGraph,
}

/// Whether bytes, or the beginning of a file, hold an HLO module (or something meant to be one) and
/// not a graph.
pub fn is_module(bytes: &[u8]) -> bool {
    let beginning = gzip::beginning(bytes);
    let text = behind_comments(&beginning);
    let starts = [&b"HloModule"[..], b"module @", b"module {", b"#loc"];
    starts.iter().any(|start| text.starts_with(start)) || is_headless(text)
}

/// Whether a text is that of an HLO module without its first line: it begins with a computation.
pub fn is_headless(text: &[u8]) -> bool {
    let text = behind_comments(text);
    let name = text.strip_prefix(b"%").unwrap_or(text);
    let is_name = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'-');
    let (name, rest) =
        name.split_at(name.iter().position(|byte| !is_name(byte)).unwrap_or(name.len()));
    // MLIR begins in the same way.
    match name {
        b"" | b"module" | b"HloModule" => false,
        b"ENTRY" => rest.first().is_some_and(u8::is_ascii_whitespace),
        _ => rest.trim_ascii_start().starts_with(b"{"),
    }
}

/// The text after leading comments and white space.
fn behind_comments(mut text: &[u8]) -> &[u8] {
    loop {
        text = text.trim_ascii_start();
        let end = match text.get(..2) {
            Some(b"//") => text.iter().position(|&byte| byte == b'\n'),
            Some(b"/*") => text.windows(2).position(|pair| pair == b"*/").map(|end| end + 2),
            _ => return text,
        };
        text = &text[end.unwrap_or(text.len())..];
    }
}

/// Reads a `halflap.graph/1` file, plain or gzipped.
pub fn read_graph(bytes: &[u8]) -> Result<Graph, ImportError> {
    let text = unzip(bytes)?;
    if is_module(&text) {
        return Err(ImportError::NotAGraph);
    }
    // If not even the first character is JSON, a JSON error does not help.
    if !matches!(text.trim_ascii_start().first(), Some(b'{' | b'[')) {
        return Err(ImportError::Neither);
    }
    let mut reader = serde_json::Deserializer::from_slice(&text);
    let raw = graph_json::parse(&mut reader).and_then(|raw| reader.end().map(|()| raw));
    let raw = raw.map_err(|error| diagnose::explain(&text, &error))?;
    if raw.format != graph_json::FORMAT {
        return Err(ImportError::UnknownFormat { found: format!("{:?}", raw.format) });
    }
    Ok(Graph::new(graph_json::resolve(raw)?)?)
}
