//! Random shapes and numbers, against plain loops.

mod common;

use common::*;
use halflap_run::tensor::{DType, Tensor};

const ROUNDS: usize = 150;

#[test]
fn dots() {
    let mut random = Random(11);
    for _ in 0..ROUNDS {
        // Names of dimensions: batch, left, right, contracted; each operand in its own sequence.
        let sizes: Vec<usize> = (0..6).map(|_| random.between(1, 9)).collect();
        let (batch, left) = (random.below(2), random.between(1, 2));
        let lhs: Vec<usize> =
            [&(0..batch).collect::<Vec<_>>()[..], &(1..1 + left).collect::<Vec<_>>(), &[4, 5]]
                .concat();
        let rhs: Vec<usize> = [&(0..batch).collect::<Vec<_>>()[..], &[3], &[4, 5]].concat();
        let shuffle = |names: &[usize], random: &mut Random| -> Vec<usize> {
            random.shuffled(names.len()).iter().map(|&i| names[i]).collect()
        };
        let (lhs, rhs) = (shuffle(&lhs, &mut random), shuffle(&rhs, &mut random));
        let dims = |names: &[usize]| names.iter().map(|&name| sizes[name]).collect::<Vec<_>>();
        let (a, b) = (random.floats(&dims(&lhs)), random.floats(&dims(&rhs)));
        let at = |names: &[usize], wanted: &[usize]| {
            list(
                &wanted
                    .iter()
                    .filter_map(|name| names.iter().position(|other| other == name))
                    .collect::<Vec<_>>(),
            )
        };
        let free: Vec<usize> = lhs.iter().copied().filter(|name| (1..3).contains(name)).collect();
        let out: Vec<usize> = [&(0..batch).collect::<Vec<_>>()[..], &free, &[3]].concat();
        let body = format!(
            " a = f32[{}] parameter(0)\n b = f32[{}] parameter(1)\n ROOT d = f32[{}] dot(a, b), lhs_batch_dims={{{}}}, rhs_batch_dims={{{}}}, lhs_contracting_dims={{{}}}, rhs_contracting_dims={{{}}}",
            list(&dims(&lhs)),
            list(&dims(&rhs)),
            list(&dims(&out)),
            at(&lhs, &(0..batch).collect::<Vec<_>>()),
            at(&rhs, &(0..batch).collect::<Vec<_>>()),
            at(&lhs, &[4, 5]),
            at(&rhs, &[4, 5]),
        );
        let given = run_entry(&body, &[a.clone(), b.clone()]);
        let mut expected = Vec::new();
        for index in indices(&dims(&out)) {
            let mut values = [0; 6];
            out.iter().zip(&index).for_each(|(&name, &i)| values[name] = i);
            let mut sum = 0.0;
            for k in 0..sizes[4] {
                for l in 0..sizes[5] {
                    (values[4], values[5]) = (k, l);
                    let element = |array: &Tensor, names: &[usize]| {
                        array.slice::<f32>()[place(
                            array.dims(),
                            &names.iter().map(|&name| values[name]).collect::<Vec<_>>(),
                        )]
                    };
                    sum += element(&a, &lhs) * element(&b, &rhs);
                }
            }
            expected.push(sum);
        }
        assert_close(given[0].slice(), &expected, 1e-4);
    }
}

#[test]
fn transposes_slices_and_reversals_of_expressions() {
    let mut random = Random(12);
    for _ in 0..ROUNDS {
        let rank = random.between(1, 4);
        let dims: Vec<usize> = (0..rank).map(|_| random.between(1, 20)).collect();
        let order = random.shuffled(rank);
        let turned: Vec<usize> = order.iter().map(|&dim| dims[dim]).collect();
        let start: Vec<usize> = turned.iter().map(|&dim| random.below(dim)).collect();
        let stride: Vec<usize> = turned.iter().map(|_| random.between(1, 3)).collect();
        let cut: Vec<usize> =
            (0..rank).map(|dim| (turned[dim] - start[dim]).div_ceil(stride[dim])).collect();
        let reversed: Vec<usize> = (0..rank).filter(|_| random.below(2) == 0).collect();
        let slices: Vec<String> = (0..rank)
            .map(|dim| format!("[{}:{}:{}]", start[dim], turned[dim], stride[dim]))
            .collect();
        let body = format!(
            " x = f32[{d}] parameter(0)\n n = f32[{d}] negate(x)\n t = f32[{t}] transpose(n), dimensions={{{}}}\n s = f32[{c}] slice(t), slice={{{}}}\n v = f32[{c}] reverse(s), dimensions={{{}}}\n f = f32[{}] reshape(v)\n ROOT r = f32[{}] add(f, f)",
            list(&order),
            slices.join(", "),
            list(&reversed),
            cut.iter().product::<usize>(),
            cut.iter().product::<usize>(),
            d = list(&dims),
            t = list(&turned),
            c = list(&cut),
        );
        let x = random.floats(&dims);
        let expected: Vec<f32> = indices(&cut)
            .iter()
            .map(|index| {
                let mut source = vec![0; rank];
                for dim in 0..rank {
                    let i = if reversed.contains(&dim) {
                        cut[dim] - 1 - index[dim]
                    } else {
                        index[dim]
                    };
                    source[order[dim]] = start[dim] + i * stride[dim];
                }
                -2.0 * x.slice::<f32>()[place(&dims, &source)]
            })
            .collect();
        assert_close(run_entry(&body, std::slice::from_ref(&x))[0].slice(), &expected, 0.0);
        assert_close(run_fused(&body, std::slice::from_ref(&x)).slice(), &expected, 0.0);
    }
}

/// The same body as one fusion of one parameter or two.
fn run_fused(body: &str, inputs: &[Tensor]) -> Tensor {
    let root = body.lines().find(|line| line.trim_start().starts_with("ROOT")).unwrap();
    let shape = root.split_whitespace().nth(3).unwrap();
    let shapes: Vec<String> =
        inputs.iter().map(|input| format!("{}[{}]", input.dtype(), list(input.dims()))).collect();
    let parameters: Vec<String> = shapes
        .iter()
        .enumerate()
        .map(|(i, shape)| format!(" p{i} = {shape} parameter({i})\n"))
        .collect();
    let names: Vec<String> = (0..inputs.len()).map(|i| format!("p{i}")).collect();
    let text = with_computations("").replace("ENTRY e {\n\n}\n", "");
    let text = format!(
        "{text}fused {{\n{body}\n}}\nENTRY e {{\n{} ROOT f = {shape} fusion({}), kind=kLoop, calls=fused\n}}\n",
        parameters.concat(),
        names.join(", ")
    );
    run(&text, inputs).remove(0)
}

#[test]
fn reductions_of_any_dimensions() {
    let mut random = Random(13);
    for round in 0..ROUNDS {
        let rank = random.between(1, 4);
        let most = if round % 10 == 0 { 60 } else { 12 };
        let dims: Vec<usize> = (0..rank).map(|_| random.between(1, most)).collect();
        let reduced: Vec<usize> = (0..rank).filter(|_| random.below(2) == 0).collect();
        let kept: Vec<usize> =
            (0..rank).filter(|dim| !reduced.contains(dim)).map(|dim| dims[dim]).collect();
        let applied = ["add", "max"][random.below(2)];
        let init = if applied == "add" { "0.5" } else { "-inf" };
        let body = format!(
            " x = f32[{d}] parameter(0)\n i = f32[] constant({init})\n q = f32[{d}] multiply(x, x)\n ROOT r = f32[{}] reduce(q, i), dimensions={{{}}}, to_apply={applied}",
            list(&kept),
            list(&reduced),
            d = list(&dims),
        );
        let x = random.floats(&dims);
        let mut expected =
            vec![if applied == "add" { 0.5 } else { f32::NEG_INFINITY }; kept.iter().product()];
        for index in indices(&dims) {
            let own: Vec<usize> =
                (0..rank).filter(|dim| !reduced.contains(dim)).map(|dim| index[dim]).collect();
            let value = x.slice::<f32>()[place(&dims, &index)].powi(2);
            let slot = &mut expected[place(&kept, &own)];
            *slot = if applied == "add" { *slot + value } else { slot.max(value) };
        }
        assert_close(run_entry(&body, std::slice::from_ref(&x))[0].slice(), &expected, 1e-4);
        assert_close(run_fused(&body, std::slice::from_ref(&x)).slice(), &expected, 1e-4);
    }
}

#[test]
fn the_largest_element_and_its_place() {
    let mut random = Random(14);
    for _ in 0..60 {
        let (rows, columns) = (random.between(1, 40), random.between(1, 40));
        let by_row = random.below(2) == 0;
        let (dim, kept) = if by_row { (1, rows) } else { (0, columns) };
        let text = format!(
            "HloModule m\npick {{\n a = f32[] parameter(0)\n i = s32[] parameter(1)\n b = f32[] parameter(2)\n j = s32[] parameter(3)\n g = pred[] compare(a, b), direction=GT\n e = pred[] compare(a, b), direction=EQ\n l = pred[] compare(i, j), direction=LT\n t = pred[] and(e, l)\n o = pred[] or(g, t)\n v = f32[] select(o, a, b)\n w = s32[] select(o, i, j)\n ROOT r = (f32[], s32[]) tuple(v, w)\n}}\nENTRY e {{\n x = f32[{rows},{columns}] parameter(0)\n n = s32[{rows},{columns}] iota(), iota_dimension={dim}\n i = f32[] constant(-inf)\n z = s32[] constant(0)\n ROOT r = (f32[{kept}], s32[{kept}]) reduce(x, n, i, z), dimensions={{{dim}}}, to_apply=pick\n}}\n"
        );
        // Few different values, so that there are ties.
        let values: Vec<f32> = (0..rows * columns).map(|_| random.below(5) as f32).collect();
        let given = run(&text, &[floats(&[rows, columns], &values)]);
        for own in 0..kept {
            let of = |other: usize| {
                if by_row { values[own * columns + other] } else { values[other * columns + own] }
            };
            let best = (0..if by_row { columns } else { rows })
                .fold(0, |best, other| if of(other) > of(best) { other } else { best });
            assert_eq!(
                (given[0].slice::<f32>()[own], given[1].slice::<i32>()[own]),
                (of(best), best as i32)
            );
        }
    }
}

#[test]
fn gathers_and_scatters_of_rows_and_windows() {
    let mut random = Random(15);
    for _ in 0..ROUNDS {
        let (rows, columns, count) =
            (random.between(2, 9), random.between(2, 9), random.between(1, 12));
        let (high, wide) = (random.between(1, rows), random.between(1, columns));
        let x = random.floats(&[rows, columns]);
        let starts: Vec<i32> = (0..2 * count).map(|_| random.below(12) as i32 - 2).collect();
        let at = Tensor::of(&[count, 2], &starts);
        let gather = format!(
            " x = f32[{rows},{columns}] parameter(0)\n i = s32[{count},2] parameter(1)\n ROOT g = f32[{count},{high},{wide}] gather(x, i), offset_dims={{1,2}}, collapsed_slice_dims={{}}, start_index_map={{0,1}}, index_vector_dim=1, slice_sizes={{{high},{wide}}}"
        );
        let given = run_entry(&gather, &[x.clone(), at.clone()]);
        let clamped = |number: usize, dim: usize, most: usize| {
            (starts[2 * number + dim].max(0) as usize).min(most)
        };
        let expected: Vec<f32> = indices(&[count, high, wide])
            .iter()
            .map(|index| {
                let (row, column) =
                    (clamped(index[0], 0, rows - high), clamped(index[0], 1, columns - wide));
                x.slice::<f32>()[(row + index[1]) * columns + column + index[2]]
            })
            .collect();
        assert_eq!(given[0].slice::<f32>(), expected);
        let updates = random.floats(&[count, high, wide]);
        let scatter = format!(
            " x = f32[{rows},{columns}] parameter(0)\n i = s32[{count},2] parameter(1)\n u = f32[{count},{high},{wide}] parameter(2)\n ROOT s = f32[{rows},{columns}] scatter(x, i, u), update_window_dims={{1,2}}, inserted_window_dims={{}}, scatter_dims_to_operand_dims={{0,1}}, index_vector_dim=1, to_apply=add"
        );
        let given = run_entry(&scatter, &[x.clone(), at, updates.clone()]);
        let mut expected = x.slice::<f32>().to_vec();
        for number in 0..count {
            let (row, column) = (starts[2 * number], starts[2 * number + 1]);
            if row < 0
                || column < 0
                || row as usize + high > rows
                || column as usize + wide > columns
            {
                continue;
            }
            for (i, j) in (0..high).flat_map(|i| (0..wide).map(move |j| (i, j))) {
                expected[(row as usize + i) * columns + column as usize + j] +=
                    updates.slice::<f32>()[(number * high + i) * wide + j];
            }
        }
        assert_close(given[0].slice(), &expected, 1e-6);
    }
}

#[test]
fn convolutions() {
    let mut random = Random(16);
    for _ in 0..ROUNDS {
        let (batch, inputs, outputs) =
            (random.between(1, 3), random.between(1, 3), random.between(1, 3));
        let (len, size) = (random.between(3, 12), random.between(1, 3));
        let (stride, low, high) =
            (random.between(1, 3), random.below(4) as i64 - 1, random.below(3) as i64);
        let (base, window) = (random.between(1, 2), random.between(1, 2));
        let groups = random.between(1, 2);
        let is_reversed = random.below(2);
        let grown = ((len - 1) * base + 1) as i64 + low + high;
        let seen = ((size - 1) * window + 1) as i64;
        if grown < seen {
            continue;
        }
        let out = ((grown - seen) / stride as i64 + 1) as usize;
        let (x, k) = (
            random.floats(&[batch, len, inputs * groups]),
            random.floats(&[size, inputs, outputs * groups]),
        );
        let body = format!(
            " x = f32[{batch},{len},{}] parameter(0)\n k = f32[{size},{inputs},{}] parameter(1)\n ROOT c = f32[{batch},{out},{}] convolution(x, k), window={{size={size} stride={stride} pad={low}_{high} lhs_dilate={base} rhs_dilate={window} rhs_reversal={is_reversed}}}, dim_labels=b0f_0io->b0f, feature_group_count={groups}",
            inputs * groups,
            outputs * groups,
            outputs * groups,
        );
        let mut expected = Vec::new();
        for index in indices(&[batch, out, outputs * groups]) {
            let group = index[2] / outputs;
            let mut sum = 0.0;
            for (place, feature) in
                (0..size).flat_map(|place| (0..inputs).map(move |feature| (place, feature)))
            {
                let at = (index[1] * stride + place * window) as i64 - low;
                if at < 0 || at % base as i64 != 0 || at / base as i64 >= len as i64 {
                    continue;
                }
                let tap = if is_reversed == 1 { size - 1 - place } else { place };
                let value = x.slice::<f32>()[place3(
                    &[batch, len, inputs * groups],
                    [index[0], (at / base as i64) as usize, group * inputs + feature],
                )];
                sum += value
                    * k.slice::<f32>()
                        [place3(&[size, inputs, outputs * groups], [tap, feature, index[2]])];
            }
            expected.push(sum);
        }
        assert_close(run_entry(&body, &[x, k])[0].slice(), &expected, 1e-5);
    }
}

/// A window in one dimension, and the array that it moves over.
struct Moving {
    len: usize,
    size: usize,
    stride: usize,
    low: i64,
    high: i64,
    base: usize,
    window: usize,
    is_reversed: bool,
}

impl Moving {
    fn by_chance(random: &mut Random, longest: usize) -> Moving {
        let size = random.between(1, 4);
        Moving {
            len: random.between(4, longest),
            size,
            stride: random.between(1, 2),
            low: random.below(5) as i64 - 1,
            high: random.below(4) as i64 - 1,
            base: if random.below(4) == 0 { 2 } else { 1 },
            window: if random.below(4) == 0 { 2 } else { 1 },
            is_reversed: random.below(3) == 0,
        }
    }

    /// A window of one element that moves by one.
    fn still(len: usize) -> Moving {
        let is_reversed = false;
        Moving { len, size: 1, stride: 1, low: 0, high: 0, base: 1, window: 1, is_reversed }
    }

    fn outputs(&self) -> Option<usize> {
        let grown = ((self.len - 1) * self.base + 1) as i64 + self.low + self.high;
        let seen = ((self.size - 1) * self.window + 1) as i64;
        (grown >= seen).then(|| ((grown - seen) / self.stride as i64 + 1) as usize)
    }

    /// The element that a place of an output's window sees.
    fn seen(&self, output: usize, place: usize) -> Option<usize> {
        let at = (output * self.stride + place * self.window) as i64 - self.low;
        let is_there =
            at >= 0 && at % self.base as i64 == 0 && at / (self.base as i64) < self.len as i64;
        is_there.then_some((at / self.base as i64) as usize)
    }
}

/// The numbers of windows in several dimensions, as HLO writes them.
fn window_text(dims: &[Moving]) -> String {
    let all = |name: &str, of: &dyn Fn(&Moving) -> String| {
        format!("{name}={}", dims.iter().map(of).collect::<Vec<_>>().join("x"))
    };
    let mut numbers = vec![
        all("size", &|dim| dim.size.to_string()),
        all("stride", &|dim| dim.stride.to_string()),
        all("pad", &|dim| format!("{}_{}", dim.low, dim.high)),
        all("lhs_dilate", &|dim| dim.base.to_string()),
        all("rhs_dilate", &|dim| dim.window.to_string()),
    ];
    if dims.iter().any(|dim| dim.is_reversed) {
        numbers.push(all("rhs_reversal", &|dim| u8::from(dim.is_reversed).to_string()));
    }
    format!("window={{{}}}", numbers.join(" "))
}

/// Dimensions in any sequence: labels, and what is at the place of each.
fn shuffled_by(labels: &str, random: &mut Random) -> Vec<char> {
    let labels: Vec<char> = labels.chars().collect();
    random.shuffled(labels.len()).into_iter().map(|at| labels[at]).collect()
}

/// A convolution with its dimensions in any sequence.
struct AnyConv {
    dims: [Moving; 2],
    /// The output's extents.
    out: [usize; 2],
    batches: usize,
    inputs: usize,
    outputs: usize,
    groups: usize,
    is_by_batch: bool,
    /// Of the input, the kernel and the output.
    labels: [Vec<char>; 3],
}

impl AnyConv {
    fn by_chance(random: &mut Random, longest: usize) -> Option<AnyConv> {
        let dims = [Moving::by_chance(random, longest), Moving::by_chance(random, 9)];
        let out = [dims[0].outputs()?, dims[1].outputs()?];
        Some(AnyConv {
            dims,
            out,
            batches: random.between(1, 5),
            inputs: random.between(1, 5),
            outputs: random.between(1, 5),
            groups: random.between(1, 2),
            is_by_batch: random.below(2) == 0,
            labels: ["bf01", "io01", "bf01"].map(|labels| shuffled_by(labels, random)),
        })
    }

    fn shape(&self, which: usize) -> Vec<usize> {
        let [by_batch, by_feature] = match self.is_by_batch {
            true => [self.groups, 1],
            false => [1, self.groups],
        };
        let extent = |label: &char| match (which, label) {
            (0, 'b') => self.batches * by_batch,
            (0, 'f') => self.inputs * by_feature,
            (2, 'b') => self.batches,
            (1, 'i') => self.inputs,
            (1, 'o') | (2, 'f') => self.outputs * self.groups,
            (which, label) => {
                let dim = usize::from(*label == '1');
                [self.dims[dim].len, self.dims[dim].size, self.out[dim]][which]
            }
        };
        self.labels[which].iter().map(extent).collect()
    }

    fn text(&self) -> String {
        let window = window_text(&self.dims);
        let [x, k, c] = [0, 1, 2].map(|which| list(&self.shape(which)));
        let [input, kernel, out] =
            [0, 1, 2].map(|which| self.labels[which].iter().collect::<String>());
        let grouped = if self.is_by_batch { "batch" } else { "feature" };
        format!(
            " x = f32[{x}] parameter(0)\n k = f32[{k}] parameter(1)\n ROOT c = f32[{c}] \
             convolution(x, k), {window}, dim_labels={input}_{kernel}->{out}, \
             {grouped}_group_count={}",
            self.groups,
        )
    }

    /// An element of the input or the kernel.
    fn element(&self, array: &Tensor, which: usize, index: impl Fn(char) -> usize) -> f32 {
        let index: Vec<usize> = self.labels[which].iter().map(|&label| index(label)).collect();
        array.slice::<f32>()[place(array.dims(), &index)]
    }

    /// An element of the result.
    fn sum(&self, x: &Tensor, k: &Tensor, index: &[usize]) -> f32 {
        let at = |label: char| index[self.labels[2].iter().position(|&l| l == label).unwrap()];
        let (group, dims) = (at('f') / self.outputs, &self.dims);
        let mut sum = 0.0;
        for place in indices(&[dims[0].size, dims[1].size, self.inputs]) {
            let seen = [dims[0].seen(at('0'), place[0]), dims[1].seen(at('1'), place[1])];
            let [Some(row), Some(column)] = seen else { continue };
            let value = self.element(x, 0, |label| match label {
                'b' => at('b') + if self.is_by_batch { group * self.batches } else { 0 },
                'f' => place[2] + if self.is_by_batch { 0 } else { group * self.inputs },
                '0' => row,
                _ => column,
            });
            let tap = |dim: usize| match dims[dim].is_reversed {
                true => dims[dim].size - 1 - place[dim],
                false => place[dim],
            };
            let factor = self.element(k, 1, |label| match label {
                'i' => place[2],
                'o' => at('f'),
                '0' => tap(0),
                _ => tap(1),
            });
            sum += value * factor;
        }
        sum
    }
}

#[test]
fn convolutions_in_any_layout() {
    let mut random = Random(61);
    for round in 0..ROUNDS {
        // Some are long enough to be cut into tiles and written where they belong.
        let longest = if round % 4 == 0 { 24 } else { 9 };
        let Some(conv) = AnyConv::by_chance(&mut random, longest) else { continue };
        let (x, k) = (random.floats(&conv.shape(0)), random.floats(&conv.shape(1)));
        let expected: Vec<f32> =
            indices(&conv.shape(2)).iter().map(|index| conv.sum(&x, &k, index)).collect();
        assert_close(run_entry(&conv.text(), &[x, k])[0].slice(), &expected, 1e-5);
    }
}

/// One output feature or two in each group, and lines that are longer and shorter than a tile.
#[test]
fn convolutions_with_few_features() {
    let mut random = Random(64);
    for round in 0..ROUNDS {
        let longest = [24, 50, 90][round % 3];
        let Some(conv) = AnyConv::by_chance(&mut random, longest) else { continue };
        let mut conv = AnyConv { outputs: random.between(1, 2), ..conv };
        conv.dims[0].stride = 1;
        let Some(out) = conv.dims[0].outputs() else { continue };
        conv.out[0] = out;
        // Some windows see padding nearly everywhere.
        if round % 5 == 0 {
            (conv.dims[1].size, conv.dims[1].low, conv.dims[1].high) = (40, 39, 38);
            conv.out[1] = conv.dims[1].outputs().unwrap();
        }
        let (x, k) = (random.floats(&conv.shape(0)), random.floats(&conv.shape(1)));
        let expected: Vec<f32> =
            indices(&conv.shape(2)).iter().map(|index| conv.sum(&x, &k, index)).collect();
        assert_close(run_entry(&conv.text(), &[x, k])[0].slice(), &expected, 1e-5);
    }
}

#[test]
fn depthwise_convolutions() {
    let mut random = Random(63);
    for _ in 0..ROUNDS / 3 {
        let Some(conv) = AnyConv::by_chance(&mut random, 12) else { continue };
        // Features lie next to each other in all arrays, or not in the kernel.
        let kernel = ["01io", "0i1o", "o01i"][random.below(3)];
        let labels = ["b01f", kernel, "0b1f"].map(|labels| labels.chars().collect());
        let groups = random.between(8, 19);
        let conv = AnyConv { inputs: 1, outputs: 1, groups, is_by_batch: false, labels, ..conv };
        let (x, k) = (random.floats(&conv.shape(0)), random.floats(&conv.shape(1)));
        let expected: Vec<f32> =
            indices(&conv.shape(2)).iter().map(|index| conv.sum(&x, &k, index)).collect();
        assert_close(run_entry(&conv.text(), &[x, k])[0].slice(), &expected, 1e-5);
    }
}

/// Windows over some dimensions, with others before and after. The initial value counts once, also
/// where it is not neutral.
#[test]
fn reductions_of_windows() {
    let mut random = Random(62);
    for _ in 0..ROUNDS / 3 {
        let [rows, columns] =
            [0, 1].map(|_| Moving { is_reversed: false, ..Moving::by_chance(&mut random, 12) });
        let (before, after) = (random.between(1, 3), [1, 3, 40, 600][random.below(4)]);
        let dims = [Moving::still(before), rows, columns, Moving::still(after)];
        let out: Option<Vec<usize>> = dims.iter().map(Moving::outputs).collect();
        let Some(out) = out else { continue };
        let x = random.floats(&[before, dims[1].len, dims[2].len, after]);
        let window = window_text(&dims);
        let body = format!(
            " x = f32[{}] parameter(0)\n z = f32[] constant(10)\n ROOT w = f32[{}] \
             reduce-window(x, z), {window}, to_apply=add",
            list(x.dims()),
            list(&out),
        );
        let expected: Vec<f32> = indices(&out)
            .iter()
            .map(|index| {
                let mut sum = 10.0;
                for tap in indices(&[dims[1].size, dims[2].size]) {
                    let seen = [1, 2].map(|dim| dims[dim].seen(index[dim], tap[dim - 1]));
                    if let [Some(row), Some(column)] = seen {
                        let at = place(x.dims(), &[index[0], row, column, index[3]]);
                        sum += x.slice::<f32>()[at];
                    }
                }
                sum
            })
            .collect();
        assert_close(run_entry(&body, std::slice::from_ref(&x))[0].slice(), &expected, 1e-5);
    }
}

fn place3(dims: &[usize], index: [usize; 3]) -> usize {
    place(dims, &index)
}

#[test]
fn sorts_are_stable() {
    let mut random = Random(17);
    for _ in 0..60 {
        let (rows, columns, dim) = (random.between(1, 12), random.between(1, 30), random.below(2));
        let keys: Vec<f32> = (0..rows * columns).map(|_| random.below(6) as f32).collect();
        let is_program = random.below(2) == 0;
        // The second comparator is the first in disguise, so that it is run and not recognised.
        let compare = if is_program {
            " s = f32[] subtract(a, b)\n z = f32[] constant(0)\n ROOT r = pred[] compare(s, z), direction=LT\n"
        } else {
            " ROOT r = pred[] compare(a, b), direction=LT\n"
        };
        let text = format!(
            "HloModule m\nless {{\n a = f32[] parameter(0)\n b = f32[] parameter(1)\n c = s32[] parameter(2)\n d = s32[] parameter(3)\n{compare}}}\nENTRY e {{\n x = f32[{rows},{columns}] parameter(0)\n n = s32[{rows},{columns}] iota(), iota_dimension={dim}\n ROOT s = (f32[{rows},{columns}], s32[{rows},{columns}]) sort(x, n), dimensions={{{dim}}}, is_stable=true, to_apply=less\n}}\n"
        );
        let given = run(&text, &[floats(&[rows, columns], &keys)]);
        let (lines, len) = if dim == 1 { (rows, columns) } else { (columns, rows) };
        for line in 0..lines {
            let at = |i: usize| if dim == 1 { line * columns + i } else { i * columns + line };
            let mut order: Vec<usize> = (0..len).collect();
            order.sort_by(|&a, &b| keys[at(a)].total_cmp(&keys[at(b)]));
            for (i, &from) in order.iter().enumerate() {
                assert_eq!(
                    (given[0].slice::<f32>()[at(i)], given[1].slice::<i32>()[at(i)]),
                    (keys[at(from)], from as i32)
                );
            }
        }
    }
}

#[test]
fn pads_and_windows() {
    let mut random = Random(18);
    for _ in 0..ROUNDS {
        let (len, low, high, interior) = (
            random.between(1, 9),
            random.below(7) as i64 - 3,
            random.below(7) as i64 - 3,
            random.below(3),
        );
        let grown = len as i64 + low + high + ((len - 1) * interior) as i64;
        if grown < 0 {
            continue;
        }
        let x = random.floats(&[2, len]);
        let body = format!(
            " x = f32[2,{len}] parameter(0)\n v = f32[] constant(9)\n ROOT p = f32[2,{grown}] pad(x, v), padding=0_0x{low}_{high}_{interior}"
        );
        let expected: Vec<f32> = indices(&[2, grown as usize])
            .iter()
            .map(|index| {
                let at = index[1] as i64 - low;
                let step = interior as i64 + 1;
                let is_there = at >= 0 && at % step == 0 && at / step < len as i64;
                if is_there { x.slice::<f32>()[index[0] * len + (at / step) as usize] } else { 9.0 }
            })
            .collect();
        assert_eq!(run_entry(&body, std::slice::from_ref(&x))[0].slice::<f32>(), expected);
        let (size, stride) = (random.between(1, len), random.between(1, 3));
        let out = (len - size) / stride + 1;
        let body = format!(
            " x = f32[2,{len}] parameter(0)\n z = f32[] constant(0)\n ROOT w = f32[2,{out}] reduce-window(x, z), window={{size=1x{size} stride=1x{stride}}}, to_apply=add"
        );
        let expected: Vec<f32> = indices(&[2, out])
            .iter()
            .map(|index| {
                x.slice::<f32>()[index[0] * len + index[1] * stride..][..size].iter().sum()
            })
            .collect();
        assert_close(run_entry(&body, &[x])[0].slice(), &expected, 1e-5);
    }
}

/// An expression that pads, concatenates, slices, reverses and reshapes what it computes, one step
/// at a time: lines of HLO.
fn moved_about(random: &mut Random, dtype: &str) -> String {
    let rank = random.between(1, 3);
    let mut dims: Vec<usize> = (0..rank).map(|_| random.between(1, 12)).collect();
    // Long rows are read and written where they are.
    if random.below(3) == 0 {
        dims[rank - 1] = random.between(64, 80);
    }
    let mut lines =
        format!(" x = {dtype}[{}] parameter(0)\n v = {dtype}[] constant(3)\n", list(&dims));
    let mut last = "x".to_owned();
    for number in 0..random.between(2, 8) {
        let (before, name) = (dims.clone(), format!("t{number}"));
        let dim = random.below(rank);
        let line = match random.below(7) {
            0 => {
                let numbers: Vec<[i64; 3]> = dims
                    .iter()
                    .map(|_| {
                        [
                            random.below(5) as i64 - 1,
                            random.below(5) as i64 - 1,
                            random.below(3) as i64,
                        ]
                    })
                    .collect();
                let grow = |(&dim, [low, high, between]): (&usize, &[i64; 3])| {
                    (dim as i64 + low + high + (dim as i64 - 1).max(0) * between) as usize
                };
                if dims.iter().zip(&numbers).any(|(&dim, n)| (dim as i64) < 3 && n[0] + n[1] < 0) {
                    continue;
                }
                dims = dims.iter().zip(&numbers).map(grow).collect();
                let shown: Vec<String> = numbers
                    .iter()
                    .map(|[low, high, between]| format!("{low}_{high}_{between}"))
                    .collect();
                format!("pad({last}, v), padding={}", shown.join("x"))
            }
            1 => {
                dims[dim] *= 2;
                format!("concatenate({last}, {last}), dimensions={{{dim}}}")
            }
            2 => {
                lines += &format!(" n{number} = {dtype}[{}] negate({last})\n", list(&dims));
                dims[dim] *= 3;
                format!("concatenate({last}, n{number}, {last}), dimensions={{{dim}}}")
            }
            3 => {
                let (start, by) = (random.below(dims[dim].max(2) / 2), random.between(1, 3));
                let cuts: Vec<String> = (0..rank)
                    .map(|at| match at == dim {
                        true => format!("[{start}:{}:{by}]", dims[at]),
                        false => format!("[0:{}]", dims[at]),
                    })
                    .collect();
                dims[dim] = (dims[dim] - start).div_ceil(by);
                format!("slice({last}), slice={{{}}}", cuts.join(", "))
            }
            4 => format!("reverse({last}), dimensions={{{dim}}}"),
            5 => format!("add({last}, {last})"),
            _ => format!("multiply({last}, {last})"),
        };
        if dims.iter().product::<usize>() > 60_000 {
            dims = before;
            continue;
        }
        lines += &format!(" {name} = {dtype}[{}] {line}\n", list(&dims));
        last = name;
    }
    // The root is one of the steps, or an operation on it.
    match random.below(2) == 0 || last == "x" {
        true => lines + &format!(" ROOT r = {dtype}[{}] negate({last})", list(&dims)),
        false => lines.replace(&format!(" {last} = "), &format!(" ROOT {last} = ")),
    }
}

/// What is fused is cut into regions; alone, every operation goes through memory.
#[test]
fn pads_and_concatenations_of_expressions() {
    let mut random = Random(19);
    for (round, dtype) in (0..3 * ROUNDS).zip(["f32", "s32", "bf16"].into_iter().cycle()) {
        let body = moved_about(&mut random, dtype);
        let shape = body.split_whitespace().nth(2).unwrap().trim_end_matches(']');
        let dims: Vec<usize> =
            shape[dtype.len() + 1..].split(',').map(|dim| dim.parse().unwrap()).collect();
        let kind = match dtype {
            "f32" => DType::F32,
            "s32" => DType::S32,
            _ => DType::Bf16,
        };
        let x = random.array(kind, &dims);
        let alone = run_entry(&body, std::slice::from_ref(&x)).remove(0);
        let fused = run_fused(&body, &[x]);
        assert!(fused.bytes() == alone.bytes(), "round {round}: {body}");
    }
}
