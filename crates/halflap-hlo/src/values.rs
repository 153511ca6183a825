//! The values of a computation, their producers and readers, and which share a buffer.
//!
//! Tuples are taken apart: an instruction has as many values as its shape has leaves. A *content*
//! is what is written once; instructions that only pass values on (tuples, bitcasts, the end of
//! what was started) give the same content. A *buffer* holds contents one after the other: an
//! instruction that works in place writes its result where an operand was, which is allowed if
//! nothing later in the text reads the operand, and which forces its other readers to come before.

use std::collections::{BTreeMap, BTreeSet};

use super::shape::DEVICE_MEMORY;
use super::steps::{NodePart, Steps};
use super::storage::{Slot, Storage, leaf_range};
use super::{Alias, Module, Opcode, Phase, Shape};
use crate::ids::{ComputationId, InstrId, SlotId};
use halflap::ids::{Id, IdVec, UnitId};
use halflap::units::Bytes;

/// What lowering a caller needs to know about a computation.
#[derive(Clone, Debug, Default)]
pub struct Callee {
    /// Which unit it is, if it is one.
    pub unit: Option<UnitId>,
    /// For each leaf of its result, the leaf of its parameters that it is.
    pub passed_on: Vec<Option<usize>>,
    /// Whether it has side effects.
    pub has_side_effects: bool,
    /// What it needs in memory spaces other than the device's, besides parameters and results.
    pub spaces: BTreeMap<u32, Bytes>,
}

/// A leaf of an instruction's shape.
#[derive(Clone, Copy, Debug)]
pub(super) struct Value {
    /// The step after which it can be read; `None` for parameters and constants.
    pub(super) maker: Option<u32>,
    pub(super) content: u32,
}

/// A content, which is written once.
#[derive(Clone, Debug)]
pub(super) struct Content {
    /// Its writer; `None` for parameters and constants.
    pub(super) writer: Option<u32>,
    pub(super) instr: InstrId,
    pub(super) size: Bytes,
    pub(super) space: u32,
    /// Whether it is a single number.
    pub(super) is_single: bool,
    /// The steps that read it, ascending.
    pub(super) readers: Vec<u32>,
    /// Whether it is part of the computation's result.
    pub(super) is_result: bool,
    /// What the caller lets us do with it, for a parameter or constant.
    pub(super) keep: Keep,
    pub(super) buffer: u32,
}

/// How a content that exists from the start may be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Keep {
    /// Produced here: freed after its last use.
    Ours,
    /// A constant, or a parameter that the caller needs again: always there, never written.
    Caller,
    /// A parameter that the caller donated.
    Given,
    /// A loop body's parameter, whose place one of the results takes.
    Exchanged,
}

/// A content that would be written over another one.
#[derive(Clone, Copy)]
struct Overwrite {
    content: u32,
    /// The content that is there.
    operand: u32,
    /// Whether other readers are made to come before; otherwise there must be none.
    binds: bool,
    /// Whether the writer works in place; otherwise it must not read what is there.
    in_place: bool,
}

/// All values of a computation.
pub(super) struct Values {
    /// Where each instruction's leaves begin, by its place in the computation.
    first: Vec<u32>,
    leaves: Vec<Value>,
    pub(super) contents: Vec<Content>,
    /// Steps that write where others read: each must come after the other.
    pub(super) after: Vec<(u32, u32)>,
    pub(super) buffers: u32,
}

/// A result that could be written where an operand is.
struct InPlace {
    result: u32,
    operand: u32,
    /// Whether it is worth constraining other readers; if not, it is only done if there are none.
    binds: bool,
}

struct Finder<'a> {
    module: &'a Module,
    steps: &'a Steps,
    base: usize,
    values: Values,
    in_place: Vec<InPlace>,
}

impl Values {
    /// Finds all values, and which share a buffer.
    pub(super) fn find(
        module: &Module,
        computation: ComputationId,
        steps: &Steps,
        callees: &dyn Fn(ComputationId) -> Option<Callee>,
    ) -> Values {
        let base = module.instructions(computation).next().map_or(0, |first| first.index());
        let values = Values {
            first: vec![0],
            leaves: Vec::new(),
            contents: Vec::new(),
            after: Vec::new(),
            buffers: 0,
        };
        let mut finder = Finder { module, steps, base, values, in_place: Vec::new() };
        for instr in module.instructions(computation) {
            finder.instruction(instr, callees);
            finder.values.first.push(finder.values.leaves.len() as u32);
        }
        finder.find_readers(computation);
        let exchanges = finder.exchanges(computation);
        finder.assign_buffers(&exchanges);
        finder.values
    }

    pub(super) fn of(&self, module: &Module, instr: InstrId) -> &[Value] {
        let base = module
            .instructions(module.computation_of(instr))
            .next()
            .map_or(0, |first| first.index());
        let index = instr.index() - base;
        &self.leaves[self.first[index] as usize..self.first[index + 1] as usize]
    }

    /// The leaves of an operand.
    pub(super) fn of_operand(&self, module: &Module, operand: &super::Operand) -> &[Value] {
        let (from, len) = leaf_range(&module.instruction(operand.of).shape, module.path(operand));
        &self.of(module, operand.of)[from..from + len]
    }

    /// Which slot of memory each leaf is in.
    pub(super) fn storage(
        &self,
        module: &Module,
        computation: ComputationId,
        slots: IdVec<SlotId, Slot>,
    ) -> Storage {
        let base = module.instructions(computation).next().map_or(0, |first| first.index());
        let slot = |value: &Value| {
            SlotId::from_index(self.contents[value.content as usize].buffer as usize)
        };
        Storage::new(base, self.first.clone(), self.leaves.iter().map(slot).collect(), slots)
    }

    /// For each leaf of the computation's result, the leaf of its parameters that it is.
    pub(super) fn passed_on(
        &self,
        module: &Module,
        computation: ComputationId,
    ) -> Vec<Option<usize>> {
        let parameters = module.parameters(computation);
        let given: Vec<u32> = parameters
            .iter()
            .flatten()
            .flat_map(|&parameter| self.of(module, parameter).iter().map(|value| value.content))
            .collect();
        let root = self.of(module, module.root(computation)).iter();
        root.map(|value| given.iter().position(|&content| content == value.content)).collect()
    }
}

impl Finder<'_> {
    fn instruction(&mut self, instr: InstrId, callees: &dyn Fn(ComputationId) -> Option<Callee>) {
        let module = self.module;
        let opcode = module.instruction(instr).opcode;
        match opcode {
            Opcode::Parameter | Opcode::Constant => self.fresh_all(instr),
            Opcode::GetTupleElement => {
                let path = module.tuple_index(instr).map_or(vec![], |index| vec![index]);
                self.forward_operand(instr, 0, &path);
            }
            Opcode::Tuple => {
                for index in 0..module.operands(instr).len() {
                    self.forward_operand(instr, index, &[]);
                }
            }
            Opcode::AsyncUpdate | Opcode::Wrapped(Phase::Update, _) => self.update_values(instr),
            Opcode::Bitcast
            | Opcode::OptimizationBarrier
            | Opcode::OptBarrierLong
            | Opcode::Domain
            | Opcode::AddDependency => {
                self.forward_operand(instr, 0, &[]);
            }
            Opcode::While => self.loop_values(instr, callees),
            Opcode::Call => self.call_values(instr, callees),
            _ => match opcode.phase() {
                Some(Phase::Start) => self.start_values(instr),
                Some(Phase::Done) => self.done_values(instr),
                _ => self.plain_values(instr),
            },
        }
        self.fill_up(instr);
    }

    /// A module's shapes may be inconsistent; there are as many values as leaves.
    fn fill_up(&mut self, instr: InstrId) {
        let first = self.values.first.last().map_or(0, |&first| first as usize);
        let shape = &self.module.instruction(instr).shape;
        let mut leaves = Vec::new();
        shape.leaves(&mut leaves);
        self.values.leaves.truncate(first + leaves.len());
        let there = self.values.leaves.len() - first;
        leaves.into_iter().skip(there).for_each(|leaf| self.fresh(instr, leaf));
    }

    fn step(&self, instr: InstrId) -> Option<u32> {
        self.steps.done[instr.index() - self.base]
    }

    fn fresh(&mut self, instr: InstrId, leaf: &Shape) {
        let module = self.module;
        let (size, space, is_single) = match leaf {
            Shape::Array(array) => {
                let layout = module.layout(array);
                (array.size(&layout), layout.memory_space, array.elements() <= 1)
            }
            _ => (Bytes::ZERO, DEVICE_MEMORY, true),
        };
        let keep = match module.instruction(instr).opcode {
            Opcode::Parameter | Opcode::Constant => Keep::Caller,
            _ => Keep::Ours,
        };
        // What is started is written by its start, and read after its end. A parameter that is a
        // node, because others must wait for it, still exists from the start.
        let writer = self.steps.start[instr.index() - self.base]
            .or(self.step(instr))
            .filter(|_| keep == Keep::Ours);
        let content = self.values.contents.len() as u32;
        let readers = Vec::new();
        let (is_result, buffer) = (false, 0);
        self.values.contents.push(Content {
            writer,
            instr,
            size,
            space,
            is_single,
            readers,
            is_result,
            keep,
            buffer,
        });
        self.values.leaves.push(Value { maker: self.step(instr), content });
    }

    fn fresh_all(&mut self, instr: InstrId) {
        let mut leaves = Vec::new();
        self.module.instruction(instr).shape.leaves(&mut leaves);
        leaves.into_iter().for_each(|leaf| self.fresh(instr, leaf));
    }

    /// Passes an operand, or an element of it, on; a step becomes their producer.
    fn forward_operand(&mut self, instr: InstrId, index: usize, path: &[u32]) {
        let Some(operand) = self.module.operands(instr).get(index) else { return };
        let (from, len) = leaf_range(self.module.operand_shape(operand), path);
        let step = self.step(instr);
        let passed: Vec<Value> = self
            .values
            .of_operand(self.module, operand)
            .iter()
            .skip(from)
            .take(len)
            .copied()
            .collect();
        self.values
            .leaves
            .extend(passed.into_iter().map(|value| Value { maker: step.or(value.maker), ..value }));
    }

    /// The values of all operands, one after the other.
    fn operand_values(&self, instr: InstrId) -> Vec<Value> {
        let operands = self.module.operands(instr).iter();
        operands
            .flat_map(|operand| self.values.of_operand(self.module, operand).iter().copied())
            .collect()
    }

    /// What a loop does not change is passed on; the rest is written where it was, unless every
    /// iteration also reads it as something that does not change.
    fn loop_values(&mut self, instr: InstrId, callees: &dyn Fn(ComputationId) -> Option<Callee>) {
        let body = self.module.computation_in(instr, "body").and_then(callees);
        let operands = self.operand_values(instr);
        let is_passed = |index: usize| {
            body.as_ref().is_some_and(|body| body.passed_on.get(index) == Some(&Some(index)))
        };
        let passed = operands.iter().enumerate().filter(|(index, _)| is_passed(*index));
        let kept: BTreeSet<u32> = passed.map(|(_, value)| value.content).collect();
        let mut leaves = Vec::new();
        self.module.instruction(instr).shape.leaves(&mut leaves);
        for (index, leaf) in leaves.into_iter().enumerate() {
            match operands.get(index) {
                Some(&value) if is_passed(index) => {
                    self.values
                        .leaves
                        .push(Value { maker: self.step(instr), content: value.content });
                }
                Some(&value) => {
                    self.fresh(instr, leaf);
                    if !kept.contains(&value.content) {
                        self.offer(value.content, true);
                    }
                }
                None => self.fresh(instr, leaf),
            }
        }
    }

    /// What the callee passes on is passed on.
    fn call_values(&mut self, instr: InstrId, callees: &dyn Fn(ComputationId) -> Option<Callee>) {
        let callee = self.module.called(instr).first().and_then(|&callee| callees(callee));
        let operands = self.operand_values(instr);
        let mut leaves = Vec::new();
        self.module.instruction(instr).shape.leaves(&mut leaves);
        for (index, leaf) in leaves.into_iter().enumerate() {
            let passed = callee.as_ref().and_then(|callee| *callee.passed_on.get(index)?);
            match passed.and_then(|from| operands.get(from)) {
                Some(&value) => self
                    .values
                    .leaves
                    .push(Value { maker: self.step(instr), content: value.content }),
                None => self.fresh(instr, leaf),
            }
        }
    }

    /// The newest content could be written where an operand is.
    fn offer(&mut self, operand: u32, binds: bool) {
        let result = self.values.contents.len() as u32 - 1;
        self.in_place.push(InPlace { result, operand, binds });
    }

    /// What a start gives holds its operands, besides the results.
    fn start_values(&mut self, instr: InstrId) {
        let module = self.module;
        let instruction = module.instruction(instr);
        // Which element of the tuple are the operands.
        let holds = match instruction.opcode {
            Opcode::AllReduceStart | Opcode::Recv => None,
            Opcode::CopyStart => Some(1),
            _ => Some(0),
        };
        let operands = self.operand_values(instr);
        let is_all_reduce = instruction.opcode == Opcode::AllReduceStart;
        let Shape::Tuple(parts) = &instruction.shape else {
            self.fresh_all(instr);
            if let (true, Some(value)) = (is_all_reduce, operands.first()) {
                self.offer(value.content, false);
            }
            return;
        };
        for (index, part) in parts.iter().enumerate() {
            let mut leaves = Vec::new();
            part.leaves(&mut leaves);
            if holds == Some(index) && leaves.len() <= operands.len() {
                let step = self.step(instr);
                self.values.leaves.extend(
                    operands[..leaves.len()].iter().map(|value| Value { maker: step, ..*value }),
                );
                continue;
            }
            for leaf in leaves {
                self.fresh(instr, leaf);
            }
        }
    }

    /// An update passes on what was started. Its other operands join those of the start, and
    /// results may be known only with them.
    fn update_values(&mut self, instr: InstrId) {
        let module = self.module;
        let (Shape::Tuple(parts), Some(state)) =
            (&module.instruction(instr).shape, module.operands(instr).first())
        else {
            return self.forward_operand(instr, 0, &[]);
        };
        let state_values = self.values.of_operand(module, state).to_vec();
        let added: Vec<Value> = self.operand_values(instr).split_off(state_values.len());
        for (index, part) in parts.iter().enumerate() {
            let (from, len) = leaf_range(module.operand_shape(state), &[index as u32]);
            let mut known = state_values[from..from + len].to_vec();
            if index == 0 {
                known.extend(&added);
            }
            let mut leaves = Vec::new();
            part.leaves(&mut leaves);
            for (number, leaf) in leaves.into_iter().enumerate() {
                match known.get(number) {
                    Some(&value) => {
                        let maker = self.step(instr).or(value.maker);
                        self.values.leaves.push(Value { maker, ..value });
                    }
                    None => self.fresh(instr, leaf),
                }
            }
        }
    }

    /// An end passes on what was started.
    fn done_values(&mut self, instr: InstrId) {
        let path: &[u32] = match self.module.instruction(instr).opcode {
            Opcode::AllReduceDone => &[],
            Opcode::CopyDone => &[0],
            Opcode::SendDone => &[2],
            Opcode::RecvDone => {
                // The received data and the token, without the device context between them.
                self.forward_operand(instr, 0, &[0]);
                &[2]
            }
            _ => &[1],
        };
        self.forward_operand(instr, 0, path);
    }

    fn plain_values(&mut self, instr: InstrId) {
        let module = self.module;
        let instruction = module.instruction(instr);
        let mut leaves = Vec::new();
        instruction.shape.leaves(&mut leaves);
        let aliases = module.output_to_operand_aliasing(instr);
        let candidates = self.candidates(instr);
        for (index, leaf) in leaves.into_iter().enumerate() {
            self.fresh(instr, leaf);
            let result = self.values.contents.len() - 1;
            if let Some(content) = self.aliased(instr, &aliases, index) {
                self.offer(content, true);
                continue;
            }
            for &(operand, binds) in &candidates {
                let (a, b) =
                    (&self.values.contents[operand as usize], &self.values.contents[result]);
                if a.size == b.size && a.space == b.space {
                    self.offer(operand, binds);
                }
            }
        }
    }

    /// The operand's content that the text says a leaf of the result shares.
    fn aliased(&self, instr: InstrId, aliases: &[Alias], leaf: usize) -> Option<u32> {
        let shape = &self.module.instruction(instr).shape;
        let alias = aliases.iter().find(|alias| leaf_range(shape, &alias.output).0 == leaf)?;
        let operand = self.module.operands(instr).get(alias.parameter)?;
        let (from, _) = leaf_range(self.module.operand_shape(operand), &alias.path);
        self.values.of_operand(self.module, operand).get(from).map(|value| value.content)
    }

    /// The operands' contents that the result could overwrite, and whether that is worth
    /// constraining other readers.
    fn candidates(&self, instr: InstrId) -> Vec<(u32, bool)> {
        let module = self.module;
        let opcode = module.instruction(instr).opcode;
        let operands = module.operands(instr);
        let contents = |index: usize| {
            let values = operands
                .get(index)
                .map_or(&[][..], |operand| self.values.of_operand(module, operand));
            values.iter().map(|value| value.content)
        };
        match opcode {
            Opcode::DynamicUpdateSlice | Opcode::Scatter => {
                contents(0).map(|content| (content, true)).collect()
            }
            Opcode::Sort => {
                (0..operands.len()).flat_map(contents).map(|content| (content, false)).collect()
            }
            Opcode::Fusion => {
                let uses = fusion_uses(module, instr, operands.len());
                let of_use = |(index, in_place): (usize, Option<bool>)| {
                    contents(index).zip(std::iter::repeat(in_place))
                };
                uses.into_iter()
                    .enumerate()
                    .flat_map(of_use)
                    .filter_map(|(content, binds)| Some((content, binds?)))
                    .collect()
            }
            opcode if opcode.is_elementwise() => {
                (0..operands.len()).flat_map(contents).map(|content| (content, false)).collect()
            }
            _ => Vec::new(),
        }
    }

    fn find_readers(&mut self, computation: ComputationId) {
        let module = self.module;
        let mut pairs: Vec<(u32, u32)> = Vec::new();
        for (step, place) in self.steps.places.iter().enumerate() {
            for operand in module.operands(place.instr) {
                let values = self.values.of_operand(module, operand).iter();
                pairs.extend(values.map(|value| (value.content, step as u32)));
            }
            // A start's result lives until its done, even without readers.
            if place.part == NodePart::Done {
                pairs.extend(
                    self.values
                        .of(module, place.instr)
                        .iter()
                        .map(|value| (value.content, step as u32)),
                );
            }
            // The operands of a start and of its updates are needed until its done.
            for begun in self.steps.begun_by(module, place) {
                for operand in module.operands(begun) {
                    let values = self.values.of_operand(module, operand).iter();
                    pairs.extend(values.map(|value| (value.content, step as u32)));
                }
            }
        }
        for (content, step) in pairs {
            let readers = &mut self.values.contents[content as usize].readers;
            if readers.last() != Some(&step) {
                readers.push(step);
            }
        }
        let root = self.values.of(module, module.root(computation)).to_vec();
        root.iter().for_each(|value| self.values.contents[value.content as usize].is_result = true);
    }

    /// Which results take the place of which parameters: content of the result, content of the
    /// parameter. Marks what the caller donated.
    fn exchanges(&mut self, computation: ComputationId) -> Vec<(u32, u32)> {
        let module = self.module;
        let parameters = module.parameters(computation);
        let root = module.root(computation);
        let aliases = match computation == module.entry() {
            true => module.input_output_alias(),
            false if self.steps.is_loop_body => every_leaf(&module.instruction(root).shape),
            false => Vec::new(),
        };
        let mut exchanges = Vec::new();
        for alias in aliases {
            let Some(&Some(parameter)) = parameters.get(alias.parameter) else { continue };
            let result = leaf_range(&module.instruction(root).shape, &alias.output).0;
            let given = leaf_range(&module.instruction(parameter).shape, &alias.path).0;
            let result = self.values.of(module, root).get(result).map(|value| value.content);
            let given = self.values.of(module, parameter).get(given).map(|value| value.content);
            if let (Some(result), Some(given)) = (result, given) {
                let is_loop = self.steps.is_loop_body;
                self.values.contents[given as usize].keep =
                    if is_loop { Keep::Exchanged } else { Keep::Given };
                exchanges.push((result, given));
            }
        }
        if computation == module.entry() {
            self.mark_donated(&parameters);
        }
        exchanges
    }

    /// Parameters that the caller donated without a particular result: `buffer_donor={ (1, {}) }`.
    fn mark_donated(&mut self, parameters: &[Option<InstrId>]) {
        let text = self.module.module_attribute("buffer_donor").unwrap_or("").to_owned();
        for donor in text.split('(').skip(1) {
            let number =
                donor.split(',').next().and_then(|number| number.trim().parse::<usize>().ok());
            let Some(Some(parameter)) = number.and_then(|number| parameters.get(number)) else {
                continue;
            };
            for value in self.values.of(self.module, *parameter).to_vec() {
                self.values.contents[value.content as usize].keep = Keep::Given;
            }
        }
    }

    /// Gives every content a buffer: that of an operand where it is written in place.
    fn assign_buffers(&mut self, exchanges: &[(u32, u32)]) {
        let count = self.values.contents.len();
        // A value's predecessors should start where the final result should end up.
        let mut wish: Vec<Option<u32>> = vec![None; count];
        exchanges.iter().for_each(|&(result, given)| wish[result as usize] = Some(given));
        for offer in self.in_place.iter().rev().filter(|offer| offer.binds) {
            if wish[offer.operand as usize].is_none()
                && self.values.contents[offer.operand as usize].keep == Keep::Ours
            {
                wish[offer.operand as usize] = wish[offer.result as usize];
            }
        }
        let mut offers = std::mem::take(&mut self.in_place).into_iter().peekable();
        let mut overwritten = vec![false; count];
        for content in 0..count as u32 {
            let mut options = Vec::new();
            while let Some(offer) = offers.next_if(|offer| offer.result == content) {
                options.push(offer);
            }
            let fits = |operand: u32, binds: bool| {
                let in_place = options.iter().any(|offer| offer.operand == operand);
                !overwritten[operand as usize]
                    && self.fits(Overwrite { content, operand, binds, in_place })
            };
            // The parameter that the result replaces comes first, even if the writer does not read
            // it.
            let wished = wish[content as usize].filter(|&given| fits(given, true));
            let offered = || {
                options
                    .iter()
                    .find(|offer| fits(offer.operand, offer.binds))
                    .map(|offer| offer.operand)
            };
            match wished.or_else(offered) {
                Some(operand) => {
                    overwritten[operand as usize] = true;
                    self.write_over(content, operand);
                }
                None => {
                    self.values.contents[content as usize].buffer = self.values.buffers;
                    self.values.buffers += 1;
                }
            }
        }
    }

    /// Whether a content can overwrite another one, which is no longer needed.
    fn fits(&self, overwrite: Overwrite) -> bool {
        let Overwrite { content, operand, binds, in_place } = overwrite;
        let (new, old) =
            (&self.values.contents[content as usize], &self.values.contents[operand as usize]);
        let Some(writer) = new.writer else { return false };
        let is_ours = old.keep != Keep::Caller && !old.is_result;
        // The end of what made it comes before the writer anyway.
        let is_made_by = |reader: u32| old.writer.is_some_and(|maker| self.is_same(reader, maker));
        let mut others =
            old.readers.iter().filter(|&&reader| !in_place || !self.is_same(reader, writer));
        let is_free = match binds {
            true => others.all(|&reader| reader < writer),
            false => others.all(|&reader| is_made_by(reader)),
        };
        content != operand
            && is_ours
            && is_free
            && (old.size, old.space) == (new.size, new.space)
            && new.size > Bytes::ZERO
    }

    /// Whether a step is another one, or the end of what that starts.
    fn is_same(&self, step: u32, start: u32) -> bool {
        let places = &self.steps.places;
        let start = &places[start as usize];
        places[step as usize] == *start
            || self.steps.started_by(self.module, &places[step as usize]) == Some(start.instr)
    }

    fn write_over(&mut self, content: u32, operand: u32) {
        let old = &self.values.contents[operand as usize];
        let (buffer, readers) = (old.buffer, old.readers.clone());
        let new = &mut self.values.contents[content as usize];
        new.buffer = buffer;
        let Some(writer) = new.writer else { return };
        let others = readers.into_iter().filter(|&reader| reader < writer);
        self.values.after.extend(others.map(|reader| (writer, reader)));
    }
}

/// Each leaf of a loop's result takes the place of the same leaf of its only parameter.
fn every_leaf(shape: &Shape) -> Vec<Alias> {
    fn walk(shape: &Shape, path: &mut Vec<u32>, into: &mut Vec<Alias>) {
        match shape {
            Shape::Tuple(parts) => {
                for (index, part) in parts.iter().enumerate() {
                    path.push(index as u32);
                    walk(part, path, into);
                    path.pop();
                }
            }
            _ => into.push(Alias {
                output: path.clone(),
                parameter: 0,
                path: path.clone(),
                may: false,
            }),
        }
    }
    let mut aliases = Vec::new();
    walk(shape, &mut Vec::new(), &mut aliases);
    aliases
}

/// For each operand of a fusion, whether its result can be written over it: `Some(true)` if it is
/// updated in place, `Some(false)` if each element of it is read only for the result's at its
/// place.
fn fusion_uses(module: &Module, instr: InstrId, operands: usize) -> Vec<Option<bool>> {
    let mut uses = vec![None; operands];
    let Some(&computation) = module.called(instr).first() else { return uses };
    let base = module.instructions(computation).next().map_or(0, |first| first.index());
    // From the back: whether all users of an instruction read it element by element.
    let mut state: Vec<Option<bool>> = vec![Some(false); module.instructions(computation).len()];
    for inner in module.instructions(computation).rev() {
        let instruction = module.instruction(inner);
        let own = state[inner.index() - base];
        for (place, operand) in module.operands(inner).iter().enumerate() {
            let same_count =
                elements(&instruction.shape) == elements(module.operand_shape(operand));
            let through = match instruction.opcode {
                Opcode::Tuple => own,
                Opcode::DynamicUpdateSlice if place == 0 => own.map(|_| true),
                Opcode::Bitcast | Opcode::Copy | Opcode::Reshape if same_count => own,
                opcode if opcode.is_elementwise() && same_count => own,
                _ => None,
            };
            let slot = &mut state[operand.of.index() - base];
            *slot = match (*slot, through) {
                (Some(a), Some(b)) => Some(a || b),
                _ => None,
            };
        }
        if let Some(number) = module.parameter_number(inner).filter(|&number| number < operands) {
            uses[number] = own;
        }
    }
    uses
}

fn elements(shape: &Shape) -> Option<u64> {
    shape.array().map(super::Array::elements)
}
