//! Reads the error queue of a socket, for recvmsg(2) with MSG_ERRQUEUE.

use std::sync::atomic::Ordering::Relaxed;

use towpath_client::Buffer;
use towpath_shm::control::{COPIED_REPORT, ControlReply, LOCAL_REPORT, STAMP_REPORT, call};
use towpath_shm::layout::{DatagramHeader, RawAddr, option_bit, setting};

use crate::errno::fail;
use crate::handle::OpenSocket;
use crate::transfer::Arrival;
use crate::{Result, address};

/// Origins of errors in a socket's error queue: SO_EE_ORIGIN_LOCAL, SO_EE_ORIGIN_ICMP and
/// SO_EE_ORIGIN_ICMP6.
const ORIGIN_LOCAL: u8 = 1;
const ORIGIN_ICMP: u8 = 2;
const ORIGIN_ICMP6: u8 = 3;
/// Origin of an entry with a transmit timestamp (SO_EE_ORIGIN_TIMESTAMPING).
const ORIGIN_TIMESTAMPING: u8 = 4;
/// Flag of SO_TIMESTAMPING: return transmit timestamps without the packet
/// (SOF_TIMESTAMPING_OPT_TSONLY).
const STAMP_ONLY: i32 = 1 << 11;
/// Origin and code of an entry about completed MSG_ZEROCOPY sends (SO_EE_ORIGIN_ZEROCOPY and
/// SO_EE_CODE_ZEROCOPY_COPIED).
const ORIGIN_ZERO_COPY: u8 = 5;
const CODE_COPIED: u8 = 1;
/// Lengths in bytes of the address and scope id of the host that reported an error. The engine's
/// reply begins with these fields.
const REPORTER: usize = 16;
const SCOPE: usize = 4;

/// An entry of a socket's error queue, without the bytes of the datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ErrorQueueEntry {
    errno: u32,
    kind: u8,
    code: u8,
    /// Value of the field `ee_info` of struct sock_extended_err: the path MTU in bytes, if the
    /// datagram was too long.
    info: u32,
    is_v4: bool,
    /// Whether this host has detected the error itself (SO_EE_ORIGIN_LOCAL), instead of receiving
    /// an ICMP message.
    is_local: bool,
    /// Transmit timestamp of the entry, as Unix time in nanoseconds; None: the entry has none. With
    /// a timestamp, `info` is the number of the datagram or byte, and `stamp` is SCM_TSTAMP_SND,
    /// _SCHED or _ACK.
    pub sent_ns: Option<u64>,
    stamp: u32,
    /// In an entry about MSG_ZEROCOPY, the number of the last completed send. `info` is the number
    /// of the first one.
    copied_to: Option<u32>,
    from: [u8; REPORTER],
    /// IPv6 scope id of the address `from`.
    scope: u32,
}

/// Removes and returns the oldest entry of the error queue. As on Linux, the call never waits, and
/// ignores MSG_PEEK.
///
/// # Safety
/// The buffers must be valid for writes.
pub unsafe fn recv(handle: &OpenSocket, buffers: &[Buffer]) -> Result<Arrival> {
    let reply = handle.call(call::ERROR_QUEUE, |_| {})?;
    match reply.b {
        STAMP_REPORT => return sent(handle, &reply),
        COPIED_REPORT => return Ok(copied(handle, &reply)),
        _ => {}
    }
    let Some((from, payload)) = reply.payload().split_first_chunk::<REPORTER>() else {
        return fail(libc::EAGAIN);
    };
    let Some((scope, payload)) = payload.split_first_chunk::<SCOPE>() else {
        return fail(libc::EAGAIN);
    };
    let scope = u32::from_ne_bytes(*scope);
    let is_v4 = u32::from(reply.addr.family) == address::INET || address::is_mapped(&reply.addr);
    let [code, kind, ..] = reply.b.to_le_bytes();
    let is_local = reply.b == LOCAL_REPORT;
    let (errno, info) = (reply.a, reply.slot);
    let report = ErrorQueueEntry {
        errno,
        kind,
        code,
        info,
        is_v4,
        is_local,
        sent_ns: None,
        stamp: 0,
        copied_to: None,
        from: *from,
        scope,
    };
    let mut len = 0;
    for buffer in buffers {
        let part = &payload[len..];
        let n = part.len().min(buffer.len);
        // SAFETY: `buffer` is valid for writes of its length, and `n` is at most the lengths of
        // `part` and `buffer`. The reply does not overlap the buffer.
        unsafe { std::ptr::copy_nonoverlapping(part.as_ptr(), buffer.at, n) };
        len += n;
    }
    let cut = if len < payload.len() { libc::MSG_TRUNC } else { 0 };
    let header = DatagramHeader { remote: reply.addr, ..DatagramHeader::default() };
    let flags = libc::MSG_ERRQUEUE | cut;
    Ok(Arrival { len, header: Some(header), flags, report: Some(report) })
}

/// Returns an entry with a transmit timestamp. The entry never contains the packet, as with
/// SOF_TIMESTAMPING_OPT_TSONLY. If the program of a stream has not set that flag, the entry is
/// marked as truncated (MSG_TRUNC).
fn sent(handle: &OpenSocket, reply: &ControlReply) -> Result<Arrival> {
    let Some(&time) = reply.payload().first_chunk::<8>() else { return fail(libc::EAGAIN) };
    let sent_ns = Some(u64::from_ne_bytes(time));
    let mut arrival = about_sends(ErrorQueueEntry {
        errno: libc::ENOMSG as u32,
        sent_ns,
        stamp: reply.a,
        ..ErrorQueueEntry::without_packet(handle, reply.slot)
    });
    let flags = handle.remembered(libc::SOL_SOCKET, libc::SO_TIMESTAMPING).unwrap_or(0);
    if handle.is_tcp() && flags & STAMP_ONLY == 0 {
        arrival.flags |= libc::MSG_TRUNC;
    }
    Ok(arrival)
}

/// Counts a send with MSG_ZEROCOPY on a socket with SO_ZEROCOPY. Its number identifies it in the
/// error queue, when the send is complete. On a stream, calls that send no bytes are not counted.
pub(crate) fn note_zero_copy(handle: &OpenSocket, sent: Result<usize>) {
    let is_on = handle.slot.option_bits.load(Relaxed) & option_bit::ZERO_COPY != 0;
    if is_on && sent.is_ok_and(|len| len > 0 || !handle.is_tcp()) {
        handle.client.setting(handle.socket, setting::ZERO_COPY, 1);
    }
}

/// Requests transmit timestamps for the bytes that a send has queued, if SO_TIMESTAMPING is set on
/// the stream.
pub(crate) fn note_stamped(handle: &OpenSocket, sent: Result<usize>) {
    let is_on = handle.slot.option_bits.load(Relaxed) & option_bit::STAMPED_STREAM != 0;
    if is_on && sent.is_ok_and(|len| len > 0) {
        let end = handle.slot.tx_tail.load(Relaxed);
        handle.client.setting(handle.socket, setting::STAMP, u64::from(end));
    }
}

/// Returns the entry that reports completed sends with MSG_ZEROCOPY. The program may reuse their
/// memory.
fn copied(handle: &OpenSocket, reply: &ControlReply) -> Arrival {
    let copied_to = Some(reply.a);
    let about = ErrorQueueEntry::without_packet(handle, reply.slot);
    about_sends(ErrorQueueEntry { code: CODE_COPIED, copied_to, ..about })
}

fn about_sends(report: ErrorQueueEntry) -> Arrival {
    Arrival { len: 0, header: None, flags: libc::MSG_ERRQUEUE, report: Some(report) }
}

impl ErrorQueueEntry {
    fn without_packet(handle: &OpenSocket, info: u32) -> Self {
        Self {
            errno: 0,
            kind: 0,
            code: 0,
            info,
            is_v4: handle.slot.family.load(Relaxed) == address::INET,
            is_local: true,
            sent_ns: None,
            stamp: 0,
            copied_to: None,
            from: [0; REPORTER],
            scope: 0,
        }
    }

    /// Returns level, type and data of the control message about this entry. The data is a `struct
    /// sock_extended_err`, followed by the address of the host that reported the error.
    pub fn control(&self, handle: &OpenSocket) -> (i32, i32, Vec<u8>) {
        let v4_socket = handle.slot.family.load(Relaxed) == address::INET;
        let origin = match (self.is_local, self.is_v4) {
            _ if self.sent_ns.is_some() => ORIGIN_TIMESTAMPING,
            _ if self.copied_to.is_some() => ORIGIN_ZERO_COPY,
            (true, _) => ORIGIN_LOCAL,
            (false, true) => ORIGIN_ICMP,
            (false, false) => ORIGIN_ICMP6,
        };
        let mut data = self.errno.to_ne_bytes().to_vec();
        data.extend([origin, self.kind, self.code, 0]);
        // For a timestamp, ee_info contains the kind of timestamp, and ee_data the number of the
        // datagram or byte.
        let about = match (self.sent_ns, self.copied_to) {
            (Some(_), _) => [self.stamp, self.info],
            (None, last) => [self.info, last.unwrap_or(0)],
        };
        data.extend(about.map(u32::to_ne_bytes).concat());
        let family = if self.is_v4 { address::INET } else { address::INET6 };
        let from = RawAddr {
            family: family as u16,
            ip: self.from,
            scope: self.scope,
            ..RawAddr::default()
        };
        let (level, kind, family) = if v4_socket {
            (libc::IPPROTO_IP, libc::IP_RECVERR, address::INET)
        } else {
            (libc::IPPROTO_IPV6, libc::IPV6_RECVERR, address::INET6)
        };
        let (mut name, len) = address::encode(&address::shown(from, family));
        if self.is_local {
            name[..len].fill(0);
        }
        data.extend(&name[..len]);
        (level, kind, data)
    }
}
