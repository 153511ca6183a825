//! `halflap timeline`: a measured step compared with its simulation.

use halflap_report::measured::{Comparison, Step, read_step};
use halflap_report::page::compared_page;
use halflap_report::{comparison_json, lanes_of, render_comparison};

use crate::answer::Answer;
use crate::args::{self, PictureArgs};
use crate::exit::Failed;
use crate::files;
use crate::kind::{self, FileKind};
use crate::pictures;
use crate::put::{Asked, put};
use crate::terminal;

pub fn run(args: &args::Timeline) -> Result<(), Failed> {
    args.pictures.check(&args.step, args.output.as_deref())?;
    let asked = Asked { output: args.output.as_deref(), json: args.json, pictures: &args.pictures };
    put(&find(args)?, &asked)
}

/// A step, measured and simulated.
pub struct Beside {
    args: args::Timeline,
    step: Step,
    found: Comparison,
}

/// Reads a step and simulates it.
pub fn find(args: &args::Timeline) -> Result<Beside, Failed> {
    let bytes = files::read(&args.step)?;
    let step = read_step(&bytes).map_err(|error| {
        Failed::in_file(args.step.name(), kind::problem(&bytes, FileKind::Step, &error))
    })?;
    let found = Comparison::of(&step);
    Ok(Beside { args: args.clone(), step, found })
}

impl Answer for Beside {
    fn json(&self) -> Result<String, Failed> {
        Ok(format!("{:#}\n", comparison_json(&self.step, &self.found)))
    }

    fn text(&self) -> Result<String, Failed> {
        Ok(render_comparison(&self.step, &self.found, self.args.top, &terminal::style()))
    }

    fn draw(&self, pictures: &PictureArgs) -> Result<(), Failed> {
        if !pictures.any() {
            return Ok(());
        }
        let Beside { args, step, found } = self;
        let lanes = lanes_of(step, found);
        let title = pictures::title(&args.step);
        pictures.draw_ran(&lanes, || compared_page(&title, step, found, &lanes))
    }
}
