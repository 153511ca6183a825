//! `halflap plan`: what running a module does, step by step.

use halflap_hlo::likely_device;
use halflap_hlo::plan::Text;

use crate::args;
use crate::execution::plans::Which;
use crate::exit::Failed;
use crate::files;
use crate::place::{Input, refuse_both_stdin};
use crate::source::ModuleSource;
use crate::terminal;

pub fn run(args: &args::Plan) -> Result<(), Failed> {
    refuse_both_stdin(&args.module, args.order.as_ref(), "module and order")?;
    let source = ModuleSource::read(&args.module, &args.machine, None)?;
    // A module compiled for a TPU mixes types as only TPU kernels can: it can be planned but not
    // run.
    let is_tpu = likely_device(&source.module).starts_with("tpu");
    let source = if is_tpu { source } else { source.typed()? };
    let found = source.found(which(args.order.as_ref(), &args.orders))?;
    let text = Text::of(&source.module, &source.plan(&found, !args.orders.no_fuse)?).render();
    match args.output.as_deref() {
        Some(path) => files::put(path, &text).map(|_| ()),
        None => files::put("-", &terminal::style().fitted(&text)).map(|_| ()),
    }
}

/// The orders that were requested.
pub fn which<'a>(order: Option<&'a Input>, orders: &'a args::OrderArgs) -> Which<'a> {
    match order {
        Some(input) => Which::File(input),
        None if orders.input_order => Which::Input,
        None => Which::Ours(&orders.search),
    }
}
