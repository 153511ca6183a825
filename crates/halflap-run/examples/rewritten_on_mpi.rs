//! Runs the random modules that tests/rewrites.rs left on processes of Open MPI, all of those for
//! as many ranks as there are processes, in one go: `mpirun -n 4 rewritten_on_mpi FOLDER`.
//!
//! The old module runs on MPI, too, and is evaluated without it. MPI adds numbers up in an order of
//! its own: exact rewrites give the bits of the old module on MPI, or are close to the values
//! without MPI if MPI adds up other messages than before; all others are close.

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

/// Results of all ranks.
type AllResults = Vec<Vec<Tensor>>;

/// Whether all bits are equal.
fn is_equal(old: &AllResults, new: &AllResults) -> bool {
    let each = |results: &AllResults| -> Vec<Vec<u8>> {
        results.iter().flatten().map(|of| of.bytes().to_vec()).collect()
    };
    each(old) == each(new)
}

/// How far results are apart at most, relative to the largest number of their array.
fn apart(old: &AllResults, new: &AllResults) -> f64 {
    let pairs = old.iter().flatten().zip(new.iter().flatten());
    let each = pairs.map(|(old, new)| {
        let (old, new) = (old.to_f64(), new.to_f64());
        let largest = old.iter().fold(1e-3, |most: f64, of| most.max(of.abs()));
        let most = |most: f64, (a, b): (&f64, &f64)| most.max((a - b).abs());
        old.iter().zip(&new).fold(0.0, most) / largest
    });
    each.fold(0.0, f64::max)
}

/// What a program gives on all ranks, on rank 0.
fn run(world: &World, program: &Arc<Prepared>, seed: u64) -> Option<AllResults> {
    let own = inputs(program, seed, world.rank() as u64);
    match world.run(program, own, &Options::default()) {
        Ok(outcome) => outcome.map(|of| of.ranks.into_iter().map(|rank| rank.outputs).collect()),
        Err(failure) => {
            eprintln!("{failure}");
            world.abort(1);
            None
        }
    }
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
    let (mut modules, mut runs, mut equal, mut furthest) = (0, 0, 0, 0.0f64);
    for seed in seeds {
        let old = read(&folder.join(format!("{seed}.old.txt")));
        if old.devices().count() != world.size() as u64 {
            continue;
        }
        modules += 1;
        let program = prepared(&old);
        let on_mpi = run(&world, &program, seed);
        let all: Vec<_> = (0..world.size() as u64).map(|of| inputs(&program, seed, of)).collect();
        // What is rounded to bf16 differs by its last bit if a sum does.
        let tolerance = if old.text().contains("bf16[") { 2e-2 } else { 1e-4 };
        for kind in ["exact", "all"] {
            let new =
                run(&world, &prepared(&read(&folder.join(format!("{seed}.{kind}.txt")))), seed);
            runs += 1;
            let (Some(new), Some(on_mpi)) = (new, &on_mpi) else { continue };
            if kind == "exact" && is_equal(on_mpi, &new) {
                equal += 1;
                continue;
            }
            let mut evaluator = Evaluator::new(&old).unwrap_or_else(|error| panic!("{error}"));
            let expected = evaluator.run(&all).unwrap_or_else(|error| panic!("{error}"));
            let far = apart(&expected, &new).min(apart(on_mpi, &new));
            furthest = furthest.max(far);
            if far > tolerance {
                eprintln!("{seed}.{kind}.txt: {far:.2e} apart");
                world.abort(1);
            }
        }
    }
    if world.rank() == 0 {
        let ranks = world.size();
        println!(
            "{modules} random modules, {runs} rewritten ones on {ranks} processes of MPI: \
             {equal} exact ones have the bits of the old ones, others are {furthest:.1e} apart"
        );
    }
    world.finish().unwrap_or_else(|failure| panic!("{failure}"));
}
