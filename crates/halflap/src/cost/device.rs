//! Devices: presets by name, and those that a file describes.

use serde_json::Value;

use super::error::DeviceError;
use super::json;
use super::link::Link;
use super::presets::{self, NodeSize, PRESETS};
use crate::Unknown;
use crate::units::{Bandwidth, FlopRate, Nanos};

/// The parameters of a device and its links.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Device {
    /// Peak throughput in dense bf16.
    pub peak: FlopRate,
    /// Memory bandwidth.
    pub memory: Bandwidth,
    /// The fixed cost of every kernel.
    pub launch: Nanos,
    /// How many ranks, counted from rank 0, share a node.
    pub ranks_per_node: u32,
    /// Whether that is only the usual number for a host, so that a launcher knows better: not if a
    /// file gives it, nor if `nvlink` connects several hosts.
    pub is_usual: bool,
    /// The link within a node.
    pub nvlink: Link,
    /// The link between nodes.
    pub network: Link,
}

/// The fixed cost of a kernel if a file gives none: the time of a launch.
const LAUNCH: Nanos = Nanos::micros(2.5);

/// The fields that a file must have.
pub(super) const REQUIRED: [&str; 5] =
    ["peak_tflops", "memory_gb_per_s", "ranks_per_node", "nvlink_gb_per_s", "network_gb_per_s"];

/// The fields that a file may have.
const OPTIONAL: [&str; 11] = [
    "name",
    "launch_us",
    "nvlink_base_us",
    "nvlink_hop_us",
    "nvlink_pair_gb_per_s",
    "nvlink_ramp_us",
    "nvlink_all_reduce",
    "network_base_us",
    "network_hop_us",
    "network_ramp_us",
    "network_all_reduce",
];

impl Device {
    /// The names of all presets.
    pub const NAMES: [&str; PRESETS.len()] = {
        let mut names = [""; PRESETS.len()];
        let mut index = 0;
        while index < PRESETS.len() {
            names[index] = PRESETS[index].0;
            index += 1;
        }
        names
    };

    /// The preset of a name.
    pub fn named(name: &str) -> Result<Device, Unknown> {
        let unknown = || Unknown::new("device", name, Device::NAMES);
        let lower = name.to_lowercase();
        let &(_, [peak, memory], node, [nvlink, network], _) =
            PRESETS.iter().find(|preset| preset.0 == lower).ok_or_else(unknown)?;
        let (ranks_per_node, is_usual) = match node {
            NodeSize::Host(ranks) => (ranks, true),
            NodeSize::Rack(ranks) => (ranks, false),
        };
        // A test names every preset, so that none names a missing link.
        let link = |name| Link::named(name, None).map_err(|_| unknown());
        Ok(Device {
            peak: FlopRate::teras(peak),
            memory: Bandwidth::gigas(memory),
            launch: LAUNCH,
            ranks_per_node,
            is_usual,
            nvlink: link(nvlink)?,
            network: link(network)?,
        })
    }

    /// The name of the preset for what a driver calls its device, such as "NVIDIA H100 PCIe".
    pub fn reported(name: &str) -> Option<&'static str> {
        presets::reported(name)
    }

    /// Reads a device from a file, plain or gzipped. Unknown fields are refused: a misspelt
    /// optional one would silently have no effect.
    pub fn read(bytes: &[u8]) -> Result<Device, DeviceError> {
        Device::of(&Fields::read(bytes)?)
    }

    /// The device of a file as one line of JSON, however its fields are spaced and sorted: equal
    /// text is the same device.
    pub fn tidied(bytes: &[u8]) -> Result<String, DeviceError> {
        let mut fields = Fields::read(bytes)?;
        Device::of(&fields)?;
        fields.0.sort_by(|(a, _), (b, _)| a.cmp(b));
        Ok(Value::Object(fields.0.into_iter().collect()).to_string())
    }

    fn of(fields: &Fields) -> Result<Device, DeviceError> {
        Ok(Device {
            peak: FlopRate::teras(fields.rate("peak_tflops")?),
            memory: Bandwidth::gigas(fields.rate("memory_gb_per_s")?),
            launch: fields.time("launch_us", LAUNCH)?,
            ranks_per_node: fields.count("ranks_per_node")?,
            is_usual: false,
            nvlink: Device::nvlink(fields)?,
            network: Device::network(fields)?,
        })
    }

    fn nvlink(fields: &Fields) -> Result<Link, DeviceError> {
        let usual = Link::within_node(fields.rate("nvlink_gb_per_s")?);
        let pair = match fields.get("nvlink_pair_gb_per_s") {
            Some(_) => Bandwidth::gigas(fields.rate("nvlink_pair_gb_per_s")?),
            None => usual.pair,
        };
        Ok(Link {
            base: fields.time("nvlink_base_us", usual.base)?,
            hop: fields.time("nvlink_hop_us", usual.hop)?,
            pair,
            ramp: fields.time("nvlink_ramp_us", usual.ramp)?,
            all_reduce: fields.passes("nvlink_all_reduce", usual.all_reduce)?,
            ..usual
        })
    }

    fn network(fields: &Fields) -> Result<Link, DeviceError> {
        let usual = Link::across_nodes(fields.rate("network_gb_per_s")?);
        Ok(Link {
            base: fields.time("network_base_us", usual.base)?,
            hop: fields.time("network_hop_us", usual.hop)?,
            ramp: fields.time("network_ramp_us", usual.ramp)?,
            all_reduce: fields.passes("network_all_reduce", usual.all_reduce)?,
            ..usual
        })
    }
}

/// The fields of a file.
struct Fields(Vec<(String, Value)>);

impl Fields {
    fn read(bytes: &[u8]) -> Result<Fields, DeviceError> {
        let fields = json::fields(bytes)
            .map_err(|error| DeviceError::NotAnObject { problem: error.to_string() })?;
        let known = || REQUIRED.into_iter().chain(OPTIONAL);
        match fields.iter().find(|(name, _)| !known().any(|field| field == name)) {
            Some((name, _)) => Err(Unknown::new("field", name, known()).into()),
            None => Ok(Fields(fields)),
        }
    }

    /// A rate; above zero, because it is a divisor.
    fn rate(&self, field: &'static str) -> Result<f64, DeviceError> {
        let given =
            GivenField { field, value: self.required(field)?, right: "a number above zero" };
        match given.number()? {
            number if number > 0.0 => Ok(number),
            _ => Err(given.bad("not above zero")),
        }
    }

    fn count(&self, field: &'static str) -> Result<u32, DeviceError> {
        let value = self.required(field)?;
        let given = GivenField { field, value, right: "an integer from 1 to 4294967295" };
        match given.number()? {
            number if number.fract() != 0.0 => Err(given.bad("not an integer")),
            number if (1.0..=f64::from(u32::MAX)).contains(&number) => Ok(number as u32),
            _ => Err(given.bad("out of range")),
        }
    }

    /// An optional time in microseconds.
    fn time(&self, field: &'static str, otherwise: Nanos) -> Result<Nanos, DeviceError> {
        let Some(value) = self.get(field) else { return Ok(otherwise) };
        let given = GivenField { field, value, right: "a time in microseconds, zero or more" };
        match given.number()? {
            number if number >= 0.0 => Ok(Nanos::micros(number)),
            _ => Err(given.bad("negative")),
        }
    }

    /// How many times the bytes of an all-reduce cross a link; optional.
    fn passes(&self, field: &'static str, otherwise: f64) -> Result<f64, DeviceError> {
        let Some(value) = self.get(field) else { return Ok(otherwise) };
        let given = GivenField { field, value, right: "a number from 1 to 2" };
        match given.number()? {
            number if (1.0..=2.0).contains(&number) => Ok(number),
            _ => Err(given.bad("out of range")),
        }
    }

    fn required(&self, field: &'static str) -> Result<&Value, DeviceError> {
        self.get(field).ok_or(DeviceError::Missing { field })
    }

    fn get(&self, field: &str) -> Option<&Value> {
        self.0.iter().find(|(name, _)| name == field).map(|(_, value)| value)
    }
}

/// The value of a field in a file, and what would be right.
struct GivenField<'a> {
    field: &'static str,
    value: &'a Value,
    right: &'static str,
}

impl GivenField<'_> {
    fn number(&self) -> Result<f64, DeviceError> {
        json::number(self.value).map_err(|problem| self.bad(problem))
    }

    fn bad(&self, problem: &'static str) -> DeviceError {
        let GivenField { field, value, right } = *self;
        DeviceError::BadField { field, value: json::shown(value), problem, right }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: &str = r#"{"name": "mine", "peak_tflops": 450, "memory_gb_per_s": 2600, "ranks_per_node": 4,
        "nvlink_gb_per_s": 330, "network_gb_per_s": 45, "launch_us": 3, "network_hop_us": 20}"#;

    #[test]
    fn presets_by_name_as_documented() {
        let document = include_str!("../../../../docs/costs.md");
        for (name, [peak, memory], node, [nvlink, network], _) in PRESETS {
            let (NodeSize::Host(ranks) | NodeSize::Rack(ranks)) = node;
            let device = Device::named(name).unwrap();
            assert_eq!(device, Device::named(&name.to_uppercase()).unwrap());
            let (near, far) = (device.nvlink.bandwidth.0 / 1e9, device.network.bandwidth.0 / 1e9);
            let row = format!(
                "| `{name}` | {peak} | {memory} | {ranks} | `{nvlink}` {near} | `{network}` {far} |"
            );
            assert!(document.contains(&row), "docs/costs.md must have {row}");
        }
        let said = Device::named("h10").unwrap_err().to_string();
        assert_eq!(said, "unknown device 'h10'; did you mean 'h100'?");
    }

    fn figures(name: &str) -> [f64; 4] {
        let device = Device::named(name).unwrap();
        [device.peak.0, device.memory.0, device.nvlink.bandwidth.0, device.network.bandwidth.0]
    }

    #[test]
    fn figures_grow_with_the_generation() {
        for line in [
            &["v100", "a100", "h100", "b200", "gb200"][..],
            &["h100", "h200"],
            &["b200", "b300", "gb300"],
            &["rtx_3090", "rtx_4090", "rtx_5090"],
            &["l4", "l40", "l40s"],
            &["mi210", "mi250x", "mi300x", "mi325x", "mi350x", "mi355x"],
            &["h100_pcie", "h100_nvl", "h200_nvl", "h200"],
            // What lacks memory, a module or links is no faster than what has all.
            &["v100_pcie", "v100"],
            &["a100_40gb", "a100"],
            &["a100_pcie_40gb", "a100_pcie", "a100"],
            &["a800_pcie", "a800", "a100"],
            &["h800_pcie", "h800", "h100"],
            &["h20", "h20_3e", "h200"],
            &["a10g", "a10", "a30"],
        ] {
            for (slower, faster) in line.iter().zip(&line[1..]) {
                let (less, more) = (figures(slower), figures(faster));
                assert!(
                    less.iter().zip(more).all(|(less, more)| *less <= more),
                    "{slower} {less:?} {faster} {more:?}"
                );
                assert_ne!(less, more, "{slower} {faster}");
            }
        }
        let gpus = Device::NAMES.into_iter().filter(|name| *name != "cpu");
        assert!(gpus.map(figures).all(|gpu| figures("cpu")[..3] < gpu[..3]));
    }

    #[test]
    fn the_network_is_slower_than_the_link_within_a_node() {
        for name in Device::NAMES {
            let device = Device::named(name).unwrap();
            assert!(device.network.bandwidth <= device.nvlink.bandwidth, "{name}");
            assert!(device.nvlink.hop <= device.network.hop, "{name}");
        }
    }

    #[test]
    fn a_launcher_knows_no_racks_and_a_file_needs_none() {
        let nodes = |name| {
            Device::named(name).map(|device| (device.ranks_per_node, device.is_usual)).unwrap()
        };
        assert_eq!(nodes("h100"), (8, true));
        assert_eq!(nodes("gb200"), (72, false));
        assert_eq!(nodes("tpu_v5e"), (256, false));
        assert!(!Device::read(OWN.as_bytes()).unwrap().is_usual);
    }

    #[test]
    fn the_same_device_is_the_same_text() {
        let text = Device::tidied(OWN.as_bytes()).unwrap();
        assert!(
            text.starts_with(
                r#"{"launch_us":3,"memory_gb_per_s":2600,"name":"mine","network_gb_per_s":45,"#
            ),
            "{text}"
        );
        assert_eq!(Device::read(text.as_bytes()), Device::read(OWN.as_bytes()));
        assert_eq!(Device::tidied(text.as_bytes()), Ok(text));
        assert_eq!(Device::tidied(b"{}").unwrap_err(), Device::read(b"{}").unwrap_err());
    }

    #[test]
    fn a_device_of_ones_own() {
        let device = Device::read(OWN.as_bytes()).unwrap();
        assert_eq!(device.peak, FlopRate(450e12));
        assert_eq!(device.memory, Bandwidth(2.6e12));
        assert_eq!((device.launch, device.ranks_per_node), (Nanos(3000.0), 4));
        assert_eq!(device.nvlink, Link::within_node(330.0));
        assert_eq!(device.network, Link { hop: Nanos(20_000.0), ..Link::across_nodes(45.0) });
        let more = OWN.replace(
            r#""launch_us": 3"#,
            r#""nvlink_base_us": 12, "nvlink_pair_gb_per_s": 50, "nvlink_ramp_us": 0, "nvlink_all_reduce": 1.5"#,
        );
        let nvlink = Device::read(more.as_bytes()).unwrap().nvlink;
        let own = Link { base: Nanos(12_000.0), ramp: Nanos::ZERO, ..Link::within_node(330.0) };
        assert_eq!(nvlink, Link { pair: Bandwidth(50e9), all_reduce: 1.5, ..own });
        let less = OWN.replace(r#""launch_us": 3, "network_hop_us": 20"#, r#""network_hop_us": 0"#);
        assert_eq!(Device::read(less.as_bytes()).unwrap().launch, LAUNCH);
    }

    #[test]
    fn errors_name_the_field() {
        let said = |from: &str, to: &str| {
            Device::read(OWN.replace(from, to).as_bytes()).unwrap_err().to_string()
        };
        assert_eq!(
            said("450", "0"),
            "field 'peak_tflops': 0 is not above zero; it must be a number above zero"
        );
        assert_eq!(
            said("450", "NaN"),
            "field 'peak_tflops': NaN is not finite; it must be a number above zero"
        );
        assert_eq!(
            said("2600", "\"x\""),
            "field 'memory_gb_per_s': \"x\" is not a number; it must be a number above zero"
        );
        let count = "it must be an integer from 1 to 4294967295";
        assert_eq!(
            said(": 4,", ": 0,"),
            format!("field 'ranks_per_node': 0 is out of range; {count}")
        );
        assert_eq!(
            said(": 4,", ": 4.5,"),
            format!("field 'ranks_per_node': 4.5 is not an integer; {count}")
        );
        assert_eq!(
            said("\"launch_us\": 3", "\"launch_us\": -3"),
            "field 'launch_us': -3 is negative; it must be a time in microseconds, zero or more"
        );
        assert_eq!(
            said("\"launch_us\": 3", "\"nvlink_all_reduce\": 3"),
            "field 'nvlink_all_reduce': 3 is out of range; it must be a number from 1 to 2"
        );
        assert_eq!(
            said("launch_us", "lunch_us"),
            "unknown field 'lunch_us'; did you mean 'launch_us'?"
        );
        let missing = said("\"peak_tflops\": 450,", "");
        assert!(
            missing.starts_with("field 'peak_tflops' is missing: a device has peak_tflops, "),
            "{missing}"
        );
        let twice = said("launch_us", "name");
        assert!(twice.starts_with("not a device: 'name' appears twice at line 2"), "{twice}");
        let list = Device::read(b"[1]").unwrap_err().to_string();
        assert!(
            list.starts_with("not a device: invalid type: sequence, expected an object"),
            "{list}"
        );
    }
}
