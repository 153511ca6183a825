//! Integers that follow from the number of the device alone: where slices begin.

use std::rc::Rc;

use super::nodes::{NodeId, NodeOp, Nodes};
use crate::Opcode;

/// Larger numbers are not valid array indices, and could overflow.
const MOST: i64 = 1 << 31;

impl Nodes {
    /// A node's value on each device; `None` if that depends on data.
    pub(super) fn numbers(&mut self, id: NodeId) -> Option<Rc<Vec<i64>>> {
        if let Some(known) = self.numbers.get(&id) {
            return known.clone();
        }
        // A node that needs itself does not exist; deep chains are not followed.
        self.numbers.insert(id, None);
        let found = self.work_out(id, 0).map(Rc::new);
        self.numbers.insert(id, found.clone());
        found
    }

    fn work_out(&mut self, id: NodeId, depth: u32) -> Option<Vec<i64>> {
        const DEEPEST: u32 = 64;
        let node = self.node(id).clone();
        let name = node.form.element()?.name();
        let count: u64 = node.form.dims()?.iter().product();
        if depth > DEEPEST || count != 1 || !name.starts_with(['s', 'u']) {
            return None;
        }
        let devices = self.device_count();
        let partitions = self.devices.partitions.max(1) as usize;
        let numbers: Vec<i64> = match &node.what {
            NodeOp::Literal(text) => vec![only(text)?; devices],
            // One of a list that is the same everywhere.
            NodeOp::Shard { starts, .. } => self.picked(node.inputs[0], starts)?,
            NodeOp::Op { opcode, .. } => match opcode {
                Opcode::PartitionId => (0..devices).map(|d| (d % partitions) as i64).collect(),
                Opcode::ReplicaId => (0..devices).map(|d| (d / partitions) as i64).collect(),
                Opcode::Reshape | Opcode::Bitcast | Opcode::Convert | Opcode::Broadcast => {
                    self.work_out(*node.inputs.first()?, depth + 1)?
                }
                opcode => {
                    let operands = node.inputs.iter();
                    let all = operands.map(|&input| self.work_out(input, depth + 1));
                    let all = all.collect::<Option<Vec<_>>>()?;
                    let of = |device: usize| all.iter().map(|of| of[device]).collect::<Vec<i64>>();
                    (0..devices)
                        .map(|device| combined(*opcode, &of(device)))
                        .collect::<Option<_>>()?
                }
            },
            _ => return None,
        };
        let least = if name.starts_with('u') { 0 } else { -MOST };
        numbers.iter().all(|number| (least..MOST).contains(number)).then_some(numbers)
    }

    fn picked(&self, list: NodeId, starts: &[u64]) -> Option<Vec<i64>> {
        let node = self.node(list);
        let NodeOp::Literal(text) = &node.what else { return None };
        let [_] = node.form.dims()? else { return None };
        let list: Vec<i64> = words(text).map(|word| word.parse().ok()).collect::<Option<_>>()?;
        starts.iter().map(|&start| list.get(usize::try_from(start).ok()?).copied()).collect()
    }
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(['{', '}', ',', ' ']).filter(|word| !word.is_empty())
}

fn only(text: &str) -> Option<i64> {
    let mut words = words(text);
    let number = words.next()?.parse().ok()?;
    words.next().is_none().then_some(number)
}

fn combined(opcode: Opcode, operands: &[i64]) -> Option<i64> {
    match (opcode, operands) {
        (Opcode::Add, [a, b]) => a.checked_add(*b),
        (Opcode::Subtract, [a, b]) => a.checked_sub(*b),
        (Opcode::Multiply, [a, b]) => a.checked_mul(*b),
        (Opcode::Divide, [a, b]) => a.checked_div(*b),
        (Opcode::Remainder, [a, b]) => a.checked_rem(*b),
        (Opcode::Maximum, [a, b]) => Some(*a.max(b)),
        (Opcode::Minimum, [a, b]) => Some(*a.min(b)),
        (Opcode::Clamp, [least, number, most]) => Some(*number.min(most).max(least)),
        _ => None,
    }
}
