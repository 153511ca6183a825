//! Which collectives over nodes are done on two levels: those that take less time so, by the model.

use halflap_hlo::change::{self, Found, Recipe};

use super::{AllowedRecipes, Failed, Maker, Module, Subject, Tried};
use super::{module_of, report};

impl<T> Maker<'_, T> {
    /// Those of a module that can be; none without nodes.
    pub(super) fn leveled(&self, module: &Module) -> Vec<Found> {
        let costs = &self.subject.source.model.costs;
        match &costs.device {
            // A link that was named carries all collectives, within nodes and across.
            Some(device) if costs.link.is_none() => {
                change::find_levels(module, device.ranks_per_node)
            }
            _ => Vec::new(),
        }
    }

    /// A set of recipes with collectives on two levels on top.
    pub(super) fn on_two_levels(
        &self,
        on: Option<&Tried<T>>,
        allowed: &AllowedRecipes,
    ) -> Result<Option<Tried<T>>, Failed> {
        let subject = on.map_or(self.subject, |on| &on.subject);
        let module = module_of(subject, self.hlo);
        let is_fit = |found: &Found| found.is_exact || !allowed.exact_only;
        let found = self.leveled(module).into_iter().filter(is_fit);
        let found: Vec<Recipe> = found.map(|found| found.recipe).collect();
        if found.is_empty() {
            return Ok(None);
        }
        let (changed, into) =
            change::apply(module, &found).map_err(|error| Failed::OurBug(error.to_string()))?;
        let changed = self.subject.changed_to(changed)?;
        let [before, after] = [self.times(subject)?, self.times(&changed)?];
        let is_shorter = |(recipe, into): &(Recipe, String)| {
            let own = recipe.members().first().and_then(|member| before.get(member));
            let new = report::total_of(&after, into);
            own.zip(new).is_some_and(|(own, new)| new.time < own.time)
        };
        let both = found.into_iter().zip(into).filter(is_shorter);
        let set: Vec<Recipe> = both.map(|(recipe, _)| recipe).collect();
        if set.is_empty() { Ok(None) } else { self.tried(on, set) }
    }

    /// What collectives of a module take, in its own orders.
    fn times(&self, subject: &Subject) -> Result<report::CollectiveTimes, Failed> {
        let own = subject.source.walk(|priced| Ok((priced.input.order.clone(), ())))?;
        Ok(report::spent(subject, &own))
    }
}
