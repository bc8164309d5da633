//! The table of TCP 4-tuples. To find the connection of a segment, one keyed hash and one probe of
//! the table are needed.
//!
//! Connections, half-open connections, TIME-WAITs, and SYNs that wait to be accepted or refused are
//! stored in separate tables. The flow table contains the 4-tuples of all of them, so that each
//! 4-tuple exists only once.

use std::cell::Cell;
use std::hash::{BuildHasher, Hasher};
use std::net::{IpAddr, SocketAddr};

use hashbrown::HashTable;

use crate::net::IfaceId;
use crate::net::hash::Keyed;

/// The two endpoints of a connection, each an IP address and a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Flow {
    pub local: IpAddr,
    pub remote: IpAddr,
    pub local_port: u16,
    pub remote_port: u16,
}

impl Flow {
    /// Returns the address and port on this host.
    pub fn local(&self) -> SocketAddr {
        SocketAddr::new(self.local, self.local_port)
    }

    /// Returns the address and port of the peer.
    pub fn remote(&self) -> SocketAddr {
        SocketAddr::new(self.remote, self.remote_port)
    }

    /// Returns the maximum segment size for an IP packet of `mtu` bytes: the length of the TCP
    /// payload plus that of the TCP options.
    pub fn mss_for(&self, mtu: u32) -> u16 {
        let headers = if self.local.is_ipv4() { 20 + 20 } else { 40 + 20 };
        u16::try_from(mtu.saturating_sub(headers)).unwrap_or(u16::MAX)
    }
}

impl Keyed {
    /// Returns the hash of a flow: of both addresses and ports.
    pub fn flow(&self, flow: &Flow) -> u64 {
        let mut hasher = self.build_hasher();
        write_addr(&mut hasher, flow.local);
        write_addr(&mut hasher, flow.remote);
        hasher.write_u32(u32::from(flow.local_port) << 16 | u32::from(flow.remote_port));
        hasher.finish()
    }

    /// Returns the hash of the two endpoints of a flow. The hash does not depend on which of them
    /// is the local one. IPv4-mapped addresses are equivalent to their IPv4 addresses. The hash
    /// selects both the shard and the bucket in the shard's flow table.
    ///
    /// The hashed message is described at [`Owners::key`](crate::Owners::key).
    #[inline]
    pub fn ends(&self, flow: &Flow) -> u64 {
        let (local_port, remote_port) = (flow.local_port, flow.remote_port);
        let mut hasher = self.build_hasher();
        match (flow.local.to_canonical(), flow.remote.to_canonical()) {
            (IpAddr::V4(local), IpAddr::V4(remote)) => {
                let (one, other, ports) =
                    in_order((local.to_bits(), local_port), (remote.to_bits(), remote_port));
                hasher.write_u64(u64::from(one) | u64::from(other) << 32);
                hasher.write_u32(ports);
            }
            (local, remote) => {
                let (one, other, ports) =
                    in_order((v6_bits(local), local_port), (v6_bits(remote), remote_port));
                for addr in [one, other] {
                    hasher.write_u64((addr >> 64) as u64);
                    hasher.write_u64(addr as u64);
                }
                hasher.write_u32(ports);
            }
        }
        hasher.finish()
    }

    /// Returns the hash of an address and a number.
    pub fn addr(&self, addr: IpAddr, number: u32) -> u64 {
        let mut hasher = self.build_hasher();
        write_addr(&mut hasher, addr);
        hasher.write_u32(number);
        hasher.finish()
    }

    /// Returns the hash of the local host and a remote service: F(local, remote, remote port) of
    /// RFC 6056 and RFC 7323.
    pub fn path(&self, local: IpAddr, remote: SocketAddr) -> u64 {
        self.flow(&Flow { local, remote: remote.ip(), local_port: 0, remote_port: remote.port() })
    }
}

/// Returns the hash of an entry that is bound to the interface `device`; `hash` is the hash without
/// the interface. The interface number is not hashed with the secret key. To cause collisions, an
/// attacker would still have to predict `hash`.
#[inline]
pub(crate) fn on_device(hash: u64, device: Option<IfaceId>) -> u64 {
    hash ^ device.map_or(0, |device| 1 + u64::from(device.0))
}

/// Orders two endpoints. Returns the smaller address, the larger address, and a word with their
/// ports; the port of the smaller address is in the upper half.
#[inline]
fn in_order<T: Ord>(one: (T, u16), other: (T, u16)) -> (T, T, u32) {
    let (first, second) = if one <= other { (one, other) } else { (other, one) };
    (first.0, second.0, u32::from(first.1) << 16 | u32::from(second.1))
}

fn v6_bits(addr: IpAddr) -> u128 {
    match addr {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().to_bits(),
        IpAddr::V6(v6) => v6.to_bits(),
    }
}

fn write_addr(hasher: &mut impl Hasher, addr: IpAddr) {
    match addr {
        IpAddr::V4(v4) => hasher.write_u32(v4.to_bits()),
        IpAddr::V6(v6) => {
            let bits = v6.to_bits();
            hasher.write_u64((bits >> 64) as u64);
            hasher.write_u64(bits as u64);
        }
    }
}

/// Where the state of a flow is stored: the table, and the index in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FlowRef {
    /// A connection, or a connected datagram socket, in the socket table.
    Socket(u32),
    /// A half-open connection in the SYN cache.
    HalfOpen(u32),
    /// A connection in TIME-WAIT.
    TimeWait(u32),
    /// A SYN that the owner of the stack has neither accepted nor refused yet.
    Pending(u32),
}

/// Hash table that maps flows to the entries of other tables that store their state.
#[derive(Debug)]
pub(crate) struct FlowTable {
    /// Parts of the table, selected by the upper bits of the hash. A full hash table moves all its
    /// entries to a larger one, which takes 20 ms for a million connections. Smaller parts move
    /// separately, in different turns of the event loop.
    parts: Vec<HashTable<FlowSlot>>,
    len: usize,
    /// Number of entries that were compared so far, as a measure of the work of lookups.
    pub compared: Cell<u64>,
    /// Number of entries that were moved so far, as a measure of the work of growing.
    pub moved: Cell<u64>,
}

/// Binary logarithm of the number of parts. With the maximum of 2²² sockets, each part has 16384
/// entries.
const PART_BITS: u32 = 8;

impl Default for FlowTable {
    fn default() -> Self {
        let parts = (0..1 << PART_BITS).map(|_| HashTable::new()).collect();
        Self { parts, len: 0, compared: Cell::new(0), moved: Cell::new(0) }
    }
}

/// An entry of the flow table. The entry contains the hash, so that a table that grows need not
/// read the state of each flow.
#[derive(Debug, Clone, Copy)]
struct FlowSlot {
    hash: u32,
    at: PackedRef,
}

/// A [`FlowRef`] in 32 bits: two bits select the table, and the remaining bits are the index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct PackedRef(u32);

const INDEX_BITS: u32 = 30;

impl PackedRef {
    /// # Panics
    /// Panics if a table has 2³⁰ entries. Each takes hundreds of bytes, so the memory is exhausted
    /// before.
    fn new(at: FlowRef) -> Self {
        let (table, index) = match at {
            FlowRef::Socket(index) => (0, index),
            FlowRef::HalfOpen(index) => (1, index),
            FlowRef::TimeWait(index) => (2, index),
            FlowRef::Pending(index) => (3, index),
        };
        assert!(index < 1 << INDEX_BITS, "a table is too large");
        Self(table << INDEX_BITS | index)
    }

    #[inline]
    fn get(self) -> FlowRef {
        let index = self.0 & ((1 << INDEX_BITS) - 1);
        match self.0 >> INDEX_BITS {
            0 => FlowRef::Socket(index),
            1 => FlowRef::HalfOpen(index),
            2 => FlowRef::TimeWait(index),
            _ => FlowRef::Pending(index),
        }
    }
}

const _: () = assert!(size_of::<FlowSlot>() == 8);

impl FlowTable {
    /// Returns the number of flows in the table.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Finds the flow with the given hash. `is` returns whether the 4-tuple stored at a [`FlowRef`]
    /// equals the one that is searched.
    #[inline]
    pub fn find(&self, hash: u64, mut is: impl FnMut(FlowRef) -> bool) -> Option<FlowRef> {
        let short = hash as u32;
        let found = self.parts[part(short)].find(spread(short), |slot| {
            self.compared.set(self.compared.get() + 1);
            slot.hash == short && is(slot.at.get())
        });
        found.map(|slot| slot.at.get())
    }

    /// Adds a flow, which must not be in the table already. A duplicate would slow down lookups,
    /// because entries with equal hashes are compared one by one.
    pub fn insert(&mut self, hash: u64, at: FlowRef) {
        let (hash, at) = (hash as u32, PackedRef::new(at));
        let moved = &self.moved;
        self.parts[part(hash)].insert_unique(spread(hash), FlowSlot { hash, at }, |slot| {
            moved.set(moved.get() + 1);
            spread(slot.hash)
        });
        self.len += 1;
    }

    /// Removes the flow whose state is stored at `at`. Returns false if it is not in the table.
    pub fn remove(&mut self, hash: u64, at: FlowRef) -> bool {
        let (short, at) = (hash as u32, PackedRef::new(at));
        let (part, compared) = (&mut self.parts[part(short)], &self.compared);
        let found = part.find_entry(spread(short), |slot| {
            compared.set(compared.get() + 1);
            slot.hash == short && slot.at == at
        });
        let removed = found.map(|entry| entry.remove()).is_ok();
        self.len -= usize::from(removed);
        removed
    }

    /// Changes where the state of a flow is stored, because a handshake has completed or a
    /// connection has entered TIME-WAIT. Returns false if `old` is not in the table.
    pub fn replace(&mut self, hash: u64, old: FlowRef, new: FlowRef) -> bool {
        let (short, old) = (hash as u32, PackedRef::new(old));
        let (part, compared) = (&mut self.parts[part(short)], &self.compared);
        let found = part.find_mut(spread(short), |slot| {
            compared.set(compared.get() + 1);
            slot.hash == short && slot.at == old
        });
        found.map(|slot| slot.at = PackedRef::new(new)).is_some()
    }
}

#[inline]
fn part(hash: u32) -> usize {
    (hash >> (u32::BITS - PART_BITS)) as usize
}

/// Spreads the bits of the hash over 64 bits. hashbrown uses the low bits to select a bucket, and
/// the high bits as a tag.
#[inline]
fn spread(hash: u32) -> u64 {
    u64::from(hash).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flow(n: u32) -> Flow {
        Flow {
            local: IpAddr::from([10, 0, 0, 1]),
            remote: IpAddr::from((0x0b00_0000 + n / 1000).to_be_bytes()),
            local_port: 80,
            remote_port: (1024 + n % 1000) as u16,
        }
    }

    #[test]
    fn finds_what_was_put_in() {
        let key = Keyed([1, 2]);
        let mut table = FlowTable::default();
        let flows: Vec<Flow> = (0..20_000).map(flow).collect();
        for (flow, index) in flows.iter().zip(0..) {
            table.insert(key.ends(flow), FlowRef::Socket(index));
        }
        let is = |wanted: Flow| {
            let flows = &flows;
            move |at| matches!(at, FlowRef::Socket(index) if flows[index as usize] == wanted)
        };
        assert_eq!(table.find(key.ends(&flow(77)), is(flow(77))), Some(FlowRef::Socket(77)));
        assert_eq!(table.find(key.ends(&flow(20_000)), is(flow(20_000))), None);
        assert!(table.replace(key.ends(&flow(5)), FlowRef::Socket(5), FlowRef::TimeWait(1)));
        assert!(table.remove(key.ends(&flow(5)), FlowRef::TimeWait(1)));
        assert!(!table.remove(key.ends(&flow(5)), FlowRef::TimeWait(1)));
    }

    #[test]
    fn growing_moves_a_little_at_a_time() {
        let key = Keyed([1, 2]);
        let mut table = FlowTable::default();
        let mut most = 0;
        for index in 0..500_000 {
            let before = table.moved.get();
            table.insert(key.ends(&flow(index)), FlowRef::Socket(index));
            most = most.max(table.moved.get() - before);
        }
        assert_eq!(table.len(), 500_000);
        // Expect that at most one part of average size was moved at once; allow for random
        // variation.
        assert!(most > 500 && most < 500_000 / 256 * 2, "{most} at once");
    }

    /// Tests the hash against the message that `Owners::key` documents, because devices may compute
    /// the same hash.
    #[test]
    fn the_hash_of_the_ends_is_that_of_their_bytes() {
        let key = Keyed([1, 2]);
        let v4 = |n| IpAddr::from([10, 0, 0, n]);
        let v6 = |n| IpAddr::from([0x2001, 0xdb8, 1, 2, 3, 4, 5, n]);
        let low = |n: u16| u64::from_be_bytes([0, 3, 0, 4, 0, 5, 0, n as u8]).to_le_bytes();
        let high = 0x2001_0db8_0001_0002_u64.to_le_bytes();
        let cases = [
            (v4(1), v4(2), [vec![1, 0, 0, 10], vec![2, 0, 0, 10]].concat()),
            (v4(1), v4(1), [vec![1, 0, 0, 10], vec![1, 0, 0, 10]].concat()),
            (v6(1), v6(2), [high, low(1), high, low(2)].concat()),
        ];
        for (local, remote, addresses) in cases {
            let flow = Flow { local, remote, local_port: 0x1234, remote_port: 0x5678 };
            let back =
                Flow { local: remote, remote: local, local_port: 0x5678, remote_port: 0x1234 };
            let message = [addresses, vec![0x78, 0x56, 0x34, 0x12]].concat();
            let hash = key.build_hasher().hash(&message);
            assert_eq!([key.ends(&flow), key.ends(&back)], [hash, hash], "{flow:?}");
        }
    }

    #[test]
    fn the_key_decides_the_hash() {
        assert_ne!(Keyed([1, 2]).ends(&flow(0)), Keyed([1, 3]).ends(&flow(0)));
        assert_ne!(Keyed([1, 2]).ends(&flow(0)), Keyed([1, 2]).ends(&flow(1)));
    }
}
