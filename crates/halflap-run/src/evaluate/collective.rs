//! Collectives, with all ranks' values at hand.

use std::sync::Arc;

use halflap::collective::CollectiveKind;
use halflap_hlo::Module;
use halflap_hlo::ids::InstrId;

use super::LeafArrays;
use super::prepare::EvaluateError;
use crate::comm::{Ragged, RaggedOperands};
use crate::failure::RaggedFault;
use crate::kernel::{Combiner, Gap, Unsupported, leaf_kinds, operand_leaves};
use crate::tensor::Tensor;

/// What a collective does with the arrays of a group.
enum EvaluatedKind {
    AllReduce(Vec<Combiner>),
    ReduceScatter(Vec<Combiner>, usize),
    AllGather(usize),
    /// One array, split along a dimension.
    AllToAll(usize),
    /// As many arrays as there are ranks in a group.
    AllToAllTuple,
    /// Pieces of data-dependent lengths.
    Ragged(Ragged),
    Permute,
    Broadcast,
}

pub(super) struct EvaluatedCollective {
    kind: EvaluatedKind,
    name: String,
    groups: Vec<Vec<u32>>,
    pairs: Vec<(u32, u32)>,
}

impl EvaluatedCollective {
    /// The collective that an instruction is, or starts.
    pub(super) fn of(
        module: &Module,
        instr: InstrId,
    ) -> Result<Option<EvaluatedCollective>, EvaluateError> {
        let dimension = || module.numbers(instr, "dimensions").first().map(|&dim| dim as usize);
        let missing = || {
            let what = Gap::Attribute { key: "dimensions", value: String::new() };
            EvaluateError::from(Unsupported::new(module, instr, what))
        };
        let Some(kind) = module.instruction(instr).opcode.collective_kind() else {
            return Ok(None);
        };
        let kind = match kind {
            CollectiveKind::AllReduce => EvaluatedKind::AllReduce(combiners(module, instr)?),
            CollectiveKind::ReduceScatter => EvaluatedKind::ReduceScatter(
                combiners(module, instr)?,
                dimension().ok_or_else(missing)?,
            ),
            CollectiveKind::AllGather => EvaluatedKind::AllGather(dimension().ok_or_else(missing)?),
            CollectiveKind::AllToAll => {
                dimension().map_or(EvaluatedKind::AllToAllTuple, EvaluatedKind::AllToAll)
            }
            CollectiveKind::RaggedAllToAll => EvaluatedKind::Ragged(Ragged::of(module, instr)?),
            CollectiveKind::Send | CollectiveKind::Recv => {
                return Err(Unsupported::new(module, instr, Gap::Message).into());
            }
            CollectiveKind::Permute => EvaluatedKind::Permute,
            CollectiveKind::Broadcast => EvaluatedKind::Broadcast,
            _ => return Err(Unsupported::new(module, instr, Gap::Operation).into()),
        };
        let groups = module.replica_groups(instr);
        let name = module.instruction_name(instr).to_owned();
        Ok(Some(EvaluatedCollective { kind, name, groups: groups.groups, pairs: groups.pairs }))
    }

    /// The values of the participating ranks: of each group, all or none.
    pub(super) fn run(
        &self,
        ranks: &[usize],
        values: &[LeafArrays],
    ) -> Result<Vec<LeafArrays>, EvaluateError> {
        let place = |device: u32| {
            let missing = EvaluateError::Diverged {
                instruction: self.name.clone(),
                missing: device as usize,
            };
            ranks.iter().position(|&rank| rank == device as usize).ok_or(missing)
        };
        if matches!(self.kind, EvaluatedKind::Permute) {
            return self.permute(values, &place);
        }
        let mut results: Vec<LeafArrays> = vec![LeafArrays::new(); ranks.len()];
        for group in &self.groups {
            if !group.iter().any(|&device| ranks.contains(&(device as usize))) {
                continue;
            }
            let places =
                group.iter().map(|&device| place(device)).collect::<Result<Vec<_>, _>>()?;
            let given: Vec<&LeafArrays> = places.iter().map(|&place| &values[place]).collect();
            if let EvaluatedKind::Ragged(ragged) = &self.kind {
                let problem = |fault: RaggedFault| EvaluateError::Ragged {
                    instruction: self.name.clone(),
                    rank: group[fault.sender] as usize,
                    problem: fault.problem,
                };
                ragged.check(&operands(&given)).map_err(problem)?;
            }
            for (member, &place) in places.iter().enumerate() {
                results[place] = self.member(&given, member);
            }
        }
        Ok(results)
    }

    fn permute(
        &self,
        values: &[LeafArrays],
        place: &dyn Fn(u32) -> Result<usize, EvaluateError>,
    ) -> Result<Vec<LeafArrays>, EvaluateError> {
        // A rank that receives nothing gets zeros.
        let zeros = |array: &Arc<Tensor>| Arc::new(Tensor::zeros(array.dtype(), array.dims()));
        let mut results: Vec<LeafArrays> =
            values.iter().map(|value| value.iter().map(zeros).collect()).collect();
        for &(source, target) in &self.pairs {
            // A pair without a member of this group belongs to another one.
            match (place(source), place(target)) {
                (Ok(source), Ok(target)) => results[target] = values[source].clone(),
                (Err(_), Err(_)) => {}
                (Err(error), Ok(_)) | (Ok(_), Err(error)) => return Err(error),
            }
        }
        Ok(results)
    }

    /// What one member of a group receives.
    fn member(&self, given: &[&LeafArrays], member: usize) -> LeafArrays {
        let arrays = given[0].len();
        let of = |array: usize| given.iter().map(|value| &*value[array]).collect::<Vec<&Tensor>>();
        let each =
            |f: &dyn Fn(usize) -> Tensor| (0..arrays).map(|array| Arc::new(f(array))).collect();
        match &self.kind {
            EvaluatedKind::AllReduce(combiners) => {
                each(&|array| reduced(&combiners[array], &of(array)))
            }
            EvaluatedKind::ReduceScatter(combiners, dim) => each(&|array| {
                piece(&reduced(&combiners[array], &of(array)), *dim, member, given.len())
            }),
            EvaluatedKind::AllGather(dim) => each(&|array| joined(&of(array), *dim)),
            EvaluatedKind::AllToAll(dim) => each(&|array| {
                let pieces: Vec<Tensor> =
                    of(array).iter().map(|whole| piece(whole, *dim, member, given.len())).collect();
                joined(&pieces.iter().collect::<Vec<_>>(), *dim)
            }),
            EvaluatedKind::AllToAllTuple => {
                given.iter().map(|value| value[member].clone()).collect()
            }
            EvaluatedKind::Ragged(ragged) => {
                let into = &given[member][1];
                let mut result = Tensor::zeros(into.dtype(), into.dims());
                ragged.fill(&operands(given), member, result.bytes_mut());
                vec![Arc::new(result)]
            }
            EvaluatedKind::Broadcast => given[0].clone(),
            // Done elsewhere: it has pairs, not groups.
            EvaluatedKind::Permute => LeafArrays::new(),
        }
    }
}

/// The operands of all members of a ragged collective.
fn operands<'a>(given: &[&'a LeafArrays]) -> Vec<RaggedOperands<'a>> {
    given.iter().map(|value| std::array::from_fn(|operand| value[operand].bytes())).collect()
}

fn combiners(module: &Module, instr: InstrId) -> Result<Vec<Combiner>, Unsupported> {
    let mut combiners = Vec::new();
    for operand in module.operands(instr) {
        let kinds = leaf_kinds(module, operand.of)?;
        for leaf in operand_leaves(module, operand) {
            combiners.push(Combiner::of(module, instr, kinds[leaf].dtype)?);
        }
    }
    Ok(combiners)
}

fn reduced(combiner: &Combiner, arrays: &[&Tensor]) -> Tensor {
    let parts: Vec<&[u8]> = arrays.iter().map(|array| array.bytes()).collect();
    let mut result = Tensor::zeros(arrays[0].dtype(), arrays[0].dims());
    combiner.combine(&parts, result.bytes_mut());
    result
}

/// One of several equal pieces along a dimension.
fn piece(whole: &Tensor, dim: usize, number: usize, count: usize) -> Tensor {
    let mut dims = whole.dims().to_vec();
    dims[dim] /= count;
    let row = dims[dim..].iter().product::<usize>() * whole.dtype().size();
    let mut result = Tensor::zeros(whole.dtype(), &dims);
    let rows =
        whole.bytes().chunks_exact((row * count).max(1)).map(|rows| &rows[number * row..][..row]);
    result
        .bytes_mut()
        .chunks_exact_mut(row.max(1))
        .zip(rows)
        .for_each(|(to, from)| to.copy_from_slice(from));
    result
}

/// Arrays one after the other along a dimension.
fn joined(arrays: &[&Tensor], dim: usize) -> Tensor {
    let mut dims = arrays[0].dims().to_vec();
    dims[dim] = arrays.iter().map(|array| array.dims()[dim]).sum();
    let mut result = Tensor::zeros(arrays[0].dtype(), &dims);
    let size = arrays[0].dtype().size();
    let row = |array: &Tensor| array.dims()[dim..].iter().product::<usize>() * size;
    let whole = row(&result).max(1);
    let mut first = 0;
    for array in arrays {
        let len = row(array);
        let rows = array.bytes().chunks_exact(len.max(1));
        result
            .bytes_mut()
            .chunks_exact_mut(whole)
            .zip(rows)
            .for_each(|(to, from)| to[first..first + len].copy_from_slice(from));
        first += len;
    }
    result
}
