//! Statistics of an array.

use serde_json::{Map, Value};

use crate::tensor::{View, numbers};

/// Statistics of an array, computed in 64 bits. As in torch, a NaN makes all of them NaN; a single
/// element has no deviation, and an empty array has no statistics. For complex elements they are of
/// the magnitudes.
#[derive(Clone, Copy, Debug, PartialEq)]
#[allow(missing_docs)]
pub struct Stats {
    pub count: usize,
    pub mean: f64,
    pub min: f64,
    pub max: f64,
    /// Divided by one less than the number of elements.
    pub std: f64,
    pub nans: usize,
    pub infinities: usize,
}

impl Stats {
    /// Of an array.
    pub fn of(view: &View<'_>) -> Stats {
        let mut all = numbers(view.dtype(), view.bytes());
        if view.dtype().is_complex() {
            all = all
                .as_chunks::<2>()
                .0
                .iter()
                .map(|[real, imaginary]| real.hypot(*imaginary))
                .collect();
        }
        let count = all.len();
        let mean = all.iter().sum::<f64>() / count as f64;
        let squares: f64 = all.iter().map(|number| (number - mean).powi(2)).sum();
        let nans = all.iter().filter(|number| number.is_nan()).count();
        let end = |first: f64, pick: fn(f64, f64) -> f64| match nans > 0 || count == 0 {
            true => f64::NAN,
            false => all.iter().copied().fold(first, pick),
        };
        Stats {
            count,
            mean,
            min: end(f64::INFINITY, f64::min),
            max: end(f64::NEG_INFINITY, f64::max),
            std: if count > 1 { (squares / (count as f64 - 1.0)).sqrt() } else { f64::NAN },
            nans,
            infinities: all.iter().filter(|number| number.is_infinite()).count(),
        }
    }

    pub(super) fn to_json(self) -> Value {
        let mut map = Map::new();
        map.insert("count".to_owned(), self.count.into());
        for (name, value) in
            [("mean", self.mean), ("min", self.min), ("max", self.max), ("std", self.std)]
        {
            map.insert(name.to_owned(), number(value));
        }
        map.insert("nans".to_owned(), self.nans.into());
        map.insert("infinities".to_owned(), self.infinities.into());
        Value::Object(map)
    }

    pub(super) fn from_json(value: &Value) -> Option<Stats> {
        let count = |name: &str| value[name].as_u64().map(|count| count as usize);
        let read = |name: &str| value[name].as_f64().or_else(|| value[name].as_str()?.parse().ok());
        Some(Stats {
            count: count("count")?,
            mean: read("mean")?,
            min: read("min")?,
            max: read("max")?,
            std: read("std")?,
            nans: count("nans")?,
            infinities: count("infinities")?,
        })
    }
}

/// A number; non-finite values are text: `nan`, `inf`, `-inf`.
fn number(value: f64) -> Value {
    match serde_json::Number::from_f64(value) {
        Some(number) => Value::Number(number),
        None if value.is_nan() => "nan".into(),
        None => format!("{value}").into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::{Complex, Tensor};

    #[test]
    fn as_torch_has_them() {
        let stats = Stats::of(&Tensor::of(&[2, 2], &[1.0f32, 2.0, 3.0, 6.0]).view());
        assert_eq!((stats.count, stats.mean, stats.min, stats.max), (4, 3.0, 1.0, 6.0));
        assert_eq!(stats.std, (14.0f64 / 3.0).sqrt());
        let one = Stats::of(&Tensor::of(&[], &[7i32]).view());
        assert!(one.mean == 7.0 && one.std.is_nan());
        let wild = Stats::of(&Tensor::of(&[3], &[f32::NAN, f32::NEG_INFINITY, 1.0]).view());
        assert!(wild.mean.is_nan() && wild.min.is_nan() && (wild.nans, wild.infinities) == (1, 1));
        let complex = Stats::of(&Tensor::of(&[1], &[Complex { re: 3.0f32, im: 4.0 }]).view());
        assert_eq!((complex.count, complex.max), (1, 5.0));
        let nothing = Stats::of(&Tensor::of::<f32>(&[0], &[]).view());
        assert!(
            [nothing.mean, nothing.min, nothing.max, nothing.std]
                .iter()
                .all(|number| number.is_nan())
        );
        assert_eq!((nothing.count, nothing.nans, nothing.infinities), (0, 0, 0));
    }

    #[test]
    fn there_and_back() {
        let stats = Stats::of(&Tensor::of(&[2], &[f32::INFINITY, 0.1]).view());
        let back = Stats::from_json(&stats.to_json()).unwrap();
        assert!(back.max == f64::INFINITY && back.std.is_nan() && back.count == 2);
    }
}
