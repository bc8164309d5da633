//! Port mappings for source translation (NAT): each maps an inside address and port to an outside
//! address and port.
//!
//! All flows from an inside address and port have the same outside port, regardless of their
//! destination. A mapping is removed with its last flow.

use core::hash::Hasher;
use core::net::IpAddr;

use towpath_filter::Ports;
use towpath_wire::IpProtocol;

use crate::flow::NONE;
use crate::index::Index;
use crate::tuple::{HashKey, Tuple};

/// Maximum number of ports tried for a new mapping, which bounds the work per packet. If half of
/// the ports are in use, all tries fail with a probability of 2^-128.
const TRIES_MAX: u32 = 128;

/// IP address with a port, or with the identifier of an ICMP query.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Endpoint {
    pub addr: IpAddr,
    pub port: u16,
}

/// Mapping of an inside address and port to an outside address and port.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PortMapping {
    pub inside: Endpoint,
    pub outside: Endpoint,
    protocol: u8,
    query: u8,
    /// Whether the mapping accepts packets from any sender (full-cone NAT), not only replies.
    pub is_full_cone: bool,
    flows: u32,
    next_free: u32,
}

/// Parameters for creating a mapping.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MappingRequest {
    /// Addresses and ports of the flow's first packet, before source translation.
    pub tuple: Tuple,
    /// Address that replaces the source address.
    pub outside: IpAddr,
    /// Range of ports to choose from. `None` means the range that contains the inside port: the
    /// privileged or the unprivileged ports.
    pub ports: Option<Ports>,
    pub is_full_cone: bool,
}

/// All port mappings of a tracker.
#[derive(Debug)]
pub(crate) struct PortMappings {
    mappings: Vec<PortMapping>,
    free: u32,
    /// Hash indices of the mappings, by inside and by outside address and port.
    inside: Index,
    outside: Index,
    key: HashKey,
    /// Number of random numbers generated so far.
    taken: u64,
}

impl PortMappings {
    pub(crate) fn new(mappings_max: usize, key: HashKey) -> Self {
        Self {
            // Reserve one mapping more, because a full table evicts a flow only after the new
            // flow's mapping is created.
            mappings: Vec::with_capacity(mappings_max + 1),
            free: NONE,
            inside: Index::new(mappings_max),
            outside: Index::new(mappings_max),
            key,
            taken: 0,
        }
    }

    pub(crate) fn at(&self, slot: u32) -> &PortMapping {
        &self.mappings[slot as usize]
    }

    /// Returns the mapping for a packet from inside, and creates it if needed. `None` if no port is
    /// free.
    //= https://www.rfc-editor.org/rfc/rfc4787#section-4.1
    //# REQ-1:  A NAT MUST have an "Endpoint-Independent Mapping" behavior.
    pub(crate) fn take(&mut self, request: &MappingRequest) -> Option<u32> {
        let MappingRequest { tuple, outside, .. } = *request;
        let inside = Endpoint { addr: tuple.src, port: tuple.src_port };
        let hash = self.hash(inside, tuple.protocol, tuple.query);
        let known = self.inside.find(hash, |slot| {
            let it = self.at(slot);
            it.inside == inside && it.is_of(tuple) && it.outside.addr == outside
        });
        if let Some(slot) = known {
            self.mappings[slot as usize].flows += 1;
            return Some(slot);
        }
        let outside = Endpoint { addr: outside, port: self.choose(request)? };
        let mapping = PortMapping {
            inside,
            outside,
            protocol: tuple.protocol,
            query: tuple.query,
            is_full_cone: request.is_full_cone,
            flows: 1,
            next_free: NONE,
        };
        let slot = match self.mappings.get_mut(self.free as usize) {
            Some(free) => {
                let slot = core::mem::replace(&mut self.free, free.next_free);
                *free = mapping;
                slot
            }
            None => {
                self.mappings.push(mapping);
                self.mappings.len() as u32 - 1
            }
        };
        self.inside.insert(hash, slot);
        self.outside.insert(self.hash(outside, tuple.protocol, tuple.query), slot);
        Some(slot)
    }

    /// Increments the number of flows of a mapping.
    pub(crate) fn hold(&mut self, slot: u32) {
        self.mappings[slot as usize].flows += 1;
    }

    /// Decrements the number of flows of a mapping, and removes the mapping with its last flow.
    pub(crate) fn release(&mut self, slot: u32) {
        let mapping = &mut self.mappings[slot as usize];
        mapping.flows -= 1;
        if mapping.flows > 0 {
            return;
        }
        let PortMapping { inside, outside, protocol, query, .. } = *mapping;
        mapping.next_free = core::mem::replace(&mut self.free, slot);
        self.inside.remove(self.hash(inside, protocol, query), slot);
        self.outside.remove(self.hash(outside, protocol, query), slot);
    }

    /// Returns the full-cone mapping whose outside address and port are the destination of a
    /// packet.
    pub(crate) fn full_cone(&self, tuple: &Tuple) -> Option<u32> {
        let outside = Endpoint { addr: tuple.dst, port: tuple.dst_port };
        self.find_outside(outside, *tuple).filter(|slot| self.at(*slot).is_full_cone)
    }

    fn find_outside(&self, outside: Endpoint, tuple: Tuple) -> Option<u32> {
        let hash = self.hash(outside, tuple.protocol, tuple.query);
        self.outside.find(hash, |slot| {
            let it = self.at(slot);
            it.outside == outside && it.is_of(tuple)
        })
    }

    /// Chooses a free outside port at random.
    //= https://www.rfc-editor.org/rfc/rfc4787#section-4.2.1
    //# REQ-3:  A NAT MUST NOT have a "Port assignment" behavior of "Port
    //# overloading".
    fn choose(&mut self, request: &MappingRequest) -> Option<u16> {
        let MappingRequest { tuple, outside: addr, .. } = *request;
        let range = request.ports.unwrap_or(range_of(&tuple));
        let count = u32::from(range.last - range.first) + 1;
        let keeps_parity = tuple.protocol == IpProtocol::UDP.0 && count > 1;
        for _ in 0..TRIES_MAX {
            let offset = (u64::from(self.random()) * u64::from(count)) >> 32;
            let mut port = range.first + offset as u16;
            if keeps_parity && (port ^ tuple.src_port) & 1 == 1 {
                port = if port == range.last { port - 1 } else { port + 1 };
            }
            if self.find_outside(Endpoint { addr, port }, tuple).is_none() {
                return Some(port);
            }
        }
        None
    }

    /// Returns a random number that peers cannot predict, by hashing a counter with a secret key.
    pub(crate) fn random(&mut self) -> u32 {
        self.taken += 1;
        let mut hasher = self.key.hasher();
        hasher.write(b"port");
        hasher.write_u64(self.taken);
        hasher.finish() as u32
    }

    fn hash(&self, end: Endpoint, protocol: u8, query: u8) -> u32 {
        self.key.of_end(end.addr, end.port, protocol, query)
    }

    /// Returns the memory reserved for port mappings, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.mappings.capacity() * size_of::<PortMapping>()
            + self.inside.bytes()
            + self.outside.bytes()
    }
}

impl PortMapping {
    fn is_of(&self, tuple: Tuple) -> bool {
        self.protocol == tuple.protocol && self.query == tuple.query
    }
}

/// Returns the outside ports for an inside port.
//= https://www.rfc-editor.org/rfc/rfc4787#section-4.2.1
//# a) If the host's source port was in the range 0-1023, it is
//# RECOMMENDED the NAT's source port be in the same range.
pub(crate) fn range_of(tuple: &Tuple) -> Ports {
    match tuple.src_port {
        _ if tuple.query != 0 => Ports { first: 0, last: u16::MAX },
        0..1024 => Ports { first: 1, last: 1023 },
        _ => Ports { first: 1024, last: u16::MAX },
    }
}
