//! Advice: what it promises comes true, and it is the same on any number of threads.

use std::ops::ControlFlow;

use halflap::advise::{Advice, AdviceCase, Lever, advise};
use halflap::graph::Edges;
use halflap::import::read_graph;
use halflap::memory::Budget;
use halflap::optimize::Effort;
use halflap::workload::{Decided, Decision, Model, Search, SearchError, Workload};

fn workload(name: &str) -> Workload {
    let path = format!("{}/../../tests/corpus/{name}.graph.json.gz", env!("CARGO_MANIFEST_DIR"));
    Workload::from(read_graph(&std::fs::read(path).unwrap()).unwrap())
}

fn quick(edges: Edges) -> Search {
    Search { edges, effort: Effort::Quick, threads: 2, ..Search::default() }
}

fn found(workload: &Workload, search: &Search) -> Decision {
    workload.optimize(&Model::default(), search).unwrap()
}

fn asked(workload: &Workload, search: &Search) -> Vec<Advice> {
    asked_about(workload, search, &found(workload, search).units, true)
}

fn asked_about<T>(
    workload: &Workload,
    search: &Search,
    decided: &[Decided<T>],
    is_searched: bool,
) -> Vec<Advice> {
    advise(&AdviceCase {
        workload,
        model: &Model::default(),
        search,
        decided,
        is_searched,
        afresh: None,
        is_mergeable: true,
        progress: &|_| ControlFlow::Continue(()),
    })
    .unwrap()
}

/// A search as the advice says is as good as it says, with the effort that was asked for and with
/// more.
#[test]
fn what_more_memory_promises_comes_true() {
    let mut seen = 0;
    for (name, times) in [("fsdp_llama_2", 0.9), ("moe_ep_6", 1.0), ("fsdp_backward", 1.0)] {
        let memory = Budget::Times(times);
        let (workload, search) = (workload(name), Search { memory, ..quick(Edges::Real) });
        for advice in asked(&workload, &search) {
            let Lever::Memory { budget, more } = advice.lever else { continue };
            seen += 1;
            for effort in [Effort::Quick, Effort::Default] {
                let after = found(&workload, &Search { memory: budget, effort, ..search.clone() });
                let step = after.step_time().after;
                assert!(step <= advice.step_time, "{name}: {advice:?}, but {effort:?} {step}");
            }
            assert!(!advice.is_at_most && more.0 > 0 && budget != Budget::Times(1.0), "{advice:?}");
        }
    }
    assert!(seen > 0, "no program of these gains from memory");
}

#[test]
fn collectives_that_keep_their_order_are_worth_a_line() {
    let workload = workload("fsdp_backward");
    let lines = asked(&workload, &quick(Edges::All));
    let free = lines.iter().find(|advice| advice.lever == Lever::FreeOrder);
    let free = free.unwrap_or_else(|| panic!("{lines:?}"));
    let kept = found(&workload, &quick(Edges::All)).step_time().after;
    assert_eq!(free.step_time + free.saves, kept);
}

#[test]
fn lines_are_ranked_and_few_and_worth_it() {
    for name in ["fsdp_llama_2", "moe_ep_6", "ddp_mlp_4", "fsdp_tp_llama_4"] {
        let (workload, search) = (workload(name), quick(Edges::Real));
        let lines = asked(&workload, &search);
        let step = found(&workload, &search).step_time().after;
        assert!(lines.len() <= 3, "{name}: {lines:?}");
        assert!(
            lines.is_sorted_by_key(|advice| (!advice.lever.is_option(), -advice.saves.0 as i64))
        );
        for advice in &lines {
            assert!(advice.saves.0 > 0.01 * step.0, "{name}: {advice:?}");
            assert!((advice.step_time + advice.saves - step).0.abs() < 1.0, "{name}: {advice:?}");
        }
        assert_eq!(lines, asked(&workload, &Search { threads: 1, ..search }), "{name}");
    }
}

/// What a better order saves is not counted again in the lines after it.
#[test]
fn lines_beside_a_better_order_count_what_they_save_more() {
    let (workload, search) = (workload("fsdp_llama_2"), quick(Edges::Real));
    let own = workload
        .walk(&Model::default(), |priced| Ok::<_, SearchError>((priced.input.order.clone(), ())));
    let lines = asked_about(&workload, &search, &own.unwrap(), false);
    let [reorder, others @ ..] = &lines[..] else { panic!("no advice") };
    assert_eq!(reorder.lever, Lever::Reorder, "{lines:?}");
    assert!(!others.is_empty());
    for advice in others {
        assert_eq!(advice.from, reorder.step_time, "{advice:?}");
        assert!((advice.from - advice.saves - advice.step_time).0.abs() < 1.0, "{advice:?}");
    }
}

#[test]
fn it_stops_when_told() {
    let (workload, search) = (workload("fsdp_llama_2"), quick(Edges::Real));
    let decision = found(&workload, &search);
    let stopped = advise(&AdviceCase {
        workload: &workload,
        model: &Model::default(),
        search: &search,
        decided: &decision.units,
        is_searched: true,
        afresh: None,
        is_mergeable: true,
        progress: &|_| ControlFlow::Break(()),
    });
    assert_eq!(stopped, None);
}
