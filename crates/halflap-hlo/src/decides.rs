//! Which values decide how long a loop runs.

use std::collections::BTreeSet;

use super::{Module, Opcode, Shape};
use crate::ids::{ComputationId, InstrId};

/// The elements of a loop's state that decide how long it runs: those that its condition reads, and
/// those from which the body computes them. If an iteration changes none of them, the loop never
/// ends. `None` if something else influences them (other ranks, random numbers, custom calls), or
/// if the state is more than a list of arrays.
pub fn deciding_elements(module: &Module, instr: InstrId) -> Option<Vec<usize>> {
    let Shape::Tuple(elements) = &module.instruction(instr).shape else { return None };
    if elements.iter().any(|element| element.array().is_none()) {
        return None;
    }
    let condition = module.computation_in(instr, "condition")?;
    let root = module.root(module.computation_in(instr, "body")?);
    let mut decide = BTreeSet::new();
    let mut open: Vec<u32> = elements_read(module, module.root(condition), elements.len())?;
    while let Some(element) = open.pop() {
        if decide.insert(element as usize) {
            // Any other producer of the state is assumed to compute each element from everything
            // that it reads.
            let is_tuple = module.instruction(root).opcode == Opcode::Tuple;
            let maker = module
                .operands(root)
                .get(element as usize)
                .filter(|_| is_tuple)
                .map(|operand| operand.of);
            open.extend(elements_read(module, maker.unwrap_or(root), elements.len())?);
        }
    }
    Some(decide.into_iter().collect())
}

/// The elements of its computation's parameter that an instruction depends on.
fn elements_read(module: &Module, instr: InstrId, count: usize) -> Option<Vec<u32>> {
    let mut elements = BTreeSet::new();
    let mut open = vec![instr];
    let mut seen = BTreeSet::from([instr]);
    while let Some(instr) = open.pop() {
        if !is_pure(module, instr) {
            return None;
        }
        let is_parameter = |instr: InstrId| module.instruction(instr).opcode == Opcode::Parameter;
        if is_parameter(instr) {
            elements.extend(0..count as u32);
        }
        for operand in module.operands(instr) {
            let taken = module.path(operand).first().copied().or_else(|| module.tuple_index(instr));
            match taken.filter(|_| is_parameter(operand.of)) {
                Some(element) => {
                    elements.insert(element);
                }
                None if seen.insert(operand.of) => open.push(operand.of),
                None => {}
            }
        }
    }
    Some(elements.into_iter().collect())
}

/// Whether an instruction is deterministic in its operands.
fn is_pure(module: &Module, instr: InstrId) -> bool {
    let opcode = module.instruction(instr).opcode;
    let is_own = !matches!(
        opcode,
        Opcode::CustomCall
            | Opcode::Rng
            | Opcode::RngGetAndUpdateState
            | Opcode::Infeed
            | Opcode::Outfeed
            | Opcode::Other
    );
    let inside = |&computation: &ComputationId| {
        module.instructions(computation).all(|inner| is_pure(module, inner))
    };
    is_own
        && !opcode.is_sync_collective()
        && opcode.phase().is_none()
        && module.called(instr).iter().all(inside)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decides(body: &str) -> Option<Vec<usize>> {
        let state = "(s32[], f32[4], s32[])";
        let text = format!(
            "HloModule m\nadd {{\n a = f32[] parameter(0)\n b = f32[] parameter(1)\n ROOT c = f32[] add(a, b)\n}}\n\
             goes {{\n s = {state} parameter(0)\n i = s32[] get-tuple-element(s), index=0\n n = s32[] constant(6)\n \
             ROOT g = pred[] compare(i, n), direction=LT\n}}\nturn {{\n t = {state} parameter(0)\n \
             j = s32[] get-tuple-element(t), index=0\n x = f32[4] get-tuple-element(t), index=1\n \
             k = s32[] get-tuple-element(t), index=2\n{body}\n}}\nENTRY e {{\n p = {state} parameter(0)\n \
             ROOT w = {state} while(p), condition=goes, body=turn\n}}\n"
        );
        let module = Module::read(text).unwrap();
        deciding_elements(&module, module.root(module.entry()))
    }

    #[test]
    fn what_the_condition_reads_and_what_that_is_made_of() {
        let made_of = |line: &str| {
            decides(&format!("{line}\n ROOT u = (s32[], f32[4], s32[]) tuple(next, x, k)"))
        };
        assert_eq!(made_of(" next = s32[] negate(j)"), Some(vec![0]));
        assert_eq!(made_of(" next = s32[] add(j, k)"), Some(vec![0, 2]));
        assert_eq!(made_of(" next = s32[] custom-call(j), custom_call_target=\"f\""), None);
        // Values with outside influence are rejected here.
        let sum =
            " y = f32[4] all-reduce(x), replica_groups={}, to_apply=add\n next = s32[] negate(j)";
        assert_eq!(
            decides(&format!("{sum}\n ROOT u = (s32[], f32[4], s32[]) tuple(next, y, k)")),
            Some(vec![0])
        );
        assert_eq!(
            decides(" ROOT u = (s32[], f32[4], s32[]) optimization-barrier(t)"),
            Some(vec![0, 1, 2])
        );
    }
}
