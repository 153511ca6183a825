//! What a module was compiled for.

use super::Module;

/// The TPU that is assumed where layouts are those of one.
pub(crate) const TPU: &str = "tpu_v5e";

/// The device that a module was compiled for, derived from its text: tiles of 8 by 128 mean a TPU.
pub fn likely_device(module: &Module) -> &'static str {
    let is_tpu = module.text().contains(":T(8,128)");
    if is_tpu { TPU } else { "h100" }
}
