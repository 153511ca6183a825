//! Operations with values that were worked out by hand, and what cannot be run.

mod common;

use common::*;
use half::{bf16, f16};
use halflap_hlo::Module;
use halflap_run::evaluate::{EvaluateError, Evaluator};
use halflap_run::kernel::{Combiner, Context, FusedGroup, Gap, Kernel, Libraries, Scratch};
use halflap_run::tensor::{DType, Mini, Tensor, Tiny, View, ViewMut};

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

/// What JAX 0.10 computes on the CPU. Format by format: what comes in, what comes out.
#[test]
fn precision_is_reduced_to_any_format() {
    let f32_to = |format: (u32, u32), x: [u32; 3], expected: [u32; 3]| {
        let call =
            format!("reduce-precision(a), exponent_bits={}, mantissa_bits={}", format.0, format.1);
        let body = format!(" a = f32[3] parameter(0)\n ROOT r = f32[3] {call}");
        let given = run_entry(&body, &[f(x.map(f32::from_bits))]);
        let given: Vec<u32> = given[0].slice::<f32>().iter().map(|x| x.to_bits()).collect();
        assert_eq!(given, expected, "{call}");
    };
    // Ties go to the even neighbour, and may carry into the exponent.
    f32_to(
        (5, 3),
        [0x3f88_0000, 0x3f98_0000, 0x3fff_ffff],
        [0x3f80_0000, 0x3fa0_0000, 0x4000_0000],
    );
    // 1e-5 is a subnormal number of five bits of exponent, and 65520 rounds to beyond the range.
    f32_to((5, 10), [0x3727_c5ac, 0xc77f_f000, 0x477f_efff], [0, 0xff80_0000, 0x477f_e000]);
    // NaN stays as it is, also without a mantissa; infinities stay.
    f32_to(
        (1, 0),
        [0x7f80_0001, 0xff80_0000, 0x4000_0000],
        [0x7f80_0001, 0xff80_0000, 0x7f80_0000],
    );
    // Subnormal numbers of the type itself are rounded where they are.
    f32_to(
        (8, 7),
        [0x0000_8001, 0x8000_8000, 0x7f7f_ffff],
        [0x0001_0000, 0x8000_0000, 0x7f80_0000],
    );
    f32_to(
        (12, 40),
        [0x0000_0001, 0x7f80_0001, 0x8000_0000],
        [0x0000_0001, 0x7f80_0001, 0x8000_0000],
    );
}

#[test]
fn precision_is_reduced_in_the_type_of_the_number() {
    let reduced = |kind: &str, x: Tensor, format: (u32, u32)| {
        let (e, m) = format;
        let body = format!(
            " a = {kind}[2] parameter(0)\n \
             ROOT r = {kind}[2] reduce-precision(a), exponent_bits={e}, mantissa_bits={m}"
        );
        run_entry(&body, &[x]).remove(0)
    };
    // Subnormal in f16, and normal in f32: five bits of exponent keep it, four do not.
    let small = || Tensor::of(&[2], &[0x0003, 0x8001].map(f16::from_bits));
    let bits =
        |array: &Tensor| array.slice::<f16>().iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    assert_eq!(bits(&reduced("f16", small(), (5, 9))), [0x0004, 0x8000]);
    assert_eq!(bits(&reduced("f16", small(), (4, 9))), [0x0000, 0x8000]);
    let double = Tensor::of(&[2], &[1.0 + f64::EPSILON, 1e300]);
    assert_eq!(reduced("f64", double, (8, 51)).slice::<f64>(), [1.0, f64::INFINITY]);
    let brain = Tensor::of(&[2], &[0x3f84, 0x3f8c].map(bf16::from_bits));
    let brain = reduced("bf16", brain, (8, 4));
    assert_eq!(
        brain.slice::<bf16>().iter().map(|x| x.to_bits()).collect::<Vec<_>>(),
        [0x3f80, 0x3f90]
    );
    // f8e5m2 is rounded as f16, in which its smallest number is subnormal.
    let mini = Tensor::typed(DType::Mini(Mini::F8e5m2), &[2], &[0x01u8, 0x3d]);
    assert_eq!(reduced("f8e5m2", mini, (5, 1)).bytes(), [0x00, 0x3c]);
}

#[test]
fn a_format_without_an_exponent_is_refused() {
    let text = "HloModule m\nENTRY e {\n a = f32[3] parameter(0)\n \
        ROOT r = f32[3] reduce-precision(a), exponent_bits=0, mantissa_bits=3\n}\n";
    let error = halflap_hlo::check(&Module::read(text.to_owned()).unwrap()).unwrap_err();
    assert!(error.to_string().ends_with("exponent_bits=0 should be 1 or more"), "{error}");
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
fn refused(body: &str) -> (usize, Gap) {
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
    assert_eq!(refused(&format!("{x} ROOT f = f32[4] frobnicate(x)")), (4, Gap::Operation));
    assert_eq!(
        refused(&format!("{x} ROOT f = f6e3m2fn[4] convert(x)")),
        (4, Gap::ElementType("?"))
    );
    assert_eq!(refused(&format!("{x} ROOT f = f32[4] popcnt(x)")), (4, Gap::OfType(DType::F32)));
    assert_eq!(refused(" ROOT c = f32[100] constant({...})"), (3, Gap::Elided));
    assert_eq!(
        refused(&format!("{x} ROOT c = f32[4] custom-call(x), custom_call_target=\"mine\"")),
        (4, Gap::Target("mine".to_owned()))
    );
    assert_eq!(refused(&format!("{x} ROOT s = f32[<=4] negate(x)")).1, Gap::Dynamic);
    let error = try_run("HloModule m\nENTRY e {\n ROOT c = f32[9] constant({...})\n}\n", &[])
        .unwrap_err()
        .to_string();
    assert!(error.contains("line 3") && error.contains("xla_dump_large_constants"), "{error}");
}

#[test]
fn what_a_host_would_feed_is_zero() {
    let text = "HloModule m\nENTRY e {\n x = f32[3] parameter(0)\n t = token[] after-all()\n \
        i = ((f32[3], s32[]), token[]) infeed(t), infeed_config=\"a\"\n u = token[] get-tuple-element(i), index=1\n \
        p = (f32[3], s32[]) get-tuple-element(i), index=0\n f = f32[3] get-tuple-element(p), index=0\n \
        n = s32[] get-tuple-element(p), index=1\n s = f32[3] add(x, f)\n \
        o = token[] outfeed(s, u), outfeed_shape=f32[3]\n ROOT r = (f32[3], s32[]) tuple(s, n)\n}\n";
    let given = run(text, &[f([1.0, 2.0, 3.0])]);
    assert_eq!(
        (given[0].slice::<f32>(), given[1].slice::<i32>()),
        (&[1.0, 2.0, 3.0][..], &[0][..])
    );
}

/// What is beyond the sizes of dynamic shapes does not count.
#[test]
fn dynamic_sizes_by_hand() {
    let text = with_computations(
        " p = f32[4,2] parameter(0)\n w = f32[4,3] parameter(1)\n n = s32[] parameter(2)\n z = f32[] constant(0)\n \
         d = f32[<=4,2] set-dimension-size(p, n), dimensions={0}\n l = f32[<=4,2] log(d)\n \
         s = f32[2] reduce(l, z), dimensions={0}, to_apply=add\n t = f32[2,<=4] transpose(d), dimensions={1,0}\n \
         m = f32[2,3] dot(t, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}\n \
         c = s32[] get-dimension-size(l), dimensions={0}\n \
         ROOT r = (f32[2], f32[2,3], s32[], f32[<=4,2]) tuple(s, m, c, l)",
    );
    let module = halflap_hlo::bounded(&Module::read(text).unwrap()).unwrap().unwrap();
    // Beyond the second row are numbers without a logarithm, and NaN.
    let p = floats(&[4, 2], &[1.0, 1.0, 1.0, 1.0, -1.0, f32::NAN, -1.0, 0.0]);
    let w = floats(&[4, 3], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, f32::NAN, 9.0, 9.0, 9.0, 9.0, 9.0]);
    let inputs = vec![p, w, Tensor::of(&[], &[2i32])];
    let given = Evaluator::new(&module).unwrap().run(&[inputs]).unwrap().remove(0);
    assert_eq!(given[0].slice::<f32>(), [0.0, 0.0]);
    assert_eq!(given[1].slice::<f32>(), [5.0, 7.0, 9.0, 5.0, 7.0, 9.0]);
    assert_eq!((given[2].slice::<i32>(), given[3].slice::<f32>()), (&[2][..], &[0.0; 8][..]));
}

/// Rows of groups of two and one, and one row of none.
#[test]
fn ragged_products_by_hand() {
    let text = "HloModule m\nENTRY e {\n a = f32[4,2] parameter(0)\n b = f32[2,2,1] parameter(1)\n \
        c = f32[4,1] parameter(2)\n n = s32[2] constant({2, 1})\n \
        p = f32[4,1] ragged-dot(a, b, n), lhs_contracting_dims={1}, rhs_contracting_dims={1}, lhs_ragged_dims={0}, rhs_group_dims={0}\n \
        q = f32[2,2,1] ragged-dot(a, c, n), lhs_contracting_dims={0}, rhs_contracting_dims={0}, lhs_ragged_dims={0}\n \
        ROOT t = (f32[4,1], f32[2,2,1]) tuple(p, q)\n}\n";
    let module = Module::read(text.to_owned()).unwrap();
    let module = halflap_hlo::without_ragged_products(&module).unwrap().unwrap();
    let a = floats(&[4, 2], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]);
    let (b, c) = (floats(&[2, 2, 1], &[1.0, 10.0, 100.0, 1000.0]), floats(&[4, 1], &[1.0; 4]));
    let given = Evaluator::new(&module).unwrap().run(&[vec![a, b, c]]).unwrap().remove(0);
    assert_eq!(given[0].slice::<f32>(), [21.0, 43.0, 6500.0, 0.0]);
    assert_eq!(given[1].slice::<f32>(), [4.0, 6.0, 5.0, 6.0]);
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
    let group = FusedGroup { instrs: &instrs, outputs: &[named("s"), named("r")] };
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

/// Arithmetic in a type of eight bits or fewer is done in a wider one and rounded, or wrapped,
/// after every operation.
#[test]
fn small_types() {
    let f8 = DType::Mini(Mini::F8e4m3fn);
    let code = |value: f32| Mini::F8e4m3fn.encode(value);
    let text = "HloModule m\nENTRY e {\n a = f8e4m3fn[4] parameter(0)\n b = f8e4m3fn[4] parameter(1)\n \
        c = f8e4m3fn[] constant(0.3)\n d = f8e4m3fn[4] broadcast(c), dimensions={}\n \
        s = f8e4m3fn[4] add(a, b)\n t = f8e4m3fn[4] multiply(s, d)\n \
        w = f32[4] convert(t)\n ROOT r = (f8e4m3fn[4], f32[4]) tuple(t, w)\n}\n";
    let a = [1.0, 16.0, 440.0, 0.01];
    let b = [0.06, 1.0, 100.0, 0.02];
    let of = |values: [f32; 4]| Tensor::typed(f8, &[4], &values.map(code));
    let got = run(text, &[of(a), of(b)]);
    let round = |value: f32| Mini::F8e4m3fn.decode(code(value));
    for at in 0..4 {
        let sum = round(round(a[at]) + round(b[at]));
        let product = round(sum * round(0.3));
        let seen = got[1].slice::<f32>()[at];
        assert!(seen == product || seen.is_nan() && product.is_nan(), "{at}: {seen} {product}");
    }
    assert!(got[1].slice::<f32>()[2].is_nan(), "540 is more than there is");
    let text = "HloModule m\nENTRY e {\n a = s4[4] parameter(0)\n b = f32[4] parameter(1)\n \
        c = s4[4] convert(b)\n s = s4[4] add(a, c)\n w = s32[4] convert(s)\n \
        ROOT r = (s4[4], s32[4]) tuple(c, w)\n}\n";
    let a = Tensor::typed(DType::Tiny(Tiny::S4), &[4], &[7i8, -8, 3, -1]);
    let got = run(text, &[a, floats(&[4], &[1.0, -100.0, 9.7, f32::NAN])]);
    assert_eq!(got[0].slice::<i8>(), [1, -8, 7, 0]);
    assert_eq!(got[1].slice::<i32>(), [-8, 0, -6, -1]);
}

/// Products and sums of small types: eight bits go in, and the result's type decides how it is
/// rounded.
#[test]
fn products_of_small_types() {
    let text = "HloModule m\nadd {\n x = f32[] parameter(0)\n y = f32[] parameter(1)\n \
        ROOT z = f32[] add(x, y)\n}\nENTRY e {\n a = f8e5m2[2,3] parameter(0)\n \
        b = f8e5m2[3,2] parameter(1)\n d = f32[2,2] dot(a, b), lhs_contracting_dims={1}, \
        rhs_contracting_dims={0}\n n = f8e5m2[2,2] dot(a, b), lhs_contracting_dims={1}, \
        rhs_contracting_dims={0}\n ROOT r = (f32[2,2], f8e5m2[2,2]) tuple(d, n)\n}\n";
    let of = |dims: [usize; 2], values: [f32; 6]| {
        Tensor::typed(DType::Mini(Mini::F8e5m2), &dims, &values.map(|v| Mini::F8e5m2.encode(v)))
    };
    let a = of([2, 3], [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    let b = of([3, 2], [1.0, 0.5, 2.0, 0.25, 3.0, 1.0]);
    let got = run(text, &[a, b]);
    assert_eq!(got[0].slice::<f32>(), [14.0, 4.0, 32.0, 9.25]);
    let codes = got[1].slice::<u8>();
    assert_eq!(codes, [14.0, 4.0, 32.0, 10.0].map(|v| Mini::F8e5m2.encode(v)));
    let text = "HloModule m\nENTRY e {\n a = u4[1,3] parameter(0)\n b = u4[3,1] parameter(1)\n \
        ROOT d = u4[1,1] dot(a, b), lhs_contracting_dims={1}, rhs_contracting_dims={0}\n}\n";
    let of =
        |dims: [usize; 2], values: [u8; 3]| Tensor::typed(DType::Tiny(Tiny::U4), &dims, &values);
    let got = run(text, &[of([1, 3], [3, 4, 5]), of([3, 1], [7, 2, 1])]);
    assert_eq!(got[0].slice::<u8>(), [34 % 16]);
}

/// Integer matrices of every size, with numbers that fit into 16 bits and with numbers that do not.
#[test]
fn products_of_integers_wrap_around() {
    let mut random = Random(3);
    for (rows, columns, depth) in [(1, 1, 1), (3, 5, 7), (2, 4, 16), (9, 6, 35), (4, 9, 100)] {
        for most in [1u64 << 8, 1 << 15, 1 << 31] {
            let mut numbers = |count: usize| -> Vec<i32> {
                let one = |_| (u64::from(random.next()) % most) as i32 - (most / 2) as i32;
                (0..count).map(one).collect()
            };
            let (a, b) = (numbers(rows * depth), numbers(depth * columns));
            let text = format!(
                "HloModule m\nENTRY e {{\n a = s32[{rows},{depth}] parameter(0)\n \
                 b = s32[{depth},{columns}] parameter(1)\n \
                 ROOT d = s32[{rows},{columns}] dot(a, b), lhs_contracting_dims={{1}}, \
                 rhs_contracting_dims={{0}}\n}}\n"
            );
            let inputs = [Tensor::of(&[rows, depth], &a), Tensor::of(&[depth, columns], &b)];
            let got = run(&text, &inputs);
            for (at, &seen) in got[0].slice::<i32>().iter().enumerate() {
                let (row, column) = (at / columns, at % columns);
                let sum = (0..depth).fold(0i32, |sum, k| {
                    sum.wrapping_add(a[row * depth + k].wrapping_mul(b[k * columns + column]))
                });
                assert_eq!(seen, sum, "{rows} x {depth} x {columns} below {most} at {at}");
            }
        }
    }
}

/// JAX compares floats by what it makes of them first: one NaN, and one zero.
#[test]
fn sorting_by_a_function_of_elements() {
    let side = |of: &str| {
        format!(
            " n{of} = pred[] compare({of}, {of}), direction=NE\n \
             m{of} = f32[] select(n{of}, nan, {of})\n \
             z{of} = pred[] compare({of}, zero), direction=EQ\n \
             k{of} = f32[] select(z{of}, zero, m{of})\n"
        )
    };
    for (direction, is_descending) in [("LT", false), ("GT", true)] {
        let text = format!(
            "HloModule m\nless {{\n a = f32[] parameter(0)\n b = f32[] parameter(1)\n \
             i = s32[] parameter(2)\n j = s32[] parameter(3)\n nan = f32[] constant(nan)\n \
             zero = f32[] constant(0)\n{}{} ROOT r = pred[] compare(ka, kb), \
             direction={direction}, type=TOTALORDER\n}}\nENTRY e {{\n x = f32[2,150] parameter(0)\n \
             p = s32[2,150] iota(), iota_dimension=1\n ROOT s = (f32[2,150], s32[2,150]) \
             sort(x, p), dimensions={{1}}, is_stable=true, to_apply=less\n}}\n",
            side("a"),
            side("b")
        );
        let mut random = Random(9);
        let values: Vec<f32> = (0..300)
            .map(|at| match random.below(8) {
                0 => f32::NAN,
                1 => -f32::NAN,
                2 => 0.0,
                3 => -0.0,
                4 => (at % 5) as f32 - 2.0,
                _ => random.unit(),
            })
            .collect();
        let got = run(&text, &[floats(&[2, 150], &values)]);
        for row in 0..2 {
            let values = &values[row * 150..][..150];
            let key = |at: usize| match values[at] {
                value if value.is_nan() => f32::NAN,
                0.0 => 0.0,
                value => value,
            };
            let mut expected: Vec<usize> = (0..150).collect();
            expected.sort_by(|&a, &b| match is_descending {
                false => key(a).total_cmp(&key(b)),
                true => key(b).total_cmp(&key(a)),
            });
            let places = &got[1].slice::<i32>()[row * 150..][..150];
            assert!(places.iter().zip(&expected).all(|(&a, &b)| a as usize == b), "{direction}");
            let sorted = &got[0].slice::<f32>()[row * 150..][..150];
            let is_same = |(&seen, &at): (&f32, &usize)| seen.to_bits() == values[at].to_bits();
            assert!(sorted.iter().zip(&expected).all(is_same), "{direction}");
        }
    }
}

/// The gradient of a maximum over windows that overlap, in a part of the dimensions.
#[test]
fn gradients_of_a_maximum_over_windows() {
    let mut random = Random(5);
    let (rows, columns, features) = (9, 11, 5);
    let text = "HloModule m\nge {\n a = f32[] parameter(0)\n b = f32[] parameter(1)\n \
        ROOT r = pred[] compare(a, b), direction=GE\n}\nadd {\n a = f32[] parameter(0)\n \
        b = f32[] parameter(1)\n ROOT r = f32[] add(a, b)\n}\nENTRY e {\n \
        x = f32[3,9,11,5] parameter(0)\n s = f32[3,5,5,5] parameter(1)\n z = f32[] constant(0.5)\n \
        ROOT g = f32[3,9,11,5] select-and-scatter(x, s, z), window={size=1x3x3x1 \
        stride=1x2x2x1 pad=0_0x1_1x0_0x0_0}, select=ge, scatter=add\n}\n";
    let (x, s) = (random.floats(&[3, 9, 11, 5]), random.floats(&[3, 5, 5, 5]));
    let got = run(text, &[x.clone(), s.clone()]);
    let at = |b: usize, r: usize, c: usize, f: usize| ((b * rows + r) * columns + c) * features + f;
    let (x, s) = (x.slice::<f32>(), s.slice::<f32>());
    let mut expected = vec![0.5f32; x.len()];
    for (number, &value) in s.iter().enumerate() {
        let (f, c, r, b) = (number % 5, number / 5 % 5, number / 25 % 5, number / 125);
        let mut best: Option<usize> = None;
        for (i, j) in (0..3).flat_map(|i| (0..3).map(move |j| (i, j))) {
            let (row, column) = ((2 * r + i).wrapping_sub(1), 2 * c + j);
            if row >= rows || column >= columns {
                continue;
            }
            let place = at(b, row, column, f);
            best = best.filter(|&best| x[best] >= x[place]).or(Some(place));
        }
        expected[best.unwrap()] += value;
    }
    assert_eq!(got[0].slice::<f32>(), expected);
}
