//! Rewrites: a recipe applied to a graph gives another graph and the origin of every operation and
//! buffer.
//!
//! A recipe is data; applying it decides only whether it can be applied. The new graph is built
//! through [`Parts`](crate::graph::Parts) and validated like every other. That both graphs compute
//! the same is proved by [`verify_rewrite`](crate::verify_rewrite), which shares no code with this
//! module.

mod check;
mod merge;
mod order;
mod price;
mod rows;
mod split;

use crate::origin::{Origin, Part};
pub use check::{circle, mergeable};
pub use price::{CopyCost, CostLine, Prices, TAIL};
pub use rows::{Uncut, cuttable};
use split::Cut;

use thiserror::Error;

use crate::collective::CollectiveKind;
use crate::graph::{Graph, GraphError};
use crate::ids::{IdVec, OpId};
use crate::verify_rewrite::{RewriteViolation, verify_rewrite};

/// A way to change a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Recipe {
    /// Several collectives become one: what they send is copied into a bucket, one collective
    /// transfers it, and results are taken out again.
    Merge {
        /// The collectives; at least two.
        members: Vec<OpId>,
    },
    /// Operations that work row by row, collectives among them, become pieces on a part of the rows
    /// each, so that one piece travels while the next is computed.
    Split {
        /// The operations.
        members: Vec<OpId>,
        /// The number of pieces of each; at least two.
        pieces: u32,
    },
}

/// The kinds of recipes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RewriteKind {
    /// [`Recipe::Merge`].
    Merge,
    /// [`Recipe::Split`].
    Split,
}

impl RewriteKind {
    /// Every kind.
    pub const ALL: [RewriteKind; 2] = [RewriteKind::Merge, RewriteKind::Split];

    /// As options and reports call it.
    pub fn name(self) -> &'static str {
        match self {
            RewriteKind::Merge => "merge",
            RewriteKind::Split => "split",
        }
    }

    /// The kind of a name.
    pub fn named(name: &str) -> Option<RewriteKind> {
        RewriteKind::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

impl Recipe {
    /// Its kind.
    pub fn kind(&self) -> RewriteKind {
        match self {
            Recipe::Merge { .. } => RewriteKind::Merge,
            Recipe::Split { .. } => RewriteKind::Split,
        }
    }

    /// The operations of the old program that it changes.
    pub fn members(&self) -> &[OpId] {
        match self {
            Recipe::Merge { members } | Recipe::Split { members, .. } => members,
        }
    }

    /// Whether it keeps every bit. The order of an all-reduce's sum depends on where an element
    /// stands in the message.
    pub fn is_exact(&self, graph: &Graph) -> bool {
        let mut collectives = self.members().iter().filter_map(|&op| graph.collective(op));
        !collectives.any(|of| of.kind == CollectiveKind::AllReduce)
    }
}

/// A changed program.
#[derive(Clone, Debug)]
pub struct Rewritten {
    /// The new program.
    pub graph: Graph,
    /// What became of the old one.
    pub origin: Origin,
}

/// Why a recipe cannot be applied.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[allow(missing_docs)]
pub enum RewriteError {
    #[error("'{name}' is not a node of the graph")]
    UnknownNode { name: String },
    #[error("a merge needs two or more collectives, and {count} was named")]
    TooFew { count: usize },
    #[error("'{member}' is named twice: an operation can be merged or cut once")]
    Twice { member: String },
    #[error("'{member}' is no collective: only collectives can be merged")]
    NotACollective { member: String },
    #[error("'{member}' is of kind {}: only all_reduce, all_gather and reduce_scatter can be merged", kind.name())]
    NotMergeable { member: String, kind: CollectiveKind },
    #[error(
        "'{member}' combines in a way that is not known, so that nothing says it is that of others"
    )]
    UnknownReduction { member: String },
    #[error("'{first}' and '{second}' differ in {what}: {values}; members must have the same")]
    Differs { first: String, second: String, what: &'static str, values: String },
    #[error("'{second}' depends on '{first}': between members there must be no path")]
    Dependent { first: String, second: String },
    #[error("the sets of '{first}' and '{second}' need each other: they cannot both be merged")]
    Circular { first: String, second: String },
    #[error("wait '{wait}' ends '{member}' and others: members must have waits of their own")]
    SharedWait { wait: String, member: String },
    #[error(
        "'{member}' hands its results out by '{through}': coalesced collectives cannot be merged again"
    )]
    HandsOut { member: String, through: String },
    #[error("'{node}' cannot be cut into pieces: {}", why.words())]
    NotCut { node: String, why: Uncut },
    #[error("a split needs operations, and two or more pieces, not {pieces}")]
    TooFewPieces { pieces: u32 },
    #[error("'{name}' is what a piece would be called, and is the name of another node")]
    NameTaken { name: String },
    #[error("the sizes of the members add up to more than can be counted")]
    TooLarge,
    #[error("the new program is not valid: {0}")]
    Invalid(#[from] GraphError),
    #[error("the new program is not proved: {0}")]
    Unproved(#[from] RewriteViolation),
}

/// Applies recipes and proves the result: no graph is returned without a proof.
pub fn rewrite(
    graph: &Graph,
    recipes: &[Recipe],
    prices: &Prices<'_>,
) -> Result<Rewritten, RewriteError> {
    let rewritten = apply(graph, recipes, prices)?;
    verify_rewrite(graph, &rewritten.graph, &rewritten.origin)?;
    Ok(rewritten)
}

/// Applies recipes, all of them to the graph as it is; the result is not proved yet.
pub fn apply(
    graph: &Graph,
    recipes: &[Recipe],
    prices: &Prices<'_>,
) -> Result<Rewritten, RewriteError> {
    let (mut cuts, mut sets) = (Vec::new(), Vec::new());
    for recipe in recipes {
        match recipe {
            Recipe::Merge { members } => sets.push(members.clone()),
            Recipe::Split { members, pieces } => cuts.push(Cut { members, pieces: *pieces }),
        }
    }
    if cuts.is_empty() {
        return merge::merge(graph, &sets, prices);
    }
    let cut = split::split(graph, &cuts, prices)?;
    if sets.is_empty() {
        return Ok(cut);
    }
    let mut now: IdVec<OpId, Option<OpId>> = IdVec::filled(None, graph.len());
    for (new, source) in cut.origin.ops.iter().filter(|(_, source)| source.part == Part::Kept) {
        source.of.iter().for_each(|&old| now[old] = Some(new));
    }
    for member in sets.iter_mut().flatten() {
        let name = || graph.name(*member).to_owned();
        *member = now[*member].ok_or_else(|| RewriteError::Twice { member: name() })?;
    }
    let merged = merge::merge(&cut.graph, &sets, prices)?;
    Ok(Rewritten { graph: merged.graph, origin: cut.origin.then(&merged.origin) })
}

/// Merges sets of collectives that are given by their names, and proves the result. A set may name
/// the result of an earlier one, which it then takes in.
pub fn merge_named(
    graph: &Graph,
    sets: &[Vec<String>],
    prices: &Prices<'_>,
) -> Result<Rewritten, RewriteError> {
    let mut merges: Vec<Vec<OpId>> = Vec::new();
    for names in sets {
        let mut members = Vec::new();
        for name in names {
            let earlier = merges.iter().position(|members| is_result(graph, members, name));
            match (graph.find(name), earlier) {
                (Some(op), _) => members.push(op),
                (None, Some(earlier)) => members.extend(merges.remove(earlier)),
                (None, None) => return Err(RewriteError::UnknownNode { name: name.clone() }),
            }
        }
        members.sort_unstable();
        merges.push(members);
    }
    if merges.is_empty() {
        return Ok(Rewritten { graph: graph.clone(), origin: Origin::unchanged(graph) });
    }
    let recipes: Vec<Recipe> =
        merges.into_iter().map(|members| Recipe::Merge { members }).collect();
    rewrite(graph, &recipes, prices)
}

/// Whether the collective that a set becomes has a name.
fn is_result(graph: &Graph, members: &[OpId], name: &str) -> bool {
    members.first().is_some_and(|&first| merge::result_name(graph, first, members.len()) == name)
}
