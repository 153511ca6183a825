//! All ranks of a process, and their watchdog.

use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use super::issue::rank::RunningRank;
use super::report::{Outcome, RankOutcome};
use super::task::RankStreams;
use crate::check::{self, Checks, Flight, TaskProbe, said};
use crate::comm::{EmulatedLink, Hub, ThreadMember};
use crate::failure::{Failure, Fate, Finding, LOOK};
use crate::prepare::{Label, LabelKind, Prepared};
use crate::tensor::Tensor;

/// How a program is run.
#[derive(Clone, Debug)]
pub struct Options {
    /// How many times to run it.
    pub steps: usize,
    /// How long one kernel or collective may take.
    pub timeout: Duration,
    /// Time limit for a loop that is not known to be endless; no limit by default.
    pub loop_limit: Option<Duration>,
    /// How many iterations of a loop are recorded kernel by kernel. In later ones small kernels run
    /// without a look at the clock in between, and count as part of their loop.
    pub recorded_turns: u32,
    /// How many threads a kernel may use.
    pub threads_per_rank: usize,
    /// The seed of random numbers.
    pub seed: u64,
    /// The network whose times collectives emulate.
    pub link: Option<EmulatedLink>,
    /// The rank that a single rank represents, and the number of partitions in a replica of its
    /// program.
    pub stands_for: Option<(usize, u32)>,
    /// A rank, and the step of a plan at which it panics, for tests.
    pub panic: Option<(usize, usize)>,
    /// The enabled checks.
    pub checks: Checks,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            steps: 1,
            timeout: Duration::from_secs(60),
            loop_limit: None,
            recorded_turns: 16,
            threads_per_rank: 1,
            seed: 0,
            link: None,
            stands_for: None,
            panic: None,
            checks: Checks::default(),
        }
    }
}

impl Options {
    /// The number of the first rank.
    fn first_rank(&self) -> usize {
        self.stands_for.map_or(0, |(rank, _)| rank)
    }
}

/// How long threads have to end after a failure.
const GRACE: Duration = Duration::from_millis(500);
/// When ranks diverge, how long the others have to reach their next collective or their end.
pub(crate) const ARRIVAL: Duration = Duration::from_secs(2);
/// A rank that has been in a collective or a message for this long is waiting there.
const WAITING: Duration = Duration::from_millis(100);

/// Runs all ranks in this process, each with its own program (which should be the same) and its
/// inputs, whose types are those of [`Prepared::inputs`].
pub fn run(
    programs: &[Arc<Prepared>],
    inputs: Vec<Vec<Tensor>>,
    options: &Options,
) -> Result<Outcome, Failure> {
    run_shown(programs, inputs, options, &mut |_| ControlFlow::Continue(()))
}

/// Like [`run`], with a progress callback that receives the number of completed steps and may end
/// the run.
pub fn run_shown(
    programs: &[Arc<Prepared>],
    inputs: Vec<Vec<Tensor>>,
    options: &Options,
    show: &mut dyn FnMut(usize) -> ControlFlow<()>,
) -> Result<Outcome, Failure> {
    compare_plans(&programs.iter().map(|program| &**program).collect::<Vec<_>>())?;
    let epoch = Instant::now();
    let fate = Arc::new(Fate::default());
    let hub = Arc::new(Hub::new(programs.len(), fate.clone(), options.link));
    let (send, receive) = channel();
    let first = options.first_rank();
    let open = |(rank, program): (usize, &Arc<Prepared>)| {
        TaskProbe::open(&options.checks, program, first + rank)
    };
    let probes = programs.iter().enumerate().map(open).collect::<Result<Vec<_>, _>>()?;
    let mut streams = Vec::new();
    for (rank, (program, inputs)) in programs.iter().zip(inputs).enumerate() {
        let own = Arc::new(RankStreams::new(program.streams, epoch));
        streams.push(own.clone());
        let transport = Arc::new(ThreadMember { hub: hub.clone(), rank });
        let (program, fate) = (program.clone(), fate.clone());
        let (options, probe) = (options.clone(), probes[rank].clone());
        let rank = first + rank;
        spawn(
            RunningRank { rank, program, streams: own, transport, fate, inputs, options, probe },
            send.clone(),
        );
    }
    let watch = ThreadWatch { programs, streams: &streams, hub: &hub, options };
    let mut ranks: Vec<Option<RankOutcome>> = programs.iter().map(|_| None).collect();
    let mut left = programs.len();
    let mut failed_at: Option<Instant> = None;
    while left > 0 && failed_at.is_none_or(|failed| failed.elapsed() < GRACE) {
        match receive.recv_timeout(LOOK) {
            Ok((rank, outcome)) => {
                ranks[rank - first] = outcome;
                left -= 1;
            }
            Err(RecvTimeoutError::Timeout) if show(watch.steps_done()).is_break() => {
                fate.fail(Failure::Stopped);
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => break,
        }
        let is_due =
            |_: &Finding| watch.have_come(fate.horizon()) || fate.is_overdue(options.timeout);
        if let Some(finding) = fate.finding().filter(is_due) {
            fate.fail(finding.failure);
        }
        let has_come = |(since, _): &(Duration, &Failure)| {
            *since > ARRIVAL.min(options.timeout) || watch.have_settled()
        };
        if let Some((_, failure)) = fate.parted().filter(has_come) {
            fate.fail(failure.clone());
        }
        let is_open = fate.finding().is_none() && fate.parted().is_none();
        if let Some(failure) = watch.look(is_open).filter(|_| fate.check().is_ok()) {
            fate.fail(failure);
        }
        if fate.check().is_err() {
            failed_at = failed_at.or(Some(Instant::now()));
        }
    }
    match fate.verdict() {
        Some(failure) => {
            let flight = |(probe, streams): (&Option<Arc<TaskProbe>>, &Arc<RankStreams>)| {
                probe.as_ref()?.flight(streams.have_ended())
            };
            let flights: Vec<Flight> = probes.iter().zip(&streams).filter_map(flight).collect();
            Err(with_account(failure, &programs[0], &flights, options))
        }
        None => {
            let outcome = Outcome { ranks: ranks.into_iter().flatten().collect() };
            hub.untaken().map_or_else(|| outcome.checked(programs), Err)
        }
    }
}

/// Runs a rank on its own thread and sends the outcome: `None` if it was stopped.
pub(crate) fn spawn(rank: RunningRank, send: Sender<(usize, Option<RankOutcome>)>) {
    let (number, fate) = (rank.rank, rank.fate.clone());
    let told = fate.clone();
    let body = move || {
        let outcome = catch_unwind(AssertUnwindSafe(|| rank.run()));
        if outcome.is_err() {
            let message = "the thread that issues steps failed".to_owned();
            told.fail(Failure::Panicked { rank: number, at: "a step".to_owned(), message });
        }
        // The receiver is gone once the run has failed.
        let _ = send.send((number, outcome.ok().and_then(Result::ok)));
    };
    let spawned = std::thread::Builder::new().name(format!("rank {number}")).spawn(body);
    if let Err(error) = spawned {
        fate.fail(Failure::Thread { rank: number, message: error.to_string() });
    }
}

/// A failure of ranks that wait for each other, with their records of collectives, which are also
/// written to a file.
pub(crate) fn with_account(
    failure: Failure,
    program: &Prepared,
    flights: &[Flight],
    options: &Options,
) -> Failure {
    let is_apart =
        matches!(failure, Failure::TimedOut { .. } | Failure::Diverged { .. } | Failure::Mpi(_));
    let Some(path) = options.checks.recorder.as_ref().filter(|_| is_apart) else { return failure };
    let account = check::account(flights, program.planned_collectives(options.steps).as_deref());
    if let Err(error) = std::fs::write(path, check::dump(program, flights, account.as_ref())) {
        said::warn(&format!("{}: cannot be written: {error}", path.display()));
    }
    match account {
        Some(account) => Failure::Apart { failure: Box::new(failure), account: Box::new(account) },
        None => failure,
    }
}

/// An error that names the first difference, if ranks have different plans.
pub(crate) fn compare_plans(programs: &[&Prepared]) -> Result<(), Failure> {
    let Some((first, others)) = programs.split_first() else { return Ok(()) };
    for (index, other) in others.iter().enumerate() {
        if std::ptr::eq(*first, *other) || first.text.hash() == other.text.hash() {
            continue;
        }
        let same = first
            .text
            .steps()
            .zip(other.text.steps())
            .take_while(|(a, b)| a.text == b.text)
            .count();
        let (of_first, of_second) = (step_line(first, same), step_line(other, same));
        return Err(Failure::PlansDiffer { first: 0, second: index + 1, of_first, of_second });
    }
    Ok(())
}

/// A step's line without its indentation.
pub(crate) fn step_line(program: &Prepared, step: usize) -> String {
    let words = |line: &halflap_hlo::plan::PlanLine| {
        line.text.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    program.text.steps().nth(step).map_or("(its end)".to_owned(), words)
}

struct ThreadWatch<'a> {
    programs: &'a [Arc<Prepared>],
    streams: &'a [Arc<RankStreams>],
    hub: &'a Hub,
    options: &'a Options,
}

impl ThreadWatch<'_> {
    /// Whether all ranks have done all tasks up to one, or as many as they can: what a rank waits
    /// for may come after that task on another rank, which then does not begin it.
    fn have_come(&self, number: u64) -> bool {
        self.programs.iter().zip(self.streams).all(|(program, streams)| {
            streams.have_passed(number) || is_waiting(program, streams, WAITING)
        })
    }

    /// Whether every rank waits for others or has finished.
    fn have_settled(&self) -> bool {
        self.programs
            .iter()
            .zip(self.streams)
            .all(|(program, streams)| streams.have_ended() || is_waiting(program, streams, WAITING))
    }

    /// How many steps all ranks have done.
    fn steps_done(&self) -> usize {
        self.streams
            .iter()
            .map(|streams| streams.steps_done.load(Ordering::Relaxed))
            .min()
            .unwrap_or(0)
    }

    /// The report if a task takes too long; or, while nothing else is wrong, if it can never end.
    fn look(&self, is_open: bool) -> Option<Failure> {
        let is_late = |streams: &Arc<RankStreams>| late(streams, self.options.timeout);
        // A rank that keeps starting kernels, as in a long loop, will reach the others eventually.
        let goes_on = |streams: &Arc<RankStreams>| {
            streams.status().any(|status| status.idle() < self.options.timeout)
        };
        let is_stuck = || self.streams.iter().any(is_late) && !self.streams.iter().any(goes_on);
        let forsaken = is_open.then(|| self.forsaken()).flatten();
        let waited = forsaken.or_else(|| is_stuck().then_some(self.options.timeout))?;
        let ranks = (0..self.programs.len()).map(|rank| {
            let missing = |label: u32, sequence: u64| self.missing(rank, label, sequence);
            let shown = self.options.first_rank() + rank;
            format!(
                "rank {shown}: {}",
                describe(&self.programs[rank], &self.streams[rank], &missing)
            )
        });
        let stuck = (0..self.programs.len()).filter_map(|rank| {
            let (time, label) =
                longest_kernel(&self.programs[rank], &self.streams[rank], self.options.timeout)?;
            Some((time, self.options.first_rank() + rank, label))
        });
        // Among ranks that have been in it equally long, the lowest.
        let stuck = stuck.max_by_key(|(time, rank, _)| (time.as_secs(), std::cmp::Reverse(*rank)));
        let stuck = stuck.map(|(_, rank, label)| Box::new(label.stuck(rank)));
        Some(Failure::TimedOut { seconds: seconds(waited), stuck, ranks: ranks.collect() })
    }

    /// The ranks that a rank waits for in a collective.
    fn missing(&self, rank: usize, label: u32, sequence: u64) -> Vec<u32> {
        let collective = self.programs[rank].labels[label as usize].collective.as_ref();
        collective.map_or(Vec::new(), |collective| self.hub.missing(collective, rank, sequence))
    }

    /// How long a rank has been waiting in a collective for another one that is done with all that
    /// it has to do, and so will never come.
    fn forsaken(&self) -> Option<Duration> {
        let is_done = |&device: &u32| {
            let streams = self.streams.get(device as usize);
            streams.is_some_and(|streams| streams.have_ended() && streams.have_passed(u64::MAX))
        };
        let waits = (0..self.programs.len()).flat_map(|rank| {
            let now = self.streams[rank].status().filter_map(|status| status.now());
            now.filter(|(.., time)| *time > ARRIVAL).map(move |at| (rank, at))
        });
        let mut lost = waits.filter(|&(rank, (label, sequence, _))| {
            self.missing(rank, label, sequence).iter().any(is_done)
        });
        lost.next().map(|(_, (.., time))| time)
    }
}

pub(crate) fn seconds(time: Duration) -> String {
    format!("{}", (time.as_secs_f64() * 10.0).round() / 10.0)
}

/// Whether something on a rank takes longer than it may.
pub(crate) fn late(streams: &RankStreams, timeout: Duration) -> bool {
    streams.status().filter_map(|status| status.now()).any(|(.., time)| time > timeout)
}

/// Whether a rank has been waiting for others for a while, in a collective or for a message, and
/// computes nothing.
pub(crate) fn is_waiting(program: &Prepared, streams: &RankStreams, least: Duration) -> bool {
    let now = || streams.status().filter_map(|status| status.now());
    let is_exchange = |label: u32| {
        let label = &program.labels[label as usize];
        label.kind == LabelKind::Collective || label.message.is_some()
    };
    let is_wait = |label: u32| program.labels[label as usize].kind == LabelKind::Wait;
    let computes = now().any(|(label, ..)| !is_exchange(label) && !is_wait(label));
    !computes && now().any(|(label, _, time)| is_exchange(label) && time > least)
}

/// The kernel that a rank has been in for most of its time limit, and for how long.
pub(crate) fn longest_kernel<'a>(
    program: &'a Prepared,
    streams: &RankStreams,
    timeout: Duration,
) -> Option<(Duration, &'a Label)> {
    let now = streams.status().filter_map(|status| status.now());
    let of = now.map(|(label, _, time)| (time, &program.labels[label as usize]));
    let is_stuck = |(time, label): &(Duration, &Label)| {
        // A rank that waits for it may have begun a little earlier.
        *time > timeout / 2 && !matches!(label.kind, LabelKind::Collective | LabelKind::Wait)
    };
    of.filter(is_stuck).max_by_key(|(time, _)| *time)
}

/// What a rank is doing, as text.
pub(crate) fn describe(
    program: &Prepared,
    streams: &RankStreams,
    missing: &dyn Fn(u32, u64) -> Vec<u32>,
) -> String {
    let mut said = Vec::new();
    for (label, sequence, time) in streams.status().filter_map(|status| status.now()) {
        let of = &program.labels[label as usize];
        let place = format!("step {} of {}, {} s", of.place.1, of.place.0, seconds(time));
        said.push(match of.kind {
            LabelKind::Collective => {
                let absent: Vec<String> =
                    missing(label, sequence).iter().map(u32::to_string).collect();
                let absent = match absent.len() {
                    0 => String::new(),
                    1 => format!(": rank {} has not come", absent[0]),
                    _ => format!(": ranks {} have not come", absent.join(", ")),
                };
                format!("is in {} number {sequence} among {} ({place}){absent}", of.name, of.among)
            }
            LabelKind::Wait => format!("computes nothing until the end of {} ({place})", of.name),
            LabelKind::Transfer if of.message.is_some() => {
                format!("waits for the other half of {} ({place})", of.name)
            }
            LabelKind::Kernel | LabelKind::Transfer | LabelKind::Copy | LabelKind::Loop => {
                let target = of.target.iter().map(|target| format!("custom call of '{target}'"));
                let known: Vec<String> = target.chain(of.source.clone()).chain([place]).collect();
                format!("runs {} ({})", of.name, known.join(", "))
            }
        });
    }
    if said.is_empty() { "has nothing to do".to_owned() } else { said.join("; ") }
}
