//! What programs ask over their control sockets, and the answers.

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};

use towpath_ring::EngineRecv;
use towpath_shm::control::{
    DATA_MAX, IF_FAILED, Interface, Reply, Request, Route, TOKENS_MAX, call, goes_by_socket,
    route_origin,
};
use towpath_shm::image::Outside;
use towpath_shm::layout::{
    AcceptRecord, Command, Kind, Plain, RawAddr, VERSION, event, flags, option_bit,
};
use towpath_shm::token;
use towpath_stack::net::Origin;
use towpath_stack::{ConnectError, Family, SocketKind, scope_of};
use towpath_tcp::Instant;

use crate::answer::{Answer, Passed};
use crate::engine::Engine;
use crate::errno::{
    EACCES, EAFNOSUPPORT, EAGAIN, EALREADY, EBADF, EINVAL, EISCONN, ENOBUFS, EOPNOTSUPP, EPROTO,
    EPROTONOSUPPORT, Errno,
};
use crate::ids::ChannelId;
use crate::registry::Outsider;
use crate::report::{STACK_TURN, TOKEN};
use crate::requests::By;
use crate::shard::host::fits;
use crate::shard::linux::state;
use crate::shard::option_bits::bind_options;
use crate::shard::slots::{AF_INET, AF_INET6, present_on};
use crate::sys;
use crate::wire::{self, Sent};

/// Linux's `somaxconn`.
const BACKLOG_MAX: u32 = 4096;
/// Slots that one SOCKETS looks at: a look costs some ns.
const SLOTS_A_REQUEST: u32 = 4096;
const RECORD: u32 = size_of::<AcceptRecord>() as u32;

fn refused(Errno(errno): Errno) -> Reply {
    Reply { errno, ..Reply::default() }
}

impl Engine {
    /// Answers a request on the control socket, or begins to deal with one that is answered later. False: the process
    /// does not take the answer.
    pub(crate) fn answer(&mut self, now: Instant, id: ChannelId, request: &Request) -> bool {
        let answer = self.handle(now, id, By::Socket, request);
        answer.is_none_or(|answer| self.send_answer(id, By::Socket, answer))
    }

    /// False: the process does not take it.
    pub(crate) fn send_answer(&mut self, id: ChannelId, by: By, answer: Answer) -> bool {
        let (reply, fds) = answer.unwrap_or_else(|errno| (refused(errno), Vec::new()));
        if by == By::Socket {
            return self.send(id, &reply, fds);
        }
        debug_assert!(fds.is_empty(), "they go by the socket");
        if let Some(link) = self.shard.host.channels.get_mut(id).and_then(|it| it.link.as_mut()) {
            link.ring.answer(&reply);
        }
        true
    }

    fn send(&mut self, id: ChannelId, answer: &Reply, fds: Vec<Passed>) -> bool {
        let Some(process) = self.registry.get(id) else { return true };
        let (control, whose) = (process.control.as_fd(), process.closes_as);
        // How many descriptors may be on their way is limited for all processes of the engine's user
        // together. A program that asks for them takes them before it asks again.
        let greedy = !fds.is_empty() && sys::has_unreceived(control);
        let borrowed: Option<Vec<_>> = fds.iter().map(|passed| self.descriptor(passed)).collect();
        let reply = |reply: &Reply, fds: &[BorrowedFd<'_>]| wire::reply(control, reply, fds);
        let sent = match borrowed {
            None => reply(&refused(Errno(EPROTO)), &[]),
            Some(_) if greedy => Sent::No,
            Some(borrowed) => match reply(answer, &borrowed) {
                Sent::TooMany => reply(&refused(Errno(EAGAIN)), &[]),
                sent => sent,
            },
        };
        // The program may have received, used and closed them by now: then this is the last close.
        for passed in fds {
            if let Passed::Own(fd) = passed {
                self.registry.closer.close(whose, [fd]);
            }
        }
        sent == Sent::Yes
    }

    /// None: there is no such thing (any more).
    fn descriptor<'a>(&'a self, passed: &'a Passed) -> Option<BorrowedFd<'a>> {
        let link = |id: ChannelId| self.shard.host.channels.get(id)?.link.as_ref();
        let descriptor = match passed {
            Passed::Region => self.shard.host.region.mapping().file()?,
            Passed::Status => self.shard.status.file()?,
            Passed::Blank => &self.registry.blank,
            Passed::Lifeline => self.registry.lifeline.as_ref()?,
            Passed::Memory(id) => link(*id)?.ring.channel().mapping().file()?,
            Passed::EngineBell(id) => &link(*id)?.engine_bell,
            Passed::Own(fd) => fd,
        };
        Some(descriptor.as_fd())
    }

    /// None: it is answered when its last portion is done.
    pub(crate) fn handle(
        &mut self,
        now: Instant,
        id: ChannelId,
        by: By,
        request: &Request,
    ) -> Option<Answer> {
        let has_link =
            self.shard.host.channels.get(id).is_some_and(|attached| attached.link.is_some());
        match request.call {
            number if by == By::Cell && goes_by_socket(number) => Some(Err(Errno(EPROTO))),
            call::HELLO => self.hello(now, id, request),
            call::REGION => Some(self.region()),
            _ if !has_link => Some(Err(Errno(EPROTO))),
            call::CLONE => self.clone_channel(now, id, request.a).err().map(Err),
            _ => Some(self.handle_at_once(now, id, request)),
        }
    }

    fn handle_at_once(&mut self, now: Instant, id: ChannelId, request: &Request) -> Answer {
        let plain = |reply| Ok((reply, Vec::new()));
        match request.call {
            call::SOCKET => return plain(self.socket(id, request.a, request.b)?),
            call::INTERFACES => return plain(self.interfaces()),
            call::ROUTES => return plain(self.routes(request.a)),
            call::RESOLVER => return plain(self.resolver()),
            call::COMMAND => {
                self.command(now, id, &Command::from_bytes(request.payload()));
                return plain(Reply::default());
            }
            call::SOCKETS => return plain(self.list_sockets(request.a)),
            call::OUTSIDE => return plain(self.outside(id, request)?),
            call::TOKENS => return self.tokens(id, request),
            _ => {}
        }
        let slot = self.named(id, request)?;
        match request.call {
            call::BIND => plain(self.bind(slot, &request.addr)?),
            call::LISTEN => plain(self.listen(now, slot, request.a)?),
            call::CONNECT => plain(self.connect(now, slot, request)?),
            call::ADOPT => {
                self.shard.adopt(id, slot);
                plain(Reply::default())
            }
            call::GET_OPTION => plain(self.shard.get_option(now, slot, request)?),
            call::ERROR_QUEUE => plain(self.shard.take_report(slot)?),
            call::CHECK_LENGTH => plain(self.shard.check_length(now, slot, request)?),
            call::SET_OPTION => {
                self.shard.set_fallible(now, slot, request)?;
                plain(Reply::default())
            }
            _ => Err(Errno(EOPNOTSUPP)),
        }
    }

    /// The slot that a request is about; the process must hold it, unless it is about to.
    fn named(&mut self, id: ChannelId, request: &Request) -> Result<u32, Errno> {
        self.shard.host.slots.find(request.slot, request.generation).ok_or(Errno(EBADF))?;
        if request.call != call::ADOPT && !self.shard.is_held(id, request.slot) {
            return Err(Errno(EBADF));
        }
        Ok(request.slot)
    }

    /// None: it is answered when the locks of the image before are free.
    fn hello(&mut self, now: Instant, id: ChannelId, request: &Request) -> Option<Answer> {
        self.registry.get_mut(id)?.pid = request.a;
        for (slot, generation) in handles(request) {
            self.list(id, slot, generation);
        }
        if request.b != 0 {
            return Some(Ok((Reply::default(), Vec::new())));
        }
        self.no_more_a_clone(id);
        // Fresh rings: whatever the old image left half done in its own is forgotten with them.
        let Ok(bell) = self.link(id, false) else { return Some(Err(Errno(ENOBUFS))) };
        self.begin_image(now, id, bell);
        None
    }

    /// Descriptors with the names of sockets.
    fn tokens(&mut self, id: ChannelId, request: &Request) -> Answer {
        let (mut reply, mut tokens) = (Reply::default(), Vec::new());
        for (n, (slot, generation)) in (0..).zip(handles(request).take(TOKENS_MAX)) {
            let is_its = self.shard.host.slots.find(slot, generation).is_some()
                && self.shard.is_held(id, slot);
            if is_its {
                self.shard.host.counters.work(TOKEN);
                let run = self.registry.run;
                match token::named(token::Name { run, slot, generation }) {
                    Ok(token) => tokens.push(Passed::Own(token)),
                    Err(_) if n == 0 => return Err(Errno(ENOBUFS)),
                    // There are no descriptors left for more at once.
                    Err(_) => break,
                }
                reply.b |= 1 << n;
            }
            reply.a = n + 1;
        }
        if reply.a == 0 { Err(Errno(EINVAL)) } else { Ok((reply, tokens)) }
    }

    /// A process says that it executes a program whose sockets will be the kernel's.
    fn outside(&mut self, id: ChannelId, request: &Request) -> Result<Reply, Errno> {
        let why = Outside::from_number(request.a).ok_or(Errno(EINVAL))?;
        let pid = self.registry.get(id).map_or(0, |process| process.pid);
        self.shard.host.counters.outsiders += 1;
        let outsider = Outsider { pid, path: request.payload(), why };
        let allowed = self.registry.gatekeeper.as_mut().is_none_or(|may_pass| may_pass(outsider));
        if allowed { Ok(Reply::default()) } else { Err(Errno(EACCES)) }
    }

    fn region(&self) -> Answer {
        let run = self.registry.run.to_bytes();
        let mut reply = Reply { a: VERSION, len: run.len() as u32, ..Reply::default() };
        reply.data[..run.len()].copy_from_slice(&run);
        Ok((reply, vec![Passed::Region]))
    }

    fn socket(&mut self, id: ChannelId, family: u32, protocol: u32) -> Result<Reply, Errno> {
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
        let slot = self.shard.host.slots.allocate(kind, family, protocol).ok_or(Errno(ENOBUFS))?;
        let socket = match self.shard.stack.open(stack_kind, stack_family, slot) {
            Ok(socket) => socket,
            Err(error) => {
                self.shard.host.slots.release(slot);
                return Err(error.into());
            }
        };
        let size = self.shard.host.buffers.datagram;
        let windows = &self.shard.host.windows;
        let entry = self.shard.host.slots.get_mut(slot).ok_or(Errno(ENOBUFS))?;
        entry.id = Some(socket);
        if kind != Kind::Stream {
            let rx = EngineRecv::new(windows, slot, size, size);
            let tx = towpath_ring::EngineSend::new(windows, slot, size, size).for_records();
            let owned = entry.owned();
            (owned.rx, owned.tx) = (Some(rx), Some(tx));
        }
        let generation = entry.generation;
        if kind == Kind::Echo {
            // INET_PROTOSW_REUSE: Linux's ping sockets share idents unless they are told not to.
            let bits = &self.shard.host.slots.shared(slot).option_bits;
            bits.fetch_or(option_bit::REUSEADDR, std::sync::atomic::Ordering::Relaxed);
        }
        self.shard.host.slots.publish(slot);
        self.shard.hold(id, slot);
        Ok(Reply { slot, generation, ..Reply::default() })
    }

    fn bind(&mut self, slot: u32, addr: &RawAddr) -> Result<Reply, Errno> {
        let entry = self.shard.host.slots.get(slot).ok_or(Errno(EBADF))?;
        let (family, id) = (entry.family, entry.id.ok_or(Errno(EINVAL))?);
        let addr =
            addr.to_socket_addr().filter(|addr| fits(family, addr)).ok_or(Errno(EAFNOSUPPORT))?;
        let options = bind_options(self.shard.host.slots.shared(slot), entry.rare().free_bind);
        let bound = self.shard.stack.bind(id, addr, options)?;
        if let Some(entry) = self.shard.host.slots.get_mut(slot) {
            let named = Some(bound.ip()).filter(|ip| !ip.is_unspecified());
            entry.set_rare(|rare| rare.bound = named);
        }
        let local = self.shard.present_own(family, bound);
        self.shard.host.slots.shared(slot).local.store(&local);
        self.shard.host.slots.set_flags(slot, flags::BOUND, 0);
        Ok(Reply { addr: local, ..Reply::default() })
    }

    fn listen(&mut self, now: Instant, slot: u32, backlog: u32) -> Result<Reply, Errno> {
        let entry = self.shard.host.slots.get(slot).ok_or(Errno(EBADF))?;
        if entry.is_datagram() {
            return Err(Errno(EOPNOTSUPP));
        }
        // A socket whose connect was refused may listen instead, as on Linux.
        let id = match entry.flags & flags::CONNECTED {
            0 => self.shard.renew(now, slot)?,
            _ => entry.id.ok_or(Errno(EINVAL))?,
        };
        let backlog = backlog.min(BACKLOG_MAX);
        self.shard.stack.listen(id, backlog)?;
        // One more than the backlog wait, and one may be half read.
        let size = (backlog + 2) * RECORD;
        let windows = &self.shard.host.windows;
        let entry = self.shard.host.slots.get_mut(slot).ok_or(Errno(EBADF))?;
        entry.kind = Kind::Listener;
        match &mut entry.owned().rx {
            Some(rx) => rx.set_capacity(size),
            none => *none = Some(EngineRecv::new(windows, slot, size, size)),
        }
        self.shard.publish_local(now, slot, id);
        let shared = self.shard.host.slots.shared(slot);
        shared.state.store(state::LISTEN, std::sync::atomic::Ordering::Release);
        shared.kind.store(Kind::Listener as u32, std::sync::atomic::Ordering::Release);
        Ok(Reply::default())
    }

    fn connect(&mut self, now: Instant, slot: u32, request: &Request) -> Result<Reply, Errno> {
        let addr = &request.addr;
        let entry = self.shard.host.slots.get(slot).ok_or(Errno(EBADF))?;
        let (family, id) = (entry.family, entry.id.ok_or(Errno(EINVAL))?);
        let datagram = entry.is_datagram();
        if addr.family == 0 {
            let failed = entry.flags & (flags::DEAD | flags::CONNECTED) == flags::DEAD;
            return match datagram {
                true => self.dissolve(now, slot),
                false if request.a == IF_FAILED && !failed => Ok(Reply::default()),
                false => self.shard.disconnect(now, slot),
            };
        }
        let remote =
            addr.to_socket_addr().filter(|addr| fits(family, addr)).ok_or(Errno(EAFNOSUPPORT))?;
        if datagram {
            let connected = self.shard.stack.connect_datagram(now, id, remote);
            if connected.is_ok() {
                self.shard.bind_to_scope(slot, id, &remote);
            }
            self.shard.publish_local(now, slot, id);
            connected.map_err(|error| match error {
                // As Linux has it for those that are bound without asking.
                ConnectError::NoPort => Errno(EAGAIN),
                error => error.into(),
            })?;
            self.shard.host.slots.set_flags(slot, flags::CONNECTED, 0);
        } else {
            if entry.flags & flags::CONNECTING != 0 {
                return Err(Errno(EALREADY));
            }
            if entry.flags & flags::CONNECTED != 0 {
                return Err(Errno(EISCONN));
            }
            self.connect_stream(now, slot, remote)?;
        }
        // After a connect that failed it is another socket of the stack.
        let id = self.shard.host.slots.get(slot).and_then(|entry| entry.id).ok_or(Errno(EINVAL))?;
        let info = self.shard.stack.info(now, id);
        // Of an echo socket the port says nothing, and getpeername(2) gives it back.
        let port = remote.port();
        let on = scope_of(&remote).or_else(|| self.shard.device(slot));
        let remote = info.and_then(|info| info.remote).unwrap_or(remote);
        let shown = std::net::SocketAddr::new(remote.ip(), port);
        self.shard.host.slots.shared(slot).remote.store(&present_on(family, shown, on));
        self.shard.publish_local(now, slot, id);
        if datagram {
            self.shard.host.slots.post(slot, event::TX);
        } else {
            self.shard.host.slots.set_flags(slot, flags::CONNECTING, 0);
            // Over loopback Linux has shaken hands before connect(2) returns: programs that connect
            // several times count on a full accept queue being full for the next one.
            if self.shard.stack.is_near(remote.ip()) {
                self.shard.host.counters.work(STACK_TURN);
                self.turn_stack(now);
            }
        }
        Ok(Reply::default())
    }

    pub(crate) fn connect_stream(
        &mut self,
        now: Instant,
        slot: u32,
        remote: std::net::SocketAddr,
    ) -> Result<(), Errno> {
        // New FIFOs would take the slot from its accept queue.
        if self.shard.host.slots.get(slot).is_some_and(|entry| entry.kind == Kind::Listener) {
            return Err(Errno(EISCONN));
        }
        let id = self.shard.renew(now, slot)?;
        let near = self.shard.stack.is_near(remote.ip());
        let (recv, send) = self.shard.host.stream_buffers(slot, near);
        self.shard.stack.connect(now, id, remote, recv, send)?;
        let shared = self.shard.host.slots.shared(slot);
        // What an earlier connection left behind.
        shared.error.store(0, std::sync::atomic::Ordering::Release);
        shared.state.store(state::SYN_SENT, std::sync::atomic::Ordering::Release);
        Ok(())
    }

    /// Takes the peer of a datagram socket away.
    fn dissolve(&mut self, now: Instant, slot: u32) -> Result<Reply, Errno> {
        let id = self.shard.host.slots.get(slot).and_then(|entry| entry.id).ok_or(Errno(EINVAL))?;
        self.shard.stack.disconnect(id);
        if let Some(entry) = self.shard.host.slots.get_mut(slot) {
            entry.set_rare(|rare| rare.device = 0);
        }
        self.shard.host.slots.set_flags(slot, 0, flags::CONNECTED);
        self.shard.host.slots.shared(slot).remote.store(&RawAddr::default());
        self.shard.publish_local(now, slot, id);
        Ok(Reply::default())
    }

    /// As many as fit one message; the first address of every interface comes before the second of
    /// any.
    fn interfaces(&self) -> Reply {
        const MAX: usize = DATA_MAX / size_of::<Interface>();
        let mut reply = Reply::default();
        let mut list: Vec<(usize, Interface)> = Vec::new();
        for iface in self.shard.stack.net.interfaces() {
            let base = describe(iface);
            let usable = iface.addresses().iter().filter(|address| address.is_usable());
            let before = list.len();
            for (rank, address) in usable.enumerate() {
                let prefix = address.prefix;
                let addr = RawAddr::new(std::net::SocketAddr::new(prefix.addr(), 0));
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

    fn resolver(&self) -> Reply {
        self.registry.resolver.map_or_else(Reply::default, |resolver| Reply {
            a: resolver.only_loopback.into(),
            addr: RawAddr::new(SocketAddr::new(resolver.address, 0)),
            ..Reply::default()
        })
    }

    /// As many routes as fit, from `first` on.
    fn routes(&self, first: u32) -> Reply {
        const MAX: usize = DATA_MAX / size_of::<Route>();
        let mut reply = Reply::default();
        let mut rest = self.shard.stack.net.routes().skip(first as usize);
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
            };
            to.copy_from_slice(route.as_bytes());
            count += 1;
        }
        reply.len = count * size_of::<Route>() as u32;
        reply.a = if rest.next().is_some() { first + count } else { 0 };
        reply
    }

    /// As many sockets as fit, from `first` on. Where there are few it may be none, with more beyond.
    fn list_sockets(&mut self, first: u32) -> Reply {
        let mut reply = Reply::default();
        let mut lines = Vec::new();
        let end = first.saturating_add(SLOTS_A_REQUEST).min(self.shard.host.slots.end());
        if end < self.shard.host.slots.end() {
            reply.a = end;
        }
        for slot in first..end {
            self.shard.host.counters.slots_listed += 1;
            self.shard.host.counters.work(1);
            let Some(entry) = self.shard.host.slots.get(slot) else { continue };
            let mut shown = self.show(slot, entry);
            // A message has room for a line with one.
            shown.pids.truncate(1);
            let line = serde_json::to_vec(&shown).unwrap_or_default();
            if lines.len() + line.len() + 1 > DATA_MAX {
                reply.a = slot;
                break;
            }
            lines.extend_from_slice(&line);
            lines.push(b'\n');
        }
        reply.len = lines.len() as u32;
        reply.data[..lines.len()].copy_from_slice(&lines);
        reply
    }
}

/// The (slot, generation) pairs in a request's data.
fn handles(request: &Request) -> impl Iterator<Item = (u32, u32)> {
    let word = |bytes: &[u8]| u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    request.payload().chunks_exact(8).map(move |pair| (word(pair), word(&pair[4..])))
}

fn describe(iface: &towpath_stack::net::Interface) -> Interface {
    // IFF_UP | IFF_RUNNING, with IFF_LOOPBACK, IFF_BROADCAST | IFF_MULTICAST as Ethernet, or
    // IFF_POINTOPOINT | IFF_NOARP | IFF_MULTICAST as a TUN device has them (tun_net_init in drivers/net/tun.c).
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
        flags: UP | kind,
        mac: iface.mac().0,
        ..Interface::default()
    }
}
