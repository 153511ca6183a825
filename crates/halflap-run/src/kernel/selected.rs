//! The usual gradient of a maximum or minimum over windows: elements are selected by comparing them
//! as they are, and sources are added up. Dimensions at the end that the window does not extend
//! over (features) are walked together.

use halflap_hlo::{Opcode, WindowDim};

use super::Buffers;
use super::block::CompareOp;
use super::formula::{Formula, Op};
use super::math::Real;
use super::plan::{ArraySlot, KernelStage, parts_of};
use super::walk::{MOST_DIMS, each_index, strides};
use super::window::{is_still, seen};
use crate::tensor::{DType, element_count};

/// Where everything is.
#[derive(Clone, Copy)]
pub(super) struct Slots {
    pub(super) from: ArraySlot,
    pub(super) source: ArraySlot,
    pub(super) init: ArraySlot,
    pub(super) to: ArraySlot,
}

/// A window, the array that it moves over, and the sources, one for each of its positions.
#[derive(Clone, Copy)]
pub(super) struct WindowShape<'w> {
    pub(super) window: &'w [WindowDim],
    pub(super) dims: &'w [usize],
    pub(super) source_dims: &'w [usize],
}

pub(super) struct Selected {
    slots: Slots,
    is_double: bool,
    direction: CompareOp,
    /// The dimensions that the window extends over, and those before them.
    window: Vec<WindowDim>,
    dims: Vec<usize>,
    source_dims: Vec<usize>,
    /// The window's extents, and the steps of the array and of the source.
    sizes: Vec<usize>,
    by: Vec<i64>,
    source_by: Vec<i64>,
    /// How many elements the rest has.
    tail: usize,
}

/// How the elements are compared, if they are compared as they are.
fn compared(select: &Formula) -> Option<CompareOp> {
    let [output] = select.outputs[..] else { return None };
    let term = select.term(output);
    let Op::Compare { direction, is_total: false } = term.op else { return None };
    let is_input = |at: usize| matches!(select.term(term.args[at]).op, Op::Input(n) if n == at);
    (is_input(0) && is_input(1)).then_some(direction)
}

impl Selected {
    /// Nothing if it is another computation or type.
    pub(super) fn new(
        slots: Slots,
        dtype: DType,
        [select, combine]: [&Formula; 2],
        shape: WindowShape<'_>,
    ) -> Option<Selected> {
        let WindowShape { window, dims, source_dims } = shape;
        let direction = compared(select)?;
        let is_usual = matches!(dtype, DType::F32 | DType::F64)
            && combine.single_binary() == Some(Opcode::Add);
        let moving = window.iter().rposition(|dim| !is_still(dim)).map_or(0, |last| last + 1);
        is_usual.then(|| Selected {
            slots,
            is_double: dtype == DType::F64,
            direction,
            window: window[..moving].to_vec(),
            dims: dims[..moving].to_vec(),
            source_dims: source_dims[..moving].to_vec(),
            sizes: window[..moving].iter().map(|dim| dim.size as usize).collect(),
            by: strides(&dims[..moving]),
            source_by: strides(&source_dims[..moving]),
            tail: dims[moving..].iter().product(),
        })
    }

    /// Whether the first dimension can be split: windows of one part see nothing of another.
    fn is_splittable(&self) -> bool {
        self.window.first().is_some_and(is_still)
    }

    /// # Safety
    /// The slots must hold arrays of this type.
    unsafe fn go<T: Real>(&self, buffers: &Buffers<'_>, stays: impl Fn(T, T) -> bool) {
        let Slots { from, source, init, to } = self.slots;
        let (from, source) = (buffers.read(from).cast::<T>(), buffers.read(source).cast::<T>());
        let (to, tail) = (buffers.write(to).cast::<T>(), self.tail);
        let mut dims = [0; MOST_DIMS];
        let dims = &mut dims[..self.source_dims.len()];
        dims.copy_from_slice(&self.source_dims);
        let first = match dims.first_mut().filter(|_| self.is_splittable()) {
            None => 0,
            Some(rows) => {
                let share = buffers.share(*rows);
                *rows = share.len();
                share.start
            }
        };
        let row = self.by.first().map_or(0, |&by| by as usize * tail);
        let len = match self.is_splittable() {
            true => dims[0] * row,
            false => element_count(&self.dims) * tail,
        };
        // SAFETY: this part's elements of the result; the caller's promise.
        let own = unsafe { std::slice::from_raw_parts_mut(to.add(first * row), len) };
        // SAFETY: the caller's promise.
        own.fill(unsafe { *buffers.read(init).cast::<T>() });
        // SAFETY: local memory has room for every place of a window.
        let places = unsafe {
            let count = element_count(&self.sizes);
            std::slice::from_raw_parts_mut(buffers.local().cast::<usize>(), count)
        };
        let mut number = self.source_by.first().map_or(0, |&by| first * by as usize);
        each_index(dims, |output| {
            let count = self.look(output, first, places);
            if let Some((&start, others)) = places[..count].split_first() {
                for feature in 0..tail {
                    // SAFETY: elements of the arrays, and of this part of the result.
                    unsafe {
                        let mut at = start;
                        for &other in others {
                            let known = *from.add(at * tail + feature);
                            let is_kept = stays(known, *from.add(other * tail + feature));
                            at = if is_kept { at } else { other };
                        }
                        let to = to.add(at * tail + feature);
                        *to = (*to).add(*source.add(number * tail + feature));
                    }
                }
            }
            number += 1;
        });
    }

    /// Finds the places that a window sees, in its sequence, and returns their number. `output` is
    /// the window's index within the part of the work that begins with row `first`.
    fn look(&self, output: &[usize], first: usize, found: &mut [usize]) -> usize {
        let mut count = 0;
        each_index(&self.sizes, |place| {
            let at = (0..self.dims.len()).try_fold(0, |at, dim| {
                let output = output[dim] + if dim == 0 { first } else { 0 };
                let index = seen(&self.window[dim], self.dims[dim], output, place[dim])?;
                Some(at + index * self.by[dim] as usize)
            });
            if let Some(at) = at {
                found[count] = at;
                count += 1;
            }
        });
        count
    }

    /// # Safety
    /// The slots must hold arrays of this type.
    unsafe fn typed<T: Real>(&self, buffers: &Buffers<'_>) {
        // SAFETY: the caller's promise.
        unsafe {
            match self.direction {
                CompareOp::Ge => self.go(buffers, |a: T, b: T| a >= b),
                CompareOp::Gt => self.go(buffers, |a: T, b: T| a > b),
                CompareOp::Le => self.go(buffers, |a: T, b: T| a <= b),
                CompareOp::Lt => self.go(buffers, |a: T, b: T| a < b),
                CompareOp::Eq => self.go(buffers, |a: T, b: T| a == b),
                CompareOp::Ne => self.go(buffers, |a: T, b: T| a != b),
            }
        }
    }
}

impl KernelStage for Selected {
    unsafe fn run(&self, buffers: &Buffers<'_>) {
        // SAFETY: the slots hold arrays of the type that was planned.
        unsafe {
            match self.is_double {
                true => self.typed::<f64>(buffers),
                false => self.typed::<f32>(buffers),
            }
        }
    }

    fn local_bytes(&self) -> usize {
        element_count(&self.sizes) * size_of::<usize>()
    }

    fn parts(&self) -> usize {
        let work = element_count(&self.dims) * self.tail * 4;
        if self.is_splittable() { parts_of(work, self.source_dims[0]) } else { 1 }
    }
}
