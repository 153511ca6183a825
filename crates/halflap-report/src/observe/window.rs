//! A window that slides over text that is too long to hold.
//!
//! Invariant: `text[from..]` is what was read and not consumed. It grows only if a single value
//! does not fit, and never beyond [`LARGEST`].

use std::io::Read;

use super::error::{TraceError, TracePlace};
use super::scan::{JsonCursor, ScanFault, ScanStop};

/// How much is read at a time: it stays in the processor's cache until it has been parsed.
const PIECE: usize = 256 << 10;

/// The largest value that is held: an event, or an entry next to the events.
const LARGEST: usize = 64 << 20;

/// The current event in a list, for messages.
#[derive(Debug, Default)]
pub(super) struct Within {
    /// The number of the event that is being read.
    pub(super) event: Option<u64>,
    /// Its name so far, cut.
    pub(super) name: String,
}

pub(super) struct TextWindow<R> {
    source: R,
    text: Vec<u8>,
    from: usize,
    ended: bool,
    /// The position of `text`: bytes, whole lines, and bytes of the line that `text` begins in.
    before: u64,
    lines: u64,
    column: u64,
    pub(super) within: Within,
}

impl<R: Read> TextWindow<R> {
    pub(super) fn new(source: R) -> TextWindow<R> {
        TextWindow {
            source,
            text: Vec::new(),
            from: 0,
            ended: false,
            before: 0,
            lines: 0,
            column: 0,
            within: Within::default(),
        }
    }

    /// How many bytes were consumed.
    pub(super) fn consumed(&self) -> u64 {
        self.before + self.from as u64
    }

    /// Calls `read` on the text, repeatedly with more of it until a value is complete. `read` must
    /// change its own state only after it has succeeded.
    #[inline]
    pub(super) fn take<T>(
        &mut self,
        mut read: impl FnMut(&mut JsonCursor<'_>, &mut Within) -> Result<T, ScanStop>,
    ) -> Result<T, TraceError> {
        loop {
            let mut cursor = JsonCursor::new(&self.text[self.from..]);
            match read(&mut cursor, &mut self.within) {
                Ok(value) => {
                    self.from += cursor.at();
                    return Ok(value);
                }
                Err(ScanStop::Bad { at, fault }) => return Err(self.wrong(at, &fault)),
                Err(ScanStop::Incomplete) if self.ended => {
                    return Err(TraceError::CutOff {
                        place: Box::new(self.place(self.text.len() - self.from)),
                    });
                }
                Err(ScanStop::Incomplete) => self.fill()?,
            }
        }
    }

    /// Whether only white space is left, which is then consumed.
    pub(super) fn at_end(&mut self) -> Result<bool, TraceError> {
        loop {
            let rest = &self.text[self.from..];
            match rest.iter().position(|byte| !byte.is_ascii_whitespace()) {
                Some(_) => return Ok(false),
                None if self.ended => {
                    self.from = self.text.len();
                    return Ok(true);
                }
                None => self.fill()?,
            }
        }
    }

    /// Skips a byte-order mark.
    pub(super) fn skip_mark(&mut self) -> Result<(), TraceError> {
        const MARK: &[u8] = b"\xef\xbb\xbf";
        while !self.ended && self.text.len() < MARK.len() {
            self.fill()?;
        }
        if self.text.starts_with(MARK) {
            self.from = MARK.len();
        }
        Ok(())
    }

    /// The error that something is wrong `at` bytes into the unconsumed text.
    pub(super) fn wrong(&self, at: usize, fault: &ScanFault) -> TraceError {
        TraceError::Wrong { place: Box::new(self.place(at)), problem: fault.describe() }
    }

    /// Drops what was consumed and reads the next piece.
    fn fill(&mut self) -> Result<(), TraceError> {
        let gone = &self.text[..self.from];
        self.column = match gone.iter().rposition(|&byte| byte == b'\n') {
            Some(at) => (gone.len() - at - 1) as u64,
            None => self.column + gone.len() as u64,
        };
        self.lines += newlines(gone);
        self.before += self.from as u64;
        self.text.drain(..self.from);
        self.from = 0;
        let held = self.text.len();
        if held >= LARGEST {
            return Err(TraceError::TooLarge { place: Box::new(self.place(0)), most: LARGEST });
        }
        // Doubling what does not fit keeps the time in proportion to its length.
        self.text.resize(held + held.max(PIECE).min(LARGEST - held), 0);
        let (read, problem) = read_some(&mut self.source, &mut self.text[held..]);
        self.text.truncate(held + read);
        self.ended = read == 0;
        match problem {
            None => Ok(()),
            Some(error) => {
                Err(TraceError::Unreadable { after: self.before + (held + read) as u64, error })
            }
        }
    }

    fn place(&self, at: usize) -> TracePlace {
        let before = &self.text[..(self.from + at).min(self.text.len())];
        let column = match before.iter().rposition(|&byte| byte == b'\n') {
            Some(newline) => (before.len() - newline - 1) as u64,
            None => self.column + before.len() as u64,
        };
        TracePlace {
            byte: self.before + before.len() as u64,
            line: self.lines + newlines(before) + 1,
            column: column + 1,
            event: self.within.event,
            name: self.within.name.clone(),
        }
    }
}

fn newlines(text: &[u8]) -> u64 {
    text.iter().filter(|&&byte| byte == b'\n').count() as u64
}

/// Reads as much as there is, at least a byte unless the source ends; and the error that stopped
/// reading.
fn read_some(source: &mut impl Read, into: &mut [u8]) -> (usize, Option<std::io::Error>) {
    let mut filled = 0;
    while filled < into.len() {
        match source.read(&mut into[filled..]) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return (filled, Some(error)),
        }
    }
    (filled, None)
}
