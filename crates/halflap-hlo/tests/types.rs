//! Modules whose shapes are not what operands and attributes come to, and some that look so.

use std::fs;
use std::path::Path;

use halflap_hlo::read_module;
use halflap_hlo::{Module, check};

/// Computations that the modules of the tables call, and parameters that they take.
const HEAD: &str = "HloModule m, num_partitions=4
add { a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b) }
adds { a = s32[] parameter(0)
  b = s32[] parameter(1)
  ROOT c = s32[] add(a, b) }
less { a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = pred[] compare(a, b), direction=LT }
never { s = (f32[8]) parameter(0)
  ROOT c = pred[] constant(false) }
body { ROOT s = (f32[8]) parameter(0) }
body9 { ROOT s = (f32[9]) parameter(0) }
double { p = f32[8] parameter(0)
  ROOT d = f32[8] add(p, p) }
square { p = f32[8,4] parameter(0)
  ROOT d = f32[8,4] multiply(p, p) }
ENTRY e {
  v = f32[8] parameter(0)
  w = f32[4] parameter(1)
  m = f32[8,4] parameter(2)
  k = f32[5,3] parameter(3)
  i = s32[8] parameter(4)
  z = f32[] parameter(5)
  n = s32[] parameter(6)
  c = pred[8] parameter(7)
  o = pred[] parameter(8)
  im = f32[1,8,8,4] parameter(9)
  t = (f32[8]) tuple(v)
";

/// What the check says of a module whose last instructions are these, without the line.
fn said(last: &str) -> Result<(), String> {
    let text = format!("{HEAD}  {last}\n}}\n");
    let module = Module::read(text).unwrap_or_else(|error| panic!("{last}: {error}"));
    check(&module).map_err(|error| error.to_string().split_once(": ").unwrap().1.to_owned())
}

#[track_caller]
fn are_refused(modules: &[(&str, &str)]) {
    for (last, right) in modules {
        assert_eq!(said(&format!("ROOT r = {last}")), Err((*right).to_owned()), "{last}");
    }
}

#[track_caller]
fn are_accepted(modules: &[&str]) {
    for last in modules {
        assert_eq!(said(&format!("ROOT r = {last}")), Ok(()), "{last}");
    }
}

/// XLA wrote these. Those that were compiled for a TPU mix types.
#[test]
fn real_modules_are_right() {
    let mut count = 0;
    for folder in ["hlo", "programs"] {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests").join(folder);
        for path in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            let name = path.file_name().unwrap().to_string_lossy();
            if name.ends_with(".txt.gz") && !name.starts_with("tpu_") {
                let module = read_module(&fs::read(&path).unwrap()).unwrap();
                assert_eq!(check(&module), Ok(()), "{}", path.display());
                count += 1;
            }
        }
    }
    assert!(count > 30, "{count}");
}

#[test]
fn the_place_is_named() {
    let text = "HloModule m\nENTRY e {\n  p = f32[8000] parameter(0)\n  q = f32[4] parameter(1)\n  \
                ROOT x = f32[8000] add(p, q)\n}\n";
    let error = check(&Module::read(text.to_owned()).unwrap()).unwrap_err();
    assert_eq!(error.to_string(), "line 5: add 'x': operand 2 is f32[4], it should be f32[8000]");
}

#[test]
fn what_cannot_run_is_not_looked_at() {
    let with = |entry: &str| {
        let wrong = "wrong { p = f32[8] parameter(0)\n  ROOT r = f32[9] negate(p) }";
        check(&Module::read(format!("HloModule m\n{wrong}\nENTRY e {{ {entry} }}\n")).unwrap())
    };
    assert_eq!(with("ROOT p = f32[8] parameter(0)"), Ok(()));
    let error =
        with("p = f32[8] parameter(0)\n  ROOT f = f32[9] call(p), to_apply=wrong").unwrap_err();
    assert_eq!(error.to_string(), "line 3: negate 'r': the result is f32[9], it should be f32[8]");
}

#[test]
fn elementwise() {
    are_refused(&[
        ("f32[80000] add(v, v)", "add 'r': the result is f32[80000], it should be f32[8]"),
        ("f32[8] add(v, w)", "add 'r': operand 2 is f32[4], it should be f32[8]"),
        ("f32[8] add(v, i)", "add 'r': operand 2 is s32[8], it should be f32[8]"),
        ("f32[8] add(v, t)", "add 'r': operand 2 is (f32[8]), it should be f32[8]"),
        (
            "f32[8] compare(v, v), direction=LT",
            "compare 'r': the result is f32[8], it should be pred[8]",
        ),
        ("f32[8] select(v, v, v)", "select 'r': operand 1 is f32[8], it should be pred[8]"),
        ("f32[4] select(c, w, w)", "select 'r': operand 1 is pred[8], it should be pred[4]"),
        ("f32[8] clamp(w, v, z)", "clamp 'r': operand 1 is f32[4], it should be f32[8]"),
        ("s32[9] convert(v)", "convert 'r': the result is s32[9], it should be s32[8]"),
        ("c64[4] complex(v, v)", "complex 'r': the result is c64[4], it should be c64[8]"),
        (
            "f64[8] bitcast-convert(v)",
            "bitcast-convert 'r': operand 1 is f32[8], it should be with a last dimension of 2",
        ),
    ]);
    are_accepted(&[
        "f32[8] select(o, v, v)",
        "f32[8] clamp(z, v, v)",
        "bf16[8] convert(v)",
        "u8[8,4] bitcast-convert(v)",
        "f32[8] map(v, v), dimensions={0}, to_apply=add",
    ]);
}

#[test]
fn moves() {
    are_refused(&[
        ("f32[4] slice(v), slice={[6:10]}", "slice 'r': slice={[6:10]} should be within f32[8]"),
        (
            "f32[4] slice(v), slice={[0:8:3]}",
            "slice 'r': the result is f32[4], it should be f32[3]",
        ),
        (
            "f32[9,9] reshape(v)",
            "reshape 'r': the result is f32[9,9], it should be 8 elements of f32",
        ),
        ("f32[64] bitcast(v)", "bitcast 'r': the result is f32[64], it should be of 32 bytes"),
        ("f32[9] copy(v)", "copy 'r': the result is f32[9], it should be f32[8]"),
        (
            "f32[4,4] broadcast(v), dimensions={0}",
            "broadcast 'r': the result is f32[4,4], it should be f32[8,4]",
        ),
        (
            "f32[8,4] broadcast(v), dimensions={3}",
            "broadcast 'r': dimensions={3} should be dimensions below 2, each once",
        ),
        (
            "f32[20] concatenate(v, w), dimensions={0}",
            "concatenate 'r': the result is f32[20], it should be f32[12]",
        ),
        ("f32[20] pad(v, z), padding=1_1", "pad 'r': the result is f32[20], it should be f32[10]"),
        (
            "f32[8,4] transpose(m), dimensions={1,0}",
            "transpose 'r': the result is f32[8,4], it should be f32[4,8]",
        ),
        (
            "f32[8] iota(), iota_dimension=4",
            "iota 'r': iota_dimension=4 should be one dimension below 1",
        ),
        (
            "f32[9] dynamic-slice(v, n), dynamic_slice_sizes={9}",
            "dynamic-slice 'r': dynamic_slice_sizes={9} should be within f32[8]",
        ),
        (
            "f32[4] dynamic-update-slice(w, v, n)",
            "dynamic-update-slice 'r': operand 2 is f32[8], it should be within f32[4]",
        ),
        (
            "f32[8] dynamic-update-slice(v, w, z)",
            "dynamic-update-slice 'r': operand 3 is f32[], it should be of integers",
        ),
        (
            "f32[8,9] gather(m, i), offset_dims={1}, collapsed_slice_dims={0}, start_index_map={0}, index_vector_dim=1, slice_sizes={1,9}",
            "gather 'r': slice_sizes={1,9} should be within f32[8,4]",
        ),
        (
            "f32[8] scatter(v, i, w), update_window_dims={}, inserted_window_dims={0}, scatter_dims_to_operand_dims={0}, index_vector_dim=1, to_apply=add",
            "scatter 'r': operand 3 is f32[4], it should be f32[8], or less where a window is",
        ),
    ]);
    are_accepted(&[
        "f32[6] pad(v, z), padding=-1_-1",
        "f32[15] pad(v, z), padding=0_0_1",
        "u8[4,8] bitcast(v)",
        "f32[8,4] gather(m, i), offset_dims={1}, collapsed_slice_dims={0}, start_index_map={0}, index_vector_dim=1, slice_sizes={1,4}",
        "f32[8] scatter(v, i, v), update_window_dims={}, inserted_window_dims={0}, scatter_dims_to_operand_dims={0}, index_vector_dim=1, to_apply=add",
    ]);
}

#[test]
fn products() {
    are_refused(&[
        (
            "f32[8,3] dot(m, k), lhs_contracting_dims={1}, rhs_contracting_dims={0}",
            "dot 'r': operand 2 is f32[5,3], it should be of 4 in dimension 0",
        ),
        (
            "f32[80] dot(m, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}",
            "dot 'r': the result is f32[80], it should be f32[8]",
        ),
        (
            "f32[9] reduce(m, z), dimensions={1}, to_apply=add",
            "reduce 'r': the result is f32[9], it should be f32[8]",
        ),
        (
            "f32[8] reduce(m, z), dimensions={7}, to_apply=add",
            "reduce 'r': dimensions={7} should be dimensions below 2, each once",
        ),
        (
            "f32[8] reduce(m, n), dimensions={1}, to_apply=add",
            "reduce 'r': operand 2 is s32[], it should be f32[]",
        ),
        (
            "f32[8] reduce(m, z), dimensions={1}, to_apply=adds",
            "reduce 'r': parameter 0 of 'adds' is s32[], it should be f32[]",
        ),
        (
            "f32[8] reduce-window(v, z), window={size=2}, to_apply=add",
            "reduce-window 'r': the result is f32[8], it should be f32[7]",
        ),
        (
            "f32[8] sort(v), dimensions={2}, to_apply=less",
            "sort 'r': dimensions={2} should be one dimension below 1",
        ),
        (
            "f32[8] sort(v), dimensions={0}, to_apply=add",
            "sort 'r': 'add' gives f32[], it should give pred[]",
        ),
        (
            "f32[8,4] cholesky(m)",
            "cholesky 'r': operand 1 is f32[8,4], it should be square matrices",
        ),
        (
            "c64[8] fft(v), fft_type=RFFT, fft_length={8}",
            "fft 'r': the result is c64[8], it should be c64[5]",
        ),
    ]);
    are_accepted(&[
        "bf16[8] dot(m, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}",
        "f32[8,8,4] dot(v, m), lhs_contracting_dims={}, rhs_contracting_dims={}",
        "f32[4] reduce-window(v, z), window={size=2 stride=2}, to_apply=add",
    ]);
}

#[test]
fn convolutions() {
    let with =
        |kernel: &str, last: &str| said(&format!("q = {kernel} constant(0)\n  ROOT r = {last}"));
    let plain = "convolution(im, q), window={size=3x3 pad=1_1x1_1}, dim_labels=b01f_01io->b01f";
    assert_eq!(with("f32[3,3,4,6]", &format!("f32[1,8,8,6] {plain}")), Ok(()));
    assert_eq!(
        with("f32[3,3,2,6]", &format!("f32[1,8,8,6] {plain}, feature_group_count=2")),
        Ok(())
    );
    let labels = "convolution 'r': dim_labels=b0?1f_01io->b01f should be such as b01f_01io->b01f, of one rank";
    let strange = plain.replace("b01f_", "b0?1f_");
    assert_eq!(with("f32[3,3,4,6]", &format!("f32[1,8,8,6] {strange}")), Err(labels.to_owned()));
    let features = "convolution 'r': operand 2 is f32[3,3,5,6], it should be f32[3,3,4,6]";
    assert_eq!(with("f32[3,3,5,6]", &format!("f32[1,8,8,6] {plain}")), Err(features.to_owned()));
    let result = "convolution 'r': the result is f32[1,9,8,6], it should be f32[1,8,8,6]";
    assert_eq!(with("f32[3,3,4,6]", &format!("f32[1,9,8,6] {plain}")), Err(result.to_owned()));
}

#[test]
fn calls() {
    are_refused(&[
        (
            "(f32[8], f32[8]) tuple(v, w)",
            "tuple 'r': the result is (f32[8], f32[8]), it should be (f32[8], f32[4])",
        ),
        (
            "f32[4] get-tuple-element(t), index=0",
            "get-tuple-element 'r': the result is f32[4], it should be f32[8]",
        ),
        (
            "(f32[8]) while(t), condition=never, body=body9",
            "while 'r': parameter 0 of 'body9' is (f32[9]), it should be (f32[8])",
        ),
        (
            "(f32[8]) while(t), condition=body, body=body",
            "while 'r': 'body' gives (f32[8]), it should give pred[]",
        ),
        (
            "f32[8] call(w), to_apply=double",
            "call 'r': parameter 0 of 'double' is f32[8], it should be f32[4]",
        ),
        (
            "f32[8] call(v, v), to_apply=double",
            "call 'r': 'double' takes 1 parameters, it should take 2",
        ),
        (
            "f32[4] fusion(v), kind=kLoop, calls=double",
            "fusion 'r': 'double' gives f32[8], it should give f32[4]",
        ),
        (
            "f32[8] conditional(o, v, m), true_computation=double, false_computation=square",
            "conditional 'r': 'square' gives f32[8,4], it should give f32[8]",
        ),
        (
            "f32[8] conditional(z, v, v), true_computation=double, false_computation=double",
            "conditional 'r': operand 1 is f32[], it should be pred[] or s32[]",
        ),
    ]);
    are_accepted(&[
        "(f32[8]) while(t), condition=never, body=body",
        "f32[8] conditional(n, v, v), branch_computations={double, double}",
    ]);
}

#[test]
fn collectives() {
    const ALL: &str = "channel_id=1, use_global_device_ids=true, replica_groups={{0,1},{2,3}}";
    let with_groups = |what: &str| said(&format!("ROOT r = {what}, {ALL}"));
    let wrong = |what: &str| with_groups(what).unwrap_err();
    let right = "all-gather 'r': the result is f32[9], it should be f32[16]";
    assert_eq!(wrong("f32[9] all-gather(v), dimensions={0}"), right);
    let right = "reduce-scatter 'r': the result is f32[8], it should be f32[4]";
    assert_eq!(wrong("f32[8] reduce-scatter(v), dimensions={0}, to_apply=add"), right);
    let right = "all-to-all 'r': the result is f32[9], it should be f32[8]";
    assert_eq!(wrong("f32[9] all-to-all(v), dimensions={0}"), right);
    let right = "all-to-all 'r': 3 operands, it should have 2: one for each device of a group";
    assert_eq!(wrong("(f32[8], f32[8], f32[8]) all-to-all(v, v, v)"), right);
    let right = "all-gather-start 'r': the result is f32[9], it should be f32[16]";
    assert_eq!(wrong("(f32[8], f32[9]) all-gather-start(v), dimensions={0}"), right);
    for what in [
        "f32[8,8] all-gather(m), dimensions={1}",
        "(f32[16], f32[8]) all-gather(v, w), dimensions={0}",
        "((f32[8], f32[4]), (f32[16], f32[8])) all-gather-start(v, w), dimensions={0}",
        "(f32[8], f32[4]) all-reduce(v, w), to_apply=add",
        "(f32[8], f32[8]) all-to-all(v, v)",
        "((f32[8]), f32[4]) reduce-scatter-start(v), dimensions={0}, to_apply=add",
    ] {
        assert_eq!(with_groups(what), Ok(()), "{what}");
    }
}

#[test]
fn devices() {
    const SUM: &str = "f32[8] all-reduce(v), to_apply=add, channel_id=1, use_global_device_ids=true, replica_groups=";
    let groups = |groups: &str| {
        said(&format!("ROOT r = {SUM}{groups}")).map_err(|said| said[16..].to_owned())
    };
    let wrong = |text: &str| groups(text).unwrap_err();
    assert_eq!(
        wrong("{{0,1},{2,9}}"),
        "replica_groups name device 9, but there are 4: they should be below that"
    );
    assert_eq!(
        wrong("{{0,0},{1,2,3}}"),
        "replica_groups name device 0 twice: each should be there once"
    );
    assert_eq!(
        wrong("{{0,1},{1,2,3}}"),
        "replica_groups name device 1 twice: each should be there once"
    );
    assert_eq!(
        wrong("{{0,1},{3}}"),
        "replica_groups leave device 2 out: each should be in one, or write {} for all"
    );
    assert_eq!(
        wrong("{{0,1,2}}"),
        "replica_groups leave device 3 out: each should be in one, or write {} for all"
    );
    for right in ["{}", "{{3,0},{1},{2}}", "[2,2]<=[4]"] {
        assert_eq!(groups(right), Ok(()), "{right}");
    }
    let pairs = |pairs: &str| {
        said(&format!(
            "ROOT r = f32[8] collective-permute(v), channel_id=1, source_target_pairs={pairs}"
        ))
    };
    let wrong = |text: &str| pairs(text).unwrap_err()[24..].to_owned();
    assert_eq!(
        wrong("{{0,1},{1,5}}"),
        "source_target_pairs name device 5, but there are 4: they should be below that"
    );
    assert_eq!(
        wrong("{{0,1},{1,1}}"),
        "source_target_pairs name device 1 twice: each should be there once"
    );
    assert_eq!(
        wrong("{{0,1},{0,2}}"),
        "source_target_pairs name device 0 twice: each should be there once"
    );
    assert_eq!(pairs("{{0,1},{1,0}}"), Ok(()));
}

/// Groups that mean replicas are wrong about replicas: no number is made up.
#[test]
fn what_groups_name_is_as_they_write_it() {
    let said = |groups: &str| {
        let text = format!(
            "HloModule m, num_partitions=2\nsum {{\n a = f32[] parameter(0)\n b = f32[] parameter(1)\n \
             ROOT c = f32[] add(a, b)\n}}\nENTRY e {{\n p = f32[4] parameter(0)\n \
             ROOT r = f32[4] all-reduce(p), to_apply=sum, replica_groups={groups}\n}}\n"
        );
        check(&Module::read(text).unwrap()).unwrap_err().to_string()
    };
    let beyond = said("{{0,5}}");
    assert!(beyond.contains("name replica 5, but there is 1 (without channel_id"), "{beyond}");
    let twice = said("{{0,0}}");
    assert!(twice.contains("name replica 0 twice"), "{twice}");
}

/// A second end of one start would read what may be overwritten by then.
#[test]
fn what_is_started_is_ended_once() {
    let ends = |first: &str, second: &str| {
        said(&format!(
            "s = f32[8] all-reduce-start(v), replica_groups={{}}, to_apply=add
  s2 = f32[8] all-reduce-start(v), replica_groups={{}}, to_apply=add
  a = f32[8] all-reduce-done({first})
  b = f32[8] all-reduce-done({second})
  ROOT r = f32[8] add(a, b)"
        ))
    };
    assert_eq!(ends("s", "s2"), Ok(()));
    let twice = ends("s", "s").unwrap_err();
    assert!(twice.ends_with("'s' is ended by 'a' already: it should be ended once"), "{twice}");
}

/// It is named where it is written, not where a caller gives something else.
#[test]
fn unknown_types_are_named_first() {
    let text = "HloModule m\nback {\n  a = s33[] parameter(0)\n  ROOT b = s32[] constant(1)\n}\n\
        ENTRY e {\n  c = s32[] constant(2)\n  ROOT r = s32[] call(c), to_apply=back\n}\n";
    let error = check(&Module::read(text.to_owned()).unwrap()).unwrap_err().to_string();
    assert!(
        error.starts_with("line 3: parameter 'a': the type of its elements is unknown"),
        "{error}"
    );
}
