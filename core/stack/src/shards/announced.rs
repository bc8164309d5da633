//! Receiving sockets that shards announce to each other, in one table per protocol. Changes are
//! made under the lock of the table. Sockets that compete for packets are therefore in the same
//! order in every shard.
//!
//! Listeners are always announced. Sockets on a UDP port or echo identifier that only one shard
//! uses are not announced, because all its packets go to that shard. When a second shard uses the
//! port, the first shard's sockets are announced to all shards.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::ShardId;
use super::common::{Common, PeerChange, Shadow};
use crate::ports::bind_addr::PortProtocol;

/// Table of the announced sockets of one protocol.
#[derive(Debug)]
pub(crate) struct Announced {
    of: PortProtocol,
    common: Arc<Common>,
    ports: BTreeMap<u16, AnnouncedPort>,
    /// Number of sockets that were added to the table so far.
    count: u64,
}

/// A port, and the sockets on it that are announced to all shards (stacks).
#[derive(Debug, Default)]
struct AnnouncedPort {
    /// Announced sockets by their number. Each entry also has the number of sockets that were added
    /// before it.
    sockets: BTreeMap<u32, (u64, Box<Shadow>)>,
    /// Number of announced sockets of each shard.
    shards: BTreeMap<ShardId, u32>,
    /// Whether all sockets on the port are announced to all shards. Once true, this remains so
    /// until the last socket is closed.
    is_public: bool,
}

impl AnnouncedPort {
    /// Returns the set of shards that use the port, with a bit for each shard.
    fn shards(&self) -> u16 {
        self.shards.keys().fold(0, |all, shard| all | 1 << shard.0)
    }
}

impl Announced {
    pub fn new(of: PortProtocol, common: Arc<Common>) -> Self {
        Self { of, common, ports: BTreeMap::new(), count: 0 }
    }

    /// Prepares the port for a new socket of `shard`. If only other shards have used the port so
    /// far, their sockets are announced to all shards first. The new socket is then the newest in
    /// every shard, including its own.
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

    /// Sets the announced properties of a socket on `port`. `seat` is the socket's number, which is
    /// unique among all shards.
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

    /// Removes the socket `seat` of `shard`, because it no longer receives packets on `port`. Has
    /// no effect if the socket was not announced.
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

    /// Updates the set of shards that receive packets to `port`.
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
