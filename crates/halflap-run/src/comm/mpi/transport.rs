//! Collectives with MPI.

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::World;
use super::library::{Handle, IN_PLACE, Mpi, MpiStatus, UNDEFINED};
use crate::address::Address;
use crate::comm::collective::{ArrayPiece, CollectiveArray, CollectiveSpec, ExchangeKind};
use crate::comm::{Exchange, Letter, MessageEnd, RaggedOperands, Transport};
use crate::failure::{Failure, Fate, Stopped};
use crate::sync::locked;
use crate::tensor::AlignedBytes;

/// How often to poll a request that compute waits for before sleeping between polls, and for how
/// long to sleep. While a kernel runs it sleeps immediately: a thread that only yields would run
/// once per time slice, one that sleeps runs as soon as it wakes.
const LOOKS: u32 = 2000;
const NAP: Duration = Duration::from_micros(100);

/// One process's connection to the others.
pub(crate) struct MpiTransport {
    mpi: Arc<Mpi>,
    fate: Arc<Fate>,
    rank: u32,
    /// For each of the program's sets of devices, the communicator of the set that this rank is in.
    comms: Vec<Option<MpiComm>>,
    barrier: MpiComm,
    /// For messages between two ranks.
    messages: MpiComm,
    sent: Mutex<Vec<SentCopy>>,
    /// Whether ranks exchange the name of each collective before it starts.
    compares: bool,
}

#[derive(Clone, Copy)]
struct MpiComm(Handle);

/// What was sent, until it has left.
struct SentCopy {
    request: Handle,
    _copy: AlignedBytes,
}

// SAFETY: a request is an address of MPI's, which runs with THREAD_MULTIPLE.
unsafe impl Send for SentCopy {}

/// Which messages belong together: their channel, as a number that every MPI has as a tag.
fn tag_of(letter: &Letter<'_>) -> c_int {
    const TAGS: i64 = 1 << 14;
    letter.message.channel.rem_euclid(TAGS) as c_int
}

// SAFETY: a communicator is an address of MPI's, which runs with THREAD_MULTIPLE.
unsafe impl Send for MpiComm {}
// SAFETY: as above.
unsafe impl Sync for MpiComm {}

impl MpiTransport {
    /// Makes communicators of a program's sets of devices.
    pub(crate) fn new(
        world: &World,
        sets: &[Vec<Vec<u32>>],
        fate: Arc<Fate>,
        compares: bool,
    ) -> Result<MpiTransport, Failure> {
        let rank = world.rank as u32;
        let mut comms = Vec::with_capacity(sets.len());
        for sets in sets {
            let place = |set: &Vec<u32>| set.iter().position(|&device| device == rank);
            let found =
                sets.iter().enumerate().find_map(|(set, devices)| Some((set, place(devices)?)));
            let (color, key) =
                found.map_or((UNDEFINED, 0), |(set, place)| (set as c_int, place as c_int));
            let mut handle: Handle = ptr::null_mut();
            // SAFETY: all ranks do this in the same sequence, because their plans are the same.
            let code = unsafe {
                (world.mpi.functions.split)(world.mpi.world, color, key, &raw mut handle)
            };
            world.mpi.check("MPI_Comm_split", code)?;
            comms.push(found.map(|_| {
                world.mpi.tell_errors(handle);
                MpiComm(handle)
            }));
        }
        Ok(MpiTransport {
            mpi: world.mpi.clone(),
            fate,
            rank,
            comms,
            barrier: MpiComm(world.dup()?),
            messages: MpiComm(world.dup()?),
            sent: Mutex::default(),
            compares,
        })
    }

    fn check(&self, what: &str, code: c_int) -> Result<(), Stopped> {
        self.mpi.check(what, code).map_err(|failure| self.fate.fail(failure))
    }

    /// Waits for a request while polling MPI. `is_awaited`: whether nothing else runs on this
    /// rank meanwhile.
    fn complete(&self, mut request: Handle, is_awaited: impl Fn() -> bool) -> Result<(), Stopped> {
        let mut looks = 0;
        loop {
            if self.is_over(&mut request)? {
                return Ok(());
            }
            self.fate.check()?;
            if looks < LOOKS && is_awaited() {
                looks += 1;
                std::thread::yield_now();
            } else {
                std::thread::sleep(NAP);
            }
        }
    }

    /// Sends copies, so that the sender need not wait for its receivers.
    fn send(&self, letter: &Letter<'_>, peers: &[usize]) -> Result<(), Stopped> {
        let mut sent = locked(&self.sent);
        // Completed ones are dropped.
        for at in (0..sent.len()).rev() {
            if self.is_over(&mut sent[at].request)? {
                sent.swap_remove(at);
            }
        }
        for (from, len) in letter.sized() {
            for &to in peers {
                let mut copy = AlignedBytes::zeros(len);
                if len > 0 {
                    // SAFETY: the plan lets a send read its arrays, which are that long, while it
                    // runs.
                    unsafe {
                        ptr::copy_nonoverlapping(from.0.cast_const(), copy.as_mut_ptr(), len)
                    };
                }
                let (count, at) = (self.count(len, 1)?, copy.as_ptr().cast::<c_void>());
                let (mpi, comm, tag) = (&self.mpi, self.messages.0, tag_of(letter));
                let mut request = mpi.no_request;
                // SAFETY: the copy has this many bytes, and is kept until the request is over.
                let code = unsafe {
                    let to = to as c_int;
                    (mpi.functions.isend)(at, count, mpi.byte, to, tag, comm, &raw mut request)
                };
                self.check("MPI_Isend", code)?;
                sent.push(SentCopy { request, _copy: copy });
            }
        }
        Ok(())
    }

    fn receive(&self, letter: &Letter<'_>, from: usize) -> Result<(), Stopped> {
        for (to, len) in letter.sized() {
            let (count, at) = (self.count(len, 1)?, to.0.cast::<c_void>());
            let (mpi, comm, tag) = (&self.mpi, self.messages.0, tag_of(letter));
            let mut request = mpi.no_request;
            // SAFETY: the array has this many bytes, and is the recv's until the request is over.
            let code = unsafe {
                let from = from as c_int;
                (mpi.functions.irecv)(at, count, mpi.byte, from, tag, comm, &raw mut request)
            };
            self.check("MPI_Irecv", code)?;
            self.complete(request, || letter.waiting.load(Ordering::Relaxed) > 0)?;
        }
        Ok(())
    }

    /// Whether a request has completed; also lets MPI make progress.
    fn is_over(&self, request: &mut Handle) -> Result<bool, Stopped> {
        let mut flag: c_int = 0;
        let mut status = MpiStatus::default();
        // SAFETY: MPI returned the request, and it has not completed.
        let code = unsafe { (self.mpi.functions.test)(request, &raw mut flag, &raw mut status) };
        self.check("MPI_Test", code)?;
        Ok(flag != 0)
    }

    /// How many elements as MPI counts them.
    fn count(&self, bytes: usize, size: usize) -> Result<c_int, Stopped> {
        c_int::try_from(bytes / size).map_err(|_| {
            self.fate.fail(Failure::Mpi(format!(
                "a collective of {bytes} bytes is larger than MPI can count"
            )))
        })
    }
}

impl Transport for MpiTransport {
    fn exchange(&self, exchange: &Exchange<'_>) -> Result<Option<Instant>, Stopped> {
        let collective = exchange.collective;
        let place = collective.set_of(self.rank);
        let comm = self.comms.get(halflap::ids::Id::index(collective.comm)).copied().flatten();
        let (Some((set, place)), Some(comm)) = (place, comm) else {
            // In no pair of a permutation: nothing is received.
            exchange.outs.iter().zip(&collective.arrays).for_each(|(out, array)| {
                // SAFETY: the plan gives a collective exclusive memory for all its outputs.
                unsafe { ptr::write_bytes(out.0, 0, array.given) }
            });
            return Ok(None);
        };
        let members = collective.sets[set].len();
        let call = MpiCall { of: self, exchange, comm: comm.0, place, members };
        if self.compares {
            call.compare(set)?;
        }
        match collective.kind {
            ExchangeKind::AllToAllTuple => call.all_to_all_tuple()?,
            ExchangeKind::RaggedAllToAll => call.ragged(&collective.sets[set])?,
            _ => {
                for (index, array) in collective.arrays.iter().enumerate() {
                    call.array(array, exchange.ins[index], exchange.outs[index])?;
                }
            }
        }
        // MPI does not report when the others arrived.
        Ok(None)
    }

    fn message(&self, letter: &Letter<'_>) -> Result<Option<Instant>, Stopped> {
        let message = letter.message;
        let peers: Vec<usize> = message.peers(self.rank as usize).collect();
        match (message.end, &peers[..]) {
            (MessageEnd::Send, _) => self.send(letter, &peers)?,
            (MessageEnd::Recv, &[from, ..]) => self.receive(letter, from)?,
            (MessageEnd::Recv, []) => letter.fill_with_zeros(),
        }
        Ok(None)
    }

    fn needs_no_thread(&self) -> bool {
        false
    }

    fn barrier(&self) -> Result<(), Stopped> {
        let mut request = self.mpi.no_request;
        // SAFETY: all ranks do this in the same sequence.
        let code = unsafe { (self.mpi.functions.ibarrier)(self.barrier.0, &raw mut request) };
        self.check("MPI_Ibarrier", code)?;
        self.complete(request, || true)
    }
}

/// One collective of one rank.
struct MpiCall<'a> {
    of: &'a MpiTransport,
    exchange: &'a Exchange<'a>,
    comm: Handle,
    place: usize,
    members: usize,
}

// In all that follows MPI reads and writes memory until a request completes, which happens before
// that memory is freed; if a run fails before, the process ends.
impl MpiCall<'_> {
    fn array(&self, array: &CollectiveArray, from: Address, to: Address) -> Result<(), Stopped> {
        match self.exchange.collective.kind {
            ExchangeKind::AllReduce => self.all_reduce(array, from, to),
            ExchangeKind::ReduceScatter => self.reduce_scatter(array, from, to),
            ExchangeKind::AllGather => self.all_gather(array, from, to),
            ExchangeKind::AllToAll => self.all_to_all(array, from, to),
            ExchangeKind::Broadcast => self.broadcast(array, from, to),
            ExchangeKind::Permute => self.permute(array, from, to),
            ExchangeKind::AllToAllTuple | ExchangeKind::RaggedAllToAll => Ok(()),
        }
    }

    /// Exchanges the collective's name with the others: an error if a rank has a different one.
    fn compare(&self, set: usize) -> Result<(), Stopped> {
        /// Longer names are truncated.
        const LEN: usize = 128;
        let Exchange { collective, .. } = self.exchange;
        let mut own = AlignedBytes::zeros(LEN);
        own.bytes_mut().iter_mut().zip(collective.name.bytes()).for_each(|(to, from)| *to = from);
        let all = self.gathered(LEN, Address(own.as_mut_ptr()))?;
        let other = all.bytes().chunks_exact(LEN).position(|theirs| theirs != own.bytes());
        let Some(other) = other else { return Ok(()) };
        let theirs = String::from_utf8_lossy(&all.bytes()[other * LEN..][..LEN])
            .trim_end_matches('\0')
            .to_owned();
        let (rank, other) = (self.of.rank as usize, collective.sets[set][other] as usize);
        Err(self.of.fate.fail(Failure::Diverged {
            rank,
            own: collective.name.clone(),
            other,
            theirs,
        }))
    }

    /// Starts something and waits for it.
    fn complete(&self, request: Handle) -> Result<(), Stopped> {
        self.of.complete(request, || self.exchange.is_awaited())
    }

    fn run(
        &self,
        what: &str,
        start: impl FnOnce(&Mpi, *mut Handle) -> c_int,
    ) -> Result<(), Stopped> {
        let mut request = self.of.mpi.no_request;
        self.of.check(what, start(&self.of.mpi, &raw mut request))?;
        self.complete(request)
    }

    fn all_reduce(
        &self,
        array: &CollectiveArray,
        from: Address,
        to: Address,
    ) -> Result<(), Stopped> {
        let Some(combiner) = &array.combiner else { return Ok(()) };
        let Some((dtype, op)) = self.of.mpi.reduction(array.dtype, combiner.opcode()) else {
            let parts = self.gathered(array.taken, from)?;
            return self.combine(array, &parts, to);
        };
        let count = self.of.count(array.taken, array.dtype.size())?;
        let send = if from == to { IN_PLACE } else { from.0.cast_const().cast::<c_void>() };
        self.run("MPI_Iallreduce", |mpi, request| {
            // SAFETY: both arrays have this many elements.
            unsafe {
                (mpi.functions.iallreduce)(send, to.0.cast(), count, dtype, op, self.comm, request)
            }
        })
    }

    /// The data of all members, concatenated.
    fn gathered(&self, bytes: usize, from: Address) -> Result<AlignedBytes, Stopped> {
        let mut all = AlignedBytes::zeros(bytes * self.members);
        let count = self.of.count(bytes, 1)?;
        let to = all.as_mut_ptr();
        self.run("MPI_Iallgather", |mpi, request| {
            let byte = mpi.byte;
            // SAFETY: each member sends this many bytes, and there is room for those of all.
            unsafe {
                (mpi.functions.iallgather)(
                    from.0.cast(),
                    count,
                    byte,
                    to.cast(),
                    count,
                    byte,
                    self.comm,
                    request,
                )
            }
        })?;
        Ok(all)
    }

    /// The data that members send to each other, in member order.
    fn exchanged(&self, send: &AlignedBytes) -> Result<AlignedBytes, Stopped> {
        let mut all = AlignedBytes::zeros(send.bytes().len());
        let count = self.of.count(send.bytes().len() / self.members, 1)?;
        let to = all.as_mut_ptr();
        self.run("MPI_Ialltoall", |mpi, request| {
            let byte = mpi.byte;
            let from = send.as_ptr().cast();
            // SAFETY: both have this many bytes for each member.
            unsafe {
                (mpi.functions.ialltoall)(
                    from,
                    count,
                    byte,
                    to.cast(),
                    count,
                    byte,
                    self.comm,
                    request,
                )
            }
        })?;
        Ok(all)
    }

    /// Reduces contiguous parts of equal length.
    fn combine(
        &self,
        array: &CollectiveArray,
        parts: &AlignedBytes,
        to: Address,
    ) -> Result<(), Stopped> {
        let len = array.given;
        let parts: Vec<&[u8]> = parts.bytes().chunks_exact(len.max(1)).collect();
        if let (Some(combiner), true) = (&array.combiner, len > 0) {
            // SAFETY: the plan gives the collective that much exclusive memory.
            combiner.combine(&parts, unsafe { std::slice::from_raw_parts_mut(to.0, len) });
        }
        Ok(())
    }

    /// An array's pieces for each member, one after the other.
    fn packed(&self, array: &CollectiveArray, from: Address) -> AlignedBytes {
        let mut packed = AlignedBytes::zeros(array.taken);
        let each = array.taken / self.members;
        for member in 0..self.members {
            let piece = ArrayPiece::of(array.taken, array.rows, member, self.members);
            let into = ArrayPiece::of(each, array.rows, 0, 1);
            // SAFETY: the array is that long, and so is what was made for it.
            unsafe { piece.copy(from.0, packed.as_mut_ptr().add(member * each), into) };
        }
        packed
    }

    /// Copies each member's data to its place.
    fn unpack(&self, array: &CollectiveArray, came: &AlignedBytes, to: Address) {
        let each = array.given / self.members;
        for member in 0..self.members {
            let into = ArrayPiece::of(array.given, array.rows, member, self.members);
            // SAFETY: each member's part is that long, and so is the result.
            unsafe {
                ArrayPiece::of(each, array.rows, 0, 1).copy(
                    came.as_ptr().add(member * each),
                    to.0,
                    into,
                )
            };
        }
    }

    fn reduce_scatter(
        &self,
        array: &CollectiveArray,
        from: Address,
        to: Address,
    ) -> Result<(), Stopped> {
        let Some(combiner) = &array.combiner else { return Ok(()) };
        let packed = self.packed(array, from);
        let Some((dtype, op)) = self.of.mpi.reduction(array.dtype, combiner.opcode()) else {
            let parts = self.exchanged(&packed)?;
            return self.combine(array, &parts, to);
        };
        let count = self.of.count(array.given, array.dtype.size())?;
        self.run("MPI_Ireduce_scatter_block", |mpi, request| {
            let send = packed.as_ptr().cast();
            // SAFETY: this many elements are sent to and received from each member.
            unsafe {
                (mpi.functions.ireduce_scatter_block)(
                    send,
                    to.0.cast(),
                    count,
                    dtype,
                    op,
                    self.comm,
                    request,
                )
            }
        })
    }

    fn all_gather(
        &self,
        array: &CollectiveArray,
        from: Address,
        to: Address,
    ) -> Result<(), Stopped> {
        let came = self.gathered(array.taken, from)?;
        self.unpack(array, &came, to);
        Ok(())
    }

    fn all_to_all(
        &self,
        array: &CollectiveArray,
        from: Address,
        to: Address,
    ) -> Result<(), Stopped> {
        let came = self.exchanged(&self.packed(array, from))?;
        self.unpack(array, &came, to);
        Ok(())
    }

    fn all_to_all_tuple(&self) -> Result<(), Stopped> {
        let Exchange { collective, ins, outs, .. } = self.exchange;
        let Some(len) = collective.arrays.first().map(|array| array.taken) else { return Ok(()) };
        let mut packed = AlignedBytes::zeros(len * self.members);
        for (to, from) in packed.bytes_mut().chunks_exact_mut(len.max(1)).zip(*ins) {
            // SAFETY: all arrays of such a collective are of the same type.
            to.copy_from_slice(unsafe { std::slice::from_raw_parts(from.0.cast_const(), len) });
        }
        let came = self.exchanged(&packed)?;
        for (from, to) in came.bytes().chunks_exact(len.max(1)).zip(*outs) {
            // SAFETY: as above.
            unsafe { ptr::copy_nonoverlapping(from.as_ptr(), to.0, len) };
        }
        Ok(())
    }

    /// Only the senders know who gets which rows, so all arrays go to all members.
    fn ragged(&self, set: &[u32]) -> Result<(), Stopped> {
        let Exchange { collective, ins, outs, .. } = self.exchange;
        let (Some(ragged), [out]) = (&collective.ragged, outs) else { return Ok(()) };
        let mut all = Vec::new();
        for (&from, len) in ins.iter().zip(ragged.lens) {
            all.push(self.gathered(len, from)?);
        }
        let member = |member: usize| {
            std::array::from_fn(|operand| {
                let len = ragged.lens[operand];
                &all[operand].bytes()[member * len..][..len]
            })
        };
        let members: Vec<RaggedOperands<'_>> = (0..self.members).map(member).collect();
        let failed = |fault| Failure::ragged(&collective.name, set, fault);
        ragged.check(&members).map_err(|fault| self.of.fate.fail(failed(fault)))?;
        if ragged.lens[1] > 0 {
            // SAFETY: the plan gives the collective exclusive memory for its output.
            let out = unsafe { std::slice::from_raw_parts_mut(out.0, ragged.lens[1]) };
            ragged.fill(&members, self.place, out);
        }
        Ok(())
    }

    fn broadcast(
        &self,
        array: &CollectiveArray,
        from: Address,
        to: Address,
    ) -> Result<(), Stopped> {
        if self.place == 0 && from != to {
            // SAFETY: both are that long, and do not overlap.
            unsafe { ptr::copy_nonoverlapping(from.0.cast_const(), to.0, array.given) };
        }
        let count = self.of.count(array.given, 1)?;
        self.run("MPI_Ibcast", |mpi, request| {
            // SAFETY: the result has this many bytes on every member.
            unsafe { (mpi.functions.ibcast)(to.0.cast(), count, mpi.byte, 0, self.comm, request) }
        })
    }

    fn permute(&self, array: &CollectiveArray, from: Address, to: Address) -> Result<(), Stopped> {
        /// Any number below 32768: every MPI has such tags.
        const TAGS: u64 = 1 << 14;
        let Exchange { collective, sequence, .. } = self.exchange;
        let tag = (sequence % TAGS) as c_int;
        let count = self.of.count(array.given, 1)?;
        let place = |collective: &CollectiveSpec, device: u32| {
            collective.set_of(device).map(|(_, place)| place as c_int)
        };
        let source =
            collective.source_of(self.of.rank).and_then(|source| place(collective, source));
        let mut came = AlignedBytes::zeros(array.given);
        let mut requests = Vec::new();
        let mpi = &self.of.mpi;
        if let Some(source) = source {
            let mut request = mpi.no_request;
            let start = came.as_mut_ptr().cast();
            // SAFETY: there is room for this many bytes.
            let code = unsafe {
                (mpi.functions.irecv)(
                    start,
                    count,
                    mpi.byte,
                    source,
                    tag,
                    self.comm,
                    &raw mut request,
                )
            };
            self.of.check("MPI_Irecv", code)?;
            requests.push(request);
        }
        for &(_, target) in collective.pairs.iter().filter(|(source, _)| *source == self.of.rank) {
            let Some(target) = place(collective, target) else { continue };
            let mut request = mpi.no_request;
            // SAFETY: the array has this many bytes.
            let code = unsafe {
                (mpi.functions.isend)(
                    from.0.cast(),
                    count,
                    mpi.byte,
                    target,
                    tag,
                    self.comm,
                    &raw mut request,
                )
            };
            self.of.check("MPI_Isend", code)?;
            requests.push(request);
        }
        for request in requests {
            self.complete(request)?;
        }
        // SAFETY: the result is that long. A rank that receives nothing gets zeros.
        unsafe { ptr::copy_nonoverlapping(came.as_ptr(), to.0, array.given) };
        Ok(())
    }
}
