//! Times reading HLO modules: `cargo bench --bench hlo [-- MODULE...]`.
//!
//! Without arguments, all modules in tests/hlo. What is timed is text to module: unpacking is not.
//! A line for each: name, bytes, instructions, the least of some runs in seconds; with tabs
//! between.

use std::path::PathBuf;
use std::time::Instant;

use halflap::import::unzip;
use halflap_hlo::Module;

const RUNS: usize = 9;

fn main() {
    let given: Vec<PathBuf> =
        std::env::args().skip(1).filter(|arg| !arg.starts_with("--")).map(PathBuf::from).collect();
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/hlo");
    let mut all: Vec<PathBuf> = match std::fs::read_dir(folder) {
        Ok(entries) if given.is_empty() => {
            entries.filter_map(|entry| Some(entry.ok()?.path())).collect()
        }
        _ => given,
    };
    all.retain(|path| path.to_string_lossy().contains(".txt"));
    all.sort();
    for path in all {
        let bytes =
            std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let text = unzip(&bytes)
            .unwrap_or_else(|error| panic!("{}: {error}", path.display()))
            .into_owned();
        let mut least = f64::INFINITY;
        let mut instructions = 0;
        for _ in 0..RUNS {
            let text = text.clone();
            let started = Instant::now();
            let module = Module::from_bytes(text)
                .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            least = least.min(started.elapsed().as_secs_f64());
            instructions = module.len();
        }
        let name =
            path.file_name().map_or(String::new(), |name| name.to_string_lossy().into_owned());
        println!("{name}\t{}\t{instructions}\t{least:.6}", text.len());
    }
}
