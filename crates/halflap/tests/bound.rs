//! The bound that knows memory and looks at several streams at once, against the best of all orders
//! of small programs, and against every order of the corpus.

mod common;
#[path = "common/random.rs"]
#[allow(dead_code)]
mod random;

use common::{cases, program};
use halflap::cost::Times;
use halflap::graph::{
    Assignment, BufferParts, Chain, Collective, DepKinds, Edges, Graph, GroupParts, OpKind,
    OpParts, Parts, Provenance, Streams,
};
use halflap::ids::{BufId, GroupId, Id, OpId};
use halflap::memory::Timeline;
use halflap::order::Order;
use halflap::simulate::{Basis, Bound, Bounded, Machine, lower_bound, simulate};
use halflap::units::{Bytes, Nanos};
use random::Random;

/// No limit at all.
const PLENTY: Bytes = Bytes(i64::MAX);

fn machine(graph: &Graph) -> Machine {
    Machine::new(graph, Times::given(graph).unwrap())
}

fn input_peak(graph: &Graph) -> Bytes {
    Timeline::of(graph, &Order::of_input(graph)).peak
}

/// All orders of a small program: the peak and the step of each that no other one beats in both.
struct Orders<'a> {
    graph: &'a Graph,
    machine: &'a Machine,
    edges: Edges,
    order: Vec<OpId>,
    found: Vec<(Bytes, Nanos)>,
}

impl Orders<'_> {
    fn go(&mut self) {
        let Orders { graph, machine, .. } = *self;
        if self.order.len() == graph.len() {
            let placed = Order::from_ops(graph.len(), self.order.clone()).unwrap();
            let (peak, step) = (
                Timeline::of(graph, &placed).peak,
                simulate(graph, &self.order, machine).step_time,
            );
            if !self.found.iter().any(|(other, faster)| *other <= peak && *faster <= step) {
                self.found.retain(|(other, slower)| *other < peak || *slower < step);
                self.found.push((peak, step));
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

/// Peaks and steps of the best orders.
fn best_orders(graph: &Graph, machine: &Machine, edges: Edges) -> Vec<(Bytes, Nanos)> {
    let mut orders = Orders { graph, machine, edges, order: Vec::new(), found: Vec::new() };
    orders.go();
    orders.found
}

/// A node of a small program: its kind, run time, outputs' sizes and what it needs, by number.
struct Part {
    kind: OpKind,
    time: f64,
    size: i64,
    needs: Vec<usize>,
}

/// A few layers, each of them compute that needs the layer before and what a collective brings; in
/// between a sum over another group, and compute that nobody waits for.
fn layers(random: &mut Random) -> Graph {
    let mut all: Vec<Part> = Vec::new();
    let mut last: Option<usize> = None;
    let time = |random: &mut Random| random.pick(&[300.0, 500.0, 700.0, 1100.0, 1900.0]);
    let size = |random: &mut Random| random.pick(&[8, 32, 64, 100, 256]);
    while all.len() < 7 {
        let mut needs: Vec<usize> = last.into_iter().collect();
        if random.chance(60) {
            let of = if random.chance(40) { last.into_iter().collect() } else { Vec::new() };
            all.push(Part {
                kind: OpKind::AsyncCollective,
                time: time(random),
                size: size(random),
                needs: of,
            });
            needs.push(all.len() - 1);
        }
        all.push(Part {
            kind: OpKind::Compute,
            time: time(random),
            size: size(random),
            needs: needs.clone(),
        });
        last = Some(all.len() - 1);
        if random.chance(50) {
            let needs = needs.into_iter().chain(last).collect();
            all.push(Part {
                kind: OpKind::Compute,
                time: time(random),
                size: random.pick(&[0, 1, 16]),
                needs,
            });
        }
    }
    all.truncate(8);
    build(random, &all)
}

fn build(random: &mut Random, all: &[Part]) -> Graph {
    let mut parts = Parts::default();
    for ranks in [vec![0, 1], vec![0, 2]] {
        let name = format!("g{}", parts.groups.len());
        parts.groups.push(GroupParts::new(name, ranks));
    }
    for (number, part) in all.iter().enumerate() {
        let op = OpId::from_index(number);
        let kinds = DepKinds { data: true, ..DepKinds::default() };
        let needs: Vec<BufId> = part.needs.iter().map(|&need| BufId::from_index(need)).collect();
        needs.iter().for_each(|&buffer| parts.buffers[buffer].users.push(op));
        let buffer = parts.buffers.push(BufferParts {
            name: format!("buf{number}"),
            maker: Some(op),
            size_alloc: Bytes(part.size),
            size_free: Bytes(part.size),
            users: Vec::new(),
            output: random.chance(20),
            view_of: None,
        });
        let group = GroupId::from_index(random.below(2));
        let collective = Collective::named("all_gather".to_owned(), group, 2, Bytes(part.size));
        parts.ops.push(OpParts {
            name: format!("op{number}"),
            kind: part.kind,
            runtime: Some(Nanos(part.time)),
            flops: None,
            bytes: None,
            gemm_like: false,
            collective: part.kind.is_collective().then_some(collective),
            outputs: vec![buffer],
            deps: needs.iter().map(|&buffer| (buffer, kinds)).collect(),
            fused: Vec::new(),
            provenance: Provenance::default(),
            kernel: None,
        });
    }
    Graph::new(parts).unwrap()
}

/// A random program and machine, and the edges that its orders keep.
fn case(seed: u64) -> Option<(Graph, Machine, Edges)> {
    let random = &mut Random(seed);
    let graph = if seed.is_multiple_of(2) { random::graph(random, 8) } else { layers(random) };
    if graph.len() < 5 {
        return None;
    }
    let edges = if seed.is_multiple_of(3) { Edges::All } else { Edges::Real };
    let graph =
        if seed.is_multiple_of(9) { graph.order_collectives(Chain::EachGroup) } else { graph };
    let mut machine = machine(&graph);
    machine.streams =
        Streams::assign(&graph, random.pick(&[Assignment::SharedRanks, Assignment::EachGroup]));
    if seed.is_multiple_of(5) {
        (machine.slowdown, machine.comm_slowdown) = (1.2, 1.3);
    }
    Some((graph, machine, edges))
}

/// At the peak of every order that could be the best one under some limit, the bound for that limit
/// is no higher than the step of that order. On many programs it is higher than the bound without a
/// limit, and on some it is reached.
#[test]
fn no_order_within_the_limit_beats_the_bound() {
    let (mut cuts, mut by_memory, mut reached) = (0, 0, 0);
    for (graph, machine, edges) in (0..2500).filter_map(|seed| case(seed + 300_000)) {
        let free = lower_bound(&graph, &machine, edges, PLENTY);
        for (limit, best) in best_orders(&graph, &machine, edges) {
            let bound = lower_bound(&graph, &machine, edges, limit);
            assert!(bound.time.0 <= best.0 + 1e-6, "{bound:?} at {limit}, but {best}");
            assert!(
                bound.time.0 >= free.time.0 - 1e-6,
                "{bound:?} at {limit}, without a limit {free:?}"
            );
            let is_higher = bound.time.0 > free.time.0 + 1.0;
            cuts += usize::from(matches!(bound.basis, Basis::Cut { .. }));
            by_memory += usize::from(is_higher);
            assert!(bound.memory || !is_higher, "{bound:?} at {limit}, without a limit {free:?}");
            reached += usize::from(is_higher && bound.time.0 >= best.0 - 1e-6);
        }
    }
    let said = format!("{cuts} cuts, {by_memory} higher by memory, {reached} of them reached");
    assert!(cuts > 100 && by_memory > 50 && reached > 10, "{said}");
}

/// What is not issued before a long operation starts only when that has ended. Without that, the
/// stream would begin with the second collective while the first operation runs, which proves 2300
/// ns.
#[test]
fn nothing_is_issued_while_an_operation_runs() {
    let part = |kind: OpKind, time: f64, needs: &[usize]| Part {
        kind,
        time,
        size: 1,
        needs: needs.to_vec(),
    };
    let all = [
        part(OpKind::Compute, 1000.0, &[]),
        part(OpKind::AsyncCollective, 1000.0, &[0]),
        part(OpKind::Compute, 500.0, &[]),
        part(OpKind::AsyncCollective, 800.0, &[2]),
        part(OpKind::Compute, 10.0, &[1]),
        part(OpKind::AsyncCollective, 10.0, &[]),
    ];
    let graph = build(&mut Random(1), &all);
    let mut machine = machine(&graph);
    machine.streams = Streams::assign(&graph, Assignment::One);
    let steps = best_orders(&graph, &machine, Edges::Real);
    let best = steps.into_iter().map(|(_, step)| step.0).fold(f64::INFINITY, f64::min);
    let bound = lower_bound(&graph, &machine, Edges::Real, PLENTY);
    assert_eq!(best, 2510.0);
    assert!(bound.time.0 > 2500.0 && bound.time.0 <= best + 1e-6, "{bound:?}");
}

/// No order of the corpus is faster than the bound for what it needs.
#[test]
fn no_order_of_the_corpus_beats_the_bound() {
    let mut compared = 0;
    for case in cases() {
        let (graph, machine) = (&case.graph, machine(&case.graph));
        let mut known: Vec<(Bytes, Bound)> = Vec::new();
        let orders = case.results.iter().filter_map(|result| result["order"].as_array());
        let find = |name: &serde_json::Value| graph.find(name.as_str().unwrap()).unwrap();
        for names in orders.take(40) {
            let ops: Vec<OpId> = names.iter().map(find).collect();
            let order = Order::from_ops(graph.len(), ops).unwrap();
            let peak = Timeline::of(graph, &order).peak;
            let at = known.iter().find(|(limit, _)| *limit == peak).copied();
            let (_, bound) =
                at.unwrap_or_else(|| (peak, lower_bound(graph, &machine, Edges::Real, peak)));
            known.extend(at.is_none().then_some((peak, bound)));
            let step = simulate(graph, order.as_slice(), &machine).step_time;
            assert!(step.0 >= bound.time.0 - 1e-3, "{}: {step}, {bound:?}", case.name);
            compared += 1;
        }
    }
    assert!(compared > 300, "only {compared} orders compared");
}

/// What is proved of captured programs at the input order's own peak, in ns.
#[test]
fn bounds_of_captured_programs_know_memory_and_two_streams() {
    let expected =
        [("fsdp_tp_llama_4", 58.49e6), ("fsdp_llama_2", 6.759e6), ("fsdp_tp_llama_16", 432.76e6)];
    for (name, least) in expected {
        let graph = program(name);
        let bound = lower_bound(&graph, &machine(&graph), Edges::Real, input_peak(&graph));
        assert!(bound.time.0 >= least, "{name}: {bound:?}");
        assert!(matches!(bound.basis, Basis::Cut { .. }) && bound.memory, "{name}: {bound:?}");
    }
}

/// Where memory puts operations in order, it is named, also where compute is what is counted then;
/// and it is not named where there is no limit.
#[test]
fn memory_is_named_where_it_makes_the_bound_larger() {
    let graph = program("moe_ep_6");
    let [tight, free] = [input_peak(&graph), PLENTY]
        .map(|limit| lower_bound(&graph, &machine(&graph), Edges::Real, limit));
    assert!(tight.time > free.time, "{tight:?}, {free:?}");
    assert_eq!((tight.basis, tight.memory), (Basis::Compute, true));
    assert!(!free.memory, "{free:?}");
}

/// Knowing an order proves no more than the best one takes, whether the known one is the best or
/// not; sometimes it proves more than the bound by itself.
#[test]
fn a_known_step_never_rules_out_the_best_order() {
    let (mut sharper, mut optimal) = (0, 0);
    for (graph, machine, edges) in (0..2500).filter_map(|seed| case(seed + 300_000)) {
        for (memory_limit, best) in best_orders(&graph, &machine, edges) {
            let bounded = Bounded { graph: &graph, machine: &machine, edges, memory_limit };
            let proved = bounded.prove();
            let bound = proved.bound;
            for known in [best, Nanos(best.0 * 1.02)] {
                let sharpened = proved.sharpened(known);
                assert!(sharpened.time.0 <= best.0 + 1e-6, "{sharpened:?}, but {best}");
                assert!(sharpened.time >= bound.time, "{sharpened:?}, but {bound:?}");
                sharper += usize::from(sharpened.time.0 > bound.time.0 + 1e-6);
            }
            let is_reached = |bound: Bound| bound.is_reached_by(best);
            let is_new = !is_reached(bound) && is_reached(proved.sharpened(best));
            optimal += usize::from(is_new);
        }
    }
    assert!(sharper > 10 && optimal > 5, "{sharper} sharper, {optimal} newly optimal");
}

/// A gradient's all-reduce that must end before the next all-to-all's wait delays that one, because
/// both share a stream. Only orders that are faster than a known one must have it so.
#[test]
fn a_mixture_of_experts_is_proved_optimal() {
    let graph = program("moe_ep_6");
    let machine = machine(&graph);
    let memory_limit = input_peak(&graph);
    let bounded = Bounded { graph: &graph, machine: &machine, edges: Edges::Real, memory_limit };
    let (proved, step) = (bounded.prove(), Nanos(39_873_741.0));
    assert!(!proved.bound.is_reached_by(step), "{:?}", proved.bound);
    let sharpened = proved.sharpened(step);
    assert!(sharpened.is_reached_by(step), "{sharpened:?}");
}
