//! From a module and orders to a program.

use thiserror::Error;

use super::calls::Callees;
use super::{Check, Comm, Plan, PlanStep, PlannedWork, Program, Stream};
use crate::ids::{CommId, ComputationId, InstrId, PlanId, SlotId};
use crate::{
    LoweredUnit, Module, NodePart, NodePlace, Opcode, Phase, ReplicaGroups, SlotOrigin, started,
};
use halflap::graph::{Assignment, GraphError, OpKind};
use halflap::ids::{Id, IdVec, OpId, StreamId, UnitId};
use halflap::memory::Timeline;
use halflap::order::Order;

/// Why a module has no plan.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[allow(missing_docs)]
pub enum PlanError {
    #[error(transparent)]
    Graph(#[from] GraphError),
    #[error("'{instruction}' runs '{computation}', which does not exist or has the wrong form")]
    Callee { instruction: String, computation: String },
    #[error(
        "'{computation}' is both the body of a loop and called by '{instruction}', which cannot be run"
    )]
    CalledLoop { instruction: String, computation: String },
    #[error("'{instruction}' does not match its operands and computations")]
    Shape { instruction: String },
}

/// Turns a module into a program, with streams by `assignment`, and the orders that `find` returns
/// for its units.
pub fn build(
    module: &Module,
    units: &IdVec<UnitId, LoweredUnit>,
    assignment: Assignment,
    mut find: impl FnMut(UnitId) -> Order,
) -> Result<Program, PlanError> {
    let mut plans: IdVec<PlanId, Plan> = IdVec::default();
    let mut of: IdVec<ComputationId, Option<PlanId>> =
        IdVec::filled(None, module.computations().len());
    let mut channels = Channels::default();
    for (id, unit) in units.iter() {
        let callees = Callees { module, plans: &plans, of: &of };
        let plan = PlanBuilder { unit, callees, channels: &mut channels, steps: Vec::new() }
            .plan(&find(id))?;
        of[unit.computation] = Some(plans.push(plan));
    }
    // The last unit is the entry.
    let entry = PlanId::from_index(plans.len().saturating_sub(1));
    let (comms, streams) = channels.streams(assignment);
    let mut program = Program { plans, entry, comms, streams };
    set_streams(&mut program);
    Ok(program)
}

/// Starts have the number of their channel so far; now that all are known, it becomes that of a
/// stream.
fn set_streams(program: &mut Program) {
    let Program { plans, comms, .. } = program;
    for plan in plans.as_mut_slice() {
        for step in &mut plan.steps {
            if let PlanStep::Start { stream, comm: Some(comm), .. } = step {
                *stream = comms[*comm].stream;
            }
        }
    }
}

/// What overlaps compute: sets of devices, and kinds of transfers, each once.
#[derive(Default)]
struct Channels {
    sets: Vec<ReplicaGroups>,
    transfers: Vec<String>,
}

impl Channels {
    fn comm(&mut self, groups: ReplicaGroups) -> CommId {
        let known = self.sets.iter().position(|set| set.groups == groups.groups);
        CommId::from_index(known.unwrap_or_else(|| {
            self.sets.push(groups);
            self.sets.len() - 1
        }))
    }

    /// Transfers come before all communication, whose streams are known last.
    fn transfer(&mut self, kind: &str) -> StreamId {
        let known = self.transfers.iter().position(|known| known == kind);
        StreamId::from_index(known.unwrap_or_else(|| {
            self.transfers.push(kind.to_owned());
            self.transfers.len() - 1
        }))
    }

    /// Sets that share more than one device, directly or through others, share a stream; or all do,
    /// or none.
    fn streams(self, assignment: Assignment) -> (IdVec<CommId, Comm>, IdVec<StreamId, Stream>) {
        let mut lead: Vec<usize> = (0..self.sets.len()).collect();
        for a in 0..self.sets.len() {
            let take_turns = |b: &usize| match assignment {
                Assignment::SharedRanks => self.sets[a].share_two(&self.sets[*b]),
                Assignment::One => true,
                Assignment::EachGroup => false,
            };
            for b in (0..a).filter(take_turns) {
                let (old, new) = (lead[a].max(lead[b]), lead[a].min(lead[b]));
                lead.iter_mut().filter(|lead| **lead == old).for_each(|lead| *lead = new);
            }
        }
        let transfers =
            self.transfers.iter().map(|kind| Stream { name: format!("{kind} transfers") });
        let mut streams: IdVec<StreamId, Stream> = transfers.collect();
        let mut of_lead: Vec<Option<StreamId>> = vec![None; self.sets.len()];
        let mut comms = IdVec::default();
        for (set, &lead) in self.sets.into_iter().zip(&lead) {
            let name = set.describe();
            let stream = *of_lead[lead].get_or_insert_with(|| streams.push(Stream { name }));
            comms.push(Comm { sets: set.groups, stream });
        }
        (comms, streams)
    }
}

/// Starts that nothing in their computation waits for, such as a recv whose done is in the next
/// iteration of a loop. They end before their memory is used or freed, or with the computation.
#[derive(Default)]
struct OpenStarts {
    /// Their steps, and what those do.
    starts: Vec<(usize, PlannedWork)>,
}

impl OpenStarts {
    /// The steps of those that must end first.
    fn ended_if(&mut self, must: impl Fn(&PlannedWork) -> bool) -> Vec<PlanStep> {
        let ended = self.starts.extract_if(.., |(_, work)| must(work));
        ended.map(|(at, _)| PlanStep::Wait(at)).collect()
    }
}

struct PlanBuilder<'a> {
    unit: &'a LoweredUnit,
    callees: Callees<'a>,
    channels: &'a mut Channels,
    steps: Vec<PlanStep>,
}

impl PlanBuilder<'_> {
    fn plan(mut self, order: &Order) -> Result<Plan, PlanError> {
        let lowered = &self.unit.lowered;
        let (graph, storage, module) = (&lowered.graph, &lowered.storage, self.callees.module);
        let timeline = Timeline::of(graph, order);
        let mut freed: IdVec<OpId, Vec<SlotId>> = IdVec::filled(Vec::new(), graph.len());
        let mut made: IdVec<OpId, Vec<SlotId>> = IdVec::filled(Vec::new(), graph.len());
        for (slot, kept) in storage.slots.iter() {
            let Some(buffer) = kept.buffer else { continue };
            if let (Some(maker), SlotOrigin::Made) = (graph.maker(buffer), kept.origin) {
                made[maker].push(slot);
            }
            if let Some(last) = timeline.freed_by[buffer] {
                freed[last].push(slot);
            }
        }
        let mut checks = Vec::new();
        let mut started_at: IdVec<OpId, Option<usize>> = IdVec::filled(None, graph.len());
        let mut open = OpenStarts::default();
        for &op in order.as_slice() {
            let before = self.steps.len();
            let ended = open.ended_if(|work| self.uses(op, work));
            self.steps.extend(ended);
            self.node(op, &made[op])?;
            let is_start = |step: &PlanStep| matches!(step, PlanStep::Start { .. });
            started_at[op] =
                self.steps[before..].iter().position(is_start).map(|place| before + place);
            self.steps.extend(
                graph
                    .waits_for(op)
                    .iter()
                    .filter_map(|&start| started_at[start])
                    .map(PlanStep::Wait),
            );
            if let Some(at) = started_at[op].filter(|_| graph.waited_by(op).is_empty())
                && let PlanStep::Start { work, .. } = &self.steps[at]
            {
                open.starts.push((at, work.clone()));
            }
            let is_freed = |slot: &SlotId| freed[op].contains(slot);
            let ends = |work: &PlannedWork| work.reads.iter().chain(&work.writes).any(is_freed);
            self.steps.extend(open.ended_if(ends));
            self.steps.extend(freed[op].iter().map(|&slot| PlanStep::Free(slot)));
            if self.steps.len() > before {
                let (born, died) = (made[op].clone(), freed[op].clone());
                checks.push(Check {
                    before: self.steps.len(),
                    instr: lowered.places[op].instr,
                    born,
                    died,
                });
            }
        }
        self.steps.extend(open.ended_if(|_| true));
        let computation = self.unit.computation;
        let parameters = module.parameters(computation).into_iter().flatten();
        Ok(Plan {
            computation,
            parameters: parameters.flat_map(|parameter| storage.of(parameter).to_vec()).collect(),
            results: storage.of(module.root(computation)).to_vec(),
            storage: storage.clone(),
            steps: self.steps,
            checks,
        })
    }

    /// Whether a node reads what a started operation writes, or writes what it reads.
    fn uses(&self, op: OpId, started: &PlannedWork) -> bool {
        let storage = &self.unit.lowered.storage;
        let (module, instr) = (self.callees.module, self.unit.lowered.places[op].instr);
        let makes = module.instruction(instr).opcode.phase().is_none();
        let own = if makes { storage.of(instr) } else { &[] };
        let mut taken =
            module.operands(instr).iter().flat_map(|operand| storage.of_operand(module, operand));
        taken.any(|slot| started.writes.contains(slot))
            || own.iter().any(|slot| started.reads.contains(slot))
    }

    /// The steps of a node, after its memory has been allocated.
    fn node(&mut self, op: OpId, made: &[SlotId]) -> Result<(), PlanError> {
        let lowered = &self.unit.lowered;
        let place = lowered.places[op];
        let module = self.callees.module;
        let opcode = module.instruction(place.instr).opcode;
        let storage = &lowered.storage;
        let is_call = matches!(opcode, Opcode::Call | Opcode::Conditional);
        self.steps.extend(made.iter().filter(|_| !is_call).map(|&slot| PlanStep::Alloc(slot)));
        let step = match opcode {
            Opcode::Call => PlanStep::Call(self.callees.call(storage, place.instr, made)?),
            Opcode::Conditional => {
                let (selector, branches) = self.callees.branches(storage, place.instr, made)?;
                PlanStep::Branch { instr: place.instr, selector, branches }
            }
            Opcode::While => PlanStep::Loop(self.callees.repeat(storage, place.instr)?),
            _ if lowered.graph.kind(op) == OpKind::AsyncCollective => self.start(place),
            _ if does_nothing(opcode, place.part) => return Ok(()),
            _ => PlanStep::Launch(self.work(place.instr, storage.of(place.instr))),
        };
        self.steps.push(step);
        Ok(())
    }

    fn work(&self, instr: InstrId, writes: &[SlotId]) -> PlannedWork {
        let module = self.callees.module;
        let mut reads = Vec::new();
        for operand in module.operands(instr) {
            for &slot in self.unit.lowered.storage.of_operand(module, operand) {
                if !reads.contains(&slot) {
                    reads.push(slot);
                }
            }
        }
        PlannedWork { instr, fused: None, reads, writes: writes.to_vec() }
    }

    fn start(&mut self, place: NodePlace) -> PlanStep {
        let module = self.callees.module;
        let leaves = self.unit.lowered.storage.of(place.instr);
        let writes = match place.part {
            NodePart::Whole => given(module, place.instr, leaves),
            _ => leaves,
        };
        let work = self.work(place.instr, writes);
        match started(module, place.instr) {
            (inner, true) => {
                let comm = Some(self.channels.comm(module.replica_groups(inner)));
                PlanStep::Start { work, stream: StreamId::from_index(0), comm }
            }
            (inner, false) => {
                let kind = module.opcode_name(inner).trim_end_matches("-start");
                PlanStep::Start { work, stream: self.channels.transfer(kind), comm: None }
            }
        }
    }
}

/// The leaves of a start that are its results, not its operands or context.
fn given<'s>(module: &Module, start: InstrId, leaves: &'s [SlotId]) -> &'s [SlotId] {
    let instruction = module.instruction(start);
    let parts = instruction.shape.parts();
    let element = match instruction.opcode {
        Opcode::AllReduceStart => return leaves,
        Opcode::CopyStart | Opcode::Recv => 0,
        _ => 1,
    };
    let first: usize = parts.iter().take(element).map(|part| part.leaf_count()).sum();
    let len = parts.get(element).map_or(0, |part| part.leaf_count());
    leaves.get(first..first + len).unwrap_or(&[])
}

/// Whether nothing is computed: values are passed on in the memory where they are.
fn does_nothing(opcode: Opcode, part: NodePart) -> bool {
    let passes_on = matches!(
        opcode,
        Opcode::Parameter
            | Opcode::Constant
            | Opcode::Tuple
            | Opcode::GetTupleElement
            | Opcode::Bitcast
            | Opcode::OptimizationBarrier
            | Opcode::OptBarrierLong
            | Opcode::Domain
            | Opcode::AddDependency
            | Opcode::AfterAll
    );
    passes_on
        || part == NodePart::Done
        || matches!(opcode.phase(), Some(Phase::Done | Phase::Update))
}
