//! Formulas to stages: what is computed in one loop, what is in memory between them, and where.
//!
//! Outputs are written where they belong; what must be in memory in between is scratch. A reshape
//! of what is in memory is the same memory. Everything is decided here: a stage only runs.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use halflap_hlo::Module;

use super::bound::BoundStep;
use super::error::{Gap, Unsupported};
use super::formula::{Formula, Op, Term, TermId};
use super::loops::ElementLoop;
use super::moves::CopyStage;
use super::nest::{self, Halt, Nest, is_elementwise};
use super::program::Register;
use super::region::{LoopRegion, RegionBody, RegionCut, RegionLoops};
use super::rows::RowLoop;
use super::walk::{common_pieces, strides};
use super::{ArrayType, Buffers, Libraries, dot, heavy, reduce};
use crate::tensor::AlignedBytes;

/// Where an array is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum ArraySlot {
    Input(usize),
    Output(usize),
    /// In the scratch memory, from a byte on.
    Temp(usize),
    Constant(usize),
}

/// A part of a kernel: reads some slots and writes others.
pub(super) trait KernelStage: Send + Sync {
    /// # Safety
    /// The buffers must be those that the stage was planned for, and its local memory long enough.
    unsafe fn run(&self, buffers: &Buffers<'_>);

    /// Into how many parts its work can be split, each worth a thread ([`Buffers::share`]).
    fn parts(&self) -> usize {
        1
    }

    /// How many bytes of memory it needs while it runs, or a part of it does.
    fn local_bytes(&self) -> usize {
        0
    }

    /// How much it does, in elements of which each takes a few operations, if that is known.
    fn elements(&self) -> Option<usize> {
        None
    }

    /// What it does with arrays in fixed places, as steps, if that is known in advance; else it
    /// adds nothing.
    ///
    /// # Safety
    /// As for [`KernelStage::run`]; the arrays, the stage and its local memory, which is its own,
    /// must live as long as the steps are run.
    unsafe fn bind(&self, _buffers: &Buffers<'_>, _steps: &mut Vec<BoundStep>) -> bool {
        false
    }

    /// Whether an output may be in the same memory as an input.
    fn can_share(&self, _output: usize, _input: usize) -> bool {
        false
    }
}

/// How many elements are worth a thread.
const WORTH: usize = 32 * 1024;

/// Into how many parts work on this many elements and pieces can be split.
pub(super) fn parts_of(elements: usize, pieces: usize) -> usize {
    (elements / WORTH).min(pieces).max(1)
}

/// An array in memory that need not be dense: steps are in elements.
#[derive(Clone, Debug)]
pub(super) struct Strided {
    pub(super) slot: ArraySlot,
    pub(super) base: i64,
    pub(super) by: Vec<i64>,
}

/// The parts of a kernel.
pub(super) struct KernelPlan {
    pub(super) stages: Vec<Box<dyn KernelStage>>,
    pub(super) constants: Vec<AlignedBytes>,
    /// How many bytes of scratch memory slots take.
    pub(super) temp_bytes: usize,
    /// How many stages only convert or copy what another stage reads or writes, and how many of the
    /// bytes are for that.
    helpers: usize,
    helper_bytes: usize,
}

impl KernelPlan {
    /// Whether it computes at once, without memory for what is computed on the way.
    pub(super) fn is_one_stage(&self) -> bool {
        self.stages.len() == self.helpers + 1 && self.temp_bytes == self.helper_bytes
    }
}

/// Makes a plan.
pub(super) struct Planner<'f> {
    pub(super) formula: &'f Formula,
    module: &'f Module,
    pub(super) libraries: &'f Libraries,
    slots: Vec<Option<ArraySlot>>,
    /// The output that a term is.
    targets: HashMap<TermId, usize>,
    /// How many arguments of terms each term is.
    reads: Vec<u32>,
    /// The terms that are parts of another.
    parts: HashMap<(TermId, usize), TermId>,
    /// Terms that two stages would compute: they are materialised.
    forced: HashSet<TermId>,
    /// Terms that a stage computes without keeping them.
    inlined: HashSet<TermId>,
    /// Copies of arrays in the order of loops.
    turned: HashMap<nest::Turned, ArraySlot>,
    /// Cached properties of a term.
    computing: RefCell<HashMap<TermId, bool>>,
    plan: KernelPlan,
}

/// Terms cheaper than this are computed again rather than kept.
const CHEAP: usize = 3;

impl<'f> Planner<'f> {
    /// The plan of a formula.
    pub(super) fn plan(
        module: &'f Module,
        libraries: &'f Libraries,
        formula: &'f Formula,
    ) -> Result<KernelPlan, Unsupported> {
        let mut forced = HashSet::new();
        loop {
            let mut planner = Planner::new(module, libraries, formula, forced);
            match planner.outputs() {
                Ok(()) => return Ok(planner.plan),
                Err(Trouble::Unsupported(error)) => return Err(error),
                // Each round keeps at least one more term, so this ends.
                Err(Trouble::Force(terms)) => {
                    forced = planner.forced;
                    forced.extend(terms);
                }
            }
        }
    }

    fn new(
        module: &'f Module,
        libraries: &'f Libraries,
        formula: &'f Formula,
        forced: HashSet<TermId>,
    ) -> Planner<'f> {
        let mut targets = HashMap::new();
        for (index, &output) in formula.outputs.iter().enumerate() {
            targets.entry(output).or_insert(index);
        }
        let (mut parts, mut reads) = (HashMap::new(), vec![0; formula.terms.len()]);
        for id in formula.ids().map(TermId) {
            formula.term(id).args.iter().for_each(|arg| reads[arg.0 as usize] += 1);
            if let (Op::Part(index), [whole]) = (&formula.term(id).op, &formula.term(id).args[..]) {
                parts.insert((*whole, *index), id);
            }
        }
        Planner {
            formula,
            module,
            libraries,
            slots: vec![None; formula.terms.len()],
            targets,
            reads,
            parts,
            forced,
            inlined: HashSet::new(),
            turned: HashMap::new(),
            computing: RefCell::new(HashMap::new()),
            plan: KernelPlan {
                stages: Vec::new(),
                constants: Vec::new(),
                temp_bytes: 0,
                helpers: 0,
                helper_bytes: 0,
            },
        }
    }

    fn outputs(&mut self) -> Result<(), Trouble> {
        for (index, &output) in self.formula.outputs.iter().enumerate() {
            let slot = self.make(output)?;
            if slot == ArraySlot::Output(index) {
                continue;
            }
            let term = self.formula.term(output);
            let from = Strided { slot, base: 0, by: strides(&term.dims) };
            self.push(Box::new(CopyStage::new(
                &term.dims,
                from,
                ArraySlot::Output(index),
                term.dtype.size(),
            )));
        }
        Ok(())
    }

    fn push(&mut self, stage: Box<dyn KernelStage>) {
        self.plan.stages.push(stage);
    }

    /// Where a term is, if it is in memory.
    pub(super) fn slot(&self, id: TermId) -> Option<ArraySlot> {
        match self.formula.term(id).op {
            Op::Input(number) => Some(ArraySlot::Input(number)),
            _ => self.slots[id.0 as usize],
        }
    }

    /// Where the bytes of a term are: its own, or those of the term that it reshapes.
    pub(super) fn memory(&self, id: TermId) -> Option<ArraySlot> {
        let term = self.formula.term(id);
        match (self.slot(id), &term.op) {
            (None, Op::Reshape | Op::Reinterpret) => self.memory(term.args[0]),
            (slot, _) => slot,
        }
    }

    pub(super) fn is_forced(&self, id: TermId) -> bool {
        self.forced.contains(&id) || self.targets.contains_key(&id)
    }

    /// Whether one argument of one term is all that reads a term.
    pub(super) fn is_read_once(&self, id: TermId) -> bool {
        self.reads[id.0 as usize] == 1
    }

    /// Whether a term that is not in memory is more than elements taken from elsewhere.
    pub(super) fn computes(&self, id: TermId) -> bool {
        if self.memory(id).is_some() {
            return false;
        }
        if let Some(&known) = self.computing.borrow().get(&id) {
            return known;
        }
        let term = self.formula.term(id);
        let computes = match (&term.op, term.args.first()) {
            (Op::Constant(_) | Op::Iota(_), _) => false,
            (
                Op::Broadcast(_)
                | Op::Transpose(_)
                | Op::Reshape
                | Op::Slice { .. }
                | Op::Reverse(_),
                Some(&arg),
            ) => {
                return self.computes(arg);
            }
            _ => true,
        };
        self.computing.borrow_mut().insert(id, computes);
        computes
    }

    pub(super) fn fail(&self, id: TermId, what: Gap) -> Trouble {
        Trouble::Unsupported(Unsupported::new(self.module, self.formula.term(id).origin, what))
    }

    /// Scratch memory.
    pub(super) fn temp(&mut self, bytes: usize) -> ArraySlot {
        let slot = ArraySlot::Temp(self.plan.temp_bytes);
        self.plan.temp_bytes += bytes.next_multiple_of(64);
        slot
    }

    /// Where a term is to be written.
    pub(super) fn target(&mut self, id: TermId) -> ArraySlot {
        let term = self.formula.term(id);
        match self.targets.get(&id) {
            Some(&output) => ArraySlot::Output(output),
            None => self.temp(term.len() * term.dtype.size()),
        }
    }

    /// Where to write each result of a term with several.
    pub(super) fn part_targets(&mut self, whole: TermId, kinds: &[ArrayType]) -> Vec<ArraySlot> {
        let mut slots = Vec::with_capacity(kinds.len());
        for (index, kind) in kinds.iter().enumerate() {
            let slot = match self.parts.get(&(whole, index)).copied() {
                Some(part) => {
                    let slot = self.target(part);
                    self.slots[part.0 as usize] = Some(slot);
                    slot
                }
                None => self.temp(kind.bytes()),
            };
            slots.push(slot);
        }
        slots
    }

    /// The number of a term's results.
    pub(super) fn part_count(&self, whole: TermId) -> usize {
        (0..).take_while(|&index| self.parts.contains_key(&(whole, index))).count()
    }

    /// The types of the parts of a term.
    pub(super) fn part_kinds(&self, whole: TermId) -> Vec<ArrayType> {
        let kind = |index| {
            let term = self.formula.term(self.parts[&(whole, index)]);
            ArrayType { dtype: term.dtype, dims: term.dims.clone() }
        };
        (0..self.part_count(whole)).map(kind).collect()
    }

    /// Makes sure that a term is in memory, dense.
    pub(super) fn make(&mut self, id: TermId) -> Result<ArraySlot, Trouble> {
        if let Some(slot) = self.slot(id) {
            return Ok(slot);
        }
        let slot = self.made(id)?;
        self.slots[id.0 as usize] = Some(slot);
        Ok(slot)
    }

    fn made(&mut self, id: TermId) -> Result<ArraySlot, Trouble> {
        let term = self.formula.term(id);
        let is_output = self.targets.contains_key(&id);
        match &term.op {
            Op::Constant(bytes) => {
                let mut memory = AlignedBytes::zeros(bytes.len());
                memory.bytes_mut().copy_from_slice(bytes);
                self.plan.constants.push(memory);
                return Ok(ArraySlot::Constant(self.plan.constants.len() - 1));
            }
            Op::Reshape | Op::Reinterpret => {
                let slot = self.make(term.args[0])?;
                if !is_output || matches!(slot, ArraySlot::Output(_)) {
                    return Ok(slot);
                }
                let to = self.target(id);
                let from = Strided { slot, base: 0, by: strides(&term.dims) };
                self.push(Box::new(CopyStage::new(&term.dims, from, to, term.dtype.size())));
                return Ok(to);
            }
            Op::Part(index) => {
                let whole = term.args[0];
                if self.slots[whole.0 as usize].is_none() {
                    self.slots[whole.0 as usize] = Some(self.stage(whole)?);
                }
                // A term without declared parts has one.
                return match self.slots[id.0 as usize] {
                    Some(slot) => Ok(slot),
                    None if *index == 0 => self.make(whole),
                    None => Err(self.fail(id, Gap::Shape)),
                };
            }
            _ => {}
        }
        // Custom calls may have side effects.
        if term.len() == 0 && self.part_count(id) == 0 && !matches!(term.op, Op::Custom(_)) {
            return Ok(self.target(id));
        }
        self.stage(id)
    }

    /// Adds the stage that makes a term.
    fn stage(&mut self, id: TermId) -> Result<ArraySlot, Trouble> {
        let term = self.formula.term(id);
        if is_elementwise(&term.op, term.dtype) || matches!(term.op, Op::Iota(_)) {
            return self.looped(id);
        }
        match &term.op {
            // Computed in its own layout, then transposed: one copy in any case.
            Op::Transpose(order)
                if order.last().is_some_and(|last| last + 1 != order.len())
                    && self.computes(id) =>
            {
                self.make(term.args[0])?;
                self.stage(id)
            }
            // What is computed is written where it belongs.
            Op::Pad(_) | Op::Concatenate(_) if term.args.iter().any(|&arg| self.computes(arg)) => {
                self.looped(id)
            }
            Op::Broadcast(_) | Op::Transpose(_) | Op::Slice { .. } | Op::Reverse(_) => {
                match self.computes(id) {
                    true => self.looped(id),
                    false => {
                        let Some(from) = self.strided(id)? else { return self.looped(id) };
                        let to = self.target(id);
                        self.push(Box::new(CopyStage::new(
                            &term.dims,
                            from,
                            to,
                            term.dtype.size(),
                        )));
                        Ok(to)
                    }
                }
            }
            Op::Reduce { .. } => reduce::plan(self, id),
            Op::Dot(_) => dot::plan(self, id),
            _ => heavy::plan(self, id),
        }
    }

    fn looped(&mut self, id: TermId) -> Result<ArraySlot, Trouble> {
        let Term { dims, dtype, .. } = self.formula.term(id).clone();
        let Some(regions) = self.regions(id)? else { return heavy::plan(self, id) };
        let to = self.target(id);
        let mut regions = regions.into_iter();
        match (regions.next(), regions.len()) {
            (Some((region, nested)), 0) => {
                let walk = region.walk(&strides(&dims));
                match RowLoop::new(&nested, &walk, dtype) {
                    Some(rows) => {
                        let bodies = vec![RegionBody::Rows(rows)];
                        self.push(Box::new(RegionLoops { bodies, to: (to, dtype.size()) }));
                    }
                    None => self.push(Box::new(ElementLoop::new(nested, to, dtype))),
                }
            }
            (first, _) => {
                let by = strides(&dims);
                let body =
                    |(region, nested): RegionNest| RegionBody::new(nested, region.walk(&by), dtype);
                let bodies = first.into_iter().chain(regions).map(body).collect();
                self.push(Box::new(RegionLoops { bodies, to: (to, dtype.size()) }));
            }
        }
        Ok(to)
    }

    /// The loops that compute a term: one for each region of it that needs its own. `None` if it
    /// must be copied together.
    fn regions(&mut self, id: TermId) -> Result<Option<Vec<RegionNest>>, Trouble> {
        const MOST: usize = 32;
        let dims = self.formula.term(id).dims.clone();
        'again: loop {
            let mut waiting = vec![LoopRegion::whole(nest::loops_of(&dims), dims.len())];
            let (mut found, mut computes) = (Vec::new(), Vec::new());
            while let Some(mut region) = waiting.pop() {
                // Its own stage computes it, regardless of other readers.
                let built = self.nested_in(&mut region, |nest| {
                    let map = nest.root_map(dims.len());
                    nest.root(id, map)
                })?;
                match built {
                    NestedPart::Whole(nested, terms) => {
                        let total: usize = nested.extents.iter().product();
                        computes.extend(terms.into_iter().map(|term| (term, total)));
                        found.push((region, nested));
                    }
                    NestedPart::Part(_, Some(cut)) if found.len() + waiting.len() < MOST => {
                        waiting.extend(region.cut(cut));
                    }
                    NestedPart::Part(term, _) if term == id => return Ok(None),
                    NestedPart::Part(term, _) => {
                        self.make(term)?;
                        continue 'again;
                    }
                }
            }
            if let Some(term) = self.too_often(&computes, id) {
                self.make(term)?;
                continue;
            }
            let computes: Vec<TermId> = computes.into_iter().map(|(term, _)| term).collect();
            self.note(&computes, id)?;
            return Ok(Some(found));
        }
    }

    /// A term of which loops compute more elements than it has: more than twice as many, or any if
    /// they are dear.
    fn too_often(&self, computes: &[(TermId, usize)], root: TermId) -> Option<TermId> {
        let mut elements: BTreeMap<TermId, usize> = BTreeMap::new();
        computes.iter().for_each(|&(term, total)| *elements.entry(term).or_default() += total);
        let is_too_often = |&(&id, &count): &(&TermId, &usize)| {
            let term = self.formula.term(id);
            let most = if is_dear(&term.op) { term.len() } else { 2 * term.len() };
            id != root && count > most
        };
        elements.iter().find(is_too_often).map(|(&id, _)| id)
    }

    /// Builds a nest, and everything that it requires first.
    pub(super) fn nested<R>(
        &mut self,
        loops: Vec<nest::LoopDim>,
        build: impl Fn(&mut Nest<'_, '_>) -> Result<R, Halt>,
    ) -> Result<(Nested<R>, Vec<TermId>), Trouble> {
        let mut region = LoopRegion::whole(loops, 0);
        loop {
            match self.nested_in(&mut region, &build)? {
                NestedPart::Whole(nested, computes) => return Ok((nested, computes)),
                NestedPart::Part(term, _) => {
                    self.make(term)?;
                }
            }
        }
    }

    /// The same for a part of an array, unless it must be cut.
    fn nested_in<R>(
        &mut self,
        region: &mut LoopRegion,
        build: impl Fn(&mut Nest<'_, '_>) -> Result<R, Halt>,
    ) -> Result<NestedPart<R>, Trouble> {
        loop {
            let mut nest = Nest::new(self, region.clone());
            match build(&mut nest) {
                Ok(result) => {
                    let computes = std::mem::take(&mut nest.computes);
                    let extents = nest.loops.iter().map(|dim| dim.extent).collect();
                    let roots = nest.loops.iter().map(|dim| dim.root).collect();
                    let (draft, fetches) = (nest.draft, nest.fetches);
                    let nested = Nested { draft, fetches, extents, roots, result };
                    return Ok(NestedPart::Whole(nested, computes));
                }
                Err(Halt::Cut { dim, inner }) => nest::cut(&mut region.loops, dim, inner),
                Err(Halt::Part { term, cut }) => return Ok(NestedPart::Part(term, cut)),
                Err(Halt::Make(term)) => {
                    self.make(term)?;
                }
                Err(Halt::Turn(turned)) => self.turn(turned),
                Err(Halt::Fail(term, what)) => return Err(self.fail(term, what)),
            }
        }
    }

    /// Copies an array into the sequence of a loop.
    fn turn(&mut self, turned: nest::Turned) {
        let to = self.temp(turned.walk.dims.iter().product::<usize>() * turned.size);
        let from =
            Strided { slot: turned.slot, base: turned.walk.base, by: turned.walk.by.clone() };
        self.push(Box::new(CopyStage::new(&turned.walk.dims, from, to, turned.size)));
        self.turned.insert(turned, to);
    }

    /// Where the copy of an array in the order of a loop is.
    pub(super) fn turned(&self, turned: &nest::Turned) -> Option<ArraySlot> {
        self.turned.get(turned).copied()
    }

    /// Records what a stage computes without keeping it; fails if it was computed before and is
    /// expensive.
    pub(super) fn note(&mut self, computes: &[TermId], root: TermId) -> Result<(), Trouble> {
        let is_again = |id: &TermId| *id != root && self.inlined.contains(id);
        let again: BTreeSet<TermId> = computes.iter().copied().filter(is_again).collect();
        if again.len() > CHEAP || again.iter().any(|&id| is_dear(&self.formula.term(id).op)) {
            // Only what others read: the rest is on the way there.
            let inner: HashSet<TermId> =
                again.iter().flat_map(|&id| self.formula.term(id).args.clone()).collect();
            return Err(Trouble::Force(
                again.into_iter().filter(|id| !inner.contains(id)).collect(),
            ));
        }
        self.inlined.extend(computes.iter().copied().filter(|id| *id != root));
        Ok(())
    }

    /// A term as elements of what is in memory, or is made so; `None` where it is not such.
    pub(super) fn strided(&mut self, id: TermId) -> Result<Option<Strided>, Trouble> {
        let term = self.formula.term(id);
        let dense = |slot| Strided { slot, base: 0, by: strides(&term.dims) };
        if let Some(slot) = self.memory(id) {
            return Ok(Some(dense(slot)));
        }
        let Some(&arg) = term.args.first() else { return Ok(None) };
        if self.targets.contains_key(&arg) {
            self.make(arg)?;
        }
        let inner = match &term.op {
            Op::Constant(_) => None,
            Op::Broadcast(_)
            | Op::Transpose(_)
            | Op::Slice { .. }
            | Op::Reverse(_)
            | Op::Reshape => match self.strided(arg)? {
                Some(strided) => Some(strided),
                None => {
                    let slot = self.make(arg)?;
                    Some(Strided { slot, base: 0, by: strides(&self.formula.term(arg).dims) })
                }
            },
            _ => None,
        };
        let Some(mut inner) = inner else { return Ok(None) };
        match &term.op {
            Op::Broadcast(dims) => {
                let mut by = vec![0; term.dims.len()];
                dims.iter().zip(&inner.by).for_each(|(&dim, &step)| by[dim] = step);
                inner.by = by;
            }
            Op::Transpose(order) => inner.by = order.iter().map(|&dim| inner.by[dim]).collect(),
            Op::Reshape => {
                let from = &self.formula.term(arg).dims;
                let Some(by) = reshaped(from, &inner.by, &term.dims) else { return Ok(None) };
                inner.by = by;
            }
            Op::Slice { start, stride } => {
                for (dim, (&start, &stride)) in start.iter().zip(stride).enumerate() {
                    inner.base += start as i64 * inner.by[dim];
                    inner.by[dim] *= stride as i64;
                }
            }
            Op::Reverse(dims) => {
                for &dim in dims {
                    inner.base += (term.dims[dim] as i64 - 1) * inner.by[dim];
                    inner.by[dim] = -inner.by[dim];
                }
            }
            _ => {}
        }
        Ok(Some(inner))
    }

    pub(super) fn add(&mut self, stage: impl KernelStage + 'static) {
        self.push(Box::new(stage));
    }

    /// Scratch memory for an operand or a result in another form.
    pub(super) fn aside(&mut self, bytes: usize) -> ArraySlot {
        let before = self.plan.temp_bytes;
        let slot = self.temp(bytes);
        self.plan.helper_bytes += self.plan.temp_bytes - before;
        slot
    }

    /// Adds a stage that brings it into that form.
    pub(super) fn add_helper(&mut self, stage: impl KernelStage + 'static) {
        self.plan.helpers += 1;
        self.add(stage);
    }
}

impl Strided {
    /// Whether neighbours in memory are the same as in a dense array of these dimensions. The
    /// matrix library then sums in the same order.
    pub(super) fn is_like_dense(&self, dims: &[usize]) -> bool {
        let mut steps = self.by.iter().zip(strides(dims)).zip(dims);
        steps.all(|((&by, dense), &dim)| dim == 1 || (by == 1) == (dense == 1))
    }

    /// Whether its elements are all of those in its memory, in any sequence.
    pub(super) fn covers(&self, dims: &[usize]) -> bool {
        let last: i64 = dims.iter().zip(&self.by).map(|(&dim, by)| (dim as i64 - 1) * by).sum();
        let is_forward = self.by.iter().zip(dims).all(|(&by, &dim)| by > 0 || dim == 1);
        self.base == 0 && is_forward && last + 1 == dims.iter().product::<usize>() as i64
    }
}

/// The steps of an array in other dimensions, if those can be walked.
fn reshaped(from: &[usize], by: &[i64], to: &[usize]) -> Option<Vec<i64>> {
    let mut steps = vec![0; to.len()];
    for (old, new) in common_pieces(from, to) {
        let wide: Vec<usize> = old.filter(|&dim| from[dim] != 1).collect();
        let is_one = |pair: &[usize]| by[pair[0]] == by[pair[1]] * from[pair[1]] as i64;
        if !wide.windows(2).all(is_one) {
            return None;
        }
        let mut step = wide.last().map_or(0, |&dim| by[dim]);
        for dim in new.rev() {
            steps[dim] = step;
            step *= to[dim] as i64;
        }
    }
    Some(steps)
}

/// An expression that is ready: what to compute, and along what.
pub(super) struct Nested<R> {
    pub(super) draft: super::program::ProgramDraft,
    pub(super) fetches: Vec<nest::Fetch>,
    pub(super) extents: Vec<usize>,
    /// The dimension of the array that is walked, of each loop.
    pub(super) roots: Vec<usize>,
    pub(super) result: R,
}

/// What became of an expression along a region.
enum NestedPart<R> {
    /// It is ready, and computes these terms.
    Whole(Nested<R>, Vec<TermId>),
    /// A term is not the same along all of it: the region can be cut, or the term materialised.
    Part(TermId, Option<RegionCut>),
}

/// A region of an array, and what is computed along it.
type RegionNest = (LoopRegion, Nested<Register>);

/// Why planning stopped.
pub(super) enum Trouble {
    Unsupported(Unsupported),
    /// To be started again with these terms kept.
    Force(Vec<TermId>),
}

/// Whether computing it again costs more than reading it.
fn is_dear(op: &Op) -> bool {
    use halflap_hlo::Opcode as O;
    match op {
        Op::Unary(opcode) => !matches!(
            opcode,
            O::Negate | O::Abs | O::Not | O::Sign | O::Floor | O::Ceil | O::Real | O::Imag
        ),
        Op::Binary(opcode) => matches!(opcode, O::Divide | O::Power | O::Remainder | O::Atan2),
        _ => false,
    }
}
