//! How fast kernels are, beside plain loops: `cargo bench -p halflap-run`.
//!
//! With a module, the time of each kernel of one step on one rank instead:
//! `cargo bench -p halflap-run -- MODULE.hlo`.

use std::hint::black_box;
use std::time::Instant;

use halflap_hlo::{Module, Opcode};
use halflap_run::kernel::{Context, Kernel, Scratch};
use halflap_run::tensor::{DType, Tensor};

fn main() {
    let path = std::env::args().skip(1).find(|argument| !argument.starts_with("--"));
    if let Some(path) = path {
        return step(&path);
    }
    for n in [256, 512, 768, 1024] {
        dot(n);
    }
    elementwise();
    plain();
}

/// The shortest time of some runs, in seconds.
fn shortest(mut run: impl FnMut()) -> f64 {
    let started = Instant::now();
    let mut best = f64::INFINITY;
    let mut runs = 0;
    while runs < 5 || (started.elapsed().as_secs_f64() < 0.4 && runs < 10_000) {
        let start = Instant::now();
        run();
        best = best.min(start.elapsed().as_secs_f64());
        runs += 1;
    }
    best
}

/// Arrays of small numbers.
fn random(dtype: DType, dims: &[usize]) -> Tensor {
    let mut tensor = Tensor::zeros(dtype, dims);
    let mut state = 1u32;
    if dtype == DType::F32 {
        for value in tensor.slice_mut::<f32>() {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            *value = (state >> 8) as f32 / 8_388_608.0 - 1.0;
        }
    }
    tensor
}

fn time_kernel(kernel: &Kernel) -> f64 {
    let inputs: Vec<Tensor> =
        kernel.inputs().iter().map(|kind| random(kind.dtype, &kind.dims)).collect();
    let mut outputs: Vec<Tensor> =
        kernel.outputs().iter().map(|kind| Tensor::zeros(kind.dtype, &kind.dims)).collect();
    let views: Vec<_> = inputs.iter().map(Tensor::view).collect();
    let mut scratch = Scratch::new(Context::default());
    shortest(|| {
        let mut outputs: Vec<_> = outputs.iter_mut().map(Tensor::view_mut).collect();
        kernel.run(black_box(&views), &mut outputs, &mut scratch);
    })
}

fn kernel(body: &str) -> Kernel {
    let text = format!(
        "HloModule m\nadd {{\n a = f32[] parameter(0)\n b = f32[] parameter(1)\n ROOT s = f32[] add(a, b)\n}}\n\
         max {{\n a = f32[] parameter(0)\n b = f32[] parameter(1)\n ROOT s = f32[] maximum(a, b)\n}}\n{body}"
    );
    let module = Module::read(text).unwrap_or_else(|error| panic!("{error}"));
    let root = module.root(module.entry());
    Kernel::compile(&module, root).unwrap_or_else(|error| panic!("{error}"))
}

fn dot(n: usize) {
    let body = format!(
        "ENTRY e {{\n a = f32[{n},{n}] parameter(0)\n b = f32[{n},{n}] parameter(1)\n \
         ROOT d = f32[{n},{n}] dot(a, b), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}\n}}\n"
    );
    let seconds = time_kernel(&kernel(&body));
    println!("dot {n}: {:.1} GFLOP/s", 2.0 * (n as f64).powi(3) / seconds / 1e9);
}

/// A fusion of arrays of 2048 x 1024: its body, and how many such arrays it reads and writes.
fn fused(name: &str, body: &str, arrays: f64) {
    let shape = "f32[2048,1024]";
    let body =
        body.replace("SHAPE", shape).replace("ROW", "f32[1024]").replace("COLUMN", "f32[2048]");
    let text = format!(
        "fused {{\n{body}}}\nENTRY e {{\n x = {shape} parameter(0)\n y = {shape} parameter(1)\n g = f32[1024] parameter(2)\n ROOT f = {shape} fusion(x, y, g), kind=kLoop, calls=fused\n}}\n"
    );
    let text = text.replace("TURNED", "f32[1024,2048]");
    let seconds = time_kernel(&kernel(&text));
    let bytes = arrays * 2048.0 * 1024.0 * 4.0;
    println!("{name}: {:.2} ms, {:.1} GB/s", seconds * 1e3, bytes / seconds / 1e9);
}

const PARAMETERS: &str =
    " x = SHAPE parameter(0)\n y = SHAPE parameter(1)\n g = ROW parameter(2)\n";

fn elementwise() {
    let with = |rest: &str| format!("{PARAMETERS}{rest}");
    fused("add", &with(" ROOT r = SHAPE add(x, y)\n"), 3.0);
    fused(
        "fused multiply-add chain of 6",
        &with(
            " a = SHAPE multiply(x, y)\n b = SHAPE add(a, x)\n c = SHAPE multiply(b, y)\n d = SHAPE subtract(c, x)\n e = SHAPE maximum(d, y)\n ROOT r = SHAPE add(e, x)\n",
        ),
        3.0,
    );
    fused("exponential", &with(" ROOT r = SHAPE exponential(x)\n"), 2.0);
    fused("tanh", &with(" ROOT r = SHAPE tanh(x)\n"), 2.0);
    fused(
        "row broadcast multiply",
        &with(" b = SHAPE broadcast(g), dimensions={1}\n ROOT r = SHAPE multiply(x, b)\n"),
        2.0,
    );
    fused(
        "softmax",
        &with(
            " i = f32[] constant(-inf)\n z = f32[] constant(0)\n m = COLUMN reduce(x, i), dimensions={1}, to_apply=max\n mb = SHAPE broadcast(m), dimensions={0}\n d = SHAPE subtract(x, mb)\n e = SHAPE exponential(d)\n s = COLUMN reduce(e, z), dimensions={1}, to_apply=add\n sb = SHAPE broadcast(s), dimensions={0}\n ROOT r = SHAPE divide(e, sb)\n",
        ),
        2.0,
    );
    fused(
        "rms norm",
        &with(
            " z = f32[] constant(0)\n q = SHAPE multiply(x, x)\n s = COLUMN reduce(q, z), dimensions={1}, to_apply=add\n n = f32[] constant(1024)\n nb = COLUMN broadcast(n), dimensions={}\n v = COLUMN divide(s, nb)\n t = COLUMN rsqrt(v)\n tb = SHAPE broadcast(t), dimensions={0}\n a = SHAPE multiply(x, tb)\n gb = SHAPE broadcast(g), dimensions={1}\n ROOT r = SHAPE multiply(a, gb)\n",
        ),
        2.0,
    );
    fused(
        "column sum, broadcast again",
        &with(
            " z = f32[] constant(0)\n s = ROW reduce(x, z), dimensions={0}, to_apply=add\n ROOT r = SHAPE broadcast(s), dimensions={1}\n",
        ),
        2.0,
    );
    let transpose = "ENTRY e {\n x = f32[2048,1024] parameter(0)\n ROOT t = f32[1024,2048] transpose(x), dimensions={1,0}\n}\n";
    let seconds = time_kernel(&kernel(transpose));
    println!("transpose: {:.2} ms, {:.1} GB/s", seconds * 1e3, 2.0 * 8.388_608e6 / seconds / 1e9);
    let heads = "ENTRY e {\n x = f32[4,512,8,64] parameter(0)\n ROOT t = f32[4,8,512,64] transpose(x), dimensions={0,2,1,3}\n}\n";
    let seconds = time_kernel(&kernel(heads));
    println!(
        "transpose of heads: {:.3} ms, {:.1} GB/s",
        seconds * 1e3,
        2.0 * 4.194_304e6 / seconds / 1e9
    );
}

/// What a compiled loop does with the same memory.
fn plain() {
    let (x, y) = (random(DType::F32, &[2048, 1024]), random(DType::F32, &[2048, 1024]));
    let mut out = Tensor::zeros(DType::F32, &[2048, 1024]);
    let seconds = shortest(|| {
        let (x, y) = (black_box(x.slice::<f32>()), y.slice::<f32>());
        out.slice_mut::<f32>().iter_mut().zip(x).zip(y).for_each(|((out, x), y)| *out = x + y);
    });
    println!(
        "plain loop, add: {:.2} ms, {:.1} GB/s",
        seconds * 1e3,
        3.0 * 8.388_608e6 / seconds / 1e9
    );
    let seconds = shortest(|| {
        let x = black_box(x.slice::<f32>());
        out.slice_mut::<f32>().iter_mut().zip(x).for_each(|(out, x)| *out = x.exp());
    });
    println!("plain loop, exponential: {:.2} ms", seconds * 1e3);
}

/// The time of every kernel of a module's entry computation.
fn step(path: &str) {
    let text = std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{path}: {error}"));
    let module = Module::read(text).unwrap_or_else(|error| panic!("{error}"));
    let mut times: Vec<(f64, String)> = Vec::new();
    for instr in module.instructions(module.entry()) {
        let opcode = module.instruction(instr).opcode;
        let is_free = matches!(
            opcode,
            Opcode::Parameter
                | Opcode::Tuple
                | Opcode::GetTupleElement
                | Opcode::Constant
                | Opcode::Copy
        );
        if is_free {
            continue;
        }
        match Kernel::compile(&module, instr) {
            Ok(kernel) => times.push((time_kernel(&kernel), kernel.name().to_owned())),
            Err(error) => println!("{error}"),
        }
    }
    let total: f64 = times.iter().map(|(seconds, _)| seconds).sum();
    times.sort_by(|a, b| b.0.total_cmp(&a.0));
    for (seconds, name) in times.iter().take(40) {
        println!("{:9.1} us  {name}", seconds * 1e6);
    }
    println!("{:9.1} us  all {} kernels", total * 1e6, times.len());
}
