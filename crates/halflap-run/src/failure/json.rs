//! Failures as JSON: an object with a kind and details.

use serde_json::{Value, json};

use super::{
    Account, Deviation, Endless, Failure, LifetimeViolation, NotFinite, Overrun, Side, Stray, Stuck,
};

/// The format name in a line of a report.
pub const FAULT_FORMAT: &str = "halflap.fault/1";

impl Failure {
    /// `kind`, the human-readable `message`, and if known `rank`, `kernel`, `buffer`,
    /// `computation`, `step`, `source` and what belongs to the kind.
    pub fn to_json(&self) -> Value {
        let mut value =
            json!({ "format": FAULT_FORMAT, "kind": self.kind(), "message": self.to_string() });
        let known = self.known();
        if let (Value::Object(all), Value::Object(known)) = (&mut value, known) {
            all.extend(known);
        }
        value
    }

    fn kind(&self) -> &'static str {
        match self {
            Failure::Panicked { .. } => "panic",
            Failure::TimedOut { .. } => "timed-out",
            Failure::Endless(_) => "endless",
            Failure::NoMemory { .. } => "no-memory",
            Failure::Diverged { .. } => "diverged",
            Failure::Ragged { .. } => "ragged",
            Failure::Untaken { .. } => "untaken",
            Failure::PlansDiffer { .. } => "plans-differ",
            Failure::Lifetime(_) => "lifetime",
            Failure::Overrun(_) => "overrun",
            Failure::NotFinite(_) => "not-finite",
            Failure::Apart { failure, .. } => failure.kind(),
            _ => "failure",
        }
    }

    fn known(&self) -> Value {
        match self {
            Failure::Panicked { rank, at, .. } => json!({ "rank": rank, "kernel": at }),
            Failure::Diverged { rank, own, other, theirs } => {
                json!({ "rank": rank, "collective": own, "other_rank": other, "other_collective": theirs })
            }
            Failure::Ragged { rank, receiver, collective, .. } => {
                json!({ "rank": rank, "other_rank": receiver, "collective": collective })
            }
            Failure::Untaken { rank, receiver, kernel, channel } => {
                json!({ "rank": rank, "other_rank": receiver, "kernel": kernel, "channel": channel })
            }
            Failure::Endless(endless) => never_ends(endless),
            Failure::TimedOut { stuck: Some(stuck), .. } => does_not_come_back(stuck),
            Failure::NoMemory { rank, buffer, bytes, place: (computation, step), .. } => {
                json!({ "rank": rank, "buffer": buffer, "bytes": bytes, "step": step, "computation": computation })
            }
            Failure::Lifetime(violation) => lifetime(violation),
            Failure::Overrun(overrun) => over(overrun),
            Failure::NotFinite(found) => not_finite(found),
            // The account describes the ranks that wait for the kernel.
            Failure::Apart { failure, .. }
                if matches!(**failure, Failure::TimedOut { stuck: Some(_), .. }) =>
            {
                failure.known()
            }
            Failure::Apart { failure, account } => {
                let mut known = failure.known();
                known["account"] = account.to_json();
                known
            }
            _ => json!({}),
        }
    }
}

fn stray(stray: &Stray) -> Value {
    let Stray { collective, source, place: (computation, step), differences } = stray;
    json!({
        "collective": collective, "source": source, "computation": computation, "step": step,
        "differences": differences,
    })
}

impl Account {
    /// For machines.
    pub fn to_json(&self) -> Value {
        let Account { ranks, collective, source, place, iteration, stray: other, text } = self;
        let stray = other.as_ref().map(stray);
        let (computation, step) = place.clone().unzip();
        json!({
            "ranks": ranks, "collective": collective, "source": source, "computation": computation, "step": step,
            "iteration": iteration, "stray": stray, "text": text,
        })
    }
}

fn never_ends(endless: &Endless) -> Value {
    let Endless { rank, name, source, place: (computation, step), turns, period, .. } = endless;
    let counter = endless.counter.as_ref().map(|counter| {
        json!({
            "name": counter.counter, "element": counter.element, "start": counter.start as i64,
            "step": counter.step as i64, "goes_on": counter.goes_on, "limit": counter.limit as i64,
            "ends_after": counter.ends_after.map(|turns| turns as u64),
        })
    });
    json!({
        "rank": rank, "kernel": name, "source": source, "computation": computation, "step": step, "turns": turns,
        "is_proven": endless.is_proven(), "period": period, "counter": counter,
    })
}

fn does_not_come_back(stuck: &Stuck) -> Value {
    let Stuck { rank, kernel, target, source, place: (computation, step), message } = stuck;
    json!({
        "rank": rank, "kernel": kernel, "target": target, "source": source, "computation": computation, "step": step,
        "waits": message,
    })
}

fn lifetime(violation: &LifetimeViolation) -> Value {
    let LifetimeViolation {
        deviation,
        buffer,
        kernel,
        place: (computation, step),
        source,
        rank,
        run,
    } = violation;
    let deviation = match deviation {
        Deviation::DeathMissing => "death-missing",
        Deviation::DeathUnexpected => "death-unexpected",
        Deviation::BirthUnexpected => "birth-unexpected",
        Deviation::BirthMissing => "birth-missing",
    };
    json!({
        "deviation": deviation, "buffer": buffer, "kernel": kernel, "computation": computation, "step": step,
        "source": source, "rank": rank, "run": run,
    })
}

fn over(overrun: &Overrun) -> Value {
    let Overrun { buffers, side, offset, rank, .. } = overrun;
    let side = if *side == Side::End { "end" } else { "start" };
    json!({ "buffers": buffers, "side": side, "offset": offset, "rank": rank })
}

fn not_finite(found: &NotFinite) -> Value {
    let (computation, step) = &found.place;
    let infinity = found.infinity.as_ref().map(
        |first| json!({ "kernel": first.kernel, "buffer": first.buffer, "index": first.index, "source": first.source }),
    );
    json!({
        "kernel": found.kernel, "is_input": found.is_input, "buffer": found.buffer, "index": found.index,
        "value": found.value, "computation": computation, "step": step, "source": found.source,
        "rank": found.rank, "run": found.run, "iteration": found.iteration, "first_infinity": infinity,
    })
}
