//! Values that are zero in every element, and what follows from them without knowing more.

use std::collections::HashMap;
use std::rc::Rc;

use super::nodes::{Form, NodeId, NodeOp, Nodes};
use crate::Opcode;

impl Nodes {
    /// The number that all elements have, if it is written as a constant.
    fn only_number(&self, id: NodeId) -> Option<&str> {
        let node = self.node(id);
        match &node.what {
            NodeOp::Literal(text) if node.form.dims().is_some_and(<[u64]>::is_empty) => Some(text),
            NodeOp::Op { opcode: Opcode::Broadcast, .. } => self.only_number(*node.inputs.first()?),
            _ => None,
        }
    }

    /// Whether every element is zero, and not a negative zero.
    pub(super) fn is_zero(&self, id: NodeId) -> bool {
        let number = self.only_number(id).filter(|text| !text.starts_with('-'));
        number.and_then(|text| text.parse::<f64>().ok()) == Some(0.0)
    }

    /// Whether every element is the same number, larger than zero.
    fn is_positive(&self, id: NodeId) -> bool {
        let number = self.only_number(id).and_then(|text| text.parse::<f64>().ok());
        number.is_some_and(|number| number > 0.0 && number.is_finite())
    }

    fn zeros(&mut self, form: &Form) -> Option<NodeId> {
        let number = form.dims()?.is_empty();
        let zero = NodeOp::Literal("0".to_owned());
        let zero = self.plain(zero, form.with_dims(&[]), Vec::new());
        let what = NodeOp::Op {
            opcode: Opcode::Broadcast,
            name: Opcode::Broadcast.name().to_owned(),
            attributes: Rc::new(vec![("dimensions".to_owned(), "{}".to_owned())]),
            called: Vec::new(),
        };
        Some(if number { zero } else { self.plain(what, form.clone(), vec![zero]) })
    }

    /// An operation that gives zeros because it gets zeros.
    pub(super) fn of_zeros(
        &mut self,
        what: &NodeOp,
        form: &Form,
        inputs: &[NodeId],
    ) -> Option<NodeId> {
        use Opcode as O;
        if !inputs.iter().any(|&input| self.is_zero(input)) {
            return None;
        }
        let zero = |at: usize| inputs.get(at).is_some_and(|&input| self.is_zero(input));
        let all = || inputs.iter().all(|&input| self.is_zero(input));
        let is_zero = match what {
            NodeOp::Shard { .. } => true,
            NodeOp::Op { opcode: O::Fusion, called, .. } => {
                return self.fused(called, inputs).filter(|&made| self.is_zero(made));
            }
            NodeOp::Op { opcode, .. } => match opcode {
                O::Broadcast | O::Reshape | O::Transpose | O::Slice | O::DynamicSlice => zero(0),
                O::Bitcast | O::Convert => zero(0) && self.is_same_kind(form, inputs[0]),
                O::DynamicUpdateSlice => zero(0) && zero(1),
                O::Add | O::Subtract | O::Concatenate | O::Pad => all(),
                O::Multiply => {
                    zero(0) && self.is_positive(inputs[1]) || zero(1) && self.is_positive(inputs[0])
                }
                O::Divide => zero(0) && self.is_positive(inputs[1]),
                _ => false,
            },
            _ => false,
        };
        is_zero.then(|| self.zeros(form)).flatten()
    }

    /// The same for a collective.
    pub(super) fn sent_zeros(
        &mut self,
        what: &NodeOp,
        form: &Form,
        input: NodeId,
    ) -> Option<NodeId> {
        let NodeOp::Collective { opcode, reducer, .. } = what else { return None };
        let is_sum = || reducer.and_then(|of| self.reducer(of)) == Some(Opcode::Add);
        let is_zero = match opcode {
            Opcode::AllReduce | Opcode::ReduceScatter => is_sum(),
            Opcode::AllGather | Opcode::AllToAll | Opcode::CollectivePermute => true,
            _ => false,
        };
        (is_zero && self.is_zero(input)).then(|| self.zeros(form)).flatten()
    }

    /// Numbers are numbers before and after; zero has the same bits in all types that have one.
    fn is_same_kind(&self, form: &Form, input: NodeId) -> bool {
        let is_number = |form: &Form| {
            form.element().is_some_and(|of| !["pred", "f8e8m0fnu"].contains(&of.name()))
        };
        is_number(form) && is_number(&self.node(input).form)
    }

    /// What a fusion gives, through its computation.
    fn fused(&mut self, called: &[NodeId], inputs: &[NodeId]) -> Option<NodeId> {
        let &[function] = called else { return None };
        let &[root] = &self.node(function).inputs[..] else { return None };
        let mut places = HashMap::new();
        for (number, &input) in inputs.iter().enumerate() {
            let form = self.node(input).form.clone();
            places.insert(self.plain(NodeOp::Parameter(number), form, Vec::new()), input);
        }
        Some(self.replaced(root, &places))
    }
}
