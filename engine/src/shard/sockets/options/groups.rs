//! Multicast options: group memberships, and the outgoing interface for multicast.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use towpath_shm::control::Request;
use towpath_stack::net::{IfaceId, Interface};
use towpath_stack::{OptionError, SocketId, SocketOption};

use crate::errno::{EADDRINUSE, EADDRNOTAVAIL, EINVAL, ENODEV, ENOPROTOOPT, Errno};
use crate::shard::sockets::options::SocketOptions;
use crate::shard::sockets::options::value::{SOL_IP, SOL_IPV6, array, int};
use crate::shard::sockets::slots::{AF_INET, AF_INET6};

const IP_MULTICAST_IF: u32 = 32;
const IP_ADD_MEMBERSHIP: u32 = 35;
const IP_DROP_MEMBERSHIP: u32 = 36;
const IP_ADD_SOURCE_MEMBERSHIP: u32 = 39;
const IP_DROP_SOURCE_MEMBERSHIP: u32 = 40;
const MCAST_JOIN_GROUP: u32 = 42;
const MCAST_LEAVE_GROUP: u32 = 45;
const MCAST_JOIN_SOURCE_GROUP: u32 = 46;
const MCAST_LEAVE_SOURCE_GROUP: u32 = 47;
const IP_MULTICAST_ALL: u32 = 49;
const IPV6_MULTICAST_IF: u32 = 17;
const IPV6_ADD_MEMBERSHIP: u32 = 20;
const IPV6_DROP_MEMBERSHIP: u32 = 21;
const IPV6_MULTICAST_ALL: u32 = 29;
/// Length in bytes of a `struct sockaddr_storage`.
const STORAGE: usize = 128;

impl SocketOptions<'_> {
    /// Sets a multicast option for setsockopt(2). Fails with ENOPROTOOPT for any other option.
    pub(crate) fn set_multicast(&mut self, id: SocketId, request: &Request) -> Result<(), Errno> {
        let data = request.payload();
        match (request.a, request.b) {
            (SOL_IP, IP_MULTICAST_ALL) => {
                let on = match int(data)? {
                    0 => false,
                    1 => true,
                    _ => return Err(Errno(EINVAL)),
                };
                Ok(self.net.stack.set_option(id, SocketOption::MulticastAll(on))?)
            }
            (SOL_IPV6, IPV6_MULTICAST_ALL) => {
                let on = int(data)? != 0;
                Ok(self.net.stack.set_option(id, SocketOption::MulticastAllV6(on))?)
            }
            (SOL_IP, IP_MULTICAST_IF) => {
                // The value is a struct in_addr, or a struct ip_mreq or ip_mreqn, in which the
                // address follows the group.
                let addr = array::<4>(data, if data.len() >= 8 { 4 } else { 0 })?;
                let iface = self.interface_v4(addr, data).map_err(no_such_address)?;
                let source = Some(Ipv4Addr::from(addr)).filter(|addr| !addr.is_unspecified());
                Ok(self
                    .net
                    .stack
                    .set_option(id, SocketOption::MulticastInterface(iface, source))?)
            }
            (SOL_IPV6, IPV6_MULTICAST_IF) => {
                let iface = self.interface(int(data)?)?;
                Ok(self.net.stack.set_option(id, SocketOption::MulticastInterfaceV6(iface))?)
            }
            (SOL_IP, IP_ADD_MEMBERSHIP | IP_DROP_MEMBERSHIP) => {
                let group = Ipv4Addr::from(array::<4>(data, 0)?).into();
                let iface = self.interface_v4(array::<4>(data, 4)?, data)?;
                self.membership(id, request.b == IP_ADD_MEMBERSHIP, group, iface, None)
            }
            (SOL_IP, IP_ADD_SOURCE_MEMBERSHIP | IP_DROP_SOURCE_MEMBERSHIP) => {
                let join = request.b == IP_ADD_SOURCE_MEMBERSHIP;
                let group = Ipv4Addr::from(array::<4>(data, 0)?).into();
                let source = Ipv4Addr::from(array::<4>(data, 8)?).into();
                let iface = self.interface_v4(array::<4>(data, 4)?, &[])?;
                self.membership(id, join, group, iface, Some(source))
            }
            (SOL_IP | SOL_IPV6, MCAST_JOIN_GROUP | MCAST_LEAVE_GROUP) => {
                let iface = self.interface(int(data)?)?;
                let group = storage(request.a, data, 8)?;
                self.membership(id, request.b == MCAST_JOIN_GROUP, group, iface, None)
            }
            (SOL_IP | SOL_IPV6, MCAST_JOIN_SOURCE_GROUP | MCAST_LEAVE_SOURCE_GROUP) => {
                let iface = self.interface(int(data)?)?;
                let group = storage(request.a, data, 8)?;
                let source = storage(request.a, data, 8 + STORAGE)?;
                let join = request.b == MCAST_JOIN_SOURCE_GROUP;
                self.membership(id, join, group, iface, Some(source))
            }
            (SOL_IPV6, IPV6_ADD_MEMBERSHIP | IPV6_DROP_MEMBERSHIP) => {
                let group = Ipv6Addr::from(array::<16>(data, 0)?).into();
                let iface = self.interface(int(data.get(16..).unwrap_or_default())?)?;
                self.membership(id, request.b == IPV6_ADD_MEMBERSHIP, group, iface, None)
            }
            _ => Err(Errno(ENOPROTOOPT)),
        }
    }

    fn membership(
        &mut self,

        id: SocketId,
        join: bool,
        group: IpAddr,
        iface: Option<IfaceId>,
        source: Option<IpAddr>,
    ) -> Result<(), Errno> {
        let now = self.sockets.now;
        let done = if join {
            self.net.stack.join_group(now, id, group, iface, source)
        } else {
            self.net.stack.leave_group(now, id, group, iface, source)
        };
        done.map_err(|error| match error {
            OptionError::Membership if join => Errno(EADDRINUSE),
            OptionError::Membership => Errno(EADDRNOTAVAIL),
            other => other.into(),
        })
    }

    /// Returns the interface with a 1-based index. `None` for index 0, which means any interface.
    fn interface(&self, index: i32) -> Result<Option<IfaceId>, Errno> {
        match u16::try_from(index) {
            Ok(0) => Ok(None),
            Ok(index) if self.net.stack.net.interface(IfaceId(index - 1)).is_some() => {
                Ok(Some(IfaceId(index - 1)))
            }
            _ => Err(Errno(ENODEV)),
        }
    }

    /// Returns the interface with an IPv4 address. If `request` is a struct ip_mreqn with an index,
    /// returns the interface with that index.
    fn interface_v4(&self, addr: [u8; 4], request: &[u8]) -> Result<Option<IfaceId>, Errno> {
        /// Byte offset of the interface index in a struct ip_mreqn, after the group and the
        /// address.
        const INDEX_AT: usize = 8;
        let index = array::<4>(request, INDEX_AT).map_or(0, i32::from_ne_bytes);
        if index != 0 {
            return self.interface(index);
        }
        let addr = Ipv4Addr::from(addr);
        if addr.is_unspecified() {
            return Ok(None);
        }
        let has = |iface: &&Interface| {
            iface.addresses().iter().any(|address| address.addr() == IpAddr::V4(addr))
        };
        let iface = self.net.stack.net.interfaces().find(has).ok_or(Errno(ENODEV))?;
        Ok(Some(iface.id()))
    }
}

/// Replaces ENODEV by EADDRNOTAVAIL, which IP_MULTICAST_IF returns for an unknown address.
fn no_such_address(errno: Errno) -> Errno {
    if errno == Errno(ENODEV) { Errno(EADDRNOTAVAIL) } else { errno }
}

/// Parses the address in the `struct sockaddr_storage` at offset `at`. Its family must match the
/// option's level.
fn storage(level: u32, data: &[u8], at: usize) -> Result<IpAddr, Errno> {
    let family = u32::from(u16::from_ne_bytes(array::<2>(data, at)?));
    match (level, family) {
        (SOL_IP, AF_INET) => Ok(Ipv4Addr::from(array::<4>(data, at + 4)?).into()),
        (SOL_IPV6, AF_INET6) => Ok(Ipv6Addr::from(array::<16>(data, at + 8)?).into()),
        (SOL_IP, _) => Err(Errno(EINVAL)),
        _ => Err(Errno(EADDRNOTAVAIL)),
    }
}
