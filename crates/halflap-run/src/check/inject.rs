//! Injected faults, to test that they are found.

use std::str::FromStr;

use halflap::nearest;
use halflap_hlo::plan::Program;

use crate::prepare::{Label, LabelKind, Prepared};

/// A fault to inject.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A buffer is freed before its last use.
    FreeEarly(String),
    /// A buffer is freed only at the end of its plan.
    FreeLate(String),
    /// A rank skips a collective.
    SkipCollective(usize, String),
    /// A rank issues a collective twice.
    DoubleCollective(usize, String),
    /// A rank swaps two collectives.
    SwapCollectives(usize, String, String),
    /// A kernel writes to one of its inputs.
    MutateInput(String),
    /// A rank hangs in a kernel or a collective.
    Stall(usize, String),
}

impl FromStr for Fault {
    type Err = String;

    fn from_str(text: &str) -> Result<Fault, String> {
        const FORM: &str = "it must be free-early=BUFFER, free-late=BUFFER, skip-collective=RANK:NAME, \
            double-collective=RANK:NAME, swap-collectives=RANK:A,B, mutate-input=KERNEL or stall=RANK:KERNEL";
        let (kind, of) = text.split_once('=').ok_or(FORM)?;
        let on_rank = || {
            let (rank, name) = of.split_once(':').ok_or(FORM)?;
            Ok::<_, &str>((rank.parse::<usize>().map_err(|_| FORM)?, name.to_owned()))
        };
        Ok(match kind {
            "free-early" => Fault::FreeEarly(of.to_owned()),
            "free-late" => Fault::FreeLate(of.to_owned()),
            "mutate-input" => Fault::MutateInput(of.to_owned()),
            "skip-collective" => on_rank().map(|(rank, name)| Fault::SkipCollective(rank, name))?,
            "double-collective" => {
                on_rank().map(|(rank, name)| Fault::DoubleCollective(rank, name))?
            }
            "stall" => on_rank().map(|(rank, name)| Fault::Stall(rank, name))?,
            "swap-collectives" => {
                let (rank, names) = on_rank()?;
                let (first, second) = names.split_once(',').ok_or(FORM)?;
                Fault::SwapCollectives(rank, first.to_owned(), second.to_owned())
            }
            _ => return Err(FORM.to_owned()),
        })
    }
}

impl Fault {
    /// Whether a rank should hang here.
    pub(crate) fn stalls(&self, rank: usize, name: &str) -> bool {
        matches!(self, Fault::Stall(stalled, at) if *stalled == rank && at == name)
    }

    /// The error names a rank, kernel or collective of a fault that the program does not have. A
    /// fused kernel may also be named by any of its instructions.
    pub fn check(&self, program: &Prepared) -> Result<(), String> {
        let is_collective = |label: &Label| label.kind == LabelKind::Collective;
        let any = |_: &Label| true;
        let (rank, names, is_meant): (_, _, &dyn Fn(&Label) -> bool) = match self {
            Fault::FreeEarly(_) | Fault::FreeLate(_) => return Ok(()),
            Fault::SkipCollective(rank, name) | Fault::DoubleCollective(rank, name) => {
                (Some(*rank), vec![name], &is_collective)
            }
            Fault::SwapCollectives(rank, a, b) => (Some(*rank), vec![a, b], &is_collective),
            Fault::MutateInput(name) => (None, vec![name], &any),
            Fault::Stall(rank, name) => (Some(*rank), vec![name], &any),
        };
        if let Some(rank) = rank.filter(|rank| *rank >= program.ranks) {
            return Err(format!("there is no rank {rank}: the module has {}", program.ranks));
        }
        let labels = || program.labels.iter().filter(|label| is_meant(label));
        let known = || {
            labels().flat_map(|label| {
                let parts = label.shares.iter().map(|(name, _)| name.as_str());
                std::iter::once(label.name.as_str()).chain(parts)
            })
        };
        match names.into_iter().find(|name| !known().any(|known| known == *name)) {
            None => Ok(()),
            Some(name) => Err(format!("the plan has no '{name}'{}", hint(name, known()))),
        }
    }

    /// Injects the faults that change the plan. An error names a fault that cannot be injected.
    pub fn spoil(faults: &[Fault], program: &mut Program) -> Result<(), String> {
        for fault in faults {
            let (buffer, is_early) = match fault {
                Fault::FreeEarly(buffer) => (buffer, true),
                Fault::FreeLate(buffer) => (buffer, false),
                _ => continue,
            };
            let mut is_known = false;
            let mut is_done = false;
            for plan in program.plans.as_mut_slice() {
                let found = plan
                    .storage
                    .slots
                    .iter()
                    .find(|(_, slot)| slot.name == *buffer)
                    .map(|(slot, _)| slot);
                is_known |= found.is_some();
                is_done |= found.is_some_and(|slot| plan.misplace_free(slot, is_early));
            }
            match (is_known, is_done) {
                (_, true) => {}
                (false, _) => {
                    let slots =
                        program.plans.iter().flat_map(|(_, plan)| plan.storage.slots.iter());
                    let hint = hint(buffer, slots.map(|(_, slot)| slot.name.as_str()));
                    return Err(format!("the plan has no buffer '{buffer}'{hint}"));
                }
                (true, _) => {
                    return Err(format!("buffer '{buffer}' cannot be freed at another step"));
                }
            }
        }
        Ok(())
    }
}

/// The name that was probably meant; if none is similar, where to find the names.
fn hint<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> String {
    match nearest(name, known) {
        Some(near) => format!("; did you mean '{near}'?"),
        None => "; halflap plan prints their names".to_owned(),
    }
}
