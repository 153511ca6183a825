//! A rank's GPU over time, small enough to be drawn.
//!
//! A lane is a stream's compute, its copies, or a process group's communication. Where slices of a
//! lane overlap, it gets further lanes. If there are more slices than can be drawn, neighbours in a
//! lane that are short, and a short time apart, become one; how short is doubled until it is
//! enough. Each attempt is one pass over the trace that keeps nothing, so that memory is bounded by
//! what is drawn.

use std::collections::BTreeMap;

use super::busy::{Busy, BusyStretch, Computing};
use super::class::Class;
use super::rank::Rank;
use super::trace::{Moment, Slice, Trace};
use crate::observe::ids::{KernelId, LaneId};
use halflap::ids::GroupId;
use halflap::units::Nanos;

/// How many lanes one stream may take where its slices overlap; what still does not fit is cut.
const WIDEST: usize = 4;

/// How many lanes there may be; further ones share the last.
const LANES: usize = 64;

/// Merged slices are at most this many times as long as the shortest that is drawn.
const GROWN: i64 = 4;

/// A rank over time.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct RankTimeline {
    /// The lanes, which run concurrently.
    pub lanes: Vec<Track>,
    /// What ran, by lane, then by start; in a lane they do not overlap.
    pub slices: Vec<Drawn>,
    /// When communication ran without compute, by start; the longest ones if there are too many.
    pub pauses: Vec<Pause>,
    /// How many were left out.
    pub pauses_left_out: usize,
}

/// A row of the timeline.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Track {
    /// A stream's compute.
    Stream(LaneId),
    /// A stream's copies and fills.
    Copies(LaneId),
    /// A process group's communication.
    Group(GroupId),
}

/// What a slice of the timeline represents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Drawing {
    /// One launch of a kernel, or several after one another.
    Kernel(KernelId),
    /// One collective: its place among the rank's.
    Collective(usize),
    /// Several short ones.
    Several,
}

/// A slice of the timeline.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct Drawn {
    /// The place of its lane.
    pub lane: usize,
    /// When.
    pub when: BusyStretch,
    /// What.
    pub what: Drawing,
    /// What it is charged with of the rank's exposed time.
    pub exposed: Nanos,
}

/// A time without compute while a collective runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Pause {
    /// When.
    pub when: BusyStretch,
    /// The collective that is charged with it: its place among the rank's.
    pub collective: usize,
    /// The kernel with which compute went on, if it did.
    pub before: Option<KernelId>,
}

impl RankTimeline {
    /// A trace, analysed as `rank`, with at most `most` slices and as many stalls.
    pub fn of(trace: &Trace, rank: &Rank, most: usize) -> RankTimeline {
        let mut shortest = 0;
        let mut count;
        let span = rank.times.span.0 as i64;
        loop {
            count = 0;
            walk(trace, rank, shortest, |_| count += 1);
            // Once a lane is a single slice, nothing is left to merge.
            if count <= most || shortest > span {
                break;
            }
            shortest = (2 * shortest).max(span / most.max(1) as i64).max(1);
        }
        let mut slices = Vec::with_capacity(count);
        let lanes = walk(trace, rank, shortest, |drawn| slices.push(drawn));
        let order = lane_order(&lanes);
        let place: BTreeMap<usize, usize> =
            order.iter().enumerate().map(|(place, &lane)| (lane, place)).collect();
        for drawn in &mut slices {
            drawn.lane = place[&drawn.lane];
        }
        slices.sort_by_key(|drawn| (drawn.lane, drawn.when.start));
        let (pauses, pauses_left_out) = pauses(trace, rank, most);
        RankTimeline {
            lanes: order.iter().map(|&lane| lanes[lane]).collect(),
            slices,
            pauses,
            pauses_left_out,
        }
    }
}

/// Compute first, then copies, then groups.
fn lane_order(lanes: &[Track]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..lanes.len()).collect();
    order.sort_by_key(|&lane| (lanes[lane], lane));
    order
}

/// A lane while it is filled: until when, and the slice that may still grow.
struct OpenLane {
    end: Moment,
    drawn: Option<Drawn>,
}

/// Lays out all slices; those shorter than `shortest` nanoseconds and as close to each other are
/// merged. Returns the lanes.
fn walk(trace: &Trace, rank: &Rank, shortest: i64, mut emit: impl FnMut(Drawn)) -> Vec<Track> {
    let mut lanes: Vec<Track> = Vec::new();
    let mut open: Vec<OpenLane> = Vec::new();
    let mut of_track: BTreeMap<Track, Vec<usize>> = BTreeMap::new();
    let mut collective = 0;
    for slice in &trace.slices {
        let (track, what, exposed) = match trace.class(slice) {
            Class::Communication => {
                collective += 1;
                let of = &rank.collectives[collective - 1];
                (Track::Group(of.group), Drawing::Collective(collective - 1), of.exposed)
            }
            Class::Compute => {
                (Track::Stream(slice.lane), Drawing::Kernel(slice.kernel), Nanos::ZERO)
            }
            Class::Memory => {
                (Track::Copies(slice.lane), Drawing::Kernel(slice.kernel), Nanos::ZERO)
            }
        };
        let places = of_track.entry(track).or_default();
        let place = match lane_for(places, &open, slice) {
            Some(place) => place,
            None => {
                // If there is no room for another lane, it goes to the last one.
                if lanes.len() < LANES {
                    lanes.push(track);
                    open.push(OpenLane { end: Moment(i64::MIN), drawn: None });
                }
                places.push(lanes.len() - 1);
                lanes.len() - 1
            }
        };
        let when = BusyStretch { start: slice.start.max(open[place].end), end: slice.end };
        if when.start < when.end {
            open[place].add(Drawn { lane: place, when, what, exposed }, shortest, &mut emit);
        }
    }
    open.into_iter().filter_map(|lane| lane.drawn).for_each(emit);
    lanes
}

/// The lane of a track in which a slice has room or, once there are enough, the one that is free
/// first.
fn lane_for(places: &[usize], open: &[OpenLane], slice: &Slice) -> Option<usize> {
    let free = places.iter().copied().find(|&place| open[place].end <= slice.start);
    let full = places.len() >= WIDEST || open.len() >= LANES;
    free.or_else(|| places.iter().copied().filter(|_| full).min_by_key(|&place| open[place].end))
}

impl OpenLane {
    fn add(&mut self, next: Drawn, shortest: i64, emit: &mut impl FnMut(Drawn)) {
        self.end = next.when.end;
        let short = |stretch: &BusyStretch| stretch.end.0 - stretch.start.0 < shortest;
        if let Some(last) = &mut self.drawn {
            let near = next.when.start.0 - last.when.end.0 < shortest;
            // Merged slices are bounded, too, or a busy lane would be one slice.
            let grown = next.when.end.0 - last.when.start.0 <= GROWN.saturating_mul(shortest);
            if near
                && grown
                && short(&next.when)
                && (last.what == Drawing::Several || short(&last.when))
            {
                last.what = if last.what == next.what { next.what } else { Drawing::Several };
                last.when.end = next.when.end;
                last.exposed += next.exposed;
                return;
            }
        }
        if let Some(last) = self.drawn.replace(next) {
            emit(last);
        }
    }
}

/// Every stall of compute while a collective runs, with the collective that is charged with it; and
/// how many short ones were left out.
fn pauses(trace: &Trace, rank: &Rank, most: usize) -> (Vec<Pause>, usize) {
    let computing =
        Computing::of(trace.slices.iter().filter(|slice| trace.class(slice) == Class::Compute));
    let communication = Busy::union(rank.collectives.iter().map(|collective| collective.ran));
    let exposed = communication.without(&computing.busy);
    let mut charged_until = Moment(i64::MIN);
    let mut pauses = Vec::new();
    for (place, collective) in rank.collectives.iter().enumerate() {
        let own =
            BusyStretch { start: collective.ran.start.max(charged_until), end: collective.ran.end };
        charged_until = charged_until.max(own.end);
        let pause = |when: BusyStretch| Pause {
            when,
            collective: place,
            before: computing.around(when.start).1,
        };
        pauses.extend(exposed.parts(own).map(pause));
    }
    let left_out = pauses.len().saturating_sub(most);
    if left_out > 0 {
        pauses.sort_by_key(|pause| std::cmp::Reverse(pause.when.end.0 - pause.when.start.0));
        pauses.truncate(most);
        pauses.sort_by_key(|pause| pause.when.start);
    }
    (pauses, left_out)
}
