//! The nodes of a computation, before they have dependencies.

use crate::ids::{ComputationId, InstrId};
use crate::{Module, Opcode, Phase};
use halflap::ids::Id;

use super::nature::{TPU, is_free, likely_device};

/// Which part of an instruction a node is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodePart {
    /// All of it.
    Whole,
    /// The start of a synchronous collective.
    Start,
    /// The end of a synchronous collective.
    Done,
}

/// What a node represents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodePlace {
    /// The instruction.
    pub instr: InstrId,
    /// Which part of it.
    pub part: NodePart,
}

/// Whether synchronous collectives may become asynchronous. If a TPU's compiler leaves one
/// synchronous in a schedule, its backend cannot run it asynchronously.
fn may_split(module: &Module) -> bool {
    !(module.is_scheduled() && likely_device(module) == TPU)
}

/// What a node is, as far as its values are concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NodeRole {
    Plain,
    Start,
    End,
}

/// The nodes of a computation, before they have dependencies.
pub(crate) struct Steps {
    pub(crate) places: Vec<NodePlace>,
    pub(crate) roles: Vec<NodeRole>,
    /// For each instruction of the computation, the node after which its values are available.
    pub(crate) done: Vec<Option<u32>>,
    /// The node that starts it, if it is two.
    pub(crate) start: Vec<Option<u32>>,
    pub(crate) is_loop_body: bool,
}

impl Steps {
    pub(crate) fn new(module: &Module, computation: ComputationId) -> Steps {
        let len = module.instructions(computation).len();
        let base = module.instructions(computation).next().map_or(0, |first| first.index());
        // An instruction that others must wait for is a node even if it does nothing.
        let mut bound = vec![false; len];
        for instr in module.instructions(computation) {
            for before in module.control_predecessors(instr) {
                (bound[instr.index() - base], bound[before.index() - base]) = (true, true);
            }
            // A reader of one tuple element must come after the tuple, and so after all its
            // elements.
            let is_element = module.instruction(instr).opcode == Opcode::GetTupleElement;
            for operand in module
                .operands(instr)
                .iter()
                .filter(|operand| is_element || !module.path(operand).is_empty())
            {
                bound[operand.of.index() - base] |=
                    module.instruction(operand.of).opcode == Opcode::Tuple;
            }
        }
        let is_body = |instr: InstrId| {
            module.instruction(instr).opcode == Opcode::While
                && module.computation_in(instr, "body") == Some(computation)
        };
        let splits = may_split(module);
        let is_loop_body = (0..module.len()).map(InstrId::from_index).any(is_body);
        let (done, start) = (vec![None; len], vec![None; len]);
        let mut steps = Steps { places: Vec::new(), roles: Vec::new(), done, start, is_loop_body };
        for instr in module.instructions(computation) {
            let index = instr.index() - base;
            let opcode = module.instruction(instr).opcode;
            if opcode.is_sync_collective() && splits {
                steps.start[index] = Some(steps.push(instr, NodePart::Start, NodeRole::Start));
                steps.done[index] = Some(steps.push(instr, NodePart::Done, NodeRole::End));
            } else if bound[index] || !is_free(module, instr) {
                let role = match opcode.phase() {
                    Some(Phase::Start) => NodeRole::Start,
                    Some(Phase::Done) => NodeRole::End,
                    _ => NodeRole::Plain,
                };
                steps.done[index] = Some(steps.push(instr, NodePart::Whole, role));
            }
        }
        steps
    }

    fn push(&mut self, instr: InstrId, part: NodePart, role: NodeRole) -> u32 {
        self.places.push(NodePlace { instr, part });
        self.roles.push(role);
        self.places.len() as u32 - 1
    }

    /// The instruction that starts what a node ends.
    pub(crate) fn started_by(&self, module: &Module, place: &NodePlace) -> Option<InstrId> {
        let is_start = |instr: &InstrId| {
            place.part == NodePart::Done
                || module.instruction(*instr).opcode.phase() == Some(Phase::Start)
        };
        self.begun_by(module, place).last().filter(is_start)
    }

    /// What comes before a node that ends something: the updates, the last first, and the start.
    pub(crate) fn begun_by(
        &self,
        module: &Module,
        place: &NodePlace,
    ) -> impl Iterator<Item = InstrId> {
        let before = |instr: InstrId| module.operands(instr).first().map(|operand| operand.of);
        let is_end = module.instruction(place.instr).opcode.phase() == Some(Phase::Done);
        let first = match place.part {
            NodePart::Done => Some(place.instr),
            _ if is_end => before(place.instr),
            _ => None,
        };
        let is_start = move |instr: InstrId| {
            place.part == NodePart::Done
                || module.instruction(instr).opcode.phase() == Some(Phase::Start)
        };
        let chain =
            std::iter::successors(
                first,
                move |&instr| if is_start(instr) { None } else { before(instr) },
            );
        let is_phase = |instr: &InstrId| {
            matches!(module.instruction(*instr).opcode.phase(), Some(Phase::Start | Phase::Update))
        };
        chain.filter(move |instr| place.part == NodePart::Done || is_phase(instr))
    }
}
