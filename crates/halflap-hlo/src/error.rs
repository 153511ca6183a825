//! What can be wrong with an HLO module, and where.

use std::fmt;

use halflap::import::ImportError;
use thiserror::Error;

use super::types::Mismatch;

/// Why a text is not a module: the place, the line, and what was expected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HloError {
    /// Counted from 1.
    pub line: usize,
    /// In characters, counted from 1.
    pub column: usize,
    /// The line, or the part of it near the place.
    pub shown: String,
    /// Where in `shown` the place is, in characters.
    pub mark: u32,
    /// What is wrong.
    pub problem: Problem,
    /// The byte of the text.
    pub(super) at: u32,
}

/// What is wrong at a place.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[allow(missing_docs)]
pub enum Problem {
    #[error("expected {0}")]
    Expected(&'static str),
    #[error("a closing '{expected}' must come before this bracket")]
    WrongBracket { expected: char },
    #[error("the bracket opened here is not closed before the text ends")]
    NotClosed,
    #[error("the string that starts here has no end")]
    StringNotClosed,
    #[error("the number is too large: it overflows")]
    NumberTooLarge,
    #[error("tuples are nested more than {most} deep")]
    TooDeep { most: usize },
    #[error("the text has {size} bytes: at most 4294967295 are supported")]
    TooLarge { size: usize },
    #[error("the text is not UTF-8")]
    NotUtf8,
    #[error("{what} '{name}' is defined twice: each must be unique")]
    Twice { what: &'static str, name: String },
    #[error("no instruction before this one is called '{name}'")]
    UnknownOperand { name: String },
    #[error("no computation is called '{name}'")]
    UnknownComputation { name: String },
    #[error("'{name}' has no element {index}: its shape does not go that deep")]
    NoSuchElement { name: String, index: u32 },
    #[error("these groups cannot be read; expected {0}")]
    BadGroups(&'static str),
    #[error("'{name}' is not a tuple: get-tuple-element takes one")]
    NoTuple { name: String },
    #[error(
        "get-tuple-element needs index=, an integer below {count}, the number of the tuple's elements"
    )]
    BadIndex { count: usize },
    #[error("{opcode} takes {takes}, not {found}")]
    WrongCount { opcode: String, takes: String, found: usize },
    #[error("'{name}' starts nothing: {opcode} takes what was started, and that is {of}")]
    NotStarted { opcode: String, name: String, of: String },
    #[error("the computation has a second ROOT: the first is '{first}'")]
    TwoRoots { first: String },
    #[error("the module has no computation")]
    NoEntry,
    #[error("the module has a second computation marked ENTRY")]
    TwoEntries,
    #[error("computation '{name}' has no instruction")]
    Empty { name: String },
    #[error(
        "instructions are nested more than {most} deep: give the inner ones lines of their own"
    )]
    NestedTooDeep { most: usize },
    #[error(
        "the result of {opcode} needs a shape, as in f32[2,3] {opcode}(...): it cannot be inferred"
    )]
    NoShape { opcode: String },
    #[error("the shape of the result is not given and cannot be inferred: {mismatch}")]
    NotInferred { mismatch: Box<Mismatch> },
    #[error("computation '{name}' calls itself, directly or through others")]
    Recursive { name: String },
    #[error(
        "this is MLIR (StableHLO), the text before compilation; take the HLO: compiled.as_text(), or what --xla_dump_to wrote"
    )]
    Mlir,
    #[error("{0}")]
    Bad(&'static str),
}

impl HloError {
    /// A problem at a byte of a text.
    pub(super) fn at(text: &str, at: usize, problem: Problem) -> HloError {
        /// How much is shown on either side: a line of HLO can have megabytes.
        const AROUND: usize = 60;
        let at = (0..=at.min(text.len())).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0);
        let before = &text[..at];
        let start = before.rfind('\n').map_or(0, |newline| newline + 1);
        let line = before.bytes().filter(|&byte| byte == b'\n').count() + 1;
        let left: Vec<char> = text[start..at].chars().rev().take(AROUND + 1).collect();
        let cut = left.len() > AROUND;
        let mut shown: String = if cut { "...".to_owned() } else { String::new() };
        shown.extend(left.into_iter().take(AROUND).rev().map(visible));
        let mark = shown.chars().count() as u32;
        let mut right = text[at..].chars().take_while(|&letter| letter != '\n');
        shown.extend(right.by_ref().take(AROUND).map(visible));
        if right.next().is_some() {
            shown.push_str("...");
        }
        HloError {
            line,
            column: text[start..at].chars().count() + 1,
            shown,
            mark,
            problem,
            at: at as u32,
        }
    }
}

fn visible(letter: char) -> char {
    if letter.is_control() { ' ' } else { letter }
}

impl fmt::Display for HloError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let HloError { line, column, shown, problem, .. } = self;
        let mark = self.mark as usize;
        write!(f, "line {line} column {column}: {problem}\n  {shown}\n  {:mark$}^", "")
    }
}

impl std::error::Error for HloError {}

/// Why bytes are not a module.
#[derive(Debug, Error)]
pub enum ReadError {
    /// They cannot be decompressed.
    #[error(transparent)]
    Packed(#[from] ImportError),
    /// The text is wrong.
    #[error(transparent)]
    Hlo(#[from] HloError),
}
