//! What is gathered twice is gathered once, and kept until its last reader.
//!
//! Backward passes gather weights again, behind barriers that keep compilers from seeing that both
//! gathers give the same. Values in a module never change, so equal operands are enough. Where the
//! second gather is read only for something small, such as rows of a table that are looked up, what
//! the first one was read for is kept instead of all that was gathered.

use std::collections::{BTreeMap, BTreeSet};

use super::given::{GivenId, GivenValues, is_made};
use super::{FoundKeep, KeptValue, Recipe, RecipeSubject, Refusal};
use crate::draft::{Draft, DraftLine};
use crate::ids::InstrId;
use crate::split::shape_text;
use crate::{Module, Opcode};
use halflap::units::Bytes;

/// How many values are followed from a gather to what it is read for.
const MOST_FOLLOWED: usize = 256;

/// The gathers of a module that give the same as an earlier one, with what can be kept for them, in
/// text order.
pub(super) fn found(subject: &RecipeSubject<'_>) -> Vec<FoundKeep> {
    let mut meanings = GivenValues::new(subject);
    let classes = classes(&mut meanings);
    let mut found = Vec::new();
    for members in classes {
        let made = KeptParts::of(&mut meanings, &members);
        for (members, kept) in made.choices(&members) {
            let plan = plan(&mut meanings, &members, &kept);
            found.extend(plan.ok().map(|plan| plan.found()));
        }
    }
    found
}

/// The gathers of a module that give the same as an earlier one, grouped with it, in text order.
fn classes(meanings: &mut GivenValues<'_, '_>) -> Vec<Vec<InstrId>> {
    let subject = meanings.subject;
    let mut classes: Vec<Vec<InstrId>> = Vec::new();
    for computation in subject.places() {
        let mut by_meaning: BTreeMap<GivenId, Vec<InstrId>> = BTreeMap::new();
        for instr in subject.module.instructions(computation) {
            if subject.opcode(instr) == Opcode::AllGather
                && let Some(meaning) = meanings.of(instr)
            {
                by_meaning.entry(meaning).or_default().push(instr);
            }
        }
        let plans = by_meaning.into_values().filter(|members| alike(subject, members).is_ok());
        classes.extend(plans);
    }
    // Instructions that only the repeated gathers read are removed with them.
    let again: BTreeSet<InstrId> =
        classes.iter().flat_map(|members| &members[1..]).copied().collect();
    let is_read = |&member: &InstrId| subject.users[member].iter().any(|at| !again.contains(at));
    classes.retain(|members| members[1..].iter().any(is_read));
    classes.sort_unstable();
    classes
}

/// The repeated gathers of a class for which less than the whole can be kept, and what that is.
#[derive(Default)]
struct KeptParts {
    again: Vec<InstrId>,
    kept: BTreeSet<InstrId>,
}

/// The least that can be kept in place of a value.
struct LeastKept {
    kept: BTreeSet<InstrId>,
    size: Bytes,
}

impl KeptParts {
    fn of(meanings: &mut GivenValues<'_, '_>, members: &[InstrId]) -> KeptParts {
        let mut parts = KeptParts::default();
        for &again in &members[1..] {
            let Some(least) = least_kept(meanings, again) else { continue };
            let all: BTreeSet<InstrId> = parts.kept.union(&least.kept).copied().collect();
            if size_of(meanings.subject, &all) < size_of(meanings.subject, &members[..1]) {
                parts.again.push(again);
                parts.kept = all;
            }
        }
        parts
    }

    /// Which gathers can be left out, and what is kept for them: the whole for all; or parts where
    /// these are enough, and the whole for the rest.
    fn choices(self, members: &[InstrId]) -> Vec<(Vec<InstrId>, Vec<InstrId>)> {
        let first = members[0];
        let whole = |members: Vec<InstrId>| (members, vec![first]);
        let mut choices = vec![whole(members.to_vec())];
        if self.again.is_empty() {
            return choices;
        }
        let rest = members.iter().copied().filter(|member| !self.again.contains(member));
        let rest: Vec<InstrId> = rest.collect();
        let made = std::iter::once(first).chain(self.again).collect();
        choices.push((made, self.kept.into_iter().collect()));
        if rest.len() > 1 {
            choices.push(whole(rest));
        }
        choices
    }
}

fn size_of<'a>(subject: &RecipeSubject<'_>, of: impl IntoIterator<Item = &'a InstrId>) -> Bytes {
    let module = subject.module;
    of.into_iter().map(|&instr| module.size_in(&module.instruction(instr).shape, 0)).sum()
}

/// The smallest values, computed earlier, that are equal to what a repeated gather is read for;
/// `None` if it is also read for something that is not computed earlier.
fn least_kept(meanings: &mut GivenValues<'_, '_>, again: InstrId) -> Option<LeastKept> {
    let subject = meanings.subject;
    let (mut open, mut followed) = (vec![again], BTreeSet::new());
    while let Some(value) = open.pop() {
        for &user in &subject.users[value] {
            // What has no equal is not made into something that has one.
            let has_equal = meanings.earlier(user).is_some();
            if has_equal && followed.insert(user) && is_passed(subject, user) {
                open.push(user);
            }
        }
        if followed.len() > MOST_FOLLOWED {
            return None;
        }
    }
    let mut least: BTreeMap<InstrId, LeastKept> = BTreeMap::new();
    for &value in followed.iter().rev() {
        let made = of_users(subject, &least, value).filter(|_| is_passed(subject, value));
        let own = meanings.earlier(value).filter(|&earlier| stands_for(subject, earlier, value));
        let own = own.map(|of| LeastKept { kept: [of].into(), size: size_of(subject, &[of]) });
        let both = own.into_iter().chain(made);
        if let Some(of) = both.min_by_key(|least| least.size) {
            least.insert(value, of);
        }
    }
    of_users(subject, &least, again)
}

/// The least that is kept for all readers of a value; `None` if there are none, or nothing is
/// enough for one of them.
fn of_users(
    subject: &RecipeSubject<'_>,
    least: &BTreeMap<InstrId, LeastKept>,
    value: InstrId,
) -> Option<LeastKept> {
    let mut kept = BTreeSet::new();
    for user in &subject.users[value] {
        kept.extend(&least.get(user)?.kept);
    }
    let size = size_of(subject, &kept);
    (!kept.is_empty()).then_some(LeastKept { kept, size })
}

/// Whether a value can go if what is made of it is there.
fn is_passed(subject: &RecipeSubject<'_>, instr: InstrId) -> bool {
    is_made(subject.module, instr) && !subject.is_root(instr) && subject.changeable(instr).is_ok()
}

/// Whether a value can have another one's place, if they are equal.
fn stands_for(subject: &RecipeSubject<'_>, kept: InstrId, instead_of: InstrId) -> bool {
    let module = subject.module;
    let of = |instr: InstrId| subject.array(instr).map(|array| (array, module.str(array.layout)));
    let is_alike = match (of(kept), of(instead_of)) {
        (Ok((a, a_layout)), Ok((b, b_layout))) => {
            (a.element, &a.dims, a_layout) == (b.element, &b.dims, b_layout)
        }
        _ => false,
    };
    is_alike && kept < instead_of && subject.changeable(instead_of).is_ok()
}

/// What becomes of gathers that give the same.
pub(super) struct KeepPlan<'s, 'm> {
    subject: &'s RecipeSubject<'m>,
    members: Vec<InstrId>,
    /// What has its value from something earlier, and from what.
    instead: BTreeMap<InstrId, InstrId>,
    /// The repeated gathers and what is made of them, up to that.
    gone: BTreeSet<InstrId>,
}

/// What becomes of them if these values are kept, or why they cannot be one.
pub(super) fn plan<'s, 'm>(
    meanings: &mut GivenValues<'s, 'm>,
    members: &[InstrId],
    kept: &[InstrId],
) -> Result<KeepPlan<'s, 'm>, Refusal> {
    let subject = meanings.subject;
    alike(subject, members)?;
    let first = meanings.of(members[0]);
    if members.iter().any(|&member| meanings.of(member) != first) {
        return Err(Refusal::NotSame);
    }
    // By what they give.
    let kept: BTreeMap<Option<GivenId>, InstrId> =
        kept.iter().map(|&kept| (meanings.of(kept), kept)).collect();
    let (mut instead, mut gone) = (BTreeMap::new(), BTreeSet::new());
    let mut open: Vec<InstrId> = members[1..].to_vec();
    while let Some(value) = open.pop() {
        match kept.get(&meanings.of(value)) {
            Some(&kept) if stands_for(subject, kept, value) => {
                instead.insert(value, kept);
            }
            _ if members[1..].contains(&value) || is_passed(subject, value) => {
                if gone.insert(value) {
                    open.extend(&subject.users[value]);
                }
            }
            _ => return Err(Refusal::WholeUsed),
        }
    }
    let used: BTreeSet<InstrId> = instead.values().copied().collect();
    let is_all_used = kept.values().all(|kept| used.contains(kept));
    if !is_all_used || used.iter().any(|kept| gone.contains(kept)) {
        return Err(Refusal::NotSame);
    }
    Ok(KeepPlan { subject, members: members.to_vec(), instead, gone })
}

/// Whether they are the same apart from their operands.
fn alike(subject: &RecipeSubject<'_>, members: &[InstrId]) -> Result<(), Refusal> {
    let module = subject.module;
    let &[first, ref again @ ..] = members else { return Err(Refusal::NotSame) };
    if again.is_empty() || !members.is_sorted_by(|a, b| a < b) {
        return Err(Refusal::NotSame);
    }
    let layout = |instr: InstrId| subject.array(instr).map(|array| module.str(array.layout));
    for &member in members {
        if subject.opcode(member) != Opcode::AllGather {
            return Err(Refusal::Kind);
        }
        subject.changeable(member)?;
        if layout(member)? != layout(first)? {
            return Err(Refusal::Layout);
        }
    }
    Ok(())
}

impl KeepPlan<'_, '_> {
    fn found(&self) -> FoundKeep {
        let name = |instr: &InstrId| self.module().instruction_name(*instr).to_owned();
        let mut kept: BTreeMap<InstrId, Vec<InstrId>> = BTreeMap::new();
        for (&value, &instead) in &self.instead {
            kept.entry(instead).or_default().push(value);
        }
        let members = self.members.iter().map(name).collect();
        let names = kept.keys().map(name).collect();
        let kept = kept.into_iter().map(|(value, instead_of)| KeptValue { value, instead_of });
        FoundKeep {
            recipe: Recipe::Keep { members, kept: names },
            again: self.members[1..].to_vec(),
            kept: kept.collect(),
        }
    }

    /// Writes it; returns the name of the gather that stays.
    pub(super) fn write(self, draft: &mut Draft<'_>) -> Result<String, Refusal> {
        let changed = self.instead.iter().flat_map(|(value, kept)| [value, kept]);
        let mut all = changed.chain(&self.members).chain(&self.gone);
        if !all.all(|&instr| draft.is_untouched(instr)) {
            return Err(Refusal::Changed);
        }
        let module = self.module();
        for (&value, &kept) in &self.instead {
            let (percent, name) = (draft.percent(value), module.instruction_name(kept).to_owned());
            let mut text = format!("{} bitcast({percent}{name})", shape_text(module, value));
            if let Some(metadata) = module.attribute(value, "metadata") {
                text.push_str(&format!(", metadata={metadata}"));
            }
            let own = module.instruction_name(value).to_owned();
            draft.replace(value, DraftLine { name: own, text, reads: vec![name] });
        }
        self.gone.iter().for_each(|&instr| draft.remove(instr));
        self.remove_unread(draft);
        Ok(module.instruction_name(self.members[0]).to_owned())
    }

    fn module(&self) -> &Module {
        self.subject.module
    }

    /// Leaves out what only these were computed from.
    fn remove_unread(&self, draft: &mut Draft<'_>) {
        let module = self.module();
        let makers = |instr: InstrId| module.operands(instr).iter().map(|operand| operand.of);
        let changed = self.instead.keys().chain(&self.gone);
        let mut open: BTreeSet<InstrId> = changed.flat_map(|&instr| makers(instr)).collect();
        while let Some(instr) = open.pop_last() {
            let opcode = self.subject.opcode(instr);
            let is_plain = matches!(opcode, Opcode::GetTupleElement | Opcode::AllGather)
                || is_made(module, instr);
            let is_free = is_plain
                && draft.is_untouched(instr)
                && !self.subject.is_root(instr)
                && self.subject.changeable(instr).is_ok();
            if is_free && !draft.is_read(instr, &self.subject.users[instr]) {
                draft.remove(instr);
                open.extend(makers(instr));
            }
        }
    }
}
