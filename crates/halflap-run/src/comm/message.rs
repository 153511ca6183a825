//! Messages between two ranks: a `send` and a `recv` on the same channel.

use halflap_hlo::ids::InstrId;
use halflap_hlo::{Module, Opcode};

use crate::kernel::{ArrayType, Gap, Unsupported};

/// Which half of a message an instruction is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum MessageEnd {
    Send,
    Recv,
}

impl MessageEnd {
    /// The half that belongs to it.
    pub(crate) fn other(self) -> MessageEnd {
        match self {
            MessageEnd::Send => MessageEnd::Recv,
            MessageEnd::Recv => MessageEnd::Send,
        }
    }

    /// By HLO's name.
    pub fn name(self) -> &'static str {
        match self {
            MessageEnd::Send => "send",
            MessageEnd::Recv => "recv",
        }
    }
}

/// Messages of one rank to another on a channel, which arrive in the order in which they are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct MessageKey {
    pub(crate) channel: i64,
    pub(crate) from: usize,
    pub(crate) to: usize,
}

/// A send or a recv, the same on all ranks.
#[derive(Clone, Debug)]
pub struct MessageSpec {
    /// Which of them.
    pub end: MessageEnd,
    /// What both have in common.
    pub channel: i64,
    /// The sources and targets.
    pub pairs: Vec<(u32, u32)>,
    /// What is sent.
    pub(crate) arrays: Vec<ArrayType>,
}

impl MessageSpec {
    /// Reads an instruction that is one half of a message, with the types of what it carries.
    pub(crate) fn of(
        module: &Module,
        instr: InstrId,
        arrays: Vec<ArrayType>,
    ) -> Result<MessageSpec, Unsupported> {
        let end = match module.instruction(instr).opcode {
            Opcode::Send => MessageEnd::Send,
            _ => MessageEnd::Recv,
        };
        let is_host = module.attribute(instr, "is_host_transfer") == Some("true");
        let pairs = module.message_pairs(instr).filter(|_| !is_host);
        let pairs =
            pairs.ok_or_else(|| Unsupported::new(module, instr, Gap::NoPairs { is_host }))?;
        let channel = module.numbers(instr, "channel_id").first().copied().unwrap_or(0);
        Ok(MessageSpec { end, channel, pairs, arrays })
    }

    /// The ranks that a rank sends to, or receives from.
    pub fn peers(&self, rank: usize) -> impl Iterator<Item = usize> {
        let peer = move |&(from, to): &(u32, u32)| {
            let (own, other) = match self.end {
                MessageEnd::Send => (from, to),
                MessageEnd::Recv => (to, from),
            };
            (own as usize == rank).then_some(other as usize)
        };
        self.pairs.iter().filter_map(peer)
    }

    /// The messages of a rank: to all ranks that it sends to, or from the one that it receives
    /// from.
    pub(crate) fn keys(&self, rank: usize) -> impl Iterator<Item = MessageKey> {
        self.peers(rank).map(move |peer| match self.end {
            MessageEnd::Send => MessageKey { channel: self.channel, from: rank, to: peer },
            MessageEnd::Recv => MessageKey { channel: self.channel, from: peer, to: rank },
        })
    }

    /// How much is sent.
    pub(crate) fn bytes(&self) -> usize {
        self.arrays.iter().map(ArrayType::bytes).sum()
    }

    /// What a rank does in it, for display: `sends to rank 1 on channel 3`.
    pub fn describe(&self, rank: usize) -> String {
        let peers: Vec<String> = self.peers(rank).map(|peer| peer.to_string()).collect();
        let does = match self.end {
            MessageEnd::Send => "sends to",
            MessageEnd::Recv => "gets from",
        };
        let word = if peers.len() == 1 { "rank" } else { "ranks" };
        format!("{does} {word} {} on channel {}", peers.join(", "), self.channel)
    }
}
