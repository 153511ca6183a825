//! What a GPU event is: the only place that tells by names.
//!
//! The category decides first, then what the profiler says about a collective, then the name.
//! docs/analyze.md has these tables for users.

use serde::Serialize;

/// What runs on a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Class {
    /// A kernel that communicates.
    Communication,
    /// A copy or a fill.
    Memory,
    /// Any other kernel.
    Compute,
}

impl Class {
    /// As reports call it.
    pub fn name(self) -> &'static str {
        match self {
            Class::Communication => "communication",
            Class::Memory => "memory",
            Class::Compute => "compute",
        }
    }
}

/// What a trace's category says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Category {
    /// A kernel ran.
    Kernel,
    /// Memory was copied or filled.
    Memory,
}

impl Category {
    /// The categories that are GPU work, in today's and older spellings. Synchronisation
    /// (`cuda_sync`) and annotations (`gpu_user_annotation`) stand on GPU lanes and are none.
    #[inline]
    pub(super) fn of(text: &[u8]) -> Option<Category> {
        match text {
            b"kernel" | b"Kernel" | b"concurrent_kernel" => Some(Category::Kernel),
            b"gpu_memcpy" | b"gpu_memset" | b"Memcpy" | b"Memset" => Some(Category::Memory),
            _ => None,
        }
    }
}

/// How the names of kernels begin that communicate, in lower case.
const COMMUNICATES: [&str; 6] = ["nccl", "rccl", "msccl", "nvshmem", "oneccl", "xccl"];

/// What stands in the names of others.
const COMMUNICATES_WITHIN: [&str; 6] =
    ["c10d::symmetric_memory", "cross_device_reduce", "deep_ep::", "dpsk::ep::", "mscclpp::", "userbuffers_"];

/// What waits and does no work, however it is categorised.
const SYNCHRONISES: [&str; 7] = [
    "Stream Wait Event",
    "Stream Sync",
    "Stream Synchronize",
    "Event Sync",
    "Event Synchronize",
    "Context Sync",
    "Context Synchronize",
];

/// The class of an event, or nothing for one that is no work. `collective` is whether the profiler
/// says which collective it belongs to.
pub(super) fn class(category: Category, name: &str, collective: bool) -> Option<Class> {
    if SYNCHRONISES.contains(&name) {
        return None;
    }
    Some(match category {
        Category::Memory => Class::Memory,
        Category::Kernel if collective || communicates(name) => Class::Communication,
        Category::Kernel => Class::Compute,
    })
}

fn communicates(name: &str) -> bool {
    let name = name.strip_prefix("void ").unwrap_or(name);
    let begins = |word: &str| name.get(..word.len()).is_some_and(|start| start.eq_ignore_ascii_case(word));
    COMMUNICATES.iter().any(|word| begins(word)) || COMMUNICATES_WITHIN.iter().any(|word| name.contains(word))
}

/// What a collective does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)]
pub enum Operation {
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
    /// The kernel's name does not say.
    Unknown,
}

/// Letters that stand in an operation's name, without `_`; the first that fits decides.
const OPERATIONS: [(&str, Operation); 14] = [
    ("allreduce", Operation::AllReduce),
    ("allgather", Operation::AllGather),
    ("reducescatter", Operation::ReduceScatter),
    ("alltoall", Operation::AllToAll),
    ("sendrecv", Operation::SendRecv),
    ("broadcast", Operation::Broadcast),
    ("barrier", Operation::Barrier),
    ("gather", Operation::Gather),
    ("scatter", Operation::Scatter),
    ("reduce", Operation::Reduce),
    ("send", Operation::Send),
    ("recv", Operation::Recv),
    // Of tokens to experts, and back: DeepEP.
    ("dispatch", Operation::AllToAll),
    ("combine", Operation::AllToAll),
];

impl Operation {
    /// The operation that a collective's or a kernel's name stands for.
    pub fn of(name: &str) -> Operation {
        // What it is called with comes after a parenthesis, and may be called anything.
        let name = name.split('(').next().unwrap_or(name);
        let letters: String = name.chars().filter(|&letter| letter != '_').flat_map(char::to_lowercase).collect();
        let known = OPERATIONS.iter().find(|(word, _)| letters.contains(word));
        known.map_or(Operation::Unknown, |&(_, operation)| operation)
    }

    /// As reports call it.
    pub fn name(self) -> &'static str {
        match self {
            Operation::AllReduce => "all_reduce",
            Operation::AllGather => "all_gather",
            Operation::ReduceScatter => "reduce_scatter",
            Operation::AllToAll => "all_to_all",
            Operation::SendRecv => "send_recv",
            Operation::Send => "send",
            Operation::Recv => "recv",
            Operation::Broadcast => "broadcast",
            Operation::Reduce => "reduce",
            Operation::Gather => "gather",
            Operation::Scatter => "scatter",
            Operation::Barrier => "barrier",
            Operation::Unknown => "communication",
        }
    }

    /// Whether only two ranks of a group take part, so that others have nothing to pair with it. Of
    /// `SendRecv` only the kernel's name is known, and that is NCCL's kernel for all-to-all.
    pub fn point_to_point(self) -> bool {
        matches!(self, Operation::Send | Operation::Recv)
    }

    /// Whether ranks may rightly have other sizes.
    pub fn uneven(self) -> bool {
        matches!(
            self,
            Operation::AllToAll | Operation::SendRecv | Operation::Gather | Operation::Scatter | Operation::Unknown
        )
    }
}

/// The bytes of one element of a type as torch calls it.
pub(super) fn element_size(dtype: &str) -> Option<i64> {
    match dtype.strip_prefix("c10::").unwrap_or(dtype) {
        "Byte" | "Char" | "Bool" | "QInt8" | "QUInt8" => Some(1),
        "Short" | "Half" | "BFloat16" | "UInt16" => Some(2),
        "Int" | "Float" | "UInt32" | "QInt32" => Some(4),
        "Long" | "Double" | "ComplexFloat" | "UInt64" => Some(8),
        "ComplexDouble" => Some(16),
        float8 if float8.starts_with("Float8") => Some(1),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_are_told_by_their_names() {
        let class = |name| class(Category::Kernel, name, false);
        for name in [
            "ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, unsigned long, ncclWork*)",
            "ncclDevKernel_Generic(ncclDevComm*)",
            "rcclGenericKernel",
            "void mscclpp::allreduce",
            "void vllm::cross_device_reduce_1stage<float>",
            "void dpsk::ep::internode::dispatch<false, 8, false, 16384, 8>(int4*, float*)",
            "NCCL_thing",
        ] {
            assert_eq!(class(name), Some(Class::Communication), "{name}");
        }
        for name in
            ["void at::native::reduce_kernel", "my_nccl_like", "", "triton_poi_fused_add_3", "\u{e9}\u{e9}\u{e9}"]
        {
            assert_eq!(class(name), Some(Class::Compute), "{name}");
        }
        assert_eq!(class("Stream Wait Event"), None);
        assert_eq!(super::class(Category::Kernel, "anything", true), Some(Class::Communication));
        assert_eq!(super::class(Category::Memory, "ncclCopy", false), Some(Class::Memory));
    }

    #[test]
    fn operations_are_told_by_their_names() {
        let cases = [
            ("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevComm*)", Operation::ReduceScatter),
            ("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclWorkElem)", Operation::SendRecv),
            ("_allgather_base", Operation::AllGather),
            ("all_to_allv", Operation::AllToAll),
            ("allreduce", Operation::AllReduce),
            ("ncclDevKernel_Generic(sendrecv*)", Operation::Unknown),
            ("reduce", Operation::Reduce),
            ("recv", Operation::Recv),
            ("void dpsk::ep::internode::combine<false, 8>(int4*)", Operation::AllToAll),
        ];
        for (name, operation) in cases {
            assert_eq!(Operation::of(name), operation, "{name}");
        }
    }
}
