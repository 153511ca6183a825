//! Which kernels are checked.

use std::fmt;

/// Names of kernels, case-insensitive, with `*` as a wildcard. An empty list means all kernels.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    patterns: Vec<String>,
}

impl Filter {
    /// Parses a list separated by commas.
    pub fn new(list: &str) -> Filter {
        let patterns = list.split(',').map(|name| name.trim().to_lowercase());
        Filter { patterns: patterns.filter(|pattern| !pattern.is_empty()).collect() }
    }

    /// Whether a kernel is checked.
    pub fn takes(&self, kernel: &str) -> bool {
        let kernel = kernel.to_lowercase();
        self.patterns.is_empty() || self.patterns.iter().any(|pattern| matches(pattern, &kernel))
    }

    /// The patterns that match no name.
    pub fn unused<'s>(&'s self, names: &'s [String]) -> impl Iterator<Item = &'s str> {
        let fits = |pattern: &str| names.iter().any(|name| matches(pattern, &name.to_lowercase()));
        self.patterns.iter().map(String::as_str).filter(move |pattern| !fits(pattern))
    }
}

impl fmt::Display for Filter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.patterns.join(","))
    }
}

/// Whether a name matches a pattern: the pieces between stars occur in order, the first at the
/// beginning and the last at the end.
fn matches(pattern: &str, name: &str) -> bool {
    let Some((first, rest)) = pattern.split_once('*') else { return pattern == name };
    let Some(mut left) = name.strip_prefix(first) else { return false };
    let (middle, last) = rest.rsplit_once('*').unwrap_or(("", rest));
    for piece in middle.split('*').filter(|piece| !piece.is_empty()) {
        let Some(at) = left.find(piece) else { return false };
        left = &left[at + piece.len()..];
    }
    left.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_stars() {
        let takes = |list: &str, name: &str| Filter::new(list).takes(name);
        assert!(takes("", "anything") && takes(" Dot.5 , add", "dot.5") && takes("add", "ADD"));
        assert!(!takes("dot", "dot.5") && !takes("dot.5", "dot") && !takes("do*t.5.*", "dot.5"));
        assert!(
            takes("*", "")
                && takes("dot*", "dot.5")
                && takes("*.5", "dot.5")
                && takes("d*t*5", "dot.5")
        );
        assert!(
            !takes("dot.5*5", "dot.5")
                && takes("a**b", "ab")
                && takes("*a*", "xay")
                && !takes("*a*", "xy")
        );
        let names = ["dot.5".to_owned()];
        assert_eq!(Filter::new("dot*,sub,ADD").unused(&names).collect::<Vec<_>>(), ["sub", "add"]);
    }
}
