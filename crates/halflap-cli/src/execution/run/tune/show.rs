//! The candidates, as a table and as JSON.

use std::time::Duration;

use halflap::units::{Bytes, Nanos};
use halflap_report::{Column, Table, count};
use serde_json::{Value, json};

use super::choose::Measured;
use super::{OrderWay, Outputs};
use crate::terminal;

/// A candidate that was measured.
pub(super) struct MeasuredCandidate {
    pub(super) way: OrderWay,
    pub(super) measured: Measured,
    /// With the times of the module's own order.
    pub(super) simulated: Nanos,
    pub(super) peak: Bytes,
    pub(super) outputs: Outputs,
}

/// The fastest candidate.
pub(in crate::execution::run) struct Tuned {
    /// The first is the module's own order.
    pub(super) rows: Vec<MeasuredCandidate>,
    pub(super) chosen: usize,
    pub(super) rounds: usize,
    pub(super) limit: Duration,
    pub(super) left_out: Vec<(OrderWay, String)>,
}

impl Tuned {
    /// The order that is used, in the words of the summary.
    pub(in crate::execution::run) fn order(&self) -> String {
        match self.rows[self.chosen].way {
            OrderWay::Input => "the module's own".to_owned(),
            way => format!("ours ({})", way.name()),
        }
    }

    pub(in crate::execution::run) fn render(&self) -> String {
        let mut table = Table::new(vec![
            Column::text("order"),
            Column::number("step"),
            Column::number("of input"),
            Column::number("95% of medians"),
            Column::number("simulated"),
            Column::number("peak memory"),
            Column::text("outputs"),
            Column::text(""),
        ]);
        let mut rows: Vec<(usize, &MeasuredCandidate)> = self.rows.iter().enumerate().collect();
        rows.sort_by(|(_, a), (_, b)| a.measured.ratio.total_cmp(&b.measured.ratio));
        for (index, row) in rows {
            let chosen = if index == self.chosen { "chosen" } else { "" };
            table.row(row.cells().into_iter().chain([chosen.to_owned()]).map(Into::into).collect());
        }
        let mut text = format!("\n{}", table.render(&terminal::style()));
        for (way, why) in &self.left_out {
            text.push_str(&format!("{} left out: {why}\n", way.name()));
        }
        text.push_str(&count(self.rounds, "round"));
        if self.is_short() {
            let limit = self.limit.as_secs_f64();
            let why =
                format!(" in {limit} s are too few to be sure, so the module's own order is used");
            text.push_str(&format!(
                "{why}: give more time, such as --tune={}s",
                (4.0 * limit).ceil()
            ));
        }
        text + "\n"
    }

    /// Whether there were not enough rounds for a choice.
    fn is_short(&self) -> bool {
        self.rows.iter().skip(1).any(|row| row.measured.interval.is_none())
    }

    pub(in crate::execution::run) fn to_json(&self) -> Value {
        let candidate =
            |way: OrderWay| json!({ "order": way.order(), "memory_budget": way.memory_budget() });
        let left_out = |(way, why): &(OrderWay, String)| json!({ "candidate": candidate(*way), "reason": why });
        let row = |row: &MeasuredCandidate| {
            json!({
                "candidate": candidate(row.way),
                "step_time": row.measured.step_time,
                "ratio": row.measured.ratio,
                "low": row.measured.interval.map(|(low, _)| low),
                "high": row.measured.interval.map(|(_, high)| high),
                "simulated_step_time": row.simulated,
                "peak_memory": row.peak,
                "equal_bits": row.outputs == Outputs::EqualBits,
            })
        };
        json!({
            "chosen": candidate(self.rows[self.chosen].way),
            "rows": self.rows.iter().map(row).collect::<Vec<_>>(),
            "rounds": self.rounds,
            "left_out": self.left_out.iter().map(left_out).collect::<Vec<_>>(),
        })
    }
}

impl MeasuredCandidate {
    fn cells(&self) -> [String; 7] {
        let interval = self.measured.interval.map(|(low, high)| format!("{low:.3} to {high:.3}"));
        let outputs = match self.outputs {
            Outputs::EqualBits => "equal bits",
            _ => "close",
        };
        [
            self.way.name(),
            self.measured.step_time.to_string(),
            format!("{:.3}x", self.measured.ratio),
            interval.unwrap_or_else(|| "-".to_owned()),
            self.simulated.to_string(),
            self.peak.to_string(),
            outputs.to_owned(),
        ]
    }
}
