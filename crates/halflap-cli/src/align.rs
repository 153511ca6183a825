//! `halflap align`: one set of run times for all ranks.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use halflap::align::{median_runtimes, with_runtimes};
use halflap::graph::Graph;
use halflap::import::unzip;
use halflap_report::count;

use crate::args;
use crate::exit::Failed;
use crate::files;
use crate::place::Input;

pub fn run(args: &args::Align) -> Result<(), Failed> {
    let names = file_names(&args.graphs)?;
    let mut texts = Vec::with_capacity(names.len());
    let mut graphs: Vec<Graph> = Vec::with_capacity(names.len());
    for path in &args.graphs {
        let input = Input::from(path.as_str());
        let bytes = files::read(&input)?;
        graphs.push(files::parse_graph(&input, &bytes)?);
        texts.push(unzip(&bytes).map_err(|error| Failed::in_file(path, error))?.into_owned());
    }
    let runtimes = median_runtimes(&graphs).map_err(|difference| {
        let (first, other) = (&args.graphs[0], &args.graphs[difference.rank]);
        Failed::in_file(other, format!("differs from {first}: {difference}"))
    })?;
    fs::create_dir_all(&args.output)
        .map_err(|error| Failed::in_file(&args.output, format!("cannot be made: {error}")))?;
    for (name, text) in names.iter().zip(&texts) {
        let path = Path::new(&args.output).join(name);
        let aligned =
            with_runtimes(text, &runtimes).map_err(|error| Failed::OurBug(error.to_string()))?;
        files::write(&path.to_string_lossy(), |out| out.write_all(&aligned))?;
    }
    let changed = |graph: &Graph| {
        graph
            .ops()
            .filter(|&op| graph.has_runtime(op).then(|| graph.runtime(op)) != runtimes[op])
            .count()
    };
    let most = graphs.iter().map(changed).max().unwrap_or(0);
    let (ranks, nodes) = (count(graphs.len(), "rank"), count(runtimes.len(), "node"));
    files::print(&format!(
        "aligned {ranks} of {nodes}; at most {} of a rank changed\n",
        count(most, "run time")
    ))
}

/// The names to write under: those of the files, which must differ.
fn file_names(paths: &[String]) -> Result<Vec<String>, Failed> {
    let mut seen = BTreeSet::new();
    let name = |path: &String| {
        if path == "-" {
            return Err(Failed::BadInput(
                "standard input has no name to write its aligned graph under: name a file"
                    .to_owned(),
            ));
        }
        let name = Path::new(path).file_name().map(|name| name.to_string_lossy().into_owned());
        let name = name.ok_or_else(|| Failed::in_file(path, "is not the name of a file"))?;
        match seen.insert(name.clone()) {
            true => Ok(name),
            false => Err(Failed::in_file(
                path,
                format!(
                    "another graph is called '{name}', too: each rank's file needs a name of its \
                     own"
                ),
            )),
        }
    };
    paths.iter().map(name).collect()
}
