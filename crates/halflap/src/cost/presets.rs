//! The devices that have a name: their figures, and what drivers call them.
//!
//! Peaks and memory bandwidths are those of the makers' data sheets: dense, for bf16 with sums in
//! fp32 (fp16 where a device has no bf16). docs/costs.md lists them and says where they are from.

use NodeSize::{Host, Rack};

/// How many ranks share the faster link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NodeSize {
    /// The ranks of one host: this many, unless the launcher says otherwise.
    Host(u32),
    /// The ranks of several hosts, which a launcher does not know about.
    Rack(u32),
}

/// Its name; peak in TFLOP/s and memory in GB/s; the ranks of a node; the link within a node and
/// the network; what drivers call it, without the maker's words.
pub(super) type Preset =
    (&'static str, [f64; 2], NodeSize, [&'static str; 2], &'static [&'static str]);

#[rustfmt::skip]
pub(super) const PRESETS: [Preset; 44] = [
    ("v100", [125.0, 900.0], Host(8), ["nvlink2", "ib100"], &["v100 16gb", "v100 32gb"]),
    ("v100_pcie", [112.0, 900.0], Host(8), ["pcie3", "ib100"], &["v100 pcie 16gb", "v100 pcie 32gb"]),
    ("t4", [65.0, 320.0], Host(4), ["pcie3", "eth10"], &["t4"]),
    ("a100", [312.0, 2039.0], Host(8), ["nvlink3", "ib200"], &["a100 80gb"]),
    ("a100_40gb", [312.0, 1555.0], Host(8), ["nvlink3", "ib200"], &["a100 40gb"]),
    ("a100_pcie", [312.0, 1935.0], Host(8), ["pcie4", "ib200"], &["a100 pcie 80gb"]),
    ("a100_pcie_40gb", [312.0, 1555.0], Host(8), ["pcie4", "ib200"], &["a100 pcie 40gb"]),
    ("a800", [312.0, 2039.0], Host(8), ["nvlink400", "ib200"], &["a800 80gb"]),
    ("a800_pcie", [312.0, 1935.0], Host(8), ["pcie4", "ib200"], &["a800 pcie 80gb"]),
    ("a10", [125.0, 600.0], Host(4), ["pcie4", "eth25"], &["a10"]),
    ("a10g", [70.0, 600.0], Host(4), ["pcie4", "eth10"], &["a10g"]),
    ("a30", [165.0, 933.0], Host(8), ["pcie4", "ib100"], &["a30"]),
    ("a40", [149.7, 696.0], Host(8), ["pcie4", "ib100"], &["a40"]),
    ("l4", [121.0, 300.0], Host(8), ["pcie4", "eth10"], &["l4"]),
    ("l40", [181.0, 864.0], Host(8), ["pcie4", "ib100"], &["l40"]),
    ("l40s", [362.0, 864.0], Host(8), ["pcie4", "ib100"], &["l40s"]),
    ("rtx_3090", [71.0, 936.0], Host(4), ["pcie4", "eth10"], &["rtx 3090"]),
    ("rtx_4090", [165.2, 1008.0], Host(4), ["pcie4", "eth10"], &["rtx 4090"]),
    ("rtx_5090", [209.5, 1792.0], Host(4), ["pcie5", "eth10"], &["rtx 5090"]),
    ("rtx_a6000", [154.8, 768.0], Host(4), ["pcie4", "eth25"], &["rtx a6000"]),
    ("rtx_6000_ada", [364.2, 960.0], Host(4), ["pcie4", "eth25"], &["rtx 6000 ada"]),
    ("h100", [989.0, 3350.0], Host(8), ["nvlink4", "ib400"], &["h100", "h100 80gb"]),
    ("h100_pcie", [756.0, 2000.0], Host(8), ["pcie5", "ib200"], &["h100 pcie", "h100 80gb hbm2e"]),
    ("h100_nvl", [835.0, 3900.0], Host(8), ["pcie5", "ib200"], &["h100 nvl"]),
    ("h200", [989.0, 4800.0], Host(8), ["nvlink4", "ib400"], &["h200", "h200 141gb"]),
    ("h200_nvl", [835.0, 4800.0], Host(8), ["pcie5", "ib200"], &["h200 nvl"]),
    ("h20", [148.0, 4000.0], Host(8), ["nvlink4", "ib400"], &["h20"]),
    ("h20_3e", [148.0, 4800.0], Host(8), ["nvlink4", "ib400"], &["h20 3e"]),
    ("h800", [989.0, 3350.0], Host(8), ["nvlink400", "ib400"], &["h800"]),
    ("h800_pcie", [756.0, 2000.0], Host(8), ["pcie5", "ib200"], &["h800 pcie"]),
    ("gh200", [989.0, 4000.0], Host(1), ["nvlink4", "ib400"], &["gh200 480gb", "gh200 120gb", "gh200 96gb"]),
    ("gh200_144gb", [989.0, 4900.0], Host(1), ["nvlink4", "ib400"], &["gh200 144g", "gh200 144gb"]),
    ("b200", [2250.0, 8000.0], Host(8), ["nvlink5", "ib400"], &["b200"]),
    ("gb200", [2500.0, 8000.0], Rack(72), ["nvl72", "ib400"], &["gb200"]),
    ("b300", [2250.0, 8000.0], Host(8), ["nvlink5", "ib800"], &["b300"]),
    ("gb300", [2500.0, 8000.0], Rack(72), ["nvl72", "ib800"], &["gb300"]),
    ("mi210", [181.0, 1638.0], Host(8), ["pcie4", "ib100"], &["mi210"]),
    ("mi250x", [191.5, 1638.0], Host(8), ["xgmi2", "ib100"], &["mi250x", "mi250x mi250", "mi250"]),
    ("mi300x", [1307.0, 5300.0], Host(8), ["xgmi3", "ib400"], &["mi300x"]),
    ("mi325x", [1307.0, 6000.0], Host(8), ["xgmi3", "ib400"], &["mi325x"]),
    ("mi350x", [2307.0, 8000.0], Host(8), ["xgmi4", "ib400"], &["mi350x"]),
    ("mi355x", [2517.0, 8000.0], Host(8), ["xgmi4", "ib400"], &["mi355x"]),
    ("tpu_v5e", [197.0, 819.0], Rack(256), ["ici5e", "dcn5e"], &[]),
    ("cpu", [1.28, 102.4], Host(2), ["loopback", "eth25"], &[]),
];

/// Words of a reported name that do not distinguish devices: makers and brands, the form factors of
/// nodes with NVLink or xGMI, types of memory, and the marker of a device that is passed through to
/// a virtual machine.
#[rustfmt::skip]
const EMPTY: [&str; 20] = [
    "nvidia", "amd", "tesla", "geforce", "instinct", "tm", "generation", "gpu", "hbm3", "hbm3e",
    "sxm", "sxm2", "sxm3", "sxm4", "sxm5", "sxm6", "oam", "ac", "vf", "hf",
];

/// The preset of a device by the name that its driver reports, such as "NVIDIA H100 PCIe".
///
/// All words count, in any sequence, but for [`EMPTY`] ones: a name with one more, such as that of
/// a laptop, of a slice of a device or of another memory size, is another device's.
pub(super) fn reported(name: &str) -> Option<&'static str> {
    let words = identity(name);
    PRESETS
        .iter()
        .find(|preset| preset.4.iter().any(|known| identity(known) == words))
        .map(|preset| preset.0)
}

/// The words of a name that say which device it is, sorted.
fn identity(name: &str) -> Vec<String> {
    let lower = name.to_lowercase();
    let words = lower.split(|letter: char| !letter.is_ascii_alphanumeric());
    let telling = words.filter(|word| !word.is_empty() && !EMPTY.contains(word));
    let mut words: Vec<String> = telling.map(str::to_owned).collect();
    words.sort_unstable();
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names as `torch.cuda.get_device_name()` gives them.
    #[rustfmt::skip]
    const REAL: [(&str, Option<&str>); 77] = [
        ("Tesla V100-SXM2-16GB", Some("v100")),
        ("Tesla V100-SXM2-32GB", Some("v100")),
        ("Tesla V100-SXM3-32GB", Some("v100")),
        ("Tesla V100-PCIE-16GB", Some("v100_pcie")),
        ("Tesla V100-PCIE-32GB", Some("v100_pcie")),
        ("Tesla V100S-PCIE-32GB", None),
        ("Tesla T4", Some("t4")),
        ("Tesla P100-PCIE-16GB", None),
        ("GRID T4-16Q", None),
        ("NVIDIA A100-SXM4-80GB", Some("a100")),
        ("A100-SXM4-80GB", Some("a100")),
        ("NVIDIA A100-SXM4-40GB", Some("a100_40gb")),
        ("NVIDIA A100-SXM-64GB", None),
        ("NVIDIA A100 80GB PCIe", Some("a100_pcie")),
        ("NVIDIA A100-PCIE-40GB", Some("a100_pcie_40gb")),
        ("NVIDIA A100-SXM4-40GB MIG 3g.20gb", None),
        ("GRID A100-40C", None),
        ("NVIDIA A800-SXM4-80GB", Some("a800")),
        ("NVIDIA A800 80GB PCIe", Some("a800_pcie")),
        ("NVIDIA A10", Some("a10")),
        ("NVIDIA A10G", Some("a10g")),
        ("NVIDIA A10-24Q", None),
        ("NVIDIA A16", None),
        ("NVIDIA A30", Some("a30")),
        ("NVIDIA A40", Some("a40")),
        ("NVIDIA A40-48Q", None),
        ("NVIDIA L4", Some("l4")),
        ("NVIDIA L20", None),
        ("NVIDIA L40", Some("l40")),
        ("NVIDIA L40S", Some("l40s")),
        ("NVIDIA GeForce RTX 3090", Some("rtx_3090")),
        ("NVIDIA GeForce RTX 3090 Ti", None),
        ("NVIDIA GeForce RTX 4090", Some("rtx_4090")),
        ("NVIDIA GeForce RTX 4090 D", None),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", None),
        ("NVIDIA GeForce RTX 5090", Some("rtx_5090")),
        ("NVIDIA GeForce RTX 2080 Ti", None),
        ("NVIDIA RTX A6000", Some("rtx_a6000")),
        ("NVIDIA RTX 6000 Ada Generation", Some("rtx_6000_ada")),
        ("Quadro RTX 6000", None),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", None),
        ("NVIDIA H100 80GB HBM3", Some("h100")),
        ("NVIDIA H100", Some("h100")),
        ("NVIDIA H100 PCIe", Some("h100_pcie")),
        ("NVIDIA H100 80GB HBM2e", Some("h100_pcie")),
        ("NVIDIA H100 NVL", Some("h100_nvl")),
        ("NVIDIA H100 64GB HBM2", None),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", None),
        ("NVIDIA H200", Some("h200")),
        ("NVIDIA H200 NVL", Some("h200_nvl")),
        ("NVIDIA H20", Some("h20")),
        ("NVIDIA H20-3e", Some("h20_3e")),
        ("NVIDIA H800", Some("h800")),
        ("NVIDIA H800 PCIe", Some("h800_pcie")),
        ("NVIDIA GH200 480GB", Some("gh200")),
        ("NVIDIA GH200 120GB", Some("gh200")),
        ("NVIDIA GH200 144G HBM3e", Some("gh200_144gb")),
        ("NVIDIA B200", Some("b200")),
        ("NVIDIA GB200", Some("gb200")),
        ("NVIDIA B300 SXM6 AC", Some("b300")),
        ("NVIDIA GB300", Some("gb300")),
        ("NVIDIA GB10", None),
        ("AMD Instinct MI210", Some("mi210")),
        ("AMD Instinct MI250X / MI250", Some("mi250x")),
        ("AMD Instinct MI250X", Some("mi250x")),
        ("AMD Instinct MI300A", None),
        ("AMD Instinct MI300X", Some("mi300x")),
        ("AMD Instinct MI300X VF", Some("mi300x")),
        ("AMD Instinct MI308X", None),
        ("AMD Instinct MI325X", Some("mi325x")),
        ("AMD Instinct MI350X", Some("mi350x")),
        ("AMD Instinct MI355X VF", Some("mi355x")),
        ("AMD Radeon RX 7900 XTX", None),
        ("AMD Radeon Graphics", None),
        ("Intel(R) Data Center GPU Max 1550", None),
        ("NVIDIA", None),
        ("", None),
    ];

    #[test]
    fn a_device_is_known_by_the_name_that_its_driver_reports() {
        for (name, preset) in REAL {
            assert_eq!(reported(name), preset, "{name}");
            assert_eq!(reported(&name.to_uppercase()), preset, "{name}");
        }
    }

    #[test]
    fn every_gpu_has_a_reported_name_and_no_name_stands_for_two() {
        let mut all = Vec::new();
        for (preset, _, _, _, names) in PRESETS {
            let is_tested = REAL.iter().any(|&(_, expected)| expected == Some(preset));
            assert_eq!(is_tested, !matches!(preset, "cpu" | "tpu_v5e"), "{preset}");
            all.extend(names.iter().map(|name| identity(name)));
        }
        let count = all.len();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), count);
    }
}
