//! Columns for a terminal.

use std::fmt::Write;

/// A column: its title, and whether it holds numbers, which stand to the right.
pub(super) struct Column(pub(super) &'static str, pub(super) bool);

/// Renders rows below titles, each column as wide as its widest cell.
pub(super) fn table(columns: &[Column], rows: &[Vec<String>]) -> String {
    let titles: Vec<String> = columns.iter().map(|column| column.0.to_owned()).collect();
    let width = |column: usize| {
        let cells = std::iter::once(&titles).chain(rows);
        cells.map(|row| row[column].chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns.len()).map(width).collect();
    let mut text = String::new();
    for row in std::iter::once(&titles).chain(rows) {
        let mut line = String::new();
        for ((cell, column), &width) in row.iter().zip(columns).zip(&widths) {
            let _ = match column.1 {
                true => write!(line, "{cell:>width$}  "),
                false => write!(line, "{cell:<width$}  "),
            };
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}
