use super::*;
use crate::test_modules::{Dice, random_module};
use crate::test_orders::random_order;
use halflap::graph::Edges;

/// Runs an order on buffers that hold one content at a time: every node must find what it reads.
fn check_contents(
    module: &Module,
    computation: ComputationId,
    callees: &dyn Fn(ComputationId) -> Option<Callee>,
    order: &[OpId],
) {
    let steps = Steps::new(module, computation);
    let values = Values::find(module, computation, &steps, callees);
    let mut holds: Vec<Option<u32>> = vec![None; values.buffers as usize];
    for (index, content) in
        values.contents.iter().enumerate().filter(|(_, content)| content.writer.is_none())
    {
        holds[content.buffer as usize] = Some(index as u32);
    }
    for op in order {
        for (index, content) in values.contents.iter().enumerate() {
            // What works in place is its own reader until its end.
            let step = op.index() as u32;
            let own = |held: u32| {
                values.contents[held as usize].writer.is_some_and(|writer| {
                    steps.started_by(module, &steps.places[step as usize])
                        == Some(steps.places[writer as usize].instr)
                        && module.instruction(steps.places[writer as usize].instr).opcode
                            == Opcode::AllReduceStart
                })
            };
            let reads =
                content.readers.contains(&step) && !holds[content.buffer as usize].is_some_and(own);
            let held = holds[content.buffer as usize]
                .map(|held| module.instruction_name(values.contents[held as usize].instr));
            assert!(
                !reads || holds[content.buffer as usize] == Some(index as u32),
                "{:?} reads {} and finds {held:?}\n{}",
                module.instruction_name(steps.places[op.index()].instr),
                module.instruction_name(content.instr),
                module.text()
            );
        }
        for (index, content) in values.contents.iter().enumerate() {
            if content.writer == Some(op.index() as u32) {
                holds[content.buffer as usize] = Some(index as u32);
            }
        }
    }
    for (index, content) in values.contents.iter().enumerate() {
        assert!(
            !content.is_result || holds[content.buffer as usize] == Some(index as u32),
            "{}",
            module.text()
        );
        assert!(
            content.keep != Keep::Caller || holds[content.buffer as usize] == Some(index as u32)
        );
    }
}

#[test]
fn nothing_is_overwritten_that_is_still_read() {
    let mut shared = 0;
    for seed in 0..3000 {
        let module = random_module(seed);
        let mut dice = Dice::new(seed + 1);
        let mut known: IdVec<ComputationId, Option<Callee>> =
            IdVec::filled(None, module.computations().len());
        for computation in module.callees_first() {
            let callees = |callee: ComputationId| known[callee].clone();
            let lowered = lower(&module, computation, &callees).unwrap();
            for _ in 0..3 {
                check_contents(
                    &module,
                    computation,
                    &callees,
                    random_order(&lowered.graph, &mut dice).as_slice(),
                );
            }
            let steps = Steps::new(&module, computation);
            let values = Values::find(&module, computation, &steps, &callees);
            shared += values.contents.len() - values.buffers as usize;
            let Lowered { passed_on, has_side_effects, .. } = lowered;
            known[computation] = Some(Callee { passed_on, has_side_effects, ..Callee::default() });
        }
    }
    assert!(shared > 1000, "{shared}");
}

fn lowered(text: &str) -> (Module, Lowered) {
    let module = Module::read(text.to_owned()).unwrap_or_else(|error| panic!("{error}"));
    let lowered = lower(&module, module.entry(), &|_| Some(Callee::default())).unwrap();
    (module, lowered)
}

/// Name, size, users and whether it stays, of every buffer with a size.
fn buffers(graph: &Graph) -> Vec<(String, i64, Vec<&str>, bool)> {
    let sized = graph.buffers().filter(|&buffer| graph.size_alloc(buffer) > Bytes::ZERO);
    sized
        .map(|buffer| {
            let users = graph.users(buffer).iter().map(|&user| graph.name(user)).collect();
            (
                graph.buffer_name(buffer).to_owned(),
                graph.size_alloc(buffer).0,
                users,
                graph.is_output(buffer),
            )
        })
        .collect()
}

#[test]
fn a_synchronous_collective_is_two_nodes() {
    let (_, lowered) = lowered(
        "HloModule m, num_partitions=8
        ENTRY e { p = f32[8] parameter(0)
          n = f32[8] negate(p)
          all-gather.3 = f32[64] all-gather(n), channel_id=1, replica_groups=[1,8]<=[8], dimensions={0}, use_global_device_ids=true, metadata={op_name=\"jit(f)/g\" source_file=\"a/model.py\" source_line=42}
          ROOT r = f32[64] negate(all-gather.3) }",
    );
    let graph = &lowered.graph;
    let names: Vec<&str> = graph.ops().map(|op| graph.name(op)).collect();
    assert_eq!(names, ["n", "all-gather-start.3", "all-gather.3", "r"]);
    let start = graph.find("all-gather-start.3").unwrap();
    assert_eq!(
        (graph.kind(start), graph.source(start)),
        (OpKind::AsyncCollective, "jit(f)/g model.py:42")
    );
    let collective = graph.collective(start).unwrap();
    assert_eq!(
        (collective.op.as_str(), collective.group_size, collective.bytes()),
        ("all-gather", 8, Bytes(256))
    );
    assert_eq!(graph.groups()[collective.group].name, "{0-7}");
    assert_eq!(graph.waits_for(graph.find("all-gather.3").unwrap()), [start]);
    // What is sent lives until the end; the result is written where the gathered value was.
    assert_eq!(
        buffers(graph),
        [
            ("p".to_owned(), 32, vec!["n"], true),
            ("n".to_owned(), 32, vec!["all-gather-start.3", "all-gather.3"], false),
            ("all-gather.3".to_owned(), 256, vec!["all-gather.3", "r"], true),
        ]
    );
}

#[test]
fn donated_inputs_take_results() {
    let text = "HloModule m, input_output_alias={ {}: (0, {}, may-alias) }
        ENTRY e { p = f32[8] parameter(0)\n q = f32[8] parameter(1)
          a = f32[8] add(p, q)\n ROOT r = f32[8] subtract(p, a) }";
    let (_, donated) = lowered(text);
    let all = buffers(&donated.graph);
    assert_eq!(all[0], ("p".to_owned(), 32, vec!["a", "r"], true));
    assert_eq!((all.len(), all[2].0.as_str()), (3, "a"));
    let (_, kept) = lowered(&text.replace("{}: (0, {}, may-alias)", ""));
    // The result overwrites the sum, which has no other reader.
    let names: Vec<String> = buffers(&kept.graph).into_iter().map(|buffer| buffer.0).collect();
    assert_eq!(names, ["p", "q", "a"]);
}

#[test]
fn updates_are_in_place_and_bind_readers() {
    let text = "HloModule m
        ENTRY e { p = f32[8] parameter(0)\n n = f32[8] negate(p)\n s = f32[2] slice(n), slice={[0:2]}
          i = s32[] constant(0)\n u = f32[8] dynamic-update-slice(n, s, i)\n t = f32[2] negate(s)
          ROOT r = (f32[8], f32[2]) tuple(u, t) }";
    let (_, lowered) = lowered(text);
    let graph = &lowered.graph;
    let of = |name| graph.find(name).unwrap();
    assert!(graph.preds(of("u"), Edges::Real).contains(&of("s")));
    assert_eq!(buffers(graph).iter().filter(|buffer| buffer.1 == 32).count(), 2);
    // Read afterwards, it must be kept.
    let read = text.replace("negate(s)", "slice(n), slice={[2:4]}");
    let module = Module::read(read).unwrap();
    let graph = lower(&module, module.entry(), &|_| None).unwrap().graph;
    assert_eq!(buffers(&graph).iter().filter(|buffer| buffer.1 == 32).count(), 3);
}

#[test]
fn streams_by_groups_and_kinds() {
    let (_, lowered) = lowered(
        "HloModule m, num_partitions=4
        add { a = f32[] parameter(0)\n b = f32[] parameter(1)\n ROOT c = f32[] add(a, b) }
        wrapped { p = f32[8] parameter(0)\n ROOT r = f32[8] all-reduce(p), channel_id=3, replica_groups={{0,1},{2,3}}, use_global_device_ids=true, to_apply=add }
        ENTRY e { p = f32[8] parameter(0)
          a = f32[8] all-reduce(p), channel_id=1, replica_groups=[2,2]<=[4], use_global_device_ids=true, to_apply=add
          b = f32[8] all-reduce(p), channel_id=2, replica_groups=[2,2]<=[2,2]T(1,0), use_global_device_ids=true, to_apply=add
          c = ((f32[8]), f32[8], u32[]) async-start(p), calls=wrapped
          u = ((f32[8]), f32[8], u32[]) async-update(c)
          d = f32[8] async-done(u)
          h = (f32[8]{0:S(5)}, f32[8], u32[]) copy-start(p)
          i = f32[8]{0:S(5)} copy-done(h)
          j = ((f32[8]), f32[2]{0:S(1)}, s32[]) slice-start(p), slice={[0:2]}
          k = f32[2]{0:S(1)} slice-done(j)
          ROOT r = (f32[8], f32[8], f32[8]) tuple(a, b, d) }",
    );
    let graph = &lowered.graph;
    let streams = halflap::graph::Streams::assign(graph, halflap::graph::Assignment::SharedRanks);
    let of = |name: &str| streams.of(graph.find(name).unwrap()).unwrap();
    assert_eq!(of("a-start"), of("c"));
    let all = [of("a-start"), of("b-start"), of("h"), of("j")];
    assert!(all.iter().enumerate().all(|(index, one)| !all[..index].contains(one)), "{all:?}");
    assert_eq!(graph.collective(graph.find("h").unwrap()).unwrap().op, "host-transfer");
    assert_eq!(graph.waits_for(graph.find("d").unwrap()), [graph.find("c").unwrap()]);
    // What is in other memories does not count.
    assert!(
        buffers(graph).iter().all(|buffer| buffer.0 != "h" && buffer.0 != "j"),
        "{:?}",
        buffers(graph)
    );
}

/// After an asynchronous start, what was started may still run; a synchronous collective has ended.
#[test]
fn control_predecessors_come_first_and_only_synchronous_ones_have_ended() {
    let text = "HloModule m, num_partitions=2
        ENTRY e { p = f32[8] parameter(0)
          s = (f32[8], f32[16]) all-gather-start(p), replica_groups={{0,1}}, dimensions={0}
          a = f32[8] negate(p), control-predecessors={s}
          d = f32[16] all-gather-done(s)
          g = f32[16] all-gather(p), replica_groups={{0,1}}, dimensions={0}
          b = f32[8] negate(p), control-predecessors={g}
          ROOT r = (f32[8], f32[16], f32[16], f32[8]) tuple(a, d, g, b) }";
    let (_, lowered) = lowered(text);
    let graph = &lowered.graph;
    let of = |name| graph.find(name).unwrap();
    assert_eq!(
        (graph.preds(of("a"), Edges::Real), graph.gated_by(of("a"))),
        (&[of("s")][..], &[][..])
    );
    assert_eq!(graph.preds(of("b"), Edges::Awaited), [of("g")]);
    assert_eq!(graph.kind(of("g")), OpKind::Wait);
}
