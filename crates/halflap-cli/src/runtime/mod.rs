//! What commands need of the runtime (`halflap-run`) besides running modules: the types of
//! arguments, and Ctrl-C. All else of it is used in `execution` alone.

pub use halflap_run::check::Fault;
pub use halflap_run::comm::EmulatedLink;
pub use halflap_run::interrupt;
