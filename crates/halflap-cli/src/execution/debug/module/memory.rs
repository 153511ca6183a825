//! Invalid accesses: runs with guard pages, arrays that change in between, processes that end.

use serde_json::Value as Json;

use super::Walk;
use super::fault::{fault_words, is_nobodys, locate, text};
use super::launched::open_launches;
use super::origins::OriginsReport;
use super::run::{Memory, ModuleRun, StageOptions};
use super::waits::apart;
use crate::execution::debug::child::End;
use crate::execution::debug::report::{Diagnosis, Kind};
use crate::exit::Failed;

/// Whether guards are to blame: unfused instructions with guard pages may need more memory than
/// available, and arrays that end with their page are not aligned, which some custom calls rely on.
fn is_of_guards(kind: &str, unguarded: &ModuleRun) -> bool {
    kind == "no-memory" || (kind == "unaligned" && unguarded.end.is_good())
}

impl Walk<'_> {
    /// One run with guard pages, one kernel at a time.
    pub(super) fn guarded(
        &mut self,
        unguarded: &ModuleRun,
        memory: Memory,
    ) -> Result<Option<Diagnosis>, Failed> {
        let (name, stage) = match memory {
            Memory::Start => ("guard before", "guard-start"),
            _ => ("guard behind", "guard-end"),
        };
        let ran = self.traced(name, &StageOptions::new(stage, memory, &["--launch-blocking"]))?;
        let Some(fault) = ran.fault() else {
            let differs = unguarded.end.is_good()
                && ran.end.is_good()
                && unguarded.results() != ran.results();
            let origins = ran.origins();
            let cause = origins.as_ref().and_then(OriginsReport::nan);
            return match (cause, &origins) {
                // New memory is NaN, so that unwritten memory shows.
                (Some(cause), Some(origins)) if differs || !unguarded.end.is_good() => {
                    self.memory_first(&cause, &origins.spoiled("nan"), memory).map(Some)
                }
                _ if differs => self.silent(memory),
                _ => Ok(None),
            };
        };
        match text(&fault, "kind") {
            Some(kind) if is_of_guards(kind, unguarded) => {
                self.session.report.notes.push(format!("{name}: {}", fault_words(&fault)));
                Ok(None)
            }
            Some("overrun") => {
                self.overrun.get_or_insert(fault);
                Ok(None)
            }
            _ => match apart(&fault) {
                Some(finding) => self.stuck(finding).map(Some),
                None if is_nobodys(&fault) => self.unexplained(&ran).map(Some),
                None => self.memory_fault(&fault, memory).map(Some),
            },
        }
    }

    /// A kernel that accessed invalid memory, or ended the process.
    pub(super) fn memory_fault(
        &mut self,
        fault: &Json,
        memory: Memory,
    ) -> Result<Diagnosis, Failed> {
        let kind = match text(fault, "kind") {
            Some("out-of-bounds" | "overrun") => Kind::OutOfBounds,
            Some("use-after-free") => Kind::AfterFree,
            Some("write-to-input") => Kind::WriteToInput,
            Some("not-its-own") => Kind::NotItsOwn,
            _ => Kind::Crash,
        };
        let mut finding = Diagnosis::new(kind, fault_words(fault));
        finding.kernel = text(fault, "kernel").map(str::to_owned);
        locate(&mut finding, fault);
        if let Some(kernel) = finding.kernel.clone()
            && let Some(again) = self.values(&kernel, memory, &mut finding)?
            && again["kind"] == fault["kind"]
        {
            // One report speaks of one rank.
            finding.what = fault_words(&again);
        }
        Ok(finding)
    }

    /// An array that changed between its producer and a reader: a custom call in between wrote to
    /// it.
    pub(super) fn clobbered(&mut self) -> Result<Option<Diagnosis>, Failed> {
        let saved = self.save_all(&["--launch-blocking"])?;
        let Some((maker, reader, buffer)) = saved.changed()? else { return Ok(None) };
        let between = saved.between(maker, reader);
        let Some(kernel) = between.iter().find(|name| self.is_custom(name)).or(between.first())
        else {
            return Ok(None);
        };
        let taker = saved.kernel(reader).map_or("", |entry| entry.kernel.as_str());
        let what = format!(
            "'{kernel}' writes to '{buffer}', which is not its own: '{taker}' finds it changed"
        );
        let mut finding = Diagnosis::new(Kind::OutOfBounds, what);
        finding.buffer = Some(buffer);
        finding.rank = Some(maker.rank);
        if let Some(place) = saved.find(kernel, finding.rank) {
            self.blame(&saved, place, &mut finding);
        }
        Ok(Some(finding))
    }

    fn is_custom(&self, kernel: &str) -> bool {
        self.instruction(kernel)
            .is_some_and(|instr| self.module.opcode_name(instr) == "custom-call")
    }

    /// A process that ended without an explanation: the kernel that it was in.
    pub(super) fn unexplained(&mut self, plain: &ModuleRun) -> Result<Diagnosis, Failed> {
        let asked =
            StageOptions::new("names", Memory::Cached, &["--debug-values=3", "--launch-blocking"]);
        let names = self.session.run(&asked)?;
        let open = open_launches(&names.printed());
        let said = open.first().map_or("no kernel".to_owned(), |(kernel, _)| format!("'{kernel}'"));
        self.session.report.stage("kernel names", format!("it was in {said}"));
        let what = match open.first() {
            Some((kernel, _)) => format!("the process {} in '{kernel}'", plain.end),
            None => format!("the process {}: {}", plain.end, plain.complaint()),
        };
        let mut finding =
            Diagnosis::new(if plain.end == End::TimedOut { Kind::Hang } else { Kind::Crash }, what);
        if let Some((kernel, rank)) = open.first() {
            finding.kernel = Some(kernel.clone());
            finding.rank = *rank;
            finding.source = self.source(kernel);
            self.values(&kernel.clone(), Memory::Cached, &mut finding)?;
        }
        Ok(finding)
    }
}
