//! Custom calls from a shared library, compiled on the spot.

mod common;

use std::process::Command;

use common::floats;
use halflap_hlo::Module;
use halflap_run::evaluate::Evaluator;
use halflap_run::kernel::Libraries;

const SOURCE: &str = "
void twice(void *out, const void **ins) {
    for (int i = 0; i < 3; i++) ((float *)out)[i] = 2 * ((const float *)ins[0])[i];
}
void sum_and_difference(void *out, const void **ins) {
    float **outs = out;
    const float *a = ins[0], *b = ins[1];
    for (int i = 0; i < 3; i++) { outs[0][i] = a[i] + b[i]; outs[1][i] = a[i] - b[i]; }
}
";

#[test]
fn functions_of_a_library_are_called() {
    let folder = std::env::temp_dir().join(format!("halflap-custom-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let (source, library) = (folder.join("calls.c"), folder.join("calls.so"));
    std::fs::write(&source, SOURCE).unwrap();
    let compiled =
        Command::new("cc").args(["-shared", "-fPIC", "-o"]).args([&library, &source]).status();
    if !compiled.is_ok_and(|status| status.success()) {
        // Without a compiler there is nothing to call.
        return;
    }
    // SAFETY: the functions above have the signature and keep to arrays of three elements.
    let libraries = unsafe { Libraries::load(&[&library]) }.unwrap();
    let text = "HloModule m\nENTRY e {\n a = f32[3] parameter(0)\n t = f32[3] custom-call(a), custom_call_target=\"twice\"\n p = (f32[3], f32[3]) custom-call(t, a), custom_call_target=\"sum_and_difference\"\n s = f32[3] get-tuple-element(p), index=0\n d = f32[3] get-tuple-element(p), index=1\n ROOT r = (f32[3], f32[3]) tuple(s, d)\n}\n";
    let module = Module::read(text.to_owned()).unwrap();
    let given = Evaluator::with(&module, &libraries)
        .unwrap()
        .run(&[vec![floats(&[3], &[1.0, 2.0, 3.0])]])
        .unwrap();
    assert_eq!(given[0][0].slice::<f32>(), [3.0, 6.0, 9.0]);
    assert_eq!(given[0][1].slice::<f32>(), [1.0, 2.0, 3.0]);
    std::fs::remove_dir_all(&folder).unwrap();
}
