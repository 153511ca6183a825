//! Convolutions with few output features: the input is copied once, padded and dilated, so that the
//! neighbours of one dimension lie together. Many neighbouring sums are then kept in registers, and
//! every place of the window adds its row to all of them. A matrix of windows would take longer to
//! copy than to multiply.

use super::Buffers;
use super::matrix::GemmReal;
use super::plan::{ArraySlot, KernelStage, parts_of};
use crate::tensor::DType;

/// How many neighbours are summed up at once. So many elements behind the planes are read, too.
pub(super) const TILE: usize = 32;
/// With more output features, a product of matrices is faster.
pub(super) const MOST_OUTPUTS: usize = 2;

/// A dimension of the result besides the one along which sums are neighbours.
#[derive(Clone, Copy)]
pub(super) struct PlaneAxis {
    pub(super) count: usize,
    /// The steps in the planes and in the result.
    pub(super) from: usize,
    pub(super) to: isize,
}

/// A convolution of planes. All steps are in elements.
pub(super) struct PlaneConv {
    pub(super) dtype: DType,
    pub(super) planes: ArraySlot,
    /// For each group and output feature, a factor for each offset.
    pub(super) weights: ArraySlot,
    pub(super) to: ArraySlot,
    /// Groups first, then batches, then spatial dimensions.
    pub(super) axes: Vec<PlaneAxis>,
    /// The output features of a group, and the step from one to the next in the result.
    pub(super) outputs: (usize, isize),
    /// How many neighbours there are, and their step in the result.
    pub(super) line: (usize, isize),
    /// Where in the planes each factor's element is, from that of the first.
    pub(super) offsets: Vec<usize>,
}

/// A number that is multiplied and added.
trait PlaneReal: GemmReal {
    const NOTHING: Self;

    /// The product with `factor`, plus `sum`, rounded twice.
    fn added(self, factor: Self, sum: Self) -> Self;
    /// The same, rounded once.
    fn fused(self, factor: Self, sum: Self) -> Self;
}

macro_rules! real {
    ($($type:ty),*) => {$(
        impl PlaneReal for $type {
            const NOTHING: $type = 0.0;

            #[inline(always)]
            fn added(self, factor: $type, sum: $type) -> $type {
                self * factor + sum
            }

            #[inline(always)]
            fn fused(self, factor: $type, sum: $type) -> $type {
                self.mul_add(factor, sum)
            }
        }
    )*};
}

real!(f32, f64);

/// The sums of some neighbours for each output feature.
type Sums<T, const OUTPUTS: usize> = [[T; TILE]; OUTPUTS];

/// Sums up what a window sees, for neighbours from `from` on.
type TileFn<T, const OUTPUTS: usize> =
    unsafe fn(offsets: &[usize], weights: *const T, from: *const T) -> Sums<T, OUTPUTS>;

macro_rules! tile {
    ($name:ident $step:ident $(#[$feature:meta])*) => {
        /// # Safety
        /// A tile must lie behind each offset, and a weight for each offset and output feature.
        $(#[$feature])*
        unsafe fn $name<T: PlaneReal, const OUTPUTS: usize>(
            offsets: &[usize],
            weights: *const T,
            from: *const T,
        ) -> Sums<T, OUTPUTS> {
            let mut sums = [[T::NOTHING; TILE]; OUTPUTS];
            for (number, &offset) in offsets.iter().enumerate() {
                // SAFETY: the caller's promise.
                let row = unsafe { *from.add(offset).cast::<[T; TILE]>() };
                for (output, sums) in sums.iter_mut().enumerate() {
                    // SAFETY: as above.
                    let factor = unsafe { *weights.add(output * offsets.len() + number) };
                    for at in 0..TILE {
                        sums[at] = row[at].$step(factor, sums[at]);
                    }
                }
            }
            sums
        }
    };
}

tile!(tile_plain added);
#[cfg(target_arch = "x86_64")]
tile!(tile_wide fused #[target_feature(enable = "avx2,fma")]);

fn tile_fn<T: PlaneReal, const OUTPUTS: usize>() -> TileFn<T, OUTPUTS> {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
        return tile_wide::<T, OUTPUTS>;
    }
    tile_plain::<T, OUTPUTS>
}

impl PlaneConv {
    fn tiles(&self) -> usize {
        self.line.0.div_ceil(TILE)
    }

    fn units(&self) -> usize {
        self.axes.iter().map(|axis| axis.count).product::<usize>() * self.tiles()
    }

    /// # Safety
    /// See [`KernelStage::run`]; there must be so many output features.
    unsafe fn compute<T: PlaneReal, const OUTPUTS: usize>(&self, buffers: &Buffers<'_>) {
        let tile_fn = tile_fn::<T, OUTPUTS>();
        let planes = buffers.read(self.planes).cast::<T>();
        let weights = buffers.read(self.weights).cast::<T>();
        let to = buffers.write(self.to).cast::<T>();
        let (len, by) = self.line;
        for unit in buffers.share(self.units()) {
            let (mut rest, tile) = (unit / self.tiles(), unit % self.tiles());
            let first = tile * TILE;
            let (mut from, mut place, mut group) = (first, first as isize * by, 0);
            for (number, axis) in self.axes.iter().enumerate().rev() {
                let index = rest % axis.count;
                rest /= axis.count;
                from += index * axis.from;
                place += index as isize * axis.to;
                group = if number == 0 { index } else { group };
            }
            // SAFETY: elements of the planes, which have a tile more than they need, a group's
            // weights, and elements of the result.
            unsafe {
                let weights = weights.add(group * OUTPUTS * self.offsets.len());
                let sums = tile_fn(&self.offsets, weights, planes.add(from));
                for (output, sums) in sums.iter().enumerate() {
                    let to = to.offset(place + output as isize * self.outputs.1);
                    for (at, &sum) in sums[..TILE.min(len - first)].iter().enumerate() {
                        *to.offset(at as isize * by) = sum;
                    }
                }
            }
        }
    }

    /// # Safety
    /// See [`KernelStage::run`].
    unsafe fn sum<T: PlaneReal>(&self, buffers: &Buffers<'_>) {
        // SAFETY: the caller's promise, passed on; others are not planned.
        unsafe {
            match self.outputs.0 {
                1 => self.compute::<T, 1>(buffers),
                _ => self.compute::<T, MOST_OUTPUTS>(buffers),
            }
        }
    }
}

impl KernelStage for PlaneConv {
    unsafe fn run(&self, buffers: &Buffers<'_>) {
        // SAFETY: the caller's promise, passed on.
        unsafe {
            match self.dtype {
                DType::F64 => self.sum::<f64>(buffers),
                _ => self.sum::<f32>(buffers),
            }
        }
    }

    fn parts(&self) -> usize {
        let work = self.units() * TILE * self.offsets.len() * self.outputs.0;
        parts_of(work / 16, self.units())
    }
}
