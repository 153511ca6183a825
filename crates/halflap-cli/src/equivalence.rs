//! `halflap verify OLD NEW` for two HLO modules: a proof from the texts, and with `--run` from
//! results.

use halflap_hlo::{Different, Module, Sameness, same};
use halflap_report::count;

use crate::args::{self, MachineArgs};
use crate::execution;
use crate::exit::Failed;
use crate::place::Input;
use crate::source::ModuleSource;

/// Proves that two modules compute the same, or says what differs.
pub fn prove(args: &args::Verify) -> Result<String, Failed> {
    let read = |input: &Input| {
        let machine = MachineArgs::default();
        ModuleSource::read(input, &machine, None)?.typed()
    };
    let (old, new) = (read(&args.graph)?, read(&args.order)?);
    let proof = same(&old.module, &new.module);
    let text = match &proof {
        Ok(sameness) => described(*sameness, &old.module, &new.module),
        Err(different) if args.run => format!("not proved from the texts: {different}"),
        Err(different) => {
            let problem = format!("not proved to be the same program: {different}");
            return Err(Failed::Wrong(problem));
        }
    };
    if !args.run {
        return Ok(format!("{text}\n"));
    }
    let is_exact = proof == Ok(Sameness::Exact);
    let ran = execution::compare(old, new, args, is_exact)?;
    let (said, unproved) = (ran.said, "nothing is proved: other inputs may give other results");
    match (&proof, ran.is_complete) {
        (Ok(_), true) => Ok(format!("{text}\n{said}\n")),
        (Ok(_), false) => Err(Failed::OnlyRan(format!("{text}\n{said}"))),
        (Err(_), _) => Err(Failed::OnlyRan(format!("{text}\n{said}\n{unproved}"))),
    }
}

fn described(sameness: Sameness, old: &Module, new: &Module) -> String {
    let how = match sameness {
        Sameness::Exact => "the same program, bit for bit",
        Sameness::SumOrder => "the same program, up to the order of summation",
    };
    format!(
        "{how}: {} -> {}, from the texts",
        count(old.len(), "instruction"),
        count(new.len(), "instruction")
    )
}

/// Why [`same`] does not accept a change of ours.
pub fn unproved(different: &Different) -> Failed {
    Failed::OurBug(format!("the changed module is not proved to be the same: {different}"))
}
