//! Arrays before and after every launch: saved, printed, or only the names of what is launched.

use std::fmt::Write;
use std::io;
use std::path::PathBuf;
use std::sync::Mutex;

use super::filter::Filter;
use super::index::{Entry, IndexWriter};
use super::probe::{LaunchArray, LaunchPhase, Seen};
use super::said::{print, warn_once};
use super::stats::Stats;
use crate::sync::locked;
use crate::tensor::{DType, View, numbers};

/// What to do with arrays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueLevel {
    /// They are saved.
    Save,
    /// They are printed.
    Print,
    /// They are ignored; only the names of launched kernels are printed.
    Names,
}

/// Which arrays are captured, and what to do with them.
#[derive(Clone, Debug)]
pub struct ValueOptions {
    /// What to do with them.
    pub level: ValueLevel,
    /// Of which kernels.
    pub filter: Filter,
    /// The folder that they are saved in.
    pub folder: PathBuf,
}

/// Arrays with no more elements than this are printed whole.
const WHOLE: usize = 64;

/// One rank's arrays.
pub(super) struct ValueLog {
    options: ValueOptions,
    /// Whether there are other ranks, so that a line must name its rank.
    is_alone: bool,
    rank: usize,
    index: Option<Mutex<IndexWriter>>,
}

impl ValueLog {
    pub(super) fn open(
        options: &ValueOptions,
        module: &str,
        rank: usize,
        ranks: usize,
    ) -> io::Result<ValueLog> {
        let index = match options.level {
            ValueLevel::Save => {
                Some(Mutex::new(IndexWriter::create(&options.folder, module, rank, ranks)?))
            }
            ValueLevel::Print | ValueLevel::Names => None,
        };
        Ok(ValueLog { options: options.clone(), is_alone: ranks == 1, rank, index })
    }

    /// The module's inputs.
    pub(super) fn inputs(&self, names: &[String], arrays: &[View<'_>]) {
        let around: Vec<String> =
            (!self.is_alone).then(|| format!("rank {}", self.rank)).into_iter().collect();
        for (name, view) in names.iter().zip(arrays) {
            match self.options.level {
                ValueLevel::Names => {}
                ValueLevel::Print => {
                    print(&self.text(&format!("model_inputs - {name}"), &around, view))
                }
                ValueLevel::Save => self.save(
                    Entry {
                        kernel: "model_inputs".to_owned(),
                        when: "input".to_owned(),
                        ..Entry::of_array(name, view)
                    },
                    view,
                ),
            }
        }
    }

    /// The inputs or outputs of a launch.
    pub(super) fn launch(&self, when: LaunchPhase, seen: &Seen<'_>, arrays: &[LaunchArray<'_>]) {
        let kernel = &seen.label.name;
        if !self.options.filter.takes(kernel) {
            return;
        }
        let around = seen.around((!self.is_alone).then_some(self.rank));
        if self.options.level == ValueLevel::Names {
            print(&format!("[ {}: {kernel} ]{}\n", when.prefix(), listed(&around)));
            return;
        }
        for (place, array) in arrays.iter().enumerate() {
            let is_again = arrays[..place].iter().any(|other| other.argument == array.argument);
            if is_again {
                continue;
            }
            let buffer = &array.argument.buffer;
            match self.options.level {
                ValueLevel::Print => {
                    print(&self.text(
                        &format!("{} - {kernel} - {buffer}", when.prefix()),
                        &around,
                        &array.view,
                    ));
                }
                _ => {
                    let value = array.argument.value.clone();
                    self.save(
                        seen.entry(when, Entry { value, ..Entry::of_array(buffer, &array.view) }),
                        &array.view,
                    );
                }
            }
        }
    }

    fn save(&self, entry: Entry, view: &View<'_>) {
        let Some(index) = &self.index else { return };
        if let Err(error) = locked(index).add(entry, view) {
            warn_once(format!(
                "values of rank {} are missing from here on: they cannot be saved: {error}",
                self.rank
            ));
        }
    }

    /// An array for display.
    fn text(&self, title: &str, around: &[String], view: &View<'_>) -> String {
        if view.dtype().is_complex() {
            warn_once(
                "mean, min, max and std of complex arrays are those of the magnitudes".to_owned(),
            );
        }
        let mut text = format!("{title}{}\n", listed(around));
        if view.len() <= WHOLE {
            let _ = writeln!(text, "{}", elements(view));
        }
        let stats = Stats::of(view);
        let lines = [
            ("Number of elements", stats.count.to_string()),
            ("Size", format!("{:?}", view.dims())),
            ("Dtype", view.dtype().to_string()),
            ("Mean", stats.mean.to_string()),
            ("Min", stats.min.to_string()),
            ("Max", stats.max.to_string()),
            ("Std", stats.std.to_string()),
            ("NaN", stats.nans.to_string()),
            ("Inf", stats.infinities.to_string()),
        ];
        lines.iter().for_each(|(name, value)| {
            let _ = writeln!(text, "{name}: {value}");
        });
        text
    }
}

fn listed(around: &[String]) -> String {
    if around.is_empty() { String::new() } else { format!("  ({})", around.join(", ")) }
}

impl Entry {
    fn of_array(buffer: &str, view: &View<'_>) -> Entry {
        Entry {
            sequence: 0,
            run: 0,
            plan: String::new(),
            step: 0,
            iteration: Vec::new(),
            kernel: String::new(),
            when: String::new(),
            buffer: buffer.to_owned(),
            value: buffer.to_owned(),
            dtype: view.dtype().name().to_owned(),
            shape: view.dims().to_vec(),
            file: String::new(),
            source: None,
            stats: Stats::of(view),
        }
    }
}

/// All elements, in brackets for each dimension.
fn elements(view: &View<'_>) -> String {
    fn nest(dims: &[usize], texts: &[String], depth: usize) -> String {
        let Some((&len, inner)) = dims.split_first() else {
            return texts.first().cloned().unwrap_or_default();
        };
        let each = texts.len() / len.max(1);
        let part =
            |number: usize| nest(inner, &texts[number * each..(number + 1) * each], depth + 1);
        let parts: Vec<String> = (0..len).map(part).collect();
        let between = if inner.is_empty() {
            ", ".to_owned()
        } else {
            format!(",\n{}", " ".repeat(depth + 1))
        };
        format!("[{}]", parts.join(&between))
    }
    nest(view.dims(), &each_element(view), 0)
}

/// Every element as text, with enough digits to be unambiguous.
fn each_element(view: &View<'_>) -> Vec<String> {
    let all = || numbers(view.dtype(), view.bytes());
    let words = |bytes: &[u8]| bytes.as_chunks::<8>().0.to_vec();
    match view.dtype() {
        DType::S64 => {
            words(view.bytes()).iter().map(|word| i64::from_le_bytes(*word).to_string()).collect()
        }
        DType::U64 => {
            words(view.bytes()).iter().map(|word| u64::from_le_bytes(*word).to_string()).collect()
        }
        DType::Pred => all().iter().map(|&number| (number != 0.0).to_string()).collect(),
        DType::C64 => all()
            .as_chunks::<2>()
            .0
            .iter()
            .map(|[a, b]| format!("{}{:+}i", *a as f32, *b as f32))
            .collect(),
        DType::C128 => all().as_chunks::<2>().0.iter().map(|[a, b]| format!("{a}{b:+}i")).collect(),
        DType::F32 => all().iter().map(|&number| (number as f32).to_string()).collect(),
        _ => all().iter().map(f64::to_string).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::{Complex, Tensor};

    #[test]
    fn elements_in_brackets() {
        let text = |tensor: Tensor| elements(&tensor.view());
        assert_eq!(
            text(Tensor::of(&[2, 3], &[1.0f32, 2.5, 0.1, -1.0, 0.0, 3.0])),
            "[[1, 2.5, 0.1],\n [-1, 0, 3]]"
        );
        assert_eq!(text(Tensor::of(&[], &[i64::MAX])), i64::MAX.to_string());
        assert_eq!(text(Tensor::typed(DType::Pred, &[2], &[1u8, 0])), "[true, false]");
        assert_eq!(text(Tensor::of(&[1], &[Complex { re: 1.5f32, im: -2.0 }])), "[1.5-2i]");
        assert_eq!(text(Tensor::of::<f32>(&[0, 2], &[])), "[]");
        assert_eq!(text(Tensor::of(&[2], &[f32::NAN, f32::INFINITY])), "[NaN, inf]");
    }
}
