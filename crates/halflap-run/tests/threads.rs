//! Plans on threads: the numbers of the plain evaluation and of JAX, in any order, and the memory
//! that was planned.

#[path = "../../halflap-hlo/tests/common/loops.rs"]
mod loops;
mod ranks;

use std::time::Duration;

use halflap_hlo::plan::{PlanStep, Program};
use halflap_hlo::{Module, without_calls};
use halflap_run::check::{Checks, Strictness};
use halflap_run::comm::EmulatedLink;
use halflap_run::evaluate::Evaluator;
use halflap_run::exec::Options;
use halflap_run::tensor::{Npz, Tensor};
use loops::random_loops;
use ranks::modules::{self, Dice};
use ranks::*;

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
            for (launch_blocking, recorded_turns) in [(false, 16), (false, 0), (true, 0)] {
                let checks = Checks { launch_blocking, ..Checks::default() };
                let options = Options { steps: 3, recorded_turns, checks, ..Options::default() };
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
                let what = format!("seed {seed}: {source}");
                for recorded_turns in [16, 0] {
                    let options = Options { steps: 2, recorded_turns, ..Options::default() };
                    let outcome = run_all(&prepared, inputs.clone(), &options).unwrap();
                    assert_close(&outcome.ranks[0].outputs, &expected[0], (1e-6, 1e-6), &what);
                    assert!(outcome.ranks[0].peak <= program.peak(), "{what}");
                }
            }
        }
    }
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
            let options = Options { steps: 2, recorded_turns: 0, ..Options::default() };
            let outcome = run_all(&prepared, inputs.clone(), &options).unwrap();
            assert_close(&outcome.ranks[0].outputs, &expected[0], (0.0, 0.0), "bound loops");
            let spans = &outcome.ranks[0].spans[0];
            assert!(spans.len() < 63, "small kernels are parts of their loop: {}", spans.len());
        }
    }
}

/// A kernel of which nothing changes runs once in each run of its loop: in an inner loop, once in
/// each iteration of the outer one, which changes what it reads.
#[test]
fn what_does_not_change_runs_once() {
    let module = text(
        "HloModule m
        add { a = f32[] parameter(0)\n b = f32[] parameter(1)\n ROOT c = f32[] add(a, b) }
        before { a = f32[] parameter(0)\n b = f32[] parameter(1)
          ROOT c = pred[] compare(a, b), direction=LT }
        less { s = (s32[], f32[64], f32[]) parameter(0)\n i = s32[] get-tuple-element(s), index=0
          n = s32[] constant(5)\n ROOT lt = pred[] compare(i, n), direction=LT }
        inner { s = (s32[], f32[64], f32[]) parameter(0)\n i = s32[] get-tuple-element(s), index=0
          x = f32[64] get-tuple-element(s), index=1\n y = f32[] get-tuple-element(s), index=2
          one = s32[] constant(1)\n j = s32[] add(i, one)\n z = f32[] constant(0)
          still = f32[64] sort(x), dimensions={0}, to_apply=before
          sum = f32[] reduce(still, z), dimensions={0}, to_apply=add\n w = f32[] multiply(y, sum)
          v = f32[] sine(w)\n ROOT t = (s32[], f32[64], f32[]) tuple(j, x, v) }
        outer { s = (s32[], f32[64], f32[]) parameter(0)\n i = s32[] get-tuple-element(s), index=0
          x = f32[64] get-tuple-element(s), index=1\n y = f32[] get-tuple-element(s), index=2
          one = s32[] constant(1)\n j = s32[] add(i, one)\n z = s32[] constant(0)
          n = f32[64] negate(x)\n t = (s32[], f32[64], f32[]) tuple(z, n, y)
          l = (s32[], f32[64], f32[]) while(t), condition=less, body=inner
          q = f32[64] cosine(n)\n v = f32[] get-tuple-element(l), index=2
          ROOT u = (s32[], f32[64], f32[]) tuple(j, q, v) }
        ENTRY e { p = f32[64] parameter(0)\n z = s32[] constant(0)\n y = f32[] constant(0.5)
          t = (s32[], f32[64], f32[]) tuple(z, p, y)
          w = (s32[], f32[64], f32[]) while(t), condition=less, body=outer
          ROOT r = f32[] get-tuple-element(w), index=2 }",
    );
    for (prepared, _) in [plan(&module, None), fused(&module, None)] {
        let inputs = made(&prepared, 5);
        let expected = Evaluator::new(&module).unwrap().run(&inputs).unwrap();
        let options = Options { recorded_turns: 0, ..Options::default() };
        let outcome = run_all(&prepared, inputs, &options).unwrap();
        assert_close(&outcome.ranks[0].outputs, &expected[0], (1e-6, 1e-6), "invariant");
        let spans = outcome.ranks[0].spans[0].iter();
        let sums =
            spans.filter(|span| prepared.labels[span.label as usize].name == "still").count();
        assert_eq!(sums, 5, "once in each iteration of the outer loop");
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
            let options = Options { steps: 3, recorded_turns: 2, checks, ..Options::default() };
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

/// Collectives, messages and copies that a loop overlaps are started by the compute stream itself,
/// also in a loop in a loop and in branches; those after the loop meet the right ones.
#[test]
fn overlapped_collectives_in_loops() {
    let source = "HloModule m, num_partitions=2
        add { a = f32[] parameter(0)\n b = f32[] parameter(1)\n ROOT r = f32[] add(a, b) }
        yes { p = f32[96,96] parameter(0)
          s = f32[96,96] all-reduce-start(p), channel_id=5, replica_groups={{0,1}}, use_global_device_ids=true, to_apply=add
          k = f32[96,96] negate(p)\n d = f32[96,96] all-reduce-done(s)\n ROOT r = f32[96,96] add(d, k) }
        no { p = f32[96,96] parameter(0)\n ROOT n = f32[96,96] negate(p) }
        less { s = (s32[], f32[96,96]) parameter(0)\n i = s32[] get-tuple-element(s), index=0
          n = s32[] constant(3)\n ROOT lt = pred[] compare(i, n), direction=LT }
        inner { s = (s32[], f32[96,96]) parameter(0)\n i = s32[] get-tuple-element(s), index=0
          a = f32[96,96] get-tuple-element(s), index=1\n one = s32[] constant(1)\n j = s32[] add(i, one)
          o = (f32[96,96], f32[96,96]) collective-permute-start(a), channel_id=1, source_target_pairs={{0,1},{1,0}}
          k = f32[96,96] multiply(a, a)\n b = f32[96,96] collective-permute-done(o)
          c = f32[96,96] subtract(b, k)\n ROOT t = (s32[], f32[96,96]) tuple(j, c) }
        cond { s = (s32[], f32[96,96]) parameter(0)\n i = s32[] get-tuple-element(s), index=0
          n = s32[] constant(5)\n ROOT lt = pred[] compare(i, n), direction=LT }
        body { s = (s32[], f32[96,96]) parameter(0)\n i = s32[] get-tuple-element(s), index=0
          a = f32[96,96] get-tuple-element(s), index=1\n one = s32[] constant(1)\n j = s32[] add(i, one)
          e = token[] after-all()
          v = (f32[96,96], u32[], token[]) recv(e), channel_id=6, frontend_attributes={_xla_send_recv_source_target_pairs={{0,1},{1,0}}}
          u = (f32[96,96], u32[], token[]) send(a, e), channel_id=6, frontend_attributes={_xla_send_recv_source_target_pairs={{0,1},{1,0}}}
          z = s32[] constant(0)\n h = f32[] constant(0.25)\n hs = f32[96,96] broadcast(h), dimensions={}
          t = (s32[], f32[96,96]) tuple(z, a)\n w = (s32[], f32[96,96]) while(t), condition=less, body=inner
          x = f32[96,96] get-tuple-element(w), index=1\n y = f32[96,96] multiply(x, hs)
          g = (f32[96,96], f32[96,96], u32[]) copy-start(y)
          vd = (f32[96,96], token[]) recv-done(v), channel_id=6\n ud = token[] send-done(u), channel_id=6
          q = f32[96,96] get-tuple-element(vd), index=0\n l = f32[96,96] tanh(q)
          f = f32[96,96] copy-done(g)\n two = s32[] constant(2)\n r = s32[] remainder(i, two)
          m = f32[96,96] add(f, l)\n c = f32[96,96] conditional(r, m, m), branch_computations={yes, no}
          th = f32[96,96] tanh(c)\n ROOT ut = (s32[], f32[96,96]) tuple(j, th) }
        ENTRY e { p = f32[96,96] parameter(0)\n z = s32[] constant(0)
          f = f32[96,96] all-reduce(p), channel_id=2, replica_groups={{0,1}}, use_global_device_ids=true, to_apply=add
          g = f32[96,96] subtract(f, p)\n t = (s32[], f32[96,96]) tuple(z, g)
          w = (s32[], f32[96,96]) while(t), condition=cond, body=body
          a = f32[96,96] get-tuple-element(w), index=1
          o = f32[96,96] all-reduce-start(a), channel_id=3, replica_groups={{0,1}}, use_global_device_ids=true, to_apply=add
          k = f32[96,96] multiply(a, a)\n q = f32[96,96] all-reduce-done(o)
          l = f32[96,96] all-reduce(k), channel_id=4, replica_groups={{0,1}}, use_global_device_ids=true, to_apply=add
          ROOT r = (f32[96,96], f32[96,96]) tuple(q, l) }";
    // Plain evaluation has no messages: a permute does the same.
    let is_message = |line: &&str| {
        !["v = ", "u = ", "vd = ", "ud = ", "e = "]
            .iter()
            .any(|start| line.trim_start().starts_with(start))
    };
    let permuted = source.lines().filter(is_message).collect::<Vec<_>>().join("\n").replace(
        "q = f32[96,96] get-tuple-element(vd), index=0",
        "q = f32[96,96] collective-permute(a), channel_id=6, source_target_pairs={{0,1},{1,0}}",
    );
    let (module, evaluated) = (text(source), text(&permuted));
    for (prepared, program) in [plan(&module, None), fused(&module, Some(3))] {
        let inputs = made(&prepared, 5);
        let expected = Evaluator::new(&evaluated).unwrap().run(&inputs).unwrap();
        // A check of single tasks has every iteration issued.
        let checks = Checks { lifetimes: Strictness::Assert, ..Checks::default() };
        for checks in [Checks::default(), checks] {
            let options = Options { steps: 3, checks, ..Options::default() };
            let outcome = run_all(&prepared, inputs.clone(), &options).unwrap();
            for (rank, of) in outcome.ranks.iter().enumerate() {
                assert_close(&of.outputs, &expected[rank], (0.0, 0.0), "loops");
                assert!(of.peak <= program.peak());
                let met = of.spans[0].iter().filter(|span| span.met.is_some()).count();
                // Of messages, each of a pair.
                assert_eq!(met, 3 + 5 * (3 + 2) + 3, "every collective is timed");
            }
        }
    }
}
