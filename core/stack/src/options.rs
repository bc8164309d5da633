//! Options of sockets that change while they live.

use std::net::IpAddr;
use std::time::Duration;

use towpath_tcp::{Config, CongestionKind, Connection, Instant, KeepAlive};

use crate::error::OptionError;
use crate::host::{Host, SocketId};
use crate::limits::MEMBERSHIPS_MAX;
use crate::net::IfaceId;
use crate::socket::{Datagram, Kind, Membership, PacketSettings};
use crate::stack::Stack;

/// One option and its value. Those of binding are in [`crate::BindOptions`].
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
    /// IP_TTL or IPV6_UNICAST_HOPS; not 0.
    Ttl(u8),
    /// IP_TOS or IPV6_TCLASS.
    Tos(u8),
    /// SO_BROADCAST.
    Broadcast(bool),
    /// IP_MTU_DISCOVER: true refuses datagrams longer than the path MTU, false fragments them.
    DontFragment(bool),
    /// IP_MULTICAST_TTL or IPV6_MULTICAST_HOPS.
    MulticastTtl(u8),
    /// IP_MULTICAST_IF or IPV6_MULTICAST_IF.
    MulticastInterface(Option<IfaceId>),
    /// IP_MULTICAST_LOOP or IPV6_MULTICAST_LOOP.
    MulticastLoop(bool),
    /// IP_MULTICAST_ALL: also take datagrams to groups that other sockets joined.
    MulticastAll(bool),
}

impl<H: Host> Stack<H> {
    /// Sets an option. On a listener it holds for children to come.
    pub fn set_option(&mut self, id: SocketId, option: SocketOption) -> Result<(), OptionError> {
        let index = self.index(id).ok_or(OptionError::NoSocket)?;
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

    /// Joins a multicast group (IP_ADD_MEMBERSHIP, IPV6_JOIN_GROUP), on the interface that routes to it
    /// when none is given.
    pub fn join_group(
        &mut self,
        now: Instant,
        id: SocketId,
        group: IpAddr,
        iface: Option<IfaceId>,
    ) -> Result<(), OptionError> {
        let (index, membership) = self.membership(now, id, group, iface)?;
        let Some(Kind::Datagram(datagram)) =
            self.sockets.get_mut(index).map(|socket| &mut socket.kind)
        else {
            return Err(OptionError::NotApplicable);
        };
        if datagram.memberships.contains(&membership) {
            return Err(OptionError::Membership);
        }
        if datagram.memberships.len() >= MEMBERSHIPS_MAX {
            return Err(OptionError::TooMany);
        }
        if !self.net.join_group(now, membership.iface, group) {
            return Err(OptionError::TooMany);
        }
        datagram.memberships.push(membership);
        // For what this host itself sends to the group.
        self.net.join_group(now, IfaceId::LOOPBACK, group);
        self.memberships += 1;
        Ok(())
    }

    /// Leaves a group joined with [`Stack::join_group`].
    pub fn leave_group(
        &mut self,
        now: Instant,
        id: SocketId,
        group: IpAddr,
        iface: Option<IfaceId>,
    ) -> Result<(), OptionError> {
        let (index, membership) = self.membership(now, id, group, iface)?;
        let Some(Kind::Datagram(datagram)) =
            self.sockets.get_mut(index).map(|socket| &mut socket.kind)
        else {
            return Err(OptionError::NotApplicable);
        };
        let at = datagram.memberships.iter().position(|m| *m == membership);
        datagram.memberships.swap_remove(at.ok_or(OptionError::Membership)?);
        self.end_membership(now, membership);
        Ok(())
    }

    pub(crate) fn end_membership(&mut self, now: Instant, membership: Membership) {
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
    ) -> Result<(u32, Membership), OptionError> {
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
        Ok((index, Membership { group, iface }))
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
        SocketOption::NoDelay(on) => stage.set(|tcp| tcp.nodelay = on, |c| c.set_nodelay(on)),
        SocketOption::KeepAlive(times) => {
            stage.set(|tcp| tcp.keepalive = times, |c| c.set_keepalive(times));
        }
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
        SocketOption::Ttl(0) => return Err(OptionError::Invalid),
        SocketOption::Ttl(ttl) => packet.ttl = ttl,
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
        SocketOption::Ttl(0) => return Err(OptionError::Invalid),
        SocketOption::Ttl(ttl) => datagram.ttl = ttl,
        SocketOption::Tos(tos) => datagram.tos = tos,
        SocketOption::Broadcast(on) => datagram.broadcast = on,
        SocketOption::DontFragment(on) => datagram.dont_fragment = on,
        SocketOption::MulticastTtl(ttl) => datagram.multicast_ttl = ttl,
        SocketOption::MulticastInterface(Some(iface)) if iface.index() >= interfaces => {
            return Err(OptionError::NoInterface);
        }
        SocketOption::MulticastInterface(iface) => datagram.multicast_iface = iface,
        SocketOption::MulticastLoop(on) => datagram.multicast_loop = on,
        SocketOption::MulticastAll(on) => datagram.multicast_all = on,
        _ => return Err(OptionError::NotApplicable),
    }
    Ok(())
}
