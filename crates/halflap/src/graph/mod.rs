//! The program: operations, buffers and what binds them; built once, validated once.
//!
//! A struct of arrays. Operations are numbered in input order, which is a topological order of all
//! edges. A graph knows only the input order, and no pass changes it; to change one, take it apart
//! ([`Graph::into_parts`]) and build a new one, which is validated like the first.

mod build;
mod chain;
mod error;
mod gates;
mod streams;
mod waits;

pub use build::{BufferParts, GroupKind, GroupParts, OpParts, Parts, Provenance};
pub use chain::Chain;
pub use error::GraphError;
pub use streams::{Assignment, Streams};
pub use waits::Warning;

use std::fmt;

use crate::collective::{CollectiveKind, Payload, Reduction};
use crate::ids::{BufId, Csr, GroupId, Id, IdVec, OpId};
use crate::units::{Bytes, Flops, Nanos};

/// What an operation is, as far as scheduling is concerned. Classified once, at import.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpKind {
    /// Runs on the compute stream.
    Compute,
    /// Stops the compute stream until a collective has ended.
    Wait,
    /// Starts on a communication stream; compute continues.
    AsyncCollective,
    /// Occupies the compute stream and a communication stream.
    SyncCollective,
    /// Extracts one result of an operation with several. It takes no time and waits for nothing:
    /// its readers wait for that operation.
    MultiOutput,
}

impl OpKind {
    /// In words.
    pub fn name(self) -> &'static str {
        match self {
            OpKind::Compute => "compute",
            OpKind::Wait => "wait",
            OpKind::AsyncCollective => "asynchronous collective",
            OpKind::SyncCollective => "synchronous collective",
            OpKind::MultiOutput => "multi-output",
        }
    }

    /// Whether it communicates.
    #[inline]
    pub fn is_collective(self) -> bool {
        matches!(self, OpKind::AsyncCollective | OpKind::SyncCollective)
    }
}

/// Why an operation needs a buffer; at least one of the four.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DepKinds {
    /// It reads the buffer.
    pub data: bool,
    /// It must run after the buffer's producer has finished (a write after the old content was
    /// read).
    pub weak: bool,
    /// It must come after the launch of the buffer's producer; an asynchronous collective may still
    /// run.
    pub issued: bool,
    /// It must run after the buffer's producer, only to keep the order of collectives.
    pub order: bool,
}

impl fmt::Display for DepKinds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = [
            ("data", self.data),
            ("weak", self.weak),
            ("issued", self.issued),
            ("order", self.order),
        ];
        let held: Vec<&str> =
            words.iter().filter(|(_, holds)| *holds).map(|(word, _)| *word).collect();
        f.write_str(&held.join(", "))
    }
}

impl DepKinds {
    /// Whether the edge binds every pass: not if it only keeps the order of collectives.
    pub fn is_real(self) -> bool {
        self.data || self.weak || self.issued
    }

    /// Whether the producer must have finished.
    pub fn is_awaited(self) -> bool {
        self.data || self.weak
    }

    /// For all of these reasons.
    pub fn and(self, other: DepKinds) -> DepKinds {
        DepKinds {
            data: self.data || other.data,
            weak: self.weak || other.weak,
            issued: self.issued || other.issued,
            order: self.order || other.order,
        }
    }
}

/// Which edges count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Edges {
    /// Data and weak ones: their producers must have finished.
    Awaited,
    /// Including issued ones: edges that no order may break.
    Real,
    /// Also those that only keep the order of collectives.
    All,
}

/// What a collective does, and its group.
#[derive(Clone, Debug, PartialEq)]
pub struct Collective {
    /// Its name in the program, for display: `all_gather_into_tensor`.
    pub op: String,
    /// What it does.
    pub kind: CollectiveKind,
    /// Its reduction; `None` if it reduces and the program does not say how.
    pub reduction: Option<Reduction>,
    /// Its process group.
    pub group: GroupId,
    /// How many ranks the group has.
    pub group_size: u32,
    /// Its data.
    pub payload: Payload,
    /// A name for the values that it sends, where known: collectives of a program with the same
    /// one send the same values.
    pub content: Option<String>,
}

impl Collective {
    /// A collective of which a program gives only the name and the larger of input and output.
    pub fn named(op: String, group: GroupId, group_size: u32, larger: Bytes) -> Collective {
        let kind = CollectiveKind::of(&op);
        let reduction = (!kind.reduces()).then_some(Reduction::None);
        let payload = Payload::of_larger(kind, group_size, larger);
        Collective { op, kind, reduction, group, group_size, payload, content: None }
    }

    /// The larger of what goes in and what comes out.
    pub fn bytes(&self) -> Bytes {
        self.payload.larger()
    }
}

/// A validated program of one rank.
///
/// ```
/// use halflap::graph::{Edges, Graph, OpKind};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let bytes = std::fs::read("../../tests/corpus/ddp_mlp_4.graph.json.gz")?;
/// let graph: Graph = halflap::import::read_graph(&bytes)?;
/// for op in graph.ops().filter(|&op| graph.kind(op) == OpKind::AsyncCollective) {
///     let waits = graph.waited_by(op).iter().map(|&wait| graph.name(wait));
///     println!("{} is awaited by {:?}", graph.name(op), waits.collect::<Vec<_>>());
///     assert!(graph.preds(op, Edges::Real).iter().all(|&before| before < op));
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Graph {
    parts: Parts,
    kind: IdVec<OpId, OpKind>,
    runtime: IdVec<OpId, Nanos>,
    by_name: Vec<OpId>,
    awaited: Adjacency,
    real: Adjacency,
    all: Adjacency,
    uses: Csr<OpId, BufId>,
    users: Csr<BufId, OpId>,
    waits_for: Csr<OpId, OpId>,
    waited_by: Csr<OpId, OpId>,
    gated_by: Csr<OpId, OpId>,
    gates: Csr<OpId, OpId>,
}

/// A graph follows from its parts.
impl PartialEq for Graph {
    fn eq(&self, other: &Graph) -> bool {
        self.parts == other.parts
    }
}

/// Edges of one kind between operations, without duplicates, ascending.
#[derive(Clone, Debug)]
struct Adjacency {
    preds: Csr<OpId, OpId>,
    succs: Csr<OpId, OpId>,
}

impl Graph {
    /// How many operations there are.
    #[inline]
    pub fn len(&self) -> usize {
        self.kind.len()
    }

    /// Whether the program is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All operations in input order.
    pub fn ops(&self) -> impl DoubleEndedIterator<Item = OpId> + ExactSizeIterator + use<> {
        (0..self.len()).map(OpId::from_index)
    }

    /// All buffers: those that operations make, then the freeable inputs.
    pub fn buffers(&self) -> impl DoubleEndedIterator<Item = BufId> + ExactSizeIterator + use<> {
        (0..self.parts.buffers.len()).map(BufId::from_index)
    }

    /// An operation's name.
    pub fn name(&self, op: OpId) -> &str {
        &self.parts.ops[op].name
    }

    /// The operation of that name.
    pub fn find(&self, name: &str) -> Option<OpId> {
        let found = self.by_name.binary_search_by(|&op| self.name(op).cmp(name));
        found.ok().map(|index| self.by_name[index])
    }

    /// What an operation is.
    #[inline]
    pub fn kind(&self, op: OpId) -> OpKind {
        self.kind[op]
    }

    /// An operation's estimated run time; zero where it has none.
    #[inline]
    pub fn runtime(&self, op: OpId) -> Nanos {
        self.runtime[op]
    }

    /// Whether an operation's run time is given, or is zero because none is known.
    pub fn has_runtime(&self, op: OpId) -> bool {
        self.parts.ops[op].runtime.is_some()
    }

    /// An operation's work, where known.
    pub fn flops(&self, op: OpId) -> Option<Flops> {
        self.parts.ops[op].flops
    }

    /// What an operation reads from memory and writes to it, where known. What a collective sends
    /// is elsewhere: [`Collective::bytes`].
    pub fn bytes(&self, op: OpId) -> Option<Bytes> {
        self.parts.ops[op].bytes
    }

    /// Whether it is a matrix multiplication or an attention kernel.
    #[inline]
    pub fn is_gemm_like(&self, op: OpId) -> bool {
        self.parts.ops[op].gemm_like
    }

    /// What was fused into an operation, for people.
    pub fn fused(&self, op: OpId) -> &[String] {
        &self.parts.ops[op].fused
    }

    /// The kernel that an operation runs as, as profilers call it, where known.
    pub fn kernel(&self, op: OpId) -> Option<&str> {
        self.parts.ops[op].kernel.as_deref()
    }

    /// Where an operation comes from in the user's program; empty where it is not known.
    pub fn source(&self, op: OpId) -> &str {
        &self.provenance(op).source
    }

    /// All that is known of where an operation comes from.
    pub fn provenance(&self, op: OpId) -> &Provenance {
        &self.parts.ops[op].provenance
    }

    /// What a collective does; `None` for every other operation.
    pub fn collective(&self, op: OpId) -> Option<&Collective> {
        self.parts.ops[op].collective.as_ref()
    }

    /// The process groups.
    pub fn groups(&self) -> &IdVec<GroupId, GroupParts> {
        &self.parts.groups
    }

    /// The buffers that an operation makes.
    pub fn outputs(&self, op: OpId) -> &[BufId] {
        &self.parts.ops[op].outputs
    }

    /// The buffers that an operation needs, and why; each buffer once.
    pub fn deps(&self, op: OpId) -> &[(BufId, DepKinds)] {
        &self.parts.ops[op].deps
    }

    /// The operations that must run before `op`.
    #[inline]
    pub fn preds(&self, op: OpId, edges: Edges) -> &[OpId] {
        self.adjacency(edges).preds.of(op)
    }

    /// The operations that must run after `op`.
    #[inline]
    pub fn succs(&self, op: OpId, edges: Edges) -> &[OpId] {
        self.adjacency(edges).succs.of(op)
    }

    /// A buffer's name.
    pub fn buffer_name(&self, buffer: BufId) -> &str {
        &self.parts.buffers[buffer].name
    }

    /// The producer of a buffer; `None` for a freeable input, which is alive from the start.
    pub fn maker(&self, buffer: BufId) -> Option<OpId> {
        self.parts.buffers[buffer].maker
    }

    /// The bytes allocated for a buffer.
    pub fn size_alloc(&self, buffer: BufId) -> Bytes {
        self.parts.buffers[buffer].size_alloc
    }

    /// The bytes that go when its last user has run.
    #[inline]
    pub fn size_free(&self, buffer: BufId) -> Bytes {
        self.parts.buffers[buffer].size_free
    }

    /// Whether a buffer is a result of the program, and so is never freed.
    pub fn is_output(&self, buffer: BufId) -> bool {
        self.parts.buffers[buffer].output
    }

    /// The buffer that one is a part of, if it is one.
    pub fn view_of(&self, buffer: BufId) -> Option<BufId> {
        self.parts.buffers[buffer].view_of
    }

    /// The operations that keep a buffer alive, ascending; those of its parts among them.
    #[inline]
    pub fn users(&self, buffer: BufId) -> &[OpId] {
        self.users.of(buffer)
    }

    /// The buffers that an operation keeps alive and that will be freed, ascending.
    #[inline]
    pub fn uses(&self, op: OpId) -> &[BufId] {
        self.uses.of(op)
    }

    /// The asynchronous collectives that a wait ends; none for every other operation.
    #[inline]
    pub fn waits_for(&self, wait: OpId) -> &[OpId] {
        self.waits_for.of(wait)
    }

    /// The waits of an asynchronous collective, ascending.
    #[inline]
    pub fn waited_by(&self, collective: OpId) -> &[OpId] {
        self.waited_by.of(collective)
    }

    /// The collectives that must have finished before an operation runs, because it needs their
    /// results, handed out or not, ascending: all that can keep it waiting. None for a
    /// multi-output.
    #[inline]
    pub fn gated_by(&self, op: OpId) -> &[OpId] {
        self.gated_by.of(op)
    }

    /// The operations that need a collective to have finished, also through multi-outputs,
    /// ascending.
    #[inline]
    pub fn gates(&self, collective: OpId) -> &[OpId] {
        self.gates.of(collective)
    }

    /// The same program with these run times in place of the file's, each finite and not negative;
    /// a multi-output has none.
    pub fn with_given(mut self, time: impl Fn(OpId) -> Nanos) -> Graph {
        for op in self.ops() {
            let time = if self.kind(op) == OpKind::MultiOutput { Nanos::ZERO } else { time(op) };
            debug_assert!(time.0.is_finite() && time >= Nanos::ZERO);
            self.runtime[op] = time;
            self.parts.ops[op].runtime = Some(time);
        }
        self
    }

    /// The same program with a buffer of another size.
    pub fn with_size(mut self, buffer: BufId, size: Bytes) -> Graph {
        let parts = &mut self.parts.buffers[buffer];
        (parts.size_alloc, parts.size_free) = (size, size);
        self
    }

    /// What this graph was built from.
    pub fn into_parts(self) -> Parts {
        self.parts
    }

    #[inline]
    fn adjacency(&self, edges: Edges) -> &Adjacency {
        match edges {
            Edges::Awaited => &self.awaited,
            Edges::Real => &self.real,
            Edges::All => &self.all,
        }
    }
}
