//! The details of a ledger mismatch.

use std::io::{self, Write};

use serde_json::{Value, json};

use halflap::graph::Graph;
use halflap::ids::{Id, OpId};
use halflap::memory::{LedgerMismatch, Level};
use halflap::pass::Pass;

/// Writes `halflap.ledger-mismatch/1`: the swap, what the ledger says and what is true.
pub fn write_mismatch(
    graph: &Graph,
    pass: Pass,
    mismatch: &LedgerMismatch,
    out: &mut impl Write,
) -> io::Result<()> {
    let node = |op: OpId| describe(graph, mismatch, op);
    let at_peak = mismatch
        .order
        .as_slice()
        .iter()
        .find(|&&op| mismatch.truth.levels[op].post_alloc == mismatch.truth.peak);
    let transfers = mismatch.transfers.iter().map(|transfer| {
        json!({
            "buffer": graph.buffer_name(transfer.buffer),
            "size_free": graph.size_free(transfer.buffer).0,
            "last_used_by": graph.name(transfer.from),
            "now_last_used_by": graph.name(transfer.to),
        })
    });
    let stale = graph
        .buffers()
        .filter(|&buffer| mismatch.ledger.freed_by(buffer) != mismatch.truth.freed_by[buffer]);
    let name = |op: Option<OpId>| op.map(|op| graph.name(op));
    let stale = stale.map(|buffer| {
        json!({
            "buffer": graph.buffer_name(buffer),
            "ledger": name(mismatch.ledger.freed_by(buffer)),
            "true": name(mismatch.truth.freed_by[buffer]),
        })
    });
    let problem = match mismatch.first {
        Some(_) => "the ledger differs from the full account",
        None => "the peak exceeds the limit",
    };
    let file = json!({
        "format": "halflap.ledger-mismatch/1",
        "pass": pass.name(),
        "problem": problem,
        "first_node_that_differs": mismatch.first.map(node),
        "candidate": node(mismatch.candidate),
        "group": mismatch.group.iter().map(|&op| node(op)).collect::<Vec<_>>(),
        "peak_memory_before": mismatch.base.0,
        "peak_memory_limit": mismatch.limit.0,
        "peak_memory_after_swap": mismatch.truth.peak.0,
        "peak_memory_after_swap_at": at_peak.map(|&op| node(op)),
        "last_uses_changed_by_swap": transfers.collect::<Vec<_>>(),
        "last_uses_that_differ": stale.collect::<Vec<_>>(),
        "order": mismatch.order.as_slice().iter().map(|&op| node(op)).collect::<Vec<_>>(),
    });
    serde_json::to_writer_pretty(&mut *out, &file)?;
    out.write_all(b"\n")
}

fn describe(graph: &Graph, mismatch: &LedgerMismatch, op: OpId) -> Value {
    let level = |level: Level| {
        json!({
            "post_alloc": level.post_alloc.0,
            "post_free": level.post_free().0,
            "size_alloc": level.alloc.0,
            "size_free": level.free.0,
        })
    };
    json!({
        "node": graph.name(op),
        "place": mismatch.order.pos(op).index(),
        "ledger": level(mismatch.ledger.level(op)),
        "true": level(mismatch.truth.levels[op]),
    })
}
