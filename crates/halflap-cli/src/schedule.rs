//! `halflap schedule`: the best order, or the result of passes on a graph.

use halflap::advise::Advice;
use halflap::evaluate::{Change, Side};
use halflap::graph::{Edges, Graph};
use halflap::ids::{IdVec, UnitId};
use halflap::memory::Budget;
use halflap::overlap::Fidelity;
use halflap::pass::{LedgerMismatch, Options, Settings};
use halflap::schedule::{self, Failure, PassRun, Request, Schedule};
use halflap::simulate::{Basis, Bound, lower_bound};
use halflap::units::{Bytes, Nanos};
use halflap::workload::{Decided, Priced};
use halflap_hlo::{Lowered, write_proved};
use halflap_report::{
    Advised, Compared, Explained, FoundOrder, Summary, Timed, advice_json, collective_order, count,
    describe_bound, describe_robustness, labelled, render_advice,
};
use serde_json::{Value, json};

use crate::advice::{self, LazyAdvice, Question};
use crate::answer::{self, Answer, Figures};
use crate::args::{self, ChainWhich, Compat, Emit, PictureArgs};
use crate::draw::{Picture, draw};
use crate::exit::Failed;
use crate::files;
use crate::machine;
use crate::progress::Stopwatch;
use crate::put::{Asked, put};
use crate::rewrite;
use crate::rewrite_module::{self, ImprovedModule, ModuleChanges};
use crate::runtime::interrupt::Listening;
use crate::search::{OrderedUnit, ProgramLimits, ProgramSearch, Rung, SearchOutcome, requested};
use crate::show::{
    self, Measure, ROWS, SECTIONS, Section, ShownModule, Was, host_line, program, step_line,
};
use crate::source::{Hlo, ProgramSource, Subject};
use crate::terminal;

/// How a unit's order was found.
enum OrderOrigin {
    /// It does not communicate, is within its limit, and keeps its own.
    Kept,
    Searched(SearchOutcome),
    Passed(Passed),
}

/// What passes did.
struct Passed {
    passes: Vec<PassRun>,
    seconds: Vec<f64>,
    bound: Bound,
}

type DecidedUnit = Decided<OrderOrigin>;

pub fn run(args: &args::Schedule, verbose: bool) -> Result<(), Failed> {
    args.pictures.check(&args.graph, args.output.as_deref())?;
    let found = {
        let _listening = Listening::start();
        let found = find(args, verbose)?;
        found.prepare();
        found
    };
    if matches!(args.emit, Some(Emit::Hlo | Emit::Graph)) {
        found.draw(&args.pictures)?;
        return match files::put(args.output.as_deref().unwrap_or("-"), &found.program()?)? {
            true => Ok(()),
            false => files::print(&found.text()?),
        };
    }
    let asked = Asked { output: args.output.as_deref(), json: args.json, pictures: &args.pictures };
    put(found.as_ref(), &asked)
}

/// Finds the orders that are requested, of the program as it is or changed.
pub fn find(args: &args::Schedule, verbose: bool) -> Result<Box<dyn Answer>, Failed> {
    refuse(files::is_module(&args.graph)?, args)?;
    let subject = Subject::read(&args.graph, &args.machine, args.order_collectives)?;
    subject.check(&args.which)?;
    let source = &subject.source;
    if verbose {
        let size = subject.hlo.as_ref().map_or_else(
            || count(source.workload.entry().map_or(0, |unit| unit.graph.len()), "node"),
            |hlo| count(hlo.module.len(), "instruction"),
        );
        eprintln!("read {size} in {:.1} ms", source.read_seconds * 1e3);
    }
    if changes(args) {
        return changed(subject, args);
    }
    let all = match args.passes.is_empty() {
        true => searched(program_search(args).asked(source)?),
        false => source.walk(|priced| passed(priced, args))?,
    };
    Ok(Box::new(Done::new(subject, all, args, None)))
}

/// A program, changed where that makes its step shorter, or as it is asked for.
pub fn changed(subject: Subject, args: &args::Schedule) -> Result<Box<dyn Answer>, Failed> {
    match subject.hlo.is_some() {
        true => rewritten(subject, args),
        false => Ok(Box::new(rewrite::find(args, &subject)?)),
    }
}

/// A module, changed where that makes its step shorter.
fn rewritten(subject: Subject, args: &args::Schedule) -> Result<Box<dyn Answer>, Failed> {
    let search = program_search(args);
    let search = |subject: &Subject, rung: Rung, limits: &ProgramLimits| {
        Ok(searched(search.all(&subject.source, rung, limits)?))
    };
    let ImprovedModule { subject, all, changed } = rewrite_module::improve(subject, args, &search)?;
    Ok(Box::new(Done::new(subject, all, args, Some(changed))))
}

fn program_search(args: &args::Schedule) -> ProgramSearch<'_> {
    ProgramSearch::new(&args.search, args.order_collectives.is_some())
}

/// Whether the program is to be changed, or written as a graph.
fn changes(args: &args::Schedule) -> bool {
    args.rewrites() || !args.merge.is_empty() || args.emit == Some(Emit::Graph)
}

/// What a unit's order is compared with. A unit that does not communicate is already as fast as
/// possible.
fn measure(unit: &DecidedUnit, edges: Edges) -> Measure {
    let peak = unit.priced.peak_before();
    match &unit.found {
        OrderOrigin::Kept => {
            let time = unit.result.step_time();
            Measure::new(peak, Bound { time, edges, basis: Basis::Compute, memory: false })
        }
        OrderOrigin::Searched(found) => Measure::new(found.limit, found.bound),
        OrderOrigin::Passed(passed) => Measure::new(peak.max(unit.result.peak()), passed.bound),
    }
}

/// Rejects options that are not for this kind of program.
pub fn refuse(is_module: bool, args: &args::Schedule) -> Result<(), Failed> {
    if let Some(problem) = args.rewrite.as_ref().and_then(|all| all.problem(is_module)) {
        return Err(Failed::in_file(args.graph.name(), format!("--rewrite: {problem}")));
    }
    match is_module {
        true => refuse_for_module(args),
        false => refuse_for_graph(args),
    }
}

/// Options that only apply to torch graphs.
fn refuse_for_module(args: &args::Schedule) -> Result<(), Failed> {
    let refused = |what: &str, why: &str| {
        Err(Failed::BadInput(format!("{what} is not for HLO modules: {why}")))
    };
    match args {
        _ if !args.passes.is_empty() => {
            refused("--passes", "torch's passes are for graphs of torch")
        }
        _ if args.compat.is_some() => refused("--compat", "it selects the torch to imitate"),
        _ if args.check_memory => refused("--check-memory", "the optimizer keeps no ledger"),
        _ if !args.settings.is_empty() => refused("--set", "torch's settings are for its passes"),
        _ if !args.without.is_empty() && args.allowed_recipes().is_none() => Err(nothing_chosen()),
        _ if args.emit == Some(Emit::Graph) => {
            refused("--emit graph", "it has a graph for each computation")
        }
        _ if args.json && args.emit == Some(Emit::Hlo) => Err(Failed::BadInput(
            "--json prints the schedule and --emit hlo the module: choose one".to_owned(),
        )),
        _ => Ok(()),
    }
}

fn nothing_chosen() -> Failed {
    let problem = "--without leaves out what --rewrite chose: --rewrite none chooses nothing";
    Failed::BadInput(problem.to_owned())
}

fn refuse_for_graph(args: &args::Schedule) -> Result<(), Failed> {
    let needs =
        |what: &str, why: &str| Err(Failed::BadInput(format!("{what} needs --passes: {why}")));
    match (args, args.passes.is_empty()) {
        _ if args.emit == Some(Emit::Hlo) => {
            Err(Failed::in_file(args.graph.name(), "is not an HLO module: --emit hlo writes one"))
        }
        _ if !args.without.is_empty() && args.allowed().is_none() => Err(nothing_chosen()),
        (_, false) if changes(args) => {
            let problem =
                "--rewrite, --merge and --emit graph are for the optimizer: leave out --passes";
            Err(Failed::BadInput(problem.to_owned()))
        }
        (_, true) if args.compat.is_some() => {
            needs("--compat", "torch has no default sequence to be compatible with")
        }
        (_, true) if args.check_memory => needs("--check-memory", "the optimizer keeps no ledger"),
        (_, true) if !args.settings.is_empty() => {
            needs("--set", "torch's settings are for its passes")
        }
        (_, false) if args.search.any() => {
            let problem = "--memory-budget, --collective-order, --effort and --threads are for the \
                           optimizer: leave out --passes, or use --set";
            Err(Failed::BadInput(problem.to_owned()))
        }
        _ => Ok(()),
    }
}

/// Whether a search was ended early.
fn is_interrupted(all: &[DecidedUnit]) -> bool {
    all.iter()
        .any(|unit| matches!(&unit.found, OrderOrigin::Searched(found) if found.is_interrupted))
}

/// Units in the orders that were found.
fn searched(all: Vec<OrderedUnit>) -> Vec<DecidedUnit> {
    let origin = |found: Option<SearchOutcome>| match found {
        Some(found) => OrderOrigin::Searched(found),
        None => OrderOrigin::Kept,
    };
    all.into_iter().map(|unit| unit.map(|found, _, _| origin(found))).collect()
}

/// The passes' result for a graph.
fn passed(
    priced: &Priced,
    args: &args::Schedule,
) -> Result<(halflap::order::Order, OrderOrigin), Failed> {
    let request = request(args)?;
    let graph = &priced.graph;
    let mut stopwatch = Stopwatch::new();
    let schedule = schedule::run(graph, &priced.machine.times, &request, &mut stopwatch);
    let schedule = schedule.map_err(|failure| explain_failure(graph, failure, args))?;
    warn_of_excess(&schedule);
    let needed = schedule.peak_before.max(schedule.peak);
    let bound = lower_bound(graph, &priced.machine, request.edges(), needed);
    let Schedule { order, passes, .. } = schedule;
    Ok((order, OrderOrigin::Passed(Passed { passes, seconds: stopwatch.seconds, bound })))
}

/// What the whole takes.
struct Totals {
    step: Change<Nanos>,
    exposed: Change<Nanos>,
    peak: Change<Bytes>,
}

/// A program whose orders are known.
struct Done {
    subject: Subject,
    all: Vec<DecidedUnit>,
    /// One for each unit.
    measures: IdVec<UnitId, Measure>,
    /// What can be done.
    advice: LazyAdvice,
    /// How a module was changed.
    changed: Option<ModuleChanges>,
    args: args::Schedule,
}

impl Answer for Done {
    fn prepare(&self) {
        self.advice();
    }

    fn is_interrupted(&self) -> bool {
        is_interrupted(&self.all)
    }

    fn json(&self) -> Result<String, Failed> {
        let bug = |error: serde_json::Error| Failed::OurBug(error.to_string());
        match (&self.subject.hlo, self.all.last()) {
            (Some(hlo), _) => Ok(format!("{}\n", self.module_json(hlo)?)),
            (None, Some(unit)) => {
                let summary = summary(unit, self.section(unit).bound);
                Ok(serde_json::to_string(&self.timed(unit, &summary)).map_err(bug)? + "\n")
            }
            (None, None) => Ok(String::new()),
        }
    }

    fn text(&self) -> Result<String, Failed> {
        match (&self.subject.hlo, self.all.last()) {
            (Some(hlo), _) => self.module_text(hlo),
            (None, Some(unit)) => Ok(self.graph_text(unit)),
            (None, None) => Ok(String::new()),
        }
    }

    fn changes(&self) -> Vec<(&'static str, String)> {
        self.changed.iter().flat_map(ModuleChanges::facts).collect()
    }

    fn order_alone(&self) -> Option<Nanos> {
        self.changed.as_ref().and_then(ModuleChanges::order_alone)
    }

    fn figures(&self) -> Option<Figures> {
        let entry = self.all.last()?;
        let is_module = self.subject.hlo.is_some();
        let is_shown =
            |unit: &&DecidedUnit| !is_module || matches!(unit.found, OrderOrigin::Searched(_));
        let shown: Vec<&DecidedUnit> = self.all.iter().filter(is_shown).collect();
        let order = |unit: &&DecidedUnit| {
            let name = self.subject.source.name_of(unit.priced.unit).to_owned();
            (name, answer::names(&unit.priced.graph, &unit.result.order))
        };
        let Totals { step, exposed, peak } = self.totals(entry);
        Some(Figures {
            orders: shown.iter().map(order).collect(),
            step_time: step,
            exposed: if is_module { exposed } else { entry.exposed() },
            peak,
            bound: shown.last().map(|unit| self.measures[unit.priced.unit].bound.time),
        })
    }

    fn program(&self) -> Result<String, Failed> {
        let Some(hlo) = &self.subject.hlo else { return Err(answer::no_program()) };
        let order = |unit: &DecidedUnit| hlo.units[unit.priced.unit].placed(&unit.result.order);
        let orders: Vec<_> = self.all.iter().map(order).collect();
        write_proved(&hlo.module, &orders).map_err(|error| Failed::OurBug(error.to_string()))
    }

    fn draw(&self, pictures: &PictureArgs) -> Result<(), Failed> {
        if !pictures.any() {
            return Ok(());
        }
        let sections = self.sections();
        let computation = self.args.which.computation.as_deref();
        let advised = self.advised(&sections);
        let advice = advised.as_ref().map(Advised::lines).unwrap_or_default();
        let lead = advised.as_ref().and_then(Advised::lead);
        let mut facts = match lead {
            Some(_) => Vec::new(),
            None => vec![("new order", format!("times are simulated; {}", self.put_to_use()))],
        };
        facts.extend(self.changed.iter().flat_map(ModuleChanges::facts));
        let picture = Picture { advice, lead, facts, ..Picture::of("schedule", computation) };
        let (None, Some(unit)) = (&self.subject.hlo, self.all.last()) else {
            return draw(&self.subject, &sections, pictures, &picture);
        };
        let summary = summary(unit, self.section(unit).bound);
        let fact = match &unit.found {
            OrderOrigin::Searched(found) => ("robustness", describe_robustness(&found.robustness)),
            _ => (
                "passes",
                self.args.passes.iter().map(|pass| pass.name()).collect::<Vec<_>>().join(", "),
            ),
        };
        let rows = if self.args.passes.is_empty() { &[][..] } else { &summary.rows };
        draw(
            &self.subject,
            &sections,
            pictures,
            &Picture {
                is_compared: true,
                facts: [vec![fact], picture.facts].concat(),
                rows,
                ..picture
            },
        )
    }
}

impl Done {
    fn new(
        subject: Subject,
        all: Vec<DecidedUnit>,
        args: &args::Schedule,
        changed: Option<ModuleChanges>,
    ) -> Done {
        let edges = machine::edges(args.search.collective_order, args.order_collectives.is_some());
        let mut measures: IdVec<UnitId, Measure> =
            all.iter().map(|unit| measure(unit, edges)).collect();
        // The limit of the whole is the entry's, searched or not.
        if let Some(entry) = all.last().filter(|entry| matches!(entry.found, OrderOrigin::Kept)) {
            let name = subject.source.name_of(entry.priced.unit);
            let was = changed.as_ref().and_then(|changed| changed.was.get(name));
            let before = was.map_or(entry.priced.peak_before(), |was| was.peak);
            let budget = args.search.memory_budget.unwrap_or(Budget::Times(1.0));
            measures[entry.priced.unit].limit = budget.limit(before);
        }
        let (advice, args) = (LazyAdvice::default(), args.clone());
        Done { subject, all, measures, advice, changed, args }
    }

    /// How to use the order in a program.
    fn put_to_use(&self) -> &'static str {
        match self.subject.hlo {
            Some(_) => {
                "with --emit hlo -o NEW.txt, this command writes the module in it, scheduled, for \
                 XLA; halflap run MODULE runs it"
            }
            None => advice::USE_ORDER,
        }
    }

    /// The whole before and after; a changed module is compared with the old one in its own orders.
    fn totals(&self, entry: &DecidedUnit) -> Totals {
        let section = self.section(entry);
        let (exposed, after) = (section.exposed_in_all, entry.result.peak());
        let before = section.was().map_or(after, |was| was.peak);
        Totals { step: section.step_time(), exposed, peak: Change { before, after } }
    }

    fn section<'s>(&'s self, unit: &'s DecidedUnit) -> Section<'s> {
        let mut section = Section::of(unit, &self.measures[unit.priced.unit]);
        if let Some(changed) = self.changed.as_ref().filter(|changed| changed.is_any()) {
            let name = self.subject.source.name_of(unit.priced.unit);
            section = section.in_changed(changed.was.get(name).copied());
        }
        if let OrderOrigin::Searched(found) = &unit.found {
            section.robustness =
                Some(format!("in its own order: {}", describe_robustness(&found.robustness)));
            section.seconds = found.seconds;
        }
        section
    }

    fn sections(&self) -> Vec<Section<'_>> {
        self.all.iter().map(|unit| self.section(unit)).collect()
    }

    /// The advice, which takes a few quick searches when it is first needed.
    fn advice(&self) -> Option<&[Advice]> {
        let args = &self.args;
        if args.no_advice || !args.passes.is_empty() || is_interrupted(&self.all) {
            return None;
        }
        let is_chained = args.order_collectives.is_some();
        let edges = machine::edges(args.search.collective_order, is_chained);
        let source = &self.subject.source;
        let quick = advice::quick(&args.search);
        // Budgets of a changed program are relative to what it was.
        let is_afresh = self.changed.is_none();
        let afresh = |budget: Budget| advice::within(&quick, is_chained, source, budget);
        self.advice.get(|| Question {
            source,
            search: requested(&args.search, edges),
            decided: &self.all,
            is_searched: true,
            afresh: is_afresh.then_some(&afresh),
            is_mergeable: self.subject.hlo.is_none(),
        })
    }

    /// The same as JSON.
    fn advice_json(&self, sections: &[Section<'_>]) -> Option<Value> {
        let advised = self.advice.is_for_machines().then(|| self.advised(sections))?;
        advised.map(|advised| advice_json(&advised))
    }

    /// What can be done, with what is known of the sections that are shown.
    fn advised(&self, sections: &[Section<'_>]) -> Option<Advised<'_>> {
        let source = &self.subject.source;
        let explained = show::most_exposed(source, sections, SECTIONS);
        let lines = self.advice()?;
        let step_time = self.all.last().map(|entry| self.totals(entry).step);
        let what = if self.changed.is_some() { "changed program" } else { "new order" };
        let to_use = self.put_to_use();
        let found = step_time.map(|step_time| FoundOrder { step_time, what, to_use });
        Some(Advised { found, ..advice::advised(lines, sections, &explained, String::new()) })
    }

    fn advice_text(&self, sections: &[Section<'_>]) -> String {
        let advised = self.advised(sections);
        advised.map_or_else(String::new, |advised| render_advice(&advised, &terminal::style()))
    }

    fn graph_text(&self, unit: &DecidedUnit) -> String {
        let section = self.section(unit);
        let summary = summary(unit, section.bound);
        let listed = match self.args.show {
            true => show::steps(&unit.priced, &unit.result.order) + "\n",
            false => String::new(),
        };
        let advice = self.advice_text(std::slice::from_ref(&section));
        let text = match &unit.found {
            OrderOrigin::Searched(found) => searched_text(&section, &summary, found),
            _ => passed_text(&self.timed(unit, &summary)),
        };
        listed + &advice + &text
    }

    fn module_text(&self, hlo: &Hlo) -> Result<String, Failed> {
        let (source, sections) = (&self.subject.source, self.sections());
        let style = terminal::style();
        let shown = ShownModule { source, hlo, sections: &sections };
        let facts = self.changed.iter().flat_map(ModuleChanges::facts);
        let facts = facts.map(|(label, value)| labelled(label, &value, &style));
        let facts = facts.collect::<String>();
        let mut text = facts + &self.advice_text(&sections) + &shown.headline(&style);
        for section in shown.picked(self.args.which.computation.as_deref(), SECTIONS)? {
            if self.args.show {
                text.push_str(&shown.listed(section));
            }
            text.push_str(&shown.section(section, ROWS, &style));
        }
        let seconds: f64 = sections.iter().map(|section| section.seconds).sum();
        Ok(format!("{text}\noptimized in {seconds:.2} s\n"))
    }

    fn module_json(&self, hlo: &Hlo) -> Result<Value, Failed> {
        let source = &self.subject.source;
        let mut computations = Vec::new();
        for unit in self.all.iter().filter(|unit| matches!(unit.found, OrderOrigin::Searched(_))) {
            computations.push(self.computation_json(hlo, unit)?);
        }
        let entry = self
            .all
            .last()
            .ok_or_else(|| Failed::OurBug("a module without an entry was read".to_owned()))?;
        let Totals { step, exposed, peak } = self.totals(entry);
        let mut fields = json!({
            "format": "halflap.schedule/1",
            "halflap": env!("CARGO_PKG_VERSION"),
            "interrupted": self.is_interrupted(),
            "advice": self.advice_json(&self.sections()),
            "module": hlo.module.name(),
            "device_assumed": source.assumed,
            "collective_order": collective_order(self.section(entry).bound.edges),
            "step_time": step.after,
            "step_time_before": step.before,
            "exposed": exposed.after,
            "exposed_before": exposed.before,
            "peak_memory": peak.after,
            "peak_memory_before": peak.before,
            "memory_limit": self.section(entry).limit,
            "read_seconds": source.read_seconds,
            "computations": computations,
        });
        let changed = self.changed.as_ref().map(ModuleChanges::json);
        if let (Some(into), Some(Value::Object(changed))) = (fields.as_object_mut(), changed) {
            into.extend(changed);
        }
        Ok(fields)
    }

    fn computation_json(&self, hlo: &Hlo, unit: &DecidedUnit) -> Result<Value, Failed> {
        let ProgramSource { workload, .. } = &self.subject.source;
        let summary = summary(unit, self.section(unit).bound);
        let timed = self.timed(unit, &summary);
        let fields =
            serde_json::to_value(&timed).map_err(|error| Failed::OurBug(error.to_string()))?;
        let caller = hlo.units[unit.priced.unit].caller;
        let mut computation = json!({
            "computation": workload.units[unit.priced.unit].name,
            "runs": workload.units[unit.priced.unit].runs,
            "caller": caller.map(|caller| hlo.module.instruction_name(caller.instr)),
            "memory_spaces": memory_spaces(&hlo.units[unit.priced.unit].lowered, unit),
        });
        if let (Some(into), Value::Object(mut fields)) = (computation.as_object_mut(), fields) {
            let section = self.section(unit);
            if !section.is_reordered() {
                fields.extend(before_change(section.was()));
            }
            // What all computations have in common comes first.
            let common = ["format", "halflap", "advice", "collective_order", "read_seconds"];
            into.extend(fields.into_iter().filter(|(key, _)| !common.contains(&key.as_str())));
        }
        Ok(computation)
    }

    fn timed<'s>(&self, unit: &'s DecidedUnit, summary: &'s Summary) -> Timed<'s> {
        let (passes, seconds): (&[PassRun], &[f64]) = match &unit.found {
            OrderOrigin::Passed(passed) => (&passed.passes, &passed.seconds),
            _ => (&[], &[]),
        };
        let optimizer = match &unit.found {
            OrderOrigin::Searched(found) => {
                Some(found.described(&self.args.search, &found.robustness))
            }
            _ => None,
        };
        let section = self.section(unit);
        let is_graph = self.subject.hlo.is_none();
        let advice = is_graph.then(|| self.advice_json(std::slice::from_ref(&section)));
        Timed {
            advice: advice.flatten(),
            graph: &unit.priced.graph,
            order: &unit.result.order,
            passes,
            summary,
            compat: self.args.compat.map(|Compat::Torch210| "torch-2.10"),
            order_collectives: self.args.order_collectives.map(ChainWhich::name),
            read_seconds: self.subject.source.read_seconds,
            pass_seconds: seconds,
            optimizer,
        }
    }
}

/// What a computation was before the module was changed; null if it was not there. What its own
/// order in the changed module would be is no step that anything takes.
fn before_change(was: Option<Was>) -> impl Iterator<Item = (String, Value)> {
    let exposed = json!(was.map(|was| was.exposed_alone));
    let fields = [
        ("step_time_before", json!(was.map(|was| was.step_time))),
        ("peak_memory_before", json!(was.map(|was| was.peak))),
        ("exposed_before", exposed.clone()),
        ("simulated_exposed_before", exposed),
        ("estimated_exposed_before", Value::Null),
    ];
    fields.into_iter().map(|(name, value)| (name.to_owned(), value))
}

/// What an order needs of each memory space other than the device's, and what the input order did.
fn memory_spaces(lowered: &Lowered, unit: &DecidedUnit) -> Value {
    let before = lowered.space_peaks(&unit.priced.input.order);
    let after = lowered.space_peaks(&unit.result.order);
    let of = |(space, before): (&u32, &Bytes)| {
        let peak = after.get(space).copied().unwrap_or_default();
        (space.to_string(), json!({ "peak_memory": peak, "peak_memory_before": before }))
    };
    Value::Object(before.iter().map(of).collect())
}

fn summary(unit: &DecidedUnit, bound: Bound) -> Summary {
    let passes = match &unit.found {
        OrderOrigin::Passed(passed) => passed.passes.as_slice(),
        _ => &[],
    };
    let before = Side { setup: unit.priced.setup_before(), evaluation: &unit.priced.input };
    let after = Side { setup: unit.priced.setup(), evaluation: &unit.result };
    Summary::of(&Compared { before, after, origin: None, passes }, bound)
}

fn searched_text(section: &Section<'_>, summary: &Summary, found: &SearchOutcome) -> String {
    let (priced, evaluation) = (section.priced, section.result);
    let lines = [
        ("program", program(&priced.graph)),
        ("communication", summary.communication.to_string()),
        ("step time", step_line(section.step_time(), section.bound)),
        ("lower bound", describe_bound(&priced.graph, section.bound)),
        ("exposed", format!("{} -> {}", priced.input.exposed(), evaluation.exposed())),
        (
            "peak memory",
            format!("{} -> {}, limit {}", priced.input.peak(), evaluation.peak(), found.limit),
        ),
        ("robustness", describe_robustness(&found.robustness)),
    ];
    let style = terminal::style();
    let host = host_line(&evaluation.simulation);
    let lines = lines.iter().chain(&host);
    let mut text: String = lines.map(|(label, value)| labelled(label, value, &style)).collect();
    if found.input_kept {
        text.push_str(
            "The input order is kept: in most variations it is better than what was found.\n",
        );
    }
    text.push('\n');
    let explanation = section.explanation();
    let was = Some(&priced.input.simulation);
    let explained = Explained { graph: &priced.graph, evaluation, explanation: &explanation, was };
    text.push_str(&halflap_report::render_explanation(&explained, ROWS, &style));
    text + &format!("optimized in {:.2} s\n", found.seconds)
}

fn passed_text(timed: &Timed<'_>) -> String {
    let mut text = halflap_report::render(timed.graph, timed.summary, ROWS, &terminal::style());
    for (run, seconds) in timed.passes.iter().zip(timed.pass_seconds) {
        let moves = count(run.moves, "move");
        text.push_str(&format!("{}: {moves} in {:.3} ms\n", run.pass.name(), seconds * 1e3));
    }
    text
}

fn request(args: &args::Schedule) -> Result<Request, Failed> {
    let mut settings = Settings::default();
    if args.order_collectives.is_some() {
        keep_collective_order(&mut settings, args.compat);
    }
    for assignment in &args.settings {
        settings.assign(assignment).map_err(|error| Failed::BadInput(format!("--set: {error}")))?;
    }
    let fidelity = if args.compat.is_some() { Fidelity::Torch } else { Fidelity::Fixed };
    let options = Options { settings, fidelity };
    Ok(Request { passes: args.passes.clone(), options, check_memory: args.check_memory })
}
/// Chained collectives must stay in order. Torch's iterative passes ignore that.
fn keep_collective_order(settings: &mut Settings, compat: Option<Compat>) {
    if compat.is_some() {
        files::warn(
            "torch's iterative passes ignore order-only edges, which --order-collectives \
             adds",
        );
        return;
    }
    settings.reorder.unsafe_collectives_reorder = false;
    settings.sink.unsafe_collectives_reorder = false;
}

/// Torch does not always keep its own budget; where we reproduce that, a warning says so.
fn warn_of_excess(schedule: &Schedule) {
    for run in &schedule.passes {
        if let Some(limit) = run.exceeded_limit {
            let name = run.pass.name();
            files::warn(&format!(
                "{name}, as in torch, exceeds its memory budget: {} bytes, limit {} bytes",
                run.peak.0, limit.0
            ));
        }
    }
}

/// Reports the failure. A wrong ledger is written to a file, with all details.
fn explain_failure(graph: &Graph, failure: Failure, args: &args::Schedule) -> Failed {
    let Failure::Ledger { pass, mismatch } = &failure else {
        return Failed::OurBug(failure.to_string());
    };
    let path = match args.output.as_deref() {
        Some(output) if !files::is_stdout(output) && !output.starts_with("/dev/") => {
            format!("{output}.ledger-mismatch.json")
        }
        _ => "halflap.ledger-mismatch.json".to_owned(),
    };
    let written = files::write(&path, |mut out| {
        halflap_report::write_mismatch(graph, *pass, mismatch, &mut out)
    });
    let where_to_look = match written {
        Ok(()) => format!("{path} has the details"),
        Err(_) => format!("the details cannot be written to {path}"),
    };
    let name = graph.name(mismatch.candidate);
    let problem =
        format!("{failure} with '{name}': {}. {where_to_look}", what_differs(graph, mismatch));
    if args.compat.is_some() { Failed::TorchDrifts(problem) } else { Failed::OurBug(problem) }
}

fn what_differs(graph: &Graph, mismatch: &LedgerMismatch) -> String {
    let Some(op) = mismatch.first else {
        return format!(
            "the peak is {} bytes and its limit {}",
            mismatch.truth.peak.0, mismatch.limit.0
        );
    };
    let (books, truth) = (mismatch.ledger.level(op), mismatch.truth.levels[op]);
    format!(
        "at '{}' it has {} bytes after allocation and {} after freeing; the true values are {} and {}",
        graph.name(op),
        books.post_alloc.0,
        books.post_free().0,
        truth.post_alloc.0,
        truth.post_free().0
    )
}
