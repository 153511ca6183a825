//! Devices: presets by name, and those that a file describes.

use serde_json::Value;

use super::error::DeviceError;
use super::json;
use super::link::{Hops, Link};
use crate::Unknown;
use crate::units::{Bandwidth, FlopRate, Nanos};

/// What a model needs to know of a device and of what joins it to others.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Device {
    /// Its peak in dense bf16.
    pub peak: FlopRate,
    /// The bandwidth of its memory.
    pub memory: Bandwidth,
    /// What every kernel takes besides its work.
    pub launch: Nanos,
    /// How many ranks, counted from rank 0, share a node.
    pub ranks_per_node: u32,
    /// What joins the ranks of a node.
    pub nvlink: Link,
    /// What joins nodes.
    pub network: Link,
}

/// What a kernel takes besides its work, where a file does not say: what launching one takes.
const LAUNCH: Nanos = Nanos::micros(2.5);

/// A preset: peak in TFLOP/s, memory in GB/s, ranks per node, link within a node, network.
type Preset = (&'static str, f64, f64, u32, &'static str, &'static str);

/// Peaks and memory are the makers' data-sheet figures; docs/costs.md says more.
const PRESETS: [Preset; 7] = [
    ("v100", 125.0, 900.0, 8, "nvlink2", "ib100"),
    ("a100", 312.0, 2039.0, 8, "nvlink3", "ib200"),
    ("h100", 989.0, 3350.0, 8, "nvlink4", "ib400"),
    ("h200", 989.0, 4800.0, 8, "nvlink4", "ib400"),
    ("b200", 2250.0, 8000.0, 8, "nvlink5", "ib400"),
    ("mi300x", 1307.0, 5300.0, 8, "xgmi3", "ib400"),
    ("tpu_v5e", 197.0, 819.0, 256, "ici5e", "dcn5e"),
];

/// The fields that a file must have.
pub(super) const REQUIRED: [&str; 5] =
    ["peak_tflops", "memory_gb_per_s", "ranks_per_node", "nvlink_gb_per_s", "network_gb_per_s"];

/// The fields that a file may have.
const OPTIONAL: [&str; 4] = ["name", "launch_us", "nvlink_hop_us", "network_hop_us"];

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
        let &(_, peak, memory, ranks_per_node, nvlink, network) =
            PRESETS.iter().find(|preset| preset.0 == lower).ok_or_else(unknown)?;
        // A test names every preset, so that none has a link that there is not.
        let link = |name| Link::named(name, None).map_err(|_| unknown());
        Ok(Device {
            peak: FlopRate::teras(peak),
            memory: Bandwidth::gigas(memory),
            launch: LAUNCH,
            ranks_per_node,
            nvlink: link(nvlink)?,
            network: link(network)?,
        })
    }

    /// Reads a device from a file, plain or gzipped. A field that is not known is refused: an
    /// optional one with a slip in its name would have no effect and nobody would notice.
    pub fn read(bytes: &[u8]) -> Result<Device, DeviceError> {
        let fields = json::fields(bytes).map_err(|error| DeviceError::NotAnObject { problem: error.to_string() })?;
        let known = || REQUIRED.into_iter().chain(OPTIONAL);
        if let Some((name, _)) = fields.iter().find(|(name, _)| !known().any(|field| field == name)) {
            return Err(Unknown::new("field", name, known()).into());
        }
        let fields = Fields(fields);
        let hops = |field, otherwise| match fields.time(field)? {
            Some(hop) => Ok(Hops::all(hop)),
            None => Ok::<_, DeviceError>(otherwise),
        };
        let nvlink = Link::within_node(fields.rate("nvlink_gb_per_s")?);
        let network = Link::across_nodes(fields.rate("network_gb_per_s")?);
        Ok(Device {
            peak: FlopRate::teras(fields.rate("peak_tflops")?),
            memory: Bandwidth::gigas(fields.rate("memory_gb_per_s")?),
            launch: fields.time("launch_us")?.unwrap_or(LAUNCH),
            ranks_per_node: fields.count("ranks_per_node")?,
            nvlink: Link { hops: hops("nvlink_hop_us", nvlink.hops)?, ..nvlink },
            network: Link { hops: hops("network_hop_us", network.hops)?, ..network },
        })
    }
}

/// The fields of a file.
struct Fields(Vec<(String, Value)>);

impl Fields {
    /// A rate, above zero, because it divides.
    fn rate(&self, field: &'static str) -> Result<f64, DeviceError> {
        const RIGHT: &str = "a number above zero";
        let value = self.required(field)?;
        match json::number(value) {
            Ok(number) if number > 0.0 => Ok(number),
            Ok(_) => Err(bad(field, value, ("not above zero", RIGHT))),
            Err(problem) => Err(bad(field, value, (problem, RIGHT))),
        }
    }

    fn count(&self, field: &'static str) -> Result<u32, DeviceError> {
        const RIGHT: &str = "a whole number from 1 to 4294967295";
        let value = self.required(field)?;
        match json::number(value) {
            Ok(number) if number.fract() != 0.0 => Err(bad(field, value, ("not a whole number", RIGHT))),
            Ok(number) if (1.0..=f64::from(u32::MAX)).contains(&number) => Ok(number as u32),
            Ok(_) => Err(bad(field, value, ("out of range", RIGHT))),
            Err(problem) => Err(bad(field, value, (problem, RIGHT))),
        }
    }

    /// An optional time in microseconds.
    fn time(&self, field: &'static str) -> Result<Option<Nanos>, DeviceError> {
        const RIGHT: &str = "a time in microseconds, zero or more";
        let Some(value) = self.get(field) else { return Ok(None) };
        match json::number(value) {
            Ok(number) if number >= 0.0 => Ok(Some(Nanos::micros(number))),
            Ok(_) => Err(bad(field, value, ("negative", RIGHT))),
            Err(problem) => Err(bad(field, value, (problem, RIGHT))),
        }
    }

    fn required(&self, field: &'static str) -> Result<&Value, DeviceError> {
        self.get(field).ok_or(DeviceError::Missing { field })
    }

    fn get(&self, field: &str) -> Option<&Value> {
        self.0.iter().find(|(name, _)| name == field).map(|(_, value)| value)
    }
}

fn bad(field: &'static str, value: &Value, (problem, right): (&'static str, &'static str)) -> DeviceError {
    DeviceError::BadField { field, value: json::shown(value), problem, right }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: &str = r#"{"name": "mine", "peak_tflops": 450, "memory_gb_per_s": 2600, "ranks_per_node": 4,
        "nvlink_gb_per_s": 330, "network_gb_per_s": 45, "launch_us": 3, "network_hop_us": 20}"#;

    #[test]
    fn presets_by_name_as_documented() {
        let document = include_str!("../../../../docs/costs.md");
        for (name, peak, memory, ranks, nvlink, network) in PRESETS {
            let device = Device::named(name).unwrap();
            assert_eq!(device, Device::named(&name.to_uppercase()).unwrap());
            let (near, far) = (device.nvlink.bandwidth.0 / 1e9, device.network.bandwidth.0 / 1e9);
            let row = format!("| `{name}` | {peak} | {memory} | {ranks} | `{nvlink}` {near} | `{network}` {far} |");
            assert!(document.contains(&row), "docs/costs.md must have {row}");
        }
        let said = Device::named("h10").unwrap_err().to_string();
        assert_eq!(said, "unknown device 'h10'; did you mean 'h100'?");
    }

    #[test]
    fn a_device_of_ones_own() {
        let device = Device::read(OWN.as_bytes()).unwrap();
        assert_eq!(device.peak, FlopRate(450e12));
        assert_eq!(device.memory, Bandwidth(2.6e12));
        assert_eq!((device.launch, device.ranks_per_node), (Nanos(3000.0), 4));
        assert_eq!(device.nvlink, Link::within_node(330.0));
        assert_eq!(device.network, Link { hops: Hops::all(Nanos(20_000.0)), ..Link::across_nodes(45.0) });
        let less = OWN.replace(r#""launch_us": 3, "network_hop_us": 20"#, r#""network_hop_us": 0"#);
        assert_eq!(Device::read(less.as_bytes()).unwrap().launch, LAUNCH);
    }

    #[test]
    fn errors_name_the_field() {
        let said = |from: &str, to: &str| Device::read(OWN.replace(from, to).as_bytes()).unwrap_err().to_string();
        assert_eq!(said("450", "0"), "field 'peak_tflops': 0 is not above zero; it must be a number above zero");
        assert_eq!(said("450", "NaN"), "field 'peak_tflops': NaN is not finite; it must be a number above zero");
        assert_eq!(
            said("2600", "\"x\""),
            "field 'memory_gb_per_s': \"x\" is not a number; it must be a number above zero"
        );
        let count = "it must be a whole number from 1 to 4294967295";
        assert_eq!(said(": 4,", ": 0,"), format!("field 'ranks_per_node': 0 is out of range; {count}"));
        assert_eq!(said(": 4,", ": 4.5,"), format!("field 'ranks_per_node': 4.5 is not a whole number; {count}"));
        assert_eq!(
            said("\"launch_us\": 3", "\"launch_us\": -3"),
            "field 'launch_us': -3 is negative; it must be a time in microseconds, zero or more"
        );
        assert_eq!(said("launch_us", "lunch_us"), "unknown field 'lunch_us'; did you mean 'launch_us'?");
        let missing = said("\"peak_tflops\": 450,", "");
        assert!(missing.starts_with("field 'peak_tflops' is missing: a device has peak_tflops, "), "{missing}");
        let twice = said("launch_us", "name");
        assert!(twice.starts_with("not a device: 'name' stands there twice at line 2"), "{twice}");
        let list = Device::read(b"[1]").unwrap_err().to_string();
        assert!(list.starts_with("not a device: invalid type: sequence, expected an object"), "{list}");
    }
}
