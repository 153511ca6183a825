//! Expands shorthand.
//!
//! Handwritten HLO has instructions in place of operands, `add(f32[] parameter(0), x)`, and
//! computations in place of their names, `to_apply={ ... }`. Both get names and lines here, and
//! comments in attribute values are removed, so that the reader and the writer need not handle
//! them. Compilers do not write shorthand.

use super::super::error::{HloError, Problem};
use super::super::lex::{TextSpan, Until, is_name};
use super::super::metadata::Tables;
use super::super::{Opcode, Shape};
use super::{CALLS, ModuleReader, VERBATIM};

/// An expanded text, and where its pieces come from.
pub(super) struct Expanded {
    pub(super) text: String,
    /// For each piece, where it begins here and where it was.
    pieces: Vec<(usize, usize)>,
    /// For each piece, where it begins here and in which line it was.
    pub(super) places: Vec<(u32, u32)>,
}

impl Expanded {
    /// Where in the original text a byte was.
    pub(super) fn original(&self, at: usize) -> usize {
        let piece = self.pieces.partition_point(|&(new, _)| new <= at).saturating_sub(1);
        self.pieces.get(piece).map_or(at, |&(new, old)| old + (at - new))
    }
}

/// How deep instructions may be nested.
const DEEPEST: usize = 64;

/// Writes a text out.
pub(super) fn expand(text: &str) -> Result<Expanded, HloError> {
    let mut reader = ModuleReader::new(text);
    reader.header()?;
    Tables::parse(&mut reader.cursor)?;
    // No name in the text contains this.
    let mark = (0..)
        .map(|number| format!(".anon{number}."))
        .find(|mark| !text.contains(mark))
        .unwrap_or_default();
    let mut out = TextPiece::default();
    out.copy(text, 0..reader.cursor.at);
    let mut expander =
        Expander { reader, mark, count: 0, depth: 0, computations: TextPiece::default() };
    while expander.computation(&mut out)? {}
    let TextPiece { text: full, pieces } = out;
    let ends: Vec<usize> = text.match_indices('\n').map(|(at, _)| at).collect();
    let line = |old: usize| ends.partition_point(|&end| end < old) as u32 + 1;
    let places = pieces.iter().map(|&(new, old)| (new as u32, line(old))).collect();
    Ok(Expanded { text: full, pieces, places })
}

/// A piece of the new text, with the places that it was copied from.
#[derive(Default)]
struct TextPiece {
    text: String,
    pieces: Vec<(usize, usize)>,
}

impl TextPiece {
    fn copy(&mut self, text: &str, range: std::ops::Range<usize>) {
        self.pieces.push((self.text.len(), range.start));
        self.text.push_str(&text[range]);
    }

    /// Adds text that is not in the original; errors in it are shown at the text that it replaces.
    fn say(&mut self, said: &str, at: usize) {
        self.pieces.push((self.text.len(), at));
        self.text.push_str(said);
    }

    fn append(&mut self, other: TextPiece) {
        let from = self.text.len();
        self.pieces.extend(other.pieces.iter().map(|&(new, old)| (from + new, old)));
        self.text.push_str(&other.text);
    }
}

struct Expander<'t> {
    reader: ModuleReader<'t>,
    mark: String,
    count: usize,
    depth: usize,
    /// Computations that stood in place of their names, to be written before the one that they were
    /// in.
    computations: TextPiece,
}

impl<'t> Expander<'t> {
    fn text(&self) -> &'t str {
        self.reader.cursor.text
    }

    fn at(&self) -> usize {
        self.reader.cursor.at
    }

    fn name(&mut self, stem: &str) -> String {
        self.count += 1;
        format!("{stem}{}{}", self.mark, self.count)
    }

    /// Goes one level deeper, if that is allowed.
    fn deeper<T>(
        &mut self,
        work: impl FnOnce(&mut Self) -> Result<T, HloError>,
    ) -> Result<T, HloError> {
        if self.depth >= DEEPEST {
            return Err(self.reader.cursor.error(Problem::NestedTooDeep { most: DEEPEST }));
        }
        self.depth += 1;
        let done = work(self);
        self.depth -= 1;
        done
    }

    /// Writes a computation; returns whether there was one.
    fn computation(&mut self, out: &mut TextPiece) -> Result<bool, HloError> {
        let start = self.at();
        let cursor = &mut self.reader.cursor;
        cursor.skip_space();
        if cursor.is_at_end() {
            out.copy(self.text(), start..self.at());
            return Ok(false);
        }
        cursor.take_word("ENTRY");
        cursor.skip_space();
        cursor.name("the name of a computation, or the end of the text")?;
        self.reader.signature()?;
        let head = start..self.at();
        let body = self.instructions()?;
        let tail = self.at();
        self.reader.tail()?;
        out.append(std::mem::take(&mut self.computations));
        out.copy(self.text(), head);
        out.append(body);
        out.copy(self.text(), tail..self.at());
        Ok(true)
    }

    /// Instructions up to the closing brace.
    fn instructions(&mut self) -> Result<TextPiece, HloError> {
        let mut out = TextPiece::default();
        loop {
            let lead = self.at();
            self.reader.cursor.skip_space();
            match self.reader.cursor.peek() {
                Some(b'}') => {
                    out.copy(self.text(), lead..self.at());
                    return Ok(out);
                }
                None => {
                    return Err(self
                        .reader
                        .cursor
                        .error(Problem::Expected("an instruction or '}'")));
                }
                Some(_) => self.instruction(lead, &mut out)?,
            }
        }
    }

    fn instruction(&mut self, lead: usize, out: &mut TextPiece) -> Result<(), HloError> {
        let cursor = &mut self.reader.cursor;
        cursor.take_word("ROOT");
        cursor.skip_space();
        cursor.name("the name of an instruction")?;
        cursor.skip_space();
        cursor.expect(b'=', "'=' after the instruction's name")?;
        cursor.skip_space();
        let mut own = TextPiece::default();
        self.right_side(lead, out, &mut own)?;
        self.attributes(&mut own)?;
        out.append(own);
        Ok(())
    }

    /// `shape opcode(operands)`, written from `from` on. Instructions among the operands come
    /// before it.
    fn right_side(
        &mut self,
        from: usize,
        before: &mut TextPiece,
        own: &mut TextPiece,
    ) -> Result<(), HloError> {
        if !self.reader.has_opcode() {
            Shape::parse(&mut self.reader.cursor)?;
        }
        let cursor = &mut self.reader.cursor;
        cursor.skip_space();
        let opcode = cursor.name("an opcode")?;
        cursor.skip_space();
        cursor.expect(b'(', "'(' after the opcode")?;
        own.copy(self.text(), from..self.at());
        match Opcode::named(self.reader.str(opcode)) {
            Opcode::Constant | Opcode::Parameter => self.rest_of_operands(own),
            _ => self.deeper(|expander| expander.operands(before, own)),
        }
    }

    /// The rest up to the closing parenthesis, as it is.
    fn rest_of_operands(&mut self, own: &mut TextPiece) -> Result<(), HloError> {
        let start = self.at();
        self.reader.cursor.skip(Until::Close(b')'))?;
        self.reader.cursor.at += 1;
        own.copy(self.text(), start..self.at());
        Ok(())
    }

    /// Operands up to and including the closing parenthesis.
    fn operands(&mut self, before: &mut TextPiece, own: &mut TextPiece) -> Result<(), HloError> {
        loop {
            let start = self.at();
            self.reader.cursor.skip_space();
            own.copy(self.text(), start..self.at());
            if self.reader.cursor.peek() == Some(b')') {
                return self.rest_of_operands(own);
            }
            self.operand(before, own)?;
            let cursor = &mut self.reader.cursor;
            cursor.skip_space();
            match cursor.take(b',') {
                true => own.say(",", cursor.at - 1),
                false if cursor.peek() == Some(b')') => {}
                false => return Err(cursor.error(Problem::Expected("',' or ')' after an operand"))),
            }
        }
    }

    fn operand(&mut self, before: &mut TextPiece, own: &mut TextPiece) -> Result<(), HloError> {
        let start = self.at();
        if self.reader.cursor.peek() != Some(b'%') && self.reader.has_shape() {
            Shape::parse(&mut self.reader.cursor)?;
            self.reader.cursor.skip_space();
        }
        let opcode = self.reader.cursor.name("the name of an operand")?;
        if !self.reader.is_nested() {
            self.reader.cursor.skip(Until::Item)?;
            own.copy(self.text(), start..self.at());
            return Ok(());
        }
        let name = self.name(self.reader.str(opcode));
        let mut inner = TextPiece::default();
        inner.say(&format!("\n  {name} = "), start);
        self.reader.cursor.at = start;
        self.right_side(start, before, &mut inner)?;
        before.append(inner);
        own.say(&name, start);
        Ok(())
    }

    /// Any number of `, key=value`.
    fn attributes(&mut self, own: &mut TextPiece) -> Result<(), HloError> {
        loop {
            let back = self.at();
            let cursor = &mut self.reader.cursor;
            cursor.skip_space();
            if !cursor.take(b',') {
                cursor.at = back;
                return Ok(());
            }
            cursor.skip_space();
            let key = cursor.name("the name of an attribute")?;
            cursor.skip_blanks();
            cursor.expect(b'=', "'=' after the name of an attribute")?;
            cursor.skip_space();
            let key = self.reader.str(key);
            own.say(&format!(", {key}="), back);
            match CALLS.contains(&key) && self.reader.cursor.peek() == Some(b'{') {
                true => self.called(key, own)?,
                false => self.value(key, own)?,
            }
        }
    }

    /// A value without its comments.
    fn value(&mut self, key: &str, own: &mut TextPiece) -> Result<(), HloError> {
        let value = self.reader.value()?;
        match VERBATIM.contains(&key) {
            true => own.copy(self.text(), value.start as usize..value.end as usize),
            false => self.copy_without_comments(value, own),
        }
        Ok(())
    }

    fn copy_without_comments(&mut self, value: TextSpan, own: &mut TextPiece) {
        let (text, end) = (self.text(), value.end as usize);
        let (mut from, mut quote) = (value.start as usize, None);
        let mut at = from;
        while at < end {
            let rest = &text[at..end];
            let byte = rest.as_bytes()[0];
            let comment = match rest.get(..2) {
                Some("/*") if quote.is_none() => {
                    Some(rest.find("*/").map_or(rest.len(), |close| close + 2))
                }
                Some("//") if quote.is_none() => Some(rest.find('\n').unwrap_or(rest.len())),
                _ => None,
            };
            if let Some(len) = comment {
                own.copy(text, from..at);
                at += len;
                from = at;
                continue;
            }
            match (quote, byte) {
                (None, b'"' | b'\'') => quote = Some(byte),
                (Some(open), byte) if open == byte => quote = None,
                (Some(_), b'\\') => at += 1,
                _ => {}
            }
            at += 1;
        }
        own.copy(text, from.min(end)..end);
    }

    /// `{ instructions }`, or `{a, { instructions }}`: a computation, or a list of them.
    fn called(&mut self, key: &str, own: &mut TextPiece) -> Result<(), HloError> {
        let open = self.at();
        self.reader.cursor.at += 1;
        self.reader.cursor.skip_space();
        let is_list = self.reader.cursor.peek() == Some(b'{') || !self.is_instruction();
        if !is_list {
            self.reader.cursor.at = open;
            return self.unnamed(key, own);
        }
        own.say("{", open);
        loop {
            self.reader.cursor.skip_space();
            let start = self.at();
            match self.reader.cursor.peek() {
                Some(b'}') => {
                    self.reader.cursor.at += 1;
                    own.say("}", start);
                    return Ok(());
                }
                Some(b'{') => self.unnamed(key, own)?,
                _ => {
                    self.reader.cursor.name("the name of a computation")?;
                    own.copy(self.text(), start..self.at());
                }
            }
            self.reader.cursor.skip_space();
            if self.reader.cursor.take(b',') {
                own.say(", ", self.at() - 1);
            }
        }
    }

    /// Whether an instruction comes next, and not the name of a computation.
    fn is_instruction(&self) -> bool {
        let rest = self.text()[self.at()..].trim_start_matches('%');
        let name = rest.bytes().position(|byte| !is_name(byte)).unwrap_or(rest.len());
        &rest[..name] == "ROOT" || rest[name..].trim_start().starts_with('=')
    }

    /// An anonymous computation: it gets a name, and is written before the one that contains it.
    fn unnamed(&mut self, key: &str, own: &mut TextPiece) -> Result<(), HloError> {
        let open = self.at();
        let name = self.name(key);
        self.reader.cursor.at += 1;
        let body = self.deeper(Self::instructions)?;
        self.reader.cursor.expect(b'}', "'}' after the computation's instructions")?;
        let mut computation = TextPiece::default();
        computation.say(&format!("\n\n{name} {{"), open);
        computation.append(body);
        computation.say("\n}", self.at() - 1);
        self.computations.append(computation);
        own.say(&name, open);
        Ok(())
    }
}
