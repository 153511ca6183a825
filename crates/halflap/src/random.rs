//! Randomness that is the same on every machine: no logarithm or exponential of a system library is
//! involved.

/// SplitMix64.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        Random(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `end`.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        ((u128::from(self.next()) * end as u128) >> 64) as usize
    }

    pub(crate) fn coin(&mut self) -> bool {
        self.next() >> 63 == 0
    }

    /// A number from 0 to 1.
    pub(crate) fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Nearly exponentially distributed with mean 1: the binary logarithm of a random number,
    /// interpolated linearly between powers of two.
    pub(crate) fn exponential(&mut self) -> f64 {
        let bits = self.next();
        let zeros = bits.leading_zeros().min(62);
        let fraction = ((bits << zeros << 1) >> 11) as f64 / (1u64 << 53) as f64;
        (f64::from(zeros) + 1.0 - fraction) * std::f64::consts::LN_2
    }
}

/// `2^-exponent`, interpolated linearly between integer exponents.
pub(crate) fn halved(exponent: f64) -> f64 {
    let whole = exponent.floor();
    let start = (0..whole as u32).fold(1.0, |value: f64, _| value * 0.5);
    start * (1.0 - 0.5 * (exponent - whole))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distributions_are_what_they_say() {
        let random = &mut Random::new(1);
        let draws = 100_000;
        let mean: f64 = (0..draws).map(|_| random.exponential()).sum::<f64>() / f64::from(draws);
        assert!((mean - 1.0).abs() < 0.05, "{mean}");
        let beyond_two = (0..draws).filter(|_| random.exponential() > 2.0).count();
        assert!((beyond_two as f64 / f64::from(draws) - 0.135).abs() < 0.02, "{beyond_two}");
        assert_eq!([0.0, 1.0, 1.5, 3.0].map(halved), [1.0, 0.5, 0.375, 0.125]);
    }
}
