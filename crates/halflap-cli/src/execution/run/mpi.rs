//! A rank of many processes. Ranks agree on failures before the run, so that they are reported once
//! and all ranks exit; a failure during the run aborts the others.

use std::sync::Arc;

use halflap_hlo::plan::hash_of;
use halflap_report::printable;
use halflap_run::comm::mpi::{Difference, World};
use halflap_run::exec::{Outcome, Prepared};
use halflap_run::tensor::Tensor;

use super::inputs::Inputs;
use super::ranks::{Given, Ranks, Turn};
use super::{RunJob, debug, failed, run_on, tune};
use crate::args;
use crate::execution::plans::{UnitOrders, Which};
use crate::exit::Failed;

pub(super) fn run(args: &args::Run) -> Result<(), Failed> {
    if args.emulate_link.is_some() {
        return Err(Failed::BadInput(
            "--emulate-link is for ranks that are threads: MPI has a real network".to_owned(),
        ));
    }
    let world = World::start().map_err(|failure| Failed::BadInput(failure.to_string()))?;
    let done = on(&world, args).map_err(|failed| {
        // Printed before exiting: mpirun ends all ranks as soon as the first one exits with an
        // error.
        let code = failed.code();
        failed.report();
        Failed::ToldElsewhere(code)
    });
    // Either all ranks get here or none: they have agreed.
    world.finish().map_err(failed)?;
    done
}

fn on(world: &World, args: &args::Run) -> Result<(), Failed> {
    let job = RunJob::read(args, Some(world.size())).and_then(|job| check_size(world, job));
    let mut job = agreed(world, job)?;
    compare_settings(world, &job)?;
    run_on(&mut job, &Processes { world })
}

/// Ranks that are processes, of which this is one.
struct Processes<'a> {
    world: &'a World,
}

impl Ranks for Processes<'_> {
    fn found(&self, job: &RunJob<'_>, which: Which<'_>) -> Result<UnitOrders, Failed> {
        shared(self.world, job, which)
    }

    fn prepare(&self, job: &RunJob<'_>, orders: &UnitOrders) -> Result<Arc<Prepared>, Failed> {
        let program = agreed(self.world, job.prepare(orders))?;
        compare_plans(self.world, &program)?;
        Ok(program)
    }

    fn inputs(&self, job: &RunJob<'_>, program: &Prepared) -> Result<Vec<Vec<Tensor>>, Failed> {
        let rank = self.world.rank();
        let inputs = Inputs::open(job.args).and_then(|inputs| {
            if job.args.debug.check_inputs {
                inputs.check(program, rank..rank + 1)?;
            }
            inputs.check_names(program)?;
            Ok(vec![inputs.of(program, rank)?])
        });
        agreed(self.world, inputs)
    }

    fn run(
        &self,
        job: &RunJob<'_>,
        given: Given<'_>,
        turn: &Turn<'_>,
    ) -> Result<Option<Outcome>, Failed> {
        let own = given.inputs.into_iter().next().unwrap_or_default();
        self.world.run(given.program, own, turn.options).map_err(|failure| {
            // The others wait for us or will: they cannot agree on anything any more.
            let told = debug::reported(job.args, failure);
            let code = told.code();
            told.report();
            self.world.abort(i32::from(code));
            Failed::ToldElsewhere(code)
        })
    }

    fn agreed<T>(&self, result: Result<T, Failed>) -> Result<T, Failed> {
        agreed(self.world, result)
    }

    fn heard(&self, said: Vec<u8>) -> Result<Vec<u8>, Failed> {
        self.world.share(0, said).map_err(failed)
    }
}

fn check_size<'a>(world: &World, job: RunJob<'a>) -> Result<RunJob<'a>, Failed> {
    let ranks = job.source.module.devices().count() as usize;
    match ranks == world.size() {
        true => Ok(job),
        false => {
            let started = match world.size() {
                1 => "this is one process".to_owned(),
                processes => format!("there are {processes} processes"),
            };
            let problem = format!(
                "the module is partitioned for {ranks} ranks, and {started}: start it with mpirun \
                 -n {ranks}"
            );
            Err(Failed::in_file(job.args.module.name(), problem))
        }
    }
}

/// Ranks with different arguments would wait for each other forever.
fn compare_settings(world: &World, job: &RunJob<'_>) -> Result<(), Failed> {
    let args = job.args;
    let kind = match (args.tune, args.compare) {
        (Some(_), _) => {
            let ways: Vec<String> =
                tune::ways(args).into_iter().map(tune::OrderWay::name).collect();
            format!("with --tune of {}", ways.join(", "))
        }
        (None, true) => "with --compare".to_owned(),
        (None, false) => "without --compare".to_owned(),
    };
    let told = format!("{} steps, seed {}, {kind}", args.steps, args.seed);
    let lines: Vec<&str> =
        std::iter::once(told.as_str()).chain(job.source.module.text().lines()).collect();
    let hashes: Vec<u64> = lines.iter().map(|line| hash_of(line.as_bytes())).collect();
    let line = |place: usize| {
        lines.get(place).map_or("(its end)".to_owned(), |line| line.trim().to_owned())
    };
    let found = world.first_difference(&hashes, &line).map_err(failed)?;
    let problem = found.map(|Difference { rank, of_first, of_rank }| {
        let [first, second] = from_difference([&of_first, &of_rank]);
        let lines = format!("\n  rank 0: {first}\n  rank {rank}: {second}");
        Failed::BadInput(format!(
            "rank 0 and rank {rank} were not given the same module and arguments:{lines}"
        ))
    });
    agreed(world, problem.map_or(Ok(()), Err))
}

/// Two lines from a little before the place where they first differ.
fn from_difference(lines: [&str; 2]) -> [String; 2] {
    const BEFORE: usize = 20;
    let same = lines[0].chars().zip(lines[1].chars()).take_while(|(a, b)| a == b).count();
    let skipped = same.saturating_sub(BEFORE);
    let dots = if skipped > 0 { "..." } else { "" };
    lines
        .map(|line| format!("{dots}{}", printable(&line.chars().skip(skipped).collect::<String>())))
}

/// Orders: a file's, which each rank reads, or what rank 0 finds.
fn shared(world: &World, job: &RunJob<'_>, which: Which<'_>) -> Result<UnitOrders, Failed> {
    let own = job.args.order_for.iter().find(|(rank, _)| *rank == world.rank());
    let which = own.map_or(which, |(_, input)| Which::File(input));
    let is_searched = |which: Which<'_>| matches!(which, Which::Ours(_));
    let found = match is_searched(which) && world.rank() != 0 {
        true => None,
        false => Some(job.source.found(which)),
    };
    let found = agreed(world, found.transpose())?;
    let sent =
        found.as_ref().filter(|_| world.rank() == 0).map_or(Vec::new(), UnitOrders::to_bytes);
    let bytes = world.share(0, sent).map_err(failed)?;
    match found {
        Some(found) => Ok(found),
        None => job.source.received(&bytes),
    }
}

fn compare_plans(world: &World, program: &Prepared) -> Result<(), Failed> {
    let differ = world.compare(program).err().map(|failure| Failed::BrokenRun(failure.to_string()));
    agreed(world, differ.map_or(Ok(()), Err))
}

/// The lowest failing rank reports; all others exit, too.
fn agreed<T>(world: &World, result: Result<T, Failed>) -> Result<T, Failed> {
    let problem = result.as_ref().err().map(|failed| failed.code().to_string());
    match world.agree(problem.as_deref()).map_err(failed)? {
        None => result,
        Some((rank, _)) if rank == world.rank() => result,
        Some((_, code)) => Err(Failed::ToldElsewhere(code.parse().unwrap_or(2))),
    }
}
