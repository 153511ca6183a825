//! What a CPU did: operators and compiled code on threads, collectives over gloo.
//!
//! Counts only if a trace has no GPU work. That is not known before its end, so operators are kept
//! until the first GPU event: 32 bytes for each outermost one.
//!
//! Events of a thread nest, but nothing here relies on it. At each moment a thread computes unless
//! a call that starts a collective or waits for one runs ([`Role::Call`]), and what it computes is
//! the operator that began first or, outside of operators, what else began last: an operator
//! represents all that it calls, compiled code only what is not recorded in it.

use super::busy::{Busy, BusyStretch};
use super::class::{Category, Role};
use super::error::TraceError;
use super::event::{TraceEvent, unquoted};
use super::scan::decode;
use super::trace::{Moment, Processor, Slice, TraceGroup, TraceLaunch};
use super::work::{TraceLimits, TraceWork};
use crate::observe::ids::LaunchId;
use crate::printable;
use halflap::collective::CollectiveKind;
use halflap::ids::{GroupId, Id, IdVec};
use halflap::units::Bytes;

/// What the CPU did, while it may count.
pub(super) struct Host {
    work: Option<TraceWork>,
    /// For each kernel, what it is.
    roles: Vec<Role>,
    /// For each lane, the last operator that was kept.
    outer: Vec<Option<BusyStretch>>,
    /// How many collectives of gloo there are.
    pub(super) gloo: u64,
    /// Why it cannot be read: irrelevant, if there is GPU work.
    refused: Option<String>,
}

impl Host {
    pub(super) fn new(limits: TraceLimits) -> Host {
        let work = Some(TraceWork::new(Processor::Cpu, limits));
        Host { work, roles: Vec::new(), outer: Vec::new(), gloo: 0, refused: None }
    }

    /// Discards what the CPU did: it does not count.
    #[inline]
    pub(super) fn drop_work(&mut self) {
        if self.work.is_some() {
            (self.work, self.roles, self.outer) = (None, Vec::new(), Vec::new());
        }
    }

    /// Keeps event `number`, if it is work.
    #[inline]
    pub(super) fn add(&mut self, event: &TraceEvent<'_>, category: Category, number: u64) {
        let gloo = event.name.is_some_and(|name| Role::is_gloo(unquoted(name)));
        self.gloo += u64::from(gloo);
        if gloo || category == Category::Operator {
            self.keep(event, category, number);
        }
    }

    fn keep(&mut self, event: &TraceEvent<'_>, category: Category, number: u64) {
        let Some(work) = &mut self.work else { return };
        let before = work.slices.len();
        if let Err(fault) = work.add(event, category) {
            let name =
                event.name.map_or(String::new(), |name| decode(unquoted(name), 200).into_owned());
            self.refused =
                Some(format!("event {number} '{}': {}", printable(&name), fault.describe()));
            self.drop_work();
            return;
        }
        let Some(&slice) = work.slices.get(before) else { return };
        if slice.kernel.index() == self.roles.len() {
            self.roles.push(Role::of(work.kernels.item(slice.kernel).name.as_str()));
        }
        let role = self.roles[slice.kernel.index()];
        let lane = slice.lane.index();
        self.outer.resize(self.outer.len().max(lane + 1), None);
        let inside = self.outer[lane]
            .is_some_and(|outer| outer.start <= slice.start && slice.end <= outer.end);
        match role {
            Role::Operator | Role::Region if inside => drop(work.slices.pop()),
            Role::Operator => self.outer[lane] = Some(slice.stretch()),
            Role::Region | Role::Call | Role::Gloo => {}
        }
    }

    /// What it did, if gloo communicated.
    pub(super) fn finish(self, events: u64) -> Result<TraceWork, TraceError> {
        if let Some(problem) = self.refused.filter(|_| self.gloo > 0) {
            return Err(TraceError::Host(problem));
        }
        let negative = self.work.as_ref().map_or(0, |work| work.oddities.negative);
        let collectives = |work: &TraceWork| !work.launches.is_empty();
        let Some(mut work) = self.work.filter(collectives) else {
            return Err(match self.gloo > 0 && negative > 0 {
                true => TraceError::OnlyNegative { of: Processor::Cpu.name(), negative },
                false => TraceError::NoWork { events },
            });
        };
        work.oddities.unseen_waits = unseen_waits(&work);
        work.slices = computed(std::mem::take(&mut work.slices), &self.roles);
        Ok(work)
    }
}

/// Whether compiled code starts collectives and the profiler saw no wait for them: code that C++
/// drives waits without the operator.
fn unseen_waits(work: &TraceWork) -> bool {
    let kernels = work.kernels.items().as_slice();
    let functional = |wait: bool| {
        kernels.iter().any(|kernel| {
            kernel.name.starts_with("_c10d_functional::")
                && kernel.name.ends_with("::wait_tensor") == wait
        })
    };
    functional(false) && !functional(true)
}

/// From what was kept: collectives unchanged, and when each thread computed what.
fn computed(mut slices: Vec<Slice>, roles: &[Role]) -> Vec<Slice> {
    // Stable: of two equal ones the first in the file is the outer one.
    slices.sort_by_key(|slice| (slice.lane, slice.start, std::cmp::Reverse(slice.end)));
    let mut found = Vec::with_capacity(slices.len());
    for thread in slices.chunk_by(|a, b| a.lane == b.lane) {
        let of = |role: Role| {
            thread.iter().copied().filter(move |slice| roles[slice.kernel.index()] == role)
        };
        found.extend(of(Role::Gloo));
        let calls = Busy::union(of(Role::Call).map(|slice| slice.stretch()));
        // A thread that executes collectives and starts none is gloo's: what it runs is part of
        // them.
        if of(Role::Gloo).next().is_some() && of(Role::Call).next().is_none() {
            continue;
        }
        let end = thread.iter().map(|slice| slice.end).max().unwrap_or(thread[0].start);
        let free = Busy::union(std::iter::once(BusyStretch { start: thread[0].start, end }))
            .without(&calls);
        let operators = first_begun(of(Role::Operator));
        let outside = free.without(&Busy::union(operators.iter().map(Slice::stretch)));
        cut(&operators, &free, &mut found);
        cut(&last_begun(of(Role::Region)), &outside, &mut found);
    }
    found
}

/// Adds the parts of slices that lie in `free`.
fn cut(slices: &[Slice], free: &Busy, into: &mut Vec<Slice>) {
    for &slice in slices {
        into.extend(free.parts(slice.stretch()).map(|part| Slice {
            start: part.start,
            end: part.end,
            ..slice
        }));
    }
}

/// For slices that ascend by start: when each is the one that began first among those that run.
fn first_begun(slices: impl Iterator<Item = Slice>) -> Vec<Slice> {
    let mut until = Moment(i64::MIN);
    let mut found = Vec::new();
    for slice in slices.filter(|slice| slice.start < slice.end) {
        if slice.end > until {
            found.push(Slice { start: slice.start.max(until), ..slice });
            until = slice.end;
        }
    }
    found
}

/// The same with the one that began last.
fn last_begun(slices: impl Iterator<Item = Slice>) -> Vec<Slice> {
    let mut open = OpenEvents { running: Vec::new(), at: Moment(i64::MIN), found: Vec::new() };
    for slice in slices.filter(|slice| slice.start < slice.end) {
        open.run(slice.start);
        open.running.push(slice);
    }
    open.run(Moment(i64::MAX));
    open.found
}

/// Events that may still run, and the time up to which they were processed.
struct OpenEvents {
    running: Vec<Slice>,
    at: Moment,
    found: Vec<Slice>,
}

impl OpenEvents {
    fn run(&mut self, until: Moment) {
        while let Some(&last) = self.running.last() {
            let (start, end) = (self.at.max(last.start), last.end.min(until));
            if start < end {
                self.found.push(Slice { start, end, ..last });
                self.at = end;
            }
            if last.end > until {
                break;
            }
            self.running.pop();
        }
        self.at = self.at.max(until);
    }
}

/// What a rank receives in a gather is what it sends, of each rank of the group.
pub(super) fn gathered(
    launches: &mut IdVec<LaunchId, TraceLaunch>,
    groups: &IdVec<GroupId, TraceGroup>,
) {
    for launch in launches
        .as_mut_slice()
        .iter_mut()
        .filter(|launch| launch.operation == CollectiveKind::AllGather)
    {
        let of_all = launch.bytes.zip(groups[launch.group].size());
        launch.bytes =
            of_all.and_then(|(bytes, size)| bytes.0.checked_mul(i64::from(size))).map(Bytes);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::trace::GroupName;
    use super::super::{Analysis, Rank, Trace, read_trace};
    use super::*;

    fn event(name: &str, thread: i64, start: i64, time: i64) -> Value {
        let category = if name.starts_with("gloo:") { "user_annotation" } else { "cpu_op" };
        json!({ "ph": "X", "cat": category, "name": name, "pid": 9, "tid": thread, "ts": start,
            "dur": time, "args": {} })
    }

    fn read(job: &Value, events: &[Value]) -> Result<Trace, TraceError> {
        let trace = json!({ "distributedInfo": job, "traceEvents": events });
        read_trace(trace.to_string().as_bytes(), TraceLimits::default())
    }

    fn job() -> Value {
        let group = json!({ "pg_name": "0", "pg_desc": "default_pg", "backend_config": "cpu:gloo", "ranks": [0, 1] });
        json!({ "backend": "gloo", "rank": 0, "world_size": 2, "pg_config": [group] })
    }

    /// A compiled program that starts a gather, computes, waits and computes.
    fn step() -> Vec<Value> {
        let mut gather = event("gloo:all_gather", 2, 30, 50);
        gather["args"] = json!({ "Input Dims": [[8, 4]], "Input type": ["float"] });
        vec![
            event("Torch-Compiled Region: 0/0", 1, 0, 120),
            event("## Call CompiledFxGraph f ##", 1, 10, 100),
            event("_c10d_functional::all_gather_into_tensor", 1, 15, 10),
            event("aten::chunk", 1, 17, 5),
            event("aten::mm", 1, 30, 20),
            event("aten::resolve_conj", 1, 31, 2),
            event("_c10d_functional::wait_tensor", 1, 60, 30),
            gather,
            event("aten::copy_", 2, 40, 30),
            event("aten::add", 1, 130, 10),
        ]
    }

    fn pieces(trace: &Trace) -> Vec<(&str, i64, i64)> {
        let piece = |slice: &Slice| {
            (trace.kernels[slice.kernel].name.as_str(), slice.start.0 / 1000, slice.end.0 / 1000)
        };
        trace.slices.iter().map(piece).collect()
    }

    #[test]
    fn threads_compute_unless_they_wait() {
        let trace = read(&job(), &step()).unwrap();
        let (region, graph) = ("Torch-Compiled Region: 0/0", "## Call CompiledFxGraph f ##");
        let expected = [
            (region, 0, 10),
            (graph, 10, 15),
            (graph, 25, 30),
            ("aten::mm", 30, 50),
            ("gloo:all_gather", 30, 80),
            (graph, 50, 60),
            (graph, 90, 110),
            (region, 110, 120),
            ("aten::add", 130, 140),
        ];
        assert_eq!(pieces(&trace), expected);
        let rank = Rank::of(&trace, "t.json");
        assert_eq!(rank.processor, Processor::Cpu);
        let times = rank.times;
        let spent = [times.span, times.compute, times.communication, times.exposed, times.idle];
        assert_eq!(spent.map(|time| time.0 / 1e3), [140.0, 90.0, 50.0, 20.0, 30.0]);
        let gather = &rank.collectives[0];
        assert_eq!(
            (gather.operation, gather.bytes),
            (CollectiveKind::AllGather, Some(Bytes(8 * 4 * 4 * 2)))
        );
        assert_eq!(rank.groups[gather.group].name, GroupName::Named("0".to_owned()));
        assert!(!rank.oddities.unseen_waits);
    }

    #[test]
    fn the_sequence_of_events_does_not_matter() {
        let trace = read(&job(), &step()).unwrap();
        let mut events = step();
        events.reverse();
        assert_eq!(pieces(&trace), pieces(&read(&job(), &events).unwrap()));
        // A receive overlaps the compute of the thread that starts it.
        events.push(event("c10d::recv_", 1, 28, 1));
        events.push(event("gloo:recv", 1, 28, 20));
        let rank = Rank::of(&read(&job(), &events).unwrap(), "t.json");
        assert_eq!((rank.collectives.len(), rank.times.compute.0), (2, 89e3));
    }

    #[test]
    fn gpu_work_counts_alone() {
        let mut events = step();
        events.insert(5, json!({ "ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 1, "dur": 2 }));
        let trace = read(&job(), &events).unwrap();
        assert_eq!(
            (trace.processor, trace.slices.len(), trace.oddities.gloo),
            (Processor::Gpu, 1, 1)
        );
    }

    #[test]
    fn traces_without_collectives_or_times_are_refused() {
        let said =
            |job: &Value, events: &[Value]| read(job, events).map(|_| ()).unwrap_err().to_string();
        let none = "none of its 1 events is work of a GPU";
        assert!(said(&job(), &[event("aten::mm", 1, 0, 5)]).starts_with(none));
        // Without gloo in the job operators are not even kept.
        assert!(
            said(&json!({ "backend": "nccl" }), &[event("gloo:barrier", 1, 0, 5)])
                .starts_with(none)
        );
        assert!(
            said(&job(), &[event("gloo:barrier", 1, 0, -5)])
                .starts_with("its CPU events (1) all have")
        );
        let mut events = step();
        events[4]["ts"] = json!("soon");
        assert!(
            said(&job(), &events).starts_with("event 4 'aten::mm': 'ts' is "),
            "{}",
            said(&job(), &events)
        );
    }

    #[test]
    fn groups_are_those_of_the_job() {
        let group =
            |ranks: &[u32]| json!({ "pg_name": "g", "backend_config": "cpu:gloo", "ranks": ranks });
        let name = |groups: Vec<Value>| {
            let trace = read(&json!({ "backend": "gloo", "pg_config": groups }), &step()).unwrap();
            trace.groups.as_slice()[0].name.clone()
        };
        assert_eq!(name(vec![]), GroupName::Gloo);
        assert_eq!(name(vec![group(&[0, 1]), group(&[0])]), GroupName::Named("g".to_owned()));
        assert_eq!(name(vec![group(&[0, 1]), group(&[0, 1])]), GroupName::Gloo);
        assert_eq!(name(vec![group(&[0, 1]), group(&[0, 2])]), GroupName::OneOf(2));
    }

    #[test]
    fn waits_that_nobody_saw_are_noticed() {
        let mut events = step();
        events.remove(6);
        assert!(read(&job(), &events).unwrap().oddities.unseen_waits);
    }

    #[test]
    fn ranks_are_paired_by_sequence() {
        // The first ends last on one rank alone: ends would pair it with the second.
        let ran = [[(0, 900), (100, 400)], [(10, 390), (150, 750)]];
        let rank = |ran: &[(i64, i64); 2]| {
            let reduce = |&(start, time): &(i64, i64)| event("gloo:all_reduce", start, start, time);
            let events: Vec<Value> = ran.iter().map(reduce).collect();
            Rank::of(&read(&job(), &events).unwrap(), "t.json")
        };
        let analysis = Analysis::of(ran.iter().map(rank).collect());
        let transfers: Vec<f64> =
            analysis.peers.matches.iter().map(|found| found.transfer.0 / 1e3).collect();
        assert_eq!(transfers.len(), 2);
        assert_eq!((transfers.iter().sum::<f64>(), analysis.peers.ranks[0].unmatched), (790.0, 0));
    }
}
