//! JAX's LAPACK calls: what comes out is multiplied together again.

mod common;

use common::{Random, run};
use halflap_run::tensor::{DType, Tensor};

/// Matrices of complex numbers, in f64, row by row: of real ones the imaginary parts are zero.
#[derive(Clone, Debug)]
struct Matrix {
    rows: usize,
    columns: usize,
    of: Vec<[f64; 2]>,
}

const TYPES: [&str; 4] = ["s", "d", "c", "z"];

fn dtype(letter: &str) -> DType {
    match letter {
        "s" => DType::F32,
        "d" => DType::F64,
        "c" => DType::C64,
        _ => DType::C128,
    }
}

fn is_complex(letter: &str) -> bool {
    matches!(letter, "c" | "z")
}

/// The type of what is real of it.
fn real(letter: &str) -> DType {
    if matches!(letter, "s" | "c") { DType::F32 } else { DType::F64 }
}

fn close(letter: &str) -> f64 {
    if matches!(letter, "s" | "c") { 2e-5 } else { 1e-12 }
}

impl Matrix {
    fn new(rows: usize, columns: usize, element: impl Fn(usize, usize) -> [f64; 2]) -> Matrix {
        let all = (0..rows).flat_map(|row| (0..columns).map(move |column| (row, column)));
        Matrix { rows, columns, of: all.map(|(row, column)| element(row, column)).collect() }
    }

    fn random(random: &mut Random, rows: usize, columns: usize, letter: &str) -> Matrix {
        let mut next = || f64::from(random.unit());
        let of = (0..rows * columns)
            .map(|_| [next(), if is_complex(letter) { next() } else { 0.0 }])
            .collect();
        Matrix { rows, columns, of }
    }

    fn at(&self, row: usize, column: usize) -> [f64; 2] {
        self.of[row * self.columns + column]
    }

    fn times(&self, other: &Matrix) -> Matrix {
        assert_eq!(self.columns, other.rows);
        Matrix::new(self.rows, other.columns, |row, column| {
            (0..self.columns).fold([0.0, 0.0], |[re, im], k| {
                let ([a, b], [c, d]) = (self.at(row, k), other.at(k, column));
                [re + a * c - b * d, im + a * d + b * c]
            })
        })
    }

    fn adjoint(&self) -> Matrix {
        Matrix::new(self.columns, self.rows, |row, column| {
            let [re, im] = self.at(column, row);
            [re, -im]
        })
    }

    fn part(&self, keep: impl Fn(usize, usize) -> bool) -> Matrix {
        Matrix::new(self.rows, self.columns, |row, column| {
            if keep(row, column) { self.at(row, column) } else { [0.0, 0.0] }
        })
    }

    fn columns(&self, count: usize) -> Matrix {
        Matrix::new(self.rows, count, |row, column| self.at(row, column))
    }

    fn diagonal(values: &[[f64; 2]]) -> Matrix {
        Matrix::new(values.len(), values.len(), |row, column| {
            if row == column { values[row] } else { [0.0, 0.0] }
        })
    }

    fn identity(side: usize) -> Matrix {
        Matrix::diagonal(&vec![[1.0, 0.0]; side])
    }

    #[track_caller]
    fn is_close(&self, other: &Matrix, within: f64) {
        assert_eq!((self.rows, self.columns), (other.rows, other.columns));
        for (at, (a, b)) in self.of.iter().zip(&other.of).enumerate() {
            let apart = (a[0] - b[0]).hypot(a[1] - b[1]);
            assert!(apart <= within * 20.0, "element {at}: {a:?} and not {b:?}");
        }
    }

    fn tensor(&self, dims: &[usize], dtype: DType) -> Tensor {
        let mut tensor = Tensor::zeros(dtype, dims);
        let bytes: Vec<u8> = self
            .of
            .iter()
            .flat_map(|&[re, im]| match dtype {
                DType::F32 => (re as f32).to_le_bytes().to_vec(),
                DType::F64 => re.to_le_bytes().to_vec(),
                DType::C64 => [(re as f32).to_le_bytes(), (im as f32).to_le_bytes()].concat(),
                _ => [re.to_le_bytes(), im.to_le_bytes()].concat(),
            })
            .collect();
        tensor.bytes_mut().copy_from_slice(&bytes);
        tensor
    }
}

/// An array's elements.
fn numbers(tensor: &Tensor) -> Vec<[f64; 2]> {
    let single = |bytes: &[u8]| f64::from(f32::from_le_bytes(bytes.try_into().unwrap()));
    let double = |bytes: &[u8]| f64::from_le_bytes(bytes.try_into().unwrap());
    let element = |bytes: &[u8]| match tensor.dtype() {
        DType::F32 => [single(bytes), 0.0],
        DType::F64 => [double(bytes), 0.0],
        DType::C64 => [single(&bytes[..4]), single(&bytes[4..])],
        DType::S32 => [f64::from(i32::from_le_bytes(bytes.try_into().unwrap())), 0.0],
        _ => [double(&bytes[..8]), double(&bytes[8..])],
    };
    tensor.bytes().chunks_exact(tensor.dtype().size()).map(element).collect()
}

fn matrix(tensor: &Tensor) -> Matrix {
    let [rows, columns] = tensor.dims()[..] else { panic!("{tensor:?}") };
    Matrix { rows, columns, of: numbers(tensor) }
}

/// `f32[3,4]`
fn shape(dtype: DType, dims: &[usize]) -> String {
    let dims: Vec<String> = dims.iter().map(usize::to_string).collect();
    format!("{dtype}[{}]", dims.join(","))
}

/// Calls a routine on some arrays; `results` are the shapes of what it gives.
fn lapack(name: &str, config: &str, inputs: &[Tensor], results: &[String]) -> Vec<Tensor> {
    let parameters: Vec<String> = inputs
        .iter()
        .enumerate()
        .map(|(at, input)| {
            format!(" p{at} = {} parameter({at})\n", shape(input.dtype(), input.dims()))
        })
        .collect();
    let names: Vec<String> = (0..inputs.len()).map(|at| format!("p{at}")).collect();
    let gives = match results {
        [one] => one.clone(),
        several => format!("({})", several.join(", ")),
    };
    let text = format!(
        "HloModule m\nENTRY e {{\n{} ROOT c = {gives} custom-call({}), custom_call_target=\"lapack_{name}_ffi\", \
         api_version=API_VERSION_TYPED_FFI, backend_config={{{config}}}\n}}\n",
        parameters.concat(),
        names.join(", ")
    );
    run(&text, inputs)
}

#[test]
fn factors_multiply_to_the_matrix() {
    let mut random = Random(3);
    for letter in TYPES {
        let (of, within) = (dtype(letter), close(letter));
        let a = Matrix::random(&mut random, 7, 7, letter);
        let positive = {
            let mut product = a.times(&a.adjoint());
            (0..7).for_each(|at| product.of[at * 8][0] += 3.0);
            product
        };
        for (code, is_lower) in [(76, true), (85, false)] {
            let config = format!("uplo = {code} : ui8");
            let given = [positive.tensor(&[7, 7], of)];
            let out = lapack(
                &format!("{letter}potrf"),
                &config,
                &given,
                &[shape(of, &[7, 7]), "s32[]".to_owned()],
            );
            assert_eq!(numbers(&out[1]), [[0.0, 0.0]]);
            let factor = matrix(&out[0])
                .part(|row, column| if is_lower { row >= column } else { row <= column });
            let product = match is_lower {
                true => factor.times(&factor.adjoint()),
                false => factor.adjoint().times(&factor),
            };
            product.is_close(&positive, within);
        }
        let out = lapack(
            &format!("{letter}getrf"),
            "",
            &[a.tensor(&[7, 7], of)],
            &[shape(of, &[7, 7]), "s32[7]".to_owned(), "s32[]".to_owned()],
        );
        let both = matrix(&out[0]);
        let mut lower = both.part(|row, column| row > column);
        (0..7).for_each(|at| lower.of[at * 8] = [1.0, 0.0]);
        let mut product = lower.times(&both.part(|row, column| row <= column));
        for (row, pivot) in numbers(&out[1]).iter().enumerate().rev() {
            let other = pivot[0] as usize - 1;
            (0..7).for_each(|column| product.of.swap(row * 7 + column, other * 7 + column));
        }
        product.is_close(&a, within);
    }
}

/// The orthogonal factor of a matrix of reflections.
fn orthogonal(letter: &str, out: &[Tensor], columns: usize) -> Matrix {
    let name = if is_complex(letter) { "ungqr" } else { "orgqr" };
    let (rows, of) = (out[0].dims()[0], dtype(letter));
    let vectors = matrix(&out[0]).columns(columns.min(out[0].dims()[1]));
    let vectors = Matrix::new(rows, columns, |row, column| {
        if column < vectors.columns { vectors.at(row, column) } else { [0.0, 0.0] }
    });
    let factors = out.last().unwrap().clone();
    let given = [vectors.tensor(&[rows, columns], of), factors];
    let out = lapack(&format!("{letter}{name}"), "", &given, &[shape(of, &[rows, columns])]);
    matrix(&out[0])
}

#[test]
fn reflections_are_orthogonal() {
    let mut random = Random(5);
    for (letter, (rows, columns)) in
        TYPES.into_iter().flat_map(|letter| [(letter, (8, 5)), (letter, (5, 8)), (letter, (6, 6))])
    {
        let (of, within) = (dtype(letter), close(letter));
        let a = Matrix::random(&mut random, rows, columns, letter);
        let least = rows.min(columns);
        let given = a.tensor(&[rows, columns], of);
        let shapes = [shape(of, &[rows, columns]), shape(of, &[least])];
        let out = lapack(&format!("{letter}geqrf"), "", std::slice::from_ref(&given), &shapes);
        let r = matrix(&out[0]).part(|row, column| row <= column);
        let q = orthogonal(letter, &out, rows);
        q.adjoint().times(&q).is_close(&Matrix::identity(rows), within);
        q.times(&r).is_close(&a, within);

        // The same with the longest columns first.
        let pivots = Tensor::zeros(DType::S32, &[columns]);
        let shapes = [&shapes[..1], &[format!("s32[{columns}]")], &shapes[1..]].concat();
        let out = lapack(&format!("{letter}geqp3"), "", &[given, pivots], &shapes);
        let r = matrix(&out[0]).part(|row, column| row <= column);
        let q = orthogonal(letter, &out, rows);
        let order: Vec<usize> =
            numbers(&out[1]).iter().map(|pivot| pivot[0] as usize - 1).collect();
        let sorted = Matrix::new(rows, columns, |row, column| a.at(row, order[column]));
        q.times(&r).is_close(&sorted, within);
        let size = |at: usize| r.at(at, at)[0].hypot(r.at(at, at)[1]);
        assert!((1..least).all(|at| size(at) <= size(at - 1) * 1.0001), "the longest come first");

        // They are applied to another matrix, from both sides.
        let name = if is_complex(letter) { "unmqr" } else { "ormqr" };
        let narrow = matrix(&out[0]).columns(least).tensor(&[rows, least], of);
        for (is_left, is_adjoint) in [(true, true), (true, false), (false, true), (false, false)] {
            let dims = if is_left { [rows, 3] } else { [3, rows] };
            let c = Matrix::random(&mut random, dims[0], dims[1], letter);
            let config = format!("left = {is_left}, transpose = {is_adjoint}");
            let given = [narrow.clone(), out[2].clone(), c.tensor(&dims, of)];
            let got = lapack(&format!("{letter}{name}"), &config, &given, &[shape(of, &dims)]);
            let own = if is_adjoint { q.adjoint() } else { q.clone() };
            let right = if is_left { own.times(&c) } else { c.times(&own) };
            matrix(&got[0]).is_close(&right, within);
        }
    }
}

#[test]
fn condensed_forms_have_the_same_eigenvalues() {
    let mut random = Random(7);
    for letter in TYPES {
        let (of, within) = (dtype(letter), close(letter));
        let a = Matrix::random(&mut random, 6, 6, letter);
        let shapes = [shape(of, &[6, 6]), shape(of, &[5]), "s32[]".to_owned()];
        let config = "high = 6 : i32, low = 1 : i32";
        let out = lapack(&format!("{letter}gehrd"), config, &[a.tensor(&[6, 6], of)], &shapes);
        let q = behind_first(letter, &out[0], &out[1]);
        let h = matrix(&out[0]).part(|row, column| row <= column + 1);
        q.times(&h).times(&q.adjoint()).is_close(&a, within);

        let symmetric = Matrix::new(6, 6, |row, column| {
            let ([a, b], [c, d]) = (a.at(row, column), a.at(column, row));
            [a + c, b - d]
        });
        let name = if is_complex(letter) { "hetrd" } else { "sytrd" };
        let (side, less) = (shape(real(letter), &[6]), shape(real(letter), &[5]));
        let shapes = [shape(of, &[6, 6]), side, less, shape(of, &[5]), "s32[]".to_owned()];
        let given = [symmetric.tensor(&[6, 6], of)];
        let out = lapack(&format!("{letter}{name}"), "uplo = 76 : ui8", &given, &shapes);
        let q = behind_first(letter, &out[0], &out[3]);
        let (main, beside) = (numbers(&out[1]), numbers(&out[2]));
        let t = Matrix::new(6, 6, |row, column| match row.abs_diff(column) {
            0 => main[row],
            1 => beside[row.min(column)],
            _ => [0.0, 0.0],
        });
        q.times(&t).times(&q.adjoint()).is_close(&symmetric, within);
    }
}

/// The product of reflections that begin below the diagonal.
fn behind_first(letter: &str, vectors: &Tensor, factors: &Tensor) -> Matrix {
    let all = matrix(vectors);
    let side = all.rows;
    let below = Matrix::new(side - 1, side - 1, |row, column| all.at(row + 1, column));
    let below = below.tensor(&[side - 1, side - 1], dtype(letter));
    let inner = orthogonal(letter, &[below, factors.clone()], side - 1);
    Matrix::new(side, side, |row, column| match (row, column) {
        (0, 0) => [1.0, 0.0],
        (0, _) | (_, 0) => [0.0, 0.0],
        _ => inner.at(row - 1, column - 1),
    })
}

#[test]
fn spectra_of_symmetric_and_of_any_matrices() {
    let mut random = Random(9);
    for letter in TYPES {
        let (of, within) = (dtype(letter), close(letter));
        let a = Matrix::random(&mut random, 6, 6, letter);
        let symmetric = a.times(&a.adjoint());
        let name = if is_complex(letter) { "heevd" } else { "syevd" };
        let shapes = [shape(of, &[6, 6]), shape(real(letter), &[6]), "s32[]".to_owned()];
        for code in [76, 85] {
            let config = format!("mode = 86 : ui8, uplo = {code} : ui8");
            let given = [symmetric.tensor(&[6, 6], of)];
            let out = lapack(&format!("{letter}{name}"), &config, &given, &shapes);
            let (vectors, values) = (matrix(&out[0]), numbers(&out[1]));
            assert!(values.windows(2).all(|pair| pair[0][0] <= pair[1][0]));
            vectors.adjoint().times(&vectors).is_close(&Matrix::identity(6), within);
            let right = vectors.times(&Matrix::diagonal(&values));
            symmetric.times(&vectors).is_close(&right, within);
        }
        for (rows, columns) in [(7, 4), (4, 7)] {
            let a = Matrix::random(&mut random, rows, columns, letter);
            let least = rows.min(columns);
            let shapes = [
                shape(of, &[rows, columns]),
                shape(real(letter), &[least]),
                shape(of, &[rows, least]),
                shape(of, &[least, columns]),
                "s32[]".to_owned(),
            ];
            for name in ["gesdd", "gesvd"] {
                let given = [a.tensor(&[rows, columns], of)];
                let out = lapack(&format!("{letter}{name}"), "mode = 83 : ui8", &given, &shapes);
                let (u, v) = (matrix(&out[2]), matrix(&out[3]));
                u.adjoint().times(&u).is_close(&Matrix::identity(least), within);
                v.times(&v.adjoint()).is_close(&Matrix::identity(least), within);
                let product = u.times(&Matrix::diagonal(&numbers(&out[1]))).times(&v);
                product.is_close(&a, within);
            }
        }
        general(&mut random, letter);
    }
}

/// Eigenvalues and vectors, of both sides, of a matrix that is not symmetric.
fn general(random: &mut Random, letter: &str) {
    let (of, within) = (dtype(letter), close(letter));
    let a = Matrix::random(random, 6, 6, letter);
    let vectors = if real(letter) == DType::F32 { DType::C64 } else { DType::C128 };
    let mut shapes = vec![shape(of, &[6])];
    if !is_complex(letter) {
        shapes.push(shape(of, &[6]));
    }
    shapes.extend([shape(vectors, &[6, 6]), shape(vectors, &[6, 6]), "s32[]".to_owned()]);
    let config = "compute_left = 86 : ui8, compute_right = 86 : ui8";
    let out = lapack(&format!("{letter}geev"), config, &[a.tensor(&[6, 6], of)], &shapes);
    let mut values = numbers(&out[0]);
    if !is_complex(letter) {
        values.iter_mut().zip(numbers(&out[1])).for_each(|(value, [im, _])| value[1] = im);
        assert!(values.iter().any(|value| value[1] != 0.0), "some are in pairs");
    }
    let [left, right] = [out.len() - 3, out.len() - 2].map(|at| matrix(&out[at]));
    let diagonal = Matrix::diagonal(&values);
    a.times(&right).is_close(&right.times(&diagonal), within);
    left.adjoint().times(&a).is_close(&diagonal.times(&left.adjoint()), within);
    for vectors in [&left, &right] {
        let product = vectors.adjoint().times(vectors);
        (0..6).for_each(|at| assert!((product.at(at, at)[0] - 1.0).abs() < 20.0 * within));
    }
}

#[test]
fn systems_are_solved() {
    let mut random = Random(11);
    for letter in TYPES {
        let (of, within) = (dtype(letter), close(letter));
        // Three diagonals, of which the main one is small, so that rows must be exchanged.
        let [below, main, above] = [1.0, 0.1, 1.0].map(|scale| {
            let mut line = Matrix::random(&mut random, 1, 7, letter);
            line.of.iter_mut().flatten().for_each(|number| *number *= scale);
            line
        });
        let b = Matrix::random(&mut random, 7, 2, letter);
        let given = [
            below.tensor(&[7], of),
            main.tensor(&[7], of),
            above.tensor(&[7], of),
            b.tensor(&[7, 2], of),
        ];
        let line = shape(of, &[7]);
        let shapes = [line.clone(), line.clone(), line, shape(of, &[7, 2]), "s32[]".to_owned()];
        let out = lapack(&format!("{letter}gtsv"), "", &given, &shapes);
        let whole = Matrix::new(7, 7, |row, column| match (row, column) {
            _ if row == column => main.at(0, row),
            _ if row == column + 1 => below.at(0, row),
            _ if row + 1 == column => above.at(0, row),
            _ => [0.0, 0.0],
        });
        whole.times(&matrix(&out[3])).is_close(&b, within * 10.0);

        let mut a = Matrix::random(&mut random, 5, 5, letter).part(|row, column| row >= column);
        (0..5).for_each(|at| a.of[at * 6][0] += 3.0);
        for (code, is_left) in [(78, true), (84, true), (67, true), (67, false), (84, false)] {
            let dims = if is_left { [5, 3] } else { [3, 5] };
            let b = Matrix::random(&mut random, dims[0], dims[1], letter);
            let side = if is_left { 76 } else { 82 };
            let config = format!(
                "diag = 78 : ui8, side = {side} : ui8, trans_x = {code} : ui8, uplo = 76 : ui8"
            );
            let given = [a.tensor(&[5, 5], of), b.tensor(&dims, of)];
            let out = lapack(&format!("{letter}trsm"), &config, &given, &[shape(of, &dims)]);
            let transposed = Matrix::new(5, 5, |row, column| a.at(column, row));
            let own = match code {
                78 => a.clone(),
                84 => transposed,
                _ => a.adjoint(),
            };
            let x = matrix(&out[0]);
            let product = if is_left { own.times(&x) } else { x.times(&own) };
            product.is_close(&b, within);
        }
    }
}

/// Each matrix of a batch is a problem of its own.
#[test]
fn batches_are_solved_one_by_one() {
    let mut random = Random(13);
    let all: Vec<Matrix> = (0..3).map(|_| Matrix::random(&mut random, 4, 4, "d")).collect();
    let joined =
        Matrix { rows: 12, columns: 4, of: all.iter().flat_map(|a| a.of.clone()).collect() };
    let shapes = ["f64[3,4,4]", "f64[3,4]"].map(str::to_owned);
    let out = lapack("dgeqrf", "", &[joined.tensor(&[3, 4, 4], DType::F64)], &shapes);
    for (at, a) in all.iter().enumerate() {
        let alone = lapack(
            "dgeqrf",
            "",
            &[a.tensor(&[4, 4], DType::F64)],
            &["f64[4,4]", "f64[4]"].map(str::to_owned),
        );
        assert_eq!(numbers(&out[0])[at * 16..][..16], numbers(&alone[0]));
        assert_eq!(numbers(&out[1])[at * 4..][..4], numbers(&alone[1]));
    }
}
