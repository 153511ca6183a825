//! Embeds halflap in a compiler that has its own program and its own cost model: builds a graph
//! without files, prices it, and reads the new order back as places in the compiler's own list.
//!
//! ```sh
//! cargo run --release -p halflap --example own_costs
//! ```

use std::error::Error;

use halflap::graph::{
    BufferParts, Collective, DepKinds, Graph, GroupParts, OpKind, OpParts, Parts,
};
use halflap::ids::{BufId, GroupId, Id, IdVec, OpId};
use halflap::memory::Budget;
use halflap::units::{Bytes, Nanos};
use halflap::workload::{Model, Search, Workload};

use Instruction::{Await, Gather, Multiply};

/// The compiler's program: layers whose sharded weights are gathered right before they are used.
enum Instruction {
    Gather { layer: usize },
    Await { layer: usize },
    Multiply { layer: usize },
}

const WEIGHT: Bytes = Bytes(64 << 20);
const ACTIVATION: Bytes = Bytes(16 << 20);
const RANKS: [u32; 8] = [0, 1, 2, 3, 4, 5, 6, 7];

/// The compiler's cost model.
fn cost(instruction: &Instruction) -> Nanos {
    match instruction {
        Gather { .. } => Nanos::micros(400.0),
        Await { .. } => Nanos::ZERO,
        Multiply { layer } => Nanos::micros(300.0 + 50.0 * *layer as f64),
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let program = program(4);
    for place in schedule(&program)? {
        println!("{}", name(&program[place]));
    }
    Ok(())
}

fn program(layers: usize) -> Vec<Instruction> {
    let layer = |layer| [Gather { layer }, Await { layer }, Multiply { layer }];
    (0..layers).flat_map(layer).collect()
}

fn name(instruction: &Instruction) -> String {
    match instruction {
        Gather { layer } => format!("gather{layer}"),
        Await { layer } => format!("await{layer}"),
        Multiply { layer } => format!("multiply{layer}"),
    }
}

/// The instructions' places in the program, in the order in which they should run.
fn schedule(program: &[Instruction]) -> Result<Vec<usize>, Box<dyn Error>> {
    // The graph's operations have the numbers of the instructions that they were made from.
    let graph = graph(program)?.with_given(|op| cost(&program[op.index()]));
    // Gathering ahead takes memory for two layers' weights.
    let search = Search { memory: Budget::Times(2.0), ..Search::default() };
    let decision = Workload::from(graph).optimize(&Model::default(), &search)?;
    eprintln!("{} -> {}", decision.step_time().before, decision.step_time().after);
    let order = &decision.units[0].result.order;
    Ok(order.as_slice().iter().map(|op| op.index()).collect())
}

/// Every instruction has one result: the buffer with its own number.
fn graph(program: &[Instruction]) -> Result<Graph, Box<dyn Error>> {
    let mut parts = Parts::default();
    let group = parts.groups.push(GroupParts::new("all", RANKS.to_vec()));
    let numbered = program.iter().enumerate();
    parts.ops = numbered.map(|(at, instruction)| op(at, instruction, group)).collect();
    parts.buffers = parts.ops.ids().map(|op| buffer(program, &parts.ops, op)).collect();
    // Validates all of it; an error names the operation and what is wrong with it.
    Ok(Graph::new(parts)?)
}

fn op(at: usize, instruction: &Instruction, group: GroupId) -> OpParts {
    let kind = match instruction {
        Gather { .. } => OpKind::AsyncCollective,
        Await { .. } => OpKind::Wait,
        Multiply { .. } => OpKind::Compute,
    };
    let mut op = OpParts::new(name(instruction), kind);
    op.outputs = vec![BufId::from_index(at)];
    let data = DepKinds { data: true, ..DepKinds::default() };
    let reads = |from: usize| (BufId::from_index(from), data);
    match instruction {
        Gather { .. } => {
            let ranks = RANKS.len() as u32;
            op.collective = Some(Collective::named("all_gather".to_owned(), group, ranks, WEIGHT));
        }
        Await { .. } => op.deps = vec![reads(at - 1)],
        // The weights, and what the layer before has made.
        Multiply { .. } => {
            let before = at.checked_sub(3);
            op.deps = before.into_iter().chain([at - 1]).map(reads).collect();
        }
    }
    op
}

fn buffer(program: &[Instruction], ops: &IdVec<OpId, OpParts>, maker: OpId) -> BufferParts {
    let size = match program[maker.index()] {
        Gather { .. } => WEIGHT,
        // The weights are in the gather's buffer.
        Await { .. } => Bytes::ZERO,
        Multiply { .. } => ACTIVATION,
    };
    let id = BufId::from_index(maker.index());
    let reads = |op: OpId| ops[op].deps.iter().any(|(buffer, _)| *buffer == id);
    let mut buffer = BufferParts::new(format!("{}.out", ops[maker].name), Some(maker), size);
    buffer.users = ops.ids().filter(|&op| reads(op)).collect();
    // Weights are read through the wait, and live until they have been multiplied.
    if matches!(program[maker.index()], Gather { .. }) {
        buffer.users.push(OpId::from_index(maker.index() + 2));
    }
    buffer.output = maker.index() + 1 == program.len();
    buffer
}

#[test]
fn gathers_come_before_the_layer_that_hides_them() -> Result<(), Box<dyn Error>> {
    let program = program(4);
    let order = schedule(&program)?;
    assert_eq!(order.len(), program.len());
    let place = |wanted: &str| order.iter().position(|&at| name(&program[at]) == wanted);
    assert!(place("gather1") < place("multiply0"), "{order:?}");
    Ok(())
}
