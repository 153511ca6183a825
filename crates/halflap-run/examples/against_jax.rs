//! Evaluates a module with the inputs of an archive and compares with its outputs:
//! `against_jax MODULE[.gz] RANKS.npz [RELATIVE [ABSOLUTE]]`.

use std::io::Read;

use halflap_hlo::Module;
use halflap_run::evaluate::Evaluator;
use halflap_run::tensor::{Npz, Tensor};

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let tolerance =
        |index: usize, default: f64| args.get(index).map_or(default, |text| text.parse().unwrap());
    let (relative, absolute) = (tolerance(3, 1e-5), tolerance(4, 1e-6));
    let mut text = std::fs::read(&args[1]).unwrap();
    if args[1].ends_with(".gz") {
        let mut plain = Vec::new();
        flate2::read::GzDecoder::new(&text[..]).read_to_end(&mut plain).unwrap();
        text = plain;
    }
    let module = Module::from_bytes(text).unwrap_or_else(|error| panic!("{error}"));
    let mut evaluator = match Evaluator::new(&module) {
        Ok(evaluator) => evaluator,
        Err(error) => {
            println!("{}: {error}", args[1]);
            std::process::exit(2);
        }
    };
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
    let inputs: Vec<Vec<Tensor>> = (0..evaluator.ranks()).map(|rank| list("in_", rank)).collect();
    let start = std::time::Instant::now();
    let outputs = evaluator.run(&inputs).unwrap_or_else(|error| panic!("{error}"));
    let seconds = start.elapsed().as_secs_f64();
    let mut worst: f64 = 0.0;
    let mut bad = 0;
    // The largest difference of an array as a share of its largest element: says more of small
    // arrays.
    let mut share: f64 = 0.0;
    for (rank, arrays) in outputs.iter().enumerate() {
        let expected = list("out_", rank);
        assert_eq!(arrays.len(), expected.len());
        for (index, (array, expected)) in arrays.iter().zip(&expected).enumerate() {
            assert_eq!((array.dtype(), array.dims()), (expected.dtype(), expected.dims()));
            let excess = |(a, b): (&f64, &f64)| {
                let is_same = a == b || (a.is_nan() && b.is_nan());
                if is_same { 0.0 } else { (a - b).abs() / (absolute + relative * b.abs()) }
            };
            let ratio = array
                .to_f64()
                .iter()
                .zip(&expected.to_f64())
                .map(excess)
                .fold(0.0, |a: f64, b| if b.is_nan() { f64::INFINITY } else { a.max(b) });
            worst = worst.max(ratio);
            let (given, expected) = (array.to_f64(), expected.to_f64());
            let largest = expected.iter().fold(0.0, |a: f64, b| a.max(b.abs()));
            let apart = given.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
            if largest > 0.0 && largest.is_finite() && apart / largest > share {
                share = apart / largest;
            }
            if ratio > 1.0 {
                bad += 1;
                if bad < 5 {
                    println!(
                        "  output {index} of rank {rank} {array:?}: {ratio:.2} times the tolerance"
                    );
                }
            }
        }
    }
    println!(
        "{}: {} in {seconds:.2} s, worst {worst:.3} of the tolerance, {share:.1e} of an array's largest",
        args[1],
        if bad == 0 { "agrees" } else { "DIFFERS" }
    );
    std::process::exit(i32::from(bad > 0));
}
