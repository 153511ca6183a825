//! The board in memory.

use std::ops::ControlFlow;

use super::{Board, Move};

/// A buffer that the moved operation uses and whose last other user is in between: a different
/// operation then frees it.
#[derive(Clone, Copy)]
pub(super) struct Break {
    at: usize,
    size: i64,
}

/// A place where a level exceeds a limit, and by how much.
#[derive(Clone, Copy)]
pub(in super::super) struct OverLimit {
    pub(in super::super) place: usize,
    pub(in super::super) by: i64,
}

/// The state before a drag.
#[derive(Default)]
pub(super) struct SpanBefore {
    pub(super) order: Vec<u32>,
    levels: Vec<i64>,
    /// What is alive before the first operation of the span.
    alive: i64,
    /// The buffers that dragged operations use, and which operations freed them.
    frees: Vec<Free>,
}

#[derive(Clone, Copy)]
struct Free {
    buffer: u32,
    before: u32,
    after: u32,
}

impl Board<'_> {
    /// The largest level of all.
    pub(in super::super) fn peak(&self) -> i64 {
        self.level.iter().copied().fold(0, i64::max)
    }

    /// The largest level from `first` to `last`.
    #[cfg(test)]
    pub(in super::super) fn peak_between(&self, first: usize, last: usize) -> i64 {
        self.level[first..=last].iter().copied().fold(i64::MIN, i64::max)
    }

    /// The total excess of levels over a limit.
    pub(in super::super) fn excess(&self, limit: i64) -> i64 {
        self.level.iter().map(|&level| (level - limit).max(0)).sum()
    }

    /// The largest level between the two places after a move.
    pub(in super::super) fn ask_peak(&mut self, step: Move) -> i64 {
        let mut peak = i64::MIN;
        self.visit_levels(step, |_, level| {
            peak = peak.max(level);
            ControlFlow::Continue(())
        });
        peak
    }

    /// Whether levels stay within a limit after a move.
    pub(in super::super) fn fits(&mut self, step: Move, limit: i64) -> bool {
        let mut fits = true;
        self.visit_levels(step, |_, level| {
            fits = level <= limit;
            if fits { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        });
        fits
    }

    /// Where levels first exceed a limit after a move.
    pub(in super::super) fn first_over(&mut self, step: Move, limit: i64) -> Option<OverLimit> {
        let (mut over, mut place) = (None, step.first());
        self.visit_levels(step, |_, level| {
            if level > limit {
                // Everything except the moved operation is one place later after a move to an
                // earlier place, and one place earlier after a move to a later one.
                let place = if step.to > step.from { place + 1 } else { place };
                over = Some(OverLimit { place: place.min(step.last()), by: level - limit });
                return ControlFlow::Break(());
            }
            place += 1;
            ControlFlow::Continue(())
        });
        over
    }

    /// What an operation allocates, less what it frees.
    pub(in super::super) fn net(&self, place: usize) -> i64 {
        let op = self.order[place] as usize;
        self.program.alloc[op] - self.freed[op]
    }

    /// By how much a move changes the excess over a limit.
    pub(in super::super) fn ask_excess(&mut self, step: Move, limit: i64) -> i64 {
        let excess = |level: i64| (level - limit).max(0);
        let before: i64 =
            self.level[step.first()..=step.last()].iter().map(|&level| excess(level)).sum();
        let mut after = 0;
        self.visit_levels(step, |_, level| {
            after += excess(level);
            ControlFlow::Continue(())
        });
        after - before
    }

    /// The levels between the two places after a move, in the new order, computed lazily.
    fn visit_levels(
        &mut self,
        step: Move,
        mut visit: impl FnMut(&mut Self, i64) -> ControlFlow<()>,
    ) {
        let moved = self.order[step.from] as usize;
        let alloc = self.program.alloc[moved];
        let own = self.find_breaks(step);
        if step.to > step.from {
            let mut shift = own - alloc;
            let mut after = 0;
            for place in step.from + 1..=step.to {
                let level = self.level[place] + shift;
                if visit(self, level).is_break() {
                    return;
                }
                let handed = self.breaks_at(place);
                shift += handed;
                after = level - (self.freed[self.order[place] as usize] - handed);
            }
            let _ = visit(self, after + alloc);
        } else {
            let before = self.level[step.to] - self.program.alloc[self.order[step.to] as usize];
            let mut going = visit(self, before + alloc);
            let mut shift = alloc - own;
            for place in step.to..step.from {
                if going.is_break() {
                    return;
                }
                let level = self.level[place] + shift;
                going = visit(self, level);
                shift -= self.breaks_at(place);
            }
        }
    }

    #[inline(always)]
    fn breaks_at(&self, place: usize) -> i64 {
        self.breaks.iter().filter(|found| found.at == place).map(|found| found.size).sum()
    }

    /// Finds where frees change hands. Returns what the moved operation frees in any case: at its
    /// current place if it moves later, at its new place if it moves earlier.
    fn find_breaks(&mut self, step: Move) -> i64 {
        let program = self.program;
        let moved = self.order[step.from] as usize;
        let (first, last) = (step.first(), step.last());
        let mut own = program.free_self[moved];
        self.breaks.clear();
        for &buffer in program.uses.of(moved) {
            let size = program.size_free[buffer as usize];
            let others =
                program.users.of(buffer as usize).iter().filter(|&&user| user as usize != moved);
            match others.map(|&user| self.pos[user as usize] as usize).max() {
                Some(at) if at > last => {}
                Some(at) if at >= first => self.breaks.push(Break { at, size }),
                _ => own += size,
            }
        }
        own
    }

    /// Records a move; call it before the order changes.
    pub(super) fn move_memory(&mut self, step: Move) {
        let moved = self.order[step.from] as usize;
        self.levels.clear();
        self.visit_levels(step, |board, level| {
            board.levels.push(level);
            ControlFlow::Continue(())
        });
        let first = step.first();
        self.level[first..first + self.levels.len()].copy_from_slice(&self.levels);
        let later = step.to > step.from;
        for index in 0..self.breaks.len() {
            let Break { at, size } = self.breaks[index];
            let other = self.order[at] as usize;
            let size = if later { size } else { -size };
            self.freed[moved] += size;
            self.freed[other] -= size;
        }
    }

    /// Saves what a drag is about to change in the span of a move.
    pub(super) fn hold(&mut self, step: Move) {
        let (program, first) = (self.program, step.first());
        let span = first..step.last() + 1;
        self.held.order.clear();
        self.held.order.extend_from_slice(&self.order[span.clone()]);
        self.held.levels.clear();
        self.held.levels.extend_from_slice(&self.level[span]);
        self.held.alive = self.level[first] - program.alloc[self.order[first] as usize];
        self.held.frees.clear();
        for &op in &self.dragged {
            for &buffer in program.uses.of(op as usize) {
                let is_noted = self.held.frees.iter().any(|noted| noted.buffer == buffer);
                if let Some(before) = self.last_user(buffer).filter(|_| !is_noted) {
                    self.held.frees.push(Free { buffer, before, after: before });
                }
            }
        }
    }

    fn last_user(&self, buffer: u32) -> Option<u32> {
        let users = self.program.users.of(buffer as usize).iter().copied();
        users.max_by_key(|&user| self.pos[user as usize])
    }

    /// Makes the last users of what dragged operations use free it.
    pub(super) fn hand_over_frees(&mut self) {
        for index in 0..self.held.frees.len() {
            let Free { buffer, before, .. } = self.held.frees[index];
            let after = self.last_user(buffer).unwrap_or(before);
            self.held.frees[index].after = after;
            let size = self.program.size_free[buffer as usize];
            self.freed[before as usize] -= size;
            self.freed[after as usize] += size;
        }
    }

    /// Recomputes the levels in the span of a move while they are within a limit; returns whether
    /// all are.
    pub(super) fn account_span(&mut self, step: Move, limit: i64) -> bool {
        let mut alive = self.held.alive;
        for place in step.first()..=step.last() {
            let op = self.order[place] as usize;
            let level = alive + self.program.alloc[op];
            if level > limit {
                return false;
            }
            self.level[place] = level;
            alive = level - self.freed[op];
        }
        true
    }

    /// Reverts what a drag changed.
    pub(super) fn take_back_memory(&mut self, step: Move) {
        let first = step.first();
        self.level[first..first + self.held.levels.len()].copy_from_slice(&self.held.levels);
        for &Free { buffer, before, after } in &self.held.frees {
            let size = self.program.size_free[buffer as usize];
            self.freed[after as usize] -= size;
            self.freed[before as usize] += size;
        }
    }

    /// Memory computed from scratch.
    pub(super) fn account(&mut self) {
        let program = self.program;
        self.freed.copy_from_slice(&program.free_self);
        for (buffer, &size) in program.size_free.iter().enumerate() {
            if let Some(last) = self.last_user(buffer as u32) {
                self.freed[last as usize] += size;
            }
        }
        let mut alive = program.baseline;
        for place in 0..program.len {
            let op = self.order[place] as usize;
            self.level[place] = alive + program.alloc[op];
            alive = self.level[place] - self.freed[op];
        }
    }
}
