//! A computation to a graph.
//!
//! Instructions that do nothing at run time (parameters, constants, tuples and their elements,
//! bitcasts) are not nodes: the writer puts them at the first valid position. A synchronous
//! collective becomes two nodes, its start and its end. Loops, calls and conditionals are single
//! nodes that take as long as what they run. docs/hlo.md describes the buffers.

mod groups;
mod spaces;

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::ids::{ComputationId, InstrId};
use crate::storage::{Slot, SlotOrigin, Storage};
use crate::values::{Callee, Content, Keep, Value, Values};
use crate::work::Works;
use crate::{Module, Opcode, Phase, split};
use halflap::collective::{CollectiveKind, Reduction};
use halflap::graph::{
    BufferParts, Collective, DepKinds, Graph, GraphError, OpKind, OpParts, Parts, Provenance,
};
use halflap::ids::{BufId, Id, IdVec, OpId};
use halflap::order::Order;
use halflap::units::{Bytes, Nanos};
use halflap::workload::{Call, Run};

use crate::nature::{
    costs_nothing, crosses_to_host, fused_collective, payload, reduction, started,
};
use crate::steps::{NodePart, NodePlace, NodeRole, Steps};
use groups::GroupTable;
use spaces::Tenant;

/// A computation as a graph.
#[derive(Clone, Debug)]
pub struct Lowered {
    /// The graph; nodes have the names of instructions. Calls take no time and no memory
    /// themselves.
    pub graph: Arc<Graph>,
    /// What each node represents.
    pub places: IdVec<OpId, NodePlace>,
    /// The loops, calls and conditionals in it.
    pub calls: Vec<Call>,
    /// The bytes of the parameters.
    pub inputs: Bytes,
    /// The bytes of the result that are not a parameter's.
    pub results: Bytes,
    /// For each leaf of the result, the leaf of the parameters that it is.
    pub passed_on: Vec<Option<usize>>,
    /// Whether it has side effects.
    pub has_side_effects: bool,
    /// Where its values are kept.
    pub storage: Storage,
    /// Buffers in memory spaces other than the device's.
    tenants: Vec<Tenant>,
}

impl Lowered {
    /// The most that an order needs of each memory space other than the device's.
    pub fn space_peaks(&self, order: &Order) -> BTreeMap<u32, Bytes> {
        spaces::peaks_of(&self.tenants, order)
    }

    /// The same in the module's own order, without the caller's buffers.
    pub(crate) fn space_inside(&self) -> BTreeMap<u32, Bytes> {
        spaces::inside(&self.tenants)
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
        groups: GroupTable::default(),
        works: Works::new(module),
        calls: Vec::new(),
        has_side_effects: false,
    };
    lowering.add_steps();
    let buffers = lowering.add_buffers();
    lowering.add_deps(&buffers);
    let tenants = lowering.tenants();
    for (after, before) in spaces::bound(&tenants) {
        lowering.bind(after as usize, before as usize);
    }
    let storage = lowering.storage(&buffers);
    lowering.parts.groups = lowering.groups.into_parts();
    let result =
        |content: &&Content| content.is_result && content.keep == Keep::Ours && content.space == 0;
    let inputs = |content: &&Content| {
        content.writer.is_none() && module.instruction(content.instr).opcode == Opcode::Parameter
    };
    let in_memory = |content: &Content| if content.space == 0 { content.size } else { Bytes::ZERO };
    Ok(Lowered {
        graph: Arc::new(Graph::new(lowering.parts)?),
        places: steps.places.iter().copied().collect(),
        calls: lowering.calls,
        inputs: values.contents.iter().filter(inputs).map(in_memory).sum(),
        results: values.contents.iter().filter(result).map(in_memory).sum(),
        passed_on: values.passed_on(module, computation),
        has_side_effects: lowering.has_side_effects,
        storage,
        tenants,
    })
}

struct Lowering<'a> {
    module: &'a Module,
    computation: ComputationId,
    steps: &'a Steps,
    values: &'a Values,
    callees: &'a dyn Fn(ComputationId) -> Option<Callee>,
    parts: Parts,
    /// For each node, a buffer of size zero that represents its completion.
    tokens: Vec<Option<BufId>>,
    groups: GroupTable,
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
    fn step(&mut self, index: usize, place: NodePlace, name: String) -> OpParts {
        let mut op = OpParts {
            fused: vec![self.module.opcode_name(place.instr).to_owned()],
            provenance: Provenance {
                source: self.module.source(place.instr),
                module: self.module.scope(place.instr),
                parameter: self.module.argument_sent(place.instr),
            },
            ..OpParts::compute(name)
        };
        match self.steps.roles[index] {
            NodeRole::Start => {
                op.kind = OpKind::AsyncCollective;
                op.collective = Some(self.communication(place.instr));
            }
            NodeRole::End => {
                op.kind = OpKind::Wait;
                op.runtime = Some(Nanos::ZERO);
            }
            NodeRole::Plain => self.compute(place.instr, &mut op),
        }
        op
    }

    /// What runs on the compute stream: its work, or its duration.
    fn compute(&mut self, instr: InstrId, op: &mut OpParts) {
        let module = self.module;
        let opcode = module.instruction(instr).opcode;
        if matches!(opcode, Opcode::While | Opcode::Call | Opcode::Conditional) {
            op.runtime = Some(Nanos::ZERO);
            self.call(instr);
            return;
        }
        let own = opcode.is_sync_collective().then_some(instr);
        if let Some(inner) = own.or_else(|| fused_collective(module, instr)) {
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

    /// Records what a loop, call or conditional runs.
    fn call(&mut self, instr: InstrId) {
        let module = self.module;
        let is_loop = module.instruction(instr).opcode == Opcode::While;
        let trips = if is_loop { super::trip_count(module, instr) } else { Some(1) };
        let times = trips.map_or(1.0, |trips| trips as f64);
        let is_choice = module.instruction(instr).opcode == Opcode::Conditional;
        let unit = |&callee: &ComputationId| (self.callees)(callee)?.unit;
        let units = module.called(instr).iter().filter_map(unit);
        let runs = units.map(|unit| Run { unit, times }).collect();
        let op = OpId::from_index(self.parts.ops.len());
        // The buffer is added after all others.
        let inside = BufId::from_index(0);
        self.calls.push(Call { op, inside, runs, is_choice, is_guess: trips.is_none() });
    }

    /// Communication over a link or between memories: the participants, and the bytes.
    fn communication(&mut self, instr: InstrId) -> Collective {
        let module = self.module;
        let (inner, is_collective) = started(module, instr);
        let op = module.opcode_name(inner).trim_end_matches("-start").to_owned();
        let kind = module.instruction(inner).opcode.collective_kind();
        let payload = payload(module, inner);
        if is_collective {
            let kind = kind.unwrap_or(CollectiveKind::Other);
            let groups = module.replica_groups(inner);
            let (group_size, reduction) = (groups.group_size(), reduction(module, inner, kind));
            return Collective {
                op,
                kind,
                reduction,
                group: self.groups.ranks(groups),
                group_size,
                payload,
                content: None,
            };
        }
        let is_host = module.attribute(inner, "is_host_transfer") == Some("true")
            || crosses_to_host(module, instr);
        let (op, kind, group_size) = match is_host {
            true => ("host-transfer".to_owned(), CollectiveKind::HostTransfer, 1),
            false => (op, kind.unwrap_or(CollectiveKind::Transfer), 2),
        };
        let (group, reduction) = (self.groups.transfer(&op), Some(Reduction::None));
        Collective { op, kind, reduction, group, group_size, payload, content: None }
    }

    /// Adds a buffer for every memory location; returns their ids.
    fn add_buffers(&mut self) -> Vec<Option<BufId>> {
        let mut holds: Vec<Vec<u32>> = vec![Vec::new(); self.values.buffers as usize];
        for (index, content) in self.values.contents.iter().enumerate() {
            holds[content.buffer as usize].push(index as u32);
        }
        let mut made: Vec<u32> = vec![0; self.steps.places.len() + 1];
        holds.iter().map(|contents| self.add_buffer(contents, &mut made)).collect()
    }

    /// Buffers in memory spaces other than the device's, including those of running calls.
    fn tenants(&self) -> Vec<Tenant> {
        let mut holds: Vec<Vec<&Content>> = vec![Vec::new(); self.values.buffers as usize];
        for content in &self.values.contents {
            holds[content.buffer as usize].push(content);
        }
        let mut tenants: Vec<Tenant> = holds.iter().filter_map(|held| Tenant::of(held)).collect();
        for (index, place) in self.steps.places.iter().enumerate() {
            let mut most: BTreeMap<u32, Bytes> = BTreeMap::new();
            let callees =
                self.module.called(place.instr).iter().filter_map(|&callee| (self.callees)(callee));
            for (space, size) in callees.flat_map(|callee| callee.spaces) {
                let known = most.entry(space).or_default();
                *known = size.max(*known);
            }
            tenants.extend(
                most.into_iter().map(|(space, size)| Tenant::inside(space, size, index as u32)),
            );
        }
        tenants
    }

    fn add_buffer(&mut self, contents: &[u32], made: &mut [u32]) -> Option<BufId> {
        let contents: Vec<&Content> =
            contents.iter().map(|&index| &self.values.contents[index as usize]).collect();
        let first = *contents.first()?;
        let size = if first.space == 0 { first.size } else { Bytes::ZERO };
        if first.writer.is_none() && size == Bytes::ZERO {
            return None;
        }
        let writers = contents.iter().skip(1).filter_map(|content| content.writer);
        let mut users: Vec<u32> = contents
            .iter()
            .flat_map(|content| content.readers.iter().copied())
            .chain(writers)
            .collect();
        users.retain(|&user| Some(user) != first.writer);
        users.sort_unstable();
        users.dedup();
        let is_kept = contents.iter().any(|content| {
            content.is_result || matches!(content.keep, Keep::Caller | Keep::Exchanged)
        });
        let id = BufId::from_index(self.parts.buffers.len());
        let number = self.name_buffer(first, made);
        self.parts.buffers.push(BufferParts {
            name: number,
            maker: first.writer.map(|writer| OpId::from_index(writer as usize)),
            size_alloc: size,
            size_free: size,
            users: users.into_iter().map(|user| OpId::from_index(user as usize)).collect(),
            output: is_kept,
            view_of: None,
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
            // A parameter's leaves are identified by their contents.
            None => {
                let leaf = self.values.of(self.module, content.instr);
                let place = leaf.iter().position(|value| {
                    std::ptr::eq(&self.values.contents[value.content as usize], content)
                });
                return match (leaf.len(), place) {
                    (2.., Some(place)) => format!("{name}#{place}"),
                    _ => name.to_owned(),
                };
            }
        };
        *count += 1;
        if *count == 1 { name.to_owned() } else { format!("{name}#{}", *count - 1) }
    }

    /// Where values are kept: the places in memory, in the order of `buffers`.
    fn storage(&self, buffers: &[Option<BufId>]) -> Storage {
        let mut first: Vec<Option<&Content>> = vec![None; buffers.len()];
        for content in self.values.contents.iter().rev() {
            first[content.buffer as usize] = Some(content);
        }
        let slot = |(content, &buffer): (&Option<&Content>, &Option<BufId>)| {
            let origin = match content.map(|content| self.module.instruction(content.instr).opcode)
            {
                Some(Opcode::Parameter) => SlotOrigin::Parameter,
                Some(Opcode::Constant) => SlotOrigin::Constant,
                _ => SlotOrigin::Made,
            };
            let size = buffer.map_or(Bytes::ZERO, |buffer| self.parts.buffers[buffer].size_alloc);
            let own = |content: &&Content| {
                self.name_buffer(content, &mut vec![0; self.steps.places.len()])
            };
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
        self.order_messages();
        self.add_insides();
    }

    /// What a node reads.
    fn add_data(&mut self, index: usize, buffers: &[Option<BufId>]) {
        let module = self.module;
        let place = self.steps.places[index];
        if place.part == NodePart::Done {
            let base =
                module.instructions(self.computation).next().map_or(0, |first| first.index());
            if let Some(start) = self.steps.start[place.instr.index() - base] {
                self.depend(index, start as usize, DepKinds { data: true, ..DepKinds::default() });
            }
            return;
        }
        for operand in module.operands(place.instr) {
            // A value without leaves still has a producer.
            if let Some(maker) = self.done_step(operand.of) {
                self.depend(index, maker, self.reads(index, maker));
            }
            for value in self.values.of_operand(module, operand).to_vec() {
                self.read(index, value, buffers);
            }
        }
        // Through an update that is a node, an end still waits for its start.
        let is_updated = |instr: InstrId| {
            self.phase(instr) == Some(Phase::Update) && self.done_step(instr).is_some()
        };
        if self.steps.begun_by(module, &place).any(is_updated)
            && let Some(start) =
                self.steps.started_by(module, &place).and_then(|start| self.done_step(start))
        {
            self.depend(index, start, DepKinds { data: true, ..DepKinds::default() });
        }
    }

    fn phase(&self, instr: InstrId) -> Option<Phase> {
        self.module.instruction(instr).opcode.phase()
    }

    /// How a node depends on another. An update continues an asynchronous operation without waiting
    /// for its end.
    fn reads(&self, index: usize, maker: usize) -> DepKinds {
        let is_update = self.phase(self.steps.places[index].instr) == Some(Phase::Update);
        let issued = is_update && self.steps.roles[maker] == NodeRole::Start;
        DepKinds { issued, data: !issued, ..DepKinds::default() }
    }

    fn read(&mut self, index: usize, value: Value, buffers: &[Option<BufId>]) {
        let Some(maker) = value.maker else { return };
        let kinds = self.reads(index, maker as usize);
        let content = &self.values.contents[value.content as usize];
        let made_it = |buffer: &BufId| {
            self.parts.buffers[*buffer].maker == Some(OpId::from_index(maker as usize))
        };
        match buffers[content.buffer as usize].filter(made_it) {
            Some(buffer) => self.parts.ops[OpId::from_index(index)].deps.push((buffer, kinds)),
            None => self.depend(index, maker as usize, kinds),
        }
    }

    /// The node after which an instruction's values are available, if there is one.
    fn done_step(&self, instr: InstrId) -> Option<usize> {
        let base =
            self.module.instructions(self.computation).next().map_or(0, |first| first.index());
        self.steps.done[instr.index() - base].map(|step| step as usize)
    }

    /// A control predecessor comes first in the schedule, which does not imply its end: after an
    /// asynchronous start, the operation may still run. A synchronous collective is done when it
    /// has run, so if we split it, its end comes first.
    fn add_controls(&mut self, index: usize) {
        let place = self.steps.places[index];
        if place.part == NodePart::Done {
            return;
        }
        let before =
            self.module.control_predecessors(place.instr).filter_map(|instr| self.done_step(instr));
        let before: Vec<usize> = before.filter(|&step| step != index).collect();
        for step in before {
            let starts = self.steps.roles[step] == NodeRole::Start;
            self.depend(
                index,
                step,
                DepKinds { issued: starts, weak: !starts, ..DepKinds::default() },
            );
        }
    }

    /// Makes a node run after another one, without a data dependency.
    fn bind(&mut self, after: usize, before: usize) {
        if after != before {
            self.depend(after, before, DepKinds { weak: true, ..DepKinds::default() });
        }
    }

    /// Makes a node depend on the completion of another one.
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
                    view_of: None,
                });
                self.parts.ops[maker].outputs.push(token);
                self.tokens[on] = Some(token);
                token
            }
        };
        self.parts.buffers[token].users.push(node);
        self.parts.ops[node].deps.push((token, kinds));
    }

    /// What a rank waits for may depend on what it sends or receives first: no wait moves before a
    /// message that preceded it.
    fn order_messages(&mut self) {
        let mut messages: Vec<usize> = Vec::new();
        for index in 0..self.steps.places.len() {
            let instr = self.steps.places[index].instr;
            if matches!(self.module.instruction(instr).opcode, Opcode::Send | Opcode::Recv) {
                messages.push(index);
            } else if self.steps.roles[index] == NodeRole::End {
                for &message in &messages {
                    self.depend(index, message, DepKinds { issued: true, ..DepKinds::default() });
                }
            }
        }
    }

    /// Instructions with side effects stay in order.
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
            Opcode::CustomCall => {
                module.attribute(instr, "custom_call_has_side_effect") == Some("true")
            }
            Opcode::While | Opcode::Call | Opcode::Conditional => {
                let callees = module.called(instr).iter();
                callees
                    .filter_map(|&callee| (self.callees)(callee))
                    .any(|callee| callee.has_side_effects)
            }
            _ => false,
        }
    }

    /// The memory that a loop, call or conditional needs only while it runs: the workload
    /// determines its size.
    fn add_insides(&mut self) {
        for call in &mut self.calls {
            let name = format!("{}(inside)", self.parts.ops[call.op].name);
            call.inside = self.parts.buffers.push(BufferParts {
                name,
                maker: Some(call.op),
                size_alloc: Bytes::ZERO,
                size_free: Bytes::ZERO,
                users: Vec::new(),
                output: false,
                view_of: None,
            });
            self.parts.ops[call.op].outputs.push(call.inside);
        }
    }
}
#[cfg(test)]
mod tests;
