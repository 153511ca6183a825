//! Kernels of steps: what a launch computes, and the bitcasts that are part of it or come before
//! it.

use halflap_hlo::ids::{InstrId, SlotId};
use halflap_hlo::plan::{Plan, PlannedWork};
use halflap_hlo::{Module, Opcode};

use super::layout::bitcasts;
use super::ready::{Cast, KernelLaunch, Read};
use super::{PrepareError, Preparer};
use crate::kernel::{
    FusedGroup, Gap, Kernel, Libraries, ResultLeaf, Unsupported, made_leaves, operand_leaves,
};

/// A launch, and whose arrays it works on.
pub(super) struct PreparedLaunch {
    pub(super) launch: KernelLaunch,
    /// Where each array that it takes comes from.
    pub(super) leaves: Vec<ResultLeaf>,
    /// The instruction whose value it computes.
    pub(super) instr: InstrId,
    /// All that it computes, the last of which is that one.
    pub(super) instrs: Vec<InstrId>,
}

/// Instructions and the bitcasts that they read, in a sequence in which they can run.
fn with_bitcasts(module: &Module, mut instrs: Vec<InstrId>) -> Vec<InstrId> {
    let mut next = 0;
    while let Some(&instr) = instrs.get(next) {
        for operand in module.operands(instr) {
            if module.instruction(operand.of).opcode == Opcode::Bitcast
                && !instrs.contains(&operand.of)
            {
                instrs.push(operand.of);
            }
        }
        next += 1;
    }
    // Instructions of a computation are numbered in such an order.
    instrs.sort_unstable();
    instrs
}

/// Whether instructions, the last of which is the result, form one kernel without intermediate
/// values in memory; used by [`halflap_hlo::plan::fuse`].
pub fn fits(module: &Module, instrs: &[InstrId]) -> bool {
    let Some(&last) = instrs.last() else { return false };
    let kernel = |instrs: &[InstrId]| {
        let instrs = with_bitcasts(module, instrs.to_vec());
        let group = FusedGroup { instrs: &instrs, outputs: &[last] };
        Kernel::compile_group(module, group, &Libraries::default())
            .ok()
            .filter(|(kernel, _)| kernel.is_one_stage())
    };
    // Not fused if a multiplication would then have to copy its operands.
    let copies =
        |alone: &Kernel, all: &Kernel| all.scratch_bytes() > alone.scratch_bytes() + REGISTERS;
    let alone = kernel(&[last]);
    alone.zip(kernel(instrs)).is_some_and(|(alone, all)| !copies(&alone.0, &all.0))
}

/// The register limit of a fused kernel.
const REGISTERS: usize = 128 * 1024;

/// The kernel that converts a slot's content to a value; `None` if it already is the value.
pub(super) fn cast_of(
    module: &Module,
    libraries: &Libraries,
    leaf: ResultLeaf,
) -> Result<Option<Kernel>, Unsupported> {
    let chain = bitcasts(module, leaf);
    let Some(&last) = chain.last() else { return Ok(None) };
    let group = FusedGroup { instrs: &chain, outputs: &[last] };
    let (kernel, leaves) = Kernel::compile_group(module, group, libraries)?;
    // An instruction that only passes values on may lie between two of them: then it has several
    // inputs.
    match leaves[..] {
        [_] => Ok(Some(kernel)),
        _ => Err(Unsupported::new(module, last, Gap::Operation)),
    }
}

impl Preparer<'_> {
    /// A kernel: bitcasts that it reads directly are part of it.
    pub(super) fn launch(
        &self,
        plan: &Plan,
        work: &PlannedWork,
    ) -> Result<(PreparedLaunch, Vec<(usize, Cast)>), PrepareError> {
        let module = self.module;
        let instrs = with_bitcasts(module, work.instrs());
        let group = FusedGroup { instrs: &instrs, outputs: &[work.instr] };
        let (kernel, leaves) = Kernel::compile_group(module, group, self.libraries)?;
        let mut casts = Vec::new();
        for (index, &leaf) in leaves.iter().enumerate() {
            if let Some(kernel) = cast_of(module, self.libraries, leaf)? {
                casts.push((index, Cast { kernel, from: plan.storage.of(leaf.instr)[leaf.index] }));
            }
        }
        let ins = leaves.iter().map(|leaf| plan.storage.of(leaf.instr)[leaf.index]).collect();
        let launch = KernelLaunch::new(kernel, ins, work.writes.clone());
        Ok((PreparedLaunch { launch, leaves, instr: work.instr, instrs }, casts))
    }

    /// An asynchronous operation that is not communication: a copy, a slice, or a computation.
    pub(super) fn transfer(
        &self,
        plan: &Plan,
        work: &PlannedWork,
    ) -> Result<PreparedLaunch, PrepareError> {
        let instr = work.instr;
        let leaves = self.operand_leaves_of(work.instr);
        if leaves.iter().any(|&leaf| !bitcasts(self.module, leaf).is_empty()) {
            return Err(self.layout(instr));
        }
        let kernel = Kernel::compile_with(self.module, instr, self.libraries)?;
        let ins: Vec<SlotId> =
            leaves.iter().map(|leaf| plan.storage.of(leaf.instr)[leaf.index]).collect();
        let outs = plan.storage.of(instr)[made_leaves(self.module, instr)].to_vec();
        let is_written = outs.iter().all(|slot| work.writes.contains(slot));
        if kernel.inputs().len() != ins.len() || kernel.outputs().len() != outs.len() || !is_written
        {
            return Err(Unsupported::new(self.module, instr, Gap::Operation).into());
        }
        let launch = KernelLaunch::new(kernel, ins, outs);
        Ok(PreparedLaunch { launch, leaves, instr, instrs: vec![instr] })
    }

    pub(super) fn operand_leaves_of(&self, instr: InstrId) -> Vec<ResultLeaf> {
        let operands = self.module.operands(instr).iter();
        let leaves = |operand: &halflap_hlo::Operand| {
            let of = operand.of;
            operand_leaves(self.module, operand).map(move |index| ResultLeaf { instr: of, index })
        };
        operands.flat_map(leaves).collect()
    }

    /// The arrays read from slots, through bitcasts if there are any.
    pub(super) fn reads(
        &self,
        plan: &Plan,
        leaves: &[ResultLeaf],
    ) -> Result<Vec<Read>, PrepareError> {
        let read = |leaf: &ResultLeaf| {
            let from = plan.storage.of(leaf.instr)[leaf.index];
            let cast = cast_of(self.module, self.libraries, *leaf)?;
            Ok(cast.map_or(Read::Slot(from), |kernel| Read::Cast(Box::new(Cast { kernel, from }))))
        };
        leaves.iter().map(read).collect()
    }
}
