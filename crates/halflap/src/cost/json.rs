//! A small JSON object: its fields in the file's sequence, and none twice.

use std::collections::BTreeSet;
use std::fmt;

use serde::de::{Deserializer, Error as _, MapAccess, Visitor};
use serde_json::Value;

use super::error::ObjectError;
use crate::import::{quote_non_finite, unzip};

/// The fields of the object that a file holds, plain or gzipped.
pub(super) fn fields(bytes: &[u8]) -> Result<Vec<(String, Value)>, ObjectError> {
    let text = unzip(bytes)?;
    // Python writes NaN, which JSON does not have: reading it allows a better error.
    let text = quote_non_finite(&text);
    let mut reader = serde_json::Deserializer::from_slice(&text);
    let fields = reader.deserialize_map(FieldsVisitor)?;
    reader.end()?;
    Ok(fields)
}

/// The finite number that a value is, or what it is instead.
pub(super) fn number(value: &Value) -> Result<f64, &'static str> {
    match value {
        Value::Number(number) => {
            number.as_f64().filter(|number| number.is_finite()).ok_or("not finite")
        }
        Value::String(text) if matches!(text.as_str(), "NaN" | "Infinity" | "-Infinity") => {
            Err("not finite")
        }
        _ => Err("not a number"),
    }
}

/// A value verbatim; a long one is truncated.
pub(super) fn shown(value: &Value) -> String {
    const MOST: usize = 40;
    let text = match value {
        Value::String(text) if number(value) == Err("not finite") => text.clone(),
        other => other.to_string(),
    };
    match text.char_indices().nth(MOST) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    }
}

/// A map would keep the last of two fields of the same name and not say so.
struct FieldsVisitor;

impl<'de> Visitor<'de> for FieldsVisitor {
    type Value = Vec<(String, Value)>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut seen = BTreeSet::new();
        let mut fields = Vec::new();
        while let Some((name, value)) = map.next_entry::<String, Value>()? {
            if !seen.insert(name.clone()) {
                return Err(A::Error::custom(format!("'{name}' appears twice")));
            }
            fields.push((name, value));
        }
        Ok(fields)
    }
}
