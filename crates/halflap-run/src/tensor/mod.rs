//! Arrays: dense, the last index fastest, dimensions in the order of HLO's shapes.
//!
//! The layouts in a module's text are not part of a value. A [`Tensor`] owns its memory, a [`View`]
//! or [`ViewMut`] borrows it. Viewed memory is aligned to its element type and exactly as long as
//! its dimensions require.

mod dtype;
mod finite;
pub(crate) mod mini;
pub mod npy;
mod zip;

pub(crate) use dtype::to_f64 as numbers;
pub use dtype::{Complex, DType, Element};
pub(crate) use finite::{Worst, worst_of};
pub use mini::{Mini, Tiny};
pub use npy::{NpyError, Npz, read_npy, write_npy, write_npz};

use std::marker::PhantomData;
use std::ptr::NonNull;

use thiserror::Error;

/// Memory that does not match the array that it should hold.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[allow(missing_docs)]
pub enum Misfit {
    #[error("an array {dtype}{dims:?} has {expected} bytes, and the memory given for it {given}")]
    Size { dtype: DType, dims: Vec<usize>, expected: usize, given: usize },
    #[error("memory for {dtype} must be aligned to {} bytes", .dtype.align())]
    Alignment { dtype: DType },
}

/// The number of elements of an array with these dimensions.
pub fn element_count(dims: &[usize]) -> usize {
    dims.iter().product()
}

/// An array that is read.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    dtype: DType,
    dims: &'a [usize],
    start: NonNull<u8>,
    life: PhantomData<&'a [u8]>,
}

/// An array that is written.
#[derive(Debug)]
pub struct ViewMut<'a> {
    dtype: DType,
    dims: &'a [usize],
    start: NonNull<u8>,
    life: PhantomData<&'a mut [u8]>,
}

// SAFETY: a view is equivalent to a shared slice of bytes.
unsafe impl Send for View<'_> {}
// SAFETY: as above.
unsafe impl Sync for View<'_> {}
// SAFETY: this one is a unique slice.
unsafe impl Send for ViewMut<'_> {}
// SAFETY: as above.
unsafe impl Sync for ViewMut<'_> {}

fn check(dtype: DType, dims: &[usize], bytes: &[u8]) -> Result<(), Misfit> {
    let expected = element_count(dims) * dtype.size();
    if expected != bytes.len() {
        return Err(Misfit::Size { dtype, dims: dims.to_vec(), expected, given: bytes.len() });
    }
    match bytes.as_ptr().align_offset(dtype.align()) {
        0 => Ok(()),
        _ => Err(Misfit::Alignment { dtype }),
    }
}

impl<'a> View<'a> {
    /// Memory viewed as an array.
    pub fn new(dtype: DType, dims: &'a [usize], bytes: &'a [u8]) -> Result<View<'a>, Misfit> {
        check(dtype, dims, bytes)?;
        let start = NonNull::from(bytes).cast();
        Ok(View { dtype, dims, start, life: PhantomData })
    }

    /// Memory seen as an array, where a kernel may write to it at the same time because it said
    /// that this input can be an output ([`crate::kernel::Kernel::can_share`]).
    ///
    /// # Safety
    /// `start` must be aligned to the type and point to memory for all elements that lives for
    /// `'a`, and must not be written elsewhere during that time.
    pub const unsafe fn from_raw(dtype: DType, dims: &'a [usize], start: NonNull<u8>) -> View<'a> {
        View { dtype, dims, start, life: PhantomData }
    }

    /// The type of the elements.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// How long each dimension is.
    pub fn dims(&self) -> &'a [usize] {
        self.dims
    }

    /// How many elements there are.
    pub fn len(&self) -> usize {
        element_count(self.dims)
    }

    /// Whether there is no element.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Where the elements start.
    pub fn as_ptr(&self) -> *const u8 {
        self.start.as_ptr()
    }

    /// The elements as bytes.
    pub fn bytes(&self) -> &'a [u8] {
        // SAFETY: the creator of the view guarantees memory for all elements for 'a.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len() * self.dtype.size()) }
    }

    /// The elements. Panics where they are of another type.
    pub fn slice<T: Element>(&self) -> &'a [T] {
        assert!(T::holds(self.dtype), "an array of {} read as something else", self.dtype);
        // SAFETY: as above; the type is the array's, and a view is aligned to it.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr().cast(), self.len()) }
    }

    /// A copy of it.
    pub fn to_tensor(&self) -> Tensor {
        let mut tensor = Tensor::zeros(self.dtype, self.dims);
        tensor.bytes_mut().copy_from_slice(self.bytes());
        tensor
    }
}

impl<'a> ViewMut<'a> {
    /// Memory to be written as an array.
    pub fn new(
        dtype: DType,
        dims: &'a [usize],
        bytes: &'a mut [u8],
    ) -> Result<ViewMut<'a>, Misfit> {
        check(dtype, dims, bytes)?;
        let start = NonNull::from(bytes).cast();
        Ok(ViewMut { dtype, dims, start, life: PhantomData })
    }

    /// Memory to be written as an array, which may also be seen by a [`View::from_raw`].
    ///
    /// # Safety
    /// `start` must be aligned to the type and point to memory for all elements that lives for
    /// `'a`; it must not be accessed elsewhere during that time, except by a view that the kernel
    /// allows to share it.
    pub const unsafe fn from_raw(
        dtype: DType,
        dims: &'a [usize],
        start: NonNull<u8>,
    ) -> ViewMut<'a> {
        ViewMut { dtype, dims, start, life: PhantomData }
    }

    /// The type of the elements.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// How long each dimension is.
    pub fn dims(&self) -> &'a [usize] {
        self.dims
    }

    /// How many elements there are.
    pub fn len(&self) -> usize {
        element_count(self.dims)
    }

    /// Whether there is no element.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Where the elements start, to track writes.
    pub(crate) fn raw(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// Where the elements start.
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// The elements as bytes.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: the creator of the view guarantees exclusive memory for all elements.
        unsafe {
            std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len() * self.dtype.size())
        }
    }
}

/// A cache line: what owned memory is made of, so that it is aligned for every type.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct CacheLine([u8; 64]);

/// Memory aligned to a cache line.
#[derive(Clone, Default)]
pub(crate) struct AlignedBytes {
    lines: Vec<CacheLine>,
    len: usize,
}

impl AlignedBytes {
    pub(crate) fn zeros(len: usize) -> AlignedBytes {
        AlignedBytes { lines: vec![CacheLine([0; 64]); len.div_ceil(64)], len }
    }

    /// Makes it at least this long; its content may be lost.
    pub(crate) fn reserve(&mut self, len: usize) {
        if len > self.len {
            *self = AlignedBytes::zeros(len);
        }
    }

    pub(crate) fn as_ptr(&self) -> *const u8 {
        self.lines.as_ptr().cast()
    }

    pub(crate) fn as_mut_ptr(&mut self) -> *mut u8 {
        self.lines.as_mut_ptr().cast()
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: the lines are that many initialised bytes, at least.
        unsafe { std::slice::from_raw_parts(self.as_ptr(), self.len) }
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts_mut(self.as_mut_ptr(), self.len) }
    }
}

/// An array that owns its memory.
#[derive(Clone)]
pub struct Tensor {
    dtype: DType,
    dims: Vec<usize>,
    memory: AlignedBytes,
}

impl std::fmt::Debug for Tensor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}{:?}", self.dtype, self.dims)
    }
}

impl PartialEq for Tensor {
    fn eq(&self, other: &Tensor) -> bool {
        self.dtype == other.dtype && self.dims == other.dims && self.bytes() == other.bytes()
    }
}

impl Tensor {
    /// An array of zeros.
    pub fn zeros(dtype: DType, dims: &[usize]) -> Tensor {
        let memory = AlignedBytes::zeros(element_count(dims) * dtype.size());
        Tensor { dtype, dims: dims.to_vec(), memory }
    }

    /// An array of given elements, in the type that they have in Rust (`u8` and `bool`: see
    /// [`Element`]). Panics if their number does not match the dimensions.
    pub fn of<T: Element>(dims: &[usize], elements: &[T]) -> Tensor {
        Tensor::typed(T::DTYPE, dims, elements)
    }

    /// An array of a type that is held in another one of Rust's.
    pub fn typed<T: Element>(dtype: DType, dims: &[usize], elements: &[T]) -> Tensor {
        assert!(T::holds(dtype), "elements are not {dtype}");
        assert_eq!(
            elements.len(),
            element_count(dims),
            "as many elements as the dimensions ask for"
        );
        let mut tensor = Tensor::zeros(dtype, dims);
        tensor.slice_mut().copy_from_slice(elements);
        tensor
    }

    /// The type of the elements.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// How long each dimension is.
    pub fn dims(&self) -> &[usize] {
        &self.dims
    }

    /// How many elements there are.
    pub fn len(&self) -> usize {
        element_count(&self.dims)
    }

    /// Whether there is no element.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The elements as bytes.
    pub fn bytes(&self) -> &[u8] {
        self.memory.bytes()
    }

    /// The elements as bytes, to be written.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        self.memory.bytes_mut()
    }

    /// The elements. Panics where they are of another type.
    pub fn slice<T: Element>(&self) -> &[T] {
        self.view().slice()
    }

    /// The elements, to be written. Panics where they are of another type.
    pub fn slice_mut<T: Element>(&mut self) -> &mut [T] {
        assert!(T::holds(self.dtype), "an array of {} written as something else", self.dtype);
        // SAFETY: the memory is that long, aligned to a cache line, and any bytes are elements.
        unsafe { std::slice::from_raw_parts_mut(self.memory.as_mut_ptr().cast(), self.len()) }
    }

    /// To be read.
    pub fn view(&self) -> View<'_> {
        let start = NonNull::from(self.bytes()).cast();
        View { dtype: self.dtype, dims: &self.dims, start, life: PhantomData }
    }

    /// To be written.
    pub fn view_mut(&mut self) -> ViewMut<'_> {
        let start = NonNull::from(self.memory.bytes_mut()).cast();
        ViewMut { dtype: self.dtype, dims: &self.dims, start, life: PhantomData }
    }

    /// The same elements with other dimensions. Panics if the number of elements differs.
    pub fn reshaped(mut self, dims: &[usize]) -> Tensor {
        assert_eq!(self.len(), element_count(dims));
        self.dims = dims.to_vec();
        self
    }

    /// Every element as a number, for comparisons; of a complex one, the real part and then the
    /// imaginary one.
    pub fn to_f64(&self) -> Vec<f64> {
        dtype::to_f64(self.dtype, self.bytes())
    }
}
