//! Process groups: from launches, completed by the job's configuration.

use serde_json::Value;

use super::trace::{GroupName, TraceGroup};
use super::work::RawTraceGroup;

/// A group with its ranks: as its launches list them or, where that list is cut short, as the job's
/// configuration does.
pub(super) fn group(raw: &RawTraceGroup, config: &Value) -> TraceGroup {
    if raw.name == GroupName::Gloo {
        return gloo_group(config);
    }
    let entry = entries(config).find(|entry| GroupName::Named(name(entry)) == raw.name);
    let configured = entry.and_then(configured_ranks);
    let ranks: Option<Vec<u32>> =
        ranks(&raw.ranks).or(configured).filter(|ranks| !ranks.is_empty());
    let size = raw.size.or(ranks.as_ref().map(|ranks| ranks.len() as u32));
    TraceGroup { name: raw.name.clone(), description: raw.description.clone(), size, ranks }
}

/// The group of gloo collectives that do not name one: the job's only group. Groups of one rank do
/// not count.
fn gloo_group(config: &Value) -> TraceGroup {
    let over_gloo = |entry: &&Value| {
        entry["backend_config"].as_str().is_none_or(|backends| backends.contains("gloo"))
    };
    let groups: Vec<(&Value, Option<Vec<u32>>)> = entries(config)
        .filter(over_gloo)
        .map(|entry| (entry, configured_ranks(entry).filter(|ranks| !ranks.is_empty())))
        .filter(|(_, ranks)| ranks.as_ref().is_none_or(|ranks| ranks.len() > 1))
        .collect();
    let unknown = |name| TraceGroup { name, description: String::new(), size: None, ranks: None };
    let Some((first, ranks)) = groups.first() else { return unknown(GroupName::Gloo) };
    if groups.iter().any(|(_, others)| others != ranks) {
        return unknown(GroupName::OneOf(groups.len()));
    }
    let size = ranks.as_ref().map(|ranks| ranks.len() as u32);
    let group = TraceGroup { size, ranks: ranks.clone(), ..unknown(GroupName::Gloo) };
    match groups.len() {
        1 => {
            let description =
                first["pg_desc"].as_str().unwrap_or_default().chars().take(200).collect();
            TraceGroup { name: GroupName::Named(name(first)), description, ..group }
        }
        _ => group,
    }
}

fn entries(config: &Value) -> impl Iterator<Item = &Value> {
    config.as_array().into_iter().flatten()
}

fn name(entry: &Value) -> String {
    match &entry["pg_name"] {
        Value::String(name) => name.clone(),
        name => name.to_string(),
    }
}

fn configured_ranks(entry: &Value) -> Option<Vec<u32>> {
    match &entry["ranks"] {
        Value::String(text) => ranks(text),
        list => serde_json::from_value(list.clone()).ok(),
    }
}

/// `[0, 1, 2]`, if it is complete: the profiler shortens long lists.
fn ranks(text: &str) -> Option<Vec<u32>> {
    let inner = text.trim().strip_prefix('[')?.strip_suffix(']')?;
    inner.split(',').map(|rank| rank.trim().parse().ok()).collect()
}
