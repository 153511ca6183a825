//! Graphs that are written and read again are the same.

mod common;
#[path = "common/random.rs"]
#[allow(dead_code)]
mod random;

use common::cases;
use halflap::collective::{CollectiveKind, Dtype, Reduction};
use halflap::export::write_graph;
use halflap::graph::{Graph, GroupKind, Parts};
use halflap::import::read_graph;
use halflap::units::Bytes;
use halflap_hlo::{LoweredModule, read_module};
use random::Random;

fn again(graph: &Graph) -> Graph {
    let mut text = Vec::new();
    write_graph(graph, &mut text).expect("memory takes it");
    read_graph(&text).expect("what we write can be read")
}

#[track_caller]
fn same(graph: Graph, name: &str) {
    let (again, Parts { ops, buffers, groups }) = (again(&graph).into_parts(), graph.into_parts());
    assert_eq!(again.groups, groups, "{name}");
    assert_eq!(again.ops.len(), ops.len(), "{name}");
    for (id, op) in ops.iter() {
        assert_eq!(&again.ops[id], op, "{name}");
    }
    assert_eq!(again.buffers, buffers, "{name}");
}

#[test]
fn every_graph_of_the_corpus_survives() {
    let mut count = 0;
    for case in cases() {
        same(case.graph, &case.name);
        count += 1;
    }
    assert!(count > 80, "only {count} graphs");
}

#[test]
fn random_graphs_survive() {
    for seed in 0..200 {
        same(random::graph(&mut Random(seed), 60), &format!("seed {seed}"));
    }
}

/// Groups of several sets, transfers, types and reductions come from HLO modules.
#[test]
fn what_only_modules_say_survives() {
    let text = "HloModule m, num_partitions=4, is_scheduled=true\n
        add { a = bf16[] parameter(0)\n b = bf16[] parameter(1)\n ROOT s = bf16[] add(a, b) }\n
        square { a = bf16[] parameter(0)\n b = bf16[] parameter(1)\n ROOT s = bf16[] multiply(a, a) }\n
        ENTRY main { p = bf16[8] parameter(0)
          all-reduce.1 = bf16[8] all-reduce(p), channel_id=1, replica_groups=[2,2]<=[4], use_global_device_ids=true, to_apply=add
          all-reduce.2 = bf16[8] all-reduce(p), channel_id=2, replica_groups=[2,2]<=[4], use_global_device_ids=true, to_apply=square
          all-gather.3 = bf16[16] all-gather(all-reduce.1), channel_id=3, replica_groups=[2,2]<=[4], use_global_device_ids=true, dimensions={0}
          c = (bf16[16]{0:S(5)}, bf16[16], u32[]) copy-start(all-gather.3)
          d = bf16[16]{0:S(5)} copy-done(c)
          ROOT t = (bf16[16]{0:S(5)}, bf16[8]) tuple(d, all-reduce.2) }";
    let module = read_module(text.as_bytes()).expect("it is right");
    let workload = LoweredModule::of(&module).expect("it is right").workload;
    let graph = again(&workload.entry().expect("there is one").graph);
    let of = |name: &str| graph.collective(graph.find(name).unwrap()).unwrap();
    let (sum, other, gather) =
        (of("all-reduce-start.1"), of("all-reduce-start.2"), of("all-gather-start.3"));
    assert_eq!((sum.kind, sum.reduction), (CollectiveKind::AllReduce, Some(Reduction::Sum)));
    assert_eq!((other.kind, other.reduction), (CollectiveKind::AllReduce, Some(Reduction::Other)));
    assert_eq!((gather.kind, gather.reduction), (CollectiveKind::AllGather, Some(Reduction::None)));
    assert_eq!(gather.payload.dtype, Some(Dtype::named("bfloat16")));
    assert_eq!((gather.payload.input, gather.payload.output), (Bytes(16), Bytes(32)));
    assert_eq!(graph.groups()[gather.group].sets, [[0, 1], [2, 3]]);
    let host = of("c");
    assert_eq!(
        (host.kind, graph.groups()[host.group].kind),
        (CollectiveKind::HostTransfer, GroupKind::Transfer)
    );
}
