//! A collective over nodes as one within each node and one across nodes.
//!
//! Ranks are laid out over nodes one after the other, as the cost model has it. An all-gather first
//! gathers across nodes, where every rank sends only its own part, and then within them. A
//! reduce-scatter does the same in reverse. An all-reduce becomes a reduce-scatter within nodes, an
//! all-reduce of each part across them, and an all-gather within them.

use super::scatter::listed;
use super::{RecipeSubject, Refusal};
use crate::draft::{Draft, array_text, dim_list};
use crate::ids::InstrId;
use crate::{Array, Module, Opcode};

/// Groups as products of smaller ones.
struct NodeGroups {
    /// The ranks of a group in one node, and in how many nodes it is.
    per_node: u64,
    nodes: u64,
    /// Those in one node; and those at the same place of each node.
    within: Vec<Vec<u32>>,
    across: Vec<Vec<u32>>,
    listing: MemberSequence,
}

/// The sequence of a group's members.
#[derive(Clone, Copy, PartialEq, Eq)]
enum MemberSequence {
    /// All of the first node, then all of the second.
    NodeByNode,
    /// The first of each node, then the second of each.
    PlaceByPlace,
}

/// The change to a collective.
pub(super) struct LevelsPlan<'s, 'm> {
    subject: &'s RecipeSubject<'m>,
    collective: InstrId,
    groups: NodeGroups,
    /// The dimension that is gathered, scattered, or divided among the ranks of a node.
    dim: usize,
}

/// The change to a collective, or why there is none.
pub(super) fn plan<'s, 'm>(
    subject: &'s RecipeSubject<'m>,
    collective: InstrId,
    ranks_per_node: u32,
) -> Result<LevelsPlan<'s, 'm>, Refusal> {
    let module = subject.module;
    let opcode = subject.opcode(collective);
    if !matches!(opcode, Opcode::AllGather | Opcode::ReduceScatter | Opcode::AllReduce) {
        return Err(Refusal::Kind);
    }
    let [operand] = module.operands(collective) else { return Err(Refusal::Variadic) };
    subject.changeable(collective)?;
    let whole = subject.array(collective)?;
    let given = module.operand_shape(operand).array().ok_or(Refusal::Variadic)?;
    let groups = NodeGroups::of(module, collective, ranks_per_node).ok_or(Refusal::Nodes)?;
    let dim = match (opcode, &module.numbers(collective, "dimensions")[..]) {
        (Opcode::AllReduce, _) => {
            let is_divided = |extent: &u64| *extent > 0 && extent.is_multiple_of(groups.per_node);
            whole.dims.iter().position(is_divided).ok_or(Refusal::NotDivided)?
        }
        (_, &[dim]) => usize::try_from(dim).map_err(|_| Refusal::Kind)?,
        _ => return Err(Refusal::Kind),
    };
    let is_moved = opcode != Opcode::AllReduce && groups.listing == MemberSequence::NodeByNode;
    let is_plain = |array: &Array| is_plain(module, array);
    match !is_moved || is_plain(whole) && is_plain(given) {
        true => Ok(LevelsPlan { subject, collective, groups, dim }),
        false => Err(Refusal::Layout),
    }
}

/// Whether an array lies row by row in memory, without tiles.
fn is_plain(module: &Module, array: &Array) -> bool {
    let text = module.str(array.layout);
    text.is_empty() || text == plain_layout(array.dims.len())
}

/// `{2,1,0}`.
fn plain_layout(rank: usize) -> String {
    format!("{{{}}}", dim_list(&(0..rank as u64).rev().collect::<Vec<u64>>()))
}

impl NodeGroups {
    /// The groups of a collective, if each has the same number of ranks in each of several nodes.
    fn of(module: &Module, collective: InstrId, ranks_per_node: u32) -> Option<NodeGroups> {
        let has = |key: &str| module.attribute(collective, key);
        let is_global = has("use_global_device_ids") == Some("true");
        let is_alone = has("channel_id").is_none() && module.devices().partitions == 1;
        // Others are written by the numbers of replicas or partitions.
        if !is_global && !is_alone || ranks_per_node < 2 {
            return None;
        }
        let groups = module.replica_groups(collective).groups;
        let node = |device: &u32| device / ranks_per_node;
        let first = groups.first()?;
        let per_node = first.iter().filter(|device| node(device) == node(&first[0])).count();
        let nodes = first.len() / per_node;
        let listing = match node(&first[0]) == node(first.get(1)?) {
            true => MemberSequence::NodeByNode,
            false => MemberSequence::PlaceByPlace,
        };
        if per_node < 2 || nodes < 2 {
            return None;
        }
        let (mut within, mut across) = (Vec::new(), Vec::new());
        for group in &groups {
            let at = |of: usize, place: usize| match listing {
                MemberSequence::NodeByNode => group.get(of * per_node + place).copied(),
                MemberSequence::PlaceByPlace => group.get(place * nodes + of).copied(),
            };
            let row = |of: usize| (0..per_node).map(|place| at(of, place)).collect();
            let rows: Vec<Vec<u32>> = (0..nodes).map(row).collect::<Option<_>>()?;
            let is_one = |row: &Vec<u32>| row.iter().all(|device| node(device) == node(&row[0]));
            let mut apart: Vec<u32> = rows.iter().map(|row| node(&row[0])).collect();
            apart.sort_unstable();
            apart.dedup();
            if group.len() != per_node * nodes || !rows.iter().all(is_one) || apart.len() != nodes {
                return None;
            }
            across.extend((0..per_node).map(|place| rows.iter().map(|row| row[place]).collect()));
            within.extend(rows);
        }
        let (per_node, nodes) = (per_node as u64, nodes as u64);
        Some(NodeGroups { per_node, nodes, within, across, listing })
    }
}

impl LevelsPlan<'_, '_> {
    /// Writes it; returns the names of the collectives.
    pub(super) fn write(self, draft: &mut Draft<'_>) -> Result<String, Refusal> {
        if !draft.is_untouched(self.collective) {
            return Err(Refusal::Changed);
        }
        let module = self.subject.module;
        let operand = &module.operands(self.collective)[0];
        let given = module.operand_shape(operand).array().ok_or(Refusal::Variadic)?;
        let steps = self.steps();
        let is_moved = self.groups.listing == MemberSequence::NodeByNode;
        let mut value = draft.operand(operand);
        let mut array = given.clone();
        if is_moved && self.opcode() == Opcode::ReduceScatter {
            value = self.moved(draft, &array, &value);
        }
        let is_moved_last = is_moved && self.opcode() == Opcode::AllGather;
        let mut names = Vec::new();
        for (at, step) in steps.iter().enumerate() {
            let extent = array.dims[self.dim];
            array = array.with_extent(self.dim, extent * step.grows / step.shrinks);
            let shape = array_text(module, &array);
            let text = self.communicate(draft, step, &value);
            let is_last = at + 1 == steps.len() && !is_moved_last;
            value = match is_last {
                true => self.last(draft, &shape, &text),
                false => draft.add(self.collective, &self.stem(step), (&shape, &text)),
            };
            names.push(value.trim_start_matches('%').to_owned());
        }
        if is_moved_last {
            self.moved(draft, &array, &value);
        }
        Ok(names.join(", "))
    }

    fn opcode(&self) -> Opcode {
        self.subject.opcode(self.collective)
    }

    /// What is communicated, in sequence.
    fn steps(&self) -> Vec<LevelStep<'_>> {
        let NodeGroups { per_node, nodes, within, across, .. } = &self.groups;
        let step = |opcode, groups, size: u64| {
            let (grows, shrinks) = match opcode {
                Opcode::AllGather => (size, 1),
                Opcode::ReduceScatter => (1, size),
                _ => (1, 1),
            };
            LevelStep { opcode, groups, grows, shrinks, is_first: false }
        };
        let (gather, scatter) = (Opcode::AllGather, Opcode::ReduceScatter);
        let mut steps = match self.opcode() {
            Opcode::AllGather => {
                vec![step(gather, across, *nodes), step(gather, within, *per_node)]
            }
            Opcode::ReduceScatter => {
                vec![step(scatter, within, *per_node), step(scatter, across, *nodes)]
            }
            _ => vec![
                step(scatter, within, *per_node),
                step(Opcode::AllReduce, across, *nodes),
                step(gather, within, *per_node),
            ],
        };
        steps[0].is_first = true;
        steps
    }

    /// The name of a new collective.
    fn stem(&self, step: &LevelStep<'_>) -> String {
        let own = self.subject.module.instruction_name(self.collective);
        let is_across = step.groups == &self.groups.across;
        format!("{own}.{}", if is_across { "across" } else { "within" })
    }

    /// One of the collectives, from its opcode on.
    fn communicate(&self, draft: &mut Draft<'_>, step: &LevelStep<'_>, operand: &str) -> String {
        let module = self.subject.module;
        let is_reduced = step.opcode != Opcode::AllGather;
        let mut text = format!("{}({operand})", step.name());
        for (key, value) in module.attributes(self.collective) {
            let value = match key {
                "sharding" | "dimensions" => continue,
                "to_apply" if !is_reduced => continue,
                "channel_id" if !step.is_first => draft.fresh_channel().to_string(),
                "replica_groups" => continue,
                _ => value.to_owned(),
            };
            text.push_str(&format!(", {key}={value}"));
        }
        text.push_str(&format!(", replica_groups={}", listed(step.groups)));
        if step.opcode != Opcode::AllReduce {
            text.push_str(&format!(", dimensions={{{}}}", self.dim));
        }
        text
    }

    /// Writes the last instruction, which has the collective's name.
    fn last(&self, draft: &mut Draft<'_>, shape: &str, text: &str) -> String {
        let name = self.subject.module.instruction_name(self.collective);
        draft.write_line(self.collective, name.to_owned(), (shape, text));
        format!("{}{name}", draft.percent(self.collective))
    }

    /// Blocks along the dimension in the sequence of the transposed table: what was gathered place
    /// by place is put node by node, and what will be scattered place by place.
    fn moved(&self, draft: &mut Draft<'_>, array: &Array, value: &str) -> String {
        let module = self.subject.module;
        let NodeGroups { per_node, nodes, .. } = self.groups;
        let (outer, inner) = match self.opcode() {
            Opcode::AllGather => (per_node, nodes),
            _ => (nodes, per_node),
        };
        let (dim, name) = (self.dim, module.instruction_name(self.collective));
        let table = |sides: [u64; 2]| {
            let mut dims = array.dims[..dim].to_vec();
            dims.extend([sides[0], sides[1], array.dims[dim] / (outer * inner)]);
            dims.extend(&array.dims[dim + 1..]);
            let layout = match module.str(array.layout).is_empty() {
                true => String::new(),
                false => plain_layout(dims.len()),
            };
            format!("{}[{}]{layout}", array.element.name(), dim_list(&dims))
        };
        let at = self.collective;
        let stem = format!("{name}.blocks");
        let split = draft.add(at, &stem, (&table([outer, inner]), &format!("reshape({value})")));
        let mut sequence: Vec<u64> = (0..array.dims.len() as u64 + 2).collect();
        sequence.swap(dim, dim + 1);
        let text = format!("transpose({split}), dimensions={{{}}}", dim_list(&sequence));
        let turned = draft.add(at, &stem, (&table([inner, outer]), &text));
        let (shape, text) = (array_text(module, array), format!("reshape({turned})"));
        match self.opcode() {
            Opcode::AllGather => self.last(draft, &shape, &text),
            _ => draft.add(at, &stem, (&shape, &text)),
        }
    }
}

/// One of the collectives.
struct LevelStep<'p> {
    opcode: Opcode,
    groups: &'p Vec<Vec<u32>>,
    /// By which factors the dimension grows and shrinks.
    grows: u64,
    shrinks: u64,
    /// The first keeps the channel.
    is_first: bool,
}

impl LevelStep<'_> {
    fn name(&self) -> &'static str {
        match self.opcode {
            Opcode::AllGather => "all-gather",
            Opcode::ReduceScatter => "reduce-scatter",
            _ => "all-reduce",
        }
    }
}
