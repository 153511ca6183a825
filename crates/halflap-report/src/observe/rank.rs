//! One rank: what its GPU or CPU did with its time.
//!
//! `compute`, `communication` and `memory` are the times at which at least one of them runs; they
//! overlap. `exposed` is communication without compute. `idle` is the rest of the span, at which
//! nothing runs. docs/analyze.md defines each, with the equations that hold between them.

use super::arithmetic::Arithmetic;
use super::busy::{Busy, BusyStretch, Computing};
use super::class::Class;
use super::collectives::{ObservedCollective, collectives};
use super::idle::Idle;
use super::trace::{Moment, Oddities, Processor, Slice, Trace, TraceGroup, TraceKernel, TraceLane};
use crate::observe::ids::{KernelId, LaneId};
use halflap::collective::CollectiveKind;
use halflap::cost::Device;
use halflap::ids::{GroupId, Id, IdVec};
use halflap::units::{Bytes, Nanos};

/// What a trace shows of one rank.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Rank {
    /// What to call it: the file it comes from.
    pub label: String,
    /// Which rank it says it is.
    pub rank: Option<u32>,
    /// How many ranks it says there are.
    pub world_size: Option<u32>,
    /// What processor its work is of.
    pub processor: Processor,
    /// When its first event begins.
    pub first: Moment,
    /// How its time was spent.
    pub times: RankSpent,
    /// Why nothing ran, of a GPU; of a CPU all of it is unknown.
    pub idle: Idle,
    /// Its collectives, by start.
    pub collectives: Vec<ObservedCollective>,
    /// Sums of its collectives, by group and operation; the most exposed first.
    pub operations: Vec<OperationUse>,
    /// Sums of its kernels, the longest first.
    pub kernel_uses: Vec<KernelUse>,
    /// The names of its kernels.
    pub kernels: IdVec<KernelId, TraceKernel>,
    /// Its process groups.
    pub groups: IdVec<GroupId, TraceGroup>,
    /// Its streams.
    pub lanes: IdVec<LaneId, TraceLane>,
    /// What the driver calls its GPU, if the trace says.
    pub device: Option<String>,
    /// How many GPUs it has work of: their time is taken as that of one.
    pub devices: usize,
    /// What was left out.
    pub oddities: Oddities,
    /// How many events the trace has.
    pub events: u64,
}

/// How a rank's time was spent, from unions of intervals.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
#[non_exhaustive]
pub struct RankSpent {
    /// From the start of the first event that counts to the end of the last.
    pub span: Nanos,
    /// Something computes.
    pub compute: Nanos,
    /// Something communicates.
    pub communication: Nanos,
    /// Something is copied or filled.
    pub memory: Nanos,
    /// Something communicates and something computes.
    pub overlapped: Nanos,
    /// Something communicates and nothing computes.
    pub exposed: Nanos,
    /// The part of `exposed` during which memory is copied or filled.
    pub exposed_beside_memory: Nanos,
    /// Nothing runs.
    pub idle: Nanos,
}

impl RankSpent {
    /// Something is copied or filled, and nothing else runs.
    pub fn memory_alone(&self) -> Nanos {
        self.span - self.compute - self.exposed - self.idle
    }
}

/// All launches of one operation in one group.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct OperationUse {
    /// Their process group.
    pub group: GroupId,
    /// The operation.
    pub operation: CollectiveKind,
    /// The number of launches.
    pub launches: usize,
    /// When at least one of them runs.
    pub time: Nanos,
    /// That part of `time` in which something computes.
    pub hidden: Nanos,
    /// What they are charged with of the rank's exposed time.
    pub exposed: Nanos,
    /// What they move, as far as it is known of all.
    pub bytes: Option<Bytes>,
}

/// All launches of one kernel.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct KernelUse {
    /// The kernel.
    pub kernel: KernelId,
    /// The number of launches.
    pub launches: usize,
    /// The sum of their times.
    pub total: Nanos,
    /// The lower median of their times.
    pub median: Nanos,
    /// The longest.
    pub longest: Nanos,
    /// What they computed, as far as it is known.
    pub arithmetic: Arithmetic,
}

impl Rank {
    /// Analyses a trace.
    pub fn of(trace: &Trace, label: &str) -> Rank {
        let busy = |class| Busy::union(trace.of_class(class).map(Slice::stretch));
        let computing =
            Computing::of(trace.slices.iter().filter(|slice| trace.class(slice) == Class::Compute));
        let communication = busy(Class::Communication);
        let exposed = communication.without(&computing.busy);
        let collectives = collectives(trace, &computing, &exposed);
        let memory = busy(Class::Memory);
        let whole = whole(&trace.slices);
        let (first, span) = (whole.start, whole.time());
        let any = Busy::union(trace.slices.iter().map(Slice::stretch));
        Rank {
            label: label.to_owned(),
            rank: trace.rank,
            world_size: trace.world_size,
            processor: trace.processor,
            first,
            times: RankSpent {
                span,
                compute: computing.busy.time(),
                communication: communication.time(),
                memory: memory.time(),
                overlapped: communication.time() - exposed.time(),
                exposed: exposed.time(),
                exposed_beside_memory: exposed.and(&memory).time(),
                idle: span - any.time(),
            },
            idle: Idle::of(whole, &any, &trace.calls),
            operations: operations(&collectives, &computing.busy),
            collectives,
            kernel_uses: kernel_uses(trace),
            kernels: trace.kernels.clone(),
            groups: trace.groups.clone(),
            lanes: trace.lanes.clone(),
            device: trace.device.clone(),
            devices: trace.devices(),
            oddities: trace.oddities,
            events: trace.events,
        }
    }

    /// The preset of its GPU, if the trace names one that has a preset.
    pub fn preset(&self) -> Option<(&'static str, Device)> {
        let name = Device::reported(self.device.as_deref()?)?;
        Some((name, Device::named(name).ok()?))
    }

    /// A kernel's name.
    pub fn kernel(&self, kernel: KernelId) -> &str {
        &self.kernels[kernel].name
    }

    /// What to call the rank in a table.
    pub fn name(&self) -> String {
        self.rank.map_or("?".to_owned(), |rank| rank.to_string())
    }
}

/// From when slices that ascend by start begin until the last has ended.
fn whole(slices: &[Slice]) -> BusyStretch {
    let start = slices.first().map_or(Moment(0), |slice| slice.start);
    let end = slices.iter().map(|slice| slice.end).max().unwrap_or(start);
    BusyStretch { start, end }
}

fn operations(collectives: &[ObservedCollective], computing: &Busy) -> Vec<OperationUse> {
    let mut order: Vec<&ObservedCollective> = collectives.iter().collect();
    // Stable: within a group and operation they still ascend by start.
    order.sort_by_key(|collective| (collective.group, collective.operation));
    let same = |a: &&ObservedCollective, b: &&ObservedCollective| {
        (a.group, a.operation) == (b.group, b.operation)
    };
    let mut uses: Vec<OperationUse> = order
        .chunk_by(same)
        .map(|alike| {
            let busy = Busy::union(alike.iter().map(|collective| collective.ran));
            OperationUse {
                group: alike[0].group,
                operation: alike[0].operation,
                launches: alike.len(),
                time: busy.time(),
                hidden: busy.and(computing).time(),
                exposed: alike.iter().map(|collective| collective.exposed).sum(),
                bytes: alike.iter().try_fold(Bytes::ZERO, |sum, collective| {
                    sum.0.checked_add(collective.bytes?.0).map(Bytes)
                }),
            }
        })
        .collect();
    uses.sort_by(|a, b| b.exposed.0.total_cmp(&a.exposed.0).then(b.time.0.total_cmp(&a.time.0)));
    uses
}

fn kernel_uses(trace: &Trace) -> Vec<KernelUse> {
    let mut times: Vec<(u32, i64)> = trace
        .slices
        .iter()
        .map(|slice| (slice.kernel.index() as u32, slice.end.0 - slice.start.0))
        .collect();
    times.sort_unstable();
    let mut uses: Vec<KernelUse> = times
        .chunk_by(|a, b| a.0 == b.0)
        .map(|launches| KernelUse {
            kernel: KernelId::from_index(launches[0].0 as usize),
            arithmetic: trace.arithmetic[KernelId::from_index(launches[0].0 as usize)],
            launches: launches.len(),
            total: Nanos(launches.iter().map(|(_, time)| *time as f64).sum()),
            median: Nanos(launches[(launches.len() - 1) / 2].1 as f64),
            longest: Nanos(launches[launches.len() - 1].1 as f64),
        })
        .collect();
    uses.sort_by(|a, b| b.total.0.total_cmp(&a.total.0).then(a.kernel.cmp(&b.kernel)));
    uses
}
