//! Random HLO modules.

use std::fmt::Write;

use halflap_hlo::Module;

/// A small generator of random numbers: the tests must not depend on the library's own.
pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Dice {
        Dice(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    pub fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % limit.max(1)
    }

    pub fn one_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }

    fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len())]
    }
}

/// Everything that is read is an `f32[64]{0}`; what else there is comes and goes within a few
/// lines.
const SHAPE: &str = "f32[64]{0}";

struct Writer {
    dice: Dice,
    text: String,
    /// Names of values that can be read.
    values: Vec<String>,
    /// Starts without an end, and the opcode of what ends them.
    started: Vec<(String, &'static str)>,
    next: usize,
    percent: &'static str,
    /// Whether operands are written with their shapes.
    shapes: bool,
}

/// A random module: elementwise operations, tuples, updates, fusions, loops, calls, and collectives
/// in all forms.
pub fn random_module(seed: u64) -> Module {
    let text = random_text(seed);
    Module::read(text.clone()).unwrap_or_else(|error| panic!("seed {seed}: {error}\n{text}"))
}

pub fn random_text(seed: u64) -> String {
    let mut dice = Dice::new(seed);
    let percent = if dice.one_in(4) { "" } else { "%" };
    let shapes = dice.one_in(3);
    let scheduled = if dice.one_in(2) { ", is_scheduled=true" } else { "" };
    let alias = if dice.one_in(2) {
        ", input_output_alias={ {0}: (0, {}, may-alias), {1}: (1, {}, must-alias) }"
    } else {
        ""
    };
    let mut text = format!(
        "HloModule random_{seed}{scheduled}{alias}, num_partitions=8, frontend_attributes={{a=\"}}\"}}\n\n"
    );
    let _ = write!(
        text,
        "{percent}add (a: f32[], b: f32[]) -> f32[] {{\n  {percent}a = f32[] parameter(0)\n  {percent}b = f32[] parameter(1)\n  ROOT {percent}c = f32[] add({percent}a, {percent}b)\n}}\n\n\
         {percent}fused (p: f32[64], q: f32[64]) -> f32[64] {{\n  {percent}p = {SHAPE} parameter(0)\n  {percent}q = {SHAPE} parameter(1)\n  {percent}m = {SHAPE} multiply({percent}p, {percent}q)\n  ROOT {percent}n = {SHAPE} tanh({percent}m)\n}}\n\n"
    );
    let (body, calls) = (1 + dice.below(8), 1 + dice.below(6));
    let mut writer =
        Writer { dice, text, values: Vec::new(), started: Vec::new(), next: 0, percent, shapes };
    writer.callee("callee", calls);
    writer.body(body);
    writer.condition();
    writer.entry();
    writer.text
}

impl Writer {
    fn line(&mut self, name: &str, rest: &str) {
        let comment = if self.dice.one_in(20) { "  // a comment\n" } else { "" };
        let _ = writeln!(
            self.text,
            "{comment}  {}{name} = {rest}{}",
            self.percent,
            self.metadata(name)
        );
    }

    fn metadata(&self, name: &str) -> String {
        match name.len() % 3 {
            0 => format!(
                ", metadata={{op_name=\"jit(f)/{name}\" source_file=\"dir/model.py\" source_line={}}}",
                name.len()
            ),
            1 => ", unheard_of={1, {2}, \"}\\\"\"}, backend_config={\"a\":[\"}\"]}".to_owned(),
            _ => String::new(),
        }
    }

    fn fresh(&mut self, stem: &str) -> String {
        self.next += 1;
        format!("{stem}.{}", self.next)
    }

    fn value(&mut self) -> String {
        let Writer { dice, values, .. } = self;
        dice.pick(values).clone()
    }

    /// A value as an operand.
    fn operand(&mut self) -> String {
        let value = self.value();
        self.named(&value)
    }

    fn named(&self, value: &str) -> String {
        let shape =
            if self.shapes && !value.contains('#') { format!("{SHAPE} ") } else { String::new() };
        format!("{shape}{}{value}", self.percent)
    }

    fn callee(&mut self, name: &str, length: usize) {
        let _ = writeln!(
            self.text,
            "{}{name} (p.0: f32[64], p.1: f32[64]) -> (f32[64], f32[64]) {{",
            self.percent
        );
        self.start_values(&[format!("{SHAPE} parameter(0)"), format!("{SHAPE} parameter(1)")]);
        self.steps(length, false);
        self.finish(2);
    }

    fn start_values(&mut self, lines: &[String]) {
        self.values.clear();
        for line in lines {
            let name = self.fresh("p");
            self.line(&name, line);
            self.values.push(name);
        }
    }

    fn body(&mut self, length: usize) {
        let tuple = format!("(s32[], {SHAPE}, {SHAPE})");
        let _ = writeln!(self.text, "{}body (s: {tuple}) -> {tuple} {{", self.percent);
        self.line("s", &format!("{tuple} parameter(0)"));
        let percent = self.percent;
        self.line("i", &format!("s32[] get-tuple-element({percent}s), index=0"));
        self.line("one", "s32[] constant(1)");
        self.line("j", &format!("s32[] add({percent}i, {percent}one)"));
        self.values.clear();
        for index in 1..3 {
            let name = self.fresh("g");
            self.line(&name, &format!("{SHAPE} get-tuple-element({percent}s), index={index}"));
            self.values.push(name);
        }
        let kept = self.values[1].clone();
        self.steps(length, false);
        self.end_all();
        let first = self.operand();
        let second = if self.dice.one_in(2) { self.named(&kept) } else { self.operand() };
        let name = self.fresh("root");
        let index = if self.shapes { format!("s32[] {percent}j") } else { format!("{percent}j") };
        let _ = writeln!(
            self.text,
            "  ROOT {percent}{name} = {tuple} tuple({index}, {first}, {second})\n}}\n"
        );
    }

    fn condition(&mut self) {
        let (tuple, percent) = (format!("(s32[], {SHAPE}, {SHAPE})"), self.percent);
        let _ = writeln!(
            self.text,
            "{percent}cond (s: {tuple}) -> pred[] {{\n  {percent}s = {tuple} parameter(0)\n  {percent}i = s32[] get-tuple-element({percent}s), index=0\n  {percent}n = s32[] constant(7)\n  ROOT {percent}lt = pred[] compare({percent}i, {percent}n), direction=LT\n}}\n"
        );
    }

    fn entry(&mut self) {
        let _ = writeln!(
            self.text,
            "ENTRY {}main (a: f32[64], b: f32[64], c: f32[64]) -> (f32[64], f32[64]) {{",
            self.percent
        );
        let parameters: Vec<String> =
            (0..3).map(|number| format!("{SHAPE} parameter({number})")).collect();
        self.start_values(&parameters);
        let length = 5 + self.dice.below(40);
        self.steps(length, true);
        self.finish(2);
    }

    fn finish(&mut self, results: usize) {
        self.end_all();
        let operands: Vec<String> = (0..results).map(|_| self.operand()).collect();
        let name = self.fresh("root");
        let shapes = vec![SHAPE; results].join(", ");
        let _ = writeln!(
            self.text,
            "  ROOT {}{name} = ({shapes}) tuple({})\n}}\n",
            self.percent,
            operands.join(", ")
        );
    }

    fn steps(&mut self, length: usize, flows: bool) {
        for _ in 0..length {
            match self.dice.below(if flows { 16 } else { 14 }) {
                0..4 => self.elementwise(),
                4 => self.fusion(),
                5 => self.tuple(),
                6 => self.update(),
                7..10 => self.sync_collective(),
                10 | 11 => self.start(),
                12 => self.end_one(),
                13 => self.odd(),
                14 => self.while_loop(),
                _ => self.call(),
            }
        }
    }

    fn elementwise(&mut self) {
        let (name, a, b) = (self.fresh("e"), self.operand(), self.operand());
        let control = match self.dice.one_in(10) {
            true => {
                let before = self.value();
                let before = before.split('#').next().unwrap_or(&before).to_owned();
                format!(", control-predecessors={{{}{before}}}", self.percent)
            }
            false => String::new(),
        };
        self.line(&name, &format!("{SHAPE} add({a}, /*index=1*/{b}){control}"));
        self.values.push(name);
    }

    fn fusion(&mut self) {
        let (name, a, b) = (self.fresh("fusion"), self.operand(), self.operand());
        self.line(
            &name,
            &format!("{SHAPE} fusion({a}, {b}), kind=kLoop, calls={}fused", self.percent),
        );
        self.values.push(name);
    }

    fn tuple(&mut self) {
        let (name, a, b) = (self.fresh("t"), self.operand(), self.operand());
        self.line(&name, &format!("({SHAPE}, {SHAPE}) tuple({a}, {b})"));
        if self.dice.one_in(2) {
            self.values.push(format!("{name}#1"));
            return;
        }
        let element = self.fresh("gte");
        self.line(&element, &format!("{SHAPE} get-tuple-element({}{name}), index=0", self.percent));
        self.values.push(element);
    }

    fn update(&mut self) {
        let (piece, zero, name) = (self.fresh("piece"), self.fresh("zero"), self.fresh("dus"));
        let (a, b, percent) = (self.operand(), self.operand(), self.percent);
        self.line(&piece, &format!("f32[8]{{0}} slice({a}), slice={{[8:16]}}"));
        self.line(&zero, "s32[] constant(0)");
        let (piece, zero) = match self.shapes {
            true => (format!("f32[8]{{0}} {percent}{piece}"), format!("s32[] {percent}{zero}")),
            false => (format!("{percent}{piece}"), format!("{percent}{zero}")),
        };
        self.line(&name, &format!("{SHAPE} dynamic-update-slice({b}, {piece}, {zero})"));
        self.values.push(name);
    }

    fn sync_collective(&mut self) {
        let a = self.operand();
        let add = format!("{}add", self.percent);
        let groups = *self.dice.pick(&[
            "{{0,1,2,3},{4,5,6,7}}",
            "[4,2]<=[2,4]T(1,0)",
            "mesh['a'=2,'b'=4] {'b'}",
            "{}",
        ]);
        let (stem, rest) = match self.dice.below(4) {
            0 => (
                "all-reduce",
                format!(
                    "all-reduce({a}), channel_id=1, replica_groups={groups}, use_global_device_ids=true, to_apply={add}"
                ),
            ),
            1 => (
                "all-to-all",
                format!(
                    "all-to-all({a}), channel_id=2, replica_groups={{{{0,1}}}}, dimensions={{0}}"
                ),
            ),
            2 => (
                "collective-permute",
                format!(
                    "collective-permute({a}), channel_id=3, source_target_pairs={{{{0,1}},{{1,0}}}}"
                ),
            ),
            _ => (
                "collective-broadcast",
                format!("collective-broadcast({a}), channel_id=4, replica_groups={{{{0,1}}}}"),
            ),
        };
        let name = self.fresh(stem);
        self.line(&name, &format!("{SHAPE} {rest}"));
        self.values.push(name);
    }

    fn start(&mut self) {
        let a = self.operand();
        let add = format!("{}add", self.percent);
        let (shape, start, end) = match self.dice.below(5) {
            0 => (
                SHAPE.to_owned(),
                format!("all-reduce-start({a}), replica_groups={{}}, to_apply={add}"),
                "all-reduce-done",
            ),
            1 => (format!("({SHAPE}, {SHAPE}, u32[])"), format!("copy-start({a})"), "copy-done"),
            2 => (
                format!("({SHAPE}, {SHAPE}, u32[], u32[])"),
                format!(
                    "collective-permute-start({a}), channel_id=5, source_target_pairs={{{{0,1}}}}"
                ),
                "collective-permute-done",
            ),
            3 => (
                format!("(({SHAPE}), {SHAPE})"),
                format!(
                    "reduce-scatter-start({a}), channel_id=6, replica_groups={{{{0}}}}, dimensions={{0}}, to_apply={add}"
                ),
                "reduce-scatter-done",
            ),
            _ => (
                format!("({SHAPE}, {SHAPE})"),
                format!(
                    "all-gather-start({a}), channel_id=7, replica_groups={{{{0}}}}, dimensions={{0}}"
                ),
                "all-gather-done",
            ),
        };
        let name = self.fresh("start");
        self.line(&name, &format!("{shape} {start}"));
        self.started.push((name, end));
    }

    fn end_one(&mut self) {
        if self.started.is_empty() {
            return;
        }
        let index = self.dice.below(self.started.len());
        let (start, opcode) = self.started.swap_remove(index);
        let name = self.fresh("done");
        self.line(&name, &format!("{SHAPE} {opcode}({}{start})", self.percent));
        self.values.push(name);
    }

    fn end_all(&mut self) {
        while !self.started.is_empty() {
            self.end_one();
        }
    }

    fn odd(&mut self) {
        let (name, a) = (self.fresh("odd"), self.operand());
        let rest = match self.dice.below(4) {
            0 => format!("frobnicate({a}), depth=3"),
            1 => format!(
                "custom-call({a}), custom_call_target=\"f\", custom_call_has_side_effect=true"
            ),
            2 => format!("bitcast({a})"),
            _ => format!("opt-barrier({a})"),
        };
        self.line(&name, &format!("{SHAPE} {rest}"));
        self.values.push(name);
    }

    fn while_loop(&mut self) {
        let (zero, tuple, name) = (self.fresh("zero"), self.fresh("init"), self.fresh("while"));
        let (a, b, percent) = (self.operand(), self.operand(), self.percent);
        self.line(&zero, "s32[] constant(0)");
        let index =
            if self.shapes { format!("s32[] {percent}{zero}") } else { format!("{percent}{zero}") };
        self.line(&tuple, &format!("(s32[], {SHAPE}, {SHAPE}) tuple({index}, {a}, {b})"));
        self.line(
            &name,
            &format!("(s32[], {SHAPE}, {SHAPE}) while({percent}{tuple}), condition={percent}cond, body={percent}body"),
        );
        self.values.push(format!("{name}#1"));
        self.values.push(format!("{name}#2"));
    }

    fn call(&mut self) {
        let (name, a, b) = (self.fresh("call"), self.operand(), self.operand());
        self.line(
            &name,
            &format!("({SHAPE}, {SHAPE}) call({a}, {b}), to_apply={}callee", self.percent),
        );
        self.values.push(format!("{name}#0"));
    }
}
