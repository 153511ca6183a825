//! Case distinctions: if the sets that prevent a higher bound differ in a node, that node either
//! came before the moment or did not. Each case proves at least as much as both together, and the
//! smaller of the two bounds holds.

use super::moments::{Decision, Moments, Proof};

/// How many attempts are made to find better moments for a case.
const ATTEMPTS: usize = 3;

struct Leaf {
    decisions: Vec<Decision>,
    proof: Proof,
}

/// Refines a proof with this many cases, always splitting the case with the smallest bound.
pub(super) fn prove(moments: &mut Moments<'_>, proof: Proof, most: usize) -> Proof {
    // The moments that matter are enough to begin with.
    let root = moments.at(&proof.places, &[], None);
    let mut open = vec![Leaf { decisions: Vec::new(), proof: root }];
    let mut left = most;
    while left > 0 {
        let least = least(&open);
        if open[least].proof.undecided.is_some() {
            let leaf = open.swap_remove(least);
            open.extend(
                [true, false]
                    .map(|is_before| leaf.decided(moments, is_before))
                    .into_iter()
                    .flatten(),
            );
            left = left.saturating_sub(2);
        } else {
            if !open[least].refine(moments) {
                break;
            }
            left = left.saturating_sub(ATTEMPTS);
        }
    }
    let memory = open.iter().any(|leaf| leaf.proof.memory) || proof.memory;
    let time = open[least(&open)].proof.time.max(proof.time);
    Proof { memory, time, ..proof }
}

impl Leaf {
    /// The case in which the undecided node came before, or did not.
    fn decided(&self, moments: &mut Moments<'_>, is_before: bool) -> Option<Leaf> {
        let (place, node) = self.proof.undecided?;
        let mut decisions = self.decisions.clone();
        decisions.push(Decision { place, node, is_before });
        let mut proof = moments.at(&self.proof.looked_at, &decisions, Some(&self.proof.weights));
        proof.time = proof.time.max(self.proof.time);
        proof.memory |= self.proof.memory;
        Some(Leaf { decisions, proof })
    }

    /// Tries other moments if these leave nothing undecided; returns whether that helps.
    fn refine(&mut self, moments: &mut Moments<'_>) -> bool {
        let others = moments.refined(self.proof.places.clone(), &self.decisions, ATTEMPTS);
        let Some(mut found) = others.filter(|found| found.undecided.is_some()) else {
            return false;
        };
        found.time = found.time.max(self.proof.time);
        found.memory |= self.proof.memory;
        self.proof = found;
        true
    }
}

fn least(open: &[Leaf]) -> usize {
    let time = |leaf: usize| open[leaf].proof.time;
    (0..open.len()).min_by(|&a, &b| time(a).total_cmp(&time(b))).unwrap_or(0)
}
