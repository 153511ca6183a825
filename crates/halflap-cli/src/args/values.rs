//! Values that options take.

use halflap::units::Nanos;

use crate::place::Input;

pub(super) fn slowdown(text: &str) -> Result<f64, String> {
    in_slowdowns(text.parse().unwrap_or(f64::NAN))
}

pub(crate) fn in_slowdowns(factor: f64) -> Result<f64, String> {
    let allowed = Some(factor).filter(|factor| (1.0..=100.0).contains(factor));
    allowed.ok_or_else(|| "it must be a factor from 1 to 100".to_owned())
}

/// A time that something may take.
pub(crate) fn limit(text: &str) -> Result<Nanos, String> {
    match duration(text)? {
        Nanos(time) if time < 1e6 => {
            Err("that is too short: it must be 1ms or more, such as 60s".to_owned())
        }
        time => Ok(time),
    }
}

pub(crate) fn duration(text: &str) -> Result<Nanos, String> {
    const UNITS: [(&str, f64); 4] = [("ns", 1.0), ("us", 1e3), ("ms", 1e6), ("s", 1e9)];
    let unit = UNITS.iter().find_map(|(unit, scale)| Some((text.strip_suffix(unit)?, scale)));
    let (digits, scale) = match unit {
        Some(unit) => unit,
        None if text == "0" => (text, &1.0),
        None => return Err("it needs a unit: a time such as 4us, 500ns or 1.5ms".to_owned()),
    };
    let time = digits
        .trim()
        .parse()
        .ok()
        .map(|number: f64| number * scale)
        .filter(|time| (0.0..=1e12).contains(time));
    time.map(Nanos).ok_or_else(|| "it must be a time such as 4us, 500ns or 1.5ms".to_owned())
}

pub(super) fn factor(text: &str) -> Result<f64, String> {
    in_bandwidths(text.trim().trim_end_matches('x').parse().unwrap_or(f64::NAN))
}

pub(crate) fn in_bandwidths(factor: f64) -> Result<f64, String> {
    let allowed = Some(factor).filter(|factor| (1e-3..=1e3).contains(factor));
    allowed.ok_or_else(|| "it must be a factor such as 2x".to_owned())
}

/// A variable that is 1 or 0; clap passes a flag as `true` or `false`.
pub(super) fn switch(text: &str) -> Result<bool, String> {
    match text {
        "1" | "true" => Ok(true),
        "0" | "false" | "" => Ok(false),
        _ => Err("is neither 1 nor 0".to_owned()),
    }
}

pub(super) fn order_for(text: &str) -> Result<(usize, Input), String> {
    let parsed =
        text.split_once('=').and_then(|(rank, path)| Some((rank.parse().ok()?, Input::from(path))));
    parsed.ok_or_else(|| "it must be a rank and a file, such as 3=other.json".to_owned())
}

pub(super) fn panic_at(text: &str) -> Result<(usize, usize), String> {
    let parsed = text
        .split_once(':')
        .and_then(|(rank, step)| Some((rank.parse().ok()?, step.parse().ok()?)));
    parsed.ok_or_else(|| "it must be a rank and a step, such as 3:10".to_owned())
}
