//! Kernels that have several ways to compute: each way by its definition, and the same bits on any
//! number of threads.

mod common;

use std::f64::consts::TAU;

use common::{Random, floats, indices, list, place, run, with_computations};
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
        // Few vectors and many, along the memory of both, on either side.
        (
            "f32",
            "7,300",
            "1501,300",
            "7,1501",
            "lhs_contracting_dims={1}, rhs_contracting_dims={1}",
        ),
        (
            "f32",
            "1502,77",
            "12,77",
            "1502,12",
            "lhs_contracting_dims={1}, rhs_contracting_dims={1}",
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

/// Few vectors with many: by definition, with steps between the vectors.
#[test]
fn products_of_few_vectors() {
    let mut random = Random(12);
    for (few, many, depth) in [(2, 64, 32), (3, 131, 45), (8, 256, 128), (12, 100, 33)] {
        for is_left in [true, false] {
            let (a, b) = (random.floats(&[few, depth]), random.floats(&[many, depth]));
            let (rows, columns) = if is_left { (few, many) } else { (many, few) };
            let names = if is_left { "a, b" } else { "b, a" };
            let text = with_computations(&format!(
                " a = f32[{few},{depth}] parameter(0)\n b = f32[{many},{depth}] parameter(1)\n \
                 ROOT d = f32[{rows},{columns}] dot({names}), \
                 lhs_contracting_dims={{1}}, rhs_contracting_dims={{1}}"
            ));
            let (left, right) = if is_left { (&a, &b) } else { (&b, &a) };
            let row = |of: &Tensor, row: usize| -> Vec<f64> {
                of.slice::<f32>()[row * depth..][..depth].iter().map(|&x| x.into()).collect()
            };
            let given = run(&text, &[a.clone(), b.clone()]).remove(0);
            for (at, &element) in given.slice::<f32>().iter().enumerate() {
                let (left, right) = (row(left, at / columns), row(right, at % columns));
                let sum: f64 = left.iter().zip(&right).map(|(a, b)| a * b).sum();
                assert!((f64::from(element) - sum).abs() < 1e-4, "{few} {many} {depth} at {at}");
            }
        }
    }
}

/// Makes the number at a place of a row.
type MadeNumber = fn(&mut Random, usize) -> f32;

/// The largest elements, the first of equal ones first.
#[test]
fn the_largest_elements_and_their_places() {
    let mut random = Random(13);
    let numbers: [(&str, MadeNumber); 5] = [
        ("any", |random, _| random.unit()),
        ("few", |random, _| random.below(5) as f32 - 2.0),
        ("growing", |_, at| at as f32),
        ("falling", |_, at| -(at as f32)),
        ("odd", |random, at| [f32::NAN, -0.0, 0.0, f32::NEG_INFINITY][random.below(4).min(at)]),
    ];
    for (rows, len, count) in
        [(1, 1, 1), (2, 70, 3), (3, 129, 129), (1, 3000, 8), (2, 1000, 400), (40, 2500, 2)]
    {
        for (name, number) in numbers {
            let values: Vec<f32> =
                (0..rows * len).map(|at| number(&mut random, at % len)).collect();
            let text = format!(
                "HloModule m\nENTRY e {{\n a = f32[{rows},{len}] parameter(0)\n \
                 ROOT t = (f32[{rows},{count}], s32[{rows},{count}]) topk(a), k={count}, \
                 largest=true\n}}\n"
            );
            let given = alike(&text, &[floats(&[rows, len], &values)]);
            for row in 0..rows {
                let values = &values[row * len..][..len];
                let mut places: Vec<usize> = (0..len).collect();
                places.sort_by(|&a, &b| values[b].total_cmp(&values[a]));
                let ours = row * count..(row + 1) * count;
                let of = &given[1].slice::<i32>()[ours.clone()];
                assert!(of.iter().zip(&places).all(|(&a, &b)| a as usize == b), "{name} {len}");
                let of = &given[0].slice::<f32>()[ours];
                let is_same = |(a, &b): (&f32, &usize)| a.to_bits() == values[b].to_bits();
                assert!(of.iter().zip(&places).all(is_same), "{name} {len}");
            }
        }
    }
}

/// Rows that lie apart, read and written: every other one, shifted, and between zeros.
#[test]
fn rows_that_lie_apart() {
    let mut random = Random(14);
    let (a, b) = (random.floats(&[3, 401, 100]), random.floats(&[3, 200, 100]));
    let (long, short) = ("f32[3,401,100]", "f32[3,200,100]");
    let text = format!(
        "HloModule m\nfused {{\n a = {long} parameter(0)\n b = {short} parameter(1)\n \
         o = {short} slice(a), slice={{[0:3], [1:401:2], [0:100]}}\n \
         n = {short} slice(a), slice={{[0:3], [2:401:2], [0:100]}}\n \
         m = {short} multiply(o, b)\n s = {short} add(m, n)\n z = f32[] constant(7)\n \
         ROOT p = {long} pad(s, z), padding=0_0_0x1_1_1x0_0_0\n}}\n\
         ENTRY e {{\n x = {long} parameter(0)\n y = {short} parameter(1)\n \
         ROOT f = {long} fusion(x, y), kind=kLoop, calls=fused\n}}\n"
    );
    let given = alike(&text, &[a.clone(), b.clone()]).remove(0);
    for index in indices(&[3, 401, 100]) {
        let [i, j, k] = index[..] else { unreachable!() };
        let at = |row: usize| a.slice::<f32>()[place(&[3, 401, 100], &[i, row, k])];
        let expected = match j % 2 {
            0 => 7.0,
            _ => at(j) * b.slice::<f32>()[place(&[3, 200, 100], &[i, j / 2, k])] + at(j + 1),
        };
        assert_eq!(given.slice::<f32>()[place(&[3, 401, 100], &index)], expected, "{index:?}");
    }
}

/// The transform of one dimension of complex numbers, in f64, by its definition.
fn sums_of_turns(parts: &mut [[f64; 2]], dims: &[usize], dim: usize, sign: f64) {
    let from = parts.to_owned();
    for index in indices(dims) {
        let mut sum = [0.0, 0.0];
        for k in 0..dims[dim] {
            let mut other = index.clone();
            other[dim] = k;
            let [re, im] = from[place(dims, &other)];
            let angle = sign * TAU * (k * index[dim] % dims[dim]) as f64 / dims[dim] as f64;
            let (sine, cosine) = angle.sin_cos();
            sum = [sum[0] + re * cosine - im * sine, sum[1] + re * sine + im * cosine];
        }
        parts[place(dims, &index)] = sum;
    }
}

#[track_caller]
fn assert_parts(given: &[Tensor], expected: &[[f64; 2]], what: &str) {
    let most = expected.iter().flatten().fold(0.0f64, |most, part| most.max(part.abs()));
    for (part, given) in given.iter().enumerate() {
        for (at, (&given, expected)) in given.slice::<f32>().iter().zip(expected).enumerate() {
            let off = (f64::from(given) - expected[part]).abs();
            assert!(off <= 1e-6 * most, "{what}: {at}.{part} is off by {off} of {most}");
        }
    }
}

/// A fusion that transforms an array of complex numbers, and gives the parts of the result.
fn transforming(from: &[usize], to: &[usize], how: &str) -> String {
    let (from, to) = (list(from), list(to));
    let body = format!(
        " a = f32[{from}] parameter(0)\n b = f32[{from}] parameter(1)\n \
         c = c64[{from}] complex(a, b)\n t = c64[{to}] fft(c), {how}\n \
         re = f32[{to}] real(t)\n im = f32[{to}] imag(t)\n \
         ROOT r = (f32[{to}], f32[{to}]) tuple(re, im)\n"
    );
    format!(
        "HloModule m\nfused {{\n{body}}}\nENTRY e {{\n a = f32[{from}] parameter(0)\n \
         b = f32[{from}] parameter(1)\n ROOT f = (f32[{to}], f32[{to}]) fusion(a, b), \
         kind=kLoop, calls=fused\n}}\n"
    )
}

/// Lines that lie beside each other, behind each other and in groups that are not a multiple of
/// those transformed together; with all radices, and a length that is a convolution.
#[test]
fn transforms_are_sums_of_turns() {
    let mut random = Random(15);
    for (dims, rank) in [
        (vec![5, 48], 1),
        (vec![2, 16, 33], 2),
        (vec![64, 9], 2),
        (vec![3, 11, 13], 3),
        (vec![6, 7, 10], 2),
        (vec![9, 17], 2),
        (vec![20, 4097 * 2], 1),
    ] {
        let is_long = dims[dims.len() - 1] > 1000;
        let (a, b) = (random.floats(&dims), random.floats(&dims));
        let pairs = a.slice::<f32>().iter().zip(b.slice::<f32>());
        let parts: Vec<[f64; 2]> = pairs.map(|(&a, &b)| [a.into(), b.into()]).collect();
        let lengths = list(&dims[dims.len() - rank..]);
        let way = |kind: &str| format!("fft_type={kind}, fft_length={{{lengths}}}");
        let there = alike(&transforming(&dims, &dims, &way("FFT")), &[a.clone(), b.clone()]);
        if !is_long {
            let mut expected = parts.clone();
            (dims.len() - rank..dims.len())
                .for_each(|dim| sums_of_turns(&mut expected, &dims, dim, -1.0));
            assert_parts(&there, &expected, &format!("{dims:?}"));
        }
        let back = alike(&transforming(&dims, &dims, &way("IFFT")), &there);
        assert_parts(&back, &parts, &format!("{dims:?} back"));
    }
}

/// Real lines of even and odd lengths, there and back.
#[test]
fn transforms_of_real_lines() {
    let mut random = Random(16);
    for dims in
        [vec![9, 64], vec![3, 5, 12], vec![4, 6, 15], vec![10, 34], vec![2, 9, 31], vec![3, 2]]
    {
        let last = dims.len() - 1;
        let half = [&dims[..last], &[dims[last] / 2 + 1]].concat();
        let (full, cut, lengths) = (list(&dims), list(&half), list(&dims[1..]));
        let a = random.floats(&dims);
        let text = format!(
            "HloModule m\nfused {{\n a = f32[{full}] parameter(0)\n \
             t = c64[{cut}] fft(a), fft_type=RFFT, fft_length={{{lengths}}}\n \
             re = f32[{cut}] real(t)\n im = f32[{cut}] imag(t)\n \
             b = f32[{full}] fft(t), fft_type=IRFFT, fft_length={{{lengths}}}\n \
             ROOT r = (f32[{cut}], f32[{cut}], f32[{full}]) tuple(re, im, b)\n}}\nENTRY e {{\n \
             a = f32[{full}] parameter(0)\n ROOT f = (f32[{cut}], f32[{cut}], f32[{full}]) \
             fusion(a), kind=kLoop, calls=fused\n}}\n"
        );
        let given = alike(&text, std::slice::from_ref(&a));
        let parts: Vec<[f64; 2]> =
            a.slice::<f32>().iter().map(|&part| [part.into(), 0.0]).collect();
        let mut expected = parts.clone();
        (1..dims.len()).for_each(|dim| sums_of_turns(&mut expected, &dims, dim, -1.0));
        let kept = indices(&half);
        let kept: Vec<[f64; 2]> = kept.iter().map(|index| expected[place(&dims, index)]).collect();
        assert_parts(&given[..2], &kept, &format!("{dims:?}"));
        assert_parts(&given[2..], &parts, &format!("{dims:?} back"));
    }
}
