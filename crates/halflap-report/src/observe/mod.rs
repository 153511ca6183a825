//! What actually ran: traces of the profiler, and what they show of communication and compute.
//!
//! [`read_trace`] reads one rank's trace as a stream and keeps the work of its GPU or, without one,
//! of its CPU. [`Rank`] says how that rank's time was spent, what each collective exposed and what
//! hid it, [`Peers`] which launches on several ranks are one collective, so that the transfer can
//! be separated from waiting. [`Analysis`] is all of it; [`RankTimeline`] is a rank to be drawn.
//! docs/analyze.md defines every figure.
//!
//! Nothing here opens a file or knows about graphs. Everything is a pure function of the traces:
//! ties are broken by time, then by place in the file.

mod arithmetic;
mod build;
mod busy;
mod class;
mod clocks;
mod collectives;
mod decimal;
mod error;
mod event;
mod groups;
mod host;
mod idle;
pub mod ids;
mod kineto;
mod names;
mod peers;
mod rank;
mod scan;
mod timeline;
mod times;
mod trace;
mod window;
mod work;

pub use arithmetic::Arithmetic;
pub use busy::{Busy, BusyStretch};
pub use class::Class;
pub use collectives::{ObservedCollective, Stall};
pub use error::{TraceError, TracePlace};
pub use idle::Idle;
pub use kineto::read_trace;
pub use peers::{Match, PeerLaunch, Peers, RankPeers};
pub use rank::{KernelUse, OperationUse, Rank, RankSpent};
pub use timeline::{Drawing, Drawn, Pause, RankTimeline, Track};
pub use times::kernel_times;
pub use trace::{
    GroupName, Moment, Oddities, Processor, Slice, Trace, TraceGroup, TraceKernel, TraceLane,
    TraceLaunch,
};
pub use work::TraceLimits;

use crate::rates::{BusRate, Moved, bus_rates};

/// What one trace, or several of one job, show.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Analysis {
    /// Each rank separately.
    pub ranks: Vec<Rank>,
    /// All together; empty for one.
    pub peers: Peers,
    /// For each rank, how fast each of its collectives was, where that is known.
    pub rates: Vec<Vec<Option<BusRate>>>,
}

impl Analysis {
    /// Puts ranks together.
    pub fn of(ranks: Vec<Rank>) -> Analysis {
        let peers = Peers::of(&ranks);
        let mut analysis = Analysis { ranks, peers, rates: Vec::new() };
        let moved = analysis.moved();
        let groups = analysis.ranks.iter().map(|rank| rank.groups.len());
        analysis.rates = groups.zip(&moved).map(|(groups, of)| bus_rates(groups, of)).collect();
        analysis
    }

    /// For each rank, the rates of its collectives, by the time of the transfer if waiting for
    /// other ranks can be separated from it.
    pub(crate) fn moved(&self) -> Vec<Vec<Moved>> {
        let matches = self.matches_of();
        let moved = |rank: &Rank, collective: &ObservedCollective, found: Option<usize>| Moved {
            kind: collective.operation,
            group: collective.group,
            ranks: rank.groups[collective.group].size(),
            bytes: collective.bytes,
            time: found.map_or(collective.time(), |found| self.peers.matches[found].transfer),
        };
        let of_rank = |(rank, matches): (&Rank, &Vec<Option<usize>>)| {
            let all = rank.collectives.iter().zip(matches);
            all.map(|(collective, &found)| moved(rank, collective, found)).collect()
        };
        self.ranks.iter().zip(&matches).map(of_rank).collect()
    }

    /// For each rank the time on its own clock at which the common time axis begins: the first
    /// event of the earliest. A rank that no collective connects with the others begins at its own
    /// first event.
    pub fn zeros(&self) -> Vec<Moment> {
        // With one rank there are no clocks to compare.
        let ahead = |place: usize| {
            self.peers.clocks.get(place).copied().flatten().map(|clock| clock.0 as i64)
        };
        let begins = self
            .ranks
            .iter()
            .enumerate()
            .filter_map(|(place, rank)| Some(rank.first.0 - ahead(place)?));
        let zero = begins.min();
        let of = |(place, rank): (usize, &Rank)| match (zero, ahead(place)) {
            (Some(zero), Some(ahead)) => Moment(zero + ahead),
            _ => rank.first,
        };
        self.ranks.iter().enumerate().map(of).collect()
    }

    /// For each rank and each of its collectives, the match that it belongs to.
    pub fn matches_of(&self) -> Vec<Vec<Option<usize>>> {
        let mut of: Vec<Vec<Option<usize>>> =
            self.ranks.iter().map(|rank| vec![None; rank.collectives.len()]).collect();
        for (place, found) in self.peers.matches.iter().enumerate() {
            for member in &found.of {
                of[member.rank][member.collective] = Some(place);
            }
        }
        of
    }
}
