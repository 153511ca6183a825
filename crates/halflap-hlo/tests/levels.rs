//! Collectives over nodes on two levels, and all-reduces that are gathered again after elementwise
//! operations: what becomes of the text, what is refused, and what the proof accepts.

use halflap_hlo::change::{self, Recipe};
use halflap_hlo::{Module, Sameness, same};

/// Two nodes of two ranks each.
const NODES: &str = "replica_groups={{0,1,2,3}}, use_global_device_ids=true";
/// The same ranks, those of a node apart.
const TURNED: &str = "replica_groups={{0,2,1,3}}, use_global_device_ids=true";

/// A module of four ranks with a parameter `x` of a type, and these lines.
fn read(kind: &str, lines: &str) -> Module {
    let element = kind.split('[').next().unwrap();
    let text = format!(
        "HloModule m, num_partitions=4

%add (a: {element}[], b: {element}[]) -> {element}[] {{
  %a = {element}[] parameter(0)
  %b = {element}[] parameter(1)
  ROOT %c = {element}[] add(%a, %b)
}}

ENTRY %main (x: {kind}) -> {kind} {{
  %x = {kind}{{1,0}} parameter(0)
{lines}
}}
"
    );
    Module::read(text.clone()).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

fn levels(name: &str) -> Recipe {
    Recipe::Levels { collective: name.to_owned(), ranks_per_node: 2 }
}

fn gather(groups: &str) -> String {
    format!("  ROOT %ag = f32[8,4]{{1,0}} all-gather(%x), channel_id=1, {groups}, dimensions={{0}}")
}

fn scatter(groups: &str) -> String {
    format!(
        "  ROOT %rs = f32[2,4]{{1,0}} reduce-scatter(%x), channel_id=1, {groups}, \
         dimensions={{0}}, to_apply=%add"
    )
}

fn reduce(kind: &str) -> String {
    format!("  ROOT %ar = {kind}{{1,0}} all-reduce(%x), channel_id=1, {NODES}, to_apply=%add")
}

/// A module after a recipe, and whether it keeps every bit.
#[track_caller]
fn proved(module: &Module, recipe: &Recipe) -> (Module, Sameness) {
    let (changed, _) = change::apply(module, std::slice::from_ref(recipe)).unwrap();
    let how = same(module, &changed).unwrap_or_else(|no| panic!("{no}\n{}", changed.text()));
    (changed, how)
}

#[track_caller]
fn has_lines(module: &Module, lines: &[&str]) {
    for line in lines {
        assert!(module.text().contains(line), "{line}\nis not in\n{}", module.text());
    }
}

#[test]
fn a_gather_goes_across_nodes_first() {
    let module = read("f32[2,4]", &gather(NODES));
    let found = change::find_levels(&module, 2);
    assert_eq!((found.len(), &found[0].recipe, found[0].is_exact), (1, &levels("ag"), true));
    let (changed, how) = proved(&module, &levels("ag"));
    assert_eq!(how, Sameness::Exact);
    has_lines(
        &changed,
        &[
            "%ag.across = f32[4,4]{1,0} all-gather(%x), channel_id=1, use_global_device_ids=true, \
             replica_groups={{0,2},{1,3}}, dimensions={0}",
            "%ag.within = f32[8,4]{1,0} all-gather(%ag.across), channel_id=2, \
             use_global_device_ids=true, replica_groups={{0,1},{2,3}}, dimensions={0}",
            "%ag.blocks = f32[2,2,2,4]{3,2,1,0} reshape(%ag.within)",
            "transpose(%ag.blocks), dimensions={1,0,2,3}",
            "ROOT %ag = f32[8,4]{1,0} reshape(",
        ],
    );
    // Listed place by place, what arrives is in its place.
    let (changed, how) = proved(&read("f32[2,4]", &gather(TURNED)), &levels("ag"));
    assert_eq!(how, Sameness::Exact);
    assert!(!changed.text().contains("transpose"), "{}", changed.text());
}

#[test]
fn sums_go_within_nodes_first() {
    for groups in [NODES, TURNED] {
        let (changed, how) = proved(&read("f32[8,4]", &scatter(groups)), &levels("rs"));
        assert_eq!(how, Sameness::SumOrder);
        assert_eq!(changed.text().contains("transpose"), groups == NODES);
        let (_, how) =
            proved(&read("s32[8,4]", &scatter(groups).replace("f32", "s32")), &levels("rs"));
        assert_eq!(how, Sameness::Exact);
    }
    let module = read("f32[8,4]", &reduce("f32[8,4]"));
    assert!(!change::find_levels(&module, 2)[0].is_exact);
    let (changed, how) = proved(&module, &levels("ar"));
    assert_eq!(how, Sameness::SumOrder);
    has_lines(
        &changed,
        &[
            "%ar.within = f32[4,4]{1,0} reduce-scatter(%x), channel_id=1, \
             use_global_device_ids=true, to_apply=%add, replica_groups={{0,1},{2,3}}, dimensions={0}",
            "%ar.across = f32[4,4]{1,0} all-reduce(%ar.within), channel_id=2, \
             use_global_device_ids=true, to_apply=%add, replica_groups={{0,2},{1,3}}",
            "ROOT %ar = f32[8,4]{1,0} all-gather(%ar.across), channel_id=3, \
             use_global_device_ids=true, replica_groups={{0,1},{2,3}}, dimensions={0}",
        ],
    );
    let (_, how) = proved(&read("s32[8,4]", &reduce("s32[8,4]")), &levels("ar"));
    assert_eq!(how, Sameness::Exact);
}

#[test]
fn collectives_that_stay_on_one_level() {
    let refused = |kind: &str, lines: &str, per_node: u32, why: &str| {
        let recipe =
            |name: &str| Recipe::Levels { collective: name.to_owned(), ranks_per_node: per_node };
        let module = read(kind, lines);
        let name = if lines.contains("%ag") { "ag" } else { "ar" };
        let error = change::apply(&module, &[recipe(name)]).unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
        assert!(change::find_levels(&module, per_node).is_empty());
    };
    let nodes = "has groups that are not spread evenly over two or more ranks of several nodes";
    for per_node in [0, 1, 3, 4, 8] {
        refused("f32[2,4]", &gather(NODES), per_node, nodes);
    }
    let uneven = "replica_groups={{0,1},{2,3}}, use_global_device_ids=true";
    refused("f32[4,4]", &gather(uneven), 2, nodes);
    let apart = "replica_groups={{0,1,3,2}}, use_global_device_ids=true";
    assert_eq!(change::find_levels(&read("f32[2,4]", &gather(apart)), 2).len(), 1);
    refused(
        "f32[2,4]",
        &gather("replica_groups={{0,2,3,1}}, use_global_device_ids=true"),
        2,
        nodes,
    );
    refused("f32[3,3]", &reduce("f32[3,3]"), 2, "has no dimension that ranks can divide evenly");
    let column = gather(NODES).replace("f32[8,4]{1,0}", "f32[8,4]{0,1}");
    refused("f32[2,4]", &column, 2, "has readers that use another layout");
}

/// Every damaged line is found: another group, another sequence of blocks, a missing level.
#[test]
fn the_proof_finds_wrong_levels() {
    let damaged = |module: &Module, recipe: &Recipe, from: &str, to: &str| {
        let (changed, _) = proved(module, recipe);
        assert!(changed.text().contains(from), "{from}\n{}", changed.text());
        let text = changed.text().replacen(from, to, 1);
        let wrong = Module::read(text.clone()).unwrap_or_else(|error| panic!("{error}\n{text}"));
        assert!(same(module, &wrong).is_err(), "{text}");
    };
    let module = read("f32[2,4]", &gather(NODES));
    let ag = levels("ag");
    damaged(&module, &ag, "{{0,2},{1,3}}", "{{0,1},{2,3}}");
    damaged(&module, &ag, "{{0,2},{1,3}}", "{{2,0},{3,1}}");
    damaged(&module, &ag, "{{0,1},{2,3}}", "{{1,0},{2,3}}");
    damaged(&module, &ag, "dimensions={1,0,2,3}", "dimensions={0,1,2,3}");
    damaged(&module, &ag, "dimensions={1,0,2,3}", "dimensions={2,1,0,3}");
    let module = read("f32[8,4]", &scatter(NODES));
    let rs = levels("rs");
    damaged(&module, &rs, "{{0,1},{2,3}}", "{{0,2},{1,3}}");
    damaged(&module, &rs, "{{0,2},{1,3}}", "{{2,0},{3,1}}");
    damaged(&module, &rs, "dimensions={1,0,2,3}", "dimensions={0,1,2,3}");
    let module = read("f32[8,4]", &reduce("f32[8,4]"));
    let ar = levels("ar");
    damaged(&module, &ar, "{{0,2},{1,3}}", "{{0,1},{2,3}}");
    damaged(&module, &ar, "all-gather(%ar.across)", "all-gather(%ar.within)");
}

/// What was gathered and is scattered again on two levels: its blocks may change places before they
/// are gathered, or after they are summed.
#[test]
fn gathered_blocks_are_scattered_on_two_levels() {
    let sum = |lines: &str, kind: &str| {
        let lines = format!("{lines}\n{}", scatter(NODES).replace("(%x)", "(%ag)"));
        read(kind, &lines.replace("ROOT %ag", "%ag"))
    };
    for groups in [NODES, TURNED] {
        let module = sum(&gather(groups), "f32[2,4]");
        let (changed, how) = proved(&module, &levels("rs"));
        assert_eq!(how, Sameness::SumOrder);
        let (changed, _) = change::apply(&changed, &[levels("ag")]).unwrap();
        assert_eq!(same(&module, &changed), Ok(Sameness::SumOrder), "{}", changed.text());
        let wrong = changed.text().replacen("dimensions={1,0,2,3}", "dimensions={0,1,2,3}", 1);
        assert!(same(&module, &Module::read(wrong.clone()).unwrap()).is_err(), "{wrong}");
    }
}

/// Two sums of two numbers are not a sum of four, bit for bit.
#[test]
fn sums_of_pairs_are_not_exact() {
    let two = "  %a = f32[8,4]{1,0} all-reduce(%x), channel_id=1, replica_groups={{0,1},{2,3}}, \
               use_global_device_ids=true, to_apply=%add
  ROOT %ar = f32[8,4]{1,0} all-reduce(%a), channel_id=2, replica_groups={{0,2},{1,3}}, \
               use_global_device_ids=true, to_apply=%add";
    let one = read("f32[8,4]", &reduce("f32[8,4]"));
    assert_eq!(same(&one, &read("f32[8,4]", two)), Ok(Sameness::SumOrder));
    // Ranks that are counted twice.
    let twice = two.replace("{{0,2},{1,3}}", "{{0,1},{2,3}}");
    assert!(same(&one, &read("f32[8,4]", &twice)).is_err());
}

/// A sum of which the whole is used after it was scaled and rounded.
fn chained(end: &str) -> String {
    format!(
        "  %ar = f32[8,4]{{1,0}} all-reduce(%x), channel_id=1, {NODES}, to_apply=%add
  %quarter = f32[] constant(0.25)
  %all = f32[8,4]{{1,0}} broadcast(%quarter), dimensions={{}}
  %scaled = f32[8,4]{{1,0}} multiply(%ar, %all)
  %short = bf16[8,4]{{1,0}} convert(%scaled)
{end}"
    )
}

const USED: &str = "  %long = f32[8,4]{1,0} convert(%short)
  ROOT %sum = f32[8,4]{1,0} add(%long, %x)";

fn shard(name: &str) -> Recipe {
    Recipe::Shard { all_reduce: name.to_owned() }
}

#[test]
fn a_chain_is_computed_on_slices_and_gathered() {
    let lines = chained("  ROOT %sum = bf16[8,4]{1,0} dot(%short, %short), lhs_contracting_dims={0}, rhs_contracting_dims={0}")
        .replace("bf16[8,4]{1,0} dot", "bf16[4,4]{1,0} dot");
    let module = read("f32[8,4]", &lines);
    let found = change::find_shards(&module);
    assert_eq!((found.len(), &found[0].recipe, found[0].is_exact), (1, &shard("ar"), false));
    let (changed, how) = proved(&module, &shard("ar"));
    assert_eq!(how, Sameness::SumOrder);
    has_lines(
        &changed,
        &[
            "f32[2,4]{1,0} reduce-scatter(%x), channel_id=1, replica_groups={{0,1,2,3}}, \
             use_global_device_ids=true, to_apply=%add, dimensions={0}",
            "%scaled.shard = f32[2,4]{1,0} multiply(",
            "%short.shard = bf16[2,4]{1,0} convert(%scaled.shard)",
            "%short = bf16[8,4]{1,0} all-gather(%short.shard), channel_id=2, \
             replica_groups={{0,1,2,3}}, use_global_device_ids=true, dimensions={0}",
        ],
    );
    // The chain ends before the value is widened again.
    let module = read("f32[8,4]", &chained(USED));
    let (changed, how) = proved(&module, &shard("ar"));
    assert_eq!(how, Sameness::SumOrder);
    has_lines(&changed, &["%short = bf16[8,4]{1,0} all-gather(", "f32[8,4]{1,0} convert(%short)"]);
    let wrong = changed.text().replace("constant(0.25)", "constant(0.5)");
    assert!(same(&module, &Module::read(wrong).unwrap()).is_err());
    let turned = changed.text().replacen("{{0,1,2,3}}", "{{1,0,2,3}}", 1);
    assert!(same(&module, &Module::read(turned).unwrap()).is_err());
}

#[test]
fn chains_that_are_not_gathered_again() {
    let stays = |lines: String| {
        let module = read("f32[8,4]", &lines);
        assert_eq!(change::find_shards(&module), []);
        let error = change::apply(&module, &[shard("ar")]).unwrap_err().to_string();
        assert!(error.contains("is also used by something that needs all of it"), "{error}");
    };
    // The all-reduce itself is needed.
    stays(
        chained(USED).replace("ROOT %sum", "%sum") + "\n  ROOT %o = f32[8,4]{1,0} add(%sum, %ar)",
    );
    stays(reduce("f32[8,4]"));
    // Two whole values would be gathered, which are more bytes than the sum has.
    stays(chained(
        "  %other = f32[8,4]{1,0} add(%scaled, %x)\n  %long = f32[8,4]{1,0} convert(%short)\n  %more = f32[8,4]{1,0} add(%long, %x)\n  ROOT %both = f32[8,4]{1,0} add(%other, %more)",
    ));
    // What is multiplied may differ from rank to rank.
    stays(chained(USED).replace("multiply(%ar, %all)", "multiply(%ar, %x)"));
}
