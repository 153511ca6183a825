//! What a collective does: its kind, what it reduces with, and what it carries.
//!
//! Every reader (graph files, HLO modules, traces) classifies a collective once, here; all later
//! code uses the type, never a name. Names are for display.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::units::Bytes;

/// What a collective does. In the order in which reports list them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)]
pub enum CollectiveKind {
    AllReduce,
    AllGather,
    ReduceScatter,
    AllToAll,
    SendRecv,
    Send,
    Recv,
    Broadcast,
    Reduce,
    Gather,
    Scatter,
    Barrier,
    /// From every rank to one other rank, by a list of pairs.
    Permute,
    /// An all-to-all whose parts differ in size.
    RaggedAllToAll,
    /// From memory to memory of one device.
    Transfer,
    /// Between a device and its host.
    HostTransfer,
    /// One that is not known.
    #[serde(rename = "unknown")]
    Other,
}

/// Substrings of a collective's or a kernel's name, without `_` and `-`; the first match decides.
const KINDS: [(&str, CollectiveKind); 16] = [
    ("allreduce", CollectiveKind::AllReduce),
    ("allgather", CollectiveKind::AllGather),
    ("reducescatter", CollectiveKind::ReduceScatter),
    ("raggedalltoall", CollectiveKind::RaggedAllToAll),
    ("alltoall", CollectiveKind::AllToAll),
    ("sendrecv", CollectiveKind::SendRecv),
    ("broadcast", CollectiveKind::Broadcast),
    ("barrier", CollectiveKind::Barrier),
    ("gather", CollectiveKind::Gather),
    ("scatter", CollectiveKind::Scatter),
    ("reduce", CollectiveKind::Reduce),
    ("send", CollectiveKind::Send),
    ("recv", CollectiveKind::Recv),
    ("permute", CollectiveKind::Permute),
    // Of tokens to experts, and back: DeepEP.
    ("dispatch", CollectiveKind::AllToAll),
    ("combine", CollectiveKind::AllToAll),
];

impl CollectiveKind {
    /// Every kind.
    pub const ALL: [CollectiveKind; 17] = [
        CollectiveKind::AllReduce,
        CollectiveKind::AllGather,
        CollectiveKind::ReduceScatter,
        CollectiveKind::AllToAll,
        CollectiveKind::SendRecv,
        CollectiveKind::Send,
        CollectiveKind::Recv,
        CollectiveKind::Broadcast,
        CollectiveKind::Reduce,
        CollectiveKind::Gather,
        CollectiveKind::Scatter,
        CollectiveKind::Barrier,
        CollectiveKind::Permute,
        CollectiveKind::RaggedAllToAll,
        CollectiveKind::Transfer,
        CollectiveKind::HostTransfer,
        CollectiveKind::Other,
    ];

    /// The kind that a collective's or a kernel's name denotes, in torch, XLA, NCCL and MPI:
    /// `all_gather_into_tensor` is an all-gather.
    pub fn of(name: &str) -> CollectiveKind {
        // Arguments come after a parenthesis, and may have any name.
        let name = name.split('(').next().unwrap_or(name);
        let plain = name.chars().filter(|letter| !matches!(letter, '_' | '-'));
        let letters: String = plain.flat_map(char::to_lowercase).collect();
        let known = KINDS.iter().find(|(word, _)| letters.contains(word));
        known.map_or(CollectiveKind::Other, |&(_, kind)| kind)
    }

    /// As reports call it.
    pub fn name(self) -> &'static str {
        match self {
            CollectiveKind::AllReduce => "all_reduce",
            CollectiveKind::AllGather => "all_gather",
            CollectiveKind::ReduceScatter => "reduce_scatter",
            CollectiveKind::AllToAll => "all_to_all",
            CollectiveKind::SendRecv => "send_recv",
            CollectiveKind::Send => "send",
            CollectiveKind::Recv => "recv",
            CollectiveKind::Broadcast => "broadcast",
            CollectiveKind::Reduce => "reduce",
            CollectiveKind::Gather => "gather",
            CollectiveKind::Scatter => "scatter",
            CollectiveKind::Barrier => "barrier",
            CollectiveKind::Permute => "permute",
            CollectiveKind::RaggedAllToAll => "ragged_all_to_all",
            CollectiveKind::Transfer => "transfer",
            CollectiveKind::HostTransfer => "host_transfer",
            CollectiveKind::Other => "communication",
        }
    }

    /// Whether only two ranks of a group take part, so that others have nothing to pair with it. Of
    /// `SendRecv` only the kernel's name is known, and that is NCCL's kernel for all-to-all.
    pub fn point_to_point(self) -> bool {
        matches!(self, CollectiveKind::Send | CollectiveKind::Recv)
    }

    /// Whether sizes may differ between ranks.
    pub fn uneven(self) -> bool {
        use CollectiveKind as K;
        matches!(
            self,
            K::AllToAll | K::RaggedAllToAll | K::SendRecv | K::Gather | K::Scatter | K::Other
        )
    }

    /// How many times each byte crosses a rank's bus if `ranks` form a ring. The size divided by
    /// the time, multiplied by this, is the bus bandwidth of nccl-tests, which can be compared with
    /// a link's bandwidth for any collective. `None` if ranks exchange nothing, or if it is not
    /// known how.
    pub fn bus_factor(self, ranks: u32) -> Option<f64> {
        use CollectiveKind as K;
        let once = f64::from(ranks.max(2) - 1) / f64::from(ranks.max(2));
        let factor = match self {
            K::AllReduce => 2.0 * once,
            K::AllGather
            | K::ReduceScatter
            | K::AllToAll
            | K::RaggedAllToAll
            | K::Gather
            | K::Scatter => once,
            K::Broadcast | K::Reduce | K::Send | K::Recv | K::SendRecv | K::Permute => 1.0,
            K::Barrier | K::Transfer | K::HostTransfer | K::Other => return None,
        };
        (ranks > 1).then_some(factor)
    }

    /// Whether it reduces the ranks' inputs.
    pub fn reduces(self) -> bool {
        matches!(
            self,
            CollectiveKind::AllReduce | CollectiveKind::ReduceScatter | CollectiveKind::Reduce
        )
    }
}

/// The reduction of a collective.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)]
pub enum Reduction {
    Sum,
    Max,
    Min,
    Product,
    Average,
    /// Another function: two of these need not be equal.
    Other,
    /// No reduction.
    None,
}

impl Reduction {
    /// In a word, as graph files have it.
    pub fn name(self) -> &'static str {
        match self {
            Reduction::Sum => "sum",
            Reduction::Max => "max",
            Reduction::Min => "min",
            Reduction::Product => "product",
            Reduction::Average => "average",
            Reduction::Other => "other",
            Reduction::None => "none",
        }
    }
}

/// The type of a collective's elements, by the name that XLA has for it: `f32`, `bf16`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Dtype(String);

/// Type names of torch and XLA.
const DTYPES: [(&str, &str); 16] = [
    ("float64", "f64"),
    ("float32", "f32"),
    ("float16", "f16"),
    ("bfloat16", "bf16"),
    ("float8_e4m3fn", "f8e4m3fn"),
    ("float8_e5m2", "f8e5m2"),
    ("float8_e4m3fnuz", "f8e4m3fnuz"),
    ("float8_e5m2fnuz", "f8e5m2fnuz"),
    ("int64", "s64"),
    ("int32", "s32"),
    ("int16", "s16"),
    ("int8", "s8"),
    ("uint8", "u8"),
    ("bool", "pred"),
    ("complex64", "c64"),
    ("complex128", "c128"),
];

impl Dtype {
    /// The type of a name of torch's or XLA's; an unknown name stays as it is.
    pub fn named(name: &str) -> Dtype {
        let name = name.strip_prefix("torch.").unwrap_or(name);
        let known = DTYPES.iter().find(|(torch, _)| *torch == name);
        Dtype(known.map_or(name, |(_, short)| short).to_owned())
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The data of a collective, as one rank sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Payload {
    /// The element type, where it is known and the same for all data.
    pub dtype: Option<Dtype>,
    /// The input.
    pub input: Bytes,
    /// The output.
    pub output: Bytes,
}

impl Payload {
    /// For a collective of which only the larger of input and output is known: kind and number of
    /// ranks determine the other.
    pub fn of_larger(kind: CollectiveKind, ranks: u32, larger: Bytes) -> Payload {
        let part = Bytes(larger.0 / i64::from(ranks.max(1)));
        let (input, output) = match kind {
            CollectiveKind::AllGather | CollectiveKind::Gather => (part, larger),
            CollectiveKind::ReduceScatter | CollectiveKind::Scatter => (larger, part),
            _ => (larger, larger),
        };
        Payload { dtype: None, input, output }
    }

    /// The larger of input and output.
    pub fn larger(&self) -> Bytes {
        self.input.max(self.output)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The factors in doc/PERFORMANCE.md of nccl-tests.
    #[test]
    fn bus_factors_are_those_of_nccl_tests() {
        let of = |kind: CollectiveKind| [1, 2, 8].map(|ranks| kind.bus_factor(ranks));
        assert_eq!(of(CollectiveKind::AllReduce), [None, Some(1.0), Some(1.75)]);
        assert_eq!(of(CollectiveKind::AllGather), [None, Some(0.5), Some(0.875)]);
        assert_eq!(of(CollectiveKind::ReduceScatter), of(CollectiveKind::AllToAll));
        assert_eq!(of(CollectiveKind::Broadcast), [None, Some(1.0), Some(1.0)]);
        assert_eq!(of(CollectiveKind::Barrier), [None; 3]);
    }

    #[test]
    fn names_say_the_kind() {
        for (name, kind) in [
            ("all_gather_into_tensor_coalesced", CollectiveKind::AllGather),
            ("reduce_scatter_tensor", CollectiveKind::ReduceScatter),
            ("all-reduce-start", CollectiveKind::AllReduce),
            ("all_to_all_single", CollectiveKind::AllToAll),
            ("shard_dim_alltoall", CollectiveKind::AllToAll),
            ("ragged-all-to-all", CollectiveKind::RaggedAllToAll),
            ("reduce", CollectiveKind::Reduce),
            ("collective-permute", CollectiveKind::Permute),
            ("collective-broadcast", CollectiveKind::Broadcast),
            ("send_recv", CollectiveKind::SendRecv),
            ("barrier", CollectiveKind::Barrier),
            ("copy", CollectiveKind::Other),
            (
                "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevComm*)",
                CollectiveKind::ReduceScatter,
            ),
            ("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclWorkElem)", CollectiveKind::SendRecv),
            ("_allgather_base", CollectiveKind::AllGather),
            ("all_to_allv", CollectiveKind::AllToAll),
            ("allreduce", CollectiveKind::AllReduce),
            ("ncclDevKernel_Generic(sendrecv*)", CollectiveKind::Other),
            ("recv", CollectiveKind::Recv),
            ("void dpsk::ep::internode::combine<false, 8>(int4*)", CollectiveKind::AllToAll),
        ] {
            assert_eq!(CollectiveKind::of(name), kind, "{name}");
        }
    }

    #[test]
    fn types_of_torch_and_xla_are_the_same() {
        assert_eq!(Dtype::named("torch.bfloat16"), Dtype::named("bf16"));
        assert_eq!(Dtype::named("float8_e4m3fn").name(), "f8e4m3fn");
        assert_ne!(Dtype::named("int8"), Dtype::named("uint8"));
    }

    #[test]
    fn the_smaller_side_follows_from_the_kind() {
        let sides = |kind| {
            let payload = Payload::of_larger(kind, 8, Bytes(803));
            (payload.input.0, payload.output.0)
        };
        assert_eq!(sides(CollectiveKind::AllGather), (100, 803));
        assert_eq!(sides(CollectiveKind::ReduceScatter), (803, 100));
        assert_eq!(sides(CollectiveKind::AllReduce), (803, 803));
    }
}
