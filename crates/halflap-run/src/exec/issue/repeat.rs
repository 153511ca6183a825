//! Loops and conditionals: what is issued depends on data.

use std::cell::OnceCell;
use std::time::Instant;

use halflap_hlo::ids::SlotId;
use halflap_hlo::plan::Loop;

use super::super::memory::{PoolBlock, Requested};
use super::super::stream::Sequence;
use super::super::task::{StreamTask, TaskWork};
use super::super::turns::{Branches, GivenUp, LoopClock, LoopLimits, TaskList, Turns, chosen};
use super::{Issuer, ReadList, RunningPlan, after_all, needed};
use crate::address::{Address, AddressRange, MemoryCopy};
use crate::failure::Stopped;
use crate::prepare::{Action, LoopCounter};

/// A loop that is issued.
pub(super) struct Repeating<'a> {
    pub(super) label: u32,
    pub(super) repeat: &'a Loop,
    /// The elements of its state that its condition depends on, if they are known.
    pub(super) decides: Option<&'a [usize]>,
    /// How it counts, if that alone ends it.
    pub(super) counter: Option<&'a LoopCounter>,
}

impl Issuer<'_> {
    pub(super) fn repeat(
        &mut self,
        frame: &mut RunningPlan,
        repeating: &Repeating<'_>,
    ) -> Result<(), Stopped> {
        let &Repeating { label, repeat, .. } = repeating;
        let held = &self.program.plans[frame.plan].held;
        let pair = |&(from, to): &(SlotId, SlotId)| {
            (self.address(frame, from), self.address(frame, to), held[to].bytes)
        };
        let moves: Vec<_> = repeat.copied.iter().map(pair).collect();
        self.copy(label, moves);
        let (state, held) = self.state(frame, repeat, label)?;
        match self.recorded.is_some() || self.can_record(repeat) {
            true => self.record_loop(repeating, &state)?,
            false => self.issue_turns(repeating, &state)?,
        }
        held.into_iter().for_each(|block| self.put(block));
        Ok(())
    }

    /// Whether the compute stream can run a loop on its own: all that it starts it waits for, and
    /// no check looks at single tasks.
    fn can_record(&self, repeat: &Loop) -> bool {
        let fits = |plan| {
            let plan = &self.program.plans[plan];
            plan.is_repeatable && (self.meets || !plan.uses_streams)
        };
        fits(repeat.condition) && fits(repeat.body) && !self.is_watched()
    }

    /// The tasks that some steps issue, and the steps' results.
    fn record<T>(
        &mut self,
        steps: impl FnOnce(&mut Self) -> Result<T, Stopped>,
    ) -> Result<(Vec<StreamTask>, T), Stopped> {
        let outer = self.recorded.replace(Vec::new());
        let given = steps(self);
        let tasks = std::mem::replace(&mut self.recorded, outer);
        Ok((tasks.unwrap_or_default(), given?))
    }

    /// Hands a loop to the compute stream. Every iteration uses the same memory, which is released
    /// here, like a kernel's, because whatever is issued later runs after the loop.
    fn record_loop(&mut self, repeating: &Repeating<'_>, state: &[Address]) -> Result<(), Stopped> {
        let &Repeating { label, repeat, decides, counter } = repeating;
        let (condition, answer) = self.record(|own| {
            let mut condition = own.enter(repeat.condition, state)?;
            own.walk(&mut condition)?;
            let answer = own.address(&condition, own.plan(&condition).results[0]);
            own.leave(condition);
            Ok(answer)
        })?;
        let (body, moves) = self.record(|own| {
            let mut body = own.enter(repeat.body, state)?;
            own.walk(&mut body)?;
            let moves = own.moved(repeat, &body);
            own.leave(body);
            Ok(needed(moves))
        })?;
        let plan = &self.program.plans[repeat.body];
        let array = |&element: &usize| AddressRange {
            start: state[element],
            len: plan.held[plan.parameters[element]].bytes,
        };
        let decides = decides.map(|elements| elements.iter().map(array).collect());
        let counter = counter
            .map(|counter| (counter.clone(), counter.elements().iter().map(array).collect()));
        let list = |tasks| TaskList::new(tasks, self.options);
        let (condition, body) = (list(condition), list(body));
        let writes = OnceCell::new();
        let turns = Turns { label, condition, answer, body, moves, decides, counter, writes };
        self.push(0, label, TaskWork::Loop(Box::new(turns)));
        let uses_streams = |plan| self.program.plans[plan].uses_streams;
        if self.recorded.is_none() && [repeat.condition, repeat.body].into_iter().any(uses_streams)
        {
            // What is issued later comes after all that the iterations have started.
            self.arrive()?;
            let given = self.issued.iter_mut().zip(&self.streams.all);
            given.for_each(|(number, stream)| *number = stream.last());
            self.number = after_all(self.number);
        }
        Ok(())
    }

    /// What is copied after a run of a loop's body.
    fn moved(&self, repeat: &Loop, body: &RunningPlan) -> Vec<MemoryCopy> {
        let held = &self.program.plans[repeat.body].held;
        let pair = |&(from, to): &(SlotId, SlotId)| {
            (self.address(body, from), self.address(body, to), held[to].bytes)
        };
        repeat.moved.iter().map(pair).collect()
    }

    /// Issues the tasks of each iteration once the condition of the previous one is known.
    fn issue_turns(&mut self, repeating: &Repeating<'_>, state: &[Address]) -> Result<(), Stopped> {
        let &Repeating { label, repeat, decides, counter } = repeating;
        let limits = LoopLimits::new(self.options);
        let mut clock = LoopClock::new(self.rank, label, Instant::now(), limits);
        let around = self.scope.clone();
        for iteration in 0.. {
            self.scope = self.probe.is_some().then(|| {
                let outer = around.as_deref().unwrap_or_default();
                outer.iter().copied().chain([iteration]).collect()
            });
            let mut condition = self.enter(repeat.condition, state)?;
            self.track(&condition);
            self.walk(&mut condition)?;
            let answer = self.address(&condition, self.plan(&condition).results[0]);
            let goes_on = self.first_byte(answer)?;
            self.leave(condition);
            if goes_on == 0 {
                break;
            }
            let wrong = counter.filter(|_| iteration == 0).and_then(|counter| {
                counter.judge(&self.contents(repeat, state, &counter.elements()))
            });
            if let Some(wrong) = wrong {
                let why = GivenUp::CountsTheWrongWay(wrong);
                return Err(self.fate.fail(clock.failure(self.program, 0, why)));
            }
            let now = Instant::now();
            if clock.is_due(now) {
                let values = decides.map(|elements| self.contents(repeat, state, elements));
                if let Some(why) = clock.judge(now, values) {
                    let turns = u64::from(iteration) + 1;
                    return Err(self.fate.fail(clock.failure(self.program, turns, why)));
                }
            }
            let mut body = self.enter(repeat.body, state)?;
            self.track(&body);
            self.walk(&mut body)?;
            let moves = self.moved(repeat, &body);
            self.copy(label, moves);
            self.leave(body);
        }
        self.scope = around;
        Ok(())
    }

    /// The bytes of some elements of a loop's state.
    fn contents(&self, repeat: &Loop, state: &[Address], elements: &[usize]) -> Vec<Vec<u8>> {
        let body = &self.program.plans[repeat.body];
        let bytes_of = |&element: &usize| {
            let _opened = self.opened(&[state[element]], &[]);
            // SAFETY: the state is allocated, and everything issued before has run.
            unsafe {
                std::slice::from_raw_parts(
                    state[element].0,
                    body.held[body.parameters[element]].bytes,
                )
                .to_vec()
            }
        };
        elements.iter().map(bytes_of).collect()
    }

    /// Where a loop's state is. What it only reads must not share memory with anything that it
    /// writes, which can happen if it receives one value twice.
    fn state(
        &mut self,
        frame: &RunningPlan,
        repeat: &Loop,
        label: u32,
    ) -> Result<(Vec<Address>, Vec<PoolBlock>), Stopped> {
        let body = &self.program.plans[repeat.body];
        let is_written = |index: usize| body.parameters[index] != body.results[index];
        let mut state = self.addresses(frame, &repeat.state);
        let mut held = Vec::new();
        for index in 0..state.len() {
            let shares = |other: usize| {
                other != index && repeat.state[other] == repeat.state[index] && is_written(other)
            };
            if (0..state.len()).any(shares) && !is_written(index) {
                let len = body.held[body.parameters[index]].bytes;
                let block = self.beside(len, label)?;
                self.copy(label, vec![(state[index], block.address, len)]);
                state[index] = block.address;
                held.push(block);
            }
        }
        Ok((state, held))
    }

    pub(super) fn branch(
        &mut self,
        frame: &mut RunningPlan,
        action: &Action,
    ) -> Result<(), Stopped> {
        let Action::Branch { label, selector, selector_bytes, branches } = action else {
            return Ok(());
        };
        let address = self.address(frame, *selector);
        if self.recorded.is_none() {
            self.arrive()?;
            let _opened = self.opened(&[address], &[]);
            // SAFETY: the selector is allocated, and nothing that could write it is still to run.
            let which = unsafe { chosen(address, *selector_bytes, branches.len()) };
            return self.call(frame, &branches[which], ReadList { label: *label, list: which });
        }
        let mut each = Vec::new();
        let mut requested: Option<Requested> = None;
        for (list, branch) in branches.iter().enumerate() {
            let of = ReadList { label: *label, list };
            let (tasks, ()) = self.record(|own| own.call(frame, branch, of))?;
            each.push(TaskList::new(tasks, self.options));
            // Only one of them runs: requested bytes are counted as if it were the first.
            self.requested = *requested.get_or_insert(self.requested);
        }
        let branches = Branches { selector: address, selector_bytes: *selector_bytes, each };
        self.push(0, *label, TaskWork::Branch(Box::new(branches)));
        Ok(())
    }

    /// Waits until everything that was issued to the compute stream has run.
    fn arrive(&self) -> Result<(), Stopped> {
        let issued: Sequence = self.issued[0];
        self.streams.compute().wait(issued, self.fate)
    }

    /// The content of memory once everything issued before has run.
    fn first_byte(&self, address: Address) -> Result<u8, Stopped> {
        self.arrive()?;
        let _opened = self.opened(&[address], &[]);
        // SAFETY: the array has an element, and nothing that could write it is still to run.
        Ok(unsafe { address.0.cast_const().read() })
    }
}
