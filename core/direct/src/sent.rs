//! Flows of datagrams that were sent from foreign addresses.

use std::net::{IpAddr, SocketAddr};

/// Number of remembered flows; a flow replaces another one with the same hash. An error about a
/// replaced flow is ignored, as if it had been lost. Takes 64 KiB once a datagram was sent.
const FLOWS_MAX: usize = 1024;

/// Recently used flows. An ICMP error is believed only if it quotes one of them (RFC 5927 §4.1).
#[derive(Debug, Default)]
pub(crate) struct SentFlows {
    /// Local and remote address, by hash; empty until the first datagram.
    slots: Vec<Option<(SocketAddr, SocketAddr)>>,
}

impl SentFlows {
    /// Records a flow.
    pub fn note(&mut self, local: SocketAddr, remote: SocketAddr) {
        if self.slots.is_empty() {
            self.slots.resize(FLOWS_MAX, None);
        }
        self.slots[slot_of(local, remote)] = Some((local, remote));
    }

    /// Returns whether a flow was recorded and not replaced since.
    pub fn contains(&self, local: SocketAddr, remote: SocketAddr) -> bool {
        self.slots.get(slot_of(local, remote)) == Some(&Some((local, remote)))
    }
}

fn slot_of(local: SocketAddr, remote: SocketAddr) -> usize {
    let mut hash = u64::from(local.port()) << 16 | u64::from(remote.port());
    for ip in [local.ip(), remote.ip()] {
        let (high, low) = match ip {
            IpAddr::V4(ip) => (0, u64::from(ip.to_bits())),
            IpAddr::V6(ip) => ((ip.to_bits() >> 64) as u64, ip.to_bits() as u64),
        };
        // Multiplier of the 64-bit FNV-1a hash.
        hash = (hash ^ high ^ low).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(23);
    }
    hash as usize % FLOWS_MAX
}
