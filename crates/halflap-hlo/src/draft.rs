//! Edited computations: a module's text with instructions replaced, added and left out.
//!
//! A value keeps its name: the new instruction has the name that readers know, so they do not
//! change. The edited text is read back and compared with what was promised.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap, HashSet};

use thiserror::Error;

use super::split::{is_marked, shape_text};
use super::{Array, Computation, HloError, Module, Operand};
use crate::ids::{ComputationId, InstrId};

/// An instruction that was not in the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DraftLine {
    /// Its name, without `%`.
    pub(crate) name: String,
    /// Everything after the name and `=`.
    pub(crate) text: String,
    /// The names of what it reads.
    pub(crate) reads: Vec<String>,
}

/// Why an edited module cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[allow(missing_docs)]
pub enum DraftError {
    #[error("the instructions of computation '{computation}' depend on each other in a cycle")]
    Circle { computation: String },
    #[error("the edited module cannot be read back: {0}")]
    Unreadable(HloError),
    #[error("in the edited module, '{instruction}' is not what was promised")]
    NotPromised { instruction: String },
}

/// Edits of a module.
pub(crate) struct Draft<'m> {
    module: &'m Module,
    /// The replacement of an instruction; empty if it is removed.
    replaced: BTreeMap<InstrId, Vec<DraftLine>>,
    /// Instructions that stay where lines were added, and the operands that they have instead.
    stays: BTreeMap<InstrId, BTreeMap<InstrId, String>>,
    /// The heads of computations that take or return more.
    heads: BTreeMap<ComputationId, String>,
    /// New names.
    taken: HashSet<String>,
    next_channel: u64,
}

/// What is written: an old instruction or a new one.
#[derive(Clone, Copy)]
enum DraftItem<'d> {
    Kept(InstrId),
    New(&'d DraftLine, InstrId),
}

impl<'m> Draft<'m> {
    pub(crate) fn new(module: &'m Module) -> Draft<'m> {
        let instructions = module.computations().flat_map(|id| module.instructions(id));
        let channel = |instr| module.attribute(instr, "channel_id")?.trim().parse::<u64>().ok();
        let last = instructions.filter_map(channel).max();
        Draft {
            module,
            replaced: BTreeMap::new(),
            stays: BTreeMap::new(),
            heads: BTreeMap::new(),
            taken: HashSet::new(),
            next_channel: last.map_or(1, |last| last.saturating_add(1)),
        }
    }

    /// Leaves an instruction out. Whatever read it must be replaced, too.
    pub(crate) fn remove(&mut self, instr: InstrId) {
        self.replaced.entry(instr).or_default();
    }

    /// Writes a line in place of an instruction, after any lines already there.
    pub(crate) fn replace(&mut self, instr: InstrId, line: DraftLine) {
        self.replaced.entry(instr).or_default().push(line);
    }

    /// The same, given a name and the text from the shape on; it reads the names in its first
    /// parentheses.
    pub(crate) fn write_line(&mut self, at: InstrId, name: String, (shape, text): (&str, &str)) {
        let inside = text.split_once('(').and_then(|(_, rest)| rest.split(')').next());
        let read = |operand: &str| {
            let operand = operand.trim().trim_start_matches('%');
            operand.split('#').next().unwrap_or("").to_owned()
        };
        let reads = inside.unwrap_or("").split(',').map(read).filter(|name| !name.is_empty());
        let (reads, text) = (reads.collect(), format!("{shape} {text}"));
        self.replace(at, DraftLine { name, text, reads });
    }

    /// The same with a new name, which is returned as an operand.
    pub(crate) fn add(&mut self, at: InstrId, stem: &str, of: (&str, &str)) -> String {
        let name = self.fresh(stem);
        let operand = format!("{}{name}", self.percent(at));
        self.write_line(at, name, of);
        operand
    }

    /// Lets an instruction stay, so that lines can be added in its place.
    pub(crate) fn stay(&mut self, instr: InstrId) {
        self.stays.entry(instr).or_default();
        self.write_staying(instr);
    }

    /// The same, and it reads something else wherever it read `of`.
    pub(crate) fn redirect(&mut self, instr: InstrId, of: InstrId, instead: &str) {
        self.stays.entry(instr).or_default().insert(of, instead.to_owned());
        self.write_staying(instr);
    }

    fn write_staying(&mut self, instr: InstrId) {
        let module = self.module;
        let instead = self.stays.get(&instr).filter(|instead| !instead.is_empty());
        let own = |operand: &Operand| match instead.and_then(|instead| instead.get(&operand.of)) {
            Some(other) => other.clone(),
            None => self.operand(operand),
        };
        let operands: Vec<String> = module.operands(instr).iter().map(own).collect();
        let text = match instead {
            Some(_) => with_operands(module, instr, &operands.join(", ")),
            None => after_name(module, instr).to_owned(),
        };
        let before = module.control_predecessors(instr);
        let before = before.map(|before| module.instruction_name(before).to_owned());
        let reads = operands.iter().map(|operand| read_name(operand)).chain(before).collect();
        let name = module.instruction_name(instr).to_owned();
        let lines = self.replaced.entry(instr).or_default();
        lines.retain(|line| line.name != name);
        lines.insert(0, DraftLine { name, text, reads });
    }

    /// Whether an instruction computes what it did, of whatever it reads.
    pub(crate) fn is_there(&self, instr: InstrId) -> bool {
        self.is_untouched(instr) || self.stays.contains_key(&instr)
    }

    /// Whether an instruction was redirected from another one.
    pub(crate) fn is_redirected(&self, instr: InstrId, of: InstrId) -> bool {
        self.stays.get(&instr).is_some_and(|instead| instead.contains_key(&of))
    }

    /// Whether an instruction is unchanged.
    pub(crate) fn is_untouched(&self, instr: InstrId) -> bool {
        !self.replaced.contains_key(&instr)
    }

    /// Whether anything still reads an instruction, given its readers in the module.
    pub(crate) fn is_read(&self, instr: InstrId, users: &[InstrId]) -> bool {
        let name = self.module.instruction_name(instr);
        let mut lines = self.replaced.values().flatten();
        users.iter().any(|&user| self.is_untouched(user))
            || lines.any(|line| line.reads.iter().any(|read| read == name))
    }

    /// A name that no instruction has: `stem`, or `stem.2`, ...
    pub(crate) fn fresh(&mut self, stem: &str) -> String {
        let is_free = |name: &str| !self.module.has_instruction(name) && !self.taken.contains(name);
        let numbered = (2u64..).map(|number| format!("{stem}.{number}"));
        let mut names = std::iter::once(stem.to_owned()).chain(numbered);
        let name = names.find(|name| is_free(name)).unwrap_or_else(|| stem.to_owned());
        self.taken.insert(name.clone());
        name
    }

    /// A channel that no collective has.
    pub(crate) fn fresh_channel(&mut self) -> u64 {
        self.next_channel = self.next_channel.saturating_add(1);
        self.next_channel - 1
    }

    /// Writes that a computation's only parameter, a tuple, has more elements; and its result, if
    /// that is such a tuple, too.
    pub(crate) fn grow_head(&mut self, parameter: InstrId, shapes: &[String]) {
        let id = self.module.computation_of(parameter);
        let head = self.module.str(self.module.computations[id].head);
        // A head may omit the signature.
        let Some((before, taken)) = head.split_once(':') else { return };
        let head = match taken.split_once("->") {
            Some((taken, given)) => format!("{}->{}", grown(taken, shapes), grown(given, shapes)),
            None => grown(taken, shapes),
        };
        self.heads.insert(id, format!("{before}:{head}"));
    }

    /// `%` or nothing, as the module writes the name of an instruction.
    pub(crate) fn percent(&self, instr: InstrId) -> &'static str {
        percent(self.module, instr)
    }

    /// An element of a tuple, under the name and with the type and source of an instruction.
    pub(crate) fn element(&self, instr: InstrId, of: &str, index: usize) -> DraftLine {
        let (shape, percent) = (shape_text(self.module, instr), self.percent(instr));
        let mut text = format!("{shape} get-tuple-element({percent}{of}), index={index}");
        if let Some(metadata) = self.module.attribute(instr, "metadata") {
            text.push_str(&format!(", metadata={metadata}"));
        }
        let name = self.module.instruction_name(instr).to_owned();
        DraftLine { name, text, reads: vec![of.to_owned()] }
    }

    /// An operand as text: `%x#1#0` is element 0 of element 1 of `x`.
    pub(crate) fn operand(&self, operand: &Operand) -> String {
        let name = self.module.instruction_name(operand.of);
        let path: String =
            self.module.path(operand).iter().map(|index| format!("#{index}")).collect();
        format!("{}{name}{path}", self.percent(operand.of))
    }

    /// The edited module: written, read back, and compared with what was promised.
    pub(crate) fn finish(&self) -> Result<Module, DraftError> {
        let mut text = self.module.str(self.module.preamble).to_owned();
        for id in self.module.computations() {
            let Computation { head, tail, .. } = &self.module.computations[id];
            text.push_str(self.heads.get(&id).map_or(self.module.str(*head), String::as_str));
            self.write(id, &mut text)?;
            text.push_str(self.module.str(*tail));
        }
        text.push_str(self.module.str(self.module.trailer));
        let after = Module::read(text).map_err(DraftError::Unreadable)?;
        // A module without a device count keeps the assumed one.
        let after = match self.module.assumed_devices() {
            Some(devices) => u32::try_from(devices.count())
                .ok()
                .and_then(|count| after.for_devices(count))
                .unwrap_or(after),
            None => after,
        };
        self.check(&after)?;
        Ok(after)
    }

    fn items(&self, id: ComputationId) -> Vec<DraftItem<'_>> {
        let mut items = Vec::new();
        for instr in self.module.instructions(id) {
            match self.replaced.get(&instr) {
                Some(lines) => items.extend(lines.iter().map(|line| DraftItem::New(line, instr))),
                None => items.push(DraftItem::Kept(instr)),
            }
        }
        items
    }

    fn write(&self, id: ComputationId, out: &mut String) -> Result<(), DraftError> {
        let items = self.items(id);
        let is_edited = self.module.instructions(id).any(|instr| !self.is_untouched(instr));
        let sequence = match is_edited {
            true => self.sequence(&items).ok_or_else(|| DraftError::Circle {
                computation: self.module.computation_name(id).to_owned(),
            })?,
            false => (0..items.len()).collect(),
        };
        let root = self.module.root(id);
        for at in sequence {
            let (instr, text) = match items[at] {
                DraftItem::Kept(instr) => {
                    (instr, self.kept_text(instr, root == instr && is_edited))
                }
                DraftItem::New(line, instr) => {
                    let is_root = line.name == self.module.instruction_name(root);
                    let mark = if is_root { "ROOT " } else { "" };
                    (instr, format!("{mark}{}{} = {}", self.percent(instr), line.name, line.text))
                }
            };
            out.push_str(self.module.str(self.module.instruction(instr).lead));
            out.push_str(&text);
        }
        Ok(())
    }

    /// An old instruction; a root that was implied by being last is marked explicitly.
    fn kept_text(&self, instr: InstrId, is_root: bool) -> String {
        let text = self.module.str(self.module.instruction(instr).text);
        match is_root && !is_marked(self.module, instr) {
            true => format!("ROOT {text}"),
            false => text.to_owned(),
        }
    }

    fn name<'a>(&'a self, item: &DraftItem<'a>) -> &'a str {
        match *item {
            DraftItem::Kept(instr) => self.module.instruction_name(instr),
            DraftItem::New(line, _) => &line.name,
        }
    }

    /// The names that an item depends on.
    fn reads<'a>(&'a self, item: &DraftItem<'a>) -> Vec<&'a str> {
        match *item {
            DraftItem::New(line, _) => line.reads.iter().map(String::as_str).collect(),
            DraftItem::Kept(instr) => {
                let operands = self.module.operands(instr).iter().map(|operand| operand.of);
                let before = operands.chain(self.module.control_predecessors(instr));
                before.map(|before| self.module.instruction_name(before)).collect()
            }
        }
    }

    /// A stable order in which everything comes after what it reads.
    fn sequence(&self, items: &[DraftItem<'_>]) -> Option<Vec<usize>> {
        // Looked up only.
        let at: HashMap<&str, usize> =
            items.iter().enumerate().map(|(at, item)| (self.name(item), at)).collect();
        let mut missing = vec![0usize; items.len()];
        let mut readers = vec![Vec::new(); items.len()];
        for (reader, item) in items.iter().enumerate() {
            for maker in self.reads(item).into_iter().filter_map(|name| at.get(name)) {
                missing[reader] += 1;
                readers[*maker].push(reader);
            }
        }
        let mut ready: BinaryHeap<Reverse<usize>> =
            (0..items.len()).filter(|&item| missing[item] == 0).map(Reverse).collect();
        let mut sequence = Vec::with_capacity(items.len());
        while let Some(Reverse(item)) = ready.pop() {
            sequence.push(item);
            for &reader in &readers[item] {
                missing[reader] -= 1;
                if missing[reader] == 0 {
                    ready.push(Reverse(reader));
                }
            }
        }
        (sequence.len() == items.len()).then_some(sequence)
    }

    /// Every instruction must be an old one or a promised one, word for word, and none may be
    /// missing.
    fn check(&self, after: &Module) -> Result<(), DraftError> {
        for (old, new) in self.module.computations().zip(after.computations()) {
            let items = self.items(old);
            let texts = items.iter().map(|item| match *item {
                DraftItem::Kept(instr) => plain(self.module, instr).to_owned(),
                DraftItem::New(line, instr) => {
                    format!("{}{} = {}", self.percent(instr), line.name, line.text)
                }
            });
            // Looked up only.
            let mut promised: HashMap<&str, String> =
                items.iter().map(|item| self.name(item)).zip(texts).collect();
            for instr in after.instructions(new) {
                let name = after.instruction_name(instr);
                let is_promised = promised.remove(name).is_some_and(|text| {
                    text.trim_end() == plain(after, instr).trim_end()
                        && (after.root(new) == instr)
                            == (name == self.module.instruction_name(self.module.root(old)))
                });
                if !is_promised {
                    return Err(DraftError::NotPromised { instruction: name.to_owned() });
                }
            }
            if let Some(item) = items.iter().find(|item| promised.contains_key(self.name(item))) {
                let instruction = self.name(item).to_owned();
                return Err(DraftError::NotPromised { instruction });
            }
        }
        Ok(())
    }
}

/// Extents as a shape has them: `8,4`.
pub(crate) fn dim_list(dims: &[u64]) -> String {
    dims.iter().map(u64::to_string).collect::<Vec<_>>().join(",")
}

/// An array's type as it is written.
pub(crate) fn array_text(module: &Module, array: &Array) -> String {
    format!("{}[{}]{}", array.element.name(), dim_list(&array.dims), module.str(array.layout))
}

/// `%` or nothing, as a module writes the name of an instruction.
fn percent(module: &Module, instr: InstrId) -> &'static str {
    let start = module.instruction(instr).name.start as usize;
    if module.text[..start].ends_with('%') { "%" } else { "" }
}

/// An instruction's text after its name and `=`.
pub(crate) fn after_name(module: &Module, instr: InstrId) -> &str {
    let instruction = module.instruction(instr);
    let text = &module.text[instruction.name.end as usize..instruction.text.end as usize];
    text.trim_start().trim_start_matches('=').trim_start()
}

/// An instruction's text with other operands, without its name.
pub(crate) fn with_operands(module: &Module, instr: InstrId, operands: &str) -> String {
    let (whole, payload) = (after_name(module, instr), module.instruction(instr).payload);
    let end = module.instruction(instr).text.end;
    let rest = &module.text[payload.end as usize..end as usize];
    let start = whole.len() - (end - payload.start) as usize;
    format!("{}{operands}{rest}", &whole[..start])
}

/// The name of an operand, without the path to an element of it.
pub(crate) fn read_name(operand: &str) -> String {
    operand.trim_start_matches('%').split('#').next().unwrap_or_default().to_owned()
}

/// Adds elements to the tuple type that a text begins with; if it begins with none, returns it
/// unchanged.
pub(crate) fn grown(text: &str, shapes: &[String]) -> String {
    let open = text.find(|character: char| !character.is_whitespace()).unwrap_or(0);
    let mut depth = 0usize;
    for (at, character) in text.char_indices().skip_while(|&(at, _)| at < open) {
        match character {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth == 0 {
            let more: String = shapes.iter().map(|shape| format!(", {shape}")).collect();
            return match character {
                ')' => format!("{}{more}{}", &text[..at], &text[at..]),
                _ => text.to_owned(),
            };
        }
    }
    text.to_owned()
}

/// An instruction's text without the mark of a root.
fn plain(module: &Module, instr: InstrId) -> &str {
    let instruction = module.instruction(instr);
    let start = instruction.name.start as usize - percent(module, instr).len();
    &module.text[start..instruction.text.end as usize]
}
