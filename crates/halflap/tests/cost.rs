//! Run times: which come before which, and what is said where there are none.

mod common;

use halflap::cost::{Costs, Device, Link, Profile, Times};
use halflap::graph::Graph;
use halflap::import::read_graph;
use halflap::units::{Bytes, Flops, Nanos};
use serde_json::{Value, json};

/// a has work and traffic, b neither; gather stays in one node, s is of no known kind; w is a wait.
fn program() -> Value {
    let node = |name: &str, kind: &str, runtime: Value| json!({ "name": name, "kind": kind, "runtime_ns": runtime, "outputs": [], "deps": [] });
    let collective = |op: &str| json!({ "op": op, "group": "g", "group_size": 8, "bytes": 1_000_000_000, "async": true });
    let mut nodes = [
        node("a", "compute", json!(1)),
        node("b", "compute", json!(2)),
        node("gather", "collective", json!(3)),
        node("s", "collective", json!(4)),
        node("w", "wait", json!(0)),
    ];
    nodes[0]["flops"] = json!(989e9);
    nodes[0]["bytes"] = json!(335_000_000);
    nodes[2]["collective"] = collective("all_gather");
    nodes[3]["collective"] = collective("shuffle");
    json!({
        "format": "halflap.graph/1",
        "groups": { "g": { "ranks": [0, 1, 2, 3, 4, 5, 6, 7] } },
        "nodes": nodes,
        "buffers": [],
        "inputs": [],
    })
}

fn graph(change: impl FnOnce(&mut Value)) -> Graph {
    let mut program = program();
    change(&mut program);
    read_graph(program.to_string().as_bytes()).unwrap()
}

fn without_times(names: &[usize]) -> Graph {
    graph(|g| names.iter().for_each(|&index| g["nodes"][index]["runtime_ns"] = Value::Null))
}

fn h100() -> Option<Device> {
    Some(Device::named("h100").unwrap())
}

fn profile(text: &str) -> Option<Profile> {
    Some(Profile::read(text.as_bytes()).unwrap())
}

/// All times in whole nanoseconds.
fn times(costs: &Costs, graph: &Graph) -> Vec<f64> {
    let times = costs.times(graph).unwrap();
    graph.ops().map(|op| times.of(op).0.round()).collect()
}

#[test]
fn measured_before_modelled_before_given() {
    let graph = graph(|_| ());
    let given = Costs::default();
    assert_eq!(times(&given, &graph), [1.0, 2.0, 3.0, 4.0, 0.0]);
    let modelled = Costs { device: h100(), ..given.clone() };
    assert_eq!(times(&modelled, &graph), [1_002_500.0, 2.0, 2_610_840.0, 4.0, 0.0]);
    let link = Some(Link::named("ib400", None).unwrap());
    let linked = Costs { link, ..given };
    assert_eq!(times(&linked, &graph), [1.0, 2.0, 18_129_341.0, 4.0, 0.0]);
    assert_eq!(
        times(&Costs { device: h100(), ..linked.clone() }, &graph)[..3],
        [1_002_500.0, 2.0, 18_129_341.0]
    );
    let profile = profile(r#"{ "gather": 5, "b": 6.0, "w": 7 }"#);
    assert_eq!(times(&Costs { profile, ..modelled }, &graph), [1_002_500.0, 6.0, 5.0, 4.0, 7.0]);
}

#[test]
fn a_graph_may_have_no_times() {
    let graph = without_times(&[0, 1, 2, 3, 4]);
    let a = graph.find("a").unwrap();
    assert_eq!((graph.runtime(a), graph.has_runtime(a)), (Nanos::ZERO, false));
    assert_eq!((graph.flops(a), graph.bytes(a)), (Some(Flops(989e9)), Some(Bytes(335_000_000))));
    let profile = profile(r#"{ "b": 1, "s": 2 }"#);
    let costs = Costs { device: h100(), profile, ..Costs::default() };
    assert_eq!(times(&costs, &graph), [1_002_500.0, 1.0, 2_610_840.0, 2.0, 0.0]);
}

#[test]
fn a_missing_time_is_asked_for() {
    let said = |costs: &Costs, missing: &[usize]| {
        costs.times(&without_times(missing)).unwrap_err().to_string()
    };
    assert_eq!(
        Times::given(&without_times(&[1, 3])).unwrap_err().to_string(),
        "node 'b' has no run time (runtime_ns is null): model it with --device (or --link, for collectives alone), or measure it and give --profile"
    );
    assert!(Times::given(&without_times(&[4])).is_ok(), "a wait has none of its own");
    let modelled = Costs { device: h100(), ..Costs::default() };
    assert_eq!(
        said(&modelled, &[0, 1]),
        "node 'b' has no run time, and neither flops nor bytes to model one from: give it one of the three, or its time in --profile"
    );
    let other = said(&modelled, &[3]);
    assert!(
        other.starts_with(
            "node 's' has no run time, and its operation 'shuffle' cannot be modelled: known are all_reduce, "
        ),
        "{other}"
    );
    let linked = Costs { link: Some(Link::across_nodes(50.0)), ..Costs::default() };
    assert!(
        said(&linked, &[0])
            .starts_with("node 'a' has no run time, and --link models collectives alone")
    );
    let measured = Costs { profile: profile(r#"{ "a": 1 }"#), ..Costs::default() };
    assert!(said(&measured, &[0, 1]).starts_with("node 'b' has no run time (runtime_ns is null)"));
    let huge = graph(|g| g["nodes"][0]["flops"] = json!(1e300));
    let said = modelled.times(&huge).unwrap_err().to_string();
    assert_eq!(
        said,
        "node 'a' would take more than 292 years: its size or the device's rates cannot be right"
    );
}

#[test]
fn a_profile_may_name_kernels() {
    let named = |names: &'static str| {
        let graph = graph(|g| {
            for node in ["a", "b"] {
                let place =
                    g["nodes"].as_array().unwrap().iter().position(|n| n["name"] == node).unwrap();
                g["nodes"][place]["kernel"] = json!("triton_poi_fused_add_3");
            }
        });
        let costs = Costs { profile: profile(names), ..Costs::default() };
        let times = costs.times(&graph).map_err(|error| error.to_string())?;
        Ok::<_, String>(["a", "b"].map(|name| times.of(graph.find(name).unwrap()).0))
    };
    let given = named("{}").unwrap();
    // The node's own name comes first; kernels that no node runs as are passed over.
    assert_eq!(
        named(r#"{ "triton_poi_fused_add_3": 7, "b": 9, "void at::native::x<4>(int)": 5 }"#),
        Ok([7.0, 9.0])
    );
    assert_eq!(named(r#"{ "b": 9, "ncclDevKernel_AllGather_RING_LL": 5 }"#), Ok([given[0], 9.0]));
    let strange = named(r#"{ "ncclDevKernel_AllGather_RING_LL": 5 }"#).unwrap_err();
    assert!(
        strange.starts_with("'ncclDevKernel_AllGather_RING_LL' is not a node of the graph"),
        "{strange}"
    );
}

/// By the rules of halflap.torch: a fused kernel has its bytes in its name, which traces have not,
/// a size that depends on data is any, and a collective is its kind, ranks and bytes.
#[test]
fn a_measured_profile_fits_as_in_torch() {
    let timed = |kernels: [Option<&str>; 4], measured: Value| {
        let graph = graph(|g| {
            for (at, kernel) in kernels.into_iter().enumerate() {
                g["nodes"][at]["kernel"] = json!(kernel);
            }
        });
        let file = json!({ "format": "halflap.profile/1", "times": measured, "slowdown": 1.5 });
        let profile = Some(Profile::read(file.to_string().as_bytes()).unwrap());
        times(&Costs { profile, ..Costs::default() }, &graph)
    };
    let fused = [Some("fused_mul, 64 bytes"), Some("fused_mul, 32 bytes"), None, None];
    let gather = "all_gather of 8, 1000000000 bytes";
    let measured = json!({ "fused_mul, 64 bytes": 10, "fused_mul": 20, gather: 30,
        "all_gather of 8, 5 bytes": 40, "mm [2, 2] [2, 2]": 50 });
    assert_eq!(timed(fused, measured.clone()), [10.0, 20.0, 30.0, 4.0, 0.0]);
    // A kernel's name says more than what can be made of the collective.
    let any = [Some("mm [?, 2] [2, ?]"), Some("mm [?, 2]"), Some("all_gather of 8, ? bytes"), None];
    assert_eq!(timed(any, measured), [50.0, 2.0, 30.0, 4.0, 0.0]);
    let unknown = json!({ "shuffle of 8, 1000000000 bytes": 60, "all_gather of 4, 8 bytes": 1 });
    assert_eq!(timed([None; 4], unknown), [1.0, 2.0, 3.0, 60.0, 0.0]);
}

#[test]
fn profiles_are_checked() {
    let said = |text: &str| {
        let costs = |profile| Costs { profile: Some(profile), ..Costs::default() };
        match Profile::read(text.as_bytes()) {
            Ok(profile) => costs(profile).times(&graph(|_| ())).unwrap_err().to_string(),
            Err(error) => error.to_string(),
        }
    };
    let right = "it must be a time in nanoseconds, zero or more";
    assert_eq!(said(r#"{ "a": -1 }"#), format!("node 'a': time -1 is negative; {right}"));
    assert_eq!(said(r#"{ "a": NaN }"#), format!("node 'a': time NaN is not finite; {right}"));
    assert_eq!(said(r#"{ "a": "5" }"#), format!("node 'a': time \"5\" is not a number; {right}"));
    assert_eq!(said(r#"{ "a": null }"#), format!("node 'a': time null is not a number; {right}"));
    assert_eq!(
        said(r#"{ "a": 1e30 }"#),
        format!("node 'a': time 1e+30 is too large: it overflows; {right}")
    );
    assert_eq!(
        said(r#"{ "a": 1, "gathr": 2 }"#),
        "'gathr' is not a node of the graph; did you mean 'gather'?"
    );
    assert_eq!(
        said(r#"{ "zzz": 1, "x": 2, "y": 3 }"#),
        "'zzz' is not a node of the graph, nor are 2 other names; was it measured on another program?"
    );
    assert!(
        said(r#"{ "a": 1, "a": 2 }"#).starts_with("not a profile: 'a' appears twice at line 1")
    );
    let list = said("[1]");
    assert!(list.ends_with("it must be a JSON object of node names and nanoseconds"), "{list}");
    assert!(said("").starts_with("not a profile: EOF while parsing"));
}

#[test]
fn every_captured_program_can_be_modelled() {
    for name in common::PROGRAMS {
        let graph = common::program(name);
        for device in Device::NAMES {
            let costs = Costs { device: Some(Device::named(device).unwrap()), ..Costs::default() };
            let times = costs.times(&graph).unwrap();
            assert_eq!(times, costs.times(&graph).unwrap());
            for op in graph.ops() {
                let (modelled, given) = (times.of(op), graph.runtime(op));
                assert_eq!(
                    modelled > Nanos::ZERO,
                    given > Nanos::ZERO,
                    "{name} {device} {}",
                    graph.name(op)
                );
            }
        }
    }
}

/// The corpus has compute at 450 TFLOP/s and 2.6 TB/s achieved: the roofline gives its times again.
#[test]
fn the_roofline_agrees_with_the_corpus() {
    let text = r#"{ "peak_tflops": 450, "memory_gb_per_s": 2600, "ranks_per_node": 8,
        "nvlink_gb_per_s": 330, "network_gb_per_s": 45 }"#;
    let costs = Costs { device: Some(Device::read(text.as_bytes()).unwrap()), ..Costs::default() };
    let mut compared = 0;
    for name in common::PROGRAMS {
        let graph = common::program(name);
        let times = costs.times(&graph).unwrap();
        for op in graph.ops().filter(|&op| graph.flops(op).is_some()) {
            compared += 1;
            let (modelled, given) = (times.of(op), graph.runtime(op));
            assert!(
                (modelled.0 - given.0).abs() <= 1.0,
                "{name} {}: {modelled} {given}",
                graph.name(op)
            );
        }
    }
    assert_eq!(compared, 9403);
}
