//! Commands for measurements: `align`, `analyze`, `timeline`.

use super::shared::{OUTPUT, PictureArgs};
use crate::place::{Input, Output};

/// How many rows tables show by default.
pub(crate) const TOP: usize = 10;

#[derive(Debug, clap::Args)]
pub struct Align {
    /// One halflap.graph/1 file for each rank, all of the same program.
    #[arg(required = true, num_args = 1..)]
    pub graphs: Vec<String>,
    /// The folder to write the aligned graphs to, under their own names.
    #[arg(short, long, value_name = "DIR", help_heading = OUTPUT)]
    pub output: String,
}

#[derive(Debug, Clone, clap::Args)]
pub struct Analyze {
    /// Traces of torch.profiler (Kineto), plain or gzipped, one for each rank; - reads standard
    /// input.
    #[arg(required = true, num_args = 1.., value_name = "TRACE")]
    pub traces: Vec<Input>,
    /// Write the analysis (halflap.analysis/1) to this file; gzipped if its name ends in .gz; - is
    /// standard output, in place of the tables.
    #[arg(short, long, value_name = "FILE", help_heading = OUTPUT)]
    pub output: Option<String>,
    /// Print the analysis (halflap.analysis/1) instead of the tables.
    #[arg(long, conflicts_with = "output", help_heading = OUTPUT)]
    pub json: bool,
    /// Write the median time of every kernel to this file, for schedule --profile.
    #[arg(long, value_name = "TIMES.json", help_heading = OUTPUT)]
    pub profile_out: Option<String>,
    /// Write a self-contained page for a browser: a timeline for each rank, and tables.
    #[arg(long, value_name = "FILE.html", help_heading = OUTPUT)]
    pub report: Option<Output>,
    /// How many ranks, collectives and kernels the tables show.
    #[arg(long, value_name = "N", default_value = "10", help_heading = OUTPUT)]
    pub top: usize,
}

#[derive(Debug, Clone, clap::Args)]
pub struct Timeline {
    /// A measured step (halflap.timeline/1), plain or gzipped; - reads standard input.
    #[arg(value_name = "STEP.json")]
    pub step: Input,
    /// Write the comparison (halflap.comparison/1) to this file; - is standard output, in place of
    /// the tables.
    #[arg(short, long, value_name = "FILE", help_heading = OUTPUT)]
    pub output: Option<String>,
    /// Print the comparison (halflap.comparison/1) instead of the tables.
    #[arg(long, conflicts_with = "output", help_heading = OUTPUT)]
    pub json: bool,
    #[command(flatten)]
    pub pictures: PictureArgs,
    /// How many operations the table shows.
    #[arg(long, value_name = "N", default_value = "10", help_heading = OUTPUT)]
    pub top: usize,
}
