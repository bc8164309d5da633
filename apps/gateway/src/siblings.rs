//! State shared by the sibling gateways of a host. Each shard (thread) of the program's stack has
//! its own gateway, which handles the packets that the shard sends.
//!
//! Flows are private to a gateway. The following state is shared:
//!
//! - The program sends segments through the shard that owns the flow, so a client's connection must
//!   be in that shard's gateway. A single gateway accepts all connections of a published port, and
//!   hands each to the gateway of the owning shard. `order` ensures that the program sees them in
//!   order.
//! - A single gateway receives all datagrams of clients of a published port, but answers leave
//!   through the shard of the program's socket. The gateway of that shard looks up the client at
//!   the first answer.
//! - A UDP port of the program maps to one host port, whichever shards its sockets are in.
//! - All gateways together report each notice to the user only once.
//!
//! Locks are taken only when flows begin and end, never per packet of a flow.

use std::collections::{HashMap, HashSet};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::event::{EventfdFlags, eventfd};
use towpath_shm::Fd;
use towpath_stack::Owners;

use crate::budget::{FlowBudget, Share};
use crate::config::Presented;
use crate::limits::HANDED_MAX;
use crate::mapping::Mappings;
use crate::order::FlightGuard;

/// Handle of one gateway to the state that it shares with the sibling gateways of the other shards.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) siblings: Arc<Siblings>,
    number: usize,
    /// Connections that sibling gateways have accepted and handed to this one; `None` if there are
    /// no siblings.
    inbox: Option<Receiver<Accepted>>,
    /// For each gateway, the number of connections that were given to it although any gateway could
    /// own them.
    given: Vec<u64>,
    /// Source port that was last chosen for a client whose own port cannot be used.
    port: u16,
}

/// State shared by all gateways of a host.
#[derive(Debug)]
pub(crate) struct Siblings {
    owners: Owners,
    pub(crate) budget: Arc<FlowBudget>,
    /// Inbox of each gateway for connections handed over. Empty if there is only one gateway.
    inboxes: Vec<SiblingInbox>,
    mappings: Mutex<Mappings>,
    clients: Mutex<HashMap<SiblingEnds, Arc<Client>>>,
    told: Mutex<HashSet<Topic>>,
}

#[derive(Debug)]
struct SiblingInbox {
    give: SyncSender<Accepted>,
    /// Eventfd that is signalled when a connection is handed over, or when a held connection no
    /// longer has to wait.
    bell: Arc<Fd>,
}

/// Accepted connection of a client of a published port.
#[derive(Debug)]
pub(crate) struct Accepted {
    pub(crate) host: Fd,
    pub(crate) client: IpAddr,
    pub(crate) presented: [Option<Presented>; 2],
    /// Reservation of the descriptor `host` in the flow budget.
    pub(crate) share: Share,
    /// Guard that delays later connections of the client until this one has reached the program.
    pub(crate) flight: Option<FlightGuard>,
}

/// Addresses of a flow: that of the program, and that of its peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct SiblingEnds {
    pub(crate) program: SocketAddr,
    pub(crate) peer: SocketAddr,
}

/// Client of a published UDP port, shared by all gateways.
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) listener: u32,
    pub(crate) address: SocketAddr,
    /// Host address to which the client last sent a datagram.
    host: Mutex<Option<IpAddr>>,
    /// Number of changes of `host`. Lets readers skip locking `host` while the number has not
    /// changed.
    moves: AtomicU32,
    /// Whether one gateway receives from the client, and another one sends the program's answers.
    answered: AtomicBool,
}

/// Reference of one gateway to a client, to which sibling gateways may refer as well.
#[derive(Debug)]
pub(crate) struct KnownClient {
    pub(crate) client: Arc<Client>,
    /// Value of `moves` when this gateway last read the client's `host`.
    seen: u32,
}

/// Subjects of notices. The user gets only one notice for each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Topic {
    Ping,
    /// Clients of published ports are refused because the flow limit is reached.
    ClientsRefused,
    /// Connections of the program wait because the flow limit is reached.
    ConnectionsWait,
    /// A client has reached the maximum number of TCP flows per client.
    ClientFull,
    /// The gateway's own connections are routed back to the gateway.
    Loop,
    /// No program listens on this published TCP port.
    Tcp(u16),
    /// No program receives the datagrams of this listener.
    Udp(u32),
}

impl Place {
    /// Creates the handle of a gateway without siblings.
    pub(crate) fn alone(budget: Arc<FlowBudget>) -> Self {
        let siblings = Siblings::new(Owners::new(&[0; 32], 1), budget, Vec::new());
        Self { siblings: Arc::new(siblings), number: 0, inbox: None, given: vec![0], port: 0 }
    }

    /// Creates a handle for the gateway of each shard.
    ///
    /// # Errors
    /// Returns an error if an eventfd cannot be created.
    pub(crate) fn all(owners: Owners, budget: Arc<FlowBudget>) -> io::Result<Vec<Self>> {
        if owners.count() == 1 {
            return Ok(vec![Self::alone(budget)]);
        }
        let (mut inboxes, mut receivers) = (Vec::new(), Vec::new());
        let count = owners.count();
        for _ in 0..count {
            let (give, inbox) = sync_channel(HANDED_MAX);
            let bell = Fd::from(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
            inboxes.push(SiblingInbox { give, bell: Arc::new(bell) });
            receivers.push(inbox);
        }
        let siblings = Arc::new(Siblings::new(owners, budget, inboxes));
        let place = |(number, inbox)| {
            let siblings = Arc::clone(&siblings);
            Self { siblings, number, inbox: Some(inbox), given: vec![0; count], port: 0 }
        };
        Ok(receivers.into_iter().enumerate().map(place).collect())
    }

    pub(crate) fn is_alone(&self) -> bool {
        self.inbox.is_none()
    }

    /// Returns the number of gateways.
    pub(crate) fn count(&self) -> usize {
        self.siblings.owners.count()
    }

    /// Returns the index of this gateway.
    pub(crate) fn number(&self) -> usize {
        self.number
    }

    /// Returns whether this gateway accepts from the published port with the index `listener`.
    pub(crate) fn listens(&self, listener: usize) -> bool {
        listener % self.count() == self.number
    }

    /// Returns the eventfd that becomes readable when a sibling hands over a connection, or when a
    /// held connection no longer has to wait.
    pub(crate) fn notifier(&self) -> Option<&Arc<Fd>> {
        self.siblings.inboxes.get(self.number).map(|inbox| &inbox.bell)
    }

    /// Returns the index of the gateway that must own a connection. Returns `None` if the program
    /// does not see the client's real port. Any gateway can then choose a port that leads to
    /// itself.
    pub(crate) fn owner(&self, accepted: &Accepted) -> Option<usize> {
        let first = accepted.presented[0].filter(|first| first.client.port() != 0)?;
        Some(self.siblings.owners.owner(first.client, first.program).index())
    }

    /// Returns the index of the gateway that was given the fewest connections, as counted by
    /// [`Self::note_given`].
    pub(crate) fn least_given(&self) -> usize {
        let least = self.given.iter().enumerate().min_by_key(|(_, given)| **given);
        least.map_or(self.number, |(owner, _)| owner)
    }

    /// Counts a connection that was given to the gateway `owner`, although any gateway could own
    /// it.
    pub(crate) fn note_given(&mut self, owner: usize) {
        if let Some(given) = self.given.get_mut(owner) {
            *given += 1;
        }
    }

    /// Hands a connection to the gateway `to`. Returns the connection if that gateway's inbox is
    /// full.
    pub(crate) fn hand_over(&self, to: usize, accepted: Accepted) -> Option<Accepted> {
        let Some(inbox) = self.siblings.inboxes.get(to) else { return Some(accepted) };
        match inbox.give.try_send(accepted) {
            Ok(()) => {
                // Ignore errors: the write fails only if the eventfd's counter is at its maximum.
                // Then the eventfd is already readable.
                let _ = rustix::io::write(inbox.bell.as_fd(), &1u64.to_ne_bytes());
                None
            }
            Err(TrySendError::Full(accepted)) => Some(accepted),
            // The receiving gateway has ended. Dropping the connection resets it.
            Err(TrySendError::Disconnected(_)) => None,
        }
    }

    /// Takes the next connection that a sibling gateway has handed to this one.
    pub(crate) fn take(&self) -> Option<Accepted> {
        self.inbox.as_ref()?.try_recv().ok()
    }

    /// Returns the next address of `ip` with a port in `range` for which this gateway's shard owns
    /// the flow to the program. Tries at most `tries` ports, the remainder of the caller's
    /// [`PORTS_TRIED_MAX`](crate::limits::PORTS_TRIED_MAX).
    pub(crate) fn next_port(
        &mut self,
        ip: IpAddr,
        program: SocketAddr,
        range: &RangeInclusive<u16>,
        tries: &mut usize,
    ) -> Option<SocketAddr> {
        while let Some(left) = tries.checked_sub(1) {
            *tries = left;
            let next = self.port.checked_add(1).filter(|port| range.contains(port));
            self.port = next.unwrap_or(*range.start());
            let client = SocketAddr::new(ip, self.port);
            if self.siblings.owners.owner(client, program).index() == self.number {
                return Some(client);
            }
        }
        None
    }
}

impl Siblings {
    fn new(owners: Owners, budget: Arc<FlowBudget>, inboxes: Vec<SiblingInbox>) -> Self {
        let (mappings, clients, told) = Default::default();
        Self { owners, budget, inboxes, mappings, clients, told }
    }

    /// Locks the mapping of the program's UDP ports to host ports.
    pub(crate) fn mappings(&self) -> MutexGuard<'_, Mappings> {
        self.mappings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether `topic` was not reported to the user before, and records it as reported.
    pub(crate) fn is_first(&self, topic: Topic) -> bool {
        self.told.lock().unwrap_or_else(PoisonError::into_inner).insert(topic)
    }

    /// Registers the client of the flow between `ends`, so that sibling gateways find it. Returns
    /// `None` if there are no siblings.
    ///
    /// # Errors
    /// Fails if another client has these endpoints.
    pub(crate) fn register(
        &self,
        ends: SiblingEnds,
        (listener, address): (u32, SocketAddr),
        host: Option<IpAddr>,
    ) -> Result<Option<KnownClient>, Taken> {
        if self.inboxes.is_empty() {
            return Ok(None);
        }
        let new = || Client {
            listener,
            address,
            host: Mutex::new(host),
            moves: AtomicU32::new(0),
            answered: AtomicBool::new(false),
        };
        let mut clients = self.clients();
        // The entry may already exist, because a sibling gateway still uses it after this gateway
        // has dropped its flow.
        let client = clients.entry(ends).or_insert_with(|| Arc::new(new()));
        if (client.listener, client.address) != (listener, address) {
            return Err(Taken);
        }
        let known = KnownClient { client: Arc::clone(client), seen: 0 };
        drop(clients);
        known.client.moved_to(host);
        Ok(Some(known))
    }

    /// Looks up the client of the flow between `ends` that a sibling gateway has registered.
    pub(crate) fn client(&self, ends: &SiblingEnds) -> Option<KnownClient> {
        if self.inboxes.is_empty() {
            return None;
        }
        let client = Arc::clone(self.clients().get(ends)?);
        // Choose `seen` different from `moves`, so that the first call of `updates` returns the
        // address.
        let seen = client.moves.load(Ordering::Acquire).wrapping_sub(1);
        Some(KnownClient { client, seen })
    }

    /// Drops a gateway's reference to a client. Dropping the last reference removes the client from
    /// the table.
    pub(crate) fn forget(&self, ends: &SiblingEnds, known: &KnownClient) {
        let mut clients = self.clients();
        let is_last = |client: &Arc<Client>| {
            // If the count is 2, only the table and the flow that is ending refer to the client.
            Arc::ptr_eq(client, &known.client) && Arc::strong_count(client) == 2
        };
        if clients.get(ends).is_some_and(is_last) {
            clients.remove(ends);
        }
    }

    fn clients(&self) -> MutexGuard<'_, HashMap<SiblingEnds, Arc<Client>>> {
        self.clients.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Error: another client already has a flow with the same addresses.
#[derive(Debug)]
pub(crate) struct Taken;

impl Client {
    /// Stores the host address to which the client now sends.
    pub(crate) fn moved_to(&self, host: Option<IpAddr>) {
        let mut known = self.host.lock().unwrap_or_else(PoisonError::into_inner);
        if *known != host {
            *known = host;
            // Release ordering: a reader that sees the new count also sees the new address.
            self.moves.fetch_add(1, Ordering::Release);
        }
    }

    /// Marks the client as answered by the program.
    pub(crate) fn set_answered(&self) {
        self.answered.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_answered(&self) -> bool {
        self.answered.load(Ordering::Relaxed)
    }
}

impl KnownClient {
    /// Returns the host address to which the client sends, if it has changed since the last call.
    pub(crate) fn updates(&mut self) -> Option<Option<IpAddr>> {
        let moves = self.client.moves.load(Ordering::Acquire);
        (moves != self.seen).then(|| {
            self.seen = moves;
            *self.client.host.lock().unwrap_or_else(PoisonError::into_inner)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budget::FlowsMax;

    fn budget() -> Arc<FlowBudget> {
        FlowBudget::new(&FlowsMax::new(None))
    }

    fn addr(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    fn ends() -> SiblingEnds {
        SiblingEnds { program: addr("10.0.2.15:53"), peer: addr("192.0.2.1:4000") }
    }

    #[test]
    fn a_client_is_known_until_the_last_gateway_has_forgotten_it() {
        let places = Place::all(Owners::new(&[1; 32], 4), budget()).unwrap();
        let siblings = &places[0].siblings;
        let (client, host) = ((0, addr("192.0.2.1:4000")), Some(addr("192.0.2.9:53").ip()));
        assert!(siblings.client(&ends()).is_none());
        let here = siblings.register(ends(), client, host).unwrap().unwrap();
        let other = (0, addr("192.0.2.2:4000"));
        assert!(siblings.register(ends(), other, host).is_err(), "another client's");
        let mut there = siblings.client(&ends()).unwrap();
        assert_eq!((there.updates(), there.updates()), (Some(host), None));
        here.client.moved_to(None);
        assert_eq!((there.updates(), there.updates()), (Some(None), None));
        siblings.forget(&ends(), &here);
        drop(here);
        assert!(siblings.client(&ends()).is_some(), "one answers it still");
        siblings.forget(&ends(), &there);
        assert!(siblings.client(&ends()).is_none());
    }

    #[test]
    fn ports_are_those_of_the_owner_and_not_beyond_the_range() {
        let mut places = Place::all(Owners::new(&[1; 32], 16), budget()).unwrap();
        let (program, range) = (addr("10.0.2.15:80"), 60_000..=60_099);
        let mut all = Vec::new();
        for place in &mut places {
            let mut tries = 100;
            let ip = addr("10.0.2.2:0").ip();
            while let Some(client) = place.next_port(ip, program, &range, &mut tries) {
                all.push(client.port());
            }
        }
        all.sort();
        // Each port has exactly one owning gateway, so the lists together contain each port once.
        assert_eq!(all, range.collect::<Vec<_>>());
    }
}
