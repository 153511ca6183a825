//! Which operations can be split along one axis, the rows.
//!
//! A graph has no shapes, but sizes and floating-point operations are enough: a product of `rows x
//! inner` and `inner x columns` takes `2 * rows * inner * columns` operations, so the sizes of one
//! operand and of the result give the number of rows, up to the size of an element. Operations in
//! which every row of the result needs the same row of split inputs, and all other inputs as a
//! whole, are
//! - products that contract an axis other than the rows,
//! - fused kernels of elementwise operations on values of one size,
//! - those with sums along rows, recognised by a result with one number for each row,
//! - collectives that move or combine elements one by one: all-to-all and all-reduce.
//!
//! Nothing else is split. A piece reads inputs that are not split as a whole.

use std::collections::{BTreeMap, BTreeSet};

use super::RewriteError;
use crate::collective::CollectiveKind;
use crate::graph::{Graph, OpKind};
use crate::ids::{BufId, IdVec, OpId};
use crate::units::Bytes;

/// Why an operation cannot be split.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Uncut {
    /// It is not a kernel or an asynchronous collective, or has no result.
    Kind,
    /// It is a collective other than an all-to-all or all-reduce of one buffer.
    Collective,
    /// It waits for a collective that is not cut.
    Wait,
    /// It has a result whose memory is shared with others, or that another order of pieces could
    /// change.
    Memory,
    /// It does something that is not known to work row by row.
    Operation,
    /// Its sizes do not match its floating-point operations, or its rows.
    Sizes,
    /// It sums over the rows.
    Contracts,
    /// Its rows differ from the others'.
    Rows,
}

impl Uncut {
    /// In words, of an operation.
    pub fn words(self) -> &'static str {
        match self {
            Uncut::Kind => "it is not a kernel or an asynchronous collective with a result",
            Uncut::Collective => {
                "of collectives, only an all_to_all or all_reduce of one buffer can be cut"
            }
            Uncut::Wait => "it waits for a collective that is not among them",
            Uncut::Memory => "its result shares memory, or is overwritten",
            Uncut::Operation => "it does something that is not known to work row by row",
            Uncut::Sizes => "its sizes do not say that it works row by row",
            Uncut::Contracts => "it sums over the rows",
            Uncut::Rows => "its rows are not those of the others",
        }
    }
}

/// Elementwise operations, and what only renames, as kernels list them.
#[rustfmt::skip]
const ELEMENTWISE: [&str; 66] = [
    "_to_copy", "abs", "add", "alias", "all_reduce", "all_reduce_", "all_to_all_single",
    "bitwise_and", "bitwise_not", "bitwise_or", "ceil", "clamp", "clamp_max", "clamp_min",
    "clone", "convert_element_type", "copy", "cos", "detach", "div", "embedding", "eq", "erf",
    "exp", "expand", "expm1", "floor", "fma", "full", "full_like", "ge", "gelu", "gt", "isnan",
    "le", "lift_fresh_copy", "log", "log1p", "logical_and", "logical_not", "logical_or", "lt",
    "maximum", "minimum", "mul", "ne", "neg", "ones_like", "pow", "reciprocal", "relu",
    "reshape", "round", "rsqrt", "scalar_tensor", "sigmoid", "sign", "silu", "sin", "sqrt",
    "sub", "tanh", "view", "wait_tensor", "where", "zeros_like",
];

/// Reductions, which are along rows if a result says so.
const REDUCTIONS: [&str; 7] = ["amax", "amin", "mean", "prod", "sum", "var", "var_mean"];

/// Products whose rows are independent; for a batched one it is unknown which axis is which.
const PRODUCTS: [&str; 2] = ["addmm", "mm"];

/// The sizes that an element can have.
const ELEMENTS: [u128; 4] = [1, 2, 4, 8];

/// The size of a reduction's results, if it differs from the elements'.
const STATISTIC: u128 = 4;

/// A fraction, reduced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Ratio {
    over: u128,
    under: u128,
}

impl Ratio {
    fn new(over: u128, under: u128) -> Ratio {
        let (mut a, mut b) = (over, under);
        while b != 0 {
            (a, b) = (b, a % b);
        }
        let divisor = a.max(1);
        Ratio { over: over / divisor, under: under / divisor }
    }
}

/// What an operation says about its rows. A number of rows is multiplied by the square of an
/// element's size, which cancels when the same elements are compared.
enum RowCount {
    /// Any number.
    Any,
    /// This many.
    Is(Ratio),
    /// Either of two.
    OneOf(Vec<Ratio>),
    /// As many as there are numbers in a result of this size, beside one of all elements.
    Statistic { size: Bytes, all: Bytes },
}

/// The parts of a set of operations that can be cut together, each along its own rows; operations
/// that cannot are left out. Ascending.
pub fn cuttable(graph: &Graph, ops: &[OpId]) -> Vec<Vec<OpId>> {
    let mut rows = RowFinder::new(graph, ops);
    rows.settle().unwrap_or_default()
}

/// Whether operations can be cut, all of them.
pub(super) fn check_cut(graph: &Graph, ops: &[OpId]) -> Result<(), RewriteError> {
    let mut rows = RowFinder::new(graph, ops);
    rows.is_strict = true;
    let fails =
        |(op, why): (OpId, Uncut)| RewriteError::NotCut { node: graph.name(op).to_owned(), why };
    rows.settle().map(|_| ()).map_err(fails)
}

/// The buffer behind a name of size zero: a wait passes on the collective's buffer, whatever else
/// it reads, and a collective that works in place its input.
pub(super) fn content(graph: &Graph, buffer: BufId) -> BufId {
    let mut at = buffer;
    while graph.size_alloc(at) == Bytes::ZERO {
        let from = graph.maker(at).filter(|&maker| {
            graph.kind(maker) == OpKind::Wait || graph.kind(maker).is_collective()
        });
        let Some(next) = from.and_then(|maker| passed_on(graph, maker)) else { break };
        at = next;
    }
    at
}

fn passed_on(graph: &Graph, op: OpId) -> Option<BufId> {
    let reads = || graph.deps(op).iter().filter(|(_, kinds)| kinds.data).map(|(buffer, _)| *buffer);
    let awaited = graph.waits_for(op);
    let is_awaited = |buffer: &BufId| graph.maker(*buffer).is_some_and(|op| awaited.contains(&op));
    reads().find(is_awaited).or_else(|| reads().next())
}

struct RowFinder<'a> {
    graph: &'a Graph,
    ops: Vec<OpId>,
    inside: IdVec<OpId, bool>,
    /// The buffers that others are parts of.
    viewed: BTreeSet<BufId>,
    /// Whether the first operation that cannot be cut is an error.
    is_strict: bool,
}

impl<'a> RowFinder<'a> {
    fn new(graph: &'a Graph, named: &[OpId]) -> RowFinder<'a> {
        let mut ops = named.to_vec();
        ops.sort_unstable();
        let mut inside = IdVec::filled(false, graph.len());
        ops.iter().for_each(|&op| inside[op] = true);
        let viewed = graph.buffers().filter_map(|buffer| graph.view_of(buffer)).collect();
        RowFinder { graph, ops, inside, viewed, is_strict: false }
    }

    /// Removes operations until all others can be split, and returns these by the axis they are
    /// split along.
    fn settle(&mut self) -> Result<Vec<Vec<OpId>>, (OpId, Uncut)> {
        loop {
            let mut claims: BTreeMap<OpId, RowCount> = BTreeMap::new();
            let mut dropped = 0;
            for op in self.ops.clone() {
                match self.claim(op) {
                    Ok(axis) => drop(claims.insert(op, axis)),
                    Err(why) => {
                        self.leave_out(op, why)?;
                        dropped += 1;
                    }
                }
            }
            let parts = self.connected();
            let odd: Vec<OpId> = match dropped {
                0 => parts.iter().flat_map(|part| misfits(part, &claims)).collect(),
                _ => Vec::new(),
            };
            for &op in &odd {
                self.leave_out(op, Uncut::Rows)?;
            }
            dropped += odd.len();
            if dropped == 0 {
                return Ok(parts);
            }
            self.ops.retain(|&op| self.inside[op]);
        }
    }

    fn leave_out(&mut self, op: OpId, why: Uncut) -> Result<(), (OpId, Uncut)> {
        self.inside[op] = false;
        if self.is_strict { Err((op, why)) } else { Ok(()) }
    }

    /// Operations that hand pieces to each other.
    fn connected(&self) -> Vec<Vec<OpId>> {
        let mut leader: BTreeMap<OpId, OpId> = self.ops.iter().map(|&op| (op, op)).collect();
        let find = |leader: &BTreeMap<OpId, OpId>, op: OpId| {
            let mut at = op;
            while leader[&at] != at {
                at = leader[&at];
            }
            at
        };
        for &op in self.ops.iter().filter(|&&op| self.inside[op]) {
            for maker in self.cut_reads(op).into_iter().filter_map(|read| self.graph.maker(read)) {
                let (a, b) = (find(&leader, op), find(&leader, maker));
                leader.insert(a.max(b), a.min(b));
            }
        }
        let mut parts: BTreeMap<OpId, Vec<OpId>> = BTreeMap::new();
        for &op in self.ops.iter().filter(|&&op| self.inside[op]) {
            parts.entry(find(&leader, op)).or_default().push(op);
        }
        parts.into_values().collect()
    }

    fn is_cut(&self, buffer: BufId) -> bool {
        self.graph.maker(buffer).is_some_and(|maker| self.inside[maker])
    }

    /// What an operation reads in pieces.
    fn cut_reads(&self, op: OpId) -> Vec<BufId> {
        let reads = self.graph.deps(op).iter().filter(|(_, kinds)| kinds.data);
        reads.map(|(buffer, _)| *buffer).filter(|&buffer| self.is_cut(buffer)).collect()
    }

    /// The sizes of what an operation reads, in pieces or not, each buffer once.
    fn read_sizes(&self, op: OpId, in_pieces: bool) -> Vec<Bytes> {
        let reads = self.graph.deps(op).iter().filter(|(_, kinds)| kinds.data);
        let reads =
            reads.map(|(buffer, _)| *buffer).filter(|&buffer| self.is_cut(buffer) == in_pieces);
        let held: BTreeSet<BufId> = reads.map(|buffer| content(self.graph, buffer)).collect();
        held.into_iter().map(|buffer| self.graph.size_alloc(buffer)).collect()
    }

    fn claim(&self, op: OpId) -> Result<RowCount, Uncut> {
        let graph = self.graph;
        let is_odd = |&buffer: &BufId| {
            graph.size_alloc(buffer) != graph.size_free(buffer)
                || graph.view_of(buffer).is_some()
                || self.viewed.contains(&buffer)
                || graph.size_alloc(buffer) == Bytes::ZERO && graph.is_output(buffer)
        };
        let is_bound = graph
            .deps(op)
            .iter()
            .any(|&(buffer, kinds)| self.is_cut(buffer) && (kinds.weak || kinds.issued));
        if graph.outputs(op).iter().any(is_odd) || is_bound {
            return Err(Uncut::Memory);
        }
        match graph.kind(op) {
            OpKind::AsyncCollective => self.collective(op),
            OpKind::Wait => {
                let waits_for = graph.waits_for(op);
                let all = !waits_for.is_empty() && waits_for.iter().all(|&one| self.inside[one]);
                if all { Ok(RowCount::Any) } else { Err(Uncut::Wait) }
            }
            OpKind::Compute if graph.is_gemm_like(op) => self.product(op),
            OpKind::Compute => self.fused(op),
            OpKind::SyncCollective | OpKind::MultiOutput => Err(Uncut::Kind),
        }
    }

    fn collective(&self, op: OpId) -> Result<RowCount, Uncut> {
        let graph = self.graph;
        let reads = graph.deps(op).iter().filter(|(_, kinds)| kinds.data).count();
        let cuts = graph.collective(op).is_some_and(|of| {
            matches!(of.kind, CollectiveKind::AllReduce | CollectiveKind::AllToAll)
        });
        let sized = self.sized_results(op);
        if !cuts || reads != 1 || sized.len() > 1 {
            return Err(Uncut::Collective);
        }
        let all: Vec<Bytes> =
            [true, false].into_iter().flat_map(|pieces| self.read_sizes(op, pieces)).collect();
        let same = sized.iter().all(|size| all.contains(size));
        if same { Ok(RowCount::Any) } else { Err(Uncut::Sizes) }
    }

    fn sized_results(&self, op: OpId) -> Vec<Bytes> {
        let sizes = self.graph.outputs(op).iter().map(|&buffer| self.graph.size_alloc(buffer));
        sizes.filter(|&size| size > Bytes::ZERO).collect()
    }

    /// A matrix product. Its names include those of its operands' producers, which do not matter.
    fn product(&self, op: OpId) -> Result<RowCount, Uncut> {
        let names = self.graph.fused(op);
        let has = |name: &str| names.iter().any(|one| operation(one) == name);
        if !PRODUCTS.iter().any(|name| has(name)) || has("bmm") || has("baddbmm") {
            return Err(Uncut::Operation);
        }
        let flops = self.graph.flops(op).map_or(0.0, |flops| flops.0);
        let &[result] = &self.sized_results(op)[..] else { return Err(Uncut::Kind) };
        if !(2.0..1e24).contains(&flops) || flops % 2.0 != 0.0 {
            return Err(Uncut::Sizes);
        }
        let (work, result) = ((flops / 2.0) as u128, result.0 as u128);
        let rows = |operand: Bytes| Ratio::new(operand.0 as u128 * result, work);
        let whole = self.read_sizes(op, false);
        match self.read_sizes(op, true)[..] {
            [] => Ok(match whole.is_empty() {
                true => RowCount::Any,
                false => RowCount::OneOf(whole.into_iter().map(rows).collect()),
            }),
            [operand] => {
                let inner = |element: &u128| Ratio::new(work * element.pow(3), result);
                if ELEMENTS.iter().any(|element| inner(element) == rows(operand)) {
                    return Err(Uncut::Sizes);
                }
                let fits = |other: &Bytes| {
                    let product =
                        |element: &u128| Ratio::new(work * element.pow(3), other.0.max(1) as u128);
                    ELEMENTS.iter().any(|element| product(element) == rows(operand))
                };
                match whole.is_empty() || whole.iter().any(fits) {
                    true => Ok(RowCount::Is(rows(operand))),
                    false => Err(Uncut::Sizes),
                }
            }
            _ => Err(Uncut::Contracts),
        }
    }

    /// A fused kernel: elementwise, or with sums along rows.
    fn fused(&self, op: OpId) -> Result<RowCount, Uncut> {
        let names = self.graph.fused(op);
        let is_in = |list: &[&str], name: &String| list.contains(&operation(name));
        let is_known = |name: &String| is_in(&ELEMENTWISE, name) || is_in(&REDUCTIONS, name);
        if names.is_empty() || !names.iter().all(is_known) {
            return Err(Uncut::Operation);
        }
        let results = self.sized_results(op);
        let Some(&largest) = results.iter().max_by_key(|size| size.0) else {
            return Err(Uncut::Kind);
        };
        let in_pieces = self.read_sizes(op, true);
        // The operand of a lookup is read as a whole, so it is not one of the pieces.
        let looks_up = names.iter().any(|name| operation(name) == "embedding");
        if looks_up && !self.read_sizes(op, false).iter().any(|&size| size != largest) {
            return Err(Uncut::Operation);
        }
        let others: BTreeSet<Bytes> =
            results.iter().chain(&in_pieces).copied().filter(|&size| size != largest).collect();
        let reduces = names.iter().any(|name| is_in(&REDUCTIONS, name));
        let has_statistic = results.iter().any(|&size| size != largest);
        match (others.len(), others.first()) {
            (0, _) if !reduces => Ok(RowCount::Any),
            (1, Some(&size)) if has_statistic || !reduces => {
                Ok(RowCount::Statistic { size, all: largest })
            }
            _ => Err(Uncut::Sizes),
        }
    }
}

/// The operation that a node of a traced program does: the second `mul` is called `mul_1`.
fn operation(name: &str) -> &str {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|one| one.is_ascii_digit());
    name.rsplit_once('_').filter(|(_, number)| is_number(number)).map_or(name, |(of, _)| of)
}

/// The operations of a part whose rows are not those of most.
fn misfits(part: &[OpId], claims: &BTreeMap<OpId, RowCount>) -> Vec<OpId> {
    let mut counts: BTreeMap<Ratio, usize> = BTreeMap::new();
    for op in part {
        if let Some(RowCount::Is(rows)) = claims.get(op) {
            *counts.entry(*rows).or_default() += 1;
        }
    }
    let most = counts.iter().max_by_key(|(rows, count)| (**count, std::cmp::Reverse(**rows)));
    let rows = most.map(|(rows, _)| *rows);
    let fits = |op: &OpId| match (claims.get(op), rows) {
        (Some(RowCount::Any | RowCount::OneOf(_)), None) => true,
        (Some(RowCount::Any), _) => true,
        (Some(RowCount::Is(own)), Some(rows)) => *own == rows,
        (Some(RowCount::OneOf(own)), Some(rows)) => own.contains(&rows),
        (Some(RowCount::Statistic { size, all }), Some(rows)) => is_one_a_row([*size, *all], rows),
        _ => false,
    };
    part.iter().copied().filter(|op| !fits(op)).collect()
}

/// Whether a result has one number for each row, and there are more or fewer columns than rows:
/// else it could have one for each column.
fn is_one_a_row(sizes: [Bytes; 2], rows: Ratio) -> bool {
    let [Ok(size), Ok(all)] = sizes.map(|size| u128::try_from(size.0)) else { return false };
    let fits = |element: u128, number: u128| {
        let count = Ratio::new(size, number);
        let square = Ratio::new(all * number, element * size.max(1));
        count == Ratio::new(rows.over, rows.under * element * element) && square != count
    };
    ELEMENTS.iter().any(|&element| fits(element, element) || fits(element, STATISTIC))
}
