//! Gathers of a loop one iteration ahead, and reductions one iteration later: what an iteration
//! needs is gathered in the previous one, and for the first one before the loop; what it leaves
//! unreduced is reduced in the next one, and for the last one after the loop. The loop carries one
//! more buffer for each.
//!
//! A loop's values do not move in memory. So an iteration writes into the buffer that it has read
//! for the last time, or into another one that is copied at its end.

use std::collections::{BTreeSet, HashMap};

use super::later::{self, Late};
use super::{CarriedBuffers, LoopStays, RecipeSubject, Refusal, Shift};
use crate::draft::{Draft, DraftLine, after_name, grown, read_name, with_operands};
use crate::ids::{ComputationId, InstrId};
use crate::split::shape_text;
use crate::{Module, Opcode, Operand};

/// The change to a loop.
pub(super) struct PipelinePlan<'s, 'm> {
    subject: &'s RecipeSubject<'m>,
    carrier: Carrier,
    gathers: Vec<Gathered>,
    lates: Vec<Late>,
}

/// A loop, and the instructions that its carried values go through.
pub(super) struct Carrier {
    looped: InstrId,
    /// The tuple that it starts with.
    pub(super) init: InstrId,
    /// The parameters of its body and of its condition.
    parameters: [InstrId; 2],
    /// The tuple that an iteration ends with.
    pub(super) root: InstrId,
}

/// A gather, and what it is computed from.
struct Gathered {
    collective: InstrId,
    /// Everything between the loop's parameter and the gather, in text order.
    cone: Vec<InstrId>,
}

/// The collectives of a loop that can run in another iteration, or why none can.
pub(super) fn plan<'s, 'm>(
    subject: &'s RecipeSubject<'m>,
    looped: InstrId,
    shifts: &[Shift],
) -> Result<PipelinePlan<'s, 'm>, LoopStays> {
    let carrier = carrier(subject, looped)?;
    let reader = BodyReader { subject, carrier: &carrier };
    let module = subject.module;
    let all: Vec<InstrId> = module
        .instructions(module.computation_of(carrier.root))
        .filter(|&instr| shifts.contains(&Shift::Ahead) && reader.is_gather(instr))
        .collect();
    let gathers: Vec<Gathered> =
        all.iter().filter_map(|&instr| reader.gathered(instr).ok()).collect();
    let (lates, stay) = match shifts.contains(&Shift::Later) {
        true => later::find(&reader),
        false => (Vec::new(), Vec::new()),
    };
    let lates: Vec<Late> =
        lates.into_iter().filter(|late| carrier.is_read_after(subject, late)).collect();
    if !gathers.is_empty() || !lates.is_empty() {
        return Ok(PipelinePlan { subject, carrier, gathers, lates });
    }
    let name = |instr| module.instruction_name(instr).to_owned();
    let ahead = all.into_iter().find_map(|gather| {
        let needs = name(reader.gathered(gather).err()?);
        Some(LoopStays::NotAhead { gather: name(gather), needs })
    });
    Err(ahead.or(stay.into_iter().next()).unwrap_or(LoopStays::NoneLeft))
}

/// The same for some collectives of one loop.
pub(super) fn plan_of<'s, 'm>(
    subject: &'s RecipeSubject<'m>,
    members: &[InstrId],
) -> Result<PipelinePlan<'s, 'm>, Refusal> {
    let module = subject.module;
    let body = members.first().map(|&member| module.computation_of(member));
    let is_body = |instr: &InstrId| {
        subject.opcode(*instr) == Opcode::While && module.computation_in(*instr, "body") == body
    };
    let mut all = module.computations().flat_map(|id| module.instructions(id));
    let looped = all.find(is_body).ok_or(Refusal::Loop)?;
    let mut plan = plan(subject, looped, &Shift::ALL).map_err(|why| match why {
        LoopStays::Controls | LoopStays::Shared | LoopStays::Values => Refusal::Loop,
        _ => Refusal::NotShifted,
    })?;
    plan.gathers.retain(|gather| members.contains(&gather.collective));
    plan.lates.retain(|late| late.collectives.iter().all(|of| members.contains(of)));
    let planned: usize = plan.lates.iter().map(|late| late.collectives.len()).sum();
    match plan.gathers.len() + planned == members.len() {
        true => Ok(plan),
        false => Err(Refusal::NotShifted),
    }
}

/// A loop that can carry more: its values begin and end each iteration as elements of one tuple,
/// and nothing else runs its computations.
fn carrier(subject: &RecipeSubject<'_>, looped: InstrId) -> Result<Carrier, LoopStays> {
    let module = subject.module;
    subject.changeable(looped).map_err(|_| LoopStays::Controls)?;
    let run = |key| module.computation_in(looped, key).ok_or(LoopStays::Values);
    let runs = [run("body")?, run("condition")?];
    let is_shared = |id: ComputationId| {
        let all = module.computations().flat_map(|id| module.instructions(id));
        all.filter(|&instr| module.called(instr).contains(&id)).count() != 1
    };
    if runs.into_iter().any(is_shared) {
        return Err(LoopStays::Shared);
    }
    let parameter = |id| match module.parameters(id)[..] {
        [Some(only)] => Ok(only),
        _ => Err(LoopStays::Values),
    };
    let parameters = [parameter(runs[0])?, parameter(runs[1])?];
    let [init] = module.operands(looped) else { return Err(LoopStays::Values) };
    let (init, root) = (init.of, module.root(runs[0]));
    let is_tuple = |instr: InstrId| subject.opcode(instr) == Opcode::Tuple;
    let in_elements = |instr: InstrId| {
        !subject.is_root(instr)
            && subject.users[instr].iter().all(|&user| is_plain_element(module, user))
    };
    let is_carrier = is_tuple(init)
        && is_tuple(root)
        && module.operands(init).len() == module.operands(root).len()
        && [looped, parameters[0], parameters[1]].into_iter().all(in_elements);
    match is_carrier {
        true => Ok(Carrier { looped, init, parameters, root }),
        false => Err(LoopStays::Values),
    }
}

/// A tuple element whose type is not written in the text, because that would have to change, too.
fn is_plain_element(module: &Module, instr: InstrId) -> bool {
    module.instruction(instr).opcode == Opcode::GetTupleElement
        && !module.payload(instr).contains('(')
}

impl Carrier {
    /// Whether what a loop's buffers hold in the end is read, all of it as they have it.
    fn is_read_after(&self, subject: &RecipeSubject<'_>, late: &Late) -> bool {
        let module = subject.module;
        late.buffers.iter().all(|(&place, &member)| {
            let readers = self.results(subject, place);
            let shape = shape_text(module, member);
            !readers.is_empty() && readers.iter().all(|&reader| shape_text(module, reader) == shape)
        })
    }

    /// The instructions that take an element of the loop's result.
    fn results(&self, subject: &RecipeSubject<'_>, place: usize) -> Vec<InstrId> {
        let users = subject.users[self.looped].iter().copied();
        let is_of = |&user: &InstrId| subject.module.tuple_index(user) == u32::try_from(place).ok();
        users.filter(is_of).collect()
    }
}

/// What is known of a loop's body.
pub(super) struct BodyReader<'a, 'm> {
    pub(super) subject: &'a RecipeSubject<'m>,
    pub(super) carrier: &'a Carrier,
}

impl BodyReader<'_, '_> {
    /// Whether an instruction gathers something that its own iteration reads.
    fn is_gather(&self, collective: InstrId) -> bool {
        // A gather that only the next iteration reads is already ahead.
        let users = &self.subject.users;
        let goes_on = |&user: &InstrId| {
            let is_copied = || users[user].iter().all(|&user| user == self.carrier.root);
            user == self.carrier.root || self.subject.opcode(user) == Opcode::Copy && is_copied()
        };
        let module = self.subject.module;
        self.subject.opcode(collective) == Opcode::AllGather
            && !users[collective].iter().all(goes_on)
            && self.subject.changeable(collective).is_ok()
            && module.instruction(collective).shape.array().is_some()
            && module.operands(collective).len() == 1
    }

    /// A gather with everything it is computed from; or the value that is not known early enough.
    fn gathered(&self, collective: InstrId) -> Result<Gathered, InstrId> {
        let operands = self.subject.module.operands(collective).iter();
        let cone = self.cone(operands.map(|operand| operand.of).collect())?;
        Ok(Gathered { collective, cone })
    }

    /// Everything that values are computed from, up to elements of the loop's parameter, whose next
    /// values must be known before an iteration ends. If one is not, or if it takes more than
    /// moving data, the first such instruction.
    fn cone(&self, of: Vec<InstrId>) -> Result<Vec<InstrId>, InstrId> {
        let module = self.subject.module;
        let (mut found, mut open) = (BTreeSet::new(), of);
        while let Some(instr) = open.pop() {
            match self.element(instr) {
                Some(element) if self.is_known_early(element) => continue,
                None if is_light(module, instr) && self.subject.changeable(instr).is_ok() => {}
                _ => return Err(instr),
            }
            if found.insert(instr) {
                open.extend(module.operands(instr).iter().map(|operand| operand.of));
            }
        }
        Ok(found.into_iter().collect())
    }

    /// What a loop invariant is computed from, with itself; `None` if a value is no invariant.
    pub(super) fn invariant(&self, of: InstrId) -> Option<Vec<InstrId>> {
        let module = self.subject.module;
        let (mut found, mut open) = (BTreeSet::new(), vec![of]);
        while let Some(instr) = open.pop() {
            match self.element(instr) {
                Some(element) if self.is_kept(element) => {}
                None if is_light(module, instr) && self.subject.changeable(instr).is_ok() => {
                    open.extend(module.operands(instr).iter().map(|operand| operand.of));
                }
                _ => return None,
            }
            found.insert(instr);
        }
        Some(found.into_iter().collect())
    }

    /// Whether an element is read in each iteration, and by some instructions alone.
    pub(super) fn is_read_by(&self, place: usize, members: &BTreeSet<InstrId>) -> bool {
        let module = self.subject.module;
        let [parameter, tested] = self.carrier.parameters;
        let users = |of: InstrId| {
            let elements = self.subject.users[of].iter();
            let is_it = |&&user: &&InstrId| {
                module.tuple_index(user).map(|index| index as usize) == Some(place)
            };
            elements.filter(is_it).flat_map(|&element| &self.subject.users[element])
        };
        users(tested).next().is_none()
            && users(parameter).next().is_some()
            && users(parameter).all(|user| members.contains(user))
    }

    /// Which element of the loop's parameter an instruction is.
    pub(super) fn element(&self, instr: InstrId) -> Option<usize> {
        let module = self.subject.module;
        let [operand] = module.operands(instr) else { return None };
        let is_element = self.subject.opcode(instr) == Opcode::GetTupleElement
            && operand.of == self.carrier.parameters[0]
            && module.path(operand).is_empty();
        is_element.then(|| module.tuple_index(instr)).flatten().map(|index| index as usize)
    }

    /// Whether an element is loop-invariant, or a counter.
    fn is_known_early(&self, element: usize) -> bool {
        self.is_kept(element) || self.is_counter(element)
    }

    /// What an element is in the next iteration.
    fn next(&self, element: usize) -> Option<InstrId> {
        let module = self.subject.module;
        let next = module.operands(self.carrier.root).get(element)?;
        module.path(next).is_empty().then_some(next.of)
    }

    fn is_kept(&self, element: usize) -> bool {
        let Some(mut next) = self.next(element) else { return false };
        while let (Opcode::Copy, [of]) =
            (self.subject.opcode(next), self.subject.module.operands(next))
        {
            next = of.of;
        }
        self.element(next) == Some(element)
    }

    /// Whether an element is a number computed from itself and from loop invariants.
    fn is_counter(&self, element: usize) -> bool {
        let module = self.subject.module;
        let is_number = |instr: InstrId| {
            let array = module.instruction(instr).shape.array();
            array.is_some_and(|array| array.dims.is_empty()) && is_light(module, instr)
        };
        let mut open: Vec<InstrId> = self.next(element).into_iter().collect();
        let mut seen = BTreeSet::new();
        while let Some(instr) = open.pop() {
            match self.element(instr) {
                Some(other) if other == element || self.is_kept(other) => continue,
                None if is_number(instr) => {}
                _ => return false,
            }
            if seen.insert(instr) {
                open.extend(module.operands(instr).iter().map(|operand| operand.of));
            }
        }
        !seen.is_empty()
    }
}

/// Whether an instruction only moves data, or computes element by element.
pub(super) fn is_light(module: &Module, instr: InstrId) -> bool {
    match module.instruction(instr).opcode {
        Opcode::Constant
        | Opcode::Iota
        | Opcode::Reshape
        | Opcode::Bitcast
        | Opcode::Transpose
        | Opcode::Copy
        | Opcode::Broadcast
        | Opcode::Slice
        | Opcode::DynamicSlice
        | Opcode::Pad
        | Opcode::Concatenate
        | Opcode::PartitionId
        | Opcode::ReplicaId => true,
        Opcode::Fusion => module.called(instr).iter().all(|&fused| {
            let is_parameter = |instr| module.instruction(instr).opcode == Opcode::Parameter;
            module.instructions(fused).all(|instr| is_parameter(instr) || is_light(module, instr))
        }),
        Opcode::Map => false,
        opcode => opcode.is_elementwise(),
    }
}

impl PipelinePlan<'_, '_> {
    /// The names of the collectives.
    pub(super) fn members(&self) -> Vec<String> {
        let gathers = self.gathers.iter().map(|gather| gather.collective);
        let lates = self.lates.iter().flat_map(|late| late.collectives.iter().copied());
        gathers.chain(lates).map(|instr| self.name(instr).to_owned()).collect()
    }

    /// Writes it; returns the names of the gathers that each iteration does for the next one, and
    /// of the reductions that it does for the previous one or that are done after the loop.
    pub(super) fn write(
        self,
        draft: &mut Draft<'_>,
        buffers: CarriedBuffers,
    ) -> Result<String, Refusal> {
        let Carrier { looped, init, parameters, root } = self.carrier;
        let whole = [looped, init, parameters[0], parameters[1], root];
        if !whole.into_iter().chain(self.changed()).all(|instr| draft.is_untouched(instr)) {
            return Err(Refusal::Changed);
        }
        // Nothing is written unless all of it can be.
        if !whole.into_iter().all(|instr| self.is_written_out(instr)) {
            return Err(Refusal::Loop);
        }
        let carried = self.gathers.iter().map(|gather| gather.collective).chain(self.held());
        let shapes: Vec<String> = carried.map(|instr| shape_text(self.module(), instr)).collect();
        for parameter in parameters {
            let text = grown(after_name(self.module(), parameter), &shapes);
            let name = self.name(parameter).to_owned();
            draft.replace(parameter, DraftLine { name, text, reads: Vec::new() });
            draft.grow_head(parameter, &shapes);
        }
        self.write_before(draft, &shapes);
        let mut names = match buffers {
            CarriedBuffers::One => self.write_next(draft, self.carrier.root),
            CarriedBuffers::Two => self.write_next(draft, parameters[0]),
        };
        self.write_body(draft, &GatheredAhead { shapes: &shapes, names: &names, buffers });
        self.remove_unread(draft);
        let first = self.module().operands(root).len() + self.gathers.len();
        names.extend(self.write_late(draft, first));
        Ok(names.join(", "))
    }

    /// What is changed apart from the loop itself.
    fn changed(&self) -> Vec<InstrId> {
        let members = self.gathers.iter().map(|gather| gather.collective);
        let cones = self.gathers.iter().flat_map(|gather| gather.cone.iter().copied());
        let late = self.lates.iter().flat_map(|late| late.members.iter().copied());
        let places = self.lates.iter().flat_map(|late| late.buffers.keys());
        let results = places.flat_map(|&place| self.carrier.results(self.subject, place));
        members.chain(cones).chain(late).chain(results).collect()
    }

    /// The values that reductions wait for, each once.
    fn held(&self) -> Vec<InstrId> {
        let mut held: Vec<InstrId> = Vec::new();
        for &value in self.lates.iter().flat_map(|late| &late.held) {
            if !held.contains(&value) {
                held.push(value);
            }
        }
        held
    }

    fn module(&self) -> &Module {
        self.subject.module
    }

    fn name(&self, instr: InstrId) -> &str {
        self.module().instruction_name(instr)
    }

    /// Whether an instruction's type is written in the text, as a tuple.
    fn is_written_out(&self, instr: InstrId) -> bool {
        after_name(self.module(), instr).starts_with('(')
    }

    /// What the first iteration finds, and the loop that starts with it.
    fn write_before(&self, draft: &mut Draft<'_>, shapes: &[String]) {
        let Carrier { looped, init, .. } = self.carrier;
        let mut copier = Copier::new(self, looped, When::First);
        let mut first: Vec<String> =
            self.gathers.iter().map(|gather| copier.copy(draft, gather)).collect();
        first.extend(self.held().into_iter().map(|value| self.write_zeros(draft, value)));
        let start = draft.fresh(&format!("{}.ahead", self.name(init)));
        let line = self.longer_tuple(draft, init, &Longer { name: &start, shapes, more: &first });
        draft.replace(looped, line);
        let text =
            with_operands(self.module(), looped, &format!("{}{start}", draft.percent(looped)));
        let name = self.name(looped).to_owned();
        let text = grown(&text, shapes);
        draft.replace(looped, DraftLine { name, text, reads: vec![start] });
        if self.subject.users[init] == [looped] {
            draft.remove(init);
        }
    }

    /// Zeros of a value's type, before the loop.
    fn write_zeros(&self, draft: &mut Draft<'_>, value: InstrId) -> String {
        let looped = self.carrier.looped;
        let shape = shape_text(self.module(), value);
        let name = format!("{}.none", self.name(value));
        let number = shape.split('[').next().unwrap_or_default().to_owned() + "[]";
        let zero = draft.add(looped, &name, (&number, "constant(0)"));
        let made = match shape.trim_end() == number {
            true => zero,
            false => {
                let text = format!("broadcast({zero}), dimensions={{}}");
                draft.add(looped, &name, (&shape, &text))
            }
        };
        made.trim_start_matches('%').to_owned()
    }

    /// The gathers for the next iteration, placed where they need not wait for readers of the
    /// current values, or after all of these; returns their names.
    fn write_next(&self, draft: &mut Draft<'_>, at: InstrId) -> Vec<String> {
        let mut copier = Copier::new(self, at, When::Next);
        self.gathers.iter().map(|gather| copier.copy(draft, gather)).collect()
    }

    /// Replaces the gathers by what was gathered before, and carries on the new values.
    fn write_body(&self, draft: &mut Draft<'_>, next: &GatheredAhead<'_>) {
        let &GatheredAhead { shapes, names, buffers } = next;
        let Carrier { parameters: [parameter, _], root, .. } = self.carrier;
        let mut more = match buffers {
            CarriedBuffers::One => names.to_vec(),
            CarriedBuffers::Two => self.write_copies(draft, next),
        };
        for value in self.held() {
            // What is in another place anyway, and numbers, are copied in any case.
            let is_moved = self.is_placed(value) || buffers == CarriedBuffers::Two;
            more.push(match is_moved {
                true => self.write_copy(draft, value),
                false => self.name(value).to_owned(),
            });
        }
        let name = self.name(root).to_owned();
        let line = self.longer_tuple(draft, root, &Longer { name: &name, shapes, more: &more });
        draft.replace(root, line);
        let carried = self.module().operands(root).len();
        for (number, gather) in self.gathers.iter().enumerate() {
            let line = draft.element(gather.collective, self.name(parameter), carried + number);
            draft.replace(gather.collective, line);
        }
    }

    /// Copies of what was gathered, at the end of an iteration; returns their names.
    fn write_copies(&self, draft: &mut Draft<'_>, next: &GatheredAhead<'_>) -> Vec<String> {
        let root = self.carrier.root;
        let mut copies = Vec::new();
        for ((gather, next), shape) in self.gathers.iter().zip(next.names).zip(next.shapes) {
            let name = draft.fresh(&format!("{}.carried", self.name(gather.collective)));
            let text = format!("{shape} copy({}{next})", draft.percent(root));
            draft.replace(root, DraftLine { name: name.clone(), text, reads: vec![next.clone()] });
            copies.push(name);
        }
        copies
    }

    /// Whether a value's memory cannot be that of what is carried: it is part of the state already.
    fn is_placed(&self, value: InstrId) -> bool {
        let array = self.module().instruction(value).shape.array();
        array.is_none_or(|array| array.dims.is_empty())
            || self.subject.opcode(value) == Opcode::GetTupleElement
            || self.subject.users[value].contains(&self.carrier.root)
    }

    /// A copy of a value at the end of an iteration.
    fn write_copy(&self, draft: &mut Draft<'_>, value: InstrId) -> String {
        let root = self.carrier.root;
        let shape = shape_text(self.module(), value);
        let text = format!("copy({}{})", draft.percent(root), self.name(value));
        let name = format!("{}.carried", self.name(value));
        draft.add(root, &name, (&shape, &text)).trim_start_matches('%').to_owned()
    }

    /// Reductions of what the previous iteration has left, and after the loop of what the last one
    /// has; returns their names. What is carried for them begins at an element.
    fn write_late(&self, draft: &mut Draft<'_>, first: usize) -> Vec<String> {
        let mut held: HashMap<InstrId, [String; 2]> = HashMap::new();
        for (index, value) in (first..).zip(self.held()) {
            let tuples = [self.carrier.parameters[0], self.carrier.looped];
            let names = tuples.map(|tuple| self.write_element(draft, [tuple, value], index));
            held.insert(value, names);
        }
        let (mut names, mut last) = (Vec::new(), Vec::new());
        for moved in &self.lates {
            // What another one waits for may be of this iteration here.
            let of = |place: usize| -> HashMap<InstrId, String> {
                let own = moved.held.iter().filter_map(|value| Some((*value, held.get(value)?)));
                own.map(|(value, names)| (value, names[place].clone())).collect()
            };
            for &member in &moved.members {
                self.write_member(draft, member, &of(0));
            }
            names.extend(moved.collectives.iter().map(|&of| self.name(of).to_owned()));
            let made = self.write_after(draft, moved, of(1));
            last.extend(moved.collectives.iter().filter_map(|of| made.get(of)).cloned());
        }
        names.extend(last);
        names
    }

    /// An element of the loop's state when an iteration begins, or of its result, with the type of
    /// a value.
    fn write_element(&self, draft: &mut Draft<'_>, of: [InstrId; 2], index: usize) -> String {
        let [tuple, value] = of;
        let shape = shape_text(self.module(), value);
        let text = format!(
            "get-tuple-element({}{}), index={index}",
            draft.percent(tuple),
            self.name(tuple)
        );
        let stem = if tuple == self.carrier.looped { "left" } else { "late" };
        let name = format!("{}.{stem}", self.name(value));
        draft.add(tuple, &name, (&shape, &text)).trim_start_matches('%').to_owned()
    }

    /// A member that reads what is carried. Reductions need nothing else, and come first.
    fn write_member(
        &self,
        draft: &mut Draft<'_>,
        member: InstrId,
        late: &HashMap<InstrId, String>,
    ) {
        let operands = self.module().operands(member).iter();
        let read = |operand: &Operand| match late.get(&operand.of) {
            Some(name) => format!("{}{name}", draft.percent(member)),
            None => draft.operand(operand),
        };
        let operands: Vec<String> = operands.map(read).collect();
        let reads = operands.iter().map(|operand| read_name(operand)).collect();
        let text = with_operands(self.module(), member, &operands.join(", "));
        let name = self.name(member).to_owned();
        let is_first = self.subject.opcode(member).is_sync_collective()
            && self.module().operands(member).iter().all(|of| late.contains_key(&of.of));
        draft.remove(member);
        let place = if is_first { self.carrier.parameters[0] } else { member };
        draft.replace(place, DraftLine { name, text, reads });
    }

    /// Copies of members after the loop, in the place of its results; returns their names.
    fn write_after(
        &self,
        draft: &mut Draft<'_>,
        moved: &Late,
        mut left: HashMap<InstrId, String>,
    ) -> HashMap<InstrId, String> {
        let (module, looped) = (self.module(), self.carrier.looped);
        let reader = BodyReader { subject: self.subject, carrier: &self.carrier };
        let copier = Copier::new(self, looped, When::Last);
        let all: BTreeSet<InstrId> = moved.invariants.union(&moved.members).copied().collect();
        for instr in all {
            for operand in module.operands(instr) {
                if let (None, Some(place)) = (left.get(&operand.of), reader.element(operand.of)) {
                    let name = self.write_element(draft, [looped, operand.of], place);
                    left.insert(operand.of, name);
                }
            }
            if reader.element(instr).is_some() {
                continue;
            }
            let operand = |operand: &Operand| {
                let path = module.path(operand).iter().map(|index| format!("#{index}"));
                let name = left.get(&operand.of).map_or("", String::as_str);
                format!("{name}{}", path.collect::<String>())
            };
            let reads = module.operands(instr).iter().map(operand).collect();
            let copied = Copied { stem: When::Last.stem(), reads };
            let name = copier.write(draft, instr, copied);
            left.insert(instr, name);
        }
        for (&place, member) in &moved.buffers {
            for result in self.carrier.results(self.subject, place) {
                let shape = shape_text(module, result);
                let last = left.get(member).map_or("", String::as_str);
                let text = format!("bitcast({}{last})", draft.percent(looped));
                draft.write_line(result, self.name(result).to_owned(), (&shape, &text));
            }
        }
        left
    }

    /// Removes what only the gathers read.
    fn remove_unread(&self, draft: &mut Draft<'_>) {
        let mut gone: BTreeSet<InstrId> =
            self.gathers.iter().map(|gather| gather.collective).collect();
        let cones: BTreeSet<InstrId> =
            self.gathers.iter().flat_map(|gather| gather.cone.iter().copied()).collect();
        for instr in cones.into_iter().rev() {
            if self.subject.users[instr].iter().all(|user| gone.contains(user)) {
                draft.remove(instr);
                gone.insert(instr);
            }
        }
    }

    /// A tuple of more elements.
    fn longer_tuple(&self, draft: &Draft<'_>, tuple: InstrId, longer: &Longer<'_>) -> DraftLine {
        let &Longer { name, shapes, more } = longer;
        let percent = draft.percent(tuple);
        let own = self.module().operands(tuple);
        let texts = own.iter().map(|operand| draft.operand(operand));
        let texts = texts.chain(more.iter().map(|name| format!("{percent}{name}")));
        let texts = texts.collect::<Vec<String>>().join(", ");
        let reads = own.iter().map(|operand| self.name(operand.of).to_owned());
        let reads = reads.chain(more.iter().cloned()).collect();
        let text = grown(&with_operands(self.module(), tuple, &texts), shapes);
        DraftLine { name: name.to_owned(), text, reads }
    }
}

/// What an iteration gathers for the next.
struct GatheredAhead<'a> {
    shapes: &'a [String],
    names: &'a [String],
    buffers: CarriedBuffers,
}

/// What a tuple becomes.
struct Longer<'a> {
    name: &'a str,
    shapes: &'a [String],
    /// The names of its new elements.
    more: &'a [String],
}

/// Which iteration instructions are copied for.
#[derive(Clone, Copy, PartialEq)]
enum When {
    /// The first one, before the loop.
    First,
    /// The one after the one that runs.
    Next,
    /// The last one, after the loop.
    Last,
}

impl When {
    /// What is added to the names of copies.
    fn stem(self) -> &'static str {
        match self {
            When::First => "first",
            When::Next => "next",
            When::Last => "last",
        }
    }
}

/// Copies of gathers with everything that they are computed from.
struct Copier<'a, 's, 'm> {
    plan: &'a PipelinePlan<'s, 'm>,
    reader: BodyReader<'a, 'm>,
    /// The instruction in whose place they are written.
    at: InstrId,
    when: When,
    /// The names of copies. Looked up only.
    known: HashMap<InstrId, String>,
    /// The same for values of the current iteration.
    now: HashMap<InstrId, String>,
}

impl<'a, 's, 'm> Copier<'a, 's, 'm> {
    fn new(plan: &'a PipelinePlan<'s, 'm>, at: InstrId, when: When) -> Self {
        let reader = BodyReader { subject: plan.subject, carrier: &plan.carrier };
        Copier { plan, reader, at, when, known: HashMap::new(), now: HashMap::new() }
    }

    /// Returns the name of the copied gather.
    fn copy(&mut self, draft: &mut Draft<'_>, gather: &Gathered) -> String {
        for &instr in &gather.cone {
            self.copy_one(draft, instr);
        }
        self.copy_one(draft, gather.collective)
    }

    fn copy_one(&mut self, draft: &mut Draft<'_>, instr: InstrId) -> String {
        if let Some(name) = self.known.get(&instr) {
            return name.clone();
        }
        let operands = self.plan.module().operands(instr).to_vec();
        let reads = operands.iter().map(|operand| self.operand(draft, operand)).collect();
        let name = self.write(draft, instr, Copied { stem: self.when.stem(), reads });
        self.known.insert(instr, name.clone());
        name
    }

    /// Writes a copy that reads other values, by their names.
    fn write(&self, draft: &mut Draft<'_>, instr: InstrId, copy: Copied<'_>) -> String {
        let module = self.plan.module();
        let Copied { stem, reads } = copy;
        let percent = draft.percent(self.at);
        let mut text = match reads.is_empty() {
            true => after_name(module, instr).to_owned(),
            false => {
                let operands = reads.iter().map(|name| format!("{percent}{name}"));
                with_operands(module, instr, &operands.collect::<Vec<_>>().join(", "))
            }
        };
        if let Some(channel) = module.attribute(instr, "channel_id") {
            let other = format!("channel_id={}", draft.fresh_channel());
            text = text.replacen(&format!("channel_id={channel}"), &other, 1);
        }
        let name = draft.fresh(&format!("{}.{stem}", module.instruction_name(instr)));
        // Elements of elements are read by paths behind the name.
        let reads = reads.iter().map(|name| read_name(name)).collect();
        draft.replace(self.at, DraftLine { name: name.clone(), text, reads });
        name
    }

    /// The name that a copy reads instead of an operand.
    fn operand(&mut self, draft: &mut Draft<'_>, operand: &Operand) -> String {
        let Some(element) = self.reader.element(operand.of) else {
            return self.known.get(&operand.of).cloned().unwrap_or_default();
        };
        let module = self.plan.module();
        match self.when {
            When::First => {
                let value = &module.operands(self.plan.carrier.init)[element];
                draft.operand(value).trim_start_matches('%').to_owned()
            }
            When::Next if self.reader.is_kept(element) => self.as_now(draft, operand.of),
            When::Next | When::Last => {
                let next = self.reader.next(element).unwrap_or(operand.of);
                self.as_now(draft, next)
            }
        }
    }

    /// A copy of an element, or of the numbers that its next value is computed from.
    fn as_now(&mut self, draft: &mut Draft<'_>, instr: InstrId) -> String {
        if let Some(name) = self.now.get(&instr) {
            return name.clone();
        }
        let module = self.plan.module();
        let parameter = self.plan.carrier.parameters[0];
        let mut reads = Vec::new();
        for operand in module.operands(instr) {
            reads.push(match operand.of == parameter {
                true => module.instruction_name(parameter).to_owned(),
                false => self.as_now(draft, operand.of),
            });
        }
        let name = self.write(draft, instr, Copied { stem: "ahead", reads });
        self.now.insert(instr, name.clone());
        name
    }
}

/// A copy of an instruction: what is added to its name, and the names of what it reads.
struct Copied<'a> {
    stem: &'a str,
    reads: Vec<String>,
}
