//! Where an instruction comes from: the user's operation, file and line.

use super::attributes::unescape;
use super::error::HloError;
use super::lex::{TextCursor, TextSpan};
use super::{Array, Module, Opcode, Operand, Shape};
use crate::ids::InstrId;

/// What an instruction's metadata says. Everything may be missing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Metadata {
    pub op_type: String,
    pub op_name: String,
    pub source_file: String,
    pub source_line: u32,
    pub stack_frame_id: Option<u32>,
}

/// A place in the user's program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct SourceFrame<'a> {
    pub file: &'a str,
    pub function: &'a str,
    pub line: u32,
}

/// The tables before the first computation with locations in the user's program.
#[derive(Clone, Debug, Default)]
pub(super) struct Tables {
    files: Vec<TextSpan>,
    functions: Vec<TextSpan>,
    /// File, function and line; ids count from 1.
    locations: Vec<[u32; 3]>,
    /// Location and parent.
    frames: Vec<[u32; 2]>,
}

impl Tables {
    /// Reads the tables, if there are any.
    pub(super) fn parse(cursor: &mut TextCursor<'_>) -> Result<Tables, HloError> {
        let mut tables = Tables::default();
        loop {
            let back = cursor.at;
            cursor.skip_space();
            let start = cursor.at;
            let word = cursor
                .name("a computation")
                .map(|word| &cursor.text[word.start as usize..word.end as usize]);
            let Some(word) = word.ok().filter(|_| is_table(cursor)) else {
                cursor.at = back;
                return Ok(tables);
            };
            debug_assert!(start < cursor.at);
            while let Some(line) = numbered_line(cursor) {
                match word {
                    "FileNames" => tables.files.push(line),
                    "FunctionNames" => tables.functions.push(line),
                    "FileLocations" => tables.locations.push(fields(
                        &cursor.text[line.start as usize..line.end as usize],
                        ["file_name_id", "function_name_id", "line"],
                    )),
                    "StackFrames" => tables.frames.push(fields(
                        &cursor.text[line.start as usize..line.end as usize],
                        ["file_location_id", "parent_frame_id"],
                    )),
                    _ => {}
                }
            }
        }
    }
}

/// Whether a word is followed by lines that start with numbers.
fn is_table(cursor: &TextCursor<'_>) -> bool {
    let rest = cursor.text[cursor.at..].trim_start_matches([' ', '\t', '\r']);
    rest.strip_prefix('\n')
        .map(|rest| rest.trim_start_matches([' ', '\t']))
        .is_some_and(|rest| rest.starts_with(|first: char| first.is_ascii_digit() || first == '\n'))
}

/// The next line, if it starts with a number; without it.
fn numbered_line(cursor: &mut TextCursor<'_>) -> Option<TextSpan> {
    let rest = &cursor.text[cursor.at..];
    let line = &rest[rest.find('\n')? + 1..];
    let rest = line.trim_start_matches([' ', '\t']);
    let line_start = cursor.text.len() - rest.len();
    let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
    if digits == 0 {
        return None;
    }
    let end = rest.find('\n').unwrap_or(rest.len());
    cursor.at = line_start + end;
    Some(TextSpan::new(line_start + digits, cursor.at))
}

/// The numbers of `{key=1 other=2}` with these keys; 0 for missing ones.
fn fields<const N: usize>(text: &str, keys: [&str; N]) -> [u32; N] {
    let value = |key: &str| {
        let fields = text.trim().trim_matches(['{', '}']).split_whitespace();
        fields
            .filter_map(|field| field.split_once('='))
            .find(|(name, _)| *name == key)?
            .1
            .parse()
            .ok()
    };
    keys.map(|key| value(key).unwrap_or(0))
}

impl Module {
    /// What an instruction's metadata says.
    pub fn metadata(&self, instr: InstrId) -> Metadata {
        let mut metadata = Metadata::default();
        let Some(text) = self.attribute(instr, "metadata") else { return metadata };
        let mut cursor = TextCursor::new(text);
        cursor.take(b'{');
        loop {
            cursor.skip_space();
            cursor.take(b',');
            cursor.skip_space();
            let Ok(key) = cursor.name("") else { return metadata };
            let key = &text[key.start as usize..key.end as usize];
            if !cursor.take(b'=') {
                return metadata;
            }
            let start = cursor.at;
            let value = match cursor.peek() {
                Some(b'"') => cursor
                    .skip_string()
                    .map(|value| &text[value.start as usize..value.end as usize]),
                Some(b'{') => {
                    cursor.skip(super::lex::Until::Item).map(|()| &text[start..cursor.at])
                }
                _ => cursor.name("").map(|value| &text[value.start as usize..value.end as usize]),
            };
            let Ok(value) = value else { return metadata };
            match key {
                "op_type" => metadata.op_type = unescape(value),
                "op_name" => metadata.op_name = unescape(value),
                "source_file" => metadata.source_file = unescape(value),
                "source_line" => metadata.source_line = value.parse().unwrap_or(0),
                "stack_frame_id" => metadata.stack_frame_id = value.parse().ok(),
                _ => {}
            }
        }
    }

    /// A place in the user's program, and those that called it, the innermost first.
    pub fn frames(&self, id: u32) -> Vec<SourceFrame<'_>> {
        /// Real stacks are not deeper.
        const DEEPEST: usize = 1000;
        let entry = |list: &[TextSpan], id: u32| {
            let span = list.get((id as usize).checked_sub(1)?)?;
            Some(self.str(*span).trim().trim_matches('"'))
        };
        let mut frames = Vec::new();
        let mut id = id;
        while let Some(&[location, parent]) =
            (id as usize).checked_sub(1).and_then(|index| self.tables.frames.get(index))
        {
            let place = (location as usize)
                .checked_sub(1)
                .and_then(|index| self.tables.locations.get(index));
            if let Some(&[file, function, line]) = place {
                let file = entry(&self.tables.files, file).unwrap_or("");
                frames.push(SourceFrame {
                    file,
                    function: entry(&self.tables.functions, function).unwrap_or(""),
                    line,
                });
            }
            // Parents are written one too high, so that the outermost frame seems to be its own.
            id = parent.saturating_sub(1);
            if frames.len() >= DEEPEST {
                break;
            }
        }
        frames
    }

    /// Where an instruction comes from, for display: `jit(step)/dot_general model.py:42`.
    pub fn source(&self, instr: InstrId) -> String {
        let metadata = self.metadata(instr);
        // If several operations were fused into one, the first represents all.
        let name = metadata.op_name.split(';').next().unwrap_or("").trim().to_owned();
        let place = self.place_of(&metadata).unwrap_or_default();
        [name, place].into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" ")
    }

    /// The operation of the user's program that an instruction is part of: `dot_general`.
    pub fn operation(&self, instr: InstrId) -> String {
        let name = self.metadata(instr).op_name;
        let whole = name.split(';').next().unwrap_or("").trim();
        whole.rsplit('/').next().unwrap_or("").to_owned()
    }

    /// The user's own names around an instruction, the outermost first: `layers_3.attention`. JAX's
    /// transforms and loops, and the operation itself, are not part of it.
    pub fn scope(&self, instr: InstrId) -> String {
        let name = self.metadata(instr).op_name;
        let parts: Vec<&str> = name.split(';').next().unwrap_or("").trim().split('/').collect();
        let scopes = parts.split_last().map_or(&[][..], |(_, scopes)| scopes);
        let own = scopes.iter().filter_map(|part| scope_of(part));
        own.collect::<Vec<_>>().join(".")
    }

    /// The argument of the program that a collective sends, as the user names it:
    /// `params.layers.0.w1`. Copies and conversions on the way do not matter; empty for all else.
    pub fn argument_sent(&self, collective: InstrId) -> String {
        /// Real programs have two or three.
        const STEPS: usize = 16;
        let mut at = collective;
        if !self.instruction(at).opcode.is_of_collective() {
            return String::new();
        }
        for _ in 0..STEPS {
            let [operand] = self.operands(at) else { break };
            at = operand.of;
            if !self.passes_on(at) {
                break;
            }
        }
        let is_argument = self.instruction(at).opcode == Opcode::Parameter
            && self.computation_of(at) == self.entry();
        match is_argument {
            true => key_path(&self.metadata(at).op_name),
            false => String::new(),
        }
    }

    /// Whether a result is what the only operand holds, in another form. A fusion is taken for that
    /// if it has as many numbers: the name is for people.
    fn passes_on(&self, instr: InstrId) -> bool {
        let opcode = self.instruction(instr).opcode;
        match opcode {
            Opcode::Bitcast
            | Opcode::Convert
            | Opcode::Copy
            | Opcode::Reshape
            | Opcode::Transpose => true,
            Opcode::Fusion => {
                let elements = |shape: &Shape| shape.array().map(Array::elements);
                let made = elements(&self.instruction(instr).shape);
                let is_same =
                    |of: &Operand| made.is_some() && elements(self.operand_shape(of)) == made;
                self.operands(instr).iter().all(is_same)
            }
            _ => opcode.is_of_collective(),
        }
    }

    /// The line of the user's program that an instruction comes from: `model.py:42`.
    pub fn place(&self, instr: InstrId) -> Option<String> {
        self.place_of(&self.metadata(instr))
    }

    fn place_of(&self, metadata: &Metadata) -> Option<String> {
        let frames = metadata.stack_frame_id.map_or(Vec::new(), |id| self.frames(id));
        let (path, line) = match frames.first() {
            Some(frame) => (frame.file, frame.line),
            None if !metadata.source_file.is_empty() => {
                (metadata.source_file.as_str(), metadata.source_line)
            }
            None => return None,
        };
        let file = path.rsplit('/').next().unwrap_or(path);
        Some(format!("{file}:{line}"))
    }
}

/// A path in JAX's trees of arguments with dots: `params['layers'][0]` is `params.layers.0`.
fn key_path(text: &str) -> String {
    let parts = text.split(['[', ']', '.', '\'', '"']).filter(|part| !part.is_empty());
    parts.collect::<Vec<_>>().join(".")
}

/// The name in a part of an `op_name`, if it is the user's: `jvp(layers_3)` has one.
fn scope_of(part: &str) -> Option<&str> {
    const OURS: [&str; 9] = [
        "while",
        "body",
        "cond",
        "closed_call",
        "checkpoint",
        "remat",
        "shard_map",
        "branch",
        "scan",
    ];
    if part.starts_with("jit(") || part.starts_with("pjit(") || part.starts_with("pmap(") {
        return None;
    }
    let inner = part.rsplit('(').next().unwrap_or(part).trim_end_matches(')');
    let is_name = |letter: char| letter.is_alphanumeric() || "_.-[]".contains(letter);
    let is_own = !inner.is_empty() && !OURS.contains(&inner) && !inner.contains("->");
    (is_own && inner.chars().all(is_name)).then_some(inner)
}

#[cfg(test)]
mod tests {
    use super::{key_path, scope_of};

    #[test]
    fn arguments_have_dotted_paths() {
        assert_eq!(key_path("params['layers'][0]['w1']"), "params.layers.0.w1");
        assert_eq!(key_path("state.params[\"wq\"]"), "state.params.wq");
        assert_eq!(key_path(""), "");
    }

    #[test]
    fn only_the_users_names_are_scopes() {
        let own = ["jvp(layers_3)", "transpose(jvp(attention))", "mlp"].map(scope_of);
        assert_eq!(own, [Some("layers_3"), Some("attention"), Some("mlp")]);
        for other in ["jit(step)", "jvp()", "transpose(jvp())", "while", "bshk,hkd->bsd", ""] {
            assert_eq!(scope_of(other), None, "{other}");
        }
    }
}
