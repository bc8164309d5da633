//! Requests of programs about sockets, and about the network, that a shard answers.

use std::net::SocketAddr;
use std::sync::atomic::Ordering::{Relaxed, Release};

use towpath_ring::{EngineRecv, EngineSend};
use towpath_shm::control::{
    DATA_MAX, FAST_OPEN, IF_FAILED, Interface, Reply, Request, Route, SOCKETS_MAX, call,
    route_origin,
};
use towpath_shm::layout::{AcceptRecord, Command, Kind, Plain, RawAddr, event, flags, option_bit};
use towpath_stack::net::Origin;
use towpath_stack::{ConnectError, Family, SocketId, SocketKind, scope_of};
use towpath_tcp::Instant;

use crate::errno::{
    EAFNOSUPPORT, EAGAIN, EALREADY, EBADF, EINVAL, EISCONN, ENOBUFS, EOPNOTSUPP, EPROTONOSUPPORT,
    Errno,
};
use crate::ids::ChannelId;
use crate::report::STACK_TURN;
use crate::shard::Shard;
use crate::shard::askers::Answer;
use crate::shard::host::{Parent, fits};
use crate::shard::linux::state;
use crate::shard::option_bits::bind_options;
use crate::shard::slots::{AF_INET, AF_INET6, present_on};

/// Linux's `somaxconn`.
pub(super) const BACKLOG_MAX: u32 = 4096;
const RECORD: u32 = size_of::<AcceptRecord>() as u32;
/// Bytes of a slot and a generation.
const PAIR: usize = 8;

impl Shard {
    /// Answers a request of a process. EOPNOTSUPP: the request is none of those that are answered
    /// here. EBADF: besides, it is not about a socket that the process holds.
    pub(crate) fn handle(&mut self, now: Instant, id: ChannelId, request: &Request) -> Answer {
        match request.call {
            call::RESOLVER => return Ok(self.resolver()),
            call::NAMES => return Ok(self.names(request.a)),
            call::SOCKETS => return Ok(self.list_sockets(request.a)),
            call::SOCKET_ROWS => return Ok(self.socket_rows(request)),
            call::SOCKET_FIGURES => return self.socket_figures(request.a),
            call::TALLY => return Ok(self.tally()),
            call::NEIGHBORS => return Ok(self.neighbors(request.a)),
            call::COMMAND => {
                self.command(now, id, &Command::from_bytes(request.payload()));
                return Ok(Reply::default());
            }
            call::SOCKET => return self.open_sockets(id, request),
            call::INTERFACES => return Ok(self.interfaces()),
            call::ROUTES => return Ok(self.routes(request.a)),
            _ => {}
        }
        let slot = self.named(id, request)?;
        match request.call {
            call::BIND => self.bind(slot, &request.addr),
            call::LISTEN => self.listen(now, slot, request.a),
            call::CONNECT => self.connect(now, slot, request),
            call::ADOPT => {
                self.adopt(id, slot);
                Ok(Reply::default())
            }
            call::GET_OPTION => self.get_option(now, slot, request),
            call::ERROR_QUEUE => self.take_report(slot),
            call::CHECK_LENGTH => self.check_length(now, slot, request),
            call::SET_OPTION => {
                self.set_fallible(now, slot, request)?;
                Ok(Reply::default())
            }
            _ => Err(Errno(EOPNOTSUPP)),
        }
    }

    /// The shards, a bit each, to which others may have said something before that makes the answer
    /// another one.
    pub(crate) fn depends_on_shards(&self, id: ChannelId, request: &Request) -> u16 {
        let (own, all) = (self.host.place.own(), self.host.place.all());
        match request.call {
            call::SOCKET | call::INTERFACES | call::ROUTES | call::RESOLVER => return 0,
            call::TALLY | call::NEIGHBORS | call::NAMES => return 0,
            call::BIND | call::LISTEN | call::CONNECT | call::GET_OPTION | call::SET_OPTION => {}
            call::ERROR_QUEUE | call::CHECK_LENGTH => {}
            call::OUTSIDE => return all,
            _ => return own,
        }
        let entry = self.host.slots.get(request.slot);
        let Some(entry) = entry.filter(|entry| entry.generation == request.generation) else {
            return own;
        };
        let shared = match entry.holders[..] {
            [only] if only.id == id => 0,
            _ => own,
        };
        let addr = request.addr.to_socket_addr();
        let is_taken = |port| entry.id.is_some_and(|id| self.stack.is_port_taken(id, port));
        let options = bind_options(self.host.slots.shared(request.slot), entry.rare());
        let shares = options.reuse_addr || options.reuse_port;
        let others = match request.call {
            call::BIND => shares && addr.is_some_and(|addr| is_taken(addr.port())),
            call::LISTEN | call::SET_OPTION => shares,
            // A listener that somebody has closed takes no more connections.
            call::CONNECT => return shared | self.listening_shards(request),
            _ => false,
        };
        shared | if others { all } else { 0 }
    }

    /// The shards that listen where a stream is to connect to on this host, a bit each.
    pub(crate) fn listening_shards(&self, request: &Request) -> u16 {
        let entry = self.host.slots.get(request.slot);
        let is_stream = entry.is_some_and(|entry| !entry.is_datagram());
        let addr =
            request.addr.to_socket_addr().filter(|addr| is_stream && self.stack.is_near(addr.ip()));
        addr.map_or(0, |addr| self.stack.listening_shards(addr))
    }

    /// The slot that a request is about; the process must hold it, unless it is about to.
    fn named(&mut self, id: ChannelId, request: &Request) -> Result<u32, Errno> {
        self.host.slots.find(request.slot, request.generation).ok_or(Errno(EBADF))?;
        if request.call != call::ADOPT && !self.is_held(id, request.slot) {
            return Err(Errno(EBADF));
        }
        Ok(request.slot)
    }

    /// Opens a socket, and as many of the further ones wanted as there can be. None of these is
    /// opened where clones would have to hold them, too, or where few slots are left.
    fn open_sockets(&mut self, id: ChannelId, request: &Request) -> Result<Reply, Errno> {
        let (family, protocol) = (request.a, request.b);
        let (slot, generation) = self.socket(id, family, protocol)?;
        let mut reply = Reply { slot, generation, ..Reply::default() };
        let has_clones = self.host.channels.get(id).is_some_and(|it| !it.clones.is_empty());
        let further = match has_clones || self.host.slots.is_almost_full() {
            true => 0,
            false => SOCKETS_MAX.min(request.slot as usize).saturating_sub(1),
        };
        for pair in reply.data.chunks_exact_mut(PAIR).take(further) {
            let Ok((slot, generation)) = self.socket(id, family, protocol) else { break };
            self.host.counters.work(1);
            pair[..4].copy_from_slice(&slot.to_ne_bytes());
            pair[4..].copy_from_slice(&generation.to_ne_bytes());
            reply.len += PAIR as u32;
        }
        Ok(reply)
    }

    fn socket(&mut self, id: ChannelId, family: u32, protocol: u32) -> Result<(u32, u32), Errno> {
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
        let slot = self.host.slots.allocate(kind, family, protocol).ok_or(Errno(ENOBUFS))?;
        let socket = match self.stack.open(stack_kind, stack_family, slot) {
            Ok(socket) => socket,
            Err(error) => {
                self.host.slots.release(slot);
                return Err(error.into());
            }
        };
        let size = self.host.buffers.datagram;
        let windows = &self.host.windows;
        let entry = self.host.slots.get_mut(slot).ok_or(Errno(ENOBUFS))?;
        entry.id = Some(socket);
        if kind != Kind::Stream {
            let rx = EngineRecv::new(windows, slot, size, size);
            let tx = EngineSend::new(windows, slot, size, size).for_records();
            let owned = entry.owned();
            (owned.rx, owned.tx) = (Some(rx), Some(tx));
        }
        let generation = entry.generation;
        if kind == Kind::Echo {
            // INET_PROTOSW_REUSE: Linux's ping sockets share idents unless they are told not to.
            let bits = &self.host.slots.shared(slot).option_bits;
            bits.fetch_or(option_bit::REUSEADDR, Relaxed);
        }
        self.host.slots.publish(slot);
        self.hold(id, slot);
        Ok((slot, generation))
    }

    fn bind(&mut self, slot: u32, addr: &RawAddr) -> Result<Reply, Errno> {
        let entry = self.host.slots.get(slot).ok_or(Errno(EBADF))?;
        let (family, id) = (entry.family, entry.id.ok_or(Errno(EINVAL))?);
        let addr =
            addr.to_socket_addr().filter(|addr| fits(family, addr)).ok_or(Errno(EAFNOSUPPORT))?;
        let options = bind_options(self.host.slots.shared(slot), entry.rare());
        let bound = self.stack.bind(id, addr, options)?;
        let local = self.present_own(family, bound);
        self.host.slots.shared(slot).local.store(&local);
        self.host.slots.set_flags(slot, flags::BOUND, 0);
        Ok(Reply { addr: local, ..Reply::default() })
    }

    fn listen(&mut self, now: Instant, slot: u32, backlog: u32) -> Result<Reply, Errno> {
        let entry = self.host.slots.get(slot).ok_or(Errno(EBADF))?;
        if entry.is_datagram() {
            return Err(Errno(EOPNOTSUPP));
        }
        // A socket whose connect was refused may listen instead, as on Linux.
        let id = match entry.flags & flags::CONNECTED {
            0 => self.renew(now, slot)?,
            _ => entry.id.ok_or(Errno(EINVAL))?,
        };
        let backlog = backlog.min(BACKLOG_MAX);
        let entry = self.host.slots.get_mut(slot).ok_or(Errno(EBADF))?;
        let note = Parent { backlog, ..Parent::of_entry(slot, entry) }.note();
        self.stack.listen_with(id, backlog, note)?;
        // The FIFO has a record for each connection of the backlog and one more, as on Linux;
        // another may be half read.
        let size = (backlog + 2) * RECORD;
        let windows = &self.host.windows;
        let entry = self.host.slots.get_mut(slot).ok_or(Errno(EBADF))?;
        entry.kind = Kind::Listener;
        entry.owned().backlog = backlog;
        match &mut entry.owned().rx {
            Some(rx) => rx.set_capacity(size),
            none => *none = Some(EngineRecv::new(windows, slot, size, size)),
        }
        self.publish_local(now, slot, id);
        let shared = self.host.slots.shared(slot);
        shared.state.store(state::LISTEN, Release);
        shared.kind.store(Kind::Listener as u32, Release);
        Ok(Reply::default())
    }

    fn connect(&mut self, now: Instant, slot: u32, request: &Request) -> Result<Reply, Errno> {
        let addr = &request.addr;
        let entry = self.host.slots.get(slot).ok_or(Errno(EBADF))?;
        let (family, id) = (entry.family, entry.id.ok_or(Errno(EINVAL))?);
        let datagram = entry.is_datagram();
        if addr.family == 0 {
            let failed = entry.flags & (flags::DEAD | flags::CONNECTED) == flags::DEAD;
            return match datagram {
                true => self.dissolve(now, slot),
                false if request.a == IF_FAILED && !failed => Ok(Reply::default()),
                false => self.disconnect(now, slot),
            };
        }
        let remote =
            addr.to_socket_addr().filter(|addr| fits(family, addr)).ok_or(Errno(EAFNOSUPPORT))?;
        let waits = match datagram {
            true => {
                self.connect_datagram(now, slot, id, remote)?;
                false
            }
            false if entry.flags & flags::CONNECTING != 0 => return Err(Errno(EALREADY)),
            false if entry.flags & flags::CONNECTED != 0 => return Err(Errno(EISCONN)),
            false => self.connect_stream(now, slot, remote, request.b == FAST_OPEN)?,
        };
        // After a connect that failed it is another socket of the stack.
        let id = self.host.slots.get(slot).and_then(|entry| entry.id).ok_or(Errno(EINVAL))?;
        let info = self.stack.info(now, id);
        // An echo socket's port says nothing of the peer, and getpeername(2) gives it back.
        let port = remote.port();
        let on = scope_of(&remote).or_else(|| self.device(slot));
        let remote = info.and_then(|info| info.remote).unwrap_or(remote);
        let shown = SocketAddr::new(remote.ip(), port);
        self.host.slots.shared(slot).remote.store(&present_on(family, shown, on));
        self.publish_local(now, slot, id);
        if datagram {
            self.host.slots.post(slot, event::TX);
        } else if waits {
            // The first write sends the SYN: for the program the socket is connected.
            self.host.slots.set_flags(slot, flags::CONNECTED | flags::OPENING, 0);
            self.host.slots.post(slot, event::TX);
            return Ok(Reply { a: FAST_OPEN, ..Reply::default() });
        } else {
            self.host.slots.set_flags(slot, flags::CONNECTING, 0);
            // Over loopback Linux has shaken hands before connect(2) returns. Programs that connect
            // several times count on a full accept queue being full for the next one.
            if self.stack.is_near(remote.ip()) {
                self.host.counters.work(STACK_TURN);
                self.turn_packets(now);
                self.follow_up(now);
                self.await_threads();
            }
        }
        Ok(Reply::default())
    }

    fn connect_datagram(
        &mut self,
        now: Instant,
        slot: u32,
        id: SocketId,
        remote: SocketAddr,
    ) -> Result<(), Errno> {
        let connected = self.stack.connect_datagram(now, id, remote);
        if connected.is_ok() {
            self.bind_to_scope(slot, id, &remote);
        }
        self.publish_local(now, slot, id);
        connected.map_err(|error| match error {
            // EAGAIN as in Linux, where a socket is bound without bind(2).
            ConnectError::NoPort => Errno(EAGAIN),
            error => error.into(),
        })?;
        let near = if self.stack.is_near(remote.ip()) { flags::NEAR } else { 0 };
        self.host.slots.set_flags(slot, flags::CONNECTED | near, flags::NEAR);
        Ok(())
    }

    /// Begins to open a connection. True: with Fast Open, and its SYN waits for the first bytes.
    pub(crate) fn connect_stream(
        &mut self,
        now: Instant,
        slot: u32,
        remote: SocketAddr,
        fast_open: bool,
    ) -> Result<bool, Errno> {
        // New FIFOs would take the slot from its accept queue.
        if self.host.slots.get(slot).is_some_and(|entry| entry.kind == Kind::Listener) {
            return Err(Errno(EISCONN));
        }
        let id = self.renew(now, slot)?;
        let near = self.stack.is_near(remote.ip());
        let (recv, send) = self.host.stream_buffers(slot, near);
        self.host.slots.set_flags(slot, if near { flags::NEAR } else { 0 }, flags::NEAR);
        let waits = match fast_open {
            true => self.stack.connect_fast_open(now, id, remote, recv, send)?,
            false => self.stack.connect(now, id, remote, recv, send).map(|()| false)?,
        };
        let shared = self.host.slots.shared(slot);
        // An earlier connection may have left its error and state behind.
        shared.error.store(0, Release);
        shared.state.store(state::SYN_SENT, Release);
        Ok(waits)
    }

    /// Takes the peer of a datagram socket away.
    fn dissolve(&mut self, now: Instant, slot: u32) -> Result<Reply, Errno> {
        let id = self.host.slots.get(slot).and_then(|entry| entry.id).ok_or(Errno(EINVAL))?;
        self.stack.disconnect(id);
        if let Some(entry) = self.host.slots.get_mut(slot) {
            entry.set_rare(|rare| rare.device = 0);
        }
        self.host.slots.set_flags(slot, 0, flags::CONNECTED);
        self.host.slots.shared(slot).remote.store(&RawAddr::default());
        self.publish_local(now, slot, id);
        Ok(Reply::default())
    }

    fn resolver(&self) -> Reply {
        self.resolver.map_or_else(Reply::default, |resolver| Reply {
            a: resolver.only_loopback.into(),
            addr: RawAddr::new(SocketAddr::new(resolver.address, 0)),
            ..Reply::default()
        })
    }

    /// As much of the text as fits one message.
    fn names(&self, from: u32) -> Reply {
        let rest = self.names.as_bytes().get(from as usize..).unwrap_or_default();
        let told = &rest[..rest.len().min(DATA_MAX)];
        let mut reply = Reply::default();
        reply.data[..told.len()].copy_from_slice(told);
        reply.len = told.len() as u32;
        reply.a = if told.len() < rest.len() { from + told.len() as u32 } else { 0 };
        reply
    }

    /// As many as fit one message; the first address of every interface comes before the second of
    /// any.
    fn interfaces(&self) -> Reply {
        const MAX: usize = DATA_MAX / size_of::<Interface>();
        let mut reply = Reply::default();
        let mut list: Vec<(usize, Interface)> = Vec::new();
        for iface in self.stack.net.interfaces() {
            let base = describe(iface);
            let usable = iface.addresses().iter().filter(|address| address.is_usable());
            let before = list.len();
            for (rank, address) in usable.enumerate() {
                let prefix = address.prefix;
                let addr = RawAddr::new(SocketAddr::new(prefix.addr(), 0));
                list.push((rank, Interface { addr, prefix_len: u32::from(prefix.len()), ..base }));
            }
            if list.len() == before {
                list.push((0, base));
            }
        }
        list.sort_by_key(|(rank, _)| *rank);
        list.truncate(MAX);
        list.sort_by_key(|(_, interface)| interface.index);
        for (to, (_, interface)) in reply.data.chunks_exact_mut(size_of::<Interface>()).zip(&list) {
            to.copy_from_slice(interface.as_bytes());
        }
        reply.a = list.len() as u32;
        reply.len = (list.len() * size_of::<Interface>()) as u32;
        reply
    }

    /// As many routes as fit, from `first` on.
    fn routes(&self, first: u32) -> Reply {
        const MAX: usize = DATA_MAX / size_of::<Route>();
        let mut reply = Reply::default();
        let mut rest = self.stack.net.routes().skip(first as usize);
        let mut count = 0;
        for (to, entry) in
            reply.data.chunks_exact_mut(size_of::<Route>()).zip(rest.by_ref().take(MAX))
        {
            let addr = |ip| RawAddr::new(SocketAddr::new(ip, 0));
            let route = Route {
                dst: addr(entry.prefix.network()),
                gateway: entry.next_hop.map_or_else(RawAddr::default, addr),
                prefix_len: entry.prefix.len().into(),
                index: u32::from(entry.iface.0) + 1,
                metric: entry.metric,
                origin: match entry.origin {
                    Origin::Static => route_origin::STATIC,
                    Origin::Link => route_origin::LINK,
                    Origin::Router => route_origin::ROUTER,
                },
                mtu: entry.mtu.map_or(0, u32::from),
                weight: entry.weight.into(),
            };
            to.copy_from_slice(route.as_bytes());
            count += 1;
        }
        reply.len = count * size_of::<Route>() as u32;
        reply.a = if rest.next().is_some() { first + count } else { 0 };
        reply
    }
}

fn describe(iface: &towpath_stack::net::Interface) -> Interface {
    // IFF_UP | IFF_RUNNING, with IFF_LOOPBACK, IFF_BROADCAST | IFF_MULTICAST as Ethernet, or
    // IFF_POINTOPOINT | IFF_NOARP | IFF_MULTICAST as a TUN device has them (tun_net_init in
    // drivers/net/tun.c).
    const UP: u32 = 0x41;
    let is_loopback = iface.id() == towpath_stack::IfaceId::LOOPBACK;
    let kind = match iface.link() {
        _ if is_loopback => 0x8,
        towpath_pool::LinkType::Ethernet => 0x1002,
        towpath_pool::LinkType::Ip => 0x1090,
    };
    let mut name = [0; 16];
    let n = iface.name().len().min(15);
    name[..n].copy_from_slice(&iface.name().as_bytes()[..n]);
    Interface {
        name,
        index: u32::from(iface.id().0) + 1,
        mtu: iface.mtu(),
        flags: if iface.is_down() { kind } else { UP | kind },
        mac: iface.mac().0,
        ..Interface::default()
    }
}
