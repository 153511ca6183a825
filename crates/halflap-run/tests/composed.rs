//! Operations that are made of others, and custom calls that XLA's compilers know, with values that
//! were worked out by hand. bench/xla_runs.py compares them with XLA.

mod common;

use common::*;
use halflap_hlo::{Module, without_host_messages};
use halflap_run::evaluate::Evaluator;
use halflap_run::tensor::{DType, Tensor, Tiny};

/// Two features, in columns, of two elements each.
const NORMALISED: &str = " x = f32[2,2] parameter(0)\n s = f32[2] parameter(1)\n o = f32[2] parameter(2)\n \
    m = f32[2] parameter(3)\n v = f32[2] parameter(4)\n g = f32[2,2] parameter(5)\n";

fn normalised(root: &str) -> Vec<Vec<f32>> {
    let inputs = [
        floats(&[2, 2], &[1.0, 3.0, 3.0, 7.0]),
        floats(&[2], &[2.0, 3.0]),
        floats(&[2], &[1.0, 0.0]),
        floats(&[2], &[2.0, 5.0]),
        floats(&[2], &[1.0, 4.0]),
        floats(&[2, 2], &[1.0, 0.0, 0.0, 2.0]),
    ];
    let given = run_entry(&format!("{NORMALISED} ROOT r = {root}"), &inputs);
    given.iter().map(|array| array.slice::<f32>().to_vec()).collect()
}

#[test]
fn batch_norms_by_hand() {
    let settings = "epsilon=0, feature_index=1";
    let all = "(f32[2,2], f32[2], f32[2])";
    let training = normalised(&format!("{all} batch-norm-training(x, s, o), {settings}"));
    assert_eq!(training, [vec![-1.0, -3.0, 3.0, 3.0], vec![2.0, 5.0], vec![1.0, 4.0]]);
    let line = normalised(&format!("f32[2,2] batch-norm-inference(x, s, o, m, v), {settings}"));
    assert_eq!(line, [vec![-1.0, -3.0, 3.0, 3.0]]);
    let grad = normalised(&format!("{all} batch-norm-grad(x, s, m, v, g), {settings}"));
    // With two elements, no gradient leaves both mean and variance as they are.
    assert_eq!(grad, [vec![0.0; 4], vec![-1.0, 2.0], vec![1.0, 2.0]]);
}

#[test]
fn a_batch_norm_of_other_shapes_is_refused() {
    let body = format!(
        "{NORMALISED} ROOT r = f32[2,2] batch-norm-inference(x, g, o, m, v), epsilon=0, feature_index=1"
    );
    let module = Module::read(format!("HloModule m\nENTRY e {{\n{body}\n}}\n")).unwrap();
    let error = halflap_hlo::check(&module).unwrap_err().to_string();
    assert!(error.contains("operand 2 is f32[2,2], it should be f32[2]"), "{error}");
}

#[test]
fn random_fractions_round_up_as_often_as_they_are_large() {
    let body = " x = f32[6] parameter(0)\n n = u32[6] parameter(1)\n ROOT r = s8[6] stochastic-convert(x, n)";
    let x = floats(&[6], &[1.25, 1.25, -1.25, -1.25, 300.0, -300.0]);
    // A quarter of all numbers is below the third.
    let noise: [u32; 6] = [0, 1 << 30, (1 << 30) - 1, u32::MAX, 0, 0];
    let given = run_entry(body, &[x, Tensor::of(&[6], &noise)]);
    assert_eq!(given[0].slice::<i8>(), [2, 1, -2, -1, 127, -128]);
}

#[test]
fn bits_of_narrow_integers() {
    let body = " a = s4[4] parameter(0)\n b = s4[4] parameter(1)\n p = s4[4] popcnt(a)\n \
        z = s4[4] count-leading-zeros(a)\n s = s4[4] shift-right-logical(a, b)\n \
        ROOT r = (s4[4], s4[4], s4[4]) tuple(p, z, s)";
    let narrow = |values: [i8; 4]| Tensor::typed(DType::Tiny(Tiny::S4), &[4], &values);
    let given = run_entry(body, &[narrow([-1, 1, 0, -8]), narrow([2, 0, 1, -1])]);
    let given: Vec<Vec<f64>> = given.iter().map(Tensor::to_f64).collect();
    assert_eq!(
        given,
        [vec![4.0, 1.0, 0.0, 1.0], vec![0.0, 3.0, 4.0, 0.0], vec![3.0, 1.0, 0.0, 0.0]]
    );
}

/// Each instruction has its own state, which every run continues.
#[test]
fn states_of_random_numbers_grow() {
    let text = "HloModule m\nENTRY e {\n a = u64[2] rng-get-and-update-state(), delta=7\n \
        b = u64[2] rng-get-and-update-state(), delta=1\n ROOT r = (u64[2], u64[2]) tuple(a, b)\n}\n";
    let module = Module::read(text.to_owned()).unwrap();
    let mut evaluator = Evaluator::new(&module).unwrap();
    for [a, b] in [[0, 0], [7, 1], [14, 2]] {
        let given = evaluator.run(&[Vec::new()]).unwrap().remove(0);
        assert_eq!(given[0].slice::<u64>(), [0x0701_2395 + a, 0]);
        assert_eq!(given[1].slice::<u64>(), [0x0701_2395 + b, 0]);
    }
}

fn marked(target: &str, shape: &str) -> String {
    format!(
        " x = f32[2,3] parameter(0)\n ROOT r = {shape} custom-call(x), custom_call_target=\"{target}\""
    )
}

#[test]
fn markers_give_their_operand() {
    let x = floats(&[2, 3], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    for target in ["MoveToHost", "MoveToDevice", "annotate_device_placement", "LayoutConstraint"] {
        let given = run_entry(&marked(target, "f32[2,3]"), std::slice::from_ref(&x));
        assert_eq!(given[0].to_f64(), x.to_f64(), "{target}");
    }
    // What has another shape is not the operand.
    let text = format!("HloModule m\nENTRY e {{\n{}\n}}\n", marked("MoveToHost", "f32[4,3]"));
    let error = Evaluator::new(&Module::read(text).unwrap()).err().unwrap().to_string();
    assert!(error.contains("not valid for the operation"), "{error}");
}

/// As in XLA, which wraps only 64-bit integers, and takes any number for a boolean.
#[test]
fn constants_fit_their_types() {
    let refused = |constant: &str| {
        let text = format!("HloModule m\nENTRY e {{\n ROOT c = {constant}\n}}\n");
        Evaluator::new(&Module::read(text).unwrap()).err().map(|error| error.to_string())
    };
    for constant in [
        "s8[2] constant({-128,127})",
        "u8[] constant(255)",
        "s4[] constant(-8)",
        "pred[] constant(2)",
        "u64[] constant(-1)",
        "s64[] constant(18446744073709551615)",
        "f16[] constant(65504)",
        "f32[2] constant({inf,3.40282347e+38})",
    ] {
        assert_eq!(refused(constant), None, "{constant}");
    }
    for (constant, value) in [
        ("s8[2] constant({1,700})", "s8, and \"700\""),
        ("u8[] constant(-1)", "u8, and \"-1\""),
        ("s4[] constant(9)", "s4, and \"9\""),
        ("s32[] constant(4294967295)", "s32, and \"4294967295\""),
        ("f16[] constant(70000)", "f16, and \"70000\""),
        ("c64[] constant((1, 1e60))", "c64, and "),
    ] {
        let error = refused(constant).unwrap();
        assert!(error.contains(&format!("line 3: constant 'c': its type is {value}")), "{error}");
    }
}

#[test]
fn approximate_choices_are_exact() {
    let text = "HloModule m\nlarger {\n a = f32[] parameter(0)\n b = f32[] parameter(1)\n \
        i = s32[] parameter(2)\n j = s32[] parameter(3)\n ROOT g = pred[] compare(a, b), direction=GT\n}\n\
        ENTRY e {\n x = f32[2,4] parameter(0)\n i = s32[2,4] iota(), iota_dimension=1\n \
        z = f32[] constant(-inf)\n n = s32[] constant(-1)\n \
        ROOT t = (f32[2,2], s32[2,2]) custom-call(x, i, z, n), custom_call_target=\"TARGET\", \
        called_computations={larger}, backend_config={\"log2_reduction\":1,\"reduction_dim\":DIM,\"top_k\":2}\n}\n";
    let x = floats(&[2, 4], &[1.0, 7.0, 3.0, 5.0, 8.0, 2.0, 6.0, 4.0]);
    for (target, dim) in [("ApproxTopK", "1"), ("PartialReduce", "-1")] {
        let text = text.replace("TARGET", target).replace("DIM", dim);
        let given = run(&text, std::slice::from_ref(&x));
        assert_eq!(given[0].slice::<f32>(), [7.0, 5.0, 8.0, 6.0], "{target}");
        assert_eq!(given[1].slice::<i32>(), [1, 3, 0, 2], "{target}");
    }
    // The other dimension is not the one that is shorter in the result.
    let text = text.replace("TARGET", "ApproxTopK").replace("DIM", "0");
    assert!(Evaluator::new(&Module::read(text).unwrap()).is_err());
}

#[test]
fn a_host_that_is_not_there_sends_zeros() {
    let text = "HloModule m\nENTRY e {\n x = f32[2] parameter(0)\n t = token[] after-all()\n \
        s = (f32[2], u32[], token[]) send(x, t), channel_id=1, is_host_transfer=true\n \
        d = token[] send-done(s), channel_id=1, is_host_transfer=true\n \
        r = (f32[2], u32[], token[]) recv(d), channel_id=2, is_host_transfer=true\n \
        q = (f32[2], token[]) recv-done(r), channel_id=2, is_host_transfer=true\n \
        y = f32[2] get-tuple-element(q), index=0\n ROOT z = f32[2] add(x, y)\n}\n";
    let module = Module::read(text.to_owned()).unwrap();
    let module = without_host_messages(&module).unwrap().unwrap();
    let x = floats(&[2], &[1.0, 2.0]);
    let given = Evaluator::new(&module).unwrap().run(&[vec![x]]).unwrap().remove(0);
    assert_eq!(given[0].slice::<f32>(), [1.0, 2.0]);
}
