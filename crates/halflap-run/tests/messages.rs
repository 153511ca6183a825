//! What ranks on threads send each other besides collectives, and what is started or passed on
//! beside that: messages, rows of different numbers, computations, arrays in another layout.

mod ranks;

use std::time::Duration;

use halflap_hlo::{Module, without_passed_bitcasts};
use halflap_run::evaluate::Evaluator;
use halflap_run::exec::{Failure, Options, Prepared};
use halflap_run::kernel::Libraries;
use halflap_run::tensor::{DType, Tensor};
use ranks::*;

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
