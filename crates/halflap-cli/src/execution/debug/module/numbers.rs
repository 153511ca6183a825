//! NaN and infinities: which kernel makes those that reach results.

use super::Walk;
use super::fault::{is_astray, locate, text};
use super::look::CloserLook;
use super::origins::{NonFiniteOrigin, OriginsReport, lookup_words};
use super::run::{Memory, StageOptions};
use crate::execution::debug::report::{Diagnosis, Kind};
use crate::exit::Failed;

impl Walk<'_> {
    /// NaN in results; infinities are recorded for later, and what may be intended is noted.
    pub(super) fn spoiled(&mut self, origins: &OriginsReport) -> Result<Option<Diagnosis>, Failed> {
        self.session.report.notes.extend(origins.clamped());
        if let Some(cause) =
            origins.nan().filter(|cause| cause.is_made() || cause.origin["how"] == "input")
        {
            let results = origins.spoiled("nan");
            self.session.report.stage("origin of NaN", format!("{} has NaN", results));
            return self.memory_first(&cause, &results, Memory::Cached).map(Some);
        }
        self.session.report.notes.extend(origins.hidden());
        let unwritten = origins.nan().filter(|cause| cause.origin["how"] == "unwritten");
        let unwritten = unwritten.map(|cause| (cause, origins.spoiled("nan")));
        let infinite = || origins.infinity().map(|cause| (cause, origins.spoiled("infinity")));
        self.left = unwritten.or_else(infinite);
        let intended = origins.intended().filter(|_| self.left.is_none());
        self.session.report.is_not_finite = intended.is_some();
        self.session.report.notes.extend(intended);
        Ok(None)
    }

    /// The first NaN of a run that does not complete.
    pub(super) fn first_nan(&mut self) -> Result<Option<Diagnosis>, Failed> {
        let ran = self
            .stage("first NaN", &StageOptions::new("sanity", Memory::Cached, &["--nan-asserts"]))?;
        let Some(fault) = ran.fault().filter(|fault| text(fault, "kind") == Some("not-finite"))
        else {
            return Ok(None);
        };
        let how = if fault["is_input"] == true { "unwritten" } else { "made" };
        let mut origin = fault.clone();
        origin["how"] = how.into();
        let results = "no result, because the run does not complete";
        self.memory_first(&NonFiniteOrigin::at(origin), results, Memory::Cached).map(Some)
    }

    /// A NaN, unless a custom call makes an invalid memory access: that may be the cause.
    pub(super) fn memory_first(
        &mut self,
        cause: &NonFiniteOrigin,
        results: &str,
        memory: Memory,
    ) -> Result<Diagnosis, Failed> {
        let guards: &[Memory] = match memory {
            _ if self.session.args.run.custom_calls.is_empty() => &[],
            Memory::Start => &[Memory::Start],
            Memory::Cached | Memory::End => &[Memory::End, Memory::Start],
        };
        for &guard in guards {
            let ran = self.stage(
                "memory alone",
                &StageOptions::new("memory-alone", guard, &["--launch-blocking"]),
            )?;
            if let Some(fault) = ran.fault().filter(is_astray) {
                return self.memory_fault(&fault, guard);
            }
        }
        self.caused(cause, memory, results)
    }

    /// A kernel that corrupts results.
    pub(super) fn caused(
        &mut self,
        cause: &NonFiniteOrigin,
        memory: Memory,
        results: &str,
    ) -> Result<Diagnosis, Failed> {
        let kernel = cause.kernel().to_owned();
        let kind = match memory {
            _ if !cause.is_nan => Kind::Infinity,
            Memory::Cached => Kind::NotANumber,
            _ => Kind::Uninitialised,
        };
        let mut finding = Diagnosis::new(kind, self.sentence(cause, memory, results));
        let lookup = cause.lookup().filter(|_| memory == Memory::Cached);
        let kernel = lookup.and_then(|lookup| text(lookup, "kernel")).map_or(kernel, str::to_owned);
        finding.is_seen_elsewhere = lookup.is_some();
        finding.kernel = Some(kernel.clone()).filter(|kernel| !kernel.is_empty());
        let instruction = cause.instruction().filter(|_| lookup.is_none());
        finding.instruction = instruction.map(str::to_owned);
        locate(&mut finding, lookup.unwrap_or(&cause.origin));
        let asserts = if cause.is_nan { "--nan-asserts" } else { "--nan-asserts=inf" };
        self.last = StageOptions::new("sanity", memory, &[asserts]);
        self.last
            .options
            .extend((memory != Memory::Cached).then(|| "--launch-blocking".to_owned()));
        self.kind = Some("not-finite".to_owned());
        if let Some(kernel) = finding.kernel.clone() {
            let mut filter = self.producers(&kernel)?;
            filter.push(kernel.clone());
            self.look_closer(CloserLook { kernel: &kernel, memory, filter }, &mut finding)?;
        }
        Ok(finding)
    }

    /// What is wrong, in a sentence.
    fn sentence(&self, cause: &NonFiniteOrigin, memory: Memory, results: &str) -> String {
        let (kernel, origin) = (cause.kernel(), &cause.origin);
        let maker = cause.maker();
        let buffer = text(origin, "buffer").unwrap_or("");
        let given = match origin["of"].as_array().is_some_and(|of| !of.is_empty()) {
            true => "infinite inputs",
            false => "finite numbers",
        };
        let what = match (&cause.victim, memory) {
            (Some(victim), _) => {
                format!(
                    "{maker} makes an infinity from finite numbers, and {victim} makes NaN from it"
                )
            }
            _ if origin["how"] == "input" => {
                format!("input '{buffer}' has NaN; '{kernel}' is the first kernel that reads it")
            }
            (None, Memory::Cached) if origin["how"] == "unwritten" => {
                format!("'{kernel}' reads NaN from '{buffer}', which no kernel wrote there")
            }
            (None, Memory::Cached) if cause.is_nan => match cause.lookup().and_then(lookup_words) {
                Some(words) => format!("{words}, which '{kernel}' combines with other elements"),
                None => format!("{maker} makes NaN from {given}"),
            },
            (None, Memory::Cached) => format!("{maker} makes an infinity from finite numbers"),
            _ if origin["how"] == "unwritten" => {
                format!("'{kernel}' reads '{buffer}', which no kernel has written")
            }
            _ => format!("'{kernel}' leaves memory of its output '{buffer}' unwritten"),
        };
        format!("{what}; it reaches {results}{}", cause.others())
    }
}
