//! An analysis for people: one table a question.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::analysis_notes;
use super::table::{Column, table};
use crate::ids::KernelId;
use crate::observe::{Analysis, Class, Collective, Operation, Rank};
use crate::report::printable;
use crate::units::Nanos;

const LEFT: bool = false;
const RIGHT: bool = true;

/// Renders an analysis, with at most `most` rows in the tables of collectives and kernels.
pub fn render_analysis(analysis: &Analysis, most: usize) -> String {
    let parts = [
        Some(ranks(analysis)),
        operations(analysis),
        collectives(analysis, most),
        waits(analysis, most),
        Some(kernels(analysis, most)),
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

fn percent(part: Nanos, whole: Nanos) -> String {
    if whole > Nanos::ZERO { format!("{:.1}%", 100.0 * part.0 / whole.0) } else { "-".to_owned() }
}

fn ranks(analysis: &Analysis) -> String {
    let several = analysis.ranks.len() > 1;
    let mut columns = vec![
        Column("rank", RIGHT),
        Column("span", RIGHT),
        Column("compute", RIGHT),
        Column("communication", RIGHT),
        Column("exposed", RIGHT),
        Column("of comm.", RIGHT),
        Column("memory", RIGHT),
        Column("idle", RIGHT),
    ];
    if several {
        columns.extend([Column("waiting", RIGHT), Column("clock", RIGHT)]);
    }
    columns.push(Column("trace", LEFT));
    let row = |(place, rank): (usize, &Rank)| {
        let times = &rank.times;
        let spent = [times.span, times.compute, times.communication, times.exposed];
        let mut row = vec![rank.name()];
        row.extend(spent.map(|time| time.to_string()));
        row.push(percent(times.exposed, times.communication));
        row.extend([times.memory, times.idle].map(|time| time.to_string()));
        if several {
            let clock = analysis.peers.clocks[place];
            row.push(analysis.peers.ranks[place].waiting.to_string());
            row.push(clock.map_or("?".to_owned(), |clock| format!("{}{clock}", if clock.0 > 0.0 { "+" } else { "" })));
        }
        row.push(file_name(&rank.label));
        row
    };
    table(&columns, &analysis.ranks.iter().enumerate().map(row).collect::<Vec<_>>())
}

/// Sums over ranks for one operation of one group.
#[derive(Default)]
struct Sum {
    ranks: usize,
    launches: usize,
    times: [Nanos; 3],
    transfer: Nanos,
    waiting: Nanos,
}

fn operations(analysis: &Analysis) -> Option<String> {
    let mut sums: BTreeMap<(String, String, Operation), Sum> = BTreeMap::new();
    for rank in &analysis.ranks {
        for used in &rank.operations {
            let sum = sums.entry(group_key(rank, used.group, used.operation)).or_default();
            sum.ranks += 1;
            sum.launches += used.launches;
            sum.times = std::array::from_fn(|at| sum.times[at] + [used.time, used.hidden, used.exposed][at]);
        }
    }
    for found in &analysis.peers.matches {
        for member in &found.of {
            let rank = &analysis.ranks[member.rank];
            let collective = &rank.collectives[member.collective];
            let sum = sums.entry(group_key(rank, collective.group, collective.operation)).or_default();
            sum.transfer += found.transfer;
            sum.waiting += collective.time() - found.transfer;
        }
    }
    let several = analysis.ranks.len() > 1;
    let mut columns = vec![
        Column("group", LEFT),
        Column("of ranks", LEFT),
        Column("operation", LEFT),
        Column("launches", RIGHT),
        Column("time", RIGHT),
        Column("hidden", RIGHT),
        Column("exposed", RIGHT),
    ];
    if several {
        columns.extend([Column("transfer", RIGHT), Column("waiting", RIGHT)]);
    }
    let mut sums: Vec<_> = sums.into_iter().collect();
    sums.sort_by(|(_, a), (_, b)| b.times[2].0.total_cmp(&a.times[2].0));
    let row = |((group, ranks, operation), sum): &((String, String, Operation), Sum)| {
        let mut row = vec![printable(group), printable(ranks), operation.name().to_owned(), sum.launches.to_string()];
        row.extend(sum.times.map(|time| time.to_string()));
        if several {
            row.extend([sum.transfer, sum.waiting].map(|time| time.to_string()));
        }
        row
    };
    (!sums.is_empty()).then(|| table(&columns, &sums.iter().map(row).collect::<Vec<_>>()))
}

fn group_key(rank: &Rank, group: crate::ids::GroupId, operation: Operation) -> (String, String, Operation) {
    let group = &rank.groups[group];
    let ranks = match (&group.ranks, group.size()) {
        (Some(ranks), _) => format!("{}: {}", ranks.len(), runs(ranks)),
        (None, Some(size)) => size.to_string(),
        (None, None) => "?".to_owned(),
    };
    let name = match group.description.as_str() {
        "" | "undefined" => group.name.text(),
        description => format!("{} ({description})", group.name.text()),
    };
    (name, ranks, operation)
}

/// `0-3, 8`.
pub(crate) fn runs(ranks: &[u32]) -> String {
    let mut parts: Vec<(u32, u32)> = Vec::new();
    for &rank in ranks {
        match parts.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(rank) => *last = rank,
            _ => parts.push((rank, rank)),
        }
    }
    let part = |(first, last): &(u32, u32)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    };
    parts.iter().map(part).collect::<Vec<_>>().join(", ")
}

fn collectives(analysis: &Analysis, most: usize) -> Option<String> {
    let mut all: Vec<(&Rank, &Collective)> =
        analysis.ranks.iter().flat_map(|rank| rank.collectives.iter().map(move |of| (rank, of))).collect();
    all.retain(|(_, collective)| collective.exposed > Nanos::ZERO);
    all.sort_by(|(_, a), (_, b)| b.exposed.0.total_cmp(&a.exposed.0));
    let columns = [
        Column("rank", RIGHT),
        Column("most exposed", LEFT),
        Column("group", LEFT),
        Column("size", RIGHT),
        Column("start", RIGHT),
        Column("time", RIGHT),
        Column("exposed", RIGHT),
        Column("hidden", RIGHT),
        Column("behind", LEFT),
        Column("compute stood still longest", LEFT),
    ];
    let row = |(rank, collective): &(&Rank, &Collective)| {
        vec![
            rank.name(),
            collective.operation.name().to_owned(),
            printable(&rank.groups[collective.group].name.text()),
            collective.bytes.map_or("?".to_owned(), |bytes| bytes.to_string()),
            (collective.ran.start - rank.first).to_string(),
            collective.time().to_string(),
            collective.exposed.to_string(),
            collective.hidden.to_string(),
            behind(rank, collective),
            stood_still(rank, collective),
        ]
    };
    let rows: Vec<_> = all.iter().take(most).map(row).collect();
    let mut text = (!rows.is_empty()).then(|| table(&columns, &rows))?;
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
        [(kernel, _)] => short(rank, *kernel),
        [(kernel, time), ..] => format!("{} {time}, others", short(rank, *kernel)),
    }
}

fn stood_still(rank: &Rank, collective: &Collective) -> String {
    let Some(stall) = collective.stall else { return "-".to_owned() };
    let name = |kernel: Option<KernelId>, none: &str| kernel.map_or(none.to_owned(), |kernel| short(rank, kernel));
    let time = stall.when.time();
    format!("{time} from {} to {}", name(stall.after, "the start"), name(stall.before, "the end"))
}

/// A kernel's name without its template's arguments and its parameters.
fn short(rank: &Rank, kernel: KernelId) -> String {
    const MOST: usize = 32;
    let name = rank.kernel(kernel).replace("(anonymous namespace)::", "");
    let bare = name.strip_prefix("void ").unwrap_or(&name);
    let bare = bare.split(['<', '(']).next().filter(|bare| !bare.is_empty()).unwrap_or(bare);
    // What tells kernels of one namespace apart stands at the end.
    let skipped = bare.chars().count().saturating_sub(MOST);
    let end: String = bare.chars().skip(skipped).collect();
    printable(&if skipped > 0 { format!("..{end}") } else { end })
}

/// The name of a trace's file without its folder, which would push it out of the table.
fn file_name(label: &str) -> String {
    printable(label.rsplit('/').next().unwrap_or(label))
}

/// Collectives for which ranks waited longest.
fn waits(analysis: &Analysis, most: usize) -> Option<String> {
    let mut matches: Vec<_> = analysis.peers.matches.iter().filter(|found| found.spread > Nanos::ZERO).collect();
    matches.sort_by(|a, b| b.spread.0.total_cmp(&a.spread.0));
    let columns = [
        Column("longest waits", LEFT),
        Column("group", LEFT),
        Column("ranks", RIGHT),
        Column("start", RIGHT),
        Column("transfer", RIGHT),
        Column("waiting up to", RIGHT),
        Column("last to arrive", RIGHT),
    ];
    let row = |found: &&crate::observe::Match| {
        let member = &found.of[0];
        let rank = &analysis.ranks[member.rank];
        let collective = &rank.collectives[member.collective];
        let of =
            found.missing.map_or("?".to_owned(), |missing| (found.of.len() as u64 + u64::from(missing)).to_string());
        vec![
            found.operation.name().to_owned(),
            printable(&rank.groups[collective.group].name.text()),
            format!("{} of {of}", found.of.len()),
            (collective.ran.start - rank.first).to_string(),
            found.transfer.to_string(),
            found.spread.to_string(),
            format!("rank {}", analysis.ranks[found.last].name()),
        ]
    };
    let rows: Vec<_> = matches.iter().take(most).map(row).collect();
    (!rows.is_empty()).then(|| table(&columns, &rows))
}

fn kernels(analysis: &Analysis, most: usize) -> String {
    let mut sums: BTreeMap<(Class, &str), (usize, Nanos, Nanos)> = BTreeMap::new();
    for rank in &analysis.ranks {
        for used in &rank.kernel_uses {
            let kernel = &rank.kernels[used.kernel];
            let sum = sums.entry((kernel.class, &kernel.name)).or_default();
            *sum = (sum.0 + used.launches, sum.1 + used.total, sum.2.max(used.longest));
        }
    }
    let whole: Nanos = sums.values().map(|(_, total, _)| *total).sum();
    let mut sums: Vec<_> = sums.into_iter().collect();
    sums.sort_by(|(_, (_, a, _)), (_, (_, b, _))| b.0.total_cmp(&a.0));
    let columns = [
        Column("total", RIGHT),
        Column("share", RIGHT),
        Column("launches", RIGHT),
        Column("mean", RIGHT),
        Column("longest", RIGHT),
        Column("class", LEFT),
        Column("kernel", LEFT),
    ];
    let row = |((class, name), (launches, total, longest)): &((Class, &str), (usize, Nanos, Nanos))| {
        vec![
            total.to_string(),
            percent(*total, whole),
            launches.to_string(),
            (*total * (1.0 / *launches as f64)).to_string(),
            longest.to_string(),
            class.name().to_owned(),
            printable(name),
        ]
    };
    let mut text = table(&columns, &sums.iter().take(most).map(row).collect::<Vec<_>>());
    if sums.len() > most {
        let rest: Nanos = sums[most..].iter().map(|(_, (_, total, _))| *total).sum();
        let _ = writeln!(text, "... and {} more, {rest} in all", sums.len() - most);
    }
    text
}
