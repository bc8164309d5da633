//! Addresses and published ports of a stack.

use std::net::{IpAddr, SocketAddr};

use towpath_uplink::Publish;

/// A port of this machine that is forwarded to a stack: see
/// [`Builder::publish`](crate::Builder::publish).
///
/// ```
/// use towpath::{Protocol, Stack};
///
/// let stack = Stack::builder().rootless().publish("127.0.0.1::80").start()?;
/// let published = stack.published()[0];
/// assert_eq!((published.port, published.protocol), (80, Protocol::Tcp));
/// assert_ne!(published.host.port(), 0, "the kernel chose a port");
/// # Ok::<(), towpath::StartError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Published {
    /// Address and port of this machine to which clients connect. The kernel chose the port if it
    /// was not specified.
    pub host: SocketAddr,
    /// Port of the stack to which connections or datagrams are forwarded.
    pub port: u16,
    /// Transport protocol of the forwarded port.
    pub protocol: Protocol,
}

/// A transport protocol with ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Protocol {
    /// TCP (RFC 9293).
    Tcp,
    /// UDP (RFC 768).
    Udp,
}

/// Addresses and published ports of a stack.
#[derive(Debug, Clone, Default)]
pub(crate) struct StackAddresses {
    pub addresses: Vec<IpAddr>,
    pub published: Vec<Published>,
}

impl Published {
    pub(crate) fn new(publish: &Publish, host: SocketAddr) -> Self {
        let protocol = match publish.protocol {
            towpath_uplink::Protocol::Tcp => Protocol::Tcp,
            towpath_uplink::Protocol::Udp => Protocol::Udp,
        };
        Self { host, port: publish.port, protocol }
    }
}
