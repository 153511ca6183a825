//! A graph as `halflap.graph/1`: what [`import`](crate::import) reads, written again.

use std::io::{self, Write};

use serde::{Serialize, Serializer};

use crate::collective::{CollectiveKind, Reduction};
use crate::graph::{Collective, DepKinds, Graph, GroupKind, OpKind};
use crate::ids::{BufId, OpId};
use crate::units::Bytes;

/// Writes a graph. Reading it again gives the same graph.
pub fn write_graph(graph: &Graph, out: &mut impl Write) -> io::Result<()> {
    serde_json::to_writer(&mut *out, &GraphDocument(graph))?;
    out.write_all(b"\n")
}

struct GraphDocument<'a>(&'a Graph);

impl Serialize for GraphDocument<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Fields<'a> {
            format: &'static str,
            groups: Groups<'a>,
            nodes: Vec<WrittenNode<'a>>,
            buffers: Vec<Made<'a>>,
            inputs: Vec<GivenBuffer<'a>>,
        }
        let GraphDocument(graph) = *self;
        let (made, given): (Vec<BufId>, Vec<BufId>) =
            graph.buffers().partition(|&buffer| graph.maker(buffer).is_some());
        let fields = Fields {
            format: crate::import::GRAPH_FORMAT,
            groups: Groups(graph),
            nodes: graph.ops().map(|op| WrittenNode::of(graph, op)).collect(),
            buffers: made.into_iter().map(|buffer| Made::of(graph, buffer)).collect(),
            inputs: given.into_iter().map(|buffer| GivenBuffer::of(graph, buffer)).collect(),
        };
        fields.serialize(serializer)
    }
}

struct Groups<'a>(&'a Graph);

impl Serialize for Groups<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Group<'a> {
            ranks: &'a [u32],
            #[serde(skip_serializing_if = "Option::is_none")]
            kind: Option<&'static str>,
            #[serde(skip_serializing_if = "<[_]>::is_empty")]
            sets: &'a [Vec<u32>],
            #[serde(skip_serializing_if = "Option::is_none")]
            second_of: Option<&'a str>,
        }
        serializer.collect_map(self.0.groups().iter().map(|(_, group)| {
            let kind = match group.kind {
                GroupKind::Ranks => None,
                GroupKind::Transfer => Some("transfer"),
            };
            let second_of = group.second_of.map(|of| self.0.groups()[of].name.as_str());
            (&group.name, Group { ranks: &group.ranks, kind, sets: &group.sets, second_of })
        }))
    }
}

#[derive(Serialize)]
struct WrittenNode<'a> {
    name: &'a str,
    kind: &'static str,
    runtime_ns: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    flops: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes: Option<Bytes>,
    outputs: Vec<&'a str>,
    deps: Vec<Dep<'a>>,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    ops: &'a [String],
    #[serde(skip_serializing_if = "str::is_empty")]
    source: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    module: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    parameter: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    kernel: Option<&'a str>,
    #[serde(skip_serializing_if = "is_false")]
    gemm_like: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    collective: Option<Communication<'a>>,
}

#[derive(Serialize)]
struct Dep<'a> {
    buffer: &'a str,
    kinds: Vec<&'static str>,
}

#[derive(Serialize)]
struct Communication<'a> {
    op: &'a str,
    group: &'a str,
    group_size: u32,
    bytes: Bytes,
    #[serde(rename = "async")]
    is_async: bool,
    kind: CollectiveKind,
    #[serde(skip_serializing_if = "Option::is_none")]
    reduction: Option<Reduction>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dtype: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<&'a str>,
    input_bytes: Bytes,
    output_bytes: Bytes,
}

#[derive(Serialize)]
struct Made<'a> {
    name: &'a str,
    size_alloc: Bytes,
    size_free: Bytes,
    users: Vec<&'a str>,
    output: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    view_of: Option<&'a str>,
}

#[derive(Serialize)]
struct GivenBuffer<'a> {
    name: &'a str,
    size: Bytes,
    users: Vec<&'a str>,
    output: bool,
}

impl<'a> WrittenNode<'a> {
    fn of(graph: &'a Graph, op: OpId) -> WrittenNode<'a> {
        let provenance = graph.provenance(op);
        let kind = match graph.kind(op) {
            OpKind::Compute => "compute",
            OpKind::Wait => "wait",
            OpKind::MultiOutput => "multi_output",
            OpKind::AsyncCollective | OpKind::SyncCollective => "collective",
        };
        let is_async = graph.kind(op) == OpKind::AsyncCollective;
        let dep = |&(buffer, kinds): &(BufId, DepKinds)| Dep {
            buffer: graph.buffer_name(buffer),
            kinds: words(kinds),
        };
        WrittenNode {
            name: graph.name(op),
            kind,
            runtime_ns: graph.has_runtime(op).then(|| graph.runtime(op).0),
            flops: graph.flops(op).map(|flops| flops.0),
            bytes: graph.bytes(op),
            outputs: graph.outputs(op).iter().map(|&buffer| graph.buffer_name(buffer)).collect(),
            deps: graph.deps(op).iter().map(dep).collect(),
            ops: graph.fused(op),
            source: &provenance.source,
            module: &provenance.module,
            parameter: &provenance.parameter,
            kernel: graph.kernel(op),
            gemm_like: graph.is_gemm_like(op),
            collective: graph
                .collective(op)
                .map(|collective| Communication::of(graph, collective, is_async)),
        }
    }
}

impl<'a> Communication<'a> {
    fn of(graph: &'a Graph, collective: &'a Collective, is_async: bool) -> Communication<'a> {
        Communication {
            op: &collective.op,
            group: &graph.groups()[collective.group].name,
            group_size: collective.group_size,
            bytes: collective.bytes(),
            is_async,
            kind: collective.kind,
            reduction: collective.reduction,
            dtype: collective.payload.dtype.as_ref().map(|dtype| dtype.name()),
            content: collective.content.as_deref(),
            input_bytes: collective.payload.input,
            output_bytes: collective.payload.output,
        }
    }
}

impl<'a> Made<'a> {
    fn of(graph: &'a Graph, buffer: BufId) -> Made<'a> {
        Made {
            name: graph.buffer_name(buffer),
            size_alloc: graph.size_alloc(buffer),
            size_free: graph.size_free(buffer),
            users: users(graph, buffer),
            output: graph.is_output(buffer),
            view_of: graph.view_of(buffer).map(|of| graph.buffer_name(of)),
        }
    }
}

impl<'a> GivenBuffer<'a> {
    fn of(graph: &'a Graph, buffer: BufId) -> GivenBuffer<'a> {
        GivenBuffer {
            name: graph.buffer_name(buffer),
            size: graph.size_alloc(buffer),
            users: users(graph, buffer),
            output: graph.is_output(buffer),
        }
    }
}

fn users(graph: &Graph, buffer: BufId) -> Vec<&str> {
    graph.users(buffer).iter().map(|&user| graph.name(user)).collect()
}

fn words(kinds: DepKinds) -> Vec<&'static str> {
    let all = [
        ("data", kinds.data),
        ("weak", kinds.weak),
        ("issued", kinds.issued),
        ("order", kinds.order),
    ];
    all.into_iter().filter(|(_, holds)| *holds).map(|(word, _)| word).collect()
}

fn is_false(value: &bool) -> bool {
    !value
}
