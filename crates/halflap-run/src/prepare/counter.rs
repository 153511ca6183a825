//! Loops whose counter moves away from their limit, which end only when it wraps around, if ever.

use halflap_hlo::ids::{ComputationId, InstrId};
use halflap_hlo::{Module, Opcode};

use super::flat::Flat;
use crate::failure::WrongWay;

/// The only thing that ends a loop: a whole number of its state, to which each iteration adds the
/// same, and a limit that it is compared with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LoopCounter {
    /// The value that an iteration leaves.
    name: String,
    /// Its place in the state.
    element: usize,
    step: i128,
    goes_on: GoesOn,
    limit: CounterLimit,
    bits: u32,
    is_signed: bool,
}

/// When a loop goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GoesOn {
    Below,
    UpTo,
    Above,
    DownTo,
    Unequal,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CounterLimit {
    Constant(i128),
    /// An element of the state that no iteration changes.
    Element(usize),
}

/// A loop with fewer iterations ends in time, whichever way it counts: a program may count down
/// until an unsigned number wraps around.
const FEWEST: i128 = 1 << 30;

impl GoesOn {
    fn read(direction: &str) -> Option<GoesOn> {
        Some(match direction {
            "LT" => GoesOn::Below,
            "LE" => GoesOn::UpTo,
            "GT" => GoesOn::Above,
            "GE" => GoesOn::DownTo,
            "NE" => GoesOn::Unequal,
            _ => return None,
        })
    }

    /// With both sides exchanged.
    fn turned(self) -> GoesOn {
        match self {
            GoesOn::Below => GoesOn::Above,
            GoesOn::UpTo => GoesOn::DownTo,
            GoesOn::Above => GoesOn::Below,
            GoesOn::DownTo => GoesOn::UpTo,
            GoesOn::Unequal => GoesOn::Unequal,
        }
    }

    fn words(self) -> &'static str {
        match self {
            GoesOn::Below => "less than",
            GoesOn::UpTo => "at most",
            GoesOn::Above => "greater than",
            GoesOn::DownTo => "at least",
            GoesOn::Unequal => "not equal to",
        }
    }
}

/// The state of a loop within its condition or its body.
struct LoopState<'a> {
    flat: &'a Flat<'a>,
    within: ComputationId,
}

impl LoopState<'_> {
    /// Which element an instruction is.
    fn element(&self, instr: InstrId) -> Option<usize> {
        let Flat { module, .. } = self.flat;
        let instr = self.flat.maker(instr);
        let [tuple] = module.operands(instr) else { return None };
        let tuple = self.flat.maker(tuple.of);
        let is_state = self.flat.opcode(tuple) == Opcode::Parameter
            && module.computation_of(tuple) == self.within;
        module.tuple_index(instr).filter(|_| is_state).map(|index| index as usize)
    }

    /// What an iteration leaves as an element.
    fn left(&self, element: usize) -> Option<InstrId> {
        let root = self.flat.maker(self.flat.module.root(self.within));
        self.flat.element(root, element).map(|instr| self.flat.maker(instr))
    }
}

impl LoopCounter {
    /// That of a `while`, if it has one.
    pub(super) fn of(flat: &Flat<'_>, instr: InstrId) -> Option<LoopCounter> {
        let module = flat.module;
        let state = |key| Some(LoopState { flat, within: module.computation_in(instr, key)? });
        let (condition, body) = (state("condition")?, state("body")?);
        let compare = flat.maker(module.root(condition.within));
        let [left, right] = module.operands(compare) else { return None };
        let is_compare = flat.opcode(compare) == Opcode::Compare;
        let goes_on = GoesOn::read(module.attribute(compare, "direction").filter(|_| is_compare)?)?;
        let limit = |instr: InstrId| match flat.whole(instr) {
            Some(number) => Some(CounterLimit::Constant(number)),
            None => {
                let element = condition.element(instr)?;
                (body.element(body.left(element)?) == Some(element))
                    .then_some(CounterLimit::Element(element))
            }
        };
        let counted = |counter: InstrId, other: InstrId, goes_on: GoesOn| {
            let (element, limit) = (condition.element(counter)?, limit(other)?);
            let next = body.left(element)?;
            let (step, (bits, is_signed)) = (step(&body, next, element)?, whole(module, next)?);
            let name = module.instruction_name(next).to_owned();
            Some(LoopCounter { name, element, step, goes_on, limit, bits, is_signed })
        };
        counted(left.of, right.of, goes_on).or_else(|| counted(right.of, left.of, goes_on.turned()))
    }

    /// The elements of the state that [`LoopCounter::judge`] reads.
    pub(crate) fn elements(&self) -> Vec<usize> {
        let limit = match self.limit {
            CounterLimit::Constant(_) => None,
            CounterLimit::Element(element) => Some(element),
        };
        [self.element].into_iter().chain(limit).collect()
    }

    /// Whether a loop that begins with these elements, and whose condition holds, counts the wrong
    /// way.
    pub(crate) fn judge(&self, values: &[Vec<u8>]) -> Option<WrongWay> {
        let start = self.number(values.first()?)?;
        let limit = match self.limit {
            CounterLimit::Constant(limit) => limit,
            CounterLimit::Element(_) => self.number(values.get(1)?)?,
        };
        let ends_after = self.end(start, limit)?;
        Some(WrongWay {
            counter: self.name.clone(),
            element: self.element,
            start,
            step: self.step,
            goes_on: self.goes_on.words(),
            limit,
            ends_after,
        })
    }

    /// After how many iterations a counter that moves away ends its loop at the earliest; `None`
    /// within, if never; `None`, if it does not move away, or ends in time.
    fn end(&self, start: i128, limit: i128) -> Option<Option<u128>> {
        let Range { least, most, count } = self.range();
        let (step, distance) = (self.step, self.step.abs());
        if step == 0 {
            return None;
        }
        let room = match self.goes_on {
            GoesOn::Below | GoesOn::UpTo if step < 0 => start - least,
            GoesOn::Above | GoesOn::DownTo if step > 0 => most - start,
            GoesOn::Unequal => {
                let Some(turns) = meets((limit - start).rem_euclid(count), step, count) else {
                    return Some(None);
                };
                let moves_away = (limit - start).signum() == -step.signum();
                return (moves_away && turns >= FEWEST).then_some(Some(turns.unsigned_abs()));
            }
            _ => return None,
        };
        let turns = room / distance + 1;
        (turns >= FEWEST).then_some(Some(turns.unsigned_abs()))
    }

    fn range(&self) -> Range {
        let count = 1i128 << self.bits;
        let least = if self.is_signed { -(count / 2) } else { 0 };
        Range { least, most: least + count - 1, count }
    }

    fn number(&self, bytes: &[u8]) -> Option<i128> {
        let size = self.bits as usize / 8;
        let bytes = bytes.get(..size)?;
        let number = bytes.iter().rev().fold(0i128, |all, &byte| all << 8 | i128::from(byte));
        let Range { most, count, .. } = self.range();
        Some(if number > most { number - count } else { number })
    }
}

/// The numbers of a type.
struct Range {
    least: i128,
    most: i128,
    count: i128,
}

/// The least number of steps, among numbers that wrap around, that lead this far; `None` if none
/// does.
fn meets(distance: i128, step: i128, count: i128) -> Option<i128> {
    let step = step.rem_euclid(count).unsigned_abs();
    // Powers of two have all divisors that a step can share with their count.
    let shift = step.trailing_zeros();
    if distance.trailing_zeros() < shift {
        return None;
    }
    let (step, distance) = (step >> shift, distance.unsigned_abs() >> shift);
    // Newton's iteration for the inverse of an odd number: each round doubles its correct bits.
    let inverse = (0..7)
        .fold(1u128, |known, _| known.wrapping_mul(2u128.wrapping_sub(step.wrapping_mul(known))));
    let count = count.unsigned_abs() >> shift;
    i128::try_from(distance.wrapping_mul(inverse) % count).ok()
}

/// What an iteration adds to an element.
fn step(body: &LoopState<'_>, next: InstrId, element: usize) -> Option<i128> {
    let flat = body.flat;
    let [left, right] = flat.module.operands(next) else { return None };
    let is_counter = |instr: InstrId| body.element(instr) == Some(element);
    let step = match flat.opcode(next) {
        Opcode::Add if is_counter(left.of) => flat.whole(right.of)?,
        Opcode::Add if is_counter(right.of) => flat.whole(left.of)?,
        Opcode::Subtract if is_counter(left.of) => flat.whole(right.of)?.checked_neg()?,
        _ => return None,
    };
    // Adding the largest unsigned number is going back by one.
    let (bits, _) = whole(flat.module, next)?;
    let (count, step) = (1i128 << bits, step.rem_euclid(1i128 << bits));
    Some(if step > count / 2 { step - count } else { step })
}

/// The bits of a single whole number, and whether it has a sign.
fn whole(module: &Module, instr: InstrId) -> Option<(u32, bool)> {
    let array = module.instruction(instr).shape.array().filter(|array| array.dims.is_empty())?;
    Some(match array.element.name() {
        "s32" => (32, true),
        "u32" => (32, false),
        "s64" => (64, true),
        "u64" => (64, false),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(line: &str, direction: &str, start: i64) -> Option<Option<u128>> {
        let kind = if line.contains("u32") { "u32" } else { "s32" };
        let text = format!(
            "HloModule m\n\ncond {{\n  s = ({kind}[], f32[4]) parameter(0)\n  \
             i = {kind}[] get-tuple-element(s), index=0\n  n = {kind}[] constant(10)\n  \
             ROOT c = pred[] compare(i, n), direction={direction}\n}}\n\nbody {{\n  \
             s = ({kind}[], f32[4]) parameter(0)\n  i = {kind}[] get-tuple-element(s), index=0\n  \
             x = f32[4] get-tuple-element(s), index=1\n  one = {kind}[] constant(1)\n  \
             two = {kind}[] constant(2)\n  {line}\n  y = f32[4] sine(x)\n  \
             ROOT t = ({kind}[], f32[4]) tuple(j, y)\n}}\n\nENTRY e {{\n  \
             p = ({kind}[], f32[4]) parameter(0)\n  \
             ROOT w = ({kind}[], f32[4]) while(p), condition=cond, body=body\n}}\n"
        );
        let module = Module::read(text).unwrap();
        let counter = LoopCounter::of(&Flat::new(&module), module.root(module.entry()))?;
        let found = counter.judge(&[(start as i32).to_le_bytes().to_vec()])?;
        Some(found.ends_after)
    }

    #[test]
    fn counters_that_move_away_are_seen() {
        let down = "j = s32[] subtract(i, one)";
        let up = "j = s32[] add(one, i)";
        let wraps = |start: i64| Some(Some((start + (1 << 31) + 1) as u128));
        assert_eq!((judged(down, "LT", 0), judged(down, "LE", 5)), (wraps(0), wraps(5)));
        assert_eq!(judged(up, "GT", 11), Some(Some((1 << 31) - 11)));
        assert_eq!(judged(down, "NE", 0), Some(Some((1 << 32) - 10)));
        // Odd numbers are never ten.
        assert_eq!(judged("j = s32[] add(i, two)", "NE", 1), Some(None));
    }

    #[test]
    fn other_counters_are_right() {
        let (down, up) = ("j = s32[] subtract(i, one)", "j = s32[] add(i, one)");
        assert_eq!((judged(up, "LT", 0), judged(down, "GE", 20)), (None, None));
        assert_eq!((judged(up, "NE", 0), judged(down, "NE", 20)), (None, None));
        // Down to zero, and around.
        assert_eq!(judged("j = u32[] subtract(i, one)", "LT", 9), None);
        assert_eq!(judged("j = u32[] subtract(i, one)", "LT", 5), None);
        // By as much as the data says.
        assert_eq!(judged("k = s32[] multiply(i, i)\n  j = s32[] subtract(i, k)", "LT", 0), None);
        assert_eq!(judged("j = s32[] multiply(i, two)", "LT", 1), None);
    }
}
