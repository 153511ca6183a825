//! Values that are zero in every element, as far as the text says.

use std::collections::HashMap;

use crate::ids::InstrId;
use crate::nature::reduction;
use crate::{Module, Opcode};
use halflap::collective::Reduction;

/// What is known of all elements of a value.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Elements {
    /// All are zero, and none is a negative zero.
    Zero,
    /// All are the same finite number, which is larger than zero.
    Positive,
    Unknown,
}

/// Longer chains are not followed.
const DEEPEST: u32 = 64;

/// What is known of values; some are given.
pub(super) struct Zeros<'m> {
    module: &'m Module,
    /// Looked up only.
    known: HashMap<InstrId, Elements>,
    depth: u32,
}

impl<'m> Zeros<'m> {
    pub(super) fn new(module: &'m Module, known: HashMap<InstrId, Elements>) -> Zeros<'m> {
        Zeros { module, known, depth: 0 }
    }

    pub(super) fn of(&mut self, instr: InstrId) -> Elements {
        if let Some(&known) = self.known.get(&instr) {
            return known;
        }
        if self.depth == DEEPEST {
            return Elements::Unknown;
        }
        self.depth += 1;
        let found = self.work_out(instr);
        self.depth -= 1;
        self.known.insert(instr, found);
        found
    }

    fn work_out(&mut self, instr: InstrId) -> Elements {
        use Elements::{Positive, Unknown, Zero};
        use Opcode as O;
        let module = self.module;
        let mut of = Vec::new();
        for operand in module.operands(instr) {
            of.push(self.of(operand.of));
        }
        let all = || of.iter().all(|&known| known == Zero);
        let zero_if = |is_zero: bool| if is_zero { Zero } else { Unknown };
        let is_number = |instr: InstrId| {
            let array = module.instruction(instr).shape.array();
            // Not a number, and a type without a zero.
            array.is_some_and(|array| !["pred", "f8e8m0fnu"].contains(&array.element.name()))
        };
        let is_plain =
            || is_number(instr) && module.operands(instr).iter().all(|o| is_number(o.of));
        match (module.instruction(instr).opcode, &of[..]) {
            (O::Constant, _) => self.constant(instr),
            (O::Broadcast | O::Copy, &[known]) => known,
            (O::Reshape | O::Transpose | O::Slice | O::GetTupleElement, &[known]) => {
                zero_if(known == Zero)
            }
            (O::Bitcast | O::Convert, &[known]) => zero_if(known == Zero && is_plain()),
            (O::DynamicSlice, &[known, ..]) => zero_if(known == Zero),
            (O::DynamicUpdateSlice, &[whole, part, ..]) => zero_if(whole == Zero && part == Zero),
            (O::Add | O::Subtract | O::Concatenate | O::Pad, _) => zero_if(all()),
            (O::Multiply, &[Zero, Positive] | &[Positive, Zero])
            | (O::Divide, &[Zero, Positive]) => Zero,
            (O::AllReduce | O::ReduceScatter, _) => zero_if(all() && self.is_sum(instr)),
            (O::AllGather | O::AllToAll | O::CollectivePermute, _) => zero_if(all()),
            (O::Fusion, _) => self.fused(instr, &of),
            _ => Unknown,
        }
    }

    fn constant(&self, instr: InstrId) -> Elements {
        let text = self.module.payload(instr).trim();
        match text.parse::<f64>() {
            Ok(number) if number == 0.0 && !text.starts_with('-') => Elements::Zero,
            Ok(number) if number > 0.0 && number.is_finite() => Elements::Positive,
            _ => Elements::Unknown,
        }
    }

    fn is_sum(&self, instr: InstrId) -> bool {
        let kind = self.module.instruction(instr).opcode.collective_kind();
        kind.and_then(|kind| reduction(self.module, instr, kind)) == Some(Reduction::Sum)
    }

    fn fused(&self, instr: InstrId, of: &[Elements]) -> Elements {
        let &[callee] = self.module.called(instr) else { return Elements::Unknown };
        let parameters = self.module.parameters(callee);
        let given = parameters.iter().zip(of).filter_map(|(&at, &known)| Some((at?, known)));
        let (module, known) = (self.module, given.collect());
        let mut inside = Zeros { module, known, depth: self.depth };
        inside.of(self.module.root(callee))
    }
}
