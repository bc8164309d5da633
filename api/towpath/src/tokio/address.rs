//! Arguments of calls that name a host and a port.

use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

/// Types that the calls of this module resolve to socket addresses on a stack, as
/// [`tokio::net::ToSocketAddrs`](::tokio::net::ToSocketAddrs).
///
/// Implemented for the types for which tokio implements its trait. Other crates cannot implement
/// it.
pub trait ToSocketAddrs: sealed::ToHostPort {}

impl<T: sealed::ToHostPort + ?Sized> ToSocketAddrs for T {}

/// A destination as a program passes it: addresses, or a host name and a port.
#[derive(Debug)]
pub enum HostPort {
    /// A single address, for which no memory is allocated.
    Addr(SocketAddr),
    /// Several addresses, to be tried one after another.
    Addrs(Vec<SocketAddr>),
    /// A host name that must be resolved, and a port.
    Name(String, u16),
}

pub(super) mod sealed {
    use super::{HostPort, io};

    pub trait ToHostPort {
        /// Parses the host and the port.
        ///
        /// # Errors
        /// `InvalidInput` for a text that has no valid port.
        fn host_port(&self) -> io::Result<HostPort>;
    }
}

use sealed::ToHostPort;

macro_rules! addresses {
    ($($kind:ty),*) => {
        $(impl ToHostPort for $kind {
            fn host_port(&self) -> io::Result<HostPort> {
                Ok(HostPort::Addr(SocketAddr::from(*self)))
            }
        })*
    };
}

addresses!(SocketAddr, SocketAddrV4, SocketAddrV6, (IpAddr, u16), (Ipv4Addr, u16), (Ipv6Addr, u16));

impl ToHostPort for [SocketAddr] {
    fn host_port(&self) -> io::Result<HostPort> {
        Ok(HostPort::Addrs(self.to_vec()))
    }
}

impl ToHostPort for str {
    fn host_port(&self) -> io::Result<HostPort> {
        if let Ok(addr) = self.parse() {
            return Ok(HostPort::Addr(addr));
        }
        let invalid = |what: &str| {
            let message = format!("{self:?} has {what}: expected HOST:PORT");
            io::Error::new(ErrorKind::InvalidInput, message)
        };
        let (host, port) = self.rsplit_once(':').ok_or_else(|| invalid("no port"))?;
        let port = port.parse().map_err(|_| invalid("an invalid port"))?;
        (host, port).host_port()
    }
}

impl ToHostPort for (&str, u16) {
    fn host_port(&self) -> io::Result<HostPort> {
        let (host, port) = *self;
        Ok(match host.parse::<IpAddr>() {
            Ok(ip) => HostPort::Addr(SocketAddr::new(ip, port)),
            Err(_) => HostPort::Name(host.to_owned(), port),
        })
    }
}

impl ToHostPort for (String, u16) {
    fn host_port(&self) -> io::Result<HostPort> {
        (&*self.0, self.1).host_port()
    }
}

impl ToHostPort for String {
    fn host_port(&self) -> io::Result<HostPort> {
        self.as_str().host_port()
    }
}

impl<T: ToHostPort + ?Sized> ToHostPort for &T {
    fn host_port(&self) -> io::Result<HostPort> {
        (**self).host_port()
    }
}
