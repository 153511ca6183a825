//! Second communicators: proved where only the communicator changes, else refused.

use halflap::cost::Costs;
use halflap::export::write_graph;
use halflap::graph::{Graph, GroupParts};
use halflap::ids::{GroupId, Id, OpId};
use halflap::import::read_graph;
use halflap::origin::Origin;
use halflap::rewrite::{Recipe, RewriteError, Rewritten, Undoubled, divisible, rewrite};
use halflap::verify_rewrite::{RewriteViolation, verify_rewrite};
use serde_json::{Value, json};

use crate::damage::{Damage, Damaged, all_are_found};
use crate::programs::{order_of, pair, prices, read};

/// An all-gather, a reduce-scatter and another all-gather of one process group.
fn mixed() -> Value {
    let mut graph = pair("all_gather", [32, 64, 32], [64, 128, 64]);
    let scatter = &mut graph["nodes"][5]["collective"];
    scatter["op"] = json!("reduce_scatter");
    scatter["reduction"] = json!("sum");
    (scatter["input_bytes"], scatter["output_bytes"]) = (json!(128), json!(64));
    graph
}

fn ops(graph: &Graph, names: &[&str]) -> Vec<OpId> {
    names.iter().map(|name| graph.find(name).unwrap()).collect()
}

fn doubled(graph: &Graph, names: &[&str]) -> Result<Rewritten, RewriteError> {
    let costs = Costs::default();
    rewrite(graph, &[Recipe::Groups { members: ops(graph, names) }], &prices(&costs))
}

fn group<'a>(graph: &'a Graph, name: &str) -> &'a GroupParts {
    &graph.groups()[graph.collective(graph.find(name).unwrap()).unwrap().group]
}

#[test]
fn all_gathers_move_to_a_second_communicator_and_nothing_else_changes() {
    let old = read(&mixed());
    assert_eq!(divisible(&old), [ops(&old, &["a.comm", "c.comm"])]);
    let Rewritten { graph: new, origin } = doubled(&old, &["a.comm", "c.comm"]).unwrap();
    assert_eq!(order_of(&new), order_of(&old));
    assert_eq!(origin, Origin::unchanged(&old));
    for name in ["a.comm", "c.comm"] {
        let second = group(&new, name);
        assert_eq!((second.name.as_str(), &second.ranks), ("g.2", &vec![0, 1]));
        assert_eq!(second.second_of, Some(GroupId::from_index(0)));
    }
    assert_eq!(group(&new, "b.comm"), group(&old, "b.comm"));
    assert!(divisible(&new).is_empty(), "once is enough");
    let mut text = Vec::new();
    write_graph(&new, &mut text).unwrap();
    let again = read_graph(&text).unwrap();
    verify_rewrite(&old, &again, &Origin::by_names(&old, &again)).unwrap();
}

#[test]
fn what_was_merged_moves_as_a_whole() {
    let old = read(&mixed());
    let gathers = ops(&old, &["a.comm", "c.comm"]);
    let recipes = [Recipe::Groups { members: gathers.clone() }, Recipe::Merge { members: gathers }];
    let costs = Costs::default();
    let Rewritten { graph: new, origin } = rewrite(&old, &recipes, &prices(&costs)).unwrap();
    assert_eq!(group(&new, "a.comm_x2").name, "g.2");
    assert_eq!(group(&new, "b.comm").name, "g");
    verify_rewrite(&old, &new, &origin).unwrap();
    verify_rewrite(&old, &new, &Origin::by_names(&old, &new)).unwrap();
}

#[test]
fn what_would_leave_nothing_beside_it_stays() {
    let all = read(&pair("all_gather", [32; 3], [64; 3]));
    assert!(divisible(&all).is_empty());
    let why = |of: Result<Rewritten, RewriteError>| match of {
        Err(RewriteError::NotDoubled { why, .. }) => why,
        other => panic!("{other:?}"),
    };
    assert_eq!(why(doubled(&all, &["a.comm", "b.comm", "c.comm"])), Undoubled::NothingLeft);
    let new = doubled(&read(&mixed()), &["a.comm"]).unwrap().graph;
    assert_eq!(why(doubled(&new, &["a.comm"])), Undoubled::IsDouble);
    assert_eq!(why(doubled(&new, &["c.comm"])), Undoubled::IsDouble);
    let mut transfers = mixed();
    transfers["groups"]["g"] = json!({ "ranks": [], "kind": "transfer" });
    assert_eq!(why(doubled(&read(&transfers), &["a.comm"])), Undoubled::IsTransfer);
    let mut other = mixed();
    other["nodes"][1]["collective"]["group"] = json!("h");
    let error = doubled(&read(&other), &["a.comm", "c.comm"]).unwrap_err().to_string();
    assert!(error.contains("differ in process group: h and g"), "{error}");
    let error = doubled(&all, &["a.wait"]).unwrap_err();
    assert_eq!(error, RewriteError::NotACollective { member: "a.wait".to_owned() });
}

#[test]
fn a_name_that_is_taken_is_not_used_again() {
    let mut graph = mixed();
    graph["groups"]["g.2"] = json!({ "ranks": [0, 3] });
    let new = doubled(&read(&graph), &["a.comm", "c.comm"]).unwrap().graph;
    assert_eq!(group(&new, "a.comm").name, "g.3");
}

#[test]
fn other_groups_are_no_second_communicators() {
    let old = read(&mixed());
    let said = |change: &dyn Fn(&mut Damaged)| {
        let Rewritten { graph, origin } = doubled(&old, &["a.comm", "c.comm"]).unwrap();
        let mut damaged = Damaged { before: old.clone(), parts: graph.into_parts(), origin };
        change(&mut damaged);
        let new = Graph::new(damaged.parts).unwrap();
        verify_rewrite(&old, &new, &damaged.origin).unwrap_err()
    };
    let second = GroupId::from_index(2);
    let invented = RewriteViolation::GroupInvented { group: "g.2".to_owned() };
    assert_eq!(said(&|of| of.parts.groups[second].second_of = None), invented);
    let of_other =
        |of: &mut Damaged| of.parts.groups[second].second_of = Some(GroupId::from_index(1));
    // The ranks are those of 'h', too: that 'a.comm' was not there shows.
    let moved =
        RewriteViolation::Changed { node: "a.comm".to_owned(), what: "what it communicates" };
    assert_eq!(said(&of_other), moved);
    let changed = RewriteViolation::GroupChanged { group: "h".to_owned() };
    assert_eq!(said(&|of| of.parts.groups[GroupId::from_index(1)].ranks = vec![0, 2]), changed);
}

#[test]
fn every_damage_is_found() {
    fn member(of: &mut Damaged) -> &mut halflap::graph::Collective {
        let op = of.parts.ops.ids().find(|&op| of.parts.ops[op].name == "a.comm").unwrap();
        of.parts.ops[op].collective.as_mut().unwrap()
    }
    let damages: &[(&str, Damage)] = &[
        ("it is another kind", |_, of| {
            member(of).kind = halflap::collective::CollectiveKind::AllToAll;
            true
        }),
        ("it is on a group of its own", |_, of| {
            let group = of.parts.groups.push(GroupParts::new("other", vec![0, 1]));
            member(of).group = group;
            true
        }),
        ("it is on another group", |_, of| {
            member(of).group = GroupId::from_index(1);
            true
        }),
        ("it has other ranks", |_, of| {
            let group = member(of).group;
            of.parts.groups[group].ranks = vec![1, 0];
            of.parts.groups[group].second_of = None;
            true
        }),
        ("it sends less", |random, of| {
            member(of).payload.input.0 -= 1 + random.below(8) as i64;
            true
        }),
    ];
    let old = read(&mixed());
    let new = doubled(&old, &["a.comm", "c.comm"]).unwrap();
    all_are_found(damages, [(old, new)].iter(), 1);
}
