//! Events to a [`Trace`].

use serde::Deserialize;
use serde_json::Value;

use super::arithmetic::arithmetic;
use super::class::{Category, is_runtime};
use super::error::TraceError;
use super::event::{TraceEvent, unquoted};
use super::groups::group;
use super::host::{Host, gathered};
use super::idle::HostCalls;
use super::scan::{JsonCursor, ScanStop, decode};
use super::trace::{Oddities, Processor, Trace};
use super::window::Within;
use super::work::{TraceLimits, TraceWork};

pub(super) struct TraceBuilder {
    gpu: TraceWork,
    host: Host,
    job: DistributedJob,
    devices: Vec<DeviceProperties>,
    open_list: bool,
    pub(super) events: u64,
}

/// What `distributedInfo` says.
#[derive(Debug, Default, Deserialize)]
struct DistributedJob {
    rank: Option<Value>,
    world_size: Option<Value>,
    backend: Option<Value>,
    #[serde(default)]
    pg_config: Value,
}

/// What `deviceProperties` says of a GPU.
#[derive(Debug, Deserialize)]
struct DeviceProperties {
    id: i64,
    name: String,
}

impl TraceBuilder {
    pub(super) fn new(limits: TraceLimits) -> TraceBuilder {
        let (gpu, host) = (TraceWork::new(Processor::Gpu, limits), Host::new(limits));
        let (job, devices) = (DistributedJob::default(), Vec::new());
        TraceBuilder { gpu, host, job, devices, open_list: false, events: 0 }
    }

    /// Reads one event, and keeps it if it is work.
    #[inline]
    pub(super) fn event(
        &mut self,
        cursor: &mut JsonCursor<'_>,
        within: &mut Within,
    ) -> Result<(), ScanStop> {
        let mut event = TraceEvent::default();
        let read = event.read(cursor).and_then(|()| self.keep(&event, cursor.at()));
        if read.is_err() {
            within.name =
                event.name.map_or(String::new(), |name| decode(unquoted(name), 200).into_owned());
        }
        read
    }

    /// Keeps an event that ended at `at`, if it is work.
    #[inline]
    fn keep(&mut self, event: &TraceEvent<'_>, at: usize) -> Result<(), ScanStop> {
        self.events += 1;
        let category = event.category.map(unquoted).unwrap_or_default();
        if is_runtime(category) && event.phase == Some(b"\"X\"") {
            self.gpu.call(event);
            return Ok(());
        }
        let category = Category::of(category);
        let Some(category) = category.filter(|_| event.phase == Some(b"\"X\"")) else {
            return Ok(());
        };
        match category.processor() {
            Processor::Gpu => {
                self.host.drop_work();
                self.gpu
                    .add(event, category)
                    .map_err(|fault| ScanStop::Bad { at: at.saturating_sub(1), fault })
            }
            Processor::Cpu => {
                if category == Category::Operator {
                    self.gpu.product(event);
                }
                self.host.add(event, category, self.events - 1);
                Ok(())
            }
        }
    }

    pub(super) fn distributed_info(&mut self, text: &[u8]) -> Result<(), TraceError> {
        let job = serde_json::from_slice::<Option<DistributedJob>>(text);
        self.job = job
            .map_err(|error| TraceError::DistributedInfo(error.to_string()))?
            .unwrap_or_default();
        // Without gloo, CPU work need not be kept.
        if self.job.backend.is_some() && !text.windows(4).any(|word| word == b"gloo") {
            self.host.drop_work();
        }
        Ok(())
    }

    /// The GPUs. They matter only for what rates are compared with.
    pub(super) fn device_properties(&mut self, text: &[u8]) {
        self.devices = serde_json::from_slice(text).unwrap_or_default();
    }

    /// What the driver calls the GPU of this number, or all of them.
    fn device(&self, number: Option<i64>) -> Option<String> {
        let own = self.devices.iter().find(|device| Some(device.id) == number);
        let first = self.devices.first().filter(|_| number.is_none());
        own.or(first).map(|device| device.name.chars().take(200).collect())
    }

    pub(super) fn open_list(&mut self) {
        self.open_list = true;
    }

    /// The trace, of a file of this many bytes.
    pub(super) fn finish(self, bytes: u64) -> Result<Trace, TraceError> {
        let gloo = self.host.gloo;
        let lane = self.gpu.lanes.items().as_slice().first();
        let device = lane.and_then(|lane| self.device(lane.device));
        let mut work = match (self.gpu.slices.is_empty(), self.gpu.oddities.negative) {
            (true, 0) => self.host.finish(self.events)?,
            (true, negative) => {
                return Err(TraceError::OnlyNegative { of: self.gpu.processor.name(), negative });
            }
            (false, _) => self.gpu,
        };
        let calls = HostCalls::of(&work.slices, &work.correlations, work.calls);
        let kernels = work.kernels.into_items();
        let arithmetic = arithmetic(&work.slices, &calls.launched, work.products, kernels.len());
        // Stable: equal ones keep the order of the file.
        work.slices.sort_by_key(|slice| (slice.start, slice.end));
        let job = &self.job;
        let whole = |value: &Option<Value>| {
            value.as_ref().and_then(number).and_then(|value| u32::try_from(value).ok())
        };
        let groups = work.groups.into_items();
        let groups = groups.as_slice().iter().map(|raw| group(raw, &job.pg_config)).collect();
        let left_out = match work.processor {
            Processor::Gpu => gloo,
            Processor::Cpu => {
                gathered(&mut work.launches, &groups);
                0
            }
        };
        Ok(Trace {
            rank: whole(&job.rank),
            world_size: whole(&job.world_size),
            processor: work.processor,
            slices: work.slices,
            kernels,
            arithmetic,
            device,
            lanes: work.lanes.into_items(),
            launches: work.launches,
            calls,
            groups,
            oddities: Oddities { open_list: self.open_list, gloo: left_out, ..work.oddities },
            events: self.events,
            bytes,
        })
    }
}

/// A number, possibly in quotes.
fn number(value: &Value) -> Option<i64> {
    match value {
        Value::Number(number) => number.as_i64(),
        Value::String(text) => text.trim().parse().ok(),
        _ => None,
    }
}
