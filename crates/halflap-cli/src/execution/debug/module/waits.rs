//! Ranks that wait for each other, or for a kernel that does not return.

use std::time::Duration;

use serde_json::Value as Json;

use super::Walk;
use super::fault::{fault_words, locate, rank_of, text};
use super::look::CloserLook;
use super::run::{Memory, StageOptions};
use crate::execution::debug::report::{Diagnosis, Kind, StrayCollective};
use crate::exit::Failed;

/// The least time for the first NaN of a loop that does not end.
const SHORTEST: Duration = Duration::from_secs(5);

impl Walk<'_> {
    /// Ranks that wait, or a kernel that hangs: its source line, and its inputs.
    pub(super) fn stuck(&mut self, mut finding: Diagnosis) -> Result<Diagnosis, Failed> {
        let Some(kernel) = finding.kernel.clone() else { return Ok(finding) };
        if finding.source.is_empty() {
            finding.source = self.source(&kernel);
        }
        let opcode = self.instruction(&kernel).map(|instr| self.module.opcode_name(instr));
        if opcode == Some("while") {
            self.look_for_nan()?;
        } else if opcode.is_some() && !self.is_collective(&kernel) {
            let look = CloserLook {
                kernel: &kernel,
                memory: Memory::Cached,
                filter: vec![kernel.clone()],
            };
            self.look_closer(look, &mut finding)?;
        }
        Ok(finding)
    }

    /// A note on the first NaN of a run with a loop that does not end: comparisons with NaN are
    /// never true, so that it may be why. A NaN that matters comes early: in the time of the plain
    /// run, or not at all.
    fn look_for_nan(&mut self) -> Result<(), Failed> {
        let asked = StageOptions::new("first-nan", Memory::Cached, &["--nan-asserts"])
            .within(self.plain_took.max(SHORTEST));
        let ran = self.session.run(&asked)?;
        let fault = ran.fault().filter(|fault| text(fault, "kind") == Some("not-finite"));
        let said = fault.as_ref().map_or("nothing".to_owned(), fault_words);
        self.session.report.stage("first NaN", said.clone());
        self.session.report.notes.extend(fault.map(|_| {
            format!("{said}: if the loop's condition compares it, that may be why it does not end")
        }));
        Ok(())
    }
}

/// Ranks that wait for each other or for a kernel.
pub(super) fn apart(fault: &Json) -> Option<Diagnosis> {
    let kind = match text(fault, "kind")? {
        "timed-out" | "endless" => Kind::Hang,
        "diverged" | "plans-differ" | "ragged" | "untaken" => Kind::Apart,
        _ => return None,
    };
    let account = &fault["account"];
    let what = text(account, "text")
        .or_else(|| text(fault, "message"))
        .unwrap_or("ranks wait for each other");
    let mut finding = Diagnosis::new(kind, what.to_owned());
    let ranks = account["ranks"].as_array().and_then(|ranks| ranks.first()?.as_u64());
    finding.rank = ranks.map(|rank| rank as usize).or_else(|| rank_of(fault));
    let named = text(account, "collective")
        .or_else(|| text(fault, "collective"))
        .or_else(|| text(fault, "kernel"));
    finding.kernel = named.map(str::to_owned);
    if let Some((rank, kernel)) =
        running(text(fault, "message").unwrap_or("")).filter(|_| named.is_none())
    {
        (finding.rank, finding.kernel) = (Some(rank), Some(kernel));
    }
    finding.is_unproven_loop = fault["is_proven"] == false;
    finding.stray = stray(&account["stray"]);
    let rank = finding.rank;
    locate(&mut finding, fault);
    locate(&mut finding, account);
    finding.rank = rank;
    finding.source = text(account, "source")
        .or_else(|| text(fault, "source"))
        .map(str::to_owned)
        .into_iter()
        .collect();
    Some(finding)
}

/// What a diverging rank reached instead of the others' collective.
fn stray(json: &Json) -> Option<StrayCollective> {
    let differences =
        json["differences"].as_array()?.iter().filter_map(Json::as_str).map(str::to_owned);
    Some(StrayCollective {
        collective: text(json, "collective")?.to_owned(),
        source: text(json, "source").map(str::to_owned),
        step: text(json, "computation").map(str::to_owned).zip(json["step"].as_u64()),
        differences: differences.collect(),
    })
}

/// The first rank that runs a kernel while all others wait: `  rank 0: runs dot.5 (step 3 of main,
/// 5 s)`.
fn running(message: &str) -> Option<(usize, String)> {
    message.lines().find_map(|line| {
        let (rank, rest) = line.trim().strip_prefix("rank ")?.split_once(": runs ")?;
        let (kernel, _) = rest.split_once(" (")?;
        Some((rank.parse().ok()?, kernel.to_owned()))
    })
}
