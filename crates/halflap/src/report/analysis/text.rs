//! An analysis for people: one table a question.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::{analysis_notes, group_text};
use crate::ids::{GroupId, KernelId};
use crate::observe::{Analysis, Class, Collective, Match, Operation, Rank};
use crate::report::printable;
use crate::report::table::{Cell, Column, Style, Table, Tone};
use crate::units::Nanos;

/// Renders an analysis, with at most `most` rows in the tables of collectives and kernels.
pub fn render_analysis(analysis: &Analysis, most: usize, style: &Style) -> String {
    let parts = [
        Some(ranks(analysis, style)),
        operations(analysis, style),
        collectives(analysis, most, style),
        waits(analysis, most, style),
        Some(kernels(analysis, most, style)),
    ];
    let mut text = parts.into_iter().flatten().collect::<Vec<_>>().join("\n");
    let notes = analysis_notes(analysis);
    if !notes.is_empty() {
        text.push('\n');
    }
    for note in notes {
        let _ = writeln!(text, "note: {note}");
    }
    text
}

fn table(columns: Vec<Column>, rows: impl Iterator<Item = Vec<Cell>>, style: &Style) -> String {
    let mut table = Table::new(columns);
    rows.for_each(|row| table.row(row));
    table.render(style)
}

/// A time, a number, or words.
fn cell(value: impl ToString) -> Cell {
    Cell::Text(value.to_string())
}

fn percent(part: Nanos, whole: Nanos) -> Cell {
    cell(if whole > Nanos::ZERO { format!("{:.1}%", 100.0 * part.0 / whole.0) } else { "-".to_owned() })
}

fn part(part: Nanos, whole: Nanos) -> Cell {
    Cell::Part(if whole > Nanos::ZERO { part.0 / whole.0 } else { 0.0 })
}

fn ranks(analysis: &Analysis, style: &Style) -> String {
    let several = analysis.ranks.len() > 1;
    let number = Column::number;
    let mut columns = vec![number("rank"), number("span"), number("compute"), number("communication")];
    columns.extend([number("exposed").tone(Tone::Warning), number("of comm."), Column::bar()]);
    columns.extend([number("memory").optional(), number("idle")]);
    if several {
        columns.extend([number("waiting"), number("clock").optional()]);
    }
    columns.push(Column::text("trace"));
    let row = |(place, rank): (usize, &Rank)| {
        let times = &rank.times;
        let mut row = vec![cell(rank.name())];
        row.extend([times.span, times.compute, times.communication, times.exposed].map(cell));
        row.extend([percent(times.exposed, times.communication), part(times.exposed, times.communication)]);
        row.extend([times.memory, times.idle].map(cell));
        if several {
            let clock = analysis.peers.clocks[place];
            row.push(cell(analysis.peers.ranks[place].waiting));
            row.push(cell(clock.map_or("?".to_owned(), |clock| clock.to_string())));
        }
        row.push(cell(file_name(&rank.label)));
        row
    };
    table(columns, analysis.ranks.iter().enumerate().map(row), style)
}

/// The name of a trace's file without its folder, which would push it out of the table.
fn file_name(label: &str) -> String {
    printable(label.rsplit('/').next().unwrap_or(label))
}

/// What a row of sums over ranks is about: a group, who is in it, and an operation.
type OperationKey = (String, String, Operation);

/// Sums over ranks for one operation of one group.
#[derive(Default)]
struct Sum {
    launches: usize,
    time: Nanos,
    hidden: Nanos,
    exposed: Nanos,
    transfer: Nanos,
    waiting: Nanos,
}

fn operation_key(rank: &Rank, group: GroupId, operation: Operation) -> OperationKey {
    let (name, ranks) = group_text(&rank.groups[group]);
    (name, ranks, operation)
}

fn operation_sums(analysis: &Analysis) -> Vec<(OperationKey, Sum)> {
    let mut sums: BTreeMap<OperationKey, Sum> = BTreeMap::new();
    for rank in &analysis.ranks {
        for used in &rank.operations {
            let sum = sums.entry(operation_key(rank, used.group, used.operation)).or_default();
            sum.launches += used.launches;
            sum.time += used.time;
            sum.hidden += used.hidden;
            sum.exposed += used.exposed;
        }
    }
    for found in &analysis.peers.matches {
        for member in &found.of {
            let rank = &analysis.ranks[member.rank];
            let collective = &rank.collectives[member.collective];
            let sum = sums.entry(operation_key(rank, collective.group, collective.operation)).or_default();
            sum.transfer += found.transfer;
            sum.waiting += collective.time() - found.transfer;
        }
    }
    let mut sums: Vec<_> = sums.into_iter().collect();
    sums.sort_by(|(_, a), (_, b)| b.exposed.0.total_cmp(&a.exposed.0));
    sums
}

fn operations(analysis: &Analysis, style: &Style) -> Option<String> {
    let sums = operation_sums(analysis);
    let several = analysis.ranks.len() > 1;
    let number = Column::number;
    let mut columns = vec![Column::text("group"), Column::text("of ranks").optional(), Column::text("operation")];
    columns.extend([number("launches"), number("time"), number("hidden"), number("exposed").tone(Tone::Warning)]);
    columns.push(Column::bar());
    if several {
        columns.extend([number("transfer"), number("waiting")]);
    }
    let row = |((group, ranks, operation), sum): &(OperationKey, Sum)| {
        let mut row = vec![cell(group), cell(ranks), cell(operation.name()), cell(sum.launches)];
        row.extend([sum.time, sum.hidden, sum.exposed].map(cell));
        row.push(part(sum.exposed, sum.time));
        if several {
            row.extend([sum.transfer, sum.waiting].map(cell));
        }
        row
    };
    (!sums.is_empty()).then(|| table(columns, sums.iter().map(row), style))
}

fn collectives(analysis: &Analysis, most: usize, style: &Style) -> Option<String> {
    let mut all: Vec<(&Rank, &Collective)> =
        analysis.ranks.iter().flat_map(|rank| rank.collectives.iter().map(move |of| (rank, of))).collect();
    all.retain(|(_, collective)| collective.exposed > Nanos::ZERO);
    all.sort_by(|(_, a), (_, b)| b.exposed.0.total_cmp(&a.exposed.0));
    let number = Column::number;
    let mut columns = vec![number("rank"), Column::text("most exposed"), Column::text("group").optional()];
    columns.extend([number("size").optional(), number("start"), number("time")]);
    columns.extend([number("exposed").tone(Tone::Warning), Column::bar(), number("hidden").optional()]);
    columns.extend([Column::text("behind"), Column::text("compute stood still longest")]);
    let row = |(rank, collective): &(&Rank, &Collective)| {
        vec![
            cell(rank.name()),
            cell(collective.operation.name()),
            cell(printable(&rank.groups[collective.group].name.text())),
            cell(collective.bytes.map_or("?".to_owned(), |bytes| bytes.to_string())),
            cell(collective.ran.start - rank.first),
            cell(collective.time()),
            cell(collective.exposed),
            part(collective.exposed, collective.time()),
            cell(collective.hidden),
            cell(behind(rank, collective)),
            cell(stood_still(rank, collective)),
        ]
    };
    let mut text = (!all.is_empty()).then(|| table(columns, all.iter().take(most).map(row), style))?;
    if all.len() > most {
        let rest: Nanos = all[most..].iter().map(|(_, collective)| collective.exposed).sum();
        let _ = writeln!(text, "... and {} more, {rest} exposed in all (-o FILE has every one)", all.len() - most);
    }
    Some(text)
}

/// The kernel that hid most of it.
fn behind(rank: &Rank, collective: &Collective) -> String {
    match collective.behind.as_slice() {
        [] => "-".to_owned(),
        [(kernel, _)] => short(rank.kernel(*kernel)),
        [(kernel, time), ..] => format!("{} {time}, others", short(rank.kernel(*kernel))),
    }
}

fn stood_still(rank: &Rank, collective: &Collective) -> String {
    let Some(stall) = collective.stall else { return "-".to_owned() };
    let name =
        |kernel: Option<KernelId>, none: &str| kernel.map_or(none.to_owned(), |kernel| short(rank.kernel(kernel)));
    let time = stall.when.time();
    format!("{time} from {} to {}", name(stall.after, "the start"), name(stall.before, "the end"))
}

/// A kernel's name without its template's arguments and its parameters.
fn short(name: &str) -> String {
    const MOST: usize = 32;
    let name = name.replace("(anonymous namespace)::", "");
    let bare = name.strip_prefix("void ").unwrap_or(&name);
    let bare = bare.split(['<', '(']).next().filter(|bare| !bare.is_empty()).unwrap_or(bare);
    // What tells kernels of one namespace apart stands at the end.
    let skipped = bare.chars().count().saturating_sub(MOST);
    let end: String = bare.chars().skip(skipped).collect();
    printable(&if skipped > 0 { format!("..{end}") } else { end })
}

/// The collectives that ranks waited for each other longest in.
fn waits(analysis: &Analysis, most: usize, style: &Style) -> Option<String> {
    let mut matches: Vec<&Match> = analysis.peers.matches.iter().filter(|found| found.spread > Nanos::ZERO).collect();
    matches.sort_by(|a, b| b.spread.0.total_cmp(&a.spread.0));
    let number = Column::number;
    let mut columns = vec![Column::text("longest waits"), Column::text("group"), number("ranks"), number("start")];
    columns.extend([number("transfer"), number("waiting up to").tone(Tone::Warning), number("last to arrive")]);
    let row = |found: &&Match| {
        let rank = &analysis.ranks[found.of[0].rank];
        let collective = &rank.collectives[found.of[0].collective];
        let all = found.missing.map(|missing| found.of.len() as u64 + u64::from(missing));
        let all = all.map_or("?".to_owned(), |all| all.to_string());
        vec![
            cell(found.operation.name()),
            cell(printable(&rank.groups[collective.group].name.text())),
            cell(format!("{} of {all}", found.of.len())),
            cell(collective.ran.start - rank.first),
            cell(found.transfer),
            cell(found.spread),
            cell(format!("rank {}", analysis.ranks[found.last].name())),
        ]
    };
    (!matches.is_empty()).then(|| table(columns, matches.iter().take(most).map(row), style))
}

/// Sums over ranks for one kernel.
#[derive(Default)]
struct KernelSum {
    launches: usize,
    total: Nanos,
    longest: Nanos,
}

fn kernels(analysis: &Analysis, most: usize, style: &Style) -> String {
    let mut sums: BTreeMap<(Class, &str), KernelSum> = BTreeMap::new();
    for rank in &analysis.ranks {
        for used in &rank.kernel_uses {
            let kernel = &rank.kernels[used.kernel];
            let sum = sums.entry((kernel.class, &kernel.name)).or_default();
            sum.launches += used.launches;
            sum.total += used.total;
            sum.longest = sum.longest.max(used.longest);
        }
    }
    let whole: Nanos = sums.values().map(|sum| sum.total).sum();
    let mut sums: Vec<_> = sums.into_iter().collect();
    sums.sort_by(|(_, a), (_, b)| b.total.0.total_cmp(&a.total.0));
    let number = Column::number;
    let mut columns = vec![number("total"), number("share"), Column::bar(), number("launches"), number("mean")];
    columns.extend([number("longest").optional(), Column::text("class").optional(), Column::text("kernel")]);
    let row = |((class, name), sum): &((Class, &str), KernelSum)| {
        vec![
            cell(sum.total),
            percent(sum.total, whole),
            part(sum.total, whole),
            cell(sum.launches),
            cell(sum.total * (1.0 / sum.launches.max(1) as f64)),
            cell(sum.longest),
            cell(class.name()),
            cell(printable(name)),
        ]
    };
    let mut text = table(columns, sums.iter().take(most).map(row), style);
    if sums.len() > most {
        let rest: Nanos = sums[most..].iter().map(|(_, sum)| sum.total).sum();
        let _ = writeln!(text, "... and {} more, {rest} in all", sums.len() - most);
    }
    text
}
