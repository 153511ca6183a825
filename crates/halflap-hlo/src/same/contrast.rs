//! Describes how two values differ that are computed from equal ones.

use super::nodes::{Form, Members, Node, NodeOp};

/// The first thing in which two values differ, as it is in each.
pub(super) fn contrast(left: &Node, right: &Node) -> [String; 2] {
    let both = |of: &dyn Fn(&Node) -> String| [of(left), of(right)];
    let aspects = [
        both(&|node| operation(&node.what)),
        both(&|node| operands(node.inputs.len())),
        both(&|node| form(&node.form)),
        attributes(left, right),
    ];
    let differ = |[left, right]: &[String; 2]| left != right;
    let whole = |node: &Node| format!("{} of {}", operation(&node.what), form(&node.form));
    aspects.into_iter().find(differ).unwrap_or_else(|| both(&whole))
}

fn operation(what: &NodeOp) -> String {
    match what {
        NodeOp::Parameter(number) => format!("parameter {number}"),
        NodeOp::Literal(text) => format!("constant {text}"),
        NodeOp::Tuple => "tuple".to_owned(),
        NodeOp::Element(index) => format!("element {index}"),
        NodeOp::Started => "a start".to_owned(),
        NodeOp::Function => "a computation".to_owned(),
        NodeOp::Held => "a loop's value".to_owned(),
        NodeOp::Collective { opcode, .. } => opcode.name().to_owned(),
        NodeOp::Shard { dim, starts } => match &starts[..] {
            [start, rest @ ..] if rest.iter().all(|other| other == start) => {
                format!("a slice of dimension {dim} that begins at {start}")
            }
            starts => {
                format!("a slice of dimension {dim} that begins at {starts:?} on the devices")
            }
        },
        NodeOp::Blocks(of) => {
            format!("{} blocks of dimension {}, in another sequence", of.before.len(), of.dim)
        }
        NodeOp::Op { name, .. } => name.clone(),
    }
}

fn operands(count: usize) -> String {
    format!("{count} operand{}", if count == 1 { "" } else { "s" })
}

fn form(form: &Form) -> String {
    match form {
        Form::Array { element, dims, dynamic } => {
            let dims: Vec<String> = dims.iter().map(u64::to_string).collect();
            let dynamic = if *dynamic { ", dynamic" } else { "" };
            format!("{}[{}]{dynamic}", element.name(), dims.join(","))
        }
        Form::Tuple(parts) => {
            let parts: Vec<String> = parts.iter().map(self::form).collect();
            format!("({})", parts.join(", "))
        }
        Form::Other => "neither an array nor a tuple".to_owned(),
    }
}

/// The attributes that only one of them has.
fn attributes(left: &Node, right: &Node) -> [String; 2] {
    let (own, others) = (pairs(&left.what), pairs(&right.what));
    let only = |own: &[(String, String)], others: &[(String, String)]| {
        let mut own = own.iter().filter(|pair| !others.contains(pair)).peekable();
        match own.peek() {
            None => "no such attribute".to_owned(),
            Some(_) => {
                own.map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(", ")
            }
        }
    };
    [only(&own, &others), only(&others, &own)]
}

fn pairs(what: &NodeOp) -> Vec<(String, String)> {
    let pair = |key: &str, value: String| (key.to_owned(), value);
    match what {
        NodeOp::Op { attributes, .. } => attributes.to_vec(),
        NodeOp::Collective { members, dimensions, attributes, .. } => {
            let Members { groups, pairs } = &**members;
            let mut all = attributes.to_vec();
            all.push(pair("replica_groups", format!("{groups:?}")));
            all.push(pair("source_target_pairs", format!("{pairs:?}")));
            all.push(pair("dimensions", format!("{dimensions:?}")));
            all
        }
        _ => Vec::new(),
    }
}
