//! What Python prints when something goes wrong: tracebacks, and the stacks of its fault handler.

/// A line of the user's program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    pub file: String,
    pub line: usize,
    pub function: String,
    /// The text of the line, if it was printed.
    pub code: String,
}

impl Frame {
    /// Whether it belongs to the program itself, not to a library or generated code.
    pub fn is_own(&self) -> bool {
        !self.is_installed() && !self.is_generated()
    }

    /// Whether it belongs to a library.
    pub fn is_installed(&self) -> bool {
        let places = ["site-packages", "dist-packages", "/lib/python"];
        self.file.starts_with('<') || places.iter().any(|part| self.file.contains(part))
    }

    /// Whether torch generated it: in its default folder, or in one of the user's, recognised by
    /// torch's file names: `ab/cab` and the rest of a hash.
    pub fn is_generated(&self) -> bool {
        let mut parts = self.file.rsplit('/');
        let (name, parent) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
        let names_parent = name.strip_prefix('c').is_some_and(|hash| hash.starts_with(parent));
        let is_hash = name.len() > 40 && parent.len() == 2 && names_parent;
        is_hash || self.file.contains("/torchinductor_")
    }

    /// The function that its line calls.
    pub fn callee(&self) -> &str {
        let call = self.code.split('(').next().unwrap_or_default();
        call.rsplit(" = ").next().unwrap_or_default().trim()
    }

    /// `train.py:12 in forward: h = self.a(x)`
    pub fn render(&self) -> String {
        let code = if self.code.is_empty() { String::new() } else { format!(": {}", self.code) };
        format!("{}:{} in {}{code}", self.file, self.line, self.function)
    }

    /// `  File "train.py", line 12, in forward`, or without the second comma.
    fn parse(line: &str) -> Option<Frame> {
        let rest = line.trim_start().strip_prefix("File \"")?;
        let (file, rest) = rest.split_once("\", line ")?;
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let (number, rest) = rest.split_at(digits);
        let function = rest.trim_start_matches(',').trim().strip_prefix("in ")?;
        Some(Frame {
            file: file.to_owned(),
            line: number.parse().ok()?,
            function: function.to_owned(),
            code: String::new(),
        })
    }
}

/// The frames in a piece of text, each with its line of code if that follows.
pub fn frames<'a>(lines: impl Iterator<Item = &'a str>) -> Vec<Frame> {
    let mut frames: Vec<Frame> = Vec::new();
    let mut is_fresh = false;
    for line in lines {
        if let Some(frame) = Frame::parse(line) {
            frames.push(frame);
            is_fresh = true;
            continue;
        }
        if let Some(last) = frames.last_mut().filter(|_| is_fresh) {
            last.code = line.trim().to_owned();
        }
        is_fresh = false;
    }
    frames
}

/// An exception that ended a program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exception {
    /// Its type and message.
    pub message: String,
    /// The outermost first.
    pub frames: Vec<Frame>,
}

impl Exception {
    /// Whether it only says that another rank left.
    pub fn is_echo(&self) -> bool {
        let words = [
            "closed by peer",
            "reset by peer",
            "remote worker",
            "broken pipe",
            "remote process exited",
        ];
        let message = self.message.to_lowercase();
        words.iter().any(|word| message.contains(word))
    }

    /// A buffer that generated code reads after deleting it, and the line that reads it.
    pub fn freed_buffer(&self) -> Option<(&str, &Frame)> {
        let said = self.message.strip_prefix("UnboundLocalError: ")?;
        let name = said.split('\'').nth(1)?;
        let frame = self.frames.last()?;
        let number = name.rsplit_once("buf")?.1;
        number.parse::<usize>().is_ok().then_some((name, frame))
    }
}

const TRACEBACK: &str = "Traceback (most recent call last):";

/// A line without the prefix that launchers add for each rank.
fn unprefixed(line: &str) -> &str {
    let rest = line.strip_prefix('[').and_then(|rest| rest.split_once("]:"));
    match rest {
        Some((name, rest)) if name.starts_with("rank") || name.starts_with("default") => {
            rest.strip_prefix(' ').unwrap_or(rest)
        }
        _ => line,
    }
}

/// The first exception of a text that nothing caught: of exceptions that led to each other, the
/// last.
pub fn exception(text: &str) -> Option<Exception> {
    let lines: Vec<&str> = text.lines().map(unprefixed).collect();
    let start = lines.iter().rposition(|line| line.trim_start().starts_with(TRACEBACK))?;
    let body = &lines[start + 1..];
    let is_inside = |line: &&&str| line.starts_with([' ', '\t']) || line.is_empty();
    let inside = body.iter().take_while(is_inside).count();
    let message = body.get(inside).map_or(String::new(), |line| line.trim().to_owned());
    let more = body[inside..]
        .iter()
        .skip(1)
        .take_while(|line| !line.is_empty() && !line.starts_with('['))
        .take(3);
    let message = more.fold(message, |message, line| format!("{message} {}", line.trim()));
    // The traceback ends in the compiler, which itself names the line that it could not compile.
    let own = body[inside..].iter().skip_while(|line| line.trim() != "from user code:").skip(1);
    let own = own.take_while(|line| line.starts_with(' ') || line.is_empty());
    let mut frames_of = frames(body[..inside].iter().copied());
    frames_of.extend(frames(own.copied()));
    Some(Exception { message, frames: frames_of })
}

/// The rank that torchrun saw fail first, and its exit code: below zero a signal.
pub fn first_failure(text: &str) -> Option<(usize, i32)> {
    let lines = text
        .lines()
        .map(unprefixed)
        .skip_while(|line| !line.trim_start().starts_with("Root Cause"));
    let fields = lines
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.trim(), value.trim()));
    let number = |wanted: &str| {
        let value = fields.clone().find(|(name, _)| *name == wanted)?.1;
        value.split_whitespace().next()?.parse::<i32>().ok()
    };
    Some((usize::try_from(number("rank")?).ok()?, number("exitcode")?))
}

/// A line of a file that still exists.
fn code(file: &str, line: usize) -> String {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    text.lines().nth(line.saturating_sub(1)).map_or(String::new(), |line| line.trim().to_owned())
}

/// The stack of the thread at fault, the innermost frame first.
pub fn fatal_stack(text: &str) -> Vec<Frame> {
    let mut lines =
        text.lines().map(unprefixed).skip_while(|line| !line.starts_with("Fatal Python error"));
    if lines.next().is_none() {
        return Vec::new();
    }
    let stack = lines.skip_while(|line| !line.starts_with("Current thread")).skip(1);
    let stack = stack.skip_while(|line| line.trim() == "Garbage-collecting");
    let mut stack = frames(stack.take_while(|line| line.trim_start().starts_with("File ")));
    stack.iter_mut().for_each(|frame| frame.code = code(&frame.file, frame.line));
    stack
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_of_chained_exceptions_is_what_is_told() {
        let text = "x\nTraceback (most recent call last):\n  File \"a.py\", line 3, in f\n    boom()\nValueError: first\n\nDuring handling\n\nTraceback (most recent call last):\n  File \"/x/site-packages/torch/b.py\", line 7, in g\n    inner()\n    ^^^^^^^\nAssertionError: wrong number of dimensions\n";
        let found = exception(text).unwrap();
        assert_eq!(found.message, "AssertionError: wrong number of dimensions");
        assert_eq!((found.frames[0].line, found.frames[0].code.as_str()), (7, "inner()"));
        assert!(!found.frames[0].is_own());
    }

    #[test]
    fn a_stack_is_read_while_garbage_is_collected() {
        let text = "Fatal Python error: Aborted\n\nCurrent thread 0x01 (most recent call first):\n  Garbage-collecting\n  File \"/x/hk/chk3d2nyqsnqqypae4tkpepgkkbqn2el3xvdhd6czpts4nskdgkj.py\", line 67 in call\n  File \"a.py\", line 9 in <module>\n";
        let stack = fatal_stack(text);
        let generated: Vec<bool> = stack.iter().map(|frame| frame.is_generated()).collect();
        assert_eq!(generated, [true, false]);
        assert_eq!(stack[1].line, 9);
    }

    #[test]
    fn what_a_rank_says_is_read_behind_its_name() {
        let text = "[rank1]: Traceback (most recent call last):\n[rank1]:   File \"a.py\", line 3, in f\n[rank1]:     boom()\n[rank1]: RuntimeError: Connection closed by peer [127.0.0.1]:49884\n";
        let found = exception(text).unwrap();
        assert_eq!(found.message, "RuntimeError: Connection closed by peer [127.0.0.1]:49884");
        assert_eq!(found.frames[0].code, "boom()");
        assert!(found.is_echo());
    }

    #[test]
    fn a_buffer_that_was_freed_too_early_has_no_value() {
        let text = "Traceback (most recent call last):\n  File \"/c/x.py\", line 9, in call\n    \
                    extern_kernels.mm(buf19, buf3, out=buf20)\nUnboundLocalError: cannot access \
                    local variable 'buf19' where it is not associated with a value\n";
        let found = exception(text).unwrap();
        let freed = found.freed_buffer().map(|(name, frame)| (name, frame.line));
        assert_eq!(freed, Some(("buf19", 9)));
        assert_eq!(found.frames[0].callee(), "extern_kernels.mm");
        let other = Exception { message: text.replace("buf19", "result"), ..found };
        assert_eq!(other.freed_buffer(), None);
    }

    #[test]
    fn torchrun_says_who_failed_first() {
        let text = "Failures:\n[1]:\n  rank      : 0 (local_rank: 0)\n  exitcode  : -15 (pid: 7)\n-----\nRoot Cause (first observed failure):\n[0]:\n  time      : 2026-11-16_06:12:11\n  rank      : 1 (local_rank: 1)\n  exitcode  : -9 (pid: 8)\n";
        assert_eq!(first_failure(text), Some((1, -9)));
        assert_eq!(first_failure("nothing"), None);
    }

    #[test]
    fn the_compilers_own_account_comes_last() {
        let text = "Traceback (most recent call last):\n  File \"a.py\", line 30, in <module>\n    f(x)\ntorch.Error: no\n\nfrom user code:\n   File \"a.py\", line 10, in model\n    return layer(x)\n           ^^^^^^^^\n\nSet X\n";
        let frames = exception(text).unwrap().frames;
        assert_eq!(frames.iter().map(|frame| frame.line).collect::<Vec<_>>(), [30, 10]);
        assert_eq!(frames[1].code, "return layer(x)");
    }

    #[test]
    fn a_fatal_stack_is_that_of_the_thread_at_fault() {
        let text = "Fatal Python error: Segmentation fault\n\nThread 0x1 (most recent call first):\n  File \"other.py\", line 1 in wait\n\nCurrent thread 0x2 (most recent call first):\n  File \"op.py\", line 15 in shift\n  File \"op.py\", line 30 in <module>\n\nExtension modules: numpy\n";
        let stack = fatal_stack(text);
        assert_eq!(stack.iter().map(|frame| frame.line).collect::<Vec<_>>(), [15, 30]);
        assert!(stack[0].is_own());
    }
}
