//! What a run reports about a fault (`halflap.fault/1`): its fields, and in words.

use halflap_run::check::{Beyond, Side};
use serde_json::Value as Json;

use crate::execution::debug::report::{Diagnosis, Kind};

pub(super) fn text<'j>(fault: &'j Json, name: &str) -> Option<&'j str> {
    fault[name].as_str().filter(|text| !text.is_empty())
}

pub(super) fn rank_of(fault: &Json) -> Option<usize> {
    fault["rank"].as_u64().map(|rank| rank as usize)
}

/// A crash with an unknown culprit.
pub(super) fn is_nobodys(fault: &Json) -> bool {
    text(fault, "kind") == Some("crash") && text(fault, "kernel").is_none()
}

/// A kernel that was caught at memory that it must not touch.
pub(super) fn is_astray(fault: &Json) -> bool {
    matches!(
        text(fault, "kind"),
        Some("out-of-bounds" | "use-after-free" | "write-to-input" | "not-its-own")
    )
}

pub(super) fn lifetime(fault: &Json) -> Diagnosis {
    let mut finding = Diagnosis::new(Kind::Lifetime, fault_words(fault));
    finding.kernel = text(fault, "kernel").map(str::to_owned);
    locate(&mut finding, fault);
    finding
}

/// A custom call that changes its thread's rounding mode.
pub(super) fn rounds(launch: &Json) -> Diagnosis {
    let kernel = text(launch, "kernel").unwrap_or("");
    let what = format!(
        "'{kernel}' changes its thread's rounding mode: without a reset, later kernels of the rank would round \
         differently"
    );
    let mut finding = Diagnosis::new(Kind::Rounding, what);
    finding.kernel = Some(kernel.to_owned());
    locate(&mut finding, launch);
    finding
}

/// Where a fault is, as far as it is known.
pub(super) fn locate(finding: &mut Diagnosis, fault: &Json) {
    finding.rank = rank_of(fault).or(finding.rank);
    finding.buffer = text(fault, "buffer").map(str::to_owned).or(finding.buffer.take());
    let step = fault["step"].as_u64().map(|step| step as usize);
    finding.step = text(fault, "computation").map(str::to_owned).zip(step).or(finding.step.take());
    let numbers =
        fault["iteration"].as_array().map(|numbers| numbers.iter().filter_map(Json::as_u64));
    if let Some(numbers) = numbers {
        finding.iteration = numbers.map(|number| number as u32).collect();
    }
    if let Some(source) = text(fault, "source") {
        finding.source = vec![source.to_owned()];
    }
}

/// A fault in words: its own message, or one made from its fields.
pub(super) fn fault_words(fault: &Json) -> String {
    if let Some(message) = text(fault, "message") {
        return message.to_owned();
    }
    let kernel = match text(fault, "kernel") {
        Some(kernel) if fault["is_thread"] == true => format!("a thread that '{kernel}' started"),
        Some(kernel) => format!("'{kernel}'"),
        None => "a thread that runs no kernel".to_owned(),
    };
    let does = if fault["access"] == "write" { "writes" } else { "reads" };
    let (offset, bytes) =
        (fault["offset"].as_i64().unwrap_or(0), fault["bytes"].as_i64().unwrap_or(0));
    let buffer = text(fault, "buffer").unwrap_or("");
    match text(fault, "kind") {
        Some("out-of-bounds") => {
            let place = match offset < 0 {
                true => Beyond(Side::Start, offset.unsigned_abs() as usize),
                false => Beyond(Side::End, (offset - bytes).unsigned_abs() as usize),
            };
            format!("{kernel} {does} {place} of '{buffer}' ({bytes} bytes)")
        }
        Some("use-after-free") => {
            let after = text(fault, "freed_after").unwrap_or("its last use");
            format!("{kernel} {does} byte {offset} of '{buffer}', which was freed after '{after}'")
        }
        Some("write-to-input") => {
            format!("{kernel} writes to its input '{buffer}', at byte {offset}")
        }
        Some("not-its-own") => {
            format!(
                "{kernel} {does} byte {offset} of '{buffer}', which is alive and was not given to \
                 it"
            )
        }
        _ => format!("{kernel} ends the process: {}", text(fault, "signal").unwrap_or("a signal")),
    }
}
