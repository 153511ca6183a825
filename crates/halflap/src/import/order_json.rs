//! An order from a file: a list of node names, or an object with `order`.

use serde_json::Value;
use thiserror::Error;

use super::{ImportError, unzip};

/// Why bytes are not an order.
#[derive(Debug, Error)]
#[allow(missing_docs)]
pub enum OrderError {
    #[error(transparent)]
    Unreadable(#[from] ImportError),
    #[error("not an order: {0}; it must be a JSON list of node names, or an object with such a list as 'order'")]
    NotAnOrder(String),
}

/// Reads the names of an order; whether they are those of a graph is for the verifier to say.
pub fn read_order(bytes: &[u8]) -> Result<Vec<String>, OrderError> {
    let text = unzip(bytes)?;
    let value: Value = serde_json::from_slice(&text).map_err(|error| OrderError::NotAnOrder(error.to_string()))?;
    let wrong = |what: String| OrderError::NotAnOrder(what);
    let list = match value {
        Value::Array(list) => list,
        Value::Object(mut object) => match object.remove("order") {
            Some(Value::Array(list)) => list,
            Some(_) => return Err(wrong("'order' is no list".to_owned())),
            None => return Err(wrong("the object has no 'order'".to_owned())),
        },
        _ => return Err(wrong("it is neither a list nor an object".to_owned())),
    };
    let name = |(index, item): (usize, Value)| match item {
        Value::String(name) => Ok(name),
        other => Err(wrong(format!("entry {index} is {other} and no name"))),
    };
    list.into_iter().enumerate().map(name).collect()
}
