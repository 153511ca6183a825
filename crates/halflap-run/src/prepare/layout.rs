//! Arrays and their locations: what slots hold, and where a bitcast changes its interpretation.
//!
//! Arrays here are dense with the last index fastest, regardless of the module's layouts. A bitcast
//! with other layouts keeps its bytes on the module's own device, but moves them here: each reader
//! computes it, as part of its kernel or before, into memory that is not counted.

use halflap::ids::IdVec;
use halflap_hlo::ids::{InstrId, SlotId};
use halflap_hlo::plan::Plan;
use halflap_hlo::{Module, Opcode, Phase, Shape};

use crate::kernel::{ResultLeaf, Unsupported, leaf_kinds, operand_leaves};

/// What a slot holds: the largest of its arrays.
#[derive(Clone, Debug)]
pub(crate) struct SlotContent {
    pub(crate) bytes: usize,
    /// The alignment required by all of them.
    pub(crate) align: usize,
    /// What the largest is: `f32[8,4]`.
    pub(crate) kind: String,
}

/// What each slot of a plan must have room for.
pub(super) fn slot_arrays(
    module: &Module,
    plan: &Plan,
) -> Result<IdVec<SlotId, SlotContent>, Unsupported> {
    let nothing = SlotContent { bytes: 0, align: 1, kind: "nothing".to_owned() };
    let mut held: IdVec<SlotId, SlotContent> = IdVec::filled(nothing, plan.storage.slots.len());
    for instr in module.instructions(plan.computation) {
        let kinds = leaf_kinds(module, instr)?;
        for (&slot, kind) in plan.storage.of(instr).iter().zip(&kinds) {
            let known = &mut held[slot];
            known.align = known.align.max(kind.dtype.align());
            if kind.bytes() > known.bytes {
                known.bytes = kind.bytes();
                known.kind = kind.to_string();
            }
        }
    }
    Ok(held)
}

/// The bitcasts between the memory of a value and the value, in the order in which to apply them;
/// none if they move no elements.
pub(super) fn bitcasts(module: &Module, leaf: ResultLeaf) -> Vec<InstrId> {
    let mut found = Vec::new();
    let mut at = Some(leaf);
    while let Some(leaf) = at {
        if module.instruction(leaf.instr).opcode == Opcode::Bitcast {
            found.push(leaf.instr);
        }
        at = passed_on(module, leaf);
    }
    found.reverse();
    if found.iter().any(|&instr| module.is_moving_bitcast(instr)) { found } else { Vec::new() }
}

/// The value that an instruction passes on as this leaf; `None` if it produces the leaf itself.
fn passed_on(module: &Module, leaf: ResultLeaf) -> Option<ResultLeaf> {
    let opcode = module.instruction(leaf.instr).opcode;
    let operands = module.operands(leaf.instr);
    let first = |offset: usize| {
        let operand = operands.first()?;
        Some(ResultLeaf {
            instr: operand.of,
            index: operand_leaves(module, operand).start + offset + leaf.index,
        })
    };
    match opcode {
        Opcode::Bitcast
        | Opcode::OptimizationBarrier
        | Opcode::OptBarrierLong
        | Opcode::Domain
        | Opcode::AddDependency
        | Opcode::AsyncUpdate
        | Opcode::Wrapped(Phase::Update, _) => first(0),
        Opcode::GetTupleElement => {
            let parts = module.operand_shape(operands.first()?).parts();
            let index = module.tuple_index(leaf.instr)? as usize;
            first(parts.get(..index)?.iter().map(Shape::leaf_count).sum())
        }
        Opcode::Tuple => {
            let mut left = leaf.index;
            for operand in operands {
                let range = operand_leaves(module, operand);
                if left < range.len() {
                    return Some(ResultLeaf { instr: operand.of, index: range.start + left });
                }
                left -= range.len();
            }
            None
        }
        _ => None,
    }
}
