//! Decimal microseconds to integer nanoseconds, exactly.
//!
//! A time since 1970 in microseconds with three decimals has more digits than a double holds: read
//! as one it would be off by a hundred nanoseconds or more, which is what short kernels are apart.

use std::num::IntErrorKind;

use super::trace::Moment;

/// Further digits cannot change a nanosecond of any time that fits.
const DIGITS: usize = 30;

/// The latest time that is accepted, 146 years from the clock's zero: the difference of two fits.
const LATEST: i128 = i64::MAX as i128 / 2;

/// Why text is not a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NoTime {
    NotANumber,
    TooLarge,
}

/// The nanoseconds in a decimal number of microseconds: `12.5`, `-3`, `1.6e15`. Rounded to the
/// nearest, away from zero if two are.
pub(super) fn nanos_of_micros(text: &[u8]) -> Result<Moment, NoTime> {
    let (negative, text) = match text.strip_prefix(b"-") {
        Some(rest) => (true, rest),
        None => (false, text),
    };
    let (mantissa, exponent) = match text.iter().position(|byte| matches!(byte, b'e' | b'E')) {
        Some(at) => (&text[..at], exponent(&text[at + 1..])?),
        None => (text, 0),
    };
    let (digits, scale) = digits(mantissa)?;
    let nanos = shifted(digits, scale.saturating_add(exponent).saturating_add(3))?;
    let nanos = i64::try_from(nanos).map_err(|_| NoTime::TooLarge)?;
    Ok(Moment(if negative { -nanos } else { nanos }))
}

/// All digits as one number, and the power of ten that it is to be multiplied by.
fn digits(text: &[u8]) -> Result<(i128, i64), NoTime> {
    let (mut value, mut scale, mut seen, mut kept, mut point) = (0i128, 0i64, false, 0, false);
    for &byte in text {
        match byte {
            b'0'..=b'9' if kept < DIGITS => {
                value = value * 10 + i128::from(byte - b'0');
                kept += usize::from(value > 0);
                scale -= i64::from(point);
                seen = true;
            }
            b'0'..=b'9' => scale += i64::from(!point),
            b'.' if !point => point = true,
            _ => return Err(NoTime::NotANumber),
        }
    }
    if seen { Ok((value, scale)) } else { Err(NoTime::NotANumber) }
}

fn exponent(text: &[u8]) -> Result<i64, NoTime> {
    let text = std::str::from_utf8(text).map_err(|_| NoTime::NotANumber)?;
    match text.parse::<i32>().map_err(|error| *error.kind()) {
        Ok(exponent) => Ok(i64::from(exponent)),
        Err(IntErrorKind::PosOverflow) => Err(NoTime::TooLarge),
        Err(IntErrorKind::NegOverflow) => Ok(i64::from(i32::MIN)),
        Err(_) => Err(NoTime::NotANumber),
    }
}

/// `value * 10^scale`, rounded.
fn shifted(value: i128, scale: i64) -> Result<i128, NoTime> {
    if value == 0 || scale < -(DIGITS as i64) - 1 {
        return Ok(0);
    }
    let scaled = match scale {
        0.. => (0..scale.min(40))
            .try_fold(value, |value, _| value.checked_mul(10))
            .ok_or(NoTime::TooLarge)?,
        _ => {
            let unit = 10i128.pow(scale.unsigned_abs() as u32);
            (value + unit / 2) / unit
        }
    };
    if scaled <= LATEST { Ok(scaled) } else { Err(NoTime::TooLarge) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_exact() {
        let cases = [
            ("0", 0),
            ("12.5", 12_500),
            ("-3", -3_000),
            ("1682725898236567.123", 1_682_725_898_236_567_123),
            ("1.682725898236567123e15", 1_682_725_898_236_567_123),
            ("0.0004", 0),
            ("0.0005", 1),
            ("2500e-3", 2_500),
            ("0000000000000000000000000000000000000000000001", 1_000),
            ("1.00000000000000000000000000000000000000000000001", 1_000),
            ("1e-400", 0),
            ("0e999", 0),
        ];
        for (text, right) in cases {
            assert_eq!(nanos_of_micros(text.as_bytes()), Ok(Moment(right)), "{text}");
        }
    }

    #[test]
    fn what_is_no_time_is_refused() {
        for text in ["", "-", ".", "1.2.3", "NaN", "1e", "1e+", "0x1", "1 2"] {
            assert_eq!(nanos_of_micros(text.as_bytes()), Err(NoTime::NotANumber), "{text}");
        }
        for text in [
            "1e30",
            "9223372036854775808",
            "99999999999999999999999999999999999999999",
            "1e99999999999",
        ] {
            assert_eq!(nanos_of_micros(text.as_bytes()), Err(NoTime::TooLarge), "{text}");
        }
    }
}
