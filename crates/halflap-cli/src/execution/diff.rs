//! `halflap diff`: the saved values of two runs, launch by launch.

use std::collections::BTreeMap;
use std::path::Path;

use halflap_report::{Column, Table, count, labelled, printable};
use halflap_run::check::{Entry, RankValues, read_values};
use halflap_run::tensor::{DType, Tensor};
use serde_json::{Value as Json, json};

use crate::args;
use crate::exit::Failed;
use crate::files;
use crate::terminal;

/// How many differences are shown.
const MOST: usize = 8;

pub fn run(args: &args::Diff) -> Result<(), Failed> {
    let read = |path: &str| {
        read_values(Path::new(path)).map_err(|error| Failed::BadInput(error.to_string()))
    };
    let runs = [read(&args.a)?, read(&args.b)?];
    let difference = compare(&runs, args)?;
    let text = || format!("{:#}\n", difference.json());
    if !files::put_asked(args.output.as_deref(), args.json, text)? {
        files::print(&difference.render())?;
    }
    match difference.is_none() {
        true => Ok(()),
        false => Err(Failed::ToldElsewhere(1)),
    }
}

/// The first kernel, and its rank, whose outputs differ in the second run although its inputs
/// agree.
pub fn first_apart(a: &Path, b: &Path) -> Result<Option<(String, usize)>, Failed> {
    let name = |path: &Path| path.display().to_string();
    let args = args::Diff {
        a: name(a),
        b: name(b),
        rtol: Some(0.0),
        atol: Some(0.0),
        output: None,
        json: false,
    };
    let read = |path: &Path| read_values(path).map_err(|error| Failed::BadInput(error.to_string()));
    let found = compare(&[read(a)?, read(b)?], &args)?;
    Ok(found.origin.map(|pair| (pair.key.kernel, pair.key.rank)))
}

/// The identity of a launch in a run. Sequence numbers and buffers are not part of it: they depend
/// on the order.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct LaunchKey {
    /// Which of the ranks that are compared.
    rank: usize,
    run: usize,
    iteration: Vec<u32>,
    kernel: String,
}

/// The inputs and outputs of a launch, in the kernel's own order.
#[derive(Debug, Default)]
struct SavedLaunch<'a> {
    takes: Vec<&'a Entry>,
    gives: Vec<&'a Entry>,
}

/// Two arrays that should be the same.
#[derive(Debug, Clone, PartialEq)]
struct ArrayPair {
    key: LaunchKey,
    is_input: bool,
    buffer: String,
    source: Option<String>,
    /// Why they cannot be compared, or how far they are apart.
    apart: ArrayGap,
}

#[derive(Debug, Clone, PartialEq)]
enum ArrayGap {
    Shape(String),
    By { elements: usize, of: usize, absolute: f64, relative: f64, at: usize },
}

impl ArrayGap {
    fn words(&self) -> [String; 3] {
        match self {
            ArrayGap::Shape(words) => [words.clone(), String::new(), String::new()],
            ArrayGap::By { elements, of, absolute, relative, .. } => [
                format!("{elements} of {of}"),
                format!("{absolute:.3e}"),
                format!("{relative:.3e}"),
            ],
        }
    }

    /// The worse, the larger.
    fn weight(&self) -> f64 {
        match self {
            ArrayGap::Shape(_) => f64::INFINITY,
            ArrayGap::By { relative, .. } if relative.is_nan() => f64::INFINITY,
            ArrayGap::By { relative, .. } => *relative,
        }
    }
}

/// The differences between two runs.
struct RunDiff {
    arrays: usize,
    ranks: usize,
    /// In the order of the first run.
    differ: Vec<ArrayPair>,
    /// The first launch whose outputs differ although its inputs agree.
    origin: Option<ArrayPair>,
    only: [Vec<String>; 2],
}

/// The launches of a run, and their order.
fn launches(ranks: &[RankValues]) -> (BTreeMap<LaunchKey, SavedLaunch<'_>>, Vec<LaunchKey>) {
    let mut launches: BTreeMap<LaunchKey, SavedLaunch<'_>> = BTreeMap::new();
    let mut sequence: Vec<(u64, usize, LaunchKey)> = Vec::new();
    for (rank, values) in ranks.iter().enumerate() {
        for entry in &values.entries {
            let Entry { run, iteration, kernel, .. } = entry.clone();
            let key = LaunchKey { rank, run, iteration, kernel };
            let launch = launches.entry(key.clone()).or_insert_with(|| {
                sequence.push((entry.sequence, rank, key));
                SavedLaunch::default()
            });
            if entry.when == "before" { launch.takes.push(entry) } else { launch.gives.push(entry) }
        }
    }
    sequence.sort();
    (launches, sequence.into_iter().map(|(_, _, key)| key).collect())
}

fn compare(runs: &[Vec<RankValues>; 2], args: &args::Diff) -> Result<RunDiff, Failed> {
    let [a, b] = runs;
    if a.len() != b.len() {
        let problem = format!(
            "has {}, and {} has {}: name the ranks, such as {}/rank_0 and {}/rank_0",
            count(a.len(), "rank"),
            args.b,
            count(b.len(), "rank"),
            args.a,
            args.b
        );
        return Err(Failed::in_file(&args.a, problem));
    }
    let ((of_a, sequence), (of_b, sequence_b)) = (launches(a), launches(b));
    let mut found = RunDiff {
        arrays: 0,
        ranks: a.len(),
        differ: Vec::new(),
        origin: None,
        only: Default::default(),
    };
    for key in &sequence {
        let Some(other) = of_b.get(key) else {
            found.only[0].push(words(key, a));
            continue;
        };
        let launch = &of_a[key];
        let mut takes_the_same = true;
        for (is_input, ours, theirs) in
            [(true, &launch.takes, &other.takes), (false, &launch.gives, &other.gives)]
        {
            for (entry, entry_b) in ours.iter().zip(theirs) {
                found.arrays += 1;
                let load = |ranks: &[RankValues], entry: &Entry| {
                    ranks[key.rank].load(entry).map_err(|error| Failed::BadInput(error.to_string()))
                };
                let asked = Tolerances { rtol: args.rtol, atol: args.atol };
                let apart = apart(&load(a, entry)?, &load(b, entry_b)?, asked);
                let Some(apart) = apart else { continue };
                let (buffer, source) = (entry.buffer.clone(), entry.source.clone());
                let pair = ArrayPair { key: key.clone(), is_input, buffer, source, apart };
                takes_the_same &= !is_input;
                if !is_input && takes_the_same && found.origin.is_none() {
                    found.origin = Some(pair.clone());
                }
                found.differ.push(pair);
            }
            if ours.len() != theirs.len() {
                let apart = ArrayGap::Shape(format!("{} and {} arrays", ours.len(), theirs.len()));
                let pair = ArrayPair {
                    key: key.clone(),
                    is_input,
                    buffer: String::new(),
                    source: None,
                    apart,
                };
                found.differ.push(pair);
            }
        }
    }
    let missing = sequence_b.iter().filter(|key| !of_a.contains_key(key));
    found.only[1] = missing.map(|key| words(key, b)).collect();
    Ok(found)
}

fn words(key: &LaunchKey, ranks: &[RankValues]) -> String {
    let mut words = printable(&key.kernel);
    if ranks.len() > 1 {
        words.push_str(&format!(" on rank {}", ranks[key.rank].rank));
    }
    if key.run > 0 {
        words.push_str(&format!(", run {}", key.run));
    }
    key.iteration.iter().for_each(|number| words.push_str(&format!(", iteration {number}")));
    words
}

/// The requested tolerances, or else the type's.
#[derive(Clone, Copy, Default)]
struct Tolerances {
    rtol: Option<f64>,
    atol: Option<f64>,
}

/// How far values may be apart.
struct Tolerance {
    relative: f64,
    absolute: f64,
}

/// The tolerance of a type.
fn tolerance(dtype: DType) -> Tolerance {
    let (relative, absolute) = match dtype {
        DType::F64 | DType::C128 => (1e-7, 1e-7),
        DType::F32 | DType::C64 => (1.3e-6, 1e-5),
        DType::F16 => (1e-3, 1e-5),
        DType::Bf16 => (1.6e-2, 1e-5),
        // One unit of the smallest mantissa, of two bits.
        DType::Mini(_) => (0.25, 1e-5),
        _ => (0.0, 0.0),
    };
    Tolerance { relative, absolute }
}

/// How two arrays differ beyond the tolerance of their type, in words.
pub fn difference(a: &Tensor, b: &Tensor) -> Option<String> {
    Some(match apart(a, b, Tolerances::default())? {
        ArrayGap::Shape(words) => words,
        ArrayGap::By { elements, of, absolute, relative, .. } => {
            format!("{elements} of {of} elements, by {absolute:.3e} at most, {relative:.3e} of it")
        }
    })
}

/// How two arrays differ beyond the tolerance of the coarser type.
fn apart(a: &Tensor, b: &Tensor, asked: Tolerances) -> Option<ArrayGap> {
    if a.dims() != b.dims() {
        return Some(ArrayGap::Shape(format!("{:?} and {:?}", a.dims(), b.dims())));
    }
    let (of_a, of_b) = (tolerance(a.dtype()), tolerance(b.dtype()));
    let coarser = if of_a.relative >= of_b.relative { of_a } else { of_b };
    let rtol = asked.rtol.unwrap_or(coarser.relative);
    let atol = asked.atol.unwrap_or(coarser.absolute);
    let (x, y) = (a.to_f64(), b.to_f64());
    let (mut elements, mut absolute, mut relative, mut at) = (0, 0.0f64, 0.0f64, None);
    for (index, (&x, &y)) in x.iter().zip(&y).enumerate() {
        if x == y || (x.is_nan() && y.is_nan()) {
            continue;
        }
        let distance = (x - y).abs();
        // A NaN in only one run always differs.
        if distance <= atol + rtol * y.abs() {
            continue;
        }
        elements += 1;
        at.get_or_insert(index);
        let worse = |known: f64, new: f64| {
            if known.is_nan() || new.is_nan() { f64::NAN } else { known.max(new) }
        };
        absolute = worse(absolute, distance);
        relative = worse(relative, distance / y.abs().max(f64::MIN_POSITIVE));
    }
    at.map(|at| ArrayGap::By { elements, of: x.len(), absolute, relative, at })
}

impl RunDiff {
    fn is_none(&self) -> bool {
        self.differ.is_empty() && self.only.iter().all(Vec::is_empty)
    }

    fn name(&self, pair: &ArrayPair) -> String {
        let source = pair
            .source
            .as_ref()
            .map_or(String::new(), |source| format!(" ({})", printable(source)));
        let rank =
            if self.ranks > 1 { format!(" on rank {}", pair.key.rank) } else { String::new() };
        format!("{}{rank}{source}", printable(&pair.key.kernel))
    }

    fn verdict(&self) -> String {
        match (&self.origin, self.differ.first()) {
            (Some(pair), _) => {
                format!("{} is the first that differs although its inputs agree", self.name(pair))
            }
            (None, Some(pair)) => {
                format!("{} is the first that differs, already in its inputs", self.name(pair))
            }
            (None, None) if self.is_none() => "the runs agree".to_owned(),
            (None, None) => {
                "everything that both have agrees; each line below is in one of them only"
                    .to_owned()
            }
        }
    }

    fn render(&self) -> String {
        let style = terminal::style();
        let compared = format!("{} of {}", count(self.arrays, "array"), count(self.ranks, "rank"));
        let mut text = labelled("compared", &compared, &style);
        text.push_str(&labelled("verdict", &self.verdict(), &style));
        for (label, only) in ["only in A", "only in B"].into_iter().zip(&self.only) {
            only.iter().take(MOST).for_each(|name| text.push_str(&labelled(label, name, &style)));
            if only.len() > MOST {
                text.push_str(&labelled(label, &format!("and {} more", only.len() - MOST), &style));
            }
        }
        if !self.differ.is_empty() {
            text.push('\n');
            text.push_str(&self.table().render(&style));
            let (shown, all) = (self.shown().len(), self.differ.len());
            if shown < all {
                let note = "the first and the worst in the order of A; --json has all";
                let note = format!("{shown} of {all} differences are shown: {note}\n");
                text.push_str(&style.fitted(&note));
            }
        }
        text
    }

    /// The difference that the verdict names.
    fn first(&self) -> Option<&ArrayPair> {
        self.origin.as_ref().or(self.differ.first())
    }

    /// What the table shows: first what the verdict names, then the worst of the others in the
    /// order of the first run.
    fn shown(&self) -> Vec<&ArrayPair> {
        let others = self.differ.iter().enumerate().filter(|(_, pair)| Some(*pair) != self.first());
        let mut worst: Vec<(usize, &ArrayPair)> = others.collect();
        worst.sort_by(|(at, a), (other, b)| {
            b.apart.weight().total_cmp(&a.apart.weight()).then(at.cmp(other))
        });
        worst.truncate(MOST - 1);
        worst.sort_by_key(|(at, _)| *at);
        self.first().into_iter().chain(worst.into_iter().map(|(_, pair)| pair)).collect()
    }

    fn table(&self) -> Table {
        let mut table = Table::new(vec![
            Column::text("kernel"),
            Column::text(""),
            Column::text("buffer"),
            Column::number("elements"),
            Column::number("absolute"),
            Column::number("relative"),
        ]);
        for pair in self.shown() {
            let side = if pair.is_input { "takes" } else { "gives" };
            let mut row = vec![
                self.name(pair).into(),
                side.to_owned().into(),
                printable(&pair.buffer).into(),
            ];
            row.extend(pair.apart.words().map(Into::into));
            table.row(row);
        }
        table
    }

    fn json(&self) -> Json {
        let pairs: Vec<Json> = self.differ.iter().map(pair_json).collect();
        json!({
            "format": "halflap.diff/1",
            "equal": self.is_none(),
            "arrays": self.arrays,
            "first": self.first().map(pair_json),
            "inputs_agree": self.origin.is_some(),
            "differ": pairs,
            "only_a": self.only[0],
            "only_b": self.only[1],
        })
    }
}

fn pair_json(pair: &ArrayPair) -> Json {
    let LaunchKey { rank, run, iteration, kernel } = &pair.key;
    let mut json = json!({
        "kernel": kernel, "rank": rank, "run": run, "iteration": iteration,
        "when": if pair.is_input { "before" } else { "after" },
        "buffer": pair.buffer, "source": pair.source,
    });
    match &pair.apart {
        ArrayGap::Shape(words) => json["shape"] = words.as_str().into(),
        ArrayGap::By { elements, of, absolute, relative, at } => {
            let number = |value: f64| {
                if value.is_finite() { Json::from(value) } else { value.to_string().into() }
            };
            json["elements"] = (*elements).into();
            json["of"] = (*of).into();
            json["absolute"] = number(*absolute);
            json["relative"] = number(*relative);
            json["first_at"] = (*at).into();
        }
    }
    json
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_coarser_type_decides() {
        let exact = Tensor::of(&[2], &[1.0f32, 2.0]);
        let near = Tensor::of(&[2], &[1.0f64, 2.000_001]);
        let far = Tensor::of(&[2], &[1.0f32, 2.1]);
        assert_eq!(apart(&exact, &near, Tolerances::default()), None);
        assert!(apart(&exact, &near, Tolerances { rtol: Some(0.0), atol: Some(0.0) }).is_some());
        let Some(ArrayGap::By { elements: 1, of: 2, at: 1, .. }) =
            apart(&exact, &far, Tolerances::default())
        else {
            panic!()
        };
    }

    #[test]
    fn what_the_verdict_names_is_shown_first() {
        let pair = |index: usize| ArrayPair {
            key: LaunchKey { rank: 0, run: 0, iteration: Vec::new(), kernel: format!("k{index}") },
            is_input: false,
            buffer: String::new(),
            source: None,
            apart: ArrayGap::By {
                elements: 1,
                of: 1,
                absolute: 1.0,
                relative: index as f64,
                at: 0,
            },
        };
        let differ: Vec<ArrayPair> = (0..2 * MOST).map(pair).collect();
        let found = RunDiff {
            arrays: 1,
            ranks: 1,
            differ,
            origin: Some(pair(2)),
            only: Default::default(),
        };
        let shown: Vec<&str> = found.shown().iter().map(|pair| pair.key.kernel.as_str()).collect();
        assert_eq!(shown, ["k2", "k9", "k10", "k11", "k12", "k13", "k14", "k15"]);
        assert!(found.render().contains("8 of 16 differences are shown"), "{}", found.render());
    }

    #[test]
    fn nan_equals_only_nan() {
        let nan = Tensor::of(&[1], &[f32::NAN]);
        let one = Tensor::of(&[1], &[1.0f32]);
        assert_eq!(apart(&nan, &nan, Tolerances::default()), None);
        assert!(apart(&nan, &one, Tolerances { rtol: Some(1e9), atol: Some(1e9) }).is_some());
        assert!(matches!(
            apart(&one, &Tensor::of(&[1, 1], &[1.0f32]), Tolerances::default()),
            Some(ArrayGap::Shape(_))
        ));
    }
}
