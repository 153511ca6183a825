//! Arrays with data-dependent sizes, as arrays of their bounds, which is what compilers do, too.
//!
//! A value of a dynamic shape becomes one of its maximum size, and the sizes of its dimensions
//! become separate scalars. Elements beyond them are garbage: where they would matter they are
//! replaced first, by the initial value of a reduction, or by zeros in products and results. A
//! parameter has the size of its bounds. If an operation has no rule here, the module is left as it
//! is.

mod loops;

use std::collections::BTreeMap;

use crate::draft::{Draft, DraftError, dim_list};
use crate::ids::InstrId;
use crate::{Array, ElementType, Module, Opcode, Operand, Shape};
use loops::CarriedSizes;

/// For each dimension, its size as a scalar operand; `None` if the size is the bound.
type DimSizes = Vec<Option<String>>;

/// The same module without dynamic shapes; `None` if it has none, or has one for which there is no
/// rule.
pub fn bounded(module: &Module) -> Result<Option<Module>, DraftError> {
    let (entry, sizes, carried) = (module.entry(), BTreeMap::new(), BTreeMap::new());
    let mut bounding = Bounding { module, draft: Draft::new(module), sizes, carried };
    if bounding.find_loops().is_none() {
        return Ok(None);
    }
    let mut is_any = false;
    for computation in module.computations() {
        for instr in module.instructions(computation) {
            if !bounding.is_dynamic(instr) {
                continue;
            }
            let is_inside = computation == entry
                || bounding.carried.contains_key(&instr)
                || bounding.hides_sizes(instr);
            if !is_inside || bounding.rewrite(instr).is_none() {
                return Ok(None);
            }
            is_any = true;
        }
    }
    if is_any { bounding.draft.finish().map(Some) } else { Ok(None) }
}

struct Bounding<'m> {
    module: &'m Module,
    draft: Draft<'m>,
    /// Those of all arrays that have some.
    sizes: BTreeMap<InstrId, DimSizes>,
    /// The states of loops that have some.
    carried: BTreeMap<InstrId, CarriedSizes>,
}

/// An array, its type and its sizes.
struct SizedArray<'a> {
    value: String,
    array: &'a Array,
    sizes: DimSizes,
}

fn is_dynamic(shape: &Shape) -> bool {
    let mut leaves = Vec::new();
    shape.leaves(&mut leaves);
    leaves.iter().any(|leaf| leaf.array().is_some_and(|array| array.dynamic))
}

impl<'m> Bounding<'m> {
    /// Whether an instruction involves data-dependent sizes.
    fn is_dynamic(&self, instr: InstrId) -> bool {
        let has_sizes = |operand: &Operand| self.sizes.contains_key(&operand.of);
        let is_given = |operand: &Operand| is_dynamic(self.module.operand_shape(operand));
        let opcode = self.module.instruction(instr).opcode;
        is_dynamic(&self.module.instruction(instr).shape)
            || opcode == Opcode::SetDimensionSize
            || self.module.operands(instr).iter().any(has_sizes)
            || self.module.operands(instr).iter().any(is_given)
    }

    /// An operand that is an array.
    fn operand(&self, instr: InstrId, index: usize) -> Option<SizedArray<'m>> {
        let operand = self.module.operands(instr).get(index)?;
        let array = self.module.operand_shape(operand).array()?;
        let sizes = self.sizes.get(&operand.of).cloned();
        let sizes = sizes.unwrap_or_else(|| vec![None; array.dims.len()]);
        Some(SizedArray { value: self.draft.operand(operand), array, sizes })
    }

    /// Writes an instruction with bounds for sizes, and records its sizes; `None` if there is no
    /// rule for it.
    fn rewrite(&mut self, instr: InstrId) -> Option<()> {
        let module = self.module;
        let operands = module.operands(instr);
        let mut values: Vec<String> =
            operands.iter().map(|operand| self.draft.operand(operand)).collect();
        let opcode = module.instruction(instr).opcode;
        if self.carried.contains_key(&instr) {
            return self.state(instr, values);
        }
        let dims = |key: &str| -> Vec<usize> {
            module.numbers(instr, key).into_iter().map(|dim| dim as usize).collect()
        };
        let sizes = match opcode {
            Opcode::Parameter => Vec::new(),
            Opcode::SetDimensionSize => {
                let mut sizes = self.operand(instr, 0)?.sizes;
                *sizes.get_mut(*dims("dimensions").first()?)? = Some(values.get(1)?.clone());
                return self.give(instr, format!("copy({})", values[0]), sizes);
            }
            Opcode::GetDimensionSize => {
                let (of, dim) = (self.operand(instr, 0)?, *dims("dimensions").first()?);
                let size = match of.sizes.get(dim)? {
                    Some(size) => format!("copy({size})"),
                    None => format!("constant({})", of.array.dims.get(dim)?),
                };
                return self.give(instr, size, Vec::new());
            }
            Opcode::Broadcast => {
                let of = self.operand(instr, 0)?.sizes;
                let mut sizes = vec![None; module.instruction(instr).shape.array()?.dims.len()];
                for (size, dim) in of.into_iter().zip(dims("dimensions")) {
                    *sizes.get_mut(dim)? = size;
                }
                sizes
            }
            Opcode::Transpose => {
                let of = self.operand(instr, 0)?.sizes;
                dims("dimensions").iter().map(|&dim| of.get(dim).cloned()).collect::<Option<_>>()?
            }
            Opcode::Reduce if values.len() == 2 => {
                let (of, gone) = (self.operand(instr, 0)?, dims("dimensions"));
                let kept = without(&of.sizes, &gone);
                values[0] = self.masked(instr, only(of, &gone), &values[1]);
                kept
            }
            Opcode::Dot => self.dot(instr, &mut values)?,
            Opcode::Concatenate => return self.concatenated(instr, *dims("dimensions").first()?),
            Opcode::GetTupleElement => self.taken(instr)?,
            Opcode::Tuple if module.root(module.entry()) == instr => {
                for (index, value) in values.iter_mut().enumerate() {
                    if self.sizes.contains_key(&operands[index].of) {
                        *value = self.zeroed(instr, index)?;
                    }
                }
                Vec::new()
            }
            _ if opcode.is_elementwise() || opcode == Opcode::Copy => self.common(instr)?,
            _ => return None,
        };
        let (inside, attributes) = (self.inside(instr, &values), self.attributes(instr));
        self.give(instr, format!("{}({inside}){attributes}", module.opcode_name(instr)), sizes)
    }

    /// The text between an instruction's parentheses.
    fn inside(&self, instr: InstrId, values: &[String]) -> String {
        match self.module.operands(instr).is_empty() {
            true => self.module.payload(instr).to_owned(),
            false => values.join(", "),
        }
    }

    /// What follows the parentheses.
    fn attributes(&self, instr: InstrId) -> &'m str {
        let instruction = self.module.instruction(instr);
        let text = self.module.text();
        text[instruction.payload.end as usize..instruction.text.end as usize]
            .trim_start()
            .trim_start_matches(')')
    }

    /// The sizes that arrays of the same extents have in common.
    fn common(&self, instr: InstrId) -> Option<DimSizes> {
        let rank = self.module.instruction(instr).shape.array()?.dims.len();
        let all = (0..self.module.operands(instr).len()).map(|index| self.operand(instr, index));
        let all = all.collect::<Option<Vec<_>>>()?;
        let alike = all.into_iter().filter(|of| of.sizes.len() == rank);
        Some(alike.fold(vec![None; rank], |known, of| {
            known.into_iter().zip(of.sizes).map(|(known, size)| known.or(size)).collect()
        }))
    }

    /// Arrays one after the other: each is written where the one before ends, over what is beyond
    /// its size.
    fn concatenated(&mut self, instr: InstrId, along: usize) -> Option<()> {
        let module = self.module;
        let array = module.instruction(instr).shape.array()?;
        let shape = format!("{}[{}]", array.element.name(), dim_list(&array.dims));
        let mut sizes = self.common(instr)?;
        let zero = self.zero(instr, array.element);
        let wide = format!("broadcast({zero}), dimensions={{}}");
        let mut all = self.draft.add(instr, "all", (&shape, &wide));
        let start = self.draft.add(instr, "start", ("s32[]", "constant(0)"));
        let mut end = start.clone();
        for index in 0..module.operands(instr).len() {
            let of = self.operand(instr, index)?;
            let place = |dim| if dim == along { end.clone() } else { start.clone() };
            let places: Vec<String> = (0..array.dims.len()).map(place).collect();
            let update =
                format!("dynamic-update-slice({all}, {}, {})", of.value, places.join(", "));
            all = self.draft.add(instr, "all", (&shape, &update));
            let bound = format!("constant({})", of.array.dims.get(along)?);
            let size = match of.sizes.get(along)?.clone() {
                Some(size) => size,
                None => self.draft.add(instr, "bound", ("s32[]", &bound)),
            };
            end = self.draft.add(instr, "end", ("s32[]", &format!("add({end}, {size})")));
        }
        *sizes.get_mut(along)? = Some(end);
        self.give(instr, format!("copy({all})"), sizes)
    }

    /// A product: what is summed over is zero beyond its size, on both sides.
    fn dot(&mut self, instr: InstrId, values: &mut [String]) -> Option<DimSizes> {
        let dims = |key: &str| -> Vec<usize> {
            self.module.numbers(instr, key).into_iter().map(|dim| dim as usize).collect()
        };
        let summed = [dims("lhs_contracting_dims"), dims("rhs_contracting_dims")];
        let batch = [dims("lhs_batch_dims"), dims("rhs_batch_dims")];
        let mut sides = [self.operand(instr, 0)?, self.operand(instr, 1)?];
        for (&left, &right) in summed[0].iter().zip(&summed[1]) {
            let size = sides[0].sizes.get(left)?.clone().or(sides[1].sizes.get(right)?.clone());
            (sides[0].sizes[left], sides[1].sizes[right]) = (size.clone(), size);
        }
        let mut sizes: DimSizes =
            batch[0].iter().map(|&dim| sides[0].sizes.get(dim).cloned()).collect::<Option<_>>()?;
        for (side, of) in sides.iter().enumerate() {
            let taken = [&summed[side][..], &batch[side][..]].concat();
            sizes.extend(without(&of.sizes, &taken));
        }
        for (side, of) in sides.into_iter().enumerate() {
            let zero = self.zero(instr, of.array.element);
            values[side] = self.masked(instr, only(of, &summed[side]), &zero);
        }
        Some(sizes)
    }

    /// A result with zeros beyond its size.
    fn zeroed(&mut self, instr: InstrId, index: usize) -> Option<String> {
        let of = self.operand(instr, index)?;
        let zero = self.zero(instr, of.array.element);
        Some(self.masked(instr, of, &zero))
    }

    /// Writes an instruction under its own name. A result of the module is zero beyond its size.
    fn give(&mut self, instr: InstrId, text: String, sizes: DimSizes) -> Option<()> {
        let (module, name) = (self.module, self.module.instruction_name(instr).to_owned());
        let instruction = module.instruction(instr);
        let shape = module.shape_text(instr).replace("<=", "");
        let is_sized = sizes.iter().any(Option::is_some);
        if !is_sized || module.root(module.entry()) != instr {
            self.draft.write_line(instr, name, (&shape, &text));
            self.sizes.extend(is_sized.then_some((instr, sizes)));
            return Some(());
        }
        let array = instruction.shape.array()?;
        let value = self.draft.add(instr, "computed", (&shape, &text));
        let zero = self.zero(instr, array.element);
        let masked = self.masked(instr, SizedArray { value, array, sizes }, &zero);
        self.draft.write_line(instr, name, (&shape, &format!("copy({masked})")));
        Some(())
    }

    /// An array with something else beyond its sizes.
    fn masked(&mut self, at: InstrId, of: SizedArray<'_>, fill: &str) -> String {
        let dims = dim_list(&of.array.dims);
        let [own, counts, truth] =
            [of.array.element.name(), "s32", "pred"].map(|element| format!("{element}[{dims}]"));
        let mut value = of.value;
        for (dim, size) in of.sizes.iter().enumerate() {
            let Some(size) = size else { continue };
            let wide = |scalar: &str| format!("broadcast({scalar}), dimensions={{}}");
            let iota = format!("iota(), iota_dimension={dim}");
            let place = self.draft.add(at, "place", (&counts, &iota));
            let size = self.draft.add(at, "size", (&counts, &wide(size)));
            let compare = format!("compare({place}, {size}), direction=LT");
            let is_within = self.draft.add(at, "within", (&truth, &compare));
            let fill = self.draft.add(at, "fill", (&own, &wide(fill)));
            let select = format!("select({is_within}, {value}, {fill})");
            value = self.draft.add(at, "padded", (&own, &select));
        }
        value
    }

    fn zero(&mut self, at: InstrId, element: ElementType) -> String {
        let zero = if element == ElementType::Pred { "false" } else { "0" };
        let shape = format!("{}[]", element.name());
        self.draft.add(at, "zero", (&shape, &format!("constant({zero})")))
    }
}

/// An array with some of its sizes.
fn only<'a>(of: SizedArray<'a>, dims: &[usize]) -> SizedArray<'a> {
    let keep = |(dim, size): (usize, Option<String>)| size.filter(|_| dims.contains(&dim));
    SizedArray { sizes: of.sizes.into_iter().enumerate().map(keep).collect(), ..of }
}

/// The sizes of other dimensions.
fn without(sizes: &[Option<String>], dims: &[usize]) -> DimSizes {
    let others = sizes.iter().enumerate().filter(|(dim, _)| !dims.contains(dim));
    others.map(|(_, size)| size.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check;

    fn read(body: &str) -> Module {
        let add =
            "add { a = f32[] parameter(0)\n b = f32[] parameter(1)\n ROOT c = f32[] add(a, b) }";
        Module::read(format!("HloModule m\n{add}\nENTRY e {{\n{body}\n}}\n")).unwrap()
    }

    #[test]
    fn sizes_become_scalars() {
        let module = read(
            " p = f32[8,4] parameter(0)\n n = s32[] parameter(1)\n \
             d = f32[<=8,4] set-dimension-size(p, n), dimensions={0}\n e = f32[<=8,4] exponential(d)\n \
             z = f32[] constant(0)\n s = f32[4] reduce(e, z), dimensions={0}, to_apply=add\n \
             r = f32[<=8] reduce(e, z), dimensions={1}, to_apply=add\n g = s32[] get-dimension-size(e), dimensions={0}\n \
             ROOT t = (f32[4], f32[<=8], s32[]) tuple(s, r, g)",
        );
        let after = bounded(&module).unwrap().unwrap();
        assert!(!after.text().contains("<="), "{}", after.text());
        check(&after).unwrap();
        assert!(bounded(&after).unwrap().is_none());
    }

    #[test]
    fn loops_carry_sizes() {
        let text = "HloModule m\n\
            goes { s = (s32[], f32[<=8]) parameter(0)\n i = s32[] get-tuple-element(s), index=0\n \
             n = s32[] constant(3)\n ROOT g = pred[] compare(i, n), direction=LT }\n\
            turn { t = (s32[], f32[<=8]) parameter(0)\n j = s32[] get-tuple-element(t), index=0\n \
             x = f32[<=8] get-tuple-element(t), index=1\n one = s32[] constant(1)\n k = s32[] add(j, one)\n \
             y = f32[<=8] negate(x)\n ROOT u = (s32[], f32[<=8]) tuple(k, y) }\n\
            ENTRY e { p = f32[8] parameter(0)\n n = s32[] parameter(1)\n z = s32[] constant(0)\n \
             d = f32[<=8] set-dimension-size(p, n), dimensions={0}\n i = (s32[], f32[<=8]) tuple(z, d)\n \
             w = (s32[], f32[<=8]) while(i), condition=goes, body=turn\n \
             ROOT r = f32[<=8] get-tuple-element(w), index=1 }\n";
        let after = bounded(&Module::read(text.to_owned()).unwrap()).unwrap().unwrap();
        assert!(!after.text().contains("<="), "{}", after.text());
        check(&after).unwrap();
        assert!(after.text().contains("(s32[], f32[8], s32[]) while("), "{}", after.text());
        // The result of the module would have one element more.
        let root = text.replace(" ROOT r =", " r =").replace(" w = (", " ROOT w = (");
        assert!(bounded(&Module::read(root).unwrap()).unwrap().is_none());
    }

    #[test]
    fn what_has_no_rule_stays() {
        let module = read(
            " p = f32[8] parameter(0)\n n = s32[] parameter(1)\n \
             d = f32[<=8] set-dimension-size(p, n), dimensions={0}\n ROOT r = f32[<=8] reverse(d), dimensions={0}",
        );
        assert!(bounded(&module).unwrap().is_none());
    }
}
