//! Splits of a module: a collective with the product beside it, or with all that is computed around
//! it in pieces.

use halflap::rewrite::TAIL;
use halflap::units::Bytes;
use halflap::workload::Decided;
use halflap_hlo::Module;
use halflap_hlo::change::{self, Found, Recipe, RegionPieces};

use super::report::spent;
use super::{Maker, Tried, step};
use crate::args::AllowedRecipes;
use crate::exit::Failed;

/// Into how many pieces collectives are cut.
const PIECES: [u64; 3] = [4, 2, 8];

/// The same of regions, as long as more make the step shorter.
const REGION_PIECES: [u64; 3] = [2, 4, 8];

/// How many products of matrices are between a collective and what is cut with it, at most: those
/// of an MLP, so that layers go on with each other's pieces, then those of attention.
const REACHES: [u32; 2] = [2, 4];

/// What of its time a collective must be exposed for to be cut.
const LEAST_EXPOSED: f64 = 0.1;

impl<T> Maker<'_, T> {
    /// The best set with splits on top, of what is still exposed.
    pub(super) fn with_splits(
        &self,
        best: Option<Tried<T>>,
        allowed: &AllowedRecipes,
        in_order: Option<&[Decided<T>]>,
    ) -> Result<Option<Tried<T>>, Failed> {
        let exposed = match &best {
            Some(best) => spent(&best.subject, &best.all),
            None => in_order.map_or_else(Default::default, |all| spent(self.subject, all)),
        };
        let module = self.module_after(best.as_ref());
        let is_exposed = |name: &String| {
            exposed.get(name).is_some_and(|spent| spent.exposed > spent.time * LEAST_EXPOSED)
        };
        let mut names: Vec<String> =
            exposed.keys().filter(|name| is_exposed(name)).cloned().collect();
        if allowed.exact_only {
            names = change::exact_in_pieces(module, names);
        }
        if names.is_empty() {
            return Ok(best);
        }
        let pairs = PIECES.map(|pieces| {
            let mut found = change::find_splits(module, pieces);
            found.retain(|found| found.recipe.members().iter().all(|name| names.contains(name)));
            found
        });
        let mut with: Option<Tried<T>> = None;
        for found in pairs.into_iter().filter(|found| !found.is_empty()) {
            let set = found.into_iter().map(|found| self.with_tail(found.recipe)).collect();
            with = self.shorter(with, self.tried(best.as_ref(), set)?);
        }
        let regions = self.with_regions(best.as_ref(), &names)?;
        let with = self.shorter(with, regions);
        Ok(self.shorter(best, with))
    }

    /// The best regions around collectives, on top of a set: in more pieces as long as that makes
    /// the step shorter, then in as many with a longer reach.
    fn with_regions(
        &self,
        on: Option<&Tried<T>>,
        collectives: &[String],
    ) -> Result<Option<Tried<T>>, Failed> {
        let tried = |cut: RegionPieces| {
            let found = change::find_regions(self.module_after(on), collectives, cut);
            let set: Vec<Recipe> = found.into_iter().map(|found| found.recipe).collect();
            if set.is_empty() { Ok(None) } else { self.tried(on, set) }
        };
        let [near, far] = REACHES;
        let mut best: Option<(Tried<T>, u64)> = None;
        for pieces in REGION_PIECES {
            let Some(other) = tried(self.cut(pieces, near))? else { continue };
            match &best {
                Some((shortest, _)) if step(&other.all) >= step(&shortest.all) => break,
                _ => best = Some((other, pieces)),
            }
        }
        let Some((best, pieces)) = best else { return Ok(None) };
        let farther = tried(self.cut(pieces, far))?;
        Ok(self.shorter(Some(best), farther))
    }

    fn cut(&self, pieces: u64, reach: u32) -> RegionPieces {
        RegionPieces { pieces, reach, tail: self.tail() }
    }

    /// The tail of the command line.
    fn tail(&self) -> Option<Bytes> {
        self.args.piece_tail.map(|tail| tail.limit(TAIL))
    }

    /// A split whose products have that tail.
    fn with_tail(&self, recipe: Recipe) -> Recipe {
        match recipe {
            Recipe::Split { collective, pieces, .. } => {
                Recipe::Split { collective, pieces, tail: self.tail() }
            }
            other => other,
        }
    }
}

/// What could be split at all.
pub(super) fn found_any(module: &Module) -> Vec<Found> {
    let name = |instr| module.instruction_name(instr).to_owned();
    let instructions = module.computations().flat_map(|of| module.instructions(of));
    let is_sent = |instr: &_| module.instruction(*instr).opcode.collective_kind().is_some();
    let names: Vec<String> = instructions.filter(is_sent).map(name).collect();
    let mut found = change::find_splits(module, PIECES[1]);
    let exact = change::exact_in_pieces(module, names.clone());
    for names in [exact, names] {
        let cut = RegionPieces { pieces: PIECES[1], reach: REACHES[0], tail: None };
        found.extend(change::find_regions(module, &names, cut));
    }
    found
}

/// Whether a split still applies to a module.
pub(super) fn is_there(module: &Module, recipe: &Recipe) -> bool {
    change::apply(module, std::slice::from_ref(recipe)).is_ok()
}
