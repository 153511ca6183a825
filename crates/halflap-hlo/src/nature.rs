//! The role of an instruction in a graph: whether it does anything at run time, what it moves, and
//! the participants.

use crate::ids::InstrId;
use crate::work::total_size;
use crate::{ElementType, HOST_MEMORY, Module, Opcode, Operand, Phase, Shape};
use halflap::collective::{CollectiveKind, Dtype, Payload, Reduction};
use halflap::units::Bytes;

/// Whether an instruction does nothing at run time.
pub(crate) fn is_free(module: &Module, instr: InstrId) -> bool {
    let opcode = module.instruction(instr).opcode;
    match opcode {
        Opcode::Parameter
        | Opcode::Constant
        | Opcode::GetTupleElement
        | Opcode::Tuple
        | Opcode::Bitcast => true,
        Opcode::AfterAll => module.operands(instr).is_empty(),
        _ => opcode.phase() == Some(Phase::Update) && is_passed_on(module, instr),
    }
}

/// Whether an instruction returns its only operand. An update may also add operands and results.
fn is_passed_on(module: &Module, instr: InstrId) -> bool {
    match module.operands(instr) {
        [operand] => {
            module.operand_shape(operand).leaf_count()
                == module.instruction(instr).shape.leaf_count()
        }
        _ => false,
    }
}

/// The payload of a collective or a transfer.
pub(crate) fn payload(module: &Module, instr: InstrId) -> Payload {
    let operands = module.operands(instr).iter();
    let sent = operands.map(|operand| total_size(module, module.operand_shape(operand))).sum();
    Payload { dtype: dtype(module, instr), input: sent, output: received(module, instr) }
}

/// The type of the inputs, if all are the same.
fn dtype(module: &Module, instr: InstrId) -> Option<Dtype> {
    let mut leaves = Vec::new();
    module
        .operands(instr)
        .iter()
        .for_each(|operand| module.operand_shape(operand).leaves(&mut leaves));
    let mut types = leaves.iter().filter_map(|leaf| leaf.array()).map(|array| array.element);
    let first = types.next()?;
    let is_known = !matches!(first, ElementType::Other { .. });
    (is_known && types.all(|other| other == first)).then(|| Dtype::named(first.name()))
}

/// The reduction of a collective: a single operation on its two parameters, or another function.
pub(crate) fn reduction(
    module: &Module,
    instr: InstrId,
    kind: CollectiveKind,
) -> Option<Reduction> {
    if !kind.reduces() {
        return Some(Reduction::None);
    }
    let root = module.root(*module.called(instr).first()?);
    let is_parameter =
        |operand: &Operand| module.instruction(operand.of).opcode == Opcode::Parameter;
    let is_plain = match module.operands(root) {
        [a, b] => is_parameter(a) && is_parameter(b) && a.of != b.of,
        _ => false,
    };
    Some(match module.instruction(root).opcode {
        Opcode::Add if is_plain => Reduction::Sum,
        Opcode::Maximum if is_plain => Reduction::Max,
        Opcode::Minimum if is_plain => Reduction::Min,
        Opcode::Multiply if is_plain => Reduction::Product,
        _ => Reduction::Other,
    })
}

/// What is received: for a start, that part of its result.
fn received(module: &Module, instr: InstrId) -> Bytes {
    let instruction = module.instruction(instr);
    let element = match (instruction.opcode.phase(), instruction.opcode) {
        (Some(Phase::Start), Opcode::AllReduceStart) | (None, _) => None,
        (_, Opcode::CopyStart | Opcode::Recv) => Some(0),
        _ => Some(1),
    };
    match element {
        Some(index) => instruction
            .shape
            .parts()
            .get(index)
            .map_or(Bytes::ZERO, |part| total_size(module, part)),
        None => total_size(module, &instruction.shape),
    }
}

/// Whether something moves between the device's and the host's memory.
pub(crate) fn crosses_to_host(module: &Module, instr: InstrId) -> bool {
    let mut leaves = Vec::new();
    module.instruction(instr).shape.leaves(&mut leaves);
    let is_host = |leaf: &&Shape| {
        leaf.array().is_some_and(|array| module.layout(array).memory_space == HOST_MEMORY)
    };
    leaves.iter().any(is_host)
}

/// What runs when an instruction starts: the instruction itself or, for the generic form, the main
/// one of its computation; and whether that is a collective among ranks.
pub fn started(module: &Module, instr: InstrId) -> (InstrId, bool) {
    let wrapped = module.called(instr).first().map(|&inner| module.root(inner));
    let inner = match module.instruction(instr).opcode {
        Opcode::AsyncStart => wrapped.map_or(instr, |root| innermost_collective(module, root)),
        _ => instr,
    };
    let opcode = match module.instruction(inner).opcode {
        Opcode::Wrapped(_, wrapped) => wrapped.opcode(),
        other => other,
    };
    let is_collective = opcode.is_sync_collective()
        || matches!(
            opcode,
            Opcode::AllGatherStart | Opcode::AllReduceStart | Opcode::CollectivePermuteStart
        );
    (inner, is_collective)
}

/// The collective in a computation of the generic form; else the root.
pub(crate) fn innermost_collective(module: &Module, root: InstrId) -> InstrId {
    let mut inside = module.instructions(module.computation_of(root));
    inside.find(|&instr| module.instruction(instr).opcode.is_sync_collective()).unwrap_or(root)
}

/// The collective that a fusion runs from beginning to end. Those that TPUs start in one fusion,
/// carry through others and end in a third are not recognised: such fusions count as compute.
pub(crate) fn fused_collective(module: &Module, instr: InstrId) -> Option<InstrId> {
    if module.instruction(instr).opcode != Opcode::Fusion {
        return None;
    }
    let &computation = module.called(instr).first()?;
    let carries = |inner: InstrId| {
        let target = module.attribute(inner, "custom_call_target").unwrap_or("");
        target.contains("AsyncCollective")
            || module
                .attribute(inner, "frontend_attributes")
                .is_some_and(|text| text.contains("chain_id"))
    };
    if module.instructions(computation).any(carries) {
        return None;
    }
    module
        .instructions(computation)
        .find(|&inner| module.instruction(inner).opcode.is_sync_collective())
}

/// Custom calls that tell a compiler something about their operands, and return them.
const MARKERS: [&str; 12] = [
    "annotate_device_placement",
    "AssumeGatherIndicesInBound",
    "InsertedByPreviousStep",
    "ShardBarrierFrom",
    "ShardBarrierTo",
    "Sharding",
    "SPMDFullToShardShape",
    "SPMDShardToFullShape",
    "SunkByPreviousStep",
    "xla.sdy.FuncResultSharding",
    "xla.sdy.GlobalToLocalShape",
    "xla.sdy.LocalToGlobalShape",
];

/// Custom calls that return their operands in other memory or in another layout.
const MOVES: [&str; 5] =
    ["LayoutConstraint", "MoveToDevice", "MoveToHost", "PinToDevice", "PinToDeviceSram"];

impl Module {
    /// The target of a custom call, without quotes.
    pub fn custom_call_target(&self, instr: InstrId) -> Option<&str> {
        Some(self.attribute(instr, "custom_call_target")?.trim_matches('"'))
    }

    /// Whether an instruction is a custom call whose results are its operands.
    pub fn is_pass_on_call(&self, instr: InstrId) -> bool {
        let target = self.custom_call_target(instr).unwrap_or("");
        self.instruction(instr).opcode == Opcode::CustomCall
            && (MARKERS.contains(&target) || MOVES.contains(&target))
    }
}

/// Whether an instruction takes negligible time: it moves nothing, or works on scalars.
pub(crate) fn costs_nothing(module: &Module, instr: InstrId) -> bool {
    let instruction = module.instruction(instr);
    let is_small = |shape: &Shape| {
        let mut leaves = Vec::new();
        shape.leaves(&mut leaves);
        leaves.iter().all(|leaf| leaf.array().is_none_or(|array| array.elements() <= 1))
    };
    match instruction.opcode {
        Opcode::OptimizationBarrier
        | Opcode::OptBarrierLong
        | Opcode::AddDependency
        | Opcode::AfterAll
        | Opcode::Domain
        | Opcode::PartitionId
        | Opcode::ReplicaId => true,
        Opcode::CustomCall => {
            let target = module.custom_call_target(instr).unwrap_or("");
            matches!(target, "ConcatBitcast" | "AllocateBuffer") || MARKERS.contains(&target)
        }
        opcode if is_free(module, instr) || opcode.phase() == Some(Phase::Update) => true,
        _ => {
            let operands = module
                .operands(instr)
                .iter()
                .all(|operand| is_small(module.operand_shape(operand)));
            operands && is_small(&instruction.shape)
        }
    }
}

/// The TPU that is assumed if layouts are a TPU's.
pub(crate) const TPU: &str = "tpu_v5e";

/// The device that a module was compiled for, derived from its text: tiles of 8 by 128 mean a TPU.
pub fn likely_device(module: &Module) -> &'static str {
    let is_tpu = module.text().contains(":T(8,128)");
    if is_tpu { TPU } else { "h100" }
}
