//! A collective that sends the narrower of two types.

use super::{RecipeSubject, Refusal};
use crate::draft::{Draft, DraftLine, array_text};
use crate::ids::InstrId;
use crate::{Array, Module, Opcode, Operand};

/// The direction in which a convert moves past a collective.
enum ConvertWay {
    /// The converts after it move before it.
    Before {
        /// The type that they all convert to.
        converts: Vec<InstrId>,
    },
    /// The convert before it moves after it.
    After { convert: InstrId },
}

/// The change to a collective.
pub(super) struct NarrowPlan<'s, 'm> {
    subject: &'s RecipeSubject<'m>,
    collective: InstrId,
    way: ConvertWay,
}

/// The change to a collective, or why there is none.
pub(super) fn plan<'s, 'm>(
    subject: &'s RecipeSubject<'m>,
    collective: InstrId,
) -> Result<NarrowPlan<'s, 'm>, Refusal> {
    let module = subject.module;
    if !matches!(
        subject.opcode(collective),
        Opcode::AllGather
            | Opcode::AllToAll
            | Opcode::CollectivePermute
            | Opcode::CollectiveBroadcast
    ) {
        return Err(Refusal::Kind);
    }
    let [operand] = module.operands(collective) else { return Err(Refusal::Variadic) };
    let sent = static_array(module, operand)?;
    let whole = subject.array(collective)?;
    subject.changeable(collective)?;
    let bits = sent.element.bits();
    let source = convert_before(module, operand, bits);
    if let Some(convert) = source {
        return Ok(NarrowPlan { subject, collective, way: ConvertWay::After { convert } });
    }
    let converts = &subject.users[collective];
    let result = |&convert: &InstrId| module.instruction(convert).shape.array();
    let is_convert = |&user: &InstrId| subject.opcode(user) == Opcode::Convert;
    if subject.is_root(collective) || converts.is_empty() || !converts.iter().all(is_convert) {
        return Err(Refusal::WholeUsed);
    }
    let mut types = converts.iter().filter_map(result);
    let first = subject.array(converts[0])?;
    if types.clone().any(|other| module.str(other.layout) != module.str(whole.layout)) {
        return Err(Refusal::Layout);
    }
    if first.element.bits() >= bits || types.any(|other| other.element != first.element) {
        return Err(Refusal::NotNarrower);
    }
    for &convert in converts {
        subject.changeable(convert)?;
    }
    Ok(NarrowPlan { subject, collective, way: ConvertWay::Before { converts: converts.clone() } })
}

fn static_array<'m>(module: &'m Module, operand: &Operand) -> Result<&'m Array, Refusal> {
    let array = module.operand_shape(operand).array().ok_or(Refusal::Variadic)?;
    if array.dynamic { Err(Refusal::Dynamic) } else { Ok(array) }
}

/// The convert to a wider type before the collective.
fn convert_before(module: &Module, operand: &Operand, bits: u16) -> Option<InstrId> {
    let convert = operand.of;
    let is_convert = module.instruction(convert).opcode == Opcode::Convert;
    let from = module.operands(convert).first()?;
    let narrow = module.operand_shape(from).array()?;
    (is_convert && narrow.element.bits() < bits).then_some(convert)
}

impl NarrowPlan<'_, '_> {
    /// Writes it; returns the name of the collective.
    pub(super) fn write(self, draft: &mut Draft<'_>) -> Result<String, Refusal> {
        let touched: &[InstrId] = match &self.way {
            ConvertWay::Before { converts } => converts,
            ConvertWay::After { convert } => std::slice::from_ref(convert),
        };
        if !touched.iter().chain([&self.collective]).all(|&instr| draft.is_untouched(instr)) {
            return Err(Refusal::Changed);
        }
        let name = match &self.way {
            ConvertWay::Before { converts } => self.convert_first(draft, converts),
            ConvertWay::After { convert } => self.convert_last(draft, *convert),
        };
        name.ok_or(Refusal::Variadic)
    }

    fn name(&self, instr: InstrId) -> &str {
        self.subject.module.instruction_name(instr)
    }

    /// A shape of the same extents and layout with another type.
    fn shape(&self, array: &Array, like: &Array) -> String {
        let array = Array { element: like.element, ..array.clone() };
        array_text(self.subject.module, &array)
    }

    /// The same collective with another operand.
    fn collective(&self, shape: &str, operand: &str, metadata: InstrId) -> String {
        let module = self.subject.module;
        let mut text = format!("{shape} {}({operand})", module.opcode_name(self.collective));
        let own = module.attributes(self.collective).filter(|(key, _)| *key != "metadata");
        let metadata = module.attributes(metadata).filter(|(key, _)| *key == "metadata");
        own.chain(metadata).for_each(|(key, value)| text.push_str(&format!(", {key}={value}")));
        text
    }

    fn convert_first(&self, draft: &mut Draft<'_>, converts: &[InstrId]) -> Option<String> {
        let module = self.subject.module;
        let operand = &module.operands(self.collective)[0];
        let first = converts[0];
        let arrays =
            (module.operand_shape(operand).array(), module.instruction(first).shape.array());
        let (Some(sent), Some(narrow)) = arrays else { return None };
        let before = draft.fresh(&format!("{}.narrow", self.name(first)));
        let text = format!("{} convert({})", self.shape(sent, narrow), draft.operand(operand));
        let reads = vec![self.name(operand.of).to_owned()];
        draft.replace(self.collective, DraftLine { name: before.clone(), text, reads });
        let percent = draft.percent(self.collective);
        let whole = self.shape(narrow, narrow);
        let text = self.collective(&whole, &format!("{percent}{before}"), first);
        let name = self.name(first).to_owned();
        draft.replace(self.collective, DraftLine { name: name.clone(), text, reads: vec![before] });
        draft.remove(first);
        for &other in &converts[1..] {
            let Some(array) = module.instruction(other).shape.array() else { continue };
            let text = format!("{} bitcast({percent}{name})", self.shape(array, array));
            let line =
                DraftLine { name: self.name(other).to_owned(), text, reads: vec![name.clone()] };
            draft.replace(other, line);
        }
        Some(name)
    }

    fn convert_last(&self, draft: &mut Draft<'_>, convert: InstrId) -> Option<String> {
        let module = self.subject.module;
        let operand = &module.operands(convert)[0];
        let arrays = (
            module.instruction(self.collective).shape.array(),
            module.operand_shape(operand).array(),
        );
        let (Some(whole), Some(narrow)) = arrays else { return None };
        let sent = draft.fresh(&format!("{}.narrow", self.name(self.collective)));
        let shape = self.shape(whole, narrow);
        let text = self.collective(&shape, &draft.operand(operand), self.collective);
        let reads = vec![self.name(operand.of).to_owned()];
        draft.replace(self.collective, DraftLine { name: sent.clone(), text, reads });
        if self.subject.users[convert] == [self.collective] && !self.subject.is_root(convert) {
            draft.remove(convert);
        }
        let percent = draft.percent(self.collective);
        let text = format!("{} convert({percent}{sent})", self.shape(whole, whole));
        let name = self.name(self.collective).to_owned();
        draft.replace(self.collective, DraftLine { name, text, reads: vec![sent.clone()] });
        Some(sent)
    }
}
