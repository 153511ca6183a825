//! A measured step compared with its simulation, as text and as JSON.

use serde_json::{Value, json};

use super::table::{Column, Style, Table};
use super::text::{count, labelled, printable};
use crate::measured::{ComparedPart, Comparison, OpDifference, Step, StepPart, StepSpent};
use halflap::graph::Graph;
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

/// The name of an operation of a step: with its graph's name, if there are several.
pub(super) fn op_name(step: &Step, part: &StepPart, op: OpId) -> String {
    match step.parts.len() {
        1 => part.graph.name(op).to_owned(),
        _ => format!("{}/{}", part.name, part.graph.name(op)),
    }
}

/// What an operation does: its collective, or what was fused into it.
fn does(graph: &Graph, op: OpId) -> String {
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
    let mut table = Table::new(vec![
        Column::text("operation"),
        Column::text(""),
        Column::number("measured"),
        Column::number("simulated"),
        Column::number("difference"),
        Column::text("what it does").optional(),
    ]);
    for one in found.differences.iter().take(most) {
        let part = &step.parts[one.part];
        table.row(vec![
            printable(&op_name(step, part, one.op)).into(),
            one.what.name().to_owned().into(),
            one.measured.to_string().into(),
            one.simulated.to_string().into(),
            signed(one.excess()).into(),
            printable(&does(&part.graph, one.op)).into(),
        ]);
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
        json!({
            "graph": part.name,
            "node": part.graph.name(one.op),
            "what": one.what.name(),
            "measured": one.measured.0,
            "simulated": one.simulated.0,
        })
    };
    json!({
        "format": "halflap.comparison/1",
        "ranks": step.ranks.len(),
        "measured": spent(&found.measured),
        "simulated": spent(&found.simulated),
        "differences": found.differences.iter().map(difference).collect::<Vec<_>>(),
    })
}
