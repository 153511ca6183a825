//! Arrays in and out, by the names of ../shared/hlo's archives: `in_NNN_rK`, `out_NNN_rK`.

use std::borrow::Cow;
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};

use halflap_hlo::Module;
use halflap_run::exec::{Outcome, Prepared};
use halflap_run::kernel::ArrayType;
use halflap_run::tensor::{DType, NpyError, Npz, Tensor, read_npy, write_npz};

use crate::args;
use crate::exit::Failed;
use crate::files;
use crate::place::Output;

/// Where inputs come from.
pub(super) enum Inputs {
    Archive { path: String, bytes: Vec<u8> },
    Folder { path: PathBuf, names: Vec<String> },
    Seed(u64),
}

impl Inputs {
    pub(super) fn open(args: &args::Run) -> Result<Inputs, Failed> {
        let Some(input) = &args.inputs else { return Ok(Inputs::Seed(args.seed)) };
        let archive = |bytes: Cow<'_, [u8]>| {
            Ok(Inputs::Archive { path: input.name().to_owned(), bytes: bytes.into_owned() })
        };
        let Some(path) = input.path() else { return archive(files::read(input)?) };
        let cannot =
            |error: std::io::Error| Failed::in_file(path, format!("cannot be read: {error}"));
        if !fs::metadata(path).map_err(cannot)?.is_dir() {
            return archive(files::read(input)?);
        }
        let mut names = Vec::new();
        for entry in fs::read_dir(path).map_err(cannot)? {
            let name = entry.map_err(cannot)?.file_name().to_string_lossy().into_owned();
            names.extend(name.strip_suffix(".npy").map(str::to_owned));
        }
        names.sort();
        Ok(Inputs::Folder { path: PathBuf::from(path), names })
    }

    /// What every rank gets.
    pub(super) fn all(&self, program: &Prepared) -> Result<Vec<Vec<Tensor>>, Failed> {
        self.check_names(program)?;
        (0..program.ranks).map(|rank| self.of(program, rank)).collect()
    }

    /// What one rank gets.
    pub(super) fn of(&self, program: &Prepared, rank: usize) -> Result<Vec<Tensor>, Failed> {
        let problem = |problem: String| Failed::in_file(self.place(), problem);
        self.each(program, rank)?.into_iter().map(|array| array.map_err(problem)).collect()
    }

    /// All problems with the inputs of some ranks.
    pub(super) fn check(&self, program: &Prepared, ranks: Range<usize>) -> Result<(), Failed> {
        let mut problems: Vec<String> =
            self.check_names(program).err().iter().map(Failed::problem).collect();
        for rank in ranks {
            problems.extend(self.each(program, rank)?.into_iter().filter_map(Result::err));
        }
        match problems.len() {
            0 => Ok(()),
            number => {
                let lines: String =
                    problems.iter().map(|problem| format!("\n  {problem}")).collect();
                let what = if number == 1 {
                    "1 input is".to_owned()
                } else {
                    format!("{number} inputs are")
                };
                Err(Failed::in_file(
                    self.place(),
                    format!("{what} not what the module expects:{lines}"),
                ))
            }
        }
    }

    /// Every array of a rank, or what is wrong with it.
    fn each(&self, program: &Prepared, rank: usize) -> Result<Vec<Result<Tensor, String>>, Failed> {
        let opened = match self {
            Inputs::Archive { path, bytes } => {
                Some(Npz::read(bytes).map_err(|error| Failed::in_file(path, error))?)
            }
            _ => None,
        };
        let read = |(number, kind): (usize, &ArrayType)| {
            let name = format!("in_{number:03}_r{rank}");
            let array = match (self, &opened) {
                (Inputs::Folder { path, .. }, _) => read_file(&path.join(format!("{name}.npy")))?,
                (_, Some(archive)) => archive.get(&name).map_err(|error| match error {
                    NpyError::Missing(_) => error.to_string(),
                    error => format!("'{name}': {error}"),
                })?,
                (Inputs::Seed(seed), _) => made(kind, seed.wrapping_add(number as u64)),
                (Inputs::Archive { .. }, None) => return Err(format!("'{name}' cannot be read")),
            };
            let array = in_small_type(array, kind);
            match misfit(&array, kind) {
                None => Ok(array),
                Some(hint) => {
                    let of = &program.input_names[number];
                    Err(format!(
                        "'{name}' is {array:?}, and the module's parameter {number} ('{of}') is \
                         {}{hint}",
                        words(kind)
                    ))
                }
            }
        };
        Ok(program.inputs.iter().enumerate().map(read).collect())
    }

    fn place(&self) -> &str {
        match self {
            Inputs::Archive { path, .. } => path,
            Inputs::Folder { path, .. } => path.to_str().unwrap_or("--inputs"),
            Inputs::Seed(_) => "--seed",
        }
    }

    /// Unused inputs belong to another module.
    pub(super) fn check_names(&self, program: &Prepared) -> Result<(), Failed> {
        let names: Vec<String> = match self {
            Inputs::Archive { path, bytes } => {
                let archive = Npz::read(bytes).map_err(|error| Failed::in_file(path, error))?;
                archive.names().map(str::to_owned).collect()
            }
            Inputs::Folder { names, .. } => names.clone(),
            Inputs::Seed(_) => return Ok(()),
        };
        let is_taken = |name: &str| {
            let Some((number, rank)) =
                name.strip_prefix("in_").and_then(|rest| rest.split_once("_r"))
            else {
                return true;
            };
            let is_below =
                |text: &str, limit: usize| text.parse::<usize>().is_ok_and(|number| number < limit);
            is_below(number, program.inputs.len()) && is_below(rank, program.ranks)
        };
        match names.iter().find(|name| !is_taken(name)) {
            None => Ok(()),
            Some(name) => {
                let (inputs, ranks) = (program.inputs.len(), program.ranks);
                let problem = format!(
                    "there is '{name}', and the module has {inputs} parameters on {ranks} ranks"
                );
                Err(Failed::in_file(self.place(), problem))
            }
        }
    }
}

fn words(kind: &ArrayType) -> String {
    format!("{}{:?}", kind.dtype, kind.dims)
}

fn read_file(path: &Path) -> Result<Tensor, String> {
    let name = path.file_name().map_or(String::new(), |name| name.to_string_lossy().into_owned());
    files::note_input(path);
    let bytes = fs::read(path).map_err(|error| format!("{name} cannot be read: {error}"))?;
    read_npy(&bytes).map_err(|error| format!("{name}: {error}"))
}

/// An array of bytes as one of a type that numpy does not have, if that is what the module takes.
fn in_small_type(array: Tensor, kind: &ArrayType) -> Tensor {
    let wrapped = |byte: u8| match kind.dtype {
        DType::Tiny(tiny) => tiny.wrap(byte),
        _ => byte,
    };
    let is_raw = matches!(array.dtype(), DType::U8 | DType::S8);
    if !is_raw || !matches!(kind.dtype, DType::Mini(_) | DType::Tiny(_)) {
        return array;
    }
    let mut small = Tensor::zeros(kind.dtype, array.dims());
    let bytes = small.bytes_mut().iter_mut().zip(array.bytes());
    bytes.for_each(|(to, &byte)| *to = wrapped(byte));
    small
}

/// Why an array does not match the module; `None` if it does.
fn misfit(array: &Tensor, kind: &ArrayType) -> Option<&'static str> {
    let sorted = |dims: &[usize]| {
        let mut dims = dims.to_vec();
        dims.sort_unstable();
        dims
    };
    if array.dtype() == kind.dtype && array.dims() == kind.dims {
        return None;
    }
    Some(match () {
        () if array.dtype() == kind.dtype && sorted(array.dims()) == sorted(&kind.dims) => {
            ": the same dimensions in another layout; give them in the order of the module's \
             shape"
        }
        () if array.dims() == kind.dims => ": the same shape with another type",
        () => "",
    })
}

/// The maximum number of ranks in one process: each has several threads, and systems have limits.
const MOST_RANKS: u64 = 4096;

/// More ranks than can be threads of one process.
pub(crate) fn check_ranks(module: &Module, name: &str) -> Result<(), Failed> {
    match module.devices().count() {
        ranks if ranks > MOST_RANKS => Err(Failed::in_file(
            name,
            format!(
                "it is for {ranks} ranks (replicas times partitions); as threads of one process \
                 there can be at most {MOST_RANKS}"
            ),
        )),
        _ => Ok(()),
    }
}

/// Inputs and outputs of every rank are in memory twice; an array that is too large is reported
/// before anything is allocated.
pub(crate) fn check_memory(program: &Prepared, module: &str) -> Result<(), Failed> {
    let inputs = program.inputs.iter().zip(&program.input_names);
    let inputs = inputs.map(|(kind, name)| (kind, format!("parameter '{name}'")));
    let outputs =
        program.outputs.iter().enumerate().map(|(number, kind)| (kind, format!("result {number}")));
    for (kind, name) in inputs.chain(outputs) {
        if Vec::<u8>::new().try_reserve_exact(kind.bytes()).is_err() {
            let problem =
                format!("{name}: out of memory for {}, {} bytes", words(kind), kind.bytes());
            return Err(Failed::in_file(module, problem));
        }
    }
    Ok(())
}

/// Generated inputs of a rank. With seed 0 they are the same on all ranks; with others, floats
/// differ from rank to rank. Integers decide control flow, so they never differ.
pub(crate) fn made_for(program: &Prepared, seed: u64, rank: usize) -> Vec<Tensor> {
    let each = |(number, kind): (usize, &ArrayType)| {
        let is_float = matches!(
            kind.dtype,
            DType::F32 | DType::F64 | DType::F16 | DType::Bf16 | DType::C64 | DType::C128
        );
        let of_rank = if is_float && seed > 0 { rank as u64 } else { 0 };
        made(kind, (seed << 32 | of_rank << 20).wrapping_add(number as u64))
    };
    program.inputs.iter().enumerate().map(each).collect()
}

/// A generated input, the same on all ranks: floats from -0.5 to 0.5, integers from 0 to 7, which
/// are valid indices for most arrays.
fn made(kind: &ArrayType, seed: u64) -> Tensor {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x2545_f491_4f6c_dd1d;
    let mut next = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as u32
    };
    let mut array = Tensor::zeros(kind.dtype, &kind.dims);
    let size = kind.dtype.size();
    for element in array.bytes_mut().chunks_exact_mut(size) {
        let number = next();
        let unit = number as f32 / (1 << 24) as f32 - 0.5;
        match kind.dtype {
            DType::F32 | DType::C64 => element[..4].copy_from_slice(&unit.to_le_bytes()),
            DType::F64 | DType::C128 => {
                element[..8].copy_from_slice(&f64::from(unit).to_le_bytes())
            }
            // The upper half of an f32 is a bf16.
            DType::Bf16 => element.copy_from_slice(&unit.to_le_bytes()[2..]),
            // An exponent of -2, a random sign, and seven of ten mantissa bits: from 0.25 to 0.5.
            DType::F16 => {
                element.copy_from_slice(&(0x3400u16 | (number as u16 & 0x83ff)).to_le_bytes())
            }
            DType::Mini(mini) => element[0] = mini.encode(unit),
            DType::Tiny(tiny) => element[0] = tiny.wrap(number as u8 & 7),
            DType::Pred => element[0] = number as u8 & 1,
            _ => element[0] = number as u8 & 7,
        }
    }
    array
}

/// Writes the outputs of every rank.
pub(super) fn write(to: &Output, outcome: &Outcome) -> Result<(), Failed> {
    let mut arrays = Vec::new();
    for (rank, of) in outcome.ranks.iter().enumerate() {
        let named = of.outputs.iter().enumerate();
        arrays.extend(
            named.map(|(number, array)| (format!("out_{number:03}_r{rank}"), array.clone())),
        );
    }
    arrays.sort_by(|(a, _), (b, _)| a.cmp(b));
    files::write_to(to, |out| out.write_all(&write_npz(&arrays)))
}
