//! What one operation's place is worth: the board's answers for whoever explains an order.

use super::board::{Board, Move};
use super::program::Program;
use crate::graph::{Edges, Graph};
use crate::ids::{Id, OpId};
use crate::order::Order;
use crate::simulate::Machine;
use crate::units::{Bytes, Nanos};

/// On which side of its place other places are tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Earlier,
    Later,
}

/// What other places would bring.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Worth {
    /// The most that is saved at a place within the limit.
    pub(crate) saved: Nanos,
    /// The least that a place which saves time exceeds the limit by, if it is memory alone that bars
    /// all such places.
    pub(crate) barred_by: Option<Bytes>,
}

/// An order whose operations can be tried at other places.
pub(crate) struct Probe {
    program: Program,
    order: Vec<u32>,
    limit: i64,
}

/// So many places are tried on a side: all of them where there are no more, else evenly spread.
const PLACES: usize = 48;

impl Probe {
    /// An order within a limit.
    pub(crate) fn new(graph: &Graph, machine: &Machine, order: &Order, limit: Bytes) -> Probe {
        let program = Program::new(graph, machine, Edges::Real);
        Probe { program, order: order.as_slice().iter().map(|op| op.index() as u32).collect(), limit: limit.0 }
    }

    /// What each operation would bring at other places on that side.
    pub(crate) fn worth(&self, ops: &[(OpId, Side)]) -> Vec<Worth> {
        let mut board = Board::new(&self.program, self.order.clone());
        let now = board.step_time();
        ops.iter().map(|&(op, side)| self.worth_of(&mut board, now, (op, side))).collect()
    }

    fn worth_of(&self, board: &mut Board<'_>, now: f64, (op, side): (OpId, Side)) -> Worth {
        let from = board.place(op.index());
        let (low, high) = board.room(from);
        let reach = match side {
            Side::Earlier => from - low,
            Side::Later => high - from,
        };
        let mut worth = Worth::default();
        for index in 1..=reach.min(PLACES) {
            let distance = if reach <= PLACES { index } else { index * reach / PLACES };
            let to = if side == Side::Earlier { from - distance } else { from + distance };
            let step = Move { from, to };
            let saved = now - board.ask_time(step);
            // Less than a nanosecond is rounding.
            if saved < 1.0 {
                continue;
            }
            match board.ask_peak(step) - self.limit {
                over if over > 0 => {
                    let least = worth.barred_by.map_or(over, |least| least.0.min(over));
                    worth.barred_by = Some(Bytes(least));
                }
                _ => worth.saved = worth.saved.max(Nanos(saved)),
            }
        }
        worth
    }
}
