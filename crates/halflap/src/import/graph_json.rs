//! The shape of `halflap.graph/1`, and its names resolved to ids.

use std::collections::HashMap;
use std::fmt;
use std::marker::PhantomData;

use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserializer, Error as _, MapAccess, Visitor};
use serde::{Deserialize, de};

use crate::collective::{CollectiveKind, Dtype, Payload, Reduction};
use crate::graph::{
    BufferParts, Collective, DepKinds, GraphError, GroupKind, GroupParts, OpKind, OpParts, Parts,
    Provenance,
};
use crate::ids::{BufId, GroupId, Id, IdVec, OpId};
use crate::units::{Bytes, Flops, Nanos};

pub(crate) const FORMAT: &str = "halflap.graph/1";

#[derive(Deserialize)]
pub(super) struct RawGraph {
    pub(super) format: String,
    groups: RawGroups,
    nodes: Vec<Object<RawNode>>,
    buffers: Vec<Object<RawBuffer>>,
    inputs: Vec<Object<RawInput>>,
}

/// The groups in file order; a map would hide a duplicate name.
struct RawGroups(Vec<(String, Object<GroupEntry>)>);

#[derive(Deserialize)]
struct GroupEntry {
    ranks: Vec<u32>,
    #[serde(default)]
    kind: RawGroupKind,
    #[serde(default)]
    sets: Vec<Vec<u32>>,
    second_of: Option<String>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "snake_case")]
enum RawGroupKind {
    #[default]
    Ranks,
    Transfer,
}

#[derive(Deserialize)]
struct RawNode {
    name: String,
    kind: RawKind,
    #[serde(deserialize_with = "number_or_null")]
    runtime_ns: Option<Number>,
    flops: Option<Number>,
    bytes: Option<Number>,
    outputs: Vec<String>,
    deps: Vec<Object<RawDep>>,
    #[serde(default)]
    ops: Vec<String>,
    source: Option<String>,
    module: Option<String>,
    parameter: Option<String>,
    kernel: Option<String>,
    #[serde(default)]
    gemm_like: bool,
    collective: Option<Object<RawCollective>>,
}

#[derive(Deserialize, PartialEq)]
#[serde(rename_all = "snake_case")]
enum RawKind {
    Compute,
    Collective,
    Wait,
    MultiOutput,
}

#[derive(Deserialize)]
struct RawDep {
    buffer: String,
    kinds: Vec<RawDepKind>,
}

#[derive(Deserialize, PartialEq)]
#[serde(rename_all = "lowercase")]
enum RawDepKind {
    Data,
    Weak,
    Issued,
    Order,
}

#[derive(Deserialize)]
struct RawCollective {
    op: String,
    group: String,
    group_size: u32,
    bytes: Number,
    #[serde(rename = "async")]
    is_async: bool,
    kind: Option<CollectiveKind>,
    reduction: Option<Reduction>,
    dtype: Option<String>,
    content: Option<String>,
    input_bytes: Option<Number>,
    output_bytes: Option<Number>,
}

#[derive(Deserialize)]
struct RawBuffer {
    name: String,
    size_alloc: Number,
    size_free: Number,
    users: Vec<String>,
    output: bool,
    view_of: Option<String>,
}

#[derive(Deserialize)]
struct RawInput {
    name: String,
    size: Number,
    users: Vec<String>,
    output: bool,
}

/// An object only: serde would also accept a list of the fields' values.
struct Object<T>(T);

/// Any JSON number; its range is checked where the error can name the node.
#[derive(Clone, Copy)]
enum Number {
    Whole(i64),
    Large(u64),
    Float(f64),
}

/// A number, or null for none: the field is required, so that a missing one is an error.
fn number_or_null<'de, D: Deserializer<'de>>(reader: D) -> Result<Option<Number>, D::Error> {
    Option::deserialize(reader)
}

/// Reads the whole of a file from a reader of JSON.
pub(super) fn parse<'de, D: Deserializer<'de>>(reader: D) -> Result<RawGraph, D::Error> {
    Object::deserialize(reader).map(|Object(graph)| graph)
}

/// Resolves names to ids. What the ids say is validated by the graph.
pub(super) fn resolve(raw: RawGraph) -> Result<Parts, GraphError> {
    let names = NodeNames::collect(&raw)?;
    let mut parts = Parts::default();
    for (name, Object(group)) in raw.groups.0 {
        let kind = match group.kind {
            RawGroupKind::Ranks => GroupKind::Ranks,
            RawGroupKind::Transfer => GroupKind::Transfer,
        };
        let second_of = group.second_of.map(|of| names.first(&name, of)).transpose()?;
        let group = GroupParts { name, ranks: group.ranks, kind, sets: group.sets, second_of };
        each_once(&group)?;
        parts.groups.push(group);
    }
    for Object(node) in raw.nodes {
        let op = names.op(node)?;
        if let Some(collective) = &op.collective {
            fits(collective, &parts.groups[collective.group], &op.name)?;
        }
        parts.ops.push(op);
    }
    for (Object(buffer), maker) in raw.buffers.into_iter().zip(names.makers(&parts.ops)) {
        let maker = Some(maker.ok_or_else(|| GraphError::NoMaker { buffer: buffer.name.clone() })?);
        parts.buffers.push(BufferParts {
            size_alloc: whole(buffer.size_alloc, &buffer.name, "size_alloc")?,
            size_free: whole(buffer.size_free, &buffer.name, "size_free")?,
            users: names.users(&buffer.name, &buffer.users)?,
            output: buffer.output,
            view_of: buffer
                .view_of
                .as_ref()
                .map(|of| names.viewed(&buffer.name, of))
                .transpose()?,
            name: buffer.name,
            maker,
        });
    }
    for Object(input) in raw.inputs {
        let size = whole(input.size, &input.name, "size")?;
        parts.buffers.push(BufferParts {
            size_alloc: size,
            size_free: size,
            users: names.users(&input.name, &input.users)?,
            output: input.output,
            view_of: None,
            name: input.name,
            maker: None,
        });
    }
    Ok(parts)
}

/// A rank takes part in a set once.
fn each_once(group: &GroupParts) -> Result<(), GraphError> {
    for set in std::iter::once(&group.ranks).chain(&group.sets) {
        let mut sorted = set.clone();
        sorted.sort_unstable();
        if let Some(pair) = sorted.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(GraphError::TwiceInGroup { group: group.name.clone(), rank: pair[0] });
        }
    }
    Ok(())
}

/// A set has as many ranks as the group, where that is known.
fn fits(collective: &Collective, group: &GroupParts, node: &str) -> Result<(), GraphError> {
    let most = std::iter::once(&group.ranks).chain(&group.sets).map(Vec::len).max().unwrap_or(0);
    let problem = match collective.group_size as usize {
        0 => "no rank at all",
        size if most > 0 && size > most => "more than the group has ranks",
        _ => return Ok(()),
    };
    Err(GraphError::BadNumber {
        node: node.to_owned(),
        field: "collective.group_size",
        value: collective.group_size.to_string(),
        problem,
        right: "the number of ranks that communicate, 1 or more",
    })
}

impl RawCollective {
    /// Files from before `input_bytes` and `output_bytes` have the larger of the two alone.
    fn payload(&self, kind: CollectiveKind, node: &str) -> Result<Payload, GraphError> {
        let wrong = |field, number: Number, problem| GraphError::BadNumber {
            node: node.into(),
            field,
            value: number.to_string(),
            problem,
            right: RIGHT_SIZE,
        };
        let size = |field, number: Number| {
            as_bytes(number).and_then(not_negative).map_err(|problem| wrong(field, number, problem))
        };
        let larger = size("collective.bytes", self.bytes)?;
        let mut payload = Payload::of_larger(kind, self.group_size, larger);
        payload.dtype = self.dtype.as_deref().map(Dtype::named);
        if let Some(number) = self.input_bytes {
            payload.input = size("collective.input_bytes", number)?;
        }
        if let Some(number) = self.output_bytes {
            payload.output = size("collective.output_bytes", number)?;
        }
        match payload.larger() == larger {
            true => Ok(payload),
            false => {
                let problem = "not the larger of input_bytes and output_bytes";
                Err(wrong("collective.bytes", self.bytes, problem))
            }
        }
    }
}

/// Names to ids. Only looked up, never iterated.
struct NodeNames {
    ops: HashMap<String, OpId>,
    buffers: HashMap<String, BufId>,
    made: usize,
    groups: HashMap<String, GroupId>,
}

impl NodeNames {
    fn collect(raw: &RawGraph) -> Result<NodeNames, GraphError> {
        let buffers = raw
            .buffers
            .iter()
            .map(|buffer| &buffer.0.name)
            .chain(raw.inputs.iter().map(|input| &input.0.name));
        Ok(NodeNames {
            ops: numbered("node", raw.nodes.iter().map(|node| &node.0.name))?,
            buffers: numbered("buffer", buffers)?,
            made: raw.buffers.len(),
            groups: numbered("group", raw.groups.0.iter().map(|(name, _)| name))?,
        })
    }

    /// The group that another one is a second communicator of.
    fn first(&self, group: &str, of: String) -> Result<GroupId, GraphError> {
        let found = self.groups.get(&of).copied();
        found.ok_or_else(|| GraphError::UnknownFirst { group: group.into(), of })
    }

    fn op(&self, node: RawNode) -> Result<OpParts, GraphError> {
        let collective = node
            .collective
            .as_ref()
            .map(|Object(raw)| self.collective(raw, &node.name))
            .transpose()?;
        let deps = node
            .deps
            .iter()
            .map(|Object(dep)| self.dep(dep, &node.name))
            .collect::<Result<_, _>>()?;
        let outputs = node
            .outputs
            .iter()
            .map(|output| self.output(output, &node.name))
            .collect::<Result<_, _>>()?;
        let is_async =
            node.collective.as_ref().is_none_or(|Object(collective)| collective.is_async);
        let kind = match node.kind {
            RawKind::Compute => OpKind::Compute,
            RawKind::Wait => OpKind::Wait,
            RawKind::MultiOutput => OpKind::MultiOutput,
            RawKind::Collective if is_async => OpKind::AsyncCollective,
            RawKind::Collective => OpKind::SyncCollective,
        };
        Ok(OpParts {
            kind,
            runtime: node.runtime_ns.map(|time| Nanos(time.as_f64())),
            flops: node.flops.map(|flops| Flops(flops.as_f64())),
            bytes: node.bytes.map(|bytes| estimate(bytes, &node.name)).transpose()?,
            gemm_like: node.gemm_like,
            collective,
            outputs,
            deps,
            fused: node.ops,
            kernel: node.kernel,
            provenance: Provenance {
                source: node.source.unwrap_or_default(),
                module: node.module.unwrap_or_default(),
                parameter: node.parameter.unwrap_or_default(),
            },
            name: node.name,
        })
    }

    fn collective(&self, raw: &RawCollective, node: &str) -> Result<Collective, GraphError> {
        let unknown = || GraphError::UnknownGroup { node: node.into(), group: raw.group.clone() };
        let group = self.groups.get(&raw.group).copied().ok_or_else(unknown)?;
        let kind = raw.kind.unwrap_or_else(|| CollectiveKind::of(&raw.op));
        let not_said = (!kind.reduces()).then_some(Reduction::None);
        Ok(Collective {
            op: raw.op.clone(),
            kind,
            reduction: raw.reduction.or(not_said),
            group,
            group_size: raw.group_size,
            payload: raw.payload(kind, node)?,
            content: raw.content.clone(),
        })
    }

    fn dep(&self, dep: &RawDep, node: &str) -> Result<(BufId, DepKinds), GraphError> {
        let unknown =
            || GraphError::UnknownBuffer { node: node.into(), buffer: dep.buffer.clone() };
        let buffer = self.buffers.get(&dep.buffer).copied().ok_or_else(unknown)?;
        let has = |kind| dep.kinds.contains(&kind);
        let kinds = DepKinds {
            data: has(RawDepKind::Data),
            weak: has(RawDepKind::Weak),
            issued: has(RawDepKind::Issued),
            order: has(RawDepKind::Order),
        };
        Ok((buffer, kinds))
    }

    /// An output must be among `buffers`; an input of the program has no producer.
    fn output(&self, output: &str, node: &str) -> Result<BufId, GraphError> {
        let made = self.buffers.get(output).copied().filter(|buffer| buffer.index() < self.made);
        made.ok_or_else(|| GraphError::UnknownOutput { node: node.into(), buffer: output.into() })
    }

    fn viewed(&self, buffer: &str, of: &str) -> Result<BufId, GraphError> {
        let unknown = || GraphError::UnknownView { buffer: buffer.into(), of: of.into() };
        self.buffers.get(of).copied().ok_or_else(unknown)
    }

    fn users(&self, buffer: &str, users: &[String]) -> Result<Vec<OpId>, GraphError> {
        let find = |user: &String| {
            let unknown = || GraphError::UnknownUser { buffer: buffer.into(), user: user.clone() };
            self.ops.get(user).copied().ok_or_else(unknown)
        };
        users.iter().map(find).collect()
    }

    /// For each buffer that is made, the first operation that lists it.
    fn makers(&self, ops: &IdVec<OpId, OpParts>) -> Vec<Option<OpId>> {
        let mut makers = vec![None; self.made];
        for (id, op) in ops.iter() {
            for buffer in &op.outputs {
                makers[buffer.index()].get_or_insert(id);
            }
        }
        makers
    }
}

fn numbered<'a, I: Id>(
    what: &'static str,
    names: impl Iterator<Item = &'a String>,
) -> Result<HashMap<String, I>, GraphError> {
    let mut map = HashMap::with_capacity(names.size_hint().0);
    for (index, name) in names.enumerate() {
        if map.insert(name.clone(), I::from_index(index)).is_some() {
            return Err(GraphError::NameUsedTwice { what, name: name.clone() });
        }
    }
    Ok(map)
}

const RIGHT_SIZE: &str = "an integer number of bytes, zero or more";

fn whole(number: Number, buffer: &str, field: &'static str) -> Result<Bytes, GraphError> {
    as_bytes(number).and_then(not_negative).map_err(|problem| GraphError::BadSize {
        buffer: buffer.into(),
        field,
        value: number.to_string(),
        problem,
        right: RIGHT_SIZE,
    })
}

/// A node's traffic is an estimate: where it has a fraction, that is rounded away.
fn estimate(number: Number, node: &str) -> Result<Bytes, GraphError> {
    let rounded = match number {
        Number::Float(float) => Number::Float(float.round()),
        whole => whole,
    };
    as_bytes(rounded).and_then(not_negative).map_err(|problem| GraphError::BadNumber {
        node: node.into(),
        field: "bytes",
        value: number.to_string(),
        problem,
        right: "a number of bytes, zero or more",
    })
}

fn as_bytes(number: Number) -> Result<Bytes, &'static str> {
    match number {
        Number::Whole(whole) => Ok(Bytes(whole)),
        Number::Large(_) => Err("too large: it overflows"),
        Number::Float(float) if float.abs() >= i64::MAX as f64 => Err("too large: it overflows"),
        Number::Float(float) if float.fract() != 0.0 => Err("not an integer"),
        Number::Float(float) => Ok(Bytes(float as i64)),
    }
}

fn not_negative(size: Bytes) -> Result<Bytes, &'static str> {
    if size < Bytes::ZERO { Err("negative") } else { Ok(size) }
}

impl Number {
    fn as_f64(self) -> f64 {
        match self {
            Number::Whole(whole) => whole as f64,
            Number::Large(large) => large as f64,
            Number::Float(float) => float,
        }
    }
}

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Number::Whole(whole) => whole.fmt(f),
            Number::Large(large) => large.fmt(f),
            Number::Float(float) if float.abs() >= 1e21 => write!(f, "{float:e}"),
            Number::Float(float) => float.fmt(f),
        }
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Objects<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for Objects<T> {
            type Value = Object<T>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Object<T>, A::Error> {
                T::deserialize(MapAccessDeserializer::new(map)).map(Object)
            }
        }
        deserializer.deserialize_map(Objects(PhantomData))
    }
}

impl<'de> Deserialize<'de> for Number {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Numbers;
        impl Visitor<'_> for Numbers {
            type Value = Number;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number")
            }
            fn visit_i64<E: de::Error>(self, value: i64) -> Result<Number, E> {
                Ok(Number::Whole(value))
            }
            fn visit_u64<E: de::Error>(self, value: u64) -> Result<Number, E> {
                Ok(i64::try_from(value).map_or(Number::Large(value), Number::Whole))
            }
            fn visit_f64<E: de::Error>(self, value: f64) -> Result<Number, E> {
                Ok(Number::Float(value))
            }
        }
        deserializer.deserialize_f64(Numbers)
    }
}

impl<'de> Deserialize<'de> for RawGroups {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Groups;
        impl<'de> Visitor<'de> for Groups {
            type Value = RawGroups;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of process groups by name")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RawGroups, A::Error> {
                let mut groups: Vec<(String, Object<GroupEntry>)> = Vec::new();
                while let Some((name, group)) = map.next_entry()? {
                    if groups.iter().any(|(seen, _)| *seen == name) {
                        return Err(A::Error::custom(format!(
                            "group name '{name}' is used twice: each must be unique"
                        )));
                    }
                    groups.push((name, group));
                }
                Ok(RawGroups(groups))
            }
        }
        deserializer.deserialize_map(Groups)
    }
}
