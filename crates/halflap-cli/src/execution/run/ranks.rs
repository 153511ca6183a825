//! Ranks, as threads or processes: the interface that a run uses.

use std::ops::ControlFlow;
use std::sync::Arc;

use halflap_run::exec::{self, Options, Outcome, Prepared};
use halflap_run::tensor::Tensor;

use super::inputs::{self, Inputs};
use super::{RunJob, debug};
use crate::execution::plans::{UnitOrders, Which};
use crate::exit::Failed;
use crate::log::{self, LogLevel, LogTopic};

/// What ranks run.
pub(super) struct Given<'a> {
    pub(super) program: &'a Arc<Prepared>,
    /// The inputs of each rank of this process.
    pub(super) inputs: Vec<Vec<Tensor>>,
}

/// How often a program runs, and where its progress goes.
pub(super) struct Turn<'a> {
    pub(super) options: &'a Options,
    /// Takes the number of completed steps, and returns whether to continue.
    pub(super) show: &'a dyn Fn(usize) -> ControlFlow<()>,
}

/// All ranks of a module. Every process calls the same functions in the same order, and if one
/// fails, all do.
pub(super) trait Ranks {
    /// Orders, the same for all ranks.
    fn found(&self, job: &RunJob<'_>, which: Which<'_>) -> Result<UnitOrders, Failed>;
    /// A program, the same for all ranks.
    fn prepare(&self, job: &RunJob<'_>, orders: &UnitOrders) -> Result<Arc<Prepared>, Failed>;
    /// What each rank of this process gets.
    fn inputs(&self, job: &RunJob<'_>, program: &Prepared) -> Result<Vec<Vec<Tensor>>, Failed>;
    /// Runs a program. Of several processes only the first gets the outcome.
    fn run(
        &self,
        job: &RunJob<'_>,
        given: Given<'_>,
        turn: &Turn<'_>,
    ) -> Result<Option<Outcome>, Failed>;
    /// A failure of one process as a failure of all.
    fn agreed<T>(&self, result: Result<T, Failed>) -> Result<T, Failed>;
    /// What the first process says.
    fn heard(&self, said: Vec<u8>) -> Result<Vec<u8>, Failed>;
}

/// Ranks that are threads of this process.
pub(super) struct Threads;

impl Ranks for Threads {
    fn found(&self, job: &RunJob<'_>, which: Which<'_>) -> Result<UnitOrders, Failed> {
        job.source.found(which)
    }

    fn prepare(&self, job: &RunJob<'_>, orders: &UnitOrders) -> Result<Arc<Prepared>, Failed> {
        job.prepare(orders)
    }

    fn inputs(&self, job: &RunJob<'_>, program: &Prepared) -> Result<Vec<Vec<Tensor>>, Failed> {
        inputs::check_memory(program, job.args.module.name())?;
        let inputs = Inputs::open(job.args)?;
        if job.args.debug.check_inputs {
            inputs.check(program, 0..program.ranks)?;
        }
        inputs.all(program)
    }

    fn run(
        &self,
        job: &RunJob<'_>,
        given: Given<'_>,
        turn: &Turn<'_>,
    ) -> Result<Option<Outcome>, Failed> {
        let Given { program, inputs } = given;
        let mut programs = vec![program.clone(); program.ranks];
        for (rank, input) in &job.args.order_for {
            let other = job.source.found(Which::File(input))?;
            let Some(slot) = programs.get_mut(*rank) else {
                return Err(Failed::BadInput(format!("--order-for: there is no rank {rank}")));
            };
            *slot = job.prepare(&other)?;
        }
        log::say(LogTopic::Exec, LogLevel::Info, || {
            let (ranks, module, steps) = (program.ranks, &program.module, turn.options.steps);
            let count = program.labels.len();
            format!(
                "{ranks} ranks run {module} {steps} times, {count} kernels, collectives and waits \
                 each"
            )
        });
        let outcome =
            exec::run_shown(&programs, inputs, turn.options, &mut |done| (turn.show)(done));
        let outcome = outcome.map_err(|failure| debug::reported(job.args, failure))?;
        debug::put_origins(job.args, &turn.options.checks)?;
        Ok(Some(outcome))
    }

    fn agreed<T>(&self, result: Result<T, Failed>) -> Result<T, Failed> {
        result
    }

    fn heard(&self, said: Vec<u8>) -> Result<Vec<u8>, Failed> {
        Ok(said)
    }
}
