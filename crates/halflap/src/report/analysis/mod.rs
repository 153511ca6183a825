//! An analysis of traces, for people and for machines.

mod json;
mod text;

pub use json::write_analysis;
pub use text::render_analysis;

use super::text::{count, printable, ranks};
use crate::observe::{Analysis, Group, GroupName, Oddities, Rank};

/// What a reader of the figures should know, one sentence each.
pub fn analysis_notes(analysis: &Analysis) -> Vec<String> {
    let mut notes: Vec<String> = analysis.ranks.iter().flat_map(rank_notes).collect();
    let mut ranks: Vec<u32> = analysis.ranks.iter().filter_map(|rank| rank.rank).collect();
    ranks.sort_unstable();
    if let Some(twice) = ranks.windows(2).find(|pair| pair[0] == pair[1]) {
        notes.push(format!("two traces say that they are rank {}: they are taken as two ranks", twice[0]));
    }
    if analysis.ranks.len() > 1 {
        peer_notes(analysis, &mut notes);
    }
    notes
}

fn rank_notes(rank: &Rank) -> Vec<String> {
    let Oddities { negative, endless, open_list } = rank.oddities;
    let label = printable(&rank.label);
    let mut notes = Vec::new();
    let mut note = |applies: bool, text: String| notes.extend(applies.then(|| format!("{label}: {text}")));
    note(negative > 0, format!("{} with a negative duration left out", count(negative as usize, "GPU event")));
    note(endless > 0, format!("{} without a duration taken as of none", count(endless as usize, "GPU event")));
    note(open_list, "the list of events has no end; what is there is taken".to_owned());
    note(rank.devices > 1, format!("work of {} GPUs is taken as that of one", rank.devices));
    let nameless = |group: &Group| matches!(group.name, GroupName::Stream(_));
    let stand_in = rank.groups.as_slice().iter().any(nameless);
    note(stand_in, "names no process groups; the streams of its collectives stand for them".to_owned());
    notes
}

fn peer_notes(analysis: &Analysis, notes: &mut Vec<String>) {
    let peers = &analysis.peers;
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
        (None, None) => "?".to_owned(),
    };
    (printable(&name), members)
}
