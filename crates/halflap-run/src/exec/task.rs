//! What runs on streams.
//!
//! A task has the addresses of its arrays, decided when it was issued. That they are its own while
//! it runs is what the plan and the sequence of streams promise (see [`super::memory`]).

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

use halflap::ids::Id;
use halflap_hlo::ids::CommId;

use super::float::Mode;
use super::memory::Arena;
use super::report::{Noted, RunLane};
use super::stream::{Sequence, TaskStream};
use super::turns::{Branches, LoopLimits, Pace, Turns};
use crate::address::{Address, AddressRange, MemoryCopy};
use crate::check::fault::HandlerStack;
use crate::check::post::{self, Marked, Running};
use crate::check::{
    Again, CollectiveState, Fault, LaunchOutcome, Opened, Resting, Taken, TaskProbe, said,
};
use crate::comm::{Exchange, Letter, Transport};
use crate::failure::{Failure, Fate, LOOK, Stopped};
use crate::kernel::{Kernel, Scratch};
use crate::prepare::{Action, Cast, IssuedTask, KernelLaunch, Label, Prepared, Read, Shared};
use crate::sync::locked;
use crate::tensor::{AlignedBytes, DType, Tensor, View, ViewMut};

/// The most spans that are kept of one step.
pub(super) const MOST_SPANS: usize = 1 << 20;

/// Something to be done.
pub(super) struct StreamTask {
    pub(super) issued: IssuedTask,
    pub(super) work: TaskWork,
}

/// An array that a step reads through bitcasts.
#[derive(Clone, Copy)]
pub(super) struct CastId {
    /// Which of the step's lists of arrays it is in; a conditional has one for each branch.
    pub(super) list: usize,
    pub(super) index: usize,
}

/// What is done.
pub(super) enum TaskWork {
    /// A kernel, with its inputs and then its outputs.
    Kernel { arrays: Arc<[Address]> },
    /// The bitcasts of an array: which one of the step's, from where, to where.
    Cast { which: CastId, arrays: [Address; 2] },
    /// Copies that happen at once.
    Copy { moves: Vec<MemoryCopy> },
    /// A wait until another stream has completed a task.
    Wait { stream: usize, until: AwaitedTask },
    /// A collective, once compute has completed this many tasks.
    Collective { after: Sequence, sequence: u64, arrays: Arc<[Address]> },
    /// A collective that nothing overlaps, on this stream.
    Inline(InlineCollective),
    /// A transfer, once compute has completed this many tasks.
    Transfer { after: Sequence, arrays: Arc<[Address]> },
    /// A rank's half of a message, once compute has completed this many tasks.
    Message { after: Sequence, arrays: Arc<[Address]> },
    /// A loop that this stream runs on its own.
    Loop(Box<Turns>),
    /// A conditional in such a loop.
    Branch(Box<Branches>),
    /// What such a loop starts on another stream.
    Start(LoopStart),
}

/// A task that is waited for.
#[derive(Clone)]
pub(super) enum AwaitedTask {
    Number(Sequence),
    /// In a loop, the one that was started last in some place.
    Started(Arc<AtomicU64>),
}

/// What a loop starts on another stream in each iteration, once compute has come there.
pub(super) struct LoopStart {
    pub(super) stream: usize,
    pub(super) work: AsideWork,
    /// The number on its stream of what was started last.
    pub(super) started: Arc<AtomicU64>,
}

/// What runs on other streams than that of compute.
pub(super) struct AsideWork {
    pub(super) kind: AsideKind,
    pub(super) arrays: Arc<[Address]>,
}

#[derive(Clone, Copy)]
pub(super) enum AsideKind {
    Collective(CommId),
    Transfer,
    Message,
}

impl AsideWork {
    /// The task, once compute has completed so many. `sequences` counts the collectives of each set
    /// of devices.
    pub(super) fn task(&self, after: Sequence, sequences: &[AtomicU64]) -> TaskWork {
        let arrays = self.arrays.clone();
        match self.kind {
            AsideKind::Collective(comm) => {
                let sequence = sequences[comm.index()].fetch_add(1, Ordering::Relaxed);
                TaskWork::Collective { after, sequence, arrays }
            }
            AsideKind::Transfer => TaskWork::Transfer { after, arrays },
            AsideKind::Message => TaskWork::Message { after, arrays },
        }
    }
}

/// A collective that compute waits for at once.
pub(super) struct InlineCollective {
    /// The stream of its set, which must have completed this many tasks.
    pub(super) stream: usize,
    /// In a loop, all that it was given.
    pub(super) after: Option<Sequence>,
    /// How many collectives the set has done before; in a loop that is counted as it runs.
    pub(super) sequence: Option<u64>,
    pub(super) arrays: Arc<[Address]>,
    /// The label of its wait.
    pub(super) wait: u32,
}

/// A thread waits for every collective that runs as a [`InlineCollective`].
static AWAITED: AtomicU32 = AtomicU32::new(1);

impl StreamTask {
    /// How many collectives the set of a collective has done before.
    fn sequence(&self) -> u64 {
        match self.work {
            TaskWork::Collective { sequence, .. } => sequence,
            _ => 0,
        }
    }
}

/// A rank's streams: compute first, then those of communication.
pub(crate) struct RankStreams {
    pub(super) all: Vec<TaskStream<StreamTask>>,
    /// The number of the last task that was issued; the largest possible number, when no more will
    /// come.
    pub(super) issued: AtomicU64,
    /// Whether it has issued everything.
    pub(super) has_ended: AtomicBool,
    /// How many steps the rank has done.
    pub(super) steps_done: AtomicUsize,
}

impl RankStreams {
    pub(crate) fn new(count: usize, epoch: Instant) -> RankStreams {
        let all = (0..=count).map(|_| TaskStream::new(epoch)).collect();
        let (issued, has_ended, steps_done) =
            (AtomicU64::new(0), AtomicBool::new(false), AtomicUsize::new(0));
        RankStreams { all, issued, has_ended, steps_done }
    }

    pub(super) fn compute(&self) -> &TaskStream<StreamTask> {
        &self.all[0]
    }

    /// Whether the rank has issued everything; false if it was stopped.
    pub(crate) fn have_ended(&self) -> bool {
        self.has_ended.load(Ordering::SeqCst)
    }

    /// Whether everything up to a task is done.
    pub(crate) fn have_passed(&self, number: u64) -> bool {
        // Read first: issued tasks are already queued on their streams.
        self.issued.load(Ordering::SeqCst) >= number
            && self.all.iter().all(|stream| stream.has_passed(number))
    }

    /// What the streams are doing: compute first.
    pub(crate) fn status(&self) -> impl Iterator<Item = &super::stream::StreamStatus> {
        self.all.iter().map(|stream| &stream.status)
    }
}

/// The thread of a stream.
pub(super) struct Worker {
    pub(super) rank: usize,
    pub(super) index: usize,
    pub(super) program: Shared,
    pub(super) streams: Arc<RankStreams>,
    pub(super) transport: Arc<dyn Transport>,
    pub(super) fate: Arc<Fate>,
    pub(super) scratch: Scratch,
    /// Keeps the memory that tasks work on.
    pub(super) _arena: Arc<Arena>,
    /// Its instruments.
    pub(super) probe: Option<Arc<TaskProbe>>,
    pub(super) aside: AlignedBytes,
    /// How many collectives each set of devices has done.
    pub(super) sequences: Arc<[AtomicU64]>,
    /// The access to memory that no task works on, if it is guarded.
    pub(super) resting: Option<Resting>,
    /// Faults to inject.
    pub(super) faults: Vec<Fault>,
    /// How long loops may run.
    pub(super) limits: LoopLimits,
    /// The step at which it panics, for tests.
    pub(super) panics_at: Option<usize>,
}

impl Worker {
    /// Runs tasks until there are no more, or a rank failed.
    pub(super) fn run(mut self) {
        let _stack = HandlerStack::new();
        if self.index == 0 {
            post::take_up(self.rank, &self.program);
        }
        let streams = self.streams.clone();
        let stream = &streams.all[self.index];
        while let Some(task) = stream.next(&self.fate) {
            if !self.complete(&task, stream) {
                return;
            }
        }
    }

    /// Runs a task of the stream; false if nothing more is to be run.
    pub(super) fn complete(&mut self, task: &StreamTask, stream: &TaskStream<StreamTask>) -> bool {
        stream.come_to(task.issued.number);
        if task.issued.number > self.fate.horizon() {
            return false;
        }
        let done = catch_unwind(AssertUnwindSafe(|| self.task(task, stream)));
        // In a loop it may differ from the task's own.
        let at = stream.status.now().map_or(task.issued.label, |(label, ..)| label);
        stream.status.end();
        match done {
            Ok(Ok(())) => {
                stream.advance();
                true
            }
            Ok(Err(Stopped)) => false,
            Err(payload) => {
                let message = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
                let message = message.or_else(|| payload.downcast_ref::<String>().cloned());
                let at = self.program.labels[at as usize].name.clone();
                let message = message.unwrap_or_else(|| "unknown".to_owned());
                self.fate.fail(Failure::Panicked { rank: self.rank, at, message });
                false
            }
        }
    }

    fn task(&mut self, task: &StreamTask, stream: &TaskStream<StreamTask>) -> Result<(), Stopped> {
        if let TaskWork::Loop(turns) = &task.work {
            let program = self.program.clone();
            let mut pace = Pace::new(&program, stream);
            self.turns(turns, &mut pace)?;
            pace.finish();
            return Ok(());
        }
        if let TaskWork::Inline(inline) = &task.work {
            let program = self.program.clone();
            let noted = self.meet(&task.issued, inline, &program)?;
            let mut spans = locked(&stream.spans);
            if spans.len() < MOST_SPANS {
                spans.extend(noted);
            }
            return Ok(());
        }
        // Time spent waiting does not count.
        let (TaskWork::Collective { after, .. }
        | TaskWork::Transfer { after, .. }
        | TaskWork::Message { after, .. }) = &task.work
        else {
            return self.timed(task, stream);
        };
        self.streams.compute().wait(*after, &self.fate)?;
        self.timed(task, stream)
    }

    fn timed(&mut self, task: &StreamTask, stream: &TaskStream<StreamTask>) -> Result<(), Stopped> {
        let label = task.issued.label;
        stream.status.begin(label, task.sequence(), Instant::now());
        let program = self.program.clone();
        let (ins, outs) = self.resting.map_or_else(Default::default, |_| self.arrays(task));
        let running =
            Running { label: &program.labels[label as usize], rank: self.rank, ins: &ins };
        let marked = Marked::new(&running);
        if self.has_faults(|fault| fault.stalls(self.rank, &running.label.name)) {
            loop {
                self.fate.check()?;
                std::thread::sleep(LOOK);
            }
        }
        let opened = self.resting.map(|resting| Opened::new(&ins, &outs, resting));
        let start = Instant::now();
        let met = match &self.probe {
            None => self.body(task, &program),
            Some(probe) => self.watched(task, &probe.clone(), &program),
        };
        marked.has_returned();
        if met.is_err() {
            // After an abandoned collective, the other members may still read there.
            opened.into_iter().for_each(Opened::leave);
            return Err(Stopped);
        }
        if self.resting.is_some() {
            marked.note_threads();
        }
        let lane = self.lane();
        let mut spans = locked(&stream.spans);
        // An endless loop must not exhaust memory.
        if spans.len() < MOST_SPANS {
            spans.push(Noted { label, lane, start, met: met?, end: Instant::now() });
        }
        Ok(())
    }

    /// Runs a collective on this thread. It is recorded on the stream of its set, its wait here.
    pub(super) fn meet(
        &self,
        issued: &IssuedTask,
        inline: &InlineCollective,
        program: &Prepared,
    ) -> Result<[Noted; 2], Stopped> {
        let InlineCollective { stream, after, sequence, arrays, wait } = inline;
        let of_its_set = &self.streams.all[*stream];
        of_its_set.wait(after.unwrap_or_else(|| of_its_set.last()), &self.fate)?;
        let (plan, step) = program.labels[issued.label as usize].at;
        let Action::Collective { collective, ins, .. } = &program.plans[plan].actions[step] else {
            return Err(Stopped);
        };
        let next = || self.sequences[collective.comm.index()].fetch_add(1, Ordering::Relaxed);
        let sequence = sequence.unwrap_or_else(next);
        let start = Instant::now();
        self.streams.all[self.index].status.begin(issued.label, sequence, start);
        let (ins, outs) = arrays.split_at(ins.len());
        let exchange = Exchange { collective, sequence, ins, outs, waiting: &AWAITED };
        let met = self.transport.exchange(&exchange)?;
        let (end, lane) = (Instant::now(), RunLane::Stream(Id::from_index(*stream - 1)));
        Ok([
            Noted { label: issued.label, lane, start, met, end },
            Noted { label: *wait, lane: self.lane(), start, met: None, end },
        ])
    }

    /// Starts what a loop runs on another stream.
    pub(super) fn start(&self, issued: &IssuedTask, start: &LoopStart) {
        let LoopStart { stream, work, started } = start;
        // Compute has come here: there is nothing to wait for.
        let work = work.task(0, &self.sequences);
        let number = self.streams.all[*stream].push(StreamTask { issued: issued.clone(), work });
        started.store(number, Ordering::Relaxed);
    }

    /// What a task reads, and what it writes.
    fn arrays(&self, task: &StreamTask) -> (Vec<Address>, Vec<Address>) {
        match &task.work {
            TaskWork::Kernel { arrays }
            | TaskWork::Transfer { arrays, .. }
            | TaskWork::Message { arrays, .. }
            | TaskWork::Inline(InlineCollective { arrays, .. })
            | TaskWork::Collective { arrays, .. } => {
                let (ins, outs) =
                    arrays.split_at(self.program.labels[task.issued.label as usize].ins.len());
                (ins.to_vec(), outs.to_vec())
            }
            TaskWork::Cast { arrays: [from, to], .. } => (vec![*from], vec![*to]),
            TaskWork::Copy { moves } => moves.iter().map(|(from, to, _)| (*from, *to)).unzip(),
            TaskWork::Wait { .. }
            | TaskWork::Loop(_)
            | TaskWork::Branch(_)
            | TaskWork::Start(_) => Default::default(),
        }
    }

    /// Like `body`, but inspects inputs and outputs.
    fn watched(
        &mut self,
        task: &StreamTask,
        probe: &TaskProbe,
        program: &Prepared,
    ) -> Result<Option<Instant>, Stopped> {
        let (TaskWork::Kernel { arrays }
        | TaskWork::Transfer { arrays, .. }
        | TaskWork::Message { arrays, .. }
        | TaskWork::Collective { arrays, .. }) = &task.work
        else {
            let met = self.body(task, program)?;
            follow_copy(task, probe, program);
            return Ok(met);
        };
        let taken = self.program.labels[task.issued.label as usize].ins.len();
        let (ins, outs) = arrays.split_at(taken);
        let worst = probe.before(&task.issued, ins, &self.fate);
        let met = match &task.work {
            TaskWork::Collective { sequence, .. } => {
                let taken = probe.bring(&task.issued, arrays, *sequence);
                probe.advance(&task.issued, CollectiveState::Started);
                let met = self.body(task, program)?;
                probe.advance(&task.issued, CollectiveState::Completed);
                if let Some(taken) = taken {
                    probe.receive(&task.issued, &LaunchOutcome { outs, taken: &taken }, *sequence);
                }
                met
            }
            TaskWork::Message { .. } => {
                probe.send(&task.issued, ins);
                let met = self.body(task, program)?;
                probe.got(&task.issued, outs);
                met
            }
            _ => {
                let taken = probe.take(&task.issued, ins, outs);
                let met = self.body(task, program)?;
                if let Some(taken) = taken {
                    self.follow(task, probe, &taken);
                }
                met
            }
        };
        let finding = probe.after(&task.issued, outs, worst);
        finding.into_iter().for_each(|finding| self.fate.find(finding));
        Ok(met)
    }

    /// Finds out what the outputs of a kernel come from. A custom call is not run again, because it
    /// may have state.
    fn follow(&mut self, task: &StreamTask, probe: &TaskProbe, taken: &Taken) {
        let program = self.program.clone();
        let label = &program.labels[task.issued.label as usize];
        let (plan, step) = label.at;
        let (Action::Launch { launch, .. } | Action::Transfer { launch, .. }) =
            &program.plans[plan].actions[step]
        else {
            return;
        };
        let (TaskWork::Kernel { arrays } | TaskWork::Transfer { arrays, .. }) = &task.work else {
            return;
        };
        let (ins, outs) = arrays.split_at(launch.ins.len());
        let mut again = |replaced: &[(usize, Tensor)]| {
            let mut inputs = ins.to_vec();
            for (place, array) in replaced {
                inputs[*place] = Address(array.bytes().as_ptr().cast_mut());
            }
            let kinds = launch.kernel.outputs().iter();
            let mut made: Vec<Tensor> =
                kinds.map(|kind| Tensor::zeros(kind.dtype, &kind.dims)).collect();
            let to: Vec<Address> =
                made.iter_mut().map(|array| Address(array.bytes_mut().as_mut_ptr())).collect();
            run_kernel(&launch.kernel, &inputs, &to, &mut self.scratch);
            made
        };
        let again = label.target.is_none().then_some(&mut again as Again<'_>);
        probe.follow(&task.issued, &LaunchOutcome { outs, taken }, again);
    }

    pub(super) fn body(
        &mut self,
        task: &StreamTask,
        program: &Prepared,
    ) -> Result<Option<Instant>, Stopped> {
        let label = &program.labels[task.issued.label as usize];
        let (plan, step) = label.at;
        let action = &program.plans[plan].actions[step];
        match &task.work {
            TaskWork::Kernel { arrays } | TaskWork::Transfer { arrays, .. } => {
                assert!(self.panics_at != Some(step), "this was asked for");
                if let Action::Launch { launch, .. } | Action::Transfer { launch, .. } = action {
                    let (ins, outs) = arrays.split_at(launch.ins.len());
                    let mode = label.target.as_ref().map(|_| Mode::now());
                    let probe = self.probe.clone().filter(|_| label.target.is_some());
                    let heap = probe.as_ref().and_then(|probe| probe.watch_heap());
                    self.launch(launch, arrays);
                    if let (Some(probe), Some(heap)) = (probe, heap) {
                        probe.grew(&task.issued, heap);
                    }
                    if mode.is_some_and(|mode| mode != Mode::now()) {
                        mode.into_iter().for_each(Mode::set);
                        self.note_mode(&task.issued, label);
                    }
                    if self.has_faults(
                        |fault| matches!(fault, Fault::MutateInput(name) if *name == label.name),
                    ) {
                        spoil(ins, outs);
                    }
                }
            }
            TaskWork::Cast { which, arrays } => {
                if let Some(cast) = cast_in(action, *which) {
                    run_kernel(&cast.kernel, &arrays[..1], &arrays[1..], &mut self.scratch);
                }
            }
            TaskWork::Copy { moves } => self.copy(moves),
            // Run by `task`, or as a part of that.
            TaskWork::Loop(_) | TaskWork::Branch(_) | TaskWork::Inline(_) | TaskWork::Start(_) => {}
            TaskWork::Wait { stream, until } => {
                let until = match until {
                    AwaitedTask::Number(number) => *number,
                    // Only this thread writes it.
                    AwaitedTask::Started(started) => started.load(Ordering::Relaxed),
                };
                self.streams.all[*stream].wait(until, &self.fate)?
            }
            TaskWork::Message { arrays, .. } => {
                if let Some(message) = &label.message {
                    let waiting = &self.streams.all[self.index].sleepers;
                    let letter = Letter { name: &label.name, message, arrays, waiting };
                    return self.transport.message(&letter);
                }
            }
            TaskWork::Collective { sequence, arrays, .. } => {
                if let Action::Collective { collective, ins, .. } = action {
                    let (ins, outs) = arrays.split_at(ins.len());
                    let waiting = &self.streams.all[self.index].sleepers;
                    let exchange = Exchange { collective, sequence: *sequence, ins, outs, waiting };
                    return self.transport.exchange(&exchange);
                }
            }
        }
        Ok(None)
    }

    /// A custom call has changed its thread's rounding mode.
    fn note_mode(&self, issued: &IssuedTask, label: &Label) {
        let Label { name, place: (computation, step), .. } = label;
        let rank = self.rank;
        said::warn_once(format!(
            "rank {rank}: kernel '{name}', step {step} of {computation}, changes its thread's rounding mode; it was reset"
        ));
        if let Some(probe) = &self.probe {
            probe.changed_mode(issued);
        }
    }

    /// Whether a fault is injected here.
    fn has_faults(&self, is_here: impl Fn(&Fault) -> bool) -> bool {
        self.faults.iter().any(is_here)
    }

    fn launch(&mut self, launch: &KernelLaunch, arrays: &[Address]) {
        let (ins, outs) = arrays.split_at(launch.ins.len());
        if !launch.aside.contains(&true) {
            run_kernel(&launch.kernel, ins, outs, &mut self.scratch);
            return;
        }
        let sizes = || {
            launch
                .kernel
                .inputs()
                .iter()
                .zip(&launch.aside)
                .map(|(kind, &aside)| if aside { kind.bytes() } else { 0 })
        };
        self.aside.reserve(sizes().map(|size| size.next_multiple_of(64)).sum());
        let mut free = self.aside.as_mut_ptr();
        let mut moved = ins.to_vec();
        for (address, size) in moved.iter_mut().zip(sizes()).filter(|(_, size)| *size > 0) {
            // SAFETY: the slot holds the array, and what was reserved has room for all of them.
            unsafe {
                std::ptr::copy_nonoverlapping(address.0.cast_const(), free, size);
                *address = Address(free);
                free = free.add(size.next_multiple_of(64));
            }
        }
        run_kernel(&launch.kernel, &moved, outs, &mut self.scratch);
    }

    /// All copies as if simultaneous: what one reads and another writes is saved first.
    pub(super) fn copy(&mut self, moves: &[MemoryCopy]) {
        let is_written = |from: &Address| moves.iter().any(|(_, to, _)| to == from);
        if !moves.iter().any(|(from, ..)| is_written(from)) {
            for &(from, to, len) in moves {
                // SAFETY: the plan's slots are that long.
                unsafe { std::ptr::copy(from.0.cast_const(), to.0, len) };
            }
            return;
        }
        let needed = moves
            .iter()
            .filter(|(from, ..)| is_written(from))
            .map(|(_, _, len)| len.next_multiple_of(64));
        self.aside.reserve(needed.sum());
        let mut free = self.aside.as_mut_ptr();
        let mut sources = Vec::with_capacity(moves.len());
        for &(from, _, len) in moves {
            sources.push(from.0.cast_const());
            if is_written(&from) {
                // SAFETY: both are that long, and the reserved memory is exclusive.
                unsafe {
                    std::ptr::copy_nonoverlapping(from.0.cast_const(), free, len);
                    sources.pop();
                    sources.push(free.cast_const());
                    free = free.add(len.next_multiple_of(64));
                }
            }
        }
        for (&(_, to, len), from) in moves.iter().zip(sources) {
            // SAFETY: the plan's slots are that long; a source that is overwritten was saved
            // before.
            unsafe { std::ptr::copy(from, to.0, len) };
        }
    }
}

/// Passes on what is known of an array that was copied.
fn follow_copy(task: &StreamTask, probe: &TaskProbe, program: &Prepared) {
    let (plan, step) = program.labels[task.issued.label as usize].at;
    match &task.work {
        TaskWork::Copy { moves } => probe.moved(moves),
        TaskWork::Cast { which, arrays: [from, to] } => {
            if let Some(cast) = cast_in(&program.plans[plan].actions[step], *which) {
                let [taken, made] =
                    [cast.kernel.inputs(), cast.kernel.outputs()].map(|kinds| kinds[0].bytes());
                let from = AddressRange { start: *from, len: taken };
                probe.cast(from, AddressRange { start: *to, len: made });
            }
        }
        _ => {}
    }
}

/// Writes to the first input that is not an output.
fn spoil(ins: &[Address], outs: &[Address]) {
    if let Some(address) =
        ins.iter().find(|address| !outs.contains(address) && !address.0.is_null())
    {
        // SAFETY: the array is allocated; writing to it is the injected fault.
        unsafe { *address.0 ^= 0x5a };
    }
}

/// The bitcasts of one array that a step reads.
fn cast_in(action: &Action, which: CastId) -> Option<&Cast> {
    let CastId { list, index } = which;
    fn read(reads: &[Read], index: usize) -> Option<&Cast> {
        match reads.get(index) {
            Some(Read::Cast(cast)) => Some(cast),
            _ => None,
        }
    }
    match action {
        Action::Launch { casts, .. } => {
            casts.iter().find(|(place, _)| *place == index).map(|(_, cast)| cast)
        }
        Action::Collective { ins, .. } => read(ins, index),
        Action::Call { called, .. } => read(&called.arguments, index),
        Action::Branch { branches, .. } => {
            branches.get(list).and_then(|branch| read(&branch.arguments, index))
        }
        _ => None,
    }
}

/// Runs a kernel on the memory that the plan assigns to it.
pub(super) fn run_kernel(
    kernel: &Kernel,
    ins: &[Address],
    outs: &[Address],
    scratch: &mut Scratch,
) {
    if ins.len() > FEW || outs.len() > FEW {
        let (inputs, mut outputs) = views(kernel, ins, outs);
        return kernel.run(&inputs, &mut outputs, scratch);
    }
    let (taken, given) = each_view(kernel, ins, outs);
    // Small kernels in loops are faster than an allocation. SAFETY: arrays without elements.
    let mut inputs = [const { unsafe { View::from_raw(DType::Pred, &[0], NOWHERE) } }; FEW];
    // SAFETY: as above.
    let mut outputs = [const { unsafe { ViewMut::from_raw(DType::Pred, &[0], NOWHERE) } }; FEW];
    taken.zip(&mut inputs).for_each(|(array, place)| *place = array);
    given.zip(&mut outputs).for_each(|(array, place)| *place = array);
    kernel.run(&inputs[..ins.len()], &mut outputs[..outs.len()], scratch);
}

/// The arrays of a kernel in the memory that the plan assigns to it.
pub(super) fn views<'k>(
    kernel: &'k Kernel,
    ins: &[Address],
    outs: &[Address],
) -> (Vec<View<'k>>, Vec<ViewMut<'k>>) {
    let (taken, given) = each_view(kernel, ins, outs);
    (taken.collect(), given.collect())
}

fn each_view<'k>(
    kernel: &'k Kernel,
    ins: &[Address],
    outs: &[Address],
) -> (impl Iterator<Item = View<'k>>, impl Iterator<Item = ViewMut<'k>>) {
    // SAFETY: the slot's memory is as long as the largest array in it and aligned to a cache line;
    // no other task writes there while this kernel runs.
    let taken = ins
        .iter()
        .zip(kernel.inputs())
        .map(|(address, kind)| unsafe { View::from_raw(kind.dtype, &kind.dims, start(address)) });
    // SAFETY: as above; an input shares this memory only if the kernel allows it.
    let given = outs.iter().zip(kernel.outputs()).map(|(address, kind)| unsafe {
        ViewMut::from_raw(kind.dtype, &kind.dims, start(address))
    });
    (taken, given)
}

/// The maximum number of arrays held without an allocation.
const FEW: usize = 8;
/// The address of an empty array.
const NOWHERE: NonNull<u8> = NonNull::<u64>::dangling().cast();

/// Empty arrays need no memory, but their address must not be null.
fn start(address: &Address) -> NonNull<u8> {
    NonNull::new(address.0).unwrap_or(NOWHERE)
}
