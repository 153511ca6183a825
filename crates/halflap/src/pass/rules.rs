//! What sliding means in each pass: the whole difference between the passes, and between torch and
//! us, as data.

use super::{IterativeSettings, Options};
use crate::graph::OpKind;
use crate::order::Direction;
use crate::overlap::Fidelity;

/// A set of kinds of operations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Kinds(u8);

impl Kinds {
    pub(super) const NONE: Kinds = Kinds(0);
    pub(super) const COMPUTE: Kinds =
        Kinds::of(OpKind::Compute).and(Kinds::of(OpKind::MultiOutput));
    pub(super) const WAIT: Kinds = Kinds::of(OpKind::Wait);
    pub(super) const ASYNC: Kinds = Kinds::of(OpKind::AsyncCollective);
    pub(super) const SYNC: Kinds = Kinds::of(OpKind::SyncCollective);
    const ALL: Kinds = Kinds::BLOCKING.and(Kinds::ASYNC);
    pub(super) const COLLECTIVES: Kinds = Kinds::ASYNC.and(Kinds::SYNC);
    /// What takes time on the compute stream.
    pub(super) const BLOCKING: Kinds = Kinds::COMPUTE.and(Kinds::WAIT).and(Kinds::SYNC);

    const fn of(kind: OpKind) -> Kinds {
        Kinds(1 << kind as u8)
    }

    pub(super) const fn and(self, other: Kinds) -> Kinds {
        Kinds(self.0 | other.0)
    }

    const fn except(self, other: Kinds) -> Kinds {
        Kinds(self.0 & !other.0)
    }

    fn only_if(self, condition: bool) -> Kinds {
        if condition { self } else { Kinds::NONE }
    }

    #[inline]
    pub(super) fn has(self, kind: OpKind) -> bool {
        self.0 & Kinds::of(kind).0 != 0
    }
}

/// How one pass slides.
#[derive(Clone, Debug, Default)]
pub(super) struct Rules {
    pub(super) direction: Direction,
    /// What only memory can stop the group at, where nothing binds it to the group; see `settled`.
    pub(super) unremarkable: Kinds,
    /// Kinds that are never passed.
    pub(super) barriers: Kinds,
    /// What a group may carry along where it depends on it.
    pub(super) carries: Kinds,
    /// Whether a group may carry matrix multiplications along.
    pub(super) carries_gemm: bool,
    /// Whether a collective may not pass a group that holds one, and is carried along if it can be.
    pub(super) gathers_collectives: bool,
    /// Whether collectives may overtake each other after all.
    pub(super) collectives_overtake: bool,
    /// Whether order-only edges stop a group.
    pub(super) order_edges_bind: bool,
    /// Stop where run times say so.
    pub(super) times: Option<TimeRules>,
    /// The fraction by which the peak may grow.
    pub(super) budget: f64,
    /// Whether last users are updated after a swap.
    pub(super) last_uses_follow: bool,
    /// Whether the group's peak is updated after a swap, or stays what it was when its members
    /// joined.
    pub(super) group_peak_follows: bool,
}

/// How run times stop a slide.
#[derive(Clone, Debug)]
pub(super) struct TimeRules {
    /// The fraction of its run time by which a collective should be hidden beyond its end.
    pub(super) extra_overlap: f64,
    /// Which carried operations lose overlap when compute leaves their side of the group.
    pub(super) anchors: Kinds,
    /// Which carried operations' run times a passed pair loses.
    pub(super) group_time: Kinds,
    /// Torch computes the exposure of other pairs wrongly when it sinks waits: see
    /// `Slider::exposed_growth`.
    pub(super) garbled: bool,
}

impl Rules {
    /// Whether one operation moves at a time.
    #[inline]
    pub(super) fn carries_nothing(&self) -> bool {
        self.carries == Kinds::NONE
    }

    /// Derives what follows from the other fields.
    fn settled(self) -> Rules {
        let remarkable = self.barriers.and(Kinds::COLLECTIVES.only_if(self.gathers_collectives));
        let unremarkable = Kinds::ALL.except(remarkable).only_if(self.times.is_none());
        Rules { unremarkable, ..self }
    }

    /// `reorder_communication_preserving_peak_memory`: collectives rise.
    pub(super) fn reorder(options: &Options) -> Rules {
        let IterativeSettings {
            use_runtime_estimations,
            unsafe_collectives_reorder,
            with_collectives,
            ..
        } = options.settings.reorder;
        let is_fixed = options.fidelity == Fidelity::Fixed;
        Rules {
            direction: Direction::Earlier,
            barriers: Kinds::COLLECTIVES.only_if(!unsafe_collectives_reorder),
            carries: Kinds::BLOCKING.and(Kinds::ASYNC.only_if(with_collectives)),
            carries_gemm: use_runtime_estimations,
            gathers_collectives: false,
            collectives_overtake: true,
            order_edges_bind: is_fixed && !unsafe_collectives_reorder,
            times: use_runtime_estimations.then_some(TimeRules {
                extra_overlap: options.settings.reorder.extra_comm_comp_overlap,
                anchors: Kinds::WAIT,
                group_time: Kinds::BLOCKING,
                garbled: false,
            }),
            budget: options.settings.reorder.peak_memory_budget,
            last_uses_follow: true,
            group_peak_follows: is_fixed,
            ..Rules::default()
        }
        .settled()
    }

    /// `sink_waits_iterative`: waits sink.
    pub(super) fn sink(options: &Options) -> Rules {
        let IterativeSettings {
            use_runtime_estimations,
            unsafe_collectives_reorder,
            with_collectives,
            ..
        } = options.settings.sink;
        let is_fixed = options.fidelity == Fidelity::Fixed;
        Rules {
            direction: Direction::Later,
            barriers: Kinds::ASYNC.only_if(!with_collectives),
            carries: Kinds::COMPUTE.and(Kinds::SYNC.only_if(use_runtime_estimations)),
            carries_gemm: use_runtime_estimations,
            gathers_collectives: true,
            collectives_overtake: unsafe_collectives_reorder,
            order_edges_bind: is_fixed && !unsafe_collectives_reorder,
            times: use_runtime_estimations.then_some(TimeRules {
                extra_overlap: options.settings.sink.extra_comm_comp_overlap,
                anchors: if is_fixed { Kinds::ASYNC } else { Kinds::COLLECTIVES },
                group_time: if is_fixed { Kinds::BLOCKING } else { Kinds::SYNC },
                garbled: !is_fixed,
            }),
            budget: options.settings.sink.peak_memory_budget,
            last_uses_follow: is_fixed,
            group_peak_follows: is_fixed,
            ..Rules::default()
        }
        .settled()
    }

    /// One half of `simple_overlap`: collectives rise, or waits sink, one at a time.
    pub(super) fn simple(direction: Direction, fidelity: Fidelity) -> Rules {
        let earlier = direction == Direction::Earlier;
        Rules {
            direction,
            barriers: if earlier { Kinds::ASYNC } else { Kinds::WAIT },
            carries: Kinds::NONE,
            carries_gemm: false,
            gathers_collectives: false,
            collectives_overtake: true,
            order_edges_bind: true,
            times: None,
            budget: 0.0,
            last_uses_follow: earlier || fidelity == Fidelity::Fixed,
            group_peak_follows: true,
            ..Rules::default()
        }
        .settled()
    }
}
