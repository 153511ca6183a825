//! One rank of many processes: its thread runs, and this one watches.
//!
//! A rank on which something goes wrong asks all others what they are at, waits a moment for what they
//! say, and tells all of it. Of several that ask at once, the lowest rank tells. Then it ends all.

use std::ffi::c_int;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use halflap::plan::hash_of;

use super::World;
use super::library::{ANY_SOURCE, Handle, Status};
use super::transport::Processes;
use crate::exec::{
    Failure, Fate, Options, Outcome, Prepared, Rank, RankOutcome, Streams, describe, late, seconds, spawn, step_line,
};
use crate::tensor::Tensor;

const TAG_ASK: c_int = 2;
const TAG_SAY: c_int = 3;
/// How often the others are listened to.
const LISTEN: Duration = Duration::from_millis(20);
/// How long the others have to answer.
const ANSWER: Duration = Duration::from_millis(1500);
/// No answer is longer.
const LONGEST: usize = 4096;

/// Where what a rank has first differs from what rank 0 has, and both lines.
#[derive(Debug)]
#[allow(missing_docs)]
pub struct Difference {
    pub rank: usize,
    pub of_first: String,
    pub of_rank: String,
}

impl World {
    /// Compares the plans of all ranks: an error that names the first difference.
    pub fn compare(&self, program: &Prepared) -> Result<(), Failure> {
        match self.first_difference(&program.text.hashes(), &|step| step_line(program, step))? {
            None => Ok(()),
            Some(Difference { rank, of_first, of_rank }) => {
                Err(Failure::PlansDiffer { first: 0, second: rank, of_first, of_second: of_rank })
            }
        }
    }

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
        let first: Vec<u64> = first.as_chunks::<8>().0.iter().map(|bytes| u64::from_le_bytes(*bytes)).collect();
        let same = first.iter().zip(hashes).take_while(|(a, b)| a == b).count();
        let own = if first == hashes { u64::MAX } else { same as u64 };
        let differ = self.all_numbers(own)?;
        let Some((rank, &place)) = differ.iter().enumerate().min_by_key(|(_, place)| **place) else { return Ok(None) };
        let text = line(place as usize);
        let line_of =
            |rank: usize| self.share(rank, text.clone().into()).map(|text| String::from_utf8_lossy(&text).into());
        Ok(Some(Difference { rank, of_first: line_of(0)?, of_rank: line_of(rank)? }))
    }

    /// Runs this process's rank. Rank 0 gets what all did, the others nothing. After a failure other
    /// ranks may still be at work: [`World::abort`] ends them.
    pub fn run(
        &self,
        program: &Arc<Prepared>,
        inputs: Vec<Tensor>,
        options: &Options,
    ) -> Result<Option<Outcome>, Failure> {
        let fate = Arc::new(Fate::default());
        let transport = Arc::new(Processes::new(self, &program.comms, fate.clone())?);
        let control = self.dup()?;
        let streams = Arc::new(Streams::new(program.streams, Instant::now()));
        let rank = Rank {
            rank: self.rank,
            program: program.clone(),
            streams: streams.clone(),
            transport,
            fate: fate.clone(),
            inputs,
            options: options.clone(),
        };
        let watch = Watch { world: self, control, program, streams: &streams, timeout: options.timeout };
        let own = watch.until_done(rank, &fate)?;
        let all = self.collect(own.to_bytes())?;
        if self.rank != 0 {
            return Ok(None);
        }
        let ranks = all.iter().map(|bytes| RankOutcome::from_bytes(bytes)).collect::<Option<Vec<_>>>();
        let ranks = ranks.ok_or_else(|| Failure::Mpi("what a rank sent at the end cannot be read".to_owned()))?;
        Outcome { ranks }.checked(&vec![program.clone(); self.size]).map(Some)
    }
}

struct Watch<'a> {
    world: &'a World,
    control: Handle,
    program: &'a Prepared,
    streams: &'a Streams,
    timeout: Duration,
}

impl Watch<'_> {
    fn until_done(&self, rank: Rank, fate: &Arc<Fate>) -> Result<RankOutcome, Failure> {
        let (send, receive) = channel();
        spawn(rank, send);
        loop {
            if let Ok((_, Some(outcome))) = receive.recv_timeout(LISTEN) {
                return Ok(outcome);
            }
            if let Some(failure) = fate.failure() {
                return Err(self.tell(Some(failure)));
            }
            if late(self.streams, self.timeout) {
                return Err(self.tell(None));
            }
            self.answer();
        }
    }

    fn describe(&self) -> String {
        format!("rank {}: {}", self.world.rank, describe(self.program, self.streams, &|_, _| Vec::new()))
    }

    /// Asks the others what they are at; what is to be said is theirs and ours, or what failed.
    fn tell(&self, failure: Option<Failure>) -> Failure {
        let mut said: Vec<Option<String>> = vec![None; self.world.size];
        said[self.world.rank] = Some(self.describe());
        if failure.is_none() {
            (0..self.world.size)
                .filter(|&rank| rank != self.world.rank)
                .for_each(|rank| self.send(rank, TAG_ASK, b"?"));
        }
        let asked = Instant::now();
        let mut patience = ANSWER;
        while failure.is_none() && asked.elapsed() < patience {
            if self.answer().is_some_and(|other| other < self.world.rank) {
                // It will tell, and end us.
                patience = 4 * ANSWER;
            }
            if let Some((rank, text)) = self.receive(TAG_SAY) {
                said[rank] = Some(text);
            }
            if patience == ANSWER && said.iter().all(Option::is_some) {
                break;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        let silent = |(rank, said): (usize, Option<String>)| {
            said.unwrap_or_else(|| format!("rank {rank}: does not answer: it has ended its steps, or is dead"))
        };
        let ranks = said.into_iter().enumerate().map(silent).collect();
        failure.unwrap_or(Failure::TimedOut { seconds: seconds(self.timeout), ranks })
    }

    /// Answers who asked; gives the rank that did.
    fn answer(&self) -> Option<usize> {
        let (rank, _) = self.receive(TAG_ASK)?;
        let text = self.describe();
        self.send(rank, TAG_SAY, &text.as_bytes()[..text.len().min(LONGEST)]);
        Some(rank)
    }

    /// Sends a short message and does not look back: whoever does not take it is dead.
    fn send(&self, to: usize, tag: c_int, bytes: &[u8]) {
        let mpi = &self.world.mpi;
        // Kept for as long as MPI may need it, which nobody knows: until the process ends, which is soon.
        let bytes: &'static [u8] = Box::leak(bytes.to_vec().into_boxed_slice());
        let mut request = mpi.no_request;
        let (start, len) = (bytes.as_ptr().cast(), bytes.len() as c_int);
        // SAFETY: the message stays where it is.
        unsafe { (mpi.functions.isend)(start, len, mpi.byte, to as c_int, tag, self.control, &raw mut request) };
    }

    /// A message that is there.
    fn receive(&self, tag: c_int) -> Option<(usize, String)> {
        let mpi = &self.world.mpi;
        let mut flag: c_int = 0;
        let mut status = Status::default();
        let mut bytes = vec![0u8; LONGEST];
        // SAFETY: only this thread receives on this communicator, so that what was seen is what comes.
        unsafe {
            (mpi.functions.iprobe)(ANY_SOURCE, tag, self.control, &raw mut flag, &raw mut status);
            if flag == 0 {
                return None;
            }
            let (start, len) = (bytes.as_mut_ptr().cast(), LONGEST as c_int);
            (mpi.functions.recv)(start, len, mpi.byte, status.source, tag, self.control, &raw mut status);
        }
        bytes.truncate(status.bytes.min(LONGEST));
        Some((usize::try_from(status.source).ok()?, String::from_utf8_lossy(&bytes).into_owned()))
    }
}
