//! `halflap simulate` and `halflap explain`: orders in time, and what limits them.

use halflap::advise::Advice;
use halflap::graph::{Edges, Graph};
use halflap::ids::{Id, IdVec, OpId, UnitId};
use halflap::memory::Budget;
use halflap::nearest;
use halflap::units::Bytes;
use halflap::workload::Decided;
use halflap_report::{
    Advised, Explained, Style, advice_json, against_bound, budget_text, collective_order,
    describe_bound, labelled, printable, render_advice, render_explanation, render_kernels,
    simulation_json,
};
use serde_json::{Value, json};

use crate::advice::{self, Question};
use crate::answer::{self, Answer, Figures};
use crate::args::{self, CollectiveOrder, EffortArg, PictureArgs, SearchArgs};
use crate::draw::{Picture, draw};
use crate::exit::Failed;
use crate::place::refuse_both_stdin;
use crate::put::{Asked, put};
use crate::recorded::{Collectives, Recorded};
use crate::search::{bound_beside, requested};
use crate::show::{
    Measure, ROWS, SECTIONS, Section, ShownModule, host_line, most_exposed, program,
};
use crate::source::{Hlo, Orders, Subject};
use crate::terminal;

/// What `simulate` finds.
pub fn simulated(args: &args::Simulate) -> Result<Looked, Failed> {
    let (of, command) = (args.of.clone(), "simulate");
    Look { of, command, node: None, budget: None, is_advised: false }.find()
}

/// What `explain` finds.
pub fn explained(args: &args::Explain) -> Result<Looked, Failed> {
    let (node, budget) = (args.node.clone(), args.memory_budget);
    let (of, command) = (args.of.clone(), "explain");
    let is_advised = !args.no_advice && node.is_none();
    Look { of, command, node, budget, is_advised }.find()
}

/// Computes the result and writes it as requested.
pub fn run(
    args: &args::Ordered,
    find: impl FnOnce() -> Result<Box<dyn Answer>, Failed>,
) -> Result<(), Failed> {
    args.pictures.check(&args.graph, args.output.as_deref())?;
    let asked = Asked { output: args.output.as_deref(), json: args.json, pictures: &args.pictures };
    put(find()?.as_ref(), &asked)
}

/// What is shown, and in how much detail.
struct Look {
    of: args::Ordered,
    command: &'static str,
    node: Option<String>,
    budget: Option<Budget>,
    /// Whether to say what can be done.
    is_advised: bool,
}

/// Orders in time.
pub struct Looked {
    look: Look,
    subject: Subject,
    all: Vec<Decided<Measure>>,
    /// The unit of the node that was requested, and the collectives that it represents.
    only: Option<Only>,
    asked: AskedAgain,
    advice: Option<Vec<Advice>>,
}

/// A search with the options that orders are examined with.
struct AskedAgain {
    args: SearchArgs,
    is_chained: bool,
    /// The command, without the options that advice may change.
    command: String,
}

/// The memory limit that orders are compared with.
struct ComparedLimit<'a> {
    asked: Option<Budget>,
    recorded: &'a Recorded<'a>,
}

impl ComparedLimit<'_> {
    /// Of every unit.
    fn limits<T>(&self, subject: &Subject, all: &[Decided<T>]) -> IdVec<UnitId, Bytes> {
        let source = &subject.source;
        let before = all.last().map_or(Bytes::ZERO, |entry| entry.priced.peak_before());
        let asked = self.asked.map(|budget| budget.limit(before));
        let whole = asked.or_else(|| self.recorded.limit(None)).unwrap_or(before);
        let limits = source.workload.limits(all, whole);
        let recorded = |unit: UnitId| match self.asked {
            Some(_) => None,
            None => self.recorded.limit(subject.hlo.as_ref().map(|_| source.name_of(unit))),
        };
        limits.iter().map(|(unit, &limit)| recorded(unit).unwrap_or(limit)).collect()
    }

    /// Of the whole, as it would be asked for.
    fn budget(&self, all: &[Decided<Measure>]) -> Option<Budget> {
        let entry = all.last()?;
        let (limit, before) = (entry.found.limit, entry.priced.peak_before());
        // As it was typed, most likely.
        let times = (limit.0 as f64 / before.0.max(1) as f64 * 100.0).round() / 100.0;
        let budget = Some(Budget::Times(times)).filter(|budget| budget.limit(before) == limit);
        self.asked.or(Some(budget.unwrap_or(Budget::Absolute(limit))))
    }
}

impl AskedAgain {
    fn of(
        args: &args::Ordered,
        collectives: Collectives,
        memory_budget: Option<Budget>,
    ) -> AskedAgain {
        let Collectives { chain, edges } = collectives;
        let chained = chain.map(|which| format!(" --order-collectives {}", which.name()));
        let command = format!(
            "halflap schedule {}{}{}",
            args::as_typed(args.graph.name()),
            args.machine.typed(),
            chained.unwrap_or_default()
        );
        let collective_order = Some(match edges {
            Edges::All => CollectiveOrder::Kept,
            _ => CollectiveOrder::Free,
        });
        // What a quick search finds, longer ones do, too.
        let (effort, threads) = (Some(EffortArg::Quick), None);
        let args = SearchArgs { memory_budget, collective_order, effort, threads };
        AskedAgain { args, is_chained: chain.is_some(), command }
    }

    /// The options that differ from the command's defaults.
    fn options(&self) -> Vec<String> {
        let budget = self.args.memory_budget.filter(|&budget| budget != Budget::Times(1.0));
        let budget = budget.map(|budget| format!("--memory-budget {}", budget_text(budget)));
        let order = match (self.args.collective_order, self.is_chained) {
            (Some(CollectiveOrder::Kept), false) => Some("--collective-order kept".to_owned()),
            (Some(CollectiveOrder::Free), true) => Some("--collective-order free".to_owned()),
            _ => None,
        };
        let effort = self.args.effort.map(|effort| format!("--effort {}", effort.name()));
        budget.into_iter().chain(order).chain(effort).collect()
    }
}

struct Only {
    at: usize,
    collectives: Vec<OpId>,
}

impl Look {
    fn find(self) -> Result<Looked, Failed> {
        let args = &self.of;
        refuse_both_stdin(&args.graph, args.order.as_ref(), "program and order")?;
        let recorded = Recorded::read(args.order.as_ref())?;
        let Collectives { chain, edges } = recorded.collectives(&args.collectives)?;
        let subject = Subject::read(&args.graph, &args.machine, chain)?;
        subject.check(&args.which)?;
        let orders = args.order.as_ref().map(|input| Orders::read(input, &subject)).transpose()?;
        let all = subject.source.walk(|priced| {
            let order = match &orders {
                Some(orders) => orders.order(&subject.source, priced, edges)?,
                None => priced.input.order.clone(),
            };
            Ok((order, ()))
        })?;
        let within = ComparedLimit { asked: self.budget, recorded: &recorded };
        let limits = within.limits(&subject, &all);
        let measured = |decided: Decided<()>| {
            decided.map(|(), priced, result| {
                let limit = limits[priced.unit];
                // An order that exceeds the limit is compared with orders that may need as much.
                let needed = limit.max(result.peak());
                Measure::new(limit, bound_beside(priced, edges, needed, result.step_time()))
            })
        };
        let all: Vec<Decided<Measure>> = all.into_iter().map(measured).collect();
        let only = self.node.as_deref().map(|node| narrow(&subject, &all, node)).transpose()?;
        let asked = AskedAgain::of(&self.of, Collectives { chain, edges }, within.budget(&all));
        let mut looked = Looked { look: self, subject, all, only, asked, advice: None };
        if looked.look.is_advised {
            looked.advice = Some(looked.advise(edges)?);
        }
        Ok(looked)
    }

    fn rows(&self) -> usize {
        if self.command == "explain" { usize::MAX } else { ROWS }
    }
}

impl Answer for Looked {
    fn json(&self) -> Result<String, Failed> {
        let sections = self.sections();
        let mut value = to_json(&self.subject, &sections);
        if let Some(advised) = self.advised(&sections) {
            value["advice"] = advice_json(&advised);
        }
        Ok(format!("{value}\n"))
    }

    fn text(&self) -> Result<String, Failed> {
        let (style, sections) = (terminal::style(), self.sections());
        let mut text = match &self.subject.hlo {
            Some(hlo) => self.module(
                &ShownModule { source: &self.subject.source, hlo, sections: &sections },
                &style,
            )?,
            None => self.graph(&sections, &style),
        };
        if let Some(advised) = self.advised(&sections) {
            text = render_advice(&advised, &style) + &text;
        }
        if let (Some(only), Some(node)) = (&self.only, &self.look.node) {
            text.push_str(&about(&sections[only.at], node, &style));
        }
        Ok(text)
    }

    fn figures(&self) -> Option<Figures> {
        let entry = self.all.last()?;
        let order = |done: &Decided<Measure>| {
            let name = self.subject.source.name_of(done.priced.unit).to_owned();
            (name, answer::names(&done.priced.graph, &done.result.order))
        };
        Some(Figures {
            orders: self.all.iter().map(order).collect(),
            step_time: entry.step_time(),
            exposed: entry.exposed_in_all,
            peak: entry.peak(),
            bound: self.subject.hlo.is_none().then_some(entry.found.bound.time),
        })
    }

    fn draw(&self, pictures: &PictureArgs) -> Result<(), Failed> {
        let is_compared = self.look.of.order.is_some();
        let sections = self.sections();
        let advice = self.advised(&sections).map(|advised| advised.lines()).unwrap_or_default();
        let picture =
            Picture { is_compared, advice, ..Picture::of(self.look.command, self.computation()) };
        draw(&self.subject, &sections, pictures, &picture)
    }
}

impl Looked {
    /// What would make the step shorter, beginning with a search.
    fn advise(&self, edges: Edges) -> Result<Vec<Advice>, Failed> {
        let (asked, source) = (&self.asked, &self.subject.source);
        let afresh = |budget: Budget| advice::within(&asked.args, asked.is_chained, source, budget);
        advice::ask(&Question {
            source,
            search: requested(&asked.args, edges),
            decided: &self.all,
            is_searched: false,
            afresh: Some(&afresh),
            is_mergeable: self.subject.hlo.is_none(),
        })
    }

    fn advised(&self, sections: &[Section<'_>]) -> Option<Advised<'_>> {
        let lines = self.advice.as_deref()?;
        let explained = most_exposed(&self.subject.source, sections, SECTIONS);
        let advised = advice::advised(lines, sections, &explained, self.asked.command.clone());
        Some(Advised { options: self.asked.options(), ..advised })
    }

    fn sections(&self) -> Vec<Section<'_>> {
        let mut sections: Vec<Section<'_>> = Vec::with_capacity(self.all.len());
        for done in &self.all {
            sections.push(Section::of(done, &done.found));
        }
        if let Some(only) = &self.only {
            sections[only.at].only = Some(only.collectives.clone());
        }
        sections
    }

    /// The unit that was requested.
    fn computation(&self) -> Option<&str> {
        match &self.only {
            Some(only) => Some(self.subject.source.name_of(self.all[only.at].priced.unit)),
            None => self.look.of.which.computation.as_deref(),
        }
    }

    fn module(&self, shown: &ShownModule<'_>, style: &Style) -> Result<String, Failed> {
        let mut text = shown.headline(style);
        for section in shown.picked(self.computation(), SECTIONS)? {
            text.push_str(&shown.section(section, self.look.rows(), style));
        }
        Ok(text)
    }

    fn graph(&self, sections: &[Section<'_>], style: &Style) -> String {
        let Some(section) = sections.last() else { return String::new() };
        let (graph, evaluation) = (&section.priced.graph, section.result);
        let simulation = &evaluation.simulation;
        let lines = [
            ("program", program(graph)),
            (
                "step time",
                format!(
                    "{}, {}",
                    evaluation.step_time(),
                    against_bound(evaluation.step_time(), section.bound)
                ),
            ),
            ("lower bound", describe_bound(graph, section.bound)),
            ("exposed", evaluation.exposed().to_string()),
            ("peak memory", evaluation.peak().to_string()),
            ("compute", format!("idle {}", simulation.compute_idle)),
        ];
        let host = host_line(simulation);
        let mut text: String =
            lines.iter().chain(&host).map(|(label, value)| labelled(label, value, style)).collect();
        if self.look.command == "simulate" {
            for (stream, idle) in
                simulation.stream_idle.iter().filter(|(_, idle)| **idle < simulation.step_time)
            {
                text.push_str(&labelled(
                    &format!("stream {}", stream.index()),
                    &format!("idle {idle}"),
                    style,
                ));
            }
        }
        text.push('\n');
        let explanation = section.explanation();
        let explained = Explained { graph, evaluation, explanation: &explanation, was: None };
        text.push_str(&render_explanation(&explained, self.look.rows(), style));
        if self.look.command == "explain" && self.only.is_none() {
            let device = self.subject.source.model.costs.device.as_ref();
            text.push_str(&render_kernels(graph, simulation, device, style));
        }
        text
    }
}

/// The details of the requested node.
fn about(section: &Section<'_>, node: &str, style: &Style) -> String {
    let graph = &section.priced.graph;
    let collectives = section.only.as_deref().unwrap_or_default();
    let mut text = String::new();
    if section.explanation().held.is_empty() {
        text.push_str(&format!("{} is hidden: nothing waits for it\n", printable(node)));
    }
    for (what, known) in collectives.iter().flat_map(|&op| graph.provenance(op).known()) {
        text.push_str(&labelled(what, &printable(known), style));
    }
    text
}

/// Where a node is, and what it represents.
fn narrow<T>(subject: &Subject, all: &[Decided<T>], node: &str) -> Result<Only, Failed> {
    let found = all.iter().position(|done| done.priced.graph.find(node).is_some());
    let what = if subject.hlo.is_some() { "module" } else { "graph" };
    let unknown = || {
        let graphs: Vec<&Graph> = all.iter().map(|done| &*done.priced.graph).collect();
        let meant = meant(&graphs, node);
        Failed::BadInput(format!("--node: '{node}' is not a node of the {what}{meant}"))
    };
    let at = found.ok_or_else(unknown)?;
    Ok(Only { at, collectives: named(&all[at].priced.graph, node)? })
}

/// The collectives that may have been meant: those whose name, parameter, module or operation
/// contains the text, or else the one with the nearest name.
pub fn meant(graphs: &[&Graph], node: &str) -> String {
    const SHOWN: usize = 5;
    let mut all: Vec<(&Graph, OpId)> = Vec::new();
    for graph in graphs {
        let collectives = graph.ops().filter(|&op| graph.kind(op).is_collective());
        all.extend(collectives.map(|op| (*graph, op)));
    }
    let typed = node.to_lowercase();
    let has = |text: &str| text.to_lowercase().contains(&typed);
    let fits = |graph: &Graph, op: OpId| {
        let issued = graph.collective(op).is_some_and(|issued| has(&issued.op));
        let known = graph.provenance(op).known();
        issued || has(graph.name(op)) || known.into_iter().any(|(_, known)| has(known))
    };
    let fitting = all.iter().filter(|(graph, op)| fits(graph, *op));
    let fitting: Vec<&str> = fitting.map(|(graph, op)| graph.name(*op)).collect();
    let near = nearest(node, all.iter().map(|(graph, op)| graph.name(*op)));
    let names = if fitting.is_empty() { near.into_iter().collect() } else { fitting };
    let shown: Vec<String> =
        names.iter().take(SHOWN).map(|name| format!("'{}'", printable(name))).collect();
    match (shown.split_last(), names.len().saturating_sub(SHOWN)) {
        (None, _) => String::new(),
        (Some((last, [])), 0) => format!("; did you mean {last}?"),
        (Some((last, others)), 0) => format!("; did you mean {} or {last}?", others.join(", ")),
        (Some(_), more) => format!("; did you mean one of {} and {more} more?", shown.join(", ")),
    }
}

/// The collective of that name, or those that a wait of that name belongs to.
fn named(graph: &Graph, name: &str) -> Result<Vec<OpId>, Failed> {
    let refused = |why: &str| Failed::BadInput(format!("--node: '{name}' {why}"));
    let op = graph.find(name).ok_or_else(|| refused("is not a node of the graph"))?;
    match graph.waits_for(op) {
        [] if graph.kind(op).is_collective() => Ok(vec![op]),
        [] => Err(refused("is neither a collective nor the wait of one")),
        collectives => Ok(collectives.to_vec()),
    }
}

fn to_json(subject: &Subject, sections: &[Section<'_>]) -> Value {
    let of = |section: &Section<'_>| {
        let device = subject.source.model.costs.device.as_ref();
        simulation_json(&section.priced.graph, section.result, &section.explanation(), device)
    };
    match &subject.hlo {
        Some(hlo) => module_json(subject, hlo, sections),
        None => sections.last().map(of).unwrap_or_default(),
    }
}

fn module_json(subject: &Subject, hlo: &Hlo, sections: &[Section<'_>]) -> Value {
    let source = &subject.source;
    let computation = |section: &Section<'_>| {
        let device = source.model.costs.device.as_ref();
        let explanation = section.explanation();
        let mut value =
            simulation_json(&section.priced.graph, section.result, &explanation, device);
        if let Some(object) = value.as_object_mut() {
            object.remove("format");
            object.remove("collective_order");
            object.insert("computation".to_owned(), json!(source.name_of(section.priced.unit)));
            object
                .insert("runs".to_owned(), json!(source.workload.units[section.priced.unit].runs));
        }
        value
    };
    let shown = sections.iter().filter(|section| section.communicates(source));
    let entry = sections.last();
    json!({
        "format": "halflap.simulation/1",
        "module": hlo.module.name(),
        "device_assumed": source.assumed,
        "collective_order": entry.map(|entry| collective_order(entry.bound.edges)),
        "step_time": entry.map(|entry| entry.result.step_time()),
        "peak_memory": entry.map(|entry| entry.result.peak()),
        "computations": shown.map(computation).collect::<Vec<_>>(),
    })
}
