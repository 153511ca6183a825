//! Compute: whichever takes longer, the arithmetic or the memory traffic.

use super::Device;
use crate::collective::CollectiveKind;
use crate::graph::Collective;
use crate::units::{Bandwidth, Bytes, Flops, Nanos};

/// Bandwidth between a device and its host: PCIe 5.0 x16, as achieved.
const HOST: Bandwidth = Bandwidth::gigas(50.0);

/// The fixed cost of a transfer.
const TRANSFER: Nanos = Nanos::micros(1.0);

/// How long a kernel takes on a device; `None` if neither its work nor its traffic is known. If
/// only one of them is unknown, it counts as zero.
pub(super) fn time(device: &Device, flops: Option<Flops>, bytes: Option<Bytes>) -> Option<Nanos> {
    let arithmetic = flops.map(|flops| flops / device.peak);
    let traffic = bytes.map(|bytes| bytes / device.memory);
    let work = match (arithmetic, traffic) {
        (Some(arithmetic), Some(traffic)) => arithmetic.max(traffic),
        (known, None) | (None, known) => known?,
    };
    Some(work + device.launch)
}

/// How long it takes to move something from memory to memory, where it is read and written, or
/// between the device and its host.
pub(super) fn transfer(device: &Device, transfer: &Collective) -> Nanos {
    let bytes = transfer.bytes();
    let twice = Bytes(bytes.0.saturating_mul(2));
    TRANSFER
        + match transfer.kind {
            CollectiveKind::HostTransfer => bytes / HOST,
            _ => twice / device.memory,
        }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longer_of_arithmetic_and_traffic() {
        let a100 = Device::named("a100").unwrap();
        let time = |flops: Option<f64>, bytes: Option<i64>| {
            time(&a100, flops.map(Flops), bytes.map(Bytes)).map(|time| time.0.round())
        };
        // 312 GFLOP at 312 TFLOP/s are 1 ms; 2,039 MB at 2,039 GB/s, too; a launch is 2.5 us.
        assert_eq!(time(Some(312e9), Some(203_900_000)), Some(1_002_500.0));
        assert_eq!(time(Some(31.2e9), Some(2_039_000_000)), Some(1_002_500.0));
        assert_eq!(time(Some(312e9), None), Some(1_002_500.0));
        assert_eq!(time(None, Some(203_900_000)), Some(102_500.0));
        assert_eq!(time(Some(0.0), Some(0)), Some(2500.0));
        assert_eq!(time(None, None), None);
    }
}
