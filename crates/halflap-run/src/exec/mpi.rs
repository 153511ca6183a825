//! One rank of many processes: its thread runs, and this one watches.
//!
//! A failing rank asks all others what they are doing, waits briefly for the answers, and reports
//! everything. If several ask at once, the lowest rank reports. Then it ends all ranks.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use super::issue::rank::RunningRank;
use super::report::{Outcome, RankOutcome};
use super::session::{
    ARRIVAL, Options, describe, is_waiting, late, longest_kernel, seconds, spawn, step_line,
    with_account,
};
use super::task::RankStreams;
use crate::check::{Flight, TaskProbe};
use crate::comm::mpi::{Control, Difference, MpiTransport, Tag, World};
use crate::failure::{Failure, Fate, FindingPlace};
use crate::prepare::Prepared;
use crate::tensor::Tensor;

/// How often the others are listened to.
const LISTEN: Duration = Duration::from_millis(20);
/// How long the others have to answer.
const ANSWER: Duration = Duration::from_millis(1500);

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

    /// Runs this process's rank. Rank 0 gets the outcomes of all ranks, the others `None`. After a
    /// failure other ranks may still be at work: [`World::abort`] ends them.
    pub fn run(
        &self,
        program: &Arc<Prepared>,
        inputs: Vec<Tensor>,
        options: &Options,
    ) -> Result<Option<Outcome>, Failure> {
        let fate = Arc::new(Fate::default());
        let transport = Arc::new(MpiTransport::new(
            self,
            &program.comms,
            fate.clone(),
            options.checks.recorder.is_some(),
        )?);
        let control = Control::new(self)?;
        let streams = Arc::new(RankStreams::new(program.streams, Instant::now()));
        let probe = TaskProbe::open(&options.checks, program, self.rank())?;
        let rank = RunningRank {
            rank: self.rank(),
            program: program.clone(),
            streams: streams.clone(),
            transport,
            fate: fate.clone(),
            inputs,
            options: options.clone(),
            probe: probe.clone(),
        };
        let watch =
            ProcessWatch { world: self, control, program, streams: &streams, options, probe };
        let own = watch.until_done(rank, &fate)?;
        let all = self.collect(own.to_bytes())?;
        if self.rank() != 0 {
            return Ok(None);
        }
        let ranks =
            all.iter().map(|bytes| RankOutcome::from_bytes(bytes)).collect::<Option<Vec<_>>>();
        let ranks = ranks
            .ok_or_else(|| Failure::Mpi("what a rank sent at the end cannot be read".to_owned()))?;
        Outcome { ranks }.checked(&vec![program.clone(); self.size()]).map(Some)
    }
}

struct ProcessWatch<'a> {
    world: &'a World,
    control: Control,
    program: &'a Prepared,
    streams: &'a RankStreams,
    options: &'a Options,
    probe: Option<Arc<TaskProbe>>,
}

/// What is known about the ranks' findings.
#[derive(Default)]
struct Findings {
    /// What this rank sent to the others.
    told: Option<u64>,
    /// The point up to which this rank reported completion to rank 0.
    passed: Option<u64>,
    /// What ranks reported to rank 0: how far they are, and their findings.
    of: BTreeMap<usize, (u64, Option<FindingPlace>)>,
}

impl Findings {
    /// The rank with the first finding.
    fn first(&self) -> Option<usize> {
        let found = self.of.iter().filter_map(|(&rank, (_, found))| Some(((*found)?, rank)));
        found.min().map(|(_, rank)| rank)
    }
}

impl ProcessWatch<'_> {
    fn until_done(&self, rank: RunningRank, fate: &Arc<Fate>) -> Result<RankOutcome, Failure> {
        let (send, receive) = channel();
        spawn(rank, send);
        let mut outcome = None;
        let mut findings = Findings::default();
        let mut leaving = None;
        loop {
            match receive.recv_timeout(LISTEN) {
                Ok((_, ended)) => outcome = ended,
                Err(RecvTimeoutError::Timeout) => {}
                // The rank has reported everything.
                Err(RecvTimeoutError::Disconnected) => std::thread::sleep(Duration::from_millis(2)),
            }
            if let Some(failure) = fate.failure() {
                return Err(self.tell(Some(failure)));
            }
            if late(self.streams, self.options.timeout) {
                return Err(self.tell(None));
            }
            self.answer();
            if self.is_to_tell(&mut findings, fate) {
                return Err(self.tell(fate.finding().map(|finding| finding.failure)));
            }
            // A rank without findings and work leaves once no rank has a finding.
            if outcome.is_some() && fate.horizon() == u64::MAX {
                let request = leaving.get_or_insert_with(|| self.control.leave());
                if request.is_over() {
                    return outcome
                        .ok_or_else(|| Failure::Mpi("a rank lost what it did".to_owned()));
                }
            }
        }
    }

    /// Agrees with the others on the first finding. Returns whether it is this rank's.
    fn is_to_tell(&self, findings: &mut Findings, fate: &Fate) -> bool {
        let number = |text: &str| text.trim().parse::<u64>().ok();
        while let Some((_, text)) = self.control.receive(Tag::Found) {
            fate.limit(number(&text).unwrap_or(u64::MAX));
        }
        let own = fate.finding().map(|finding| finding.place());
        let own_number = own.map(|own| own.number);
        if own_number != findings.told {
            findings.told = own_number;
            let text = own_number.map_or(String::new(), |number| number.to_string());
            self.others().for_each(|rank| self.control.send(rank, Tag::Found, text.as_bytes()));
        }
        let horizon = fate.horizon();
        if horizon != u64::MAX
            && findings.passed != Some(horizon)
            && (self.streams.have_passed(horizon) || self.is_held_up())
        {
            findings.passed = Some(horizon);
            findings.of.insert(self.world.rank(), (horizon, own));
            let text = |own: FindingPlace| {
                let [is_received, is_made] = [own.is_received, own.is_made].map(u64::from);
                format!("{is_received} {} {is_made}", own.number)
            };
            let found = own.map_or(String::new(), text);
            self.control.send(0, Tag::Passed, format!("{horizon} {found}").as_bytes());
        }
        while let Some((rank, text)) = self.control.receive(Tag::Passed) {
            let words: Vec<u64> = text.split(' ').filter_map(number).collect();
            let found = match words[..] {
                [_, is_received, number, is_made] => {
                    let [is_received, is_made] = [is_received, is_made].map(|flag| flag != 0);
                    Some(FindingPlace { is_received, number, is_made })
                }
                _ => None,
            };
            findings.of.insert(rank, (words.first().copied().unwrap_or(0), found));
        }
        if self.world.rank() == 0 && horizon != u64::MAX {
            let have_passed =
                |rank: usize| findings.of.get(&rank).is_some_and(|(passed, _)| *passed == horizon);
            if (0..self.world.size()).all(have_passed) {
                let first = findings.first();
                first
                    .filter(|&first| first != 0)
                    .into_iter()
                    .for_each(|first| self.control.send(first, Tag::Report, b"!"));
                return first == Some(0);
            }
        }
        self.control.receive(Tag::Report).is_some()
            || own.is_some() && fate.is_overdue(self.options.timeout)
    }

    /// Whether this rank waits for others, which may have stopped at a finding.
    fn is_held_up(&self) -> bool {
        is_waiting(self.program, self.streams, ARRIVAL.min(self.options.timeout / 2))
    }

    fn others(&self) -> impl Iterator<Item = usize> {
        let own = self.world.rank();
        (0..self.world.size()).filter(move |&rank| rank != own)
    }

    fn flight(&self) -> Option<Flight> {
        self.probe.as_ref()?.flight(self.streams.have_ended())
    }

    fn describe(&self) -> String {
        format!(
            "rank {}: {}",
            self.world.rank(),
            describe(self.program, self.streams, &|_, _| Vec::new())
        )
    }

    /// Asks the others for their state and records; returns the combined report, or the failure.
    fn tell(&self, failure: Option<Failure>) -> Failure {
        let mut said: Vec<Option<String>> = vec![None; self.world.size()];
        said[self.world.rank()] = Some(self.describe());
        let mut flights: Vec<Option<Flight>> = (0..self.world.size()).map(|_| None).collect();
        flights[self.world.rank()] = self.flight();
        let is_recorded = flights[self.world.rank()].is_some();
        let asks = match &failure {
            None => true,
            Some(failure) => {
                is_recorded && matches!(failure, Failure::Diverged { .. } | Failure::Mpi(_))
            }
        };
        if asks {
            self.others().for_each(|rank| self.control.send(rank, Tag::Ask, b"?"));
        }
        let asked = Instant::now();
        let mut patience = ANSWER;
        while asks && asked.elapsed() < patience {
            if self.answer().is_some_and(|other| other < self.world.rank()) {
                // It will report, and end us.
                patience = 4 * ANSWER;
            }
            if let Some((rank, text)) = self.control.receive(Tag::Say) {
                said[rank] = Some(text);
            }
            if let Some((rank, text)) = self.control.receive(Tag::Flight) {
                flights[rank] =
                    serde_json::from_str(&text).ok().as_ref().and_then(Flight::from_json);
            }
            let has_all = said.iter().all(Option::is_some)
                && (!is_recorded || flights.iter().all(Option::is_some));
            if patience == ANSWER && has_all {
                break;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        let silent = |(rank, said): (usize, Option<String>)| {
            said.unwrap_or_else(|| {
                format!("rank {rank}: does not answer: it has ended its steps, or is dead")
            })
        };
        let ranks = said.into_iter().enumerate().map(silent).collect();
        let timeout = self.options.timeout;
        let stuck = longest_kernel(self.program, self.streams, timeout);
        let stuck = stuck.map(|(_, label)| Box::new(label.stuck(self.world.rank())));
        let failure =
            failure.unwrap_or(Failure::TimedOut { seconds: seconds(timeout), stuck, ranks });
        let flights: Vec<Flight> = flights.into_iter().flatten().collect();
        with_account(failure, self.program, &flights, self.options)
    }

    /// Answers a request; returns the asking rank.
    fn answer(&self) -> Option<usize> {
        let (rank, _) = self.control.receive(Tag::Ask)?;
        self.control.send(rank, Tag::Say, self.describe().as_bytes());
        if let Some(flight) = self.flight() {
            self.control.send(rank, Tag::Flight, flight.to_json().to_string().as_bytes());
        }
        Some(rank)
    }
}
