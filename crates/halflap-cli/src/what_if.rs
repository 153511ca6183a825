//! `halflap what-if`: what more memory or a faster network would buy.

use halflap::graph::Graph;
use halflap::memory::{Budget, Timeline};
use halflap::optimize::{OptimizeError, Task, optimize};
use halflap::order::Order;
use halflap::report::exposed_by_collective;
use halflap::simulate::{Machine, lower_bound, simulate};
use halflap::units::{Bytes, Nanos};
use serde_json::{Value, json};

use crate::args;
use crate::exit::Failed;
use crate::files;
use crate::machine;
use crate::progress::Bar;

/// One point of the sweep.
struct Point {
    bandwidth: f64,
    limit: Bytes,
    bound: Nanos,
    /// What was found, or the smallest peak that was reached.
    found: Result<Found, Bytes>,
}

struct Found {
    step_time: Nanos,
    exposed: Nanos,
    peak: Bytes,
}

pub fn run(args: &args::WhatIf) -> Result<(), Failed> {
    let (graph, base) = machine::load(&args.graph, &args.machine)?;
    let peak = Timeline::of(&graph, &Order::of_input(&graph)).peak;
    let bar = Bar::new("sweeping");
    let all = args.memory.len() * args.bandwidth.len();
    let mut points = Vec::with_capacity(all);
    for &bandwidth in &args.bandwidth {
        let mut faster = base.clone();
        faster.times =
            base.times.map(|op, time| if graph.kind(op).is_collective() { time * (1.0 / bandwidth) } else { time });
        let bound = lower_bound(&graph, &faster);
        for &memory in &args.memory {
            let done = points.len() as f64;
            let limit = memory.limit(peak);
            let found = point(&graph, &faster, limit, (args, &|part| bar.show((done + part) / all as f64)))?;
            points.push(Point { bandwidth, limit, bound, found });
        }
    }
    bar.clear();
    if let Some(path) = &args.output {
        let text = format!("{}\n", to_json(&points, peak));
        if files::is_stdout(path) {
            return files::print(&text);
        }
        files::write(path, |out| out.write_all(text.as_bytes()))?;
    }
    files::print(&render(&points, &args.memory))
}

type Watched<'a> = (&'a args::WhatIf, &'a (dyn Fn(f64) + Sync));

fn point(
    graph: &Graph,
    machine: &Machine,
    limit: Bytes,
    (args, progress): Watched<'_>,
) -> Result<Result<Found, Bytes>, Failed> {
    let task = Task {
        graph,
        machine,
        memory_limit: limit,
        edges: machine::edges(args.collective_order),
        effort: machine::effort(args.effort),
        threads: machine::threads(None),
        progress,
    };
    match optimize(&task) {
        Ok(found) => {
            let simulation = simulate(graph, found.order.as_slice(), machine);
            let exposed = exposed_by_collective(&simulation).as_slice().iter().copied().sum();
            Ok(Ok(Found { step_time: found.step_time, exposed, peak: found.peak }))
        }
        Err(OptimizeError::NoOrderWithin { smallest, .. }) => Ok(Err(smallest)),
        Err(error @ OptimizeError::Unproved(_)) => Err(Failed::OurBug(error.to_string())),
    }
}

fn render(points: &[Point], memory: &[Budget]) -> String {
    let mut text = format!(
        "{:>10}  {:>10}  {:>10}  {:>10}  {:>10}  {:>8}\n",
        "bandwidth", "limit", "step time", "exposed", "peak", "bound"
    );
    for (index, point) in points.iter().enumerate() {
        let limit = match memory[index % memory.len()] {
            Budget::Times(times) => format!("{times}x"),
            Budget::Absolute(bytes) => bytes.to_string(),
        };
        let bandwidth = format!("{}x", point.bandwidth);
        text.push_str(&match &point.found {
            Ok(found) => format!(
                "{bandwidth:>10}  {limit:>10}  {:>10}  {:>10}  {:>10}  {:>7.3}x\n",
                found.step_time,
                found.exposed,
                found.peak,
                found.step_time.0 / point.bound.0
            ),
            Err(smallest) => {
                format!("{bandwidth:>10}  {limit:>10}  no order found; the smallest peak reached is {smallest}\n")
            }
        });
    }
    text
}

fn to_json(points: &[Point], peak: Bytes) -> Value {
    let point = |point: &Point| match &point.found {
        Ok(found) => json!({
            "bandwidth": point.bandwidth, "memory_limit": point.limit.0, "bound": point.bound.0,
            "step_time": found.step_time.0, "exposed": found.exposed.0, "peak_memory": found.peak.0,
        }),
        Err(smallest) => json!({
            "bandwidth": point.bandwidth, "memory_limit": point.limit.0, "bound": point.bound.0,
            "step_time": null, "smallest_peak": smallest.0,
        }),
    };
    json!({
        "format": "halflap.what-if/1",
        "input_peak_memory": peak.0,
        "points": points.iter().map(point).collect::<Vec<_>>(),
    })
}
