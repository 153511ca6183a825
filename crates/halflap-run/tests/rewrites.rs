//! Changed modules compute what the old ones do: every recipe that applies to random modules with
//! collectives in loops, branches and beside fusions, and to the modules in tests/hlo, is applied,
//! proved and run.
//!
//! `HALFLAP_REWRITES=1000` runs so many random modules; `scripts/nightly` does. All are left in
//! `target/tmp/rewritten`, for tests/mpi, which runs them on processes.

mod common;

use std::collections::BTreeSet;
use std::fmt::Write;
use std::fs;
use std::path::PathBuf;

use common::Random;
use halflap::import::unzip;
use halflap::units::Bytes;
use halflap_hlo::change::{self, CarriedBuffers, Recipe, RecipeKind, RegionPieces, Shift};
use halflap_hlo::{Module, Sameness, same};
use halflap_run::evaluate::Evaluator;
use halflap_run::tensor::{DType, Tensor};

/// Values that are passed around: 8 by 16 numbers.
const WHOLE: &str = "f32[8,16]{1,0}";

/// One for each iteration of a loop.
const STACK: &str = "f32[3,8,16]{2,1,0}";

struct Writer {
    random: Random,
    text: String,
    values: Vec<String>,
    next: usize,
    ranks: usize,
}

impl Writer {
    fn fresh(&mut self, stem: &str) -> String {
        self.next += 1;
        format!("{stem}.{}", self.next)
    }

    fn value(&mut self) -> String {
        let at = self.random.below(self.values.len());
        format!("%{}", self.values[at])
    }

    fn line(&mut self, stem: &str, rest: &str) -> String {
        let name = self.fresh(stem);
        let _ = writeln!(self.text, "  %{name} = {rest}");
        format!("%{name}")
    }

    fn keep(&mut self, value: &str) {
        self.values.push(value.trim_start_matches('%').to_owned());
    }

    /// Groups of equal size: all ranks, neighbours, or those that are half of all apart.
    fn groups(&mut self) -> (Vec<Vec<usize>>, String) {
        let (ranks, half) = (self.ranks, self.ranks / 2);
        let groups: Vec<Vec<usize>> = match self.random.below(3) {
            0 => vec![(0..ranks).collect()],
            1 => (0..half).map(|at| vec![2 * at, 2 * at + 1]).collect(),
            _ => (0..half).map(|at| vec![at, at + half]).collect(),
        };
        let list = |group: &Vec<usize>| {
            format!("{{{}}}", group.iter().map(usize::to_string).collect::<Vec<_>>().join(","))
        };
        let text = groups.iter().map(list).collect::<Vec<_>>().join(",");
        let text = format!("channel_id=1, replica_groups={{{text}}}, use_global_device_ids=true");
        (groups, text)
    }

    /// Where each rank's slice begins, from a table or from the rank's number.
    fn offset(&mut self, groups: &[Vec<usize>], size: usize) -> String {
        let rank = self.line("partition-id", "u32[] partition-id()");
        if groups.len() == 1 && self.random.below(2) == 0 {
            let rank = self.line("convert", &format!("s32[] convert({rank})"));
            let size = self.line("constant", &format!("s32[] constant({size})"));
            return self.line("multiply", &format!("s32[] multiply({rank}, {size})"));
        }
        let mut places = vec![0; self.ranks];
        for group in groups {
            let turned = usize::from(self.random.below(4) == 0);
            for (at, &rank) in group.iter().enumerate() {
                places[rank] = (at + turned) % group.len() * size;
            }
        }
        // Now and then the slices are not those of the ranks.
        if self.random.below(8) == 0 {
            places.fill(0);
        }
        let table = places.iter().map(usize::to_string).collect::<Vec<_>>().join(", ");
        let ranks = self.ranks;
        let table = self.line("constant", &format!("s32[{ranks}]{{0}} constant({{{table}}})"));
        let place =
            format!("s32[1]{{0}} dynamic-slice({table}, {rank}), dynamic_slice_sizes={{1}}");
        let place = self.line("dynamic-slice", &place);
        self.line("reshape", &format!("s32[] reshape({place})"))
    }

    /// An all-reduce of which slices are used, directly or after something elementwise.
    fn scatter(&mut self) {
        let (groups, members) = self.groups();
        let dim = self.random.below(2);
        let count = groups[0].len();
        let extents = if dim == 0 { [8 / count, 16] } else { [8, 16 / count] };
        let size = extents[dim];
        let value = self.value();
        let whole = format!("{WHOLE} all-reduce({value}), {members}, to_apply=%add");
        let mut whole = self.line("all-reduce", &whole);
        if self.random.below(3) == 0 {
            whole = self.line("copy", &format!("{WHOLE} copy({whole})"));
            let two = self.line("constant", "f32[] constant(0.25)");
            let two = self.line("broadcast", &format!("{WHOLE} broadcast({two}), dimensions={{}}"));
            if self.random.below(2) == 0 {
                let square = self.line("multiply", &format!("{WHOLE} multiply({whole}, {two})"));
                let zero = self.line("constant", "f32[] constant(0)");
                let sum =
                    format!("f32[] reduce({square}, {zero}), dimensions={{0,1}}, to_apply=%add");
                let sum = self.line("reduce", &sum);
                let spread = format!("{WHOLE} broadcast({sum}), dimensions={{}}");
                let spread = self.line("broadcast", &spread);
                let spread = self.line("tanh", &format!("{WHOLE} tanh({spread})"));
                self.keep(&spread);
            }
            whole = self.line("multiply", &format!("{WHOLE} multiply({whole}, {two})"));
        }
        let offset = self.offset(&groups, size);
        let zero = self.line("constant", "s32[] constant(0)");
        let starts = if dim == 0 { [&offset, &zero] } else { [&zero, &offset] };
        let [rows, columns] = extents;
        let slice = format!(
            "f32[{rows},{columns}]{{1,0}} dynamic-slice({whole}, {}, {}), dynamic_slice_sizes={{{rows},{columns}}}",
            starts[0], starts[1]
        );
        let slice = self.line("dynamic-slice", &slice);
        let again = format!("{WHOLE} all-gather({slice}), {members}, dimensions={{{dim}}}");
        let again = self.line("all-gather", &again);
        let small = self.line("tanh", &format!("{WHOLE} tanh({again})"));
        self.keep(&small);
    }

    /// A convert before or after data moves.
    fn narrow(&mut self) {
        let (groups, members) = self.groups();
        let rows = 8 / groups[0].len();
        let value = self.value();
        let slice = format!("f32[{rows},16]{{1,0}} slice({value}), slice={{[0:{rows}], [0:16]}}");
        let mut part = self.line("slice", &slice);
        let is_before = self.random.below(2) == 0;
        if is_before {
            part = self.line("convert", &format!("bf16[{rows},16]{{1,0}} convert({part})"));
            part = self.line("convert", &format!("f32[{rows},16]{{1,0}} convert({part})"));
        }
        let whole = format!("{WHOLE} all-gather({part}), {members}, dimensions={{0}}");
        let mut whole = self.line("all-gather", &whole);
        if !is_before {
            whole = self.line("convert", &format!("bf16[8,16]{{1,0}} convert({whole})"));
            if self.random.below(2) == 0 {
                let pairs: Vec<String> = (0..self.ranks)
                    .map(|rank| format!("{{{rank},{}}}", (rank + 1) % self.ranks))
                    .collect();
                let pairs = pairs.join(",");
                let wide = self.line("convert", &format!("{WHOLE} convert({whole})"));
                whole = self.line(
                    "collective-permute",
                    &format!("{WHOLE} collective-permute({wide}), channel_id=2, source_target_pairs={{{pairs}}}"),
                );
                whole = self.line("convert", &format!("bf16[8,16]{{1,0}} convert({whole})"));
            }
            whole = self.line("convert", &format!("{WHOLE} convert({whole})"));
        }
        self.keep(&whole);
    }

    /// Collectives of one kind and group beside each other.
    fn several(&mut self) {
        let (groups, members) = self.groups();
        let rows = 8 / groups[0].len();
        let kind = self.random.below(3);
        for _ in 0..2 + self.random.below(2) {
            let value = self.value();
            let made = match kind {
                0 => {
                    let whole = format!("{WHOLE} all-reduce({value}), {members}, to_apply=%add");
                    self.line("all-reduce", &whole)
                }
                1 => {
                    let slice = format!(
                        "f32[{rows},16]{{1,0}} slice({value}), slice={{[0:{rows}], [0:16]}}"
                    );
                    let slice = self.line("slice", &slice);
                    let whole = format!("{WHOLE} all-gather({slice}), {members}, dimensions={{0}}");
                    self.line("all-gather", &whole)
                }
                _ => {
                    let part = format!(
                        "f32[{rows},16]{{1,0}} reduce-scatter({value}), {members}, dimensions={{0}}, to_apply=%add"
                    );
                    let part = self.line("reduce-scatter", &part);
                    let whole = format!("{WHOLE} all-gather({part}), {members}, dimensions={{0}}");
                    self.line("all-gather", &whole)
                }
            };
            let small = self.line("tanh", &format!("{WHOLE} tanh({made})"));
            self.keep(&small);
        }
    }

    /// A barrier beside a value: its name.
    fn barrier(&mut self, shard: &str, part: &str, value: &str) -> String {
        let pair = format!("({shard}, {WHOLE})");
        let held = self.line("tuple", &format!("{pair} tuple({part}, {value})"));
        self.line("barrier", &format!("{pair} opt-barrier({held})"))
    }

    /// Rows that are gathered, and later again, behind a barrier; not always the same ones.
    fn repeated(&mut self) {
        let (groups, members) = self.groups();
        let rows = 8 / groups[0].len();
        let value = self.value();
        let shard = format!("f32[{rows},16]{{1,0}}");
        let slice = format!("{shard} slice({value}), slice={{[0:{rows}], [0:16]}}");
        let part = self.line("slice", &slice);
        let is_negative = self.random.below(2) == 0;
        let gather = |writer: &mut Writer, mut part: String| {
            if is_negative {
                part = writer.line("negate", &format!("{shard} negate({part})"));
            }
            let whole = format!("{WHOLE} all-gather({part}), {members}, dimensions={{0}}");
            writer.line("all-gather", &whole)
        };
        let first = gather(self, part.clone());
        let used = self.value();
        let used = self.line("compute", &format!("{WHOLE} add({used}, {first})"));
        self.keep(&used);
        self.compute();
        let held = self.barrier(&shard, &part, &used);
        let mut again = self.line("gte", &format!("{shard} get-tuple-element({held}), index=0"));
        if self.random.below(4) == 0 {
            again = self.line("tanh", &format!("{shard} tanh({again})"));
        }
        let again = gather(self, again);
        let after = self.line("gte", &format!("{WHOLE} get-tuple-element({held}), index=1"));
        let made = self.line("compute", &format!("{WHOLE} subtract({after}, {again})"));
        self.keep(&made);
    }

    /// Rows of what is gathered are looked up, sliced or summed, and again after a barrier; not
    /// always the same ones, and not always these alone.
    fn looked_up(&mut self) {
        let (groups, members) = self.groups();
        let rows = 8 / groups[0].len();
        let value = self.value();
        let shard = format!("f32[{rows},16]{{1,0}}");
        let slice = format!("{shard} slice({value}), slice={{[0:{rows}], [0:16]}}");
        let part = self.line("slice", &slice);
        let gather = format!("{members}, dimensions={{0}}");
        let first = self.line("all-gather", &format!("{WHOLE} all-gather({part}), {gather}"));
        let how = self.random.below(3);
        // Some are beyond the end.
        let places: Vec<usize> = (0..4).map(|_| self.random.below(10)).collect();
        let read = self.rows_of(&first, how, &places);
        let used = self.value();
        let used = self.line("compute", &format!("{WHOLE} add({used}, {read})"));
        self.keep(&used);
        self.compute();
        let held = self.barrier(&shard, &part, &used);
        let again = self.line("gte", &format!("{shard} get-tuple-element({held}), index=0"));
        let second = self.line("all-gather", &format!("{WHOLE} all-gather({again}), {gather}"));
        let places = match self.random.below(4) {
            0 => places.into_iter().map(|place| (place + 1) % 8).collect(),
            _ => places,
        };
        let read = self.rows_of(&second, how, &places);
        let after = self.line("gte", &format!("{WHOLE} get-tuple-element({held}), index=1"));
        let made = self.line("compute", &format!("{WHOLE} subtract({after}, {read})"));
        self.keep(&made);
        if self.random.below(4) == 0 {
            self.keep(&second);
        }
    }

    /// Something of a value that is smaller, as a value.
    fn rows_of(&mut self, whole: &str, how: usize, places: &[usize]) -> String {
        let shape = "f32[4,16]{1,0}";
        let whole = self.line("copy", &format!("{WHOLE} copy({whole})"));
        let nought = self.line("constant", "f32[] constant(0)");
        let small = match how {
            0 => {
                let list: Vec<String> = places.iter().map(|place| format!("{{{place}}}")).collect();
                let ids = format!("s32[4,1]{{1,0}} constant({{{}}})", list.join(", "));
                let ids = self.line("constant", &ids);
                let how = "offset_dims={1}, collapsed_slice_dims={0}, start_index_map={0}, \
                           index_vector_dim=1, slice_sizes={1,16}";
                self.line("rows", &format!("{shape} gather({whole}, {ids}), {how}"))
            }
            1 => {
                let place = self.line("constant", &format!("s32[] constant({})", places[0]));
                let zero = self.line("constant", "s32[] constant(0)");
                let slice = format!("{shape} dynamic-slice({whole}, {place}, {zero})");
                self.line("slice", &format!("{slice}, dynamic_slice_sizes={{4,16}}"))
            }
            _ => {
                let sum = "dimensions={0}, to_apply=%add";
                let sum = format!("f32[16]{{0}} reduce({whole}, {nought}), {sum}");
                let sum = self.line("reduce", &sum);
                return self.line("spread", &format!("{WHOLE} broadcast({sum}), dimensions={{1}}"));
            }
        };
        let low = self.line("convert", &format!("bf16[4,16]{{1,0}} convert({small})"));
        let back = self.line("convert", &format!("{shape} convert({low})"));
        self.line("pad", &format!("{WHOLE} pad({back}, {nought}), padding=0_4x0_0"))
    }

    /// Rows that are gathered and read at once, and again after other things.
    fn held(&mut self) {
        let (groups, members) = self.groups();
        let rows = 8 / groups[0].len();
        let value = self.value();
        let slice = format!("f32[{rows},16]{{1,0}} slice({value}), slice={{[0:{rows}], [0:16]}}");
        let part = self.line("slice", &slice);
        let whole = format!("{WHOLE} all-gather({part}), {members}, dimensions={{0}}");
        let mut whole = self.line("all-gather", &whole);
        if self.random.below(2) == 0 {
            whole = self.line("negate", &format!("{WHOLE} negate({whole})"));
        }
        let other = self.value();
        let early = self.line("compute", &format!("{WHOLE} add({other}, {whole})"));
        self.keep(&early);
        self.compute();
        if self.random.below(2) == 0 {
            whole = self.line("sine", &format!("{WHOLE} sine({whole})"));
        }
        let late = self.line("compute", &format!("{WHOLE} subtract({early}, {whole})"));
        self.keep(&late);
        if self.random.below(2) == 0 {
            self.keep(&whole);
        }
    }

    /// A product of matrices that is reduced, or one operand of which is gathered.
    fn product(&mut self) {
        let (groups, members) = self.groups();
        let (a, b, c) = (self.value(), self.value(), self.value());
        let columns = "lhs_contracting_dims={1}, rhs_contracting_dims={1}";
        let square = self.line("dot", &format!("f32[8,8]{{1,0}} dot({a}, {b}), {columns}"));
        let rows = "lhs_contracting_dims={1}, rhs_contracting_dims={0}";
        let made = match self.random.below(2) {
            0 => {
                let product = self.line("dot", &format!("{WHOLE} dot({square}, {c}), {rows}"));
                let reduced = format!("{WHOLE} all-reduce({product}), {members}, to_apply=%add");
                self.line("all-reduce", &reduced)
            }
            _ => {
                let own = 8 / groups[0].len();
                let slice = format!("slice({c}), slice={{[0:{own}], [0:16]}}");
                let part = self.line("slice", &format!("f32[{own},16]{{1,0}} {slice}"));
                let gather = format!("{WHOLE} all-gather({part}), {members}, dimensions={{0}}");
                let gathered = self.line("all-gather", &gather);
                self.line("dot", &format!("{WHOLE} dot({square}, {gathered}), {rows}"))
            }
        };
        let small = self.line("tanh", &format!("{WHOLE} tanh({made})"));
        self.keep(&small);
    }

    fn compute(&mut self) {
        let (a, b) = (self.value(), self.value());
        let rest = match self.random.below(3) {
            0 => format!("{WHOLE} add({a}, {b})"),
            1 => format!("{WHOLE} fusion({a}, {b}), kind=kLoop, calls=%fused"),
            _ => format!("{WHOLE} subtract({a}, {b})"),
        };
        let made = self.line("compute", &rest);
        self.keep(&made);
    }

    fn steps(&mut self, count: usize) {
        for _ in 0..count {
            match self.random.below(8) {
                0 => self.scatter(),
                1 => self.narrow(),
                2 => self.several(),
                3 => match self.random.below(2) {
                    0 => self.repeated(),
                    _ => self.looked_up(),
                },
                4 => self.product(),
                5 => self.held(),
                _ => self.compute(),
            }
        }
    }

    fn call(&mut self) {
        let value = self.value();
        if self.random.below(2) == 0 {
            let zero = self.line("constant", "s32[] constant(0)");
            let weights = self.value();
            let nought = self.line("constant", "f32[] constant(0)");
            let spread = |of: &str| format!("{of} broadcast({nought}), dimensions={{}}");
            let stack = self.line("broadcast", &spread(STACK));
            // Now and then there is something in it already.
            let total = match self.random.below(4) {
                0 => self.value(),
                _ => self.line("broadcast", &spread(WHOLE)),
            };
            let parts = format!("({zero}, {value}, {weights}, {stack}, {total})");
            let held = self.line("tuple", &format!("{} tuple{parts}", state()));
            let done = format!("{} while({held}), condition=%condition, body=%body", state());
            let done = self.line("while", &done);
            for (index, shape) in [(1, WHOLE), (3, STACK), (4, WHOLE)] {
                let element = format!("{shape} get-tuple-element({done}), index={index}");
                let mut element = self.line("gte", &element);
                if shape == STACK {
                    let place = self.random.below(3);
                    let limits = format!("[{place}:{}], [0:8], [0:16]", place + 1);
                    let one = format!("f32[1,8,16]{{2,1,0}} slice({element}), slice={{{limits}}}");
                    element = self.line("slice", &one);
                    element = self.line("reshape", &format!("{WHOLE} reshape({element})"));
                }
                let small = self.line("tanh", &format!("{WHOLE} tanh({element})"));
                self.keep(&small);
            }
        } else {
            let which = self.random.below(2);
            let which = self.line("constant", &format!("s32[] constant({which})"));
            let done = format!(
                "{WHOLE} conditional({which}, {value}, {value}), branch_computations={{%one, %other}}"
            );
            let done = self.line("conditional", &done);
            self.keep(&done);
        }
    }

    fn branch(&mut self, name: &str) {
        let _ = writeln!(self.text, "%{name} (p: f32[8,16]) -> f32[8,16] {{");
        let parameter = self.line("parameter", &format!("{WHOLE} parameter(0)"));
        self.values.clear();
        self.keep(&parameter);
        let count = 1 + self.random.below(3);
        self.steps(count);
        let root = self.value();
        let name = self.fresh("root");
        let _ = writeln!(self.text, "  ROOT %{name} = {WHOLE} tanh({root})\n}}\n");
    }

    /// Gathers rows of what a loop keeps, counted forwards or backwards; not always by the counter
    /// alone.
    fn gather_of_iteration(&mut self) {
        let (groups, members) = self.groups();
        let rows = 8 / groups[0].len();
        let zero = self.line("constant", "s32[] constant(0)");
        let place = self.place();
        let from = if self.random.below(4) == 0 { self.value() } else { "%w".to_owned() };
        let slice = format!(
            "f32[{rows},16]{{1,0}} dynamic-slice({from}, {place}, {zero}), dynamic_slice_sizes={{{rows},16}}"
        );
        let mut slice = self.line("dynamic-slice", &slice);
        if self.random.below(2) == 0 {
            slice = self.line("negate", &format!("f32[{rows},16]{{1,0}} negate({slice})"));
        }
        let whole = format!("{WHOLE} all-gather({slice}), {members}, dimensions={{0}}");
        let whole = self.line("all-gather", &whole);
        self.keep(&whole);
    }

    /// Reduces a value and stores it in the stack, by the counter.
    fn stored(&mut self) -> String {
        let (groups, members) = self.groups();
        let value = self.value();
        let rows = match self.random.below(2) {
            0 => 8,
            _ => 8 / groups[0].len(),
        };
        let shape = format!("f32[{rows},16]{{1,0}}");
        let made = match rows {
            8 => format!("{shape} all-reduce({value}), {members}, to_apply=%add"),
            _ => format!(
                "{shape} reduce-scatter({value}), {members}, dimensions={{0}}, to_apply=%add"
            ),
        };
        let made = self.line("reduced", &made);
        let made = self.line("reshape", &format!("f32[1,{rows},16]{{2,1,0}} reshape({made})"));
        let zero = self.line("constant", "s32[] constant(0)");
        let place = self.place();
        let update = format!("dynamic-update-slice(%stack, {made}, {place}, {zero}, {zero})");
        self.line("update", &format!("{STACK} {update}"))
    }

    /// Reduces a value and adds it to the total, scaled now and then.
    fn summed(&mut self) -> String {
        let (_, members) = self.groups();
        let value = self.value();
        let made = format!("{WHOLE} all-reduce({value}), {members}, to_apply=%add");
        let mut made = self.line("reduced", &made);
        match self.random.below(3) {
            0 => {
                let scale = self.line("constant", "f32[] constant(0.25)");
                let scale = format!("{WHOLE} broadcast({scale}), dimensions={{}}");
                let scale = self.line("broadcast", &scale);
                made = self.line("multiply", &format!("{WHOLE} multiply({made}, {scale})"));
            }
            1 => {
                made = self.line("convert", &format!("bf16[8,16]{{1,0}} convert({made})"));
                made = self.line("convert", &format!("{WHOLE} convert({made})"));
            }
            _ => {}
        }
        self.line("sum", &format!("{WHOLE} add(%total, {made})"))
    }

    /// The number of an iteration, counted forwards or backwards.
    fn place(&mut self) -> String {
        match self.random.below(2) {
            0 => "%i".to_owned(),
            _ => {
                let last = self.line("constant", "s32[] constant(2)");
                self.line("subtract", &format!("s32[] subtract({last}, %i)"))
            }
        }
    }

    fn body(&mut self) {
        let state = state();
        let _ =
            writeln!(self.text, "%body (s: {state}) -> {state} {{\n  %s = {state} parameter(0)");
        let _ = writeln!(self.text, "  %i = s32[] get-tuple-element(%s), index=0");
        let _ = writeln!(self.text, "  %one.1 = s32[] constant(1)\n  %j = s32[] add(%i, %one.1)");
        let value = self.line("gte", &format!("{WHOLE} get-tuple-element(%s), index=1"));
        self.values.clear();
        self.keep(&value);
        let _ = writeln!(self.text, "  %w = {WHOLE} get-tuple-element(%s), index=2");
        for _ in 0..1 + self.random.below(2) {
            self.gather_of_iteration();
        }
        let count = 1 + self.random.below(4);
        self.steps(count);
        let _ = writeln!(self.text, "  %stack = {STACK} get-tuple-element(%s), index=3");
        let _ = writeln!(self.text, "  %total = {WHOLE} get-tuple-element(%s), index=4");
        let (stack, total) = (self.stored(), self.summed());
        // Now and then the iteration reads what it has added up.
        if self.random.below(5) == 0 {
            self.keep(&total);
        }
        let root = self.value();
        let root = self.line("tanh", &format!("{WHOLE} tanh({root})"));
        let parts = format!("%j, {root}, %w, {stack}, {total}");
        let _ = writeln!(self.text, "  ROOT %r = {state} tuple({parts})\n}}\n");
        let _ = writeln!(
            self.text,
            "%condition (t: {state}) -> pred[] {{\n  %t = {state} parameter(0)\n  %k = s32[] get-tuple-element(%t), index=0\n  %n = s32[] constant(3)\n  ROOT %lt = pred[] compare(%k, %n), direction=LT\n}}\n"
        );
    }
}

/// What loops carry: a counter, a value, weights, a stack and a total.
fn state() -> String {
    format!("(s32[], {WHOLE}, {WHOLE}, {STACK}, {WHOLE})")
}

fn random_module(seed: u32, ranks: usize) -> Module {
    let text = format!(
        "HloModule random_{seed}, num_partitions={ranks}\n\n%add (a: f32[], b: f32[]) -> f32[] {{\n  %a = f32[] parameter(0)\n  %b = f32[] parameter(1)\n  ROOT %c = f32[] add(%a, %b)\n}}\n\n%fused (x: f32[8,16], y: f32[8,16]) -> f32[8,16] {{\n  %x = {WHOLE} parameter(0)\n  %y = {WHOLE} parameter(1)\n  %m = {WHOLE} multiply(%x, %y)\n  ROOT %h = {WHOLE} tanh(%m)\n}}\n\n"
    );
    let random = Random(u64::from(seed).wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
    let mut writer = Writer { random, text, values: Vec::new(), next: 0, ranks };
    writer.body();
    writer.branch("one");
    writer.branch("other");
    let _ = writeln!(
        writer.text,
        "ENTRY %main (u: f32[8,16], v: f32[8,16]) -> (f32[8,16], f32[8,16], f32[8,16]) {{"
    );
    writer.values.clear();
    for number in 0..2 {
        let value = writer.line("parameter", &format!("{WHOLE} parameter({number})"));
        writer.keep(&value);
    }
    let count = 3 + writer.random.below(6);
    writer.steps(count);
    writer.call();
    writer.steps(2);
    let results: Vec<String> = (0..3).map(|_| writer.value()).collect();
    let last = format!("%{}", writer.values[writer.values.len() - 1]);
    let _ = writeln!(
        writer.text,
        "  ROOT %result = ({WHOLE}, {WHOLE}, {WHOLE}) tuple({}, {}, {last})\n}}",
        results[0], results[1]
    );
    let text = writer.text;
    Module::read(text.clone()).unwrap_or_else(|error| panic!("seed {seed}: {error}\n{text}"))
}

/// Inputs that differ from rank to rank.
fn inputs(module: &Module, ranks: usize, seed: u64) -> Vec<Vec<Tensor>> {
    let mut random = Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
    let mut leaves = Vec::new();
    for parameter in module.parameters(module.entry()).into_iter().flatten() {
        module.instruction(parameter).shape.leaves(&mut leaves);
    }
    let one = |random: &mut Random| {
        let array = |leaf: &&halflap_hlo::Shape| {
            let array = leaf.array().expect("parameters are arrays");
            let dims: Vec<usize> = array.dims.iter().map(|&dim| dim as usize).collect();
            let dtype = DType::of(array.element).expect("a known type");
            random.array(dtype, &dims)
        };
        leaves.iter().map(array).collect::<Vec<_>>()
    };
    (0..ranks).map(|_| one(&mut random)).collect()
}

fn run(module: &Module, inputs: &[Vec<Tensor>]) -> Vec<Vec<Tensor>> {
    let mut evaluator = Evaluator::new(module).unwrap_or_else(|error| panic!("{error}"));
    evaluator.run(inputs).unwrap_or_else(|error| panic!("{error}\n{}", module.text()))
}

/// All results are equal: bit for bit, or but for the order of sums.
#[track_caller]
fn assert_same(before: &[Vec<Tensor>], after: &[Vec<Tensor>], how: Sameness, what: &str) {
    for (rank, (before, after)) in before.iter().zip(after).enumerate() {
        for (number, (old, new)) in before.iter().zip(after).enumerate() {
            if how == Sameness::Exact {
                assert!(old.bytes() == new.bytes(), "{what}: result {number} of rank {rank}");
            }
            for (a, b) in old.to_f64().iter().zip(new.to_f64()) {
                let is_close = (a - b).abs() <= 1e-5 + 1e-4 * a.abs();
                assert!(is_close, "{what}: result {number} of rank {rank}: {a} and {b}");
            }
        }
    }
}

/// A module with all that applies to it.
struct AllApplied {
    recipes: Vec<Recipe>,
    changed: Module,
    how: Sameness,
    /// Whether a loop is left as it is, because the proof does not know what it would become.
    has_unproved: bool,
}

/// Applies all that applies, all merges on top, proves it, and says how it is equal.
fn rewritten(module: &Module, exact_only: bool) -> AllApplied {
    let found = change::find(module);
    let first: Vec<Recipe> = found
        .into_iter()
        .filter(|found| found.is_exact || !exact_only)
        .map(|found| found.recipe)
        .collect();
    let (changed, _) = change::apply(module, &first).unwrap();
    let fit = |found: Vec<change::Found>| -> Vec<Recipe> {
        let found = found.into_iter().filter(|found| found.is_exact || !exact_only);
        found.map(|found| found.recipe).collect()
    };
    // Only in some modules: what they change is not split.
    let shards =
        if module.len().is_multiple_of(3) { fit(change::find_shards(&changed)) } else { vec![] };
    let (changed, _) = change::apply(&changed, &shards).unwrap();
    // Parts of what is gathered where they are enough; now and then the whole all the same.
    let mut keeps: Vec<Recipe> =
        change::find_keeps(&changed).into_iter().map(|found| found.recipe).collect();
    if !module.len().is_multiple_of(4) {
        keeps.sort_by_key(keeps_whole);
    }
    let keeps = change::compatible_keeps(&changed, keeps);
    let (changed, _) = change::apply(&changed, &keeps).unwrap();
    let buffers = if exact_only { CarriedBuffers::One } else { CarriedBuffers::Two };
    let mut pipelines = change::find_pipelines(&changed, buffers, &Shift::ALL);
    let (ahead, _) = change::apply(&changed, &pipelines).unwrap();
    let has_unproved = same(&changed, &ahead).is_err();
    let changed = match has_unproved {
        true => {
            pipelines.clear();
            changed
        }
        false => ahead,
    };
    // Also what has just become one; at one of the places where it can be divided.
    let mut agains = change::find_agains(&changed);
    if exact_only {
        agains.reverse();
    }
    let mut gathers = BTreeSet::new();
    agains.retain(|found| gathers.insert(found.recipe.members().to_vec()));
    let agains: Vec<Recipe> = agains.into_iter().map(|found| found.recipe).collect();
    let (changed, _) = change::apply(&changed, &agains).unwrap();
    let ranks_per_node = module.devices().count() as u32 / 2;
    let levels = match module.len() % 2 {
        0 => fit(change::find_levels(&changed, ranks_per_node)),
        _ => vec![],
    };
    let (changed, _) = change::apply(&changed, &levels).unwrap();
    // In the other half: what is in a region is not split by itself.
    let regions = match module.len() % 2 == 1 {
        true => fit(regions_of(&changed, exact_only)),
        false => vec![],
    };
    let (changed, _) = change::apply(&changed, &regions).unwrap();
    let splits = fit(change::find_splits(&changed, if exact_only { 2 } else { 4 }));
    let (changed, _) = change::apply(&changed, &splits).unwrap();
    let classes = change::merge_classes(&changed);
    let merges: Vec<Recipe> = classes
        .iter()
        .filter(|class| class.is_exact || !exact_only)
        .flat_map(|class| class.sets(Bytes(1 << 40)))
        .collect();
    let (changed, _) = change::apply(&changed, &merges).unwrap();
    let how = same(module, &changed)
        .unwrap_or_else(|different| panic!("{different}\n{}\n\n{}", module.text(), changed.text()));
    let recipes =
        [first, shards, keeps, pipelines, agains, levels, regions, splits, merges].concat();
    AllApplied { recipes, changed, how, has_unproved }
}

/// Whether a gather's result is kept, and not what is made of it.
fn keeps_whole(recipe: &Recipe) -> bool {
    matches!(recipe, Recipe::Keep { members, kept } if members[..1] == kept[..])
}

/// Regions around all collectives that may be cut.
fn regions_of(module: &Module, exact_only: bool) -> Vec<change::Found> {
    let instructions = module.computations().flat_map(|of| module.instructions(of));
    let is_sent = |instr: &_| module.instruction(*instr).opcode.collective_kind().is_some();
    let names = instructions.filter(is_sent).map(|instr| module.instruction_name(instr).to_owned());
    let names: Vec<String> = match exact_only {
        true => change::exact_in_pieces(module, names.collect()),
        false => names.collect(),
    };
    let cut = RegionPieces { pieces: 2, reach: module.len() as u32 % 3, tail: None };
    change::find_regions(module, &names, cut)
}

#[test]
fn random_modules_compute_the_same() {
    let count = std::env::var("HALFLAP_REWRITES").ok().and_then(|text| text.parse().ok());
    let count: u32 = count.unwrap_or(60);
    let mut applied = [0; RecipeKind::ALL.len()];
    let (mut regions, mut parts, mut unproved) = (0, 0, 0);
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("rewritten");
    fs::create_dir_all(&folder).unwrap();
    let leave = |seed: u32, what: &str, module: &Module| {
        fs::write(folder.join(format!("{seed}.{what}.txt")), module.text()).unwrap();
    };
    for seed in 0..count {
        let ranks = if seed % 4 == 3 { 8 } else { 4 };
        let module = random_module(seed, ranks);
        let inputs = inputs(&module, ranks, u64::from(seed));
        let before = run(&module, &inputs);
        leave(seed, "old", &module);
        for exact_only in [true, false] {
            let AllApplied { recipes, changed, how, has_unproved } = rewritten(&module, exact_only);
            unproved += usize::from(has_unproved);
            leave(seed, if exact_only { "exact" } else { "all" }, &changed);
            assert!(!exact_only || how == Sameness::Exact, "seed {seed}: {recipes:?}");
            for recipe in &recipes {
                regions += usize::from(matches!(recipe, Recipe::Region { .. }));
                parts += usize::from(recipe.kind() == RecipeKind::Keep && !keeps_whole(recipe));
                let at = RecipeKind::ALL.iter().position(|kind| *kind == recipe.kind());
                applied[at.unwrap()] += 1;
            }
            let after = run(&changed, &inputs);
            assert_same(&before, &after, how, &format!("seed {seed}, {recipes:?}"));
        }
    }
    let enough = applied.iter().all(|&number| number >= count as usize / 3);
    let is_enough = enough && regions >= count as usize / 3 && parts >= count as usize / 6;
    let counts = format!("{applied:?}, {regions} regions, parts kept {parts} times");
    assert!(is_enough, "too few of a kind were applied: {counts}");
    assert!(unproved <= count as usize / 100, "{unproved} loops are not proved");
    println!(
        "{count} random modules, {applied:?} recipes (reduce-scatter, merge, narrow, pipeline, keep, \
         gather-again, split, two-levels), {regions} of the splits regions, {parts} times parts \
         of what was gathered were kept; \
         {unproved} loops left as they are"
    );
}

/// The modules of tests/hlo that the evaluator runs quickly, at both stages.
const MODULES: [&str; 7] = [
    "fsdp_L2.after_spmd_partitioning",
    "fsdp_L2.after_optimizations",
    "fsdp_L2_scan.after_spmd_partitioning",
    "fsdp_L2_scan.after_optimizations",
    "fsdp_shmap_L2.after_spmd_partitioning",
    "mix_L2.after_spmd_partitioning",
    "tp_L2.after_spmd_partitioning",
];

#[test]
fn modules_of_jax_compute_the_same() {
    let mut applied = 0;
    for name in MODULES {
        let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/hlo");
        let bytes = fs::read(path.join(format!("{name}.txt.gz"))).unwrap();
        let module = Module::from_bytes(unzip(&bytes).unwrap().into_owned()).unwrap();
        let AllApplied { recipes, changed, how, has_unproved } = rewritten(&module, false);
        assert!(!has_unproved, "{name}");
        applied += recipes.len();
        let inputs = inputs(&module, module.devices().count() as usize, 5);
        let (before, after) = (run(&module, &inputs), run(&changed, &inputs));
        assert_same(&before, &after, how, name);
        println!("{name}: {} recipes, {how:?}", recipes.len());
    }
    assert!(applied > 20, "{applied}");
}
