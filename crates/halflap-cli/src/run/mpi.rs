//! A rank of many processes. What goes wrong before the run is agreed on, so that it is said once and
//! everybody ends; what goes wrong in it ends the others by force.

use std::sync::Arc;

use halflap::plan::hash_of;
use halflap::report::printable;
use halflap_run::comm::mpi::{Difference, World};
use halflap_run::exec::{Outcome, Prepared};
use halflap_run::tensor::Tensor;

use super::inputs::Inputs;
use super::show::Finished;
use super::{Job, debug, failed, finish, finish_compared, profile};
use crate::args;
use crate::exit::Failed;
use crate::files;
use crate::program::{Found, Which};

pub(super) fn run(args: &args::Run) -> Result<(), Failed> {
    if args.emulate_link.is_some() {
        return Err(Failed::BadInput(
            "--emulate-link is for ranks that are threads: MPI has a real network".to_owned(),
        ));
    }
    let world = World::start().map_err(|failure| Failed::BadInput(failure.to_string()))?;
    let done = on(&world, args).map_err(|failed| {
        // Said before the end: mpirun ends all as soon as the first rank has ended with an error.
        let code = failed.code();
        failed.report();
        Failed::ToldElsewhere(code)
    });
    // All ranks come here, or none: what they must agree on they have.
    world.finish().map_err(failed)?;
    done
}

fn on(world: &World, args: &args::Run) -> Result<(), Failed> {
    let job = Job::read(args).and_then(|job| check_size(world, job));
    let mut job = agreed(world, job)?;
    compare_settings(world, &job)?;
    let first = if args.compare { Which::Input } else { job.which() };
    let orders = shared(world, &job, first)?;
    let ready = job.prepare(&orders).and_then(|program| {
        let inputs = Inputs::open(args)?;
        if args.debug.check_inputs {
            inputs.check(&program, world.rank()..world.rank() + 1)?;
        }
        inputs.check_names(&program)?;
        let arrays = inputs.of(&program, world.rank())?;
        Ok((program, arrays))
    });
    let (program, inputs) = agreed(world, ready)?;
    compare_plans(world, &program)?;
    let outcome = run_rank(world, &job, (&program, inputs.clone()))?;
    if !args.compare {
        let Some(outcome) = outcome else { return agreed(world, Ok(())) };
        let finished = Finished { program: &program, outcome: &outcome, orders: &orders };
        let finished = finish(&mut job, &finished, None);
        return agreed(world, finished);
    }
    // Only rank 0 has measured times; it finds the order for all.
    let measured = match &outcome {
        Some(outcome) => profile(&program, outcome).map(|profile| job.source.measured(profile)),
        None => Ok(()),
    };
    agreed(world, measured)?;
    let ours = shared(world, &job, job.which())?;
    let prepared = job.prepare(&ours);
    let ours_program = agreed(world, prepared)?;
    compare_plans(world, &ours_program)?;
    let after = run_rank(world, &job, (&ours_program, inputs))?;
    let (Some(before), Some(after)) = (outcome, after) else { return agreed(world, Ok(())) };
    let runs = [
        Finished { program: &program, outcome: &before, orders: &orders },
        Finished { program: &ours_program, outcome: &after, orders: &ours },
    ];
    let finished = finish_compared(&mut job, &runs);
    agreed(world, finished)
}

fn check_size<'a>(world: &World, job: Job<'a>) -> Result<Job<'a>, Failed> {
    let (replicas, partitions) = job.source.module.devices();
    let ranks = replicas as usize * partitions as usize;
    match ranks == world.size() {
        true => Ok(job),
        false => {
            let started = match world.size() {
                1 => "this is one process".to_owned(),
                processes => format!("there are {processes} processes"),
            };
            let problem =
                format!("the module is partitioned for {ranks} ranks, and {started}: start it with mpirun -n {ranks}");
            Err(Failed::in_file(files::name_of(&job.args.module), problem))
        }
    }
}

/// Ranks that were told different things would wait for each other forever.
fn compare_settings(world: &World, job: &Job<'_>) -> Result<(), Failed> {
    let args = job.args;
    let kind = if args.compare { "with --compare" } else { "without --compare" };
    let told = format!("{} steps, seed {}, {kind}", args.steps, args.seed);
    let lines: Vec<&str> = std::iter::once(told.as_str()).chain(job.source.module.text().lines()).collect();
    let hashes: Vec<u64> = lines.iter().map(|line| hash_of(line.as_bytes())).collect();
    let line = |place: usize| lines.get(place).map_or("(its end)".to_owned(), |line| line.trim().to_owned());
    let found = world.first_difference(&hashes, &line).map_err(failed)?;
    let problem = found.map(|Difference { rank, of_first, of_rank }| {
        let [first, second] = from_difference([&of_first, &of_rank]);
        let lines = format!("\n  rank 0: {first}\n  rank {rank}: {second}");
        Failed::BadInput(format!("rank 0 and rank {rank} were not given the same module and arguments:{lines}"))
    });
    agreed(world, problem.map_or(Ok(()), Err))
}

/// Two lines from a little before the place where they first differ.
fn from_difference(lines: [&str; 2]) -> [String; 2] {
    const BEFORE: usize = 20;
    let same = lines[0].chars().zip(lines[1].chars()).take_while(|(a, b)| a == b).count();
    let skipped = same.saturating_sub(BEFORE);
    let dots = if skipped > 0 { "..." } else { "" };
    lines.map(|line| format!("{dots}{}", printable(&line.chars().skip(skipped).collect::<String>())))
}

/// Orders: a file's, which each rank reads, or what rank 0 finds.
fn shared(world: &World, job: &Job<'_>, which: Which<'_>) -> Result<Found, Failed> {
    let path = job.args.order_for.iter().find(|(rank, _)| *rank == world.rank()).map(|(_, path)| path.as_str());
    let which = path.map_or(which, Which::File);
    let is_searched = |which: Which<'_>| matches!(which, Which::Ours(_));
    let found = match is_searched(which) && world.rank() != 0 {
        true => None,
        false => Some(job.source.found(which)),
    };
    let found = agreed(world, found.transpose())?;
    let sent = found.as_ref().filter(|_| world.rank() == 0).map_or(Vec::new(), Found::to_bytes);
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

fn run_rank(
    world: &World,
    job: &Job<'_>,
    (program, inputs): (&Arc<Prepared>, Vec<Tensor>),
) -> Result<Option<Outcome>, Failed> {
    world.run(program, inputs, &job.options()).map_err(|failure| {
        // The others wait for us or will: they cannot agree on anything any more.
        let told = debug::reported(job.args, failure);
        let code = told.code();
        told.report();
        world.abort(i32::from(code));
        Failed::ToldElsewhere(code)
    })
}

/// The first rank on which something is wrong says so; all others end, too.
fn agreed<T>(world: &World, result: Result<T, Failed>) -> Result<T, Failed> {
    let problem = result.as_ref().err().map(|failed| failed.code().to_string());
    match world.agree(problem.as_deref()).map_err(failed)? {
        None => result,
        Some((rank, _)) if rank == world.rank() => result,
        Some((_, code)) => Err(Failed::ToldElsewhere(code.parse().unwrap_or(2))),
    }
}
