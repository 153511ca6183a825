//! Measured times by node name.

use super::error::ProfileError;
use super::{json, pbtxt};
use crate::graph::Graph;
use crate::ids::{IdVec, OpId};
use crate::import::unzip;
use crate::nearest::nearest;
use crate::units::Nanos;

/// Measured times, of some nodes or of all.
#[derive(Clone, Debug, PartialEq)]
pub struct Profile {
    times: Vec<(String, Nanos)>,
}

impl Profile {
    /// Reads an object of node names and nanoseconds, or the text form of what XLA's profile-guided
    /// estimator reads, plain or gzipped.
    pub fn read(bytes: &[u8]) -> Result<Profile, ProfileError> {
        if let Ok(text) = unzip(bytes)
            && pbtxt::is_one(&text)
        {
            return Ok(Profile { times: pbtxt::read(&text)? });
        }
        let fields = json::fields(bytes).map_err(|error| ProfileError::NotAnObject(error.to_string()))?;
        let time = |(node, value): (String, serde_json::Value)| {
            let time = match json::number(&value) {
                Ok(number) if number < 0.0 => Err("negative"),
                Ok(number) if number > Nanos::LONGEST.0 => Err("too large: it overflows"),
                Ok(number) => Ok(Nanos(number)),
                Err(problem) => Err(problem),
            };
            match time {
                Ok(time) => Ok((node, time)),
                Err(problem) => Err(ProfileError::BadTime { node, value: json::shown(&value), problem }),
            }
        };
        Ok(Profile { times: fields.into_iter().map(time).collect::<Result<_, _>>()? })
    }

    /// The times whose names `rename` knows, under the names that it gives.
    pub fn select(&self, rename: impl Fn(&str) -> Option<String>) -> Profile {
        let mut times: Vec<(String, Nanos)> = Vec::new();
        for (name, time) in &self.times {
            times.extend(rename(name).map(|name| (name, *time)));
        }
        Profile { times }
    }

    /// The names that have a time.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.times.iter().map(|(name, _)| name.as_str())
    }

    /// The times of a graph's operations, where measured. Every name must be a node: one that is not
    /// belongs to another program, or to another version of this one.
    pub(super) fn of(&self, graph: &Graph) -> Result<IdVec<OpId, Option<Nanos>>, ProfileError> {
        let mut of = IdVec::filled(None, graph.len());
        let mut strange = Vec::new();
        for (name, time) in &self.times {
            match graph.find(name) {
                Some(op) => of[op] = Some(*time),
                None => strange.push(name),
            }
        }
        match strange.split_first() {
            None => Ok(of),
            Some((name, others)) => Err(ProfileError::UnknownNode {
                nearest: nearest(name, graph.ops().map(|op| graph.name(op))).map(str::to_owned),
                name: (*name).clone(),
                more: others.len(),
            }),
        }
    }
}
