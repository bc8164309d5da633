//! Multicast groups: joining and leaving them, and options for sending to them.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::atomic::Ordering::Relaxed;

use rustix::io::Errno;
use towpath_shm::control::call;
use towpath_shm::layout::setting;

use super::UdpSocket;
use crate::net::handle::{INET6, fail};

/// Numbers of socket option levels and options in Linux.
const IPPROTO_IP: u32 = 0;
const IPPROTO_IPV6: u32 = 41;
const IP_ADD_MEMBERSHIP: u32 = 35;
const IP_DROP_MEMBERSHIP: u32 = 36;
const IPV6_ADD_MEMBERSHIP: u32 = 20;
const IPV6_DROP_MEMBERSHIP: u32 = 21;

impl UdpSocket {
    /// Joins an IPv4 multicast group (IP_ADD_MEMBERSHIP) on the interface with the address
    /// `interface`. 0.0.0.0 selects the interface with the route to the group.
    ///
    /// # Errors
    /// `AddrInUse`: already joined; `InvalidInput`: `group` is not a multicast address; ENODEV: no
    /// such interface.
    ///
    /// # Examples
    /// ```
    /// use std::net::Ipv4Addr;
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let stack = towpath::Stack::builder().loopback().start()?;
    /// let socket = stack.bind_udp("0.0.0.0:0")?;
    /// let group = (Ipv4Addr::new(224, 0, 0, 251), socket.local_addr()?.port());
    /// socket.join_multicast_v4(&group.0, &Ipv4Addr::LOCALHOST)?;
    /// socket.leave_multicast_v4(&group.0, &Ipv4Addr::LOCALHOST)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn join_multicast_v4(&self, group: &Ipv4Addr, interface: &Ipv4Addr) -> io::Result<()> {
        self.membership_v4(IP_ADD_MEMBERSHIP, *group, *interface)
    }

    /// Leaves an IPv4 multicast group (IP_DROP_MEMBERSHIP).
    ///
    /// # Errors
    /// `AddrNotAvailable`: the socket has not joined the group.
    ///
    /// # Examples
    /// See [`Self::join_multicast_v4`].
    pub fn leave_multicast_v4(&self, group: &Ipv4Addr, interface: &Ipv4Addr) -> io::Result<()> {
        self.membership_v4(IP_DROP_MEMBERSHIP, *group, *interface)
    }

    /// Joins an IPv6 multicast group (IPV6_ADD_MEMBERSHIP) on the interface with the index
    /// `interface`. 0 selects the interface with the route to the group.
    ///
    /// # Errors
    /// `AddrInUse`: already joined; `InvalidInput`: `group` is not a multicast address; ENODEV: no
    /// such interface; ENOPROTOOPT: an IPv4 socket.
    ///
    /// # Examples
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let stack = towpath::Stack::builder().loopback().start()?;
    /// let socket = stack.bind_udp("[::]:0")?;
    /// let group = "ff02::fb".parse()?;
    /// socket.join_multicast_v6(&group, 1)?;
    /// socket.leave_multicast_v6(&group, 1)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn join_multicast_v6(&self, group: &Ipv6Addr, interface: u32) -> io::Result<()> {
        self.membership_v6(IPV6_ADD_MEMBERSHIP, *group, interface)
    }

    /// Leaves an IPv6 multicast group (IPV6_DROP_MEMBERSHIP).
    ///
    /// # Errors
    /// `AddrNotAvailable`: the socket has not joined the group.
    ///
    /// # Examples
    /// See [`Self::join_multicast_v6`].
    pub fn leave_multicast_v6(&self, group: &Ipv6Addr, interface: u32) -> io::Result<()> {
        self.membership_v6(IPV6_DROP_MEMBERSHIP, *group, interface)
    }

    /// Sets whether sockets on this host that have joined an IPv4 group receive datagrams that this
    /// socket sends to the group (IP_MULTICAST_LOOP). On by default.
    ///
    /// # Errors
    /// `NetworkDown` if the engine has ended.
    ///
    /// # Examples
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let stack = towpath::Stack::builder().loopback().start()?;
    /// let socket = stack.bind_udp("0.0.0.0:0")?;
    /// socket.set_multicast_loop_v4(false)?;
    /// assert!(!socket.multicast_loop_v4()?);
    /// # Ok(())
    /// # }
    /// ```
    pub fn set_multicast_loop_v4(&self, on: bool) -> io::Result<()> {
        self.handle().slot()?;
        self.handle().multicast.loop_v4.store(on, Relaxed);
        self.handle().setting(setting::MULTICAST_LOOP, on.into());
        Ok(())
    }

    /// Returns the value of [`Self::set_multicast_loop_v4`].
    ///
    /// # Errors
    /// `NetworkDown` if the engine has ended.
    ///
    /// # Examples
    /// See [`Self::set_multicast_loop_v4`].
    pub fn multicast_loop_v4(&self) -> io::Result<bool> {
        self.handle().slot()?;
        Ok(self.handle().multicast.loop_v4.load(Relaxed))
    }

    /// Sets the TTL of datagrams that are sent to IPv4 multicast groups: 0 to 255, by default 1.
    /// With 0, datagrams reach only sockets on this host.
    ///
    /// # Errors
    /// `InvalidInput` for other values.
    ///
    /// # Examples
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let stack = towpath::Stack::builder().loopback().start()?;
    /// let socket = stack.bind_udp("0.0.0.0:0")?;
    /// socket.set_multicast_ttl_v4(4)?;
    /// assert_eq!(socket.multicast_ttl_v4()?, 4);
    /// # Ok(())
    /// # }
    /// ```
    pub fn set_multicast_ttl_v4(&self, ttl: u32) -> io::Result<()> {
        self.handle().slot()?;
        // -1, passed as `u32::MAX`, restores the default, as on Linux.
        let ttl = if ttl == u32::MAX { 1 } else { ttl };
        let Ok(ttl) = u8::try_from(ttl) else { return fail(Errno::INVAL) };
        self.handle().multicast.ttl.store(ttl, Relaxed);
        self.handle().setting(setting::MULTICAST_TTL, ttl.into());
        Ok(())
    }

    /// Returns the value of [`Self::set_multicast_ttl_v4`].
    ///
    /// # Errors
    /// `NetworkDown` if the engine has ended.
    ///
    /// # Examples
    /// See [`Self::set_multicast_ttl_v4`].
    pub fn multicast_ttl_v4(&self) -> io::Result<u32> {
        self.handle().slot()?;
        Ok(self.handle().multicast.ttl.load(Relaxed).into())
    }

    /// Sets whether sockets on this host that have joined an IPv6 group receive datagrams that this
    /// socket sends to the group (IPV6_MULTICAST_LOOP). On by default.
    ///
    /// # Errors
    /// ENOPROTOOPT on an IPv4 socket.
    ///
    /// # Examples
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let stack = towpath::Stack::builder().loopback().start()?;
    /// let socket = stack.bind_udp("[::]:0")?;
    /// socket.set_multicast_loop_v6(false)?;
    /// assert!(!socket.multicast_loop_v6()?);
    /// # Ok(())
    /// # }
    /// ```
    pub fn set_multicast_loop_v6(&self, on: bool) -> io::Result<()> {
        self.handle().slot()?;
        if self.handle().family != INET6 {
            return fail(Errno::NOPROTOOPT);
        }
        self.handle().multicast.loop_v6.store(on, Relaxed);
        self.handle().setting(setting::MULTICAST_LOOP_V6, on.into());
        Ok(())
    }

    /// Returns the value of [`Self::set_multicast_loop_v6`].
    ///
    /// # Errors
    /// EOPNOTSUPP on an IPv4 socket, as on Linux.
    ///
    /// # Examples
    /// See [`Self::set_multicast_loop_v6`].
    pub fn multicast_loop_v6(&self) -> io::Result<bool> {
        self.handle().slot()?;
        if self.handle().family != INET6 {
            return fail(Errno::OPNOTSUPP);
        }
        Ok(self.handle().multicast.loop_v6.load(Relaxed))
    }

    fn membership_v4(&self, option: u32, group: Ipv4Addr, interface: Ipv4Addr) -> io::Result<()> {
        // The option's value is a `struct ip_mreq`: the group's and the interface's address.
        let request = [group.octets(), interface.octets()].concat();
        self.membership(IPPROTO_IP, option, &request)
    }

    fn membership_v6(&self, option: u32, group: Ipv6Addr, interface: u32) -> io::Result<()> {
        if self.handle().family != INET6 {
            return fail(Errno::NOPROTOOPT);
        }
        // The option's value is a `struct ipv6_mreq`: the group's address and the interface's
        // index.
        let request = [&group.octets()[..], &interface.to_ne_bytes()].concat();
        self.membership(IPPROTO_IPV6, option, &request)
    }

    fn membership(&self, level: u32, option: u32, data: &[u8]) -> io::Result<()> {
        let asked = self.handle().call(call::SET_OPTION, |request| {
            (request.a, request.b) = (level, option);
            request.data[..data.len()].copy_from_slice(data);
            request.len = data.len() as u32;
        });
        asked.map(drop)
    }
}
