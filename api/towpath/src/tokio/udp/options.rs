//! Socket options of UDP sockets.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr};

use super::UdpSocket;

/// Socket options, the same as those of [`net::UdpSocket`](crate::net::UdpSocket).
impl UdpSocket {
    /// Returns whether the socket may send to broadcast addresses (SO_BROADCAST).
    ///
    /// # Errors
    /// As for [`net::UdpSocket::broadcast`](crate::net::UdpSocket::broadcast).
    pub fn broadcast(&self) -> io::Result<bool> {
        self.io.socket().broadcast()
    }

    /// Sets whether the socket may send to broadcast addresses (SO_BROADCAST).
    ///
    /// # Errors
    /// As for [`net::UdpSocket::set_broadcast`](crate::net::UdpSocket::set_broadcast).
    pub fn set_broadcast(&self, on: bool) -> io::Result<()> {
        self.io.socket().set_broadcast(on)
    }

    /// Returns the TTL of sent unicast datagrams.
    ///
    /// # Errors
    /// As for [`net::UdpSocket::ttl`](crate::net::UdpSocket::ttl).
    pub fn ttl(&self) -> io::Result<u32> {
        self.io.socket().ttl()
    }

    /// Sets the TTL of sent unicast datagrams.
    ///
    /// # Errors
    /// As for [`net::UdpSocket::set_ttl`](crate::net::UdpSocket::set_ttl).
    pub fn set_ttl(&self, ttl: u32) -> io::Result<()> {
        self.io.socket().set_ttl(ttl)
    }

    /// Returns the value of [`Self::set_multicast_loop_v4`].
    ///
    /// # Errors
    /// As for [`net::UdpSocket::multicast_loop_v4`](crate::net::UdpSocket::multicast_loop_v4).
    pub fn multicast_loop_v4(&self) -> io::Result<bool> {
        self.io.socket().multicast_loop_v4()
    }

    /// Sets whether sockets on this host that have joined an IPv4 group receive datagrams that this
    /// socket sends to the group (IP_MULTICAST_LOOP).
    ///
    /// # Errors
    /// As for
    /// [`net::UdpSocket::set_multicast_loop_v4`](crate::net::UdpSocket::set_multicast_loop_v4).
    pub fn set_multicast_loop_v4(&self, on: bool) -> io::Result<()> {
        self.io.socket().set_multicast_loop_v4(on)
    }

    /// Returns the value of [`Self::set_multicast_loop_v6`].
    ///
    /// # Errors
    /// As for [`net::UdpSocket::multicast_loop_v6`](crate::net::UdpSocket::multicast_loop_v6).
    pub fn multicast_loop_v6(&self) -> io::Result<bool> {
        self.io.socket().multicast_loop_v6()
    }

    /// Sets whether sockets on this host that have joined an IPv6 group receive datagrams that this
    /// socket sends to the group (IPV6_MULTICAST_LOOP).
    ///
    /// # Errors
    /// As for
    /// [`net::UdpSocket::set_multicast_loop_v6`](crate::net::UdpSocket::set_multicast_loop_v6).
    pub fn set_multicast_loop_v6(&self, on: bool) -> io::Result<()> {
        self.io.socket().set_multicast_loop_v6(on)
    }

    /// Returns the value of [`Self::set_multicast_ttl_v4`].
    ///
    /// # Errors
    /// As for [`net::UdpSocket::multicast_ttl_v4`](crate::net::UdpSocket::multicast_ttl_v4).
    pub fn multicast_ttl_v4(&self) -> io::Result<u32> {
        self.io.socket().multicast_ttl_v4()
    }

    /// Sets the TTL of datagrams that are sent to IPv4 multicast groups (IP_MULTICAST_TTL).
    ///
    /// # Errors
    /// As for
    /// [`net::UdpSocket::set_multicast_ttl_v4`](crate::net::UdpSocket::set_multicast_ttl_v4).
    pub fn set_multicast_ttl_v4(&self, ttl: u32) -> io::Result<()> {
        self.io.socket().set_multicast_ttl_v4(ttl)
    }

    /// Joins an IPv4 multicast group on the interface with the address `interface`.
    ///
    /// # Errors
    /// As for [`net::UdpSocket::join_multicast_v4`](crate::net::UdpSocket::join_multicast_v4).
    pub fn join_multicast_v4(&self, group: Ipv4Addr, interface: Ipv4Addr) -> io::Result<()> {
        self.io.socket().join_multicast_v4(&group, &interface)
    }

    /// Leaves an IPv4 multicast group.
    ///
    /// # Errors
    /// As for [`net::UdpSocket::leave_multicast_v4`](crate::net::UdpSocket::leave_multicast_v4).
    pub fn leave_multicast_v4(&self, group: Ipv4Addr, interface: Ipv4Addr) -> io::Result<()> {
        self.io.socket().leave_multicast_v4(&group, &interface)
    }

    /// Joins an IPv6 multicast group on the interface with the index `interface`.
    ///
    /// # Errors
    /// As for [`net::UdpSocket::join_multicast_v6`](crate::net::UdpSocket::join_multicast_v6).
    pub fn join_multicast_v6(&self, group: &Ipv6Addr, interface: u32) -> io::Result<()> {
        self.io.socket().join_multicast_v6(group, interface)
    }

    /// Leaves an IPv6 multicast group.
    ///
    /// # Errors
    /// As for [`net::UdpSocket::leave_multicast_v6`](crate::net::UdpSocket::leave_multicast_v6).
    pub fn leave_multicast_v6(&self, group: &Ipv6Addr, interface: u32) -> io::Result<()> {
        self.io.socket().leave_multicast_v6(group, interface)
    }

    /// Returns and clears the pending error (SO_ERROR).
    ///
    /// # Errors
    /// As for [`net::UdpSocket::take_error`](crate::net::UdpSocket::take_error).
    pub fn take_error(&self) -> io::Result<Option<io::Error>> {
        self.io.socket().take_error()
    }
}
