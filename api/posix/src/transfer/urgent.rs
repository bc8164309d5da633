//! MSG_OOB: reads the urgent byte of a stream, and rejects the flag for sockets without urgent
//! data.

use std::net::IpAddr;
use std::sync::atomic::Ordering::Relaxed;

use towpath_client::{Buffer, urgent};
use towpath_shm::layout::{Kind, RawAddr};

use super::arrival::Arrival;
use super::datagrams::towards;
use crate::handle::OpenSocket;
use crate::{Result, address};

/// Reads the urgent byte of a stream, as Linux's `tcp_recv_urg` does. Never waits, even on a
/// blocking socket.
///
/// # Safety
/// As for [`recv`](super::recv).
pub(super) unsafe fn recv_urgent(
    handle: &OpenSocket,
    buffers: &[Buffer],
    flags: i32,
) -> Result<Arrival> {
    let keep = flags & libc::MSG_PEEK != 0;
    let Some(byte) = urgent::recv(handle.client, handle.socket, keep)? else {
        return Ok(Arrival::default());
    };
    let Some(place) = buffers.iter().find(|buffer| buffer.len > 0) else {
        return Ok(Arrival { flags: libc::MSG_OOB | libc::MSG_TRUNC, ..Arrival::default() });
    };
    if flags & libc::MSG_TRUNC == 0 {
        // SAFETY: `place` is a buffer of at least one byte, valid for writes by the contract of
        // this function.
        unsafe { place.at.write(byte) };
    }
    Ok(Arrival { len: 1, flags: libc::MSG_OOB, ..Arrival::default() })
}

/// Returns whether a datagram socket accepts a send with MSG_OOB. As on Linux, UDP rejects the flag
/// for IPv4 peers (`udp_sendmsg`) and ignores it for IPv6 peers (`udpv6_sendmsg`). Ping sockets
/// reject it.
pub(super) fn takes_urgent(handle: &OpenSocket, to: Option<RawAddr>) -> bool {
    let over_v4 = || matches!(towards(handle, &to.unwrap_or_default()), Some(IpAddr::V4(_)));
    let family = handle.slot.family.load(Relaxed);
    handle.is_tcp() || handle.kind() == Kind::Datagram && family == address::INET6 && !over_v4()
}
