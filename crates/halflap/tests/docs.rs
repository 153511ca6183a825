//! The links of all pages: each leads to a file that exists, and to a heading in it where it names
//! one.

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

fn pages() -> Result<Vec<PathBuf>, Box<dyn Error>> {
    let mut pages = Vec::new();
    for folder in [".", "docs", "bench"] {
        for entry in fs::read_dir(Path::new(ROOT).join(folder))? {
            let path = entry?.path();
            if path.extension().is_some_and(|extension| extension == "md") {
                pages.push(path);
            }
        }
    }
    pages.sort();
    Ok(pages)
}

/// The text without blocks of code, in which `](` is no link.
fn prose(text: &str) -> String {
    text.split("```").step_by(2).collect()
}

/// What `[text](target)` leads to, but for other sites.
fn links(prose: &str) -> impl Iterator<Item = &str> {
    let targets = prose.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    targets.filter(|target| !target.contains("://"))
}

/// The name that a heading has in links, as GitHub makes it.
fn anchor(heading: &str) -> String {
    let kept = |c: &char| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_');
    let name: String = heading.trim().to_lowercase().chars().filter(kept).collect();
    name.replace(' ', "-")
}

fn has_heading(page: &str, wanted: &str) -> bool {
    let headings = page.lines().filter(|line| line.starts_with('#'));
    headings.map(|line| anchor(line.trim_start_matches('#'))).any(|name| name == wanted)
}

fn broken(page: &Path, target: &str) -> Result<bool, Box<dyn Error>> {
    let (file, heading) = target.split_once('#').unwrap_or((target, ""));
    let folder = page.parent().ok_or("a page is in a folder")?;
    let path = if file.is_empty() { page.to_owned() } else { folder.join(file) };
    if !path.exists() {
        return Ok(true);
    }
    Ok(!heading.is_empty() && !has_heading(&prose(&fs::read_to_string(path)?), heading))
}

#[test]
fn links_lead_somewhere() -> Result<(), Box<dyn Error>> {
    let mut checked = 0;
    for page in pages()? {
        for target in links(&prose(&fs::read_to_string(&page)?)) {
            assert!(!broken(&page, target)?, "{}: no {target}", page.display());
            checked += 1;
        }
    }
    assert!(checked > 50, "only {checked} links found");
    Ok(())
}

#[test]
fn broken_links_are_found() -> Result<(), Box<dyn Error>> {
    let page = Path::new(ROOT).join("docs/command.md");
    for target in ["hlo.md", "#verify", "fidelity.md"] {
        assert!(!broken(&page, target)?, "{target}");
    }
    for target in ["nowhere.md", "#nowhere", "hlo.md#nowhere"] {
        assert!(broken(&page, target)?, "{target}");
    }
    Ok(())
}
