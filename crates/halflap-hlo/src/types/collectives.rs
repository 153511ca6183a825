//! Communication: the participants, and what each receives.

use crate::WrittenDevice;

use super::{Mismatch, Opcode, Phase, RuleResult, RuleView, Shape, Type};

/// Checks that groups and pairs name existing devices, each as often as allowed.
pub(super) fn groups(view: RuleView<'_>) -> RuleResult {
    let opcode = match view.module.instruction(view.instr).opcode {
        Opcode::Wrapped(Phase::Start, wrapped) => wrapped.opcode(),
        other => other,
    };
    let names_groups = matches!(
        opcode,
        Opcode::AllGather
            | Opcode::AllGatherStart
            | Opcode::AllReduce
            | Opcode::AllReduceStart
            | Opcode::AllToAll
            | Opcode::RaggedAllToAll
            | Opcode::ReduceScatter
    );
    match opcode {
        Opcode::Send | Opcode::Recv => {
            let pairs = view.module.message_pairs(view.instr).unwrap_or_default();
            each_way_once(view, "_xla_send_recv_source_target_pairs", &pairs)
        }
        Opcode::CollectivePermute | Opcode::CollectivePermuteStart => pairs(view),
        // A device in no group receives zeros.
        Opcode::CollectiveBroadcast => each_once(view).map(|_| ()),
        _ if names_groups => everyone(view),
        _ => Ok(()),
    }
}

fn everyone(view: RuleView<'_>) -> RuleResult {
    let named = each_once(view)?;
    let missing =
        named.iter().zip(0..).find(|&(&device, place)| device != place).map(|(_, place)| place);
    match missing.unwrap_or(named.len() as u64) {
        device if device < device_count(view) => {
            let WrittenDevice { what, number, .. } = view.module.written_device(view.instr, device);
            Err(Mismatch::DeviceMissing { what, number })
        }
        _ => Ok(()),
    }
}

/// The devices that are in a group, ascending.
fn each_once(view: RuleView<'_>) -> Result<Vec<u64>, Mismatch> {
    let groups = view.module.replica_groups(view.instr).groups;
    named_once(view, "replica_groups", groups.into_iter().flatten())
}

/// No device sends or receives twice.
fn pairs(view: RuleView<'_>) -> RuleResult {
    let pairs = view.module.replica_groups(view.instr).pairs;
    each_way_once(view, "source_target_pairs", &pairs)
}

fn each_way_once(view: RuleView<'_>, key: &'static str, pairs: &[(u32, u32)]) -> RuleResult {
    named_once(view, key, pairs.iter().map(|pair| pair.0))?;
    named_once(view, key, pairs.iter().map(|pair| pair.1)).map(|_| ())
}

fn device_count(view: RuleView<'_>) -> u64 {
    view.module.devices().count()
}

fn named_once(
    view: RuleView<'_>,
    key: &'static str,
    devices: impl Iterator<Item = u32>,
) -> Result<Vec<u64>, Mismatch> {
    let mut devices: Vec<u64> = devices.map(u64::from).collect();
    devices.sort_unstable();
    let count = device_count(view);
    if let Some(&device) = devices.last().filter(|&&device| device >= count) {
        let WrittenDevice { what, number, count } = view.module.written_device(view.instr, device);
        return Err(Mismatch::NoSuchDevice { key, what, number, count });
    }
    match devices.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => {
            let WrittenDevice { what, number, .. } =
                view.module.written_device(view.instr, pair[0]);
            Err(Mismatch::DeviceTwice { key, what, number })
        }
        None => Ok(devices),
    }
}

/// How many devices are in each group.
fn group_size(view: RuleView<'_>) -> Result<u64, Mismatch> {
    let groups = view.module.replica_groups(view.instr).groups;
    let first = groups.first().map_or(1, Vec::len);
    match groups.iter().map(Vec::len).find(|&size| size != first) {
        Some(other) => Err(Mismatch::UnequalGroups { first, other }),
        None => Ok(first as u64),
    }
}

fn operands(view: RuleView<'_>) -> Result<Vec<Type>, Mismatch> {
    (0..view.count()).map(|index| view.array(index).map(Type::of)).collect()
}

/// Every device receives as much as it sends.
pub(super) fn unchanged(view: RuleView<'_>) -> RuleResult {
    view.gives_all(&operands(view)?)
}

/// With several operands it writes into one of them, which is not checked here.
pub(super) fn permute(view: RuleView<'_>) -> RuleResult {
    if view.count() == 1 { unchanged(view) } else { Ok(()) }
}

pub(super) fn all_gather(view: RuleView<'_>) -> RuleResult {
    let size = group_size(view)?;
    let gathered = |mut part: Type| -> Result<Type, Mismatch> {
        let dim = view.dim("dimensions", part.dims.len())?;
        part.dims[dim] = part.dims[dim].saturating_mul(size);
        Ok(part)
    };
    let right = operands(view)?.into_iter().map(gathered).collect::<Result<Vec<_>, _>>()?;
    view.gives_all(&right)
}

pub(super) fn reduce_scatter(view: RuleView<'_>) -> RuleResult {
    let mut right = operands(view)?;
    for (index, operand) in right.iter_mut().enumerate() {
        split(view, index, operand)?;
    }
    view.gives_all(&right)
}

/// Takes a device's part of an operand.
fn split(view: RuleView<'_>, index: usize, operand: &mut Type) -> RuleResult {
    let size = group_size(view)?;
    let dims = &mut operand.dims;
    let dim = view.dim("dimensions", dims.len())?;
    if size == 0 || !dims[dim].is_multiple_of(size) {
        return Err(view
            .operand_should(index, format!("of a dimension {dim} that {size} devices can share")));
    }
    dims[dim] /= size;
    Ok(())
}

/// With a dimension, parts of one array; without, an operand for each device.
pub(super) fn all_to_all(view: RuleView<'_>) -> RuleResult {
    let right = operands(view)?;
    if view.module.attribute(view.instr, "dimensions").is_some() {
        for (index, operand) in right.iter().enumerate() {
            split(view, index, &mut operand.clone())?;
        }
        return view.gives_all(&right);
    }
    let size = group_size(view)?;
    if right.len() as u64 != size {
        return Err(Mismatch::Operands {
            found: right.len(),
            right: format!("{size}: one for each device of a group"),
        });
    }
    (1..right.len()).try_for_each(|index| view.takes(index, &right[0]))?;
    view.gives_all(&right)
}

/// Rows of the first operand go into a copy of the second; the others say which, how many and
/// where.
pub(super) fn ragged_all_to_all(view: RuleView<'_>) -> RuleResult {
    const COUNTS: std::ops::Range<usize> = 2..6;
    if view.count() != COUNTS.end {
        let right = "6: rows, what they go into, and offsets and sizes of both".to_owned();
        return Err(Mismatch::Operands { found: view.count(), right });
    }
    let (rows, into) = (view.array(0)?, view.array(1)?);
    let is_alike = rows.element == into.element && rows.dims.get(1..) == into.dims.get(1..);
    if rows.dims.is_empty() || !is_alike {
        return Err(view.operand_should(1, "of the same rows as operand 1"));
    }
    let size = group_size(view)?;
    let counts = Type::of(view.array(COUNTS.start)?);
    let is_right = |dims: &[u64]| matches!(dims, [count] if size > 0 && count.is_multiple_of(size));
    if !is_right(&counts.dims) || !matches!(counts.element.name(), "s32" | "s64" | "u32" | "u64") {
        let right = format!("integers, as many for each of {size} devices");
        return Err(view.operand_should(COUNTS.start, right));
    }
    COUNTS.skip(1).try_for_each(|index| view.takes(index, &counts))?;
    view.gives(&Type::of(into))
}

/// The first element is what its done returns; between that and the token is device context.
pub(super) fn received(view: RuleView<'_>) -> RuleResult {
    let is_start = view.module.instruction(view.instr).opcode == Opcode::Recv;
    let start = if is_start { view.result } else { view.operand(0)? };
    match start.parts() {
        [_, _, _] if is_start => Ok(()),
        [data, _, token] => view.gives_shape(&Shape::Tuple(vec![data.clone(), token.clone()])),
        _ if is_start => Err(view.result_should("what comes, u32[] and token[]")),
        _ => Err(view.operand_should(0, "what a recv gives")),
    }
}
