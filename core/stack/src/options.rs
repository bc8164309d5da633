//! Options of sockets that change while they live.

use std::net::IpAddr;
use std::num::NonZeroU8;
use std::time::Duration;

use towpath_tcp::{Config, CongestionKind, Connection, Instant, KeepAlive};

use crate::binds::Table;
use crate::error::OptionError;
use crate::host::{BindOptions, Host, SocketId};
use towpath_wire::addr;

use crate::limits::{MEMBERSHIPS_MAX, SOURCES_MAX};
use crate::net::IfaceId;
use crate::socket::{Datagram, Kind, Membership, PacketSettings};
use crate::stack::Stack;

/// One option and its value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum SocketOption {
    /// TCP_NODELAY.
    NoDelay(bool),
    /// TCP_CORK.
    Cork(bool),
    /// MSG_MORE on the last write: a short segment waits for what follows.
    MoreComing(bool),
    /// TCP_QUICKACK.
    QuickAck(bool),
    /// SO_KEEPALIVE with TCP_KEEPIDLE, TCP_KEEPINTVL and TCP_KEEPCNT.
    KeepAlive(Option<KeepAlive>),
    /// TCP_USER_TIMEOUT.
    UserTimeout(Option<Duration>),
    /// TCP_SYNCNT.
    SynRetries(u8),
    /// TCP_LINGER2: how long the connection waits for the peer's FIN once its socket is closed.
    FinWait2(Duration),
    /// TCP_CONGESTION.
    Congestion(CongestionKind),
    /// TCP_MAXSEG: 88 to 32767, or 0 for what the path carries.
    MaxSegment(u16),
    /// IP_TTL; `None`: the default.
    Ttl(Option<NonZeroU8>),
    /// IPV6_UNICAST_HOPS; `None`: the default.
    UnicastHops(Option<u8>),
    /// IP_TOS or IPV6_TCLASS.
    Tos(u8),
    /// SO_BROADCAST.
    Broadcast(bool),
    /// SO_NO_CHECK: IPv4 datagrams go without a checksum.
    NoChecksum(bool),
    /// IP_MTU_DISCOVER: true refuses datagrams longer than the path MTU, false fragments them.
    DontFragment(bool),
    /// IP_MULTICAST_TTL; 0 reaches members on this host only.
    MulticastTtl(u8),
    /// IPV6_MULTICAST_HOPS, likewise.
    MulticastHops(u8),
    /// IP_MULTICAST_IF or IPV6_MULTICAST_IF.
    MulticastInterface(Option<IfaceId>),
    /// IP_MULTICAST_LOOP or IPV6_MULTICAST_LOOP.
    MulticastLoop(bool),
    /// IP_RECVERR and IPV6_RECVERR: what comes back is told to [`Host::datagram_error`], all of it.
    RecvErrors(bool),
    /// SO_REUSEADDR and SO_REUSEPORT, which others meet from now on, and how the socket is bound when it
    /// connects, sends or listens unbound.
    Binding(BindOptions),
    /// SO_BINDTODEVICE and SO_BINDTOIFINDEX.
    Device(Option<IfaceId>),
    /// IP_MULTICAST_ALL: also take datagrams to groups that other sockets joined.
    MulticastAll(bool),
}

impl<H: Host> Stack<H> {
    /// Sets an option. On a listener it holds for children to come.
    pub fn set_option(&mut self, id: SocketId, option: SocketOption) -> Result<(), OptionError> {
        let index = self.index(id).ok_or(OptionError::NoSocket)?;
        if let SocketOption::Device(device) = option {
            return self.set_device(index, device);
        }
        if let SocketOption::Binding(options) = option {
            return self.set_binding(index, options);
        }
        let interfaces = self.net.interfaces().len();
        let socket = self.sockets.get_mut(index).ok_or(OptionError::NoSocket)?;
        match &mut socket.kind {
            Kind::Fresh(settings) => {
                set_stream(Stage::Before(&mut settings.tcp), &mut settings.packet, option)
            }
            Kind::Listener(listener) => {
                let settings = &mut listener.settings;
                set_stream(Stage::Before(&mut settings.tcp), &mut settings.packet, option)
            }
            Kind::Promised(_) => Err(OptionError::NotApplicable),
            Kind::Stream(stream) => {
                let stage = stream.connection.as_mut().map_or(Stage::After, Stage::During);
                let set = set_stream(stage, &mut stream.packet, option);
                // What was held back may go now, and timers may have moved.
                self.mark_dirty(index);
                set
            }
            Kind::Datagram(datagram) => set_datagram(datagram, option, interfaces),
        }
    }

    /// The interface need not exist: then nothing comes or goes.
    pub(crate) fn set_device(
        &mut self,
        index: u32,
        device: Option<IfaceId>,
    ) -> Result<(), OptionError> {
        let socket = self.sockets.get_mut(index).ok_or(OptionError::NoSocket)?;
        let mut receives = None;
        match &mut socket.kind {
            Kind::Fresh(settings) => settings.device = device,
            Kind::Listener(listener) => {
                listener.settings.device = device;
                receives = Some(Table::Tcp);
            }
            Kind::Datagram(datagram) => {
                datagram.device = device;
                datagram.route = None;
                receives = datagram.peer.is_none().then_some(datagram.table());
            }
            Kind::Stream(stream) => {
                if device.is_some() || !addr::is_link_local(stream.flow.remote) {
                    stream.iface = device;
                    stream.path = None;
                }
            }
            Kind::Promised(_) => return Err(OptionError::NotApplicable),
        }
        let Some(bound) = &socket.bound else { return Ok(()) };
        let (addr, port) = (bound.addr, bound.port);
        let table = socket.kind.table();
        let binds = self.binds_mut(table);
        if let Some(holder) = binds.holder_mut(port, index) {
            holder.device = device;
        }
        if receives.is_some() && port != 0 {
            binds.stop_receiving(addr, port, index);
            binds.receive(addr, port, index, device);
        }
        Ok(())
    }

    /// Joins a multicast group (IP_ADD_MEMBERSHIP, IPV6_JOIN_GROUP), on the interface that routes to it
    /// when none is given. With `source` only for what comes from there (IP_ADD_SOURCE_MEMBERSHIP); on the
    /// link the group is joined for all sources.
    pub fn join_group(
        &mut self,
        now: Instant,
        id: SocketId,
        group: IpAddr,
        iface: Option<IfaceId>,
        source: Option<IpAddr>,
    ) -> Result<(), OptionError> {
        let (index, iface) = self.membership(now, id, group, iface)?;
        let datagram = self.members_mut(index)?;
        let known = datagram.memberships.iter_mut().find(|m| (m.group, m.iface) == (group, iface));
        match (known.map(|membership| &mut membership.sources), source) {
            (Some(Some(sources)), Some(source)) if sources.contains(&source) => {
                return Err(OptionError::NotAvailable);
            }
            (Some(Some(sources)), Some(_)) if sources.len() >= SOURCES_MAX => {
                return Err(OptionError::TooMany);
            }
            (Some(Some(sources)), Some(source)) => {
                sources.push(source);
                return Ok(());
            }
            // One may want all sources of a group, or some.
            (Some(None), Some(_)) => return Err(OptionError::Invalid),
            (Some(_), None) => return Err(OptionError::Membership),
            (None, _) => {}
        }
        if datagram.memberships.len() >= MEMBERSHIPS_MAX || !self.net.join_group(now, iface, group)
        {
            return Err(OptionError::TooMany);
        }
        // For what this host itself sends to the group.
        if !self.net.join_group(now, IfaceId::LOOPBACK, group) {
            self.net.leave_group(now, iface, group);
            return Err(OptionError::TooMany);
        }
        let sources = source.map(|source| vec![source]);
        self.members_mut(index)?.memberships.push(Membership { group, iface, sources });
        self.memberships += 1;
        Ok(())
    }

    /// Leaves a group joined with [`Stack::join_group`], or with `source` one of its sources.
    pub fn leave_group(
        &mut self,
        now: Instant,
        id: SocketId,
        group: IpAddr,
        iface: Option<IfaceId>,
        source: Option<IpAddr>,
    ) -> Result<(), OptionError> {
        let (index, iface) = self.membership(now, id, group, iface)?;
        let datagram = self.members_mut(index)?;
        let at = datagram.memberships.iter().position(|m| (m.group, m.iface) == (group, iface));
        let missing = if source.is_some() { OptionError::Invalid } else { OptionError::Membership };
        let at = at.ok_or(missing)?;
        if let Some(source) = source {
            let sources = datagram.memberships[at].sources.as_mut().ok_or(OptionError::Invalid)?;
            let place = sources.iter().position(|s| *s == source);
            sources.swap_remove(place.ok_or(OptionError::NotAvailable)?);
            if !sources.is_empty() {
                return Ok(());
            }
        }
        let membership = datagram.memberships.swap_remove(at);
        self.end_membership(now, &membership);
        Ok(())
    }

    fn members_mut(&mut self, index: u32) -> Result<&mut Datagram, OptionError> {
        match self.sockets.get_mut(index).map(|socket| &mut socket.kind) {
            Some(Kind::Datagram(datagram)) => Ok(datagram),
            _ => Err(OptionError::NotApplicable),
        }
    }

    pub(crate) fn end_membership(&mut self, now: Instant, membership: &Membership) {
        self.net.leave_group(now, membership.iface, membership.group);
        self.net.leave_group(now, IfaceId::LOOPBACK, membership.group);
        self.memberships -= 1;
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

/// Where in its life a stream socket is: who keeps its options.
enum Stage<'a> {
    /// They are for the connections to come.
    Before(&'a mut Config),
    During(&'a mut Connection),
    /// It is over, and nothing depends on them.
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

    /// For what says something about a moment, and means nothing before there is a connection.
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
        SocketOption::SynRetries(retries) => {
            stage.set(|tcp| tcp.syn_retries = retries, |c| c.set_syn_retries(retries));
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
            packet.mss_max = mss;
            if mss != 0 {
                stage.set(|_| {}, |c| c.set_mss_max(mss));
            }
        }
        //= https://www.rfc-editor.org/rfc/rfc9293#section-3.9.2
        //# The TTL value used to send TCP segments MUST be configurable (MUST-49).
        SocketOption::Ttl(ttl) => packet.hops.v4 = ttl,
        SocketOption::UnicastHops(hops) => packet.hops.v6 = hops,
        //= https://www.rfc-editor.org/rfc/rfc9293#section-3.9.1.9
        //# The application layer MUST be able to specify the Differentiated Services field for
        //# segments that are sent on a connection (MUST-48).
        //= https://www.rfc-editor.org/rfc/rfc9293#section-3.9.1.9
        //# the application SHOULD be able to change the Differentiated Services field during the
        //# connection lifetime (SHLD-21).
        SocketOption::Tos(tos) => packet.tos = tos,
        SocketOption::Cork(on) => stage.now(|c| c.set_cork(on))?,
        SocketOption::MoreComing(on) => stage.now(|c| c.more_coming(on))?,
        SocketOption::QuickAck(on) => stage.now(|c| c.set_quickack(on))?,
        _ => return Err(OptionError::NotApplicable),
    }
    Ok(())
}

fn set_datagram(
    datagram: &mut Datagram,
    option: SocketOption,
    interfaces: usize,
) -> Result<(), OptionError> {
    match option {
        SocketOption::Ttl(ttl) => datagram.hops.v4 = ttl,
        SocketOption::UnicastHops(hops) => datagram.hops.v6 = hops,
        SocketOption::Tos(tos) => datagram.tos = tos,
        SocketOption::Broadcast(on) => datagram.broadcast = on,
        SocketOption::NoChecksum(on) => datagram.no_checksum = on,
        SocketOption::DontFragment(on) => datagram.dont_fragment = on,
        SocketOption::MulticastTtl(ttl) => datagram.multicast_ttl = ttl,
        SocketOption::MulticastHops(hops) => datagram.multicast_hops = hops,
        SocketOption::MulticastInterface(Some(iface)) if iface.index() >= interfaces => {
            return Err(OptionError::NoInterface);
        }
        SocketOption::MulticastInterface(iface) => datagram.multicast_iface = iface,
        SocketOption::MulticastLoop(on) => datagram.multicast_loop = on,
        SocketOption::MulticastAll(on) => datagram.multicast_all = on,
        SocketOption::RecvErrors(on) => datagram.recv_errors = on,
        _ => return Err(OptionError::NotApplicable),
    }
    Ok(())
}
