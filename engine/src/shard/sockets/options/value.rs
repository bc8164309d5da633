//! Numbers of option levels, and encoding of option values in requests and replies.

use towpath_shm::control::ControlReply;

use crate::errno::{EINVAL, Errno};

/// Levels of socket options, as Linux numbers them.
pub(crate) const SOL_IP: u32 = 0;
pub(crate) const SOL_SOCKET: u32 = 1;
pub(crate) const SOL_TCP: u32 = 6;
pub(crate) const SOL_IPV6: u32 = 41;

/// Sets the data of a reply.
pub(crate) fn put(reply: &mut ControlReply, data: &[u8]) {
    reply.len = data.len() as u32;
    reply.data[..data.len()].copy_from_slice(data);
}

/// Returns the int in an option value. Fails with EINVAL if the value is too short.
pub(crate) fn int(data: &[u8]) -> Result<i32, Errno> {
    array::<4>(data, 0).map(i32::from_ne_bytes)
}

/// Returns the `N` bytes at offset `at` of an option value. Fails with EINVAL if the value is too
/// short.
pub(crate) fn array<const N: usize>(data: &[u8], at: usize) -> Result<[u8; N], Errno> {
    data.get(at..at + N).and_then(|bytes| bytes.try_into().ok()).ok_or(Errno(EINVAL))
}
