//! Service names of ports from services(5).

use std::collections::BTreeMap;
use std::net::SocketAddr;

use towpath_model::Proto;

/// Service names by port and protocol.
#[derive(Default)]
pub(super) struct Services(BTreeMap<(u16, String), String>);

impl Services {
    /// Reads the service names from /etc/services of this host.
    pub fn of_host() -> Self {
        Self::parse(&std::fs::read_to_string("/etc/services").unwrap_or_default())
    }

    /// Returns the port of a service name, whatever the protocol.
    pub fn port(&self, name: &str) -> Option<u16> {
        self.0.iter().find(|(_, known)| *known == name).map(|((port, _), _)| *port)
    }

    /// Parses lines of services(5): `name port/protocol aliases # comment`.
    pub fn parse(text: &str) -> Self {
        let mut names = BTreeMap::new();
        for line in text.lines() {
            let mut words = line.split('#').next().unwrap_or_default().split_whitespace();
            let (Some(name), Some((port, protocol))) =
                (words.next(), words.next().and_then(|w| w.split_once('/')))
            else {
                continue;
            };
            if let Ok(port) = port.parse() {
                names.entry((port, protocol.to_owned())).or_insert_with(|| name.to_owned());
            }
        }
        Self(names)
    }

    /// Formats an address. Shows the service name instead of the port if there is one, and port 0
    /// as `*`.
    pub fn show(&self, proto: Proto, addr: SocketAddr) -> String {
        let port = match self.0.get(&(addr.port(), proto.name().to_owned())) {
            _ if addr.port() == 0 => "*",
            Some(name) => name,
            None => return addr.to_string(),
        };
        match addr {
            SocketAddr::V4(addr) => format!("{}:{port}", addr.ip()),
            SocketAddr::V6(addr) => format!("[{}]:{port}", addr.ip()),
        }
    }
}
