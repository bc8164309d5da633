//! Sorts the addresses of a name (RFC 6724 §6), by the source addresses that the stack would use.
//!
//! glibc sorts by the kernel's source addresses, which it finds with sockets inside libc. The order
//! is correct if the gateway forwards connections through sockets of the host's kernel. However, a
//! stack that is attached to a network device has other addresses and routes than the kernel.
//!
//! [`Policy`] contains the sorting rules.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use towpath_client::Deadline;
use towpath_dns::{ADDRESSES_MAX, Policy, Routed};
use towpath_shm::control::Interface;

use super::exchange::ServerSocket;
use crate::{Posix, interface, names, resolver};

/// Maximum length in bytes of gai.conf(5). The one of Debian has 2600 bytes.
const FILE_MAX: usize = 16 << 10;
/// Time limit for connect(2) of a UDP socket, which only looks up the route and sends no packet.
const PATIENCE: Duration = Duration::from_secs(1);

/// Returns the indices of `destinations` in the order in which a program should try them. `None`
/// means that the given order is kept.
pub fn order(posix: &'static Posix, destinations: &[SocketAddr]) -> Option<Vec<usize>> {
    if destinations.len() < 2 || destinations.len() > ADDRESSES_MAX || !posix.is_active() {
        return None;
    }
    let interfaces = interface::list(posix).ok()?;
    if is_behind_gateway(&interfaces) {
        return None;
    }
    let mut file = vec![0; FILE_MAX];
    let len = resolver::read(c"/etc/gai.conf", &mut file).ok().flatten().unwrap_or(0);
    let policy = Policy::new(&String::from_utf8_lossy(&file[..len]));
    let routed = destinations.iter().map(|destination| {
        let source = source(posix, *destination);
        let own = |ip: IpAddr| interfaces.iter().find(|known| names::ip(&known.addr) == Some(ip));
        let prefix_len = source.and_then(own).map_or(0, |known| known.prefix_len);
        Routed { destination: destination.ip(), source, prefix_len }
    });
    Some(policy.sort(&routed.collect::<Vec<_>>()))
}

/// Returns whether the stack reaches the network through the gateway. The interface to the gateway
/// carries IP packets, and so has no hardware address.
fn is_behind_gateway(interfaces: &[Interface]) -> bool {
    let loopback = libc::IFF_LOOPBACK as u32;
    let mut links = interfaces.iter().filter(|interface| interface.flags & loopback == 0);
    links.all(|interface| interface.mac == [0; 6])
}

/// Returns the source address that the stack would use for a destination. `None` means that the
/// stack has no route to it.
fn source(posix: &'static Posix, destination: SocketAddr) -> Option<IpAddr> {
    // Use port 1 for port 0, because connect(2) fails for port 0.
    let port = destination.port().max(1);
    let destination = SocketAddr::new(destination.ip().to_canonical(), port);
    let deadline = Deadline::after(PATIENCE);
    ServerSocket::connect(posix, destination, libc::SOCK_DGRAM, deadline).ok()?.local()
}
