//! The code that torch generated, from its trace (TORCH_TRACE): the kernels of every graph in
//! order, what each reads and writes, and where in the program it comes from (INDUCTOR_PROVENANCE).

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde_json::Value as Json;

use super::python;

/// A kernel of a graph.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GeneratedCall {
    pub kernel: String,
    /// Its name and number, as its sources are listed.
    pub handle: String,
    /// The line of the generated code at which it starts.
    pub line: usize,
    /// The operator, if it differs from the name.
    pub operator: Option<String>,
    pub reads: BTreeSet<String>,
    pub writes: BTreeSet<String>,
    /// Lines of the program that it comes from, the main one first.
    pub source: Vec<String>,
}

impl GeneratedCall {
    pub fn touches(&self, buffer: &str) -> bool {
        self.reads.contains(buffer) || self.writes.contains(buffer)
    }

    /// Its name, and the operator's.
    pub fn title(&self) -> String {
        match &self.operator {
            Some(operator) => format!("{} ({operator})", self.kernel),
            None => self.kernel.clone(),
        }
    }

    /// Whether it is an operator from outside torch.
    pub fn is_custom(&self) -> bool {
        let Some(name) = self.kernel.strip_prefix("torch.ops.") else { return false };
        let namespace = name.split('.').next().unwrap_or(name);
        !["aten", "prims", "inductor", "higher_order"].contains(&namespace) && !self.is_collective()
    }

    /// Whether it returns data of other ranks. Kernels that were fused with a collective have its
    /// name, too.
    pub fn is_collective(&self) -> bool {
        self.kernel.contains("c10d")
            || self.operator.as_ref().is_some_and(|operator| operator.contains("c10d"))
    }
}

/// A compiled graph.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GeneratedGraph {
    pub calls: Vec<GeneratedCall>,
    /// Where its code is.
    pub file: String,
    /// Whether Inductor tracks the lifetimes of its buffers.
    pub is_tracked: bool,
}

impl GeneratedGraph {
    /// The last call before `place` that wrote a buffer.
    pub fn writer(&self, buffer: &str, place: usize) -> Option<usize> {
        self.calls[..place].iter().rposition(|call| call.writes.contains(buffer))
    }
}

/// What follows a call, in C++ and in Python.
const ENDS: [&str; 5] = [" del ", "track_tensor(", CHECK, "output_handles", "torch_empty_strided"];
/// What generated code calls after each kernel while Inductor tracks buffer lifetimes.
const CHECK: &str = "check_memory_step(";

const HANDLE: &str = "[Provenance debug handles] ";

/// The graphs in a folder of traces, in the order in which they were compiled.
pub fn graphs(folder: &Path) -> Vec<GeneratedGraph> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let mut paths: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    paths.iter().flat_map(|path| in_trace(&super::super::child::text(path))).collect()
}

fn in_trace(text: &str) -> Vec<GeneratedGraph> {
    let mut graphs: Vec<GeneratedGraph> = Vec::new();
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        let Some(record) =
            line.find("] {").and_then(|at| serde_json::from_str::<Json>(&line[at + 2..]).ok())
        else {
            continue;
        };
        let mut payload = || {
            let mut payload = String::new();
            while let Some(line) = lines.next_if(|line| line.starts_with('\t')) {
                payload.push_str(&line[1..]);
                payload.push('\n');
            }
            payload
        };
        if let Some(about) = record.get("inductor_output_code") {
            let code = payload();
            let file = about["filename"].as_str().unwrap_or_default().to_owned();
            graphs.push(GeneratedGraph {
                calls: calls(&code),
                file,
                is_tracked: code.contains(CHECK),
            });
        } else if record["artifact"]["name"] == "inductor_provenance_tracking_kernel_stack_traces"
            && let (Some(graph), Ok(stacks)) = (graphs.last_mut(), serde_json::from_str(&payload()))
        {
            add_sources(graph, &stacks);
        }
    }
    graphs
}

/// Assigns every call the innermost lines of the program that it comes from.
fn add_sources(graph: &mut GeneratedGraph, stacks: &BTreeMap<String, Vec<String>>) {
    for call in &mut graph.calls {
        let Some(of) = stacks.get(&call.handle) else { continue };
        for stack in of {
            let frames = python::frames(stack.lines());
            let own = frames.iter().rfind(|frame| !frame.is_installed()).or(frames.last());
            let line = own.map(python::Frame::render);
            call.source.extend(line.filter(|line| !call.source.contains(line)));
        }
    }
}

/// The kernels that a graph's code calls.
fn calls(code: &str) -> Vec<GeneratedCall> {
    let mut calls: Vec<GeneratedCall> = Vec::new();
    let mut is_open = false;
    for (number, line) in code.lines().enumerate() {
        if let Some(at) = line.find(HANDLE) {
            let handle = line[at + HANDLE.len()..].trim();
            let kernel = handle.rsplit_once(':').map_or(handle, |(kernel, _)| kernel).to_owned();
            let (handle, line) = (handle.to_owned(), number + 1);
            calls.push(GeneratedCall { kernel, handle, line, ..GeneratedCall::default() });
            is_open = true;
        } else if let Some((to, from)) = moved(line) {
            // A renamed buffer's content was written under its old name.
            if let Some(writer) = calls.iter().rposition(|call| call.writes.contains(&from)) {
                calls[writer].writes.insert(to);
            }
            is_open = false;
        } else if ENDS.iter().any(|end| line.contains(end)) {
            is_open = false;
        } else if let Some(call) = calls.last_mut().filter(|_| is_open) {
            add_line(call, line);
        }
    }
    calls
}

/// `auto buf2 = std::move(buf0);`
fn moved(line: &str) -> Option<(String, String)> {
    let (to, from) = line.trim().strip_prefix("auto ")?.split_once(" = std::move(")?;
    Some((to.to_owned(), from.split_once(')')?.0.to_owned()))
}

fn add_line(call: &mut GeneratedCall, line: &str) {
    if line.contains("_launch") || line.contains("assert_") || line.contains(".reset()") {
        return;
    }
    if let Some((_, rest)) = line.split_once("call_dispatcher(\"") {
        call.operator = rest.split_once('"').map(|(name, _)| name.to_owned());
    }
    let is_out_variant = line.contains("_out(");
    // A wait delivers data from other ranks.
    let is_in_place = line.contains(&format!("{}(", call.kernel))
        && (call.kernel.ends_with('_') || call.kernel.ends_with("wait_tensor"));
    for (place, (start, name)) in buffers(line).into_iter().enumerate() {
        let before = &line[..start];
        let is_assigned = line[start + name.len()..].starts_with(" = ");
        let pointer = before.rsplit_once('(').map_or("", |(before, _)| before);
        let cast = pointer.rsplit_once('(').map_or("", |(_, cast)| cast);
        let is_pointer = line[start + name.len()..].starts_with(".data_ptr()");
        let is_handle = before.ends_with('&');
        let is_written = is_assigned
            || is_handle
            || (is_pointer && !cast.starts_with("const"))
            || (is_out_variant && place == 0)
            || before.trim_start().starts_with("RAIIAtenTensorHandle");
        let is_changed = is_in_place && place == 0;
        if is_written || is_changed {
            call.writes.insert(name.clone());
        }
        if !is_written {
            call.reads.insert(name);
        }
    }
}

/// The names of tensors in a line, and where they start.
fn buffers(line: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    let bytes = line.as_bytes();
    let mut at = 0;
    while at < bytes.len() {
        let length = bytes[at..].iter().take_while(|&&byte| is_word(byte)).count();
        let word = &line[at..at + length];
        let word = word.strip_suffix("_handle").unwrap_or(word);
        let prefixes = ["buf", "arg", "primals_", "tangents_"];
        let is_buffer = prefixes.iter().any(|prefix| {
            word.strip_prefix(prefix)
                .is_some_and(|rest| rest.starts_with(|first: char| first.is_ascii_digit()))
        });
        if is_buffer {
            found.push((at, word.to_owned()));
        }
        // Names are ASCII; other characters are skipped whole.
        at += length.max(line[at..].chars().next().map_or(1, char::len_utf8));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const CODE: &str = r#"
    // [Provenance debug handles] cpp_fused_sin_0:1
    printf("[ before_launch: cpp_fused_sin_0 ]\n");
    cpp_fused_sin_0((const float*)(arg0_1.data_ptr()), (float*)(buf0.data_ptr()));
    arg0_1.reset();
    // [Provenance debug handles] aoti_torch_cpu_shift:2
    RAIIAtenTensorHandle buf1;
    {
        AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_new_tensor_handle(buf0, &tmp_var_0));
            aoti_torch_call_dispatcher("mine::shift", "", dispatch_vars.data())
        buf1 = torch::stable::detail::to<AtenTensorHandle>(dispatch_vars[0]);
    }
    auto buf2 = std::move(buf0);  // reuse
    // [Provenance debug handles] aoti_torch_cpu_mm_out:3
    AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_cpu_mm_out(buf3, buf2, wrap(reinterpret_tensor_wrapper(buf1, 2, int_array_2, 0L))));
    // [Provenance debug handles] aoti_torch_cpu__c10d_functional_all_reduce_:4
    AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_cpu__c10d_functional_all_reduce_(buf3, "sum", "0", &buf4_handle));
    output_handles[0] = buf3.release();
"#;

    #[test]
    fn a_graphs_code_says_who_reads_and_writes_what() {
        let graph = GeneratedGraph { calls: calls(CODE), ..GeneratedGraph::default() };
        let names = |set: &BTreeSet<String>| set.iter().cloned().collect::<Vec<_>>().join(" ");
        let all: Vec<_> = graph
            .calls
            .iter()
            .map(|call| (call.title(), names(&call.reads), names(&call.writes)))
            .collect();
        let expected = [
            ("cpp_fused_sin_0", "arg0_1", "buf0 buf2"),
            ("aoti_torch_cpu_shift (mine::shift)", "buf0", "buf1"),
            ("aoti_torch_cpu_mm_out", "buf1 buf2", "buf3"),
            ("aoti_torch_cpu__c10d_functional_all_reduce_", "buf3", "buf3 buf4"),
        ];
        let expected = expected
            .map(|(name, reads, writes)| (name.to_owned(), reads.to_owned(), writes.to_owned()));
        assert_eq!(all, expected);
        assert_eq!((graph.writer("buf2", 2), graph.writer("buf1", 1)), (Some(0), None));
    }

    const PYTHON: &str = r#"
        buf0 = tracked_empty_strided((8, 8), (8, 1), dtype=torch.float32, device='cpu', name='buf0')
        # [Provenance debug handles] cpp_fused_sin_0:1
        cpp_fused_sin_0(arg0_1, buf0)
        del arg0_1
        check_memory_step(allocated=['buf0'], freed=[])
        # [Provenance debug handles] torch.ops.mine.keep.default:2
        buf1 = torch.ops.mine.keep.default(buf0)
        track_tensor(buf1, 'buf1')
        del buf0
        check_memory_step(allocated=['buf1'], freed=['buf0'])
"#;

    #[test]
    fn tracked_python_is_understood() {
        let calls = calls(PYTHON);
        let facts = |call: &GeneratedCall| (call.line, call.touches("buf0"), call.is_custom());
        let all: Vec<_> = calls.iter().map(facts).collect();
        assert_eq!(all, [(3, true, false), (7, true, true)]);
        assert!(calls[1].writes.contains("buf1") && !calls[0].touches("buf1"));
    }
}
