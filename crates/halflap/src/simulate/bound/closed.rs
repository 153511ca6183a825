//! The lightest closed set: given nodes with weights and requirements, the set of least weight that
//! contains everything its members need.
//!
//! A minimum cut finds it. Nodes of negative weight are sources, those of positive weight sinks,
//! and requirements carry the flow between them. Push-relabel runs until no more flow can reach a
//! sink; the nodes that cannot reach one are the set.

use std::collections::VecDeque;

use crate::ids;
use crate::ids::{Csr, Id, IdVec};

ids! {
    /// A node of a closure problem.
    Node
    /// A need: an edge from the node that needs to the one that is needed.
    Edge
}

/// Who needs whom: edges, grouped by the one that needs and by the one that is needed.
pub(super) struct Needs {
    /// What each node needs; the edges are numbered along these lists.
    to: Csr<Node, Node>,
    from: IdVec<Edge, Node>,
    /// The edges that lead to each node.
    back: Csr<Node, Edge>,
}

impl Needs {
    /// What each node needs, in node order.
    pub(super) fn new(lists: &[Vec<Node>]) -> Needs {
        let to: Csr<Node, Node> = Csr::from_lists(lists.iter().map(|list| list.iter().copied()));
        let edges = to.pairs().enumerate().map(|(edge, (_, to))| (to, Edge::from_index(edge)));
        let back = Csr::from_pairs(lists.len(), edges);
        Needs { from: to.pairs().map(|(from, _)| from).collect(), back, to }
    }

    pub(super) fn len(&self) -> usize {
        self.to.len()
    }

    pub(super) fn of(&self, node: Node) -> &[Node] {
        self.to.of(node)
    }

    /// Those that need a node.
    pub(super) fn needed_by(&self, node: Node) -> impl Iterator<Item = Node> + '_ {
        self.back.of(node).iter().map(|&edge| self.from[edge])
    }

    fn nodes(&self) -> impl Iterator<Item = Node> + use<> {
        (0..self.len()).map(Node::from_index)
    }

    /// The edges to what a node needs.
    #[inline(always)]
    fn out(&self, node: Node) -> impl Iterator<Item = (Edge, Node)> + '_ {
        self.to.range(node).map(Edge::from_index).zip(self.to.of(node).iter().copied())
    }
}

/// A node from which no sink can be reached.
const NEVER: u32 = u32::MAX;

/// A flow under way.
pub(super) struct Flow<'a> {
    needs: &'a Needs,
    /// The flow along each edge.
    flow: IdVec<Edge, i64>,
    /// The excess of each node.
    excess: IdVec<Node, i64>,
    /// The remaining capacity of each node.
    room: IdVec<Node, i64>,
    /// A lower limit on the distance to a node with capacity, in edges.
    height: IdVec<Node, u32>,
    active: VecDeque<Node>,
    relabelled: usize,
}

impl<'a> Flow<'a> {
    pub(super) fn new(needs: &'a Needs, weights: &[i64]) -> Flow<'a> {
        Flow {
            needs,
            flow: IdVec::filled(0, needs.from.len()),
            excess: weights.iter().map(|&weight| (-weight).max(0)).collect(),
            room: weights.iter().map(|&weight| weight.max(0)).collect(),
            height: IdVec::filled(NEVER, weights.len()),
            active: VecDeque::new(),
            relabelled: 0,
        }
    }

    /// Which nodes are in the lightest closed set.
    pub(super) fn lightest(mut self) -> Vec<bool> {
        self.measure();
        let sources = self.needs.nodes().filter(|&node| self.excess[node] > 0);
        self.active.extend(sources);
        while let Some(node) = self.active.pop_front() {
            self.discharge(node);
            if self.relabelled > self.needs.len() {
                self.measure();
                self.relabelled = 0;
            }
        }
        self.measure();
        self.height.as_slice().iter().map(|&height| height == NEVER).collect()
    }

    /// Computes the distance of every node to one with capacity.
    fn measure(&mut self) {
        self.height.as_mut_slice().fill(NEVER);
        let mut near: VecDeque<Node> = VecDeque::new();
        for node in self.needs.nodes() {
            if self.room[node] > 0 {
                self.height[node] = 1;
                near.push_back(node);
            }
        }
        while let Some(node) = near.pop_front() {
            let next = self.height[node] + 1;
            for from in self.needs.needed_by(node) {
                if self.height[from] == NEVER {
                    self.height[from] = next;
                    near.push_back(from);
                }
            }
            for (edge, to) in self.needs.out(node) {
                if self.flow[edge] > 0 && self.height[to] == NEVER {
                    self.height[to] = next;
                    near.push_back(to);
                }
            }
        }
    }

    /// Pushes the excess of a node while a sink can be reached.
    fn discharge(&mut self, node: Node) {
        loop {
            let taken = self.excess[node].min(self.room[node]);
            self.room[node] -= taken;
            self.excess[node] -= taken;
            if self.excess[node] == 0 || self.height[node] == NEVER {
                return;
            }
            let mut lowest = NEVER;
            for (edge, to) in self.needs.out(node) {
                let below = self.height[to];
                if below < self.height[node] {
                    let sent = self.excess[node];
                    self.flow[edge] += sent;
                    return self.hand(node, to, sent);
                }
                lowest = lowest.min(below);
            }
            for &edge in self.needs.back.of(node) {
                if self.flow[edge] == 0 {
                    continue;
                }
                let to = self.needs.from[edge];
                let below = self.height[to];
                if below < self.height[node] {
                    let sent = self.excess[node].min(self.flow[edge]);
                    self.flow[edge] -= sent;
                    self.hand(node, to, sent);
                    if self.excess[node] == 0 {
                        return;
                    }
                }
                lowest = lowest.min(below);
            }
            let longest = self.needs.len() as u32 + 1;
            self.height[node] =
                if lowest < longest { lowest.max(self.height[node]) + 1 } else { NEVER };
            self.relabelled += 1;
        }
    }

    fn hand(&mut self, from: Node, to: Node, sent: i64) {
        self.excess[from] -= sent;
        if self.excess[to] == 0 {
            self.active.push_back(to);
        }
        self.excess[to] += sent;
    }
}
