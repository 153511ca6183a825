//! The graph of modules in every crate, from the sources: no cycles, and no edge that ARCHITECTURE.md
//! forbids.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Dependencies between a crate's modules, by name.
type Uses = BTreeMap<String, BTreeSet<String>>;

/// What ARCHITECTURE.md says that a crate must not depend on.
const CRATES: [(&str, &[&str]); 5] = [
    ("halflap", &["halflap-hlo", "halflap-report", "halflap-run", "halflap-cli"]),
    ("halflap-hlo", &["halflap-report", "halflap-run", "halflap-cli"]),
    ("halflap-report", &["halflap-hlo", "halflap-run", "halflap-cli"]),
    ("halflap-run", &["halflap-report", "halflap-cli"]),
    ("halflap-cli", &[]),
];

/// What a module must not use, by crate; either may be several.
const FORBIDDEN: [(&str, &[&str], &[&str]); 19] = [
    (
        "halflap",
        &["ids", "units"],
        &["graph", "order", "cost", "memory", "pass", "simulate", "workload"],
    ),
    (
        "halflap",
        &["graph", "collective"],
        &["order", "pass", "import", "cost", "simulate", "optimize"],
    ),
    ("halflap", &["import", "export"], &["pass", "optimize", "simulate", "workload"]),
    ("halflap", &["cost"], &["order", "pass", "optimize", "simulate"]),
    ("halflap", &["memory"], &["pass", "optimize", "overlap", "cost"]),
    ("halflap", &["overlap"], &["memory", "pass", "optimize"]),
    ("halflap", &["simulate", "evaluate"], &["pass", "optimize", "schedule", "workload"]),
    ("halflap", &["verify"], &["pass", "memory", "overlap", "optimize", "schedule", "rewrite"]),
    (
        "halflap",
        &["verify_rewrite"],
        &["rewrite", "pass", "memory", "overlap", "optimize", "schedule", "cost"],
    ),
    ("halflap", &["rewrite"], &["order", "pass", "optimize", "simulate", "workload"]),
    ("halflap", &["pass"], &["optimize", "schedule", "import", "workload"]),
    ("halflap-hlo", &["same"], &["change", "draft", "lower", "proof", "split", "write"]),
    ("halflap-hlo", &["change", "draft"], &["same", "lower", "plan", "program", "proof"]),
    ("halflap-report", &["observe"], &["page", "trace", "analysis", "measured"]),
    ("halflap-run", &["kernel", "tensor"], &["exec", "comm", "check", "prepare", "failure"]),
    ("halflap-run", &["failure"], &["exec", "comm", "check", "prepare"]),
    ("halflap-run", &["comm"], &["exec", "check", "prepare"]),
    ("halflap-run", &["prepare"], &["exec", "check"]),
    ("halflap-run", &["check"], &["exec"]),
];

fn crate_dir(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..").join(name)
}

fn sources(folder: &Path, into: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => sources(&path, into),
            false if path.extension().is_some_and(|extension| extension == "rs") => into.push(path),
            false => {}
        }
    }
}

/// The module of a crate that a source belongs to.
fn module_of(root: &Path, path: &Path) -> String {
    let inside = path.strip_prefix(root).unwrap();
    let first = inside.components().next().unwrap().as_os_str().to_string_lossy().into_owned();
    first.trim_end_matches(".rs").to_owned()
}

/// What a source has without comments and its own tests.
fn code(path: &Path) -> String {
    let text = fs::read_to_string(path).unwrap();
    let text = text.split("#[cfg(test)]\nmod tests").next().unwrap().to_owned();
    text.lines().filter(|line| !line.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n")
}

/// The names that follow `crate::`, and `super::` in a file at the crate's root.
fn named(text: &str, is_root: bool) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let starts: &[&str] = if is_root { &["crate::", "super::"] } else { &["crate::"] };
    for start in starts {
        for (at, _) in text.match_indices(start) {
            let rest = &text[at + start.len()..];
            let list = rest.strip_prefix('{').and_then(|list| list.split('}').next()).unwrap_or("");
            let word = |text: &str| {
                let end = text.find(|letter: char| !letter.is_alphanumeric() && letter != '_');
                text[..end.unwrap_or(text.len())].to_owned()
            };
            found.insert(word(rest));
            found.extend(list.split(',').map(|part| word(part.trim())));
        }
    }
    found
}

fn uses(name: &str) -> Uses {
    let root = crate_dir(name).join("src");
    let mut files = Vec::new();
    sources(&root, &mut files);
    let modules: BTreeSet<String> = files.iter().map(|path| module_of(&root, path)).collect();
    let mut uses = Uses::new();
    for path in &files {
        let module = module_of(&root, path);
        let is_root = path.parent() == Some(root.as_path());
        if module == "lib" || module == "main" {
            continue;
        }
        let mut used = named(&code(path), is_root);
        used.retain(|other| *other != module && modules.contains(other));
        uses.entry(module).or_default().extend(used);
    }
    uses
}

/// A circle, if there is one: modules that are left when those that use no other are taken away, again
/// and again.
fn circle(uses: &Uses) -> BTreeSet<String> {
    let mut left = uses.clone();
    loop {
        let free: BTreeSet<String> =
            left.iter().filter(|(_, used)| used.is_empty()).map(|(name, _)| name.clone()).collect();
        if free.is_empty() {
            return left.into_keys().collect();
        }
        left.retain(|name, _| !free.contains(name));
        left.values_mut().for_each(|used| used.retain(|other| !free.contains(other)));
    }
}

#[test]
fn no_crate_depends_on_one_that_it_must_not_know() {
    for (name, forbidden) in CRATES {
        let manifest = fs::read_to_string(crate_dir(name).join("Cargo.toml")).unwrap();
        let own = manifest.split("[dependencies]").nth(1).unwrap().split("\n[").next().unwrap();
        let depends = |other: &str| own.lines().any(|line| line.starts_with(&format!("{other} =")));
        for other in forbidden.iter().copied() {
            assert!(!depends(other), "{name} depends on {other}");
        }
    }
}

#[test]
fn modules_use_each_other_in_one_direction() {
    for (name, _) in CRATES {
        let circle = circle(&uses(name));
        assert!(circle.is_empty(), "{name}: {circle:?} use each other in a circle");
    }
}

#[test]
fn no_module_uses_one_that_it_must_not_know() {
    for (name, modules, forbidden) in FORBIDDEN {
        let uses = uses(name);
        for module in modules {
            let used =
                uses.get(*module).unwrap_or_else(|| panic!("{name} has no module '{module}'"));
            let wrong: Vec<&String> =
                used.iter().filter(|other| forbidden.contains(&other.as_str())).collect();
            assert!(wrong.is_empty(), "{name}: '{module}' uses {wrong:?}");
        }
    }
}
