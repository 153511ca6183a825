//! What the integration tests share: the corpus.
#![allow(dead_code)]

use std::path::PathBuf;

use halflap::graph::Graph;
use halflap::import::{read_graph, unzip};
use halflap::order::Order;
use serde_json::Value;

/// The captured programs, smallest first.
pub const PROGRAMS: [&str; 10] = [
    "ddp_mlp_4",
    "moe_ep_6",
    "ddp_mlp_24",
    "fsdp_llama_2",
    "fsdp_tp_llama_4",
    "moe_ep_24",
    "fsdp_llama_8",
    "fsdp_tp_llama_16",
    "fsdp_llama_32",
    "fsdp_llama_80",
];

/// A graph with what torch makes of it.
pub struct Case {
    pub name: String,
    pub graph: Graph,
    pub results: Vec<Value>,
}

/// The bytes of a file of the corpus.
pub fn corpus_file(name: &str) -> Vec<u8> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/corpus").join(name);
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// A file of the corpus, as JSON.
pub fn corpus_json(name: &str) -> Value {
    serde_json::from_slice(&unzip(&corpus_file(name)).unwrap()).unwrap()
}

/// A captured program's graph.
pub fn program(name: &str) -> Graph {
    read_graph(&corpus_file(&format!("{name}.graph.json.gz"))).unwrap()
}

/// The random graphs of the corpus.
pub fn random_graphs() -> Vec<Graph> {
    let list = corpus_json("random.graphs.json.gz");
    list.as_array()
        .unwrap()
        .iter()
        .map(|graph| read_graph(graph.to_string().as_bytes()).unwrap())
        .collect()
}

/// Every graph of the corpus with torch's results.
pub fn cases() -> Vec<Case> {
    let captured = PROGRAMS.iter().map(|name| Case {
        name: (*name).to_owned(),
        graph: program(name),
        results: corpus_json(&format!("{name}.torch.json.gz"))["results"]
            .as_array()
            .unwrap()
            .clone(),
    });
    let results = corpus_json("random.torch.json.gz");
    let random = random_graphs().into_iter().zip(results.as_array().unwrap()).enumerate();
    let random = random.map(|(index, (graph, results))| Case {
        name: format!("random-{index}"),
        graph,
        results: results.as_array().unwrap().clone(),
    });
    captured.chain(random).collect()
}

/// An order's node names.
pub fn names<'g>(graph: &'g Graph, order: &Order) -> Vec<&'g str> {
    order.as_slice().iter().map(|&op| graph.name(op)).collect()
}
