//! `halflap what-if`: what more memory or a faster network would buy.

use halflap::evaluate::Setup;
use halflap::explain::{Limits, explain};
use halflap::graph::Edges;
use halflap::optimize::{OptimizeError, Task, optimize};
use halflap::order::Order;
use halflap::simulate::{lower_bound, simulate};
use halflap::units::{Bytes, Nanos};
use halflap::workload::{Decided, Priced};
use halflap_report::page::{self, Shown, sweep_page};
use halflap_report::{Cell, Column, Played, Table, collective_order};
use serde_json::{Value, json};

use crate::answer::Answer;
use crate::args::{self, EffortArg, PictureArgs};
use crate::exit::Failed;
use crate::machine;
use crate::pictures;
use crate::progress::Bar;
use crate::put::{Asked, put};
use crate::recorded::{Collectives, Recorded};
use crate::show::program;
use crate::source::{Orders, Subject};
use crate::terminal;

/// One point of the sweep.
struct Point {
    bandwidth: f64,
    limit: Bytes,
    bound: Nanos,
    /// What was found, or the smallest peak that was reached.
    found: Result<Optimum, Bytes>,
}

struct Optimum {
    step_time: Nanos,
    exposed: Nanos,
    peak: Bytes,
}

/// What holds for every point.
struct Rules {
    /// The edges that orders keep.
    edges: Edges,
    /// How much work is done.
    effort: EffortArg,
    /// An order that is known before.
    known: Option<Order>,
}

pub fn run(args: &args::WhatIf) -> Result<(), Failed> {
    let pictures = PictureArgs { report: args.report.clone(), trace: None };
    pictures.check(&args.graph, args.output.as_deref())?;
    let asked = Asked { output: args.output.as_deref(), json: args.json, pictures: &pictures };
    put(&find(args)?, &asked)
}

/// What `what-if` finds.
pub struct Swept {
    args: args::WhatIf,
    subject: Subject,
    unit: Decided<()>,
    rules: Rules,
    points: Vec<Point>,
}

/// Sweeps over the unit that is requested, or the most exposed one.
pub fn find(args: &args::WhatIf) -> Result<Swept, Failed> {
    if args.graph == "-" && args.schedule.as_deref() == Some("-") {
        return Err(Failed::BadInput(
            "only one of program and schedule can come from standard input".to_owned(),
        ));
    }
    let recorded = Recorded::read(args.schedule.as_deref())?;
    let Collectives { chain, edges } = recorded.collectives(&args.collectives)?;
    let subject = Subject::read(&args.graph, &args.machine, chain)?;
    let source = &subject.source;
    let all = source.walk(|priced| Ok((priced.input.order.clone(), ())))?;
    let unit = source.chosen(&all, args.which.computation.as_deref())?.clone();
    let orders = args.schedule.as_deref().map(|path| Orders::read(path, &subject)).transpose()?;
    let known = orders.map(|orders| orders.order(source, &unit.priced, edges)).transpose()?;
    let rules = Rules { edges, effort: recorded.effort(args.effort)?, known };
    let points = sweep(args, &rules, &unit.priced)?;
    Ok(Swept { args: args.clone(), subject, unit, rules, points })
}

impl Answer for Swept {
    fn json(&self) -> Result<String, Failed> {
        Ok(format!("{}\n", to_json(&self.points, self.unit.priced.input.peak(), &self.rules)))
    }

    fn text(&self) -> Result<String, Failed> {
        let source = &self.subject.source;
        let head = match self.subject.hlo.is_some() {
            true => {
                let device = source.device().map_or(String::new(), |device| format!("{device}\n"));
                format!("computation {}\n{device}", source.name_of(self.unit.priced.unit))
            }
            false => String::new(),
        };
        Ok(head + &render(&self.points, self.unit.priced.input.peak()))
    }

    fn draw(&self, pictures: &PictureArgs) -> Result<(), Failed> {
        pictures.report.as_deref().map_or(Ok(()), |path| self.page(path))
    }
}

impl Swept {
    /// Draws the points as curves, above the input order.
    fn page(&self, path: &str) -> Result<(), Failed> {
        let (priced, edges) = (&self.unit.priced, self.rules.edges);
        let setup = priced.setup();
        let Setup { graph, machine } = setup;
        let peak = priced.input.peak();
        let limits = Limits { memory: peak, bound: lower_bound(graph, machine, edges, peak) };
        let explanation = explain(setup, &priced.input, limits);
        let shown = Shown {
            title: &pictures::title(&self.args.graph),
            part: "",
            command: "what-if",
            facts: vec![
                ("program", program(graph)),
                ("collective order", collective_order(edges).to_owned()),
            ],
            orders: &[Played::new("input order", setup, &priced.input)],
            explanation: &explanation,
            memory_limit: None,
            rows: &[],
        };
        let curves = self.points.chunk_by(|a, b| a.bandwidth == b.bandwidth).map(curve).collect();
        pictures::write_report(
            path,
            &[sweep_page(&shown, page::Sweep { input_peak: peak, curves })],
        )
    }
}

fn sweep(args: &args::WhatIf, rules: &Rules, priced: &Priced) -> Result<Vec<Point>, Failed> {
    let Setup { graph, machine: base } = priced.setup();
    let peak = priced.input.peak();
    let bar = Bar::new("sweeping");
    let all = args.memory.len() * args.bandwidth.len();
    let mut points = Vec::with_capacity(all);
    for &bandwidth in &args.bandwidth {
        let mut faster = base.clone();
        faster.times = base.times.map(|op, time| {
            if graph.kind(op).is_collective() { time * (1.0 / bandwidth) } else { time }
        });
        // From the tightest limit up: what was found under it is known under a looser one.
        let mut known: Vec<Order> = rules.known.iter().cloned().collect();
        let mut limits: Vec<Bytes> = args.memory.iter().map(|memory| memory.limit(peak)).collect();
        limits.sort_unstable();
        for limit in limits {
            let done = points.len() as f64;
            let progress = |part| bar.show((done + part) / all as f64);
            let task = Task {
                graph,
                machine: &faster,
                memory_limit: limit,
                edges: rules.edges,
                known: &known,
                effort: machine::effort(rules.effort),
                threads: machine::threads(args.threads),
                progress: &progress,
            };
            let bound = lower_bound(graph, &faster, rules.edges, limit).time;
            let (found, order) = point(&task)?;
            known.extend(order);
            points.push(Point { bandwidth, limit, bound, found });
        }
    }
    bar.clear();
    Ok(points)
}

fn curve(points: &[Point]) -> page::Curve {
    let point = |point: &Point| {
        let found = point.found.as_ref();
        page::Point {
            limit: point.limit,
            step_time: found.ok().map(|found| page::Time(found.step_time)),
            exposed: found.ok().map(|found| page::Time(found.exposed)),
            peak: found.ok().map(|found| found.peak),
            smallest_peak: found.err().copied(),
        }
    };
    // What holds at every limit: the tightest one is the highest bound.
    let bound = points.iter().map(|point| point.bound).fold(points[0].bound, Nanos::min);
    page::Curve {
        bandwidth: points[0].bandwidth,
        bound: page::Time(bound),
        points: points.iter().map(point).collect(),
    }
}

/// Optimizes one point; gives the order, too, if there is one.
fn point(task: &Task<'_>) -> Result<(Result<Optimum, Bytes>, Option<Order>), Failed> {
    match optimize(task) {
        Ok(found) => {
            let exposed = simulate(task.graph, found.order.as_slice(), task.machine).exposed();
            Ok((
                Ok(Optimum { step_time: found.step_time, exposed, peak: found.peak }),
                Some(found.order),
            ))
        }
        Err(OptimizeError::NoOrderWithin { smallest, .. }) => Ok((Err(smallest), None)),
        Err(OptimizeError::Stopped) => Err(Failed::Stopped),
        Err(error) => Err(Failed::OurBug(error.to_string())),
    }
}

fn render(points: &[Point], peak: Bytes) -> String {
    let columns = ["bandwidth", "limit", "of input", "step time", "exposed", "peak", "of bound"];
    let mut table = Table::new(
        columns.map(Column::number).into_iter().chain([Column::bar(), Column::text("")]).collect(),
    );
    let longest = points
        .iter()
        .filter_map(|point| Some(point.found.as_ref().ok()?.step_time))
        .fold(Nanos::ZERO, Nanos::max);
    for point in points {
        let bandwidth = format!("{}x", point.bandwidth);
        let of_input = format!("{:.2}x", point.limit.0 as f64 / peak.0.max(1) as f64);
        let (found, part, problem) = match &point.found {
            Ok(Optimum { step_time, exposed, peak }) => {
                let of_bound =
                    if point.bound > Nanos::ZERO { step_time.0 / point.bound.0 } else { 1.0 };
                let found = [
                    step_time.to_string(),
                    exposed.to_string(),
                    peak.to_string(),
                    format!("{of_bound:.3}x"),
                ];
                (found, step_time.0 / longest.0, String::new())
            }
            Err(smallest) => {
                let problem = format!("no order found; the smallest peak reached is {smallest}");
                (["-"; 4].map(str::to_owned), 0.0, problem)
            }
        };
        let cells =
            [bandwidth, point.limit.to_string(), of_input].into_iter().chain(found).map(Cell::Text);
        table.row(cells.chain([Cell::Part(part), Cell::Text(problem)]).collect());
    }
    table.render(&terminal::style())
}

fn to_json(points: &[Point], peak: Bytes, rules: &Rules) -> Value {
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
        "collective_order": collective_order(rules.edges),
        "effort": rules.effort.name(),
        "input_peak_memory": peak.0,
        "points": points.iter().map(point).collect::<Vec<_>>(),
    })
}
