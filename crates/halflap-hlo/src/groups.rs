//! The participants of a collective, as sets of devices.
//!
//! Replica groups are written as lists, as an iota that is reshaped and transposed, or as axes of a
//! mesh; their numbers mean replicas, partitions or devices, depending on other attributes. Here
//! they become devices: replica times the number of partitions plus partition.

use std::collections::HashSet;

use super::error::Problem;
use super::lex::numbers_in;
use super::{Array, Module, Opcode, Phase, Shape};
use crate::ids::InstrId;

/// Sets of devices that communicate among themselves.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReplicaGroups {
    /// Each set as written; the order within a set is that of the data.
    pub groups: Vec<Vec<u32>>,
    /// For a permutation, the sources and targets.
    pub pairs: Vec<(u32, u32)>,
}

/// A mesh of more devices than this is not expanded: no cluster is that large, and a typo must not
/// exhaust memory.
const MOST_DEVICES: u64 = 1 << 22;

/// How many replicas there are, and how many partitions each has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Devices {
    pub replicas: u32,
    pub partitions: u32,
}

impl Devices {
    /// How many there are in all.
    pub fn count(self) -> u64 {
        u64::from(self.replicas) * u64::from(self.partitions)
    }
}

/// The number of devices if the text does not give it: as many as its collectives name.
#[derive(Clone, Copy, Debug)]
pub(super) struct Assumed {
    pub(super) least: Devices,
    along: Along,
}

/// Whether more devices means more replicas or more partitions.
#[derive(Clone, Copy, Debug)]
enum Along {
    Replicas,
    Partitions,
}

impl Assumed {
    /// The given number of devices; `None` if collectives name more, or if the number is
    /// impossible.
    pub(super) fn of(self, count: u32) -> Option<Assumed> {
        let Devices { replicas, partitions } = self.least;
        let (kept, least) = match self.along {
            Along::Replicas => (partitions, replicas),
            Along::Partitions => (replicas, partitions),
        };
        let grown =
            count.checked_div(kept).filter(|&grown| grown >= least && grown * kept == count)?;
        let least = match self.along {
            Along::Replicas => Devices { replicas: grown, partitions },
            Along::Partitions => Devices { replicas, partitions: grown },
        };
        Some(Assumed { least, ..self })
    }
}

/// The devices of a module whose text does not say how many there are.
pub(super) fn assumed(module: &Module) -> Option<Assumed> {
    if module
        .module_attribute("replica_count")
        .or(module.module_attribute("num_partitions"))
        .is_some()
    {
        return None;
    }
    let (mut replicas, mut partitions, mut devices) = (1, 1, 1);
    let mut along = Along::Replicas;
    // Most collectives have the same groups. Looked up only.
    let mut known: HashSet<(Meaning, &str)> = HashSet::new();
    for instr in module.instructions.ids() {
        if module.instruction(instr).opcode == Opcode::PartitionId {
            along = Along::Partitions;
        }
        let text = KEYS.iter().find_map(|key| module.attribute(instr, key));
        let group = shared_among(module, instr);
        // Without replica groups all devices are in one.
        let text = text.or_else(|| message_text(module, instr)).or(group.map(|_| ""));
        let Some(text) = text else { continue };
        let meaning = meaning(module, instr);
        if group.is_none() && !known.insert((meaning, text)) {
            continue;
        }
        let count = named(text).max(group.unwrap_or(1));
        let of_meaning = match meaning {
            Meaning::Replicas | Meaning::ReplicasWhole => &mut replicas,
            Meaning::Partitions => &mut partitions,
            Meaning::Devices => &mut devices,
        };
        *of_meaning = count.max(*of_meaning);
        if matches!(meaning, Meaning::Partitions | Meaning::Devices) {
            along = Along::Partitions;
        }
    }
    let partitions = partitions.max(devices.div_ceil(replicas));
    let fits = replicas.checked_mul(partitions).is_some_and(|all| all <= MOST_DEVICES);
    let least = match fits {
        true => Devices { replicas: replicas as u32, partitions: partitions as u32 },
        false => Devices { replicas: 1, partitions: 1 },
    };
    Some(Assumed { least, along })
}

/// How many devices there must be for groups or pairs to name them.
fn named(text: &str) -> u64 {
    let most = match read_groups(text, MOST_DEVICES) {
        Ok(groups) => groups.into_iter().flatten().max().map(u64::from),
        Err(_) => {
            numbers_in(text).into_iter().filter_map(|number| u64::try_from(number).ok()).max()
        }
    };
    most.map_or(1, |most| most + 1)
}

/// How many devices share an all-gather's result or a reduce-scatter's operand, which empty groups
/// do not say.
fn shared_among(module: &Module, instr: InstrId) -> Option<u64> {
    let instruction = module.instruction(instr);
    if !matches!(instruction.opcode.begun(), Opcode::AllGather | Opcode::ReduceScatter) {
        return None;
    }
    let is_start = instruction.opcode.phase() == Some(Phase::Start);
    let result = if is_start { instruction.shape.parts().get(1)? } else { &instruction.shape };
    let first = |shape: &Shape| {
        let mut leaves = Vec::new();
        shape.leaves(&mut leaves);
        leaves.first().and_then(|leaf| leaf.array().map(Array::elements))
    };
    let sizes = [first(module.operand_shape(module.operands(instr).first()?))?, first(result)?];
    let (least, most) = (sizes[0].min(sizes[1]), sizes[0].max(sizes[1]));
    most.checked_div(least)
}

/// What the numbers in replica groups mean.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Meaning {
    /// Replicas; each partition has its own groups.
    Replicas,
    /// Partitions; each replica has its own groups.
    Partitions,
    /// Replicas, and all partitions of each take part.
    ReplicasWhole,
    Devices,
}

impl ReplicaGroups {
    pub(super) fn of(module: &Module, instr: InstrId) -> ReplicaGroups {
        let devices = module.devices();
        let all = devices.count();
        let meaning = meaning(module, instr);
        if let Some(text) = module.attribute(instr, "source_target_pairs") {
            return ReplicaGroups::permutation(text, meaning, devices);
        }
        let mut groups = match module.attribute(instr, "replica_groups") {
            // Whether they can be parsed was checked when the module was read.
            Some(text) => read_groups(text, all).unwrap_or_default(),
            None => Vec::new(),
        };
        if groups.iter().all(Vec::is_empty) {
            let everyone = match meaning {
                Meaning::Replicas | Meaning::ReplicasWhole => u64::from(devices.replicas),
                Meaning::Partitions => u64::from(devices.partitions),
                Meaning::Devices => all,
            };
            groups = vec![(0..everyone.min(MOST_DEVICES) as u32).collect()];
        }
        ReplicaGroups { groups: as_devices(&groups, meaning, devices), pairs: Vec::new() }
    }

    fn permutation(text: &str, meaning: Meaning, devices: Devices) -> ReplicaGroups {
        let numbers: Vec<u32> =
            numbers_in(text).into_iter().filter_map(|number| u32::try_from(number).ok()).collect();
        let pairs: Vec<Vec<u32>> = numbers.chunks_exact(2).map(<[u32]>::to_vec).collect();
        let pairs = as_devices(&pairs, meaning, devices);
        ReplicaGroups {
            groups: joined(&pairs),
            pairs: pairs.iter().map(|pair| (pair[0], pair[1])).collect(),
        }
    }

    /// How many devices take part in a group; the maximum if groups differ.
    pub fn group_size(&self) -> u32 {
        self.groups.iter().map(Vec::len).max().map_or(1, |size| size as u32)
    }

    /// Whether some group of one and some group of another share more than one device: then they
    /// must not communicate at once.
    pub fn share_two(&self, other: &ReplicaGroups) -> bool {
        let mut of_device: Vec<Option<usize>> = Vec::new();
        for (index, group) in other.groups.iter().enumerate() {
            for &device in group {
                let device = device as usize;
                if device >= of_device.len() && device < MOST_DEVICES as usize {
                    of_device.resize(device + 1, None);
                }
                if let Some(slot) = of_device.get_mut(device) {
                    *slot = Some(index);
                }
            }
        }
        let shares = |group: &Vec<u32>| {
            let mut met: Vec<usize> =
                group.iter().filter_map(|&device| *of_device.get(device as usize)?).collect();
            met.sort_unstable();
            met.windows(2).any(|pair| pair[0] == pair[1])
        };
        self.groups.iter().any(shares)
    }

    /// For display: `{0-7}`, `{0,2},{1,3}`, `16 groups of 4: {0-3},{4-7},...`.
    pub fn describe(&self) -> String {
        const SHOWN: usize = 4;
        let sets: Vec<String> =
            self.groups.iter().take(SHOWN).map(|group| describe_set(group)).collect();
        match self.groups.len() > SHOWN {
            true => format!(
                "{} groups of {}: {},...",
                self.groups.len(),
                self.group_size(),
                sets.join(",")
            ),
            false => sets.join(","),
        }
    }
}

/// `{0-7}`, `{0,8,16}`; a long one is cut in the middle.
fn describe_set(group: &[u32]) -> String {
    const SHOWN: usize = 8;
    let mut sorted = group.to_vec();
    sorted.sort_unstable();
    let is_run = sorted.windows(2).all(|pair| pair[1] == pair[0] + 1);
    match sorted[..] {
        [first, .., last] if is_run && sorted.len() > 2 => format!("{{{first}-{last}}}"),
        _ => {
            let shown: Vec<String> = sorted.iter().take(SHOWN).map(u32::to_string).collect();
            format!("{{{}{}}}", shown.join(","), if sorted.len() > SHOWN { ",..." } else { "" })
        }
    }
}

/// The attribute of a send or recv that gives the sources and targets of messages.
const MESSAGE_KEY: &str = "_xla_send_recv_source_target_pairs";

/// Those pairs, as they are written.
fn message_text(module: &Module, instr: InstrId) -> Option<&str> {
    let is_message = matches!(module.instruction(instr).opcode, Opcode::Send | Opcode::Recv);
    let attributes = module.attribute(instr, "frontend_attributes").filter(|_| is_message)?;
    let (_, rest) = attributes.split_once(MESSAGE_KEY)?;
    let text = rest.trim_start().strip_prefix('=')?.trim_start().trim_start_matches('"');
    let mut depth = 0;
    let end = text.find(|letter: char| {
        depth += i32::from(letter == '{') - i32::from(letter == '}');
        depth == 0
    })?;
    text.get(..=end)
}

/// The sources and targets of a send's or recv's messages, as devices; `None` if it does not say.
pub(super) fn message_pairs(module: &Module, instr: InstrId) -> Option<Vec<(u32, u32)>> {
    let devices = module.devices();
    // Without partitions the numbers can only be replicas.
    let meaning = if devices.partitions == 1 { Meaning::Replicas } else { meaning(module, instr) };
    Some(ReplicaGroups::permutation(message_text(module, instr)?, meaning, devices).pairs)
}

fn meaning(module: &Module, instr: InstrId) -> Meaning {
    let has_channel = module.attribute(instr, "channel_id").is_some_and(|id| id.trim() != "0");
    let is_global = module.attribute(instr, "use_global_device_ids") == Some("true");
    let opcode = match module.instruction(instr).opcode {
        Opcode::Wrapped(_, wrapped) => wrapped.opcode(),
        other => other,
    };
    let in_pairs = matches!(
        opcode,
        Opcode::AllToAll
            | Opcode::RaggedAllToAll
            | Opcode::CollectivePermute
            | Opcode::CollectivePermuteStart
            | Opcode::CollectiveBroadcast
            | Opcode::Send
            | Opcode::Recv
    );
    match (has_channel, is_global) {
        (false, _) => Meaning::Replicas,
        (true, true) => Meaning::Devices,
        (true, false) if in_pairs => Meaning::Partitions,
        (true, false) => Meaning::ReplicasWhole,
    }
}

/// A device as replica groups write it: a replica or a partition, if that is what they number.
pub(super) struct WrittenDevice {
    pub(super) what: &'static str,
    pub(super) number: u64,
    /// How many there are of them.
    pub(super) count: u64,
}

/// How the groups of a collective write a device, which may not exist.
pub(super) fn as_written(module: &Module, instr: InstrId, device: u64) -> WrittenDevice {
    let all = module.devices();
    let (replicas, partitions) = (u64::from(all.replicas), u64::from(all.partitions));
    match meaning(module, instr) {
        Meaning::Replicas | Meaning::ReplicasWhole if partitions > 1 => {
            WrittenDevice { what: "replica", number: device / partitions, count: replicas }
        }
        Meaning::Partitions if replicas > 1 => {
            let before = (device / partitions).min(replicas - 1) * partitions;
            WrittenDevice { what: "partition", number: device - before, count: partitions }
        }
        _ => WrittenDevice { what: "device", number: device, count: all.count() },
    }
}

/// The attributes that name devices.
pub(super) const KEYS: [&str; 2] = ["replica_groups", "source_target_pairs"];

/// How many devices the value of such an attribute names, or why it cannot be read.
pub(super) fn check(key: &str, text: &str) -> Result<u64, Problem> {
    if key == "source_target_pairs" {
        return check_pairs(text);
    }
    // The number of devices affects the meaning, not whether it can be parsed.
    let groups = read_groups(text, MOST_DEVICES)?;
    Ok(groups.iter().map(|group| group.len() as u64).sum())
}

fn check_pairs(text: &str) -> Result<u64, Problem> {
    let numbers = numbers_in(text);
    let devices = numbers.iter().filter(|&&number| u32::try_from(number).is_ok()).count();
    match devices == numbers.len() && devices % 2 == 0 {
        true => Ok(devices as u64),
        false => {
            Err(Problem::BadGroups("pairs of devices: from where to where, as in {{0,1},{1,0}}"))
        }
    }
}

/// The groups of a notation with `all` devices; none if it lists no device.
fn read_groups(text: &str, all: u64) -> Result<Vec<Vec<u32>>, Problem> {
    const LIST: &str = "lists of devices, as in {{0,1},{2,3}}, or {} for everyone";
    const MESH: &str =
        "some of a mesh's axes, of at most 4194304 devices, each once: mesh['a'=2,'b'=4] {'b'}";
    const IOTA: &str = "an iota of as many devices as there are in all groups, at most 4194304: [4,2]<=[2,4]T(1,0)";
    let text = text.trim();
    let (groups, right) = match text.as_bytes().first() {
        Some(b'{') => (read_lists(text), LIST),
        Some(b'm' | b'@') => (read_mesh(text, all), MESH),
        _ => (read_iota(text), IOTA),
    };
    groups.ok_or(Problem::BadGroups(right))
}

/// `{{0,1},{2,3}}`, with any spaces.
fn read_lists(text: &str) -> Option<Vec<Vec<u32>>> {
    let list = |part: &str| -> Option<Vec<u32>> {
        let inner = part.trim().trim_start_matches(',').trim_start().strip_prefix('{')?.trim();
        if inner.is_empty() {
            return Some(Vec::new());
        }
        inner.split(',').map(|number| number.trim().parse().ok()).collect()
    };
    let inner = text.strip_prefix('{')?.strip_suffix('}')?.trim();
    if inner.is_empty() {
        return Some(Vec::new());
    }
    inner.strip_suffix('}')?.split('}').map(list).collect()
}

/// `[4,2]<=[2,4]T(1,0)`: numbers from 0 on, reshaped, transposed and split into groups.
fn read_iota(text: &str) -> Option<Vec<Vec<u32>>> {
    let (shape, iota) = text.split_once("<=")?;
    let shape = extents(shape)?;
    let flat = reordered(iota)?;
    let size = *shape.last()? as usize;
    let whole = shape.iter().try_fold(1u64, |product, &dim| product.checked_mul(dim))?;
    (size > 0 && whole == flat.len() as u64)
        .then(|| flat.chunks(size).map(<[u32]>::to_vec).collect())
}

/// `mesh['a'=2,'b'=4] {'b'}`, with an optional order of devices: those that differ only along the
/// named axes form a group. An axis may be taken in part: `'a':(1)2`.
fn read_mesh(text: &str, all: u64) -> Option<Vec<Vec<u32>>> {
    let open = text.find('[')?;
    let close = open + text[open..].find(']')?;
    let axis = |part: &str| {
        let (name, size) = part.rsplit_once('=')?;
        Some((name.trim().trim_matches(['\'', '"']).to_owned(), size.trim().parse::<u64>().ok()?))
    };
    let inner = text[open + 1..close].trim();
    let axes: Vec<(String, u64)> = if inner.is_empty() {
        Vec::new()
    } else {
        inner.split(',').map(axis).collect::<Option<_>>()?
    };
    let dims: Vec<u64> = axes.iter().map(|(_, size)| *size).collect();
    let total = dims
        .iter()
        .try_fold(1u64, |product, &dim| product.checked_mul(dim))
        .filter(|total| (1..=MOST_DEVICES).contains(total))?;
    let rest = &text[close + 1..];
    let braces = rest.rfind('{')?;
    let ids = mesh_devices(&rest[..braces], total)?;
    let named: Vec<&str> = rest[braces + 1..]
        .split('}')
        .next()?
        .split(',')
        .map(str::trim)
        .filter(|name| !name.is_empty())
        .collect();
    let (dims, taken) = split_axes(&axes, &named)?;
    if named.is_empty() {
        return Some(if total <= all.max(1) { vec![ids] } else { Vec::new() });
    }
    let kept: Vec<usize> = (0..dims.len()).filter(|axis| !taken.contains(axis)).collect();
    let size: u64 = taken.iter().map(|&axis| dims[axis]).product();
    let order: Vec<usize> = kept.into_iter().chain(taken).collect();
    let flat = transposed(&dims, &order)?;
    let device = |index: &u32| ids.get(*index as usize).copied();
    flat.chunks(usize::try_from(size).ok()?.max(1))
        .map(|group| group.iter().map(device).collect())
        .collect()
}

/// The devices of a mesh in the order of its axes: from 0 on, unless the text says otherwise
/// (`device_ids=([4,2]T(1,0))` or a list).
fn mesh_devices(text: &str, total: u64) -> Option<Vec<u32>> {
    let Some((_, given)) = text.split_once("device_ids=") else {
        return Some((0..total as u32).collect());
    };
    let given = given.trim().strip_prefix('(')?.strip_suffix(')')?.trim();
    let ids = match given.starts_with('[') {
        true => reordered(given.split_once("<=").map_or(given, |(_, iota)| iota))?,
        false => given.split(',').map(|id| id.trim().parse().ok()).collect::<Option<Vec<u32>>>()?,
    };
    let mut sorted = ids.clone();
    sorted.sort_unstable();
    let is_each_once = sorted.windows(2).all(|pair| pair[0] != pair[1]);
    (ids.len() as u64 == total && is_each_once).then_some(ids)
}

/// `[2,4]T(1,0)`: the numbers from 0 on, read with the dimensions in another order.
fn reordered(text: &str) -> Option<Vec<u32>> {
    let (dims, order) = match text.split_once('T') {
        Some((dims, order)) => (extents(dims)?, Some(order)),
        None => (extents(text)?, None),
    };
    let order = order
        .map_or_else(|| Some((0..dims.len()).collect()), |order| permutation(order, dims.len()))?;
    transposed(&dims, &order)
}

/// The mesh's axes, with partially used ones split, and which of them are used, in the order in
/// which they are named.
fn split_axes(axes: &[(String, u64)], named: &[&str]) -> Option<(Vec<u64>, Vec<usize>)> {
    /// An axis, and where in it a part begins and how long it is.
    struct Cut {
        axis: usize,
        before: u64,
        size: u64,
    }
    let mut cuts = Vec::with_capacity(named.len());
    for name in named {
        let (name, part) =
            name.split_once(":(").map_or((*name, None), |(name, part)| (name, Some(part)));
        let name = name.trim().trim_matches(['\'', '"']);
        let axis = axes.iter().position(|(axis, _)| axis == name)?;
        let (before, size) = match part {
            None => (1, axes[axis].1),
            Some(part) => {
                let (before, size) = part.split_once(')')?;
                (before.parse().ok()?, size.parse().ok()?)
            }
        };
        cuts.push(Cut { axis, before, size });
    }
    let mut dims = Vec::new();
    let mut taken = vec![0; cuts.len()];
    for (axis, &(_, size)) in axes.iter().enumerate() {
        let mut parts: Vec<usize> = (0..cuts.len()).filter(|&cut| cuts[cut].axis == axis).collect();
        parts.sort_by_key(|&cut| cuts[cut].before);
        let mut done = 1u64;
        for cut in parts {
            let Cut { before, size, .. } = cuts[cut];
            if before < done || before % done != 0 || size == 0 {
                return None;
            }
            dims.push(before / done);
            taken[cut] = dims.len();
            dims.push(size);
            done = before.checked_mul(size)?;
        }
        if size % done != 0 {
            return None;
        }
        dims.push(size / done);
    }
    Some((dims, taken))
}

/// `[2,4]` to its numbers.
fn extents(text: &str) -> Option<Vec<u64>> {
    let inner = text.trim().strip_prefix('[')?.strip_suffix(']')?;
    inner.split(',').map(|part| part.trim().parse().ok()).collect()
}

/// `(1,0)` to its numbers, if they are a permutation.
fn permutation(text: &str, len: usize) -> Option<Vec<usize>> {
    let numbers = text.trim().strip_prefix('(')?.strip_suffix(')')?.split(',');
    let order: Vec<usize> =
        numbers.map(|number| number.trim().parse().ok()).collect::<Option<_>>()?;
    let mut sorted = order.clone();
    sorted.sort_unstable();
    (sorted == (0..len).collect::<Vec<_>>()).then_some(order)
}

/// The numbers from 0 on in an array of `dims`, read with its dimensions in another order.
fn transposed(dims: &[u64], order: &[usize]) -> Option<Vec<u32>> {
    let total = dims
        .iter()
        .try_fold(1u64, |product, &dim| product.checked_mul(dim))
        .filter(|total| (1..=MOST_DEVICES).contains(total))?;
    let stride = |axis: usize| dims[axis + 1..].iter().product::<u64>();
    let strides: Vec<(u64, u64)> = order.iter().map(|&axis| (dims[axis], stride(axis))).collect();
    let at = |index: u64| {
        let mut left = index;
        let mut number = 0;
        for &(dim, stride) in strides.iter().rev() {
            number += left % dim * stride;
            left /= dim;
        }
        number as u32
    };
    Some((0..total).map(at).collect())
}

fn as_devices(groups: &[Vec<u32>], meaning: Meaning, devices: Devices) -> Vec<Vec<u32>> {
    let Devices { replicas, partitions } = devices;
    let copies = |count: u32, device: &dyn Fn(u32, u32) -> u32| -> Vec<Vec<u32>> {
        let copy = |copy: u32| {
            groups.iter().map(move |group| group.iter().map(|&id| device(copy, id)).collect())
        };
        (0..count).flat_map(copy).collect()
    };
    let fits = groups.iter().map(Vec::len).sum::<usize>() as u64
        * u64::from(replicas.max(partitions))
        <= MOST_DEVICES;
    match meaning {
        _ if !fits => groups.to_vec(),
        Meaning::Devices => groups.to_vec(),
        Meaning::Replicas => copies(partitions, &|partition, id| {
            id.saturating_mul(partitions).saturating_add(partition)
        }),
        Meaning::Partitions => {
            copies(replicas, &|replica, id| replica.saturating_mul(partitions).saturating_add(id))
        }
        Meaning::ReplicasWhole => {
            let whole = |&id: &u32| {
                (0..partitions)
                    .map(move |partition| id.saturating_mul(partitions).saturating_add(partition))
            };
            groups.iter().map(|group| group.iter().flat_map(whole).collect()).collect()
        }
    }
}

/// The sets of devices that pairs join, directly or through others, each ascending.
fn joined(pairs: &[Vec<u32>]) -> Vec<Vec<u32>> {
    let mut sets: Vec<Vec<u32>> = Vec::new();
    let mut devices: Vec<u32> = pairs.iter().flatten().copied().collect();
    devices.sort_unstable();
    devices.dedup();
    let place = |device: u32| devices.binary_search(&device).unwrap_or(0);
    let mut parent: Vec<usize> = (0..devices.len()).collect();
    fn top(parent: &mut [usize], mut index: usize) -> usize {
        while parent[index] != index {
            parent[index] = parent[parent[index]];
            index = parent[index];
        }
        index
    }
    for pair in pairs {
        let (a, b) = (top(&mut parent, place(pair[0])), top(&mut parent, place(pair[1])));
        parent[a.max(b)] = a.min(b);
    }
    let mut set_of = vec![usize::MAX; devices.len()];
    for (index, &device) in devices.iter().enumerate() {
        let top = top(&mut parent, index);
        if set_of[top] == usize::MAX {
            set_of[top] = sets.len();
            sets.push(Vec::new());
        }
        sets[set_of[top]].push(device);
    }
    sets
}

#[cfg(test)]
mod tests {
    use super::*;

    fn groups(notation: &str) -> Vec<Vec<u32>> {
        read_groups(notation, 8).unwrap()
    }

    #[test]
    fn every_notation() {
        assert_eq!(groups("{{0,1},{2,3}}"), [[0, 1], [2, 3]]);
        assert_eq!(groups("[2,4]<=[8]"), [[0, 1, 2, 3], [4, 5, 6, 7]]);
        assert_eq!(groups("[4,2]<=[2,4]T(1,0)"), [[0, 4], [1, 5], [2, 6], [3, 7]]);
        assert_eq!(groups("mesh['a'=2,'b'=4] {'b'}"), [[0, 1, 2, 3], [4, 5, 6, 7]]);
        assert_eq!(groups("mesh['a'=2,'b'=4] {'a'}"), [[0, 4], [1, 5], [2, 6], [3, 7]]);
        assert_eq!(groups("mesh['a'=2,'b'=2,'c'=2] {'c','a'}"), [[0, 4, 1, 5], [2, 6, 3, 7]]);
        assert_eq!(groups("mesh['a'=8] {'a':(2)2}"), [[0, 2], [1, 3], [4, 6], [5, 7]]);
        assert_eq!(groups("mesh['a'=2,'b'=2], device_ids=([2,2]T(1,0)) {'b'}"), [[0, 2], [1, 3]]);
        let by_columns = [[0, 2, 4, 6], [1, 3, 5, 7]];
        assert_eq!(groups("mesh['a'=2,'b'=4], device_ids=([4,2]T(1,0)) {'b'}"), by_columns);
        assert_eq!(groups("mesh['a'=2,'b'=4], device_ids=(0,2,4,6,1,3,5,7) {'b'}"), by_columns);
        assert_eq!(groups("{ {0, 1}, {2} }"), [vec![0, 1], vec![2]]);
        assert!(groups("{}").is_empty() && groups("{{}}") == [Vec::<u32>::new()]);
    }

    #[test]
    fn what_names_nobody_is_refused() {
        let bad = [
            "[4,3]<=[8]",
            "[2,4]<=[2,2,2]T(2,0,0)",
            "[2,4]<=[2,4]T",
            "[4000000000,4000000000]<=[16000000000000000000]",
            "[1,1000000000]<=[1000000000]",
            "[0,2]<=[0]",
            "[9999999999,2]<=[9999999999,2]",
            "mesh['a'=2] {'b'}",
            "mesh['a'=2,'b'=2] {'a','a'}",
            "mesh['a'=2,'b'=2], device_ids=(0,1,2,2) {'a'}",
            "mesh['a'=2,'b'=2], device_ids=(0,1,2,-3) {'a'}",
            "mesh['a'=2,'b'=2], device_ids=([2,3]T(1,0)) {'a'}",
            "mesh['a'=2] ",
            "mesh['a'=0] {'a'}",
            "{{-1,2}}",
            "{{0,1},{2,x}}",
            "{0,1}",
            "{{0,1},{2,3}",
            "{{99999999999}}",
            "everyone",
            "",
        ];
        for text in bad {
            assert!(matches!(check("replica_groups", text), Err(Problem::BadGroups(_))), "{text}");
        }
        for text in ["{{0,1},{1}}", "{{0,-1}}"] {
            assert!(check("source_target_pairs", text).is_err(), "{text}");
        }
        assert!(
            check("source_target_pairs", "{{0,1},{1,0}}").is_ok()
                && check("source_target_pairs", "{}").is_ok()
        );
    }

    fn of(attributes: &str, opcode: &str) -> ReplicaGroups {
        let text = format!(
            "HloModule m, replica_count=2, num_partitions=2\nENTRY e {{\n  p = f32[8] parameter(0)\n  ROOT c = f32[8] {opcode}(p){attributes}\n}}\n"
        );
        let module = Module::read(text).unwrap();
        module.replica_groups(module.root(module.entry()))
    }

    #[test]
    fn numbers_become_devices() {
        assert_eq!(of(", replica_groups={{0,1}}", "all-reduce").groups, [[0, 2], [1, 3]]);
        assert_eq!(of(", replica_groups={}", "all-reduce").groups, [[0, 2], [1, 3]]);
        let channel = ", channel_id=1, replica_groups={{0},{1}}";
        assert_eq!(of(channel, "all-reduce").groups, [[0, 1], [2, 3]]);
        assert_eq!(of(channel, "all-to-all").groups, [[0], [1], [2], [3]]);
        let global = ", channel_id=1, replica_groups={{0,3},{1,2}}, use_global_device_ids=true";
        assert_eq!(of(global, "all-reduce").groups, [[0, 3], [1, 2]]);
        let ring = of(", channel_id=1, source_target_pairs={{0,1},{1,0}}", "collective-permute");
        assert_eq!(ring.groups, [[0, 1], [2, 3]]);
        assert_eq!(ring.pairs, [(0, 1), (1, 0), (2, 3), (3, 2)]);
    }

    #[test]
    fn who_must_take_turns() {
        let rows = ReplicaGroups { groups: groups("[2,2]<=[4]"), ..Default::default() };
        let columns = ReplicaGroups { groups: groups("[2,2]<=[2,2]T(1,0)"), ..Default::default() };
        let all = ReplicaGroups { groups: groups("[1,4]<=[4]"), ..Default::default() };
        assert!(!rows.share_two(&columns) && rows.share_two(&all) && all.share_two(&columns));
        assert_eq!(
            (all.describe(), columns.describe()),
            ("{0-3}".to_owned(), "{0,2},{1,3}".to_owned())
        );
    }
}
