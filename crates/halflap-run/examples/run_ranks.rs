//! Runs a module on threads with the inputs of an archive and compares with its outputs, in the module's own order
//! and in orders by chance: `run_ranks MODULE.txt.gz RANKS.npz [RELATIVE [ABSOLUTE]]`.

use std::sync::Arc;

use halflap::graph::{Edges, Graph};
use halflap::ids::{Id, OpId};
use halflap::import::{read_module, unzip};
use halflap::order::Order;
use halflap::plan::build;
use halflap_run::exec::{Options, Prepared, run};
use halflap_run::kernel::Libraries;
use halflap_run::tensor::{Npz, Tensor};

fn shuffled(graph: &Graph, seed: &mut u64) -> Order {
    let mut missing: Vec<usize> = graph.ops().map(|op| graph.preds(op, Edges::Real).len()).collect();
    let mut ready: Vec<OpId> = graph.ops().filter(|op| missing[op.index()] == 0).collect();
    let mut ops = Vec::new();
    while !ready.is_empty() {
        *seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let op = ready.swap_remove((*seed >> 33) as usize % ready.len());
        ops.push(op);
        for &succ in graph.succs(op, Edges::Real) {
            missing[succ.index()] -= 1;
            ready.extend((missing[succ.index()] == 0).then_some(succ));
        }
    }
    Order::from_ops(graph.len(), ops).unwrap()
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let tolerance = |index: usize, default: f64| args.get(index).map_or(default, |text| text.parse().unwrap());
    let (relative, absolute) = (tolerance(3, 1e-5), tolerance(4, 1e-6));
    let bytes = std::fs::read(&args[1]).unwrap();
    let module = read_module(&unzip(&bytes).unwrap()).unwrap();
    let bytes = std::fs::read(&args[2]).unwrap();
    let archive = Npz::read(&bytes).unwrap();
    let names: Vec<String> = archive.names().map(str::to_owned).collect();
    let list = |kind: &str, rank: usize| -> Vec<Tensor> {
        let suffix = format!("_r{rank}");
        let mut own: Vec<&String> =
            names.iter().filter(|name| name.starts_with(kind) && name.ends_with(&suffix)).collect();
        own.sort();
        own.iter().map(|name| archive.get(name).unwrap()).collect()
    };
    for seed in 0..4u64 {
        let mut dice = seed;
        let program = build(&module, |unit| match seed {
            0 => Order::of_input(&unit.lowered.graph),
            _ => shuffled(&unit.lowered.graph, &mut dice),
        });
        let program = program.unwrap();
        let prepared = match Prepared::new(&module, &program, &Libraries::default()) {
            Ok(prepared) => Arc::new(prepared),
            Err(error) => panic!("{}: {error}", args[1]),
        };
        let inputs = (0..prepared.ranks).map(|rank| list("in_", rank)).collect();
        let programs = vec![prepared.clone(); prepared.ranks];
        let outcome = run(&programs, inputs, &Options { steps: 2, ..Options::default() })
            .unwrap_or_else(|error| panic!("{error}"));
        let mut worst: f64 = 0.0;
        for (rank, of) in outcome.ranks.iter().enumerate() {
            assert_eq!(of.peak, program.peak(), "requested");
            for (array, expected) in of.outputs.iter().zip(list("out_", rank)) {
                assert_eq!((array.dtype(), array.dims()), (expected.dtype(), expected.dims()));
                for (a, b) in array.to_f64().iter().zip(expected.to_f64()) {
                    let is_same = *a == b || (a.is_nan() && b.is_nan());
                    let excess = if is_same { 0.0 } else { (a - b).abs() / (absolute + relative * b.abs()) };
                    worst = worst.max(if excess.is_nan() { f64::INFINITY } else { excess });
                }
            }
        }
        println!(
            "{} seed {seed}: {:.3} of the tolerance, peak {}, steps {}, {:?}",
            args[1],
            worst,
            program.peak(),
            program.step_count(),
            outcome.ranks[0].steps
        );
        assert!(worst <= 1.0);
    }
}
