//! Rewrites: a recipe applied to a graph gives another graph and the origin of every operation and
//! buffer.
//!
//! A recipe is data; applying it decides only whether it can be applied. The new graph is built
//! through [`Parts`](crate::graph::Parts) and validated like every other. That both graphs compute
//! the same is proved by [`verify_rewrite`](crate::verify_rewrite), which shares no code with this
//! module.

mod check;
mod groups;
mod keep;
mod merge;
mod order;
mod price;
mod rows;
mod split;

use crate::origin::{Origin, Part};
pub use check::{circle, mergeable};
pub use groups::{Undoubled, divisible};
pub use keep::{Unkept, repeated};
pub use price::{CopyCost, Prices, TAIL};
pub use rows::{Uncut, cuttable};
use split::Cut;

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
    /// Operations that work row by row, collectives among them, become pieces on a part of the rows
    /// each, so that one piece travels while the next is computed.
    Split {
        /// The operations.
        members: Vec<OpId>,
        /// The number of pieces of each; at least two.
        pieces: u32,
    },
    /// All-gathers that send the same values become one, the first: its result stays until the last
    /// of their readers.
    Keep {
        /// The all-gathers; at least two.
        members: Vec<OpId>,
    },
    /// Collectives of a process group move to a second communicator of the same ranks, and run
    /// beside those that stay.
    Groups {
        /// The collectives that move; not all of their group.
        members: Vec<OpId>,
    },
}

/// The kinds of recipes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RewriteKind {
    /// [`Recipe::Merge`].
    Merge,
    /// [`Recipe::Split`].
    Split,
    /// [`Recipe::Keep`].
    Keep,
    /// [`Recipe::Groups`].
    Groups,
}

impl RewriteKind {
    /// Every kind.
    pub const ALL: [RewriteKind; 4] =
        [RewriteKind::Merge, RewriteKind::Split, RewriteKind::Keep, RewriteKind::Groups];

    /// Whether it is used only where it is named: communicators that run at the same time on the
    /// same devices can hang, and take memory that no graph knows of.
    pub fn is_on_request(self) -> bool {
        self == RewriteKind::Groups
    }

    /// As options and reports call it.
    pub fn name(self) -> &'static str {
        match self {
            RewriteKind::Merge => "merge",
            RewriteKind::Split => "split",
            RewriteKind::Keep => "keep",
            RewriteKind::Groups => "groups",
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
            Recipe::Keep { .. } => RewriteKind::Keep,
            Recipe::Groups { .. } => RewriteKind::Groups,
        }
    }

    /// The operations of the old program that it changes.
    pub fn members(&self) -> &[OpId] {
        match self {
            Recipe::Merge { members }
            | Recipe::Split { members, .. }
            | Recipe::Keep { members }
            | Recipe::Groups { members } => members,
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
    #[error("this rewrite takes two or more collectives, and {count} was named")]
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
    #[error("'{second}' does not repeat '{first}': {}", why.words())]
    NotRepeated { first: String, second: String, why: Unkept },
    #[error("process group '{group}' gets no second communicator: {}", why.words())]
    NotDoubled { group: String, why: Undoubled },
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

/// Applies recipes, all of them to the graph as it is; the result is not proved yet. What is kept
/// comes first, then pieces, then merges, because each leaves less to the next. What they give
/// moves to other communicators last.
pub fn apply(
    graph: &Graph,
    recipes: &[Recipe],
    prices: &Prices<'_>,
) -> Result<Rewritten, RewriteError> {
    let of_kind = |kind: RewriteKind| recipes.iter().filter(move |recipe| recipe.kind() == kind);
    let unchanged = || Rewritten { graph: graph.clone(), origin: Origin::unchanged(graph) };
    let mut stages = Stages { graph, so_far: None };
    let sets: Vec<&[OpId]> = of_kind(RewriteKind::Keep).map(Recipe::members).collect();
    if !sets.is_empty() {
        stages.add(keep::keep(graph, &sets)?);
    }
    let (mut cuts, mut sets) = (Vec::new(), Vec::new());
    for recipe in recipes {
        match recipe {
            Recipe::Keep { .. } | Recipe::Groups { .. } => {}
            Recipe::Merge { members } => sets.push(members),
            Recipe::Split { members, pieces } => cuts.push((stages.now(members)?, *pieces)),
        }
    }
    if !cuts.is_empty() {
        let cuts: Vec<Cut<'_>> =
            cuts.iter().map(|(members, pieces)| Cut { members, pieces: *pieces }).collect();
        stages.add(split::split(stages.graph(), &cuts, prices)?);
    }
    if !sets.is_empty() {
        let sets = sets.into_iter().map(|members| stages.now(members));
        let sets = sets.collect::<Result<Vec<_>, _>>()?;
        stages.add(merge::merge(stages.graph(), &sets, prices)?);
    }
    let moved = of_kind(RewriteKind::Groups).map(|recipe| stages.made_of(recipe.members()));
    let moved: Vec<Vec<OpId>> = moved.collect();
    if !moved.is_empty() {
        stages.add(groups::double(stages.graph(), &moved)?);
    }
    Ok(stages.so_far.unwrap_or_else(unchanged))
}

/// A program that is changed step by step.
struct Stages<'a> {
    graph: &'a Graph,
    so_far: Option<Rewritten>,
}

impl Stages<'_> {
    /// As it is now.
    fn graph(&self) -> &Graph {
        self.so_far.as_ref().map_or(self.graph, |rewritten| &rewritten.graph)
    }

    /// Operations of the first program in the present one; none may have been changed.
    fn now(&self, members: &[OpId]) -> Result<Vec<OpId>, RewriteError> {
        let Some(Rewritten { graph, origin }) = &self.so_far else { return Ok(members.to_vec()) };
        let new = |&old: &OpId| {
            let found = graph.find(self.graph.name(old));
            let is_kept = |op: &OpId| origin.ops[*op].part == Part::Kept;
            let twice = || RewriteError::Twice { member: self.graph.name(old).to_owned() };
            found.filter(is_kept).ok_or_else(twice)
        };
        members.iter().map(new).collect()
    }

    /// The collectives of the present program that stand for some of the first one.
    fn made_of(&self, members: &[OpId]) -> Vec<OpId> {
        let Some(Rewritten { graph, origin }) = &self.so_far else { return members.to_vec() };
        let is_made_of = |op: &OpId| {
            let mut of = origin.ops[*op].of.iter();
            graph.kind(*op).is_collective() && of.all(|old| members.contains(old))
        };
        graph.ops().filter(is_made_of).collect()
    }

    fn add(&mut self, next: Rewritten) {
        let origin = match &self.so_far {
            Some(before) => before.origin.then(&next.origin),
            None => next.origin,
        };
        self.so_far = Some(Rewritten { graph: next.graph, origin });
    }
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
