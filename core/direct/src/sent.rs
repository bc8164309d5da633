//! Flows of the datagrams that were sent from addresses that are not the host's own.

use std::net::{IpAddr, SocketAddr};

/// Number of flows that are remembered. A new flow replaces an older one with the same hash. ICMP
/// errors about the older flow are then ignored. The table is allocated when the first datagram is
/// sent, and needs 64 KiB.
const FLOWS_MAX: usize = 1024;

/// Recently used flows of datagrams. An ICMP error is accepted only if the datagram that it quotes
/// belongs to one of these flows (RFC 5927 §4.1).
#[derive(Debug, Default)]
pub(crate) struct SentFlows {
    /// Local and remote address of each flow, at the index of its hash. Empty until the first
    /// datagram is sent.
    slots: Vec<Option<(SocketAddr, SocketAddr)>>,
}

impl SentFlows {
    /// Records the flow of a datagram that was sent.
    pub fn note(&mut self, local: SocketAddr, remote: SocketAddr) {
        if self.slots.is_empty() {
            self.slots.resize(FLOWS_MAX, None);
        }
        self.slots[slot_of(local, remote)] = Some((local, remote));
    }

    /// Returns whether a flow was recorded, and was not replaced by a later flow with the same
    /// hash.
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
        // Multiply by the prime of the 64-bit FNV-1a hash.
        hash = (hash ^ high ^ low).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(23);
    }
    hash as usize % FLOWS_MAX
}
