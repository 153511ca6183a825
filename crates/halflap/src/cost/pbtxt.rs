//! The text form of the times that XLA's profile-guided estimator reads: `costs` of instructions,
//! and `latencies` from the start of something asynchronous to its end, both in microseconds.

use super::error::ProfileError;
use crate::units::Nanos;

/// Whether a text looks like one: it begins with one of the fields, or with a comment.
pub(super) fn is_one(text: &[u8]) -> bool {
    let mut reader = PbtxtReader { text, at: 0 };
    reader.skip_space();
    [&b"costs"[..], b"latencies"].iter().any(|field| text[reader.at..].starts_with(field))
}

/// The times by name. An instruction without its own cost takes as long as the latency from it to
/// its end.
pub(super) fn read(text: &[u8]) -> Result<Vec<(String, Nanos)>, ProfileError> {
    let mut reader = PbtxtReader { text, at: 0 };
    let mut times: Vec<(String, Nanos)> = Vec::new();
    let mut latencies: Vec<(String, Nanos)> = Vec::new();
    loop {
        reader.skip_space();
        if reader.at >= text.len() {
            break;
        }
        let into = match reader.word() {
            "costs" => &mut times,
            "latencies" => &mut latencies,
            _ => return Err(reader.error("only costs and latencies are known")),
        };
        into.push(reader.entry()?);
    }
    let mut known: Vec<String> = times.iter().map(|(name, _)| name.clone()).collect();
    known.sort_unstable();
    times.extend(latencies.into_iter().filter(|(name, _)| known.binary_search(name).is_err()));
    Ok(times)
}

struct PbtxtReader<'t> {
    text: &'t [u8],
    at: usize,
}

impl<'t> PbtxtReader<'t> {
    /// Skips spaces, separators and comments.
    fn skip_space(&mut self) {
        while let Some(&byte) = self.text.get(self.at) {
            match byte {
                b' ' | b'\t' | b'\r' | b'\n' | b',' | b';' => self.at += 1,
                b'#' => {
                    let rest = &self.text[self.at..];
                    self.at += rest.iter().position(|&byte| byte == b'\n').unwrap_or(rest.len());
                }
                _ => return,
            }
        }
    }

    fn word(&mut self) -> &'t str {
        let rest = &self.text[self.at..];
        let is_word =
            |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'-' | b'+');
        let len = rest.iter().position(|byte| !is_word(byte)).unwrap_or(rest.len());
        self.at += len;
        std::str::from_utf8(&rest[..len]).unwrap_or("")
    }

    fn take(&mut self, byte: u8) -> bool {
        self.skip_space();
        let taken = self.text.get(self.at) == Some(&byte);
        self.at += usize::from(taken);
        taken
    }

    /// `{ name: "x" cost_us: 1.5 }` or `< name: "x" cost_us: 1.5 >`: a name and a time.
    fn entry(&mut self) -> Result<(String, Nanos), ProfileError> {
        self.take(b':');
        // Text protos may be written with either kind of bracket.
        let close = match (self.take(b'{'), self.take(b'<')) {
            (true, false) => b'}',
            (false, true) => b'>',
            _ => return Err(self.error("'{' is missing")),
        };
        let (mut name, mut time) = (None, None);
        while !self.take(close) {
            let field = self.word();
            if field.is_empty() || !self.take(b':') {
                return Err(self.error("a field and ':' are missing"));
            }
            self.skip_space();
            match field {
                "name" | "source" => name = Some(self.string()?),
                "cost_us" | "latency_us" => time = Some(self.micros()?),
                _ if self.text.get(self.at) == Some(&b'"') => drop(self.string()?),
                _ => drop(self.word()),
            }
        }
        match (name, time) {
            (Some(name), Some(time)) => Ok((name, time)),
            (None, _) => Err(self.error("the entry before has no name")),
            (_, None) => Err(self.error("the entry before has no time")),
        }
    }

    fn string(&mut self) -> Result<String, ProfileError> {
        let quote = self.text.get(self.at).copied().filter(|quote| matches!(quote, b'"' | b'\''));
        let Some(quote) = quote else { return Err(self.error("a name in quotes is missing")) };
        let start = self.at + 1;
        let rest = &self.text[start..];
        let Some(len) = rest.iter().position(|&byte| byte == quote) else {
            return Err(self.error("the name has no end"));
        };
        self.at = start + len + 1;
        Ok(String::from_utf8_lossy(&rest[..len]).trim_start_matches('%').to_owned())
    }

    fn micros(&mut self) -> Result<Nanos, ProfileError> {
        let time = self.word().parse().ok().map(Nanos::micros);
        let fits = |time: &Nanos| time.0.is_finite() && (0.0..=Nanos::LONGEST.0).contains(&time.0);
        time.filter(fits)
            .ok_or_else(|| self.error("a time in microseconds, zero or more, is missing"))
    }

    fn error(&self, problem: &'static str) -> ProfileError {
        let before = &self.text[..self.at.min(self.text.len())];
        let line = before.iter().filter(|&&byte| byte == b'\n').count() + 1;
        let column = before.iter().rev().take_while(|&&byte| byte != b'\n').count() + 1;
        ProfileError::NotText { line, column, problem }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_and_latencies() {
        let text = br#"# measured
            costs { name: "fusion.1" cost_us: 1.5 }
            costs: { name: "%all-gather-start" cost_us: 20, other: 3 }
            latencies { source: "all-gather-start" target: "all-gather-done" latency_us: 30 }
            costs < name: "dot" cost_us: 2 >
            costs: <name:"add" cost_us:3>
            latencies { source: "permute-start" target: "permute-done" latency_us: 7e0 }"#;
        assert!(is_one(text));
        let times: Vec<(String, f64)> =
            read(text).unwrap().into_iter().map(|(name, time)| (name, time.0)).collect();
        let expected = [
            ("fusion.1", 1500.0),
            ("all-gather-start", 20_000.0),
            ("dot", 2000.0),
            ("add", 3000.0),
            ("permute-start", 7000.0),
        ];
        assert_eq!(times, expected.map(|(name, time)| (name.to_owned(), time)));
    }

    #[test]
    fn errors_have_a_place() {
        let said = |text: &str| read(text.as_bytes()).unwrap_err().to_string();
        let wrong = said("costs { name: \"a\"\n cost_us: x }");
        assert!(
            wrong.contains("a time in microseconds, zero or more, is missing at line 2 column 12"),
            "{wrong}"
        );
        assert!(said("costs { name: \"a }").contains("the name has no end"));
        assert!(
            said("costs { cost_us: 1 }").contains("no name")
                && said("costs").contains("'{' is missing")
        );
        assert!(said("costs < name: \"a\" cost_us: 1 }").contains("a field and ':' are missing"));
        assert!(!is_one(b"{\"a\": 1}"));
    }
}
