//! Collectives, and the two halves of messages.

use halflap::ids::StreamId;
use halflap_hlo::ids::{CommId, InstrId, SlotId};
use halflap_hlo::plan::{Plan, PlannedWork};
use halflap_hlo::{Opcode, started};

use super::label::arguments;
use super::layout::bitcasts;
use super::ready::Action;
use super::{Label, LabelKind, Planned, PrepareError, Preparer};
use crate::comm::{CollectiveSpec, MessageSpec};
use crate::kernel::{ArrayType, Gap, ResultLeaf, Unsupported, leaf_kinds, made_leaves};

impl Preparer<'_> {
    pub(super) fn is_message(&self, instr: InstrId) -> bool {
        matches!(self.module.instruction(instr).opcode, Opcode::Send | Opcode::Recv)
    }

    /// One half of a message. A send takes its data and a token, a recv returns the data.
    pub(super) fn message(
        &mut self,
        of: Planned<'_>,
        work: &PlannedWork,
        stream: StreamId,
    ) -> Result<Action, PrepareError> {
        let instr = work.instr;
        let is_send = self.module.instruction(instr).opcode == Opcode::Send;
        let leaves = match is_send {
            true => {
                let all = self.operand_leaves_of(instr).into_iter();
                all.filter(|leaf| !self.is_token(leaf)).collect()
            }
            false => {
                let made = made_leaves(self.module, instr);
                made.map(|index| ResultLeaf { instr, index }).collect::<Vec<_>>()
            }
        };
        if leaves.iter().any(|&leaf| !bitcasts(self.module, leaf).is_empty()) {
            return Err(self.layout(instr));
        }
        let slots: Vec<SlotId> =
            leaves.iter().map(|leaf| of.plan.storage.of(leaf.instr)[leaf.index]).collect();
        let kinds = self.kinds(&leaves)?;
        let arrays = self.made_by(leaves.into_iter(), arguments(of.plan, &slots, &kinds));
        let message = MessageSpec::of(self.module, instr, kinds)?;
        self.messages.push((instr, message.clone()));
        let (ins, outs) = if is_send { (arrays, Vec::new()) } else { (Vec::new(), arrays) };
        let label = self.named(instr, LabelKind::Transfer, of);
        let label = self.label(Label { ins, outs, message: Some(message), ..label });
        Ok(Action::Message { label, stream, arrays: slots })
    }

    /// Every half of a message has another one, which carries the same.
    pub(super) fn check_messages(&self) -> Result<(), Unsupported> {
        for (instr, message) in &self.messages {
            let mut others = self
                .messages
                .iter()
                .filter(|(_, other)| other.channel == message.channel && other.end != message.end);
            let differs = |(_, other): &&(InstrId, MessageSpec)| other.arrays != message.arrays;
            let gap = match (others.clone().next(), others.find(differs)) {
                (None, _) => Gap::NoOtherHalf(message.end.other().name()),
                (_, Some((other, _))) => {
                    Gap::OtherHalf(self.module.instruction_name(*other).to_owned())
                }
                _ => continue,
            };
            return Err(Unsupported::new(self.module, *instr, gap));
        }
        Ok(())
    }

    fn is_token(&self, leaf: &ResultLeaf) -> bool {
        let mut leaves = Vec::new();
        self.module.instruction(leaf.instr).shape.leaves(&mut leaves);
        leaves.get(leaf.index).is_some_and(|shape| shape.array().is_none())
    }

    /// The types of some results.
    fn kinds(&self, leaves: &[ResultLeaf]) -> Result<Vec<ArrayType>, Unsupported> {
        let kind = |leaf: &ResultLeaf| Ok(leaf_kinds(self.module, leaf.instr)?[leaf.index].clone());
        leaves.iter().map(kind).collect()
    }

    pub(super) fn collective(
        &mut self,
        of: Planned<'_>,
        work: &PlannedWork,
        (stream, comm): (StreamId, CommId),
    ) -> Result<Action, PrepareError> {
        let (inner, _) = started(self.module, work.instr);
        let collective = CollectiveSpec::of(self.module, inner, comm)?;
        let leaves = self.operand_leaves_of(work.instr);
        let ins = self.reads(of.plan, &leaves)?;
        if collective.arrays.len() != work.writes.len() || ins.len() != collective.takes() {
            return Err(Unsupported::new(self.module, inner, Gap::Shape).into());
        }
        let slots: Vec<SlotId> =
            leaves.iter().map(|leaf| of.plan.storage.of(leaf.instr)[leaf.index]).collect();
        let taken = self.kinds(&leaves)?;
        let given = self.given(of.plan, work)?;
        let made = (0..).map(|index| ResultLeaf { instr: work.instr, index });
        let label = Label {
            ins: self.made_by(leaves.iter().copied(), arguments(of.plan, &slots, &taken)),
            outs: self.made_by(made, arguments(of.plan, &work.writes, &given)),
            among: self.program.comms[comm].describe(),
            shares: Vec::new(),
            collective: Some(collective.clone()),
            ..self.named(work.instr, LabelKind::Collective, of)
        };
        let label = self.label(label);
        Ok(Action::Collective { label, stream, collective, ins, outs: work.writes.clone() })
    }

    /// The types of what a start writes.
    fn given(&self, plan: &Plan, work: &PlannedWork) -> Result<Vec<ArrayType>, Unsupported> {
        let kinds = leaf_kinds(self.module, work.instr)?;
        let slots = plan.storage.of(work.instr);
        // A start's inputs come before its outputs.
        let kind_of = |slot: &SlotId| {
            slots.iter().rposition(|other| other == slot).map(|leaf| kinds[leaf].clone())
        };
        let misshapen = || Unsupported::new(self.module, work.instr, Gap::Shape);
        work.writes.iter().map(|slot| kind_of(slot).ok_or_else(misshapen)).collect()
    }
}
