//! A measured step compared with its simulation, as text and as JSON.

use serde_json::{Value, json};

use super::table::{Column, Style, Table};
use super::text::{count, labelled, named_by, printable, printable_end};
use crate::measured::{ComparedPart, Comparison, OpDifference, Step, StepPart, StepSpent};
use halflap::graph::{Graph, Provenance};
use halflap::ids::OpId;
use halflap::units::Nanos;

impl ComparedPart {
    /// As reports call it.
    pub fn name(self) -> &'static str {
        match self {
            ComparedPart::Kernel => "kernel",
            ComparedPart::Transfer => "transfer",
            ComparedPart::Wait => "wait",
        }
    }
}

/// Where a step's time went, by the names used in reports.
fn rows(spent: &StepSpent) -> [(&'static str, Nanos); 5] {
    [
        ("compute", spent.compute),
        ("waiting", spent.waiting),
        ("issuing", spent.issuing),
        ("outside", spent.outside),
        ("step", spent.total()),
    ]
}

/// The node of an operation of a step: with its graph's name, if there are several.
pub(super) fn op_name(step: &Step, part: &StepPart, op: OpId) -> String {
    in_part(step, part, part.graph.name(op))
}

/// Where an operation of a step comes from, named in the same way.
pub(super) fn op_from(step: &Step, part: &StepPart, op: OpId) -> Provenance {
    let Provenance { source, module, parameter } = part.graph.provenance(op);
    let named = |text: &String| match text.is_empty() {
        true => String::new(),
        false => in_part(step, part, text),
    };
    Provenance { source: source.clone(), module: named(module), parameter: named(parameter) }
}

fn in_part(step: &Step, part: &StepPart, name: &str) -> String {
    match step.parts.len() {
        1 => name.to_owned(),
        _ => format!("{}/{name}", part.name),
    }
}

/// What an operation does: its collective, or what was fused into it.
pub(super) fn does(graph: &Graph, op: OpId) -> String {
    let of = graph.waits_for(op).last().copied().unwrap_or(op);
    match graph.collective(of) {
        Some(collective) => collective.op.clone(),
        None => graph.fused(op).join(" "),
    }
}

/// Where the time of a step went, measured and simulated, and the operations that differ most.
pub fn render_comparison(step: &Step, found: &Comparison, most: usize, style: &Style) -> String {
    let (measured, simulated) = (found.measured.total(), found.simulated.total());
    let ranks = count(step.ranks.len(), "rank");
    let line = format!(
        "{measured} measured on {ranks}, {simulated} simulated ({})",
        relative(measured, simulated)
    );
    let mut text = labelled("step time", &line, style);
    text.push('\n');
    let mut spent = Table::new(vec![
        Column::text("spent on"),
        Column::number("measured"),
        Column::number("simulated"),
        Column::number("difference"),
    ]);
    for ((name, measured), (_, simulated)) in
        rows(&found.measured).into_iter().zip(rows(&found.simulated))
    {
        spent.row(vec![
            name.to_owned().into(),
            measured.to_string().into(),
            simulated.to_string().into(),
            signed(measured - simulated).into(),
        ]);
    }
    text.push_str(&spent.render(style));
    text.push('\n');
    text.push_str(&largest(step, found, most).render(style));
    text
}

fn largest(step: &Step, found: &Comparison, most: usize) -> Table {
    let shown = || found.differences.iter().take(most).map(|one| (one, &step.parts[one.part]));
    // A node's name is a detail where the program says what people call it.
    let has_labels = shown().any(|(one, part)| named_by(part.graph.provenance(one.op)).is_some());
    let mut columns = vec![
        Column::text("operation"),
        Column::text(""),
        Column::number("measured"),
        Column::number("simulated"),
        Column::number("difference"),
        Column::text("what it does").optional(),
    ];
    columns.extend(has_labels.then(|| Column::text("node").optional_at(2)));
    let mut table = Table::new(columns);
    for (one, part) in shown() {
        let node = printable(&op_name(step, part, one.op));
        let from = op_from(step, part, one.op);
        let label = named_by(&from).map(|text| printable_end(text, 60));
        let mut row = vec![
            label.unwrap_or_else(|| node.clone()).into(),
            one.what.name().to_owned().into(),
            one.measured.to_string().into(),
            one.simulated.to_string().into(),
            signed(one.excess()).into(),
            printable(&does(&part.graph, one.op)).into(),
        ];
        row.extend(has_labels.then(|| node.into()));
        table.row(row);
    }
    table
}

/// How far a simulated time is from the measured one.
fn relative(measured: Nanos, simulated: Nanos) -> String {
    match measured > Nanos::ZERO {
        true => format!("{:+.1}%", 100.0 * (simulated.0 / measured.0 - 1.0)),
        false => "nothing was measured".to_owned(),
    }
}

fn signed(time: Nanos) -> String {
    let sign = if time.0 < 0.0 { "-" } else { "+" };
    format!("{sign}{}", Nanos(time.0.abs()))
}

/// The same for machines: `halflap.comparison/1`.
pub fn comparison_json(step: &Step, found: &Comparison) -> Value {
    let spent = |spent: &StepSpent| -> Value {
        rows(spent).into_iter().map(|(name, time)| (name.to_owned(), Value::from(time.0))).collect()
    };
    let difference = |one: &OpDifference| {
        let part = &step.parts[one.part];
        let mut object = json!({
            "graph": part.name,
            "node": part.graph.name(one.op),
            "what": one.what.name(),
            "measured": one.measured.0,
            "simulated": one.simulated.0,
        });
        let known = part.graph.provenance(one.op).known();
        known.for_each(|(what, text)| object[what] = text.into());
        object
    };
    json!({
        "format": "halflap.comparison/1",
        "ranks": step.ranks.len(),
        "measured": spent(&found.measured),
        "simulated": spent(&found.simulated),
        "differences": found.differences.iter().map(difference).collect::<Vec<_>>(),
    })
}
