//! A module's values as nodes.

use std::collections::HashMap;
use std::rc::Rc;

use super::nodes::{Form, Members, NodeId, NodeOp, Nodes};
use crate::ids::{ComputationId, InstrId};
use crate::{Module, Opcode, Operand, Phase, ReplicaGroups};
use halflap::ids::{Id, IdVec};

/// Attributes that do not affect values.
const SILENT: [&str; 7] = [
    "metadata",
    "channel_id",
    "sharding",
    "control-predecessors",
    "control-successors",
    "origin",
    "statistics",
];

/// Attributes of collectives that are read elsewhere, or only affect how they run.
const COLLECTIVE: [&str; 9] = [
    "replica_groups",
    "use_global_device_ids",
    "source_target_pairs",
    "dimensions",
    "to_apply",
    "backend_config",
    "frontend_attributes",
    "constrain_layout",
    "async_execution_thread",
];

/// Attributes that name computations.
const CALLS: [&str; 12] = [
    "calls",
    "to_apply",
    "body",
    "condition",
    "branch_computations",
    "true_computation",
    "false_computation",
    "called_computations",
    "select",
    "scatter",
    "comparator",
    "async_computation",
];

/// A collective, synchronous or started, and what it gives in the end.
struct Begun {
    opcode: Opcode,
    form: Form,
}

/// A module whose values are nodes.
pub(super) struct ReadModule<'m> {
    pub(super) module: &'m Module,
    /// What every instruction gives.
    pub(super) values: IdVec<InstrId, Option<NodeId>>,
    /// What every computation does.
    functions: IdVec<ComputationId, Option<NodeId>>,
}

impl<'m> ReadModule<'m> {
    pub(super) fn new(module: &'m Module, nodes: &mut Nodes, settled: bool) -> ReadModule<'m> {
        let computations = module.computations().len();
        let mut reader = NodeReader {
            module,
            nodes,
            values: IdVec::filled(None, module.len()),
            functions: IdVec::filled(None, computations),
            has_effects: IdVec::filled(false, computations),
            members: HashMap::new(),
            settled,
        };
        for computation in module.callees_first() {
            reader.computation(computation);
        }
        let NodeReader { values, functions, .. } = reader;
        ReadModule { module, values, functions }
    }

    /// What a computation does.
    pub(super) fn function(&self, computation: ComputationId) -> Option<NodeId> {
        self.functions[computation]
    }
}

/// A module that is being read, callees first.
struct NodeReader<'m, 'n> {
    module: &'m Module,
    nodes: &'n mut Nodes,
    values: IdVec<InstrId, Option<NodeId>>,
    functions: IdVec<ComputationId, Option<NodeId>>,
    /// Whether a computation does something besides giving a value.
    has_effects: IdVec<ComputationId, bool>,
    /// The groups of a collective, by their text: most have the same. Looked up only.
    members: HashMap<String, Rc<Members>>,
    /// Whether loops carry as little as they can.
    settled: bool,
}

impl NodeReader<'_, '_> {
    fn computation(&mut self, computation: ComputationId) {
        let mut last = None;
        for instr in self.module.instructions(computation) {
            let value = self.value(instr);
            let value = match self.has_effect(instr) {
                true => {
                    // Effects happen in sequence: each comes after the last.
                    let form = self.nodes.node(value).form.clone();
                    let name = self.module.opcode_name(instr).to_owned();
                    let what = NodeOp::Op {
                        opcode: Opcode::AfterAll,
                        name,
                        attributes: Rc::default(),
                        called: Vec::new(),
                    };
                    let inputs = std::iter::once(value).chain(last).collect();
                    let after = self.nodes.plain(what, form, inputs);
                    last = Some(after);
                    after
                }
                false => value,
            };
            self.values[instr] = Some(value);
        }
        self.has_effects[computation] = last.is_some();
        let root = self.values[self.module.root(computation)];
        let inputs: Vec<NodeId> = root.into_iter().chain(last).collect();
        let inputs = match self.settled {
            true => {
                let all = self.nodes.plain(NodeOp::Tuple, Form::Other, inputs);
                let all = self.nodes.settled(all);
                self.nodes.node(all).inputs.clone()
            }
            false => inputs,
        };
        self.functions[computation] = Some(self.nodes.plain(NodeOp::Function, Form::Other, inputs));
    }

    fn has_effect(&self, instr: InstrId) -> bool {
        use Opcode as O;
        let calls = self.module.called(instr).iter().any(|&callee| self.has_effects[callee]);
        let has_own = match self.module.instruction(instr).opcode {
            O::Infeed
            | O::Outfeed
            | O::Send
            | O::SendDone
            | O::Recv
            | O::RecvDone
            | O::Rng
            | O::RngGetAndUpdateState
            | O::Other => true,
            O::CustomCall => {
                self.module.attribute(instr, "custom_call_has_side_effect") == Some("true")
            }
            _ => false,
        };
        calls || has_own
    }

    fn operand(&mut self, operand: &Operand) -> NodeId {
        // Producers come before their users.
        let of = self.values[operand.of].unwrap_or(NodeId::from_index(0));
        let path = self.module.path(operand).to_vec();
        path.into_iter().fold(of, |of, index| self.nodes.element(of, index))
    }

    fn operands(&mut self, instr: InstrId) -> Vec<NodeId> {
        let module = self.module;
        module.operands(instr).iter().map(|operand| self.operand(operand)).collect()
    }

    fn value(&mut self, instr: InstrId) -> NodeId {
        let module = self.module;
        let instruction = module.instruction(instr);
        let form = Form::of(&instruction.shape);
        let inputs = self.operands(instr);
        match instruction.opcode {
            Opcode::Parameter => {
                let number = module.parameter_number(instr).unwrap_or(usize::MAX);
                self.nodes.plain(NodeOp::Parameter(number), form, inputs)
            }
            Opcode::Constant => {
                self.nodes.plain(NodeOp::Literal(self.literal(instr)), form, inputs)
            }
            Opcode::Tuple => self.nodes.plain(NodeOp::Tuple, form, inputs),
            Opcode::While => self.looped(instr, form, inputs),
            Opcode::GetTupleElement if inputs.len() == 1 => {
                self.nodes.element(inputs[0], module.tuple_index(instr).unwrap_or(u32::MAX))
            }
            // The same numbers at another place.
            Opcode::Copy if inputs.len() == 1 => inputs[0],
            // Barriers constrain compilers; values pass through.
            Opcode::OptimizationBarrier | Opcode::OptBarrierLong if inputs.len() == 1 => inputs[0],
            Opcode::Bitcast if self.is_same_place(instr) => inputs[0],
            opcode if opcode.is_sync_collective() => {
                self.collective(instr, Begun { opcode, form }, inputs)
            }
            opcode => match opcode.phase() {
                Some(Phase::Start) => self.started(instr, inputs),
                Some(phase) => match self.ended(phase, &inputs) {
                    Some(value) => value,
                    None => self.op(instr, form, inputs),
                },
                None => self.op(instr, form, inputs),
            },
        }
    }

    /// What an update or an end passes on of what was started.
    fn ended(&self, phase: Phase, inputs: &[NodeId]) -> Option<NodeId> {
        let &[input] = inputs else { return None };
        let node = self.nodes.node(input);
        match (&node.what, phase) {
            (NodeOp::Started, Phase::Update) => Some(input),
            (NodeOp::Started, _) => node.inputs.first().copied(),
            _ => None,
        }
    }

    fn started(&mut self, instr: InstrId, inputs: Vec<NodeId>) -> NodeId {
        let module = self.module;
        let instruction = module.instruction(instr);
        let form = Form::of(&instruction.shape);
        let begun = match instruction.opcode {
            Opcode::AsyncStart => None,
            opcode => Some(opcode.begun()).filter(|begun| begun.is_sync_collective()),
        };
        let result = match (begun, instruction.opcode) {
            (Some(opcode), held) => {
                let result = match held {
                    Opcode::AllReduceStart => form.clone(),
                    _ => match &form {
                        Form::Tuple(parts) => parts.get(1).cloned().unwrap_or(Form::Other),
                        _ => Form::Other,
                    },
                };
                self.collective(instr, Begun { opcode, form: result }, inputs)
            }
            (None, Opcode::CopyStart) if inputs.len() == 1 => inputs[0],
            _ => return self.op(instr, form, inputs),
        };
        self.nodes.plain(NodeOp::Started, form, vec![result])
    }

    fn collective(
        &mut self,
        instr: InstrId,
        Begun { opcode, form }: Begun,
        inputs: Vec<NodeId>,
    ) -> NodeId {
        let module = self.module;
        let attributes = module
            .attributes(instr)
            .filter(|(key, _)| !SILENT.contains(key) && !COLLECTIVE.contains(key));
        let what = NodeOp::Collective {
            opcode,
            members: self.members(instr),
            dimensions: module.numbers(instr, "dimensions"),
            attributes: Rc::new(pairs(attributes)),
            reducer: module.called(instr).first().and_then(|&reducer| self.functions[reducer]),
        };
        let what = self.merged(what, &inputs);
        let is_each = matches!(
            opcode,
            Opcode::AllReduce
                | Opcode::AllGather
                | Opcode::ReduceScatter
                | Opcode::CollectivePermute
                | Opcode::CollectiveBroadcast
        );
        match (&form, &inputs[..]) {
            (Form::Array { .. }, &[input]) => self.nodes.collective(what, form, input),
            (Form::Tuple(parts), inputs) if is_each && parts.len() == inputs.len() => {
                let each = parts.iter().zip(inputs);
                let each = each
                    .map(|(part, &input)| self.nodes.collective(what.clone(), part.clone(), input))
                    .collect();
                self.nodes.plain(NodeOp::Tuple, form, each)
            }
            _ => self.nodes.plain(what, form, inputs),
        }
    }

    /// An all-reduce of several arrays may add numbers up in another order than one of each.
    fn merged(&self, what: NodeOp, inputs: &[NodeId]) -> NodeOp {
        let is_free = |&input: &NodeId| self.nodes.is_order_free(&what, input);
        let is_same = self.nodes.any_sum_order || inputs.len() < 2 || inputs.iter().all(is_free);
        match what {
            NodeOp::Collective { opcode: Opcode::AllReduce, members, reducer, .. } if !is_same => {
                let count = ("operands".to_owned(), inputs.len().to_string());
                NodeOp::Collective {
                    opcode: Opcode::AllReduce,
                    members,
                    dimensions: Vec::new(),
                    attributes: Rc::new(vec![count]),
                    reducer,
                }
            }
            what => what,
        }
    }

    fn members(&mut self, instr: InstrId) -> Rc<Members> {
        let module = self.module;
        let words = ["replica_groups", "source_target_pairs", "use_global_device_ids"];
        let text = |key| module.attribute(instr, key).unwrap_or("-");
        let has_channel = module.attribute(instr, "channel_id").is_some();
        let opcode = module.instruction(instr).opcode.begun();
        let key = format!("{opcode:?} {has_channel} {}", words.map(text).join(" "));
        let groups = || {
            let ReplicaGroups { mut groups, pairs } = module.replica_groups(instr);
            // Which group comes first does not matter.
            groups.sort_unstable();
            Rc::new(Members { groups, pairs })
        };
        self.members.entry(key).or_insert_with(groups).clone()
    }

    /// Anything else: equal if its text, its callees and its operands are equal.
    fn op(&mut self, instr: InstrId, form: Form, inputs: Vec<NodeId>) -> NodeId {
        let module = self.module;
        let instruction = module.instruction(instr);
        // What is written there for compilers says nothing about a product's value.
        let is_dot = instruction.opcode == Opcode::Dot;
        let is_silent = |key: &str| SILENT.contains(&key) || is_dot && key == "frontend_attributes";
        let attributes =
            module.attributes(instr).filter(|(key, _)| !is_silent(key) && !CALLS.contains(key));
        let mut attributes = pairs(attributes);
        // The memory layout matters only to these.
        if matches!(instruction.opcode, Opcode::Bitcast | Opcode::CustomCall | Opcode::Other) {
            let operands = module.operands(instr).iter().map(|of| module.operand_shape(of));
            for shape in operands.chain([&instruction.shape]) {
                let mut leaves = Vec::new();
                shape.leaves(&mut leaves);
                let layouts = leaves.iter().filter_map(|leaf| leaf.array());
                let layouts = layouts.map(|array| module.str(array.layout).to_owned());
                attributes.extend(layouts.map(|layout| ("layout".to_owned(), layout)));
            }
        }
        let called = module.called(instr).iter().filter_map(|&of| self.functions[of]).collect();
        let what = NodeOp::Op {
            opcode: instruction.opcode,
            name: module.opcode_name(instr).to_owned(),
            attributes: Rc::new(attributes),
            called,
        };
        self.nodes.op(what, form, inputs)
    }

    /// A loop that carries nothing that follows from the rest of what it carries.
    fn looped(&mut self, instr: InstrId, form: Form, inputs: Vec<NodeId>) -> NodeId {
        let module = self.module;
        let function = |key| module.computation_in(instr, key).and_then(|id| self.functions[id]);
        let (body, condition) = (function("body"), function("condition"));
        let whole = self.op(instr, form, inputs);
        match (body, condition) {
            (Some(body), Some(condition)) => self.nodes.shortened(whole, body, condition),
            _ => whole,
        }
    }

    /// Whether a bitcast leaves both the extents and the layout as they are.
    fn is_same_place(&self, instr: InstrId) -> bool {
        let module = self.module;
        let [operand] = module.operands(instr) else { return false };
        let arrays =
            (module.operand_shape(operand).array(), module.instruction(instr).shape.array());
        let (Some(from), Some(to)) = arrays else { return false };
        let layout = |array| module.layout(array).minor_to_major;
        from.element == to.element && from.dims == to.dims && layout(from) == layout(to)
    }

    /// A constant's text without irrelevant parts; one without values is identified by its name.
    fn literal(&self, instr: InstrId) -> String {
        let text = self.module.payload(instr);
        match text.contains("...") {
            true => {
                let place = self.module.computation_name(self.module.computation_of(instr));
                format!("... {} of {place}", self.module.instruction_name(instr))
            }
            false => text.split_whitespace().collect::<Vec<_>>().join(" "),
        }
    }
}

/// Attributes in a fixed sequence.
fn pairs<'a>(attributes: impl Iterator<Item = (&'a str, &'a str)>) -> Vec<(String, String)> {
    let mut pairs: Vec<(String, String)> =
        attributes.map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
    pairs.sort_unstable();
    pairs
}
