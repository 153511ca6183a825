//! The offsets between ranks' clocks, from collectives that they share.
//!
//! For every pair of ranks a number of offsets is tried: none at all (ranks of one machine share a
//! clock) and, for launches paired in sequence with the one list moved against the other by up to
//! [`SHIFTS`], the median of how far their ends are apart. The best is that for which the ends of
//! the most collectives fall together, the closer the more they count: an offset of a whole
//! training step pairs many, but none closely.

use super::peers::{PeerLaunch, SharedGroups, TimedMember, of, pair_ends};
use super::rank::Rank;
use halflap::units::Nanos;

/// How many extra launches a trace may have at its beginning or end and still be aligned well.
const SHIFTS: isize = 64;

/// The number of launches of a group to compare.
const LOOKED_AT: usize = 8192;

/// How many of them determine an offset.
const SAMPLED: usize = 256;

/// Ends this close count half.
const CLOSE: f64 = 20_000.0;

/// How far each rank's clock is ahead of the first rank's; `None` if no collective connects them.
pub(super) fn align_clocks(ranks: &[Rank], groups: &SharedGroups) -> Vec<Option<Nanos>> {
    let mut clocks = vec![None; ranks.len()];
    if let Some(first) = clocks.first_mut() {
        *first = Some(Nanos::ZERO);
    }
    // Each round connects all ranks that share a group with a connected rank.
    loop {
        let mut found = false;
        for rank in 0..ranks.len() {
            let open = clocks[rank].is_none();
            let nearest = (0..ranks.len()).filter(|&other| open && clocks[other].is_some());
            let nearest = nearest
                .max_by_key(|&other| (shared(groups, other, rank), std::cmp::Reverse(other)));
            let offset = nearest
                .and_then(|other| Some((clocks[other]?, offset(ranks, groups, other, rank)?)));
            if let Some((base, offset)) = offset {
                clocks[rank] = Some(base + Nanos(offset as f64));
                found = true;
            }
        }
        if !found {
            return clocks;
        }
    }
}

/// How many launches two ranks may have in common.
fn shared(groups: &SharedGroups, a: usize, b: usize) -> usize {
    lists(groups, a, b).map(|(a, b)| a.len().min(b.len())).sum()
}

fn lists(
    groups: &SharedGroups,
    a: usize,
    b: usize,
) -> impl Iterator<Item = (&[PeerLaunch], &[PeerLaunch])> {
    groups.launches.iter().filter_map(move |lists| {
        let of = |rank: usize| lists.iter().find(|list| list[0].rank == rank);
        let cut = |list: &'_ [PeerLaunch]| list.len().min(LOOKED_AT);
        let (a, b) = (of(a)?, of(b)?);
        Some((&a[..cut(a)], &b[..cut(b)]))
    })
}

/// The offset between two clocks that makes most ends coincide.
fn offset(ranks: &[Rank], groups: &SharedGroups, first: usize, second: usize) -> Option<i64> {
    let none: Vec<Option<Nanos>> = vec![None; ranks.len()];
    let timed = |list: &[PeerLaunch]| -> Vec<TimedMember> {
        list.iter().map(|member| TimedMember::of(ranks, member, &none)).collect()
    };
    let lists = lists(groups, first, second).map(|(a, b)| (timed(a), timed(b)));
    let lists: Vec<(Vec<TimedMember>, Vec<TimedMember>)> = lists.collect();
    let mut tried: Vec<i64> = vec![0];
    for (a, b) in &lists {
        match numbered(ranks, a, b) {
            Some(offset) => tried.push(offset),
            None => tried.extend(shifted(a, b)),
        }
    }
    tried.sort_unstable_by_key(|offset| (offset.abs(), *offset));
    tried.dedup();
    let mut best: Option<(f64, i64)> = None;
    for &offset in &tried {
        let score: f64 = lists.iter().map(|(a, b)| score(ranks, a, b, offset)).sum();
        // Ties go to the offset nearest to zero: they are sorted by that.
        if score > best.map_or(0.0, |(score, _)| score) {
            best = Some((score, offset));
        }
    }
    best.map(|(_, offset)| offset)
}

/// The median of the differences between launches of the same number, if there are any.
fn numbered(ranks: &[Rank], a: &[TimedMember], b: &[TimedMember]) -> Option<i64> {
    let number = |timed: &TimedMember| of(ranks, &timed.member).sequence;
    let mut by_number: Vec<(i64, i64)> =
        a.iter().filter_map(|timed| Some((number(timed)?, timed.end))).collect();
    by_number.sort_unstable();
    let difference = |timed: &TimedMember| {
        let wanted = number(timed)?;
        let place = by_number.binary_search_by_key(&wanted, |(number, _)| *number).ok()?;
        Some(timed.end - by_number[place].1)
    };
    median(b.iter().filter_map(difference).collect())
}

/// Candidate offsets: one for each shift of one list against the other, counted from the start and
/// from the end.
fn shifted(a: &[TimedMember], b: &[TimedMember]) -> Vec<i64> {
    let longer = b.len() as isize - a.len() as isize;
    let shifts = (-SHIFTS..=SHIFTS).chain(longer - SHIFTS..=longer + SHIFTS);
    let of_shift = |shift: isize| {
        let pairs = a.iter().enumerate().filter_map(|(place, timed)| {
            let other = b.get(usize::try_from(place as isize + shift).ok()?)?;
            Some(other.end - timed.end)
        });
        median(pairs.take(SAMPLED).collect())
    };
    shifts.filter_map(of_shift).collect()
}

fn median(mut values: Vec<i64>) -> Option<i64> {
    let middle = values.len().checked_sub(1)? / 2;
    Some(*values.select_nth_unstable(middle).1)
}

/// How many ends coincide, weighted by how close they are.
fn score(ranks: &[Rank], a: &[TimedMember], b: &[TimedMember], offset: i64) -> f64 {
    let weight = |(left, right): (usize, usize)| {
        let apart = (b[right].end - a[left].end - offset).abs() as f64;
        CLOSE / (CLOSE + apart)
    };
    pair_ends(ranks, a, b, offset).into_iter().map(weight).sum()
}
