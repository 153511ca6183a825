//! Messages to and from a host, as what a program without a host can do with them: what is sent to
//! it is dropped, as an `outfeed` does, and what comes from it is zero, as of an `infeed`.

use crate::draft::{Draft, DraftError};
use crate::ids::InstrId;
use crate::{Module, Opcode};

/// The same module without messages to and from a host; `None` if it has none. Those whose done is
/// somewhere else, such as in the next iteration of a loop, stay.
pub fn without_host_messages(module: &Module) -> Result<Option<Module>, DraftError> {
    let mut draft = Draft::new(module);
    let mut is_any = false;
    for instr in module.computations().flat_map(|computation| module.instructions(computation)) {
        let Some(begun) = begun(module, instr) else { continue };
        let operands: Vec<String> =
            module.operands(begun).iter().map(|operand| draft.operand(operand)).collect();
        let [name, begun_name] =
            [instr, begun].map(|instr| module.instruction_name(instr).to_owned());
        let (percent, operands) = (draft.percent(begun), operands.join(", "));
        let (first, second) = match module.instruction(begun).opcode {
            Opcode::Send => (format!("outfeed({operands})"), "after-all"),
            _ => (format!("after-all({operands})"), "infeed"),
        };
        let second = format!("{second}({percent}{begun_name})");
        draft.write_line(begun, begun_name, ("token[]", &first));
        draft.write_line(instr, name, (module.shape_text(instr), &second));
        is_any = true;
    }
    if is_any { draft.finish().map(Some) } else { Ok(None) }
}

/// The send or the recv that an instruction ends, if it is a host's and nothing else reads it.
fn begun(module: &Module, instr: InstrId) -> Option<InstrId> {
    let (Opcode::SendDone | Opcode::RecvDone) = module.instruction(instr).opcode else {
        return None;
    };
    let [operand] = module.operands(instr) else { return None };
    let begun = operand.of;
    let is_host = module.attribute(begun, "is_host_transfer") == Some("true");
    let is_start = matches!(module.instruction(begun).opcode, Opcode::Send | Opcode::Recv);
    let mut others = module.instructions(module.computation_of(begun));
    let reads = |other: InstrId| module.operands(other).iter().any(|operand| operand.of == begun);
    let is_alone = others.all(|other| other == instr || !reads(other));
    (is_host && is_start && is_alone).then_some(begun)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check;

    #[test]
    fn a_host_is_an_infeed_and_an_outfeed() {
        let text = "HloModule m\nENTRY e {\n x = f32[4] parameter(0)\n t = token[] after-all()\n \
            s = (f32[4], u32[], token[]) send(x, t), channel_id=1, is_host_transfer=true\n \
            d = token[] send-done(s), channel_id=1, is_host_transfer=true\n \
            r = (f32[4], u32[], token[]) recv(d), channel_id=2, is_host_transfer=true\n \
            q = (f32[4], token[]) recv-done(r), channel_id=2, is_host_transfer=true\n \
            ROOT y = f32[4] get-tuple-element(q), index=0\n}\n";
        let after = without_host_messages(&Module::read(text.to_owned()).unwrap());
        let after = after.unwrap().unwrap();
        assert!(!after.text().contains("channel_id"), "{}", after.text());
        check(&after).unwrap();
        assert!(without_host_messages(&after).unwrap().is_none());
    }
}
