//! What people write, and XLA reads: a small module for each form.

use halflap_hlo::{Devices, Literal, Module, Problem, Shape, check};

fn read(text: &str) -> Module {
    let module = Module::read(text.to_owned()).unwrap_or_else(|error| panic!("{error}\n{text}"));
    check(&module).unwrap_or_else(|error| panic!("{error}\n{text}"));
    module
}

/// The shape of an instruction of the entry, without layouts.
fn shape(module: &Module, name: &str) -> String {
    let mut all = module.instructions(module.entry());
    let instr = all
        .find(|&instr| module.instruction_name(instr) == name)
        .unwrap_or_else(|| panic!("{name}"));
    shown(&module.instruction(instr).shape)
}

fn shown(shape: &Shape) -> String {
    match shape {
        Shape::Array(array) => format!("{}{:?}", array.element.name(), array.dims).replace(' ', ""),
        Shape::Tuple(parts) => {
            format!("({})", parts.iter().map(shown).collect::<Vec<_>>().join(","))
        }
        Shape::Token => "token".to_owned(),
        Shape::Opaque => "opaque".to_owned(),
    }
}

/// A module whose entry has two arrays, a scalar and these instructions.
fn entry(lines: &str) -> String {
    format!(
        "HloModule m

add {{
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT s = f32[] add(a, b)
}}

less {{
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = pred[] compare(a, b), direction=LT
}}

ENTRY e {{
  x = f32[2,3] parameter(0)
  y = f32[2,3] parameter(1)
  z = f32[] parameter(2)
{lines}
}}
"
    )
}

#[test]
fn spaces_in_shapes() {
    let module = read(&entry("  ROOT r = f32[ 2, 3 ] {1, 0} add(f32[2, 3] x, f32 [2,3]{1,0} y)"));
    assert_eq!(shape(&module, "r"), "f32[2,3]");
}

#[test]
fn a_brace_right_after_a_signature() {
    let text =
        "HloModule m\nENTRY e (p: f32[2]) -> f32[2]{\n  ROOT p = f32[2]{0} parameter(0)\n}\n";
    assert_eq!(shape(&read(text), "p"), "f32[2]");
    let text = "HloModule m\nENTRY e () -> f32[]{\n  ROOT p = f32[] constant(1)\n}\n";
    assert_eq!(shape(&read(text), "p"), "f32[]");
}

#[test]
fn without_a_mark_the_last_computation_is_the_entry() {
    let module = read(
        "HloModule m\nf {\n  ROOT p = f32[] parameter(0)\n}\n\ng {\n  ROOT q = f32[2] parameter(0)\n}\n",
    );
    assert_eq!(module.computation_name(module.entry()), "g");
}

#[test]
fn without_a_first_line() {
    for text in [
        "ENTRY e {\n  ROOT p = f32[] parameter(0)\n}\n",
        "// one\n%e {\n  ROOT p = f32[] parameter(0)\n}\n",
    ] {
        assert!(halflap::import::is_module(text.as_bytes()), "{text}");
        let module = read(text);
        assert_eq!(module.name(), "e");
        let again = read(&halflap_hlo::write(&module, &[(module.entry(), Vec::new())]));
        assert!(again.is_scheduled());
    }
}

#[test]
fn shapes_that_are_left_out() {
    let results = [
        ("add(x, y)", "f32[2,3]"),
        ("compare(x, y), direction=LT", "pred[2,3]"),
        ("select(compare(x, y), x, y)", ""),
        ("tuple(x, z)", "(f32[2,3],f32[])"),
        ("tuple()", "()"),
        ("transpose(x), dimensions={1,0}", "f32[3,2]"),
        ("dot(x, y), lhs_contracting_dims={1}, rhs_contracting_dims={1}", "f32[2,2]"),
        ("reduce(x, z), dimensions={1}, to_apply=add", "f32[2]"),
        ("concatenate(x, y), dimensions={0}", "f32[4,3]"),
        ("pad(x, z), padding=1_0x0_2", "f32[3,5]"),
        ("reverse(x), dimensions={0}", "f32[2,3]"),
        ("call(x, y), to_apply=sum", "f32[2,3]"),
        ("map(x, y), dimensions={0,1}, to_apply=less", "pred[2,3]"),
        ("sort(x), dimensions={0}, to_apply=less", "f32[2,3]"),
        ("topk(x), k=2", "(f32[2,2],s32[2,2])"),
        ("clamp(z, x, z)", "f32[2,3]"),
        ("complex(x, y)", "c64[2,3]"),
        ("after-all()", "token"),
        ("partition-id()", "u32[]"),
        ("broadcast(z)", "f32[]"),
        ("negate(x)", "f32[2,3]"),
        ("is-finite(x)", "pred[2,3]"),
        ("reduce-window(x, z), window={size=1x2}, to_apply=add", "f32[2,2]"),
        ("optimization-barrier(x)", "f32[2,3]"),
    ];
    let sum = "sum {\n  a = f32[2,3] parameter(0)\n  b = f32[2,3] parameter(1)\n  ROOT s = add(a, b)\n}\n\nENTRY";
    for (result, right) in results.into_iter().filter(|(_, right)| !right.is_empty()) {
        let text = entry(&format!("  ROOT r = {result}")).replace("ENTRY", sum);
        assert_eq!(shape(&read(&text), "r"), right, "{result}");
    }
}

#[test]
fn elements_of_what_has_no_shape() {
    let module = read(&entry(
        "  t = tuple(x, z)\n  g = get-tuple-element(t), index=1\n  ROOT r = add(g, t#1)",
    ));
    assert_eq!(shape(&module, "r"), "f32[]");
    let wrong =
        Module::read(entry("  t = tuple(x, z)\n  ROOT g = f32[] get-tuple-element(t), index=2"))
            .unwrap_err();
    assert_eq!(wrong.problem, Problem::BadIndex { count: 2 });
    let wrong = Module::read(entry("  t = tuple(x, z)\n  ROOT g = negate(t#7)")).unwrap_err();
    assert!(matches!(wrong.problem, Problem::NoSuchElement { index: 7, .. }), "{wrong}");
}

#[test]
fn what_cannot_be_inferred_is_said() {
    let wrong = Module::read(entry("  ROOT r = convert(x)")).unwrap_err();
    assert_eq!((wrong.line, wrong.column), (19, 12), "{wrong}");
    assert!(wrong.to_string().contains("needs a shape, as in f32[2,3] convert(...)"), "{wrong}");
    let wrong = Module::read(entry("  ROOT r = add(x, z)")).unwrap_err();
    assert!(wrong.to_string().contains("operand 2 is f32[], it should be f32[2,3]"), "{wrong}");
}

#[test]
fn instructions_in_place_of_operands() {
    let module = read("HloModule m\nENTRY e {\n  ROOT r = s32[] convert(s8[] parameter(0))\n}\n");
    assert_eq!(module.len(), 2);
    assert_eq!(module.parameters(module.entry()).len(), 1);
    let text = entry("  ROOT r = add(multiply(x, negate(y)), broadcast(f32[] constant(2)), x)");
    assert!(matches!(
        Module::read(text).unwrap_err().problem,
        Problem::WrongCount { found: 3, .. }
    ));
    let module = read(&entry("  ROOT r = add(maximum(x, negate(y)), f32[2,3] multiply(x, y))"));
    let names: Vec<&str> =
        module.instructions(module.entry()).map(|instr| module.opcode_name(instr)).collect();
    assert_eq!(
        names,
        ["parameter", "parameter", "parameter", "negate", "maximum", "multiply", "add"]
    );
    // Names that could be ours are avoided.
    read(&entry("  negate.anon0.1 = negate(y)\n  ROOT r = add(x, negate(negate.anon0.1))"));
}

#[test]
fn computations_in_place_of_their_names() {
    let text = entry(
        "  ROOT r = f32[2] reduce(x, z), dimensions={1}, to_apply={
    p = f32[] parameter(0)
    ROOT m = maximum(p, f32[] parameter(1))
  }, metadata={op_name=\"a\"}",
    );
    let module = read(&text);
    let root = module.root(module.entry());
    let callee = module.called(root)[0];
    assert_eq!(module.opcode_name(module.root(callee)), "maximum");
    assert_eq!(module.metadata(root).op_name, "a");
    let branches = "  k = s32[] constant(0)
  ROOT r = f32[] conditional(k, z, z), branch_computations={ { ROOT %a = f32[] parameter(0) }, { ROOT n = negate(f32[] parameter(0)) } }";
    let module = read(&entry(branches));
    assert_eq!(module.called(module.root(module.entry())).len(), 2);
}

#[test]
fn values_on_the_next_line_and_comments_after_them() {
    let lines = "  t = (f32[2,3], f32[]) tuple(x, z)
  g = f32[] get-tuple-element(t), index=
    1 // the second
  h = f32[2,3] get-tuple-element(t), index=0 /* the first */
  ROOT r = f32[2] reduce(h, g), /* which */ dimensions={ /*i0=0*/ 1 }, // how
    to_apply=add";
    let module = read(&entry(lines));
    assert_eq!(
        (shape(&module, "g"), shape(&module, "r")),
        ("f32[]".to_owned(), "f32[2]".to_owned())
    );
}

#[test]
fn several_instructions_in_a_line() {
    let text = "HloModule m, num_partitions=2 ENTRY e { p = f32[2] parameter(0), metadata={op_name='a}'} t = (f32[2]) tuple(p) ROOT r = f32[2] get-tuple-element(t), index=0 }";
    let module = read(text);
    assert_eq!(
        (module.name(), module.devices(), module.len()),
        ("m", Devices { replicas: 1, partitions: 2 }, 3)
    );
}

#[test]
fn errors_show_the_text_as_it_was() {
    let text = "HloModule m\nENTRY e {\n  p = f32[2] parameter(0)\n  q = negate(negate(p))\n  ROOT r = add(p, nobody)\n}\n";
    let error = Module::read(text.to_owned()).unwrap_err();
    assert_eq!(
        (error.line, error.column, error.shown.as_str()),
        (5, 19, "  ROOT r = add(p, nobody)"),
        "{error}"
    );
    let text = "HloModule m\nENTRY e {\n  p = f32[2] parameter(0)\n  q = f32[2] negate(negate(p))\n  ROOT r = f32[3] add(q, q)\n}\n";
    let module = Module::read(text.to_owned()).unwrap();
    assert_eq!(check(&module).unwrap_err().line, 5);
    let deep = format!("{}p{}", "negate(".repeat(1000), ")".repeat(1000));
    let text =
        format!("HloModule m\nENTRY e {{\n  p = f32[2] parameter(0)\n  ROOT r = {deep}\n}}\n");
    assert!(matches!(Module::read(text).unwrap_err().problem, Problem::NestedTooDeep { .. }));
}

#[test]
fn one_number_for_a_whole_array() {
    let module = read("HloModule m\nENTRY e {\n  ROOT c = f32[3] constant(2)\n}\n");
    let literal = module.literal(module.root(module.entry()));
    assert_eq!(literal, Some(Literal::Float(vec![2.0, 0.0, 0.0])));
}

#[test]
fn shapes_of_any_size() {
    let huge = "s8[4611686018427387904,4611686018427387904]";
    let module = read(&format!(
        "HloModule m\nENTRY e {{\n  p = {huge} parameter(0)\n  ROOT r = {huge} negate(p)\n}}\n"
    ));
    halflap_hlo::LoweredModule::of(&module).unwrap();
}

fn devices(head: &str, line: &str) -> Option<Devices> {
    let text = format!(
        "HloModule m{head}\nadd {{\n  a = f32[] parameter(0)\n  b = f32[] parameter(1)\n  ROOT s = f32[] add(a, b)\n}}\n\nENTRY e {{\n  p = f32[8] parameter(0)\n  ROOT r = {line}\n}}\n"
    );
    Module::read(text).unwrap().assumed_devices()
}

#[test]
fn devices_that_the_text_does_not_count() {
    let of = |replicas, partitions| Some(Devices { replicas, partitions });
    let reduce = "f32[8] all-reduce(p), to_apply=add, replica_groups=";
    assert_eq!(devices("", &format!("{reduce}{{{{0,1}},{{2,3}}}}")), of(4, 1));
    assert_eq!(
        devices("", &format!("{reduce}[2,4]<=[8], channel_id=1, use_global_device_ids=true")),
        of(1, 8)
    );
    assert_eq!(devices("", &format!("{reduce}{{}}")), of(1, 1));
    assert_eq!(
        devices("", "f32[8] collective-permute(p), source_target_pairs={{0,1},{1,2}}"),
        of(3, 1)
    );
    let permute = "f32[8] collective-permute(p), channel_id=1, source_target_pairs={{0,1},{1,0}}";
    assert_eq!(devices("", permute), of(1, 2));
    assert_eq!(devices("", "f32[32] all-gather(p), dimensions={0}, replica_groups={}"), of(4, 1));
    assert_eq!(devices("", "f32[32] all-gather(p), dimensions={0}"), of(4, 1));
    assert_eq!(devices("", "f32[8] negate(p)"), of(1, 1));
    assert_eq!(devices("", &format!("{reduce}{{{{0,4294967295}}}}")), of(1, 1));
    assert_eq!(devices(", num_partitions=4", permute), None);
    let module = |groups: &str| {
        let text = format!(
            "HloModule m\nENTRY e {{\n  p = f32[8] parameter(0)\n  ROOT r = f32[8] all-to-all(p), dimensions={{0}}, replica_groups={groups}\n}}\n"
        );
        Module::read(text).unwrap()
    };
    assert_eq!(
        module("{}").for_devices(4).unwrap().devices(),
        Devices { replicas: 4, partitions: 1 }
    );
    assert_eq!(
        module("{{0,1}}").for_devices(4).unwrap().devices(),
        Devices { replicas: 4, partitions: 1 }
    );
    assert!(module("{{0,1,2}}").for_devices(2).is_none());
}
