//! Annealing: many small moves; bad ones are accepted less and less often.
//!
//! There are two kinds of moves. Most take one operation to another place within the range that its
//! edges allow. Some drag it further, with everything on the way that it is tied to by
//! dependencies: a gradient and its all-reduce are worth moving only together.
//!
//! A long order is annealed in regions, in repeated sweeps, because a board keeps only its region
//! up to date: the work of a sweep grows with the order's length, not with its square. Temperatures
//! are measured in the mean run time of a collective.

use std::ops::{ControlFlow, Range};

use super::board::{Board, Move, OverLimit};
use super::program::Program;
use crate::random::{Random, halved};

/// One independent search.
#[derive(Clone, Copy, Debug)]
pub(super) struct Chain {
    pub(super) seed: u64,
    /// How many moves are tried.
    pub(super) steps: usize,
    /// How many times the initial temperature is halved before it starts.
    pub(super) cooled: f64,
    /// Whether it makes room for moves that exceed the memory limit.
    pub(super) makes_room: bool,
    /// The memory limit in bytes.
    pub(super) limit: i64,
    /// The lower bound: a search that reaches it ends.
    pub(super) bound: f64,
}

/// What a search found.
#[derive(Clone, Debug)]
pub(super) struct Found {
    pub(super) order: Vec<u32>,
    pub(super) peak: i64,
}

impl Found {
    pub(super) fn new(program: &Program, order: Vec<u32>) -> Found {
        let board = Board::new(program, order);
        Found { peak: board.peak(), order: board.order }
    }
}

/// The longest order that is annealed whole.
const WHOLE: usize = 384;
const REGION: usize = 256;
/// How often the initial temperature is halved.
const HALVINGS: f64 = 9.0;
/// What a move may cost on average, in operations visited: about what it costs in real programs.
const WORK: u64 = 130;
/// How far from a stall moves start or end.
const LOOK: usize = 48;
/// The percentage of moves over the memory limit for which room is made.
const ROOMS: usize = 20;
/// How many operations are drawn to fill a stall until one fits.
const DRAWN: usize = 4;
/// The next move starts up to this many places further on.
const STRIDE: usize = 16;
/// How a chain searches: chains differ, because what helps one program does not help another.
#[derive(Clone, Copy)]
struct Manner {
    /// The percentage of moves that drag.
    drags: usize,
    /// The percentage of moves that start or end at a stall.
    guided: usize,
    /// The initial temperature, in mean run times of a collective.
    hot: f64,
}

const MANNERS: [Manner; 4] = [
    Manner { drags: 30, guided: 50, hot: 0.5 },
    Manner { drags: 12, guided: 0, hot: 0.5 },
    Manner { drags: 50, guided: 50, hot: 0.25 },
    Manner { drags: 12, guided: 25, hot: 1.0 },
];

/// Reports work done, in steps; returns whether to continue.
pub(super) type Tick<'a> = &'a dyn Fn(usize) -> ControlFlow<()>;

/// Searches from an order until it is done or stopped.
pub(super) fn anneal(program: &Program, start: &[u32], chain: &Chain, tick: Tick<'_>) -> Found {
    let mut search = Search::new(program, start, chain);
    // If it is stopped, what it has found is used.
    let _ = search.run(chain, tick);
    Found { peak: search.board.peak(), order: search.board.order }
}

struct Search<'p> {
    program: &'p Program,
    board: Board<'p>,
    random: Random,
    manner: Manner,
    makes_room: bool,
    limit: i64,
    bound: f64,
    /// The places that moves stay in.
    region: Range<usize>,
    /// Where the last move started, and whether the next one starts before it.
    at: usize,
    backwards: bool,
    current: f64,
}

impl<'p> Search<'p> {
    fn new(program: &'p Program, start: &[u32], chain: &Chain) -> Search<'p> {
        let mut board = Board::new(program, start.to_vec());
        let current = board.step_time();
        let random = Random::new(chain.seed);
        Search {
            program,
            board,
            random,
            manner: MANNERS[(chain.seed as usize % 100) % MANNERS.len()],
            makes_room: chain.makes_room,
            limit: chain.limit,
            bound: chain.bound * (1.0 + 1e-9),
            region: 0..program.len,
            at: 0,
            backwards: false,
            current,
        }
    }

    fn run(&mut self, chain: &Chain, tick: Tick<'_>) -> ControlFlow<()> {
        if self.board.excess(chain.limit) > 0 {
            self.repair(chain.steps / 2, tick)?;
            self.current = self.board.step_time();
        }
        self.anneal(chain, tick)
    }

    fn anneal(&mut self, &Chain { steps, cooled, .. }: &Chain, tick: Tick<'_>) -> ControlFlow<()> {
        if self.program.len < 2 || self.current <= self.bound {
            return ControlFlow::Continue(());
        }
        let regions = regions(self.program.len);
        let sweeps = (steps / (regions.len() * 1500)).clamp(6, 60);
        let visit = steps / (regions.len() * sweeps);
        let hottest = mean_collective_time(self.program) * self.manner.hot;
        let mut best = (self.current, self.board.order.clone());
        for sweep in 0..sweeps {
            let part = sweep as f64 / (sweeps - 1) as f64;
            let temperature = hottest * halved(cooled + (HALVINGS - cooled) * part);
            for region in &regions {
                self.enter(region);
                self.visit(visit, temperature);
                tick(visit)?;
            }
            if self.current <= self.bound {
                break;
            }
            if self.current < best.0 {
                best = (self.current, self.board.order.clone());
            }
        }
        if self.current > best.0 {
            self.board = Board::new(self.program, best.1);
        }
        self.enter(&(0..self.program.len));
        self.current = self.board.step_time();
        ControlFlow::Continue(())
    }

    /// Tries this many moves, or fewer where they cost more than usual.
    fn visit(&mut self, steps: usize, temperature: f64) {
        let most = self.board.work + steps as u64 * WORK;
        for _ in 0..steps {
            if self.board.work > most || self.current <= self.bound {
                return;
            }
            self.step(temperature);
        }
    }

    fn enter(&mut self, region: &Range<usize>) {
        self.region = region.clone();
        (self.at, self.backwards) = (region.start, false);
        self.board.enter(region);
    }

    /// Tries one move.
    fn step(&mut self, temperature: f64) {
        let drags = self.random.below(100) < self.manner.drags;
        let guided = self.random.below(100) < self.manner.guided;
        let step = if guided { self.propose_at_stall(drags) } else { self.propose(drags) };
        if let Some(step) = step {
            self.consider(step, drags, temperature);
        }
    }

    /// Makes a move if it is good enough.
    fn consider(&mut self, step: Move, drags: bool, temperature: f64) {
        // The acceptance threshold is drawn first, so that memory is checked only if time allows
        // the move.
        let most = self.current + temperature * self.random.exponential();
        if drags {
            return self.try_drag(step, most);
        }
        if let Some(over) = self.board.first_over(step, self.limit) {
            if self.makes_room && self.random.below(100) < ROOMS {
                self.try_with_room(step, over, most);
            }
            return;
        }
        let step_time = self.board.ask_time(step, self.current);
        if step_time <= most {
            self.board.make(step);
            self.current = step_time;
        }
    }

    /// Makes a move that exceeds the memory limit, together with one that makes room for it.
    fn try_with_room(&mut self, step: Move, over: OverLimit, most: f64) {
        let moved = self.board.order[step.from];
        let Some(other) = self.find_room(moved, over) else { return };
        if !self.board.fits(other, self.limit) {
            return;
        }
        let known = self.board.ask_time(other, self.current).max(self.current);
        self.board.make(other);
        let from = self.board.place(moved);
        let (low, high) = self.board.room(from);
        let step = Move { from, to: step.to.clamp(low, high) };
        if step.to != from && self.board.fits(step, self.limit) {
            let step_time = self.board.ask_time(step, known);
            if step_time <= most {
                self.board.make(step);
                self.current = step_time;
                return;
            }
        }
        self.board.make(Move { from: other.to, to: other.from });
    }

    /// A move that lowers a level that is too high: something after it that frees more than it
    /// allocates moves before it, or something before it that allocates more than it frees moves
    /// after it.
    fn find_room(&mut self, moved: u32, over: OverLimit) -> Option<Move> {
        let Range { start: first, end } = self.region;
        let is_behind = self.random.coin();
        for distance in 1..=LOOK {
            let from = match is_behind {
                true => over.place + distance,
                false => over.place.checked_sub(distance)?,
            };
            if from < first || from >= end {
                return None;
            }
            let lowers = if is_behind { -self.board.net(from) } else { self.board.net(from) };
            // Not always the nearest one.
            if lowers < over.by || self.board.order[from] == moved || self.random.coin() {
                continue;
            }
            let (low, high) = self.board.room(from);
            if is_behind && low <= over.place {
                return Some(Move { from, to: over.place });
            }
            if !is_behind && high > over.place {
                let to = (over.place + 1 + self.random.below(LOOK)).min(high);
                return Some(Move { from, to });
            }
        }
        None
    }

    fn try_drag(&mut self, step: Move, most: f64) {
        if !self.board.drag(step, self.limit) {
            return;
        }
        let step_time = self.board.ask_unsettled(step, self.current);
        if step_time <= most {
            self.board.settle(step);
            self.current = step_time;
        } else {
            self.board.undo(step);
        }
    }

    /// A place for a random operation: half of the time nearby, half of the time anywhere in its
    /// range.
    fn propose(&mut self, drags: bool) -> Option<Move> {
        let Range { start: first, end } = self.region;
        let from = self.walk();
        let (low, high) = if drags { (first, end - 1) } else { self.board.room(from) };
        if low == high {
            return None;
        }
        let reach =
            if drags { 1 + self.random.below((end - first) / 2) } else { 1 + self.random.below(8) };
        let to = match !drags && self.random.coin() {
            true => low + self.random.below(high - low + 1),
            false if self.random.coin() => (from + reach).min(high),
            false => from.saturating_sub(reach).max(low),
        };
        (to != from).then_some(Move { from, to })
    }

    /// A move that could shorten the next stall: the awaited operation moves earlier, the waiting
    /// one later, or something else is moved in between from either side.
    fn propose_at_stall(&mut self, drags: bool) -> Option<Move> {
        let Range { start: first, end } = self.region;
        let from = self.walk();
        let last = (from + LOOK).min(end);
        let (place, awaited) =
            (from..last).find_map(|place| Some((place, self.board.stall(place)?)))?;
        let step = match self.random.below(if self.makes_room && !drags { 4 } else { 3 }) {
            0 => {
                let earlier = self.behind_what(awaited);
                let from = self.board.place(earlier);
                Move { from, to: from.checked_sub(1 + self.random.below(LOOK))? }
            }
            1 => Move { from: place, to: place + 1 + self.random.below(LOOK) },
            2 => Move { from: place + 1 + self.random.below(LOOK), to: place },
            _ => self.fill(place)?,
        };
        if step.from < first || step.from >= end {
            return None;
        }
        let (low, high) = if drags { (first, end - 1) } else { self.board.room(step.from) };
        let to = step.to.clamp(low, high);
        (to != step.from).then_some(Move { to, ..step })
    }

    /// An earlier operation that could just as well run where the compute stream stalls.
    fn fill(&mut self, stall: usize) -> Option<Move> {
        let first = self.region.start;
        let before = stall.checked_sub(first).filter(|&before| before > 0)?;
        for _ in 0..DRAWN {
            let from = first + self.random.below(before);
            let row = &self.program.ops[self.board.order[from] as usize];
            if row.time > 0.0 && !row.kind.is_collective() && self.board.room(from).1 >= stall {
                return Some(Move { from, to: stall - 1 });
            }
        }
        None
    }

    /// A collective, or one of those that it queued behind.
    fn behind_what(&mut self, awaited: u32) -> u32 {
        let mut found = awaited;
        while self.random.below(4) > 0 {
            let Some(ahead) = self.board.queued_behind(found) else { break };
            found = ahead;
        }
        found
    }

    /// The next place, a few places on: to the end of the region and back, because moves that
    /// follow each other along the order are cheap.
    fn walk(&mut self) -> usize {
        let stride = 1 + self.random.below(STRIDE);
        let next =
            if self.backwards { self.at.checked_sub(stride) } else { Some(self.at + stride) };
        match next.filter(|place| self.region.contains(place)) {
            Some(place) => self.at = place,
            None => self.backwards = !self.backwards,
        }
        self.at
    }

    /// Searches for an order within the limit: the excess over it is annealed away.
    fn repair(&mut self, steps: usize, tick: Tick<'_>) -> ControlFlow<()> {
        let regions = regions(self.program.len);
        let sweeps = 30;
        let visit = steps / (regions.len() * sweeps) + 1;
        let mut excess = self.board.excess(self.limit);
        for sweep in 0..sweeps {
            let temperature =
                self.limit as f64 * 0.01 * halved(HALVINGS * sweep as f64 / sweeps as f64);
            for region in &regions {
                self.enter(region);
                for _ in 0..visit {
                    let Some(step) = self.propose(false) else { continue };
                    let change = self.board.ask_excess(step, self.limit);
                    if change as f64 <= temperature * self.random.exponential() - temperature * 0.1
                        || change <= 0
                    {
                        self.board.make(step);
                        excess += change;
                    }
                    if excess == 0 {
                        return ControlFlow::Continue(());
                    }
                }
                tick(visit)?;
            }
        }
        ControlFlow::Continue(())
    }
}

/// Overlapping pieces of an order.
fn regions(len: usize) -> Vec<Range<usize>> {
    if len <= WHOLE {
        return std::iter::once(0..len).collect();
    }
    let starts = (0..len - REGION).step_by(REGION / 2).chain([len - REGION]);
    starts.map(|first| first..first + REGION).collect()
}

fn mean_collective_time(program: &Program) -> f64 {
    let times = || {
        (0..program.len)
            .filter(|&op| program.ops[op].kind.is_collective())
            .map(|op| program.ops[op].time)
    };
    match times().count() {
        0 => 0.0,
        count => times().sum::<f64>() / count as f64,
    }
}
