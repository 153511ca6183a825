//! One event of a trace: which fields it has, without their meaning.
//!
//! All fields are collected in one pass, in any order; of two fields of the same name the last
//! counts, as for every JSON reader. The fields inside `args` are read in a second pass and only
//! for GPU work and collectives, a small part of a trace.

use super::scan::{JsonCursor, ScanStop};

/// The fields of an event that anybody needs, each with its text, strings with their quotes.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct TraceEvent<'a> {
    pub(super) phase: Option<&'a [u8]>,
    pub(super) category: Option<&'a [u8]>,
    pub(super) name: Option<&'a [u8]>,
    pub(super) start: Option<&'a [u8]>,
    pub(super) duration: Option<&'a [u8]>,
    pub(super) process: Option<&'a [u8]>,
    pub(super) thread: Option<&'a [u8]>,
    pub(super) args: Option<&'a [u8]>,
}

impl<'a> TraceEvent<'a> {
    /// Reads an event into `self`, which keeps the fields read so far if an error follows.
    #[inline]
    pub(super) fn read(&mut self, cursor: &mut JsonCursor<'a>) -> Result<(), ScanStop> {
        cursor.fields(|cursor, key| {
            let value = Some(cursor.value()?);
            match key {
                b"ph" => self.phase = value,
                b"cat" => self.category = value,
                b"name" => self.name = value,
                b"ts" => self.start = value,
                b"dur" => self.duration = value,
                b"pid" => self.process = value,
                b"tid" => self.thread = value,
                b"args" => self.args = value,
                _ => {}
            }
            Ok(())
        })
    }
}

/// What `args` of an event may say.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct EventArgs<'a> {
    pub(super) device: Option<&'a [u8]>,
    pub(super) correlation: Option<&'a [u8]>,
    pub(super) stream: Option<&'a [u8]>,
    pub(super) collective: Option<&'a [u8]>,
    pub(super) sent: Option<&'a [u8]>,
    pub(super) received: Option<&'a [u8]>,
    pub(super) dtype: Option<&'a [u8]>,
    pub(super) group: Option<&'a [u8]>,
    pub(super) group_description: Option<&'a [u8]>,
    pub(super) group_ranks: Option<&'a [u8]>,
    pub(super) group_size: Option<&'a [u8]>,
    pub(super) sequence: Option<&'a [u8]>,
    pub(super) input_dims: Option<&'a [u8]>,
    pub(super) input_types: Option<&'a [u8]>,
}

impl<'a> EventArgs<'a> {
    /// Reads an event's `args`; empty if they are not an object.
    pub(super) fn of(text: Option<&'a [u8]>) -> EventArgs<'a> {
        let mut args = EventArgs::default();
        let Some(text) = text.filter(|text| text.first() == Some(&b'{')) else { return args };
        // It was skipped once, so it is complete and valid.
        let _ = JsonCursor::new(text).fields(|cursor, key| {
            let value = Some(cursor.value()?);
            match key {
                b"device" => args.device = value,
                b"correlation" => args.correlation = value,
                b"stream" => args.stream = value,
                b"Collective name" => args.collective = value,
                b"In msg nelems" => args.sent = value,
                b"Out msg nelems" => args.received = value,
                b"dtype" => args.dtype = value,
                b"Process Group Name" => args.group = value,
                b"Process Group Description" => args.group_description = value,
                b"Process Group Ranks" => args.group_ranks = value,
                b"Group size" => args.group_size = value,
                b"Seq" => args.sequence = value,
                b"Input Dims" => args.input_dims = value,
                b"Input type" => args.input_types = value,
                _ => {}
            }
            Ok(())
        });
        args
    }
}

/// The text between the quotes of a string; other values unchanged.
#[inline]
pub(super) fn unquoted(text: &[u8]) -> &[u8] {
    match text {
        [b'"', inner @ .., b'"'] => inner,
        other => other,
    }
}

/// An integer, possibly in quotes or after words, as in `"stream 7"`.
pub(super) fn whole_number(text: &[u8]) -> Option<i64> {
    let text = unquoted(text);
    let start = text
        .iter()
        .rposition(|byte| !byte.is_ascii_digit() && *byte != b'-')
        .map_or(0, |at| at + 1);
    std::str::from_utf8(&text[start..]).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_found() {
        let cases: [(&str, Option<i64>); 6] = [
            ("7", Some(7)),
            ("\"7\"", Some(7)),
            ("\"stream 7\"", Some(7)),
            ("-1", Some(-1)),
            ("\"x\"", None),
            ("[]", None),
        ];
        for (text, number) in cases {
            assert_eq!(whole_number(text.as_bytes()), number, "{text}");
        }
    }
}
