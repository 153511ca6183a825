//! The same program on every rank, with the same run times.
//!
//! Ranks that estimate run times on their own come to different decisions, and hang. Aligned, every
//! operation has the lower median of all ranks' estimates: a value that some rank did measure.

use serde_json::Value;
use thiserror::Error;

use crate::graph::{Assignment, Graph, Streams};
use crate::ids::{BufId, GroupId, Id, IdVec, OpId, StreamId};
use crate::units::Nanos;

/// Where two ranks' programs first differ.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error(
    "{place}: {what} is {first} on the first rank and {other} here; ranks must hold the same \
     program"
)]
#[non_exhaustive]
pub struct RankDifference {
    /// Which of the graphs differs from the first one.
    pub rank: usize,
    /// The node or buffer.
    pub place: String,
    /// Which property.
    pub what: &'static str,
    /// Its value in the first graph.
    pub first: String,
    /// Its value in this one.
    pub other: String,
}

/// For each operation, the lower median of its run times on all ranks that have one; `None` where
/// none has.
pub fn median_runtimes(ranks: &[Graph]) -> Result<IdVec<OpId, Option<Nanos>>, RankDifference> {
    let Some((first, others)) = ranks.split_first() else { return Ok(IdVec::default()) };
    for (index, other) in others.iter().enumerate() {
        let [first, other] = [first, other].map(OnRank::new);
        RankPair { first, other, rank: index + 1 }.run()?;
    }
    let mut times = Vec::with_capacity(ranks.len());
    let median = |op: OpId| {
        times.clear();
        times.extend(
            ranks.iter().filter(|graph| graph.has_runtime(op)).map(|graph| graph.runtime(op).0),
        );
        times.sort_unstable_by(f64::total_cmp);
        times.get(times.len().saturating_sub(1) / 2).copied().map(Nanos)
    };
    Ok(first.ops().map(median).collect())
}

/// A `halflap.graph/1` text with other run times and all else as it was.
pub fn with_runtimes(
    text: &[u8],
    runtimes: &IdVec<OpId, Option<Nanos>>,
) -> Result<Vec<u8>, serde_json::Error> {
    let mut file: Value = serde_json::from_slice(text)?;
    if let Some(nodes) = file.get_mut("nodes").and_then(Value::as_array_mut) {
        for (node, time) in nodes.iter_mut().zip(runtimes.as_slice()) {
            node["runtime_ns"] = time.map_or(Value::Null, |time| Value::from(time.0));
        }
    }
    serde_json::to_vec(&file)
}

/// The program of one rank.
struct OnRank<'a> {
    graph: &'a Graph,
    streams: Streams,
}

impl<'a> OnRank<'a> {
    fn new(graph: &'a Graph) -> OnRank<'a> {
        OnRank { graph, streams: Streams::assign(graph, Assignment::SharedRanks) }
    }
}

struct RankPair<'a> {
    first: OnRank<'a>,
    other: OnRank<'a>,
    rank: usize,
}

impl RankPair<'_> {
    fn run(&self) -> Result<(), RankDifference> {
        let (first, other) = (self.first.graph, self.other.graph);
        let mut names = Renamings {
            groups: Renaming::new(first.groups().len(), other.groups().len()),
            streams: Renaming::new(self.first.streams.len(), self.other.streams.len()),
        };
        for (a, b) in first.ops().zip(other.ops()) {
            self.compare_ops(a, b, &mut names)?;
        }
        let at = self.at("the program".to_owned());
        at.same("the number of nodes", first.len(), other.len())?;
        for (a, b) in first.buffers().zip(other.buffers()) {
            self.compare_buffers(a, b)?;
        }
        at.same("the number of buffers", first.buffers().len(), other.buffers().len())
    }

    fn at(&self, place: String) -> At {
        At { rank: self.rank, place }
    }

    fn at_node(&self, op: OpId) -> At {
        self.at(format!("node '{}'", self.first.graph.name(op)))
    }

    fn compare_ops(&self, a: OpId, b: OpId, names: &mut Renamings) -> Result<(), RankDifference> {
        let (first, other) = (self.first.graph, self.other.graph);
        let at = self.at_node(a);
        at.same("its name", first.name(a), other.name(b))?;
        at.same("its kind", first.kind(a).name(), other.kind(b).name())?;
        at.same("whether it is gemm-like", first.is_gemm_like(a), other.is_gemm_like(b))?;
        self.compare_figures(a, b)?;
        at.same("the list of its outputs", outputs(first, a), outputs(other, b))?;
        at.same("the list of its dependencies", deps(first, a), deps(other, b))?;
        self.compare_collectives(a, b, names)
    }

    /// What run times are modelled from: a difference would let ranks decide differently again.
    fn compare_figures(&self, a: OpId, b: OpId) -> Result<(), RankDifference> {
        let (first, other) = (self.first.graph, self.other.graph);
        let flops = |graph: &Graph, op| graph.flops(op).map(|flops| flops.0);
        let bytes = |graph: &Graph, op| graph.bytes(op).map(|bytes| bytes.0 as f64);
        let shown =
            |figure: Option<f64>| figure.map_or("not given".to_owned(), |it| it.to_string());
        let figures = [
            ("its work in flops", flops(first, a), flops(other, b)),
            ("its traffic in bytes", bytes(first, a), bytes(other, b)),
        ];
        match figures.into_iter().find(|(_, x, y)| x != y) {
            Some((what, x, y)) => Err(self.at_node(a).difference(what, shown(x), shown(y))),
            None => Ok(()),
        }
    }

    fn compare_collectives(
        &self,
        a: OpId,
        b: OpId,
        names: &mut Renamings,
    ) -> Result<(), RankDifference> {
        let (first, other) = (self.first.graph, self.other.graph);
        let (Some(x), Some(y)) = (first.collective(a), other.collective(b)) else { return Ok(()) };
        let Renamings { groups, streams } = names;
        let at = self.at_node(a);
        at.same("its operation", &x.op, &y.op)?;
        at.same("its kind", x.kind, y.kind)?;
        at.same("its reduction", x.reduction, y.reduction)?;
        at.same("its type of elements", &x.payload.dtype, &y.payload.dtype)?;
        at.same("its group's size", x.group_size, y.group_size)?;
        at.same("its size in bytes", x.bytes().0, y.bytes().0)?;
        let ranks = |graph: &Graph, group: GroupId| graph.groups()[group].ranks.len();
        at.same("its group's number of ranks", ranks(first, x.group), ranks(other, y.group))?;
        if groups.agree(x.group, y.group) {
            let name = |stream: StreamId| format!("stream {}", stream.index());
            let what = "what its process group shares a stream with";
            return match (self.first.streams.of(a), self.other.streams.of(b)) {
                (Some(a), Some(b)) if !streams.agree(a, b) => {
                    Err(at.difference(what, name(a), name(b)))
                }
                _ => Ok(()),
            };
        }
        let name = |graph: &Graph, group: GroupId| format!("'{}'", graph.groups()[group].name);
        let what = "its process group, which other collectives pair differently,";
        Err(at.difference(what, name(first, x.group), name(other, y.group)))
    }

    fn compare_buffers(&self, a: BufId, b: BufId) -> Result<(), RankDifference> {
        let (first, other) = (self.first.graph, self.other.graph);
        let at = self.at(format!("buffer '{}'", first.buffer_name(a)));
        at.same("its name", first.buffer_name(a), other.buffer_name(b))?;
        at.same("size_alloc", first.size_alloc(a).0, other.size_alloc(b).0)?;
        at.same("size_free", first.size_free(a).0, other.size_free(b).0)?;
        at.same("whether it is an output", first.is_output(a), other.is_output(b))?;
        at.same("the list of its users", users(first, a), users(other, b))
    }
}

/// What is compared: a node or a buffer of a rank.
struct At {
    rank: usize,
    place: String,
}

impl At {
    fn same<T>(&self, what: &'static str, first: T, other: T) -> Result<(), RankDifference>
    where
        T: PartialEq + std::fmt::Debug,
    {
        match first == other {
            true => Ok(()),
            false => Err(self.difference(what, format!("{first:?}"), format!("{other:?}"))),
        }
    }

    fn difference(&self, what: &'static str, first: String, other: String) -> RankDifference {
        RankDifference { rank: self.rank, place: self.place.clone(), what, first, other }
    }
}

fn users(graph: &Graph, buffer: BufId) -> Vec<&str> {
    graph.users(buffer).iter().map(|&op| graph.name(op)).collect()
}

fn outputs(graph: &Graph, op: OpId) -> Vec<&str> {
    graph.outputs(op).iter().map(|&buffer| graph.buffer_name(buffer)).collect()
}

/// `buf0 (data, order)`.
fn deps(graph: &Graph, op: OpId) -> Vec<String> {
    let words = |(buffer, kinds): &(BufId, _)| format!("{} ({kinds})", graph.buffer_name(*buffer));
    graph.deps(op).iter().map(words).collect()
}

/// Names that may differ between ranks.
struct Renamings {
    groups: Renaming<GroupId>,
    streams: Renaming<StreamId>,
}

/// Maps groups (or streams) between ranks, one to one. Names may differ between ranks; collectives
/// at the same position in the program show which groups correspond.
struct Renaming<I> {
    to: IdVec<I, Option<I>>,
    from: IdVec<I, Option<I>>,
}

impl<I: Id> Renaming<I> {
    fn new(first: usize, other: usize) -> Renaming<I> {
        Renaming { to: IdVec::filled(None, first), from: IdVec::filled(None, other) }
    }

    /// Whether two may correspond; if neither has been seen before, they do from now on.
    fn agree(&mut self, first: I, other: I) -> bool {
        match (self.to[first], self.from[other]) {
            (None, None) => {
                self.to[first] = Some(other);
                self.from[other] = Some(first);
                true
            }
            (to, from) => to == Some(other) && from == Some(first),
        }
    }
}
