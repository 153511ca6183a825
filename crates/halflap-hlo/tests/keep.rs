//! All-gathers that are not repeated: what is kept for that, what is refused and why, and what the
//! proof accepts.

#[path = "common/entries.rs"]
mod entries;

use entries::{GROUPS, applied, read, text};
use halflap_hlo::change::{self, Recipe};
use halflap_hlo::{Module, Sameness, same};

/// A weight that is gathered, and again behind a barrier, beside another one.
fn repeated() -> String {
    let pair = "(f32[2,4]{1,0}, f32[8,4]{1,0})";
    format!(
        "  %p = f32[2,4]{{1,0}} slice(%x), slice={{[0:2], [0:4]}}
  %q = f32[2,4]{{1,0}} slice(%y), slice={{[0:2], [0:4]}}
  %low = bf16[2,4]{{1,0}} convert(%p)
  %first = bf16[8,4]{{1,0}} all-gather(%low), channel_id=1, {GROUPS}, dimensions={{0}}
  %wide = f32[8,4]{{1,0}} convert(%first)
  %other = f32[8,4]{{1,0}} all-gather(%q), channel_id=2, {GROUPS}, dimensions={{0}}
  %sum = f32[8,4]{{1,0}} add(%wide, %other)
  %held = {pair} tuple(%p, %sum)
  %barrier = {pair} opt-barrier(%held)
  %again.p = f32[2,4]{{1,0}} get-tuple-element(%barrier), index=0
  %after = f32[8,4]{{1,0}} get-tuple-element(%barrier), index=1
  %again.low = bf16[2,4]{{1,0}} convert(%again.p)
  %second = bf16[8,4]{{1,0}} all-gather(%again.low), channel_id=3, {GROUPS}, dimensions={{0}}, metadata={{op_name=\"remat/w\"}}
  %again.wide = f32[8,4]{{1,0}} convert(%second)
  ROOT %r = f32[8,4]{{1,0}} multiply(%after, %again.wide)"
    )
}

fn keep(members: &[&str]) -> Recipe {
    keep_of(members, &members[..1])
}

/// Keeps something else than the first of them.
fn keep_of(members: &[&str], kept: &[&str]) -> Recipe {
    let [members, kept] =
        [members, kept].map(|names| names.iter().map(|&name| name.to_owned()).collect());
    Recipe::Keep { members, kept }
}

fn found_keeps(module: &Module) -> Vec<Recipe> {
    change::find_keeps(module).into_iter().map(|found| found.recipe).collect()
}

#[test]
fn what_is_gathered_twice_is_kept() {
    let module = read(&repeated());
    assert_eq!(found_keeps(&module), [keep(&["first", "second"])]);
    let (changed, into) = change::apply(&module, &[keep(&["first", "second"])]).unwrap();
    assert_eq!(into, ["first"]);
    let line = "%second = bf16[8,4]{1,0} bitcast(%first), metadata={op_name=\"remat/w\"}";
    assert!(changed.text().contains(line), "{}", changed.text());
    assert!(!changed.text().contains("%again.low"), "nothing reads it: {}", changed.text());
    assert_eq!(same(&module, &changed), Ok(Sameness::Exact));
    assert_eq!(found_keeps(&changed), []);
    // A gather of a gather: what only the repeated one reads goes with it.
    let two = "replica_groups={{0,1},{2,3}}, use_global_device_ids=true";
    let twice = |name: &str, of: &str| {
        format!(
            "  %{name}.in = f32[4,4]{{1,0}} all-gather(%{of}), channel_id=1, {two}, dimensions={{0}}
  %{name} = f32[16,4]{{1,0}} all-gather(%{name}.in), channel_id=1, {GROUPS}, dimensions={{0}}\n"
        )
    };
    let lines = format!(
        "  %p = f32[2,4]{{1,0}} slice(%x), slice={{[0:2], [0:4]}}
{}  %held = f32[2,4]{{1,0}} opt-barrier(%p)
{}  %s = f32[16,4]{{1,0}} add(%a, %b)
  ROOT %r = f32[8,4]{{1,0}} slice(%s), slice={{[0:8], [0:4]}}",
        twice("a", "p"),
        twice("b", "held")
    );
    let module = read(&lines);
    assert_eq!(found_keeps(&module), [keep(&["a", "b"])]);
    let changed = applied(&module, &[keep(&["a", "b"])]);
    assert!(!changed.text().contains("%b.in"), "{}", changed.text());
    assert_eq!(same(&module, &changed), Ok(Sameness::Exact));
}

/// A gather that only a repeated one reads, but that another one is replaced by.
#[test]
fn what_is_kept_is_not_left_out() {
    let two = "replica_groups={{0,1},{2,3}}, use_global_device_ids=true, dimensions={0}";
    let lines = format!(
        "  %p = f32[2,4]{{1,0}} slice(%x), slice={{[0:2], [0:4]}}
  %early = f32[4,4]{{1,0}} all-gather(%p), channel_id=1, {two}
  %late = f32[4,4]{{1,0}} all-gather(%p), channel_id=1, {two}
  %a = f32[16,4]{{1,0}} all-gather(%late), channel_id=1, {GROUPS}, dimensions={{0}}
  %b = f32[16,4]{{1,0}} all-gather(%early), channel_id=1, {GROUPS}, dimensions={{0}}
  %s = f32[16,4]{{1,0}} add(%a, %b)
  ROOT %r = f32[8,4]{{1,0}} slice(%s), slice={{[0:8], [0:4]}}"
    );
    let module = read(&lines);
    let keeps = found_keeps(&module);
    assert_eq!(keeps, [keep(&["early", "late"]), keep(&["a", "b"])]);
    let changed = applied(&module, &keeps);
    assert_eq!(changed.text().matches("all-gather(").count(), 2, "{}", changed.text());
    assert_eq!(same(&module, &changed), Ok(Sameness::Exact));
}

#[test]
fn gathers_that_are_not_the_same() {
    let both = keep(&["first", "second"]);
    let second = |from: &str, to: &str| {
        let lines = repeated();
        let at = lines.find("%again.p =").unwrap();
        let changed = lines[at..].replacen(from, to, 1);
        assert_ne!(changed, lines[at..], "{from}");
        format!("{}{changed}", &lines[..at])
    };
    let not_same = "do not gather the same again";
    for (lines, why) in [
        (second("{{0,1,2,3}}", "{{1,0,2,3}}"), not_same),
        (second("convert(%again.p)", "convert(%q)"), not_same),
        (
            second("bf16[2,4]{1,0} convert(%again.p)", "bf16[2,4]{1,0} convert(%minus)")
                .replace("  %again.low", "  %minus = f32[2,4]{1,0} negate(%again.p)\n  %again.low"),
            not_same,
        ),
        (
            second(
                "dimensions={0}, metadata",
                "dimensions={0}, control-predecessors={%sum}, metadata",
            ),
            "control dependencies",
        ),
        (second("%second = bf16[8,4]{1,0}", "%second = bf16[8,4]{0,1}"), "another layout"),
    ] {
        let module = read(&lines);
        assert_eq!(found_keeps(&module), [], "{lines}");
        let error = change::apply(&module, std::slice::from_ref(&both)).unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    }
    let module = read(&repeated());
    for recipe in [keep(&["second", "first"]), keep(&["first"]), keep(&["first", "other"])] {
        let error = change::apply(&module, &[recipe]).unwrap_err().to_string();
        assert!(error.contains(not_same), "{error}");
    }
}

/// How rows are looked up.
const ROWS: &str = "offset_dims={1}, collapsed_slice_dims={0}, start_index_map={0}, \
                    index_vector_dim=1, slice_sizes={1,4}";

/// A table that is gathered twice for the same rows and slice of it.
fn looked_up() -> String {
    let pair = "(f32[2,4]{1,0}, f32[8,4]{1,0})";
    let ids = "s32[3,1]{1,0} constant({{0}, {5}, {2}})";
    let dims = "dynamic_slice_sizes={2,4}";
    format!(
        "  %p = f32[2,4]{{1,0}} slice(%x), slice={{[0:2], [0:4]}}
  %q = f32[2,4]{{1,0}} slice(%y), slice={{[0:2], [0:4]}}
  %corner = f32[1,1]{{1,0}} slice(%y), slice={{[0:1], [0:1]}}
  %number = f32[] reshape(%corner)
  %far = s32[] convert(%number)
  %nought = f32[] constant(0)
  %ids = {ids}
  %first = f32[8,4]{{1,0}} all-gather(%p), channel_id=1, {GROUPS}, dimensions={{0}}
  %whole = f32[8,4]{{1,0}} copy(%first)
  %other = f32[8,4]{{1,0}} all-gather(%q), channel_id=2, {GROUPS}, dimensions={{0}}
  %rows = f32[3,4]{{1,0}} gather(%whole, %ids), {ROWS}
  %low = bf16[3,4]{{1,0}} convert(%rows)
  %top = f32[2,4]{{1,0}} dynamic-slice(%whole, %far, %zero), {dims}
  %back = f32[3,4]{{1,0}} convert(%low)
  %both = f32[5,4]{{1,0}} concatenate(%back, %top), dimensions={{0}}
  %wide = f32[8,4]{{1,0}} pad(%both, %nought), padding=0_3x0_0
  %sum = f32[8,4]{{1,0}} dot(%wide, %other), lhs_contracting_dims={{0}}, rhs_contracting_dims={{0}}
  %all = f32[8,4]{{1,0}} pad(%sum, %nought), padding=0_4x0_0
  %held = {pair} tuple(%p, %all)
  %barrier = {pair} opt-barrier(%held)
  %again.p = f32[2,4]{{1,0}} get-tuple-element(%barrier), index=0
  %after = f32[8,4]{{1,0}} get-tuple-element(%barrier), index=1
  %second = f32[8,4]{{1,0}} all-gather(%again.p), channel_id=3, {GROUPS}, dimensions={{0}}
  %again.whole = f32[8,4]{{1,0}} copy(%second)
  %again.ids = {ids}
  %again.rows = f32[3,4]{{1,0}} gather(%again.whole, %again.ids), {ROWS}
  %again.low = bf16[3,4]{{1,0}} convert(%again.rows)
  %again.top = f32[2,4]{{1,0}} dynamic-slice(%again.whole, %far, %zero), {dims}
  %again.back = f32[3,4]{{1,0}} convert(%again.low)
  %again.both = f32[5,4]{{1,0}} concatenate(%again.top, %again.back), dimensions={{0}}
  %again.wide = f32[8,4]{{1,0}} pad(%again.both, %nought), padding=0_3x0_0
  ROOT %r = f32[8,4]{{1,0}} multiply(%after, %again.wide)"
    )
    .replace("%sum = f32[8,4]", "%sum = f32[4,4]")
}

#[test]
fn rows_are_kept_in_place_of_a_table() {
    let module = read(&looked_up());
    let (whole, parts) =
        (keep(&["first", "second"]), keep_of(&["first", "second"], &["low", "top"]));
    let found = change::find_keeps(&module);
    assert_eq!(found_keeps(&module), [whole.clone(), parts.clone()]);
    let name = |instr: &_| module.instruction_name(*instr);
    let replaced: Vec<&str> =
        found[1].kept.iter().flat_map(|of| &of.instead_of).map(name).collect();
    assert_eq!(replaced, ["again.low", "again.top"]);
    // One or the other.
    let both = vec![parts.clone(), whole.clone()];
    assert_eq!(change::compatible_keeps(&module, both), std::slice::from_ref(&parts));
    let (changed, into) = change::apply(&module, &[parts]).unwrap();
    assert_eq!(into, ["first"]);
    let text = changed.text();
    for line in ["bf16[3,4]{1,0} bitcast(%low)", "%again.top = f32[2,4]{1,0} bitcast(%top)"] {
        assert!(text.contains(line), "{text}");
    }
    for gone in ["%second", "%again.whole", "%again.rows", "%again.ids", "%again.p"] {
        assert!(!text.contains(gone), "{gone}: {text}");
    }
    assert_eq!(same(&module, &changed), Ok(Sameness::Exact));
    assert_eq!(same(&module, &applied(&module, &[whole])), Ok(Sameness::Exact));
}

/// Compilers copy a fused lookup for each instruction that does it.
#[test]
fn rows_that_are_looked_up_in_fusions() {
    let fused = |name: &str, place: u32| {
        let table = format!("%{name}.t = f32[8,4]{{1,0}} parameter(0)");
        let ids = format!("%{name}.i = s32[3,1]{{1,0}} parameter({place})");
        format!(
            "%{name} (t: f32[8,4], i: s32[3,1]) -> f32[3,4] {{\n  {table}\n  {ids}\n  ROOT \
             %{name}.g = f32[3,4]{{1,0}} gather(%{name}.t, %{name}.i), {ROWS}\n}}\n\n"
        )
    };
    let call = |line: &str, name: &str| {
        line.replace(&format!(", {ROWS}"), &format!(", kind=kLoop, calls=%{name}"))
            .replace("gather(%whole", "fusion(%whole")
            .replace("gather(%again.whole", "fusion(%again.whole")
    };
    let lines: Vec<String> = looked_up()
        .lines()
        .map(|line| call(line, if line.contains("%again.") { "g" } else { "f" }))
        .collect();
    let text = text(&lines.join("\n"));
    let with = |fusions: String| Module::read(text.replace("ENTRY", &(fusions + "ENTRY"))).unwrap();
    let module = with(fused("f", 1) + &fused("g", 1));
    let parts = keep_of(&["first", "second"], &["low", "top"]);
    assert!(found_keeps(&module).contains(&parts));
    assert_eq!(same(&module, &applied(&module, &[parts])), Ok(Sameness::Exact));
    let other = fused("g", 1).replace("ROOT %g.g = f32[3,4]{1,0}", "%g.h = f32[3,4]{1,0}");
    let other = other.replace("\n}", "\n  ROOT %g.g = f32[3,4]{1,0} negate(%g.h)\n}");
    let module = with(fused("f", 1) + &other);
    assert_eq!(found_keeps(&module), [keep(&["first", "second"])]);
}

#[test]
fn rows_that_are_not_the_same() {
    let parts = keep_of(&["first", "second"], &["low", "top"]);
    for (from, to) in [
        // Other rows, another slice, or something that reads all of it.
        ("%again.ids = s32[3,1]{1,0} constant({{0}", "%again.ids = s32[3,1]{1,0} constant({{1}"),
        ("dynamic-slice(%again.whole, %far, %zero)", "dynamic-slice(%again.whole, %at, %zero)"),
        ("convert(%again.rows)", "convert(%back)"),
        ("multiply(%after, %again.wide)", "multiply(%again.whole, %again.wide)"),
        ("multiply(%after, %again.wide)", "subtract(%second, %again.wide)"),
    ] {
        let lines = looked_up().replacen(from, to, 1);
        assert_ne!(lines, looked_up(), "{from}");
        let module = read(&lines);
        let found = found_keeps(&module);
        match to.contains("%back") {
            // What reads nothing of it any more needs nothing.
            true => assert!(!found.contains(&parts), "{found:?}"),
            false => {
                assert_eq!(found, [keep(&["first", "second"])], "{to}");
                let error = change::apply(&module, std::slice::from_ref(&parts)).unwrap_err();
                assert!(error.to_string().contains("needs all of it"), "{error}");
            }
        }
    }
    let module = read(&looked_up());
    for kept in [&["low"][..], &["low", "other"], &["low", "top", "wide"], &["second"]] {
        let wrong = keep_of(&["first", "second"], kept);
        assert!(change::apply(&module, &[wrong]).is_err(), "{kept:?}");
    }
}

/// Other rows than those that are kept: each is a slip that a rewriter could make.
#[test]
fn the_proof_knows_which_rows_are_kept() {
    let old = read(&looked_up());
    let parts = keep_of(&["first", "second"], &["low", "top"]);
    let new = applied(&old, &[parts]);
    let line = |name: &str, text: String| format!("  %{name} = {text}\n");
    let gather = |table: &str, ids: &str| {
        let rows = format!("f32[3,4]{{1,0}} gather(%{table}, %{ids}), {ROWS}");
        line("wrong.rows", rows) + &line("wrong", "bf16[3,4]{1,0} convert(%wrong.rows)".to_owned())
    };
    let ids = |text: &str| line("wrong.ids", format!("s32[3,1]{{1,0}} {text}"));
    let limits = line("two", "s32[3,1]{1,0} constant({{2}, {2}, {2}})".to_owned())
        + &line("none", "s32[3,1]{1,0} constant({{0}, {0}, {0}})".to_owned());
    let update = "f32[8,4]{1,0} dynamic-update-slice(%whole, %q, %zero, %zero)";
    let turned = GROUPS.replace("0,1", "1,0");
    let gathered =
        format!("f32[8,4]{{1,0}} all-gather(%p), channel_id=9, {turned}, dimensions={{0}}");
    for wrong in [
        // Other rows, clamped ones, those of another table, of another sequence of shards, and
        // those of a table that has been written to.
        ids("constant({{0}, {5}, {3}})") + &gather("whole", "wrong.ids"),
        limits + &ids("clamp(%none, %ids, %two)") + &gather("whole", "wrong.ids"),
        gather("other", "ids"),
        line("turned", gathered) + &gather("turned", "ids"),
        line("written", update.to_owned()) + &gather("written", "ids"),
    ] {
        let text = new.text().replacen("  %again.low =", &format!("{wrong}  %again.low ="), 1);
        let text = text.replacen("bitcast(%low)", "bitcast(%wrong)", 1);
        let wrong = Module::read(text).unwrap_or_else(|error| panic!("{error}\n{wrong}"));
        assert!(same(&old, &wrong).is_err(), "{}", wrong.text());
    }
    // A slice of two rows ends at the table's end; two of one row each may be the last one twice.
    let one = "f32[1,4]{1,0} dynamic-slice(%whole";
    let sizes = "dynamic_slice_sizes={1,4}";
    let wrong = line("more", "s32[] constant(1)".to_owned())
        + &line("next", "s32[] add(%far, %more)".to_owned())
        + &line("above", format!("{one}, %far, %zero), {sizes}"))
        + &line("below", format!("{one}, %next, %zero), {sizes}"))
        + &line("wrong", "f32[2,4]{1,0} concatenate(%above, %below), dimensions={0}".to_owned());
    let text = new.text().replacen("  %again.top =", &format!("{wrong}  %again.top ="), 1);
    let wrong = Module::read(text.replacen("bitcast(%top)", "bitcast(%wrong)", 1)).unwrap();
    assert!(same(&old, &wrong).is_err());
}

/// Wrong changes, each a slip that a rewriter could make.
#[test]
fn the_proof_knows_which_gather_is_kept() {
    let old = read(&repeated());
    let new = applied(&old, &[keep(&["first", "second"])]);
    for (from, to) in [
        // Another weight, or the weight of another iteration or rank, or before it is narrowed.
        ("convert(%second)", "convert(%other)"),
        (
            "all-gather(%low), channel_id=1, replica_groups={{0,1,2,3}}",
            "all-gather(%low), channel_id=1, replica_groups={{1,0,2,3}}",
        ),
        ("[0:2], [0:4]", "[2:4], [0:4]"),
        ("tuple(%p, %sum)", "tuple(%p, %wide)"),
        ("multiply(%after, %again.wide)", "multiply(%sum, %after)"),
        ("opt-barrier(%held)", "copy(%swapped)"),
    ] {
        let text = new.text().replacen(from, to, 1);
        assert_ne!(text, new.text(), "{from}");
        let swapped = "  %swapped = (f32[2,4]{1,0}, f32[8,4]{1,0}) tuple(%p, %other)\n  %barrier";
        let text =
            if to.contains("%swapped") { text.replacen("  %barrier", swapped, 1) } else { text };
        let wrong = Module::read(text).unwrap();
        assert!(same(&old, &wrong).is_err(), "{to}");
    }
}
