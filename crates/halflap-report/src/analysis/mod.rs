//! An analysis of traces, for people and for machines.

mod advice;
mod json;
mod names;
mod text;

pub use advice::analysis_advice;
pub use json::write_analysis;
pub(super) use names::without_middle;
pub use text::render_analysis;
pub(super) use text::{file_name, idle_text, spread, spread_text};

use super::text::{count, printable, ranks};
use crate::observe::{
    Analysis, Arithmetic, GroupName, KernelUse, Oddities, Processor, Rank, TraceGroup,
};
use crate::rates::KernelRate;
use halflap::units::Nanos;

/// Notes for readers of the figures, one sentence each.
pub fn analysis_notes(analysis: &Analysis) -> Vec<String> {
    let mut notes: Vec<String> = analysis.ranks.iter().flat_map(rank_notes).collect();
    let mut ranks: Vec<u32> = analysis.ranks.iter().filter_map(|rank| rank.rank).collect();
    ranks.sort_unstable();
    notes.extend(world_note(analysis));
    if let Some(twice) = ranks.windows(2).find(|pair| pair[0] == pair[1]) {
        notes.push(format!(
            "two traces claim to be rank {}: they are treated as two ranks",
            twice[0]
        ));
    }
    if analysis.ranks.len() > 1 {
        peer_notes(analysis, &mut notes);
    }
    notes
}

/// No profiler records that long; a single wrong timestamp stretches everything to it.
const IMPLAUSIBLE: Nanos = Nanos(3600e9);

/// Whether the traces can be of one job.
fn world_note(analysis: &Analysis) -> Option<String> {
    let mut sizes: Vec<u32> = analysis.ranks.iter().filter_map(|rank| rank.world_size).collect();
    sizes.sort_unstable();
    sizes.dedup();
    let words: Vec<String> = sizes.iter().map(u32::to_string).collect();
    let said = format!(
        "the traces give different numbers of ranks ({}): they may be of several jobs",
        words.join(" and ")
    );
    (sizes.len() > 1).then_some(said)
}

fn rank_notes(rank: &Rank) -> Vec<String> {
    let Oddities { negative, endless, open_list, gloo, unseen_waits } = rank.oddities;
    let processor = rank.processor.name();
    let events = |number: u64| count(number as usize, &format!("{processor} event"));
    let label = printable(&rank.label);
    let mut notes = Vec::new();
    let mut note =
        |applies: bool, text: String| notes.extend(applies.then(|| format!("{label}: {text}")));
    note(negative > 0, format!("{} with a negative duration, dropped", events(negative)));
    note(endless > 0, format!("{} without a duration, counted as zero", events(endless)));
    let unclosed = "the list of events is not closed; the events that are there are used";
    note(open_list, unclosed.to_owned());
    let span = rank.times.span;
    let apart = format!(
        "first and last {processor} event are {span} apart: some of its times must be wrong"
    );
    note(span > IMPLAUSIBLE, apart);
    note(rank.devices > 1, format!("work of {} GPUs, analysed as that of one", rank.devices));
    note(
        gloo > 0,
        format!("{} over gloo, dropped: only GPU work counts", count(gloo as usize, "collective")),
    );
    let unseen = "its compiled code waits for collectives where the profiler does not see it \
                  (cpp_wrapper); \
        that time counts as compute, so exposed time is at least what is said";
    note(unseen_waits, unseen.to_owned());
    let any =
        |is: fn(&GroupName) -> bool| rank.groups.as_slice().iter().any(|group| is(&group.name));
    let streams = "names no process groups; each stream of collectives counts as one".to_owned();
    note(any(|name| matches!(name, GroupName::Stream(_))), streams);
    let one =
        "does not say to which group its collectives belong; one is assumed for all".to_owned();
    note(any(|name| matches!(name, GroupName::Gloo)), one);
    let several = "does not say to which of its groups its collectives belong; they are not \
                   compared with other ranks'";
    note(any(|name| matches!(name, GroupName::OneOf(_))), several.to_owned());
    notes
}

fn peer_notes(analysis: &Analysis, notes: &mut Vec<String>) {
    let peers = &analysis.peers;
    for (rank, clock) in analysis.ranks.iter().zip(&peers.clocks) {
        if clock.is_none() {
            let label = printable(&rank.label);
            notes.push(format!(
                "{label}: no collective relates its clock to the others; its times start at its \
                 own first event"
            ));
        }
    }
    if peers.matches.is_empty() {
        notes.push("no collective was found on two ranks: waiting is not known".to_owned());
        return;
    }
    if peers.incomplete() {
        notes.push(
            "some ranks of some groups have no trace here: waiting is a lower limit".to_owned(),
        );
    }
    let unmatched: usize = peers.ranks.iter().map(|rank| rank.unmatched).sum();
    if unmatched > 0 {
        let matched: usize = peers.ranks.iter().map(|rank| rank.matched).sum();
        notes.push(format!(
            "{unmatched} of {} were not found on any other rank",
            count(matched + unmatched, "collective")
        ));
    }
    let disagree: usize = peers.ranks.iter().map(|rank| rank.disagree).sum();
    if disagree > 0 {
        notes.push(format!(
            "{disagree} collectives have a number that other ranks give to something else"
        ));
    }
}

/// What the traces are of: CPUs, or GPUs if any is.
pub(super) fn work_name(analysis: &Analysis) -> &'static str {
    let of_cpu = analysis.ranks.iter().all(|rank| rank.processor == Processor::Cpu);
    if of_cpu { Processor::Cpu.work() } else { Processor::Gpu.work() }
}

/// How fast a kernel computed, on all ranks that launch it: compared with the first one's GPU.
pub(super) fn kernel_rate(uses: &[(&Rank, &KernelUse)]) -> Option<KernelRate> {
    let device = uses.first().and_then(|(rank, _)| rank.preset()).map(|(_, device)| device);
    let all = uses.iter().map(|(_, used)| used.arithmetic);
    all.fold(Arithmetic::default(), Arithmetic::and).rate(device.as_ref())
}

/// A group's name and members, as text.
pub(super) fn group_text(group: &TraceGroup) -> (String, String) {
    let name = match group.description.as_str() {
        "" | "undefined" => group.name.text(),
        description => format!("{} ({description})", group.name.text()),
    };
    let members = match (&group.ranks, group.size()) {
        (Some(members), _) => ranks(members),
        (None, Some(size)) => count(size as usize, "rank"),
        (None, None) => "size not known".to_owned(),
    };
    (printable(&name), members)
}
