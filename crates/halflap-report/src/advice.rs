//! What can be done about a step, in words and for machines.

use serde_json::{Value, json};

use super::table::{Style, Tone};
use super::text::wrapped;
use super::{against_bound, count};
use halflap::advise::{Advice, Lever};
use halflap::evaluate::Change;
use halflap::explain::{Explanation, Holder};
use halflap::memory::Budget;
use halflap::simulate::Bound;
use halflap::units::Nanos;

/// Advice, and what else its sentences need.
pub struct Advised<'a> {
    /// The advice, largest saving first.
    pub lines: &'a [Advice],
    /// The step as it is.
    pub step_time: Nanos,
    /// The order that was found, which is to be put to use before anything else.
    pub found: Option<FoundOrder>,
    /// What no order can beat, if that is known for the whole step.
    pub bound: Option<Bound>,
    /// What options are added to: empty if they are added to the command that was given.
    pub command: String,
    /// Options that the command needs beside, unless an action sets them.
    pub options: Vec<String>,
    /// How many of the exposed collectives are held by memory.
    pub held_by_memory: HeldByMemory,
}

/// An order that a search found.
#[derive(Clone, Debug, PartialEq)]
pub struct FoundOrder {
    /// The step in the input order, and in this one.
    pub step_time: Change<Nanos>,
    /// What it is: `new order`, or `changed program`.
    pub what: &'static str,
    /// How it gets into a program.
    pub to_use: &'static str,
}

/// How many of how many exposed collectives memory holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeldByMemory {
    /// Those held by memory.
    pub held: usize,
    /// All that were examined.
    pub of: usize,
}

/// A line of advice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdviceLine {
    /// What helps, how much, and what it costs.
    pub text: String,
    /// The option or the change.
    pub action: String,
    /// Whether the action is something to type.
    pub is_typed: bool,
}

impl HeldByMemory {
    /// Counted in explanations.
    pub fn of<'e>(explanations: impl IntoIterator<Item = &'e Explanation>) -> HeldByMemory {
        let mut all = HeldByMemory::default();
        for held in explanations.into_iter().flat_map(|explanation| &explanation.held) {
            all.of += 1;
            all.held += usize::from(matches!(held.by, Holder::Memory(_)));
        }
        all
    }
}

impl Advised<'_> {
    /// What comes before all lines: what the order that was found saves, and how to use it.
    pub fn lead(&self) -> Option<AdviceLine> {
        let FoundOrder { step_time: Change { before, after }, what, to_use } =
            self.found.as_ref()?;
        let saved = 100.0 * (1.0 - after.0 / before.0.max(1.0));
        if saved < LEAST_SAVED {
            return None;
        }
        let bound = self.bound.map(|bound| format!("; it is {}", against_bound(*after, bound)));
        let bound = bound.unwrap_or_default();
        let text = format!(
            "Use the {what}: it saves {saved:.1}% ({before} -> {after}, simulated){bound}."
        );
        Some(AdviceLine { text, action: (*to_use).to_owned(), is_typed: false })
    }

    /// The lines; one that says so, if nothing helps.
    pub fn lines(&self) -> Vec<AdviceLine> {
        if self.lines.is_empty() {
            return vec![self.nothing()];
        }
        self.lines.iter().map(|advice| self.line(advice)).collect()
    }

    fn nothing(&self) -> AdviceLine {
        let found = "Nothing was found that saves 1% or more";
        let text = match self.bound {
            Some(bound) => {
                format!("{found}: the step is {}.", against_bound(self.step_time, bound))
            }
            None => format!("{found}."),
        };
        AdviceLine { text, action: String::new(), is_typed: false }
    }

    fn line(&self, advice: &Advice) -> AdviceLine {
        let (subject, more) = self.words(advice);
        let share = 100.0 * advice.saves.0 / advice.from.0.max(1.0);
        let gain = match advice.is_at_most {
            true => format!("up to {} ({share:.1}%)", advice.saves),
            false => format!("{share:.1}% ({} -> {})", advice.from, advice.step_time),
        };
        let reordered = if advice.from < self.step_time { " more than a better order" } else { "" };
        let text = format!("{subject} {gain}{reordered}{more}.");
        let (action, is_typed) = action(&advice.lever);
        let action = match is_typed {
            true => self.typed(&action),
            false => action,
        };
        AdviceLine { text, action, is_typed }
    }

    /// An action as it is typed.
    fn typed(&self, action: &str) -> String {
        let flag = |option: &str| option.split(' ').next().unwrap_or_default().to_owned();
        let is_kept = |option: &&String| flag(option) != flag(action);
        let options = self.options.iter().filter(is_kept).map(|option| format!("{option} "));
        let options = options.collect::<String>();
        format!("{} {options}{action}", self.command).trim().to_owned()
    }

    /// The sentence before the gain, and the cost after it.
    fn words(&self, advice: &Advice) -> (String, String) {
        let saves = if advice.is_at_most { "could save" } else { "saves" };
        match &advice.lever {
            Lever::Reorder => (
                format!("A better order {saves}"),
                ", at no cost; a longer search, as much or more".to_owned(),
            ),
            Lever::Memory { more, .. } => {
                let HeldByMemory { held, of } = self.held_by_memory;
                let holds = match held {
                    0 => String::new(),
                    _ => format!("; memory holds {held} of {}", count(of, "exposed collective")),
                };
                (format!("More memory {saves}"), format!(", for {more} at the peak{holds}"))
            }
            Lever::FreeOrder => {
                let cost = ", if all ranks run the same order";
                (format!("Letting collectives run in any order {saves}"), cost.to_owned())
            }
            &Lever::Merge { collectives, into, bytes } => {
                let mean = halflap::units::Bytes(bytes.0 / (collectives.max(1) as i64));
                let what = format!("{collectives} collectives of {mean} on average");
                (format!("Merging {what} into {into} {saves}"), ", copies included".to_owned())
            }
            &Lever::Asynchronous { collectives } => {
                let what = count(collectives, "synchronous collective");
                (format!("Compute stalls on {what}; asynchronous ones {saves}"), String::new())
            }
            &Lever::StartOfStep { collectives } => {
                let why = "at the start of the step, before any compute,";
                (format!("{} {saves}", at_an_end(collectives, why)), String::new())
            }
            &Lever::EndOfStep { collectives } => {
                let why = "at the end of the step, after all compute,";
                (format!("{} {saves}", at_an_end(collectives, why)), String::new())
            }
            Lever::ExchangeRows { rows, .. } => {
                let what = format!("Exchanging the looked-up rows ({rows}) in place of gathering");
                (format!("{what} the whole embedding {saves}"), String::new())
            }
            Lever::HalfTheBytes => ("Collectives in half the time save".to_owned(), String::new()),
            Lever::Effort => (format!("A longer search {saves}"), String::new()),
        }
    }
}

/// `Hiding 4 collectives at the end of the step, after all compute,`.
fn at_an_end(collectives: usize, why: &str) -> String {
    format!("Hiding {} {why}", count(collectives, "collective"))
}

/// What is typed or changed, and which of the two it is.
fn action(lever: &Lever) -> (String, bool) {
    let typed = |text: &str| (text.to_owned(), true);
    let change = |text: &str| (text.to_owned(), false);
    match lever {
        Lever::Reorder => typed(""),
        Lever::Memory { budget, .. } => (format!("--memory-budget {}", budget_text(*budget)), true),
        Lever::FreeOrder => typed("--collective-order free"),
        Lever::Merge { .. } => typed("--rewrite"),
        Lever::Effort => typed("--effort thorough"),
        Lever::Asynchronous { .. } => {
            change("use their asynchronous form, and wait where the result is needed")
        }
        Lever::StartOfStep { .. } => change(
            "start them at the end of the step before, or keep the first parameters gathered",
        ),
        Lever::EndOfStep { .. } => {
            change("send the last gradients in smaller pieces, so that less is left at the end")
        }
        Lever::ExchangeRows { .. } => change(
            "look rows up on the ranks that hold them: exchange indices and rows (all-to-all)",
        ),
        Lever::HalfTheBytes => change(
            "send fewer bytes (a narrower type), shard over fewer ranks, or use a faster link; \
             latency stays, so merge small ones",
        ),
    }
}

/// A budget as it is typed.
pub fn budget_text(budget: Budget) -> String {
    match budget {
        Budget::Times(times) => format!("{times}x"),
        Budget::Absolute(bytes) if bytes.0 & 0xf_ffff == 0 => format!("{}MiB", bytes.0 >> 20),
        Budget::Absolute(bytes) => format!("{}B", bytes.0),
    }
}

/// What applies to all lines of advice together.
pub(crate) fn together(lines: &[AdviceLine]) -> &'static str {
    match lines {
        [] | [_] => "",
        _ => "Each is for one change alone: together they may save less than the sum.",
    }
}

/// What stands between the order that was found and the lines, which go beyond it.
pub(crate) const BEYOND: &str = "Beyond that:";

/// What an order must save, in percent, for its use to be advised.
const LEAST_SAVED: f64 = 0.1;

/// The lines for a terminal, with their heading.
pub fn render_advice(advised: &Advised<'_>, style: &Style) -> String {
    let lines = advised.lines();
    let note = match together(&lines) {
        "" => String::new(),
        note => format!("  {}\n", wrapped(note, 2, style)),
    };
    let lead = advised.lead();
    let beyond = lead.as_ref().map(|_| format!("  {BEYOND}\n")).unwrap_or_default();
    let lead = lead.map(|AdviceLine { text, action, .. }| {
        format!("  {}\n     {}\n", wrapped(&text, 2, style), wrapped(&action, 5, style))
    });
    let lead = lead.unwrap_or_default();
    format!("{}{lead}{beyond}{}{note}\n", heading(style), numbered(&lines, style))
}

/// The same for lines that are already made.
pub(crate) fn render_lines(lines: &[AdviceLine], style: &Style) -> String {
    heading(style) + &numbered(lines, style)
}

fn heading(style: &Style) -> String {
    format!("{}\n", style.paint("What you can do", Tone::Heading))
}

fn numbered(lines: &[AdviceLine], style: &Style) -> String {
    let mut text = String::new();
    for (number, line) in lines.iter().enumerate() {
        text.push_str(&format!("  {}. {}\n", number + 1, wrapped(&line.text, 5, style)));
        if !line.action.is_empty() {
            text.push_str(&format!("     {}\n", wrapped(&line.action, 5, style)));
        }
    }
    text
}

/// The same for machines.
pub fn advice_json(advised: &Advised<'_>) -> Value {
    let one = |advice: &Advice| {
        let line = advised.line(advice);
        let mut value = json!({
            "kind": kind(&advice.lever),
            "from": advice.from.0,
            "saves": advice.saves.0,
            "step_time": advice.step_time.0,
            "is_at_most": advice.is_at_most,
            "text": line.text,
            "action": line.action,
        });
        if let Lever::Memory { more, .. } = &advice.lever {
            value["more_memory"] = json!(more.0);
        }
        if let Lever::Merge { collectives, into, .. } = &advice.lever {
            value["collectives"] = json!(collectives);
            value["into"] = json!(into);
        }
        value
    };
    Value::Array(advised.lines.iter().map(one).collect())
}

fn kind(lever: &Lever) -> &'static str {
    match lever {
        Lever::Reorder => "reorder",
        Lever::Memory { .. } => "memory",
        Lever::FreeOrder => "free_order",
        Lever::Merge { .. } => "merge",
        Lever::Asynchronous { .. } => "asynchronous",
        Lever::StartOfStep { .. } => "start_of_step",
        Lever::EndOfStep { .. } => "end_of_step",
        Lever::ExchangeRows { .. } => "exchange_rows",
        Lever::HalfTheBytes => "half_the_bytes",
        Lever::Effort => "effort",
    }
}
