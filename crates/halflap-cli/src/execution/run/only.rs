//! `halflap run --only KERNEL`: one kernel or collective on its inputs from another run.

use std::fs;
use std::path::{Path, PathBuf};

use halflap_hlo::ids::InstrId;
use halflap_hlo::{Devices, Module};
use halflap_run::check::{Entry, RankValues, read_values};

use crate::args;
use crate::exit::Failed;
use crate::files;
use crate::place::Input;

/// A kernel, and the iteration of each enclosing loop whose values to take; the last if none is
/// given.
struct Launch<'a> {
    kernel: &'a str,
    iteration: Option<Vec<u32>>,
}

impl<'a> Launch<'a> {
    /// `add.5`, or `add.5@2.0`: iteration 2 of the outer loop, 0 of the inner one.
    fn read(text: &'a str) -> Launch<'a> {
        let numbers = |text: &str| {
            text.split('.').map(|number| number.parse().ok()).collect::<Option<Vec<u32>>>()
        };
        let split = text.rsplit_once('@').and_then(|(kernel, rest)| Some((kernel, numbers(rest)?)));
        match split {
            Some((kernel, iteration)) => Launch { kernel, iteration: Some(iteration) },
            None => Launch { kernel: text, iteration: None },
        }
    }
}

/// Makes a module of the kernel and runs that.
pub(super) fn run(args: &args::Run, asked: &str) -> Result<(), Failed> {
    let launch = Launch::read(asked);
    let kernel = launch.kernel;
    let place = args.module.name();
    let module = halflap_hlo::read_module(&files::read(&args.module)?)
        .map_err(|error| Failed::in_file(place, error))?;
    let mut all = module.computations().flat_map(|computation| module.instructions(computation));
    let instr: Option<InstrId> = all.find(|&instr| module.instruction_name(instr) == kernel);
    let instr = instr
        .ok_or_else(|| Failed::in_file(place, format!("there is no instruction '{kernel}'")))?;
    let folder = Folder::new()?;
    let path = folder.0.join("only.hlo.txt").display().to_string();
    let saved = args.inputs.as_ref().and_then(Input::path).unwrap_or("values");
    let ranks =
        read_values(Path::new(saved)).map_err(|error| Failed::BadInput(error.to_string()))?;
    let module = module.for_devices(u32::try_from(ranks.len()).unwrap_or(0)).unwrap_or(module);
    let devices = devices(&module, ranks.len()).ok_or_else(|| {
        let problem = format!(
            "has values of {} ranks, and the module has {}",
            ranks.len(),
            module.devices().count()
        );
        Failed::in_file(saved, problem)
    })?;
    files::put(&path, &halflap_hlo::alone(&module, instr, devices))?;
    for (rank, values) in ranks.iter().enumerate() {
        give(values, &launch, rank, &folder.0)?;
    }
    let mut alone = args.clone();
    alone.module = path.into();
    alone.inputs = Some(folder.0.display().to_string().into());
    alone.only = None;
    let partitions = module.devices().partitions;
    alone.stands_for =
        ranks.first().filter(|_| ranks.len() == 1).map(|values| (values.rank, partitions));
    alone.orders.input_order = true;
    super::run(&alone)
}

/// Replicas and partitions: the module's, or one of each for the values of one rank alone.
fn devices(module: &Module, ranks: usize) -> Option<Devices> {
    match ranks {
        1 => Some(Devices { replicas: 1, partitions: 1 }),
        _ => Some(module.devices()).filter(|devices| devices.count() == ranks as u64),
    }
}

/// Copies the inputs of the kernel's launch on a rank to where inputs are read from.
fn give(
    values: &RankValues,
    launch: &Launch<'_>,
    rank: usize,
    folder: &Path,
) -> Result<(), Failed> {
    let kernel = launch.kernel;
    let place = values.folder.display().to_string();
    let is_asked =
        |iteration: &[u32]| launch.iteration.as_deref().is_none_or(|asked| asked == iteration);
    let is_it = |entry: &&Entry| entry.kernel == kernel && is_asked(&entry.iteration);
    let taken = || values.entries.iter().filter(is_it).filter(|entry| entry.when == "before");
    let Some(last) = taken().next_back().map(|entry| entry.sequence) else {
        return match values.entries.iter().any(|entry| is_it(&entry)) {
            // A kernel that takes nothing.
            true => Ok(()),
            false => {
                Err(Failed::in_file(&place, format!("nothing was saved of kernel '{kernel}'")))
            }
        };
    };
    for (number, entry) in taken().filter(|entry| entry.sequence == last).enumerate() {
        let to = folder.join(format!("in_{number:03}_r{rank}.npy"));
        let copied = fs::copy(values.folder.join(&entry.file), &to);
        copied.map_err(|error| {
            Failed::in_file(&place, format!("{}: cannot be copied: {error}", entry.file))
        })?;
    }
    Ok(())
}

/// A temporary folder, removed on drop.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Result<Folder, Failed> {
        let path = std::env::temp_dir().join(format!("halflap-only.{}", std::process::id()));
        // A killed process with the same id may have left one behind.
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).map_err(|error| {
            Failed::in_file(&path.display().to_string(), format!("cannot be made: {error}"))
        })?;
        Ok(Folder(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // If removal fails, it stays in the temporary directory.
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_with_and_without_its_iteration() {
        let read = |text| {
            let launch = Launch::read(text);
            (launch.kernel, launch.iteration)
        };
        assert_eq!(read("add.5"), ("add.5", None));
        assert_eq!(read("add.5@2.0"), ("add.5", Some(vec![2, 0])));
        assert_eq!(read("odd@name"), ("odd@name", None));
    }
}
