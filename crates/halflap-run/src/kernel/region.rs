//! Parts of a loop in which it is known what each pad and each concatenation gives: an element of
//! an argument, or the padding. A loop that meets one is cut into such regions, each with a program
//! of its own, so that padded and concatenated arrays are never in memory.

use std::ops::Range;

use super::Buffers;
use super::loops::Body;
use super::nest::LoopDim;
use super::plan::{ArraySlot, KernelStage, parts_of};
use super::program::Register;
use super::rows::RowLoop;
use super::walk::{IndexRow, LoopWalk};

/// Some of the indices of an array.
#[derive(Clone, Debug)]
pub(super) struct LoopRegion {
    pub(super) loops: Vec<LoopDim>,
    /// Where each dimension of the array begins.
    pub(super) starts: Vec<i64>,
}

/// How a region must be cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RegionCut {
    /// A loop ends here, and another goes on.
    At { dim: usize, at: usize },
    /// Every so many iterations of a loop belong together.
    Every { dim: usize, period: usize },
}

impl LoopRegion {
    /// All indices.
    pub(super) fn whole(loops: Vec<LoopDim>, rank: usize) -> LoopRegion {
        LoopRegion { loops, starts: vec![0; rank] }
    }

    /// The regions that a cut makes of it.
    pub(super) fn cut(&self, cut: RegionCut) -> Vec<LoopRegion> {
        match cut {
            RegionCut::At { dim, at } => {
                let extent = self.loops[dim].extent;
                vec![self.some(dim, (0, at), 1), self.some(dim, (at, extent - at), 1)]
            }
            RegionCut::Every { dim, period } => {
                let extent = self.loops[dim].extent;
                let count = |first: usize| (extent - first).div_ceil(period);
                (0..period.min(extent))
                    .map(|first| self.some(dim, (first, count(first)), period))
                    .collect()
            }
        }
    }

    /// Some iterations of a loop: the first, how many, and the step from each to the next. One
    /// iteration is no loop.
    fn some(&self, dim: usize, (first, count): (usize, usize), step: usize) -> LoopRegion {
        let mut region = self.clone();
        let LoopDim { root, by, .. } = region.loops[dim];
        region.starts[root] += by * first as i64;
        region.loops[dim] = LoopDim { root, by: by * step as i64, extent: count };
        if count == 1 {
            region.loops.remove(dim);
        }
        region
    }

    /// Where its elements are in the whole array.
    pub(super) fn walk(&self, strides: &[i64]) -> LoopWalk {
        LoopWalk {
            dims: self.loops.iter().map(|dim| dim.extent).collect(),
            base: self.starts.iter().zip(strides).map(|(start, by)| start * by).sum(),
            by: self.loops.iter().map(|dim| dim.by * strides[dim.root]).collect(),
        }
    }
}

/// Which indices of a result are those of an argument: from `low` on every `step`, `count` of them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span {
    pub(super) low: i64,
    pub(super) step: i64,
    pub(super) count: i64,
}

/// What an index is along a region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum IndexSeen {
    /// Always an index of the argument: this one.
    Inside(IndexRow),
    /// Never.
    Outside,
    /// Sometimes.
    Cut(RegionCut),
    /// Sometimes, and no cut of a single loop helps.
    Mixed,
}

impl Span {
    /// Where an index lies along loops with these extents.
    pub(super) fn see(self, row: &IndexRow, extents: &[usize]) -> IndexSeen {
        let first = row.base - self.low;
        let moving: Vec<usize> = (0..extents.len()).filter(|&dim| row.by[dim] != 0).collect();
        let uneven = moving.iter().copied().find(|&dim| row.by[dim] % self.step != 0);
        if let Some(dim) = uneven {
            let period = (self.step / common(self.step, row.by[dim].abs())) as usize;
            return IndexSeen::Cut(RegionCut::Every { dim, period });
        }
        if first.rem_euclid(self.step) != 0 {
            return IndexSeen::Outside;
        }
        let base = first.div_euclid(self.step);
        let inside = IndexRow { base, by: row.by.iter().map(|by| by / self.step).collect() };
        match moving[..] {
            [dim] => self.see_along(inside, dim, extents[dim] as i64),
            _ => self.see_bounds(inside, extents),
        }
    }

    /// Where an index lies that moves along one loop.
    fn see_along(self, inside: IndexRow, dim: usize, extent: i64) -> IndexSeen {
        let (base, by) = (inside.base, inside.by[dim]);
        // The iterations from `from` up to `to` are inside.
        let (from, to) = match by > 0 {
            true => (div_up(-base, by), div_up(self.count - base, by)),
            false => ((base - self.count).div_euclid(-by) + 1, base.div_euclid(-by) + 1),
        };
        let (from, to) = (from.clamp(0, extent), to.clamp(0, extent));
        match () {
            () if from >= to => IndexSeen::Outside,
            () if from > 0 => IndexSeen::Cut(RegionCut::At { dim, at: from as usize }),
            () if to < extent => IndexSeen::Cut(RegionCut::At { dim, at: to as usize }),
            () => IndexSeen::Inside(inside),
        }
    }

    /// Where an index lies that moves along several loops, or none.
    fn see_bounds(self, inside: IndexRow, extents: &[usize]) -> IndexSeen {
        let (mut least, mut most) = (inside.base, inside.base);
        for (&by, &extent) in inside.by.iter().zip(extents) {
            let last = by * (extent as i64 - 1);
            (least, most) = (least + last.min(0), most + last.max(0));
        }
        match () {
            () if least >= 0 && most < self.count => IndexSeen::Inside(inside),
            () if most < 0 || least >= self.count => IndexSeen::Outside,
            () => IndexSeen::Mixed,
        }
    }
}

/// The largest number that divides both.
fn common(a: i64, b: i64) -> i64 {
    if b == 0 { a } else { common(b, a % b) }
}

/// The quotient by a positive number, rounded up.
fn div_up(a: i64, by: i64) -> i64 {
    -(-a).div_euclid(by)
}

/// The loop of a region.
pub(super) enum RegionBody {
    Blocks(RegionBlocks),
    Rows(RowLoop),
}

/// A region that is computed block by block.
pub(super) struct RegionBlocks {
    pub(super) body: Body,
    /// Where its elements go.
    pub(super) to: LoopWalk,
    pub(super) out: Register,
}

/// Computes an array region by region.
pub(super) struct RegionLoops {
    pub(super) bodies: Vec<RegionBody>,
    /// Where the result is written, and how large its elements are.
    pub(super) to: (ArraySlot, usize),
}

impl RegionBody {
    /// How many rows or blocks it has.
    fn pieces(&self) -> usize {
        match self {
            RegionBody::Blocks(blocks) => blocks.body.blocks(),
            RegionBody::Rows(rows) => rows.count(),
        }
    }

    /// How many elements a row or a block has.
    fn piece(&self) -> usize {
        match self {
            RegionBody::Blocks(blocks) => blocks.body.block,
            RegionBody::Rows(rows) => rows.len(),
        }
    }

    fn total(&self) -> usize {
        match self {
            RegionBody::Blocks(blocks) => blocks.body.total,
            RegionBody::Rows(rows) => rows.count() * rows.len(),
        }
    }

    fn local_bytes(&self) -> usize {
        match self {
            RegionBody::Blocks(blocks) => blocks.body.local_bytes(),
            RegionBody::Rows(rows) => rows.local_bytes(),
        }
    }
}

impl RegionBlocks {
    /// # Safety
    /// As for [`KernelStage::run`]; `to` is the whole array, with elements of this size.
    unsafe fn run(&self, buffers: &Buffers<'_>, (to, size): (*mut u8, usize), own: Range<usize>) {
        let body = &self.body;
        // SAFETY: the caller's promise, passed on; a register is written, and its elements are then
        // those of the region, which no other thread writes.
        unsafe {
            let table = body.prepare(buffers);
            for number in own {
                let start = number * body.block;
                let span = start..body.total.min(start + body.block);
                body.run(buffers, table, span.clone());
                self.to.write((table[self.out.0 as usize].cast_const(), to), size, span);
            }
        }
    }
}

impl RegionLoops {
    fn total(&self) -> usize {
        self.bodies.iter().map(RegionBody::total).sum()
    }
}

impl KernelStage for RegionLoops {
    unsafe fn run(&self, buffers: &Buffers<'_>) {
        let share = buffers.share(self.total());
        let to = buffers.write(self.to.0);
        let mut first = 0;
        for region in &self.bodies {
            // Who has a piece's first element has the piece.
            let number = |element: usize| {
                element.saturating_sub(first).div_ceil(region.piece()).min(region.pieces())
            };
            let own = number(share.start)..number(share.end);
            if !own.is_empty() {
                // SAFETY: the caller's promise, passed on.
                unsafe {
                    match region {
                        RegionBody::Blocks(blocks) => blocks.run(buffers, (to, self.to.1), own),
                        RegionBody::Rows(rows) => rows.run(buffers, to, own),
                    }
                }
            }
            first += region.total();
        }
    }

    fn parts(&self) -> usize {
        parts_of(self.total(), self.bodies.iter().map(RegionBody::pieces).sum())
    }

    fn local_bytes(&self) -> usize {
        self.bodies.iter().map(RegionBody::local_bytes).max().unwrap_or(0)
    }

    fn elements(&self) -> Option<usize> {
        Some(self.total())
    }

    fn can_share(&self, output: usize, input: usize) -> bool {
        let [RegionBody::Rows(rows)] = &self.bodies[..] else { return false };
        self.to.0 == ArraySlot::Output(output) && rows.can_share(input)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::nest::loops_of;

    /// Every index of a region, by brute force.
    fn indices(region: &LoopRegion) -> Vec<i64> {
        let mut found = vec![region.starts[0]];
        for dim in &region.loops {
            let step = |at: &i64| (0..dim.extent as i64).map(move |i| at + i * dim.by).collect();
            found = found.iter().flat_map(|at| -> Vec<i64> { step(at) }).collect();
        }
        found
    }

    #[test]
    fn regions_are_inside_or_outside() {
        for extent in 2..14 {
            for (low, step, count) in
                [(0, 1, 5), (1, 2, 4), (0, 2, 3), (-3, 1, 4), (-4, 3, 3), (2, 5, 1), (20, 1, 1)]
            {
                let span = Span { low, step, count };
                let mut waiting = vec![LoopRegion::whole(loops_of(&[extent]), 1)];
                let mut seen = vec![0; extent];
                while let Some(region) = waiting.pop() {
                    let by = region.loops.iter().map(|dim| dim.by).collect();
                    let row = IndexRow { base: region.starts[0], by };
                    let extents: Vec<usize> = region.loops.iter().map(|dim| dim.extent).collect();
                    let place = |index: i64| {
                        let at = index - low;
                        (at % step == 0 && (0..count).contains(&(at / step))).then_some(at / step)
                    };
                    indices(&region).iter().for_each(|&index| seen[index as usize] += 1);
                    match span.see(&row, &extents) {
                        IndexSeen::Cut(cut) => {
                            indices(&region).iter().for_each(|&i| seen[i as usize] -= 1);
                            waiting.extend(region.cut(cut));
                        }
                        IndexSeen::Outside => {
                            assert!(indices(&region).iter().all(|&i| place(i).is_none()))
                        }
                        IndexSeen::Inside(inner) => {
                            let inner = LoopRegion {
                                starts: vec![inner.base],
                                loops: region
                                    .loops
                                    .iter()
                                    .zip(&inner.by)
                                    .map(|(dim, &by)| LoopDim { by, ..dim.clone() })
                                    .collect(),
                            };
                            let expected: Vec<Option<i64>> =
                                indices(&region).iter().map(|&i| place(i)).collect();
                            let given: Vec<Option<i64>> =
                                indices(&inner).into_iter().map(Some).collect();
                            assert_eq!(given, expected);
                        }
                        IndexSeen::Mixed => panic!("one loop"),
                    }
                }
                assert!(seen.iter().all(|&times| times == 1), "{extent} {span:?}");
            }
        }
    }
}
