//! Loops that the compute stream runs on its own, and how long a loop may run.
//!
//! A loop's tasks and their addresses are the same in every iteration if it waits for all that it
//! starts. The issuing thread then hands them over once, and the compute stream repeats them
//! without waiting for it; what runs on other streams, it starts itself.

use std::time::{Duration, Instant};

use halflap::ids::Id;

use super::report::{Noted, RunLane};
use super::session::{Options, seconds};
use super::stream::TaskStream;
use super::task::{MOST_SPANS, StreamTask, TaskWork, Worker};
use crate::address::{Address, AddressRange, MemoryCopy};
use crate::check::post::{Marked, Running};
use crate::failure::{Endless, Failure, Stopped, WrongWay};
use crate::prepare::{LoopCounter, Prepared};
use crate::sync::locked;

/// A loop that the compute stream runs on its own: what is run in each iteration.
pub(super) struct Turns {
    pub(super) label: u32,
    pub(super) condition: Vec<StreamTask>,
    /// The condition's result.
    pub(super) answer: Address,
    pub(super) body: Vec<StreamTask>,
    /// What is copied after each run of the body.
    pub(super) moves: Vec<MemoryCopy>,
    /// The arrays that the condition depends on, if they are known.
    pub(super) decides: Option<Vec<AddressRange>>,
    /// How it counts, and the arrays that say where it begins and ends.
    pub(super) counter: Option<(LoopCounter, Vec<AddressRange>)>,
}

/// A conditional in such a loop.
pub(super) struct Branches {
    pub(super) selector: Address,
    pub(super) selector_bytes: usize,
    pub(super) each: Vec<Vec<StreamTask>>,
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
}

impl<'a> Pace<'a> {
    pub(super) fn new(program: &'a Prepared, stream: &'a TaskStream<StreamTask>) -> Pace<'a> {
        // Taken along until the end: adding to them later would copy them.
        let spans = std::mem::take(&mut *locked(&stream.spans));
        let room = MOST_SPANS.saturating_sub(spans.len());
        Pace { program, stream, now: Instant::now(), spans, room }
    }

    /// Gives the stream its times back, with those of what ran.
    pub(super) fn finish(self) {
        *locked(&self.stream.spans) = self.spans;
    }
}

impl Worker {
    /// Runs a loop to its end.
    pub(super) fn turns(&mut self, turns: &Turns, pace: &mut Pace<'_>) -> Result<(), Stopped> {
        let mut clock = LoopClock::new(self.rank, turns.label, pace.now, self.limits);
        for iteration in 0u64.. {
            self.all_of(&turns.condition, pace)?;
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
            if clock.is_due(pace.now) {
                let values = turns.decides.as_ref().map(|arrays| contents(arrays));
                if let Some(why) = clock.judge(pace.now, values) {
                    let failure = clock.failure(pace.program, iteration + 1, why);
                    return Err(self.fate.fail(failure));
                }
            }
            self.all_of(&turns.body, pace)?;
            if !turns.moves.is_empty() {
                self.copy(&turns.moves);
            }
        }
        Ok(())
    }

    fn all_of(&mut self, tasks: &[StreamTask], pace: &mut Pace<'_>) -> Result<(), Stopped> {
        for task in tasks {
            match &task.work {
                TaskWork::Loop(turns) => self.turns(turns, pace)?,
                TaskWork::Branch(branches) => {
                    let Branches { selector, selector_bytes, each } = &**branches;
                    // SAFETY: what makes the selector has run, and only this thread runs tasks.
                    let which = unsafe { chosen(*selector, *selector_bytes, each.len()) };
                    self.all_of(&each[which], pace)?;
                }
                TaskWork::Inline(inline) => {
                    let noted = self.meet(&task.issued, inline, pace.program)?;
                    pace.now = noted[0].end;
                    if pace.room > 1 {
                        pace.room -= 2;
                        pace.spans.extend(noted);
                    }
                }
                TaskWork::Start(start) => self.start(&task.issued, start),
                _ => self.one_of(task, pace)?,
            }
        }
        Ok(())
    }

    fn one_of(&mut self, task: &StreamTask, pace: &mut Pace<'_>) -> Result<(), Stopped> {
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
