//! Runs on threads in which something goes wrong: it is told, and ends all ranks.

mod ranks;

use std::time::Duration;

use halflap_run::exec::{Failure, Options, run};
use halflap_run::tensor::Tensor;
use ranks::*;

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
