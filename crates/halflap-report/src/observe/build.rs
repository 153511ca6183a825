//! Events to a [`Trace`].

use serde::Deserialize;
use serde_json::Value;

use super::class::{Category, is_runtime};
use super::error::TraceError;
use super::event::{Event, unquoted};
use super::groups::group;
use super::host::{Host, gathered};
use super::idle::HostCalls;
use super::scan::{Cursor, ScanStop, decode};
use super::trace::{Oddities, Processor, Trace};
use super::window::Within;
use super::work::{TraceLimits, Work};

pub(super) struct Builder {
    gpu: Work,
    host: Host,
    job: Job,
    open_list: bool,
    pub(super) events: u64,
}

/// What `distributedInfo` says.
#[derive(Debug, Default, Deserialize)]
struct Job {
    rank: Option<Value>,
    world_size: Option<Value>,
    backend: Option<Value>,
    #[serde(default)]
    pg_config: Value,
}

impl Builder {
    pub(super) fn new(limits: TraceLimits) -> Builder {
        let (gpu, host) = (Work::new(Processor::Gpu, limits), Host::new(limits));
        Builder { gpu, host, job: Job::default(), open_list: false, events: 0 }
    }

    /// Reads one event, and keeps it if it is work.
    #[inline]
    pub(super) fn event(
        &mut self,
        cursor: &mut Cursor<'_>,
        within: &mut Within,
    ) -> Result<(), ScanStop> {
        let mut event = Event::default();
        let read = event.read(cursor).and_then(|()| self.keep(&event, cursor.at()));
        if read.is_err() {
            within.name =
                event.name.map_or(String::new(), |name| decode(unquoted(name), 200).into_owned());
        }
        read
    }

    /// Keeps an event that ended at `at`, if it is work.
    #[inline]
    fn keep(&mut self, event: &Event<'_>, at: usize) -> Result<(), ScanStop> {
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
                self.host.add(event, category, self.events - 1);
                Ok(())
            }
        }
    }

    pub(super) fn distributed_info(&mut self, text: &[u8]) -> Result<(), TraceError> {
        let job = serde_json::from_slice::<Option<Job>>(text);
        self.job = job
            .map_err(|error| TraceError::DistributedInfo(error.to_string()))?
            .unwrap_or_default();
        // Without gloo, CPU work need not be kept.
        if self.job.backend.is_some() && !text.windows(4).any(|word| word == b"gloo") {
            self.host.drop_work();
        }
        Ok(())
    }

    pub(super) fn open_list(&mut self) {
        self.open_list = true;
    }

    /// The trace, of a file of so many bytes.
    pub(super) fn finish(self, bytes: u64) -> Result<Trace, TraceError> {
        let gloo = self.host.gloo;
        let mut work = match (self.gpu.slices.is_empty(), self.gpu.oddities.negative) {
            (true, 0) => self.host.finish(self.events)?,
            (true, negative) => {
                return Err(TraceError::OnlyNegative { of: self.gpu.processor.name(), negative });
            }
            (false, _) => self.gpu,
        };
        // Stable: of two that are alike, the first in the file stays the first.
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
            kernels: work.kernels.into_items(),
            lanes: work.lanes.into_items(),
            launches: work.launches,
            calls: HostCalls::of(&work.correlations, work.calls),
            groups,
            oddities: Oddities { open_list: self.open_list, gloo: left_out, ..work.oddities },
            events: self.events,
            bytes,
        })
    }
}

/// A number, also in quotes.
fn number(value: &Value) -> Option<i64> {
    match value {
        Value::Number(number) => number.as_i64(),
        Value::String(text) => text.trim().parse().ok(),
        _ => None,
    }
}
