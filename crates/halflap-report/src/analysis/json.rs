//! `halflap.analysis/1`, for machines.

use std::io::{self, Write};

use serde::Serialize;

use super::{analysis_advice, analysis_notes};
use crate::observe::ids::KernelId;
use crate::observe::{
    Analysis, Class, GroupName, Idle, Match, Moment, ObservedCollective, OperationUse, Processor,
    Rank, RankPeers,
};
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
}

#[derive(Serialize)]
struct CollectiveJson {
    operation: CollectiveKind,
    group: usize,
    kernel: usize,
    stream: Option<i64>,
    bytes: Option<Bytes>,
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
    let (matches, zeros) = (analysis.matches_of(), analysis.zeros());
    let ranks = analysis.ranks.iter().enumerate();
    let file = AnalysisJson {
        format: "halflap.analysis/1",
        halflap: env!("CARGO_PKG_VERSION"),
        advice: analysis_advice(analysis)
            .into_iter()
            .map(|line| AdviceJson { text: line.text, action: line.action })
            .collect(),
        ranks: ranks
            .map(|(place, _)| of_rank(analysis, place, zeros[place], &matches[place]))
            .collect(),
        matches: analysis.peers.matches.iter().map(of_match).collect(),
        waiting_is_at_least: analysis.peers.incomplete(),
        notes: analysis_notes(analysis),
    };
    serde_json::to_writer(&mut *out, &file)?;
    out.write_all(b"\n")
}

fn of_rank<'a>(
    analysis: &'a Analysis,
    place: usize,
    zero: Moment,
    matches: &[Option<usize>],
) -> RankJson<'a> {
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
        operations: rank.operations.iter().map(of_operation).collect(),
        collectives: collectives
            .map(|(collective, &found)| CollectiveJson {
                found,
                waiting: waiting(collective, found),
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
    let group = |group: &'_ crate::observe::Group| {
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

fn of_operation(used: &OperationUse) -> OperationJson {
    OperationJson {
        group: used.group.index(),
        operation: used.operation,
        launches: used.launches,
        time: used.time,
        hidden: used.hidden,
        exposed: used.exposed,
        bytes: used.bytes,
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
    }
}

fn kernels(rank: &Rank) -> Vec<KernelJson<'_>> {
    rank.kernel_uses
        .iter()
        .map(|used| KernelJson {
            name: rank.kernel(used.kernel),
            class: rank.kernels[used.kernel].class,
            launches: used.launches,
            total: used.total,
            median: used.median,
            longest: used.longest,
        })
        .collect()
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
