//! Fourier transforms of any number of dimensions: one stage for each, which reads lines along it
//! and writes them back.
//!
//! Real lines of even length are transformed as complex ones of half the length. f32 is computed in
//! f32, but in f64 where a length has a large prime factor.

use super::Buffers;
use super::block::is_wide;
use super::error::Gap;
use super::formula::{Op, TermId, Transform};
use super::fourier::{LineTransform, Planes, Scalar, Twiddle, is_smooth, turn};
use super::plan::{ArraySlot, KernelStage, Planner, Trouble};
use crate::tensor::{Complex, DType};

/// How many lines are transformed together.
const LANES: usize = 8;

/// Contiguous lines with more elements than this are transformed one at a time.
const LONG: usize = 4096;

/// What is read and written.
#[derive(Clone, Copy, PartialEq, Eq)]
enum TransformKind {
    Complex { is_inverse: bool },
    FromReal,
    ToReal,
}

/// Where the lines of an array are, in numbers: a complex one is two.
#[derive(Clone, Copy)]
struct Grid {
    /// How many groups of lines there are, and how far they are apart.
    groups: usize,
    group_step: usize,
    /// How many lines a group has, and how far they are apart.
    lines: usize,
    line_step: usize,
    /// How far the elements of a line are apart.
    step: usize,
}

/// The lines of one dimension.
struct Lines<T, S> {
    from: ArraySlot,
    to: ArraySlot,
    kind: TransformKind,
    /// The length of a line.
    len: usize,
    line: LineTransform<T>,
    /// For real lines of even length: half a turn in as many steps.
    halves: Vec<Twiddle<T>>,
    input: Grid,
    output: Grid,
    scale: T,
    stored: std::marker::PhantomData<S>,
}

/// What a stage reads and writes.
#[derive(Clone, Copy)]
struct FftSlots {
    from: ArraySlot,
    to: ArraySlot,
}

/// The transform of one dimension of arrays whose last one has this many elements.
#[derive(Clone, Copy)]
struct FftStep {
    kind: TransformKind,
    dim: usize,
    last_len: usize,
}

/// The dimensions of one transform.
struct FftShape {
    batch: usize,
    lengths: Vec<usize>,
    is_double: bool,
}

pub(super) fn plan(planner: &mut Planner<'_>, id: TermId) -> Result<ArraySlot, Trouble> {
    let term = planner.formula.term(id);
    let Op::Fft { transform, lengths } = &term.op else {
        return Err(planner.fail(id, Gap::Operation));
    };
    let dims = &planner.formula.term(term.args[0]).dims;
    let is_usual = !lengths.is_empty() && !lengths.contains(&0);
    let Some(outer) = dims.len().checked_sub(lengths.len()).filter(|_| is_usual) else {
        return Err(planner.fail(id, Gap::Shape));
    };
    let shape = FftShape {
        batch: dims[..outer].iter().product(),
        lengths: lengths.clone(),
        is_double: matches!(term.dtype, DType::F64 | DType::C128),
    };
    let transform = *transform;
    let from = planner.make(term.args[0])?;
    let to = planner.target(id);
    shape.add_stages(planner, transform, FftSlots { from, to });
    Ok(to)
}

impl FftShape {
    /// All stages: one per dimension, the last first, unless its result is real.
    fn add_stages(&self, planner: &mut Planner<'_>, transform: Transform, ends: FftSlots) {
        let FftSlots { from, to } = ends;
        let last = self.lengths.len() - 1;
        let half = self.lengths[last] / 2 + 1;
        let forward = TransformKind::Complex { is_inverse: false };
        let inverse = TransformKind::Complex { is_inverse: true };
        match transform {
            Transform::Forward | Transform::Inverse => {
                let kind = if transform == Transform::Inverse { inverse } else { forward };
                let mut from = from;
                for dim in (0..=last).rev() {
                    let step = FftStep { kind, dim, last_len: self.lengths[last] };
                    self.add(planner, FftSlots { from, to }, step);
                    from = to;
                }
            }
            Transform::Real => {
                let first = FftStep { kind: TransformKind::FromReal, dim: last, last_len: half };
                self.add(planner, ends, first);
                for dim in (0..last).rev() {
                    let step = FftStep { kind: forward, dim, last_len: half };
                    self.add(planner, FftSlots { from: to, to }, step);
                }
            }
            Transform::InverseReal => {
                let mut from = from;
                if last > 0 {
                    let lines = self.batch * self.lengths[..last].iter().product::<usize>();
                    let size = if self.is_double { 16 } else { 8 };
                    let aside = planner.temp(lines * half * size);
                    for dim in (0..last).rev() {
                        let step = FftStep { kind: inverse, dim, last_len: half };
                        self.add(planner, FftSlots { from, to: aside }, step);
                        from = aside;
                    }
                }
                let step = FftStep { kind: TransformKind::ToReal, dim: last, last_len: half };
                self.add(planner, FftSlots { from, to }, step);
            }
        }
    }

    fn add(&self, planner: &mut Planner<'_>, ends: FftSlots, step: FftStep) {
        let len = self.lengths[step.dim];
        let is_even_real =
            !matches!(step.kind, TransformKind::Complex { .. }) && len.is_multiple_of(2);
        let is_exact = is_smooth(if is_even_real { len / 2 } else { len });
        match (self.is_double, is_exact) {
            (true, _) => planner.add(self.lines::<f64, f64>(ends, step)),
            (false, true) => planner.add(self.lines::<f32, f32>(ends, step)),
            (false, false) => planner.add(self.lines::<f64, f32>(ends, step)),
        }
    }

    fn lines<T: Scalar, S: Scalar>(&self, ends: FftSlots, step: FftStep) -> Lines<T, S> {
        let FftStep { kind, dim, last_len } = step;
        let len = self.lengths[dim];
        let last = self.lengths.len() - 1;
        let outer = self.batch * self.lengths[..dim].iter().product::<usize>();
        let inner: usize = match dim == last {
            true => 1,
            false => self.lengths[dim + 1..last].iter().product::<usize>() * last_len,
        };
        let across = Grid {
            groups: outer,
            group_step: 2 * len * inner,
            lines: inner,
            line_step: 2,
            step: 2 * inner,
        };
        let along = |len: usize, step: usize| Grid {
            groups: 1,
            group_step: 0,
            lines: outer,
            line_step: len * step,
            step,
        };
        let (real, half) = (along(len, 1), along(len / 2 + 1, 2));
        let (input, output) = match kind {
            TransformKind::FromReal => (real, half),
            TransformKind::ToReal => (half, real),
            TransformKind::Complex { .. } if dim == last => (along(len, 2), along(len, 2)),
            TransformKind::Complex { .. } => (across, across),
        };
        let is_packed = !matches!(kind, TransformKind::Complex { .. }) && len.is_multiple_of(2);
        let is_scaled =
            matches!(kind, TransformKind::Complex { is_inverse: true } | TransformKind::ToReal);
        Lines {
            from: ends.from,
            to: ends.to,
            kind,
            len,
            line: LineTransform::new(if is_packed { len / 2 } else { len }),
            halves: match is_packed {
                true => (0..=len / 2).map(|k| turn(2 * k, len)).collect(),
                false => Vec::new(),
            },
            input,
            output,
            scale: T::of(if is_scaled { 1.0 / len as f64 } else { 1.0 }),
            stored: std::marker::PhantomData,
        }
    }
}

/// A few lines of an array.
struct LineBlock<S> {
    start: *mut S,
    grid: Grid,
    count: usize,
}

impl<S: Scalar> LineBlock<S> {
    /// The number at a place of a line; of a complex element, its real part.
    ///
    /// # Safety
    /// The block must have it.
    #[inline(always)]
    unsafe fn at(&self, at: usize, line: usize) -> *mut S {
        // SAFETY: the caller's promise.
        unsafe { self.start.add(at * self.grid.step + line * self.grid.line_step) }
    }

    /// Whether as many complex lines as are transformed together lie beside each other.
    fn is_full_row(&self) -> bool {
        self.count == LANES && self.grid.line_step == 2
    }

    /// # Safety
    /// The block must have the element.
    #[inline(always)]
    unsafe fn real<T: Scalar>(&self, at: usize, line: usize) -> T {
        // SAFETY: the caller's promise.
        T::of(unsafe { self.at(at, line).read() }.get())
    }

    /// # Safety
    /// The block must have the element, which must be complex.
    #[inline(always)]
    unsafe fn complex<T: Scalar>(&self, at: usize, line: usize) -> (T, T) {
        // SAFETY: the caller's promise.
        let (re, im) = unsafe {
            let place = self.at(at, line);
            (place.read(), place.add(1).read())
        };
        (T::of(re.get()), T::of(im.get()))
    }

    /// # Safety
    /// The block must have the element, which must be complex.
    #[inline(always)]
    unsafe fn set<T: Scalar>(&self, at: usize, line: usize, value: Complex<T>) {
        // SAFETY: the caller's promise.
        unsafe {
            let place = self.at(at, line);
            place.write(S::of(value.re.get()));
            place.add(1).write(S::of(value.im.get()));
        }
    }
}

impl<T: Scalar, S: Scalar> Lines<T, S> {
    fn is_packed(&self) -> bool {
        !self.halves.is_empty()
    }

    /// How many lines are transformed beside each other.
    fn width(&self) -> usize {
        let is_along = self.input.groups == 1 && self.input.line_step > 2;
        if is_along && self.line.room() > LONG { 1 } else { LANES }
    }

    fn blocks(&self) -> usize {
        self.input.groups * self.input.lines.div_ceil(self.width())
    }

    /// Some lines of an array.
    ///
    /// # Safety
    /// It must hold all lines of the grid.
    unsafe fn block(&self, array: *mut u8, grid: Grid, number: usize) -> LineBlock<S> {
        let each = grid.lines.div_ceil(self.width());
        let first = number % each * self.width();
        let at = number / each * grid.group_step + first * grid.line_step;
        // SAFETY: the caller's promise.
        let start = unsafe { array.cast::<S>().add(at) };
        LineBlock { start, grid, count: self.width().min(grid.lines - first) }
    }

    /// # Safety
    /// The block must have the lines of the input.
    #[inline(always)]
    unsafe fn load(&self, from: &LineBlock<S>, planes: &mut Planes<'_, T>) {
        if matches!(self.kind, TransformKind::Complex { .. }) {
            // SAFETY: the caller's promise.
            return unsafe { self.load_complex(from, planes) };
        }
        let count = from.count;
        let rows = planes.re.chunks_exact_mut(count).zip(planes.im.chunks_exact_mut(count));
        for (at, (re, im)) in rows.take(self.line.len).enumerate() {
            for line in 0..count {
                // SAFETY: an element of a line; the caller's promise.
                let (a, b) = unsafe {
                    match self.kind {
                        TransformKind::FromReal if self.is_packed() => {
                            (from.real(2 * at, line), from.real(2 * at + 1, line))
                        }
                        TransformKind::FromReal => (from.real(at, line), T::of(0.0)),
                        _ => self.spectrum(from, at, line),
                    }
                };
                // An inverse transform is a forward one with the parts exchanged, before and after.
                (re[line], im[line]) = if self.is_inverse() { (b, a) } else { (a, b) };
            }
        }
    }

    /// Lines that lie beside each other are read as they come.
    ///
    /// # Safety
    /// The block must have the lines of the input, which must be complex.
    #[inline(always)]
    unsafe fn load_complex(&self, from: &LineBlock<S>, planes: &mut Planes<'_, T>) {
        let (count, is_beside) = (from.count, from.is_full_row());
        let Planes { re, im } = planes;
        // An inverse transform is a forward one with the parts exchanged, before and after.
        let (first, second) = if self.is_inverse() { (im, re) } else { (re, im) };
        let rows = first.chunks_exact_mut(count).zip(second.chunks_exact_mut(count));
        for (at, (first, second)) in rows.take(self.line.len).enumerate() {
            // SAFETY: elements of the lines; the caller's promise.
            unsafe {
                if is_beside {
                    let row = &*from.at(at, 0).cast::<[S; 2 * LANES]>();
                    let (first, second) = (&mut first[..LANES], &mut second[..LANES]);
                    for line in 0..LANES {
                        first[line] = T::of(row[2 * line].get());
                        second[line] = T::of(row[2 * line + 1].get());
                    }
                    continue;
                }
                for line in 0..count {
                    (first[line], second[line]) = from.complex(at, line);
                }
            }
        }
    }

    /// # Safety
    /// The block must have the lines of the output, which must be complex.
    #[inline(always)]
    unsafe fn store_complex(&self, planes: &Planes<'_, T>, to: &LineBlock<S>) {
        let (count, scale, is_beside) = (to.count, self.scale, to.is_full_row());
        let (first, second) = match self.is_inverse() {
            true => (&*planes.im, &*planes.re),
            false => (&*planes.re, &*planes.im),
        };
        let rows = first.chunks_exact(count).zip(second.chunks_exact(count));
        for (at, (first, second)) in rows.take(self.line.len).enumerate() {
            // SAFETY: elements of the lines; the caller's promise.
            unsafe {
                if is_beside {
                    let row = &mut *to.at(at, 0).cast::<[S; 2 * LANES]>();
                    let (first, second) = (&first[..LANES], &second[..LANES]);
                    for line in 0..LANES {
                        row[2 * line] = S::of((first[line] * scale).get());
                        row[2 * line + 1] = S::of((second[line] * scale).get());
                    }
                    continue;
                }
                for line in 0..count {
                    let (re, im) = (first[line] * scale, second[line] * scale);
                    to.set(at, line, Complex { re, im });
                }
            }
        }
    }

    fn is_inverse(&self) -> bool {
        matches!(self.kind, TransformKind::Complex { is_inverse: true } | TransformKind::ToReal)
    }

    /// An element of the line whose inverse transform is real, or has it in both of its parts.
    ///
    /// # Safety
    /// The block must have half of the line.
    unsafe fn spectrum(&self, from: &LineBlock<S>, at: usize, line: usize) -> (T, T) {
        // The imaginary parts at both ends are ignored.
        let element = |at: usize| {
            // SAFETY: the first half is there; the caller's promise.
            let (re, im) = unsafe { from.complex::<T>(at, line) };
            let is_end = at == 0 || 2 * at == self.len;
            (re, if is_end { T::of(0.0) } else { im })
        };
        if !self.is_packed() {
            let (re, im) = element(at.min(self.len - at));
            return (re, if 2 * at > self.len { -im } else { im });
        }
        let ((re, im), (other_re, other_im)) = (element(at), element(self.len / 2 - at));
        let even = (re + other_re, im - other_im);
        let by = self.halves[at];
        let by = Twiddle { re: by.re, im: -by.im };
        let (odd_re, odd_im) = by.times(re - other_re, im + other_im);
        (even.0 - odd_im, even.1 + odd_re)
    }

    /// # Safety
    /// The block must have the lines of the output.
    #[inline(always)]
    unsafe fn store(&self, planes: &Planes<'_, T>, to: &LineBlock<S>) {
        if matches!(self.kind, TransformKind::Complex { .. }) {
            // SAFETY: the caller's promise.
            return unsafe { self.store_complex(planes, to) };
        }
        let count = to.count;
        let get = |at: usize, line: usize| {
            let (a, b) = (planes.re[at * count + line], planes.im[at * count + line]);
            match self.is_inverse() {
                true => Complex { re: b * self.scale, im: a * self.scale },
                false => Complex { re: a, im: b },
            }
        };
        let written =
            if self.kind == TransformKind::FromReal { self.len / 2 + 1 } else { self.line.len };
        for at in 0..written {
            for line in 0..count {
                // SAFETY: an element of a line; the caller's promise.
                unsafe {
                    match self.kind {
                        TransformKind::FromReal if self.is_packed() => {
                            to.set(at, line, self.unpacked(&get, at, line));
                        }
                        TransformKind::FromReal => to.set(at, line, get(at, line)),
                        _ => {
                            let Complex { re, im } = get(at, line);
                            match self.is_packed() {
                                true => {
                                    to.at(2 * at, line).write(S::of(re.get()));
                                    to.at(2 * at + 1, line).write(S::of(im.get()));
                                }
                                false => to.at(at, line).write(S::of(re.get())),
                            }
                        }
                    }
                }
            }
        }
    }

    /// An element of a real line's transform, from that of the line's even and odd elements.
    #[inline(always)]
    fn unpacked(
        &self,
        get: &impl Fn(usize, usize) -> Complex<T>,
        at: usize,
        line: usize,
    ) -> Complex<T> {
        let len = self.line.len;
        let (a, b) = (get(at % len, line), get((len - at) % len, line));
        let half = T::of(0.5);
        let even = Complex { re: (a.re + b.re) * half, im: (a.im - b.im) * half };
        // The difference divided by i.
        let odd = Complex { re: (a.im + b.im) * half, im: (b.re - a.re) * half };
        let (odd_re, odd_im) = self.halves[at].times(odd.re, odd.im);
        Complex { re: even.re + odd_re, im: even.im + odd_im }
    }
}

impl<T: Scalar, S: Scalar> Lines<T, S> {
    /// # Safety
    /// See [`KernelStage::run`]. The machine must have 256-bit vectors.
    #[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2"))]
    unsafe fn wide(&self, buffers: &Buffers<'_>) {
        // SAFETY: the caller's promise.
        unsafe { self.plain(buffers) };
    }

    /// # Safety
    /// See [`KernelStage::run`].
    #[inline(always)]
    unsafe fn plain(&self, buffers: &Buffers<'_>) {
        let room = self.line.room() * self.width();
        // SAFETY: local memory has the requested length, and any bytes are numbers.
        let local =
            unsafe { std::slice::from_raw_parts_mut(buffers.local().cast::<T>(), 4 * room) };
        let (from, to) = (buffers.read(self.from).cast_mut(), buffers.write(self.to));
        for number in buffers.share(self.blocks()) {
            let (lines, other) = local.split_at_mut(2 * room);
            let ((re, im), (other_re, other_im)) =
                (lines.split_at_mut(room), other.split_at_mut(room));
            let mut lines = Planes { re, im };
            // SAFETY: the slots hold all lines, and only this part writes these.
            unsafe {
                let block = self.block(from, self.input, number);
                self.load(&block, &mut lines);
                let other = Planes { re: other_re, im: other_im };
                let lines = self.line.run(lines, other, block.count);
                self.store(&lines, &self.block(to, self.output, number));
            }
        }
    }
}

impl<T: Scalar, S: Scalar> KernelStage for Lines<T, S> {
    unsafe fn run(&self, buffers: &Buffers<'_>) {
        // SAFETY: the caller's promise; the machine has the vectors where they are used.
        unsafe {
            match is_wide() {
                true => self.wide(buffers),
                false => self.plain(buffers),
            }
        }
    }

    fn parts(&self) -> usize {
        super::plan::parts_of(self.input.groups * self.input.lines * self.len * 4, self.blocks())
    }

    fn local_bytes(&self) -> usize {
        4 * self.line.room() * self.width() * size_of::<T>()
    }
}
