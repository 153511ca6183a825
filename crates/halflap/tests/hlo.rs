//! HLO modules: real ones, generated ones and damaged ones.

#[path = "common/modules.rs"]
mod modules;

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use halflap::cost::{Costs, Device, Times};
use halflap::graph::{Edges, Graph, OpKind};
use halflap::hlo::{Module, Opcode, Phase, Place, trip_count, write};
use halflap::ids::{ComputationId, Id, InstrId, OpId};
use halflap::import::{is_module, read_module, unzip};
use halflap::memory::Timeline;
use halflap::optimize::{Effort, Task, optimize};
use halflap::order::Order;
use halflap::program::{Ran, Unit, Walk, likely_device};
use halflap::simulate::{Machine, simulate};
use halflap::units::{Bytes, Nanos};
use halflap::verify::{Demands, verify};
use modules::{Dice, random_module, random_text};

/// All modules of the corpus, by name.
fn corpus() -> Vec<(String, String)> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/hlo");
    let mut paths: Vec<PathBuf> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.to_string_lossy().ends_with(".txt.gz"));
    paths.sort();
    let read = |path: &PathBuf| {
        let name = path.file_name().unwrap().to_string_lossy().trim_end_matches(".txt.gz").to_owned();
        (name, String::from_utf8(unzip(&fs::read(path).unwrap()).unwrap().into_owned()).unwrap())
    };
    paths.iter().map(read).collect()
}

fn module(text: &str) -> Module {
    Module::read(text.to_owned()).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

/// A module's computations in orders that `find` gives.
struct Scheduled {
    orders: Vec<(ComputationId, Vec<Place>)>,
    /// Of the entry: step time and peak, in the module's own order and in the new one.
    step_time: (Nanos, Nanos),
    peak: (Bytes, Bytes),
    /// How long all units take when each runs once.
    total: Nanos,
}

fn schedule(module: &Module, mut find: impl FnMut(&Unit, &Graph, &Machine) -> Order) -> Scheduled {
    let costs = Costs { device: Some(Device::named(likely_device(module)).unwrap()), ..Costs::default() };
    let mut walk = Walk::new(module);
    let mut orders = Vec::new();
    let mut whole = ((Nanos::ZERO, Nanos::ZERO), (Bytes::ZERO, Bytes::ZERO));
    let mut total = Nanos::ZERO;
    while let Some(unit) = walk.next_unit() {
        let unit = unit.unwrap();
        let times: Times = costs.times(&unit.lowered.graph).unwrap();
        let graph = unit.lowered.graph.clone().with_runtimes(|op| times.of(op));
        let before = Machine::new(&graph, walk.times_before(&unit, &times));
        let machine = Machine::new(&graph, times);
        let order = find(&unit, &graph, &machine);
        verify(&graph, order.as_slice(), &Demands::default()).unwrap();
        let input = Order::of_input(&graph);
        let peak = |order: &Order| Timeline::of(&graph, order).peak;
        let step = |order: &Order, machine: &Machine| simulate(&graph, order.as_slice(), machine).step_time;
        let peaks = (peak(&input), peak(&order));
        let steps = (step(&input, &before), step(&order, &machine));
        walk.finish(&unit, &Ran { step_time: steps.1, step_time_before: steps.0, peak: peaks.0.max(peaks.1) });
        orders.push((unit.computation, order.as_slice().iter().map(|&op| unit.lowered.places[op]).collect()));
        whole = (steps, peaks);
        total += steps.1;
    }
    Scheduled { orders, step_time: whole.0, peak: whole.1, total }
}

fn input_order(_: &Unit, graph: &Graph, _: &Machine) -> Order {
    Order::of_input(graph)
}

/// A random order of a graph that can run.
fn random_order(graph: &Graph, dice: &mut Dice) -> Order {
    let mut missing: Vec<usize> = graph.ops().map(|op| graph.preds(op, Edges::Real).len()).collect();
    let mut ready: Vec<OpId> = graph.ops().filter(|op| missing[op.index()] == 0).collect();
    let mut ops = Vec::new();
    while !ready.is_empty() {
        let op = ready.swap_remove(dice.below(ready.len()));
        ops.push(op);
        for &succ in graph.succs(op, Edges::Real) {
            missing[succ.index()] -= 1;
            if missing[succ.index()] == 0 {
                ready.push(succ);
            }
        }
    }
    Order::from_ops(graph.len(), ops).unwrap()
}

#[test]
fn what_is_read_is_written_as_it_was() {
    for (name, text) in corpus() {
        let module = Module::read(text.clone()).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(write(&module, &[]) == text, "{name}");
        assert!(is_module(text.as_bytes()), "{name}");
    }
    for seed in 0..500 {
        let text = random_text(seed);
        assert_eq!(write(&module(&text), &[]), text);
    }
}

/// What an instruction does, by names: opcode, operands with their elements, attributes. A collective's
/// start and end are one; operands that are starts stand for what they start.
fn meaning(module: &Module) -> BTreeMap<(String, String), (String, Vec<String>, Vec<String>)> {
    let mut found = BTreeMap::new();
    for computation in module.computations() {
        let mut name_of_split: BTreeMap<String, InstrId> = BTreeMap::new();
        for instr in module.instructions(computation) {
            let name = module.instruction_name(instr).to_owned();
            let operand = |operand: &halflap::hlo::Operand| {
                format!("{}{:?}", module.instruction_name(operand.of), module.path(operand))
            };
            let operands: Vec<String> = module.operands(instr).iter().map(operand).collect();
            let attributes = module.attributes(instr).map(|(key, value)| format!("{key}={value}")).collect();
            let opcode = module.opcode_name(instr).to_owned();
            if module.instruction(instr).opcode.phase() == Some(Phase::Start) {
                name_of_split.insert(name.clone(), instr);
            }
            found.insert((module.computation_name(computation).to_owned(), name), (opcode, operands, attributes));
        }
    }
    found
}

/// That one module is the other with its synchronous collectives split.
fn assert_same_program(before: &Module, after: &Module, what: &str) {
    let (old, mut new) = (meaning(before), meaning(after));
    for ((computation, name), (opcode, operands, attributes)) in &old {
        let key = (computation.clone(), name.clone());
        let (new_opcode, new_operands, new_attributes) =
            new.remove(&key).unwrap_or_else(|| panic!("{what}: {name} is missing"));
        if *opcode == new_opcode {
            assert_eq!((operands, attributes), (&new_operands, &new_attributes), "{what}: {name}");
            continue;
        }
        assert_eq!(new_opcode, format!("{opcode}-done"), "{what}: {name}");
        let start = new_operands[0].trim_end_matches("[]").to_owned();
        let started =
            new.remove(&(computation.clone(), start)).unwrap_or_else(|| panic!("{what}: {name} has no start"));
        assert_eq!(started, (format!("{opcode}-start"), operands.clone(), attributes.clone()), "{what}: {name}");
    }
    assert!(new.is_empty(), "{what}: new are {:?}", new.keys().take(3));
    for computation in before.computations() {
        let other = after.find(before.computation_name(computation)).unwrap();
        let root = |module: &Module, of| module.instruction_name(module.root(of)).to_owned();
        assert_eq!(root(before, computation), root(after, other), "{what}");
    }
    assert!(after.is_scheduled() && before.name() == after.name() && before.devices() == after.devices(), "{what}");
}

/// Writes a module in orders and reads it again; gives it if it is the same program and takes as long
/// as was said.
fn written(before: &Module, scheduled: &Scheduled, what: &str) -> Module {
    let text = write(before, &scheduled.orders);
    let after = Module::read(text).unwrap_or_else(|error| panic!("{what}: {error}"));
    assert_same_program(before, &after, what);
    let again = schedule(&after, input_order);
    let close = |a: Nanos, b: Nanos| (a.0 - b.0).abs() <= 1e-6 * a.0.abs().max(1.0);
    assert!(close(again.total, scheduled.total), "{what}: {:?} {:?}", again.total, scheduled.total);
    assert!(close(again.step_time.1, scheduled.step_time.1), "{what}");
    after
}

/// What a module needs in its own order.
fn peak_of(module: &Module) -> Bytes {
    schedule(module, input_order).peak.0
}

#[test]
fn random_orders_of_real_modules_are_the_same_program() {
    for (name, text) in corpus().into_iter().filter(|(_, text)| text.len() < 1_500_000) {
        let before = module(&text);
        let mut dice = Dice::new(name.len() as u64);
        let own = schedule(&before, input_order);
        written(&before, &own, &name);
        let scheduled = schedule(&before, |_, graph, _| random_order(graph, &mut dice));
        let after = written(&before, &scheduled, &name);
        // Which values share a buffer is found anew; what was said must hold.
        assert!(peak_of(&after) <= scheduled.peak.0.max(scheduled.peak.1), "{name}");
    }
}

#[test]
fn random_orders_of_random_modules_are_the_same_program() {
    for seed in 0..1500 {
        let before = random_module(seed);
        let mut dice = Dice::new(seed);
        let scheduled = schedule(&before, |_, graph, _| random_order(graph, &mut dice));
        let after = written(&before, &scheduled, &format!("seed {seed}"));
        // Once everything is asynchronous, the text in its own order is already what would be written,
        // but for where instructions without a node stand.
        let again = schedule(&after, input_order);
        let settled = module(&write(&after, &again.orders));
        let last = schedule(&settled, input_order);
        assert_eq!(write(&settled, &last.orders), settled.text(), "seed {seed}");
    }
}
