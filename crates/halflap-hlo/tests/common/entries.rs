//! Small modules of four ranks, and recipes applied to them.

use halflap_hlo::Module;
use halflap_hlo::change::{self, Recipe};

pub const GROUPS: &str = "replica_groups={{0,1,2,3}}, use_global_device_ids=true";

/// A module of four ranks whose entry has parameters `x` and `y` of f32[8,4], and these lines.
pub fn text(lines: &str) -> String {
    format!(
        "HloModule m, num_partitions=4

%add (a: f32[], b: f32[]) -> f32[] {{
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %c = f32[] add(%a, %b)
}}

ENTRY %main (x: f32[8,4], y: f32[8,4]) -> f32[8,4] {{
  %x = f32[8,4]{{1,0}} parameter(0)
  %y = f32[8,4]{{1,0}} parameter(1)
  %table = s32[4]{{0}} constant({{0, 2, 4, 6}})
  %id = u32[] partition-id()
  %one = s32[1]{{0}} dynamic-slice(%table, %id), dynamic_slice_sizes={{1}}
  %at = s32[] reshape(%one)
  %zero = s32[] constant(0)
{lines}
}}
"
    )
}

pub fn read(lines: &str) -> Module {
    let text = text(lines);
    Module::read(text.clone()).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

pub fn applied(module: &Module, recipes: &[Recipe]) -> Module {
    let (changed, _) = change::apply(module, recipes).unwrap_or_else(|error| panic!("{error}"));
    changed
}
