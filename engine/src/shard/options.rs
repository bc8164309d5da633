//! Socket options that matter to the stack. Options that only the program needs stay in its slot.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::num::{NonZeroU8, NonZeroU64};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use towpath_ring::take_tx_wanted;
use towpath_shm::control::{Reply, Request};
use towpath_shm::layout::{Slot, event, option_bit, setting};
use towpath_stack::net::{IfaceId, Interface};
use towpath_stack::{MtuDiscovery, OptionError, SocketId, SocketInfo, SocketOption, scope_of};
use towpath_tcp::{CongestionKind, Instant, KeepAlive};

use crate::errno::{EADDRNOTAVAIL, EINVAL, ENODEV, ENOPROTOOPT, ENOTCONN, Errno};
use crate::shard::Shard;
use crate::shard::asked::BACKLOG_MAX;
use crate::shard::host::fixed_or;
use crate::shard::linux::{congestion_name, state, state_number};
use crate::shard::option_bits::{bind_options, has_bit};
use crate::shard::slots::{AF_INET, AF_INET6, Entry, Rare, UNPACED};
use crate::shard::tcp_info::{Beside, tcp_info};

/// Levels and options as Linux numbers them.
mod number {
    pub(super) const SOL_IP: u32 = 0;
    pub(super) const SOL_SOCKET: u32 = 1;
    pub(super) const SO_RCVBUF: u32 = 8;
    pub(super) const SO_BINDTODEVICE: u32 = 25;
    pub(super) const SO_ATTACH_FILTER: u32 = 26;
    pub(super) const SO_DETACH_FILTER: u32 = 27;
    pub(super) const SO_LOCK_FILTER: u32 = 44;
    pub(super) const SO_MAX_PACING_RATE: u32 = 47;
    pub(super) const SO_INCOMING_CPU: u32 = 49;
    pub(super) const SO_BINDTOIFINDEX: u32 = 62;
    pub(super) const SOL_TCP: u32 = 6;
    pub(super) const SOL_IPV6: u32 = 41;
    pub(super) const TCP_MAXSEG: u32 = 2;
    pub(super) const TCP_FASTOPEN: u32 = 23;
    pub(super) const TCP_SAVE_SYN: u32 = 27;
    pub(super) const TCP_SAVED_SYN: u32 = 28;
    pub(super) const TCP_INFO: u32 = 11;
    pub(super) const TCP_WINDOW_CLAMP: u32 = 10;
    pub(super) const TCP_QUICKACK: u32 = 12;
    pub(super) const TCP_CONGESTION: u32 = 13;
    pub(super) const IP_MTU: u32 = 14;
    pub(super) const IP_FREEBIND: u32 = 15;
    pub(super) const IP_MULTICAST_IF: u32 = 32;
    pub(super) const IP_ADD_MEMBERSHIP: u32 = 35;
    pub(super) const IP_DROP_MEMBERSHIP: u32 = 36;
    pub(super) const IP_ADD_SOURCE_MEMBERSHIP: u32 = 39;
    pub(super) const IP_DROP_SOURCE_MEMBERSHIP: u32 = 40;
    pub(super) const MCAST_JOIN_GROUP: u32 = 42;
    pub(super) const MCAST_LEAVE_GROUP: u32 = 45;
    pub(super) const MCAST_JOIN_SOURCE_GROUP: u32 = 46;
    pub(super) const MCAST_LEAVE_SOURCE_GROUP: u32 = 47;
    pub(super) const IP_MULTICAST_ALL: u32 = 49;
    pub(super) const IP_LOCAL_PORT_RANGE: u32 = 51;
    pub(super) const IPV6_MULTICAST_IF: u32 = 17;
    pub(super) const IPV6_ADD_MEMBERSHIP: u32 = 20;
    pub(super) const IPV6_DROP_MEMBERSHIP: u32 = 21;
    pub(super) const IPV6_MTU: u32 = 24;
    pub(super) const IPV6_MULTICAST_ALL: u32 = 29;
    pub(super) const IPV6_FREEBIND: u32 = 78;
}
use number::*;

/// Linux's bounds: `rmem_max` and `wmem_max` double 212992, the least double 1152 and 2304.
const RCVBUF_MIN: u32 = 2304;
const SNDBUF_MIN: u32 = 4608;
/// Linux caps at 212992; our FIFOs may be as large as autotuning makes them.
const BUF_MAX: u32 = towpath_ring::WINDOW_MAX;
/// Linux counts it in repeated SYN-ACKs, 255 at most: more than eight hours.
const DEFER_ACCEPT_MAX_S: u32 = 8 * 3600;
/// Bytes of a `struct sockaddr_storage`.
const STORAGE: usize = 128;

impl Shard {
    /// An option that cannot fail any more for the program; the stack may still find it meaningless
    /// for this kind of socket.
    pub(crate) fn set(&mut self, now: Instant, slot: u32, what: u32, value: u64) {
        let option = plain(what, value).or_else(|| self.option_of_slot(slot, what, value));
        let Some(option) = option else { return self.set_here(slot, what, value) };
        if let Some(id) = self.host.slots.get(slot).and_then(|entry| entry.id)
            && self.stack.set_option(id, option).is_ok()
            && what == setting::CORK
        {
            self.transmit(now, slot);
        }
    }

    /// The stack's form of an option that depends on the slot, or is kept there for connections to
    /// come.
    fn option_of_slot(&mut self, slot: u32, what: u32, value: u64) -> Option<SocketOption> {
        let shared = self.host.slots.shared(slot);
        let on = value != 0;
        Some(match what {
            setting::KEEPALIVE => SocketOption::KeepAlive(on.then(|| keepalive(shared))),
            setting::REUSEADDR | setting::REUSEPORT | setting::V6ONLY => {
                SocketOption::Binding(bind_options(shared, self.host.slots.get(slot)?.rare()))
            }
            // As on Linux, either one empties the queue for both.
            setting::RECVERR | setting::RECVERR_V6 => {
                if !on {
                    self.forget_reports(slot);
                }
                let v4 = what == setting::RECVERR;
                if v4 { SocketOption::RecvErrors(on) } else { SocketOption::RecvErrorsV6(on) }
            }
            setting::URGENT => SocketOption::UrgentEnd(self.urgent_end(slot, value as u32)?),
            setting::MAXSEG => {
                let mss = u16::try_from(value).unwrap_or(u16::MAX);
                self.keep(slot, |rare| rare.mss_max = mss);
                SocketOption::MaxSegment(mss)
            }
            setting::SYNCNT => {
                let retries = value.clamp(1, 127) as u8;
                self.keep(slot, |rare| rare.syn_retries = retries);
                SocketOption::SynRetries(retries)
            }
            setting::MIN_TTL => {
                let ttl = value.min(255) as u8;
                self.keep(slot, |rare| rare.min_ttl = ttl);
                SocketOption::MinTtl(ttl)
            }
            setting::MIN_HOPS => {
                let hops = value.min(255) as u8;
                self.keep(slot, |rare| rare.min_hops = hops);
                SocketOption::MinHops(hops)
            }
            setting::LINGER2 => {
                let seconds = (value as i32).clamp(-1, 120) as i8;
                self.keep(slot, |rare| rare.linger2_s = seconds);
                SocketOption::FinWait2(self.fin_wait2_timeout(seconds))
            }
            _ => return None,
        })
    }

    /// Sets an option that the stack need not know.
    fn set_here(&mut self, slot: u32, what: u32, value: u64) {
        match what {
            setting::ZERO_COPY => self.note_copied(slot),
            setting::TIMESTAMPING => self.set_stamping(slot, clamp(value)),
            setting::WINDOW_CLAMP => self.set_window_clamp(slot, clamp(value)),
            setting::RCVBUF => self.set_recv_capacity(slot, clamp(value)),
            setting::SNDBUF => self.set_send_capacity(slot, clamp(value)),
            // Read from the slot by those who wait.
            setting::RCVLOWAT => self.host.slots.post(slot, event::RX),
            setting::NOTSENT_LOWAT => self.set_notsent_lowat(slot, value != 0),
            // Read from the slot when it matters: at close.
            setting::LINGER => {}
            // Only a connection has urgent data.
            setting::URGENT => {}
            setting::DEFER_ACCEPT => {
                let seconds = clamp(value).min(DEFER_ACCEPT_MAX_S);
                self.keep(slot, |rare| rare.defer_accept_s = seconds);
                self.renote(slot);
            }
            _ => self.host.counters.commands_stale += 1,
        }
    }

    fn keep(&mut self, slot: u32, change: impl FnOnce(&mut Rare)) {
        if let Some(entry) = self.host.slots.get_mut(slot) {
            entry.set_rare(change);
        }
    }

    /// Linux takes a negative value for no wait, and 0 for the default.
    fn fin_wait2_timeout(&self, seconds: i8) -> Duration {
        match u64::try_from(seconds) {
            Ok(0) => self.stack.config().tcp.fin_wait2_timeout,
            Ok(seconds) => Duration::from_secs(seconds),
            Err(_) => Duration::ZERO,
        }
    }

    /// Sets what the program had set on a fresh socket of the stack, which has taken the place of
    /// another.
    pub(crate) fn set_again(
        &mut self,
        now: Instant,
        slot: u32,
        congestion: Option<CongestionKind>,
    ) {
        let shared = self.host.slots.shared(slot);
        let words = [
            // Tells of SO_REUSEPORT and IPV6_V6ONLY, too.
            (setting::REUSEADDR, 1),
            (setting::NODELAY, u32::from(has_bit(shared, option_bit::NODELAY))),
            (setting::KEEPALIVE, u32::from(has_bit(shared, option_bit::KEEPALIVE))),
            (setting::USER_TIMEOUT, shared.user_timeout_ms.load(Relaxed)),
            (setting::TOS, shared.tos.load(Relaxed).into()),
            (setting::TRAFFIC_CLASS, shared.tclass.load(Relaxed)),
            (setting::TTL, shared.ttl.load(Relaxed).into()),
            (setting::HOPS, shared.hops.load(Relaxed).into()),
        ];
        let entry = self.host.slots.get(slot);
        let kept = entry.map_or((0, 0, 0), |entry| {
            let rare = entry.rare();
            (rare.syn_retries, rare.linger2_s, rare.mss_max)
        });
        let rate = entry.map_or(UNPACED, |entry| entry.rare().max_pacing_rate);
        let hops_min = entry.map_or((0, 0), |entry| (entry.rare().min_ttl, entry.rare().min_hops));
        for (what, value) in words {
            if value != 0 {
                self.set(now, slot, what, u64::from(value));
            }
        }
        if hops_min != (0, 0) {
            self.set(now, slot, setting::MIN_TTL, hops_min.0.into());
            self.set(now, slot, setting::MIN_HOPS, hops_min.1.into());
        }
        if rate != UNPACED {
            self.set_max_pacing_rate(slot, rate);
        }
        if kept.0 != 0 {
            self.set(now, slot, setting::SYNCNT, kept.0.into());
        }
        if kept.1 != 0 {
            self.set(now, slot, setting::LINGER2, kept.1 as u64);
        }
        if kept.2 != 0 {
            self.set(now, slot, setting::MAXSEG, kept.2.into());
        }
        let id = self.host.slots.get(slot).and_then(|entry| entry.id);
        let accepting = self.host.slots.get(slot).map(Entry::rare);
        let accepting = accepting.map(|rare| (rare.fast_open_queue, rare.save_syn));
        if let (Some(id), Some((places, save_syn))) = (id, accepting.filter(|it| *it != (0, false)))
        {
            // A fresh socket takes both.
            let _ = self.stack.set_option(id, SocketOption::FastOpenQueue(places));
            let _ = self.stack.set_option(id, SocketOption::SaveSyn(save_syn));
        }
        if let (Some(id), Some(device)) = (id, self.device(slot)) {
            // Every stream has it.
            let _ = self.stack.set_option(id, SocketOption::Device(Some(device)));
        }
        if let (Some(id), Some(kind)) = (id, congestion) {
            // Every stream has it.
            let _ = self.stack.set_option(id, SocketOption::Congestion(kind));
        }
    }

    fn set_recv_capacity(&mut self, slot: u32, bytes: u32) {
        let doubled = bytes.saturating_mul(2).clamp(RCVBUF_MIN, BUF_MAX);
        let Some(entry) = self.host.slots.get_mut(slot) else { return };
        entry.set_rare(|rare| rare.rcvbuf = doubled);
        self.renote(slot);
        self.apply_recv_capacity(slot);
    }

    /// TCP_WINDOW_CLAMP: a buffer of that size offers no larger window. 0: none.
    fn set_window_clamp(&mut self, slot: u32, bytes: u32) {
        let Some(entry) = self.host.slots.get_mut(slot) else { return };
        entry.set_rare(|rare| rare.window_clamp = bytes);
        self.renote(slot);
        self.apply_recv_capacity(slot);
    }

    fn apply_recv_capacity(&mut self, slot: u32) {
        let Some(entry) = self.host.slots.get_mut(slot) else { return };
        let fixed = entry.rare().recv_fixed();
        if fixed == 0 {
            return;
        }
        let is_queue = !entry.is_datagram();
        let recv = match entry.owned.as_deref_mut() {
            // An accept queue is as long as the backlog says.
            Some(_) if is_queue => None,
            Some(owned) => owned.rx.as_mut(),
            None => entry.id.and_then(|id| self.stack.recv_buffer(id)),
        };
        if let Some(recv) = recv {
            recv.set_capacity(fixed);
        }
    }

    fn set_send_capacity(&mut self, slot: u32, bytes: u32) {
        let doubled = bytes.saturating_mul(2).clamp(SNDBUF_MIN, BUF_MAX);
        let Some(entry) = self.host.slots.get_mut(slot) else { return };
        entry.set_rare(|rare| rare.sndbuf = doubled);
        self.renote(slot);
        let Some(entry) = self.host.slots.get_mut(slot) else { return };
        let send = match entry.owned.as_deref_mut() {
            Some(owned) => owned.tx.as_mut(),
            None => entry.id.and_then(|id| self.stack.send_buffer(id)),
        };
        if let Some(send) = send {
            send.set_capacity(doubled);
            // As sock_setsockopt, for those who wait for room.
            self.host.slots.post(slot, event::TX);
        }
    }

    /// TCP_NOTSENT_LOWAT, which the slot has: who waits for room may have some by a higher mark.
    fn set_notsent_lowat(&mut self, slot: u32, is_set: bool) {
        let id = self.host.slots.get(slot).and_then(|entry| entry.id);
        if let Some(send) = id.and_then(|id| self.stack.send_buffer(id)) {
            send.set_scarce(is_set);
        }
        if take_tx_wanted(self.host.slots.shared(slot)) {
            self.host.slots.post(slot, event::TX);
        }
    }

    /// SO_MAX_PACING_RATE. Datagrams have a rate too, as on Linux, where only the fq qdisc looks at
    /// that. As in `tcp_update_skb_after_send`, 0 is no bound.
    fn set_max_pacing_rate(&mut self, slot: u32, rate: u64) {
        let Some(entry) = self.host.slots.get_mut(slot) else { return };
        entry.set_rare(|rare| rare.max_pacing_rate = rate);
        let id = entry.id;
        self.renote(slot);
        if let Some(id) = id {
            let bound = NonZeroU64::new(rate).filter(|rate| rate.get() != UNPACED);
            // Datagram sockets have no such option in the stack.
            let _ = self.stack.set_option(id, SocketOption::MaxPacingRate(bound));
        }
    }

    /// getsockopt(2) of options whose value the program's side does not have.
    pub(crate) fn get_option(
        &mut self,
        now: Instant,
        slot: u32,
        request: &Request,
    ) -> Result<Reply, Errno> {
        let id = self.host.slots.get(slot).and_then(|entry| entry.id);
        let info = id.and_then(|id| self.stack.info(now, id));
        let mut reply = Reply::default();
        match (request.a, request.b) {
            (SOL_TCP, TCP_INFO) => put(&mut reply, &self.tcp_info(slot, info.as_ref())),
            (SOL_TCP, TCP_CONGESTION) => {
                let set = self.host.slots.get(slot).and_then(|entry| entry.rare().congestion);
                let configured = set.unwrap_or(self.stack.config().tcp.congestion);
                let kind = info.and_then(|info| info.tcp).map_or(configured, |tcp| tcp.congestion);
                // TCP_CA_NAME_MAX, as Linux gives it.
                let mut name = [0; 16];
                let text = congestion_name(kind).as_bytes();
                name[..text.len()].copy_from_slice(text);
                put(&mut reply, &name);
            }
            (SOL_TCP, TCP_QUICKACK) => {
                let quick = info.and_then(|info| info.tcp).is_none_or(|tcp| tcp.quick_acks);
                put(&mut reply, &u32::from(quick).to_ne_bytes());
            }
            (SOL_TCP, TCP_WINDOW_CLAMP) | (SOL_SOCKET, SO_RCVBUF) => {
                let recv = id.and_then(|id| self.stack.recv_buffer(id));
                let window = recv.map_or(0, |recv| towpath_ring::RecvBuffer::capacity(recv));
                put(&mut reply, &window.to_ne_bytes());
            }
            (SOL_TCP, TCP_FASTOPEN) => {
                let places =
                    self.host.slots.get(slot).map_or(0, |entry| entry.rare().fast_open_queue);
                put(&mut reply, &places.to_ne_bytes());
            }
            (SOL_TCP, TCP_SAVE_SYN) => {
                let on = self.host.slots.get(slot).is_some_and(|entry| entry.rare().save_syn);
                put(&mut reply, &i32::from(on).to_ne_bytes());
            }
            (SOL_TCP, TCP_SAVED_SYN) => {
                let room = usize::try_from(int(request.payload())?).unwrap_or(0);
                let saved = id.map_or(Ok(None), |id| self.stack.take_saved_syn(id, room));
                match saved {
                    Ok(syn) => put(&mut reply, syn.as_deref().unwrap_or_default()),
                    Err(len) => reply.a = len as u32,
                }
            }
            (SOL_TCP, TCP_MAXSEG) => {
                // Without a connection Linux tells the least that every peer takes.
                let mss = info.and_then(|info| info.tcp).map_or(536, |tcp| tcp.snd_mss);
                put(&mut reply, &mss.to_ne_bytes());
            }
            (SOL_SOCKET, SO_BINDTODEVICE) => {
                if let Some(iface) = self.device(slot) {
                    let interface = self.stack.net.interfaces().get(iface.index());
                    put(&mut reply, interface.ok_or(Errno(ENODEV))?.name().as_bytes());
                }
            }
            (SOL_SOCKET, SO_ATTACH_FILTER) => {
                let first = int(request.payload())?;
                reply = self.told_filter(id, u32::try_from(first).unwrap_or(u32::MAX));
            }
            (SOL_SOCKET, SO_INCOMING_CPU) => {
                put(&mut reply, &self.processor(slot, info.as_ref()).to_ne_bytes());
            }
            (SOL_SOCKET, SO_LOCK_FILTER) => {
                put(&mut reply, &u32::from(self.is_filter_locked(slot)).to_ne_bytes());
            }
            (SOL_SOCKET, SO_MAX_PACING_RATE) => {
                let entry = self.host.slots.get(slot);
                let rate = entry.map_or(UNPACED, |entry| entry.rare().max_pacing_rate);
                put(&mut reply, &rate.to_ne_bytes());
            }
            (SOL_SOCKET, SO_BINDTOIFINDEX) => {
                let index = self.host.slots.get(slot).map_or(0, |entry| entry.rare().device);
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

    pub(crate) fn tcp_info(
        &self,
        slot: u32,
        info: Option<&SocketInfo>,
    ) -> [u8; crate::shard::tcp_info::TCP_INFO_LEN] {
        let fixed = self.host.slots.get(slot).map_or(0, |entry| entry.rare().recv_fixed());
        let (recv_capacity, _) =
            fixed_or(fixed, self.host.buffers.recv, self.host.buffers.recv_max);
        let tcp = info.and_then(|info| info.tcp);
        let state = info.map_or(state::CLOSE, |info| state_number(info.state));
        let mtu = info.and_then(|info| info.mtu).unwrap_or(0);
        tcp_info(tcp.as_ref(), Beside { state, mtu, recv_capacity })
    }

    /// setsockopt(2) of options that the stack may refuse.
    pub(crate) fn set_fallible(
        &mut self,
        now: Instant,
        slot: u32,
        request: &Request,
    ) -> Result<(), Errno> {
        let entry = self.host.slots.get_mut(slot).ok_or(Errno(EINVAL))?;
        let data = request.payload();
        if (request.a, request.b) == (SOL_SOCKET, SO_MAX_PACING_RATE) {
            self.set_max_pacing_rate(slot, u64::from_ne_bytes(array(data, 0)?));
            return Ok(());
        }
        let id = entry.id.ok_or(Errno(EINVAL))?;
        match (request.a, request.b) {
            (SOL_TCP, TCP_CONGESTION) => {
                let kind = congestion(data)?;
                self.stack.set_option(id, SocketOption::Congestion(kind))?;
                entry.set_rare(|rare| rare.congestion = Some(kind));
                Ok(())
            }
            (SOL_TCP, TCP_FASTOPEN) => {
                let places = int(data)?;
                let places = u32::try_from(places).map_err(|_| Errno(EINVAL))?.min(BACKLOG_MAX);
                let set = self.stack.set_option(id, SocketOption::FastOpenQueue(places));
                // As Linux of a socket with a connection.
                set.map_err(|_| Errno(EINVAL))?;
                entry.set_rare(|rare| rare.fast_open_queue = places);
                Ok(())
            }
            (SOL_TCP, TCP_SAVE_SYN) => {
                let on = match int(data)? {
                    0 => false,
                    1 => true,
                    _ => return Err(Errno(EINVAL)),
                };
                entry.set_rare(|rare| rare.save_syn = on);
                // A connection takes the option, which means nothing to it.
                let _ = self.stack.set_option(id, SocketOption::SaveSyn(on));
                Ok(())
            }
            (SOL_TCP, TCP_MAXSEG) => {
                let mss = u16::try_from(int(data)?).map_err(|_| Errno(EINVAL))?;
                Ok(self.stack.set_option(id, SocketOption::MaxSegment(mss))?)
            }
            (SOL_IP, IP_FREEBIND) | (SOL_IPV6, IPV6_FREEBIND) => {
                let free_bind = int(data)? != 0;
                entry.set_rare(|rare| rare.free_bind = free_bind);
                Ok(())
            }
            (SOL_IP, IP_LOCAL_PORT_RANGE) => {
                let value = int(data)? as u32;
                entry.set_rare(|rare| rare.local_ports = (value as u16, (value >> 16) as u16));
                let rare = entry.rare().clone();
                let options = bind_options(self.host.slots.shared(slot), &rare);
                Ok(self.stack.set_option(id, SocketOption::Binding(options))?)
            }
            (SOL_SOCKET, SO_BINDTODEVICE) => {
                let named = |iface: &&Interface| iface.name().as_bytes() == data;
                let iface = match data {
                    [] => 0,
                    _ => {
                        let found = self.stack.net.interfaces().iter().find(named);
                        u32::from(found.ok_or(Errno(ENODEV))?.id().0) + 1
                    }
                };
                self.bind_to_device(slot, id, iface)
            }
            (SOL_SOCKET, SO_BINDTOIFINDEX) => {
                let index = u16::try_from(int(data)?).map_err(|_| Errno(EINVAL))?;
                self.bind_to_device(slot, id, index.into())
            }
            (SOL_SOCKET, SO_INCOMING_CPU) => self.set_processor(now, slot, int(data)?),
            (SOL_SOCKET, SO_ATTACH_FILTER) => self.attach_filter(slot, id, request),
            (SOL_SOCKET, SO_DETACH_FILTER) => self.detach_filter(slot, id),
            (SOL_SOCKET, SO_LOCK_FILTER) => {
                let lock = int(data)? != 0;
                self.lock_filter(slot, lock)
            }
            _ => self.set_multicast(now, id, request),
        }
    }

    fn set_multicast(
        &mut self,
        now: Instant,
        id: SocketId,
        request: &Request,
    ) -> Result<(), Errno> {
        let data = request.payload();
        match (request.a, request.b) {
            (SOL_IP, IP_MULTICAST_ALL) => {
                let on = match int(data)? {
                    0 => false,
                    1 => true,
                    _ => return Err(Errno(EINVAL)),
                };
                Ok(self.stack.set_option(id, SocketOption::MulticastAll(on))?)
            }
            (SOL_IPV6, IPV6_MULTICAST_ALL) => {
                let on = int(data)? != 0;
                Ok(self.stack.set_option(id, SocketOption::MulticastAllV6(on))?)
            }
            (SOL_IP, IP_MULTICAST_IF) => {
                // A struct in_addr, or behind the group in a struct ip_mreq or ip_mreqn.
                let addr = array::<4>(data, if data.len() >= 8 { 4 } else { 0 })?;
                let iface = self.interface_v4(addr, data).map_err(no_such_address)?;
                let source = Some(Ipv4Addr::from(addr)).filter(|addr| !addr.is_unspecified());
                Ok(self.stack.set_option(id, SocketOption::MulticastInterface(iface, source))?)
            }
            (SOL_IPV6, IPV6_MULTICAST_IF) => {
                let iface = self.interface(int(data)?)?;
                Ok(self.stack.set_option(id, SocketOption::MulticastInterfaceV6(iface))?)
            }
            (SOL_IP, IP_ADD_MEMBERSHIP | IP_DROP_MEMBERSHIP) => {
                let group = Ipv4Addr::from(array::<4>(data, 0)?).into();
                let iface = self.interface_v4(array::<4>(data, 4)?, data)?;
                self.membership(now, id, request.b == IP_ADD_MEMBERSHIP, group, iface, None)
            }
            (SOL_IP, IP_ADD_SOURCE_MEMBERSHIP | IP_DROP_SOURCE_MEMBERSHIP) => {
                let join = request.b == IP_ADD_SOURCE_MEMBERSHIP;
                let group = Ipv4Addr::from(array::<4>(data, 0)?).into();
                let source = Ipv4Addr::from(array::<4>(data, 8)?).into();
                let iface = self.interface_v4(array::<4>(data, 4)?, &[])?;
                self.membership(now, id, join, group, iface, Some(source))
            }
            (SOL_IP | SOL_IPV6, MCAST_JOIN_GROUP | MCAST_LEAVE_GROUP) => {
                let iface = self.interface(int(data)?)?;
                let group = storage(request.a, data, 8)?;
                self.membership(now, id, request.b == MCAST_JOIN_GROUP, group, iface, None)
            }
            (SOL_IP | SOL_IPV6, MCAST_JOIN_SOURCE_GROUP | MCAST_LEAVE_SOURCE_GROUP) => {
                let iface = self.interface(int(data)?)?;
                let group = storage(request.a, data, 8)?;
                let source = storage(request.a, data, 8 + STORAGE)?;
                let join = request.b == MCAST_JOIN_SOURCE_GROUP;
                self.membership(now, id, join, group, iface, Some(source))
            }
            (SOL_IPV6, IPV6_ADD_MEMBERSHIP | IPV6_DROP_MEMBERSHIP) => {
                let group = Ipv6Addr::from(array::<16>(data, 0)?).into();
                let iface = self.interface(int(data.get(16..).unwrap_or_default())?)?;
                self.membership(now, id, request.b == IPV6_ADD_MEMBERSHIP, group, iface, None)
            }
            _ => Err(Errno(ENOPROTOOPT)),
        }
    }

    fn membership(
        &mut self,
        now: Instant,
        id: SocketId,
        join: bool,
        group: IpAddr,
        iface: Option<IfaceId>,
        source: Option<IpAddr>,
    ) -> Result<(), Errno> {
        let done = if join {
            self.stack.join_group(now, id, group, iface, source)
        } else {
            self.stack.leave_group(now, id, group, iface, source)
        };
        done.map_err(|error| match error {
            OptionError::Membership if join => Errno(crate::errno::EADDRINUSE),
            OptionError::Membership => Errno(EADDRNOTAVAIL),
            other => other.into(),
        })
    }

    /// A position of the transmit FIFO as a place in the send buffer, counted from the front.
    /// None: there can be no byte in front of it.
    fn urgent_end(&mut self, slot: u32, position: u32) -> Option<u32> {
        let id = self.host.slots.get(slot)?.id?;
        let front = self.stack.send_buffer(id)?.position();
        Some(position.wrapping_sub(front)).filter(|end| *end <= towpath_ring::WINDOW_MAX)
    }

    /// Numbers of interfaces that are not there are taken too, as on Linux: they may come.
    fn bind_to_device(&mut self, slot: u32, id: SocketId, index: u32) -> Result<(), Errno> {
        let device = u16::try_from(index).ok().and_then(|index| index.checked_sub(1)).map(IfaceId);
        self.stack.set_option(id, SocketOption::Device(device))?;
        if let Some(entry) = self.host.slots.get_mut(slot) {
            entry.set_rare(|rare| rare.device = index);
            self.renote(slot);
        }
        Ok(())
    }

    /// As in Linux (`__ip6_datagram_connect`), connecting to a link-local peer, whose address names
    /// the interface, binds the socket to that interface for all further traffic. An address of
    /// this host itself is excepted: it is reached over loopback.
    pub(crate) fn bind_to_scope(&mut self, slot: u32, id: SocketId, peer: &SocketAddr) {
        if let Some(iface) = scope_of(peer).filter(|_| !self.stack.net.is_local(peer.ip())) {
            // Every datagram socket can be bound to one.
            let _ = self.bind_to_device(slot, id, u32::from(iface.0) + 1);
        }
    }

    pub(crate) fn device(&self, slot: u32) -> Option<IfaceId> {
        let index = self.host.slots.get(slot).map_or(0, |entry| entry.rare().device);
        u16::try_from(index).ok()?.checked_sub(1).map(IfaceId)
    }

    /// From a 1-based index; 0: any.
    fn interface(&self, index: i32) -> Result<Option<IfaceId>, Errno> {
        match u16::try_from(index) {
            Ok(0) => Ok(None),
            Ok(index) if usize::from(index) <= self.stack.net.interfaces().len() => {
                Ok(Some(IfaceId(index - 1)))
            }
            _ => Err(Errno(ENODEV)),
        }
    }

    /// From an interface's address, or its index, if `request` is a struct ip_mreqn, which has one.
    fn interface_v4(&self, addr: [u8; 4], request: &[u8]) -> Result<Option<IfaceId>, Errno> {
        /// Where the index is: behind the group and the address.
        const INDEX_AT: usize = 8;
        let index = array::<4>(request, INDEX_AT).map_or(0, i32::from_ne_bytes);
        if index != 0 {
            return self.interface(index);
        }
        let addr = Ipv4Addr::from(addr);
        if addr.is_unspecified() {
            return Ok(None);
        }
        let has = |iface: &&Interface| {
            iface.addresses().iter().any(|address| address.addr() == IpAddr::V4(addr))
        };
        let iface = self.stack.net.interfaces().iter().find(has).ok_or(Errno(ENODEV))?;
        Ok(Some(iface.id()))
    }
}

/// IP_MULTICAST_IF has its own errno for an address that no interface has.
fn no_such_address(errno: Errno) -> Errno {
    if errno == Errno(ENODEV) { Errno(EADDRNOTAVAIL) } else { errno }
}

/// The address in the `struct sockaddr_storage` at `at`, which must be of the level's family.
fn storage(level: u32, data: &[u8], at: usize) -> Result<IpAddr, Errno> {
    let family = u32::from(u16::from_ne_bytes(array::<2>(data, at)?));
    match (level, family) {
        (SOL_IP, AF_INET) => Ok(Ipv4Addr::from(array::<4>(data, at + 4)?).into()),
        (SOL_IPV6, AF_INET6) => Ok(Ipv6Addr::from(array::<16>(data, at + 8)?).into()),
        (SOL_IP, _) => Err(Errno(EINVAL)),
        _ => Err(Errno(EADDRNOTAVAIL)),
    }
}

/// Fills a reply's data.
fn put(reply: &mut Reply, data: &[u8]) {
    reply.len = data.len() as u32;
    reply.data[..data.len()].copy_from_slice(data);
}

/// Options that are for the stack alone, and say all themselves.
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

/// The times that a program set in its slot, within what Linux takes.
fn keepalive(slot: &Slot) -> KeepAlive {
    let seconds = |word: &std::sync::atomic::AtomicU32| {
        Duration::from_secs(u64::from(word.load(Relaxed).clamp(1, 32_767)))
    };
    KeepAlive {
        idle: seconds(&slot.keepidle),
        interval: seconds(&slot.keepintvl),
        probes: slot.keepcnt.load(Relaxed).clamp(1, 127) as u8,
    }
}

/// IP_PMTUDISC_DONT and its kin, which the program's side has checked; one that goes around it gets
/// the default.
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

fn congestion(name: &[u8]) -> Result<CongestionKind, Errno> {
    if name.is_empty() {
        return Err(Errno(EINVAL));
    }
    let end = name.iter().position(|byte| *byte == 0).unwrap_or(name.len());
    match name.get(..end) {
        Some(b"cubic") => Ok(CongestionKind::Cubic),
        Some(b"reno") => Ok(CongestionKind::NewReno),
        _ => Err(Errno(crate::errno::ENOENT)),
    }
}

fn int(data: &[u8]) -> Result<i32, Errno> {
    array::<4>(data, 0).map(i32::from_ne_bytes)
}

fn array<const N: usize>(data: &[u8], at: usize) -> Result<[u8; N], Errno> {
    data.get(at..at + N).and_then(|bytes| bytes.try_into().ok()).ok_or(Errno(EINVAL))
}

fn clamp(value: u64) -> u32 {
    u32::try_from(value).unwrap_or(u32::MAX)
}
