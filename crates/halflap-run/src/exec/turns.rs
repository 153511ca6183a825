//! Loops that the compute stream runs on its own, and how long a loop may run.
//!
//! A loop's tasks and their addresses are the same in every iteration if it waits for all that it
//! starts. The issuing thread then hands them over once, and the compute stream repeats them
//! without waiting for it; what runs on other streams, it starts itself. The first iterations are
//! recorded kernel by kernel; then small kernels are bound to their arrays and run without anything
//! in between, because looking at the clock would take as long as they do.

use std::cell::{Cell, OnceCell, RefCell, RefMut};
use std::time::{Duration, Instant};

use halflap::ids::Id;

use super::invariant::{LoopWrites, launch_of};
use super::report::{Noted, RunLane};
use super::session::{Options, seconds};
use super::stream::TaskStream;
use super::task::{MOST_SPANS, StreamTask, TaskWork, Worker, views};
use crate::address::{Address, AddressRange, MemoryCopy};
use crate::check::post::{Marked, Running};
use crate::failure::{Endless, Failure, Stopped, WrongWay};
use crate::kernel::BoundKernel;
use crate::prepare::{KernelLaunch, LoopCounter, Prepared};
use crate::sync::locked;

/// A loop that the compute stream runs on its own: what is run in each iteration.
pub(super) struct Turns {
    pub(super) label: u32,
    pub(super) condition: TaskList,
    /// The condition's result.
    pub(super) answer: Address,
    pub(super) body: TaskList,
    /// What is copied after each run of the body.
    pub(super) moves: Vec<MemoryCopy>,
    /// The arrays that the condition depends on, if they are known.
    pub(super) decides: Option<Vec<AddressRange>>,
    /// How it counts, and the arrays that say where it begins and ends.
    pub(super) counter: Option<(LoopCounter, Vec<AddressRange>)>,
    /// What its tasks write, once that is asked for, if it is known.
    pub(super) writes: OnceCell<Option<LoopWrites>>,
}

/// Tasks that run again and again.
pub(super) struct TaskList {
    pub(super) tasks: Vec<StreamTask>,
    /// How often they still run one by one, every task recorded.
    recorded: Cell<u32>,
    /// How they run from then on.
    pieces: RefCell<Option<Vec<ListPart>>>,
}

/// How many iterations of small kernels run before the clock is looked at.
const LOOKS: u64 = 64;

/// A part of a list of tasks.
enum ListPart {
    Task(usize),
    /// Small kernels, one after the other.
    Burst(Vec<BoundKernel>),
    /// A kernel that gives the same in every iteration.
    Invariant(usize),
}

/// The iteration in which tasks run.
struct Iteration<'t> {
    of: &'t Turns,
    is_first: bool,
}

impl TaskList {
    pub(super) fn new(tasks: Vec<StreamTask>, options: &Options) -> TaskList {
        let recorded = Cell::new(options.recorded_turns);
        TaskList { tasks, recorded, pieces: RefCell::default() }
    }

    /// The pieces, once the tasks have run one by one often enough.
    fn pieces(
        &self,
        bound: impl FnOnce(&[StreamTask]) -> Vec<ListPart>,
    ) -> Option<RefMut<'_, Vec<ListPart>>> {
        if let Some(fewer) = self.recorded.get().checked_sub(1) {
            self.recorded.set(fewer);
            return None;
        }
        let pieces = self.pieces.borrow_mut();
        Some(RefMut::map(pieces, |pieces| pieces.get_or_insert_with(|| bound(&self.tasks))))
    }
}

/// A conditional in such a loop.
pub(super) struct Branches {
    pub(super) selector: Address,
    pub(super) selector_bytes: usize,
    pub(super) each: Vec<TaskList>,
}

/// The branch that is taken: for a boolean the first if true; for an out-of-range index, the last.
///
/// # Safety
/// The selector must be allocated, and nothing may write to it.
pub(super) unsafe fn chosen(selector: Address, bytes: usize, branches: usize) -> usize {
    if bytes < 4 {
        // SAFETY: the caller's promise; a boolean has one byte.
        let is_false = unsafe { selector.0.cast_const().read() } == 0;
        return usize::from(is_false).min(branches - 1);
    }
    // SAFETY: the caller's promise; a number here has four bytes.
    let number = unsafe { selector.0.cast_const().cast::<i32>().read() };
    usize::try_from(number).ok().filter(|&number| number < branches).unwrap_or(branches - 1)
}

/// How long loops may run.
#[derive(Clone, Copy, Debug)]
pub(super) struct LoopLimits {
    /// After this time it is checked whether a loop can end.
    timeout: Duration,
    /// After this time the loop is ended.
    most: Option<Duration>,
}

impl LoopLimits {
    pub(super) fn new(options: &Options) -> LoopLimits {
        LoopLimits { timeout: options.timeout, most: options.loop_limit }
    }
}

/// How often the values that decide are looked at, and for how long they are compared then.
const COMPARED: Duration = Duration::from_millis(50);
/// The most iterations after which it is seen that values repeat.
const LONGEST: u32 = 64;

/// Why a loop is given up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum GivenUp {
    /// What its condition depends on is as it was this many iterations ago.
    Repeats(u32),
    CountsTheWrongWay(WrongWay),
    TookTooLong,
}

/// Values that decide, with which those of later iterations are compared.
struct Remembered {
    values: Vec<Vec<u8>>,
    since: Instant,
    /// How many iterations ago.
    age: u32,
}

/// How long a loop has run.
pub(super) struct LoopClock {
    rank: usize,
    label: u32,
    began: Instant,
    limits: LoopLimits,
    /// When to examine the deciding values next.
    next: Instant,
    /// The values that this iteration's are compared with.
    before: Option<Remembered>,
}

impl LoopClock {
    pub(super) fn new(rank: usize, label: u32, began: Instant, limits: LoopLimits) -> LoopClock {
        LoopClock { rank, label, began, limits, next: began + limits.timeout, before: None }
    }

    /// Whether it is time to examine the values that decide how long the loop runs.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        now >= self.next || self.before.is_some()
    }

    /// Whether the loop is given up, and why. It never ends if everything that its condition
    /// depends on is as it was some iterations ago.
    pub(super) fn judge(&mut self, now: Instant, values: Option<Vec<Vec<u8>>>) -> Option<GivenUp> {
        match (self.before.take(), values) {
            (None, values) => {
                self.before = values.map(|values| Remembered { values, since: now, age: 0 });
            }
            (Some(before), Some(values)) => {
                let age = before.age + 1;
                if before.values == values {
                    return Some(GivenUp::Repeats(age));
                }
                match age < LONGEST && now < before.since + COMPARED {
                    true => self.before = Some(Remembered { age, ..before }),
                    false => self.next = now + COMPARED,
                }
            }
            (Some(_), None) => {}
        }
        let is_over = self.limits.most.is_some_and(|most| now.duration_since(self.began) >= most);
        is_over.then_some(GivenUp::TookTooLong)
    }

    /// The report on a loop that is given up after this many iterations.
    pub(super) fn failure(&self, program: &Prepared, turns: u64, why: GivenUp) -> Failure {
        let label = &program.labels[self.label as usize];
        Failure::Endless(Box::new(Endless {
            rank: self.rank,
            name: label.name.clone(),
            source: label.source.clone(),
            place: label.place.clone(),
            turns,
            seconds: seconds(self.began.elapsed()),
            period: match why {
                GivenUp::Repeats(period) => Some(period),
                _ => None,
            },
            counter: match why {
                GivenUp::CountsTheWrongWay(counter) => Some(counter),
                _ => None,
            },
        }))
    }
}

/// What a loop needs besides its tasks while it runs.
pub(super) struct Pace<'a> {
    pub(super) program: &'a Prepared,
    pub(super) stream: &'a TaskStream<StreamTask>,
    /// When the last task ended.
    now: Instant,
    /// What ran on the stream in this step.
    spans: Vec<Noted>,
    /// How many more spans are kept.
    room: usize,
    /// The innermost loop.
    label: u32,
    /// Where kernels have run since then without looking at the clock, if any have.
    unseen: Option<RunLane>,
}

impl<'a> Pace<'a> {
    pub(super) fn new(program: &'a Prepared, stream: &'a TaskStream<StreamTask>) -> Pace<'a> {
        // Taken along until the end: adding to them later would copy them.
        let spans = std::mem::take(&mut *locked(&stream.spans));
        let room = MOST_SPANS.saturating_sub(spans.len());
        Pace { program, stream, now: Instant::now(), spans, room, label: 0, unseen: None }
    }

    /// Gives the stream its times back, with those of what ran.
    pub(super) fn finish(mut self) {
        self.catch_up();
        *locked(&self.stream.spans) = self.spans;
    }

    /// Kernels run that are not recorded one by one.
    fn burst(&mut self, lane: RunLane) {
        self.unseen = Some(lane);
    }

    /// Looks at the clock now and then, though nothing is recorded.
    fn look(&mut self, iteration: u64) {
        if iteration.is_multiple_of(LOOKS) {
            self.catch_up();
        }
    }

    /// Records kernels that ran since the last look at the clock as a part of their loop.
    fn catch_up(&mut self) {
        let Some(lane) = self.unseen.take() else { return };
        let (label, start, end) = (self.label, self.now, Instant::now());
        self.now = end;
        self.stream.status.begin(label, 0, end);
        match self.spans.last_mut() {
            Some(last) if last.label == label && last.lane == lane && last.end == start => {
                last.end = end;
            }
            _ if self.room > 0 => {
                self.room -= 1;
                self.spans.push(Noted { label, lane, start, met: None, end });
            }
            _ => {}
        }
    }
}

impl Worker {
    /// Runs a loop to its end.
    pub(super) fn turns(&mut self, turns: &Turns, pace: &mut Pace<'_>) -> Result<(), Stopped> {
        let mut clock = LoopClock::new(self.rank, turns.label, pace.now, self.limits);
        let around = std::mem::replace(&mut pace.label, turns.label);
        for iteration in 0u64.. {
            let now = Iteration { of: turns, is_first: iteration == 0 };
            self.all_of(&turns.condition, Some(&now), pace)?;
            // SAFETY: the condition has written its answer, and only this thread runs tasks.
            if unsafe { turns.answer.0.cast_const().read() } == 0 {
                break;
            }
            self.fate.check()?;
            let wrong = turns.counter.as_ref().filter(|_| iteration == 0);
            let wrong = wrong.and_then(|(counter, arrays)| counter.judge(&contents(arrays)));
            if let Some(wrong) = wrong {
                let why = GivenUp::CountsTheWrongWay(wrong);
                return Err(self.fate.fail(clock.failure(pace.program, 0, why)));
            }
            pace.look(iteration);
            if clock.is_due(pace.now) {
                let values = turns.decides.as_ref().map(|arrays| contents(arrays));
                if let Some(why) = clock.judge(pace.now, values) {
                    let failure = clock.failure(pace.program, iteration + 1, why);
                    return Err(self.fate.fail(failure));
                }
            }
            self.all_of(&turns.body, Some(&now), pace)?;
            if !turns.moves.is_empty() {
                self.copy(&turns.moves);
            }
        }
        pace.label = around;
        Ok(())
    }

    /// Runs tasks, in an iteration of a loop if they are all that it runs, not a branch.
    fn all_of(
        &mut self,
        list: &TaskList,
        iteration: Option<&Iteration<'_>>,
        pace: &mut Pace<'_>,
    ) -> Result<(), Stopped> {
        let pieces = |tasks: &[StreamTask]| {
            let writes = iteration.and_then(|now| {
                now.of.writes.get_or_init(|| LoopWrites::of(now.of, pace.program)).as_ref()
            });
            self.bound(tasks, writes, pace.program)
        };
        let Some(mut pieces) = list.pieces(pieces) else {
            return list.tasks.iter().try_for_each(|task| self.one_of_any(task, pace));
        };
        for piece in pieces.iter_mut() {
            match piece {
                ListPart::Invariant(_) if !iteration.is_some_and(|now| now.is_first) => {}
                ListPart::Task(number) | ListPart::Invariant(number) => {
                    self.one_of_any(&list.tasks[*number], pace)?;
                }
                ListPart::Burst(kernels) => {
                    pace.burst(self.lane());
                    for kernel in kernels {
                        // SAFETY: the program outlives its tasks, whose arrays are allocated; only
                        // this thread runs them, in this sequence.
                        unsafe { kernel.run(&mut self.scratch) };
                    }
                }
            }
        }
        Ok(())
    }

    /// Tasks in pieces: small kernels are bound to their arrays.
    fn bound(
        &mut self,
        tasks: &[StreamTask],
        writes: Option<&LoopWrites>,
        program: &Prepared,
    ) -> Vec<ListPart> {
        let mut pieces = Vec::new();
        for (number, task) in tasks.iter().enumerate() {
            if self.is_invariant(task, writes, program) {
                pieces.push(ListPart::Invariant(number));
                continue;
            }
            match (self.bound_kernel(task, program), pieces.last_mut()) {
                (Some(kernel), Some(ListPart::Burst(kernels))) => kernels.push(kernel),
                (Some(kernel), _) => pieces.push(ListPart::Burst(vec![kernel])),
                (None, _) => pieces.push(ListPart::Task(number)),
            }
        }
        pieces
    }

    fn is_invariant(
        &self,
        task: &StreamTask,
        writes: Option<&LoopWrites>,
        program: &Prepared,
    ) -> bool {
        let (TaskWork::Kernel { arrays }, Some(writes)) = (&task.work, writes) else {
            return false;
        };
        self.plain_launch(task, program).is_some_and(|launch| writes.is_invariant(launch, arrays))
    }

    fn bound_kernel(&mut self, task: &StreamTask, program: &Prepared) -> Option<BoundKernel> {
        let TaskWork::Kernel { arrays } = &task.work else { return None };
        let launch = self.plain_launch(task, program).filter(|launch| launch.is_brief)?;
        let (ins, outs) = arrays.split_at(launch.ins.len());
        let (inputs, outputs) = views(&launch.kernel, ins, outs);
        // SAFETY: the worker holds the program and the memory for as long as it runs tasks.
        Some(unsafe { launch.kernel.bind(inputs, outputs, &mut self.scratch) })
    }

    /// What a task launches, if no check looks at it and no foreign code runs.
    fn plain_launch<'p>(
        &self,
        task: &StreamTask,
        program: &'p Prepared,
    ) -> Option<&'p KernelLaunch> {
        let is_watched = self.probe.is_some() || self.resting.is_some();
        let is_test = !self.faults.is_empty() || self.panics_at.is_some();
        let is_foreign = program.labels[task.issued.label as usize].target.is_some();
        launch_of(task, program).filter(|_| !is_watched && !is_test && !is_foreign)
    }

    fn one_of_any(&mut self, task: &StreamTask, pace: &mut Pace<'_>) -> Result<(), Stopped> {
        match &task.work {
            TaskWork::Loop(turns) => self.turns(turns, pace),
            TaskWork::Branch(branches) => {
                let Branches { selector, selector_bytes, each } = &**branches;
                // SAFETY: what makes the selector has run, and only this thread runs tasks.
                let which = unsafe { chosen(*selector, *selector_bytes, each.len()) };
                self.all_of(&each[which], None, pace)
            }
            TaskWork::Inline(inline) => {
                pace.catch_up();
                let noted = self.meet(&task.issued, inline, pace.program)?;
                pace.now = noted[0].end;
                if pace.room > 1 {
                    pace.room -= 2;
                    pace.spans.extend(noted);
                }
                Ok(())
            }
            TaskWork::Start(start) => {
                self.start(&task.issued, start);
                Ok(())
            }
            _ => self.one_of(task, pace),
        }
    }

    fn one_of(&mut self, task: &StreamTask, pace: &mut Pace<'_>) -> Result<(), Stopped> {
        pace.catch_up();
        let label = task.issued.label;
        pace.stream.status.begin(label, 0, pace.now);
        let running =
            Running { label: &pace.program.labels[label as usize], rank: self.rank, ins: &[] };
        let marked = Marked::new(&running);
        let met = self.body(task, pace.program)?;
        marked.has_returned();
        let (start, end) = (pace.now, Instant::now());
        if pace.room > 0 {
            pace.room -= 1;
            pace.spans.push(Noted { label, lane: self.lane(), start, met, end });
        }
        pace.now = end;
        Ok(())
    }

    /// Where it runs.
    pub(super) fn lane(&self) -> RunLane {
        match self.index {
            0 => RunLane::Compute,
            index => RunLane::Stream(Id::from_index(index - 1)),
        }
    }
}

/// The bytes of arrays that nothing writes to.
fn contents(arrays: &[AddressRange]) -> Vec<Vec<u8>> {
    // SAFETY: they are the state of a loop, whose iteration has ended.
    let bytes = |array: &AddressRange| unsafe {
        std::slice::from_raw_parts(array.start.0, array.len).to_vec()
    };
    arrays.iter().map(bytes).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loop_is_given_up_when_nothing_changes_or_its_time_is_over() {
        let began = Instant::now();
        let limits =
            LoopLimits { timeout: Duration::from_secs(2), most: Some(Duration::from_secs(9)) };
        let at = |seconds: u64| began + Duration::from_secs(seconds);
        let mut clock = LoopClock::new(0, 0, began, limits);
        assert!(!clock.is_due(at(1)) && clock.is_due(at(2)));
        assert_eq!(clock.judge(at(2), Some(vec![vec![1]])), None);
        assert!(clock.is_due(at(2)), "the next iteration is compared, however soon it comes");
        assert_eq!(clock.judge(at(3), Some(vec![vec![2]])), None);
        assert!(!clock.is_due(at(3)), "values are compared for a moment only");
        assert_eq!(clock.judge(at(4), Some(vec![vec![3]])), None);
        assert_eq!(clock.judge(at(5), Some(vec![vec![3]])), Some(GivenUp::Repeats(1)));
        let mut unknown = LoopClock::new(0, 0, began, limits);
        let answers = (unknown.judge(at(8), None), unknown.judge(at(9), None));
        assert_eq!(answers, (None, Some(GivenUp::TookTooLong)));
    }

    #[test]
    fn values_that_repeat_after_several_iterations_never_change() {
        let began = Instant::now();
        let limits = LoopLimits { timeout: Duration::ZERO, most: None };
        let judged = |period: u32| {
            let mut clock = LoopClock::new(0, 0, began, limits);
            (0..200).find_map(|turn: u32| {
                let values = vec![(turn % period).to_le_bytes().to_vec()];
                clock.is_due(began).then(|| clock.judge(began, Some(values)))?
            })
        };
        assert_eq!(judged(3), Some(GivenUp::Repeats(3)));
        assert_eq!(judged(LONGEST), Some(GivenUp::Repeats(LONGEST)));
        assert_eq!(judged(LONGEST + 1), None);
    }
}
