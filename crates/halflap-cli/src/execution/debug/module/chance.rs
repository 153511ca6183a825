//! Results that differ between runs: by where memory is, by chance, or by the time of day.

use std::time::{Duration, Instant};

use super::Walk;
use super::run::{LATER, Memory, ModuleRun, StageOptions, VALUES_LATER};
use crate::execution::debug::report::{Diagnosis, Kind};
use crate::execution::diff;
use crate::exit::Failed;

/// Seeds taken from the time of day change within this time.
const SECOND: Duration = Duration::from_millis(1100);

impl Walk<'_> {
    /// Results that depend on buffer addresses, or vary at random: a kernel reads memory that it
    /// should not.
    pub(super) fn silent(&mut self, memory: Memory) -> Result<Option<Diagnosis>, Failed> {
        let mut folders = Vec::new();
        let stages = [
            ("values-cached", Memory::Cached),
            ("values-guarded", memory),
            ("values-again", Memory::Cached),
        ];
        for (stage, memory) in stages {
            let folder = self.session.path(&format!("{stage}-saved"));
            let mut asked =
                StageOptions::new(stage, memory, &["--debug-values=1", "--launch-blocking"]);
            asked.options.push(format!("--values-dir={}", folder.display()));
            self.session.run(&asked)?;
            folders.push(folder);
        }
        self.session.report.stage("values", format!("as always, and with {}", memory.words()));
        let Some((kernel, rank)) = diff::first_apart(&folders[0], &folders[1])? else {
            return Ok(None);
        };
        let is_chance =
            diff::first_apart(&folders[0], &folders[2])?.is_some_and(|(other, _)| other == kernel);
        let (kind, what) = match is_chance {
            true => (
                Kind::Chance,
                format!("'{kernel}' gives different values every time, from the same inputs"),
            ),
            false => {
                let why =
                    "it reads memory that it was not given, or does not write all of its output";
                (
                    Kind::Uninitialised,
                    format!(
                        "'{kernel}' gives different values when its memory is elsewhere: {why}"
                    ),
                )
            }
        };
        let mut finding = Diagnosis::new(kind, what);
        finding.rank = Some(rank);
        finding.source = self.source(&kernel);
        finding.kernel = Some(kernel.clone());
        self.values(&kernel, memory, &mut finding)?;
        Ok(Some(finding))
    }

    /// Results that depend on when a module is run (a custom call that is seeded by the time of
    /// day), or on what the heap's memory had in it before it was allocated.
    pub(super) fn varies(
        &mut self,
        before: &ModuleRun,
        ended: Instant,
    ) -> Result<Option<Diagnosis>, Failed> {
        std::thread::sleep(SECOND.saturating_sub(ended.elapsed()));
        let later = self.session.run(&StageOptions::new(LATER, Memory::Cached, &[]))?;
        if !later.end.is_good() || later.results() == before.results() {
            return Ok(None);
        }
        let mut folders = Vec::new();
        for stage in ["values-first", VALUES_LATER] {
            let folder = self.session.path(&format!("{stage}-saved"));
            let mut asked = StageOptions::new(stage, Memory::Cached, &["--debug-values=1"]);
            asked.options.push(format!("--values-dir={}", folder.display()));
            self.session.run(&asked)?;
            folders.push(folder);
            std::thread::sleep(SECOND);
        }
        self.session.report.stage("values", "of two runs, more than a second apart");
        let Some((kernel, rank)) = diff::first_apart(&folders[0], &folders[1])? else {
            return Ok(None);
        };
        let what = format!(
            "'{kernel}' gives different values at another time, from the same inputs: they depend on the time, \
                 or on memory of its own that it has not written"
        );
        let mut finding = Diagnosis::new(Kind::Chance, what);
        finding.rank = Some(rank);
        finding.kernel = Some(kernel.clone());
        self.values(&kernel, Memory::Cached, &mut finding)?;
        Ok(Some(finding))
    }
}
