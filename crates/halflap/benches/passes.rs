//! Times every pass on graphs: `cargo bench --bench passes [-- GRAPH...]`.
//!
//! Without arguments, on the largest graphs of the corpus. The first run of a pass is cold: memory
//! and code are touched for the first time, as in a run of the command.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use halflap::cost::Times;
use halflap::graph::Graph;
use halflap::import::read_graph;
use halflap::order::Order;
use halflap::overlap::Fidelity;
use halflap::pass::{NoWatch, Options, Pass, Runner, Settings};

const RUNS: usize = 9;

fn main() {
    let given: Vec<PathBuf> =
        std::env::args().skip(1).filter(|arg| !arg.starts_with("--")).map(PathBuf::from).collect();
    let corpus = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/corpus");
    let largest = ["fsdp_llama_2", "fsdp_llama_8", "fsdp_llama_80"]
        .map(|name| corpus.join(format!("{name}.graph.json.gz")));
    let paths = if given.is_empty() { largest.to_vec() } else { given };
    for path in paths {
        let bytes =
            std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let started = Instant::now();
        let graph =
            read_graph(&bytes).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        println!("\n{}: {} nodes, read in {:.1?}", path.display(), graph.len(), started.elapsed());
        println!(
            "{:<8} {:<9} {:<46} {:>9} {:>10} {:>10} {:>9}",
            "fidelity", "run times", "pass", "moves", "first", "least", "ns/move"
        );
        for fidelity in [Fidelity::Torch, Fidelity::Fixed] {
            for use_runtimes in [false, true] {
                Pass::ALL.iter().for_each(|&pass| time(&graph, pass, (fidelity, use_runtimes)));
            }
        }
    }
}

fn time(graph: &Graph, pass: Pass, (fidelity, use_runtimes): (Fidelity, bool)) {
    let mut settings = Settings::default();
    settings.reorder.use_runtime_estimations = use_runtimes;
    settings.sink.use_runtime_estimations = use_runtimes;
    let options = Options { settings, fidelity };
    let order = Order::of_input(graph);
    let given = Times::given(graph).expect("captured graphs have run times");
    let mut moves = 0;
    let times: Vec<Duration> = (0..RUNS)
        .map(|_| {
            let started = Instant::now();
            let runner = Runner { graph, times: &given, options: &options };
            let outcome = runner.run(pass, &order, &mut NoWatch).expect("nobody watches");
            moves = outcome.moves;
            started.elapsed()
        })
        .collect();
    let least = times.iter().min().copied().unwrap_or_default();
    let per_move = if moves == 0 {
        String::new()
    } else {
        format!("{:.1}", least.as_nanos() as f64 / moves as f64)
    };
    let (name, first) = (pass.name(), times[0]);
    let (fidelity, estimates) = (format!("{fidelity:?}"), if use_runtimes { "yes" } else { "no" });
    println!(
        "{fidelity:<8} {estimates:<9} {name:<46} {moves:>9} {first:>10.1?} {least:>10.1?} {per_move:>9}"
    );
}
