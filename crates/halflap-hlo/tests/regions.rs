//! Collectives and what is computed around them in pieces: which instructions are cut and how, what
//! stays whole, and what the proof accepts.

use halflap_hlo::change::{self, Recipe, RegionPieces};
use halflap_hlo::{Module, Sameness, same};

const GROUPS: &str = "replica_groups={{0,1,2,3}}, use_global_device_ids=true";
const ROWS: &str = "lhs_contracting_dims={1}, rhs_contracting_dims={0}";

fn read(parameters: &str, lines: &str) -> Module {
    let text = format!(
        "HloModule m, num_partitions=4

%add (a: f32[], b: f32[]) -> f32[] {{
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %c = f32[] add(%a, %b)
}}

ENTRY %main {{
{parameters}
{lines}
}}
"
    );
    Module::read(text.clone()).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

fn cut(pieces: u64, reach: u32) -> RegionPieces {
    RegionPieces { pieces, reach, tail: None }
}

fn names(of: &[&str]) -> Vec<String> {
    of.iter().map(|&name| name.to_owned()).collect()
}

fn region(members: &[&str], cut: RegionPieces) -> Recipe {
    Recipe::Region { members: names(members), cut }
}

/// The only region around these collectives, applied and proved.
#[track_caller]
fn in_pieces(module: &Module, members: &[&str], cut: RegionPieces) -> (Module, Sameness) {
    let found = change::find_regions(module, &names(members), cut);
    let recipes: Vec<Recipe> = found.iter().map(|found| found.recipe.clone()).collect();
    assert_eq!(recipes, [region(members, cut)]);
    let (changed, _) = change::apply(module, &recipes).unwrap_or_else(|error| panic!("{error}"));
    let how = same(module, &changed)
        .unwrap_or_else(|different| panic!("{different}\n{}", changed.text()));
    assert_eq!(found[0].is_exact, how == Sameness::Exact);
    (changed, how)
}

#[track_caller]
fn has(module: &Module, lines: &[&str]) {
    for line in lines {
        assert!(module.text().contains(line), "{line}: {}", module.text());
    }
}

/// Two layers of a tensor-parallel model, with a bias, a norm and a residual connection.
fn layers() -> Module {
    let layer = |number: u32, from: &str, to: &str| {
        format!(
            "  %up{number} = f32[8,6]{{1,0}} dot(%{from}, %w), {ROWS}
  %bias{number} = f32[8,6]{{1,0}} broadcast(%b), dimensions={{1}}
  %biased{number} = f32[8,6]{{1,0}} add(%up{number}, %bias{number})
  %act{number} = f32[8,6]{{1,0}} tanh(%biased{number})
  %down{number} = f32[8,4]{{1,0}} dot(%act{number}, %w), lhs_contracting_dims={{1}}, rhs_contracting_dims={{1}}
  %ar{number} = f32[8,4]{{1,0}} all-reduce(%down{number}), channel_id={number}, {GROUPS}, to_apply=%add
  %sum{number} = f32[8,4]{{1,0}} add(%ar{number}, %{from})
  %square{number} = f32[8,4]{{1,0}} multiply(%sum{number}, %sum{number})
  %norm{number} = f32[8]{{0}} reduce(%square{number}, %zero), dimensions={{1}}, to_apply=%add
  %wide{number} = f32[8,4]{{1,0}} broadcast(%norm{number}), dimensions={{0}}
  %{to} = f32[8,4]{{1,0}} divide(%sum{number}, %wide{number})
"
        )
    };
    let parameters = "  %x = f32[8,4]{1,0} parameter(0)
  %w = f32[4,6]{1,0} parameter(1)
  %b = f32[6]{0} parameter(2)
  %zero = f32[] constant(0)";
    let (first, second) = (layer(1, "x", "h"), layer(2, "h", "y"));
    read(parameters, &format!("{first}{second}  ROOT %r = (f32[8,4]{{1,0}}) tuple(%y)"))
}

#[test]
fn layers_run_in_pieces_of_the_batch() {
    let module = layers();
    let (changed, how) = in_pieces(&module, &["ar1", "ar2"], cut(4, 1));
    assert_eq!(how, Sameness::SumOrder);
    has(
        &changed,
        &[
            "%x.p.2 = f32[2,4]{1,0} slice(%x), slice={[2:4], [0:4]}",
            "%bias1.p = f32[2,6]{1,0} broadcast(%b), dimensions={1}",
            "%biased1.p.3 = f32[2,6]{1,0} add(%up1.p.3, %bias1.p)",
            "%ar1.p = f32[2,4]{1,0} all-reduce(%down1.p), channel_id=1",
            "%ar1.p.2 = f32[2,4]{1,0} all-reduce(%down1.p.2), channel_id=3",
            "%norm1.p = f32[2]{0} reduce(%square1.p, %zero), dimensions={1}",
            "%wide1.p.4 = f32[2,4]{1,0} broadcast(%norm1.p.4), dimensions={0}",
            // The second layer goes on with the pieces of the first.
            "%up2.p.2 = f32[2,6]{1,0} dot(%h.p.2, %w)",
            "%y = f32[8,4]{1,0} concatenate(%y.p, %y.p.2, %y.p.3, %y.p.4), dimensions={0}",
        ],
    );
    // Nothing but the result is put together, and the whole broadcast is gone.
    assert_eq!(changed.text().matches("concatenate(").count(), 1);
    assert!(!changed.text().contains("%bias1 = "));
}

#[test]
fn a_region_ends_where_its_reach_does() {
    let module = layers();
    let (changed, _) = in_pieces(&module, &["ar1"], cut(2, 0));
    has(&changed, &["%down1.p = f32[4,4]{1,0} slice(%down1)", "%h = f32[8,4]{1,0} concatenate("]);
    assert!(!changed.text().contains("%act1.p"));
    assert!(!changed.text().contains("%up2.p"));
    let (changed, _) = in_pieces(&module, &["ar1"], cut(2, 1));
    has(&changed, &["%act2.p = f32[4,6]{1,0} tanh(", "%act2 = f32[8,6]{1,0} concatenate("]);
    assert!(!changed.text().contains("%ar2.p"));
}

/// Experts between two all-to-alls: each rank has one, and works on what all send to it.
fn experts() -> Module {
    let parameters = "  %x = f32[4,8,6]{2,1,0} parameter(0)
  %w = f32[6,6]{1,0} parameter(1)";
    let sent = format!("{GROUPS}, dimensions={{0}}");
    let lines = format!(
        "  %there = f32[4,8,6]{{2,1,0}} all-to-all(%x), channel_id=1, {sent}
  %flat = f32[32,6]{{1,0}} reshape(%there)
  %dot = f32[32,6]{{1,0}} dot(%flat, %w), {ROWS}
  %act = f32[32,6]{{1,0}} tanh(%dot)
  %rows = f32[4,8,6]{{2,1,0}} reshape(%act)
  %back = f32[4,8,6]{{2,1,0}} all-to-all(%rows), channel_id=2, {sent}
  ROOT %r = f32[4,8,6]{{2,1,0}} add(%back, %x)"
    );
    read(parameters, &lines)
}

#[test]
fn experts_run_in_pieces() {
    // Rows of a rank's experts lie between those of others, and the reshape makes one dimension of
    // both: only columns can be cut, up to the product.
    let module = experts();
    let (changed, how) = in_pieces(&module, &["there"], cut(2, 1));
    assert_eq!(how, Sameness::Exact);
    has(&changed, &["%flat = f32[32,6]{1,0} concatenate(%flat.p, %flat.p.2), dimensions={1}"]);
    // With the rows first, pieces stay apart through all of it.
    let text = module.text().replace("f32[4,8,6]", "f32[8,4,6]");
    let module = Module::read(text.replace("dimensions={0}", "dimensions={1}")).unwrap();
    let (changed, how) = in_pieces(&module, &["there", "back"], cut(2, 1));
    assert_eq!(how, Sameness::Exact);
    has(
        &changed,
        &[
            "%there.p.2 = f32[4,4,6]{2,1,0} all-to-all(%x.p.2), channel_id=3",
            "%flat.p = f32[16,6]{1,0} reshape(%there.p)",
            "%rows.p = f32[4,4,6]{2,1,0} reshape(%act.p)",
            "%back.p = f32[4,4,6]{2,1,0} all-to-all(%rows.p), channel_id=2",
            "%r = f32[8,4,6]{2,1,0} concatenate(%r.p, %r.p.2), dimensions={0}",
        ],
    );
    assert_eq!(changed.text().matches("concatenate(").count(), 1);
}

/// Attention: batched products, a transpose, slices and a concatenation along other dimensions.
fn attention() -> Module {
    let parameters = "  %x = f32[4,2,6]{2,1,0} parameter(0)
  %w = f32[6,6]{1,0} parameter(1)
  %zero = f32[] constant(0)
  %one = f32[] constant(1)";
    let lines = format!(
        "  %left = f32[4,2,3]{{2,1,0}} slice(%x), slice={{[0:4], [0:2], [0:3]}}
  %right = f32[4,2,3]{{2,1,0}} slice(%x), slice={{[0:4], [0:2], [3:6]}}
  %turned = f32[4,2,6]{{2,1,0}} concatenate(%right, %left), dimensions={{2}}
  %scores = f32[4,2,2]{{2,1,0}} dot(%turned, %x), lhs_batch_dims={{0}}, rhs_batch_dims={{0}}, lhs_contracting_dims={{2}}, rhs_contracting_dims={{2}}
  %kept = f32[4,2,2]{{2,1,0}} clamp(%zero, %scores, %one)
  %swapped = f32[2,4,2]{{2,1,0}} transpose(%kept), dimensions={{1,0,2}}
  %values = f32[4,2,6]{{2,1,0}} dot(%swapped, %x), lhs_batch_dims={{1}}, rhs_batch_dims={{0}}, lhs_contracting_dims={{2}}, rhs_contracting_dims={{1}}
  %out = f32[4,2,6]{{2,1,0}} dot(%values, %w), lhs_contracting_dims={{2}}, rhs_contracting_dims={{0}}
  %ar = f32[4,2,6]{{2,1,0}} all-reduce(%out), channel_id=1, {GROUPS}, to_apply=%add
  ROOT %r = f32[4,2,6]{{2,1,0}} add(%ar, %x)"
    );
    read(parameters, &lines)
}

#[test]
fn attention_runs_in_pieces_of_the_batch() {
    let module = attention();
    let (changed, how) = in_pieces(&module, &["ar"], cut(2, 3));
    assert_eq!(how, Sameness::SumOrder);
    has(
        &changed,
        &[
            "%left.p = f32[2,2,3]{2,1,0} slice(%x.p), slice={[0:2], [0:2], [0:3]}",
            "%turned.p.2 = f32[2,2,6]{2,1,0} concatenate(%right.p.2, %left.p.2), dimensions={2}",
            "%scores.p = f32[2,2,2]{2,1,0} dot(%turned.p, %x.p), lhs_batch_dims={0}",
            "%kept.p = f32[2,2,2]{2,1,0} clamp(%zero, %scores.p, %one)",
            "%swapped.p = f32[2,2,2]{2,1,0} transpose(%kept.p), dimensions={1,0,2}",
            "%values.p = f32[2,2,6]{2,1,0} dot(%swapped.p, %x.p), lhs_batch_dims={1}",
        ],
    );
}

/// A weight's gradient sums over the rows: it needs them all.
#[test]
fn what_sums_over_the_pieces_reads_the_whole() {
    let text = layers().text().replace(
        "  ROOT %r = (f32[8,4]{1,0}) tuple(%y)",
        "  %grad = f32[4,6]{1,0} dot(%y, %act2), lhs_contracting_dims={0}, rhs_contracting_dims={0}
  ROOT %r = (f32[8,4]{1,0}, f32[4,6]{1,0}) tuple(%y, %grad)",
    );
    let module = Module::read(text).unwrap();
    let (changed, _) = in_pieces(&module, &["ar1", "ar2"], cut(2, 1));
    has(
        &changed,
        &[
            "%act2 = f32[8,6]{1,0} concatenate(%act2.p, %act2.p.2), dimensions={0}",
            "%grad = f32[4,6]{1,0} dot(%y, %act2)",
        ],
    );
}

/// None of these changes to a region's text is proved.
#[track_caller]
fn all_found(module: &Module, members: &[&str], changes: &[(&str, &str)]) {
    let (changed, _) = in_pieces(module, members, cut(2, 3));
    for (from, to) in changes {
        let wrong = changed.text().replace(from, to);
        assert_ne!(wrong, changed.text(), "{from}");
        let wrong = Module::read(wrong).unwrap_or_else(|error| panic!("{from}: {error}"));
        assert!(same(module, &wrong).is_err(), "{from}");
    }
}

#[test]
fn wrong_pieces_are_found() {
    all_found(
        &layers(),
        &["ar1", "ar2"],
        &[
            ("concatenate(%y.p, %y.p.2)", "concatenate(%y.p.2, %y.p)"),
            ("dot(%h.p.2, %w)", "dot(%h.p, %w)"),
            ("reduce(%square1.p.2, %zero)", "reduce(%square1.p, %zero)"),
            ("broadcast(%norm1.p.2)", "broadcast(%norm1.p)"),
            ("add(%up1.p, %bias1.p)", "add(%up1.p, %up1.p)"),
            ("slice={[4:8], [0:4]}", "slice={[3:7], [0:4]}"),
        ],
    );
    all_found(
        &experts(),
        &["there"],
        &[("all-to-all(%x.p.2)", "all-to-all(%x.p)"), ("[0:8], [3:6]", "[0:8], [2:5]")],
    );
    all_found(
        &attention(),
        &["ar"],
        &[
            ("concatenate(%right.p.2, %left.p.2)", "concatenate(%left.p.2, %right.p.2)"),
            ("dot(%turned.p, %x.p)", "dot(%turned.p, %x.p.2)"),
            ("transpose(%kept.p.2)", "transpose(%kept.p)"),
            ("[0:2], [0:2], [3:6]", "[0:2], [0:2], [2:5]"),
        ],
    );
}

#[test]
fn regions_that_are_not_there() {
    #[track_caller]
    fn refused(module: &Module, recipe: Recipe, why: &str) {
        let error = change::apply(module, &[recipe]).map(|_| ()).unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    }
    refused(&layers(), region(&["ar1"], cut(3, 1)), "so many pieces");
    refused(&layers(), region(&["act1"], cut(2, 1)), "this rewrite applies to");
    refused(&layers(), region(&["nothing"], cut(2, 1)), "is not an instruction");
    refused(&experts(), region(&["there", "back"], cut(2, 1)), "not in one region");
}
