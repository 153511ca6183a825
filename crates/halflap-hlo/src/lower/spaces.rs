//! Memory spaces other than the device's main memory: above all on-chip memory, `S(1)`.
//!
//! A graph has one limit, that of the device's memory. In every other memory space an order must
//! need no more than the module's own order does. Each buffer is assigned bytes of that amount,
//! unused ones or those that were freed first, and comes after all earlier users of these bytes. So
//! every order of the graph stays within the limit.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::DEVICE_MEMORY;
use crate::values::{Content, Keep};
use halflap::ids::{Id, OpId};
use halflap::order::Order;
use halflap::units::Bytes;

/// A buffer in a memory space other than the device's.
#[derive(Clone, Debug)]
pub(crate) struct Tenant {
    pub(super) space: u32,
    pub(super) size: Bytes,
    /// The node that produces it; none if it exists from the start.
    pub(super) maker: Option<u32>,
    /// The nodes that use it, ascending.
    pub(super) users: Vec<u32>,
    /// Whether it lives until the end.
    is_kept: bool,
    /// Whether the caller has it, too.
    is_shared: bool,
}

impl Tenant {
    /// A buffer of these contents, if it is one of another memory space. Scalars are hardware
    /// flags, which are assigned after all orders are known.
    pub(super) fn of(contents: &[&Content]) -> Option<Tenant> {
        let first = *contents.first()?;
        if first.space == DEVICE_MEMORY || first.size == Bytes::ZERO || first.is_single {
            return None;
        }
        let writers = contents.iter().skip(1).filter_map(|content| content.writer);
        let readers = contents.iter().flat_map(|content| content.readers.iter().copied());
        let users: BTreeSet<u32> =
            readers.chain(writers).filter(|&user| Some(user) != first.writer).collect();
        let is_callers =
            |content: &&Content| matches!(content.keep, Keep::Caller | Keep::Exchanged);
        Some(Tenant {
            space: first.space,
            size: first.size,
            maker: first.writer,
            users: users.into_iter().collect(),
            is_kept: contents.iter().any(|content| content.is_result || is_callers(content)),
            is_shared: first.writer.is_none() || contents.iter().any(|content| content.is_result),
        })
    }

    /// What a call needs while it runs.
    pub(super) fn inside(space: u32, size: Bytes, call: u32) -> Tenant {
        Tenant {
            space,
            size,
            maker: Some(call),
            users: Vec::new(),
            is_kept: false,
            is_shared: false,
        }
    }

    /// The node after which it is freed, given the nodes' places.
    fn last(&self, place: &dyn Fn(u32) -> usize) -> Option<usize> {
        let last = self.users.iter().chain(&self.maker).map(|&node| place(node)).max();
        last.filter(|_| !self.is_kept)
    }
}

/// The maximum alive in each memory space, given the nodes' places; `counted` tenants only.
fn peaks(
    tenants: &[Tenant],
    place: &dyn Fn(u32) -> usize,
    counted: impl Fn(&Tenant) -> bool,
) -> BTreeMap<u32, Bytes> {
    // For each space: the bytes allocated at a place, and those freed after it.
    let mut changes: BTreeMap<u32, BTreeMap<usize, (i64, i64)>> = BTreeMap::new();
    for tenant in tenants.iter().filter(|tenant| counted(tenant)) {
        let of_space = changes.entry(tenant.space).or_default();
        of_space.entry(tenant.maker.map_or(0, place)).or_default().0 += tenant.size.0;
        if let Some(last) = tenant.last(place) {
            of_space.entry(last).or_default().1 += tenant.size.0;
        }
    }
    let peak = |changes: &BTreeMap<usize, (i64, i64)>| {
        let (mut alive, mut most) = (0i64, 0i64);
        for (comes, goes) in changes.values() {
            alive += comes;
            most = most.max(alive);
            alive -= goes;
        }
        Bytes(most)
    };
    changes.iter().map(|(&space, changes)| (space, peak(changes))).collect()
}

/// The most that an order needs of each memory space other than the device's.
pub(super) fn peaks_of(tenants: &[Tenant], order: &Order) -> BTreeMap<u32, Bytes> {
    let mut places = vec![0; order.len()];
    order.as_slice().iter().enumerate().for_each(|(place, op)| places[op.index()] = place);
    peaks(tenants, &|node| places[OpId::from_index(node as usize).index()], |_| true)
}

/// The maximum that the module's own order needs, besides the caller's buffers.
pub(super) fn inside(tenants: &[Tenant]) -> BTreeMap<u32, Bytes> {
    peaks(tenants, &|node| node as usize, |tenant| !tenant.is_shared)
}

/// Edges that keep every order within the memory of the module's own order.
pub(super) fn bound(tenants: &[Tenant]) -> BTreeSet<(u32, u32)> {
    let own = |node: u32| node as usize;
    let mut after = BTreeSet::new();
    for (space, peak) in peaks(tenants, &own, |_| true) {
        let mut all: Vec<&Tenant> = tenants.iter().filter(|tenant| tenant.space == space).collect();
        all.sort_by_key(|tenant| tenant.maker);
        let mut freed: Vec<&Tenant> =
            all.iter().copied().filter(|tenant| tenant.last(&own).is_some()).collect();
        freed.sort_by_key(|tenant| tenant.last(&own));
        let mut freed = freed.into_iter().peekable();
        let mut bytes = Room { fresh: peak.0, used: VecDeque::new() };
        for tenant in all {
            let maker = tenant.maker.map_or(0, own);
            while let Some(free) =
                freed.next_if(|free| free.last(&own).is_some_and(|last| last < maker))
            {
                bytes.used.push_back((free.size.0, free));
            }
            bytes.take(tenant, &mut after);
        }
    }
    after
}

/// The free bytes of a memory space.
struct Room<'t> {
    /// Bytes that were never used.
    fresh: i64,
    /// Freed bytes, the earliest first, with their last owner.
    used: VecDeque<(i64, &'t Tenant)>,
}

impl Room<'_> {
    fn take(&mut self, tenant: &Tenant, after: &mut BTreeSet<(u32, u32)>) {
        let fresh = self.fresh.min(tenant.size.0);
        self.fresh -= fresh;
        let mut missing = tenant.size.0 - fresh;
        while missing > 0
            && let Some((bytes, before)) = self.used.front_mut()
        {
            let taken = missing.min(*bytes);
            missing -= taken;
            *bytes -= taken;
            if let Some(maker) = tenant.maker {
                after.extend(before.users.iter().chain(&before.maker).map(|&user| (maker, user)));
            }
            if *bytes == 0 {
                self.used.pop_front();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tenant(size: i64, maker: u32, users: &[u32]) -> Tenant {
        let (is_kept, is_shared) = (false, false);
        Tenant {
            space: 1,
            size: Bytes(size),
            maker: Some(maker),
            users: users.to_vec(),
            is_kept,
            is_shared,
        }
    }

    #[test]
    fn bytes_that_were_freed_first_are_taken_first() {
        let all = [tenant(4, 0, &[2]), tenant(4, 1, &[3]), tenant(6, 4, &[5]), tenant(2, 6, &[7])];
        assert_eq!(inside(&all), BTreeMap::from([(1, Bytes(8))]));
        // The third takes what the first had, and half of the second's; the last the other half.
        let after: Vec<(u32, u32)> = bound(&all).into_iter().collect();
        assert_eq!(after, [(4, 0), (4, 1), (4, 2), (4, 3), (6, 1), (6, 3)]);
    }
}
