//! `halflap plan`: what running a module does, step by step.

use halflap_hlo::likely_device;
use halflap_hlo::plan::Text;

use crate::args;
use crate::exit::Failed;
use crate::files;
use crate::plans::{ModuleSource, Which};

pub fn run(args: &args::Plan) -> Result<(), Failed> {
    if args.module == "-" && args.order.as_deref() == Some("-") {
        return Err(Failed::BadInput(
            "only one of module and order can come from standard input".to_owned(),
        ));
    }
    let source = ModuleSource::read(&args.module, &args.machine, None)?;
    // A module compiled for a TPU mixes types as only TPU kernels can: it can be planned but not
    // run.
    let is_tpu = likely_device(&source.module).starts_with("tpu");
    let source = if is_tpu { source } else { source.typed()? };
    let found = source.found(which(args.order.as_deref(), &args.orders))?;
    let text = Text::of(&source.module, &source.plan(&found, !args.orders.no_fuse)?);
    files::put(args.output.as_deref().unwrap_or("-"), &text.render()).map(|_| ())
}

/// The orders that were requested.
pub fn which<'a>(file: Option<&'a str>, orders: &'a args::OrderArgs) -> Which<'a> {
    match file {
        Some(path) => Which::File(path),
        None if orders.input_order => Which::Input,
        None => Which::Ours(&orders.search),
    }
}
