//! HLO modules: real ones, generated ones and damaged ones.

use std::fs;
use std::path::PathBuf;

use halflap::hlo::{Module, write};
use halflap::import::unzip;

/// All modules of the corpus, by name.
fn corpus() -> Vec<(String, String)> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/hlo");
    let mut paths: Vec<PathBuf> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.to_string_lossy().ends_with(".txt.gz"));
    paths.sort();
    let read = |path: &PathBuf| {
        let name = path.file_name().unwrap().to_string_lossy().trim_end_matches(".txt.gz").to_owned();
        (name, String::from_utf8(unzip(&fs::read(path).unwrap()).unwrap().into_owned()).unwrap())
    };
    paths.iter().map(read).collect()
}

#[test]
fn what_is_read_is_written_as_it_was() {
    for (name, text) in corpus() {
        let module = Module::read(text.clone()).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(write(&module, &[]) == text, "{name}");
    }
}
