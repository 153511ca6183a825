//! Loops whose state has arrays of dynamic shapes: the sizes become further elements of the state.

use super::{Bounding, DimSizes, is_dynamic};
use crate::draft::grown;
use crate::ids::{ComputationId, InstrId};
use crate::{Opcode, Operand, Shape};

/// The state of a loop.
#[derive(Clone)]
pub(super) struct CarriedSizes {
    /// How many elements it has of its own.
    own: usize,
    /// The element and the dimension of every size, in the sequence in which they follow.
    places: Vec<(usize, usize)>,
}

impl CarriedSizes {
    fn of(shape: &Shape) -> CarriedSizes {
        let parts = shape.parts();
        let places = |(element, part): (usize, &Shape)| {
            let dynamic = part.array().filter(|array| array.dynamic);
            (0..dynamic.map_or(0, |array| array.dims.len())).map(move |dim| (element, dim))
        };
        CarriedSizes {
            own: parts.len(),
            places: parts.iter().enumerate().flat_map(places).collect(),
        }
    }

    fn shapes(&self) -> Vec<String> {
        vec!["s32[]".to_owned(); self.places.len()]
    }
}

impl<'m> Bounding<'m> {
    /// Finds all loops with arrays of dynamic shapes; `None` if one is of another form than a tuple
    /// that is made for it, a body that ends with one, and elements that are taken from it.
    pub(super) fn find_loops(&mut self) -> Option<()> {
        let module = self.module;
        let instrs = module.computations().flat_map(|id| module.instructions(id));
        for instr in instrs.filter(|&instr| module.instruction(instr).opcode == Opcode::While) {
            let shape = &module.instruction(instr).shape;
            if !is_dynamic(shape) {
                continue;
            }
            let carried = CarriedSizes::of(shape);
            let [init] = module.operands(instr) else { return None };
            let body = module.computation_in(instr, "body")?;
            let condition = module.computation_in(instr, "condition")?;
            let tuples = [init.of, module.root(body)];
            let states = [self.parameter(body)?, self.parameter(condition)?, instr];
            let is_tuple = |&of: &InstrId| module.instruction(of).opcode == Opcode::Tuple;
            let is_flat = shape.parts().iter().all(|part| part.array().is_some());
            let only_elements = states.iter().all(|&of| self.gives_elements(of));
            let is_made_for_it = module.path(init).is_empty() && self.readers(init.of) == [instr];
            let is_result = module.root(module.computation_of(instr)) == instr;
            let is_known = is_flat && tuples.iter().all(is_tuple) && only_elements;
            if !is_known || !is_made_for_it || is_result || self.is_called_again(instr) {
                return None;
            }
            let all = tuples.into_iter().chain(states);
            self.carried.extend(all.map(|of| (of, carried.clone())));
        }
        Some(())
    }

    /// The only parameter of a computation.
    fn parameter(&self, computation: ComputationId) -> Option<InstrId> {
        match self.module.parameters(computation)[..] {
            [parameter] => parameter,
            _ => None,
        }
    }

    /// Whether nothing outside of its computation sees that an instruction's shape is dynamic.
    pub(super) fn hides_sizes(&self, instr: InstrId) -> bool {
        let (module, opcode) = (self.module, self.module.instruction(instr).opcode);
        let is_seen = opcode == Opcode::Parameter
            || module.root(module.computation_of(instr)) == instr
            || !module.called(instr).is_empty() && opcode != Opcode::Reduce;
        !is_seen || !is_dynamic(&module.instruction(instr).shape)
    }

    fn readers(&self, of: InstrId) -> Vec<InstrId> {
        let all = self.module.instructions(self.module.computation_of(of));
        let reads = |&other: &InstrId| {
            self.module.operands(other).iter().any(|operand: &Operand| operand.of == of)
        };
        all.filter(reads).collect()
    }

    fn gives_elements(&self, of: InstrId) -> bool {
        let is_element =
            |&reader: &InstrId| self.module.instruction(reader).opcode == Opcode::GetTupleElement;
        self.readers(of).iter().all(is_element)
    }

    /// Whether another instruction calls what a loop repeats.
    fn is_called_again(&self, instr: InstrId) -> bool {
        let module = self.module;
        let called = module.called(instr);
        let mut all = module.computations().flat_map(|id| module.instructions(id));
        all.any(|other| other != instr && module.called(other).iter().any(|id| called.contains(id)))
    }

    /// Writes the state of a loop, which has more elements.
    pub(super) fn state(&mut self, instr: InstrId, mut values: Vec<String>) -> Option<()> {
        let carried = self.carried.get(&instr)?.clone();
        let opcode = self.module.instruction(instr).opcode;
        match opcode {
            Opcode::Tuple => {
                for &(element, dim) in &carried.places {
                    values.push(self.size_of(instr, element, dim)?);
                }
            }
            Opcode::Parameter => self.draft.grow_head(instr, &carried.shapes()),
            _ => {}
        }
        let shape = grown(&self.module.shape_text(instr).replace("<=", ""), &carried.shapes());
        let (inside, attributes) = (self.inside(instr, &values), self.attributes(instr));
        let text = format!("{}({inside}){attributes}", self.module.opcode_name(instr));
        let name = self.module.instruction_name(instr).to_owned();
        self.draft.write_line(instr, name, (&shape, &text));
        Some(())
    }

    /// The size of a dimension of an operand, as a scalar.
    fn size_of(&mut self, instr: InstrId, element: usize, dim: usize) -> Option<String> {
        let of = self.operand(instr, element)?;
        let bound = *of.array.dims.get(dim)?;
        Some(match of.sizes.get(dim)?.clone() {
            Some(size) => size,
            None => self.draft.add(instr, "bound", ("s32[]", &format!("constant({bound})"))),
        })
    }

    /// The sizes of an element that is taken from the state of a loop, or of no other tuple.
    pub(super) fn taken(&mut self, instr: InstrId) -> Option<DimSizes> {
        let [tuple] = self.module.operands(instr) else { return None };
        let carried = self.carried.get(&tuple.of)?.clone();
        let element = self.module.tuple_index(instr)? as usize;
        let from = self.draft.operand(tuple);
        let mut sizes = DimSizes::new();
        for (place, _) in carried.places.iter().enumerate().filter(|(_, at)| at.0 == element) {
            let index = carried.own + place;
            let text = format!("get-tuple-element({from}), index={index}");
            sizes.push(Some(self.draft.add(instr, "size", ("s32[]", &text))));
        }
        Some(sizes)
    }
}
