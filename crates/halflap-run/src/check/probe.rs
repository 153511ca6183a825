//! Instruments that inspect a rank's tasks before and after they run.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::Checks;
use super::finite::Finite;
use super::heap::HeapWatch;
use super::index::Entry;
use super::origin::{Again, Arrival, FinishedLaunch, Taken, Tracer, out_of_range_in};
use super::recorder::{CollectiveState, Flight, Recorder};
use super::values::ValueLog;
use crate::address::{Address, AddressRange, MemoryCopy};
use crate::comm::MessageEnd;
use crate::failure::{Failure, Fate, Finding};
use crate::prepare::{Argument, IssuedTask, Label, Prepared};
use crate::tensor::{Tensor, View, Worst};

/// The outputs of a launch, and the content of its inputs.
pub(crate) struct LaunchOutcome<'a> {
    pub(crate) outs: &'a [Address],
    pub(crate) taken: &'a Taken,
}

/// Before or after a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LaunchPhase {
    Before,
    /// After it, with the worst content of its inputs.
    After(Worst),
}

impl LaunchPhase {
    pub(super) fn prefix(self) -> &'static str {
        match self {
            LaunchPhase::Before => "before_launch",
            LaunchPhase::After(_) => "after_launch",
        }
    }
}

/// An array of a launch.
pub(super) struct LaunchArray<'a> {
    pub(super) argument: &'a Argument,
    pub(super) view: View<'a>,
}

impl<'a> LaunchArray<'a> {
    /// The arrays of a launch at their addresses.
    fn all(arguments: &'a [Argument], addresses: &[Address]) -> Vec<LaunchArray<'a>> {
        let each = arguments.iter().zip(addresses);
        each.map(|(argument, address)| LaunchArray::at(argument, address)).collect()
    }

    pub(super) fn at(argument: &'a Argument, address: &Address) -> LaunchArray<'a> {
        let start = NonNull::new(address.0).unwrap_or(NonNull::<u64>::dangling().cast());
        // SAFETY: the array is one of the task that is about to run, or has just run, on this
        // thread: no other task writes to it while this one runs.
        let view = unsafe { View::from_raw(argument.kind.dtype, &argument.kind.dims, start) };
        LaunchArray { argument, view }
    }
}

/// A launch that is inspected.
pub(super) struct Seen<'a> {
    pub(super) label: &'a Label,
    pub(super) issued: &'a IssuedTask,
    pub(super) run: usize,
}

impl Seen<'_> {
    pub(super) fn iteration(&self) -> &[u32] {
        self.issued.scope.as_deref().unwrap_or_default()
    }

    /// Its position as text: the rank, and which run of the module and of the enclosing loops.
    pub(super) fn around(&self, rank: Option<usize>) -> Vec<String> {
        let mut words = Vec::new();
        words.extend(rank.map(|rank| format!("rank {rank}")));
        words.extend((self.run > 0).then(|| format!("run {}", self.run)));
        words.extend(self.iteration().iter().map(|number| format!("iteration {number}")));
        words
    }

    /// The description of one of its arrays.
    pub(super) fn entry(&self, when: LaunchPhase, array: Entry) -> Entry {
        let (plan, step) = self.label.place.clone();
        Entry {
            sequence: self.issued.count,
            run: self.run,
            plan,
            step,
            iteration: self.iteration().to_vec(),
            kernel: self.label.name.clone(),
            when: if when == LaunchPhase::Before { "before" } else { "after" }.to_owned(),
            source: self.label.source.clone(),
            ..array
        }
    }
}

/// All instruments of a rank. A rank without any has no probe.
pub(crate) struct TaskProbe {
    program: Arc<Prepared>,
    run: AtomicUsize,
    values: Option<ValueLog>,
    finite: Option<Finite>,
    recorder: Option<Recorder>,
    tracer: Option<Tracer>,
    /// Whether a rank runs one task at a time.
    is_blocking: bool,
    rank: usize,
}

impl TaskProbe {
    /// The probe of one rank; `None` if all checks are off.
    pub(crate) fn open(
        checks: &Checks,
        program: &Arc<Prepared>,
        rank: usize,
    ) -> Result<Option<Arc<TaskProbe>>, Failure> {
        if !checks.watches_tasks() {
            return Ok(None);
        }
        let open = |options: &super::ValueOptions| {
            let failed =
                |error| Failure::Unwritable { path: options.folder.display().to_string(), error };
            ValueLog::open(options, &program.module, rank, program.ranks)
                .map_err(|error| failed(error.to_string()))
        };
        let values = checks.values.as_ref().map(open).transpose()?;
        let finite = checks.forbidden.map(|forbidden| Finite::new(forbidden, rank));
        let recorder = checks.recorder.as_ref().map(|_| Recorder::new());
        let tracer =
            checks.origins.as_ref().map(|origins| Tracer::new(origins, rank, program.ranks));
        Ok(Some(Arc::new(TaskProbe {
            program: program.clone(),
            run: AtomicUsize::new(0),
            values,
            finite,
            recorder,
            tracer,
            is_blocking: checks.launch_blocking,
            rank,
        })))
    }

    /// Run number `run` of the module begins.
    pub(crate) fn begin(&self, run: usize, inputs: &[Tensor]) {
        self.run.store(run, Ordering::Relaxed);
        if let (Some(values), 0) = (&self.values, run) {
            let views: Vec<View<'_>> = inputs.iter().map(Tensor::view).collect();
            values.inputs(&self.program.input_names, &views);
        }
        self.tracer.iter().for_each(Tracer::begin);
    }

    /// The memory of a constant, which nothing writes to.
    pub(crate) fn constant(&self, address: Address, name: &str, value: &Tensor) {
        if let Some(tracer) = &self.tracer {
            tracer.constant(address, name, &value.view());
        }
    }

    /// The memory of the module's inputs.
    pub(crate) fn given(&self, addresses: &[Address], inputs: &[Tensor]) {
        let Some(tracer) = &self.tracer else { return };
        let names = self.program.input_names.iter().map(String::as_str);
        let each = addresses.iter().zip(names).zip(inputs);
        tracer.take_inputs(
            &each
                .map(|((address, name), input)| (*address, name, input.view()))
                .collect::<Vec<_>>(),
        );
    }

    /// The memory of the module's results, when it has run.
    pub(crate) fn results(&self, addresses: &[Address]) {
        let Some(tracer) = &self.tracer else { return };
        let results: Vec<_> = addresses.iter().copied().zip(&self.program.outputs).collect();
        tracer.results(self.run.load(Ordering::Relaxed), &results);
    }

    /// Records a launch's inputs, to find the origins of its outputs.
    pub(crate) fn take(
        &self,
        issued: &IssuedTask,
        ins: &[Address],
        outs: &[Address],
    ) -> Option<Taken> {
        let tracer = self.tracer.as_ref()?;
        let seen = self.seen(issued);
        let arrays = LaunchArray::all(&seen.label.ins, ins);
        tracer.out_of_range(&seen, out_of_range_in(&seen, &arrays));
        Some(tracer.before(&seen, &arrays, outs))
    }

    /// The same for a collective with this number, shared with other ranks. Its arrays are its
    /// inputs and then its outputs.
    pub(crate) fn bring(
        &self,
        issued: &IssuedTask,
        arrays: &[Address],
        sequence: u64,
    ) -> Option<Taken> {
        let seen = self.seen(issued);
        let (ins, outs) = arrays.split_at(seen.label.ins.len());
        let taken = self.take(issued, ins, outs)?;
        let ins = LaunchArray::all(&seen.label.ins, ins);
        let arrival = Arrival { seen: &seen, ins: &ins, taken: &taken };
        self.tracer.as_ref()?.bring(&arrival, sequence);
        Some(taken)
    }

    /// Tracks NaN and infinities from a launch's inputs to its outputs.
    pub(crate) fn follow(
        &self,
        issued: &IssuedTask,
        made: &LaunchOutcome<'_>,
        again: Option<Again<'_>>,
    ) {
        let (Some(tracer), seen) = (&self.tracer, self.seen(issued)) else { return };
        let LaunchOutcome { outs, taken } = *made;
        let outs = LaunchArray::all(&seen.label.outs, outs);
        tracer.after(&FinishedLaunch { seen: &seen, outs: &outs, taken }, again);
    }

    /// The same for a collective.
    pub(crate) fn receive(&self, issued: &IssuedTask, made: &LaunchOutcome<'_>, sequence: u64) {
        let (Some(tracer), seen) = (&self.tracer, self.seen(issued)) else { return };
        let LaunchOutcome { outs, taken } = *made;
        let outs = LaunchArray::all(&seen.label.outs, outs);
        tracer.received(&FinishedLaunch { seen: &seen, outs: &outs, taken }, sequence);
    }

    /// A rank runs its half of a message; the origins of what it sends go with it.
    pub(crate) fn send(&self, issued: &IssuedTask, ins: &[Address]) {
        let (Some(tracer), seen) = (&self.tracer, self.seen(issued)) else { return };
        let message = seen.label.message.as_ref().filter(|message| message.end == MessageEnd::Send);
        if let Some((message, taken)) = message.zip(self.take(issued, ins, &[])) {
            tracer.sends(message, &taken);
        }
    }

    /// The same when it has finished, for what was received.
    pub(crate) fn got(&self, issued: &IssuedTask, outs: &[Address]) {
        let (Some(tracer), seen) = (&self.tracer, self.seen(issued)) else { return };
        let message = seen.label.message.as_ref().filter(|message| message.end == MessageEnd::Recv);
        if let Some(message) = message {
            tracer.got(message, &LaunchArray::all(&seen.label.outs, outs));
        }
    }

    /// A custom call has changed its thread's rounding mode.
    pub(crate) fn changed_mode(&self, issued: &IssuedTask) {
        if let Some(tracer) = &self.tracer {
            tracer.changed_mode(&self.seen(issued));
        }
    }

    /// Measures the heap around a custom call, if that is meaningful: while nothing else runs on
    /// the rank.
    pub(crate) fn watch_heap(&self) -> Option<HeapWatch> {
        self.tracer.as_ref().filter(|_| self.is_blocking).and_then(|_| HeapWatch::begin())
    }

    /// A measured custom call has returned.
    pub(crate) fn grew(&self, issued: &IssuedTask, watch: HeapWatch) {
        if let (Some(tracer), Some(bytes)) = (&self.tracer, watch.growth()) {
            tracer.grew(&self.seen(issued), bytes);
        }
    }

    /// Arrays were copied, all at once.
    pub(crate) fn moved(&self, moves: &[MemoryCopy]) {
        if let Some(tracer) = &self.tracer {
            tracer.moved(moves);
        }
    }

    /// An array was copied to another layout.
    pub(crate) fn cast(&self, from: AddressRange, to: AddressRange) {
        if let Some(tracer) = &self.tracer {
            tracer.cast(from, to);
        }
    }

    /// A collective is issued.
    pub(crate) fn schedule(&self, issued: &IssuedTask, sequence: u64) {
        if let Some(recorder) = &self.recorder {
            recorder.schedule(&self.seen(issued), sequence);
        }
    }

    /// A collective has started, or finished.
    pub(crate) fn advance(&self, issued: &IssuedTask, state: CollectiveState) {
        if let Some(recorder) = &self.recorder {
            recorder.advance(issued.count, state);
        }
    }

    /// The rank's record of its collectives.
    pub(crate) fn flight(&self, has_ended: bool) -> Option<Flight> {
        self.recorder.as_ref().map(|recorder| recorder.flight(self.rank, has_ended))
    }

    /// Inspects the inputs of a launch before it runs; returns their worst content.
    pub(crate) fn before(&self, issued: &IssuedTask, ins: &[Address], fate: &Fate) -> Worst {
        let seen = self.seen(issued);
        let arrays = LaunchArray::all(&seen.label.ins, ins);
        let (worst, finding) = self.look(LaunchPhase::Before, &seen, &arrays);
        finding.into_iter().for_each(|finding| fate.find(finding));
        worst
    }

    /// Inspects the outputs of a launch after it has run, given the worst content of its inputs.
    pub(crate) fn after(
        &self,
        issued: &IssuedTask,
        outs: &[Address],
        taken: Worst,
    ) -> Option<Finding> {
        let seen = self.seen(issued);
        let arrays = LaunchArray::all(&seen.label.outs, outs);
        let (given, finding) = self.look(LaunchPhase::After(taken), &seen, &arrays);
        if let (Some(finite), Worst::Finite, Worst::Infinity) = (&self.finite, taken, given) {
            finite.note_infinity(&seen, &arrays);
        }
        finding
    }

    fn seen<'a>(&'a self, issued: &'a IssuedTask) -> Seen<'a> {
        let label = &self.program.labels[issued.label as usize];
        Seen { label, issued, run: self.run.load(Ordering::Relaxed) }
    }

    /// The worst content of a launch's arrays, and what is wrong with it.
    fn look(
        &self,
        when: LaunchPhase,
        seen: &Seen<'_>,
        arrays: &[LaunchArray<'_>],
    ) -> (Worst, Option<Finding>) {
        if let Some(values) = &self.values {
            values.launch(when, seen, arrays);
        }
        let Some(finite) = &self.finite else { return (Worst::Finite, None) };
        let (violation, worst) = finite.look(when, seen, arrays);
        let finding = violation.map(|violation| {
            let (number, rank) = (seen.issued.number, violation.rank);
            Finding { number, rank, failure: Failure::NotFinite(Box::new(violation)) }
        });
        (worst, finding)
    }
}
