//! Lets messages progress while kernels run, although Open MPI makes no progress on its own.
//!
//! A long message goes through a handshake and then in fragments, each sent only when a thread
//! polls MPI. On a core that is busy with a kernel such a thread runs only every few milliseconds,
//! and the link is idle in between. Two things help: messages that are passed to the socket whole,
//! so that the operating system sends them; and threads that run as soon as they wake
//! (`crate::slice`).

/// Up to this size a message is sent without a handshake.
const EAGER: &str = "16777216";
const SETTINGS: [&str; 2] = ["OMPI_MCA_btl_tcp_eager_limit", "OMPI_MCA_btl_tcp_rndv_eager_limit"];

/// Settings of Open MPI for overlap over TCP. The user's own settings stay. Must be called before
/// MPI starts, while the process has one thread.
pub(super) fn prefer_whole_messages() {
    for name in SETTINGS {
        if std::env::var_os(name).is_none() {
            // SAFETY: no other thread reads or writes the environment yet.
            unsafe { std::env::set_var(name, EAGER) };
        }
    }
}
