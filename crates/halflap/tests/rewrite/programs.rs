//! The programs that are changed, and how.

use halflap::cost::Costs;
use halflap::graph::Graph;
use halflap::ids::OpId;
use halflap::import::read_graph;
use halflap::origin::{Origin, Part};
use halflap::rewrite::{CopyCost, Prices, TAIL};
use halflap::units::{Bandwidth, Nanos};
use serde_json::{Value, json};

/// A gigabyte in a second is a byte in a nanosecond.
pub fn prices(costs: &Costs) -> Prices<'_> {
    let copy = CopyCost { bandwidth: Bandwidth::gigas(1.0), launch: Nanos(5.0) };
    Prices { copy, costs, tail: TAIL }
}

pub fn read(value: &Value) -> Graph {
    read_graph(value.to_string().as_bytes()).unwrap()
}

/// Two collectives of the same kind with an input, a wait and a reader each, and one more of
/// another size; nothing binds them to each other but their order.
pub fn pair(kind: &str, sizes: [i64; 3], outputs: [i64; 3]) -> Value {
    let node = |name: String, kind: &str, outputs: Value, deps: Value| json!({ "name": name, "kind": kind, "runtime_ns": 10.0, "outputs": outputs, "deps": deps });
    let data = |buffer: String| json!([{ "buffer": buffer, "kinds": ["data"] }]);
    let buffer = |name: String, size: i64, users: Value| {
        json!({ "name": name, "size_alloc": size, "size_free": size, "users": users,
            "output": false })
    };
    let (mut nodes, mut buffers) = (Vec::new(), Vec::new());
    for (index, name) in ["a", "b", "c"].into_iter().enumerate() {
        let (size, output) = (sizes[index], outputs[index]);
        nodes.push(node(
            format!("{name}.make"),
            "compute",
            json!([format!("{name}.x")]),
            json!([]),
        ));
        let mut deps = data(format!("{name}.x"));
        if index > 0 {
            let before = format!("{}.y", ["a", "b"][index - 1]);
            deps.as_array_mut().unwrap().push(json!({ "buffer": before, "kinds": ["order"] }));
        }
        let mut collective =
            node(format!("{name}.comm"), "collective", json!([format!("{name}.y")]), deps);
        collective["runtime_ns"] = json!(100.0 + size.max(output) as f64);
        collective["collective"] = json!({ "op": kind, "group": "g", "group_size": 2,
            "bytes": size.max(output), "async": true, "input_bytes": size,
            "output_bytes": output, "dtype": "f32" });
        if kind != "all_gather" {
            collective["collective"]["reduction"] = json!("sum");
        }
        nodes.push(collective);
        nodes.push(node(
            format!("{name}.wait"),
            "wait",
            json!([format!("{name}.w")]),
            data(format!("{name}.y")),
        ));
        nodes.push(node(format!("{name}.read"), "compute", json!([]), data(format!("{name}.w"))));
        let [comm, wait, read] = ["comm", "wait", "read"].map(|part| format!("{name}.{part}"));
        buffers.push(buffer(format!("{name}.x"), size, json!([comm, wait])));
        buffers.push(buffer(format!("{name}.y"), output, json!([wait, read])));
        buffers.push(buffer(format!("{name}.w"), 0, json!([read])));
    }
    json!({ "format": "halflap.graph/1",
        "groups": { "g": { "ranks": [0, 1] }, "h": { "ranks": [0, 1] } }, "nodes": nodes,
        "buffers": buffers, "inputs": [] })
}

pub fn named(names: &[&str]) -> Vec<Vec<String>> {
    vec![names.iter().map(|&name| name.to_owned()).collect()]
}

pub fn order_of(graph: &Graph) -> Vec<&str> {
    graph.ops().map(|op| graph.name(op)).collect()
}

pub fn of_part(origin: &Origin, part: Part) -> Option<OpId> {
    origin.ops.iter().find(|(_, source)| source.part == part).map(|(op, _)| op)
}
