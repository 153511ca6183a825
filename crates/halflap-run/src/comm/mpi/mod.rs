//! Ranks that are processes of Open MPI.
//!
//! [`World`] is what a process knows about the others. Collectives are MPI's non-blocking ones,
//! each on the thread of its stream, which polls until it completes: MPI makes no progress on its
//! own. What MPI cannot reduce as JAX does (16-bit floats, complex numbers, minima of floats) is
//! gathered and reduced here, in rank order.
//!
//! | part | what it does |
//! | --- | --- |
//! | `library` | MPI's functions, found at run time |
//! | `progress` | settings and time slices that let messages travel while kernels run |
//! | `transport` | collectives |
//! | `run` | one rank, and what is said when something goes wrong |

mod library;
mod progress;
mod run;
mod transport;

use std::ffi::c_int;
use std::ptr;
use std::sync::Arc;

use crate::exec::Failure;
use library::{Handle, Mpi, Status, THREAD_MULTIPLE};
pub use run::Difference;

/// All processes, and which this is.
pub struct World {
    mpi: Arc<Mpi>,
    rank: usize,
    size: usize,
}

/// No message is longer; longer ones are sent in pieces.
const PIECE: usize = 1 << 28;
/// Messages of this module's own.
const TAG_BYTES: c_int = 1;

impl World {
    /// Starts MPI in this process.
    pub fn start() -> Result<World, Failure> {
        progress::prefer_whole_messages();
        let mpi = Mpi::load()?;
        let mut provided: c_int = 0;
        // SAFETY: MPI takes no arguments as none.
        let code = unsafe {
            (mpi.functions.init_thread)(
                ptr::null_mut(),
                ptr::null_mut(),
                THREAD_MULTIPLE,
                &raw mut provided,
            )
        };
        mpi.check("MPI_Init_thread", code)?;
        if provided != THREAD_MULTIPLE {
            return Err(Failure::Mpi(
                "this MPI does not let several threads communicate at once".to_owned(),
            ));
        }
        mpi.tell_errors(mpi.world);
        let (mut rank, mut size): (c_int, c_int) = (0, 0);
        // SAFETY: the world is there after MPI_Init.
        unsafe {
            mpi.check("MPI_Comm_rank", (mpi.functions.rank)(mpi.world, &raw mut rank))?;
            mpi.check("MPI_Comm_size", (mpi.functions.size)(mpi.world, &raw mut size))?;
        }
        Ok(World { mpi: Arc::new(mpi), rank: rank as usize, size: size as usize })
    }

    /// Which of the ranks this is.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// How many there are.
    pub fn size(&self) -> usize {
        self.size
    }

    /// All-gathers one number per rank.
    fn all_numbers(&self, own: u64) -> Result<Vec<u64>, Failure> {
        let mut all = vec![0u64; self.size];
        let mpi = &self.mpi;
        // SAFETY: eight bytes of each rank, and room for those of all.
        let code = unsafe {
            let own: *const u64 = &raw const own;
            (mpi.functions.allgather)(
                own.cast(),
                8,
                mpi.byte,
                all.as_mut_ptr().cast(),
                8,
                mpi.byte,
                mpi.world,
            )
        };
        mpi.check("MPI_Allgather", code)?;
        Ok(all)
    }

    /// Broadcasts one rank's bytes.
    pub fn share(&self, from: usize, bytes: Vec<u8>) -> Result<Vec<u8>, Failure> {
        let len = self.all_numbers(bytes.len() as u64)?[from] as usize;
        let mut bytes = if self.rank == from { bytes } else { vec![0; len] };
        for piece in bytes.chunks_mut(PIECE) {
            let mpi = &self.mpi;
            // SAFETY: all ranks have a piece of the same length.
            let code = unsafe {
                let start = piece.as_mut_ptr().cast();
                (mpi.functions.bcast)(
                    start,
                    piece.len() as c_int,
                    mpi.byte,
                    from as c_int,
                    mpi.world,
                )
            };
            mpi.check("MPI_Bcast", code)?;
        }
        Ok(bytes)
    }

    /// The bytes of all ranks, on rank 0; nothing on the others.
    fn collect(&self, own: Vec<u8>) -> Result<Vec<Vec<u8>>, Failure> {
        let lengths = self.all_numbers(own.len() as u64)?;
        let mpi = &self.mpi;
        if self.rank != 0 {
            for piece in own.chunks(PIECE) {
                let len = piece.len() as c_int;
                // SAFETY: the piece is that long.
                let code = unsafe {
                    (mpi.functions.send)(
                        piece.as_ptr().cast(),
                        len,
                        mpi.byte,
                        0,
                        TAG_BYTES,
                        mpi.world,
                    )
                };
                mpi.check("MPI_Send", code)?;
            }
            return Ok(Vec::new());
        }
        let mut all = vec![own];
        for (rank, &len) in lengths.iter().enumerate().skip(1) {
            let mut bytes = vec![0u8; len as usize];
            for piece in bytes.chunks_mut(PIECE) {
                let (from, len) = (rank as c_int, piece.len() as c_int);
                let mut status = Status::default();
                // SAFETY: the piece is that long.
                let code = unsafe {
                    let start = piece.as_mut_ptr().cast();
                    (mpi.functions.recv)(
                        start,
                        len,
                        mpi.byte,
                        from,
                        TAG_BYTES,
                        mpi.world,
                        &raw mut status,
                    )
                };
                mpi.check("MPI_Recv", code)?;
            }
            all.push(bytes);
        }
        Ok(all)
    }

    /// The error of the lowest failing rank, broadcast to all, and that rank.
    pub fn agree(&self, problem: Option<&str>) -> Result<Option<(usize, String)>, Failure> {
        let flags = self.all_numbers(u64::from(problem.is_some()))?;
        let Some(first) = flags.iter().position(|&flag| flag == 1) else { return Ok(None) };
        let text = self.share(first, problem.unwrap_or("").as_bytes().to_vec())?;
        Ok(Some((first, String::from_utf8_lossy(&text).into_owned())))
    }

    /// Ends MPI, when all is well.
    pub fn finish(self) -> Result<(), Failure> {
        // SAFETY: nothing of ours communicates any more.
        let code = unsafe { (self.mpi.functions.finalize)() };
        self.mpi.check("MPI_Finalize", code)
    }

    /// Ends all ranks.
    pub fn abort(&self, code: i32) {
        // SAFETY: MPI was started.
        unsafe { (self.mpi.functions.abort)(self.mpi.world, code) };
    }

    fn dup(&self) -> Result<Handle, Failure> {
        let mut handle: Handle = ptr::null_mut();
        // SAFETY: all ranks do this in the same sequence.
        let code = unsafe { (self.mpi.functions.dup)(self.mpi.world, &raw mut handle) };
        self.mpi.check("MPI_Comm_dup", code)?;
        self.mpi.tell_errors(handle);
        Ok(handle)
    }
}
