//! An analysis for people: one table a question.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::names::{short, without_middle};
use super::{analysis_advice, analysis_notes, group_text, kernel_rate, work_name};
use crate::advice::render_lines;
use crate::observe::ids::KernelId;
use crate::observe::{
    Analysis, Class, KernelUse, Match, ObservedCollective, PeerLaunch, Processor, Rank, RankSpent,
};
use crate::printable;
use crate::rates::{Moved, mean_bus_rate, percent as percent_of};
use crate::table::{Cell, Column, Style, Table, Tone};
use crate::text::wrapped;
use halflap::collective::CollectiveKind;
use halflap::ids::GroupId;
use halflap::units::Nanos;

/// How many launches of one collective, on several ranks, are listed.
const ALIKE: usize = 2;

/// Renders an analysis, with at most `most` rows in the tables of ranks, collectives and kernels.
pub fn render_analysis(analysis: &Analysis, most: usize, style: &Style) -> String {
    let parts = [
        Some(render_lines(&analysis_advice(analysis), style)),
        Some(
            all_ranks(analysis, style)
                + &ranks(analysis, most, style)
                + &idle_lines(analysis, style),
        ),
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

/// A time or a rate, if it is known.
fn maybe(value: Option<impl ToString>) -> Cell {
    cell(value.map_or("?".to_owned(), |value| value.to_string()))
}

fn percent(part: Nanos, whole: Nanos) -> Cell {
    cell(if whole > Nanos::ZERO {
        format!("{:.1}%", 100.0 * part.0 / whole.0)
    } else {
        "-".to_owned()
    })
}

fn part(part: Nanos, whole: Nanos) -> Cell {
    Cell::Part(if whole > Nanos::ZERO { part.0 / whole.0 } else { 0.0 })
}

/// A part of what a rank's time was spent on.
pub(crate) type SpentPart = fn(&RankSpent) -> Nanos;

/// `2 ranks: span 1.22 s on average (1.22 s to 1.23 s), exposed ...`; nothing for one.
pub(crate) fn spread_text(analysis: &Analysis) -> Option<String> {
    let figures: [(&str, SpentPart); 4] = [
        ("span", |times| times.span),
        ("compute", |times| times.compute),
        ("exposed", |times| times.exposed),
        ("idle", |times| times.idle),
    ];
    let count = analysis.ranks.len();
    let said = figures.map(|(what, of)| {
        let sum: Nanos = analysis.ranks.iter().map(|rank| of(&rank.times)).sum();
        format!("{what} {} ({})", Nanos(sum.0 / count.max(1) as f64), spread(analysis, of))
    });
    (count > 1).then(|| format!("{count} ranks, on average: {}", said.join(", ")))
}

/// `304 ms to 337 ms`: the least and the most of any rank.
pub(crate) fn spread(analysis: &Analysis, of: SpentPart) -> String {
    let all = || analysis.ranks.iter().map(|rank| of(&rank.times));
    let most = all().fold(Nanos::ZERO, Nanos::max);
    format!("{} to {most}", all().fold(most, Nanos::min))
}

fn all_ranks(analysis: &Analysis, style: &Style) -> String {
    let text = spread_text(analysis).map(|text| wrapped(&text, 2, style) + "\n");
    text.unwrap_or_default()
}

fn ranks(analysis: &Analysis, most: usize, style: &Style) -> String {
    let several = analysis.ranks.len() > 1;
    let number = Column::number;
    let mut columns =
        vec![number("rank"), number("span"), number("compute"), number("communication")];
    columns.extend([number("exposed").tone(Tone::Warning), number("of comm."), Column::bar()]);
    columns.extend([number("memory").optional(), number("idle")]);
    if several {
        columns.extend([number("waiting"), number("clock").optional()]);
    }
    columns.push(Column::text("trace"));
    let exposed = analysis.ranks.iter().map(|rank| rank.times.exposed);
    let longest = exposed.fold(Nanos::ZERO, Nanos::max);
    let row = |place: usize| {
        let rank = &analysis.ranks[place];
        let times = &rank.times;
        let mut row = vec![cell(rank.name())];
        row.extend([times.span, times.compute, times.communication, times.exposed].map(cell));
        row.extend([percent(times.exposed, times.communication), part(times.exposed, longest)]);
        row.extend([times.memory, times.idle].map(cell));
        if several {
            let waiting =
                analysis.peers.ranks[place].transfer_and_waiting().map(|(_, waiting)| waiting);
            row.extend([waiting, analysis.peers.clocks[place]].map(maybe));
        }
        row.push(cell(file_name(&rank.label)));
        row
    };
    let mut shown: Vec<usize> = (0..analysis.ranks.len()).collect();
    let left_out = shown.len().saturating_sub(most);
    if left_out > 0 {
        let exposed = |place: &usize| analysis.ranks[*place].times.exposed.0;
        shown.sort_by(|a, b| exposed(b).total_cmp(&exposed(a)));
    }
    let mut text = table(columns, shown.iter().take(most).map(|&place| row(place)), style);
    if left_out > 0 {
        let least = shown.last().map_or(Nanos::ZERO, |&place| analysis.ranks[place].times.exposed);
        let _ = writeln!(
            text,
            "... and {left_out} more, the least exposed with {least} (-o FILE has every one)"
        );
    }
    text
}

/// How many ranks have their idle time explained.
const IDLE: usize = 4;

/// Why nothing ran, for the ranks with the most idle time.
fn idle_lines(analysis: &Analysis, style: &Style) -> String {
    let mut ranks: Vec<&Rank> =
        analysis.ranks.iter().filter(|rank| rank.times.idle > Nanos::ZERO).collect();
    ranks.sort_by(|a, b| b.times.idle.0.total_cmp(&a.times.idle.0));
    let lines = ranks.into_iter().take(IDLE).map(|rank| {
        wrapped(&format!("rank {}: {}", rank.name(), idle_text(rank)), 2, style) + "\n"
    });
    lines.collect()
}

/// `idle 55.1% of the span (364 ms): host-bound 301 ms, launch gaps 20 ms`.
pub(crate) fn idle_text(rank: &Rank) -> String {
    let RankSpent { idle, span, .. } = rank.times;
    let parts = rank.idle.parts();
    let known: Vec<String> = parts
        .iter()
        .filter(|(_, time)| *time > Nanos::ZERO)
        .map(|(what, time)| format!("{what} {time}"))
        .collect();
    let why = match (&rank.processor, rank.idle.unknown == rank.idle.total()) {
        (Processor::Cpu, _) => "no operator runs".to_owned(),
        (Processor::Gpu, true) => "the trace does not say who launched what came next".to_owned(),
        _ => known.join(", "),
    };
    format!("idle {:.1}% of the span ({idle}): {why}", 100.0 * idle.0 / span.0.max(1.0))
}

/// The name of a trace's file without its folder, which would push it out of the table.
pub(crate) fn file_name(label: &str) -> String {
    printable(label.rsplit('/').next().unwrap_or(label))
}

/// The key of a row of sums over ranks: a group, its members, and an operation.
type OperationKey = (String, String, CollectiveKind);

/// Sums over ranks for one operation of one group.
#[derive(Default)]
struct Sum {
    launches: usize,
    time: Nanos,
    hidden: Nanos,
    exposed: Nanos,
    /// Whether some were found on several ranks.
    transfer_and_waiting: Option<(Nanos, Nanos)>,
    moved: Vec<Moved>,
}

fn operation_key(rank: &Rank, group: GroupId, operation: CollectiveKind) -> OperationKey {
    let (name, ranks) = group_text(&rank.groups[group]);
    (name, ranks, operation)
}

fn operation_sums(analysis: &Analysis) -> Vec<(OperationKey, Sum)> {
    let mut sums: BTreeMap<OperationKey, Sum> = BTreeMap::new();
    for (rank, moved) in analysis.ranks.iter().zip(analysis.moved()) {
        for of in moved {
            sums.entry(operation_key(rank, of.group, of.kind)).or_default().moved.push(of);
        }
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
            let sum = sums
                .entry(operation_key(rank, collective.group, collective.operation))
                .or_default();
            let (transfer, waiting) = sum.transfer_and_waiting.get_or_insert_default();
            *transfer += found.transfer;
            *waiting += collective.time() - found.transfer;
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
    let mut columns =
        vec![Column::text("group"), Column::text("of ranks").optional(), Column::text("operation")];
    columns.extend([
        number("launches"),
        number("time"),
        number("hidden"),
        number("exposed").tone(Tone::Warning),
    ]);
    columns.push(Column::bar());
    if several {
        columns.extend([number("transfer"), number("waiting")]);
    }
    columns.push(number("bus rate").optional());
    // One scale for all rows: longer bars are longer times.
    let longest = sums.iter().map(|(_, sum)| sum.exposed).fold(Nanos::ZERO, Nanos::max);
    let row = |((group, ranks, operation), sum): &(OperationKey, Sum)| {
        let mut row = vec![cell(group), cell(ranks), cell(operation.name()), cell(sum.launches)];
        row.extend([sum.time, sum.hidden, sum.exposed].map(cell));
        row.push(part(sum.exposed, longest));
        if several {
            let (transfer, waiting) = sum.transfer_and_waiting.unzip();
            row.extend([transfer, waiting].map(maybe));
        }
        row.push(maybe(mean_bus_rate(sum.moved.iter())));
        row
    };
    (!sums.is_empty()).then(|| table(columns, sums.iter().map(row), style))
}

fn collectives(analysis: &Analysis, most: usize, style: &Style) -> Option<String> {
    let zeros = analysis.zeros();
    let (shown, left_out, rest) = most_exposed(analysis, most);
    let number = Column::number;
    let mut columns =
        vec![number("rank"), Column::text("most exposed"), Column::text("group").optional()];
    columns.extend([number("size").optional(), number("start"), number("time")]);
    columns.extend([number("bus rate").optional(), number("of best").optional()]);
    columns.extend([
        number("exposed").tone(Tone::Warning),
        Column::bar(),
        number("hidden").optional(),
    ]);
    columns.extend([Column::text("behind"), Column::text("longest stall of compute")]);
    let exposed = |of: &PeerLaunch| analysis.ranks[of.rank].collectives[of.collective].exposed;
    let longest = shown.iter().map(exposed).fold(Nanos::ZERO, Nanos::max);
    let row = |&PeerLaunch { rank: place, collective }: &PeerLaunch| {
        let rank = &analysis.ranks[place];
        let rate = analysis.rates[place][collective];
        let collective = &rank.collectives[collective];
        vec![
            cell(rank.name()),
            cell(collective.operation.name()),
            cell(printable(&rank.groups[collective.group].name.text())),
            maybe(collective.bytes),
            cell(collective.ran.start - zeros[place]),
            cell(collective.time()),
            maybe(rate.map(|rate| rate.rate)),
            maybe(rate.map(|rate| rate.share())),
            cell(collective.exposed),
            part(collective.exposed, longest),
            cell(collective.hidden),
            cell(behind(rank, collective)),
            cell(stood_still(rank, collective)),
        ]
    };
    let mut text = (!shown.is_empty() || left_out > 0)
        .then(|| table(columns, shown.iter().map(row), style))?;
    if left_out > 0 {
        let _ = writeln!(
            text,
            "... and {left_out} more, {rest} exposed in all (-o FILE has every one)"
        );
    }
    Some(text)
}

/// The most exposed launches, only a few of each collective; how many more are exposed, and for how
/// long.
fn most_exposed(analysis: &Analysis, most: usize) -> (Vec<PeerLaunch>, usize, Nanos) {
    let of = |member: &PeerLaunch| &analysis.ranks[member.rank].collectives[member.collective];
    let matches = analysis.matches_of();
    let mut all: Vec<PeerLaunch> = Vec::new();
    for (rank, of) in analysis.ranks.iter().enumerate() {
        let exposed = of
            .collectives
            .iter()
            .enumerate()
            .filter(|(_, collective)| collective.exposed > Nanos::ZERO);
        all.extend(exposed.map(|(collective, _)| PeerLaunch { rank, collective }));
    }
    // Ranks that do the same have the same times: the first launches of all ranks come before
    // further launches of the first rank.
    all.sort_by(|a, b| {
        of(b).exposed.0.total_cmp(&of(a).exposed.0).then(a.collective.cmp(&b.collective))
    });
    let mut listed = vec![0; analysis.peers.matches.len()];
    let (mut shown, mut left_out, mut rest) = (Vec::new(), 0, Nanos::ZERO);
    for member in all {
        let alike = matches[member.rank][member.collective].map(|found| &mut listed[found]);
        if shown.len() < most && alike.as_ref().is_none_or(|alike| **alike < ALIKE) {
            alike.into_iter().for_each(|alike| *alike += 1);
            shown.push(member);
        } else {
            left_out += 1;
            rest += of(&member).exposed;
        }
    }
    (shown, left_out, rest)
}

/// The kernel that hid most of it.
fn behind(rank: &Rank, collective: &ObservedCollective) -> String {
    match collective.behind.as_slice() {
        [] => "-".to_owned(),
        [(kernel, _)] => short(rank.kernel(*kernel)),
        [(kernel, time), ..] => format!("{} {time}, others", short(rank.kernel(*kernel))),
    }
}

fn stood_still(rank: &Rank, collective: &ObservedCollective) -> String {
    let Some(stall) = collective.stall else { return "-".to_owned() };
    let name = |kernel: Option<KernelId>, none: &str| {
        kernel.map_or(none.to_owned(), |kernel| short(rank.kernel(kernel)))
    };
    let time = stall.when.time();
    format!("{time} from {} to {}", name(stall.after, "the start"), name(stall.before, "the end"))
}

/// The collectives with the longest waits between ranks.
fn waits(analysis: &Analysis, most: usize, style: &Style) -> Option<String> {
    let mut matches: Vec<&Match> =
        analysis.peers.matches.iter().filter(|found| found.spread > Nanos::ZERO).collect();
    matches.sort_by(|a, b| b.spread.0.total_cmp(&a.spread.0));
    let number = Column::number;
    let mut columns = vec![
        Column::text("longest waits"),
        Column::text("group"),
        number("ranks"),
        number("start"),
    ];
    columns.extend([
        number("transfer"),
        number("waiting up to").tone(Tone::Warning),
        number("last to arrive"),
    ]);
    let zeros = analysis.zeros();
    let row = |found: &&Match| {
        let rank = &analysis.ranks[found.of[0].rank];
        let collective = &rank.collectives[found.of[0].collective];
        let all = found.missing.map(|missing| found.of.len() as u64 + u64::from(missing));
        let all = all.map_or("?".to_owned(), |all| all.to_string());
        vec![
            cell(found.operation.name()),
            cell(printable(&rank.groups[collective.group].name.text())),
            cell(format!("{} of {all}", found.of.len())),
            cell(collective.ran.start - zeros[found.of[0].rank]),
            cell(found.transfer),
            cell(found.spread),
            cell(format!("rank {}", analysis.ranks[found.last].name())),
        ]
    };
    let mut text =
        (!matches.is_empty()).then(|| table(columns, matches.iter().take(most).map(row), style))?;
    if matches.len() > most {
        let _ = writeln!(text, "... and {} more (-o FILE has every one)", matches.len() - most);
    }
    Some(text)
}

/// Sums over ranks for one kernel.
#[derive(Default)]
struct KernelSum<'a> {
    launches: usize,
    total: Nanos,
    longest: Nanos,
    uses: Vec<(&'a Rank, &'a KernelUse)>,
}

fn kernels(analysis: &Analysis, most: usize, style: &Style) -> String {
    let mut sums: BTreeMap<(Class, &str), KernelSum<'_>> = BTreeMap::new();
    for rank in &analysis.ranks {
        for used in &rank.kernel_uses {
            let kernel = &rank.kernels[used.kernel];
            let sum = sums.entry((kernel.class, &kernel.name)).or_default();
            sum.launches += used.launches;
            sum.total += used.total;
            sum.longest = sum.longest.max(used.longest);
            sum.uses.push((rank, used));
        }
    }
    let whole: Nanos = sums.values().map(|sum| sum.total).sum();
    let mut sums: Vec<_> = sums.into_iter().collect();
    sums.sort_by(|(_, a), (_, b)| b.total.0.total_cmp(&a.total.0));
    // Pipes have room for columns that a terminal does not.
    let longest_name = if style.width.is_none() { 300 } else { 60 };
    let number = Column::number;
    let mut columns =
        vec![number("total"), number("share"), Column::bar(), number("launches"), number("mean")];
    let is_rated = sums.iter().take(most).any(|(_, sum)| kernel_rate(&sum.uses).is_some());
    if is_rated {
        columns.extend([number("FLOP/s").optional(), number("of peak").optional()]);
    }
    columns.extend([
        number("longest").optional(),
        Column::text("class").optional(),
        Column::text(work_name(analysis)),
    ]);
    let row = |((class, name), sum): &((Class, &str), KernelSum<'_>)| {
        let longest = sums.first().map_or(whole, |(_, longest)| longest.total);
        let mut row = vec![cell(sum.total), percent(sum.total, whole), part(sum.total, longest)];
        row.extend([cell(sum.launches), cell(sum.total * (1.0 / sum.launches.max(1) as f64))]);
        if is_rated {
            let rate = kernel_rate(&sum.uses);
            row.push(cell(rate.map_or(String::new(), |rate| rate.flops.to_string())));
            row.push(cell(rate.and_then(|rate| rate.of_peak).map_or(String::new(), percent_of)));
        }
        row.extend([
            cell(sum.longest),
            cell(class.name()),
            cell(without_middle(name, longest_name)),
        ]);
        row
    };
    let mut text = table(columns, sums.iter().take(most).map(row), style);
    if sums.len() > most {
        let rest: Nanos = sums[most..].iter().map(|(_, sum)| sum.total).sum();
        let _ = writeln!(text, "... and {} more, {rest} in all", sums.len() - most);
    }
    text
}
