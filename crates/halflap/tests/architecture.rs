//! What the sources must keep to. The graph of modules in every crate has no cycle and no edge that
//! ARCHITECTURE.md forbids; a type's name is defined once; no parameters hide in a tuple; comments
//! have 100 columns.

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

/// Type names that are defined more than once, and why.
const SHARED_NAMES: [(&str, &str); 17] = [
    ("Chain", "of collectives; of annealing steps: the field's word for both"),
    ("Column", "of a table; of a linear program: the field's word for both"),
    ("Decision", "the library's answer; a branch of the bound's search"),
    ("Failure", "of a pass; of a run"),
    ("Found", "a recipe; what a chain of the annealing found"),
    ("Options", "of passes; of a run; Python's keyword arguments"),
    ("Plan", "of a module; the arguments of `halflap plan`"),
    ("Program", "what a rank runs; what the optimizer keeps of a graph"),
    ("Proof", "of an order; of a bound"),
    ("Ready", "two queues of the bound, each private to its file"),
    ("Recipe", "a way to change a graph; a module: the same idea"),
    ("Request", "for a schedule; for an improvement; to the command, by a program"),
    ("Run", "a unit that another one runs; the arguments of `halflap run`"),
    ("Schedule", "what passes gave; the arguments of `halflap schedule`"),
    ("Search", "the library's request; the annealing's state"),
    ("Side", "of a comparison; of a place in an order; of a buffer"),
    ("Timeline", "memory over an order; the arguments of `halflap timeline`"),
];

fn crate_dir(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..").join(name)
}

fn sources(folder: &Path, wanted: &str, into: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => sources(&path, wanted, into),
            false if path.extension().is_some_and(|extension| extension == wanted) => {
                into.push(path)
            }
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
    sources(&root, "rs", &mut files);
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

/// A circle, if there is one: modules that are left when those that use no other are taken away,
/// again and again.
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

/// Without its feature `runtime`, the command must do without halflap-run.
#[test]
fn the_runtime_is_optional() {
    let root = crate_dir("halflap-cli");
    let manifest = fs::read_to_string(root.join("Cargo.toml")).unwrap();
    let mut lines = manifest.lines().filter(|line| line.starts_with("halflap-run ="));
    assert!(lines.next().is_some_and(|line| line.contains("optional = true")), "{manifest}");
    let mut files = Vec::new();
    sources(&root.join("src"), "rs", &mut files);
    let uses_runtime = |path: &&PathBuf| code(path).contains("halflap_run");
    let (inside, outside): (Vec<&PathBuf>, Vec<&PathBuf>) =
        files.iter().filter(uses_runtime).partition(|path| {
            let module = module_of(&root.join("src"), path);
            ["execution", "runtime"].contains(&module.as_str()) && !path.ends_with("absent.rs")
        });
    assert!(!inside.is_empty() && outside.is_empty(), "only for the runtime: {outside:?}");
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

/// Every source of the workspace: where it is, and what it has without comments and tests.
fn all_code() -> Vec<(String, String)> {
    let mut files = Vec::new();
    CRATES.iter().for_each(|(name, _)| sources(&crate_dir(name).join("src"), "rs", &mut files));
    sources(&crate_dir("../bindings/python").join("src"), "rs", &mut files);
    files.sort();
    files.iter().map(|path| (path.display().to_string(), code(path))).collect()
}

/// The name of the type that a line at the left margin defines.
fn defined(line: &str) -> Option<&str> {
    let item = match line.strip_prefix("pub(") {
        Some(rest) => rest.split_once(") ")?.1,
        None => line.strip_prefix("pub ").unwrap_or(line),
    };
    let kinds = ["struct ", "enum ", "trait ", "type ", "union "];
    let name = kinds.iter().find_map(|kind| item.strip_prefix(kind))?;
    name.split(|letter: char| !letter.is_alphanumeric() && letter != '_').next()
}

/// The parts of a list at its commas, but not at those inside brackets.
fn parts(list: &str) -> Vec<&str> {
    let (mut parts, mut depth, mut start, mut last) = (Vec::new(), 0, 0, ' ');
    for (at, letter) in list.char_indices() {
        match letter {
            '(' | '[' | '{' | '<' => depth += 1,
            '>' if last == '-' || last == '=' => {}
            ')' | ']' | '}' | '>' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(list[start..at].trim());
                start = at + 1;
            }
            _ => {}
        }
        last = letter;
    }
    parts.push(list[start..].trim());
    parts.retain(|part| !part.is_empty());
    parts
}

/// What is between an opening bracket, with which the text begins, and the one that closes it.
fn bracketed(text: &str) -> Option<&str> {
    let (mut depth, mut last) = (0, ' ');
    for (at, letter) in text.char_indices() {
        match letter {
            '(' | '[' | '{' | '<' => depth += 1,
            '>' if last == '-' || last == '=' => {}
            ')' | ']' | '}' | '>' => depth -= 1,
            _ => {}
        }
        last = letter;
        if depth == 0 {
            return text[..at].get(1..);
        }
    }
    None
}

/// The parameters of each function, with its name.
fn functions(text: &str) -> Vec<(&str, Vec<&str>)> {
    let declared = |(at, _)| {
        let rest: &str = &text[at + "fn ".len()..];
        let end = rest.find(|letter: char| !letter.is_alphanumeric() && letter != '_')?;
        let (name, mut rest) = rest.split_at(end);
        if rest.starts_with('<') {
            rest = &rest[bracketed(rest)?.len() + 2..];
        }
        let is_function = !name.is_empty() && rest.starts_with('(');
        is_function.then(|| Some((name, parts(bracketed(rest)?)))).flatten()
    };
    text.match_indices("fn ").filter_map(declared).collect()
}

/// How many values a parameter hides in a tuple.
fn hidden(parameter: &str) -> usize {
    let is_type = |at: &usize| {
        let before = &parameter[..*at];
        before.matches('(').count() == before.matches(')').count()
    };
    let Some(at) = parameter.match_indices(": ").map(|(at, _)| at).find(is_type) else { return 0 };
    let kind = parameter[at + 2..].trim_start_matches('&');
    let kind = match kind.strip_prefix('\'') {
        Some(lifetime) => lifetime.split_once(' ').map_or(lifetime, |(_, kind)| kind),
        None => kind,
    };
    let kind = kind.strip_prefix("mut ").unwrap_or(kind);
    let tuple = kind.strip_prefix('(').and_then(|_| bracketed(kind));
    tuple.map_or(0, |tuple| parts(tuple).len())
}

/// What stands in for a missing runtime has the runtime's names on purpose.
#[test]
fn a_type_name_is_defined_once() {
    let all = all_code();
    let mut places: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (path, text) in all.iter().filter(|(path, _)| !path.ends_with("absent.rs")) {
        text.lines()
            .filter_map(defined)
            .for_each(|name| places.entry(name).or_default().push(path));
    }
    places.retain(|_, paths| paths.len() > 1);
    let is_shared = |name: &str| SHARED_NAMES.iter().any(|(shared, _)| *shared == name);
    let unexpected: Vec<_> = places.iter().filter(|(name, _)| !is_shared(name)).collect();
    assert!(unexpected.is_empty(), "names that mean several things: {unexpected:#?}");
    let needless: Vec<_> =
        SHARED_NAMES.iter().filter(|(name, _)| !places.contains_key(name)).collect();
    assert!(needless.is_empty(), "exceptions that are no longer needed: {needless:?}");
}

#[test]
fn no_parameters_hide_in_a_tuple() {
    let is_tuple = |parameter: &&str| hidden(parameter) > 2;
    for (path, text) in all_code() {
        for (name, parameters) in functions(&text) {
            let tuples: Vec<_> = parameters.into_iter().filter(is_tuple).collect();
            assert!(tuples.is_empty(), "{path}: '{name}' takes {tuples:?}: give them a type");
        }
    }
}

#[test]
fn hidden_parameters_are_counted() {
    let text = "pub(super) fn of<T: Fn(u8) -> u8>(&self, (a, b, c): (A, [u8; 2], Map<K, V>), d: &'a mut (A, B), e: (A)) {}";
    let (name, parameters) = functions(text).remove(0);
    let counts: Vec<usize> = parameters.iter().map(|parameter| hidden(parameter)).collect();
    assert_eq!((name, counts), ("of", vec![0, 3, 2, 1]));
    assert_eq!(
        ["pub(crate) enum Kind<T> {", "pub type A = B;", "    struct Inner;"].map(defined),
        [Some("Kind"), Some("A"), None]
    );
}

/// Formatters see to the rest.
#[test]
fn comments_have_100_columns() {
    let root = crate_dir("..");
    let mut found = Vec::new();
    for folder in ["crates", "bindings", "bench", "examples", "tests"] {
        for extension in ["rs", "py"] {
            sources(&root.join(folder), extension, &mut found);
        }
    }
    assert!(found.len() > 300, "{}", found.len());
    for path in found {
        let text = fs::read_to_string(&path).unwrap();
        for (line, number) in text.lines().zip(1..) {
            let is_long = is_comment(line) && line.chars().count() > 100;
            assert!(!is_long, "{}:{number}: a comment of over 100 columns", path.display());
        }
    }
}

/// Whether a line is a comment of Rust or Python, and not a row of a table.
fn is_comment(line: &str) -> bool {
    let line = line.trim_start();
    let text = line.strip_prefix("//").map(|text| text.trim_start_matches(['/', '!']));
    text.or_else(|| line.strip_prefix("# ")).is_some_and(|text| !text.trim_start().starts_with('|'))
}
