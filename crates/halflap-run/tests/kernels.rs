//! Kernels that have several ways to compute: each way by its definition, and the same bits on any
//! number of threads.

mod common;

use common::{Random, floats, list, run, with_computations};
use halflap_hlo::Module;
use halflap_run::kernel::{Context, Kernel, Scratch};
use halflap_run::tensor::{DType, Tensor};

/// What the root's kernel gives on this many threads.
fn on_threads(text: &str, inputs: &[Tensor], threads: usize) -> Vec<Tensor> {
    let module = Module::read(text.to_owned()).unwrap_or_else(|error| panic!("{error}\n{text}"));
    let kernel = Kernel::compile(&module, module.root(module.entry()))
        .unwrap_or_else(|error| panic!("{error}\n{text}"));
    let mut outputs: Vec<Tensor> =
        kernel.outputs().iter().map(|kind| Tensor::zeros(kind.dtype, &kind.dims)).collect();
    let views: Vec<_> = inputs.iter().map(Tensor::view).collect();
    let mut writable: Vec<_> = outputs.iter_mut().map(Tensor::view_mut).collect();
    let mut scratch = Scratch::new(Context { threads, ..Context::default() });
    kernel.run(&views, &mut writable, &mut scratch);
    drop(writable);
    outputs
}

/// The same on one thread and on several, which must not differ.
#[track_caller]
fn alike(text: &str, inputs: &[Tensor]) -> Vec<Tensor> {
    let made = on_threads(text, inputs, 1);
    for threads in [2, 3, 7] {
        let other = on_threads(text, inputs, threads);
        for (a, b) in made.iter().zip(&other) {
            assert!(a.bytes() == b.bytes(), "on {threads} threads:\n{text}");
        }
    }
    made
}

/// A text with one root of a type, after a computation that combines two numbers of that.
fn combining(of: &str, operation: &str, body: &str) -> String {
    format!(
        "HloModule m\nf {{\n a = {of}[] parameter(0)\n b = {of}[] parameter(1)\n \
         ROOT r = {of}[] {operation}(a, b)\n}}\nENTRY e {{\n{body}\n}}\n"
    )
}

fn narrowed(of: &str, values: &[f32]) -> (Tensor, Vec<f32>) {
    match of {
        "bf16" => {
            let values: Vec<half::bf16> = values.iter().map(|&v| half::bf16::from_f32(v)).collect();
            let mut array = Tensor::zeros(DType::Bf16, &[values.len()]);
            for (to, value) in array.bytes_mut().chunks_exact_mut(2).zip(&values) {
                to.copy_from_slice(&value.to_le_bytes());
            }
            (array, values.iter().map(|value| value.to_f32()).collect())
        }
        _ => (floats(&[values.len()], values), values.to_vec()),
    }
}

#[test]
fn running_results_are_those_of_their_windows() {
    let mut random = Random(5);
    let dims = [3, 700, 35];
    let len: usize = dims.iter().product();
    let values: Vec<f32> = (0..len).map(|_| random.unit()).collect();
    for of in ["f32", "bf16"] {
        let (flat, values) = narrowed(of, &values);
        let mut array = Tensor::zeros(flat.dtype(), &dims);
        array.bytes_mut().copy_from_slice(flat.bytes());
        let mut init = Tensor::zeros(flat.dtype(), &[]);
        init.bytes_mut().copy_from_slice(narrowed(of, &[0.5]).0.bytes());
        for (dim, is_backward) in [(0, false), (1, false), (2, false), (1, true), (2, true)] {
            for (operation, f) in
                [("add", (|a, b| a + b) as fn(f32, f32) -> f32), ("maximum", f32::max)]
            {
                let mut sizes = ["1"; 3].map(str::to_owned);
                sizes[dim] = (dims[dim] + 2).to_string();
                let mut pads = ["0_0"; 3].map(str::to_owned);
                let reach = dims[dim] + 1;
                pads[dim] = if is_backward { format!("0_{reach}") } else { format!("{reach}_0") };
                let text = combining(
                    of,
                    operation,
                    &format!(
                        " x = {of}[{0}] parameter(0)\n z = {of}[] parameter(1)\n \
                         ROOT w = {of}[{0}] reduce-window(x, z), window={{size={1} pad={2}}}, \
                         to_apply=f",
                        list(&dims),
                        sizes.join("x"),
                        pads.join("x")
                    ),
                );
                let made = alike(&text, &[array.clone(), init.clone()]);
                let tail: usize = dims[dim + 1..].iter().product();
                let mut expected = vec![0.0f32; len];
                for line in 0..len / (dims[dim] * tail) {
                    for element in 0..tail {
                        let mut sum = 0.5;
                        for position in 0..dims[dim] {
                            let position =
                                if is_backward { dims[dim] - 1 - position } else { position };
                            let at = (line * dims[dim] + position) * tail + element;
                            sum = f(sum, values[at]);
                            expected[at] = sum;
                        }
                    }
                }
                let (expected, _) = narrowed(of, &expected);
                assert!(made[0].bytes() == expected.bytes(), "{text}");
            }
        }
    }
}

#[test]
fn scattered_updates_of_one_element_keep_their_order() {
    let mut random = Random(6);
    for (rows, width, count) in [(40, 1, 50_000), (700, 64, 900), (1, 3, 9)] {
        let (array, updates) = (random.floats(&[rows, width]), random.floats(&[count, width]));
        // Some are outside and are left out.
        let places: Vec<i32> = (0..count).map(|_| random.below(rows + 2) as i32 - 1).collect();
        for (operation, f) in
            [("add", (|a, b| a + b) as fn(f32, f32) -> f32), ("subtract", |a, b| a - b)]
        {
            let text = combining(
                "f32",
                operation,
                &format!(
                    " x = f32[{rows},{width}] parameter(0)\n i = s32[{count},1] parameter(1)\n \
                     u = f32[{count},{width}] parameter(2)\n ROOT s = f32[{rows},{width}] \
                     scatter(x, i, u), update_window_dims={{1}}, inserted_window_dims={{0}}, \
                     scatter_dims_to_operand_dims={{0}}, index_vector_dim=1, to_apply=f"
                ),
            );
            let inputs = [array.clone(), Tensor::of(&[count, 1], &places), updates.clone()];
            let mut expected = array.slice::<f32>().to_vec();
            for (update, &place) in updates.slice::<f32>().chunks(width).zip(&places) {
                let row = usize::try_from(place).ok().filter(|&row| row < rows);
                for (at, &value) in update.iter().enumerate() {
                    if let Some(row) = row {
                        expected[row * width + at] = f(expected[row * width + at], value);
                    }
                }
            }
            assert!(alike(&text, &inputs)[0].slice::<f32>() == expected, "{text}");
        }
    }
}

/// Single elements at places of two numbers, in a batch of two dimensions, of any type of index.
#[test]
fn scattered_numbers_keep_their_order() {
    let mut random = Random(9);
    let (rows, columns, batch) = (7, 90, [3, 20_000]);
    let count = batch[0] * batch[1];
    let array = random.floats(&[rows, columns]);
    let updates = random.floats(&batch);
    // Some are outside and are left out, by either number.
    let pick = |random: &mut Random, len: usize| random.below(len + 2) as i64 - 1;
    let places: Vec<[i64; 2]> =
        (0..count).map(|_| [pick(&mut random, rows), pick(&mut random, columns)]).collect();
    for (operation, kind) in [("add", "s32"), ("maximum", "s64"), ("b", "s32"), ("add", "s16")] {
        let scatter = format!(
            " x = f32[{rows},{columns}] parameter(0)\n i = {kind}[3,20000,2] parameter(1)\n \
             u = f32[3,20000] parameter(2)\n ROOT s = f32[{rows},{columns}] scatter(x, i, u), \
             update_window_dims={{}}, inserted_window_dims={{0,1}}, \
             scatter_dims_to_operand_dims={{0,1}}, index_vector_dim=2, to_apply=f"
        );
        let text = match operation {
            "b" => combining("f32", "add", &scatter)
                .replace(" b = ", " ROOT b = ")
                .replace(" ROOT r = f32[] add(a, b)\n", ""),
            _ => combining("f32", operation, &scatter),
        };
        let flat = places.iter().flatten();
        let indices = match kind {
            "s64" => Tensor::of(&[3, 20_000, 2], &flat.copied().collect::<Vec<i64>>()),
            "s16" => Tensor::of(&[3, 20_000, 2], &flat.map(|&i| i as i16).collect::<Vec<i16>>()),
            _ => Tensor::of(&[3, 20_000, 2], &flat.map(|&i| i as i32).collect::<Vec<i32>>()),
        };
        let mut expected = array.slice::<f32>().to_vec();
        for (&[row, column], &value) in places.iter().zip(updates.slice::<f32>()) {
            if (0..rows as i64).contains(&row) && (0..columns as i64).contains(&column) {
                let sum = &mut expected[row as usize * columns + column as usize];
                *sum = match operation {
                    "add" => *sum + value,
                    "maximum" => sum.max(value),
                    _ => value,
                };
            }
        }
        let made = alike(&text, &[array.clone(), indices, updates.clone()]);
        assert!(made[0].slice::<f32>() == expected, "{text}");
    }
}

#[test]
fn gathered_windows_are_shared_by_threads() {
    let mut random = Random(7);
    for (rows, width, count) in [(50, 1, 70_000), (300, 33, 3000)] {
        let array = random.floats(&[rows, width]);
        let places: Vec<i32> = (0..count).map(|_| random.below(rows + 4) as i32 - 2).collect();
        let text = with_computations(&format!(
            " x = f32[{rows},{width}] parameter(0)\n i = s32[{count},1] parameter(1)\n \
             ROOT g = f32[{count},{width}] gather(x, i), offset_dims={{1}}, \
             collapsed_slice_dims={{0}}, start_index_map={{0}}, index_vector_dim=1, \
             slice_sizes={{1,{width}}}"
        ));
        let made = alike(&text, &[array.clone(), Tensor::of(&[count, 1], &places)]);
        for (got, &place) in made[0].slice::<f32>().chunks(width).zip(&places) {
            let row = place.clamp(0, rows as i32 - 1) as usize;
            assert_eq!(got, &array.slice::<f32>()[row * width..][..width]);
        }
    }
}

/// A combination that only keeps its second operand is associative but not commutative.
#[test]
fn reductions_by_a_computation_keep_the_order() {
    for (rows, len) in [(1, 1), (1, 63), (1, 64), (3, 100), (2, 5000), (40, 3000)] {
        let text = format!(
            "HloModule m\nlast {{\n a = f32[] parameter(0)\n i = s32[] parameter(1)\n \
             b = f32[] parameter(2)\n j = s32[] parameter(3)\n \
             ROOT t = (f32[], s32[]) tuple(b, j)\n}}\nENTRY e {{\n x = f32[{rows},{len}] \
             parameter(0)\n n = s32[{rows},{len}] iota(), iota_dimension=1\n \
             z = f32[] constant(0)\n k = s32[] constant(0)\n ROOT r = (f32[{rows}], s32[{rows}]) \
             reduce(x, n, z, k), dimensions={{1}}, to_apply=last\n}}\n"
        );
        let array = Random(8).floats(&[rows, len]);
        let made = run(&text, std::slice::from_ref(&array));
        let last: Vec<f32> = array.slice::<f32>().chunks(len).map(|row| row[len - 1]).collect();
        assert_eq!(made[0].slice::<f32>(), last, "{rows} rows of {len}");
        assert_eq!(made[1].slice::<i32>(), vec![len as i32 - 1; rows], "{rows} rows of {len}");
    }
}

/// Products of small integers, whose operands are stored along the rows or along the columns.
#[test]
fn products_of_bytes() {
    let mut random = Random(9);
    let number = |of: &str, bits: u32| match of {
        "s8" => i32::from(bits as i8),
        "u8" => i32::from(bits as u8),
        _ => i32::from(bits as i16),
    };
    for (of, by) in [("s8", "s8"), ("u8", "s8"), ("s16", "s16")] {
        for (rows, columns, depth) in [(1, 1, 1), (9, 33, 7), (40, 70, 65), (16, 64, 600)] {
            for is_turned in [false, true] {
                let mut numbers = |of: &str, dims: [usize; 2]| {
                    let values: Vec<i32> =
                        (0..dims[0] * dims[1]).map(|_| number(of, random.next())).collect();
                    let array = match of {
                        "s8" => {
                            Tensor::of(&dims, &values.iter().map(|&v| v as i8).collect::<Vec<_>>())
                        }
                        "u8" => {
                            Tensor::of(&dims, &values.iter().map(|&v| v as u8).collect::<Vec<_>>())
                        }
                        _ => {
                            Tensor::of(&dims, &values.iter().map(|&v| v as i16).collect::<Vec<_>>())
                        }
                    };
                    (array, values)
                };
                let (a, left) = numbers(of, [rows, depth]);
                let shape = if is_turned { [columns, depth] } else { [depth, columns] };
                let (b, right) = numbers(by, shape);
                let text = with_computations(&format!(
                    " a = {of}[{rows},{depth}] parameter(0)\n b = {by}[{},{}] parameter(1)\n \
                     ROOT d = s32[{rows},{columns}] dot(a, b), lhs_contracting_dims={{1}}, \
                     rhs_contracting_dims={{{}}}",
                    shape[0],
                    shape[1],
                    usize::from(is_turned)
                ));
                let made = alike(&text, &[a, b]);
                for (at, &sum) in made[0].slice::<i32>().iter().enumerate() {
                    let (row, column) = (at / columns, at % columns);
                    let expected = (0..depth).fold(0i32, |sum, k| {
                        let place =
                            if is_turned { column * depth + k } else { k * columns + column };
                        sum.wrapping_add(left[row * depth + k].wrapping_mul(right[place]))
                    });
                    assert_eq!(sum, expected, "{of} {by} {rows} {columns} {depth} at {at}");
                }
            }
        }
    }
}

/// Vectors, batches and narrow types are shared by threads in ways of their own.
#[test]
fn products_are_the_same_on_any_number_of_threads() {
    let mut random = Random(10);
    let products = [
        (
            "f32",
            "1,700",
            "700,1300",
            "1,1300",
            "lhs_contracting_dims={1}, rhs_contracting_dims={0}",
        ),
        (
            "f32",
            "1,700",
            "1300,700",
            "1,1300",
            "lhs_contracting_dims={1}, rhs_contracting_dims={1}",
        ),
        (
            "f32",
            "1300,700",
            "700,1",
            "1300,1",
            "lhs_contracting_dims={1}, rhs_contracting_dims={0}",
        ),
        ("f32", "700,1301", "700", "1301", "lhs_contracting_dims={0}, rhs_contracting_dims={0}"),
        (
            "f32",
            "9,30,40",
            "9,40,50",
            "9,30,50",
            "lhs_batch_dims={0}, rhs_batch_dims={0}, lhs_contracting_dims={2}, rhs_contracting_dims={1}",
        ),
        (
            "f32",
            "130,300",
            "300,170",
            "130,170",
            "lhs_contracting_dims={1}, rhs_contracting_dims={0}",
        ),
        (
            "bf16",
            "130,300",
            "300,170",
            "130,170",
            "lhs_contracting_dims={1}, rhs_contracting_dims={0}",
        ),
        (
            "bf16",
            "300,130",
            "170,300",
            "130,170",
            "lhs_contracting_dims={0}, rhs_contracting_dims={1}",
        ),
    ];
    for (of, a, b, to, how) in products {
        let dims = |text: &str| -> Vec<usize> {
            text.split(',').map(|dim| dim.parse().unwrap()).collect()
        };
        let mut array = |text: &str| {
            let values = random.floats(&dims(text));
            let (flat, _) = narrowed(of, values.slice::<f32>());
            let mut array = Tensor::zeros(flat.dtype(), &dims(text));
            array.bytes_mut().copy_from_slice(flat.bytes());
            array
        };
        let inputs = [array(a), array(b)];
        alike(
            &with_computations(&format!(
                " a = {of}[{a}] parameter(0)\n b = {of}[{b}] parameter(1)\n \
                 ROOT d = {of}[{to}] dot(a, b), {how}"
            )),
            &inputs,
        );
    }
}

/// A slice that a product reads where it is gives the bits of one that was copied.
#[test]
fn products_of_slices_are_those_of_copies() {
    let mut random = Random(11);
    let cases = [
        // A layer of a cache.
        ("4,12,6,8", "[2:3], [0:12], [0:6], [0:8]", "1,12,6,8", "12,6,8"),
        // A part of each row.
        ("12,6,24", "[0:12], [0:6], [8:16]", "12,6,8", "12,6,8"),
        // Every second element.
        ("12,6,16", "[0:12], [0:6], [0:16:2]", "12,6,8", "12,6,8"),
        ("12,12,8", "[0:12], [0:12:2], [0:8]", "12,6,8", "12,6,8"),
    ];
    for (from, at, cut, shape) in cases {
        for (query, numbers) in [
            (
                "6,5,8",
                "lhs_batch_dims={1}, rhs_batch_dims={0}, lhs_contracting_dims={2}, \
                 rhs_contracting_dims={2}",
            ),
            (
                "6,5,12",
                "lhs_batch_dims={1}, rhs_batch_dims={0}, lhs_contracting_dims={0}, \
                 rhs_contracting_dims={2}",
            ),
        ] {
            let free = if query.ends_with("12") { 8 } else { 12 };
            let ops = format!(
                " s = f32[{cut}] slice(x), slice={{{at}}}\n r = f32[{shape}] reshape(s)\n \
                 ROOT d = f32[6,{free},5] dot(r, q), {numbers}\n"
            );
            let given = format!(" x = f32[{from}] parameter(0)\n q = f32[{query}] parameter(1)\n");
            let apart = format!("HloModule m\nENTRY e {{\n{given}{ops}}}\n");
            let fused = format!(
                "HloModule m\nf {{\n{given}{ops}}}\nENTRY e {{\n{given} ROOT f = f32[6,{free},5] \
                 fusion(x, q), kind=kLoop, calls=f\n}}\n"
            );
            let dims = |text: &str| -> Vec<usize> {
                text.split(',').map(|dim| dim.parse().unwrap()).collect()
            };
            let inputs = [random.floats(&dims(from)), random.floats(&dims(query))];
            assert!(
                run(&apart, &inputs)[0].bytes() == on_threads(&fused, &inputs, 1)[0].bytes(),
                "{fused}"
            );
        }
    }
}

#[test]
fn convolutions_are_the_same_on_any_number_of_threads() {
    let mut random = Random(71);
    for (input, kernel, out, attributes) in [
        // Depthwise, dilated, and with windows that see padding nearly everywhere.
        (vec![2, 21, 20, 32], vec![3, 3, 1, 32], vec![2, 21, 20, 32], "size=3x3 pad=1_1x1_1"),
        (
            vec![2, 16, 16, 8],
            vec![3, 3, 8, 8],
            vec![2, 33, 33, 8],
            "size=3x3 pad=2_2x2_2 lhs_dilate=2x2",
        ),
        (vec![1, 8, 8, 4], vec![64, 64, 4, 4], vec![1, 71, 71, 4], "size=64x64 pad=63_63x63_63"),
    ] {
        let groups = input[3] / kernel[2];
        let text = format!(
            "HloModule m\nENTRY e {{\n x = f32[{}] parameter(0)\n k = f32[{}] parameter(1)\n \
             ROOT c = f32[{}] convolution(x, k), window={{{attributes}}}, \
             dim_labels=b01f_01io->b01f, feature_group_count={groups}\n}}\n",
            list(&input),
            list(&kernel),
            list(&out),
        );
        alike(&text, &[random.floats(&input), random.floats(&kernel)]);
    }
}
