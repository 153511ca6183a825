//! What a collective does with the arrays of its members.

use halflap::collective::CollectiveKind;
use halflap_hlo::Module;
use halflap_hlo::ids::{CommId, ComputationId, InstrId};

use super::ragged::Ragged;
use crate::kernel::{ArrayType, Combiner, Gap, Unsupported, leaf_kinds, operand_leaves};
use crate::tensor::DType;

/// What kind of collective it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum ExchangeKind {
    AllReduce,
    ReduceScatter,
    AllGather,
    /// One array, split along a dimension.
    AllToAll,
    /// As many arrays as there are members.
    AllToAllTuple,
    /// Pieces of data-dependent lengths.
    RaggedAllToAll,
    Permute,
    Broadcast,
}

impl ExchangeKind {
    /// By HLO's name.
    pub fn name(self) -> &'static str {
        match self {
            ExchangeKind::AllReduce => "all-reduce",
            ExchangeKind::ReduceScatter => "reduce-scatter",
            ExchangeKind::AllGather => "all-gather",
            ExchangeKind::AllToAll | ExchangeKind::AllToAllTuple => "all-to-all",
            ExchangeKind::RaggedAllToAll => "ragged-all-to-all",
            ExchangeKind::Permute => "collective-permute",
            ExchangeKind::Broadcast => "collective-broadcast",
        }
    }
}

/// An array of a collective. Cut along a dimension, it is `rows` times a row of each member.
#[derive(Clone, Debug)]
pub(crate) struct CollectiveArray {
    pub(crate) dtype: DType,
    pub(crate) taken: usize,
    pub(crate) given: usize,
    pub(crate) rows: usize,
    pub(crate) combiner: Option<Combiner>,
}

/// A collective, the same on all ranks.
#[derive(Clone, Debug)]
pub struct CollectiveSpec {
    /// The instruction's name.
    pub name: String,
    /// What it does.
    pub kind: ExchangeKind,
    /// The participants: which of the program's sets of devices, and those sets.
    pub comm: CommId,
    /// The sets, each in the order of the data.
    pub sets: Vec<Vec<u32>>,
    /// For a permutation, the sources and targets.
    pub pairs: Vec<(u32, u32)>,
    /// The operation that combines elements: `add`; empty, if there is none.
    pub reduction: String,
    /// The larger of what a rank sends and receives.
    pub bytes: usize,
    pub(crate) arrays: Vec<CollectiveArray>,
    /// What a ragged one does.
    pub(crate) ragged: Option<Ragged>,
}

impl CollectiveSpec {
    /// The collective that an instruction is, or starts.
    pub(crate) fn of(
        module: &Module,
        instr: InstrId,
        comm: CommId,
    ) -> Result<CollectiveSpec, Unsupported> {
        let dimension = module.numbers(instr, "dimensions").first().map(|&dim| dim as usize);
        let kind = match module.instruction(instr).opcode.collective_kind() {
            Some(CollectiveKind::AllReduce) => ExchangeKind::AllReduce,
            Some(CollectiveKind::ReduceScatter) => ExchangeKind::ReduceScatter,
            Some(CollectiveKind::AllGather) => ExchangeKind::AllGather,
            Some(CollectiveKind::AllToAll) if dimension.is_none() => ExchangeKind::AllToAllTuple,
            Some(CollectiveKind::AllToAll) => ExchangeKind::AllToAll,
            Some(CollectiveKind::RaggedAllToAll) => ExchangeKind::RaggedAllToAll,
            Some(CollectiveKind::Permute) => ExchangeKind::Permute,
            Some(CollectiveKind::Broadcast) => ExchangeKind::Broadcast,
            _ => return Err(Unsupported::new(module, instr, Gap::Operation)),
        };
        let groups = module.replica_groups(instr);
        let cut = match kind {
            ExchangeKind::ReduceScatter | ExchangeKind::AllGather | ExchangeKind::AllToAll => {
                Some(dimension.ok_or_else(|| {
                    let what = Gap::Attribute { key: "dimensions", value: String::new() };
                    Unsupported::new(module, instr, what)
                })?)
            }
            _ => None,
        };
        let name = module.instruction_name(instr).to_owned();
        let (sets, pairs) = (groups.groups, groups.pairs);
        let combines =
            |&computation: &ComputationId| module.opcode_name(module.root(computation)).to_owned();
        let reduction = module.called(instr).first().map(combines).unwrap_or_default();
        let mut collective = CollectiveSpec {
            name,
            kind,
            comm,
            sets,
            pairs,
            reduction,
            bytes: 0,
            arrays: Vec::new(),
            ragged: None,
        };
        match kind {
            ExchangeKind::RaggedAllToAll => collective.add_ragged(module, instr)?,
            _ => collective.add_arrays(module, instr, cut)?,
        }
        let sum =
            |size: fn(&CollectiveArray) -> usize| collective.arrays.iter().map(size).sum::<usize>();
        collective.bytes = sum(|array| array.taken).max(sum(|array| array.given));
        Ok(collective)
    }

    /// How many arrays it takes.
    pub(crate) fn takes(&self) -> usize {
        self.ragged.as_ref().map_or(self.arrays.len(), |ragged| ragged.lens.len())
    }

    /// The result is a copy of the second operand, into which rows of the first ones are written.
    fn add_ragged(&mut self, module: &Module, instr: InstrId) -> Result<(), Unsupported> {
        let ragged = Ragged::of(module, instr)?;
        let (dtype, [taken, given, ..]) = (ragged.element, ragged.lens);
        self.arrays = vec![CollectiveArray { dtype, taken, given, rows: 1, combiner: None }];
        self.ragged = Some(ragged);
        Ok(())
    }

    fn add_arrays(
        &mut self,
        module: &Module,
        instr: InstrId,
        cut: Option<usize>,
    ) -> Result<(), Unsupported> {
        let misshapen = || Unsupported::new(module, instr, Gap::Shape);
        let members = self.sets.iter().map(Vec::len).max().unwrap_or(1).max(1);
        for operand in module.operands(instr) {
            let kinds = leaf_kinds(module, operand.of)?;
            for leaf in operand_leaves(module, operand) {
                let ArrayType { dtype, dims } = &kinds[leaf];
                let taken = kinds[leaf].bytes();
                let rows = cut.map_or(1, |dim| dims.iter().take(dim).product());
                let given = match self.kind {
                    ExchangeKind::AllGather => taken * members,
                    ExchangeKind::ReduceScatter => taken / members,
                    _ => taken,
                };
                let is_whole = cut.is_none_or(|dim| {
                    dims.get(dim).is_some_and(|len| {
                        self.kind == ExchangeKind::AllGather || len % members == 0
                    })
                });
                if !is_whole {
                    return Err(misshapen());
                }
                let combiner = match self.kind {
                    ExchangeKind::AllReduce | ExchangeKind::ReduceScatter => {
                        Some(Combiner::of(module, instr, *dtype)?)
                    }
                    _ => None,
                };
                self.arrays.push(CollectiveArray { dtype: *dtype, taken, given, rows, combiner });
            }
        }
        let uneven = self.kind != ExchangeKind::AllReduce
            && self.sets.iter().any(|set| set.len() != members);
        if uneven && !matches!(self.kind, ExchangeKind::Permute | ExchangeKind::Broadcast)
            || self.kind == ExchangeKind::AllToAllTuple && self.arrays.len() != members
        {
            return Err(misshapen());
        }
        Ok(())
    }

    /// The set that a device is in, and its place there.
    pub(crate) fn set_of(&self, device: u32) -> Option<(usize, usize)> {
        let place = |set: &Vec<u32>| set.iter().position(|&other| other == device);
        self.sets.iter().enumerate().find_map(|(index, set)| Some((index, place(set)?)))
    }

    /// The device that sends to this one in a permutation.
    pub(crate) fn source_of(&self, device: u32) -> Option<u32> {
        self.pairs.iter().find(|&&(_, target)| target == device).map(|&(source, _)| source)
    }
}

/// A piece of an array: for each of its rows, a number of bytes from an offset on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ArrayPiece {
    pub(crate) rows: usize,
    /// How long a row of the whole array is.
    pub(crate) stride: usize,
    pub(crate) first: usize,
    pub(crate) len: usize,
}

impl ArrayPiece {
    /// One of `count` equal pieces of an array.
    pub(crate) fn of(bytes: usize, rows: usize, number: usize, count: usize) -> ArrayPiece {
        let stride = bytes.checked_div(rows).unwrap_or(0);
        let len = stride / count.max(1);
        ArrayPiece { rows, stride, first: number * len, len }
    }

    /// Copies a piece of one array to a piece of the same shape of another.
    ///
    /// # Safety
    /// Both arrays must be as long as their pieces say, and must not overlap.
    pub(crate) unsafe fn copy(self, from: *const u8, to: *mut u8, into: ArrayPiece) {
        debug_assert!(self.rows * self.len == into.rows * into.len);
        if self.len == into.len {
            for row in 0..self.rows {
                // SAFETY: the caller's promise.
                unsafe {
                    let from = from.add(row * self.stride + self.first);
                    std::ptr::copy_nonoverlapping(
                        from,
                        to.add(row * into.stride + into.first),
                        self.len,
                    );
                }
            }
        }
    }
}
