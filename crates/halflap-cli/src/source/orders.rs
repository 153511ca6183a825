//! Orders in files.

use std::collections::BTreeSet;

use halflap::graph::{Edges, Graph};
use halflap::ids::OpId;
use halflap::import::{read_order, read_orders};
use halflap::order::Order;
use halflap::verify::{Demands, OrderEdges, verify};
use halflap::workload::Priced;
use halflap_hlo::Module;

use super::{ProgramSource, Subject};
use crate::exit::Failed;
use crate::files;
use crate::place::Input;

/// The orders of a file, by the names of units.
pub struct Orders<'a> {
    input: &'a Input,
    of: Vec<(String, Vec<String>)>,
    /// Nodes that the file need not name: the program that it was written for did not have them.
    added: BTreeSet<String>,
}

impl<'a> Orders<'a> {
    /// Reads orders as they are for a subject: one for a graph, those of computations for a module.
    pub fn read(input: &'a Input, subject: &Subject) -> Result<Orders<'a>, Failed> {
        match subject.hlo {
            Some(_) => Orders::of_module(input),
            None => {
                let names = read_order(&files::read(input)?);
                let names = names.map_err(|error| Failed::in_file(input.name(), error))?;
                Ok(Orders { input, of: vec![(String::new(), names)], added: BTreeSet::new() })
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
        Ok(Orders { input, of, added: BTreeSet::new() })
    }

    /// The same orders of a module with copies of bitcasts, which text and files do not have.
    pub fn with_copies_of(self, module: &Module) -> Orders<'a> {
        let instrs = module.computations().flat_map(|computation| module.instructions(computation));
        let copies = instrs.filter(|&instr| module.is_copy_of_bitcast(instr));
        let added = copies.map(|instr| module.instruction_name(instr).to_owned()).collect();
        Orders { added, ..self }
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
        let mut ops = names.iter().map(find).collect::<Result<Vec<OpId>, _>>()?;
        self.add_copies(graph, &mut ops);
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

    /// Puts every copy that the file does not name right after what it needs.
    fn add_copies(&self, graph: &Graph, ops: &mut Vec<OpId>) {
        if self.added.is_empty() {
            return;
        }
        for op in graph.ops() {
            if ops.contains(&op) || !self.added.contains(graph.name(op)) {
                continue;
            }
            let needed = graph.preds(op, Edges::Real);
            let last = ops.iter().rposition(|other| needed.contains(other));
            ops.insert(last.map_or(0, |last| last + 1), op);
        }
    }
}
