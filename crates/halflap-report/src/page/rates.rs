//! Achieved rates in tables and panels.

use super::model::PageCell;
use crate::rates::{BusRate, KernelRate};

/// A collective's rate, and what it is of the group's best or what it is bound by.
pub(super) fn bus_rate(rate: Option<BusRate>) -> [PageCell; 2] {
    let Some(rate) = rate else { return [PageCell::Empty, PageCell::Empty] };
    let of_best = match rate.is_latency_bound {
        true => PageCell::Text(rate.share()),
        false => PageCell::Number(100.0 * rate.of_best),
    };
    [PageCell::Number(rate.rate.0), of_best]
}

/// The same in words.
pub(super) fn rate_detail(rate: BusRate) -> (&'static str, String) {
    let said = match rate.is_latency_bound {
        true => "latency-bound: fewer bytes would not make it shorter".to_owned(),
        false => format!("{} of the best in its group", rate.share()),
    };
    ("bus rate", format!("{}, {said}", rate.rate))
}

/// A kernel's arithmetic in a second, and what that is of the device's peak.
pub(super) fn kernel_rates(rate: Option<KernelRate>) -> [PageCell; 2] {
    let number = |value: Option<f64>| value.map_or(PageCell::Empty, PageCell::Number);
    [
        number(rate.map(|rate| rate.flops.0)),
        number(rate.and_then(|rate| rate.of_peak).map(|part| 100.0 * part)),
    ]
}
