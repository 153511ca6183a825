//! Plans on threads: the numbers of the plain evaluation and of JAX, in any order; the memory that
//! was planned; and what happens when something goes wrong.

#[path = "../../halflap-hlo/tests/common/loops.rs"]
mod loops;
#[path = "../../halflap-hlo/tests/common/modules.rs"]
#[allow(dead_code)]
mod modules;
#[path = "../../halflap-hlo/tests/common/orders.rs"]
mod orders;

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use halflap::graph::Assignment;
use halflap::import::unzip;
use halflap::order::Order;
use halflap_hlo::plan::{PlanStep, Program, build, fuse};
use halflap_hlo::{LoweredModule, Module, without_calls, without_passed_bitcasts};
use halflap_run::check::{Checks, Strictness};
use halflap_run::comm::EmulatedLink;
use halflap_run::evaluate::Evaluator;
use halflap_run::exec::{Failure, Options, Outcome, Prepared, fits, run};
use halflap_run::kernel::Libraries;
use halflap_run::tensor::{DType, Npz, Tensor};
use loops::random_loops;
use modules::Dice;
use orders::random_order;

fn corpus(name: &str) -> Vec<u8> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/hlo").join(name);
    fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn module(name: &str) -> Module {
    Module::from_bytes(unzip(&corpus(&format!("{name}.txt.gz"))).unwrap().into_owned()).unwrap()
}

fn text(text: &str) -> Module {
    Module::read(text.to_owned()).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

/// In the module's own order, or in one by chance.
fn plan(module: &Module, seed: Option<u64>) -> (Arc<Prepared>, Program) {
    let program = ordered(module, seed);
    (prepared(module, &program), program)
}

/// The same with kernels that compute several instructions.
fn fused(module: &Module, seed: Option<u64>) -> (Arc<Prepared>, Program) {
    let program = fuse(module, ordered(module, seed), |instrs| fits(module, instrs));
    (prepared(module, &program), program)
}

fn prepared(module: &Module, program: &Program) -> Arc<Prepared> {
    Arc::new(
        Prepared::new(module, program, &Libraries::default())
            .unwrap_or_else(|error| panic!("{error}")),
    )
}

fn ordered(module: &Module, seed: Option<u64>) -> Program {
    let mut dice = Dice::new(seed.unwrap_or(0));
    let units = LoweredModule::of(module).unwrap().units;
    let program = build(module, &units, Assignment::SharedRanks, |unit| match seed {
        Some(_) => random_order(&units[unit].lowered.graph, &mut dice),
        None => Order::of_input(&units[unit].lowered.graph),
    });
    program.unwrap()
}

fn run_all(
    program: &Arc<Prepared>,
    inputs: Vec<Vec<Tensor>>,
    options: &Options,
) -> Result<Outcome, Failure> {
    run(&vec![program.clone(); program.ranks], inputs, options)
}

/// Small numbers, other ones on each rank.
fn made(program: &Prepared, seed: u64) -> Vec<Vec<Tensor>> {
    let mut dice = Dice::new(seed);
    let mut array = |kind: &halflap_run::kernel::ArrayType| {
        let mut array = Tensor::zeros(kind.dtype, &kind.dims);
        for element in array.bytes_mut().chunks_exact_mut(kind.dtype.size()) {
            let number = dice.below(1000) as f32 / 1000.0 - 0.5;
            match kind.dtype {
                DType::F32 => element.copy_from_slice(&number.to_le_bytes()),
                DType::Bf16 => element.copy_from_slice(&number.to_le_bytes()[2..]),
                DType::Pred => element[0] = u8::from(number > 0.0),
                _ => element[0] = (number.abs() * 10.0) as u8,
            }
        }
        array
    };
    (0..program.ranks).map(|_| program.inputs.iter().map(&mut array).collect()).collect()
}

#[track_caller]
fn assert_close(
    ours: &[Tensor],
    expected: &[Tensor],
    (relative, absolute): (f64, f64),
    what: &str,
) {
    assert_eq!(ours.len(), expected.len());
    for (index, (a, b)) in ours.iter().zip(expected).enumerate() {
        assert_eq!((a.dtype(), a.dims()), (b.dtype(), b.dims()), "{what}");
        for (a, b) in a.to_f64().into_iter().zip(b.to_f64()) {
            let is_same = a == b || (a.is_nan() && b.is_nan());
            assert!(
                is_same || (a - b).abs() <= absolute + relative * b.abs(),
                "{what}: output {index}: {a} is not {b}"
            );
        }
    }
}

#[test]
fn the_numbers_of_jax_in_any_order() {
    let module = module("fsdp_L2.after_spmd_partitioning");
    let bytes = corpus("fsdp_L2.ranks.npz");
    let archive = Npz::read(&bytes).unwrap();
    let names: Vec<String> = archive.names().map(str::to_owned).collect();
    let list = |kind: &str, rank: usize| -> Vec<Tensor> {
        let end = format!("_r{rank}");
        let mut own: Vec<&String> =
            names.iter().filter(|name| name.starts_with(kind) && name.ends_with(&end)).collect();
        own.sort();
        own.iter().map(|name| archive.get(name).unwrap()).collect()
    };
    for seed in [None, Some(1), Some(2)] {
        let (prepared, program) = plan(&module, seed);
        let inputs = (0..8).map(|rank| list("in_", rank)).collect();
        let outcome =
            run_all(&prepared, inputs, &Options { steps: 2, ..Options::default() }).unwrap();
        for (rank, of) in outcome.ranks.iter().enumerate() {
            assert_close(&of.outputs, &list("out_", rank), (1e-5, 1e-6), &format!("rank {rank}"));
            assert_eq!(of.peak, program.peak());
        }
    }
}

#[test]
fn the_numbers_of_the_plain_evaluation() {
    let modules = [
        "mix_L2.after_spmd_partitioning",
        "fsdp_L2_scan.after_spmd_partitioning",
        "fsdp_shmap_L2.after_optimizations",
        "fsdp_L2_bf16.after_spmd_partitioning",
        "fsdp_L2_scan.after_optimizations",
    ];
    for name in modules {
        let module = module(name);
        for seed in [None, Some(5)] {
            let (prepared, program) = plan(&module, seed);
            let inputs = made(&prepared, 7);
            let expected = Evaluator::new(&module).unwrap().run(&inputs).unwrap();
            let outcome = run_all(&prepared, inputs, &Options::default()).unwrap();
            for (rank, of) in outcome.ranks.iter().enumerate() {
                assert_close(
                    &of.outputs,
                    &expected[rank],
                    (1e-4, 1e-5),
                    &format!("{name}, rank {rank}"),
                );
                assert_eq!(of.peak, program.peak(), "{name}");
            }
        }
    }
}

fn launches(program: &Program) -> usize {
    let steps = program.plans.iter().flat_map(|(_, plan)| &plan.steps);
    steps.filter(|step| matches!(step, PlanStep::Launch(_))).count()
}

/// Fewer kernels, the same bits, the memory that was planned and not more than without.
#[test]
fn fused_kernels_compute_the_same() {
    let names = ["fsdp_L2", "mix_L2", "tp_L2", "fsdp_L2_scan", "fsdp_L2_bf16", "fsdp_shmap_L2"];
    for name in names {
        for stage in ["after_spmd_partitioning", "after_optimizations"] {
            let module = module(&format!("{name}.{stage}"));
            let (plain, plain_program) = plan(&module, Some(4));
            let (prepared, program) = fused(&module, Some(4));
            assert!(program.peak() <= plain_program.peak(), "{name}");
            if stage == "after_spmd_partitioning" {
                assert!(launches(&program) * 3 < launches(&plain_program) * 2, "{name}");
            }
            let inputs = made(&prepared, 7);
            let expected = run_all(&plain, inputs.clone(), &Options::default()).unwrap();
            // The plan also says which memory comes and goes when.
            let checks = Checks { lifetimes: Strictness::Assert, ..Checks::default() };
            let outcome =
                run_all(&prepared, inputs, &Options { checks, ..Options::default() }).unwrap();
            for (of, plain) in outcome.ranks.iter().zip(&expected.ranks) {
                assert!(of.outputs == plain.outputs, "{name}.{stage}");
                assert_eq!(of.peak, program.peak(), "{name}.{stage}");
            }
        }
    }
}

/// Small elementwise programs by chance, with values that are read often, across and in place.
#[test]
fn random_kernels_fuse_to_the_same() {
    let mut fewer = 0;
    for seed in 0..150 {
        let mut dice = Dice::new(seed);
        let mut lines = vec![
            "p0 = f32[6,10] parameter(0)".to_owned(),
            "p1 = f32[6,10] parameter(1)".to_owned(),
        ];
        let mut names = vec!["p0".to_owned(), "p1".to_owned()];
        for number in 0..20 {
            let name = format!("v{number}");
            let mut pick = || names[names.len() - 1 - dice.below(names.len().min(5))].clone();
            let (a, b) = (pick(), pick());
            let line = match dice.below(8) {
                0 => format!("{name} = f32[6,10] add({a}, {b})"),
                1 => format!("{name} = f32[6,10] multiply({a}, {b})"),
                2 => format!("{name} = f32[6,10] tanh({a})"),
                3 => format!(
                    "r{number} = f32[6] reduce({a}, z), dimensions={{1}}, to_apply=add\n {name} = f32[6,10] broadcast(r{number}), dimensions={{0}}"
                ),
                4 => format!(
                    "t{number} = f32[10,6] transpose({a}), dimensions={{1,0}}\n n{number} = f32[10,6] negate(t{number})\n {name} = f32[6,10] reshape(n{number})"
                ),
                5 => format!(
                    "s{number} = f32[3,10] slice({a}), slice={{[0:6:2], [0:10]}}\n {name} = f32[6,10] concatenate(s{number}, s{number}), dimensions={{0}}"
                ),
                6 => format!(
                    "b{number} = f32[6,10] broadcast(z), dimensions={{}}\n {name} = f32[6,10] maximum({a}, b{number})"
                ),
                _ => format!(
                    "t{number} = f32[10,6] transpose({b}), dimensions={{1,0}}\n d{number} = f32[6,6] dot({a}, t{number}), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}\n {name} = f32[6,10] dot(d{number}, {a}), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}"
                ),
            };
            lines.push(line);
            names.push(name);
        }
        let source = format!(
            "HloModule m\n{ADD}\nENTRY e {{ z = f32[] constant(0)\n {}\n ROOT r = (f32[6,10], f32[6,10]) tuple(v19, v12) }}",
            lines.join("\n ")
        );
        let module = text(&source);
        let order = Some(seed).filter(|seed| seed % 2 == 1);
        let ((plain, plain_program), (prepared, program)) =
            (plan(&module, order), fused(&module, order));
        fewer += launches(&plain_program) - launches(&program);
        let inputs = made(&prepared, seed);
        let expected = run_all(&plain, inputs.clone(), &Options::default()).unwrap();
        let outcome =
            run_all(&prepared, inputs.clone(), &Options { steps: 2, ..Options::default() })
                .unwrap();
        // Multiplications add up in another sequence where they read across: of what nearly cancels
        // little is left.
        let largest = |arrays: &[Tensor]| {
            arrays.iter().flat_map(Tensor::to_f64).fold(0.0, |most: f64, x| most.max(x.abs()))
        };
        let tolerance = (1e-5, 1e-5 * largest(&expected.ranks[0].outputs));
        assert_close(&outcome.ranks[0].outputs, &expected.ranks[0].outputs, tolerance, &source);
        let evaluated = Evaluator::new(&module).unwrap().run(&inputs).unwrap();
        assert_close(&outcome.ranks[0].outputs, &evaluated[0], tolerance, &source);
        assert_eq!(outcome.ranks[0].peak, program.peak(), "{source}");
        assert!(program.peak() <= plain_program.peak(), "{source}");
    }
    assert!(fewer > 500, "{fewer}");
}

/// Rounds of additions and rotations, whose results are read twice, as generators of random bits
/// have them: the same bits, in few kernels.
#[test]
fn rounds_of_bits_fuse_to_the_same() {
    for (seed, width) in (0..12).zip([32, 64].into_iter().cycle()) {
        let mut dice = Dice::new(seed);
        let kind = format!("u{width}[40,50]");
        let mut lines = Vec::new();
        let (mut x, mut y) = ("p0".to_owned(), "p1".to_owned());
        for round in 0..6 {
            // Shifts by the width and more give zeros.
            let (left, right) = (dice.below(width + 4), dice.below(width + 4));
            // Every element by the same number of bits, or each by its own.
            let is_same = dice.below(4) > 0;
            for (name, by) in [("l", left), ("r", right)] {
                let made = match is_same {
                    true => format!("broadcast(c{name}{round}), dimensions={{}}"),
                    false => "iota(), iota_dimension=1".to_owned(),
                };
                lines.push(format!("c{name}{round} = u{width}[] constant({by})"));
                lines.push(format!("b{name}{round} = {kind} {made}"));
            }
            lines.push(format!("x{round} = {kind} add({x}, {y})"));
            lines.push(format!("sl{round} = {kind} shift-left({y}, bl{round})"));
            lines.push(format!("sr{round} = {kind} shift-right-logical({y}, br{round})"));
            let shifts = [format!("sl{round}, sr{round}"), format!("sr{round}, sl{round}")];
            lines.push(format!("o{round} = {kind} or({})", shifts[dice.below(2)]));
            let both = [format!("x{round}, o{round}"), format!("o{round}, x{round}")];
            lines.push(format!("y{round} = {kind} xor({})", both[dice.below(2)]));
            (x, y) = (format!("x{round}"), format!("y{round}"));
        }
        // A shift that is read elsewhere is kept.
        lines.push(format!("k = {kind} add(sl3, sr4)"));
        let source = format!(
            "HloModule m\nENTRY e {{ p0 = {kind} parameter(0)\n p1 = {kind} parameter(1)\n {}\n \
             ROOT r = ({kind}, {kind}, {kind}) tuple({x}, {y}, k) }}",
            lines.join("\n ")
        );
        let module = text(&source);
        let ((plain, plain_program), (prepared, program)) =
            (plan(&module, None), fused(&module, None));
        assert!(launches(&program) * 4 < launches(&plain_program), "{source}");
        assert!(program.peak() <= plain_program.peak(), "{source}");
        let inputs = made(&prepared, seed);
        let expected = run_all(&plain, inputs.clone(), &Options::default()).unwrap();
        let outcome = run_all(&prepared, inputs, &Options::default()).unwrap();
        assert!(outcome.ranks[0].outputs == expected.ranks[0].outputs, "{source}");
        assert_eq!(outcome.ranks[0].peak, program.peak(), "{source}");
    }
}

const ADD: &str =
    "add { a = f32[] parameter(0)\n b = f32[] parameter(1)\n ROOT c = f32[] add(a, b) }";

/// Every kind of collective, with subgroups and along every dimension.
#[test]
fn every_collective() {
    let groups = "channel_id=1, replica_groups={{0,2},{1,3}}, use_global_device_ids=true";
    let reduce = |op: &str, name: &str| {
        format!(
            "{name} {{ a = f32[] parameter(0)\n b = f32[] parameter(1)\n ROOT c = f32[] {op}(a, b) }}\n"
        )
    };
    let text_of = |body: &str| {
        let applied = ["add", "multiply", "minimum", "maximum"].map(|op| reduce(op, op)).concat();
        let logic = "and { a = pred[] parameter(0)\n b = pred[] parameter(1)\n ROOT c = pred[] and(a, b) }\n\
                     or { a = pred[] parameter(0)\n b = pred[] parameter(1)\n ROOT c = pred[] or(a, b) }\n";
        format!(
            "HloModule m, num_partitions=4\n{applied}{logic}ENTRY e {{ p = f32[4,6,2] parameter(0)\n q = pred[9] parameter(1)\n{body} }}"
        )
    };
    let bodies = [
        format!("ROOT r = f32[4,6,2] all-reduce(p), {groups}, to_apply=add"),
        format!("ROOT r = f32[4,6,2] all-reduce(p), {groups}, to_apply=multiply"),
        format!("ROOT r = f32[4,6,2] all-reduce(p), {groups}, to_apply=minimum"),
        format!("ROOT r = f32[4,6,2] all-reduce(p), {groups}, to_apply=maximum"),
        format!("ROOT r = pred[9] all-reduce(q), {groups}, to_apply=and"),
        format!("ROOT r = pred[9] all-reduce(q), {groups}, to_apply=or"),
        format!("ROOT r = f32[4,3,2] reduce-scatter(p), {groups}, dimensions={{1}}, to_apply=add"),
        format!("ROOT r = f32[4,6,1] reduce-scatter(p), {groups}, dimensions={{2}}, to_apply=maximum"),
        format!("ROOT r = f32[8,6,2] all-gather(p), {groups}, dimensions={{0}}"),
        format!("ROOT r = f32[4,12,2] all-gather(p), {groups}, dimensions={{1}}"),
        "ROOT r = f32[4,6,2] all-to-all(p), channel_id=1, replica_groups={{2,0},{1,3}}, dimensions={1}".to_owned(),
        "n = f32[4,6,2] negate(p)\n ROOT r = (f32[4,6,2], f32[4,6,2]) all-to-all(p, n), channel_id=1, replica_groups={{0,3},{1,2}}".to_owned(),
        "ROOT r = f32[4,6,2] collective-permute(p), channel_id=1, source_target_pairs={{0,1},{1,2},{2,0}}".to_owned(),
        "ROOT r = f32[4,6,2] collective-permute(p), channel_id=1, source_target_pairs={{0,3}}".to_owned(),
        "ROOT r = f32[4,6,2] collective-broadcast(p), channel_id=1, replica_groups={{3,0},{1,2}}".to_owned(),
    ];
    for body in bodies {
        let module = text(&text_of(&body));
        let (prepared, _) = plan(&module, None);
        let inputs = made(&prepared, 3);
        let expected = Evaluator::new(&module).unwrap().run(&inputs).unwrap();
        let outcome = run_all(&prepared, inputs, &Options::default()).unwrap();
        for (rank, of) in outcome.ranks.iter().enumerate() {
            assert_close(
                &of.outputs,
                &expected[rank],
                (1e-6, 1e-7),
                &format!("{body}, rank {rank}"),
            );
        }
    }
}

/// Loops, branches and calls, with values that are swapped, passed on and given twice.
#[test]
fn control_flow() {
    let modules = [
        "HloModule m
        body { s = (s32[], f32[4], f32[4]) parameter(0)\n i = s32[] get-tuple-element(s), index=0
          a = f32[4] get-tuple-element(s), index=1\n k = f32[4] get-tuple-element(s), index=2
          one = s32[] constant(1)\n j = s32[] add(i, one)\n b = f32[4] add(a, k)
          ROOT t = (s32[], f32[4], f32[4]) tuple(j, b, k) }
        cond { s = (s32[], f32[4], f32[4]) parameter(0)\n i = s32[] get-tuple-element(s), index=0
          n = s32[] constant(3)\n ROOT lt = pred[] compare(i, n), direction=LT }
        ENTRY e { p = f32[4] parameter(0)\n z = s32[] constant(0)\n h = f32[4] sine(p)
          t = (s32[], f32[4], f32[4]) tuple(z, h, h)
          w = (s32[], f32[4], f32[4]) while(t), condition=cond, body=body
          ROOT r = f32[4] get-tuple-element(w), index=1 }",
        "HloModule m
        body { s = (s32[], f32[4], f32[4], f32[4]) parameter(0)\n i = s32[] get-tuple-element(s), index=0
          a = f32[4] get-tuple-element(s), index=1\n b = f32[4] get-tuple-element(s), index=2
          k = f32[4] get-tuple-element(s), index=3\n one = s32[] constant(1)\n j = s32[] add(i, one)
          n = f32[4] add(a, k)\n ROOT t = (s32[], f32[4], f32[4], f32[4]) tuple(j, b, n, k) }
        cond { s = (s32[], f32[4], f32[4], f32[4]) parameter(0)\n i = s32[] get-tuple-element(s), index=0
          n = s32[] constant(5)\n ROOT lt = pred[] compare(i, n), direction=LT }
        ENTRY e { p = f32[4] parameter(0)\n z = s32[] constant(0)\n h = f32[4] negate(p)
          t = (s32[], f32[4], f32[4], f32[4]) tuple(z, h, p, h)
          w = (s32[], f32[4], f32[4], f32[4]) while(t), condition=cond, body=body
          a = f32[4] get-tuple-element(w), index=1\n b = f32[4] get-tuple-element(w), index=2
          ROOT r = (f32[4], f32[4]) tuple(a, b) }",
        "HloModule m
        yes { p = f32[4] parameter(0)\n ROOT n = f32[4] negate(p) }
        no { p = f32[4] parameter(0)\n ROOT c = f32[4] add(p, p) }
        same { p = f32[4] parameter(0)\n ROOT c = f32[4] copy(p) }
        ENTRY e { p = f32[4] parameter(0)\n i = s32[] parameter(1)
          ROOT c = f32[4] conditional(i, p, p, p), branch_computations={yes, no, same} }",
        "HloModule m
        f { p = f32[4] parameter(0)\n q = f32[4] parameter(1)\n n = f32[4] add(p, q)
          ROOT t = (f32[4], f32[4], f32[4]) tuple(n, p, n) }
        ENTRY e { p = f32[4] parameter(0)\n q = f32[4] negate(p)
          c = (f32[4], f32[4], f32[4]) call(p, q), to_apply=f
          a = f32[4] get-tuple-element(c), index=0\n b = f32[4] get-tuple-element(c), index=1
          d = f32[4] get-tuple-element(c), index=2\n s = f32[4] add(a, b)\n ROOT r = (f32[4], f32[4]) tuple(s, d) }",
        // Updates in place that read what they overwrite, in fusions and in callees.
        "HloModule m
        fused { a = f32[6,4] parameter(0)\n i = s32[] parameter(1)\n z = s32[] constant(0)
          r = f32[1,4] dynamic-slice(a, i, z), dynamic_slice_sizes={1,4}\n h = f32[1,4] slice(a), slice={[5:6], [0:4]}
          u = f32[1,4] add(r, h)\n ROOT d = f32[6,4] dynamic-update-slice(a, u, i, z) }
        shift { a = f32[6,4] parameter(0)\n i = s32[] parameter(1)\n z = s32[] constant(0)
          n = f32[6,4] sine(a)\n r = f32[1,4] dynamic-slice(n, i, z), dynamic_slice_sizes={1,4}
          ROOT d = f32[6,4] dynamic-update-slice(a, r, z, z) }
        body { s = (s32[], f32[6,4], f32[6,4]) parameter(0)\n i = s32[] get-tuple-element(s), index=0
          a = f32[6,4] get-tuple-element(s), index=1\n b = f32[6,4] get-tuple-element(s), index=2
          one = s32[] constant(1)\n j = s32[] add(i, one)
          f = f32[6,4] fusion(a, i), kind=kLoop, calls=fused\n c = f32[6,4] call(f, i), to_apply=shift
          d = f32[6,4] call(b, j), to_apply=shift\n g = f32[6,4] add(d, f)
          ROOT t = (s32[], f32[6,4], f32[6,4]) tuple(j, c, g) }
        cond { s = (s32[], f32[6,4], f32[6,4]) parameter(0)\n i = s32[] get-tuple-element(s), index=0
          n = s32[] constant(5)\n ROOT lt = pred[] compare(i, n), direction=LT }
        ENTRY e { p = f32[6,4] parameter(0)\n q = f32[6,4] parameter(1)\n z = s32[] constant(0)
          t = (s32[], f32[6,4], f32[6,4]) tuple(z, p, q)
          ROOT w = (s32[], f32[6,4], f32[6,4]) while(t), condition=cond, body=body }",
    ];
    for source in modules {
        let module = text(source);
        let inlined = without_calls(&module).unwrap();
        assert_eq!(inlined.is_some(), source.contains("call("), "{source}");
        for of in std::iter::once(&module).chain(&inlined) {
            runs_as_evaluated(of, &module);
        }
    }
}

/// The result of a loop's body is that of a branch or callee, and that again of one: the memory of
/// the loop is lent on to the innermost.
#[test]
fn results_of_callees_of_callees() {
    let inner = [
        "conditional(c, a, a), true_computation=twice, false_computation=square",
        "call(a), to_apply=twice",
    ];
    let outer = [
        "conditional(c, t, t), true_computation=middle, false_computation=other",
        "call(t), to_apply=middle",
    ];
    for (inner, outer) in inner.iter().flat_map(|inner| outer.map(|outer| (inner, outer))) {
        let module = text(&format!(
            "HloModule m
            twice {{ t = (f32[4]) parameter(0)\n x = f32[4] get-tuple-element(t), index=0
              y = f32[4] add(x, x)\n ROOT r = (f32[4]) tuple(y) }}
            square {{ t = (f32[4]) parameter(0)\n x = f32[4] get-tuple-element(t), index=0
              y = f32[4] multiply(x, x)\n ROOT r = (f32[4]) tuple(y) }}
            middle {{ t = (f32[4], pred[]) parameter(0)\n x = f32[4] get-tuple-element(t), index=0
              c = pred[] get-tuple-element(t), index=1\n a = (f32[4]) tuple(x)\n ROOT r = (f32[4]) {inner} }}
            other {{ t = (f32[4], pred[]) parameter(0)\n x = f32[4] get-tuple-element(t), index=0
              y = f32[4] negate(x)\n ROOT r = (f32[4]) tuple(y) }}
            body {{ s = (s32[], f32[4]) parameter(0)\n i = s32[] get-tuple-element(s), index=0
              v = f32[4] get-tuple-element(s), index=1\n one = s32[] constant(1)\n two = s32[] constant(2)
              j = s32[] add(i, one)\n c = pred[] compare(i, two), direction=LT\n w = f32[4] reverse(v), dimensions={{0}}
              t = (f32[4], pred[]) tuple(w, c)\n o = (f32[4]) {outer}
              n = f32[4] get-tuple-element(o), index=0\n ROOT r = (s32[], f32[4]) tuple(j, n) }}
            cond {{ s = (s32[], f32[4]) parameter(0)\n i = s32[] get-tuple-element(s), index=0
              n = s32[] constant(3)\n ROOT lt = pred[] compare(i, n), direction=LT }}
            ENTRY e {{ p = f32[4] parameter(0)\n z = s32[] constant(0)\n t = (s32[], f32[4]) tuple(z, p)
              ROOT w = (s32[], f32[4]) while(t), condition=cond, body=body }}"
        ));
        runs_as_evaluated(&module, &module);
    }
}

/// Runs a module in some orders, fused and not, on the compute stream alone and issued step by
/// step, and compares with the evaluation of another.
fn runs_as_evaluated(module: &Module, evaluated: &Module) {
    for (seed, number) in [None, Some(3), Some(5), None].into_iter().zip(0..4) {
        for (prepared, program) in [plan(module, seed), fused(module, seed)] {
            let inputs = made(&prepared, number);
            let expected = Evaluator::new(evaluated).unwrap().run(&inputs).unwrap();
            for launch_blocking in [false, true] {
                let checks = Checks { launch_blocking, ..Checks::default() };
                let options = Options { steps: 3, checks, ..Options::default() };
                let outcome = run_all(&prepared, inputs.clone(), &options).unwrap();
                assert_close(&outcome.ranks[0].outputs, &expected[0], (0.0, 0.0), module.text());
                assert!(outcome.ranks[0].peak <= program.peak());
            }
        }
    }
}

/// What a loop changes, and what it leaves, stay apart in memory.
#[test]
fn random_loops_keep_their_values_apart() {
    for seed in 0..400 {
        let source = random_loops(seed);
        let module = text(&source);
        let evaluator = || Evaluator::new(&module).unwrap();
        for order in [None, Some(seed)] {
            for (prepared, program) in [plan(&module, order), fused(&module, order)] {
                let inputs = made(&prepared, seed);
                let expected = evaluator().run(&inputs).unwrap();
                let outcome =
                    run_all(&prepared, inputs, &Options { steps: 2, ..Options::default() })
                        .unwrap();
                let what = format!("seed {seed}: {source}");
                assert_close(&outcome.ranks[0].outputs, &expected[0], (1e-6, 1e-6), &what);
                assert!(outcome.ranks[0].peak <= program.peak(), "{what}");
            }
        }
    }
}

fn reducing(ranks: usize) -> Module {
    text(&format!(
        "HloModule m, num_partitions={ranks}\n{ADD}
        ENTRY e {{ p = f32[256] parameter(0)
          a = f32[256] all-reduce(p), channel_id=1, replica_groups=[1,{ranks}]<=[{ranks}], use_global_device_ids=true, to_apply=add
          n = f32[256] negate(a)\n ROOT r = f32[256] all-reduce(n), channel_id=2, replica_groups=[1,{ranks}]<=[{ranks}], use_global_device_ids=true, to_apply=add }}"
    ))
}

#[test]
fn an_emulated_link_takes_its_time() {
    let (prepared, _) = plan(&reducing(2), None);
    let link = EmulatedLink { bandwidth: 1e12, latency: Duration::from_millis(30) };
    let options = Options { link: Some(link), steps: 2, ..Options::default() };
    let outcome = run_all(&prepared, made(&prepared, 1), &options).unwrap();
    for rank in &outcome.ranks {
        assert!(rank.steps.iter().all(|step| step.0 >= 60e6), "{:?}", rank.steps);
    }
}

#[test]
fn a_panic_ends_all() {
    let (prepared, _) = plan(&reducing(4), None);
    let step = prepared.labels.iter().find(|label| label.name == "n").unwrap().place.1;
    let options =
        Options { panic: Some((2, step)), timeout: Duration::from_secs(20), ..Options::default() };
    let failure = run_all(&prepared, made(&prepared, 1), &options).unwrap_err();
    assert_eq!(failure.to_string(), "rank 2 panicked at 'n': this was asked for");
}

#[test]
fn other_plans_are_found_out() {
    let module = module("fsdp_L2.after_spmd_partitioning");
    let (one, _) = plan(&module, None);
    let (other, _) = plan(&module, Some(1));
    let mut programs = vec![one.clone(); 8];
    programs[6] = other;
    let failure = run(&programs, made(&one, 1), &Options::default()).unwrap_err();
    let Failure::PlansDiffer { first: 0, second: 6, of_first, of_second } = failure else {
        panic!("{failure}")
    };
    assert_ne!(of_first, of_second);
    assert!(of_first.contains("alloc") || of_first.contains("launch"), "{of_first}");
}

/// Ranks that take different branches wait for each other, and that ends.
#[test]
fn ranks_that_part_are_told() {
    let module = text(&format!(
        "HloModule m, num_partitions=2\n{ADD}
        one {{ p = f32[8] parameter(0)\n ROOT a = f32[8] all-reduce(p), channel_id=1, replica_groups={{}}, use_global_device_ids=true, to_apply=add }}
        two {{ p = f32[8] parameter(0)\n ROOT b = f32[8] all-reduce(p), channel_id=2, replica_groups={{}}, use_global_device_ids=true, to_apply=add }}
        ENTRY e {{ p = f32[8] parameter(0)\n i = pred[] parameter(1)
          ROOT c = f32[8] conditional(i, p, p), true_computation=one, false_computation=two }}"
    ));
    let (prepared, _) = plan(&module, None);
    let mut inputs = made(&prepared, 1);
    inputs[0][1].bytes_mut()[0] = 0;
    inputs[1][1].bytes_mut()[0] = 1;
    let failure = run_all(&prepared, inputs, &Options::default()).unwrap_err();
    assert!(matches!(failure, Failure::Diverged { .. }), "{failure}");
}

/// What the compute stream runs on its own gives the same as what is issued step by step, in the
/// same memory.
#[test]
fn loops_on_one_thread_and_step_by_step() {
    let source = "HloModule m
        yes { p = f32[4] parameter(0)\n ROOT n = f32[4] negate(p) }
        no { p = f32[4] parameter(0)\n d = f32[4] add(p, p)\n ROOT c = f32[4] multiply(d, p) }
        f { p = f32[4] parameter(0)\n q = f32[4] parameter(1)\n n = f32[4] add(p, q)
          ROOT t = (f32[4], f32[4]) tuple(n, p) }
        less { s = (s32[], f32[4]) parameter(0)\n i = s32[] get-tuple-element(s), index=0
          n = s32[] constant(3)\n ROOT lt = pred[] compare(i, n), direction=LT }
        inner { s = (s32[], f32[4]) parameter(0)\n i = s32[] get-tuple-element(s), index=0
          a = f32[4] get-tuple-element(s), index=1\n one = s32[] constant(1)\n j = s32[] add(i, one)
          h = f32[] constant(0.5)\n hs = f32[4] broadcast(h), dimensions={}
          b = f32[4] multiply(a, hs)\n ROOT t = (s32[], f32[4]) tuple(j, b) }
        cond { s = (s32[], f32[4], f32[4], f32[8]) parameter(0)\n i = s32[] get-tuple-element(s), index=0
          n = s32[] constant(7)\n ROOT lt = pred[] compare(i, n), direction=LT }
        body { s = (s32[], f32[4], f32[4], f32[8]) parameter(0)\n i = s32[] get-tuple-element(s), index=0
          a = f32[4] get-tuple-element(s), index=1\n b = f32[4] get-tuple-element(s), index=2
          l = f32[8] get-tuple-element(s), index=3\n one = s32[] constant(1)\n j = s32[] add(i, one)
          z = s32[] constant(0)\n t = (s32[], f32[4]) tuple(z, a)
          w = (s32[], f32[4]) while(t), condition=less, body=inner\n x = f32[4] get-tuple-element(w), index=1
          two = s32[] constant(2)\n r = s32[] remainder(i, two)
          c = f32[4] conditional(r, x, b), branch_computations={yes, no}
          d = (f32[4], f32[4]) call(c, a), to_apply=f\n e = f32[4] get-tuple-element(d), index=0
          g = f32[4] get-tuple-element(d), index=1\n o = f32[1] slice(e), slice={[1:2]}
          m = f32[8] dynamic-update-slice(l, o, i)
          ROOT u = (s32[], f32[4], f32[4], f32[8]) tuple(j, g, e, m) }
        ENTRY e { p = f32[4] parameter(0)\n l = f32[8] parameter(1)\n z = s32[] constant(0)\n h = f32[4] negate(p)
          t = (s32[], f32[4], f32[4], f32[8]) tuple(z, h, p, l)
          w = (s32[], f32[4], f32[4], f32[8]) while(t), condition=cond, body=body
          a = f32[4] get-tuple-element(w), index=1\n b = f32[4] get-tuple-element(w), index=2
          m = f32[8] get-tuple-element(w), index=3\n ROOT r = (f32[4], f32[4], f32[8]) tuple(a, b, m) }";
    let module = text(source);
    for seed in [None, Some(3), Some(4)] {
        for (prepared, program) in [plan(&module, seed), fused(&module, seed)] {
            let inputs = made(&prepared, 5);
            let expected = Evaluator::new(&module).unwrap().run(&inputs).unwrap();
            let checks = Checks { lifetimes: Strictness::Assert, ..Checks::default() };
            for checks in [Checks::default(), checks] {
                let options = Options { steps: 2, checks, ..Options::default() };
                let outcome = run_all(&prepared, inputs.clone(), &options).unwrap();
                assert_close(&outcome.ranks[0].outputs, &expected[0], (0.0, 0.0), "loops");
                assert!(outcome.ranks[0].peak <= program.peak());
                assert!(
                    outcome.ranks[0].spans[0].len() > 7 * 3 * 3,
                    "the kernels of every iteration are timed"
                );
            }
        }
    }
}

/// Collectives that nothing overlaps run on the compute stream, also in loops, in a loop in a loop
/// and in branches; those after a loop, and those that are overlapped, meet the right ones.
#[test]
fn collectives_on_the_compute_stream() {
    let source = "HloModule m, num_partitions=2
        add { a = f32[] parameter(0)\n b = f32[] parameter(1)\n ROOT r = f32[] add(a, b) }
        yes { p = f32[4] parameter(0)
          ROOT n = f32[4] all-reduce(p), channel_id=5, replica_groups={{0,1}}, use_global_device_ids=true, to_apply=add }
        no { p = f32[4] parameter(0)\n ROOT n = f32[4] negate(p) }
        less { s = (s32[], f32[4]) parameter(0)\n i = s32[] get-tuple-element(s), index=0
          n = s32[] constant(3)\n ROOT lt = pred[] compare(i, n), direction=LT }
        inner { s = (s32[], f32[4]) parameter(0)\n i = s32[] get-tuple-element(s), index=0
          a = f32[4] get-tuple-element(s), index=1\n one = s32[] constant(1)\n j = s32[] add(i, one)
          b = f32[4] collective-permute(a), channel_id=1, source_target_pairs={{0,1},{1,0}}
          c = f32[4] subtract(b, a)\n ROOT t = (s32[], f32[4]) tuple(j, c) }
        cond { s = (s32[], f32[4]) parameter(0)\n i = s32[] get-tuple-element(s), index=0
          n = s32[] constant(5)\n ROOT lt = pred[] compare(i, n), direction=LT }
        body { s = (s32[], f32[4]) parameter(0)\n i = s32[] get-tuple-element(s), index=0
          a = f32[4] get-tuple-element(s), index=1\n one = s32[] constant(1)\n j = s32[] add(i, one)
          z = s32[] constant(0)\n t = (s32[], f32[4]) tuple(z, a)
          w = (s32[], f32[4]) while(t), condition=less, body=inner
          x = f32[4] get-tuple-element(w), index=1\n two = s32[] constant(2)\n r = s32[] remainder(i, two)
          c = f32[4] conditional(r, x, x), branch_computations={yes, no}
          h = f32[] constant(0.25)\n hs = f32[4] broadcast(h), dimensions={}\n d = f32[4] multiply(c, hs)
          ROOT u = (s32[], f32[4]) tuple(j, d) }
        ENTRY e { p = f32[4] parameter(0)\n z = s32[] constant(0)
          f = f32[4] all-reduce(p), channel_id=2, replica_groups={{0,1}}, use_global_device_ids=true, to_apply=add
          g = f32[4] subtract(f, p)\n t = (s32[], f32[4]) tuple(z, g)
          w = (s32[], f32[4]) while(t), condition=cond, body=body
          a = f32[4] get-tuple-element(w), index=1
          o = f32[4] all-reduce-start(a), channel_id=3, replica_groups={{0,1}}, use_global_device_ids=true, to_apply=add
          k = f32[4] multiply(a, a)\n q = f32[4] all-reduce-done(o)
          l = f32[4] all-reduce(k), channel_id=4, replica_groups={{0,1}}, use_global_device_ids=true, to_apply=add
          ROOT r = (f32[4], f32[4]) tuple(q, l) }";
    let module = text(source);
    for (prepared, program) in [plan(&module, None), fused(&module, Some(3))] {
        let inputs = made(&prepared, 5);
        let expected = Evaluator::new(&module).unwrap().run(&inputs).unwrap();
        // A check of single tasks makes every collective run on a stream of its own.
        let checks = Checks { lifetimes: Strictness::Assert, ..Checks::default() };
        for checks in [Checks::default(), checks] {
            let options = Options { steps: 3, checks, ..Options::default() };
            let outcome = run_all(&prepared, inputs.clone(), &options).unwrap();
            for (rank, of) in outcome.ranks.iter().enumerate() {
                assert_close(&of.outputs, &expected[rank], (0.0, 0.0), "loops");
                assert!(of.peak <= program.peak());
                let met = of.spans[0].iter().filter(|span| span.met.is_some()).count();
                assert_eq!(met, 3 + 5 * 3 + 3, "every collective is timed");
            }
        }
    }
}

/// A rank that is in a loop for longer than a kernel may take is waited for; one that cannot leave
/// it is named.
#[test]
fn a_long_loop_is_no_timeout_and_an_endless_one_is() {
    let module = text(&format!(
        "HloModule m, num_partitions=2\n{ADD}
        less {{ s = (s32[], s32[], f32[8]) parameter(0)\n i = s32[] get-tuple-element(s), index=0
          n = s32[] constant(2000000000)\n ROOT lt = pred[] compare(i, n), direction=LT }}
        body {{ s = (s32[], s32[], f32[8]) parameter(0)\n i = s32[] get-tuple-element(s), index=0
          by = s32[] get-tuple-element(s), index=1\n a = f32[8] get-tuple-element(s), index=2
          j = s32[] add(i, by)\n b = f32[8] negate(a)\n ROOT t = (s32[], s32[], f32[8]) tuple(j, by, b) }}
        ENTRY e {{ p = f32[8] parameter(0)\n from = s32[] parameter(1)\n by = s32[] parameter(2)
          t = (s32[], s32[], f32[8]) tuple(from, by, p)
          w = (s32[], s32[], f32[8]) while(t), condition=less, body=body\n a = f32[8] get-tuple-element(w), index=2
          ROOT r = f32[8] all-reduce(a), channel_id=1, replica_groups={{}}, use_global_device_ids=true, to_apply=add }}"
    ));
    let (prepared, _) = plan(&module, None);
    let run = |count: i32, by: i32| {
        let arrays = |rank: usize| {
            let from = 2_000_000_000 - if rank == 1 { count } else { 0 };
            vec![Tensor::of(&[8], &[1.0f32; 8]), Tensor::of(&[], &[from]), Tensor::of(&[], &[by])]
        };
        let options = Options { timeout: Duration::from_millis(500), ..Options::default() };
        run_all(&prepared, (0..2).map(arrays).collect(), &options)
    };
    // As many iterations as the machine needs for a loop that is longer than the timeout, and not
    // many more: where other programs take the cores away for that long, a kernel has timed out.
    let counts = (0..6).map(|times| 1_200_000 << times);
    let mut times = counts.map(|count| run(count, 1).unwrap().ranks[0].steps[0]);
    assert!(times.any(|time| time.0 > 500e6), "the loop is too short to show anything");
    let failure = run(1, 0).unwrap_err();
    assert!(
        matches!(&failure, Failure::Endless(endless) if endless.rank == 1 && endless.period == Some(1)),
        "{failure}"
    );
}

/// One rank leaves a loop early: the others wait in vain, and each says for what.
#[test]
fn a_timeout_says_who_waits_for_what() {
    let module = text(&format!(
        "HloModule m, num_partitions=3\n{ADD}
        one {{ p = f32[8] parameter(0)\n ROOT a = f32[8] all-reduce(p), channel_id=1, replica_groups={{}}, use_global_device_ids=true, to_apply=add }}
        two {{ p = f32[8] parameter(0)\n ROOT n = f32[8] negate(p) }}
        ENTRY e {{ p = f32[8] parameter(0)\n i = pred[] parameter(1)
          ROOT c = f32[8] conditional(i, p, p), true_computation=one, false_computation=two }}"
    ));
    let (prepared, _) = plan(&module, None);
    let mut inputs = made(&prepared, 1);
    for (rank, arrays) in inputs.iter_mut().enumerate() {
        arrays[1].bytes_mut()[0] = u8::from(rank != 1);
    }
    let options = Options { timeout: Duration::from_millis(300), ..Options::default() };
    // A rank that is done will never come, so a longer timeout does not have to pass.
    let failure = run_all(&prepared, inputs.clone(), &Options::default()).unwrap_err().to_string();
    assert!(failure.contains("rank 1 has not come") && !failure.contains("for 60 s"), "{failure}");
    let failure = run_all(&prepared, inputs, &options).unwrap_err().to_string();
    assert!(failure.starts_with("nothing was completed for 0.3 s."), "{failure}");
    for rank in [0, 2] {
        let waits = format!("rank {rank}: ");
        assert!(
            failure.contains(&waits) && failure.contains("is in a number 0 among {0-2}"),
            "{failure}"
        );
    }
    assert!(
        failure.contains("rank 1 has not come") && failure.contains("rank 1: has nothing to do"),
        "{failure}"
    );
}

/// What is started need not be communication: copies, slices and whole computations.
#[test]
fn computations_that_are_started() {
    let module = text(
        "HloModule m\nwork {\n a = f32[8] parameter(0)\n b = f32[8] parameter(1)\n \
         m = f32[8] multiply(a, b)\n n = f32[8] add(m, a)\n ROOT r = (f32[8], f32[8]) tuple(n, m)\n}\n\
         ENTRY e {\n x = f32[8] parameter(0)\n y = f32[8] parameter(1)\n \
         s = ((f32[8], f32[8]), (f32[8], f32[8]), u32[]) async-start(x, y), calls=work\n \
         c = (f32[8], f32[8], u32[]) copy-start(y)\n \
         h = ((f32[8]), f32[4], u32[]) slice-start(x), slice={[2:6]}\n \
         z = f32[8] subtract(x, y)\n d = (f32[8], f32[8]) async-done(s)\n \
         f = f32[8] copy-done(c)\n g = f32[4] slice-done(h)\n \
         u = f32[8] get-tuple-element(d), index=0\n v = f32[8] get-tuple-element(d), index=1\n \
         w = f32[8] multiply(u, v)\n k = f32[8] add(w, f)\n l = f32[8] add(k, z)\n \
         ROOT r = (f32[8], f32[4]) tuple(l, g)\n}\n",
    );
    for seed in [None, Some(1), Some(2), Some(3)] {
        let (prepared, program) = plan(&module, seed);
        let inputs = made(&prepared, 5);
        let outcome = run_all(&prepared, inputs.clone(), &Options::default()).unwrap();
        let (x, y) = (inputs[0][0].to_f64(), inputs[0][1].to_f64());
        let expected: Vec<f64> =
            (x.iter().zip(&y)).map(|(x, y)| (x * y + x) * (x * y) + y + x - y).collect();
        let got = &outcome.ranks[0].outputs;
        let is_close = |(a, b): (f64, &f64)| (a - b).abs() < 1e-6;
        assert!(got[0].to_f64().into_iter().zip(&expected).all(is_close), "{seed:?}");
        assert_eq!(got[1].to_f64(), x[2..6], "{seed:?}");
        assert_eq!(outcome.ranks[0].peak, program.peak());
    }
}

const PAIRS: &str = "channel_id=7, frontend_attributes={_xla_send_recv_source_target_pairs={{0,1},{1,2},{2,3},{3,0}}}";

/// What four ranks make of their own numbers.
fn of_ranks(
    module: &Module,
    options: &Options,
    seed: Option<u64>,
) -> Result<Vec<Vec<f64>>, Failure> {
    let (prepared, _) = plan(module, seed);
    let inputs = (0..4).map(|rank| vec![Tensor::of(&[2], &[rank as f32, 1.0])]).collect();
    let outcome = run_all(&prepared, inputs, options)?;
    Ok(outcome.ranks.iter().map(|rank| rank.outputs[0].to_f64()).collect())
}

#[test]
fn messages_come_to_the_next_rank() {
    let ring = text(&format!(
        "HloModule m, num_partitions=4\nENTRY e {{ x = f32[2] parameter(0)\n t = token[] after-all()
          r = (f32[2], u32[], token[]) recv(t), {PAIRS}\n s = (f32[2], u32[], token[]) send(x, t), {PAIRS}
          d = (f32[2], token[]) recv-done(r), channel_id=7\n y = f32[2] get-tuple-element(d), index=0
          g = token[] send-done(s), channel_id=7\n ROOT a = f32[2] subtract(y, x) }}"
    ));
    for seed in [None, Some(1), Some(2)] {
        let given = of_ranks(&ring, &Options::default(), seed).unwrap();
        assert_eq!(given, [[3.0, 0.0], [-1.0, 0.0], [-1.0, 0.0], [-1.0, 0.0]]);
    }
    // The first rank of a chain gets zeros.
    let chain = text(&ring.text().replace(",{3,0}", ""));
    let given = of_ranks(&chain, &Options::default(), None).unwrap();
    assert_eq!(given, [[0.0, -1.0], [-1.0, 0.0], [-1.0, 0.0], [-1.0, 0.0]]);
}

/// A message that is on its way while the next turn of a loop begins.
#[test]
fn messages_from_turn_to_turn() {
    let state = "(s32[], f32[2], (f32[2], u32[], token[]))";
    let module = text(&format!(
        "HloModule m, num_partitions=4
        goes {{ s = {state} parameter(0)\n i = s32[] get-tuple-element(s), index=0\n n = s32[] constant(3)
          ROOT g = pred[] compare(i, n), direction=LT }}
        turn {{ s = {state} parameter(0)\n i = s32[] get-tuple-element(s), index=0
          x = f32[2] get-tuple-element(s), index=1\n o = (f32[2], u32[], token[]) get-tuple-element(s), index=2
          d = (f32[2], token[]) recv-done(o), channel_id=7\n c = f32[2] get-tuple-element(d), index=0
          t = token[] get-tuple-element(d), index=1\n l = s32[] constant(1)\n j = s32[] add(i, l)
          y = f32[2] add(c, x)\n r = (f32[2], u32[], token[]) recv(t), {PAIRS}
          q = (f32[2], u32[], token[]) send(y, t), {PAIRS}\n g = token[] send-done(q), channel_id=7
          ROOT u = {state} tuple(j, y, r) }}
        ENTRY e {{ x = f32[2] parameter(0)\n t = token[] after-all()
          r = (f32[2], u32[], token[]) recv(t), {PAIRS}\n s = (f32[2], u32[], token[]) send(x, t), {PAIRS}
          g = token[] send-done(s), channel_id=7\n z = s32[] constant(0)\n b = {state} tuple(z, x, r)
          w = {state} while(b), condition=goes, body=turn\n ROOT y = f32[2] get-tuple-element(w), index=1 }}"
    ));
    let mut right: Vec<[f64; 2]> = (0..4).map(|rank| [f64::from(rank), 1.0]).collect();
    for _ in 0..3 {
        let sum = |rank: usize, at: usize| right[rank][at] + right[(rank + 3) % 4][at];
        right = (0..4).map(|rank| [sum(rank, 0), sum(rank, 1)]).collect();
    }
    for seed in [None, Some(1), Some(2)] {
        assert_eq!(of_ranks(&module, &Options::default(), seed).unwrap(), right);
    }
}

/// Every rank sends only what it has taken, or what nobody takes.
#[test]
fn messages_that_do_not_come_are_told() {
    let ring = |sent: &str, more: &str| {
        text(&format!(
            "HloModule m, num_partitions=4\nENTRY e {{ x = f32[2] parameter(0)\n t = token[] after-all()
              r = (f32[2], u32[], token[]) recv(t), {more}\n d = (f32[2], token[]) recv-done(r), channel_id=7
              y = f32[2] get-tuple-element(d), index=0\n s = (f32[2], u32[], token[]) send({sent}, t), {PAIRS}
              g = token[] send-done(s), channel_id=7\n ROOT z = f32[2] negate(y) }}"
        ))
    };
    let options = Options { timeout: Duration::from_millis(500), ..Options::default() };
    let failure = of_ranks(&ring("y", PAIRS), &options, None).unwrap_err();
    let Failure::TimedOut { stuck: Some(stuck), ranks, .. } = &failure else { panic!("{failure}") };
    assert_eq!((stuck.rank, stuck.kernel.as_str()), (0, "r"));
    assert_eq!(stuck.message.as_deref(), Some("gets from rank 3 on channel 7"));
    assert!(ranks[2].contains("waits for the other half of r"), "{failure}");
    let failure = of_ranks(&ring("x", &PAIRS.replace(",{1,2}", "")), &options, None).unwrap_err();
    let said = "rank 1: 's' sends to rank 2 on channel 7 a message that is never received";
    assert_eq!(failure.to_string(), said);
}

#[test]
fn messages_without_another_half_are_refused() {
    let refused = |body: &str| {
        let module = text(&format!("HloModule m, num_partitions=4\nENTRY e {{ {body} }}"));
        let program = ordered(&module, None);
        let refused = Prepared::new(&module, &program, &Libraries::default());
        refused.err().unwrap_or_else(|| panic!("it runs: {body}")).to_string()
    };
    let start = "x = f32[2] parameter(0)\n t = token[] after-all()\n";
    let end = "g = token[] send-done(s), channel_id=7\n ROOT y = f32[2] negate(x)";
    let send =
        |more: &str| format!("{start} s = (f32[2], u32[], token[]) send(x, t), {more}\n {end}");
    let said = refused(&send("channel_id=7"));
    assert!(
        said.contains("line 4") && said.contains("_xla_send_recv_source_target_pairs"),
        "{said}"
    );
    assert!(refused(&send("channel_id=7, is_host_transfer=true")).contains("host"));
    assert!(refused(&send(PAIRS)).contains("no recv of the module has its channel"));
    let other = send(PAIRS).replace(
        "ROOT",
        &format!("r = (f32[3], u32[], token[]) recv(t), {PAIRS}\n d = (f32[3], token[]) recv-done(r), channel_id=7\n ROOT"),
    );
    assert!(refused(&other).contains("does not carry the same type as 'r' of the same channel"));
    let far = send(&PAIRS.replace("{3,0}", "{3,4}"));
    assert!(refused(&far).contains("device 4"), "{}", refused(&far));
}

/// Rows of different numbers to different places, and what does not fit together.
#[test]
fn ragged_all_to_all() {
    let counts = "f = s32[2] parameter(1)\n c = s32[2] parameter(2)\n o = s32[2] parameter(3)\n r = s32[2] parameter(4)";
    let module = text(&format!(
        "HloModule m, num_partitions=4\nENTRY e {{ x = f32[6,2] parameter(0)\n {counts}\n z = f32[] constant(9)
          i = f32[8,2] broadcast(z), dimensions={{}}
          ROOT a = f32[8,2] ragged-all-to-all(x, i, f, c, o, r), channel_id=1, replica_groups={{{{0,2}},{{3,1}}}} }}"
    ));
    let rank = |own: f32, numbers: [[i32; 2]; 4]| {
        let rows: Vec<f32> = (0..12).map(|at| own + (at / 2) as f32).collect();
        let mut arrays = vec![Tensor::of(&[6, 2], &rows)];
        arrays.extend(numbers.iter().map(|numbers| Tensor::of(&[2], numbers)));
        arrays
    };
    // Group 0, 2: rank 0 sends two rows to itself and one to rank 2, which sends three to it.
    let inputs = || {
        vec![
            rank(0.0, [[0, 5], [2, 1], [0, 7], [2, 3]]),
            rank(10.0, [[0, 0], [0, 0], [0, 0], [1, 0]]),
            rank(20.0, [[1, 0], [3, 0], [4, 0], [1, 0]]),
            rank(30.0, [[4, 2], [0, 1], [0, 3], [0, 0]]),
        ]
    };
    let expected = Evaluator::new(&module).unwrap().run(&inputs()).unwrap();
    let column = |arrays: &[Tensor]| -> Vec<f64> {
        arrays[0].to_f64().chunks_exact(2).map(|row| row[0]).collect()
    };
    assert_eq!(column(&expected[0]), [0.0, 1.0, 9.0, 9.0, 21.0, 22.0, 23.0, 9.0]);
    assert_eq!(column(&expected[2]), [9.0, 9.0, 9.0, 9.0, 9.0, 9.0, 9.0, 5.0]);
    assert_eq!(column(&expected[1]), [9.0, 9.0, 9.0, 32.0, 9.0, 9.0, 9.0, 9.0]);
    let (prepared, _) = plan(&module, None);
    let outcome = run_all(&prepared, inputs(), &Options::default()).unwrap();
    for (given, expected) in outcome.ranks.iter().zip(&expected) {
        assert_eq!(column(&given.outputs), column(expected));
    }
    let mut wrong = inputs();
    wrong[2][2] = Tensor::of(&[2], &[4, 0]);
    let failure = run_all(&prepared, wrong, &Options::default()).unwrap_err();
    assert_eq!(failure.to_string(), "rank 2: 'a' sends 4 rows where 3 are expected, on rank 0");
}

/// A loop, a branch, a callee and a message that take or give arrays which were bitcast to another
/// layout, as XLA writes them where a transposition is free.
const PASSED: &str = "HloModule m, num_partitions=2

cond {
  s = (s32[], f32[3,2]{1,0}) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  n = s32[] constant(3)
  ROOT go = pred[] compare(i, n), direction=LT
}

body {
  s = (s32[], f32[3,2]{1,0}) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  one = s32[] constant(1)
  next = s32[] add(i, one)
  x = f32[3,2]{1,0} get-tuple-element(s), index=1
  d = f32[3,2]{0,1} negate(x)
  m = f32[3,2]{0,1} multiply(d, d)
  b = f32[2,3]{1,0} bitcast(m)
  c = f32[3,2]{1,0} bitcast(b)
  ROOT t = (s32[], f32[3,2]{1,0}) tuple(next, c)
}

square {
  p = f32[2,3]{1,0} parameter(0)
  q = f32[2,3]{1,0} multiply(p, p)
  ROOT r = f32[3,2]{0,1} bitcast(q)
}

same {
  ROOT p = f32[3,2]{0,1} parameter(0)
}

ENTRY e {
  a = f32[2,3]{1,0} parameter(0)
  w = pred[] parameter(1)
  at = f32[3,2]{0,1} bitcast(a)
  turned = f32[3,2]{1,0} copy(at)
  zero = s32[] constant(0)
  bt = f32[3,2]{1,0} bitcast(a)
  ct = f32[3,2]{0,1} bitcast(bt)
  dt = f32[3,2]{1,0} copy(ct)
  s = (s32[], f32[3,2]{1,0}) tuple(zero, bt)
  l = (s32[], f32[3,2]{1,0}) while(s), condition=cond, body=body
  y = f32[3,2]{1,0} get-tuple-element(l), index=1
  k = f32[3,2]{0,1} call(a), to_apply=square
  z = f32[3,2]{0,1} conditional(w, a, at), true_computation=square, false_computation=same
  k2 = f32[2,3]{1,0} bitcast(k)
  moved = f32[2,3]{1,0} collective-permute(k2), channel_id=1, source_target_pairs={{0,1},{1,0}}
  ROOT out = (f32[3,2]{1,0}, f32[3,2]{0,1}, f32[2,3]{1,0}, f32[3,2]{1,0}) tuple(y, z, moved, dt)
}
";

#[test]
fn bitcasts_to_another_layout_are_passed_on_as_copies() {
    let module = text(PASSED);
    let error = match Prepared::new(&module, &ordered(&module, None), &Libraries::default()) {
        Ok(_) => panic!("a bitcast was passed on as it is"),
        Err(error) => error.to_string(),
    };
    assert!(error.starts_with("line ") && error.contains("must be a copy there"), "{error}");
    let settled = without_passed_bitcasts(&module).unwrap().unwrap();
    assert!(without_passed_bitcasts(&settled).unwrap().is_none());
    for is_true in [false, true] {
        let inputs = |rank: usize| {
            let x: Vec<f32> = (0..6).map(|x| (x * (rank + 1)) as f32 / 4.0 - 0.5).collect();
            vec![Tensor::of(&[2, 3], &x), Tensor::typed(DType::Pred, &[], &[u8::from(is_true)])]
        };
        let inputs: Vec<Vec<Tensor>> = (0..2).map(inputs).collect();
        let expected = Evaluator::new(&module).unwrap().run(&inputs).unwrap();
        for seed in [None, Some(1), Some(2)] {
            for (prepared, _) in [plan(&settled, seed), fused(&settled, seed)] {
                let given = run_all(&prepared, inputs.clone(), &Options::default()).unwrap();
                for (ours, expected) in given.ranks.iter().zip(&expected) {
                    assert_close(&ours.outputs, expected, (0.0, 0.0), "bitcasts");
                }
            }
        }
    }
}
