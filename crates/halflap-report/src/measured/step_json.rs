//! A measured step from a file: `halflap.timeline/1`.

use std::sync::Arc;

use std::collections::BTreeSet;

use serde::Deserialize;
use serde_json::Value;
use thiserror::Error;

use crate::measured::{MeasuredSpan, PartRun, RankStep, Step, StepPart};
use halflap::cost::{CostError, Times};
use halflap::graph::Graph;
use halflap::import::{ImportError, read_graph, unzip};
use halflap::order::Order;
use halflap::simulate::Machine;
use halflap::units::Nanos;
use halflap::verify::{Demands, Violation, verify};

const FORMAT: &str = "halflap.timeline/1";

/// Why bytes are not a measured step.
#[derive(Debug, Error)]
#[allow(missing_docs)]
#[non_exhaustive]
pub enum StepError {
    #[error(transparent)]
    Unreadable(Box<ImportError>),
    #[error("not a measured step: {0}; halflap.torch.timeline writes such files ({FORMAT})")]
    NotAStep(String),
    #[error("graph '{name}': {problem}")]
    Graph { name: String, problem: Box<ImportError> },
    #[error("graph '{name}': {problem}")]
    Times { name: String, problem: Box<CostError> },
    #[error("the order of graph '{name}': {problem}")]
    Order { name: String, problem: Violation },
    #[error("{place}: {problem}")]
    Rank { place: String, problem: String },
}

#[derive(Deserialize)]
#[serde(expecting = "an object with format, graphs and ranks")]
struct RawStep {
    format: String,
    #[serde(default = "one")]
    slowdown: f64,
    #[serde(default = "one")]
    comm_slowdown: f64,
    outside_ns: Option<f64>,
    graphs: Vec<RawPart>,
    ranks: Vec<RawRank>,
}

fn one() -> f64 {
    1.0
}

#[derive(Deserialize)]
#[serde(expecting = "an object with name, graph and order")]
struct RawPart {
    name: String,
    graph: Value,
    order: Vec<String>,
}

#[derive(Deserialize)]
#[serde(expecting = "an object with step_ns and graphs")]
struct RawRank {
    step_ns: f64,
    graphs: Vec<RawRun>,
}

#[derive(Deserialize)]
#[serde(expecting = "an object with begin_ns, end_ns, ran and transfers")]
struct RawRun {
    begin_ns: f64,
    end_ns: f64,
    ran: Vec<RawSpan>,
    transfers: Vec<RawSpan>,
}

#[derive(Deserialize)]
#[serde(expecting = "an object with name, start_ns and end_ns")]
struct RawSpan {
    name: String,
    start_ns: f64,
    end_ns: f64,
}

/// Reads a `halflap.timeline/1` file, plain or gzipped.
pub fn read_step(bytes: &[u8]) -> Result<Step, StepError> {
    let text = unzip(bytes).map_err(|problem| StepError::Unreadable(Box::new(problem)))?;
    let raw: RawStep =
        serde_json::from_slice(&text).map_err(|error| StepError::NotAStep(error.to_string()))?;
    if raw.format != FORMAT {
        return Err(StepError::NotAStep(format!("its format is {:?}", raw.format)));
    }
    let factors = [raw.slowdown, raw.comm_slowdown];
    if let Some(wrong) = factors.iter().find(|factor| !(1.0..f64::INFINITY).contains(*factor)) {
        return Err(StepError::NotAStep(format!(
            "a slowdown is {wrong}; it must be a number of at least 1"
        )));
    }
    let slower = Slower { compute: raw.slowdown, comm: raw.comm_slowdown };
    let parts = raw.graphs.into_iter().map(|part| read_part(part, slower));
    let parts = parts.collect::<Result<Vec<_>, _>>()?;
    let ranks = raw.ranks.into_iter().enumerate();
    let ranks =
        ranks.map(|(rank, run)| read_rank(rank, run, &parts)).collect::<Result<Vec<_>, _>>()?;
    if parts.is_empty() || ranks.is_empty() {
        return Err(StepError::NotAStep("it has no graph or no rank".to_owned()));
    }
    Ok(Step { parts, ranks, outside: raw.outside_ns.map(Nanos) })
}

/// How compute and communication slow each other.
#[derive(Clone, Copy)]
struct Slower {
    compute: f64,
    comm: f64,
}

fn read_part(raw: RawPart, slower: Slower) -> Result<StepPart, StepError> {
    let name = raw.name;
    let graph = read_graph(raw.graph.to_string().as_bytes());
    let graph = graph
        .map_err(|problem| StepError::Graph { name: name.clone(), problem: Box::new(problem) })?;
    let wrong = |problem| StepError::Order { name: name.clone(), problem };
    let find = |name: &String| {
        graph.find(name).ok_or_else(|| Violation::UnknownNode { name: name.clone() })
    };
    let ops = raw.order.iter().map(find).collect::<Result<Vec<_>, _>>().map_err(wrong)?;
    verify(&graph, &ops, &Demands::default()).map_err(wrong)?;
    let order = Order::from_ops(graph.len(), ops);
    let order = order.ok_or_else(|| {
        StepError::NotAStep(format!("the order of graph '{name}' is not a permutation"))
    })?;
    let times = Times::given(&graph)
        .map_err(|problem| StepError::Times { name: name.clone(), problem: Box::new(problem) })?;
    let mut machine = Machine::new(&graph, times);
    (machine.slowdown, machine.comm_slowdown) = (slower.compute, slower.comm);
    Ok(StepPart { name, graph: Arc::new(graph), order, machine })
}

fn read_rank(rank: usize, raw: RawRank, parts: &[StepPart]) -> Result<RankStep, StepError> {
    let wrong = |problem: String| StepError::Rank { place: format!("rank {rank}"), problem };
    if raw.graphs.len() != parts.len() {
        let problem = format!("it has {} graphs, not {}", raw.graphs.len(), parts.len());
        return Err(wrong(problem));
    }
    let runs = parts.iter().zip(raw.graphs).map(|(part, run)| {
        let within = |problem| StepError::Rank {
            place: format!("rank {rank}, graph '{}'", part.name),
            problem,
        };
        read_run(&part.graph, run).map_err(within)
    });
    let run = RankStep { time: Nanos(raw.step_ns), parts: runs.collect::<Result<Vec<_>, _>>()? };
    let ends = run.parts.iter().flat_map(|part| [part.begin, part.end]).chain([run.time]);
    match ends.map(|time| time.0).is_sorted() {
        true => Ok(run),
        false => Err(wrong("its graphs must run one after the other, within the step".to_owned())),
    }
}

fn read_run(graph: &Graph, raw: RawRun) -> Result<PartRun, String> {
    let spans = |raw: Vec<RawSpan>| {
        let mut seen = BTreeSet::new();
        let span = |raw: RawSpan| {
            let op =
                graph.find(&raw.name).ok_or_else(|| format!("'{}' is not a node", raw.name))?;
            let is_within =
                raw.start_ns >= 0.0 && raw.end_ns >= raw.start_ns && raw.end_ns.is_finite();
            if !is_within {
                return Err(format!(
                    "'{}' runs from {} to {} ns",
                    raw.name, raw.start_ns, raw.end_ns
                ));
            }
            match seen.insert(op) {
                true => Ok(MeasuredSpan { op, start: Nanos(raw.start_ns), end: Nanos(raw.end_ns) }),
                false => Err(format!("'{}' appears twice", raw.name)),
            }
        };
        raw.into_iter().map(span).collect::<Result<Vec<MeasuredSpan>, String>>()
    };
    let (ran, transfers) = (spans(raw.ran)?, spans(raw.transfers)?);
    if let Some(other) = transfers.iter().find(|span| !graph.kind(span.op).is_collective()) {
        return Err(format!("'{}' has a transfer and is not a collective", graph.name(other.op)));
    }
    Ok(PartRun { begin: Nanos(raw.begin_ns), end: Nanos(raw.end_ns), ran, transfers })
}
