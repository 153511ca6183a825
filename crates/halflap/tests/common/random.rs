//! Random programs with the odd shapes of real ones, from a seed.

use halflap::graph::{
    BufferParts, Collective, DepKinds, Graph, GroupParts, OpKind, OpParts, Parts, Provenance,
};
use halflap::ids::{BufId, GroupId, Id, OpId};
use halflap::pass::{Pass, Settings};
use halflap::units::{Bytes, Nanos};

/// SplitMix64: small, and the same on every machine.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `end`.
    pub fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    pub fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    pub fn pick<T: Copy>(&mut self, items: &[T]) -> T {
        items[self.below(items.len())]
    }
}

/// A valid random program of up to `most` operations.
pub fn graph(random: &mut Random, most: usize) -> Graph {
    let ops = random.below(most + 1);
    let fractional = random.chance(25);
    let mut parts = Parts::default();
    for ranks in [vec![0, 1, 2, 3], vec![0, 4, 6, 7], vec![2, 3, 5, 8]] {
        let name = format!("g{}", parts.groups.len());
        parts.groups.push(GroupParts::new(name, ranks));
    }
    for _ in 0..ops {
        add_op(&mut parts, random, fractional);
    }
    add_inputs(&mut parts, random);
    Graph::new(parts).expect("made to be valid")
}

fn add_op(parts: &mut Parts, random: &mut Random, fractional: bool) {
    let op = OpId::from_index(parts.ops.len());
    let kind = match random.below(100) {
        0..20 => OpKind::AsyncCollective,
        20..36 => OpKind::Wait,
        36..40 => OpKind::SyncCollective,
        40..48 => OpKind::MultiOutput,
        _ => OpKind::Compute,
    };
    let deps = deps(parts, random, kind);
    for &(buffer, kinds) in &deps {
        if kinds.data || kinds.is_real() && random.chance(50) {
            parts.buffers[buffer].users.push(op);
        }
    }
    hold_inputs_of_waited(parts, random, (op, kind));
    let outputs = (0..random.pick(&[0, 1, 1, 1, 1, 2, 3]))
        .map(|_| add_buffer(parts, random, Some(op)))
        .collect();
    let whole = random.pick(&[0, 1, 500, 2500, 7000, 20_000, 150_000]) as f64;
    let runtime = match kind {
        OpKind::Wait | OpKind::MultiOutput => 0.0,
        _ if fractional => whole * 0.3 + 0.1,
        _ => whole,
    };
    parts.ops.push(OpParts {
        name: format!("op{}", op.index()),
        kind,
        runtime: Some(Nanos(runtime)),
        flops: None,
        bytes: None,
        gemm_like: kind == OpKind::Compute && random.chance(25),
        collective: kind.is_collective().then(|| {
            let group = GroupId::from_index(random.below(3));
            Collective::named("all_gather".to_owned(), group, 4, Bytes(1024))
        }),
        outputs,
        deps,
        fused: Vec::new(),
        provenance: Provenance::default(),
        kernel: None,
    });
}

/// A few buffers of late operations; a wait prefers what a collective made, also where it is handed
/// out, and a multi-output prefers to hand that out.
fn deps(parts: &Parts, random: &mut Random, kind: OpKind) -> Vec<(BufId, DepKinds)> {
    if parts.buffers.is_empty() {
        return Vec::new();
    }
    let count = random.pick(&[0, 1, 1, 2, 3]);
    let mut deps: Vec<(BufId, DepKinds)> = Vec::new();
    for _ in 0..count {
        let buffer = BufId::from_index(late(random, parts.buffers.len()));
        let kinds = match random.below(10) {
            0 if random.chance(50) => DepKinds { weak: true, ..DepKinds::default() },
            0 => DepKinds { issued: true, ..DepKinds::default() },
            1 | 2 => DepKinds { order: true, ..DepKinds::default() },
            3 => DepKinds { data: true, order: true, ..DepKinds::default() },
            _ => DepKinds { data: true, ..DepKinds::default() },
        };
        if deps.iter().all(|(seen, _)| *seen != buffer) {
            deps.push((buffer, kinds));
        }
    }
    let receives = matches!(kind, OpKind::Wait | OpKind::MultiOutput);
    if receives && random.chance(90) {
        add_received(parts, random, (&mut deps, DepKinds { data: true, ..DepKinds::default() }));
    } else if random.chance(15) {
        add_received(parts, random, (&mut deps, DepKinds { issued: true, ..DepKinds::default() }));
    }
    deps
}

/// One more, on what an asynchronous collective made or a multi-output handed out.
fn add_received(
    parts: &Parts,
    random: &mut Random,
    (deps, kinds): (&mut Vec<(BufId, DepKinds)>, DepKinds),
) {
    let is_comm = |&(_, buffer): &(BufId, &BufferParts)| {
        let made_by = buffer.maker.map(|maker| parts.ops[maker].kind);
        matches!(made_by, Some(OpKind::AsyncCollective | OpKind::MultiOutput))
    };
    let made: Vec<BufId> = parts.buffers.iter().filter(is_comm).map(|(id, _)| id).collect();
    if !made.is_empty() {
        let buffer = made[late(random, made.len())];
        deps.retain(|(seen, _)| *seen != buffer);
        deps.push((buffer, kinds));
    }
}

/// One of the last ten, mostly.
fn late(random: &mut Random, len: usize) -> usize {
    if random.chance(20) { random.below(len) } else { len - 1 - random.below(len.min(10)) }
}

/// What a collective reads lives until its wait: the wait is among the users. Sometimes it is not.
fn hold_inputs_of_waited(parts: &mut Parts, random: &mut Random, (op, kind): (OpId, OpKind)) {
    if kind != OpKind::Wait || random.chance(10) {
        return;
    }
    let last = parts.ops.iter().rev().find(|(_, op)| op.kind == OpKind::AsyncCollective);
    let Some((collective, _)) = last else { return };
    for (buffer, kinds) in parts.ops[collective].deps.clone() {
        if kinds.data {
            parts.buffers[buffer].users.push(op);
        }
    }
}

fn add_buffer(parts: &mut Parts, random: &mut Random, maker: Option<OpId>) -> BufId {
    let size = random.pick(&[0, 16, 256, 1024, 4096, 100_000]);
    let free = if maker.is_some() && random.chance(8) { random.pick(&[0, 1 << 20]) } else { size };
    parts.buffers.push(BufferParts {
        name: format!("buf{}", parts.buffers.len()),
        maker,
        size_alloc: Bytes(size),
        size_free: Bytes(free),
        users: Vec::new(),
        output: random.chance(5),
        view_of: None,
    })
}

fn add_inputs(parts: &mut Parts, random: &mut Random) {
    let ops = parts.ops.len();
    for _ in 0..random.below(4) {
        let input = add_buffer(parts, random, None);
        if ops > 0 {
            let users = (0..random.below(4)).map(|_| OpId::from_index(random.below(ops))).collect();
            parts.buffers[input].users = users;
        }
    }
}

/// Random settings: every one of them, often.
pub fn settings(random: &mut Random) -> Settings {
    let mut settings = Settings::default();
    for name in Settings::NAMES {
        if random.chance(50) {
            continue;
        }
        let value = match name {
            _ if name.ends_with("_mult") => random.pick(&["0.3", "1", "1.7", "2"]),
            _ if name.ends_with("_budget") => random.pick(&["0", "0.05", "0.2", "1"]),
            _ if name.ends_with("_overlap") => random.pick(&["0", "0.5", "1.7"]),
            _ if name.contains("_debug_limit") => random.pick(&["none", "none", "1", "5"]),
            _ if name.ends_with("_recompute") => "false",
            _ => random.pick(&["true", "false"]),
        };
        settings.set(name, value).expect("made to be right");
    }
    settings
}

/// One to three passes.
pub fn passes(random: &mut Random) -> Vec<Pass> {
    (0..1 + random.below(3)).map(|_| random.pick(&Pass::ALL)).collect()
}
