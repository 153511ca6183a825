//! Random sets of collectives of random programs, merged.

use halflap::collective::{CollectiveKind, Dtype, Payload, Reduction};
use halflap::cost::Costs;
use halflap::export::write_graph;
use halflap::graph::Graph;
use halflap::ids::{GroupId, Id, OpId};
use halflap::import::read_graph;
use halflap::origin::Origin;
use halflap::rewrite::{Recipe, RewriteError, Rewritten, apply};
use halflap::units::Bytes;
use halflap::verify_rewrite::verify_rewrite;

use crate::programs::{order_of, prices};
use crate::random;
use crate::random::Random;

/// A random program whose collectives are of several kinds, some with what they make in one piece.
fn varied(random: &mut Random) -> Graph {
    let mut parts = random::graph(random, 60).into_parts();
    let outputs: Vec<Bytes> = parts
        .ops
        .iter()
        .map(|(_, op)| op.outputs.iter().map(|&buffer| parts.buffers[buffer].size_alloc).sum())
        .collect();
    for op in parts.ops.ids() {
        let Some(collective) = &mut parts.ops[op].collective else { continue };
        collective.kind = random.pick(&[
            CollectiveKind::AllReduce,
            CollectiveKind::AllGather,
            CollectiveKind::ReduceScatter,
        ]);
        collective.reduction =
            collective.kind.reduces().then_some(Reduction::Sum).or(Some(Reduction::None));
        collective.group = GroupId::from_index(random.pick(&[0, 0, 0, 1]));
        let output = if random.chance(80) { outputs[op.index()] } else { Bytes(512) };
        let input = Bytes(random.pick(&[0, 64, 1024]));
        collective.payload = Payload { dtype: Some(Dtype::named("f32")), input, output };
    }
    Graph::new(parts).unwrap()
}

/// One to three sets that have nothing in common.
fn some_merges(random: &mut Random, graph: &Graph, collectives: &[OpId]) -> Vec<Recipe> {
    let mut left = collectives.to_vec();
    let mut recipes = Vec::new();
    for _ in 0..random.pick(&[1, 1, 2, 3]) {
        if left.len() < 2 {
            break;
        }
        let first = random.pick(&left);
        let like = |&&op: &&OpId| {
            let (a, b) = (graph.collective(first).unwrap(), graph.collective(op).unwrap());
            a.kind == b.kind && a.group == b.group && graph.kind(first) == graph.kind(op)
        };
        let members: Vec<OpId> = left
            .iter()
            .filter(like)
            .copied()
            .filter(|&op| op == first || random.chance(60))
            .collect();
        left.retain(|op| !members.contains(op));
        recipes.push(Recipe::Merge { members });
    }
    recipes
}

/// Programs and what merging random sets of their collectives gives.
pub fn merged(seeds: std::ops::Range<u64>) -> Vec<(Graph, Rewritten)> {
    let costs = Costs::default();
    let mut found = Vec::new();
    for seed in seeds {
        let mut random = Random(seed);
        let graph = varied(&mut random);
        let collectives: Vec<OpId> =
            graph.ops().filter(|&op| graph.kind(op).is_collective()).collect();
        for _ in 0..6 {
            if collectives.len() < 2 {
                break;
            }
            let recipes = some_merges(&mut random, &graph, &collectives);
            match apply(&graph, &recipes, &prices(&costs)) {
                Ok(rewritten) => found.push((graph.clone(), rewritten)),
                Err(RewriteError::Invalid(error)) => panic!("seed {seed}: {error}"),
                Err(_) => {}
            }
        }
    }
    found
}

#[test]
fn random_sets_are_proved() {
    let all = merged(0..3000);
    assert!(all.len() > 1000, "only {} merged", all.len());
    let mut parts = std::collections::BTreeSet::new();
    let mut slices = 0;
    for (index, (graph, Rewritten { graph: new, origin })) in all.iter().enumerate() {
        verify_rewrite(graph, new, origin)
            .unwrap_or_else(|violation| panic!("{index}: {violation}"));
        parts.extend(origin.ops.iter().map(|(_, source)| source.part.name()));
        slices += new.buffers().filter(|&buffer| new.view_of(buffer).is_some()).count();
        // The whole is written and read again as well, and proved by its names alone.
        let mut text = Vec::new();
        write_graph(new, &mut text).unwrap();
        let again = read_graph(&text).unwrap();
        assert_eq!(order_of(&again), order_of(new));
        verify_rewrite(graph, &again, &Origin::by_names(graph, &again))
            .unwrap_or_else(|violation| panic!("{index}, by names: {violation}"));
    }
    assert_eq!(parts.len(), 5, "{parts:?}");
    assert!(slices > 100, "only {slices} slices");
}
