//! Random bits as XLA defines them, and random numbers, which it leaves undefined.
//!
//! The state of `rng-get-and-update-state` belongs to a rank and an instruction. It begins with
//! XLA's number and grows with each run of the instruction, from step to step, as in XLA.
//!
//! Three-fry and Philox encrypt a counter with a block cipher; the state is a key and the counter,
//! which is returned advanced. `rng` has no definition: its numbers are those of a Philox that
//! starts from the context's seed, and are not XLA's.

use super::error::Gap;
use super::formula::{Generator, TermId};
use super::plan::{ArraySlot, KernelStage, Planner, Trouble};
use super::walk::{MOST_DIMS, strides};
use super::{ArrayType, Buffers};
use crate::tensor::DType;

struct Bits {
    generator: Generator,
    state: ArraySlot,
    /// How many numbers of 64 bits the counter has.
    counters: usize,
    new_state: ArraySlot,
    to: ArraySlot,
    /// For narrow integers: the destination, their size, and their number.
    cut: Option<(ArraySlot, usize, usize)>,
    dims: Vec<usize>,
    by: Vec<i64>,
    is_wide: bool,
}

pub(super) fn bits(
    planner: &mut Planner<'_>,
    id: TermId,
    generator: Generator,
) -> Result<ArraySlot, Trouble> {
    let term = planner.formula.term(id);
    let state = planner.make(term.args[0])?;
    let state_term = planner.formula.term(term.args[0]);
    let kinds = planner.part_kinds(id);
    let counters = (state_term.len() * state_term.dtype.size() / 8).saturating_sub(1);
    let is_right = match generator {
        Generator::ThreeFry => counters == 1,
        Generator::Philox => counters == 1 || counters == 2,
    };
    if kinds.len() != 2 || !is_right {
        return Err(planner.fail(id, Gap::Shape));
    }
    let ArrayType { dtype, dims } = kinds[1].clone();
    if !matches!(dtype, DType::U8 | DType::U16 | DType::U32 | DType::U64 | DType::S32 | DType::S64)
    {
        return Err(planner.fail(id, Gap::OfType(dtype)));
    }
    let targets = planner.part_targets(id, &kinds);
    // Narrow integers are the low bits of 32-bit ones.
    let count = dims.iter().product::<usize>();
    let (to, cut) = match dtype.size() {
        size @ (1 | 2) => (planner.temp(count * 4), Some((targets[1], size, count))),
        _ => (targets[1], None),
    };
    let is_wide = dtype.size() == 8;
    planner.add(Bits {
        generator,
        state,
        counters,
        new_state: targets[0],
        to,
        cut,
        by: strides(&dims),
        dims,
        is_wide,
    });
    Ok(targets[0])
}

impl KernelStage for Bits {
    unsafe fn run(&self, buffers: &Buffers<'_>) {
        let read = |at: usize| {
            // SAFETY: the state has a key and counters; it may be an array of u32, so it is read as
            // such.
            unsafe {
                let half =
                    |at: usize| u64::from(buffers.read(self.state).cast::<u32>().add(at).read());
                half(2 * at) | half(2 * at + 1) << 32
            }
        };
        let key = read(0);
        // If the state is two numbers, XLA also uses the key as the counter's upper half.
        let counter =
            u128::from(read(1)) | u128::from(if self.counters == 2 { read(2) } else { key }) << 64;
        let to = buffers.write(self.to);
        // SAFETY: the output is an array of these dimensions.
        let used = unsafe {
            match self.generator {
                Generator::ThreeFry => self.three_fry(key, counter as u64, to),
                Generator::Philox => self.philox(key, counter, to),
            }
        };
        if let Some((small, size, count)) = self.cut {
            for at in 0..count {
                // SAFETY: both arrays have this many elements; the low bytes of a number come
                // first.
                unsafe {
                    std::ptr::copy_nonoverlapping(
                        to.add(4 * at),
                        buffers.write(small).add(size * at),
                        size,
                    )
                };
            }
        }
        let grown = counter.wrapping_add(u128::from(used));
        let new = [key, grown as u64, (grown >> 64) as u64];
        let state: *mut u32 = buffers.write(self.new_state).cast();
        for (at, &value) in new[..=self.counters].iter().enumerate() {
            // SAFETY: the new state is as long as the old one.
            unsafe {
                state.add(2 * at).write(value as u32);
                state.add(2 * at + 1).write((value >> 32) as u32);
            }
        }
    }
}

impl Bits {
    /// Writes the bits and returns how far the counter advanced.
    ///
    /// # Safety
    /// `to` must be an array of the dimensions.
    unsafe fn philox(&self, key: u64, counter: u128, to: *mut u8) -> u64 {
        let words = self.dims.iter().product::<usize>() * if self.is_wide { 2 } else { 1 };
        let blocks = words.div_ceil(4);
        for block in 0..blocks {
            for (index, bits) in
                philox(counter.wrapping_add(block as u128), key).into_iter().enumerate()
            {
                let at = block * 4 + index;
                if at < words {
                    // SAFETY: one of the words of the output.
                    unsafe { to.cast::<u32>().add(at).write(bits) };
                }
            }
        }
        blocks as u64
    }

    /// See [`Bits::philox`].
    ///
    /// # Safety
    /// `to` must be an array of the dimensions.
    unsafe fn three_fry(&self, key: u64, counter: u64, to: *mut u8) -> u64 {
        let total: usize = self.dims.iter().product();
        if self.is_wide {
            for at in 0..total {
                let [low, high] = three_fry(counter.wrapping_add(at as u64), key);
                // SAFETY: an element of the output.
                unsafe { to.cast::<u64>().add(at).write(u64::from(low) | u64::from(high) << 32) };
            }
            return total as u64;
        }
        // Both words of a block are neighbours along the first even dimension, or else the longest.
        let even = self.dims.iter().position(|dim| dim % 2 == 0);
        let longest =
            || (0..self.dims.len()).max_by_key(|&dim| (self.dims[dim], std::cmp::Reverse(dim)));
        let Some(split) = even.or_else(longest) else {
            // SAFETY: a scalar.
            unsafe { to.cast::<u32>().write(three_fry(counter, key)[0]) };
            return 1;
        };
        let mut halves = [1; MOST_DIMS];
        let halves = &mut halves[..self.dims.len()];
        halves.copy_from_slice(&self.dims);
        halves[split] = halves[split].div_ceil(2);
        let by = &self.by;
        let mut block = 0;
        super::walk::each_index(halves, |index| {
            let place: usize = index
                .iter()
                .zip(by)
                .enumerate()
                .map(|(dim, (&i, &by))| by as usize * if dim == split { 2 * i } else { i })
                .sum();
            let words = three_fry(counter.wrapping_add(block), key);
            for (word, &bits) in words.iter().enumerate() {
                if 2 * index[split] + word < self.dims[split] {
                    // SAFETY: an element of the output.
                    unsafe { to.cast::<u32>().add(place + word * by[split] as usize).write(bits) };
                }
            }
            block += 1;
        });
        block
    }
}

/// The three-fry cipher with two words and 20 rounds.
fn three_fry(input: u64, key: u64) -> [u32; 2] {
    const ROTATIONS: [[u32; 4]; 2] = [[13, 15, 26, 6], [17, 29, 16, 24]];
    let keys = [key as u32, (key >> 32) as u32, 0x1bd1_1bda ^ key as u32 ^ (key >> 32) as u32];
    let mut x =
        [(input as u32).wrapping_add(keys[0]), ((input >> 32) as u32).wrapping_add(keys[1])];
    for round in 0..5 {
        for rotation in ROTATIONS[round % 2] {
            x[0] = x[0].wrapping_add(x[1]);
            x[1] = x[1].rotate_left(rotation) ^ x[0];
        }
        x[0] = x[0].wrapping_add(keys[(round + 1) % 3]);
        x[1] = x[1].wrapping_add(keys[(round + 2) % 3]).wrapping_add(round as u32 + 1);
    }
    x
}

/// The Philox cipher with four words and 10 rounds.
fn philox(input: u128, key: u64) -> [u32; 4] {
    let mut x = [0, 32, 64, 96].map(|shift| (input >> shift) as u32);
    let mut keys = [key as u32, (key >> 32) as u32];
    for _ in 0..10 {
        let (a, b) = (u64::from(x[0]) * 0xd251_1f53, u64::from(x[2]) * 0xcd9e_8d57);
        x = [
            (b >> 32) as u32 ^ x[1] ^ keys[0],
            b as u32,
            (a >> 32) as u32 ^ x[3] ^ keys[1],
            a as u32,
        ];
        keys = [keys[0].wrapping_add(0x9e37_79b9), keys[1].wrapping_add(0xbb67_ae85)];
    }
    x
}

/// Numbers of a distribution.
struct Numbers {
    is_normal: bool,
    bounds: [ArraySlot; 2],
    to: ArraySlot,
    dtype: DType,
    len: usize,
    stream: u64,
}

pub(super) fn numbers(
    planner: &mut Planner<'_>,
    id: TermId,
    is_normal: bool,
) -> Result<ArraySlot, Trouble> {
    let term = planner.formula.term(id);
    let bounds = [planner.make(term.args[0])?, planner.make(term.args[1])?];
    if !matches!(term.dtype, DType::F32 | DType::F64 | DType::S32 | DType::U32) {
        return Err(planner.fail(id, Gap::OfType(term.dtype)));
    }
    let to = planner.target(id);
    // Each instruction has its own numbers.
    let stream = halflap::ids::Id::index(term.origin) as u64;
    planner.add(Numbers { is_normal, bounds, to, dtype: term.dtype, len: term.len(), stream });
    Ok(to)
}

impl KernelStage for Numbers {
    unsafe fn run(&self, buffers: &Buffers<'_>) {
        let key = buffers.context.seed ^ self.stream.rotate_left(32);
        // SAFETY: one number of the type in each, and as many as planned in the output.
        unsafe {
            let bound = |slot: ArraySlot| match self.dtype {
                DType::F32 => f64::from(*buffers.read(slot).cast::<f32>()),
                DType::F64 => *buffers.read(slot).cast::<f64>(),
                DType::S32 => f64::from(*buffers.read(slot).cast::<i32>()),
                _ => f64::from(*buffers.read(slot).cast::<u32>()),
            };
            let (a, b) = (bound(self.bounds[0]), bound(self.bounds[1]));
            let to = buffers.write(self.to);
            for at in 0..self.len {
                let words = philox(at as u128, key);
                let unit = |word: u32| (f64::from(word) + 0.5) / 4_294_967_296.0;
                let value = match self.is_normal {
                    true => {
                        a + b
                            * (-2.0 * unit(words[0]).ln()).sqrt()
                            * (std::f64::consts::TAU * unit(words[1])).cos()
                    }
                    false => a + (b - a) * unit(words[0]),
                };
                match self.dtype {
                    DType::F32 => to.cast::<f32>().add(at).write(if self.is_normal {
                        value as f32
                    } else {
                        (value as f32).min((b as f32).next_down())
                    }),
                    DType::F64 => to.cast::<f64>().add(at).write(value),
                    DType::S32 => to.cast::<i32>().add(at).write(value.floor() as i32),
                    _ => to.cast::<u32>().add(at).write(value.floor() as u32),
                }
            }
        }
    }
}

/// What XLA's compiler for CPUs begins with.
const FIRST_STATE: u128 = 0x701_2395;

/// The state of random numbers, before it grows.
struct GrowingState {
    to: ArraySlot,
    stream: u64,
    delta: u64,
}

pub(super) fn state(
    planner: &mut Planner<'_>,
    id: TermId,
    delta: u64,
) -> Result<ArraySlot, Trouble> {
    let stream = halflap::ids::Id::index(planner.formula.term(id).origin) as u64;
    let to = planner.target(id);
    planner.add(GrowingState { to, stream, delta });
    Ok(to)
}

impl KernelStage for GrowingState {
    unsafe fn run(&self, buffers: &Buffers<'_>) {
        // SAFETY: the stage has one part, so nothing else uses the rank's states meanwhile; the
        // output is two numbers of 64 bits.
        unsafe {
            let state = (*buffers.states).entry(self.stream).or_insert(FIRST_STATE);
            let to = buffers.write(self.to).cast::<u64>();
            to.write(*state as u64);
            to.add(1).write((*state >> 64) as u64);
            *state = state.wrapping_add(u128::from(self.delta));
        }
    }
}
