//! Communication: what a collective does, and two ways to do it.
//!
//! A [`Transport`] runs a collective from beginning to end on the thread of its stream; overlap
//! with other work is up to the streams. `threads` is for ranks of one process, which read each
//! other's memory; `mpi` for ranks that are processes, with MPI's non-blocking collectives.

mod collective;
mod emulate;
mod message;
pub mod mpi;
mod ragged;
mod threads;

pub(crate) use collective::ArrayPiece;
pub use collective::{CollectiveSpec, ExchangeKind};
pub use emulate::EmulatedLink;
pub(crate) use message::MessageKey;
pub use message::{MessageEnd, MessageSpec};
pub(crate) use ragged::{Ragged, RaggedOperands};
pub(crate) use threads::{Hub, ThreadMember};

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use crate::address::Address;
use crate::failure::Stopped;

/// A collective that one rank takes part in now.
pub(crate) struct Exchange<'a> {
    pub(crate) collective: &'a CollectiveSpec,
    /// How many collectives its set has done before.
    pub(crate) sequence: u64,
    pub(crate) ins: &'a [Address],
    pub(crate) outs: &'a [Address],
    /// How many threads of the rank wait for it, or for another collective of its stream.
    pub(crate) waiting: &'a AtomicU32,
}

impl Exchange<'_> {
    /// Whether compute is stalled on it.
    pub(crate) fn is_awaited(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }
}

/// A rank's half of a message.
pub(crate) struct Letter<'a> {
    /// The instruction's name.
    pub(crate) name: &'a str,
    pub(crate) message: &'a MessageSpec,
    /// The arrays to send, or to receive into.
    pub(crate) arrays: &'a [Address],
    /// How many threads of the rank wait for it, or for another one of its stream.
    pub(crate) waiting: &'a AtomicU32,
}

impl Letter<'_> {
    /// The arrays with their lengths.
    fn sized(&self) -> impl Iterator<Item = (Address, usize)> {
        let lens = self.message.arrays.iter().map(|array| array.bytes());
        self.arrays.iter().copied().zip(lens)
    }

    /// No sender: the result is zeros, as in XLA.
    fn fill_with_zeros(&self) {
        for (to, len) in self.sized() {
            // SAFETY: the plan gives a recv exclusive memory that is that long.
            unsafe { std::ptr::write_bytes(to.0, 0, len) };
        }
    }
}

/// How ranks communicate.
pub(crate) trait Transport: Send + Sync {
    /// Runs a collective. Returns the time when all ranks had arrived, if known; after it returns,
    /// no other rank reads this rank's arrays.
    fn exchange(&self, exchange: &Exchange<'_>) -> Result<Option<Instant>, Stopped>;

    /// Runs a rank's half of a message: a recv waits for the other half, a send does not. Returns
    /// as above.
    fn message(&self, letter: &Letter<'_>) -> Result<Option<Instant>, Stopped>;

    /// Whether a collective makes progress without a thread of its own that polls.
    fn needs_no_thread(&self) -> bool;

    /// Waits for all ranks.
    fn barrier(&self) -> Result<(), Stopped>;
}
