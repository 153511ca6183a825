//! The shapes of results that the text leaves out.

use crate::error::{HloError, Problem};
use crate::ids::InstrId;
use crate::types::inferred;
use crate::{Module, Opcode};

/// Finds the shapes of these instructions, ascending, from their operands and attributes.
pub(super) fn infer(module: &mut Module, untyped: &[InstrId]) -> Result<(), HloError> {
    if untyped.is_empty() {
        return Ok(());
    }
    // Callees first, because callers need their results.
    for computation in module.callees_first() {
        for instr in module.instructions(computation) {
            if untyped.binary_search(&instr).is_err() {
                continue;
            }
            module.check_paths(instr)?;
            let at = module.instructions[instr].opcode_name.start as usize;
            let opcode = || module.opcode_name(instr).to_owned();
            let failed = |problem| HloError::at(&module.text, at, problem);
            let shape = match is_inferred(module.instructions[instr].opcode) {
                true => inferred(module, instr).map_err(|mismatch| {
                    failed(Problem::NotInferred { mismatch: Box::new(mismatch) })
                })?,
                false => None,
            };
            let shape = shape.ok_or_else(|| failed(Problem::NoShape { opcode: opcode() }))?;
            module.instructions[instr].shape = shape;
        }
    }
    Ok(())
}

/// Whether XLA reads an instruction without its shape; accepting more would give text that XLA
/// rejects.
fn is_inferred(opcode: Opcode) -> bool {
    use Opcode as O;
    let needs_shape = matches!(
        opcode,
        O::Convert
            | O::BitcastConvert
            | O::ReducePrecision
            | O::StochasticConvert
            | O::Other
            | O::Wrapped(..)
    );
    let is_other = matches!(
        opcode,
        O::AddDependency
            | O::AfterAll
            | O::BatchNormGrad
            | O::BatchNormInference
            | O::BatchNormTraining
            | O::Broadcast
            | O::Call
            | O::Cholesky
            | O::Concatenate
            | O::Conditional
            | O::Convolution
            | O::Copy
            | O::OptimizationBarrier
            | O::OptBarrierLong
            | O::Domain
            | O::Dot
            | O::Fft
            | O::Gather
            | O::GetDimensionSize
            | O::SetDimensionSize
            | O::GetTupleElement
            | O::Pad
            | O::PartitionId
            | O::RaggedDot
            | O::Reduce
            | O::ReduceWindow
            | O::ReplicaId
            | O::Reverse
            | O::Scan
            | O::ScaledDot
            | O::Scatter
            | O::SelectAndScatter
            | O::Sort
            | O::TopK
            | O::Transpose
            | O::TriangularSolve
            | O::Tuple
            | O::While
    );
    is_other || (opcode.is_elementwise() && !needs_shape)
}
