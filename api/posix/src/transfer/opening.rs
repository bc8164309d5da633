//! MSG_FASTOPEN: a send that opens the connection.

use std::sync::atomic::Ordering::{Acquire, Relaxed};

use towpath_client::Error;
use towpath_shm::layout::{RawAddr, flags};

use crate::errno::fail;
use crate::handle::{Handle, Patience};
use crate::socket::peer;
use crate::{Errno, Result, address};

/// The address of a connection that MSG_FASTOPEN opens.
///
/// # Safety
/// As for [`destination`](super::destination).
pub(super) unsafe fn peer_to_open(
    handle: &Handle,
    at: *const libc::sockaddr,
    len: libc::socklen_t,
) -> Result<Option<RawAddr>> {
    let family = handle.slot.family.load(Relaxed);
    // SAFETY: the caller's promise.
    let to = unsafe { address::read(at, len) }?;
    match u32::from(to.family) {
        0 => fail(libc::EOPNOTSUPP),
        _ if !address::is_long_enough(len, family) => fail(libc::EINVAL),
        theirs if theirs != family => fail(libc::EAFNOSUPPORT),
        _ => peer(handle.slot, to, false).map(Some),
    }
}

/// As tcp_sendmsg_fastopen: a call that may wait returns when the handshake is over, and tells how
/// it ended.
pub(super) fn await_handshake(handle: &Handle, patience: Patience) -> Result<()> {
    let attempt = || match handle.slot.flags.load(Acquire) {
        seen if seen & flags::OPENING != 0 => Err(Error::WouldBlock),
        seen if seen & flags::DEAD != 0 => handle.socket.take_error(handle.client),
        _ => Ok(()),
    };
    match handle.blocking(patience, attempt) {
        // The bytes are taken, and leave all the same.
        Err(Errno(libc::EAGAIN | libc::EINTR | libc::ERESTART)) => Ok(()),
        result => result,
    }
}
