//! Assigns IP fragments to flows. Only the first fragment of a packet has ports, so later fragments
//! are assigned to the flow of the first one.

use core::hash::Hasher;
use core::net::IpAddr;

use crate::tuple::HashKey;
use crate::view::PacketToken;

/// Number of fragmented packets that are remembered at once. A new packet overwrites a remembered
/// packet with the same hash.
const PACKETS_MAX: usize = 1024;
/// Time in nanoseconds for which a packet's later fragments are accepted after its first fragment:
/// the reassembly timeout of Linux.
const LIFETIME_NS: u64 = 30_000_000_000;

/// IP header fields that all fragments of a packet have in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FragmentKey {
    pub src: IpAddr,
    pub dst: IpAddr,
    pub ident: u32,
}

#[derive(Debug, Clone, Copy)]
struct FragmentEntry {
    key: FragmentKey,
    token: PacketToken,
    since_ns: u64,
}

/// Table of fragmented packets whose first fragment has arrived, with their flows.
#[derive(Debug)]
pub(crate) struct FragmentFlows {
    entries: Box<[Option<FragmentEntry>]>,
    key: HashKey,
}

impl FragmentFlows {
    pub(crate) fn new(key: HashKey) -> Self {
        Self { entries: vec![None; PACKETS_MAX].into_boxed_slice(), key }
    }

    /// Remembers the flow of a packet when its first fragment arrives.
    pub(crate) fn note(&mut self, key: FragmentKey, token: PacketToken, now_ns: u64) {
        let at = self.place(&key);
        self.entries[at] = Some(FragmentEntry { key, token, since_ns: now_ns });
    }

    /// Returns the flow to which the first fragment of this packet was assigned.
    pub(crate) fn find(&self, key: &FragmentKey, now_ns: u64) -> Option<PacketToken> {
        let entry = self.entries[self.place(key)].as_ref()?;
        let is_it = entry.key == *key && now_ns.saturating_sub(entry.since_ns) < LIFETIME_NS;
        is_it.then_some(entry.token)
    }

    fn place(&self, key: &FragmentKey) -> usize {
        let mut hasher = self.key.hasher();
        for addr in [key.src, key.dst] {
            match addr {
                IpAddr::V4(v4) => hasher.write_u32(v4.to_bits()),
                IpAddr::V6(v6) => hasher.write_u128(v6.to_bits()),
            }
        }
        hasher.write_u32(key.ident);
        hasher.finish() as usize % PACKETS_MAX
    }
}
