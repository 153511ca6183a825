//! `halflap run --tune`: tries orders on this machine, and uses the fastest.
//!
//! The orders alternate, round by round, on the same ranks, so that other load on the machine
//! affects all of them. The first rank sees the times of every rank, and decides for all.

mod choose;
mod show;

use std::sync::Arc;
use std::time::{Duration, Instant};

use halflap::memory::Budget;
use halflap::units::{Bytes, Nanos};
use halflap_run::exec::{Options, Outcome, Prepared};
use halflap_run::tensor::Tensor;

use super::ranks::{Given, Ranks, Turn};
use super::show::{Finished, Others};
use super::{RunJob, finish, measure, profile, run_steps};
use crate::args::{self, CollectiveOrder};
use crate::execution::diff;
use crate::execution::plans::{UnitOrders, Which};
use crate::exit::Failed;
use crate::progress::Bar;
use choose::Round;
pub(super) use show::Tuned;

/// Steps of a candidate in a round, and of the run that times come from. The first warms up.
const STEPS: usize = 4;
const FIRST_STEPS: usize = 8;

/// A way to order a module.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum OrderWay {
    /// Its own order.
    Input,
    /// Ours, with the order of collectives kept or free, within a memory budget.
    Ours(CollectiveOrder, Budget),
}

impl OrderWay {
    /// `input`, `kept` or `free`.
    fn order(self) -> &'static str {
        match self {
            OrderWay::Input => "input",
            OrderWay::Ours(CollectiveOrder::Kept, _) => "kept",
            OrderWay::Ours(CollectiveOrder::Free, _) => "free",
        }
    }

    fn memory_budget(self) -> Option<String> {
        match self {
            OrderWay::Input => None,
            OrderWay::Ours(_, Budget::Times(times)) => Some(format!("{times}x")),
            OrderWay::Ours(_, Budget::Absolute(bytes)) => Some(bytes.to_string()),
        }
    }

    pub(super) fn name(self) -> String {
        match self.memory_budget() {
            Some(budget) if budget != "1x" => format!("{} {budget}", self.order()),
            _ => self.order().to_owned(),
        }
    }
}

/// All ways that are tried, the module's own first.
pub(super) fn ways(args: &args::Run) -> Vec<OrderWay> {
    let search = &args.orders.search;
    let budgets = match (args.memory_budgets.as_slice(), search.memory_budget) {
        ([], None) => vec![Budget::Times(1.0), Budget::Times(1.5)],
        ([], Some(budget)) => vec![budget],
        (budgets, _) => budgets.to_vec(),
    };
    let orders = match search.collective_order {
        Some(order) => vec![order],
        None => vec![CollectiveOrder::Kept, CollectiveOrder::Free],
    };
    let ours = budgets
        .iter()
        .flat_map(|&budget| orders.iter().map(move |&order| OrderWay::Ours(order, budget)));
    std::iter::once(OrderWay::Input).chain(ours).collect()
}

/// How a candidate's outputs compare with those of the module's own order.
#[derive(Clone, Debug, PartialEq)]
enum Outputs {
    EqualBits,
    /// Within what `halflap diff` allows.
    Close,
    Differ(String),
}

/// An order that can be run.
struct Candidate {
    way: OrderWay,
    orders: UnitOrders,
    program: Arc<Prepared>,
    outputs: Outputs,
}

impl Candidate {
    fn peak(&self) -> Bytes {
        Bytes(self.program.peak)
    }
}

/// Tries all ways, and runs the module in the fastest.
pub(super) fn run<R: Ranks>(job: &mut RunJob<'_>, ranks: &R, limit: Nanos) -> Result<(), Failed> {
    let bar = Bar::new("tuning");
    let limit = Duration::from_nanos(limit.0 as u64);
    let orders = ranks.found(job, Which::Input)?;
    let program = ranks.prepare(job, &orders)?;
    let inputs = ranks.inputs(job, &program)?;
    let clock = Clock { began: Instant::now(), limit };
    let mut trial = TrialSetup { ranks, inputs, bar, clock, first: None, left_out: Vec::new() };
    let own = Candidate { way: OrderWay::Input, orders, program, outputs: Outputs::EqualBits };
    let candidates = trial.candidates(job, own)?;
    let candidates = trial.with_equal_outputs(job, candidates)?;
    let rounds = trial.rounds(job, &candidates)?;
    let peaks: Vec<Bytes> = candidates.iter().map(Candidate::peak).collect();
    let chosen = choose::choice(&choose::measured(&rounds), &peaks);
    let chosen = usize::from(trial.heard(chosen as u8)?).min(candidates.len() - 1);
    let rows = rows(job, &candidates, &rounds)?;
    let left_out = trial.left_out;
    let tuned = Tuned { rows, chosen, rounds: rounds.len(), limit, left_out };
    let Candidate { program, orders, .. } = &candidates[chosen];
    let outcome = run_steps(job, ranks, Given { program, inputs: trial.inputs })?;
    let others = Others { tuned: Some(tuned), ..Others::default() };
    let finished = match &outcome {
        Some(outcome) => finish(job, &Finished { program, outcome, orders }, &others),
        None => Ok(()),
    };
    ranks.agreed(finished)
}

/// The time limit.
struct Clock {
    began: Instant,
    limit: Duration,
}

impl Clock {
    /// How much of it has passed.
    fn part(&self) -> f64 {
        (self.began.elapsed().as_secs_f64() / self.limit.as_secs_f64()).min(1.0)
    }
}

/// What candidates are tried with.
struct TrialSetup<'a, R> {
    ranks: &'a R,
    inputs: Vec<Vec<Tensor>>,
    bar: Bar,
    clock: Clock,
    /// The result of the module's own order, if known.
    first: Option<Outcome>,
    /// Ways that were not measured, and why.
    left_out: Vec<(OrderWay, String)>,
}

impl<R: Ranks> TrialSetup<'_, R> {
    /// Measures the module's own order, and finds ours with its times.
    fn candidates(
        &mut self,
        job: &mut RunJob<'_>,
        own: Candidate,
    ) -> Result<Vec<Candidate>, Failed> {
        self.first = self.turn(job, &own, FIRST_STEPS)?;
        self.bar.clear();
        let times = self.first.as_ref().map(|outcome| profile(&own.program, outcome)).transpose();
        self.ranks.agreed(times)?.into_iter().for_each(|times| job.source.measured(times));
        let mut candidates = vec![own];
        for way in ways(job.args).into_iter().skip(1) {
            match self.candidate(job, way, &candidates)? {
                Ok(candidate) => candidates.push(candidate),
                Err(why) => self.left_out.push((way, why)),
            }
        }
        Ok(candidates)
    }

    /// A candidate that differs from the known ones, or why there is none.
    fn candidate(
        &self,
        job: &RunJob<'_>,
        way: OrderWay,
        known: &[Candidate],
    ) -> Result<Result<Candidate, String>, Failed> {
        let OrderWay::Ours(order, budget) = way else {
            return Ok(Err("it is the module's own order".to_owned()));
        };
        if self.is_over()? {
            return Ok(Err("the time was up".to_owned()));
        }
        let mut search = job.args.orders.search.clone();
        (search.memory_budget, search.collective_order) = (Some(budget), Some(order));
        let orders = match self.ranks.found(job, Which::Ours(&search)) {
            // No order within the budget is known.
            Err(failed) if failed.code() == 2 => return Ok(Err(failed.problem())),
            orders => orders?,
        };
        if let Some(same) = known.iter().find(|other| other.orders.is_same(&orders)) {
            return Ok(Err(format!("the same order as {}", same.way.name())));
        }
        let program = self.ranks.prepare(job, &orders)?;
        Ok(Ok(Candidate { way, orders, program, outputs: Outputs::EqualBits }))
    }

    /// The candidates whose results match those of the module's own order; each has run once by
    /// then.
    fn with_equal_outputs(
        &mut self,
        job: &RunJob<'_>,
        candidates: Vec<Candidate>,
    ) -> Result<Vec<Candidate>, Failed> {
        let mut kept = Vec::new();
        for mut candidate in candidates {
            if candidate.way != OrderWay::Input {
                let outcome = self.turn(job, &candidate, STEPS)?;
                if let (Some(own), Some(outcome)) = (&self.first, &outcome) {
                    candidate.outputs = compared(own, outcome);
                }
            }
            let differs = matches!(candidate.outputs, Outputs::Differ(_));
            match (self.heard(u8::from(differs))?, candidate.outputs) {
                (0, outputs) => kept.push(Candidate { outputs, ..candidate }),
                (_, Outputs::Differ(why)) => self.left_out.push((candidate.way, why)),
                // Another rank knows why.
                (_, _) => self.left_out.push((candidate.way, String::new())),
            }
        }
        Ok(kept)
    }

    /// Alternates between all candidates until the differences are clear or the time is up.
    fn rounds(&self, job: &RunJob<'_>, candidates: &[Candidate]) -> Result<Vec<Round>, Failed> {
        let mut rounds = Vec::new();
        loop {
            let mut round = vec![0.0; candidates.len()];
            for place in 0..candidates.len() {
                // A different one goes first each time.
                let index = (place + rounds.len()) % candidates.len();
                let outcome = self.turn(job, &candidates[index], STEPS)?;
                round[index] =
                    outcome.map_or(0.0, |outcome| measure::median(measure::step_times(&outcome)));
            }
            rounds.push(round);
            let is_done = rounds.len() >= choose::MOST_ROUNDS || choose::is_clear(&rounds);
            if self.heard(u8::from(is_done))? == 1 || self.is_over()? {
                self.bar.clear();
                return Ok(rounds);
            }
        }
    }

    /// Runs a candidate a few times, without the checks of the final run.
    fn turn(
        &self,
        job: &RunJob<'_>,
        candidate: &Candidate,
        steps: usize,
    ) -> Result<Option<Outcome>, Failed> {
        let mut options = Options { steps, ..job.options() };
        options.checks.values = None;
        let show = |_| self.bar.show(self.clock.part());
        let given = Given { program: &candidate.program, inputs: self.inputs.clone() };
        self.ranks.run(job, given, &Turn { options: &options, show: &show })
    }

    /// Whether the first rank has no time left.
    fn is_over(&self) -> Result<bool, Failed> {
        Ok(self.heard(u8::from(self.clock.part() >= 1.0))? == 1)
    }

    /// What the first rank decided.
    fn heard(&self, own: u8) -> Result<u8, Failed> {
        Ok(self.ranks.heard(vec![own])?.first().copied().unwrap_or(0))
    }
}

/// The result of each candidate.
fn rows(
    job: &RunJob<'_>,
    candidates: &[Candidate],
    rounds: &[Round],
) -> Result<Vec<show::MeasuredCandidate>, Failed> {
    let mut rows = Vec::new();
    for (candidate, measured) in candidates.iter().zip(choose::measured(rounds)) {
        let simulated = job.source.simulated(&candidate.orders)?.step_time;
        let (peak, outputs) = (candidate.peak(), candidate.outputs.clone());
        rows.push(show::MeasuredCandidate {
            way: candidate.way,
            measured,
            simulated,
            peak,
            outputs,
        });
    }
    Ok(rows)
}

/// Compares the outputs of all ranks with those of the module's own order.
fn compared(own: &Outcome, other: &Outcome) -> Outputs {
    let mut is_equal = true;
    for (rank, (own, other)) in own.ranks.iter().zip(&other.ranks).enumerate() {
        for (number, (expected, found)) in own.outputs.iter().zip(&other.outputs).enumerate() {
            if expected.bytes() == found.bytes() {
                continue;
            }
            is_equal = false;
            if let Some(words) = diff::difference(found, expected) {
                return Outputs::Differ(format!(
                    "its output {number} on rank {rank} differs: {words}"
                ));
            }
        }
    }
    if is_equal { Outputs::EqualBits } else { Outputs::Close }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use halflap_run::exec::RankOutcome;

    use super::*;
    use crate::args::{Args, Command};

    fn names(options: &[&str]) -> Vec<String> {
        let args = Args::parse_from([&["halflap", "run", "m.txt", "--tune"], options].concat());
        let Command::Run(args) = args.command else { panic!() };
        ways(&args).into_iter().map(OrderWay::name).collect()
    }

    #[test]
    fn what_is_tried() {
        assert_eq!(names(&[]), ["input", "kept", "free", "kept 1.5x", "free 1.5x"]);
        assert_eq!(names(&["--memory-budget", "2x"]), ["input", "kept 2x", "free 2x"]);
        let several = ["--memory-budgets", "1x,4MiB", "--collective-order", "kept"];
        assert_eq!(names(&several), ["input", "kept", "kept 4 MiB"]);
    }

    #[test]
    fn outputs_are_compared() {
        let outcome = |last: f32| {
            let rank = |value| RankOutcome {
                outputs: vec![Tensor::of(&[1], &[value])],
                ..Default::default()
            };
            Outcome { ranks: vec![rank(1.0), rank(last)] }
        };
        let against = |last| compared(&outcome(2.0), &outcome(last));
        assert_eq!((against(2.0), against(2.000_001)), (Outputs::EqualBits, Outputs::Close));
        let Outputs::Differ(why) = against(3.0) else { panic!() };
        assert!(why.starts_with("its output 0 on rank 1 differs: 1 of 1 elements, by 1"), "{why}");
        let Outputs::Differ(_) = against(f32::NAN) else { panic!() };
    }
}
