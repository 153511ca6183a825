//! The lexer: a cursor over the text that reads spaces, names, brackets and strings.
//!
//! Nothing here recurses or copies: tokens are returned as a [`TextSpan`].

use super::error::{HloError, Problem};

/// A piece of the module's text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TextSpan {
    pub(super) start: u32,
    pub(super) end: u32,
}

impl TextSpan {
    pub(super) fn new(start: usize, end: usize) -> TextSpan {
        TextSpan { start: start as u32, end: end as u32 }
    }

    /// Whether it holds nothing.
    pub fn is_empty(self) -> bool {
        self.start == self.end
    }
}

/// Where the reader is.
pub(super) struct TextCursor<'t> {
    pub(super) text: &'t str,
    pub(super) at: usize,
    /// The open brackets; kept to reuse the allocation.
    open: Vec<u8>,
    /// How many comments there were between brackets.
    pub(super) comments: usize,
}

/// What a byte can mean between brackets.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ByteClass {
    Plain,
    Open,
    Close,
    Quote,
    Slash,
    Comma,
    Blank,
    Newline,
}

const CLASSES: [ByteClass; 256] = {
    let mut classes = [ByteClass::Plain; 256];
    classes[b'{' as usize] = ByteClass::Open;
    classes[b'(' as usize] = ByteClass::Open;
    classes[b'[' as usize] = ByteClass::Open;
    classes[b'}' as usize] = ByteClass::Close;
    classes[b')' as usize] = ByteClass::Close;
    classes[b']' as usize] = ByteClass::Close;
    classes[b'"' as usize] = ByteClass::Quote;
    classes[b'\'' as usize] = ByteClass::Quote;
    classes[b'/' as usize] = ByteClass::Slash;
    classes[b',' as usize] = ByteClass::Comma;
    classes[b' ' as usize] = ByteClass::Blank;
    classes[b'\t' as usize] = ByteClass::Blank;
    classes[b'\n' as usize] = ByteClass::Newline;
    classes
};

/// What ends a piece of text, outside of all brackets and strings.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Until {
    /// A comma, the end of the line, a closing bracket, a comment, or a blank that ends the value.
    Value,
    /// The bracket that closes the one before.
    Close(u8),
    /// A comma or a closing bracket.
    Item,
}

impl<'t> TextCursor<'t> {
    pub(super) fn new(text: &'t str) -> TextCursor<'t> {
        TextCursor { text, at: 0, open: Vec::new(), comments: 0 }
    }

    #[inline]
    pub(super) fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    pub(super) fn is_at_end(&self) -> bool {
        self.at >= self.text.len()
    }

    /// Takes a byte if it comes next.
    #[inline]
    pub(super) fn take(&mut self, byte: u8) -> bool {
        let taken = self.peek() == Some(byte);
        self.at += usize::from(taken);
        taken
    }

    /// Takes a word if it comes next as a complete word.
    pub(super) fn take_word(&mut self, word: &str) -> bool {
        let rest = &self.text.as_bytes()[self.at..];
        let taken = rest.starts_with(word.as_bytes())
            && !rest.get(word.len()).copied().is_some_and(is_name);
        self.at += if taken { word.len() } else { 0 };
        taken
    }

    pub(super) fn expect(&mut self, byte: u8, what: &'static str) -> Result<(), HloError> {
        match self.take(byte) {
            true => Ok(()),
            false => Err(self.error(Problem::Expected(what))),
        }
    }

    /// Skips spaces, line ends and comments.
    #[inline]
    pub(super) fn skip_space(&mut self) {
        while let Some(byte) = self.peek() {
            match byte {
                b' ' | b'\t' | b'\r' | b'\n' => self.at += 1,
                b'/' if self.skip_comment() => {}
                _ => return,
            }
        }
    }

    /// Skips spaces and comments within a line.
    pub(super) fn skip_blanks(&mut self) {
        while let Some(byte) = self.peek() {
            match byte {
                b' ' | b'\t' | b'\r' => self.at += 1,
                b'/' if self.text.as_bytes().get(self.at + 1) == Some(&b'*')
                    && self.skip_comment() => {}
                _ => return,
            }
        }
    }

    /// Skips a comment, of either kind, if one comes next.
    fn skip_comment(&mut self) -> bool {
        let rest = &self.text[self.at..];
        if rest.starts_with("/*") {
            self.at += rest.find("*/").map_or(rest.len(), |end| end + 2);
            return true;
        }
        if rest.starts_with("//") {
            self.at += rest.find('\n').unwrap_or(rest.len());
            return true;
        }
        false
    }

    /// A name, without its optional `%`.
    #[inline]
    pub(super) fn name(&mut self, what: &'static str) -> Result<TextSpan, HloError> {
        self.take(b'%');
        let start = self.at;
        while self.peek().is_some_and(is_name) {
            self.at += 1;
        }
        match self.at > start {
            true => Ok(TextSpan::new(start, self.at)),
            false => Err(self.error(Problem::Expected(what))),
        }
    }

    /// An integer.
    pub(super) fn number(&mut self) -> Result<u64, HloError> {
        let start = self.at;
        let mut value: u64 = 0;
        while let Some(digit) = self.peek().filter(u8::is_ascii_digit) {
            let grown =
                value.checked_mul(10).and_then(|value| value.checked_add(u64::from(digit - b'0')));
            value = grown.ok_or_else(|| self.error_at(start, Problem::NumberTooLarge))?;
            self.at += 1;
        }
        match self.at > start {
            true => Ok(value),
            false => Err(self.error(Problem::Expected("an integer"))),
        }
    }

    /// Goes to the end of a piece of text, over brackets, strings and comments in it.
    pub(super) fn skip(&mut self, until: Until) -> Result<(), HloError> {
        let bytes = self.text.as_bytes();
        let start = self.at;
        self.open.clear();
        while let Some(&byte) = bytes.get(self.at) {
            let outside = self.open.is_empty();
            match CLASSES[byte as usize] {
                ByteClass::Plain => {}
                ByteClass::Comma if outside && !matches!(until, Until::Close(_)) => return Ok(()),
                ByteClass::Newline if outside && until == Until::Value => return Ok(()),
                ByteClass::Blank if outside && until == Until::Value && !self.goes_on() => {
                    return Ok(());
                }
                ByteClass::Comma | ByteClass::Newline | ByteClass::Blank => {}
                ByteClass::Open => self.open.push(closing(byte)),
                ByteClass::Close => match self.open.pop() {
                    Some(expected) if expected == byte => {}
                    Some(expected) => {
                        return Err(
                            self.error(Problem::WrongBracket { expected: expected as char })
                        );
                    }
                    None => match until {
                        Until::Close(close) if close != byte => {
                            return Err(
                                self.error(Problem::WrongBracket { expected: close as char })
                            );
                        }
                        _ => return Ok(()),
                    },
                },
                ByteClass::Quote => {
                    self.skip_string()?;
                    continue;
                }
                ByteClass::Slash if outside && until == Until::Value && self.is_comment() => {
                    return Ok(());
                }
                ByteClass::Slash if self.skip_comment() => {
                    self.comments += 1;
                    continue;
                }
                ByteClass::Slash => {}
            }
            self.at += 1;
        }
        match (self.open.is_empty(), until) {
            (true, Until::Value) => Ok(()),
            _ => Err(self.error_at(start, Problem::NotClosed)),
        }
    }

    fn is_comment(&self) -> bool {
        matches!(self.text.as_bytes().get(self.at..self.at + 2), Some(b"//" | b"/*"))
    }

    /// Whether a value continues after a blank, as `mesh['a'=2] {'a'}` and `f32[2] {1, 2}` do.
    /// Anything else begins the next instruction.
    fn goes_on(&self) -> bool {
        let rest = self.text[self.at..].trim_start_matches([' ', '\t']);
        rest.starts_with(|first: char| {
            matches!(first, '{' | '[' | '(' | '<' | '-') || first.is_ascii_digit()
        }) || rest.starts_with("T(")
    }

    /// A string in quotes of either kind, with backslash escapes.
    pub(super) fn skip_string(&mut self) -> Result<TextSpan, HloError> {
        let start = self.at;
        let bytes = self.text.as_bytes();
        let quote = if self.peek() == Some(b'\'') { b'\'' } else { b'"' };
        self.expect(quote, "a string in quotes")?;
        while let Some(&byte) = bytes.get(self.at) {
            match byte {
                byte if byte == quote => {
                    self.at += 1;
                    return Ok(TextSpan::new(start + 1, self.at - 1));
                }
                b'\\' => self.at += 2,
                _ => self.at += 1,
            }
        }
        self.at = bytes.len();
        Err(self.error_at(start, Problem::StringNotClosed))
    }

    pub(super) fn error(&self, problem: Problem) -> HloError {
        self.error_at(self.at, problem)
    }

    pub(super) fn error_at(&self, at: usize, problem: Problem) -> HloError {
        HloError::at(self.text, at, problem)
    }
}

/// Whether a byte can be part of a name.
#[inline]
pub(super) fn is_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'-') || byte >= 0x80
}

fn closing(open: u8) -> u8 {
    match open {
        b'{' => b'}',
        b'[' => b']',
        _ => b')',
    }
}

/// Every integer in a text.
pub(super) fn numbers_in(text: &str) -> Vec<i64> {
    let number = |part: &str| part.parse().ok();
    text.split(|letter: char| !letter.is_ascii_digit() && letter != '-')
        .filter_map(number)
        .collect()
}
