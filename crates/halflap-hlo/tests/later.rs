//! Reductions of loops that run an iteration later: what becomes of the text, what is refused and
//! why, and that the proof finds every slip.

use halflap_hlo::change::{self, CarriedBuffers, LoopStays, Recipe, Shift};
use halflap_hlo::{Module, Sameness, same};

const GROUPS: &str = "replica_groups={{0,1,2,3}}, use_global_device_ids=true";
const STATE: &str = "(s32[], f32[8,4]{1,0}, f32[3,2,4]{2,1,0}, f32[8,4]{1,0})";

/// Three layers whose gradients are scattered into a stack, and added up.
fn looped() -> String {
    format!(
        "HloModule m, num_partitions=4

%add (a: f32[], b: f32[]) -> f32[] {{
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %c = f32[] add(%a, %b)
}}

%body (s: {STATE}) -> {STATE} {{
  %s = {STATE} parameter(0)
  %i = s32[] get-tuple-element(%s), index=0
  %h = f32[8,4]{{1,0}} get-tuple-element(%s), index=1
  %stack = f32[3,2,4]{{2,1,0}} get-tuple-element(%s), index=2
  %total = f32[8,4]{{1,0}} get-tuple-element(%s), index=3
  %one = s32[] constant(1)
  %j = s32[] add(%i, %one)
  %zero = s32[] constant(0)
  %two = s32[] constant(2)
  %g = f32[8,4]{{1,0}} tanh(%h)
  %rs = f32[2,4]{{1,0}} reduce-scatter(%g), channel_id=1, {GROUPS}, dimensions={{0}}, to_apply=%add
  %row = f32[1,2,4]{{2,1,0}} reshape(%rs)
  %place = s32[] subtract(%two, %i)
  %stored = f32[3,2,4]{{2,1,0}} dynamic-update-slice(%stack, %row, %place, %zero, %zero)
  %ar = f32[8,4]{{1,0}} all-reduce(%g), channel_id=2, {GROUPS}, to_apply=%add
  %scale = f32[] constant(0.25)
  %spread = f32[8,4]{{1,0}} broadcast(%scale), dimensions={{}}
  %mean = f32[8,4]{{1,0}} multiply(%ar, %spread)
  %sum = f32[8,4]{{1,0}} add(%total, %mean)
  %next = f32[8,4]{{1,0}} add(%h, %g)
  ROOT %r = {STATE} tuple(%j, %next, %stored, %sum)
}}

%condition (t: {STATE}) -> pred[] {{
  %t = {STATE} parameter(0)
  %k = s32[] get-tuple-element(%t), index=0
  %n = s32[] constant(3)
  ROOT %lt = pred[] compare(%k, %n), direction=LT
}}

ENTRY %main (x: f32[8,4]) -> (f32[3,2,4], f32[8,4]) {{
  %x = f32[8,4]{{1,0}} parameter(0)
  %from = s32[] constant(0)
  %nought = f32[] constant(0)
  %empty = f32[3,2,4]{{2,1,0}} broadcast(%nought), dimensions={{}}
  %nothing = f32[8,4]{{1,0}} broadcast(%nought), dimensions={{}}
  %init = {STATE} tuple(%from, %x, %empty, %nothing)
  %loop = {STATE} while(%init), condition=%condition, body=%body
  %all = f32[3,2,4]{{2,1,0}} get-tuple-element(%loop), index=2
  %whole = f32[8,4]{{1,0}} get-tuple-element(%loop), index=3
  ROOT %out = (f32[3,2,4]{{2,1,0}}, f32[8,4]{{1,0}}) tuple(%all, %whole)
}}
"
    )
}

fn pipeline(members: &[&str], buffers: CarriedBuffers) -> Recipe {
    Recipe::Pipeline { members: members.iter().map(|&name| name.to_owned()).collect(), buffers }
}

fn read(text: String) -> Module {
    Module::read(text.clone()).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

fn applied(module: &Module, recipe: Recipe) -> Module {
    let (changed, _) = change::apply(module, &[recipe]).unwrap_or_else(|error| panic!("{error}"));
    changed
}

#[test]
fn a_loop_reduces_for_the_previous_iteration() {
    let old = read(looped());
    let recipe = pipeline(&["rs", "ar"], CarriedBuffers::One);
    let found = change::find_pipelines(&old, CarriedBuffers::One, &Shift::ALL);
    assert_eq!(found, std::slice::from_ref(&recipe));
    assert_eq!(change::find_pipelines(&old, CarriedBuffers::One, &[Shift::Ahead]), []);
    let (new, into) = change::apply(&old, &[recipe]).unwrap();
    assert_eq!(into, ["rs, ar, rs.last, ar.last"]);
    for line in [
        "%g.late = f32[8,4]{1,0} get-tuple-element(%s), index=4",
        "%rs = f32[2,4]{1,0} reduce-scatter(%g.late), channel_id=1",
        "%stored = f32[3,2,4]{2,1,0} dynamic-update-slice(%stack, %row, %place.late, %zero, %zero)",
        "tuple(%j, %next, %stored, %sum, %g, %place.carried)",
        "%g.none.2 = f32[8,4]{1,0} broadcast(%g.none), dimensions={}",
        "%rs.last = f32[2,4]{1,0} reduce-scatter(%g.left), channel_id=3",
        "%all = f32[3,2,4]{2,1,0} bitcast(%stored.last)",
        "%whole = f32[8,4]{1,0} bitcast(%sum.last)",
    ] {
        assert!(new.text().contains(line), "{line}: {}", new.text());
    }
    assert_eq!(same(&old, &new), Ok(Sameness::Exact), "{}", new.text());
    assert_eq!(change::find_pipelines(&new, CarriedBuffers::One, &Shift::ALL), []);
    for members in [&["rs"][..], &["ar"]] {
        let new = applied(&old, pipeline(members, CarriedBuffers::Two));
        assert!(new.text().contains("%g.carried = f32[8,4]{1,0} copy(%g)"));
        assert_eq!(same(&old, &new), Ok(Sameness::Exact), "{}", new.text());
    }
}

/// Wrong changes, each a slip that a rewriter could make.
#[test]
fn the_proof_finds_what_is_late() {
    let old = read(looped());
    let new = applied(&old, pipeline(&["rs", "ar"], CarriedBuffers::One));
    for (from, to) in [
        // The place of the wrong iteration.
        ("%row, %place.late, %zero", "%row, %place, %zero"),
        ("copy(%place)", "copy(%i)"),
        ("%place.left, %zero", "%zero.last, %zero"),
        // What the first iteration finds is not nothing.
        ("%g.none = f32[] constant(0)", "%g.none = f32[] constant(1)"),
        ("%g.none = f32[] constant(0)", "%g.none = f32[] constant(-0)"),
        ("%nought = f32[] constant(0)", "%nought = f32[] constant(1)"),
        // What the last one has left is missing, or something else.
        ("bitcast(%stored.last)", "bitcast(%stack.left)"),
        ("bitcast(%sum.last)", "bitcast(%total.left)"),
        ("reduce-scatter(%g.left)", "reduce-scatter(%x)"),
        ("all-reduce(%g.left)", "all-reduce(%x)"),
        // Another sequence of sums, or other operations.
        ("multiply(%ar.last, %spread.last)", "multiply(%ar.last, %ar.last)"),
        ("multiply(%ar, %spread)", "multiply(%ar, %g)"),
        ("add(%total.left, %mean.last)", "subtract(%total.left, %mean.last)"),
        ("(%s), index=4", "(%s), index=1"),
        ("(%s), index=4", "(%s), index=3"),
        ("add(%h, %g)", "add(%h, %g.late)"),
        // Another value is carried, or the state is read in between.
        ("%stored, %sum, %g, ", "%stored, %sum, %next, "),
        ("add(%h, %g)", "add(%total, %g)"),
        ("constant(3)", "constant(2)"),
    ] {
        let wrong = new.text().replace(from, to);
        assert_ne!(wrong, new.text(), "{from}");
        assert!(same(&old, &read(wrong)).is_err(), "{from} becomes {to}");
    }
    // The order in which three sums are added up.
    let sums =
        "%late.sum = f32[8,4]{1,0} add(%mean, %g)\n  %sum = f32[8,4]{1,0} add(%total, %late.sum)";
    let old = read(looped().replace("%sum = f32[8,4]{1,0} add(%total, %mean)", sums));
    let other = sums
        .replace("(%mean, %g)", "(%total, %mean)")
        .replace("(%total, %late.sum)", "(%late.sum, %g)");
    let new = read(looped().replace("%sum = f32[8,4]{1,0} add(%total, %mean)", &other));
    assert!(same(&old, &new).is_err());
}

/// A collective after a loop is one in it only if all ranks end in the same iteration.
#[test]
fn ranks_that_may_end_in_other_iterations_are_not_proved() {
    let start = "%rank = u32[] partition-id()\n  %from = s32[] convert(%rank)";
    for from in [start, "%from = s32[] parameter(1)"] {
        let old = read(looped().replace("%from = s32[] constant(0)", from));
        let new = applied(&old, pipeline(&["rs", "ar"], CarriedBuffers::One));
        assert!(same(&old, &new).is_err(), "{from}");
    }
}

/// A loop may run no iteration at all.
#[test]
fn a_loop_that_does_not_run_leaves_zeros() {
    let none = looped().replace("%n = s32[] constant(3)", "%n = s32[] constant(0)");
    let old = read(none);
    let new = applied(&old, pipeline(&["rs", "ar"], CarriedBuffers::Two));
    assert_eq!(same(&old, &new), Ok(Sameness::Exact));
}

#[test]
fn reductions_that_stay_in_their_iteration() {
    let stays = |text: String| {
        let found = change::find_pipelines(&read(text.clone()), CarriedBuffers::One, &Shift::ALL);
        let mut loops = change::find_loops(&read(text));
        (found, loops.remove(0).stays)
    };
    let name = str::to_owned;
    let only = looped().replace("reduce-scatter(%g)", "reduce-scatter(%h)");
    assert_eq!(stays(only).0, [pipeline(&["ar"], CarriedBuffers::One)]);
    // Without the other reduction, which could move.
    let alone = looped()
        .replace(&format!("all-reduce(%g), channel_id=2, {GROUPS}, to_apply=%add"), "negate(%g)");
    let (found, why) = stays(alone.replace("add(%h, %g)", "add(%h, %read)").replace(
        "  %next",
        "  %flat = f32[1,2,4]{2,1,0} slice(%stored), slice={[0:1], [0:2], [0:4]}\n  %number = f32[8]{0} reshape(%flat)\n  %read = f32[8,4]{1,0} broadcast(%number), dimensions={0}\n  %next",
    ));
    assert_eq!(found, []);
    assert_eq!(why, Some(LoopStays::NoBuffer { reduction: name("rs") }));
    let (found, why) = stays(alone.replace("reshape(%rs)", "reshape(%cut)").replace(
        "  %row",
        "  %mine = f32[2,4]{1,0} slice(%h), slice={[0:2], [0:4]}\n  %cut = f32[2,4]{1,0} multiply(%rs, %mine)\n  %row",
    ));
    assert_eq!(found, []);
    assert_eq!(why, Some(LoopStays::NeedsNow { reduction: name("rs"), needs: name("mine") }));
    let (found, why) = stays(
        alone
            .replace("reshape(%rs)", "reshape(%less)")
            .replace("  %row", "  %less = f32[2,4]{1,0} negate(%rs)\n  %row"),
    );
    assert_eq!(found, []);
    assert_eq!(why, Some(LoopStays::NotZero { reduction: name("rs") }));
    let (found, why) =
        stays(alone.replace("%nought = f32[] constant(0)", "%nought = f32[] constant(1)"));
    assert_eq!((found, why), (vec![], Some(LoopStays::NotZero { reduction: name("rs") })));
    let (found, why) = stays(
        alone
            .replace("reshape(%rs)", "reshape(%sorted)")
            .replace("  %row", "  %sorted = f32[2,4]{1,0} reverse(%rs), dimensions={0}\n  %row"),
    );
    assert_eq!(found, []);
    assert_eq!(why, Some(LoopStays::ReadNow { reduction: name("rs"), by: name("sorted") }));
}
