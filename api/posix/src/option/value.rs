//! Options that are implemented by their own code, because no `Effect` of the option table
//! describes them.

use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

use towpath_ring::program_fifo;
use towpath_shm::layout::{Kind, option_bit, setting};

use super::form::{check_range, int, int_of, or};
use super::place::{engine_get, engine_set, is_bound, set_bit};
use super::table::{
    IP_LOCAL_PORT_RANGE, SO_ATTACH_BPF, SO_ATTACH_REUSEPORT_EBPF, SO_BINDTOIFINDEX, SO_LOCK_FILTER,
    TCP_ULP,
};
use super::{filter, tcp};
use crate::errno::fail;
use crate::handle::OpenSocket;
use crate::privilege::{CAP_NET_ADMIN, CAP_NET_RAW, may};
use crate::{Errno, Result, interface, transfer};

/// Maximum value in bytes of SO_RCVBUF and SO_SNDBUF, as net.core.rmem_max and wmem_max on Linux.
/// As on Linux, the value that a program sets is doubled.
const BUFFER_MAX: i32 = 4 << 20;
/// Maximum in bytes to which SO_SNDBUFFORCE and SO_RCVBUFFORCE can be set: half of the largest
/// buffer.
const BUFFER_FORCED_MAX: u32 = 8 << 20;
/// Minimum size of a send buffer in bytes (SOCK_MIN_SNDBUF). [`RCVBUF_MIN`] is that of a receive
/// buffer (SOCK_MIN_RCVBUF).
const SNDBUF_MIN: u32 = 4608;
const RCVBUF_MIN: u32 = 2304;
/// Default buffer sizes in bytes: TCP send and receive buffers (net.ipv4.tcp_wmem and tcp_rmem),
/// and those of datagram sockets (net.core.rmem_default).
const TCP_SNDBUF_DEFAULT: u32 = 16384;
const TCP_RCVBUF_DEFAULT: u32 = 131_072;
const DATAGRAM_BUFFER_DEFAULT: u32 = 212_992;
const TTL_DEFAULT: u32 = 64;
/// Minimum MTU of an IPv6 link in bytes (RFC 8200 §5), which is also the minimum of IPV6_MTU.
const IPV6_MIN_MTU: i32 = 1280;
const RCVTIMEO_NEW: i32 = 66;
const SNDTIMEO_NEW: i32 = 67;
const SO_COOKIE: i32 = 57;
/// Connection states, as numbered in `struct tcp_info`.
const TCP_CLOSE: u32 = 7;
const TCP_LISTEN: u32 = 10;
/// Flags of SO_TIMESTAMPING. _TX_SOFTWARE and _RX_SOFTWARE generate timestamps, and _SOFTWARE
/// reports them. _OPT_ID numbers datagrams, so that a program can match a timestamp to its
/// datagram.
const STAMP_TX: u32 = 1 << 1;
const STAMP_RX: u32 = 1 << 3;
const STAMP_SOFTWARE: u32 = 1 << 4;
const STAMP_ID: u32 = 1 << 7;
/// Flags of SO_TIMESTAMPING. _TX_SCHED and _TX_ACK create timestamps when data is scheduled or
/// acknowledged. _OPT_ID_TCP numbers the bytes of a stream.
const STAMP_SCHED: u32 = 1 << 8;
const STAMP_ACK: u32 = 1 << 9;
const STAMP_ID_TCP: u32 = 1 << 16;
/// Flags of SO_TIMESTAMPING without effect. The stack has no hardware timestamps: _TX_HARDWARE,
/// _RX_HARDWARE, _SYS_HARDWARE, _RAW_HARDWARE and _OPT_TX_SWHW. The stack always does what
/// _OPT_CMSG and _OPT_TSONLY request.
const STAMP_NEEDLESS: u32 = 1 | 1 << 2 | 1 << 5 | 1 << 6 | 1 << 10 | 1 << 11 | 1 << 14;
/// Maximum value of SO_PRIORITY for programs without privileges.
const PRIORITY_MAX: i32 = 6;
/// Value in microseconds that is stored for a negative SO_RCVTIMEO or SO_SNDTIMEO, with which calls
/// never wait. getsockopt returns it as 0.
const AT_ONCE_US: u32 = 1;

pub(super) fn get_special(handle: &OpenSocket, level: i32, name: i32) -> Result<Vec<u8>> {
    let slot = handle.slot;
    let bit = |bit: u32| int(i32::from(slot.option_bits.load(Relaxed) & bit != 0));
    let set_before = |default| int(handle.remembered(level, name).unwrap_or(default));
    Ok(match (level, name) {
        (libc::SOL_SOCKET, _) => return get_socket_level(handle, name),
        (libc::IPPROTO_UDP, libc::UDP_CORK) => bit(option_bit::UDP_CORK),
        (libc::IPPROTO_TCP, _) => return tcp::get(handle, name),
        (libc::IPPROTO_IP, libc::IP_TOS) => int(slot.tos.load(Relaxed).into()),
        (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => int(slot.tclass.load(Relaxed) as i32),
        (libc::IPPROTO_IP, libc::IP_TTL) => match slot.ttl.load(Relaxed) {
            0 => int(TTL_DEFAULT as i32),
            set => int(set.into()),
        },
        (libc::IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS) => {
            int(slot.hops.load(Relaxed).checked_sub(1).map_or(TTL_DEFAULT as i32, i32::from))
        }
        (libc::IPPROTO_IP, libc::IP_OPTIONS) => Vec::new(),
        (libc::IPPROTO_IP, libc::IP_RECVOPTS | libc::IP_RETOPTS | IP_LOCAL_PORT_RANGE)
        | (libc::IPPROTO_IPV6, libc::IPV6_DONTFRAG) => set_before(0),
        // The value of IP_MULTICAST_IF is an IPv4 address in network byte order; 0 means any.
        (libc::IPPROTO_IP, libc::IP_MULTICAST_IF) => set_before(0),
        (libc::IPPROTO_IP, libc::IP_MTU_DISCOVER)
        | (libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER) => set_before(libc::IP_PMTUDISC_WANT),
        (libc::IPPROTO_IPV6, libc::IPV6_MTU) => engine_get(handle, level, name)?,
        (libc::IPPROTO_IP, libc::IP_MULTICAST_TTL | libc::IP_MULTICAST_LOOP)
        | (libc::IPPROTO_IPV6, libc::IPV6_MULTICAST_HOPS) => set_before(1),
        (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY) => bit(option_bit::V6ONLY),
        _ => return fail(libc::ENOPROTOOPT),
    })
}

fn get_socket_level(handle: &OpenSocket, name: i32) -> Result<Vec<u8>> {
    let slot = handle.slot;
    let bit = |bit: u32| int(i32::from(slot.option_bits.load(Relaxed) & bit != 0));
    let tcp = handle.is_tcp();
    Ok(match name {
        libc::SO_TYPE => int(if tcp { libc::SOCK_STREAM } else { libc::SOCK_DGRAM }),
        libc::SO_ERROR => int(pending_error(handle)),
        libc::SO_SNDBUF if tcp => or(slot.sndbuf.load(Relaxed), sndbuf_in_use(handle)),
        libc::SO_SNDBUF => or(slot.sndbuf.load(Relaxed), DATAGRAM_BUFFER_DEFAULT),
        libc::SO_RCVBUF if tcp => match slot.rcvbuf.load(Relaxed) {
            0 => int(rcvbuf_in_use(handle)? as i32),
            set => int(set as i32),
        },
        libc::SO_RCVBUF => or(slot.rcvbuf.load(Relaxed), DATAGRAM_BUFFER_DEFAULT),
        libc::SO_LINGER => {
            let seconds = match slot.linger.load(Relaxed) {
                // SO_LINGER is off. Return the time that the program last set, as Linux does.
                0 => handle.remembered(libc::SOL_SOCKET, name).unwrap_or(0),
                linger => (linger - 1) as i32,
            };
            [int(i32::from(slot.linger.load(Relaxed) != 0)), int(seconds)].concat()
        }
        // Return a struct ucred that names no process, as Linux does: PID 0, user and group -1.
        libc::SO_PEERCRED => [int(0), int(-1), int(-1)].concat(),
        libc::SO_PEEK_OFF => int((slot.peek_off.load(Relaxed) as i32).wrapping_sub(1)),
        libc::SO_RCVLOWAT => or(slot.rcvlowat.load(Relaxed), 1),
        libc::SO_RCVTIMEO | RCVTIMEO_NEW => timeval(slot.rcvtimeo_us.load(Relaxed)),
        libc::SO_SNDTIMEO | SNDTIMEO_NEW => timeval(slot.sndtimeo_us.load(Relaxed)),
        libc::SO_TIMESTAMP => bit(option_bit::TIMESTAMP),
        libc::SO_TIMESTAMPNS => bit(option_bit::TIMESTAMPNS),
        libc::SO_TIMESTAMPING => {
            let flags = handle.remembered(libc::SOL_SOCKET, name).unwrap_or(0);
            // Return a struct so_timestamping. Its second field, bind_phc, is always 0.
            [int(flags), int(0)].concat()
        }
        libc::SO_ZEROCOPY => bit(option_bit::ZERO_COPY),
        SO_LOCK_FILTER => engine_get(handle, libc::SOL_SOCKET, name)?,
        libc::SO_PRIORITY => int(handle.remembered(libc::SOL_SOCKET, name).unwrap_or(0)),
        libc::SO_BINDTODEVICE => {
            let mut name = engine_get(handle, libc::SOL_SOCKET, name)?;
            if !name.is_empty() {
                name.push(0);
            }
            name
        }
        SO_BINDTOIFINDEX | libc::SO_MAX_PACING_RATE => engine_get(handle, libc::SOL_SOCKET, name)?,
        libc::SO_ACCEPTCONN => int(i32::from(handle.kind() == Kind::Listener)),
        libc::SO_MARK => int(0),
        libc::SO_PROTOCOL => int(slot.protocol.load(Relaxed) as i32),
        libc::SO_DOMAIN => int(slot.family.load(Relaxed) as i32),
        SO_COOKIE => {
            let cookie = u64::from(handle.socket.generation) << 32 | u64::from(handle.socket.slot);
            cookie.to_ne_bytes().to_vec()
        }
        libc::SO_MEMINFO => meminfo(handle)?,
        _ => return fail(libc::ENOPROTOOPT),
    })
}

/// Returns the words of SO_MEMINFO: receive memory, SO_RCVBUF, send memory, SO_SNDBUF, reserved
/// memory, queued send memory, option memory, backlog, and drops.
fn meminfo(handle: &OpenSocket) -> Result<Vec<u8>> {
    let buffer = |name| int_of(libc::SOL_SOCKET, &get_socket_level(handle, name)?);
    let (unread, queued) = match handle.kind() {
        Kind::Listener => (0, 0),
        _ => (program_fifo::unread(handle.slot), program_fifo::queued(handle.slot)),
    };
    let (unread, queued) = (unread as i32, queued as i32);
    let (recv, send) = (buffer(libc::SO_RCVBUF)?, buffer(libc::SO_SNDBUF)?);
    Ok([unread, recv, queued, send, 0, queued, 0, 0, 0].map(int).concat())
}

pub(super) fn set_special(handle: &OpenSocket, level: i32, name: i32, bytes: &[u8]) -> Result<()> {
    match level {
        libc::SOL_SOCKET => set_socket_level(handle, name, bytes),
        libc::IPPROTO_UDP => {
            let on = int_of(level, bytes)? != 0;
            set_bit(handle, option_bit::UDP_CORK, on);
            if !on {
                transfer::uncork(handle);
            }
            Ok(())
        }
        libc::IPPROTO_TCP if name == TCP_ULP => fail(libc::ENOENT),
        libc::IPPROTO_TCP => tcp::set(handle, name, int_of(level, bytes)?),
        libc::IPPROTO_IP if name == libc::IP_MULTICAST_IF => set_multicast_if(handle, bytes),
        libc::IPPROTO_IP if name == IP_LOCAL_PORT_RANGE => set_local_ports(handle, bytes),
        libc::IPPROTO_IP if name == libc::IP_MTU_DISCOVER => {
            set_mtu_discovery(handle, level, name, int_of(level, bytes)?)
        }
        libc::IPPROTO_IPV6 if name == libc::IPV6_MTU_DISCOVER => {
            set_mtu_discovery(handle, level, name, int_of(level, bytes)?)
        }
        libc::IPPROTO_IPV6 if name == libc::IPV6_DONTFRAG => {
            set_dont_fragment(handle, int_of(level, bytes)? != 0);
            Ok(())
        }
        libc::IPPROTO_IPV6 if name == libc::IPV6_MTU => {
            set_fragment_size(handle, int_of(level, bytes)?)
        }
        libc::IPPROTO_IP | libc::IPPROTO_IPV6 => set_ip(handle, level, name, bytes),
        _ => fail(libc::ENOPROTOOPT),
    }
}

/// Sets IP_LOCAL_PORT_RANGE. The lower 16 bits of the value are the lower bound, the upper 16 bits
/// the upper bound. 0 means no bound.
fn set_local_ports(handle: &OpenSocket, bytes: &[u8]) -> Result<()> {
    let Ok([a, b, c, d]) = <[u8; 4]>::try_from(bytes) else { return fail(libc::EINVAL) };
    let value = i32::from_ne_bytes([a, b, c, d]);
    let (least, most) = (value as u16, (value >> 16) as u16);
    if least != 0 && most != 0 && least > most {
        return fail(libc::EINVAL);
    }
    engine_set(handle, libc::IPPROTO_IP, IP_LOCAL_PORT_RANGE, bytes)?;
    handle.remember(libc::IPPROTO_IP, IP_LOCAL_PORT_RANGE, value);
    Ok(())
}

/// Sets IP_MTU_DISCOVER or IPV6_MTU_DISCOVER. The engine fragments or refuses long datagrams. A bit
/// of the socket's shared state makes send(2) ask the engine whether it would refuse a datagram.
fn set_mtu_discovery(handle: &OpenSocket, level: i32, name: i32, mode: i32) -> Result<()> {
    check_range(mode, libc::IP_PMTUDISC_DONT, libc::IP_PMTUDISC_OMIT)?;
    handle.remember(level, name, mode);
    match level {
        libc::IPPROTO_IP => {
            set_bit(handle, option_bit::REFUSE_LONG, refuses(mode));
            handle.client.setting(handle.socket, setting::MTU_DISCOVER, mode as u64);
        }
        _ => tell_lengths_v6(handle),
    }
    Ok(())
}

fn refuses(mode: i32) -> bool {
    [libc::IP_PMTUDISC_DO, libc::IP_PMTUDISC_PROBE, libc::IP_PMTUDISC_INTERFACE].contains(&mode)
}

/// Sets IPV6_DONTFRAG, with which datagrams that are too long are refused, regardless of
/// IPV6_MTU_DISCOVER.
fn set_dont_fragment(handle: &OpenSocket, on: bool) {
    handle.remember(libc::IPPROTO_IPV6, libc::IPV6_DONTFRAG, i32::from(on));
    tell_lengths_v6(handle);
}

/// Sends the engine one mode for both IPV6_MTU_DISCOVER and IPV6_DONTFRAG. IPV6_DONTFRAG selects
/// the mode that rejects datagrams above the same maximum length.
fn tell_lengths_v6(handle: &OpenSocket) {
    let asked = |name| handle.remembered(libc::IPPROTO_IPV6, name);
    let mode = asked(libc::IPV6_MTU_DISCOVER).unwrap_or(libc::IP_PMTUDISC_WANT);
    let mode = match mode {
        _ if asked(libc::IPV6_DONTFRAG).unwrap_or(0) == 0 || refuses(mode) => mode,
        // Use IP_PMTUDISC_PROBE. As with IP_PMTUDISC_OMIT, the MTU of the interface limits a
        // datagram, not that of the path.
        libc::IP_PMTUDISC_OMIT => libc::IP_PMTUDISC_PROBE,
        _ => libc::IP_PMTUDISC_DO,
    };
    set_bit(handle, option_bit::REFUSE_LONG_V6, refuses(mode));
    handle.client.setting(handle.socket, setting::MTU_DISCOVER_V6, mode as u64);
}

/// Sets IPV6_MTU, the maximum length in bytes of packets in which datagrams are sent. getsockopt(2)
/// returns the path MTU instead.
fn set_fragment_size(handle: &OpenSocket, size: i32) -> Result<()> {
    if size != 0 {
        check_range(size, IPV6_MIN_MTU, i32::MAX)?;
    }
    set_bit(handle, option_bit::FRAGMENT_SIZE, size != 0);
    handle.client.setting(handle.socket, setting::FRAGMENT_SIZE, size as u64);
    Ok(())
}

fn set_socket_level(handle: &OpenSocket, name: i32, bytes: &[u8]) -> Result<()> {
    let slot = handle.slot;
    match name {
        libc::SO_SNDBUF => set_buffer(handle, BufferSide::Send, BUFFER_MAX as u32, bytes),
        libc::SO_RCVBUF => set_buffer(handle, BufferSide::Recv, BUFFER_MAX as u32, bytes),
        libc::SO_SNDBUFFORCE | libc::SO_RCVBUFFORCE if !may(CAP_NET_ADMIN) => fail(libc::EPERM),
        libc::SO_SNDBUFFORCE => set_buffer(handle, BufferSide::Send, BUFFER_FORCED_MAX, bytes),
        libc::SO_RCVBUFFORCE => set_buffer(handle, BufferSide::Recv, BUFFER_FORCED_MAX, bytes),
        libc::SO_ATTACH_FILTER => filter::attach(handle, bytes),
        libc::SO_DETACH_FILTER | SO_LOCK_FILTER => filter::set_int(handle, name, bytes),
        SO_ATTACH_BPF | SO_ATTACH_REUSEPORT_EBPF => filter::attach_kernels(bytes),
        libc::SO_TIMESTAMPING => set_timestamping(handle, bytes),
        libc::SO_LINGER => set_linger(handle, bytes),
        libc::SO_RCVLOWAT => set_low_water(handle, int_of(libc::SOL_SOCKET, bytes)?),
        libc::SO_PEEK_OFF => {
            let offset = int_of(libc::SOL_SOCKET, bytes)?;
            slot.peek_off.store(offset.wrapping_add(1) as u32, Relaxed);
            set_bit(handle, option_bit::PEEK_OFF, offset >= 0);
            Ok(())
        }
        libc::SO_ZEROCOPY if handle.kind() == Kind::Echo => fail(libc::EOPNOTSUPP),
        libc::SO_ZEROCOPY => {
            let value = int_of(libc::SOL_SOCKET, bytes)?;
            check_range(value, 0, 1)?;
            set_bit(handle, option_bit::ZERO_COPY, value != 0);
            Ok(())
        }
        libc::SO_RCVTIMEO | RCVTIMEO_NEW => set_timeout(&slot.rcvtimeo_us, bytes),
        libc::SO_SNDTIMEO | SNDTIMEO_NEW => set_timeout(&slot.sndtimeo_us, bytes),
        libc::SO_MARK => fail(libc::EPERM),
        libc::SO_TIMESTAMP | libc::SO_TIMESTAMPNS => {
            let on = int_of(libc::SOL_SOCKET, bytes)? != 0;
            set_bit(handle, option_bit::TIMESTAMP, on && name == libc::SO_TIMESTAMP);
            set_bit(handle, option_bit::TIMESTAMPNS, on && name == libc::SO_TIMESTAMPNS);
            Ok(())
        }
        libc::SO_PRIORITY => {
            let value = int_of(libc::SOL_SOCKET, bytes)?;
            let is_privileged = || may(CAP_NET_RAW) || may(CAP_NET_ADMIN);
            if !(0..=PRIORITY_MAX).contains(&value) && !is_privileged() {
                return fail(libc::EPERM);
            }
            handle.remember(libc::SOL_SOCKET, name, value);
            Ok(())
        }
        libc::SO_BINDTODEVICE => {
            let most = &bytes[..bytes.len().min(libc::IFNAMSIZ - 1)];
            let name = most.split(|&byte| byte == 0).next().unwrap_or_default();
            let is_there = || {
                interface::list(handle.posix)
                    .map(|list| list.iter().any(|i| interface::name(i) == name))
            };
            if !name.is_empty() && !is_there()? {
                return fail(libc::ENODEV);
            }
            check_device_change(handle)?;
            engine_set(handle, libc::SOL_SOCKET, libc::SO_BINDTODEVICE, name)
        }
        SO_BINDTOIFINDEX => {
            int_of(libc::SOL_SOCKET, bytes)?;
            check_device_change(handle)?;
            engine_set(handle, libc::SOL_SOCKET, SO_BINDTOIFINDEX, bytes)
        }
        libc::SO_MAX_PACING_RATE => set_max_pacing_rate(handle, bytes),
        _ => fail(libc::ENOPROTOOPT),
    }
}

/// Sets SO_MAX_PACING_RATE in bytes per second. The value is a long or an unsigned int; the largest
/// unsigned int means no limit.
fn set_max_pacing_rate(handle: &OpenSocket, bytes: &[u8]) -> Result<()> {
    let rate = match *bytes {
        [a, b, c, d, e, f, g, h, ..] => u64::from_ne_bytes([a, b, c, d, e, f, g, h]),
        _ => match int_of(libc::SOL_SOCKET, bytes)? as u32 {
            u32::MAX => u64::MAX,
            rate => u64::from(rate),
        },
    };
    engine_set(handle, libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE, &rate.to_ne_bytes())
}

/// Checks whether a program may bind a socket to another device, like Linux's `sock_bindtoindex`.
/// CAP_NET_RAW is required if the socket is already bound to a device.
fn check_device_change(handle: &OpenSocket) -> Result<()> {
    let bound = || engine_get(handle, libc::SOL_SOCKET, SO_BINDTOIFINDEX);
    if may(CAP_NET_RAW) || bound()?.iter().all(|&byte| byte == 0) {
        Ok(())
    } else {
        fail(libc::EPERM)
    }
}

fn set_multicast_if(handle: &OpenSocket, bytes: &[u8]) -> Result<()> {
    engine_set(handle, libc::IPPROTO_IP, libc::IP_MULTICAST_IF, bytes)?;
    // The value is a struct in_addr, or a struct ip_mreq or ip_mreqn with the address after the
    // group.
    let at = if bytes.len() >= 8 { 4 } else { 0 };
    let address = int_of(libc::IPPROTO_IP, bytes.get(at..).unwrap_or_default())?;
    handle.remember(libc::IPPROTO_IP, libc::IP_MULTICAST_IF, address);
    Ok(())
}

/// Returns SO_SNDBUF in bytes for a socket whose program has not set it. For a connection, it is
/// the larger of the current limit and the maximum of autotuning.
fn sndbuf_in_use(handle: &OpenSocket) -> u32 {
    let slot = handle.slot;
    let in_use = slot.tx_limit.load(Relaxed).max(slot.tx_goal.load(Relaxed));
    if handle.is_connected() { in_use.max(TCP_SNDBUF_DEFAULT) } else { TCP_SNDBUF_DEFAULT }
}

/// Returns SO_RCVBUF in bytes for a socket whose program has not set it: the current size set by
/// autotuning, or the default.
fn rcvbuf_in_use(handle: &OpenSocket) -> Result<u32> {
    if !handle.is_connected() {
        return Ok(TCP_RCVBUF_DEFAULT);
    }
    let told = engine_get(handle, libc::SOL_SOCKET, libc::SO_RCVBUF)?;
    let in_use = int_of(libc::SOL_SOCKET, &told)? as u32;
    Ok(in_use.max(TCP_RCVBUF_DEFAULT))
}

enum BufferSide {
    Send,
    Recv,
}

fn set_buffer(handle: &OpenSocket, side: BufferSide, most: u32, bytes: &[u8]) -> Result<()> {
    let asked = int_of(libc::SOL_SOCKET, bytes)? as u32;
    let (word, setting, least) = match side {
        BufferSide::Send => (&handle.slot.sndbuf, setting::SNDBUF, SNDBUF_MIN),
        BufferSide::Recv => (&handle.slot.rcvbuf, setting::RCVBUF, RCVBUF_MIN),
    };
    // Limit the value as an unsigned number, then double it, like Linux's `sock_setsockopt`.
    let cut = asked.min(most);
    word.store(cut.saturating_mul(2).max(least), Relaxed);
    handle.client.setting(handle.socket, setting, u64::from(cut));
    Ok(())
}

/// Sets SO_RCVLOWAT. As on Linux (`tcp_set_rcvlowat`), a lower value may make the socket readable,
/// which wakes waiting threads. The engine wakes them, because they may be in other processes.
fn set_low_water(handle: &OpenSocket, asked: i32) -> Result<()> {
    let bytes = if asked < 0 { i32::MAX } else { asked.max(1) } as u32;
    let before = handle.slot.rcvlowat.swap(bytes, Relaxed);
    if bytes < before {
        handle.client.setting(handle.socket, setting::RCVLOWAT, u64::from(bytes));
    }
    Ok(())
}

fn set_linger(handle: &OpenSocket, bytes: &[u8]) -> Result<()> {
    let [a, b, c, d, e, f, g, h, ..] = *bytes else {
        return fail(libc::EINVAL);
    };
    let on = i32::from_ne_bytes([a, b, c, d]) != 0;
    let seconds = i32::from_ne_bytes([e, f, g, h]).max(0) as u32;
    let value = if on { seconds.saturating_add(1) } else { 0 };
    if on {
        handle.remember(libc::SOL_SOCKET, libc::SO_LINGER, seconds as i32);
    }
    handle.slot.linger.store(value, Relaxed);
    handle.client.setting(handle.socket, setting::LINGER, u64::from(value));
    Ok(())
}

/// Sets SO_TIMESTAMPING. The value is a struct so_timestamping, or only its flags.
fn set_timestamping(handle: &OpenSocket, bytes: &[u8]) -> Result<()> {
    let flags = int_of(libc::SOL_SOCKET, bytes)? as u32;
    let kinds = STAMP_TX | STAMP_SCHED | STAMP_ACK;
    let about_sent = kinds | STAMP_ID | STAMP_ID_TCP;
    if flags & !(about_sent | STAMP_RX | STAMP_SOFTWARE | STAMP_NEEDLESS) != 0 {
        return fail(libc::ENOPROTOOPT);
    }
    let has = |all: u32| flags & all == all;
    let before = handle.remembered(libc::SOL_SOCKET, libc::SO_TIMESTAMPING).unwrap_or(0) as u32;
    // As Linux's `sock_set_timestamping` does, refuse to number the bytes of a stream that is not
    // connected.
    let numbers = has(STAMP_ID) && before & STAMP_ID == 0 && handle.is_tcp();
    let is_unconnected = matches!(handle.slot.state.load(Relaxed), TCP_CLOSE | TCP_LISTEN);
    if has(STAMP_ID_TCP) && !has(STAMP_ID) || numbers && is_unconnected {
        return fail(libc::EINVAL);
    }
    set_bit(handle, option_bit::TIMESTAMPING_RX, has(STAMP_RX | STAMP_SOFTWARE));
    handle.remember(libc::SOL_SOCKET, libc::SO_TIMESTAMPING, flags as i32);
    let sent = if has(STAMP_SOFTWARE) { flags & about_sent } else { 0 };
    if handle.is_tcp() {
        set_bit(handle, option_bit::STAMPED_STREAM, sent & kinds != 0);
    }
    handle.client.setting(handle.socket, setting::TIMESTAMPING, u64::from(sent));
    Ok(())
}

fn set_timeout(word: &AtomicU32, bytes: &[u8]) -> Result<()> {
    let Some((seconds, us)) = bytes.get(..8).zip(bytes.get(8..16)) else {
        return fail(libc::EINVAL);
    };
    let number =
        |bytes: &[u8]| bytes.try_into().map(i64::from_ne_bytes).map_err(|_| Errno(libc::EINVAL));
    let (seconds, us) = (number(seconds)?, number(us)?);
    if !(0..1_000_000).contains(&us) {
        return fail(libc::EDOM);
    }
    let total = match seconds.saturating_mul(1_000_000).saturating_add(us) {
        // Store a negative timeout as [`AT_ONCE_US`], because Linux never waits with one.
        _ if seconds < 0 => i64::from(AT_ONCE_US),
        total if total == i64::from(AT_ONCE_US) => total + 1,
        total => total,
    };
    // A timeout that exceeds 32 bits of microseconds (71 minutes) is stored as 0, which means no
    // timeout.
    word.store(u32::try_from(total).unwrap_or(0), Relaxed);
    Ok(())
}

fn timeval(us: u32) -> Vec<u8> {
    let us = if us == AT_ONCE_US { 0 } else { us };
    [i64::from(us / 1_000_000).to_ne_bytes(), i64::from(us % 1_000_000).to_ne_bytes()].concat()
}

fn set_ip(handle: &OpenSocket, level: i32, name: i32, bytes: &[u8]) -> Result<()> {
    let slot = handle.slot;
    let tell =
        |setting, value: u32| handle.client.setting(handle.socket, setting, u64::from(value));
    // Mask the two ECN bits (INET_ECN_MASK) for TCP, because TCP controls them itself.
    let tos_mask = if handle.is_tcp() { !3 } else { !0 };
    match (level, name) {
        (libc::IPPROTO_IP, libc::IP_TOS) => {
            let value = (int_of(level, bytes)? & 0xff & tos_mask) as u32;
            slot.tos.store(value as u8, Relaxed);
            tell(setting::TOS, value);
        }
        (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
            let value = int_of(level, bytes)?;
            check_range(value, -1, 255)?;
            let value = (value.max(0) & tos_mask) as u32;
            slot.tclass.store(value, Relaxed);
            tell(setting::TRAFFIC_CLASS, value);
        }
        (libc::IPPROTO_IP, libc::IP_TTL) => {
            let value = int_of(level, bytes)?;
            if value != -1 {
                check_range(value, 1, 255)?;
            }
            let value = value.max(0) as u32;
            slot.ttl.store(value as u8, Relaxed);
            tell(setting::TTL, value);
        }
        (libc::IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS) => {
            let value = int_of(level, bytes)?;
            check_range(value, -1, 255)?;
            let value = (value + 1) as u32;
            slot.hops.store(value as u16, Relaxed);
            tell(setting::HOPS, value);
        }
        (libc::IPPROTO_IP, libc::IP_OPTIONS) if bytes.is_empty() => {}
        (libc::IPPROTO_IP, libc::IP_RECVOPTS | libc::IP_RETOPTS) => {
            let on = int_of(level, bytes)? != 0;
            // Reject IP_RECVOPTS, because the stack cannot report the IP options of received
            // datagrams. Ping sockets accept it: they cannot send IP options, so replies contain
            // none (RFC 1122 §3.2.2.6).
            if on && handle.kind() != Kind::Echo {
                return fail(libc::ENOPROTOOPT);
            }
            handle.remember(level, name, i32::from(on));
        }
        (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY) => {
            let on = int_of(level, bytes)? != 0;
            if is_bound(handle) {
                return fail(libc::EINVAL);
            }
            set_bit(handle, option_bit::V6ONLY, on);
            tell(setting::V6ONLY, u32::from(on));
        }
        _ => return set_multicast(handle, level, name, bytes),
    }
    Ok(())
}

/// Sets the options that apply to datagrams sent to multicast groups.
fn set_multicast(handle: &OpenSocket, level: i32, name: i32, bytes: &[u8]) -> Result<()> {
    let is_v4 = level == libc::IPPROTO_IP;
    let (value, what) = match (level, name) {
        (libc::IPPROTO_IP, libc::IP_MULTICAST_TTL)
        | (libc::IPPROTO_IPV6, libc::IPV6_MULTICAST_HOPS) => {
            let value = int_of(level, bytes)?;
            check_range(value, -1, 255)?;
            let what = if is_v4 { setting::MULTICAST_TTL } else { setting::MULTICAST_HOPS };
            // As hop limit, -1 selects the default, 1, with which datagrams to groups stay on the
            // link (RFC 3493 §5.2).
            (if value == -1 { 1 } else { value }, what)
        }
        (libc::IPPROTO_IP, libc::IP_MULTICAST_LOOP) => {
            (i32::from(int_of(level, bytes)? != 0), setting::MULTICAST_LOOP)
        }
        _ => return fail(libc::ENOPROTOOPT),
    };
    handle.remember(level, name, value);
    handle.client.setting(handle.socket, what, value as u64);
    Ok(())
}

fn pending_error(handle: &OpenSocket) -> i32 {
    match handle.socket.take_error(handle.client) {
        Err(towpath_client::Error::Refused(errno)) => errno,
        _ => 0,
    }
}
