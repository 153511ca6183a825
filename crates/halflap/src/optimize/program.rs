//! The program in the form that the board needs: plain numbers, close together.

use crate::graph::{Edges, Graph, OpKind};
use crate::ids::{BufId, Csr, Id, OpId};
use crate::simulate::Machine;

/// What never changes while orders are tried.
pub(crate) struct Program {
    pub(super) len: usize,
    pub(super) streams: usize,
    pub(super) ops: Vec<OpRow>,
    /// The asynchronous collectives.
    pub(super) asynchronous: Vec<u32>,
    pub(super) alloc: Vec<i64>,
    /// Bytes of its own unused outputs.
    pub(super) free_self: Vec<i64>,
    pub(super) preds: Lists<OpId>,
    pub(super) succs: Lists<OpId>,
    /// What rows refer to.
    links: Vec<u32>,
    /// The buffers with a size that an operation keeps alive and that will be freed.
    pub(super) uses: Lists<OpId>,
    pub(super) users: Lists<BufId>,
    pub(super) size_free: Vec<i64>,
    /// What is alive before the first operation.
    pub(super) baseline: i64,
}

/// What running an operation needs, in one place: moves are tried so often that a cache line for
/// each number would dominate the cost.
pub(super) struct OpRow {
    pub(super) time: f64,
    /// The asynchronous collectives that it needs: all that can keep it waiting.
    gated_by: LinkRange,
    /// Who needs it, if it is an asynchronous collective.
    gates: LinkRange,
    /// The communication stream of a collective; 0 for everything else.
    pub(super) stream: u32,
    pub(super) kind: OpKind,
}

/// A part of a program's links.
#[derive(Clone, Copy)]
struct LinkRange {
    start: u32,
    end: u32,
}

/// A [`Csr`] as the board reads it: by plain numbers.
pub(super) struct Lists<I>(Csr<I, u32>);

impl<I: Id> Lists<I> {
    fn new<T: Id, L: IntoIterator<Item = T>>(lists: impl Iterator<Item = L>) -> Lists<I> {
        let plain = |list: L| list.into_iter().map(|id| id.index() as u32);
        Lists(Csr::from_lists(lists.map(plain)))
    }

    #[inline(always)]
    pub(super) fn of(&self, index: usize) -> &[u32] {
        self.0.of(I::from_index(index))
    }
}

impl LinkRange {
    fn add<'a>(links: &mut Vec<u32>, ops: impl Iterator<Item = &'a OpId>) -> LinkRange {
        let start = links.len() as u32;
        links.extend(ops.map(|op| op.index() as u32));
        LinkRange { start, end: links.len() as u32 }
    }
}

impl Program {
    /// `edges` are those that orders must keep.
    pub(crate) fn new(graph: &Graph, machine: &Machine, edges: Edges) -> Program {
        let is_async = |op: &OpId| graph.kind(*op) == OpKind::AsyncCollective;
        let has_size = |buffer: &BufId| graph.size_free(*buffer).0 > 0;
        let unused = |buffer: &BufId| !graph.is_output(*buffer) && graph.users(*buffer).is_empty();
        let outputs = |op: OpId| graph.outputs(op).iter().copied();
        let gates = |op: OpId| if is_async(&op) { graph.gates(op) } else { &[] };
        let mut links = Vec::new();
        let row = |op: OpId| OpRow {
            time: machine.times.of(op).0,
            gated_by: LinkRange::add(
                &mut links,
                graph.gated_by(op).iter().filter(|collective| is_async(collective)),
            ),
            gates: LinkRange::add(&mut links, gates(op).iter()),
            stream: machine.streams.of(op).map_or(0, |stream| stream.index() as u32),
            kind: graph.kind(op),
        };
        let inputs = graph.buffers().filter(|&buffer| graph.maker(buffer).is_none());
        Program {
            len: graph.len(),
            streams: machine.streams.len().max(1),
            ops: graph.ops().map(row).collect(),
            asynchronous: graph.ops().filter(is_async).map(|op| op.index() as u32).collect(),
            alloc: graph
                .ops()
                .map(|op| outputs(op).map(|buffer| graph.size_alloc(buffer).0).sum())
                .collect(),
            free_self: graph
                .ops()
                .map(|op| outputs(op).filter(unused).map(|buffer| graph.size_free(buffer).0).sum())
                .collect(),
            preds: Lists::new(graph.ops().map(|op| graph.preds(op, edges).iter().copied())),
            succs: Lists::new(graph.ops().map(|op| graph.succs(op, edges).iter().copied())),
            links,
            uses: Lists::new(graph.ops().map(|op| graph.uses(op).iter().copied().filter(has_size))),
            users: Lists::new(graph.buffers().map(|buffer| graph.users(buffer).iter().copied())),
            size_free: graph
                .buffers()
                .map(|buffer| if graph.is_output(buffer) { 0 } else { graph.size_free(buffer).0 })
                .collect(),
            baseline: inputs.map(|buffer| graph.size_alloc(buffer).0).sum(),
        }
    }

    /// The asynchronous collectives that an operation needs.
    #[inline(always)]
    pub(super) fn gated_by(&self, row: &OpRow) -> &[u32] {
        &self.links[row.gated_by.start as usize..row.gated_by.end as usize]
    }

    /// Who needs an asynchronous collective.
    #[inline(always)]
    pub(super) fn gates(&self, row: &OpRow) -> &[u32] {
        &self.links[row.gates.start as usize..row.gates.end as usize]
    }
}
