//! `halflap.analysis/1`, for machines.

use std::io::{self, Write};

use serde::Serialize;

use super::{analysis_advice, analysis_notes};
use crate::observe::ids::KernelId;
use crate::observe::{
    Analysis, Class, GroupName, Idle, KernelUse, Match, Moment, ObservedCollective, OperationUse,
    Processor, Rank, RankPeers,
};
use crate::rates::{Moved, mean_bus_rate};
use halflap::collective::CollectiveKind;
use halflap::ids::{Id, IdVec};
use halflap::units::{Bytes, Nanos};

#[derive(Serialize)]
struct AnalysisJson<'a> {
    format: &'static str,
    halflap: &'static str,
    advice: Vec<AdviceJson>,
    ranks: Vec<RankJson<'a>>,
    matches: Vec<MatchJson>,
    waiting_is_at_least: bool,
    notes: Vec<String>,
}

#[derive(Serialize)]
struct AdviceJson {
    text: String,
    action: String,
}

#[derive(Serialize)]
struct IdleJson {
    host: Nanos,
    synchronisation: Nanos,
    launch: Nanos,
    waiting: Nanos,
    unknown: Nanos,
}

#[derive(Serialize)]
struct RankJson<'a> {
    trace: &'a str,
    rank: Option<u32>,
    world_size: Option<u32>,
    processor: Processor,
    device: Option<&'a str>,
    preset: Option<&'static str>,
    devices: usize,
    events: u64,
    begin: Nanos,
    span: Nanos,
    compute: Nanos,
    communication: Nanos,
    memory: Nanos,
    overlapped: Nanos,
    exposed: Nanos,
    exposed_beside_memory: Nanos,
    idle: Nanos,
    idle_by: IdleJson,
    peers: Option<PeersJson>,
    groups: Vec<GroupJson<'a>>,
    operations: Vec<OperationJson>,
    collectives: Vec<CollectiveJson>,
    kernels: Vec<KernelJson<'a>>,
}

#[derive(Serialize)]
struct PeersJson {
    clock_ahead: Option<Nanos>,
    matched: usize,
    unmatched: usize,
    disagree: usize,
    transfer: Option<Nanos>,
    waiting: Option<Nanos>,
    last_to_arrive: usize,
}

#[derive(Serialize)]
struct GroupJson<'a> {
    name: String,
    named: bool,
    description: &'a str,
    size: Option<u32>,
    ranks: Option<&'a [u32]>,
}

#[derive(Serialize)]
struct OperationJson {
    group: usize,
    operation: CollectiveKind,
    launches: usize,
    time: Nanos,
    hidden: Nanos,
    exposed: Nanos,
    bytes: Option<Bytes>,
    bus_bandwidth: Option<f64>,
}

#[derive(Serialize)]
struct CollectiveJson {
    operation: CollectiveKind,
    group: usize,
    kernel: usize,
    stream: Option<i64>,
    bytes: Option<Bytes>,
    bus_bandwidth: Option<f64>,
    of_best: Option<f64>,
    latency_bound: Option<bool>,
    sequence: Option<i64>,
    start: Nanos,
    duration: Nanos,
    hidden: Nanos,
    exposed: Nanos,
    behind: Vec<BehindJson>,
    stall: Option<StallJson>,
    #[serde(rename = "match")]
    found: Option<usize>,
    waiting: Option<Nanos>,
}

#[derive(Serialize)]
struct BehindJson {
    kernel: usize,
    time: Nanos,
}

#[derive(Serialize)]
struct StallJson {
    start: Nanos,
    duration: Nanos,
    after: Option<usize>,
    before: Option<usize>,
}

#[derive(Serialize)]
struct KernelJson<'a> {
    name: &'a str,
    class: Class,
    launches: usize,
    total: Nanos,
    median: Nanos,
    longest: Nanos,
    flops: Option<f64>,
    flop_rate: Option<f64>,
    of_peak: Option<f64>,
}

#[derive(Serialize)]
struct MatchJson {
    operation: CollectiveKind,
    transfer: Nanos,
    spread: Nanos,
    last_to_arrive: usize,
    missing: Option<u32>,
    of: Vec<MemberJson>,
}

#[derive(Serialize)]
struct MemberJson {
    rank: usize,
    collective: usize,
}

/// Writes `halflap.analysis/1`.
pub fn write_analysis(analysis: &Analysis, out: &mut impl Write) -> io::Result<()> {
    let (matches, moved, zeros) = (analysis.matches_of(), analysis.moved(), analysis.zeros());
    let rank = |place: usize| RankParts {
        analysis,
        place,
        zero: zeros[place],
        matches: &matches[place],
        moved: &moved[place],
    };
    let file = AnalysisJson {
        format: "halflap.analysis/1",
        halflap: env!("CARGO_PKG_VERSION"),
        advice: analysis_advice(analysis)
            .into_iter()
            .map(|line| AdviceJson { text: line.text, action: line.action })
            .collect(),
        ranks: (0..analysis.ranks.len()).map(|place| of_rank(&rank(place))).collect(),
        matches: analysis.peers.matches.iter().map(of_match).collect(),
        waiting_is_at_least: analysis.peers.incomplete(),
        notes: analysis_notes(analysis),
    };
    serde_json::to_writer(&mut *out, &file)?;
    out.write_all(b"\n")
}

/// A rank, and what the analysis of all says of it.
struct RankParts<'a> {
    analysis: &'a Analysis,
    place: usize,
    /// Where the common time axis begins.
    zero: Moment,
    matches: &'a [Option<usize>],
    moved: &'a [Moved],
}

fn of_rank<'a>(parts: &RankParts<'a>) -> RankJson<'a> {
    let RankParts { analysis, place, zero, matches, moved } = *parts;
    let rank = &analysis.ranks[place];
    // Kernels are referred to by their place in the list that is written.
    let mut places: IdVec<KernelId, usize> = IdVec::filled(0, rank.kernels.len());
    for (place, used) in rank.kernel_uses.iter().enumerate() {
        places[used.kernel] = place;
    }
    let collectives = rank.collectives.iter().zip(matches);
    let waiting = |collective: &ObservedCollective, found: Option<usize>| {
        found.map(|found| collective.time() - analysis.peers.matches[found].transfer)
    };
    let times = &rank.times;
    RankJson {
        trace: &rank.label,
        rank: rank.rank,
        world_size: rank.world_size,
        processor: rank.processor,
        device: rank.device.as_deref(),
        preset: rank.preset().map(|(name, _)| name),
        devices: rank.devices,
        events: rank.events,
        begin: rank.first - zero,
        span: times.span,
        compute: times.compute,
        communication: times.communication,
        memory: times.memory,
        overlapped: times.overlapped,
        exposed: times.exposed,
        exposed_beside_memory: times.exposed_beside_memory,
        idle: times.idle,
        idle_by: idle_json(&rank.idle),
        peers: (analysis.ranks.len() > 1)
            .then(|| of_peers(&analysis.peers.ranks[place], analysis.peers.clocks[place])),
        groups: groups(rank),
        operations: rank.operations.iter().map(|used| of_operation(used, moved)).collect(),
        collectives: collectives
            .zip(&analysis.rates[place])
            .map(|((collective, &found), rate)| CollectiveJson {
                found,
                waiting: waiting(collective, found),
                bus_bandwidth: rate.map(|rate| rate.rate.0),
                of_best: rate.map(|rate| rate.of_best),
                latency_bound: rate.map(|rate| rate.is_latency_bound),
                ..of_collective(rank, collective, &places)
            })
            .collect(),
        kernels: kernels(rank),
    }
}

fn of_peers(peers: &RankPeers, clock_ahead: Option<Nanos>) -> PeersJson {
    PeersJson {
        clock_ahead,
        matched: peers.matched,
        unmatched: peers.unmatched,
        disagree: peers.disagree,
        transfer: peers.transfer_and_waiting().map(|(transfer, _)| transfer),
        waiting: peers.transfer_and_waiting().map(|(_, waiting)| waiting),
        last_to_arrive: peers.last,
    }
}

fn groups(rank: &Rank) -> Vec<GroupJson<'_>> {
    let group = |group: &'_ crate::observe::TraceGroup| {
        (group.name.text(), matches!(group.name, GroupName::Named(_)))
    };
    rank.groups
        .as_slice()
        .iter()
        .map(|of| {
            let (name, named) = group(of);
            GroupJson {
                name,
                named,
                description: &of.description,
                size: of.size(),
                ranks: of.ranks.as_deref(),
            }
        })
        .collect()
}

fn of_operation(used: &OperationUse, moved: &[Moved]) -> OperationJson {
    let own = |moved: &&Moved| (moved.group, moved.kind) == (used.group, used.operation);
    OperationJson {
        group: used.group.index(),
        operation: used.operation,
        launches: used.launches,
        time: used.time,
        hidden: used.hidden,
        exposed: used.exposed,
        bytes: used.bytes,
        bus_bandwidth: mean_bus_rate(moved.iter().filter(own)).map(|rate| rate.0),
    }
}

fn of_collective(
    rank: &Rank,
    collective: &ObservedCollective,
    places: &IdVec<KernelId, usize>,
) -> CollectiveJson {
    CollectiveJson {
        operation: collective.operation,
        group: collective.group.index(),
        kernel: places[collective.kernel],
        stream: rank.lanes[collective.lane].stream,
        bytes: collective.bytes,
        sequence: collective.sequence,
        start: collective.ran.start - rank.first,
        duration: collective.time(),
        hidden: collective.hidden,
        exposed: collective.exposed,
        behind: collective
            .behind
            .iter()
            .map(|&(kernel, time)| BehindJson { kernel: places[kernel], time })
            .collect(),
        stall: collective.stall.map(|stall| StallJson {
            start: stall.when.start - rank.first,
            duration: stall.when.time(),
            after: stall.after.map(|kernel| places[kernel]),
            before: stall.before.map(|kernel| places[kernel]),
        }),
        found: None,
        waiting: None,
        bus_bandwidth: None,
        of_best: None,
        latency_bound: None,
    }
}

fn kernels(rank: &Rank) -> Vec<KernelJson<'_>> {
    let device = rank.preset().map(|(_, device)| device);
    let kernel = |used: &KernelUse| {
        let rate = used.arithmetic.rate(device.as_ref());
        KernelJson {
            name: rank.kernel(used.kernel),
            class: rank.kernels[used.kernel].class,
            launches: used.launches,
            total: used.total,
            median: used.median,
            longest: used.longest,
            flops: rate.map(|_| used.arithmetic.flops.0),
            flop_rate: rate.map(|rate| rate.flops.0),
            of_peak: rate.and_then(|rate| rate.of_peak),
        }
    };
    rank.kernel_uses.iter().map(kernel).collect()
}

fn of_match(found: &Match) -> MatchJson {
    MatchJson {
        operation: found.operation,
        transfer: found.transfer,
        spread: found.spread,
        last_to_arrive: found.last,
        missing: found.missing,
        of: found
            .of
            .iter()
            .map(|member| MemberJson { rank: member.rank, collective: member.collective })
            .collect(),
    }
}

fn idle_json(idle: &Idle) -> IdleJson {
    let Idle { host, synchronisation, launch, waiting, unknown } = *idle;
    IdleJson { host, synchronisation, launch, waiting, unknown }
}
