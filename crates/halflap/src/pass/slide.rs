//! The slide: the one engine of all iterative passes.
//!
//! An operation moves past its neighbours one by one. A neighbour that the group cannot pass joins
//! it, if it may; otherwise the slide ends with the [`Limit`] that says why. The decisions of pass
//! and fidelity are in [`Rules`]; here they are only applied.
//!
//! At the end where the slide started the group never grows: a rising collective stays last in its
//! group and a sinking wait first. So a passed neighbour is directly next to it, and compute adds
//! exactly its run time to the overlap. For all other neighbours the overlap is recomputed.
//!
//! A swap costs time in proportion to the group. How the neighbour relates to the group is marked
//! when an operation joins, so that an unrelated neighbour costs a few loads.

use super::limit::{Limit, NotGrouped};
use super::rules::Rules;
use super::watch::{SwapView, Watch};
use super::{PassOutcome, within_budget};
use crate::graph::{Edges, Graph, OpKind};
use crate::ids::{IdVec, OpId};
use crate::memory::{Ledger, LedgerMismatch, Quote, Swap};
use crate::order::{Block, Direction, Order};
use crate::overlap::{Hiding, Overlap};
use crate::units::{Bytes, Nanos};

/// The outcome of one slide.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Slide {
    /// The collective or wait that was slid.
    pub op: OpId,
    /// How many neighbours it passed.
    pub moves: usize,
    /// Which neighbours it carried along, in the order in which they joined.
    pub grouped_with: Vec<OpId>,
    /// The run time of its collective.
    pub comm_time: Nanos,
    /// The run time that hides it, at the end of the slide.
    pub comp_time: Nanos,
    /// What was exposed before the slide; negative where there was compute to spare.
    pub initial_exposed: Nanos,
    /// What was exposed after it.
    pub final_exposed: Nanos,
    /// Which operations hide it, at the end of the slide.
    pub overlapped: Vec<OpId>,
    /// Why it stopped.
    pub limit: Limit,
}

/// Slides operations of one order, one after the other, by rules that may change in between.
pub(super) struct Slider<'a> {
    graph: &'a Graph,
    overlap: &'a Overlap<'a>,
    rules: Rules,
    /// What the rules' budget allows.
    memory_limit: Bytes,
    ledger: Ledger,
    order: Order,
    marks: Marks,
    slides: Vec<Slide>,
    moves: usize,
}

/// The operations that move together, and what is known of them.
struct SlideGroup {
    /// The slid operation; the others joined on the side of the direction.
    slid: OpId,
    block: Block,
    joined: Vec<OpId>,
    has_collective: bool,
    /// The largest `post_alloc` of its members, as far as the rules follow it.
    peak: Bytes,
    /// What hides the slid pair; kept up to date only where the rules look at run times.
    hiding: Hiding,
    /// The other pairs of which one end is in the group and the other stays behind.
    anchors: Vec<Pair>,
    /// What a passed pair would lose.
    time: Nanos,
}

/// Communication and what hides it.
#[derive(Clone, Copy)]
struct Pair {
    comm_time: Nanos,
    comp_time: Nanos,
}

enum Verdict {
    Stop(Limit),
    Absorb,
    Swap(Quote),
}

impl<'a> Slider<'a> {
    pub(super) fn new(
        graph: &'a Graph,
        overlap: &'a Overlap<'a>,
        ledger: Ledger,
        order: Order,
    ) -> Slider<'a> {
        Slider {
            graph,
            overlap,
            rules: Rules::default(),
            memory_limit: ledger.peak_at_start(),
            ledger,
            order,
            marks: Marks::new(graph.len()),
            slides: Vec::new(),
            moves: 0,
        }
    }

    pub(super) fn finish(self) -> PassOutcome {
        PassOutcome { order: self.order, moves: self.moves, slides: self.slides }
    }

    /// Slides the `targets`, in their sequence, by the same rules.
    pub(super) fn slide_all<W: Watch>(
        &mut self,
        targets: impl Iterator<Item = OpId>,
        rules: Rules,
        watch: &mut W,
    ) -> Result<(), Box<LedgerMismatch>> {
        self.memory_limit = within_budget(self.ledger.peak_at_start(), rules.budget);
        self.rules = rules;
        for op in targets {
            let slide = self.slide(op, watch)?;
            self.moves += slide.moves;
            self.slides.push(slide);
        }
        Ok(())
    }

    /// Slides `op`, with the operations that it must carry, until something stops it.
    fn slide<W: Watch>(&mut self, op: OpId, watch: &mut W) -> Result<Slide, Box<LedgerMismatch>> {
        let mut group = self.start_group(op);
        let initial = group.hiding.clone();
        let mut moves = 0;
        let limit = loop {
            let Some(candidate) = self.order.beyond(&group.block, self.rules.direction) else {
                break Limit::ProgramEdge;
            };
            match self.judge(candidate, &mut group) {
                Verdict::Stop(limit) => break limit,
                Verdict::Absorb => self.absorb(candidate, &mut group),
                Verdict::Swap(quote) => {
                    self.swap(candidate, &mut group, quote);
                    moves += 1;
                    watch.swapped(&SwapView {
                        graph: self.graph,
                        order: &self.order,
                        ledger: &self.ledger,
                        group: &group.block,
                        candidate,
                        limit: self.memory_limit,
                        slid: self.slides.len(),
                    })?;
                }
            }
        };
        let hiding = if moves == 0 { initial.clone() } else { self.overlap.of(&self.order, op) };
        Ok(Slide {
            op,
            moves,
            grouped_with: group.joined,
            comm_time: hiding.comm_time,
            comp_time: hiding.comp_time,
            initial_exposed: initial.exposed(),
            final_exposed: hiding.exposed(),
            overlapped: self.overlap.hidden_by(&self.order, &hiding),
            limit,
        })
    }

    /// May the group pass `candidate`?
    #[inline(always)]
    fn judge(&mut self, candidate: OpId, group: &mut SlideGroup) -> Verdict {
        let bonds = self.marks.of(candidate);
        let only_memory_counts =
            bonds.is_none() && self.rules.unremarkable.has(self.graph.kind(candidate));
        if !only_memory_counts && let Some(verdict) = self.judge_bonds(candidate, group, bonds) {
            return verdict;
        }
        let place =
            SlidePlace { graph: self.graph, order: &self.order, direction: self.rules.direction };
        let swap = group.beside(candidate, place);
        debug_assert!(bonds.shares_a_free() || !self.ledger.transfers_free(&swap));
        let quote = match bonds.shares_a_free() {
            true => self.ledger.quote_sharing(&swap, group.peak),
            false => self.ledger.quote(&swap, group.peak),
        };
        if quote.peak > self.memory_limit {
            let (base, limit) = (self.ledger.peak_at_start(), self.memory_limit);
            return Verdict::Stop(Limit::PeakMemory {
                candidate,
                would_be: quote.peak,
                base,
                limit,
            });
        }
        Verdict::Swap(quote)
    }

    /// What stops the group at `candidate`, or joins them, apart from memory. The order of the
    /// checks is torch's.
    fn judge_bonds(
        &self,
        candidate: OpId,
        group: &mut SlideGroup,
        bonds: Bonds,
    ) -> Option<Verdict> {
        let (rules, kind) = (&self.rules, self.graph.kind(candidate));
        if let Some(times) = &rules.times
            && group.hiding.exposed() < group.hiding.comm_time * -times.extra_overlap
        {
            return Some(Verdict::Stop(Limit::FullyHidden));
        }
        let in_order = Some(Verdict::Stop(Limit::CollectiveOrder { with: candidate }));
        if rules.barriers.has(kind) && !(rules.carries_nothing() && bonds.is_needed()) {
            return in_order;
        }
        let gathered = rules.gathers_collectives && group.has_collective && kind.is_collective();
        if bonds.is_needed() || gathered {
            match self.not_grouped(candidate) {
                None => return Some(Verdict::Absorb),
                Some(not_grouped) if bonds.is_needed() => {
                    return Some(Verdict::Stop(Limit::DataDependency {
                        on: candidate,
                        not_grouped,
                    }));
                }
                Some(_) if !rules.collectives_overtake => return in_order,
                Some(_) => {}
            }
        }
        if rules.order_edges_bind && bonds.is_ordered() {
            return in_order;
        }
        let by = self.exposed_growth(candidate, group)?;
        Some(Verdict::Stop(Limit::ExposedTimeGrows { candidate, by }))
    }

    /// Why a group could not carry `candidate` along; `None` if it can.
    fn not_grouped(&self, candidate: OpId) -> Option<NotGrouped> {
        let (rules, kind) = (&self.rules, self.graph.kind(candidate));
        match kind {
            _ if rules.carries_nothing() => Some(NotGrouped::Never),
            _ if rules.carries.has(kind) => (self.graph.is_gemm_like(candidate)
                && !rules.carries_gemm)
                .then_some(NotGrouped::GemmLike),
            OpKind::Wait => Some(NotGrouped::Wait),
            _ => Some(NotGrouped::Collective),
        }
    }

    /// By how much exposure would grow in total if `candidate` were passed; `None` if it would not.
    /// Records what the group's pairs lose if it is passed.
    ///
    /// Two kinds of pairs can lose: one that `candidate` is the near end of loses the group's run
    /// time, those that have an end in the group lose `candidate`'s; the slid pair wins the latter.
    fn exposed_growth(&self, candidate: OpId, group: &mut SlideGroup) -> Option<Nanos> {
        let times = self.rules.times.as_ref()?;
        let kind = self.graph.kind(candidate);
        let near_end = match self.rules.direction {
            Direction::Earlier => OpKind::AsyncCollective,
            Direction::Later => OpKind::Wait,
        };
        if kind == near_end && group.time > Nanos::ZERO {
            let pair = Pair::from(&self.overlap.of(&self.order, candidate));
            let growth = pair.exposed_with(group.time) - pair.exposed_with(Nanos::ZERO);
            if growth > Nanos::ZERO {
                return Some(growth);
            }
        }
        let time = self.overlap.time(candidate);
        if kind == OpKind::AsyncCollective || time <= Nanos::ZERO || group.anchors.is_empty() {
            return None;
        }
        let slid = Pair::from(&group.hiding);
        let growth = |pair: &Pair| pair.exposed_with(time) - pair.exposed_with(Nanos::ZERO);
        let total = match times.garbled {
            false => {
                let won = slid.exposed_with(-time) - slid.exposed_with(Nanos::ZERO);
                group.anchors.iter().fold(won, |total, pair| total + growth(pair))
            }
            // Torch ignores what the slid pair gains and flips the sign of what the others lose.
            true => group
                .anchors
                .iter()
                .fold(slid.exposed_with(Nanos::ZERO), |total, pair| total - growth(pair)),
        };
        if total > Nanos::ZERO {
            return Some(total);
        }
        group.anchors.iter_mut().for_each(|pair| pair.comp_time -= time);
        None
    }

    fn start_group(&mut self, op: OpId) -> SlideGroup {
        self.marks.clear();
        self.mark_bonds(op);
        SlideGroup {
            slid: op,
            block: self.order.singleton(op),
            joined: Vec::new(),
            has_collective: self.graph.kind(op).is_collective(),
            peak: self.ledger.level(op).post_alloc,
            hiding: self.overlap.of(&self.order, op),
            anchors: Vec::new(),
            time: Nanos::ZERO,
        }
    }

    fn absorb(&mut self, candidate: OpId, group: &mut SlideGroup) {
        let kind = self.graph.kind(candidate);
        self.order.extend(&mut group.block, self.rules.direction);
        self.mark_bonds(candidate);
        group.peak = group.peak.max(self.ledger.level(candidate).post_alloc);
        group.has_collective |= kind.is_collective();
        group.joined.push(candidate);
        if let Some(times) = &self.rules.times {
            if times.anchors.has(kind) {
                group.anchors.push(Pair::from(&self.overlap.of(&self.order, candidate)));
            }
            if times.group_time.has(kind) {
                group.time += self.overlap.time(candidate);
            }
        }
    }

    #[inline(always)]
    fn swap(&mut self, candidate: OpId, group: &mut SlideGroup, quote: Quote) {
        let place =
            SlidePlace { graph: self.graph, order: &self.order, direction: self.rules.direction };
        let swap = group.beside(candidate, place);
        self.ledger.commit(&swap, quote, self.rules.last_uses_follow);
        self.order.rotate(&mut group.block, self.rules.direction);
        if self.rules.group_peak_follows {
            group.peak = quote.group_peak;
        }
        if self.rules.times.is_some() {
            self.overlap.follow(&self.order, candidate, &mut group.hiding);
        }
    }

    /// Marks the operations that `op`, now in the group, cannot pass, and those with which it
    /// shares a free.
    fn mark_bonds(&mut self, op: OpId) {
        let (graph, rules) = (self.graph, &self.rules);
        let neighbours = |edges| match rules.direction {
            Direction::Earlier => graph.preds(op, edges),
            Direction::Later => graph.succs(op, edges),
        };
        if rules.order_edges_bind {
            neighbours(Edges::All).iter().for_each(|&other| self.marks.set(other, Bonds::ORDERED));
        }
        neighbours(Edges::Real).iter().for_each(|&other| self.marks.set(other, Bonds::NEEDED));
        for &buffer in graph.uses(op) {
            let last = self.ledger.freed_by(buffer);
            match (rules.direction, last) {
                (Direction::Earlier, Some(last)) if last == op => {
                    graph
                        .users(buffer)
                        .iter()
                        .for_each(|&user| self.marks.set(user, Bonds::SHARES));
                }
                (Direction::Later, Some(last)) => self.marks.set(last, Bonds::SHARES),
                _ => {}
            }
        }
    }
}

/// Where a group slides.
struct SlidePlace<'s> {
    graph: &'s Graph,
    order: &'s Order,
    direction: Direction,
}

impl SlideGroup {
    /// The swap with the neighbour in that direction.
    #[inline(always)]
    fn beside<'s>(&'s self, candidate: OpId, place: SlidePlace<'s>) -> Swap<'s> {
        let SlidePlace { graph, order, direction } = place;
        Swap { graph, order, group: &self.block, far_end: self.slid, candidate, direction }
    }
}

impl Pair {
    /// What is exposed if `lost` no longer hides it.
    fn exposed_with(self, lost: Nanos) -> Nanos {
        (self.comm_time - self.comp_time + lost).max(Nanos::ZERO)
    }
}

impl From<&Hiding> for Pair {
    fn from(hiding: &Hiding) -> Pair {
        Pair { comm_time: hiding.comm_time, comp_time: hiding.comp_time }
    }
}

/// How an operation relates to the group; the bits of [`Marks`].
#[derive(Clone, Copy)]
struct Bonds(u32);

impl Bonds {
    const NEEDED: Bonds = Bonds(1);
    const ORDERED: Bonds = Bonds(2);
    const SHARES: Bonds = Bonds(4);

    /// It is unrelated to the group.
    #[inline]
    fn is_none(self) -> bool {
        self.0 == 0
    }

    /// A real edge joins it to the group.
    #[inline]
    fn is_needed(self) -> bool {
        self.0 & Bonds::NEEDED.0 != 0
    }

    /// An edge connects it to the group, perhaps only to keep the order of collectives.
    #[inline]
    fn is_ordered(self) -> bool {
        self.0 & Bonds::ORDERED.0 != 0
    }

    /// It and the group use the same buffer, and one of them frees it.
    #[inline]
    fn shares_a_free(self) -> bool {
        self.0 & Bonds::SHARES.0 != 0
    }
}

/// The bonds of every operation with the group of this slide. A stamp distinguishes them from those
/// of earlier slides, so that nothing has to be cleared.
struct Marks {
    stamped: IdVec<OpId, u32>,
    stamp: u32,
}

impl Marks {
    const BITS: u32 = 7;

    fn new(len: usize) -> Marks {
        Marks { stamped: IdVec::filled(0, len), stamp: 0 }
    }

    fn clear(&mut self) {
        match self.stamp.checked_add(Marks::BITS + 1) {
            Some(stamp) => self.stamp = stamp,
            None => *self = Marks::new(self.stamped.len()),
        }
    }

    #[inline]
    fn of(&self, op: OpId) -> Bonds {
        let stamped = self.stamped[op];
        Bonds(if stamped & !Marks::BITS == self.stamp { stamped & Marks::BITS } else { 0 })
    }

    #[inline]
    fn set(&mut self, op: OpId, bonds: Bonds) {
        self.stamped[op] = self.stamp | self.of(op).0 | bonds.0;
    }
}
