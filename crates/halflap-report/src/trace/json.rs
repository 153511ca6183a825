//! The trace event format: JSON, which every viewer takes. A track is a thread here, times are
//! microseconds.

use std::io::{self, Write};

use serde_json::{Map, Value, json};

use super::{Process, Ran, SliceNote, TracedPart, TrackSlice, processes, ran_processes};

/// Writes orders as trace events.
pub fn write_json(parts: &[TracedPart<'_>], out: &mut impl Write) -> io::Result<()> {
    write_all(&processes(parts), out)
}

/// Writes what ranks did as trace events.
pub fn write_ran_json(ranks: &[Ran], out: &mut impl Write) -> io::Result<()> {
    write_all(&ran_processes(ranks), out)
}

fn write_all(processes: &[Process], out: &mut impl Write) -> io::Result<()> {
    let mut events = Events { out, first: true };
    events.out.write_all(b"{\"displayTimeUnit\":\"ns\",\"traceEvents\":[")?;
    for (place, process) in processes.iter().enumerate() {
        write_process(&mut events, process, place + 1)?;
    }
    events.out.write_all(b"\n]}\n")
}

/// What an event belongs to.
#[derive(Clone, Copy)]
struct Thread {
    pid: usize,
    tid: usize,
}

struct Events<'a, W> {
    out: &'a mut W,
    first: bool,
}

impl<W: Write> Events<'_, W> {
    fn push(&mut self, event: &Value) -> io::Result<()> {
        self.out.write_all(if self.first { b"\n" } else { b",\n" })?;
        self.first = false;
        Ok(serde_json::to_writer(&mut *self.out, event)?)
    }

    fn name(&mut self, what: &str, thread: Thread, args: Value) -> io::Result<()> {
        self.push(
            &json!({ "ph": "M", "name": what, "pid": thread.pid, "tid": thread.tid, "args": args }),
        )
    }
}

fn write_process<W: Write>(
    events: &mut Events<'_, W>,
    process: &Process,
    pid: usize,
) -> io::Result<()> {
    let whole = Thread { pid, tid: 0 };
    events.name("process_name", whole, json!({ "name": process.name }))?;
    events.name("process_sort_index", whole, json!({ "sort_index": pid }))?;
    for (place, track) in process.tracks.iter().enumerate() {
        let thread = Thread { pid, tid: place + 1 };
        events.name("thread_name", thread, json!({ "name": track.name }))?;
        events.name("thread_sort_index", thread, json!({ "sort_index": place }))?;
        for slice in &track.slices {
            write_slice(events, slice, thread)?;
        }
    }
    for level in &process.memory {
        events.push(&json!({
            "ph": "C", "name": "memory", "pid": pid, "tid": 0, "ts": micros(level.time),
            "args": { "bytes": level.bytes }
        }))?;
    }
    Ok(())
}

fn write_slice<W: Write>(
    events: &mut Events<'_, W>,
    slice: &TrackSlice,
    thread: Thread,
) -> io::Result<()> {
    let Thread { pid, tid } = thread;
    let note = |(name, note): &(&str, SliceNote)| {
        let value = match note {
            SliceNote::Text(text) => Value::from(text.as_str()),
            SliceNote::Number(number) => Value::from(*number),
        };
        ((*name).to_owned(), value)
    };
    let (start, time) = (micros(slice.start), micros(slice.end - slice.start));
    events.push(&json!({
        "ph": "X", "name": slice.name, "cat": slice.category, "pid": pid, "tid": tid,
        "ts": start, "dur": time,
        "args": slice.notes.iter().map(note).collect::<Map<_, _>>(),
    }))?;
    for &flow in &slice.leads_to {
        events.push(&json!({
            "ph": "s", "name": "wait", "cat": "wait", "id": flow + 1, "pid": pid, "tid": tid,
            "ts": start
        }))?;
    }
    for &flow in &slice.comes_from {
        events.push(&json!({
            "ph": "f", "bp": "e", "name": "wait", "cat": "wait", "id": flow + 1, "pid": pid,
            "tid": tid, "ts": start
        }))?;
    }
    Ok(())
}

fn micros(nanos: u64) -> f64 {
    nanos as f64 / 1e3
}
