//! Calls of the transports: routes to destinations, and packets to send.

use core::net::IpAddr;

use towpath_pool::{Packet, Pool};
use towpath_ring::Payload;
use towpath_tcp::Instant;

use super::data::{EchoOut, SendError, Unreachable};
use super::iface::IfaceId;
use super::ip::{AddressPair, Ip};
use super::layer::Net;
use super::received::Local;
use super::route::{Epoch, HopId, Route, RouteError};

impl Net {
    /// The way to `dst`, through `iface` if one is given and from `src` if one is given. A given
    /// `src` is not checked to be ours: a gateway answers from any address.
    pub fn route(
        &self,
        now: Instant,
        src: Option<IpAddr>,
        dst: IpAddr,
        iface: Option<IfaceId>,
    ) -> Result<Route, RouteError> {
        self.data.route(now, src, dst, iface)
    }

    /// The same as [`route`](Self::route), for a caller that keeps the route: with the place of its
    /// next hop.
    pub fn route_to_keep(
        &mut self,
        now: Instant,
        src: Option<IpAddr>,
        dst: IpAddr,
        iface: Option<IfaceId>,
    ) -> Result<Route, RouteError> {
        self.data.route_to_keep(now, src, dst, iface)
    }

    /// Changes whenever a [`Route`] found earlier may be outdated, its path MTU excepted.
    pub fn route_generation(&self) -> u64 {
        self.data.snapshot.generation
    }

    /// Changes whenever the path MTU of a [`Route`] found earlier may be outdated.
    pub fn path_mtu_generation(&self) -> u64 {
        self.data.mtus.generation()
    }

    /// Longest IP packet in bytes that gets to `dst`, as far as datagrams know.
    pub fn path_mtu(&self, now: Instant, dst: IpAddr) -> u32 {
        self.data.path_mtu(now, dst)
    }

    /// Longest IP packet in bytes that no path is known to be too narrow for, this host's own
    /// excepted. Each shard knows of the paths of all.
    pub fn path_mtu_least(&self) -> u32 {
        self.data.path_mtu_least()
    }

    /// Believes a report that datagrams from `src` to `dst`, sent through `iface` if one is given,
    /// get through with `mtu` bytes only. For transports that checked that the report quotes a
    /// packet of theirs.
    pub fn set_path_mtu(
        &mut self,
        now: Instant,
        ends: (IpAddr, IpAddr),
        iface: Option<IfaceId>,
        mtu: u32,
    ) {
        if let Some((way, mtu)) = self.data.set_path_mtu(now, ends.0, ends.1, iface, mtu) {
            self.share_path_mtu(now, way, mtu);
        }
    }

    /// The address of a next hop; `None` when its place was given to another one.
    #[inline]
    pub(crate) fn next_hop(&self, hop: HopId) -> Option<IpAddr> {
        self.data.next_hops.key(hop).map(|(_, addr)| addr)
    }

    /// The present epoch, for a caller that keeps routes.
    pub(crate) fn epoch(&self) -> Epoch {
        self.data.next_hops.epoch()
    }

    /// Routes that were found earlier may be wrong.
    pub(crate) fn begin_epoch(&mut self) -> Epoch {
        self.data.next_hops.begin_epoch()
    }

    /// Whether `epoch` is not before `since`.
    #[inline]
    pub(crate) fn is_since(&self, epoch: Epoch, since: Epoch) -> bool {
        self.data.next_hops.is_since(epoch, since)
    }

    /// The transport made progress beyond a next hop: no probe is needed (RFC 4861 §7.3.1).
    #[inline]
    pub(crate) fn confirm_reachable(&mut self, now: Instant, hop: HopId) {
        self.data.next_hops.confirm(now, hop);
    }

    /// Sends one transport packet, whose front is the transport header.
    ///
    /// `checksum_offset` says where in that header the checksum goes; the field holds 0. With
    /// `packet.meta.segmentation`, whose `header_len` counts from the transport header, the packet
    /// is cut by the device or here. `route` is from [`Net::route`] for `src` and `dst`, which are
    /// of one family: panics otherwise.
    ///
    /// # Errors
    /// The packet is gone, and counted. `Ok` does not say that it leaves: its neighbour may not
    /// answer.
    #[inline]
    #[allow(clippy::too_many_arguments)] // A struct for this single call would only rename them.
    pub fn send(
        &mut self,
        now: Instant,
        route: &Route,
        src: IpAddr,
        dst: IpAddr,
        ip: Ip,
        packet: Packet,
        checksum_offset: Option<u16>,
        pool: &mut Pool,
    ) -> Result<(), SendError> {
        let sent =
            self.data.send(now, route, AddressPair { src, dst }, ip, packet, checksum_offset, pool);
        self.exchange(now, pool);
        sent
    }

    /// Gives this host its copy of a datagram that [`send`](Self::send) sent to a group or
    /// broadcast address. The copy counts as received on the interface that the datagram went out
    /// of, so that only members there get it. `packet` is the same as for `send`.
    pub fn send_copy(
        &mut self,
        now: Instant,
        route: &Route,
        ends: (IpAddr, IpAddr),
        ip: Ip,
        packet: Packet,
        pool: &mut Pool,
    ) -> Result<(), SendError> {
        self.data.send_copy(now, route, AddressPair { src: ends.0, dst: ends.1 }, ip, packet, pool)
    }

    /// Sends an echo message with `data`.
    pub fn send_echo(
        &mut self,
        now: Instant,
        route: &Route,
        echo: &EchoOut,
        data: &Payload<'_>,
        pool: &mut Pool,
    ) -> Result<(), SendError> {
        let sent = self.data.send_echo(now, route, echo, data, pool);
        self.exchange(now, pool);
        sent
    }

    /// Reports to the sender of `to` that it could not be delivered, unless the rules forbid it.
    pub fn unreachable(&mut self, now: Instant, to: &Local, why: Unreachable, pool: &mut Pool) {
        self.data.unreachable(now, to, why, pool);
        self.exchange(now, pool);
    }
}
