//! Opens, binds and connects sockets of programs.

use std::net::SocketAddr;
use std::sync::atomic::Ordering::{Relaxed, Release};

use towpath_ring::{EngineRecv, EngineSend, SocketRecv, SocketSend};
use towpath_shm::control::{ControlReply, FAST_OPEN, IF_FAILED, Request, call};
use towpath_shm::layout::{AcceptRecord, Kind, RawAddr, event, flags, option_bit};
use towpath_stack::{ConnectError, Family, SocketId, SocketKind, scope_of};
use towpath_tcp::Info;

use crate::errno::{
    EAFNOSUPPORT, EAGAIN, EALREADY, EBADF, EINVAL, EISCONN, ENOBUFS, EOPNOTSUPP, EPROTONOSUPPORT,
    Errno,
};
use crate::ids::ChannelId;
use crate::report::STACK_TURN;
use crate::shard::net::Net;
use crate::shard::peers::ShardPeers;
use crate::shard::processes::channels::Channels;
use crate::shard::sockets::Sockets;
use crate::shard::sockets::children::{Parent, fits};
use crate::shard::sockets::linux::state;
use crate::shard::sockets::option_bits::bind_options;
use crate::shard::sockets::slots::{AF_INET, AF_INET6, present_on};

const RECORD: u32 = size_of::<AcceptRecord>() as u32;

/// Maximum backlog of a listener, the default of Linux's `somaxconn`.
pub(super) const BACKLOG_MAX: u32 = 4096;

impl Sockets {
    /// Returns a bit set of the peer shards (event loops) whose earlier messages may change the
    /// reply to this request. The request must wait for these messages.
    pub(crate) fn depends_on_shards(&self, net: &Net, id: ChannelId, request: &Request) -> u16 {
        let (own, all) = (self.place.own(), self.place.all());
        match request.call {
            call::SOCKET | call::INTERFACES | call::ROUTES | call::RESOLVER => return 0,
            call::TALLY | call::NEIGHBORS | call::NAMES => return 0,
            call::BIND | call::LISTEN | call::CONNECT | call::GET_OPTION | call::SET_OPTION => {}
            call::ERROR_QUEUE | call::CHECK_LENGTH => {}
            call::OUTSIDE => return all,
            _ => return own,
        }
        let entry = self.slots.get(request.slot);
        let Some(entry) = entry.filter(|entry| entry.generation == request.generation) else {
            return own;
        };
        let shared = match entry.holders[..] {
            [only] if only.id == id => 0,
            _ => own,
        };
        let addr = request.addr.to_socket_addr();
        let is_taken = |port| entry.id.is_some_and(|id| net.stack.is_port_taken(id, port));
        let options = bind_options(self.slots.shared(request.slot), entry.rare());
        let shares = options.reuse_addr || options.reuse_port;
        let others = match request.call {
            call::BIND => shares && addr.is_some_and(|addr| is_taken(addr.port())),
            call::LISTEN | call::SET_OPTION => shares,
            // Another process may have closed a listener at the destination. The listener's shard
            // (event loop) must process the close before this connect.
            call::CONNECT => return shared | self.listening_shards(net, request),
            _ => false,
        };
        shared | if others { all } else { 0 }
    }

    /// Returns a bit set of the shards with a listener for the destination of a stream's connect,
    /// if the destination is on this host.
    pub(crate) fn listening_shards(&self, net: &Net, request: &Request) -> u16 {
        let entry = self.slots.get(request.slot);
        let is_stream = entry.is_some_and(|entry| !entry.is_datagram());
        let addr =
            request.addr.to_socket_addr().filter(|addr| is_stream && net.stack.is_near(addr.ip()));
        addr.map_or(0, |addr| net.stack.listening_shards(addr))
    }

    /// Opens a socket for which no process is recorded yet. Returns its slot and generation.
    pub(crate) fn open(
        &mut self,
        net: &mut Net,
        family: u32,
        protocol: u32,
    ) -> Result<(u32, u32), Errno> {
        let stack_family = match family {
            AF_INET => Family::V4,
            AF_INET6 => Family::V6,
            _ => return Err(Errno(EAFNOSUPPORT)),
        };
        let (kind, stack_kind) = match (protocol, family) {
            (6, _) => (Kind::Stream, SocketKind::Stream),
            (17, _) => (Kind::Datagram, SocketKind::Datagram),
            (1, AF_INET) | (58, AF_INET6) => (Kind::Echo, SocketKind::Echo),
            _ => return Err(Errno(EPROTONOSUPPORT)),
        };
        let slot = self.slots.allocate(kind, family, protocol).ok_or(Errno(ENOBUFS))?;
        let socket = match net.stack.open(stack_kind, stack_family, slot) {
            Ok(socket) => socket,
            Err(error) => {
                self.slots.release(slot);
                return Err(error.into());
            }
        };
        let size = self.buffers.datagram;
        let windows = &self.windows;
        let entry = self.slots.get_mut(slot).ok_or(Errno(ENOBUFS))?;
        entry.id = Some(socket);
        if kind != Kind::Stream {
            let rx = EngineRecv::new(windows, slot, size, size);
            let tx = EngineSend::new(windows, slot, size, size).for_records();
            let owned = entry.owned();
            (owned.rx, owned.tx) = (Some(rx), Some(tx));
        }
        let generation = entry.generation;
        if kind == Kind::Echo {
            // Set SO_REUSEADDR: as on Linux (INET_PROTOSW_REUSE), ping sockets share identifiers
            // unless the program disables it.
            let bits = &self.slots.shared(slot).option_bits;
            bits.fetch_or(option_bit::REUSEADDR, Relaxed);
        }
        self.slots.publish(slot);
        Ok((slot, generation))
    }

    /// Implements bind(2).
    pub(crate) fn bind(
        &mut self,
        net: &mut Net,
        slot: u32,
        addr: &RawAddr,
    ) -> Result<ControlReply, Errno> {
        let entry = self.slots.get(slot).ok_or(Errno(EBADF))?;
        let (family, id) = (entry.family, entry.id.ok_or(Errno(EINVAL))?);
        let addr =
            addr.to_socket_addr().filter(|addr| fits(family, addr)).ok_or(Errno(EAFNOSUPPORT))?;
        let options = bind_options(self.slots.shared(slot), entry.rare());
        let bound = net.stack.bind(id, addr, options)?;
        let local = net.present_own(family, bound);
        self.slots.shared(slot).local.store(&local);
        self.slots.set_flags(slot, flags::BOUND, 0);
        Ok(ControlReply { addr: local, ..ControlReply::default() })
    }

    /// Implements listen(2).
    pub(crate) fn listen(
        &mut self,
        net: &mut Net,
        slot: u32,
        backlog: u32,
    ) -> Result<ControlReply, Errno> {
        let entry = self.slots.get(slot).ok_or(Errno(EBADF))?;
        if entry.is_datagram() {
            return Err(Errno(EOPNOTSUPP));
        }
        // If an earlier connect was refused, the socket may listen instead, as on Linux.
        let id = match entry.flags & flags::CONNECTED {
            0 => self.renew(net, slot)?,
            _ => entry.id.ok_or(Errno(EINVAL))?,
        };
        let backlog = backlog.min(BACKLOG_MAX);
        let entry = self.slots.get_mut(slot).ok_or(Errno(EBADF))?;
        let note = Parent { backlog, ..Parent::of_entry(slot, entry) }.note();
        net.stack.listen_with(id, backlog, note)?;
        // As on Linux, one more connection than the backlog can wait in the accept queue. Another
        // record may be partly read.
        let size = (backlog + 2) * RECORD;
        let windows = &self.windows;
        let entry = self.slots.get_mut(slot).ok_or(Errno(EBADF))?;
        entry.kind = Kind::Listener;
        entry.owned().backlog = backlog;
        match &mut entry.owned().rx {
            Some(rx) => rx.set_capacity(size),
            none => *none = Some(EngineRecv::new(windows, slot, size, size)),
        }
        self.publish_local(net, slot, id);
        let shared = self.slots.shared(slot);
        shared.state.store(state::LISTEN, Release);
        shared.kind.store(Kind::Listener as u32, Release);
        Ok(ControlReply::default())
    }

    /// Implements connect(2).
    pub(crate) fn connect(
        &mut self,
        net: &mut Net,
        channels: &mut Channels,
        peers: &ShardPeers,
        slot: u32,
        request: &Request,
    ) -> Result<ControlReply, Errno> {
        let now = self.now;
        let addr = &request.addr;
        let entry = self.slots.get(slot).ok_or(Errno(EBADF))?;
        let (family, id) = (entry.family, entry.id.ok_or(Errno(EINVAL))?);
        let datagram = entry.is_datagram();
        if addr.family == 0 {
            let failed = entry.flags & (flags::DEAD | flags::CONNECTED) == flags::DEAD;
            return match datagram {
                true => self.dissolve(net, slot),
                false if request.a == IF_FAILED && !failed => Ok(ControlReply::default()),
                false => self.disconnect(net, peers, slot),
            };
        }
        let remote =
            addr.to_socket_addr().filter(|addr| fits(family, addr)).ok_or(Errno(EAFNOSUPPORT))?;
        let waits = match datagram {
            true => {
                self.connect_datagram(net, slot, id, remote)?;
                false
            }
            false if entry.flags & flags::CONNECTING != 0 => return Err(Errno(EALREADY)),
            false if entry.flags & flags::CONNECTED != 0 => return Err(Errno(EISCONN)),
            false if request.b == FAST_OPEN && !net.stack.config().tcp.fast_open.client() => {
                return Err(Errno(EOPNOTSUPP));
            }
            false => self.connect_stream(net, slot, remote, request.b == FAST_OPEN)?,
        };
        // Look up the stack's socket again. If an earlier connect has failed, the slot has a new
        // one.
        let id = self.slots.get(slot).and_then(|entry| entry.id).ok_or(Errno(EINVAL))?;
        let info = net.stack.info(now, id);
        // Return the port that the program passed to connect from getpeername(2), although ping
        // sockets have no peer port.
        let port = remote.port();
        let on = scope_of(&remote).or_else(|| self.device(slot));
        let remote = info.and_then(|info| info.remote).unwrap_or(remote);
        let shown = SocketAddr::new(remote.ip(), port);
        self.slots.shared(slot).remote.store(&present_on(family, shown, on));
        self.publish_local(net, slot, id);
        if datagram {
            self.slots.post(slot, event::TX);
        } else if waits {
            // With TCP_FASTOPEN_CONNECT, the first write sends the SYN. Until then, the program
            // sees a connected socket.
            self.slots.set_flags(slot, flags::CONNECTED | flags::OPENING, 0);
            self.slots.post(slot, event::TX);
            let room = info.and_then(|info| info.tcp).map_or(0, |tcp| syn_room(&tcp));
            return Ok(ControlReply { a: FAST_OPEN, slot: room, ..ControlReply::default() });
        } else {
            self.slots.set_flags(slot, flags::CONNECTING, 0);
            // Complete the handshake over loopback now. On Linux it is complete when connect(2)
            // returns, and programs rely on this to fill an accept queue.
            if net.stack.is_near(remote.ip()) {
                self.counters.work(STACK_TURN);
                self.turn_packets(net, peers);
                self.follow_up(net, channels);
                self.await_threads(channels);
            }
        }
        Ok(ControlReply::default())
    }

    fn connect_datagram(
        &mut self,
        net: &mut Net,

        slot: u32,
        id: SocketId,
        remote: SocketAddr,
    ) -> Result<(), Errno> {
        let now = self.now;
        let connected = net.stack.connect_datagram(now, id, remote);
        if connected.is_ok() {
            self.options(net, slot).bind_to_scope(id, &remote);
        }
        self.publish_local(net, slot, id);
        connected.map_err(|error| match error {
            // Return EAGAIN, as Linux does if no port is left for a socket that was not bound by
            // bind(2).
            ConnectError::NoPort => Errno(EAGAIN),
            error => error.into(),
        })?;
        let near = if net.stack.is_near(remote.ip()) { flags::NEAR } else { 0 };
        self.slots.set_flags(slot, flags::CONNECTED | near, flags::NEAR);
        Ok(())
    }

    /// Begins to open a connection of a stream. Returns true if the SYN is delayed until the first
    /// write, because of TCP Fast Open.
    pub(crate) fn connect_stream(
        &mut self,
        net: &mut Net,

        slot: u32,
        remote: SocketAddr,
        fast_open: bool,
    ) -> Result<bool, Errno> {
        let now = self.now;
        // Refuse a listener, because new FIFOs would replace its accept queue.
        if self.slots.get(slot).is_some_and(|entry| entry.kind == Kind::Listener) {
            return Err(Errno(EISCONN));
        }
        let id = self.renew(net, slot)?;
        let near = net.stack.is_near(remote.ip());
        let (recv, send) = self.stream_buffers(slot, near);
        let (recv, send) = (SocketRecv::Slot(recv), SocketSend::Slot(send));
        self.slots.set_flags(slot, if near { flags::NEAR } else { 0 }, flags::NEAR);
        let waits = match fast_open {
            true => net.stack.connect_fast_open(now, id, remote, recv, send)?,
            false => net.stack.connect(now, id, remote, recv, send).map(|()| false)?,
        };
        let shared = self.slots.shared(slot);
        // Clear the error and the state of an earlier connection.
        shared.error.store(0, Release);
        shared.state.store(state::SYN_SENT, Release);
        Ok(waits)
    }

    /// Removes the peer of a datagram socket.
    fn dissolve(&mut self, net: &mut Net, slot: u32) -> Result<ControlReply, Errno> {
        let id = self.slots.get(slot).and_then(|entry| entry.id).ok_or(Errno(EINVAL))?;
        net.stack.disconnect(id);
        if let Some(entry) = self.slots.get_mut(slot) {
            entry.set_rare(|rare| rare.device = 0);
        }
        self.slots.set_flags(slot, 0, flags::CONNECTED);
        self.slots.shared(slot).remote.store(&RawAddr::default());
        self.publish_local(net, slot, id);
        Ok(ControlReply::default())
    }
}

/// Returns how many bytes of data fit a SYN with all TCP options (RFC 7413 §4.1.3).
fn syn_room(info: &Info) -> u32 {
    const OPTIONS_MAX: u32 = 40;
    const TIMESTAMPS: u32 = 12;
    let mss = info.snd_mss + if info.timestamps { TIMESTAMPS } else { 0 };
    mss.saturating_sub(OPTIONS_MAX)
}
