//! Findings of checks, as text.

use std::fmt;

/// An end of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Side {
    Start,
    End,
}

/// How memory differs from what the plan expects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deviation {
    /// It should have been freed and is still alive.
    DeathMissing,
    /// It was freed and should be alive.
    DeathUnexpected,
    /// It was allocated and should not have been.
    BirthUnexpected,
    /// It should have been allocated and was not.
    BirthMissing,
}

/// A buffer whose lifetime differs from the plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LifetimeViolation {
    /// What is wrong.
    pub deviation: Deviation,
    /// The buffer.
    pub buffer: String,
    /// The kernel after which that was found.
    pub kernel: String,
    /// The computation, and the step of its plan that comes next.
    pub place: (String, usize),
    /// The line of the user's program that the kernel comes from.
    pub source: Option<String>,
    /// The rank.
    pub rank: usize,
    /// Which run of the module.
    pub run: usize,
}

impl fmt::Display for LifetimeViolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LifetimeViolation { buffer, kernel, place: (computation, step), rank, run, .. } = self;
        let what = match self.deviation {
            Deviation::DeathMissing => "should have been freed and is still alive",
            Deviation::DeathUnexpected => "was freed and should still be alive",
            Deviation::BirthUnexpected => "was allocated and should not have been",
            Deviation::BirthMissing => "should have been allocated and was not",
        };
        write!(f, "lifetimes: rank {rank}, after '{kernel}' (before step {step} of {computation}")?;
        if let Some(source) = &self.source {
            write!(f, ", {source}")?;
        }
        if *run > 0 {
            write!(f, ", run {run}")?;
        }
        write!(f, "): buffer '{buffer}' {what}")
    }
}

/// A buffer whose canary bytes were overwritten.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Overrun {
    /// The buffers that were there: one, or those that were in the same memory one after the other.
    pub buffers: Vec<String>,
    /// On which side of them.
    pub side: Side,
    /// How far from the buffer the first byte is that was written: 0 is the next one.
    pub offset: usize,
    /// The rank.
    pub rank: usize,
    /// When it was detected: after this kernel, or at the end of the run.
    pub seen: String,
}

/// A position outside a buffer: its distance from the first byte, or from the first byte past the
/// end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Beyond(pub Side, pub usize);

impl fmt::Display for Beyond {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let side = match self.0 {
            Side::Start => "before the start",
            Side::End => "behind the end",
        };
        match self.1 {
            0 => write!(f, "right {side}"),
            1 => write!(f, "1 byte {side}"),
            bytes => write!(f, "{bytes} bytes {side}"),
        }
    }
}

impl fmt::Display for Overrun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Overrun { buffers, side, offset, rank, seen } = self;
        let place = Beyond(*side, *offset + usize::from(*side == Side::Start));
        let names: Vec<String> = buffers.iter().map(|name| format!("'{name}'")).collect();
        let of = match names.len() {
            1 => format!("buffer {}", names[0]),
            _ => {
                format!("the memory in which buffers {} were one after the other", names.join(", "))
            }
        };
        write!(f, "rank {rank}: something was written {place} of {of}; that was seen {seen}. ")?;
        f.write_str("--no-memory-caching (and =start) stops at the kernel that does it")
    }
}

/// A kernel that read or produced NaN or infinities.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotFinite {
    /// The kernel.
    pub kernel: String,
    /// Whether it read or produced it.
    pub is_input: bool,
    /// Whether another rank sent it in a message.
    pub is_received: bool,
    /// The buffer.
    pub buffer: String,
    /// Where in the array.
    pub index: Vec<usize>,
    /// `NaN`, `inf` or `-inf`.
    pub value: String,
    /// The computation, and the step of its plan.
    pub place: (String, usize),
    /// The line of the user's program.
    pub source: Option<String>,
    /// The rank.
    pub rank: usize,
    /// Which run of the module.
    pub run: usize,
    /// The iteration of each enclosing loop.
    pub iteration: Vec<u32>,
    /// Which kernel produced the first infinity from finite numbers, and where.
    pub infinity: Option<FirstInfinity>,
}

/// A kernel that produced an infinity from finite numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct FirstInfinity {
    pub kernel: String,
    pub buffer: String,
    pub index: Vec<usize>,
    pub source: Option<String>,
}

fn with_source(source: Option<&str>) -> String {
    source.map_or(String::new(), |source| format!(" ({source})"))
}

impl fmt::Display for NotFinite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let NotFinite { kernel, buffer, index, value, place: (computation, step), rank, .. } = self;
        let verb = match (self.is_input, self.is_received) {
            (true, _) => "is given",
            (false, true) => "receives",
            (false, false) => "makes",
        };
        let source = with_source(self.source.as_deref());
        write!(
            f,
            "rank {rank}: kernel '{kernel}'{source} {verb} {value} at {index:?} of buffer '{buffer}'"
        )?;
        write!(f, ", step {step} of {computation}")?;
        let iterations = self.iteration.iter().map(|number| format!(", iteration {number}"));
        f.write_str(&iterations.collect::<String>())?;
        if self.run > 0 {
            write!(f, ", run {}", self.run)?;
        }
        if let Some(FirstInfinity { kernel, buffer, index, source }) = &self.infinity {
            let source = with_source(source.as_deref());
            write!(
                f,
                "; '{kernel}'{source} made the first infinity before, at {index:?} of '{buffer}'"
            )?;
        }
        Ok(())
    }
}

/// The collective of a rank that diverged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stray {
    /// The collective.
    pub collective: String,
    /// The line of the user's program that it comes from.
    pub source: Option<String>,
    /// The computation, and the step of its plan.
    pub place: (String, usize),
    /// What differs from the collective of the others: `shape: f32[8], not f32[4]`.
    pub differences: Vec<String>,
}

/// The combined diagnosis of all ranks' records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Account {
    /// The ranks that diverged, or are behind.
    pub ranks: Vec<usize>,
    /// The collective, as recorded by the correct ranks.
    pub collective: String,
    /// The line of the user's program that it comes from.
    pub source: Option<String>,
    /// The computation, and the step of its plan, if a rank has reached it.
    pub place: Option<(String, usize)>,
    /// The iteration of each enclosing loop.
    pub iteration: Vec<u32>,
    /// What a rank that diverged reached instead.
    pub stray: Option<Stray>,
    /// The whole diagnosis, as text.
    pub text: String,
}
