//! Sends with MSG_FASTOPEN, which opens the connection.

use std::sync::atomic::Ordering::{Acquire, Relaxed};

use towpath_client::{Error, WaitLimit};
use towpath_shm::layout::{RawAddr, flags, setting};

use crate::errno::fail;
use crate::handle::OpenSocket;
use crate::socket::{conclude_connect, peer};
use crate::{Errno, Result, address};

/// Parses the peer address of a send with MSG_FASTOPEN, which opens a connection to it.
///
/// # Safety
/// As for [`destination`](super::destination).
pub(super) unsafe fn peer_to_open(
    handle: &OpenSocket,
    at: *const libc::sockaddr,
    len: libc::socklen_t,
) -> Result<Option<RawAddr>> {
    let family = handle.slot.family.load(Relaxed);
    // SAFETY: `at` points to `len` readable bytes, by the contract of this function.
    let to = unsafe { address::read(at, len) }?;
    match u32::from(to.family) {
        0 => fail(libc::EOPNOTSUPP),
        _ if !address::is_long_enough(len, family) => fail(libc::EINVAL),
        theirs if theirs != family => fail(libc::EAFNOSUPPORT),
        _ => peer(handle.slot, to, false).map(Some),
    }
}

/// Opens a connection with TCP Fast Open, after `sent` bytes were queued for the SYN. A call that
/// may wait returns the result of the handshake (`tcp_sendmsg_fastopen` of Linux).
pub(super) fn open(handle: &OpenSocket, sent: usize, limit: WaitLimit) -> Result<()> {
    if sent == 0 {
        handle.client.setting(handle.socket, setting::OPEN, 1);
    }
    let attempt = || match handle.slot.flags.load(Acquire) {
        seen if seen & flags::OPENING != 0 => Err(Error::WouldBlock),
        seen if seen & flags::DEAD != 0 => handle.socket.take_error(handle.client),
        _ => Ok(()),
    };
    let ended = match limit.nonblocking {
        true => fail(libc::EAGAIN),
        false => handle.blocking(limit, attempt),
    };
    match ended {
        // Report success: the bytes are queued and will be sent, although the handshake has not
        // completed.
        Err(Errno(libc::EAGAIN | libc::EINTR | libc::ERESTART)) if sent > 0 => Ok(()),
        Err(Errno(libc::EAGAIN)) => fail(libc::EINPROGRESS),
        Err(errno @ Errno(libc::EINTR | libc::ERESTART)) => Err(errno),
        ended => conclude_connect(handle, ended),
    }
}
