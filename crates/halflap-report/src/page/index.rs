//! The page of a folder of artifacts: what made it, what came of it, and what is there.

use std::io::{self, Write};

use super::STYLE;

/// What the page says.
#[derive(Clone, Debug, Default)]
pub struct Index {
    /// Whether all went well, in a few words; empty while it is under way.
    pub verdict: String,
    /// The command as it can be typed again, the input, the version, the date: each with its label.
    pub facts: Vec<(&'static str, String)>,
    /// What was done, one after the other.
    pub stages: Vec<IndexStage>,
    /// What the command printed; may be empty.
    pub summary: String,
    /// What is in the folder.
    pub files: Vec<IndexFile>,
}

/// One thing that was done.
#[derive(Clone, Debug)]
pub struct IndexStage {
    /// What.
    pub name: String,
    /// What came of it: `done`, `failed`.
    pub status: String,
    /// How long it took, in seconds.
    pub seconds: f64,
}

/// A file, or a folder.
#[derive(Clone, Debug)]
pub struct IndexFile {
    /// Its name.
    pub name: String,
    /// Its size, in words.
    pub size: String,
    /// What it is.
    pub what: String,
}

/// What the page needs beyond the style of all pages.
const OWN_STYLE: &str = "body { margin: 2rem auto; max-width: 64rem; padding: 0 1rem }
td, th { text-align: left; padding: 0.25rem 1rem 0.25rem 0; vertical-align: top }
code, pre { font-family: var(--mono); white-space: pre-wrap; overflow-wrap: anywhere }
button { margin-left: 0.5rem }
.verdict { font-weight: 600 }";

/// Copies what stands before a button. Pages from disk may lack the clipboard: then it is selected.
const SCRIPT: &str = "for (const button of document.querySelectorAll('button[data-copy]')) {
  button.addEventListener('click', async () => {
    const text = button.previousElementSibling;
    try {
      await navigator.clipboard.writeText(text.textContent);
      button.textContent = 'Copied';
    } catch {
      getSelection().selectAllChildren(text);
      button.textContent = document.execCommand('copy') ? 'Copied' : 'Selected';
    }
  });
}";

/// Writes the page.
pub fn write_index(index: &Index, out: &mut impl Write) -> io::Result<()> {
    let policy = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'";
    writeln!(out, "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">")?;
    writeln!(out, "<meta http-equiv=\"Content-Security-Policy\" content=\"{policy}\">")?;
    writeln!(out, "<title>halflap artifacts</title>\n<style>\n{STYLE}\n{OWN_STYLE}\n</style>")?;
    writeln!(out, "</head>\n<body>\n<main>\n<h1>Artifacts</h1>")?;
    if !index.verdict.is_empty() {
        writeln!(out, "<p class=\"verdict\">{}</p>", escaped(&index.verdict))?;
    }
    write_facts(index, out)?;
    write_stages(index, out)?;
    if !index.summary.is_empty() {
        writeln!(out, "<h2>Result</h2>\n<pre>{}</pre>", escaped(&index.summary))?;
        writeln!(out, "{COPY}")?;
    }
    write_files(index, out)?;
    writeln!(out, "<script>\n{SCRIPT}\n</script>\n</main>\n</body>\n</html>")
}

/// A button that copies what stands before it.
const COPY: &str = "<button type=\"button\" data-copy>Copy</button>";

fn write_facts(index: &Index, out: &mut impl Write) -> io::Result<()> {
    writeln!(out, "<table class=\"facts\">\n<tbody>")?;
    for (label, value) in &index.facts {
        let value = escaped(value);
        writeln!(
            out,
            "<tr><th scope=\"row\">{label}</th><td><code>{value}</code>{COPY}</td></tr>"
        )?;
    }
    writeln!(out, "</tbody>\n</table>")
}

fn write_stages(index: &Index, out: &mut impl Write) -> io::Result<()> {
    if index.stages.is_empty() {
        return Ok(());
    }
    writeln!(out, "<h2>Stages</h2>\n<table class=\"stages\">\n<thead>")?;
    writeln!(out, "<tr><th>stage</th><th>status</th><th>duration</th></tr></thead>\n<tbody>")?;
    for IndexStage { name, status, seconds } in &index.stages {
        let (name, status) = (escaped(name), escaped(status));
        writeln!(out, "<tr><td>{name}</td><td>{status}</td><td>{seconds:.2} s</td></tr>")?;
    }
    writeln!(out, "</tbody>\n</table>")
}

fn write_files(index: &Index, out: &mut impl Write) -> io::Result<()> {
    writeln!(out, "<h2>Files</h2>\n<table class=\"files\">\n<thead>")?;
    writeln!(out, "<tr><th>file</th><th>size</th><th>what it is</th></tr></thead>\n<tbody>")?;
    for IndexFile { name, size, what } in &index.files {
        let (name, size, what) = (escaped(name), escaped(size), escaped(what));
        writeln!(
            out,
            "<tr><td><a href=\"{name}\">{name}</a></td><td>{size}</td><td>{what}</td></tr>"
        )?;
    }
    writeln!(out, "</tbody>\n</table>")
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_stays_text() {
        let bad = "<b>\"&amp;".to_owned();
        let index = Index {
            verdict: bad.clone(),
            facts: vec![("command", bad.clone())],
            stages: vec![IndexStage { name: bad.clone(), status: bad.clone(), seconds: 1.5 }],
            summary: bad.clone(),
            files: vec![IndexFile { name: bad.clone(), size: bad.clone(), what: bad.clone() }],
        };
        let mut page = Vec::new();
        write_index(&index, &mut page).unwrap();
        let page = String::from_utf8(page).unwrap();
        assert!(!page.contains(&bad));
        assert_eq!(page.matches("&lt;b>&quot;&amp;amp;").count(), 9);
        assert!(page.contains("<td>1.50 s</td>"));
    }
}
