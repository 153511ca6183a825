//! Text to a module, in one pass.
//!
//! Operands are resolved immediately, because producers come before their users; computations once
//! all are known. Memory is bounded by the text: one table entry for each item.

mod check;
mod expand;
mod infer;

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::OnceLock;

use super::attributes::Attribute;
use super::error::{HloError, Problem};
use super::groups::{self, assumed};
use super::lex::{TextCursor, TextSpan, Until, is_name};
use super::metadata::Tables;
use super::{Computation, Instruction, Module, Opcode, Operand, Shape};
use crate::ids::{ComputationId, InstrId};
use expand::expand;
use halflap::ids::{Id, IdVec};
use halflap::import;
use infer::infer;

/// Reads a module. Shorthand is expanded first; errors still show the original text.
pub(super) fn parse(text: String) -> Result<Module, HloError> {
    if u32::try_from(text.len()).is_err() {
        return Err(HloError::at(&text, 0, Problem::TooLarge { size: text.len() }));
    }
    match parse_full(text) {
        Ok(module) => Ok(module),
        Err(Refused::Wrong(error)) => Err(error),
        Err(Refused::Short(text)) => parse_short(&text),
    }
}

/// Why a text could not be read.
enum Refused {
    Wrong(HloError),
    /// It has shorthand, which could be expanded.
    Short(String),
}

fn parse_short(text: &str) -> Result<Module, HloError> {
    let full = expand(text)?;
    let places = full.places.clone();
    let original =
        |error: HloError| HloError::at(text, full.original(error.at as usize), error.problem);
    match parse_full(full.text.clone()) {
        Ok(module) => Ok(Module { places, ..module }),
        Err(Refused::Wrong(error)) => Err(original(error)),
        // Expanded text has no shorthand.
        Err(Refused::Short(full)) => {
            Err(HloError::at(&full, 0, Problem::Bad("the shorthand cannot be written out")))
        }
    }
}

fn parse_full(text: String) -> Result<Module, Refused> {
    let mut reader = ModuleReader::new(&text);
    let head = match reader.all() {
        _ if reader.is_short => return Err(Refused::Short(text)),
        Ok(head) => head,
        Err(error) => return Err(Refused::Wrong(error)),
    };
    let Head { name, header, preamble, attributes, tables, entry } = head;
    let trailer = TextSpan::new(reader.done, text.len());
    let ModuleReader {
        computations, instructions, operands, paths, called, controls, untyped, ..
    } = reader;
    let all_attributes = reader.attributes;
    let by_name = reader.by_name.into_iter().map(|(name, id)| (name.to_owned(), id)).collect();
    let mut module = Module {
        name,
        header,
        preamble,
        attributes,
        tables,
        computations,
        instructions,
        operands,
        paths,
        all_attributes,
        called,
        controls,
        entry,
        by_name,
        trailer,
        sorted: OnceLock::new(),
        assumed: None,
        places: Vec::new(),
        text,
    };
    module.check_calls().map_err(Refused::Wrong)?;
    infer(&mut module, &untyped).map_err(Refused::Wrong)?;
    module.check_elements(&untyped).map_err(Refused::Wrong)?;
    module.assumed = assumed(&module);
    Ok(module)
}

/// Everything except the computations.
struct Head {
    name: TextSpan,
    header: TextSpan,
    preamble: TextSpan,
    attributes: Range<u32>,
    tables: Tables,
    entry: ComputationId,
}

/// Attributes whose values name computations.
const CALLS: [&str; 12] = [
    "calls",
    "to_apply",
    "body",
    "condition",
    "branch_computations",
    "true_computation",
    "false_computation",
    "called_computations",
    "select",
    "scatter",
    "comparator",
    "async_computation",
];

/// Attributes that are kept verbatim.
const VERBATIM: [&str; 9] = [
    "sharding",
    "origin",
    "metadata",
    "frontend_attributes",
    "backend_config",
    "statistics",
    "operand_layout_constraints",
    "entry_computation_layout",
    "literal",
];

struct ModuleReader<'t> {
    cursor: TextCursor<'t>,
    /// Where the last computation ended.
    done: usize,
    computations: IdVec<ComputationId, Computation>,
    instructions: IdVec<InstrId, Instruction>,
    operands: Vec<Operand>,
    paths: Vec<u32>,
    attributes: Vec<Attribute>,
    called: Vec<ComputationId>,
    /// Attributes that name computations, by instruction.
    calls: Vec<(InstrId, TextSpan)>,
    controls: Vec<(InstrId, InstrId)>,
    entry: Option<ComputationId>,
    by_name: HashMap<&'t str, ComputationId>,
    /// The instructions of the computation that is being read. Looked up only.
    names: HashMap<&'t str, InstrId>,
    /// The numbers of its parameters. Looked up only.
    parameters: HashSet<u64>,
    /// Groups that were already checked: most collectives have the same. Looked up only.
    groups: HashSet<&'t str>,
    /// The number of devices listed in all of these.
    devices: u64,
    /// The instructions without a shape, ascending.
    untyped: Vec<InstrId>,
    /// Whether shorthand was met: instructions in place of operands, computations in place of their
    /// names, or comments in values.
    is_short: bool,
}

/// The maximum number of devices in a module's groups, so that no text takes long to parse.
const MOST_IN_GROUPS: u64 = 1 << 27;

impl<'t> ModuleReader<'t> {
    fn new(text: &'t str) -> ModuleReader<'t> {
        ModuleReader {
            cursor: TextCursor::new(text),
            done: 0,
            computations: IdVec::default(),
            instructions: IdVec::default(),
            operands: Vec::new(),
            paths: Vec::new(),
            attributes: Vec::new(),
            called: Vec::new(),
            calls: Vec::new(),
            controls: Vec::new(),
            entry: None,
            by_name: HashMap::new(),
            names: HashMap::new(),
            parameters: HashSet::new(),
            groups: HashSet::new(),
            devices: 0,
            untyped: Vec::new(),
            is_short: false,
        }
    }

    fn all(&mut self) -> Result<Head, HloError> {
        let (name, attributes) = self.header()?;
        let header = TextSpan::new(0, self.cursor.at);
        let tables = Tables::parse(&mut self.cursor)?;
        let preamble = TextSpan::new(0, self.cursor.at);
        while self.computation()? {}
        // Without a mark, the last one is the entry.
        let last = self.computations.len().checked_sub(1).map(ComputationId::from_index);
        let entry = self.entry.or(last).ok_or_else(|| self.cursor.error(Problem::NoEntry))?;
        self.resolve_called()?;
        Ok(Head { name, header, preamble, attributes, tables, entry })
    }

    fn check_groups(&mut self, attribute: &Attribute) -> Result<(), HloError> {
        let (key, value) = (self.str(attribute.key), self.str(attribute.value));
        if !groups::KEYS.contains(&key) || !self.groups.insert(value) {
            return Ok(());
        }
        let wrong = |problem| self.cursor.error_at(attribute.value.start as usize, problem);
        self.devices += groups::check(key, value).map_err(wrong)?;
        match self.devices > MOST_IN_GROUPS {
            true => Err(wrong(Problem::BadGroups(
                "fewer devices: at most 134217728 in all groups of a module",
            ))),
            false => Ok(()),
        }
    }

    fn str(&self, span: TextSpan) -> &'t str {
        &self.cursor.text[span.start as usize..span.end as usize]
    }

    /// `HloModule name, key=value, ...`; a text may also begin with its first computation.
    fn header(&mut self) -> Result<(TextSpan, Range<u32>), HloError> {
        self.cursor.skip_space();
        if import::is_headless(self.cursor.text.as_bytes()) {
            self.cursor.at = 0;
            return Ok((TextSpan::default(), 0..0));
        }
        if !self.cursor.take_word("HloModule") {
            let is_mlir = ["module", "#loc", "func"]
                .iter()
                .any(|word| self.cursor.text[self.cursor.at..].starts_with(word));
            let problem = if is_mlir {
                Problem::Mlir
            } else {
                Problem::Expected("'HloModule' at the start of the text")
            };
            return Err(self.cursor.error(problem));
        }
        self.cursor.skip_blanks();
        let start = self.cursor.at;
        self.cursor.skip(Until::Value)?;
        let name = TextSpan::new(start, self.cursor.at);
        let name = TextSpan::new(start, start + self.str(name).trim_end().len());
        let attributes = self.attributes()?;
        // Only instructions have shorthand.
        self.is_short = false;
        Ok((name, attributes))
    }

    /// Any number of `, key=value`.
    fn attributes(&mut self) -> Result<Range<u32>, HloError> {
        let first = self.attributes.len() as u32;
        loop {
            let back = self.cursor.at;
            self.cursor.skip_space();
            if !self.cursor.take(b',') {
                self.cursor.at = back;
                return Ok(first..self.attributes.len() as u32);
            }
            self.cursor.skip_space();
            let key = self.cursor.name("the name of an attribute")?;
            self.cursor.skip_blanks();
            self.cursor.expect(b'=', "'=' after the name of an attribute")?;
            self.cursor.skip_space();
            let comments = self.cursor.comments;
            let value = self.value()?;
            // Values are parsed on demand, by code that does not expect comments.
            self.is_short |= self.cursor.comments > comments && !VERBATIM.contains(&self.str(key));
            self.attributes.push(Attribute { key, value });
        }
    }

    /// The value of an attribute, up to a comma or the end of the line.
    fn value(&mut self) -> Result<TextSpan, HloError> {
        let start = self.cursor.at;
        self.cursor.skip(Until::Value)?;
        // The devices of a mesh come after a comma, and its axes after them: `mesh['a'=2,'b'=4],
        // device_ids=([4,2]T(1,0)) {'b'}`.
        let rest = self.cursor.text[self.cursor.at..].strip_prefix(',').map(str::trim_start);
        let is_mesh = self.cursor.text[start..self.cursor.at].starts_with("mesh[");
        if is_mesh && rest.is_some_and(|rest| rest.starts_with("device_ids=")) {
            self.cursor.at += 1;
            self.cursor.skip_space();
            self.cursor.skip(Until::Value)?;
        }
        let value = TextSpan::new(start, self.cursor.at);
        let value = TextSpan::new(start, start + self.str(value).trim_end().len());
        self.cursor.at = value.end as usize;
        Ok(value)
    }

    /// Parses a computation; returns whether there was one.
    fn computation(&mut self) -> Result<bool, HloError> {
        let start = if self.computations.is_empty() { self.cursor.at } else { self.done };
        self.cursor.skip_space();
        if self.cursor.is_at_end() {
            self.done = start;
            return Ok(false);
        }
        let at = self.cursor.at;
        let is_entry = self.cursor.take_word("ENTRY");
        self.cursor.skip_space();
        let name = self.cursor.name("the name of a computation, or the end of the text")?;
        self.signature()?;
        let head = TextSpan::new(start, self.cursor.at);
        let id = ComputationId::from_index(self.computations.len());
        if self.by_name.insert(self.str(name), id).is_some() {
            return Err(self.twice("computation", name));
        }
        if is_entry && self.entry.replace(id).is_some() {
            return Err(self.cursor.error_at(at, Problem::TwoEntries));
        }
        let first = self.instructions.len() as u32;
        let root = self.body(id, name)?;
        let tail = self.tail()?;
        let instructions = first..self.instructions.len() as u32;
        self.computations.push(Computation { name, instructions, root, head, tail });
        Ok(true)
    }

    /// `(p: f32[2]) -> f32[2] {`, all but the brace optional.
    fn signature(&mut self) -> Result<(), HloError> {
        self.cursor.skip_space();
        if self.cursor.take(b'(') {
            self.cursor.skip(Until::Close(b')'))?;
            self.cursor.at += 1;
            self.cursor.skip_space();
        }
        if self.cursor.take(b'-') {
            self.cursor.expect(b'>', "'->' before the computation's shape")?;
            self.cursor.skip_space();
            Shape::parse(&mut self.cursor)?;
            self.cursor.skip_space();
        }
        self.cursor.expect(b'{', "'{' before the computation's instructions")
    }

    /// The instructions up to the closing brace; returns the root.
    fn body(&mut self, id: ComputationId, name: TextSpan) -> Result<InstrId, HloError> {
        self.names.clear();
        self.parameters.clear();
        let mut root: Option<InstrId> = None;
        let mut last = None;
        loop {
            let lead = self.cursor.at;
            self.cursor.skip_space();
            if self.cursor.peek() == Some(b'}') {
                self.cursor.at = lead;
                break;
            }
            if self.cursor.is_at_end() {
                return Err(self.cursor.error(Problem::Expected("an instruction or '}'")));
            }
            let (instr, is_root) = self.instruction(id, lead)?;
            if is_root && let Some(first) = root.replace(instr) {
                let first = self.str(self.instructions[first].name).to_owned();
                let at = self.instructions[instr].text.start as usize;
                return Err(self.cursor.error_at(at, Problem::TwoRoots { first }));
            }
            last = Some(instr);
        }
        let empty = || Problem::Empty { name: self.str(name).to_owned() };
        root.or(last).ok_or_else(|| self.cursor.error(empty()))
    }

    /// What follows the last instruction: the brace, optional attributes, the end of the line.
    fn tail(&mut self) -> Result<TextSpan, HloError> {
        let start = self.cursor.at;
        self.cursor.skip_space();
        self.cursor.expect(b'}', "'}' after the computation's instructions")?;
        let kept = self.attributes.len();
        self.attributes()?;
        // They are written back verbatim, but not used.
        self.attributes.truncate(kept);
        self.done = self.cursor.at;
        Ok(TextSpan::new(start, self.done))
    }

    /// `ROOT %name = shape opcode(operands), key=value, ...`
    fn instruction(
        &mut self,
        computation: ComputationId,
        lead: usize,
    ) -> Result<(InstrId, bool), HloError> {
        let start = self.cursor.at;
        let is_root = self.cursor.take_word("ROOT");
        self.cursor.skip_space();
        let name = self.cursor.name("the name of an instruction")?;
        self.cursor.skip_space();
        self.cursor.expect(b'=', "'=' after the instruction's name")?;
        self.cursor.skip_space();
        let id = InstrId::from_index(self.instructions.len());
        let shape = match self.has_opcode() {
            // It is inferred after everything has been read.
            true => {
                self.untyped.push(id);
                Shape::Opaque
            }
            false => Shape::parse(&mut self.cursor)?,
        };
        self.cursor.skip_space();
        let opcode_name = self.cursor.name("an opcode")?;
        let opcode = Opcode::named(self.str(opcode_name));
        let (payload, operands) = self.payload(opcode)?;
        let attributes = self.attributes()?;
        for place in attributes.start as usize..attributes.end as usize {
            let attribute = self.attributes[place];
            if CALLS.contains(&self.str(attribute.key)) {
                // Names have no such character: these are instructions.
                self.is_short |= self.str(attribute.value).contains('=');
                self.calls.push((id, attribute.value));
            }
            self.check_groups(&attribute)?;
        }
        self.controls(id, attributes.clone())?;
        if self.names.insert(self.str(name), id).is_some() {
            return Err(self.twice("instruction", name));
        }
        self.instructions.push(Instruction {
            name,
            opcode,
            opcode_name,
            shape,
            operands,
            attributes,
            called: 0..0,
            payload,
            lead: TextSpan::new(lead, start),
            text: TextSpan::new(start, self.cursor.at),
            computation,
        });
        self.check(id)?;
        Ok((id, is_root))
    }

    /// The control predecessors of this instruction.
    fn controls(&mut self, instr: InstrId, attributes: Range<u32>) -> Result<(), HloError> {
        let attributes = &self.attributes[attributes.start as usize..attributes.end as usize];
        let found =
            attributes.iter().find(|attribute| self.str(attribute.key) == "control-predecessors");
        let Some(&Attribute { value, .. }) = found else { return Ok(()) };
        for (at, name) in names(self.cursor.text, value)? {
            let name = self.str(name);
            let unknown =
                || self.cursor.error_at(at, Problem::UnknownOperand { name: name.to_owned() });
            self.controls.push((instr, *self.names.get(name).ok_or_else(unknown)?));
        }
        Ok(())
    }

    /// The text between the parentheses, and the operands if there are any.
    fn payload(&mut self, opcode: Opcode) -> Result<(TextSpan, Range<u32>), HloError> {
        self.cursor.skip_space();
        self.cursor.expect(b'(', "'(' after the opcode")?;
        let start = self.cursor.at;
        let first = self.operands.len();
        if !matches!(opcode, Opcode::Constant | Opcode::Parameter) {
            // An unknown opcode need not have operands between its parentheses.
            match self.operands() {
                Err(_) if opcode == Opcode::Other && !self.is_short => {
                    self.operands.truncate(first);
                    self.cursor.at = start;
                }
                result => result?,
            }
        }
        self.cursor.skip(Until::Close(b')'))?;
        let payload = TextSpan::new(start, self.cursor.at);
        self.cursor.at += 1;
        Ok((payload, first as u32..self.operands.len() as u32))
    }

    /// Operands up to the closing parenthesis.
    fn operands(&mut self) -> Result<(), HloError> {
        self.cursor.skip_space();
        if self.cursor.peek() == Some(b')') {
            return Ok(());
        }
        loop {
            self.operand()?;
            self.cursor.skip_space();
            if self.cursor.peek() == Some(b')') {
                return Ok(());
            }
            self.cursor.expect(b',', "',' or ')' after an operand")?;
            self.cursor.skip_space();
        }
    }

    /// `%name`, `name`, `f32[2]{0} %name`, `%name#1#0`.
    fn operand(&mut self) -> Result<(), HloError> {
        if self.cursor.peek() != Some(b'%') && self.has_shape() {
            Shape::parse(&mut self.cursor)?;
            self.cursor.skip_space();
        }
        let at = self.cursor.at;
        let name = self.cursor.name("the name of an operand")?;
        self.is_short |= self.is_nested();
        let Some(&of) = self.names.get(self.str(name)) else {
            return Err(self
                .cursor
                .error_at(at, Problem::UnknownOperand { name: self.str(name).to_owned() }));
        };
        let first = self.paths.len();
        while self.cursor.take(b'#') {
            let at = self.cursor.at;
            let index = self.cursor.number()?;
            let index = u32::try_from(index)
                .map_err(|_| self.cursor.error_at(at, Problem::NumberTooLarge))?;
            self.paths.push(index);
            let is_untyped = self.untyped.binary_search(&of).is_ok();
            if !is_untyped && self.instructions[of].shape.at(&self.paths[first..]).is_none() {
                let name = self.str(name).to_owned();
                return Err(self.cursor.error_at(at, Problem::NoSuchElement { name, index }));
            }
        }
        self.operands.push(Operand { of, path: (first as u32, self.paths.len() as u32) });
        Ok(())
    }

    /// The next word, and the byte after it and after spaces.
    fn word(&self) -> (&'t str, Option<u8>) {
        let rest = &self.cursor.text[self.cursor.at..];
        let word = &rest[..rest.bytes().position(|byte| !is_name(byte)).unwrap_or(rest.len())];
        (word, rest[word.len()..].trim_start().bytes().next())
    }

    /// Whether an operand starts with its shape and not with its name.
    fn has_shape(&self) -> bool {
        matches!(self.word(), (_, Some(b'[')) | ("" | "b", Some(b'(')))
    }

    /// Whether an instruction continues with its opcode, without a shape.
    fn has_opcode(&self) -> bool {
        matches!(self.word(), (word, Some(b'(')) if !matches!(word, "" | "b"))
    }

    /// Whether what stood in place of an operand's name is an opcode: the operands of an
    /// instruction follow.
    fn is_nested(&self) -> bool {
        self.cursor.text[self.cursor.at..].trim_start().starts_with('(')
    }

    fn twice(&self, what: &'static str, name: TextSpan) -> HloError {
        let problem = Problem::Twice { what, name: self.str(name).to_owned() };
        self.cursor.error_at(name.start as usize, problem)
    }

    /// Finds the computations that attributes name: `%f` or `{%f, %g}`.
    fn resolve_called(&mut self) -> Result<(), HloError> {
        for (instr, value) in std::mem::take(&mut self.calls) {
            let first = self.called.len() as u32;
            for (at, name) in names(self.cursor.text, value)? {
                let name = self.str(name);
                let unknown = || {
                    self.cursor.error_at(at, Problem::UnknownComputation { name: name.to_owned() })
                };
                self.called.push(self.by_name.get(name).copied().ok_or_else(unknown)?);
            }
            let called = &mut self.instructions[instr].called;
            // An instruction's attributes come one after the other, and so do its entries here.
            let start = if called.start == called.end { first } else { called.start };
            *called = start..self.called.len() as u32;
        }
        Ok(())
    }
}

/// The names in a value, `%f` or `{%f, %g}`, each with its place.
fn names(text: &str, value: TextSpan) -> Result<Vec<(usize, TextSpan)>, HloError> {
    let mut cursor = TextCursor::new(&text[..value.end as usize]);
    cursor.at = value.start as usize;
    cursor.take(b'{');
    let mut names = Vec::new();
    loop {
        cursor.skip_space();
        if cursor.is_at_end() || cursor.peek() == Some(b'}') {
            return Ok(names);
        }
        let at = cursor.at;
        names.push((at, cursor.name("a name")?));
        cursor.skip_space();
        cursor.take(b',');
    }
}

impl Module {
    /// The computations, callees first; a cycle is an error.
    fn check_calls(&self) -> Result<(), HloError> {
        match self.sort_calls() {
            Ok(_) => Ok(()),
            Err(computation) => {
                let name = self.computations[computation].name;
                let problem = Problem::Recursive { name: self.str(name).to_owned() };
                Err(HloError::at(&self.text, name.start as usize, problem))
            }
        }
    }

    /// All computations, callees first.
    pub fn callees_first(&self) -> Vec<ComputationId> {
        // Recursion was ruled out when the module was read.
        self.sort_calls().unwrap_or_default()
    }

    /// All computations, callees first; or one that calls itself.
    fn sort_calls(&self) -> Result<Vec<ComputationId>, ComputationId> {
        #[derive(Clone, Copy, PartialEq)]
        enum State {
            New,
            Open,
            Done,
        }
        let mut state: IdVec<ComputationId, State> =
            IdVec::filled(State::New, self.computations.len());
        let mut order = Vec::with_capacity(self.computations.len());
        for start in self.computations() {
            // Each entry: a computation, and whether its callees have been pushed above it.
            let mut stack = vec![(start, false)];
            while let Some((computation, is_left)) = stack.pop() {
                if is_left {
                    state[computation] = State::Done;
                    order.push(computation);
                    continue;
                }
                if state[computation] != State::New {
                    continue;
                }
                state[computation] = State::Open;
                stack.push((computation, true));
                for instr in self.instructions(computation) {
                    for &callee in self.called(instr) {
                        match state[callee] {
                            State::Open => return Err(callee),
                            State::New => stack.push((callee, false)),
                            State::Done => {}
                        }
                    }
                }
            }
        }
        Ok(order)
    }
}
