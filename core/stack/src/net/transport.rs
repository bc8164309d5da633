//! Methods of the IP layer for the transport protocols: route lookup, and sending of packets.

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
    /// Returns the route to `dst`. If given, the route uses the interface `iface` and the source
    /// address `src`. `src` need not be an address of this host, because a gateway answers from any
    /// address.
    pub fn route(
        &self,
        now: Instant,
        src: Option<IpAddr>,
        dst: IpAddr,
        iface: Option<IfaceId>,
    ) -> Result<Route, RouteError> {
        self.data.route(now, src, dst, iface)
    }

    /// Like [`route`](Self::route), for a caller that caches the route. Also sets [`Route::hop`],
    /// which identifies the next hop.
    pub fn route_to_keep(
        &mut self,
        now: Instant,
        src: Option<IpAddr>,
        dst: IpAddr,
        iface: Option<IfaceId>,
    ) -> Result<Route, RouteError> {
        self.data.route_to_keep(now, src, dst, iface)
    }

    /// Returns a number that changes whenever a cached [`Route`] may be outdated. A change of the
    /// route's path MTU does not change the number.
    pub fn route_generation(&self) -> u64 {
        self.data.snapshot.generation
    }

    /// Returns a number that changes whenever the path MTU of a cached [`Route`] may be outdated.
    pub fn path_mtu_generation(&self) -> u64 {
        self.data.mtus.generation()
    }

    /// Returns the path MTU in bytes to `dst` for datagrams.
    pub fn path_mtu(&self, now: Instant, dst: IpAddr) -> u32 {
        self.data.path_mtu(now, dst)
    }

    /// Returns a lower bound in bytes of all path MTUs of this host, including those that other
    /// shards learned. Paths within this host are ignored.
    pub fn path_mtu_least(&self) -> u32 {
        self.data.path_mtu_least()
    }

    /// Sets the path MTU of datagrams from `src` to `dst` to `mtu` bytes, if it is lower than
    /// before. If given, `iface` is the outgoing interface. The caller must have checked that the
    /// ICMP report quotes one of its packets.
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

    /// Returns the IP address of a next hop; `None` if the identifier is no longer valid.
    #[inline]
    pub(crate) fn next_hop(&self, hop: HopId) -> Option<IpAddr> {
        self.data.next_hops.key(hop).map(|(_, addr)| addr)
    }

    /// Returns the current epoch of the next-hop table, for a caller that caches routes.
    pub(crate) fn epoch(&self) -> Epoch {
        self.data.next_hops.epoch()
    }

    /// Starts a new epoch of the next-hop table, because cached routes may be outdated.
    pub(crate) fn begin_epoch(&mut self) -> Epoch {
        self.data.next_hops.begin_epoch()
    }

    /// Returns whether `epoch` is not earlier than `since`.
    #[inline]
    pub(crate) fn is_since(&self, epoch: Epoch, since: Epoch) -> bool {
        self.data.next_hops.is_since(epoch, since)
    }

    /// Records that a next hop is reachable, because TCP made progress through it. The control part
    /// then need not probe the next hop (RFC 4861 §7.3.1).
    #[inline]
    pub(crate) fn confirm_reachable(&mut self, now: Instant, hop: HopId) {
        self.data.next_hops.confirm(now, hop);
    }

    /// Sends a packet that begins with its transport header.
    ///
    /// `checksum_offset` is the offset of the checksum field in the transport header; the field
    /// must be 0. With `packet.meta.segmentation`, whose `header_len` counts from the transport
    /// header, the packet is segmented by the device or in software. `route` is the result of
    /// [`Net::route`] for `src` and `dst`. Panics if `src` and `dst` are of different IP versions.
    ///
    /// # Errors
    ///
    /// Returns an error if the packet was dropped and counted. `Ok` does not guarantee that the
    /// packet is sent, because the next hop may not answer.
    #[inline]
    #[allow(clippy::too_many_arguments)] // A struct for one call would only rename arguments.
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

    /// Queues a copy of a datagram that [`send`](Self::send) sent to a multicast or broadcast
    /// address, for this host itself. The copy counts as received on the interface by which the
    /// datagram was sent, so that only members on this interface receive it. `packet` is the same
    /// as for `send`.
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

    /// Sends an ICMP echo message with the payload `data`.
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

    /// Sends an ICMP error to the sender of `to`, a packet that could not be delivered. No error is
    /// sent if the RFCs forbid it for such a packet.
    pub fn unreachable(&mut self, now: Instant, to: &Local, why: Unreachable, pool: &mut Pool) {
        self.data.unreachable(now, to, why, pool);
        self.exchange(now, pool);
    }
}
