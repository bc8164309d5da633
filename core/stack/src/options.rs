//! Socket options that can be changed at any time.

use std::net::{IpAddr, Ipv4Addr};
use std::num::{NonZeroU8, NonZeroU64};
use std::sync::Arc;
use std::time::Duration;

use towpath_cbpf::Program;
use towpath_tcp::{Config, CongestionKind, Connection, FastOpenKeys, Instant, KeepAliveConfig};
use towpath_wire::addr;

use crate::error::OptionError;
use crate::host::{BindOptions, Host, SocketId};
use crate::limits::{MEMBERSHIPS_MAX, SOURCES_MAX};
use crate::net::limits::PATH_MTU_MIN_V6;
use crate::net::{IfaceId, Net};
use crate::ports::bind_addr::PortProtocol;
use crate::settings::PacketSettings;
use crate::socket::{SocketRole, StackSocket};
use crate::stack::Stack;
use crate::udp::lengths::MtuDiscovery;
use crate::udp::socket::{DatagramSocket, GroupMembership};

/// A socket option, with its value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum SocketOption {
    /// TCP_NODELAY: disables Nagle's algorithm, so that short segments are sent while bytes are in
    /// flight (RFC 9293 §3.7.4).
    NoDelay(bool),
    /// TCP_CORK: short segments are not sent before the option is cleared, or [`Config::cork`] has
    /// passed. Connections only.
    Cork(bool),
    /// MSG_MORE on the last write: a short segment is not sent yet, as with `Cork`. Connections
    /// only.
    MoreComing(bool),
    /// MSG_OOB on a connection: marks the byte before this offset as urgent. The offset is relative
    /// to the start of the send buffer.
    UrgentEnd(u32),
    /// MSG_EOR on a connection: marks the end of a record at this offset, which is relative to the
    /// start of the send buffer. No segment contains bytes from before and after the mark.
    RecordEnd(u32),
    /// TCP_QUICKACK: with true, the pending ACK and the ones that follow are sent without delay.
    /// The mode ends by itself, as described in tcp(7); with false it ends at once. Connections
    /// only.
    QuickAck(bool),
    /// SO_KEEPALIVE with TCP_KEEPIDLE, TCP_KEEPINTVL and TCP_KEEPCNT. `None`, the default, disables
    /// keepalive probes (RFC 9293 §3.8.4).
    KeepAlive(Option<KeepAliveConfig>),
    /// TCP_USER_TIMEOUT: maximum time for which sent bytes may be unacknowledged (RFC 5482). With
    /// `None`, the connection fails after [`Config::retries`] retransmissions.
    UserTimeout(Option<Duration>),
    /// SO_MAX_PACING_RATE of a connection: maximum number of payload bytes sent per second; `None`
    /// sets no limit.
    MaxPacingRate(Option<NonZeroU64>),
    /// TCP_SYNCNT: number of retransmissions of a SYN, or of a listener's SYN-ACK. Accepts any
    /// number; Linux accepts 1 to 127 (`MAX_TCP_SYNCNT`).
    SynRetries(u8),
    /// TCP_LINGER2: time for which a connection waits for the peer's FIN after the socket was
    /// closed.
    FinWait2(Duration),
    /// TCP_CONGESTION: congestion control algorithm. If the algorithm changes, a connection keeps
    /// its current congestion window.
    Congestion(CongestionKind),
    /// TCP_MAXSEG: maximum segment size in bytes, 88 to 32767. 0 uses the value of the path. An
    /// established connection keeps the value of its handshake.
    MaxSegment(u16),
    /// IP_TTL: TTL of unicast IPv4 packets; `None` means 64.
    Ttl(Option<NonZeroU8>),
    /// IPV6_UNICAST_HOPS: hop limit of unicast IPv6 packets. `None` means the value that routers
    /// advertise (RFC 4861 §6.3.4), or 64.
    UnicastHops(Option<u8>),
    /// IP_TOS: octet with DSCP and ECN of IPv4 packets (RFC 2474 §3, RFC 3168 §5).
    Tos(u8),
    /// IPV6_TCLASS: octet with DSCP and ECN of IPv6 packets.
    TrafficClass(u8),
    /// IP_MINTTL: IPv4 segments with a lower TTL are dropped (RFC 5082). On a listener this applies
    /// to SYNs.
    MinTtl(u8),
    /// IPV6_MINHOPCOUNT: IPv6 segments with a lower hop limit are dropped. On a listener, this
    /// applies to SYNs.
    MinHops(u8),
    /// SO_BROADCAST: permits broadcast addresses as destination. By default, sending to them fails
    /// ([`crate::SendError::Forbidden`], [`crate::ConnectError::Forbidden`]).
    Broadcast(bool),
    /// SO_NO_CHECK: sends IPv4 datagrams without a checksum.
    NoChecksum(bool),
    /// IP_MTU_DISCOVER: path MTU discovery for IPv4 datagrams.
    MtuDiscover(MtuDiscovery),
    /// IPV6_MTU_DISCOVER: path MTU discovery for IPv6 datagrams.
    MtuDiscoverV6(MtuDiscovery),
    /// IPV6_MTU: maximum length in bytes of packets with IPv6 datagrams, at least 1280 (RFC 8200
    /// §5). `None` sets no limit other than the path MTU.
    FragmentSize(Option<u32>),
    /// IP_MULTICAST_TTL: TTL of IPv4 multicast datagrams. The default 1 reaches members on the link
    /// (RFC 1112 §6.1), and 0 only members on this host.
    MulticastTtl(u8),
    /// IPV6_MULTICAST_HOPS: like `MulticastTtl`, for IPv6.
    MulticastHops(u8),
    /// IP_MULTICAST_IF: interface by which IPv4 multicast datagrams are sent, and optional source
    /// address. With `None`, routes and the source address determine the interface. Must not differ
    /// from the interface of `Device`.
    MulticastInterface(Option<IfaceId>, Option<Ipv4Addr>),
    /// IPV6_MULTICAST_IF: like `MulticastInterface`, for IPv6.
    MulticastInterfaceV6(Option<IfaceId>),
    /// IP_MULTICAST_LOOP: multicast datagrams are also delivered to member sockets on this host.
    /// Enabled by default.
    MulticastLoop(bool),
    /// IPV6_MULTICAST_LOOP: like `MulticastLoop`, for IPv6.
    MulticastLoopV6(bool),
    /// IP_RECVERR: all ICMP errors about IPv4 datagrams are passed to [`Host::datagram_error`].
    RecvErrors(bool),
    /// IPV6_RECVERR: all ICMP errors about IPv6 datagrams are passed to [`Host::datagram_error`].
    RecvErrorsV6(bool),
    /// SO_REUSEADDR, SO_REUSEPORT and other options of binding. Binds of other sockets are checked
    /// against the new options immediately. The options also apply if connect, send or listen bind
    /// this socket implicitly.
    Binding(BindOptions),
    /// SO_BINDTODEVICE and SO_BINDTOIFINDEX: restricts the socket to an interface. If the interface
    /// does not exist, the socket neither sends nor receives packets.
    Device(Option<IfaceId>),
    /// IP_MULTICAST_ALL: the socket also receives datagrams to IPv4 multicast groups that other
    /// sockets joined. Enabled by default, except for dual-stack sockets.
    MulticastAll(bool),
    /// IPV6_MULTICAST_ALL: like `MulticastAll`, for IPv6.
    MulticastAllV6(bool),
    /// TCP_FASTOPEN (RFC 7413) of a listener: a SYN with a Fast Open cookie creates a connection at
    /// once. The number limits such connections with an incomplete handshake, per shard. With 0, no
    /// cookies are sent.
    FastOpenQueue(u32),
    /// TCP_FASTOPEN_KEY: keys of the cookies of a listener.
    FastOpenKeys(FastOpenKeys),
    /// TCP_SAVE_SYN of a listener: accepted connections keep the headers of their SYN
    /// ([`Stack::take_saved_syn`]).
    SaveSyn(bool),
}

impl<H: Host> Stack<H> {
    /// Sets a socket option. On a listener it applies to connections accepted later; on a closed
    /// connection it has no effect.
    ///
    /// # Errors
    /// [`OptionError::NotApplicable`] for options of another socket kind, and for connection
    /// options without a connection. A socket has no connection during the handshake of
    /// [`Stack::accept_pending`], either. `Invalid`, `NoInterface` and `NoSocket` as documented in
    /// [`OptionError`].
    pub fn set_option(&mut self, id: SocketId, option: SocketOption) -> Result<(), OptionError> {
        self.catch_up();
        let index = self.index(id).ok_or(OptionError::NoSocket)?;
        if let SocketOption::Device(device) = option {
            return self.set_device(index, device);
        }
        if let SocketOption::Binding(options) = option {
            return self.set_binding(index, options);
        }
        if let SocketOption::FastOpenQueue(_)
        | SocketOption::FastOpenKeys(_)
        | SocketOption::SaveSyn(_) = option
        {
            return self.set_accepting(index, option);
        }
        let is_congestion = matches!(option, SocketOption::Congestion(_));
        let socket = self.sockets.get_mut(index).ok_or(OptionError::NoSocket)?;
        match &mut socket.kind {
            SocketRole::Fresh(settings) => {
                settings.has_own_congestion |= is_congestion;
                set_stream(Stage::Before(&mut settings.tcp), &mut settings.packet, option)
            }
            SocketRole::Listener(listener) => {
                let settings = &mut listener.settings;
                settings.has_own_congestion |= is_congestion;
                let stage = Stage::Before(&mut settings.tcp);
                let set = set_stream(stage, &mut settings.packet, option);
                // Notify all shards (stacks of this host), because any of them may accept
                // connections for this listener.
                self.in_order(PortProtocol::Tcp, index, 0, |_| true);
                set
            }
            SocketRole::EarlyAccept(_) => Err(OptionError::NotApplicable),
            SocketRole::Stream(stream) => {
                let stage = stream.connection.as_mut().map_or(Stage::After, Stage::During);
                let remote = stream.flow.remote;
                let set = stream.packet.change(remote, |packet| set_stream(stage, packet, option));
                let is_ignored = set == Err(OptionError::TooMany);
                self.counters.tcp_record_ends_ignored += u64::from(is_ignored);
                // Let the connection send: short segments may be permitted now, and timers may have
                // changed.
                self.mark_dirty(index);
                set
            }
            SocketRole::Datagram(datagram) => {
                datagram.last_target = None;
                set_datagram(datagram, option, &self.net)
            }
        }
    }

    /// Sets the filter program for datagrams that a socket receives (SO_ATTACH_FILTER). With
    /// `None`, all datagrams are accepted.
    ///
    /// # Errors
    /// [`OptionError::NotApplicable`] if the socket is not a datagram socket.
    pub fn set_filter(
        &mut self,
        id: SocketId,
        filter: Option<Arc<Program>>,
    ) -> Result<(), OptionError> {
        let index = self.index(id).ok_or(OptionError::NoSocket)?;
        self.datagram_mut(index)?.filter = filter;
        Ok(())
    }

    /// Removes and returns the headers of the SYN that opened a connection, beginning with the IP
    /// header. The headers are available if the listener had [`SocketOption::SaveSyn`]. Headers
    /// longer than `room` bytes are not removed.
    ///
    /// # Errors
    /// Returns the length of the headers if it exceeds `room`.
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

    /// Returns the filter program that was set by [`Stack::set_filter`].
    pub fn filter(&self, id: SocketId) -> Option<Arc<Program>> {
        self.sockets.datagram(self.index(id)?)?.filter.clone()
    }

    /// Restricts a socket to an interface. If the interface does not exist, the socket neither
    /// sends nor receives packets.
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
        // Change the key under which a connected datagram socket is looked up, because it includes
        // the interface.
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
        // End a wait for space in the queue of the previous interface.
        self.end_wait(index);
        let Some(socket) = self.sockets.get(index) else { return Ok(()) };
        let Some(bound) = &socket.bound else { return Ok(()) };
        let (addr, port, sharing) = (bound.addr, bound.port, bound.options.sharing());
        let processor = bound.options.processor;
        let table = socket.kind.table();
        let binds = self.ports.of_mut(table);
        binds.change(port, index, |holder| holder.device = device);
        // If the interface changes, insert the socket again, because the interface is a part of its
        // key. Otherwise keep its position among sockets with the same key.
        if receives.is_some() && port != 0 && device != before {
            binds.receivers.remove(addr, port, index);
            binds.receivers.insert(addr, port, index, device, sharing);
            binds.receivers.set_processor(addr, port, index, processor);
        }
        Ok(())
    }

    /// Joins a multicast group (IP_ADD_MEMBERSHIP, IPV6_JOIN_GROUP). If no interface is given, the
    /// interface of the route to the group is used. If `source` is given, only packets from this
    /// source are received (IP_ADD_SOURCE_MEMBERSHIP); further calls add sources.
    ///
    /// # Errors
    /// * [`OptionError::Membership`]: the group is joined already; for a source, `NotAvailable`.
    /// * `Invalid`: all sources are joined already, or `group` is not a multicast address.
    /// * `NoInterface`: no such interface, or no route to the group.
    /// * `TooMany`: [`MEMBERSHIPS_MAX`], [`SOURCES_MAX`], or an interface limit
    ///   ([`GROUPS_MAX`](crate::net::limits::GROUPS_MAX),
    ///   [`GROUP_SOURCES_MAX`](crate::net::limits::GROUP_SOURCES_MAX)) is reached.
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
            // As on Linux, a socket that has joined the group for all sources cannot add a single
            // source.
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

    /// Joins a multicast group of which the socket is not a member yet.
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

    /// Leaves a multicast group joined by [`Stack::join_group`]. If `source` is given, leaves only
    /// this source of the group. Removing the last source leaves the group.
    ///
    /// # Errors
    /// [`OptionError::Membership`] if the socket is not a member. If `source` is given: `Invalid`
    /// if the socket is not a member or joined all sources; `NotAvailable` if it did not join this
    /// source.
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
        if self.net.interface(iface).is_none() {
            return Err(OptionError::NoInterface);
        }
        Ok((index, iface))
    }
}

/// Place where the options of a stream socket are stored, depending on the state of its connection.
enum Stage<'a> {
    /// The socket has no connection yet, so the options are settings for its future connection.
    Before(&'a mut Config),
    During(&'a mut Connection),
    /// The connection has ended, so the option has no effect.
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

    /// Applies an option that takes effect immediately, such as TCP_QUICKACK. Fails if there is no
    /// connection.
    fn now<T>(self, set: impl FnOnce(&mut Connection) -> T) -> Result<T, OptionError> {
        match self {
            Self::During(connection) => Ok(set(connection)),
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
            // On a listener, the option is the number of SYN-ACK retransmissions (Linux's
            // `reqsk_timer_handler`).
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
        SocketOption::MaxSegment(mss) => set_max_segment(&stage, packet, mss)?,
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
        SocketOption::RecordEnd(end) => {
            if !stage.now(|c| c.end_record(end))? {
                return Err(OptionError::TooMany);
            }
        }
        SocketOption::QuickAck(on) => stage.now(|c| c.set_quickack(on))?,
        _ => return Err(OptionError::NotApplicable),
    }
    Ok(())
}

/// Sets the maximum segment size (TCP_MAXSEG), which has no effect on an existing connection.
fn set_max_segment(
    stage: &Stage<'_>,
    packet: &mut PacketSettings,
    mss: u16,
) -> Result<(), OptionError> {
    // The limits are Linux's TCP_MIN_MSS and MAX_TCP_WINDOW.
    if mss != 0 && !(88..=32767).contains(&mss) {
        return Err(OptionError::Invalid);
    }
    if let Stage::Before(_) = stage {
        packet.mss_max = mss;
    }
    Ok(())
}

fn set_datagram(
    datagram: &mut DatagramSocket,
    option: SocketOption,
    net: &Net,
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
            if net.interface(iface).is_none() =>
        {
            return Err(OptionError::NoInterface);
        }
        // As in Linux's ip_setsockopt and ipv6_setsockopt, a socket that is bound to an interface
        // cannot select another interface for multicast.
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
