//! Run times, as requested on the command line.

use std::borrow::Cow;
use std::path::Path;

use halflap::Unknown;
use halflap::cost::{Costs, Device, Link, Profile};

use crate::args::CostArgs;
use crate::exit::Failed;
use crate::files;
use crate::place::{self, Input};

/// What the arguments name.
pub fn read(args: &CostArgs, program: &Input) -> Result<Costs, Failed> {
    let sources = [Some(program), args.device.as_ref(), args.profile.as_ref()];
    if sources.into_iter().flatten().filter(|source| source.is_stdin()).count() > 1 {
        let problem = "only one of graph, --device and --profile can come from standard input";
        return Err(Failed::BadInput(problem.to_owned()));
    }
    let mut device = args.device.as_ref().map(device).transpose()?;
    if let (Some(device), Some(ranks)) = (&mut device, args.ranks_per_node) {
        device.ranks_per_node = ranks;
    }
    let link = args.link.as_deref().map(|name| link(name, device.as_ref())).transpose()?;
    let profile = args.profile.as_ref().map(profile).transpose()?;
    Ok(Costs { device, link, profile, speedup: None })
}

fn device(input: &Input) -> Result<Device, Failed> {
    let described = match input.path().map(|name| (name, Device::named(name))) {
        Some((_, Ok(preset))) => return Ok(preset),
        Some((name, Err(unknown))) => Cow::Owned(file(name, &unknown)?),
        None => files::read(input)?,
    };
    Device::read(&described).map_err(|error| Failed::in_file(input.name(), error))
}

/// The device that `--device` names, independent of its path: a preset's name, or the content of a
/// file.
pub fn described_device(name: &str) -> Result<String, Failed> {
    match Device::named(name) {
        Ok(_) => Ok(name.to_lowercase()),
        Err(unknown) => Device::tidied(&file(name, &unknown)?)
            .map_err(|error| Failed::in_file(place::name_of(name), error)),
    }
}

/// The content of a file. A name that is neither a preset nor looks like a file is a typo.
fn file(name: &str, unknown: &Unknown) -> Result<Vec<u8>, Failed> {
    let is_file = name == "-" || name.contains(['/', '\\', '.']) || Path::new(name).exists();
    if !is_file {
        return Err(Failed::BadInput(format!("--device: {unknown} (and there is no such file)")));
    }
    files::read_file(name)
}

fn link(name: &str, device: Option<&Device>) -> Result<Link, Failed> {
    Link::named(name, device).map_err(|error| Failed::BadInput(format!("--link: {error}")))
}

fn profile(input: &Input) -> Result<Profile, Failed> {
    Profile::read(&files::read(input)?).map_err(|error| Failed::in_file(input.name(), error))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use halflap::cost::Times;
    use halflap::graph::Graph;
    use halflap::import::read_graph;

    use super::*;

    /// a has nothing but its work; gather stays in one node.
    const GRAPH: &str = r#"{
        "format": "halflap.graph/1", "groups": { "g": { "ranks": [0, 1, 2, 3, 4, 5, 6, 7] } },
        "nodes": [
            { "name": "a", "kind": "compute", "runtime_ns": null, "flops": 989e9, "outputs": [], "deps": [] },
            { "name": "gather", "kind": "collective", "runtime_ns": 7, "outputs": [], "deps": [], "collective":
                { "op": "all_gather", "group": "g", "group_size": 8, "bytes": 1000000000, "async": true } }
        ],
        "buffers": [], "inputs": []
    }"#;

    fn times(args: &CostArgs, graph: &Graph) -> Result<Times, Failed> {
        read(args, &Input::from("g.json"))?
            .times(graph)
            .map_err(|error| Failed::BadInput(error.to_string()))
    }

    /// The times of both nodes in whole nanoseconds, or the error message.
    fn asked(device: &str, link: &str, profile: &str) -> Result<[f64; 2], String> {
        let given = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        let args = CostArgs {
            device: given(device).map(Input::File),
            link: given(link),
            profile: given(profile).map(Input::File),
            ranks_per_node: None,
        };
        let graph = read_graph(GRAPH.as_bytes()).unwrap();
        match times(&args, &graph) {
            Ok(times) => {
                Ok(["a", "gather"].map(|name| times.of(graph.find(name).unwrap()).0.round()))
            }
            Err(Failed::BadInput(said)) => Err(said),
            Err(other) => panic!("{other:?}"),
        }
    }

    fn written(name: &str, text: &str) -> String {
        let path =
            std::env::temp_dir().join(format!("halflap-costs-{}-{name}", std::process::id()));
        fs::write(&path, text).unwrap();
        path.display().to_string()
    }

    #[test]
    fn devices_links_and_profiles() {
        assert_eq!(asked("h100", "", ""), Ok([1_002_500.0, 2_610_840.0]));
        assert_eq!(asked("h100", "network", ""), Ok([1_002_500.0, 18_129_341.0]));
        let own = written(
            "own.json",
            r#"{"peak_tflops": 98.9, "memory_gb_per_s": 1, "ranks_per_node": 8, "nvlink_gb_per_s": 370, "network_gb_per_s": 1, "launch_us": 0}"#,
        );
        let times = written("times.json", r#"{"gather": 12}"#);
        assert_eq!(asked(&own, "", &times), Ok([10_000_000.0, 12.0]));
        let strange = written("strange.json", r#"{"gathr": 12, "d": 1}"#);
        let said = asked("h100", "", &strange).unwrap_err();
        assert_eq!(
            said,
            "'gathr' is not a node of the graph, nor is another name; did you mean 'gather'?"
        );
        let said = asked(&times, "", "").unwrap_err();
        assert!(
            said.starts_with(&format!("{times}: unknown field 'gather'; known are peak_tflops, ")),
            "{said}"
        );
        for path in [own, times, strange] {
            fs::remove_file(path).unwrap();
        }
    }

    #[test]
    fn ranks_may_share_nodes_otherwise_than_is_usual() {
        let graph = read_graph(GRAPH.as_bytes()).unwrap();
        let gather = |device: &str, ranks_per_node| {
            let args =
                CostArgs { device: Some(device.into()), ranks_per_node, ..CostArgs::default() };
            let times = times(&args, &graph).unwrap_or_else(|failed| panic!("{failed:?}"));
            times.of(graph.find("gather").unwrap()).0.round()
        };
        assert_eq!(gather("h100", None), gather("h100", Some(8)));
        // Two cards of each of four nodes: 16.5 us + 4 * 1.48 us + 3 * 5 us, 100 * 8/7 GB/s, and
        // 2 * sqrt(4.77 us * 8.75 ms) for the ramp.
        assert_eq!(gather("h100", Some(2)), 37_420.0 + 8_750_000.0 + 408_595.0);
        let own = written(
            "nodes.json",
            r#"{"peak_tflops": 1, "memory_gb_per_s": 1, "ranks_per_node": 2, "nvlink_gb_per_s": 369, "network_gb_per_s": 50}"#,
        );
        assert_eq!(gather(&own, None), gather("h100", Some(2)));
        assert_eq!(gather(&own, Some(8)), gather("h100", None));
        let text = described_device(&own).unwrap_or_else(|failed| panic!("{failed:?}"));
        assert!(text.starts_with(r#"{"memory_gb_per_s":1,"#), "{text}");
        assert!(matches!(described_device("H100"), Ok(name) if name == "h100"));
        fs::remove_file(own).unwrap();
    }

    #[test]
    fn what_is_wrong_is_named() {
        let said = |device, link, profile| asked(device, link, profile).unwrap_err();
        assert_eq!(
            said("h10", "", ""),
            "--device: unknown device 'h10'; did you mean 'h100'? (and there is no such file)"
        );
        assert!(said("./h10.json", "", "").starts_with("./h10.json: cannot be read: "));
        assert_eq!(
            said("h100", "nvlnk", ""),
            "--link: unknown link 'nvlnk'; did you mean 'nvlink'?"
        );
        assert!(
            said("", "nvlink", "")
                .starts_with("--link: 'nvlink' is a device's own link: say whose with --device")
        );
        assert!(
            said("", "ib400", "")
                .starts_with("node 'a' has no run time, and --link models collectives")
        );
        assert!(
            said("", "", "")
                .starts_with("node 'a' has no run time (runtime_ns is null): model it with")
        );
        assert_eq!(
            said("-", "", "-"),
            "only one of graph, --device and --profile can come from standard input"
        );
    }
}
