//! Shapes of results, and their sizes in bytes.

use super::error::{HloError, Problem};
use super::lex::{TextCursor, TextSpan, Until, is_name};
use halflap::units::Bytes;

/// The type of an array, a tuple of such, or a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Shape {
    /// An array; a scalar is one without dimensions.
    Array(Array),
    /// Several values.
    Tuple(Vec<Shape>),
    /// What orders side effects.
    Token,
    /// An opaque type.
    Opaque,
}

/// The type of an array.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Array {
    /// The type of its elements.
    pub element: ElementType,
    /// How long each dimension is; of a dynamic one, at most.
    pub dims: Vec<u64>,
    /// Whether one of the dimensions is dynamic.
    pub dynamic: bool,
    /// The layout verbatim, with its braces; empty if there is none.
    pub layout: TextSpan,
}

macro_rules! elements {
    ($($name:literal $variant:ident $bits:literal)*) => {
        /// The type of an element.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[allow(missing_docs)]
        pub enum ElementType {
            $($variant,)*
            /// An unknown type, with the number of bits that its name suggests.
            Other { bits: u16 },
        }

        impl ElementType {
            /// The type of a name.
            pub fn named(name: &str) -> ElementType {
                match name {
                    $($name => ElementType::$variant,)*
                    other => ElementType::Other { bits: bits_in(other) },
                }
            }

            /// As HLO writes it; `?` for an unknown type.
            pub fn name(self) -> &'static str {
                match self {
                    $(ElementType::$variant => $name,)*
                    ElementType::Other { .. } => "?",
                }
            }

            /// How many bits a value has.
            pub fn bits(self) -> u16 {
                match self {
                    $(ElementType::$variant => $bits,)*
                    ElementType::Other { bits } => bits,
                }
            }
        }
    };
}

elements! {
    "f32" F32 32  "bf16" Bf16 16  "pred" Pred 8  "s32" S32 32  "u32" U32 32  "f16" F16 16  "f64" F64 64
    "s1" S1 1  "s2" S2 2  "s4" S4 4  "s8" S8 8  "s16" S16 16  "s64" S64 64
    "u1" U1 1  "u2" U2 2  "u4" U4 4  "u8" U8 8  "u16" U16 16  "u64" U64 64
    "c64" C64 64  "c128" C128 128
    "f4e2m1fn" F4e2m1fn 4  "f8e3m4" F8e3m4 8  "f8e4m3" F8e4m3 8  "f8e4m3fn" F8e4m3fn 8
    "f8e4m3b11fnuz" F8e4m3b11fnuz 8  "f8e4m3fnuz" F8e4m3fnuz 8  "f8e5m2" F8e5m2 8  "f8e5m2fnuz" F8e5m2fnuz 8
    "f8e8m0fnu" F8e8m0fnu 8
}

/// The first number in a type's name: how many bits it has in every type so far.
fn bits_in(name: &str) -> u16 {
    let digits: String =
        name.chars().skip_while(|c| !c.is_ascii_digit()).take_while(char::is_ascii_digit).collect();
    digits.parse().ok().filter(|bits| (1..=1024).contains(bits)).unwrap_or(32)
}

/// An array's memory layout.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    /// The dimensions, the fastest first.
    pub minor_to_major: Vec<u32>,
    /// Each tile's extents.
    pub tiles: Vec<Vec<u64>>,
    /// The memory space: 0 is the device's main memory, 5 the host's.
    pub memory_space: u32,
    /// How many bits an element takes, if it differs from its type's.
    pub element_bits: Option<u16>,
}

impl Layout {
    /// Reads a layout with its braces, such as `{1,0:T(8,128)(2,1)S(5)}`. Unknown parts are
    /// ignored.
    pub fn read(text: &str) -> Layout {
        let inner = text.trim_start_matches('{').trim_end_matches('}');
        let (order, rest) = inner.split_once(':').unwrap_or((inner, ""));
        let mut layout = Layout {
            minor_to_major: order.split(',').filter_map(|part| part.trim().parse().ok()).collect(),
            ..Layout::default()
        };
        let mut property = "";
        let mut rest = rest;
        while let Some(open) = rest.find('(') {
            if !rest[..open].trim().is_empty() {
                property = rest[..open].trim();
            }
            let close = rest[open..].find(')').map_or(rest.len(), |close| open + close);
            let numbers = || {
                rest[open + 1..close].split(',').filter_map(|part| part.trim().parse::<u64>().ok())
            };
            match property {
                "T" => layout.tiles.push(numbers().collect()),
                "S" => layout.memory_space = numbers().next().map_or(0, |space| space as u32),
                "E" => {
                    layout.element_bits = numbers().next().map(|bits| bits.clamp(1, 1024) as u16)
                }
                _ => {}
            }
            rest = rest.get(close + 1..).unwrap_or("");
        }
        layout
    }
}

/// The device's memory, the scarce one.
pub const DEVICE_MEMORY: u32 = 0;
/// The memory of the host, which `S(5)` in a layout names.
pub const HOST_MEMORY: u32 = 5;

/// The size that absurdly large arrays count as, so that sums do not overflow: a pebibyte, which no
/// device has.
const LARGEST: i64 = 1 << 50;

/// No real program nests tuples deeper.
const DEEPEST: usize = 128;

impl Shape {
    /// Reads a shape.
    pub(super) fn parse(cursor: &mut TextCursor<'_>) -> Result<Shape, HloError> {
        Shape::parse_nested(cursor, 0)
    }

    fn parse_nested(cursor: &mut TextCursor<'_>, depth: usize) -> Result<Shape, HloError> {
        if cursor.peek() != Some(b'(') {
            return parse_plain(cursor, depth);
        }
        if depth >= DEEPEST {
            return Err(cursor.error(Problem::TooDeep { most: DEEPEST }));
        }
        cursor.at += 1;
        let mut parts = Vec::new();
        cursor.skip_space();
        if cursor.take(b')') {
            return Ok(Shape::Tuple(parts));
        }
        loop {
            parts.push(Shape::parse_nested(cursor, depth + 1)?);
            cursor.skip_space();
            if cursor.take(b')') {
                return Ok(Shape::Tuple(parts));
            }
            cursor.expect(b',', "',' or ')' in the tuple's shape")?;
            cursor.skip_space();
        }
    }

    /// The array, if it is one.
    pub fn array(&self) -> Option<&Array> {
        match self {
            Shape::Array(array) => Some(array),
            _ => None,
        }
    }

    /// The parts of a tuple; none for anything else.
    pub fn parts(&self) -> &[Shape] {
        match self {
            Shape::Tuple(parts) => parts,
            _ => &[],
        }
    }

    /// The shape at a path into tuples.
    pub fn at(&self, path: &[u32]) -> Option<&Shape> {
        path.iter().try_fold(self, |shape, &index| shape.parts().get(index as usize))
    }

    /// All leaves that are not tuples, in order.
    pub fn leaves<'a>(&'a self, into: &mut Vec<&'a Shape>) {
        match self {
            Shape::Tuple(parts) => parts.iter().for_each(|part| part.leaves(into)),
            leaf => into.push(leaf),
        }
    }

    /// How many leaves there are.
    pub fn leaf_count(&self) -> usize {
        match self {
            Shape::Tuple(parts) => parts.iter().map(Shape::leaf_count).sum(),
            _ => 1,
        }
    }
}

/// `f32[2,<=3]{1,0}`, `token[]`, `b(f32[2])`.
fn parse_plain(cursor: &mut TextCursor<'_>, depth: usize) -> Result<Shape, HloError> {
    let start = cursor.at;
    while cursor.peek().is_some_and(|byte| is_name(byte) && byte != b'.' && byte != b'-') {
        cursor.at += 1;
    }
    let name = &cursor.text[start..cursor.at];
    if name == "b" && cursor.peek() == Some(b'(') && depth < DEEPEST {
        cursor.at += 1;
        cursor.skip_space();
        let inner = Shape::parse_nested(cursor, depth + 1)?;
        cursor.skip_space();
        cursor.expect(b')', "')' after the buffer's shape")?;
        return Ok(inner);
    }
    let end = cursor.at;
    cursor.skip_space();
    if name.is_empty() || !cursor.take(b'[') {
        cursor.at = end;
        return Err(cursor.error_at(start, Problem::Expected("a shape such as f32[2,3]{1,0}")));
    }
    let (dims, dynamic) = parse_dims(cursor)?;
    match name {
        "token" => return Ok(Shape::Token),
        "opaque" => return Ok(Shape::Opaque),
        _ => {}
    }
    let element = ElementType::named(name);
    let layout = parse_layout(cursor)?;
    Ok(Shape::Array(Array { element, dims, dynamic, layout }))
}

/// `{1,0:T(8,128)}`, if it is there. A brace may also be that of a computation: a layout begins
/// with a number or a colon.
fn parse_layout(cursor: &mut TextCursor<'_>) -> Result<TextSpan, HloError> {
    let back = cursor.at;
    cursor.skip_space();
    let start = cursor.at;
    if cursor.take(b'{') {
        cursor.skip_space();
        if cursor.peek().is_some_and(|byte| byte.is_ascii_digit() || matches!(byte, b':' | b'}')) {
            cursor.skip(Until::Close(b'}'))?;
            cursor.at += 1;
            return Ok(TextSpan::new(start, cursor.at));
        }
    }
    cursor.at = back;
    Ok(TextSpan::default())
}

fn parse_dims(cursor: &mut TextCursor<'_>) -> Result<(Vec<u64>, bool), HloError> {
    let (mut dims, mut dynamic) = (Vec::new(), false);
    cursor.skip_space();
    if cursor.take(b']') {
        return Ok((dims, dynamic));
    }
    loop {
        if cursor.take(b'<') {
            cursor.expect(b'=', "'<=' before a dynamic dimension's bound")?;
            cursor.skip_space();
            dynamic = true;
        }
        match cursor.take(b'?') {
            true => {
                dynamic = true;
                dims.push(1);
            }
            false => dims.push(cursor.number()?),
        }
        let end = cursor.at;
        cursor.skip_space();
        if cursor.take(b']') {
            return Ok((dims, dynamic));
        }
        if !cursor.take(b',') {
            return Err(cursor.error_at(end, Problem::Expected("',' or ']' among the dimensions")));
        }
        cursor.skip_space();
    }
}

impl Array {
    /// The same with another extent of a dimension.
    pub(crate) fn with_extent(&self, dim: usize, extent: u64) -> Array {
        let mut array = self.clone();
        array.dims[dim] = extent;
        array
    }

    /// How many elements there are.
    pub fn elements(&self) -> u64 {
        self.dims.iter().fold(1, |product: u64, &dim| product.saturating_mul(dim))
    }

    /// How many bytes it takes, with the layout of the module's text: padded to whole tiles.
    pub fn size(&self, layout: &Layout) -> Bytes {
        let elements = match layout.tiles.first() {
            Some(tile) => self.filled_up(layout, tile),
            None => self.elements(),
        };
        // Types of less than a byte take one each, unless the layout packs them.
        let bits = layout.element_bits.unwrap_or(self.element.bits().next_multiple_of(8));
        let bytes = u128::from(elements) * u128::from(bits) / 8;
        Bytes(i64::try_from(bytes).unwrap_or(LARGEST).min(LARGEST))
    }

    /// Elements with the fastest dimensions filled up to whole tiles.
    fn filled_up(&self, layout: &Layout, tile: &[u64]) -> u64 {
        let fastest = |index: usize| {
            let dim = layout.minor_to_major.get(index)?;
            self.dims.get(*dim as usize).copied()
        };
        let rounded = |(index, &extent): (usize, &u64)| {
            fastest(index).unwrap_or(1).next_multiple_of(extent.max(1))
        };
        let in_tiles = tile.iter().rev().enumerate().map(rounded).fold(1, u64::saturating_mul);
        let slower = (tile.len()..self.dims.len()).filter_map(fastest);
        slower.fold(in_tiles, u64::saturating_mul)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn size(text: &str) -> i64 {
        let mut cursor = TextCursor::new(text);
        let shape = Shape::parse(&mut cursor).unwrap();
        assert!(cursor.is_at_end(), "{text}");
        let array = shape.array().unwrap();
        let layout = &text[array.layout.start as usize..array.layout.end as usize];
        array.size(&Layout::read(layout)).0
    }

    #[test]
    fn sizes_by_type_and_layout() {
        assert_eq!(size("f32[2,3]{1,0}"), 24);
        assert_eq!(size("bf16[]"), 2);
        assert_eq!(size("pred[7]"), 7);
        assert_eq!(size("s4[8]{0}"), 8);
        assert_eq!(size("s4[8]{0:E(4)}"), 4);
        assert_eq!(size("c128[2]"), 32);
        assert_eq!(size("s32[<=10,2]"), 80);
        assert_eq!(size("f6e3m2fn[4]"), 4);
        // Rows of 100 are filled up to 128, 3 of them to 8.
        assert_eq!(size("f32[3,100]{1,0:T(8,128)}"), 8 * 128 * 4);
        assert_eq!(size("f32[5,3,100]{2,1,0:T(8,128)S(1)}"), 5 * 8 * 128 * 4);
        assert_eq!(size("f32[100,3]{0,1:T(8,128)}"), 8 * 128 * 4);
        assert_eq!(size("u32[]{:T(128)}"), 512);
    }

    #[test]
    fn layouts() {
        let layout = Layout::read("{1,0:T(8,128)(2,1)S(5)}");
        assert_eq!(layout.minor_to_major, [1, 0]);
        assert_eq!(layout.tiles, [vec![8, 128], vec![2, 1]]);
        assert_eq!((layout.memory_space, layout.element_bits), (HOST_MEMORY, None));
        assert_eq!(Layout::read("{0:D(D)E(4)}").element_bits, Some(4));
        assert_eq!(Layout::read(""), Layout::default());
    }

    #[test]
    fn depth_is_bounded() {
        let deep = format!("{}f32[]{}", "(".repeat(100_000), ")".repeat(100_000));
        let error = Shape::parse(&mut TextCursor::new(&deep)).unwrap_err();
        assert_eq!(error.problem, Problem::TooDeep { most: DEEPEST });
        assert_eq!(error.column, DEEPEST + 1);
    }
}
