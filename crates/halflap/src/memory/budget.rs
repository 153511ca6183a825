//! A memory limit as users write it: `1.2x` of the current peak, or `40GiB`.

use std::str::FromStr;

use thiserror::Error;

use crate::units::Bytes;

/// A limit, relative or absolute.
///
/// ```
/// use halflap::{memory::Budget, units::Bytes};
///
/// let budget: Budget = "1.2x".parse()?;
/// assert_eq!(budget.limit(Bytes(1000)), Bytes(1200));
/// assert_eq!("40KiB".parse(), Ok(Budget::Absolute(Bytes(40 * 1024))));
/// # Ok::<(), halflap::memory::BadBudget>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Budget {
    /// So many times the input order's peak.
    Times(f64),
    /// So many bytes.
    Absolute(Bytes),
}

/// Why a text is not a limit.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error(
    "'{0}' is not a memory limit: it must be a multiple such as 1.2x, or a size such as 40GiB, \
     512MB or 1048576B"
)]
pub struct BadBudget(String);

impl Budget {
    /// The limit in bytes, where the input order's peak is `peak`.
    pub fn limit(self, peak: Bytes) -> Bytes {
        match self {
            Budget::Times(times) => Bytes((peak.0 as f64 * times).floor() as i64),
            Budget::Absolute(bytes) => bytes,
        }
    }
}

impl FromStr for Budget {
    type Err = BadBudget;
    fn from_str(text: &str) -> Result<Budget, BadBudget> {
        const UNITS: [(&str, f64); 13] = [
            ("kib", 1024.0),
            ("mib", 1_048_576.0),
            ("gib", 1_073_741_824.0),
            ("tib", 1_099_511_627_776.0),
            ("kb", 1e3),
            ("mb", 1e6),
            ("gb", 1e9),
            ("tb", 1e12),
            ("k", 1024.0),
            ("m", 1_048_576.0),
            ("g", 1_073_741_824.0),
            ("t", 1_099_511_627_776.0),
            ("b", 1.0),
        ];
        let bad = || BadBudget(text.to_owned());
        let lower = text.trim().to_ascii_lowercase();
        let number = |digits: &str| {
            digits.trim().parse::<f64>().ok().filter(|number| (0.0..=9e18).contains(number))
        };
        if let Some(times) = lower.strip_suffix('x') {
            return number(times).map(Budget::Times).ok_or_else(bad);
        }
        let unit = UNITS.iter().find_map(|(unit, scale)| Some((lower.strip_suffix(unit)?, scale)));
        // A small number without a unit is a multiple whose x was forgotten.
        let (digits, scale) = match unit {
            Some(unit) => unit,
            None if number(&lower).is_some_and(|bytes| bytes >= 1024.0) => (lower.as_str(), &1.0),
            None => return Err(bad()),
        };
        let bytes = number(digits).map(|number| number * scale).filter(|bytes| *bytes <= 9e18);
        bytes.map(|bytes| Budget::Absolute(Bytes(bytes as i64))).ok_or_else(bad)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_as_people_write_them() {
        let limit = |text: &str| text.parse::<Budget>().map(|budget| budget.limit(Bytes(1000)).0);
        let texts = ["1.2x", "0x", "40GiB", "1.5 kb", "2K", "7700", "8b"];
        assert_eq!(
            texts.map(|text| limit(text).unwrap()),
            [1200, 0, 40 << 30, 1500, 2048, 7700, 8]
        );
        for text in ["1.2", "40", "", "x", "-1x", "1.2y", "GiB", "nan", "infx", "1e30"] {
            assert!(limit(text).is_err(), "{text}");
        }
    }
}
