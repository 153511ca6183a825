//! Runs the random modules that tests/rewrites.rs left on processes of Open MPI, all of those for
//! as many ranks as there are processes, in one go: `mpirun -n 4 rewritten_on_mpi FOLDER`.
//!
//! The old module is evaluated without MPI. MPI adds numbers up in an order of its own, so results
//! are compared within a tolerance, and bit for bit where nothing is added up.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use halflap::graph::Assignment;
use halflap::order::Order;
use halflap_hlo::plan::{build, fuse};
use halflap_hlo::{LoweredModule, Module};
use halflap_run::comm::mpi::World;
use halflap_run::evaluate::Evaluator;
use halflap_run::exec::{Options, Prepared, fits};
use halflap_run::kernel::Libraries;
use halflap_run::tensor::Tensor;

fn read(path: &Path) -> Module {
    let text = fs::read_to_string(path).unwrap_or_else(|error| panic!("{path:?}: {error}"));
    Module::read(text).unwrap_or_else(|error| panic!("{path:?}: {error}"))
}

fn prepared(module: &Module) -> Arc<Prepared> {
    let units = LoweredModule::of(module).unwrap_or_else(|error| panic!("{error}")).units;
    let own = |unit| Order::of_input(&units[unit].lowered.graph);
    let program = build(module, &units, Assignment::SharedRanks, own);
    let program = program.unwrap_or_else(|error| panic!("{error}"));
    let program = fuse(module, program, |instrs| fits(module, instrs));
    let prepared = Prepared::new(module, &program, &Libraries::default());
    Arc::new(prepared.unwrap_or_else(|error| panic!("{error}")))
}

/// Numbers from -1 to 1, other ones on each rank and for each seed.
fn inputs(program: &Prepared, seed: u64, rank: u64) -> Vec<Tensor> {
    let mut state = (seed << 8 | rank).wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut number = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
        (state >> 33) as f32 / (1u32 << 30) as f32 - 1.0
    };
    let array = |of: &halflap_run::kernel::ArrayType| {
        let count = of.dims.iter().product();
        Tensor::of(&of.dims, &std::iter::repeat_with(&mut number).take(count).collect::<Vec<f32>>())
    };
    program.inputs.iter().map(array).collect()
}

/// The first result that differs.
fn difference(expected: &[Vec<Tensor>], given: &[Vec<Tensor>], is_exact: bool) -> Option<String> {
    let is_close = |a: &f64, b: &f64| (a - b).abs() <= 1e-5 + 1e-4 * a.abs();
    for (rank, (expected, given)) in expected.iter().zip(given).enumerate() {
        for (number, (old, new)) in expected.iter().zip(given).enumerate() {
            let (a, b) = (old.to_f64(), new.to_f64());
            let is_same = match is_exact {
                true => old.bytes() == new.bytes(),
                false => a.len() == b.len() && a.iter().zip(&b).all(|(a, b)| is_close(a, b)),
            };
            if !is_same {
                return Some(format!("result {number} of rank {rank} differs"));
            }
        }
    }
    None
}

fn main() {
    let folder = std::env::args().nth(1).expect("the folder of the modules");
    let folder = Path::new(&folder);
    let world = World::start().unwrap_or_else(|failure| panic!("{failure}"));
    let files = fs::read_dir(folder).unwrap_or_else(|error| panic!("{folder:?}: {error}"));
    let names = files.filter_map(|file| file.ok()?.file_name().into_string().ok());
    let seed_of = |name: String| name.strip_suffix(".old.txt")?.parse().ok();
    let mut seeds: Vec<u64> = names.filter_map(seed_of).collect();
    seeds.sort_unstable();
    let (mut modules, mut runs) = (0, 0);
    for seed in seeds {
        let old = read(&folder.join(format!("{seed}.old.txt")));
        if old.devices().count() != world.size() as u64 {
            continue;
        }
        modules += 1;
        let has_sums = old.text().contains("all-reduce") || old.text().contains("reduce-scatter");
        let all = |program: &Prepared| {
            (0..world.size() as u64).map(|rank| inputs(program, seed, rank)).collect::<Vec<_>>()
        };
        let expected = (world.rank() == 0).then(|| {
            let mut evaluator = Evaluator::new(&old).unwrap_or_else(|error| panic!("{error}"));
            evaluator.run(&all(&prepared(&old))).unwrap_or_else(|error| panic!("{error}"))
        });
        for kind in ["exact", "all"] {
            let program = prepared(&read(&folder.join(format!("{seed}.{kind}.txt"))));
            let own = inputs(&program, seed, world.rank() as u64);
            let outcome = world.run(&program, own, &Options::default());
            let problem = match (outcome, &expected) {
                (Err(failure), _) => Some(failure.to_string()),
                (Ok(Some(outcome)), Some(expected)) => {
                    let given: Vec<_> = outcome.ranks.into_iter().map(|of| of.outputs).collect();
                    difference(expected, &given, kind == "exact" && !has_sums)
                }
                _ => None,
            };
            if let Some(problem) = problem {
                eprintln!("{seed}.{kind}.txt: {problem}");
                world.abort(1);
            }
            runs += 1;
        }
    }
    if world.rank() == 0 {
        let ranks = world.size();
        println!("{modules} random modules, {runs} rewritten ones on {ranks} processes of MPI");
    }
    world.finish().unwrap_or_else(|failure| panic!("{failure}"));
}
