//! Operations cut into pieces along their rows.
//!
//! Each member becomes as many operations as there are pieces, each on its share of the rows: piece
//! 1 of a collective travels while piece 2 is still being computed. A piece reads its own piece of
//! members' results, and everything else as a whole. If only members use a result, its pieces are
//! separate buffers; else they are slices of the whole, which the first piece allocates, and which
//! others read once all pieces are done.

use super::price::{PriceList, Share};
use super::rows::{check_cut, content};
use super::{Prices, RewriteError, Rewritten};
use crate::collective::Payload;
use crate::graph::{BufferParts, DepKinds, Graph, OpParts, Parts};
use crate::ids::{BufId, IdVec, OpId};
use crate::origin::{Origin, Part, Source};
use crate::units::{Bytes, Flops};

const ISSUED: DepKinds = DepKinds { data: false, weak: false, issued: true, order: false };

/// Members of one recipe, and into how many pieces they are cut.
pub(super) struct Cut<'a> {
    pub(super) members: &'a [OpId],
    pub(super) pieces: u32,
}

/// Cuts several sets at once; no operation may be in two of them.
pub(super) fn split(
    graph: &Graph,
    cuts: &[Cut<'_>],
    prices: &Prices<'_>,
) -> Result<Rewritten, RewriteError> {
    let mut cut_of: IdVec<OpId, Option<usize>> = IdVec::filled(None, graph.len());
    for (number, cut) in cuts.iter().enumerate() {
        if cut.pieces < 2 || cut.members.is_empty() {
            return Err(RewriteError::TooFewPieces { pieces: cut.pieces });
        }
        for &op in cut.members {
            if cut_of[op].replace(number).is_some() {
                return Err(RewriteError::Twice { member: graph.name(op).to_owned() });
            }
        }
        check_cut(graph, cut.members)?;
    }
    let pieces = cuts.iter().map(|cut| cut.pieces).collect();
    let prices = prices.list(graph);
    let mut split = Splitting { graph, prices, cut_of, pieces, images: IdVec::default() };
    let mut parts = Parts { groups: graph.groups().clone(), ..Parts::default() };
    let mut origin = Origin::default();
    split.add_buffers(&mut parts, &mut origin);
    split.add_ops(&mut parts, &mut origin)?;
    split.set_users(&mut parts, &origin);
    Ok(Rewritten { graph: Graph::new(parts)?, origin })
}

/// What became of a buffer.
#[derive(Clone, Default)]
struct Image {
    /// The buffer itself, unless it has become several.
    whole: Option<BufId>,
    /// Its pieces, if it was cut.
    pieces: Vec<BufId>,
}

impl Image {
    fn all(&self) -> impl Iterator<Item = BufId> + '_ {
        self.whole.into_iter().chain(self.pieces.iter().copied())
    }
}

/// One of the pieces of an operation.
#[derive(Clone, Copy)]
struct Piece {
    cut: usize,
    number: u32,
    of: u32,
}

impl Piece {
    /// The name of something in this piece, counted from one for display.
    fn name(self, name: &str) -> String {
        format!("{name}.p{}", self.number + 1)
    }

    /// Its share of this many bytes: together the pieces have all of them.
    fn share(self, bytes: Bytes) -> Bytes {
        let until = |number: u32| i128::from(bytes.0) * i128::from(number) / i128::from(self.of);
        Bytes((until(self.number + 1) - until(self.number)) as i64)
    }
}

struct Splitting<'a> {
    graph: &'a Graph,
    prices: PriceList<'a>,
    /// For an operation: the number of the recipe that splits it.
    cut_of: IdVec<OpId, Option<usize>>,
    /// For a recipe: the number of pieces.
    pieces: Vec<u32>,
    images: IdVec<BufId, Image>,
}

impl Splitting<'_> {
    fn pieces_of(&self, op: OpId) -> Vec<Piece> {
        let Some(cut) = self.cut_of[op] else { return Vec::new() };
        let of = self.pieces[cut];
        (0..of).map(|number| Piece { cut, number, of }).collect()
    }

    fn cut_by(&self, buffer: BufId) -> Option<usize> {
        self.graph.maker(buffer).and_then(|maker| self.cut_of[maker])
    }

    /// Whether operations that are not split with it need a buffer as a whole.
    fn is_needed_whole(&self, buffer: BufId, cut: usize) -> bool {
        let users = self.graph.users(buffer);
        self.graph.size_alloc(buffer) > Bytes::ZERO
            && (self.graph.is_output(buffer)
                || users.iter().any(|&user| self.cut_of[user] != Some(cut)))
    }

    fn add_buffers(&mut self, parts: &mut Parts, origin: &mut Origin) {
        for old in self.graph.buffers() {
            let mut image = Image::default();
            let mut add = |name: String, size: Bytes| {
                origin.buffers.push(vec![old]);
                parts.buffers.push(BufferParts::new(name, None, size))
            };
            let (name, size) = (self.graph.buffer_name(old), self.graph.size_alloc(old));
            let cut = self.cut_by(old);
            let is_whole = cut.is_none_or(|cut| self.is_needed_whole(old, cut));
            if is_whole {
                image.whole = Some(add(name.to_owned(), size));
            }
            let pieces = self.graph.maker(old).map_or_else(Vec::new, |op| self.pieces_of(op));
            for piece in pieces {
                let size = if is_whole { Bytes::ZERO } else { piece.share(size) };
                image.pieces.push(add(piece.name(name), size));
            }
            if let Some(whole) = image.whole {
                let buffer = &mut parts.buffers[whole];
                buffer.size_free = self.graph.size_free(old);
                buffer.output = self.graph.is_output(old);
                image.pieces.iter().for_each(|&piece| {
                    parts.buffers[piece].view_of = Some(whole);
                });
            }
            self.images.push(image);
        }
        for old in self.graph.buffers() {
            let of = self.graph.view_of(old).and_then(|of| self.images[of].whole);
            if let Some(whole) = self.images[old].whole.filter(|_| of.is_some()) {
                parts.buffers[whole].view_of = of;
            }
        }
    }

    fn add_ops(&self, parts: &mut Parts, origin: &mut Origin) -> Result<(), RewriteError> {
        for op in self.graph.ops() {
            let pieces = self.pieces_of(op);
            if pieces.is_empty() {
                let deps = self.needs(op, None);
                let outputs = self.graph.outputs(op).iter();
                let outputs = outputs.flat_map(|&buffer| self.images[buffer].whole).collect();
                self.add_op(parts, OpParts { deps, outputs, ..OpParts::like(self.graph, op) });
                origin.ops.push(Source { part: Part::Kept, of: vec![op] });
            }
            for piece in pieces {
                let made = self.piece_of(op, piece);
                if self.graph.find(&made.name).is_some() {
                    return Err(RewriteError::NameTaken { name: made.name });
                }
                self.add_op(parts, made);
                let part = Part::Piece { number: piece.number, of: piece.of };
                origin.ops.push(Source { part, of: vec![op] });
            }
        }
        Ok(())
    }

    fn add_op(&self, parts: &mut Parts, op: OpParts) {
        let id = parts.ops.push(op);
        for buffer in parts.ops[id].outputs.clone() {
            parts.buffers[buffer].maker = Some(id);
        }
    }

    /// What an operation, or a piece of one, needs now.
    fn needs(&self, op: OpId, piece: Option<Piece>) -> Vec<(BufId, DepKinds)> {
        let mut deps = Vec::new();
        for &(buffer, kinds) in self.graph.deps(op) {
            let image = &self.images[buffer];
            match piece.filter(|piece| self.cut_by(buffer) == Some(piece.cut)) {
                Some(piece) => deps.push((image.pieces[piece.number as usize], kinds)),
                None => deps.extend(image.all().map(|buffer| (buffer, kinds))),
            }
        }
        deps
    }

    fn piece_of(&self, op: OpId, piece: Piece) -> OpParts {
        let graph = self.graph;
        let (mut deps, mut outputs) = (self.needs(op, Some(piece)), Vec::new());
        for &buffer in graph.outputs(op) {
            let image = &self.images[buffer];
            match image.whole {
                Some(whole) if piece.number == 0 => outputs.push(whole),
                // The first piece allocates the whole.
                Some(whole) => deps.push((whole, ISSUED)),
                None => {}
            }
            outputs.push(image.pieces[piece.number as usize]);
        }
        let like = OpParts::like(graph, op);
        let collective = like.collective.map(|mut of| {
            of.payload = Payload {
                input: piece.share(of.payload.input),
                output: piece.share(of.payload.output),
                ..of.payload
            };
            of.content = None;
            of
        });
        // A product needs all of its other operand; of everything else, a piece needs its rows.
        let again = match graph.is_gemm_like(op) {
            true => self.read_whole(op, piece),
            false => Bytes::ZERO,
        };
        OpParts {
            name: piece.name(graph.name(op)),
            runtime: self.prices.piece(op, Share { pieces: piece.of, again }),
            flops: like.flops.map(|flops| Flops(flops.0 / f64::from(piece.of))),
            bytes: like.bytes.map(|bytes| piece.share(bytes) + again),
            collective,
            deps,
            outputs,
            kernel: None,
            ..like
        }
    }

    /// What every piece reads as a whole.
    fn read_whole(&self, op: OpId, piece: Piece) -> Bytes {
        let reads = self.graph.deps(op).iter().filter(|(_, kinds)| kinds.data);
        let whole = reads.filter(|(buffer, _)| self.cut_by(*buffer) != Some(piece.cut));
        whole.map(|(buffer, _)| self.graph.size_alloc(content(self.graph, *buffer))).sum()
    }

    /// Who keeps each buffer alive. Users that are cut with its maker use their own piece.
    fn set_users(&self, parts: &mut Parts, origin: &Origin) {
        let mut new: IdVec<OpId, Vec<OpId>> = IdVec::filled(Vec::new(), self.graph.len());
        for (id, source) in origin.ops.iter() {
            source.of.iter().for_each(|&op| new[op].push(id));
        }
        for old in self.graph.buffers() {
            let (image, cut) = (&self.images[old], self.cut_by(old));
            for &user in self.graph.users(old) {
                let is_with = cut.is_some() && self.cut_of[user] == cut;
                if let Some(whole) = image.whole {
                    parts.buffers[whole].users.extend(&new[user]);
                }
                for (number, &piece) in image.pieces.iter().enumerate() {
                    match is_with {
                        true => parts.buffers[piece].users.push(new[user][number]),
                        false => parts.buffers[piece].users.extend(&new[user]),
                    }
                }
            }
            // All pieces write into the whole.
            if let (Some(whole), Some(maker)) = (image.whole, self.graph.maker(old)) {
                parts.buffers[whole].users.extend(new[maker].iter().skip(1));
            }
        }
    }
}

impl OpParts {
    /// An operation as it is in a graph.
    pub(super) fn like(graph: &Graph, op: OpId) -> OpParts {
        OpParts {
            name: graph.name(op).to_owned(),
            kind: graph.kind(op),
            runtime: graph.has_runtime(op).then(|| graph.runtime(op)),
            flops: graph.flops(op),
            bytes: graph.bytes(op),
            gemm_like: graph.is_gemm_like(op),
            collective: graph.collective(op).cloned(),
            outputs: graph.outputs(op).to_vec(),
            deps: graph.deps(op).to_vec(),
            fused: graph.fused(op).to_vec(),
            provenance: graph.provenance(op).clone(),
            kernel: graph.kernel(op).map(str::to_owned),
        }
    }
}
