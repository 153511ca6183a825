//! A module's computations on the terminal: all in a table, and the worst one by one.

use std::fmt::Write;

use halflap::explain::{Explanation, Limits, explain};
use halflap::graph::Graph;
use halflap::ids::OpId;
use halflap::memory::Timeline;
use halflap::order::Order;
use halflap::program::{Caller, Unit};
use halflap::report::{
    Column, Explained, Style, Table, against_bound, count, labelled, listing, printable, printable_end,
    render_explanation,
};
use halflap::simulate::{Bound, simulate};
use halflap::units::{Bytes, Nanos};

use super::{Ready, Source};
use crate::args;
use crate::exit::Failed;
use crate::schedule::ROWS;
use crate::simulate::program;
use crate::terminal;

/// How many computations are shown one by one, unless one is asked for.
pub(super) const SECTIONS: usize = 3;

/// A computation to be shown.
pub(super) struct Section<'a> {
    pub(super) ready: &'a Ready,
    pub(super) order: &'a Order,
    /// Before and now.
    pub(super) step_time: (Nanos, Nanos),
    /// In one run, before and now.
    pub(super) exposed: (Nanos, Nanos),
    /// The same with all that it runs.
    pub(super) exposed_in_all: (Nanos, Nanos),
    pub(super) limit: Bytes,
    pub(super) bound: Bound,
    /// Which collectives are explained; all, unless some were asked for.
    pub(super) only: Option<Vec<OpId>>,
    pub(super) trust: Option<String>,
    pub(super) seconds: f64,
}

impl Section<'_> {
    pub(super) fn explanation(&self) -> Explanation {
        let Ready { graph, machine, .. } = self.ready;
        let limits = Limits { memory: self.limit, bound: self.bound };
        let mut explanation = explain(graph, machine, self.order, limits);
        explanation.held.retain(|held| self.only.as_ref().is_none_or(|only| only.contains(&held.collective)));
        explanation
    }

    pub(super) fn peak(&self) -> Bytes {
        Timeline::of(&self.ready.graph, self.order).peak
    }

    /// What is exposed in all of its runs.
    pub(super) fn cost(&self) -> f64 {
        self.exposed.1.0 * self.ready.unit.runs
    }
}

/// The summary of `schedule`.
pub(super) fn render_schedule(
    source: &Source<'_>,
    sections: &[Section<'_>],
    args: &args::Schedule,
) -> Result<String, Failed> {
    let style = terminal::style();
    let mut text = headline(source, sections, &style);
    let seconds: f64 = sections.iter().map(|section| section.seconds).sum();
    for section in picked(source, sections, args.which.computation.as_deref(), SECTIONS)? {
        if args.show {
            let _ = write!(text, "\n{}", listing(&section.ready.graph, section.order));
        }
        text.push_str(&render_section(source, section, ROWS, &style));
    }
    let _ = writeln!(text, "\noptimized in {seconds:.2} s");
    Ok(text)
}

/// What the whole module comes to.
pub(super) fn headline(source: &Source<'_>, sections: &[Section<'_>], style: &Style) -> String {
    let module = &source.module;
    let communicate = sections.iter().filter(|section| section.ready.unit.communicates()).count();
    let whole = format!(
        "{}: {}, {} with communication",
        printable(module.name()),
        count(module.len(), "instruction"),
        count(communicate, "computation")
    );
    let mut lines = vec![("module", whole)];
    lines.extend(source.device().map(|device| ("device", device)));
    if let Some(entry) = sections.last() {
        let change = |before: String, now: String| if before == now { now } else { format!("{before} -> {now}") };
        let (before, now) = entry.step_time;
        let saved =
            if before > now { format!(" ({:.1}% saved)", 100.0 * (1.0 - now.0 / before.0)) } else { String::new() };
        lines.push(("step time", change(before.to_string(), now.to_string()) + &saved));
        let exposed = entry.exposed_in_all;
        lines.push(("exposed", change(exposed.0.to_string(), exposed.1.to_string())));
        lines.push(("peak memory", change(entry.ready.unit.peak_before.to_string(), entry.peak().to_string())));
    }
    let guesses =
        sections.iter().flat_map(|section| &section.ready.unit.lowered.calls).filter(|call| call.is_guess).count();
    if guesses > 0 {
        lines.push(("loops", format!("the trip count of {} is not known: taken as 1", count(guesses, "loop"))));
    }
    lines.iter().map(|(label, value)| labelled(label, value, style)).collect::<String>()
        + &overview(source, sections, style)
}

/// A line for each computation that communicates, if there are several.
fn overview(source: &Source<'_>, sections: &[Section<'_>], style: &Style) -> String {
    let shown: Vec<&Section<'_>> = sections.iter().rev().filter(|section| section.ready.unit.communicates()).collect();
    if shown.len() < 2 {
        return String::new();
    }
    let mut table = Table::new(vec![
        Column::text("computation"),
        Column::number("runs"),
        Column::number("nodes"),
        Column::number("was"),
        Column::number("step time"),
        Column::number("of bound"),
        Column::number("exposed"),
    ]);
    for section in shown.iter().take(ROWS) {
        let unit = &section.ready.unit;
        let bound = section.bound.time;
        let of_bound = if bound > Nanos::ZERO { section.step_time.1.0 / bound.0 } else { 1.0 };
        table.row(vec![
            printable(source.module.computation_name(unit.computation)).into(),
            unit.runs.to_string().into(),
            section.ready.graph.len().to_string().into(),
            section.step_time.0.to_string().into(),
            section.step_time.1.to_string().into(),
            format!("{of_bound:.3}x").into(),
            section.exposed.1.to_string().into(),
        ]);
    }
    let more = if shown.len() > ROWS { format!("... and {} more\n", shown.len() - ROWS) } else { String::new() };
    format!("\n{}{more}", table.render(style))
}

/// The computation that was asked for, or the worst, at most so many.
pub(super) fn picked<'a>(
    source: &Source<'_>,
    sections: &'a [Section<'a>],
    name: Option<&str>,
    most: usize,
) -> Result<Vec<&'a Section<'a>>, Failed> {
    let name_of = |section: &Section<'_>| source.module.computation_name(section.ready.unit.computation);
    if let Some(name) = name {
        let found = sections.iter().find(|section| name_of(section) == name.trim_start_matches('%'));
        let unknown = || Failed::BadInput(format!("--computation: none that runs is called '{name}'"));
        return Ok(vec![found.ok_or_else(unknown)?]);
    }
    let mut shown: Vec<&Section<'_>> =
        sections.iter().rev().filter(|section| section.ready.unit.communicates()).collect();
    // The sort is stable: of equals the outermost stays first.
    shown.sort_by(|a, b| b.cost().total_cmp(&a.cost()));
    shown.truncate(most);
    Ok(shown)
}

/// One computation: its headline, its exposed collectives, and where they come from.
pub(super) fn render_section(source: &Source<'_>, section: &Section<'_>, rows: usize, style: &Style) -> String {
    let Ready { graph, unit, before, .. } = section.ready;
    let explanation = section.explanation();
    let (was, now) = section.step_time;
    let step = format!("{was} -> {now}, {}", against_bound(now, section.bound));
    let input = Order::of_input(graph);
    let peak = format!("{} -> {}, limit {}", unit.peak_before, section.peak(), section.limit);
    let mut lines = vec![
        (
            "computation",
            format!("{}{}", printable(source.module.computation_name(unit.computation)), place(source, unit)),
        ),
        ("program", program(graph)),
        ("step time", step),
        ("peak memory", peak),
    ];
    lines.extend(section.trust.clone().map(|trust| ("trust", trust)));
    let mut text = String::from("\n");
    lines.iter().for_each(|(label, value)| text.push_str(&labelled(label, value, style)));
    text.push('\n');
    let was = simulate(graph, input.as_slice(), before);
    text.push_str(&render_explanation(&Explained { graph, explanation: &explanation, was: Some(&was) }, rows, style));
    text.push_str(&sources(graph, &explanation, rows, style));
    text
}

/// `, the body of while.84 in main (8 times)`.
pub(super) fn place(source: &Source<'_>, unit: &Unit) -> String {
    let module = &source.module;
    let Some(Caller { instr, trips }) = unit.caller else { return ", the entry".to_owned() };
    let (name, of) = (module.instruction_name(instr), module.computation_name(module.computation_of(instr)));
    let times = match trips {
        Some(Some(trips)) => format!(" ({trips} times)"),
        Some(None) => " (how often is not known)".to_owned(),
        None => String::new(),
    };
    let what = if trips.is_some() { "in the loop" } else { "called by" };
    let origin = module.source(instr);
    let origin = if origin.is_empty() { origin } else { format!(", {}", printable_end(&origin, 60)) };
    let others = match unit.callers {
        0 | 1 => String::new(),
        callers => format!(", and {} more: {} runs in all", callers - 1, unit.runs),
    };
    format!(", {what} {}{times} in {}{origin}{others}", printable(name), printable(of))
}

/// Where exposed collectives come from in the user's program, and who takes part.
fn sources(graph: &Graph, explanation: &Explanation, rows: usize, style: &Style) -> String {
    let mut table = Table::new(vec![Column::text("collective"), Column::text("among"), Column::text("comes from")]);
    let mut any = false;
    for held in explanation.held.iter().take(rows) {
        let op = held.collective;
        let Some(collective) = graph.collective(op) else { continue };
        any = true;
        table.row(vec![
            printable(graph.name(op)).into(),
            printable(&graph.groups()[collective.group].name).into(),
            printable_end(graph.source(op), 60).into(),
        ]);
    }
    if any { format!("\n{}", table.render(style)) } else { String::new() }
}
