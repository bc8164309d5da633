//! Sorts the addresses of a name (RFC 6724 §6), by the source addresses that the stack would use.
//!
//! glibc sorts by the kernel's source addresses, which it finds with sockets inside libc. Behind
//! the gateway that order is correct, because sockets of the host connect to the destinations. On a
//! device, the stack has addresses and routes that differ from the kernel's.
//!
//! [`Policy`] has the rules.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use towpath_client::Deadline;
use towpath_dns::{ADDRESSES_MAX, Policy, Routed};
use towpath_shm::control::Interface;

use super::exchange::ServerSocket;
use crate::{Posix, interface, names, resolver};

/// Maximum length in bytes of gai.conf(5). Debian's has 2600 bytes.
const FILE_MAX: usize = 16 << 10;
/// Time limit for connect(2) of a UDP socket, which sends nothing.
const PATIENCE: Duration = Duration::from_secs(1);

/// Returns the indices of `destinations` in the order in which a program should try them. None:
/// keep the order.
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

/// Returns whether the stack is behind the gateway, whose interface has no hardware address,
/// because it carries IP packets.
fn is_behind_gateway(interfaces: &[Interface]) -> bool {
    let loopback = libc::IFF_LOOPBACK as u32;
    let mut links = interfaces.iter().filter(|interface| interface.flags & loopback == 0);
    links.all(|interface| interface.mac == [0; 6])
}

/// Returns the source address for a destination; None: the stack has no route.
fn source(posix: &'static Posix, destination: SocketAddr) -> Option<IpAddr> {
    // A socket cannot connect to port 0.
    let port = destination.port().max(1);
    let destination = SocketAddr::new(destination.ip().to_canonical(), port);
    let deadline = Deadline::after(PATIENCE);
    ServerSocket::connect(posix, destination, libc::SOCK_DGRAM, deadline).ok()?.local()
}
