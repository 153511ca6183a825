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
//! | `control` | messages between the ranks' watchdogs |

mod control;
mod library;
mod progress;
mod transport;

use std::ffi::c_int;
use std::ptr;
use std::sync::Arc;

use halflap_hlo::plan::hash_of;

use crate::failure::Failure;
pub(crate) use control::{Control, Tag};
use library::{Handle, Mpi, MpiStatus, THREAD_MULTIPLE};
pub(crate) use transport::MpiTransport;

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

/// The first line in which a rank differs from rank 0, and both versions.
#[derive(Debug)]
#[allow(missing_docs)]
pub struct Difference {
    pub rank: usize,
    pub of_first: String,
    pub of_rank: String,
}

impl World {
    /// Compares lines of all ranks by their hashes with those of rank 0.
    pub fn first_difference(
        &self,
        hashes: &[u64],
        line: &dyn Fn(usize) -> String,
    ) -> Result<Option<Difference>, Failure> {
        let bytes: Vec<u8> = hashes.iter().flat_map(|hash| hash.to_le_bytes()).collect();
        let all = self.all_numbers(hash_of(&bytes))?;
        if all.iter().all(|&hash| hash == all[0]) {
            return Ok(None);
        }
        let first = self.share(0, bytes)?;
        let first: Vec<u64> =
            first.as_chunks::<8>().0.iter().map(|bytes| u64::from_le_bytes(*bytes)).collect();
        let same = first.iter().zip(hashes).take_while(|(a, b)| a == b).count();
        let own = if first == hashes { u64::MAX } else { same as u64 };
        let differ = self.all_numbers(own)?;
        let Some((rank, &place)) = differ.iter().enumerate().min_by_key(|(_, place)| **place)
        else {
            return Ok(None);
        };
        let text = line(place as usize);
        let line_of = |rank: usize| {
            self.share(rank, text.clone().into()).map(|text| String::from_utf8_lossy(&text).into())
        };
        Ok(Some(Difference { rank, of_first: line_of(0)?, of_rank: line_of(rank)? }))
    }

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
        // SAFETY: the world exists after MPI_Init.
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

    /// The bytes of all ranks, on rank 0; `None` on the others.
    pub(crate) fn collect(&self, own: Vec<u8>) -> Result<Vec<Vec<u8>>, Failure> {
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
                let mut status = MpiStatus::default();
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

    /// Ends MPI after a successful run.
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
        // SAFETY: all ranks do this in the same order.
        let code = unsafe { (self.mpi.functions.dup)(self.mpi.world, &raw mut handle) };
        self.mpi.check("MPI_Comm_dup", code)?;
        self.mpi.tell_errors(handle);
        Ok(handle)
    }
}
