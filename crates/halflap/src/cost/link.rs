//! What ranks talk over: bandwidth, and the latency of a hop.

use super::Device;
use super::error::LinkError;
use crate::Unknown;
use crate::units::{Bandwidth, Nanos};

/// One kind of link.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Link {
    /// Whom it joins.
    pub reach: Reach,
    /// The bus bandwidth that collectives achieve: of a rank within a node, of a rank's network
    /// card across nodes.
    pub bandwidth: Bandwidth,
    /// What it takes to pass it once.
    pub hops: Hops,
}

/// Whom a link joins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// The ranks of one node.
    Node,
    /// Ranks of different nodes.
    Network,
}

/// The latency of one hop for each of NCCL's protocols: LL, LL128, Simple.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Hops {
    /// Along a ring.
    pub ring: [Nanos; 3],
    /// Along a tree.
    pub tree: [Nanos; 3],
}

impl Hops {
    /// NVLink and what is like it.
    pub const NVLINK: Hops = Hops::micros([0.6, 1.9, 3.4], [0.6, 1.25, 4.0]);
    /// PCIe.
    pub const PCIE: Hops = Hops::micros([1.0, 2.5, 5.7], [1.0, 1.9, 4.0]);
    /// InfiniBand, and Ethernet with RDMA.
    pub const NETWORK: Hops = Hops::micros([2.7, 4.0, 14.0], [5.0, 8.5, 14.0]);

    /// The same for every protocol.
    pub const fn all(hop: Nanos) -> Hops {
        Hops { ring: [hop; 3], tree: [hop; 3] }
    }

    const fn micros([a, b, c]: [f64; 3], [d, e, f]: [f64; 3]) -> Hops {
        let ring = [Nanos::micros(a), Nanos::micros(b), Nanos::micros(c)];
        let tree = [Nanos::micros(d), Nanos::micros(e), Nanos::micros(f)];
        Hops { ring, tree }
    }
}

/// The links that have a name of their own. docs/costs.md lists them.
const PRESETS: [(&str, Link); 20] = [
    ("nvlink2", Link::within_node(120.0)),
    ("nvlink3", Link::within_node(240.0)),
    ("nvlink4", Link::within_node(370.0)),
    ("nvlink5", Link::within_node(720.0)),
    ("nvlink400", Link::within_node(160.0)),
    ("xgmi2", Link::within_node(112.0)),
    ("xgmi3", Link::within_node(336.0)),
    ("xgmi4", Link::within_node(403.0)),
    ("pcie3", Link { hops: Hops::PCIE, ..Link::within_node(12.0) }),
    ("pcie4", Link { hops: Hops::PCIE, ..Link::within_node(25.0) }),
    ("pcie5", Link { hops: Hops::PCIE, ..Link::within_node(50.0) }),
    ("loopback", Link { hops: Hops::all(Nanos::micros(10.0)), ..Link::within_node(5.0) }),
    ("ici5e", Link { hops: Hops::all(Nanos::micros(1.0)), ..Link::within_node(100.0) }),
    ("ib100", Link::across_nodes(12.0)),
    ("ib200", Link::across_nodes(25.0)),
    ("ib400", Link::across_nodes(50.0)),
    ("ib800", Link::across_nodes(100.0)),
    ("eth10", Link { hops: Hops::all(Nanos::micros(30.0)), ..Link::across_nodes(1.1) }),
    ("eth25", Link { hops: Hops::all(Nanos::micros(30.0)), ..Link::across_nodes(2.8) }),
    ("dcn5e", Link::across_nodes(3.125)),
];

/// A device's own links, by the names that they go by whatever its maker calls them.
const OF_DEVICE: [&str; 2] = ["nvlink", "network"];

impl Link {
    /// The link of a name: `nvlink` and `network` are those of the device, others stand for
    /// themselves.
    pub fn named(name: &str, device: Option<&Device>) -> Result<Link, LinkError> {
        let lower = name.to_lowercase();
        if let Some(own) = OF_DEVICE.into_iter().find(|own| *own == lower) {
            let device = device.ok_or(LinkError::NeedsDevice { name: own })?;
            return Ok(if own == "nvlink" { device.nvlink } else { device.network });
        }
        let found = PRESETS.iter().find(|(preset, _)| *preset == lower);
        let unknown = || Unknown::new("link", name, OF_DEVICE.into_iter().chain(names()));
        Ok(found.ok_or_else(unknown)?.1)
    }

    /// A link like NVLink, with so many GB/s.
    pub const fn within_node(gigas: f64) -> Link {
        Link { reach: Reach::Node, bandwidth: Bandwidth::gigas(gigas), hops: Hops::NVLINK }
    }

    /// A network with so many GB/s for each rank.
    pub const fn across_nodes(gigas: f64) -> Link {
        Link { reach: Reach::Network, bandwidth: Bandwidth::gigas(gigas), hops: Hops::NETWORK }
    }
}

/// The names of all links that stand for themselves.
pub(super) fn names() -> [&'static str; PRESETS.len()] {
    PRESETS.map(|(name, _)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_is_found_by_its_name() {
        assert_eq!(Link::named("ib400", None), Ok(Link::across_nodes(50.0)));
        let h100 = Device::named("h100").unwrap();
        assert_eq!(Link::named("NVLink", Some(&h100)), Ok(Link::within_node(370.0)));
        assert_eq!(Link::named("network", Some(&h100)), Ok(Link::across_nodes(50.0)));
        let said = |name| Link::named(name, None).unwrap_err().to_string();
        assert_eq!(said("nvlink6"), "unknown link 'nvlink6'; did you mean 'nvlink'?");
        let own = said("nvlink");
        assert!(own.starts_with("'nvlink' is a device's own link: say whose with --device, or"), "{own}");
    }
}
