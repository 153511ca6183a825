//! `halflap verify OLD NEW --run`: two modules on all ranks, with the same inputs.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use halflap_report::count;
use halflap_run::exec::{self, Options, Prepared};
use halflap_run::kernel::Libraries;
use halflap_run::tensor::{DType, Tensor};

use super::plans::Which;
use super::run;
use crate::args;
use crate::exit::{Failed, RunsCompared};
use crate::place::Input;
use crate::source::ModuleSource;

/// Runs two modules, and says how well their results agree.
pub fn compare(
    old: ModuleSource,
    new: ModuleSource,
    args: &args::Verify,
    is_exact: bool,
) -> Result<RunsCompared, Failed> {
    Runs { old: runnable(old)?, new: runnable(new)? }.compare(args, is_exact)
}

/// A module's plan in its own order.
struct Runnable {
    input: Input,
    program: Arc<Prepared>,
}

fn runnable(source: ModuleSource) -> Result<Runnable, Failed> {
    run::check_ranks(&source.module, source.source.input.name())?;
    let program = source.plan(&source.found(Which::Input)?, true)?;
    let prepared = Prepared::new(&source.module, &program, &Libraries::default());
    let input = source.source.input;
    let program = prepared.map(Arc::new).map_err(|error| Failed::in_file(input.name(), error))?;
    Ok(Runnable { input, program })
}

/// Two modules to be run with the same inputs.
struct Runs {
    old: Runnable,
    new: Runnable,
}

impl Runs {
    /// Runs both with several seeds and compares all results of all ranks.
    fn compare(&self, args: &args::Verify, is_exact: bool) -> Result<RunsCompared, Failed> {
        let kinds = |program: &Prepared| {
            let of = |kind: &halflap_run::kernel::ArrayType| (kind.dtype, kind.dims.clone());
            let inputs: Vec<_> = program.inputs.iter().map(of).collect();
            (program.ranks, inputs, program.outputs.iter().map(of).collect::<Vec<_>>())
        };
        if kinds(&self.old.program) != kinds(&self.new.program) {
            let problem = "not the same program: ranks, inputs or results differ in number or type";
            return Err(Failed::Wrong(problem.to_owned()));
        }
        let until = Instant::now() + Duration::from_nanos(args.run_limit.0 as u64);
        let mut worst = 0.0f64;
        for seed in 0..args.seeds {
            let both = (self.old.run(seed.into(), until)?, self.new.run(seed.into(), until)?);
            let (Some(before), Some(after)) = both else {
                return Ok(self.unfinished(args, seed, worst));
            };
            let rule = Rule { seed: u64::from(seed), is_exact };
            worst = worst.max(compared(&before, &after, rule)?);
        }
        let said = self.agreement(args.seeds, worst);
        Ok(RunsCompared { said, is_complete: true })
    }

    /// How far the runs got in the time that there is.
    fn unfinished(&self, args: &args::Verify, done: u16, worst: f64) -> RunsCompared {
        let so_far = match done {
            0 => String::new(),
            done => format!("{}\n", self.agreement(done, worst)),
        };
        let (limit, asked) = (args.run_limit, count(args.seeds.into(), "seed"));
        let said = format!(
            "{so_far}not run to the end: {done} of {asked} within --run-limit {limit}; raise it, or \
             ask for fewer --seeds"
        );
        RunsCompared { said, is_complete: false }
    }

    /// How well the results of so many seeds agree.
    fn agreement(&self, seeds: u16, worst: f64) -> String {
        let ranks = self.old.program.ranks;
        let (results, are, differ) = match self.old.program.outputs.len() {
            1 => ("the result".to_owned(), "is", "differs"),
            many => (format!("all {many} results"), "are", "differ"),
        };
        let agree = match worst == 0.0 {
            true => format!("{are} equal bit for bit"),
            false => format!("{differ} by at most {worst:.1e} of an array's largest number"),
        };
        format!(
            "run with {} on {}: {results} {agree}",
            count(seeds as usize, "seed"),
            count(ranks, "rank")
        )
    }
}

impl Runnable {
    /// The results of all ranks; `None` if they took too long.
    fn run(&self, seed: u64, until: Instant) -> Result<Option<Vec<Vec<Tensor>>>, Failed> {
        let program = &self.program;
        run::check_memory(program, self.input.name())?;
        let inputs = (0..program.ranks).map(|rank| run::made_for(program, seed, rank)).collect();
        let programs = vec![program.clone(); program.ranks];
        let options = Options { seed, ..Options::default() };
        let mut is_late = false;
        let outcome = exec::run_shown(&programs, inputs, &options, &mut |_| {
            is_late = Instant::now() > until;
            if is_late { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        match outcome {
            Ok(outcome) => Ok(Some(outcome.ranks.into_iter().map(|rank| rank.outputs).collect())),
            Err(_) if is_late => Ok(None),
            Err(failure) => Err(match run::failed(failure) {
                Failed::BrokenRun(problem) => {
                    Failed::BrokenRun(format!("{}: {problem}", self.input.name()))
                }
                other => other,
            }),
        }
    }
}

/// How results of a seed are compared.
struct Rule {
    seed: u64,
    is_exact: bool,
}

/// The largest difference relative to the array's largest number, if all are within the tolerance.
fn compared(
    before: &[Vec<Tensor>],
    after: &[Vec<Tensor>],
    Rule { seed, is_exact }: Rule,
) -> Result<f64, Failed> {
    let mut worst = 0.0f64;
    for (rank, (before, after)) in before.iter().zip(after).enumerate() {
        for (number, (old, new)) in before.iter().zip(after).enumerate() {
            if old.bytes() == new.bytes() {
                continue;
            }
            let limit = if is_exact { 0.0 } else { tolerance(old.dtype()) };
            let apart = Furthest::of(&old.to_f64(), &new.to_f64());
            if apart.part > limit || is_exact {
                let allowed = match limit > 0.0 {
                    true => format!("{limit:.0e} of its largest number is allowed"),
                    false => "it must be equal bit for bit".to_owned(),
                };
                return Err(Failed::Wrong(format!(
                    "not the same program: with seed {seed}, result {number} of rank {rank} differs by \
                     {:.1e} of its largest number; {allowed}; {apart}",
                    apart.part
                )));
            }
            worst = worst.max(apart.part);
        }
    }
    Ok(worst)
}

/// The tolerance for another order of summation, relative to an array's largest number.
fn tolerance(dtype: DType) -> f64 {
    match dtype {
        DType::F64 | DType::C128 => 1e-12,
        DType::F32 | DType::C64 => 1e-5,
        DType::Bf16 | DType::F16 => 2e-2,
        // Integers, and types too short for any meaningful tolerance.
        _ => 0.0,
    }
}

/// Where two arrays are furthest apart.
struct Furthest {
    /// By which part of the largest number of the first.
    part: f64,
    /// The place in memory.
    index: usize,
    expected: f64,
    found: f64,
}

impl Furthest {
    fn of(old: &[f64], new: &[f64]) -> Furthest {
        let largest = old.iter().fold(0.0f64, |most, value| most.max(value.abs()));
        let mut worst = Furthest { part: 0.0, index: 0, expected: 0.0, found: 0.0 };
        for (index, (&expected, &found)) in old.iter().zip(new).enumerate() {
            let is_equal = expected == found || (expected.is_nan() && found.is_nan());
            let part = if is_equal { 0.0 } else { (expected - found).abs() / largest };
            // Where one is NaN and the other is not, the difference is NaN, which is not small.
            let part = if part.is_nan() { f64::INFINITY } else { part };
            if part > worst.part {
                worst = Furthest { part, index, expected, found };
            }
        }
        worst
    }
}

impl std::fmt::Display for Furthest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Furthest { part, index, expected, found } = self;
        match *part > 0.0 {
            true => write!(f, "element {index}: expected {expected}, found {found}"),
            false => f.write_str("zeros or NaN differ in their bits"),
        }
    }
}
