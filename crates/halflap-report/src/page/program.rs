//! A page of simulated orders.

use super::model::{
    BufferClass, BufferColumns, Figure, LaneKind, Maybe, MemoryCurve, Ops, Page, PageAdvice,
    PageBudget, PageCell, PageColumn, PageGroup, PageLane, PageOpKind, PageSlice, PageStall,
    PageTable, PageUnit, PageView, Slices, StallCause, StallColumns, Sweep, Time,
};
use super::rates::{bus_rate, kernel_rates, rate_detail};
use crate::advice::{AdviceLine, BEYOND, together};
use crate::against_bound;
use crate::played::Played;
use crate::rates::{BusRate, KernelRate, program_bus_rates, program_kernel_rates};
use crate::rewritten::carried;
use crate::summary::Row;
use crate::text::{called_up_to, named_by, printable, printable_end, printable_up_to, ranks, stop};
use crate::timing::{describe_holder, exposed_by_collective, waiting_for_host};
use halflap::collective::CollectiveKind;
use halflap::cost::Device;
use halflap::evaluate::Change;
use halflap::explain::{Explanation, Held};
use halflap::graph::{Collective, Edges, Graph, OpKind};
use halflap::ids::{BufId, GroupId, Id, IdVec, OpId};
use halflap::origin::{Origin, Part};
use halflap::units::{Bytes, Nanos};

/// Names are truncated to this many characters: enough to distinguish them.
const NAME: usize = 160;

/// What a page shows of a program.
pub struct Shown<'a> {
    /// The name of the file.
    pub title: &'a str,
    /// Which part of the program: the name of a computation; empty for all of it.
    pub part: &'a str,
    /// Which command made it.
    pub command: &'static str,
    /// Further facts.
    pub facts: Vec<(&'static str, String)>,
    /// One order, or before and after.
    pub orders: &'a [Played<'a>],
    /// The explanation of the last order.
    pub explanation: &'a Explanation,
    /// The explanation of the order before, if it is an order of the same program.
    pub explanation_before: Option<&'a Explanation>,
    /// The device that run times are of, if one was named or assumed.
    pub device: Option<Device>,
    /// The memory limit, if there is one.
    pub memory_limit: Option<Bytes>,
    /// What passes reported for each collective, if passes ran.
    pub rows: &'a [Row],
    /// Advice on the step.
    pub advice: &'a [AdviceLine],
    /// What comes before it: the order that was found.
    pub lead: Option<&'a AdviceLine>,
    /// What is exposed in the order before and in the last one, if units that this one runs expose
    /// something, too: all of it together.
    pub exposed_in_all: Option<Change<Nanos>>,
}

/// The page of one order, or of an order before and after.
pub fn program_page(shown: &Shown<'_>) -> Page {
    let Some(last) = shown.orders.last() else { return Page::default() };
    let graph = last.graph;
    let programs = Programs::of(shown.orders, last);
    Page {
        title: printable_up_to(shown.title, NAME),
        part: printable_up_to(shown.part, NAME),
        command: shown.command,
        lead: shown.lead.map(PageAdvice::of),
        beyond: shown.lead.map_or("", |_| BEYOND),
        advice: shown.advice.iter().map(PageAdvice::of).collect(),
        advice_note: together(shown.advice),
        facts: shown.facts.clone(),
        ops: programs.ops(),
        groups: groups(graph),
        buffers: programs.buffers(),
        views: shown
            .orders
            .iter()
            .enumerate()
            .map(|(number, played)| {
                let is_last = number + 1 == shown.orders.len();
                let in_all =
                    shown.exposed_in_all.map(|all| if is_last { all.after } else { all.before });
                view(shown, &ShownOrder { played, in_all }, programs.of_order(played))
            })
            .collect(),
        compare: shown.orders.len() == 2,
        tables: tables(shown, last),
        sweep: None,
    }
}

/// The page of an order, with a sweep over memory and bandwidth.
pub fn sweep_page(shown: &Shown<'_>, sweep: Sweep) -> Page {
    Page { sweep: Some(sweep), ..program_page(shown) }
}

/// The programs of a page: that of the last order, and that of the order before where it is
/// another.
struct Programs<'a> {
    all: Vec<NumberedProgram<'a>>,
}

/// A program, and the numbers that its operations and buffers have on the page.
struct NumberedProgram<'a> {
    graph: &'a Graph,
    ops: IdVec<OpId, u32>,
    /// The operations that no other program has.
    own: Vec<OpId>,
    first_buffer: usize,
}

impl<'a> Programs<'a> {
    fn of(orders: &'a [Played<'a>], last: &'a Played<'a>) -> Programs<'a> {
        let graph = last.graph;
        let ops = graph.ops().map(|op| op.index() as u32).collect();
        let mut all =
            vec![NumberedProgram { graph, ops, own: graph.ops().collect(), first_buffer: 0 }];
        let before = orders.iter().find_map(|played| Some((played.graph, played.origin?)));
        if let Some((graph, origin)) = before {
            all.push(NumberedProgram::before(graph, origin, last.graph));
        }
        Programs { all }
    }

    fn of_order(&self, played: &Played<'_>) -> &NumberedProgram<'a> {
        self.all.get(usize::from(played.origin.is_some())).unwrap_or(&self.all[0])
    }

    fn ops(&self) -> Ops {
        let mut ops = Ops::default();
        self.all.iter().for_each(|program| program.add_ops(&mut ops));
        ops
    }

    fn buffers(&self) -> BufferColumns {
        let mut buffers = BufferColumns::default();
        for program in &self.all {
            let graph = program.graph;
            buffers.name.extend(
                graph.buffers().map(|buffer| printable_up_to(graph.buffer_name(buffer), NAME)),
            );
            buffers.size.extend(graph.buffers().map(|buffer| graph.size_alloc(buffer)));
            buffers.maker.extend(graph.buffers().map(|buffer| program.maybe(graph.maker(buffer))));
            buffers.class.extend(graph.buffers().map(|buffer| class(graph, buffer)));
        }
        buffers
    }
}

impl<'a> NumberedProgram<'a> {
    /// The program before: kept operations have their new number, all others come after.
    fn before(graph: &'a Graph, origin: &Origin, after: &Graph) -> NumberedProgram<'a> {
        let mut kept: IdVec<OpId, Option<OpId>> = IdVec::filled(None, graph.len());
        for (new, source) in origin.ops.iter().filter(|(_, source)| source.part == Part::Kept) {
            source.of.iter().for_each(|&old| kept[old] = Some(new));
        }
        let own: Vec<OpId> = graph.ops().filter(|&op| kept[op].is_none()).collect();
        let mut next = after.len() as u32;
        let mut number = |new: &Option<OpId>| match new {
            Some(new) => new.index() as u32,
            None => {
                next += 1;
                next - 1
            }
        };
        let ops = kept.iter().map(|(_, new)| number(new)).collect();
        NumberedProgram { graph, ops, own, first_buffer: after.buffers().len() }
    }

    fn number(&self, op: OpId) -> u32 {
        self.ops[op]
    }

    fn maybe(&self, op: Option<OpId>) -> Maybe {
        Maybe(op.map(|op| u64::from(self.number(op))))
    }

    fn add_ops(&self, ops: &mut Ops) {
        let graph = self.graph;
        let size = |op| graph.collective(op).map(Collective::bytes).or(graph.bytes(op));
        let numbers = |ops: &[OpId]| ops.iter().map(|&op| self.number(op)).collect();
        for &op in &self.own {
            ops.name.push(name(graph, op));
            ops.label.push(own_label(graph, op));
            ops.kind.push(kind(graph.kind(op)));
            ops.what.push(what(graph, op));
            ops.group.push(maybe(graph.collective(op).map(|collective| collective.group)));
            ops.bytes.push(Maybe(size(op).map(|bytes| bytes.0.unsigned_abs())));
            ops.flops.push(Maybe(graph.flops(op).map(|flops| flops.0 as u64)));
            ops.source.push(printable_end(graph.source(op), NAME));
            ops.deps.push(numbers(graph.preds(op, Edges::Real)));
            ops.waits.push(numbers(graph.waited_by(op)));
        }
    }
}

fn class(graph: &Graph, buffer: BufId) -> BufferClass {
    let Some(maker) = graph.maker(buffer) else { return BufferClass::Input };
    let kinds = |op: OpId| {
        let of_wait = graph.waits_for(op).iter().copied();
        of_wait.chain([op]).filter_map(|op| Some(graph.collective(op)?.kind)).collect::<Vec<_>>()
    };
    let made = kinds(maker);
    let is_read_to_reduce = || {
        let collectives = graph.users(buffer).iter().filter_map(|&op| graph.collective(op));
        collectives.into_iter().any(|collective| collective.kind.reduces())
    };
    match made.first() {
        Some(CollectiveKind::AllGather) => BufferClass::Gathered,
        Some(kind) if kind.reduces() => BufferClass::Reduced,
        _ if is_read_to_reduce() => BufferClass::Reduced,
        _ => BufferClass::Other,
    }
}

fn maybe(id: Option<impl Id>) -> Maybe {
    Maybe(id.map(|id| id.index() as u64))
}

fn name(graph: &Graph, op: OpId) -> String {
    printable_up_to(graph.name(op), NAME)
}

/// The display name of an operation: its own name if nothing else is known.
fn label(graph: &Graph, op: OpId) -> String {
    called_up_to(graph, op, NAME)
}

/// The parameter or the module of an operation; empty where neither is known.
fn own_label(graph: &Graph, op: OpId) -> String {
    named_by(graph.provenance(op)).map_or_else(String::new, |text| printable_end(text, NAME))
}

fn kind(kind: OpKind) -> PageOpKind {
    match kind {
        OpKind::Compute | OpKind::MultiOutput => PageOpKind::Compute,
        OpKind::AsyncCollective => PageOpKind::Collective,
        OpKind::SyncCollective => PageOpKind::SyncCollective,
        OpKind::Wait => PageOpKind::Wait,
    }
}

fn what(graph: &Graph, op: OpId) -> String {
    match graph.collective(op) {
        Some(collective) => printable(&collective.op),
        None => printable(&graph.fused(op).join(" ")),
    }
}

fn groups(graph: &Graph) -> Vec<PageGroup> {
    let groups = graph.groups().iter();
    groups
        .map(|(_, group)| PageGroup { name: printable(&group.name), ranks: ranks(&group.ranks) })
        .collect()
}

/// An order, and what it and all that it runs expose, if that is more.
struct ShownOrder<'a> {
    played: &'a Played<'a>,
    in_all: Option<Nanos>,
}

impl ShownOrder<'_> {
    /// Where the time goes, if units that this one runs expose something: slices of calls hide it.
    fn spent(&self) -> Option<PageBudget> {
        let (exposed, simulation) = (self.in_all?, self.played.simulation);
        let compute = simulation.step_time - exposed - waiting_for_host(simulation);
        Some(PageBudget {
            compute: Time(compute.max(Nanos::ZERO)),
            exposed: Time(exposed),
            copies: Time(Nanos::ZERO),
        })
    }
}

fn view(shown: &Shown<'_>, order: &ShownOrder<'_>, program: &NumberedProgram<'_>) -> PageView {
    let played = order.played;
    let simulation = &played.simulation;
    let lanes = ProgramLanes::of(played);
    PageView {
        name: played.name.to_owned(),
        begin: Time::default(),
        length: Time(simulation.step_time),
        bound: Some(Time(shown.explanation.bound.time)),
        headline: headline(shown, order),
        slices: slices(played, &lanes, program),
        lanes: lanes.lanes,
        stalls: stalls(played, program),
        memory: Some(memory(shown, played, program)),
        spent: order.spent(),
    }
}

fn headline(shown: &Shown<'_>, order: &ShownOrder<'_>) -> Vec<Figure> {
    let played = order.played;
    let Played { graph, simulation, .. } = played;
    let collectives = graph.ops().filter(|&op| graph.kind(op).is_collective());
    let communication: Nanos =
        collectives.map(|op| simulation.end[op] - simulation.start[op]).sum();
    let here = simulation.exposed();
    let exposed = order.in_all.unwrap_or(here);
    let share = match communication {
        _ if order.in_all.is_some() => format!("{here} here, the rest in loops and calls"),
        Nanos::ZERO => "nothing communicates".to_owned(),
        whole => format!("{:.1}% of {whole} of communication", 100.0 * exposed.0 / whole.0),
    };
    let limit = shown.memory_limit.map_or(String::new(), |limit| format!("limit {limit}"));
    let figure = |label, value, unit, note| Figure { label, value, unit, note, better: "less" };
    let mut figures = vec![
        figure(
            "step time",
            simulation.step_time.0,
            PageUnit::Ns,
            against_bound(simulation.step_time, shown.explanation.bound),
        ),
        figure("exposed communication", exposed.0, PageUnit::Ns, share),
        figure("peak memory", played.memory.peak.0 as f64, PageUnit::Bytes, limit),
    ];
    if shown.orders.iter().any(|played| waiting_for_host(played.simulation) > Nanos::ZERO) {
        let note = "compute stands still, and nothing is issued".to_owned();
        figures.push(figure(
            "waiting for the host",
            waiting_for_host(simulation).0,
            PageUnit::Ns,
            note,
        ));
    }
    figures
}

/// The rows of a timeline: compute, then each process group that communicates.
struct ProgramLanes {
    lanes: Vec<PageLane>,
    of_group: IdVec<GroupId, usize>,
}

impl ProgramLanes {
    fn of(played: &Played<'_>) -> ProgramLanes {
        let Played { graph, machine, .. } = played;
        let mut lanes = vec![PageLane {
            name: "compute".to_owned(),
            kind: LaneKind::Compute,
            note: String::new(),
        }];
        let mut of_group = IdVec::filled(0, graph.groups().len());
        for (id, group) in graph.groups().iter() {
            let mut collectives =
                graph.ops().filter(|&op| graph.collective(op).is_some_and(|of| of.group == id));
            let Some(stream) = collectives.next().and_then(|op| machine.streams.of(op)) else {
                continue;
            };
            let name = format!("group {}", printable(&group.name));
            let note = format!("{}, stream {}", ranks(&group.ranks), stream.index());
            of_group[id] = lanes.len();
            lanes.push(PageLane { name, kind: LaneKind::Communication, note });
        }
        ProgramLanes { lanes, of_group }
    }

    fn of_op(&self, graph: &Graph, op: OpId) -> usize {
        graph.collective(op).map_or(0, |collective| self.of_group[collective.group])
    }
}

fn slices(played: &Played<'_>, lanes: &ProgramLanes, program: &NumberedProgram<'_>) -> Slices {
    let Played { graph, order, .. } = played;
    let exposed = exposed_by_collective(played.simulation);
    // Within a lane the order of issue is the order in time.
    let mut ops: Vec<OpId> = order.as_slice().to_vec();
    ops.sort_by_key(|&op| lanes.of_op(graph, op));
    let mut slices = Slices::default();
    for op in ops {
        let (start, end) = played.times(op);
        slices.push(PageSlice {
            lane: lanes.of_op(graph, op),
            op: program.number(op),
            time: start..end,
            exposed: exposed[op],
        });
    }
    slices
}

fn stalls(played: &Played<'_>, program: &NumberedProgram<'_>) -> StallColumns {
    let mut stalls = StallColumns::default();
    for exposure in &played.simulation.exposures {
        stalls.push(PageStall {
            time: exposure.start..exposure.start + exposure.time,
            of: program.maybe(Some(exposure.of)),
            at: program.maybe(Some(exposure.at)),
            cause: StallCause::Simulated(exposure.cause),
        });
    }
    stalls
}

fn memory(shown: &Shown<'_>, played: &Played<'_>, program: &NumberedProgram<'_>) -> MemoryCurve {
    let steps = played.memory_steps();
    MemoryCurve {
        time: steps.iter().map(|step| Time(step.time)).collect(),
        bytes: steps.iter().map(|step| step.bytes).collect(),
        order: played.order.as_slice().iter().map(|&op| program.number(op)).collect(),
        first_buffer: program.first_buffer,
        freed_by: played.memory.freed_by.as_slice().iter().map(|&op| program.maybe(op)).collect(),
        limit: shown.memory_limit,
    }
}

/// The collectives of the last order; and those of the order before, which are shown with it alone.
fn tables(shown: &Shown<'_>, last: &Played<'_>) -> Vec<PageTable> {
    let before = shown.orders.first().zip(shown.explanation_before);
    let own = collectives(&Listing::new(shown, last));
    let kernels = kernels(last, shown.device.as_ref());
    let Some((played, explanation)) = before.filter(|_| shown.orders.len() == 2) else {
        return [own].into_iter().chain(kernels).collect();
    };
    let earlier = Listing {
        last: played,
        before: None,
        exposed: exposed_by_collective(played.simulation),
        held: held_by(played.graph, explanation),
        rates: program_bus_rates(played.graph, played.simulation),
        is_sourced: is_sourced(played.graph),
        rows: &[],
    };
    let of = |table: PageTable, view| PageTable { view: Some(view), ..table };
    [of(own, 1), of(collectives(&earlier), 0)].into_iter().chain(kernels).collect()
}

/// How many kernels are listed.
const KERNELS: usize = 500;

/// The longest kernels whose arithmetic is known, with their rates; none, if none is.
fn kernels(played: &Played<'_>, device: Option<&Device>) -> Option<PageTable> {
    let Played { graph, simulation, .. } = played;
    let mut rates = program_kernel_rates(graph, simulation, device);
    let cut = (rates.len() > KERNELS).then_some((rates.len(), "the longest"));
    rates.truncate(KERNELS);
    let column = |title, unit| PageColumn { title, unit, bar: title == "time" };
    let mut columns = vec![
        column("kernel", PageUnit::Text),
        column("fused", PageUnit::Text),
        column("time", PageUnit::Ns),
        column("FLOP/s", PageUnit::Flops),
    ];
    columns.extend(device.map(|_| column("of bf16 peak", PageUnit::Percent)));
    let row = |&(op, rate): &(OpId, KernelRate)| {
        let (start, end) = played.times(op);
        let mut row = vec![
            PageCell::Text(label(graph, op)),
            PageCell::Text(what(graph, op)),
            PageCell::Time(Time(end - start)),
        ];
        row.extend(kernel_rates(Some(rate)).into_iter().take(columns.len() - 3));
        row
    };
    (!rates.is_empty()).then(|| PageTable {
        title: "kernels",
        rows: rates.iter().map(row).collect(),
        op: rates.iter().map(|&(op, _)| maybe(Some(op))).collect(),
        columns: columns.clone(),
        details: None,
        view: None,
        cut,
    })
}

fn held_by(graph: &Graph, explanation: &Explanation) -> IdVec<OpId, Option<Held>> {
    let mut held = IdVec::filled(None, graph.len());
    for of in &explanation.held {
        held[of.collective] = Some(*of);
    }
    held
}

fn collectives(listing: &Listing<'_>) -> PageTable {
    let graph = listing.last.graph;
    let mut collectives: Vec<OpId> =
        graph.ops().filter(|&op| graph.kind(op).is_collective()).collect();
    collectives
        .sort_by(|&a, &b| listing.exposed[b].0.total_cmp(&listing.exposed[a].0).then(a.cmp(&b)));
    PageTable {
        title: "collectives",
        columns: listing.columns(),
        rows: collectives.iter().map(|&op| listing.row(op)).collect(),
        op: collectives.iter().map(|&op| maybe(Some(op))).collect(),
        details: Some(collectives.iter().map(|&op| listing.details(op)).collect()),
        view: None,
        cut: None,
    }
}

/// What each collective of the last order exposed in the order before.
fn exposed_before(before: &Played<'_>) -> IdVec<OpId, Nanos> {
    match before.origin {
        Some(origin) => exposed_by_collective(&carried(origin, before.simulation)),
        None => exposed_by_collective(before.simulation),
    }
}

/// The table of collectives.
struct Listing<'a> {
    last: &'a Played<'a>,
    before: Option<(&'a Played<'a>, IdVec<OpId, Nanos>)>,
    exposed: IdVec<OpId, Nanos>,
    held: IdVec<OpId, Option<Held>>,
    rates: IdVec<OpId, Option<BusRate>>,
    /// Whether the program says where any collective comes from.
    is_sourced: bool,
    rows: &'a [Row],
}

/// Whether the program says where any collective comes from.
fn is_sourced(graph: &Graph) -> bool {
    let mut collectives = graph.ops().filter(|&op| graph.kind(op).is_collective());
    collectives.any(|op| !graph.source(op).is_empty())
}

impl<'a> Listing<'a> {
    fn new(shown: &'a Shown<'a>, last: &'a Played<'a>) -> Listing<'a> {
        let held = held_by(last.graph, shown.explanation);
        let before = match shown.orders {
            [before, _] => Some((before, exposed_before(before))),
            _ => None,
        };
        Listing {
            last,
            before,
            exposed: exposed_by_collective(last.simulation),
            held,
            rates: program_bus_rates(last.graph, last.simulation),
            is_sourced: is_sourced(last.graph),
            rows: shown.rows,
        }
    }

    fn columns(&self) -> Vec<PageColumn> {
        let column = |title, unit| PageColumn { title, unit, bar: title == "exposed" };
        let mut columns = vec![
            column("collective", PageUnit::Text),
            column("held by", PageUnit::Text),
            column("operation", PageUnit::Text),
            column("group", PageUnit::Text),
            column("size", PageUnit::Bytes),
            column("time", PageUnit::Ns),
            column("exposed", PageUnit::Ns),
        ];
        if self.before.is_some() {
            columns.extend([column("was", PageUnit::Ns), column("moved", PageUnit::Places)]);
        }
        columns.push(column("stalls at", PageUnit::Text));
        columns.extend(self.is_sourced.then(|| column("source", PageUnit::Text)));
        columns.extend([column("bus rate", PageUnit::Rate), column("of best", PageUnit::Percent)]);
        columns
    }

    fn row(&self, op: OpId) -> Vec<PageCell> {
        let graph = self.last.graph;
        let (start, end) = self.last.times(op);
        let held = self.holder(op).map_or(PageCell::Empty, PageCell::Text);
        let mut row = vec![PageCell::Text(label(graph, op)), held, PageCell::Text(what(graph, op))];
        row.extend(graph.collective(op).into_iter().flat_map(|collective| {
            let group = printable(&graph.groups()[collective.group].name);
            [PageCell::Text(group), PageCell::Size(collective.bytes())]
        }));
        row.extend([PageCell::Time(Time(end - start)), PageCell::Time(Time(self.exposed[op]))]);
        if let Some((before, exposed)) = &self.before {
            let place = |old: OpId| before.order.pos(old).index();
            let was = match before.origin {
                Some(origin) => {
                    origin.ops[op].of.iter().map(|&old| place(old)).min().unwrap_or_default()
                }
                None => place(op),
            };
            let shift = self.last.order.pos(op).index() as f64 - was as f64;
            row.extend([PageCell::Time(Time(exposed[op])), PageCell::Number(shift)]);
        }
        row.push(
            self.held[op].map_or(PageCell::Empty, |held| PageCell::Text(label(graph, held.at))),
        );
        let source = || PageCell::Text(printable_end(graph.source(op), NAME));
        row.extend(self.is_sourced.then(source));
        row.extend(bus_rate(self.rates[op]));
        row
    }

    /// What holds a collective, in words.
    fn holder(&self, op: OpId) -> Option<String> {
        let (graph, simulation) = (self.last.graph, self.last.simulation);
        self.held[op].map(|held| describe_holder(graph, simulation, &held))
    }

    fn details(&self, op: OpId) -> Vec<(&'static str, String)> {
        let graph = self.last.graph;
        let held = self.holder(op).unwrap_or_else(|| "nothing: it is hidden".to_owned());
        let stopped = self
            .rows
            .iter()
            .find(|row| row.op == op)
            .map(|row| ("stopped by", stop(graph, &row.stop)));
        let rate = self.rates[op].map(rate_detail);
        std::iter::once(("held by", held)).chain(stopped).chain(rate).collect()
    }
}
