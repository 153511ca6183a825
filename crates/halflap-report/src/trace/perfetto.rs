//! Perfetto's own form: a sequence of protobuf messages, of which only a handful are needed.
//!
//! The numbers are those of Perfetto's published schema (`TracePacket`, `TrackDescriptor`,
//! `TrackEvent`); a test decodes what is written here with that schema.

use std::io::{self, Write};

use super::{Process, Ran, SliceNote, TracedPart, TrackSlice, processes, ran_processes};

/// All packets are of one sequence.
const SEQUENCE: u64 = 1;
const SLICE_BEGIN: u64 = 1;
const SLICE_END: u64 = 2;
const COUNTER: u64 = 4;
const UNIT_SIZE_BYTES: u64 = 3;
/// Tracks are sorted by rank.
const EXPLICIT: u64 = 3;

/// Writes orders as a trace for Perfetto.
pub fn write_perfetto(parts: &[TracedPart<'_>], out: &mut impl Write) -> io::Result<()> {
    write_all(&processes(parts), out)
}

/// Writes what ranks did as a trace for Perfetto.
pub fn write_ran_perfetto(ranks: &[Ran], out: &mut impl Write) -> io::Result<()> {
    write_all(&ran_processes(ranks), out)
}

fn write_all(processes: &[Process], out: &mut impl Write) -> io::Result<()> {
    let mut next_track = 1;
    for (place, process) in processes.iter().enumerate() {
        let parent = take(&mut next_track);
        let mut described = Message::default();
        described.number(1, place as u64 + 1);
        described.text(6, &process.name);
        describe(out, parent, |track| {
            track.text(2, &process.name);
            track.message(3, &described);
            track.number(11, EXPLICIT);
        })?;
        write_tracks(out, process, parent, &mut next_track)?;
    }
    Ok(())
}

fn take(next: &mut u64) -> u64 {
    *next += 1;
    *next - 1
}

fn write_tracks(
    out: &mut impl Write,
    process: &Process,
    parent: u64,
    next: &mut u64,
) -> io::Result<()> {
    for (rank, track) in process.tracks.iter().enumerate() {
        let uuid = take(next);
        describe(out, uuid, |described| {
            described.text(2, &track.name);
            described.number(5, parent);
            described.number(12, rank as u64);
        })?;
        for slice in &track.slices {
            event(out, slice.start, &begin(uuid, slice))?;
            event(out, slice.end, &typed(uuid, SLICE_END))?;
        }
    }
    if process.memory.is_empty() {
        return Ok(());
    }
    write_memory(out, process, parent, take(next))
}

fn write_memory(out: &mut impl Write, process: &Process, parent: u64, uuid: u64) -> io::Result<()> {
    let mut counter = Message::default();
    counter.number(3, UNIT_SIZE_BYTES);
    // One scale for all orders, so that they can be compared.
    counter.text(7, "memory");
    describe(out, uuid, |described| {
        described.text(2, "memory");
        described.number(5, parent);
        described.number(12, process.tracks.len() as u64);
        described.message(8, &counter);
    })?;
    for level in &process.memory {
        let mut event_ = typed(uuid, COUNTER);
        event_.number(30, level.bytes as u64);
        event(out, level.time, &event_)?;
    }
    Ok(())
}

fn describe(out: &mut impl Write, uuid: u64, fill: impl FnOnce(&mut Message)) -> io::Result<()> {
    let mut track = Message::default();
    track.number(1, uuid);
    fill(&mut track);
    let mut packet = Message::default();
    packet.number(10, SEQUENCE);
    packet.message(60, &track);
    packet.write(out)
}

fn event(out: &mut impl Write, time: u64, event: &Message) -> io::Result<()> {
    let mut packet = Message::default();
    packet.number(8, time);
    packet.number(10, SEQUENCE);
    packet.message(11, event);
    packet.write(out)
}

fn typed(track: u64, kind: u64) -> Message {
    let mut event = Message::default();
    event.number(9, kind);
    event.number(11, track);
    event
}

fn begin(track: u64, slice: &TrackSlice) -> Message {
    let mut event = typed(track, SLICE_BEGIN);
    event.text(22, slice.category);
    event.text(23, &slice.name);
    for &flow in &slice.leads_to {
        event.fixed(47, flow + 1);
    }
    for &flow in &slice.comes_from {
        event.fixed(48, flow + 1);
    }
    for (name, note) in &slice.notes {
        let mut annotation = Message::default();
        annotation.text(10, name);
        match note {
            SliceNote::Text(text) => annotation.text(6, text),
            SliceNote::Number(number) => annotation.number(3, *number),
        }
        event.message(4, &annotation);
    }
    event
}

/// A protobuf message as it is written: fields one after the other.
#[derive(Default)]
struct Message(Vec<u8>);

impl Message {
    const VARINT: u64 = 0;
    const FIXED64: u64 = 1;
    const LENGTH_DELIMITED: u64 = 2;

    fn number(&mut self, field: u64, value: u64) {
        varint(&mut self.0, field << 3 | Self::VARINT);
        varint(&mut self.0, value);
    }

    fn fixed(&mut self, field: u64, value: u64) {
        varint(&mut self.0, field << 3 | Self::FIXED64);
        self.0.extend(value.to_le_bytes());
    }

    fn text(&mut self, field: u64, text: &str) {
        self.bytes(field, text.as_bytes());
    }

    fn message(&mut self, field: u64, message: &Message) {
        self.bytes(field, &message.0);
    }

    fn bytes(&mut self, field: u64, bytes: &[u8]) {
        varint(&mut self.0, field << 3 | Self::LENGTH_DELIMITED);
        varint(&mut self.0, bytes.len() as u64);
        self.0.extend(bytes);
    }

    /// Writes it as a packet of a trace: field 1 of the message that the whole file is.
    fn write(&self, out: &mut impl Write) -> io::Result<()> {
        let mut head = Vec::with_capacity(11);
        varint(&mut head, 1 << 3 | Self::LENGTH_DELIMITED);
        varint(&mut head, self.0.len() as u64);
        out.write_all(&head)?;
        out.write_all(&self.0)
    }
}

fn varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}
