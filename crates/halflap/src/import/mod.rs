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
    #[error("it is neither a {} JSON object nor an HLO module, which begins with \"HloModule\"", graph_json::FORMAT)]
    Neither,
    #[error("unknown format {found}: 'format' must be \"{}\"", graph_json::FORMAT)]
    UnknownFormat { found: String },
    #[error("{place}: {message}")]
    Field { place: String, message: String },
    #[error(transparent)]
    Graph(#[from] GraphError),
    #[error("it is an HLO module; what is needed here is a graph (halflap.graph/1), which has run times")]
    NotAGraph,
}

/// Whether bytes, or their beginning, hold an HLO module (or what was meant to be one), and no graph.
pub fn is_module(bytes: &[u8]) -> bool {
    let mut text = gzip::beginning(bytes);
    loop {
        text = text.trim_ascii_start().to_vec();
        // Comments may come first.
        let end = match text.get(..2) {
            Some(b"//") => text.iter().position(|&byte| byte == b'\n'),
            Some(b"/*") => text.windows(2).position(|pair| pair == b"*/").map(|end| end + 2),
            _ => break,
        };
        text = text.split_off(end.unwrap_or(text.len()));
    }
    [&b"HloModule"[..], b"module @", b"module {", b"#loc"].iter().any(|start| text.starts_with(start))
}

/// Reads a `halflap.graph/1` file, plain or gzipped.
pub fn read_graph(bytes: &[u8]) -> Result<Graph, ImportError> {
    let text = unzip(bytes)?;
    if is_module(&text) {
        return Err(ImportError::NotAGraph);
    }
    // If not even the first character is JSON, a JSON error is not helpful.
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
