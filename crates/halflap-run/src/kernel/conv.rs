//! Convolutions: each window becomes a column of a matrix (im2col, `columns`), and a matrix
//! multiplication does the rest.
//!
//! All of HLO's numbers are taken: any sequence of dimensions, strides, padding (also negative),
//! both dilations, reversed windows, groups of features or of batches. The matrix is made in pieces
//! that fit the second-level cache, and operands are read and the result is written where they are,
//! unless their dimensions cannot be walked as one. bf16 and f16 are computed in f32 and rounded
//! once. If most positions of the windows see padding, or every group is a feature, no matrix is
//! made (`sparse`); with few output features neither (`planes`).

use halflap_hlo::ConvDims;

use super::Buffers;
use super::block;
use super::columns::{ConvAxis, ConvWindows, Line, MatrixPart, Space};
use super::error::Gap;
use super::formula::{Convolving, Padding, TermId};
use super::heavy::{Pad, kept};
use super::matrix::{GemmReal, MatrixProduct, MatrixView};
use super::moves::{ConvertStage, CopyStage};
use super::plan::{ArraySlot, KernelStage, Planner, Strided, Trouble, parts_of};
use super::planes::{MOST_OUTPUTS, PlaneAxis, PlaneConv, TILE};
use super::sparse::{ClearStage, Extents, SparseArray, SparseConv, is_sparse, seen_along};
use super::walk::{MOST_DIMS, Transfer, strides};
use crate::tensor::DType;

/// How many elements of the matrix are made at once.
const PIECE: usize = 64 * 1024;
/// With at least so many features, a depthwise convolution adds up vectors of them.
const LEAST_FEATURES: usize = 8;

pub(super) fn plan(
    planner: &mut Planner<'_>,
    id: TermId,
    numbers: &Convolving,
) -> Result<ArraySlot, Trouble> {
    let formula = planner.formula;
    let term = formula.term(id);
    let computed = block::computed_as(term.dtype);
    for dtype in [term.args[0], term.args[1], id].map(|id| formula.term(id).dtype) {
        if block::computed_as(dtype) != computed || !matches!(computed, DType::F32 | DType::F64) {
            return Err(planner.fail(id, Gap::OfType(dtype)));
        }
    }
    let Some(shape) = ConvShape::new(planner, id, numbers) else {
        return Err(planner.fail(id, Gap::Shape));
    };
    let (input, kernel) = (operand(planner, term.args[0])?, operand(planner, term.args[1])?);
    let to = planner.target(id);
    let narrow = block::narrow(term.dtype);
    let result = match narrow {
        Some(_) => planner.temp(term.len() * computed.size()),
        None => to,
    };
    let arrays = ConvArrays {
        input,
        kernel,
        result: Strided { slot: result, base: 0, by: strides(&term.dims) },
        dims: &term.dims,
        dtype: computed,
    };
    match shape.sparse(&arrays) {
        Some(sparse) => {
            planner.add_helper(ClearStage { to: result, bytes: term.len() * computed.size() });
            planner.add(sparse);
        }
        None => {
            let dense = DenseConv::new(&shape, arrays);
            match shape.along() {
                Some(along) => dense.in_planes(planner, along),
                None => dense.plan(planner),
            }
        }
    }
    if let Some(function) = narrow {
        let sizes = [computed.size(), term.dtype.size()];
        planner.add(ConvertStage { from: result, to, len: term.len(), sizes, function });
    }
    Ok(to)
}

/// An operand in memory, in the type that is computed.
fn operand(planner: &mut Planner<'_>, id: TermId) -> Result<Strided, Trouble> {
    let term = planner.formula.term(id);
    let dense = |slot| Strided { slot, base: 0, by: strides(&term.dims) };
    let Some(function) = block::widen(term.dtype) else {
        let strided = match planner.computes(id) {
            true => None,
            false => planner.strided(id)?,
        };
        return match strided {
            // As for a product of matrices.
            Some(strided) if strided.is_like_dense(&term.dims) || strided.covers(&term.dims) => {
                Ok(strided)
            }
            _ => Ok(dense(planner.make(id)?)),
        };
    };
    let from = planner.make(id)?;
    let sizes = [term.dtype.size(), block::computed_as(term.dtype).size()];
    let to = planner.temp(term.len() * sizes[1]);
    planner.add(ConvertStage { from, to, len: term.len(), sizes, function });
    Ok(dense(to))
}

/// The arrays of a convolution, in the type that is computed.
struct ConvArrays<'a> {
    input: Strided,
    kernel: Strided,
    result: Strided,
    /// The extents of the result.
    dims: &'a [usize],
    dtype: DType,
}

/// The numbers of a convolution.
struct ConvShape<'n> {
    dims: &'n ConvDims,
    /// One for each spatial dimension.
    extents: Vec<Extents>,
    groups: usize,
    is_batch_grouped: bool,
    /// In each group: input features, output features, batches.
    inputs: usize,
    outputs: usize,
    batches: usize,
}

impl<'n> ConvShape<'n> {
    fn new(planner: &Planner<'_>, id: TermId, numbers: &'n Convolving) -> Option<ConvShape<'n>> {
        let formula = planner.formula;
        let term = formula.term(id);
        let [input_dims, kernel_dims] = [0, 1].map(|index| &formula.term(term.args[index]).dims);
        let dims = &numbers.dims;
        let groups = numbers.feature_groups.max(numbers.batch_groups);
        let outputs = kernel_dims[dims.kernel_output].checked_div(groups)?;
        let is_right = (numbers.feature_groups == 1 || numbers.batch_groups == 1)
            && numbers.window.len() <= MOST_DIMS;
        if !is_right || outputs * groups != kernel_dims[dims.kernel_output] {
            return None;
        }
        let extents = numbers.window.iter().zip(&dims.input_spatial).zip(&dims.output_spatial);
        let extents = extents.map(|((&window, &from), &to)| Extents {
            window,
            len: input_dims[from],
            outputs: term.dims[to],
        });
        Some(ConvShape {
            dims,
            extents: extents.collect(),
            groups,
            is_batch_grouped: numbers.batch_groups > 1,
            inputs: kernel_dims[dims.kernel_input],
            outputs,
            batches: term.dims[dims.output_batch],
        })
    }

    /// The step of the input from group to group.
    fn input_group(&self, input: &Strided) -> isize {
        match self.is_batch_grouped {
            true => self.batches as isize * input.by[self.dims.input_batch] as isize,
            false => self.inputs as isize * input.by[self.dims.input_feature] as isize,
        }
    }

    /// The spatial dimension along which neighbours are summed up together, if that is faster than
    /// a product of matrices.
    fn along(&self) -> Option<usize> {
        // Shorter lines would leave most of a tile unused.
        const LEAST: usize = 16;
        let places: u64 = self.extents.iter().map(|extents| extents.window.size).product();
        let is_long = |&dim: &usize| {
            let Extents { window, outputs, .. } = &self.extents[dim];
            window.stride == 1 && *outputs >= LEAST
        };
        let lines = (0..self.extents.len()).filter(is_long);
        lines
            .max_by_key(|&dim| self.extents[dim].outputs)
            .filter(|_| (1..=MOST_OUTPUTS).contains(&self.outputs) && places > 1 && self.inputs > 0)
    }

    /// As single places, if that is faster than a product of matrices.
    fn sparse(&self, arrays: &ConvArrays<'_>) -> Option<SparseConv> {
        let is_sparse = is_sparse(&self.extents);
        let is_narrow = self.inputs == 1 && self.outputs == 1 && self.groups >= LEAST_FEATURES;
        if !is_sparse && !is_narrow {
            return None;
        }
        let ConvArrays { input, kernel, result, .. } = arrays;
        let outputs = |by: i64| self.outputs as isize * by as isize;
        let array = |strided: &Strided, spatial: &[usize], group: isize| SparseArray {
            slot: strided.slot,
            base: strided.base as isize,
            spatial: spatial.iter().map(|&dim| strided.by[dim] as isize).collect(),
            group,
        };
        let axis = |count: usize, by: i64| ConvAxis { count, by: by as isize };
        let dims = self.dims;
        let sparse = SparseConv {
            dtype: arrays.dtype,
            sights: self.extents.iter().map(seen_along).collect(),
            rows: self.extents.first().map_or(1, |extents| extents.outputs),
            input: array(input, &dims.input_spatial, self.input_group(input)),
            kernel: array(kernel, &dims.kernel_spatial, outputs(kernel.by[dims.kernel_output])),
            to: array(result, &dims.output_spatial, outputs(result.by[dims.output_feature])),
            groups: self.groups,
            batches: [input.by[dims.input_batch], result.by[dims.output_batch]]
                .map(|by| axis(self.batches, by)),
            inputs: [input.by[dims.input_feature], kernel.by[dims.kernel_input]]
                .map(|by| axis(self.inputs, by)),
            outputs: [kernel.by[dims.kernel_output], result.by[dims.output_feature]]
                .map(|by| axis(self.outputs, by)),
            line: Vec::new(),
        };
        (is_sparse || sparse.is_depthwise()).then(|| sparse.prepared())
    }
}

/// A convolution as a product of matrices.
struct DenseConv<'a, 'n> {
    shape: &'a ConvShape<'n>,
    arrays: ConvArrays<'a>,
    /// The spatial dimensions, those with the smallest step of the input last.
    order: Vec<usize>,
}

impl<'a, 'n> DenseConv<'a, 'n> {
    fn new(shape: &'a ConvShape<'n>, arrays: ConvArrays<'a>) -> DenseConv<'a, 'n> {
        let mut order: Vec<usize> = (0..shape.extents.len()).collect();
        let step = |dim: &usize| arrays.input.by[shape.dims.input_spatial[*dim]].unsigned_abs();
        order.sort_by_key(|dim| std::cmp::Reverse(step(dim)));
        DenseConv { shape, arrays, order }
    }

    /// What the matrix of windows is made of.
    fn windows(&self) -> ConvWindows {
        let (shape, input) = (self.shape, &self.arrays.input);
        let space = |&dim: &usize| {
            let Extents { window, len, outputs } = shape.extents[dim];
            Space { window, len, outputs, by: input.by[shape.dims.input_spatial[dim]] as isize }
        };
        let mut spaces: Vec<Space> = self.order.iter().map(space).collect();
        if spaces.is_empty() {
            spaces.push(Space::NONE);
        }
        let axis = |count: usize, dim: usize| ConvAxis { count, by: input.by[dim] as isize };
        let outer = spaces[..spaces.len() - 1].iter().map(Space::size).collect();
        let mut windows = ConvWindows {
            outer,
            spaces,
            features: axis(shape.inputs, shape.dims.input_feature),
            batches: axis(shape.batches, shape.dims.input_batch),
            line: Line::Positions,
            is_feature_last: false,
        };
        windows.line = windows.longest_line();
        windows.is_feature_last = windows.line == Line::Features;
        windows
    }

    /// The kernel along the matrix's rows. A reversed window is walked backwards.
    fn taps(&self) -> Taps {
        let (shape, kernel) = (self.shape, &self.arrays.kernel);
        let mut base = kernel.base as isize;
        let mut places = Vec::new();
        for &dim in &self.order {
            let window = &shape.extents[dim].window;
            let count = window.size as usize;
            let by = kernel.by[shape.dims.kernel_spatial[dim]] as isize;
            if window.reversed {
                base += (count as isize - 1) * by;
            }
            places.push(ConvAxis { count, by: if window.reversed { -by } else { by } });
        }
        let inputs =
            ConvAxis { count: shape.inputs, by: kernel.by[shape.dims.kernel_input] as isize };
        Taps { base, places, inputs }
    }

    /// The kernel as a matrix; it is copied, if its dimensions cannot be walked as one.
    fn kernel(&self, planner: &mut Planner<'_>, windows: &mut ConvWindows) -> ConvMatrix {
        let Taps { base, places, inputs } = self.taps();
        let (shape, Strided { slot, by, .. }) = (self.shape, &self.arrays.kernel);
        let row = by[shape.dims.kernel_output] as isize;
        let walked = |is_feature_last: bool| match is_feature_last {
            true => [&places[..], &[inputs]].concat(),
            false => [&[inputs], &places[..]].concat(),
        };
        let group = shape.outputs as isize * row;
        let orders: &[bool] = if windows.line == Line::Features { &[true] } else { &[false, true] };
        for &is_feature_last in orders {
            if let Some(column) = ConvAxis::joined(&walked(is_feature_last)) {
                windows.is_feature_last = is_feature_last;
                return ConvMatrix { slot: *slot, base, row, column, group };
            }
        }
        let rows = ConvAxis { count: shape.groups * shape.outputs, by: row };
        let axes = [&[rows], &walked(windows.is_feature_last)[..]].concat();
        let dims: Vec<usize> = axes.iter().map(|axis| axis.count).collect();
        let by = axes.iter().map(|axis| axis.by as i64).collect();
        let size = self.arrays.dtype.size();
        let packed = planner.temp(dims.iter().product::<usize>() * size);
        let from = Strided { slot: *slot, base: base as i64, by };
        planner.add(CopyStage::new(&dims, from, packed, size));
        let depth = windows.depth() as isize;
        let group = shape.outputs as isize * depth;
        ConvMatrix { slot: packed, base: 0, row: depth, column: 1, group }
    }

    /// The matrix's columns as dimensions of an array: its batches and its spatial dimensions.
    fn columns(&self, windows: &ConvWindows, batches: usize, spatial: &[usize]) -> Vec<usize> {
        let spatial: Vec<usize> = self.order.iter().map(|&dim| spatial[dim]).collect();
        match windows.line {
            Line::Batches => [&spatial[..], &[batches]].concat(),
            _ => [&[batches], &spatial[..]].concat(),
        }
    }

    /// Where the product is written.
    fn target(&self, planner: &mut Planner<'_>, windows: &ConvWindows) -> ConvTarget {
        let (shape, ConvArrays { result, dims, dtype, .. }) = (self.shape, &self.arrays);
        let numbers = shape.dims;
        let walked = self.columns(windows, numbers.output_batch, &numbers.output_spatial);
        let axis = |&dim: &usize| ConvAxis { count: dims[dim], by: result.by[dim] as isize };
        let columns: Vec<ConvAxis> = walked.iter().map(axis).collect();
        let all: usize = columns.iter().map(|axis| axis.count).product();
        let (inner, step) = inner_columns(&columns);
        if inner >= all.min(FEW) {
            let row = result.by[numbers.output_feature] as isize;
            let group = shape.outputs as isize * row;
            let matrix = ConvMatrix { slot: result.slot, base: 0, row, column: step, group };
            return ConvTarget { matrix, columns, inner, moved: None };
        }
        // Too few columns can be written as one: the product is written aside, and then moved.
        let features = shape.groups * shape.outputs;
        let aside: Vec<usize> =
            std::iter::once(features).chain(columns.iter().map(|axis| axis.count)).collect();
        let slot = planner.temp(features * all * dtype.size());
        let mut by = vec![0; dims.len()];
        let places = std::iter::once(numbers.output_feature).chain(walked);
        places.zip(strides(&aside)).for_each(|(dim, step)| by[dim] = step);
        let from = Strided { slot, base: 0, by };
        let group = (shape.outputs * all) as isize;
        ConvTarget {
            matrix: ConvMatrix { slot, base: 0, row: all as isize, column: 1, group },
            columns: vec![ConvAxis { count: all, by: 1 }],
            inner: all,
            moved: Some(CopyStage::new(dims, from, result.slot, dtype.size())),
        }
    }

    /// Copies the input into planes: for each group, batch and feature, the spatial dimensions in
    /// this order, padded and dilated. Gives the planes and their steps.
    fn planes(&self, planner: &mut Planner<'_>) -> (ArraySlot, Vec<i64>) {
        let (shape, input) = (self.shape, &self.arrays.input);
        let size = self.arrays.dtype.size();
        let numbers = shape.dims;
        let mut dims = vec![shape.groups, shape.batches, shape.inputs];
        let extent = |&dim: &usize| {
            let Extents { window, outputs, .. } = &shape.extents[dim];
            let reach = (window.size as usize - 1) * window.rhs_dilate.max(1) as usize;
            (outputs - 1) * window.stride as usize + reach + 1
        };
        dims.extend(self.order.iter().map(extent));
        let by = strides(&dims);
        let mut counts = dims[..3].to_vec();
        let mut from_by = vec![
            shape.input_group(input) as i64,
            input.by[numbers.input_batch],
            input.by[numbers.input_feature],
        ];
        let (mut to_by, mut from, mut to) = (by[..3].to_vec(), input.base, 0);
        for (&dim, place) in self.order.iter().zip(3..) {
            let Extents { window, len, .. } = &shape.extents[dim];
            let interior = window.lhs_dilate.max(1) as i64 - 1;
            let padding = Padding { low: window.pad_low, high: 0, interior };
            let (first, at, count) = kept(*len, dims[place], padding);
            let step = input.by[numbers.input_spatial[dim]];
            from += first * step;
            to += at * by[place];
            counts.push(count as usize);
            from_by.push(step);
            to_by.push(by[place] * (interior + 1));
        }
        let bytes = (dims.iter().product::<usize>() + TILE) * size;
        let slot = planner.aside(bytes);
        planner.add_helper(ClearStage { to: slot, bytes });
        if !counts.contains(&0) {
            planner.add_helper(Pad {
                from: (input.slot, from as usize * size),
                to: (slot, to as usize * size),
                transfer: Transfer::new(&counts, &from_by, &to_by, size),
            });
        }
        (slot, by)
    }

    /// The factors of each output feature, one after the other: features, then places.
    fn factors(&self, planner: &mut Planner<'_>) -> ArraySlot {
        let Taps { base, places, inputs } = self.taps();
        let (shape, Strided { slot, by, .. }) = (self.shape, &self.arrays.kernel);
        let row = by[shape.dims.kernel_output] as isize;
        let rows = ConvAxis { count: shape.groups * shape.outputs, by: row };
        let axes = [&[rows, inputs], &places[..]].concat();
        let dims: Vec<usize> = axes.iter().map(|axis| axis.count).collect();
        let by = axes.iter().map(|axis| axis.by as i64).collect();
        let size = self.arrays.dtype.size();
        let packed = planner.aside(dims.iter().product::<usize>() * size);
        let from = Strided { slot: *slot, base: base as i64, by };
        planner.add_helper(CopyStage::new(&dims, from, packed, size));
        packed
    }

    /// Without a matrix, along one of the spatial dimensions.
    fn in_planes(mut self, planner: &mut Planner<'_>, along: usize) {
        self.order = (0..self.order.len()).filter(|&dim| dim != along).chain([along]).collect();
        let (planes, by) = self.planes(planner);
        let weights = self.factors(planner);
        let (shape, ConvArrays { result, dtype, .. }) = (self.shape, &self.arrays);
        let numbers = shape.dims;
        let mut offsets: Vec<usize> = (0..shape.inputs).map(|at| at * by[2] as usize).collect();
        for (&dim, &step) in self.order.iter().zip(&by[3..]) {
            let window = &shape.extents[dim].window;
            let at =
                |place: u64| place as usize * window.rhs_dilate.max(1) as usize * step as usize;
            let all = |&offset: &usize| (0..window.size).map(move |place| offset + at(place));
            offsets = offsets.iter().flat_map(all).collect();
        }
        let feature = result.by[numbers.output_feature] as isize;
        let axis = |count, from: i64, to| PlaneAxis { count, from: from as usize, to };
        let mut axes = vec![
            axis(shape.groups, by[0], shape.outputs as isize * feature),
            axis(shape.batches, by[1], result.by[numbers.output_batch] as isize),
        ];
        for (&dim, &step) in self.order[..self.order.len() - 1].iter().zip(&by[3..]) {
            let Extents { window, outputs, .. } = &shape.extents[dim];
            let to = result.by[numbers.output_spatial[dim]] as isize;
            axes.push(axis(*outputs, step * window.stride as i64, to));
        }
        let step = result.by[numbers.output_spatial[along]] as isize;
        planner.add(PlaneConv {
            dtype: *dtype,
            planes,
            weights,
            to: result.slot,
            axes,
            outputs: (shape.outputs, feature),
            line: (shape.extents[along].outputs, step),
            offsets,
        });
    }

    fn plan(self, planner: &mut Planner<'_>) {
        let mut windows = self.windows();
        let kernel = self.kernel(planner, &mut windows);
        let ConvTarget { matrix: to, columns, inner, moved } = self.target(planner, &windows);
        let (shape, input) = (self.shape, &self.arrays.input);
        let walked = self.columns(&windows, shape.dims.input_batch, &shape.dims.input_spatial);
        let seen: Vec<ConvAxis> = (walked.iter().zip(&columns))
            .map(|(&dim, column)| ConvAxis { count: column.count, by: input.by[dim] as isize })
            .collect();
        let (together, step) = inner_columns(&seen);
        // Windows of one element that see everything once: the input is the matrix.
        let is_plain =
            windows.spaces.iter().all(Space::is_plain) && moved.is_none() && together >= inner;
        let input = ConvMatrix {
            slot: input.slot,
            base: input.base as isize,
            row: windows.features.by,
            column: step,
            group: shape.input_group(input),
        };
        let all: usize = columns.iter().map(|axis| axis.count).product();
        let tiles = Tiles::new(&windows, Columns { all, inner }, shape.groups * shape.outputs);
        planner.add(Conv {
            windows,
            input,
            kernel,
            to,
            groups: shape.groups,
            outputs: shape.outputs,
            dtype: self.arrays.dtype,
            columns,
            plain: is_plain.then_some(seen),
            tiles,
        });
        if let Some(moved) = moved {
            planner.add(moved);
        }
    }
}

/// If fewer columns can be written as one, the product is written aside.
const FEW: usize = 64;

/// How many columns, the last ones of some dimensions, can be walked as one, and with which step.
fn inner_columns(axes: &[ConvAxis]) -> (usize, isize) {
    let joined = |from: usize| Some((from, ConvAxis::joined(&axes[from..])?));
    let (from, step) = (0..axes.len()).find_map(joined).unwrap_or((axes.len(), 1));
    (axes[from..].iter().map(|axis| axis.count).product(), step)
}

/// Where a kernel begins, and its dimensions along the rows of the matrix.
struct Taps {
    base: isize,
    places: Vec<ConvAxis>,
    inputs: ConvAxis,
}

/// A matrix in an array: the steps between its rows and its columns, and from group to group.
struct ConvMatrix {
    slot: ArraySlot,
    base: isize,
    row: isize,
    column: isize,
    group: isize,
}

/// Where a product is written, and how it gets from there to its place.
struct ConvTarget {
    matrix: ConvMatrix,
    /// The columns as dimensions, and how many of them can be walked as one.
    columns: Vec<ConvAxis>,
    inner: usize,
    moved: Option<CopyStage>,
}

/// The columns of a group, and how many of them can be walked as one.
struct Columns {
    all: usize,
    inner: usize,
}

/// How the product is cut, regardless of threads, so that all sums stay the same.
struct Tiles {
    /// How many tiles cover columns that are walked as one, and how many such there are in a group.
    tiles: usize,
    outer: usize,
    inner: usize,
    /// How many rows of the matrix are made at once.
    chunk: usize,
    /// How many elements are multiplied.
    work: usize,
}

impl Tiles {
    fn new(windows: &ConvWindows, Columns { all, inner }: Columns, outputs: usize) -> Tiles {
        // Enough for many threads, but no fewer columns than a product needs to be fast.
        const WANTED: usize = 16;
        const LEAST: usize = 48;
        let depth = windows.depth().max(1);
        let outer = all / inner.max(1);
        let most = match windows.line {
            Line::Features => (PIECE / depth).clamp(16, 4096),
            _ => 256,
        };
        let tiles = inner.div_ceil(most).max((inner / LEAST).min(WANTED.div_ceil(outer.max(1))));
        let tiles = tiles.max(1);
        let chunk = match windows.line {
            Line::Features => depth,
            _ => (PIECE / inner.div_ceil(tiles).max(1)).clamp(64, depth.max(64)),
        };
        Tiles { tiles, outer, inner, chunk, work: outputs * all * depth }
    }

    /// The most columns of a tile.
    fn columns(&self) -> usize {
        self.inner.div_ceil(self.tiles)
    }
}

struct Conv {
    windows: ConvWindows,
    input: ConvMatrix,
    kernel: ConvMatrix,
    to: ConvMatrix,
    groups: usize,
    /// The output features of a group.
    outputs: usize,
    dtype: DType,
    /// The result's columns as dimensions.
    columns: Vec<ConvAxis>,
    /// The input's, if it is the matrix itself.
    plain: Option<Vec<ConvAxis>>,
    tiles: Tiles,
}

impl Conv {
    fn units(&self) -> usize {
        self.groups * self.tiles.outer * self.tiles.tiles
    }

    /// # Safety
    /// See [`KernelStage::run`].
    unsafe fn compute<T: GemmReal>(&self, buffers: &Buffers<'_>) {
        let Tiles { tiles, outer, inner, .. } = self.tiles;
        for unit in buffers.share(self.units()) {
            let (group, tile) = (unit / (outer * tiles), unit % (outer * tiles));
            let (first, part) = (tile / tiles * inner, tile % tiles);
            let columns = first + inner * part / tiles..first + inner * (part + 1) / tiles;
            // SAFETY: the caller's promise.
            unsafe { self.tile::<T>(buffers, group as isize, columns) };
        }
    }

    /// # Safety
    /// See [`KernelStage::run`].
    unsafe fn tile<T: GemmReal>(
        &self,
        buffers: &Buffers<'_>,
        group: isize,
        columns: std::ops::Range<usize>,
    ) {
        let start = |of: &ConvMatrix, from: *const u8| {
            from.cast::<T>().wrapping_offset(of.base + group * of.group)
        };
        let input = start(&self.input, buffers.read(self.input.slot));
        let kernel = start(&self.kernel, buffers.read(self.kernel.slot));
        let to = start(&self.to, buffers.write(self.to.slot)).cast_mut();
        let depth = self.windows.depth();
        let mut product = MatrixProduct {
            rows: self.outputs,
            columns: columns.len(),
            depth,
            lhs: MatrixView { start: kernel, row: self.kernel.row, column: self.kernel.column },
            rhs: MatrixView { start: input, row: self.input.row, column: self.input.column },
            to: MatrixView {
                start: to.wrapping_offset(ConvAxis::place(&self.columns, columns.start)),
                row: self.to.row,
                column: self.to.column,
            },
            threads: buffers.threads(),
        };
        if let Some(plain) = &self.plain {
            product.rhs.start = input.wrapping_offset(ConvAxis::place(plain, columns.start));
        }
        if depth == 0 || self.plain.is_some() {
            // SAFETY: the matrices are where they were planned.
            return unsafe { product.run() };
        }
        let matrix = buffers.local().cast::<T>();
        for first in (0..depth).step_by(self.tiles.chunk) {
            let rows = first..depth.min(first + self.tiles.chunk);
            let part = MatrixPart { rows, columns: columns.clone() };
            product.depth = part.rows.len();
            product.lhs.start = kernel.wrapping_offset(first as isize * self.kernel.column);
            product.rhs = self.windows.view(matrix.cast_const(), &part);
            // SAFETY: local memory holds the part; the matrices are where they were planned.
            unsafe {
                self.windows.fill(input, &part, matrix);
                T::accumulate(&product, T::ONE, first > 0);
            }
        }
    }
}

impl KernelStage for Conv {
    unsafe fn run(&self, buffers: &Buffers<'_>) {
        // SAFETY: the caller's promise, passed on.
        unsafe {
            match self.dtype {
                DType::F64 => self.compute::<f64>(buffers),
                _ => self.compute::<f32>(buffers),
            }
        }
    }

    fn parts(&self) -> usize {
        parts_of(self.tiles.work / 16, self.units())
    }

    fn local_bytes(&self) -> usize {
        match self.plain {
            Some(_) => 0,
            None => self.tiles.chunk * self.tiles.columns() * self.dtype.size(),
        }
    }
}
