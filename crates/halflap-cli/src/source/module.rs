//! A module alone, for commands that take no graphs.

use halflap::ids::{IdVec, UnitId};
use halflap_hlo::{
    LoweredUnit, Module, bounded, check, without_calls, without_host_messages,
    without_passed_bitcasts, without_ragged_products,
};

use super::{Hlo, ProgramSource, RankCount, Subject};
use crate::args::MachineArgs;
use crate::exit::Failed;
use crate::kind::FileKind;
use crate::place::Input;

/// A module that can be planned and run.
pub struct ModuleSource {
    pub source: ProgramSource,
    pub module: Module,
    pub units: IdVec<UnitId, LoweredUnit>,
}

impl ModuleSource {
    /// Reads a module to be run on this many ranks. Only modules say what their operations compute.
    pub fn read(
        input: &Input,
        args: &MachineArgs,
        ranks: Option<RankCount>,
    ) -> Result<ModuleSource, Failed> {
        let mut subject = Subject::read_on(input, args, ranks)?;
        let steps =
            [without_ragged_products, without_host_messages, bounded, without_passed_bitcasts];
        for written_out in steps {
            let Some(Hlo { module, .. }) = &subject.hlo else { break };
            let changed = written_out(module).map_err(|error| Failed::OurBug(error.to_string()))?;
            if let Some(module) = changed {
                subject = subject.changed_to(module)?;
            }
        }
        let Subject { source, hlo } = subject;
        match hlo {
            Some(Hlo { module, units }) => Ok(ModuleSource { source, module, units }),
            None => {
                let why = "it does not say what its nodes compute, so only HLO modules can be run";
                let problem = format!("{}; {why}", FileKind::Graph.instead());
                Err(Failed::in_file(input.name(), problem))
            }
        }
    }

    /// The same module with what is called as part of the callers: faster to run. Its instructions
    /// and orders are not those of the text.
    pub fn without_calls(self) -> Result<Self, Failed> {
        match without_calls(&self.module).map_err(|error| Failed::OurBug(error.to_string()))? {
            Some(module) => {
                let ModuleSource { source, module: old, units } = self;
                let subject = Subject { source, hlo: Some(Hlo { module: old, units }) };
                let Subject { source, hlo } = subject.changed_to(module)?;
                let lost = || Failed::OurBug("a module was lost".to_owned());
                let Hlo { module, units } = hlo.ok_or_else(lost)?;
                Ok(ModuleSource { source, module, units })
            }
            None => Ok(self),
        }
    }

    /// The same module, if its shapes are right: required for running, not for scheduling.
    pub fn typed(self) -> Result<Self, Failed> {
        match check(&self.module) {
            Ok(()) => Ok(self),
            Err(error) => Err(Failed::in_file(self.source.input.name(), error)),
        }
    }
}
