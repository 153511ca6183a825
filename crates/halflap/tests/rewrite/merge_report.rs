//! What reports and robustness say of merged programs.

use halflap::cost::{Costs, Times};
use halflap::evaluate::{Evaluation, Setup, Side};
use halflap::graph::Edges;
use halflap::order::Order;
use halflap::origin::Origin;
use halflap::overlap::Fidelity;
use halflap::pass::{Options, Pass, Settings};
use halflap::rewrite::{Rewritten, merge_named};
use halflap::robustness::Robustness;
use halflap::schedule::{self, NoObserver, Request};
use halflap::simulate::{Machine, lower_bound};
use halflap::units::{Bytes, Nanos};
use halflap_report::{Compared, Summary, carried};

use crate::common;
use crate::programs::{named, pair, prices, read};

/// Through an origin that changes nothing, everything is compared as without one.
#[test]
fn an_unchanged_program_is_compared_as_ever() {
    let options = Options { settings: Settings::default(), fidelity: Fidelity::Fixed };
    let request = Request { passes: vec![Pass::SimpleOverlap], options, check_memory: false };
    for name in &common::PROGRAMS[..4] {
        let graph = &common::program(name);
        let machine = &Machine::new(graph, Times::given(graph).unwrap());
        let setup = Setup { graph, machine };
        let schedule = schedule::run(graph, &machine.times, &request, &mut NoObserver).unwrap();
        let origin = Origin::unchanged(graph);
        let input = Evaluation::of(setup, Order::of_input(graph));
        let found = Evaluation::of(setup, schedule.order);
        let (before, after) =
            (Side { setup, evaluation: &input }, Side { setup, evaluation: &found });
        let plain = Robustness::of(graph, machine, input.order.as_slice(), found.order.as_slice());
        assert_eq!(Robustness::between(before, after, &origin), plain, "{name}");
        let bound = lower_bound(graph, machine, Edges::Real, Bytes(i64::MAX));
        let summary = |origin| {
            Summary::of(&Compared { before, after, origin, passes: &schedule.passes }, bound)
        };
        let (plain, through) = (summary(None), summary(Some(&origin)));
        assert_eq!(format!("{plain:?}"), format!("{through:?}"), "{name}");
    }
}

/// A merged collective has what its members had, and begins where the first of them did.
#[test]
fn a_summary_adds_up_what_was_merged() {
    let graph = &read(&pair("all_reduce", [64, 128, 32], [64, 128, 32]));
    let costs = Costs::default();
    let Rewritten { graph: new, origin } =
        merge_named(graph, &named(&["a.comm", "b.comm"]), &prices(&costs)).unwrap();
    let [machine, on] =
        [graph, &new].map(|graph| Machine::new(graph, Times::given(graph).unwrap()));
    let (old, changed) = (Setup { graph, machine: &machine }, Setup { graph: &new, machine: &on });
    let [run, merged] =
        [old, changed].map(|setup| Evaluation::of(setup, Order::of_input(setup.graph)));
    let before = Side { setup: old, evaluation: &run };
    let after = Side { setup: changed, evaluation: &merged };
    let bound = lower_bound(&new, &on, Edges::Real, Bytes(i64::MAX));
    let summary =
        Summary::of(&Compared { before, after, origin: Some(&origin), passes: &[] }, bound);
    let row = summary.rows.iter().find(|row| new.name(row.op) == "a.comm_x2").unwrap();
    // 164 and 228 ns, of which nothing hides anything; it stands two places behind that of a.
    assert_eq!(
        (row.estimated_before, row.time, row.shift),
        (Nanos(164.0 + 228.0), Nanos(292.0), 2)
    );
    let run = &run.simulation;
    let was = carried(&origin, run);
    let (a, b) = (graph.find("a.comm").unwrap(), graph.find("b.comm").unwrap());
    assert_eq!((was.start[row.op], was.end[row.op]), (run.start[a], run.end[b]));
    assert_eq!(was.exposures.len(), run.exposures.len());
}
