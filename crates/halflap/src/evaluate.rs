//! An evaluated order: when everything runs, and what is alive. Computed once, and passed to all
//! that explain, compare or draw it.

use crate::graph::Graph;
use crate::memory::Timeline;
use crate::order::Order;
use crate::simulate::{Machine, Simulation, simulate};
use crate::units::{Bytes, Nanos};

/// A program, and what it runs on.
#[derive(Clone, Copy, Debug)]
pub struct Setup<'a> {
    /// The program.
    pub graph: &'a Graph,
    /// What it runs on.
    pub machine: &'a Machine,
}

/// An order of a program's operations, in time and in memory.
///
/// ```
/// use halflap::cost::Times;
/// use halflap::evaluate::{Evaluation, Setup};
/// use halflap::order::Order;
/// use halflap::simulate::Machine;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let bytes = std::fs::read("../../tests/corpus/ddp_mlp_4.graph.json.gz")?;
/// let graph = halflap::import::read_graph(&bytes)?;
/// let machine = Machine::new(&graph, Times::given(&graph)?);
/// let setup = Setup { graph: &graph, machine: &machine };
/// let input = Evaluation::of(setup, Order::of_input(&graph));
/// assert!(input.exposed() <= input.step_time());
/// println!("{} in {}, at most {} alive", input.exposed(), input.step_time(), input.peak());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Evaluation {
    /// The order.
    pub order: Order,
    /// When everything runs.
    pub simulation: Simulation,
    /// What is alive.
    pub memory: Timeline,
}

impl Evaluation {
    /// Evaluates an order.
    pub fn of(setup: Setup<'_>, order: Order) -> Evaluation {
        let simulation = simulate(setup.graph, order.as_slice(), setup.machine);
        let memory = Timeline::of(setup.graph, &order);
        Evaluation { order, simulation, memory }
    }

    /// The end of the step.
    pub fn step_time(&self) -> Nanos {
        self.simulation.step_time
    }

    /// How long compute is stalled on communication.
    pub fn exposed(&self) -> Nanos {
        self.simulation.exposed()
    }

    /// The peak memory.
    pub fn peak(&self) -> Bytes {
        self.memory.peak
    }
}

/// One side of a comparison: an evaluated order of a program.
#[derive(Clone, Copy, Debug)]
pub struct Side<'a> {
    /// The program, and what it runs on.
    pub setup: Setup<'a>,
    /// Its order.
    pub evaluation: &'a Evaluation,
}

/// A figure before and after.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Change<T> {
    /// In the input order.
    pub before: T,
    /// In the order that was decided on.
    pub after: T,
}
