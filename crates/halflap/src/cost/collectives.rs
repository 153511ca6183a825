//! Communication: the latency of the hops, and the bytes over the bandwidth.
//!
//! NCCL has a ring and, for all-reduce, a tree, each with three protocols that trade latency for
//! bandwidth, and takes whichever is fastest; so does this model. With `n` ranks a ring of bus
//! bandwidth `b` moves a collective's bytes (the larger of what goes in and what comes out) at
//! `b * n / steps`. Of the `n - 1` hops around it, one for each node but one goes over the network,
//! where each rank of a node has a card of its own: all of them together carry what leaves the
//! node, and never more than the link within it brings there. Where ranks talk in pairs (all-to-all,
//! point to point) a rank has its own card alone.

use super::{Device, Link, Reach};
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

/// The shape of a collective, as far as time is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    AllReduce,
    /// All-gather and reduce-scatter: once around the ring.
    Once,
    AllToAll,
    /// From one to all or from all to one, piece behind piece.
    Chain,
    PointToPoint,
}

/// How the names of collectives begin, in torch, XLA and MPI, and what they are.
pub(super) const KNOWN: [(&str, Shape); 12] = [
    ("all_reduce", Shape::AllReduce),
    ("all_gather", Shape::Once),
    ("reduce_scatter", Shape::Once),
    ("all_to_all", Shape::AllToAll),
    ("broadcast", Shape::Chain),
    ("reduce", Shape::Chain),
    ("send", Shape::PointToPoint),
    ("recv", Shape::PointToPoint),
    ("permute", Shape::PointToPoint),
    ("collective_permute", Shape::PointToPoint),
    ("collective_broadcast", Shape::Chain),
    ("ragged_all_to_all", Shape::AllToAll),
];

/// LL, LL128 and Simple. What they make of a link's bandwidth: LL sends a flag with every four bytes
/// and cannot keep a link busy, LL128 sends one with every 120.
const SHARES: [f64; 3] = [0.25, 0.92, 1.0];

/// What starting takes.
const RING_BASE: [Nanos; 3] = [Nanos::micros(6.6), Nanos::micros(14.0), Nanos::micros(8.4)];
const TREE_BASE: [Nanos; 3] = [Nanos::micros(6.8), Nanos::micros(14.0), Nanos::micros(8.4)];

/// All goes up a tree and down again, so half of the bandwidth, and some is lost where it branches.
const TREE_SHARE: f64 = 0.9 / 2.0;

/// How a group lies over nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Span {
    ranks: u32,
    nodes: u32,
    /// The fewest ranks that it has in a node: the narrowest way out.
    fewest: u32,
}

impl<'a> Fabric<'a> {
    /// One link for everybody: all in one node, or each rank in a node of its own.
    pub(super) fn one(link: &'a Link) -> Fabric<'a> {
        let ranks_per_node = match link.reach {
            Reach::Node => u32::MAX,
            Reach::Network => 1,
        };
        Fabric { within: link, across: link, ranks_per_node }
    }

    /// The links of a device.
    pub(super) fn of(device: &'a Device) -> Fabric<'a> {
        Fabric { within: &device.nvlink, across: &device.network, ranks_per_node: device.ranks_per_node }
    }
}

impl Fabric<'_> {
    /// How long a collective among `ranks` takes; `None` for one that is not known.
    pub(super) fn time(&self, collective: &Collective, ranks: &[u32]) -> Option<Nanos> {
        let shape = Shape::of(&collective.op)?;
        let span = Span::new(collective.group_size, ranks, self.ranks_per_node);
        if span.ranks <= 1 {
            return Some(RING_BASE[0]);
        }
        let bus = self.bus(shape, span);
        let ring = |protocol: usize| {
            let bandwidth = bus * SHARES[protocol] * shape.ratio(span.ranks);
            self.ring_latency(shape, span, protocol) + collective.bytes / bandwidth
        };
        let tree = |protocol: usize| {
            let bandwidth = bus * SHARES[protocol] * TREE_SHARE;
            self.tree_latency(span, protocol) + collective.bytes / bandwidth
        };
        let rings = (0..SHARES.len()).map(ring);
        let trees = (0..SHARES.len()).map(tree).filter(|_| shape == Shape::AllReduce);
        rings.chain(trees).reduce(Nanos::min)
    }

    fn bus(&self, shape: Shape, span: Span) -> Bandwidth {
        let within = self.within.bandwidth;
        let cards = match shape {
            Shape::AllReduce | Shape::Once | Shape::Chain => f64::from(span.fewest),
            Shape::AllToAll | Shape::PointToPoint => 1.0,
        };
        if span.nodes == 1 { within } else { within.min(self.across.bandwidth * cards) }
    }

    fn ring_latency(&self, shape: Shape, span: Span, protocol: usize) -> Nanos {
        let (within, across) = (self.within.hops.ring[protocol], self.across.hops.ring[protocol]);
        let hops = match shape {
            Shape::PointToPoint if span.nodes == 1 => within,
            Shape::PointToPoint => across,
            _ => within * f64::from(span.ranks - span.nodes) + across * f64::from(span.nodes - 1),
        };
        RING_BASE[protocol] + hops * shape.rounds()
    }

    /// A chain within each node, a binary tree over the nodes, there and back.
    fn tree_latency(&self, span: Span, protocol: usize) -> Nanos {
        let (within, across) = (self.within.hops.tree[protocol], self.across.hops.tree[protocol]);
        let chain = f64::from(span.ranks.div_ceil(span.nodes) - 1);
        let depth = f64::from(u32::BITS - (span.nodes - 1).leading_zeros());
        TREE_BASE[protocol] + (within * chain + across * depth) * 2.0
    }
}

impl Shape {
    /// By the longest name that an operation's begins with: `all_gather_into_tensor` is an
    /// all-gather.
    fn of(op: &str) -> Option<Shape> {
        let op = op.to_lowercase().replace('-', "_");
        let op = op.trim_start_matches('_');
        let names = KNOWN.iter().filter(|(name, _)| op.starts_with(name));
        names.max_by_key(|(name, _)| name.len()).map(|&(_, shape)| shape)
    }

    /// How often everything goes around the ring.
    fn rounds(self) -> f64 {
        match self {
            Shape::AllReduce | Shape::AllToAll => 2.0,
            Shape::Once | Shape::Chain | Shape::PointToPoint => 1.0,
        }
    }

    /// What a ring of `ranks` moves of a collective for each byte that goes over the bus.
    fn ratio(self, ranks: u32) -> f64 {
        match self {
            Shape::Chain | Shape::PointToPoint => 1.0,
            _ => f64::from(ranks) / (self.rounds() * f64::from(ranks - 1)),
        }
    }
}

impl Span {
    /// `size` ranks laid out as `ranks` says; where it says nothing, they are the first ones.
    fn new(size: u32, ranks: &[u32], per_node: u32) -> Span {
        // A node without ranks would be a slip of whoever made the device, and no reason to divide by it.
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
        // A group that says it has fewer ranks than it lists lies on no more nodes than ranks.
        Span { ranks: size, nodes: nodes.clamp(1, size.max(1)), fewest }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{GroupId, Id};
    use crate::units::Bytes;

    fn collective(op: &str, size: u32, bytes: i64) -> Collective {
        Collective { op: op.to_owned(), group: GroupId::from_index(0), group_size: size, bytes: Bytes(bytes) }
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
        // Simple: 8.4 us + 7 * 3.4 us, and 1 GB at 370 * 8/7 GB/s.
        assert_eq!(h100("all_gather", &node(), 1_000_000_000), 32_200.0 + 2_364_865.0);
        assert_eq!(h100("reduce_scatter", &node(), 1_000_000_000), 32_200.0 + 2_364_865.0);
        // Twice around: 8.4 us + 14 * 3.4 us, 370 * 8/14 GB/s; so much for all-to-all, too.
        assert_eq!(h100("all_reduce", &node(), 1_000_000_000), 56_000.0 + 4_729_730.0);
        assert_eq!(h100("all_to_all", &node(), 1_000_000_000), 56_000.0 + 4_729_730.0);
        // One hop: 8.4 us + 3.4 us, 370 GB/s.
        assert_eq!(h100("send", &[0, 1], 1_000_000_000), 11_800.0 + 2_702_703.0);
    }

    #[test]
    fn small_ones_take_the_protocol_of_least_latency() {
        // LL: 6.6 us + 7 * 0.6 us, and 8 KB at a quarter of 370 * 8/7 GB/s.
        assert_eq!(h100("all_gather", &node(), 8000), 10_800.0 + 76.0);
        // LL128: 14 us + 7 * 1.9 us, and 4 MB at 0.92 of it; LL would take 48.6 us, Simple 41.7 us.
        assert_eq!(h100("all_gather", &node(), 4_000_000), 27_300.0 + 10_282.0);
    }

    #[test]
    fn small_all_reduces_take_the_tree() {
        let all: Vec<u32> = (0..64).collect();
        // Tree, LL: 6.8 us + 2 * (7 * 0.6 us + 3 * 5 us), and 8 KB at 370 / 4 * 0.45 GB/s.
        assert_eq!(h100("all_reduce", &all, 8000), 45_200.0 + 192.0);
        // A ring would take 6.6 us + 2 * (56 * 0.6 us + 7 * 2.7 us) before the first byte. A large one
        // takes it, with Simple: 8.4 us + 2 * (56 * 3.4 us + 7 * 14 us), 370 * 64/126 GB/s.
        assert_eq!(h100("all_reduce", &all, 4_000_000_000), 585_200.0 + 21_283_784.0);
        // Within a node the ring starts sooner: 6.6 us + 14 * 0.6 us, 370 / 4 * 8/14 GB/s.
        assert_eq!(h100("all_reduce", &node(), 8000), 15_000.0 + 151.0);
    }

    #[test]
    fn ranks_say_whether_the_network_is_used() {
        // One rank of each node: 8.4 us + 7 * 14 us, 50 * 8/7 GB/s.
        let apart: Vec<u32> = (0..8).map(|node| node * 8).collect();
        assert_eq!(h100("all_gather", &apart, 1_000_000_000), 106_400.0 + 17_500_000.0);
        // Four of each of two nodes, four cards: 8.4 us + 6 * 3.4 us + 14 us, 200 * 8/7 GB/s.
        let half = [0, 1, 2, 3, 8, 9, 10, 11];
        assert_eq!(h100("all_gather", &half, 1_000_000_000), 42_800.0 + 4_375_000.0);
        // In pairs each has its own: 8.4 us + 2 * 34.4 us, 50 * 8/14 GB/s.
        assert_eq!(h100("all_to_all", &half, 1_000_000_000), 77_200.0 + 35_000_000.0);
        // One of another node is enough.
        assert_eq!(h100("send", &[7, 8], 1_000_000_000), 22_400.0 + 20_000_000.0);
    }

    #[test]
    fn one_link_for_everybody() {
        let time = |link: &Link, ranks: &[u32]| {
            let gather = collective("all-gather-start", ranks.len() as u32, 1_000_000_000);
            Fabric::one(link).time(&gather, ranks).unwrap().0.round()
        };
        assert_eq!(time(&Link::across_nodes(50.0), &node()), 106_400.0 + 17_500_000.0);
        assert_eq!(time(&Link::within_node(370.0), &[0, 8, 16, 24, 32, 40, 48, 56]), 32_200.0 + 2_364_865.0);
    }

    #[test]
    fn odd_groups() {
        assert_eq!(h100("all_reduce", &[3], 1_000_000_000), 6600.0);
        assert_eq!(h100("all_reduce", &[], 1_000_000_000), 6600.0);
        assert_eq!(Span::new(12, &[], 8), Span { ranks: 12, nodes: 2, fewest: 4 });
        assert_eq!(Span::new(16, &[], 8), Span { ranks: 16, nodes: 2, fewest: 8 });
        assert_eq!(Span::new(2, &[0, 8, 16], 8), Span { ranks: 2, nodes: 2, fewest: 1 });
        assert_eq!(Span::new(0, &[], u32::MAX).nodes, 1);
    }

    #[test]
    fn names_of_torch_and_xla() {
        for (op, shape) in [
            ("all_gather_into_tensor_coalesced", Some(Shape::Once)),
            ("reduce_scatter_tensor", Some(Shape::Once)),
            ("all-reduce-start", Some(Shape::AllReduce)),
            ("all_to_all_single", Some(Shape::AllToAll)),
            ("reduce", Some(Shape::Chain)),
            ("collective-permute", Some(Shape::PointToPoint)),
            ("barrier", None),
        ] {
            assert_eq!(Shape::of(op), shape, "{op}");
        }
    }
}
