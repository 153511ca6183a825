//! Integers that a module computes only from constants and the device's number.

use std::collections::HashMap;

use crate::ids::InstrId;
use crate::{Devices, Literal, Module, Opcode};

/// Larger offsets are ignored, so that sums and products do not overflow.
const LARGEST: i64 = 1 << 31;

/// An instruction's value on every device, or a table that is the same on all.
#[derive(Clone, Debug, PartialEq)]
enum Known {
    /// One number for each device.
    Each(Vec<i64>),
    /// A list of numbers.
    Table(Vec<i64>),
}

/// The known integers of a module, by instruction.
pub(super) struct Offsets<'m> {
    module: &'m Module,
    devices: usize,
    partitions: usize,
    /// Looked up only.
    known: HashMap<InstrId, Option<Known>>,
}

impl<'m> Offsets<'m> {
    pub(super) fn new(module: &'m Module) -> Offsets<'m> {
        let Devices { replicas, partitions } = module.devices();
        let (replicas, partitions) = (replicas as usize, partitions.max(1) as usize);
        Offsets { module, devices: replicas * partitions, partitions, known: HashMap::new() }
    }

    /// An instruction's number on each device, if it depends on the device alone.
    pub(super) fn of(&mut self, instr: InstrId) -> Option<Vec<i64>> {
        match self.known(instr)? {
            Known::Each(numbers) => Some(numbers),
            Known::Table(table) if table.len() == 1 => Some(vec![table[0]; self.devices]),
            Known::Table(_) => None,
        }
    }

    fn known(&mut self, instr: InstrId) -> Option<Known> {
        // Operands first, so that long chains do not overflow the stack.
        let mut open = vec![instr];
        while let Some(&top) = open.last() {
            let operands = self.module.operands(top).iter();
            let missing: Vec<InstrId> = operands
                .map(|operand| operand.of)
                .filter(|of| !self.known.contains_key(of))
                .collect();
            if self.known.contains_key(&top) || !self.is_followed(top) || missing.is_empty() {
                let known = self.compute(top);
                self.known.entry(top).or_insert(known);
                open.pop();
            } else {
                open.extend(missing);
            }
        }
        self.known.get(&instr).cloned().flatten()
    }

    /// Whether an instruction's value is computed from its operands here.
    fn is_followed(&self, instr: InstrId) -> bool {
        use Opcode as O;
        matches!(
            self.module.instruction(instr).opcode,
            O::DynamicSlice
                | O::Reshape
                | O::Bitcast
                | O::Copy
                | O::Convert
                | O::Broadcast
                | O::Add
                | O::Subtract
                | O::Multiply
                | O::Divide
                | O::Remainder
                | O::Maximum
                | O::Minimum
                | O::Clamp
        )
    }

    fn operand(&self, instr: InstrId, index: usize) -> Option<&Known> {
        let operand = self.module.operands(instr).get(index)?;
        match self.module.path(operand).is_empty() {
            true => self.known.get(&operand.of)?.as_ref(),
            false => None,
        }
    }

    fn compute(&self, instr: InstrId) -> Option<Known> {
        use Opcode as O;
        let array = self.module.instruction(instr).shape.array()?;
        let name = array.element.name();
        if !name.starts_with(['s', 'u']) || array.dynamic {
            return None;
        }
        let each = |number: &dyn Fn(usize) -> usize| {
            Known::Each((0..self.devices).map(|device| number(device) as i64).collect())
        };
        let known = match self.module.instruction(instr).opcode {
            O::PartitionId => each(&|device| device % self.partitions),
            O::ReplicaId => each(&|device| device / self.partitions),
            O::Constant => self.constant(instr)?,
            O::Reshape | O::Bitcast | O::Copy | O::Convert => self.operand(instr, 0)?.clone(),
            O::Broadcast if array.elements() == 1 => self.operand(instr, 0)?.clone(),
            O::DynamicSlice if array.elements() == 1 => self.looked_up(instr)?,
            opcode => self.arithmetic(instr, opcode)?,
        };
        let least = if name.starts_with('u') { 0 } else { -LARGEST };
        let (Known::Each(numbers) | Known::Table(numbers)) = &known;
        numbers.iter().all(|number| (least..LARGEST).contains(number)).then_some(known)
    }

    fn constant(&self, instr: InstrId) -> Option<Known> {
        let Literal::Whole(numbers) = self.module.literal(instr)? else { return None };
        let numbers: Option<Vec<i64>> =
            numbers.into_iter().map(|number| i64::try_from(number).ok()).collect();
        numbers.map(Known::Table)
    }

    /// An element of a list of constants, at a place that depends on the device.
    fn looked_up(&self, instr: InstrId) -> Option<Known> {
        let Known::Table(table) = self.operand(instr, 0)? else { return None };
        if self.module.operands(instr).len() != 2 {
            return None;
        }
        let last = table.len().checked_sub(1)?;
        let at = |index: i64| table[usize::try_from(index).unwrap_or(0).min(last)];
        match self.operand(instr, 1)? {
            Known::Each(places) => {
                Some(Known::Each(places.iter().map(|&place| at(place)).collect()))
            }
            Known::Table(place) => Some(Known::Table(vec![at(*place.first()?)])),
        }
    }

    fn arithmetic(&self, instr: InstrId, opcode: Opcode) -> Option<Known> {
        let number = |known: &Known, device: usize| match known {
            Known::Each(numbers) => numbers.get(device).copied(),
            Known::Table(table) if table.len() == 1 => Some(table[0]),
            Known::Table(_) => None,
        };
        let [a, b] = [self.operand(instr, 0)?, self.operand(instr, 1)?];
        let third = self.operand(instr, 2);
        let combine = |device: usize| {
            let (a, b) = (number(a, device)?, number(b, device)?);
            match opcode {
                Opcode::Add => Some(a + b),
                Opcode::Subtract => Some(a - b),
                Opcode::Multiply => a.checked_mul(b),
                Opcode::Divide => a.checked_div(b),
                Opcode::Remainder => a.checked_rem(b),
                Opcode::Maximum => Some(a.max(b)),
                Opcode::Minimum => Some(a.min(b)),
                // The lower limit, the number, the upper limit.
                Opcode::Clamp => Some(b.min(number(third?, device)?).max(a)),
                _ => None,
            }
        };
        (0..self.devices).map(combine).collect::<Option<_>>().map(Known::Each)
    }
}
