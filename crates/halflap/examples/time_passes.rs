//! Times the passes on graphs: `cargo run --release --example time_passes -- GRAPH...`.
use halflap::{import::read_graph, order::Order, overlap::Fidelity, pass::*};
use std::time::Instant;

fn main() {
    for path in std::env::args().skip(1) {
        let bytes = std::fs::read(&path).unwrap();
        let t = Instant::now();
        let graph = read_graph(&bytes).unwrap();
        println!("{path}: read {:?}", t.elapsed());
        let order = Order::of_input(&graph);
        for fidelity in [Fidelity::Torch, Fidelity::Mended] {
            for runtime in [false, true] {
                let mut settings = Settings::default();
                settings.reorder.use_runtime_estimations = runtime;
                settings.sink.use_runtime_estimations = runtime;
                let options = Options { settings, fidelity };
                for pass in Pass::ALL {
                    let mut all = Vec::new();
                    let mut moves = 0;
                    for _ in 0..7 {
                        let t = Instant::now();
                        let outcome = run(&graph, &order, (pass, &options), &mut NoWatch).unwrap();
                        all.push(t.elapsed());
                        moves = outcome.moves;
                    }
                    let first = all[0];
                    all.sort();
                    println!(
                        "{fidelity:?} runtime={runtime} {:45} first {first:?} min {:?} med {:?} moves {moves} {:.1} ns/move",
                        pass.name(),
                        all[0],
                        all[3],
                        all[0].as_nanos() as f64 / moves.max(1) as f64
                    );
                }
            }
        }
    }
}
