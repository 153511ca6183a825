//! What is kept of a trace: the work of its GPU or, without one, of its CPU, and who took part in
//! its collectives.

use std::ops::Sub;

use serde::Serialize;

use super::arithmetic::Arithmetic;
use super::class::Class;
use super::idle::HostCalls;
use crate::observe::ids::{KernelId, LaneId, LaunchId};
use halflap::collective::CollectiveKind;
use halflap::ids::{GroupId, IdVec};
use halflap::units::{Bytes, Nanos};

/// A moment on one trace's clock, in whole nanoseconds from that clock's zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Moment(pub i64);

impl Sub for Moment {
    type Output = Nanos;

    /// The time between two moments; exact up to 104 days.
    #[inline]
    fn sub(self, earlier: Moment) -> Nanos {
        Nanos((self.0 - earlier.0) as f64)
    }
}

/// The processor whose work a trace has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Processor {
    /// Kernels and copies.
    Gpu,
    /// Operators and compiled code, with collectives over gloo.
    Cpu,
}

impl Processor {
    /// As reports call it.
    pub fn name(self) -> &'static str {
        match self {
            Processor::Gpu => "GPU",
            Processor::Cpu => "CPU",
        }
    }

    /// Something that runs one thing after the other.
    pub fn lane(self) -> &'static str {
        match self {
            Processor::Gpu => "stream",
            Processor::Cpu => "thread",
        }
    }

    /// What runs there.
    pub fn work(self) -> &'static str {
        match self {
            Processor::Gpu => "kernel",
            Processor::Cpu => "operator",
        }
    }
}

/// Something that ran. 32 bytes: a trace has millions of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Slice {
    /// When it began.
    pub start: Moment,
    /// When it ended; never before it began.
    pub end: Moment,
    /// What ran.
    pub kernel: KernelId,
    /// Where.
    pub lane: LaneId,
    /// More about it, if it communicates.
    pub launch: Option<LaunchId>,
}

impl Slice {
    /// How long it ran.
    #[inline]
    pub fn time(&self) -> Nanos {
        self.end - self.start
    }
}

/// Everything that is launched under one name.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct TraceKernel {
    /// Its name; a long one is truncated.
    pub name: String,
    /// What it is.
    pub class: Class,
}

/// A stream of a GPU, as the trace numbers both, or a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub struct TraceLane {
    /// Which of the two.
    pub processor: Processor,
    /// The GPU, if the trace says.
    pub device: Option<i64>,
    /// The stream or thread, if the trace says.
    pub stream: Option<i64>,
}

/// A launch of a communication kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct TraceLaunch {
    /// What it does.
    pub operation: CollectiveKind,
    /// Its process group.
    pub group: GroupId,
    /// The larger of what a rank sends and receives, if the trace says.
    pub bytes: Option<Bytes>,
    /// Its number in the group, if the trace says.
    pub sequence: Option<i64>,
}

/// Who communicates.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct TraceGroup {
    /// Its name in the trace, or its stream if it has none.
    pub name: GroupName,
    /// The user's description; may be empty.
    pub description: String,
    /// How many ranks are in it, if the trace says.
    pub size: Option<u32>,
    /// Which, if the trace says all.
    pub ranks: Option<Vec<u32>>,
}

/// What a group is called.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum GroupName {
    /// As the profiler has it.
    Named(String),
    /// The profiler has none: all communication of one stream is taken to be of one group.
    Stream(Option<i64>),
    /// The profiler does not record the group of gloo collectives: all are assumed to be of one.
    Gloo,
    /// The same in a job with this many groups of different ranks: the participants are unknown.
    OneOf(usize),
}

/// What was dropped or is unusual, counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Oddities {
    /// Events with a negative duration: left out.
    pub negative: u64,
    /// Events without a duration: taken as zero.
    pub endless: u64,
    /// The list of events is not closed, which that form allows.
    pub open_list: bool,
    /// Gloo collectives in a trace with GPU work: dropped.
    pub gloo: u64,
    /// Compiled code starts collectives, and the profiler saw no wait for any.
    pub unseen_waits: bool,
}

/// One rank's trace. Invariant: slices ascend by start, then end, then by position in the file.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Trace {
    /// Which rank it says it is.
    pub rank: Option<u32>,
    /// How many ranks it says there are.
    pub world_size: Option<u32>,
    /// What it has work of.
    pub processor: Processor,
    /// All that ran there.
    pub slices: Vec<Slice>,
    /// What ran, by name.
    pub kernels: IdVec<KernelId, TraceKernel>,
    /// What each computed, as far as it is known.
    pub arithmetic: IdVec<KernelId, Arithmetic>,
    /// What the driver calls the GPU, if the trace says.
    pub device: Option<String>,
    /// Where it ran.
    pub lanes: IdVec<LaneId, TraceLane>,
    /// What is known about communication kernels.
    pub launches: IdVec<LaunchId, TraceLaunch>,
    /// Who communicates.
    pub groups: IdVec<GroupId, TraceGroup>,
    /// When the host launched what ran, and when it waited.
    pub(super) calls: HostCalls,
    /// What was left out.
    pub oddities: Oddities,
    /// How many events the file has, and how many bytes, unpacked.
    pub events: u64,
    /// Its size, unpacked.
    pub bytes: u64,
}

impl Trace {
    /// What a slice is.
    #[inline]
    pub fn class(&self, slice: &Slice) -> Class {
        self.kernels[slice.kernel].class
    }

    /// The slices of one class, in sequence.
    pub fn of_class(&self, class: Class) -> impl Iterator<Item = &Slice> {
        self.slices.iter().filter(move |slice| self.class(slice) == class)
    }

    /// How many GPUs the trace has work of.
    pub fn devices(&self) -> usize {
        let mut devices: Vec<_> = self.lanes.as_slice().iter().map(|lane| lane.device).collect();
        devices.sort_unstable();
        devices.dedup();
        devices.len()
    }
}

impl TraceLane {
    /// As reports call it.
    pub fn name(&self) -> String {
        let lane = self.processor.lane();
        self.stream.map_or(format!("unknown {lane}"), |number| format!("{lane} {number}"))
    }
}

impl GroupName {
    /// As reports call it: a group without a name is called after its stream.
    pub fn text(&self) -> String {
        match self {
            GroupName::Named(name) => name.clone(),
            GroupName::Stream(Some(stream)) => format!("stream {stream}"),
            GroupName::Stream(None) => "unknown stream".to_owned(),
            GroupName::Gloo => "gloo".to_owned(),
            GroupName::OneOf(groups) => format!("one of {groups} groups"),
        }
    }
}

impl TraceGroup {
    /// How many ranks, as far as it is known.
    pub fn size(&self) -> Option<u32> {
        self.size.or_else(|| self.ranks.as_ref().map(|ranks| ranks.len() as u32))
    }
}
