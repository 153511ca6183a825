//! What a command found, to be rendered in whichever way it is asked for.

use crate::args::PictureArgs;
use crate::exit::Failed;

/// What a command found. Nothing is worked out again to render it once more.
pub trait Answer: Send + Sync {
    /// For machines.
    fn json(&self) -> Result<String, Failed>;
    /// For people.
    fn text(&self) -> Result<String, Failed>;
    /// The pictures that are asked for.
    fn draw(&self, pictures: &PictureArgs) -> Result<(), Failed>;
}
