//! Calls as part of their callers, as compilers do it: what a callee only passes on or updates in
//! place is then not copied, and its instructions are fused with those around the call.

use std::collections::{BTreeMap, HashMap, HashSet};

use crate::draft::{Draft, DraftError, DraftLine, after_name, read_name, with_operands};
use crate::ids::{ComputationId, InstrId};
use crate::{Module, Opcode, Operand};
use halflap::ids::Id;

/// ModuleCalls with more instructions are inlined only if they are called once.
const SMALL: usize = 64;

/// The same module without calls of computations that do not communicate; `None` if it has none.
/// ModuleCalls with collectives stay: their orders are searched once for all calls.
pub fn without_calls(module: &Module) -> Result<Option<Module>, DraftError> {
    let mut after: Option<Module> = None;
    // ModuleCalls of callees become callees.
    loop {
        match one_level(after.as_ref().unwrap_or(module))? {
            Some(next) => after = Some(next),
            None => return Ok(after),
        }
    }
}

fn one_level(module: &Module) -> Result<Option<Module>, DraftError> {
    let callees = ModuleCalls::of(module);
    let mut draft = Draft::new(module);
    let mut is_any = false;
    for &call in callees.calls.iter().filter(|&&call| callees.is_inlined(call)) {
        write(&mut draft, module, call);
        is_any = true;
    }
    if is_any { draft.finish().map(Some) } else { Ok(None) }
}

/// The calls of a module, and what is known about their callees.
struct ModuleCalls<'m> {
    module: &'m Module,
    calls: Vec<InstrId>,
    /// How often each computation is called.
    count: BTreeMap<ComputationId, usize>,
    /// Instructions that others must come after, or that must come after others.
    controlled: HashSet<InstrId>,
    /// Computations that contain calls or communicate, directly or not.
    kept: HashSet<ComputationId>,
}

impl<'m> ModuleCalls<'m> {
    fn of(module: &'m Module) -> ModuleCalls<'m> {
        let all = (0..module.len()).map(InstrId::from_index);
        let is_call = |&instr: &InstrId| module.instruction(instr).opcode == Opcode::Call;
        let calls: Vec<InstrId> = all.clone().filter(is_call).collect();
        let mut count = BTreeMap::new();
        for computation in all.clone().flat_map(|instr| module.called(instr)) {
            *count.entry(*computation).or_default() += 1;
        }
        let controlled = all
            .flat_map(|instr| module.control_predecessors(instr).flat_map(move |it| [it, instr]))
            .collect();
        let mut kept = HashSet::new();
        // Callers are found after what they call, however the text is ordered.
        loop {
            let stays = |&id: &ComputationId| !kept.contains(&id) && must_stay(module, id, &kept);
            let more: Vec<ComputationId> = module.computations().filter(stays).collect();
            if more.is_empty() {
                return ModuleCalls { module, calls, count, controlled, kept };
            }
            kept.extend(more);
        }
    }

    fn is_inlined(&self, call: InstrId) -> bool {
        let module = self.module;
        let &[callee] = module.called(call) else { return false };
        let mut body = module.instructions(callee);
        let is_plain =
            module.attributes(call).all(|(key, _)| ["to_apply", "metadata"].contains(&key));
        let is_small = body.len() <= SMALL || self.count.get(&callee) == Some(&1);
        is_plain
            && is_small
            && !self.kept.contains(&callee)
            && !self.controlled.contains(&call)
            && module.instruction(module.root(callee)).opcode != Opcode::Parameter
            && body.all(|instr| !self.controlled.contains(&instr))
    }
}

/// Whether a computation is not made part of others: calls in it are inlined first.
fn must_stay(module: &Module, id: ComputationId, kept: &HashSet<ComputationId>) -> bool {
    module.instructions(id).any(|instr| {
        let opcode = module.instruction(instr).opcode;
        let is_asynchronous = opcode.phase().is_some() || opcode.collective_kind().is_some();
        let is_call = opcode == Opcode::Call;
        is_asynchronous || is_call || module.called(instr).iter().any(|id| kept.contains(id))
    })
}

/// Writes what is called in place of a call; the last instruction takes its name.
fn write(draft: &mut Draft<'_>, module: &Module, call: InstrId) {
    let callee = module.called(call)[0];
    let arguments = module.operands(call);
    let mut names: HashMap<InstrId, String> = HashMap::new();
    for instr in module.instructions(callee) {
        if let Some(number) = module.parameter_number(instr) {
            let argument = arguments.get(number).map(|argument| draft.operand(argument));
            names.insert(instr, argument.unwrap_or_default());
            continue;
        }
        let name = match instr == module.root(callee) {
            true => module.instruction_name(call).to_owned(),
            false => draft.fresh(module.instruction_name(instr)),
        };
        names.insert(instr, format!("{}{name}", draft.percent(call)));
        let read = |operand: &Operand| {
            let path = module.path(operand).iter().map(|index| format!("#{index}"));
            format!("{}{}", names[&operand.of], path.collect::<String>())
        };
        let operands: Vec<String> = module.operands(instr).iter().map(read).collect();
        let text = match operands.is_empty() {
            true => after_name(module, instr).to_owned(),
            false => with_operands(module, instr, &operands.join(", ")),
        };
        let reads = operands.iter().map(|operand| read_name(operand)).collect();
        draft.replace(call, DraftLine { name, text, reads });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check;

    const HEAD: &str = "HloModule m, num_partitions=2\n\nadd {\n a = f32[] parameter(0)\n b = f32[] \
        parameter(1)\n ROOT s = f32[] add(a, b)\n}\n\n";

    fn inlined(text: &str) -> Option<String> {
        let module = Module::read(format!("{HEAD}{text}")).unwrap();
        let after = without_calls(&module).unwrap()?;
        check(&after).unwrap();
        assert!(without_calls(&after).unwrap().is_none());
        let lines: Vec<&str> = after.text().split("ENTRY").nth(1)?.lines().map(str::trim).collect();
        Some(lines[1..lines.len() - 1].join("\n"))
    }

    #[test]
    fn callees_of_callees_take_the_names_of_calls() {
        let text = "inner {\n p = f32[4] parameter(0)\n ROOT q = f32[4] negate(p)\n}\n\nouter {\n \
            x = (f32[4], f32[4]) parameter(0)\n y = f32[4] get-tuple-element(x), index=1\n \
            z = f32[4] call(y), to_apply=inner\n ROOT t = (f32[4], f32[4]) tuple(z, y)\n}\n\n\
            ENTRY e {\n u = f32[4] parameter(0)\n v = (f32[4], f32[4]) tuple(u, u)\n \
            w = (f32[4], f32[4]) call(v), to_apply=outer\n r = f32[4] get-tuple-element(w), index=0\n \
            ROOT d = f32[4] call(r), to_apply=inner\n}\n";
        assert_eq!(
            inlined(text).unwrap(),
            "u = f32[4] parameter(0)\nv = (f32[4], f32[4]) tuple(u, u)\n\
             y.2 = f32[4] get-tuple-element(v), index=1\nz.2 = f32[4] negate(y.2)\n\
             w = (f32[4], f32[4]) tuple(z.2, y.2)\nr = f32[4] get-tuple-element(w), index=0\n\
             ROOT d = f32[4] negate(r)"
        );
    }

    #[test]
    fn what_communicates_or_is_bound_to_a_place_stays_a_call() {
        let call = |callee: &str, attributes: &str| {
            format!(
                "f {{\n p = f32[4] parameter(0)\n n = f32[4] negate(p)\n {callee}\n}}\n\nENTRY e \
                 {{\n u = f32[4] parameter(0)\n v = f32[4] negate(u)\n ROOT w = f32[4] call(v), \
                 to_apply=f{attributes}\n}}\n"
            )
        };
        let plain = "ROOT q = f32[4] add(p, n)";
        assert!(inlined(&call(plain, "")).is_some());
        let reduced = "ROOT q = f32[4] all-reduce(n), replica_groups={}, to_apply=add";
        assert!(inlined(&call(reduced, "")).is_none());
        assert!(inlined(&call(plain, ", control-predecessors={u}")).is_none());
        assert!(
            inlined(&call("ROOT q = f32[4] add(p, n), control-predecessors={n}", "")).is_none()
        );
        let host = r#", frontend_attributes={_xla_compute_type="host"}"#;
        assert!(inlined(&call(plain, host)).is_none());
        // There is nothing to write for a parameter.
        assert!(inlined(&call("o = f32[4] add(p, n)", "")).is_some());
        let passed = "f {\n ROOT p = f32[4] parameter(0)\n}\n\nENTRY e {\n u = f32[4] \
            parameter(0)\n ROOT w = f32[4] call(u), to_apply=f\n}\n";
        assert!(inlined(passed).is_none());
    }
}
