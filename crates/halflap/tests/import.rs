//! Bad input gets an error that names the place and what would be right; damage never a panic.

mod common;
#[path = "common/random.rs"]
#[allow(dead_code)]
mod random;

use halflap::collective::{CollectiveKind, Dtype, Payload, Reduction};
use halflap::cost::Times;
use halflap::graph::Edges;
use halflap::import::{read_graph, read_order};
use halflap::overlap::Fidelity;
use halflap::pass::{Options, Pass};
use halflap::schedule::{self, NoObserver, Request};
use halflap::units::Bytes;
use random::Random;
use serde_json::{Value, json};

/// c starts a collective on x, w waits for it, k runs beside it.
fn small() -> Value {
    let node = |name: &str, kind: &str, outputs: Value, deps: Value| json!({ "name": name, "kind": kind, "runtime_ns": 10.0, "outputs": outputs, "deps": deps });
    let data = |buffer: &str| json!([{ "buffer": buffer, "kinds": ["data"] }]);
    let mut collective = node("c", "collective", json!(["y"]), data("x"));
    collective["collective"] =
        json!({ "op": "all_reduce", "group": "g", "group_size": 2, "bytes": 8, "async": true });
    let buffer = |name: &str, users: Value| json!({ "name": name, "size_alloc": 8, "size_free": 8, "users": users, "output": false });
    json!({
        "format": "halflap.graph/1",
        "groups": { "g": { "ranks": [0, 1] } },
        "nodes": [
            node("a", "compute", json!(["x"]), json!([])),
            collective,
            node("k", "compute", json!(["z"]), json!([])),
            node("w", "wait", json!([]), data("y")),
        ],
        "buffers": [buffer("x", json!(["c", "w"])), buffer("y", json!(["w"])), buffer("z", json!([]))],
        "inputs": [{ "name": "arg", "size": 4, "users": ["k"], "output": false }],
    })
}

/// What is said of the small graph after a change.
fn error(change: impl FnOnce(&mut Value)) -> String {
    let mut graph = small();
    change(&mut graph);
    read_graph(graph.to_string().as_bytes())
        .map(|_| "accepted".to_owned())
        .unwrap_or_else(|error| error.to_string())
}

#[track_caller]
fn check(change: impl FnOnce(&mut Value), expected: &str) {
    assert_eq!(error(change), expected);
}

#[test]
fn the_small_graph_is_good() {
    check(|_| (), "accepted");
}

/// A mutation comes after the readers of what it overwrites, and keeps nothing of theirs alive.
#[test]
fn a_weak_dependency_need_not_keep_a_buffer_alive() {
    let comes_after_k = |graph: &mut Value| {
        graph["nodes"][3]["deps"]
            .as_array_mut()
            .unwrap()
            .push(json!({ "buffer": "z", "kinds": ["weak"] }));
    };
    check(comes_after_k, "accepted");
    let mut graph = small();
    comes_after_k(&mut graph);
    let graph = read_graph(graph.to_string().as_bytes()).unwrap();
    let [k, w] = ["k", "w"].map(|name| graph.find(name).unwrap());
    assert!(graph.preds(w, Edges::Real).contains(&k));
    assert!(graph.users(graph.outputs(k)[0]).is_empty());
}

#[test]
fn a_multi_output_takes_no_time() {
    check(
        |graph| graph["nodes"][2]["kind"] = "multi_output".into(),
        "node 'k': runtime_ns 10 is not zero; it must be zero or null: a multi-output takes no time",
    );
    let without_time = |graph: &mut Value| {
        graph["nodes"][2]["kind"] = "multi_output".into();
        graph["nodes"][2]["runtime_ns"] = Value::Null;
    };
    check(without_time, "accepted");
}

#[test]
fn not_json_and_unknown_formats() {
    let said = |text: &[u8]| read_graph(text).unwrap_err().to_string();
    let neither = "it is neither a halflap.graph/1 JSON object nor an HLO module, which begins with \"HloModule\"";
    for text in [
        &b""[..],
        b" \n",
        b"hello",
        b"\xff\x00\x01",
        b"BufferAssignment:\nallocation 0: size 8",
        b"7",
    ] {
        assert_eq!(said(text), neither);
    }
    assert_eq!(said(b"{\"format\" 1}"), "not JSON: expected `:` at line 1 column 11");
    let text = small().to_string();
    let cut = said(&text.as_bytes()[..text.len() / 2]);
    assert!(cut.starts_with("not JSON: EOF while parsing") && cut.contains("(in "), "{cut}");
    let zipped = &common::corpus_file("moe_ep_6.graph.json.gz");
    let cut = said(&zipped[..zipped.len() - 20]);
    assert!(cut.starts_with("the gzip file is cut off (after "), "{cut}");
    check(
        |g| g["format"] = json!("halflap.graph/2"),
        "unknown format \"halflap.graph/2\": 'format' must be \"halflap.graph/1\"",
    );
    check(
        |g| drop(g.as_object_mut().unwrap().remove("format")),
        "unknown format (no field 'format'): 'format' must be \"halflap.graph/1\"",
    );
    check(|g| *g = json!([g.clone()]), "the file: invalid type: sequence, expected an object");
}

#[test]
fn missing_and_mistyped_fields_name_their_node() {
    let remove = |g: &mut Value, field: &str| drop(g.as_object_mut().unwrap().remove(field));
    check(|g| remove(g, "nodes"), "the file: missing field `nodes`");
    check(|g| remove(&mut g["nodes"][2], "runtime_ns"), "node 'k': missing field `runtime_ns`");
    check(|g| remove(&mut g["buffers"][1], "users"), "buffer 'y': missing field `users`");
    check(
        |g| remove(&mut g["nodes"][1]["collective"], "group"),
        "node 'c', field 'collective': missing field `group`",
    );
    check(
        |g| remove(&mut g["nodes"][1], "collective"),
        "node 'c' is of kind 'collective' and has no field 'collective', which says what it does",
    );
    check(
        |g| g["nodes"][2]["collective"] = g["nodes"][1]["collective"].clone(),
        "node 'k' is of kind 'compute' and has a collective: only a node of kind 'collective' has one",
    );
    check(
        |g| g["nodes"][2]["runtime_ns"] = json!("10"),
        "node 'k', field 'runtime_ns': invalid type: string \"10\", expected a number",
    );
    check(
        |g| g["nodes"][2]["kind"] = json!("copy"),
        "node 'k', field 'kind': unknown variant `copy`, expected one of `compute`, `collective`, `wait`, `multi_output`",
    );
    check(
        |g| g["nodes"][3]["deps"][0]["kinds"] = json!(["strong"]),
        "node 'w', field 'deps[0].kinds[0]': unknown variant `strong`, expected one of `data`, `weak`, `issued`, `order`",
    );
    check(
        |g| g["nodes"][3]["deps"][0]["kinds"] = json!([]),
        "node 'w' needs buffer 'y' with no kind: kinds must hold data, weak, issued or order",
    );
    check(
        |g| g["groups"]["g"] = json!([0]),
        "field 'groups.g': invalid type: sequence, expected an object",
    );
}

#[test]
fn names_used_twice_or_unknown() {
    check(
        |g| g["nodes"][2]["name"] = json!("a"),
        "node name 'a' is used twice: each must be unique",
    );
    check(
        |g| g["buffers"][2]["name"] = json!("x"),
        "buffer name 'x' is used twice: each must be unique",
    );
    check(
        |g| g["inputs"][0]["name"] = json!("x"),
        "buffer name 'x' is used twice: each must be unique",
    );
    check(
        |g| g["nodes"][2]["outputs"] = json!(["z", "x"]),
        "buffer 'x' is an output of both 'a' and 'k': a buffer has one maker",
    );
    check(
        |g| g["nodes"][2]["outputs"] = json!(["z", "q"]),
        "node 'k' has output 'q', which is not among the buffers",
    );
    check(
        |g| g["nodes"][2]["outputs"] = json!([]),
        "buffer 'z' is made by no node: a node must list it among its outputs",
    );
    check(
        |g| g["nodes"][3]["deps"][0]["buffer"] = json!("q"),
        "node 'w' needs buffer 'q', which is neither an output of a node nor an input",
    );
    check(
        |g| g["buffers"][0]["users"] = json!(["c", "q"]),
        "buffer 'x' has user 'q', which is not a node",
    );
    check(
        |g| g["inputs"][0]["users"] = json!(["q"]),
        "buffer 'arg' has user 'q', which is not a node",
    );
    check(
        |g| g["nodes"][1]["collective"]["group"] = json!("h"),
        "node 'c': process group 'h' is not among the groups",
    );
    let twice = small()
        .to_string()
        .replace(r#""g":{"ranks":[0,1]}"#, r#""g":{"ranks":[0,1]},"g":{"ranks":[2]}"#);
    assert!(
        read_graph(twice.as_bytes())
            .unwrap_err()
            .to_string()
            .contains("group name 'g' is used twice")
    );
}

#[test]
fn an_order_that_cannot_run() {
    check(
        |g| g["nodes"].as_array_mut().unwrap().swap(0, 1),
        "node 'c' is listed before 'a', whose buffer 'x' it needs: nodes must be in an order that can run",
    );
    check(
        |g| g["nodes"][0]["deps"] = json!([{ "buffer": "y", "kinds": ["order"] }]),
        "the dependencies form a cycle: a -> c -> a; a program has none",
    );
    check(
        |g| g["nodes"][0]["deps"] = json!([{ "buffer": "x", "kinds": ["data"] }]),
        "the dependencies form a cycle: a -> a; a program has none",
    );
    check(
        |g| g["buffers"][1]["users"] = json!([]),
        "buffer 'y': 'w' reads it and is not among its users: every reader keeps it alive",
    );
    check(
        |g| g["buffers"][2]["users"] = json!(["a"]),
        "buffer 'z': its user 'a' does not come after its maker 'k'",
    );
}

#[test]
fn sizes_and_times_out_of_range() {
    let time = |value: &str| {
        read_graph(small().to_string().replacen("10.0", value, 1).as_bytes())
            .map(|_| ())
            .unwrap_err()
            .to_string()
    };
    let right = "it must be a time in nanoseconds, zero or more";
    assert_eq!(time("-1"), format!("node 'a': runtime_ns -1 is negative; {right}"));
    assert_eq!(
        time("1e300"),
        format!("node 'a': runtime_ns 1e300 is too large: it overflows; {right}")
    );
    assert_eq!(time("NaN"), "node 'a', field 'runtime_ns': is not finite; it must be a number");
    assert_eq!(
        time("-Infinity"),
        "node 'a', field 'runtime_ns': is not finite; it must be a number"
    );
    assert!(time("1e999").contains("number out of range"), "{}", time("1e999"));
    let size = "it must be an integer number of bytes, zero or more";
    check(
        |g| g["buffers"][0]["size_alloc"] = json!(-8),
        &format!("buffer 'x': size_alloc -8 is negative; {size}"),
    );
    check(
        |g| g["buffers"][0]["size_free"] = json!(0.5),
        &format!("buffer 'x': size_free 0.5 is not an integer; {size}"),
    );
    check(
        |g| g["inputs"][0]["size"] = json!(1e30),
        &format!("buffer 'arg': size 1e30 is too large: it overflows; {size}"),
    );
    check(
        |g| g["buffers"][0]["size_alloc"] = json!(u64::MAX),
        &format!("buffer 'x': size_alloc 18446744073709551615 is too large: it overflows; {size}"),
    );
    check(
        |g| g["buffers"][1]["size_alloc"] = json!((1i64 << 62) + 1),
        "the sizes of all buffers add up to more than 2^62 bytes (at buffer 'y'): the total overflows",
    );
    check(
        |g| g["nodes"][1]["collective"]["bytes"] = json!(-1),
        &format!("node 'c': collective.bytes -1 is negative; {size}"),
    );
    let work = "it must be a number of operations, zero or more";
    check(
        |g| g["nodes"][2]["flops"] = json!(-2),
        &format!("node 'k': flops -2 is negative; {work}"),
    );
    let traffic = "it must be a number of bytes, zero or more";
    check(
        |g| g["nodes"][2]["bytes"] = json!(-2.5),
        &format!("node 'k': bytes -2.5 is negative; {traffic}"),
    );
    check(
        |g| g["nodes"][2]["bytes"] = json!(1e30),
        &format!("node 'k': bytes 1e30 is too large: it overflows; {traffic}"),
    );
    check(
        |g| g["nodes"][2]["flops"] = json!("3"),
        "node 'k', field 'flops': invalid type: string \"3\", expected a number",
    );
    let not_finite =
        small().to_string().replacen("\"runtime_ns\":10.0", "\"runtime_ns\":10.0,\"flops\":NaN", 1);
    let said = read_graph(not_finite.as_bytes()).unwrap_err().to_string();
    assert_eq!(said, "node 'a', field 'flops': is not finite; it must be a number");
}

#[test]
fn a_group_has_each_rank_once_and_as_many_as_communicate() {
    let size =
        |size: u32| move |g: &mut Value| g["nodes"][1]["collective"]["group_size"] = json!(size);
    let right = "it must be the number of ranks that communicate, 1 or more";
    check(size(0), &format!("node 'c': collective.group_size 0 is no rank at all; {right}"));
    check(
        size(3),
        &format!("node 'c': collective.group_size 3 is more than the group has ranks; {right}"),
    );
    check(size(1), "accepted");
    let group = |group: Value| move |g: &mut Value| g["groups"]["g"] = group;
    let twice = "process group 'g' has rank 1 twice: each of its ranks takes part once";
    check(group(json!({ "ranks": [1, 0, 1] })), twice);
    check(group(json!({ "ranks": [0], "sets": [[0], [2, 1, 1]] })), twice);
    // A set may be larger than that of the first rank, and a transfer has no ranks.
    check(group(json!({ "ranks": [0], "sets": [[0], [1, 2]] })), "accepted");
    check(group(json!({ "ranks": [], "kind": "transfer" })), "accepted");
}

#[test]
fn a_collective_says_what_it_does_or_its_name_does() {
    let read = |change: &dyn Fn(&mut Value)| {
        let mut graph = small();
        change(&mut graph["nodes"][1]["collective"]);
        let graph = read_graph(graph.to_string().as_bytes()).unwrap();
        graph.collective(graph.find("c").unwrap()).unwrap().clone()
    };
    let old = read(&|c| c["op"] = json!("all_gather_into_tensor"));
    assert_eq!((old.kind, old.reduction), (CollectiveKind::AllGather, Some(Reduction::None)));
    assert_eq!(
        (old.payload.input, old.payload.output, old.payload.dtype),
        (Bytes(4), Bytes(8), None)
    );
    assert_eq!(read(&|_| ()).reduction, None, "an all-reduce that does not say how it combines");
    let new = read(&|c| {
        c["op"] = json!("mine");
        c["kind"] = json!("reduce_scatter");
        c["reduction"] = json!("average");
        c["dtype"] = json!("torch.bfloat16");
        c["input_bytes"] = json!(8);
        c["output_bytes"] = json!(3);
    });
    assert_eq!((new.op.as_str(), new.kind), ("mine", CollectiveKind::ReduceScatter));
    assert_eq!(new.reduction, Some(Reduction::Average));
    assert_eq!(
        new.payload,
        Payload { dtype: Some(Dtype::named("bf16")), input: Bytes(8), output: Bytes(3) }
    );

    let larger = "it must be an integer number of bytes, zero or more";
    let problem = "not the larger of input_bytes and output_bytes";
    check(
        |g| g["nodes"][1]["collective"]["input_bytes"] = json!(9),
        &format!("node 'c': collective.bytes 8 is {problem}; {larger}"),
    );
    check(
        |g| g["nodes"][1]["collective"]["output_bytes"] = json!(-9),
        &format!("node 'c': collective.output_bytes -9 is negative; {larger}"),
    );
    let said = error(|g| g["nodes"][1]["collective"]["kind"] = json!("shuffle"));
    assert!(
        said.starts_with(
            "node 'c', field 'collective.kind': unknown variant `shuffle`, expected one of"
        ),
        "{said}"
    );
}

#[test]
fn a_part_of_a_buffer_has_no_size_and_keeps_the_whole_alive() {
    let part = |size: i64, of: &'static str| {
        move |g: &mut Value| {
            for field in ["size_alloc", "size_free"] {
                g["buffers"][2][field] = json!(size);
            }
            g["buffers"][2]["users"] = json!(["w"]);
            g["buffers"][2]["view_of"] = json!(of);
        }
    };
    let mut graph = small();
    part(0, "x")(&mut graph);
    graph["buffers"][0]["users"] = json!(["c"]);
    graph["buffers"][2]["output"] = json!(true);
    let graph = read_graph(graph.to_string().as_bytes()).unwrap();
    let [x, z] = ["x", "z"]
        .map(|name| graph.buffers().find(|&buffer| graph.buffer_name(buffer) == name).unwrap());
    assert_eq!((graph.view_of(z), graph.is_output(x)), (Some(x), true));
    assert_eq!(graph.users(x), [graph.find("c").unwrap(), graph.find("w").unwrap()]);
    let right = "a part takes no memory, and comes with or after the whole";
    check(
        part(8, "x"),
        &format!("buffer 'z' is a part of 'x' and takes memory of its own: {right}"),
    );
    check(
        part(0, "z"),
        &format!("buffer 'z' is a part of 'z' and is a part of what is itself a part: {right}"),
    );
    check(part(0, "q"), "buffer 'z' is a part of 'q' (view_of), which is not among the buffers");
    let early = |g: &mut Value| {
        for field in ["size_alloc", "size_free"] {
            g["buffers"][0][field] = json!(0);
        }
        g["buffers"][0]["view_of"] = json!("z");
    };
    check(early, &format!("buffer 'x' is a part of 'z' and is made before it: {right}"));
}

#[test]
fn damaged_gzip_says_how() {
    let mut zipped = common::corpus_file("moe_ep_6.graph.json.gz");
    let whole = zipped.len();
    zipped.extend([0; 512]);
    assert!(read_graph(&zipped).is_ok(), "zeros after the end are padding");
    zipped[whole] = 7;
    let said = read_graph(&zipped).unwrap_err().to_string();
    assert_eq!(
        said,
        "the gzip file goes on for 512 bytes after its end; a gzip file must be whole"
    );
}

#[test]
fn a_long_circle_is_found_at_once_and_abridged() {
    let count = 50_000;
    let dep = |index: usize| json!([{ "buffer": format!("b{}", (index + count - 1) % count), "kinds": ["data"] }]);
    let nodes: Vec<Value> = (0..count)
        .map(|i| json!({ "name": format!("n{i}"), "kind": "compute", "runtime_ns": 0, "outputs": [format!("b{i}")], "deps": dep(i) }))
        .collect();
    let buffers: Vec<Value> = (0..count)
        .map(|i| json!({ "name": format!("b{i}"), "size_alloc": 1, "size_free": 1, "users": [format!("n{}", (i + 1) % count)], "output": false }))
        .collect();
    let graph = json!({ "format": "halflap.graph/1", "groups": {}, "nodes": nodes, "buffers": buffers, "inputs": [] });
    let said = read_graph(graph.to_string().as_bytes()).unwrap_err().to_string();
    assert!(said.starts_with("the dependencies form a cycle: n0 -> n1 -> n2"), "{said}");
    assert!(said.contains("... (49985 more) ...") && said.len() < 400, "{said}");
}

#[test]
fn a_byte_order_mark_is_skipped_and_depth_is_bounded() {
    let marked = format!("\u{feff}{}", small());
    assert!(read_graph(marked.as_bytes()).is_ok());
    let said = read_graph("[".repeat(100_000).as_bytes()).unwrap_err().to_string();
    assert_eq!(said, "the file: invalid type: sequence, expected an object");
    check(
        |g| g["groups"]["g"]["ranks"] = json!([-1]),
        "field 'groups.g.ranks[0]': invalid value: integer `-1`, expected an integer from 0 to 4294967295",
    );
}

#[test]
fn what_real_graphs_have_is_accepted() {
    let empty = json!({ "format": "halflap.graph/1", "groups": {}, "nodes": [], "buffers": [], "inputs": [] });
    assert!(read_graph(empty.to_string().as_bytes()).unwrap().is_empty());
    check(
        |g| drop(g["nodes"].as_array_mut().unwrap().pop()),
        "buffer 'x' has user 'w', which is not a node",
    );
    check(|g| g["nodes"][3]["kind"] = json!("compute"), "accepted");
    check(|g| g["buffers"][0]["size_free"] = json!(800), "accepted");
    check(
        |g| {
            g["nodes"][3]["deps"] =
                json!([{ "buffer": "y", "kinds": ["data"] }, { "buffer": "y", "kinds": ["order"] }])
        },
        "accepted",
    );
    check(|g| g["nodes"][3]["deps"] = json!([]), "accepted");
    check(|g| g["buffers"][0]["size_alloc"] = json!(4096.0), "accepted");
    check(|g| g["nodes"][2]["runtime_ns"] = Value::Null, "accepted");
    check(|g| g["nodes"][2]["flops"] = Value::Null, "accepted");
    check(|g| g["nodes"][2]["bytes"] = json!(0.5), "accepted");
    check(|g| g["new_field"] = json!({ "unknown": [1, 2] }), "accepted");
}

#[test]
fn inputs_that_die_before_the_wait_are_warned_of_once() {
    assert!(read_graph(small().to_string().as_bytes()).unwrap().warnings().is_empty());
    let mut graph = small();
    graph["buffers"][0]["users"] = json!(["c"]);
    let graph = read_graph(graph.to_string().as_bytes()).unwrap();
    let warnings: Vec<String> =
        graph.warnings().iter().map(|w| halflap_report::warning(&graph, w)).collect();
    assert_eq!(warnings.len(), 1);
    assert!(
        warnings[0].contains("'c' reads 'x', and its wait 'w' is not among"),
        "{}",
        warnings[0]
    );
    for name in common::PROGRAMS {
        assert!(common::program(name).warnings().is_empty(), "{name}");
    }
}

#[test]
fn a_wait_reaches_its_collective_through_others() {
    let mut graph = small();
    graph["nodes"][2]["deps"] = json!([{ "buffer": "y", "kinds": ["data"] }]);
    graph["nodes"][3]["deps"] = json!([{ "buffer": "z", "kinds": ["data"] }]);
    graph["buffers"][1]["users"] = json!(["k", "w"]);
    graph["buffers"][2]["users"] = json!(["w"]);
    let graph = read_graph(graph.to_string().as_bytes()).unwrap();
    let (c, w) = (graph.find("c").unwrap(), graph.find("w").unwrap());
    assert_eq!(graph.waits_for(w), [c]);
    assert_eq!(graph.waited_by(c), [w]);
}

#[test]
fn a_user_that_depends_on_nothing_is_bound_to_the_maker() {
    let mut graph = small();
    graph["buffers"][0]["users"] = json!(["c", "w", "k"]);
    let graph = read_graph(graph.to_string().as_bytes()).unwrap();
    let (a, k) = (graph.find("a").unwrap(), graph.find("k").unwrap());
    assert_eq!(graph.preds(k, halflap::graph::Edges::Real), [a]);
}

/// Bytes flipped, put in, left out and cut off: an error or a graph that can be scheduled.
#[test]
fn random_damage_never_panics() {
    let sources = [
        small().to_string().into_bytes(),
        plain("moe_ep_6"),
        plain("ddp_mlp_4"),
        common::corpus_file("fsdp_llama_2.graph.json.gz"),
    ];
    let mut accepted = 0;
    for seed in 0..6_000 {
        let random = &mut Random(seed);
        let mut bytes = sources[random.below(sources.len())].clone();
        for _ in 0..1 + random.below(4) {
            damage(&mut bytes, random);
        }
        match read_graph(&bytes) {
            Err(error) => assert!(!error.to_string().is_empty()),
            Ok(graph) => {
                accepted += 1;
                let options = Options { settings: Default::default(), fidelity: Fidelity::Fixed };
                let request = Request { passes: Pass::ALL.to_vec(), options, check_memory: false };
                schedule::run(&graph, &Times::given(&graph).unwrap(), &request, &mut NoObserver)
                    .unwrap();
            }
        }
        let _ = read_order(&bytes);
    }
    assert!(accepted > 100, "only {accepted} damaged files could be read: damage more gently");
}

fn plain(name: &str) -> Vec<u8> {
    halflap::import::unzip(&common::corpus_file(&format!("{name}.graph.json.gz")))
        .unwrap()
        .into_owned()
}

fn damage(bytes: &mut Vec<u8>, random: &mut Random) {
    if bytes.is_empty() {
        return;
    }
    let at = random.below(bytes.len());
    match random.below(6) {
        0 => bytes[at] ^= 1 << random.below(8),
        1 => bytes[at] = random.pick(b"0123456789-eE.\"{}[],:x"),
        2 => bytes.truncate(at),
        3 => drop(bytes.remove(at)),
        4 => bytes.insert(at, random.pick(b"0123456789")),
        _ => {
            let digits: Vec<usize> =
                (0..bytes.len()).filter(|&at| bytes[at].is_ascii_digit()).collect();
            if !digits.is_empty() {
                bytes[digits[random.below(digits.len())]] = random.pick(b"0123456789");
            }
        }
    }
}

#[test]
fn a_node_may_say_where_it_comes_from() {
    let mut graph = small();
    let node = graph["nodes"][1].as_object_mut().expect("nodes are objects");
    node.extend([
        ("source".to_owned(), json!("model.py:42")),
        ("module".to_owned(), json!("layers.3.wq")),
        ("parameter".to_owned(), json!("layers.3.wq.weight")),
    ]);
    let graph = read_graph(graph.to_string().as_bytes()).expect("the graph is valid");
    let of = |name: &str| {
        let op = graph.find(name).expect("the node is there");
        graph.provenance(op).known().collect::<Vec<_>>()
    };
    let known =
        [("parameter", "layers.3.wq.weight"), ("module", "layers.3.wq"), ("source", "model.py:42")];
    assert_eq!(of("c"), known);
    assert_eq!(of("w"), []);
    assert!(error(|graph| graph["nodes"][1]["parameter"] = json!(3)).contains("expected a string"));
}
