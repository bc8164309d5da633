//! Socket options that affect the stack. Options that only the program's library needs are stored
//! in the slot in shared memory.

mod device;
pub(crate) mod filter_room;
mod filters;
mod groups;
mod pacing;
pub(crate) mod processor;
mod tcp;
pub(crate) mod value;

use std::num::NonZeroU8;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use number::*;
use towpath_ring::{SocketRecv, SocketSend, take_tx_wanted};
use towpath_shm::control::{ControlReply, Request};
use towpath_shm::layout::{Slot, event, option_bit, setting};
use towpath_stack::{MtuDiscovery, SocketOption};
use towpath_tcp::{CongestionKind, KeepAliveConfig};

use crate::errno::{EINVAL, ENOPROTOOPT, ENOTCONN, Errno};
use crate::shard::net::Net;
use crate::shard::sockets::Sockets;
use crate::shard::sockets::option_bits::{bind_options, has_bit};
use crate::shard::sockets::options::value::{
    SOL_IP, SOL_IPV6, SOL_SOCKET, SOL_TCP, array, int, put,
};
use crate::shard::sockets::slots::{Rare, UNPACED};

/// Numbers of socket options in Linux.
mod number {
    pub(super) const SO_RCVBUF: u32 = 8;
    pub(super) const SO_BINDTODEVICE: u32 = 25;
    pub(super) const SO_ATTACH_FILTER: u32 = 26;
    pub(super) const SO_DETACH_FILTER: u32 = 27;
    pub(super) const SO_LOCK_FILTER: u32 = 44;
    pub(super) const SO_MAX_PACING_RATE: u32 = 47;
    pub(super) const SO_INCOMING_CPU: u32 = 49;
    pub(super) const SO_BINDTOIFINDEX: u32 = 62;
    pub(super) const IP_MTU: u32 = 14;
    pub(super) const IP_FREEBIND: u32 = 15;
    pub(super) const IP_LOCAL_PORT_RANGE: u32 = 51;
    pub(super) const IPV6_MTU: u32 = 24;
    pub(super) const IPV6_FREEBIND: u32 = 78;
}

/// Minimum values in bytes of SO_RCVBUF and, below, SO_SNDBUF on Linux.
const RCVBUF_MIN: u32 = 2304;
const SNDBUF_MIN: u32 = 4608;
/// Maximum size of a buffer in bytes. Linux limits it to 212992 by default; the stack allows as
/// much as autotuning does.
const BUF_MAX: u32 = towpath_ring::WINDOW_MAX;
/// Maximum of TCP_DEFER_ACCEPT in seconds. Linux counts SYN-ACK retransmissions instead, at most
/// 255, which take more than eight hours.
const DEFER_ACCEPT_MAX_S: u32 = 8 * 3600;

/// Reads and sets the options of one socket.
pub(crate) struct SocketOptions<'a> {
    pub sockets: &'a mut Sockets,
    pub net: &'a mut Net,
    pub slot: u32,
}

impl Sockets {
    /// Returns a value with which to read and set the options of the socket in a slot.
    pub(crate) fn options<'a>(&'a mut self, net: &'a mut Net, slot: u32) -> SocketOptions<'a> {
        SocketOptions { sockets: self, net, slot }
    }
}

impl SocketOptions<'_> {
    /// Sets an option without returning errors to the program. The stack ignores an option that
    /// does not apply to the kind of socket.
    pub(crate) fn set(&mut self, what: u32, value: u64) {
        let option = plain(what, value).or_else(|| self.option_of_slot(what, value));
        let Some(option) = option else { return self.set_here(what, value) };
        if let Some(id) = self.sockets.slots.get(self.slot).and_then(|entry| entry.id)
            && self.net.stack.set_option(id, option).is_ok()
            && matches!(what, setting::CORK | setting::NODELAY)
        {
            self.sockets.transmit(self.net, self.slot);
        }
    }

    /// Converts an option to the stack's option. Handles options whose result depends on the slot,
    /// or whose value is also stored in the slot for later connections.
    fn option_of_slot(&mut self, what: u32, value: u64) -> Option<SocketOption> {
        let shared = self.sockets.slots.shared(self.slot);
        let on = value != 0;
        Some(match what {
            setting::KEEPALIVE => SocketOption::KeepAlive(on.then(|| keepalive(shared))),
            setting::REUSEADDR | setting::REUSEPORT | setting::V6ONLY => SocketOption::Binding(
                bind_options(shared, self.sockets.slots.get(self.slot)?.rare()),
            ),
            // Disabling either of these options drops all reports of the common error queue, as on
            // Linux.
            setting::RECVERR | setting::RECVERR_V6 => {
                if !on {
                    self.sockets.forget_reports(self.slot);
                }
                let v4 = what == setting::RECVERR;
                if v4 { SocketOption::RecvErrors(on) } else { SocketOption::RecvErrorsV6(on) }
            }
            setting::URGENT => SocketOption::UrgentEnd(self.send_offset(value as u32)?),
            setting::RECORD_END => SocketOption::RecordEnd(self.send_offset(value as u32)?),
            setting::MAXSEG => {
                let mss = u16::try_from(value).unwrap_or(u16::MAX);
                self.keep(|rare| rare.mss_max = mss);
                SocketOption::MaxSegment(mss)
            }
            setting::SYNCNT => {
                let retries = value.clamp(1, 127) as u8;
                self.keep(|rare| rare.syn_retries = retries);
                SocketOption::SynRetries(retries)
            }
            setting::MIN_TTL => {
                let ttl = value.min(255) as u8;
                self.keep(|rare| rare.min_ttl = ttl);
                SocketOption::MinTtl(ttl)
            }
            setting::MIN_HOPS => {
                let hops = value.min(255) as u8;
                self.keep(|rare| rare.min_hops = hops);
                SocketOption::MinHops(hops)
            }
            setting::LINGER2 => {
                let seconds = (value as i32).clamp(-1, 120) as i8;
                self.keep(|rare| rare.linger2_s = seconds);
                SocketOption::FinWait2(self.fin_wait2_timeout(seconds))
            }
            _ => return None,
        })
    }

    /// Sets an option that the engine handles itself, without the stack.
    fn set_here(&mut self, what: u32, value: u64) {
        match what {
            setting::ZERO_COPY => self.sockets.note_copied(self.slot),
            setting::OPEN => {
                if let Some(id) = self.sockets.slots.get(self.slot).and_then(|entry| entry.id) {
                    self.net.stack.open_without_bytes(id);
                }
            }
            setting::TIMESTAMPING => {
                self.sockets.set_stamping(self.net, self.slot, clamp(value));
            }
            setting::STAMP => self.sockets.watch_sent(self.net, self.slot, value as u32),
            setting::WINDOW_CLAMP => self.set_window_clamp(clamp(value)),
            setting::RCVBUF => self.set_recv_capacity(clamp(value)),
            setting::SNDBUF => self.set_send_capacity(clamp(value)),
            // Wake waiting threads, which read the new value from the slot.
            setting::RCVLOWAT => self.sockets.slots.post(self.slot, event::RX),
            setting::NOTSENT_LOWAT => self.set_notsent_lowat(value != 0),
            // Do nothing now: the value is read from the slot when the socket is closed.
            setting::LINGER => {}
            // Ignore these without a connection, because only a connection has urgent data and
            // records.
            setting::URGENT | setting::RECORD_END => {}
            setting::DEFER_ACCEPT => {
                let seconds = clamp(value).min(DEFER_ACCEPT_MAX_S);
                self.keep(|rare| rare.defer_accept_s = seconds);
                self.sockets.update_note(self.net, self.slot);
            }
            _ => self.sockets.counters.commands_stale += 1,
        }
    }

    fn keep(&mut self, change: impl FnOnce(&mut Rare)) {
        if let Some(entry) = self.sockets.slots.get_mut(self.slot) {
            entry.set_rare(change);
        }
    }

    /// Converts TCP_LINGER2 to the timeout in FIN-WAIT-2. As on Linux, a negative value means zero,
    /// and 0 means the default.
    fn fin_wait2_timeout(&self, seconds: i8) -> Duration {
        match u64::try_from(seconds) {
            Ok(0) => self.net.stack.config().tcp.fin_wait2_timeout,
            Ok(seconds) => Duration::from_secs(seconds),
            Err(_) => Duration::ZERO,
        }
    }

    /// Applies all options set by the program to a new socket of the stack, which replaces the
    /// previous one of the slot.
    pub(crate) fn set_again(&mut self, congestion: Option<CongestionKind>) {
        let shared = self.sockets.slots.shared(self.slot);
        let Some(entry) = self.sockets.slots.get(self.slot) else { return };
        let (id, rare) = (entry.id, entry.rare());
        let (rate, places, save_syn) = (rare.max_pacing_rate, rare.fast_open_queue, rare.save_syn);
        let fast_open_keys = rare.fast_open_keys;
        let values = [
            // SO_REUSEADDR also applies the values of SO_REUSEPORT and IPV6_V6ONLY.
            (setting::REUSEADDR, 1),
            (setting::NODELAY, has_bit(shared, option_bit::NODELAY).into()),
            (setting::KEEPALIVE, has_bit(shared, option_bit::KEEPALIVE).into()),
            (setting::USER_TIMEOUT, shared.user_timeout_ms.load(Relaxed).into()),
            (setting::TOS, shared.tos.load(Relaxed).into()),
            (setting::TRAFFIC_CLASS, shared.tclass.load(Relaxed).into()),
            (setting::TTL, shared.ttl.load(Relaxed).into()),
            (setting::HOPS, shared.hops.load(Relaxed).into()),
            (setting::MIN_TTL, rare.min_ttl.into()),
            (setting::MIN_HOPS, rare.min_hops.into()),
            (setting::SYNCNT, rare.syn_retries.into()),
            (setting::LINGER2, rare.linger2_s as u64),
            (setting::MAXSEG, rare.mss_max.into()),
        ];
        for (what, value) in values {
            if value != 0 {
                self.set(what, value);
            }
        }
        if rate != UNPACED {
            self.set_max_pacing_rate(rate);
        }
        if let (Some(id), true) = (id, places != 0 || save_syn) {
            // Ignore errors, because both options are valid for an unconnected socket.
            let _ = self.net.stack.set_option(id, SocketOption::FastOpenQueue(places));
            let _ = self.net.stack.set_option(id, SocketOption::SaveSyn(save_syn));
        }
        if let (Some(id), Some(keys)) = (id, fast_open_keys) {
            // Valid on an unconnected socket.
            let _ = self.net.stack.set_option(id, SocketOption::FastOpenKeys(keys));
        }
        if let (Some(id), Some(device)) = (id, self.sockets.device(self.slot)) {
            // Ignore the result, because every stream supports this option.
            let _ = self.net.stack.set_option(id, SocketOption::Device(Some(device)));
        }
        if let (Some(id), Some(kind)) = (id, congestion) {
            // Ignore the result, because every stream supports this option.
            let _ = self.net.stack.set_option(id, SocketOption::Congestion(kind));
        }
    }

    fn set_recv_capacity(&mut self, bytes: u32) {
        let doubled = bytes.saturating_mul(2).clamp(RCVBUF_MIN, BUF_MAX);
        let Some(entry) = self.sockets.slots.get_mut(self.slot) else { return };
        entry.set_rare(|rare| rare.rcvbuf = doubled);
        self.sockets.update_note(self.net, self.slot);
        self.apply_recv_capacity();
    }

    /// Sets TCP_WINDOW_CLAMP in bytes. The value limits the receive buffer, which limits the
    /// advertised window. 0: no limit.
    fn set_window_clamp(&mut self, bytes: u32) {
        let Some(entry) = self.sockets.slots.get_mut(self.slot) else { return };
        entry.set_rare(|rare| rare.window_clamp = bytes);
        self.sockets.update_note(self.net, self.slot);
        self.apply_recv_capacity();
    }

    fn apply_recv_capacity(&mut self) {
        let Some(entry) = self.sockets.slots.get_mut(self.slot) else { return };
        let fixed = entry.rare().recv_fixed();
        if fixed == 0 {
            return;
        }
        let is_queue = !entry.is_datagram();
        let recv = match entry.owned.as_deref_mut() {
            // Do not change the size of an accept queue, which depends on the backlog.
            Some(_) if is_queue => None,
            Some(owned) => owned.rx.as_mut(),
            None => {
                entry.id.and_then(|id| self.net.stack.recv_buffer(id).and_then(SocketRecv::slot))
            }
        };
        if let Some(recv) = recv {
            recv.set_capacity(fixed);
        }
    }

    fn set_send_capacity(&mut self, bytes: u32) {
        let doubled = bytes.saturating_mul(2).clamp(SNDBUF_MIN, BUF_MAX);
        let Some(entry) = self.sockets.slots.get_mut(self.slot) else { return };
        entry.set_rare(|rare| rare.sndbuf = doubled);
        self.sockets.update_note(self.net, self.slot);
        let Some(entry) = self.sockets.slots.get_mut(self.slot) else { return };
        let send = match entry.owned.as_deref_mut() {
            Some(owned) => owned.tx.as_mut(),
            None => {
                entry.id.and_then(|id| self.net.stack.send_buffer(id).and_then(SocketSend::slot))
            }
        };
        if let Some(send) = send {
            send.set_capacity(doubled);
            // Wake threads that wait for send buffer space, as Linux does (`sock_setsockopt`).
            self.sockets.slots.post(self.slot, event::TX);
        }
    }

    /// Applies TCP_NOTSENT_LOWAT. Wakes threads that wait to write, because a higher limit may make
    /// the socket writable.
    fn set_notsent_lowat(&mut self, is_set: bool) {
        let id = self.sockets.slots.get(self.slot).and_then(|entry| entry.id);
        if let Some(send) =
            id.and_then(|id| self.net.stack.send_buffer(id).and_then(SocketSend::slot))
        {
            let stamps = self.sockets.slots.get(self.slot).and_then(|it| it.rare().stamps.as_ref());
            send.set_scarce(is_set || stamps.is_some_and(|stamps| stamps.is_waiting()));
        }
        if take_tx_wanted(self.sockets.slots.shared(self.slot)) {
            self.sockets.slots.post(self.slot, event::TX);
        }
    }

    /// Returns an option's value for getsockopt(2), if the library in the program does not know it.
    pub(crate) fn get_option(&mut self, request: &Request) -> Result<ControlReply, Errno> {
        let now = self.sockets.now;
        let id = self.sockets.slots.get(self.slot).and_then(|entry| entry.id);
        let info = id.and_then(|id| self.net.stack.info(now, id));
        let mut reply = ControlReply::default();
        match (request.a, request.b) {
            (SOL_TCP, _) => return self.get_tcp_option(id, info.as_ref(), request),
            (SOL_SOCKET, SO_RCVBUF) => put(&mut reply, &self.recv_capacity(id).to_ne_bytes()),
            (SOL_SOCKET, SO_BINDTODEVICE) => put(&mut reply, self.device_name()?),
            (SOL_SOCKET, SO_ATTACH_FILTER) => {
                let first = int(request.payload())?;
                reply = self.told_filter(id, u32::try_from(first).unwrap_or(u32::MAX));
            }
            (SOL_SOCKET, SO_INCOMING_CPU) => {
                put(&mut reply, &self.processor(info.as_ref()).to_ne_bytes());
            }
            (SOL_SOCKET, SO_LOCK_FILTER) => {
                put(&mut reply, &u32::from(self.is_filter_locked()).to_ne_bytes());
            }
            (SOL_SOCKET, SO_MAX_PACING_RATE) => {
                put(&mut reply, &self.max_pacing_rate().to_ne_bytes());
            }
            (SOL_SOCKET, SO_BINDTOIFINDEX) => {
                let index =
                    self.sockets.slots.get(self.slot).map_or(0, |entry| entry.rare().device);
                put(&mut reply, &index.to_ne_bytes());
            }
            (SOL_IP, IP_MTU) | (SOL_IPV6, IPV6_MTU) => {
                let mtu = info.and_then(|info| info.mtu).ok_or(Errno(ENOTCONN))?;
                put(&mut reply, &mtu.to_ne_bytes());
            }
            _ => return Err(Errno(ENOPROTOOPT)),
        }
        Ok(reply)
    }

    /// Sets an option for setsockopt(2) that the stack may reject.
    pub(crate) fn set_fallible(&mut self, request: &Request) -> Result<(), Errno> {
        let entry = self.sockets.slots.get_mut(self.slot).ok_or(Errno(EINVAL))?;
        let data = request.payload();
        if (request.a, request.b) == (SOL_SOCKET, SO_MAX_PACING_RATE) {
            self.set_max_pacing_rate(u64::from_ne_bytes(array(data, 0)?));
            return Ok(());
        }
        let id = entry.id.ok_or(Errno(EINVAL))?;
        match (request.a, request.b) {
            (SOL_TCP, _) => self.set_tcp_option(id, request),
            (SOL_IP, IP_FREEBIND) | (SOL_IPV6, IPV6_FREEBIND) => {
                let free_bind = int(data)? != 0;
                entry.set_rare(|rare| rare.free_bind = free_bind);
                Ok(())
            }
            (SOL_IP, IP_LOCAL_PORT_RANGE) => {
                let value = int(data)? as u32;
                entry.set_rare(|rare| rare.local_ports = (value as u16, (value >> 16) as u16));
                let rare = entry.rare().clone();
                let options = bind_options(self.sockets.slots.shared(self.slot), &rare);
                Ok(self.net.stack.set_option(id, SocketOption::Binding(options))?)
            }
            (SOL_SOCKET, SO_BINDTODEVICE) => self.bind_to_named(id, data),
            (SOL_SOCKET, SO_BINDTOIFINDEX) => {
                let index = u16::try_from(int(data)?).map_err(|_| Errno(EINVAL))?;
                self.bind_to_device(id, index.into())
            }
            (SOL_SOCKET, SO_INCOMING_CPU) => self.set_processor(int(data)?),
            (SOL_SOCKET, SO_ATTACH_FILTER) => self.attach_filter(id, request),
            (SOL_SOCKET, SO_DETACH_FILTER) => self.detach_filter(id),
            (SOL_SOCKET, SO_LOCK_FILTER) => {
                let lock = int(data)? != 0;
                self.lock_filter(lock)
            }
            _ => self.set_multicast(id, request),
        }
    }

    /// Converts a position in the send FIFO to an offset in the stack's send buffer. Returns `None`
    /// if it is out of range.
    fn send_offset(&mut self, position: u32) -> Option<u32> {
        let id = self.sockets.slots.get(self.slot)?.id?;
        let front = self.net.stack.send_buffer(id).and_then(SocketSend::slot)?.position();
        Some(position.wrapping_sub(front)).filter(|end| *end <= towpath_ring::WINDOW_MAX)
    }
}

/// Converts an option to the stack's option, if the result depends only on the value.
fn plain(what: u32, value: u64) -> Option<SocketOption> {
    let on = value != 0;
    Some(match what {
        setting::NODELAY => SocketOption::NoDelay(on),
        setting::CORK => SocketOption::Cork(on),
        setting::MORE => SocketOption::MoreComing(on),
        setting::QUICKACK => SocketOption::QuickAck(on),
        setting::USER_TIMEOUT => {
            let ms = u64::from(clamp(value));
            SocketOption::UserTimeout(on.then(|| Duration::from_millis(ms)))
        }
        setting::TOS => SocketOption::Tos(value as u8),
        setting::TRAFFIC_CLASS => SocketOption::TrafficClass(value as u8),
        setting::TTL => SocketOption::Ttl(NonZeroU8::new(value as u8)),
        setting::HOPS => SocketOption::UnicastHops(value.checked_sub(1).map(|hops| hops as u8)),
        setting::BROADCAST => SocketOption::Broadcast(on),
        setting::MTU_DISCOVER => SocketOption::MtuDiscover(mtu_discovery(value)),
        setting::MTU_DISCOVER_V6 => SocketOption::MtuDiscoverV6(mtu_discovery(value)),
        setting::FRAGMENT_SIZE => SocketOption::FragmentSize(on.then(|| clamp(value))),
        setting::MULTICAST_TTL => SocketOption::MulticastTtl(value as u8),
        setting::MULTICAST_HOPS => SocketOption::MulticastHops(value as u8),
        setting::MULTICAST_LOOP => SocketOption::MulticastLoop(on),
        setting::MULTICAST_LOOP_V6 => SocketOption::MulticastLoopV6(on),
        setting::NO_CHECK => SocketOption::NoChecksum(on),
        _ => return None,
    })
}

/// Returns the keepalive parameters stored in a slot, limited to the ranges of Linux.
fn keepalive(slot: &Slot) -> KeepAliveConfig {
    let seconds = |word: &std::sync::atomic::AtomicU32| {
        Duration::from_secs(u64::from(word.load(Relaxed).clamp(1, 32_767)))
    };
    KeepAliveConfig {
        idle: seconds(&slot.keepidle),
        interval: seconds(&slot.keepintvl),
        probes: slot.keepcnt.load(Relaxed).clamp(1, 127) as u8,
    }
}

/// Converts a value of IP_MTU_DISCOVER. The library in the program validates it; an invalid value
/// selects the default.
fn mtu_discovery(value: u64) -> MtuDiscovery {
    match value {
        0 => MtuDiscovery::Dont,
        2 => MtuDiscovery::Do,
        3 => MtuDiscovery::Probe,
        4 => MtuDiscovery::Interface,
        5 => MtuDiscovery::Omit,
        _ => MtuDiscovery::Want,
    }
}

fn clamp(value: u64) -> u32 {
    u32::try_from(value).unwrap_or(u32::MAX)
}
