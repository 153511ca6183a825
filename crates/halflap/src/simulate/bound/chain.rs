//! Chains of moments: starts of operations, each of which needs the one before.
//!
//! The time between two moments is at least what the compute stream ran in between, what each
//! communication stream did, and the longest path from one to the other. What came before each
//! moment is a closed set within the memory limit. Any weights on these times, and any price of
//! memory, give a bound: each moment contributes the weight of the closed set that is cheapest at
//! those prices. A linear program over the sets found so far chooses the next prices.

use std::rc::Rc;

use super::closed::Node;
use super::event::{BeforeMoment, Event, MomentPrices};
use super::network::Lane;
use super::simplex::Simplex;

/// Prices: weights of the lanes' times between moments, and the price of memory at each moment.
#[derive(Clone, Debug)]
pub(super) struct Weights {
    /// For each interval, of each lane; the remainder to one is the weight of the path.
    lanes: Vec<Vec<f64>>,
    /// The same while an event's operation runs: at most the weights before and after it.
    during: Vec<Vec<f64>>,
    memory: Vec<f64>,
}

/// A column of the linear program, which represents a set before a moment.
struct Column {
    number: usize,
    event: usize,
    set: BeforeMoment,
}

/// What a chain of moments proves.
#[derive(Clone, Debug)]
pub(super) struct ProvedBound {
    pub(super) time: f64,
    /// The moments that matter, by index.
    pub(super) cuts: Vec<usize>,
    pub(super) memory: bool,
    /// A moment that matters, and a node that is in some of the sets that prevent a higher bound,
    /// but not in others.
    pub(super) undecided: Option<(usize, Node)>,
    pub(super) weights: Weights,
}

/// The unit of all figures, so that they are about one.
#[derive(Clone, Copy)]
pub(super) struct Units {
    pub(super) time: f64,
    pub(super) bytes: f64,
}

/// Moments, and their minimum distances.
pub(super) struct MomentChain {
    events: Vec<Rc<Event>>,
    /// From the start to the first one, between any two, and from the last one to the end.
    apart: Vec<f64>,
    lanes: Vec<Stretch>,
    units: Units,
}

/// Work of one machine, and the moments between which it is considered.
#[derive(Clone, Copy)]
struct Stretch {
    lane: Lane,
    /// The first moment that cannot come before the start of the work.
    first: usize,
    /// The last moment that cannot come after its end.
    last: usize,
}

/// The highest price of the whole memory limit, in steps.
const DEAREST: f64 = 100.0;
/// The relative gap to the linear program's value at which to stop.
const CLOSE: f64 = 1e-6;

impl MomentChain {
    /// `apart` has one entry more than there are events.
    pub(super) fn new(
        events: Vec<Rc<Event>>,
        apart: Vec<f64>,
        lanes: &[Lane],
        units: Units,
    ) -> MomentChain {
        let count = events.len();
        let mut chain = MomentChain { events, apart, lanes: Vec::new(), units };
        let stretch = |&lane: &Lane| {
            let is_in = |event: usize| {
                chain.until(event) >= lane.ends.head && chain.after(event) >= lane.ends.tail
            };
            let first = (0..count).find(|&event| is_in(event));
            let last = (0..count).rev().find(|&event| is_in(event));
            // A lane without moments has no first one.
            Stretch { lane, first: first.unwrap_or(count), last: last.unwrap_or(0) }
        };
        chain.lanes = lanes.iter().map(stretch).collect();
        chain
    }

    /// The minimum time from the start of the step to an event.
    fn until(&self, event: usize) -> f64 {
        self.apart[..=event].iter().sum()
    }

    /// The minimum time from an event to the end of the step.
    fn after(&self, event: usize) -> f64 {
        self.apart[event + 1..].iter().sum()
    }

    /// The best bound after this many rounds, starting from the best prices of a chain of the same
    /// moments, or from none.
    pub(super) fn prove(&self, rounds: usize, from: Option<&Weights>) -> ProvedBound {
        let mut columns = Vec::new();
        let mut master = self.master(&mut columns);
        let start = from.cloned().unwrap_or_else(|| self.plain());
        let (time, sets) = self.evaluate(&start);
        let mut best = (time, start);
        self.add_all(&mut master, sets, &mut columns);
        let (mut step, mut before) = (0.5, f64::INFINITY);
        for _ in 0..rounds {
            master.solve(1000);
            let allowed = master.value() + self.apart.iter().sum::<f64>() / self.units.time;
            if best.0 >= allowed * (1.0 - CLOSE) {
                break;
            }
            // If the linear program gives the same value again, it has converged.
            step = if allowed >= before * (1.0 - 1e-9) { 1.0 } else { step };
            before = allowed;
            let weights = best.1.towards(&self.weights(&master), step);
            let (time, sets) = self.evaluate(&weights);
            self.add_all(&mut master, sets, &mut columns);
            step = if time > best.0 { 0.5 } else { f64::min(step * 1.4, 1.0) };
            if time > best.0 {
                best = (time, weights);
            }
        }
        let mut proved = self.proof(&best.1, best.0);
        proved.undecided = self.undecided(&master, &columns, &proved);
        proved
    }

    fn add_all(&self, master: &mut Simplex, sets: Vec<BeforeMoment>, columns: &mut Vec<Column>) {
        for (event, set) in sets.into_iter().enumerate() {
            columns.push(Column { number: self.add(master, event, &set), event, set });
        }
    }

    /// Where the sets in the solution of the linear program differ most, at moments that matter.
    fn undecided(
        &self,
        master: &Simplex,
        columns: &[Column],
        proved: &ProvedBound,
    ) -> Option<(usize, Node)> {
        let mut most: Option<(f64, (usize, Node))> = None;
        for &cut in &proved.cuts {
            let of_it = columns.iter().filter(|column| column.event == cut);
            let mixture: Vec<(f64, &BeforeMoment)> = of_it
                .map(|column| (master.taken(column.number), &column.set))
                .filter(|(part, _)| *part > 0.0)
                .collect();
            let (done, begun) = self.changes(&proved.weights, cut);
            let memory = proved.weights.memory[cut] / self.units.bytes;
            let prices = MomentPrices { done: &done, begun: &begun, memory };
            if let Some((by, node)) = self.events[cut].undecided(&mixture, prices, self.units)
                && most.is_none_or(|(most, _)| by > most)
            {
                most = Some((by, (cut, node)));
            }
        }
        most.map(|(_, found)| found)
    }

    /// Only the compute stream.
    fn plain(&self) -> Weights {
        let compute = |lane: usize| if lane == 0 { 1.0 } else { 0.0 };
        let lanes: Vec<f64> = (0..self.lanes.len()).map(compute).collect();
        Weights {
            lanes: vec![lanes.clone(); self.apart.len()],
            during: vec![lanes; self.events.len()],
            memory: vec![0.0; self.events.len()],
        }
    }

    fn rows(&self) -> Rows {
        Rows { lanes: self.lanes.len(), events: self.events.len() }
    }

    fn master(&self, columns: &mut Vec<Column>) -> Simplex {
        let rows = self.rows();
        let mut limit = vec![0.0; rows.len()];
        for (number, &Stretch { lane, first, last }) in self.lanes.iter().enumerate() {
            for interval in self.intervals(number) {
                let spans =
                    self.spans(number, interval).map(|interval| self.apart[interval]).sum::<f64>();
                let begins = if interval == first { lane.ends.head } else { 0.0 };
                let ends = if interval == last + 1 { lane.ends.tail + lane.total } else { 0.0 };
                let before = interval.checked_sub(1).map_or(0.0, |event| self.held(event, number));
                limit[rows.interval(interval, number)] =
                    (spans - begins - ends + self.held(interval, number) - before)
                        / self.units.time;
            }
        }
        let mut exact = vec![false; rows.len()];
        for (number, event) in self.events.iter().enumerate() {
            for lane in 0..rows.lanes {
                limit[rows.done(number, lane)] = -self.held(number, lane) / self.units.time;
            }
            limit[rows.memory(number)] = event.room / self.units.bytes;
            limit[rows.chosen(number)] = 1.0;
            exact[rows.chosen(number)] = true;
        }
        let mut master = Simplex::new(limit, exact);
        for (number, event) in self.events.iter().enumerate() {
            for (index, set) in event.first().into_iter().enumerate() {
                let column = self.add(&mut master, number, &set);
                if index == 0 {
                    master.pivot(rows.chosen(number), column);
                }
                columns.push(Column { number: column, event: number, set });
            }
            self.add_progress(&mut master, number);
        }
        self.make_feasible(&mut master);
        master
    }

    /// The intervals that a lane's interval spans: the first one begins with the step, the last one
    /// ends with it.
    fn spans(&self, lane: usize, interval: usize) -> std::ops::RangeInclusive<usize> {
        let Stretch { first, last, .. } = self.lanes[lane];
        let from = if interval == first { 0 } else { interval };
        from..=if interval == last + 1 { self.events.len() } else { interval }
    }

    /// The intervals of a lane; none if it is not considered at any event.
    fn intervals(&self, lane: usize) -> std::ops::Range<usize> {
        let Stretch { first, last, .. } = self.lanes[lane];
        if first <= last { first..last + 2 } else { 0..0 }
    }

    fn is_in(&self, lane: usize, event: usize) -> bool {
        (self.lanes[lane].first..=self.lanes[lane].last).contains(&event)
    }

    /// How long after an event nothing can be issued to a lane, limited so that the lane's tail
    /// still fits after it.
    fn held(&self, event: usize, lane: usize) -> f64 {
        if event >= self.events.len() || !self.is_in(lane, event) {
            return 0.0;
        }
        let most = self.after(event) - self.lanes[lane].lane.ends.tail;
        self.events[event].held[lane].min(most)
    }

    /// The work that each lane has done by an event, in two columns: the work done when the event
    /// no longer blocks the lane, less what it can have done in the meantime; and the shortfall.
    /// Initially it is the work of the initial set.
    fn add_progress(&self, master: &mut Simplex, event: usize) {
        let rows = self.rows();
        for lane in (0..rows.lanes).filter(|&lane| self.is_in(lane, event)) {
            let done = rows.done(event, lane);
            let before = [(rows.interval(event, lane), 1.0), (done, -1.0)];
            let after = [(rows.interval(event + 1, lane), -1.0), (rows.begun(event, lane), 1.0)];
            let mut first = master.add(&[before, after].concat(), 0.0);
            if self.held(event, lane) > 0.0 {
                first = master.add(&before, 0.0);
            }
            master.pivot(done, first);
        }
    }

    /// Allows intervals and memory to be stretched, at a cost, and starts with all of them
    /// stretched alike until everything fits.
    fn make_feasible(&self, master: &mut Simplex) {
        let rows = self.rows();
        for interval in 0..=rows.events {
            let mut entries = Vec::new();
            for lane in 0..rows.lanes {
                let spanning =
                    self.intervals(lane).filter(|&wide| self.spans(lane, wide).contains(&interval));
                entries.extend(spanning.map(|wide| (rows.interval(wide, lane), -1.0)));
            }
            master.add(&entries, 1.0);
        }
        for number in 0..rows.events {
            master.add(&[(rows.memory(number), -1.0)], DEAREST);
        }
        let intervals = 0..rows.done(0, 0);
        let stretched = intervals.chain((0..rows.events).map(|number| rows.memory(number)));
        let entries: Vec<(usize, f64)> = stretched.map(|row| (row, -1.0)).collect();
        let all = master.add(&entries, (1.0 + DEAREST) * (rows.events + 1) as f64);
        let worst = entries.iter().map(|&(row, _)| row);
        let worst = worst.min_by(|&a, &b| master.limit_of(a).total_cmp(&master.limit_of(b)));
        if let Some(row) = worst.filter(|&row| master.limit_of(row) < 0.0) {
            master.pivot(row, all);
        }
    }

    fn add(&self, master: &mut Simplex, event: usize, set: &BeforeMoment) -> usize {
        let rows = self.rows();
        let mut entries =
            vec![(rows.chosen(event), 1.0), (rows.memory(event), set.memory / self.units.bytes)];
        for lane in (0..rows.lanes).filter(|&lane| self.is_in(lane, event)) {
            entries.push((rows.done(event, lane), set.done[lane] / self.units.time));
            entries.push((rows.begun(event, lane), -set.begun[lane] / self.units.time));
        }
        master.add(&entries, 0.0)
    }

    fn weights(&self, master: &Simplex) -> Weights {
        let rows = self.rows();
        let mut lanes = vec![vec![0.0; rows.lanes]; rows.events + 1];
        for lane in 0..rows.lanes {
            for wide in self.intervals(lane) {
                let worth = master.worth(rows.interval(wide, lane));
                self.spans(lane, wide).for_each(|interval| lanes[interval][lane] = worth);
            }
        }
        // All by the same factor, so that constraints of a lane over several intervals still hold.
        let most = lanes.iter().map(|weights| weights.iter().sum()).fold(1.0, f64::max);
        lanes.iter_mut().flatten().for_each(|weight| *weight /= most);
        let during = |event: usize| {
            let done = |lane: usize| master.worth(rows.done(event, lane)) / most;
            let left = |(lane, before): (usize, &f64)| before - done(lane);
            lanes[event].iter().enumerate().map(left).collect()
        };
        Weights {
            during: (0..rows.events).map(during).collect(),
            lanes,
            memory: (0..rows.events).map(|event| master.worth(rows.memory(event))).collect(),
        }
    }

    /// What the weights prove, and the set of each moment that prevents a higher bound.
    fn evaluate(&self, weights: &Weights) -> (f64, Vec<BeforeMoment>) {
        let mut time = 0.0;
        for (apart, lanes) in self.apart.iter().zip(&weights.lanes) {
            time += apart * (1.0 - lanes.iter().sum::<f64>()).max(0.0);
        }
        for (number, &Stretch { lane, first, last }) in self.lanes.iter().enumerate() {
            if first <= last {
                time += weights.lanes[first][number] * lane.ends.head;
                time += weights.lanes[last + 1][number] * (lane.total + lane.ends.tail);
            }
        }
        time /= self.units.time;
        let mut sets = Vec::new();
        for (number, event) in self.events.iter().enumerate() {
            let (done, begun) = self.changes(weights, number);
            let memory = weights.memory[number] / self.units.bytes;
            let (least, set) = event.cheapest(MomentPrices { done: &done, begun: &begun, memory });
            time += least - weights.memory[number] * event.room / self.units.bytes;
            let held =
                begun.iter().enumerate().map(|(lane, price)| price * self.held(number, lane));
            time += held.sum::<f64>();
            sets.push(set);
        }
        (time, sets)
    }

    /// By how much each lane's weight decreases at an event, and by how much it increases when the
    /// event no longer blocks it: where it decreases, the lane's minimum work counts; where it
    /// increases, its maximum.
    fn changes(&self, weights: &Weights, event: usize) -> (Vec<f64>, Vec<f64>) {
        let (before, after) = (&weights.lanes[event], &weights.lanes[event + 1]);
        let change = |lane: usize| {
            let (before, after) = (before[lane], after[lane]);
            let least = match self.held(event, lane) > 0.0 {
                true => weights.during[event][lane].clamp(0.0, before.min(after)),
                false => before.min(after),
            };
            ((before - least) / self.units.time, (after - least) / self.units.time)
        };
        (0..self.lanes.len()).map(change).unzip()
    }

    /// What the weights prove, in units: which events matter, and whether memory does.
    fn proof(&self, weights: &Weights, time: f64) -> ProvedBound {
        const TINY: f64 = 1e-6;
        let matters = |event: &usize| {
            let (done, begun) = self.changes(weights, *event);
            let most = done.into_iter().chain(begun).fold(0.0, f64::max) * self.units.time;
            weights.memory[*event].max(most) > TINY
        };
        ProvedBound {
            time: time * self.units.time,
            cuts: (0..self.events.len()).filter(matters).collect(),
            memory: weights.memory.iter().any(|&price| price > TINY),
            undecided: None,
            weights: weights.clone(),
        }
    }
}

impl Weights {
    /// Between these and others.
    fn towards(&self, other: &Weights, step: f64) -> Weights {
        let mix = |a: &[f64], b: &[f64]| -> Vec<f64> {
            a.iter().zip(b).map(|(a, b)| a + (b - a) * step).collect()
        };
        let mix_all = |a: &[Vec<f64>], b: &[Vec<f64>]| -> Vec<Vec<f64>> {
            a.iter().zip(b).map(|(a, b)| mix(a, b)).collect()
        };
        Weights {
            lanes: mix_all(&self.lanes, &other.lanes),
            during: mix_all(&self.during, &other.during),
            memory: mix(&self.memory, &other.memory),
        }
    }
}

/// The indices of the linear program's rows.
#[derive(Clone, Copy)]
struct Rows {
    lanes: usize,
    events: usize,
}

impl Rows {
    /// A lane's work in an interval is at most the interval's length.
    fn interval(self, interval: usize, lane: usize) -> usize {
        interval * self.lanes + lane
    }

    /// At an event, a lane has done at least what has ended.
    fn done(self, event: usize, lane: usize) -> usize {
        (self.events + 1 + event) * self.lanes + lane
    }

    /// At an event, a lane has done at most what was issued.
    fn begun(self, event: usize, lane: usize) -> usize {
        self.done(self.events + event, lane)
    }

    fn memory(self, event: usize) -> usize {
        self.begun(self.events, 0) + event
    }

    /// At an event, one set is chosen, or a convex combination.
    fn chosen(self, event: usize) -> usize {
        self.memory(self.events) + event
    }

    fn len(self) -> usize {
        self.chosen(self.events)
    }
}
