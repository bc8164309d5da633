//! Descriptor budget shared by the flows of all gateways of a host.
//!
//! TCP flows and UDP flows of the program take descriptors from one [`FlowBudget`], so that either
//! kind can use all free ones. A small part is reserved for the program, because clients of
//! published ports can open idle connections.
//!
//! Established TCP connections are never evicted. Therefore the number of connections of a client
//! address is at most [`CLIENT_PART`] times the number of free descriptors. The bound leaves room
//! for clients with few connections. Echo flows and DNS queries have separate limits, so that a
//! program with many connections can still resolve names.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::process::{Resource, getrlimit};

use crate::client::Client;
use crate::limits::{
    CLIENT_PART, DESCRIPTORS_RESERVED, DESCRIPTORS_RESERVED_PART, DNS_QUERIES_MAX, ECHO_FLOWS_MAX,
    FLOWS_LEFT_TO_PROGRAM, SMALL_PART, TCP_FLOWS_MAX, UDP_CLIENTS_MAX, UDP_FLOWS_MAX,
};

/// Limits on the flows of all gateways of a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FlowsMax {
    /// Maximum number of TCP flows and UDP flows of the program, whose descriptors come from the
    /// [`FlowBudget`].
    pub(crate) all: usize,
    pub(crate) tcp: usize,
    /// Maximum number of TCP flows from clients of published ports.
    pub(crate) clients: usize,
    pub(crate) udp: usize,
    pub(crate) udp_clients: usize,
    pub(crate) echo: usize,
    pub(crate) dns: usize,
    /// Descriptor limit of the process (RLIMIT_NOFILE), reported to the user if it determines
    /// `tcp`. `None` if [`TCP_FLOWS_MAX`] determines `tcp`.
    pub(crate) descriptors: Option<u64>,
}

impl FlowsMax {
    /// Computes the limits. `descriptors` is the number of descriptors that the gateways may use;
    /// `None` means the process's limit (RLIMIT_NOFILE).
    pub(crate) fn new(descriptors: Option<u32>) -> Self {
        let limit = getrlimit(Resource::Nofile);
        let count = descriptors.map(u64::from).or(limit.current);
        let count = count.and_then(|n| usize::try_from(n).ok()).unwrap_or(usize::MAX);
        let max = Self::of(count);
        let is_bound = max.clients < Self::of(usize::MAX).clients;
        Self { descriptors: limit.maximum.filter(|_| is_bound), ..max }
    }

    fn of(descriptors: usize) -> Self {
        let reserved = (descriptors / DESCRIPTORS_RESERVED_PART).max(DESCRIPTORS_RESERVED);
        let left = descriptors.saturating_sub(reserved);
        let echo = ECHO_FLOWS_MAX.min(left / SMALL_PART).max(1);
        let dns = DNS_QUERIES_MAX.min(left / SMALL_PART).max(1);
        let all = left.saturating_sub(echo + dns).max(1);
        let tcp = TCP_FLOWS_MAX.min(all);
        Self {
            all,
            tcp,
            clients: clients_of(tcp),
            udp: UDP_FLOWS_MAX.min(all / 4).max(1),
            udp_clients: UDP_CLIENTS_MAX,
            echo,
            dns,
            descriptors: None,
        }
    }

    /// Returns the limits for one of `gateways` gateways. Limits that are part of the shared
    /// [`FlowBudget`] are not divided.
    pub(crate) fn of_one_of(self, gateways: usize) -> Self {
        let share = |all: usize| (all / gateways).max(1);
        let Self { udp, udp_clients, echo, dns, .. } = self;
        Self {
            udp: share(udp),
            udp_clients: share(udp_clients),
            echo: share(echo),
            dns: share(dns),
            ..self
        }
    }
}

/// Returns how many of `tcp` flows may belong to clients of published ports.
fn clients_of(tcp: usize) -> usize {
    tcp - tcp / FLOWS_LEFT_TO_PROGRAM
}

/// Kind of flow that uses a descriptor. A flow of kind `k` is counted in
/// [`FlowBudget::counts`]`[k as usize]` and in all elements after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Whose {
    /// TCP connection from a client of a published port.
    Client,
    /// TCP connection that the program has initiated.
    Program,
    /// UDP flow that the program has initiated.
    Datagrams,
}

/// Numbers of descriptors in use by flows, with their limits.
#[derive(Debug)]
pub(crate) struct FlowBudget {
    all: BoundedCount,
    tcp: BoundedCount,
    clients: BoundedCount,
    descriptors: Option<u64>,
    /// Number of TCP connections of each client to which the per-client limit applies
    /// ([`Client::has_share`]).
    by_client: Mutex<HashMap<Client, usize>>,
}

/// Counter that cannot exceed `max`.
#[derive(Debug)]
struct BoundedCount {
    now: AtomicUsize,
    max: AtomicUsize,
}

/// Reservation of one descriptor for a flow; released on drop.
#[derive(Debug)]
pub(crate) struct Share {
    budget: Arc<FlowBudget>,
    whose: Whose,
    /// Client whose number of connections includes this reservation; `None` without a per-client
    /// limit.
    client: Option<Client>,
}

impl FlowBudget {
    pub(crate) fn new(max: &FlowsMax) -> Arc<Self> {
        Arc::new(Self {
            all: BoundedCount::new(max.all),
            tcp: BoundedCount::new(max.tcp),
            clients: BoundedCount::new(max.clients),
            descriptors: max.descriptors,
            by_client: Mutex::default(),
        })
    }

    /// Reserves a descriptor for a flow. Returns `None` if a limit is reached.
    pub(crate) fn take(self: &Arc<Self>, whose: Whose) -> Option<Share> {
        let counts = self.counts();
        let counts = &counts[whose as usize..];
        for (n, count) in counts.iter().enumerate() {
            if !count.add() {
                counts[..n].iter().for_each(|count| count.subtract());
                return None;
            }
        }
        Some(Share { budget: Arc::clone(self), whose, client: None })
    }

    fn by_client(&self) -> MutexGuard<'_, HashMap<Client, usize>> {
        self.by_client.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lowers the limit on TCP flows of all gateways of the host.
    pub(crate) fn limit_tcp(&self, max: usize) {
        let max = max.min(self.tcp.max.load(Relaxed));
        self.tcp.max.store(max, Relaxed);
        self.clients.max.store(clients_of(max), Relaxed);
    }

    /// Returns the number of TCP connections: for `Whose::Client` those of published ports'
    /// clients, otherwise all.
    pub(crate) fn len(&self, whose: Whose) -> usize {
        let count = if whose == Whose::Client { &self.clients } else { &self.tcp };
        count.now.load(Relaxed)
    }

    /// Returns the number of TCP connections of a client of published ports.
    pub(crate) fn of_client(&self, client: Client) -> usize {
        self.by_client().get(&client).copied().unwrap_or(0)
    }

    /// Returns the descriptor limit of the process if it limits TCP flows
    /// ([`FlowsMax::descriptors`]).
    pub(crate) fn descriptors(&self) -> Option<u64> {
        self.descriptors
    }

    /// Returns the counters of this reservation, the narrowest scope first. If a limit is reached,
    /// `take` fails before it has incremented a counter with a wider scope.
    fn counts(&self) -> [&BoundedCount; 3] {
        [&self.clients, &self.tcp, &self.all]
    }
}

impl Share {
    /// Assigns the reservation to a TCP flow of `client`. Returns `None` if the client has reached
    /// its maximum.
    pub(crate) fn of(mut self, client: Client) -> Option<Self> {
        if client.has_share() {
            let counts = self.budget.counts();
            let free = counts[self.whose as usize..].iter().map(|count| count.free()).min();
            // Add one, because the descriptor of this reservation was free before.
            let most = free.unwrap_or(0).saturating_add(1).saturating_mul(CLIENT_PART);
            let mut by_client = self.budget.by_client();
            let flows = by_client.entry(client).or_default();
            if *flows >= most {
                return None;
            }
            *flows += 1;
            drop(by_client);
            self.client = Some(client);
        }
        Some(self)
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        if let Some(client) = self.client {
            let mut by_client = self.budget.by_client();
            if let Some(flows) = by_client.get_mut(&client) {
                *flows -= 1;
                if *flows == 0 {
                    by_client.remove(&client);
                }
            }
        }
        let counts = self.budget.counts();
        counts[self.whose as usize..].iter().for_each(|count| count.subtract());
    }
}

impl BoundedCount {
    fn new(max: usize) -> Self {
        Self { now: AtomicUsize::new(0), max: AtomicUsize::new(max) }
    }

    /// Increments the counter; returns false if the limit is reached.
    fn add(&self) -> bool {
        let max = self.max.load(Relaxed);
        let more = |now: usize| (now < max).then_some(now + 1);
        self.now.fetch_update(Relaxed, Relaxed, more).is_ok()
    }

    fn free(&self) -> usize {
        self.max.load(Relaxed).saturating_sub(self.now.load(Relaxed))
    }

    fn subtract(&self) {
        self.now.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_are_left_for_the_processes_of_the_run_and_most_others_are_for_clients() {
        for descriptors in [512, 1_024, 4_096, 20_000] {
            let max = FlowsMax::of(descriptors);
            let all = max.all + max.echo + max.dns;
            assert!(all <= descriptors - (descriptors / 16).max(64), "{descriptors}");
            assert!(max.clients >= descriptors / 5 * 3, "{descriptors}: {max:?}");
            assert!(max.tcp - max.clients >= max.tcp / 8, "{descriptors}");
            for gateways in [2, 16] {
                let one = max.of_one_of(gateways);
                assert!((one.echo + one.dns) * gateways <= (max.echo + max.dns).max(2 * gateways));
                // The TCP limits are shared by all gateways, and not divided among them.
                assert_eq!((one.all, one.tcp, one.clients), (max.all, max.tcp, max.clients));
            }
        }
    }

    #[test]
    fn few_descriptors_leave_a_flow_of_each_kind() {
        for descriptors in 0..70 {
            let FlowsMax { all, tcp, clients, udp, echo, dns, .. } = FlowsMax::of(descriptors);
            assert!([all, tcp, clients, udp, echo, dns].iter().all(|max| *max >= 1));
        }
    }

    #[test]
    fn clients_leave_a_part_and_what_ends_is_given_back() {
        let max = FlowsMax { all: 20, tcp: 16, clients: 14, ..FlowsMax::of(1_024) };
        let budget = FlowBudget::new(&max);
        let all = |whose| std::iter::from_fn(|| budget.take(whose)).collect::<Vec<_>>();
        let clients = all(Whose::Client);
        assert_eq!(clients.len(), 14);
        let own = all(Whose::Program);
        assert_eq!((own.len(), budget.len(Whose::Program)), (2, 16));
        assert_eq!(all(Whose::Datagrams).len(), 4);
        let datagrams = all(Whose::Datagrams);
        drop(clients);
        // A refused reservation must not change the counters.
        assert_eq!(all(Whose::Client).len(), 14);
        drop((own, datagrams));
        assert_eq!(all(Whose::Datagrams).len(), 20);
        budget.limit_tcp(8);
        assert_eq!(all(Whose::Client).len(), 7);
        assert_eq!(all(Whose::Program).len(), 8);
    }

    #[test]
    fn one_client_leaves_a_part_to_others() {
        let max = FlowsMax { all: 160, tcp: 160, clients: 140, ..FlowsMax::of(1_024) };
        let budget = FlowBudget::new(&max);
        let take = |client| budget.take(Whose::Program)?.of(client);
        let all = |client| std::iter::from_fn(|| take(client)).collect::<Vec<_>>();
        let client = |last: u8| Client::at([192, 0, 2, last].into());
        let first = all(client(1));
        assert_eq!(first.len(), 140, "seven of eight");
        let second = all(client(2));
        assert_eq!(second.len(), 18, "of 20 that are left");
        assert!(take(client(1)).is_none());
        // A client without connections may use any free descriptor.
        let third = [3, 4].map(|last| take(client(last)).expect("a place"));
        assert!(take(client(5)).is_none());
        assert_eq!(budget.len(Whose::Program), 160);
        drop((first, second, third));
        assert!(budget.by_client().is_empty());
        // The per-client limit does not apply to the program.
        assert_eq!(all(Client::PROGRAM).len(), 160);
    }
}
