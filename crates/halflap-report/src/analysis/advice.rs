//! What can be done about a step that was traced.

use crate::AdviceLine;
use crate::observe::{Analysis, Processor};
use halflap::units::Nanos;

/// The smallest loss, as a fraction of the time, that is worth a line.
const LEAST: f64 = 0.02;

/// The most lines of advice.
const MOST: usize = 3;

/// What the time was lost to, largest loss first, each with a remedy. Shares are of the time of all
/// ranks.
pub fn analysis_advice(analysis: &Analysis) -> Vec<AdviceLine> {
    let span: Nanos = analysis.ranks.iter().map(|rank| rank.times.span).sum();
    let ranks = analysis.ranks.len().max(1);
    let each = if ranks > 1 { " a rank" } else { "" };
    let mut found = lost(analysis);
    found.retain(|(time, _, _)| time.0 > span.0 * LEAST);
    found.sort_by(|a, b| b.0.0.total_cmp(&a.0.0));
    let line = |(time, what, action): (Nanos, String, &str)| AdviceLine {
        text: format!(
            "{what}: {:.1}% of the time ({}{each}).",
            100.0 * time.0 / span.0,
            Nanos(time.0 / ranks as f64)
        ),
        action: action.to_owned(),
        is_typed: false,
    };
    let mut lines: Vec<AdviceLine> = found.into_iter().take(MOST).map(line).collect();
    if lines.is_empty() {
        let text = "Nothing takes 2% of the time or more besides compute.".to_owned();
        lines.push(AdviceLine { text, action: String::new(), is_typed: false });
    }
    lines
}

fn lost(analysis: &Analysis) -> Vec<(Nanos, String, &'static str)> {
    let ranks = &analysis.ranks;
    let sum = |of: &dyn Fn(&crate::observe::Rank) -> Nanos| ranks.iter().map(of).sum::<Nanos>();
    let waiting: Nanos = analysis.peers.ranks.iter().map(|rank| rank.waiting).sum();
    let exposed = sum(&|rank| rank.times.exposed);
    let mut all = vec![
        (
            sum(&|rank| rank.idle.host),
            "The GPU waits for the host, which is busy and launches nothing".to_owned(),
            "capture the step in CUDA graphs (torch.compile(mode=\"reduce-overhead\")), or launch \
             fewer and larger kernels",
        ),
        (
            sum(&|rank| rank.idle.synchronisation),
            "The GPU waits while the host waits for it".to_owned(),
            "leave out .item(), .cpu() and torch.cuda.synchronize() in the step",
        ),
        (
            sum(&|rank| rank.idle.launch),
            "Launches of short kernels leave gaps".to_owned(),
            "fuse kernels (torch.compile), or capture them in CUDA graphs",
        ),
        (
            sum(&|rank| rank.idle.waiting),
            "Kernels that were launched wait for copies or other streams".to_owned(),
            "copy ahead of use, from pinned memory with non_blocking=True",
        ),
        (
            sum(&|rank| rank.times.memory_alone()),
            "Copies and fills run while nothing else does".to_owned(),
            "copy on a stream of its own, from pinned memory with non_blocking=True; keep on the GPU \
             what is copied back and forth",
        ),
        (
            (exposed - waiting).max(Nanos::ZERO),
            format!("Communication is exposed{}", most_exposed(analysis)),
            "overlap it: halflap.torch.enable(), or halflap schedule on the captured graph",
        ),
        (
            waiting.min(exposed),
            format!("Ranks wait in collectives for others{}", last_to_arrive(analysis)),
            "balance the work of the ranks",
        ),
    ];
    if ranks.iter().any(|rank| rank.processor == Processor::Cpu) {
        // CPU operators are not launched: idle time there is Python, or waiting.
        let idle = sum(&|rank| rank.times.idle);
        all.push((
            idle,
            "No operator runs: Python, or waiting that leaves no event".to_owned(),
            "compile the step (torch.compile), so that less Python runs between operators",
        ));
    }
    all
}

/// `, most of it in all_reduce`.
fn most_exposed(analysis: &Analysis) -> String {
    let operations = analysis.ranks.iter().flat_map(|rank| &rank.operations);
    let most = operations.max_by(|a, b| a.exposed.0.total_cmp(&b.exposed.0));
    most.map_or(String::new(), |most| format!(", most in {}", most.operation.name()))
}

/// `, most often for rank 3`.
fn last_to_arrive(analysis: &Analysis) -> String {
    let places = 0..analysis.peers.ranks.len();
    let most = places.max_by_key(|&place| (analysis.peers.ranks[place].last, usize::MAX - place));
    let name = |place: usize| format!(", most often for rank {}", analysis.ranks[place].name());
    most.filter(|&place| analysis.peers.ranks[place].last > 0).map_or(String::new(), name)
}
