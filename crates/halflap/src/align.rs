//! The same program on every rank, with the same run times.
//!
//! Ranks that estimate for themselves decide differently and then hang. Aligned, every operation has
//! the lower median of all ranks' estimates: a value that some rank did measure.

use serde_json::Value;
use thiserror::Error;

use crate::graph::{Assignment, Graph, Streams};
use crate::ids::{BufId, GroupId, Id, IdVec, OpId, StreamId};
use crate::units::Nanos;

/// Where two ranks' programs first differ.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{place}: {what} is {first} on the first rank and {other} here; ranks must hold the same program")]
#[non_exhaustive]
pub struct Difference {
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
pub fn median_runtimes(ranks: &[Graph]) -> Result<IdVec<OpId, Option<Nanos>>, Difference> {
    let Some((first, others)) = ranks.split_first() else { return Ok(IdVec::default()) };
    for (index, other) in others.iter().enumerate() {
        let streams =
            (Streams::assign(first, Assignment::SharedRanks), Streams::assign(other, Assignment::SharedRanks));
        Comparison { first, other, streams, rank: index + 1 }.run()?;
    }
    let mut times = Vec::with_capacity(ranks.len());
    let median = |op: OpId| {
        times.clear();
        times.extend(ranks.iter().filter(|graph| graph.has_runtime(op)).map(|graph| graph.runtime(op).0));
        times.sort_unstable_by(f64::total_cmp);
        times.get(times.len().saturating_sub(1) / 2).copied().map(Nanos)
    };
    Ok(first.ops().map(median).collect())
}

/// A `halflap.graph/1` text with other run times and all else as it was.
pub fn with_runtimes(text: &[u8], runtimes: &IdVec<OpId, Option<Nanos>>) -> Result<Vec<u8>, serde_json::Error> {
    let mut file: Value = serde_json::from_slice(text)?;
    if let Some(nodes) = file.get_mut("nodes").and_then(Value::as_array_mut) {
        for (node, time) in nodes.iter_mut().zip(runtimes.as_slice()) {
            node["runtime_ns"] = time.map_or(Value::Null, |time| Value::from(time.0));
        }
    }
    serde_json::to_vec(&file)
}

struct Comparison<'a> {
    first: &'a Graph,
    other: &'a Graph,
    streams: (Streams, Streams),
    rank: usize,
}

impl Comparison<'_> {
    fn run(&self) -> Result<(), Difference> {
        let mut names = Names {
            groups: Renaming::new(self.first.groups().len(), self.other.groups().len()),
            streams: Renaming::new(self.streams.0.len(), self.streams.1.len()),
        };
        for (a, b) in self.first.ops().zip(self.other.ops()) {
            self.compare_ops(a, b, &mut names)?;
        }
        self.same("the program", "the number of nodes", (self.first.len(), self.other.len()))?;
        for (a, b) in self.first.buffers().zip(self.other.buffers()) {
            self.compare_buffers(a, b)?;
        }
        self.same("the program", "the number of buffers", (self.first.buffers().len(), self.other.buffers().len()))
    }

    fn compare_ops(&self, a: OpId, b: OpId, names: &mut Names) -> Result<(), Difference> {
        let (first, other) = (self.first, self.other);
        let place = &format!("node '{}'", first.name(a));
        self.same(place, "its name", (first.name(a), other.name(b)))?;
        self.same(place, "its kind", (first.kind(a).name(), other.kind(b).name()))?;
        self.same(place, "whether it is gemm-like", (first.is_gemm_like(a), other.is_gemm_like(b)))?;
        self.compare_figures(a, b)?;
        self.same(place, "the list of its outputs", (outputs(first, a), outputs(other, b)))?;
        self.same(place, "the list of its dependencies", (deps(first, a), deps(other, b)))?;
        self.compare_collectives(a, b, names)
    }

    /// What run times are modelled from: a difference would let ranks decide differently again.
    fn compare_figures(&self, a: OpId, b: OpId) -> Result<(), Difference> {
        let (first, other) = (self.first, self.other);
        let flops = |graph: &Graph, op| graph.flops(op).map(|flops| flops.0);
        let bytes = |graph: &Graph, op| graph.bytes(op).map(|bytes| bytes.0 as f64);
        let shown = |figure: Option<f64>| figure.map_or("not given".to_owned(), |figure| figure.to_string());
        let figures = [
            ("its work in flops", flops(first, a), flops(other, b)),
            ("its traffic in bytes", bytes(first, a), bytes(other, b)),
        ];
        match figures.into_iter().find(|(_, x, y)| x != y) {
            Some((what, x, y)) => {
                Err(self.difference(&format!("node '{}'", first.name(a)), what, (shown(x), shown(y))))
            }
            None => Ok(()),
        }
    }

    fn compare_collectives(&self, a: OpId, b: OpId, names: &mut Names) -> Result<(), Difference> {
        let (first, other) = (self.first, self.other);
        let (Some(x), Some(y)) = (first.collective(a), other.collective(b)) else { return Ok(()) };
        let Names { groups, streams } = names;
        let place = &format!("node '{}'", first.name(a));
        self.same(place, "its operation", (&x.op, &y.op))?;
        self.same(place, "its kind", (x.kind, y.kind))?;
        self.same(place, "its reduction", (x.reduction, y.reduction))?;
        self.same(place, "its type of elements", (&x.payload.dtype, &y.payload.dtype))?;
        self.same(place, "its group's size", (x.group_size, y.group_size))?;
        self.same(place, "its size in bytes", (x.bytes().0, y.bytes().0))?;
        let ranks = |graph: &Graph, group: GroupId| graph.groups()[group].ranks.len();
        self.same(place, "its group's number of ranks", (ranks(first, x.group), ranks(other, y.group)))?;
        if groups.agree(x.group, y.group) {
            let stream = (self.streams.0.of(a), self.streams.1.of(b));
            return match stream {
                (Some(a), Some(b)) if !streams.agree(a, b) => Err(self.difference(
                    place,
                    "what its process group shares a stream with",
                    (format!("stream {}", a.index()), format!("stream {}", b.index())),
                )),
                _ => Ok(()),
            };
        }
        let name = |graph: &Graph, group: GroupId| format!("'{}'", graph.groups()[group].name);
        let what = "its process group, which other collectives pair differently,";
        Err(self.difference(place, what, (name(first, x.group), name(other, y.group))))
    }

    fn compare_buffers(&self, a: BufId, b: BufId) -> Result<(), Difference> {
        let (first, other) = (self.first, self.other);
        let place = &format!("buffer '{}'", first.buffer_name(a));
        self.same(place, "its name", (first.buffer_name(a), other.buffer_name(b)))?;
        self.same(place, "size_alloc", (first.size_alloc(a).0, other.size_alloc(b).0))?;
        self.same(place, "size_free", (first.size_free(a).0, other.size_free(b).0))?;
        self.same(place, "whether it is an output", (first.is_output(a), other.is_output(b)))?;
        let users = |graph: &Graph, buffer| graph.users(buffer).iter().map(|&op| graph.name(op).to_owned()).collect();
        self.same::<Vec<String>>(place, "the list of its users", (users(first, a), users(other, b)))
    }

    fn same<T: PartialEq + std::fmt::Debug>(
        &self,
        place: &str,
        what: &'static str,
        values: (T, T),
    ) -> Result<(), Difference> {
        let (first, other) = values;
        if first == other {
            return Ok(());
        }
        Err(self.difference(place, what, (format!("{first:?}"), format!("{other:?}"))))
    }

    fn difference(&self, place: &str, what: &'static str, (first, other): (String, String)) -> Difference {
        Difference { rank: self.rank, place: place.to_owned(), what, first, other }
    }
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
struct Names {
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

    /// Whether two may be the same one; if neither was met before, they are from now on.
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
