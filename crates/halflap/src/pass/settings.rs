//! Torch's settings, by torch's names.

use std::str::FromStr;

use thiserror::Error;

use crate::nearest::Unknown;

/// What an iterative pass may do.
#[derive(Clone, Debug, PartialEq)]
pub struct IterativeSettings {
    /// Stop where run times say that the collective is hidden, and where others would be exposed.
    pub use_runtime_estimations: bool,
    /// The fraction of its run time by which a collective should be hidden beyond its end.
    pub extra_comm_comp_overlap: f64,
    /// The fraction by which the peak memory may grow.
    pub peak_memory_budget: f64,
    /// Whether collectives may overtake each other.
    pub unsafe_collectives_reorder: bool,
    /// Whether other collectives may be carried along (reorder) or passed (sink).
    pub with_collectives: bool,
    /// How many operations are moved at most.
    pub debug_limit: Option<usize>,
}

/// All settings of the passes.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Those of `reorder_communication_preserving_peak_memory`.
    pub reorder: IterativeSettings,
    /// Those of `sink_waits_iterative`.
    pub sink: IterativeSettings,
    /// The factor on run times of collectives.
    pub comm_mult: f64,
    /// The factor on all other run times.
    pub non_comm_mult: f64,
    /// Compare the ledger with the full account after every swap.
    pub debug_memory_recompute: bool,
}

impl Default for IterativeSettings {
    fn default() -> Self {
        IterativeSettings {
            use_runtime_estimations: false,
            extra_comm_comp_overlap: 0.5,
            peak_memory_budget: 0.2,
            unsafe_collectives_reorder: true,
            with_collectives: false,
            debug_limit: None,
        }
    }
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            reorder: IterativeSettings::default(),
            sink: IterativeSettings::default(),
            comm_mult: 2.0,
            non_comm_mult: 1.0,
            debug_memory_recompute: false,
        }
    }
}

/// Why a setting could not be set.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[allow(missing_docs)]
#[non_exhaustive]
pub enum SettingError {
    #[error(transparent)]
    Unknown(#[from] Unknown),
    #[error("setting '{name}' cannot be '{value}': it must be {right}")]
    BadValue { name: String, value: String, right: &'static str },
    #[error("'{0}' is not of the form NAME=VALUE")]
    NotAnAssignment(String),
}

enum SettingSlot<'a> {
    Flag(&'a mut bool),
    Factor(&'a mut f64),
    Count(&'a mut Option<usize>),
}

impl Settings {
    /// Every setting's name.
    pub const NAMES: [&'static str; 15] = [
        "reorder_iterative_use_runtime_estimations",
        "sink_iterative_use_runtime_estimations",
        "reorder_sink_runtime_estimations_comm_mult",
        "reorder_sink_runtime_estimations_non_comm_mult",
        "reorder_iterative_extra_comm_comp_overlap",
        "sink_iterative_extra_comm_comp_overlap",
        "reorder_iterative_peak_memory_budget",
        "sink_iterative_peak_memory_budget",
        "reorder_iterative_unsafe_collectives_reorder",
        "sink_waits_iterative_unsafe_collectives_reorder",
        "reorder_iterative_group_with_collectives",
        "sink_waits_iterative_swap_with_collectives",
        "reorder_iterative_debug_memory_recompute",
        "reorder_iterative_debug_limit_to_reorder",
        "sink_waits_iterative_debug_limit_to_sink",
    ];

    /// Sets what `NAME=VALUE` says.
    pub fn assign(&mut self, assignment: &str) -> Result<(), SettingError> {
        let (name, value) = assignment
            .split_once('=')
            .ok_or_else(|| SettingError::NotAnAssignment(assignment.into()))?;
        self.set(name.trim(), value.trim())
    }

    /// Sets one setting, by torch's name.
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), SettingError> {
        let slot = self.slot(name).ok_or_else(|| Unknown::new("setting", name, Settings::NAMES))?;
        let bad = |right| SettingError::BadValue { name: name.into(), value: value.into(), right };
        match slot {
            SettingSlot::Flag(flag) => {
                *flag = parse(&value.to_lowercase()).ok_or_else(|| bad("true or false"))?
            }
            SettingSlot::Factor(factor) => {
                let number = parse(value).filter(|number: &f64| (0.0..=1e6).contains(number));
                *factor = number.ok_or_else(|| bad("a number from 0 to 1000000"))?;
            }
            SettingSlot::Count(count) => {
                let none = value.eq_ignore_ascii_case("none");
                *count = if none {
                    None
                } else {
                    Some(parse(value).ok_or_else(|| bad("an integer, or none"))?)
                };
            }
        }
        Ok(())
    }

    fn slot(&mut self, name: &str) -> Option<SettingSlot<'_>> {
        let Settings { reorder, sink, comm_mult, non_comm_mult, debug_memory_recompute } = self;
        Some(match name {
            "reorder_iterative_use_runtime_estimations" => {
                SettingSlot::Flag(&mut reorder.use_runtime_estimations)
            }
            "sink_iterative_use_runtime_estimations" => {
                SettingSlot::Flag(&mut sink.use_runtime_estimations)
            }
            "reorder_sink_runtime_estimations_comm_mult" => SettingSlot::Factor(comm_mult),
            "reorder_sink_runtime_estimations_non_comm_mult" => SettingSlot::Factor(non_comm_mult),
            "reorder_iterative_extra_comm_comp_overlap" => {
                SettingSlot::Factor(&mut reorder.extra_comm_comp_overlap)
            }
            "sink_iterative_extra_comm_comp_overlap" => {
                SettingSlot::Factor(&mut sink.extra_comm_comp_overlap)
            }
            "reorder_iterative_peak_memory_budget" => {
                SettingSlot::Factor(&mut reorder.peak_memory_budget)
            }
            "sink_iterative_peak_memory_budget" => {
                SettingSlot::Factor(&mut sink.peak_memory_budget)
            }
            "reorder_iterative_unsafe_collectives_reorder" => {
                SettingSlot::Flag(&mut reorder.unsafe_collectives_reorder)
            }
            "sink_waits_iterative_unsafe_collectives_reorder" => {
                SettingSlot::Flag(&mut sink.unsafe_collectives_reorder)
            }
            "reorder_iterative_group_with_collectives" => {
                SettingSlot::Flag(&mut reorder.with_collectives)
            }
            "sink_waits_iterative_swap_with_collectives" => {
                SettingSlot::Flag(&mut sink.with_collectives)
            }
            "reorder_iterative_debug_memory_recompute" => SettingSlot::Flag(debug_memory_recompute),
            "reorder_iterative_debug_limit_to_reorder" => {
                SettingSlot::Count(&mut reorder.debug_limit)
            }
            "sink_waits_iterative_debug_limit_to_sink" => SettingSlot::Count(&mut sink.debug_limit),
            _ => return None,
        })
    }
}

fn parse<T: FromStr>(value: &str) -> Option<T> {
    value.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_sets_something() {
        for name in Settings::NAMES {
            let value = if Settings::default().set(name, "7").is_ok() { "7" } else { "true" };
            let changed = ["true", "false", value].iter().any(|value| {
                let mut settings = Settings::default();
                settings.set(name, value).is_ok() && settings != Settings::default()
            });
            assert!(changed, "{name}");
        }
    }

    #[test]
    fn wrong_settings_say_what_is_right() {
        let error = |assignment| Settings::default().assign(assignment).unwrap_err().to_string();
        assert_eq!(
            error("reorder_iterative_peak_memory_budged=1"),
            "unknown setting 'reorder_iterative_peak_memory_budged'; did you mean 'reorder_iterative_peak_memory_budget'?"
        );
        assert_eq!(
            error("sink_iterative_peak_memory_budget=-1"),
            "setting 'sink_iterative_peak_memory_budget' cannot be '-1': it must be a number from 0 to 1000000"
        );
        assert_eq!(error("x"), "'x' is not of the form NAME=VALUE");
    }
}
