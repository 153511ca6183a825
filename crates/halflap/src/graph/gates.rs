//! Which collectives can keep an operation waiting.

use super::{Adjacency, OpKind, Parts};
use crate::ids::{Csr, IdVec, OpId};

/// Operations and the collectives that must have finished before they run.
pub(super) struct Gates {
    pub(super) gated_by: Csr<OpId, OpId>,
    pub(super) gates: Csr<OpId, OpId>,
}

impl Gates {
    /// A multi-output passes its gates on to its readers.
    pub(super) fn find(parts: &Parts, awaited: &Adjacency) -> Gates {
        let kind = |op: OpId| parts.ops[op].kind;
        let mut handed: IdVec<OpId, Vec<OpId>> = IdVec::filled(Vec::new(), parts.ops.len());
        let mut lists: Vec<Vec<OpId>> = Vec::with_capacity(parts.ops.len());
        for op in parts.ops.ids() {
            let preds = awaited.preds.of(op).iter().copied();
            let mut list: Vec<OpId> =
                preds.clone().filter(|&pred| kind(pred).is_collective()).collect();
            preds.for_each(|pred| list.extend_from_slice(&handed[pred]));
            list.sort_unstable();
            list.dedup();
            if kind(op) == OpKind::MultiOutput {
                handed[op] = std::mem::take(&mut list);
            }
            lists.push(list);
        }
        let gated_by: Csr<OpId, OpId> = Csr::from_lists(lists);
        let gates = gated_by.inverse(parts.ops.len());
        Gates { gated_by, gates }
    }
}
