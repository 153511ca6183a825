//! Merged collectives, damaged.

use halflap::collective::{Dtype, Reduction};
use halflap::cost::Costs;
use halflap::graph::{Collective, DepKinds, Graph, OpKind, OpParts, Parts};
use halflap::ids::{BufId, GroupId, Id, OpId};
use halflap::origin::{Origin, Part, Source};
use halflap::rewrite::{Recipe, Rewritten, rewrite};
use halflap::units::{Bytes, Nanos};
use halflap::verify_rewrite::{RewriteViolation, verify_rewrite};

use crate::damage::{Damage, Damaged, all_are_found};
use crate::merge_random::merged;
use crate::programs::{of_part, pair, prices, read};
use crate::random::Random;

/// A kept operation with a real dependency on another's result, and which one.
fn bound(random: &mut Random, parts: &Parts, origin: &Origin) -> Option<(OpId, usize)> {
    let is_kept = |op: &OpId| origin.ops[*op].part == Part::Kept;
    let real = |op: OpId| {
        let deps = parts.ops[op].deps.iter().enumerate();
        let real = deps.filter(|(_, (buffer, kinds))| {
            kinds.is_real() && parts.buffers[*buffer].maker.is_some()
        });
        real.map(move |(place, _)| (op, place)).collect::<Vec<_>>()
    };
    let all: Vec<(OpId, usize)> = parts.ops.ids().filter(is_kept).flat_map(real).collect();
    (!all.is_empty()).then(|| random.pick(&all))
}

fn bucket(parts: &Parts, origin: &Origin, part: Part) -> Option<BufId> {
    let op = of_part(origin, part)?;
    parts.ops[op].outputs.first().copied()
}

fn drop_dependency(random: &mut Random, damaged: &mut Damaged) -> bool {
    let Damaged { parts, origin, .. } = damaged;
    let Some((op, place)) = bound(random, parts, origin) else { return false };
    parts.ops[op].deps.remove(place);
    // Building a graph ties users of a buffer to its producer: this one must not be tied.
    let made: Vec<BufId> = parts.buffers.ids().collect();
    for buffer in made {
        let needs =
            parts.ops[op].deps.iter().any(|(needed, kinds)| *needed == buffer && kinds.data);
        if !needs {
            parts.buffers[buffer].users.retain(|&user| user != op);
        }
    }
    true
}

fn drop_input(_: &mut Random, damaged: &mut Damaged) -> bool {
    let Damaged { parts, origin, .. } = damaged;
    let Some(copy) = of_part(origin, Part::CopyIn) else { return false };
    let data = parts.ops[copy].deps.iter().position(|(_, kinds)| kinds.data);
    data.map(|place| parts.ops[copy].deps.remove(place)).is_some()
}

fn drop_bucket(_: &mut Random, damaged: &mut Damaged) -> bool {
    let Damaged { parts, origin, .. } = damaged;
    let (Some(merged), Some(bucket)) =
        (of_part(origin, Part::Merged), bucket(parts, origin, Part::CopyIn))
    else {
        return false;
    };
    parts.ops[merged].deps.retain(|(needed, _)| *needed != bucket);
    true
}

fn copy_too_early(_: &mut Random, damaged: &mut Damaged) -> bool {
    let Damaged { parts, origin, .. } = damaged;
    let Some(waited) = bucket(parts, origin, Part::Wait) else { return false };
    let copies = |copy: &OpId| origin.ops[*copy].part == Part::CopyOut;
    let waits = |copy: &OpId| parts.ops[*copy].deps.iter().any(|(needed, _)| *needed == waited);
    let Some(copy) = parts.ops.ids().find(|copy| copies(copy) && waits(copy)) else { return false };
    parts.ops[copy].deps.retain(|(needed, _)| *needed != waited);
    parts.buffers[waited].users.retain(|&user| user != copy);
    true
}

fn wrong_input_size(_: &mut Random, damaged: &mut Damaged) -> bool {
    let Damaged { parts, origin, .. } = damaged;
    let Some(bucket) = bucket(parts, origin, Part::CopyIn) else { return false };
    parts.buffers[bucket].size_alloc += Bytes(8);
    true
}

fn wrong_output_size(_: &mut Random, damaged: &mut Damaged) -> bool {
    let Damaged { parts, origin, .. } = damaged;
    let Some(bucket) = bucket(parts, origin, Part::Merged) else { return false };
    parts.buffers[bucket].size_free += Bytes(8);
    true
}

fn wrong_payload(_: &mut Random, damaged: &mut Damaged) -> bool {
    let Damaged { parts, origin, .. } = damaged;
    change_collective(parts, origin, |collective| collective.payload.input += Bytes(4))
}

fn wrong_group(_: &mut Random, damaged: &mut Damaged) -> bool {
    let Damaged { parts, origin, .. } = damaged;
    change_collective(parts, origin, |collective| collective.group = GroupId::from_index(2))
}

fn wrong_reduction(_: &mut Random, damaged: &mut Damaged) -> bool {
    let Damaged { parts, origin, .. } = damaged;
    change_collective(parts, origin, |collective| collective.reduction = Some(Reduction::Max))
}

fn change_collective(parts: &mut Parts, origin: &Origin, change: impl Fn(&mut Collective)) -> bool {
    let Some(merged) = of_part(origin, Part::Merged) else { return false };
    parts.ops[merged].collective.as_mut().map(change).is_some()
}

fn swapped_member(random: &mut Random, damaged: &mut Damaged) -> bool {
    let Damaged { before, origin, .. } = damaged;
    let Some(merged) = of_part(origin, Part::Merged) else { return false };
    let members = origin.ops[merged].of.clone();
    let others: Vec<OpId> = before
        .ops()
        .filter(|op| before.kind(*op).is_collective() && !members.contains(op))
        .collect();
    if others.is_empty() {
        return false;
    }
    let other = random.pick(&others);
    for source in origin.ops.as_mut_slice().iter_mut().filter(|source| source.of == members) {
        source.of[0] = other;
    }
    true
}

/// The old program has a path that its change does not know of.
fn member_with_a_path(_: &mut Random, damaged: &mut Damaged) -> bool {
    let Damaged { before, origin, .. } = damaged;
    let Some(merged) = of_part(origin, Part::Merged) else { return false };
    let members = origin.ops[merged].of.clone();
    let Some(&out) = before.outputs(members[0]).first() else { return false };
    let mut parts = before.clone().into_parts();
    parts.ops[members[1]].deps.retain(|(buffer, _)| *buffer != out);
    parts.ops[members[1]].deps.push((out, DepKinds { issued: true, ..DepKinds::default() }));
    match Graph::new(parts) {
        Ok(graph) => *before = graph,
        Err(_) => return false,
    }
    true
}

fn member_of_another_type(_: &mut Random, damaged: &mut Damaged) -> bool {
    let Damaged { before, origin, .. } = damaged;
    let Some(merged) = of_part(origin, Part::Merged) else { return false };
    let mut parts = before.clone().into_parts();
    if let Some(collective) = &mut parts.ops[origin.ops[merged].of[1]].collective {
        collective.payload.dtype = Some(Dtype::named("s8"));
    }
    *before = Graph::new(parts).unwrap();
    true
}

/// The last operation is left out.
fn lost_operation(_: &mut Random, damaged: &mut Damaged) -> bool {
    let Damaged { parts, origin, .. } = damaged;
    let Some(last) = parts.ops.ids().next_back() else { return false };
    if !parts.ops[last].outputs.is_empty() || origin.ops[last].part != Part::Kept {
        return false;
    }
    parts.ops = parts.ops.as_slice()[..last.index()].to_vec().into();
    origin.ops = origin.ops.as_slice()[..last.index()].to_vec().into();
    for buffer in parts.buffers.as_mut_slice() {
        buffer.users.retain(|&user| user != last);
    }
    true
}

fn claimed_twice(random: &mut Random, damaged: &mut Damaged) -> bool {
    let Damaged { parts, origin, .. } = damaged;
    let kept: Vec<OpId> = parts.ops.ids().filter(|&op| origin.ops[op].part == Part::Kept).collect();
    if kept.len() < 2 {
        return false;
    }
    let place = random.below(kept.len() - 1);
    origin.ops[kept[place]].of = origin.ops[kept[place + 1]].of.clone();
    true
}

fn invented_operation(random: &mut Random, damaged: &mut Damaged) -> bool {
    let Damaged { parts, origin, .. } = damaged;
    let Some(copy) = of_part(origin, Part::CopyIn) else { return false };
    let like = parts.ops[copy].clone();
    parts.ops.push(OpParts {
        name: "new".to_owned(),
        deps: Vec::new(),
        outputs: Vec::new(),
        ..like
    });
    let part = random.pick(&[Part::Wait, Part::CopyIn, Part::Merged, Part::CopyOut]);
    let mut of = origin.ops[copy].of.clone();
    of.truncate(if part == Part::CopyOut { 1 } else { 2 });
    origin.ops.push(Source { part, of });
    true
}

fn invented_dependency(random: &mut Random, damaged: &mut Damaged) -> bool {
    let Damaged { parts, origin, .. } = damaged;
    let is_kept = |op: &OpId| origin.ops[*op].part == Part::Kept;
    let kept: Vec<OpId> = parts.ops.ids().filter(is_kept).collect();
    if kept.is_empty() {
        return false;
    }
    let op = random.pick(&kept);
    let is_new = |buffer: &BufId| parts.ops[op].deps.iter().all(|(needed, _)| needed != buffer);
    let made = |buffer: &BufId| parts.buffers[*buffer].maker.is_some_and(|maker| maker < op);
    let Some(buffer) = parts.buffers.ids().filter(is_new).find(made) else { return false };
    parts.ops[op].deps.push((buffer, DepKinds { data: true, ..DepKinds::default() }));
    parts.buffers[buffer].users.push(op);
    true
}

fn bucket_not_held(_: &mut Random, damaged: &mut Damaged) -> bool {
    let Damaged { parts, origin, .. } = damaged;
    let (Some(merged), Some(bucket)) =
        (of_part(origin, Part::Merged), bucket(parts, origin, Part::CopyIn))
    else {
        return false;
    };
    let held = parts.buffers[bucket].users.len() > 1;
    parts.buffers[bucket].users = vec![merged];
    held
}

fn slice_without_a_bucket(_: &mut Random, damaged: &mut Damaged) -> bool {
    let Damaged { parts, .. } = damaged;
    let slice = parts.buffers.ids().find(|&buffer| parts.buffers[buffer].view_of.is_some());
    slice.map(|slice| parts.buffers[slice].view_of = None).is_some()
}

/// A buffer of its own becomes a part of another one.
fn slice_of_another(random: &mut Random, damaged: &mut Damaged) -> bool {
    let Damaged { before, parts, origin } = damaged;
    let buffers = before.buffers().filter(|&buffer| {
        let maker = parts.buffers[buffer].maker;
        let is_kept = maker.is_some_and(|maker| origin.ops[maker].part == Part::Kept);
        is_kept && parts.buffers[buffer].size_alloc > Bytes::ZERO
    });
    let buffers: Vec<BufId> = buffers.collect();
    if buffers.len() < 2 {
        return false;
    }
    let place = random.below(buffers.len() - 1);
    let part = &mut parts.buffers[buffers[place + 1]];
    (part.size_alloc, part.size_free, part.view_of) =
        (Bytes::ZERO, Bytes::ZERO, Some(buffers[place]));
    true
}

fn bucket_as_a_result(_: &mut Random, damaged: &mut Damaged) -> bool {
    let Damaged { parts, origin, .. } = damaged;
    let Some(bucket) = bucket(parts, origin, Part::CopyIn) else { return false };
    parts.buffers[bucket].output = true;
    true
}

fn wait_with_memory(_: &mut Random, damaged: &mut Damaged) -> bool {
    let Damaged { parts, origin, .. } = damaged;
    let Some(waited) = bucket(parts, origin, Part::Wait) else { return false };
    parts.buffers[waited].size_alloc = Bytes(64);
    true
}

fn buffer_of_another_size(random: &mut Random, damaged: &mut Damaged) -> bool {
    let Damaged { before, parts, .. } = damaged;
    let old = before.buffers().len();
    if old == 0 {
        return false;
    }
    let buffer = BufId::from_index(random.below(old));
    parts.buffers[buffer].size_free += Bytes(1);
    parts.buffers[buffer].view_of.is_none()
}

fn lives_too_short(random: &mut Random, damaged: &mut Damaged) -> bool {
    let Damaged { before, parts, origin } = damaged;
    // Users that depend on nothing through the buffer: no reader, and not bound to its maker.
    let mut found = Vec::new();
    for buffer in before.buffers() {
        for &user in &parts.buffers[buffer].users {
            let reads = parts.ops[user].deps.iter().any(|(needed, _)| *needed == buffer);
            if !reads && origin.ops[user].part == Part::Kept {
                found.push((buffer, user));
            }
        }
    }
    if found.is_empty() {
        return false;
    }
    let (buffer, user) = random.pick(&found);
    parts.buffers[buffer].users.retain(|&other| other != user);
    true
}

fn result_or_not(random: &mut Random, damaged: &mut Damaged) -> bool {
    let Damaged { before, parts, .. } = damaged;
    let old = before.buffers().len();
    if old == 0 {
        return false;
    }
    let buffer = BufId::from_index(random.below(old));
    parts.buffers[buffer].output = !parts.buffers[buffer].output;
    true
}

fn another_time(random: &mut Random, damaged: &mut Damaged) -> bool {
    let Damaged { parts, origin, .. } = damaged;
    let is_kept =
        |op: &OpId| origin.ops[*op].part == Part::Kept && parts.ops[*op].kind == OpKind::Compute;
    let kept: Vec<OpId> = parts.ops.ids().filter(is_kept).collect();
    if kept.is_empty() {
        return false;
    }
    parts.ops[random.pick(&kept)].runtime = Some(Nanos(1e6 + 0.5));
    true
}

#[test]
fn every_damage_is_found() {
    let damages: [(&str, Damage); 25] = [
        ("a dependency dropped", drop_dependency),
        ("an input not copied", drop_input),
        ("the bucket not sent", drop_bucket),
        ("a copy before the wait", copy_too_early),
        ("a bucket too large for what goes in", wrong_input_size),
        ("a bucket that is freed as another size", wrong_output_size),
        ("another payload", wrong_payload),
        ("another group", wrong_group),
        ("another reduction", wrong_reduction),
        ("a swapped member", swapped_member),
        ("a member with a path", member_with_a_path),
        ("a member of another type", member_of_another_type),
        ("an operation lost", lost_operation),
        ("an operation claimed twice", claimed_twice),
        ("an operation invented", invented_operation),
        ("a dependency invented", invented_dependency),
        ("a bucket that is not held", bucket_not_held),
        ("a slice without a bucket", slice_without_a_bucket),
        ("a buffer that became a slice", slice_of_another),
        ("a bucket that is a result", bucket_as_a_result),
        ("a wait that takes memory", wait_with_memory),
        ("a buffer of another size", buffer_of_another_size),
        ("a buffer that dies early", lives_too_short),
        ("a result that is none", result_or_not),
        ("another time", another_time),
    ];
    all_are_found(&damages, merged(0..1500).iter(), 20);
}

#[test]
fn violations_say_what_is_wrong() {
    let graph = read(&pair("all_reduce", [64, 128, 32], [64, 128, 32]));
    let members = ["a.comm", "b.comm"].map(|name| graph.find(name).unwrap()).to_vec();
    let Rewritten { graph: new, origin } =
        rewrite(&graph, &[Recipe::Merge { members }], &prices(&Costs::default())).unwrap();
    let said = |change: fn(&mut Parts)| {
        let mut parts = new.clone().into_parts();
        change(&mut parts);
        verify_rewrite(&graph, &Graph::new(parts).unwrap(), &origin).unwrap_err()
    };
    let grow = |parts: &mut Parts| {
        let bucket =
            parts.buffers.ids().find(|&id| parts.buffers[id].name == "a.comm_x2.in").unwrap();
        parts.buffers[bucket].size_alloc = Bytes(200);
    };
    let expected = RewriteViolation::WrongSize {
        buffer: "a.comm_x2.in".to_owned(),
        is: Bytes(200),
        should: Bytes(192),
    };
    assert_eq!(said(grow), expected);
    let slower = |parts: &mut Parts| {
        let op = parts.ops.ids().find(|&id| parts.ops[id].name == "b.read").unwrap();
        parts.ops[op].runtime = Some(Nanos(11.0));
    };
    assert_eq!(
        said(slower),
        RewriteViolation::Changed { node: "b.read".to_owned(), what: "its run time" }
    );
}
