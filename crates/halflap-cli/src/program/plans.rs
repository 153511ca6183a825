//! The orders that a module is run in, and what running it then comes to.

use halflap::cost::{Costs, Profile};
use halflap::hlo::check;
use halflap::ids::{ComputationId, Id, OpId};
use halflap::measured::Part;
use halflap::order::Order;
use halflap::plan::{Program, build, fuse};
use halflap::program::Walk;
use halflap::units::Nanos;
use halflap::verify::{Demands, verify as prove};
use halflap_run::exec::fits;
use serde_json::{Value, json};

use super::orders::Orders;
use super::{Done, Ready, Source};
use crate::args::SearchArgs;
use crate::exit::Failed;
use crate::files;
use crate::optimize::{Wanted, search_for};

/// Which orders.
#[derive(Clone, Copy, Debug)]
pub enum Which<'a> {
    /// The best that are found.
    Ours(&'a SearchArgs),
    /// The module's own.
    Input,
    /// Those of a file.
    File(&'a str),
}

/// An order of every computation that runs, callees first.
#[derive(Clone, Debug)]
pub struct Found {
    orders: Vec<(ComputationId, Order)>,
    /// The simulated step time of the module's own orders, and of these.
    pub step_times: (Nanos, Nanos),
}

impl Source<'_> {
    /// The same module, if its shapes are right: who only schedules it need not ask, who runs it must.
    pub fn typed(self) -> Result<Self, Failed> {
        match check(&self.module) {
            Ok(()) => Ok(self),
            Err(error) => Err(Failed::in_file(files::name_of(self.path), error)),
        }
    }

    /// The same module with measured times, which come before all others.
    pub fn measured(&mut self, profile: Profile) {
        self.costs.profile = Some(profile);
    }

    /// Finds orders of all computations.
    pub fn found(&self, which: Which<'_>) -> Result<Found, Failed> {
        let orders = match which {
            Which::File(path) => Some(Orders::read(path)?),
            _ => None,
        };
        let all = self.walk(|ready| {
            let order = match (which, &orders) {
                (Which::Ours(search), _) if ready.unit.communicates() => {
                    let peak_before = ready.unit.peak_before;
                    let wanted = Wanted { search, is_chained: false, path: self.path, peak_before };
                    search_for(&ready.graph, &ready.machine, &wanted)?.schedule.order
                }
                (_, Some(orders)) => orders.order(self, ready)?,
                _ => Order::of_input(&ready.graph),
            };
            Ok((order, ()))
        })?;
        found(&all)
    }

    /// The simulated step times of orders that were found before.
    pub fn simulated(&self, orders: &Found) -> Result<Found, Failed> {
        let all = self.walk(|ready| {
            Ok((orders.of(ready.unit.computation).cloned().unwrap_or_else(|| Order::of_input(&ready.graph)), ()))
        })?;
        found(&all)
    }

    /// The module in these orders with measured times, if all of it runs in one computation.
    pub fn only_part(&self, orders: &Found, times: Profile) -> Result<Option<Part>, Failed> {
        let mut walk = Walk::new(&self.module);
        let Some(unit) = walk.next_unit() else { return Ok(None) };
        let unit = unit.map_err(|error| Failed::in_file(files::name_of(self.path), error))?;
        // Callees come first.
        if unit.computation != self.module.entry() {
            return Ok(None);
        }
        let costs = Costs { profile: Some(times), ..self.costs.clone() };
        let Ready { unit, graph, machine, .. } = self.ready(&costs, &walk, unit)?;
        let order = orders.of(unit.computation).cloned().unwrap_or_else(|| Order::of_input(&graph));
        let name = self.module.computation_name(unit.computation).to_owned();
        Ok(Some(Part { name, graph, order, machine }))
    }

    /// Orders as files have them (docs/formats.md).
    pub fn written(&self, orders: &Found) -> Result<Value, Failed> {
        let mut computations = Vec::new();
        self.walk(|ready| {
            let order = orders.of(ready.unit.computation).cloned();
            let order = order.unwrap_or_else(|| Order::of_input(&ready.graph));
            let names: Vec<&str> = order.as_slice().iter().map(|&op| ready.graph.name(op)).collect();
            let computation = self.module.computation_name(ready.unit.computation);
            computations.push(json!({ "computation": computation, "order": names }));
            Ok((order, ()))
        })?;
        Ok(json!({ "module": self.module.name(), "computations": computations }))
    }

    /// What running the module in these orders comes to, with kernels that are fused or not.
    pub fn plan(&self, orders: &Found, fuses: bool) -> Result<Program, Failed> {
        let program = build(&self.module, |unit| {
            orders.of(unit.computation).cloned().unwrap_or_else(|| Order::of_input(&unit.lowered.graph))
        });
        let program = program.map_err(|error| Failed::in_file(files::name_of(self.path), error))?;
        Ok(match fuses {
            true => fuse(&self.module, program, |instrs| fits(&self.module, instrs)),
            false => program,
        })
    }

    /// Orders that another rank sent.
    pub fn received(&self, bytes: &[u8]) -> Result<Found, Failed> {
        let mut numbers = bytes.as_chunks::<4>().0.iter().map(|bytes| u32::from_le_bytes(*bytes) as usize);
        let all = self.walk(|ready| {
            let count = numbers.next().unwrap_or(0);
            let ops: Vec<OpId> = numbers.by_ref().take(count).map(OpId::from_index).collect();
            let strange = || Failed::OurBug("the order that another rank sent is none".to_owned());
            let is_short = count != ready.graph.len() || ops.iter().any(|op| op.index() >= count);
            if is_short || prove(&ready.graph, &ops, &Demands::default()).is_err() {
                return Err(strange());
            }
            Ok((Order::from_ops(count, ops).ok_or_else(strange)?, ()))
        })?;
        found(&all)
    }
}

fn found(all: &[Done<()>]) -> Result<Found, Failed> {
    let entry = all.last().ok_or_else(|| Failed::OurBug("a module without an entry was read".to_owned()))?;
    let orders = all.iter().map(|done| (done.ready.unit.computation, done.order.clone())).collect();
    Ok(Found { orders, step_times: (entry.step_time_before, entry.step_time) })
}

impl Found {
    fn of(&self, computation: ComputationId) -> Option<&Order> {
        self.orders.iter().find(|(of, _)| *of == computation).map(|(_, order)| order)
    }

    /// Whether all orders are those of another.
    pub fn is_same(&self, other: &Found) -> bool {
        self.to_bytes() == other.to_bytes()
    }

    /// As bytes, for ranks that are processes.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut numbers: Vec<u32> = Vec::new();
        for (_, order) in &self.orders {
            numbers.push(order.len() as u32);
            numbers.extend(order.as_slice().iter().map(|op| op.index() as u32));
        }
        numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
    }
}
