//! An order from a file: a list of node names, or an object with `order`.

use serde::Deserialize;
use thiserror::Error;

use super::{ImportError, unzip};

/// Why bytes are not an order.
#[derive(Debug, Error)]
#[allow(missing_docs)]
pub enum OrderError {
    #[error(transparent)]
    Unreadable(#[from] ImportError),
    #[error("not an order: {0}; it must be a JSON list of node names, or an object with such a list as 'order'")]
    NotAnOrder(serde_json::Error),
}

#[derive(Deserialize)]
#[serde(untagged)]
enum RawOrder {
    List(Vec<String>),
    Schedule { order: Vec<String> },
}

/// Reads the names of an order; whether they are those of a graph is for the verifier to say.
pub fn read_order(bytes: &[u8]) -> Result<Vec<String>, OrderError> {
    let text = unzip(bytes)?;
    let raw = serde_json::from_slice(&text).map_err(OrderError::NotAnOrder)?;
    Ok(match raw {
        RawOrder::List(order) | RawOrder::Schedule { order } => order,
    })
}
