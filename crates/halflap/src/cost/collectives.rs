//! Communication: six parameters a link, the same formula for all of them.
//!
//! A collective takes the link's base, the latency of its hops, the time of its bytes on the bus,
//! and twice the root of that time multiplied by the link's ramp. The last term is the cost of
//! pipelining: a transfer is split into chunks to keep all hops busy, every chunk has an overhead,
//! and this is the sum for the best number of chunks. bench/link_fit.py fits the parameters to
//! measurements with the same formula.
//!
//! Of the `n - 1` hops around a ring, one for each node but one crosses the network, where each
//! rank of a node has its own card: together the cards carry what leaves the node, but never more
//! than the link within the node delivers. Ranks that communicate in pairs (all-to-all,
//! point-to-point) each use only their own card.

use super::{Device, Link, Reach};
use crate::collective::CollectiveKind;
use crate::graph::Collective;
use crate::units::{Bandwidth, Nanos};

/// What a collective goes over.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fabric<'a> {
    /// Among the ranks of a node.
    pub(super) within: &'a Link,
    /// Among nodes.
    pub(super) across: &'a Link,
    /// Ranks are laid out over nodes one after the other.
    pub(super) ranks_per_node: u32,
}

/// The shape of a collective, as far as its time is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CollectiveShape {
    AllReduce,
    /// All-gather and reduce-scatter: once around the ring.
    Once,
    AllToAll,
    /// From one to all or from all to one, pipelined.
    Chain,
    PointToPoint,
}

/// The time of a collective of one rank, which sends nothing.
const ALONE: Nanos = Nanos::micros(6.6);

/// A level of a tree takes as long as this many hops of a ring: it waits for two branches, whereas
/// a ring has many hops in flight at once.
const TREE_LEVEL: f64 = 3.0;

/// The share of the base that two ranks take: they were measured in a loop, so without the launch.
const PAIRWISE_BASE: f64 = 0.6;

/// How much more slowly two ranks reach their bandwidth: they have fewer channels.
const PAIRWISE_RAMP: f64 = 4.0;

/// How a group lies over nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct GroupSpan {
    ranks: u32,
    nodes: u32,
    /// The fewest ranks that it has in any node: these have the least bandwidth out of it.
    fewest: u32,
}

/// The names of the kinds that are modelled.
pub(super) fn modelled() -> String {
    let known = CollectiveKind::ALL.into_iter().filter(|&kind| CollectiveShape::of(kind).is_some());
    known.map(CollectiveKind::name).collect::<Vec<_>>().join(", ")
}

impl<'a> Fabric<'a> {
    /// One link for all: all ranks in one node, or each rank in its own node.
    pub(super) fn one(link: &'a Link) -> Fabric<'a> {
        let ranks_per_node = match link.reach {
            Reach::Node => u32::MAX,
            Reach::Network => 1,
        };
        Fabric { within: link, across: link, ranks_per_node }
    }

    /// The links of a device.
    pub(super) fn of(device: &'a Device) -> Fabric<'a> {
        Fabric {
            within: &device.nvlink,
            across: &device.network,
            ranks_per_node: device.ranks_per_node,
        }
    }
}

impl Fabric<'_> {
    /// How long a collective among `ranks` takes; `None` for an unknown one.
    pub(super) fn time(&self, collective: &Collective, ranks: &[u32]) -> Option<Nanos> {
        let shape = CollectiveShape::of(collective.kind)?;
        let span = GroupSpan::new(collective.group_size, ranks, self.ranks_per_node);
        if span.ranks <= 1 {
            return Some(ALONE);
        }
        let link = self.slowest(span);
        let (base, ramp) = match shape {
            CollectiveShape::PointToPoint => (link.base * PAIRWISE_BASE, link.ramp * PAIRWISE_RAMP),
            _ => (link.base, link.ramp),
        };
        let transfer = collective.bytes() / self.bus(shape, span) * shape.passes(span.ranks, link);
        let ramping = Nanos((ramp.0 * transfer.0).sqrt()) * 2.0;
        Some(base + self.latency(shape, span) + transfer + ramping)
    }

    /// The bottleneck link.
    fn slowest(&self, span: GroupSpan) -> &Link {
        if span.nodes == 1 { self.within } else { self.across }
    }

    fn bus(&self, shape: CollectiveShape, span: GroupSpan) -> Bandwidth {
        let pairs = shape == CollectiveShape::PointToPoint;
        let peers = if pairs { 1 } else { span.fewest.saturating_sub(1).max(1) };
        let within = self.within.bandwidth.min(self.within.pair * f64::from(peers));
        let cards = match shape {
            CollectiveShape::AllReduce | CollectiveShape::Once | CollectiveShape::Chain => {
                f64::from(span.fewest)
            }
            CollectiveShape::AllToAll | CollectiveShape::PointToPoint => 1.0,
        };
        if span.nodes == 1 { within } else { within.min(self.across.bandwidth * cards) }
    }

    /// The number of consecutive hops.
    fn latency(&self, shape: CollectiveShape, span: GroupSpan) -> Nanos {
        let (within, across) = (self.within.hop, self.across.hop);
        let ring = within * f64::from(span.ranks - span.nodes) + across * f64::from(span.nodes - 1);
        let levels = |ranks: u32| f64::from(ranks.ilog2());
        let per_node = span.ranks.div_ceil(span.nodes);
        let tree = (within * levels(per_node) + across * levels(span.nodes)) * TREE_LEVEL;
        match shape {
            CollectiveShape::PointToPoint => self.slowest(span).hop,
            CollectiveShape::Once | CollectiveShape::Chain => ring,
            // There and back.
            CollectiveShape::AllReduce => ring.min(tree) * 2.0,
            // No rank waits for data that a peer first has to receive.
            CollectiveShape::AllToAll => ring * 0.5,
        }
    }
}

impl CollectiveShape {
    /// `None` for kinds without a model.
    fn of(kind: CollectiveKind) -> Option<CollectiveShape> {
        match kind {
            CollectiveKind::AllReduce => Some(CollectiveShape::AllReduce),
            CollectiveKind::AllGather | CollectiveKind::ReduceScatter => {
                Some(CollectiveShape::Once)
            }
            CollectiveKind::AllToAll | CollectiveKind::RaggedAllToAll => {
                Some(CollectiveShape::AllToAll)
            }
            CollectiveKind::Broadcast | CollectiveKind::Reduce => Some(CollectiveShape::Chain),
            CollectiveKind::Send
            | CollectiveKind::Recv
            | CollectiveKind::SendRecv
            | CollectiveKind::Permute => Some(CollectiveShape::PointToPoint),
            CollectiveKind::Gather
            | CollectiveKind::Scatter
            | CollectiveKind::Barrier
            | CollectiveKind::Transfer
            | CollectiveKind::HostTransfer
            | CollectiveKind::Other => None,
        }
    }

    /// How many times each byte of a collective crosses a rank's bus.
    fn passes(self, ranks: u32, link: &Link) -> f64 {
        let once = f64::from(ranks - 1) / f64::from(ranks);
        match self {
            CollectiveShape::AllReduce => (2.0 * once).min(link.all_reduce),
            CollectiveShape::Once | CollectiveShape::AllToAll => once,
            CollectiveShape::Chain | CollectiveShape::PointToPoint => 1.0,
        }
    }
}

impl GroupSpan {
    /// `size` ranks laid out as `ranks` says; if it is empty, the first ranks.
    fn new(size: u32, ranks: &[u32], per_node: u32) -> GroupSpan {
        // Avoids a division by zero if a device wrongly has no ranks per node.
        let per_node = per_node.max(1);
        let mut ranks = ranks.to_vec();
        ranks.sort_unstable();
        ranks.dedup();
        let counts = ranks
            .chunk_by(|a, b| a / per_node == b / per_node)
            .map(|node| u32::try_from(node.len()).unwrap_or(u32::MAX));
        let (nodes, fewest) = match counts.clone().min() {
            Some(fewest) => (u32::try_from(counts.count()).unwrap_or(u32::MAX), fewest),
            None => (size.div_ceil(per_node), size.saturating_sub(1) % per_node + 1),
        };
        // A group that claims fewer ranks than it lists spans no more nodes than it has ranks.
        GroupSpan { ranks: size, nodes: nodes.clamp(1, size.max(1)), fewest }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{GroupId, Id};
    use crate::units::Bytes;

    fn collective(op: &str, size: u32, bytes: i64) -> Collective {
        Collective::named(op.to_owned(), GroupId::from_index(0), size, Bytes(bytes))
    }

    /// In whole nanoseconds, on h100s.
    fn h100(op: &str, ranks: &[u32], bytes: i64) -> f64 {
        let device = Device::named("h100").unwrap();
        let collective = collective(op, ranks.len() as u32, bytes);
        Fabric::of(&device).time(&collective, ranks).unwrap().0.round()
    }

    fn node() -> Vec<u32> {
        (0..8).collect()
    }

    #[test]
    fn large_ones_ride_the_bandwidth() {
        // 16.5 us + 7 * 1.48 us, 1 GB * 7/8 at 369 GB/s, and 2 * sqrt(4.77 us * 2371.274 us).
        let gather = 26_860.0 + 2_371_274.0 + 212_706.0;
        assert_eq!(h100("all_gather", &node(), 1_000_000_000), gather);
        assert_eq!(h100("reduce_scatter", &node(), 1_000_000_000), gather);
        // Half of the hops.
        assert_eq!(h100("all_to_all", &node(), 1_000_000_000), gather - 5_180.0);
        // There and back, and 1.5 times over the bus, because switches sum: 16.5 us + 14 * 1.48 us,
        // 1.5 GB at 369 GB/s, 2 * sqrt(4.77 us * 4065.041 us).
        assert_eq!(h100("all_reduce", &node(), 1_000_000_000), 37_220.0 + 4_065_041.0 + 278_497.0);
        // A pair: 0.6 * 16.5 us + 1.48 us, 1 GB at 305 GB/s, 2 * sqrt(4 * 4.77 us * 3278.689 us).
        assert_eq!(h100("send", &[0, 1], 1_000_000_000), 11_380.0 + 3_278_689.0 + 500_229.0);
    }

    #[test]
    fn small_ones_take_the_latency() {
        // 26.86 us, 8 KB * 7/8 at 369 GB/s (18.97 ns), and 2 * sqrt(4770 ns * that).
        assert_eq!(h100("all_gather", &node(), 8000), 27_481.0);
        // 4 MB: 9485 ns, and 2 * sqrt(4770 ns * that) = 13453 ns, more than the bytes themselves.
        assert_eq!(h100("all_gather", &node(), 4_000_000), 26_860.0 + 9_485.0 + 13_453.0);
        assert_eq!(h100("all_gather", &node(), 0), 26_860.0);
    }

    #[test]
    fn all_reduces_of_many_ranks_take_a_tree() {
        let rack = Device::named("gb200").unwrap();
        let time = |size: u32| {
            let ranks: Vec<u32> = (0..size).collect();
            Fabric::of(&rack).time(&collective("all_reduce", size, 0), &ranks).unwrap().0.round()
        };
        // A ring: 10.9 us + 2 * 7 * 1.21 us.
        assert_eq!(time(8), 10_900.0 + 14.0 * 1_210.0);
        // A tree of 6 levels: 10.9 us + 2 * 6 * 3 * 1.21 us, and no more for 72 ranks.
        assert_eq!(time(64), 10_900.0 + 36.0 * 1_210.0);
        assert_eq!(time(72), time(64));
        // Eight nodes of eight: 16.5 us + 2 * 3 * (3 * 1.48 us + 3 * 5 us).
        let all: Vec<u32> = (0..64).collect();
        assert_eq!(h100("all_reduce", &all, 0), 16_500.0 + 116_640.0);
    }

    #[test]
    fn ranks_say_whether_the_network_is_used() {
        // Without the term of the ramp, which large transfers hardly have.
        let time = |op: &str, ranks: &[u32], nanos: f64| {
            let found = h100(op, ranks, 1_000_000_000);
            assert!(nanos < found && found < 1.1 * nanos, "{op} {ranks:?}: {found}, not {nanos}");
        };
        // One rank of each node: 16.5 us + 7 * 5 us, 50 * 8/7 GB/s.
        let apart: Vec<u32> = (0..8).map(|node| node * 8).collect();
        time("all_gather", &apart, 51_500.0 + 17_500_000.0);
        // Four of each of two nodes, four cards: 16.5 us + 6 * 1.48 us + 5 us, 200 * 8/7 GB/s.
        let half = [0, 1, 2, 3, 8, 9, 10, 11];
        time("all_gather", &half, 30_380.0 + 4_375_000.0);
        // In pairs each has its own, 50 * 8/7 GB/s.
        time("all_to_all", &half, 23_440.0 + 17_500_000.0);
        // Switches of a node do not sum what comes from others: twice 7/8.
        time("all_reduce", &half, 44_260.0 + 8_750_000.0);
        // One of another node is enough: 0.6 * 16.5 us + 5 us, 50 GB/s.
        time("send", &[7, 8], 14_900.0 + 20_000_000.0);
        // With it: 2 * sqrt(4.77 us * 17.5 ms).
        assert_eq!(h100("all_gather", &apart, 1_000_000_000), 51_500.0 + 17_500_000.0 + 577_841.0);
    }

    #[test]
    fn a_mesh_gives_each_pair_a_part() {
        let mesh = Device::named("mi355x").unwrap();
        let time = |size: u32| {
            let ranks: Vec<u32> = (0..size).collect();
            let gather = collective("all_gather", size, 1_000_000_000);
            Fabric::of(&mesh).time(&gather, &ranks).unwrap().0.round()
        };
        // 59.4 us and hops of 2.99 us; half of the bytes at 63.5 GB/s, 3/4 at three times that,
        // 7/8 at a rank's 400 GB/s.
        assert_eq!(time(2), 62_390.0 + 7_874_016.0);
        assert_eq!(time(4), 68_370.0 + 3_937_008.0);
        assert_eq!(time(8), 80_330.0 + 2_187_500.0);
    }

    #[test]
    fn one_link_for_everybody() {
        let time = |link: &Link, ranks: &[u32]| {
            let gather = collective("all-gather-start", ranks.len() as u32, 0);
            Fabric::one(link).time(&gather, ranks).unwrap().0.round()
        };
        assert_eq!(time(&Link::across_nodes(50.0), &node()), 16_500.0 + 7.0 * 5_000.0);
        assert_eq!(time(&Link::within_node(370.0), &[0, 8, 16, 24, 32, 40, 48, 56]), 26_860.0);
    }

    #[test]
    fn odd_groups() {
        assert_eq!(h100("all_reduce", &[3], 1_000_000_000), 6600.0);
        assert_eq!(h100("all_reduce", &[], 1_000_000_000), 6600.0);
        assert_eq!(GroupSpan::new(12, &[], 8), GroupSpan { ranks: 12, nodes: 2, fewest: 4 });
        assert_eq!(GroupSpan::new(16, &[], 8), GroupSpan { ranks: 16, nodes: 2, fewest: 8 });
        assert_eq!(GroupSpan::new(2, &[0, 8, 16], 8), GroupSpan { ranks: 2, nodes: 2, fewest: 1 });
        assert_eq!(GroupSpan::new(0, &[], u32::MAX).nodes, 1);
    }
}
