//! Measured times by the name of a node, or of the kernel that nodes run as.

use std::collections::{BTreeMap, BTreeSet};

use super::error::ProfileError;
use super::{json, pbtxt};
use crate::graph::{Collective, Graph};
use crate::ids::{IdVec, OpId};
use crate::import::unzip;
use crate::nearest::nearest;
use crate::units::Nanos;

/// Measured times, of some nodes or of all.
#[derive(Clone, Debug, PartialEq)]
pub struct Profile {
    times: Vec<(String, Nanos)>,
    /// How much slower compute is beside communication, if that was measured: a factor of 1 or
    /// more.
    pub slowdown: Option<f64>,
    /// The same for communication beside compute.
    pub comm_slowdown: Option<f64>,
}

/// The format name of a file with times and contention.
const FORMAT: &str = "halflap.profile/1";
/// The largest factor, as for `--slowdown`.
const MOST_SLOWDOWN: f64 = 100.0;

impl Profile {
    /// Reads an object of node names and nanoseconds, a `halflap.profile/1`, or the text form of
    /// what XLA's profile-guided estimator reads, plain or gzipped.
    pub fn read(bytes: &[u8]) -> Result<Profile, ProfileError> {
        if let Ok(text) = unzip(bytes)
            && pbtxt::is_one(&text)
        {
            return Ok(Profile::of_times(pbtxt::read(&text)?));
        }
        let fields =
            json::fields(bytes).map_err(|error| ProfileError::NotAnObject(error.to_string()))?;
        match fields.iter().find(|(name, value)| name == "format" && value.is_string()) {
            Some(_) => Profile::read_measured(&fields.into_iter().collect()),
            None => Profile::read_times(fields),
        }
    }

    fn of_times(times: Vec<(String, Nanos)>) -> Profile {
        Profile { times, slowdown: None, comm_slowdown: None }
    }

    /// What `halflap.torch.measure` writes.
    fn read_measured(
        fields: &BTreeMap<String, serde_json::Value>,
    ) -> Result<Profile, ProfileError> {
        let wrong = |field: &'static str, right: &'static str| ProfileError::BadField {
            field,
            value: fields.get(field).map_or("missing".to_owned(), json::shown),
            right,
        };
        if fields.get("format").and_then(serde_json::Value::as_str) != Some(FORMAT) {
            return Err(wrong("format", "\"halflap.profile/1\""));
        }
        let Some(serde_json::Value::Object(times)) = fields.get("times") else {
            return Err(wrong("times", "an object of names and nanoseconds"));
        };
        let factor = |field: &'static str| match fields.get(field).map(json::number) {
            None => Ok(None),
            Some(Ok(factor)) if (1.0..=MOST_SLOWDOWN).contains(&factor) => Ok(Some(factor)),
            Some(_) => Err(wrong(field, "a number from 1 to 100")),
        };
        // No order changes it: it is only checked here.
        if !fields.get("outside_ns").is_none_or(|time| json::number(time).is_ok_and(|ns| ns >= 0.0))
        {
            return Err(wrong("outside_ns", "a time in nanoseconds, zero or more"));
        }
        let (slowdown, comm_slowdown) = (factor("slowdown")?, factor("comm_slowdown")?);
        let times = times.iter().map(|(name, value)| (name.clone(), value.clone())).collect();
        Ok(Profile { slowdown, comm_slowdown, ..Profile::read_times(times)? })
    }

    fn read_times(fields: Vec<(String, serde_json::Value)>) -> Result<Profile, ProfileError> {
        let time = |(node, value): (String, serde_json::Value)| {
            let time = match json::number(&value) {
                Ok(number) if number < 0.0 => Err("negative"),
                Ok(number) if number > Nanos::LONGEST.0 => Err("too large: it overflows"),
                Ok(number) => Ok(Nanos(number)),
                Err(problem) => Err(problem),
            };
            match time {
                Ok(time) => Ok((node, time)),
                Err(problem) => {
                    Err(ProfileError::BadTime { node, value: json::shown(&value), problem })
                }
            }
        };
        Ok(Profile::of_times(fields.into_iter().map(time).collect::<Result<_, _>>()?))
    }

    /// The times whose names `rename` knows, under the names that it gives.
    pub fn select(&self, rename: impl Fn(&str) -> Option<String>) -> Profile {
        let mut times: Vec<(String, Nanos)> = Vec::new();
        for (name, time) in &self.times {
            times.extend(rename(name).map(|name| (name, *time)));
        }
        Profile { times, ..*self }
    }

    /// All names with a time.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.times.iter().map(|(name, _)| name.as_str())
    }

    /// The measured times of a graph's operations ([`ByName::of`]). A trace has kernels that a
    /// graph does not have, so names that match nothing are ignored, unless they look like a
    /// misspelt node name, or nothing matches at all: then the profile is of another program.
    pub(super) fn of(&self, graph: &Graph) -> Result<IdVec<OpId, Option<Nanos>>, ProfileError> {
        let by_name =
            ByName(self.times.iter().map(|(name, time)| (name.as_str(), *time)).collect());
        let of: IdVec<OpId, Option<Nanos>> = graph.ops().map(|op| by_name.of(graph, op)).collect();
        let kernels: BTreeSet<&str> = graph.ops().filter_map(|op| graph.kernel(op)).collect();
        let fits = |name: &str| graph.find(name).is_some() || kernels.contains(name);
        let strange: Vec<&str> = self.names().filter(|name| !fits(name)).collect();
        let meant = |name: &str| nearest(name, graph.ops().map(|op| graph.name(op)));
        let slip = strange.iter().find_map(|name| Some((*name, Some(meant(name)?))));
        let nothing_fits = graph.ops().all(|op| of[op].is_none());
        match slip.or(strange.first().filter(|_| nothing_fits).map(|name| (*name, None))) {
            None => Ok(of),
            Some((name, nearest)) => Err(ProfileError::UnknownNode {
                name: name.to_owned(),
                nearest: nearest.map(str::to_owned),
                more: strange.len() - 1,
            }),
        }
    }
}

/// A placeholder for a data-dependent size in a kernel's name.
const ANY_SIZE: char = '?';

/// Measured times by the names that profiles use.
struct ByName<'a>(BTreeMap<&'a str, Nanos>);

impl ByName<'_> {
    /// The time of an operation: under its own name, else under its kernel's. `halflap.torch` has
    /// the same rules, so that a profile means the same in both.
    fn of(&self, graph: &Graph, op: OpId) -> Option<Nanos> {
        self.exactly(graph.name(op)).or_else(|| match (graph.kernel(op), graph.collective(op)) {
            (Some(kernel), issued) => self
                .exactly(kernel)
                // A trace knows the names of fused kernels, and not what they read and write.
                .or_else(|| self.exactly(without_bytes(kernel).filter(|_| issued.is_none())?))
                .or_else(|| self.of_any_size(kernel)),
            (None, Some(issued)) => self.of_collective(issued),
            (None, None) => None,
        })
    }

    fn exactly(&self, name: &str) -> Option<Nanos> {
        self.0.get(name).copied()
    }

    /// The lower median over all sizes, if the size depends on data.
    fn of_any_size(&self, kernel: &str) -> Option<Nanos> {
        if !kernel.contains(ANY_SIZE) {
            return None;
        }
        let alike = self.0.iter().filter(|(name, _)| fits_any_size(kernel, name));
        let mut times: Vec<Nanos> = alike.map(|(_, time)| *time).collect();
        times.sort_by(|a, b| a.0.total_cmp(&b.0));
        times.get(times.len().saturating_sub(1) / 2).copied()
    }

    /// For a graph that was captured without kernel names.
    fn of_collective(&self, issued: &Collective) -> Option<Nanos> {
        let named = |what: &str| {
            let bytes = issued.bytes().0;
            self.exactly(&format!("{what} of {}, {bytes} bytes", issued.group_size))
        };
        named(issued.kind.name()).or_else(|| named(&issued.op))
    }
}

/// `fused_mul` of `fused_mul, 4096 bytes`.
fn without_bytes(kernel: &str) -> Option<&str> {
    let (name, bytes) = kernel.strip_suffix(" bytes")?.rsplit_once(", ")?;
    is_number(bytes).then_some(name)
}

/// Whether a name is a kernel's, with numbers in place of its unknown sizes.
fn fits_any_size(kernel: &str, name: &str) -> bool {
    match kernel.split_once(ANY_SIZE) {
        None => kernel == name,
        Some((before, after)) => name.strip_prefix(before).is_some_and(|rest| {
            let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
            digits > 0 && fits_any_size(after, &rest[digits..])
        }),
    }
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}
