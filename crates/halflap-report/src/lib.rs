//! Reports of a schedule, as text and JSON.
//!
//! A [`Summary`] holds the rows; `text` renders it, `json` writes the schedule as JSON, `rewritten`
//! does so for a rewritten program, `listing` shows an order step by step, `mismatch` describes a
//! ledger mismatch. `analysis` is the result of traces, `comparison` a measured step compared with
//! its simulation, and `lanes` prepares both for drawing.

mod advice;
mod analysis;
mod basis;
mod comparison;
mod json;
mod lanes;
mod limit;
mod listing;
pub mod measured;
mod mismatch;
pub mod observe;
pub mod page;
mod played;
mod ran;
mod rates;
mod rewritten;
mod summary;
mod table;
mod text;
mod timing;
pub mod trace;
pub mod width;

pub use advice::{
    AdviceLine, Advised, FoundOrder, HeldByMemory, advice_json, budget_text, render_advice,
};
pub use analysis::{analysis_advice, analysis_notes, render_analysis, write_analysis};
pub use basis::{against_bound, describe_bound};
pub use comparison::{comparison_json, render_comparison};
pub use json::{OptimizerRun, Timed};
pub use lanes::lanes_of;
pub use limit::describe;
pub use listing::listing;
pub use mismatch::write_mismatch;
pub use played::{MemoryStep, Played};
pub use ran::{Ran, RanKind, RanLane, RanSlice, RankWait};
pub use rates::{BusRate, KernelRate};
pub use rewritten::{TimedRewrite, became, carried, group_name, result_size};
pub use summary::{Compared, Row, Stop, Summary};
pub use table::{Bars, Cell, Column, Style, Table, Tone};
pub use text::{called, count, labelled, printable, printable_end, render, warning};
pub use timing::{
    Explained, collective_order, describe_holder, describe_robustness, exposed_by_collective,
    render_explanation, render_kernels, simulation_json, waiting_for_host,
};
