//! Fusion: a value that only one kernel reads is computed in it, and never stored.
//!
//! Launches are visited from last to first, each once all its readers are final. One joins its
//! readers if
//! - only launches read its result, and the next writer to that memory is the last of them;
//! - they are one kernel, or it only remaps indices (a broadcast, a transpose): then every reader
//!   does so itself. Several kernels also compute integers themselves if that is quick and they
//!   then read and write less memory in all;
//! - what it reads is the same when the readers run;
//! - it computes nothing, or no wait, call or loop lies in between, so that compute keeps hiding
//!   the same communication. It may pass a start, which then starts sooner;
//! - no step requests more than the plan's peak: its inputs live until its readers have run, its
//!   result is never allocated. What its inputs need more is often spared once they are computed by
//!   the readers as well, so it may join for now; where the peak is exceeded in the end, the plan
//!   is fused again without such joins;
//! - the kernel compiler accepts them as one kernel without intermediate memory.
//!
//! A kernel runs where the last of its instructions ran: starts, waits and results stay where they
//! are.

use std::collections::{BTreeSet, HashMap};
use std::ops::RangeInclusive;

use super::peak::levels;
use super::{Check, Fused, Plan, PlanStep, PlannedWork, Program};
use crate::ids::{InstrId, SlotId};
use crate::{ElementType, Module, Opcode, SlotOrigin};
use halflap::ids::IdVec;
use halflap::units::Bytes;

/// The maximum number of instructions in a kernel: the values of more would not fit the L1 cache.
const MOST: usize = 48;

/// Fuses launches. `fits` says whether instructions, in order, can be one kernel without
/// intermediate memory. The result is equivalent; its peak is at most that of the given program.
pub fn fuse(
    module: &Module,
    program: Program,
    mut fits: impl FnMut(&[InstrId]) -> bool,
) -> Program {
    let mut fused = program.clone();
    let mut known: HashMap<Vec<InstrId>, bool> = HashMap::new();
    let mut fits = |instrs: &[InstrId]| match known.get(instrs) {
        Some(&is_kernel) => is_kernel,
        None => {
            let is_kernel = fits(instrs);
            known.insert(instrs.to_vec(), is_kernel);
            is_kernel
        }
    };
    for (id, levels) in levels(&program).iter() {
        fused.plans[id] = fused_plan(module, &program.plans[id], levels, &mut fits);
    }
    name_kernels(module, &mut fused);
    // A callee in lent memory can have its peak elsewhere.
    if fused.peak() > program.peak() { program } else { fused }
}

/// Fuses the launches of a plan, again and again, until no step requests more than its peak.
fn fused_plan(
    module: &Module,
    plan: &Plan,
    levels: &[Bytes],
    fits: &mut impl FnMut(&[InstrId]) -> bool,
) -> Plan {
    const TRIES: usize = 6;
    let mut never = BTreeSet::new();
    for number in 0.. {
        let is_strict = number == TRIES;
        let mut fuser = Fuser::new(module, plan, levels.to_vec());
        fuser.strict = if is_strict { (0..plan.steps.len()).collect() } else { never.clone() };
        fuser.run(fits);
        let over = fuser.over();
        if over.is_empty() {
            return fuser.finish();
        }
        never.extend(over);
    }
    plan.clone()
}

struct Fuser<'a> {
    module: &'a Module,
    plan: &'a Plan,
    /// Every remaining launch, with everything that joined it.
    works: Vec<Option<PlannedWork>>,
    /// The steps that read each slot.
    readers: IdVec<SlotId, Vec<usize>>,
    /// The steps that write each slot, or may.
    writers: IdVec<SlotId, Vec<usize>>,
    /// The step that allocates each slot, and the last one in which it is alive.
    life: IdVec<SlotId, (Option<usize>, Option<usize>)>,
    /// The number of waits, calls and loops before each step.
    barriers: Vec<usize>,
    /// The requested bytes while each step runs, and their limit.
    levels: Vec<Bytes>,
    limit: Bytes,
    /// The launches that may not join if a step would then request more than the limit.
    strict: BTreeSet<usize>,
    /// Those that did, and the steps that request more.
    lenient: Vec<(usize, RangeInclusive<usize>)>,
}

impl<'a> Fuser<'a> {
    fn new(module: &'a Module, plan: &'a Plan, levels: Vec<Bytes>) -> Fuser<'a> {
        let (slots, steps) = (plan.storage.slots.len(), plan.steps.len());
        let limit = levels.iter().copied().max().unwrap_or(Bytes::ZERO);
        let mut fuser = Fuser {
            module,
            plan,
            works: vec![None; steps],
            readers: IdVec::filled(Vec::new(), slots),
            writers: IdVec::filled(Vec::new(), slots),
            life: IdVec::filled((None, None), slots),
            barriers: vec![0; steps + 1],
            levels,
            limit,
            strict: BTreeSet::new(),
            lenient: Vec::new(),
        };
        plan.steps.iter().enumerate().for_each(|(place, step)| fuser.note(place, step));
        fuser
    }

    /// Records what a step reads and writes.
    fn note(&mut self, place: usize, step: &PlanStep) {
        match step {
            PlanStep::Alloc(slot) => self.life[*slot].0 = Some(place),
            PlanStep::Free(slot) => self.life[*slot].1 = Some(place),
            PlanStep::Launch(work) | PlanStep::Start { work, .. } => {
                work.reads.iter().for_each(|&slot| self.readers[slot].push(place));
                work.writes.iter().for_each(|&slot| self.writers[slot].push(place));
            }
            PlanStep::Wait(_) => {}
            PlanStep::Call(call) => self.touch(place, call.slots()),
            PlanStep::Loop(repeat) => self.touch(place, repeat.slots()),
            PlanStep::Branch { selector, branches, .. } => {
                self.touch(place, branches.iter().flat_map(|call| call.slots()).chain([*selector]));
            }
        }
        if let PlanStep::Launch(work) = step {
            self.works[place] = Some(work.clone());
        }
        let is_barrier = !matches!(
            step,
            PlanStep::Alloc(_) | PlanStep::Free(_) | PlanStep::Launch(_) | PlanStep::Start { .. }
        );
        self.barriers[place + 1] = self.barriers[place] + usize::from(is_barrier);
    }

    /// A step that runs other plans may read and write all its arguments.
    fn touch(&mut self, place: usize, slots: impl Iterator<Item = SlotId>) {
        for slot in slots {
            self.readers[slot].push(place);
            self.writers[slot].push(place);
        }
    }

    fn run(&mut self, fits: &mut impl FnMut(&[InstrId]) -> bool) {
        // Numbers that are used as arrays first: what reads them may need their memory.
        let all = 0..self.plan.steps.len();
        let spread = all.clone().rev().filter(|&place| self.is_spread(place)).collect::<Vec<_>>();
        for place in spread.into_iter().chain(all.rev()) {
            if let Some((change, joined)) = self.joined(place, fits) {
                if !self.is_within_limit(place, &change) {
                    self.lenient.push((place, place..=change.last));
                }
                self.join(place, change, joined);
            }
        }
    }

    /// The launches that made steps request more than the limit.
    fn over(&self) -> Vec<usize> {
        let is_over = |step: usize| self.levels[step] > self.limit;
        let lenient = self.lenient.iter().filter(|(_, steps)| steps.clone().any(is_over));
        lenient.map(|(place, _)| *place).collect()
    }

    /// Whether a launch makes an array of a much smaller one, or of nothing.
    fn is_spread(&self, place: usize) -> bool {
        const FACTOR: i64 = 64;
        let Some(work) = &self.works[place] else { return false };
        let size = |slots: &[SlotId]| -> i64 {
            slots.iter().map(|&slot| self.plan.storage.slots[slot].size.0).sum()
        };
        let opcode = self.module.instruction(work.instr).opcode;
        matches!(opcode, Opcode::Broadcast | Opcode::Iota)
            && size(&work.reads) * FACTOR <= size(&work.writes)
    }

    /// The resulting kernels if a launch joins its readers, and the effect; `None` if it stays.
    fn joined(
        &self,
        place: usize,
        fits: &mut impl FnMut(&[InstrId]) -> bool,
    ) -> Option<(FusionChange, Vec<(usize, PlannedWork)>)> {
        let work = self.works[place].as_ref()?;
        let opcode = self.module.instruction(work.instr).opcode;
        if !only_finds(opcode) && !opcode.is_elementwise() {
            return None;
        }
        let change = self.change(place)?;
        let is_repeated = !only_finds(opcode) && change.readers.len() > 1;
        let may_exceed = is_repeated && !self.strict.contains(&place);
        let is_possible = (!is_repeated || is_quick(opcode) && self.is_of_bits(work.instr))
            && (only_finds(opcode) || self.barriers[place] == self.barriers[change.last])
            && self.stays(&work.reads, place, change.last)
            && (may_exceed || self.is_within_limit(place, &change));
        if !is_possible {
            return None;
        }
        let mut joined = Vec::with_capacity(change.readers.len());
        for &reader in &change.readers {
            joined.push((reader, self.with(self.works[reader].as_ref()?, work, change.slot)?));
        }
        let is_worth = !is_repeated || self.saves_memory(work, change.slot, &joined);
        let is_kernel = |(_, with): &(usize, PlannedWork)| fits(&with.instrs());
        (is_worth && joined.iter().all(is_kernel)).then_some((change, joined))
    }

    /// Whether an instruction gives integers or booleans. Chains of real numbers that several
    /// kernels read end in reductions and multiplications, and computing them for each took longer.
    fn is_of_bits(&self, instr: InstrId) -> bool {
        use ElementType as E;
        let array = self.module.instruction(instr).shape.array();
        let bits = |element| matches!(element, E::U32 | E::U64 | E::S32 | E::S64 | E::Pred);
        array.is_some_and(|array| bits(array.element))
    }

    /// Whether kernels that compute a launch themselves move fewer bytes than they would if it
    /// wrote its result and they read it. Computing it again counts as half a pass over the result.
    fn saves_memory(
        &self,
        work: &PlannedWork,
        slot: SlotId,
        joined: &[(usize, PlannedWork)],
    ) -> bool {
        let read = |work: &PlannedWork| -> Bytes {
            work.reads.iter().map(|&slot| self.plan.storage.slots[slot].size).sum()
        };
        let result = self.plan.storage.slots[slot].size.0;
        let readers = joined.iter().filter_map(|(place, _)| self.works[*place].as_ref());
        let before = read(work).0 + result + readers.map(read).sum::<Bytes>().0;
        let after = joined.iter().map(|(_, with)| read(with)).sum::<Bytes>().0;
        after + result * (joined.len() as i64 - 1) / 2 < before
    }

    /// The changes if a launch's result is no longer in memory; `None` if another step needs it
    /// there.
    fn change(&self, place: usize) -> Option<FusionChange> {
        let &[slot] = &self.works[place].as_ref()?.writes[..] else { return None };
        let is_first = self.plan.storage.slots[slot].origin == SlotOrigin::Made
            && self.writers[slot].iter().all(|&writer| writer >= place);
        let next = self.writers[slot].iter().copied().filter(|&writer| writer > place).min();
        let until = next.unwrap_or(usize::MAX);
        let mut readers = self.readers[slot].clone();
        readers.retain(|&reader| place < reader && reader <= until);
        let last = readers.iter().copied().max()?;
        // The next writer must be the last reader, which overwrites the slot anyway.
        let is_seen = match next {
            Some(next) => next != last,
            None => self.plan.results.contains(&slot),
        };
        let (alloc, end) = self.life[slot];
        let spared = match (is_first, next) {
            (true, _) if alloc.is_none() => return None,
            (true, None) => Some((alloc?, end?)),
            (true, Some(next)) => {
                alloc.filter(|&alloc| alloc < next).map(|alloc| (alloc, next - 1))
            }
            (false, _) => None,
        };
        (!is_seen).then_some(FusionChange {
            slot,
            readers,
            last,
            spared,
            is_gone: is_first && next.is_none(),
        })
    }

    /// Whether no step writes to slots between two steps. The last may write what it reads.
    fn stays(&self, slots: &[SlotId], from: usize, last: usize) -> bool {
        let is_written = |slot: &SlotId| {
            self.writers[*slot].iter().any(|&writer| from < writer && writer < last)
        };
        !slots.iter().any(is_written)
    }

    /// The slots that live longer when they are read by `last`, and until when they lived.
    fn prolonged<'s>(
        &'s self,
        work: &'s PlannedWork,
        last: usize,
    ) -> impl Iterator<Item = (SlotId, usize)> + 's {
        let ends = move |&slot: &SlotId| {
            self.life[slot].1.filter(|&end| end < last).map(|end| (slot, end))
        };
        work.reads.iter().filter_map(ends)
    }

    /// Whether no step requests more than the plan's peak when a launch is computed by its readers.
    fn is_within_limit(&self, place: usize, change: &FusionChange) -> bool {
        let Some(work) = &self.works[place] else { return true };
        let size = |slot: SlotId| self.plan.storage.slots[slot].size;
        let prolonged: Vec<(SlotId, usize)> = self.prolonged(work, change.last).collect();
        let Some(first) = prolonged.iter().map(|(_, end)| end + 1).min() else { return true };
        (first..=change.last).all(|step| {
            let more: Bytes =
                prolonged.iter().filter(|(_, end)| step > *end).map(|&(slot, _)| size(slot)).sum();
            let is_spared = change.spared.is_some_and(|(from, to)| from <= step && step <= to);
            let less = if is_spared { size(change.slot) } else { Bytes::ZERO };
            self.levels[step] + more - less <= self.limit
        })
    }

    /// A kernel that computes a launch as well, instead of reading its result.
    fn with(&self, reader: &PlannedWork, work: &PlannedWork, slot: SlotId) -> Option<PlannedWork> {
        let mut instrs = reader.instrs();
        if !self.reads_directly(&instrs, work.instr, slot) {
            return None;
        }
        instrs.extend(work.instrs());
        instrs.sort_unstable();
        instrs.dedup();
        if instrs.len() > MOST {
            return None;
        }
        instrs.retain(|&instr| instr != reader.instr);
        let mut reads = reader.reads.clone();
        reads.retain(|&read| read != slot);
        for &read in &work.reads {
            if !reads.contains(&read) {
                reads.push(read);
            }
        }
        let fused = Some(Fused { name: String::new(), with: instrs });
        Some(PlannedWork { instr: reader.instr, fused, reads, writes: reader.writes.clone() })
    }

    /// Whether everything that instructions read from a slot is the result of `maker`, directly or
    /// through bitcasts, or was written by one of them.
    fn reads_directly(&self, instrs: &[InstrId], maker: InstrId, slot: SlotId) -> bool {
        let operands = instrs.iter().flat_map(|&instr| self.module.operands(instr));
        operands
            .filter(|operand| self.plan.storage.of_operand(self.module, operand).contains(&slot))
            .all(|operand| {
                let mut at = operand.of;
                while at != maker && self.module.instruction(at).opcode == Opcode::Bitcast {
                    at = self.module.operands(at)[0].of;
                }
                at == maker || instrs.contains(&at)
            })
    }

    fn join(&mut self, place: usize, change: FusionChange, joined: Vec<(usize, PlannedWork)>) {
        let Some(work) = self.works[place].take() else { return };
        let FusionChange { slot: gives, readers, last, spared, is_gone } = change;
        let size = |slot: SlotId| self.plan.storage.slots[slot].size;
        if let Some((from, to)) = spared {
            self.levels[from..=to].iter_mut().for_each(|level| *level -= size(gives));
            self.life[gives].0 = Some(to + 1);
        }
        if is_gone {
            self.life[gives] = (None, None);
        }
        self.writers[gives].retain(|&writer| writer != place);
        self.readers[gives].retain(|reader| !readers.contains(reader));
        for &slot in &work.reads {
            self.readers[slot].retain(|reader| *reader != place && !readers.contains(reader));
            self.readers[slot].extend(&readers);
            if let Some(end) = self.life[slot].1.filter(|&end| end < last) {
                self.levels[end + 1..=last].iter_mut().for_each(|level| *level += size(slot));
                self.life[slot].1 = Some(last);
            }
        }
        joined.into_iter().for_each(|(place, work)| self.works[place] = Some(work));
    }

    /// The resulting plan: fused launches are gone, and memory is allocated and freed when needed.
    fn finish(self) -> Plan {
        let count = self.plan.steps.len();
        let (mut before, mut after) = (vec![Vec::new(); count], vec![Vec::new(); count]);
        for step in &self.plan.steps {
            match *step {
                PlanStep::Alloc(slot) => {
                    self.life[slot].0.into_iter().for_each(|place| before[place].push(slot))
                }
                PlanStep::Free(slot) => {
                    self.life[slot].1.into_iter().for_each(|place| after[place].push(slot))
                }
                _ => {}
            }
        }
        let mut steps = Vec::with_capacity(count);
        let (mut moved_to, mut starts_at) = (vec![0; count], vec![0; count + 1]);
        for (place, step) in self.plan.steps.iter().enumerate() {
            steps.extend(before[place].iter().map(|&slot| PlanStep::Alloc(slot)));
            moved_to[place] = steps.len();
            match step {
                PlanStep::Alloc(_) | PlanStep::Free(_) => {}
                PlanStep::Launch(_) => {
                    steps.extend(self.works[place].clone().map(PlanStep::Launch))
                }
                PlanStep::Wait(start) => steps.push(PlanStep::Wait(moved_to[*start])),
                other => steps.push(other.clone()),
            }
            steps.extend(after[place].iter().map(|&slot| PlanStep::Free(slot)));
            starts_at[place + 1] = steps.len();
        }
        let checks = self.checks(&before, &after, &starts_at);
        Plan { steps, checks, ..self.plan.clone() }
    }

    /// The expected allocations and frees at the new steps, moved along with what moved.
    fn checks(
        &self,
        before: &[Vec<SlotId>],
        after: &[Vec<SlotId>],
        starts_at: &[usize],
    ) -> Vec<Check> {
        let slots = self.plan.storage.slots.len();
        let (mut is_allocated, mut is_freed) =
            (IdVec::filled(false, slots), IdVec::filled(false, slots));
        for step in &self.plan.steps {
            match *step {
                PlanStep::Alloc(slot) => is_allocated[slot] = true,
                PlanStep::Free(slot) => is_freed[slot] = true,
                _ => {}
            }
        }
        let mut place = 0;
        let mut found = Vec::with_capacity(self.plan.checks.len());
        for check in &self.plan.checks {
            // Allocations by callees stay where they were.
            let mut own = check.clone();
            own.born.retain(|&slot| !is_allocated[slot]);
            own.died.retain(|&slot| !is_freed[slot]);
            let new = place..check.before.max(place);
            own.born.extend(before[new.clone()].iter().flatten());
            own.died.extend(after[new.clone()].iter().flatten());
            own.before = starts_at[check.before];
            place = new.end;
            found.push(own);
        }
        found
    }
}

/// What changes when a launch joins its readers.
struct FusionChange {
    /// Its result is in here.
    slot: SlotId,
    /// Its readers, and the last of them.
    readers: Vec<usize>,
    last: usize,
    /// The steps in which the slot is not needed any more.
    spared: Option<(usize, usize)>,
    /// Whether it is never needed.
    is_gone: bool,
}

/// Whether computing an element takes about as long as reading it.
fn is_quick(opcode: Opcode) -> bool {
    use Opcode as O;
    matches!(
        opcode,
        O::Add
            | O::Subtract
            | O::Multiply
            | O::Maximum
            | O::Minimum
            | O::And
            | O::Or
            | O::Xor
            | O::Not
            | O::Negate
            | O::Abs
            | O::Compare
            | O::Select
            | O::ShiftLeft
            | O::ShiftRightLogical
            | O::ShiftRightArithmetic
    )
}

/// Whether an instruction only remaps indices: each of its readers may do so itself.
pub fn only_finds(opcode: Opcode) -> bool {
    matches!(
        opcode,
        Opcode::Broadcast
            | Opcode::Iota
            | Opcode::Reshape
            | Opcode::Transpose
            | Opcode::Slice
            | Opcode::Reverse
            | Opcode::Copy
    )
}

/// `fused_`, the last few operations that compute, and a number: that of the kernel among all that
/// were fused.
fn name_kernels(module: &Module, program: &mut Program) {
    const SHOWN: usize = 4;
    let mut number = 0;
    for plan in program.plans.as_mut_slice() {
        for step in &mut plan.steps {
            let PlanStep::Launch(work) = step else { continue };
            let instrs = work.instrs();
            let Some(fused) = &mut work.fused else { continue };
            let mut words: Vec<&str> = Vec::new();
            for &instr in
                instrs.iter().rev().filter(|&&instr| !only_finds(module.instruction(instr).opcode))
            {
                let word = module.opcode_name(instr);
                if !words.contains(&word) && words.len() < SHOWN {
                    words.insert(0, word);
                }
            }
            if words.is_empty() {
                words.push(module.opcode_name(work.instr));
            }
            fused.name = format!("fused_{}_{number}", words.join("_"));
            number += 1;
        }
    }
}
