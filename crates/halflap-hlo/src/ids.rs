//! Dense ids of modules and plans.

halflap::ids! {
    /// A computation of an HLO module.
    ComputationId
    /// An instruction of an HLO module; those of one computation are neighbours.
    InstrId
    /// A place in memory that values of a computation are kept in.
    SlotId
    /// A plan: what is done for one computation.
    PlanId
    /// Sets of devices that communicate among themselves, in a plan.
    CommId
}
