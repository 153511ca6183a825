//! Units as types: times are [`Nanos`], sizes are [`Bytes`], work is [`Flops`]; a rate turns work
//! or a size into a time.

use std::fmt;
use std::iter::Sum;
use std::ops::{Add, AddAssign, Div, Mul, Neg, Sub, SubAssign};

use serde::Serialize;

/// A time in nanoseconds. A float, as in the files: times are estimates, and torch's decisions on
/// them are to be reproduced to the last bit.
///
/// ```
/// use halflap::units::{Bandwidth, Bytes, Nanos};
///
/// assert_eq!(Bytes(50_000) / Bandwidth::gigas(50.0), Nanos::micros(1.0));
/// assert_eq!(Nanos(1_234.0).to_string(), "1.23 us");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd, Serialize)]
#[serde(transparent)]
pub struct Nanos(pub f64);

/// A size in bytes. Signed: a program may free more than it allocates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(transparent)]
pub struct Bytes(pub i64);

/// Work in floating-point operations. A float, as in the files: it is an estimate.
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd)]
pub struct Flops(pub f64);

/// Floating-point operations in a second.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct FlopRate(pub f64);

/// Bytes in a second.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Bandwidth(pub f64);

impl Nanos {
    /// Zero.
    pub const ZERO: Nanos = Nanos(0.0);

    /// No run time is longer (292 years), so that no sum of them can overflow.
    pub const LONGEST: Nanos = Nanos(9.2e18);

    /// A time in microseconds, the unit of latencies in data sheets.
    pub const fn micros(micros: f64) -> Nanos {
        Nanos(micros * 1e3)
    }

    /// The longer of two times.
    #[inline]
    pub fn max(self, other: Nanos) -> Nanos {
        Nanos(self.0.max(other.0))
    }

    /// The shorter of two times.
    #[inline]
    pub fn min(self, other: Nanos) -> Nanos {
        Nanos(self.0.min(other.0))
    }
}

impl FlopRate {
    /// A rate in TFLOP/s, the unit of data sheets.
    pub const fn teras(teras: f64) -> FlopRate {
        FlopRate(teras * 1e12)
    }
}

impl Bandwidth {
    /// A bandwidth in GB/s (10^9 bytes), the unit of data sheets.
    pub const fn gigas(gigas: f64) -> Bandwidth {
        Bandwidth(gigas * 1e9)
    }

    /// The smaller of two.
    pub fn min(self, other: Bandwidth) -> Bandwidth {
        Bandwidth(self.0.min(other.0))
    }
}

impl Bytes {
    /// No bytes.
    pub const ZERO: Bytes = Bytes(0);
}

macro_rules! arithmetic {
    ($($unit:ident)*) => {$(
        impl Add for $unit {
            type Output = $unit;
            #[inline]
            fn add(self, other: $unit) -> $unit {
                $unit(self.0 + other.0)
            }
        }
        impl Sub for $unit {
            type Output = $unit;
            #[inline]
            fn sub(self, other: $unit) -> $unit {
                $unit(self.0 - other.0)
            }
        }
        impl Neg for $unit {
            type Output = $unit;
            #[inline]
            fn neg(self) -> $unit {
                $unit(-self.0)
            }
        }
        impl AddAssign for $unit {
            #[inline]
            fn add_assign(&mut self, other: $unit) {
                self.0 += other.0;
            }
        }
        impl SubAssign for $unit {
            #[inline]
            fn sub_assign(&mut self, other: $unit) {
                self.0 -= other.0;
            }
        }
        impl Sum for $unit {
            fn sum<It: Iterator<Item = $unit>>(items: It) -> $unit {
                items.fold($unit::ZERO, Add::add)
            }
        }
    )*};
}

arithmetic! { Nanos Bytes }

impl Mul<f64> for Nanos {
    type Output = Nanos;
    #[inline]
    fn mul(self, factor: f64) -> Nanos {
        Nanos(self.0 * factor)
    }
}

impl Mul<f64> for Bandwidth {
    type Output = Bandwidth;
    fn mul(self, factor: f64) -> Bandwidth {
        Bandwidth(self.0 * factor)
    }
}

impl Div<FlopRate> for Flops {
    type Output = Nanos;
    fn div(self, rate: FlopRate) -> Nanos {
        Nanos(self.0 / rate.0 * 1e9)
    }
}

impl Div<Bandwidth> for Bytes {
    type Output = Nanos;
    fn div(self, bandwidth: Bandwidth) -> Nanos {
        Nanos(self.0 as f64 / bandwidth.0 * 1e9)
    }
}

impl Div<Nanos> for Flops {
    type Output = FlopRate;
    fn div(self, time: Nanos) -> FlopRate {
        FlopRate(self.0 / time.0 * 1e9)
    }
}

impl Div<Nanos> for Bytes {
    type Output = Bandwidth;
    fn div(self, time: Nanos) -> Bandwidth {
        Bandwidth(self.0 as f64 / time.0 * 1e9)
    }
}

impl fmt::Display for Nanos {
    /// Three or four digits and a unit: `12.3 us`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (scale, unit) = match self.0.abs() {
            ns if ns >= 1e9 => (1e9, "s"),
            ns if ns >= 1e6 => (1e6, "ms"),
            ns if ns >= 1e3 => (1e3, "us"),
            _ => (1.0, "ns"),
        };
        f.pad(&format!("{} {unit}", three_digits(self.0 / scale)))
    }
}

impl fmt::Display for Bytes {
    /// Three or four digits and a binary unit: `1.35 GiB`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
        let magnitude = self.0.unsigned_abs();
        if magnitude < 1024 {
            return f.pad(&format!("{} B", self.0));
        }
        let power = (magnitude.ilog2() / 10) as usize;
        let value = self.0 as f64 / (1u64 << (10 * power)) as f64;
        f.pad(&format!("{} {}", three_digits(value), UNITS[power - 1]))
    }
}

impl fmt::Display for Bandwidth {
    /// Three or four digits and a decimal unit: `369 GB/s`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&decimal(self.0, "B/s"))
    }
}

impl fmt::Display for FlopRate {
    /// Three or four digits and a decimal unit: `443 TFLOP/s`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&decimal(self.0, "FLOP/s"))
    }
}

/// With powers of a thousand, as in data sheets.
fn decimal(value: f64, unit: &str) -> String {
    let (scale, prefix) = match value.abs() {
        v if v >= 1e18 => (1e18, "E"),
        v if v >= 1e15 => (1e15, "P"),
        v if v >= 1e12 => (1e12, "T"),
        v if v >= 1e9 => (1e9, "G"),
        v if v >= 1e6 => (1e6, "M"),
        v if v >= 1e3 => (1e3, "k"),
        _ => (1.0, ""),
    };
    format!("{} {prefix}{unit}", three_digits(value / scale))
}

fn three_digits(value: f64) -> String {
    let decimals = match value.abs() {
        v if v >= 100.0 || v == v.trunc() => 0,
        v if v >= 10.0 => 1,
        _ => 2,
    };
    format!("{value:.decimals$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn people_read_units() {
        let times =
            [0.0, 999.0, 1234.0, 12_345.0, 3_456_789.0, 2e9].map(|ns| Nanos(ns).to_string());
        assert_eq!(times, ["0 ns", "999 ns", "1.23 us", "12.3 us", "3.46 ms", "2 s"]);
        let sizes = [0, 1023, 1024, 1_451_792_392, -4096].map(|size| Bytes(size).to_string());
        assert_eq!(sizes, ["0 B", "1023 B", "1 KiB", "1.35 GiB", "-4 KiB"]);
        let rates = [0.0, 999.0, 12_345.0, 3.69e11].map(|rate| Bandwidth(rate).to_string());
        assert_eq!(rates, ["0 B/s", "999 B/s", "12.3 kB/s", "369 GB/s"]);
        assert_eq!(FlopRate(4.43e14).to_string(), "443 TFLOP/s");
    }

    #[test]
    fn a_rate_divides_into_a_time() {
        assert_eq!(Flops(3e12) / FlopRate::teras(1.5), Nanos(2e9));
        assert_eq!(Bytes(50_000) / Bandwidth::gigas(50.0), Nanos::micros(1.0));
        assert_eq!(Flops(3e12) / Nanos(2e9), FlopRate::teras(1.5));
        assert_eq!(Bytes(50_000) / Nanos::micros(1.0), Bandwidth::gigas(50.0));
    }
}
