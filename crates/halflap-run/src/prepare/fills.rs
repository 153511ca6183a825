//! Lookups whose rows are filled with NaN where their index is out of range, as JAX does it.

use std::collections::{BTreeMap, BTreeSet};

use halflap_hlo::ids::InstrId;
use halflap_hlo::{Literal, Opcode};

use super::bounds::{index_operands, rearranged, shifted};
use super::flat::Flat;

/// A lookup whose rows were filled: the rank, and its name in the module.
pub(crate) type FilledLookup = (usize, String);

impl Flat<'_> {
    /// The selects that put NaN in place of what a lookup gives, where a condition on its index
    /// says so, and their lookups.
    pub(super) fn fills(&self) -> BTreeMap<InstrId, InstrId> {
        let all = self.module.computations().flat_map(|all| self.module.instructions(all));
        let selects = all.filter(|&instr| self.opcode(instr) == Opcode::Select);
        selects.filter_map(|select| Some((select, self.filled_by(select)?))).collect()
    }

    fn filled_by(&self, select: InstrId) -> Option<InstrId> {
        let [condition, left, right] = self.module.operands(select) else { return None };
        let data = match (self.is_nan(left.of), self.is_nan(right.of)) {
            (true, false) => right.of,
            (false, true) => left.of,
            _ => return None,
        };
        let is_lookup =
            |instr: &InstrId| matches!(self.opcode(*instr), Opcode::Gather | Opcode::DynamicSlice);
        let lookups = self.made_of(data, rearranged).into_iter().filter(is_lookup);
        let lookups: Vec<InstrId> = lookups.collect();
        if lookups.is_empty() {
            return None;
        }
        let asked = self.made_of(condition.of, |_| 0..usize::MAX);
        lookups.into_iter().find(|&lookup| {
            let is_fixed =
                |instr: InstrId| matches!(self.opcode(instr), Opcode::Constant | Opcode::Iota);
            let indices = index_operands(self.module, lookup);
            let of_index: BTreeSet<InstrId> =
                indices.flat_map(|index| self.made_of(index, shifted)).collect();
            of_index.intersection(&asked).any(|&instr| !is_fixed(instr))
        })
    }

    /// Whether a value is a constant NaN throughout.
    fn is_nan(&self, instr: InstrId) -> bool {
        let instr = self.maker(instr);
        match self.opcode(instr) {
            Opcode::Broadcast | Opcode::Reshape | Opcode::Bitcast | Opcode::Convert => {
                self.is_nan(self.module.operands(instr)[0].of)
            }
            _ => matches!(self.module.literal(instr), Some(Literal::Float(numbers))
                if !numbers.is_empty() && numbers.iter().all(|number| number.is_nan())),
        }
    }
}
