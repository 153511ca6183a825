//! HLO modules: real ones, generated ones and damaged ones.

#[path = "common/modules.rs"]
mod modules;
#[path = "common/orders.rs"]
mod orders;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::ops::ControlFlow;
use std::path::PathBuf;

use halflap::cost::{Costs, Device};
use halflap::evaluate::Change;
use halflap::graph::{Edges, Graph, OpKind};
use halflap::import::{is_module, unzip};
use halflap::memory::Timeline;
use halflap::optimize::{Effort, Task, optimize};
use halflap::order::Order;
use halflap::simulate::Machine;
use halflap::units::{Bytes, Nanos};
use halflap::verify::{Demands, verify};
use halflap::workload::{Decided, Model, UnitError};
use halflap_hlo::ids::ComputationId;
use halflap_hlo::read_module;
use halflap_hlo::{LoweredModule, likely_device};
use halflap_hlo::{Module, NodePlace, Opcode, WriteError, trip_count, write, write_proved};
use modules::{Dice, random_module, random_text};
use orders::random_order;

/// All modules of the corpus, by name.
fn corpus() -> Vec<(String, String)> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/hlo");
    let mut paths: Vec<PathBuf> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.to_string_lossy().ends_with(".txt.gz"));
    paths.sort();
    let read = |path: &PathBuf| {
        let name =
            path.file_name().unwrap().to_string_lossy().trim_end_matches(".txt.gz").to_owned();
        (name, String::from_utf8(unzip(&fs::read(path).unwrap()).unwrap().into_owned()).unwrap())
    };
    paths.iter().map(read).collect()
}

fn module(text: &str) -> Module {
    Module::read(text.to_owned()).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

/// A module's computations in orders that `find` gives.
struct Scheduled {
    orders: Vec<(ComputationId, Vec<NodePlace>)>,
    /// Of the entry: step time and peak, in the module's own order and in the new one.
    step_time: Change<Nanos>,
    peak: Change<Bytes>,
    /// How long all units take when each runs once.
    total: Nanos,
}

fn schedule(module: &Module, mut find: impl FnMut(&Graph, &Machine) -> Order) -> Scheduled {
    let costs =
        Costs { device: Some(Device::named(likely_device(module)).unwrap()), ..Costs::default() };
    let LoweredModule { workload, units } = LoweredModule::of(module).unwrap();
    let all = workload.walk(&Model { costs, ..Model::default() }, |priced| {
        let order = find(&priced.graph, &priced.machine);
        verify(&priced.graph, order.as_slice(), &Demands::default()).unwrap();
        Ok::<_, UnitError>((order, ()))
    });
    let all = all.unwrap();
    let entry = all.last().unwrap();
    let places = |done: &Decided<()>| {
        let unit = &units[done.priced.unit];
        (
            unit.computation,
            done.result.order.as_slice().iter().map(|&op| unit.lowered.places[op]).collect(),
        )
    };
    // With the memory that callees need now.
    let input = Timeline::of(&entry.priced.graph, &entry.priced.input.order).peak;
    Scheduled {
        orders: all.iter().map(places).collect(),
        step_time: entry.step_time(),
        peak: Change { before: input, after: entry.result.peak() },
        total: all.iter().map(|done| done.result.step_time()).sum(),
    }
}

fn input_order(graph: &Graph, _: &Machine) -> Order {
    Order::of_input(graph)
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

/// What an instruction does, by names.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Said {
    opcode: String,
    /// With their elements.
    operands: Vec<String>,
    attributes: Vec<String>,
}

/// All instructions, by computation and name.
fn meaning(module: &Module) -> BTreeMap<(String, String), Said> {
    let mut found = BTreeMap::new();
    for computation in module.computations() {
        for instr in module.instructions(computation) {
            let operand = |operand: &halflap_hlo::Operand| {
                format!("{}{:?}", module.instruction_name(operand.of), module.path(operand))
            };
            let said = Said {
                opcode: module.opcode_name(instr).to_owned(),
                operands: module.operands(instr).iter().map(operand).collect(),
                attributes: module
                    .attributes(instr)
                    .map(|(key, value)| format!("{key}={value}"))
                    .collect(),
            };
            let name = (
                module.computation_name(computation).to_owned(),
                module.instruction_name(instr).to_owned(),
            );
            found.insert(name, said);
        }
    }
    found
}

/// That one module is the other with its synchronous collectives split.
fn assert_same_program(before: &Module, after: &Module, what: &str) {
    let (old, mut new) = (meaning(before), meaning(after));
    let mut own = BTreeSet::new();
    for ((computation, name), said) in &old {
        let now = new.remove(&(computation.clone(), name.clone()));
        let now = now.unwrap_or_else(|| panic!("{what}: {name} is missing"));
        if said.opcode == now.opcode {
            assert_eq!(*said, now, "{what}: {name}");
            continue;
        }
        assert_eq!(now.opcode, format!("{}-done", said.opcode), "{what}: {name}");
        let start = now.operands[0].trim_end_matches("[]").to_owned();
        let started = new
            .remove(&(computation.clone(), start))
            .unwrap_or_else(|| panic!("{what}: {name} has no start"));
        let mut expected = Said { opcode: format!("{}-start", said.opcode), ..said.clone() };
        // A channel is the old one, or one that nothing else has.
        let is_channel = |attribute: &&String| attribute.starts_with("channel_id=");
        if let Some(channel) = started.attributes.iter().find(is_channel)
            && !said.attributes.contains(channel)
        {
            let is_known = old.values().any(|said| said.attributes.contains(channel));
            assert!(!is_known && own.insert(channel.clone()), "{what}: {name} on {channel}");
            let old = expected.attributes.iter_mut().find(|attribute| is_channel(&&**attribute));
            *old.unwrap_or_else(|| panic!("{what}: {name} had no channel")) = channel.clone();
        }
        assert_eq!(started, expected, "{what}: {name}");
    }
    assert!(new.is_empty(), "{what}: new are {:?}", new.keys().take(3));
    for computation in before.computations() {
        let other = after.find(before.computation_name(computation)).unwrap();
        let root = |module: &Module, of| module.instruction_name(module.root(of)).to_owned();
        assert_eq!(root(before, computation), root(after, other), "{what}");
    }
    assert!(
        after.is_scheduled()
            && before.name() == after.name()
            && before.devices() == after.devices(),
        "{what}"
    );
}

/// Writes a module in orders and reads it again; gives it if it is the same program and takes as
/// long as was said.
fn written(before: &Module, scheduled: &Scheduled, what: &str) -> Module {
    let text = write(before, &scheduled.orders);
    let after = Module::read(text).unwrap_or_else(|error| panic!("{what}: {error}"));
    assert_same_program(before, &after, what);
    let again = schedule(&after, input_order);
    let close = |a: Nanos, b: Nanos| (a.0 - b.0).abs() <= 1e-6 * a.0.abs().max(1.0);
    assert!(close(again.total, scheduled.total), "{what}: {:?} {:?}", again.total, scheduled.total);
    assert!(close(again.step_time.after, scheduled.step_time.after), "{what}");
    after
}

/// What a module needs in its own order.
fn peak_of(module: &Module) -> Bytes {
    schedule(module, input_order).peak.before
}

#[test]
fn random_orders_of_real_modules_are_the_same_program() {
    for (name, text) in corpus().into_iter().filter(|(_, text)| text.len() < 1_500_000) {
        let before = module(&text);
        let mut dice = Dice::new(name.len() as u64);
        let own = schedule(&before, input_order);
        written(&before, &own, &name);
        let scheduled = schedule(&before, |graph, _| random_order(graph, &mut dice));
        let after = written(&before, &scheduled, &name);
        // Recomputes which values share a buffer; the claims must hold.
        assert!(peak_of(&after) <= scheduled.peak.before.max(scheduled.peak.after), "{name}");
    }
}

#[test]
fn random_orders_of_random_modules_are_the_same_program() {
    for seed in 0..1500 {
        let before = random_module(seed);
        let mut dice = Dice::new(seed);
        let scheduled = schedule(&before, |graph, _| random_order(graph, &mut dice));
        let after = written(&before, &scheduled, &format!("seed {seed}"));
        // Once everything is asynchronous, the text in its own order is already what would be
        // written, but for where instructions without a node stand.
        let again = schedule(&after, input_order);
        let settled = module(&write(&after, &again.orders));
        let last = schedule(&settled, input_order);
        assert_eq!(write(&settled, &last.orders), settled.text(), "seed {seed}");
    }
}

/// An update may add operands that come late: the end of the whole comes after all updates.
const UPDATED: &str = "HloModule m

wrapped {
  a = f32[64] parameter(0)
  b = f32[64] parameter(1)
  ROOT s = f32[64] add(a, b)
}

ENTRY e {
  p = f32[64] parameter(0)
  s = ((f32[64]), (), s32[]) async-start(p), calls=wrapped
  late = f32[64] exponential(p)
  later = f32[64] negate(late)
  u = ((f32[64], f32[64]), f32[64], s32[]) async-update(s, later)
  v = ((f32[64], f32[64]), f32[64], s32[]) async-update(u)
  d = f32[64] async-done(v)
  other = f32[64] tanh(p)
  aside = f32[64] negate(d)
  r = f32[64] add(d, other)
}
";

/// Shorthand of every kind, with collectives to move.
const SHORT: &str = "HloModule m, num_partitions=2

f {
  ROOT s = add(f32[] parameter(0), f32[] parameter(1))
}

g {
  x = f32[ 64 ] parameter(0)
  y = multiply(x, tanh(x))
  c = f32[64] all-reduce(negate(y)), channel_id=1, replica_groups={{0,1}}, use_global_device_ids=true, to_apply={
    a = f32[] parameter(0)
    b = f32[] parameter(1)
    ROOT m = maximum(a, b)
  }
  h = f32[32] slice(y), slice={[0:32]}
  d = f32[64] {0} all-gather(negate(h)), channel_id=2, replica_groups=
    {{0,1}}, dimensions={0}, use_global_device_ids=true // all
  t = tuple(c, exponential(d))
  ROOT r = add(t#1, t#0)
}
";

#[test]
fn ends_come_after_updates_that_add_operands() {
    let before = module(UPDATED);
    let mut dice = Dice::new(1);
    for seed in 0..200 {
        let scheduled = schedule(&before, |graph, _| random_order(graph, &mut dice));
        written(&before, &scheduled, &format!("seed {seed}"));
        write_proved(&before, &scheduled.orders).unwrap();
    }
}

#[test]
fn what_was_short_is_written_in_full() {
    let before = module(SHORT);
    let mut dice = Dice::new(2);
    for seed in 0..50 {
        let scheduled = schedule(&before, |graph, _| random_order(graph, &mut dice));
        written(&before, &scheduled, &format!("seed {seed}"));
        write_proved(&before, &scheduled.orders).unwrap();
    }
}

#[test]
fn what_is_not_the_module_does_not_leave() {
    let before = module(UPDATED);
    let mut scheduled = schedule(&before, input_order);
    scheduled.orders.iter_mut().for_each(|(_, order)| order.reverse());
    let wrong = write_proved(&before, &scheduled.orders).unwrap_err();
    assert!(matches!(wrong, WriteError::Unreadable(_)), "{wrong}");
}

/// Damages a text: cuts it, or changes, drops or doubles pieces of it.
fn damage(text: &str, dice: &mut Dice) -> Vec<u8> {
    let mut bytes = text.as_bytes().to_vec();
    for _ in 0..=dice.below(3) {
        let at = dice.below(bytes.len());
        match dice.below(6) {
            0 => bytes.truncate(at),
            1 => bytes[at] ^= 1 << dice.below(8),
            2 => bytes[at] = b"{}()[],=%#\"\\\n0-<"[dice.below(16)],
            3 => drop(bytes.drain(at..(at + dice.below(40)).min(bytes.len()))),
            4 => {
                let piece = bytes[at..(at + dice.below(40)).min(bytes.len())].to_vec();
                let to = dice.below(bytes.len());
                bytes.splice(to..to, piece);
            }
            _ => drop(bytes.splice(at..at, b"99999999999999999999".iter().copied())),
        }
        if bytes.is_empty() {
            return b"x".to_vec();
        }
    }
    bytes
}

/// Calls every accessor of a module: nothing may panic, whatever the text.
fn ask_everything(module: &Module) {
    for computation in module.computations() {
        module.parameters(computation);
        for instr in module.instructions(computation) {
            module.metadata(instr);
            module.source(instr);
            module.literal(instr);
            module.replica_groups(instr).describe();
            module.window(instr);
            module.conv_dims(instr);
            module.slice_dims(instr);
            module.backend_config(instr);
            module.output_to_operand_aliasing(instr);
            trip_count(module, instr);
        }
    }
    let costs = Costs { device: Some(Device::named("h100").unwrap()), ..Costs::default() };
    let Ok(LoweredModule { workload, units }) = LoweredModule::of(module) else { return };
    let own = workload.walk(&Model { costs, ..Model::default() }, |priced| {
        Ok::<_, UnitError>((priced.input.order.clone(), ()))
    });
    if own.is_err() {
        return;
    }
    let orders: Vec<_> = units
        .iter()
        .map(|(_, unit)| (unit.computation, unit.lowered.places.as_slice().to_vec()))
        .collect();
    let text = write(module, &orders);
    Module::read(text).unwrap_or_else(|error| panic!("{error}\n{}", module.text()));
}

#[test]
fn damaged_modules_end_in_an_error_with_its_place() {
    let (mut read, mut refused) = (0, 0);
    for seed in 0..12_000 {
        let mut dice = Dice::new(seed);
        let text = random_text(seed % 200);
        match read_module(&damage(&text, &mut dice)) {
            Ok(module) => {
                read += 1;
                ask_everything(&module);
            }
            Err(error) => {
                refused += 1;
                let said = error.to_string();
                assert!(
                    said.starts_with("line ") && said.contains(" column ") && said.ends_with('^'),
                    "{said}"
                );
                assert!(said.len() < 600, "{said}");
            }
        }
    }
    assert!(read > 1000 && refused > 1000, "{read} {refused}");
}

#[test]
fn damaged_real_modules_end_in_an_error_with_its_place() {
    let small: Vec<String> =
        corpus().into_iter().map(|(_, text)| text).filter(|text| text.len() < 180_000).collect();
    for seed in 0..400 {
        let mut dice = Dice::new(seed);
        let text = &small[seed as usize % small.len()];
        match read_module(&damage(text, &mut dice)) {
            Ok(module) => ask_everything(&module),
            Err(error) => assert!(error.to_string().starts_with("line "), "{error}"),
        }
    }
}

#[test]
fn errors_show_the_line() {
    let said = |body: &str| {
        let text = format!(
            "HloModule m\n\nENTRY %e (p: f32[2]) -> f32[2] {{\n  %p = f32[2] parameter(0)\n  {body}\n}}\n"
        );
        Module::read(text).unwrap_err().to_string()
    };
    let unknown = said("ROOT %r = f32[2] negate(%q)");
    assert_eq!(
        unknown,
        "line 5 column 27: no instruction before this one is called 'q'\n    ROOT %r = f32[2] negate(%q)\n                            ^"
    );
    assert!(
        said("ROOT %r = f32[2 negate(%p)")
            .starts_with("line 5 column 18: expected ',' or ']' among the dimensions")
    );
    assert!(
        said("ROOT %r = f32 negate(%p)")
            .starts_with("line 5 column 13: expected a shape such as f32[2,3]{1,0}")
    );
    assert!(said("ROOT %p = f32[2] negate(%p)").contains("instruction 'p' is defined twice"));
    assert!(
        said("ROOT %r = f32[2] call(%p), to_apply=%f").contains("no computation is called 'f'")
    );
    assert!(
        said("ROOT %r = f32[2] call(%p), to_apply=%e").contains("computation 'e' calls itself")
    );
    assert!(
        said("ROOT %r = f32[2] negate(%p), a=\"1")
            .contains("the string that starts here has no end")
    );
    assert!(
        said("ROOT %r = f32[2] negate(%p), a={1)")
            .contains("a closing '}' must come before this bracket")
    );
    assert!(said("ROOT %r = f32[2] negate(%p#0)").contains("'p' has no element 0"));
    let long = said(&format!("%r = f32[2] negate(%p), a=\"{}\", %", "x".repeat(100_000)));
    assert!(long.len() < 400 && long.contains("column 100034"), "{long}");
    let mlir = Module::read("module @jit_f {\n}".to_owned()).unwrap_err().to_string();
    assert!(mlir.contains("this is MLIR (StableHLO)"), "{mlir}");
    let empty = Module::read("HloModule m\n".to_owned()).unwrap_err().to_string();
    assert!(empty.contains("the module has no computation"), "{empty}");
    let bytes = Module::from_bytes(b"HloModule m\nENTRY \xff".to_vec()).unwrap_err();
    assert_eq!((bytes.line, bytes.column), (2, 7));
}

/// Deep and wide texts take time and memory in proportion.
/// What is said of a module of 8 partitions whose entry holds these lines after two parameters.
fn said_of(lines: &str) -> String {
    let text = format!(
        "HloModule m, num_partitions=8\nENTRY e {{\n  p = f32[8] parameter(0)\n  q = (f32[8]) parameter(1)\n  {lines}\n}}\n"
    );
    Module::read(text).map_or_else(|error| error.to_string(), |_| String::new())
}

#[test]
fn the_devices_of_a_mesh_are_read() {
    let groups = |notation: &str| {
        let attributes =
            format!("channel_id=1, replica_groups={notation}, use_global_device_ids=true");
        let text = format!(
            "HloModule m, num_partitions=8\nENTRY e {{\n  p = f32[8] parameter(0)\n  ROOT r = f32[8] all-reduce(p), {attributes}\n}}\n"
        );
        let module = module(&text);
        let root = module.root(module.entry());
        assert_eq!(module.attribute(root, "replica_groups"), Some(notation));
        assert_eq!(module.attribute(root, "use_global_device_ids"), Some("true"));
        module.replica_groups(root).groups
    };
    let by_columns = [[0, 2, 4, 6], [1, 3, 5, 7]];
    assert_eq!(groups("mesh['a'=2,'b'=4], device_ids=([4,2]T(1,0)) {'b'}"), by_columns);
    assert_eq!(groups("mesh['a'=2,'b'=4], device_ids=(0,2,4,6,1,3,5,7) {'b'}"), by_columns);
    assert_eq!(groups("mesh['a'=2,'b'=4] {'b'}"), [[0, 1, 2, 3], [4, 5, 6, 7]]);
    assert_eq!(groups("{}"), [[0, 1, 2, 3, 4, 5, 6, 7]]);
}

#[test]
fn groups_that_cannot_be_read_are_refused() {
    let bad = [
        "[4,3]<=[8]",
        "[2,4]<=[2,2,2]T(2,0,0)",
        "[1,1000000000]<=[1000000000]",
        "mesh['a'=2] {'c'}",
        "{{-1,2}}",
    ];
    for notation in bad {
        let said = said_of(&format!(
            "ROOT r = f32[8] all-reduce(p), replica_groups={notation}, channel_id=1"
        ));
        assert!(
            said.starts_with("line 5 column 49: these groups cannot be read; expected "),
            "{said}"
        );
    }
}

#[test]
fn what_no_compiler_writes_is_refused() {
    let cases = [
        ("ROOT r = f32[8] get-tuple-element(p), index=0", "line 5 column 37: 'p' is not a tuple"),
        (
            "ROOT r = f32[8] get-tuple-element(q), index=1",
            "line 5 column 47: get-tuple-element needs index=",
        ),
        (
            "ROOT r = f32[8] get-tuple-element(q)",
            "line 5 column 19: get-tuple-element needs index=",
        ),
        ("ROOT r = f32[8] get-tuple-element(q#0), index=0", "line 5 column 37: 'q' is not a tuple"),
        (
            "ROOT x = f32[8] negate(p)\n  ROOT y = f32[8] negate(p)",
            "line 6 column 3: the computation has a second ROOT",
        ),
        ("ROOT r = f32[8] add(p)", "line 5 column 19: add takes 2 operands, not 1"),
        ("ROOT r = f32[8] negate(p, p)", "line 5 column 19: negate takes 1 operand, not 2"),
        ("ROOT r = f32[8] select(p, p)", "line 5 column 19: select takes 3 operands, not 2"),
        (
            "ROOT r = f32[8] all-gather-done()",
            "line 5 column 19: all-gather-done takes 1 operand, not 0",
        ),
        (
            "ROOT r = f32[8] all-reduce()",
            "line 5 column 19: all-reduce takes at least 1 operand, not 0",
        ),
        (
            "n = f32[8] negate(p)\n  ROOT r = f32[8] all-reduce-done(n)",
            "line 6 column 35: 'n' starts nothing",
        ),
        ("ROOT r = f32[8] parameter(1)", "line 5 column 29: parameter '1' is defined twice"),
    ];
    for (lines, start) in cases {
        let said = said_of(lines);
        assert!(said.starts_with(start), "{lines}: {said}");
    }
    let good = [
        "ROOT r = f32[8] get-tuple-element(q), index=0",
        "ROOT r = f32[8] all-reduce-done(p)",
        "s = f32[8] all-reduce-start(p)\n  b = f32[8] bitcast(s)\n  ROOT r = f32[8] all-reduce-done(b)",
        "g = f32[8] get-tuple-element(q), index=0\n  ROOT r = f32[8] all-reduce-done(g)",
        "ROOT r = f32[8] all-reduce-done(q#0)",
        "x = f32[8] negate(p)\n  y = f32[8] negate(x)",
    ];
    for lines in good {
        assert_eq!(said_of(lines), "", "{lines}");
    }
}

#[test]
fn extremes_are_read_or_refused_quickly() {
    let deep = format!(
        "HloModule m\nENTRY e {{\n ROOT c = f32[] constant({}1{})\n}}\n",
        "{".repeat(200_000),
        "}".repeat(200_000)
    );
    ask_everything(&module(&deep));
    let nested: String = (0..20_000)
        .map(|n| format!("f{} {{\n ROOT c = f32[] call(), to_apply=f{n}\n}}\n", n + 1))
        .collect();
    let chain = format!(
        "HloModule m\nf0 {{\n ROOT c = f32[] constant(1)\n}}\n{nested}ENTRY e {{\n ROOT c = f32[] call(), to_apply=f20000\n}}\n"
    );
    assert_eq!(module(&chain).callees_first().len(), 20_002);
    let wide = format!(
        "HloModule m\nENTRY e {{\n p = ({}) parameter(0)\n ROOT r = f32[] get-tuple-element(p), index=19999\n}}\n",
        vec!["f32[]"; 20_000].join(", ")
    );
    ask_everything(&module(&wide));
    let huge = "HloModule m, num_partitions=4000000000, replica_count=4000000000\nENTRY e {\n p = f32[9999999999,9999999999,9999999999] parameter(0)\n ROOT r = f32[9999999999,9999999999,9999999999] all-reduce(p), replica_groups={}\n}\n";
    ask_everything(&module(huge));
}

/// Orders of XLA's latency-hiding scheduler, which the tpu modules hold.
#[test]
fn never_worse_than_xlas_own_order() {
    for (name, text) in corpus().into_iter().filter(|(name, _)| name.starts_with("tpu")) {
        let before = module(&text);
        let scheduled = schedule(&before, |graph, machine| {
            let limit = Timeline::of(graph, &Order::of_input(graph)).peak;
            let task = Task {
                graph,
                machine,
                memory_limit: limit,
                edges: Edges::Real,
                known: &[],
                effort: Effort::Quick,
                threads: 2,
                progress: &|_| ControlFlow::Continue(()),
            };
            let found = optimize(&task).unwrap();
            assert!(found.peak <= limit, "{name}");
            found.order
        });
        let Change { before: old, after: new } = scheduled.step_time;
        assert!(new <= old && scheduled.peak.after <= scheduled.peak.before, "{name}: {old} {new}");
        // What is known of these two: at least 2% are gained, within the same memory on the chip.
        assert!(new.0 <= 0.98 * old.0, "{name}: {old} {new}");
        written(&before, &scheduled, &name);
    }
}

#[test]
fn no_order_needs_more_memory_on_the_chip() {
    let mut dice = Dice::new(3);
    for (name, text) in corpus().into_iter().filter(|(name, _)| name.starts_with("tpu")) {
        let lowered = LoweredModule::of(&module(&text)).unwrap();
        let mut most = Bytes::ZERO;
        for (_, unit) in lowered.units.iter() {
            let graph = &unit.lowered.graph;
            let own = unit.lowered.space_peaks(&Order::of_input(graph));
            most = own.get(&1).copied().unwrap_or_default().max(most);
            for _ in 0..5 {
                let order = random_order(graph, &mut dice);
                for (space, peak) in unit.lowered.space_peaks(&order) {
                    assert!(peak <= own[&space], "{name}: S({space}) {peak} {}", own[&space]);
                }
            }
        }
        assert!(most > Bytes(1 << 20), "{name}: {most}");
    }
}

/// Compares our peak in the text's own order with the total of XLA's buffer assignment.
#[test]
fn peaks_are_close_to_xlas_buffer_assignment() {
    let path =
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/hlo/xla_total_bytes.json");
    let totals: BTreeMap<String, f64> = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    let mut met = 0;
    for (name, text) in corpus() {
        let Some(total) = totals.get(&name) else { continue };
        let ours = peak_of(&module(&text)).0 as f64;
        assert!((ours / total - 1.0).abs() < 0.02, "{name}: {ours} {total}");
        met += 1;
    }
    assert_eq!(met, 8);
}

#[test]
fn pairs_are_written_apart_under_names_of_their_own() {
    let before = module(
        "HloModule m, is_scheduled=false
        add { a = f32[] parameter(0)\n b = f32[] parameter(1)\n ROOT ag-start = f32[] add(a, b) }
        ENTRY e { p = f32[8] parameter(0)\n q = (f32[8], f32[8]) tuple(p, p)
          ag = f32[16] all-gather(q#1), replica_groups={}, dimensions={0}, control-predecessors={p}
          two = (f32[8], f32[8]) all-gather(p, p), replica_groups={{0}}, dimensions={0}
          rs = f32[8] reduce-scatter(p), replica_groups={{0}}, dimensions={0}, to_apply=add
          s = f32[8] all-reduce-start(p), to_apply=add, backend_config={\"collective_backend_config\":{\"is_sync\":true}}
          d = f32[8] all-reduce-done(s)
          ROOT r = (f32[16], f32[8]) tuple(ag, d) }",
    );
    let scheduled = schedule(&before, input_order);
    let text = write(&before, &scheduled.orders);
    for line in [
        "HloModule m, is_scheduled=true\n",
        "ag-start.split = (f32[8], f32[16]) all-gather-start(q#1), replica_groups={}, dimensions={0}, control-predecessors={p}\n",
        "ag = f32[16] all-gather-done(ag-start.split)\n",
        "two-start = ((f32[8], f32[8]), (f32[8], f32[8])) all-gather-start(p, p), replica_groups={{0}}, dimensions={0}\n",
        "rs-start = ((f32[8]), f32[8]) reduce-scatter-start(p), replica_groups={{0}}, dimensions={0}, to_apply=add\n",
        "s = f32[8] all-reduce-start(p), to_apply=add, backend_config={\"collective_backend_config\":{\"is_sync\":false}}\n",
    ] {
        assert!(text.contains(line), "{line}\n{text}");
    }
    assert_eq!(module(&text).text(), text);
}

#[test]
fn loops_are_counted() {
    let of = |name: &str| {
        let (_, text) = corpus().into_iter().find(|(other, _)| other == name).unwrap();
        let module = module(&text);
        let all = module.computations().flat_map(|computation| module.instructions(computation));
        let loops = all.filter(|&instr| module.instruction(instr).opcode == Opcode::While);
        let mut counts: Vec<Option<u64>> = loops.map(|instr| trip_count(&module, instr)).collect();
        counts.sort_unstable();
        counts.dedup();
        counts
    };
    assert_eq!(of("fsdp_L2_scan.after_spmd_partitioning"), [Some(2)]);
    assert_eq!(of("fsdp_L2_scan.after_optimizations"), [Some(2)]);
    assert_eq!(of("tpu_fsdp_L8_scan.scheduled"), [Some(2), Some(8)]);
}

#[test]
fn loops_are_counted_either_way_round() {
    let count = |compare: &str| {
        let text = format!(
            "HloModule m\nbody {{\n  t = (s32[]) parameter(0)\n  i = s32[] get-tuple-element(t), index=0\n  two = s32[] constant(2)\n  next = s32[] add(i, two)\n  ROOT r = (s32[]) tuple(next)\n}}\ncond {{\n  t = (s32[]) parameter(0)\n  i = s32[] get-tuple-element(t), index=0\n  lim = s32[] constant(10)\n  ROOT c = pred[] compare({compare}\n}}\nENTRY e {{\n  z = s32[] constant(0)\n  t = (s32[]) tuple(z)\n  ROOT w = (s32[]) while(t), condition=cond, body=body\n}}\n"
        );
        let module = module(&text);
        trip_count(&module, module.root(module.entry()))
    };
    assert_eq!(count("i, lim), direction=LT"), Some(5));
    assert_eq!(count("i, lim), direction=LE"), Some(6));
    assert_eq!(count("lim, i), direction=GT"), Some(5));
    assert_eq!(count("lim, i), direction=GE"), Some(6));
    assert_eq!(count("lim, i), direction=LT"), None);
    assert_eq!(count("i, lim), direction=GT"), None);
}

#[test]
fn every_collective_has_a_source_and_a_group() {
    for (name, text) in corpus() {
        let module = module(&text);
        let mut known = 0;
        schedule(&module, |graph, _| {
            for op in graph.ops().filter(|&op| graph.kind(op) == OpKind::AsyncCollective) {
                let Some(collective) = graph.collective(op) else { panic!("{name}") };
                let group = &graph.groups()[collective.group];
                assert!(
                    group.name.starts_with('{') || group.name.ends_with("transfers"),
                    "{name}: {}",
                    group.name
                );
                let is_transfer = group.ranks.is_empty();
                assert!(is_transfer || collective.group_size >= 2, "{name}: {}", graph.name(op));
                let source = graph.source(op);
                assert!(source.is_empty() || source.contains("train_step"), "{name}: {source}");
                known += usize::from(!source.is_empty());
            }
            Order::of_input(graph)
        });
        assert!(known > 0, "{name}");
    }
}
