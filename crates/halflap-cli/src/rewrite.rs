//! `halflap schedule --rewrite` and `--merge`: change the program, prove that it is the same, order
//! it.

use halflap::cost::Costs;
use halflap::evaluate::{Change, Side};
use halflap::export::write_graph;
use halflap::graph::{Graph, OpKind};
use halflap::ids::OpId;
use halflap::improve::{Allowed, KeptBecause, OneCommunicator, PlanOrder};
use halflap::memory::Budget;
use halflap::origin::{Origin, Part};
use halflap::rewrite::{
    CopyCost, Prices, Recipe, RewriteError, RewriteKind, Rewritten, TAIL, merge_named,
};
use halflap::robustness::Robustness;
use halflap::units::Nanos;
use halflap::workload::{Decided, Priced, Search, Workload};
use halflap_report::page::Shown;
use halflap_report::{
    Advised, Compared, Explained, FoundOrder, Played, Summary, Timed, TimedRewrite, advice_json,
    became, carried, count, describe_bound, describe_robustness, group_name, labelled, printable,
    render_advice, render_explanation, result_size,
};
use serde_json::{Value, json};

use crate::advice::{LazyAdvice, Question, USE_ORDER, advised};
use crate::answer::{self, Answer, Figures};
use crate::args::{self, ChainWhich, PictureArgs};
use crate::exit::Failed;
use crate::look::meant;
use crate::machine;
use crate::pictures;
use crate::search::{
    ChangeScope, ChosenProgram, MemoryLimits, OrderedUnit, ProgramLimits, ProgramSearch, Rung,
    SearchOutcome, Wanted, best, best_choice, improved, is_interrupted, requested, search,
    times_asked,
};
use crate::show::{Measure, ROWS, Section, host_line, program, step_line, steps};
use crate::source::{ProgramSource, Subject};
use crate::terminal;

/// A result, and the original program.
pub struct Merged {
    args: args::Schedule,
    before: Decided<()>,
    after: Decided<SearchOutcome>,
    origin: Origin,
    recipes: Vec<Recipe>,
    robustness: Robustness,
    measure: Measure,
    /// The changed program.
    source: ProgramSource,
    searched: Option<SearchedRewrites>,
    /// What can be done about it.
    advice: LazyAdvice,
}

/// Further results of the search for rewrites.
#[derive(Clone, Copy)]
struct SearchedRewrites {
    /// The step of the best order of the original program.
    order_alone: Nanos,
    /// Why it stays as it is, if it does.
    kept_because: KeptBecause,
    /// Why no process group has a second communicator, if they were allowed one.
    one_communicator: Option<OneCommunicator>,
}

/// A program with its order, before it is compared with the original.
struct RewrittenProgram {
    origin: Origin,
    recipes: Vec<Recipe>,
    after: Decided<SearchOutcome>,
    source: ProgramSource,
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
        Some(allowed) => best_chosen(args, subject, &before, allowed)?,
        None => given(args, subject, &before)?,
    };
    let RewrittenProgram { origin, recipes, after, source, searched } = found;
    let robustness = Robustness::between(side(&before), side(&after), &origin);
    let measure = Measure::new(after.found.limit, after.found.bound);
    Ok(Merged {
        args: args.clone(),
        before,
        after,
        origin,
        recipes,
        robustness,
        measure,
        source,
        searched,
        advice: LazyAdvice::default(),
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
    let copy = costs.device.as_ref().map_or_else(CopyCost::default, CopyCost::of);
    Prices { copy, costs, tail: TAIL }
}

/// The program after the recipes of the command line, each proved.
fn given(
    args: &args::Schedule,
    subject: &Subject,
    before: &Decided<()>,
) -> Result<RewrittenProgram, Failed> {
    let names = |set: &String| set.split(',').map(|name| name.trim().to_owned()).collect();
    let sets: Vec<Vec<String>> = args.merge.iter().map(names).collect();
    let rewritten =
        merge_named(&timed_graph(&before.priced), &sets, &prices(&subject.source.model.costs));
    let Rewritten { graph, origin } = rewritten.map_err(|error| match error {
        RewriteError::Invalid(_) | RewriteError::Unproved(_) => Failed::OurBug(error.to_string()),
        RewriteError::UnknownNode { ref name } => {
            let meant = meant(&[&before.priced.graph], name);
            Failed::in_file(args.graph.name(), format!("--merge: {error}{meant}"))
        }
        error => Failed::in_file(args.graph.name(), format!("--merge: {error}")),
    })?;
    let source = subject.source.changed_to(Workload::from(graph));
    let is_chained = args.order_collectives.is_some();
    let peak_before = before.priced.peak_before();
    let walk = |rung| {
        let limits = MemoryLimits::of(&args.search, rung, peak_before);
        let wanted = Wanted { args: &args.search, rung, is_chained, source: &source, limits };
        source.walk(|priced| search(&wanted, priced))
    };
    let is_at_bound =
        |unit: &Decided<SearchOutcome>| unit.found.bound.is_reached_by(unit.result.step_time());
    let asked = Rung::asked(&args.search);
    let times = times_asked(&args.search, peak_before);
    let after = best(times, asked, walk, |all| all.iter().all(is_at_bound))?.pop();
    let after = after.ok_or_else(|| Failed::OurBug("a graph has no unit".to_owned()))?;
    let merged = origin.ops.iter().filter(|(_, source)| source.part == Part::Merged);
    let recipes = merged.map(|(_, source)| Recipe::Merge { members: source.of.clone() }).collect();
    Ok(RewrittenProgram { origin, recipes, after, source, searched: None })
}

/// What rewrites are chosen from, and how hard they are searched for.
#[derive(Clone, Copy)]
struct RewriteChoice<'a> {
    before: &'a Decided<()>,
    allowed: &'a Allowed,
    rung: Rung,
    /// Finds the order alone as a search without rewrites does; none if only recipes are wanted.
    orders: Option<&'a ProgramSearch<'a>>,
}

impl RewriteChoice<'_> {
    /// The program as it is in its best order.
    fn alone(
        &self,
        args: &args::Schedule,
        subject: &Subject,
    ) -> Result<Option<OrderedUnit>, Failed> {
        let Some(orders) = self.orders else { return Ok(None) };
        let own = std::slice::from_ref(self.before);
        let limits = ProgramLimits::of_input(&subject.source, own, &args.search);
        let all = orders.all(&subject.source, self.rung, &limits)?;
        match is_interrupted(&all) {
            true => Err(Failed::Stopped),
            false => Ok(all.into_iter().next()),
        }
    }
}

/// The best of the programs that the requested search and lesser ones choose.
fn best_chosen(
    args: &args::Schedule,
    subject: &Subject,
    before: &Decided<()>,
    allowed: &Allowed,
) -> Result<RewrittenProgram, Failed> {
    let asked = Rung::asked(&args.search);
    if args.recipes_only {
        let choice = RewriteChoice { before, allowed, rung: asked, orders: None };
        return chosen(args, subject, choice);
    }
    let orders = ProgramSearch::new(&args.search, args.order_collectives.is_some());
    let choice = |rung| RewriteChoice { before, allowed, rung, orders: Some(&orders) };
    // What is left out is named by its number among all that are chosen.
    let all = args::Schedule { without: Vec::new(), ..args.clone() };
    let peak_before = before.priced.peak_before();
    let choose = |rung| chosen(&all, subject, choice(rung));
    let (rung, best) = best_choice(&args.search, peak_before, choose)?;
    match args.without.is_empty() {
        true => Ok(best),
        false => chosen(args, subject, choice(rung)),
    }
}

impl ChosenProgram for RewrittenProgram {
    fn step_time(&self) -> Nanos {
        self.after.result.step_time()
    }

    fn is_shortest(&self) -> bool {
        self.after.exposed_in_all.after == Nanos::ZERO
    }

    fn order_alone(&mut self) -> Option<&mut Nanos> {
        self.searched.as_mut().map(|searched| &mut searched.order_alone)
    }
}

/// The program after the rewrites that make its step shorter.
fn chosen(
    args: &args::Schedule,
    subject: &Subject,
    choice: RewriteChoice<'_>,
) -> Result<RewrittenProgram, Failed> {
    let graph = timed_graph(&choice.before.priced);
    let unchanged = subject.source.changed_to(Workload::from(graph.clone()));
    let left_out = left_out(&args.without)?;
    let is_chained = args.order_collectives.is_some();
    let peak_before = choice.before.priced.peak_before();
    let limits = MemoryLimits::of(&args.search, choice.rung, peak_before);
    let rung = choice.rung;
    let wanted = Wanted { args: &args.search, rung, is_chained, source: &unchanged, limits };
    let tail = args.piece_tail.map_or(TAIL, |tail| tail.limit(TAIL));
    let prices = Prices { tail, ..prices(&subject.source.model.costs) };
    let plan_order = if args.recipes_only { PlanOrder::Sketched } else { PlanOrder::Searched };
    let alone = choice.alone(args, subject)?;
    let (alone, allowed) = (alone.as_ref(), choice.allowed);
    let way = ChangeScope { prices: &prices, allowed, left_out: &left_out, plan_order, alone };
    let (improved, outcome) = improved(&wanted, &choice.before.priced, &way)?;
    let is_chosen = |(number, name): &(&usize, &String)| {
        let kind = improved.chosen.get(**number).map(|kind| kind.name());
        kind.is_some_and(|kind| name.split(':').next() == Some(kind))
    };
    if let Some((_, name)) = left_out.iter().zip(&args.without).find(|one| !is_chosen(one)) {
        let chosen = count(improved.chosen.len(), "rewrite");
        let problem = format!("--without {name}: not among the {chosen} that were chosen");
        return Err(Failed::in_file(args.graph.name(), problem));
    }
    let searched = Some(SearchedRewrites {
        order_alone: improved.unchanged.step_time,
        kept_because: improved.kept_because,
        one_communicator: improved.one_communicator,
    });
    let (mut source, mut origin, mut recipes) = (unchanged, Origin::unchanged(&graph), Vec::new());
    let mut order = improved.unchanged.order;
    if let Some(changed) = improved.changed {
        source = subject.source.changed_to(Workload::from(changed.rewritten.graph));
        (origin, recipes) = (changed.rewritten.origin, changed.recipes);
        order = changed.optimized.order;
    }
    let mut outcome = Some(outcome);
    let after = source.walk(|_| {
        let outcome =
            outcome.take().ok_or_else(|| Failed::OurBug("a graph has two units".to_owned()))?;
        Ok((order.clone(), outcome))
    })?;
    let after =
        after.into_iter().next().ok_or_else(|| Failed::OurBug("a graph has no unit".to_owned()))?;
    Ok(RewrittenProgram { origin, recipes, after, source, searched })
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
            "nothing exposed can be merged, cut into pieces or kept (--rewrite all allows more)"
        }
        KeptBecause::LatencyUnknown => {
            "all collectives have the same size, so their times do not separate latency from \
             bandwidth: give --device or --link"
        }
        KeptBecause::NothingFits => "no plan that was tried is within the memory limit",
        _ => "no plan that was tried makes the step shorter",
    }
}

/// Why all collectives of a process group stay on one communicator, in words.
fn one_because(why: OneCommunicator) -> String {
    match why {
        OneCommunicator::NothingBeside => {
            "no process group has all-gathers and other collectives".to_owned()
        }
        OneCommunicator::NothingExposed => "next to nothing is exposed".to_owned(),
        OneCommunicator::NothingFits => {
            "no order with it was found within the memory limit".to_owned()
        }
        OneCommunicator::BoundTooLong { least } => {
            format!("even if links were not shared, no step would be shorter than {least}")
        }
        OneCommunicator::NothingShorter { step } => {
            format!("the best step found with it is {step}, and must be 0.1% shorter than without")
        }
        OneCommunicator::SlowerInMost { lost, of } => {
            format!("the step would be longer in {lost} of {of} variations of run times")
        }
        OneCommunicator::LeftOut => "left out, as asked".to_owned(),
    }
}

/// The same as JSON.
fn one_because_json(why: OneCommunicator) -> Value {
    match why {
        OneCommunicator::NothingBeside => json!({ "kind": "nothing_beside" }),
        OneCommunicator::NothingExposed => json!({ "kind": "nothing_exposed" }),
        OneCommunicator::NothingFits => json!({ "kind": "nothing_fits" }),
        OneCommunicator::BoundTooLong { least } => json!({ "kind": "bound", "bound": least.0 }),
        OneCommunicator::NothingShorter { step } => {
            json!({ "kind": "nothing_shorter", "step_time": step.0 })
        }
        OneCommunicator::SlowerInMost { lost, of } => {
            json!({ "kind": "slower_in_most", "slower_in": lost, "variations": of })
        }
        OneCommunicator::LeftOut => json!({ "kind": "left_out" }),
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
            advice: self.advice_json(),
            graph: &self.after.priced.graph,
            order: &self.after.result.order,
            passes: &[],
            summary,
            compat: None,
            order_collectives: self.args.order_collectives.map(ChainWhich::name),
            read_seconds: self.source.read_seconds,
            pass_seconds: &[],
            optimizer: Some(found.described(&self.args.search, &self.robustness)),
        };
        TimedRewrite {
            timed,
            before: &self.before.priced.graph,
            origin: &self.origin,
            recipes: &self.recipes,
            simulated_before: &self.before.result.simulation,
            simulated: &self.after.result.simulation,
            order_alone: self.searched.map(|searched| searched.order_alone),
            one_communicator: self
                .searched
                .and_then(|searched| searched.one_communicator)
                .map(one_because_json),
        }
    }

    /// What was changed, as text.
    fn facts(&self) -> Vec<(&'static str, String)> {
        let (old, new) = (&self.before.priced.graph, &self.after.priced.graph);
        let lines: Vec<String> = self
            .recipes
            .iter()
            .enumerate()
            .map(|(number, recipe)| self.describe(number + 1, recipe))
            .collect();
        let mut facts = vec![("program", format!("{} -> {}", program(old), program(new)))];
        let others = |kind: &RewriteKind| !kind.is_on_request();
        let has_others = self.args.allowed().is_some_and(|of| of.kinds.iter().any(others));
        if let Some(searched) = self.searched.filter(|_| lines.is_empty() && has_others) {
            facts.push(("rewrites", format!("none: {}", because(searched.kept_because))));
        }
        if let Some(why) = self.searched.and_then(|searched| searched.one_communicator) {
            facts.push(("groups", format!("no second communicator: {}", one_because(why))));
        }
        let more = lines.len().saturating_sub(ROWS);
        facts.extend(lines.into_iter().take(ROWS).map(|line| ("rewrite", line)));
        if more > 0 {
            facts.push(("", format!("... and {more} more: --json has all")));
        }
        facts.push(("robustness", describe_robustness(&self.robustness)));
        facts
    }

    /// A recipe in a line: what became what, what it saves and what it costs.
    fn describe(&self, number: usize, recipe: &Recipe) -> String {
        let old = &self.before.priced.graph;
        let members = recipe.members();
        let name = |op: OpId| printable(old.name(op));
        let named = match members {
            [first, .., last] if members.len() > 3 => {
                format!("{} of {} to {}", members.len(), name(*first), name(*last))
            }
            _ => members.iter().map(|&member| name(member)).collect::<Vec<_>>().join(", "),
        };
        let made = became(&self.origin, recipe);
        let does = match recipe {
            Recipe::Merge { .. } => self.describe_merge(members, &made),
            Recipe::Split { pieces, .. } => self.describe_split([members, &made], *pieces),
            Recipe::Keep { .. } => self.describe_keep(members),
            Recipe::Groups { .. } => self.describe_groups(members, &made),
        };
        format!("{}:{number} {named} {does}", recipe.kind().name())
    }

    fn describe_merge(&self, members: &[OpId], made: &[OpId]) -> String {
        let (times, before) = (&self.after.priced.machine.times, &self.before.priced.machine.times);
        let was: Nanos = members.iter().map(|&member| before.of(member)).sum();
        let is: Nanos = made.iter().map(|&op| times.of(op)).sum();
        let into: Vec<String> =
            made.iter().map(|&op| printable(self.after.priced.graph.name(op))).collect();
        let copies = self.origin.ops.iter().filter(|(_, source)| {
            let is_copy = matches!(source.part, Part::CopyIn | Part::CopyOut);
            is_copy && members.contains(&source.of[0])
        });
        let copies: Nanos = copies.map(|(copy, _)| times.of(copy)).sum();
        let into = into.join(", ");
        format!("into {into}: {was} of communication becomes {is}, copies take {copies}")
    }

    fn describe_keep(&self, members: &[OpId]) -> String {
        let (graph, times) = (&self.before.priced.graph, &self.before.priced.machine.times);
        let saved: Nanos = members[1..].iter().map(|&member| times.of(member)).sum();
        let size = result_size(graph, members[0]);
        format!("gather the same: {size} stay in memory, {saved} of communication go")
    }

    fn describe_groups(&self, members: &[OpId], made: &[OpId]) -> String {
        let (old, new) = (&self.before.priced.graph, &self.after.priced.graph);
        let [Some(first), Some(second)] = [members.first(), made.first()] else {
            return "are left out by other rewrites".to_owned();
        };
        let (of, on) = (group_name(old, *first), group_name(new, *second));
        let sent: Nanos = made.iter().map(|&op| self.after.priced.machine.times.of(op)).sum();
        format!(
            "on {}, a second communicator of {}: {sent} of communication run beside the rest, and \
             share its link",
            printable(on),
            printable(of)
        )
    }

    fn describe_split(&self, [members, made]: [&[OpId]; 2], pieces: u32) -> String {
        fn exposed<T>(decided: &Decided<T>, ops: &[OpId]) -> Nanos {
            let all = decided.result.simulation.exposures.iter();
            all.filter(|exposure| ops.contains(&exposure.of)).map(|exposure| exposure.time).sum()
        }
        fn computes<T>(decided: &Decided<T>, ops: &[OpId]) -> Nanos {
            let graph = &decided.priced.graph;
            let kernels = ops.iter().filter(|&&op| graph.kind(op) == OpKind::Compute);
            kernels.map(|&op| decided.priced.machine.times.of(op)).sum()
        }
        let (was, is) = (exposed(&self.before, members), exposed(&self.after, made));
        let more = computes(&self.after, made) - computes(&self.before, members);
        format!("into {pieces} pieces each: exposes {is}, not {was}; kernels take {more} longer")
    }

    fn section(&self) -> Section<'_> {
        Section::of(&self.after, &self.measure)
    }

    /// What can be done about the changed program, within the same limit.
    fn advised(&self) -> Option<Advised<'_>> {
        let (args, found) = (&self.args, &self.after.found);
        if args.no_advice {
            return None;
        }
        let edges = machine::edges(args.search.collective_order, args.order_collectives.is_some());
        let memory = Budget::Absolute(found.limit);
        let lines = self.advice.get(|| Question {
            source: &self.source,
            search: Search { memory, ..requested(&args.search, edges) },
            decided: std::slice::from_ref(&self.after),
            is_searched: true,
            afresh: None,
            is_mergeable: false,
        })?;
        let section = self.section();
        let found = FoundOrder {
            step_time: Change {
                before: self.before.result.step_time(),
                after: self.after.result.step_time(),
            },
            what: if self.recipes.is_empty() { "new order" } else { "changed program" },
            to_use: self.put_to_use(),
        };
        let all = std::slice::from_ref(&section);
        Some(Advised { found: Some(found), ..advised(lines, all, &[&section], String::new()) })
    }

    /// How the result gets into a program: with the narrowest setting that has these rewrites.
    fn put_to_use(&self) -> &'static str {
        let before = &self.before.priced.graph;
        if self.recipes.is_empty() {
            USE_ORDER
        } else if self.searched.is_none() {
            "with --emit graph -o FILE, this command writes it"
        } else if self.recipes.iter().any(|recipe| recipe.kind() == RewriteKind::Groups) {
            "halflap.torch.enable(rewrite=[\"exact\", \"groups\"]), called on all ranks before \
             torch.compile, uses second process groups; with --emit graph -o FILE, this command \
             writes it"
        } else if self.recipes.iter().any(|recipe| recipe.kind() == RewriteKind::Keep) {
            "with --emit graph -o FILE, this command writes it; halflap.torch.enable(keep=...) \
             decides between the forward and the backward pass what is kept, when a step is compiled"
        } else if self.recipes.iter().all(|recipe| recipe.is_exact(before)) {
            "halflap.torch.enable(rewrite=\"exact\"), called before torch.compile, does this when \
             a step is compiled; with --emit graph -o FILE, this command writes it"
        } else {
            "halflap.torch.enable(rewrite=\"all\"), called before torch.compile, does this when a \
             step is compiled; with --emit graph -o FILE, this command writes it"
        }
    }

    /// The same as JSON.
    fn advice_json(&self) -> Option<Value> {
        let advised = self.advice.is_for_machines().then(|| self.advised())?;
        advised.map(|advised| advice_json(&advised))
    }
}

impl Answer for Merged {
    fn prepare(&self) {
        self.advised();
    }

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
            ("lower bound", describe_bound(&self.after.priced.graph, found.bound)),
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
            true => steps(&self.after.priced, &evaluation.order) + "\n",
            false => String::new(),
        };
        text.extend(self.advised().map(|advised| render_advice(&advised, &style)));
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

    fn changes(&self) -> Vec<(&'static str, String)> {
        let alone = self.searched.map(|searched| ("order alone", searched.order_alone.to_string()));
        self.facts().into_iter().chain(alone).collect()
    }

    fn order_alone(&self) -> Option<Nanos> {
        self.searched.map(|searched| searched.order_alone)
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
        let advised = self.advised();
        let advice = advised.as_ref().map(Advised::lines).unwrap_or_default();
        let lead = advised.as_ref().and_then(Advised::lead);
        pictures.draw(&[Shown {
            title: &pictures::title(&self.args.graph),
            part: "",
            command: "schedule",
            facts: self.facts(),
            orders: &orders,
            explanation: &self.section().explanation(),
            explanation_before: None,
            device: None,
            memory_limit: Some(after.found.limit),
            rows: &[],
            advice: &advice,
            lead: lead.as_ref(),
            exposed_in_all: None,
        }])
    }
}
