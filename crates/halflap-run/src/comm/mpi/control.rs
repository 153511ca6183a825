//! Short messages between ranks besides the data of collectives; no rank blocks on them.

use std::ffi::c_int;
use std::sync::Arc;

use super::World;
use super::library::{ANY_SOURCE, Handle, Mpi, MpiStatus};
use crate::failure::Failure;

/// What a message is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub(crate) enum Tag {
    /// A request for a rank's state.
    Ask = 2,
    /// The answer.
    Say = 3,
    /// A rank's record of its collectives.
    Flight = 4,
    /// The task of a finding, to all.
    Found = 5,
    /// The last completed task, and that of a finding, to rank 0.
    Passed = 6,
    /// To the rank with the first finding: it reports.
    Report = 7,
}

/// A communicator for messages alone.
pub(crate) struct Control {
    mpi: Arc<Mpi>,
    comm: Handle,
}

/// A barrier that all ranks pass at their end.
pub(crate) struct Leaving {
    mpi: Arc<Mpi>,
    request: Handle,
}

impl Leaving {
    /// Whether all ranks have reached it.
    pub(crate) fn is_over(&mut self) -> bool {
        let mut flag: c_int = 0;
        let mut status = MpiStatus::default();
        // SAFETY: the request is the barrier's; once complete it stays complete.
        unsafe { (self.mpi.functions.test)(&raw mut self.request, &raw mut flag, &raw mut status) };
        flag != 0
    }
}

impl Control {
    /// A collective operation: all ranks call it.
    pub(crate) fn new(world: &World) -> Result<Control, Failure> {
        Ok(Control { mpi: world.mpi.clone(), comm: world.dup()? })
    }

    /// Says that this rank is done.
    pub(crate) fn leave(&self) -> Leaving {
        let mut request = self.mpi.no_request;
        // SAFETY: all ranks do this once, at their end.
        unsafe { (self.mpi.functions.ibarrier)(self.comm, &raw mut request) };
        Leaving { mpi: self.mpi.clone(), request }
    }

    /// Sends a message without waiting: a rank that does not receive it is dead.
    pub(crate) fn send(&self, to: usize, tag: Tag, bytes: &[u8]) {
        let mpi = &self.mpi;
        // Leaked, because MPI may need it at any time until the process ends, which is soon.
        let bytes: &'static [u8] = Box::leak(bytes.to_vec().into_boxed_slice());
        let (mut request, tag) = (mpi.no_request, tag as c_int);
        let (start, len) = (bytes.as_ptr().cast(), bytes.len() as c_int);
        // SAFETY: the message stays where it is.
        unsafe {
            (mpi.functions.isend)(
                start,
                len,
                mpi.byte,
                to as c_int,
                tag,
                self.comm,
                &raw mut request,
            )
        };
    }

    /// A message that has arrived.
    pub(crate) fn receive(&self, tag: Tag) -> Option<(usize, String)> {
        let mpi = &self.mpi;
        let tag = tag as c_int;
        let mut flag: c_int = 0;
        let mut status = MpiStatus::default();
        let mut bytes;
        // SAFETY: only this thread receives on this communicator, so the probed message is the one
        // received.
        unsafe {
            (mpi.functions.iprobe)(ANY_SOURCE, tag, self.comm, &raw mut flag, &raw mut status);
            if flag == 0 {
                return None;
            }
            bytes = vec![0u8; status.bytes];
            let (start, len) = (bytes.as_mut_ptr().cast(), bytes.len() as c_int);
            (mpi.functions.recv)(
                start,
                len,
                mpi.byte,
                status.source,
                tag,
                self.comm,
                &raw mut status,
            );
        }
        Some((usize::try_from(status.source).ok()?, String::from_utf8_lossy(&bytes).into_owned()))
    }
}
