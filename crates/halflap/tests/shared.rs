//! Collectives of two communicators that share a link.

#[path = "common/random.rs"]
#[allow(dead_code)]
mod random;

use halflap::collective::CollectiveKind;
use halflap::cost::Times;
use halflap::graph::{
    Assignment, BufferParts, Collective, Graph, GroupParts, OpKind, OpParts, Parts, Streams,
};
use halflap::ids::{GroupId, Id, OpId, StreamId};
use halflap::import::read_graph;
use halflap::order::Order;
use halflap::simulate::{Machine, Simulation, simulate};
use halflap::units::{Bytes, Nanos};
use random::Random;

fn machine(graph: &Graph) -> Machine {
    Machine::new(graph, Times::given(graph).unwrap())
}

/// The same with links of their own for all streams.
fn apart_from(machine: &Machine) -> Machine {
    let mut apart = machine.clone();
    apart.sharing = None;
    apart
}

fn run(graph: &Graph, machine: &Machine) -> Simulation {
    simulate(graph, Order::of_input(graph).as_slice(), machine)
}

/// Collectives without inputs, by kind, group, bytes and time, and a second communicator of the
/// first group.
fn collectives(all: &[(&str, usize, i64, f64)]) -> Graph {
    let mut parts = Parts::default();
    let first = parts.groups.push(GroupParts::new("dp", vec![0, 1]));
    let second = GroupParts { second_of: Some(first), ..GroupParts::new("dp.2", vec![0, 1]) };
    parts.groups.push(second);
    for (number, &(op, group, bytes, time)) in all.iter().enumerate() {
        let group = GroupId::from_index(group);
        let made = parts.buffers.push(BufferParts::new(
            format!("buf{number}"),
            Some(OpId::from_index(number)),
            Bytes(0),
        ));
        parts.ops.push(OpParts {
            runtime: Some(Nanos(time)),
            collective: Some(Collective::named(op.to_owned(), group, 2, Bytes(bytes))),
            outputs: vec![made],
            ..OpParts::new(format!("op{number}"), OpKind::AsyncCollective)
        });
    }
    Graph::new(parts).unwrap()
}

#[test]
fn two_that_transfer_have_half_of_the_bandwidth_each() {
    // Sizes of each kind are equal: nothing says what is latency.
    let graph = collectives(&[("reduce_scatter", 0, 64, 100.0), ("all_gather", 1, 64, 40.0)]);
    let ran = run(&graph, &machine(&graph));
    assert_eq!(ran.end.as_slice(), [Nanos(140.0), Nanos(80.0)]);
    assert_eq!(ran.start.as_slice(), [Nanos(0.0), Nanos(0.0)]);
    assert_eq!(ran.step_time, Nanos(140.0));
}

#[test]
fn latency_is_not_shared() {
    // Reduce-scatters take 20 + bytes, all-gathers 10 + bytes.
    let graph = collectives(&[
        ("reduce_scatter", 0, 60, 80.0),
        ("all_gather", 1, 30, 40.0),
        ("reduce_scatter", 0, 120, 140.0),
        ("all_gather", 1, 120, 130.0),
    ]);
    let ran = run(&graph, &machine(&graph));
    // op1 transfers from 10 on, alone until 20: 20 bytes are left, which take until 60. Then op3
    // waits for its latency until 70; op0 has 40 bytes left at 60, 30 at 70, and ends at 130 beside
    // op3, which has 90 left then. op2 waits for its latency until 150, when op3 has 70 left: both
    // transfer until op3 ends at 290, and op2 has 50 of 120 left.
    let ends = [130.0, 60.0, 340.0, 290.0];
    for (op, end) in graph.ops().zip(ends) {
        assert!((ran.end[op].0 - end).abs() < 1e-9, "{}: {}", graph.name(op), ran.end[op]);
    }
}

/// A random program, some collectives of which are on second communicators, and mostly with sizes
/// that give lines of cost.
fn program(random: &mut Random) -> Graph {
    let mut parts = random::graph(random, 60).into_parts();
    let firsts: Vec<GroupId> = parts.groups.ids().collect();
    for &first in &firsts {
        let GroupParts { name, ranks, .. } = &parts.groups[first];
        let second = GroupParts::new(format!("{name}.2"), ranks.clone());
        parts.groups.push(GroupParts { second_of: Some(first), ..second });
    }
    let has_sizes = random.chance(70);
    for op in parts.ops.ids() {
        let op = &mut parts.ops[op];
        let Some(of) = &op.collective else { continue };
        let is_gather = random.chance(50);
        let kind = if is_gather { "all_gather" } else { "reduce_scatter" };
        let bytes = if has_sizes { random.pick(&[1024, 4096, 65_536]) } else { 1024 };
        let group =
            GroupId::from_index(of.group.index() + if is_gather { firsts.len() } else { 0 });
        op.collective = Some(Collective::named(kind.to_owned(), group, 4, Bytes(bytes)));
        op.runtime = match has_sizes {
            true => Some(Nanos(3000.0 + bytes as f64 * 1.5)),
            false => op.runtime,
        };
    }
    Graph::new(parts).unwrap()
}

/// The collectives that use a link.
fn on_link(graph: &Graph, machine: &Machine, link: StreamId) -> Vec<OpId> {
    let uses = |op: &OpId| machine.streams.of(*op).map(|of| machine.streams.link(of)) == Some(link);
    graph.ops().filter(uses).collect()
}

fn links(machine: &Machine) -> impl Iterator<Item = StreamId> {
    (0..machine.streams.len()).map(StreamId::from_index)
}

/// How long at least one of some intervals lasts.
fn union(mut spans: Vec<(f64, f64)>) -> f64 {
    spans.sort_by(|a, b| a.0.total_cmp(&b.0));
    let (mut sum, mut until) = (0.0, f64::NEG_INFINITY);
    for (start, end) in spans {
        sum += (end - until.max(start)).max(0.0);
        until = until.max(end);
    }
    sum
}

fn overlap(graph: &Graph, machine: &Machine, ran: &Simulation) -> bool {
    links(machine).any(|link| {
        let ops = on_link(graph, machine, link);
        let spans = || ops.iter().map(|&op| (ran.start[op].0, ran.end[op].0));
        let sum: f64 = spans().map(|(start, end)| end - start).sum();
        union(spans().collect()) < sum * (1.0 - 1e-9)
    })
}

#[test]
fn without_overlap_nothing_differs_from_streams_that_share_nothing() {
    let (mut same, mut slowed) = (0, 0);
    for seed in 0..3000 {
        let graph = program(&mut Random(seed));
        let mut shared = machine(&graph);
        let mut apart = apart_from(&shared);
        let (a, b) = (run(&graph, &shared), run(&graph, &apart));
        let moves = graph.ops().filter(|&op| graph.kind(op).is_collective()).count();
        if moves > 3 && !overlap(&graph, &shared, &a) {
            same += 1;
            assert_eq!((&a.start, &a.end), (&b.start, &b.end), "seed {seed}");
            assert_eq!(a.exposures.len(), b.exposures.len(), "seed {seed}");
            for (a, b) in a.exposures.iter().zip(&b.exposures) {
                assert_eq!((a.at, a.of, a.start, a.cause), (b.at, b.of, b.start, b.cause));
                assert!((a.time - b.time).0.abs() <= 1e-9 * b.time.0, "seed {seed}");
            }
            assert_eq!((a.compute_idle, a.step_time), (b.compute_idle, b.step_time));
        }
        for machine in [&mut shared, &mut apart] {
            (machine.slowdown, machine.comm_slowdown) = (1.3, 1.2);
        }
        let (a, b) = (run(&graph, &shared), run(&graph, &apart));
        let gated = |op: OpId| {
            let of = graph.gated_by(op).iter();
            graph.kind(op).is_collective() && of.clone().next().is_some()
        };
        // Those that need each other start too early without sharing.
        if moves > 3 && !graph.ops().any(gated) && !overlap(&graph, &shared, &a) {
            slowed += 1;
            for op in graph.ops() {
                let apart = (a.end[op] - b.end[op]).0.abs();
                assert!(apart <= 1e-9 * b.end[op].0, "seed {seed}, {}", graph.name(op));
            }
        }
    }
    assert!(same > 100 && slowed > 20, "{same} {slowed}");
}

#[test]
fn sharing_makes_nothing_earlier_and_keeps_the_work_of_a_link() {
    let mut later = 0;
    for seed in 0..2000 {
        let graph = program(&mut Random(seed));
        let machine = machine(&graph);
        let apart = apart_from(&machine);
        let (a, b) = (run(&graph, &machine), run(&graph, &apart));
        for op in graph.ops() {
            let slack = 1e-9 * b.end[op].0;
            assert!(a.end[op].0 >= b.end[op].0 - slack, "seed {seed}, {}", graph.name(op));
        }
        later += usize::from(a.step_time > b.step_time);
        for link in links(&machine) {
            let ops = on_link(&graph, &machine, link);
            let latency = |op: OpId| {
                let sharing = machine.sharing.as_ref().unwrap();
                sharing.latency(op, machine.times.of(op)).0
            };
            let sent: f64 = ops.iter().map(|&op| machine.times.of(op).0 - latency(op)).sum();
            let spans = ops.iter().map(|&op| (a.start[op].0 + latency(op), a.end[op].0));
            let busy = union(spans.collect());
            assert!((busy - sent).abs() <= 1e-6 * sent.max(1.0), "seed {seed}: {busy} {sent}");
        }
    }
    assert!(later > 200, "{later}");
}

#[test]
fn second_communicators_have_streams_of_their_own_on_the_link_of_their_group() {
    let graph = collectives(&[("reduce_scatter", 0, 64, 100.0), ("all_gather", 1, 64, 40.0)]);
    let [first, second] = [OpId::from_index(0), OpId::from_index(1)];
    for assignment in [Assignment::SharedRanks, Assignment::EachGroup] {
        let streams = Streams::assign(&graph, assignment);
        let [a, b] = [first, second].map(|op| streams.of(op).unwrap());
        assert!(a != b && streams.link(b) == a && streams.share_links());
    }
    let streams = Streams::assign(&graph, Assignment::One);
    assert!(streams.of(first) == streams.of(second) && !streams.share_links());
    assert_eq!(graph.collective(second).unwrap().kind, CollectiveKind::AllGather);
}

#[test]
fn files_say_which_group_is_a_second_one() {
    let graph = collectives(&[("reduce_scatter", 0, 64, 100.0), ("all_gather", 1, 64, 40.0)]);
    let mut text = Vec::new();
    halflap::export::write_graph(&graph, &mut text).unwrap();
    let again = read_graph(&text).unwrap();
    assert_eq!(again.groups(), graph.groups());
    assert_eq!(run(&again, &machine(&again)).end, run(&graph, &machine(&graph)).end);
    let text = String::from_utf8(text).unwrap();
    let field = r#""second_of":"dp""#;
    assert!(text.contains(field), "{text}");
    let refused = |from: &str, to: &str| {
        read_graph(text.replace(from, to).as_bytes()).unwrap_err().to_string()
    };
    let unknown = refused(field, r#""second_of":"tp""#);
    assert!(unknown.contains("'dp.2' is second_of 'tp', which is not among"), "{unknown}");
    let itself = refused(field, r#""second_of":"dp.2""#);
    assert!(itself.contains("is that group itself"), "{itself}");
    let other = refused(r#""ranks":[0,1],"second"#, r#""ranks":[1,0],"second"#);
    assert!(other.contains("their ranks or sets differ"), "{other}");
}
