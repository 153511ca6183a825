//! Attributes, parsed on demand.

use serde_json::Value;

use super::groups::{ReplicaGroups, WrittenDevice, as_written, message_pairs};
use super::lex::TextSpan;
use super::lex::numbers_in;
use super::{Module, Opcode};
use crate::ids::{ComputationId, InstrId};

/// `key=value`, verbatim.
#[derive(Clone, Copy, Debug)]
pub struct Attribute {
    pub(super) key: TextSpan,
    pub(super) value: TextSpan,
}

/// Where a slice starts and ends in a dimension, and its stride.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct SliceDim {
    pub start: u64,
    pub limit: u64,
    pub stride: u64,
}

/// A window that moves over an array: of a convolution or of a reduction.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MovingWindow {
    /// One for each dimension that it moves over.
    pub dims: Vec<WindowDim>,
}

/// A window in one dimension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct WindowDim {
    pub size: u64,
    pub stride: u64,
    pub pad_low: i64,
    pub pad_high: i64,
    pub lhs_dilate: u64,
    pub rhs_dilate: u64,
    pub reversed: bool,
}

/// The role of each dimension of a convolution: of the input, the kernel and the output. Spatial
/// dimensions are in the window's order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct ConvDims {
    pub input_batch: usize,
    pub input_feature: usize,
    pub input_spatial: Vec<usize>,
    pub kernel_input: usize,
    pub kernel_output: usize,
    pub kernel_spatial: Vec<usize>,
    pub output_batch: usize,
    pub output_feature: usize,
    pub output_spatial: Vec<usize>,
}

/// An output that shares its memory with an input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Alias {
    /// The element of the output.
    pub output: Vec<u32>,
    /// The number of the parameter or operand.
    pub parameter: usize,
    /// The element of it.
    pub path: Vec<u32>,
    /// Whether the alias is optional (`may-alias`), if the caller does not donate the input.
    pub may: bool,
}

impl Module {
    /// The value of an attribute, verbatim.
    pub fn attribute(&self, instr: InstrId, key: &str) -> Option<&str> {
        self.find_attribute(&self.instructions[instr].attributes, key)
    }

    /// All attributes of an instruction, in text order.
    pub fn attributes(&self, instr: InstrId) -> impl Iterator<Item = (&str, &str)> {
        let range = &self.instructions[instr].attributes;
        let attributes = &self.all_attributes[range.start as usize..range.end as usize];
        attributes.iter().map(|attribute| (self.str(attribute.key), self.str(attribute.value)))
    }

    /// The integers in an attribute: `dimensions={0,2}`, `index=1`, `padding=0_1x2_3`; empty if
    /// there are none.
    pub fn numbers(&self, instr: InstrId, key: &str) -> Vec<i64> {
        self.attribute(instr, key).map_or(Vec::new(), numbers_in)
    }

    /// A parameter's number.
    pub fn parameter_number(&self, instr: InstrId) -> Option<usize> {
        match self.instructions[instr].opcode {
            Opcode::Parameter => self.payload(instr).trim().parse().ok(),
            _ => None,
        }
    }

    /// Which element a get-tuple-element takes.
    pub fn tuple_index(&self, instr: InstrId) -> Option<u32> {
        match self.instructions[instr].opcode {
            Opcode::GetTupleElement => self.attribute(instr, "index")?.trim().parse().ok(),
            _ => None,
        }
    }

    /// The computation that an attribute names.
    pub fn computation_in(&self, instr: InstrId, key: &str) -> Option<ComputationId> {
        self.find(self.attribute(instr, key)?.trim_start_matches('%'))
    }

    /// What a slice takes of each dimension.
    pub fn slice_dims(&self, instr: InstrId) -> Vec<SliceDim> {
        let text = self.attribute(instr, "slice").unwrap_or("");
        let dim = |text: &str| {
            let mut numbers = text.split(':').map(|part| part.trim().parse::<u64>().ok());
            let (start, limit) = (numbers.next()??, numbers.next()??);
            Some(SliceDim { start, limit, stride: numbers.next().flatten().unwrap_or(1) })
        };
        text.split('[').skip(1).filter_map(|part| dim(part.split(']').next()?)).collect()
    }

    /// The window of a convolution or a reduction.
    pub fn window(&self, instr: InstrId) -> MovingWindow {
        self.attribute(instr, "window").map_or(MovingWindow::default(), read_window)
    }

    /// What the dimensions of a convolution are.
    pub fn conv_dims(&self, instr: InstrId) -> Option<ConvDims> {
        read_conv_dims(self.attribute(instr, "dim_labels")?)
    }

    /// The participants of a collective.
    pub fn replica_groups(&self, instr: InstrId) -> ReplicaGroups {
        ReplicaGroups::of(self, instr)
    }

    /// How the groups of a collective write a device, which may not exist.
    pub(crate) fn written_device(&self, instr: InstrId, device: u64) -> WrittenDevice {
        as_written(self, instr, device)
    }

    /// The sources and targets of a send's or recv's messages; `None` if it does not say.
    pub fn message_pairs(&self, instr: InstrId) -> Option<Vec<(u32, u32)>> {
        message_pairs(self, instr)
    }

    /// Which outputs of the module share memory with inputs.
    pub fn input_output_alias(&self) -> Vec<Alias> {
        self.module_attribute("input_output_alias").map_or(Vec::new(), read_aliases)
    }

    /// Which outputs of an instruction share memory with its operands.
    pub fn output_to_operand_aliasing(&self, instr: InstrId) -> Vec<Alias> {
        self.attribute(instr, "output_to_operand_aliasing").map_or(Vec::new(), read_aliases)
    }

    /// The backend's configuration if it is JSON, raw or in quotes.
    pub fn backend_config(&self, instr: InstrId) -> Option<Value> {
        let text = self.attribute(instr, "backend_config")?;
        match text.strip_prefix('"').and_then(|text| text.strip_suffix('"')) {
            Some(quoted) => serde_json::from_str(&unescape(quoted)).ok(),
            None => serde_json::from_str(text).ok(),
        }
    }
}

/// Backslash escapes removed.
pub(super) fn unescape(text: &str) -> String {
    let mut letters = text.chars();
    let mut plain = String::with_capacity(text.len());
    while let Some(letter) = letters.next() {
        match letter {
            '\\' => match letters.next() {
                Some('n') => plain.push('\n'),
                Some('t') => plain.push('\t'),
                other => plain.extend(other),
            },
            letter => plain.push(letter),
        }
    }
    plain
}

fn read_window(text: &str) -> MovingWindow {
    let mut window = MovingWindow::default();
    for field in text.trim_matches(['{', '}']).split_whitespace() {
        let Some((key, value)) = field.split_once('=') else { continue };
        for (index, part) in value.split('x').enumerate() {
            let dim = WindowDim {
                size: 1,
                stride: 1,
                pad_low: 0,
                pad_high: 0,
                lhs_dilate: 1,
                rhs_dilate: 1,
                reversed: false,
            };
            if index == window.dims.len() {
                window.dims.push(dim);
            }
            set_window_field(&mut window.dims[index], key, part);
        }
    }
    window
}

fn set_window_field(dim: &mut WindowDim, key: &str, text: &str) {
    let number = || text.parse::<u64>().ok().map_or(1, |number| number.max(1));
    match key {
        "size" => dim.size = number(),
        "stride" => dim.stride = number(),
        "lhs_dilate" => dim.lhs_dilate = number(),
        "rhs_dilate" => dim.rhs_dilate = number(),
        "rhs_reversal" => dim.reversed = text == "1",
        "pad" => {
            let mut sides = text.split('_').map(|side| side.parse().unwrap_or(0));
            (dim.pad_low, dim.pad_high) = (sides.next().unwrap_or(0), sides.next().unwrap_or(0));
        }
        _ => {}
    }
}

/// `b01f_01io->b01f`: the input's, the kernel's and the output's dimensions.
fn read_conv_dims(text: &str) -> Option<ConvDims> {
    let (inputs, output) = text.split_once("->")?;
    let (input, kernel) = inputs.split_once('_')?;
    let place = |labels: &str, label: char| labels.chars().position(|other| other == label);
    let spatial = |labels: &str| -> Option<Vec<usize>> {
        let count = labels.chars().filter(char::is_ascii_digit).count() as u32;
        (0..count).map(|number| place(labels, char::from_digit(number, 10)?)).collect()
    };
    Some(ConvDims {
        input_batch: place(input, 'b')?,
        input_feature: place(input, 'f')?,
        input_spatial: spatial(input)?,
        kernel_input: place(kernel, 'i')?,
        kernel_output: place(kernel, 'o')?,
        kernel_spatial: spatial(kernel)?,
        output_batch: place(output, 'b')?,
        output_feature: place(output, 'f')?,
        output_spatial: spatial(output)?,
    })
}

/// `{ {0}: (1, {}, may-alias), {2, 0}: (3, {1}) }`.
fn read_aliases(text: &str) -> Vec<Alias> {
    let indices = |text: &str| -> Vec<u32> {
        numbers_in(text).into_iter().filter_map(|number| u32::try_from(number).ok()).collect()
    };
    let alias = |(output, input): (&str, &str)| {
        let output = output.rsplit('{').next()?;
        let inner = input.trim_start().strip_prefix('(')?;
        let (parameter, rest) = inner.split_once(',').unwrap_or((inner, ""));
        let path = rest.split('{').nth(1).and_then(|rest| rest.split('}').next()).unwrap_or("");
        Some(Alias {
            output: indices(output),
            parameter: parameter.trim().parse().ok()?,
            path: indices(path),
            may: !rest.split(')').next().unwrap_or("").contains("must-alias"),
        })
    };
    let pieces: Vec<&str> = text.split("}:").collect();
    pieces.windows(2).filter_map(|pair| alias((pair[0], pair[1]))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aliases() {
        let read = read_aliases(
            "{ {0}: (1, {}, may-alias), {2, 1}: (3, {0,1}, must-alias), {}: (4, {}) }",
        );
        let alias = |output: &[u32], parameter, path: &[u32], may| Alias {
            output: output.to_vec(),
            parameter,
            path: path.to_vec(),
            may,
        };
        assert_eq!(
            read,
            [
                alias(&[0], 1, &[], true),
                alias(&[2, 1], 3, &[0, 1], false),
                alias(&[], 4, &[], true)
            ]
        );
    }

    #[test]
    fn windows_and_labels() {
        let window =
            read_window("{size=3x2 stride=1x15 pad=1_2x-1_0 lhs_dilate=2x16 rhs_reversal=0x1}");
        let [first, second] = window.dims[..] else { panic!() };
        assert_eq!((first.size, first.pad_low, first.pad_high, first.lhs_dilate), (3, 1, 2, 2));
        assert_eq!((second.stride, second.pad_low, second.reversed), (15, -1, true));
        let dims = read_conv_dims("3f01b2_2o3i01->01b2f3").unwrap();
        assert_eq!(
            (dims.input_batch, dims.input_feature, dims.kernel_input, dims.kernel_output),
            (4, 1, 3, 1)
        );
        assert_eq!(dims.input_spatial, [2, 3, 5, 0]);
        assert_eq!(dims.output_spatial, [0, 1, 3, 5]);
    }

    #[test]
    fn escapes() {
        assert_eq!(unescape(r#"{\"n\":\"a\\b\"}"#), r#"{"n":"a\b"}"#);
        assert_eq!(numbers_in("{1,-2}x3_4"), [1, -2, 3, 4]);
    }
}
