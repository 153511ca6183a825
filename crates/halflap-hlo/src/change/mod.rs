//! Changed modules: recipes, applied to the text through a [`Draft`](crate::draft).
//!
//! A recipe names instructions, so that recipes can follow each other. Finding and applying share
//! the conditions, which say why a recipe does not apply. Whether one is worth it is decided
//! elsewhere; that the result computes the same is proved by [`same`](crate::same), which shares no
//! code with this module.

mod again;
mod axes;
mod given;
mod keep;
mod later;
mod levels;
mod merge;
mod narrow;
mod offsets;
mod piece;
mod pipeline;
mod region;
mod scatter;
mod split;
mod zeros;

use std::collections::HashMap;
use std::fmt;

use thiserror::Error;

use crate::draft::{Draft, DraftError};
use crate::ids::{ComputationId, InstrId};
use crate::nature::reduction;
use crate::{Array, ElementType, Module, Opcode};
use halflap::collective::Reduction;
use halflap::ids::{Id, IdVec};
use halflap::units::Bytes;

pub use merge::MergeClass;
pub use region::RegionPieces;

/// A way to change a module, by the names of instructions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Recipe {
    /// An all-reduce of which each rank uses only its own slice becomes a reduce-scatter.
    Scatter {
        /// The all-reduce.
        all_reduce: String,
    },
    /// An all-reduce of which the whole is needed after elementwise operations becomes a
    /// reduce-scatter, these operations on slices, and an all-gather.
    Shard {
        /// The all-reduce.
        all_reduce: String,
    },
    /// Several collectives become one with several operands.
    Merge {
        /// The collectives; at least two, in text order.
        members: Vec<String>,
    },
    /// A collective sends the narrower type: the convert after it moves before it, or vice versa.
    Narrow {
        /// The collective.
        collective: String,
    },
    /// All-gathers of a loop run in the previous iteration, those of the first one before the loop;
    /// reductions of a loop run in the next iteration, those of the last one after the loop.
    Pipeline {
        /// The collectives, of one loop.
        members: Vec<String>,
        /// Where an iteration leaves what the next one needs.
        buffers: CarriedBuffers,
    },
    /// Several all-gathers with the same result become one, the first, and its result is kept for
    /// the readers of the others, or what the first one's readers made of it.
    Keep {
        /// The all-gathers, in the text's sequence.
        members: Vec<String>,
        /// What is kept: the first of them, or values that are made of it.
        kept: Vec<String>,
    },
    /// An all-gather is done again for its later readers, and its first result is not kept for
    /// them.
    Again {
        /// The all-gather.
        gather: String,
        /// The first reader, in the text's sequence, that reads the second one.
        from: String,
    },
    /// An all-reduce and the product that it reduces, or an all-gather and the product that reads
    /// it, are done in pieces.
    Split {
        /// The collective.
        collective: String,
        /// How many.
        pieces: u64,
        /// The bytes of a product's result that a piece takes longer by, if not the usual ones.
        tail: Option<Bytes>,
    },
    /// Collectives and what is computed around them are done in pieces along one axis.
    Region {
        /// The collectives; the region grows from the first.
        members: Vec<String>,
        /// How it is cut.
        cut: RegionPieces,
    },
    /// A collective over nodes becomes one within each node and one across nodes.
    Levels {
        /// The collective.
        collective: String,
        /// Ranks are laid out over nodes one after the other, so many on each.
        ranks_per_node: u32,
    },
}

/// Into which iteration collectives of a loop move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shift {
    /// All-gathers into the previous one.
    Ahead,
    /// All-reduces and reduce-scatters into the next one.
    Later,
}

impl Shift {
    /// Both.
    pub const ALL: [Shift; 2] = [Shift::Ahead, Shift::Later];
}

/// Where an iteration leaves what the next one needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CarriedBuffers {
    /// Into the buffer that it received itself, after its last read.
    One,
    /// Into another buffer, at any time, which is copied at the end of the iteration.
    Two,
}

/// The kinds of recipes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RecipeKind {
    /// [`Recipe::Scatter`] and [`Recipe::Shard`].
    Scatter,
    /// [`Recipe::Merge`].
    Merge,
    /// [`Recipe::Narrow`].
    Narrow,
    /// [`Recipe::Pipeline`].
    Pipeline,
    /// [`Recipe::Keep`].
    Keep,
    /// [`Recipe::Again`].
    Again,
    /// [`Recipe::Split`] and [`Recipe::Region`].
    Split,
    /// [`Recipe::Levels`].
    Levels,
}

impl RecipeKind {
    /// Every kind.
    pub const ALL: [RecipeKind; 8] = [
        RecipeKind::Scatter,
        RecipeKind::Merge,
        RecipeKind::Narrow,
        RecipeKind::Pipeline,
        RecipeKind::Keep,
        RecipeKind::Again,
        RecipeKind::Split,
        RecipeKind::Levels,
    ];

    /// Its name in options and reports.
    pub fn name(self) -> &'static str {
        match self {
            RecipeKind::Scatter => "reduce-scatter",
            RecipeKind::Merge => "merge",
            RecipeKind::Narrow => "narrow",
            RecipeKind::Pipeline => "pipeline",
            RecipeKind::Keep => "keep",
            RecipeKind::Again => "gather-again",
            RecipeKind::Split => "split",
            RecipeKind::Levels => "two-levels",
        }
    }

    /// The kind with this name.
    pub fn named(name: &str) -> Option<RecipeKind> {
        RecipeKind::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

impl Recipe {
    /// Its kind.
    pub fn kind(&self) -> RecipeKind {
        match self {
            Recipe::Scatter { .. } | Recipe::Shard { .. } => RecipeKind::Scatter,
            Recipe::Merge { .. } => RecipeKind::Merge,
            Recipe::Narrow { .. } => RecipeKind::Narrow,
            Recipe::Pipeline { .. } => RecipeKind::Pipeline,
            Recipe::Keep { .. } => RecipeKind::Keep,
            Recipe::Again { .. } => RecipeKind::Again,
            Recipe::Split { .. } | Recipe::Region { .. } => RecipeKind::Split,
            Recipe::Levels { .. } => RecipeKind::Levels,
        }
    }

    /// The collectives that it changes.
    pub fn members(&self) -> &[String] {
        match self {
            Recipe::Scatter { all_reduce: member }
            | Recipe::Shard { all_reduce: member }
            | Recipe::Narrow { collective: member }
            | Recipe::Again { gather: member, .. }
            | Recipe::Split { collective: member, .. }
            | Recipe::Levels { collective: member, .. } => std::slice::from_ref(member),
            Recipe::Merge { members }
            | Recipe::Pipeline { members, .. }
            | Recipe::Keep { members, .. }
            | Recipe::Region { members, .. } => members,
        }
    }
}

/// A recipe that applies, and whether it keeps every bit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// The recipe.
    pub recipe: Recipe,
    /// Whether it keeps every bit; others change the order of summation.
    pub is_exact: bool,
}

/// All-gathers that need not be repeated.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FoundKeep {
    /// The recipe.
    pub recipe: Recipe,
    /// The all-gathers that are left out.
    pub again: Vec<InstrId>,
    /// What stays in memory instead, in text order.
    pub kept: Vec<KeptValue>,
}

/// A value that stays in memory, so that it is not computed again.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct KeptValue {
    /// What computes it.
    pub value: InstrId,
    /// What would compute it again.
    pub instead_of: Vec<InstrId>,
}

/// An all-gather that can be done again for its later readers.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FoundAgain {
    /// The recipe.
    pub recipe: Recipe,
    /// The gather, and what is made of its result alone: none of it is kept for later readers.
    pub values: Vec<InstrId>,
    /// The last reader of the first gather.
    pub last_early: InstrId,
    /// The first reader of the second one.
    pub first_late: InstrId,
}

/// Why a recipe does not apply.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum ChangeError {
    #[error("'{name}' is not an instruction of the module")]
    Unknown { name: String },
    #[error("'{name}' {why}")]
    Refused { name: String, why: Refusal },
    #[error("'{first}' and '{second}' {why}")]
    NotTogether { first: String, second: String, why: Apart },
    #[error("a merge needs two or more collectives, and {count} was named")]
    TooFew { count: usize },
    #[error(transparent)]
    Draft(#[from] DraftError),
}

/// Why an instruction cannot be changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum Refusal {
    #[error("is not an instruction that this rewrite applies to")]
    Kind,
    #[error("has control dependencies")]
    Controls,
    #[error("is the result of its computation: all of it is needed")]
    Root,
    #[error("has several operands already")]
    Variadic,
    #[error("has a shape that is not static")]
    Dynamic,
    #[error("is also used by something that needs all of it")]
    WholeUsed,
    #[error("has groups of different sizes, or not all devices take part")]
    Groups,
    #[error("is sliced at offsets that are not the ranks' places in their groups")]
    Offsets,
    #[error("has readers that use another layout")]
    Layout,
    #[error("would send no fewer bytes the other way round")]
    NotNarrower,
    #[error("cannot run in another iteration of its loop")]
    NotShifted,
    #[error("is not in a loop that can carry more values")]
    Loop,
    #[error("and the others named with it do not gather the same again, in the text's sequence")]
    NotSame,
    #[error("is not read both by the reader that is named and by an earlier one")]
    NotBetween,
    #[error("stays in memory: an earlier reader only passes it on or starts something with it")]
    PassedOn,
    #[error("neither reduces nor feeds a single product of matrices")]
    NoProduct,
    #[error("and its product have no dimension that can be cut into so many pieces")]
    NoPieces,
    #[error("and the others named with it are not in one region that can be cut")]
    NotReached,
    #[error("has groups that are not spread evenly over two or more ranks of several nodes")]
    Nodes,
    #[error("has no dimension that ranks can divide evenly")]
    NotDivided,
    #[error("was changed by another recipe already")]
    Changed,
}

/// Why no collective of a loop can run in another iteration.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum LoopStays {
    #[error("it has control dependencies")]
    Controls,
    #[error("its body or its condition is also run by others")]
    Shared,
    #[error("its values do not begin and end every iteration as elements of one tuple")]
    Values,
    #[error("no all-gather of one array, all-reduce or reduce-scatter is left in it")]
    NoneLeft,
    #[error("'{gather}' needs '{needs}', which is not known an iteration ahead")]
    NotAhead { gather: String, needs: String },
    #[error("'{by}' reads '{reduction}' in the same iteration")]
    ReadNow { reduction: String, by: String },
    #[error("what '{reduction}' gives does not end in buffers that nothing else reads in the loop")]
    NoBuffer { reduction: String },
    #[error("'{reduction}' is combined with '{needs}', which another iteration does not have")]
    NeedsNow { reduction: String, needs: String },
    #[error(
        "what '{reduction}' gives is added to or stored in something that is not zero at first"
    )]
    NotZero { reduction: String },
}

/// A loop that communicates.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct FoundLoop {
    /// The name of its `while`.
    pub name: String,
    /// Why it is not pipelined, if it cannot be.
    pub stays: Option<LoopStays>,
}

/// Why two collectives cannot be merged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum Apart {
    Differ { what: &'static str },
    Computations,
    Dependent,
    Same,
}

impl fmt::Display for Apart {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Apart::Differ { what } => write!(out, "differ in {what}: members must have the same"),
            Apart::Computations => out.write_str("are in different computations"),
            Apart::Dependent => out.write_str("depend on each other"),
            Apart::Same => out.write_str("are the same: each collective can be merged once"),
        }
    }
}

/// A module, indexed for recipes.
pub(crate) struct RecipeSubject<'m> {
    pub(crate) module: &'m Module,
    /// The readers of an instruction, ascending.
    pub(crate) users: IdVec<InstrId, Vec<InstrId>>,
    /// Whether an instruction has control dependencies, either way.
    bound: IdVec<InstrId, bool>,
}

impl<'m> RecipeSubject<'m> {
    pub(crate) fn new(module: &'m Module) -> RecipeSubject<'m> {
        let mut users = IdVec::filled(Vec::new(), module.len());
        let mut bound = IdVec::filled(false, module.len());
        for instr in (0..module.len()).map(InstrId::from_index) {
            for operand in module.operands(instr) {
                users[operand.of].push(instr);
            }
            for before in module.control_predecessors(instr) {
                (bound[instr], bound[before]) = (true, true);
            }
            users[instr].dedup();
        }
        users.as_mut_slice().iter_mut().for_each(Vec::dedup);
        RecipeSubject { module, users, bound }
    }

    fn opcode(&self, instr: InstrId) -> Opcode {
        self.module.instruction(instr).opcode
    }

    pub(crate) fn is_root(&self, instr: InstrId) -> bool {
        self.module.root(self.module.computation_of(instr)) == instr
    }

    /// Why an instruction cannot be changed, whatever it is.
    fn changeable(&self, instr: InstrId) -> Result<(), Refusal> {
        match self.bound[instr] {
            true => Err(Refusal::Controls),
            false => Ok(()),
        }
    }

    /// The computations that run on their own: the contents of fusions and reducers do not change.
    fn places(&self) -> Vec<ComputationId> {
        let module = self.module;
        let mut runs: IdVec<ComputationId, bool> =
            IdVec::filled(false, module.computations().len());
        runs[module.entry()] = true;
        for computation in module.callees_first().into_iter().rev() {
            if !runs[computation] {
                continue;
            }
            for instr in module.instructions(computation) {
                if matches!(self.opcode(instr), Opcode::While | Opcode::Call | Opcode::Conditional)
                {
                    module.called(instr).iter().for_each(|&callee| runs[callee] = true);
                }
            }
        }
        module.computations().filter(|&id| runs[id]).collect()
    }

    /// The loops that run, in text order.
    fn loops(&self) -> impl Iterator<Item = InstrId> {
        let all = self.places().into_iter().flat_map(|id| self.module.instructions(id));
        all.filter(|&instr| self.opcode(instr) == Opcode::While)
    }

    /// The instructions that recipes can name. Names should be unique in a module; duplicates are
    /// ignored. Looked up only.
    fn named(&self) -> HashMap<&'m str, InstrId> {
        let mut named = HashMap::new();
        let mut again = Vec::new();
        for computation in self.places() {
            for instr in self.module.instructions(computation) {
                let name = self.module.instruction_name(instr);
                if named.insert(name, instr).is_some() {
                    again.push(name);
                }
            }
        }
        for name in again {
            named.remove(name);
        }
        named
    }

    /// An instruction's array, if its extents are fixed and its type is one that can be written.
    fn array(&self, instr: InstrId) -> Result<&'m Array, Refusal> {
        let array = self.module.instruction(instr).shape.array().ok_or(Refusal::Variadic)?;
        match array.dynamic || matches!(array.element, ElementType::Other { .. }) {
            true => Err(Refusal::Dynamic),
            false => Ok(array),
        }
    }

    /// Whether the pieces of a collective have the bits of the whole. An element of a scattered sum
    /// stays with its rank; which rank begins to sum one of an all-reduce may depend on its place.
    fn cuts_exactly(&self, instr: InstrId) -> bool {
        self.opcode(instr) != Opcode::AllReduce || self.is_order_free(instr)
    }

    /// Whether a reduction gives the same bits in any order.
    fn is_order_free(&self, instr: InstrId) -> bool {
        let module = self.module;
        let Some(kind) = self.opcode(instr).collective_kind() else { return false };
        let element = |operand: &crate::Operand| {
            module.operand_shape(operand).array().map(|array| array.element)
        };
        let whole = |element: ElementType| {
            element.name().starts_with(['s', 'u']) || element == ElementType::Pred
        };
        let is_whole =
            || module.operands(instr).iter().all(|operand| element(operand).is_some_and(whole));
        // The sum of two numbers is the same in either order.
        let is_pair = || module.replica_groups(instr).group_size() <= 2;
        match reduction(module, instr, kind) {
            Some(Reduction::None) => true,
            Some(Reduction::Sum | Reduction::Max | Reduction::Min | Reduction::Product) => {
                is_whole() || is_pair()
            }
            _ => false,
        }
    }
}

/// All scatters and narrowings that apply to a module, in text order.
pub fn find(module: &Module) -> Vec<Found> {
    let subject = RecipeSubject::new(module);
    let mut offsets = offsets::Offsets::new(module);
    let named = subject.named();
    let is_named =
        |instr: &InstrId| named.get(module.instruction_name(*instr)).is_some_and(|at| at == instr);
    let mut found = Vec::new();
    // The draft is discarded: it only shows which recipes are compatible.
    let mut draft = Draft::new(module);
    for computation in subject.places() {
        for instr in module.instructions(computation).filter(is_named) {
            let name = || module.instruction_name(instr).to_owned();
            if let Ok(plan) = scatter::plan(&subject, &mut offsets, instr) {
                let is_exact = subject.is_order_free(instr) && plan.sums_exactly();
                if plan.write(&mut draft).is_ok() {
                    found.push(Found { recipe: Recipe::Scatter { all_reduce: name() }, is_exact });
                }
            } else if narrow::plan(&subject, instr).is_ok_and(|plan| plan.write(&mut draft).is_ok())
            {
                let recipe = Recipe::Narrow { collective: name() };
                found.push(Found { recipe, is_exact: true });
            }
        }
    }
    found
}

/// The collectives of each loop that can run in another iteration.
pub fn find_pipelines(module: &Module, buffers: CarriedBuffers, shifts: &[Shift]) -> Vec<Recipe> {
    let subject = RecipeSubject::new(module);
    let named = subject.named();
    let plans = subject.loops().filter_map(|instr| pipeline::plan(&subject, instr, shifts).ok());
    let members = plans.map(|plan| plan.members());
    members
        .filter(|members| members.iter().all(|name| named.contains_key(name.as_str())))
        .map(|members| Recipe::Pipeline { members, buffers })
        .collect()
}

/// The loops of a module whose bodies communicate, in text order.
pub fn find_loops(module: &Module) -> Vec<FoundLoop> {
    let subject = RecipeSubject::new(module);
    let communicates = |&looped: &InstrId| {
        let body = module.computation_in(looped, "body");
        let mut inside = body.into_iter().flat_map(|body| module.instructions(body));
        inside.any(|instr| subject.opcode(instr).collective_kind().is_some())
    };
    let found = |looped: InstrId| FoundLoop {
        name: module.instruction_name(looped).to_owned(),
        stays: pipeline::plan(&subject, looped, &Shift::ALL).err(),
    };
    subject.loops().filter(communicates).map(found).collect()
}

/// The loop in whose body an instruction is, by their names.
pub fn loop_around(module: &Module, instruction: &str) -> Option<String> {
    let subject = RecipeSubject::new(module);
    let body = module.computation_of(*subject.named().get(instruction)?);
    let runs = |looped: &InstrId| module.computation_in(*looped, "body") == Some(body);
    subject.loops().find(runs).map(|looped| module.instruction_name(looped).to_owned())
}

/// The all-gathers that give what an earlier one gives, with that one and with what can be kept. If
/// something smaller can be kept in place of what is gathered, that is another choice.
pub fn find_keeps(module: &Module) -> Vec<FoundKeep> {
    let subject = RecipeSubject::new(module);
    let named = subject.named();
    let is_named = |found: &FoundKeep| match &found.recipe {
        Recipe::Keep { members, kept } => {
            members.iter().chain(kept).all(|name| named.contains_key(name.as_str()))
        }
        _ => false,
    };
    keep::found(&subject).into_iter().filter(is_named).collect()
}

/// Those recipes to keep something that can be applied together, the first of those that cannot.
pub fn compatible_keeps(module: &Module, mut recipes: Vec<Recipe>) -> Vec<Recipe> {
    let subject = RecipeSubject::new(module);
    let named = subject.named();
    let mut meanings = given::GivenValues::new(&subject);
    // The draft is discarded: it only shows which recipes are compatible.
    let mut draft = Draft::new(module);
    recipes.retain(|recipe| {
        let Recipe::Keep { members, kept } = recipe else { return false };
        let find = |name: &String| named.get(name.as_str()).copied();
        let members: Option<Vec<InstrId>> = members.iter().map(find).collect();
        let kept: Option<Vec<InstrId>> = kept.iter().map(find).collect();
        let (Some(members), Some(kept)) = (members, kept) else { return false };
        let plan = keep::plan(&mut meanings, &members, &kept);
        plan.is_ok_and(|plan| plan.write(&mut draft).is_ok())
    });
    recipes
}

/// The all-gathers that can be done again for their later readers, wherever these can begin, in
/// text order. Only one of those of a gather can be applied.
pub fn find_agains(module: &Module) -> Vec<FoundAgain> {
    let subject = RecipeSubject::new(module);
    let named = subject.named();
    let is_named =
        |instr: &InstrId| named.get(module.instruction_name(*instr)).is_some_and(|at| at == instr);
    let all = subject.places().into_iter().flat_map(|id| module.instructions(id));
    let found = all.filter(is_named).flat_map(|instr| again::found(&subject, instr));
    found.filter(|found| is_named(&found.first_late)).collect()
}

/// The all-reduces that can be gathered again after elementwise operations on slices.
pub fn find_shards(module: &Module) -> Vec<Found> {
    find_each(module, |subject, instr, draft| {
        let plan = scatter::plan_gathered(subject, instr)?;
        let is_exact = subject.is_order_free(instr) && plan.sums_exactly();
        plan.write(draft)?;
        let all_reduce = subject.module.instruction_name(instr).to_owned();
        Ok(Found { recipe: Recipe::Shard { all_reduce }, is_exact })
    })
}

/// The collectives that can be cut into pieces with the product beside them.
pub fn find_splits(module: &Module, pieces: u64) -> Vec<Found> {
    find_each(module, |subject, instr, draft| {
        split::plan(subject, instr, pieces)?.write(draft)?;
        let collective = subject.module.instruction_name(instr).to_owned();
        let is_exact = subject.is_order_free(instr);
        Ok(Found { recipe: Recipe::Split { collective, pieces, tail: None }, is_exact })
    })
}

/// Those collectives whose pieces together have the bits of the whole.
pub fn exact_in_pieces(module: &Module, mut collectives: Vec<String>) -> Vec<String> {
    let subject = RecipeSubject::new(module);
    let named = subject.named();
    collectives.retain(|name| named.get(name.as_str()).is_some_and(|&of| subject.cuts_exactly(of)));
    collectives
}

/// Regions around these collectives that can be cut into pieces, each over as many of them as it
/// reaches, in text order.
pub fn find_regions(module: &Module, collectives: &[String], cut: RegionPieces) -> Vec<Found> {
    let subject = RecipeSubject::new(module);
    let named = subject.named();
    let name = |instr: &InstrId| module.instruction_name(*instr).to_owned();
    let mut all: Vec<InstrId> =
        collectives.iter().filter_map(|name| named.get(name.as_str()).copied()).collect();
    all.sort_unstable();
    let mut found = Vec::new();
    // The draft is discarded: it only shows which recipes are compatible.
    let mut draft = Draft::new(module);
    for (at, &first) in all.iter().enumerate() {
        if !draft.is_untouched(first) {
            continue;
        }
        let Ok(plan) = region::reached(&subject, &draft, &all[at..], cut) else { continue };
        let is_exact = plan.collectives().iter().all(|&of| subject.cuts_exactly(of));
        let members = plan.collectives().iter().map(name).collect();
        plan.write(&mut draft);
        found.push(Found { recipe: Recipe::Region { members, cut }, is_exact });
    }
    found
}

/// The collectives that can be done on two levels, with so many ranks on each node.
pub fn find_levels(module: &Module, ranks_per_node: u32) -> Vec<Found> {
    find_each(module, |subject, instr, draft| {
        levels::plan(subject, instr, ranks_per_node)?.write(draft)?;
        let collective = subject.module.instruction_name(instr).to_owned();
        let is_exact = subject.is_order_free(instr);
        Ok(Found { recipe: Recipe::Levels { collective, ranks_per_node }, is_exact })
    })
}

/// What applies to single instructions that have a name of their own, in text order, all together.
fn find_each(
    module: &Module,
    written: impl Fn(&RecipeSubject<'_>, InstrId, &mut Draft<'_>) -> Result<Found, Refusal>,
) -> Vec<Found> {
    let subject = RecipeSubject::new(module);
    let named = subject.named();
    // The draft is discarded: it only shows which recipes are compatible.
    let mut draft = Draft::new(module);
    let all = subject.places().into_iter().flat_map(|id| module.instructions(id));
    all.filter(|instr| named.get(module.instruction_name(*instr)) == Some(instr))
        .filter_map(|instr| written(&subject, instr, &mut draft).ok())
        .collect()
}

/// The collectives of a module that can be merged, by what they have in common.
pub fn merge_classes(module: &Module) -> Vec<MergeClass> {
    merge::classes(&RecipeSubject::new(module))
}

/// Applies recipes, all to the same module. Returns the changed module, read back from its text,
/// and the names of the collectives that the recipes created.
pub fn apply(module: &Module, recipes: &[Recipe]) -> Result<(Module, Vec<String>), ChangeError> {
    let subject = RecipeSubject::new(module);
    let named = subject.named();
    let find = |name: &String| {
        let found = named.get(name.trim_start_matches('%')).copied();
        found.ok_or_else(|| ChangeError::Unknown { name: name.clone() })
    };
    let mut offsets = offsets::Offsets::new(module);
    let mut meanings = given::GivenValues::new(&subject);
    let mut draft = Draft::new(module);
    let mut into = Vec::with_capacity(recipes.len());
    for recipe in recipes {
        let members = recipe.members().iter().map(find).collect::<Result<Vec<_>, _>>()?;
        let name = recipe.members().first().cloned().unwrap_or_default();
        let refused = |why| ChangeError::Refused { name: name.clone(), why };
        into.push(match (recipe, &members[..]) {
            (Recipe::Scatter { .. }, &[member]) => scatter::plan(&subject, &mut offsets, member)
                .and_then(|plan| plan.write(&mut draft))
                .map_err(refused)?,
            (Recipe::Shard { .. }, &[member]) => scatter::plan_gathered(&subject, member)
                .and_then(|plan| plan.write(&mut draft))
                .map_err(refused)?,
            (Recipe::Narrow { .. }, &[member]) => narrow::plan(&subject, member)
                .and_then(|plan| plan.write(&mut draft))
                .map_err(refused)?,
            (Recipe::Pipeline { buffers, .. }, members) => pipeline::plan_of(&subject, members)
                .and_then(|plan| plan.write(&mut draft, *buffers))
                .map_err(refused)?,
            (Recipe::Keep { kept, .. }, members) => {
                let kept = kept.iter().map(find).collect::<Result<Vec<_>, _>>()?;
                keep::plan(&mut meanings, members, &kept)
                    .and_then(|plan| plan.write(&mut draft))
                    .map_err(refused)?
            }
            (Recipe::Again { from, .. }, &[member]) => again::plan(&subject, member, find(from)?)
                .and_then(|plan| plan.write(&mut draft))
                .map_err(refused)?,
            (Recipe::Split { pieces, tail, .. }, &[member]) => {
                split::plan(&subject, member, *pieces)
                    .and_then(|plan| plan.with_tail(*tail).write(&mut draft))
                    .map_err(refused)?
            }
            (Recipe::Region { cut, .. }, members) => region::plan(&subject, &draft, members, *cut)
                .and_then(|plan| match plan.collectives().len() == members.len() {
                    true => Ok(plan.write(&mut draft)),
                    false => Err(Refusal::NotReached),
                })
                .map_err(refused)?,
            (Recipe::Levels { ranks_per_node, .. }, &[member]) => {
                levels::plan(&subject, member, *ranks_per_node)
                    .and_then(|plan| plan.write(&mut draft))
                    .map_err(refused)?
            }
            (_, members) => merge::write(&subject, &mut draft, members)?,
        });
    }
    Ok((draft.finish()?, into))
}
