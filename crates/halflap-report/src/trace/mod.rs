//! Traces for common viewers.
//!
//! Each order is a process with a track for compute, one for each communication stream, one for
//! stalls of compute, and a counter of memory. On one track slices never overlap: each is a queue.
//! An arrow leads from every collective to its waits. What ranks actually did is drawn in the same
//! way, with a process for each rank.

mod json;
mod perfetto;

pub use json::{write_json, write_ran_json};
pub use perfetto::{write_perfetto, write_ran_perfetto};

use super::played::Played;
use super::ran::{Ran, RanKind, RanSlice};
use super::text::{called_up_to, printable, printable_end, printable_up_to, ranks};
use super::timing::exposed_by_collective;
use halflap::graph::{Graph, OpKind};
use halflap::ids::{Id, OpId, StreamId};
use halflap::simulate::{Cause, Exposure};
use halflap::units::Nanos;

/// A track of slices, in time.
struct TraceTrack {
    name: String,
    slices: Vec<TrackSlice>,
}

/// A time in which something ran.
struct TrackSlice {
    name: String,
    category: &'static str,
    start: u64,
    end: u64,
    /// Arrows that start here, and arrows that end here.
    leads_to: Vec<u64>,
    comes_from: Vec<u64>,
    notes: Vec<(&'static str, SliceNote)>,
}

/// What is known of a slice.
enum SliceNote {
    Text(String),
    Number(u64),
}

/// What is alive from a time on.
struct LiveLevel {
    time: u64,
    bytes: i64,
}

/// Everything that is drawn of one order.
struct Process {
    name: String,
    tracks: Vec<TraceTrack>,
    memory: Vec<LiveLevel>,
}

/// Viewers use whole nanoseconds. Rounding preserves the order.
fn whole(time: Nanos) -> u64 {
    time.0.round() as u64
}

/// A part of a program.
#[derive(Clone, Copy)]
pub struct TracedPart<'a> {
    /// Its name; empty for all of it.
    pub name: &'a str,
    /// Its orders.
    pub orders: &'a [Played<'a>],
}

/// The orders as they are drawn; arrow ids are unique.
fn processes(parts: &[TracedPart<'_>]) -> Vec<Process> {
    let mut arrows = 0;
    let mut drawn = Vec::new();
    let orders = parts.iter().flat_map(|part| part.orders.iter().map(|played| (part.name, played)));
    for (part, played) in orders {
        let graph = played.graph;
        let first_arrow = |op: OpId, arrows: &mut u64| {
            let first = *arrows;
            *arrows += graph.waited_by(op).len() as u64;
            first
        };
        let arrows_of: Vec<u64> = graph.ops().map(|op| first_arrow(op, &mut arrows)).collect();
        let name = match part.is_empty() {
            true => played.name.to_owned(),
            false => format!("{} {}", printable(part), played.name),
        };
        drawn.push(PlayedTrace { played, arrows: arrows_of }.process(name));
    }
    drawn
}

/// Ranks as they are drawn.
fn ran_processes(ranks: &[Ran]) -> Vec<Process> {
    let slice = |slice: &RanSlice| TrackSlice {
        name: match slice.kind {
            RanKind::Wait => format!("for {}", slice.called()),
            _ => slice.called(),
        },
        category: match slice.kind {
            RanKind::Compute => "compute",
            RanKind::Copy => "copy",
            RanKind::Wait => "wait",
            RanKind::Collective => "collective",
        },
        start: whole(slice.start),
        end: whole(slice.end),
        leads_to: Vec::new(),
        comes_from: Vec::new(),
        notes: ran_notes(slice),
    };
    let process = |ran: &Ran| Process {
        name: printable(&ran.name),
        tracks: ran
            .lanes
            .iter()
            .map(|lane| TraceTrack {
                name: printable(&lane.name),
                slices: lane.slices.iter().map(slice).collect(),
            })
            .collect(),
        memory: Vec::new(),
    };
    ranks.iter().map(process).collect()
}

/// What is known of something that ran.
fn ran_notes(slice: &RanSlice) -> Vec<(&'static str, SliceNote)> {
    let mut notes = Vec::new();
    if !slice.label().is_empty() {
        notes.push(("node", SliceNote::Text(printable_up_to(&slice.name, 160))));
    }
    if let Some((among, bytes)) = &slice.among {
        notes.extend([
            ("group", SliceNote::Text(printable(among))),
            ("bytes", SliceNote::Number(bytes.0.unsigned_abs())),
        ]);
    }
    let known = slice.from.known();
    notes.extend(known.map(|(what, text)| (what, SliceNote::Text(printable_end(text, 160)))));
    notes
}

struct PlayedTrace<'a> {
    played: &'a Played<'a>,
    /// The number of the first arrow of every operation.
    arrows: Vec<u64>,
}

impl PlayedTrace<'_> {
    fn process(&self, name: String) -> Process {
        let Played { graph, machine, order, .. } = self.played;
        let ops = order.as_slice();
        let runs = |op: &&OpId| !graph.kind(**op).is_collective();
        let compute = TraceTrack {
            name: "compute".to_owned(),
            slices: ops.iter().filter(runs).map(|&op| self.slice(op)).collect(),
        };
        let mut tracks = vec![compute];
        for stream in (0..machine.streams.len()).map(StreamId::from_index) {
            let here: Vec<OpId> =
                ops.iter().copied().filter(|&op| machine.streams.of(op) == Some(stream)).collect();
            if !here.is_empty() {
                let name = stream_name(graph, stream, &here);
                tracks.push(TraceTrack {
                    name,
                    slices: here.into_iter().map(|op| self.slice(op)).collect(),
                });
            }
        }
        tracks.push(TraceTrack { name: "compute stands still".to_owned(), slices: self.stalls() });
        Process { name, tracks, memory: self.memory() }
    }

    fn slice(&self, op: OpId) -> TrackSlice {
        let graph = self.played.graph;
        let (start, end) = self.played.times(op);
        let arrow = |collective: OpId, wait: OpId| {
            let place = graph.waited_by(collective).iter().position(|&other| other == wait);
            place.map(|place| self.arrows[collective.index()] + place as u64)
        };
        TrackSlice {
            name: called_up_to(graph, op, 160),
            category: match graph.kind(op) {
                OpKind::Compute | OpKind::MultiOutput => "compute",
                OpKind::Wait => "wait",
                OpKind::AsyncCollective | OpKind::SyncCollective => "collective",
            },
            start: whole(start),
            end: whole(end),
            leads_to: graph.waited_by(op).iter().filter_map(|&wait| arrow(op, wait)).collect(),
            comes_from: graph
                .waits_for(op)
                .iter()
                .filter_map(|&collective| arrow(collective, op))
                .collect(),
            notes: self.notes(op),
        }
    }

    fn notes(&self, op: OpId) -> Vec<(&'static str, SliceNote)> {
        let graph = self.played.graph;
        let mut notes = vec![(
            "place in the order",
            SliceNote::Number(self.played.order.pos(op).index() as u64),
        )];
        let node = printable_up_to(graph.name(op), 160);
        if called_up_to(graph, op, 160) != node {
            notes.push(("node", SliceNote::Text(node)));
        }
        if let Some(collective) = graph.collective(op) {
            let group = &graph.groups()[collective.group];
            notes.extend([
                ("operation", SliceNote::Text(printable(&collective.op))),
                (
                    "group",
                    SliceNote::Text(format!(
                        "{} ({})",
                        printable(&group.name),
                        ranks(&group.ranks)
                    )),
                ),
                ("bytes", SliceNote::Number(collective.bytes().0.unsigned_abs())),
            ]);
        } else if !graph.fused(op).is_empty() {
            notes
                .push(("fused", SliceNote::Text(printable_up_to(&graph.fused(op).join(" "), 160))));
        }
        let known = graph.provenance(op).known();
        notes.extend(known.map(|(what, text)| (what, SliceNote::Text(printable_end(text, 160)))));
        notes
    }

    fn stalls(&self) -> Vec<TrackSlice> {
        let mut exposures: Vec<&Exposure> = self.played.simulation.exposures.iter().collect();
        exposures.sort_by(|a, b| a.start.0.total_cmp(&b.start.0));
        let exposed = exposed_by_collective(self.played.simulation);
        let stall = |exposure: &&Exposure| {
            let name = |op| called_up_to(self.played.graph, op, 160);
            let what = match exposure.cause {
                Cause::Needed | Cause::Synchronous | Cause::EndOfStep => {
                    format!("for {}", name(exposure.of))
                }
                Cause::Issued => format!("until {} is issued", name(exposure.at)),
            };
            TrackSlice {
                name: what,
                category: "exposed",
                start: whole(exposure.start),
                end: whole(exposure.start + exposure.time),
                leads_to: Vec::new(),
                comes_from: Vec::new(),
                notes: vec![
                    ("before", SliceNote::Text(name(exposure.at))),
                    ("exposed of it in all, ns", SliceNote::Number(whole(exposed[exposure.of]))),
                ],
            }
        };
        exposures.iter().map(stall).collect()
    }

    fn memory(&self) -> Vec<LiveLevel> {
        let steps = self.played.memory_steps();
        let mut levels: Vec<LiveLevel> = Vec::with_capacity(steps.len());
        for step in steps {
            let level = LiveLevel { time: whole(step.time), bytes: step.bytes.0 };
            match levels.last_mut() {
                // A level of zero duration is dropped, unless it is higher than the next: it may be
                // the peak.
                Some(last) if last.time == level.time && last.bytes <= level.bytes => *last = level,
                Some(last) if last.bytes == level.bytes => {}
                _ => levels.push(level),
            }
        }
        levels
    }
}

fn stream_name(graph: &Graph, stream: StreamId, ops: &[OpId]) -> String {
    let mut groups: Vec<_> =
        ops.iter().filter_map(|&op| graph.collective(op)).map(|of| of.group).collect();
    groups.sort_unstable();
    groups.dedup();
    let names: Vec<String> =
        groups.iter().take(4).map(|&group| printable(&graph.groups()[group].name)).collect();
    let more = if groups.len() > 4 { ", ..." } else { "" };
    let group = if groups.len() == 1 { "group" } else { "groups" };
    format!("stream {}: {group} {}{more}", stream.index(), names.join(", "))
}
