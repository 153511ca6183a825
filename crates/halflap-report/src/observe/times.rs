//! Times by kernel, for schedules made with measured times.

use std::collections::BTreeMap;

use super::Analysis;
use halflap::units::Nanos;

/// The time of every kernel by its name, the names ascending: on each rank the lower median over
/// its launches, and of these the lower median. A collective that was found on several ranks counts
/// with its transfer alone, because a schedule cannot change how late peers are. Of two kernels of
/// one name (a copy and a kernel may share one) the longer counts.
pub fn kernel_times(analysis: &Analysis) -> Vec<(String, Nanos)> {
    let matches = analysis.matches_of();
    let mut times: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    for (place, rank) in analysis.ranks.iter().enumerate() {
        let mut transfers: BTreeMap<_, Vec<f64>> = BTreeMap::new();
        for (collective, found) in rank.collectives.iter().zip(&matches[place]) {
            let time =
                found.map_or(collective.time(), |found| analysis.peers.matches[found].transfer);
            transfers.entry(collective.kernel).or_default().push(time.0);
        }
        let mut of_rank: BTreeMap<&str, f64> = BTreeMap::new();
        for used in &rank.kernel_uses {
            let time =
                transfers.get_mut(&used.kernel).map_or(used.median.0, |times| lower_median(times));
            let longest = of_rank.entry(rank.kernel(used.kernel)).or_insert(time);
            *longest = longest.max(time);
        }
        for (name, time) in of_rank {
            times.entry(name).or_default().push(time);
        }
    }
    times
        .into_iter()
        .map(|(name, mut times)| (name.to_owned(), Nanos(lower_median(&mut times))))
        .collect()
}

fn lower_median(times: &mut [f64]) -> f64 {
    times.sort_by(f64::total_cmp);
    times.get((times.len().max(1) - 1) / 2).copied().unwrap_or(0.0)
}
