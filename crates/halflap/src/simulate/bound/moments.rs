//! Which moments a bound looks at: starts of operations along the longest path.

use std::rc::Rc;

use super::Basis;
use super::chain::{MomentChain, ProvedBound, Units};
use super::event::Event;
use super::jobs::{Ends, Jobs};
use super::network::Network;
use crate::graph::{Graph, OpKind};
use crate::ids::{Id, OpId};
use crate::units::{Bytes, Nanos};

/// How many moments are looked at together at first, and at most.
const FIRST: usize = 16;
const MOST: usize = 32;
/// How often moments that do not matter are given up for others beside those that do.
const REFINED: usize = 8;
/// How often prices are changed for the same moments.
const ROUNDS: usize = 30;

/// A program's path, and what is known of it.
pub(super) struct Moments<'a> {
    pub(super) path: Vec<OpId>,
    pub(super) jobs: &'a Jobs,
    pub(super) ends: &'a Ends,
    pub(super) network: &'a Network,
}

impl Moments<'_> {
    /// The best bound that a chain of moments proves, where so much is proved already.
    pub(super) fn prove(&self, proved: Nanos, memory_limit: Bytes) -> Option<(Nanos, Basis)> {
        let limit = memory_limit.0 as f64;
        let units = Units { time: proved.0, bytes: limit.max(1.0) };
        let mut events: Vec<Option<Rc<Event>>> = self.path.iter().map(|_| None).collect();
        let mut chosen = spread(&self.path, self.ends, FIRST);
        if chosen.is_empty() || units.time <= 0.0 {
            return None;
        }
        let mut best: Option<(f64, Basis)> = None;
        for _ in 0..REFINED {
            let ops: Vec<OpId> = chosen.iter().map(|&place| self.path[place]).collect();
            let at = |&place: &usize| {
                let event = || Rc::new(Event::new(self.network, self.path[place], limit));
                Rc::clone(events[place].get_or_insert_with(event))
            };
            let apart = apart(self.jobs, self.ends, &ops);
            let chain = MomentChain::new(
                chosen.iter().map(at).collect(),
                apart,
                &self.network.lanes,
                units,
            );
            let ProvedBound { time, cuts, memory } = chain.prove(ROUNDS);
            let Some((first, last)) = cuts.first().zip(cuts.last()) else { break };
            if best.is_none_or(|(before, _)| time > before) {
                best = Some((time, Basis::Cut { first: ops[*first], last: ops[*last], memory }));
            }
            let kept: Vec<usize> = cuts.iter().map(|&cut| chosen[cut]).collect();
            let next = beside(&kept, self.path.len());
            if next == chosen {
                break;
            }
            chosen = next;
        }
        best.map(|(time, basis)| (Nanos(time), basis))
    }
}

/// Places, and others halfway to those next to them; the first ones, if those are too many.
fn beside(kept: &[usize], len: usize) -> Vec<usize> {
    let mut next = kept.to_vec();
    let before = [0].into_iter().chain(kept.iter().copied());
    let between = before.zip(kept.iter().copied().chain([len.saturating_sub(1)]));
    let halfway = between.map(|(a, b)| a.midpoint(b)).filter(|place| !kept.contains(place));
    next.extend(halfway);
    let close = kept
        .iter()
        .flat_map(|&place| [place.saturating_sub(1), (place + 1).min(len.saturating_sub(1))]);
    next.extend(close);
    let mut seen = Vec::new();
    next.retain(|place| {
        let is_new = !seen.contains(place);
        seen.push(*place);
        is_new
    });
    next.truncate(MOST);
    next.sort_unstable();
    next
}

/// The operations of the compute stream on a longest path.
pub(super) fn path(jobs: &Jobs, graph: &Graph) -> Vec<OpId> {
    let (mut length, mut from) = (vec![0.0; jobs.time.len()], vec![None; jobs.time.len()]);
    for &job in &jobs.sequence {
        let until = |other: usize| length[other] + jobs.time[other];
        let longest =
            jobs.before[job].iter().copied().max_by(|&a, &b| until(a).total_cmp(&until(b)));
        (length[job], from[job]) = (longest.map_or(0.0, until), longest);
    }
    let end = |job: usize| length[job] + jobs.time[job];
    let mut at = jobs.sequence.iter().copied().max_by(|&a, &b| end(a).total_cmp(&end(b)));
    let mut path = Vec::new();
    while let Some(job) = at {
        let is_run =
            |op: OpId| !matches!(graph.kind(op), OpKind::AsyncCollective | OpKind::MultiOutput);
        path.extend((job < graph.len()).then(|| OpId::from_index(job)).filter(|&op| is_run(op)));
        at = from[job];
    }
    path.reverse();
    path
}

/// So many places of a path, at even distances.
fn spread(path: &[OpId], ends: &Ends, count: usize) -> Vec<usize> {
    let Some(last) = path.last() else { return Vec::new() };
    let length = ends.head[last.index()];
    let mut chosen: Vec<usize> = Vec::new();
    for number in 1..=count {
        let goal = length * number as f64 / (count + 1) as f64;
        let next = path.iter().position(|op| ends.head[op.index()] >= goal);
        chosen.extend(next.filter(|place| chosen.last() != Some(place)));
    }
    chosen
}

/// How far apart operations are at least: from the start, from each other, and to the end.
fn apart(jobs: &Jobs, ends: &Ends, chosen: &[OpId]) -> Vec<f64> {
    let Some((first, last)) = chosen.first().zip(chosen.last()) else { return Vec::new() };
    let mut apart = vec![ends.head[first.index()]];
    apart.extend(chosen.windows(2).map(|pair| distance(jobs, pair[0], pair[1])));
    apart.push(jobs.time[last.index()] + ends.tail[last.index()]);
    apart
}

/// The longest path between the starts of two operations.
fn distance(jobs: &Jobs, from: OpId, to: OpId) -> f64 {
    let mut length = vec![f64::NEG_INFINITY; jobs.time.len()];
    length[from.index()] = 0.0;
    for &job in jobs.sequence.iter().skip_while(|&&job| job != from.index()).skip(1) {
        let until = jobs.before[job].iter().map(|&other| length[other] + jobs.time[other]);
        length[job] = until.fold(f64::NEG_INFINITY, f64::max);
        if job == to.index() {
            break;
        }
    }
    length[to.index()].max(0.0)
}
