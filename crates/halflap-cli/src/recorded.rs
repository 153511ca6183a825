//! The options recorded in a schedule file.

use clap::ValueEnum;
use halflap::graph::Edges;
use halflap::import::unzip;
use halflap::units::Bytes;
use serde_json::Value;

use crate::args::{ChainWhich, CollectiveArgs, CollectiveOrder, EffortArg};
use crate::exit::Failed;
use crate::files;
use crate::machine;
use crate::place::Input;

/// The fields of a `halflap.schedule/1` file; none of any other order.
pub struct Recorded<'a> {
    input: Option<&'a Input>,
    fields: Value,
}

/// How to treat the order of collectives.
#[derive(Clone, Copy, Debug)]
pub struct Collectives {
    /// Which are chained first.
    pub chain: Option<ChainWhich>,
    /// Which edges are then kept.
    pub edges: Edges,
}

impl<'a> Recorded<'a> {
    /// Reads the file of an order, if there is one. Errors in the order are reported elsewhere.
    pub fn read(input: Option<&'a Input>) -> Result<Recorded<'a>, Failed> {
        let Some(read) = input else { return Ok(Recorded { input, fields: Value::Null }) };
        let bytes = files::read(read)?;
        let fields: Option<Value> =
            unzip(&bytes).ok().and_then(|text| serde_json::from_slice(&text).ok());
        let is_schedule = |fields: &Value| fields["format"] == "halflap.schedule/1";
        Ok(Recorded { input, fields: fields.filter(is_schedule).unwrap_or_default() })
    }

    /// How to treat the order of collectives: as requested, else as recorded.
    pub fn collectives(&self, asked: &CollectiveArgs) -> Result<Collectives, Failed> {
        let chain = match asked.order_collectives {
            None => self.choice("order_collectives", &self.fields["order_collectives"])?,
            chain => chain,
        };
        let order: Option<CollectiveOrder> = match (asked.collective_order, asked.order_collectives)
        {
            (None, None) => self.choice("collective_order", &self.fields["collective_order"])?,
            (order, _) => order,
        };
        Ok(Collectives { chain, edges: machine::edges(order, chain.is_some()) })
    }

    /// The effort: as requested, else as recorded (the same for all computations of a module), else
    /// quick.
    pub fn effort(&self, asked: Option<EffortArg>) -> Result<EffortArg, Failed> {
        let of_module = &self.fields["computations"][0];
        let part = if of_module.is_null() { &self.fields } else { of_module };
        let recorded = self.choice("effort", &part["optimizer"]["effort"])?;
        Ok(asked.or(recorded).unwrap_or(EffortArg::Quick))
    }

    /// The memory limit that is recorded: of the whole, or of one of a module's computations if its
    /// name is given.
    pub fn limit(&self, computation: Option<&str>) -> Option<Bytes> {
        let limit = match (computation, self.fields["computations"].as_array()) {
            (None, Some(_)) => &self.fields["memory_limit"],
            (None, None) => &self.fields["optimizer"]["memory_limit"],
            (Some(name), parts) => {
                let part = parts?.iter().find(|part| part["computation"] == name)?;
                &part["optimizer"]["memory_limit"]
            }
        };
        limit.as_i64().map(Bytes)
    }

    /// One of the values that an option takes.
    fn choice<T: ValueEnum>(&self, name: &str, value: &Value) -> Result<Option<T>, Failed> {
        if value.is_null() {
            return Ok(None);
        }
        let found = value.as_str().and_then(|text| T::from_str(text, false).ok());
        let wrong = || {
            let values = T::value_variants().iter().filter_map(ValueEnum::to_possible_value);
            let known: Vec<String> = values.map(|value| value.get_name().to_owned()).collect();
            let problem = format!("'{name}' is {value}: it must be {}", known.join(" or "));
            Failed::in_file(self.input.map_or("", Input::name), problem)
        };
        found.map(Some).ok_or_else(wrong)
    }
}
