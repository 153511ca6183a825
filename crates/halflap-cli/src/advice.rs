//! A command's advice on how to shorten a step.

use std::sync::OnceLock;

use halflap::advise::{Advice, AdviceCase, advise};
use halflap::memory::Budget;
use halflap::order::Order;
use halflap::units::Nanos;
use halflap::workload::{Decided, Search};
use halflap_report::{Advised, HeldByMemory};

use crate::args::{EffortArg, SearchArgs};
use crate::ask as asked;
use crate::exit::Failed;
use crate::progress::Bar;
use crate::search::ProgramSearch;
use crate::show::Section;
use crate::source::ProgramSource;

/// How the order of a graph gets into a program.
pub const USE_ORDER: &str = "halflap.torch.enable(), called before torch.compile, finds such \
                             orders when a step is compiled; with -o FILE, this command writes it";

/// What is asked about orders.
pub struct Question<'a, T> {
    pub source: &'a ProgramSource,
    pub search: Search,
    pub decided: &'a [Decided<T>],
    pub is_searched: bool,
    /// A quick search that knows no order: what it finds within a budget.
    pub afresh: Option<&'a dyn Fn(Budget) -> Option<Vec<Order>>>,
    pub is_mergeable: bool,
}

/// Asks the library, with progress.
pub fn ask<T>(question: &Question<'_, T>) -> Result<Vec<Advice>, Failed> {
    let Question { source, search, decided, is_searched, afresh, is_mergeable } = question;
    let bar = Bar::new("looking for advice");
    let advice = advise(&AdviceCase {
        workload: &source.workload,
        model: &source.model,
        search,
        decided,
        is_searched: *is_searched,
        afresh: *afresh,
        is_mergeable: *is_mergeable,
        progress: &|part| bar.show(part),
    });
    bar.clear();
    advice.ok_or(Failed::Stopped)
}

/// The same options with a quick search: longer ones find no less.
pub fn quick(args: &SearchArgs) -> SearchArgs {
    SearchArgs { effort: Some(EffortArg::Quick), ..args.clone() }
}

/// What a search for a program's orders finds within a budget.
pub fn within(
    args: &SearchArgs,
    is_chained: bool,
    source: &ProgramSource,
    budget: Budget,
) -> Option<Vec<Order>> {
    let args = SearchArgs { memory_budget: Some(budget), ..args.clone() };
    let found = ProgramSearch::new(&args, is_chained).asked(source).ok()?;
    Some(found.into_iter().map(|unit| unit.result.order).collect())
}

/// Advice, which takes a few quick searches when it is first needed.
#[derive(Default)]
pub struct LazyAdvice {
    /// `None` if the search was stopped.
    lines: OnceLock<Option<Vec<Advice>>>,
}

impl LazyAdvice {
    /// The advice.
    pub fn get<'q, T: 'q>(&self, question: impl FnOnce() -> Question<'q, T>) -> Option<&[Advice]> {
        self.lines.get_or_init(|| ask(&question()).ok()).as_deref()
    }

    /// Whether JSON includes it, too: programs that only want the order need not wait for it.
    pub fn is_for_machines(&self) -> bool {
        !asked::is_called() || self.lines.get().is_some()
    }
}

/// Advice on a program, given the explanations of these sections.
pub fn advised<'a>(
    lines: &'a [Advice],
    sections: &[Section<'_>],
    explained: &[&Section<'_>],
    command: String,
) -> Advised<'a> {
    let entry = sections.last();
    let explanations: Vec<_> = explained.iter().map(|section| section.explanation()).collect();
    Advised {
        lines,
        step_time: entry.map_or(Nanos::ZERO, |entry| entry.result.step_time()),
        found: None,
        bound: entry.filter(|_| sections.len() == 1).map(|entry| entry.bound),
        command,
        options: Vec::new(),
        held_by_memory: HeldByMemory::of(explanations.iter().map(AsRef::as_ref)),
    }
}
