//! Whether operations that were split work row by row.
//!
//! Operations that pass single pieces to each other are split along the same axis. There must be a
//! number of rows, and an element size, that is consistent for each of them: a product takes twice
//! `rows x inner x columns` floating-point operations, and does not sum over the rows; the split
//! inputs and the results of a fused kernel have one size, or one number for each row.

use std::collections::BTreeSet;

use super::{Checked, RewriteViolation};
use crate::collective::CollectiveKind;
use crate::graph::{Graph, OpKind};
use crate::ids::{BufId, OpId};
use crate::units::Bytes;

/// Cut operations of the old program, connected by pieces that they hand to each other.
pub(super) struct Component<'a> {
    pub(super) graph: &'a Graph,
    pub(super) ops: &'a [OpId],
    /// Whether each piece of an operation reads only its own part of a buffer.
    pub(super) reads_own: &'a dyn Fn(OpId, BufId) -> bool,
}

/// An axis: how many rows, and how many bytes an element has.
#[derive(Clone, Copy)]
struct Axis {
    rows: f64,
    element: f64,
}

/// The buffer behind a name. A collective whose results have size zero passes on what it reads, and
/// so does a wait: of what it reads, what a collective made, before the input of that.
pub(super) fn content(graph: &Graph, buffer: BufId) -> BufId {
    let is_name = graph.size_alloc(buffer) == Bytes::ZERO;
    let hands_on =
        |&maker: &OpId| graph.kind(maker) == OpKind::Wait || graph.collective(maker).is_some();
    let read = graph.maker(buffer).filter(hands_on).filter(|_| is_name).and_then(|maker| {
        let made = |read: BufId| graph.maker(read).is_some_and(|op| graph.collective(op).is_some());
        let read = graph.deps(maker).iter().filter(|(_, kinds)| kinds.data).map(|(read, _)| *read);
        read.min_by_key(|&read| graph.kind(maker) != OpKind::Wait || !made(read))
    });
    read.map_or(buffer, |read| content(graph, read))
}

impl Component<'_> {
    pub(super) fn has_rows(&self) -> Checked {
        let bad = |axis: Option<Axis>| self.ops.iter().copied().find(|&op| !self.fits(op, axis));
        // The first product with an operand in pieces says how many rows there can be.
        let product = self.ops.iter().copied().find_map(|op| {
            let operand = self.graph.is_gemm_like(op).then(|| self.sizes(op, true))?;
            Some((op, *operand.first()?))
        });
        let refused = match product {
            None => bad(None),
            Some((op, operand)) => {
                let tried = [1.0, 2.0, 4.0, 8.0].map(|element| {
                    let work = self.graph.flops(op).map_or(0.0, |flops| flops.0) / 2.0;
                    let made: f64 = self.made(op).iter().sum();
                    let rows = (operand * made / (work * element * element)).round();
                    bad(Some(Axis { rows, element }))
                });
                tried.into_iter().find(Option::is_none).unwrap_or(tried[2])
            }
        };
        match refused {
            Some(op) => Err(RewriteViolation::NotRows { node: self.graph.name(op).to_owned() }),
            None => Ok(()),
        }
    }

    /// The sizes of what an operation reads, in pieces or as a whole.
    fn sizes(&self, op: OpId, in_pieces: bool) -> Vec<f64> {
        let deps = self.graph.deps(op).iter().filter(|(_, kinds)| kinds.data);
        let read = deps.map(|(buffer, _)| *buffer);
        let read = read.filter(|&buffer| (self.reads_own)(op, buffer) == in_pieces);
        let held: BTreeSet<BufId> = read.map(|buffer| content(self.graph, buffer)).collect();
        held.into_iter().map(|buffer| self.graph.size_alloc(buffer).0 as f64).collect()
    }

    fn made(&self, op: OpId) -> Vec<f64> {
        let made = self.graph.outputs(op).iter().map(|&one| self.graph.size_alloc(one).0 as f64);
        made.filter(|&size| size > 0.0).collect()
    }

    fn fits(&self, op: OpId, axis: Option<Axis>) -> bool {
        match self.graph.kind(op) {
            OpKind::Wait => true,
            OpKind::AsyncCollective => self.moves_elements(op),
            OpKind::Compute if self.graph.is_gemm_like(op) => self.multiplies_rows(op, axis),
            OpKind::Compute => self.maps_rows(op, axis),
            OpKind::SyncCollective | OpKind::MultiOutput => false,
        }
    }

    /// An all-reduce or all-to-all of one buffer, in place or into one of the same size.
    fn moves_elements(&self, op: OpId) -> bool {
        let kind = self.graph.collective(op).map(|of| of.kind);
        let read: Vec<f64> =
            [true, false].into_iter().flat_map(|pieces| self.sizes(op, pieces)).collect();
        matches!(kind, Some(CollectiveKind::AllReduce | CollectiveKind::AllToAll))
            && read.len() == 1
            && matches!(self.made(op)[..], [] | [_])
            && self.made(op).iter().all(|made| read.contains(made))
    }

    fn multiplies_rows(&self, op: OpId, axis: Option<Axis>) -> bool {
        let is_called = |name: &str| self.graph.fused(op).iter().any(|one| unnumbered(one) == name);
        let work = self.graph.flops(op).map_or(0.0, |flops| flops.0);
        let &[made] = &self.made(op)[..] else { return false };
        if !(is_called("mm") || is_called("addmm")) || is_called("bmm") || is_called("baddbmm") {
            return false;
        }
        let (cut, whole) = (self.sizes(op, true), self.sizes(op, false));
        let Some(Axis { rows, element }) = axis else { return cut.is_empty() && work > 0.0 };
        // With what it shares with the result along the rows, an operand has what is summed over.
        let inner = |operand: f64| operand / (rows * element);
        let columns = made / (rows * element);
        let is_product = |operand: f64| 2.0 * rows * inner(operand) * columns == work;
        match cut[..] {
            [] => whole.is_empty() || whole.iter().any(|&operand| is_product(operand)),
            [operand] => {
                let other = inner(operand) * columns * element;
                is_product(operand)
                    && inner(operand) != rows
                    && (whole.is_empty() || whole.contains(&other))
            }
            _ => false,
        }
    }

    fn maps_rows(&self, op: OpId, axis: Option<Axis>) -> bool {
        let names: Vec<&str> = self.graph.fused(op).iter().map(|one| unnumbered(one)).collect();
        if names.is_empty() || !names.iter().all(|name| is_elementwise(name) || sums(name)) {
            return false;
        }
        let (made, cut) = (self.made(op), self.sizes(op, true));
        let Some(all) = made.iter().copied().reduce(f64::max) else { return false };
        let is_looked_up = self.sizes(op, false).iter().any(|&size| size != all);
        if names.contains(&"embedding") && !is_looked_up {
            return false;
        }
        let mut small = made.iter().chain(&cut).copied().filter(|&size| size != all);
        let one_each = |size: f64, axis: Axis| {
            let numbers = [size / 4.0, size / axis.element];
            numbers.contains(&axis.rows) && all / (axis.rows * axis.element) != axis.rows
        };
        let says_rows = made.iter().any(|&size| size != all);
        (says_rows || !names.iter().any(|name| sums(name)))
            && small.all(|size| axis.is_some_and(|axis| one_each(size, axis)))
    }
}

/// Traced programs number their nodes, `add`, `add_1`, `add_2`, by what they do.
fn unnumbered(name: &str) -> &str {
    let short = name.trim_end_matches(|one: char| one.is_ascii_digit());
    if short.len() < name.len() { short.strip_suffix('_').unwrap_or(name) } else { name }
}

fn sums(name: &str) -> bool {
    matches!(name, "amax" | "amin" | "mean" | "prod" | "sum" | "var" | "var_mean")
}

/// Whether an operation computes each element from one element, or only renames.
#[rustfmt::skip]
fn is_elementwise(name: &str) -> bool {
    matches!(
        name,
        "abs" | "add" | "bitwise_and" | "bitwise_not" | "bitwise_or" | "ceil" | "clamp" | "clamp_max"
            | "clamp_min" | "cos" | "div" | "eq" | "erf" | "exp" | "expm1" | "floor" | "fma" | "ge"
            | "gelu" | "gt" | "isnan" | "le" | "log" | "log1p" | "logical_and" | "logical_not"
            | "logical_or" | "lt" | "maximum" | "minimum" | "mul" | "ne" | "neg" | "pow"
            | "reciprocal" | "relu" | "round" | "rsqrt" | "sigmoid" | "sign" | "silu" | "sin"
            | "sqrt" | "sub" | "tanh" | "where"
            | "_to_copy" | "alias" | "clone" | "convert_element_type" | "copy" | "detach" | "expand"
            | "full" | "full_like" | "lift_fresh_copy" | "ones_like" | "reshape" | "scalar_tensor"
            | "view" | "zeros_like"
            | "all_reduce" | "all_reduce_" | "all_to_all_single" | "embedding" | "wait_tensor"
    )
}
