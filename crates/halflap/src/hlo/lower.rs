//! A computation to a graph.
//!
//! Instructions that do nothing at run time (parameters, constants, tuples and their elements,
//! bitcasts) are no nodes: whoever writes an order puts them where they can stand first. A
//! synchronous collective becomes two nodes, its start and its end. Loops, calls and conditionals
//! are single nodes that take as long as what they run. docs/hlo.md says which buffers there are.

use std::collections::BTreeMap;

use super::storage::{Origin, Slot, Storage};
use super::values::{Content, Keep, Value, Values};
use super::work::{Works, total_size};
use super::{Module, Opcode, Phase, ReplicaGroups, Shape, split};
use crate::graph::{
    BufferParts, Collective, DepKinds, Graph, GraphError, GroupKind, GroupParts, OpKind, OpParts, Parts,
};
use crate::ids::{BufId, ComputationId, GroupId, Id, IdVec, InstrId, OpId};
use crate::units::{Bytes, Nanos};

/// Which part of an instruction a node is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// All of it.
    Whole,
    /// The start of a synchronous collective.
    Start,
    /// The end of a synchronous collective.
    Done,
}

/// What a node stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The instruction.
    pub instr: InstrId,
    /// Which part of it.
    pub part: Part,
}

/// What whoever calls a computation must know of it.
#[derive(Clone, Debug, Default)]
pub struct Callee {
    /// How long it takes.
    pub step_time: Nanos,
    /// What it needs beyond what it is given and what it leaves.
    pub transient: Bytes,
    /// For each leaf of its result, the leaf of its parameters that it is.
    pub passed_on: Vec<Option<usize>>,
    /// Whether it does more than make its result.
    pub has_side_effects: bool,
}

/// A computation as a graph.
#[derive(Clone, Debug)]
pub struct Lowered {
    /// The graph; nodes have the names of instructions.
    pub graph: Graph,
    /// What each node stands for.
    pub places: IdVec<OpId, Place>,
    /// The loops, calls and conditionals in it.
    pub calls: Vec<Call>,
    /// What the parameters take.
    pub inputs: Bytes,
    /// What the result takes, where it is no parameter.
    pub results: Bytes,
    /// For each leaf of the result, the leaf of the parameters that it is.
    pub passed_on: Vec<Option<usize>>,
    /// Whether it does more than make its result.
    pub has_side_effects: bool,
    /// Where its values are kept.
    pub storage: Storage,
}

/// A node that runs other computations.
#[derive(Clone, Debug)]
pub struct Call {
    /// The node.
    pub op: OpId,
    /// What it runs, and how often. Of a conditional's branches the longest counts.
    pub callees: Vec<(ComputationId, f64)>,
    /// Whether it is a conditional.
    pub is_choice: bool,
    /// Whether it is a loop whose trip count is not known, and taken as one.
    pub is_guess: bool,
}

/// What a node is, as far as its values are concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Plain,
    Start,
    End,
}

/// The nodes of a computation, before they have dependencies.
pub(super) struct Steps {
    pub(super) places: Vec<Place>,
    roles: Vec<Role>,
    /// For each instruction of the computation, the node after which its values are there.
    pub(super) done: Vec<Option<u32>>,
    /// The node that starts it, if it is two.
    pub(super) start: Vec<Option<u32>>,
    pub(super) is_loop_body: bool,
}

impl Steps {
    fn new(module: &Module, computation: ComputationId) -> Steps {
        let len = module.instructions(computation).len();
        let base = module.instructions(computation).next().map_or(0, |first| first.index());
        // What others must wait for is a node even if it does nothing.
        let mut bound = vec![false; len];
        for instr in module.instructions(computation) {
            for before in module.control_predecessors(instr) {
                (bound[instr.index() - base], bound[before.index() - base]) = (true, true);
            }
            // Whoever takes one element of a tuple can stand only after the tuple, and so after all that
            // is in it.
            let is_element = module.instruction(instr).opcode == Opcode::GetTupleElement;
            for operand in
                module.operands(instr).iter().filter(|operand| is_element || !module.path(operand).is_empty())
            {
                bound[operand.of.index() - base] |= module.instruction(operand.of).opcode == Opcode::Tuple;
            }
        }
        let is_body = |instr: InstrId| {
            module.instruction(instr).opcode == Opcode::While
                && module.computation_in(instr, "body") == Some(computation)
        };
        let is_loop_body = (0..module.len()).map(InstrId::from_index).any(is_body);
        let (done, start) = (vec![None; len], vec![None; len]);
        let mut steps = Steps { places: Vec::new(), roles: Vec::new(), done, start, is_loop_body };
        for instr in module.instructions(computation) {
            let index = instr.index() - base;
            let opcode = module.instruction(instr).opcode;
            if opcode.is_sync_collective() {
                steps.start[index] = Some(steps.push(instr, Part::Start, Role::Start));
                steps.done[index] = Some(steps.push(instr, Part::Done, Role::End));
            } else if bound[index] || !is_free(module, instr) {
                let role = match opcode.phase() {
                    Some(Phase::Start) => Role::Start,
                    Some(Phase::Done) => Role::End,
                    _ => Role::Plain,
                };
                steps.done[index] = Some(steps.push(instr, Part::Whole, role));
            }
        }
        steps
    }

    fn push(&mut self, instr: InstrId, part: Part, role: Role) -> u32 {
        self.places.push(Place { instr, part });
        self.roles.push(role);
        self.places.len() as u32 - 1
    }

    /// The instruction that starts what a node ends.
    pub(super) fn started_by(&self, module: &Module, place: &Place) -> Option<InstrId> {
        if place.part == Part::Done {
            return Some(place.instr);
        }
        if module.instruction(place.instr).opcode.phase() != Some(Phase::Done) {
            return None;
        }
        let mut start = module.operands(place.instr).first()?.of;
        while module.instruction(start).opcode.phase() != Some(Phase::Start) {
            start = module.operands(start).first()?.of;
        }
        Some(start)
    }
}

/// Whether an instruction does nothing at run time.
pub(super) fn is_free(module: &Module, instr: InstrId) -> bool {
    let opcode = module.instruction(instr).opcode;
    match opcode {
        Opcode::Parameter | Opcode::Constant | Opcode::GetTupleElement | Opcode::Tuple | Opcode::Bitcast => true,
        Opcode::AfterAll => module.operands(instr).is_empty(),
        _ => opcode.phase() == Some(Phase::Update),
    }
}

/// Makes a graph of a computation. `callees` knows the computations that it runs: loop bodies and
/// conditions, branches, callees.
pub fn lower(
    module: &Module,
    computation: ComputationId,
    callees: &dyn Fn(ComputationId) -> Option<Callee>,
) -> Result<Lowered, GraphError> {
    let steps = Steps::new(module, computation);
    let values = Values::find(module, computation, &steps, callees);
    let mut lowering = Lowering {
        module,
        computation,
        steps: &steps,
        values: &values,
        callees,
        parts: Parts::default(),
        tokens: vec![None; steps.places.len()],
        groups: Groups::default(),
        works: Works::new(module),
        calls: Vec::new(),
        has_side_effects: false,
    };
    lowering.add_steps();
    let buffers = lowering.add_buffers();
    lowering.add_deps(&buffers);
    let storage = lowering.storage(&buffers);
    lowering.parts.groups = lowering.groups.into_parts();
    let result = |content: &&Content| content.is_result && content.keep == Keep::Ours && content.space == 0;
    let inputs =
        |content: &&Content| content.writer.is_none() && module.instruction(content.instr).opcode == Opcode::Parameter;
    let in_memory = |content: &Content| if content.space == 0 { content.size } else { Bytes::ZERO };
    Ok(Lowered {
        graph: Graph::new(lowering.parts)?,
        places: steps.places.iter().copied().collect(),
        calls: lowering.calls,
        inputs: values.contents.iter().filter(inputs).map(in_memory).sum(),
        results: values.contents.iter().filter(result).map(in_memory).sum(),
        passed_on: values.passed_on(module, computation),
        has_side_effects: lowering.has_side_effects,
        storage,
    })
}

struct Lowering<'a> {
    module: &'a Module,
    computation: ComputationId,
    steps: &'a Steps,
    values: &'a Values,
    callees: &'a dyn Fn(ComputationId) -> Option<Callee>,
    parts: Parts,
    /// For each node, a buffer of no size that stands for its having run.
    tokens: Vec<Option<BufId>>,
    groups: Groups,
    works: Works,
    calls: Vec<Call>,
    has_side_effects: bool,
}

impl Lowering<'_> {
    fn add_steps(&mut self) {
        for index in 0..self.steps.places.len() {
            let place = self.steps.places[index];
            let op = self.step(index, place, split::name(self.module, place));
            self.parts.ops.push(op);
        }
    }

    /// A node without its dependencies and buffers.
    fn step(&mut self, index: usize, place: Place, name: String) -> OpParts {
        let mut op = OpParts {
            name,
            kind: OpKind::Compute,
            runtime: None,
            flops: None,
            bytes: None,
            gemm_like: false,
            collective: None,
            outputs: Vec::new(),
            deps: Vec::new(),
            fused: vec![self.module.opcode_name(place.instr).to_owned()],
            source: self.module.source(place.instr),
            kernel: None,
        };
        match self.steps.roles[index] {
            Role::Start => {
                op.kind = OpKind::AsyncCollective;
                op.collective = Some(self.communication(place.instr));
            }
            Role::End => {
                op.kind = OpKind::Wait;
                op.runtime = Some(Nanos::ZERO);
            }
            Role::Plain => self.compute(place.instr, &mut op),
        }
        op
    }

    /// What runs on the compute stream: how much it does, or how long it takes.
    fn compute(&mut self, instr: InstrId, op: &mut OpParts) {
        let module = self.module;
        let opcode = module.instruction(instr).opcode;
        if matches!(opcode, Opcode::While | Opcode::Call | Opcode::Conditional) {
            op.runtime = Some(self.call(instr));
            return;
        }
        if let Some(inner) = fused_collective(module, instr) {
            op.kind = OpKind::SyncCollective;
            op.collective = Some(self.communication(inner));
            return;
        }
        let work = self.works.of(module, instr);
        op.gemm_like = work.gemm_like;
        match costs_nothing(module, instr) {
            true => op.runtime = Some(Nanos::ZERO),
            false => (op.flops, op.bytes) = (Some(work.flops), Some(work.bytes)),
        }
    }

    /// How long a loop, call or conditional takes; notes what it runs.
    fn call(&mut self, instr: InstrId) -> Nanos {
        let module = self.module;
        let is_loop = module.instruction(instr).opcode == Opcode::While;
        let trips = if is_loop { super::trip_count(module, instr) } else { Some(1) };
        let times = trips.map_or(1.0, |trips| trips as f64);
        let is_choice = module.instruction(instr).opcode == Opcode::Conditional;
        let callees: Vec<(ComputationId, f64)> = module.called(instr).iter().map(|&callee| (callee, times)).collect();
        let time = |&(callee, times): &(ComputationId, f64)| {
            (self.callees)(callee).map_or(Nanos::ZERO, |callee| callee.step_time * times)
        };
        let total = match is_choice {
            true => callees.iter().map(time).fold(Nanos::ZERO, Nanos::max),
            false => callees.iter().map(time).sum(),
        };
        let op = OpId::from_index(self.parts.ops.len());
        self.calls.push(Call { op, callees, is_choice, is_guess: trips.is_none() });
        total.min(Nanos::LONGEST)
    }

    /// What goes over a link or between memories: among whom, and how much.
    fn communication(&mut self, instr: InstrId) -> Collective {
        let module = self.module;
        let (inner, is_collective) = started(module, instr);
        let name = module.opcode_name(inner).trim_end_matches("-start").to_owned();
        let sent: Bytes =
            module.operands(inner).iter().map(|operand| total_size(module, module.operand_shape(operand))).sum();
        let bytes = sent.max(received(module, inner));
        if is_collective {
            let groups = module.replica_groups(inner);
            let group_size = groups.group_size();
            return Collective { op: name, group: self.groups.ranks(groups), group_size, bytes };
        }
        let is_host = module.attribute(inner, "is_host_transfer") == Some("true") || crosses_to_host(module, instr);
        let op = if is_host { "host-transfer".to_owned() } else { name };
        let group_size = if is_host { 1 } else { 2 };
        Collective { group: self.groups.transfer(&op), op, group_size, bytes }
    }

    /// Adds a buffer for every place in memory; gives each one's id.
    fn add_buffers(&mut self) -> Vec<Option<BufId>> {
        let mut holds: Vec<Vec<u32>> = vec![Vec::new(); self.values.buffers as usize];
        for (index, content) in self.values.contents.iter().enumerate() {
            holds[content.buffer as usize].push(index as u32);
        }
        let mut made: Vec<u32> = vec![0; self.steps.places.len() + 1];
        holds.iter().map(|contents| self.add_buffer(contents, &mut made)).collect()
    }

    fn add_buffer(&mut self, contents: &[u32], made: &mut [u32]) -> Option<BufId> {
        let contents: Vec<&Content> = contents.iter().map(|&index| &self.values.contents[index as usize]).collect();
        let first = *contents.first()?;
        let size = if first.space == 0 { first.size } else { Bytes::ZERO };
        if first.writer.is_none() && size == Bytes::ZERO {
            return None;
        }
        let writers = contents.iter().skip(1).filter_map(|content| content.writer);
        let mut users: Vec<u32> =
            contents.iter().flat_map(|content| content.readers.iter().copied()).chain(writers).collect();
        users.retain(|&user| Some(user) != first.writer);
        users.sort_unstable();
        users.dedup();
        let is_kept =
            contents.iter().any(|content| content.is_result || matches!(content.keep, Keep::Caller | Keep::Exchanged));
        let id = BufId::from_index(self.parts.buffers.len());
        let number = self.name_buffer(first, made);
        self.parts.buffers.push(BufferParts {
            name: number,
            maker: first.writer.map(|writer| OpId::from_index(writer as usize)),
            size_alloc: size,
            size_free: size,
            users: users.into_iter().map(|user| OpId::from_index(user as usize)).collect(),
            output: is_kept,
        });
        if let Some(writer) = first.writer {
            self.parts.ops[OpId::from_index(writer as usize)].outputs.push(id);
        }
        Some(id)
    }

    /// `all-gather.3`, `fusion.1#2`: the instruction, and which of its buffers.
    fn name_buffer(&self, content: &Content, made: &mut [u32]) -> String {
        let name = self.module.instruction_name(content.instr);
        let count = match content.writer {
            Some(writer) => &mut made[writer as usize],
            // A parameter's leaves are told apart by the content that each is.
            None => {
                let leaf = self.values.of(self.module, content.instr);
                let place =
                    leaf.iter().position(|value| std::ptr::eq(&self.values.contents[value.content as usize], content));
                return match (leaf.len(), place) {
                    (2.., Some(place)) => format!("{name}#{place}"),
                    _ => name.to_owned(),
                };
            }
        };
        *count += 1;
        if *count == 1 { name.to_owned() } else { format!("{name}#{}", *count - 1) }
    }

    /// Where values are kept: the places in memory, in the sequence of `buffers`.
    fn storage(&self, buffers: &[Option<BufId>]) -> Storage {
        let mut first: Vec<Option<&Content>> = vec![None; buffers.len()];
        for content in self.values.contents.iter().rev() {
            first[content.buffer as usize] = Some(content);
        }
        let slot = |(content, &buffer): (&Option<&Content>, &Option<BufId>)| {
            let origin = match content.map(|content| self.module.instruction(content.instr).opcode) {
                Some(Opcode::Parameter) => Origin::Parameter,
                Some(Opcode::Constant) => Origin::Constant,
                _ => Origin::Made,
            };
            let size = buffer.map_or(Bytes::ZERO, |buffer| self.parts.buffers[buffer].size_alloc);
            let own = |content: &&Content| self.name_buffer(content, &mut vec![0; self.steps.places.len()]);
            let name = match buffer {
                Some(buffer) => self.parts.buffers[buffer].name.clone(),
                None => content.as_ref().map_or(String::new(), own),
            };
            Slot { name, origin, buffer, size }
        };
        let slots = first.iter().zip(buffers).map(slot).collect();
        self.values.storage(self.module, self.computation, slots)
    }

    fn add_deps(&mut self, buffers: &[Option<BufId>]) {
        for index in 0..self.steps.places.len() {
            self.add_data(index, buffers);
            self.add_controls(index);
        }
        for &(writer, reader) in &self.values.after {
            self.bind(writer as usize, reader as usize);
        }
        self.chain_side_effects();
        self.add_transients();
    }

    /// What a node reads.
    fn add_data(&mut self, index: usize, buffers: &[Option<BufId>]) {
        let module = self.module;
        let place = self.steps.places[index];
        if place.part == Part::Done {
            let base = module.instructions(self.computation).next().map_or(0, |first| first.index());
            if let Some(start) = self.steps.start[place.instr.index() - base] {
                self.depend(index, start as usize, DepKinds { data: true, ..DepKinds::default() });
            }
            return;
        }
        for operand in module.operands(place.instr) {
            // A value without leaves still has a maker.
            if let Some(maker) = self.done_step(operand.of) {
                self.depend(index, maker, DepKinds { data: true, ..DepKinds::default() });
            }
            for value in self.values.of_operand(module, operand).to_vec() {
                self.read(index, value, buffers);
            }
        }
    }

    fn read(&mut self, index: usize, value: Value, buffers: &[Option<BufId>]) {
        let Some(maker) = value.maker else { return };
        let kinds = DepKinds { data: true, ..DepKinds::default() };
        let content = &self.values.contents[value.content as usize];
        let made_it = |buffer: &BufId| self.parts.buffers[*buffer].maker == Some(OpId::from_index(maker as usize));
        match buffers[content.buffer as usize].filter(made_it) {
            Some(buffer) => self.parts.ops[OpId::from_index(index)].deps.push((buffer, kinds)),
            None => self.depend(index, maker as usize, kinds),
        }
    }

    /// The node after which an instruction's values are there, if it is one.
    fn done_step(&self, instr: InstrId) -> Option<usize> {
        let base = self.module.instructions(self.computation).next().map_or(0, |first| first.index());
        self.steps.done[instr.index() - base].map(|step| step as usize)
    }

    fn add_controls(&mut self, index: usize) {
        let place = self.steps.places[index];
        if place.part == Part::Done {
            return;
        }
        let before: Vec<InstrId> = self.module.control_predecessors(place.instr).collect();
        for instr in before {
            if let Some(step) = self.done_step(instr) {
                self.bind(index, step);
            }
        }
    }

    /// Makes a node run after another one, whoever reads what.
    fn bind(&mut self, after: usize, before: usize) {
        if after != before {
            self.depend(after, before, DepKinds { weak: true, ..DepKinds::default() });
        }
    }

    /// Makes a node depend on another one's having run.
    fn depend(&mut self, node: usize, on: usize, kinds: DepKinds) {
        let (node, maker) = (OpId::from_index(node), OpId::from_index(on));
        let token = match self.tokens[on] {
            Some(token) => token,
            None => {
                let name = format!("{}()", self.parts.ops[maker].name);
                let token = self.parts.buffers.push(BufferParts {
                    name,
                    maker: Some(maker),
                    size_alloc: Bytes::ZERO,
                    size_free: Bytes::ZERO,
                    users: Vec::new(),
                    output: false,
                });
                self.parts.ops[maker].outputs.push(token);
                self.tokens[on] = Some(token);
                token
            }
        };
        self.parts.buffers[token].users.push(node);
        self.parts.ops[node].deps.push((token, kinds));
    }

    /// What does more than make its result stays in sequence.
    fn chain_side_effects(&mut self) {
        let mut last = None;
        for index in 0..self.steps.places.len() {
            if !self.does_more(self.steps.places[index].instr) {
                continue;
            }
            self.has_side_effects = true;
            if let Some(last) = last {
                self.bind(index, last);
            }
            last = Some(index);
        }
    }

    fn does_more(&self, instr: InstrId) -> bool {
        let module = self.module;
        match module.instruction(instr).opcode {
            Opcode::Infeed | Opcode::Outfeed | Opcode::Rng | Opcode::RngGetAndUpdateState => true,
            Opcode::CustomCall => module.attribute(instr, "custom_call_has_side_effect") == Some("true"),
            Opcode::While | Opcode::Call | Opcode::Conditional => {
                let callees = module.called(instr).iter();
                callees.filter_map(|&callee| (self.callees)(callee)).any(|callee| callee.has_side_effects)
            }
            _ => false,
        }
    }

    /// What a loop, call or conditional needs while it runs, and no longer.
    fn add_transients(&mut self) {
        for call in &self.calls {
            let needs = |&(callee, _): &(ComputationId, f64)| (self.callees)(callee).map(|callee| callee.transient);
            let size = call.callees.iter().filter_map(needs).max().unwrap_or(Bytes::ZERO);
            if size <= Bytes::ZERO {
                continue;
            }
            let name = format!("{}(inside)", self.parts.ops[call.op].name);
            let (maker, users) = (Some(call.op), Vec::new());
            let buffer = BufferParts { name, maker, size_alloc: size, size_free: size, users, output: false };
            let id = self.parts.buffers.push(buffer);
            self.parts.ops[call.op].outputs.push(id);
        }
    }
}

/// What arrives: for a start, the part of its result that is.
fn received(module: &Module, instr: InstrId) -> Bytes {
    let instruction = module.instruction(instr);
    let element = match (instruction.opcode.phase(), instruction.opcode) {
        (Some(Phase::Start), Opcode::AllReduceStart) | (None, _) => None,
        (_, Opcode::CopyStart | Opcode::Recv) => Some(0),
        _ => Some(1),
    };
    match element {
        Some(index) => instruction.shape.parts().get(index).map_or(Bytes::ZERO, |part| total_size(module, part)),
        None => total_size(module, &instruction.shape),
    }
}

/// Whether something moves between the device's and the host's memory.
fn crosses_to_host(module: &Module, instr: InstrId) -> bool {
    let mut leaves = Vec::new();
    module.instruction(instr).shape.leaves(&mut leaves);
    let is_host =
        |leaf: &&Shape| leaf.array().is_some_and(|array| module.layout(array).memory_space == super::HOST_MEMORY);
    leaves.iter().any(is_host)
}

/// What runs when an instruction starts: the instruction itself or, for the generic form, the one that
/// its computation is there for; and whether that is a collective among ranks.
pub fn started(module: &Module, instr: InstrId) -> (InstrId, bool) {
    let wrapped = module.called(instr).first().map(|&inner| module.root(inner));
    let inner = match module.instruction(instr).opcode {
        Opcode::AsyncStart => wrapped.map_or(instr, |root| innermost_collective(module, root)),
        _ => instr,
    };
    let opcode = match module.instruction(inner).opcode {
        Opcode::Wrapped(_, wrapped) => wrapped.opcode(),
        other => other,
    };
    let is_collective = opcode.is_sync_collective()
        || matches!(opcode, Opcode::AllGatherStart | Opcode::AllReduceStart | Opcode::CollectivePermuteStart);
    (inner, is_collective)
}

/// The collective in a computation of the generic form; the root where there is none.
fn innermost_collective(module: &Module, root: InstrId) -> InstrId {
    let mut inside = module.instructions(module.computation_of(root));
    inside.find(|&instr| module.instruction(instr).opcode.is_sync_collective()).unwrap_or(root)
}

/// The collective that a fusion runs from beginning to end. Those that TPUs start in one fusion, carry
/// through others and end in a third are not seen: to us such fusions are compute.
fn fused_collective(module: &Module, instr: InstrId) -> Option<InstrId> {
    if module.instruction(instr).opcode != Opcode::Fusion {
        return None;
    }
    let &computation = module.called(instr).first()?;
    let carries = |inner: InstrId| {
        let target = module.attribute(inner, "custom_call_target").unwrap_or("");
        target.contains("AsyncCollective")
            || module.attribute(inner, "frontend_attributes").is_some_and(|text| text.contains("chain_id"))
    };
    if module.instructions(computation).any(carries) {
        return None;
    }
    module.instructions(computation).find(|&inner| module.instruction(inner).opcode.is_sync_collective())
}

/// Whether an instruction takes no time worth counting: it moves nothing, or works on single numbers.
fn costs_nothing(module: &Module, instr: InstrId) -> bool {
    let instruction = module.instruction(instr);
    let is_small = |shape: &Shape| {
        let mut leaves = Vec::new();
        shape.leaves(&mut leaves);
        leaves.iter().all(|leaf| leaf.array().is_none_or(|array| array.elements() <= 1))
    };
    match instruction.opcode {
        Opcode::OptimizationBarrier
        | Opcode::OptBarrierLong
        | Opcode::AddDependency
        | Opcode::AfterAll
        | Opcode::Domain
        | Opcode::PartitionId
        | Opcode::ReplicaId => true,
        Opcode::CustomCall => {
            let target = module.attribute(instr, "custom_call_target").unwrap_or("").trim_matches('"');
            matches!(target, "ConcatBitcast" | "AssumeGatherIndicesInBound" | "Sharding" | "AllocateBuffer")
        }
        _ if is_free(module, instr) => true,
        _ => {
            let operands = module.operands(instr).iter().all(|operand| is_small(module.operand_shape(operand)));
            operands && is_small(&instruction.shape)
        }
    }
}

/// The process groups and kinds of transfer that are met, each once.
#[derive(Default)]
struct Groups {
    /// By what people call them.
    known: BTreeMap<String, Vec<GroupId>>,
    sets: IdVec<GroupId, Option<ReplicaGroups>>,
    names: IdVec<GroupId, String>,
}

impl Groups {
    fn ranks(&mut self, groups: ReplicaGroups) -> GroupId {
        let name = groups.describe();
        let same = self.known.get(&name).into_iter().flatten();
        let found = same.copied().find(|&id| self.sets[id].as_ref().is_some_and(|known| known.groups == groups.groups));
        if let Some(id) = found {
            return id;
        }
        let others = self.known.entry(name.clone()).or_default();
        let unique = if others.is_empty() { name } else { format!("{name} ({})", others.len() + 1) };
        let id = self.names.push(unique);
        self.sets.push(Some(groups));
        others.push(id);
        id
    }

    fn transfer(&mut self, kind: &str) -> GroupId {
        let name = format!("{kind} transfers");
        if let Some(&[id]) = self.known.get(&name).map(Vec::as_slice) {
            return id;
        }
        let id = self.names.push(name.clone());
        self.sets.push(None);
        self.known.insert(name, vec![id]);
        id
    }

    /// A group's ranks stand for all sets of devices at once: those of the first device, or where
    /// that would hide that two groups must take turns, all.
    fn into_parts(self) -> IdVec<GroupId, GroupParts> {
        let first = |groups: &ReplicaGroups| {
            groups.groups.iter().find(|set| set.contains(&0)).or(groups.groups.first()).cloned()
        };
        let ranks: Vec<Vec<u32>> =
            self.sets.iter().map(|(_, set)| set.as_ref().and_then(first).unwrap_or_default()).collect();
        let mut parts: IdVec<GroupId, GroupParts> = IdVec::default();
        for (id, name) in self.names.iter() {
            let Some(set) = &self.sets[id] else {
                parts.push(GroupParts { name: name.clone(), ranks: Vec::new(), kind: GroupKind::Transfer });
                continue;
            };
            let hides = |(other, there): (GroupId, &Option<ReplicaGroups>)| {
                let share = |there: &ReplicaGroups| {
                    set.share_two(there) && common(&ranks[id.index()], &ranks[other.index()]) < 2
                };
                other != id && there.as_ref().is_some_and(share)
            };
            let ranks = match self.sets.iter().any(hides) {
                true => set.groups.iter().flatten().copied().collect(),
                false => ranks[id.index()].clone(),
            };
            parts.push(GroupParts { name: name.clone(), ranks, kind: GroupKind::Ranks });
        }
        parts
    }
}

fn common(a: &[u32], b: &[u32]) -> usize {
    a.iter().filter(|rank| b.contains(rank)).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::Edges;
    use crate::test_modules::{Dice, random_module};

    /// Runs an order on buffers that hold one content at a time: everybody must find what it reads.
    fn check_contents(
        module: &Module,
        computation: ComputationId,
        callees: &dyn Fn(ComputationId) -> Option<Callee>,
        order: &[OpId],
    ) {
        let steps = Steps::new(module, computation);
        let values = Values::find(module, computation, &steps, callees);
        let mut holds: Vec<Option<u32>> = vec![None; values.buffers as usize];
        for (index, content) in values.contents.iter().enumerate().filter(|(_, content)| content.writer.is_none()) {
            holds[content.buffer as usize] = Some(index as u32);
        }
        for op in order {
            for (index, content) in values.contents.iter().enumerate() {
                // What works in place is its own reader until its end.
                let step = op.index() as u32;
                let own = |held: u32| {
                    values.contents[held as usize].writer.is_some_and(|writer| {
                        steps.started_by(module, &steps.places[step as usize])
                            == Some(steps.places[writer as usize].instr)
                            && module.instruction(steps.places[writer as usize].instr).opcode == Opcode::AllReduceStart
                    })
                };
                let reads = content.readers.contains(&step) && !holds[content.buffer as usize].is_some_and(own);
                let held = holds[content.buffer as usize]
                    .map(|held| module.instruction_name(values.contents[held as usize].instr));
                assert!(
                    !reads || holds[content.buffer as usize] == Some(index as u32),
                    "{:?} reads {} and finds {held:?}\n{}",
                    module.instruction_name(steps.places[op.index()].instr),
                    module.instruction_name(content.instr),
                    module.text()
                );
            }
            for (index, content) in values.contents.iter().enumerate() {
                if content.writer == Some(op.index() as u32) {
                    holds[content.buffer as usize] = Some(index as u32);
                }
            }
        }
        for (index, content) in values.contents.iter().enumerate() {
            assert!(!content.is_result || holds[content.buffer as usize] == Some(index as u32), "{}", module.text());
            assert!(content.keep != Keep::Caller || holds[content.buffer as usize] == Some(index as u32));
        }
    }

    fn random_order(graph: &Graph, dice: &mut Dice) -> Vec<OpId> {
        let mut missing: Vec<usize> = graph.ops().map(|op| graph.preds(op, Edges::Real).len()).collect();
        let mut ready: Vec<OpId> = graph.ops().filter(|op| missing[op.index()] == 0).collect();
        let mut ops = Vec::new();
        while !ready.is_empty() {
            let op = ready.swap_remove(dice.below(ready.len()));
            ops.push(op);
            for &succ in graph.succs(op, Edges::Real) {
                missing[succ.index()] -= 1;
                ready.extend((missing[succ.index()] == 0).then_some(succ));
            }
        }
        ops
    }

    #[test]
    fn nothing_is_overwritten_that_is_still_read() {
        let mut shared = 0;
        for seed in 0..3000 {
            let module = random_module(seed);
            let mut dice = Dice::new(seed + 1);
            let mut known: IdVec<ComputationId, Option<Callee>> = IdVec::filled(None, module.computations().len());
            for computation in module.callees_first() {
                let callees = |callee: ComputationId| known[callee].clone();
                let lowered = lower(&module, computation, &callees).unwrap();
                for _ in 0..3 {
                    check_contents(&module, computation, &callees, &random_order(&lowered.graph, &mut dice));
                }
                let steps = Steps::new(&module, computation);
                let values = Values::find(&module, computation, &steps, &callees);
                shared += values.contents.len() - values.buffers as usize;
                let Lowered { passed_on, has_side_effects, .. } = lowered;
                known[computation] = Some(Callee { passed_on, has_side_effects, ..Callee::default() });
            }
        }
        assert!(shared > 1000, "{shared}");
    }

    fn lowered(text: &str) -> (Module, Lowered) {
        let module = Module::read(text.to_owned()).unwrap_or_else(|error| panic!("{error}"));
        let lowered = lower(&module, module.entry(), &|_| Some(Callee::default())).unwrap();
        (module, lowered)
    }

    /// Name, size, users and whether it stays, of every buffer with a size.
    fn buffers(graph: &Graph) -> Vec<(String, i64, Vec<&str>, bool)> {
        let sized = graph.buffers().filter(|&buffer| graph.size_alloc(buffer) > Bytes::ZERO);
        sized
            .map(|buffer| {
                let users = graph.users(buffer).iter().map(|&user| graph.name(user)).collect();
                (graph.buffer_name(buffer).to_owned(), graph.size_alloc(buffer).0, users, graph.is_output(buffer))
            })
            .collect()
    }

    #[test]
    fn a_synchronous_collective_is_two_nodes() {
        let (_, lowered) = lowered(
            "HloModule m, num_partitions=8
            ENTRY e { p = f32[8] parameter(0)
              n = f32[8] negate(p)
              all-gather.3 = f32[64] all-gather(n), channel_id=1, replica_groups=[1,8]<=[8], dimensions={0}, use_global_device_ids=true, metadata={op_name=\"jit(f)/g\" source_file=\"a/model.py\" source_line=42}
              ROOT r = f32[64] negate(all-gather.3) }",
        );
        let graph = &lowered.graph;
        let names: Vec<&str> = graph.ops().map(|op| graph.name(op)).collect();
        assert_eq!(names, ["n", "all-gather-start.3", "all-gather.3", "r"]);
        let start = graph.find("all-gather-start.3").unwrap();
        assert_eq!((graph.kind(start), graph.source(start)), (OpKind::AsyncCollective, "jit(f)/g model.py:42"));
        let collective = graph.collective(start).unwrap();
        assert_eq!((collective.op.as_str(), collective.group_size, collective.bytes), ("all-gather", 8, Bytes(256)));
        assert_eq!(graph.groups()[collective.group].name, "{0-7}");
        assert_eq!(graph.waits_for(graph.find("all-gather.3").unwrap()), [start]);
        // What is sent lives until the end; the result is written where the gathered value was.
        assert_eq!(
            buffers(graph),
            [
                ("p".to_owned(), 32, vec!["n"], true),
                ("n".to_owned(), 32, vec!["all-gather-start.3", "all-gather.3"], false),
                ("all-gather.3".to_owned(), 256, vec!["all-gather.3", "r"], true),
            ]
        );
    }

    #[test]
    fn donated_inputs_take_results() {
        let text = "HloModule m, input_output_alias={ {}: (0, {}, may-alias) }
            ENTRY e { p = f32[8] parameter(0)\n q = f32[8] parameter(1)
              a = f32[8] add(p, q)\n ROOT r = f32[8] subtract(p, a) }";
        let (_, donated) = lowered(text);
        let all = buffers(&donated.graph);
        assert_eq!(all[0], ("p".to_owned(), 32, vec!["a", "r"], true));
        assert_eq!((all.len(), all[2].0.as_str()), (3, "a"));
        let (_, kept) = lowered(&text.replace("{}: (0, {}, may-alias)", ""));
        // The result is written over the sum, which nobody else reads.
        let names: Vec<String> = buffers(&kept.graph).into_iter().map(|buffer| buffer.0).collect();
        assert_eq!(names, ["p", "q", "a"]);
    }

    #[test]
    fn updates_are_in_place_and_bind_readers() {
        let text = "HloModule m
            ENTRY e { p = f32[8] parameter(0)\n n = f32[8] negate(p)\n s = f32[2] slice(n), slice={[0:2]}
              i = s32[] constant(0)\n u = f32[8] dynamic-update-slice(n, s, i)\n t = f32[2] negate(s)
              ROOT r = (f32[8], f32[2]) tuple(u, t) }";
        let (_, lowered) = lowered(text);
        let graph = &lowered.graph;
        let of = |name| graph.find(name).unwrap();
        assert!(graph.preds(of("u"), Edges::Real).contains(&of("s")));
        assert_eq!(buffers(graph).iter().filter(|buffer| buffer.1 == 32).count(), 2);
        // Read afterwards, it must be kept.
        let read = text.replace("negate(s)", "slice(n), slice={[2:4]}");
        let module = Module::read(read).unwrap();
        let graph = lower(&module, module.entry(), &|_| None).unwrap().graph;
        assert_eq!(buffers(&graph).iter().filter(|buffer| buffer.1 == 32).count(), 3);
    }

    #[test]
    fn streams_by_groups_and_kinds() {
        let (_, lowered) = lowered(
            "HloModule m, num_partitions=4
            add { a = f32[] parameter(0)\n b = f32[] parameter(1)\n ROOT c = f32[] add(a, b) }
            wrapped { p = f32[8] parameter(0)\n ROOT r = f32[8] all-reduce(p), channel_id=3, replica_groups={{0,1},{2,3}}, use_global_device_ids=true, to_apply=add }
            ENTRY e { p = f32[8] parameter(0)
              a = f32[8] all-reduce(p), channel_id=1, replica_groups=[2,2]<=[4], use_global_device_ids=true, to_apply=add
              b = f32[8] all-reduce(p), channel_id=2, replica_groups=[2,2]<=[2,2]T(1,0), use_global_device_ids=true, to_apply=add
              c = ((f32[8]), f32[8], u32[]) async-start(p), calls=wrapped
              u = ((f32[8]), f32[8], u32[]) async-update(c)
              d = f32[8] async-done(u)
              h = (f32[8]{0:S(5)}, f32[8], u32[]) copy-start(p)
              i = f32[8]{0:S(5)} copy-done(h)
              j = ((f32[8]), f32[2]{0:S(1)}, s32[]) slice-start(p), slice={[0:2]}
              k = f32[2]{0:S(1)} slice-done(j)
              ROOT r = (f32[8], f32[8], f32[8]) tuple(a, b, d) }",
        );
        let graph = &lowered.graph;
        let streams = crate::graph::Streams::assign(graph, crate::graph::Assignment::SharedRanks);
        let of = |name: &str| streams.of(graph.find(name).unwrap()).unwrap();
        assert_eq!(of("a-start"), of("c"));
        let all = [of("a-start"), of("b-start"), of("h"), of("j")];
        assert!(all.iter().enumerate().all(|(index, one)| !all[..index].contains(one)), "{all:?}");
        assert_eq!(graph.collective(graph.find("h").unwrap()).unwrap().op, "host-transfer");
        assert_eq!(graph.waits_for(graph.find("d").unwrap()), [graph.find("c").unwrap()]);
        // What is in other memories does not count.
        assert!(buffers(graph).iter().all(|buffer| buffer.0 != "h" && buffer.0 != "j"), "{:?}", buffers(graph));
    }
}
