//! The page's input: `halflap.page/1`, one JSON object that its script draws.
//!
//! Numbers are columns (a vector for each field) and every operation is an index, so that a program
//! of ten thousand operations stays small. Text was made presentable before: it is short and has no
//! control characters. Times are nanoseconds, sizes bytes.

use std::ops::Range;

use serde::{Serialize, Serializer};

use crate::advice::AdviceLine;
use halflap::simulate::Cause;
use halflap::units::{Bytes, Nanos};

/// A page, or what it shows of one part of a program.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Page {
    /// The name of the input file.
    pub title: String,
    /// Which part of it: the name of a computation; empty for all of it.
    pub part: String,
    /// Which command made it.
    pub command: &'static str,
    /// Advice, largest saving first.
    pub advice: Vec<PageAdvice>,
    /// What comes before the advice: the order that was found.
    pub lead: Option<PageAdvice>,
    /// What stands between the two.
    pub beyond: &'static str,
    /// What holds for all of that together; empty for nothing.
    pub advice_note: &'static str,
    /// Further facts, each a label and a sentence.
    pub facts: Vec<(&'static str, String)>,
    /// What slices represent.
    pub ops: Ops,
    /// The process groups.
    pub groups: Vec<PageGroup>,
    /// The buffers.
    pub buffers: BufferColumns,
    /// What ran when: each order, or each rank.
    pub views: Vec<PageView>,
    /// Whether the first two views are the same program before and after.
    pub compare: bool,
    /// Tables, the collectives' first.
    pub tables: Vec<PageTable>,
    /// What more memory or a faster network would buy.
    pub sweep: Option<Sweep>,
}

/// A line of advice.
#[derive(Clone, Debug, Serialize)]
pub struct PageAdvice {
    /// What helps, how much, and what it costs.
    pub text: String,
    /// The option or the change.
    pub action: String,
    /// Whether the action is something to type.
    pub typed: bool,
}

impl PageAdvice {
    pub(super) fn of(line: &AdviceLine) -> PageAdvice {
        let AdviceLine { text, action, is_typed } = line.clone();
        PageAdvice { text, action, typed: is_typed }
    }
}

/// Operations, by their index.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Ops {
    /// Their names.
    pub name: Vec<String>,
    /// Their parameters or modules, which is what people call them; empty where neither is known.
    pub label: Vec<String>,
    /// What they are.
    pub kind: Vec<PageOpKind>,
    /// What a collective does, or what was fused.
    pub what: Vec<String>,
    /// The process group of a collective.
    pub group: Vec<Maybe>,
    /// What a collective sends, or what others read and write.
    pub bytes: Vec<Maybe>,
    /// Floating-point operations.
    pub flops: Vec<Maybe>,
    /// Where they come from in the user's program.
    pub source: Vec<String>,
    /// What they depend on.
    pub deps: Vec<Vec<u32>>,
    /// The operation that waits for a collective.
    pub waits: Vec<Vec<u32>>,
}

/// What an operation is; written as its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum PageOpKind {
    /// It computes.
    Compute,
    /// It communicates while compute runs.
    Collective,
    /// It communicates, and compute is stalled.
    SyncCollective,
    /// It waits for a collective.
    Wait,
    /// It copies or sets memory.
    Memory,
    /// Several that are too short to be shown apart.
    Several,
}

impl Serialize for PageOpKind {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u8(*self as u8)
    }
}

/// An integer that is not always known; written as -1 where it is not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Maybe(pub Option<u64>);

impl Serialize for Maybe {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            Some(number) => serializer.serialize_u64(number),
            None => serializer.serialize_i8(-1),
        }
    }
}

/// A time, written in tenths of a nanosecond: nothing finer can be seen, and digits cost space.
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd)]
pub struct Time(pub Nanos);

impl Serialize for Time {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let tenths = (self.0.0 * 10.0).round();
        match tenths % 10.0 == 0.0 && tenths.abs() < 1e16 {
            true => serializer.serialize_i64((tenths / 10.0) as i64),
            false => serializer.serialize_f64(tenths / 10.0),
        }
    }
}

/// A process group.
#[derive(Clone, Debug, Serialize)]
pub struct PageGroup {
    /// Its name.
    pub name: String,
    /// The participants, as text.
    pub ranks: String,
}

/// Buffers, by their index.
#[derive(Clone, Debug, Default, Serialize)]
pub struct BufferColumns {
    /// Their names.
    pub name: Vec<String>,
    /// What each occupies.
    pub size: Vec<Bytes>,
    /// Its producer; none, for an input.
    pub maker: Vec<Maybe>,
    /// What it holds.
    pub class: Vec<BufferClass>,
}

/// What a buffer holds, as far as collectives tell; written as its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum BufferClass {
    /// It was there before the step.
    Input,
    /// An all-gather made it.
    Gathered,
    /// A collective that reduces makes or reads it.
    Reduced,
    /// All others.
    Other,
}

impl Serialize for BufferClass {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u8(*self as u8)
    }
}

/// What ran when.
#[derive(Clone, Debug, Default, Serialize)]
pub struct PageView {
    /// Its name: `before`, `after`, `rank 0`.
    pub name: String,
    /// Where on the time axis, which all views share, its first slice begins.
    pub begin: Time,
    /// Where on the time axis it ends.
    pub length: Time,
    /// The lower bound, if it is known.
    pub bound: Option<Time>,
    /// The figures that matter most.
    pub headline: Vec<Figure>,
    /// The lanes, which run concurrently.
    pub lanes: Vec<PageLane>,
    /// What ran, by lane and then by start; in one lane they do not overlap.
    pub slices: Slices,
    /// The stalls of compute.
    pub stalls: StallColumns,
    /// What was alive, if that is known.
    pub memory: Option<MemoryCurve>,
    /// Where the time goes, if slices are too coarse to tell: short ones may have been merged.
    pub spent: Option<PageBudget>,
}

/// Where a view's time goes.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct PageBudget {
    /// Something computes.
    pub compute: Time,
    /// Something communicates and nothing computes.
    pub exposed: Time,
    /// Something is copied or filled, and nothing else runs.
    pub copies: Time,
}

/// A figure of the headline. All views have the same labels.
#[derive(Clone, Debug, Serialize)]
pub struct Figure {
    /// What it is.
    pub label: &'static str,
    /// How much; NaN, which is written as null, where it is not known.
    pub value: f64,
    /// Of what.
    pub unit: PageUnit,
    /// What to compare it with.
    pub note: String,
    /// Whether less of it is better.
    pub better: &'static str,
}

/// The unit of a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum PageUnit {
    /// Nanoseconds.
    Ns,
    /// Bytes.
    Bytes,
    /// A count.
    Count,
    /// Percent.
    Percent,
    /// Bytes in a second.
    Rate,
    /// Floating-point operations in a second.
    Flops,
    /// Places in an order: negative is earlier.
    Places,
    /// No number.
    Text,
}

/// A row of the timeline.
#[derive(Clone, Debug, Serialize)]
pub struct PageLane {
    /// Its name.
    pub name: String,
    /// `compute` or `communication`.
    pub kind: LaneKind,
    /// More about it.
    pub note: String,
}

/// What runs in a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum LaneKind {
    /// Compute.
    Compute,
    /// Communication.
    Communication,
    /// Copies.
    Memory,
}

/// What ran, as columns.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Slices {
    /// In which lane.
    pub lane: Vec<u32>,
    /// Which operation.
    pub op: Vec<u32>,
    /// From when.
    pub start: Vec<Time>,
    /// Until when.
    pub end: Vec<Time>,
    /// Its exposed part.
    pub exposed: Vec<Time>,
}

/// One of [`Slices`].
pub(super) struct PageSlice {
    pub(super) lane: usize,
    pub(super) op: u32,
    pub(super) time: Range<Nanos>,
    pub(super) exposed: Nanos,
}

impl Slices {
    pub(super) fn push(&mut self, slice: PageSlice) {
        self.lane.push(slice.lane as u32);
        self.op.push(slice.op);
        self.start.push(Time(slice.time.start));
        self.end.push(Time(slice.time.end));
        self.exposed.push(Time(slice.exposed));
    }
}

/// The stalls of compute, as columns.
#[derive(Clone, Debug, Default, Serialize)]
pub struct StallColumns {
    /// From when.
    pub start: Vec<Time>,
    /// Until when.
    pub end: Vec<Time>,
    /// For which collective.
    pub of: Vec<Maybe>,
    /// Before which operation.
    pub at: Vec<Maybe>,
    /// Why: a [`StallCause`], by number.
    pub cause: Vec<u8>,
}

/// One of [`StallColumns`].
pub(super) struct PageStall {
    pub(super) time: Range<Nanos>,
    pub(super) of: Maybe,
    pub(super) at: Maybe,
    pub(super) cause: StallCause,
}

/// Why compute stalled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StallCause {
    /// As it was simulated.
    Simulated(Cause),
    /// The collective had not begun.
    Queued,
    /// Its data were on their way.
    Transfer,
    /// It had arrived, and compute had not resumed yet.
    WakeUp,
}

impl StallColumns {
    pub(super) fn push(&mut self, stall: PageStall) {
        self.start.push(Time(stall.time.start));
        self.end.push(Time(stall.time.end));
        self.of.push(stall.of);
        self.at.push(stall.at);
        self.cause.push(match stall.cause {
            StallCause::Simulated(Cause::Needed) => 0,
            StallCause::Simulated(Cause::Synchronous) => 1,
            StallCause::Simulated(Cause::Issued) => 2,
            StallCause::Simulated(Cause::EndOfStep) => 3,
            StallCause::Queued => 4,
            StallCause::Transfer => 5,
            StallCause::WakeUp => 6,
        });
    }
}

/// What was alive: a step curve. Entries `2k` and `2k + 1` belong to operation `k` of the order:
/// while it runs, and when it has freed what it used last.
#[derive(Clone, Debug, Default, Serialize)]
pub struct MemoryCurve {
    /// From when.
    pub time: Vec<Time>,
    /// How much.
    pub bytes: Vec<Bytes>,
    /// The operations as they are issued.
    pub order: Vec<u32>,
    /// The number of the first buffer that the view has.
    pub first_buffer: usize,
    /// Who frees each buffer, from that one on.
    pub freed_by: Vec<Maybe>,
    /// How much may be alive.
    pub limit: Option<Bytes>,
}

/// A table.
#[derive(Clone, Debug, Serialize)]
pub struct PageTable {
    /// What is in it.
    pub title: &'static str,
    /// Its columns.
    pub columns: Vec<PageColumn>,
    /// Its rows.
    pub rows: Vec<Vec<PageCell>>,
    /// The operation that each row is about.
    pub op: Vec<Maybe>,
    /// More about each row's operation.
    pub details: Option<Vec<Vec<(&'static str, String)>>>,
    /// The view that it belongs to, if not to all.
    pub view: Option<u32>,
    /// If rows were left out, how many there were, and what those that are here are: `the most
    /// exposed`.
    pub cut: Option<(usize, &'static str)>,
}

impl PageTable {
    /// The same without columns that have a value in no row.
    pub(super) fn without_empty_columns(mut self) -> PageTable {
        let has_value = |column: usize| {
            self.rows.is_empty() || self.rows.iter().any(|row| row[column].has_value())
        };
        let kept: Vec<bool> = (0..self.columns.len()).map(has_value).collect();
        let only_kept = |place: &mut usize| {
            *place += 1;
            kept[*place - 1]
        };
        let mut place = 0;
        self.columns.retain(|_| only_kept(&mut place));
        for row in &mut self.rows {
            let mut place = 0;
            row.retain(|_| only_kept(&mut place));
        }
        self
    }
}

impl PageCell {
    fn has_value(&self) -> bool {
        match self {
            PageCell::Text(text) => !text.is_empty(),
            PageCell::Time(time) => !time.0.0.is_nan(),
            PageCell::Number(number) => !number.is_nan(),
            PageCell::Size(_) => true,
            PageCell::Empty => false,
        }
    }
}

/// A column.
#[derive(Clone, Debug, Serialize)]
pub struct PageColumn {
    /// Its title.
    pub title: &'static str,
    /// What is in it.
    #[serde(rename = "type")]
    pub unit: PageUnit,
    /// Whether a bar shows its numbers.
    pub bar: bool,
}

/// A cell.
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
pub enum PageCell {
    /// Words.
    Text(String),
    /// A time.
    Time(Time),
    /// A size.
    Size(Bytes),
    /// Another number.
    Number(f64),
    /// Nothing.
    Empty,
}

/// A sweep over memory limits and bandwidths.
#[derive(Clone, Debug, Serialize)]
pub struct Sweep {
    /// The peak of the order that was given.
    pub input_peak: Bytes,
    /// One for each bandwidth.
    pub curves: Vec<Curve>,
}

/// One bandwidth.
#[derive(Clone, Debug, Serialize)]
pub struct Curve {
    /// As a multiple of what the program has.
    pub bandwidth: f64,
    /// The lower bound.
    pub bound: Time,
    /// One for each memory limit, ascending.
    pub points: Vec<Point>,
}

/// One memory limit.
#[derive(Clone, Debug, Serialize)]
pub struct Point {
    /// How much may be alive.
    pub limit: Bytes,
    /// The shortest step that was found; none, if no order keeps the limit.
    pub step_time: Option<Time>,
    /// What of it is exposed communication.
    pub exposed: Option<Time>,
    /// What it needs.
    pub peak: Option<Bytes>,
    /// The smallest peak that was reached, where no order keeps the limit.
    pub smallest_peak: Option<Bytes>,
}
