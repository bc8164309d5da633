//! Privileges of the calling thread.

/// CAP_NET_ADMIN.
pub(crate) const CAP_NET_ADMIN: u32 = 12;
/// CAP_NET_RAW.
pub(crate) const CAP_NET_RAW: u32 = 13;

/// CAP_SYS_RESOURCE.
pub(crate) const CAP_SYS_RESOURCE: u32 = 24;

/// Whether this thread has a privilege: what the kernel asks before it changes what others chose.
pub(crate) fn may(capability: u32) -> bool {
    const VERSION_3: u32 = 0x2008_0522;
    let header = [VERSION_3, 0];
    // Effective, permitted and inheritable, for capabilities 0..32 and 32..64.
    let mut sets = [0u32; 6];
    let args = [header.as_ptr() as usize, sets.as_mut_ptr() as usize, 0, 0, 0, 0];
    // SAFETY: the header and room for both structs of version 3 outlive the call.
    let asked = unsafe { towpath_client::syscall::syscall(libc::SYS_capget as usize, args) };
    asked.is_ok() && sets[0] & 1 << capability != 0
}
