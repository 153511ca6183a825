//! Units on the terminal: all of a module in a table, and each in detail.

use std::borrow::Cow;
use std::sync::OnceLock;

use halflap::evaluate::{Change, Evaluation};
use halflap::explain::{Explanation, Limits, explain};
use halflap::graph::Graph;
use halflap::ids::OpId;
use halflap::order::Order;
use halflap::simulate::{Bound, Simulation};
use halflap::units::{Bytes, Nanos};
use halflap::workload::{Decided, Priced};
use halflap_hlo::Caller;
use halflap_report::{
    Column, Explained, Style, Table, against_bound, called, count, describe_bound, labelled,
    listing, printable, printable_end, render_explanation, waiting_for_host,
};

use crate::exit::Failed;
use crate::progress::Notice;
use crate::source::{Hlo, ProgramSource, assumed_ranks};
use crate::terminal;

/// How many collectives a table on the terminal shows.
pub const ROWS: usize = 20;
/// How many units are shown in detail, unless one is requested.
pub const SECTIONS: usize = 3;

/// Programs longer than this are explained with a notice.
const LONG: usize = 2_000;

/// A unit to be shown.
pub struct Section<'a> {
    pub priced: &'a Priced,
    pub result: &'a Evaluation,
    /// What is exposed in one run of it and of all that it runs.
    pub exposed_in_all: Change<Nanos>,
    /// What it is compared with.
    pub compared: ComparedWith,
    pub limit: Bytes,
    pub bound: Bound,
    /// Which collectives are explained; all, unless some were requested.
    pub only: Option<Vec<OpId>>,
    pub robustness: Option<String>,
    pub seconds: f64,
    explained: &'a OnceLock<Explanation>,
}

/// What a unit in its order is compared with.
#[derive(Clone, Copy, Debug)]
pub enum ComparedWith {
    /// Itself in its input order.
    Input,
    /// What it was before the program was changed.
    Old(Was),
    /// Nothing: the old program did not have it.
    Nothing,
}

/// What a unit's order is compared with, and its explanation once requested.
pub struct Measure {
    pub limit: Bytes,
    pub bound: Bound,
    explained: OnceLock<Explanation>,
}

impl Measure {
    pub fn new(limit: Bytes, bound: Bound) -> Measure {
        Measure { limit, bound, explained: OnceLock::new() }
    }
}

impl<'a> Section<'a> {
    pub fn of<T>(decided: &'a Decided<T>, measure: &'a Measure) -> Section<'a> {
        let Decided { priced, result, exposed_in_all, .. } = decided;
        let Measure { limit, bound, explained } = measure;
        Section {
            priced,
            result,
            exposed_in_all: *exposed_in_all,
            compared: ComparedWith::Input,
            limit: *limit,
            bound: *bound,
            only: None,
            robustness: None,
            seconds: 0.0,
            explained,
        }
    }

    /// The order explained. Text, JSON and pictures share one explanation: it takes as long as a
    /// search if many collectives are exposed.
    pub fn explanation(&self) -> Cow<'a, Explanation> {
        let limits = Limits { memory: self.limit, bound: self.bound };
        let all = self.explained.get_or_init(|| {
            let _notice = self.notice("explaining the order");
            explain(self.priced.setup(), self.result, limits)
        });
        let Some(only) = &self.only else { return Cow::Borrowed(all) };
        let mut some = all.clone();
        some.held.retain(|held| only.contains(&held.collective));
        Cow::Owned(some)
    }

    /// What is being done, if it may take long.
    fn notice(&self, what: &str) -> Option<Notice> {
        (self.priced.graph.len() > LONG).then(|| Notice::new(what))
    }

    /// The input order explained.
    pub fn explanation_before(&self) -> Explanation {
        let limits = Limits { memory: self.limit, bound: self.bound };
        let _notice = self.notice("explaining the input order");
        explain(self.priced.setup_before(), &self.priced.input, limits)
    }

    /// The same in a changed program, which is compared with the old one.
    pub fn in_changed(mut self, old: Option<Was>) -> Section<'a> {
        self.compared = old.map_or(ComparedWith::Nothing, ComparedWith::Old);
        if let Some(old) = old {
            self.exposed_in_all.before = old.exposed;
        }
        self
    }

    /// Whether it is compared with itself in another order.
    pub fn is_reordered(&self) -> bool {
        matches!(self.compared, ComparedWith::Input)
    }

    /// What it was before, if there was such a unit.
    pub fn was(&self) -> Option<Was> {
        match self.compared {
            ComparedWith::Input => Some(Was::of(&self.priced.input, self.exposed_in_all.before)),
            ComparedWith::Old(was) => Some(was),
            ComparedWith::Nothing => None,
        }
    }

    pub fn step_time(&self) -> Change<Nanos> {
        let after = self.result.step_time();
        Change { before: self.was().map_or(after, |was| was.step_time), after }
    }

    /// Whether something in it can overlap compute.
    pub fn communicates(&self, source: &ProgramSource) -> bool {
        source.workload.units[self.priced.unit].communicates()
    }

    /// What is exposed in all of its runs.
    fn cost(&self, source: &ProgramSource) -> f64 {
        self.result.exposed().0 * source.workload.units[self.priced.unit].runs
    }
}

/// The most exposed units, up to a number.
pub fn most_exposed<'s, 'a>(
    source: &ProgramSource,
    sections: &'s [Section<'a>],
    most: usize,
) -> Vec<&'s Section<'a>> {
    let mut shown: Vec<&Section<'_>> =
        sections.iter().rev().filter(|section| section.communicates(source)).collect();
    // The sort is stable: of equals the outermost stays first.
    shown.sort_by(|a, b| b.cost(source).total_cmp(&a.cost(source)));
    shown.truncate(most);
    shown
}

/// A module and its units, to be shown.
#[derive(Clone, Copy)]
pub struct ShownModule<'a> {
    pub source: &'a ProgramSource,
    pub hlo: &'a Hlo,
    pub sections: &'a [Section<'a>],
}

/// A unit as it was, with all that it runs.
#[derive(Clone, Copy, Debug)]
pub struct Was {
    pub step_time: Nanos,
    /// What is exposed in it and in all that it runs.
    pub exposed: Nanos,
    /// What is exposed in it alone.
    pub exposed_alone: Nanos,
    pub peak: Bytes,
}

impl Was {
    /// A unit in an order, and what it and all that it runs expose.
    pub fn of(order: &Evaluation, exposed: Nanos) -> Was {
        let (step_time, exposed_alone) = (order.step_time(), order.exposed());
        Was { step_time, exposed, exposed_alone, peak: order.peak() }
    }
}

impl ShownModule<'_> {
    /// The totals of the module.
    pub fn headline(&self, style: &Style) -> String {
        let ShownModule { source, hlo, sections } = *self;
        let module = &hlo.module;
        let communicate = sections.iter().filter(|section| section.communicates(source)).count();
        let whole = format!(
            "{}: {}, {} with communication",
            printable(module.name()),
            count(module.len(), "instruction"),
            count(communicate, "computation")
        );
        let mut lines = vec![("module", whole)];
        lines.extend(source.device().map(|device| ("device", device)));
        lines.extend(assumed_ranks(module).map(|ranks| ("ranks", ranks)));
        if let Some(entry) = sections.last() {
            lines.extend(figures(entry));
        }
        let calls = source.workload.units.as_slice().iter().flat_map(|unit| &unit.calls);
        let guesses = calls.filter(|call| call.is_guess).count();
        if guesses > 0 {
            lines.push((
                "loops",
                format!("the trip count of {} is unknown: assumed to be 1", count(guesses, "loop")),
            ));
        }
        lines.iter().map(|(label, value)| labelled(label, value, style)).collect::<String>()
            + &self.overview(style)
    }

    /// A line for each unit that communicates, if there are several.
    fn overview(&self, style: &Style) -> String {
        let ShownModule { source, sections, .. } = *self;
        let shown: Vec<&Section<'_>> =
            sections.iter().rev().filter(|section| section.communicates(source)).collect();
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
            let unit = &source.workload.units[section.priced.unit];
            let (step, bound) = (section.step_time(), section.bound.time);
            let of_bound = if bound > Nanos::ZERO { step.after.0 / bound.0 } else { 1.0 };
            table.row(vec![
                printable(&unit.name).into(),
                unit.runs.to_string().into(),
                section.priced.graph.len().to_string().into(),
                section.was().map_or("-".to_owned(), |was| was.step_time.to_string()).into(),
                step.after.to_string().into(),
                format!("{of_bound:.3}x").into(),
                section.result.exposed().to_string().into(),
            ]);
        }
        let more = if shown.len() > ROWS {
            format!("... and {} more\n", shown.len() - ROWS)
        } else {
            String::new()
        };
        format!("\n{}{more}", table.render(style))
    }

    /// The requested unit, or the most exposed ones, up to a number.
    pub fn picked(&self, name: Option<&str>, most: usize) -> Result<Vec<&Section<'_>>, Failed> {
        let ShownModule { source, sections, .. } = *self;
        if let Some(name) = name {
            let wanted = name.trim_start_matches('%');
            let found =
                sections.iter().find(|section| source.name_of(section.priced.unit) == wanted);
            return Ok(vec![found.ok_or_else(|| source.unknown_computation(name))?]);
        }
        Ok(most_exposed(source, sections, most))
    }

    /// One unit: its headline, its exposed collectives, and where they come from.
    pub fn section(&self, section: &Section<'_>, rows: usize, style: &Style) -> String {
        let Priced { graph, input, unit, .. } = section.priced;
        let explanation = section.explanation();
        let after = section.step_time().after;
        let was = section.was();
        let arrow = |before: Option<String>| before.map_or(String::new(), |of| format!("{of} -> "));
        let before = arrow(was.map(|was| was.step_time.to_string()));
        let name = format!("{}{}", printable(self.source.name_of(*unit)), self.place(section));
        let peak = arrow(was.map(|was| was.peak.to_string()));
        let peak = format!("{peak}{}, limit {}", section.result.peak(), section.limit);
        let mut lines = vec![
            ("computation", name),
            ("program", program(graph)),
            ("step time", format!("{before}{after}, {}", against_bound(after, section.bound))),
            ("lower bound", describe_bound(graph, section.bound)),
            ("peak memory", peak),
        ];
        lines.extend(section.robustness.clone().map(|robustness| ("robustness", robustness)));
        let mut text = String::from("\n");
        lines.iter().for_each(|(label, value)| text.push_str(&labelled(label, value, style)));
        text.push('\n');
        let was = section.is_reordered().then_some(&input.simulation);
        let evaluation = section.result;
        let explained = Explained { graph, evaluation, explanation: &explanation, was };
        text.push_str(&render_explanation(&explained, rows, style));
        text.push_str(&sources(graph, &explanation, rows, style));
        text
    }

    /// The same after its steps, one a line.
    pub fn listed(&self, section: &Section<'_>) -> String {
        format!("\n{}", steps(section.priced, &section.result.order))
    }

    /// `, the body of while.84 in main (8 times)`.
    pub fn place(&self, section: &Section<'_>) -> String {
        let module = &self.hlo.module;
        let unit = &self.hlo.units[section.priced.unit];
        let Some(Caller { instr, trips }) = unit.caller else { return ", the entry".to_owned() };
        let (name, of) =
            (module.instruction_name(instr), module.computation_name(module.computation_of(instr)));
        let times = match trips {
            Some(Some(trips)) => format!(" ({trips} times)"),
            Some(None) => " (how often is unknown)".to_owned(),
            None => String::new(),
        };
        let what = if trips.is_some() { "in the loop" } else { "called by" };
        let origin = module.source(instr);
        let origin =
            if origin.is_empty() { origin } else { format!(", {}", printable_end(&origin, 60)) };
        let runs = self.source.workload.units[section.priced.unit].runs;
        let others = match unit.callers {
            0 | 1 => String::new(),
            callers => format!(", and {} more: {runs} runs in all", callers - 1),
        };
        format!(", {what} {}{times} in {}{origin}{others}", printable(name), printable(of))
    }
}

/// Step time, exposed communication and memory of the whole.
fn figures(entry: &Section<'_>) -> [(&'static str, String); 3] {
    let was = entry.was().unwrap_or_else(|| Was::of(entry.result, entry.exposed_in_all.after));
    let change = |before: String, now: String| {
        if before == now { now } else { format!("{before} -> {now}") }
    };
    let (before, after) = (was.step_time, entry.step_time().after);
    let saved = match before > after {
        true => format!(" ({:.1}% saved)", 100.0 * (1.0 - after.0 / before.0)),
        false => String::new(),
    };
    let exposed = entry.exposed_in_all.after;
    let peak = change(was.peak.to_string(), entry.result.peak().to_string());
    let peak = format!("{peak}, limit {}", entry.limit);
    [
        ("step time", change(before.to_string(), after.to_string()) + &saved),
        ("exposed", change(was.exposed.to_string(), exposed.to_string())),
        ("peak memory", peak),
    ]
}

/// Where exposed collectives come from in the user's program, and the participants.
fn sources(graph: &Graph, explanation: &Explanation, rows: usize, style: &Style) -> String {
    let mut table = Table::new(vec![
        Column::text("collective"),
        Column::text("among"),
        Column::text("comes from"),
    ]);
    let mut any = false;
    for held in explanation.held.iter().take(rows) {
        let op = held.collective;
        let Some(collective) = graph.collective(op) else { continue };
        any = true;
        table.row(vec![
            called(graph, op).into(),
            printable(&graph.groups()[collective.group].name).into(),
            printable_end(graph.source(op), 60).into(),
        ]);
    }
    if any { format!("\n{}", table.render(style)) } else { String::new() }
}

/// An order step by step, as wide as the terminal.
pub fn steps(priced: &Priced, order: &Order) -> String {
    terminal::style().fitted(&listing(priced.setup(), order))
}

/// `9.02 ms -> 6.96 ms (22.8% saved), within 5.22% of optimal, proved`.
pub fn step_line(step: Change<Nanos>, bound: Bound) -> String {
    let Change { before, after } = step;
    let saved = if before == Nanos::ZERO { 0.0 } else { 100.0 * (1.0 - after.0 / before.0) };
    format!("{before} -> {after} ({saved:.1}% saved), {}", against_bound(after, bound))
}

/// How long compute waits for the host, if at all.
pub fn host_line(simulation: &Simulation) -> Option<(&'static str, String)> {
    let waiting = waiting_for_host(simulation);
    (waiting > Nanos::ZERO).then(|| ("host", format!("compute waits {waiting} for it")))
}

/// What a program is, in a few words.
pub fn program(graph: &Graph) -> String {
    let collectives = graph.ops().filter(|&op| graph.kind(op).is_collective()).count();
    format!("{}, {}", count(graph.len(), "node"), count(collectives, "collective"))
}
