//! The results of a run, on the terminal.

use halflap::units::{Bytes, Nanos};
use halflap_report::{count, labelled, printable};
use halflap_run::exec::{Outcome, Prepared};
use serde_json::{Value, json};

use super::contention::Contention;
use super::draw::ran;
use super::measure::{self, Typical};
use super::tune::Tuned;
use super::{RunJob, profile};
use crate::args::{self, Backend};
use crate::execution::plans::UnitOrders;
use crate::exit::Failed;
use crate::place::Output;
use crate::source::assumed_ranks;
use crate::terminal;

/// A completed run.
pub(super) struct Finished<'a> {
    pub(super) program: &'a Prepared,
    pub(super) outcome: &'a Outcome,
    pub(super) orders: &'a UnitOrders,
}

/// The results of the other orders.
#[derive(Default)]
pub(super) struct Others {
    pub(super) compared: Option<BothOrders>,
    pub(super) tuned: Option<Tuned>,
}

/// The summary of a run.
pub(super) fn render(job: &RunJob<'_>, finished: &Finished<'_>, others: &Others) -> String {
    let Finished { program, outcome, .. } = finished;
    let args = job.args;
    let slowest = Typical::of(outcome).rank;
    let waited = ran(finished, slowest).waited();
    let style = terminal::style();
    let backend = match (args.backend, &args.emulate_link) {
        (Backend::Mpi, _) => "MPI processes".to_owned(),
        (Backend::Threads, None) => "threads of one process".to_owned(),
        (Backend::Threads, Some(link)) => format!(
            "threads of one process; collectives as on {:.3} GB/s, {}",
            link.bandwidth / 1e9,
            Nanos(link.latency.as_nanos() as f64)
        ),
    };
    let parts = waited.parts().map(|(what, time)| format!("{what} {time}")).join(", ");
    let mut lines = vec![
        ("module", printable(job.source.module.name())),
        ("ranks", format!("{}: {backend}", outcome.ranks.len())),
        ("order", order(args, others)),
        ("step time", step_time(outcome)),
        ("exposed", format!("{} of it: {parts}; rank {slowest}, the slowest", waited.total())),
        ("peak memory", peak(program, outcome)),
    ];
    if let Some(assumed) = assumed_ranks(&job.source.module) {
        lines.insert(2, ("assumed", assumed));
    }
    lines.extend(program.notes.iter().map(|note| ("note", printable(note))));
    lines.extend(args.output.as_ref().and_then(Output::path).map(|path| {
        let arrays = outcome.ranks.iter().map(|rank| rank.outputs.len()).sum();
        ("outputs", format!("{} to {}", count(arrays, "array"), printable(path)))
    }));
    let summary: String =
        lines.iter().map(|(label, value)| labelled(label, value, &style)).collect();
    let compared = others.compared.as_ref().map_or(String::new(), BothOrders::render);
    summary + &compared + &others.tuned.as_ref().map_or(String::new(), Tuned::render)
}

fn order(args: &args::Run, others: &Others) -> String {
    if let Some(tuned) = &others.tuned {
        return tuned.order();
    }
    match (&args.order, args.orders.input_order) {
        (Some(input), _) => printable(input.name()),
        (None, true) => "the module's own".to_owned(),
        (None, false) => "ours".to_owned(),
    }
}

/// The summary for machines: times in nanoseconds, sizes in bytes.
pub(super) fn to_json(job: &RunJob<'_>, finished: &Finished<'_>, others: &Others) -> Value {
    let Finished { program, outcome, .. } = finished;
    let args = job.args;
    let backend = match args.backend {
        Backend::Mpi => "mpi",
        Backend::Threads => "threads",
    };
    let link = args
        .emulate_link
        .map(|link| json!({ "bandwidth": link.bandwidth, "latency": link.latency.as_nanos() }));
    let times = measure::step_times(outcome);
    let shown = ran(finished, Typical::of(outcome).rank);
    let waited = shown.waited();
    let communication: Nanos = shown.collectives().map(|slice| slice.end - slice.start).sum();
    let peaks: Vec<i64> = outcome.ranks.iter().map(|rank| rank.peak.0).collect();
    let compared = others.compared.as_ref().map(|both| {
        let of = |index: usize| {
            json!({
                "step_time": both.measured[index], "simulated_step_time": both.simulated[index],
                "exposed": both.exposed[index].0,
            })
        };
        let Contention { compute, communication } = both.contention;
        let contention = json!({ "slowdown": compute, "comm_slowdown": communication });
        json!({ "input_order": of(0), "ours": of(1), "contention": contention })
    });
    json!({
        "format": "halflap.run/1",
        "module": job.source.module.name(),
        "ranks": outcome.ranks.len(),
        "ranks_assumed": job.source.module.assumed_devices().is_some(),
        "backend": backend,
        "emulated_link": link,
        "order": order(args, others),
        "step_times": times,
        "step_time": measure::median(times.clone()),
        "compute": shown.compute().0,
        "communication": communication.0,
        "exposed": waited.total().0,
        "queued": waited.queued.0,
        "transfer": waited.transfer.0,
        "wake_up": waited.wake_up.0,
        "slowest_rank": Typical::of(outcome).rank,
        "peak_memory": peaks.iter().max(),
        "planned_peak_memory": program.peak,
        "notes": program.notes,
        "compared": compared,
        "tuned": others.tuned.as_ref().map(Tuned::to_json),
    })
}

fn step_time(outcome: &Outcome) -> String {
    let times = measure::step_times(outcome);
    let least = times.iter().copied().fold(f64::INFINITY, f64::min);
    let most = times.iter().copied().fold(0.0, f64::max);
    let steps = count(times.len(), "step");
    match times.len() {
        1 => format!("{}, one step", Nanos(most)),
        _ => format!(
            "{}, the median of {steps} ({} to {})",
            Nanos(measure::median(times)),
            Nanos(least),
            Nanos(most)
        ),
    }
}

fn peak(program: &Prepared, outcome: &Outcome) -> String {
    let most = outcome.ranks.iter().map(|rank| rank.peak).max().unwrap_or(Bytes::ZERO);
    let planned = Bytes(program.peak);
    let agrees = match most == planned {
        true => "as planned".to_owned(),
        false => format!(
            "of {planned} planned for the worst case of data-dependent control flow ({} bytes)",
            planned.0
        ),
    };
    format!("{most} requested at most ({} bytes), {agrees}", most.0)
}

/// Both orders, measured and simulated.
pub(super) struct BothOrders {
    measured: [f64; 2],
    simulated: [f64; 2],
    exposed: [Nanos; 2],
    /// How much compute and communication slow each other down in our order.
    contention: Contention,
    steps: usize,
}

impl BothOrders {
    /// Simulates both with the times that were measured in each.
    pub(super) fn new(
        job: &mut RunJob<'_>,
        runs: &[Finished<'_>; 2],
    ) -> Result<BothOrders, Failed> {
        let mut simulated = [0.0; 2];
        for (index, run) in runs.iter().enumerate() {
            job.source.measured(profile(run.program, run.outcome)?);
            simulated[index] = job.source.simulated(run.orders)?.step_time.0;
        }
        let measured =
            [0, 1].map(|index| measure::median(measure::step_times(runs[index].outcome)));
        let exposed = [0, 1].map(|index| {
            let run = &runs[index];
            ran(run, Typical::of(run.outcome).rank).waited().total()
        });
        let alone = measure::profile(&[(runs[0].program, runs[0].outcome)]);
        let contention = Contention::of(&alone, runs[1].program, runs[1].outcome);
        let steps = measure::step_times(runs[0].outcome).len();
        Ok(BothOrders { measured, simulated, exposed, contention, steps })
    }

    pub(super) fn render(&self) -> String {
        use halflap_report::{Column, Table};
        let columns = ["", "step time measured", "simulated", "exposed measured"];
        let mut table = Table::new(
            columns
                .iter()
                .map(|title| match title.is_empty() {
                    true => Column::text("order"),
                    false => Column::number(title),
                })
                .collect(),
        );
        for (index, name) in ["the module's own", "ours"].into_iter().enumerate() {
            let times =
                [Nanos(self.measured[index]), Nanos(self.simulated[index]), self.exposed[index]];
            let mut row = vec![name.to_owned().into()];
            row.extend(times.map(|time| time.to_string().into()));
            table.row(row);
        }
        let ratio = |times: [f64; 2]| if times[0] > 0.0 { times[1] / times[0] } else { 1.0 };
        let (measured, simulated) = (ratio(self.measured), ratio(self.simulated));
        table.row(vec![
            "ours over own".to_owned().into(),
            format!("{measured:.3}").into(),
            format!("{simulated:.3}").into(),
            String::new().into(),
        ]);
        let apart = 100.0 * (measured / simulated - 1.0);
        let Contention { compute, communication } = self.contention;
        format!(
            "\n{}simulated with the times measured in each order; the ratios are {apart:+.1}% apart (median of {})\n\
             when they overlap, compute takes {compute:.2} times as long and communication {communication:.2} times \
             (--slowdown {compute:.2} --comm-slowdown {communication:.2})\n",
            table.render(&terminal::style()),
            count(self.steps, "step")
        )
    }
}
