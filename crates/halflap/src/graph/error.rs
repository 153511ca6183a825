//! Errors in a program, in the user's terms.

use thiserror::Error;

/// Why a program is refused. Every variant names the operation or buffer at fault.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[allow(missing_docs)]
#[non_exhaustive]
pub enum GraphError {
    #[error("{what} name '{name}' is used twice: each must be unique")]
    NameUsedTwice { what: &'static str, name: String },
    #[error("node '{node}': {field} {value} is {problem}; it must be {right}")]
    BadNumber {
        node: String,
        field: &'static str,
        value: String,
        problem: &'static str,
        right: &'static str,
    },
    #[error("buffer '{buffer}': {field} {value} is {problem}; it must be {right}")]
    BadSize {
        buffer: String,
        field: &'static str,
        value: String,
        problem: &'static str,
        right: &'static str,
    },
    #[error(
        "the sizes of all buffers add up to more than 2^62 bytes (at buffer '{buffer}'): the \
         total overflows"
    )]
    TotalSizeOverflows { buffer: String },
    #[error("the program has {count} {what}: at most {most} are supported")]
    TooMany { count: usize, what: &'static str, most: u32 },
    #[error(
        "node '{node}' needs buffer '{buffer}', which is neither an output of a node nor an input"
    )]
    UnknownBuffer { node: String, buffer: String },
    #[error("node '{node}' has output '{buffer}', which is not among the buffers")]
    UnknownOutput { node: String, buffer: String },
    #[error("buffer '{buffer}' is made by no node: a node must list it among its outputs")]
    NoMaker { buffer: String },
    #[error(
        "buffer '{buffer}' is an output of both '{first}' and '{second}': a buffer has one maker"
    )]
    TwoMakers { buffer: String, first: String, second: String },
    #[error("buffer '{buffer}' has user '{user}', which is not a node")]
    UnknownUser { buffer: String, user: String },
    #[error("node '{node}': process group '{group}' is not among the groups")]
    UnknownGroup { node: String, group: String },
    #[error("process group '{group}' has rank {rank} twice: each of its ranks takes part once")]
    TwiceInGroup { group: String, rank: u32 },
    #[error("process group '{group}' is second_of '{of}', which is not among the groups")]
    UnknownFirst { group: String, of: String },
    #[error(
        "process group '{group}' is second_of '{of}', and {problem}: a second communicator has \
         the ranks of another process group"
    )]
    BadSecond { group: String, of: String, problem: &'static str },
    #[error(
        "node '{node}' needs buffer '{buffer}' with no kind: kinds must hold data, weak, issued \
         or order"
    )]
    NoDepKind { node: String, buffer: String },
    #[error("the dependencies form a cycle: {}; a program has none", abridged(path))]
    Cycle { path: Vec<String> },
    #[error(
        "node '{node}' is listed before '{needs}', whose buffer '{buffer}' it needs: nodes must \
         be in an order that can run"
    )]
    ListedTooEarly { node: String, needs: String, buffer: String },
    #[error(
        "buffer '{buffer}': '{reader}' reads it and is not among its users: every reader keeps it \
         alive"
    )]
    ReaderNotUser { buffer: String, reader: String },
    #[error("buffer '{buffer}': its user '{user}' does not come after its maker '{maker}'")]
    UserBeforeMaker { buffer: String, user: String, maker: String },
    #[error("buffer '{buffer}' is a part of '{of}' (view_of), which is not among the buffers")]
    UnknownView { buffer: String, of: String },
    #[error(
        "buffer '{buffer}' is a part of '{of}' and {problem}: a part takes no memory, and comes \
         with or after the whole"
    )]
    BadView { buffer: String, of: String, problem: &'static str },
    #[error(
        "node '{node}' is of kind '{kind}' and has a collective: only a node of kind 'collective' \
         has one"
    )]
    NotACollective { node: String, kind: &'static str },
    #[error(
        "node '{node}' is of kind 'collective' and has no field 'collective', which says what it \
         does"
    )]
    NoCollective { node: String },
}

/// A path with arrows; a long one without its middle.
fn abridged(path: &[String]) -> String {
    const ENDS: usize = 8;
    if path.len() <= 2 * ENDS {
        return path.join(" -> ");
    }
    let (first, last) = (path[..ENDS].join(" -> "), path[path.len() - ENDS..].join(" -> "));
    format!("{first} -> ... ({} more) ... -> {last}", path.len() - 2 * ENDS)
}
