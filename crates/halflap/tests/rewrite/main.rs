//! Changed programs: what can be changed is proved, what cannot is refused by name, and a result
//! that was damaged in any way is refused.

#[path = "../common/mod.rs"]
mod common;
mod damage;
mod groups;
mod keep;
mod merge;
mod merge_damage;
mod merge_random;
mod merge_report;
mod programs;
#[path = "../common/random.rs"]
#[allow(dead_code)]
mod random;
mod split;
mod split_damage;
