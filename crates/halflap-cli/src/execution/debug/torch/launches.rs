//! The output of torch's debug printer: which kernel is launched, with its inputs and outputs.
//!
//! Compiled C++ wrappers print `[ before_launch: K ]` and `[  before_launch - K - BUFFER  ]:`,
//! Python wrappers print `inductor: before_launch - K - BUFFER`; what follows a buffer's name
//! describes it, one fact a line.

use crate::execution::debug::report::ArrayFacts;

/// When something was printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LaunchSide {
    Before,
    After,
}

/// A tensor that was printed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PrintedTensor {
    pub value: ArrayFacts,
    pub is_nan: bool,
    pub is_infinite: bool,
}

impl PrintedTensor {
    /// Whether it holds bad values. An infinity may be intended; a NaN never is.
    pub fn is_bad(&self, infinities: bool) -> bool {
        self.is_nan || (infinities && self.is_infinite)
    }
}

/// Something that was printed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PrintedEvent {
    /// A tensor that a compiled graph was given.
    Input(PrintedTensor),
    /// A kernel's name alone.
    Name(LaunchSide, String),
    /// A tensor of a kernel.
    Tensor(LaunchSide, String, PrintedTensor),
}

/// The events of a program's output, in sequence. A tensor at the very end may be truncated: it is
/// skipped.
pub fn events(text: &str) -> Vec<PrintedEvent> {
    let mut events = Vec::new();
    let mut open: Option<(Header, PrintedTensor)> = None;
    for line in text.lines() {
        if let Some((when, kernel)) = name_alone(line) {
            close(&mut open, &mut events);
            events.push(PrintedEvent::Name(when, kernel));
        } else if let Some((header, buffer)) = header(line) {
            close(&mut open, &mut events);
            let value = ArrayFacts { buffer, ..ArrayFacts::default() };
            open = Some((header, PrintedTensor { value, is_nan: false, is_infinite: false }));
        } else if let Some((_, tensor)) = &mut open {
            describe(line, tensor);
        }
    }
    let is_whole =
        |tensor: &PrintedTensor| tensor.value.facts.iter().any(|(name, _)| name == "max");
    open = open.filter(|(_, tensor)| is_whole(tensor));
    close(&mut open, &mut events);
    events
}

enum Header {
    Input,
    Launch(LaunchSide, String),
}

fn close(open: &mut Option<(Header, PrintedTensor)>, events: &mut Vec<PrintedEvent>) {
    match open.take() {
        None => {}
        Some((Header::Input, tensor)) => events.push(PrintedEvent::Input(tensor)),
        Some((Header::Launch(when, kernel), tensor)) => {
            events.push(PrintedEvent::Tensor(when, kernel, tensor))
        }
    }
}

fn when(text: &str) -> Option<LaunchSide> {
    match text {
        "before_launch" => Some(LaunchSide::Before),
        "after_launch" => Some(LaunchSide::After),
        _ => None,
    }
}

fn name_alone(line: &str) -> Option<(LaunchSide, String)> {
    let at = line.find("[ ")?;
    let (prefix, kernel) = line[at..].strip_prefix("[ ")?.strip_suffix(" ]")?.split_once(": ")?;
    Some((when(prefix.trim())?, kernel.trim().to_owned()))
}

fn header(line: &str) -> Option<(Header, String)> {
    let inside = match line.find("[  ") {
        Some(at) => line[at..].strip_prefix("[  ")?.trim_end().strip_suffix("  ]:")?,
        None => &line[line.find("inductor: ")? + "inductor: ".len()..],
    };
    let mut parts = inside.splitn(3, " - ");
    let (first, second) = (parts.next()?, parts.next()?);
    match parts.next() {
        None if first.ends_with("model_inputs") => Some((Header::Input, second.to_owned())),
        Some(buffer) => Some((Header::Launch(when(first)?, second.to_owned()), buffer.to_owned())),
        None => None,
    }
}

/// Takes a fact from a line; other lines are the tensor's elements, which may be many.
fn describe(line: &str, tensor: &mut PrintedTensor) {
    let Some((name, fact)) = line.split_once(':') else { return };
    let (name, fact) =
        (name.trim(), fact.trim().trim_start_matches("torch.Size(").trim_end_matches(')'));
    let short = match name {
        "Dtype" => {
            tensor.value.kind =
                format!("{}{}", fact.trim_start_matches("torch."), tensor.value.kind);
            return;
        }
        "Size" => {
            tensor.value.kind = format!("{}{fact}", tensor.value.kind);
            return;
        }
        "Number of elements" => "elements",
        "Mean" | "Mean value" => "mean",
        "Min" | "Min value" => "min",
        "Max" | "Max value" => "max",
        "Std" => "std",
        _ => return,
    };
    let number = fact.trim_start_matches('-').to_ascii_lowercase();
    tensor.is_nan |= number.starts_with("nan") && short != "std";
    tensor.is_infinite |= number.starts_with("inf") && (short == "min" || short == "max");
    tensor.value.facts.push((short.to_owned(), fact.to_owned()));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_wrappers_are_understood() {
        let text = "hello\n[  aoti_model_inputs - arg0_1  ]:\nNumber of elements: 4\nDtype: float32\nMean value: 1\nMin value: 1\nMax value: inf\nSize: [2, 2]\n\n[ before_launch: mm ]\ninductor: after_launch - extern_kernels.mm - buf0\nNumber of elements:  4\nSize:  torch.Size([2, 2])\nDtype:  torch.float32\nMean:  nan\nMin:  nan\nMax:  nan\nStd:  nan\n";
        let events = events(text);
        let [
            PrintedEvent::Input(input),
            PrintedEvent::Name(LaunchSide::Before, name),
            PrintedEvent::Tensor(LaunchSide::After, kernel, tensor),
        ] = &events[..]
        else {
            panic!("{events:?}")
        };
        assert_eq!((input.is_bad(false), input.is_bad(true)), (false, true));
        assert_eq!(
            (name.as_str(), kernel.as_str(), tensor.is_nan),
            ("mm", "extern_kernels.mm", true)
        );
        assert_eq!(
            (input.value.kind.as_str(), tensor.value.buffer.as_str()),
            ("float32[2, 2]", "buf0")
        );
    }

    #[test]
    fn a_tensor_that_is_cut_off_is_left_out() {
        assert_eq!(
            events("[  before_launch - k - buf0  ]:\nNumber of elements: 4\nDtype: flo"),
            []
        );
    }
}
