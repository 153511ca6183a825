//! How wide text is on a terminal.
//!
//! Letters of East Asian scripts and emoji take two columns, combining marks none. Names of
//! programs may contain any of them.

/// Ranges of letters that take two columns: blocks of Unicode that are wide or full-width.
const WIDE: [(char, char); 17] = [
    ('\u{1100}', '\u{115F}'),
    ('\u{2E80}', '\u{303E}'),
    ('\u{3041}', '\u{33FF}'),
    ('\u{3400}', '\u{4DBF}'),
    ('\u{4E00}', '\u{9FFF}'),
    ('\u{A000}', '\u{A4CF}'),
    ('\u{A960}', '\u{A97F}'),
    ('\u{AC00}', '\u{D7A3}'),
    ('\u{F900}', '\u{FAFF}'),
    ('\u{FE30}', '\u{FE6F}'),
    ('\u{FF00}', '\u{FF60}'),
    ('\u{FFE0}', '\u{FFE6}'),
    ('\u{1F300}', '\u{1F64F}'),
    ('\u{1F680}', '\u{1F6FF}'),
    ('\u{1F900}', '\u{1FAFF}'),
    ('\u{20000}', '\u{2FFFD}'),
    ('\u{30000}', '\u{3FFFD}'),
];

/// Ranges of marks that take none.
const MARKS: [(char, char); 7] = [
    ('\u{0300}', '\u{036F}'),
    ('\u{0483}', '\u{0489}'),
    ('\u{1AB0}', '\u{1AFF}'),
    ('\u{1DC0}', '\u{1DFF}'),
    ('\u{20D0}', '\u{20FF}'),
    ('\u{FE00}', '\u{FE0F}'),
    ('\u{FE20}', '\u{FE2F}'),
];

/// How many columns a letter takes.
pub(crate) fn of_letter(letter: char) -> usize {
    let is_in = |ranges: &[(char, char)]| {
        ranges.iter().any(|(first, last)| (*first..=*last).contains(&letter))
    };
    match letter {
        ..'\u{0300}' => 1,
        _ if is_in(&MARKS) => 0,
        _ if is_in(&WIDE) => 2,
        _ => 1,
    }
}

/// How many columns text takes.
pub fn columns(text: &str) -> usize {
    text.chars().map(of_letter).sum()
}

/// As much of the beginning of a text as fits into this many columns.
pub fn start(text: &str, most: usize) -> &str {
    let mut used = 0;
    let end = text.char_indices().find(|(_, letter)| {
        used += of_letter(*letter);
        used > most
    });
    end.map_or(text, |(end, _)| &text[..end])
}

/// Text with spaces behind it up to this many columns.
pub(crate) fn padded(text: &str, to: usize) -> String {
    format!("{text}{:1$}", "", to.saturating_sub(columns(text)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn letters_take_the_columns_that_terminals_give_them() {
        assert_eq!(columns("all_gather ->"), 13);
        assert_eq!(columns("層.重み"), 7);
        assert_eq!(columns("한글 🚀"), 7);
        assert_eq!(columns("e\u{301}te\u{301}"), 3);
        assert_eq!(columns("Größe █"), 7);
    }

    #[test]
    fn a_wide_letter_is_never_cut_in_two() {
        assert_eq!(start("層重み", 5), "層重");
        assert_eq!(start("層重み", 6), "層重み");
        assert_eq!(start("abc", 2), "ab");
        assert_eq!(padded("層", 4), "層  ");
        assert_eq!(padded("abcde", 4), "abcde");
    }
}
