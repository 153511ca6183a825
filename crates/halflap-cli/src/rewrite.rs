//! `halflap schedule --rewrite` and `--merge`: change the program, prove that it is the same, order it.

use halflap::cost::Costs;
use halflap::evaluate::{Change, Side};
use halflap::export::write_graph;
use halflap::graph::Graph;
use halflap::ids::OpId;
use halflap::improve::{Allowed, KeptBecause};
use halflap::origin::{Origin, Part, Source as From};
use halflap::rewrite::{CopyCost, Prices, RewriteError, RewriteKind, Rewritten, merge_named};
use halflap::robustness::Robustness;
use halflap::units::Nanos;
use halflap::workload::{Decided, Priced, Workload};
use halflap_report::page::Shown;
use halflap_report::{
    Compared, Explained, Played, Summary, Timed, TimedRewrite, carried, count, describe_robustness,
    labelled, listing, printable, render_explanation,
};

use crate::answer::{self, Answer, Figures};
use crate::args::{self, ChainWhich, PictureArgs};
use crate::exit::Failed;
use crate::files;
use crate::pictures;
use crate::search::{Outcome, Rung, Wanted, Way, best, improved, search};
use crate::show::{Measure, ROWS, Section, host_line, program, step_line};
use crate::source::Subject;
use crate::terminal;

/// A result, and the original program.
pub struct Merged {
    args: args::Schedule,
    before: Decided<()>,
    after: Decided<Outcome>,
    origin: Origin,
    robustness: Robustness,
    measure: Measure,
    read_seconds: f64,
    searched: Option<SearchedRewrites>,
}

/// What the search for rewrites says besides the result.
#[derive(Clone, Copy)]
struct SearchedRewrites {
    /// The step of the best order of the original program.
    order_alone: Nanos,
    /// Why it stays as it is, if it does.
    kept_because: KeptBecause,
}

/// A program with its order, before it is compared with the original.
struct Found {
    origin: Origin,
    after: Decided<Outcome>,
    searched: Option<SearchedRewrites>,
}

/// Applies the recipes that are given, or finds some, and the best order of the result.
pub fn find(args: &args::Schedule, subject: &Subject) -> Result<Merged, Failed> {
    let bug = || Failed::OurBug("a graph has no unit".to_owned());
    let before = subject
        .source
        .walk(|priced| Ok((priced.input.order.clone(), ())))?
        .pop()
        .ok_or_else(bug)?;
    let found = match args.allowed() {
        Some(allowed) => chosen(args, subject, Choice { before: &before, allowed })?,
        None => given(args, subject, &before)?,
    };
    let Found { origin, after, searched } = found;
    let robustness = Robustness::between(side(&before), side(&after), &origin);
    let measure = Measure::new(after.found.limit, after.found.bound);
    let read_seconds = subject.source.read_seconds;
    Ok(Merged {
        args: args.clone(),
        before,
        after,
        origin,
        robustness,
        measure,
        read_seconds,
        searched,
    })
}

fn side<T>(decided: &Decided<T>) -> Side<'_> {
    Side { setup: decided.priced.setup(), evaluation: &decided.result }
}

/// A program that gives all its run times itself: rewrites carry them over.
fn timed_graph(priced: &Priced) -> Graph {
    priced.graph.as_ref().clone().with_given(|op| priced.machine.times.of(op))
}

fn prices(costs: &Costs) -> Prices<'_> {
    Prices { copy: costs.device.as_ref().map_or_else(CopyCost::default, CopyCost::of), costs }
}

/// The program after the recipes of the command line, each proved.
fn given(args: &args::Schedule, subject: &Subject, before: &Decided<()>) -> Result<Found, Failed> {
    let names = |set: &String| set.split(',').map(|name| name.trim().to_owned()).collect();
    let sets: Vec<Vec<String>> = args.merge.iter().map(names).collect();
    let rewritten =
        merge_named(&timed_graph(&before.priced), &sets, &prices(&subject.source.model.costs));
    let Rewritten { graph, origin } = rewritten.map_err(|error| match error {
        RewriteError::Invalid(_) | RewriteError::Unproved(_) => Failed::OurBug(error.to_string()),
        error => Failed::in_file(files::name_of(&args.graph), format!("--merge: {error}")),
    })?;
    let source = subject.source.changed_to(Workload::from(graph));
    let is_chained = args.order_collectives.is_some();
    let peak_before = Some(before.priced.peak_before());
    let walk = |rung| {
        let wanted = Wanted { args: &args.search, rung, is_chained, source: &source, peak_before };
        source.walk(|priced| search(&wanted, priced))
    };
    let is_at_bound =
        |unit: &Decided<Outcome>| unit.found.bound.is_reached_by(unit.result.step_time());
    let after = best(&args.search, walk, |all| all.iter().all(is_at_bound))?.pop();
    let after = after.ok_or_else(|| Failed::OurBug("a graph has no unit".to_owned()))?;
    Ok(Found { origin, after, searched: None })
}

/// What rewrites are chosen from.
struct Choice<'a> {
    before: &'a Decided<()>,
    allowed: &'a Allowed,
}

/// The program after the rewrites that make its step shorter.
fn chosen(args: &args::Schedule, subject: &Subject, choice: Choice<'_>) -> Result<Found, Failed> {
    let graph = timed_graph(&choice.before.priced);
    let unchanged = subject.source.changed_to(Workload::from(graph.clone()));
    let left_out = left_out(&args.without)?;
    let is_chained = args.order_collectives.is_some();
    let peak_before = Some(choice.before.priced.peak_before());
    let rung = Rung::asked(&args.search);
    let wanted = Wanted { args: &args.search, rung, is_chained, source: &unchanged, peak_before };
    let prices = prices(&subject.source.model.costs);
    let way = Way { prices: &prices, allowed: choice.allowed, left_out: &left_out };
    let (improved, outcome) = improved(&wanted, &choice.before.priced, &way)?;
    if let Some(number) = left_out.iter().find(|&&number| number >= improved.chosen) {
        let problem = format!(
            "--without merge:{}: only {} were chosen",
            number + 1,
            count(improved.chosen, "rewrite")
        );
        return Err(Failed::BadInput(problem));
    }
    let searched = Some(SearchedRewrites {
        order_alone: improved.unchanged.step_time,
        kept_because: improved.kept_because,
    });
    let (source, origin, order) = match improved.changed {
        Some(changed) => {
            let Rewritten { graph, origin } = changed.rewritten;
            (subject.source.changed_to(Workload::from(graph)), origin, changed.optimized.order)
        }
        None => (unchanged, Origin::unchanged(&graph), improved.unchanged.order),
    };
    let mut outcome = Some(outcome);
    let after = source.walk(|_| {
        let outcome =
            outcome.take().ok_or_else(|| Failed::OurBug("a graph has two units".to_owned()))?;
        Ok((order.clone(), outcome))
    })?;
    let after =
        after.into_iter().next().ok_or_else(|| Failed::OurBug("a graph has no unit".to_owned()))?;
    Ok(Found { origin, after, searched })
}

/// The numbers of recipes that are left out: `merge:3` is the third.
fn left_out(names: &[String]) -> Result<Vec<usize>, Failed> {
    let number = |name: &String| {
        let number = name.split_once(':').filter(|(kind, _)| RewriteKind::named(kind).is_some());
        let number = number
            .and_then(|(_, number)| number.parse::<usize>().ok())
            .and_then(|number| number.checked_sub(1));
        let problem = || {
            format!(
                "--without {name}: not the name of a rewrite; the summary has them, such as merge:1"
            )
        };
        number.ok_or_else(|| Failed::BadInput(problem()))
    };
    names.iter().map(number).collect()
}

/// Why nothing was changed, in words.
fn because(kept: KeptBecause) -> &'static str {
    match kept {
        KeptBecause::NothingToSave => {
            "no collectives that can be merged expose latency (--rewrite all has more)"
        }
        KeptBecause::LatencyUnknown => {
            "collectives of one size do not say what is latency: give --device or --link"
        }
        KeptBecause::NothingFits => "no plan that was tried is within the memory limit",
        _ => "no plan that was tried makes the step shorter",
    }
}

impl Merged {
    fn summary(&self) -> Summary {
        let (before, after) = (side(&self.before), side(&self.after));
        Summary::of(
            &Compared { before, after, origin: Some(&self.origin), passes: &[] },
            self.after.found.bound,
        )
    }

    fn timed<'s>(&'s self, summary: &'s Summary) -> TimedRewrite<'s> {
        let found = &self.after.found;
        let timed = Timed {
            advice: None,
            graph: &self.after.priced.graph,
            order: &self.after.result.order,
            passes: &[],
            summary,
            compat: None,
            order_collectives: self.args.order_collectives.map(ChainWhich::name),
            read_seconds: self.read_seconds,
            pass_seconds: &[],
            optimizer: Some(found.described(&self.args.search, &self.robustness)),
        };
        TimedRewrite {
            timed,
            before: &self.before.priced.graph,
            origin: &self.origin,
            simulated_before: &self.before.result.simulation,
            simulated: &self.after.result.simulation,
            order_alone: self.searched.map(|searched| searched.order_alone),
        }
    }

    /// What was changed, for people.
    fn facts(&self) -> Vec<(&'static str, String)> {
        let (old, new) = (&self.before.priced.graph, &self.after.priced.graph);
        let merged = self.origin.ops.iter().filter(|(_, source)| source.part == Part::Merged);
        let lines: Vec<String> = merged
            .enumerate()
            .map(|(number, (op, source))| self.describe_merge(number, op, source))
            .collect();
        let mut facts = vec![("program", format!("{} -> {}", program(old), program(new)))];
        if let Some(searched) = self.searched.filter(|_| lines.is_empty()) {
            facts.push(("rewrites", format!("none: {}", because(searched.kept_because))));
        }
        let more = lines.len().saturating_sub(ROWS);
        facts.extend(lines.into_iter().take(ROWS).map(|line| ("rewrite", line)));
        if more > 0 {
            facts.push(("", format!("... and {more} more: --json has all")));
        }
        facts.push(("robustness", describe_robustness(&self.robustness)));
        facts
    }

    /// A merge in a line: what became what, what it saves and what it costs.
    fn describe_merge(&self, number: usize, op: OpId, source: &From) -> String {
        let (old, new) = (&self.before.priced.graph, &self.after.priced.graph);
        let name = |op: OpId| printable(old.name(op));
        let members = match source.of[..] {
            [first, .., last] if source.of.len() > 3 => {
                format!("{} of {} to {}", source.of.len(), name(first), name(last))
            }
            _ => source.of.iter().map(|&member| name(member)).collect::<Vec<_>>().join(", "),
        };
        let (times, before) = (&self.after.priced.machine.times, &self.before.priced.machine.times);
        let was: Nanos = source.of.iter().map(|&member| before.of(member)).sum();
        let is_copy = |(_, other): &(OpId, &From)| {
            matches!(other.part, Part::CopyIn | Part::CopyOut) && source.of.contains(&other.of[0])
        };
        let copies: Nanos =
            self.origin.ops.iter().filter(is_copy).map(|(copy, _)| times.of(copy)).sum();
        format!(
            "merge:{} {members} into {}: {} of communication becomes {}, copies take {copies}",
            number + 1,
            printable(new.name(op)),
            was,
            times.of(op)
        )
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
        let exposed = format!("{} -> {}", summary.exposed_before, summary.exposed);
        let figures = [
            ("communication", summary.communication.to_string()),
            ("step time", step_line(step, found.bound)),
            ("exposed", exposed),
            (
                "peak memory",
                format!("{} -> {}, limit {}", summary.peak_before, summary.peak, found.limit),
            ),
        ];
        let style = terminal::style();
        let host = host_line(&evaluation.simulation);
        let facts = self.facts();
        let alone = self.searched.map(|searched| ("order alone", searched.order_alone.to_string()));
        let lines = facts.iter().chain(&figures).chain(&alone).chain(&host);
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

    fn figures(&self) -> Option<Figures> {
        let (before, after) = (&self.before.result, &self.after.result);
        Some(Figures {
            orders: vec![(String::new(), answer::names(&self.after.priced.graph, &after.order))],
            step_time: Change { before: before.step_time(), after: after.step_time() },
            exposed: Change { before: before.exposed(), after: after.exposed() },
            peak: Change { before: before.peak(), after: after.peak() },
            bound: Some(self.after.found.bound.time),
        })
    }

    fn program(&self) -> Result<String, Failed> {
        let mut text = Vec::new();
        write_graph(&self.after.priced.graph, &mut text)
            .map_err(|error| Failed::OurBug(error.to_string()))?;
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
            explanation_before: None,
            memory_limit: Some(after.found.limit),
            rows: &[],
            advice: &[],
        }])
    }
}
