//! Damaged rewrites: whatever is done to a result that was proved, the verifier refuses it.

use halflap::graph::{Graph, Parts};
use halflap::origin::Origin;
use halflap::rewrite::Rewritten;
use halflap::verify_rewrite::verify_rewrite;

use crate::random::Random;

/// A program, what a rewrite made of it, and what that claims to be made of.
pub struct Damaged {
    pub before: Graph,
    pub parts: Parts,
    pub origin: Origin,
}

impl Damaged {
    fn of((graph, rewritten): &(Graph, Rewritten)) -> Damaged {
        Damaged {
            before: graph.clone(),
            parts: rewritten.graph.clone().into_parts(),
            origin: rewritten.origin.clone(),
        }
    }
}

/// A way to damage a result; says whether there was something to damage.
pub type Damage = fn(&mut Random, &mut Damaged) -> bool;

/// Every damage is found in every result, of which at least so many can be damaged in each way.
pub fn all_are_found<'a>(
    damages: &[(&str, Damage)],
    results: impl Iterator<Item = &'a (Graph, Rewritten)> + Clone,
    least: usize,
) {
    for (what, damage) in damages {
        let mut random = Random(7);
        let mut found = 0;
        for (index, result) in results.clone().enumerate() {
            let mut damaged = Damaged::of(result);
            if !damage(&mut random, &mut damaged) {
                continue;
            }
            // What is not even a graph is refused before.
            let Ok(after) = Graph::new(damaged.parts) else { continue };
            let said = verify_rewrite(&damaged.before, &after, &damaged.origin);
            assert!(said.is_err(), "{what}, program {index}");
            found += 1;
        }
        assert!(found >= least, "{what}: only {found} programs");
    }
}
