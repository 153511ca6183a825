//! A closer look at a kernel: it is run again, and its values and those of its producers are saved.

use halflap_hlo::Opcode;
use halflap_hlo::ids::InstrId;
use serde_json::Value as Json;

use super::Walk;
use super::again::Alone;
use super::fault::{locate, text};
use super::launched::launched;
use super::run::{Memory, StageOptions};
use super::values::{Place, Saved};
use crate::execution::debug::report::{Diagnosis, Kind};
use crate::exit::Failed;

/// What to run again, with values.
pub(super) struct CloserLook<'a> {
    pub(super) kernel: &'a str,
    pub(super) memory: Memory,
    /// The kernels whose values are saved.
    pub(super) filter: Vec<String>,
}

impl Walk<'_> {
    /// The values of a kernel and those that made its inputs, and of no other.
    pub(super) fn values(
        &mut self,
        kernel: &str,
        memory: Memory,
        finding: &mut Diagnosis,
    ) -> Result<Option<Json>, Failed> {
        let mut filter = self.producers(kernel)?;
        filter.push(kernel.to_owned());
        self.look_closer(CloserLook { kernel, memory, filter }, finding)
    }

    /// Runs it again and saves values of some kernels; returns the fault reported for the kernel
    /// this time.
    pub(super) fn look_closer(
        &mut self,
        look: CloserLook<'_>,
        finding: &mut Diagnosis,
    ) -> Result<Option<Json>, Failed> {
        let CloserLook { kernel, memory, filter } = look;
        let folder = self.session.path("values");
        let options = vec![
            "--debug-values=1".to_owned(),
            format!("--values-dir={}", folder.display()),
            format!("--filter-kernels={}", filter.join(",")),
            "--launch-blocking".to_owned(),
        ];
        let asked = StageOptions { stage: "values-run", memory, options, limit: None };
        let ran = self.session.run(&asked)?;
        self.session.report.stage("values", format!("of {}", filter.join(", ")));
        // If all ranks fail in the same way, another one may be first this time, and only its
        // values are saved.
        let again = ran.fault().filter(|fault| text(fault, "kernel") == Some(kernel));
        if let Some(again) = &again {
            locate(finding, again);
        }
        let Ok(saved) = Saved::read(&folder) else { return Ok(again) };
        // A kernel that ends the process at once leaves some ranks no time to save its inputs; any
        // rank that did is enough.
        let any = || saved.find(kernel, None).filter(|_| finding.kind == Kind::Crash);
        let exact = finding.rank.and_then(|rank| saved.at(kernel, rank, &finding.iteration));
        if let Some(place) = exact.or_else(|| saved.find(kernel, finding.rank)).or_else(any) {
            finding.rank = Some(place.rank);
            (finding.went_in, finding.came_out) = saved.around(place);
            // A fault that ended the run is of the last launch.
            if let Some(entry) = saved.kernel(place).filter(|_| again.is_some()) {
                finding.iteration.clone_from(&entry.iteration);
            }
        }
        self.remember_alone(kernel, memory, finding);
        Ok(again)
    }

    /// Only a collective needs the values of all ranks.
    fn remember_alone(&mut self, kernel: &str, memory: Memory, finding: &Diagnosis) {
        let rank = finding.rank.filter(|_| !self.is_collective(kernel));
        self.alone = Some(self.session.alone(&Alone { kernel, memory, rank }, finding));
    }

    pub(super) fn blame(&mut self, saved: &Saved, place: Place, finding: &mut Diagnosis) {
        let Some(entry) = saved.kernel(place) else { return };
        finding.kernel = Some(entry.kernel.clone());
        finding.rank = Some(place.rank);
        finding.source = entry.source.clone().into_iter().collect();
        (finding.went_in, finding.came_out) = saved.around(place);
        self.remember_alone(&entry.kernel, Memory::Cached, finding);
    }

    /// Every array of every kernel.
    pub(super) fn save_all(&mut self, options: &[&str]) -> Result<Saved, Failed> {
        let folder = self.session.path("values");
        let mut asked = StageOptions::new("values-run", Memory::Cached, options);
        asked.options.push("--debug-values=1".to_owned());
        asked.options.push(format!("--values-dir={}", folder.display()));
        self.session.run(&asked)?;
        self.session.report.stage("values", "of all kernels");
        Saved::read(&folder)
    }

    pub(super) fn instruction(&self, name: &str) -> Option<InstrId> {
        let all = self
            .module
            .computations()
            .flat_map(|computation| self.module.instructions(computation));
        all.into_iter().find(|&instr| self.module.instruction_name(instr) == name)
    }

    pub(super) fn source(&self, kernel: &str) -> Vec<String> {
        let source = self.instruction(kernel).map(|instr| self.module.source(instr));
        source.filter(|source| !source.is_empty()).into_iter().collect()
    }

    /// The line of what a finding blames: of an instruction inside of its kernel, if that has one.
    pub(super) fn source_of(&self, finding: &Diagnosis) -> Vec<String> {
        let Some(kernel) = finding.kernel.as_deref() else { return Vec::new() };
        let name = finding.instruction.as_deref();
        let inner = name.and_then(|name| self.inner(self.instruction(kernel)?, name));
        let source = inner.map(|instr| self.module.source(instr));
        match source.filter(|source| !source.is_empty()) {
            Some(source) => vec![source],
            None => self.source(kernel),
        }
    }

    /// An instruction of this name in what another one runs.
    fn inner(&self, outer: InstrId, name: &str) -> Option<InstrId> {
        let called = self.module.called(outer).iter();
        let mut all = called.flat_map(|&callee| self.module.instructions(callee));
        all.find_map(|instr| match self.module.instruction_name(instr) == name {
            true => Some(instr),
            false => self.inner(instr, name),
        })
    }

    /// Whether it needs other ranks.
    pub(super) fn is_collective(&self, kernel: &str) -> bool {
        let opcode = self.instruction(kernel).map(|instr| self.module.instruction(instr).opcode);
        opcode.is_some_and(|opcode| {
            opcode.is_of_collective() || matches!(opcode, Opcode::Send | Opcode::Recv)
        })
    }

    /// The launched kernels that produced a kernel's inputs.
    pub(super) fn producers(&mut self, kernel: &str) -> Result<Vec<String>, Failed> {
        let asked = StageOptions::new("names", Memory::Cached, &["--debug-values=3"]);
        let names = self.session.run(&asked)?;
        let printed = names.printed();
        let launched: Vec<&str> =
            printed.lines().filter_map(|line| launched(line).map(|(_, name, _)| name)).collect();
        Ok(self.launched_before(kernel, &|name| launched.contains(&name)))
    }

    /// The producers of an instruction's operands: the nearest ones that are launched.
    fn launched_before(&self, kernel: &str, is_launched: &dyn Fn(&str) -> bool) -> Vec<String> {
        let mut found = Vec::new();
        let mut open: Vec<InstrId> = self.instruction(kernel).into_iter().collect();
        let mut seen = open.clone();
        while let Some(instr) = open.pop() {
            for operand in self.module.operands(instr) {
                if seen.contains(&operand.of) {
                    continue;
                }
                seen.push(operand.of);
                let name = self.module.instruction_name(operand.of);
                match is_launched(name) {
                    true => found.push(name.to_owned()),
                    false => open.push(operand.of),
                }
            }
        }
        found.sort();
        found
    }
}
