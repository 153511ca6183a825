//! Tables, fitted to the terminal's width.
//!
//! If a table is too wide, text is truncated, the widest column first; if too little of it would
//! remain, the least important columns and the bars are dropped. Where columns cannot fit at all,
//! every row becomes lines of titles and values. Without a width (on a pipe) nothing is dropped.

use crate::width::{columns, padded, start};

/// What the output supports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Style {
    /// How many columns a line may have; `None` for as many as it needs.
    pub width: Option<usize>,
    /// Whether escape sequences for colours are understood.
    pub colour: bool,
    /// Whether bars are drawn, and of what.
    pub bars: Bars,
}

/// The characters of bars.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Bars {
    /// Nothing: there are none.
    #[default]
    None,
    /// `####`
    Ascii,
    /// Block elements, to an eighth of a character.
    Blocks,
}

/// How a piece of text stands out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tone {
    /// Not at all.
    Plain,
    /// A heading.
    Heading,
    /// Something still to be gained.
    Warning,
    /// Something that could not be better.
    Good,
}

impl Style {
    /// Text with the escape sequences of its tone, if they are understood.
    pub fn paint(&self, text: &str, tone: Tone) -> String {
        let code = match tone {
            _ if !self.colour || text.is_empty() => return text.to_owned(),
            Tone::Plain => return text.to_owned(),
            Tone::Heading => "1",
            Tone::Warning => "33",
            Tone::Good => "32",
        };
        format!("\x1b[{code}m{text}\x1b[0m")
    }

    /// Text whose lines end where the terminal does: the rest of a longer one is indented below it.
    pub fn fitted(&self, text: &str) -> String {
        let Some(width) = self.width else { return text.to_owned() };
        let fitted = |line: &str| match columns(line) > width {
            true => indented(line, width),
            false => format!("{line}\n"),
        };
        text.lines().map(fitted).collect()
    }

    /// A bar for a part of a whole, `BAR` characters long for all of it.
    fn bar(&self, part: f64) -> String {
        let part = if part.is_finite() { part.clamp(0.0, 1.0) } else { 0.0 };
        let eighths = (part * (8 * BAR) as f64).round() as usize;
        match self.bars {
            Bars::None => String::new(),
            // A value above zero is always visible.
            Bars::Ascii => "#".repeat(eighths.div_ceil(8)),
            Bars::Blocks => {
                let eighths = if part > 0.0 { eighths.max(1) } else { 0 };
                let rest = [' ', '▏', '▎', '▍', '▌', '▋', '▊', '▉'][eighths % 8];
                let mut bar = "█".repeat(eighths / 8);
                bar.extend((eighths % 8 > 0).then_some(rest));
                bar
            }
        }
    }
}

/// How many characters the longest bar has.
const BAR: usize = 10;
/// Text is not truncated below this.
const LEAST: usize = 8;
const GAP: &str = "  ";

/// A table.
pub struct Table {
    columns: Vec<Column>,
    rows: Vec<Vec<Cell>>,
}

/// A column.
pub struct Column {
    title: &'static str,
    kind: ColumnKind,
    tone: Tone,
    /// Its rank among columns to drop; 0 for never.
    optional: u8,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum ColumnKind {
    Text,
    /// Text that is wrapped instead of truncated.
    Wrapped,
    Number,
    Bar,
}

/// The content of a cell.
pub enum Cell {
    /// Words, or a number with its unit.
    Text(String),
    /// A part of a whole, from 0 to 1, shown as a bar.
    Part(f64),
}

impl Column {
    /// Text, which may be truncated.
    pub fn text(title: &'static str) -> Column {
        Column { title, kind: ColumnKind::Text, tone: Tone::Plain, optional: 0 }
    }

    /// Text that is never truncated: it is wrapped.
    pub fn wrapped(title: &'static str) -> Column {
        Column { title, kind: ColumnKind::Wrapped, tone: Tone::Plain, optional: 0 }
    }

    /// Numbers, to the right.
    pub fn number(title: &'static str) -> Column {
        Column { title, kind: ColumnKind::Number, tone: Tone::Plain, optional: 0 }
    }

    /// Bars, where there is room for them.
    pub fn bar() -> Column {
        Column { title: "", kind: ColumnKind::Bar, tone: Tone::Warning, optional: 1 }
    }

    /// The column may be dropped if there is no room.
    pub fn optional(self) -> Column {
        self.optional_at(2)
    }

    /// The same, with a rank: higher ranks are dropped earlier. Bars have 1, all others 2.
    pub fn optional_at(self, rank: u8) -> Column {
        Column { optional: rank, ..self }
    }

    /// The column stands out.
    pub fn tone(self, tone: Tone) -> Column {
        Column { tone, ..self }
    }
}

impl From<String> for Cell {
    fn from(text: String) -> Cell {
        Cell::Text(text)
    }
}

impl Table {
    /// A table without rows.
    pub fn new(columns: Vec<Column>) -> Table {
        Table { columns, rows: Vec::new() }
    }

    /// Adds a row with a cell for every column.
    pub fn row(&mut self, cells: Vec<Cell>) {
        assert_eq!(cells.len(), self.columns.len(), "a row has a cell for every column");
        self.rows.push(cells);
    }

    /// The lines of the table.
    pub fn render(&self, style: &Style) -> String {
        let shown = self.fit(style);
        if let Some(most) = style.width.filter(|most| total(&shown) > *most) {
            return self.records(style, most);
        }
        let heading = shown.iter().map(|&(column, _)| self.columns[column].title.to_owned());
        let mut text = self.line(&shown, heading.collect(), |column| {
            style.paint(
                column.padded,
                if column.title.is_empty() { Tone::Plain } else { Tone::Heading },
            )
        });
        for row in &self.rows {
            let cells: Vec<String> =
                shown.iter().map(|&(column, _)| self.cell(&row[column], style)).collect();
            for cells in self.lines_of(&shown, cells) {
                text.push_str(
                    &self.line(&shown, cells, |column| style.paint(column.padded, column.tone)),
                );
            }
        }
        text
    }

    /// A row's cells line by line: wrapped text continues below, all others have one line.
    fn lines_of(&self, shown: &[(usize, usize)], cells: Vec<String>) -> Vec<Vec<String>> {
        let mut lines = vec![vec![String::new(); cells.len()]];
        for (place, (&(column, width), cell)) in shown.iter().zip(cells).enumerate() {
            let parts = match self.columns[column].kind {
                ColumnKind::Wrapped => broken(&cell, width),
                _ => vec![cell],
            };
            for (number, part) in parts.into_iter().enumerate() {
                if number == lines.len() {
                    lines.push(vec![String::new(); shown.len()]);
                }
                lines[number][place] = part;
            }
        }
        lines
    }

    fn cell(&self, cell: &Cell, style: &Style) -> String {
        match cell {
            Cell::Text(text) => text.clone(),
            Cell::Part(part) => style.bar(*part),
        }
    }

    /// Which columns are shown, and how wide each is.
    fn fit(&self, style: &Style) -> Vec<(usize, usize)> {
        let mut shown: Vec<(usize, usize)> = (0..self.columns.len())
            .filter(|&column| {
                self.columns[column].kind != ColumnKind::Bar || style.bars != Bars::None
            })
            .filter(|&column| self.rows.is_empty() || self.has_values(column))
            .map(|column| (column, self.width(column)))
            .collect();
        let Some(most) = style.width else { return shown };
        while total(&self.narrowest(&shown)) > most {
            let rank =
                |&(_, &(column, _)): &(usize, &(usize, usize))| self.columns[column].optional;
            let goes = shown.iter().enumerate().filter(|column| rank(column) > 0).max_by_key(rank);
            let Some(place) = goes.map(|(place, _)| place) else { break };
            shown.remove(place);
        }
        while total(&shown) > most {
            // The first of the widest columns: the last one explains the rest.
            let texts = shown
                .iter_mut()
                .rev()
                .filter(|(column, width)| self.is_cut(*column) && *width > self.least(*column));
            let Some(widest) = texts.max_by_key(|(_, width)| *width) else { break };
            widest.1 -= 1;
        }
        // Wrapped sentences may become narrower still before columns are dropped.
        let sentence = |column: usize| self.columns[column].kind == ColumnKind::Wrapped;
        let over = total(&shown).saturating_sub(most);
        if let Some((_, width)) = shown.iter_mut().find(|(column, _)| sentence(*column)) {
            *width = width.saturating_sub(over).max(LEAST.min(*width));
        }
        shown
    }

    /// Whether a row has something in a column.
    fn has_values(&self, column: usize) -> bool {
        self.rows.iter().any(|row| match &row[column] {
            Cell::Text(text) => !text.is_empty(),
            Cell::Part(_) => true,
        })
    }

    /// Every row as lines of titles and values, where a terminal is too narrow for columns.
    fn records(&self, style: &Style, most: usize) -> String {
        let shown: Vec<usize> = (0..self.columns.len())
            .filter(|&column| self.columns[column].kind != ColumnKind::Bar)
            .collect();
        let label = shown.iter().map(|&column| columns(self.columns[column].title)).max();
        let label = label.unwrap_or(0);
        let room = most.saturating_sub(label + GAP.len()).max(LEAST);
        let mut records = Vec::new();
        for row in &self.rows {
            let mut text = String::new();
            for &at in &shown {
                let (column, value) = (&self.columns[at], self.cell(&row[at], style));
                if value.is_empty() {
                    continue;
                }
                let title = style.paint(&padded(column.title, label), Tone::Heading);
                let below = format!("\n{}{GAP}", padded("", label));
                let lines: Vec<String> = broken(&value, room)
                    .iter()
                    .map(|line| style.paint(line, column.tone))
                    .collect();
                text.push_str(&format!("{title}{GAP}{}\n", lines.join(&below)));
            }
            records.push(text);
        }
        records.join("\n")
    }

    /// The minimum width of text that is truncated or wrapped.
    fn least(&self, column: usize) -> usize {
        match self.columns[column].kind {
            ColumnKind::Wrapped => 2 * LEAST,
            _ => LEAST,
        }
    }

    /// The same columns with all text as short as acceptable; the last one explains the rest, and
    /// is shortened less.
    fn narrowest(&self, shown: &[(usize, usize)]) -> Vec<(usize, usize)> {
        let last = shown.len().saturating_sub(1);
        let narrow = |(place, &(column, width)): (usize, &(usize, usize))| {
            let least = if place == last { 3 * LEAST } else { 3 * LEAST / 2 };
            (column, if self.is_cut(column) { width.min(least) } else { width })
        };
        shown.iter().enumerate().map(narrow).collect()
    }

    fn is_cut(&self, column: usize) -> bool {
        matches!(self.columns[column].kind, ColumnKind::Text | ColumnKind::Wrapped)
    }

    fn width(&self, column: usize) -> usize {
        let title = columns(self.columns[column].title);
        let cells = self.rows.iter().map(|row| match &row[column] {
            Cell::Text(text) => columns(text),
            Cell::Part(_) => BAR,
        });
        cells.fold(title, usize::max)
    }

    fn line(
        &self,
        shown: &[(usize, usize)],
        cells: Vec<String>,
        paint: impl Fn(&Painted<'_>) -> String,
    ) -> String {
        let mut line = String::new();
        for (place, (&(column, width), cell)) in shown.iter().zip(cells).enumerate() {
            let column = &self.columns[column];
            let cell = cut(cell, width);
            let padded = match column.kind {
                ColumnKind::Number => {
                    format!("{:1$}{cell}", "", width.saturating_sub(columns(&cell)))
                }
                // Nothing stands behind the last.
                _ if place + 1 == shown.len() => cell,
                _ => padded(&cell, width),
            };
            line.push_str(if place > 0 { GAP } else { "" });
            line.push_str(&paint(&Painted {
                padded: &padded,
                title: column.title,
                tone: column.tone,
            }));
        }
        format!("{}\n", line.trim_end())
    }
}

struct Painted<'a> {
    padded: &'a str,
    title: &'a str,
    tone: Tone,
}

/// Text in lines of at most this many columns, broken at spaces; longer words are broken, too.
fn broken(text: &str, most: usize) -> Vec<String> {
    let most = most.max(1);
    let mut lines = vec![String::new()];
    let mut used = 0;
    for word in text.split(' ') {
        let mut rest = word;
        if used > 0 && used + 1 + columns(rest) > most {
            lines.push(String::new());
            used = 0;
        } else if used > 0 {
            lines.last_mut().expect("there is one").push(' ');
            used += 1;
        }
        while used + columns(rest) > most {
            // A letter that is wider than the line gets its own line.
            let first = rest.chars().next().map_or(0, char::len_utf8);
            let fits = start(rest, most - used).len();
            let (part, behind) = rest.split_at(if used == 0 { fits.max(first) } else { fits });
            lines.last_mut().expect("there is one").push_str(part);
            if behind.is_empty() {
                rest = behind;
                break;
            }
            lines.push(String::new());
            (rest, used) = (behind, 0);
        }
        used += columns(rest);
        lines.last_mut().expect("there is one").push_str(rest);
    }
    lines
}

fn total(shown: &[(usize, usize)]) -> usize {
    let widths: usize = shown.iter().map(|(_, width)| width).sum();
    widths + GAP.len() * shown.len().saturating_sub(1)
}

/// A line as lines of at most this many columns; those after the first are indented further.
fn indented(line: &str, width: usize) -> String {
    let own = line.len() - line.trim_start().len();
    let indent = (own + 4).min(width / 2);
    let at = |number: usize| if number == 0 { own.min(indent) } else { indent };
    let parts = broken(line.trim_start(), width - indent).into_iter().enumerate();
    parts.map(|(number, part)| format!("{:1$}{part}\n", "", at(number))).collect()
}

/// Text truncated to this many columns.
pub(super) fn cut(mut text: String, most: usize) -> String {
    if columns(&text) > most {
        text.truncate(start(&text, most.saturating_sub(3)).len());
        text.push_str(&"..."[..most.min(3)]);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lines_are_broken_and_nothing_is_lost() {
        let text = "  12  launch dot.5(p, q) -> dot.5\nshort\n  a_name_without_any_space\n";
        let style = Style { width: Some(16), ..Style::default() };
        let fitted = style.fitted(text);
        assert!(fitted.lines().all(|line| columns(line) <= 16), "{fitted}");
        assert!(fitted.starts_with("  12  launch\n      dot.5(p,"), "{fitted}");
        let letters = |text: &str| text.split_whitespace().collect::<String>();
        assert_eq!(letters(&fitted), letters(text));
        assert_eq!(Style::default().fitted(text), text);
        let narrow = Style { width: Some(1), ..Style::default() };
        assert_eq!(letters(&narrow.fitted("層 a")), "層a");
    }

    #[test]
    fn a_column_without_any_value_is_not_shown() {
        let mut table = Table::new(vec![Column::text("name"), Column::number("of peak")]);
        table.row(vec!["a".to_owned().into(), String::new().into()]);
        assert_eq!(table.render(&Style::default()), "name\na\n");
        table.row(vec!["b".to_owned().into(), "3%".to_owned().into()]);
        assert!(table.render(&Style::default()).starts_with("name  of peak\n"));
    }

    fn table() -> Table {
        let mut table = Table::new(vec![
            Column::text("name"),
            Column::number("time"),
            Column::bar(),
            Column::text("operation").optional(),
            Column::text("held by"),
        ]);
        for (name, time, part) in [("op0", "373 us", 1.0), ("op256", "7 ns", 0.0001)] {
            table.row(vec![
                name.to_owned().into(),
                time.to_owned().into(),
                Cell::Part(part),
                "all_gather".to_owned().into(),
                "needs a_kernel_with_a_very_long_name_indeed".to_owned().into(),
            ]);
        }
        table
    }

    #[test]
    fn a_pipe_gets_everything() {
        let expected = "\
name     time  operation   held by
op0    373 us  all_gather  needs a_kernel_with_a_very_long_name_indeed
op256    7 ns  all_gather  needs a_kernel_with_a_very_long_name_indeed
";
        assert_eq!(table().render(&Style::default()), expected);
    }

    #[test]
    fn no_line_is_wider_than_the_terminal() {
        for bars in [Bars::None, Bars::Ascii, Bars::Blocks] {
            for width in 30..120 {
                let text = table().render(&Style { width: Some(width), colour: false, bars });
                assert!(text.lines().all(|line| line.chars().count() <= width), "{width}:\n{text}");
                assert!(text.contains("op256") && text.contains("373 us"), "{width}:\n{text}");
            }
        }
    }

    #[test]
    fn wrapped_text_is_whole_at_any_width() {
        let mut table = Table::new(vec![Column::text("name"), Column::wrapped("held by")]);
        let why = "cannot start before 97 us: a_kernel_with_a_very_long_name_indeed occupies it";
        table.row(vec!["op0".to_owned().into(), why.to_owned().into()]);
        for width in 24..100 {
            let style = Style { width: Some(width), colour: false, bars: Bars::None };
            let text = table.render(&style);
            assert!(text.lines().all(|line| line.chars().count() <= width), "{width}:\n{text}");
            let letters = |text: &str| text.chars().filter(|l| !l.is_whitespace()).count();
            assert_eq!(letters(&text), letters(&format!("name held by op0 {why}")), "{text}");
        }
    }

    #[test]
    fn wide_letters_fit_and_columns_stay_in_line() {
        let mut table = Table::new(vec![
            Column::text("名前"),
            Column::number("time"),
            Column::wrapped("held by"),
        ]);
        for name in ["層.3.注意.重み", "layers.3.attention.wq", "🚀🚀🚀"] {
            let why = format!("needs {name}{name}");
            table.row(vec![name.to_owned().into(), "7 us".to_owned().into(), why.into()]);
        }
        for width in 40..100 {
            let style = Style { width: Some(width), colour: false, bars: Bars::None };
            let text = table.render(&style);
            assert!(text.lines().all(|line| columns(line) <= width), "{width}:\n{text}");
            let ends: Vec<usize> = text
                .lines()
                .filter_map(|line| line.find("7 us").map(|at| columns(&line[..at])))
                .collect();
            assert!(ends.len() == 3 && ends.iter().all(|end| *end == ends[0]), "{width}:\n{text}");
        }
    }

    #[test]
    fn a_row_becomes_a_record_where_columns_do_not_fit() {
        let titles = ["bandwidth", "limit", "of input", "step time", "exposed"];
        let mut table = Table::new(titles.map(Column::number).into());
        for bandwidth in ["0.5x", "1x"] {
            let row = [bandwidth, "320 MiB", "1.00x", "2.51 ms", "503 us"];
            table.row(row.map(|cell| cell.to_owned().into()).into());
        }
        let style = |width| Style { width: Some(width), colour: false, bars: Bars::None };
        assert_eq!(table.render(&style(60)).lines().count(), 3);
        let narrow = table.render(&style(30));
        assert!(narrow.starts_with("bandwidth  0.5x\nlimit      320 MiB\n"), "{narrow}");
        assert_eq!(narrow.lines().count(), 11, "{narrow}");
        assert!(narrow.lines().all(|line| columns(line) <= 30), "{narrow}");
    }

    #[test]
    fn bars_have_the_length_of_their_part_and_colour_only_where_it_is_understood() {
        let style = Style { width: None, colour: false, bars: Bars::Blocks };
        assert_eq!(
            [0.0, 0.0001, 0.5, 0.56, 1.0, 7.0].map(|part| style.bar(part).chars().count()),
            [0, 1, 5, 6, 10, 10]
        );
        assert!(!table().render(&style).contains('\x1b'));
        let text = table().render(&Style { colour: true, ..style });
        assert!(text.contains("\x1b[33m██████████"), "{text}");
    }
}
