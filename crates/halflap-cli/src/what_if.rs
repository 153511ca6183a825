//! `halflap what-if`: what more memory or a faster network would gain.

mod changed;

use halflap::evaluate::{Evaluation, Setup};
use halflap::explain::{Limits, explain};
use halflap::graph::Edges;
use halflap::memory::Budget;
use halflap::optimize::{OptimizeError, Optimized, Task, optimize};
use halflap::order::Order;
use halflap::simulate::{lower_bound, simulate};
use halflap::units::{Bytes, Nanos};
use halflap::workload::{Decided, Priced};
use halflap_report::page::{self, Shown, sweep_page};
use halflap_report::{AdviceLine, Cell, Column, Played, Table, collective_order, labelled};
use serde_json::{Value, json};

use crate::answer::Answer;
use crate::args::{self, EffortArg, PictureArgs, Rewrites};
use crate::exit::Failed;
use crate::explain::refuse_order;
use crate::machine;
use crate::pictures;
use crate::place::{Output, refuse_both_stdin};
use crate::progress::Bar;
use crate::put::{Asked, put};
use crate::recorded::{Collectives, Recorded};
use crate::show::program;
use crate::source::{Orders, Subject};
use crate::terminal;
use changed::ChangedSweep;

/// One point of the sweep.
struct SweepPoint {
    bandwidth: f64,
    limit: Bytes,
    bound: Nanos,
    found: Reached,
}

/// What was found, or the smallest peak that was reached, if that is known.
type Reached = Result<Optimum, Option<Bytes>>;

#[derive(Clone, Copy)]
struct Optimum {
    step_time: Nanos,
    exposed: Nanos,
    peak: Bytes,
    /// The step of the best order of the program as it is, where it may be changed.
    order_alone: Option<Nanos>,
}

/// The default limits, as multiples of the input order's peak.
const GRID: [f64; 8] = [0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 4.0];

/// What the limits of one of several computations are not.
const ALONE: &str = "these are limits of this computation alone: schedule's --memory-budget is for \
                     the whole module, and a computation may use all that is free while it runs";

/// Steps that differ by less, relative to the longer one, count as equal.
const ALIKE: f64 = 0.01;

/// What all points share.
struct SweepRules {
    /// The edges that orders keep.
    edges: Edges,
    /// How much work is done.
    effort: EffortArg,
    /// An order known beforehand.
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
    rules: SweepRules,
    points: Vec<SweepPoint>,
}

/// Sweeps over the unit that is requested, or the most exposed one.
pub fn find(args: &args::WhatIf) -> Result<Swept, Failed> {
    refuse_both_stdin(&args.graph, args.schedule.as_ref(), "program and schedule")?;
    let rewrites = args.rewrite.as_ref().filter(|rewrites| rewrites.any());
    if rewrites.is_some() {
        refuse_order(args.schedule.as_ref())?;
        refuse_computation(args.which.computation.as_deref())?;
    }
    let recorded = Recorded::read(args.schedule.as_ref())?;
    let Collectives { chain, edges } = recorded.collectives(&args.collectives)?;
    let subject = Subject::read(&args.graph, &args.machine, chain)?;
    subject.check(&args.which)?;
    let source = &subject.source;
    let all = source.walk(|priced| Ok((priced.input.order.clone(), ())))?;
    let unit = match rewrites.and(all.last()) {
        // Rewrites are chosen for the whole program.
        Some(entry) => entry.clone(),
        None => source.chosen(&all, args.which.computation.as_deref())?.clone(),
    };
    let orders = args.schedule.as_ref().map(|input| Orders::read(input, &subject)).transpose()?;
    let known = orders.map(|orders| orders.order(source, &unit.priced, edges)).transpose()?;
    let rules = SweepRules { edges, effort: recorded.effort(args.effort)?, known };
    let memory = match args.memory.is_empty() {
        true => GRID.map(Budget::Times).to_vec(),
        false => args.memory.clone(),
    };
    let mut points = match rewrites {
        Some(rewrites) => {
            let changed = ChangedSweep::new(args, rewrites, &subject, &rules)?;
            changed.points(&memory, unit.priced.peak_before())?
        }
        None => sweep(args, &rules, &memory, &unit.priced)?,
    };
    if args.memory.is_empty() {
        points = telling(points);
    }
    Ok(Swept { args: args.clone(), subject, unit, rules, points })
}

/// Rejects a single computation of a program that is to be changed.
fn refuse_computation(name: Option<&str>) -> Result<(), Failed> {
    let problem = "--rewrite changes a module as a whole: leave out --computation";
    name.map_or(Ok(()), |_| Err(Failed::BadInput(problem.to_owned())))
}

impl Answer for Swept {
    fn json(&self) -> Result<String, Failed> {
        let mut value = to_json(&self.points, self.unit.priced.input.peak(), &self.rules);
        let knee = self.knee();
        value["input_step_time"] = json!(self.unit.priced.input.step_time());
        value["knee"] = json!(knee.as_ref().map(|knee| knee.limit.0));
        value["answer"] = json!(self.answer().text);
        Ok(format!("{value}\n"))
    }

    fn text(&self) -> Result<String, Failed> {
        let source = &self.subject.source;
        let head = match self.subject.hlo.is_some() {
            true => {
                let device = source.device().map_or(String::new(), |device| format!("{device}\n"));
                let unit = source.name_of(self.unit.priced.unit);
                match self.rewrites() {
                    true => device,
                    false => format!("computation {unit}\n{device}"),
                }
            }
            false => String::new(),
        };
        let AdviceLine { text, action, is_typed } = self.answer();
        let mut answer = labelled("answer", &text, &terminal::style());
        if !is_typed && !action.is_empty() {
            answer.push_str(&labelled("limits", &action, &terminal::style()));
        }
        Ok(format!("{head}{answer}\n{}", render(&self.points, &self.unit.priced.input)))
    }

    fn draw(&self, pictures: &PictureArgs) -> Result<(), Failed> {
        pictures.report.as_ref().map_or(Ok(()), |to| self.page(to))
    }
}

impl Swept {
    /// Whether the program may be changed.
    fn rewrites(&self) -> bool {
        self.args.rewrite.as_ref().is_some_and(Rewrites::any)
    }

    /// The points at the program's own bandwidth, or at the first that was asked for.
    fn own(&self) -> Vec<(&SweepPoint, &Optimum)> {
        let has = |wanted: f64| self.points.iter().any(|point| point.bandwidth == wanted);
        let bandwidth = match has(1.0) {
            true => 1.0,
            false => self.points.first().map_or(1.0, |point| point.bandwidth),
        };
        let own = self.points.iter().filter(|point| point.bandwidth == bandwidth);
        own.filter_map(|point| Some((point, point.found.as_ref().ok()?))).collect()
    }

    /// The smallest limit whose step is as short as that of any larger one.
    fn knee(&self) -> Option<&SweepPoint> {
        let own = self.own();
        let best = own.iter().map(|(_, found)| found.step_time).reduce(Nanos::min)?;
        let is_as_good = |found: &Optimum| found.step_time.0 * (1.0 - ALIKE) <= best.0;
        own.iter().find(|(_, found)| is_as_good(found)).map(|(point, _)| *point)
    }

    /// What the points say, in a sentence.
    fn answer(&self) -> AdviceLine {
        let (own, input) = (self.own(), &self.unit.priced.input);
        let of_input = |limit: Bytes| limit.0 as f64 / input.peak().0.max(1) as f64;
        let at_input = own.iter().rev().find(|(point, _)| point.limit <= input.peak());
        let none = || AdviceLine {
            text: "No order was found within any of these limits.".to_owned(),
            action: String::new(),
            is_typed: false,
        };
        let Some(knee) = self.knee() else { return none() };
        let Ok(best) = &knee.found else { return none() };
        let saved = |from: Nanos| 100.0 * (1.0 - best.step_time.0 / from.0.max(1.0));
        let times = of_input(knee.limit);
        let text = match at_input {
            Some((_, now)) if knee.limit > input.peak() => format!(
                "{times:.2}x of the memory ({}) saves {:.1}%: {} -> {}; more than that saves less \
                 than 1%.",
                knee.limit,
                saved(now.step_time),
                now.step_time,
                best.step_time
            ),
            Some(_) if knee.limit < input.peak() => format!(
                "{times:.2}x of the memory ({}) is enough: {} within it, and more memory saves \
                 less than 1%.",
                knee.limit, best.step_time
            ),
            _ => format!(
                "More memory saves less than 1%: the step is {} within {}.",
                best.step_time, knee.limit
            ),
        };
        match self.rewrites() || self.subject.source.workload.units.len() == 1 {
            true => {
                let action = format!("--memory-budget {times:.2}x");
                AdviceLine { text, action, is_typed: true }
            }
            // What the computation may use follows from the limit of the whole.
            false => AdviceLine { text, action: ALONE.to_owned(), is_typed: false },
        }
    }

    /// Draws the points as curves, above the input order.
    fn page(&self, to: &Output) -> Result<(), Failed> {
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
            explanation_before: None,
            device: None,
            memory_limit: None,
            rows: &[],
            advice: &[self.answer()],
            lead: None,
            exposed_in_all: None,
        };
        let curves = self.points.chunk_by(|a, b| a.bandwidth == b.bandwidth).map(curve).collect();
        pictures::write_report(to, &[sweep_page(&shown, page::Sweep { input_peak: peak, curves })])
    }
}

fn sweep(
    args: &args::WhatIf,
    rules: &SweepRules,
    memory: &[Budget],
    priced: &Priced,
) -> Result<Vec<SweepPoint>, Failed> {
    let Setup { graph, machine: base } = priced.setup();
    let peak = priced.input.peak();
    let bar = Bar::new("sweeping");
    let all = memory.len() * args.bandwidth.len();
    let mut points = Vec::with_capacity(all);
    for &bandwidth in &args.bandwidth {
        let mut faster = base.clone();
        faster.times = base.times.map(|op, time| {
            if graph.kind(op).is_collective() { time * (1.0 / bandwidth) } else { time }
        });
        // From the tightest limit up: what was found under it is known under a looser one.
        let mut known: Vec<Order> = rules.known.iter().cloned().collect();
        let mut limits: Vec<Bytes> = memory.iter().map(|memory| memory.limit(peak)).collect();
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
            points.push(SweepPoint { bandwidth, limit, bound, found });
        }
    }
    bar.clear();
    Ok(points)
}

/// The informative points: those for which an order was found, up to the first limit beyond which
/// no bandwidth gains. The input order's own limit stays.
fn telling(points: Vec<SweepPoint>) -> Vec<SweepPoint> {
    let step = |point: &SweepPoint| point.found.as_ref().ok().map(|found| found.step_time.0);
    let gains = |point: &SweepPoint| {
        let later = points
            .iter()
            .filter(|other| other.bandwidth == point.bandwidth && other.limit > point.limit);
        let best = later.filter_map(step).fold(f64::INFINITY, f64::min);
        step(point).is_none_or(|step| best < step * (1.0 - ALIKE))
    };
    let last = points.iter().filter(|point| gains(point)).map(|point| point.limit).max();
    let mut limits: Vec<Bytes> = points.iter().map(|point| point.limit).collect();
    limits.sort_unstable();
    limits.dedup();
    // One beyond the last that gains, to show where the gains end.
    let after = |last| limits.iter().copied().find(|&limit| limit > last);
    let most = last.map_or(limits.first().copied(), after);
    let own = GRID.iter().position(|&times| times == 1.0).and_then(|at| limits.get(at).copied());
    let most = most.max(own).unwrap_or(Bytes(i64::MAX));
    points.into_iter().filter(|point| point.found.is_ok() && point.limit <= most).collect()
}

fn curve(points: &[SweepPoint]) -> page::Curve {
    let point = |point: &SweepPoint| {
        let found = point.found.as_ref();
        page::Point {
            limit: point.limit,
            step_time: found.ok().map(|found| page::Time(found.step_time)),
            exposed: found.ok().map(|found| page::Time(found.exposed)),
            peak: found.ok().map(|found| found.peak),
            smallest_peak: found.err().copied().flatten(),
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

/// Optimizes one point; returns the order, too, if there is one.
fn point(task: &Task<'_>) -> Result<(Reached, Option<Order>), Failed> {
    match optimize(task) {
        Ok(found) => {
            let exposed = simulate(task.graph, found.order.as_slice(), task.machine).exposed();
            let Optimized { step_time, peak, order, .. } = found;
            Ok((Ok(Optimum { step_time, exposed, peak, order_alone: None }), Some(order)))
        }
        Err(OptimizeError::NoOrderWithin { smallest, .. }) => Ok((Err(Some(smallest)), None)),
        Err(OptimizeError::Stopped) => Err(Failed::Stopped),
        Err(error) => Err(Failed::OurBug(error.to_string())),
    }
}

fn render(points: &[SweepPoint], input: &Evaluation) -> String {
    let peak = input.peak();
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
            Ok(Optimum { step_time, exposed, peak, order_alone }) => {
                let of_bound =
                    if point.bound > Nanos::ZERO { step_time.0 / point.bound.0 } else { 1.0 };
                let found = [
                    step_time.to_string(),
                    exposed.to_string(),
                    peak.to_string(),
                    format!("{of_bound:.3}x"),
                ];
                let alone = order_alone.map(|alone| format!("order alone: {alone}"));
                (found, step_time.0 / longest.0, alone.unwrap_or_default())
            }
            Err(smallest) => {
                let problem = match smallest {
                    Some(peak) => format!("no order found; the smallest peak reached is {peak}"),
                    None => "no order found, with rewrites or without".to_owned(),
                };
                (["-"; 4].map(str::to_owned), 0.0, problem)
            }
        };
        let cells =
            [bandwidth, point.limit.to_string(), of_input].into_iter().chain(found).map(Cell::Text);
        table.row(cells.chain([Cell::Part(part), Cell::Text(problem)]).collect());
    }
    let own = format!("the input order: {}, {}\n", input.step_time(), input.peak());
    table.render(&terminal::style()) + &own
}

fn to_json(points: &[SweepPoint], peak: Bytes, rules: &SweepRules) -> Value {
    let point = |point: &SweepPoint| match &point.found {
        Ok(found) => json!({
            "bandwidth": point.bandwidth, "memory_limit": point.limit.0, "bound": point.bound.0,
            "step_time": found.step_time.0, "exposed": found.exposed.0, "peak_memory": found.peak.0,
            "order_alone": found.order_alone.map(|alone| alone.0),
        }),
        Err(smallest) => json!({
            "bandwidth": point.bandwidth, "memory_limit": point.limit.0, "bound": point.bound.0,
            "step_time": null, "smallest_peak": smallest.map(|peak| peak.0),
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
