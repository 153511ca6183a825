//! The values of a constant.

use super::{ElementType, Module, Opcode, Shape};
use crate::ids::InstrId;

/// The values of a constant array, in the order of their indices, the last index fastest.
#[derive(Clone, Debug, PartialEq)]
pub enum Literal {
    /// Integers and booleans.
    Whole(Vec<i128>),
    /// Floating-point numbers.
    Float(Vec<f64>),
    /// Complex numbers: real and imaginary part.
    Complex(Vec<(f64, f64)>),
    /// The text was written without them: `{...}`.
    LeftOut,
}

/// Why the values of a constant cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)]
pub enum BadLiteral {
    #[error("it is not a constant array")]
    NoArray,
    #[error("its type is {kind}, and {value:?} is not a value of that")]
    Value { value: String, kind: &'static str },
    #[error("it has {found} {}, its shape has {expected}", match found { 1 => "value", _ => "values" })]
    Count { found: u64, expected: u64 },
}

impl Module {
    /// The values of a constant; `None` if they cannot be read.
    pub fn literal(&self, instr: InstrId) -> Option<Literal> {
        self.read_literal(instr).ok()
    }

    /// The values of a constant, or why they cannot be read.
    pub fn read_literal(&self, instr: InstrId) -> Result<Literal, BadLiteral> {
        let instruction = self.instruction(instr);
        let (Opcode::Constant, Shape::Array(array)) = (instruction.opcode, &instruction.shape)
        else {
            return Err(BadLiteral::NoArray);
        };
        let text = self.payload(instr);
        if text.contains("...") {
            return Ok(Literal::LeftOut);
        }
        let text = without_comments(text);
        let kind = array.element.name();
        let bad = |value: &str| BadLiteral::Value { value: value.to_owned(), kind };
        let literal = match array.element {
            ElementType::C64 | ElementType::C128 => {
                Literal::Complex(complex(&text).ok_or_else(|| bad(text.trim()))?)
            }
            _ if kind.starts_with(['f', 'b']) => Literal::Float(values(&text, float).map_err(bad)?),
            _ => Literal::Whole(values(&text, whole).map_err(bad)?),
        };
        let count = match &literal {
            Literal::Whole(values) => values.len(),
            Literal::Float(values) => values.len(),
            Literal::Complex(values) => values.len(),
            Literal::LeftOut => 0,
        };
        match count as u64 == array.elements() {
            true => Some(literal),
            // XLA reads a number without braces as the first, and all others as zero.
            false if count == 1 && !text.contains('{') => first_of(literal, array.elements()),
            false => None,
        }
        .ok_or(BadLiteral::Count { found: count as u64, expected: array.elements() })
    }
}

/// This many numbers, all zero except the first.
fn first_of(literal: Literal, count: u64) -> Option<Literal> {
    /// A limit on memory: no real text has more.
    const MOST: u64 = 1 << 32;
    let count = usize::try_from(count).ok().filter(|_| count <= MOST)?;
    Some(match literal {
        Literal::Whole(mut values) => {
            values.resize(count, 0);
            Literal::Whole(values)
        }
        Literal::Float(mut values) => {
            values.resize(count, 0.0);
            Literal::Float(values)
        }
        Literal::Complex(mut values) => {
            values.resize(count, (0.0, 0.0));
            Literal::Complex(values)
        }
        Literal::LeftOut => Literal::LeftOut,
    })
}

fn without_comments(text: &str) -> String {
    let mut rest = text;
    let mut plain = String::with_capacity(text.len());
    while let Some((before, after)) = rest.split_once("/*") {
        plain.push_str(before);
        rest = after.split_once("*/").map_or("", |(_, after)| after);
    }
    plain + rest
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split([',', '{', '}']).flat_map(str::split_whitespace)
}

/// The values of all words, or the first that is none.
fn values<T>(text: &str, value: impl Fn(&str) -> Option<T>) -> Result<Vec<T>, &str> {
    words(text).map(|word| value(word).ok_or(word)).collect()
}

fn float(word: &str) -> Option<f64> {
    match word.trim_start_matches('-') {
        nan if nan.starts_with("nan") => Some(f64::NAN),
        _ => word.parse().ok(),
    }
}

fn whole(word: &str) -> Option<i128> {
    match word {
        "true" => Some(1),
        "false" => Some(0),
        _ => word.parse().ok(),
    }
}

fn complex(text: &str) -> Option<Vec<(f64, f64)>> {
    let number = |pair: &str| {
        let (real, imaginary) = pair.split(')').next()?.split_once(',')?;
        Some((float(real.trim())?, float(imaginary.trim())?))
    };
    text.split('(').skip(1).map(number).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn literal(shape: &str, value: &str) -> Option<Literal> {
        let text = format!("HloModule m\nENTRY e {{\n  ROOT c = {shape} constant({value})\n}}\n");
        let module = Module::read(text).unwrap();
        module.literal(module.root(module.entry()))
    }

    fn problem(shape: &str, value: &str) -> String {
        let text = format!("HloModule m\nENTRY e {{\n  ROOT c = {shape} constant({value})\n}}\n");
        let module = Module::read(text).unwrap();
        module.read_literal(module.root(module.entry())).unwrap_err().to_string()
    }

    #[test]
    fn values_of_every_kind() {
        assert_eq!(literal("s32[]", "-7"), Some(Literal::Whole(vec![-7])));
        assert_eq!(literal("pred[2]", "{true, 0}"), Some(Literal::Whole(vec![1, 0])));
        let matrix = literal("f32[2,2]{1,0}", "{ { 1, 2.5 }, /*i0=1*/ { -inf, 1e-3 } }");
        assert_eq!(matrix, Some(Literal::Float(vec![1.0, 2.5, f64::NEG_INFINITY, 1e-3])));
        assert_eq!(literal("c64[1]", "{(1, -2)}"), Some(Literal::Complex(vec![(1.0, -2.0)])));
        assert_eq!(literal("f32[1000]", "{...}"), Some(Literal::LeftOut));
        assert_eq!(literal("f32[0]", "{}"), Some(Literal::Float(vec![])));
        assert_eq!(literal("f32[3]", "{1, 2}"), None);
        assert_eq!(problem("f32[3]", "{1, 2}"), "it has 2 values, its shape has 3");
        let text = "its type is s32, and \"1.5\" is not a value of that";
        assert_eq!(problem("s32[2]", "{1, 1.5}"), text);
        let Some(Literal::Float(nan)) = literal("f32[]", "nan(0x1)") else { panic!() };
        assert!(nan[0].is_nan());
    }
}
