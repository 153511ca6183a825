//! A run's report on the origins of its NaN and infinities (`halflap.origins/1`).

use std::collections::BTreeSet;

use serde_json::Value as Json;

use super::fault::text;

/// The most of a kind that are listed individually.
const LISTED: usize = 3;

/// The account of a run.
pub struct OriginsReport {
    json: Json,
}

/// What spoils results, and since when.
pub struct NonFiniteOrigin {
    /// Where it begins, as `halflap.origins/1` has it.
    pub origin: Json,
    /// What turns another's infinity into NaN: `'mul.1' in 'fusion'`.
    pub victim: Option<String>,
    pub is_nan: bool,
    /// Further origins that reach results.
    others: Vec<Json>,
}

impl NonFiniteOrigin {
    pub fn kernel(&self) -> &str {
        text(&self.origin, "kernel").unwrap_or("")
    }

    /// What begins there, in words: `'log.1' in 'fusion'`.
    pub fn maker(&self) -> String {
        within(&self.origin, &self.origin)
    }

    /// The instruction inside of the kernel, if the kernel runs several.
    pub fn instruction(&self) -> Option<&str> {
        inner(&self.origin, self.kernel()).filter(|_| self.is_made())
    }

    pub fn is_made(&self) -> bool {
        is_made(&self.origin)
    }

    /// The lookup that was filled with the NaN that spread, as it was given an index out of range.
    pub fn lookup(&self) -> Option<&Json> {
        Some(&self.origin["lookup"]).filter(|lookup| lookup.is_object())
    }

    /// The first NaN of a run that does not complete.
    pub fn at(origin: Json) -> NonFiniteOrigin {
        NonFiniteOrigin { origin, victim: None, is_nan: true, others: Vec::new() }
    }

    /// Further origins, in words: `; the same happens with 7 other ranks and 2 other kernels`.
    pub fn others(&self) -> String {
        let is_same = |other: &&Json| other["kernel"] == self.origin["kernel"];
        let (same, different): (Vec<&Json>, Vec<&Json>) = self.others.iter().partition(is_same);
        let ranks: BTreeSet<u64> = same.iter().filter_map(|other| other["rank"].as_u64()).collect();
        let ranks = ranks.into_iter().filter(|&rank| self.origin["rank"] != rank).count();
        let kernels: BTreeSet<&str> =
            different.iter().filter_map(|other| text(other, "kernel")).collect();
        let some = |count: usize, what: &str| match count {
            0 => None,
            1 => Some(format!("1 other {what}")),
            _ => Some(format!("{count} other {what}s")),
        };
        let all: Vec<String> =
            [some(ranks, "rank"), some(kernels.len(), "kernel")].into_iter().flatten().collect();
        if all.is_empty() {
            String::new()
        } else {
            format!("; the same happens with {}", all.join(" and "))
        }
    }
}

impl OriginsReport {
    pub fn read(text: &str) -> Option<OriginsReport> {
        serde_json::from_str(text).ok().map(|json| OriginsReport { json })
    }

    fn list(&self, name: &str) -> &[Json] {
        self.json[name].as_array().map_or(&[], Vec::as_slice)
    }

    fn has(&self, what: &str) -> bool {
        self.list("results").iter().any(|result| result[what] == true)
    }

    /// What makes results NaN.
    pub fn nan(&self) -> Option<NonFiniteOrigin> {
        let all = self.list("nan");
        let first = all.first().filter(|_| self.has("nan"))?;
        let behind = self.list("behind").first().filter(|behind| is_made(behind));
        let of = first["of"].as_array().map_or(&[][..], Vec::as_slice);
        let is_behind = behind.is_some_and(|behind| of.contains(&behind["id"]));
        let others = if is_behind { self.list("behind")[1..].to_vec() } else { all[1..].to_vec() };
        Some(match behind.filter(|_| is_behind) {
            Some(origin) => {
                let victim = text(first, "kernel").map(|_| within(first, first));
                NonFiniteOrigin { origin: origin.clone(), victim, is_nan: false, others }
            }
            None => NonFiniteOrigin { origin: first.clone(), victim: None, is_nan: true, others },
        })
    }

    /// What makes results infinite, if a kernel does.
    pub fn infinity(&self) -> Option<NonFiniteOrigin> {
        let all = self.list("infinity");
        let origin = all.first().filter(|first| first["how"] == "made" && self.has("infinity"))?;
        Some(NonFiniteOrigin {
            origin: origin.clone(),
            victim: None,
            is_nan: false,
            others: all[1..].to_vec(),
        })
    }

    /// The results that have something: `result 0 (f32[64]) on ranks 0, 1`.
    pub fn spoiled(&self, what: &str) -> String {
        let results = || self.list("results").iter().filter(|result| result[what] == true);
        let Some(first) = results().next() else { return "no result".to_owned() };
        let is_same =
            |result: &&Json| result["output"] == first["output"] && result["run"] == first["run"];
        let ranks: Vec<String> =
            results().filter(is_same).map(|result| result["rank"].to_string()).collect();
        let word = if ranks.len() == 1 { "rank" } else { "ranks" };
        let kind = text(first, "type").unwrap_or("");
        format!("result {} ({kind}) on {word} {}", first["output"], ranks.join(", "))
    }

    /// A note on results that are not finite, for which no kernel is to blame.
    pub fn intended(&self) -> Option<String> {
        let what = ["nan", "infinity"].into_iter().find(|what| self.has(what))?;
        let has = if what == "nan" { "NaN" } else { "infinities" };
        let origin = self.list(what).first();
        let buffer = origin.and_then(|origin| text(origin, "buffer")).unwrap_or("");
        let from = match origin.and_then(|origin| text(origin, "how")) {
            Some("mask") => {
                let kernel = origin.and_then(|origin| text(origin, "kernel")).unwrap_or("");
                let has = self.spoiled(what);
                return Some(format!(
                    "{has} has infinities, and '{kernel}' takes the logarithm of a mask of zeros \
                     and ones: they are meant"
                ));
            }
            Some("filled") => match origin.map(|origin| lookup_words(&origin["lookup"])) {
                Some(Some(words)) => {
                    return Some(format!("{} has NaN: {words}", self.spoiled(what)));
                }
                _ => "a lookup without a valid index is filled with them".to_owned(),
            },
            Some("picked") => {
                let (place, at) = origin.map(picked_words).unwrap_or_default();
                let has = self.spoiled(what);
                return Some(format!(
                    "{has} has NaN: {place} puts those of a constant there, the first at {at}; no \
                     kernel makes them"
                ));
            }
            Some("input") => format!("input '{buffer}' has them"),
            Some("constant") => "constants of the module have them".to_owned(),
            _ => format!("'{buffer}' has them, which no kernel wrote"),
        };
        Some(format!("{} has {has}, and {from}: no kernel makes them", self.spoiled(what)))
    }

    /// Notes on kernels that make NaN that no result has.
    pub fn hidden(&self) -> Vec<String> {
        let kernels = once_each(self.list("hidden"));
        let more = kernels.len().saturating_sub(LISTED);
        let one = |origin: &&Json| {
            format!("{} makes NaN that reaches no result{}", maker(origin), compared(origin))
        };
        let mut notes: Vec<String> = kernels.iter().take(LISTED).map(one).collect();
        notes.extend(
            (more > 0).then(|| format!("{more} more kernels make NaN that reaches no result")),
        );
        notes
    }

    /// The first custom call that changed how its thread rounds.
    pub fn rounding(&self) -> Option<&Json> {
        self.list("rounding").first()
    }

    /// Notes on custom calls that leave memory allocated.
    pub fn leaks(&self) -> Vec<String> {
        let one = |leak: &&Json| {
            let (kernel, around) = (text(leak, "kernel").unwrap_or(""), around(leak));
            format!(
                "'{kernel}'{around} keeps about {} bytes of memory at each call, seen in {} calls",
                leak["bytes"], leak["calls"]
            )
        };
        once_each(self.list("leaks")).iter().take(LISTED).map(one).collect()
    }

    /// Notes on indices out of range.
    pub fn clamped(&self) -> Vec<String> {
        let one = |clamped: &&Json| {
            let (kernel, around) = (text(clamped, "kernel").unwrap_or(""), around(clamped));
            let (index, most, dimension) =
                (&clamped["index"], &clamped["most"], &clamped["dimension"]);
            let used =
                if index.as_i64().is_some_and(|index| index < 0) { &Json::from(0) } else { most };
            let done = match clamped["dropped"] == true {
                true => "drops the update".to_owned(),
                false => format!("clamps it to {used}"),
            };
            format!(
                "'{kernel}'{around} is given index {index} for dimension {dimension}, where 0 to {most} are in range: \
                 HLO {done}"
            )
        };
        once_each(self.list("clamped")).iter().take(LISTED).map(one).collect()
    }
}

/// An instruction that is run by a launch: `'sqrt.0' in 'fusion'`.
fn within(instruction: &Json, launch: &Json) -> String {
    let kernel = text(launch, "kernel").unwrap_or("");
    match inner(instruction, kernel) {
        Some(name) => format!("'{name}' in '{kernel}'"),
        None => format!("'{kernel}'"),
    }
}

/// An instruction that a launch runs; `None` if the launch is nothing else. An element of what a
/// launch makes has its name and a number.
fn inner<'j>(instruction: &'j Json, kernel: &str) -> Option<&'j str> {
    let name = text(instruction, "instruction").filter(|name| !name.is_empty())?;
    let is_inner = name.split('{').next() != Some(kernel);
    is_inner.then_some(name)
}

/// What makes NaN, and where.
fn maker(origin: &Json) -> String {
    format!("{}{}", within(origin, origin), around(origin))
}

/// What compares such a NaN.
fn compared(origin: &Json) -> String {
    let by = &origin["compared"];
    if !by.is_object() {
        return String::new();
    }
    let source = text(by, "source").map_or(String::new(), |source| format!(" ({source})"));
    format!(
        "; {}{source} compares it, and NaN is neither less nor greater than anything",
        within(by, by)
    )
}

/// Which `select` puts a constant NaN somewhere, and at which index first.
fn picked_words(origin: &Json) -> (String, String) {
    let index = origin["index"].as_array().map_or(&[][..], Vec::as_slice);
    let index: Vec<String> = index.iter().map(Json::to_string).collect();
    (maker(origin), format!("[{}]", index.join(", ")))
}

/// Whether a launch made what begins here.
fn is_made(origin: &Json) -> bool {
    origin["how"] == "made" || origin["how"] == "mask"
}

/// Which index of which lookup is out of range, so that it is filled with NaN.
pub fn lookup_words(lookup: &Json) -> Option<String> {
    let kernel = text(lookup, "kernel")?;
    let (name, index, most) = (text(lookup, "name")?, &lookup["index"], &lookup["most"]);
    let within = if name == kernel { String::new() } else { format!(" in '{kernel}'") };
    let source =
        text(lookup, "input").map_or(String::new(), |name| format!(" (of input '{name}')"));
    let around = around(lookup);
    Some(format!(
        "lookup '{name}'{within}{around} is given index {index}{source} for dimension {}, where 0 \
         to {most} are in range, and the program fills its rows with NaN",
        lookup["dimension"]
    ))
}

/// The first of each kernel.
fn once_each(all: &[Json]) -> Vec<&Json> {
    let mut kernels: Vec<&Json> = Vec::new();
    for one in all {
        if !kernels.iter().any(|other| other["kernel"] == one["kernel"]) {
            kernels.push(one);
        }
    }
    kernels
}

/// Where something happened: ` (model.py:7) on rank 3, iteration 2`.
fn around(origin: &Json) -> String {
    let source = text(origin, "source").map_or(String::new(), |source| format!(" ({source})"));
    let iterations = origin["iteration"].as_array().map_or(&[][..], Vec::as_slice);
    let iterations: String =
        iterations.iter().map(|number| format!(", iteration {number}")).collect();
    format!("{source} on rank {}{iterations}", origin["rank"])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_infinity_behind_a_nan_is_the_cause() {
        let made = |id: u32, kernel: &str| serde_json::json!({ "id": id, "how": "made", "kernel": kernel, "rank": 3, "of": if id == 1 { vec![0] } else { vec![] } });
        let results = serde_json::json!([{ "rank": 0, "run": 0, "output": 0, "type": "f32[4]", "nan": true }]);
        let json = serde_json::json!({ "results": results, "nan": [made(1, "sub")], "behind": [made(0, "exp")] });
        let origins = OriginsReport::read(&json.to_string()).unwrap();
        let cause = origins.nan().unwrap();
        assert_eq!(
            (cause.kernel(), cause.victim.as_deref(), cause.is_nan),
            ("exp", Some("'sub'"), false)
        );
        assert_eq!(origins.spoiled("nan"), "result 0 (f32[4]) on rank 0");
        assert!(origins.infinity().is_none() && OriginsReport::read("{").is_none());
    }
}
