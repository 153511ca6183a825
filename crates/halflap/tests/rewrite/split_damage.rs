//! Programs cut into pieces, damaged.

use halflap::graph::{DepKinds, Graph, OpKind, OpParts, Parts};
use halflap::ids::{BufId, Id, OpId};
use halflap::origin::{Origin, Part};
use halflap::rewrite::Rewritten;
use halflap::units::{Bytes, Flops};
use halflap::verify_rewrite::{RewriteViolation, verify_rewrite};

use crate::damage::{Damage, Damaged, all_are_found};
use crate::random::Random;
use crate::split::{REGION, captured, cut, expert};

fn pieces(origin: &Origin) -> Vec<OpId> {
    let is_piece = |part: Part| matches!(part, Part::Piece { .. });
    origin.ops.iter().filter(|(_, source)| is_piece(source.part)).map(|(op, _)| op).collect()
}

fn products(parts: &Parts, origin: &Origin) -> Vec<OpId> {
    pieces(origin).into_iter().filter(|&op| parts.ops[op].gemm_like).collect()
}

/// Whether a buffer is a part of one that was cut.
fn is_apart(parts: &Parts, buffer: BufId) -> bool {
    parts.buffers[buffer].name.contains(".p")
}

/// A piece that reads a part of what was cut, and which of its dependencies that is.
fn reader(random: &mut Random, parts: &Parts, origin: &Origin) -> (OpId, usize) {
    loop {
        let op = random.pick(&pieces(origin));
        let is_part = |(buffer, kinds): &(BufId, DepKinds)| kinds.data && is_apart(parts, *buffer);
        if let Some(at) = parts.ops[op].deps.iter().position(is_part) {
            return (op, at);
        }
    }
}

fn dependency_dropped(random: &mut Random, damaged: &mut Damaged) -> bool {
    let Damaged { parts, origin, .. } = damaged;
    let (op, at) = reader(random, parts, origin);
    let (buffer, _) = parts.ops[op].deps.remove(at);
    parts.buffers[buffer].users.retain(|&user| user != op);
    true
}

fn piece_of_another(random: &mut Random, damaged: &mut Damaged) -> bool {
    let Damaged { parts, origin, .. } = damaged;
    let (op, at) = reader(random, parts, origin);
    let (buffer, kinds) = parts.ops[op].deps[at];
    let old = origin.buffers[buffer].clone();
    let other = parts.buffers.ids().find(|&other| {
        other != buffer
            && origin.buffers[other] == old
            && is_apart(parts, other)
            && parts.buffers[other].maker < Some(op)
    });
    let Some(other) = other else { return false };
    parts.ops[op].deps[at] = (other, kinds);
    parts.buffers[other].users.push(op);
    true
}

fn part_missed_by_an_outsider(random: &mut Random, damaged: &mut Damaged) -> bool {
    let Damaged { parts, origin, .. } = damaged;
    let last_part = |op: OpId| {
        let is_part = |(buffer, kinds): &(BufId, DepKinds)| kinds.data && is_apart(parts, *buffer);
        parts.ops[op].deps.iter().rposition(is_part).map(|at| (op, at))
    };
    let is_kept = |op: &OpId| origin.ops[*op].part == Part::Kept;
    let outside: Vec<_> = parts.ops.ids().filter(is_kept).filter_map(last_part).collect();
    if outside.is_empty() {
        return false;
    }
    let (op, at) = random.pick(&outside);
    parts.ops[op].deps.remove(at);
    true
}

fn number_claimed_twice(random: &mut Random, damaged: &mut Damaged) -> bool {
    let Damaged { origin, .. } = damaged;
    let op = random.pick(&pieces(origin));
    let Part::Piece { number, of } = origin.ops[op].part else { return false };
    origin.ops[op].part = Part::Piece { number: (number + 1) % of, of };
    true
}

fn more_pieces_claimed(random: &mut Random, damaged: &mut Damaged) -> bool {
    let Damaged { origin, .. } = damaged;
    let op = random.pick(&pieces(origin));
    let Part::Piece { number, of } = origin.ops[op].part else { return false };
    origin.ops[op].part = Part::Piece { number, of: of + 1 };
    true
}

fn another_share(random: &mut Random, damaged: &mut Damaged) -> bool {
    let Damaged { parts, origin, .. } = damaged;
    let sends: Vec<OpId> =
        pieces(origin).into_iter().filter(|&op| parts.ops[op].collective.is_some()).collect();
    let op = random.pick(&sends);
    let Some(collective) = &mut parts.ops[op].collective else { return false };
    collective.payload.input = Bytes(collective.payload.input.0 + 2);
    true
}

fn less_work(random: &mut Random, damaged: &mut Damaged) -> bool {
    let Damaged { parts, origin, .. } = damaged;
    let op = random.pick(&products(parts, origin));
    parts.ops[op].flops = parts.ops[op].flops.map(|flops| Flops(flops.0 / 2.0));
    true
}

fn another_size(random: &mut Random, damaged: &mut Damaged) -> bool {
    let Damaged { parts, .. } = damaged;
    let is_large = |id: &BufId| parts.buffers[*id].size_alloc > Bytes(2) && is_apart(parts, *id);
    let apart: Vec<BufId> = parts.buffers.ids().filter(is_large).collect();
    if apart.is_empty() {
        return false;
    }
    let buffer = random.pick(&apart);
    let size = Bytes(parts.buffers[buffer].size_alloc.0 - 2);
    (parts.buffers[buffer].size_alloc, parts.buffers[buffer].size_free) = (size, size);
    true
}

fn slice_of_nothing(random: &mut Random, damaged: &mut Damaged) -> bool {
    let Damaged { parts, .. } = damaged;
    let is_slice = |id: &BufId| parts.buffers[*id].view_of.is_some() && is_apart(parts, *id);
    let slices: Vec<BufId> = parts.buffers.ids().filter(is_slice).collect();
    let slice = random.pick(&slices);
    parts.buffers[slice].view_of = None;
    true
}

fn whole_not_allocated(random: &mut Random, damaged: &mut Damaged) -> bool {
    let Damaged { parts, origin, .. } = damaged;
    let issued = |op: OpId| {
        let place = parts.ops[op].deps.iter().position(|(_, kinds)| kinds.issued);
        place.map(|at| (op, at))
    };
    let writers: Vec<(OpId, usize)> = pieces(origin).into_iter().filter_map(issued).collect();
    if writers.is_empty() {
        return false;
    }
    let (op, at) = random.pick(&writers);
    let (whole, _) = parts.ops[op].deps.remove(at);
    parts.buffers[whole].users.retain(|&user| user != op);
    true
}

fn freed_too_early(random: &mut Random, damaged: &mut Damaged) -> bool {
    let Damaged { parts, origin, .. } = damaged;
    // A user under another name, which no dependency protects.
    let op = random.pick(&pieces(origin));
    let reads: Vec<_> = parts.ops[op].deps.iter().map(|(buffer, _)| *buffer).collect();
    let held = parts.buffers.ids().find(|&id| {
        parts.buffers[id].users.contains(&op)
            && !reads.contains(&id)
            && parts.buffers[id].view_of.is_none()
            && !parts.buffers.iter().any(|(part, parts)| {
                parts.view_of == Some(id) && (parts.users.contains(&op) || reads.contains(&part))
            })
    });
    let Some(held) = held else { return false };
    parts.buffers[held].users.retain(|&user| user != op);
    true
}

fn sums_over_rows(random: &mut Random, damaged: &mut Damaged) -> bool {
    let Damaged { parts, origin, .. } = &*damaged;
    let is_kernel = |op: &OpId| parts.ops[*op].kind == OpKind::Compute && !parts.ops[*op].gemm_like;
    let kernels: Vec<OpId> = pieces(origin).into_iter().filter(is_kernel).collect();
    change_both(damaged, random.pick(&kernels), |op| op.fused = vec!["cumsum".to_owned()])
}

fn batched(random: &mut Random, damaged: &mut Damaged) -> bool {
    let product = random.pick(&products(&damaged.parts, &damaged.origin));
    change_both(damaged, product, |op| op.fused = vec!["bmm".to_owned()])
}

/// Of several products that hand pieces to each other, one with more work has other rows.
fn other_rows(random: &mut Random, damaged: &mut Damaged) -> bool {
    let Damaged { parts, origin, .. } = &*damaged;
    let reads_a_piece =
        |op: &OpId| parts.ops[*op].deps.iter().any(|(buffer, _)| is_apart(parts, *buffer));
    let products: Vec<OpId> = products(parts, origin).into_iter().filter(reads_a_piece).collect();
    if products.len() < 20 {
        return false;
    }
    change_both(damaged, random.pick(&products), |op| {
        op.flops = op.flops.map(|flops| Flops(flops.0 * 3.0));
    })
}

/// Changes an operation of the old program, and all pieces of it, of which one is given.
fn change_both(damaged: &mut Damaged, piece: OpId, change: fn(&mut OpParts)) -> bool {
    let Damaged { before, parts, origin } = damaged;
    let old = origin.ops[piece].of[0];
    let mut was = before.clone().into_parts();
    change(&mut was.ops[old]);
    for (op, _) in origin.ops.iter().filter(|(_, source)| source.of == [old]) {
        change(&mut parts.ops[op]);
    }
    *before = Graph::new(was).unwrap();
    true
}

#[test]
fn every_damage_is_found() {
    let damages: [(&str, Damage); 14] = [
        ("a dependency dropped", dependency_dropped),
        ("another's piece read", piece_of_another),
        ("a part that an outsider does not wait for", part_missed_by_an_outsider),
        ("a piece that is there twice", number_claimed_twice),
        ("a piece that is not there", more_pieces_claimed),
        ("a message of another size", another_share),
        ("less work", less_work),
        ("a part of another size", another_size),
        ("a slice of nothing", slice_of_nothing),
        ("a part written before the whole is there", whole_not_allocated),
        ("a part that is freed too early", freed_too_early),
        ("a kernel that does not work row by row", sums_over_rows),
        ("a batched product", batched),
        ("a product with other rows", other_rows),
    ];
    all_are_found(&damages, captured().iter().take(2).cycle().take(16), 4);
}

#[test]
fn violations_say_what_is_wrong() {
    let graph = expert();
    let Rewritten { graph: new, mut origin } = cut(&graph, &REGION, 2).unwrap();
    let piece = new.find("up.p2").unwrap();
    origin.ops[piece].part = Part::Piece { number: 0, of: 2 };
    let said = verify_rewrite(&graph, &new, &origin).unwrap_err();
    assert_eq!(said, RewriteViolation::WrongPieces { node: "up".to_owned() });
    assert_eq!(said.to_string(), "the pieces of 'up' are not all there, or not once");
    let unknown = OpId::from_index(graph.len());
    origin.ops[piece].of = vec![unknown];
    assert!(verify_rewrite(&graph, &new, &origin).is_err());
}
