//! The passes: each takes an order and returns a better one.
//!
//! | pass | engine |
//! | --- | --- |
//! | `sink_waits`, `raise_comms`, `reorder_compute_for_overlap` | `list`: a list scheduler |
//! | `reorder_communication_preserving_peak_memory`, `sink_waits_iterative` | `slide` in one direction |
//! | `simple_overlap` | `slide` in both, one after the other |
//!
//! A pass is a pure function of graph, order and options. It proves nothing: `verify` does.

mod limit;
mod list;
mod rules;
mod settings;
mod slide;
mod watch;

pub use crate::memory::LedgerMismatch;
pub use limit::{Limit, NotGrouped};
pub use settings::{IterativeSettings, SettingError, Settings};
pub use slide::Slide;
pub use watch::{LedgerCheck, NoWatch, SwapView, Watch};

use std::str::FromStr;

use crate::cost::Times;
use crate::graph::{Graph, OpKind};
use crate::ids::OpId;
use crate::memory::{InputCharge, Ledger};
use crate::nearest::Unknown;
use crate::order::{Direction, Order};
use crate::overlap::{Fidelity, Overlap};
use crate::units::Bytes;
use list::Goals;
use rules::Rules;
use slide::Slider;

/// A pass, by the name that torch gives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pass {
    /// Waits as late as possible.
    SinkWaits,
    /// Collectives as early as possible.
    RaiseComms,
    /// Both, with compute placed behind each collective until it is hidden.
    ReorderComputeForOverlap,
    /// Collectives earlier, one swap at a time, within a memory budget.
    ReorderCommunicationPreservingPeakMemory,
    /// Waits later, one swap at a time, within a memory budget.
    SinkWaitsIterative,
    /// Both by swaps of neighbours, without run times and without more memory: torch 2.15's
    /// default.
    SimpleOverlap,
}

impl Pass {
    /// All passes.
    pub const ALL: [Pass; 6] = [
        Pass::SinkWaits,
        Pass::RaiseComms,
        Pass::ReorderComputeForOverlap,
        Pass::ReorderCommunicationPreservingPeakMemory,
        Pass::SinkWaitsIterative,
        Pass::SimpleOverlap,
    ];

    /// The name that torch gives it.
    pub fn name(self) -> &'static str {
        match self {
            Pass::SinkWaits => "sink_waits",
            Pass::RaiseComms => "raise_comms",
            Pass::ReorderComputeForOverlap => "reorder_compute_for_overlap",
            Pass::ReorderCommunicationPreservingPeakMemory => {
                "reorder_communication_preserving_peak_memory"
            }
            Pass::SinkWaitsIterative => "sink_waits_iterative",
            Pass::SimpleOverlap => "simple_overlap",
        }
    }

    /// Whether it builds an order from the edges alone, regardless of edges that the input order
    /// broke.
    pub fn sorts_anew(self) -> bool {
        matches!(self, Pass::SinkWaits | Pass::RaiseComms | Pass::ReorderComputeForOverlap)
    }

    /// Whether it slides operations of a kind one by one.
    pub fn slides(self, kind: OpKind) -> bool {
        match kind {
            OpKind::AsyncCollective => {
                matches!(self, Pass::ReorderCommunicationPreservingPeakMemory | Pass::SimpleOverlap)
            }
            OpKind::Wait => matches!(self, Pass::SinkWaitsIterative | Pass::SimpleOverlap),
            OpKind::Compute | OpKind::SyncCollective | OpKind::MultiOutput => false,
        }
    }

    /// What every order that the pass returns guarantees, relative to its input order.
    pub fn promise(self, options: &Options) -> Promise {
        let iterative = |settings: &IterativeSettings| Promise {
            order_edges: options.fidelity == Fidelity::Fixed
                && !settings.unsafe_collectives_reorder,
            peak_budget: Some(settings.peak_memory_budget),
        };
        match self {
            Pass::SinkWaits | Pass::RaiseComms | Pass::ReorderComputeForOverlap => {
                Promise { order_edges: true, peak_budget: None }
            }
            Pass::ReorderCommunicationPreservingPeakMemory => iterative(&options.settings.reorder),
            Pass::SinkWaitsIterative => iterative(&options.settings.sink),
            Pass::SimpleOverlap => Promise { order_edges: true, peak_budget: Some(0.0) },
        }
    }
}

impl FromStr for Pass {
    type Err = Unknown;
    fn from_str(name: &str) -> Result<Pass, Unknown> {
        let found = Pass::ALL.into_iter().find(|pass| pass.name() == name);
        found.ok_or_else(|| Unknown::new("pass", name, Pass::ALL.map(Pass::name)))
    }
}

/// What a pass guarantees.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Promise {
    /// Order-only edges that the given order kept are kept.
    pub order_edges: bool,
    /// The fraction of the given order's peak by which the new peak may exceed it; `None` for no
    /// limit.
    pub peak_budget: Option<f64>,
}

impl Promise {
    /// The memory limit, if the pass was given an order with that peak.
    pub fn memory_limit(self, peak: Bytes) -> Option<Bytes> {
        self.peak_budget.map(|budget| within_budget(peak, budget))
    }
}

/// The largest integer number of bytes that exceeds `peak` by at most the fraction `budget`.
fn within_budget(peak: Bytes, budget: f64) -> Bytes {
    Bytes(peak.0.saturating_add((peak.0 as f64 * budget).floor() as i64))
}

/// How passes behave.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// Torch's settings.
    pub settings: Settings,
    /// Torch's behaviour, or fixed.
    pub fidelity: Fidelity,
}

/// What a pass did.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PassOutcome {
    /// The new order.
    pub order: Order,
    /// Swaps made; none by a list scheduler.
    pub moves: usize,
    /// One for each operation that was slid, in the order in which it was.
    pub slides: Vec<Slide>,
}

/// Runs passes on one program.
#[derive(Clone, Copy, Debug)]
pub struct Runner<'a> {
    /// The program.
    pub graph: &'a Graph,
    /// How long its operations take.
    pub times: &'a Times,
    /// How the passes behave.
    pub options: &'a Options,
}

impl Runner<'_> {
    /// Runs one pass on an order. `watch` sees every swap, and may end the pass.
    pub fn run<W: Watch>(
        &self,
        pass: Pass,
        order: &Order,
        watch: &mut W,
    ) -> Result<PassOutcome, Box<LedgerMismatch>> {
        let goals = match pass {
            Pass::SinkWaits => Goals { raise_comms: false, sink_waits: true, overlap: false },
            Pass::RaiseComms => Goals { raise_comms: true, sink_waits: false, overlap: false },
            Pass::ReorderComputeForOverlap => {
                Goals { raise_comms: true, sink_waits: true, overlap: true }
            }
            _ => return self.iterate(pass, order, watch),
        };
        let ops = list::schedule(self, order, goals);
        let order = Order::from_ops(self.graph.len(), ops)
            .expect("the list scheduler takes each operation once");
        Ok(PassOutcome { order, moves: 0, slides: Vec::new() })
    }

    /// Runs a pass that slides operations one after the other.
    fn iterate<W: Watch>(
        &self,
        pass: Pass,
        order: &Order,
        watch: &mut W,
    ) -> Result<PassOutcome, Box<LedgerMismatch>> {
        let Runner { graph, times, options } = *self;
        let Options { settings, fidelity } = options;
        let scale = |op| {
            if graph.kind(op).is_collective() { settings.comm_mult } else { settings.non_comm_mult }
        };
        let overlap = Overlap::new(graph, &times.map(|op, time| time * scale(op)), *fidelity);
        let charge = match fidelity {
            Fidelity::Torch => InputCharge::FirstOperation,
            Fidelity::Fixed => InputCharge::Baseline,
        };
        let ledger = Ledger::open(graph, order, charge);
        let mut slider = Slider::new(graph, &overlap, ledger, order.clone());
        let ops = order.as_slice();
        match pass {
            Pass::ReorderCommunicationPreservingPeakMemory => {
                // Torch never looks at the last operation.
                let targets = ops[..ops.len().saturating_sub(1)].iter().copied();
                let collectives = of_kind(graph, targets, OpKind::AsyncCollective);
                let most = settings.reorder.debug_limit.unwrap_or(usize::MAX);
                slider.slide_all(collectives.take(most), Rules::reorder(options), watch)?;
            }
            Pass::SinkWaitsIterative => {
                // Torch never looks at the first operation.
                let targets = ops.iter().skip(1).rev().copied();
                let waits = of_kind(graph, targets, OpKind::Wait);
                let most = settings.sink.debug_limit.unwrap_or(usize::MAX);
                slider.slide_all(waits.take(most), Rules::sink(options), watch)?;
            }
            _ => {
                let collectives = of_kind(graph, ops.iter().copied(), OpKind::AsyncCollective);
                slider.slide_all(
                    collectives,
                    Rules::simple(Direction::Earlier, *fidelity),
                    watch,
                )?;
                let waits = of_kind(graph, ops.iter().rev().copied(), OpKind::Wait);
                slider.slide_all(waits, Rules::simple(Direction::Later, *fidelity), watch)?;
            }
        }
        Ok(slider.finish())
    }
}

fn of_kind(
    graph: &Graph,
    ops: impl Iterator<Item = OpId>,
    kind: OpKind,
) -> impl Iterator<Item = OpId> {
    ops.filter(move |&op| graph.kind(op) == kind)
}
