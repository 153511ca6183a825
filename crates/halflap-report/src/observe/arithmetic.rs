//! The arithmetic of kernels: matrix products, by the shapes that the profiler recorded.
//!
//! The profiler does not say what a kernel computes. It says which operator called for it: the call
//! that launched the kernel lies within the operator, on the same thread. Of the kernels of one
//! product the longest does the work; the others prepare it or sum up parts.

use super::busy::BusyStretch;
use super::idle::Launched;
use super::trace::{Moment, Slice};
use crate::observe::ids::{KernelId, ThreadId};
use crate::rates::KernelRate;
use halflap::cost::Device;
use halflap::ids::IdVec;
use halflap::units::{Flops, Nanos};

/// A matrix product that an operator of the host asked for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Product {
    pub(super) thread: ThreadId,
    pub(super) when: BusyStretch,
    pub(super) flops: Flops,
    /// Whether it is of bf16 or f16 numbers.
    pub(super) is_half: bool,
}

/// The known arithmetic of a kernel's launches, and the time of those.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
#[non_exhaustive]
pub struct Arithmetic {
    /// The work.
    pub flops: Flops,
    /// Its time.
    pub time: Nanos,
    /// The part of the work on types that are not known to be bf16 or f16: a device's peak is for
    /// those.
    pub flops_of_others: Flops,
}

impl Arithmetic {
    /// The sum of both.
    pub(crate) fn and(self, other: Arithmetic) -> Arithmetic {
        Arithmetic {
            flops: Flops(self.flops.0 + other.flops.0),
            time: self.time + other.time,
            flops_of_others: Flops(self.flops_of_others.0 + other.flops_of_others.0),
        }
    }

    /// The rate, relative to the device's peak if that is for these types.
    pub(crate) fn rate(self, device: Option<&Device>) -> Option<KernelRate> {
        let device = device.filter(|_| self.flops_of_others.0 == 0.0);
        KernelRate::of(self.flops, self.time, device)
    }
}

/// Operators that compute one product, and which of their arguments is its left matrix.
const PRODUCTS: [(&[u8], usize); 5] = [
    (b"aten::mm", 0),
    (b"aten::addmm", 1),
    (b"aten::bmm", 0),
    (b"aten::baddbmm", 1),
    (b"aten::_scaled_mm", 0),
];

/// Which argument is the left matrix, if an operator is a matrix product.
#[inline]
pub(super) fn left_matrix(operator: &[u8]) -> Option<usize> {
    PRODUCTS.iter().find(|(name, _)| *name == operator).map(|&(_, left)| left)
}

/// The arithmetic of a matrix product, or of a batch of them, from the shapes of its operator's
/// arguments: a multiplication and an addition for each term.
pub(super) fn product_flops(shapes: &[u8], left: usize) -> Option<Flops> {
    let shapes: Vec<Vec<i64>> = serde_json::from_slice(shapes).ok()?;
    let (rows, terms, columns, pairs) =
        match (shapes.get(left)?[..].as_ref(), &shapes.get(left + 1)?[..]) {
            ([rows, terms], [same, columns]) if terms == same => (*rows, *terms, *columns, 1),
            ([pairs, rows, terms], [as_many, same, columns])
                if terms == same && pairs == as_many =>
            {
                (*rows, *terms, *columns, *pairs)
            }
            _ => return None,
        };
    let known = [rows, terms, columns, pairs].iter().all(|&length| length > 0);
    known.then_some(Flops(2.0 * rows as f64 * terms as f64 * columns as f64 * pairs as f64))
}

/// Whether the left matrix is of bf16 or f16 numbers, by the types of its operator's arguments.
pub(super) fn is_half(types: Option<&[u8]>, left: usize) -> bool {
    let types = types.and_then(|types| serde_json::from_slice::<Vec<String>>(types).ok());
    let of_left = types.and_then(|types| types.into_iter().nth(left)).unwrap_or_default();
    let name = of_left.rsplit("::").next().unwrap_or_default().to_lowercase();
    matches!(name.as_str(), "bfloat16" | "half")
}

/// The arithmetic of each of these kernels. `launched` maps the host's calls to slices.
pub(super) fn arithmetic(
    slices: &[Slice],
    launched: &[Launched],
    mut products: Vec<Product>,
    kernels: usize,
) -> IdVec<KernelId, Arithmetic> {
    products.sort_by_key(|product| (product.thread, product.when.start));
    let product_of = |thread: ThreadId, at: Moment| {
        let after = products
            .partition_point(|product| (product.thread, product.when.start) <= (thread, at));
        let place = after.checked_sub(1)?;
        let Product { thread: of, when, .. } = products[place];
        (of == thread && at <= when.end).then_some(place)
    };
    let mut longest: Vec<Option<usize>> = vec![None; products.len()];
    for call in launched {
        let Some(product) = product_of(call.thread, call.called) else { continue };
        let (slice, best) = (call.slice as usize, &mut longest[product]);
        if best.is_none_or(|best| slices[slice].time() > slices[best].time()) {
            *best = Some(slice);
        }
    }
    let mut of = IdVec::filled(Arithmetic::default(), kernels);
    for (product, slice) in products.iter().zip(longest) {
        if let Some(slice) = slice.map(|slice| &slices[slice]) {
            let flops_of_others = if product.is_half { Flops(0.0) } else { product.flops };
            let (flops, time) = (product.flops, slice.time());
            let sum: &mut Arithmetic = &mut of[slice.kernel];
            *sum = sum.and(Arithmetic { flops, time, flops_of_others });
        }
    }
    of
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::{Analysis, Rank, TraceLimits, read_trace};
    use super::*;

    #[test]
    fn products_count_each_term_twice() {
        let flops =
            |shapes: &str, left| product_flops(shapes.as_bytes(), left).map(|flops| flops.0);
        assert_eq!(flops("[[2, 3], [3, 5]]", 0), Some(60.0));
        assert_eq!(flops("[[5], [2, 3], [3, 5], [], []]", 1), Some(60.0));
        assert_eq!(flops("[[7, 2, 3], [7, 3, 5]]", 0), Some(420.0));
        for bad in ["[[2, 3], [4, 5]]", "[[2, 3]]", "[[2, 0], [0, 5]]", "[[7, 2, 3], [3, 5]]", "x"]
        {
            assert_eq!(flops(bad, 0), None, "{bad}");
        }
        assert_eq!([left_matrix(b"aten::mm"), left_matrix(b"aten::mul")], [Some(0), None]);
        let types = br#"["float", "c10::BFloat16", "c10::Half"]"#;
        let halves = [0, 1, 2, 3].map(|left| is_half(Some(types), left));
        assert_eq!((halves, is_half(None, 0)), ([false, true, true, false], false));
    }

    /// A product on a thread whose two kernels take 10 and 100 us, launched by calls within it.
    /// What another thread launches meanwhile, and what is launched later, is not its work.
    #[test]
    fn the_longest_kernel_of_a_product_does_its_work() {
        let host = |category: &str, name: &str, thread: i64, start: i64, args: Value| {
            json!({ "ph": "X", "cat": category, "name": name, "pid": 9, "tid": thread, "ts": start,
                "dur": if category == "cpu_op" { 20 } else { 2 }, "args": args })
        };
        let call = |number: i64, thread: i64, start: i64| {
            host(
                "cuda_runtime",
                "cudaLaunchKernel",
                thread,
                start,
                json!({ "correlation": number }),
            )
        };
        let kernel = |name: &str, number: i64, start: i64, time: i64| {
            json!({ "ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 7, "ts": start,
                "dur": time, "args": { "device": 0, "stream": 7, "correlation": number } })
        };
        let types = ["c10::BFloat16"; 2];
        let shapes = json!({ "Input Dims": [[1000, 1000], [1000, 1000]], "Input type": types });
        let events = json!([
            kernel("gemm", 2, 200, 100),
            kernel("prepare", 1, 100, 10),
            kernel("other", 3, 400, 300),
            kernel("later", 4, 800, 300),
            call(1, 1, 12),
            call(2, 1, 16),
            call(3, 2, 14),
            call(4, 1, 60),
            host("cpu_op", "aten::mm", 1, 10, shapes),
            host("cpu_op", "aten::mm", 1, 40, json!({})),
        ]);
        let devices = json!([{ "id": 0, "name": "NVIDIA H100 80GB HBM3" }]);
        let trace = json!({ "deviceProperties": devices, "traceEvents": events });
        let trace = read_trace(trace.to_string().as_bytes(), TraceLimits::default()).unwrap();
        let rank = Rank::of(&trace, "t.json");
        let worked = rank.kernel_uses.iter().filter(|used| used.arithmetic.flops.0 > 0.0);
        let worked: Vec<_> =
            worked.map(|used| (rank.kernel(used.kernel), used.arithmetic)).collect();
        let (flops, time, flops_of_others) = (Flops(2e9), Nanos(100e3), Flops(0.0));
        let arithmetic = Arithmetic { flops, time, flops_of_others };
        assert_eq!(worked, [("gemm", arithmetic)]);
        let (name, device) = rank.preset().unwrap();
        assert_eq!(name, "h100");
        // The device's peak is that of bf16: with other numbers nothing is compared with it.
        let of_peak = |work: Arithmetic| work.rate(Some(&device)).unwrap().of_peak;
        assert_eq!(of_peak(arithmetic), Some(2e13 / device.peak.0));
        assert_eq!(of_peak(Arithmetic { flops_of_others: flops, ..arithmetic }), None);
        assert!(Analysis::of(vec![rank]).rates[0].is_empty());
    }
}
