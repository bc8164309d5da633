//! Queries of other threads about sockets, counters and the network layer.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use towpath_pool::Port;
use towpath_stack::IfaceId;
use towpath_stack::net::Traffic;
use towpath_tcp::TcpDefaults;

use crate::config::ResolverConfig;
use crate::net::NetState;
use crate::query::{ListingProgress, Portion, Query, QueryTarget};
use crate::report::{Counters, SocketEntry};

/// Query that lists sockets, for [`crate::Remote::sockets`].
#[derive(Debug, Clone, Default)]
pub(crate) struct SocketsQuery {
    progress: ListingProgress,
}

impl Query for SocketsQuery {
    type Part = Vec<SocketEntry>;
    type Answer = Vec<SocketEntry>;

    fn ask(&mut self, shard: &mut dyn QueryTarget) -> Portion<Self::Part> {
        let entries = shard.list_sockets(&mut self.progress);
        if self.progress.is_done { Portion::Last(entries) } else { Portion::More(entries) }
    }

    fn join(parts: Vec<Self::Part>) -> Self::Answer {
        parts.into_iter().flatten().collect()
    }
}

/// Query for the counters of the shards, for [`crate::Remote::counters`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct CountersQuery;

impl Query for CountersQuery {
    type Part = Counters;
    type Answer = Counters;

    fn ask(&mut self, shard: &mut dyn QueryTarget) -> Portion<Self::Part> {
        Portion::Last(shard.counters())
    }

    fn join(parts: Vec<Self::Part>) -> Self::Answer {
        let mut all = Counters::default();
        parts.into_iter().for_each(|part| all.add(part));
        all
    }
}

/// Query for the number of bytes and packets that were not sent yet.
#[derive(Debug, Clone, Copy)]
pub(crate) struct UnsentQuery;

impl Query for UnsentQuery {
    type Part = u64;
    type Answer = u64;

    fn ask(&mut self, shard: &mut dyn QueryTarget) -> Portion<Self::Part> {
        Portion::Last(shard.unsent())
    }

    fn join(parts: Vec<Self::Part>) -> Self::Answer {
        parts.iter().sum()
    }
}

/// Query for the state of the network layer, for [`crate::Remote::net`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct NetQuery;

/// Answer of one shard to a [`NetQuery`].
#[derive(Debug)]
pub(crate) enum NetPart {
    /// The first shard's answer: the state of the network layer, with the traffic counters of the
    /// first shard (event loop).
    First(Box<NetState>),
    /// Answer of a further shard: its traffic counters.
    Traffic(Vec<Traffic>),
}

impl Query for NetQuery {
    type Part = NetPart;
    /// The combined answer. `None` if the first shard has not answered, because the engine has
    /// ended.
    type Answer = Option<NetState>;

    fn ask(&mut self, shard: &mut dyn QueryTarget) -> Portion<Self::Part> {
        let now = shard.now();
        Portion::Last(match shard.number() {
            0 => NetPart::First(Box::new(NetState::of(shard.net(), now))),
            _ => NetPart::Traffic(shard.net().traffic().to_vec()),
        })
    }

    fn join(parts: Vec<Self::Part>) -> Self::Answer {
        let (mut state, mut others) = (None, Vec::new());
        for part in parts {
            match part {
                NetPart::First(first) => state = Some(*first),
                NetPart::Traffic(traffic) => others.push(traffic),
            }
        }
        let mut state = state?;
        others.iter().for_each(|traffic| state.add(traffic));
        Some(state)
    }
}

/// Query with an empty answer. The query waits until every shard has executed all earlier commands,
/// and uses the latest configuration of the network layer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SettleQuery;

impl Query for SettleQuery {
    type Part = ();
    type Answer = ();

    fn ask(&mut self, shard: &mut dyn QueryTarget) -> Portion<Self::Part> {
        shard.net().catch_up();
        Portion::Last(())
    }

    fn join(_: Vec<Self::Part>) -> Self::Answer {}
}

/// Query that sets the nameserver of programs in each shard.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SetResolverQuery(pub Option<ResolverConfig>);

impl Query for SetResolverQuery {
    type Part = ();
    type Answer = ();

    fn ask(&mut self, shard: &mut dyn QueryTarget) -> Portion<Self::Part> {
        shard.set_resolver(self.0);
        Portion::Last(())
    }

    fn join(_: Vec<Self::Part>) -> Self::Answer {}
}

/// Query that changes the TCP settings of new connections in each shard (event loop).
#[derive(Debug, Clone, Copy)]
pub(crate) struct ChangeTcpQuery<F>(pub F);

impl<F: Fn(&mut TcpDefaults) + Clone + Send + 'static> Query for ChangeTcpQuery<F> {
    type Part = ();
    type Answer = ();

    fn ask(&mut self, shard: &mut dyn QueryTarget) -> Portion<Self::Part> {
        let mut defaults = shard.tcp_defaults();
        (self.0)(&mut defaults);
        shard.set_tcp_defaults(&defaults);
        Portion::Last(())
    }

    fn join(_: Vec<Self::Part>) -> Self::Answer {}
}

/// The port of an interface for one shard (event loop); `None` after the shard has taken it.
type PortOfShard = Option<Box<dyn Port + Send>>;

/// Query that gives each shard (event loop) its port of an added interface.
#[derive(Clone)]
pub(crate) struct AttachQuery {
    iface: IfaceId,
    /// Ports by number of the shard (event loop) that takes them.
    ports: Arc<Mutex<Vec<PortOfShard>>>,
}

impl AttachQuery {
    pub fn new(iface: IfaceId, ports: Vec<Box<dyn Port + Send>>) -> Self {
        let ports = ports.into_iter().map(Some).collect();
        Self { iface, ports: Arc::new(Mutex::new(ports)) }
    }
}

impl Query for AttachQuery {
    type Part = io::Result<()>;
    type Answer = io::Result<()>;

    fn ask(&mut self, shard: &mut dyn QueryTarget) -> Portion<Self::Part> {
        let number = shard.number() as usize;
        let mut ports = self.ports.lock().unwrap_or_else(PoisonError::into_inner);
        let port = ports.get_mut(number).and_then(Option::take);
        drop(ports);
        Portion::Last(port.map_or(Ok(()), |port| shard.attach(self.iface, port)))
    }

    fn join(parts: Vec<Self::Part>) -> Self::Answer {
        parts.into_iter().collect()
    }
}

/// Query that removes the ports of a removed interface from all shards. The querying thread drops
/// the ports, because closing a device may take long.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DetachQuery(pub IfaceId);

impl Query for DetachQuery {
    type Part = Option<Box<dyn Port + Send>>;
    type Answer = Vec<Box<dyn Port + Send>>;

    fn ask(&mut self, shard: &mut dyn QueryTarget) -> Portion<Self::Part> {
        Portion::Last(shard.detach(self.0))
    }

    fn join(parts: Vec<Self::Part>) -> Self::Answer {
        parts.into_iter().flatten().collect()
    }
}
