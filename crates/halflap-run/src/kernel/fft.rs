//! Fourier transforms of any number of dimensions: one stage for each, which reads lines along it
//! and writes them back.
//!
//! Real lines of even length are transformed as complex ones of half the length. f32 is computed in
//! f32, but in f64 where a length has a large prime factor.

use super::Buffers;
use super::block::is_wide;
use super::error::Gap;
use super::formula::{Op, TermId, Transform};
use super::fourier::{
    LineTransform, Planes, Scalar, Twiddle, is_smooth, less, plus, turn, turned_by,
};
use super::lanes::{FEW, LANES, Pack, PlainPack, Single};
use super::plan::{ArraySlot, KernelStage, Planner, Trouble};
use crate::tensor::{Complex, DType};

/// Contiguous lines with more elements than this are transformed one at a time.
const LONG: usize = 4096;

/// What is read and written.
#[derive(Clone, Copy, PartialEq, Eq)]
enum TransformKind {
    Complex { is_inverse: bool },
    FromReal,
    ToReal,
}

/// Where the lines of an array are, in numbers: a complex one is two, and so are two real ones that
/// are transformed as one.
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
        let is_packed = !matches!(kind, TransformKind::Complex { .. }) && len.is_multiple_of(2);
        let real = if is_packed { along(len / 2, 2) } else { along(len, 1) };
        let half = along(len / 2 + 1, 2);
        let (input, output) = match kind {
            TransformKind::FromReal => (real, half),
            TransformKind::ToReal => (half, real),
            TransformKind::Complex { .. } if dim == last => (along(len, 2), along(len, 2)),
            TransformKind::Complex { .. } => (across, across),
        };
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

/// How lines that are transformed together lie in memory.
#[derive(Clone, Copy, PartialEq, Eq)]
enum LineOrder {
    /// Complex lines, the first elements of all one after the other.
    Beside,
    /// Complex lines one behind the other, each without gaps.
    Behind,
    /// Anything else, and fewer lines.
    Scattered,
}

/// A few lines of an array.
struct LineBlock<S> {
    starts: [*mut S; LANES],
    grid: Grid,
    count: usize,
    order: LineOrder,
}

impl<S: Scalar> LineBlock<S> {
    /// Some of the lines of an array: at most as many as lie beside each other.
    fn new(array: *mut S, grid: Grid, lines: std::ops::Range<usize>) -> LineBlock<S> {
        let (mut group, mut line) = (lines.start / grid.lines, lines.start % grid.lines);
        let is_one_group = line + lines.len() <= grid.lines;
        let mut starts = [array; LANES];
        for start in &mut starts[..lines.len()] {
            *start = array.wrapping_add(group * grid.group_step + line * grid.line_step);
            line += 1;
            if line == grid.lines {
                (group, line) = (group + 1, 0);
            }
        }
        let order = match lines.len() == LANES && is_one_group {
            true if grid.line_step == 2 => LineOrder::Beside,
            true if grid.step == 2 => LineOrder::Behind,
            _ => LineOrder::Scattered,
        };
        LineBlock { starts, grid, count: lines.len(), order }
    }

    /// The number at a place of a line; of a complex element, its real part.
    #[inline(always)]
    fn at(&self, at: usize, line: usize) -> *mut S {
        self.starts[line].wrapping_add(at * self.grid.step)
    }

    /// Reads complex elements from the first on. Lanes without a line get zeros.
    ///
    /// # Safety
    /// The lines must have them, and the planes room.
    #[inline(always)]
    unsafe fn read<T: Scalar, V: Pack<T>>(
        &self,
        count: usize,
        to: PlaneParts<*mut T>,
        width: usize,
    ) {
        let (mut done, step) = (0, self.grid.step);
        let from = self.starts[0].cast::<T>();
        // SAFETY: elements of the lines; the caller's promise. Both types are the same where one is
        // read as the other.
        unsafe {
            match self.order {
                LineOrder::Beside if is_same::<T, S>() => {
                    for number in 0..count * LANES / V::LEN {
                        let (at, lane) = place_of::<T, V>(number);
                        let from = from.add(at * step + 2 * lane);
                        let (re, im) = V::load(from).split(V::load(from.add(V::LEN)));
                        re.store(to.re.add(at * LANES + lane));
                        im.store(to.im.add(at * LANES + lane));
                    }
                    return;
                }
                LineOrder::Behind if is_same::<T, S>() => {
                    done = count / FEW * FEW;
                    for at in (0..done).step_by(FEW) {
                        let parts = [to.re.add(at * LANES), to.im.add(at * LANES)];
                        V::read_few(from.add(2 * at), self.grid.line_step, parts);
                    }
                }
                _ => {}
            }
            for (at, line) in (done..count).flat_map(|at| (0..width).map(move |line| (at, line))) {
                let part = |number: usize| match line < self.count {
                    true => T::of(self.at(at, line).add(number).read().get()),
                    false => T::of(0.0),
                };
                *to.re.add(at * width + line) = part(0);
                *to.im.add(at * width + line) = part(1);
            }
        }
    }

    /// Writes complex elements, multiplied by a number, from the first on.
    ///
    /// # Safety
    /// As for [`LineBlock::read`].
    #[inline(always)]
    unsafe fn write<T: Scalar, V: Pack<T>>(&self, made: MadeLines<T>) {
        let MadeLines { count, from, width, scale } = made;
        let (mut done, step) = (0, self.grid.step);
        let to = self.starts[0].cast::<T>();
        // SAFETY: as for reading.
        unsafe {
            match self.order {
                LineOrder::Beside if is_same::<T, S>() => {
                    let scale = V::all(scale);
                    for number in 0..count * LANES / V::LEN {
                        let (at, lane) = place_of::<T, V>(number);
                        let re = V::load(from.re.add(at * LANES + lane)).times(scale);
                        let im = V::load(from.im.add(at * LANES + lane)).times(scale);
                        let (first, second) = re.joined(im);
                        let to = to.add(at * step + 2 * lane);
                        first.store(to);
                        second.store(to.add(V::LEN));
                    }
                    return;
                }
                LineOrder::Behind if is_same::<T, S>() => {
                    done = count / FEW * FEW;
                    for at in (0..done).step_by(FEW) {
                        let parts = [from.re.add(at * LANES), from.im.add(at * LANES)];
                        V::write_few(to.add(2 * at), self.grid.line_step, parts, scale);
                    }
                }
                _ => {}
            }
            for at in done..count {
                for line in 0..self.count {
                    let (re, im) = (from.re.add(at * width + line), from.im.add(at * width + line));
                    let place = self.at(at, line);
                    place.write(S::of((*re * scale).get()));
                    place.add(1).write(S::of((*im * scale).get()));
                }
            }
        }
    }
}

/// Which element of which line a pack begins with.
#[inline(always)]
fn place_of<T: Scalar, V: Pack<T>>(number: usize) -> (usize, usize) {
    (number * V::LEN / LANES, number * V::LEN % LANES)
}

/// Whether numbers are stored in the type in which they are computed: there are two.
fn is_same<T: Scalar, S: Scalar>() -> bool {
    size_of::<T>() == size_of::<S>()
}

/// The planes of several lines.
type PlaneParts<P> = Complex<P>;

/// Complex elements of lines that are to be written.
struct MadeLines<T> {
    count: usize,
    from: PlaneParts<*const T>,
    /// How many lines the planes have.
    width: usize,
    scale: T,
}

fn exchanged<P>(parts: PlaneParts<P>) -> PlaneParts<P> {
    Complex { re: parts.im, im: parts.re }
}

fn starts<T>(planes: &mut Planes<'_, T>) -> PlaneParts<*mut T> {
    Complex { re: planes.re.as_mut_ptr(), im: planes.im.as_mut_ptr() }
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

    /// How many elements planes have room for, of each line: those of the transform, and one more
    /// for the half of a real line's.
    fn room(&self) -> usize {
        self.line.room() + 1
    }

    fn line_count(&self) -> usize {
        self.input.groups * self.input.lines
    }

    fn blocks(&self) -> usize {
        self.line_count().div_ceil(self.width())
    }

    fn is_inverse(&self) -> bool {
        matches!(self.kind, TransformKind::Complex { is_inverse: true } | TransformKind::ToReal)
    }

    /// Reads lines into the first planes, ready to be transformed; the others are scratch.
    ///
    /// # Safety
    /// The block must have the lines of the input.
    #[inline(always)]
    unsafe fn load<V: Pack<T>>(&self, from: &LineBlock<S>, [to, aside]: [PlaneParts<*mut T>; 2]) {
        let width = self.width();
        // An inverse transform is a forward one with the parts exchanged, before and after.
        let to = if self.is_inverse() { exchanged(to) } else { to };
        // SAFETY: elements of the lines; the caller's promise.
        unsafe {
            match self.kind {
                TransformKind::Complex { .. } => from.read::<T, V>(self.len, to, width),
                TransformKind::FromReal if self.is_packed() => {
                    from.read::<T, V>(self.line.len, to, width)
                }
                TransformKind::FromReal => self.load_real(from, to),
                TransformKind::ToReal => {
                    from.read::<T, V>(self.len / 2 + 1, aside, width);
                    self.zero_ends(aside);
                    match self.is_packed() {
                        true => self.pack::<V>(aside, to),
                        false => self.mirror(aside, to),
                    }
                }
            }
        }
    }

    /// Writes lines that were transformed.
    ///
    /// # Safety
    /// The block must have the lines of the output.
    #[inline(always)]
    unsafe fn store<V: Pack<T>>(&self, [from, aside]: [PlaneParts<*mut T>; 2], to: &LineBlock<S>) {
        let from = if self.is_inverse() { exchanged(from) } else { from };
        let (width, scale) = (self.width(), self.scale);
        let made = |count: usize, from: PlaneParts<*mut T>| {
            let from = Complex { re: from.re.cast_const(), im: from.im.cast_const() };
            MadeLines { count, from, width, scale }
        };
        // SAFETY: elements of the lines; the caller's promise.
        unsafe {
            match self.kind {
                TransformKind::FromReal if self.is_packed() => {
                    self.unpack::<V>(from, aside);
                    to.write::<T, V>(made(self.len / 2 + 1, aside));
                }
                TransformKind::FromReal => to.write::<T, V>(made(self.len / 2 + 1, from)),
                TransformKind::ToReal if !self.is_packed() => self.store_real(from, to),
                _ => to.write::<T, V>(made(self.line.len, from)),
            }
        }
    }

    /// Real lines of odd length as complex ones.
    ///
    /// # Safety
    /// The block must have the lines, and the planes room.
    unsafe fn load_real(&self, from: &LineBlock<S>, to: PlaneParts<*mut T>) {
        let width = self.width();
        for at in 0..self.len {
            for line in 0..width {
                // SAFETY: an element of a line; the caller's promise.
                unsafe {
                    *to.re.add(at * width + line) = match line < from.count {
                        true => T::of(from.at(at, line).read().get()),
                        false => T::of(0.0),
                    };
                    *to.im.add(at * width + line) = T::of(0.0);
                }
            }
        }
    }

    /// The real parts of complex lines.
    ///
    /// # Safety
    /// As for [`Lines::load_real`].
    unsafe fn store_real(&self, from: PlaneParts<*mut T>, to: &LineBlock<S>) {
        for (at, line) in (0..self.len).flat_map(|at| (0..to.count).map(move |line| (at, line))) {
            // SAFETY: an element of a line; the caller's promise.
            unsafe {
                let value = *from.re.add(at * self.width() + line) * self.scale;
                to.at(at, line).write(S::of(value.get()));
            }
        }
    }

    /// The imaginary parts at both ends of a real line's half are ignored.
    ///
    /// # Safety
    /// The planes must have the half.
    unsafe fn zero_ends(&self, half: PlaneParts<*mut T>) {
        let width = self.width();
        let ends = [Some(0), self.len.is_multiple_of(2).then_some(self.len / 2)];
        for (end, line) in
            ends.into_iter().flatten().flat_map(|end| (0..width).map(move |line| (end, line)))
        {
            // SAFETY: an element of the planes; the caller's promise.
            unsafe { *half.im.add(end * width + line) = T::of(0.0) };
        }
    }

    /// All of the transform of a real line of odd length, from its half.
    ///
    /// # Safety
    /// The planes must have room for the lines.
    unsafe fn mirror(&self, half: PlaneParts<*mut T>, to: PlaneParts<*mut T>) {
        let width = self.width();
        for (at, line) in (0..self.len).flat_map(|at| (0..width).map(move |line| (at, line))) {
            let from = at.min(self.len - at) * width + line;
            // SAFETY: elements of the planes; the caller's promise.
            unsafe {
                let im = *half.im.add(from);
                *to.re.add(at * width + line) = *half.re.add(from);
                *to.im.add(at * width + line) = if 2 * at > self.len { -im } else { im };
            }
        }
    }

    /// The line whose inverse transform has the even elements of a real line in its real parts, and
    /// the odd ones in the others, from the half of the real line's transform.
    ///
    /// # Safety
    /// As for [`Lines::mirror`].
    #[inline(always)]
    unsafe fn pack<V: Pack<T>>(&self, half: PlaneParts<*mut T>, to: PlaneParts<*mut T>) {
        let (width, len) = (self.width(), self.line.len);
        for (at, by) in self.halves[..len].iter().enumerate() {
            let by = Twiddle { re: by.re, im: -by.im };
            for lane in (0..width).step_by(V::LEN) {
                // SAFETY: elements of the planes; the caller's promise.
                unsafe {
                    let a: Complex<V> = packs(half, at * width + lane);
                    let b: Complex<V> = packs(half, (len - at) * width + lane);
                    let odd = Complex { re: a.re.less(b.re), im: a.im.plus(b.im) };
                    let odd = turned_by(odd, by);
                    a.re.plus(b.re).less(odd.im).store(to.re.add(at * width + lane));
                    a.im.less(b.im).plus(odd.re).store(to.im.add(at * width + lane));
                }
            }
        }
    }

    /// The half of a real line's transform, from that of the line's even and odd elements.
    ///
    /// # Safety
    /// As for [`Lines::mirror`].
    #[inline(always)]
    unsafe fn unpack<V: Pack<T>>(&self, from: PlaneParts<*mut T>, to: PlaneParts<*mut T>) {
        let (width, len) = (self.width(), self.line.len);
        let half = V::all(T::of(0.5));
        for (at, &by) in self.halves.iter().enumerate() {
            let (one, other) = (at % len * width, (len - at) % len * width);
            for lane in (0..width).step_by(V::LEN) {
                // SAFETY: elements of the planes; the caller's promise.
                unsafe {
                    let a: Complex<V> = packs(from, one + lane);
                    let b: Complex<V> = packs(from, other + lane);
                    let (sum, off) = (plus(a, b), less(a, b));
                    let even = Complex { re: sum.re.times(half), im: off.im.times(half) };
                    // The difference divided by i.
                    let odd = Complex { re: sum.im.times(half), im: b.re.less(a.re).times(half) };
                    let given = plus(even, turned_by(odd, by));
                    given.re.store(to.re.add(at * width + lane));
                    given.im.store(to.im.add(at * width + lane));
                }
            }
        }
    }
}

/// # Safety
/// The planes must have as many numbers from this one on.
#[inline(always)]
unsafe fn packs<T: Scalar, V: Pack<T>>(planes: PlaneParts<*mut T>, at: usize) -> Complex<V> {
    // SAFETY: the caller's promise.
    unsafe { Complex { re: V::load(planes.re.add(at)), im: V::load(planes.im.add(at)) } }
}

impl<T: Scalar, S: Scalar> Lines<T, S> {
    /// # Safety
    /// See [`KernelStage::run`]. The machine must have 256-bit vectors.
    #[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2"))]
    unsafe fn wide(&self, buffers: &Buffers<'_>) {
        // SAFETY: the caller's promise.
        unsafe { self.with::<T::Wide>(buffers) };
    }

    /// # Safety
    /// See [`KernelStage::run`].
    #[inline(always)]
    unsafe fn with<V: Pack<T>>(&self, buffers: &Buffers<'_>) {
        let (room, width) = (self.room() * self.width(), self.width());
        // SAFETY: local memory has the requested length, and any bytes are numbers.
        let local =
            unsafe { std::slice::from_raw_parts_mut(buffers.local().cast::<T>(), 4 * room) };
        let (from, to) = (buffers.read(self.from).cast_mut(), buffers.write(self.to));
        for number in buffers.share(self.blocks()) {
            let first = number * width;
            let chosen = first..self.line_count().min(first + width);
            let (lines, aside) = local.split_at_mut(2 * room);
            let ((re, im), (aside_re, aside_im)) =
                (lines.split_at_mut(room), aside.split_at_mut(room));
            let (mut lines, mut aside) = (Planes { re, im }, Planes { re: aside_re, im: aside_im });
            // SAFETY: the slots hold all lines, and only this part writes these.
            unsafe {
                let block = LineBlock::new(from.cast(), self.input, chosen.clone());
                self.load::<V>(&block, [starts(&mut lines), starts(&mut aside)]);
                let (mut lines, mut aside) = self.line.run(lines, aside, width);
                let block = LineBlock::new(to.cast(), self.output, chosen);
                self.store::<V>([starts(&mut lines), starts(&mut aside)], &block);
            }
        }
    }
}

impl<T: Scalar, S: Scalar> KernelStage for Lines<T, S> {
    unsafe fn run(&self, buffers: &Buffers<'_>) {
        // SAFETY: the caller's promise; the machine has the vectors where they are used.
        unsafe {
            match is_wide() {
                _ if self.width() == 1 => self.with::<Single<T>>(buffers),
                true => self.wide(buffers),
                false => self.with::<PlainPack<T>>(buffers),
            }
        }
    }

    fn parts(&self) -> usize {
        super::plan::parts_of(self.line_count() * self.len * 4, self.blocks())
    }

    fn local_bytes(&self) -> usize {
        4 * self.room() * self.width() * size_of::<T>()
    }
}
