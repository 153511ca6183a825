//! Lifetimes of the buffers of compiled graphs. `lifetimes.py` enables Inductor's own tracking in
//! the program and prints which buffers deviate; here they are matched with a kernel and a source
//! line.

use serde_json::Value as Json;

use super::generated::{GeneratedCall, GeneratedGraph};
use super::run::{CommandRun, CommandSession, Variables};
use crate::execution::debug::report::{Diagnosis, Kind};
use crate::exit::Failed;

/// The Python module that runs in the program.
pub const MODULE: &str = include_str!("lifetimes.py");

const TOLD: &str = "halflap-lifetimes: ";

/// How a buffer deviates from what Inductor planned.
#[derive(Debug, Clone, PartialEq, Eq)]
enum How {
    /// Something other than the generated code holds it: which variable, if Python knows.
    Kept(Option<String>),
    /// An operator returned another buffer's memory as new.
    Alias(String),
    /// Its memory was freed before its last use.
    Early,
    /// Its memory was resized.
    Resized(u64),
    /// The generated code itself holds it longer than planned.
    Late,
}

impl How {
    /// Whether values can be wrong because of it.
    fn spoils_values(&self) -> bool {
        matches!(self, How::Alias(_) | How::Early | How::Resized(_))
    }
}

/// A buffer that deviates.
#[derive(Debug, Clone, PartialEq, Eq)]
struct LifetimeError {
    how: How,
    buffer: String,
    /// Its type and shape.
    kind: String,
    bytes: u64,
    /// Where in the generated code it was noticed.
    file: String,
    line: usize,
}

impl LifetimeError {
    fn parse(record: &Json) -> Option<LifetimeError> {
        let text = |name: &str| record[name].as_str().map(str::to_owned);
        let how = match record["deviation"].as_str()? {
            "kept" => How::Kept(text("holder")),
            "alias" => How::Alias(text("other")?),
            "early" => How::Early,
            "resized" => How::Resized(record["now"].as_u64()?),
            "late" => How::Late,
            _ => return None,
        };
        Some(LifetimeError {
            how,
            buffer: text("buffer")?,
            kind: text("type")?,
            bytes: record["bytes"].as_u64()?,
            file: text("file")?,
            line: usize::try_from(record["line"].as_u64()?).ok()?,
        })
    }

    /// The step of the graph at which it was noticed, and the kernel that is to blame.
    fn calls<'a>(
        &self,
        graph: &'a GeneratedGraph,
    ) -> Option<(&'a GeneratedCall, &'a GeneratedCall)> {
        let place = graph.calls.iter().rposition(|call| call.line < self.line)?;
        let step = &graph.calls[place];
        // Compiled kernels cannot keep references to their arguments.
        let could_keep = |call: &&GeneratedCall| call.is_custom() && call.touches(&self.buffer);
        let keeper = graph.calls[..=place].iter().rev().find(could_keep);
        match self.how {
            How::Kept(_) => Some((step, keeper.unwrap_or(step))),
            _ => Some((step, step)),
        }
    }

    /// What is wrong, in a sentence.
    fn words(&self, calls: Option<(&GeneratedCall, &GeneratedCall)>) -> String {
        let unknown = || "a kernel".to_owned();
        let step = calls.map_or_else(unknown, |(step, _)| step.title());
        let blamed = calls.map_or_else(unknown, |(_, blamed)| blamed.title());
        let is_custom = calls.is_some_and(|(_, blamed)| blamed.is_custom());
        let it = format!("{} ({}, {} bytes)", self.buffer, self.kind, self.bytes);
        let said = match &self.how {
            How::Kept(holder) => {
                let holder = holder.as_deref().unwrap_or("something outside the graph");
                let given = if is_custom { format!("{it}, which {blamed} was given") } else { it };
                format!("{holder} still holds {given}: it should have been freed after {step}")
            }
            How::Alias(other) => format!(
                "{blamed} returns {it} in the memory of {other} but declares it as new: \
                 whatever reuses one overwrites the other"
            ),
            How::Early => format!("{it} lost its memory at {blamed}, before its last use"),
            How::Resized(now) => {
                format!("{blamed} resizes the memory of {it} to {now} bytes while it is in use")
            }
            How::Late => format!("the generated code still holds {it} after {step}"),
        };
        format!("{said} (generated code: {}:{})", self.file, self.line)
    }
}

/// A deviation and the rank that it was found on.
type OfRank = (Option<usize>, LifetimeError);

/// What is wrong with a buffer's lifetime.
pub struct LifetimeFinding {
    pub finding: Diagnosis,
    /// Whether values can be wrong because of it.
    pub spoils_values: bool,
}

/// Runs the program with Inductor's tracking.
pub fn check(session: &mut CommandSession<'_>) -> Result<Option<LifetimeFinding>, Failed> {
    let ran = session.run("lifetimes", Variables::lifetimes())?;
    let graphs = ran.graphs();
    let notes = &mut session.report.notes;
    let (mut late, mut wrong) = (Vec::new(), Vec::new());
    for (rank, record) in ran.told(TOLD) {
        if let Some(message) = record["message"].as_str() {
            notes.push(format!("lifetimes of buffers were not checked everywhere: {message}"));
        }
        match LifetimeError::parse(&record) {
            Some(found) if found.how == How::Late => late.push((rank, found)),
            found => wrong.extend(found.map(|found| (rank, found))),
        }
    }
    notes.extend(untracked(&graphs));
    wrong.sort_by_key(|(_, found)| !found.how.spoils_values());
    session.report.stage("lifetimes", summary(&ran, &wrong, &late));
    let reproduce = Some(session.again(&ran.variables));
    Ok(wrong.first().map(|(rank, found)| LifetimeFinding {
        finding: Diagnosis { rank: *rank, reproduce, ..finding(found, &graphs) },
        spoils_values: found.how.spoils_values(),
    }))
}

fn summary(ran: &CommandRun, wrong: &[OfRank], late: &[OfRank]) -> String {
    let mut parts = vec![ran.end.to_string()];
    if !wrong.is_empty() {
        parts.push(format!("wrong lifetimes: {}", counted(wrong.len())));
    }
    if let Some((_, LifetimeError { buffer, file, line, .. })) = late.first() {
        let count = counted(late.len());
        parts.push(format!("Inductor frees {count} later than planned ({buffer}, {file}:{line})"));
    }
    parts.join("; ")
}

fn counted(buffers: usize) -> String {
    format!("{buffers} {}", if buffers == 1 { "buffer" } else { "buffers" })
}

/// The note for graphs that Inductor does not track.
fn untracked(graphs: &[GeneratedGraph]) -> Option<String> {
    let is_untracked = |graph: &&GeneratedGraph| !graph.is_tracked && !graph.calls.is_empty();
    let count = graphs.iter().filter(is_untracked).count();
    let of = graphs.len();
    (count > 0).then(|| {
        format!(
            "lifetimes of buffers were not checked in {count} of {of} compiled graphs: \
             C++ wrappers, torch before 2.10 and Python that ignores PYTHONPATH have no tracking"
        )
    })
}

fn finding(found: &LifetimeError, graphs: &[GeneratedGraph]) -> Diagnosis {
    let graph = graphs.iter().find(|graph| graph.file == found.file);
    let calls = graph.and_then(|graph| found.calls(graph));
    let mut finding = Diagnosis::new(Kind::Lifetime, found.words(calls));
    finding.buffer = Some(found.buffer.clone());
    finding.kernel = calls.map(|(_, blamed)| blamed.title());
    finding.source = calls.map_or(Vec::new(), |(_, blamed)| blamed.source.clone());
    finding
}

#[cfg(test)]
mod tests {
    use super::*;

    fn graph() -> GeneratedGraph {
        let call = |kernel: &str, line: usize, reads: &[&str]| GeneratedCall {
            kernel: kernel.to_owned(),
            line,
            reads: reads.iter().map(|name| (*name).to_owned()).collect(),
            ..GeneratedCall::default()
        };
        let calls = vec![
            call("torch.ops.mine.keep.default", 10, &["buf0"]),
            call("torch.ops.aten.topk.default", 15, &["buf0"]),
            call("extern_kernels.mm", 20, &["buf0"]),
            call("cpp_fused_1", 30, &["buf1"]),
        ];
        GeneratedGraph { calls, file: "g.py".to_owned(), is_tracked: true }
    }

    /// The report for buf0.
    fn told(deviation: &str) -> LifetimeError {
        let record = format!(
            r#"{{"deviation": {deviation}, "buffer": "buf0", "type": "float32[2]", "bytes": 8,
                "file": "g.py", "line": 25}}"#
        );
        LifetimeError::parse(&serde_json::from_str(&record).unwrap()).unwrap()
    }

    #[test]
    fn the_operator_that_could_keep_a_buffer_is_blamed() {
        let found = told(r#""kept", "holder": "train.cache""#);
        let finding = finding(&found, &[graph()]);
        assert_eq!(
            finding.what,
            "train.cache still holds buf0 (float32[2], 8 bytes), which torch.ops.mine.keep.default \
             was given: it should have been freed after extern_kernels.mm (generated code: g.py:25)"
        );
        assert_eq!(finding.kernel.as_deref(), Some("torch.ops.mine.keep.default"));
        assert!(!found.how.spoils_values());
    }

    #[test]
    fn a_kernel_is_blamed_for_what_happens_in_its_step() {
        for (deviation, words) in [
            (r#""alias", "other": "arg0_1""#, "in the memory of arg0_1 but declares it as new"),
            (r#""early""#, "buf0 (float32[2], 8 bytes) lost its memory at extern_kernels.mm"),
            (r#""resized", "now": 0"#, "extern_kernels.mm resizes the memory of buf0"),
        ] {
            let found = told(deviation);
            let finding = finding(&found, &[graph()]);
            assert!(finding.what.contains(words) && found.how.spoils_values(), "{}", finding.what);
            assert_eq!(finding.kernel.as_deref(), Some("extern_kernels.mm"));
        }
    }

    #[test]
    fn graphs_that_are_not_tracked_are_noted() {
        let plain = GeneratedGraph { is_tracked: false, ..graph() };
        assert_eq!(untracked(&[graph(), GeneratedGraph::default()]), None);
        let note = untracked(&[graph(), plain]).unwrap();
        assert!(note.contains("1 of 2 compiled graphs"), "{note}");
    }
}
