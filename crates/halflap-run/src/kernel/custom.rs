//! Custom calls: functions of shared libraries that the user names.
//!
//! The signature is XLA's oldest one, `void f(void *out, const void **ins)`; with several results,
//! `out` is an array of pointers to them.

use std::ffi::c_void;
use std::path::Path;
use std::sync::Arc;

use libloading::Library;
use thiserror::Error;

use super::Buffers;
use super::error::Gap;
use super::formula::TermId;
use super::plan::{ArraySlot, KernelStage, Planner, Trouble};

type Function = unsafe extern "C" fn(out: *mut c_void, ins: *const *const c_void);

/// Shared libraries with the targets of custom calls.
#[derive(Clone, Debug, Default)]
pub struct Libraries {
    loaded: Vec<Arc<Library>>,
}

/// A library that could not be loaded.
#[derive(Debug, Error)]
#[error("the shared library '{path}' cannot be loaded: {reason}")]
pub struct LoadError {
    path: String,
    reason: String,
}

/// The system's message behind the error.
fn reason(error: &libloading::Error) -> String {
    std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string)
}

impl Libraries {
    /// Loads libraries. They are searched for targets in order.
    ///
    /// # Safety
    /// Loading a library runs its initialisers, and its functions are called by custom calls: they
    /// must have the signature above and access only the arrays that they are given.
    pub unsafe fn load(paths: &[&Path]) -> Result<Libraries, LoadError> {
        let load = |path: &&Path| {
            // SAFETY: the caller's promise.
            let library = unsafe { Library::new(*path) };
            library.map(Arc::new).map_err(|error| LoadError {
                path: path.display().to_string(),
                reason: reason(&error),
            })
        };
        Ok(Libraries { loaded: paths.iter().map(load).collect::<Result<_, _>>()? })
    }

    /// The same for libraries that the user named, and is therefore responsible for.
    pub fn load_trusted(paths: &[&Path]) -> Result<Libraries, LoadError> {
        // SAFETY: the library is the user's own code, run at the user's request.
        unsafe { Libraries::load(paths) }
    }

    fn find(&self, target: &str) -> Option<(Arc<Library>, Function)> {
        self.loaded.iter().find_map(|library| {
            // SAFETY: the caller that loaded the library promised that its targets are such
            // functions.
            let symbol = unsafe { library.get::<Function>(target.as_bytes()) };
            symbol.ok().map(|symbol| (library.clone(), *symbol))
        })
    }
}

struct Custom {
    function: Function,
    /// Keeps the library loaded.
    _library: Arc<Library>,
    ins: Vec<ArraySlot>,
    outs: Vec<ArraySlot>,
    is_tuple: bool,
}

pub(super) fn plan(
    planner: &mut Planner<'_>,
    id: TermId,
    target: &str,
) -> Result<ArraySlot, Trouble> {
    let found = planner.libraries.find(target);
    let (library, function) =
        found.ok_or_else(|| planner.fail(id, Gap::Target(target.to_owned())))?;
    let term = planner.formula.term(id);
    let ins = term.args.iter().map(|&arg| planner.make(arg)).collect::<Result<Vec<_>, _>>()?;
    let is_tuple = planner.part_count(id) > 0;
    let outs = match is_tuple {
        true => planner.part_targets(id, &planner.part_kinds(id)),
        false => vec![planner.target(id)],
    };
    let to = outs[0];
    planner.add(Custom { function, _library: library, ins, outs, is_tuple });
    Ok(to)
}

impl KernelStage for Custom {
    unsafe fn run(&self, buffers: &Buffers<'_>) {
        // SAFETY: local memory has room for all pointers; the caller that loaded the library
        // promised the rest.
        unsafe {
            let ins = buffers.local().cast::<*const c_void>();
            let outs = buffers.local().cast::<*mut c_void>().add(self.ins.len());
            self.ins
                .iter()
                .enumerate()
                .for_each(|(index, &slot)| *ins.add(index) = buffers.read(slot).cast());
            self.outs
                .iter()
                .enumerate()
                .for_each(|(index, &slot)| *outs.add(index) = buffers.write(slot).cast());
            (self.function)(if self.is_tuple { outs.cast() } else { *outs }, ins);
        }
    }

    fn local_bytes(&self) -> usize {
        (self.ins.len() + self.outs.len()) * size_of::<*const c_void>()
    }
}
