//! Orders in time: what `simulate`, `explain` and the optimizer's schedules show.

use std::fmt::Write;

use serde_json::{Value, json};

use super::basis::basis_json;
use super::rates::{KernelRate, percent, program_bus_rates, program_kernel_rates};
use super::table::{Cell, Column, Style, Table, Tone};
use super::text::{called, wrapped};
use super::{count, printable};
use halflap::cost::Device;
use halflap::evaluate::Evaluation;
use halflap::explain::{Explanation, Held, Holder, Peak};
use halflap::graph::{Edges, Graph};
use halflap::ids::{IdVec, OpId};
use halflap::robustness::Robustness;
use halflap::simulate::Simulation;
use halflap::units::Nanos;

/// Which edges are kept, as `--collective-order` and `halflap.schedule/1` have it.
pub fn collective_order(edges: Edges) -> &'static str {
    match edges {
        Edges::All => "kept",
        Edges::Real | Edges::Awaited => "free",
    }
}

/// What holds a collective, as a predicate without its subject.
pub fn describe_holder(graph: &Graph, simulation: &Simulation, held: &Held) -> String {
    let name = |op: OpId| called(graph, op);
    let start = simulation.start[held.collective];
    match held.by {
        Holder::Optimal => "nothing: the step is at its lower bound".to_owned(),
        Holder::Operation(op) => format!("cannot start before {start}: it needs {}", name(op)),
        Holder::Stream(op) => {
            format!("cannot start before {start}: {} occupies its stream", name(op))
        }
        Holder::Memory(bytes) => {
            format!("cannot start earlier: {bytes} more than the memory limit would be alive")
        }
        Holder::Synchronous => "is synchronous: compute waits until it ends".to_owned(),
        Holder::KeptOrder(saved) => {
            format!("keeps its place among collectives: in any order, {saved} could be saved")
        }
        Holder::NothingGained => "no gain was found in moving it alone".to_owned(),
        Holder::Misplaced(saved) => format!("issued too late: {saved} could be saved"),
        Holder::WaitMisplaced(wait, saved) => {
            format!("waited for too early: {} later saves {saved}", name(wait))
        }
        Holder::NotExamined => "not examined: others expose more".to_owned(),
    }
}

/// An explanation, and what it is shown with.
pub struct Explained<'a> {
    /// The program.
    pub graph: &'a Graph,
    /// Its order.
    pub evaluation: &'a Evaluation,
    /// The same, explained.
    pub explanation: &'a Explanation,
    /// The order before, if there is a comparison.
    pub was: Option<&'a Simulation>,
}

/// The exposed collectives, at most `most`, and who owns the peak.
pub fn render_explanation(explained: &Explained<'_>, most: usize, style: &Style) -> String {
    let Explained { graph, evaluation, explanation, was } = *explained;
    let simulation = &evaluation.simulation;
    let mut text = String::new();
    if let Some(first) = explanation.held.first() {
        let mut columns = vec![
            Column::text("collective"),
            Column::wrapped("held by"),
            Column::text("operation").optional_at(4),
            Column::number("time"),
            Column::number("exposed").tone(Tone::Warning),
            Column::bar(),
            Column::number(if was.is_some() { "was" } else { "start" }).optional_at(2),
            Column::text("stalls at").optional_at(3),
            Column::number("bus rate").optional_at(6),
            Column::number("of best").optional_at(6),
        ];
        // Other commands do not accept the display name.
        let is_called =
            explanation.held.iter().take(most).any(|held| {
                called(graph, held.collective) != printable(graph.name(held.collective))
            });
        columns.extend(is_called.then(|| Column::text("node").optional_at(5)));
        let mut table = Table::new(columns);
        let before = was.map(exposed_by_collective);
        let rates = program_bus_rates(graph, simulation);
        for held in explanation.held.iter().take(most) {
            let op = held.collective;
            let (start, end) = (simulation.start[op], simulation.end[op]);
            let mut row: Vec<Cell> = vec![
                called(graph, op).into(),
                describe_holder(graph, simulation, held).into(),
                graph
                    .collective(op)
                    .map_or(String::new(), |collective| printable(&collective.op))
                    .into(),
                (end - start).to_string().into(),
                held.exposed.to_string().into(),
                Cell::Part(held.exposed.0 / first.exposed.0),
                before.as_ref().map_or(start, |before| before[op]).to_string().into(),
                called(graph, held.at).into(),
                rates[op].map_or("?".to_owned(), |rate| rate.rate.to_string()).into(),
                rates[op].map_or("?".to_owned(), |rate| rate.share()).into(),
            ];
            row.extend(is_called.then(|| printable(graph.name(op)).into()));
            table.row(row);
        }
        text.push_str(&table.render(style));
        let hidden = explanation.held.len().saturating_sub(most);
        if hidden > 0 {
            let rest: Nanos = explanation.held[most..].iter().map(|held| held.exposed).sum();
            let _ = writeln!(text, "... and {hidden} more, {rest} exposed in all");
        }
    }
    text.push_str(&render_peak(graph, &explanation.peak, style));
    text
}

/// For each collective, how long the compute stream is stalled on it.
pub fn exposed_by_collective(simulation: &Simulation) -> IdVec<OpId, Nanos> {
    let mut exposed = IdVec::filled(Nanos::ZERO, simulation.start.len());
    for exposure in simulation.exposures.iter().filter(|exposure| exposure.is_communication()) {
        exposed[exposure.of] += exposure.time;
    }
    exposed
}

/// How long the compute stream is stalled because nothing was issued.
pub fn waiting_for_host(simulation: &Simulation) -> Nanos {
    let host = simulation.exposures.iter().filter(|exposure| !exposure.is_communication());
    host.map(|exposure| exposure.time).sum()
}

/// How many kernels a table on the terminal has.
const KERNELS: usize = 8;

/// The longest kernels whose arithmetic is known: how fast they compute.
pub fn render_kernels(
    graph: &Graph,
    simulation: &Simulation,
    device: Option<&Device>,
    style: &Style,
) -> String {
    let rates = program_kernel_rates(graph, simulation, device);
    if rates.is_empty() {
        return String::new();
    }
    let mut columns =
        vec![Column::text("longest kernels"), Column::number("time"), Column::number("FLOP/s")];
    columns.extend(device.map(|_| Column::number("of bf16 peak")));
    columns.push(Column::text("fused").optional_at(2));
    let mut table = Table::new(columns);
    for &(op, rate) in rates.iter().take(KERNELS) {
        let time = simulation.end[op] - simulation.start[op];
        let mut row: Vec<Cell> =
            vec![called(graph, op).into(), time.to_string().into(), rate.flops.to_string().into()];
        row.extend(rate.of_peak.map(|part| percent(part).into()));
        row.push(printable(&graph.fused(op).join(" ")).into());
        table.row(row);
    }
    format!("\n{}", table.render(style))
}

fn render_peak(graph: &Graph, peak: &Peak, style: &Style) -> String {
    let Some(at) = peak.at else { return String::new() };
    let owner = |&buffer: &halflap::ids::BufId| {
        let maker = graph.maker(buffer).map_or("input".to_owned(), |maker| called(graph, maker));
        format!("{} {} of {maker}", graph.size_alloc(buffer), printable(graph.buffer_name(buffer)))
    };
    let owners: Vec<String> = peak.owners.iter().map(owner).collect();
    let line = format!("peak {} at {}: {}", peak.bytes, called(graph, at), owners.join(", "));
    wrapped(&line, 2, style) + "\n"
}

/// The range of savings under variations.
pub fn describe_robustness(robustness: &Robustness) -> String {
    let (low, high) = robustness.range();
    let trials = count(robustness.trials.len(), "variation");
    let lost = match robustness.lost() {
        0 => "never slower".to_owned(),
        lost => format!("slower in {lost}"),
    };
    format!(
        "saves {:.1}% to {:.1}% in {trials} of times, slowdown and skew; {lost}",
        100.0 * low,
        100.0 * high
    )
}

/// A simulation for machines.
pub fn simulation_json(
    graph: &Graph,
    evaluation: &Evaluation,
    explanation: &Explanation,
    device: Option<&Device>,
) -> Value {
    let Evaluation { order, simulation, .. } = evaluation;
    let exposed = exposed_by_collective(simulation);
    let rates = program_bus_rates(graph, simulation);
    let kernel = |&(op, rate): &(OpId, KernelRate)| {
        let node = graph.name(op);
        json!({ "node": node, "flop_rate": rate.flops.0, "of_peak": rate.of_peak })
    };
    let kernels = program_kernel_rates(graph, simulation, device);
    let collective = |&op: &OpId| {
        let held = explanation.held.iter().find(|held| held.collective == op);
        json!({
            "node": graph.name(op),
            "called": called(graph, op),
            "start": simulation.start[op].0,
            "end": simulation.end[op].0,
            "exposed": exposed[op].0,
            "bus_bandwidth": rates[op].map(|rate| rate.rate.0),
            "of_best": rates[op].map(|rate| rate.of_best),
            "latency_bound": rates[op].map(|rate| rate.is_latency_bound),
            "held_by": held.map(|held| holder_json(graph, &held.by)),
        })
    };
    let collectives = order.as_slice().iter().filter(|&&op| graph.kind(op).is_collective());
    let stream_idle: Vec<f64> =
        simulation.stream_idle.as_slice().iter().map(|idle| idle.0).collect();
    let owners = explanation.peak.owners.iter();
    let peak_owners: Vec<&str> = owners.map(|&buffer| graph.buffer_name(buffer)).collect();
    json!({
        "format": "halflap.simulation/1",
        "collective_order": collective_order(explanation.bound.edges),
        "step_time": simulation.step_time.0,
        "bound": explanation.bound.time.0,
        "bound_basis": basis_json(graph, explanation.bound),
        "compute_idle": simulation.compute_idle.0,
        "stream_idle": stream_idle,
        "peak_memory": explanation.peak.bytes.0,
        "peak_at": explanation.peak.at.map(|op| graph.name(op)),
        "peak_owners": peak_owners,
        "collectives": collectives.map(collective).collect::<Vec<_>>(),
        "kernels": kernels.iter().map(kernel).collect::<Vec<_>>(),
    })
}

fn holder_json(graph: &Graph, holder: &Holder) -> Value {
    match *holder {
        Holder::Optimal => json!({ "kind": "optimal" }),
        Holder::Operation(op) => json!({ "kind": "operation", "on": graph.name(op) }),
        Holder::Stream(op) => json!({ "kind": "stream", "busy_with": graph.name(op) }),
        Holder::Memory(bytes) => json!({ "kind": "memory", "bytes_over": bytes.0 }),
        Holder::Synchronous => json!({ "kind": "synchronous" }),
        Holder::KeptOrder(saved) => json!({ "kind": "kept_order", "could_save_if_free": saved.0 }),
        Holder::NothingGained => json!({ "kind": "nothing_gained" }),
        Holder::Misplaced(saved) => json!({ "kind": "misplaced", "could_save": saved.0 }),
        Holder::WaitMisplaced(wait, saved) => {
            json!({ "kind": "wait_misplaced", "wait": graph.name(wait), "could_save": saved.0 })
        }
        Holder::NotExamined => json!({ "kind": "not_examined" }),
    }
}
