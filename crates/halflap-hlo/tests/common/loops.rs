//! Random loops, as HLO text.

use super::modules::Dice;

/// Loops that are being written.
struct LoopWriter {
    dice: Dice,
    text: String,
    /// What can be read.
    values: Vec<String>,
    /// How many values a loop carries, and all of its state.
    carried: usize,
    state: String,
}

/// Loops by chance, one in the other, with values that are given twice, swapped, passed on, updated
/// in place, and read again after the loop.
pub fn random_loops(seed: u64) -> String {
    let mut dice = Dice::new(seed);
    let carried = 2 + dice.below(4);
    let state = format!("(s32[]{})", ", f32[6]".repeat(carried));
    let text = format!(
        "HloModule m\nless {{ s = {state} parameter(0)\n i = s32[] get-tuple-element(s), index=0\n n = s32[] constant(3)\n ROOT l = pred[] compare(i, n), direction=LT }}\n"
    );
    let mut writer = LoopWriter { dice, text, values: Vec::new(), carried, state };
    writer.body("inner", None);
    writer.body("outer", Some("inner"));
    writer.text += "ENTRY main { p0 = f32[6] parameter(0)\n p1 = f32[6] parameter(1)\n";
    writer.values = vec!["p0".to_owned(), "p1".to_owned()];
    writer.steps();
    writer.looped("outer");
    let results: Vec<String> = (0..carried).map(|_| writer.late(carried)).collect();
    let shapes = vec!["f32[6]"; carried].join(", ");
    writer.text += &format!(" ROOT r = ({shapes}) tuple({})\n}}\n", results.join(", "));
    writer.text
}

impl LoopWriter {
    /// One of the last few values.
    fn late(&mut self, most: usize) -> String {
        let back = self.dice.below(self.values.len().min(most));
        self.values[self.values.len() - 1 - back].clone()
    }

    fn body(&mut self, name: &str, inner: Option<&str>) {
        let state = self.state.clone();
        self.text += &format!(
            "{name} {{ s = {state} parameter(0)\n i = s32[] get-tuple-element(s), index=0\n"
        );
        self.values.clear();
        self.elements("s", |_| true);
        self.steps();
        if let Some(inner) = inner.filter(|_| self.dice.below(2) == 0) {
            self.looped(inner);
        }
        // Now and then an element stays as it is.
        let carried = self.carried;
        let result = |place: usize| match self.dice.below(3) {
            0 => format!("s{place}"),
            _ => self.late(carried),
        };
        let results = (0..carried).map(result).collect::<Vec<_>>().join(", ");
        self.text += &format!(
            " one = s32[] constant(1)\n j = s32[] add(i, one)\n ROOT r = {state} tuple(j, {results})\n}}\n"
        );
    }

    /// Elements of a loop's state, of which some are read.
    fn elements(&mut self, of: &str, is_read: impl Fn(&mut Dice) -> bool) {
        for place in 0..self.carried {
            if is_read(&mut self.dice) {
                let index = place + 1;
                self.text +=
                    &format!(" {of}{place} = f32[6] get-tuple-element({of}), index={index}\n");
                self.values.push(format!("{of}{place}"));
            }
        }
    }

    fn steps(&mut self) {
        for number in 0..1 + self.dice.below(4) {
            let (a, b) = (self.late(3), self.late(self.carried));
            let rest = match self.dice.below(5) {
                0 => format!("add({a}, {b})"),
                1 => format!("tanh({a})"),
                2 => format!("subtract({a}, {b})"),
                3 => format!("reverse({a}), dimensions={{0}}"),
                _ => {
                    let from = self.dice.below(5);
                    self.text += &format!(
                        " c{number} = s32[] constant({from})\n u{number} = f32[2] slice({b}), slice={{[1:3]}}\n"
                    );
                    format!("dynamic-update-slice({a}, u{number}, c{number})")
                }
            };
            self.text += &format!(" v{number} = f32[6] {rest}\n");
            self.values.push(format!("v{number}"));
        }
    }

    fn looped(&mut self, body: &str) {
        let given = (0..self.carried).map(|_| self.late(2)).collect::<Vec<_>>().join(", ");
        let state = &self.state;
        self.text += &format!(
            " zero = s32[] constant(0)\n w.init = {state} tuple(zero, {given})\n w = {state} while(w.init), condition=less, body={body}\n"
        );
        self.elements("w", |dice| dice.below(5) > 0);
    }
}
