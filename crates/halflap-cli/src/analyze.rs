//! `halflap analyze`: what actually ran.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader, IsTerminal, Read};
use std::ops::ControlFlow;
use std::path::Path;

use flate2::bufread::MultiGzDecoder;
use halflap::units::Nanos;
use halflap_report::observe::{
    Analysis, Rank, RankTimeline, Trace, TraceError, TraceLimits, kernel_times, read_trace,
};
use halflap_report::{page, render_analysis, write_analysis};

use crate::answer::Answer;
use crate::args::{self, PictureArgs};
use crate::exit::Failed;
use crate::files;
use crate::kind::{self, FileKind};
use crate::pictures;
use crate::place::{Input, Output};
use crate::progress::Bar;
use crate::terminal;

pub fn run(args: &args::Analyze, verbose: bool) -> Result<(), Failed> {
    check_outputs(args)?;
    let wanted = Reading { draws: args.report.is_some(), verbose };
    let found = find(args, &wanted)?;
    found.draw(&PictureArgs { report: args.report.clone(), trace: None })?;
    write(args, &found.analysis)
}

/// What is kept of traces, and reported while they are read.
pub struct Reading {
    /// Whether a page may be requested: its timelines need the traces themselves.
    pub draws: bool,
    pub verbose: bool,
}

/// What ran, on all ranks.
pub struct Analyzed {
    args: args::Analyze,
    analysis: Analysis,
    timelines: Vec<RankTimeline>,
}

/// Reads traces, one after the other.
pub fn find(args: &args::Analyze, wanted: &Reading) -> Result<Analyzed, Failed> {
    let sizes = args.traces.iter().map(size).collect::<Result<Vec<u64>, Failed>>()?;
    let progress = Progress { bar: Bar::new("reading"), all: sizes.iter().sum::<u64>().max(1) };
    let mut ranks: Vec<(Rank, Option<RankTimeline>)> = Vec::with_capacity(args.traces.len());
    let mut done = 0;
    for (input, size) in args.traces.iter().zip(&sizes) {
        let trace = read(input, done, &progress)?;
        done += size;
        if wanted.verbose {
            let (processor, name) = (trace.processor.name(), input.name());
            eprintln!(
                "{name}: {} {processor} events of {} events",
                trace.slices.len(),
                trace.events
            );
        }
        // The trace is dropped before the next is read: only its results are kept.
        let rank = Rank::of(&trace, input.name());
        let timeline = wanted.draws.then(|| RankTimeline::of(&trace, &rank, page::SLICES));
        ranks.push((rank, timeline));
    }
    progress.bar.clear();
    ranks.sort_by_key(|(rank, _)| (rank.rank.is_none(), rank.rank));
    let (ranks, timelines): (Vec<Rank>, Vec<Option<RankTimeline>>) = ranks.into_iter().unzip();
    let analysis = Analysis::of(ranks);
    let timelines = timelines.into_iter().flatten().collect();
    Ok(Analyzed { args: args.clone(), analysis, timelines })
}

impl Answer for Analyzed {
    fn json(&self) -> Result<String, Failed> {
        let mut text = Vec::new();
        write_analysis(&self.analysis, &mut text)
            .map_err(|error| Failed::OurBug(error.to_string()))?;
        String::from_utf8(text).map_err(|error| Failed::OurBug(error.to_string()))
    }

    fn text(&self) -> Result<String, Failed> {
        Ok(render_analysis(&self.analysis, self.args.top, &terminal::style()))
    }

    fn draw(&self, pictures: &PictureArgs) -> Result<(), Failed> {
        let Some(to) = &pictures.report else { return Ok(()) };
        let traces = self.args.traces.iter();
        let titles: Vec<String> = traces.map(pictures::title).collect();
        let page = page::observed_page(&titles.join(", "), &self.analysis, &self.timelines);
        pictures::write_report(to, &[page])
    }

    fn profile(&self) -> Option<BTreeMap<String, Nanos>> {
        Some(kernel_times(&self.analysis).into_iter().collect())
    }
}

/// At most one output may go to standard output, and none may overwrite a trace or another output.
fn check_outputs(args: &args::Analyze) -> Result<(), Failed> {
    let outputs = [
        args.output.as_deref(),
        args.profile_out.as_deref(),
        args.report.as_ref().and_then(Output::path),
    ];
    let printed = outputs.iter().flatten().filter(|path| files::is_stdout(path)).count()
        + usize::from(args.json);
    if printed > 1 {
        return Err(Failed::BadInput("only one output can go to standard output".to_owned()));
    }
    if args.traces.iter().filter(|trace| trace.is_stdin()).count() > 1 {
        return Err(Failed::BadInput("only one trace can come from standard input".to_owned()));
    }
    outputs[2].map_or(Ok(()), pictures::refuse_stdout)?;
    for output in outputs.into_iter().flatten() {
        if args
            .traces
            .iter()
            .any(|trace| trace.path().is_some_and(|trace| files::same_file(trace, output)))
        {
            return Err(Failed::in_file(output, "is a trace that is read: write to another file"));
        }
    }
    pictures::check_outputs(None, &outputs)
}

fn write(args: &args::Analyze, analysis: &Analysis) -> Result<(), Failed> {
    let mut printed = args.json;
    if let Some(path) = &args.profile_out {
        let times = kernel_times(analysis).into_iter().map(|(name, time)| (name, time.0.into()));
        let times = serde_json::Value::Object(times.collect());
        printed |= files::put(path, &format!("{times:#}\n"))?;
    }
    let json = |out: &mut dyn io::Write| write_analysis(analysis, &mut &mut *out);
    match args.output.as_deref() {
        Some(path) if !files::is_stdout(path) => files::write(path, json)?,
        Some(_) => printed = files::print_data(json).map(|()| true)?,
        None if args.json => files::print_data(json)?,
        None => {}
    }
    if printed {
        Ok(())
    } else {
        files::print(&render_analysis(analysis, args.top, &terminal::style()))
    }
}

/// The number of bytes to read; unknown for a pipe.
fn size(input: &Input) -> Result<u64, Failed> {
    let Some(path) = input.path().filter(|path| *path != "-") else { return Ok(0) };
    let about = std::fs::metadata(path)
        .map_err(|error| Failed::in_file(path, format!("cannot be read: {error}")))?;
    if about.is_dir() {
        return Err(Failed::in_file(path, "is a folder: name the traces in it"));
    }
    Ok(about.len())
}

struct Progress {
    bar: Bar,
    all: u64,
}

/// Counts what is read and shows it.
struct Counted<'a, R> {
    source: R,
    read: u64,
    progress: &'a Progress,
}

impl<R: Read> Read for Counted<'_, R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let read = self.source.read(into)?;
        self.read += read as u64;
        match self.progress.bar.show((self.read as f64 / self.progress.all as f64).min(1.0)) {
            ControlFlow::Continue(()) => Ok(read),
            ControlFlow::Break(()) => Err(io::Error::other("stopped")),
        }
    }
}

/// The trace in a file or, for `-`, in standard input, plain or gzipped; `before` bytes of others
/// were read.
fn read(input: &Input, before: u64, progress: &Progress) -> Result<Trace, Failed> {
    let name = input.name();
    let unreadable = |error: io::Error| Failed::in_file(name, format!("cannot be read: {error}"));
    let source: Box<dyn Read> = match input {
        _ if input.is_stdin() && io::stdin().is_terminal() => {
            return Err(Failed::BadInput(
                "standard input is a terminal: pipe a trace into it, or name a file".to_owned(),
            ));
        }
        _ if input.is_stdin() => Box::new(io::stdin().lock()),
        Input::File(path) => {
            files::note_input(Path::new(path));
            Box::new(File::open(path).map_err(unreadable)?)
        }
        Input::Memory { bytes, .. } => Box::new(&**bytes),
    };
    let mut source = BufReader::with_capacity(1 << 18, Counted { source, read: before, progress });
    let start = source.fill_buf().map_err(unreadable)?.to_vec();
    let zipped = start.starts_with(&[0x1f, 0x8b]);
    let trace = match zipped {
        true => read_trace(MultiGzDecoder::new(source), TraceLimits::default()),
        false => read_trace(source, TraceLimits::default()),
    };
    trace.map_err(|error| {
        progress.bar.clear();
        match error {
            TraceError::Unreadable { after, error } if zipped => {
                let problem = format!(
                    "the gzip file is damaged or cut off ({error}, after {after} unpacked bytes)"
                );
                Failed::in_file(name, format!("{problem}; a gzip file must be whole"))
            }
            error => Failed::in_file(name, kind::problem(&start, FileKind::Trace, &error)),
        }
    })
}
