//! Several collectives as one with several operands: nothing is copied, and latency is paid once.

use std::collections::BTreeMap;

use super::{Apart, ChangeError, Recipe, RecipeSubject, Refusal};
use crate::draft::{Draft, DraftLine};
use crate::ids::{ComputationId, InstrId};
use crate::nature::{payload, reduction};
use crate::split::shape_text;
use crate::{ElementType, Module, Opcode};
use halflap::collective::{CollectiveKind, Reduction};
use halflap::ids::{Id, IdVec};
use halflap::units::Bytes;

/// Collectives that can be merged with each other, in text order.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MergeClass {
    /// The collectives and their payloads.
    pub members: Vec<(String, Bytes)>,
    /// Whether merging them keeps every bit.
    pub is_exact: bool,
}

impl MergeClass {
    /// The members in sets of neighbours, each of at most this many bytes; no set of one.
    pub fn sets(&self, most: Bytes) -> Vec<Recipe> {
        let mut sets: Vec<(Vec<String>, Bytes)> = Vec::new();
        for (name, size) in &self.members {
            match sets.last_mut() {
                Some((set, held)) if *held + *size <= most => {
                    set.push(name.clone());
                    *held += *size;
                }
                _ => sets.push((vec![name.clone()], *size)),
            }
        }
        let sets = sets.into_iter().map(|(members, _)| members);
        sets.filter(|set| set.len() > 1).map(|members| Recipe::Merge { members }).collect()
    }

    /// The payload of all members.
    pub fn bytes(&self) -> Bytes {
        self.members.iter().map(|(_, size)| *size).sum()
    }
}

/// What members have in common.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct MergeKey {
    computation: ComputationId,
    kind: &'static str,
    element: &'static str,
    groups: Vec<Vec<u32>>,
    dimensions: Vec<i64>,
    /// How they reduce; an unusual reduction is identified by its computation's name.
    reduction: String,
    /// Whether they have channels, and other attributes that must agree.
    words: Vec<Option<String>>,
}

/// The key of a collective that can be merged at all.
pub(super) fn key(subject: &RecipeSubject<'_>, instr: InstrId) -> Result<MergeKey, Refusal> {
    let module = subject.module;
    let kind = match subject.opcode(instr) {
        Opcode::AllReduce => CollectiveKind::AllReduce,
        Opcode::AllGather => CollectiveKind::AllGather,
        Opcode::ReduceScatter => CollectiveKind::ReduceScatter,
        _ => return Err(Refusal::Kind),
    };
    let [operand] = module.operands(instr) else { return Err(Refusal::Variadic) };
    subject.changeable(instr)?;
    let array = module.operand_shape(operand).array().ok_or(Refusal::Variadic)?;
    if array.dynamic || matches!(array.element, ElementType::Other { .. }) {
        return Err(Refusal::Dynamic);
    }
    let reduction = match reduction(module, instr, kind) {
        Some(Reduction::Other) | None => module.attribute(instr, "to_apply").unwrap_or("").into(),
        Some(known) => format!("{known:?}"),
    };
    let word = |key: &str| module.attribute(instr, key).map(str::to_owned);
    let has_channel = module.attribute(instr, "channel_id").map(|_| String::new());
    Ok(MergeKey {
        computation: module.computation_of(instr),
        kind: kind.name(),
        element: array.element.name(),
        groups: module.replica_groups(instr).groups,
        dimensions: module.numbers(instr, "dimensions"),
        reduction,
        words: vec![
            has_channel,
            word("use_global_device_ids"),
            word("backend_config"),
            word("frontend_attributes"),
        ],
    })
}

/// The first difference of two keys, in words.
fn difference(a: &MergeKey, b: &MergeKey) -> Option<Apart> {
    let differ = |what| Some(Apart::Differ { what });
    match () {
        () if a.computation != b.computation => Some(Apart::Computations),
        () if a.kind != b.kind => differ("kind"),
        () if a.element != b.element => differ("type"),
        () if a.groups != b.groups => differ("groups"),
        () if a.dimensions != b.dimensions => differ("dimension"),
        () if a.reduction != b.reduction => differ("reduction"),
        () if a.words != b.words => differ("attributes"),
        () => None,
    }
}

/// The classes of a module. Members have the same number of such collectives before them on the
/// longest path, so that no set of merges depends on itself.
pub(super) fn classes(subject: &RecipeSubject<'_>) -> Vec<MergeClass> {
    let module = subject.module;
    let names = subject.named();
    let mut classes: BTreeMap<(MergeKey, u32), Vec<InstrId>> = BTreeMap::new();
    for computation in subject.places() {
        let mut depth: IdVec<InstrId, u32> = IdVec::filled(0, 0);
        let base = module.instructions(computation).next().map_or(0, |first| first.index());
        for instr in module.instructions(computation) {
            let before = module.operands(instr).iter().map(|operand| operand.of);
            let before = before.chain(module.control_predecessors(instr));
            let before = before.map(|of| depth[InstrId::from_index(of.index() - base)]).max();
            let key = key(subject, instr);
            depth.push(before.unwrap_or(0) + u32::from(key.is_ok()));
            let is_named = names.contains_key(module.instruction_name(instr));
            if let (Ok(key), true) = (key, is_named) {
                classes.entry((key, before.unwrap_or(0))).or_default().push(instr);
            }
        }
    }
    let class = |members: Vec<InstrId>| MergeClass {
        is_exact: members.iter().all(|&member| {
            subject.opcode(member) != Opcode::AllReduce || subject.is_order_free(member)
        }),
        members: members.into_iter().map(|member| described(module, member)).collect(),
    };
    classes.into_values().filter(|members| members.len() > 1).map(class).collect()
}

fn described(module: &Module, member: InstrId) -> (String, Bytes) {
    let carried = payload(module, member);
    (module.instruction_name(member).to_owned(), carried.input.max(carried.output))
}

/// Writes one collective for several; returns its name.
pub(super) fn write(
    subject: &RecipeSubject<'_>,
    draft: &mut Draft<'_>,
    members: &[InstrId],
) -> Result<String, ChangeError> {
    check(subject, draft, members)?;
    let module = subject.module;
    let (first, last) = match members {
        [first, .., last] => (*first, *last),
        _ => return Err(ChangeError::TooFew { count: members.len() }),
    };
    let name = draft.fresh(&merged_name(module.instruction_name(first), members.len()));
    let operands: Vec<_> = members.iter().map(|&member| module.operands(member)[0]).collect();
    let texts: Vec<String> = operands.iter().map(|operand| draft.operand(operand)).collect();
    let shapes: Vec<String> = members.iter().map(|&member| shape_text(module, member)).collect();
    let mut text =
        format!("({}) {}({})", shapes.join(", "), module.opcode_name(first), texts.join(", "));
    for (key, value) in module.attributes(first).filter(|(key, _)| *key != "sharding") {
        text.push_str(&format!(", {key}={value}"));
    }
    let reads =
        operands.iter().map(|operand| module.instruction_name(operand.of).to_owned()).collect();
    draft.replace(last, DraftLine { name: name.clone(), text, reads });
    for (index, &member) in members.iter().enumerate() {
        let line = draft.element(member, &name, index);
        draft.replace(member, line);
    }
    Ok(name)
}

/// `all-gather.7` of three: `all-gather.7_x3`.
fn merged_name(first: &str, count: usize) -> String {
    format!("{first}_x{count}")
}

/// Why members cannot be merged.
fn check(
    subject: &RecipeSubject<'_>,
    draft: &Draft<'_>,
    members: &[InstrId],
) -> Result<(), ChangeError> {
    let module = subject.module;
    let name = |instr: InstrId| module.instruction_name(instr).to_owned();
    let apart = |first: InstrId, second: InstrId, why| ChangeError::NotTogether {
        first: name(first),
        second: name(second),
        why,
    };
    let keyed = |&member: &InstrId| {
        let key = match draft.is_untouched(member) {
            true => key(subject, member),
            false => Err(Refusal::Changed),
        };
        key.map_err(|why| ChangeError::Refused { name: name(member), why })
    };
    let keys = members.iter().map(keyed).collect::<Result<Vec<MergeKey>, _>>()?;
    for (at, (&member, key)) in members.iter().zip(&keys).enumerate().skip(1) {
        if members[..at].contains(&member) {
            return Err(apart(members[0], member, Apart::Same));
        }
        if let Some(why) = difference(&keys[0], key) {
            return Err(apart(members[0], member, why));
        }
    }
    match dependent(subject, members) {
        Some(second) => Err(apart(members[0], second, Apart::Dependent)),
        None => Ok(()),
    }
}

/// A member that depends on another.
fn dependent(subject: &RecipeSubject<'_>, members: &[InstrId]) -> Option<InstrId> {
    let module = subject.module;
    let computation = module.computation_of(*members.first()?);
    let base = module.instructions(computation).next()?.index();
    let mut after = vec![false; module.instructions(computation).len()];
    for instr in module.instructions(computation) {
        let operands = module.operands(instr).iter().map(|operand| operand.of);
        let mut before = operands.chain(module.control_predecessors(instr));
        let is_after = before.any(|of| after[of.index() - base]);
        if is_after && members.contains(&instr) {
            return Some(instr);
        }
        after[instr.index() - base] = is_after || members.contains(&instr);
    }
    None
}
