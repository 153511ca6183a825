//! The same collective on several ranks: how long the transfer took, and which ranks waited.
//!
//! A rank is in a collective from when it arrives until the data are there. The last to arrive does
//! not wait, so the shortest time among the ranks is the transfer, and what the others take longer
//! is waiting. Both are differences on one rank's clock: ranks' clocks need not agree.
//!
//! To find which launches are the same collective, only launches of the same process group are
//! compared. Where the profiler numbers them (`Seq`) the numbers decide. Where it does not, their
//! ends do: a collective ends on all ranks at nearly the same time, once the clocks are aligned
//! (`clocks`). Counting from the first or the last would pair wrongly as soon as one trace has one
//! launch more. Only gloo's are paired by sequence, if it is the same on all ranks. Launches
//! between two pairs are paired in sequence if both sides have equally many. In any case operation
//! and size must agree, and launches that do not overlap in time are not paired: uncertain ones are
//! reported as unmatched.

use std::collections::BTreeMap;

use super::clocks::align_clocks;
use super::collectives::ObservedCollective;
use super::rank::Rank;
use super::trace::{GroupName, Processor, TraceGroup};
use halflap::collective::CollectiveKind;
use halflap::ids::GroupId;
use halflap::units::{Bytes, Nanos};

/// What several ranks' traces show together.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Peers {
    /// How far each rank's clock is ahead of the first's; `None` where nothing connects them.
    pub clocks: Vec<Option<Nanos>>,
    /// The collectives that were found on two ranks or more, by end.
    pub matches: Vec<Match>,
    /// For each rank, what became of its collectives.
    pub ranks: Vec<RankPeers>,
}

/// One rank among the others.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
#[non_exhaustive]
pub struct RankPeers {
    /// How many of its collectives were found on other ranks.
    pub matched: usize,
    /// How many were not.
    pub unmatched: usize,
    /// How many have a number that other ranks use for another collective.
    pub disagree: usize,
    /// How long its matched collectives would have taken without waiting.
    pub transfer: Nanos,
    /// How long it waited in them for others.
    pub waiting: Nanos,
    /// In how many it was the last to arrive.
    pub last: usize,
}

/// One collective on several ranks.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Match {
    /// What it does.
    pub operation: CollectiveKind,
    /// Where it stands on each: the rank's place among the traces, and its place there.
    pub of: Vec<PeerLaunch>,
    /// The shortest time among them.
    pub transfer: Nanos,
    /// How much longer the longest is.
    pub spread: Nanos,
    /// Who arrived last: the place among the traces.
    pub last: usize,
    /// How many ranks of the group have no trace here; `None` if its size is not known.
    pub missing: Option<u32>,
}

/// A launch of a collective on one rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct PeerLaunch {
    /// The rank's place among the traces.
    pub rank: usize,
    /// The collective's place among the rank's.
    pub collective: usize,
}

impl RankPeers {
    /// How long its matched collectives would have taken, and how long it waited in them; not known
    /// of a rank without any.
    pub fn transfer_and_waiting(&self) -> Option<(Nanos, Nanos)> {
        (self.matched > 0).then_some((self.transfer, self.waiting))
    }
}

impl Peers {
    /// Finds the same collectives on several ranks.
    pub fn of(ranks: &[Rank]) -> Peers {
        let groups = SharedGroups::of(ranks);
        let clocks = align_clocks(ranks, &groups);
        let mut peers =
            Peers { clocks, matches: Vec::new(), ranks: vec![RankPeers::default(); ranks.len()] };
        for launches in &groups.launches {
            let known: Vec<&Vec<PeerLaunch>> =
                launches.iter().filter(|list| peers.clocks[list[0].rank].is_some()).collect();
            let rows = match launches.iter().flatten().all(|member| numbered(ranks, member)) {
                true => by_number(ranks, launches, &mut peers.ranks),
                false => by_sequence(ranks, &known, &peers.clocks)
                    .unwrap_or_else(|| by_end(ranks, &known, &peers.clocks)),
            };
            peers.matches.extend(
                rows.into_iter().filter(|row| row.len() > 1).map(|row| matched(ranks, row)),
            );
        }
        peers.matches.sort_by_key(|found| {
            found.of.first().map(|member| (of(ranks, member).ran.end, member.rank))
        });
        peers.sum_up(ranks);
        peers
    }

    /// Whether ranks without a trace took part, so that waiting is a lower limit.
    pub fn incomplete(&self) -> bool {
        self.matches.iter().any(|found| found.missing != Some(0))
    }

    fn sum_up(&mut self, ranks: &[Rank]) {
        for found in &self.matches {
            for member in &found.of {
                let rank = &mut self.ranks[member.rank];
                rank.matched += 1;
                rank.transfer += found.transfer;
                rank.waiting += of(ranks, member).time() - found.transfer;
                rank.last += usize::from(found.last == member.rank);
            }
        }
        for (sums, rank) in self.ranks.iter_mut().zip(ranks) {
            sums.unmatched = rank.collectives.len() - sums.matched;
        }
    }
}

/// The launch that a member represents.
pub(super) fn of<'a>(ranks: &'a [Rank], member: &PeerLaunch) -> &'a ObservedCollective {
    &ranks[member.rank].collectives[member.collective]
}

fn numbered(ranks: &[Rank], member: &PeerLaunch) -> bool {
    of(ranks, member).sequence.is_some()
}

/// Whether two launches can be the same collective.
pub(super) fn alike(a: &ObservedCollective, b: &ObservedCollective) -> bool {
    let agree = |a: Option<i64>, b: Option<i64>| a.is_none() || b.is_none() || a == b;
    let size = |bytes: Option<Bytes>| bytes.map(|bytes| bytes.0);
    a.operation == b.operation
        && agree(a.sequence, b.sequence)
        && (a.operation.uneven() || agree(size(a.bytes), size(b.bytes)))
}

/// The identity of a process group on all ranks.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct GroupKey {
    name: GroupName,
    ranks: Option<Vec<u32>>,
    size: Option<u32>,
}

impl GroupKey {
    fn of(group: &TraceGroup) -> GroupKey {
        GroupKey { name: group.name.clone(), ranks: group.ranks.clone(), size: group.size }
    }
}

/// The launches of every process group that more than one rank has, each rank's by end. Sends and
/// receives are excluded: they have two ends, not one for each rank. A kernel that does both is how
/// NCCL exchanges data among all ranks.
pub(super) struct SharedGroups {
    pub(super) launches: Vec<Vec<Vec<PeerLaunch>>>,
}

impl SharedGroups {
    fn of(ranks: &[Rank]) -> SharedGroups {
        let mut numbers: BTreeMap<GroupKey, usize> = BTreeMap::new();
        let mut launches: Vec<Vec<Vec<PeerLaunch>>> = Vec::new();
        for (place, rank) in ranks.iter().enumerate() {
            // The participants must be known, or launches of two groups might be merged into one
            // collective.
            let known =
                rank.groups.iter().filter(|(_, group)| !matches!(group.name, GroupName::OneOf(_)));
            for (id, group) in known {
                let members = members(rank, place, id);
                if members.is_empty() {
                    continue;
                }
                let number = *numbers.entry(GroupKey::of(group)).or_insert(launches.len());
                if number == launches.len() {
                    launches.push(Vec::new());
                }
                merge(&mut launches[number], members, rank);
            }
        }
        launches.retain(|lists| lists.len() > 1);
        SharedGroups { launches }
    }
}

fn members(rank: &Rank, place: usize, group: GroupId) -> Vec<PeerLaunch> {
    let of_group = |(_, launch): &(usize, &ObservedCollective)| {
        launch.group == group && !launch.operation.point_to_point()
    };
    let launches = rank.collectives.iter().enumerate().filter(of_group);
    launches.map(|(collective, _)| PeerLaunch { rank: place, collective }).collect()
}

/// Adds a rank's launches; one rank may have a group under several descriptions.
fn merge(lists: &mut Vec<Vec<PeerLaunch>>, mut members: Vec<PeerLaunch>, rank: &Rank) {
    match lists.last_mut().filter(|list| list[0].rank == members[0].rank) {
        Some(list) => list.append(&mut members),
        None => lists.push(members),
    }
    if let Some(list) = lists.last_mut() {
        list.sort_by_key(|member| (rank.collectives[member.collective].ran.end, member.collective));
    }
}

/// Pairs launches that have the same number in their group. Those that disagree with the first rank
/// are not used.
fn by_number(
    ranks: &[Rank],
    lists: &[Vec<PeerLaunch>],
    sums: &mut [RankPeers],
) -> Vec<Vec<PeerLaunch>> {
    let mut rows: BTreeMap<(i64, usize), Vec<PeerLaunch>> = BTreeMap::new();
    for list in lists {
        // Collectives that were issued together share a number.
        let mut seen: BTreeMap<i64, usize> = BTreeMap::new();
        for member in list {
            let number = of(ranks, member).sequence.unwrap_or(0);
            let again = seen.entry(number).or_insert(0);
            let row = rows.entry((number, *again)).or_default();
            *again += 1;
            match row.first().is_none_or(|first| alike(of(ranks, first), of(ranks, member))) {
                true => row.push(*member),
                false => sums[member.rank].disagree += 1,
            }
        }
    }
    rows.into_values().collect()
}

/// Pairs gloo's launches by start: all ranks start the collectives of a group in the same sequence,
/// and gloo's threads take them up in that sequence. If several run at once, or processes wait for
/// a core, they may end in another. `None` unless all ranks have the same sequence and each
/// collective overlapped on all of them.
fn by_sequence(
    ranks: &[Rank],
    lists: &[&Vec<PeerLaunch>],
    clocks: &[Option<Nanos>],
) -> Option<Vec<Vec<PeerLaunch>>> {
    /// The tolerance of clocks that are aligned by ends.
    const OFF: i64 = 1_000_000;
    let first = lists.first()?;
    let of_cpu = |list: &&Vec<PeerLaunch>| ranks[list[0].rank].processor == Processor::Cpu;
    if !lists.iter().all(|list| of_cpu(list) && list.len() == first.len()) {
        return None;
    }
    let mut rows: Vec<Vec<PeerLaunch>> = vec![Vec::new(); first.len()];
    for list in lists {
        // Collectives are listed by start.
        let mut begun = (*list).clone();
        begun.sort_by_key(|member| member.collective);
        rows.iter_mut().zip(begun).for_each(|(row, member)| row.push(member));
    }
    let one = |row: &Vec<PeerLaunch>| {
        let timed = |member: &PeerLaunch| TimedMember::of(ranks, member, clocks);
        let latest = row.iter().map(|member| timed(member).start).max();
        let soonest = row.iter().map(|member| timed(member).end).min();
        let at_once = latest.zip(soonest).is_some_and(|(latest, soonest)| latest < soonest + OFF);
        at_once && row.iter().all(|member| alike(of(ranks, &row[0]), of(ranks, member)))
    };
    rows.iter().all(one).then_some(rows)
}

/// Pairs launches that end at the same time on aligned clocks, one rank after the other.
fn by_end(
    ranks: &[Rank],
    lists: &[&Vec<PeerLaunch>],
    clocks: &[Option<Nanos>],
) -> Vec<Vec<PeerLaunch>> {
    let mut rows: Vec<Vec<PeerLaunch>> = Vec::new();
    for list in lists {
        let held: Vec<TimedMember> =
            rows.iter().map(|row| TimedMember::of(ranks, &row[0], clocks)).collect();
        let new: Vec<TimedMember> =
            list.iter().map(|member| TimedMember::of(ranks, member, clocks)).collect();
        let mut pairs = pair_ends(ranks, &held, &new, 0);
        fill(ranks, &held, &new, &mut pairs);
        let mut partner: Vec<Option<usize>> = vec![None; new.len()];
        for (row, place) in pairs {
            partner[place] = Some(row);
        }
        for (member, row) in list.iter().zip(partner) {
            match row {
                Some(row) => rows[row].push(*member),
                None => rows.push(vec![*member]),
            }
        }
        rows.sort_by_key(|row| TimedMember::of(ranks, &row[0], clocks).end);
    }
    rows
}

/// A launch on the first rank's clock.
#[derive(Clone, Copy)]
pub(super) struct TimedMember {
    pub(super) member: PeerLaunch,
    pub(super) start: i64,
    pub(super) end: i64,
}

impl TimedMember {
    pub(super) fn of(ranks: &[Rank], member: &PeerLaunch, clocks: &[Option<Nanos>]) -> TimedMember {
        let ahead = clocks[member.rank].map_or(0, |clock| clock.0 as i64);
        let ran = of(ranks, member).ran;
        TimedMember { member: *member, start: ran.start.0 - ahead, end: ran.end.0 - ahead }
    }

    /// How far apart two ends may be: the jitter of a transfer's last packets.
    pub(super) fn tolerance(&self, other: &TimedMember) -> i64 {
        const LEAST: i64 = 100_000;
        const MOST: i64 = 1_000_000;
        let shorter = (self.end - self.start).min(other.end - other.start);
        (LEAST + shorter / 50).min(MOST)
    }
}

/// Pairs of launches whose ends, `ahead` apart, are each other's nearest; both lists ascend by end.
pub(super) fn pair_ends(
    ranks: &[Rank],
    held: &[TimedMember],
    new: &[TimedMember],
    ahead: i64,
) -> Vec<(usize, usize)> {
    let apart = |a: usize, b: usize| match (held.get(a), new.get(b)) {
        (Some(a), Some(b)) => (b.end - a.end - ahead).abs(),
        _ => i64::MAX,
    };
    let (mut a, mut b, mut pairs) = (0, 0, Vec::new());
    while a < held.len() && b < new.len() {
        let distance = apart(a, b);
        let fits = distance <= held[a].tolerance(&new[b])
            && alike(of(ranks, &held[a].member), of(ranks, &new[b].member));
        if fits && distance <= apart(a, b + 1) && distance <= apart(a + 1, b) {
            pairs.push((a, b));
            (a, b) = (a + 1, b + 1);
        } else if new[b].end - ahead > held[a].end {
            a += 1;
        } else {
            b += 1;
        }
    }
    pairs
}

/// Pairs the launches between two pairs, before the first or after the last, if both sides have
/// equally many, they are alike, and they overlap in time: no collective ends anywhere before it
/// has begun on all ranks.
fn fill(
    ranks: &[Rank],
    held: &[TimedMember],
    new: &[TimedMember],
    pairs: &mut Vec<(usize, usize)>,
) {
    if pairs.is_empty() {
        return;
    }
    let (mut a, mut b, mut more) = (0, 0, Vec::new());
    for &(next_a, next_b) in pairs.iter().chain([&(held.len(), new.len())]) {
        let between = (a..next_a).zip(b..next_b);
        let fits = |(a, b): (usize, usize)| {
            let (a, b) = (&held[a], &new[b]);
            a.start < b.end && b.start < a.end && alike(of(ranks, &a.member), of(ranks, &b.member))
        };
        if next_a - a == next_b - b && between.clone().all(fits) {
            more.extend(between);
        }
        (a, b) = (next_a + 1, next_b + 1);
    }
    pairs.append(&mut more);
}

fn matched(ranks: &[Rank], row: Vec<PeerLaunch>) -> Match {
    let time = |member: &PeerLaunch| of(ranks, member).time();
    let shortest = row.iter().min_by(|a, b| time(a).0.total_cmp(&time(b).0)).unwrap_or(&row[0]);
    let transfer = time(shortest);
    let longest = row.iter().map(time).fold(transfer, Nanos::max);
    let first = of(ranks, &row[0]);
    let size = ranks[row[0].rank].groups[first.group].size();
    Match {
        operation: first.operation,
        transfer,
        spread: longest - transfer,
        last: shortest.rank,
        missing: size.map(|size| size.saturating_sub(row.len() as u32)),
        of: row,
    }
}
