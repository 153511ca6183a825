//! An analysis of traces, for people and for machines.

mod json;
mod names;
mod text;

pub use json::write_analysis;
pub(super) use names::without_middle;
pub use text::render_analysis;

use super::text::{count, printable, ranks};
use crate::observe::{Analysis, Group, GroupName, Oddities, Rank};
use crate::units::Nanos;

/// What a reader of the figures should know, one sentence each.
pub fn analysis_notes(analysis: &Analysis) -> Vec<String> {
    let mut notes: Vec<String> = analysis.ranks.iter().flat_map(rank_notes).collect();
    let mut ranks: Vec<u32> = analysis.ranks.iter().filter_map(|rank| rank.rank).collect();
    ranks.sort_unstable();
    notes.extend(world_note(analysis));
    if let Some(twice) = ranks.windows(2).find(|pair| pair[0] == pair[1]) {
        notes.push(format!("two traces say that they are rank {}: they are taken as two ranks", twice[0]));
    }
    if analysis.ranks.len() > 1 {
        peer_notes(analysis, &mut notes);
    }
    notes
}

/// No profiler records that long; a single wrong time stretches everything to it.
const IMPLAUSIBLE: Nanos = Nanos(3600e9);

/// Whether the traces can be of one job.
fn world_note(analysis: &Analysis) -> Option<String> {
    let mut sizes: Vec<u32> = analysis.ranks.iter().filter_map(|rank| rank.world_size).collect();
    sizes.sort_unstable();
    sizes.dedup();
    let words: Vec<String> = sizes.iter().map(u32::to_string).collect();
    let said = format!("the traces say that there are {} ranks: they may be of several jobs", words.join(" and "));
    (sizes.len() > 1).then_some(said)
}

fn rank_notes(rank: &Rank) -> Vec<String> {
    let Oddities { negative, endless, open_list } = rank.oddities;
    let label = printable(&rank.label);
    let mut notes = Vec::new();
    let mut note = |applies: bool, text: String| notes.extend(applies.then(|| format!("{label}: {text}")));
    note(negative > 0, format!("{} with a negative duration left out", count(negative as usize, "GPU event")));
    note(endless > 0, format!("{} without a duration taken as of none", count(endless as usize, "GPU event")));
    note(open_list, "the list of events has no end; what is there is taken".to_owned());
    let span = rank.times.span;
    note(span > IMPLAUSIBLE, format!("first and last GPU event are {span} apart: some of its times must be wrong"));
    note(rank.devices > 1, format!("work of {} GPUs is taken as that of one", rank.devices));
    let nameless = |group: &Group| matches!(group.name, GroupName::Stream(_));
    let stand_in = rank.groups.as_slice().iter().any(nameless);
    note(stand_in, "names no process groups; the streams of its collectives stand for them".to_owned());
    notes
}

fn peer_notes(analysis: &Analysis, notes: &mut Vec<String>) {
    let peers = &analysis.peers;
    for (rank, clock) in analysis.ranks.iter().zip(&peers.clocks) {
        if clock.is_none() {
            let label = printable(&rank.label);
            notes.push(format!(
                "{label}: nothing connects its clock with the others; its times count from its own start"
            ));
        }
    }
    if peers.matches.is_empty() {
        notes.push("no collective was found on two ranks: waiting is not known".to_owned());
        return;
    }
    if peers.incomplete() {
        notes.push("not all ranks of all groups have a trace here: waiting is at least what is said".to_owned());
    }
    let unmatched: usize = peers.ranks.iter().map(|rank| rank.unmatched).sum();
    if unmatched > 0 {
        let matched: usize = peers.ranks.iter().map(|rank| rank.matched).sum();
        notes.push(format!("{unmatched} of {} were found on no other rank", count(matched + unmatched, "collective")));
    }
    let disagree: usize = peers.ranks.iter().map(|rank| rank.disagree).sum();
    if disagree > 0 {
        notes.push(format!("{disagree} collectives have a number that other ranks give to something else"));
    }
}

/// What a group is called, and who is in it, in words.
pub(super) fn group_text(group: &Group) -> (String, String) {
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
