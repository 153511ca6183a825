//! `halflap.schedule/1`, for machines.

use serde::ser::{SerializeMap, SerializeSeq};
use serde::{Serialize, Serializer};
use serde_json::{Value, json};

use super::basis::basis_json;
use super::{Summary, collective_order, limit};
use halflap::graph::Graph;
use halflap::ids::OpId;
use halflap::order::Order;
use halflap::pass::Slide;
use halflap::robustness::Robustness;
use halflap::schedule::PassRun;
use halflap::units::Bytes;

/// A schedule, with what only its caller knows: how long things took.
pub struct Timed<'a> {
    /// Advice on the step, if it was requested.
    pub advice: Option<Value>,
    /// The program.
    pub graph: &'a Graph,
    /// The order.
    pub order: &'a Order,
    /// What passes did, if passes ran.
    pub passes: &'a [PassRun],
    /// Its exposed time, before and after.
    pub summary: &'a Summary,
    /// The torch version that it is compatible with, if any.
    pub compat: Option<&'a str>,
    /// Which collectives were chained before, if any.
    pub order_collectives: Option<&'a str>,
    /// How long reading the graph took.
    pub read_seconds: f64,
    /// How long each pass took.
    pub pass_seconds: &'a [f64],
    /// How the optimizer found it, if it ran.
    pub optimizer: Option<OptimizerRun<'a>>,
}

/// What the optimizer did.
pub struct OptimizerRun<'a> {
    /// How long it took.
    pub seconds: f64,
    /// The search effort.
    pub effort: &'a str,
    /// The memory limit.
    pub memory_limit: Bytes,
    /// Whether the input order was kept because it is better in most variations.
    pub input_kept: bool,
    /// Whether the search was interrupted.
    pub is_interrupted: bool,
    /// The gain under variations.
    pub robustness: &'a Robustness,
}

impl Serialize for Timed<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Timed { graph, summary, .. } = *self;
        let passes: Vec<PassJson<'_>> = self
            .passes
            .iter()
            .zip(self.pass_seconds)
            .map(|(run, &seconds)| PassJson {
                name: run.pass.name(),
                seconds,
                moves: run.moves,
                peak_memory: run.peak.0,
                stats: SlideStats { graph, run },
            })
            .collect();
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("format", "halflap.schedule/1")?;
        map.serialize_entry("halflap", env!("CARGO_PKG_VERSION"))?;
        if let Some(advice) = &self.advice {
            map.serialize_entry("advice", advice)?;
        }
        map.serialize_entry("compat", &self.compat)?;
        map.serialize_entry("order_collectives", &self.order_collectives)?;
        map.serialize_entry("collective_order", collective_order(summary.bound.edges))?;
        map.serialize_entry("order", &OpNames { graph, ops: self.order.as_slice() })?;
        map.serialize_entry("peak_memory", &summary.peak)?;
        map.serialize_entry("peak_memory_before", &summary.peak_before)?;
        map.serialize_entry("step_time", &summary.step_time)?;
        map.serialize_entry("step_time_before", &summary.step_time_before)?;
        map.serialize_entry("bound", &summary.bound.time)?;
        map.serialize_entry("bound_basis", &basis_json(graph, summary.bound))?;
        map.serialize_entry("exposed", &summary.exposed)?;
        map.serialize_entry("exposed_before", &summary.exposed_before)?;
        // Its name before 0.2, when `exposed` was what the passes' rule says.
        map.serialize_entry("simulated_exposed", &summary.exposed)?;
        map.serialize_entry("simulated_exposed_before", &summary.exposed_before)?;
        map.serialize_entry("estimated_exposed", &summary.estimated)?;
        map.serialize_entry("estimated_exposed_before", &summary.estimated_before)?;
        map.serialize_entry("read_seconds", &self.read_seconds)?;
        map.serialize_entry("passes", &passes)?;
        if let Some(run) = &self.optimizer {
            map.serialize_entry("optimizer", &optimizer_json(run))?;
        }
        map.end()
    }
}

fn optimizer_json(run: &OptimizerRun<'_>) -> Value {
    let (low, high) = run.robustness.range();
    let robustness = json!({
        "variations": run.robustness.trials.len(),
        "slower_in": run.robustness.lost(),
        "least_saved": low,
        "most_saved": high,
    });
    json!({
        "seconds": run.seconds,
        "effort": run.effort,
        "memory_limit": run.memory_limit.0,
        "input_kept": run.input_kept,
        "interrupted": run.is_interrupted,
        "robustness": robustness,
        // Its name before 0.2.
        "trust": robustness,
    })
}

#[derive(Serialize)]
struct PassJson<'a> {
    name: &'static str,
    seconds: f64,
    moves: usize,
    peak_memory: i64,
    stats: SlideStats<'a>,
}

/// The outcome of each slid operation, by name.
struct SlideStats<'a> {
    graph: &'a Graph,
    run: &'a PassRun,
}

impl Serialize for SlideStats<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let graph = self.graph;
        serializer.collect_map(
            self.run
                .slides
                .iter()
                .map(|slide| (graph.name(slide.op), SlideJson::new(graph, slide))),
        )
    }
}

#[derive(Serialize)]
struct SlideJson<'a> {
    moves: usize,
    grouped: usize,
    comm_time: f64,
    comp_time: f64,
    initial_exposed: f64,
    final_exposed: f64,
    improvement: f64,
    overlapped: OpNames<'a>,
    grouped_with: OpNames<'a>,
    limit: Value,
}

impl<'a> SlideJson<'a> {
    fn new(graph: &'a Graph, slide: &'a Slide) -> SlideJson<'a> {
        SlideJson {
            moves: slide.moves,
            grouped: slide.grouped_with.len(),
            comm_time: slide.comm_time.0,
            comp_time: slide.comp_time.0,
            initial_exposed: slide.initial_exposed.0,
            final_exposed: slide.final_exposed.0,
            improvement: (slide.initial_exposed - slide.final_exposed).0,
            overlapped: OpNames { graph, ops: &slide.overlapped },
            grouped_with: OpNames { graph, ops: &slide.grouped_with },
            limit: limit::to_json(graph, &slide.limit),
        }
    }
}

/// Operations by name, without a string for each.
pub(super) struct OpNames<'a> {
    pub(super) graph: &'a Graph,
    pub(super) ops: &'a [OpId],
}

impl Serialize for OpNames<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut list = serializer.serialize_seq(Some(self.ops.len()))?;
        for &op in self.ops {
            list.serialize_element(self.graph.name(op))?;
        }
        list.end()
    }
}
