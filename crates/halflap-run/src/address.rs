//! Addresses that threads pass to each other.

/// An address that threads pass to each other; the plan determines which task may use it when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Address(pub(crate) *mut u8);

// SAFETY: an address is just a number; each dereference has its own justification.
unsafe impl Send for Address {}
// SAFETY: as above.
unsafe impl Sync for Address {}

/// An array in memory: its first byte, and how many it has.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AddressRange {
    pub(crate) start: Address,
    pub(crate) len: usize,
}

/// A copy: source, destination, number of bytes.
pub(crate) type MemoryCopy = (Address, Address, usize);
