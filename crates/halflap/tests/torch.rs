//! With torch's fidelity every pass gives what torch gave: the same order, peak and statistics, on
//! every graph of the corpus.

mod common;

use common::{Case, cases, names};
use halflap::cost::Times;
use halflap::graph::Graph;
use halflap::memory::Timeline;
use halflap::order::Order;
use halflap::overlap::Fidelity;
use halflap::pass::{Limit, NoWatch, Options, Pass, Runner, Settings, Slide};
use serde_json::Value;

#[test]
fn every_result_of_the_corpus_is_reproduced() {
    let mut compared = 0;
    for case in cases() {
        for result in case.results.iter().filter(|result| result["order"].is_array()) {
            compare(&case, result);
            compared += 1;
        }
    }
    // 175 for the captured programs and 24 for each of the 80 random graphs, less what torch did
    // not finish: a corpus that went missing must not pass.
    assert!(compared > 2_000, "only {compared} results compared");
}

fn compare(case: &Case, result: &Value) {
    let graph = &case.graph;
    let context = format!("{} {} {}", case.name, result["passes"], result["config"]);
    let options = Options { settings: settings(&result["settings"]), fidelity: Fidelity::Torch };
    let mut order = Order::of_input(graph);
    let mut slides = Vec::new();
    for name in strings(&result["passes"]) {
        let pass: Pass = name.parse().unwrap();
        let outcome = Runner { graph, times: &Times::given(graph).unwrap(), options: &options }
            .run(pass, &order, &mut NoWatch)
            .unwrap();
        (order, slides) = (outcome.order, outcome.slides);
    }
    assert_eq!(names(graph, &order), strings(&result["order"]), "{context}");
    assert_eq!(
        Some(Timeline::of(graph, &order).peak.0),
        result["peak_memory"].as_i64(),
        "{context}"
    );
    if let Some(stats) = result["stats"].as_object() {
        assert_eq!(slides.len(), stats.len(), "{context}");
        for slide in &slides {
            compare_slide(graph, slide, &stats[graph.name(slide.op)], &context);
        }
    }
}

fn compare_slide(graph: &Graph, slide: &Slide, torch: &Value, context: &str) {
    let context = format!("{context} {}", graph.name(slide.op));
    assert_eq!(Some(slide.moves as u64), torch["moves"].as_u64(), "{context}");
    assert_eq!(Some(slide.grouped_with.len() as u64), torch["grouped"].as_u64(), "{context}");
    assert_eq!(Some(slide.comm_time.0), torch["comm_time"].as_f64(), "{context}");
    assert_eq!(Some(slide.comp_time.0), torch["comp_time"].as_f64(), "{context}");
    assert_eq!(Some(slide.initial_exposed.0), torch["initial_exposed"].as_f64(), "{context}");
    assert_eq!(Some(slide.final_exposed.0), torch["final_exposed"].as_f64(), "{context}");
    let text = torch["limiting_factor"].as_str().unwrap();
    assert!(
        says_the_same(graph, &slide.limit, text),
        "{context}: {:?}, torch says {text}",
        slide.limit
    );
}

/// Whether torch's prose means the same as the limit, with the same values.
fn says_the_same(graph: &Graph, limit: &Limit, text: &str) -> bool {
    match *limit {
        Limit::ProgramEdge => text == "None",
        Limit::FullyHidden => text == "unexposed by runtime estimations",
        Limit::CollectiveOrder { with } => {
            let name = graph.name(with);
            text == "collective ordering"
                || text == format!("candidate contains_async_collective {name}")
                || text.starts_with("collective ordering")
                    && text.ends_with(&format!("candidate:{name}"))
        }
        Limit::DataDependency { on, .. } => {
            text.starts_with("data dependency")
                && text.contains(&format!("\n candidate:{}(", graph.name(on)))
        }
        Limit::ExposedTimeGrows { candidate, .. } => {
            text.starts_with("candidate has compute")
                || text.starts_with("candidate is wait")
                || text.starts_with(&format!("candidate {} is collective", graph.name(candidate)))
        }
        Limit::PeakMemory { would_be, base, .. } => {
            text == format!("peak memory new:{} vs base:{}", would_be.0, base.0)
        }
    }
}

fn settings(changed: &Value) -> Settings {
    let mut settings = Settings::default();
    for (name, value) in changed.as_object().unwrap() {
        settings.set(name, &value.to_string()).unwrap();
    }
    settings
}

fn strings(list: &Value) -> Vec<&str> {
    list.as_array().unwrap().iter().map(|item| item.as_str().unwrap()).collect()
}
