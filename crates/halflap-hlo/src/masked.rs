//! Ragged products as products of masked arrays, as CPU compilers do it.
//!
//! The rows of one side belong to groups with data-dependent sizes. A copy of that side for each
//! group, with zeros in the rows of other groups, makes it a plain product: one for all groups
//! together if the other side has a matrix for each, or one for each group if the rows are summed
//! over.

use crate::draft::{Draft, DraftError, dim_list};
use crate::ids::InstrId;
use crate::{Array, Module, Opcode};

/// The same module without ragged products; `None` if it has none, or any with batch dimensions.
pub fn without_ragged_products(module: &Module) -> Result<Option<Module>, DraftError> {
    let mut draft = Draft::new(module);
    let mut is_any = false;
    for instr in module.computations().flat_map(|computation| module.instructions(computation)) {
        if module.instruction(instr).opcode == Opcode::RaggedDot {
            let Some(product) = RaggedProduct::of(module, instr) else { return Ok(None) };
            product.write(&mut draft);
            is_any = true;
        }
    }
    if is_any { draft.finish().map(Some) } else { Ok(None) }
}

/// A product whose left side has rows of groups.
struct RaggedProduct<'m> {
    module: &'m Module,
    instr: InstrId,
    lhs: &'m Array,
    sizes: &'m Array,
    /// The dimension of the left side that is divided into groups.
    ragged: u64,
    /// Which dimensions are summed over.
    summed: [u64; 2],
    /// The group dimension of the right side, if it has one.
    group: Option<u64>,
}

impl<'m> RaggedProduct<'m> {
    fn of(module: &'m Module, instr: InstrId) -> Option<RaggedProduct<'m>> {
        let one = |key: &str| match module.numbers(instr, key)[..] {
            [dim] => u64::try_from(dim).ok(),
            _ => None,
        };
        let array = |index: usize| module.operand_shape(module.operands(instr).get(index)?).array();
        let (lhs, sizes) = (array(0)?, array(2)?);
        let is_plain = module.numbers(instr, "lhs_batch_dims").is_empty() && sizes.dims.len() == 1;
        let product = RaggedProduct {
            module,
            instr,
            lhs,
            sizes,
            ragged: one("lhs_ragged_dims")?,
            summed: [one("lhs_contracting_dims")?, one("rhs_contracting_dims")?],
            group: one("rhs_group_dims"),
        };
        // Either the rows are summed over, or the right side has a matrix for each group.
        let is_known = (product.ragged == product.summed[0]) != product.group.is_some();
        let has_row = (product.ragged as usize) < lhs.dims.len();
        (is_plain && is_known && has_row).then_some(product)
    }

    fn operand(&self, draft: &Draft<'_>, index: usize) -> String {
        draft.operand(&self.module.operands(self.instr)[index])
    }

    /// For each group, which rows belong to it.
    fn mask(&self, draft: &mut Draft<'_>) -> String {
        let (at, counts) = (self.instr, self.sizes.element.name());
        let sizes = self.operand(draft, 2);
        let groups = self.sizes.dims[0];
        let shape = |element: &str, dims: &[u64]| format!("{element}[{}]", dim_list(dims));
        let (square, line) = (shape(counts, &[groups, groups]), shape(counts, &[groups]));
        let row = draft.add(at, "row", (&square, "iota(), iota_dimension=0"));
        let column = draft.add(at, "column", (&square, "iota(), iota_dimension=1"));
        let compare = format!("compare({column}, {row}), direction=LE");
        let is_before = draft.add(at, "before", (&shape("pred", &[groups, groups]), &compare));
        let ones = draft.add(at, "ones", (&square, &format!("convert({is_before})")));
        let sum =
            format!("dot({ones}, {sizes}), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}");
        let end = draft.add(at, "end", (&line, &sum));
        let start = draft.add(at, "start", (&line, &format!("subtract({end}, {sizes})")));
        let rows = [groups, self.lhs.dims[self.ragged as usize]];
        let (places, truth) = (shape(counts, &rows), shape("pred", &rows));
        let place = draft.add(at, "place", (&places, "iota(), iota_dimension=1"));
        let mut bound = |of: &str, direction: &str| {
            let wide = format!("broadcast({of}), dimensions={{0}}");
            let wide = draft.add(at, "bound", (&places, &wide));
            let compare = format!("compare({place}, {wide}), direction={direction}");
            draft.add(at, "within", (&truth, &compare))
        };
        let (from, to) = (bound(&start, "GE"), bound(&end, "LT"));
        draft.add(at, "within", (&truth, &format!("and({from}, {to})")))
    }

    fn write(&self, draft: &mut Draft<'_>) {
        let (at, module) = (self.instr, self.module);
        let mask = self.mask(draft);
        let many = [&self.sizes.dims[..1], &self.lhs.dims[..]].concat();
        let element = self.lhs.element.name();
        let [wide, truth] =
            [element, "pred"].map(|element| format!("{element}[{}]", dim_list(&many)));
        let broadcast = format!("broadcast({mask}), dimensions={{0,{}}}", self.ragged + 1);
        let mask = draft.add(at, "within", (&truth, &broadcast));
        let each: Vec<u64> = (1..many.len() as u64).collect();
        let lhs = self.operand(draft, 0);
        let broadcast = format!("broadcast({lhs}), dimensions={{{}}}", dim_list(&each));
        let lhs = draft.add(at, "many", (&wide, &broadcast));
        let zero = draft.add(at, "zero", (&format!("{element}[]"), "constant(0)"));
        let broadcast = format!("broadcast({zero}), dimensions={{}}");
        let zeros = draft.add(at, "zeros", (&wide, &broadcast));
        let select = format!("select({mask}, {lhs}, {zeros})");
        let lhs = draft.add(at, "masked", (&wide, &select));
        let [left, right] = self.summed;
        let (left, right) = match self.group {
            Some(group) => (vec![0, left + 1], vec![group, right]),
            None => (vec![left + 1], vec![right]),
        };
        let (left, right) = (dim_list(&left), dim_list(&right));
        let rhs = self.operand(draft, 1);
        let dot = format!(
            "dot({lhs}, {rhs}), lhs_contracting_dims={{{left}}}, rhs_contracting_dims={{{right}}}"
        );
        let name = module.instruction_name(at).to_owned();
        draft.write_line(at, name, (module.shape_text(at), &dot));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check;

    #[test]
    fn ragged_products_are_plain_ones() {
        let text = "HloModule m\nENTRY e {\n a = f32[6,4] parameter(0)\n b = f32[3,4,5] parameter(1)\n \
            c = f32[6,5] parameter(2)\n n = s32[3] parameter(3)\n \
            p = f32[6,5] ragged-dot(a, b, n), lhs_contracting_dims={1}, rhs_contracting_dims={1}, lhs_ragged_dims={0}, rhs_group_dims={0}\n \
            q = f32[3,4,5] ragged-dot(a, c, n), lhs_contracting_dims={0}, rhs_contracting_dims={0}, lhs_ragged_dims={0}\n \
            ROOT t = (f32[6,5], f32[3,4,5]) tuple(p, q)\n}\n";
        let after = without_ragged_products(&Module::read(text.to_owned()).unwrap());
        let after = after.unwrap().unwrap();
        assert!(!after.text().contains("ragged"), "{}", after.text());
        check(&after).unwrap();
    }
}
