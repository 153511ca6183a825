//! A trace that torch.profiler (Kineto) wrote, read as a stream.
//!
//! The text passes through a window of 256 KiB; an event is parsed when it is whole and forgotten
//! unless it is work of a GPU or, without one, of a CPU. Memory is bounded by what that did
//! ([`TraceLimits`]: 32 bytes a launch, some more for collectives, at most a kilobyte a kernel's
//! name), not by the file. Text is read once, so that time is in proportion to the file.
//!
//! Accepts the object form (`traceEvents` anywhere among other fields) and the bare list, fields
//! and events in any order, times as numbers or strings. docs/analyze.md lists what is refused and
//! dropped.

use std::io::Read;

use super::build::TraceBuilder;
use super::error::TraceError;
use super::scan::ScanFault;
use super::trace::Trace;
use super::window::TextWindow;
use super::work::TraceLimits;

/// Reads a trace from its unpacked text.
pub fn read_trace(source: impl Read, limits: TraceLimits) -> Result<Trace, TraceError> {
    let mut window = TextWindow::new(source);
    window.skip_mark()?;
    let mut builder = TraceBuilder::new(limits);
    match first(&mut window)? {
        b'[' => bare_list(&mut window, &mut builder)?,
        _ => object(&mut window, &mut builder)?,
    }
    if !window.at_end()? {
        return Err(window.wrong(0, &ScanFault::Expected("nothing more")));
    }
    builder.finish(window.consumed())
}

/// Skips the beginning of the text.
fn first<R: Read>(window: &mut TextWindow<R>) -> Result<u8, TraceError> {
    if window.at_end()? {
        return Err(TraceError::NoEvents);
    }
    window.take(|cursor, _| match cursor.token()? {
        byte @ (b'{' | b'[') => cursor.take(byte, "").map(|()| byte),
        _ => cursor.expected("an object with 'traceEvents'"),
    })
}

/// The top-level fields of a trace that is an object.
enum Field {
    Events,
    DistributedInfo,
    DeviceProperties,
    Other,
}

fn object<R: Read>(
    window: &mut TextWindow<R>,
    builder: &mut TraceBuilder,
) -> Result<(), TraceError> {
    let mut found = false;
    let mut more = !window.take(|cursor, _| cursor.take_if(b'}'))?;
    while more {
        let field = window.take(|cursor, _| {
            let key = cursor.key()?;
            cursor.token()?;
            Ok(match key {
                b"traceEvents" => Field::Events,
                b"distributedInfo" => Field::DistributedInfo,
                b"deviceProperties" => Field::DeviceProperties,
                _ => Field::Other,
            })
        })?;
        match field {
            Field::Events => {
                found = true;
                window.take(|cursor, _| cursor.take(b'[', "a list of events"))?;
                events(window, builder)?;
            }
            Field::DistributedInfo => {
                let text = window.take(|cursor, _| cursor.value().map(<[u8]>::to_vec))?;
                builder.distributed_info(&text)?;
            }
            Field::DeviceProperties => {
                let text = window.take(|cursor, _| cursor.value().map(<[u8]>::to_vec))?;
                builder.device_properties(&text);
            }
            Field::Other => skip(window)?,
        }
        more = window.take(|cursor, _| cursor.more(b'}', "a comma or the end of the trace"))?;
    }
    if found { Ok(()) } else { Err(TraceError::NoEvents) }
}

/// The events of a list whose opening bracket is consumed, and its end. A trailing comma is
/// accepted.
fn events<R: Read>(
    window: &mut TextWindow<R>,
    builder: &mut TraceBuilder,
) -> Result<(), TraceError> {
    while !window.take(|cursor, _| cursor.take_if(b']'))? {
        event(window, builder)?;
        if !window
            .take(|cursor, _| cursor.more(b']', "a comma or the end of the list of events"))?
        {
            break;
        }
    }
    Ok(())
}

/// The same if the list is the whole file: a writer that appends to it may never close it.
fn bare_list<R: Read>(
    window: &mut TextWindow<R>,
    builder: &mut TraceBuilder,
) -> Result<(), TraceError> {
    loop {
        if window.at_end()? {
            builder.open_list();
            return Ok(());
        }
        if window.take(|cursor, _| cursor.take_if(b']'))? {
            return Ok(());
        }
        event(window, builder)?;
        let ended = window.at_end()?;
        if !ended
            && !window
                .take(|cursor, _| cursor.more(b']', "a comma or the end of the list of events"))?
        {
            return Ok(());
        }
    }
}

#[inline]
fn event<R: Read>(
    window: &mut TextWindow<R>,
    builder: &mut TraceBuilder,
) -> Result<(), TraceError> {
    window.within.event = Some(builder.events);
    window.take(|cursor, within| builder.event(cursor, within))?;
    window.within.event = None;
    Ok(())
}

/// Skips a value entry by entry, so that a long list is never held in memory.
fn skip<R: Read>(window: &mut TextWindow<R>) -> Result<(), TraceError> {
    let first = window.take(|cursor, _| match cursor.token()? {
        byte @ (b'{' | b'[') => cursor.take(byte, "").map(|()| byte),
        byte => cursor.value().map(|_| byte),
    })?;
    let close = match first {
        b'{' => b'}',
        b'[' => b']',
        _ => return Ok(()),
    };
    if window.take(|cursor, _| cursor.take_if(close))? {
        return Ok(());
    }
    loop {
        window.take(|cursor, _| {
            if close == b'}' {
                cursor.key()?;
            }
            cursor.value().map(|_| ())
        })?;
        if !window.take(|cursor, _| cursor.more(close, "a comma or the end of a list or object"))? {
            return Ok(());
        }
    }
}
