//! Torch's own tests of its scheduling passes, on the graphs that they compile to: the passes give
//! the orders that they assert.
//!
//! `tests/corpus/torch_suite.json.gz` has the graphs, as torch 2.15 compiles them for the CPU with
//! a process group that does nothing, and what torch's passes made of them there. The tests are
//! those of torch's `test/distributed`, files `test_compute_comm_reordering.py` and
//! `test_inductor_collectives.py`, by the same names.

mod common;

use std::ops::Range;

use common::{corpus_json, names};
use halflap::cost::Times;
use halflap::graph::{Graph, OpKind};
use halflap::ids::OpId;
use halflap::import::read_graph;
use halflap::order::Order;
use halflap::overlap::Fidelity;
use halflap::pass::{Limit, NoWatch, Options, Pass, PassOutcome, Runner, Settings};
use halflap::units::Nanos;
use halflap::verify::{Demands, verify};
use serde_json::Value;

const BOTH: [Fidelity; 2] = [Fidelity::Torch, Fidelity::Fixed];

/// A test of torch's.
struct Case {
    graph: Graph,
    /// The passes in sequence, with the order that torch's had after each.
    steps: Vec<(Pass, Vec<String>)>,
}

impl Case {
    fn of(name: &str) -> Case {
        let all = corpus_json("torch_suite.json.gz");
        let case = all.as_array().unwrap().iter().find(|case| case["name"] == name).unwrap();
        let step = |step: &Value| {
            let order = step["order"]
                .as_array()
                .unwrap()
                .iter()
                .map(|name| name.as_str().unwrap().to_owned());
            (step["pass"].as_str().unwrap().parse().unwrap(), order.collect())
        };
        Case {
            graph: read_graph(case["graph"].to_string().as_bytes()).unwrap(),
            steps: case["steps"].as_array().unwrap().iter().map(step).collect(),
        }
    }

    /// What the last pass gives. With torch's fidelity, every pass gives torch's order.
    fn run(&self, fidelity: Fidelity) -> PassOutcome {
        let options = Options { settings: Settings::default(), fidelity };
        let runner = Runner {
            graph: &self.graph,
            times: &Times::given(&self.graph).unwrap(),
            options: &options,
        };
        let mut outcome: Option<PassOutcome> = None;
        for (pass, torch) in &self.steps {
            let order =
                outcome.map_or_else(|| Order::of_input(&self.graph), |outcome| outcome.order);
            let next = runner.run(*pass, &order, &mut NoWatch).unwrap();
            verify(&self.graph, next.order.as_slice(), &Demands::default()).unwrap();
            if fidelity == Fidelity::Torch {
                assert_eq!(names(&self.graph, &next.order), *torch, "{}", pass.name());
            }
            outcome = Some(next);
        }
        outcome.unwrap()
    }

    /// Where the operations stand that came from `what`, in sequence.
    fn places(&self, order: &Order, what: &str) -> Vec<usize> {
        let is_it = |op: OpId| self.graph.fused(op).iter().any(|fused| fused.starts_with(what));
        (0..order.len()).filter(|&place| is_it(order.as_slice()[place])).collect()
    }

    /// Each of `sequence` is found behind the one before it.
    #[track_caller]
    fn assert_sequence(&self, order: &Order, sequence: &[&str]) {
        let mut from = 0;
        for what in sequence {
            let next = self.places(order, what).into_iter().find(|&place| place >= from);
            let Some(place) = next else {
                panic!("no {what} in its place: {:?}", names(&self.graph, order))
            };
            from = place + 1;
        }
    }

    fn count(&self, order: &Order, what: &str, places: Range<usize>) -> usize {
        self.places(order, what).iter().filter(|place| places.contains(place)).count()
    }
}

#[test]
fn test_sink_waits() {
    let case = Case::of("sink_waits");
    for fidelity in BOTH {
        case.assert_sequence(
            &case.run(fidelity).order,
            &["all_reduce_.", "aten.mm", "wait_tensor", "aten.mm"],
        );
    }
}

/// The all-reduce writes what the relu reads, and so stays behind it.
#[test]
fn test_raise_comms() {
    let case = Case::of("raise_comms");
    for fidelity in BOTH {
        let order = case.run(fidelity).order;
        case.assert_sequence(
            &order,
            &["aten.mm", "aten.relu", "all_reduce_.", "aten.mm", "wait_tensor", "aten.mm"],
        );
    }
}

/// The all-reduce rises with the copy that it is made on.
#[test]
fn test_sink_waits_raise_comms() {
    let case = Case::of("sink_waits_raise_comms");
    let sequence = [
        "aten.mm",
        "all_reduce.",
        "all_reduce_.",
        "aten.relu",
        "aten.mm",
        "aten.relu",
        "aten.mm",
        "wait_tensor",
        "aten.mm",
    ];
    for fidelity in BOTH {
        case.assert_sequence(&case.run(fidelity).order, &sequence);
    }
}

/// Behind the first all-reduce comes what the second one needs, then what it does not need, then
/// what needs the first. The run times are those of the test: 100 for a collective, 5 for a
/// product, else 1.
#[test]
fn test_reorder_compute_for_overlap_custom_runtime_estimation() {
    let case = Case::of("reorder_compute_for_overlap");
    let longest = case
        .graph
        .ops()
        .filter(|&op| case.graph.kind(op) == OpKind::Compute)
        .map(|op| case.graph.runtime(op));
    assert_eq!(longest.fold(Nanos::ZERO, Nanos::max), Nanos(5e6));
    let sequence = [
        "all_reduce_.",
        "aten.relu",
        "aten.mm",
        "aten.mm",
        "wait_tensor",
        "all_reduce_.",
        "all_reduce_.",
        "wait_tensor",
        "aten.add",
        "aten.mm",
    ];
    for fidelity in BOTH {
        case.assert_sequence(&case.run(fidelity).order, &sequence);
    }
}

/// A coalesced reduce-scatter with what it needs is at the start already: nothing moves it.
#[test]
fn test_reorder_peak_memory() {
    let case = Case::of("reorder_peak_memory");
    for fidelity in BOTH {
        let outcome = case.run(fidelity);
        let sequence = ["reduce_scatter_tensor_coalesced", "wait_tensor", "wait_tensor"];
        case.assert_sequence(&outcome.order, &sequence);
        let [slide] = outcome.slides.as_slice() else { panic!("one collective is slid") };
        assert_eq!((slide.moves, slide.initial_exposed), (0, Nanos::ZERO));
        assert_eq!(slide.limit, Limit::ProgramEdge);
    }
}

/// One all-gather needs the result of the other.
#[test]
fn test_reorder_respects_wait_dep() {
    let case = Case::of("reorder_respects_wait_dep");
    for fidelity in BOTH {
        let outcome = case.run(fidelity);
        case.assert_sequence(
            &outcome.order,
            &["all_gather", "wait_tensor", "all_gather", "wait_tensor"],
        );
        assert_eq!(outcome.slides.len(), 2);
        assert!(outcome.slides.iter().all(|slide| slide.moves == 0));
    }
}

/// Buckets rise above the products together with the copies that fill them.
#[test]
fn test_reorder_peak_memory_bucketed() {
    let case = Case::of("reorder_peak_memory_bucketed");
    for fidelity in BOTH {
        let outcome = case.run(fidelity);
        let product = case.places(&outcome.order, "aten.mm")[0];
        for bucket in ["all_gather_into_tensor_out", "reduce_scatter_tensor"] {
            assert_eq!(case.count(&outcome.order, bucket, 0..outcome.order.len()), 2, "{bucket}");
            assert_eq!(case.count(&outcome.order, bucket, 0..product), 2, "{bucket}");
        }
        case.assert_sequence(&outcome.order, &["aten.mm", "aten.addmm"]);
        assert_eq!(outcome.slides.len(), 4);
    }
}
