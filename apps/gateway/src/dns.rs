//! The forwarder of DNS: an address of the program's network whose port 53 is the host's nameserver.
//!
//! What /etc/resolv.conf names may be on the host's loopback (systemd-resolved, dnsmasq), where the program
//! has a stack of its own. Questions and answers are not looked at: they are flows like others, by UDP and
//! TCP, to another address.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use crate::limits::NAMESERVERS_NS;

/// Who answers the program's questions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Nameserver {
    /// The first one that the host's /etc/resolv.conf names: of the question's IP version if there is one.
    OfHost,
    /// This one.
    At(SocketAddr),
}

/// The port of DNS, on both sides of the forwarder.
pub(crate) const PORT: u16 = 53;
const RESOLV_CONF: &str = "/etc/resolv.conf";

/// Which nameserver that is now.
#[derive(Debug)]
pub(crate) struct Nameservers {
    which: Nameserver,
    /// When the file was read last.
    read_ns: Option<u64>,
    named: [Option<IpAddr>; 2],
}

impl Nameservers {
    pub(crate) fn new(which: Nameserver) -> Self {
        Self { which, read_ns: None, named: [None; 2] }
    }

    /// The one for questions over IPv4 or IPv6. The file is read again from time to time: the host may be in
    /// another network by now.
    pub(crate) fn get(&mut self, now_ns: u64, v4: bool) -> Option<SocketAddr> {
        if let Nameserver::At(addr) = self.which {
            return Some(addr);
        }
        if self.read_ns.is_none_or(|read| now_ns.saturating_sub(read) > NAMESERVERS_NS) {
            self.read_ns = Some(now_ns);
            self.named = named_by(Path::new(RESOLV_CONF));
        }
        let [of_v4, of_v6] = self.named;
        let ip = if v4 { of_v4.or(of_v6) } else { of_v6.or(of_v4) };
        ip.map(|ip| SocketAddr::new(ip, PORT))
    }
}

/// The first nameserver of either version. resolv.conf(5): without any it is the one of this machine.
fn named_by(file: &Path) -> [Option<IpAddr>; 2] {
    let text = std::fs::read(file).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let all = || text.lines().filter_map(nameserver);
    let first = |v4: bool| all().find(|ip| ip.is_ipv4() == v4);
    match [first(true), first(false)] {
        [None, None] => [Some(IpAddr::from([127, 0, 0, 1])), None],
        found => found,
    }
}

/// The address in a line `nameserver ADDRESS`. One with a scope is of a link, which a plain address does not
/// name: it is passed over.
fn nameserver(line: &str) -> Option<IpAddr> {
    let rest = line.strip_prefix("nameserver")?;
    rest.starts_with([' ', '\t']).then(|| rest.trim().parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_nameserver_of_either_version() {
        let named = |text: &str| {
            let file = std::env::temp_dir().join(format!("towpath-resolv-{}", std::process::id()));
            std::fs::write(&file, text).unwrap();
            let found = named_by(&file).map(|ip| ip.map(|ip| ip.to_string()));
            std::fs::remove_file(&file).unwrap();
            found
        };
        let some = |ip: &str| Some(ip.to_owned());
        let text =
            "# nameserver 192.0.2.9\nsearch x\nnameserver\t127.0.0.53 \nnameserver 192.0.2.1\n";
        assert_eq!(named(text), [some("127.0.0.53"), None]);
        let text = "nameserver fe80::1%eth0\nnameserver 2001:db8::1\nnameservers 192.0.2.1\n";
        assert_eq!(named(text), [None, some("2001:db8::1")]);
        assert_eq!(named("options edns0\n"), [some("127.0.0.1"), None]);
        assert_eq!(
            named_by(Path::new("/nonexistent/resolv.conf"))[0].unwrap().to_string(),
            "127.0.0.1"
        );
    }
}
