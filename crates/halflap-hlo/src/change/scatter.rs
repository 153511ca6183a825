//! A reduce-scatter replaces an all-reduce of which a rank uses only its own slice.
//!
//! Elementwise operations between the all-reduce and the slices move to the slice. A sum over the
//! sliced dimension becomes a sum over the slice and an all-reduce of the result, which is small.
//! Anything else needs the whole array: then the all-reduce stays, or, if elementwise operations
//! come first, they move to slices, and an all-gather of what they give follows.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use super::offsets::Offsets;
use super::{RecipeSubject, Refusal};
use crate::draft::{Draft, DraftLine, array_text};
use crate::ids::InstrId;
use crate::nature::reduction;
use crate::{Array, Module, Opcode, Operand, ReplicaGroups};
use halflap::collective::{CollectiveKind, Reduction};

/// The change to an all-reduce.
pub(super) struct ScatterPlan<'s, 'm> {
    subject: &'s RecipeSubject<'m>,
    all_reduce: InstrId,
    cut: ScatterCut,
    /// What is computed on the slice: the all-reduce, and elementwise instructions after it,
    /// ascending.
    region: Vec<InstrId>,
    /// The slices, with what they slice.
    slices: Vec<(InstrId, InstrId)>,
    /// Sums over the sliced dimension, with what they sum.
    sums: Vec<(InstrId, InstrId)>,
    /// What is computed on the slice and needed as a whole, ascending.
    wholes: Vec<InstrId>,
}

/// How an array is divided among the ranks of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ScatterCut {
    dim: usize,
    size: u64,
    /// Which devices have which slice.
    groups: ScatterGroups,
}

/// The groups of the reduce-scatter: the order of members decides who gets which slice.
#[derive(Clone, Debug, PartialEq, Eq)]
enum ScatterGroups {
    /// As they are written for the all-reduce.
    Same,
    /// The same sets in another order.
    Listed(Vec<Vec<u32>>),
}

/// The change to an all-reduce, or why there is none.
pub(super) fn plan<'s, 'm>(
    subject: &'s RecipeSubject<'m>,
    offsets: &mut Offsets<'m>,
    all_reduce: InstrId,
) -> Result<ScatterPlan<'s, 'm>, Refusal> {
    let (module, whole) = (subject.module, reduced(subject, all_reduce)?);
    let (region, leaves) = region(subject, all_reduce, whole)?;
    let is_slice = |leaf: &&(InstrId, InstrId)| subject.opcode(leaf.0) == Opcode::DynamicSlice;
    let slices: Vec<_> = leaves.iter().filter(is_slice).copied().collect();
    let sums: Vec<_> = leaves.iter().filter(|leaf| !is_slice(leaf)).copied().collect();
    let mut cuts = slices.iter().map(|&(slice, _)| cut(subject, offsets, all_reduce, slice));
    let first = cuts.next().ok_or(Refusal::WholeUsed)??;
    for other in cuts {
        if other? != first {
            return Err(Refusal::Offsets);
        }
    }
    let sums_cut = |&(sum, _): &(InstrId, InstrId)| {
        module.numbers(sum, "dimensions").contains(&(first.dim as i64))
    };
    let is_same_everywhere = sums.is_empty() || is_fixed(subject, &region, all_reduce);
    let wholes = Vec::new();
    match sums.iter().all(sums_cut) && is_same_everywhere {
        true => Ok(ScatterPlan { subject, all_reduce, cut: first, region, slices, sums, wholes }),
        false => Err(Refusal::WholeUsed),
    }
}

/// The result of an all-reduce of one array.
fn reduced<'m>(subject: &RecipeSubject<'m>, all_reduce: InstrId) -> Result<&'m Array, Refusal> {
    match (subject.opcode(all_reduce), subject.module.operands(all_reduce)) {
        (Opcode::AllReduce, [_]) => subject.array(all_reduce),
        (Opcode::AllReduce, _) => Err(Refusal::Variadic),
        _ => Err(Refusal::Kind),
    }
}

/// Whether what is applied to slices is the same on all ranks: each rank applies its own values to
/// its slice, and only constants are known to be the same.
fn is_fixed(subject: &RecipeSubject<'_>, region: &[InstrId], all_reduce: InstrId) -> bool {
    let module = subject.module;
    let is_constant = |scalar: &Operand| subject.opcode(scalar.of) == Opcode::Constant;
    let is_known = |operand: &Operand| {
        region.contains(&operand.of) || module.operands(operand.of).iter().all(is_constant)
    };
    let others = region.iter().filter(|&&instr| instr != all_reduce);
    others.into_iter().all(|&instr| module.operands(instr).iter().all(is_known))
}

/// The change to an all-reduce of which the whole is needed, but only after elementwise operations:
/// these move to slices, and an all-gather follows.
pub(super) fn plan_gathered<'s, 'm>(
    subject: &'s RecipeSubject<'m>,
    all_reduce: InstrId,
) -> Result<ScatterPlan<'s, 'm>, Refusal> {
    let (module, array) = (subject.module, reduced(subject, all_reduce)?);
    subject.changeable(all_reduce)?;
    let groups = whole_groups(module, all_reduce)?;
    let count = groups.first().map_or(0, Vec::len) as u64;
    let is_divided = |extent: &u64| *extent > 0 && extent.is_multiple_of(count);
    let dim = array.dims.iter().position(is_divided).ok_or(Refusal::NotDivided)?;
    let size = array.dims[dim] / count;
    let cut = ScatterCut { dim, size, groups: ScatterGroups::Same };
    let ChainAfter { region, sums, wholes } = chain(subject, all_reduce, dim);
    let bytes = |instr: InstrId| {
        let array = module.instruction(instr).shape.array();
        array.map_or(0, |array| array.elements() * u64::from(array.element.bits()))
    };
    let gathered: u64 = wholes.iter().map(|&whole| bytes(whole)).sum();
    match wholes.contains(&all_reduce) || wholes.is_empty() || gathered > bytes(all_reduce) {
        true => Err(Refusal::WholeUsed),
        false => {
            Ok(ScatterPlan { subject, all_reduce, cut, region, slices: Vec::new(), sums, wholes })
        }
    }
}

/// What follows an all-reduce and can be computed on slices.
struct ChainAfter {
    region: Vec<InstrId>,
    sums: Vec<(InstrId, InstrId)>,
    wholes: Vec<InstrId>,
}

/// Elementwise instructions after an all-reduce that need nothing else but constants, the sums over
/// a dimension of their results, and what others need as a whole.
fn chain(subject: &RecipeSubject<'_>, all_reduce: InstrId, dim: usize) -> ChainAfter {
    let module = subject.module;
    let dims = module.instruction(all_reduce).shape.array().map_or(&[][..], |array| &array.dims);
    let mut region = BTreeSet::from([all_reduce]);
    let (mut sums, mut wholes) = (Vec::new(), BTreeSet::new());
    let mut open: BTreeSet<InstrId> = subject.users[all_reduce].iter().copied().collect();
    // Producers come first, so all operands of the next one are decided.
    while let Some(user) = open.pop_first() {
        let operands = module.operands(user);
        let is_constant = |scalar: &Operand| subject.opcode(scalar.of) == Opcode::Constant;
        let is_known = |operand: &Operand| {
            region.contains(&operand.of)
                || is_spread_scalar(module, operand.of)
                    && module.operands(operand.of).iter().all(is_constant)
        };
        // Fewer bytes are gathered before a value is widened.
        let bits = |instr: InstrId| {
            module.instruction(instr).shape.array().map_or(0, |array| array.element.bits())
        };
        let is_wider = operands.first().is_some_and(|of| bits(user) > bits(of.of));
        let is_free = !is_wider && subject.changeable(user).is_ok() && subject.array(user).is_ok();
        let is_sum = subject.opcode(user) == Opcode::Reduce
            && is_plain_sum(module, user)
            && module.numbers(user, "dimensions").contains(&(dim as i64));
        if is_free && is_pointwise(module, user, dims) && operands.iter().all(is_known) {
            region.insert(user);
            open.extend(&subject.users[user]);
        } else if is_free && is_sum && region.contains(&operands[0].of) {
            sums.push((user, operands[0].of));
        } else {
            wholes
                .extend(operands.iter().map(|operand| operand.of).filter(|of| region.contains(of)));
        }
    }
    wholes.extend(region.iter().filter(|&&instr| subject.is_root(instr)));
    let (region, wholes) = (region.into_iter().collect(), wholes.into_iter().collect());
    ChainAfter { region, sums, wholes }
}

/// The groups of a collective, if they have the same size and all devices take part.
fn whole_groups(module: &Module, collective: InstrId) -> Result<Vec<Vec<u32>>, Refusal> {
    let ReplicaGroups { groups, .. } = module.replica_groups(collective);
    let count = groups.first().map_or(0, Vec::len);
    let everyone = module.devices().count() as usize;
    let mut members: Vec<u32> = groups.iter().flatten().copied().collect();
    members.sort_unstable();
    let is_everyone = members.iter().enumerate().all(|(at, &member)| at == member as usize);
    let is_even = groups.iter().all(|group| group.len() == count);
    match is_even && is_everyone && members.len() == everyone && count > 1 {
        true => Ok(groups),
        false => Err(Refusal::Groups),
    }
}

type SlicedLeaves = Vec<(InstrId, InstrId)>;

/// Elementwise instructions after an all-reduce, and their readers.
fn region(
    subject: &RecipeSubject<'_>,
    all_reduce: InstrId,
    whole: &Array,
) -> Result<(Vec<InstrId>, SlicedLeaves), Refusal> {
    let module = subject.module;
    let (mut region, mut leaves) = (vec![all_reduce], Vec::new());
    let mut next = 0;
    while let Some(&of) = region.get(next) {
        next += 1;
        subject.array(of)?;
        subject.changeable(of)?;
        if subject.is_root(of) {
            return Err(Refusal::Root);
        }
        for &user in &subject.users[of] {
            let reads = module.operands(user).iter().filter(|operand| operand.of == of).count();
            let is_first = module.operands(user).first().is_some_and(|first| first.of == of);
            match subject.opcode(user) {
                Opcode::DynamicSlice if is_first && reads == 1 => leaves.push((user, of)),
                Opcode::Reduce if is_first && reads == 1 && is_plain_sum(module, user) => {
                    leaves.push((user, of))
                }
                _ if region.contains(&user) => {}
                _ if is_pointwise(module, user, &whole.dims) => region.push(user),
                _ => return Err(Refusal::WholeUsed),
            }
            subject.changeable(user)?;
        }
    }
    region.sort_unstable();
    let is_whole_region = region.iter().filter(|&&instr| instr != all_reduce).all(|&instr| {
        let known = |operand: &Operand| {
            region.contains(&operand.of) || is_spread_scalar(module, operand.of)
        };
        module.operands(instr).iter().all(known)
    });
    if is_whole_region { Ok((region, leaves)) } else { Err(Refusal::WholeUsed) }
}

/// Whether each element of a result depends only on the elements at the same index.
fn is_pointwise(module: &Module, instr: InstrId, dims: &[u64]) -> bool {
    let opcode = module.instruction(instr).opcode;
    let is_same =
        |array: Option<&Array>| array.is_some_and(|array| array.dims == dims && !array.dynamic);
    let is_known = (opcode.is_elementwise() && opcode != Opcode::Map) || opcode == Opcode::Copy;
    // A bitcast-convert can change the number of elements, but not if dimensions are equal.
    is_known
        && is_same(module.instruction(instr).shape.array())
        && module
            .operands(instr)
            .iter()
            .all(|operand| is_same(module.operand_shape(operand).array()))
}

/// The same number in every element.
fn is_spread_scalar(module: &Module, instr: InstrId) -> bool {
    let [operand] = module.operands(instr) else { return false };
    module.instruction(instr).opcode == Opcode::Broadcast
        && module.operand_shape(operand).array().is_some_and(|array| array.dims.is_empty())
}

/// Whether an instruction sums one array, beginning with zero.
fn is_plain_sum(module: &Module, instr: InstrId) -> bool {
    let [_, init] = module.operands(instr) else { return false };
    let is_zero = module.instruction(init.of).opcode == Opcode::Constant
        && module.payload(init.of).trim() == "0";
    is_zero && reduction(module, instr, CollectiveKind::AllReduce) == Some(Reduction::Sum)
}

/// How a slice divides the array, if each rank takes the slice of its position in its group.
fn cut(
    subject: &RecipeSubject<'_>,
    offsets: &mut Offsets<'_>,
    all_reduce: InstrId,
    slice: InstrId,
) -> Result<ScatterCut, Refusal> {
    let module = subject.module;
    let (whole, sliced) = (subject.array(all_reduce)?, subject.array(slice)?);
    let of = module.operands(slice).first().ok_or(Refusal::Offsets)?.of;
    if module.str(sliced.layout) != module.str(subject.array(of)?.layout) {
        return Err(Refusal::Layout);
    }
    let mut shorter = (0..whole.dims.len()).filter(|&dim| sliced.dims[dim] != whole.dims[dim]);
    let (Some(dim), None) = (shorter.next(), shorter.next()) else { return Err(Refusal::Offsets) };
    let size = sliced.dims[dim];
    let groups = whole_groups(module, all_reduce)?;
    let count = groups.first().map_or(0, Vec::len);
    if size.checked_mul(count as u64) != Some(whole.dims[dim]) {
        return Err(Refusal::Offsets);
    }
    let start = module.operands(slice).get(1 + dim).ok_or(Refusal::Offsets)?;
    if !module.path(start).is_empty() {
        return Err(Refusal::Offsets);
    }
    let at = offsets.of(start.of).ok_or(Refusal::Offsets)?;
    Ok(ScatterCut {
        dim,
        size,
        groups: in_sequence(module, all_reduce, &groups, |device| {
            let start = u64::try_from(*at.get(device as usize)?).ok()?;
            (start.is_multiple_of(size)).then(|| start / size)
        })?,
    })
}

/// The groups, with members in the order of their slices.
fn in_sequence(
    module: &Module,
    all_reduce: InstrId,
    groups: &[Vec<u32>],
    place: impl Fn(u32) -> Option<u64>,
) -> Result<ScatterGroups, Refusal> {
    let mut listed = Vec::with_capacity(groups.len());
    for group in groups {
        let mut places = Vec::with_capacity(group.len());
        for &device in group {
            places.push((place(device).ok_or(Refusal::Offsets)?, device));
        }
        places.sort_unstable();
        if places.iter().enumerate().any(|(at, &(place, _))| at as u64 != place) {
            return Err(Refusal::Offsets);
        }
        listed.push(places.into_iter().map(|(_, device)| device).collect::<Vec<u32>>());
    }
    let is_global = module.attribute(all_reduce, "use_global_device_ids") == Some("true");
    match listed == groups {
        true => Ok(ScatterGroups::Same),
        // Only these are written by the numbers of devices.
        false if is_global => Ok(ScatterGroups::Listed(listed)),
        false => Err(Refusal::Offsets),
    }
}

impl ScatterPlan<'_, '_> {
    /// Whether no sum is split.
    pub(super) fn sums_exactly(&self) -> bool {
        self.sums.is_empty()
    }

    /// Writes it; returns the names of the reduce-scatter and of what gathers again.
    pub(super) fn write(self, draft: &mut Draft<'_>) -> Result<String, Refusal> {
        let touched = self.region.iter().chain(self.slices.iter().map(|(slice, _)| slice));
        if !touched.chain(self.sums.iter().map(|(sum, _)| sum)).all(|&i| draft.is_untouched(i)) {
            return Err(Refusal::Changed);
        }
        let mut shards: BTreeMap<InstrId, String> = BTreeMap::new();
        for &instr in &self.region {
            let line = match instr == self.all_reduce {
                true => self.reduce_scatter(draft),
                false => self.pointwise(draft, instr, &mut shards),
            };
            shards.insert(instr, line.name.clone());
            draft.replace(instr, line);
        }
        for &(slice, of) in &self.slices {
            let shard = &shards[&of];
            if self.name(slice) == shard {
                draft.remove(slice);
                continue;
            }
            let (percent, shape) = (draft.percent(slice), self.shape(slice, None));
            let text = format!("{shape} bitcast({percent}{shard}){}", self.metadata(slice));
            let line =
                DraftLine { name: self.name(slice).to_owned(), text, reads: vec![shard.clone()] };
            draft.replace(slice, line);
        }
        for &(sum, of) in &self.sums {
            self.sum(draft, sum, &shards[&of]);
        }
        let mut names = vec![shards[&self.all_reduce].clone()];
        for &whole in &self.wholes {
            self.gather(draft, whole, &shards[&whole]);
            names.push(self.name(whole).to_owned());
        }
        Ok(names.join(", "))
    }

    fn name(&self, instr: InstrId) -> &str {
        self.subject.module.instruction_name(instr)
    }

    /// The name of an instruction's slice: that of the first instruction that slices it.
    fn shard_name(&self, draft: &mut Draft<'_>, instr: InstrId) -> String {
        match self.slices.iter().find(|(_, of)| *of == instr) {
            Some(&(slice, _)) => self.name(slice).to_owned(),
            None if instr == self.all_reduce => {
                draft.fresh(&self.name(instr).replace("all-reduce", "reduce-scatter"))
            }
            None => draft.fresh(&format!("{}.shard", self.name(instr))),
        }
    }

    /// An instruction's shape, with another extent of the sliced dimension.
    fn shape(&self, instr: InstrId, size: Option<u64>) -> String {
        let module = self.subject.module;
        let Some(array) = module.instruction(instr).shape.array() else { return String::new() };
        match size {
            Some(size) => array_text(module, &array.with_extent(self.cut.dim, size)),
            None => array_text(module, array),
        }
    }

    fn metadata(&self, instr: InstrId) -> String {
        let metadata = self.subject.module.attribute(instr, "metadata");
        metadata.map_or(String::new(), |text| format!(", metadata={text}"))
    }

    /// The attributes for the participants, with a new channel if the old one has a channel.
    fn participants(&self, groups: &ScatterGroups, channel: Option<u64>, reduces: bool) -> String {
        let module = self.subject.module;
        let attribute = |key: &str| module.attribute(self.all_reduce, key);
        let mut text = String::new();
        if let Some(own) = attribute("channel_id") {
            let channel = channel.map_or_else(|| own.to_owned(), |channel| channel.to_string());
            text.push_str(&format!(", channel_id={channel}"));
        }
        let listed = match groups {
            ScatterGroups::Same => attribute("replica_groups").map(str::to_owned),
            ScatterGroups::Listed(groups) => Some(listed(groups)),
        };
        text.extend(listed.map(|groups| format!(", replica_groups={groups}")));
        let keys: &[&str] = match reduces {
            true => &["use_global_device_ids", "to_apply"],
            false => &["use_global_device_ids"],
        };
        for key in keys {
            text.extend(attribute(key).map(|value| format!(", {key}={value}")));
        }
        text
    }

    fn reduce_scatter(&self, draft: &mut Draft<'_>) -> DraftLine {
        let module = self.subject.module;
        let name = self.shard_name(draft, self.all_reduce);
        let operand = &module.operands(self.all_reduce)[0];
        let (dim, shape) = (self.cut.dim, self.shape(self.all_reduce, Some(self.cut.size)));
        let text = format!(
            "{shape} reduce-scatter({}){}, dimensions={{{dim}}}{}",
            draft.operand(operand),
            self.participants(&self.cut.groups, None, true),
            self.metadata(self.all_reduce)
        );
        DraftLine { name, text, reads: vec![module.instruction_name(operand.of).to_owned()] }
    }

    /// An elementwise instruction on slices.
    fn pointwise(
        &self,
        draft: &mut Draft<'_>,
        instr: InstrId,
        shards: &mut BTreeMap<InstrId, String>,
    ) -> DraftLine {
        let module = self.subject.module;
        let name = self.shard_name(draft, instr);
        let percent = draft.percent(instr);
        for operand in module.operands(instr) {
            if let Entry::Vacant(shard) = shards.entry(operand.of) {
                let scalar = &module.operands(operand.of)[0];
                let name = draft.fresh(&format!("{}.shard", self.name(operand.of)));
                let shape = self.shape(operand.of, Some(self.cut.size));
                let text = format!("{shape} broadcast({}), dimensions={{}}", draft.operand(scalar));
                let reads = vec![self.name(scalar.of).to_owned()];
                draft.replace(instr, DraftLine { name: name.clone(), text, reads });
                shard.insert(name);
            }
        }
        let reads: Vec<String> =
            module.operands(instr).iter().map(|operand| shards[&operand.of].clone()).collect();
        let operands: Vec<String> = reads.iter().map(|name| format!("{percent}{name}")).collect();
        let mut text = format!(
            "{} {}({})",
            self.shape(instr, Some(self.cut.size)),
            module.opcode_name(instr),
            operands.join(", ")
        );
        // The partitioner's annotation describes the whole array, and is wrong for a slice.
        for (key, value) in module.attributes(instr).filter(|(key, _)| *key != "sharding") {
            text.push_str(&format!(", {key}={value}"));
        }
        DraftLine { name, text, reads }
    }

    /// All slices of an instruction's result, under its name.
    fn gather(&self, draft: &mut Draft<'_>, whole: InstrId, shard: &str) {
        let (percent, shape, dim) = (draft.percent(whole), self.shape(whole, None), self.cut.dim);
        let channel = draft.fresh_channel();
        let participants = self.participants(&self.cut.groups, Some(channel), false);
        let text = format!(
            "{shape} all-gather({percent}{shard}){participants}, dimensions={{{dim}}}{}",
            self.metadata(whole)
        );
        let (name, reads) = (self.name(whole).to_owned(), vec![shard.to_owned()]);
        draft.replace(whole, DraftLine { name, text, reads });
    }

    /// A sum over slices, and an all-reduce of it.
    fn sum(&self, draft: &mut Draft<'_>, sum: InstrId, shard: &str) {
        let module = self.subject.module;
        let (percent, shape) = (draft.percent(sum), self.shape(sum, None));
        let init = &module.operands(sum)[1];
        let part = draft.fresh(&format!("{}.shard", self.name(sum)));
        let mut text = format!("{shape} reduce({percent}{shard}, {})", draft.operand(init));
        for (key, value) in module.attributes(sum).filter(|(key, _)| *key != "sharding") {
            text.push_str(&format!(", {key}={value}"));
        }
        let reads = vec![shard.to_owned(), self.name(init.of).to_owned()];
        draft.replace(sum, DraftLine { name: part.clone(), text, reads });
        let channel = draft.fresh_channel();
        let participants = self.participants(&ScatterGroups::Same, Some(channel), true);
        let own = module.attribute(self.all_reduce, "to_apply").unwrap_or("");
        let reducer = module.attribute(sum, "to_apply").unwrap_or(own);
        let participants =
            participants.replace(&format!("to_apply={own}"), &format!("to_apply={reducer}"));
        let text =
            format!("{shape} all-reduce({percent}{part}){participants}{}", self.metadata(sum));
        draft.replace(sum, DraftLine { name: self.name(sum).to_owned(), text, reads: vec![part] });
    }
}

/// `{{0,1},{2,3}}`.
pub(super) fn listed(groups: &[Vec<u32>]) -> String {
    let group = |group: &Vec<u32>| {
        let devices: Vec<String> = group.iter().map(u32::to_string).collect();
        format!("{{{}}}", devices.join(","))
    };
    format!("{{{}}}", groups.iter().map(group).collect::<Vec<_>>().join(","))
}
