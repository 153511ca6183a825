//! Links between ranks: six parameters each.

use super::Device;
use super::error::LinkError;
use crate::Unknown;
use crate::units::{Bandwidth, Nanos};

/// One kind of link. `collectives.rs` has the formula.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Link {
    /// Which ranks it connects.
    pub reach: Reach,
    /// The fixed cost of a collective.
    pub base: Nanos,
    /// The latency of one hop.
    pub hop: Nanos,
    /// The bus bandwidth that collectives achieve: of a rank within a node, of a rank's network
    /// card across nodes.
    pub bandwidth: Bandwidth,
    /// The bandwidth between two ranks of a node: in a mesh, a fraction of a rank's bandwidth. It
    /// limits small groups, and is not used across nodes.
    pub pair: Bandwidth,
    /// How slowly the bandwidth is reached: the fixed cost of each chunk of a transfer.
    pub ramp: Nanos,
    /// How many times the bytes of an all-reduce cross the link at most: 2 for a long ring, less
    /// for switches that reduce.
    pub all_reduce: f64,
}

/// Which ranks a link connects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// The ranks of one node.
    Node,
    /// Ranks of different nodes.
    Network,
}

const NVLINK4: Fit =
    Fit { base: 16.5, hop: 1.48, bus: 369.0, pair: 305.0, ramp: 4.77, all_reduce: 1.5 };
const NVLINK5: Fit =
    Fit { base: 25.3, hop: 1.31, bus: 716.0, pair: 533.0, ramp: 10.3, all_reduce: 1.8 };
const NVL72: Fit =
    Fit { base: 10.9, hop: 1.21, bus: 722.0, pair: 541.0, ramp: 8.96, all_reduce: 1.55 };
const XGMI2: Fit =
    Fit { base: 59.4, hop: 2.99, bus: 112.0, pair: 41.0, ramp: 0.0, all_reduce: 2.0 };
const XGMI3: Fit =
    Fit { base: 59.4, hop: 2.99, bus: 333.0, pair: 53.0, ramp: 0.0, all_reduce: 1.65 };
const XGMI4: Fit =
    Fit { base: 59.4, hop: 2.99, bus: 400.0, pair: 63.5, ramp: 0.0, all_reduce: 1.65 };
const ICI5E: Fit = Fit { base: 6.6, hop: 1.0, bus: 100.0, pair: 100.0, ramp: 0.0, all_reduce: 2.0 };

/// The links that have their own name. docs/costs.md lists them, and says which are fitted to
/// measurements and how the others were derived.
const PRESETS: [(&str, Link); 21] = [
    ("nvlink2", Link::within_node(120.0)),
    ("nvlink3", Link::within_node(240.0)),
    ("nvlink4", NVLINK4.link()),
    ("nvlink5", NVLINK5.link()),
    ("nvl72", NVL72.link()),
    ("nvlink400", Link::within_node(160.0)),
    ("xgmi2", XGMI2.link()),
    ("xgmi3", XGMI3.link()),
    ("xgmi4", XGMI4.link()),
    ("pcie3", Link::within_node(12.0).with_hop(2.5)),
    ("pcie4", Link::within_node(25.0).with_hop(2.5)),
    ("pcie5", Link::within_node(50.0).with_hop(2.5)),
    ("loopback", Link::within_node(5.0).with_hop(10.0)),
    ("ici5e", ICI5E.link()),
    ("ib100", Link::across_nodes(12.0)),
    ("ib200", Link::across_nodes(25.0)),
    ("ib400", Link::across_nodes(50.0)),
    ("ib800", Link::across_nodes(100.0)),
    ("eth10", Link::across_nodes(1.1).with_hop(30.0)),
    ("eth25", Link::across_nodes(2.8).with_hop(30.0)),
    ("dcn5e", Link::across_nodes(3.125)),
];

/// The parameters of a link within a node, as docs/costs.md lists them: microseconds, GB/s and a
/// ratio.
struct Fit {
    base: f64,
    hop: f64,
    bus: f64,
    pair: f64,
    ramp: f64,
    all_reduce: f64,
}

impl Fit {
    const fn link(self) -> Link {
        Link {
            reach: Reach::Node,
            base: Nanos::micros(self.base),
            hop: Nanos::micros(self.hop),
            bandwidth: Bandwidth::gigas(self.bus),
            pair: Bandwidth::gigas(self.pair),
            ramp: Nanos::micros(self.ramp),
            all_reduce: self.all_reduce,
        }
    }
}

/// A device's own links, by generic names.
const OF_DEVICE: [&str; 2] = ["nvlink", "network"];

impl Link {
    /// All names: those for a device's own links, and those of specific links.
    pub fn names() -> impl Iterator<Item = &'static str> {
        OF_DEVICE.into_iter().chain(names())
    }

    /// The link with this name: `nvlink` and `network` are those of the device, all others are
    /// specific links.
    pub fn named(name: &str, device: Option<&Device>) -> Result<Link, LinkError> {
        let lower = name.to_lowercase();
        if let Some(own) = OF_DEVICE.into_iter().find(|own| *own == lower) {
            let device = device.ok_or(LinkError::NeedsDevice { name: own })?;
            return Ok(if own == "nvlink" { device.nvlink } else { device.network });
        }
        let found = PRESETS.iter().find(|(preset, _)| *preset == lower);
        let unknown = || Unknown::new("link", name, Link::names());
        Ok(found.ok_or_else(unknown)?.1)
    }

    /// A link like NVLink with this many GB/s: like `nvlink4`, but without switches that reduce.
    pub const fn within_node(gigas: f64) -> Link {
        let fit =
            Fit { base: 16.5, hop: 1.48, bus: gigas, pair: gigas, ramp: 4.77, all_reduce: 2.0 };
        fit.link()
    }

    /// A network with this many GB/s for each rank.
    pub const fn across_nodes(gigas: f64) -> Link {
        Link { reach: Reach::Network, ..Link::within_node(gigas).with_hop(5.0) }
    }

    const fn with_hop(self, micros: f64) -> Link {
        Link { hop: Nanos::micros(micros), ..self }
    }
}

/// The names of all specific links.
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
        assert_eq!(Link::named("NVLink", Some(&h100)), Link::named("nvlink4", None));
        assert_eq!(Link::named("network", Some(&h100)), Ok(Link::across_nodes(50.0)));
        let said = |name| Link::named(name, None).unwrap_err().to_string();
        assert_eq!(said("nvlink6"), "unknown link 'nvlink6'; did you mean 'nvlink'?");
        let own = said("nvlink");
        assert!(
            own.starts_with("'nvlink' is a device's own link: say whose with --device, or"),
            "{own}"
        );
    }

    /// What bench/link_fit.py wrote into the document.
    #[test]
    fn fitted_links_are_as_documented() {
        let document = include_str!("../../../../docs/costs.md");
        for name in ["nvlink4", "nvlink5", "nvl72", "xgmi4"] {
            let link = Link::named(name, None).unwrap();
            let [base, hop, ramp] = [link.base, link.hop, link.ramp].map(|time| time.0 / 1e3);
            let [bus, pair] = [link.bandwidth, link.pair].map(|rate| rate.0 / 1e9);
            let begin = format!("| `{name}` | ");
            let end =
                format!(" | {base} | {hop} | {bus} | {pair} | {ramp} | {} |", link.all_reduce);
            let is_there = |line: &str| line.starts_with(&begin) && line.ends_with(&end);
            assert!(document.lines().any(is_there), "docs/costs.md must have {name}: {end}");
        }
    }
}
