//! JSON text, token by token, in a chunk that may end anywhere.
//!
//! A [`JsonCursor`] walks over the bytes that have been read so far. If they end in the middle of a
//! value it returns [`Stop::Incomplete`], and the caller retries with more: an event is a few
//! hundred bytes and a chunk a thousand times that, so hardly anything is read twice. Unneeded
//! values are skipped without being built.
//!
//! Structure is checked strictly. Text inside strings is not, because profilers write what JSON
//! forbids: raw control characters and lone backslashes from paths. Nor are `NaN` and `inf` errors
//! where the number is not needed.

use std::borrow::Cow;

/// No profiler nests deeper; a hostile file could overflow the stack.
const DEEPEST: usize = 64;

/// Why a value could not be read.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum ScanStop {
    /// The bytes end inside it.
    Incomplete,
    /// It is invalid, at this position in the chunk.
    Bad { at: usize, fault: ScanFault },
}

/// What is wrong with a chunk of text.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum ScanFault {
    /// Something else was expected there.
    Expected(&'static str),
    /// Lists and objects are nested too deeply.
    TooDeep,
    /// A field of an event has a wrong value.
    Field { name: &'static str, found: String, right: &'static str },
    /// A limit on what is kept.
    TooMany { what: &'static str, most: usize },
}

/// A position in a chunk of JSON text.
pub(super) struct JsonCursor<'a> {
    text: &'a [u8],
    at: usize,
}

impl<'a> JsonCursor<'a> {
    pub(super) fn new(text: &'a [u8]) -> JsonCursor<'a> {
        JsonCursor { text, at: 0 }
    }

    pub(super) fn at(&self) -> usize {
        self.at
    }

    pub(super) fn bad<T>(&self, fault: ScanFault) -> Result<T, ScanStop> {
        Err(ScanStop::Bad { at: self.at, fault })
    }

    pub(super) fn expected<T>(&self, what: &'static str) -> Result<T, ScanStop> {
        self.bad(ScanFault::Expected(what))
    }

    /// Peeks at the next byte that is not white space.
    #[inline]
    pub(super) fn token(&mut self) -> Result<u8, ScanStop> {
        while let Some(&byte) = self.text.get(self.at) {
            match byte {
                b' ' | b'\n' | b'\r' | b'\t' => self.at += 1,
                byte => return Ok(byte),
            }
        }
        Err(ScanStop::Incomplete)
    }

    /// Skips `byte`, which must come next.
    #[inline]
    pub(super) fn take(&mut self, byte: u8, what: &'static str) -> Result<(), ScanStop> {
        match self.token()? == byte {
            true => {
                self.at += 1;
                Ok(())
            }
            false => self.expected(what),
        }
    }

    /// Skips `byte` if it comes next, and returns whether it did.
    #[inline]
    pub(super) fn take_if(&mut self, byte: u8) -> Result<bool, ScanStop> {
        let there = self.token()? == byte;
        self.at += usize::from(there);
        Ok(there)
    }

    /// Skips a value, and returns its text: a string with its quotes.
    #[inline]
    pub(super) fn value(&mut self) -> Result<&'a [u8], ScanStop> {
        self.token()?;
        let start = self.at;
        self.skip(0)?;
        Ok(&self.text[start..self.at])
    }

    /// Skips the name of a field and its colon, and returns the text between the quotes.
    #[inline]
    pub(super) fn key(&mut self) -> Result<&'a [u8], ScanStop> {
        if self.token()? != b'"' {
            return self.expected("a field's name in quotes");
        }
        let start = self.at + 1;
        self.string()?;
        let key = &self.text[start..self.at - 1];
        self.take(b':', "a colon after a field's name")?;
        Ok(key)
    }

    /// Skips the fields of an object and lets `field` read each value.
    #[inline]
    pub(super) fn fields(
        &mut self,
        mut field: impl FnMut(&mut JsonCursor<'a>, &'a [u8]) -> Result<(), ScanStop>,
    ) -> Result<(), ScanStop> {
        self.take(b'{', "an object")?;
        if self.take_if(b'}')? {
            return Ok(());
        }
        loop {
            let key = self.key()?;
            field(self, key)?;
            if !self.more(b'}', "a comma or the end of an object")? {
                return Ok(());
            }
        }
    }

    /// Whether a list or object goes on, with a comma, or ends.
    #[inline]
    pub(super) fn more(&mut self, close: u8, what: &'static str) -> Result<bool, ScanStop> {
        let byte = self.token()?;
        match byte == b',' || byte == close {
            true => {
                self.at += 1;
                Ok(byte == b',')
            }
            false => self.expected(what),
        }
    }

    /// Skips any value.
    fn skip(&mut self, depth: usize) -> Result<(), ScanStop> {
        match self.token()? {
            b'"' => self.string(),
            b'{' | b'[' if depth == DEEPEST => self.bad(ScanFault::TooDeep),
            b'{' => self.fields(|cursor, _| cursor.skip(depth + 1)),
            b'[' => self.skip_list(depth),
            b'0'..=b'9' => self.number(),
            b'-' => self.minus(),
            b't' => self.word(&["true"]),
            b'f' => self.word(&["false"]),
            b'n' => self.word(&["null", "nan"]),
            b'N' => self.word(&["NaN"]),
            b'i' => self.word(&["inf"]),
            b'I' => self.word(&["Infinity"]),
            _ => self.expected("a value"),
        }
    }

    fn skip_list(&mut self, depth: usize) -> Result<(), ScanStop> {
        self.at += 1;
        if self.take_if(b']')? {
            return Ok(());
        }
        loop {
            self.skip(depth + 1)?;
            if !self.more(b']', "a comma or the end of a list")? {
                return Ok(());
            }
        }
    }

    /// From the opening quote to behind the closing one. Eight bytes at a time: most of a trace is
    /// strings.
    #[inline]
    fn string(&mut self) -> Result<(), ScanStop> {
        let mut at = self.at + 1;
        loop {
            at += match self.text.get(at..at + 8) {
                Some(eight) => match first_special(eight) {
                    8 => {
                        at += 8;
                        continue;
                    }
                    before => before,
                },
                None => {
                    let rest = self.text.get(at..).unwrap_or(&[]);
                    rest.iter()
                        .position(|byte| matches!(byte, b'"' | b'\\'))
                        .ok_or(ScanStop::Incomplete)?
                }
            };
            if self.text[at] == b'"' {
                self.at = at + 1;
                return Ok(());
            }
            at += 2;
        }
    }

    fn minus(&mut self) -> Result<(), ScanStop> {
        self.at += 1;
        match self.text.get(self.at) {
            None => Err(ScanStop::Incomplete),
            Some(b'0'..=b'9') => self.number(),
            Some(b'i') => self.word(&["inf"]),
            Some(b'n') => self.word(&["nan"]),
            Some(b'I') => self.word(&["Infinity"]),
            Some(_) => self.expected("a number after the minus sign"),
        }
    }

    /// Digits, a fraction, an exponent. A number that reaches the end of the chunk may continue.
    #[inline]
    fn number(&mut self) -> Result<(), ScanStop> {
        self.digits()?;
        if self.text[self.at] == b'.' {
            self.at += 1;
            self.digits()?;
        }
        if matches!(self.text[self.at], b'e' | b'E') {
            self.at += 1;
            if matches!(self.text.get(self.at), Some(b'+' | b'-')) {
                self.at += 1;
            }
            self.digits()?;
        }
        Ok(())
    }

    /// One digit or more, and a byte that is none after them.
    #[inline]
    fn digits(&mut self) -> Result<(), ScanStop> {
        let start = self.at;
        while self.text.get(self.at).is_some_and(u8::is_ascii_digit) {
            self.at += 1;
        }
        match self.text.get(self.at) {
            None => Err(ScanStop::Incomplete),
            Some(_) if self.at == start => self.expected("a digit"),
            Some(_) => Ok(()),
        }
    }

    /// One of a few words, the longest match of which must end there.
    fn word(&mut self, words: &[&'static str]) -> Result<(), ScanStop> {
        let rest = &self.text[self.at..];
        if let Some(word) = words.iter().find(|word| rest.starts_with(word.as_bytes())) {
            self.at += word.len();
            return Ok(());
        }
        match words.iter().any(|word| word.as_bytes().starts_with(rest)) {
            true => Err(ScanStop::Incomplete),
            false => self.expected("a value"),
        }
    }
}

/// How many of eight bytes come before the first quote or backslash.
#[inline]
fn first_special(eight: &[u8]) -> usize {
    const ONES: u64 = 0x0101_0101_0101_0101;
    const HIGHS: u64 = ONES << 7;
    let Ok(eight) = eight.try_into() else { return 0 };
    let word = u64::from_le_bytes(eight);
    // A byte that is zero after the exclusive or borrows from its high bit; only bits above the
    // first such byte can be wrong, and those are ignored.
    let zero = |word: u64| word.wrapping_sub(ONES) & !word & HIGHS;
    let found = zero(word ^ (ONES * u64::from(b'"'))) | zero(word ^ (ONES * u64::from(b'\\')));
    (found.trailing_zeros() / 8) as usize
}

/// Unescapes a string's text, at most `most` bytes of it. Invalid escapes are kept, or become
/// U+FFFD: a bad name is not a reason to refuse a trace.
pub(super) fn decode(text: &[u8], most: usize) -> Cow<'_, str> {
    // An escape is at most six bytes for one.
    let cut = &text[..text.len().min(6 * most)];
    let whole = match cut.contains(&b'\\') {
        false => String::from_utf8_lossy(cut),
        true => Cow::Owned(unescape(cut)),
    };
    match whole.len() <= most {
        true => whole,
        false => {
            let end = (0..=most).rev().find(|&end| whole.is_char_boundary(end)).unwrap_or(0);
            Cow::Owned(whole[..end].to_owned())
        }
    }
}

fn unescape(text: &[u8]) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.iter().position(|&byte| byte == b'\\') {
        bytes.extend_from_slice(&rest[..start]);
        let (letter, length) = escaped(&rest[start..]);
        match letter {
            Some(letter) => bytes.extend_from_slice(letter.encode_utf8(&mut [0; 4]).as_bytes()),
            None => bytes.extend_from_slice(&rest[start..start + length]),
        }
        rest = &rest[start + length..];
    }
    bytes.extend_from_slice(rest);
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The character of an escape, if valid, and its length.
fn escaped(text: &[u8]) -> (Option<char>, usize) {
    let letter = match text.get(1) {
        Some(b'n') => '\n',
        Some(b't') => '\t',
        Some(b'r') => '\r',
        Some(b'b') => '\u{8}',
        Some(b'f') => '\u{c}',
        Some(&byte @ (b'"' | b'\\' | b'/')) => char::from(byte),
        Some(b'u') => return unicode(text),
        _ => return (None, 1),
    };
    (Some(letter), 2)
}

fn unicode(text: &[u8]) -> (Option<char>, usize) {
    let Some(high) = hex(text.get(2..6)) else { return (None, 1) };
    let low = text.get(6..8).filter(|next| *next == b"\\u").and_then(|_| hex(text.get(8..12)));
    match (high, low) {
        (0xd800..0xdc00, Some(low @ 0xdc00..0xe000)) => {
            (char::from_u32(0x10000 + ((high - 0xd800) << 10) + (low - 0xdc00)), 12)
        }
        _ => (Some(char::from_u32(high).unwrap_or(char::REPLACEMENT_CHARACTER)), 6),
    }
}

fn hex(digits: Option<&[u8]>) -> Option<u32> {
    digits?.iter().try_fold(0, |value, &digit| Some(value * 16 + char::from(digit).to_digit(16)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(text: &str) -> Result<&[u8], ScanStop> {
        JsonCursor::new(text.as_bytes()).value()
    }

    #[test]
    fn values_are_stepped_over() {
        for text in [
            "{}",
            "[]",
            "\"a\"",
            "{\"a\": [1, -2.5e+3, true, null, NaN, -inf], \"b\\\"\": {\"c\": \"\\\\\"}}",
        ] {
            assert_eq!(value(&format!(" {text} ,")), Ok(text.as_bytes()));
            let incomplete =
                (0..text.len()).all(|end| value(&text[..end]) == Err(ScanStop::Incomplete));
            assert!(incomplete, "{text}");
        }
        assert_eq!(value("\"sixteen bytes ab\"]"), Ok(&b"\"sixteen bytes ab\""[..]));
    }

    #[test]
    fn what_is_no_value_is_refused() {
        let deep = "[".repeat(DEEPEST + 1);
        for text in
            ["{a", "{\"a\" 1", "[1 2", "{\"a\":1]", "nuts", "-x", "1.x", "1e,", "undefined", &deep]
        {
            assert!(matches!(value(text), Err(ScanStop::Bad { .. })), "{text}");
        }
    }

    #[test]
    fn strings_stand_for_text() {
        let cases = [
            (r#"a\n\t\"\\\/"#, "a\n\t\"\\/"),
            (r"\u00e9\ud83d\ude00\ud83d", "\u{e9}\u{1f600}\u{fffd}"),
            (r"C:\Users\x", r"C:\Users\x"),
            (r"\u12", r"\u12"),
        ];
        for (text, right) in cases {
            assert_eq!(decode(text.as_bytes(), 100), right);
        }
        assert_eq!(decode(b"\xff\xfe", 100), "\u{fffd}\u{fffd}");
        assert_eq!(decode("\u{e9}\u{e9}".as_bytes(), 3), "\u{e9}");
    }
}
