//! Achieved rates of collectives and kernels, compared with their links and devices.
//!
//! A collective's rate is the bus bandwidth of nccl-tests. The speed of a link shows in its own
//! traffic: collectives are compared with the fastest one of their group. A collective is
//! latency-bound if at that rate its bytes would take less than half the time of the group's
//! shortest collective, so that fewer bytes would not help. docs/analyze.md has the formulas.

use halflap::collective::CollectiveKind;
use halflap::cost::Device;
use halflap::graph::Graph;
use halflap::ids::{GroupId, IdVec, OpId};
use halflap::simulate::Simulation;
use halflap::units::{Bandwidth, Bytes, FlopRate, Flops, Nanos};

/// How fast a collective went.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct BusRate {
    /// Its bus bandwidth.
    pub rate: Bandwidth,
    /// The same as a part of the highest in its group.
    pub of_best: f64,
    /// Whether latency rather than size determines its time.
    pub is_latency_bound: bool,
}

impl BusRate {
    /// Its share of the group's best, in a word.
    pub fn share(&self) -> String {
        match self.is_latency_bound {
            true => "latency".to_owned(),
            false => percent(self.of_best),
        }
    }
}

/// A fraction as a percentage.
pub(crate) fn percent(part: f64) -> String {
    format!("{:.1}%", 100.0 * part)
}

/// A collective, as far as its rate is concerned.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moved {
    pub(crate) kind: CollectiveKind,
    pub(crate) group: GroupId,
    /// How many ranks the group has, and the larger of what a rank sends and receives.
    pub(crate) ranks: Option<u32>,
    pub(crate) bytes: Option<Bytes>,
    /// How long that took.
    pub(crate) time: Nanos,
}

impl Moved {
    /// How many bytes cross a rank's bus; `None` if that is not known.
    fn traffic(&self) -> Option<f64> {
        Some(self.bytes?.0 as f64 * self.kind.bus_factor(self.ranks?)?)
    }

    fn rate(&self) -> Option<Bandwidth> {
        let traffic = self.traffic().filter(|&traffic| traffic > 0.0 && self.time > Nanos::ZERO)?;
        Some(Bandwidth(traffic / self.time.0 * 1e9))
    }
}

/// What a group achieves.
#[derive(Clone, Copy)]
struct Achieved {
    best: Bandwidth,
    shortest: Nanos,
}

/// The rate of each collective of a program or rank with this many groups.
pub(crate) fn bus_rates(groups: usize, collectives: &[Moved]) -> Vec<Option<BusRate>> {
    let none = Achieved { best: Bandwidth(0.0), shortest: Nanos::LONGEST };
    let mut achieved: IdVec<GroupId, Achieved> = IdVec::filled(none, groups);
    for moved in collectives {
        if let Some(rate) = moved.rate() {
            let of = &mut achieved[moved.group];
            of.best = if rate > of.best { rate } else { of.best };
            of.shortest = of.shortest.min(moved.time);
        }
    }
    let rate = |moved: &Moved| {
        let Achieved { best, shortest } = achieved[moved.group];
        let (rate, traffic) = (moved.rate()?, moved.traffic()?);
        let at_best = Nanos(traffic / best.0 * 1e9);
        Some(BusRate { rate, of_best: rate.0 / best.0, is_latency_bound: at_best < shortest * 0.5 })
    };
    collectives.iter().map(rate).collect()
}

/// Their combined rate.
pub(crate) fn mean_bus_rate<'a>(collectives: impl Iterator<Item = &'a Moved>) -> Option<Bandwidth> {
    let (mut traffic, mut time) = (0.0, Nanos::ZERO);
    for moved in collectives {
        traffic += moved.traffic()?;
        time += moved.time;
    }
    (traffic > 0.0 && time > Nanos::ZERO).then(|| Bandwidth(traffic / time.0 * 1e9))
}

/// How fast a kernel computed.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct KernelRate {
    /// Its arithmetic in a second.
    pub flops: FlopRate,
    /// The same as a part of the device's peak, if the device is known.
    pub of_peak: Option<f64>,
}

impl KernelRate {
    /// The rate of this much work in a time; `None` if either is missing.
    pub(crate) fn of(flops: Flops, time: Nanos, device: Option<&Device>) -> Option<KernelRate> {
        let flops = (flops.0 > 0.0 && time > Nanos::ZERO).then(|| flops / time)?;
        Some(KernelRate { flops, of_peak: device.map(|device| flops.0 / device.peak.0) })
    }
}

/// How fast each collective of a program is in an order.
pub(crate) fn program_bus_rates(
    graph: &Graph,
    simulation: &Simulation,
) -> IdVec<OpId, Option<BusRate>> {
    let collectives = graph.ops().filter_map(|op| Some((op, graph.collective(op)?)));
    let (ops, moved): (Vec<OpId>, Vec<Moved>) = collectives
        .map(|(op, collective)| {
            let moved = Moved {
                kind: collective.kind,
                group: collective.group,
                ranks: Some(collective.group_size),
                bytes: Some(collective.bytes()),
                time: simulation.end[op] - simulation.start[op],
            };
            (op, moved)
        })
        .unzip();
    let mut rates = IdVec::filled(None, graph.len());
    for (op, rate) in ops.into_iter().zip(bus_rates(graph.groups().len(), &moved)) {
        rates[op] = rate;
    }
    rates
}

/// The kernels of a program whose arithmetic is known, with their rates; the longest first.
pub(crate) fn program_kernel_rates(
    graph: &Graph,
    simulation: &Simulation,
    device: Option<&Device>,
) -> Vec<(OpId, KernelRate)> {
    let time = |op: OpId| simulation.end[op] - simulation.start[op];
    let rate = |op: OpId| Some((op, KernelRate::of(graph.flops(op)?, time(op), device)?));
    let mut rates: Vec<(OpId, KernelRate)> = graph.ops().filter_map(rate).collect();
    rates.sort_by(|(a, _), (b, _)| time(*b).0.total_cmp(&time(*a).0).then(a.cmp(b)));
    rates
}

#[cfg(test)]
mod tests {
    use super::*;
    use halflap::ids::Id;

    fn moved(kind: CollectiveKind, bytes: i64, micros: f64) -> Moved {
        Moved {
            kind,
            group: GroupId::from_index(0),
            ranks: Some(8),
            bytes: Some(Bytes(bytes)),
            time: Nanos::micros(micros),
        }
    }

    #[test]
    fn rates_are_of_the_bus_and_latency_is_told_from_size() {
        let all = [
            // 800 MB * 7/8 in 7 ms are 100 GB/s.
            moved(CollectiveKind::AllGather, 800_000_000, 7_000.0),
            // 400 MB * 2 * 7/8 in 14 ms are 50 GB/s: it is slow, but not for its latency.
            moved(CollectiveKind::AllReduce, 400_000_000, 14_000.0),
            // 8 kB in 10 us: at 100 GB/s it would take 70 ns.
            moved(CollectiveKind::AllGather, 8_000, 10.0),
            // It waited for 50 ms, and has enough bytes.
            moved(CollectiveKind::AllGather, 8_000_000, 50_000.0),
            moved(CollectiveKind::Barrier, 8, 10.0),
        ];
        let rates = bus_rates(1, &all);
        let shown = |at: usize| rates[at].map(|rate| (rate.rate.to_string(), rate.share()));
        assert_eq!(shown(0), Some(("100 GB/s".to_owned(), "100.0%".to_owned())));
        assert_eq!(shown(1), Some(("50 GB/s".to_owned(), "50.0%".to_owned())));
        assert_eq!(shown(2), Some(("700 MB/s".to_owned(), "latency".to_owned())));
        assert_eq!(shown(3), Some(("140 MB/s".to_owned(), "0.1%".to_owned())));
        assert_eq!(shown(4), None);
        assert_eq!(mean_bus_rate(all[..2].iter()).unwrap().to_string(), "66.7 GB/s");
        assert_eq!(mean_bus_rate(all.iter()), None);
    }

    #[test]
    fn without_another_size_nothing_is_called_latency() {
        let alike = [10.0, 12.0].map(|time| moved(CollectiveKind::AllGather, 8_000, time));
        let bound = |rate: &Option<BusRate>| rate.unwrap().is_latency_bound;
        assert!(!bus_rates(1, &alike).iter().any(bound));
        let unknown = Moved { ranks: None, ..alike[0] };
        assert_eq!(bus_rates(1, &[unknown]), [None]);
        assert_eq!(bus_rates(1, &[moved(CollectiveKind::AllGather, 8, 0.0)]), [None]);
    }

    #[test]
    fn kernels_are_compared_with_the_peak() {
        let h100 = Device::named("h100").unwrap();
        let rate = KernelRate::of(Flops(h100.peak.0 / 2.0), Nanos(1e9), Some(&h100)).unwrap();
        assert_eq!(rate.of_peak, Some(0.5));
        assert_eq!(KernelRate::of(Flops(1.0), Nanos(1.0), None).unwrap().of_peak, None);
        assert_eq!(KernelRate::of(Flops(0.0), Nanos(1.0), None), None);
    }
}
