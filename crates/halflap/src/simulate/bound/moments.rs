//! The choice of moments for a bound: starts of operations along the longest path.

use std::rc::Rc;

use super::chain::{MomentChain, ProvedBound, Units, Weights};
use super::closed::Node;
use super::event::Event;
use super::jobs::{Ends, Jobs};
use super::network::Network;
use super::{Basis, Ready};
use crate::graph::{Graph, OpKind};
use crate::ids::{Id, OpId};
use crate::units::{Bytes, Nanos};

/// How many moments are used together initially, and at most.
const FIRST: usize = 16;
const MOST: usize = 32;
/// How often moments that do not matter are replaced by others next to those that do.
const REFINED: usize = 8;
/// How often prices are updated for the same moments.
const ROUNDS: usize = 30;
/// The same for moments that were used before.
const AGAIN: usize = 12;

/// A program's longest path, and what is known about it.
pub(super) struct Moments<'a> {
    path: &'a [OpId],
    jobs: &'a Jobs,
    ends: &'a Ends,
    network: &'a Network,
    limit: f64,
    units: Units,
    /// What may have come before each place of the path, where it has been computed.
    events: Vec<Option<Rc<Event>>>,
}

/// An assumption of the current case.
#[derive(Clone, Copy, Debug)]
pub(super) struct Decision {
    /// A place of the path.
    pub(super) place: usize,
    pub(super) node: Node,
    /// Whether the node has come before it.
    pub(super) is_before: bool,
}

/// What moments prove.
#[derive(Clone, Debug)]
pub(super) struct Proof {
    pub(super) time: f64,
    /// Whether the memory limit contributes.
    pub(super) memory: bool,
    /// The places of the path that were used, and those that matter, ascending.
    pub(super) looked_at: Vec<usize>,
    pub(super) places: Vec<usize>,
    /// An undecided node to split into cases.
    pub(super) undecided: Option<(usize, Node)>,
    pub(super) weights: Weights,
}

impl Proof {
    /// Whether it proves more than another one, or as much with something left to decide.
    fn leads_on_from(&self, other: &Proof) -> bool {
        let is_open = self.undecided.is_some() && other.undecided.is_none();
        self.time > other.time || is_open && self.time >= other.time * (1.0 - 1e-9)
    }
}

impl<'a> Moments<'a> {
    /// Where this much is already proved.
    pub(super) fn new(ready: &'a Ready, proved: Nanos, memory_limit: Bytes) -> Moments<'a> {
        let limit = memory_limit.0 as f64;
        let Ready { path, jobs, ends, network } = ready;
        let units = Units { time: proved.0, bytes: limit.max(1.0) };
        Moments { path, jobs, ends, network, limit, units, events: vec![None; path.len()] }
    }

    /// The first and the last of some places of the path.
    pub(super) fn basis(&self, proof: &Proof) -> Option<Basis> {
        let (first, last) = proof.places.first().zip(proof.places.last())?;
        Some(Basis::Cut { first: self.path[*first], last: self.path[*last] })
    }

    /// The best bound that a chain of moments proves.
    pub(super) fn prove(&mut self) -> Option<Proof> {
        if self.units.time <= 0.0 {
            return None;
        }
        let chosen = spread(self.path, self.ends, FIRST);
        self.refined(chosen, &[], REFINED)
    }

    /// The best bound from some places, or from others that this many attempts find from there.
    pub(super) fn refined(
        &mut self,
        mut chosen: Vec<usize>,
        decisions: &[Decision],
        attempts: usize,
    ) -> Option<Proof> {
        let mut best: Option<Proof> = None;
        for _ in 0..attempts {
            if chosen.is_empty() {
                break;
            }
            let proof = self.at(&chosen, decisions, None);
            let next = beside(&proof.places, self.path.len());
            if best.as_ref().is_none_or(|best| proof.leads_on_from(best)) {
                best = Some(proof);
            }
            if next == chosen {
                break;
            }
            chosen = next;
        }
        best
    }

    /// What these places prove, starting from their best weights.
    pub(super) fn at(
        &mut self,
        places: &[usize],
        decisions: &[Decision],
        from: Option<&Weights>,
    ) -> Proof {
        let events = places.iter().map(|&place| self.event(place, decisions)).collect();
        let ops: Vec<OpId> = places.iter().map(|&place| self.path[place]).collect();
        let apart = apart(self.jobs, self.ends, &ops);
        let chain = MomentChain::new(events, apart, &self.network.lanes, self.units);
        let rounds = if from.is_some() { AGAIN } else { ROUNDS };
        let ProvedBound { time, cuts, memory, undecided, weights } = chain.prove(rounds, from);
        Proof {
            time,
            memory,
            looked_at: places.to_vec(),
            places: cuts.iter().map(|&cut| places[cut]).collect(),
            undecided: undecided.map(|(cut, node)| (places[cut], node)),
            weights,
        }
    }

    fn event(&mut self, place: usize, decisions: &[Decision]) -> Rc<Event> {
        let new = || Rc::new(Event::new(self.network, self.path[place], self.limit));
        let mut event = Rc::clone(self.events[place].get_or_insert_with(new));
        for decision in decisions {
            // What has come before a moment has come before all later ones.
            let is_so = match decision.is_before {
                true => place >= decision.place,
                false => place <= decision.place,
            };
            if is_so && let Some(narrowed) = event.decided(decision.node, decision.is_before) {
                event = Rc::new(narrowed);
            }
        }
        event
    }
}

/// Places, and those halfway to their neighbours; only the first ones if there are too many.
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

/// This many places of a path, evenly spaced.
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

/// The minimum distances of operations: from the start, from each other, and to the end.
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
