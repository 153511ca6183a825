//! Limits in words and in JSON: the only place that renders them.

use serde_json::{Value, json};

use super::text::called;
use halflap::graph::Graph;
use halflap::pass::{Limit, NotGrouped};

/// A limit in a few words.
pub fn describe(graph: &Graph, limit: &Limit) -> String {
    let name = |op| called(graph, op);
    match *limit {
        Limit::ProgramEdge => "nothing left to pass".to_owned(),
        Limit::FullyHidden => "hidden".to_owned(),
        Limit::CollectiveOrder { with } => format!("order of collectives: {}", name(with)),
        Limit::DataDependency { on, not_grouped } => {
            let why = match not_grouped {
                NotGrouped::Collective => " (a collective)",
                NotGrouped::Wait => " (a wait)",
                NotGrouped::GemmLike => " (a matrix multiplication)",
                NotGrouped::Never => "",
            };
            format!("depends on {}{why}", name(on))
        }
        Limit::ExposedTimeGrows { candidate, by } => {
            format!("{} would expose {by} more", name(candidate))
        }
        Limit::PeakMemory { candidate, would_be, limit, .. } => {
            format!("memory: {would_be} at {}, limit {limit}", name(candidate))
        }
    }
}

/// A limit as `halflap.schedule/1` has it.
pub(super) fn to_json(graph: &Graph, limit: &Limit) -> Value {
    match *limit {
        Limit::ProgramEdge => json!({ "kind": "program_edge" }),
        Limit::FullyHidden => json!({ "kind": "fully_hidden" }),
        Limit::CollectiveOrder { with } => {
            json!({ "kind": "collective_order", "with": graph.name(with) })
        }
        Limit::DataDependency { on, not_grouped } => {
            let not_grouped = match not_grouped {
                NotGrouped::Collective => "collective",
                NotGrouped::Wait => "wait",
                NotGrouped::GemmLike => "gemm_like",
                NotGrouped::Never => "never",
            };
            json!({ "kind": "data_dependency", "on": graph.name(on), "not_grouped": not_grouped })
        }
        Limit::ExposedTimeGrows { candidate, by } => {
            json!({ "kind": "exposed_time_grows", "candidate": graph.name(candidate), "by": by.0 })
        }
        Limit::PeakMemory { candidate, would_be, base, limit } => {
            let candidate = graph.name(candidate);
            json!({
                "kind": "peak_memory", "candidate": candidate,
                "would_be": would_be.0, "base": base.0, "limit": limit.0
            })
        }
    }
}
