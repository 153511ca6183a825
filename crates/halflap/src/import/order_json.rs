//! An order from a file: a list of node names, or an object with `order`.

use serde_json::Value;
use thiserror::Error;

use super::{ImportError, unzip};

/// Why bytes are not an order.
#[derive(Debug, Error)]
#[allow(missing_docs)]
#[non_exhaustive]
pub enum OrderError {
    #[error(transparent)]
    Unreadable(#[from] ImportError),
    #[error(
        "not an order: {0}; it must be a JSON list of node names, or an object with such a list \
         as 'order'"
    )]
    NotAnOrder(String),
    #[error("{0}")]
    OfOtherKind(&'static str),
}

/// Reads the names of an order; the verifier checks that they are those of a graph.
pub fn read_order(bytes: &[u8]) -> Result<Vec<String>, OrderError> {
    order_in(parse(bytes)?)
}

/// Reads the orders of a module's computations by name. A computation that is not listed has none.
pub fn read_orders(bytes: &[u8]) -> Result<Vec<(String, Vec<String>)>, OrderError> {
    let mut value = parse(bytes)?;
    let Some(Value::Array(computations)) = value.get_mut("computations").map(Value::take) else {
        return Err(match value {
            Value::Array(_) => OrderError::OfOtherKind(
                "it is a list of names, the order of a graph; a module needs an object with a list \
                 'computations', an order for each, as 'schedule MODULE -o' writes it",
            ),
            _ => wrong("the object has no list 'computations': it is not a schedule of a module"),
        });
    };
    let order = |mut computation: Value| {
        let name = computation.get_mut("computation").map(Value::take);
        let Some(Value::String(name)) = name else {
            return Err(wrong("an entry of 'computations' has no name"));
        };
        Ok((name, order_in(computation)?))
    };
    computations.into_iter().map(order).collect()
}

fn parse(bytes: &[u8]) -> Result<Value, OrderError> {
    let text = unzip(bytes)?;
    serde_json::from_slice(&text).map_err(|error| OrderError::NotAnOrder(error.to_string()))
}

fn wrong(what: impl Into<String>) -> OrderError {
    OrderError::NotAnOrder(what.into())
}

fn order_in(value: Value) -> Result<Vec<String>, OrderError> {
    let list = match value {
        Value::Array(list) => list,
        Value::Object(mut object) => match object.remove("order") {
            Some(Value::Array(list)) => list,
            Some(_) => return Err(wrong("'order' is not a list")),
            None if object.contains_key("computations") => {
                return Err(OrderError::OfOtherKind(
                    "it has orders of a module's computations; a graph has a single order, a list \
                     of names or an object with 'order'",
                ));
            }
            None => return Err(wrong("the object has no 'order'")),
        },
        _ => return Err(wrong("it is neither a list nor an object")),
    };
    let name = |(index, item): (usize, Value)| match item {
        Value::String(name) => Ok(name),
        other => Err(wrong(format!("entry {index} is {other}, not a name"))),
    };
    list.into_iter().enumerate().map(name).collect()
}
