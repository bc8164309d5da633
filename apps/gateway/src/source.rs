//! Detects flows whose host sockets send from a source address that does not fit the host's current
//! routes.
//!
//! Linux finds a source address for a new socket even if the interface has no address. The kernel
//! may then use another address of the host, possibly that of the gateway's own device. If a socket
//! is bound to an interface without a route, Linux assumes that the peer is on the link. The socket
//! keeps this source address when the interface gets its own address and routes, so no answer
//! reaches the socket. Therefore we check flows without answers after each change of the host's
//! addresses. If the kernel would now choose another source address, the flow is moved to it.

use std::net::{IpAddr, SocketAddr};

use rustix::net::{SocketType, getsockname};
use towpath_shm::Fd;

use crate::dialer::{self, Dialer};
use crate::limits::{SOURCE_LOOK_NS, UNSETTLED_NS};

/// Time in ns of the last change of the host's addresses.
#[derive(Debug, Default)]
pub(crate) struct AddressChanges {
    last_ns: Option<u64>,
}

/// Time in ns since which a flow's peer has not answered.
#[derive(Debug, Default)]
pub(crate) struct PeerSilence {
    since_ns: Option<u64>,
}

impl AddressChanges {
    pub(crate) fn note(&mut self, now_ns: u64) {
        self.last_ns = Some(now_ns);
    }

    /// Returns whether the host's addresses have changed recently. Flows without answers may then
    /// have a wrong source address.
    pub(crate) fn are_recent(&self, now_ns: u64) -> bool {
        self.last_ns.is_some_and(|last_ns| now_ns.saturating_sub(last_ns) < UNSETTLED_NS)
    }
}

impl PeerSilence {
    /// Called when the flow sends to its peer. Returns whether the peer has not answered for long,
    /// since the first packet or the last check of the source address.
    pub(crate) fn on_sent(&mut self, now_ns: u64) -> bool {
        let since_ns = *self.since_ns.get_or_insert(now_ns);
        let is_long = now_ns.saturating_sub(since_ns) >= SOURCE_LOOK_NS;
        if is_long {
            self.since_ns = Some(now_ns);
        }
        is_long
    }

    /// Called when the peer has answered.
    pub(crate) fn end(&mut self) {
        self.since_ns = None;
    }
}

/// Returns the local address of a host socket.
pub(crate) fn source_of(host: &Fd) -> Option<IpAddr> {
    let local = getsockname(host).ok().and_then(|addr| SocketAddr::try_from(addr).ok());
    local.map(|local| local.ip()).filter(|ip| !ip.is_unspecified())
}

/// Returns whether a new socket connected to `to` would have another source address than `host`.
pub(crate) fn leaves_elsewhere(dialer: &Dialer, host: &Fd, to: SocketAddr) -> bool {
    let now = source_towards(dialer, dialer.first_stop(to));
    now.is_some() && now != source_of(host)
}

/// Returns the source address that the kernel now chooses for packets to `to`; `None` without a
/// route.
fn source_towards(dialer: &Dialer, to: SocketAddr) -> Option<IpAddr> {
    let probe = dialer::socket(SocketType::DGRAM, to).ok()?;
    dialer.connect(&probe, to).ok()?;
    source_of(&probe)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::egress::Egress;

    #[test]
    fn a_silent_peer_is_noticed_once_in_a_while() {
        let mut silence = PeerSilence::default();
        assert!(!silence.on_sent(5));
        assert!(!silence.on_sent(SOURCE_LOOK_NS + 4));
        assert!(silence.on_sent(SOURCE_LOOK_NS + 5));
        assert!(!silence.on_sent(SOURCE_LOOK_NS + 6));
        silence.end();
        assert!(!silence.on_sent(9 * SOURCE_LOOK_NS), "the first since an answer");
    }

    #[test]
    fn changes_are_recent_for_a_while() {
        let mut changes = AddressChanges::default();
        assert!(!changes.are_recent(1));
        changes.note(1);
        assert!(changes.are_recent(UNSETTLED_NS));
        assert!(!changes.are_recent(UNSETTLED_NS + 1));
    }

    #[test]
    fn a_socket_that_the_kernel_would_place_elsewhere_is_told() {
        let to: SocketAddr = "127.0.0.1:9".parse().unwrap();
        let dialer = Dialer::new(Egress::default());
        for (source, elsewhere) in [("127.0.0.1:0", false), ("127.0.0.2:0", true)] {
            let host = dialer::socket(SocketType::DGRAM, to).unwrap();
            let source: SocketAddr = source.parse().unwrap();
            rustix::net::bind(&host, &source).unwrap();
            dialer.connect(&host, to).unwrap();
            assert_eq!(leaves_elsewhere(&dialer, &host, to), elsewhere);
        }
    }
}
