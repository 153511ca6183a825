//! One rank: its streams with their threads, and the steps that its plan is walked for.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Once};
use std::time::Instant;

use halflap::units::{Bytes, Nanos};

use super::super::memory::{Arena, Pool, Requested};
use super::super::report::RankOutcome;
use super::super::session::Options;
use super::super::task::{RankStreams, Worker};
use super::super::turns::LoopLimits;
use super::Issuer;
use crate::check::{Strictness, TaskProbe, Tracker, post};
use crate::comm::Transport;
use crate::failure::{Failure, Fate, Stopped};
use crate::kernel::{Context, Scratch};
use crate::prepare::Shared;
use crate::slice;
use crate::sync::locked;
use crate::tensor::{AlignedBytes, Tensor};

/// One rank: its streams, its memory and its inputs.
pub(crate) struct RunningRank {
    pub(crate) rank: usize,
    pub(crate) program: Shared,
    pub(crate) streams: Arc<RankStreams>,
    pub(crate) transport: Arc<dyn Transport>,
    pub(crate) fate: Arc<Fate>,
    pub(crate) inputs: Vec<Tensor>,
    pub(crate) options: Options,
    /// Its instruments.
    pub(crate) probe: Option<Arc<TaskProbe>>,
}

/// The stack size that custom calls expect: that of a typical main thread.
const STACK: usize = 8 << 20;

impl RunningRank {
    /// Runs all steps on this thread, with a thread for each stream.
    pub(crate) fn run(self) -> Result<RankOutcome, Stopped> {
        let arena: Arc<Arena> = Arc::default();
        let probe = self.probe.clone();
        let sequences: Arc<[AtomicU64]> =
            self.program.comms.iter().map(|_| AtomicU64::new(0)).collect();
        let mut threads = Vec::new();
        for index in 0..self.streams.all.len() {
            let worker = self.worker(index, arena.clone(), sequences.clone());
            let name = format!("rank {} stream {index}", self.rank);
            let thread = std::thread::Builder::new().name(name).stack_size(STACK);
            let helpers = self.options.threads_per_rank;
            let spawned = thread.spawn(move || match index {
                0 => compute(worker, helpers),
                _ => {
                    slice::wake_promptly();
                    worker.run();
                }
            });
            let failed = |error: std::io::Error| Failure::Thread {
                rank: self.rank,
                message: error.to_string(),
            };
            threads.push(spawned.map_err(|error| self.fate.fail(failed(error)))?);
        }
        let program = self.program.clone();
        let mut issuer = Issuer {
            program: &program,
            streams: &self.streams,
            fate: &self.fate,
            pool: Pool::new(arena.clone(), &self.options.checks, self.rank, program.ranks),
            requested: Requested::default(),
            issued: vec![0; self.streams.all.len()],
            sequences,
            meets: false,
            number: 0,
            count: 0,
            scope: None,
            probe,
            options: &self.options,
            rank: self.rank,
            run: 0,
            constants: HashMap::new(),
            last: None,
            at: (program.entry, 0),
            put_off: None,
            recorded: None,
            own: None,
        };
        issuer.pool.tracker =
            (issuer.options.checks.lifetimes != Strictness::Off).then(Tracker::default);
        issuer.meets =
            self.transport.needs_no_thread() && issuer.probe.is_none() && !issuer.is_watched();
        issuer.own = issuer.may_run_kernels().then(|| Worker {
            scratch: Scratch::new(Context { threads: 1, ..self.context() }),
            ..self.worker(0, arena, issuer.sequences.clone())
        });
        let outcome = self.steps(&mut issuer);
        self.streams.has_ended.store(outcome.is_ok(), Ordering::SeqCst);
        self.streams.issued.store(u64::MAX, Ordering::SeqCst);
        self.streams.all.iter().for_each(|stream| stream.close());
        let outcome = outcome?;
        for thread in threads {
            // A worker catches what it runs: it cannot panic.
            let _ = thread.join();
        }
        if issuer.pool.is_guarded() {
            post::wait_for_threads(self.rank);
            self.transport.barrier()?;
        }
        issuer.pool.close();
        Ok(outcome)
    }

    fn context(&self) -> Context {
        let device = self.rank as u32;
        let of_its_own = self.program.partitions;
        let partitions =
            self.options.stands_for.map_or(of_its_own, |(_, partitions)| partitions).max(1);
        Context {
            replica: device / partitions,
            partition: device % partitions,
            seed: self.options.seed,
            threads: self.options.threads_per_rank,
        }
    }

    fn worker(&self, index: usize, arena: Arc<Arena>, sequences: Arc<[AtomicU64]>) -> Worker {
        Worker {
            rank: self.rank,
            index,
            program: self.program.clone(),
            streams: self.streams.clone(),
            transport: self.transport.clone(),
            fate: self.fate.clone(),
            scratch: Scratch::new(self.context()),
            _arena: arena,
            probe: self.probe.clone(),
            sequences,
            resting: self.options.checks.resting(),
            faults: self.options.checks.faults.clone(),
            aside: AlignedBytes::default(),
            limits: LoopLimits::new(&self.options),
            panics_at: self
                .options
                .panic
                .filter(|(rank, _)| *rank == self.rank)
                .map(|(_, step)| step),
        }
    }

    fn steps(&self, issuer: &mut Issuer<'_>) -> Result<RankOutcome, Stopped> {
        let mut outcome = RankOutcome::default();
        for step in 0..self.options.steps {
            issuer.run = step;
            if let Some(probe) = &issuer.probe {
                probe.begin(step, &self.inputs);
            }
            let mut frame = issuer.enter(self.program.entry, &[])?;
            issuer.track(&frame);
            issuer.give(&mut frame, &self.inputs)?;
            if let Some(probe) = &issuer.probe {
                probe.given(
                    &issuer.addresses(&frame, &issuer.plan(&frame).parameters),
                    &self.inputs,
                );
            }
            self.transport.barrier()?;
            let began = Instant::now();
            issuer.walk(&mut frame)?;
            issuer.drain()?;
            outcome.steps.push(Nanos(began.elapsed().as_nanos() as f64));
            if let Some(probe) = &issuer.probe {
                let results = issuer.addresses(&frame, &issuer.plan(&frame).results);
                let _opened = issuer.opened(&results, &[]);
                probe.results(&results);
            }
            self.streams.steps_done.store(step + 1, Ordering::Relaxed);
            // Streams keep the memory: in a long loop it would be new in every step.
            let mut spans = Vec::new();
            for stream in &self.streams.all {
                spans.extend(locked(&stream.spans).drain(..).map(|noted| noted.since(began)));
            }
            if outcome.spans.len() == self.program.steps_kept() {
                outcome.spans.remove(0);
            }
            outcome.spans.push(spans);
            if step + 1 == self.options.steps {
                outcome.outputs = issuer.outputs(&frame);
            }
            if issuer.pool.is_guarded() {
                // Another rank may wrongly use this one's memory, which must then be detected.
                self.transport.barrier()?;
            }
            issuer.leave(frame);
            issuer.end_run();
        }
        outcome.peak = Bytes(issuer.requested.peak);
        outcome.reserved = Bytes(issuer.pool.reserved as i64);
        Ok(outcome)
    }
}

/// Runs the compute stream on one of the threads that share a kernel's work, so that handing out a
/// part and waiting for it does not put the stream's own thread to sleep. Custom calls stay on the
/// stream's thread: threads that they start inherit its name, which says whose they are, and they
/// may end their thread.
fn compute(worker: Worker, threads: usize) {
    let has_custom_calls = worker.program.labels.iter().any(|label| label.target.is_some());
    if threads < 2 {
        return worker.run();
    }
    if has_custom_calls {
        name_helpers();
        return worker.run();
    }
    let rank = worker.rank;
    let named = move |index| format!("helper {rank}.{index}");
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).thread_name(named);
    match pool.stack_size(STACK).build() {
        Ok(pool) => pool.install(|| worker.run()),
        Err(_) => worker.run(),
    }
}

/// Names the threads that help with kernels of all ranks, so that they are not mistaken for those
/// of custom calls.
fn name_helpers() {
    static NAMED: Once = Once::new();
    NAMED.call_once(|| {
        let named = rayon::ThreadPoolBuilder::new().thread_name(|index| format!("helper {index}"));
        // If they already exist, they have a name.
        let _ = named.build_global();
    });
}
