//! Parts of a socket. Sockets live in one slab. Big kinds are boxed, so that the small ones do not
//! pay for them.
//!
//! Budget: one end of an idle connection costs at most 1 KiB in all, with FIFOs that own no memory
//! while they are empty. Bytes, as the allocator rounds them:
//!
//! | what | checked in | bytes |
//! |---|---|---|
//! | slot, shared with programs | `memory/shm`: `layout/slot.rs` | 256 |
//! | [`Stream`], boxed: 520 | `engine`: `host.rs` | 528 |
//! | — of it the TCP connection | `core/tcp`: `connection.rs` | 336 |
//! | — of it both ends of FIFOs | `memory/ring`: `engine_recv.rs`, `engine_send.rs` | 48 + 56 |
//! | — of it flow, path, timers, settings of packets | | 80 |
//! | [`Socket`] in the slab | `engine`: `host.rs` | 40 |
//! | the engine's `Entry` | `engine`: `slots.rs` | 72 |
//! | flow, in a table between 7/16 and 7/8 full | `flow.rs` | 10 to 21 |
//! | a client's port: 26 in a B-tree half to wholly full | `users.rs` | 30 to 60 |
//!
//! A keepalive or a user timeout adds 48, a history of loss 48, SO_RCVBUF, SO_SNDBUF and their like
//! 96. Payload that was sent without a copy adds 144 until its FIFO has no memory any more
//! (`memory/ring`: `pins.rs`). `tests/tests/idle.rs` measures the sum.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU8;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use towpath_cbpf::Program;
use towpath_ring::{RecvBuffer, SendBuffer};
use towpath_tcp::{Buffers, Config, Connection, Instant};

use crate::host::{BindOptions, Family, Host, ListenerNote, SocketId};
use crate::net::{IfaceId, Ip, Net, Route};
use crate::ports::bind_addr::{BindAddr, Sharing, Table};
use crate::shards::{Child, ShardId};
use crate::tables::flow::Flow;
use crate::tables::slab::{List, NONE};
use crate::tables::timer::TimerId;
use crate::tcp::path::Path;
use crate::tcp::tuning::{PERIOD_DEFAULT, RecvTuning};
use crate::udp::lengths::Lengths;
use crate::unreached::Unreached;

/// A socket.
pub(crate) struct Socket<H: Host> {
    /// The owner's number.
    pub user: u32,
    pub family: Family,
    /// The address and port it holds in the table of its protocol. Connections hold none: clients'
    /// are chosen when they connect, servers' children use the listener's.
    pub bound: Option<Box<Bound>>,
    /// The socket is in [`Stack::dirty`](crate::Stack), the list of sockets to visit.
    pub dirty: bool,
    /// Obstacle for which its connection sends no more.
    pub waits: Waits,
    /// The owner closed it.
    pub orphan: bool,
    pub kind: Kind<H>,
}

impl<H: Host> Socket<H> {
    /// A socket that holds no address, and that nothing is due for.
    pub fn new(user: u32, family: Family, kind: Kind<H>) -> Self {
        Self {
            user,
            family,
            bound: None,
            dirty: false,
            waits: Waits::ForNothing,
            orphan: false,
            kind,
        }
    }

    /// SO_BINDTODEVICE, for a socket that has no connection.
    pub fn device(&self) -> Option<IfaceId> {
        match &self.kind {
            Kind::Fresh(settings) => settings.device,
            Kind::Listener(listener) => listener.settings.device,
            Kind::Datagram(datagram) => datagram.device,
            Kind::EarlyAccept(_) | Kind::Stream(_) => None,
        }
    }

    /// Drops the cached target: an input of it, as the bound address, has changed.
    pub fn forget_target(&mut self) {
        if let Kind::Datagram(datagram) = &mut self.kind {
            datagram.last_target = None;
        }
    }

    /// Whether it stands for a socket of another shard.
    pub fn is_shadow(&self) -> bool {
        match &self.kind {
            Kind::Listener(listener) => {
                matches!(listener.among.as_deref(), Some(AmongShards::Shadow { .. }))
            }
            Kind::Datagram(datagram) => datagram.shadow_of.is_some(),
            _ => false,
        }
    }

    /// Whether it holds a port by a bind.
    pub fn has_port(&self) -> bool {
        self.bound.as_deref().is_some_and(Bound::has_port)
    }
}

/// Obstacle for which a connection with unsent bytes does not send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Waits {
    /// For nothing: it sends at its next visit.
    ForNothing,
    /// The device's queue is full; the connection is in the line for it.
    InLine,
    /// Its share is used up: its device has to take some of its queued packets.
    ForShare,
}

/// The kinds and, for streams, the stages of life.
pub(crate) enum Kind<H: Host> {
    /// A stream socket that neither listens nor has a connection.
    Fresh(Box<Settings>),
    Listener(Box<Listener>),
    /// Made by `accept_pending`: its handshake is in the SYN cache.
    EarlyAccept(Box<EarlyAccept<H>>),
    Stream(Box<Stream<H>>),
    Datagram(Box<Datagram>),
}

impl<H: Host> Kind<H> {
    /// The table in which its port is held.
    pub fn table(&self) -> Table {
        match self {
            Kind::Datagram(datagram) => datagram.table(),
            _ => Table::Tcp,
        }
    }
}

/// A local address and the hold on a port of it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bound {
    /// As it was bound. While the socket is connected its hold is for the address in use only.
    pub addr: BindAddr,
    /// 0: none. The connection that it was chosen for is over, and the address alone was named.
    pub port: u16,
    /// The program named the port, so that it stays until the socket is closed (Linux's
    /// SOCK_BINDPORT_LOCK).
    pub is_port_named: bool,
    pub options: BindOptions,
}

impl Bound {
    /// Whether it holds one.
    pub fn has_port(&self) -> bool {
        self.port != 0
    }

    /// As a program sees it.
    pub fn socket_addr(&self) -> SocketAddr {
        SocketAddr::new(self.ip(), self.port)
    }

    /// The address, unspecified for the wildcards.
    pub fn ip(&self) -> IpAddr {
        match self.addr {
            BindAddr::AnyV4 => IpAddr::from([0; 4]),
            BindAddr::AnyV6 | BindAddr::AnyDual => IpAddr::from([0; 16]),
            BindAddr::Ip(ip) => ip,
        }
    }

    /// The source to route from, if the bind fixed one.
    pub fn source(&self) -> Option<IpAddr> {
        match self.addr {
            BindAddr::Ip(ip) => Some(ip),
            _ => None,
        }
    }
}

impl BindOptions {
    pub(crate) fn sharing(&self) -> Sharing {
        Sharing { reuse_addr: self.reuse_addr, reuse_port: self.reuse_port }
    }
}

/// Settings of a stream socket before it has a connection; children inherit them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Settings {
    pub tcp: Config,
    pub packet: PacketSettings,
    /// SO_BINDTODEVICE.
    pub device: Option<IfaceId>,
    /// For a bind that the program does not ask for.
    pub binding: BindOptions,
    /// TCP_FASTOPEN: children that a SYN's bytes may make before the handshake ends; 0: none.
    pub fast_open_queue: u32,
    /// TCP_SAVE_SYN.
    pub save_syn: bool,
}

impl Settings {
    /// Settings of a socket on which nothing was set.
    pub fn new(tcp: Config) -> Self {
        Self {
            tcp,
            packet: PacketSettings::default(),
            device: None,
            binding: BindOptions::default(),
            fast_open_queue: 0,
            save_syn: false,
        }
    }

    /// The settings of a connection, with segment sizes for its path.
    pub fn for_flow(&self, now: Instant, flow: &Flow, iface: Option<IfaceId>, net: &Net) -> Config {
        let route = net.route(now, Some(flow.local), flow.remote, iface);
        // `route.mtu` follows reports about datagrams, which are easily forged. A connection learns
        // its path MTU from reports about its own segments alone (RFC 5927 §4), and begins with the
        // link's.
        let (mtu_send, mtu_recv) = match route {
            Ok(route) => {
                let interface = net.interfaces().get(route.iface.index());
                // As on Linux the MTU of a route holds for both directions; one that routers of the
                // link advertise does not.
                let wider = interface.filter(|link| link.mtu_for(flow.remote) <= route.link_mtu);
                (route.link_mtu, wider.map_or(route.link_mtu, |link| link.mtu()))
            }
            // There is no route now. Every IPv4 host takes 576 bytes (RFC 1122 §3.3.2), and an
            // Ethernet 1500.
            Err(_) => (576, 1500),
        };
        let packet = self.packet.towards(flow.remote);
        Config {
            //= https://www.rfc-editor.org/rfc/rfc9293#section-3.7.1
            //# The MSS value to be sent in an MSS Option must be less than or equal to: MMS_R - 20
            //# where MMS_R is the maximum size for a transport-layer message that can be received
            //# (and reassembled at the IP layer) (MUST-67).
            mss_recv: packet.limit(flow.mss_for(mtu_recv)),
            mss_send_max: packet.limit(flow.mss_for(mtu_send)),
            mss_default: if flow.local.is_ipv4() { 536 } else { 1220 },
            ..self.tcp
        }
    }
}

/// Settings that every packet needs. In contrast, [`Settings::tcp`] is copied into a connection.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct PacketSettings {
    pub hops: HopLimits,
    pub classes: Classes,
    /// TCP_MAXSEG: 0 leaves it to the route.
    pub mss_max: u16,
    pub hops_min: HopsMin,
}

/// Least TTL or hop limit of received packets, with a value for each family as [`HopLimits`]. Peers
/// on the link that send with 255 cannot be imitated from further away (RFC 5082).
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct HopsMin {
    /// IP_MINTTL.
    pub v4: u8,
    /// IPV6_MINHOPCOUNT.
    pub v6: u8,
}

impl HopsMin {
    pub fn from(&self, remote: IpAddr) -> u8 {
        if remote.is_ipv4() { self.v4 } else { self.v6 }
    }
}

/// How far unicast packets may go. A socket of both families has a limit for each, as on Linux.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct HopLimits {
    /// IP_TTL; `None`: the default.
    pub v4: Option<NonZeroU8>,
    /// IPV6_UNICAST_HOPS; `None`: the value of the link's routers, or the default.
    pub v6: Option<u8>,
}

impl HopLimits {
    pub fn towards(&self, remote: IpAddr) -> Option<u8> {
        if remote.is_ipv4() { self.v4.map(NonZeroU8::get) } else { self.v6 }
    }
}

/// Class of service, with a value for each family as [`HopLimits`].
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Classes {
    /// IP_TOS.
    pub v4: u8,
    /// IPV6_TCLASS.
    pub v6: u8,
}

impl Classes {
    pub fn towards(&self, remote: IpAddr) -> u8 {
        if remote.is_ipv4() { self.v4 } else { self.v6 }
    }
}

/// How a socket sends to groups of one family.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MulticastOut {
    /// IP_MULTICAST_IF, IPV6_MULTICAST_IF: where; `None`: as the route says.
    pub iface: Option<IfaceId>,
    /// The address that IP_MULTICAST_IF named the interface by.
    pub source: Option<IpAddr>,
    /// IP_MULTICAST_LOOP, IPV6_MULTICAST_LOOP: members on this host are reached too.
    pub looped: bool,
}

impl Default for MulticastOut {
    fn default() -> Self {
        Self { iface: None, source: None, looped: true }
    }
}

impl PacketSettings {
    /// The settings that apply to packets to `remote`.
    pub fn towards(&self, remote: IpAddr) -> FlowSettings {
        FlowSettings {
            ttl: self.hops.towards(remote),
            class: self.classes.towards(remote),
            mss_max: self.mss_max,
            hops_min: self.hops_min.from(remote),
        }
    }
}

/// [`PacketSettings`] of a connection, whose peer is of one family.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FlowSettings {
    pub ttl: Option<u8>,
    pub class: u8,
    /// TCP_MAXSEG: 0 leaves it to the route.
    pub mss_max: u16,
    /// See [`HopsMin`].
    pub hops_min: u8,
}

impl FlowSettings {
    /// Applies the change of a socket option. Values for the other family change nothing.
    pub fn change<T>(
        &mut self,
        remote: IpAddr,
        change: impl FnOnce(&mut PacketSettings) -> T,
    ) -> T {
        let FlowSettings { ttl, class, mss_max, hops_min } = *self;
        let hops = HopLimits { v4: ttl.and_then(NonZeroU8::new), v6: ttl };
        let classes = Classes { v4: class, v6: class };
        let hops_min = HopsMin { v4: hops_min, v6: hops_min };
        let mut settings = PacketSettings { hops, classes, mss_max, hops_min };
        let result = change(&mut settings);
        *self = settings.towards(remote);
        result
    }

    /// The segment size that `mss` bytes of path and the program's own limit allow.
    pub fn limit(&self, mss: u16) -> u16 {
        if self.mss_max == 0 { mss } else { mss.min(self.mss_max) }
    }
}

/// A listening socket.
#[derive(Debug)]
pub(crate) struct Listener {
    pub settings: Settings,
    pub backlog: u32,
    /// Children that the program has not taken.
    pub waiting: u32,
    /// Half-open connections that have a place in the queue already, because their peers are in
    /// this process ([`InterfaceConfig::in_process`](crate::net::InterfaceConfig::in_process)).
    /// Over other links a SYN takes none: otherwise a flood of SYNs would take all.
    pub promised: u32,
    /// Children by Fast Open whose handshake is under way, or was reset not long ago.
    pub fast_opening: u32,
    /// Its half-open connections, oldest first.
    pub half_open: List,
    /// Time until when segments without a connection get no reset, as half-open connections were
    /// displaced lately, and the segments may be from their clients. Each displacement renews it,
    /// for as long as a flood goes on.
    pub lenient_until: Instant,
    /// State among several shards.
    pub among: Option<Box<AmongShards>>,
}

impl Listener {
    /// A listener without connections.
    pub fn new(settings: Settings, backlog: u32) -> Self {
        Self {
            settings,
            backlog,
            waiting: 0,
            promised: 0,
            fast_opening: 0,
            half_open: List::default(),
            lenient_until: Instant::ZERO,
            among: None,
        }
    }

    /// Whether no place is left in the queue. As on Linux the queue holds one more than the
    /// backlog.
    pub fn is_full(&self) -> bool {
        match self.among.as_deref() {
            Some(AmongShards::Shadow { room, unqueued, .. }) => {
                room.load(Ordering::Relaxed) == 0 || !unqueued.is_empty()
            }
            _ => self.room() == 0,
        }
    }

    /// Places that are left in the queue of this shard.
    pub fn room(&self) -> u32 {
        let taken = self.waiting.saturating_add(self.promised);
        self.backlog.saturating_add(1).saturating_sub(taken)
    }

    /// Whether a half-open connection may be promised a place. Two shadows may promise the same
    /// one, or one that a connection on its way takes. The connection that comes too late waits
    /// at its shadow.
    pub fn may_promise(&self) -> bool {
        match self.among.as_deref() {
            Some(AmongShards::Shadow { room, .. }) => {
                !self.is_full() && self.promised < room.load(Ordering::Relaxed)
            }
            _ => !self.is_full(),
        }
    }

    /// Whether there is no place for a connection whose handshake ends.
    pub fn turns_away(&self, has_place: bool) -> bool {
        match (has_place, self.among.as_deref()) {
            (false, _) => self.is_full(),
            (true, Some(AmongShards::Shadow { .. })) => false,
            // The program may have made the queue shorter meanwhile.
            (true, _) => self.waiting > self.backlog,
        }
    }
}

/// A listener of a host with several shards.
#[derive(Debug)]
pub(crate) enum AmongShards {
    /// The socket itself, which has the accept queue.
    Original {
        /// Places that are left in the queue, for the other shards.
        room: Arc<AtomicU32>,
        /// Shards that have children for which there was no place, a bit each.
        turned_away: u16,
        /// The shard that was told last that there is a place.
        told_last: ShardId,
        /// Data of its owner for the other shards.
        note: ListenerNote,
    },
    /// Stand-in for a listener of another shard, which makes connections for that.
    Shadow {
        /// Where the socket is.
        shard: ShardId,
        /// Its name there.
        id: SocketId,
        room: Arc<AtomicU32>,
        /// Data of its owner.
        note: ListenerNote,
        /// Established children for which there was no place, the oldest first.
        unqueued: VecDeque<Child>,
    },
}

/// A connection that the owner accepted before its handshake, as the gateway does when the host has
/// connected.
pub(crate) struct EarlyAccept<H: Host> {
    pub flow: Flow,
    pub half_open: u32,
    pub recv: H::Recv,
    pub send: H::Send,
    /// The owner writes no more to `send`.
    pub shut: bool,
}

/// A stream socket with a connection, or what is left of one.
pub(crate) struct Stream<H: Host> {
    pub flow: Flow,
    /// `None` once the connection is over; the socket stays until its owner closes it.
    pub connection: Option<Connection>,
    pub recv: H::Recv,
    pub send: H::Send,
    pub packet: FlowSettings,
    /// The only way out, whatever the routes say, because of SO_BINDTODEVICE, a link-local peer or
    /// an any-address interface.
    pub iface: Option<IfaceId>,
    pub path: Option<Path>,
    pub timer: TimerId,
    /// Sharing with which the stream is counted as a user of its port.
    pub uses_port: Option<Sharing>,
    /// Last ICMP error about the peer.
    pub unreachable: Option<Unreached>,
    pub news: News,
    pub tuning: RecvTuning,
    /// When the buffers are looked at next.
    pub tune_at: Instant,
}

/// Events for the owner at the next visit; repeated ones are merged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct News(u8);

impl News {
    const READABLE: u8 = 1;
    const WRITABLE: u8 = 2;
    const URGENT: u8 = 4;
    const URGENT_NEW: u8 = 8;

    pub fn add_readable(&mut self) {
        self.0 |= Self::READABLE;
    }

    pub fn add_writable(&mut self) {
        self.0 |= Self::WRITABLE;
    }

    pub fn add_urgent(&mut self, is_new: bool) {
        self.0 |= Self::URGENT | if is_new { Self::URGENT_NEW } else { 0 };
    }

    /// Whether there is urgent data, and whether the owner has still to be told.
    pub fn urgent(self) -> Option<bool> {
        (self.0 & Self::URGENT != 0).then_some(self.0 & Self::URGENT_NEW != 0)
    }

    pub fn is_quiet(self) -> bool {
        self.0 & (Self::WRITABLE | Self::URGENT) == 0
    }

    pub fn is_readable(self) -> bool {
        self.0 & Self::READABLE != 0
    }

    pub fn is_writable(self) -> bool {
        self.0 & Self::WRITABLE != 0
    }
}

impl<H: Host> Stream<H> {
    /// The stream of a new connection. Its path is found when it sends first.
    pub fn new(
        now: Instant,
        flow: Flow,
        connection: Connection,
        settings: &Settings,
        iface: Option<IfaceId>,
        recv: H::Recv,
        send: H::Send,
    ) -> Self {
        Self {
            flow,
            connection: Some(connection),
            recv,
            send,
            packet: settings.packet.towards(flow.remote),
            iface,
            path: None,
            timer: TimerId::NONE,
            uses_port: None,
            unreachable: None,
            news: News::default(),
            tuning: RecvTuning::default(),
            tune_at: now + PERIOD_DEFAULT,
        }
    }

    /// The path MTU is another one: the connection cuts its segments to it.
    pub fn on_path_mtu(&mut self) {
        if let (Some(path), Some(connection)) = (&self.path, &mut self.connection) {
            connection.on_path_mtu(self.packet.limit(self.flow.mss_for(path.mtu())));
        }
    }

    /// How full the buffers are.
    pub fn buffers(&self) -> Buffers {
        Buffers {
            recv_free: self.recv.free(),
            recv_capacity: self.recv.capacity(),
            recv_unread: self.recv.unread(),
            send_len: self.send.len(),
            send_capacity: self.send.capacity(),
        }
    }

    /// Asks for a report of the program's next read, if a window update or an acknowledgement can
    /// depend on it. True: one is due now, by an earlier read.
    pub fn watch_reads(&mut self, now: Instant) -> bool {
        let buffers = self.buffers();
        let Some(connection) = &mut self.connection else { return false };
        if !connection.awaits_reads(buffers) {
            return false;
        }
        self.recv.await_read();
        let buffers = self.buffers();
        self.connection.as_mut().is_some_and(|connection| connection.on_recv_consumed(now, buffers))
    }
}

/// A UDP socket, or an echo socket, whose ident takes the place of the port.
#[derive(Debug)]
pub(crate) struct Datagram {
    pub echo: bool,
    /// The connected peer.
    pub peer: Option<Flow>,
    /// Where it stands among those with the same peer.
    pub alike: Alike,
    pub hops: HopLimits,
    pub classes: Classes,
    /// SO_BINDTODEVICE: takes from and sends to this interface only.
    pub device: Option<IfaceId>,
    /// For a bind that the program does not ask for.
    pub binding: BindOptions,
    /// IP_MULTICAST_TTL; 0: groups are reached on this host only.
    pub multicast_ttl: u8,
    /// IPV6_MULTICAST_HOPS, likewise.
    pub multicast_hops: u8,
    /// How it sends to IPv4 groups.
    pub multicast_v4: MulticastOut,
    /// How it sends to IPv6 groups.
    pub multicast_v6: MulticastOut,
    /// IP_MULTICAST_ALL: take datagrams to IPv4 groups that other sockets joined.
    pub multicast_all: bool,
    /// IPV6_MULTICAST_ALL, likewise.
    pub multicast_all_v6: bool,
    /// May send to broadcast addresses.
    pub broadcast: bool,
    /// SO_NO_CHECK.
    pub no_checksum: bool,
    /// IP_RECVERR: the socket gets errors about its IPv4 datagrams.
    pub recv_errors: bool,
    /// IPV6_RECVERR: the same of its IPv6 datagrams.
    pub recv_errors_v6: bool,
    /// Length limits of its datagrams, and treatment of longer ones.
    pub lengths: Lengths,
    pub memberships: Vec<Membership>,
    /// SO_ATTACH_FILTER.
    pub filter: Option<Arc<Program>>,
    /// Shard of the socket that this one stands for.
    pub shadow_of: Option<ShardId>,
    /// Where the last datagram went; None again when something changes that it was worked out from.
    pub last_target: Option<LastTarget>,
    /// So many in a row went elsewhere than [`Self::last_target`] says; it may begin again.
    pub went_elsewhere: u8,
}

/// The neighbours of a socket in the list of those that are found by the same peer.
#[derive(Debug)]
pub(crate) struct Alike {
    /// The one that was connected next after it; [`NONE`]: it is the newest.
    pub newer: u32,
    /// The one before it, likewise.
    pub older: u32,
}

impl Default for Alike {
    fn default() -> Self {
        Self { newer: NONE, older: NONE }
    }
}

/// A multicast group joined on an interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Membership {
    pub group: IpAddr,
    pub iface: IfaceId,
    /// Datagrams from these only (IP_ADD_SOURCE_MEMBERSHIP); None: from all.
    pub sources: Option<Vec<IpAddr>>,
}

impl Membership {
    /// Whether datagrams from `source` are wanted.
    pub fn takes(&self, source: IpAddr) -> bool {
        self.sources.as_ref().is_none_or(|sources| sources.contains(&source))
    }
}

/// Where a datagram goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Target {
    pub flow: Flow,
    pub route: Route,
    pub ip: Ip,
    /// Whether sockets of this host are members of the group or broadcast address, and get a copy.
    pub looped: bool,
    /// Whether UDP's checksum is computed. Over IPv6 it always is (RFC 8200 §8.1).
    pub checksum: bool,
}

/// A target, and the arguments that it was worked out for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LastTarget {
    pub remote: Option<SocketAddr>,
    pub local: Option<IpAddr>,
    pub iface: Option<IfaceId>,
    /// Generation of the path MTUs when it was found.
    pub mtus: u64,
    /// With the socket's own TTL and class.
    pub target: Target,
}
