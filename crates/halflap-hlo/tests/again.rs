//! All-gathers that are done again for their later readers: what becomes of the text, what is
//! refused and why, and what the proof accepts.

use halflap::memory::Timeline;
use halflap::order::Order;
use halflap_hlo::change::{self, Recipe};
use halflap_hlo::{LoweredModule, Module, Sameness, same};

const GROUPS: &str = "replica_groups={{0,1,2,3}}, use_global_device_ids=true";

/// A module of four ranks whose entry has parameters `x` of f32[8,4] and `p` of f32[2,4].
fn read(lines: &str) -> Module {
    let text = format!(
        "HloModule m, num_partitions=4

ENTRY %main (x: f32[8,4], p: f32[2,4]) -> f32[8,4] {{
  %x = f32[8,4]{{1,0}} parameter(0)
  %p = f32[2,4]{{1,0}} parameter(1)
{lines}
}}
"
    );
    Module::read(text.clone()).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

/// A weight that is read early, and late: as it is, narrowed, and turned, which is only read late.
fn held() -> String {
    format!(
        "  %ag = f32[8,4]{{1,0}} all-gather(%p), channel_id=7, {GROUPS}, dimensions={{0}}, metadata={{op_name=\"f/w\"}}
  %low = bf16[8,4]{{1,0}} convert(%ag)
  %turned = f32[4,8]{{1,0}} transpose(%ag), dimensions={{1,0}}
  %wide = f32[8,4]{{1,0}} convert(%low)
  %a = f32[8,4]{{1,0}} add(%wide, %x)
  %b = f32[8,4]{{1,0}} multiply(%a, %a)
  %c = f32[8,4]{{1,0}} multiply(%b, %wide)
  %d = f32[8,8]{{1,0}} dot(%c, %turned), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
  %e = f32[8,4]{{1,0}} dot(%d, %ag), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
  ROOT %r = f32[8,4]{{1,0}} tanh(%e)"
    )
}

fn again(gather: &str, from: &str) -> Recipe {
    Recipe::Again { gather: gather.to_owned(), from: from.to_owned() }
}

fn recipes(module: &Module) -> Vec<Recipe> {
    change::find_agains(module).into_iter().map(|found| found.recipe).collect()
}

#[test]
fn later_readers_have_a_gather_of_their_own() {
    let module = read(&held());
    assert_eq!(recipes(&module), [again("ag", "c"), again("ag", "d"), again("ag", "e")]);
    let (changed, into) = change::apply(&module, &[again("ag", "c")]).unwrap();
    assert_eq!(into, ["ag, ag.again"]);
    let pair = "(f32[2,4]{1,0}, f32[8,4]{1,0})";
    let text = changed.text();
    for line in [
        // After the last early reader.
        &format!("%ag.held = {pair} tuple(%p, %a)")[..],
        &format!("%ag.barrier = {pair} opt-barrier(%ag.held)"),
        "%ag.shard = f32[2,4]{1,0} get-tuple-element(%ag.barrier), index=0",
        // On a channel of its own.
        &format!(
            "%ag.again = f32[8,4]{{1,0}} all-gather(%ag.shard), channel_id=8, {GROUPS}, \
             dimensions={{0}}, metadata={{op_name=\"f/w\"}}"
        ),
        // Both need it.
        "%low.again = bf16[8,4]{1,0} convert(%ag.again)",
        "%wide.again = f32[8,4]{1,0} convert(%low.again)",
        "%a = f32[8,4]{1,0} add(%wide, %x)",
        "%c = f32[8,4]{1,0} multiply(%b, %wide.again)",
        // Only late readers do.
        "%turned = f32[4,8]{1,0} transpose(%ag.again), dimensions={1,0}",
        "dot(%c, %turned)",
        "dot(%d, %ag.again)",
    ] {
        assert!(text.contains(line), "{line}\n{text}");
    }
    let place = |of: &str| text.find(of).unwrap();
    assert!(place("%a =") < place("%ag.barrier =") && place("%ag.barrier =") < place("%b ="));
    assert!(place("%b =") < place("%ag.again =") && place("%turned =") < place("%c ="));
    assert_eq!(same(&module, &changed), Ok(Sameness::Exact));
    // What was done can be undone, and is not undone by a merge.
    let keep = Recipe::Keep {
        members: vec!["ag".to_owned(), "ag.again".to_owned()],
        kept: vec!["ag".to_owned()],
    };
    let keeps: Vec<Recipe> =
        change::find_keeps(&changed).into_iter().map(|found| found.recipe).collect();
    assert_eq!(keeps, [keep]);
    let (kept, _) = change::apply(&changed, &keeps).unwrap();
    assert_eq!(same(&module, &kept), Ok(Sameness::Exact));
    assert!(change::merge_classes(&changed).is_empty());
}

/// Most that is alive at once, in the order of the text.
fn peak(module: &Module) -> i64 {
    let lowered = LoweredModule::of(module).unwrap();
    let graph = &lowered.units.as_slice().last().unwrap().lowered.graph;
    Timeline::of(graph, &Order::of_input(graph)).peak.0
}

/// Between its readers, only the shard is alive.
#[test]
fn memory_is_free_between_the_readers() {
    let module = |late: &str| {
        read(&format!(
            "  %ag = f32[8,4]{{1,0}} all-gather(%p), channel_id=1, {GROUPS}, dimensions={{0}}
  %a = f32[8,4]{{1,0}} add(%ag, %x)
  %big = f32[64,8,4]{{2,1,0}} broadcast(%a), dimensions={{1,2}}
  %more = f32[64,8,4]{{2,1,0}} sine(%big)
  %one = f32[1,8,4]{{2,1,0}} slice(%more), slice={{[0:1], [0:8], [0:4]}}
  %few = f32[8,4]{{1,0}} reshape(%one)
  ROOT %r = f32[8,4]{{1,0}} multiply(%few, {late})"
        ))
    };
    let held = module("%ag");
    let (changed, _) = change::apply(&held, &[again("ag", "r")]).unwrap();
    // As much as if nothing read it late.
    assert_eq!(peak(&changed), peak(&module("%x")));
    assert_eq!(peak(&held), peak(&changed) + 8 * 4 * 4);
    assert_eq!(same(&held, &changed), Ok(Sameness::Exact));
}

/// Two weights with a late reader in common, and one that reads the one late and the other early.
#[test]
fn several_gathers_are_done_again_together() {
    let gather = |name: &str, channel: u32| {
        format!(
            "  %{name} = f32[8,4]{{1,0}} all-gather(%p.{name}), channel_id={channel}, {GROUPS}, dimensions={{0}}\n"
        )
    };
    let lines = format!(
        "  %p.u = f32[2,4]{{1,0}} negate(%p)
  %p.v = f32[2,4]{{1,0}} exponential(%p)
{}{}  %a = f32[8,4]{{1,0}} add(%u, %x)
  %b = f32[8,4]{{1,0}} add(%a, %v)
  %c = f32[8,4]{{1,0}} multiply(%u, %v)
  %d = f32[8,4]{{1,0}} multiply(%b, %c)
  %e = f32[8,4]{{1,0}} add(%d, %u)
  ROOT %r = f32[8,4]{{1,0}} subtract(%e, %v)",
        gather("u", 1),
        gather("v", 2)
    );
    let module = read(&lines);
    let both = [again("u", "c"), again("v", "r")];
    let (changed, into) = change::apply(&module, &both).unwrap();
    assert_eq!(into, ["u, u.again", "v, v.again"]);
    let text = changed.text();
    for line in ["multiply(%u.again, %v)", "add(%d, %u.again)", "subtract(%e, %v.again)"] {
        assert!(text.contains(line), "{line}\n{text}");
    }
    assert_eq!(same(&module, &changed), Ok(Sameness::Exact));
    let (changed, _) = change::apply(&module, &[again("u", "c"), again("v", "c")]).unwrap();
    assert!(changed.text().contains("multiply(%u.again, %v.again)"), "{}", changed.text());
    assert_eq!(same(&module, &changed), Ok(Sameness::Exact));
    let twice = [again("u", "c"), again("u", "e")];
    let error = change::apply(&module, &twice).unwrap_err().to_string();
    assert!(error.contains("changed by another recipe already"), "{error}");
}

/// A result that is a tuple, as of a custom call with workspace, has an array to wait for.
#[test]
fn an_element_of_a_tuple_is_waited_for() {
    let lines = format!(
        "  %ag = f32[8,4]{{1,0}} all-gather(%p), channel_id=1, {GROUPS}, dimensions={{0}}
  %two = (f32[8,4]{{1,0}}, s8[16]{{0}}) custom-call(%x, %ag), custom_call_target=\"product\"
  %a = f32[8,4]{{1,0}} get-tuple-element(%two), index=0
  ROOT %r = f32[8,4]{{1,0}} multiply(%a, %ag)"
    );
    let module = read(&lines);
    let (changed, _) = change::apply(&module, &[again("ag", "r")]).unwrap();
    let line = "%ag.after = f32[8,4]{1,0} get-tuple-element(%two), index=0";
    assert!(changed.text().contains(line), "{}", changed.text());
    assert!(changed.text().contains("tuple(%p, %ag.after)"), "{}", changed.text());
    assert_eq!(same(&module, &changed), Ok(Sameness::Exact));
}

#[test]
fn it_is_said_why_a_gather_is_not_done_again() {
    let held = held();
    let between = "is not read both by the reader that is named and by an earlier one";
    let passed = "an earlier reader only passes it on or starts something with it";
    let with = |from: &str, to: &str| {
        assert!(held.contains(from), "{from}");
        held.replacen(from, to, 1)
    };
    let pair = "(f32[8,4]{1,0}, f32[8,4]{1,0})";
    let tuple = format!(
        "  %t = {pair} tuple(%ag, %x)\n  %low = bf16[8,4]{{1,0}} convert(%ag)\n  %t0 = f32[8,4]{{1,0}} get-tuple-element(%t), index=0\n"
    );
    for (lines, recipe, why) in [
        (held.clone(), again("ag", "a"), between),
        (held.clone(), again("ag", "b"), between),
        (held.clone(), again("ag", "wide"), between),
        (held.clone(), again("b", "d"), "not an instruction that this rewrite applies to"),
        (
            with(", metadata", ", control-predecessors={%x}, metadata"),
            again("ag", "c"),
            "control dependencies",
        ),
        (
            with("  %low = bf16[8,4]{1,0} convert(%ag)\n", &tuple)
                .replace("add(%wide, %x)", "add(%t0, %x)"),
            again("ag", "c"),
            passed,
        ),
    ] {
        let module = read(&lines);
        let error = change::apply(&module, std::slice::from_ref(&recipe)).unwrap_err().to_string();
        assert!(error.contains(why), "{recipe:?}: {error}");
        assert!(!recipes(&module).contains(&recipe), "{recipe:?}");
    }
    // A result of the module stays, and so does one that is read once.
    let lines = format!(
        "  %a = f32[8,4]{{1,0}} add(%x, %x)
  ROOT %ag = f32[8,4]{{1,0}} all-gather(%p), channel_id=1, {GROUPS}, dimensions={{0}}"
    );
    assert_eq!(recipes(&read(&lines)), []);
}

/// Wrong changes, each a slip that a rewriter could make.
#[test]
fn the_proof_knows_what_is_gathered_again() {
    let old = read(&held());
    let (new, _) = change::apply(&old, &[again("ag", "c")]).unwrap();
    for (from, to) in [
        // Another shard, other ranks, another dimension, or the whole in its place.
        ("tuple(%p, %a)", "tuple(%other, %a)"),
        ("channel_id=8, replica_groups={{0,1,2,3}}", "channel_id=8, replica_groups={{1,0,2,3}}"),
        ("get-tuple-element(%ag.barrier), index=0", "slice(%a), slice={[0:2], [0:4]}"),
        ("multiply(%b, %wide.again)", "multiply(%b, %ag.again)"),
        ("convert(%low.again)", "sine(%low.again)"),
        ("dot(%d, %ag.again)", "dot(%d, %a)"),
    ] {
        let text = new.text().replacen(from, to, 1);
        assert_ne!(text, new.text(), "{from}");
        let other = "  %other = f32[2,4]{1,0} negate(%p)\n  %ag.held";
        let text = text.replacen("  %ag.held", other, 1);
        let wrong = Module::read(text).unwrap_or_else(|error| panic!("{to}: {error}"));
        assert!(same(&old, &wrong).is_err(), "{to}");
    }
}
