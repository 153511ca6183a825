//! Events to a [`Trace`].

use serde::Deserialize;
use serde_json::Value;

use super::class::{Category, Class, Operation, class, element_size};
use super::decimal::{NoTime, nanos_of_micros};
use super::error::TraceError;
use super::event::{Args, Event, unquoted, whole_number};
use super::names::{Numbered, bounded};
use super::scan::{Cursor, Fault, Stop, decode};
use super::trace::{Group, GroupName, Kernel, Lane, Launch, Moment, Oddities, Slice, Trace};
use super::window::Within;
use crate::ids::{GroupId, IdVec, KernelId, LaneId, LaunchId};
use crate::units::Bytes;

/// How much of a trace may be kept. What is kept grows with what the GPU did, not with the file.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// The most GPU events; 32 bytes each, and as much again while they are analysed.
    pub slices: usize,
    /// The most launches of communication kernels; some 250 bytes each once they are analysed.
    pub collectives: usize,
    /// The most different kernels; at most a kilobyte each.
    pub kernels: usize,
    /// The most streams, and the most process groups.
    pub lanes: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { slices: 1 << 26, collectives: 1 << 22, kernels: 1 << 18, lanes: 1 << 12 }
    }
}

/// How the trace says which group a launch belongs to; ranks as the text that stands there.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct RawGroup {
    name: GroupName,
    description: String,
    ranks: String,
    size: Option<u32>,
}

pub(super) struct Builder {
    limits: Limits,
    slices: Vec<Slice>,
    kernels: Numbered<KernelId, Kernel>,
    lanes: Numbered<LaneId, Lane>,
    groups: Numbered<GroupId, RawGroup>,
    launches: IdVec<LaunchId, Launch>,
    oddities: Oddities,
    job: Job,
    pub(super) events: u64,
}

/// What `distributedInfo` says.
#[derive(Debug, Default, Deserialize)]
struct Job {
    rank: Option<Value>,
    world_size: Option<Value>,
    #[serde(default)]
    pg_config: Value,
}

impl Builder {
    pub(super) fn new(limits: Limits) -> Builder {
        Builder {
            limits,
            slices: Vec::new(),
            kernels: Numbered::new("different kernels", limits.kernels),
            lanes: Numbered::new("GPU streams", limits.lanes),
            groups: Numbered::new("process groups", limits.lanes),
            launches: IdVec::from(Vec::new()),
            oddities: Oddities::default(),
            job: Job::default(),
            events: 0,
        }
    }

    /// Reads one event, and keeps it if it is work of a GPU.
    #[inline]
    pub(super) fn event(&mut self, cursor: &mut Cursor<'_>, within: &mut Within) -> Result<(), Stop> {
        let mut event = Event::default();
        let read = event.read(cursor).and_then(|()| self.keep(&event, cursor.at()));
        if read.is_err() {
            within.name = event.name.map_or(String::new(), |name| decode(unquoted(name), 200).into_owned());
        }
        read
    }

    /// Keeps an event that ended at `at`, if it is work of a GPU.
    #[inline]
    fn keep(&mut self, event: &Event<'_>, at: usize) -> Result<(), Stop> {
        self.events += 1;
        let category = event.category.and_then(|category| Category::of(unquoted(category)));
        match (category, event.phase) {
            (Some(category), Some(b"\"X\"")) => {
                self.work(event, category).map_err(|fault| Stop::Bad { at: at.saturating_sub(1), fault })
            }
            _ => Ok(()),
        }
    }

    fn work(&mut self, event: &Event<'_>, category: Category) -> Result<(), Fault> {
        let start = event.start.ok_or_else(|| missing("ts")).and_then(|text| time("ts", text))?;
        let duration = event.duration.map(|text| time("dur", text)).transpose()?;
        if duration.is_some_and(|duration| duration.0 < 0) {
            self.oddities.negative += 1;
            return Ok(());
        }
        self.oddities.endless += u64::from(duration.is_none());
        let args = Args::of(event.args);
        let name = event.name.map_or(String::new(), |name| bounded(unquoted(name)));
        let Some(class) = class(category, &name, args.collective.is_some()) else { return Ok(()) };
        let lane = Lane {
            device: args.device.or(event.process).and_then(whole_number),
            stream: args.stream.or(event.thread).and_then(whole_number),
        };
        if self.slices.len() >= self.limits.slices {
            return Err(Fault::TooMany { what: "events of a GPU", most: self.limits.slices });
        }
        let launch = match class {
            Class::Communication => Some(self.launch(&name, lane, &args)?),
            Class::Memory | Class::Compute => None,
        };
        let end = Moment(start.0.saturating_add(duration.map_or(0, |duration| duration.0)));
        let (kernel, lane) = (self.kernels.id(Kernel { name, class })?, self.lanes.id(lane)?);
        self.slices.push(Slice { start, end, kernel, lane, launch });
        Ok(())
    }

    fn launch(&mut self, kernel: &str, lane: Lane, args: &Args<'_>) -> Result<LaunchId, Fault> {
        if self.launches.len() >= self.limits.collectives {
            return Err(Fault::TooMany { what: "collectives", most: self.limits.collectives });
        }
        let text =
            |value: Option<&[u8]>, most| value.map_or(String::new(), |value| decode(unquoted(value), most).into());
        let said: String = text(args.collective, 100);
        let operation = match Operation::of(&said) {
            Operation::Unknown => Operation::of(kernel),
            known => known,
        };
        let size = args.group_size.and_then(whole_number).and_then(|size| u32::try_from(size).ok());
        let name = match args.group {
            Some(name) => GroupName::Named(bounded(unquoted(name))),
            None => GroupName::Stream(lane.stream),
        };
        let (description, ranks) = (text(args.group_description, 200), text(args.group_ranks, 1 << 16));
        let group = self.groups.id(RawGroup { name, description, ranks, size })?;
        let elements = args.sent.max(args.received).and_then(|_| {
            let count = |value: Option<&[u8]>| value.and_then(whole_number).filter(|count| *count >= 0);
            count(args.sent).max(count(args.received))
        });
        let width = element_size(&text(args.dtype, 100));
        let bytes = elements.zip(width).and_then(|(elements, width)| elements.checked_mul(width)).map(Bytes);
        let sequence = args.sequence.and_then(whole_number);
        Ok(self.launches.push(Launch { operation, group, bytes, sequence }))
    }

    pub(super) fn distributed_info(&mut self, text: &[u8]) -> Result<(), TraceError> {
        let job = serde_json::from_slice::<Option<Job>>(text);
        self.job = job.map_err(|error| TraceError::DistributedInfo(error.to_string()))?.unwrap_or_default();
        Ok(())
    }

    pub(super) fn open_list(&mut self) {
        self.oddities.open_list = true;
    }

    /// The trace, of a file of so many bytes.
    pub(super) fn finish(mut self, bytes: u64) -> Result<Trace, TraceError> {
        if self.slices.is_empty() {
            return Err(TraceError::NoGpu { events: self.events });
        }
        // Stable: of two that are alike, the first in the file stays the first.
        self.slices.sort_by_key(|slice| (slice.start, slice.end));
        let job = &self.job;
        let whole = |value: &Option<Value>| value.as_ref().and_then(number).and_then(|value| u32::try_from(value).ok());
        Ok(Trace {
            rank: whole(&job.rank),
            world_size: whole(&job.world_size),
            slices: self.slices,
            kernels: self.kernels.into_items(),
            lanes: self.lanes.into_items(),
            launches: self.launches,
            groups: self.groups.into_items().as_slice().iter().map(|raw| group(raw, &job.pg_config)).collect(),
            oddities: self.oddities,
            events: self.events,
            bytes,
        })
    }
}

fn missing(name: &'static str) -> Fault {
    Fault::Field { name, found: "missing".to_owned(), right: RIGHT_TIME }
}

const RIGHT_TIME: &str = "a number of microseconds";

fn time(name: &'static str, text: &[u8]) -> Result<Moment, Fault> {
    nanos_of_micros(unquoted(text)).map_err(|problem| {
        let found = decode(text, 60);
        let found = match problem {
            NoTime::NotANumber => found.into_owned(),
            NoTime::TooLarge => format!("{found}, which is too large"),
        };
        Fault::Field { name, found, right: RIGHT_TIME }
    })
}

/// A number, also in quotes.
fn number(value: &Value) -> Option<i64> {
    match value {
        Value::Number(number) => number.as_i64(),
        Value::String(text) => text.trim().parse().ok(),
        _ => None,
    }
}

/// A group with its ranks: as its launches list them or, where that list is cut short, as the job's
/// configuration does.
fn group(raw: &RawGroup, config: &Value) -> Group {
    let entry = config.as_array().into_iter().flatten().find(|entry| match (&entry["pg_name"], &raw.name) {
        (Value::String(name), GroupName::Named(wanted)) => name == wanted,
        (Value::Number(name), GroupName::Named(wanted)) => name.to_string() == *wanted,
        _ => false,
    });
    let configured = entry.and_then(|entry| match &entry["ranks"] {
        Value::String(text) => ranks(text),
        list => serde_json::from_value(list.clone()).ok(),
    });
    let ranks: Option<Vec<u32>> = ranks(&raw.ranks).or(configured).filter(|ranks| !ranks.is_empty());
    let size = raw.size.or(ranks.as_ref().map(|ranks| ranks.len() as u32));
    Group { name: raw.name.clone(), description: raw.description.clone(), size, ranks }
}

/// `[0, 1, 2]`, if it is all there: of many the profiler leaves some out.
fn ranks(text: &str) -> Option<Vec<u32>> {
    let inner = text.trim().strip_prefix('[')?.strip_suffix(']')?;
    inner.split(',').map(|rank| rank.trim().parse().ok()).collect()
}
