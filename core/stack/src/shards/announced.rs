//! Sockets of each shard as its peer shards know them, in one table a protocol. Its lock puts
//! changes in order: two sockets that compete for packets are in the same order in every shard.
//!
//! Listeners are known to all. A port of UDP, or an echo identifier, that only one shard has is not
//! announced: its packets go to that shard. When a second shard comes, all shards are told of the
//! first one's sockets.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::ShardId;
use super::common::{Common, PeerChange, Shadow};
use crate::ports::bind_addr::PortProtocol;

/// The table of a protocol.
#[derive(Debug)]
pub(crate) struct Announced {
    of: PortProtocol,
    common: Arc<Common>,
    ports: BTreeMap<u16, AnnouncedPort>,
    /// Sockets so far.
    count: u64,
}

/// A port on which there are sockets.
#[derive(Debug, Default)]
struct AnnouncedPort {
    /// By number, each with how many there were before.
    sockets: BTreeMap<u32, (u64, Box<Shadow>)>,
    /// How many of each shard.
    shards: BTreeMap<ShardId, u32>,
    /// All shards know of all sockets on it, until the last one has gone.
    is_public: bool,
}

impl AnnouncedPort {
    /// Its shards, a bit each.
    fn shards(&self) -> u16 {
        self.shards.keys().fold(0, |all, shard| all | 1 << shard.0)
    }
}

impl Announced {
    pub fn new(of: PortProtocol, common: Arc<Common>) -> Self {
        Self { of, common, ports: BTreeMap::new(), count: 0 }
    }

    /// A socket of `shard` is about to come to `port`. If other shards have the port, all shards
    /// are told of their sockets first. The new socket is then the newest in its own shard, too.
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

    /// Sets the properties by which others know the socket `seat` (its number among all shards'
    /// sockets), which is on `port`.
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

    /// The socket `seat` of `shard` takes nothing on `port` any more, if it ever did.
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

    /// Where packets to `port` go.
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
