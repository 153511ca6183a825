//! A page of what actually ran: a view for each rank.

use std::collections::BTreeMap;

use super::model::{
    Figure, LaneKind, Maybe, Ops, Page, PageAdvice, PageBudget, PageCell, PageColumn, PageGroup,
    PageLane, PageOpKind, PageSlice, PageStall, PageTable, PageUnit, PageView, Slices, StallCause,
    StallColumns, Time,
};
use super::rates::{bus_rate, kernel_rates, rate_detail};
use crate::analysis::{
    analysis_advice, analysis_notes, file_name, group_text, idle_text, kernel_rate, spread,
    spread_text, without_middle, work_name,
};
use crate::observe::{
    Analysis, Class, Drawing, GroupName, KernelUse, Match, Moment, ObservedCollective, PeerLaunch,
    Rank, RankSpent, RankTimeline, Track,
};
use crate::rates::KernelRate;
use crate::text::{printable, printable_up_to};
use halflap::simulate::Cause;
use halflap::units::Nanos;

/// Names are truncated to this many characters: enough to distinguish them.
const NAME: usize = 160;

/// Those of kernels are templates with much in common; they lose their middle.
const KERNEL: usize = 500;

/// How many ranks are listed with a kernel.
const RANKS: usize = 8;

/// How many rows a table has at most.
const ROWS: usize = 2_000;

/// How many slices a view should have at most.
pub const SLICES: usize = 60_000;

/// The page of an analysis; `timelines` has one for each rank.
pub fn observed_page(title: &str, analysis: &Analysis, timelines: &[RankTimeline]) -> Page {
    let mut numbers = TraceNumbers::new(analysis);
    let views = analysis.ranks.iter().enumerate().zip(timelines);
    let views = views.map(|((place, _), timeline)| view(&mut numbers, place, timeline)).collect();
    let tables = [collectives(&mut numbers), ranks(analysis), kernels(&mut numbers)];
    let tables = tables.map(PageTable::without_empty_columns).to_vec();
    Page {
        title: printable_up_to(title, NAME),
        command: "analyze",
        advice: analysis_advice(analysis).iter().map(PageAdvice::of).collect(),
        facts: spread_text(analysis)
            .map(|spread| ("all ranks", spread))
            .into_iter()
            .chain(idle_facts(analysis).into_iter().map(|idle| ("idle time", idle)))
            .chain(notes(analysis, timelines).into_iter().map(|note| ("note", note)))
            .collect(),
        views,
        tables,
        groups: numbers.groups,
        ops: numbers.ops,
        ..Page::default()
    }
}

/// How many ranks' idle time is explained.
const IDLE: usize = 4;

/// Why nothing ran.
fn idle_facts(analysis: &Analysis) -> Vec<String> {
    let names = called(analysis);
    let idle = analysis.ranks.iter().zip(&names).filter(|(rank, _)| rank.times.idle > Nanos::ZERO);
    idle.take(IDLE).map(|(rank, name)| format!("{name}: {}", idle_text(rank))).collect()
}

/// What a reader of the page should know.
fn notes(analysis: &Analysis, timelines: &[RankTimeline]) -> Vec<String> {
    let mut notes = analysis_notes(analysis);
    for (rank, timeline) in
        analysis.ranks.iter().zip(timelines).filter(|(_, timeline)| timeline.pauses_left_out > 0)
    {
        let (drawn, label) = (timeline.pauses.len(), printable(&rank.label));
        let all = drawn + timeline.pauses_left_out;
        notes.push(format!(
            "{label}: of {all} pauses of compute the longest {drawn} are drawn and summed up"
        ));
    }
    notes
}

/// Unique names of the ranks: traces may not know their rank, or claim the same.
fn called(analysis: &Analysis) -> Vec<String> {
    let name = |rank: &Rank| {
        rank.rank.map_or_else(|| printable(&rank.label), |rank| format!("rank {rank}"))
    };
    let names: Vec<String> = analysis.ranks.iter().map(name).collect();
    let mut seen: BTreeMap<&str, usize> = BTreeMap::new();
    names.iter().for_each(|name| *seen.entry(name).or_default() += 1);
    let apart = |(place, name): (usize, &String)| match seen[name.as_str()] {
        1 => name.clone(),
        _ => format!("{name}, trace {}", place + 1),
    };
    names.iter().enumerate().map(apart).collect()
}

/// What an operation of the page is.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum ObservedKey<'a> {
    Kernel(Class, &'a str),
    /// A collective on several ranks.
    Match(usize),
    /// A collective on one: the rank's place and its own.
    Alone(usize, usize),
    Several,
}

/// What is said of an operation.
struct About<'a> {
    kind: PageOpKind,
    name: &'a str,
    /// The place of its rank, and itself.
    collective: Option<(usize, &'a ObservedCollective)>,
}

/// Numbers for operations and groups, given when first needed.
struct TraceNumbers<'a> {
    analysis: &'a Analysis,
    matches: Vec<Vec<Option<usize>>>,
    /// Where on each rank's clock the time axis begins.
    zeros: Vec<Moment>,
    called: Vec<String>,
    of: BTreeMap<ObservedKey<'a>, u32>,
    ops: Ops,
    of_group: BTreeMap<(String, String), u32>,
    groups: Vec<PageGroup>,
}

impl<'a> TraceNumbers<'a> {
    fn new(analysis: &'a Analysis) -> TraceNumbers<'a> {
        TraceNumbers {
            analysis,
            matches: analysis.matches_of(),
            zeros: analysis.zeros(),
            called: called(analysis),
            of: BTreeMap::new(),
            ops: Ops::default(),
            of_group: BTreeMap::new(),
            groups: Vec::new(),
        }
    }

    fn drawing(&mut self, rank: usize, drawing: Drawing) -> u32 {
        match drawing {
            Drawing::Kernel(kernel) => self.kernel(rank, kernel),
            Drawing::Collective(place) => self.collective(rank, place),
            Drawing::Several => self.op(
                ObservedKey::Several,
                &About { kind: PageOpKind::Several, name: "several", collective: None },
            ),
        }
    }

    /// The same collective on all ranks, where it was found on others.
    fn found(&self, at: PeerLaunch) -> Option<&'a Match> {
        self.matches[at.rank][at.collective].map(|found| &self.analysis.peers.matches[found])
    }

    fn kernel(&mut self, rank: usize, kernel: crate::observe::ids::KernelId) -> u32 {
        let kernel = &self.analysis.ranks[rank].kernels[kernel];
        let kind = match kernel.class {
            Class::Compute => PageOpKind::Compute,
            Class::Memory => PageOpKind::Memory,
            Class::Communication => PageOpKind::Collective,
        };
        let about = About { kind, name: &without_middle(&kernel.name, KERNEL), collective: None };
        self.op(ObservedKey::Kernel(kernel.class, &kernel.name), &about)
    }

    fn collective(&mut self, rank: usize, place: usize) -> u32 {
        let collective = &self.analysis.ranks[rank].collectives[place];
        let found = self.matches[rank][place];
        let key = found.map_or(ObservedKey::Alone(rank, place), ObservedKey::Match);
        // On several ranks it has one name; those that others do not have are numbered by
        // themselves.
        let name = match (found, self.analysis.ranks.len()) {
            (Some(found), _) => format!("{} {}", collective.operation.name(), found + 1),
            (None, 1) => format!("{} {}", collective.operation.name(), place + 1),
            (None, _) => format!(
                "{} {} ({} alone)",
                collective.operation.name(),
                place + 1,
                self.called[rank]
            ),
        };
        self.op(
            key,
            &About {
                kind: PageOpKind::Collective,
                name: &name,
                collective: Some((rank, collective)),
            },
        )
    }

    fn op(&mut self, key: ObservedKey<'a>, about: &About<'_>) -> u32 {
        if let Some(&number) = self.of.get(&key) {
            return number;
        }
        let About { kind, name, collective } = *about;
        let group = collective.map(|(rank, collective)| self.group(rank, collective));
        let what = collective.map_or("", |(_, collective)| collective.operation.name());
        let bytes = collective.and_then(|(_, collective)| collective.bytes);
        let number = self.ops.name.len() as u32;
        self.ops.name.push(printable_up_to(name, KERNEL));
        self.ops.kind.push(kind);
        self.ops.what.push(what.to_owned());
        self.ops.group.push(Maybe(group.map(u64::from)));
        self.ops.bytes.push(Maybe(bytes.map(|bytes| bytes.0.unsigned_abs())));
        self.ops.flops.push(Maybe(None));
        self.ops.source.push(String::new());
        self.ops.deps.push(Vec::new());
        self.ops.waits.push(Vec::new());
        self.of.insert(key, number);
        number
    }

    fn group(&mut self, rank: usize, collective: &ObservedCollective) -> u32 {
        let (name, ranks) = group_text(&self.analysis.ranks[rank].groups[collective.group]);
        let next = self.groups.len() as u32;
        *self.of_group.entry((name.clone(), ranks.clone())).or_insert_with(|| {
            self.groups.push(PageGroup { name, ranks });
            next
        })
    }
}

fn view(numbers: &mut TraceNumbers<'_>, place: usize, timeline: &RankTimeline) -> PageView {
    let analysis = numbers.analysis;
    let rank = &analysis.ranks[place];
    PageView {
        name: numbers.called[place].clone(),
        begin: Time(rank.first - numbers.zeros[place]),
        length: Time(rank.first - numbers.zeros[place] + rank.times.span),
        bound: None,
        headline: headline(analysis, place),
        lanes: lanes(rank, &timeline.lanes),
        slices: slices(numbers, place, timeline),
        stalls: stalls(numbers, place, timeline),
        memory: None,
        spent: Some(budget(&rank.times)),
    }
}

fn budget(times: &RankSpent) -> PageBudget {
    let copies = times.memory_alone();
    PageBudget { compute: Time(times.compute), exposed: Time(times.exposed), copies: Time(copies) }
}

fn headline(analysis: &Analysis, place: usize) -> Vec<Figure> {
    let times = &analysis.ranks[place].times;
    let of = |part: Nanos, whole: Nanos, what: &str| match whole {
        Nanos::ZERO => String::new(),
        whole => format!("{:.1}% of {what}", 100.0 * part.0 / whole.0),
    };
    let figure = |label, value: Nanos, note| Figure {
        label,
        value: value.0,
        unit: PageUnit::Ns,
        note,
        better: "less",
    };
    let several = analysis.ranks.len() > 1;
    let beside = |note: String, of: fn(&RankSpent) -> Nanos| match several {
        true => format!("{note}; all ranks: {}", spread(analysis, of)),
        false => note,
    };
    let computing = of(times.compute, times.span, "it computing");
    let exposed = of(times.exposed, times.communication, "communication");
    let idle = of(times.idle, times.span, "span");
    let mut figures = vec![
        figure("span", times.span, beside(computing, |times| times.span)),
        figure("exposed communication", times.exposed, beside(exposed, |times| times.exposed)),
        figure("idle", times.idle, beside(idle, |times| times.idle)),
    ];
    if several {
        let peers = &analysis.peers.ranks[place];
        let least = if analysis.peers.incomplete() { "at least; " } else { "" };
        let (waiting, note) = match peers.transfer_and_waiting() {
            Some((_, waiting)) => {
                (waiting, format!("{least}last to arrive at {} of {}", peers.last, peers.matched))
            }
            None => {
                (Nanos(f64::NAN), "none of its collectives was found on another rank".to_owned())
            }
        };
        figures.push(figure("waiting for peers", waiting, note));
    }
    figures
}

/// The lanes; where slices of a stream or group overlap, it has several, which are numbered.
fn lanes(rank: &Rank, tracks: &[Track]) -> Vec<PageLane> {
    let alike =
        |tracks: &[Track], track: &Track| tracks.iter().filter(|other| *other == track).count();
    let numbered = |(place, track): (usize, &Track)| {
        let PageLane { name, kind, note } = lane(rank, track);
        let name = match alike(tracks, track) {
            1 => name,
            all => format!("{name} ({} of {all})", alike(&tracks[..=place], track)),
        };
        PageLane { name, kind, note }
    };
    tracks.iter().enumerate().map(numbered).collect()
}

fn lane(rank: &Rank, track: &Track) -> PageLane {
    match *track {
        Track::Group(group) => {
            let (name, note) = group_text(&rank.groups[group]);
            let name = match rank.groups[group].name {
                GroupName::Named(_) => format!("group {name}"),
                GroupName::Stream(_) | GroupName::Gloo | GroupName::OneOf(_) => {
                    format!("{name}, comm.")
                }
            };
            PageLane { name, kind: LaneKind::Communication, note }
        }
        Track::Stream(lane) => stream(&rank.lanes[lane], LaneKind::Compute, ""),
        Track::Copies(lane) => stream(&rank.lanes[lane], LaneKind::Memory, ", copies"),
    }
}

fn stream(lane: &crate::observe::TraceLane, kind: LaneKind, what: &str) -> PageLane {
    let note = lane.device.map_or(String::new(), |device| format!("GPU {device}"));
    PageLane { name: format!("{}{what}", lane.name()), kind, note }
}

fn slices(numbers: &mut TraceNumbers<'_>, place: usize, timeline: &RankTimeline) -> Slices {
    let zero = numbers.zeros[place];
    let mut slices = Slices::default();
    for drawn in &timeline.slices {
        slices.push(PageSlice {
            lane: drawn.lane,
            op: numbers.drawing(place, drawn.what),
            time: drawn.when.start - zero..drawn.when.end - zero,
            exposed: drawn.exposed,
        });
    }
    slices
}

fn stalls(numbers: &mut TraceNumbers<'_>, place: usize, timeline: &RankTimeline) -> StallColumns {
    let zero = numbers.zeros[place];
    let mut stalls = StallColumns::default();
    for pause in &timeline.pauses {
        let before = pause.before.map(|kernel| numbers.kernel(place, kernel));
        stalls.push(PageStall {
            time: pause.when.start - zero..pause.when.end - zero,
            of: Maybe(Some(u64::from(numbers.collective(place, pause.collective)))),
            at: Maybe(before.map(u64::from)),
            cause: StallCause::Simulated(match before {
                Some(_) => Cause::Needed,
                None => Cause::EndOfStep,
            }),
        });
    }
    stalls
}

fn column(title: &'static str, unit: PageUnit, bar: bool) -> PageColumn {
    PageColumn { title, unit, bar }
}

fn time(time: Nanos) -> PageCell {
    PageCell::Time(Time(time))
}

fn text(text: impl ToString) -> PageCell {
    PageCell::Text(printable_up_to(&text.to_string(), NAME))
}

fn collectives(numbers: &mut TraceNumbers<'_>) -> PageTable {
    let analysis = numbers.analysis;
    let mut all: Vec<PeerLaunch> = Vec::new();
    for (rank, of) in analysis.ranks.iter().enumerate() {
        all.extend((0..of.collectives.len()).map(|collective| PeerLaunch { rank, collective }));
    }
    let of = |at: PeerLaunch| &analysis.ranks[at.rank].collectives[at.collective];
    all.sort_by(|&a, &b| of(b).exposed.0.total_cmp(&of(a).exposed.0));
    let cut = (all.len() > ROWS).then_some((all.len(), "the most exposed"));
    all.truncate(ROWS);
    PageTable {
        title: "collectives",
        columns: vec![
            column("collective", PageUnit::Text, false),
            column("rank", PageUnit::Text, false),
            column("group", PageUnit::Text, false),
            column("size", PageUnit::Bytes, false),
            column("start", PageUnit::Ns, false),
            column("time", PageUnit::Ns, false),
            column("exposed", PageUnit::Ns, true),
            column("hidden", PageUnit::Ns, false),
            column("bus rate", PageUnit::Rate, false),
            column("of best", PageUnit::Percent, false),
            column("waiting for peers", PageUnit::Ns, false),
        ],
        op: all
            .iter()
            .map(|at| Maybe(Some(numbers.collective(at.rank, at.collective).into())))
            .collect(),
        rows: all.iter().map(|&at| collective_row(numbers, at)).collect(),
        details: Some(all.iter().map(|&at| details(numbers, at)).collect()),
        view: None,
        cut,
    }
}

fn collective_row(numbers: &mut TraceNumbers<'_>, at: PeerLaunch) -> Vec<PageCell> {
    let op = numbers.collective(at.rank, at.collective) as usize;
    let rank = &numbers.analysis.ranks[at.rank];
    let found = numbers.found(at);
    let collective = &rank.collectives[at.collective];
    let [rate, of_best] = bus_rate(numbers.analysis.rates[at.rank][at.collective]);
    vec![
        text(&numbers.ops.name[op]),
        text(rank.name()),
        text(group_text(&rank.groups[collective.group]).0),
        collective.bytes.map_or(PageCell::Empty, PageCell::Size),
        time(collective.ran.start - numbers.zeros[at.rank]),
        time(collective.time()),
        time(collective.exposed),
        time(collective.hidden),
        rate,
        of_best,
        found.map_or(PageCell::Empty, |found| time(collective.time() - found.transfer)),
    ]
}

fn details(numbers: &TraceNumbers<'_>, at: PeerLaunch) -> Vec<(&'static str, String)> {
    let rank = &numbers.analysis.ranks[at.rank];
    let found = numbers.found(at);
    let collective = &rank.collectives[at.collective];
    let name = |kernel| without_middle(rank.kernel(kernel), NAME);
    let mut details = vec![(rank.processor.work(), name(collective.kernel))];
    details.extend(
        collective
            .behind
            .iter()
            .map(|&(kernel, time)| ("hidden behind", format!("{time} {}", name(kernel)))),
    );
    if let Some(stall) = collective.stall {
        let after = stall.after.map_or("the start".to_owned(), name);
        let before = stall.before.map_or("the end".to_owned(), name);
        details.push((
            "compute stood still",
            format!("{} from {after} to {before}", stall.when.time()),
        ));
    }
    details.extend(numbers.analysis.rates[at.rank][at.collective].map(rate_detail));
    if let Some(found) = found {
        let last = numbers.analysis.ranks[found.last].name();
        let said =
            format!("{}; the longest wait was {}, for rank {last}", found.transfer, found.spread);
        details.push(("transfer", said));
    }
    details
}

fn ranks(analysis: &Analysis) -> PageTable {
    let row = |(place, rank): (usize, &Rank)| {
        let times = &rank.times;
        let several = analysis.ranks.len() > 1;
        let waiting = match analysis.peers.ranks[place].transfer_and_waiting() {
            Some((_, waiting)) => time(waiting),
            None if several => text("?"),
            None => PageCell::Empty,
        };
        let mut row = vec![text(rank.name())];
        row.extend(
            [
                times.span,
                times.compute,
                times.communication,
                times.exposed,
                times.memory,
                times.idle,
            ]
            .map(time),
        );
        row.extend([waiting, text(file_name(&rank.label))]);
        row
    };
    PageTable {
        title: "ranks",
        columns: vec![
            column("rank", PageUnit::Text, false),
            column("span", PageUnit::Ns, false),
            column("compute", PageUnit::Ns, false),
            column("communication", PageUnit::Ns, false),
            column("exposed", PageUnit::Ns, true),
            column("memory", PageUnit::Ns, false),
            column("idle", PageUnit::Ns, true),
            column("waiting for peers", PageUnit::Ns, true),
            column("trace", PageUnit::Text, false),
        ],
        rows: analysis.ranks.iter().enumerate().map(row).collect(),
        op: analysis.ranks.iter().map(|_| Maybe(None)).collect(),
        details: None,
        view: None,
        cut: None,
    }
}

/// A kernel on all ranks that launch it.
struct KernelRow<'a> {
    class: Class,
    name: &'a str,
    /// The ranks' places, and what each spends in it.
    uses: Vec<(usize, &'a KernelUse)>,
}

impl KernelRow<'_> {
    fn rate(&self, analysis: &Analysis) -> Option<KernelRate> {
        let uses = self.uses.iter().map(|&(place, used)| (&analysis.ranks[place], used));
        kernel_rate(&uses.collect::<Vec<_>>())
    }
}

fn kernels(numbers: &mut TraceNumbers<'_>) -> PageTable {
    let analysis = numbers.analysis;
    let mut of: BTreeMap<(Class, &str), Vec<(usize, &KernelUse)>> = BTreeMap::new();
    for (place, rank) in analysis.ranks.iter().enumerate() {
        for used in &rank.kernel_uses {
            let kernel = &rank.kernels[used.kernel];
            of.entry((kernel.class, &kernel.name)).or_default().push((place, used));
        }
    }
    let rows = of.into_iter().map(|((class, name), uses)| KernelRow { class, name, uses });
    let mut all: Vec<KernelRow<'_>> = rows.collect();
    all.sort_by(|a, b| total(&b.uses).0.total_cmp(&total(&a.uses).0));
    let cut = (all.len() > ROWS).then_some((all.len(), "the longest"));
    all.truncate(ROWS);
    let several = analysis.ranks.len() > 1;
    let work = work_name(analysis);
    let mut columns =
        vec![column(work, PageUnit::Text, false), column("class", PageUnit::Text, false)];
    columns.extend(several.then_some(column("ranks", PageUnit::Count, false)));
    columns
        .extend([column("launches", PageUnit::Count, false), column("total", PageUnit::Ns, true)]);
    match several {
        true => columns.extend(
            ["least of a rank", "most of a rank"].map(|title| column(title, PageUnit::Ns, false)),
        ),
        false => columns.push(column("median", PageUnit::Ns, false)),
    }
    columns.push(column("longest", PageUnit::Ns, false));
    let is_rated = all.iter().any(|row| row.rate(analysis).is_some());
    if is_rated {
        columns.extend([
            column("FLOP/s", PageUnit::Flops, false),
            column("of peak", PageUnit::Percent, false),
        ]);
    }
    PageTable {
        title: if work == "kernel" { "kernels" } else { "operators" },
        columns,
        op: all.iter().map(|row| kernel_op(numbers, row)).collect(),
        details: several
            .then(|| all.iter().map(|row| kernel_details(numbers, &row.uses)).collect()),
        rows: all
            .iter()
            .map(|row| {
                let rates = is_rated.then(|| kernel_rates(row.rate(analysis)));
                kernel_row(row, several).into_iter().chain(rates.into_iter().flatten()).collect()
            })
            .collect(),
        view: None,
        cut,
    }
}

fn total(uses: &[(usize, &KernelUse)]) -> Nanos {
    uses.iter().map(|(_, used)| used.total).sum()
}

fn kernel_op(numbers: &mut TraceNumbers<'_>, row: &KernelRow<'_>) -> Maybe {
    Maybe(row.uses.first().map(|&(place, used)| u64::from(numbers.kernel(place, used.kernel))))
}

fn kernel_row(row: &KernelRow<'_>, several: bool) -> Vec<PageCell> {
    let KernelRow { class, name, uses } = row;
    let launches: usize = uses.iter().map(|(_, used)| used.launches).sum();
    let longest = uses.iter().map(|(_, used)| used.longest).fold(Nanos::ZERO, Nanos::max);
    let of_rank = uses.iter().map(|(_, used)| used.total);
    let most = of_rank.clone().fold(Nanos::ZERO, Nanos::max);
    let least = of_rank.fold(most, Nanos::min);
    let mut row = vec![PageCell::Text(without_middle(name, KERNEL)), text(class.name())];
    row.extend(several.then_some(PageCell::Number(uses.len() as f64)));
    row.extend([PageCell::Number(launches as f64), time(total(uses))]);
    match several {
        true => row.extend([least, most].map(time)),
        false => row.extend(uses.first().map(|(_, used)| time(used.median))),
    }
    row.push(time(longest));
    row
}

/// The ranks that spend most in a kernel.
fn kernel_details(
    numbers: &TraceNumbers<'_>,
    uses: &[(usize, &KernelUse)],
) -> Vec<(&'static str, String)> {
    let mut uses = uses.to_vec();
    uses.sort_by(|(_, a), (_, b)| b.total.0.total_cmp(&a.total.0));
    let said = |(place, used): &(usize, &KernelUse)| {
        let said = format!(
            "{}: {}, {} launched, median {}",
            numbers.called[*place], used.total, used.launches, used.median
        );
        ("time", said)
    };
    let rest = uses.len().saturating_sub(RANKS);
    let more = (rest > 0).then(|| ("time", format!("and {rest} more ranks")));
    uses.iter().take(RANKS).map(said).chain(more).collect()
}
