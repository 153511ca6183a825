//! Reductions of a loop, one iteration later: the loop carries what an iteration has computed, the
//! next one reduces and stores it, and what the last one has left is reduced after the loop.
//!
//! The first iteration finds zeros. So the buffers that results go into must start as zeros, and
//! what is done with a result must make zeros of zeros.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::pipeline::{BodyReader, is_light};
use super::zeros::{Elements, Zeros};
use super::{LoopStays, RecipeSubject};
use crate::ids::InstrId;
use crate::{ElementType, Module, Opcode};

/// Reductions whose results only go into buffers that nothing else in an iteration reads.
pub(super) struct Late {
    /// The collectives that read what is carried, in text order.
    pub(super) collectives: Vec<InstrId>,
    /// They, and everything that is computed of them, in text order.
    pub(super) members: BTreeSet<InstrId>,
    /// The elements of the loop's state that they end in, and the members that give them.
    pub(super) buffers: BTreeMap<usize, InstrId>,
    /// What is carried: what they reduce, and numbers of their iteration.
    pub(super) held: Vec<InstrId>,
    /// The loop invariants that they read, with all that these are computed from, in text order.
    pub(super) invariants: BTreeSet<InstrId>,
}

/// Every reduction of a loop that can run an iteration later, and why others cannot.
pub(super) fn find(reader: &BodyReader<'_, '_>) -> (Vec<Late>, Vec<LoopStays>) {
    let (mut found, mut stay) = (Vec::new(), Vec::new());
    for seeds in groups(reader) {
        match late(reader, &seeds) {
            Ok(late) => found.push(late),
            Err(why) => stay.push(why),
        }
    }
    (found, stay)
}

/// The reductions of a loop's body; those with a common reader together.
fn groups(reader: &BodyReader<'_, '_>) -> Vec<Vec<InstrId>> {
    let module = reader.subject.module;
    let body = module.computation_of(reader.carrier.root);
    let mut groups: Vec<(Vec<InstrId>, BTreeSet<InstrId>)> = Vec::new();
    for instr in module.instructions(body).filter(|&instr| is_reduction(reader, instr)) {
        let (mut seeds, mut all) = (vec![instr], readers(reader, instr));
        let (same, other): (Vec<_>, Vec<_>) =
            groups.into_iter().partition(|(_, members)| !members.is_disjoint(&all));
        for (more, members) in same {
            seeds.extend(more);
            all.extend(members);
        }
        seeds.sort_unstable();
        groups = other;
        groups.push((seeds, all));
    }
    groups.sort();
    groups.into_iter().map(|(seeds, _)| seeds).collect()
}

/// Whether an instruction reduces something that its own iteration has computed.
fn is_reduction(reader: &BodyReader<'_, '_>, instr: InstrId) -> bool {
    let operands = reader.subject.module.operands(instr);
    matches!(reader.subject.opcode(instr), Opcode::AllReduce | Opcode::ReduceScatter)
        && !operands.iter().all(|operand| reader.element(operand.of).is_some())
}

/// An instruction and everything that is computed of it in an iteration.
fn readers(reader: &BodyReader<'_, '_>, instr: InstrId) -> BTreeSet<InstrId> {
    let (mut open, mut found) = (vec![instr], BTreeSet::new());
    while let Some(instr) = open.pop() {
        if instr != reader.carrier.root && found.insert(instr) {
            open.extend(&reader.subject.users[instr]);
        }
    }
    found
}

fn late(reader: &BodyReader<'_, '_>, seeds: &[InstrId]) -> Result<Late, LoopStays> {
    let module = reader.subject.module;
    let name = |instr: InstrId| module.instruction_name(instr).to_owned();
    let members: BTreeSet<InstrId> = seeds.iter().flat_map(|&seed| readers(reader, seed)).collect();
    let collective = || name(seeds[0]);
    let is_moved = |instr: InstrId| {
        let is_data = is_stored(module, instr)
            || matches!(reader.subject.opcode(instr), Opcode::GetTupleElement | Opcode::AllGather);
        (is_data || seeds.contains(&instr)) && reader.subject.changeable(instr).is_ok()
    };
    if let Some(&by) = members.iter().find(|&&member| !is_moved(member)) {
        return Err(LoopStays::ReadNow { reduction: collective(), by: name(by) });
    }
    let mut late = Late {
        collectives: Vec::new(),
        buffers: buffers(reader, &members),
        members,
        held: Vec::new(),
        invariants: BTreeSet::new(),
    };
    let is_buffer = |&place: &usize| reader.is_read_by(place, &late.members);
    if late.buffers.is_empty() || !late.buffers.keys().all(is_buffer) {
        return Err(LoopStays::NoBuffer { reduction: collective() });
    }
    for member in late.members.clone() {
        let needs = late.take(reader, member);
        needs
            .map_err(|needs| LoopStays::NeedsNow { reduction: collective(), needs: name(needs) })?;
    }
    match late.is_zero_at_first(reader) {
        true => Ok(late),
        false => Err(LoopStays::NotZero { reduction: collective() }),
    }
}

/// Whether an instruction only moves data or works on single elements, and stores it in a buffer,
/// also in a fusion.
fn is_stored(module: &Module, instr: InstrId) -> bool {
    match module.instruction(instr).opcode {
        Opcode::DynamicUpdateSlice | Opcode::Parameter => true,
        Opcode::Fusion => module
            .called(instr)
            .iter()
            .all(|&fused| module.instructions(fused).all(|instr| is_stored(module, instr))),
        _ => is_light(module, instr),
    }
}

/// The elements of a loop's state that members give.
fn buffers(reader: &BodyReader<'_, '_>, members: &BTreeSet<InstrId>) -> BTreeMap<usize, InstrId> {
    let places = reader.subject.module.operands(reader.carrier.root).iter().enumerate();
    places
        .filter(|(_, operand)| members.contains(&operand.of))
        .map(|(place, operand)| (place, operand.of))
        .collect()
}

impl Late {
    /// Notes what a member reads that is no member; or what cannot be carried.
    fn take(&mut self, reader: &BodyReader<'_, '_>, member: InstrId) -> Result<(), InstrId> {
        let module = reader.subject.module;
        let mut reduces = false;
        for operand in module.operands(member) {
            let of = operand.of;
            if self.members.contains(&of) {
                continue;
            }
            if reader.element(of).is_some_and(|place| self.buffers.contains_key(&place)) {
                continue;
            }
            let is_collective = reader.subject.opcode(member).is_sync_collective();
            reduces |= is_collective;
            if !module.path(operand).is_empty() {
                return Err(of);
            }
            if let Some(cone) = reader.invariant(of).filter(|_| !is_collective) {
                self.invariants.extend(cone);
            } else if !can_start_as_zero(reader.subject, of, is_collective) {
                return Err(of);
            } else if !self.held.contains(&of) {
                self.held.push(of);
            }
        }
        if reduces {
            self.collectives.push(member);
        }
        Ok(())
    }

    /// Whether the buffers start as zeros, and zeros leave them as they are.
    fn is_zero_at_first(&self, reader: &BodyReader<'_, '_>) -> bool {
        let module = reader.subject.module;
        let mut before = Zeros::new(module, HashMap::new());
        let init = module.operands(reader.carrier.init);
        let starts = |&place: &usize| {
            module.path(&init[place]).is_empty() && before.of(init[place].of) == Elements::Zero
        };
        if !self.buffers.keys().all(starts) {
            return false;
        }
        let body = module.computation_of(reader.carrier.root);
        let is_buffer = |instr: &InstrId| {
            reader.element(*instr).is_some_and(|place| self.buffers.contains_key(&place))
        };
        let zeros = module.instructions(body).filter(is_buffer).chain(self.held.iter().copied());
        let known = zeros.map(|instr| (instr, Elements::Zero)).collect();
        let mut inside = Zeros::new(module, known);
        self.buffers.values().all(|&member| inside.of(member) == Elements::Zero)
    }
}

/// Whether a value can be carried: arrays that are reduced, and numbers.
fn can_start_as_zero(subject: &RecipeSubject<'_>, instr: InstrId, is_reduced: bool) -> bool {
    let array = subject.array(instr);
    array.is_ok_and(|array| {
        array.element != ElementType::Pred && (is_reduced || array.dims.is_empty())
    })
}
