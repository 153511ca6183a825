//! `halflap schedule --merge`: change the program, prove that it is the same, then order it.

use halflap::cost::Costs;
use halflap::evaluate::{Change, Side};
use halflap::export::write_graph;
use halflap::origin::{Origin, Part, Source as From};
use halflap::rewrite::{CopyCost, Prices, RewriteError, Rewritten, merge_named};
use halflap::trust::Trust;
use halflap::workload::{Decided, Workload};
use halflap_report::page::Shown;
use halflap_report::{
    Compared, Explained, Played, Summary, Timed, TimedRewrite, carried, describe_trust, labelled, listing, printable,
    render_explanation,
};

use crate::answer::Answer;
use crate::args::{self, ChainWhich, PictureArgs};
use crate::exit::Failed;
use crate::files;
use crate::pictures;
use crate::search::{Outcome, Wanted, search};
use crate::show::{Measure, ROWS, Section, host_line, program, step_line};
use crate::source::{Source, Subject};
use crate::terminal;

/// A result, and the original program.
pub struct Merged {
    args: args::Schedule,
    before: Decided<()>,
    after: Decided<Outcome>,
    origin: Origin,
    trust: Trust,
    measure: Measure,
    read_seconds: f64,
}

/// Applies the recipes, and finds the best order of the result.
pub fn find(args: &args::Schedule, subject: &Subject) -> Result<Merged, Failed> {
    let Source { model, read_seconds, .. } = &subject.source;
    let bug = || Failed::OurBug("a graph has no unit".to_owned());
    let before = subject.source.walk(|priced| Ok((priced.input.order.clone(), ())))?.pop().ok_or_else(bug)?;
    let Rewritten { graph, origin } = rewritten(args, &before, &model.costs)?;
    // The new program gives all its times itself: they were carried over, or priced by the recipe.
    let source = subject.source.changed_to(Workload::from(graph));
    let is_chained = args.order_collectives.is_some();
    let peak_before = Some(before.priced.peak_before());
    let wanted = Wanted { args: &args.search, is_chained, source: &source, peak_before };
    let after = source.walk(|priced| search(&wanted, priced))?.pop().ok_or_else(bug)?;
    let trust = Trust::between(side(&before), side(&after), &origin);
    let measure = Measure::new(after.found.limit, after.found.bound);
    Ok(Merged { args: args.clone(), before, after, origin, trust, measure, read_seconds: *read_seconds })
}

fn side<T>(decided: &Decided<T>) -> Side<'_> {
    Side { setup: decided.priced.setup(), evaluation: &decided.result }
}

/// The program after all recipes, each proved.
fn rewritten(args: &args::Schedule, before: &Decided<()>, costs: &Costs) -> Result<Rewritten, Failed> {
    let names = |set: &String| set.split(',').map(|name| name.trim().to_owned()).collect();
    let sets: Vec<Vec<String>> = args.merge.iter().map(names).collect();
    let copy = costs.device.as_ref().map_or_else(CopyCost::default, CopyCost::of);
    let times = &before.priced.machine.times;
    let graph = before.priced.graph.as_ref().clone().with_given(|op| times.of(op));
    merge_named(&graph, &sets, &Prices { copy, costs }).map_err(|error| match error {
        RewriteError::Invalid(_) | RewriteError::Unproved(_) => Failed::OurBug(error.to_string()),
        error => Failed::in_file(files::name_of(&args.graph), format!("--merge: {error}")),
    })
}

impl Merged {
    fn summary(&self) -> Summary {
        let (before, after) = (side(&self.before), side(&self.after));
        Summary::of(&Compared { before, after, origin: Some(&self.origin), passes: &[] }, self.after.found.bound)
    }

    fn timed<'s>(&'s self, summary: &'s Summary) -> TimedRewrite<'s> {
        let found = &self.after.found;
        let timed = Timed {
            graph: &self.after.priced.graph,
            order: &self.after.result.order,
            passes: &[],
            summary,
            compat: None,
            order_collectives: self.args.order_collectives.map(ChainWhich::name),
            read_seconds: self.read_seconds,
            pass_seconds: &[],
            optimizer: Some(found.described(&self.args.search, &self.trust)),
        };
        TimedRewrite {
            timed,
            before: &self.before.priced.graph,
            origin: &self.origin,
            simulated_before: &self.before.result.simulation,
            simulated: &self.after.result.simulation,
        }
    }

    /// What was changed, for people.
    fn facts(&self) -> Vec<(&'static str, String)> {
        let (old, new) = (&self.before.priced.graph, &self.after.priced.graph);
        let merged = self.origin.ops.iter().filter(|(_, source)| source.part == Part::Merged);
        let line = |(op, source): (_, &From)| {
            let members: Vec<String> = source.of.iter().map(|&member| printable(old.name(member))).collect();
            ("merged", format!("{} into {}", members.join(", "), printable(new.name(op))))
        };
        let program = [("program", format!("{} -> {}", program(old), program(new)))];
        program.into_iter().chain(merged.map(line)).chain([("trust", describe_trust(&self.trust))]).collect()
    }

    fn section(&self) -> Section<'_> {
        Section::of(&self.after, &self.measure)
    }
}

impl Answer for Merged {
    fn json(&self) -> Result<String, Failed> {
        let summary = self.summary();
        let text = serde_json::to_string(&self.timed(&summary));
        text.map(|text| text + "\n").map_err(|error| Failed::OurBug(error.to_string()))
    }

    fn text(&self) -> Result<String, Failed> {
        let (summary, found, evaluation) = (self.summary(), &self.after.found, &self.after.result);
        let step = Change { before: summary.step_time_before, after: summary.step_time };
        let exposed = format!("{} -> {}", summary.simulated_exposed_before, summary.simulated_exposed);
        let figures = [
            ("communication", summary.communication.to_string()),
            ("step time", step_line(step, found.bound)),
            ("exposed", exposed),
            ("peak memory", format!("{} -> {}, limit {}", summary.peak_before, summary.peak, found.limit)),
        ];
        let style = terminal::style();
        let host = host_line(&evaluation.simulation);
        let facts = self.facts();
        let lines = facts.iter().chain(&figures).chain(&host);
        let mut text = match self.args.show {
            true => listing(self.after.priced.setup(), &evaluation.order) + "\n",
            false => String::new(),
        };
        text.extend(lines.map(|(label, value)| labelled(label, value, &style)));
        let was = carried(&self.origin, &self.before.result.simulation);
        let (graph, explanation) = (&self.after.priced.graph, self.section().explanation());
        let explained = Explained { graph, evaluation, explanation: &explanation, was: Some(&was) };
        text.push('\n');
        text.push_str(&render_explanation(&explained, ROWS, &style));
        Ok(text + &format!("optimized in {:.2} s\n", found.seconds))
    }

    fn program(&self) -> Result<String, Failed> {
        let mut text = Vec::new();
        write_graph(&self.after.priced.graph, &mut text).map_err(|error| Failed::OurBug(error.to_string()))?;
        Ok(String::from_utf8_lossy(&text).into_owned())
    }

    fn draw(&self, pictures: &PictureArgs) -> Result<(), Failed> {
        if !pictures.any() {
            return Ok(());
        }
        let (before, after) = (&self.before, &self.after);
        let orders = [
            Played::new("before", before.priced.setup(), &before.result).changed_by(&self.origin),
            Played::new("after", after.priced.setup(), &after.result),
        ];
        pictures.draw(&[Shown {
            title: &pictures::title(&self.args.graph),
            part: "",
            command: "schedule",
            facts: self.facts(),
            orders: &orders,
            explanation: &self.section().explanation(),
            memory_limit: Some(after.found.limit),
            rows: &[],
        }])
    }
}
