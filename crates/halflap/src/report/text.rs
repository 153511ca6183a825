//! A summary for people: short, aligned, the most exposed first.

use std::fmt::Write;

use super::{Row, Stop, Summary, against_bound, describe};
use crate::graph::{Graph, Warning};
use crate::units::Nanos;

/// Renders a summary, with at most `most` collectives in the table.
pub fn render(graph: &Graph, summary: &Summary, most: usize) -> String {
    let mut text = String::new();
    let nodes = format!("{}, {}", count(summary.nodes, "node"), count(summary.rows.len(), "collective"));
    let share = |part: Nanos| match summary.communication {
        Nanos::ZERO => String::new(),
        whole => format!(" ({:.1}%)", 100.0 * part.0 / whole.0),
    };
    let lines = [
        ("program", nodes),
        ("communication", summary.communication.to_string()),
        (
            "step time",
            format!(
                "{} -> {}, {}",
                summary.step_time_before,
                summary.step_time,
                against_bound(summary.step_time, summary.bound)
            ),
        ),
        (
            "exposed",
            format!(
                "{}{} -> {}{}",
                summary.exposed_before,
                share(summary.exposed_before),
                summary.exposed,
                share(summary.exposed)
            ),
        ),
        ("peak memory", format!("{} -> {}", summary.peak_before, summary.peak)),
        ("moves", summary.moves.to_string()),
    ];
    for (label, value) in lines {
        let _ = writeln!(text, "{label:<14} {value}");
    }
    if !summary.rows.is_empty() {
        text.push('\n');
        text.push_str(&collectives(graph, summary, most));
    }
    text
}

fn collectives(graph: &Graph, summary: &Summary, most: usize) -> String {
    let header = ["collective", "operation", "time", "exposed", "was", "moved", "stopped by"].map(str::to_owned);
    let shown = summary.rows.iter().take(most).map(|row| cells(graph, row));
    let mut text = align(&std::iter::once(header).chain(shown).collect::<Vec<_>>());
    let hidden = summary.rows.len().saturating_sub(most);
    if hidden > 0 {
        let rest: Nanos = summary.rows[most..].iter().map(|row| row.exposed).sum();
        let _ = writeln!(text, "... and {hidden} more, {rest} exposed in all (-o FILE has every one)");
    }
    text
}

fn cells(graph: &Graph, row: &Row) -> [String; 7] {
    let what = graph.collective(row.op).map_or("", |collective| &collective.op);
    [
        printable(graph.name(row.op)),
        printable(what),
        row.time.to_string(),
        row.exposed.to_string(),
        row.exposed_before.to_string(),
        if row.shift == 0 { "-".to_owned() } else { format!("{:+}", row.shift) },
        stop(graph, &row.stop),
    ]
}

fn stop(graph: &Graph, stop: &Stop) -> String {
    let of_wait = |limit| format!("wait: {}", describe(graph, limit));
    match (&stop.collective, &stop.wait) {
        (Some(collective), Some(wait)) => format!("{}; {}", describe(graph, collective), of_wait(wait)),
        (Some(collective), None) => describe(graph, collective),
        (None, Some(wait)) => of_wait(wait),
        (None, None) => "-".to_owned(),
    }
}

/// `1 node`, `2 nodes`.
pub fn count(number: usize, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

/// A name as a terminal can take it: no control characters, nothing that turns the direction of
/// writing or ends a line, and not endless.
pub fn printable(name: &str) -> String {
    const MOST: usize = 60;
    let turns = |letter| matches!(letter, '\u{61c}' | '\u{200e}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    let clean = name.chars().flat_map(|letter| match letter.is_control() || turns(letter) {
        true => letter.escape_default().collect::<Vec<char>>(),
        false => vec![letter],
    });
    let mut clean: Vec<char> = clean.take(MOST + 1).collect();
    if clean.len() > MOST {
        clean.truncate(MOST - 3);
        clean.extend(['.'; 3]);
    }
    clean.into_iter().collect()
}

/// Columns of the width of their widest cell; numbers to the right, the last column as it is.
pub(super) fn align<const N: usize>(rows: &[[String; N]]) -> String {
    const NUMBERS: [usize; 4] = [2, 3, 4, 5];
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: [usize; N] = std::array::from_fn(width);
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (column, cell) in row.iter().enumerate() {
            let width = widths[column];
            let _ = match column {
                _ if column + 1 == N => write!(line, "{cell}"),
                _ if NUMBERS.contains(&column) => write!(line, "{cell:>width$}  "),
                _ => write!(line, "{cell:<width$}  "),
            };
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// A warning in one line.
pub fn warning(graph: &Graph, warning: &Warning) -> String {
    match *warning {
        Warning::InputsNotHeld { collectives, collective, buffer, wait } => format!(
            "{} read buffers that may be freed before they end; the first: '{}' reads '{}', and its wait '{}' is not \
             among that buffer's users",
            count(collectives, "asynchronous collective"),
            printable(graph.name(collective)),
            printable(graph.buffer_name(buffer)),
            printable(graph.name(wait))
        ),
    }
}
