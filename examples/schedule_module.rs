//! Schedules an HLO module and writes it back in the new order, with asynchronous collectives.
//!
//! ```sh
//! cargo run --release -p halflap --example schedule_module -- MODULE [DEVICE] > scheduled.txt
//! ```

use std::error::Error;

use halflap::cost::{Costs, Device};
use halflap::workload::{Model, Search};
use halflap_hlo::{LoweredModule, read_module};

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().ok_or("usage: schedule_module MODULE [DEVICE]")?;
    let device = arguments.next().unwrap_or("h100".to_owned());
    print!("{}", schedule(&std::fs::read(path)?, &device)?);
    Ok(())
}

/// The module's text in the best order that is found.
fn schedule(bytes: &[u8], device: &str) -> Result<String, Box<dyn Error>> {
    let module = read_module(bytes)?;
    // A unit for each computation that runs: loop bodies, branches, callees, and last the entry.
    let lowered = LoweredModule::of(&module)?;
    // A module has no run times: they are modelled.
    let costs = Costs { device: Some(Device::named(device)?), ..Costs::default() };
    let model = Model { costs, ..Model::default() };
    let decision = lowered.workload.optimize(&model, &Search::default())?;
    for unit in &decision.units {
        let name = &lowered.workload.units[unit.priced.unit].name;
        let (step, exposed) = (unit.step_time(), unit.exposed());
        eprintln!("{name}: {} -> {}, of which exposed {}", step.before, step.after, exposed.after);
    }
    Ok(lowered.text(&module, |unit| decision.order(unit))?)
}

#[test]
fn what_is_written_is_a_module_with_asynchronous_collectives() -> Result<(), Box<dyn Error>> {
    let path = "../../tests/hlo/fsdp_L2_scan.after_spmd_partitioning.txt.gz";
    let text = schedule(&std::fs::read(path)?, "h100")?;
    assert!(read_module(text.as_bytes())?.is_scheduled());
    assert!(text.contains("all-gather-start") && text.contains("all-gather-done"));
    Ok(())
}
