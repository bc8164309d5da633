//! State of a stack that is one shard of several.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use hashbrown::HashMap;

use super::common::Common;
use super::post::{Mail, OfferedChild, ShardMessage, ShardPair};
use super::{Owners, ShardId};
use crate::host::{Elsewhere, ListenerNote};
use crate::net::hash::Keyed;
use crate::ports::bind_addr::PortProtocol;
use crate::tables::flow::Flow;
use crate::tcp::listener::AmongShards;

/// Access to the other shards (stacks) of this host. A single stack has none.
#[derive(Debug, Default)]
pub(crate) struct PeerShards {
    /// State of this stack as one of several shards; `None` for a single stack.
    pub member: Option<Box<Member>>,
}

impl PeerShards {
    /// Returns whether the stack is the only one of its host.
    #[inline]
    pub fn is_alone(&self) -> bool {
        self.member.is_none()
    }

    /// Returns the number of this shard; `None` for a single stack.
    pub fn own(&self) -> Option<ShardId> {
        self.member.as_ref().map(|member| member.id)
    }

    /// Returns the number of this shard; 0 for a single stack.
    pub fn number(&self) -> u8 {
        self.own().map_or(0, |own| own.0)
    }

    /// Queues a message to another shard, which the next flush sends.
    pub fn tell(&mut self, shard: ShardId, message: ShardMessage) {
        if let Some(pair) = self.member.as_mut().and_then(|member| member.pair(shard)) {
            pair.tell(message);
        }
    }

    /// Returns the number of table entries that represent sockets of other shards (stacks).
    pub fn shadows(&self) -> usize {
        self.member.as_ref().map_or(0, |member| member.shadows.len())
    }

    /// Returns whether other shards have sockets on a UDP port.
    pub fn has_others_on(&self, port: u16) -> bool {
        self.member.as_ref().is_some_and(|member| {
            member.common.port_shards(false).get(port) & !(1 << member.id.0) != 0
        })
    }

    /// Returns whether a set of shards contains this shard.
    pub fn is_in(&self, shards: u16) -> bool {
        self.member.as_ref().is_none_or(|member| shards & 1 << member.id.0 != 0)
    }

    /// Returns the shards in a bit set, except this shard.
    pub fn others_in(&self, shards: u16) -> impl Iterator<Item = ShardId> + use<> {
        let own = self.member.as_ref().map(|member| member.id);
        let all = (0..u16::BITS as u8).filter(move |n| shards & 1 << n != 0).map(ShardId);
        all.filter(move |shard| Some(*shard) != own)
    }
}

/// State of a stack that is one of several shards of a host.
#[derive(Debug)]
pub(crate) struct Member {
    pub id: ShardId,
    pub common: Arc<Common>,
    /// Message rings to the other shards, by the number of the shard; `None` for this shard.
    pub pairs: Vec<Option<ShardPair>>,
    /// Flows that are not in the shard that owns them by their hash, because the program chose the
    /// local port. Each is mapped to the shard that has it. Usually empty.
    pub excepted: HashMap<Flow, ShardId, Keyed>,
    /// Indices of the table entries that represent sockets of other shards, by protocol and number
    /// of the socket.
    pub shadows: BTreeMap<(PortProtocol, u32), u32>,
    /// Sockets that wait until another shard permits this shard to use the flow of their
    /// connection.
    pub claims: BTreeSet<u32>,
    /// Connections whose listener was closed before a program accepted them.
    pub forsaken: VecDeque<OfferedChild>,
    /// Listeners of other shards that were closed, and whose closing was not reported to the owner
    /// of the stack yet.
    pub gone: VecDeque<Elsewhere>,
    /// Number of changes to sockets and flows of the host that this shard has applied so far.
    pub seen: u64,
    /// Number of neighbour updates of the first shard that this shard has read so far.
    pub heard: u64,
    /// Packets and messages that were taken from the rings of other shards. The allocation is
    /// reused.
    pub batch: VecDeque<Mail>,
}

impl Member {
    /// Creates the states of all shards of a host.
    pub fn all(owners: Owners, key: Keyed) -> Vec<Self> {
        let (common, count) = (Common::new(owners), owners.count());
        let member = |id| Self {
            id: ShardId(id as u8),
            common: Arc::clone(&common),
            pairs: (0..count).map(|_| None).collect(),
            excepted: HashMap::with_hasher(key),
            shadows: BTreeMap::new(),
            claims: BTreeSet::new(),
            forsaken: VecDeque::new(),
            gone: VecDeque::new(),
            seen: 0,
            heard: 0,
            batch: VecDeque::new(),
        };
        let mut all: Vec<Self> = (0..count).map(member).collect();
        for one in 0..count {
            for other in 0..one {
                let (here, there) = ShardPair::connect();
                all[one].pairs[other] = Some(here);
                all[other].pairs[one] = Some(there);
            }
        }
        all
    }

    /// Returns the shard to which a flow belongs, or would belong if a connection were opened.
    #[inline]
    pub fn home(&self, flow: &Flow) -> ShardId {
        self.home_of_hashed(flow, self.common.owners.hash(flow))
    }

    /// Returns the shard to which a flow with the given hash belongs.
    #[inline]
    pub fn home_of_hashed(&self, flow: &Flow, hash: u64) -> ShardId {
        let excepted = (!self.excepted.is_empty()).then(|| self.excepted.get(flow)).flatten();
        excepted.copied().unwrap_or_else(|| self.common.owners.of_hash(hash))
    }

    /// Creates the state of a listener of this shard, which will be announced to all shards.
    pub fn original(&self, note: ListenerNote) -> AmongShards {
        let room = Arc::default();
        AmongShards::Original { room, turned_away: 0, told_last: self.id, note }
    }

    /// Returns the set of all shards, as bits.
    pub fn everybody(&self) -> u16 {
        (0..self.pairs.len()).fold(0, |all, shard| all | 1 << shard)
    }

    pub fn pair(&mut self, shard: ShardId) -> Option<&mut ShardPair> {
        self.pairs.get_mut(shard.index())?.as_mut()
    }

    /// Returns whether packets or messages have arrived, or wait to be sent.
    pub fn has_work(&self) -> bool {
        let pairs = || self.pairs.iter().flatten();
        !self.forsaken.is_empty()
            || !self.gone.is_empty()
            || self.common.update_queue(self.id).has_more(self.heard)
            || pairs().any(|pair| pair.has_mail() || pair.has_waiting())
    }
}
