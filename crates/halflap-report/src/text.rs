//! A summary for people: short, aligned, the most exposed first.

use std::fmt::Write;

use super::table::{Cell, Column, Style, Table, Tone, cut};
use super::width::columns;
use super::{Stop, Summary, against_bound, describe, describe_bound};
use halflap::graph::{Graph, Provenance, Warning};
use halflap::ids::OpId;
use halflap::units::Nanos;

/// Renders a summary, with at most `most` collectives in the table.
pub fn render(graph: &Graph, summary: &Summary, most: usize, style: &Style) -> String {
    let mut text = String::new();
    let nodes =
        format!("{}, {}", count(summary.nodes, "node"), count(summary.rows.len(), "collective"));
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
        ("lower bound", describe_bound(graph, summary.bound)),
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
        (
            "estimated",
            format!(
                "{} -> {} exposed, by the passes' own rule",
                summary.estimated_before, summary.estimated
            ),
        ),
        ("peak memory", format!("{} -> {}", summary.peak_before, summary.peak)),
        ("moves", summary.moves.to_string()),
    ];
    for (label, value) in lines {
        text.push_str(&labelled(label, &value, style));
    }
    if !summary.rows.is_empty() {
        text.push('\n');
        text.push_str(&collectives(graph, summary, most, style));
    }
    text
}

fn collectives(graph: &Graph, summary: &Summary, most: usize, style: &Style) -> String {
    let mut table = Table::new(vec![
        Column::text("collective"),
        Column::text("operation").optional_at(4),
        Column::number("time"),
        Column::number("exposed").tone(Tone::Warning),
        Column::bar(),
        Column::number("was").optional_at(2),
        Column::number("moved").optional_at(3),
        Column::wrapped("stopped by"),
    ]);
    for row in summary.rows.iter().take(most) {
        let what = graph.collective(row.op).map_or("", |collective| &collective.op);
        table.row(vec![
            called(graph, row.op).into(),
            printable(what).into(),
            row.time.to_string().into(),
            row.exposed.to_string().into(),
            Cell::Part(row.exposed.0 / summary.rows[0].exposed.0.max(f64::MIN_POSITIVE)),
            row.exposed_before.to_string().into(),
            if row.shift == 0 { "-".to_owned() } else { format!("{:+}", row.shift) }.into(),
            stop(graph, &row.stop).into(),
        ]);
    }
    let mut text = table.render(style);
    let hidden = summary.rows.len().saturating_sub(most);
    if hidden > 0 {
        let rest: Nanos = summary.rows[most..].iter().map(|row| row.exposed).sum();
        let _ =
            writeln!(text, "... and {hidden} more, {rest} exposed in all (-o FILE has every one)");
    }
    text
}

pub(super) fn stop(graph: &Graph, stop: &Stop) -> String {
    let of_wait = |limit| format!("wait: {}", describe(graph, limit));
    match (&stop.collective, &stop.wait) {
        (Some(collective), Some(wait)) => {
            format!("{}; {}", describe(graph, collective), of_wait(wait))
        }
        (Some(collective), None) => describe(graph, collective),
        (None, Some(wait)) => of_wait(wait),
        (None, None) => "-".to_owned(),
    }
}

/// A line of a headline.
pub fn labelled(label: &str, value: &str, style: &Style) -> String {
    let lines = wrapped(value, 15, style);
    format!("{} {lines}\n", style.paint(&format!("{label:<14}"), Tone::Heading))
}

/// Text that is broken at spaces where the terminal ends; further lines start with this many.
pub(super) fn wrapped(text: &str, indent: usize, style: &Style) -> String {
    let most = style.width.map_or(usize::MAX, |width| width.saturating_sub(indent).max(20));
    let mut wrapped = String::new();
    let mut used = 0;
    for word in text.split(' ') {
        let length = columns(word);
        if used > 0 && used + 1 + length > most {
            wrapped.push_str(&format!("\n{:indent$}", ""));
            used = 0;
        } else if used > 0 {
            wrapped.push(' ');
            used += 1;
        }
        wrapped.push_str(word);
        used += length;
    }
    wrapped
}

/// `1 node`, `2 nodes`.
pub fn count(number: usize, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

/// The display name of an operation: its parameter or its module if the program has it, else its
/// name.
pub fn called(graph: &Graph, op: OpId) -> String {
    called_up_to(graph, op, 60)
}

/// The same, in at most this many columns.
pub(crate) fn called_up_to(graph: &Graph, op: OpId, most: usize) -> String {
    named_by(graph.provenance(op))
        .map_or_else(|| printable_up_to(graph.name(op), most), |text| printable_end(text, most))
}

/// The parameter or the module that an operation belongs to.
pub(crate) fn named_by(known: &Provenance) -> Option<&str> {
    [&known.parameter, &known.module].into_iter().map(String::as_str).find(|text| !text.is_empty())
}

/// A name for a terminal: no control characters, and limited in length.
pub fn printable(name: &str) -> String {
    printable_up_to(name, 60)
}

/// The same, in at most this many columns.
pub(crate) fn printable_up_to(name: &str, most: usize) -> String {
    let clean = name.chars().flat_map(|letter| match is_invisible(letter) {
        true => letter.escape_default().collect::<Vec<char>>(),
        false => vec![letter],
    });
    // Marks take no columns: there may be more letters than columns.
    cut(clean.take(most.saturating_mul(4).saturating_add(1)).collect(), most)
}

/// The same without the beginning if it is too long: the end of a source location is the most
/// useful part.
pub fn printable_end(name: &str, most: usize) -> String {
    let letters = name.chars().count();
    match letters > most {
        true => printable_up_to(
            &format!("...{}", name.chars().skip(letters + 3 - most).collect::<String>()),
            most,
        ),
        false => printable_up_to(name, most),
    }
}

/// What would change how the text around it is shown: control characters, line and paragraph ends,
/// marks of writing direction, a byte order mark.
fn is_invisible(letter: char) -> bool {
    letter.is_control()
        || matches!(letter, '\u{200B}'..='\u{200F}' | '\u{2028}'..='\u{202E}')
        || matches!(letter, '\u{2060}'..='\u{206F}' | '\u{FEFF}')
}

/// The participants, as text: `8 ranks: 0-7`.
pub(crate) fn ranks(ranks: &[u32]) -> String {
    if ranks.is_empty() {
        return "this device alone".to_owned();
    }
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for &rank in ranks {
        match runs.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(rank) => *last = rank,
            _ => runs.push((rank, rank)),
        }
    }
    let run = |(first, last): &(u32, u32)| {
        if first == last { first.to_string() } else { format!("{first}-{last}") }
    };
    let runs: Vec<String> = runs.iter().take(20).map(run).collect();
    cut(format!("{}: {}", count(ranks.len(), "rank"), runs.join(",")), 60)
}

/// A warning in one line.
pub fn warning(graph: &Graph, warning: &Warning) -> String {
    match *warning {
        Warning::InputsNotHeld { collectives, collective, buffer, wait } => format!(
            "{} read buffers that may be freed before they end; the first: '{}' reads '{}', and its \
             wait '{}' is not among that buffer's users",
            count(collectives, "asynchronous collective"),
            printable(graph.name(collective)),
            printable(graph.buffer_name(buffer)),
            printable(graph.name(wait))
        ),
    }
}
