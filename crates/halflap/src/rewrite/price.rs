//! The costs of a rewritten program: copies, and collectives of unmeasured sizes.

use crate::collective::Payload;
use crate::cost::{CostLine, CostLines, Costs, Device};
use crate::graph::{Collective, Graph, OpKind};
use crate::ids::OpId;
use crate::units::{Bandwidth, Bytes, Nanos};

/// What a copy from memory to memory takes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CopyCost {
    /// Bytes read and written per second, together.
    pub bandwidth: Bandwidth,
    /// The fixed time of a copy.
    pub launch: Nanos,
}

impl Default for CopyCost {
    /// An a100's.
    fn default() -> CopyCost {
        CopyCost { bandwidth: Bandwidth::gigas(2039.0), launch: Nanos::micros(2.5) }
    }
}

impl CopyCost {
    /// Those of a device.
    pub fn of(device: &Device) -> CopyCost {
        CopyCost { bandwidth: device.memory, launch: device.launch }
    }

    /// How long it takes to copy this much: it is read and written.
    pub fn time(&self, bytes: Bytes) -> Nanos {
        self.launch + Bytes(bytes.0.saturating_mul(2)) / self.bandwidth
    }
}

/// Where the times of new operations come from.
#[derive(Clone, Copy, Debug)]
pub struct Prices<'a> {
    /// Of copies.
    pub copy: CopyCost,
    /// The link model, if the graph's own collectives say too little.
    pub costs: &'a Costs,
    /// A product's ramp-up and ramp-down, while part of the device is idle, take as long as this
    /// much of its result. Each piece of a product has its own.
    pub tail: Bytes,
}

/// Half a wave of tiles of 128 by 128 elements of two bytes, on the 132 multiprocessors of an h100.
pub const TAIL: Bytes = Bytes(2 << 20);

/// A piece's part of an operation.
#[derive(Clone, Copy)]
pub(super) struct Share {
    /// Into how many pieces it is cut.
    pub(super) pieces: u32,
    /// What every piece reads again.
    pub(super) again: Bytes,
}

impl<'a> Prices<'a> {
    /// How long collectives of a kind and group take, by their size: as the graph's own say, else
    /// as the model of links does.
    pub fn line(&self, graph: &Graph, like: &Collective) -> Option<CostLine> {
        self.list(graph).line(like)
    }

    /// All prices in a graph.
    pub(crate) fn list(self, graph: &'a Graph) -> PriceList<'a> {
        let given = |op| graph.has_runtime(op).then(|| graph.runtime(op));
        PriceList { graph, prices: self, fits: CostLines::fitted(graph, given) }
    }
}

/// Prices in a graph, whose own collectives are examined once.
pub(crate) struct PriceList<'a> {
    graph: &'a Graph,
    prices: Prices<'a>,
    /// What the graph's own collectives say.
    fits: CostLines,
}

impl PriceList<'_> {
    /// How long a merged collective takes: as the graph's own collectives of that kind and group
    /// say, else as the model of links does, else as long as its members together. `None` if a
    /// member has no time.
    pub(super) fn merged(&self, members: &[OpId], merged: &Collective) -> Option<Nanos> {
        let graph = self.graph;
        if members.iter().any(|&member| !graph.has_runtime(member)) {
            return None;
        }
        let longest =
            members.iter().map(|&member| graph.runtime(member)).fold(Nanos::ZERO, Nanos::max);
        let time = match self.line(merged) {
            Some(line) => line.time(merged.bytes()).max(longest),
            None => members.iter().map(|&member| graph.runtime(member)).sum(),
        };
        Some(time.min(Nanos::LONGEST))
    }

    /// What a copy takes.
    pub(super) fn copy(&self, bytes: Bytes) -> Nanos {
        self.prices.copy.time(bytes)
    }

    /// See [`Prices::line`].
    pub(crate) fn line(&self, like: &Collective) -> Option<CostLine> {
        self.fits.of(like).or_else(|| modelled(self.graph, like, self.prices.costs))
    }

    /// How long a piece of an operation takes; `None` if the operation has no time.
    pub(super) fn piece(&self, op: OpId, share: Share) -> Option<Nanos> {
        let (graph, copy) = (self.graph, self.prices.copy);
        let time = graph.has_runtime(op).then(|| graph.runtime(op))?;
        let part = 1.0 / f64::from(share.pieces);
        let beyond = |fixed: Nanos| fixed + (time - fixed) * part;
        Some(match (graph.kind(op), graph.collective(op)) {
            (OpKind::Wait, _) => time,
            (_, Some(like)) => beyond(self.latency(like).min(time)),
            _ if graph.is_gemm_like(op) => {
                let made: Bytes = graph.outputs(op).iter().map(|&one| graph.size_alloc(one)).sum();
                let (result, tail) = (made.0 as f64, self.prices.tail.0 as f64);
                let computed = time * ((result * part + tail) / (result + tail).max(1.0));
                computed.max(share.again / copy.bandwidth)
            }
            _ => beyond(copy.launch.min(time)),
        })
    }

    /// What the smallest collective of a kind and group takes: as the graph's own say, else as
    /// those of other kinds in the group do, else as the link model does, if necessary an a100's.
    fn latency(&self, like: &Collective) -> Nanos {
        let others = || {
            let in_group = self.fits.in_group(like.group);
            in_group.map(|line| line.latency).reduce(Nanos::max)
        };
        let modelled = |costs: &Costs| Some(modelled(self.graph, like, costs)?.latency);
        let assumed =
            || modelled(&Costs { device: Device::named("a100").ok(), ..Costs::default() });
        self.fits
            .of(like)
            .map(|line| line.latency)
            .or_else(others)
            .or_else(|| modelled(self.prices.costs))
            .or_else(assumed)
            .unwrap_or(Nanos::ZERO)
    }
}

fn modelled(graph: &Graph, like: &Collective, costs: &Costs) -> Option<CostLine> {
    let ranks = &graph.groups()[like.group].ranks;
    let (input, output) = (like.payload.input, like.payload.output);
    let twice = |bytes: Bytes| Bytes(bytes.0.saturating_mul(2));
    let payload = Payload { input: twice(input), output: twice(output), ..like.payload.clone() };
    let longer = Collective { payload, ..like.clone() };
    let (once, again) = (costs.collective(like, ranks)?, costs.collective(&longer, ranks)?);
    let bytes = like.bytes().0 as f64;
    let per_byte = (again - once).0 / bytes;
    (bytes > 0.0 && per_byte > 0.0)
        .then(|| CostLine { latency: (once - Nanos(per_byte * bytes)).max(Nanos::ZERO), per_byte })
}
