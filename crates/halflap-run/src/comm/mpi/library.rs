//! The MPI functions that are needed, loaded from Open MPI's library on demand.
//!
//! Nothing is linked: without MPI everything else builds and runs. Open MPI's handles are addresses
//! of objects in the library (`ompi_mpi_comm_world`), which other implementations do not have; this
//! is how they are recognised and refused.

use std::error::Error;
use std::ffi::{c_char, c_int, c_void};
use std::ptr;

use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};

use crate::failure::Failure;
use crate::tensor::DType;
use halflap_hlo::Opcode;

/// A communicator, a type, an operation or a request: an address.
pub(super) type Handle = *mut c_void;

/// Where the library may be.
const NAMES: [&str; 4] = ["libmpi.so.40", "libmpi.so", "libmpi.so.20", "libmpi.so.12"];

/// The thread level for `MPI_Init_thread`: any thread may call at any time.
pub(super) const THREAD_MULTIPLE: c_int = 3;
/// A rank that is in none of a split's communicators.
pub(super) const UNDEFINED: c_int = -32766;
pub(super) const ANY_SOURCE: c_int = -1;
pub(super) const IN_PLACE: *const c_void = ptr::without_provenance(1);

/// Open MPI's status of a message.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct MpiStatus {
    pub(super) source: c_int,
    pub(super) tag: c_int,
    error: c_int,
    cancelled: c_int,
    pub(super) bytes: usize,
}

macro_rules! functions {
    ($($name:ident = $symbol:literal ($($arg:ty),*);)*) => {
        /// MPI's functions.
        pub(super) struct Functions {
            $(pub(super) $name: unsafe extern "C" fn($($arg),*) -> c_int,)*
        }

        impl Functions {
            /// # Safety
            /// The library must be an MPI's, whose functions have these signatures.
            unsafe fn find(library: &Library) -> Result<Functions, libloading::Error> {
                // SAFETY: the caller's promise; the signatures are those of the MPI standard.
                unsafe { Ok(Functions { $($name: *library.get($symbol)?,)* }) }
            }
        }
    };
}

type ArgvPointer = *mut *mut *mut c_char;

functions! {
    init_thread = b"MPI_Init_thread" (*mut c_int, ArgvPointer, c_int, *mut c_int);
    finalize = b"MPI_Finalize" ();
    abort = b"MPI_Abort" (Handle, c_int);
    rank = b"MPI_Comm_rank" (Handle, *mut c_int);
    size = b"MPI_Comm_size" (Handle, *mut c_int);
    split = b"MPI_Comm_split" (Handle, c_int, c_int, *mut Handle);
    dup = b"MPI_Comm_dup" (Handle, *mut Handle);
    set_errhandler = b"MPI_Comm_set_errhandler" (Handle, Handle);
    error_string = b"MPI_Error_string" (c_int, *mut c_char, *mut c_int);
    bcast = b"MPI_Bcast" (*mut c_void, c_int, Handle, c_int, Handle);
    allgather = b"MPI_Allgather" (*const c_void, c_int, Handle, *mut c_void, c_int, Handle, Handle);
    send = b"MPI_Send" (*const c_void, c_int, Handle, c_int, c_int, Handle);
    recv = b"MPI_Recv" (*mut c_void, c_int, Handle, c_int, c_int, Handle, *mut MpiStatus);
    isend = b"MPI_Isend" (*const c_void, c_int, Handle, c_int, c_int, Handle, *mut Handle);
    irecv = b"MPI_Irecv" (*mut c_void, c_int, Handle, c_int, c_int, Handle, *mut Handle);
    iprobe = b"MPI_Iprobe" (c_int, c_int, Handle, *mut c_int, *mut MpiStatus);
    test = b"MPI_Test" (*mut Handle, *mut c_int, *mut MpiStatus);
    ibarrier = b"MPI_Ibarrier" (Handle, *mut Handle);
    ibcast = b"MPI_Ibcast" (*mut c_void, c_int, Handle, c_int, Handle, *mut Handle);
    iallreduce = b"MPI_Iallreduce" (*const c_void, *mut c_void, c_int, Handle, Handle, Handle, *mut Handle);
    iallgather = b"MPI_Iallgather" (*const c_void, c_int, Handle, *mut c_void, c_int, Handle, Handle, *mut Handle);
    ialltoall = b"MPI_Ialltoall" (*const c_void, c_int, Handle, *mut c_void, c_int, Handle, Handle, *mut Handle);
    ireduce_scatter_block = b"MPI_Ireduce_scatter_block"
        (*const c_void, *mut c_void, c_int, Handle, Handle, Handle, *mut Handle);
}

/// A loaded MPI.
pub(super) struct Mpi {
    pub(super) functions: Functions,
    pub(super) world: Handle,
    pub(super) byte: Handle,
    pub(super) no_request: Handle,
    errors_return: Handle,
    library: Library,
}

// SAFETY: handles are addresses of the library's own objects, and MPI runs with THREAD_MULTIPLE.
unsafe impl Send for Mpi {}
// SAFETY: as above.
unsafe impl Sync for Mpi {}

fn open() -> Result<Library, Failure> {
    let mut reason = String::new();
    for name in NAMES {
        // SAFETY: loading Open MPI runs its initialisers, which do nothing before MPI_Init. Its
        // plug-ins look for its symbols among the global ones.
        match unsafe { Library::open(Some(name), RTLD_NOW | RTLD_GLOBAL) } {
            Ok(library) => return Ok(library),
            Err(error) if reason.is_empty() => {
                reason = error.source().unwrap_or(&error).to_string()
            }
            Err(_) => {}
        }
    }
    let install =
        "install Open MPI, for instance Debian's openmpi-bin; ranks that are threads need nothing";
    Err(Failure::Mpi(format!("its library cannot be loaded ({reason}): {install}")))
}

impl Mpi {
    /// Loads Open MPI.
    pub(super) fn load() -> Result<Mpi, Failure> {
        let library = open()?;
        let other = |error: libloading::Error| {
            Failure::Mpi(format!("libmpi.so is not Open MPI's, the only supported one: {error}"))
        };
        // SAFETY: the signatures are the standard's; the symbols below, without which this fails,
        // show that it is Open MPI, whose handles are addresses.
        let functions = unsafe { Functions::find(&library) }.map_err(other)?;
        let symbol = |name: &[u8]| {
            // SAFETY: only the object's address is taken.
            unsafe { library.get::<*mut c_void>(name) }
                .map(|symbol| symbol.as_raw_ptr())
                .map_err(other)
        };
        Ok(Mpi {
            world: symbol(b"ompi_mpi_comm_world")?,
            byte: symbol(b"ompi_mpi_byte")?,
            no_request: symbol(b"ompi_request_null")?,
            errors_return: symbol(b"ompi_mpi_errors_return")?,
            functions,
            library,
        })
    }

    /// An error of MPI's, in words.
    pub(super) fn check(&self, what: &str, code: c_int) -> Result<(), Failure> {
        if code == 0 {
            return Ok(());
        }
        let mut text = vec![0u8; 512];
        let mut len: c_int = 0;
        // SAFETY: the text is longer than MPI_MAX_ERROR_STRING of Open MPI (256).
        unsafe { (self.functions.error_string)(code, text.as_mut_ptr().cast(), &raw mut len) };
        let text = String::from_utf8_lossy(&text[..usize::try_from(len).unwrap_or(0).min(512)])
            .into_owned();
        Err(Failure::Mpi(format!("{what}: {text}")))
    }

    /// Errors of a communicator are returned, and do not end the process.
    pub(super) fn tell_errors(&self, comm: Handle) {
        // SAFETY: both are handles of this library. A failure would show at the next error.
        unsafe { (self.functions.set_errhandler)(comm, self.errors_return) };
    }

    fn object(&self, name: &str) -> Option<Handle> {
        // SAFETY: only the object's address is taken.
        unsafe { self.library.get::<*mut c_void>(name.as_bytes()) }
            .ok()
            .map(|symbol| symbol.as_raw_ptr())
    }

    /// MPI's type and operation for a reduction; `None` if it has none, or none that is exactly
    /// equivalent: its result for NaN in minima is unspecified.
    pub(super) fn reduction(&self, dtype: DType, opcode: Opcode) -> Option<(Handle, Handle)> {
        let name = match dtype {
            DType::Pred | DType::U8 => "uint8_t",
            DType::S8 => "int8_t",
            DType::S16 => "int16_t",
            DType::U16 => "uint16_t",
            DType::S32 => "int32_t",
            DType::U32 => "uint32_t",
            DType::S64 => "int64_t",
            DType::U64 => "uint64_t",
            DType::F32 => "float",
            DType::F64 => "double",
            DType::F16 | DType::Bf16 | DType::C64 | DType::C128 => return None,
            // Sums must wrap around where the type does.
            DType::Mini(_) | DType::Tiny(_) => return None,
        };
        let operation = match opcode {
            // Sums of booleans are booleans.
            Opcode::Add | Opcode::Multiply if dtype == DType::Pred => return None,
            Opcode::Add => "sum",
            Opcode::Multiply => "prod",
            _ if dtype.is_float() => return None,
            Opcode::Minimum => "min",
            Opcode::Maximum => "max",
            Opcode::And => "band",
            Opcode::Or => "bor",
            Opcode::Xor => "bxor",
            _ => return None,
        };
        Some((
            self.object(&format!("ompi_mpi_{name}"))?,
            self.object(&format!("ompi_mpi_op_{operation}"))?,
        ))
    }
}
