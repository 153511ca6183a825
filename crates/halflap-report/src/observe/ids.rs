//! Dense ids of traces.

halflap::ids! {
    /// A kernel of a trace: all launches under one name.
    KernelId
    /// A GPU stream of a trace.
    LaneId
    /// A launch of a communication kernel in a trace.
    LaunchId
    /// A thread of the host that calls for work of a GPU.
    ThreadId
}
