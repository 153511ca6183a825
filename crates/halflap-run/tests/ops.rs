//! Operations with values that were worked out by hand, and what cannot be run.

mod common;

use common::*;
use half::{bf16, f16};
use halflap_hlo::Module;
use halflap_run::evaluate::{EvaluateError, Evaluator};
use halflap_run::kernel::{Combiner, Context, Group, Kernel, Libraries, Scratch, What};
use halflap_run::tensor::{DType, Tensor, View, ViewMut};

/// One operation on arrays of three elements.
#[track_caller]
fn check(call: &str, inputs: &[Tensor], expected: &Tensor) {
    let parameters: Vec<String> = inputs
        .iter()
        .enumerate()
        .map(|(i, input)| {
            format!(" {} = {}[3] parameter({i})\n", ["a", "b", "c"][i], input.dtype())
        })
        .collect();
    let body = format!("{} ROOT r = {}[3] {call}", parameters.concat(), expected.dtype());
    assert_eq!(run_entry(&body, inputs)[0].to_f64(), expected.to_f64(), "{call}");
}

fn f(values: [f32; 3]) -> Tensor {
    Tensor::of(&[3], &values)
}

fn i(values: [i32; 3]) -> Tensor {
    Tensor::of(&[3], &values)
}

fn truth(values: [u8; 3]) -> Tensor {
    Tensor::typed(DType::Pred, &[3], &values)
}

#[test]
fn elementwise_by_hand() {
    check("round-nearest-even(a)", &[f([0.5, 1.5, -2.5])], &f([0.0, 2.0, -2.0]));
    check("round-nearest-afz(a)", &[f([0.5, 1.5, -2.5])], &f([1.0, 2.0, -3.0]));
    check("sign(a)", &[f([-3.0, 0.0, 9.0])], &f([-1.0, 0.0, 1.0]));
    check("is-finite(a)", &[f([f32::INFINITY, 1.0, f32::NAN])], &truth([0, 1, 0]));
    check("remainder(a, b)", &[f([5.5, -5.5, 5.5]), f([2.0, 2.0, -2.0])], &f([1.5, -1.5, 1.5]));
    check(
        "clamp(b, a, c)",
        &[f([5.0, -5.0, 0.5]), f([-1.0; 3]), f([1.0; 3])],
        &f([1.0, -1.0, 0.5]),
    );
    check(
        "select(a, b, c)",
        &[truth([1, 0, 1]), f([1.0, 2.0, 3.0]), f([4.0, 5.0, 6.0])],
        &f([1.0, 5.0, 3.0]),
    );
    check("compare(a, b), direction=GE", &[i([1, 2, 3]), i([2, 2, 2])], &truth([0, 1, 1]));
    check("divide(a, b)", &[i([7, -7, 7]), i([2, 2, 0])], &i([3, -3, -1]));
    check("remainder(a, b)", &[i([7, -7, 7]), i([2, 2, 0])], &i([1, -1, 7]));
    check("power(a, b)", &[i([2, -1, 3]), i([10, -3, -1])], &i([1024, -1, 0]));
    check("shift-left(a, b)", &[i([1, 1, 1]), i([4, 31, 32])], &i([16, i32::MIN, 0]));
    check("shift-right-arithmetic(a, b)", &[i([-16, -16, 16]), i([2, 40, 40])], &i([-4, -1, 0]));
    check("shift-right-logical(a, b)", &[i([-1, -1, 16]), i([28, 40, 2])], &i([15, 0, 4]));
    check("popcnt(a)", &[i([0, 255, -1])], &i([0, 8, 32]));
    check("count-leading-zeros(a)", &[i([0, 1, -1])], &i([32, 31, 0]));
    check("not(a)", &[truth([1, 0, 1])], &truth([0, 1, 0]));
    check("xor(a, b)", &[truth([1, 0, 1]), truth([1, 1, 0])], &truth([0, 1, 1]));
    check("convert(a)", &[f([-1.9, 300.7, f32::NAN])], &i([-1, 300, 0]));
    check("convert(a)", &[i([-1, 0, 7])], &truth([1, 0, 1]));
    check("bitcast-convert(a)", &[f([1.0, -0.0, 2.0])], &i([0x3f80_0000, i32::MIN, 0x4000_0000]));
    check(
        "atan2(a, b)",
        &[f([0.0, 1.0, 0.0]), f([1.0, 0.0, -1.0])],
        &f([0.0, std::f32::consts::FRAC_PI_2, std::f32::consts::PI]),
    );
}

#[test]
fn narrow_floats_are_rounded_after_each_operation() {
    // 257 is not a bf16: with a rounding after each addition it stays 256, with one at the end not.
    let text = "HloModule m\nENTRY e {\n a = bf16[1] parameter(0)\n b = bf16[1] parameter(1)\n s = bf16[1] add(a, b)\n ROOT t = bf16[1] add(s, b)\n}\n";
    let inputs =
        [Tensor::of(&[1], &[bf16::from_f32(256.0)]), Tensor::of(&[1], &[bf16::from_f32(1.0)])];
    assert_eq!(run(text, &inputs)[0].to_f64(), [256.0]);
    let text = text.replace("bf16", "f16");
    let inputs =
        [Tensor::of(&[1], &[f16::from_f32(2048.0)]), Tensor::of(&[1], &[f16::from_f32(1.0)])];
    assert_eq!(run(&text, &inputs)[0].to_f64(), [2048.0]);
}

#[test]
fn bitcasts_keep_what_lies_in_memory() {
    let body = " x = f32[2,3]{1,0} parameter(0)\n ROOT b = f32[2,3]{0,1} bitcast(x)";
    let x = floats(&[2, 3], &[0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
    // Memory 0 to 5, read with the first index fastest.
    assert_eq!(run_entry(body, &[x])[0].slice::<f32>(), [0.0, 2.0, 4.0, 1.0, 3.0, 5.0]);
}

#[test]
fn constants_of_every_form() {
    let body = " c = f32[2,2] constant({ { 1, -inf }, { 2.5e1, nan } })\n p = pred[2] constant({true, false})\n s = s32[2] constant({-3, 4})\n h = bf16[] constant(0.1)\n ROOT t = (f32[2,2], pred[2], s32[2], bf16[]) tuple(c, p, s, h)";
    let given = run_entry(body, &[]);
    let values = given[0].slice::<f32>();
    assert!(values[..3] == [1.0, f32::NEG_INFINITY, 25.0] && values[3].is_nan());
    assert_eq!((given[1].slice::<u8>(), given[2].slice::<i32>()), (&[1, 0][..], &[-3, 4][..]));
    assert_eq!(given[3].to_f64(), [0.100_097_656_25]);
}

#[test]
fn triangular_systems() {
    let text = "HloModule m\nENTRY e {\n a = f32[2,2] parameter(0)\n b = f32[2,1] parameter(1)\n c = f32[2,2] cholesky(a), lower=true\n s = f32[2,1] triangular-solve(c, b), left_side=true, lower=true, unit_diagonal=false, transpose_a=NO_TRANSPOSE\n ROOT t = (f32[2,2], f32[2,1]) tuple(c, s)\n}\n";
    let given = run(text, &[floats(&[2, 2], &[4.0, 2.0, 2.0, 10.0]), floats(&[2, 1], &[2.0, 7.0])]);
    assert_close(given[0].slice(), &[2.0, 0.0, 1.0, 3.0], 1e-6);
    assert_close(given[1].slice(), &[1.0, 2.0], 1e-6);
}

#[test]
fn maps_selections_and_the_rank() {
    let text = "HloModule m, num_partitions=2\nf {\n a = f32[] parameter(0)\n c = f32[] constant(3)\n ROOT r = f32[] multiply(a, c)\n}\nENTRY e {\n x = f32[4] parameter(0)\n m = f32[4] map(x), dimensions={0}, to_apply=f\n p = u32[] partition-id()\n d = f32[2] dynamic-slice(m, q), dynamic_slice_sizes={2}\n ROOT t = (f32[2], u32[]) tuple(d, p)\n}\n";
    let text = text.replace(" d = f32[2]", " q = u32[] add(p, p)\n d = f32[2]");
    let module = Module::read(text).unwrap();
    let inputs = vec![vec![floats(&[4], &[1.0, 2.0, 3.0, 4.0])]; 2];
    let given = Evaluator::new(&module).unwrap().run(&inputs).unwrap();
    assert_eq!(
        (given[0][0].slice::<f32>(), given[0][1].slice::<u32>()),
        (&[3.0, 6.0][..], &[0][..])
    );
    assert_eq!(
        (given[1][0].slice::<f32>(), given[1][1].slice::<u32>()),
        (&[9.0, 12.0][..], &[1][..])
    );
}

/// A collective on four ranks, each with numbers from ten times its own on.
fn collective(call: &str, shape: &str, dims: &[usize]) -> Vec<Vec<f32>> {
    let pair = " a = f32[] parameter(0)\n b = f32[] parameter(1)\n";
    let text = format!(
        "HloModule m, num_partitions=4\nadd {{\n{pair} ROOT r = f32[] add(a, b)\n}}\nENTRY e {{\n x = f32[{}] parameter(0)\n ROOT c = {shape} {call}, channel_id=1, use_global_device_ids=true\n}}\n",
        list(dims)
    );
    let module = Module::read(text).unwrap();
    let len: usize = dims.iter().product();
    let inputs: Vec<Vec<Tensor>> = (0..4)
        .map(|rank| {
            vec![floats(dims, &(0..len).map(|i| (10 * rank + i) as f32).collect::<Vec<_>>())]
        })
        .collect();
    let given = Evaluator::new(&module).unwrap().run(&inputs).unwrap();
    given
        .iter()
        .map(|arrays| arrays.iter().flat_map(|array| array.slice::<f32>().to_vec()).collect())
        .collect()
}

#[test]
fn collectives_by_hand() {
    let groups = "replica_groups={{0,2},{3,1}}";
    let given = collective(&format!("all-reduce(x), {groups}, to_apply=add"), "f32[2]", &[2]);
    assert_eq!(given, [[20.0, 22.0], [40.0, 42.0], [20.0, 22.0], [40.0, 42.0]]);
    let given = collective(&format!("all-gather(x), {groups}, dimensions={{0}}"), "f32[2]", &[1]);
    assert_eq!(given, [[0.0, 20.0], [30.0, 10.0], [0.0, 20.0], [30.0, 10.0]]);
    let given = collective(
        &format!("reduce-scatter(x), {groups}, dimensions={{0}}, to_apply=add"),
        "f32[1]",
        &[2],
    );
    assert_eq!(given, [[20.0], [42.0], [22.0], [40.0]]);
    let given = collective(&format!("all-to-all(x), {groups}, dimensions={{0}}"), "f32[2]", &[2]);
    assert_eq!(given, [[0.0, 20.0], [31.0, 11.0], [1.0, 21.0], [30.0, 10.0]]);
    let given = collective(&format!("all-to-all(x, x), {groups}"), "(f32[1], f32[1])", &[1]);
    assert_eq!(given[1], [30.0, 10.0]);
    let given =
        collective("collective-permute(x), source_target_pairs={{0,1},{1,3}}", "f32[1]", &[1]);
    assert_eq!(given, [[0.0], [0.0], [0.0], [10.0]]);
    let given = collective(&format!("collective-broadcast(x), {groups}"), "f32[1]", &[1]);
    assert_eq!(given, [[0.0], [30.0], [0.0], [30.0]]);
}

#[test]
fn asynchronous_forms_give_the_same() {
    let text = "HloModule m, num_partitions=2\nadd {\n a = f32[] parameter(0)\n b = f32[] parameter(1)\n ROOT r = f32[] add(a, b)\n}\nwrapped {\n p = f32[2] parameter(0)\n ROOT s = f32[1] reduce-scatter(p), channel_id=4, replica_groups={{0,1}}, use_global_device_ids=true, dimensions={0}, to_apply=add\n}\nENTRY e {\n x = f32[2] parameter(0)\n gs = (f32[2], f32[4]) all-gather-start(x), channel_id=1, replica_groups={{0,1}}, use_global_device_ids=true, dimensions={0}\n rs = f32[2] all-reduce-start(x), channel_id=2, replica_groups={{0,1}}, use_global_device_ids=true, to_apply=add\n ps = (f32[2], f32[2], u32[], u32[]) collective-permute-start(x), channel_id=3, source_target_pairs={{0,1},{1,0}}\n as = ((f32[2]), f32[1], u32[]) async-start(x), calls=wrapped\n au = ((f32[2]), f32[1], u32[]) async-update(as)\n ws = ((f32[2]), f32[1]) reduce-scatter-start(x), channel_id=5, replica_groups={{0,1}}, use_global_device_ids=true, dimensions={0}, to_apply=add\n cs = (f32[2], f32[2], u32[]) copy-start(x)\n g = f32[4] all-gather-done(gs)\n r = f32[2] all-reduce-done(rs)\n p = f32[2] collective-permute-done(ps)\n a = f32[1] async-done(au)\n w = f32[1] reduce-scatter-done(ws)\n c = f32[2] copy-done(cs)\n ROOT t = (f32[4], f32[2], f32[2], f32[1], f32[1], f32[2]) tuple(g, r, p, a, w, c)\n}\n";
    let module = Module::read(text.to_owned()).unwrap();
    let inputs = vec![vec![floats(&[2], &[1.0, 2.0])], vec![floats(&[2], &[3.0, 4.0])]];
    let given = Evaluator::new(&module).unwrap().run(&inputs).unwrap();
    let values: Vec<Vec<f32>> =
        given[1].iter().map(|array| array.slice::<f32>().to_vec()).collect();
    assert_eq!(
        values,
        [&[1.0, 2.0, 3.0, 4.0][..], &[4.0, 6.0], &[1.0, 2.0], &[6.0], &[6.0], &[3.0, 4.0]]
    );
}

#[test]
fn ranks_may_leave_a_loop_one_by_one() {
    let text = "HloModule m, num_partitions=2\ncond {\n s = (u32[], f32[]) parameter(0)\n n = u32[] get-tuple-element(s), index=0\n l = u32[] constant(3)\n ROOT c = pred[] compare(n, l), direction=LT\n}\nbody {\n s = (u32[], f32[]) parameter(0)\n n = u32[] get-tuple-element(s), index=0\n x = f32[] get-tuple-element(s), index=1\n o = u32[] constant(1)\n m = u32[] add(n, o)\n y = f32[] add(x, x)\n ROOT t = (u32[], f32[]) tuple(m, y)\n}\nENTRY e {\n x = f32[] parameter(0)\n p = u32[] partition-id()\n s = (u32[], f32[]) tuple(p, x)\n w = (u32[], f32[]) while(s), condition=cond, body=body\n ROOT r = f32[] get-tuple-element(w), index=1\n}\n";
    let module = Module::read(text.to_owned()).unwrap();
    let inputs = vec![vec![floats(&[], &[1.0])]; 2];
    let given = Evaluator::new(&module).unwrap().run(&inputs).unwrap();
    assert_eq!((given[0][0].slice::<f32>(), given[1][0].slice::<f32>()), (&[8.0][..], &[4.0][..]));
    // A collective in such a loop misses a rank.
    let pair =
        "add {\n a = f32[] parameter(0)\n b = f32[] parameter(1)\n ROOT r = f32[] add(a, b)\n}\n";
    let text = text.replace("cond {", &format!("{pair}cond {{"));
    let text = text.replace(
        "y = f32[] add(x, x)",
        "y = f32[] all-reduce(x), channel_id=1, replica_groups={{0,1}}, use_global_device_ids=true, to_apply=add",
    );
    let module = Module::read(text).unwrap();
    let error = Evaluator::new(&module).unwrap().run(&inputs).unwrap_err();
    assert_eq!(error, EvaluateError::Diverged { instruction: "y".to_owned(), missing: 1 });
}

#[track_caller]
fn refused(body: &str) -> (usize, What) {
    let text = format!("HloModule m\nENTRY e {{\n{body}\n}}\n");
    let module = Module::read(text).unwrap();
    match Evaluator::new(&module) {
        Err(EvaluateError::Unsupported(unsupported)) => (unsupported.line, unsupported.what),
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("it runs"),
    }
}

#[test]
fn what_is_missing_is_named_before_anything_runs() {
    let x = " x = f32[4] parameter(0)\n";
    assert_eq!(refused(&format!("{x} ROOT f = f32[4] frobnicate(x)")), (4, What::Operation));
    assert_eq!(
        refused(&format!("{x} ROOT f = f8e4m3fn[4] convert(x)")),
        (4, What::ElementType("f8e4m3fn"))
    );
    assert_eq!(refused(&format!("{x} ROOT f = f32[4] popcnt(x)")), (4, What::OfType(DType::F32)));
    assert_eq!(refused(" ROOT c = f32[100] constant({...})"), (3, What::Elided));
    assert_eq!(
        refused(&format!("{x} ROOT c = f32[4] custom-call(x), custom_call_target=\"mine\"")),
        (4, What::Target("mine".to_owned()))
    );
    assert_eq!(refused(&format!("{x} ROOT s = f32[<=4] negate(x)")).1, What::Dynamic);
    let error = try_run("HloModule m\nENTRY e {\n ROOT c = f32[9] constant({...})\n}\n", &[])
        .unwrap_err()
        .to_string();
    assert!(error.contains("line 3") && error.contains("xla_dump_large_constants"), "{error}");
}

#[test]
fn groups_and_shared_memory() {
    let text = with_computations(
        " x = f32[4] parameter(0)\n y = f32[4] parameter(1)\n m = f32[4] multiply(x, y)\n s = f32[4] add(m, x)\n z = f32[] constant(0)\n r = f32[] reduce(s, z), dimensions={0}, to_apply=add\n ROOT t = (f32[4], f32[]) tuple(s, r)",
    );
    let module = Module::read(text).unwrap();
    let named = |name: &str| {
        module
            .instructions(module.entry())
            .find(|&instr| module.instruction_name(instr) == name)
            .unwrap()
    };
    let instrs = ["m", "s", "z", "r"].map(named);
    let group = Group { instrs: &instrs, outputs: &[named("s"), named("r")] };
    let (kernel, leaves) = Kernel::compile_group(&module, group, &Libraries::default()).unwrap();
    assert_eq!(leaves.iter().map(|leaf| leaf.instr).collect::<Vec<_>>(), [named("x"), named("y")]);
    assert_eq!(kernel.name(), "fused_multiply_add_reduce");
    let (x, y) = (floats(&[4], &[1.0, 2.0, 3.0, 4.0]), floats(&[4], &[2.0; 4]));
    let (mut s, mut r) = (Tensor::zeros(DType::F32, &[4]), Tensor::zeros(DType::F32, &[]));
    kernel.run(&[x.view(), y.view()], &mut [s.view_mut(), r.view_mut()], &mut Scratch::default());
    assert_eq!((s.slice::<f32>(), r.slice::<f32>()), (&[3.0, 6.0, 9.0, 12.0][..], &[30.0][..]));

    // An elementwise kernel may write over what it reads.
    let kernel = Kernel::compile(&module, named("s")).unwrap();
    assert!(kernel.can_share(0, 0) && kernel.can_share(0, 1));
    let mut memory = x.clone();
    let start = std::ptr::NonNull::new(memory.bytes_mut().as_mut_ptr()).unwrap();
    // SAFETY: the memory is the array's, and the kernel said that it can be shared.
    let (input, output) = unsafe {
        (View::from_raw(DType::F32, &[4], start), ViewMut::from_raw(DType::F32, &[4], start))
    };
    kernel.run(&[input, y.view()], &mut [output], &mut Scratch::new(Context::default()));
    assert_eq!(memory.slice::<f32>(), [3.0, 4.0, 5.0, 6.0]);
    assert!(Combiner::of(&module, named("r"), DType::F32).is_ok());
}
