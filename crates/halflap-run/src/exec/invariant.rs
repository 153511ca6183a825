//! Kernels that give the same in every iteration of a loop.
//!
//! The tasks of a loop work on the same memory in every iteration. If nothing in the loop writes
//! what a kernel reads, it computes the same each time; if nothing else writes its outputs either,
//! they still hold that, and it need not run again. No memory is needed for this, and where memory
//! is used for several values, nothing is assumed.

use super::task::{StreamTask, TaskWork};
use super::turns::Turns;
use crate::address::{Address, MemoryCopy};
use crate::kernel::ArrayType;
use crate::prepare::{Action, KernelLaunch, Prepared};

/// What a loop's tasks write: the addresses of first bytes, and of those after the last.
pub(super) struct LoopWrites {
    ranges: Vec<[usize; 2]>,
}

impl LoopWrites {
    /// `None` if it is not known what a task writes, or another stream writes.
    pub(super) fn of(turns: &Turns, program: &Prepared) -> Option<LoopWrites> {
        let mut writes = LoopWrites { ranges: Vec::new() };
        writes.add_loop(turns, program).then_some(writes)
    }

    /// Whether a launch gives the same in every iteration, and its outputs stay.
    pub(super) fn is_invariant(&self, launch: &KernelLaunch, arrays: &[Address]) -> bool {
        let (ins, outs) = arrays.split_at(launch.ins.len());
        let count = |(at, kind): (&Address, &ArrayType)| {
            let [start, end] = range(*at, kind.bytes());
            self.ranges.iter().filter(|[from, to]| *from < end && start < *to).count()
        };
        launch.kernel.is_repeatable()
            && ins.iter().zip(launch.kernel.inputs()).all(|of| count(of) == 0)
            // Only the launch itself writes there.
            && outs.iter().zip(launch.kernel.outputs()).all(|of| count(of) <= 1)
    }

    fn add_loop(&mut self, turns: &Turns, program: &Prepared) -> bool {
        self.add_moves(&turns.moves);
        let lists = [&turns.condition, &turns.body];
        lists.iter().all(|list| list.tasks.iter().all(|task| self.add_task(task, program)))
    }

    fn add_task(&mut self, task: &StreamTask, program: &Prepared) -> bool {
        match &task.work {
            TaskWork::Kernel { arrays } => {
                let Some(launch) = launch_of(task, program) else { return false };
                let outs = arrays[launch.ins.len()..].iter().zip(launch.kernel.outputs());
                self.ranges.extend(outs.map(|(at, kind)| range(*at, kind.bytes())));
                true
            }
            TaskWork::Copy { moves } => {
                self.add_moves(moves);
                true
            }
            TaskWork::Loop(turns) => self.add_loop(turns, program),
            TaskWork::Branch(branches) => {
                let mut tasks = branches.each.iter().flat_map(|list| &list.tasks);
                tasks.all(|task| self.add_task(task, program))
            }
            _ => false,
        }
    }

    fn add_moves(&mut self, moves: &[MemoryCopy]) {
        self.ranges.extend(moves.iter().map(|&(_, to, len)| range(to, len)));
    }
}

/// What a task launches, if it launches a kernel.
pub(super) fn launch_of<'p>(task: &StreamTask, program: &'p Prepared) -> Option<&'p KernelLaunch> {
    let (plan, step) = program.labels[task.issued.label as usize].at;
    match &program.plans[plan].actions[step] {
        Action::Launch { launch, .. } => Some(launch),
        _ => None,
    }
}

fn range(start: Address, bytes: usize) -> [usize; 2] {
    [start.0.addr(), start.0.addr() + bytes]
}
