//! Pictures of a module: one part for each computation that communicates.

use halflap::explain::Explanation;
use halflap::order::Order;
use halflap::report::Played;
use halflap::report::page::Shown;

use super::show::{Section, picked};
use super::{Ready, Source};
use crate::args::{PictureArgs, WhichArgs};
use crate::exit::Failed;
use crate::pictures;
use crate::simulate::program;

/// What a part is drawn from.
struct Drawn<'a> {
    section: &'a Section<'a>,
    computation: &'a str,
    input: Order,
    explanation: Explanation,
}

/// Draws the computation that was asked for, or all, the most exposed first.
pub(super) fn draw(
    source: &Source<'_>,
    sections: &[Section<'_>],
    (args, which): (&PictureArgs, &WhichArgs),
    command: &'static str,
) -> Result<(), Failed> {
    if !args.any() {
        return Ok(());
    }
    let drawn = |section| Drawn {
        section,
        computation: source.module.computation_name(section.ready.unit.computation),
        input: Order::of_input(&section.ready.graph),
        explanation: section.explanation(),
    };
    let picked = picked(source, sections, which.computation.as_deref(), usize::MAX)?;
    let parts: Vec<Drawn<'_>> = picked.into_iter().map(drawn).collect();
    let orders: Vec<Vec<Played<'_>>> = parts.iter().map(played).collect();
    let title = pictures::title(source.path);
    let shown = parts.iter().zip(&orders).map(|(part, orders)| Shown {
        title: &title,
        part: part.computation,
        command,
        facts: vec![("program", program(&part.section.ready.graph))],
        orders,
        explanation: &part.explanation,
        memory_limit: Some(part.section.limit),
        rows: &[],
    });
    args.draw(&shown.collect::<Vec<_>>())
}

/// The order before and the order now, if it is another.
fn played<'a>(part: &'a Drawn<'a>) -> Vec<Played<'a>> {
    let Ready { graph, machine, before, .. } = part.section.ready;
    match *part.section.order == part.input {
        true => vec![Played::new("input order", (graph, machine), &part.input)],
        false => vec![
            Played::new("before", (graph, before), &part.input),
            Played::new("after", (graph, machine), part.section.order),
        ],
    }
}
