//! Sockets of each shard that are announced to peer shards, in one table per protocol. The table's
//! lock orders changes: sockets that compete for packets are in the same order in every shard.
//!
//! Listeners are always announced. A UDP port or echo identifier that only one shard uses is not
//! announced: its packets go to that shard. When a second shard uses the port, the first shard's
//! sockets are announced to all shards.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::ShardId;
use super::common::{Common, PeerChange, Shadow};
use crate::ports::bind_addr::PortProtocol;

/// Announced receivers of one protocol.
#[derive(Debug)]
pub(crate) struct Announced {
    of: PortProtocol,
    common: Arc<Common>,
    ports: BTreeMap<u16, AnnouncedPort>,
    /// Number of sockets added so far.
    count: u64,
}

/// A port with the announced sockets that use it.
#[derive(Debug, Default)]
struct AnnouncedPort {
    /// Sockets by number, each with the count of sockets added before.
    sockets: BTreeMap<u32, (u64, Box<Shadow>)>,
    /// Number of sockets per shard.
    shards: BTreeMap<ShardId, u32>,
    /// True: all sockets on the port are announced to all shards, until the last one is gone.
    is_public: bool,
}

impl AnnouncedPort {
    /// Returns the shards that use the port, as a bit set.
    fn shards(&self) -> u16 {
        self.shards.keys().fold(0, |all, shard| all | 1 << shard.0)
    }
}

impl Announced {
    pub fn new(of: PortProtocol, common: Arc<Common>) -> Self {
        Self { of, common, ports: BTreeMap::new(), count: 0 }
    }

    /// Prepares for a socket of `shard` on `port`. If only other shards use the port so far, their
    /// sockets are announced to all shards first. The new socket is then the newest in its own
    /// shard, too.
    pub fn open(&mut self, port: u16, shard: ShardId) {
        let Some(entry) = self.ports.get_mut(&port) else { return };
        if entry.is_public || entry.shards.keys().all(|other| *other == shard) {
            return;
        }
        entry.is_public = true;
        let mut sockets: Vec<_> = entry.sockets.iter().collect();
        sockets.sort_unstable_by_key(|(_, (number, _))| *number);
        for (seat, (_, shadow)) in sockets {
            self.common.post(shadow.shard, &change(self.of, *seat, Some(shadow.clone())));
        }
    }

    /// Sets the announced properties of the socket `seat` (its number among all shards' sockets) on
    /// `port`.
    pub fn set(&mut self, port: u16, seat: u32, shadow: Box<Shadow>) {
        let shard = shadow.shard;
        let entry = self.ports.entry(port).or_default();
        let known = entry.sockets.get(&seat).map(|(number, _)| *number);
        *entry.shards.entry(shard).or_default() += u32::from(known.is_none());
        entry.is_public |= self.of == PortProtocol::Tcp;
        let is_public = entry.is_public;
        entry.sockets.insert(seat, (known.unwrap_or(self.count), shadow.clone()));
        self.count += u64::from(known.is_none());
        if is_public {
            self.common.post(shard, &change(self.of, seat, Some(shadow)));
        }
        self.note(port);
    }

    /// Removes the socket `seat` of `shard`, which no longer receives packets on `port`. Does
    /// nothing if the socket was not announced.
    pub fn remove(&mut self, port: u16, seat: u32, shard: ShardId) {
        let Some(entry) = self.ports.get_mut(&port) else { return };
        if entry.sockets.remove(&seat).is_none() {
            return;
        }
        if let Some(count) = entry.shards.get_mut(&shard) {
            *count -= 1;
            if *count == 0 {
                entry.shards.remove(&shard);
            }
        }
        if entry.is_public {
            self.common.post(shard, &change(self.of, seat, None));
        }
        if entry.sockets.is_empty() {
            self.ports.remove(&port);
        }
        self.note(port);
    }

    /// Updates the shards that receive packets to `port`.
    fn note(&self, port: u16) {
        let shards = self.ports.get(&port).map_or(0, AnnouncedPort::shards);
        match self.of {
            PortProtocol::Tcp => {}
            PortProtocol::Udp => self.common.port_shards(false).set(port, shards),
            PortProtocol::Echo => self.common.port_shards(true).set(port, shards),
        }
    }
}

fn change(table: PortProtocol, seat: u32, shadow: Option<Box<Shadow>>) -> PeerChange {
    PeerChange::Shadow { table, seat, shadow }
}
