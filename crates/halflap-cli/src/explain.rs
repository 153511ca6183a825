//! `halflap explain`: an order of a program, or, with `--rewrite`, the program as `schedule`
//! changes it, in the order found for it.

use std::sync::Arc;

use halflap::memory::Budget;
use halflap_report::labelled;
use serde_json::{Value, json};

use crate::answer::{Answer, Figures};
use crate::args::PictureArgs;
use crate::args::{self, CostArgs, MachineArgs, Rewrites, SearchArgs};
use crate::exit::Failed;
use crate::look::{self, Looked};
use crate::place::Input;
use crate::schedule;
use crate::source::Subject;
use crate::terminal;

/// Explains a program as it is, or changed.
pub fn find(args: &args::Explain) -> Result<Box<dyn Answer>, Failed> {
    match args.rewrite.as_ref().filter(|rewrites| rewrites.any()) {
        Some(rewrites) => Ok(Box::new(changed(args, rewrites)?)),
        None => Ok(Box::new(look::explained(args)?)),
    }
}

/// What was changed, and the explanation of the result.
struct ChangedExplanation {
    found: Box<dyn Answer>,
    looked: Looked,
}

/// Changes the program, and explains what that gives.
fn changed(args: &args::Explain, rewrites: &Rewrites) -> Result<ChangedExplanation, Failed> {
    let of = &args.of;
    refuse_order(of.order.as_ref())?;
    let chain = of.collectives.order_collectives;
    let subject = Subject::read(&of.graph, &of.machine, chain)?;
    subject.check(&of.which)?;
    let is_module = subject.hlo.is_some();
    let collective_order = of.collectives.collective_order;
    let schedule = args::Schedule {
        search: SearchArgs {
            memory_budget: args.memory_budget,
            collective_order,
            ..SearchArgs::default()
        },
        order_collectives: chain,
        rewrite: Some(rewrites.clone()),
        no_advice: true,
        machine: of.machine.clone(),
        ..args::Schedule::new(of.graph.clone())
    };
    schedule::refuse(is_module, &schedule)?;
    let machine = match is_module {
        true => of.machine.clone(),
        // A changed graph has all its run times.
        false => MachineArgs {
            costs: CostArgs::default(),
            slowdown: Some(subject.source.model.slowdown),
            comm_slowdown: Some(subject.source.model.comm_slowdown),
            ..of.machine.clone()
        },
    };
    let found = schedule::changed(subject, &schedule)?;
    let bug = || Failed::OurBug("a changed program has no figures".to_owned());
    let figures = found.figures().ok_or_else(bug)?;
    let named = |bytes: String| Input::Memory {
        name: of.graph.name().to_owned(),
        bytes: Arc::from(bytes.into_bytes()),
    };
    // A module is written in its order.
    let order = match (is_module, figures.orders.first()) {
        (false, Some((_, order))) => Some(named(json!(order).to_string())),
        _ => None,
    };
    let budget = args.memory_budget.unwrap_or(Budget::Times(1.0));
    let explained = args::Explain {
        of: args::Ordered { graph: named(found.program()?), order, machine, ..of.clone() },
        memory_budget: Some(Budget::Absolute(budget.limit(figures.peak.before))),
        no_advice: true,
        rewrite: None,
        node: args.node.clone(),
    };
    Ok(ChangedExplanation { found, looked: look::explained(&explained)? })
}

/// Rejects the order of a program that is to be changed.
pub fn refuse_order(order: Option<&Input>) -> Result<(), Failed> {
    let problem = |order: &Input| {
        let why = "is for the program as it is, and --rewrite changes it: leave out one of them";
        Failed::in_file(order.name(), why)
    };
    order.map_or(Ok(()), |order| Err(problem(order)))
}

impl Answer for ChangedExplanation {
    fn json(&self) -> Result<String, Failed> {
        let read = |text: String| serde_json::from_str::<Value>(&text);
        let bug = |error: serde_json::Error| Failed::OurBug(error.to_string());
        let mut value = read(self.looked.json()?).map_err(bug)?;
        let changed = read(self.found.json()?).map_err(bug)?;
        for field in ["recipes", "order_alone", "step_time_before"] {
            value[field] = changed[field].clone();
        }
        Ok(format!("{value}\n"))
    }

    fn text(&self) -> Result<String, Failed> {
        let style = terminal::style();
        let changes = self.found.changes();
        let changes = changes.iter().map(|(label, value)| labelled(label, value, &style));
        Ok(changes.chain([self.looked.text()?]).collect())
    }

    fn figures(&self) -> Option<Figures> {
        self.looked.figures()
    }

    fn program(&self) -> Result<String, Failed> {
        self.found.program()
    }

    fn draw(&self, pictures: &PictureArgs) -> Result<(), Failed> {
        self.looked.draw(pictures)
    }
}
