//! A thread's rounding mode: a custom call may change it, which would affect every later kernel.

/// The control bits of a thread's floating-point unit: rounding, exceptions, subnormal numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mode(u32);

/// All bits except the status flags.
#[cfg(target_arch = "x86_64")]
const CONTROL: u32 = 0xffc0;

impl Mode {
    /// That of the calling thread.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn now() -> Mode {
        let mut bits = 0u32;
        // SAFETY: the instruction stores 32 bits to the address of a number that long.
        unsafe {
            std::arch::asm!("stmxcsr [{}]", in(reg) &raw mut bits, options(nostack, preserves_flags))
        };
        Mode(bits & CONTROL)
    }

    /// Sets it on the calling thread.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn set(self) {
        // SAFETY: the bits were this register's before, so that no reserved one is set.
        unsafe {
            std::arch::asm!("ldmxcsr [{}]", in(reg) &raw const self.0, options(nostack, preserves_flags))
        };
    }

    /// Unknown on other architectures.
    #[cfg(not(target_arch = "x86_64"))]
    pub(super) fn now() -> Mode {
        Mode(0)
    }

    /// Nothing is known to have changed.
    #[cfg(not(target_arch = "x86_64"))]
    pub(super) fn set(self) {}
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;

    #[test]
    fn a_mode_is_set_back() {
        let own = Mode::now();
        let upward = Mode(own.0 | 0x4000);
        upward.set();
        assert_eq!(Mode::now(), upward);
        own.set();
        assert_eq!(Mode::now(), own);
    }
}
