//! A command's result, to be rendered in any format.

use std::collections::BTreeMap;

use halflap::evaluate::Change;
use halflap::graph::Graph;
use halflap::order::Order;
use halflap::units::{Bytes, Nanos};

use crate::args::PictureArgs;
use crate::exit::Failed;

/// Orders and their figures, for programs: nothing is rendered.
#[derive(Clone, Debug)]
pub struct Figures {
    /// The names of nodes in their order: for a graph, or for each computation examined, by its
    /// name.
    pub orders: Vec<(String, Vec<String>)>,
    /// The simulated step time.
    pub step_time: Change<Nanos>,
    /// Exposed communication.
    pub exposed: Change<Nanos>,
    /// The peak of memory.
    pub peak: Change<Bytes>,
    /// The lower bound for the last of the orders.
    pub bound: Option<Nanos>,
}

/// A command's result. Rendering it again recomputes nothing.
pub trait Answer: Send + Sync {
    /// As JSON.
    fn json(&self) -> Result<String, Failed>;
    /// As text.
    fn text(&self) -> Result<String, Failed>;
    /// The pictures that are requested.
    fn draw(&self, pictures: &PictureArgs) -> Result<(), Failed>;

    /// The orders and their figures, if it has any.
    fn figures(&self) -> Option<Figures> {
        None
    }

    /// What was changed, in labelled lines.
    fn changes(&self) -> Vec<(&'static str, String)> {
        Vec::new()
    }

    /// The step of the best order of the program before it was changed, if it may be.
    fn order_alone(&self) -> Option<Nanos> {
        None
    }

    /// Measured times by name, if this is an analysis of traces.
    fn profile(&self) -> Option<BTreeMap<String, Nanos>> {
        None
    }

    /// Computes what else is shown, while the work can be interrupted.
    fn prepare(&self) {}

    /// Whether it is the best found before the work was interrupted.
    fn is_interrupted(&self) -> bool {
        false
    }

    /// The changed program: an HLO module in its new orders, or a graph.
    fn program(&self) -> Result<String, Failed> {
        Err(no_program())
    }
}

/// The names of a graph's operations in an order.
pub fn names(graph: &Graph, order: &Order) -> Vec<String> {
    order.as_slice().iter().map(|&op| graph.name(op).to_owned()).collect()
}

/// Commands reject such a request before they start to work.
pub fn no_program() -> Failed {
    Failed::OurBug("this answer has no program to be written".to_owned())
}
