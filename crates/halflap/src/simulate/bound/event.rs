//! One moment of a step: the start of an operation, and the sets that can have come before it.

use super::chain::Units;
use super::closed::{Flow, Needs, Node};
use super::network::{Network, Work, came_before};
use crate::ids::{Id, OpId};

/// Figures of a set that can have come before the moment.
#[derive(Clone, Debug, Default)]
pub(super) struct BeforeMoment {
    /// The minimum work of each machine.
    pub(super) done: Vec<f64>,
    /// The maximum work of each machine.
    pub(super) begun: Vec<f64>,
    /// What is alive.
    pub(super) memory: f64,
    /// Its members among the nodes that may have come before.
    taken: Vec<bool>,
}

impl BeforeMoment {
    fn add(&mut self, work: Work, memory: f64) {
        self.memory += memory;
        for lane in lanes(work, self.done.len()) {
            self.done[lane] += if work.is_done { work.time } else { 0.0 };
            self.begun[lane] += if work.is_begun { work.time } else { 0.0 };
        }
    }
}

/// The lanes that work belongs to: its machine's, and that of the machine's core if it is part of
/// it.
fn lanes(work: Work, count: usize) -> impl Iterator<Item = usize> {
    [Some(work.machine), work.is_core.then_some(work.machine + count / 2)].into_iter().flatten()
}

/// The prices of a set's figures.
#[derive(Clone, Copy)]
pub(super) struct MomentPrices<'a> {
    /// For each machine, the price of work that was done before the moment: it lengthens the step.
    pub(super) done: &'a [f64],
    /// The price of work that can have been done before: it shortens what is left.
    pub(super) begun: &'a [f64],
    pub(super) memory: f64,
}

impl MomentPrices<'_> {
    fn of(&self, work: Work, memory: f64) -> f64 {
        let mut price = 0.0;
        for lane in lanes(work, self.done.len()) {
            price += if work.is_done { self.done[lane] } else { 0.0 };
            price -= if work.is_begun { self.begun[lane] } else { 0.0 };
        }
        work.time * price + memory * self.memory
    }
}

/// Fractions of a step below which a decision does not matter.
const UNDECIDED: f64 = 1e-9;
/// The weight of a node's size relative to its price.
const LITTLE: f64 = 1e-3;

/// The start of an operation on the compute stream.
pub(super) struct Event {
    pub(super) op: OpId,
    /// The most that can be alive before the operation allocates its outputs.
    pub(super) room: f64,
    /// How long after its start nothing can be issued to each lane.
    pub(super) held: Vec<f64>,
    /// Nodes that must have come before.
    base: BeforeMoment,
    /// Nodes that may have come before, and their requirements.
    needs: Needs,
    /// Its nodes' numbers in the program, ascending.
    nodes: Vec<Node>,
    work: Vec<Work>,
    memory: Vec<f64>,
    /// Which of them come before in the input order.
    input: Vec<bool>,
}

#[derive(Clone, Copy, PartialEq)]
enum Relation {
    May,
    Before,
    Behind,
}

impl Event {
    pub(super) fn new(network: &Network, op: OpId, limit: f64) -> Event {
        Event::of_sides(network, op, limit, &sides(&network.needs, came_before(op)))
    }

    /// The same if another operation has not come before; `None` if it must have.
    pub(super) fn without(network: &Network, op: OpId, other: OpId, limit: f64) -> Option<Event> {
        let (needs, other) = (&network.needs, came_before(other));
        let mut side = sides(needs, came_before(op));
        if side[other.index()] == Relation::Before {
            return None;
        }
        if side[other.index()] == Relation::May {
            mark(&mut side, Relation::Behind, other, |node| needs.needed_by(node));
        }
        Some(Event::of_sides(network, op, limit, &side))
    }

    /// The least that can be alive.
    pub(super) fn least_memory(&self) -> f64 {
        let weights: Vec<i64> = self.memory.iter().map(|&memory| memory as i64).collect();
        let taken = Flow::new(&self.needs, &weights).lightest();
        let least: i64 =
            weights.iter().zip(&taken).filter(|(_, taken)| **taken).map(|(weight, _)| weight).sum();
        self.base.memory + least as f64
    }

    fn of_sides(network: &Network, op: OpId, limit: f64, side: &[Relation]) -> Event {
        let nothing = vec![0.0; network.lanes.len()];
        let all = Event {
            op,
            room: limit - network.alloc[op],
            held: network.held(op),
            base: BeforeMoment {
                done: nothing.clone(),
                begun: nothing,
                memory: network.baseline,
                taken: Vec::new(),
            },
            needs: Needs::new(&[]),
            nodes: Vec::new(),
            work: Vec::new(),
            memory: Vec::new(),
            input: Vec::new(),
        };
        let nodes: Vec<Node> = (0..side.len()).map(Node::from_index).collect();
        let Network { needs, work, memory, .. } = network;
        let input = &network.input_before(op);
        all.narrowed(&Choice { needs, nodes: &nodes, work, memory, input }, side)
    }

    /// The same if a node has, or has not, come before, where that is undecided.
    pub(super) fn decided(&self, node: Node, is_before: bool) -> Option<Event> {
        let open = Node::from_index(self.nodes.binary_search(&node).ok()?);
        let mut side = vec![Relation::May; self.nodes.len()];
        match is_before {
            true => {
                mark(&mut side, Relation::Before, open, |node| self.needs.of(node).iter().copied());
            }
            false => mark(&mut side, Relation::Behind, open, |node| self.needs.needed_by(node)),
        }
        let Event { needs, nodes, work, memory, input, .. } = self;
        Some(self.narrowed(&Choice { needs, nodes, work, memory, input }, &side))
    }

    /// The remainder of a choice.
    fn narrowed(&self, whole: &Choice<'_>, side: &[Relation]) -> Event {
        let mut base = self.base.clone();
        let mut number = vec![None; side.len()];
        let (mut work, mut memory, mut early) = (Vec::new(), Vec::new(), Vec::new());
        for (index, &side) in side.iter().enumerate() {
            match side {
                Relation::Before => base.add(whole.work[index], whole.memory[index]),
                Relation::Behind => {}
                Relation::May => {
                    number[index] = Some(Node::from_index(work.len()));
                    work.push(whole.work[index]);
                    memory.push(whole.memory[index]);
                    early.push(whole.input[index]);
                }
            }
        }
        let left = || (0..side.len()).filter(|&index| side[index] == Relation::May);
        let of = |node: Node| {
            whole.needs.of(node).iter().filter_map(|need| number[need.index()]).collect()
        };
        let needs: Vec<Vec<Node>> = left().map(Node::from_index).map(of).collect();
        Event {
            op: self.op,
            room: self.room,
            held: self.held.clone(),
            base,
            needs: Needs::new(&needs),
            nodes: left().map(|index| whole.nodes[index]).collect(),
            work,
            memory,
            input: early,
        }
    }

    /// The cheapest set at these prices.
    pub(super) fn cheapest(&self, prices: MomentPrices<'_>) -> (f64, BeforeMoment) {
        let worth: Vec<f64> = self
            .work
            .iter()
            .zip(&self.memory)
            .map(|(work, memory)| prices.of(*work, *memory))
            .collect();
        let Some(steps) = steps(&worth) else { return (f64::NEG_INFINITY, self.base.clone()) };
        // Rounded down: the minimum must not be overestimated.
        let weights: Vec<i64> = worth.iter().map(|worth| (worth * steps).floor() as i64).collect();
        let taken = Flow::new(&self.needs, &weights).lightest();
        let least: i64 =
            weights.iter().zip(&taken).filter(|(_, taken)| **taken).map(|(weight, _)| weight).sum();
        (self.worth(&self.base, prices) + least as f64 / steps, self.of(&taken))
    }

    fn worth(&self, before: &BeforeMoment, prices: MomentPrices<'_>) -> f64 {
        let sum = |figures: &[f64], prices: &[f64]| {
            figures.iter().zip(prices).map(|(a, b)| a * b).sum::<f64>()
        };
        sum(&before.done, prices.done) - sum(&before.begun, prices.begun)
            + before.memory * prices.memory
    }

    /// Initial sets: what comes before in the input order; what must have come before, alone and
    /// with everything that may have.
    pub(super) fn first(&self) -> [BeforeMoment; 3] {
        let len = self.work.len();
        [&self.input, &vec![false; len], &vec![true; len]].map(|taken| self.of(taken))
    }

    fn of(&self, taken: &[bool]) -> BeforeMoment {
        let mut figures = self.base.clone();
        for index in (0..taken.len()).filter(|&index| taken[index]) {
            figures.add(self.work[index], self.memory[index]);
        }
        figures.taken = taken.to_vec();
        figures
    }

    /// The node that a convex combination of sets is most undecided about, and by how much: its
    /// share in the combination or its complement, whichever is less, times its price.
    pub(super) fn undecided(
        &self,
        mixture: &[(f64, &BeforeMoment)],
        prices: MomentPrices<'_>,
        units: Units,
    ) -> Option<(f64, Node)> {
        let mut share = vec![0.0; self.nodes.len()];
        for (part, set) in mixture {
            for (share, _) in share.iter_mut().zip(&set.taken).filter(|(_, taken)| **taken) {
                *share += part;
            }
        }
        let worth = |index: usize| {
            let size = self.work[index].time / units.time + self.memory[index].abs() / units.bytes;
            prices.of(self.work[index], self.memory[index]).abs() + size * LITTLE
        };
        let mut most: Option<(f64, Node)> = None;
        for (index, share) in share.into_iter().enumerate() {
            let by = share.min(1.0 - share) * worth(index);
            if by > most.map_or(UNDECIDED, |(most, _)| most) {
                most = Some((by, self.nodes[index]));
            }
        }
        most
    }
}

/// The number of integer steps in a unit of price, so that sums cannot overflow. `None` if a price
/// is extreme, which happens if no order keeps the memory limit.
fn steps(worth: &[f64]) -> Option<f64> {
    const FINEST: f64 = (1u64 << 50) as f64;
    const MOST: f64 = (1u64 << 60) as f64;
    let total: f64 = worth.iter().map(|worth| worth.abs()).sum();
    if !total.is_finite() {
        return None;
    }
    let mut steps = FINEST;
    // Scaling by a power of two is exact.
    while total * steps > MOST {
        steps *= 0.5;
    }
    Some(steps)
}

/// Nodes to choose from.
struct Choice<'a> {
    needs: &'a Needs,
    nodes: &'a [Node],
    work: &'a [Work],
    memory: &'a [f64],
    input: &'a [bool],
}

/// The side of an operation's start on which each node must be.
fn sides(needs: &Needs, start: Node) -> Vec<Relation> {
    let mut side = vec![Relation::May; needs.len()];
    mark(&mut side, Relation::Behind, start, |node| needs.needed_by(node));
    mark(&mut side, Relation::Before, start, |node| needs.of(node).iter().copied());
    side[start.index()] = Relation::Behind;
    side
}

/// Puts a node, and everything that can be reached from it, on a side.
fn mark<I: Iterator<Item = Node>>(
    side: &mut [Relation],
    to: Relation,
    node: Node,
    next: impl Fn(Node) -> I,
) {
    side[node.index()] = to;
    let mut left = vec![node];
    while let Some(node) = left.pop() {
        for other in next(node) {
            if side[other.index()] == Relation::May {
                side[other.index()] = to;
                left.push(other);
            }
        }
    }
}
