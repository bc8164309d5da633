//! Options of sockets that change while they live.

use std::net::{IpAddr, Ipv4Addr};
use std::num::{NonZeroU8, NonZeroU64};
use std::sync::Arc;
use std::time::Duration;

use towpath_cbpf::Program;
use towpath_tcp::{Config, CongestionKind, Connection, Instant, KeepAliveConfig};
use towpath_wire::addr;

use crate::error::OptionError;
use crate::host::{BindOptions, Host, SocketId};
use crate::limits::{MEMBERSHIPS_MAX, SOURCES_MAX};
use crate::net::IfaceId;
use crate::net::limits::PATH_MTU_MIN_V6;
use crate::ports::bind_addr::PortProtocol;
use crate::settings::PacketSettings;
use crate::socket::{SocketRole, StackSocket};
use crate::stack::Stack;
use crate::udp::lengths::MtuDiscovery;
use crate::udp::socket::{DatagramSocket, GroupMembership};

/// A socket option and its value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum SocketOption {
    /// TCP_NODELAY: true lets short segments go while bytes are in flight, without Nagle's
    /// algorithm (RFC 9293 §3.7.4).
    NoDelay(bool),
    /// TCP_CORK: short segments are held back until the option is cleared, [`Config::cork`] at
    /// most. Connections only.
    Cork(bool),
    /// MSG_MORE on the last write: a short segment waits for more bytes, as with `Cork`.
    /// Connections only.
    MoreComing(bool),
    /// MSG_OOB on a connection: the byte in front of this place is urgent. The place is
    /// counted from the front of the send buffer.
    UrgentEnd(u32),
    /// TCP_QUICKACK: true sends the ACK that is due, and the next ones, without delay. By tcp(7)
    /// the state does not last; false ends it at once. Connections only.
    QuickAck(bool),
    /// SO_KEEPALIVE with TCP_KEEPIDLE, TCP_KEEPINTVL and TCP_KEEPCNT; `None`, the default, sends no
    /// probes (RFC 9293 §3.8.4).
    KeepAlive(Option<KeepAliveConfig>),
    /// TCP_USER_TIMEOUT: how long sent bytes may stay unacknowledged (RFC 5482); `None`: until
    /// [`Config::retries`] retransmissions were in vain.
    UserTimeout(Option<Duration>),
    /// SO_MAX_PACING_RATE of a stream: most bytes of payload a second; `None`: as the windows
    /// allow.
    MaxPacingRate(Option<NonZeroU64>),
    /// TCP_SYNCNT: how often a SYN is sent again, and a listener's SYN-ACK. Any number is taken;
    /// Linux takes 1 to 127 (`MAX_TCP_SYNCNT`).
    SynRetries(u8),
    /// TCP_LINGER2: how long the connection waits for the peer's FIN once its socket is closed.
    FinWait2(Duration),
    /// TCP_CONGESTION. The congestion window of a connection stays as it is, the way in which it
    /// grows changes.
    Congestion(CongestionKind),
    /// TCP_MAXSEG: 88 to 32767, or 0 for the path's. A connection keeps the value of its handshake.
    MaxSegment(u16),
    /// IP_TTL: of IPv4 packets, those to groups excepted; `None`: 64.
    Ttl(Option<NonZeroU8>),
    /// IPV6_UNICAST_HOPS: of IPv6 packets, likewise; `None`: the value that the link's routers
    /// advertise (RFC 4861 §6.3.4), or 64.
    UnicastHops(Option<u8>),
    /// IP_TOS: the octet of IPv4 packets that has DSCP and ECN (RFC 2474 §3, RFC 3168 §5).
    Tos(u8),
    /// IPV6_TCLASS: the same octet of IPv6 packets.
    TrafficClass(u8),
    /// IP_MINTTL: segments over IPv4 with a lower TTL are dropped (RFC 5082), by listeners SYNs.
    MinTtl(u8),
    /// IPV6_MINHOPCOUNT: the same of the hop limit of IPv6.
    MinHops(u8),
    /// SO_BROADCAST: without it, as by default, broadcast addresses are refused
    /// ([`crate::SendError::Forbidden`], [`crate::ConnectError::Forbidden`]).
    Broadcast(bool),
    /// SO_NO_CHECK: IPv4 datagrams go without a checksum.
    NoChecksum(bool),
    /// IP_MTU_DISCOVER: of IPv4 datagrams.
    MtuDiscover(MtuDiscovery),
    /// IPV6_MTU_DISCOVER: of IPv6 datagrams.
    MtuDiscoverV6(MtuDiscovery),
    /// IPV6_MTU: no packet of an IPv6 datagram is longer than this many bytes, 1280 at least (RFC
    /// 8200 §5); `None`: only the path counts.
    FragmentSize(Option<u32>),
    /// IP_MULTICAST_TTL, by default 1: members on the link (RFC 1112 §6.1); 0 reaches members on
    /// this host only.
    MulticastTtl(u8),
    /// IPV6_MULTICAST_HOPS, likewise.
    MulticastHops(u8),
    /// IP_MULTICAST_IF: an interface, and an address of it to send from if one was named. `None`
    /// leaves the choice to routes and source. Must not differ from that of `Device`.
    MulticastInterface(Option<IfaceId>, Option<Ipv4Addr>),
    /// IPV6_MULTICAST_IF, likewise.
    MulticastInterfaceV6(Option<IfaceId>),
    /// IP_MULTICAST_LOOP: member sockets of this host get the datagrams that this one sends, as by
    /// default.
    MulticastLoop(bool),
    /// IPV6_MULTICAST_LOOP, likewise.
    MulticastLoopV6(bool),
    /// IP_RECVERR: all errors about IPv4 datagrams go to [`Host::datagram_error`].
    RecvErrors(bool),
    /// IPV6_RECVERR: the same of IPv6 datagrams.
    RecvErrorsV6(bool),
    /// SO_REUSEADDR and SO_REUSEPORT, which others meet from now on, and how the socket is bound
    /// when it connects, sends or listens unbound.
    Binding(BindOptions),
    /// SO_BINDTODEVICE and SO_BINDTOIFINDEX: packets come and go through this interface only, and
    /// not at all when there is no such one.
    Device(Option<IfaceId>),
    /// IP_MULTICAST_ALL: also take datagrams to IPv4 groups that other sockets joined, as by
    /// default. A socket of both families does not by default.
    MulticastAll(bool),
    /// IPV6_MULTICAST_ALL: the same of IPv6 groups.
    MulticastAllV6(bool),
    /// TCP_FASTOPEN (RFC 7413): a SYN with a cookie makes a child at once. The number limits such
    /// children whose handshake is under way, in each shard; with 0, no cookie is given.
    FastOpenQueue(u32),
    /// TCP_SAVE_SYN: children keep the headers of their SYN ([`Stack::take_saved_syn`]).
    SaveSyn(bool),
}

impl<H: Host> Stack<H> {
    /// Sets an option. On a listener it holds for children to come; on a connection that is over
    /// nothing changes.
    ///
    /// # Errors
    /// [`OptionError::NotApplicable`] for options of another kind of socket, and for those of
    /// connections where there is none. A connection is missing also during the handshake of
    /// [`Stack::accept_pending`]. `Invalid`, `NoInterface` and `NoSocket` as they say.
    pub fn set_option(&mut self, id: SocketId, option: SocketOption) -> Result<(), OptionError> {
        self.catch_up();
        let index = self.index(id).ok_or(OptionError::NoSocket)?;
        if let SocketOption::Device(device) = option {
            return self.set_device(index, device);
        }
        if let SocketOption::Binding(options) = option {
            return self.set_binding(index, options);
        }
        if let SocketOption::FastOpenQueue(_) | SocketOption::SaveSyn(_) = option {
            return self.set_accepting(index, option);
        }
        let interfaces = self.net.interfaces().len();
        let socket = self.sockets.get_mut(index).ok_or(OptionError::NoSocket)?;
        match &mut socket.kind {
            SocketRole::Fresh(settings) => {
                set_stream(Stage::Before(&mut settings.tcp), &mut settings.packet, option)
            }
            SocketRole::Listener(listener) => {
                let settings = &mut listener.settings;
                let stage = Stage::Before(&mut settings.tcp);
                let set = set_stream(stage, &mut settings.packet, option);
                // Its connections are in all shards.
                self.in_order(PortProtocol::Tcp, index, 0, |_| true);
                set
            }
            SocketRole::EarlyAccept(_) => Err(OptionError::NotApplicable),
            SocketRole::Stream(stream) => {
                let stage = stream.connection.as_mut().map_or(Stage::After, Stage::During);
                let remote = stream.flow.remote;
                let set = stream.packet.change(remote, |packet| set_stream(stage, packet, option));
                // Held-back segments may go now, and timers may have moved.
                self.mark_dirty(index);
                set
            }
            SocketRole::Datagram(datagram) => {
                datagram.last_target = None;
                set_datagram(datagram, option, interfaces)
            }
        }
    }

    /// Options of sockets that listen, or may do so later.
    fn set_accepting(&mut self, index: u32, option: SocketOption) -> Result<(), OptionError> {
        let socket = self.sockets.get_mut(index).ok_or(OptionError::NoSocket)?;
        let settings = match &mut socket.kind {
            SocketRole::Fresh(settings) => settings,
            SocketRole::Listener(listener) => &mut listener.settings,
            _ => return Err(OptionError::NotApplicable),
        };
        match option {
            SocketOption::FastOpenQueue(places) => settings.fast_open_queue = places,
            SocketOption::SaveSyn(on) => settings.save_syn = on,
            _ => return Err(OptionError::NotApplicable),
        }
        if let SocketRole::Listener(_) = socket.kind {
            // Its connections are in all shards.
            self.in_order(PortProtocol::Tcp, index, 0, |_| true);
        }
        Ok(())
    }

    /// Has a program judge datagrams to a socket (SO_ATTACH_FILTER); `None` takes all.
    ///
    /// # Errors
    /// [`OptionError::NotApplicable`] for other sockets.
    pub fn set_filter(
        &mut self,
        id: SocketId,
        filter: Option<Arc<Program>>,
    ) -> Result<(), OptionError> {
        let index = self.index(id).ok_or(OptionError::NoSocket)?;
        self.datagram_mut(index)?.filter = filter;
        Ok(())
    }

    /// The headers of the SYN of a child, from the IP header on, if its listener had
    /// [`SocketOption::SaveSyn`]. Longer ones than `room` stay.
    ///
    /// # Errors
    /// The length of headers that have no room.
    pub fn take_saved_syn(
        &mut self,
        id: SocketId,
        room: usize,
    ) -> Result<Option<Box<[u8]>>, usize> {
        let Some(index) = self.index(id) else { return Ok(None) };
        match self.handshakes.saved_syns.get(&index).map_or(0, |syn| syn.len()) {
            len if len > room => Err(len),
            _ => Ok(self.handshakes.saved_syns.remove(&index)),
        }
    }

    /// The program that [`Stack::set_filter`] set.
    pub fn filter(&self, id: SocketId) -> Option<Arc<Program>> {
        self.sockets.datagram(self.index(id)?)?.filter.clone()
    }

    /// The interface need not exist: then nothing comes or goes.
    pub(crate) fn set_device(
        &mut self,
        index: u32,
        device: Option<IfaceId>,
    ) -> Result<(), OptionError> {
        let table = self.sockets.get(index).ok_or(OptionError::NoSocket)?.kind.table();
        let mut set = Ok(());
        self.in_order(table, index, 0, |stack| {
            set = stack.move_to_device(index, device);
            stack.sockets.get(index).and_then(StackSocket::receiver).is_some()
        });
        set
    }

    fn move_to_device(&mut self, index: u32, device: Option<IfaceId>) -> Result<(), OptionError> {
        // A connected datagram socket is found by its device, too.
        let is_peer = self.datagrams.peers.leave(self.keys.table, &mut self.sockets, index);
        let socket = self.sockets.get_mut(index).ok_or(OptionError::NoSocket)?;
        let before = socket.device();
        let mut receives = None;
        match &mut socket.kind {
            SocketRole::Fresh(settings) => settings.device = device,
            SocketRole::Listener(listener) => {
                listener.settings.device = device;
                receives = Some(PortProtocol::Tcp);
            }
            SocketRole::Datagram(datagram) => {
                datagram.device = device;
                datagram.last_target = None;
                receives = datagram.peer.is_none().then_some(datagram.table());
            }
            SocketRole::Stream(stream) => {
                if device.is_some() || !addr::is_link_local(stream.flow.remote) {
                    stream.iface = device;
                    stream.path = None;
                }
            }
            SocketRole::EarlyAccept(_) => return Err(OptionError::NotApplicable),
        }
        if is_peer {
            self.datagrams.peers.enter(self.keys.table, &mut self.sockets, index);
        }
        // The socket may have waited for the former device.
        self.end_wait(index);
        let Some(socket) = self.sockets.get(index) else { return Ok(()) };
        let Some(bound) = &socket.bound else { return Ok(()) };
        let (addr, port, sharing) = (bound.addr, bound.port, bound.options.sharing());
        let processor = bound.options.processor;
        let table = socket.kind.table();
        let binds = self.ports.of_mut(table);
        binds.change(port, index, |holder| holder.device = device);
        // A socket with unchanged keys keeps its place among those that are bound alike.
        if receives.is_some() && port != 0 && device != before {
            binds.receivers.remove(addr, port, index);
            binds.receivers.insert(addr, port, index, device, sharing);
            binds.receivers.set_processor(addr, port, index, processor);
        }
        Ok(())
    }

    /// Joins a multicast group (IP_ADD_MEMBERSHIP, IPV6_JOIN_GROUP). Without an interface, the one
    /// that routes to it is used. With `source` only packets from there are taken
    /// (IP_ADD_SOURCE_MEMBERSHIP); further calls add more sources.
    ///
    /// # Errors
    /// * [`OptionError::Membership`]: the group was joined already. For a source it is
    ///   `NotAvailable`.
    /// * `Invalid`: all sources are wanted already, or `group` is not a group address.
    /// * `NoInterface`: also when no route leads there.
    /// * `TooMany`: beyond [`MEMBERSHIPS_MAX`], [`SOURCES_MAX`], or the limits of an interface
    ///   ([`GROUPS_MAX`](crate::net::limits::GROUPS_MAX),
    ///   [`GROUP_SOURCES_MAX`](crate::net::limits::GROUP_SOURCES_MAX)).
    pub fn join_group(
        &mut self,
        now: Instant,
        id: SocketId,
        group: IpAddr,
        iface: Option<IfaceId>,
        source: Option<IpAddr>,
    ) -> Result<(), OptionError> {
        self.catch_up();
        let (index, iface) = self.membership(now, id, group, iface)?;
        let datagram = self.datagram_mut(index)?;
        let known = datagram.memberships.iter_mut().find(|m| (m.group, m.iface) == (group, iface));
        match (known.map(|membership| &mut membership.sources), source) {
            (Some(Some(sources)), Some(source)) if sources.contains(&source) => {
                return Err(OptionError::NotAvailable);
            }
            (Some(Some(sources)), Some(_)) if sources.len() >= SOURCES_MAX => {
                return Err(OptionError::TooMany);
            }
            (Some(Some(_)), Some(_)) => {}
            // As on Linux, a member of all sources cannot add a single source.
            (Some(None), Some(_)) => return Err(OptionError::Invalid),
            (Some(_), None) => return Err(OptionError::Membership),
            (None, _) => {
                let sources = source.map(|source| vec![source]);
                return self.become_member(now, index, GroupMembership { group, iface, sources });
            }
        }
        if !self.net.join_group(now, iface, group, source) {
            return Err(OptionError::TooMany);
        }
        let memberships = &mut self.datagram_mut(index)?.memberships;
        let known = memberships.iter_mut().find(|m| (m.group, m.iface) == (group, iface));
        if let Some(sources) = known.and_then(|membership| membership.sources.as_mut()) {
            sources.extend(source);
        }
        Ok(())
    }

    /// Joins a group that the socket is no member of.
    fn become_member(
        &mut self,
        now: Instant,
        index: u32,
        membership: GroupMembership,
    ) -> Result<(), OptionError> {
        let GroupMembership { group, iface, ref sources } = membership;
        let source = sources.as_ref().and_then(|sources| sources.first().copied());
        let datagram = self.datagram_mut(index)?;
        if datagram.memberships.len() >= MEMBERSHIPS_MAX
            || !self.net.join_group(now, iface, group, source)
        {
            return Err(OptionError::TooMany);
        }
        self.datagram_mut(index)?.memberships.push(membership);
        self.datagrams.memberships += 1;
        Ok(())
    }

    /// Leaves a group joined with [`Stack::join_group`], or with `source` one of its sources; with
    /// the last source goes the group.
    ///
    /// # Errors
    /// [`OptionError::Membership`] when the socket is not in the group. With `source` `Invalid` for
    /// that, and when all sources are wanted; `NotAvailable` when others are wanted than this one.
    pub fn leave_group(
        &mut self,
        now: Instant,
        id: SocketId,
        group: IpAddr,
        iface: Option<IfaceId>,
        source: Option<IpAddr>,
    ) -> Result<(), OptionError> {
        let (index, iface) = self.membership(now, id, group, iface)?;
        let datagram = self.datagram_mut(index)?;
        let at = datagram.memberships.iter().position(|m| (m.group, m.iface) == (group, iface));
        let missing = if source.is_some() { OptionError::Invalid } else { OptionError::Membership };
        let at = at.ok_or(missing)?;
        if let Some(source) = source {
            let sources = datagram.memberships[at].sources.as_mut().ok_or(OptionError::Invalid)?;
            let place = sources.iter().position(|s| *s == source);
            let place = place.ok_or(OptionError::NotAvailable)?;
            if sources.len() > 1 {
                sources.swap_remove(place);
                self.net.leave_group(now, iface, group, Some(source));
                return Ok(());
            }
        }
        let membership = datagram.memberships.swap_remove(at);
        self.end_membership(now, &membership);
        Ok(())
    }

    fn datagram_mut(&mut self, index: u32) -> Result<&mut DatagramSocket, OptionError> {
        self.sockets.datagram_mut(index).ok_or(OptionError::NotApplicable)
    }

    pub(crate) fn end_membership(&mut self, now: Instant, membership: &GroupMembership) {
        let GroupMembership { group, iface, ref sources } = *membership;
        match sources {
            None => {
                self.net.leave_group(now, iface, group, None);
            }
            Some(sources) => {
                for source in sources {
                    self.net.leave_group(now, iface, group, Some(*source));
                }
            }
        }
        self.datagrams.memberships -= 1;
    }

    fn membership(
        &self,
        now: Instant,
        id: SocketId,
        group: IpAddr,
        iface: Option<IfaceId>,
    ) -> Result<(u32, IfaceId), OptionError> {
        let index = self.index(id).ok_or(OptionError::NoSocket)?;
        if !group.is_multicast() {
            return Err(OptionError::Invalid);
        }
        let iface = match iface {
            Some(iface) => iface,
            None => {
                let route = self.net.route(now, None, group, None);
                route.map_err(|_| OptionError::NoInterface)?.iface
            }
        };
        if iface.index() >= self.net.interfaces().len() {
            return Err(OptionError::NoInterface);
        }
        Ok((index, iface))
    }
}

/// Where the options of a stream socket are kept, by its stage of life.
enum Stage<'a> {
    /// In the settings, for connections to come.
    Before(&'a mut Config),
    During(&'a mut Connection),
    /// Nowhere: the connection is over, and nothing depends on them.
    After,
}

impl Stage<'_> {
    fn set(self, before: impl FnOnce(&mut Config), during: impl FnOnce(&mut Connection)) {
        match self {
            Self::Before(config) => before(config),
            Self::During(connection) => during(connection),
            Self::After => {}
        }
    }

    /// For options that act at once, as TCP_QUICKACK, and mean nothing before there is a
    /// connection.
    fn now(self, set: impl FnOnce(&mut Connection)) -> Result<(), OptionError> {
        match self {
            Self::During(connection) => {
                set(connection);
                Ok(())
            }
            _ => Err(OptionError::NotApplicable),
        }
    }
}

fn set_stream(
    stage: Stage<'_>,
    packet: &mut PacketSettings,
    option: SocketOption,
) -> Result<(), OptionError> {
    match option {
        //= https://www.rfc-editor.org/rfc/rfc9293#section-3.7.4
        //# there MUST be a way for an application to disable the Nagle algorithm on an individual
        //# connection (MUST-17).
        SocketOption::NoDelay(on) => stage.set(|tcp| tcp.nodelay = on, |c| c.set_nodelay(on)),
        //= https://www.rfc-editor.org/rfc/rfc9293#section-3.8.4
        //# If keep-alives are included, the application MUST be able to turn them on or off for
        //# each TCP connection (MUST-24)
        SocketOption::KeepAlive(times) => {
            stage.set(|tcp| tcp.keepalive = times, |c| c.set_keepalive(times));
        }
        //= https://www.rfc-editor.org/rfc/rfc9293#section-3.8.3
        //# An application MUST (MUST-21) be able to set the value for R2 for a particular
        //# connection.
        SocketOption::UserTimeout(timeout) => {
            stage.set(|tcp| tcp.user_timeout = timeout, |c| c.set_user_timeout(timeout));
        }
        SocketOption::MaxPacingRate(rate) => {
            stage.set(|tcp| tcp.max_pacing_rate = rate, |c| c.set_max_pacing_rate(rate));
        }
        SocketOption::SynRetries(retries) => {
            // A listener's are SYN-ACKs (Linux's `reqsk_timer_handler`).
            let before = |tcp: &mut Config| {
                (tcp.syn_retries, tcp.syn_ack_retries) = (retries, retries);
            };
            stage.set(before, |c| c.set_syn_retries(retries));
        }
        SocketOption::FinWait2(timeout) => {
            stage.set(|tcp| tcp.fin_wait2_timeout = timeout, |c| c.set_fin_wait2_timeout(timeout));
        }
        SocketOption::Congestion(kind) => {
            stage.set(|tcp| tcp.congestion = kind, |c| c.set_congestion(kind));
        }
        SocketOption::MaxSegment(mss) => {
            // Linux's TCP_MIN_MSS and MAX_TCP_WINDOW.
            if mss != 0 && !(88..=32767).contains(&mss) {
                return Err(OptionError::Invalid);
            }
            if let Stage::Before(_) = stage {
                packet.mss_max = mss;
            }
        }
        //= https://www.rfc-editor.org/rfc/rfc9293#section-3.9.2
        //# The TTL value used to send TCP segments MUST be configurable (MUST-49).
        SocketOption::MinTtl(ttl) => packet.hops_min.v4 = ttl,
        SocketOption::MinHops(hops) => packet.hops_min.v6 = hops,
        SocketOption::Ttl(ttl) => packet.hops.v4 = ttl,
        SocketOption::UnicastHops(hops) => packet.hops.v6 = hops,
        //= https://www.rfc-editor.org/rfc/rfc9293#section-3.9.1.9
        //# The application layer MUST be able to specify the Differentiated Services field for
        //# segments that are sent on a connection (MUST-48).
        //= https://www.rfc-editor.org/rfc/rfc9293#section-3.9.1.9
        //# the application SHOULD be able to change the Differentiated Services field during the
        //# connection lifetime (SHLD-21).
        SocketOption::Tos(tos) => packet.classes.v4 = tos,
        SocketOption::TrafficClass(class) => packet.classes.v6 = class,
        SocketOption::Cork(on) => stage.now(|c| c.set_cork(on))?,
        SocketOption::MoreComing(on) => stage.now(|c| c.more_coming(on))?,
        SocketOption::UrgentEnd(end) => stage.now(|c| c.set_urgent(end))?,
        SocketOption::QuickAck(on) => stage.now(|c| c.set_quickack(on))?,
        _ => return Err(OptionError::NotApplicable),
    }
    Ok(())
}

fn set_datagram(
    datagram: &mut DatagramSocket,
    option: SocketOption,
    interfaces: usize,
) -> Result<(), OptionError> {
    match option {
        SocketOption::Ttl(ttl) => datagram.hops.v4 = ttl,
        SocketOption::UnicastHops(hops) => datagram.hops.v6 = hops,
        SocketOption::Tos(tos) => datagram.classes.v4 = tos,
        SocketOption::TrafficClass(class) => datagram.classes.v6 = class,
        SocketOption::Broadcast(on) => datagram.broadcast = on,
        SocketOption::NoChecksum(on) => datagram.no_checksum = on,
        SocketOption::MtuDiscover(discovery) => datagram.lengths.v4 = discovery,
        SocketOption::MtuDiscoverV6(discovery) => datagram.lengths.v6 = discovery,
        SocketOption::FragmentSize(size) => {
            //= https://www.rfc-editor.org/rfc/rfc8200#section-5
            //# IPv6 requires that every link in the Internet have an MTU of 1280
            //# octets or greater.
            if size.is_some_and(|size| size < PATH_MTU_MIN_V6) {
                return Err(OptionError::Invalid);
            }
            datagram.lengths.v6_fragment = size;
        }
        SocketOption::MulticastTtl(ttl) => datagram.multicast_ttl = ttl,
        SocketOption::MulticastHops(hops) => datagram.multicast_hops = hops,
        SocketOption::MulticastInterface(Some(iface), _)
        | SocketOption::MulticastInterfaceV6(Some(iface))
            if iface.index() >= interfaces =>
        {
            return Err(OptionError::NoInterface);
        }
        // As ip_setsockopt and ipv6_setsockopt of Linux: groups are sent to through the device that
        // the socket is bound to, or not at all.
        SocketOption::MulticastInterface(Some(iface), _)
        | SocketOption::MulticastInterfaceV6(Some(iface))
            if datagram.device.is_some_and(|device| device != iface) =>
        {
            return Err(OptionError::Invalid);
        }
        SocketOption::MulticastInterface(iface, source) => {
            (datagram.multicast_v4.iface, datagram.multicast_v4.source) =
                (iface, source.map(IpAddr::V4));
        }
        SocketOption::MulticastInterfaceV6(iface) => datagram.multicast_v6.iface = iface,
        SocketOption::MulticastLoop(on) => datagram.multicast_v4.looped = on,
        SocketOption::MulticastLoopV6(on) => datagram.multicast_v6.looped = on,
        SocketOption::MulticastAll(on) => datagram.multicast_all = on,
        SocketOption::MulticastAllV6(on) => datagram.multicast_all_v6 = on,
        SocketOption::RecvErrors(on) => datagram.recv_errors = on,
        SocketOption::RecvErrorsV6(on) => datagram.recv_errors_v6 = on,
        _ => return Err(OptionError::NotApplicable),
    }
    Ok(())
}
