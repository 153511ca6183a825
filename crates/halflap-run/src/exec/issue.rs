//! The walk: one rank's plan, step by step.

pub(super) mod rank;
mod repeat;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use halflap::ids::{Id, IdVec, StreamId};
use halflap_hlo::ids::{CommId, PlanId, SlotId};

use repeat::Repeating;

use super::invariant::launch_of;
use super::memory::{Pool, PoolBlock, Requested};
use super::session::Options;
use super::stream::Sequence;
use super::task::{
    AsideKind, AsideWork, AwaitedTask, CastId, InlineCollective, LoopStart, RankStreams,
    StreamTask, TaskWork, Worker, run_kernel,
};
use crate::address::{Address, MemoryCopy};
use crate::check::{
    Fault, Freed, LifetimeViolation, Opened, Owner, Strictness, TaskProbe, said, seal,
};
use crate::comm::MessageEnd;
use crate::failure::{Failure, Fate, Finding, Stopped};
use crate::kernel::Scratch;
use crate::prepare::{Action, Called, IssuedTask, PlanReady, Prepared, Read};
use crate::tensor::Tensor;

/// The memory of a slot in a run of a plan.
#[derive(Clone, Copy)]
struct SlotMemory {
    address: Address,
    /// What it must free; `None` if it is borrowed.
    block: Option<PoolBlock>,
}

/// A run of a plan.
struct RunningPlan {
    plan: PlanId,
    at: IdVec<SlotId, Option<SlotMemory>>,
    /// For each step that started something, its stream and task.
    started: Vec<Option<(usize, AwaitedTask)>>,
    /// What holds arrays that were read through bitcasts.
    held: Vec<PoolBlock>,
}

/// A list of arrays that a step reads: the step's label, and which of its lists.
#[derive(Clone, Copy)]
struct ReadList {
    label: u32,
    /// A conditional has one for each branch.
    list: usize,
}

struct Issuer<'a> {
    program: &'a Prepared,
    streams: &'a RankStreams,
    fate: &'a Fate,
    pool: Pool,
    requested: Requested,
    /// How many tasks each stream was given.
    issued: Vec<Sequence>,
    /// How many collectives each set of devices was given.
    sequences: Arc<[AtomicU64]>,
    /// Whether collectives that nothing overlaps run on the compute stream.
    meets: bool,
    /// The number of the last issued task: collectives up to it, and tasks since. Ranks may diverge
    /// between two collectives, but all reach the same collectives.
    number: u64,
    /// How many tasks were issued.
    count: u64,
    /// The iteration of each enclosing loop, if needed.
    scope: Option<Arc<[u32]>>,
    probe: Option<Arc<TaskProbe>>,
    options: &'a Options,
    rank: usize,
    /// How often the module was run before.
    run: usize,
    /// Constants in guarded memory.
    constants: HashMap<(PlanId, usize), Address>,
    /// What was issued last.
    last: Option<u32>,
    /// The step that is issued.
    at: (PlanId, usize),
    /// A collective that is held back behind another, as an injected fault.
    put_off: Option<u32>,
    /// The tasks of a loop that the compute stream is to run on its own, while they are collected.
    recorded: Option<Vec<StreamTask>>,
    /// Runs short kernels on this thread.
    own: Option<Worker>,
}

/// Whether a task is a kernel that takes less time than waking a thread, and has no state.
fn is_short(task: &StreamTask, program: &Prepared) -> bool {
    matches!(task.work, TaskWork::Kernel { .. })
        && launch_of(task, program).is_some_and(|launch| {
            (launch.is_short || launch.is_brief) && launch.kernel.is_repeatable()
        })
}

/// The number after all tasks that may come before the next collective.
fn after_all(number: u64) -> u64 {
    ((number >> 32) + 1) << 32
}

impl Issuer<'_> {
    fn plan(&self, frame: &RunningPlan) -> &PlanReady {
        &self.program.plans[frame.plan]
    }

    fn push(&mut self, stream: usize, label: u32, work: TaskWork) -> Sequence {
        if let Some(recorded) = &mut self.recorded {
            let issued = IssuedTask { label, number: self.number, count: self.count, scope: None };
            recorded.push(StreamTask { issued, work });
            return self.issued[stream];
        }
        self.number = match &work {
            TaskWork::Collective { .. } | TaskWork::Inline(_) => after_all(self.number),
            _ => self.number + 1,
        };
        self.count += 1;
        self.last = Some(label);
        let issued =
            IssuedTask { label, number: self.number, count: self.count, scope: self.scope.clone() };
        if let (Some(probe), TaskWork::Collective { sequence, .. }) = (&self.probe, &work) {
            probe.schedule(&issued, *sequence);
        }
        // The other rank may only send it after receiving something that this rank has not issued
        // yet.
        let may_wait = match &self.program.labels[label as usize].message {
            Some(message) => message.end == MessageEnd::Send,
            None => true,
        };
        self.issued[stream] = self.hand_over(stream, StreamTask { issued, work });
        self.streams.issued.store(self.number, Ordering::SeqCst);
        if self.options.checks.launch_blocking && may_wait {
            // The next issue, or the end of the run, reports the failure.
            let _ = self.streams.all[stream].wait(self.issued[stream], self.fate);
        }
        self.issued[stream]
    }

    /// Gives a stream a task. A short kernel runs on this thread if compute has nothing else to do,
    /// because handing it over would take longer.
    fn hand_over(&mut self, stream: usize, task: StreamTask) -> Sequence {
        let to = &self.streams.all[stream];
        let is_idle = stream == 0 && to.has_done(self.issued[0]) && self.fate.check().is_ok();
        match self.own.as_mut().filter(|_| is_idle && is_short(&task, self.program)) {
            Some(own) => {
                let number = to.pass_by();
                // What fails is found by the next thread that waits.
                own.complete(&task, to);
                number
            }
            None => to.push(task),
        }
    }

    /// Whether this thread may run kernels: custom calls and checks have a thread for them.
    fn may_run_kernels(&self) -> bool {
        let is_foreign = self.program.labels.iter().any(|label| label.target.is_some());
        self.probe.is_none() && !self.is_watched() && !is_foreign && self.options.panic.is_none()
    }

    /// Waits until all streams have completed their tasks.
    fn drain(&self) -> Result<(), Stopped> {
        let mut each = self.streams.all.iter().zip(&self.issued);
        each.try_for_each(|(stream, &issued)| stream.wait(issued, self.fate))
    }

    /// A new run of a plan, with the memory of its parameters.
    fn enter(&mut self, id: PlanId, parameters: &[Address]) -> Result<RunningPlan, Stopped> {
        let plan = &self.program.plans[id];
        let mut at = IdVec::filled(None, plan.held.len());
        for (index, (slot, value)) in plan.constants.iter().enumerate() {
            let address = match self.pool.is_guarded() {
                true => self.guarded_constant(id, index)?,
                // A constant's slot is never written.
                false => Address(value.bytes().as_ptr().cast_mut()),
            };
            at[*slot] = Some(SlotMemory { address, block: None });
            if let Some(probe) = &self.probe {
                probe.constant(address, &plan.names[*slot], value);
            }
        }
        for (&slot, &address) in plan.parameters.iter().zip(parameters) {
            at[slot] = Some(SlotMemory { address, block: None });
        }
        self.requested.add(plan.constant_size);
        Ok(RunningPlan { plan: id, at, started: vec![None; plan.actions.len()], held: Vec::new() })
    }

    /// A constant in read-only memory between guard pages.
    fn guarded_constant(&mut self, id: PlanId, index: usize) -> Result<Address, Stopped> {
        if let Some(address) = self.constants.get(&(id, index)) {
            return Ok(*address);
        }
        let plan = &self.program.plans[id];
        let (slot, value) = &plan.constants[index];
        let block =
            self.memory(value.bytes().len(), Owner { is_constant: true, ..owner(plan, *slot) })?;
        // SAFETY: the memory is new and long enough.
        unsafe {
            std::ptr::copy_nonoverlapping(
                value.bytes().as_ptr(),
                block.address.0,
                value.bytes().len(),
            )
        };
        block.region.into_iter().for_each(seal);
        self.constants.insert((id, index), block.address);
        Ok(block.address)
    }

    /// Frees memory. If that makes it inaccessible, it first waits for its users.
    fn put(&mut self, block: PoolBlock) {
        if self.pool.is_guarded() && self.streams.compute().wait(self.issued[0], self.fate).is_err()
        {
            // Something may still use it.
            return;
        }
        let (program, label, at) = (self.program, self.last, self.at);
        let freed = || Freed {
            kernel: label
                .map_or("nothing", |label| &program.labels[label as usize].name)
                .to_owned(),
            step: at.1,
            computation: program.plans[at.0].computation.clone(),
        };
        if let Some(overrun) = self.pool.put(block, freed) {
            self.found(Failure::Overrun(Box::new(overrun)));
        }
    }

    /// Arrays that this thread works on itself, while no task does.
    fn opened(&self, ins: &[Address], outs: &[Address]) -> Option<Opened> {
        self.options.checks.resting().map(|resting| Opened::new(ins, outs, resting))
    }

    /// Records a finding before the next task: a rank that has issued that task has made the same
    /// check.
    fn found(&self, failure: Failure) {
        self.fate.find(Finding { number: self.number + 1, rank: self.rank, failure });
    }

    /// A run of the module has ended; it is numbered like a task.
    fn end_run(&mut self) {
        if let Some(overrun) = self.pool.look_at_marks() {
            self.found(Failure::Overrun(Box::new(overrun)));
        }
        self.number = after_all(self.number);
        self.streams.issued.store(self.number, Ordering::SeqCst);
    }

    /// Allocates memory; the run ends if there is none.
    fn memory(&mut self, bytes: usize, owner: Owner<'_>) -> Result<PoolBlock, Stopped> {
        self.pool.get(bytes, owner).ok_or_else(|| {
            self.fate.fail(Failure::NoMemory {
                rank: self.rank,
                buffer: owner.name.to_owned(),
                kind: owner.kind.to_owned(),
                bytes,
                place: (self.program.plans[self.at.0].computation.clone(), self.at.1),
                planned: self.program.peak,
            })
        })
    }

    /// Uncounted memory for an array in another layout.
    fn beside(&mut self, bytes: usize, label: u32) -> Result<PoolBlock, Stopped> {
        let name = &self.program.labels[label as usize].name;
        self.memory(
            bytes,
            Owner { name, kind: "an array in another layout", align: 8, is_constant: false },
        )
    }

    /// Frees what a run of a plan still holds.
    fn leave(&mut self, frame: RunningPlan) {
        if let Some(tracker) = &mut self.pool.tracker {
            tracker.leave();
        }
        let plan = &self.program.plans[frame.plan];
        for (slot, place) in frame.at.iter() {
            if let Some(SlotMemory { block: Some(block), .. }) = place {
                self.put(*block);
                self.requested.add(-plan.sizes[slot]);
            }
        }
        frame.held.into_iter().for_each(|block| self.put(block));
        self.requested.add(-plan.constant_size);
    }

    /// Memory for the entry's parameters, filled with their values.
    fn give(&mut self, frame: &mut RunningPlan, inputs: &[Tensor]) -> Result<(), Stopped> {
        let slots = self.plan(frame).parameters.clone();
        for (slot, input) in slots.into_iter().zip(inputs) {
            self.alloc(frame, slot)?;
            let address = self.address(frame, slot);
            let _opened = self.opened(&[], &[address]);
            // SAFETY: the slot has room for the array, whose type was checked, and nothing runs
            // yet.
            unsafe {
                std::ptr::copy_nonoverlapping(
                    input.bytes().as_ptr(),
                    address.0,
                    input.bytes().len(),
                )
            };
        }
        if let Some(tracker) = &mut self.pool.tracker {
            tracker.settle();
        }
        Ok(())
    }

    /// The arrays of the root, when everything is done.
    fn outputs(&self, frame: &RunningPlan) -> Vec<Tensor> {
        let slots = self.plan(frame).results.iter();
        let kinds = self.program.outputs.iter().zip(&self.program.output_casts);
        let output = |(&slot, (kind, cast)): (
            &SlotId,
            (&crate::kernel::ArrayType, &Option<crate::kernel::Kernel>),
        )| {
            let mut tensor = Tensor::zeros(kind.dtype, &kind.dims);
            let from = self.address(frame, slot);
            let _opened = self.opened(&[from], &[]);
            match cast {
                Some(kernel) => {
                    let to = Address(tensor.bytes_mut().as_mut_ptr());
                    run_kernel(kernel, &[from], &[to], &mut Scratch::default());
                }
                None => {
                    let bytes = tensor.bytes_mut();
                    // SAFETY: the streams are done, and the slot holds such an array.
                    unsafe {
                        std::ptr::copy_nonoverlapping(
                            from.0.cast_const(),
                            bytes.as_mut_ptr(),
                            bytes.len(),
                        )
                    };
                }
            }
            tensor
        };
        slots.zip(kinds).map(output).collect()
    }

    fn alloc(&mut self, frame: &mut RunningPlan, slot: SlotId) -> Result<(), Stopped> {
        // Memory lent by the caller is already there.
        if frame.at[slot].is_some() {
            return Ok(());
        }
        let plan = &self.program.plans[frame.plan];
        let block = self.memory(plan.held[slot].bytes, owner(plan, slot))?;
        self.requested.add(plan.sizes[slot]);
        if let Some(tracker) = &mut self.pool.tracker {
            tracker.name(block.address, slot);
        }
        frame.at[slot] = Some(SlotMemory { address: block.address, block: Some(block) });
        Ok(())
    }

    fn free(&mut self, frame: &mut RunningPlan, slot: SlotId, size: i64) {
        if let Some(SlotMemory { address, block: Some(block) }) = frame.at[slot] {
            // The address stays, so that a late use in a wrong plan is detected there.
            frame.at[slot] = Some(SlotMemory { address, block: None });
            self.put(block);
            self.requested.add(-size);
        }
    }

    /// The address of a slot, which is allocated before it is used; an empty one may have none.
    fn address(&self, frame: &RunningPlan, slot: SlotId) -> Address {
        frame.at[slot].map_or(Address(std::ptr::null_mut()), |place| place.address)
    }

    fn addresses<'s>(
        &self,
        frame: &RunningPlan,
        slots: impl IntoIterator<Item = &'s SlotId>,
    ) -> Vec<Address> {
        slots.into_iter().map(|&slot| self.address(frame, slot)).collect()
    }

    /// From here on allocations and frees belong to this run of a plan.
    fn track(&mut self, frame: &RunningPlan) {
        if let Some(tracker) = &mut self.pool.tracker {
            let is_given = |(_, place): &(SlotId, &Option<SlotMemory>)| place.is_some();
            tracker.enter(frame.at.iter().filter(is_given).map(|(slot, _)| slot).collect());
        }
    }

    fn walk(&mut self, frame: &mut RunningPlan) -> Result<(), Stopped> {
        let plan = &self.program.plans[frame.plan];
        for (step, action) in plan.actions.iter().enumerate() {
            if self.pool.tracker.is_some() {
                self.check_lives(plan, step)?;
            }
            self.at = (frame.plan, step);
            self.step(frame, step, action)?;
        }
        match self.pool.tracker {
            Some(_) => self.check_lives(plan, plan.actions.len()),
            None => Ok(()),
        }
    }

    /// Compares actual with planned allocations and frees, before a step.
    fn check_lives(&mut self, plan: &PlanReady, step: usize) -> Result<(), Stopped> {
        let Some(tracker) = &mut self.pool.tracker else { return Ok(()) };
        while let Some((check, node)) =
            plan.checks.get(tracker.next()).filter(|(check, _)| check.before <= step)
        {
            for (deviation, slot) in tracker.check(check) {
                let violation = LifetimeViolation {
                    deviation,
                    buffer: plan.names[slot].clone(),
                    kernel: node.name.clone(),
                    place: (plan.computation.clone(), step),
                    source: node.source.clone(),
                    rank: self.rank,
                    run: self.run,
                };
                if self.options.checks.lifetimes == Strictness::Assert {
                    self.found(Failure::Lifetime(Box::new(violation)));
                    return Err(Stopped);
                }
                said::warn(&violation.to_string());
            }
        }
        Ok(())
    }

    fn step(
        &mut self,
        frame: &mut RunningPlan,
        step: usize,
        action: &Action,
    ) -> Result<(), Stopped> {
        match action {
            Action::Alloc { slot } => self.alloc(frame, *slot)?,
            Action::Free { slot, size } => self.free(frame, *slot, *size),
            Action::Launch { label, launch, casts } => {
                let mut arrays = self.addresses(frame, launch.ins.iter().chain(&launch.outs));
                let mut held = Vec::new();
                for (index, cast) in casts {
                    let block = self.beside(cast.kernel.outputs()[0].bytes(), *label)?;
                    let arrays_of = [self.address(frame, cast.from), block.address];
                    let which = CastId { list: 0, index: *index };
                    self.push(0, *label, TaskWork::Cast { which, arrays: arrays_of });
                    arrays[*index] = block.address;
                    held.push(block);
                }
                self.push(0, *label, TaskWork::Kernel { arrays: arrays.into() });
                held.into_iter().for_each(|block| self.put(block));
            }
            Action::Collective { label, .. } if !self.options.checks.faults.is_empty() => {
                self.start_with_faults(frame, step, *label)?;
            }
            Action::Collective { .. } => self.start_or_meet(frame, step)?,
            Action::Transfer { .. } | Action::Message { .. } => self.start(frame, step)?,
            Action::Wait { label, start } => {
                if let Some((stream, until)) = frame.started[*start].clone() {
                    self.push(0, *label, TaskWork::Wait { stream, until });
                }
            }
            Action::Call { label, called } => {
                self.call(frame, called, ReadList { label: *label, list: 0 })?;
            }
            Action::Loop { label, repeat, decides, counter } => {
                let (decides, counter) = (decides.as_deref(), counter.as_ref());
                self.repeat(frame, &Repeating { label: *label, repeat, decides, counter })?;
            }
            Action::Branch { .. } => self.branch(frame, action)?,
        }
        Ok(())
    }

    /// Starts a collective, with injected faults.
    fn start_with_faults(
        &mut self,
        frame: &mut RunningPlan,
        step: usize,
        label: u32,
    ) -> Result<(), Stopped> {
        let name = &self.program.labels[label as usize].name;
        let mut times = 1;
        for fault in &self.options.checks.faults {
            match fault {
                Fault::SkipCollective(rank, left_out) if *rank == self.rank && left_out == name => {
                    times = 0
                }
                Fault::DoubleCollective(rank, doubled) if *rank == self.rank && doubled == name => {
                    times = 2
                }
                Fault::SwapCollectives(rank, a, b)
                    if *rank == self.rank && [a, b].contains(&name) =>
                {
                    match self.put_off.take() {
                        Some(other) => {
                            self.start(frame, step)?;
                            self.start_on_nothing(frame, other)?;
                        }
                        None => self.put_off = Some(label),
                    }
                    times = 0;
                }
                _ => {}
            }
        }
        (0..times).try_for_each(|_| self.start(frame, step))
    }

    /// Starts a collective too late, on separate memory, because its arrays may be reused by now.
    fn start_on_nothing(&mut self, frame: &mut RunningPlan, label: u32) -> Result<(), Stopped> {
        let of = &self.program.labels[label as usize];
        let (plan, step) = of.at;
        let Action::Collective { stream, collective, .. } = &self.program.plans[plan].actions[step]
        else {
            return Ok(());
        };
        let arrays = of.ins.iter().chain(&of.outs).map(|argument| {
            let block = self.beside(argument.kind.bytes(), label)?;
            frame.held.push(block);
            Ok(block.address)
        });
        let arrays = arrays.collect::<Result<_, _>>()?;
        let kind = AsideKind::Collective(collective.comm);
        self.push_beside(*stream, label, AsideWork { kind, arrays });
        Ok(())
    }

    /// A task on another stream waits for all compute issued before it.
    fn start(&mut self, frame: &mut RunningPlan, step: usize) -> Result<(), Stopped> {
        let plan = &self.program.plans[frame.plan];
        let (label, stream, kind, arrays) = match &plan.actions[step] {
            Action::Collective { label, stream, collective, ins, outs } => {
                let mut arrays = self.read(frame, ins, ReadList { label: *label, list: 0 })?;
                arrays.extend(self.addresses(frame, outs));
                (label, stream, AsideKind::Collective(collective.comm), arrays)
            }
            Action::Transfer { label, stream, launch } => {
                let arrays = self.addresses(frame, launch.ins.iter().chain(&launch.outs));
                (label, stream, AsideKind::Transfer, arrays)
            }
            Action::Message { label, stream, arrays } => {
                (label, stream, AsideKind::Message, self.addresses(frame, arrays))
            }
            _ => return Ok(()),
        };
        let work = AsideWork { kind, arrays: arrays.into() };
        frame.started[step] = Some(self.push_beside(*stream, *label, work));
        Ok(())
    }

    fn push_beside(
        &mut self,
        stream: StreamId,
        label: u32,
        work: AsideWork,
    ) -> (usize, AwaitedTask) {
        let stream = stream.index() + 1;
        if self.recorded.is_some() {
            let started = Arc::<AtomicU64>::default();
            let start = LoopStart { stream, work, started: started.clone() };
            self.push(0, label, TaskWork::Start(start));
            return (stream, AwaitedTask::Started(started));
        }
        let work = work.task(self.issued[0], &self.sequences);
        (stream, AwaitedTask::Number(self.push(stream, label, work)))
    }

    fn next_number(&self, comm: CommId) -> u64 {
        self.sequences[comm.index()].fetch_add(1, Ordering::Relaxed)
    }

    /// Starts a collective, or runs it on the compute stream if nothing overlaps it.
    fn start_or_meet(&mut self, frame: &mut RunningPlan, step: usize) -> Result<(), Stopped> {
        let plan = &self.program.plans[frame.plan];
        let wait = plan.awaited_at_once(step).filter(|_| self.meets);
        let (Action::Collective { label, stream, collective, ins, outs }, Some(wait)) =
            (&plan.actions[step], wait)
        else {
            return self.start(frame, step);
        };
        let mut arrays = self.read(frame, ins, ReadList { label: *label, list: 0 })?;
        arrays.extend(self.addresses(frame, outs));
        let sequence = self.recorded.is_none().then(|| self.next_number(collective.comm));
        let (stream, arrays) = (stream.index() + 1, arrays.into());
        let after = self.recorded.is_none().then(|| self.issued[stream]);
        let inline = InlineCollective { stream, after, sequence, arrays, wait };
        self.push(0, *label, TaskWork::Inline(inline));
        Ok(())
    }

    /// Whether a check looks at single tasks.
    fn is_watched(&self) -> bool {
        let checks = &self.options.checks;
        checks.values.is_some()
            || checks.forbidden.is_some()
            || checks.origins.is_some()
            || self.pool.tracker.is_some()
            || self.pool.is_guarded()
            || checks.launch_blocking
            || !checks.faults.is_empty()
    }

    /// The addresses of arrays, with bitcasts applied. Their memory is kept until the frame ends,
    /// because a collective may read it until its wait; it is small, and rare.
    fn read(
        &mut self,
        frame: &mut RunningPlan,
        reads: &[Read],
        of: ReadList,
    ) -> Result<Vec<Address>, Stopped> {
        let ReadList { label, list } = of;
        let mut addresses = Vec::with_capacity(reads.len());
        for (index, read) in reads.iter().enumerate() {
            addresses.push(match read {
                Read::Slot(slot) => self.address(frame, *slot),
                Read::Cast(cast) => {
                    let block = self.beside(cast.kernel.outputs()[0].bytes(), label)?;
                    let arrays = [self.address(frame, cast.from), block.address];
                    self.push(0, label, TaskWork::Cast { which: CastId { list, index }, arrays });
                    frame.held.push(block);
                    block.address
                }
            });
        }
        Ok(addresses)
    }

    fn call(
        &mut self,
        frame: &mut RunningPlan,
        called: &Called,
        of: ReadList,
    ) -> Result<(), Stopped> {
        let Called { call, arguments } = called;
        for &slot in &call.allocated {
            self.alloc(frame, slot)?;
        }
        let parameters = self.read(frame, arguments, of)?;
        let mut inner = self.enter(call.plan, &parameters)?;
        // What the caller lent to this plan is lent on. While branches are collected, the result of
        // one goes where another left its own.
        let is_there = |&&(_, own): &&(SlotId, SlotId)| frame.at[own].is_some();
        let (there, adopted): (Vec<_>, Vec<_>) = call.adopted.iter().partition(is_there);
        for &(theirs, own) in call.lent.iter().chain(there) {
            inner.at[theirs] = Some(SlotMemory { address: self.address(frame, own), block: None });
        }
        self.track(&inner);
        self.walk(&mut inner)?;
        let held = &self.program.plans[call.plan].held;
        let copy = |&(theirs, own): &(SlotId, SlotId)| {
            (self.address(&inner, theirs), self.address(frame, own), held[theirs].bytes)
        };
        let moves: Vec<_> = call.copied.iter().map(copy).collect();
        self.copy(of.label, moves);
        for &(theirs, own) in adopted {
            frame.at[own] = inner.at[theirs].take();
            if let (Some(tracker), Some(SlotMemory { block: Some(block), .. })) =
                (&mut self.pool.tracker, frame.at[own])
            {
                tracker.adopt(block.address, own);
            }
        }
        self.leave(inner);
        Ok(())
    }

    fn copy(&mut self, label: u32, moves: Vec<MemoryCopy>) {
        let moves = needed(moves);
        if !moves.is_empty() {
            self.push(0, label, TaskWork::Copy { moves });
        }
    }
}

/// The copies that change something.
fn needed(mut moves: Vec<MemoryCopy>) -> Vec<MemoryCopy> {
    moves.retain(|(from, to, len)| from != to && *len > 0);
    moves
}

/// The owner of a slot's memory.
fn owner(plan: &PlanReady, slot: SlotId) -> Owner<'_> {
    let held = &plan.held[slot];
    Owner { name: &plan.names[slot], kind: &held.kind, align: held.align, is_constant: false }
}
