//! `halflap run`: a module on all its ranks.

mod beside;
mod contention;
mod debug;
mod draw;
mod inputs;
mod measure;
mod mpi;
mod only;
mod ranks;
mod show;
mod stalls;
mod tune;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use halflap::cost::Profile;
use halflap_hlo::plan::Text;
use halflap_run::check::{self, Fault, Split};
use halflap_run::exec::{Failure, Options, Outcome, Prepared};
use halflap_run::kernel::Libraries;

use crate::args::{self, Backend};
use crate::artifacts::Artifacts;
use crate::ask;
use crate::execution::plan::which;
use crate::execution::plans::{UnitOrders, Which};
use crate::exit::Failed;
use crate::files;
use crate::log::{self, LogLevel, LogTopic};
use crate::pictures;
use crate::place::{Output, refuse_both_stdin};
use crate::progress::Bar;
use crate::source::ModuleSource;
use crate::source::RankCount::{Asked, Started};
pub(crate) use inputs::{check_memory, check_ranks, made_for};
use ranks::{Given, Ranks, Threads, Turn};
use show::{BothOrders, Finished, Others};

/// Runs, and writes and prints what was asked for.
pub fn run(args: &args::Run) -> Result<(), Failed> {
    if let Some(kernel) = &args.only {
        return only::run(args, kernel);
    }
    let [inputs, order] = [&args.inputs, &args.order].map(|one| one.as_ref()?.path());
    let [device, profile] = args.machine.costs.files();
    let read = [args.module.path(), inputs, order, device, profile];
    if let Some(artifacts) = Artifacts::open(&args.artifacts, args.module.name(), &read)? {
        return into(args, &artifacts);
    }
    match args.backend {
        Backend::Threads => {
            refuse_copies()?;
            watched(args)
        }
        Backend::Mpi if args.debug.nan_origins.is_some() => {
            let problem = "--nan-origins is for ranks that are threads: processes do not see each \
                           other's arrays";
            Err(Failed::BadInput(problem.to_owned()))
        }
        Backend::Mpi => mpi::run(args),
    }
}

/// A custom call may end the process in any way, so a parent process stays to report it. Requests
/// from a program run in this process, because they are in its memory.
fn watched(args: &args::Run) -> Result<(), Failed> {
    if args.custom_calls.is_empty() || ask::is_called() {
        return threads(args);
    }
    match check::split()
        .map_err(|error| Failed::OurBug(format!("the process cannot fork: {error}")))?
    {
        Split::Worker(_told) => threads(args),
        Split::Watcher(departure) => match departure.code() {
            Some(0) => Ok(()),
            Some(code) => Err(Failed::ToldElsewhere(code)),
            None => Err(debug::departed(args, &departure)),
        },
    }
}

/// If every process of an mpirun ran all ranks, they would overwrite each other's files.
fn refuse_copies() -> Result<(), Failed> {
    let started =
        ["OMPI_COMM_WORLD_SIZE", "PMI_SIZE"].into_iter().find_map(|name| std::env::var(name).ok());
    match started.and_then(|count| count.parse::<usize>().ok()) {
        Some(count) if count > 1 => Err(Failed::BadInput(format!(
            "this is one of {count} processes of mpirun, and each of them would run all ranks: give --backend mpi, or \
             leave out mpirun"
        ))),
        _ => Ok(()),
    }
}

/// The same, with everything that it can make in one folder.
fn into(args: &args::Run, artifacts: &Artifacts) -> Result<(), Failed> {
    if args.backend == Backend::Mpi {
        return Err(Failed::BadInput(
            "--artifacts is for ranks that are threads: processes share no folder".to_owned(),
        ));
    }
    let mut args = args.clone();
    args.artifacts = args::ArtifactArgs::default();
    let file = |name: &str| Some(artifacts.file(name));
    args.output = args.output.or_else(|| Some(artifacts.file("out.npz").into()));
    args.profile_out = args.profile_out.or_else(|| file("times.json"));
    args.pictures.report =
        args.pictures.report.or_else(|| Some(artifacts.file("report.html").into()));
    args.pictures.trace = args.pictures.trace.or_else(|| file("trace.json"));
    args.debug.flight_recorder = args.debug.flight_recorder.or_else(|| file("flight.json"));
    args.debug.fault_report = args.debug.fault_report.or_else(|| file("fault.jsonl"));
    args.debug.values_dir = artifacts.file("values");
    let done = match args.tune.is_some() || args.compare {
        true => run_and_plan(&mut args, artifacts),
        false => artifacts
            .stage("plan", || plan_into(&mut args, artifacts))
            .and_then(|()| artifacts.stage("run", || run(&args))),
    };
    artifacts.close(&done)?;
    done
}

/// The same, if the order is only known after the run.
fn run_and_plan(args: &mut args::Run, artifacts: &Artifacts) -> Result<(), Failed> {
    let order = args.order_out.get_or_insert_with(|| artifacts.file("order.json")).clone();
    artifacts.stage("run", || run(args))?;
    args.order = Some(order.into());
    artifacts.stage("plan", || plan_into(args, artifacts))
}

/// Writes the order to run, and its plan, for a later run. It loads no custom calls: a run does so
/// in a separate process.
fn plan_into(args: &mut args::Run, artifacts: &Artifacts) -> Result<(), Failed> {
    let written = artifacts.file("order.json");
    check_arguments(args)?;
    let source = ModuleSource::read(&args.module, &args.machine, args.ranks.map(Asked))?.typed()?;
    let orders = source.found(which(args.order.as_ref(), &args.orders))?;
    let plan = source.plan(&orders, !args.orders.no_fuse)?;
    files::put(&artifacts.file("plan.txt"), &Text::of(&source.module, &plan).render())?;
    files::put(&written, &format!("{:#}\n", source.written(&orders)))?;
    args.order = Some(written.into());
    Ok(())
}

/// What is wrong with the arguments, before anything is read.
fn check_arguments(args: &args::Run) -> Result<(), Failed> {
    refuse_both_stdin(&args.module, args.order.as_ref(), "module and order")?;
    let output = args.output.as_ref().and_then(Output::path);
    args.pictures.check(&args.module, output)?;
    let written = [args.profile_out.as_deref(), args.order_out.as_deref(), output];
    for input in args.inputs.iter().chain([&args.module]) {
        pictures::check_outputs(Some(input), &written)?;
    }
    if output.is_some_and(files::is_stdout) {
        return Err(Failed::BadInput(
            "an archive of arrays is not for a terminal: name a file with -o".to_owned(),
        ));
    }
    if let Some(path) = output.filter(|path| path.ends_with(".npy")) {
        let archive = path.strip_suffix(".npy").unwrap_or(path);
        return Err(Failed::in_file(
            path,
            format!("results are an archive of arrays: -o {archive}.npz"),
        ));
    }
    Ok(())
}

/// Whether anything that is read or written names kernels or orders, which must then be those of
/// the module's text.
fn names_kernels(args: &args::Run) -> bool {
    let [_, profile] = args.machine.costs.files();
    let is_read = args.order.is_some() || !args.order_for.is_empty() || profile.is_some();
    let is_written = [&args.order_out, &args.profile_out, &args.pictures.trace];
    is_read
        || is_written.into_iter().any(Option::is_some)
        || args.pictures.report.is_some()
        || !args.custom_calls.is_empty()
        || args.compare
        || args.tune.is_some()
        || args.debug != args::DebugArgs::default()
}

/// A module that can be run, and how.
struct RunJob<'a> {
    args: &'a args::Run,
    source: ModuleSource,
    libraries: Libraries,
}

impl<'a> RunJob<'a> {
    /// Reads what to run. The number of processes counts if nothing else gives the number of ranks.
    fn read(args: &'a args::Run, processes: Option<usize>) -> Result<RunJob<'a>, Failed> {
        check_arguments(args)?;
        debug::catch_faults(args)?;
        let ranks = args.ranks.map(Asked).or(processes.map(Started));
        let source = ModuleSource::read(&args.module, &args.machine, ranks)?.typed()?;
        let source = if names_kernels(args) { source } else { source.without_calls()? };
        // A name without a folder would be searched in the system's library path.
        let here = |path: &String| fs::canonicalize(path).unwrap_or_else(|_| PathBuf::from(path));
        let paths: Vec<PathBuf> = args.custom_calls.iter().map(here).collect();
        let libraries = load(&paths.iter().map(PathBuf::as_path).collect::<Vec<_>>())?;
        Ok(RunJob { args, source, libraries })
    }

    fn options(&self) -> Options {
        // The median of a kernel in a loop is one over all iterations.
        let every = names_kernels(self.args).then_some(u32::MAX);
        Options {
            recorded_turns: every.unwrap_or(Options::default().recorded_turns),
            steps: self.args.steps as usize,
            timeout: Duration::from_nanos(self.args.timeout.0 as u64),
            loop_limit: self.args.loop_timeout.map(|time| Duration::from_nanos(time.0 as u64)),
            threads_per_rank: self.threads_per_rank(),
            seed: self.args.seed,
            link: self.args.emulate_link,
            stands_for: self.args.stands_for,
            panic: self.args.panic,
            checks: debug::checks(self.args),
        }
    }

    /// As many as were requested, or an equal share of the cores.
    fn threads_per_rank(&self) -> usize {
        let ranks = (self.source.module.devices().count() as usize).max(1);
        let share =
            || std::thread::available_parallelism().map_or(1, |cores| (cores.get() / ranks).max(1));
        self.args.threads_per_rank.map_or_else(share, usize::from)
    }

    fn prepare(&self, orders: &UnitOrders) -> Result<Arc<Prepared>, Failed> {
        let mut program = self.source.plan(orders, !self.args.orders.no_fuse)?;
        let refused = |problem| Failed::BadInput(format!("--inject: {problem}"));
        Fault::spoil(&self.args.debug.inject, &mut program).map_err(refused)?;
        log::say(LogTopic::Plan, LogLevel::Debug, || {
            Text::of(&self.source.module, &program).render()
        });
        let looks_inside = self.args.debug.nan_origins.is_some();
        let (module, libraries) = (&self.source.module, &self.libraries);
        let prepared = Prepared::compile(module, &program, libraries, looks_inside);
        let failed = |error| Failed::in_file(self.args.module.name(), error);
        let prepared = prepared.map(Arc::new).map_err(failed)?;
        debug::check_filter(self.args, &prepared)?;
        self.args
            .debug
            .inject
            .iter()
            .try_for_each(|fault| fault.check(&prepared))
            .map_err(refused)?;
        Ok(prepared)
    }

    /// Orders as `--order` takes them.
    fn order_text(&self, orders: &UnitOrders) -> Result<String, Failed> {
        Ok(format!("{:#}\n", self.source.written(orders)))
    }

    fn which(&self) -> Which<'_> {
        which(self.args.order.as_ref(), &self.args.orders)
    }
}

fn load(paths: &[&Path]) -> Result<Libraries, Failed> {
    Libraries::load_trusted(paths).map_err(|error| Failed::BadInput(error.to_string()))
}

fn threads(args: &args::Run) -> Result<(), Failed> {
    let mut job = RunJob::read(args, None)?;
    check_ranks(&job.source.module, args.module.name())?;
    run_on(&mut job, &Threads)
}

/// Runs what was requested on all ranks.
fn run_on<R: Ranks>(job: &mut RunJob<'_>, ranks: &R) -> Result<(), Failed> {
    if let Some(limit) = job.args.tune {
        return tune::run(job, ranks, limit);
    }
    if job.args.compare {
        return compare(job, ranks);
    }
    let orders = ranks.found(job, job.which())?;
    let program = ranks.prepare(job, &orders)?;
    let inputs = ranks.inputs(job, &program)?;
    let finished = match run_steps(job, ranks, Given { program: &program, inputs })? {
        Some(outcome) => {
            let finished = Finished { program: &program, outcome: &outcome, orders: &orders };
            finish(job, &finished, &Others::default())
        }
        None => Ok(()),
    };
    ranks.agreed(finished)
}

/// Runs as many steps as were requested, and shows how far they are.
fn run_steps<R: Ranks>(
    job: &RunJob<'_>,
    ranks: &R,
    given: Given<'_>,
) -> Result<Option<Outcome>, Failed> {
    let options = job.options();
    let bar = Bar::new("running");
    let show = |done| bar.show(done as f64 / options.steps as f64);
    let outcome = ranks.run(job, given, &Turn { options: &options, show: &show });
    bar.clear();
    outcome
}

/// Runs both orders. Ours is found with the times measured in the module's own order, by the first
/// process, which has them, for all.
fn compare<R: Ranks>(job: &mut RunJob<'_>, ranks: &R) -> Result<(), Failed> {
    let own = ranks.found(job, Which::Input)?;
    let program = ranks.prepare(job, &own)?;
    let inputs = ranks.inputs(job, &program)?;
    let before = run_steps(job, ranks, Given { program: &program, inputs: inputs.clone() })?;
    let times = before.as_ref().map(|outcome| profile(&program, outcome)).transpose();
    ranks.agreed(times)?.into_iter().for_each(|times| job.source.measured(times));
    let ours = ranks.found(job, job.which())?;
    let ours_program = ranks.prepare(job, &ours)?;
    let after = run_steps(job, ranks, Given { program: &ours_program, inputs })?;
    let finished = match (&before, &after) {
        (Some(before), Some(after)) => {
            let runs = [
                Finished { program: &program, outcome: before, orders: &own },
                Finished { program: &ours_program, outcome: after, orders: &ours },
            ];
            finish_compared(job, &runs)
        }
        _ => Ok(()),
    };
    ranks.agreed(finished)
}

/// Shows the results of both orders, and writes the requested files of the second.
fn finish_compared(job: &mut RunJob<'_>, runs: &[Finished<'_>; 2]) -> Result<(), Failed> {
    let compared = Some(BothOrders::new(job, runs)?);
    finish(job, &runs[1], &Others { compared, ..Others::default() })
}

/// The median of all times.
fn profile(program: &Prepared, outcome: &Outcome) -> Result<Profile, Failed> {
    let times = measure::profile(&[(program, outcome)]);
    let text = serde_json::Value::Object(
        times.into_iter().map(|(name, time)| (name, time.0.into())).collect(),
    );
    Profile::read(text.to_string().as_bytes()).map_err(|error| Failed::OurBug(error.to_string()))
}

/// Writes and prints the results of a run.
fn finish(job: &RunJob<'_>, finished: &Finished<'_>, others: &Others) -> Result<(), Failed> {
    let args = job.args;
    if let Some(to) = &args.output {
        inputs::write(to, finished.outcome)?;
    }
    draw::draw(job, finished)?;
    let mut printed = false;
    if let Some(path) = &args.order_out {
        printed |= files::put(path, &job.order_text(finished.orders)?)?;
    }
    if let Some(path) = &args.profile_out {
        let times = measure::profile(&[(finished.program, finished.outcome)]);
        let times = times.into_iter().map(|(name, time)| (name, time.0.into()));
        printed |=
            files::put(path, &format!("{:#}\n", serde_json::Value::Object(times.collect())))?;
    }
    let text = match args.json {
        _ if printed => return Ok(()),
        true => format!("{:#}\n", show::to_json(job, finished, others)),
        false => show::render(job, finished, others),
    };
    let fill = |out: &mut dyn std::io::Write| out.write_all(text.as_bytes());
    match args.json && args.summary.path().is_some() {
        true => files::print_data(fill),
        false => files::write_to(&args.summary, fill),
    }
}

/// How a failed run is reported. A panic is our own bug.
pub(crate) fn failed(failure: Failure) -> Failed {
    match failure {
        Failure::Panicked { .. } | Failure::MemoryDiffers { .. } => {
            Failed::OurBug(failure.to_string())
        }
        Failure::Stopped => Failed::Stopped,
        Failure::Unwritable { .. } | Failure::NoMemory { .. } => {
            Failed::BadInput(failure.to_string())
        }
        failure => Failed::BrokenRun(failure.to_string()),
    }
}
