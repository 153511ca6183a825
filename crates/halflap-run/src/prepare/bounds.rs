//! The indices of gathers, slices, updates and scatters, and which values are in range.
//!
//! A program may look up whatever an index gives and then put something else in its place where the
//! index was out of range, as JAX does if it is asked to fill: those indices need no bounds.

use std::collections::BTreeSet;
use std::ops::Range;

use halflap_hlo::ids::InstrId;
use halflap_hlo::{Module, Opcode};

use super::flat::Flat;
use crate::kernel::ResultLeaf;

/// The index arrays of a launch, and how large each index may be.
#[derive(Clone, Debug)]
pub(crate) struct Bounds {
    /// Which input.
    pub(crate) input: usize,
    /// How many numbers lie between those of one index vector; 1 for a single number.
    pub(crate) stride: usize,
    /// For each number of a vector, the dimension and its maximum.
    pub(crate) most: Vec<(usize, i64)>,
    /// Whether what such an index is for is dropped, as a scatter does, and not moved into range.
    pub(crate) drops: bool,
    /// Whether a `select` replaces what such an index gives, or it is for another rank's part.
    pub(crate) is_replaced: bool,
    /// The input of the module that the indices are.
    pub(crate) source: Option<String>,
}

/// The indices of an instruction, among what its kernel takes.
pub(super) fn bounds(flat: &Flat<'_>, instr: InstrId, leaves: &[ResultLeaf]) -> Vec<Bounds> {
    let module = flat.module;
    let opcode = module.instruction(instr).opcode;
    let indices = Indices { module, instr, leaves };
    let mut bounds = match opcode {
        Opcode::DynamicSlice => indices.single(1, module.numbers(instr, "dynamic_slice_sizes")),
        Opcode::DynamicUpdateSlice => indices.single(2, indices.dims(1)),
        Opcode::Gather => {
            let sizes = module.numbers(instr, "slice_sizes");
            indices
                .vectors(&module.numbers(instr, "start_index_map"), |dim| sizes.get(dim).copied())
        }
        Opcode::Scatter => indices
            .vectors(&module.numbers(instr, "scatter_dims_to_operand_dims"), |dim| {
                indices.window(dim)
            }),
        _ => Vec::new(),
    };
    if !bounds.is_empty() {
        let is_replaced = is_replaced(flat, instr) || is_of_ranks(flat, instr);
        let source = source(flat, instr);
        for bounds in &mut bounds {
            (bounds.is_replaced, bounds.source) = (is_replaced, source.clone());
        }
    }
    bounds
}

/// The input of the module that the indices of an instruction are.
fn source(flat: &Flat<'_>, instr: InstrId) -> Option<String> {
    let module = flat.module;
    let is_input = |&from: &InstrId| {
        flat.opcode(from) == Opcode::Parameter && module.computation_of(from) == module.entry()
    };
    let of_index = index_operands(module, instr).flat_map(|index| flat.made_of(index, shifted));
    let inputs: BTreeSet<InstrId> = of_index.filter(is_input).collect();
    let mut inputs = inputs.into_iter();
    let name = inputs.next().map(|input| module.instruction_name(input).to_owned());
    name.filter(|_| inputs.next().is_none())
}

/// The operands of a lookup or an update that are its indices.
pub(super) fn index_operands(
    module: &Module,
    instr: InstrId,
) -> impl Iterator<Item = InstrId> + use<'_> {
    let first = match module.instruction(instr).opcode {
        Opcode::DynamicUpdateSlice => 2,
        _ => 1,
    };
    let count = match module.instruction(instr).opcode {
        Opcode::Gather | Opcode::Scatter => 1,
        _ => usize::MAX,
    };
    module.operands(instr).iter().skip(first).take(count).map(|operand| operand.of)
}

struct Indices<'a> {
    module: &'a Module,
    instr: InstrId,
    leaves: &'a [ResultLeaf],
}

impl Indices<'_> {
    fn dims(&self, operand: usize) -> Vec<i64> {
        let operand = self.module.operands(self.instr).get(operand);
        let array = operand.and_then(|operand| self.module.operand_shape(operand).array());
        array.map_or(Vec::new(), |array| array.dims.iter().map(|&dim| dim as i64).collect())
    }

    fn input(&self, operand: usize) -> Option<usize> {
        let of = self.module.operands(self.instr).get(operand)?.of;
        self.leaves.iter().position(|leaf| leaf.instr == of && leaf.index == 0)
    }

    /// An index for each dimension, from operand `first` on, of a part with these sizes.
    fn single(&self, first: usize, sizes: Vec<i64>) -> Vec<Bounds> {
        let room = self.dims(0).into_iter().zip(sizes).map(|(dim, size)| dim - size).enumerate();
        let one = room.filter_map(|(dimension, most)| {
            let (input, most) = (self.input(first + dimension)?, vec![(dimension, most)]);
            let (is_replaced, source) = (false, None);
            Some(Bounds { input, stride: 1, most, drops: false, is_replaced, source })
        });
        one.collect()
    }

    /// Vectors of indices in operand 1, of these dimensions of operand 0, where parts have sizes.
    fn vectors(&self, map: &[i64], size: impl Fn(usize) -> Option<i64>) -> Vec<Bounds> {
        let table = self.dims(0);
        let along = self.module.numbers(self.instr, "index_vector_dim");
        let along = along.first().map_or(0, |&dim| dim as usize);
        let most = |&dim: &i64| {
            let dim = dim as usize;
            Some((dim, table.get(dim)? - size(dim)?))
        };
        let most: Option<Vec<_>> = map.iter().map(most).collect();
        let stride = self.dims(1).iter().skip(along + 1).product::<i64>() as usize;
        let drops = self.module.instruction(self.instr).opcode == Opcode::Scatter;
        let bounds = most.zip(self.input(1));
        let of = |(most, input)| {
            let (is_replaced, source) = (false, None);
            Bounds { input, stride, most, drops, is_replaced, source }
        };
        bounds.map(of).into_iter().collect()
    }

    /// The size, in a dimension of its operand, of what a scatter writes at each index.
    fn window(&self, dim: usize) -> Option<i64> {
        let numbers = |key: &str| self.module.numbers(self.instr, key);
        let is_one: BTreeSet<i64> =
            ["inserted_window_dims", "input_batching_dims"].into_iter().flat_map(numbers).collect();
        if is_one.contains(&(dim as i64)) {
            return Some(1);
        }
        let place = (0..dim as i64).filter(|dim| !is_one.contains(dim)).count();
        let update = *numbers("update_window_dims").get(place)?;
        self.dims(2).get(update as usize).copied()
    }
}

/// Whether what an instruction looks up or writes is replaced, by a `select` that looks at the
/// index, wherever the index is out of range.
fn is_replaced(flat: &Flat<'_>, instr: InstrId) -> bool {
    let module = flat.module;
    let operands = module.operands(instr);
    let (first, read) = match module.instruction(instr).opcode {
        Opcode::DynamicSlice | Opcode::Gather => (1, true),
        Opcode::DynamicUpdateSlice => (2, false),
        _ => return false,
    };
    let indices = operands.iter().skip(first);
    let is_fixed = |instr: &InstrId| {
        use Opcode::*;
        matches!(flat.opcode(*instr), Constant | Iota | PartitionId | ReplicaId)
    };
    let mut of_index: BTreeSet<InstrId> =
        indices.flat_map(|operand| flat.made_of(operand.of, shifted)).collect();
    of_index.retain(|instr| !is_fixed(instr));
    match read {
        true => reaches_selects(flat, instr, &of_index),
        false => flat
            .made_of(operands[1].of, rearranged)
            .into_iter()
            .any(|instr| looks_at(flat, instr, &of_index)),
    }
}

/// Whether an index counts from where a rank's part begins: a scatter then drops the updates that
/// other ranks make.
fn is_of_ranks(flat: &Flat<'_>, instr: InstrId) -> bool {
    if flat.opcode(instr) != Opcode::Scatter {
        return false;
    }
    let is_rank =
        |of: &InstrId| matches!(flat.opcode(*of), Opcode::PartitionId | Opcode::ReplicaId);
    let begins_at_rank = |of: InstrId| match (flat.opcode(of), flat.module.operands(of)) {
        (Opcode::Subtract, [_, begin]) => flat.made_of(begin.of, all).iter().any(is_rank),
        _ => false,
    };
    let indices = index_operands(flat.module, instr);
    indices.flat_map(|index| flat.made_of(index, shifted)).any(begins_at_rank)
}

/// Whether elements of an array stay what they are, although elsewhere.
fn only_rearranges(opcode: Opcode) -> bool {
    use Opcode::*;
    matches!(opcode, Bitcast | Broadcast | Concatenate | Convert | Copy | Reshape | Transpose)
}

/// The operands whose elements an instruction only moves.
pub(super) fn rearranged(opcode: Opcode) -> Range<usize> {
    if only_rearranges(opcode) { 0..usize::MAX } else { 0..0 }
}

/// The operands that an index is still that index of: it may count from where a rank's part
/// begins, or from the end.
pub(super) fn shifted(opcode: Opcode) -> Range<usize> {
    match opcode {
        Opcode::Add | Opcode::Subtract | Opcode::Maximum | Opcode::Minimum => 0..2,
        Opcode::Clamp => 1..2,
        Opcode::Select => 1..3,
        _ => rearranged(opcode),
    }
}

/// All operands, whatever an instruction does.
fn all(_: Opcode) -> Range<usize> {
    0..usize::MAX
}

/// Whether an instruction is a `select` whose condition depends on one of these values.
fn looks_at(flat: &Flat<'_>, instr: InstrId, values: &BTreeSet<InstrId>) -> bool {
    let condition = || flat.module.operands(instr)[0].of;
    flat.opcode(instr) == Opcode::Select
        && flat.made_of(condition(), all).iter().any(|instr| values.contains(instr))
}

/// Whether whatever is computed from a value, element by element, ends in such a `select`.
fn reaches_selects(flat: &Flat<'_>, instr: InstrId, values: &BTreeSet<InstrId>) -> bool {
    let module = flat.module;
    let computation = module.computation_of(instr);
    let mut reached = BTreeSet::from([instr]);
    // Readers come after what they read.
    for reader in module.instructions(computation).filter(|&reader| reader > instr) {
        if !module.operands(reader).iter().any(|operand| reached.contains(&operand.of)) {
            continue;
        }
        let opcode = module.instruction(reader).opcode;
        if looks_at(flat, reader, values) {
            continue;
        }
        if !(only_rearranges(opcode) || opcode.is_elementwise()) {
            return false;
        }
        reached.insert(reader);
    }
    !reached.contains(&module.root(computation))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILLED: &str = "HloModule m

ENTRY e {
  table = f32[10,4] parameter(0)
  ids = s32[3] parameter(1)
  wide = s32[3,1] bitcast(ids)
  nine = s32[] constant(9)
  nines = s32[3] broadcast(nine), dimensions={}
  good = pred[3] compare(ids, nines), direction=LE
  goods = pred[3,4] broadcast(good), dimensions={0}
  rows = f32[3,4] gather(table, wide), offset_dims={1}, collapsed_slice_dims={0}, \
start_index_map={0}, index_vector_dim=1, slice_sizes={1,4}
  more = f32[3,4] negate(rows)
  nil = f32[] constant(0)
  none = f32[3,4] broadcast(nil), dimensions={}
  ROOT kept = f32[3,4] select(goods, more, none)
}
";

    fn bounds_of(text: &str, name: &str) -> Vec<Bounds> {
        let module = Module::read(text.to_owned()).unwrap();
        let instr = module
            .computations()
            .flat_map(|all| module.instructions(all))
            .find(|&instr| module.instruction_name(instr) == name)
            .unwrap();
        let leaves: Vec<ResultLeaf> = module
            .operands(instr)
            .iter()
            .map(|operand| ResultLeaf { instr: operand.of, index: 0 })
            .collect();
        let bounds = bounds(&Flat::new(&module), instr, &leaves);
        bounds.into_iter().filter(|bounds| !bounds.is_replaced).collect()
    }

    #[test]
    fn what_a_program_replaces_needs_no_bounds() {
        assert!(bounds_of(FILLED, "rows").is_empty());
        let other = FILLED.replace("select(goods, more, none)", "add(more, none)");
        let found = bounds_of(&other, "rows");
        assert_eq!((found.len(), &found[0].most[..]), (1, &[(0, 9)][..]));
        // The index counts from where this rank's rows begin, or from the end.
        let other = FILLED.replace("bitcast(ids)", "bitcast(from)").replace(
            "  wide =",
            "  begin = s32[3] parameter(2)\n  from = s32[3] subtract(ids, begin)\n  wide =",
        );
        assert!(bounds_of(&other, "rows").is_empty());
        // A condition that says nothing of the index.
        let other = FILLED.replace("compare(ids, nines)", "compare(nines, nines)");
        assert_eq!(bounds_of(&other, "rows").len(), 1);
        // What was looked up is also used as it is.
        let other = FILLED
            .replace("ROOT kept", "kept")
            .replace("\n}", "\n  ROOT t = (f32[3,4], f32[3,4]) tuple(kept, rows)\n}");
        assert_eq!(bounds_of(&other, "rows").len(), 1);
    }

    /// The mask is computed elsewhere, even before a loop, and handed to the fusion that looks up.
    #[test]
    fn a_mask_may_come_from_outside() {
        let looked_up = "r {
  t = f32[10,4] parameter(0)
  i = s32[3,1] parameter(1)
  g = pred[3] parameter(2)
  goods = pred[3,4] broadcast(g), dimensions={0}
  rows = f32[3,4] gather(t, i), offset_dims={1}, collapsed_slice_dims={0}, \
start_index_map={0}, index_vector_dim=1, slice_sizes={1,4}
  nil = f32[] constant(0)
  none = f32[3,4] broadcast(nil), dimensions={}
  ROOT kept = f32[3,4] select(goods, rows, none)
}
";
        let state = "(s32[], f32[10,4], s32[3,1], pred[3], f32[3,4])";
        let part = |kind: &str, index: usize| {
            format!("  e{index} = {kind} get-tuple-element(s), index={index}\n")
        };
        let parts: String = ["s32[]", "f32[10,4]", "s32[3,1]", "pred[3]"]
            .into_iter()
            .enumerate()
            .map(|(index, kind)| part(kind, index))
            .collect();
        let text = |mask: &str| {
            format!(
                "HloModule m\n\n{looked_up}\nbody {{\n  s = {state} parameter(0)\n{parts}  \
                 f = f32[3,4] fusion(e1, e2, e3), kind=kLoop, calls=r\n  \
                 ROOT n = {state} tuple(e0, e1, e2, e3, f)\n}}\n\ncond {{\n  \
                 s = {state} parameter(0)\n  k = s32[] get-tuple-element(s), index=0\n  \
                 ROOT c = pred[] compare(k, k), direction=LT\n}}\n\nENTRY e {{\n  \
                 table = f32[10,4] parameter(0)\n  ids = s32[3] parameter(1)\n  \
                 other = s32[3] parameter(2)\n  z = s32[] constant(0)\n  \
                 v = f32[3,4] parameter(3)\n  wide = s32[3,1] bitcast(ids)\n  \
                 nine = s32[] constant(9)\n  nines = s32[3] broadcast(nine), dimensions={{}}\n  \
                 good = pred[3] compare({mask}, nines), direction=LE\n  \
                 t = {state} tuple(z, table, wide, good, v)\n  \
                 ROOT w = {state} while(t), condition=cond, body=body\n}}\n"
            )
        };
        assert!(bounds_of(&text("ids"), "rows").is_empty());
        assert_eq!(bounds_of(&text("other"), "rows").len(), 1);
    }

    /// Updates for other ranks' parts of an array are dropped on purpose.
    #[test]
    fn a_scatter_may_drop_what_other_ranks_take() {
        let text = |begin: &str| {
            format!(
                "HloModule m\n\nadd {{\n  a = f32[] parameter(0)\n  b = f32[] parameter(1)\n  \
                 ROOT c = f32[] add(a, b)\n}}\n\nENTRY e {{\n  t = f32[10,4] parameter(0)\n  \
                 i = s32[3,1] parameter(1)\n  u = f32[3,2,4] parameter(2)\n  \
                 p = u32[] partition-id()\n  n = s32[] convert(p)\n  ten = s32[] constant(10)\n  \
                 r = s32[] multiply(n, ten)\n  o = s32[] constant(3)\n  \
                 begin = s32[3,1] broadcast({begin}), dimensions={{}}\n  \
                 own = s32[3,1] subtract(i, begin)\n  \
                 ROOT s = f32[10,4] scatter(t, own, u), update_window_dims={{1,2}}, \
                 inserted_window_dims={{}}, scatter_dims_to_operand_dims={{0}}, \
                 index_vector_dim=1, to_apply=add\n}}\n"
            )
        };
        assert!(bounds_of(&text("r"), "s").is_empty());
        assert_eq!(bounds_of(&text("o"), "s").len(), 1);
    }

    #[test]
    fn a_scatter_drops_what_is_out_of_range() {
        let text = "HloModule m\n\nadd {\n  a = f32[] parameter(0)\n  b = f32[] parameter(1)\n  \
                    ROOT c = f32[] add(a, b)\n}\n\nENTRY e {\n  t = f32[10,4] parameter(0)\n  \
                    i = s32[3,1] parameter(1)\n  u = f32[3,2,4] parameter(2)\n  \
                    ROOT s = f32[10,4] scatter(t, i, u), update_window_dims={1,2}, \
                    inserted_window_dims={}, scatter_dims_to_operand_dims={0}, \
                    index_vector_dim=1, to_apply=add\n}\n";
        let found = bounds_of(text, "s");
        assert_eq!((found.len(), &found[0].most[..]), (1, &[(0, 8)][..]));
        assert!(found[0].drops);
    }
}
