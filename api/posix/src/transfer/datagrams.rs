//! Sends and receives datagrams. A datagram may be sent in several parts (MSG_MORE, UDP_CORK).

use std::net::IpAddr;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

use towpath_client::{Buffer, WaitLimit, datagram};
use towpath_shm::control::call;
use towpath_shm::layout::{DatagramHeader, Kind, Plain, RawAddr, flags, option_bit};

use super::arrival::Arrival;
use super::peek::{move_peek_offset, peek_offset};
use super::streams::COUNT_MAX;
use crate::control::SendControl;
use crate::errno::fail;
use crate::handle::OpenSocket;
use crate::socket::{bind_any, peer};
use crate::{Result, address, interface};

/// Maximum number of datagrams into which UDP_SEGMENT splits one send (UDP_MAX_SEGMENTS of Linux).
const SEGMENTS_MAX: usize = 128;
/// Maximum payload of UDP over IPv4 in bytes: the maximum total length (RFC 791 §3.1) minus the
/// IPv4 and UDP headers.
const PAYLOAD_MAX_V4: usize = 65535 - 20 - 8;
/// Maximum payload of UDP over IPv6 in bytes. The IPv6 payload length excludes the IPv6 header (RFC
/// 8200 §3).
const PAYLOAD_MAX_V6: usize = 65535 - 8;
/// Maximum value of UDP's length field. On Linux, `udp_sendmsg` rejects longer datagrams before it
/// looks for a route; `udpv6_sendmsg` does not.
const LENGTH_MAX: usize = 65535;
/// Minimum value of IPV6_MTU in bytes, the maximum length of packets in which datagrams are sent
/// (RFC 8200 §5).
const FRAGMENT_SIZE_MIN: u32 = 1280;

/// Receives a datagram.
///
/// # Safety
/// As for [`recv`](super::recv).
pub(super) unsafe fn recv_datagram(
    handle: &OpenSocket,
    buffers: &[Buffer],
    flags: i32,
    limit: WaitLimit,
) -> Result<Arrival> {
    let keep = flags & libc::MSG_PEEK != 0;
    let attempt = || {
        // Only UDP sockets use the offset of SO_PEEK_OFF. Linux ignores it for ping sockets
        // (`ping_recvmsg`).
        let skip = if handle.kind() == Kind::Datagram { peek_offset(handle) } else { 0 };
        let skip = keep.then_some(skip);
        // SAFETY: the buffers are valid for writes, by the contract of this function.
        unsafe { datagram::recv(handle.client, handle.socket, buffers, skip) }
    };
    let Some(received) = handle.blocking(limit, attempt)? else {
        // No datagram: the socket is shut down for reading. As on Linux, a blocking call returns 0,
        // and a nonblocking call fails with EAGAIN.
        return if limit.nonblocking { fail(libc::EAGAIN) } else { Ok(Arrival::default()) };
    };
    let whole = received.header.len as usize;
    // As in Linux's `udp_recvmsg`, MSG_TRUNC is set unless the buffers can hold the whole datagram,
    // even if the read began at an offset.
    let room = Buffer::total(buffers);
    let truncated = room <= whole - received.skipped && room < whole;
    let len = if flags & libc::MSG_TRUNC != 0 { whole } else { received.copied };
    let flags = if truncated { libc::MSG_TRUNC } else { 0 };
    move_peek_offset(handle, keep, len);
    Ok(Arrival { len, header: Some(received.header), flags, report: None })
}

/// Sends a datagram.
///
/// # Safety
/// As for [`send`](super::send).
pub(super) unsafe fn send_datagram(
    handle: &OpenSocket,
    buffers: &[Buffer],
    to: Option<RawAddr>,
    control: &SendControl,
    limit: WaitLimit,
) -> Result<usize> {
    let len = Buffer::total(buffers);
    let header = datagram_header(handle, to, control)?;
    if len > LENGTH_MAX && handle.slot.family.load(Relaxed) == address::INET || len > COUNT_MAX {
        return fail(libc::EMSGSIZE);
    }
    let header = with_len(header, len)?;
    // SAFETY: the buffers are valid for reads, by the contract of this function.
    unsafe { send_whole(handle, &header, buffers, limit) }
}

/// Appends a part to the socket's corked datagram. The last part, which has no MSG_MORE, sends the
/// datagram.
///
/// # Safety
/// As for [`send`](super::send).
pub(super) unsafe fn send_part(
    handle: &OpenSocket,
    buffers: &[Buffer],
    more: bool,
    to: Option<RawAddr>,
    control: &SendControl,
    limit: WaitLimit,
) -> Result<usize> {
    let begin = || datagram_header(handle, to, control);
    let most = |header: &DatagramHeader| match towards(handle, &header.remote) {
        Some(IpAddr::V6(_)) => PAYLOAD_MAX_V6,
        _ => PAYLOAD_MAX_V4,
    };
    // SAFETY: the buffers are valid for reads, by the contract of this function.
    let whole = unsafe { handle.posix.cork.append(handle.socket, begin, buffers, more, most) }?;
    if let Some(whole) = whole {
        let header = with_len(whole.header, whole.bytes.len())?;
        let buffer = Buffer { at: whole.bytes.as_ptr().cast_mut(), len: whole.bytes.len() };
        // SAFETY: `buffer` describes the bytes of `whole`, which live longer than the call.
        unsafe { send_whole(handle, &header, &[buffer], limit) }?;
    }
    Ok(Buffer::total(buffers))
}

/// Sends a complete datagram with its header.
///
/// # Safety
/// As for [`send`](super::send).
unsafe fn send_whole(
    handle: &OpenSocket,
    header: &DatagramHeader,
    buffers: &[Buffer],
    limit: WaitLimit,
) -> Result<usize> {
    let (client, socket) = (handle.client, handle.socket);
    bind_any(handle)?;
    check_length(handle, header)?;
    // UDP_SEGMENT has no effect if the datagram fits one segment.
    let cut = u32::from(header.segment_size) < header.len;
    let header =
        &DatagramHeader { segment_size: if cut { header.segment_size } else { 0 }, ..*header };
    // SAFETY: the buffers are valid for reads, by the contract of this function.
    let attempt = || unsafe { datagram::send(client, socket, header, buffers) };
    handle.sending(limit, attempt)
}

/// Fails if a datagram is too long for its path. Only the engine knows the MTU of each path, so a
/// request to the engine is needed unless the datagram is short.
fn check_length(handle: &OpenSocket, header: &DatagramHeader) -> Result<()> {
    let longest = match header.segment_size {
        0 => header.len,
        size => header.len.min(size.into()),
    };
    let bits = handle.slot.option_bits.load(Relaxed);
    let refuses = bits & (option_bit::REFUSE_LONG | option_bit::REFUSE_LONG_V6) != 0;
    let least = match bits & option_bit::FRAGMENT_SIZE {
        0 => handle.client.datagram_mtu(),
        _ => handle.client.datagram_mtu().min(FRAGMENT_SIZE_MIN),
    };
    let long = longest + headers_len(handle, header) > least;
    // With UDP_SEGMENT, even a single datagram must not be fragmented (`udp_send_skb` of Linux).
    let asks = refuses || header.segment_size != 0;
    if header.len as usize <= PAYLOAD_MAX_V4 && !(asks && long) {
        return Ok(());
    }
    handle
        .call(call::CHECK_LENGTH, |request| {
            let bytes = header.as_bytes();
            request.len = bytes.len() as u32;
            request.data[..bytes.len()].copy_from_slice(bytes);
        })
        .map(drop)
}

/// Returns the length in bytes of the headers before the payload: IP without options (RFC 791 §3.1,
/// RFC 8200 §3), and UDP. For a ping socket, the program writes the ICMP header as part of the
/// payload.
fn headers_len(handle: &OpenSocket, header: &DatagramHeader) -> u32 {
    let ip = match towards(handle, &header.remote) {
        Some(IpAddr::V4(_)) => 20,
        // The value for `None` is not used, because a send without a destination fails.
        Some(IpAddr::V6(_)) | None => 40,
    };
    ip + if handle.kind() == Kind::Echo { 0 } else { 8 }
}

/// Returns whether UDP_CORK is set on the socket.
pub(super) fn is_corked(handle: &OpenSocket) -> bool {
    let bits = handle.slot.option_bits.load(Relaxed);
    bits & option_bit::UDP_CORK != 0
}

/// Sends the corked datagram when a program clears UDP_CORK. As on Linux, errors are not reported.
pub(crate) fn uncork(handle: &OpenSocket) {
    if handle.posix.cork.is_begun(handle.socket) {
        let limit = handle.send_limit(false);
        // SAFETY: the list of buffers is empty.
        let _ = unsafe { send_part(handle, &[], false, None, &SendControl::default(), limit) };
    }
}

/// Returns the header of a datagram. The caller must set its length.
fn datagram_header(
    handle: &OpenSocket,
    to: Option<RawAddr>,
    control: &SendControl,
) -> Result<DatagramHeader> {
    let family = handle.slot.family.load(Relaxed);
    let bits = handle.slot.option_bits.load(Relaxed);
    let remote = match to {
        None | Some(RawAddr { family: 0, .. }) => {
            if handle.slot.flags.load(Acquire) & flags::CONNECTED == 0 {
                return fail(libc::EDESTADDRREQ);
            }
            RawAddr::default()
        }
        Some(addr) if u32::from(addr.family) == address::INET6 && family == address::INET => {
            return fail(libc::EAFNOSUPPORT);
        }
        Some(RawAddr { port: 0, .. }) if handle.kind() == Kind::Datagram => {
            return fail(libc::EINVAL);
        }
        Some(addr)
            if bits & option_bit::BROADCAST == 0
                && interface::is_broadcast(handle.posix, &addr) =>
        {
            return fail(libc::EACCES);
        }
        Some(addr) => peer(handle.slot, addr, true)?,
    };
    let named = control.local.family != 0 || control.ifindex != 0;
    if named && !handle.posix.remembered.may_use_any_address(handle.socket) {
        interface::check_source(handle.posix, &control.local, control.ifindex)?;
    }
    let segment_size =
        control.segment_size.unwrap_or_else(|| handle.posix.remembered.segment_size(handle.socket));
    let over_v4 = || matches!(towards(handle, &remote), Some(IpAddr::V4(_)));
    if segment_size != 0 && bits & option_bit::NO_CHECK != 0 && over_v4() {
        // UDP_SEGMENT requires UDP checksums, which can be off only over IPv4 (`udp_send_skb` of
        // Linux).
        return fail(libc::EINVAL);
    }
    // Store the current TOS and TTL in the datagram's header. Otherwise a later setsockopt(2) could
    // affect this datagram before the engine sends it.
    let tos = match control.tos {
        DatagramHeader::DEFAULT => class_towards(handle, &remote),
        tos => tos,
    };
    let ttl = match control.ttl {
        DatagramHeader::DEFAULT => ttl_towards(handle, &remote),
        ttl => ttl,
    };
    Ok(DatagramHeader {
        len: 0,
        ifindex: control.ifindex,
        remote,
        local: control.local,
        time_ns: 0,
        tos,
        ttl,
        segment_size,
        reserved: 0,
        drops: 0,
    })
}

/// Returns the TTL or hop limit for a destination: IP_TTL or IPV6_UNICAST_HOPS, by its address
/// family. For multicast groups the engine chooses the value.
fn ttl_towards(handle: &OpenSocket, remote: &RawAddr) -> u16 {
    let set = match towards(handle, remote) {
        Some(ip) if ip.is_multicast() => None,
        Some(IpAddr::V4(_)) => Some(handle.slot.ttl.load(Relaxed).into()).filter(|ttl| *ttl != 0),
        Some(IpAddr::V6(_)) => handle.slot.hops.load(Relaxed).checked_sub(1),
        None => None,
    };
    set.unwrap_or(DatagramHeader::DEFAULT)
}

/// Returns the traffic class for a destination: IP_TOS or IPV6_TCLASS, by its address family.
fn class_towards(handle: &OpenSocket, remote: &RawAddr) -> u16 {
    match towards(handle, remote) {
        Some(IpAddr::V6(_)) => handle.slot.tclass.load(Relaxed) as u16,
        _ => handle.slot.tos.load(Relaxed).into(),
    }
}

/// Returns the IP address to which a datagram is sent: the address in its header, or else the
/// socket's peer.
pub(super) fn towards(handle: &OpenSocket, remote: &RawAddr) -> Option<IpAddr> {
    let remote = if remote.family == 0 { handle.slot.remote.load() } else { *remote };
    remote.to_socket_addr().map(|addr| addr.ip().to_canonical())
}

fn with_len(header: DatagramHeader, len: usize) -> Result<DatagramHeader> {
    let size = usize::from(header.segment_size);
    if size > 0 && len > size * SEGMENTS_MAX {
        return fail(libc::EINVAL);
    }
    Ok(DatagramHeader { len: len as u32, ..header })
}
