//! The program as text: one line for each step. Ranks compare programs by hashes of these lines, so
//! that what they disagree on can be shown.

use std::fmt::Write;

use super::{Plan, PlanStep, PlannedCall, PlannedWork, Program};
use crate::Module;
use crate::ids::{InstrId, PlanId, SlotId};
use halflap::ids::Id;
use halflap::units::Bytes;

/// A program's lines.
#[derive(Clone, Debug)]
pub struct Text {
    /// All lines, in order.
    pub lines: Vec<PlanLine>,
}

/// A line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanLine {
    /// The step that it shows: the plan, and its place there. `None` for a heading.
    pub step: Option<(PlanId, usize)>,
    /// What it says.
    pub text: String,
}

/// FNV-1a with 64 bits: the same on every machine and in every version of Rust.
pub fn hash_of(bytes: &[u8]) -> u64 {
    const OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
    const PRIME: u64 = 0x0000_0100_0000_01b3;
    bytes.iter().fold(OFFSET, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(PRIME))
}

impl Text {
    /// A program as text.
    pub fn of(module: &Module, program: &Program) -> Text {
        let mut text = Text { lines: Vec::new() };
        text.heading(headline(module, program));
        for (id, stream) in program.streams.iter() {
            text.heading(format!("stream {}: {}", id.index(), stream.name));
        }
        for (id, plan) in program.plans.iter().rev() {
            let printer = Printer { module, program, plan };
            text.heading(String::new());
            text.heading(printer.heading(id == program.entry));
            for (place, step) in plan.steps.iter().enumerate() {
                let line = format!("{place:>6}  {}", printer.step(step));
                text.lines
                    .push(PlanLine { step: Some((id, place)), text: line.trim_end().to_owned() });
            }
        }
        text
    }

    fn heading(&mut self, text: String) {
        self.lines.push(PlanLine { step: None, text });
    }

    /// The lines of steps, without headings, whose figures follow from them.
    pub fn steps(&self) -> impl Iterator<Item = &PlanLine> {
        self.lines.iter().filter(|line| line.step.is_some())
    }

    /// A hash of every step's line.
    pub fn hashes(&self) -> Vec<u64> {
        self.steps().map(|line| hash_of(line.text.as_bytes())).collect()
    }

    /// A hash of all steps.
    pub fn hash(&self) -> u64 {
        let bytes: Vec<u8> = self.hashes().iter().flat_map(|hash| hash.to_le_bytes()).collect();
        hash_of(&bytes)
    }

    /// All lines as one text.
    pub fn render(&self) -> String {
        self.lines.iter().fold(String::new(), |text, line| text + &line.text + "\n")
    }
}

fn headline(module: &Module, program: &Program) -> String {
    let peak = program.peak();
    let counted = |count: usize, what: &str| match count {
        1 => format!("1 {what}"),
        many => format!("{many} {what}s"),
    };
    format!(
        "plan of {} for {}: {}, {}, peak {peak} ({} bytes)",
        module.name(),
        counted(module.devices().count() as usize, "rank"),
        counted(program.plans.len(), "computation"),
        counted(program.step_count(), "step"),
        peak.0
    )
}

struct Printer<'a> {
    module: &'a Module,
    program: &'a Program,
    plan: &'a Plan,
}

impl Printer<'_> {
    fn heading(&self, is_entry: bool) -> String {
        let kind = if is_entry { "entry" } else { "computation" };
        let sizes = [crate::SlotOrigin::Parameter, crate::SlotOrigin::Constant]
            .map(|origin| self.plan.size_of(origin));
        format!(
            "{kind} {}: {} steps, parameters {}, constants {}, gives {}",
            self.module.computation_name(self.plan.computation),
            self.plan.steps.len(),
            sizes[0],
            sizes[1],
            self.slots(&self.plan.results)
        )
    }

    fn name(&self, instr: InstrId) -> &str {
        self.module.instruction_name(instr)
    }

    fn slot(&self, slot: SlotId) -> &str {
        &self.plan.storage.slots[slot].name
    }

    fn slots(&self, slots: &[SlotId]) -> String {
        let names: Vec<&str> = slots.iter().map(|&slot| self.slot(slot)).collect();
        if names.is_empty() { "nothing".to_owned() } else { names.join(", ") }
    }

    fn step(&self, step: &PlanStep) -> String {
        let sized = |slot: SlotId| {
            let size: Bytes = self.plan.storage.slots[slot].size;
            format!("{}  {} bytes", self.slot(slot), size.0)
        };
        match step {
            PlanStep::Alloc(slot) => format!("alloc   {}", sized(*slot)),
            PlanStep::Free(slot) => format!("free    {}", sized(*slot)),
            PlanStep::Launch(work) => format!("launch  {}", self.work(work)),
            PlanStep::Start { work, stream, comm } => {
                let mut text = format!("start   {}  on stream {}", self.work(work), stream.index());
                if let Some(comm) = comm {
                    let _ = write!(text, " among {}", self.program.comms[*comm].describe());
                }
                text
            }
            PlanStep::Wait(start) => match self.plan.steps.get(*start) {
                Some(PlanStep::Start { work, .. }) => {
                    format!("wait    {} (step {start})", self.name(work.instr))
                }
                _ => format!("wait    step {start}"),
            },
            PlanStep::Call(call) => format!("call    {}", self.call(call)),
            PlanStep::Loop(repeat) => {
                let of = |plan: PlanId| {
                    self.module.computation_name(self.program.plans[plan].computation)
                };
                let mut text = format!("loop    {}  {} ", self.name(repeat.instr), of(repeat.body));
                let _ = write!(
                    text,
                    "while {}, on {}",
                    of(repeat.condition),
                    self.slots(&repeat.state)
                );
                let pairs = repeat
                    .copied
                    .iter()
                    .map(|&(from, to)| format!("{} <- {}", self.slot(to), self.slot(from)));
                text + &list("copies", pairs)
            }
            PlanStep::Branch { instr, selector, branches } => {
                let each: Vec<String> = branches.iter().map(|call| self.call(call)).collect();
                format!(
                    "branch  {}  by {}: {}",
                    self.name(*instr),
                    self.slot(*selector),
                    each.join(" | ")
                )
            }
        }
    }

    fn work(&self, work: &PlannedWork) -> String {
        let opcode = match work.fused {
            Some(_) => "",
            None => self.module.opcode_name(work.instr),
        };
        let mut text = format!("{}  {opcode}({})", work.name(self.module), self.slots(&work.reads));
        let _ = write!(text, " -> {}", self.slots(&work.writes));
        if work.fused.is_some() {
            let names: Vec<&str> =
                work.instrs().into_iter().map(|instr| self.name(instr)).collect();
            let _ = write!(text, "  computes {}", names.join(", "));
        }
        let source = self.module.source(work.instr);
        if !source.is_empty() {
            let _ = write!(text, "  # {source}");
        }
        text
    }

    fn call(&self, call: &PlannedCall) -> String {
        let plan = &self.program.plans[call.plan];
        let theirs = |slot: SlotId| &plan.storage.slots[slot].name;
        let arguments = self.slots(&call.arguments);
        let text = format!(
            "{}  {}({arguments})",
            self.name(call.instr),
            self.module.computation_name(plan.computation)
        );
        let pair =
            |&(from, to): &(SlotId, SlotId)| format!("{} <- {}", self.slot(to), theirs(from));
        text + &list("lends", call.lent.iter().map(pair))
            + &list("takes over", call.adopted.iter().map(pair))
            + &list("copies", call.copied.iter().map(pair))
            + &list("allocates", call.allocated.iter().map(|&slot| self.slot(slot).to_owned()))
    }
}

fn list(what: &str, items: impl Iterator<Item = String>) -> String {
    let items: Vec<String> = items.collect();
    if items.is_empty() { String::new() } else { format!("  {what} {}", items.join(", ")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_that_of_everybody() {
        assert_eq!(hash_of(b""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(hash_of(b"foobar"), 0x8594_4171_f739_67e8);
    }
}
