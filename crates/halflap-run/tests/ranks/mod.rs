//! Modules as plans, and runs of them on threads.
#![allow(dead_code)]

#[path = "../../../halflap-hlo/tests/common/modules.rs"]
pub mod modules;
#[path = "../../../halflap-hlo/tests/common/orders.rs"]
pub mod orders;

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use halflap::graph::Assignment;
use halflap::import::unzip;
use halflap::order::Order;
use halflap_hlo::plan::{Program, build, fuse};
use halflap_hlo::{LoweredModule, Module};
use halflap_run::exec::{Failure, Options, Outcome, Prepared, fits, run};
use halflap_run::kernel::Libraries;
use halflap_run::tensor::{DType, Tensor};
use modules::Dice;
use orders::random_order;

pub const ADD: &str =
    "add { a = f32[] parameter(0)\n b = f32[] parameter(1)\n ROOT c = f32[] add(a, b) }";

pub fn corpus(name: &str) -> Vec<u8> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/hlo").join(name);
    fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

pub fn module(name: &str) -> Module {
    Module::from_bytes(unzip(&corpus(&format!("{name}.txt.gz"))).unwrap().into_owned()).unwrap()
}

pub fn text(text: &str) -> Module {
    Module::read(text.to_owned()).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

/// In the module's own order, or in one by chance.
pub fn plan(module: &Module, seed: Option<u64>) -> (Arc<Prepared>, Program) {
    let program = ordered(module, seed);
    (prepared(module, &program), program)
}

/// The same with kernels that compute several instructions.
pub fn fused(module: &Module, seed: Option<u64>) -> (Arc<Prepared>, Program) {
    let program = fuse(module, ordered(module, seed), |instrs| fits(module, instrs));
    (prepared(module, &program), program)
}

pub fn prepared(module: &Module, program: &Program) -> Arc<Prepared> {
    Arc::new(
        Prepared::new(module, program, &Libraries::default())
            .unwrap_or_else(|error| panic!("{error}")),
    )
}

pub fn ordered(module: &Module, seed: Option<u64>) -> Program {
    let mut dice = Dice::new(seed.unwrap_or(0));
    let units = LoweredModule::of(module).unwrap().units;
    let program = build(module, &units, Assignment::SharedRanks, |unit| match seed {
        Some(_) => random_order(&units[unit].lowered.graph, &mut dice),
        None => Order::of_input(&units[unit].lowered.graph),
    });
    program.unwrap()
}

pub fn run_all(
    program: &Arc<Prepared>,
    inputs: Vec<Vec<Tensor>>,
    options: &Options,
) -> Result<Outcome, Failure> {
    run(&vec![program.clone(); program.ranks], inputs, options)
}

/// Small numbers, other ones on each rank.
pub fn made(program: &Prepared, seed: u64) -> Vec<Vec<Tensor>> {
    let mut dice = Dice::new(seed);
    let mut array = |kind: &halflap_run::kernel::ArrayType| {
        let mut array = Tensor::zeros(kind.dtype, &kind.dims);
        for element in array.bytes_mut().chunks_exact_mut(kind.dtype.size()) {
            let number = dice.below(1000) as f32 / 1000.0 - 0.5;
            match kind.dtype {
                DType::F32 => element.copy_from_slice(&number.to_le_bytes()),
                DType::Bf16 => element.copy_from_slice(&number.to_le_bytes()[2..]),
                DType::Pred => element[0] = u8::from(number > 0.0),
                _ => element[0] = (number.abs() * 10.0) as u8,
            }
        }
        array
    };
    (0..program.ranks).map(|_| program.inputs.iter().map(&mut array).collect()).collect()
}

#[track_caller]
pub fn assert_close(
    ours: &[Tensor],
    expected: &[Tensor],
    (relative, absolute): (f64, f64),
    what: &str,
) {
    assert_eq!(ours.len(), expected.len());
    for (index, (a, b)) in ours.iter().zip(expected).enumerate() {
        assert_eq!((a.dtype(), a.dims()), (b.dtype(), b.dims()), "{what}");
        for (a, b) in a.to_f64().into_iter().zip(b.to_f64()) {
            let is_same = a == b || (a.is_nan() && b.is_nan());
            assert!(
                is_same || (a - b).abs() <= absolute + relative * b.abs(),
                "{what}: output {index}: {a} is not {b}"
            );
        }
    }
}

/// A module with two all-reduces.
pub fn reducing(ranks: usize) -> Module {
    text(&format!(
        "HloModule m, num_partitions={ranks}\n{ADD}
        ENTRY e {{ p = f32[256] parameter(0)
          a = f32[256] all-reduce(p), channel_id=1, replica_groups=[1,{ranks}]<=[{ranks}], use_global_device_ids=true, to_apply=add
          n = f32[256] negate(a)\n ROOT r = f32[256] all-reduce(n), channel_id=2, replica_groups=[1,{ranks}]<=[{ranks}], use_global_device_ids=true, to_apply=add }}"
    ))
}
