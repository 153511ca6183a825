//! Orders in files.

use halflap::graph::Edges;
use halflap::ids::OpId;
use halflap::import::{read_order, read_orders};
use halflap::order::Order;
use halflap::verify::{Demands, OrderEdges, verify};
use halflap::workload::Priced;

use super::{ProgramSource, Subject};
use crate::exit::Failed;
use crate::files;
use crate::place::Input;

/// The orders of a file, by the names of units.
pub struct Orders<'a> {
    input: &'a Input,
    of: Vec<(String, Vec<String>)>,
}

impl<'a> Orders<'a> {
    /// Reads orders as they are for a subject: one for a graph, those of computations for a module.
    pub fn read(input: &'a Input, subject: &Subject) -> Result<Orders<'a>, Failed> {
        match subject.hlo {
            Some(_) => Orders::of_module(input),
            None => {
                let names = read_order(&files::read(input)?);
                let names = names.map_err(|error| Failed::in_file(input.name(), error))?;
                Ok(Orders { input, of: vec![(String::new(), names)] })
            }
        }
    }

    /// Reads the orders of a module's computations.
    pub fn of_module(input: &'a Input) -> Result<Orders<'a>, Failed> {
        let bytes = files::read(input)?;
        let wrong = |problem: String| Failed::in_file(input.name(), problem);
        let of = read_orders(&bytes).map_err(|error| wrong(error.to_string()))?;
        let is_again = |at: usize| of[..at].iter().any(|(name, _)| *name == of[at].0);
        if let Some(at) = (0..of.len()).find(|&at| is_again(at)) {
            return Err(wrong(format!(
                "it has two orders of computation '{}': there should be one",
                of[at].0
            )));
        }
        Ok(Orders { input, of })
    }

    /// The names of an order, if the file has one of that unit.
    pub fn names(&self, unit: &str) -> Option<&Vec<String>> {
        self.of.iter().find(|(name, _)| name == unit).map(|(_, names)| names)
    }

    /// A unit that the file has an order of and the program does not have.
    pub fn unknown(&self, source: &ProgramSource) -> Option<&str> {
        self.of
            .iter()
            .map(|(name, _)| name.as_str())
            .find(|name| source.workload.find(name).is_none())
    }

    /// The order of a unit: the file's, which must be valid and keep `edges`, or its own.
    pub fn order(
        &self,
        source: &ProgramSource,
        priced: &Priced,
        edges: Edges,
    ) -> Result<Order, Failed> {
        let graph = &priced.graph;
        let unit = source.name_of(priced.unit);
        let Some(names) = self.names(unit) else { return Ok(priced.input.order.clone()) };
        let wrong = |problem: String| {
            let of =
                if unit.is_empty() { String::new() } else { format!("computation '{unit}': ") };
            Failed::in_file(self.input.name(), format!("{of}{problem}"))
        };
        let unknown = |name: &String| match unit.is_empty() {
            true => wrong(format!("'{name}' is not a node of the graph")),
            false => wrong(format!("'{name}' is not a node")),
        };
        let find = |name: &String| graph.find(name).ok_or_else(|| unknown(name));
        let ops = names.iter().map(find).collect::<Result<Vec<OpId>, _>>()?;
        let proved =
            |order_edges| verify(graph, &ops, &Demands { order_edges, memory_limit: None });
        proved(OrderEdges::Free).map_err(|violation| wrong(violation.to_string()))?;
        if edges == Edges::All {
            let not_kept = |violation| {
                wrong(format!("{violation}; use --collective-order free for an order like this"))
            };
            proved(OrderEdges::Kept).map_err(not_kept)?;
        }
        let bug = || Failed::OurBug("a verified order is not a permutation".to_owned());
        Order::from_ops(graph.len(), ops).ok_or_else(bug)
    }
}
