//! Gathers of a loop, one iteration ahead: what an iteration needs is gathered in the previous one,
//! and for the first one before the loop. The loop carries one more buffer for each.
//!
//! A loop's values do not move in memory. So an iteration gathers into the buffer that it has read
//! for the last time, or into another one that is copied at its end.

use std::collections::{BTreeSet, HashMap};

use super::{CarriedBuffers, LoopStays, RecipeSubject, Refusal};
use crate::draft::{Draft, DraftLine, after_name, grown};
use crate::ids::{ComputationId, InstrId};
use crate::split::shape_text;
use crate::{Module, Opcode, Operand};

/// The change to a loop.
pub(super) struct PipelinePlan<'s, 'm> {
    subject: &'s RecipeSubject<'m>,
    carrier: Carrier,
    gathers: Vec<Gathered>,
}

/// A loop, and the instructions that its carried values go through.
struct Carrier {
    looped: InstrId,
    /// The tuple that it starts with.
    init: InstrId,
    /// The parameters of its body and of its condition.
    parameters: [InstrId; 2],
    /// The tuple that an iteration ends with.
    root: InstrId,
}

/// A gather, and what it is computed from.
struct Gathered {
    collective: InstrId,
    /// Everything between the loop's parameter and the gather, in text order.
    cone: Vec<InstrId>,
}

/// The gathers of a loop that can run an iteration ahead, or why none can.
pub(super) fn plan<'s, 'm>(
    subject: &'s RecipeSubject<'m>,
    looped: InstrId,
) -> Result<PipelinePlan<'s, 'm>, LoopStays> {
    let carrier = carrier(subject, looped)?;
    let reader = BodyReader { subject, carrier: &carrier };
    let module = subject.module;
    let all: Vec<InstrId> = module
        .instructions(module.computation_of(carrier.root))
        .filter(|&instr| reader.is_gather(instr))
        .collect();
    let gathers: Vec<Gathered> =
        all.iter().filter_map(|&instr| reader.gathered(instr).ok()).collect();
    if !gathers.is_empty() {
        return Ok(PipelinePlan { subject, carrier, gathers });
    }
    let name = |instr| module.instruction_name(instr).to_owned();
    let reason = all.into_iter().find_map(|gather| {
        let needs = name(reader.gathered(gather).err()?);
        Some(LoopStays::NotAhead { gather: name(gather), needs })
    });
    Err(reason.unwrap_or(LoopStays::NoGather))
}

/// The same for some gathers of one loop.
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
    let mut plan = plan(subject, looped).map_err(|why| match why {
        LoopStays::NoGather | LoopStays::NotAhead { .. } => Refusal::NotAhead,
        LoopStays::Controls | LoopStays::Shared | LoopStays::Values => Refusal::Loop,
    })?;
    plan.gathers.retain(|gather| members.contains(&gather.collective));
    match plan.gathers.len() == members.len() {
        true => Ok(plan),
        false => Err(Refusal::NotAhead),
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

/// What is known of a loop's body.
struct BodyReader<'a, 'm> {
    subject: &'a RecipeSubject<'m>,
    carrier: &'a Carrier,
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

    /// Which element of the loop's parameter an instruction is.
    fn element(&self, instr: InstrId) -> Option<usize> {
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
    /// The names of the gathers.
    pub(super) fn members(&self) -> Vec<String> {
        self.gathers.iter().map(|gather| self.name(gather.collective).to_owned()).collect()
    }

    /// Writes it; returns the names of the gathers that each iteration does for the next one.
    pub(super) fn write(
        self,
        draft: &mut Draft<'_>,
        buffers: CarriedBuffers,
    ) -> Result<String, Refusal> {
        let Carrier { looped, init, parameters, root } = self.carrier;
        let whole = [looped, init, parameters[0], parameters[1], root];
        let members = self.gathers.iter().map(|gather| gather.collective);
        let cones = self.gathers.iter().flat_map(|gather| gather.cone.iter().copied());
        if !whole.into_iter().chain(members).chain(cones).all(|instr| draft.is_untouched(instr)) {
            return Err(Refusal::Changed);
        }
        // Nothing is written unless all of it can be.
        if !whole.into_iter().all(|instr| self.is_written_out(instr)) {
            return Err(Refusal::Loop);
        }
        let shape = |gather: &Gathered| shape_text(self.module(), gather.collective);
        let shapes: Vec<String> = self.gathers.iter().map(shape).collect();
        for parameter in parameters {
            let text = grown(after_name(self.module(), parameter), &shapes);
            let name = self.name(parameter).to_owned();
            draft.replace(parameter, DraftLine { name, text, reads: Vec::new() });
            draft.grow_head(parameter, &shapes);
        }
        self.write_before(draft, &shapes);
        let names = match buffers {
            CarriedBuffers::One => self.write_next(draft, self.carrier.root),
            CarriedBuffers::Two => self.write_next(draft, parameters[0]),
        };
        self.write_body(draft, &GatheredAhead { shapes: &shapes, names: &names, buffers });
        self.remove_unread(draft);
        Ok(names.join(", "))
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

    /// The gathers for the first iteration, and the loop that starts with them.
    fn write_before(&self, draft: &mut Draft<'_>, shapes: &[String]) {
        let Carrier { looped, init, .. } = self.carrier;
        let mut copier = Copier::new(self, looped, When::First);
        let first: Vec<String> =
            self.gathers.iter().map(|gather| copier.copy(draft, gather)).collect();
        let start = draft.fresh(&format!("{}.ahead", self.name(init)));
        let line = self.longer_tuple(draft, init, &Longer { name: &start, shapes, more: &first });
        draft.replace(looped, line);
        let text = self.with_operands(looped, &format!("{}{start}", draft.percent(looped)));
        let name = self.name(looped).to_owned();
        let text = grown(&text, shapes);
        draft.replace(looped, DraftLine { name, text, reads: vec![start] });
        if self.subject.users[init] == [looped] {
            draft.remove(init);
        }
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
        let more = match buffers {
            CarriedBuffers::One => names.to_vec(),
            CarriedBuffers::Two => self.write_copies(draft, next),
        };
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

    /// An instruction with other operands, without its name.
    fn with_operands(&self, instr: InstrId, operands: &str) -> String {
        let module = self.module();
        let (whole, payload) = (after_name(module, instr), module.instruction(instr).payload);
        let end = module.instruction(instr).text.end;
        let rest = &module.text[payload.end as usize..end as usize];
        let start = whole.len() - (end - payload.start) as usize;
        format!("{}{operands}{rest}", &whole[..start])
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
        let text = grown(&self.with_operands(tuple, &texts), shapes);
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

/// Which iteration gathers are copied for.
#[derive(Clone, Copy, PartialEq)]
enum When {
    /// The first one, before the loop.
    First,
    /// The one after the one that runs.
    Next,
}

impl When {
    /// What is added to the names of copies.
    fn stem(self) -> &'static str {
        match self {
            When::First => "first",
            When::Next => "next",
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
        let (plan, module) = (self.plan, self.plan.module());
        let Copied { stem, reads } = copy;
        let percent = draft.percent(self.at);
        let mut text = match reads.is_empty() {
            true => after_name(module, instr).to_owned(),
            false => {
                let operands = reads.iter().map(|name| format!("{percent}{name}"));
                plan.with_operands(instr, &operands.collect::<Vec<_>>().join(", "))
            }
        };
        if let Some(channel) = module.attribute(instr, "channel_id") {
            let other = format!("channel_id={}", draft.fresh_channel());
            text = text.replacen(&format!("channel_id={channel}"), &other, 1);
        }
        let name = draft.fresh(&format!("{}.{stem}", module.instruction_name(instr)));
        // Elements of elements are read by paths behind the name.
        let reads = reads.iter().map(|name| name.split('#').next().unwrap_or(name).to_owned());
        let reads = reads.collect();
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
            When::Next => {
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
