//! Splits of a module: a collective with the product beside it, or with all that is computed around
//! it in pieces.

use halflap::rewrite::TAIL;
use halflap::workload::Decided;
use halflap_hlo::Module;
use halflap_hlo::change::{self, Found, Recipe, RegionCut};

use super::report::spent;
use super::{Maker, Tried};
use crate::args::AllowedRecipes;
use crate::exit::Failed;

/// Into how many pieces collectives are cut.
const PIECES: [u64; 3] = [4, 2, 8];

/// How many products of matrices are between a collective and what is cut with it: between two
/// collectives, those that belong to both.
const REACH: u32 = 1;

/// What of its time a collective must be exposed for to be cut.
const LEAST_EXPOSED: f64 = 0.1;

impl<T> Maker<'_, T> {
    /// The best set with splits on top, of what is still exposed.
    pub(super) fn with_splits(
        &self,
        best: Option<Tried<T>>,
        allowed: &AllowedRecipes,
        in_order: &[Decided<T>],
    ) -> Result<Option<Tried<T>>, Failed> {
        let exposed = match &best {
            Some(best) => spent(&best.subject, &best.all),
            None => spent(self.subject, in_order),
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
        let pairs = PIECES.map(|pieces| {
            let mut found = change::find_splits(module, pieces);
            found.retain(|found| found.recipe.members().iter().all(|name| names.contains(name)));
            found
        });
        let regions = PIECES.map(|pieces| change::find_regions(module, &names, self.cut(pieces)));
        let mut with: Option<Tried<T>> = None;
        for found in pairs.into_iter().chain(regions).filter(|found| !found.is_empty()) {
            let set = found.into_iter().map(|found| self.with_tail(found.recipe)).collect();
            with = self.shorter(with, self.tried(best.as_ref(), set)?);
        }
        Ok(self.shorter(best, with))
    }

    fn cut(&self, pieces: u64) -> RegionCut {
        let tail = self.args.piece_tail.map(|tail| tail.limit(TAIL));
        RegionCut { pieces, reach: REACH, tail }
    }

    /// A split whose products have the tail of the command line.
    fn with_tail(&self, recipe: Recipe) -> Recipe {
        match recipe {
            Recipe::Split { collective, pieces, .. } => {
                Recipe::Split { collective, pieces, tail: self.cut(pieces).tail }
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
        let cut = RegionCut { pieces: PIECES[1], reach: REACH, tail: None };
        found.extend(change::find_regions(module, &names, cut));
    }
    found
}

/// Whether a split still applies to a module.
pub(super) fn is_there(module: &Module, recipe: &Recipe) -> bool {
    change::apply(module, std::slice::from_ref(recipe)).is_ok()
}
