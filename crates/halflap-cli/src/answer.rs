//! A command's result, to be rendered in any format.

use crate::args::PictureArgs;
use crate::exit::Failed;

/// A command's result. Rendering it again recomputes nothing.
pub trait Answer: Send + Sync {
    /// For machines.
    fn json(&self) -> Result<String, Failed>;
    /// For people.
    fn text(&self) -> Result<String, Failed>;
    /// The pictures that are requested.
    fn draw(&self, pictures: &PictureArgs) -> Result<(), Failed>;

    /// The program again, as it was changed: an HLO module in its new orders, or a graph.
    fn program(&self) -> Result<String, Failed> {
        Err(no_program())
    }
}

/// Commands refuse to write a program that they do not change before they look for an answer.
pub fn no_program() -> Failed {
    Failed::OurBug("this answer has no program to be written".to_owned())
}
