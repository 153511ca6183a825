//! What must hold on every program: 12,000 random ones, each with random settings and passes.
//!
//! The library is built with its own assertions here: that the incremental overlap equals the
//! measured one, and that no free changes hands unseen.

mod common;
#[path = "common/random.rs"]
mod random;

use std::cell::Cell;

use halflap::cost::Times;
use halflap::graph::{Assignment, Graph, OpKind, Streams};
use halflap::ids::{Id, OpId};
use halflap::memory::Timeline;
use halflap::order::Order;
use halflap::overlap::{Fidelity, Overlap};
use halflap::pass::{LedgerCheck, LedgerMismatch, Options, Pass, Runner, SwapView, Watch};
use halflap::schedule::{self, NoObserver, Request};
use halflap::units::Nanos;
use halflap::verify::{Demands, OrderEdges, verify};
use random::Random;

const GRAPHS: u64 = 12_000;

#[test]
fn fixed_passes_are_valid_deterministic_and_within_budget() {
    let moves = Cell::new(0);
    for seed in 0..GRAPHS {
        let random = &mut Random(seed);
        let graph = random::graph(random, 60);
        let options = Options { settings: random::settings(random), fidelity: Fidelity::Fixed };
        let passes = random::passes(random);
        let request =
            Request { passes: passes.clone(), options: options.clone(), check_memory: true };
        // Verified inside: permutation, edges, promises, budget; and the ledger after every swap.
        let first =
            schedule::run(&graph, &Times::given(&graph).unwrap(), &request, &mut NoObserver)
                .unwrap_or_else(|failure| panic!("seed {seed}: {failure}"));
        let unchecked = Request { check_memory: false, ..request };
        let second =
            schedule::run(&graph, &Times::given(&graph).unwrap(), &unchecked, &mut NoObserver)
                .unwrap();
        assert_eq!(first.order, second.order, "seed {seed}");
        assert!(first.passes.iter().all(|run| run.exceeded_limit.is_none()), "seed {seed}");
        assert_eq!(first.peak, Timeline::of(&graph, &first.order).peak, "seed {seed}");
        check_budget(&graph, &first, &options);
        moves.set(moves.get() + first.passes.iter().map(|run| run.moves).sum::<usize>());
    }
    assert!(moves.get() > 100_000, "only {} swaps were checked", moves.get());
}

/// The budget once more, in the words of the setting: a part of the peak that the pass was given.
fn check_budget(graph: &Graph, schedule: &schedule::Schedule, options: &Options) {
    let mut peak = schedule.peak_before;
    for run in &schedule.passes {
        let budget = match run.pass {
            Pass::ReorderCommunicationPreservingPeakMemory => {
                Some(options.settings.reorder.peak_memory_budget)
            }
            Pass::SinkWaitsIterative => Some(options.settings.sink.peak_memory_budget),
            Pass::SimpleOverlap => Some(0.0),
            _ => None,
        };
        if let Some(budget) = budget {
            assert!(
                run.peak.0 as f64 <= peak.0 as f64 * (1.0 + budget) + 1e-6,
                "{} of {}",
                run.pass.name(),
                graph.len()
            );
        }
        peak = run.peak;
    }
}

#[test]
fn torch_passes_are_valid_orders() {
    for seed in 0..GRAPHS / 2 {
        let random = &mut Random(seed + 1_000_000);
        let graph = random::graph(random, 60);
        let options = Options { settings: random::settings(random), fidelity: Fidelity::Torch };
        let request = Request { passes: random::passes(random), options, check_memory: false };
        let schedule =
            schedule::run(&graph, &Times::given(&graph).unwrap(), &request, &mut NoObserver)
                .unwrap_or_else(|failure| panic!("seed {seed}: {failure}"));
        verify(&graph, schedule.order.as_slice(), &Demands::default()).unwrap();
    }
}

/// After every swap: last uses are true, and both ends of every pair give the overlap that the
/// definition gives, worked out here word by word.
struct Invariants {
    swaps: usize,
}

impl Watch for Invariants {
    fn swapped(&mut self, view: &SwapView<'_>) -> Result<(), Box<LedgerMismatch>> {
        self.swaps += 1;
        let truth = Timeline::of(view.graph, view.order);
        for buffer in view.graph.buffers() {
            assert_eq!(view.ledger.freed_by(buffer), truth.freed_by[buffer]);
        }
        if self.swaps.is_multiple_of(7) {
            check_overlap(view.graph, view.order);
        }
        Ok(())
    }
}

#[test]
fn last_uses_stay_true_and_both_ends_of_a_pair_agree() {
    let watch = &mut Invariants { swaps: 0 };
    for seed in 0..2_000 {
        let random = &mut Random(seed + 2_000_000);
        let graph = random::graph(random, 40);
        let options = Options { settings: random::settings(random), fidelity: Fidelity::Fixed };
        for pass in [
            Pass::ReorderCommunicationPreservingPeakMemory,
            Pass::SinkWaitsIterative,
            Pass::SimpleOverlap,
        ] {
            Runner { graph: &graph, times: &Times::given(&graph).unwrap(), options: &options }
                .run(pass, &Order::of_input(&graph), watch)
                .unwrap();
        }
    }
    assert!(watch.swaps > 10_000, "only {} swaps", watch.swaps);
}

fn check_overlap(graph: &Graph, order: &Order) {
    let given = Times::given(graph).unwrap();
    let times =
        given.map(|op, time| if graph.kind(op).is_collective() { time * 2.0 } else { time });
    let overlap = Overlap::new(graph, &times, Fidelity::Fixed);
    let streams = Streams::assign(graph, Assignment::SharedRanks);
    for collective in graph.ops().filter(|&op| graph.kind(op) == OpKind::AsyncCollective) {
        let expected = overlap_by_definition(graph, &streams, (order, collective));
        let measured = overlap.of_collective(order, collective);
        assert!((measured.comp_time - expected).0.abs() < 1e-6);
        assert_eq!(measured.comm_time, graph.runtime(collective) * 2.0);
        let hidden: Nanos =
            overlap.hidden_by(order, &measured).iter().map(|&op| graph.runtime(op)).sum();
        assert!((measured.comp_time - hidden).0.abs() < 1e-6);
        for &wait in graph.waited_by(collective) {
            let last = graph.waits_for(wait).iter().max_by_key(|&&op| order.pos(op)).copied();
            if last == Some(collective) {
                let seen = overlap.of_wait(order, wait);
                assert_eq!(
                    (seen.comm_time, seen.comp_time),
                    (measured.comm_time, measured.comp_time)
                );
            }
        }
    }
}

/// The run time of the nodes other than collectives after it, up to the first of a real reader of
/// its output, a synchronous collective, or the wait of a collective on the same stream that was
/// issued after it.
fn overlap_by_definition(
    graph: &Graph,
    streams: &Streams,
    (order, collective): (&Order, OpId),
) -> Nanos {
    let mut total = Nanos::ZERO;
    let mut issued = Vec::new();
    for &op in &order.as_slice()[order.pos(collective).index() + 1..] {
        let reads = graph.kind(op) != OpKind::MultiOutput && is_handed(graph, op, collective);
        let ends_later_one = graph.waits_for(op).iter().any(|waited| issued.contains(waited));
        if reads || graph.kind(op) == OpKind::SyncCollective || ends_later_one {
            break;
        }
        match graph.kind(op) {
            OpKind::AsyncCollective if streams.of(op) == streams.of(collective) => issued.push(op),
            OpKind::AsyncCollective => {}
            _ => total += graph.runtime(op),
        }
    }
    total
}

/// Whether an operation needs a collective, itself or through multi-outputs.
fn is_handed(graph: &Graph, op: OpId, collective: OpId) -> bool {
    let awaited = graph.deps(op).iter().filter(|(_, kinds)| kinds.data || kinds.weak);
    awaited.filter_map(|&(buffer, _)| graph.maker(buffer)).any(|maker| {
        maker == collective
            || graph.kind(maker) == OpKind::MultiOutput && is_handed(graph, maker, collective)
    })
}

#[test]
fn the_fixed_passes_run_on_the_corpus_without_a_mismatch() {
    for graph in common::random_graphs()
        .iter()
        .chain([&common::program("fsdp_llama_2"), &common::program("moe_ep_6")])
    {
        for runtime in [false, true] {
            let mut options = Options { settings: Default::default(), fidelity: Fidelity::Fixed };
            options.settings.reorder.use_runtime_estimations = runtime;
            options.settings.sink.use_runtime_estimations = runtime;
            for pass in Pass::ALL {
                let check = &mut LedgerCheck { on_swap: |_| () };
                Runner { graph, times: &Times::given(graph).unwrap(), options: &options }
                    .run(pass, &Order::of_input(graph), check)
                    .unwrap();
            }
        }
    }
}

/// In torch's passes the ledger drifts; the check must see it, or it checks nothing.
#[test]
fn the_ledger_check_sees_torch_drift() {
    let mut fired = [0, 0];
    for graph in common::random_graphs() {
        let options = Options { settings: Default::default(), fidelity: Fidelity::Torch };
        let passes = [Pass::ReorderCommunicationPreservingPeakMemory, Pass::SinkWaitsIterative];
        for (index, pass) in passes.into_iter().enumerate() {
            let check = &mut LedgerCheck { on_swap: |_| () };
            let result =
                Runner { graph: &graph, times: &Times::given(&graph).unwrap(), options: &options }
                    .run(pass, &Order::of_input(&graph), check);
            fired[index] += usize::from(result.is_err());
        }
    }
    assert!(fired[0] > 0 && fired[1] > 0, "{fired:?}");
}

#[test]
fn chained_collectives_keep_their_order() {
    use halflap::graph::Chain;
    for seed in 0..1_000 {
        let random = &mut Random(seed + 3_000_000);
        let chain = if random.chance(50) { Chain::AllGroups } else { Chain::EachGroup };
        let graph = random::graph(random, 40).order_collectives(chain);
        let mut settings = random::settings(random);
        settings.reorder.unsafe_collectives_reorder = false;
        settings.sink.unsafe_collectives_reorder = false;
        let options = Options { settings, fidelity: Fidelity::Fixed };
        let request = Request { passes: random::passes(random), options, check_memory: false };
        let schedule =
            schedule::run(&graph, &Times::given(&graph).unwrap(), &request, &mut NoObserver)
                .unwrap();
        let demands = Demands { order_edges: OrderEdges::Kept, memory_limit: None };
        verify(&graph, schedule.order.as_slice(), &demands)
            .unwrap_or_else(|violation| panic!("seed {seed}: {violation}"));
    }
}
