//! Which connection a segment belongs to: one keyed hash and one probe.
//!
//! Connections, half-open ones, TIME-WAITs and undecided SYNs live in tables of their own; this one
//! finds them all, so that a 4-tuple can exist only once.

use std::cell::Cell;
use std::hash::{BuildHasher, Hasher};
use std::net::{IpAddr, SocketAddr};

use hashbrown::HashTable;

use crate::net::IfaceId;
use crate::net::hash::Keyed;

/// The two ends of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Flow {
    pub local: IpAddr,
    pub remote: IpAddr,
    pub local_port: u16,
    pub remote_port: u16,
}

impl Flow {
    /// Our end.
    pub fn local(&self) -> SocketAddr {
        SocketAddr::new(self.local, self.local_port)
    }

    /// The other end.
    pub fn remote(&self) -> SocketAddr {
        SocketAddr::new(self.remote, self.remote_port)
    }

    /// TCP payload and options in an IP packet of `mtu` bytes.
    pub fn mss_for(&self, mtu: u32) -> u16 {
        let headers = if self.local.is_ipv4() { 20 + 20 } else { 40 + 20 };
        u16::try_from(mtu.saturating_sub(headers)).unwrap_or(u16::MAX)
    }
}

impl Keyed {
    /// Hash of a 4-tuple.
    pub fn flow(&self, flow: &Flow) -> u64 {
        let mut hasher = self.build_hasher();
        write_addr(&mut hasher, flow.local);
        write_addr(&mut hasher, flow.remote);
        hasher.write_u32(u32::from(flow.local_port) << 16 | u32::from(flow.remote_port));
        hasher.finish()
    }

    /// Hash of an address and a number that goes with it.
    pub fn addr(&self, addr: IpAddr, number: u32) -> u64 {
        let mut hasher = self.build_hasher();
        write_addr(&mut hasher, addr);
        hasher.write_u32(number);
        hasher.finish()
    }

    /// Hash of a host and the service that it talks to: RFC 6056's and RFC 7323's F(local, remote, remote port).
    pub fn path(&self, local: IpAddr, remote: SocketAddr) -> u64 {
        self.flow(&Flow { local, remote: remote.ip(), local_port: 0, remote_port: remote.port() })
    }
}

/// The hash of what has the hash `hash` and is bound to a device. Devices are told apart by bits that no key hides:
/// that makes nobody collide who cannot foresee `hash`.
#[inline]
pub(crate) fn on_device(hash: u64, device: Option<IfaceId>) -> u64 {
    hash ^ device.map_or(0, |device| 1 + u64::from(device.0))
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

/// Where the owner of a flow is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FlowRef {
    /// A socket: connected, connecting, or a datagram socket with a peer.
    Socket(u32),
    /// In the SYN cache.
    HalfOpen(u32),
    /// In TIME-WAIT.
    TimeWait(u32),
    /// A SYN that the owner of the stack has not decided about.
    Pending(u32),
}

/// 4-tuples to their owners.
#[derive(Debug)]
pub(crate) struct FlowTable {
    /// By the upper bits of the hash. A table that is full moves all its entries into a larger one, at a
    /// million connections for 20 ms: each of these moves its share, and not in the same turn.
    parts: Vec<HashTable<Slot>>,
    len: usize,
    /// Entries compared so far: the work done by lookups.
    pub compared: Cell<u64>,
    /// Entries moved so far: the work done by growing.
    pub moved: Cell<u64>,
}

/// log₂ of the parts: of the most sockets that there may be, 2²², each has 16384.
const PART_BITS: u32 = 8;

impl Default for FlowTable {
    fn default() -> Self {
        let parts = (0..1 << PART_BITS).map(|_| HashTable::new()).collect();
        Self { parts, len: 0, compared: Cell::new(0), moved: Cell::new(0) }
    }
}

/// The hash is kept so that growth need not visit the owners.
#[derive(Debug, Clone, Copy)]
struct Slot {
    hash: u32,
    at: PackedRef,
}

/// A [`FlowRef`] in one word: two bits say which table, the rest is the index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct PackedRef(u32);

const INDEX_BITS: u32 = 30;

impl PackedRef {
    /// # Panics
    /// When a table has 2³⁰ entries: at hundreds of bytes each there is no memory for so many.
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

const _: () = assert!(size_of::<Slot>() == 8);

impl FlowTable {
    /// Flows in it.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Finds the owner of the flow whose hash is `hash`; `is` compares the 4-tuple kept at the owner.
    #[inline]
    pub fn find(&self, hash: u64, mut is: impl FnMut(FlowRef) -> bool) -> Option<FlowRef> {
        let short = hash as u32;
        let found = self.parts[part(short)].find(spread(short), |slot| {
            self.compared.set(self.compared.get() + 1);
            slot.hash == short && is(slot.at.get())
        });
        found.map(|slot| slot.at.get())
    }

    /// Adds a flow that is known not to be there. Never one that is: entries with one hash are searched one after the
    /// other.
    pub fn insert(&mut self, hash: u64, at: FlowRef) {
        let (hash, at) = (hash as u32, PackedRef::new(at));
        let moved = &self.moved;
        self.parts[part(hash)].insert_unique(spread(hash), Slot { hash, at }, |slot| {
            moved.set(moved.get() + 1);
            spread(slot.hash)
        });
        self.len += 1;
    }

    /// Takes the flow of `at` out.
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

    /// Hands a flow to another owner (a handshake finished, a connection waits out its time).
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

/// hashbrown takes the bucket from the low bits and the tag from the high ones.
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
            table.insert(key.flow(flow), FlowRef::Socket(index));
        }
        let is = |wanted: Flow| {
            let flows = &flows;
            move |at| matches!(at, FlowRef::Socket(index) if flows[index as usize] == wanted)
        };
        assert_eq!(table.find(key.flow(&flow(77)), is(flow(77))), Some(FlowRef::Socket(77)));
        assert_eq!(table.find(key.flow(&flow(20_000)), is(flow(20_000))), None);
        assert!(table.replace(key.flow(&flow(5)), FlowRef::Socket(5), FlowRef::TimeWait(1)));
        assert!(table.remove(key.flow(&flow(5)), FlowRef::TimeWait(1)));
        assert!(!table.remove(key.flow(&flow(5)), FlowRef::TimeWait(1)));
    }

    #[test]
    fn growing_moves_a_little_at_a_time() {
        let key = Keyed([1, 2]);
        let mut table = FlowTable::default();
        let mut most = 0;
        for index in 0..500_000 {
            let before = table.moved.get();
            table.insert(key.flow(&flow(index)), FlowRef::Socket(index));
            most = most.max(table.moved.get() - before);
        }
        assert_eq!(table.len(), 500_000);
        // A share of all, and what its hash happens to have more.
        assert!(most > 500 && most < 500_000 / 256 * 2, "{most} at once");
    }

    #[test]
    fn the_key_decides_the_hash() {
        assert_ne!(Keyed([1, 2]).flow(&flow(0)), Keyed([1, 3]).flow(&flow(0)));
        assert_ne!(Keyed([1, 2]).flow(&flow(0)), Keyed([1, 2]).flow(&flow(1)));
    }
}
