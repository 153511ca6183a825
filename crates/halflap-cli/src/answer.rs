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
}
