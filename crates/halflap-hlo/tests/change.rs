//! Recipes applied to small modules: what becomes of the text, what is refused and why, and what
//! the proof accepts.

#[path = "common/entries.rs"]
mod entries;

use entries::{GROUPS, applied, read, text};
use halflap::units::Bytes;
use halflap_hlo::change::{self, CarriedBuffers, ChangeError, LoopStays, Recipe, Shift};
use halflap_hlo::{Different, Module, Sameness, same};

fn sliced() -> String {
    format!(
        "  %ar = f32[8,4]{{1,0}} all-reduce(%x), channel_id=1, {GROUPS}, to_apply=%add
  %mine = f32[2,4]{{1,0}} dynamic-slice(%ar, %at, %zero), dynamic_slice_sizes={{2,4}}, metadata={{op_name=\"f/slice\"}}
  ROOT %all = f32[8,4]{{1,0}} all-gather(%mine), channel_id=2, {GROUPS}, dimensions={{0}}"
    )
}

fn scatter(name: &str) -> Recipe {
    Recipe::Scatter { all_reduce: name.to_owned() }
}

fn merge(members: &[&str]) -> Recipe {
    Recipe::Merge { members: members.iter().map(|&name| name.to_owned()).collect() }
}

#[track_caller]
fn refused(lines: &str, recipe: &Recipe, why: &str) {
    let module = read(lines);
    let error = change::apply(&module, std::slice::from_ref(recipe)).unwrap_err().to_string();
    assert!(error.contains(why), "{error}");
    assert!(change::find(&module).iter().all(|found| found.recipe != *recipe));
}

#[test]
fn an_all_reduce_of_slices_is_a_reduce_scatter() {
    let module = read(&sliced());
    let found = change::find(&module);
    assert_eq!(found.len(), 1);
    assert_eq!((&found[0].recipe, found[0].is_exact), (&scatter("ar"), false));
    let (changed, into) = change::apply(&module, &[scatter("ar")]).unwrap();
    assert_eq!(into, ["mine"]);
    let line = "%mine = f32[2,4]{1,0} reduce-scatter(%x), channel_id=1, replica_groups={{0,1,2,3}}, \
                use_global_device_ids=true, to_apply=%add, dimensions={0}";
    assert!(changed.text().contains(line), "{}", changed.text());
    assert!(!changed.text().contains("all-reduce"));
    assert_eq!(same(&module, &changed), Ok(Sameness::SumOrder));
}

#[test]
fn two_ranks_sum_exactly() {
    let two = "replica_groups={{0,1},{2,3}}, use_global_device_ids=true";
    let lines = sliced().replace(GROUPS, two).replace("[2,4]", "[4,4]").replace("{2,4}", "{4,4}");
    let text = text(&lines).replace("{0, 2, 4, 6}", "{0, 4, 0, 4}");
    let module = Module::read(text).unwrap();
    let found = change::find(&module);
    assert!(found.len() == 1 && found[0].is_exact);
    assert_eq!(same(&module, &applied(&module, &[scatter("ar")])), Ok(Sameness::Exact));
}

#[test]
fn slices_in_another_sequence_reorder_the_groups() {
    let text = text(&sliced()).replace("{0, 2, 4, 6}", "{2, 0, 6, 4}");
    let module = Module::read(text).unwrap();
    let changed = applied(&module, &[scatter("ar")]);
    assert!(
        changed.text().contains("reduce-scatter(%x), channel_id=1, replica_groups={{1,0,3,2}}")
    );
    assert_eq!(same(&module, &changed), Ok(Sameness::SumOrder));
}

#[test]
fn what_lies_between_is_computed_on_the_slice() {
    let lines = format!(
        "  %ar = f32[8,4]{{1,0}} all-reduce(%x), channel_id=1, {GROUPS}, to_apply=%add
  %copy = f32[8,4]{{1,0}} copy(%ar)
  %square = f32[8,4]{{1,0}} multiply(%copy, %copy)
  %nought = f32[] constant(0)
  %norm = f32[] reduce(%square, %nought), dimensions={{0,1}}, to_apply=%add
  %mine = f32[2,4]{{1,0}} dynamic-slice(%copy, %at, %zero), dynamic_slice_sizes={{2,4}}
  %all = f32[8,4]{{1,0}} all-gather(%mine), channel_id=2, {GROUPS}, dimensions={{0}}
  %spread = f32[8,4]{{1,0}} broadcast(%norm), dimensions={{}}
  ROOT %r = f32[8,4]{{1,0}} divide(%all, %spread)"
    );
    let module = read(&lines);
    let changed = applied(&module, &[scatter("ar")]);
    let text = changed.text();
    assert!(text.contains("%mine = f32[2,4]{1,0} copy(%ar.2)"), "{text}");
    assert!(text.contains("%norm = f32[] all-reduce(%norm.shard), channel_id=3"), "{text}");
    assert_eq!(same(&module, &changed), Ok(Sameness::SumOrder));
    // A factor that differs from rank to rank would make the ranks' sums of slices mean something
    // else.
    let factor = lines.replace(
        "multiply(%copy, %copy)",
        "multiply(%copy, %each)",
    ).replace(
        "  %square",
        "  %part = f32[1,1]{1,0} slice(%y), slice={[0:1], [0:1]}\n  %number = f32[] reshape(%part)\n  \
         %each = f32[8,4]{1,0} broadcast(%number), dimensions={}\n  %square",
    );
    refused(&factor, &scatter("ar"), "needs all of it");
}

#[test]
fn all_reduces_that_stay() {
    let whole = sliced()
        .replace("all-gather(%mine)", "all-gather(%ar)")
        .replace("ROOT %all = f32[8,4]", "ROOT %all = f32[32,4]");
    refused(&whole, &scatter("ar"), "needs all of it");
    let controls = sliced().replace("to_apply=%add", "to_apply=%add, control-predecessors={%y}");
    refused(&controls, &scatter("ar"), "control dependencies");
    let text = text(&sliced()).replace("{0, 2, 4, 6}", "{0, 2, 4, 4}");
    let module = Module::read(text).unwrap();
    let error = change::apply(&module, &[scatter("ar")]).unwrap_err().to_string();
    assert!(error.contains("offsets that are not the ranks' places"), "{error}");
    refused(&sliced(), &scatter("all"), "is not an instruction that this rewrite applies to");
    let unknown = change::apply(&read(&sliced()), &[scatter("nobody")]).unwrap_err();
    assert_eq!(unknown, ChangeError::Unknown { name: "nobody".to_owned() });
}

fn narrowed() -> String {
    format!(
        "  %part = f32[2,4]{{1,0}} slice(%x), slice={{[0:2], [0:4]}}
  %ag = f32[8,4]{{1,0}} all-gather(%part), channel_id=1, {GROUPS}, dimensions={{0}}
  %low = bf16[8,4]{{1,0}} convert(%ag)
  ROOT %r = f32[8,4]{{1,0}} convert(%low)"
    )
}

#[test]
fn converts_go_to_the_narrow_side() {
    let module = read(&narrowed());
    let recipe = Recipe::Narrow { collective: "ag".to_owned() };
    let changed = applied(&module, std::slice::from_ref(&recipe));
    assert!(changed.text().contains("%low.narrow = bf16[2,4]{1,0} convert(%part)"));
    assert!(changed.text().contains("%low = bf16[8,4]{1,0} all-gather(%low.narrow), channel_id=1"));
    assert_eq!(same(&module, &changed), Ok(Sameness::Exact));
    // The other way round: what is widened before it is sent.
    let lines = format!(
        "  %part = f32[2,4]{{1,0}} slice(%x), slice={{[0:2], [0:4]}}
  %low = bf16[2,4]{{1,0}} convert(%part)
  %wide = f32[2,4]{{1,0}} convert(%low)
  ROOT %ag = f32[8,4]{{1,0}} all-gather(%wide), channel_id=1, {GROUPS}, dimensions={{0}}"
    );
    let module = read(&lines);
    let changed = applied(&module, std::slice::from_ref(&recipe));
    assert!(changed.text().contains("%ag.narrow = bf16[8,4]{1,0} all-gather(%low)"));
    assert!(changed.text().contains("ROOT %ag = f32[8,4]{1,0} convert(%ag.narrow)"));
    assert!(!changed.text().contains("%wide"));
    assert_eq!(same(&module, &changed), Ok(Sameness::Exact));
    refused(&lines.replace("bf16", "f64"), &recipe, "needs all of it");
    refused(&narrowed().replace("convert(%low)", "add(%ag, %ag)"), &recipe, "needs all of it");
}

fn gathers() -> String {
    format!(
        "  %p = f32[2,4]{{1,0}} slice(%x), slice={{[0:2], [0:4]}}
  %first = f32[8,4]{{1,0}} all-gather(%p), channel_id=1, {GROUPS}, dimensions={{0}}
  %sum = f32[8,4]{{1,0}} add(%first, %y)
  %q = f32[2,4]{{1,0}} slice(%y), slice={{[2:4], [0:4]}}
  %second = f32[8,4]{{1,0}} all-gather(%q), channel_id=2, {GROUPS}, dimensions={{0}}
  ROOT %r = f32[8,4]{{1,0}} add(%sum, %second)"
    )
}

#[test]
fn gathers_become_one_with_two_operands() {
    let module = read(&gathers());
    let classes = change::merge_classes(&module);
    assert_eq!(classes.len(), 1);
    assert!(classes[0].is_exact && classes[0].bytes() == Bytes(256));
    assert_eq!(classes[0].sets(Bytes(1 << 20)), [merge(&["first", "second"])]);
    assert_eq!(classes[0].sets(Bytes(200)), []);
    let (changed, into) = change::apply(&module, &[merge(&["first", "second"])]).unwrap();
    assert_eq!(into, ["first_x2"]);
    let line = "%first_x2 = (f32[8,4]{1,0}, f32[8,4]{1,0}) all-gather(%p, %q), channel_id=1";
    assert!(changed.text().contains(line), "{}", changed.text());
    assert!(
        changed.text().contains("%second = f32[8,4]{1,0} get-tuple-element(%first_x2), index=1")
    );
    assert_eq!(same(&module, &changed), Ok(Sameness::Exact));
}

#[test]
fn merged_sums_are_not_called_exact() {
    let lines = format!(
        "  %s = f32[8,4]{{1,0}} all-reduce(%x), channel_id=1, {GROUPS}, to_apply=%add
  %t = f32[8,4]{{1,0}} all-reduce(%y), channel_id=2, {GROUPS}, to_apply=%add
  ROOT %r = f32[8,4]{{1,0}} add(%s, %t)"
    );
    let module = read(&lines);
    assert!(!change::merge_classes(&module)[0].is_exact);
    let changed = applied(&module, &[merge(&["s", "t"])]);
    assert_eq!(same(&module, &changed), Ok(Sameness::SumOrder));
    assert_eq!(same(&changed, &changed), Ok(Sameness::Exact));
}

#[test]
fn merges_that_are_refused() {
    let both = merge(&["first", "second"]);
    refused(&gathers().replace("slice(%y)", "slice(%sum)"), &both, "depend on each other");
    let other = "replica_groups={{3,2,1,0}}, use_global_device_ids=true, dimensions";
    let lines = gathers();
    let at = lines.rfind(GROUPS).unwrap();
    let lines = format!("{}{other}{}", &lines[..at], &lines[at + GROUPS.len() + 12..]);
    refused(&lines, &both, "differ in groups");
    refused(&gathers(), &merge(&["first"]), "two or more");
    refused(&gathers(), &merge(&["first", "first"]), "each collective can be merged once");
    refused(
        &gathers(),
        &merge(&["first", "sum"]),
        "is not an instruction that this rewrite applies to",
    );
}

/// Wrong changes, each a slip that a rewriter could make.
#[test]
fn the_proof_finds_what_differs() {
    let wrong = |before: &str, after: &str, from: &str, to: &str| {
        let changed = after.replace(from, to);
        assert_ne!(changed, after, "{from}");
        let (before, after) = (before.to_owned(), changed);
        same(&Module::read(before).unwrap(), &Module::read(after).unwrap()).unwrap_err()
    };
    let old = text(&gathers());
    let new = applied(&Module::read(old.clone()).unwrap(), &[merge(&["first", "second"])]);
    let new = new.text();
    for (from, to, differs) in [
        ("%first_x2), index=1", "%first_x2), index=0", "parameter"),
        ("(%p, %q)", "(%q, %p)", "parameter"),
        ("[2:4]", "[4:6]", "begins at 2"),
        ("{{0,1,2,3}}", "{{1,0,2,3}}", "replica_groups="),
        ("add(%sum, %second)", "subtract(%sum, %second)", "add"),
    ] {
        let different = wrong(&old, new, from, to);
        let Different::Value { expected, .. } = &different else { panic!("{different}") };
        assert!(expected.contains(differs), "{different}");
    }
    let old = text(&sliced());
    let new = applied(&Module::read(old.clone()).unwrap(), &[scatter("ar")]);
    let new = new.text();
    wrong(
        &old,
        new,
        "replica_groups={{0,1,2,3}}, use_global_device_ids=true, to_apply",
        "replica_groups={{1,0,2,3}}, use_global_device_ids=true, to_apply",
    );
    wrong(&old, new, "reduce-scatter(%x)", "reduce-scatter(%y)");
    wrong(&old, new, "num_partitions=4", "num_partitions=8");
    let old = text(&narrowed());
    let recipe = Recipe::Narrow { collective: "ag".to_owned() };
    let new = applied(&Module::read(old.clone()).unwrap(), &[recipe]);
    wrong(&old, new.text(), "bf16", "f16");
}

/// Three layers whose weights are sharded: an iteration gathers its own ones.
fn looped() -> String {
    let state = "(s32[], f32[8,4]{1,0}, f32[3,2,4]{2,1,0})";
    let head = "(s32[], f32[8,4], f32[3,2,4])";
    format!(
        "HloModule m, num_partitions=4

%body (s: {head}) -> {head} {{
  %s = {state} parameter(0)
  %i = s32[] get-tuple-element(%s), index=0
  %h = f32[8,4]{{1,0}} get-tuple-element(%s), index=1
  %w = f32[3,2,4]{{2,1,0}} get-tuple-element(%s), index=2
  %one = s32[] constant(1)
  %j = s32[] add(%i, %one)
  %zero = s32[] constant(0)
  %part = f32[1,2,4]{{2,1,0}} dynamic-slice(%w, %i, %zero, %zero), dynamic_slice_sizes={{1,2,4}}
  %flat = f32[2,4]{{1,0}} reshape(%part)
  %ag = f32[8,4]{{1,0}} all-gather(%flat), channel_id=1, {GROUPS}, dimensions={{0}}, metadata={{op_name=\"f/w\"}}
  %next = f32[8,4]{{1,0}} add(%h, %ag)
  ROOT %r = {state} tuple(%j, %next, %w)
}}

%condition (t: {head}) -> pred[] {{
  %t = {state} parameter(0)
  %k = s32[] get-tuple-element(%t), index=0
  %n = s32[] constant(3)
  ROOT %lt = pred[] compare(%k, %n), direction=LT
}}

ENTRY %main (x: f32[8,4], y: f32[3,2,4]) -> f32[8,4] {{
  %x = f32[8,4]{{1,0}} parameter(0)
  %y = f32[3,2,4]{{2,1,0}} parameter(1)
  %from = s32[] constant(0)
  %init = {state} tuple(%from, %x, %y)
  %loop = {state} while(%init), condition=%condition, body=%body
  ROOT %out = f32[8,4]{{1,0}} get-tuple-element(%loop), index=1
}}
"
    )
}

fn pipeline(members: &[&str]) -> Recipe {
    let members = members.iter().map(|&name| name.to_owned()).collect();
    Recipe::Pipeline { members, buffers: CarriedBuffers::Two }
}

#[test]
fn a_loop_gathers_for_the_next_iteration() {
    let old = Module::read(looped()).unwrap();
    assert_eq!(change::find_pipelines(&old, CarriedBuffers::Two, &Shift::ALL), [pipeline(&["ag"])]);
    let (new, into) = change::apply(&old, &[pipeline(&["ag"])]).unwrap();
    assert_eq!(into, ["ag.next"]);
    assert_eq!(same(&old, &new), Ok(Sameness::Exact));
    for line in [
        "%body (s: (s32[], f32[8,4], f32[3,2,4], f32[8,4]{1,0})) -> (s32[], f32[8,4], f32[3,2,4], f32[8,4]{1,0}) {",
        "%condition (t: (s32[], f32[8,4], f32[3,2,4], f32[8,4]{1,0})) -> pred[] {",
        "%ag = f32[8,4]{1,0} get-tuple-element(%s), index=3, metadata={op_name=\"f/w\"}",
        "%j.ahead = s32[] add(%i.ahead, %one.ahead)",
        "%part.next = f32[1,2,4]{2,1,0} dynamic-slice(%w.ahead, %j.ahead, %zero.next, %zero.next)",
        "%part.first = f32[1,2,4]{2,1,0} dynamic-slice(%y, %from, %zero.first, %zero.first)",
        "%ag.carried = f32[8,4]{1,0} copy(%ag.next)",
        "tuple(%j, %next, %w, %ag.carried)",
        "tuple(%from, %x, %y, %ag.first)",
        "while(%init.ahead), condition=%condition, body=%body",
    ] {
        assert!(new.text().contains(line), "{line}\n{}", new.text());
    }
    assert!(!new.text().contains("%part ="), "{}", new.text());
    let place = |what: &str| new.text().find(what).unwrap();
    assert!(place("%ag.next =") < place("add(%h, %ag)"), "it has a buffer of its own");
    assert!(
        change::find_pipelines(&new, CarriedBuffers::Two, &Shift::ALL).is_empty(),
        "it gathers ahead already"
    );
    let over = Recipe::Pipeline { members: vec!["ag".to_owned()], buffers: CarriedBuffers::One };
    let new = applied(&old, &[over]);
    assert_eq!(same(&old, &new), Ok(Sameness::Exact));
    let place = |what: &str| new.text().find(what).unwrap();
    assert!(place("%ag.next =") > place("add(%h, %ag)"), "it overwrites what was read");
    assert!(new.text().contains("tuple(%j, %next, %w, %ag.next)"), "{}", new.text());
    assert!(
        change::find_pipelines(&new, CarriedBuffers::Two, &Shift::ALL).is_empty(),
        "it gathers ahead already"
    );
}

#[test]
fn loops_that_stay() {
    for (from, to) in [
        // What is gathered is computed in the iteration, or the weights are.
        ("dynamic-slice(%w, %i", "dynamic-slice(%w, %wild"),
        ("tuple(%j, %next, %w)", "tuple(%j, %next, %less)"),
        // The loop's values go on as a whole.
        (
            "ROOT %out = f32[8,4]{1,0} get-tuple-element(%loop), index=1",
            "%copy = (s32[], f32[8,4]{1,0}, f32[3,2,4]{2,1,0}) copy(%loop)
  ROOT %out = f32[8,4]{1,0} get-tuple-element(%copy), index=1",
        ),
        // The counter depends on what is computed.
        ("add(%i, %one)", "add(%i, %wild)"),
    ] {
        let more = "  %j = s32[] add";
        let extra = "  %less = f32[3,2,4]{2,1,0} negate(%w)
  %first = f32[1,1]{1,0} slice(%h), slice={[0:1], [0:1]}
  %number = s32[1,1]{1,0} convert(%first)
  %wild = s32[] reshape(%number)\n";
        let text = looped().replacen(more, &format!("{extra}{more}"), 1);
        assert!(text.contains(from), "{from}");
        let module = Module::read(text.replace(from, to)).unwrap();
        assert_eq!(change::find_pipelines(&module, CarriedBuffers::Two, &Shift::ALL), [], "{to}");
        assert!(change::apply(&module, &[pipeline(&["ag"])]).is_err(), "{to}");
    }
}

/// Wrong changes of a loop, each a slip that a rewriter could make.
#[test]
fn the_proof_knows_what_a_loop_carries() {
    let old = Module::read(looped()).unwrap();
    let new = applied(&old, &[pipeline(&["ag"])]);
    for (from, to) in [
        // The next iteration's weights are this one's, or those of the second one come first.
        ("dynamic-slice(%w.ahead, %j.ahead", "dynamic-slice(%w.ahead, %i.ahead"),
        ("%from = s32[] constant(0)", "%from = s32[] constant(1)"),
        ("tuple(%from, %x, %y, %ag.first)", "tuple(%from, %x, %y, %x)"),
        ("tuple(%j, %next, %w, %ag.carried)", "tuple(%j, %next, %w, %ag)"),
        ("tuple(%j, %next, %w, %ag.carried)", "tuple(%j, %next, %w, %next)"),
        ("constant(3)", "constant(2)"),
        ("add(%h, %ag)", "subtract(%h, %ag)"),
    ] {
        assert!(new.text().contains(from), "{from}");
        let wrong = Module::read(new.text().replace(from, to)).unwrap();
        assert!(same(&old, &wrong).is_err(), "{to}");
    }
    // What a loop carries twice, or counts twice, it need not carry.
    let twice = looped().replace("(s32[], f32[8,4]", "(s32[], s32[], f32[8,4]");
    let twice =
        twice.replace("tuple(%j,", "tuple(%j, %j,").replace("tuple(%from,", "tuple(%from, %from,");
    let twice = twice.replace("index=2", "index=3").replace("index=1", "index=2");
    let twice = Module::read(twice).unwrap();
    assert_eq!(same(&old, &twice), Ok(Sameness::Exact));
}

#[test]
fn effects_and_controls_stay() {
    let lines = "  %n = f32[] constant(0)
  %m = f32[] constant(1)
  %u = f32[8,4]{1,0} rng(%n, %m), distribution=rng_uniform
  %v = f32[8,4]{1,0} rng(%n, %m), distribution=rng_uniform
  ROOT %r = f32[8,4]{1,0} subtract(%u, %v)";
    let old = read(lines);
    let swapped = read(&lines.replace("subtract(%u, %v)", "subtract(%v, %u)"));
    assert!(same(&old, &swapped).is_err());
    assert_eq!(same(&old, &old), Ok(Sameness::Exact));
    let lines = "  %s = f32[8,4]{1,0} add(%x, %y), control-predecessors={%t}
  ROOT %r = f32[8,4]{1,0} add(%s, %t)";
    let lines = format!("  %t = f32[8,4]{{1,0}} tanh(%x)\n{lines}");
    let old = read(&lines);
    let new = read(&lines.replace(", control-predecessors={%t}", ""));
    let missing = Different::Control { before: "t".to_owned(), after: "s".to_owned() };
    assert_eq!(same(&old, &new), Err(missing));
    assert_eq!(same(&new, &old), Ok(Sameness::Exact));
}

#[test]
fn it_is_said_why_a_loop_is_not_pipelined() {
    let found = |text: String| {
        let loops = change::find_loops(&Module::read(text).unwrap());
        assert_eq!(loops.len(), 1);
        assert_eq!(loops[0].name, "loop");
        loops[0].stays.clone()
    };
    assert_eq!(found(looped()), None);
    let name = str::to_owned;
    let hidden = looped().replace("dynamic-slice(%w, %i", "dynamic-slice(%w, %wild").replace(
        "  %part",
        "  %number = f32[1,1]{1,0} slice(%h), slice={[0:1], [0:1]}\n  %whole = s32[1,1]{1,0} convert(%number)\n  %wild = s32[] reshape(%whole)\n  %part",
    );
    let needs = LoopStays::NotAhead { gather: name("ag"), needs: name("h") };
    assert_eq!(found(hidden), Some(needs));
    let whole = looped().replace(
        "ROOT %out = f32[8,4]{1,0} get-tuple-element(%loop), index=1",
        "%copy = (s32[], f32[8,4]{1,0}, f32[3,2,4]{2,1,0}) copy(%loop)
  ROOT %out = f32[8,4]{1,0} get-tuple-element(%copy), index=1",
    );
    assert_eq!(found(whole), Some(LoopStays::Values));
    let bound = looped().replace("body=%body", "body=%body, control-predecessors={%x}");
    assert_eq!(found(bound), Some(LoopStays::Controls));
    let old = Module::read(looped()).unwrap();
    let new = applied(&old, &[pipeline(&["ag"])]);
    assert_eq!(found(new.text().to_owned()), Some(LoopStays::NoneLeft));
    assert_eq!(change::loop_around(&new, "ag.next"), Some(name("loop")));
    assert_eq!(change::loop_around(&new, "x"), None);
}

fn split(name: &str, pieces: u64) -> Recipe {
    Recipe::Split { collective: name.to_owned(), pieces, tail: None }
}

/// A product that is reduced, and another one that reads what is gathered.
fn products() -> String {
    format!(
        "  %square = f32[8,8]{{1,0}} dot(%x, %y), lhs_contracting_dims={{1}}, rhs_contracting_dims={{1}}
  %dot = f32[8,4]{{1,0}} dot(%square, %y), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
  %ar = f32[8,4]{{1,0}} all-reduce(%dot), channel_id=1, {GROUPS}, to_apply=%add
  %part = f32[2,4]{{1,0}} slice(%y), slice={{[0:2], [0:4]}}
  %ag = f32[8,4]{{1,0}} all-gather(%part), channel_id=2, {GROUPS}, dimensions={{0}}
  %reads = f32[8,4]{{1,0}} dot(%square, %ag), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
  ROOT %r = f32[8,4]{{1,0}} add(%ar, %reads)"
    )
}

#[test]
fn a_product_travels_in_pieces() {
    let module = read(&products());
    let found = change::find_splits(&module, 2);
    let found: Vec<_> = found.into_iter().map(|found| (found.recipe, found.is_exact)).collect();
    assert_eq!(found, [(split("ar", 2), false), (split("ag", 2), true)]);
    // The rows of what is reduced, and the columns of what is gathered.
    let (changed, into) = change::apply(&module, &[split("ar", 4)]).unwrap();
    assert_eq!(into, ["ar.p, ar.p.2, ar.p.3, ar.p.4"]);
    let text = changed.text();
    for line in [
        "%square.p.2 = f32[2,8]{1,0} slice(%square), slice={[2:4], [0:8]}",
        "%dot.p.2 = f32[2,4]{1,0} dot(%square.p.2, %y), lhs_contracting_dims={1}",
        "%ar.p.2 = f32[2,4]{1,0} all-reduce(%dot.p.2), channel_id=3",
        "%ar = f32[8,4]{1,0} concatenate(%ar.p, %ar.p.2, %ar.p.3, %ar.p.4), dimensions={0}",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
    assert_eq!(same(&module, &changed), Ok(Sameness::SumOrder));
    let changed = applied(&module, &[split("ag", 2)]);
    let line = "%ag.p.2 = f32[8,2]{1,0} all-gather(%part.p.2), channel_id=3";
    assert!(changed.text().contains(line), "{}", changed.text());
    assert_eq!(same(&module, &changed), Ok(Sameness::Exact));
}

#[test]
fn pieces_that_are_not_the_whole_are_found() {
    let module = read(&products());
    let changed = applied(&module, &[split("ar", 4)]);
    for (from, to) in [
        ("concatenate(%ar.p, %ar.p.2,", "concatenate(%ar.p.2, %ar.p,"),
        ("slice={[2:4], [0:8]}", "slice={[4:6], [0:8]}"),
        ("dot(%square.p.2, %y)", "dot(%square.p.2, %x)"),
    ] {
        let wrong = changed.text().replace(from, to);
        assert_ne!(wrong, changed.text());
        let wrong = Module::read(wrong).unwrap_or_else(|error| panic!("{error}"));
        assert!(same(&module, &wrong).is_err(), "{from}");
    }
}

#[test]
fn products_that_stay_whole() {
    let whole = products().replace("add(%ar, %reads)", "add(%ar, %dot)");
    refused(&whole, &split("ar", 2), "needs all of it");
    refused(&products(), &split("ar", 3), "so many pieces");
    refused(&products(), &split("ag", 8), "so many pieces");
    refused(&sliced(), &split("ar", 2), "a single product");
    // The gathered dimension is the only one that is not summed over.
    let rows = products().replace(
        "dot(%square, %ag), lhs_contracting_dims={1}, rhs_contracting_dims={0}",
        "dot(%square, %turned), lhs_contracting_dims={1}, rhs_contracting_dims={0}",
    );
    let rows = rows.replace("  %reads", "  %turned = f32[8,4]{1,0} tanh(%ag)\n  %reads");
    refused(&rows, &split("ag", 2), "a single product");
}

/// XLA leaves out the values of large constants.
#[test]
fn constants_without_values_equal_only_themselves() {
    let gather = |name: &str, of: &str| {
        format!(
            "  %{name} = f32[8,4]{{1,0}} all-gather(%{of}), {GROUPS}, dimensions={{0}}, channel_id=1\n"
        )
    };
    let lines = format!(
        "  %c = f32[2,4]{{1,0}} constant({{...}})
  %d = f32[2,4]{{1,0}} constant({{...}})
{}{}{}  %s = f32[8,4]{{1,0}} add(%first, %second)
  ROOT %r = f32[8,4]{{1,0}} add(%s, %third)",
        gather("first", "c"),
        gather("second", "d"),
        gather("third", "c"),
    );
    let module = read(&lines);
    let found = change::find_keeps(&module).into_iter().map(|found| found.recipe);
    let keeps: Vec<Recipe> = found.collect();
    assert_eq!(keeps.iter().map(Recipe::members).collect::<Vec<_>>(), [["first", "third"]]);
    let changed = applied(&module, &keeps);
    assert_eq!(same(&module, &changed), Ok(Sameness::Exact));
    // One of the same name in another computation is another one.
    let callee = |name: &str| {
        format!(
            "%{name} (p: f32[8,4]) -> f32[8,4] {{\n  %p = f32[8,4]{{1,0}} parameter(0)\n  %k = f32[8,4]{{1,0}} constant({{...}})\n  ROOT %t = f32[8,4]{{1,0}} add(%p, %k)\n}}\n\n"
        )
    };
    let entry = "  ROOT %r = f32[8,4]{1,0} call(%x), to_apply=%one";
    let text = text(entry).replace("ENTRY", &format!("{}{}ENTRY", callee("one"), callee("other")));
    let other = text.replace("to_apply=%one", "to_apply=%other");
    let (old, new) = (Module::read(text).unwrap(), Module::read(other).unwrap());
    assert!(same(&old, &new).is_err());
    assert_eq!(same(&old, &old), Ok(Sameness::Exact));
}
