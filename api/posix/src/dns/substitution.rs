//! Replaces nameservers of the host by the nameserver of the run.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use towpath_shm::control::{Request, call};

use crate::{Posix, resolver};

/// The stack's nameserver, and the nameservers of /etc/resolv.conf that it replaces. Programs that
/// open /etc/resolv.conf themselves find the same replacement in the file ([`resolver`]).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Substitution {
    nameserver: IpAddr,
    replaced: Vec<IpAddr>,
}

impl Substitution {
    /// Determines the servers to replace. Returns `None` if the run has no nameserver of its own;
    /// names are then resolved over the kernel's network.
    pub fn new(posix: &'static Posix) -> Option<Self> {
        if !posix.is_active() {
            return None;
        }
        let request = Request { call: call::RESOLVER, ..Request::default() };
        let Ok(reply) = posix.call(&request) else {
            // The engine has ended. Use an address that does not answer, because names must not be
            // resolved over the kernel's network.
            return Some(Self { nameserver: Ipv4Addr::UNSPECIFIED.into(), replaced: Vec::new() });
        };
        if reply.addr.family == 0 {
            return None;
        }
        let nameserver = match reply.addr.ip.first_chunk::<4>() {
            Some(v4) if i32::from(reply.addr.family) == libc::AF_INET => Ipv4Addr::from(*v4).into(),
            _ => Ipv6Addr::from(reply.addr.ip).into(),
        };
        let mut file = vec![0; resolver::FILE_MAX];
        let len = resolver::read(resolver::PATH, &mut file).ok().flatten().unwrap_or(0);
        Some(Self { nameserver, replaced: replaced(&file[..len], reply.a != 0) })
    }

    /// Replaces servers in a list of nameservers. The run's nameserver appears only once in the
    /// result.
    pub fn apply(&self, servers: &[SocketAddr]) -> Vec<SocketAddr> {
        let mut all = Vec::with_capacity(servers.len());
        for server in servers {
            let is_replaced = self.replaced.contains(&server.ip());
            let ip = if is_replaced { self.nameserver } else { server.ip() };
            let server = SocketAddr::new(ip, server.port());
            if !is_replaced || !all.contains(&server) {
                all.push(server);
            }
        }
        all
    }
}

/// Returns the nameservers in the text of /etc/resolv.conf that the run's nameserver replaces.
fn replaced(text: &[u8], only_loopback: bool) -> Vec<IpAddr> {
    let lines = text.split(|byte| *byte == b'\n').filter_map(resolver::address_in);
    let words: Vec<_> = lines.collect();
    if words.is_empty() {
        // If the file has no nameserver, resolvers use the local machine (resolv.conf(5)), so
        // replace 127.0.0.1.
        return vec![Ipv4Addr::LOCALHOST.into()];
    }
    let wanted = words.into_iter().filter(|word| !only_loopback || resolver::is_loopback(word));
    wanted.filter_map(|word| std::str::from_utf8(word).ok()?.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn applied(file: &str, only_loopback: bool, servers: &[&str]) -> Vec<String> {
        let nameserver = IpAddr::from([10, 0, 2, 3]);
        let replaced = replaced(file.as_bytes(), only_loopback);
        let servers: Vec<_> = servers.iter().map(|server| server.parse().unwrap()).collect();
        let all = Substitution { nameserver, replaced }.apply(&servers);
        all.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn servers_are_those_of_the_file_that_programs_read() {
        let file = "nameserver 127.0.0.53\nnameserver 192.0.2.1\nnameserver ::1\n";
        let servers = ["127.0.0.53:53", "192.0.2.1:53", "[::1]:53"];
        assert_eq!(applied(file, true, &servers), ["10.0.2.3:53", "192.0.2.1:53"]);
        assert_eq!(applied(file, false, &servers), ["10.0.2.3:53"]);
        // Servers that the program itself has set are not replaced.
        let own = ["127.0.0.1:53", "127.0.0.1:53", "198.51.100.1:5353"];
        assert_eq!(applied(file, true, &own), own);
        assert_eq!(applied("search lan\n", true, &["127.0.0.1:53"]), ["10.0.2.3:53"]);
    }
}
