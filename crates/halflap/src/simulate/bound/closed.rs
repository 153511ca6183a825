//! The lightest closed set: of nodes that have weights and need other nodes, the set that holds all
//! that its members need and weighs least.
//!
//! A minimum cut finds it. Nodes that weigh less than nothing are sources, those that weigh more are
//! sinks, and what flows along a need charges one for the other. Flow is pushed and nodes are
//! relabelled until no more can reach a sink; what cannot reach one is the set.

use std::collections::VecDeque;

use crate::ids::Id;

/// A node of a closure problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Node(u32);

impl Id for Node {
    fn from_index(index: usize) -> Node {
        Node(index as u32)
    }
    fn index(self) -> usize {
        self.0 as usize
    }
}

/// Who needs whom: edges, grouped by the one that needs and by the one that is needed.
pub(super) struct Needs {
    starts: Vec<u32>,
    to: Vec<Node>,
    from: Vec<Node>,
    back_starts: Vec<u32>,
    /// The edges that lead to each node.
    back: Vec<u32>,
}

impl Needs {
    /// What each node needs, in the sequence of the nodes.
    pub(super) fn new(lists: &[Vec<Node>]) -> Needs {
        let mut needs =
            Needs { starts: vec![0], to: vec![], from: vec![], back_starts: vec![0; lists.len() + 1], back: vec![] };
        for (node, list) in lists.iter().enumerate() {
            needs.to.extend_from_slice(list);
            needs.from.extend(list.iter().map(|_| Node::from_index(node)));
            needs.starts.push(needs.to.len() as u32);
        }
        for &to in &needs.to {
            needs.back_starts[to.index() + 1] += 1;
        }
        for node in 0..lists.len() {
            needs.back_starts[node + 1] += needs.back_starts[node];
        }
        let mut next = needs.back_starts.clone();
        needs.back = vec![0; needs.to.len()];
        for (edge, &to) in needs.to.iter().enumerate() {
            let slot = &mut next[to.index()];
            needs.back[*slot as usize] = edge as u32;
            *slot += 1;
        }
        needs
    }

    pub(super) fn len(&self) -> usize {
        self.starts.len() - 1
    }

    pub(super) fn of(&self, node: Node) -> &[Node] {
        &self.to[self.out(node)]
    }

    /// Those that need a node.
    pub(super) fn needed_by(&self, node: Node) -> impl Iterator<Item = Node> + '_ {
        self.into(node).iter().map(|&edge| self.from[edge as usize])
    }

    #[inline(always)]
    fn out(&self, node: Node) -> std::ops::Range<usize> {
        self.starts[node.index()] as usize..self.starts[node.index() + 1] as usize
    }

    #[inline(always)]
    fn into(&self, node: Node) -> &[u32] {
        &self.back[self.back_starts[node.index()] as usize..self.back_starts[node.index() + 1] as usize]
    }
}

/// A node from which no sink can be reached.
const NEVER: u32 = u32::MAX;

/// A flow under way.
pub(super) struct Flow<'a> {
    needs: &'a Needs,
    /// What flows along each edge.
    flow: Vec<i64>,
    /// What has come to a node and not gone on.
    excess: Vec<i64>,
    /// What a node can still take.
    room: Vec<i64>,
    /// No more than how many edges away a node with room is.
    height: Vec<u32>,
    active: VecDeque<Node>,
    relabelled: usize,
}

impl<'a> Flow<'a> {
    pub(super) fn new(needs: &'a Needs, weights: &[i64]) -> Flow<'a> {
        Flow {
            needs,
            flow: vec![0; needs.to.len()],
            excess: weights.iter().map(|&weight| (-weight).max(0)).collect(),
            room: weights.iter().map(|&weight| weight.max(0)).collect(),
            height: vec![NEVER; weights.len()],
            active: VecDeque::new(),
            relabelled: 0,
        }
    }

    /// Which nodes are in the lightest closed set.
    pub(super) fn lightest(mut self) -> Vec<bool> {
        self.measure();
        let sources = (0..self.needs.len()).map(Node::from_index);
        self.active.extend(sources.filter(|node| self.excess[node.index()] > 0));
        while let Some(node) = self.active.pop_front() {
            self.discharge(node);
            if self.relabelled > self.needs.len() {
                self.measure();
                self.relabelled = 0;
            }
        }
        self.measure();
        self.height.iter().map(|&height| height == NEVER).collect()
    }

    /// Finds how far every node is from one with room.
    fn measure(&mut self) {
        self.height.fill(NEVER);
        let mut near: VecDeque<Node> = VecDeque::new();
        for node in (0..self.needs.len()).map(Node::from_index) {
            if self.room[node.index()] > 0 {
                self.height[node.index()] = 1;
                near.push_back(node);
            }
        }
        while let Some(node) = near.pop_front() {
            let next = self.height[node.index()] + 1;
            for &edge in self.needs.into(node) {
                let from = self.needs.from[edge as usize];
                if self.height[from.index()] == NEVER {
                    self.height[from.index()] = next;
                    near.push_back(from);
                }
            }
            for edge in self.needs.out(node) {
                let to = self.needs.to[edge];
                if self.flow[edge] > 0 && self.height[to.index()] == NEVER {
                    self.height[to.index()] = next;
                    near.push_back(to);
                }
            }
        }
    }

    /// Sends on what has come to a node, as long as it can reach a sink.
    fn discharge(&mut self, node: Node) {
        let at = node.index();
        loop {
            let taken = self.excess[at].min(self.room[at]);
            self.room[at] -= taken;
            self.excess[at] -= taken;
            if self.excess[at] == 0 || self.height[at] == NEVER {
                return;
            }
            let mut lowest = NEVER;
            for edge in self.needs.out(node) {
                let to = self.needs.to[edge];
                let below = self.height[to.index()];
                if below < self.height[at] {
                    let sent = self.excess[at];
                    self.flow[edge] += sent;
                    return self.hand(node, to, sent);
                }
                lowest = lowest.min(below);
            }
            for index in 0..self.needs.into(node).len() {
                let edge = self.needs.into(node)[index] as usize;
                if self.flow[edge] == 0 {
                    continue;
                }
                let to = self.needs.from[edge];
                let below = self.height[to.index()];
                if below < self.height[at] {
                    let sent = self.excess[at].min(self.flow[edge]);
                    self.flow[edge] -= sent;
                    self.hand(node, to, sent);
                    if self.excess[at] == 0 {
                        return;
                    }
                }
                lowest = lowest.min(below);
            }
            let longest = self.needs.len() as u32 + 1;
            self.height[at] = if lowest < longest { lowest.max(self.height[at]) + 1 } else { NEVER };
            self.relabelled += 1;
        }
    }

    fn hand(&mut self, from: Node, to: Node, sent: i64) {
        self.excess[from.index()] -= sent;
        if self.excess[to.index()] == 0 {
            self.active.push_back(to);
        }
        self.excess[to.index()] += sent;
    }
}
