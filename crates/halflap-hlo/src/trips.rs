//! How often a loop runs.

use serde_json::Value;

use super::{Literal, Module, Opcode};
use crate::ids::{ComputationId, InstrId};

/// How often the body of a `while` runs: as the backend's configuration says, or as derived from a
/// counter that starts at a constant, grows by a constant and is compared with a constant. `None`
/// if neither applies.
pub fn trip_count(module: &Module, instr: InstrId) -> Option<u64> {
    let config = module.backend_config(instr);
    let known = config.as_ref().and_then(|config| config.get("known_trip_count")?.get("n"));
    let known = known.and_then(|count| match count {
        Value::String(text) => text.parse().ok(),
        number => number.as_u64(),
    });
    known.or_else(|| counted(module, instr))
}

fn counted(module: &Module, instr: InstrId) -> Option<u64> {
    let condition = module.computation_in(instr, "condition")?;
    let body = module.computation_in(instr, "body")?;
    let compare = module.root(condition);
    if module.instruction(compare).opcode != Opcode::Compare {
        return None;
    }
    let [left, right] = module.operands(compare) else { return None };
    // `limit > counter` says the same as `counter < limit`.
    let (counter, limit, includes_limit) = match module.attribute(compare, "direction")? {
        "LT" => (left.of, right.of, false),
        "LE" => (left.of, right.of, true),
        "GT" => (right.of, left.of, false),
        "GE" => (right.of, left.of, true),
        _ => return None,
    };
    let counter = element_of_parameter(module, counter)?;
    let limit = constant(module, limit)?;
    let init = initial(module, instr, counter)?;
    let step = step(module, body, counter)?;
    let span = limit.checked_sub(init)?.checked_add(i128::from(includes_limit))?;
    (step > 0).then(|| {
        u64::try_from(span.max(0).div_euclid(step) + i128::from(span.max(0) % step > 0)).ok()
    })?
}

/// What an instruction is a copy of.
fn original(module: &Module, mut instr: InstrId) -> InstrId {
    while let (Opcode::Copy | Opcode::Bitcast, [from]) =
        (module.instruction(instr).opcode, module.operands(instr))
    {
        instr = from.of;
    }
    instr
}

/// Which element of its computation's parameter an instruction is.
fn element_of_parameter(module: &Module, instr: InstrId) -> Option<u32> {
    let instr = original(module, instr);
    let [tuple] = module.operands(instr) else { return None };
    let is_parameter = module.instruction(tuple.of).opcode == Opcode::Parameter;
    module.tuple_index(instr).filter(|_| is_parameter)
}

fn constant(module: &Module, instr: InstrId) -> Option<i128> {
    match module.literal(original(module, instr))? {
        Literal::Whole(values) if values.len() == 1 => Some(values[0]),
        _ => None,
    }
}

fn initial(module: &Module, instr: InstrId, counter: u32) -> Option<i128> {
    let [tuple] = module.operands(instr) else { return None };
    if module.instruction(tuple.of).opcode != Opcode::Tuple {
        return None;
    }
    let start = module.operands(tuple.of).get(counter as usize)?.of;
    constant(module, start)
}

fn step(module: &Module, body: ComputationId, counter: u32) -> Option<i128> {
    let root = module.root(body);
    if module.instruction(root).opcode != Opcode::Tuple {
        return None;
    }
    let next = original(module, module.operands(root).get(counter as usize)?.of);
    let (Opcode::Add, [left, right]) = (module.instruction(next).opcode, module.operands(next))
    else {
        return None;
    };
    let grows = |a: InstrId, b: InstrId| match element_of_parameter(module, a) {
        Some(index) if index == counter => constant(module, b),
        _ => None,
    };
    grows(left.of, right.of).or_else(|| grows(right.of, left.of))
}
