//! Which wait ends which collective, and whether a collective's inputs stay alive until then.

use super::{Graph, OpKind, Parts};
use crate::ids::{BufId, Csr, IdVec, OpId};
use crate::units::Bytes;

/// Waits and asynchronous collectives, paired.
pub(super) struct Pairs {
    pub(super) waits_for: Csr<OpId, OpId>,
    pub(super) waited_by: Csr<OpId, OpId>,
}

impl Pairs {
    /// A wait ends the asynchronous collectives that it reads, also through multi-outputs. Where it
    /// reads none (the result is taken apart in between), it ends the last one whose result reaches
    /// it through compute operations; where none does, it does nothing.
    pub(super) fn find(parts: &Parts) -> Pairs {
        let mut carried: IdVec<OpId, Option<OpId>> = IdVec::filled(None, parts.ops.len());
        let mut handed: IdVec<OpId, Vec<OpId>> = IdVec::filled(Vec::new(), parts.ops.len());
        let mut lists: Vec<Vec<OpId>> = Vec::with_capacity(parts.ops.len());
        for (id, op) in parts.ops.iter() {
            let data = op.deps.iter().filter(|(_, kinds)| kinds.data);
            let makers: Vec<OpId> =
                data.filter_map(|&(buffer, _)| parts.buffers[buffer].maker).collect();
            let is_async = |maker: &OpId| parts.ops[*maker].kind == OpKind::AsyncCollective;
            let mut direct: Vec<OpId> = makers.iter().copied().filter(is_async).collect();
            makers.iter().for_each(|&maker| direct.extend_from_slice(&handed[maker]));
            direct.sort_unstable();
            direct.dedup();
            let through_others = makers.iter().filter_map(|&maker| carried[maker]).max();
            let mut list = Vec::new();
            match op.kind {
                OpKind::Wait if direct.is_empty() => list.extend(through_others),
                OpKind::Wait => list = direct,
                OpKind::Compute => carried[id] = direct.last().copied().max(through_others),
                OpKind::MultiOutput => (carried[id], handed[id]) = (through_others, direct),
                OpKind::AsyncCollective | OpKind::SyncCollective => {}
            }
            lists.push(list);
        }
        let waits_for: Csr<OpId, OpId> = Csr::from_lists(lists);
        let waited_by = waits_for.inverse(parts.ops.len());
        Pairs { waits_for, waited_by }
    }
}

/// Something valid that is probably a mistake.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Warning {
    /// Asynchronous collectives read buffers that may be freed before their waits.
    InputsNotHeld {
        /// How many collectives do.
        collectives: usize,
        /// The first of them.
        collective: OpId,
        /// A buffer that it reads.
        buffer: BufId,
        /// The wait that is not among the buffer's users.
        wait: OpId,
    },
}

impl Graph {
    /// Valid but probably unintended; at most one warning of each kind.
    pub fn warnings(&self) -> Vec<Warning> {
        let mut count = 0;
        let mut first = None;
        for op in self.ops() {
            if let Some((buffer, wait)) = self.input_not_held(op) {
                count += 1;
                first = first.or(Some((op, buffer, wait)));
            }
        }
        let warning = first.map(|(collective, buffer, wait)| Warning::InputsNotHeld {
            collectives: count,
            collective,
            buffer,
            wait,
        });
        warning.into_iter().collect()
    }

    /// A buffer that a collective uses and that none of its waits keeps alive.
    fn input_not_held(&self, collective: OpId) -> Option<(BufId, OpId)> {
        let waits = self.waited_by(collective);
        let &wait = waits.first()?;
        let held =
            |buffer: BufId| waits.iter().any(|wait| self.users(buffer).binary_search(wait).is_ok());
        let used = self.uses(collective).iter().copied();
        let buffer = used
            .filter(|&buffer| self.size_free(buffer) > Bytes::ZERO)
            .find(|&buffer| !held(buffer))?;
        Some((buffer, wait))
    }
}
