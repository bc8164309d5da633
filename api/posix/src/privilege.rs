//! Checks capabilities of the calling thread (capabilities(7)).

/// Number of the capability CAP_NET_ADMIN (linux/capability.h).
pub(crate) const CAP_NET_ADMIN: u32 = 12;
/// Number of the capability CAP_NET_RAW (linux/capability.h).
pub(crate) const CAP_NET_RAW: u32 = 13;

/// Number of the capability CAP_SYS_RESOURCE (linux/capability.h).
pub(crate) const CAP_SYS_RESOURCE: u32 = 24;

/// Returns whether the calling thread has a capability in its effective set.
pub(crate) fn may(capability: u32) -> bool {
    const VERSION_3: u32 = 0x2008_0522;
    let header = [VERSION_3, 0];
    // The three capability sets: effective, permitted and inheritable, for capabilities 0 to 31,
    // then again for 32 to 63.
    let mut sets = [0u32; 6];
    let args = [header.as_ptr() as usize, sets.as_mut_ptr() as usize, 0, 0, 0, 0];
    // SAFETY: the header outlives the call, and `sets` has room for both structs of version 3.
    let asked = unsafe { towpath_client::syscall::syscall(libc::SYS_capget as usize, args) };
    asked.is_ok() && sets[0] & 1 << capability != 0
}
