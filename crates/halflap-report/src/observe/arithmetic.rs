//! The arithmetic of kernels: matrix products, by the shapes that the profiler recorded.
//!
//! The profiler does not say what a kernel computes. It says which operator called for it: the call
//! that launched the kernel lies within the operator, on the same thread. Of the kernels of one
//! product the longest does the work; the others prepare it or sum up parts.

use super::busy::BusyStretch;
use super::idle::Launched;
use super::trace::{Moment, Slice};
use crate::observe::ids::{KernelId, ThreadId};
use halflap::ids::IdVec;
use halflap::units::{Flops, Nanos};

/// A matrix product that an operator of the host asked for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Product {
    pub(super) thread: ThreadId,
    pub(super) when: BusyStretch,
    pub(super) flops: Flops,
}

/// What launches of a kernel computed, as far as it is known, and how long those took.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
#[non_exhaustive]
pub struct Arithmetic {
    /// How much.
    pub flops: Flops,
    /// In what time.
    pub time: Nanos,
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

/// The arithmetic of a product of two matrices, or of as many pairs of them, whose shapes are among
/// those of its operator's arguments: a multiplication and an addition for each term.
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
    known.then(|| Flops(2.0 * rows as f64 * terms as f64 * columns as f64 * pairs as f64))
}

/// What each of so many kernels computed. `launched` is what the calls of the host launched of the
/// slices.
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
            let sum: &mut Arithmetic = &mut of[slice.kernel];
            sum.flops.0 += product.flops.0;
            sum.time += slice.time();
        }
    }
    of
}
