//! Floating-point numbers of eight bits and fewer, and integers of four bits and fewer. Each is
//! stored in a byte of its own.

/// A floating-point type of at most eight bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum Mini {
    F8e5m2,
    F8e4m3,
    F8e4m3fn,
    F8e3m4,
    F8e4m3b11fnuz,
    F8e4m3fnuz,
    F8e5m2fnuz,
    F8e8m0fnu,
    F4e2m1fn,
}

/// An integer type of at most four bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum Tiny {
    S1,
    S2,
    S4,
    U1,
    U2,
    U4,
}

/// What the codes beyond the largest number mean.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Extremes {
    /// Infinity and NaN, as in f32.
    Ieee,
    /// The last code is NaN; there is no infinity.
    LastIsNan,
    /// The code of negative zero is NaN; there is no infinity and no negative zero.
    NegativeZeroIsNan,
    /// All codes are numbers; overflow saturates.
    Saturating,
    /// No sign, no mantissa and no zero: powers of two, and the last code is NaN.
    Scale,
}

/// How a type encodes numbers.
pub(crate) struct Format {
    name: &'static str,
    bits: u32,
    mantissa: u32,
    bias: u32,
    extremes: Extremes,
}

/// By `Mini as usize`.
pub(crate) const FORMATS: [Format; 9] = [
    Format { name: "f8e5m2", bits: 8, mantissa: 2, bias: 15, extremes: Extremes::Ieee },
    Format { name: "f8e4m3", bits: 8, mantissa: 3, bias: 7, extremes: Extremes::Ieee },
    Format { name: "f8e4m3fn", bits: 8, mantissa: 3, bias: 7, extremes: Extremes::LastIsNan },
    Format { name: "f8e3m4", bits: 8, mantissa: 4, bias: 3, extremes: Extremes::Ieee },
    Format {
        name: "f8e4m3b11fnuz",
        bits: 8,
        mantissa: 3,
        bias: 11,
        extremes: Extremes::NegativeZeroIsNan,
    },
    Format {
        name: "f8e4m3fnuz",
        bits: 8,
        mantissa: 3,
        bias: 8,
        extremes: Extremes::NegativeZeroIsNan,
    },
    Format {
        name: "f8e5m2fnuz",
        bits: 8,
        mantissa: 2,
        bias: 16,
        extremes: Extremes::NegativeZeroIsNan,
    },
    Format { name: "f8e8m0fnu", bits: 8, mantissa: 0, bias: 127, extremes: Extremes::Scale },
    Format { name: "f4e2m1fn", bits: 4, mantissa: 1, bias: 1, extremes: Extremes::Saturating },
];

impl Format {
    const fn sign(&self) -> u32 {
        match self.extremes {
            Extremes::Scale => 0,
            _ => 1 << (self.bits - 1),
        }
    }

    /// The code of the largest finite number.
    const fn largest(&self) -> u32 {
        let codes = (1 << (self.bits - 1)) - 1;
        match self.extremes {
            Extremes::Ieee => codes - (1 << self.mantissa),
            Extremes::LastIsNan => codes - 1,
            Extremes::NegativeZeroIsNan | Extremes::Saturating => codes,
            Extremes::Scale => 0xfe,
        }
    }

    /// The code of NaN without a sign; for a type without NaN, the code that NaN converts to.
    const fn nan(&self) -> u32 {
        match self.extremes {
            Extremes::Ieee => {
                self.largest() + 1 + if self.mantissa > 0 { 1 << (self.mantissa - 1) } else { 0 }
            }
            Extremes::LastIsNan => self.largest() + 1,
            Extremes::NegativeZeroIsNan | Extremes::Saturating => self.sign(),
            Extremes::Scale => 0xff,
        }
    }

    /// The code for overflow.
    const fn overflow(&self) -> u32 {
        match self.extremes {
            Extremes::Ieee | Extremes::LastIsNan => self.largest() + 1,
            Extremes::NegativeZeroIsNan | Extremes::Scale => self.nan(),
            Extremes::Saturating => self.largest(),
        }
    }

    /// The nearest number of the type, ties to even.
    #[inline(always)]
    pub(crate) const fn encode(&self, value: f32) -> u8 {
        if matches!(self.extremes, Extremes::Scale) {
            return self.encode_scale(value);
        }
        let magnitude = value.to_bits() & 0x7fff_ffff;
        let cut = 23 - self.mantissa;
        let last = (magnitude >> cut) & 1;
        let normal = ((magnitude + (1 << (cut - 1)) - 1 + last) >> cut)
            .wrapping_sub((127 - self.bias) << self.mantissa);
        // Adding a number whose last digit is the type's smallest number rounds to a multiple of
        // it.
        let unit = f32::from_bits((127 - self.bias + 1 + cut) << 23);
        let small = (f32::from_bits(magnitude) + unit).to_bits().wrapping_sub(unit.to_bits());
        let is_small = magnitude < (127 - self.bias + 1) << 23;
        let code = if is_small { small } else { normal };
        let is_nan = magnitude > 0x7f80_0000;
        let sign = if value.is_sign_negative() { self.sign() } else { 0 };
        let has_plain_zero = matches!(self.extremes, Extremes::NegativeZeroIsNan);
        (match () {
            () if is_nan && matches!(self.extremes, Extremes::Ieee | Extremes::LastIsNan) => {
                self.nan() | sign
            }
            () if is_nan => self.nan(),
            () if code > self.largest() => self.overflow() | sign,
            () if code == 0 && has_plain_zero => 0,
            () => code | sign,
        }) as u8
    }

    /// The nearest power of two, ties to the larger one.
    const fn encode_scale(&self, value: f32) -> u8 {
        let bits = value.to_bits();
        if bits == 0 || bits >= 0x7f40_0000 {
            return 0xff;
        }
        // Below the smallest normal number of f32, the exponent field is that of the next one.
        match bits {
            0..0x0060_0000 => 0,
            0x0060_0000..0x0080_0000 => 1,
            _ => ((bits + (1 << 22)) >> 23) as u8,
        }
    }

    /// The numbers of all codes.
    pub(crate) const fn decoded(&self) -> [f32; 256] {
        let mut numbers = [0.0; 256];
        let mut code = 0;
        while code < 256 {
            numbers[code] = self.decode(code as u8);
            code += 1;
        }
        numbers
    }

    /// The number that a code means.
    pub(crate) const fn decode(&self, code: u8) -> f32 {
        let code = code as u32 & ((1 << self.bits) - 1);
        let magnitude = code & !self.sign();
        let (exponent, digits) = (magnitude >> self.mantissa, magnitude % (1 << self.mantissa));
        // A power of two, also one that is subnormal in f32.
        let power = match exponent + 127 - self.bias {
            0 => f32::from_bits(1 << 22),
            biased => f32::from_bits(biased << 23),
        };
        let part = digits as f32 / (1 << self.mantissa) as f32;
        let number = match self.extremes {
            Extremes::Scale if code == 0xff => f32::NAN,
            Extremes::Scale => power,
            Extremes::NegativeZeroIsNan if code == self.sign() => f32::NAN,
            Extremes::Ieee if magnitude == self.largest() + 1 => f32::INFINITY,
            Extremes::Ieee | Extremes::LastIsNan if magnitude > self.largest() => f32::NAN,
            _ if exponent == 0 => part * power * 2.0,
            _ => (1.0 + part) * power,
        };
        if code & self.sign() != 0 { -number } else { number }
    }
}

impl Mini {
    pub(crate) fn format(self) -> &'static Format {
        &FORMATS[self as usize]
    }

    pub(super) fn name(self) -> &'static str {
        self.format().name
    }

    /// The code of the nearest number.
    pub fn encode(self, value: f32) -> u8 {
        self.format().encode(value)
    }

    /// The number that a code means.
    pub fn decode(self, code: u8) -> f32 {
        self.format().decode(code)
    }
}

impl Tiny {
    pub(super) fn name(self) -> &'static str {
        match self {
            Tiny::S1 => "s1",
            Tiny::S2 => "s2",
            Tiny::S4 => "s4",
            Tiny::U1 => "u1",
            Tiny::U2 => "u2",
            Tiny::U4 => "u4",
        }
    }

    pub(crate) fn is_signed(self) -> bool {
        matches!(self, Tiny::S1 | Tiny::S2 | Tiny::S4)
    }

    pub(crate) fn bits(self) -> u32 {
        match self {
            Tiny::S1 | Tiny::U1 => 1,
            Tiny::S2 | Tiny::U2 => 2,
            Tiny::S4 | Tiny::U4 => 4,
        }
    }

    /// The byte of a number: its lowest bits, extended by their sign.
    pub fn wrap(self, byte: u8) -> u8 {
        let unused = 8 - self.bits();
        match self.is_signed() {
            true => ((byte << unused) as i8 >> unused) as u8,
            false => byte << unused >> unused,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Mini; 9] = [
        Mini::F8e5m2,
        Mini::F8e4m3,
        Mini::F8e4m3fn,
        Mini::F8e3m4,
        Mini::F8e4m3b11fnuz,
        Mini::F8e4m3fnuz,
        Mini::F8e5m2fnuz,
        Mini::F8e8m0fnu,
        Mini::F4e2m1fn,
    ];

    fn codes(mini: Mini) -> impl Iterator<Item = u8> {
        (0..1u32 << mini.format().bits).map(|code| code as u8)
    }

    #[test]
    fn every_code_is_the_code_of_its_number() {
        for mini in ALL {
            for code in codes(mini) {
                let number = mini.decode(code);
                match number.is_nan() {
                    true => assert!(mini.decode(mini.encode(number)).is_nan(), "{mini:?} {code}"),
                    false => assert_eq!(mini.encode(number), code, "{mini:?} {number}"),
                }
            }
        }
    }

    #[test]
    fn what_is_between_two_numbers_goes_to_the_nearer_one() {
        for mini in ALL {
            let mut numbers: Vec<f32> = codes(mini).map(|code| mini.decode(code)).collect();
            numbers.retain(|number| number.is_finite());
            numbers.sort_by(f32::total_cmp);
            numbers.dedup();
            for pair in numbers.windows(2) {
                let middle = ((f64::from(pair[0]) + f64::from(pair[1])) / 2.0) as f32;
                let (below, above) = (middle.next_down(), middle.next_up());
                assert_eq!(mini.decode(mini.encode(below)), pair[0], "{mini:?} {below}");
                assert_eq!(mini.decode(mini.encode(above)), pair[1], "{mini:?} {above}");
                let tie = mini.encode(middle);
                let to_even = mini == Mini::F8e8m0fnu || tie.is_multiple_of(2);
                assert!(to_even || middle == 0.0, "{mini:?} {middle}");
            }
        }
    }

    #[test]
    fn what_is_too_large_is_what_the_type_has_for_it() {
        let seen =
            ALL.map(|mini| (mini.encode(f32::INFINITY), mini.encode(-1e30), mini.encode(-0.0)));
        let expected = [
            (0x7c, 0xfc, 0x80),
            (0x78, 0xf8, 0x80),
            (0x7f, 0xff, 0x80),
            (0x70, 0xf0, 0x80),
            (0x80, 0x80, 0),
            (0x80, 0x80, 0),
            (0x80, 0x80, 0),
            (0xff, 0xff, 0xff),
            (0x7, 0xf, 0x8),
        ];
        assert_eq!(seen, expected);
        assert!(Mini::F8e4m3fn.decode(Mini::F8e4m3fn.encode(465.0)).is_nan());
        assert_eq!(Mini::F8e4m3fn.decode(Mini::F8e4m3fn.encode(463.0)), 448.0);
    }

    #[test]
    fn small_integers_wrap_around() {
        assert_eq!([7u8, 8, 15, 16].map(|byte| Tiny::S4.wrap(byte) as i8), [7, -8, -1, 0]);
        assert_eq!([7u8, 8, 15, 255].map(|byte| Tiny::U4.wrap(byte)), [7, 8, 15, 15]);
        assert_eq!([1u8, 2, 3].map(|byte| Tiny::S2.wrap(byte) as i8), [1, -2, -1]);
    }
}
