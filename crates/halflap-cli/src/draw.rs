//! Pictures of a program: one part for each unit that communicates.

use std::borrow::Cow;

use halflap::evaluate::Change;
use halflap::explain::Explanation;
use halflap::units::Nanos;
use halflap_report::page::Shown as Drawing;
use halflap_report::{AdviceLine, Played, Row, printable};

use crate::args::PictureArgs;
use crate::exit::Failed;
use crate::pictures;
use crate::show::{Section, ShownModule, program};
use crate::source::Subject;

/// What is drawn of a program.
pub struct Picture<'a> {
    /// Which command asks.
    pub command: &'static str,
    /// The computation that was requested.
    pub computation: Option<&'a str>,
    /// Whether to draw the input order, too, even if both are the same.
    pub is_compared: bool,
    /// Further facts about a graph.
    pub facts: Vec<(&'static str, String)>,
    /// The passes' remarks on each collective, if passes ran.
    pub rows: &'a [Row],
    /// What can be done about the step.
    pub advice: Vec<AdviceLine>,
    /// What comes before it.
    pub lead: Option<AdviceLine>,
}

impl<'a> Picture<'a> {
    pub fn of(command: &'static str, computation: Option<&'a str>) -> Picture<'a> {
        Picture {
            command,
            computation,
            is_compared: false,
            facts: Vec::new(),
            rows: &[],
            advice: Vec::new(),
            lead: None,
        }
    }
}

/// Draws what was requested: a graph, one computation, or all, the most exposed first.
pub fn draw(
    subject: &Subject,
    sections: &[Section<'_>],
    args: &PictureArgs,
    picture: &Picture<'_>,
) -> Result<(), Failed> {
    if !args.any() {
        return Ok(());
    }
    let source = &subject.source;
    let module = subject.hlo.as_ref().map(|hlo| ShownModule { source, hlo, sections });
    let picked: Vec<&Section<'_>> = match &module {
        Some(module) => drawn(module, picture.computation)?,
        None => sections.iter().collect(),
    };
    let explanations: Vec<Cow<'_, Explanation>> =
        picked.iter().map(|section| section.explanation()).collect();
    let orders: Vec<Vec<Played<'_>>> =
        picked.iter().map(|section| played(section, picture.is_compared)).collect();
    let is_explained = |orders: &[Played<'_>]| {
        orders.len() == 2 && picture.rows.is_empty() && args.report.is_some()
    };
    let before: Vec<Option<Explanation>> = picked
        .iter()
        .zip(&orders)
        .map(|(section, orders)| is_explained(orders).then(|| section.explanation_before()))
        .collect();
    let title = pictures::title(&source.input);
    let mut parts = Vec::new();
    for (number, section) in picked.iter().enumerate() {
        let (explanation, orders) = (&explanations[number], &orders[number]);
        parts.push(Drawing {
            title: &title,
            part: source.name_of(section.priced.unit),
            command: picture.command,
            facts: {
                let of_program = match &module {
                    Some(module) => facts(module, section),
                    None => vec![("program", program(&section.priced.graph))],
                };
                of_program.into_iter().chain(picture.facts.iter().cloned()).collect()
            },
            orders,
            explanation,
            explanation_before: before[number].as_ref(),
            device: source.model.costs.device,
            memory_limit: picture.rows.is_empty().then_some(section.limit),
            rows: picture.rows,
            advice: &picture.advice,
            lead: picture.lead.as_ref(),
            exposed_in_all: exposed_in_all(section),
        });
    }
    args.draw(&parts)
}

/// What a unit and all that it runs expose, if that is more than what it exposes itself.
fn exposed_in_all(section: &Section<'_>) -> Option<Change<Nanos>> {
    let Change { before, after } = section.exposed_in_all;
    let was = section.is_reordered().then(|| section.priced.input.exposed());
    let own = was.is_none_or(|was| was < before) || section.result.exposed() < after;
    own.then_some(section.exposed_in_all)
}

/// The computation that was requested, or the whole step and then those that communicate, the most
/// exposed first.
fn drawn<'s>(
    module: &'s ShownModule<'_>,
    name: Option<&str>,
) -> Result<Vec<&'s Section<'s>>, Failed> {
    let mut picked = module.picked(name, usize::MAX)?;
    if let (None, Some(entry)) = (name, module.sections.last()) {
        picked.retain(|section| section.priced.unit != entry.priced.unit);
        picked.insert(0, entry);
    }
    Ok(picked)
}

/// The totals of the module, and which part this is.
fn facts(module: &ShownModule<'_>, section: &Section<'_>) -> Vec<(&'static str, String)> {
    let source = module.source;
    let whole = module.sections.last().map(|entry| {
        let (step, exposed) = (entry.step_time(), entry.exposed_in_all);
        let arrow = |change: Change<_>| format!("{} -> {}", change.before, change.after);
        format!("step time {}, exposed {}", arrow(step), arrow(exposed))
    });
    let name = printable(source.name_of(section.priced.unit));
    let computation = format!("{name}{}", module.place(section));
    let known =
        [("device", source.device()), ("whole module", whole), ("computation", Some(computation))];
    let program = [("program", Some(program(&section.priced.graph)))];
    known.into_iter().chain(program).filter_map(|(label, fact)| Some((label, fact?))).collect()
}

/// The order before and after, if they differ; in a changed program there is none before.
fn played<'a>(section: &'a Section<'a>, is_compared: bool) -> Vec<Played<'a>> {
    let (priced, result) = (section.priced, section.result);
    if !section.is_reordered() {
        return vec![Played::new("changed module", priced.setup(), result)];
    }
    match is_compared || result.order != priced.input.order {
        true => vec![
            Played::new("before", priced.setup_before(), &priced.input),
            Played::new("after", priced.setup(), result),
        ],
        false => vec![Played::new("input order", priced.setup(), result)],
    }
}
