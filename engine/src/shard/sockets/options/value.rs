//! Levels of options, and their values as bytes of a request and a reply.

use towpath_shm::control::ControlReply;

use crate::errno::{EINVAL, Errno};

/// Levels as Linux numbers them.
pub(crate) const SOL_IP: u32 = 0;
pub(crate) const SOL_SOCKET: u32 = 1;
pub(crate) const SOL_TCP: u32 = 6;
pub(crate) const SOL_IPV6: u32 = 41;

/// Fills a reply's data.
pub(crate) fn put(reply: &mut ControlReply, data: &[u8]) {
    reply.len = data.len() as u32;
    reply.data[..data.len()].copy_from_slice(data);
}

/// The int that a program passed.
pub(crate) fn int(data: &[u8]) -> Result<i32, Errno> {
    array::<4>(data, 0).map(i32::from_ne_bytes)
}

/// The bytes at `at`.
pub(crate) fn array<const N: usize>(data: &[u8], at: usize) -> Result<[u8; N], Errno> {
    data.get(at..at + N).and_then(|bytes| bytes.try_into().ok()).ok_or(Errno(EINVAL))
}
