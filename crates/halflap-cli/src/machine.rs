//! The simulated machine and the search, as requested on the command line.

use halflap::cost::{Costs, Profile};
use halflap::graph::{Assignment, Edges};
use halflap::optimize::Effort;
use halflap::workload::Model;

use crate::args::{CollectiveOrder, CommStreams, EffortArg, MachineArgs};

/// What a program with these run times is simulated with.
pub fn model(costs: Costs, args: &MachineArgs) -> Model {
    let streams = match args.comm_streams {
        CommStreams::Shared => Assignment::SharedRanks,
        CommStreams::One => Assignment::One,
        CommStreams::Group => Assignment::EachGroup,
    };
    let measured =
        |of: fn(&Profile) -> Option<f64>| costs.profile.as_ref().and_then(of).unwrap_or(1.0);
    let slowdown = args.slowdown.unwrap_or_else(|| measured(|profile| profile.slowdown));
    let comm_slowdown =
        args.comm_slowdown.unwrap_or_else(|| measured(|profile| profile.comm_slowdown));
    Model { costs, streams, slowdown, comm_slowdown, launch: args.launch }
}

/// Which edges are kept: as requested, else all if collectives were chained, because chaining is
/// meant to keep them.
pub fn edges(order: Option<CollectiveOrder>, is_chained: bool) -> Edges {
    match order {
        Some(CollectiveOrder::Kept) => Edges::All,
        None if is_chained => Edges::All,
        _ => Edges::Real,
    }
}

pub fn effort(effort: EffortArg) -> Effort {
    match effort {
        EffortArg::Quick => Effort::Quick,
        EffortArg::Default => Effort::Default,
        EffortArg::Thorough => Effort::Thorough,
        EffortArg::Sketch => Effort::Sketch,
    }
}

/// All cores by default.
pub fn threads(asked: Option<u16>) -> usize {
    asked.map_or_else(|| std::thread::available_parallelism().map_or(1, usize::from), usize::from)
}
