//! The full account of an order, in time proportional to the graph.

use crate::graph::Graph;
use crate::ids::{BufId, IdVec, OpId};
use crate::order::Order;
use crate::units::Bytes;

/// What one operation does to memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Level {
    /// What it allocates.
    pub alloc: Bytes,
    /// What it frees.
    pub free: Bytes,
    /// What is alive while it runs.
    pub post_alloc: Bytes,
}

impl Level {
    /// What is alive before it.
    #[inline]
    pub fn before(self) -> Bytes {
        self.post_alloc - self.alloc
    }

    /// What is alive after it.
    #[inline]
    pub fn post_free(self) -> Bytes {
        self.post_alloc - self.free
    }

    /// By how much it changes what is alive.
    #[inline]
    pub fn delta(self) -> Bytes {
        self.alloc - self.free
    }
}

/// The memory of every operation in an order.
///
/// ```
/// use halflap::{memory::Timeline, order::Order};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let bytes = std::fs::read("../../tests/corpus/ddp_mlp_4.graph.json.gz")?;
/// let graph = halflap::import::read_graph(&bytes)?;
/// let memory = Timeline::of(&graph, &Order::of_input(&graph));
/// let highest = graph.ops().map(|op| memory.levels[op].post_alloc).max();
/// assert_eq!(highest, Some(memory.peak));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Timeline {
    /// What each operation does to memory.
    pub levels: IdVec<OpId, Level>,
    /// The operation that frees each buffer; `None` if it is never freed.
    pub freed_by: IdVec<BufId, Option<OpId>>,
    /// What is alive before the first operation: the freeable inputs.
    pub baseline: Bytes,
    /// The most that is ever alive.
    pub peak: Bytes,
}

impl Timeline {
    /// Computes the full account of an order.
    pub fn of(graph: &Graph, order: &Order) -> Timeline {
        let mut levels: IdVec<OpId, Level> = IdVec::filled(Level::default(), graph.len());
        let mut freed_by = IdVec::filled(None, graph.buffers().len());
        let mut baseline = Bytes::ZERO;
        for buffer in graph.buffers() {
            match graph.maker(buffer) {
                Some(maker) => levels[maker].alloc += graph.size_alloc(buffer),
                None => baseline += graph.size_alloc(buffer),
            }
            if let Some(last) = last_use(graph, order, buffer) {
                levels[last].free += graph.size_free(buffer);
                freed_by[buffer] = Some(last);
            }
        }
        let mut alive = baseline;
        let mut peak = if graph.is_empty() { baseline } else { Bytes::ZERO };
        for &op in order.as_slice() {
            let level = &mut levels[op];
            level.post_alloc = alive + level.alloc;
            alive = level.post_free();
            peak = peak.max(level.post_alloc);
        }
        Timeline { levels, freed_by, baseline, peak }
    }
}

/// The operation that frees a buffer: its last user, or its producer if it has none; none, if it is
/// a result of the program or an unused input.
fn last_use(graph: &Graph, order: &Order, buffer: BufId) -> Option<OpId> {
    if graph.is_output(buffer) {
        return None;
    }
    let users = graph.users(buffer).iter().copied();
    users.max_by_key(|&user| order.pos(user)).or(graph.maker(buffer))
}
