//! What an instruction does.

use halflap::collective::CollectiveKind;

macro_rules! opcodes {
    ($($name:literal $variant:ident)*) => {
        /// What an instruction does.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[allow(missing_docs)]
        pub enum Opcode {
            $($variant,)*
            /// A phase of another operation that runs asynchronously, written short:
            /// `reduce-scatter-start`.
            Wrapped(Phase, Wrapped),
            /// An unknown opcode.
            Other,
        }

        const ALL: &[(&str, Opcode)] = &[$(($name, Opcode::$variant),)*];

        fn plain(name: &str) -> Option<Opcode> {
            match name {
                $($name => Some(Opcode::$variant),)*
                _ => None,
            }
        }
    };
}

// The most frequent first.
opcodes! {
    "parameter" Parameter  "copy" Copy  "multiply" Multiply  "fusion" Fusion  "bitcast" Bitcast
    "broadcast" Broadcast  "add" Add  "get-tuple-element" GetTupleElement  "constant" Constant
    "transpose" Transpose  "slice" Slice  "reshape" Reshape  "dot" Dot  "reduce" Reduce
    "convert" Convert  "subtract" Subtract  "divide" Divide  "all-gather" AllGather  "pad" Pad
    "dynamic-slice" DynamicSlice  "all-to-all" AllToAll  "iota" Iota  "select" Select
    "all-reduce" AllReduce  "rsqrt" Rsqrt  "maximum" Maximum  "compare" Compare
    "reduce-scatter" ReduceScatter  "concatenate" Concatenate  "negate" Negate  "tuple" Tuple
    "copy-start" CopyStart  "copy-done" CopyDone  "exponential" Exponential  "tanh" Tanh
    "custom-call" CustomCall  "collective-permute-start" CollectivePermuteStart
    "collective-permute-done" CollectivePermuteDone  "clamp" Clamp  "and" And
    "convolution" Convolution  "dynamic-update-slice" DynamicUpdateSlice  "partition-id" PartitionId
    "while" While  "log" Log  "reduce-window" ReduceWindow  "call" Call  "gather" Gather  "or" Or
    "shift-left" ShiftLeft  "shift-right-logical" ShiftRightLogical
    "collective-permute" CollectivePermute  "scatter" Scatter  "sort" Sort  "abs" Abs  "acos" Acos
    "acosh" Acosh  "add-dependency" AddDependency  "after-all" AfterAll
    "all-gather-start" AllGatherStart  "all-gather-done" AllGatherDone
    "all-reduce-start" AllReduceStart  "all-reduce-done" AllReduceDone  "asin" Asin  "asinh" Asinh
    "async-start" AsyncStart  "async-update" AsyncUpdate  "async-done" AsyncDone  "atan2" Atan2
    "atanh" Atanh  "batch-norm-grad" BatchNormGrad  "batch-norm-inference" BatchNormInference
    "batch-norm-training" BatchNormTraining  "bitcast-convert" BitcastConvert  "cbrt" Cbrt
    "ceil" Ceil  "cholesky" Cholesky  "collective-broadcast" CollectiveBroadcast  "complex" Complex
    "conditional" Conditional  "cosh" Cosh  "cosine" Cosine  "count-leading-zeros" Clz
    "domain" Domain  "dynamic-reshape" DynamicReshape  "erf" Erf  "exponential-minus-one" Expm1
    "fft" Fft  "floor" Floor  "get-dimension-size" GetDimensionSize  "imag" Imag  "infeed" Infeed
    "is-finite" IsFinite  "log-plus-one" Log1p  "logistic" Logistic  "map" Map  "minimum" Minimum
    "not" Not  "opt-barrier" OptimizationBarrier  "optimization-barrier" OptBarrierLong
    "outfeed" Outfeed  "popcnt" PopulationCount  "power" Power  "ragged-all-to-all" RaggedAllToAll
    "ragged-dot" RaggedDot  "scaled-dot" ScaledDot  "real" Real  "recv" Recv  "recv-done" RecvDone
    "reduce-precision" ReducePrecision  "remainder" Remainder  "replica-id" ReplicaId
    "reverse" Reverse  "rng" Rng  "rng-bit-generator" RngBitGenerator
    "rng-get-and-update-state" RngGetAndUpdateState  "round-nearest-afz" RoundNearestAfz
    "round-nearest-even" RoundNearestEven  "scan" Scan  "select-and-scatter" SelectAndScatter
    "send" Send  "send-done" SendDone  "set-dimension-size" SetDimensionSize
    "shift-right-arithmetic" ShiftRightArithmetic  "sign" Sign  "sine" Sine  "sinh" Sinh
    "sqrt" Sqrt  "stochastic-convert" StochasticConvert  "tan" Tan  "topk" TopK
    "triangular-solve" TriangularSolve  "xor" Xor
}

/// A phase of an asynchronous operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum Phase {
    Start,
    Update,
    Done,
}

/// The operation that is written with a phase: an index among all opcodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Wrapped(u8);

impl Wrapped {
    /// The operation.
    pub fn opcode(self) -> Opcode {
        ALL[self.0 as usize].1
    }
}

impl Opcode {
    /// The operation that a start starts; itself for all others.
    pub fn begun(self) -> Opcode {
        match self {
            Opcode::Wrapped(Phase::Start, wrapped) => wrapped.opcode(),
            Opcode::AllReduceStart => Opcode::AllReduce,
            Opcode::AllGatherStart => Opcode::AllGather,
            Opcode::CollectivePermuteStart => Opcode::CollectivePermute,
            other => other,
        }
    }

    /// Whether it ends something that was started.
    pub fn is_end(self) -> bool {
        matches!(
            self,
            Opcode::Wrapped(Phase::Done, _)
                | Opcode::AllGatherDone
                | Opcode::AllReduceDone
                | Opcode::AsyncDone
                | Opcode::CollectivePermuteDone
                | Opcode::CopyDone
                | Opcode::RecvDone
                | Opcode::SendDone
        )
    }

    /// The opcode of a name.
    pub fn named(name: &str) -> Opcode {
        if let Some(opcode) = plain(name) {
            return opcode;
        }
        const PHASES: [(&str, Phase); 3] =
            [("-start", Phase::Start), ("-update", Phase::Update), ("-done", Phase::Done)];
        let phase =
            PHASES.iter().find_map(|&(suffix, phase)| Some((name.strip_suffix(suffix)?, phase)));
        let wrapped = phase.and_then(|(base, phase)| {
            let index = ALL.iter().position(|(name, _)| *name == base)?;
            Some(Opcode::Wrapped(phase, Wrapped(index as u8)))
        });
        wrapped.unwrap_or(Opcode::Other)
    }

    /// As HLO writes it; `None` for an unknown one, whose name is only in the text.
    pub fn name(self) -> &'static str {
        ALL.iter().find(|(_, opcode)| *opcode == self).map_or("", |(name, _)| name)
    }

    /// Whether it communicates and blocks.
    pub fn is_sync_collective(self) -> bool {
        matches!(
            self,
            Opcode::AllGather
                | Opcode::AllReduce
                | Opcode::AllToAll
                | Opcode::CollectiveBroadcast
                | Opcode::CollectivePermute
                | Opcode::RaggedAllToAll
                | Opcode::ReduceScatter
        )
    }

    /// What it does if it communicates among ranks, or starts such an operation. Point to point is
    /// either a collective of two ranks or a transfer to the host, depending on its attributes.
    pub fn collective_kind(self) -> Option<CollectiveKind> {
        match self.begun() {
            Opcode::AllGather => Some(CollectiveKind::AllGather),
            Opcode::AllReduce => Some(CollectiveKind::AllReduce),
            Opcode::AllToAll => Some(CollectiveKind::AllToAll),
            Opcode::CollectiveBroadcast => Some(CollectiveKind::Broadcast),
            Opcode::CollectivePermute => Some(CollectiveKind::Permute),
            Opcode::RaggedAllToAll => Some(CollectiveKind::RaggedAllToAll),
            Opcode::ReduceScatter => Some(CollectiveKind::ReduceScatter),
            Opcode::Send => Some(CollectiveKind::Send),
            Opcode::Recv => Some(CollectiveKind::Recv),
            _ => None,
        }
    }

    /// Whether it is a collective, a phase of one, or may contain one: everything that XLA calls
    /// `async`.
    pub fn is_of_collective(self) -> bool {
        let of = match self {
            Opcode::Wrapped(_, wrapped) => wrapped.opcode(),
            Opcode::AllGatherDone => Opcode::AllGather,
            Opcode::AllReduceDone => Opcode::AllReduce,
            Opcode::CollectivePermuteDone => Opcode::CollectivePermute,
            other => other.begun(),
        };
        of.is_sync_collective()
            || matches!(self, Opcode::AsyncStart | Opcode::AsyncUpdate | Opcode::AsyncDone)
    }

    /// Which phase of something asynchronous it is, if it is one.
    pub fn phase(self) -> Option<Phase> {
        match self {
            Opcode::AllGatherStart
            | Opcode::AllReduceStart
            | Opcode::CollectivePermuteStart
            | Opcode::CopyStart
            | Opcode::AsyncStart
            | Opcode::Send
            | Opcode::Recv => Some(Phase::Start),
            Opcode::AllGatherDone
            | Opcode::AllReduceDone
            | Opcode::CollectivePermuteDone
            | Opcode::CopyDone
            | Opcode::AsyncDone
            | Opcode::SendDone
            | Opcode::RecvDone => Some(Phase::Done),
            Opcode::AsyncUpdate => Some(Phase::Update),
            Opcode::Wrapped(phase, _) => Some(phase),
            _ => None,
        }
    }

    /// Whether each element of the result depends only on the operands' elements at the same index.
    pub fn is_elementwise(self) -> bool {
        use Opcode as O;
        matches!(
            self,
            O::Multiply
                | O::Add
                | O::Convert
                | O::Subtract
                | O::Divide
                | O::Select
                | O::Rsqrt
                | O::Maximum
                | O::Compare
                | O::Negate
                | O::Exponential
                | O::Tanh
                | O::Clamp
                | O::And
                | O::Log
                | O::Or
                | O::ShiftLeft
                | O::ShiftRightLogical
                | O::Abs
                | O::Acos
                | O::Acosh
                | O::Asin
                | O::Asinh
                | O::Atan2
                | O::Atanh
                | O::BitcastConvert
                | O::Cbrt
                | O::Ceil
                | O::Complex
                | O::Cosh
                | O::Cosine
                | O::Clz
                | O::Erf
                | O::Expm1
                | O::Floor
                | O::Imag
                | O::IsFinite
                | O::Log1p
                | O::Logistic
                | O::Map
                | O::Minimum
                | O::Not
                | O::PopulationCount
                | O::Power
                | O::Real
                | O::ReducePrecision
                | O::Remainder
                | O::RoundNearestAfz
                | O::RoundNearestEven
                | O::ShiftRightArithmetic
                | O::Sign
                | O::Sine
                | O::Sinh
                | O::Sqrt
                | O::StochasticConvert
                | O::Tan
                | O::Xor
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_there_and_back() {
        for &(name, opcode) in ALL {
            assert_eq!((Opcode::named(name), opcode.name()), (opcode, name));
        }
        assert_eq!(Opcode::named("all-gather-start"), Opcode::AllGatherStart);
        let Opcode::Wrapped(Phase::Start, inner) = Opcode::named("reduce-scatter-start") else {
            panic!()
        };
        assert_eq!(inner.opcode(), Opcode::ReduceScatter);
        let of_collective = |name| Opcode::named(name).is_of_collective();
        for name in [
            "all-reduce",
            "all-reduce-done",
            "reduce-scatter-start",
            "collective-permute-done",
            "async-done",
        ] {
            assert!(of_collective(name), "{name}");
        }
        for name in ["reduce", "send", "copy-start", "while"] {
            assert!(!of_collective(name), "{name}");
        }
        assert_eq!(Opcode::named("frobnicate"), Opcode::Other);
    }
}
