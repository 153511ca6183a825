//! Collectives that are in flight at once must not share a channel.

use std::collections::BTreeMap;

use crate::ids::InstrId;
use crate::{Module, Phase, nature};

/// The first two collectives on one channel, of which the second starts before the first has ended,
/// in the text's sequence.
pub(super) fn in_flight_together(module: &Module) -> Option<[InstrId; 2]> {
    for computation in module.computations() {
        let mut open: BTreeMap<&str, InstrId> = BTreeMap::new();
        for instr in module.instructions(computation) {
            let opcode = module.instruction(instr).opcode;
            let phase = opcode.phase();
            if phase == Some(Phase::Done) {
                let ended = started(module, instr);
                open.retain(|_, start| Some(*start) != ended);
            }
            let starts = phase == Some(Phase::Start);
            let (inner, is_collective) = nature::started(module, instr);
            if !is_collective || !starts && phase.is_some() {
                continue;
            }
            let Some(channel) = module.attribute(inner, "channel_id") else { continue };
            if let Some(&first) = open.get(channel) {
                return Some([first, instr]);
            }
            if starts {
                open.insert(channel, instr);
            }
        }
    }
    None
}

/// The start that a done belongs to.
fn started(module: &Module, done: InstrId) -> Option<InstrId> {
    let mut at = done;
    loop {
        at = module.operands(at).first()?.of;
        match module.instruction(at).opcode.phase() {
            Some(Phase::Start) => return Some(at),
            Some(_) => {}
            None => return None,
        }
    }
}
