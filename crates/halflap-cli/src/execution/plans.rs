//! The orders that a module is run in, and the resulting plan.

use halflap::cost::Profile;
use halflap::graph::Edges;
use halflap::ids::{Id, IdVec, OpId, UnitId};
use halflap::order::Order;
use halflap::units::Nanos;
use halflap::verify::{Demands, verify};
use halflap::workload::Decided;
use halflap_hlo::LoweredUnit;
use halflap_hlo::plan::{Program, build, fuse};
use halflap_report::measured::StepPart;
use halflap_run::exec::fits;
use serde_json::{Value, json};

use crate::args::SearchArgs;
use crate::exit::Failed;
use crate::place::Input;
use crate::search::ProgramSearch;
use crate::source::{ModuleSource, Orders};

/// Which orders.
#[derive(Clone, Copy, Debug)]
pub enum Which<'a> {
    /// The best that are found.
    Ours(&'a SearchArgs),
    /// The module's own.
    Input,
    /// Those of a file.
    File(&'a Input),
}

/// An order of every unit.
#[derive(Clone, Debug)]
pub struct UnitOrders {
    orders: IdVec<UnitId, Order>,
    /// The simulated step time of the whole.
    pub step_time: Nanos,
}

impl ModuleSource {
    /// The same module with measured times, which take precedence.
    pub fn measured(&mut self, profile: Profile) {
        self.source.model.costs.profile = Some(profile);
    }

    /// Finds orders of all units.
    pub fn found(&self, which: Which<'_>) -> Result<UnitOrders, Failed> {
        let source = &self.source;
        let orders = match which {
            Which::File(path) => Some(Orders::of_module(path)?.with_copies_of(&self.module)),
            _ => None,
        };
        let all = match which {
            Which::Ours(args) => return found(&ProgramSearch::new(args, false).asked(source)?),
            _ => source.walk(|priced| match &orders {
                Some(orders) => Ok((orders.order(source, priced, Edges::Real)?, ())),
                None => Ok((priced.input.order.clone(), ())),
            })?,
        };
        found(&all)
    }

    /// The simulated step times of orders that were found before.
    pub fn simulated(&self, orders: &UnitOrders) -> Result<UnitOrders, Failed> {
        found(&self.source.walk(|priced| Ok((orders.orders[priced.unit].clone(), ())))?)
    }

    /// The module in these orders with measured times, if all of it runs in one unit.
    pub fn only_part(
        &self,
        orders: &UnitOrders,
        times: Profile,
    ) -> Result<Option<StepPart>, Failed> {
        if self.units.len() != 1 {
            return Ok(None);
        }
        let mut costs = self.source.model.clone();
        costs.costs.profile = Some(times);
        let all =
            self.source.walk_with(&costs, |priced| Ok((orders.orders[priced.unit].clone(), ())))?;
        Ok(all.into_iter().next().map(|Decided { priced, result, .. }| StepPart {
            name: self.source.name_of(priced.unit).to_owned(),
            graph: priced.graph,
            order: result.order,
            machine: priced.machine,
        }))
    }

    /// Orders as in files (docs/formats.md).
    pub fn written(&self, orders: &UnitOrders) -> Value {
        let computation = |(id, unit): (UnitId, &LoweredUnit)| {
            let graph = &unit.lowered.graph;
            let names: Vec<&str> =
                orders.orders[id].as_slice().iter().map(|&op| graph.name(op)).collect();
            json!({ "computation": self.source.name_of(id), "order": names })
        };
        let computations: Vec<Value> = self.units.iter().map(computation).collect();
        json!({ "module": self.module.name(), "computations": computations })
    }

    /// The plan of the module in these orders, fused or not.
    pub fn plan(&self, orders: &UnitOrders, fuses: bool) -> Result<Program, Failed> {
        let program = build(&self.module, &self.units, self.source.model.streams, |unit| {
            orders.orders[unit].clone()
        });
        let program = program.map_err(|error| Failed::in_file(self.source.input.name(), error))?;
        Ok(match fuses {
            true => fuse(&self.module, program, |instrs| fits(&self.module, instrs)),
            false => program,
        })
    }

    /// Orders that another rank sent.
    pub fn received(&self, bytes: &[u8]) -> Result<UnitOrders, Failed> {
        let mut numbers =
            bytes.as_chunks::<4>().0.iter().map(|bytes| u32::from_le_bytes(*bytes) as usize);
        let all = self.source.walk(|priced| {
            let count = numbers.next().unwrap_or(0);
            let ops: Vec<OpId> = numbers.by_ref().take(count).map(OpId::from_index).collect();
            let strange =
                || Failed::OurBug("another rank sent something that is not an order".to_owned());
            let is_short = count != priced.graph.len() || ops.iter().any(|op| op.index() >= count);
            if is_short || verify(&priced.graph, &ops, &Demands::default()).is_err() {
                return Err(strange());
            }
            Ok((Order::from_ops(count, ops).ok_or_else(strange)?, ()))
        })?;
        found(&all)
    }
}

fn found<T>(all: &[Decided<T>]) -> Result<UnitOrders, Failed> {
    let entry = all
        .last()
        .ok_or_else(|| Failed::OurBug("a module without an entry was read".to_owned()))?;
    let orders = all.iter().map(|done| done.result.order.clone()).collect();
    Ok(UnitOrders { orders, step_time: entry.result.step_time() })
}

impl UnitOrders {
    /// Whether all orders equal those of another.
    pub fn is_same(&self, other: &UnitOrders) -> bool {
        self.to_bytes() == other.to_bytes()
    }

    /// As bytes, for ranks that are processes.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut numbers: Vec<u32> = Vec::new();
        for order in self.orders.as_slice() {
            numbers.push(order.len() as u32);
            numbers.extend(order.as_slice().iter().map(|op| op.index() as u32));
        }
        numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
    }
}
