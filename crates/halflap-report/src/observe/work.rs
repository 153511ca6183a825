//! What is kept of one processor's events.

use super::arithmetic::{Product, is_half, left_matrix, product_flops};
use super::busy::BusyStretch;
use super::class::{Category, Class, class, element_size, waits_for_gpu};
use super::decimal::{NoTime, nanos_of_micros};
use super::event::{EventArgs, TraceEvent, unquoted, whole_number};
use super::idle::HostCall;
use super::names::{Numbered, bounded};
use super::scan::{ScanFault, decode};
use super::trace::{
    GroupName, Moment, Oddities, Processor, Slice, TraceKernel, TraceLane, TraceLaunch,
};
use crate::observe::ids::{KernelId, LaneId, LaunchId, ThreadId};
use halflap::collective::CollectiveKind;
use halflap::ids::{GroupId, IdVec};
use halflap::units::Bytes;

/// How much of a trace may be kept. What is kept grows with what the processor did, not with the
/// file.
#[derive(Debug, Clone, Copy)]
pub struct TraceLimits {
    /// The most events of a GPU or CPU; 32 bytes each, and as much again while they are analysed.
    pub slices: usize,
    /// The most launches of communication kernels; some 250 bytes each once they are analysed.
    pub collectives: usize,
    /// The most different kernels; at most a kilobyte each.
    pub kernels: usize,
    /// The most streams, and the most process groups.
    pub lanes: usize,
}

impl Default for TraceLimits {
    fn default() -> TraceLimits {
        TraceLimits { slices: 1 << 26, collectives: 1 << 22, kernels: 1 << 18, lanes: 1 << 12 }
    }
}

/// How the trace identifies the group of a launch; ranks as verbatim text.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct RawTraceGroup {
    pub(super) name: GroupName,
    pub(super) description: String,
    pub(super) ranks: String,
    pub(super) size: Option<u32>,
}

pub(super) struct TraceWork {
    pub(super) processor: Processor,
    limits: TraceLimits,
    pub(super) slices: Vec<Slice>,
    pub(super) kernels: Numbered<KernelId, TraceKernel>,
    pub(super) lanes: Numbered<LaneId, TraceLane>,
    pub(super) groups: Numbered<GroupId, RawTraceGroup>,
    pub(super) launches: IdVec<LaunchId, TraceLaunch>,
    /// The index of each GPU slice that has one, and the number of the call that launched it.
    pub(super) correlations: Vec<(u32, i64)>,
    pub(super) calls: Vec<HostCall>,
    pub(super) threads: Numbered<ThreadId, i64>,
    pub(super) products: Vec<Product>,
    pub(super) oddities: Oddities,
}

impl TraceWork {
    pub(super) fn new(processor: Processor, limits: TraceLimits) -> TraceWork {
        let (kernels, lanes) = match processor {
            Processor::Gpu => ("different kernels", "GPU streams"),
            Processor::Cpu => ("different operators", "threads"),
        };
        TraceWork {
            processor,
            limits,
            slices: Vec::new(),
            kernels: Numbered::new(kernels, limits.kernels),
            lanes: Numbered::new(lanes, limits.lanes),
            groups: Numbered::new("process groups", limits.lanes),
            launches: IdVec::from(Vec::new()),
            correlations: Vec::new(),
            calls: Vec::new(),
            threads: Numbered::new("threads", limits.lanes),
            products: Vec::new(),
            oddities: Oddities::default(),
        }
    }

    /// Keeps an event, if it is work.
    pub(super) fn add(
        &mut self,
        event: &TraceEvent<'_>,
        category: Category,
    ) -> Result<(), ScanFault> {
        let start = event.start.ok_or_else(|| missing("ts")).and_then(|text| time("ts", text))?;
        let duration = event.duration.map(|text| time("dur", text)).transpose()?;
        if duration.is_some_and(|duration| duration.0 < 0) {
            self.oddities.negative += 1;
            return Ok(());
        }
        self.oddities.endless += u64::from(duration.is_none());
        let args = match self.processor {
            Processor::Gpu => EventArgs::of(event.args),
            Processor::Cpu => EventArgs::default(),
        };
        let name = event.name.map_or(String::new(), |name| bounded(unquoted(name)));
        let Some(class) = class(category, &name, args.collective.is_some()) else { return Ok(()) };
        let lane = self.lane(event, &args);
        if self.slices.len() >= self.limits.slices {
            let what = match self.processor {
                Processor::Gpu => "events of a GPU",
                Processor::Cpu => "operators",
            };
            return Err(ScanFault::TooMany { what, most: self.limits.slices });
        }
        let launch = match (class, self.processor) {
            (Class::Memory | Class::Compute, _) => None,
            (Class::Communication, Processor::Gpu) => Some(self.launch(&name, lane, &args)?),
            // Arguments of operators are not needed: only those of collectives are read.
            (Class::Communication, Processor::Cpu) => {
                Some(self.launch(&name, lane, &EventArgs::of(event.args))?)
            }
        };
        let end = Moment(start.0.saturating_add(duration.map_or(0, |duration| duration.0)));
        let (kernel, lane) = (self.kernels.id(TraceKernel { name, class })?, self.lanes.id(lane)?);
        // There are at most as many as are allowed, so that 32 bits are enough.
        let place = self.slices.len() as u32;
        self.slices.push(Slice { start, end, kernel, lane, launch });
        let correlation = args.correlation.and_then(whole_number);
        self.correlations.extend(correlation.map(|correlation| (place, correlation)));
        Ok(())
    }

    /// Keeps a call of the host into the GPU's runtime, if it has a time; those without one are not
    /// needed.
    pub(super) fn call(&mut self, event: &TraceEvent<'_>) {
        let Some((thread, when)) = self.of_host(event) else { return };
        let correlation = EventArgs::of(event.args).correlation.and_then(whole_number);
        if let (Some(correlation), true) = (correlation, self.calls.len() < self.limits.slices) {
            let is_wait = event.name.is_some_and(|name| waits_for_gpu(unquoted(name)));
            self.calls.push(HostCall { correlation, when, thread, is_wait });
        }
    }

    /// Keeps a matrix product that the host asked for, if the trace has its shapes.
    #[inline]
    pub(super) fn product(&mut self, event: &TraceEvent<'_>) {
        let left = event.name.and_then(|name| left_matrix(unquoted(name)));
        let Some(left) = left.filter(|_| self.products.len() < self.limits.slices) else { return };
        let args = EventArgs::of(event.args);
        let flops = args.input_dims.and_then(|shapes| product_flops(shapes, left));
        if let (Some(flops), Some((thread, when))) = (flops, self.of_host(event)) {
            let is_half = is_half(args.input_types, left);
            self.products.push(Product { thread, when, flops, is_half });
        }
    }

    /// The thread and the time of an event of the host, if it says both.
    fn of_host(&mut self, event: &TraceEvent<'_>) -> Option<(ThreadId, BusyStretch)> {
        let at = |text: Option<&[u8]>| text.and_then(|text| time("ts", text).ok());
        let (start, duration) = (at(event.start)?, at(event.duration)?);
        let end = Moment(start.0.saturating_add(duration.0));
        let thread = self.threads.id(event.thread.and_then(whole_number).unwrap_or_default());
        (end >= start).then_some((thread.ok()?, BusyStretch { start, end }))
    }

    fn lane(&self, event: &TraceEvent<'_>, args: &EventArgs<'_>) -> TraceLane {
        let device = match self.processor {
            Processor::Gpu => args.device.or(event.process).and_then(whole_number),
            Processor::Cpu => None,
        };
        TraceLane {
            processor: self.processor,
            device,
            stream: args.stream.or(event.thread).and_then(whole_number),
        }
    }

    fn launch(
        &mut self,
        kernel: &str,
        lane: TraceLane,
        args: &EventArgs<'_>,
    ) -> Result<LaunchId, ScanFault> {
        if self.launches.len() >= self.limits.collectives {
            return Err(ScanFault::TooMany { what: "collectives", most: self.limits.collectives });
        }
        let text = |value: Option<&[u8]>, most| {
            value.map_or(String::new(), |value| decode(unquoted(value), most).into())
        };
        let said: String = text(args.collective, 100);
        let operation = match CollectiveKind::of(&said) {
            CollectiveKind::Other => CollectiveKind::of(kernel),
            known => known,
        };
        let size = args.group_size.and_then(whole_number).and_then(|size| u32::try_from(size).ok());
        let name = match (args.group, self.processor) {
            (Some(name), _) => GroupName::Named(bounded(unquoted(name))),
            (None, Processor::Gpu) => GroupName::Stream(lane.stream),
            (None, Processor::Cpu) => GroupName::Gloo,
        };
        let (description, ranks) =
            (text(args.group_description, 200), text(args.group_ranks, 1 << 16));
        let group = self.groups.id(RawTraceGroup { name, description, ranks, size })?;
        let elements = args.sent.max(args.received).and_then(|_| {
            let count =
                |value: Option<&[u8]>| value.and_then(whole_number).filter(|count| *count >= 0);
            count(args.sent).max(count(args.received))
        });
        let width = element_size(&text(args.dtype, 100));
        let bytes = elements.zip(width).and_then(|(elements, width)| elements.checked_mul(width));
        let bytes = bytes.or_else(|| input_bytes(args)).map(Bytes);
        let sequence = args.sequence.and_then(whole_number);
        Ok(self.launches.push(TraceLaunch { operation, group, bytes, sequence }))
    }
}

/// What tensors of these shapes and types take, where shapes were recorded.
fn input_bytes(args: &EventArgs<'_>) -> Option<i64> {
    let shapes: Vec<Vec<i64>> = serde_json::from_slice(args.input_dims?).ok()?;
    let types: Vec<String> = serde_json::from_slice(args.input_types?).ok()?;
    shapes.iter().zip(&types).try_fold(0i64, |sum, (shape, of)| {
        let size =
            shape.iter().try_fold(element_size(of)?, |size, &length| size.checked_mul(length))?;
        sum.checked_add(size).filter(|_| size >= 0 && shapes.len() == types.len())
    })
}

fn missing(name: &'static str) -> ScanFault {
    ScanFault::Field { name, found: "missing".to_owned(), right: RIGHT_TIME }
}

const RIGHT_TIME: &str = "a number of microseconds";

fn time(name: &'static str, text: &[u8]) -> Result<Moment, ScanFault> {
    nanos_of_micros(unquoted(text)).map_err(|problem| {
        let found = decode(text, 60);
        let found = match problem {
            NoTime::NotANumber => found.into_owned(),
            NoTime::TooLarge => format!("{found}, which is too large"),
        };
        ScanFault::Field { name, found, right: RIGHT_TIME }
    })
}
