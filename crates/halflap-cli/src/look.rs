//! `halflap simulate` and `halflap explain`: orders in time, and why they are no shorter.

use halflap::explain::Explanation;
use halflap::graph::{Edges, Graph};
use halflap::ids::{Id, OpId};
use halflap::memory::Budget;
use halflap::simulate::lower_bound;
use halflap::workload::Decided;
use halflap_report::{
    Explained, Style, against_bound, collective_order, labelled, printable, render_explanation, simulation_json,
};
use serde_json::{Value, json};

use crate::args;
use crate::draw::{Picture, draw};
use crate::exit::Failed;
use crate::files;
use crate::recorded::{Collectives, Recorded};
use crate::show::{ROWS, SECTIONS, Section, Shown, host_line, program};
use crate::source::{Hlo, Orders, Subject};
use crate::terminal;

pub fn simulate(args: &args::Simulate) -> Result<(), Failed> {
    Look { of: &args.of, command: "simulate", node: None, budget: None }.run()
}

pub fn explain(args: &args::Explain) -> Result<(), Failed> {
    Look { of: &args.of, command: "explain", node: args.node.as_deref(), budget: args.memory_budget }.run()
}

/// What is looked at, and how closely.
struct Look<'a> {
    of: &'a args::Ordered,
    command: &'static str,
    node: Option<&'a str>,
    budget: Option<Budget>,
}

impl Look<'_> {
    fn run(&self) -> Result<(), Failed> {
        let args = self.of;
        if args.graph == "-" && args.order.as_deref() == Some("-") {
            return Err(Failed::BadInput("only one of program and order can come from standard input".to_owned()));
        }
        args.pictures.check(&args.graph, args.output.as_deref())?;
        let recorded = Recorded::read(args.order.as_deref())?;
        let Collectives { chain, edges } = recorded.collectives(&args.collectives)?;
        let subject = Subject::read(&args.graph, &args.machine, chain)?;
        let all = self.walk(&subject, edges)?;
        let mut sections: Vec<Section<'_>> = Vec::with_capacity(all.len());
        for done in &all {
            let priced = &done.priced;
            let name = subject.hlo.as_ref().map(|_| subject.source.name_of(priced.unit));
            let limit = recorded.limit(self.budget, name, priced.peak_before());
            sections.push(Section::of(done, limit, lower_bound(&priced.graph, &priced.machine, edges)));
        }
        let found = self.node.map(|node| narrow(&subject, &mut sections, node)).transpose()?;
        let computation = found.as_ref().map(|at| subject.source.name_of(sections[*at].priced.unit));
        let computation = computation.or(args.which.computation.as_deref());
        let is_compared = args.order.is_some();
        let picture = Picture { is_compared, ..Picture::of(self.command, computation) };
        draw(&subject, &sections, &args.pictures, &picture)?;
        let text = || format!("{}\n", to_json(&subject, &sections));
        if files::put_asked(args.output.as_deref(), args.json, text)? {
            return Ok(());
        }
        let style = terminal::style();
        let mut text = match &subject.hlo {
            Some(hlo) => {
                self.module(&Shown { source: &subject.source, hlo, sections: &sections }, computation, &style)?
            }
            None => self.graph(&sections, &style),
        };
        if let (Some(at), Some(node)) = (found, self.node) {
            text.push_str(&about(&sections[at], node, &style));
        }
        files::print(&text)
    }

    fn walk(&self, subject: &Subject<'_>, edges: Edges) -> Result<Vec<Decided<()>>, Failed> {
        let orders = self.of.order.as_deref().map(|path| Orders::read(path, subject)).transpose()?;
        subject.source.walk(|priced| {
            let order = match &orders {
                Some(orders) => orders.order(&subject.source, priced, edges)?,
                None => priced.input.order.clone(),
            };
            Ok((order, ()))
        })
    }

    fn rows(&self) -> usize {
        if self.command == "explain" { usize::MAX } else { ROWS }
    }

    fn module(&self, shown: &Shown<'_>, computation: Option<&str>, style: &Style) -> Result<String, Failed> {
        let mut text = shown.headline(style);
        for section in shown.picked(computation, SECTIONS)? {
            text.push_str(&shown.section(section, self.rows(), style));
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
                format!("{}, {}", evaluation.step_time(), against_bound(evaluation.step_time(), section.bound)),
            ),
            ("exposed", evaluation.exposed().to_string()),
            ("peak memory", evaluation.peak().to_string()),
            ("compute", format!("idle {}", simulation.compute_idle)),
        ];
        let host = host_line(simulation);
        let mut text: String = lines.iter().chain(&host).map(|(label, value)| labelled(label, value, style)).collect();
        if self.command == "simulate" {
            for (stream, idle) in simulation.stream_idle.iter().filter(|(_, idle)| **idle < simulation.step_time) {
                text.push_str(&labelled(&format!("stream {}", stream.index()), &format!("idle {idle}"), style));
            }
        }
        text.push('\n');
        let explanation = section.explanation();
        let explained = Explained { graph, evaluation, explanation: &explanation, was: None };
        text + &render_explanation(&explained, self.rows(), style)
    }
}

/// What is known of the node that was asked for.
fn about(section: &Section<'_>, node: &str, style: &Style) -> String {
    let graph = &section.priced.graph;
    let collectives = section.only.as_deref().unwrap_or_default();
    let mut text = String::new();
    if section.explanation().held.is_empty() {
        text.push_str(&format!("{} is hidden: nobody waits for it\n", printable(node)));
    }
    for (what, known) in collectives.iter().flat_map(|&op| graph.provenance(op).known()) {
        text.push_str(&labelled(what, &printable(known), style));
    }
    text
}

/// Explains one node alone; gives the section that it is in.
fn narrow(subject: &Subject<'_>, sections: &mut [Section<'_>], node: &str) -> Result<usize, Failed> {
    let found = sections.iter().position(|section| section.priced.graph.find(node).is_some());
    let what = if subject.hlo.is_some() { "module" } else { "graph" };
    let unknown = || Failed::BadInput(format!("--node: '{node}' is not a node of the {what}"));
    let at = found.ok_or_else(unknown)?;
    sections[at].only = Some(named(&sections[at].priced.graph, node)?);
    Ok(at)
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

fn to_json(subject: &Subject<'_>, sections: &[Section<'_>]) -> Value {
    let of = |section: &Section<'_>| {
        let explanation: Explanation = section.explanation();
        simulation_json(&section.priced.graph, section.result, &explanation)
    };
    match &subject.hlo {
        Some(hlo) => module_json(subject, hlo, sections),
        None => sections.last().map(of).unwrap_or_default(),
    }
}

fn module_json(subject: &Subject<'_>, hlo: &Hlo, sections: &[Section<'_>]) -> Value {
    let source = &subject.source;
    let computation = |section: &Section<'_>| {
        let mut value = simulation_json(&section.priced.graph, section.result, &section.explanation());
        if let Some(object) = value.as_object_mut() {
            object.remove("format");
            object.remove("collective_order");
            object.insert("computation".to_owned(), json!(source.name_of(section.priced.unit)));
            object.insert("runs".to_owned(), json!(source.workload.units[section.priced.unit].runs));
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
