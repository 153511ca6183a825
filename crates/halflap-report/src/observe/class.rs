//! Classifies events: the only place that uses names. What a collective does is determined by
//! [`CollectiveKind`](halflap::collective::CollectiveKind).
//!
//! The category decides first, then what the profiler says about a collective, then the name.
//! docs/analyze.md has these tables for users.

use serde::Serialize;

use super::trace::Processor;

/// What runs on a GPU, or on a CPU.
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
    /// A CPU's thread ran an operator, compiled code or a node of autograd.
    Operator,
    /// A CPU's thread was in something that has a name: gloo's collectives are.
    Annotation,
}

impl Category {
    /// The categories of work, in today's and older spellings. Synchronisation (`cuda_sync`) and
    /// annotations (`gpu_user_annotation`) are on GPU lanes but do not count.
    #[inline]
    pub(super) fn of(text: &[u8]) -> Option<Category> {
        match text {
            b"kernel" | b"Kernel" | b"concurrent_kernel" => Some(Category::Kernel),
            b"gpu_memcpy" | b"gpu_memset" | b"Memcpy" | b"Memset" => Some(Category::Memory),
            b"cpu_op" | b"Operator" => Some(Category::Operator),
            b"user_annotation" => Some(Category::Annotation),
            _ => None,
        }
    }

    /// Where it ran.
    #[inline]
    pub(super) fn processor(self) -> Processor {
        match self {
            Category::Kernel | Category::Memory => Processor::Gpu,
            Category::Operator | Category::Annotation => Processor::Cpu,
        }
    }
}

/// Whether a category is that of calls into a GPU's runtime, which launch its work and wait for it.
#[inline]
pub(super) fn is_runtime(category: &[u8]) -> bool {
    matches!(category, b"cuda_runtime" | b"cuda_driver" | b"hip_runtime" | b"Runtime")
}

/// Whether the host waits in such a call until the GPU has come so far.
pub(super) fn waits_for_gpu(name: &[u8]) -> bool {
    let has = |word: &[u8]| name.windows(word.len()).any(|part| part == word);
    has(b"Synchronize") || matches!(name, b"cudaMemcpy" | b"hipMemcpy")
}

/// Prefixes of the names of communication kernels, in lower case.
const COMMUNICATES: [&str; 6] = ["nccl", "rccl", "msccl", "nvshmem", "oneccl", "xccl"];

/// Substrings of others. Torch's symmetric memory has its kernels in an unnamed namespace.
const COMMUNICATES_WITHIN: [&str; 10] = [
    "allreduce_fusion_kernel",
    "c10d::symmetric_memory",
    "cross_device_reduce",
    "deep_ep::",
    "dpsk::ep::",
    "mscclpp::",
    "multimem_",
    "one_shot_all_reduce",
    "two_shot_all_reduce",
    "userbuffers_",
];

/// Events that only wait, in any category.
const SYNCHRONISES: [&str; 7] = [
    "Stream Wait Event",
    "Stream Sync",
    "Stream Synchronize",
    "Event Sync",
    "Event Synchronize",
    "Context Sync",
    "Context Synchronize",
];

/// The class of an event; `None` if it is not work. `collective` is whether the profiler says which
/// collective it belongs to.
pub(super) fn class(category: Category, name: &str, collective: bool) -> Option<Class> {
    match category {
        Category::Kernel | Category::Memory if SYNCHRONISES.contains(&name) => None,
        Category::Memory => Some(Class::Memory),
        Category::Kernel if collective || communicates(name) => Some(Class::Communication),
        Category::Kernel => Some(Class::Compute),
        Category::Operator | Category::Annotation if name.starts_with(GLOO) => {
            Some(Class::Communication)
        }
        Category::Operator => Some(Class::Compute),
        Category::Annotation => None,
    }
}

/// Prefix of gloo's events.
const GLOO: &str = "gloo:";

/// Prefixes of operators that start collectives or wait for them.
const CALLS: [&str; 3] = ["c10d::", "_c10d_functional", "c10d_functional::"];

/// The role of a CPU event relative to those that it nests in or that nest in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// A collective executed by gloo.
    Gloo,
    /// Starts a collective or waits for one: never compute, whatever it calls.
    Call,
    /// An operator such as `aten::mm`: represents all that it calls.
    Operator,
    /// Compiled code, a node of autograd: represents only what is in no other event.
    Region,
}

impl Role {
    #[inline]
    pub(super) fn is_gloo(name: &[u8]) -> bool {
        name.starts_with(GLOO.as_bytes())
    }

    pub(super) fn of(name: &str) -> Role {
        match name {
            gloo if gloo.starts_with(GLOO) => Role::Gloo,
            call if CALLS.iter().any(|begin| call.starts_with(begin)) => Role::Call,
            operator if operator.contains("::") && !operator.contains(' ') => Role::Operator,
            _ => Role::Region,
        }
    }
}

fn communicates(name: &str) -> bool {
    let name = name.strip_prefix("void ").unwrap_or(name);
    let begins =
        |word: &str| name.get(..word.len()).is_some_and(|start| start.eq_ignore_ascii_case(word));
    COMMUNICATES.iter().any(|word| begins(word))
        || COMMUNICATES_WITHIN.iter().any(|word| name.contains(word))
}

/// The bytes of one element of a type as torch or C++ calls it.
pub(super) fn element_size(dtype: &str) -> Option<i64> {
    match dtype.strip_prefix("c10::").unwrap_or(dtype) {
        "Byte" | "Char" | "Bool" | "QInt8" | "QUInt8" | "unsigned char" | "signed char"
        | "char" | "bool" => Some(1),
        "Short" | "Half" | "BFloat16" | "UInt16" | "short" | "short int" => Some(2),
        "Int" | "Float" | "UInt32" | "QInt32" | "int" | "float" => Some(4),
        "Long" | "Double" | "ComplexFloat" | "UInt64" | "long" | "long int" | "double"
        | "complex<float>" => Some(8),
        "ComplexDouble" | "complex<double>" => Some(16),
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
            "void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16>(c10::BFloat16*)",
            "void (anonymous namespace)::two_shot_all_reduce_kernel_inplace<c10::BFloat16, 16>()",
            "void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<2>()",
            "void deep_ep::intranode::dispatch<4>()",
            "NCCL_thing",
        ] {
            assert_eq!(class(name), Some(Class::Communication), "{name}");
        }
        for name in [
            "void at::native::reduce_kernel",
            "my_nccl_like",
            "",
            "triton_poi_fused_add_3",
            "\u{e9}\u{e9}\u{e9}",
        ] {
            assert_eq!(class(name), Some(Class::Compute), "{name}");
        }
        assert_eq!(class("Stream Wait Event"), None);
        assert_eq!(super::class(Category::Kernel, "anything", true), Some(Class::Communication));
        assert_eq!(super::class(Category::Memory, "ncclCopy", false), Some(Class::Memory));
    }
}
