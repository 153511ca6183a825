//! Rewrites: a recipe applied to a graph gives another graph and the origin of every operation and
//! buffer.
//!
//! A recipe is data, and applying it decides nothing but whether it can be applied. The new graph is
//! built through [`Parts`](crate::graph::Parts) and validated like every other. That both graphs
//! compute the same is proved by [`verify_rewrite`](crate::verify_rewrite), which shares no code with
//! this module.

mod check;
mod merge;
mod order;

mod price;

use crate::origin::Origin;
pub use price::{CopyCost, Prices};

use thiserror::Error;

use crate::collective::CollectiveKind;
use crate::graph::{Graph, GraphError};
use crate::ids::OpId;
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
    #[error("'{member}' is named twice: each collective can be merged once")]
    Twice { member: String },
    #[error("'{member}' is no collective: only collectives can be merged")]
    NotACollective { member: String },
    #[error("'{member}' is of kind {}: only all_reduce, all_gather and reduce_scatter can be merged", kind.name())]
    NotMergeable { member: String, kind: CollectiveKind },
    #[error("'{member}' combines in a way that is not known, so that nothing says it is that of others")]
    UnknownReduction { member: String },
    #[error("'{first}' and '{second}' differ in {what}: {values}; members must have the same")]
    Differs { first: String, second: String, what: &'static str, values: String },
    #[error("'{second}' depends on '{first}': between members there must be no path")]
    Dependent { first: String, second: String },
    #[error("wait '{wait}' ends '{member}' and others: members must have waits of their own")]
    SharedWait { wait: String, member: String },
    #[error("'{member}' hands its results out by '{through}': coalesced collectives cannot be merged again")]
    HandsOut { member: String, through: String },
    #[error("the sizes of the members add up to more than can be counted")]
    TooLarge,
    #[error("the new program is not valid: {0}")]
    Invalid(#[from] GraphError),
    #[error("the new program is not proved: {0}")]
    Unproved(#[from] RewriteViolation),
}

/// Applies a recipe and proves the result: no graph leaves without a proof.
pub fn rewrite(graph: &Graph, recipe: &Recipe, prices: &Prices<'_>) -> Result<Rewritten, RewriteError> {
    let rewritten = apply(graph, recipe, prices)?;
    verify_rewrite(graph, &rewritten.graph, &rewritten.origin)?;
    Ok(rewritten)
}

/// Applies a recipe; the result is not proved yet.
pub fn apply(graph: &Graph, recipe: &Recipe, prices: &Prices<'_>) -> Result<Rewritten, RewriteError> {
    match recipe {
        Recipe::Merge { members } => merge::merge(graph, members, prices),
    }
}

/// Merges sets of collectives that are given by their names, one set after the other.
pub fn merge_named(graph: &Graph, sets: &[Vec<String>], prices: &Prices<'_>) -> Result<Rewritten, RewriteError> {
    let mut rewritten = Rewritten { graph: graph.clone(), origin: Origin::unchanged(graph) };
    for names in sets {
        let find = |name: &String| {
            let found = rewritten.graph.find(name);
            found.ok_or_else(|| RewriteError::UnknownNode { name: name.clone() })
        };
        let members = names.iter().map(find).collect::<Result<_, _>>()?;
        let next = rewrite(&rewritten.graph, &Recipe::Merge { members }, prices)?;
        rewritten = Rewritten { graph: next.graph, origin: rewritten.origin.then(&next.origin) };
    }
    Ok(rewritten)
}
