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

/// Peer shards of a stack; a single stack has none.
#[derive(Debug, Default)]
pub(crate) struct PeerShards {
    /// State as one shard of several; None: a single stack.
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

    /// Returns the number of this shard, 0 for a single stack.
    pub fn number(&self) -> u8 {
        self.own().map_or(0, |own| own.0)
    }

    /// Sends a message to another shard with the next flush.
    pub fn tell(&mut self, shard: ShardId, message: ShardMessage) {
        if let Some(pair) = self.member.as_mut().and_then(|member| member.pair(shard)) {
            pair.tell(message);
        }
    }

    /// Returns the number of shadows of other shards' sockets.
    pub fn shadows(&self) -> usize {
        self.member.as_ref().map_or(0, |member| member.shadows.len())
    }

    /// Returns whether other shards have sockets on a UDP port.
    pub fn has_others_on(&self, port: u16) -> bool {
        self.member.as_ref().is_some_and(|member| {
            member.common.port_shards(false).get(port) & !(1 << member.id.0) != 0
        })
    }

    /// Returns whether a bit set contains this shard.
    pub fn is_in(&self, shards: u16) -> bool {
        self.member.as_ref().is_none_or(|member| shards & 1 << member.id.0 != 0)
    }

    /// Returns the peer shards in a bit set.
    pub fn others_in(&self, shards: u16) -> impl Iterator<Item = ShardId> + use<> {
        let own = self.member.as_ref().map(|member| member.id);
        let all = (0..u16::BITS as u8).filter(move |n| shards & 1 << n != 0).map(ShardId);
        all.filter(move |shard| Some(*shard) != own)
    }
}

/// State of one shard of a host.
#[derive(Debug)]
pub(crate) struct Member {
    pub id: ShardId,
    pub common: Arc<Common>,
    /// Rings to the peer shards, by shard number.
    pub pairs: Vec<Option<ShardPair>>,
    /// Flows that their owner does not have, because the program chose their port. Usually empty.
    pub excepted: HashMap<Flow, ShardId, Keyed>,
    /// Shadows of other shards' sockets, by the numbers of the sockets.
    pub shadows: BTreeMap<(PortProtocol, u32), u32>,
    /// Sockets that wait for another shard to assign their flow to this one.
    pub claims: BTreeSet<u32>,
    /// Children not yet accepted whose listener no longer exists.
    pub forsaken: VecDeque<OfferedChild>,
    /// Listeners of other shards that no longer exist.
    pub gone: VecDeque<Elsewhere>,
    /// Number of changes seen so far.
    pub seen: u64,
    /// Number of updates taken from the first shard so far.
    pub heard: u64,
    /// Entries taken from the rings; the allocation is reused.
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

    /// Returns the shard that has a flow, or would get it if the flow were opened.
    #[inline]
    pub fn home(&self, flow: &Flow) -> ShardId {
        self.home_of_hashed(flow, self.common.owners.hash(flow))
    }

    /// Returns the shard of a flow with this hash.
    #[inline]
    pub fn home_of_hashed(&self, flow: &Flow, hash: u64) -> ShardId {
        let excepted = (!self.excepted.is_empty()).then(|| self.excepted.get(flow)).flatten();
        excepted.copied().unwrap_or_else(|| self.common.owners.of_hash(hash))
    }

    /// Creates the state of a listener that will be announced to all shards.
    pub fn original(&self, note: ListenerNote) -> AmongShards {
        let room = Arc::default();
        AmongShards::Original { room, turned_away: 0, told_last: self.id, note }
    }

    /// Returns all shards, as a bit set.
    pub fn everybody(&self) -> u16 {
        (0..self.pairs.len()).fold(0, |all, shard| all | 1 << shard)
    }

    pub fn pair(&mut self, shard: ShardId) -> Option<&mut ShardPair> {
        self.pairs.get_mut(shard.index())?.as_mut()
    }

    /// Returns whether mail has arrived, or waits to be sent.
    pub fn has_work(&self) -> bool {
        let pairs = || self.pairs.iter().flatten();
        !self.forsaken.is_empty()
            || !self.gone.is_empty()
            || self.common.update_queue(self.id).has_more(self.heard)
            || pairs().any(|pair| pair.has_mail() || pair.has_waiting())
    }
}
