//! The culprit: the first kernel whose output is bad although its inputs are good, and the kernel
//! that a program was in when it ended.

use std::collections::BTreeMap;

use super::generated::{GeneratedCall, GeneratedGraph};
use super::launches::{LaunchSide, PrintedEvent, PrintedTensor};
use crate::execution::debug::report::ArrayFacts;

/// What is to blame, on one rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Suspect {
    /// A tensor that a graph was given.
    Input(PrintedTensor),
    /// A kernel, with its inputs and outputs.
    Kernel {
        call: GeneratedCall,
        producers: Vec<GeneratedCall>,
        went_in: Vec<ArrayFacts>,
        came_out: Vec<ArrayFacts>,
    },
}

/// A launch as it was printed.
struct PrintedLaunch<'a> {
    kernel: &'a str,
    before: Vec<&'a PrintedTensor>,
    after: Vec<&'a PrintedTensor>,
}

/// The first bad tensor of a program, and its producer.
pub fn first_bad(
    events: &[PrintedEvent],
    graphs: &[GeneratedGraph],
    infinities: bool,
) -> Option<Suspect> {
    // The last printed state of every tensor, for kernels that print nothing.
    let mut known: BTreeMap<&str, &PrintedTensor> = BTreeMap::new();
    let mut at = 0;
    while at < events.len() {
        match &events[at] {
            PrintedEvent::Input(tensor) if tensor.is_bad(infinities) => {
                return Some(Suspect::Input(tensor.clone()));
            }
            PrintedEvent::Input(tensor) => {
                known.insert(&tensor.value.buffer, tensor);
                at += 1;
            }
            PrintedEvent::Name(..) => at += 1,
            PrintedEvent::Tensor(..) => {
                let (launch, next) = launch(events, at);
                if let Some(suspect) = judge(&launch, graphs, &known, infinities) {
                    return Some(suspect);
                }
                known.extend(
                    launch.after.iter().map(|tensor| (tensor.value.buffer.as_str(), *tensor)),
                );
                at = next;
            }
        }
    }
    None
}

/// The launch that starts at an event, and where the next one does.
fn launch(events: &[PrintedEvent], start: usize) -> (PrintedLaunch<'_>, usize) {
    let mut launch = PrintedLaunch { kernel: "", before: Vec::new(), after: Vec::new() };
    let mut at = start;
    while let Some(PrintedEvent::Tensor(when, kernel, tensor)) = events.get(at) {
        let is_next = at > start
            && (kernel != launch.kernel
                || (*when == LaunchSide::Before && !launch.after.is_empty()));
        if is_next {
            break;
        }
        launch.kernel = kernel;
        match when {
            LaunchSide::Before => launch.before.push(tensor),
            LaunchSide::After => launch.after.push(tensor),
        }
        at += 1;
    }
    (launch, at)
}

fn judge(
    launch: &PrintedLaunch<'_>,
    graphs: &[GeneratedGraph],
    known: &BTreeMap<&str, &PrintedTensor>,
    infinities: bool,
) -> Option<Suspect> {
    let is_bad = |tensor: &&&PrintedTensor| tensor.is_bad(infinities);
    let found = find(launch, graphs);
    let values = |tensors: &[&PrintedTensor], keep: &dyn Fn(&str) -> bool| -> Vec<ArrayFacts> {
        let kept = tensors.iter().filter(|tensor| keep(&tensor.value.buffer));
        kept.map(|tensor| tensor.value.clone()).collect()
    };
    let Some((graph, place)) = found else {
        // The code is unknown: if a tensor was good before and is bad after, this kernel is to
        // blame.
        let was_bad = |buffer: &str| {
            launch.before.iter().filter(is_bad).any(|other| other.value.buffer == buffer)
        };
        let made_bad =
            launch.after.iter().filter(is_bad).any(|tensor| !was_bad(&tensor.value.buffer));
        let call = GeneratedCall { kernel: launch.kernel.to_owned(), ..GeneratedCall::default() };
        let (went_in, came_out) =
            (values(&launch.before, &|_| true), values(&launch.after, &|_| true));
        return made_bad.then_some(Suspect::Kernel {
            call,
            producers: Vec::new(),
            went_in,
            came_out,
        });
    };
    let call = &graph.calls[place];
    let is_input =
        |buffer: &str| call.reads.contains(buffer) || graph.writer(buffer, place).is_some();
    if let Some(bad) =
        launch.before.iter().filter(is_bad).find(|tensor| call.reads.contains(&tensor.value.buffer))
    {
        // Its producer prints nothing; otherwise it would have been found before.
        return match graph.writer(&bad.value.buffer, place) {
            None => Some(Suspect::Input((*bad).clone())),
            Some(writer) => {
                let call = graph.calls[writer].clone();
                let went_in = call.reads.iter().filter_map(|buffer| known.get(buffer.as_str()));
                let went_in = went_in.map(|tensor| tensor.value.clone()).collect();
                let producers = producers(graph, writer);
                Some(Suspect::Kernel {
                    call,
                    producers,
                    went_in,
                    came_out: vec![bad.value.clone()],
                })
            }
        };
    }
    let is_output = |buffer: &str| call.writes.contains(buffer);
    launch.after.iter().filter(is_bad).find(|tensor| is_output(&tensor.value.buffer))?;
    Some(Suspect::Kernel {
        call: call.clone(),
        producers: producers(graph, place),
        went_in: values(&launch.before, &is_input),
        came_out: values(&launch.after, &is_output),
    })
}

/// Which call of which graph a launch is: one kernel may be called several times with other
/// tensors.
fn find<'a>(
    launch: &PrintedLaunch<'_>,
    graphs: &'a [GeneratedGraph],
) -> Option<(&'a GeneratedGraph, usize)> {
    let names =
        || launch.before.iter().chain(&launch.after).map(|tensor| tensor.value.buffer.as_str());
    graphs.iter().find_map(|graph| {
        let is_it = |call: &GeneratedCall| {
            call.kernel == launch.kernel && names().all(|buffer| call.touches(buffer))
        };
        graph.calls.iter().position(is_it).map(|place| (graph, place))
    })
}

/// Who wrote what a call reads.
pub fn producers(graph: &GeneratedGraph, place: usize) -> Vec<GeneratedCall> {
    let call = &graph.calls[place];
    let writers =
        call.reads.iter().chain(&call.writes).filter_map(|buffer| graph.writer(buffer, place));
    let mut writers: Vec<usize> = writers.collect();
    writers.sort_unstable();
    writers.dedup();
    writers.into_iter().map(|writer| graph.calls[writer].clone()).collect()
}

/// The call that a program was in when it ended.
#[derive(Debug, PartialEq)]
pub struct LastCall {
    /// The call.
    pub call: GeneratedCall,
    /// Those that made its inputs.
    pub producers: Vec<GeneratedCall>,
}

/// The last call, from the names that a program printed. Kernels that print nothing lie between
/// those that do.
pub fn last_call(events: &[PrintedEvent], graphs: &[GeneratedGraph]) -> Option<LastCall> {
    let mut names: Vec<(LaunchSide, &str)> = Vec::new();
    for event in events {
        match event {
            PrintedEvent::Name(when, kernel) => names.push((*when, kernel)),
            // A kernel prints each of its tensors.
            PrintedEvent::Tensor(when, kernel, _) if names.last() != Some(&(*when, kernel)) => {
                names.push((*when, kernel))
            }
            _ => {}
        }
    }
    let &(when, kernel) = names.last()?;
    let done: Vec<&str> = names
        .iter()
        .filter(|(when, _)| *when == LaunchSide::Before)
        .map(|(_, kernel)| *kernel)
        .collect();
    let Some((graph, place)) = last_place(&done, graphs) else {
        let call = GeneratedCall { kernel: kernel.to_owned(), ..GeneratedCall::default() };
        return (when == LaunchSide::Before).then_some(LastCall { call, producers: Vec::new() });
    };
    if when == LaunchSide::Before {
        let call = graph.calls[place].clone();
        return Some(LastCall { call, producers: producers(graph, place) });
    }
    let prints = |call: &GeneratedCall| names.iter().any(|(_, kernel)| *kernel == call.kernel);
    let next = graph.calls.get(place + 1).filter(|call| !prints(call))?;
    Some(LastCall { call: next.clone(), producers: producers(graph, place + 1) })
}

/// The graph and position of the last launched kernel: the occurrence with the most earlier
/// launches before it.
fn last_place<'a>(
    launched: &[&str],
    graphs: &'a [GeneratedGraph],
) -> Option<(&'a GeneratedGraph, usize)> {
    let (last, earlier) = launched.split_last()?;
    let mut best: Option<(usize, &GeneratedGraph, usize)> = None;
    for graph in graphs {
        for (place, _) in graph.calls.iter().enumerate().filter(|(_, call)| call.kernel == *last) {
            let prints = graph.calls[..place]
                .iter()
                .rev()
                .filter(|call| launched.contains(&call.kernel.as_str()));
            let alike = prints
                .zip(earlier.iter().rev())
                .take_while(|(call, name)| call.kernel == **name)
                .count();
            if best.is_none_or(|(most, ..)| alike > most) {
                best = Some((alike, graph, place));
            }
        }
    }
    best.map(|(_, graph, place)| (graph, place))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(kernel: &str, reads: &[&str], writes: &[&str]) -> GeneratedCall {
        let set = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        GeneratedCall {
            kernel: kernel.to_owned(),
            reads: set(reads),
            writes: set(writes),
            ..GeneratedCall::default()
        }
    }

    fn tensor(when: LaunchSide, kernel: &str, buffer: &str, is_nan: bool) -> PrintedEvent {
        let value = ArrayFacts { buffer: buffer.to_owned(), ..ArrayFacts::default() };
        PrintedEvent::Tensor(
            when,
            kernel.to_owned(),
            PrintedTensor { value, is_nan, is_infinite: false },
        )
    }

    fn graph() -> GeneratedGraph {
        GeneratedGraph {
            calls: vec![
                call("a", &["arg0_1"], &["buf0"]),
                call("op", &["buf0"], &["buf1"]),
                call("b", &["buf1"], &["buf2"]),
            ],
            ..GeneratedGraph::default()
        }
    }

    fn blamed(suspect: Option<Suspect>) -> String {
        match suspect {
            Some(Suspect::Kernel { call, .. }) => call.kernel,
            Some(Suspect::Input(tensor)) => tensor.value.buffer,
            None => "nobody".to_owned(),
        }
    }

    #[test]
    fn memory_that_is_not_yet_written_is_no_fault() {
        let good = [
            tensor(LaunchSide::Before, "a", "arg0_1", false),
            tensor(LaunchSide::Before, "a", "buf0", true),
            tensor(LaunchSide::After, "a", "arg0_1", false),
            tensor(LaunchSide::After, "a", "buf0", false),
        ];
        assert_eq!(blamed(first_bad(&good, &[graph()], false)), "nobody");
    }

    #[test]
    fn a_kernel_that_prints_nothing_is_blamed_for_what_it_gave() {
        let events = [
            tensor(LaunchSide::Before, "a", "arg0_1", false),
            tensor(LaunchSide::After, "a", "buf0", false),
            tensor(LaunchSide::Before, "b", "buf1", true),
            tensor(LaunchSide::After, "b", "buf2", true),
        ];
        assert_eq!(blamed(first_bad(&events, &[graph()], false)), "op");
    }

    #[test]
    fn a_bad_input_is_the_inputs_fault() {
        let events = [
            tensor(LaunchSide::Before, "a", "arg0_1", true),
            tensor(LaunchSide::After, "a", "buf0", true),
        ];
        assert_eq!(blamed(first_bad(&events, &[graph()], false)), "arg0_1");
    }

    #[test]
    fn a_program_ended_in_the_kernel_after_the_last_that_was_done() {
        let name = |when, kernel: &str| PrintedEvent::Name(when, kernel.to_owned());
        let first = [
            name(LaunchSide::Before, "a"),
            name(LaunchSide::After, "a"),
            name(LaunchSide::Before, "b"),
            name(LaunchSide::After, "b"),
        ];
        let again: Vec<PrintedEvent> = first.iter().chain(&first[..2]).cloned().collect();
        assert_eq!(
            last_call(&again, &[graph()]).map(|last| last.call.kernel),
            Some("op".to_owned())
        );
        assert_eq!(
            last_call(&first[..3], &[graph()]).map(|last| last.call.kernel),
            Some("b".to_owned())
        );
        assert_eq!(last_call(&first, &[graph()]), None);
    }
}
