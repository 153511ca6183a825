//! `halflap what-if`: what more memory or a faster network would buy.

use halflap::memory::Timeline;
use halflap::optimize::{OptimizeError, Task, optimize};
use halflap::order::Order;
use halflap::report::total_exposed;
use halflap::simulate::{lower_bound, simulate};
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
        // From the tightest limit up: what was found under it is known under a looser one.
        let mut known: Vec<Order> = Vec::new();
        let mut limits: Vec<Bytes> = args.memory.iter().map(|memory| memory.limit(peak)).collect();
        limits.sort_unstable();
        for limit in limits {
            let done = points.len() as f64;
            let progress = |part| bar.show((done + part) / all as f64);
            let task = Task {
                graph: &graph,
                machine: &faster,
                memory_limit: limit,
                edges: machine::edges(args.collective_order),
                known: &known,
                effort: machine::effort(args.effort),
                threads: machine::threads(None),
                progress: &progress,
            };
            let (found, order) = point(&task)?;
            known.extend(order);
            points.push(Point { bandwidth, limit, bound, found });
        }
    }
    bar.clear();
    if let Some(path) = &args.output
        && files::put(path, &format!("{}\n", to_json(&points, peak)))?
    {
        return Ok(());
    }
    files::print(&render(&points, peak))
}

/// Optimizes one point; gives the order, too, if there is one.
fn point(task: &Task<'_>) -> Result<(Result<Found, Bytes>, Option<Order>), Failed> {
    match optimize(task) {
        Ok(found) => {
            let simulation = simulate(task.graph, found.order.as_slice(), task.machine);
            let exposed = total_exposed(&simulation);
            Ok((Ok(Found { step_time: found.step_time, exposed, peak: found.peak }), Some(found.order)))
        }
        Err(OptimizeError::NoOrderWithin { smallest, .. }) => Ok((Err(smallest), None)),
        Err(error @ OptimizeError::Unproved(_)) => Err(Failed::OurBug(error.to_string())),
    }
}

fn render(points: &[Point], peak: Bytes) -> String {
    let head = ["bandwidth", "limit", "of input", "step time", "exposed", "peak", "of bound"];
    let mut text = head.map(|label| format!("{label:>10}")).join("  ") + "\n";
    for point in points {
        let bandwidth = format!("{}x", point.bandwidth);
        let of_input = format!("{:.2}x", point.limit.0 as f64 / peak.0.max(1) as f64);
        text.push_str(&format!("{bandwidth:>10}  {:>10}  {of_input:>10}  ", point.limit));
        text.push_str(&match &point.found {
            Ok(Found { step_time, exposed, peak }) => {
                let of_bound = if point.bound > Nanos::ZERO { step_time.0 / point.bound.0 } else { 1.0 };
                format!("{step_time:>10}  {exposed:>10}  {peak:>10}  {:>10}\n", format!("{of_bound:.3}x"))
            }
            Err(smallest) => format!("no order found; the smallest peak reached is {smallest}\n"),
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
