//! Where an answer goes.

use crate::answer::Answer;
use crate::args::PictureArgs;
use crate::exit::Failed;
use crate::files;

/// Where an answer goes.
pub struct Asked<'a> {
    pub output: Option<&'a str>,
    /// Whether JSON is printed in place of text.
    pub json: bool,
    pub pictures: &'a PictureArgs,
}

/// Writes and prints an answer.
pub fn put(answer: &dyn Answer, asked: &Asked<'_>) -> Result<(), Failed> {
    answer.draw(asked.pictures)?;
    if asked.json || asked.output.is_some() {
        let text = answer.json()?;
        if files::put_asked(asked.output, asked.json, || text)? {
            return ended(answer);
        }
    }
    files::print(&answer.text()?)?;
    ended(answer)
}

/// How a command with such an answer ends.
fn ended(answer: &dyn Answer) -> Result<(), Failed> {
    if answer.is_interrupted() { Err(Failed::Interrupted) } else { Ok(()) }
}
