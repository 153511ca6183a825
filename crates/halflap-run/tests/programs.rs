//! Whole JAX programs on all their ranks, as bench/jax_programs.py wrote them to tests/programs:
//! what they compute, at both stages, in fused kernels and without, is what JAX computed.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use halflap::graph::Assignment;
use halflap::import::unzip;
use halflap::order::Order;
use halflap_hlo::LoweredModule;
use halflap_hlo::Module;
use halflap_hlo::plan::{build, fuse};
use halflap_run::exec::{Options, Prepared, fits, run};
use halflap_run::kernel::Libraries;
use halflap_run::tensor::{DType, Npz, Tensor};

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/programs")
}

fn module(path: &Path) -> Module {
    Module::from_bytes(unzip(&fs::read(path).unwrap()).unwrap().into_owned()).unwrap()
}

fn prepared(module: &Module, fuses: bool) -> Arc<Prepared> {
    let units = LoweredModule::of(module).unwrap().units;
    let mut program = build(module, &units, Assignment::SharedRanks, |unit| {
        Order::of_input(&units[unit].lowered.graph)
    })
    .unwrap();
    if fuses {
        program = fuse(module, program, |instrs| fits(module, instrs));
    }
    Arc::new(
        Prepared::new(module, &program, &Libraries::default())
            .unwrap_or_else(|error| panic!("{error}")),
    )
}

/// An array's numbers; those of a complex one twice as many.
fn numbers(array: &Tensor) -> Vec<f64> {
    match array.dtype() {
        DType::C64 => array
            .bytes()
            .as_chunks::<4>()
            .0
            .iter()
            .map(|&bytes| f64::from(f32::from_le_bytes(bytes)))
            .collect(),
        _ => array.to_f64(),
    }
}

/// Beside the largest element: of what nearly cancels little is left.
#[track_caller]
fn assert_close(given: &Tensor, expected: &Tensor, relative: f64, what: &str) {
    assert_eq!((given.dtype(), given.dims()), (expected.dtype(), expected.dims()), "{what}");
    let (given, expected) = (numbers(given), numbers(expected));
    let largest = expected.iter().fold(0.0, |most: f64, value| most.max(value.abs()));
    for (at, (a, b)) in given.iter().zip(&expected).enumerate() {
        assert!(
            (a - b).abs() <= 1e-5 + relative * largest || a == b,
            "{what}, element {at}: {a} and not {b}"
        );
    }
}

#[test]
fn programs_compute_what_jax_computed() {
    let mut names: Vec<String> = fs::read_dir(folder())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    let names: Vec<&str> = names.iter().filter_map(|name| name.strip_suffix(".npz")).collect();
    assert!(names.len() >= 8);
    for name in names {
        let bytes = fs::read(folder().join(format!("{name}.npz"))).unwrap();
        let archive = Npz::read(&bytes).unwrap();
        let list = |kind: &str, rank: usize| -> Vec<Tensor> {
            (0..)
                .map_while(|index| archive.get(&format!("{kind}_{index:03}_r{rank}")).ok())
                .collect()
        };
        // As in the script: what is computed in f16, and systems that are nearly singular, of which
        // JAX's f32 keeps less.
        let relative = match name {
            "half_precision" => 4e-3,
            "linear_algebra" | "more_linear_algebra" | "schur_forms" => 1e-3,
            _ => 1e-4,
        };
        for (stage, fuses) in
            [("after_spmd", true), ("after_spmd", false), ("after_optimizations", true)]
        {
            let program =
                prepared(&module(&folder().join(format!("{name}.{stage}.txt.gz"))), fuses);
            let inputs = (0..program.ranks).map(|rank| list("in", rank)).collect();
            let options = Options { threads_per_rank: 2, ..Options::default() };
            let outcome = run(&vec![program.clone(); program.ranks], inputs, &options).unwrap();
            for (rank, of) in outcome.ranks.iter().enumerate() {
                let expected = list("out", rank);
                assert_eq!(of.outputs.len(), expected.len());
                for (index, (given, expected)) in of.outputs.iter().zip(&expected).enumerate() {
                    assert_close(
                        given,
                        expected,
                        relative,
                        &format!("{name}.{stage}: output {index} of rank {rank}"),
                    );
                }
            }
        }
    }
}
