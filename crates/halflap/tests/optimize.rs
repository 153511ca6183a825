//! The simulator against independent figures, the bound against every order, and the optimizer: never
//! slower, never over the limit, the same everywhere, and as good as it must be.

mod common;
#[path = "common/random.rs"]
#[allow(dead_code)]
mod random;

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicUsize, Ordering};

use common::{cases, corpus_json, program};
use halflap::cost::Times;
use halflap::explain::{Holder, Limits, explain};
use halflap::graph::{Assignment, Edges, Graph, OpKind, Streams};
use halflap::ids::{Id, OpId};
use halflap::memory::Timeline;
use halflap::optimize::{Effort, OptimizeError, Optimized, Task, optimize};
use halflap::order::Order;
use halflap::report::exposed_by_collective;
use halflap::simulate::{Machine, lower_bound, simulate};
use halflap::trust::Trust;
use halflap::units::{Bytes, Nanos};
use halflap::verify::{Demands, OrderEdges, verify};
use random::Random;

fn machine(graph: &Graph) -> Machine {
    Machine::new(graph, Times::given(graph).unwrap())
}

fn limits(graph: &Graph, machine: &Machine) -> Limits {
    Limits { memory: peak(graph), bound: lower_bound(graph, machine) }
}

fn peak(graph: &Graph) -> Bytes {
    Timeline::of(graph, &Order::of_input(graph)).peak
}

fn find<'a>(
    graph: &'a Graph,
    machine: &'a Machine,
    limit: Bytes,
    change: impl Fn(&mut Task<'a>),
) -> Result<Optimized, OptimizeError> {
    let mut task = Task {
        graph,
        machine,
        memory_limit: limit,
        edges: Edges::Real,
        known: &[],
        effort: Effort::Quick,
        threads: 2,
        progress: &|_| ControlFlow::Continue(()),
    };
    change(&mut task);
    optimize(&task)
}

/// `tests/corpus/judged.json.gz` was made by an independent program: the step time of every order of
/// the corpus, and the lower bound of every graph.
#[test]
fn simulator_and_bound_agree_with_an_independent_judge() {
    let judged = corpus_json("judged.json.gz");
    let mut compared = 0;
    for case in cases() {
        let (graph, expected) = (&case.graph, &judged[&case.name]);
        let machine = machine(graph);
        let step = |order: &[OpId]| simulate(graph, order, &machine).step_time.0;
        let input: Vec<OpId> = graph.ops().collect();
        assert_eq!(Some(step(&input)), expected["input"].as_f64(), "{}", case.name);
        let bound = lower_bound(graph, &machine).0;
        assert!((bound - expected["bound"].as_f64().unwrap()).abs() <= 1.0, "{}: {bound}", case.name);
        for (result, step_time) in case.results.iter().zip(expected["results"].as_array().unwrap()) {
            let Some(names) = result["order"].as_array() else { continue };
            let order: Vec<OpId> = names.iter().map(|name| graph.find(name.as_str().unwrap()).unwrap()).collect();
            assert_eq!(Some(step(&order)), step_time.as_f64(), "{} {}", case.name, result["passes"]);
            assert!(step(&order) >= bound - 1.0);
            compared += 1;
        }
    }
    assert!(compared > 2_000, "only {compared} orders compared");
}

#[test]
fn more_streams_never_take_longer_and_bounds_hold_for_each_assignment() {
    for seed in 0..200 {
        let graph = random::graph(&mut Random(seed), 40);
        let order: Vec<OpId> = graph.ops().collect();
        let mut machine = machine(&graph);
        let mut step = |assignment| {
            machine.streams = Streams::assign(&graph, assignment);
            let step = simulate(&graph, &order, &machine).step_time;
            assert!(step.0 >= lower_bound(&graph, &machine).0 - 1e-6, "seed {seed}");
            step
        };
        let (one, shared, each) = (step(Assignment::One), step(Assignment::SharedRanks), step(Assignment::EachGroup));
        assert!(one >= shared && shared >= each, "seed {seed}");
    }
}

#[test]
fn contention_launch_and_skew_only_add_time() {
    for seed in 0..200 {
        let graph = random::graph(&mut Random(seed + 500), 40);
        let order: Vec<OpId> = graph.ops().collect();
        let plain = machine(&graph);
        let step = |change: &dyn Fn(&mut Machine)| {
            let mut changed = plain.clone();
            change(&mut changed);
            simulate(&graph, &order, &changed).step_time
        };
        let (base, slow) = (step(&|_| ()), step(&|machine| machine.slowdown = 1.4));
        assert!(slow >= base && slow.0 <= base.0 * 1.4 + 1e-6, "seed {seed}");
        assert!(step(&|machine| machine.launch = Nanos(4e3)) >= base, "seed {seed}");
        let issued = graph.ops().filter(|&op| graph.kind(op) != OpKind::MultiOutput).count();
        assert!(step(&|machine| machine.launch = Nanos(4e3)).0 >= 4e3 * issued as f64, "seed {seed}");
        let trust = Trust::of(&graph, &plain, &order, &order);
        assert_eq!((trust.range(), trust.lost()), ((0.0, 0.0), 0), "an order is as good as itself");
    }
}

/// Every order of a small program, by brute force.
fn best_by_brute_force(graph: &Graph, machine: &Machine, limit: Bytes) -> Option<Nanos> {
    fn go(graph: &Graph, machine: &Machine, limit: Bytes, (order, best): (&mut Vec<OpId>, &mut Option<Nanos>)) {
        if order.len() == graph.len() {
            let placed = Order::from_ops(graph.len(), order.clone()).unwrap();
            if Timeline::of(graph, &placed).peak <= limit {
                let step = simulate(graph, order, machine).step_time;
                *best = Some(best.map_or(step, |best| if step < best { step } else { best }));
            }
            return;
        }
        for op in graph.ops() {
            if !order.contains(&op) && graph.preds(op, Edges::Real).iter().all(|pred| order.contains(pred)) {
                order.push(op);
                go(graph, machine, limit, (order, best));
                order.pop();
            }
        }
    }
    let mut best = None;
    go(graph, machine, limit, (&mut Vec::new(), &mut best));
    best
}

#[test]
fn thorough_finds_what_brute_force_finds() {
    let mut improved = 0;
    for seed in 0..400 {
        let random = &mut Random(seed + 9_000);
        let graph = random::graph(random, if seed % 8 == 0 { 9 } else { 7 });
        let machine = machine(&graph);
        let input = peak(&graph);
        let limit = random.pick(&[input, input, Bytes(input.0 + input.0 / 4), Bytes(input.0 * 9 / 10)]);
        let expected = best_by_brute_force(&graph, &machine, limit);
        let found = find(&graph, &machine, limit, |task| task.effort = Effort::Thorough);
        match (&found, expected) {
            (Ok(found), Some(best)) => {
                assert!((found.step_time - best).0.abs() < 1e-6, "seed {seed}: {found:?}, best {best}");
                assert!(found.bound.0 <= best.0 + 1e-6, "seed {seed}: bound {}, best {best}", found.bound);
            }
            (Err(_), None) => {}
            other => panic!("seed {seed}: {other:?}"),
        }
        let order: Vec<OpId> = graph.ops().collect();
        improved += usize::from(expected.is_some_and(|best| best < simulate(&graph, &order, &machine).step_time));
    }
    assert!(improved > 20, "only {improved} programs could be improved");
}

#[test]
fn results_are_proved_never_slower_and_the_same_on_any_number_of_threads() {
    let mut faster = 0;
    for seed in 0..60 {
        let random = &mut Random(seed + 20_000);
        let graph = random::graph(random, 80);
        let machine = machine(&graph);
        let limit = peak(&graph);
        let kept = random.chance(50);
        let run = |threads| {
            let edges = if kept { Edges::All } else { Edges::Real };
            find(&graph, &machine, limit, |task| (task.threads, task.edges) = (threads, edges)).unwrap()
        };
        let (one, two) = (run(1), run(2));
        assert_eq!(one.order, two.order, "seed {seed}");
        let order_edges = if kept { OrderEdges::Kept } else { OrderEdges::Free };
        let proof = verify(&graph, one.order.as_slice(), &Demands { order_edges, memory_limit: Some(limit) }).unwrap();
        assert_eq!(proof.peak, one.peak);
        let input: Vec<OpId> = graph.ops().collect();
        let before = simulate(&graph, &input, &machine).step_time;
        assert_eq!(one.step_time, simulate(&graph, one.order.as_slice(), &machine).step_time);
        assert!(one.step_time <= before, "seed {seed}");
        assert!(one.step_time.0 >= lower_bound(&graph, &machine).0 - 1e-6, "seed {seed}");
        faster += usize::from(one.step_time < before);
    }
    assert!(faster > 20, "only {faster} were improved");
}

/// What the default effort must reach, as a multiple of the bound, at the input order's own peak. The
/// search is the same everywhere, so that these are facts and not measurements.
#[test]
fn the_default_effort_comes_close_to_the_bound() {
    let targets = [("ddp_mlp_4", 1.0), ("ddp_mlp_24", 1.0), ("moe_ep_6", 1.003), ("fsdp_llama_2", 1.080)];
    for (name, target) in targets {
        let graph = program(name);
        let machine = machine(&graph);
        let found = find(&graph, &machine, peak(&graph), |task| task.effort = Effort::Default).unwrap();
        let ratio = found.step_time.0 / lower_bound(&graph, &machine).0;
        assert!(ratio <= target + 1e-6, "{name}: {ratio}");
    }
}

/// What an explanation says could be saved is saved, by the simulator's account.
#[test]
fn advice_is_true() {
    let mut advised = 0;
    for seed in 0..150 {
        let graph = random::graph(&mut Random(seed + 40_000), 40);
        let (machine, order, limit) = (machine(&graph), Order::of_input(&graph), peak(&graph));
        for held in &explain(&graph, &machine, &order, limits(&graph, &machine)).held {
            let (op, promised, earlier) = match held.by {
                Holder::Misplaced(saved) => (held.collective, saved, true),
                Holder::WaitMisplaced(wait, saved) => (wait, saved, false),
                _ => continue,
            };
            advised += 1;
            let from = order.pos(op).index();
            let places = if earlier { 0..from } else { from + 1..graph.len() };
            let saves = |to: usize| {
                let mut ops = order.as_slice().to_vec();
                if earlier {
                    ops[to..=from].rotate_right(1)
                } else {
                    ops[from..=to].rotate_left(1)
                }
                let valid = verify(&graph, &ops, &Demands { memory_limit: Some(limit), ..Demands::default() }).is_ok();
                let before = simulate(&graph, order.as_slice(), &machine).step_time;
                valid && (before - simulate(&graph, &ops, &machine).step_time - promised).0.abs() < 1e-3
            };
            assert!(places.into_iter().any(saves), "seed {seed}: {held:?}");
        }
    }
    assert!(advised > 20, "only {advised} pieces of advice");
}

/// More work, and what is known, never make a result worse.
#[test]
fn more_effort_and_known_orders_only_help() {
    let graph = program("fsdp_llama_2");
    let machine = machine(&graph);
    let tight = Bytes(peak(&graph).0 * 85 / 100);
    let quick = find(&graph, &machine, tight, |_| ()).unwrap();
    let default = find(&graph, &machine, tight, |task| task.effort = Effort::Default).unwrap();
    assert!(default.step_time <= quick.step_time);
    let known = [default.order];
    let loose = find(&graph, &machine, peak(&graph), |task| task.known = &known).unwrap();
    assert!(loose.step_time <= default.step_time);
}

/// Whoever asked may change their mind; what was found until then is of no use to them.
#[test]
fn a_search_stops_when_told() {
    let graph = program("fsdp_llama_2");
    let machine = machine(&graph);
    let calls = AtomicUsize::new(0);
    let progress = |_| {
        calls.fetch_add(1, Ordering::Relaxed);
        ControlFlow::Break(())
    };
    let limit = Bytes(peak(&graph).0 * 85 / 100);
    let stopped = find(&graph, &machine, limit, |task| (task.threads, task.progress) = (1, &progress));
    assert!(matches!(stopped, Err(OptimizeError::Stopped)));
    // Each chain of the first stage asks once, and no other stage starts.
    assert_eq!(calls.into_inner(), 2);
}

#[test]
fn a_limit_below_the_input_orders_peak_comes_first() {
    let graph = program("fsdp_llama_2");
    let machine = machine(&graph);
    let limit = Bytes(peak(&graph).0 * 9 / 10);
    let found = find(&graph, &machine, limit, |_| ()).unwrap();
    assert!(found.peak <= limit);
    match find(&graph, &machine, Bytes(1 << 20), |_| ()) {
        Err(OptimizeError::NoOrderWithin { smallest, .. }) => {
            assert!(smallest <= peak(&graph) && smallest > Bytes(1 << 20))
        }
        other => panic!("{other:?}"),
    }
}

/// Every moment at which compute stands still has one cause, and no collective is exposed for longer than
/// it runs; with a slow host and contention, too.
#[test]
fn time_that_compute_stands_still_is_charged_once() {
    for seed in 0..300 {
        let mut random = Random(seed + 90_000);
        let graph = random::graph(&mut random, 60);
        let mut machine = machine(&graph);
        (machine.launch, machine.slowdown) = (Nanos(seed as f64 % 3.0 * 700.0), 1.0 + seed as f64 % 2.0 * 0.3);
        let simulation = simulate(&graph, Order::of_input(&graph).as_slice(), &machine);
        let mut stalls: Vec<(f64, f64)> =
            simulation.exposures.iter().map(|e| (e.start.0, (e.start + e.time).0)).collect();
        stalls.sort_by(|a, b| a.0.total_cmp(&b.0));
        assert!(stalls.windows(2).all(|pair| pair[0].1 <= pair[1].0 + 1e-6), "seed {seed}: {stalls:?}");
        let total: f64 = stalls.iter().map(|(start, end)| end - start).sum();
        assert!((total - simulation.compute_idle.0).abs() < 1e-3, "seed {seed}");
        let exposed = exposed_by_collective(&simulation);
        for op in graph.ops() {
            let time = simulation.end[op] - simulation.start[op];
            assert!(exposed[op].0 <= time.0 + 1e-6, "seed {seed}: {op:?} {} of {time}", exposed[op]);
        }
    }
}

#[test]
fn what_holds_a_collective_is_named() {
    let graph = program("fsdp_llama_2");
    let machine = machine(&graph);
    let explanation = explain(&graph, &machine, &Order::of_input(&graph), limits(&graph, &machine));
    let total: Nanos = explanation.held.iter().map(|held| held.exposed).sum();
    assert!((total - explanation.simulation.compute_idle).0.abs() < 1.0, "every idle moment has a cause");
    let holders: Vec<Holder> = explanation.held.iter().map(|held| held.by).collect();
    assert!(holders.iter().any(|by| matches!(by, Holder::Misplaced(_))), "the input order is not the best");
    for held in &explanation.held {
        assert!(held.exposed <= graph.runtime(held.collective), "nobody waits longer for it than it takes");
        if let Holder::Stream(other) = held.by {
            assert_eq!(explanation.simulation.end[other], explanation.simulation.start[held.collective]);
        }
        if let Holder::Operation(op) = held.by {
            assert!(graph.preds(held.collective, Edges::Real).contains(&op));
        }
    }
    let at = explanation.peak.at.unwrap();
    assert_eq!(Timeline::of(&graph, &Order::of_input(&graph)).levels[at].post_alloc, explanation.peak.bytes);
    assert!(at.index() < graph.len() && explanation.peak.owners.len() == 5);
}
