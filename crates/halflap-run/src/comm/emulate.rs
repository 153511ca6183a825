//! How long collectives would take on a network.

use std::str::FromStr;
use std::time::Duration;

use super::collective::{CollectiveSpec, ExchangeKind};

/// A network: the bandwidth of every rank in either direction, and the latency of a collective.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EmulatedLink {
    /// Bytes per second.
    pub bandwidth: f64,
    /// The fixed latency of every collective.
    pub latency: Duration,
}

impl EmulatedLink {
    /// How long a collective takes with this many members: what a ring moves over each link.
    pub fn time(&self, collective: &CollectiveSpec, members: usize) -> Duration {
        let n = members.max(1) as f64;
        let share = match collective.kind {
            ExchangeKind::AllReduce => 2.0 * (n - 1.0) / n,
            ExchangeKind::AllGather
            | ExchangeKind::ReduceScatter
            | ExchangeKind::AllToAll
            | ExchangeKind::AllToAllTuple
            | ExchangeKind::RaggedAllToAll => (n - 1.0) / n,
            ExchangeKind::Permute | ExchangeKind::Broadcast => 1.0,
        };
        self.latency + Duration::from_secs_f64(collective.bytes as f64 * share / self.bandwidth)
    }

    /// How long a message of this many bytes takes.
    pub(super) fn message_time(&self, bytes: usize) -> Duration {
        self.latency + Duration::from_secs_f64(bytes as f64 / self.bandwidth)
    }
}

impl FromStr for EmulatedLink {
    type Err = &'static str;

    /// `10GB/s,20us`; the `/s` is optional.
    fn from_str(text: &str) -> Result<EmulatedLink, &'static str> {
        const SIZES: [(&str, f64); 4] = [("KB", 1e3), ("MB", 1e6), ("GB", 1e9), ("TB", 1e12)];
        const TIMES: [(&str, f64); 4] = [("ns", 1e-9), ("us", 1e-6), ("ms", 1e-3), ("s", 1.0)];
        const FORM: &str = "it must be a bandwidth and a latency such as 10GB/s,20us";
        let (bandwidth, latency) = text.split_once(',').ok_or(FORM)?;
        let bandwidth = bandwidth.trim().trim_end_matches("/s");
        let number = |text: &str, units: &[(&str, f64)]| {
            let (digits, scale) =
                units.iter().find_map(|(unit, scale)| Some((text.strip_suffix(unit)?, scale)))?;
            digits
                .trim()
                .parse::<f64>()
                .ok()
                .map(|number| number * scale)
                .filter(|number| number.is_finite())
        };
        let bandwidth = number(bandwidth, &SIZES).filter(|rate| *rate > 0.0).ok_or(FORM)?;
        let latency = number(latency.trim(), &TIMES)
            .filter(|time| (0.0..=3600.0).contains(time))
            .ok_or(FORM)?;
        Ok(EmulatedLink { bandwidth, latency: Duration::from_secs_f64(latency) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_is_read() {
        let link: EmulatedLink = "12.5GB/s, 20us".parse().unwrap();
        assert_eq!(link, EmulatedLink { bandwidth: 12.5e9, latency: Duration::from_micros(20) });
        for wrong in ["10GB/s", "0GB,1us", "10,1us", "10GB,1", "infGB,1us", "-1GB,1us", "1GB,-1us"]
        {
            assert!(wrong.parse::<EmulatedLink>().is_err(), "{wrong}");
        }
    }
}
