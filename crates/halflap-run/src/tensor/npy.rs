//! `.npy` and `.npz`: numpy's arrays and archives of them.
//!
//! numpy has no bf16: `ml_dtypes` writes it as raw two-byte elements (`V2`), which are read as
//! bf16; bf16 is written the same way. It writes all its smaller types as raw bytes (`V1`), so here
//! they are written as records with one field named after the type; raw bytes are read as u8.

use halflap_hlo::ElementType;
use thiserror::Error;

use super::zip::{self, ArchiveMember};
use super::{DType, Tensor, element_count};

/// Why bytes are not a numpy array.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[allow(missing_docs)]
pub enum NpyError {
    #[error("this is not a .npy file: it does not start like one")]
    Magic,
    #[error("the .npy file's header cannot be read: {0}")]
    Header(String),
    #[error("the .npy file's elements are '{0}', which is not supported")]
    Type(String),
    #[error("the .npy file's header asks for {expected} bytes, but there are {given}")]
    Size { expected: usize, given: usize },
    #[error("this .npz file cannot be read: {0}")]
    Archive(&'static str),
    #[error("this .npz file is damaged: '{0}' is not what was written")]
    Member(String),
    #[error("the .npz file has no array '{0}'")]
    Missing(String),
}

/// An archive of arrays, each read on demand.
pub struct Npz<'a> {
    bytes: &'a [u8],
    members: Vec<ArchiveMember>,
}

impl<'a> Npz<'a> {
    /// Reads the archive's directory.
    pub fn read(bytes: &'a [u8]) -> Result<Npz<'a>, NpyError> {
        Ok(Npz { bytes, members: zip::members(bytes)? })
    }

    /// The names of the arrays, in the archive's sequence.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.members.iter().map(|member| member.name.strip_suffix(".npy").unwrap_or(&member.name))
    }

    /// The array of a name.
    pub fn get(&self, name: &str) -> Result<Tensor, NpyError> {
        let place = self.names().position(|other| other == name);
        let place = place.ok_or_else(|| NpyError::Missing(name.to_owned()))?;
        read_npy(&zip::unpack(self.bytes, &self.members[place])?)
    }
}

/// An archive of arrays.
pub fn write_npz(arrays: &[(String, Tensor)]) -> Vec<u8> {
    let members: Vec<_> =
        arrays.iter().map(|(name, array)| (format!("{name}.npy"), write_npy(array))).collect();
    zip::pack(&members)
}

const MAGIC: &[u8; 6] = b"\x93NUMPY";

/// Reads an array.
pub fn read_npy(bytes: &[u8]) -> Result<Tensor, NpyError> {
    let rest = bytes.strip_prefix(MAGIC).ok_or(NpyError::Magic)?;
    let (header, data) = match rest {
        [1, _, a, b, rest @ ..] => rest.split_at_checked(usize::from(u16::from_le_bytes([*a, *b]))),
        [_, _, a, b, c, d, rest @ ..] => {
            rest.split_at_checked(u32::from_le_bytes([*a, *b, *c, *d]) as usize)
        }
        _ => None,
    }
    .ok_or(NpyError::Magic)?;
    let header = String::from_utf8_lossy(header);
    let bad = || NpyError::Header(header.trim().to_owned());
    let descr =
        value(&header, "descr").and_then(|text| text.split(['\'', '"']).nth(1)).ok_or_else(bad)?;
    let dtype = read_type(descr)?;
    let is_fortran = value(&header, "fortran_order").ok_or_else(bad)?.starts_with("True");
    let shape = value(&header, "shape")
        .and_then(|text| text.strip_prefix('(')?.split(')').next())
        .ok_or_else(bad)?;
    let extents = shape.split(',').map(str::trim).filter(|part| !part.is_empty());
    let mut dims =
        extents.map(|part| part.parse().ok()).collect::<Option<Vec<usize>>>().ok_or_else(bad)?;
    let size =
        dims.iter().try_fold(dtype.size(), |size, &dim| size.checked_mul(dim)).ok_or_else(bad)?;
    let data = data.get(..size).ok_or(NpyError::Size { expected: size, given: data.len() })?;
    if is_fortran {
        dims.reverse();
    }
    let mut tensor = Tensor::zeros(dtype, &dims);
    tensor.bytes_mut().copy_from_slice(data);
    Ok(if is_fortran { reversed(&tensor) } else { tensor })
}

/// Writes an array.
pub fn write_npy(array: &Tensor) -> Vec<u8> {
    let dims: Vec<String> = array.dims().iter().map(|dim| format!("{dim},")).collect();
    let (descr, shape) = (write_type(array.dtype()), dims.join(" "));
    let mut header = format!("{{'descr': {descr}, 'fortran_order': False, 'shape': ({shape}), }}");
    // The elements start at a multiple of 64.
    let padded = (header.len() + 11).next_multiple_of(64) - 10;
    header.push_str(&" ".repeat(padded - header.len() - 1));
    header.push('\n');
    let mut bytes = MAGIC.to_vec();
    bytes.extend([1, 0]);
    bytes.extend((header.len() as u16).to_le_bytes());
    bytes.extend(header.bytes());
    bytes.extend(array.bytes());
    bytes
}

/// What follows a key of the header.
fn value<'h>(header: &'h str, key: &str) -> Option<&'h str> {
    let (_, rest) = header.split_once(&format!("'{key}'"))?;
    Some(rest.trim_start().strip_prefix(':')?.trim_start())
}

const TYPES: [(&str, DType); 15] = [
    ("b1", DType::Pred),
    ("i1", DType::S8),
    ("i2", DType::S16),
    ("i4", DType::S32),
    ("i8", DType::S64),
    ("u1", DType::U8),
    ("u2", DType::U16),
    ("u4", DType::U32),
    ("u8", DType::U64),
    ("f2", DType::F16),
    ("V2", DType::Bf16),
    ("f4", DType::F32),
    ("f8", DType::F64),
    ("c8", DType::C64),
    ("c16", DType::C128),
];

fn read_type(descr: &str) -> Result<DType, NpyError> {
    if let Some(small) = DType::of(ElementType::named(descr)).filter(is_small) {
        return Ok(small);
    }
    let (order, name) = descr.split_at_checked(1).unwrap_or((descr, ""));
    if name == "V1" {
        return Ok(DType::U8);
    }
    let found = TYPES.iter().find(|(other, _)| *other == name).map(|&(_, dtype)| dtype);
    let is_native =
        matches!(order, "<" | "|" | "=") || found.is_some_and(|dtype| dtype.size() == 1);
    found.filter(|_| is_native).ok_or_else(|| NpyError::Type(descr.to_owned()))
}

/// Whether the type has no name in numpy.
fn is_small(dtype: &DType) -> bool {
    matches!(dtype, DType::Mini(_) | DType::Tiny(_))
}

fn write_type(dtype: DType) -> String {
    match dtype {
        DType::Mini(_) => return format!("[('{dtype}', '|V1')]"),
        DType::Tiny(tiny) => {
            let of = if tiny.is_signed() { 'i' } else { 'u' };
            return format!("[('{dtype}', '|{of}1')]");
        }
        _ => {}
    }
    let name = TYPES.iter().find(|(_, other)| *other == dtype).map_or("V1", |(name, _)| name);
    format!("'{}{name}'", if dtype.size() == 1 { '|' } else { '<' })
}

/// With the dimensions reversed.
fn reversed(tensor: &Tensor) -> Tensor {
    let (from, size) = (tensor.dims(), tensor.dtype().size());
    let dims: Vec<usize> = from.iter().rev().copied().collect();
    let mut out = Tensor::zeros(tensor.dtype(), &dims);
    let mut index = vec![0; dims.len()];
    for place in 0..element_count(&dims) {
        let source = index.iter().rev().zip(from).fold(0, |at, (&i, &dim)| at * dim + i);
        out.bytes_mut()[place * size..][..size]
            .copy_from_slice(&tensor.bytes()[source * size..][..size]);
        for (i, &dim) in index.iter_mut().zip(&dims).rev() {
            *i += 1;
            if *i < dim {
                break;
            }
            *i = 0;
        }
    }
    out
}
