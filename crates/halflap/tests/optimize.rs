//! The simulator against independent figures, the bound against every order, and the optimizer:
//! never slower, never over the limit, the same everywhere, and as good as it must be.

mod common;
#[path = "common/random.rs"]
#[allow(dead_code)]
mod random;

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicUsize, Ordering};

use common::{cases, corpus_json, program};
use halflap::cost::Times;
use halflap::evaluate::{Evaluation, Setup};
use halflap::explain::{Explanation, Held, Holder, Limits, explain};
use halflap::graph::{Assignment, Chain, Edges, Graph, OpKind, Streams};
use halflap::ids::{Id, OpId};
use halflap::import::read_graph;
use halflap::memory::Timeline;
use halflap::optimize::{Effort, OptimizeError, Optimized, Task, optimize};
use halflap::order::Order;
use halflap::robustness::Robustness;
use halflap::simulate::{Machine, lower_bound, simulate};
use halflap::units::{Bytes, Nanos};
use halflap::verify::{Demands, OrderEdges, verify};
use halflap_report::{describe_holder, exposed_by_collective};
use random::Random;

fn machine(graph: &Graph) -> Machine {
    Machine::new(graph, Times::given(graph).unwrap())
}

fn limits(graph: &Graph, machine: &Machine, edges: Edges) -> Limits {
    Limits { memory: peak(graph), bound: lower_bound(graph, machine, edges, peak(graph)) }
}

/// What no order can beat, of those that keep `edges`, with as much memory as they like.
fn bound(graph: &Graph, machine: &Machine, edges: Edges) -> f64 {
    lower_bound(graph, machine, edges, Bytes(i64::MAX)).time.0
}

/// A verifier's words for the edges that an order keeps.
fn demands(edges: Edges, limit: Bytes) -> Demands<'static> {
    let order_edges = if edges == Edges::All { OrderEdges::Kept } else { OrderEdges::Free };
    Demands { order_edges, memory_limit: Some(limit) }
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

/// `tests/corpus/judged.json.gz` was made by an independent program: the step time of every order
/// of the corpus, and the lower bound of every graph.
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
        let bound = bound(graph, &machine, Edges::Real);
        // The judge looks at one stream at a time.
        assert!(bound >= expected["bound"].as_f64().unwrap() - 1.0, "{}: {bound}", case.name);
        for (result, step_time) in case.results.iter().zip(expected["results"].as_array().unwrap())
        {
            let Some(names) = result["order"].as_array() else { continue };
            let order: Vec<OpId> =
                names.iter().map(|name| graph.find(name.as_str().unwrap()).unwrap()).collect();
            assert_eq!(
                Some(step(&order)),
                step_time.as_f64(),
                "{} {}",
                case.name,
                result["passes"]
            );
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
            assert!(step.0 >= bound(&graph, &machine, Edges::All) - 1e-6, "seed {seed}");
            step
        };
        let (one, shared, each) =
            (step(Assignment::One), step(Assignment::SharedRanks), step(Assignment::EachGroup));
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
        assert!(
            step(&|machine| machine.launch = Nanos(4e3)).0 >= 4e3 * issued as f64,
            "seed {seed}"
        );
        let robustness = Robustness::of(&graph, &plain, &order, &order);
        assert_eq!(
            (robustness.range(), robustness.lost()),
            ((0.0, 0.0), 0),
            "an order is as good as itself"
        );
    }
}

/// A collective of 10 ns, compute of `time` ns after its launch, and its wait.
fn beside(time: f64, slowdown: f64, comm_slowdown: f64) -> (f64, f64) {
    let text = format!(
        r#"{{"format": "halflap.graph/1", "groups": {{"g": {{"ranks": [0, 1]}}}},
        "nodes": [
            {{"name": "gather", "kind": "collective", "runtime_ns": 10, "outputs": ["a"], "deps": [],
              "collective": {{"op": "all_gather", "group": "g", "group_size": 2, "bytes": 8, "async": true}}}},
            {{"name": "compute", "kind": "compute", "runtime_ns": {time}, "outputs": ["b"], "deps": []}},
            {{"name": "wait", "kind": "wait", "runtime_ns": 0, "outputs": ["c"],
              "deps": [{{"buffer": "a", "kinds": ["data"]}}]}}],
        "buffers": [
            {{"name": "a", "size_alloc": 8, "size_free": 8, "users": ["wait"], "output": false}},
            {{"name": "b", "size_alloc": 8, "size_free": 8, "users": [], "output": true}},
            {{"name": "c", "size_alloc": 8, "size_free": 8, "users": [], "output": true}}],
        "inputs": []}}"#
    );
    let graph = read_graph(text.as_bytes()).unwrap();
    let order: Vec<OpId> = graph.ops().collect();
    let mut machine = machine(&graph);
    (machine.slowdown, machine.comm_slowdown) = (slowdown, comm_slowdown);
    let found = simulate(&graph, &order, &machine);
    (found.end[order[0]].0, found.end[order[1]].0)
}

#[test]
fn compute_and_communication_slow_each_other_while_both_run() {
    assert_eq!(beside(6.0, 1.0, 1.0), (10.0, 6.0));
    // Compute does half of its work until the collective ends, and the rest alone.
    assert_eq!(beside(10.0, 2.0, 1.0), (10.0, 15.0));
    assert_eq!(beside(10.0, 1.0, 2.0), (15.0, 10.0));
    assert_eq!(beside(10.0, 2.0, 2.0), (20.0, 20.0));
    // Compute ends first, after 8 ns, in which the collective did 2 of 10.
    assert_eq!(beside(4.0, 2.0, 4.0), (16.0, 8.0));
}

#[test]
fn what_slows_communication_never_saves_time() {
    for seed in 0..200 {
        let graph = random::graph(&mut Random(seed + 900), 40);
        let order: Vec<OpId> = graph.ops().collect();
        let mut machine = machine(&graph);
        let base = simulate(&graph, &order, &machine);
        let mut before = base.step_time;
        for factor in [1.0 + 1e-12, 1.3, 2.0] {
            machine.comm_slowdown = factor;
            let slow = simulate(&graph, &order, &machine);
            assert!(slow.step_time.0 >= before.0 - 1e-6, "seed {seed}");
            assert!(slow.step_time.0 <= base.step_time.0 * factor + 1e-6, "seed {seed}");
            before = slow.step_time;
            for op in graph.ops() {
                assert!(slow.end[op] >= slow.start[op], "seed {seed}");
            }
        }
    }
}

/// The best of all orders of a small program, by brute force.
struct BruteForce<'a> {
    graph: &'a Graph,
    machine: &'a Machine,
    edges: Edges,
    limit: Bytes,
    order: Vec<OpId>,
    best: Option<Nanos>,
}

impl BruteForce<'_> {
    fn go(&mut self) {
        let BruteForce { graph, machine, .. } = *self;
        if self.order.len() == graph.len() {
            let placed = Order::from_ops(graph.len(), self.order.clone()).unwrap();
            if Timeline::of(graph, &placed).peak <= self.limit {
                let step = simulate(graph, &self.order, machine).step_time;
                self.best =
                    Some(self.best.map_or(step, |best| if step < best { step } else { best }));
            }
        }
        for op in graph.ops() {
            let is_there = |op: &OpId| self.order.contains(op);
            if !is_there(&op) && graph.preds(op, self.edges).iter().all(is_there) {
                self.order.push(op);
                self.go();
                self.order.pop();
            }
        }
    }
}

fn best_by_brute_force(
    (graph, machine): (&Graph, &Machine),
    edges: Edges,
    limit: Bytes,
) -> Option<Nanos> {
    let mut all = BruteForce { graph, machine, edges, limit, order: Vec::new(), best: None };
    all.go();
    all.best
}

/// The bound knows how much compute and communication slow each other: no order beats it, and on
/// some programs it is above the bound without contention.
#[test]
fn the_bound_with_contention_holds_and_is_higher() {
    let (mut higher, mut tight) = (0, 0);
    for seed in 0..400 {
        let random = &mut Random(seed + 80_000);
        let graph = random::graph(random, 8);
        let mut machine = machine(&graph);
        machine.streams =
            Streams::assign(&graph, random.pick(&[Assignment::One, Assignment::EachGroup]));
        let alone = bound(&graph, &machine, Edges::Real);
        machine.slowdown = random.pick(&[1.0, 1.2, 1.6, 2.5]);
        machine.comm_slowdown = random.pick(&[1.0, 1.3, 1.8, 2.5]);
        let found = bound(&graph, &machine, Edges::Real);
        let best = best_by_brute_force((&graph, &machine), Edges::Real, Bytes(i64::MAX)).unwrap();
        assert!(alone <= found && found <= best.0 + 1e-6, "seed {seed}: {alone} {found} {best}");
        higher += usize::from(found > alone + 1.0);
        tight += usize::from(found > alone + 1.0 && found >= best.0 - 1e-6);
    }
    assert!(higher > 25 && tight > 5, "{higher} higher, {tight} of them tight");
}

/// Orders are searched for with the times that operations take beside each other, and stay proved
/// and within the limit.
#[test]
fn contention_is_part_of_the_search() {
    let mut shorter = 0;
    for seed in 0..12 {
        let graph = random::graph(&mut Random(seed + 90_000), 60);
        let mut slow = machine(&graph);
        (slow.slowdown, slow.comm_slowdown) = (1.3, 1.7);
        let [plain, contended] = [&machine(&graph), &slow]
            .map(|machine| find(&graph, machine, peak(&graph), |_| ()).unwrap());
        let step = simulate(&graph, plain.order.as_slice(), &slow).step_time;
        assert!(contended.step_time.0 <= step.0 + 1e-6, "seed {seed}");
        assert!(contended.bound.time.0 <= contended.step_time.0 + 1e-6, "seed {seed}");
        shorter += usize::from(contended.step_time.0 < step.0 - 1e-6);
    }
    assert!(shorter > 0);
}

/// The bound knows the order of collectives: it holds for every order that keeps it, and is higher
/// than the one for all orders where that order costs time.
#[test]
fn the_bound_of_kept_orders_holds_and_is_higher() {
    let (mut higher, mut lower, mut tight, mut issued) = (0, 0, 0, 0);
    for seed in 0..1500 {
        let random = &mut Random(seed + 60_000);
        let graph = random::graph(random, 8);
        if graph.len() < 6 {
            continue;
        }
        let graph = match seed % 3 {
            0 => graph,
            1 => graph.order_collectives(Chain::EachGroup),
            _ => graph.order_collectives(Chain::AllGroups),
        };
        let mut machine = machine(&graph);
        machine.streams =
            Streams::assign(&graph, random.pick(&[Assignment::SharedRanks, Assignment::EachGroup]));
        let [free, kept] = [Edges::Real, Edges::All].map(|edges| bound(&graph, &machine, edges));
        let best = best_by_brute_force((&graph, &machine), Edges::All, Bytes(i64::MAX)).unwrap();
        assert!(free.max(kept) <= best.0 + 1e-6, "seed {seed}: {free} {kept} {best}");
        higher += usize::from(kept > free + 1.0);
        // Which moments a bound looks at depends on the edges, so that this may happen.
        lower += usize::from(kept < free - 1.0);
        tight += usize::from(kept > free + 1.0 && kept >= best.0 - 1e-6);
        // A bound that took being issued for having ended would be above this.
        let is_issue = |op: OpId| {
            let order_only = |pred: &&OpId| !graph.preds(op, Edges::Real).contains(pred);
            let is_async = |pred: &OpId| graph.kind(*pred) == OpKind::AsyncCollective;
            graph.preds(op, Edges::All).iter().filter(order_only).any(is_async)
        };
        issued += usize::from(graph.ops().any(is_issue));
    }
    assert!(
        higher > 25 && tight > 25 && issued > 100 && lower < 5,
        "{higher} higher, {tight} of them tight, {lower} lower, {issued} issued"
    );
}

#[test]
fn thorough_finds_what_brute_force_finds() {
    let mut improved = 0;
    for seed in 0..400 {
        let random = &mut Random(seed + 9_000);
        let graph = random::graph(random, if seed % 8 == 0 { 9 } else { 7 });
        let machine = machine(&graph);
        let input = peak(&graph);
        let limit =
            random.pick(&[input, input, Bytes(input.0 + input.0 / 4), Bytes(input.0 * 9 / 10)]);
        let edges = if seed % 2 == 0 { Edges::Real } else { Edges::All };
        let expected = best_by_brute_force((&graph, &machine), edges, limit);
        let found = find(&graph, &machine, limit, |task| {
            (task.effort, task.edges) = (Effort::Thorough, edges)
        });
        match (&found, expected) {
            (Ok(found), Some(best)) => {
                assert!(
                    (found.step_time - best).0.abs() < 1e-6,
                    "seed {seed}: {found:?}, best {best}"
                );
                // What was searched exhaustively is known to be optimal.
                assert!(
                    (found.bound.time - best).0.abs() < 1e-6,
                    "seed {seed}: {:?}, best {best}",
                    found.bound
                );
            }
            (Err(_), None) => {}
            other => panic!("seed {seed}: {other:?}"),
        }
        let order: Vec<OpId> = graph.ops().collect();
        improved += usize::from(
            expected.is_some_and(|best| best < simulate(&graph, &order, &machine).step_time),
        );
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
        let edges = if random.chance(50) { Edges::All } else { Edges::Real };
        let run = |threads| {
            find(&graph, &machine, limit, |task| (task.threads, task.edges) = (threads, edges))
                .unwrap()
        };
        let (one, two) = (run(1), run(2));
        assert_eq!(one.order, two.order, "seed {seed}");
        let proof = verify(&graph, one.order.as_slice(), &demands(edges, limit)).unwrap();
        assert_eq!(proof.peak, one.peak);
        let input: Vec<OpId> = graph.ops().collect();
        let before = simulate(&graph, &input, &machine).step_time;
        assert_eq!(one.step_time, simulate(&graph, one.order.as_slice(), &machine).step_time);
        assert!(one.step_time <= before, "seed {seed}");
        assert!(one.step_time.0 >= bound(&graph, &machine, edges) - 1e-6, "seed {seed}");
        faster += usize::from(one.step_time < before);
    }
    assert!(faster > 20, "only {faster} were improved");
}

/// What the default effort must reach, as a multiple of the bound, at the input order's own peak.
/// The search is the same everywhere, so that these are facts and not measurements.
#[test]
fn the_default_effort_comes_close_to_the_bound() {
    let targets =
        [("ddp_mlp_4", 1.0), ("ddp_mlp_24", 1.0), ("moe_ep_6", 1.003), ("fsdp_llama_2", 1.050)];
    for (name, target) in targets {
        let graph = program(name);
        let machine = machine(&graph);
        let found =
            find(&graph, &machine, peak(&graph), |task| task.effort = Effort::Default).unwrap();
        let ratio = found.step_time.0 / found.bound.time.0;
        assert!(ratio <= target + 1e-6, "{name}: {ratio}");
    }
}

/// What is handed on has no collective that was issued too late or is waited for too early.
#[test]
fn no_single_move_is_left_that_helps() {
    let random = (0..40).map(|seed| random::graph(&mut Random(seed + 70_000), 120));
    let captured = ["moe_ep_24", "fsdp_llama_2", "fsdp_tp_llama_4"].map(program);
    let mut held_by_others = 0;
    for (number, graph) in random.chain(captured).enumerate() {
        let machine = machine(&graph);
        let edges = if number % 3 == 0 { Edges::All } else { Edges::Real };
        let change = |task: &mut Task<'_>| (task.effort, task.edges) = (Effort::Quick, edges);
        let found = find(&graph, &machine, peak(&graph), change).unwrap();
        if found.input_kept {
            continue;
        }
        let setup = Setup { graph: &graph, machine: &machine };
        let limits = limits(&graph, &machine, edges);
        for held in explain(setup, &Evaluation::of(setup, found.order), limits).held {
            let is_misplaced = matches!(held.by, Holder::Misplaced(_) | Holder::WaitMisplaced(..));
            assert!(!is_misplaced, "{number}: {held:?}");
            held_by_others += 1;
        }
    }
    assert!(held_by_others > 50, "only {held_by_others} collectives are waited for");
}

/// The most that one operation's move saves within the limit: to an earlier place, or to a later
/// one.
fn best_move(
    (graph, machine): (&Graph, &Machine),
    demands: &Demands<'_>,
    op: OpId,
    earlier: bool,
) -> Nanos {
    let order = Order::of_input(graph);
    let before = simulate(graph, order.as_slice(), machine).step_time;
    let from = order.pos(op).index();
    let places = if earlier { 0..from } else { from + 1..graph.len() };
    let saves = |to: usize| {
        let mut ops = order.as_slice().to_vec();
        match earlier {
            true => ops[to..=from].rotate_right(1),
            false => ops[from..=to].rotate_left(1),
        }
        verify(graph, &ops, demands).ok().map(|_| before - simulate(graph, &ops, machine).step_time)
    };
    places.filter_map(saves).fold(Nanos::ZERO, Nanos::max)
}

/// What an explanation says could be saved is saved, by the simulator's account and under the rules
/// that it is said for; and what it does not blame on the kept order, no move that breaks it would
/// save.
#[test]
fn advice_is_true() {
    let (mut advised, mut kept_order) = (0, 0);
    for seed in 0..600 {
        let graph = random::graph(&mut Random(seed + 40_000), 40);
        let (machine, order, limit) = (machine(&graph), Order::of_input(&graph), peak(&graph));
        let edges = if seed % 2 == 0 { Edges::Real } else { Edges::All };
        let setup = Setup { graph: &graph, machine: &machine };
        for held in
            &explain(setup, &Evaluation::of(setup, order.clone()), limits(&graph, &machine, edges))
                .held
        {
            let saves = |edges, op, earlier| {
                best_move((&graph, &machine), &demands(edges, limit), op, earlier).0
            };
            let alone = |edges| {
                let by_wait =
                    if held.at == held.collective { 0.0 } else { saves(edges, held.at, false) };
                saves(edges, held.collective, true).max(by_wait)
            };
            let (promised, saved) = match held.by {
                Holder::Misplaced(saved) => (saved.0, saves(edges, held.collective, true)),
                Holder::WaitMisplaced(wait, saved) => (saved.0, saves(edges, wait, false)),
                Holder::KeptOrder(saved) => {
                    kept_order += 1;
                    assert!(edges == Edges::All && alone(edges) < 1.0, "seed {seed}: {held:?}");
                    (saved.0, alone(Edges::Real))
                }
                Holder::Synchronous | Holder::Memory(_) => continue,
                _ => (0.0, alone(Edges::Real)),
            };
            advised += 1;
            assert!((promised - saved).abs() < 1.0, "seed {seed}: {held:?}, {saved}");
        }
    }
    assert!(
        advised > 600 && kept_order > 10,
        "only {advised} pieces of advice, {kept_order} of the kept order"
    );
}

/// That no move of one collective helps does not mean that nothing does: an optimizer that moves
/// others, too, hides some of them.
#[test]
fn nothing_gained_is_said_of_single_moves() {
    let mut hidden = 0;
    for seed in 0..150 {
        let graph = random::graph(&mut Random(seed + 70_000), 40);
        let machine = machine(&graph);
        let explanation = explain_input(&graph, &machine).0;
        let stuck: Vec<&Held> =
            explanation.held.iter().filter(|held| held.by == Holder::NothingGained).collect();
        if stuck.is_empty() {
            continue;
        }
        let found = find(&graph, &machine, peak(&graph), |_| ()).unwrap();
        let exposed = exposed_by_collective(&simulate(&graph, found.order.as_slice(), &machine));
        hidden += stuck.iter().filter(|held| exposed[held.collective] == Nanos::ZERO).count();
        let input = simulate(&graph, Order::of_input(&graph).as_slice(), &machine);
        assert_eq!(
            describe_holder(&graph, &input, stuck[0]),
            "no gain was found in moving it alone"
        );
    }
    assert!(hidden > 0, "no collective was hidden by moving others");
}

/// A graph of a backward pass, whose collectives are chained through their waits: with that order
/// kept nothing can be saved, and a free order is faster.
#[test]
fn a_kept_order_is_no_promise_of_savings() {
    let graph = program("fsdp_backward");
    let machine = machine(&graph);
    let found = |edges| find(&graph, &machine, peak(&graph), |task| task.edges = edges).unwrap();
    let (free, kept) = (found(Edges::Real), found(Edges::All));
    assert!(free.step_time < kept.step_time && free.bound.time < kept.bound.time);
    assert!(kept.step_time.0 < 1.002 * kept.bound.time.0, "{kept:?}");
    let limits = Limits { memory: peak(&graph), bound: kept.bound };
    let setup = Setup { graph: &graph, machine: &machine };
    let held = explain(setup, &Evaluation::of(setup, kept.order.clone()), limits).held;
    assert!(
        held.iter().any(|held| matches!(held.by, Holder::KeptOrder(saved) if saved > Nanos::ZERO)),
        "{held:?}"
    );
    let promises =
        |held: &Held| matches!(held.by, Holder::Misplaced(_) | Holder::WaitMisplaced(..));
    assert!(!held.iter().any(promises), "{held:?}");
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

/// Whatever the machine is like, and also where what is found would be worse in most variations.
#[test]
fn more_effort_is_never_slower() {
    let mut found = 0;
    for seed in 0..40 {
        let random = &mut Random(seed + 70_000);
        let graph = random::graph(random, if seed % 4 == 0 { 10 } else { 60 });
        let slowdown = if random.chance(30) { 1.3 } else { 1.0 };
        let mut machine = machine(&graph);
        machine.slowdown = slowdown;
        let limit = Bytes(peak(&graph).0 * (9 + random.below(4) as i64) / 10);
        let step = |effort| {
            let found = find(&graph, &machine, limit, |task| task.effort = effort);
            found.map_or(f64::INFINITY, |found| found.step_time.0)
        };
        let mut efforts = vec![Effort::Quick, Effort::Default];
        efforts.extend((graph.len() <= 10).then_some(Effort::Thorough));
        let steps: Vec<f64> = efforts.into_iter().map(step).collect();
        assert!(steps.is_sorted_by(|less, more| *more <= less + 1e-3), "seed {seed}: {steps:?}");
        found += usize::from(steps[0].is_finite());
    }
    assert!(found > 20, "only {found} have an order within their limit");
}

/// A caller may cancel; the partial result is discarded.
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
    let stopped =
        find(&graph, &machine, limit, |task| (task.threads, task.progress) = (1, &progress));
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

/// Every stall of compute has one cause, and no collective is exposed for longer than it runs; with
/// a slow host and contention, too.
#[test]
fn time_that_compute_stands_still_is_charged_once() {
    for seed in 0..300 {
        let mut random = Random(seed + 90_000);
        let graph = random::graph(&mut random, 60);
        let mut machine = machine(&graph);
        (machine.launch, machine.slowdown) =
            (Nanos(seed as f64 % 3.0 * 700.0), 1.0 + seed as f64 % 2.0 * 0.3);
        let simulation = simulate(&graph, Order::of_input(&graph).as_slice(), &machine);
        let mut stalls: Vec<(f64, f64)> =
            simulation.exposures.iter().map(|e| (e.start.0, (e.start + e.time).0)).collect();
        stalls.sort_by(|a, b| a.0.total_cmp(&b.0));
        assert!(
            stalls.windows(2).all(|pair| pair[0].1 <= pair[1].0 + 1e-6),
            "seed {seed}: {stalls:?}"
        );
        let total: f64 = stalls.iter().map(|(start, end)| end - start).sum();
        assert!((total - simulation.compute_idle.0).abs() < 1e-3, "seed {seed}");
        let exposed = exposed_by_collective(&simulation);
        for op in graph.ops() {
            let time = simulation.end[op] - simulation.start[op];
            assert!(
                exposed[op].0 <= time.0 + 1e-6,
                "seed {seed}: {op:?} {} of {time}",
                exposed[op]
            );
        }
    }
}

/// The input order, explained.
fn explain_input(graph: &Graph, machine: &Machine) -> (Explanation, Evaluation) {
    let setup = Setup { graph, machine };
    let evaluation = Evaluation::of(setup, Order::of_input(graph));
    (explain(setup, &evaluation, limits(graph, machine, Edges::Real)), evaluation)
}

#[test]
fn what_holds_a_collective_is_named() {
    let graph = program("fsdp_llama_2");
    let machine = machine(&graph);
    let (explanation, Evaluation { simulation, .. }) = explain_input(&graph, &machine);
    let total: Nanos = explanation.held.iter().map(|held| held.exposed).sum();
    assert!((total - simulation.compute_idle).0.abs() < 1.0, "every idle moment has a cause");
    let holders: Vec<Holder> = explanation.held.iter().map(|held| held.by).collect();
    assert!(
        holders.iter().any(|by| matches!(by, Holder::Misplaced(_))),
        "the input order is not the best"
    );
    for held in &explanation.held {
        assert!(
            held.exposed <= graph.runtime(held.collective),
            "nobody waits longer for it than it takes"
        );
        if let Holder::Stream(other) = held.by {
            assert_eq!(simulation.end[other], simulation.start[held.collective]);
        }
        if let Holder::Operation(op) = held.by {
            assert!(graph.preds(held.collective, Edges::Real).contains(&op));
        }
    }
    let at = explanation.peak.at.unwrap();
    assert_eq!(
        Timeline::of(&graph, &Order::of_input(&graph)).levels[at].post_alloc,
        explanation.peak.bytes
    );
    assert!(at.index() < graph.len() && explanation.peak.owners.len() == 5);
}
