//! An order step by step: what runs, and behind which collectives.

use std::fmt::Write;

use super::text::{called, named_by, printable};
use halflap::evaluate::Setup;
use halflap::graph::{Graph, OpKind};
use halflap::ids::OpId;
use halflap::order::Order;
use halflap::overlap::{Fidelity, Overlap};
use halflap::units::Nanos;

/// One line a step. `>` starts a collective, `|` runs while collectives are in flight, `<` waits
/// for one; the number is how many are in flight then.
pub fn listing(setup: Setup<'_>, order: &Order) -> String {
    let Setup { graph, machine } = setup;
    let mut text = format!("{:>6}  {:>9}  {:>9}  node\n", "step", "time", "under way");
    let mut under_way: Vec<OpId> = Vec::new();
    for (step, &op) in order.as_slice().iter().enumerate() {
        under_way.retain(|&collective| graph.gates(collective).binary_search(&op).is_err());
        if graph.kind(op) == OpKind::AsyncCollective {
            under_way.push(op);
        }
        let sign = match graph.kind(op) {
            OpKind::AsyncCollective => ">",
            OpKind::SyncCollective => "=",
            OpKind::Wait => "<",
            OpKind::Compute | OpKind::MultiOutput if under_way.is_empty() => " ",
            OpKind::Compute | OpKind::MultiOutput => "|",
        };
        let count = if under_way.is_empty() { String::new() } else { under_way.len().to_string() };
        let time = if graph.kind(op) == OpKind::Wait {
            String::new()
        } else {
            machine.times.of(op).to_string()
        };
        let _ = writeln!(
            text,
            "{step:>6}  {time:>9}  {sign}{count:>8}  {}{}{}",
            called(graph, op),
            detail(graph, op),
            node(graph, op)
        );
    }
    let (compute, exposed) = totals(setup, order);
    let _ = writeln!(
        text,
        "compute {compute}, exposed communication {exposed}, together {}",
        compute + exposed
    );
    text
}

/// The node, where the operation is called by something else.
fn node(graph: &Graph, op: OpId) -> String {
    match named_by(graph.provenance(op)) {
        Some(_) => format!("  ({})", printable(graph.name(op))),
        None => String::new(),
    }
}

fn detail(graph: &Graph, op: OpId) -> String {
    if let Some(collective) = graph.collective(op) {
        let group = printable(&graph.groups()[collective.group].name);
        return format!(
            "  {} of {} in group {group}",
            printable(&collective.op),
            collective.bytes()
        );
    }
    if graph.kind(op) == OpKind::Wait {
        let names: Vec<String> =
            graph.waits_for(op).iter().map(|&collective| awaited(graph, collective)).collect();
        return if names.is_empty() {
            "  for nothing".to_owned()
        } else {
            format!("  for {}", names.join(", "))
        };
    }
    let fused = graph.fused(op);
    if fused.is_empty() { String::new() } else { format!("  {}", printable(&fused.join(" "))) }
}

/// A collective that is waited for. Its wait is called by the same parameter or module: what it
/// does and its node tell more.
fn awaited(graph: &Graph, collective: OpId) -> String {
    let node = printable(graph.name(collective));
    let known = named_by(graph.provenance(collective)).and(graph.collective(collective));
    known.map_or_else(|| node.clone(), |known| format!("{} {node}", printable(&known.op)))
}

fn totals(setup: Setup<'_>, order: &Order) -> (Nanos, Nanos) {
    let Setup { graph, machine } = setup;
    let overlap = Overlap::new(graph, &machine.times, Fidelity::Fixed);
    let mut totals = (Nanos::ZERO, Nanos::ZERO);
    for op in graph.ops() {
        match graph.kind(op) {
            OpKind::AsyncCollective => {
                totals.1 += overlap.of_collective(order, op).exposed().max(Nanos::ZERO)
            }
            OpKind::SyncCollective => totals.1 += machine.times.of(op),
            OpKind::Compute | OpKind::Wait | OpKind::MultiOutput => {
                totals.0 += machine.times.of(op)
            }
        }
    }
    totals
}
