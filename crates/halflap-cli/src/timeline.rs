//! `halflap timeline`: a measured step compared with its simulation.

use halflap_report::measured::Comparison;
use halflap_report::measured::read_step;
use halflap_report::page::compared_page;
use halflap_report::{comparison_json, lanes_of, render_comparison};

use crate::args;
use crate::exit::Failed;
use crate::files;
use crate::pictures;
use crate::terminal;

pub fn run(args: &args::Timeline) -> Result<(), Failed> {
    args.pictures.check(&args.step, args.output.as_deref())?;
    let bytes = files::read(&args.step)?;
    let step =
        read_step(&bytes).map_err(|error| Failed::in_file(files::name_of(&args.step), error))?;
    let found = Comparison::of(&step);
    if args.pictures.any() {
        let lanes = lanes_of(&step, &found);
        let title = pictures::title(&args.step);
        args.pictures.draw_ran(&lanes, || compared_page(&title, &step, &found, &lanes))?;
    }
    let json = || format!("{:#}\n", comparison_json(&step, &found));
    if files::put_asked(args.output.as_deref(), args.json, json)? {
        return Ok(());
    }
    files::print(&render_comparison(&step, &found, args.top, &terminal::style()))
}
