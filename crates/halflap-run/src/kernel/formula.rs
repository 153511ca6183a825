//! Formulas: computations without names, tuples, layouts and calls.
//!
//! A formula is made of terms, each of which computes one array (or several, distinguished by
//! [`Op::Part`]) and comes after its inputs. Fusions, calls and maps are inlined; tuples are gone;
//! what HLO leaves implicit (scalars used as arrays, bitcasts between layouts) is explicit.
//! Unsupported operations are rejected here.

use std::ops::Range;
use std::sync::Arc;

use halflap_hlo::ids::InstrId;
use halflap_hlo::{ConvDims, Opcode, WindowDim};

use super::block::CompareOp;
use super::precision::FloatBits;
use crate::tensor::{DType, element_count};

/// A term of a formula.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct TermId(pub(super) u32);

/// A computation, flat.
#[derive(Clone, Debug, Default)]
pub(super) struct Formula {
    pub(super) terms: Vec<Term>,
    pub(super) outputs: Vec<TermId>,
    /// How many arrays it is given.
    pub(super) inputs: usize,
}

/// An array, and what makes it.
#[derive(Clone, Debug)]
pub(super) struct Term {
    pub(super) op: Op,
    pub(super) dtype: DType,
    pub(super) dims: Vec<usize>,
    pub(super) args: Vec<TermId>,
    /// The instruction that it represents.
    pub(super) origin: InstrId,
}

impl Term {
    pub(super) fn len(&self) -> usize {
        element_count(&self.dims)
    }
}

/// The operation of a term.
#[derive(Clone, Debug)]
pub(super) enum Op {
    Input(usize),
    Constant(Arc<[u8]>),
    Iota(usize),
    PartitionId,
    ReplicaId,
    Unary(Opcode),
    Binary(Opcode),
    Compare {
        direction: CompareOp,
        is_total: bool,
    },
    Select,
    Clamp,
    Convert,
    ReducePrecision(FloatBits),
    /// The same bytes as another type.
    Reinterpret,
    /// Where each dimension of the argument is in the result.
    Broadcast(Vec<usize>),
    /// Which dimension of the argument each of the result is.
    Transpose(Vec<usize>),
    Reshape,
    Slice {
        start: Vec<usize>,
        stride: Vec<usize>,
    },
    Reverse(Vec<usize>),
    Pad(Vec<Padding>),
    Concatenate(usize),
    DynamicSlice,
    DynamicUpdateSlice,
    Gather(Arc<Indexing>),
    Scatter {
        at: Arc<Indexing>,
        combiner: Arc<Formula>,
    },
    Reduce {
        dims: Vec<usize>,
        combiner: Arc<Formula>,
    },
    ReduceWindow {
        window: Vec<WindowDim>,
        combiner: Arc<Formula>,
    },
    SelectAndScatter {
        window: Vec<WindowDim>,
        select: Arc<Formula>,
        combiner: Arc<Formula>,
    },
    Dot(Arc<Contraction>),
    Convolution(Arc<Convolving>),
    Sort {
        dim: usize,
        comparator: Arc<Formula>,
    },
    TopK {
        count: usize,
    },
    RandomBits(Generator),
    Random {
        is_normal: bool,
    },
    /// A rank's 128-bit state of random numbers, which then grows.
    RandomState {
        delta: u64,
    },
    Cholesky {
        is_lower: bool,
    },
    TriangularSolve(Solving),
    Lapack(Routine),
    Fft {
        transform: Transform,
        lengths: Vec<usize>,
    },
    Custom(Arc<str>),
    /// One of several results.
    Part(usize),
}

/// Padding around and between elements; negative values remove elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Padding {
    pub(super) low: i64,
    pub(super) high: i64,
    pub(super) interior: i64,
}

/// How a gather or a scatter computes positions. Names are those of a gather.
#[derive(Clone, Debug, Default)]
pub(super) struct Indexing {
    pub(super) offset_dims: Vec<usize>,
    pub(super) collapsed_dims: Vec<usize>,
    pub(super) operand_batching: Vec<usize>,
    pub(super) indices_batching: Vec<usize>,
    pub(super) start_index_map: Vec<usize>,
    pub(super) index_vector_dim: usize,
    pub(super) slice_sizes: Vec<usize>,
}

/// The dimensions of a matrix multiplication.
#[derive(Clone, Debug, Default)]
pub(super) struct Contraction {
    pub(super) lhs_batch: Vec<usize>,
    pub(super) rhs_batch: Vec<usize>,
    pub(super) lhs_contracting: Vec<usize>,
    pub(super) rhs_contracting: Vec<usize>,
}

/// A convolution's parameters.
#[derive(Clone, Debug)]
pub(super) struct Convolving {
    pub(super) window: Vec<WindowDim>,
    pub(super) dims: ConvDims,
    pub(super) feature_groups: usize,
    pub(super) batch_groups: usize,
}

/// How random bits are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Generator {
    ThreeFry,
    Philox,
}

/// How a triangular system is solved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Solving {
    pub(super) is_left: bool,
    pub(super) is_lower: bool,
    pub(super) is_transposed: bool,
    pub(super) is_conjugated: bool,
    pub(super) is_unit: bool,
}

/// The input and output of a Fourier transform.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Transform {
    Forward,
    Inverse,
    /// Real input: half of the output follows from the other half.
    Real,
    /// The inverse of that.
    InverseReal,
}

/// A routine of LAPACK, by its name for real numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Routine {
    /// `potrf`
    Cholesky { is_lower: bool },
    /// `getrf`
    Eliminate,
    /// `geqrf`, and with pivots `geqp3`
    Reflect { is_pivoted: bool },
    /// `orgqr`, of this many reflections.
    Reflections { count: usize },
    /// `ormqr`: such reflections, applied to a matrix.
    MultiplyBy { is_left: bool, is_conjugated: bool },
    /// `gehrd`
    Hessenberg,
    /// `sytrd`
    Tridiagonal { is_lower: bool },
    /// `syevd`
    Eigen { is_lower: bool },
    /// `geev`
    General { has_left: bool, has_right: bool },
    /// `gees`
    Schur { has_vectors: bool },
    /// `gesdd` and `gesvd`
    Singular { has_vectors: bool },
    /// `gtsv`
    Diagonals,
}

impl Routine {
    /// Which argument is a matrix whose extents say how large the problem is.
    pub(super) fn matrix(self) -> usize {
        match self {
            Routine::Diagonals => 3,
            Routine::MultiplyBy { .. } => 2,
            _ => 0,
        }
    }

    /// The number of its results.
    pub(super) fn results(self, is_complex: bool) -> usize {
        match self {
            Routine::Reflections { .. } | Routine::MultiplyBy { .. } => 1,
            Routine::Cholesky { .. } | Routine::Reflect { is_pivoted: false } => 2,
            Routine::Eliminate | Routine::Eigen { .. } | Routine::Hessenberg => 3,
            Routine::Reflect { is_pivoted: true } => 3,
            Routine::General { .. } if is_complex => 4,
            Routine::Singular { .. } | Routine::Tridiagonal { .. } | Routine::Diagonals => 5,
            Routine::General { .. } => 5,
            Routine::Schur { .. } if is_complex => 5,
            Routine::Schur { .. } => 6,
        }
    }
}

impl Formula {
    pub(super) fn term(&self, id: TermId) -> &Term {
        &self.terms[id.0 as usize]
    }

    pub(super) fn push(&mut self, term: Term) -> TermId {
        self.terms.push(term);
        TermId(self.terms.len() as u32 - 1)
    }

    pub(super) fn ids(&self) -> Range<u32> {
        0..self.terms.len() as u32
    }

    /// The operation, if the formula is a single one of its two scalars, in order.
    pub(super) fn single_binary(&self) -> Option<Opcode> {
        let [output] = self.outputs[..] else { return None };
        let Op::Binary(opcode) = self.term(output).op else { return None };
        let inputs: Vec<_> = self.term(output).args.iter().map(|&arg| &self.term(arg).op).collect();
        match inputs[..] {
            [Op::Input(0), Op::Input(1)] | [Op::Input(1), Op::Input(0)] if self.inputs == 2 => {
                Some(opcode)
            }
            _ => None,
        }
    }
}
