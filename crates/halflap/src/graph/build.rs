//! From parts to a graph: the only place where a program is validated.

use super::gates::Gates;
use super::waits::Pairs;
use super::{Adjacency, Collective, DepKinds, Edges, Graph, GraphError, OpKind};
use crate::ids::{BufId, Csr, GroupId, IdVec, OpId};
use crate::units::{Bytes, Flops, Nanos};

/// A program before validation, with references already resolved to ids.
///
/// ```
/// use halflap::graph::{BufferParts, Graph, OpKind, OpParts, Parts};
/// use halflap::units::Bytes;
///
/// let mut parts = Parts::default();
/// let op = parts.ops.push(OpParts::new("multiply", OpKind::Compute));
/// let buffer = parts.buffers.push(BufferParts::new("product", Some(op), Bytes(4096)));
/// parts.ops[op].outputs.push(buffer);
/// parts.buffers[buffer].output = true;
/// let graph = Graph::new(parts)?;
/// assert_eq!(graph.find("multiply"), Some(op));
/// # Ok::<(), halflap::graph::GraphError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Parts {
    /// The operations, in the order in which they are scheduled now.
    pub ops: IdVec<OpId, OpParts>,
    /// The operations' results, then the freeable inputs.
    pub buffers: IdVec<BufId, BufferParts>,
    /// The process groups.
    pub groups: IdVec<GroupId, GroupParts>,
}

/// One operation.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)]
pub struct OpParts {
    pub name: String,
    pub kind: OpKind,
    /// `None` where the file gives none.
    pub runtime: Option<Nanos>,
    /// Its floating-point operations, where known.
    pub flops: Option<Flops>,
    /// The bytes that it reads from and writes to memory, if known.
    pub bytes: Option<Bytes>,
    pub gemm_like: bool,
    pub collective: Option<Collective>,
    pub outputs: Vec<BufId>,
    pub deps: Vec<(BufId, DepKinds)>,
    /// What was fused into it, for people.
    pub fused: Vec<String>,
    /// Where it comes from in the user's program.
    pub provenance: Provenance,
    /// The kernel that it runs as, as profilers call it, where known.
    pub kernel: Option<String>,
}

impl OpParts {
    /// An operation with only a name and a kind. Set what else is known: its run time, its buffers,
    /// and what a collective does.
    pub fn new(name: impl Into<String>, kind: OpKind) -> OpParts {
        OpParts {
            name: name.into(),
            kind,
            runtime: None,
            flops: None,
            bytes: None,
            gemm_like: false,
            collective: None,
            outputs: Vec::new(),
            deps: Vec::new(),
            fused: Vec::new(),
            provenance: Provenance::default(),
            kernel: None,
        }
    }

    /// A compute operation without inputs and outputs; only its name is known.
    pub fn compute(name: String) -> OpParts {
        OpParts::new(name, OpKind::Compute)
    }
}

/// Where an operation comes from in the user's program, for people; each is empty where it is not
/// known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Provenance {
    /// The line, such as `model.py:42`.
    pub source: String,
    /// The path of its module, such as `layers.3.attention.wq`.
    pub module: String,
    /// Of a collective and its wait, the parameter that is gathered, or whose gradient is reduced.
    pub parameter: String,
}

impl Provenance {
    /// All that is known, each with its label, the most specific first.
    pub fn known(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let all =
            [("parameter", &self.parameter), ("module", &self.module), ("source", &self.source)];
        all.into_iter()
            .map(|(what, text)| (what, text.as_str()))
            .filter(|(_, text)| !text.is_empty())
    }
}

/// One buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct BufferParts {
    pub name: String,
    /// `None` for a freeable input.
    pub maker: Option<OpId>,
    pub size_alloc: Bytes,
    pub size_free: Bytes,
    pub users: Vec<OpId>,
    pub output: bool,
    /// The buffer that it is a part of: it takes no memory itself and keeps that buffer alive.
    pub view_of: Option<BufId>,
}

impl BufferParts {
    /// A buffer that is freed after its last user; it has no users yet.
    pub fn new(name: impl Into<String>, maker: Option<OpId>, size: Bytes) -> BufferParts {
        BufferParts {
            name: name.into(),
            maker,
            size_alloc: size,
            size_free: size,
            users: Vec::new(),
            output: false,
            view_of: None,
        }
    }
}

/// One process group, or one kind of transfer.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct GroupParts {
    pub name: String,
    pub ranks: Vec<u32>,
    pub kind: GroupKind,
    /// All sets of devices that communicate concurrently, this rank's among them; empty if only
    /// this rank's set is known.
    pub sets: Vec<Vec<u32>>,
    /// The group that this is a second communicator of: it has the same ranks, its collectives run
    /// beside that one's, and both share the link.
    pub second_of: Option<GroupId>,
}

impl GroupParts {
    /// A process group of which only this rank's set is known.
    pub fn new(name: impl Into<String>, ranks: Vec<u32>) -> GroupParts {
        let (name, kind, sets) = (name.into(), GroupKind::Ranks, Vec::new());
        GroupParts { name, ranks, kind, sets, second_of: None }
    }
}

/// What a group's name stands for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GroupKind {
    /// Collectives among ranks.
    #[default]
    Ranks,
    /// Transfers of one kind that a device makes by itself, concurrently with all collectives:
    /// within its memory, or to the host.
    Transfer,
}

/// The sum of all sizes stays below this, so that it cannot overflow.
const MOST_BYTES: i64 = 1 << 62;

impl<I, T> Default for IdVec<I, T> {
    fn default() -> Self {
        Vec::new().into()
    }
}

impl Graph {
    /// Validates a program and derives the tables that passes use.
    pub fn new(mut parts: Parts) -> Result<Graph, GraphError> {
        parts.tidy();
        let by_name = parts.validate()?;
        parts.keep_viewed_alive();
        parts.bind_stray_users();
        let awaited = parts.adjacency(Edges::Awaited);
        let real = parts.adjacency(Edges::Real);
        let all = parts.adjacency(Edges::All);
        let users =
            Csr::from_lists(parts.buffers.iter().map(|(_, buffer)| buffer.users.iter().copied()));
        let freed = users.pairs().filter(|&(buffer, _)| !parts.buffers[buffer].output);
        let uses = Csr::from_pairs(parts.ops.len(), freed.map(|(buffer, op)| (op, buffer)));
        let pairs = Pairs::find(&parts);
        let gates = Gates::find(&parts, &awaited);
        Ok(Graph {
            kind: parts.ops.iter().map(|(_, op)| op.kind).collect(),
            runtime: parts.ops.iter().map(|(_, op)| op.runtime.unwrap_or(Nanos::ZERO)).collect(),
            by_name,
            awaited,
            real,
            all,
            uses,
            users,
            waits_for: pairs.waits_for,
            waited_by: pairs.waited_by,
            gated_by: gates.gated_by,
            gates: gates.gates,
            parts,
        })
    }
}

impl Parts {
    /// Sorts unordered fields, and merges duplicates.
    fn tidy(&mut self) {
        for buffer in self.buffers.as_mut_slice() {
            buffer.users.sort_unstable();
            buffer.users.dedup();
        }
        for op in self.ops.as_mut_slice() {
            let mut merged: Vec<(BufId, DepKinds)> = Vec::with_capacity(op.deps.len());
            for &(buffer, kinds) in &op.deps {
                match merged.iter_mut().find(|(seen, _)| *seen == buffer) {
                    Some((_, seen)) => *seen = seen.and(kinds),
                    None => merged.push((buffer, kinds)),
                }
            }
            op.deps = merged;
        }
    }

    /// Checks everything; returns the operations by name.
    fn validate(&self) -> Result<Vec<OpId>, GraphError> {
        self.check_counts()?;
        let by_name = self.check_names()?;
        self.check_groups()?;
        self.check_ops()?;
        self.check_sizes()?;
        self.check_makers()?;
        self.check_views()?;
        self.check_order()?;
        self.check_users()?;
        Ok(by_name)
    }

    fn check_counts(&self) -> Result<(), GraphError> {
        // One id stays free for the place after the end.
        let most = u32::MAX - 1;
        for (count, what) in [
            (self.ops.len(), "nodes"),
            (self.buffers.len(), "buffers"),
            (self.groups.len(), "groups"),
        ] {
            if count > most as usize {
                return Err(GraphError::TooMany { count, what, most });
            }
        }
        Ok(())
    }

    fn check_names(&self) -> Result<Vec<OpId>, GraphError> {
        let twice = |what, name: Option<String>| {
            name.map_or(Ok(()), |name| Err(GraphError::NameUsedTwice { what, name }))
        };
        twice("buffer", repeated(self.buffers.iter().map(|(_, buffer)| buffer.name.as_str())))?;
        twice("group", repeated(self.groups.iter().map(|(_, group)| group.name.as_str())))?;
        let mut by_name: Vec<OpId> = self.ops.ids().collect();
        by_name.sort_unstable_by_key(|&op| (self.ops[op].name.as_str(), op));
        let same = by_name.windows(2).find(|pair| self.ops[pair[0]].name == self.ops[pair[1]].name);
        twice("node", same.map(|pair| self.ops[pair[0]].name.clone()))?;
        Ok(by_name)
    }

    fn check_ops(&self) -> Result<(), GraphError> {
        for (_, op) in self.ops.iter() {
            op.check_numbers()?;
            match (op.kind.is_collective(), &op.collective) {
                (true, None) => return Err(GraphError::NoCollective { node: op.name.clone() }),
                (false, Some(_)) => {
                    return Err(GraphError::NotACollective {
                        node: op.name.clone(),
                        kind: op.kind.name(),
                    });
                }
                _ => {}
            }
            if let Some((buffer, _)) =
                op.deps.iter().find(|(_, kinds)| *kinds == DepKinds::default())
            {
                let buffer = self.buffers[*buffer].name.clone();
                return Err(GraphError::NoDepKind { node: op.name.clone(), buffer });
            }
        }
        Ok(())
    }

    fn check_sizes(&self) -> Result<(), GraphError> {
        let mut total: i64 = 0;
        for (_, buffer) in self.buffers.iter() {
            for (field, size) in
                [("size_alloc", buffer.size_alloc), ("size_free", buffer.size_free)]
            {
                if size < Bytes::ZERO {
                    return Err(GraphError::BadSize {
                        buffer: buffer.name.clone(),
                        field,
                        value: size.0.to_string(),
                        problem: "negative",
                        right: "a number of bytes, zero or more",
                    });
                }
                let sum = total.checked_add(size.0).filter(|&sum| sum <= MOST_BYTES);
                total = sum.ok_or_else(|| GraphError::TotalSizeOverflows {
                    buffer: buffer.name.clone(),
                })?;
            }
        }
        Ok(())
    }

    fn check_makers(&self) -> Result<(), GraphError> {
        let mut made_by: IdVec<BufId, Option<OpId>> = IdVec::filled(None, self.buffers.len());
        for (id, op) in self.ops.iter() {
            for &buffer in &op.outputs {
                if let Some(first) = made_by[buffer].replace(id) {
                    return Err(GraphError::TwoMakers {
                        buffer: self.buffers[buffer].name.clone(),
                        first: self.ops[first].name.clone(),
                        second: op.name.clone(),
                    });
                }
            }
        }
        let odd = self.buffers.iter().find(|(id, buffer)| made_by[*id] != buffer.maker);
        match odd {
            Some((_, buffer)) => Err(GraphError::NoMaker { buffer: buffer.name.clone() }),
            None => Ok(()),
        }
    }

    /// A second communicator has the ranks of a group that is not a second one itself.
    fn check_groups(&self) -> Result<(), GraphError> {
        for (id, group) in self.groups.iter() {
            let Some(of) = group.second_of else { continue };
            let first = &self.groups[of];
            let problem = match () {
                () if of == id => "is that group itself",
                () if first.second_of.is_some() => "that group is a second one itself",
                () if [first.kind, group.kind] != [GroupKind::Ranks; 2] => {
                    "one of the two is of kind transfer"
                }
                () if first.ranks != group.ranks || first.sets != group.sets => {
                    "their ranks or sets differ"
                }
                () => continue,
            };
            let (group, of) = (group.name.clone(), first.name.clone());
            return Err(GraphError::BadSecond { group, of, problem });
        }
        Ok(())
    }

    /// The whole of a view must come before it, and the view takes no memory itself.
    fn check_views(&self) -> Result<(), GraphError> {
        for (id, buffer) in self.buffers.iter() {
            let Some(of) = buffer.view_of else { continue };
            let (part, whole) = ((buffer.maker, id), (self.buffers[of].maker, of));
            let problem = match () {
                () if buffer.size_alloc != Bytes::ZERO || buffer.size_free != Bytes::ZERO => {
                    "takes memory of its own"
                }
                () if self.buffers[of].view_of.is_some() => "is a part of what is itself a part",
                () if of == id || whole.0 > part.0 => "is made before it",
                () => continue,
            };
            let (buffer, of) = (buffer.name.clone(), self.buffers[of].name.clone());
            return Err(GraphError::BadView { buffer, of, problem });
        }
        Ok(())
    }

    /// A user of a view is a user of its buffer.
    fn keep_viewed_alive(&mut self) {
        for id in self.buffers.ids() {
            let Some(of) = self.buffers[id].view_of else { continue };
            let (users, output) = (self.buffers[id].users.clone(), self.buffers[id].output);
            self.buffers[of].users.extend(users);
            self.buffers[of].output |= output;
        }
        self.tidy();
    }

    /// Input order must be a topological order of all edges; a cycle is reported differently from a
    /// misplaced operation, because the fix differs.
    fn check_order(&self) -> Result<(), GraphError> {
        for (id, op) in self.ops.iter() {
            let early = op.deps.iter().find_map(|&(buffer, _)| {
                let maker = self.buffers[buffer].maker?;
                (maker >= id).then_some((buffer, maker))
            });
            if let Some((buffer, maker)) = early {
                if let Some(path) = self.find_cycle() {
                    return Err(GraphError::Cycle { path });
                }
                return Err(GraphError::ListedTooEarly {
                    node: op.name.clone(),
                    needs: self.ops[maker].name.clone(),
                    buffer: self.buffers[buffer].name.clone(),
                });
            }
        }
        Ok(())
    }

    /// A cycle of dependencies as names, with the first one repeated at the end.
    fn find_cycle(&self) -> Option<Vec<String>> {
        let all = self.adjacency(Edges::All);
        let mut missing: IdVec<OpId, usize> =
            self.ops.ids().map(|op| all.preds.of(op).len()).collect();
        let mut ready: Vec<OpId> =
            missing.iter().filter(|(_, count)| **count == 0).map(|(op, _)| op).collect();
        while let Some(op) = ready.pop() {
            for &succ in all.succs.of(op) {
                missing[succ] -= 1;
                if missing[succ] == 0 {
                    ready.push(succ);
                }
            }
        }
        // Every remaining operation needs another remaining one: following them must repeat one.
        let start = missing.iter().find(|(_, count)| **count > 0)?.0;
        let mut walk: Vec<OpId> = Vec::new();
        let mut met: IdVec<OpId, Option<usize>> = IdVec::filled(None, self.ops.len());
        let mut op = start;
        loop {
            if let Some(first) = met[op].replace(walk.len()) {
                return Some(self.name_cycle(&walk[first..]));
            }
            walk.push(op);
            op = *all.preds.of(op).iter().find(|&&pred| missing[pred] > 0)?;
        }
    }

    /// The names along a cycle of operations, each of which needs the next: from the first one
    /// listed, in the direction of the data, and back to it.
    fn name_cycle(&self, circle: &[OpId]) -> Vec<String> {
        let mut circle: Vec<OpId> = circle.iter().rev().copied().collect();
        let first =
            circle.iter().enumerate().min_by_key(|(_, op)| **op).map_or(0, |(index, _)| index);
        circle.rotate_left(first);
        circle.push(circle[0]);
        circle.into_iter().map(|op| self.ops[op].name.clone()).collect()
    }

    fn check_users(&self) -> Result<(), GraphError> {
        for (id, op) in self.ops.iter() {
            for &(buffer, _) in op.deps.iter().filter(|(_, kinds)| kinds.data) {
                let buffer = &self.buffers[buffer];
                if buffer.users.binary_search(&id).is_err() {
                    return Err(GraphError::ReaderNotUser {
                        buffer: buffer.name.clone(),
                        reader: op.name.clone(),
                    });
                }
            }
        }
        for (_, buffer) in self.buffers.iter() {
            let Some(maker) = buffer.maker else { continue };
            if let Some(&user) = buffer.users.iter().find(|&&user| user <= maker) {
                return Err(GraphError::UserBeforeMaker {
                    buffer: buffer.name.clone(),
                    user: self.ops[user].name.clone(),
                    maker: self.ops[maker].name.clone(),
                });
            }
        }
        Ok(())
    }

    fn adjacency(&self, edges: Edges) -> Adjacency {
        let counts = |kinds: DepKinds| match edges {
            Edges::Awaited => kinds.is_awaited(),
            Edges::Real => kinds.is_real(),
            Edges::All => true,
        };
        let preds = Csr::from_lists(self.ops.iter().map(|(_, op)| {
            let needed = op.deps.iter().filter(|(_, kinds)| counts(*kinds));
            let mut preds: Vec<OpId> =
                needed.filter_map(|&(buffer, _)| self.buffers[buffer].maker).collect();
            preds.sort_unstable();
            preds.dedup();
            preds
        }));
        let succs = preds.inverse(self.ops.len());
        Adjacency { preds, succs }
    }

    /// An operation that reads a buffer under another name is only among its users, and depends on
    /// its producer through that name's producer. A user that does not depend on it at all gets an
    /// edge here, so that no order can use a buffer before it is produced.
    fn bind_stray_users(&mut self) {
        let real = self.adjacency(Edges::Real);
        let mut strays = Vec::new();
        let mut search = PredSearch::new(&real.preds, self.ops.len());
        for (id, buffer) in self.buffers.iter() {
            let Some(maker) = buffer.maker else { continue };
            let stray = buffer.users.iter().filter(|&&user| !search.depends(user, maker));
            strays.extend(stray.map(|&user| (user, id)));
        }
        for (user, buffer) in strays {
            self.ops[user].deps.push((buffer, DepKinds { weak: true, ..DepKinds::default() }));
        }
        self.tidy();
    }
}

impl OpParts {
    fn check_numbers(&self) -> Result<(), GraphError> {
        let (longest, time) = match self.kind {
            OpKind::MultiOutput => (0.0, "zero or null: a multi-output takes no time"),
            _ => (Nanos::LONGEST.0, "a time in nanoseconds, zero or more"),
        };
        let fields = [
            ("runtime_ns", self.runtime.map(|time| time.0), longest, time),
            (
                "flops",
                self.flops.map(|flops| flops.0),
                f64::MAX,
                "a number of operations, zero or more",
            ),
            (
                "bytes",
                self.bytes.map(|bytes| bytes.0 as f64),
                f64::MAX,
                "a number of bytes, zero or more",
            ),
        ];
        for (field, value, most, right) in fields {
            let Some(value) = value else { continue };
            if let Some(problem) = number_problem(value, most) {
                let value =
                    if value.abs() >= 1e21 { format!("{value:e}") } else { value.to_string() };
                return Err(GraphError::BadNumber {
                    node: self.name.clone(),
                    field,
                    value,
                    problem,
                    right,
                });
            }
        }
        Ok(())
    }
}

/// Searches among the predecessors of operations, one after the other.
struct PredSearch<'p> {
    preds: &'p Csr<OpId, OpId>,
    /// The search in which an operation was last seen.
    seen: IdVec<OpId, u32>,
    search: u32,
}

impl<'p> PredSearch<'p> {
    fn new(preds: &'p Csr<OpId, OpId>, ops: usize) -> PredSearch<'p> {
        PredSearch { preds, seen: IdVec::filled(0, ops), search: 0 }
    }

    /// Whether `op` depends on `on`, directly or indirectly. Two steps almost always show it.
    fn depends(&mut self, op: OpId, on: OpId) -> bool {
        let preds = self.preds;
        let direct = |op: OpId| preds.of(op).binary_search(&on).is_ok();
        if direct(op) || preds.of(op).iter().any(|&pred| direct(pred)) {
            return true;
        }
        self.search += 1;
        let mut open = vec![op];
        while let Some(op) = open.pop() {
            if direct(op) {
                return true;
            }
            for &pred in preds.of(op).iter().filter(|&&pred| pred > on) {
                if self.seen[pred] != self.search {
                    self.seen[pred] = self.search;
                    open.push(pred);
                }
            }
        }
        false
    }
}

/// The first duplicate name, in alphabetical order.
fn repeated<'a>(names: impl Iterator<Item = &'a str>) -> Option<String> {
    let mut names: Vec<&str> = names.collect();
    names.sort_unstable();
    names.windows(2).find(|pair| pair[0] == pair[1]).map(|pair| pair[0].to_owned())
}

fn number_problem(value: f64, most: f64) -> Option<&'static str> {
    match value {
        v if !v.is_finite() => Some("not finite"),
        v if v < 0.0 => Some("negative"),
        v if v > most && most == 0.0 => Some("not zero"),
        v if v > most => Some("too large: it overflows"),
        _ => None,
    }
}
