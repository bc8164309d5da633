//! Queues of clients that wait because the accept queues of the program's listeners are full.
//!
//! The program's stack drops a SYN while the accept queue is full, and does not signal when there
//! is room. If each client retransmitted its SYN, clients would overtake each other and send many
//! useless packets. Therefore clients are queued in order of arrival, and only the first one
//! retransmits. Whenever a client is connected, the next two leave the queue and send their SYNs.
//! Thus the number of SYNs doubles per round trip while there is room, as in slow start.
//!
//! ```text
//!   first SYN ── no answer ──► line, by arrival ── first: SYN after 1, 2, 4 … 50 ms
//!       │                        ▲      │ called: two for each client that gets in
//!       │           no answer ───┘◄─────┘
//!       └── answer ──► out
//! ```

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;

use crate::limits::{SYN_WAIT_NS, SYN_WAIT_NS_MAX};
use crate::slab::SlabKey;

/// Queues of clients, by the program's address and port. Empty queues are removed, so there are at
/// most as many queues as published ports.
#[derive(Debug, Default)]
pub(crate) struct ClientLines {
    lines: HashMap<SocketAddr, Line>,
    arrivals: u64,
}

/// Arrival number of a client. Clients in a queue are sorted by this number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ClientArrival(u64);

#[derive(Debug, Default)]
struct Line {
    waiting: BTreeMap<ClientArrival, SlabKey>,
    /// Number of consecutive SYNs of the first client that were not answered. Stops at the number
    /// with which the wait reaches its maximum.
    in_vain: u32,
}

impl ClientLines {
    /// Assigns the next arrival number to a client.
    pub(crate) fn arrival(&mut self) -> ClientArrival {
        self.arrivals += 1;
        ClientArrival(self.arrivals)
    }

    /// Returns whether no client waits for the program's listener at this address.
    pub(crate) fn is_empty(&self, program: SocketAddr) -> bool {
        !self.lines.contains_key(&program)
    }

    /// Adds a client to the queue whose SYN was not answered. If the client is already in the
    /// queue, doubles the time until the next SYN instead.
    pub(crate) fn enter(&mut self, program: SocketAddr, arrival: ClientArrival, key: SlabKey) {
        let line = self.lines.entry(program).or_default();
        if line.waiting.insert(arrival, key).is_some() {
            line.in_vain += u32::from(SYN_WAIT_NS << line.in_vain < SYN_WAIT_NS_MAX);
        }
    }

    /// Removes a client from the queue.
    pub(crate) fn leave(&mut self, program: SocketAddr, arrival: ClientArrival) {
        if let Some(line) = self.lines.get_mut(&program) {
            line.waiting.remove(&arrival);
            if line.waiting.is_empty() {
                self.lines.remove(&program);
            }
        }
    }

    /// Returns the first client of the queue.
    pub(crate) fn first(&self, program: SocketAddr) -> Option<SlabKey> {
        self.lines.get(&program)?.waiting.values().next().copied()
    }

    /// Removes and returns the first client of the queue, which then sends its SYN.
    pub(crate) fn call(&mut self, program: SocketAddr) -> Option<SlabKey> {
        let (arrival, key) = self.lines.get(&program)?.waiting.first_key_value()?;
        let (arrival, key) = (*arrival, *key);
        self.leave(program, arrival);
        Some(key)
    }

    /// Returns the time in ns to wait for an answer to the first client's next SYN. The time
    /// doubles with each unanswered SYN, until a client is connected.
    pub(crate) fn wait_ns(&self, program: SocketAddr) -> u64 {
        let in_vain = self.lines.get(&program).map_or(0, |line| line.in_vain);
        (SYN_WAIT_NS << in_vain).min(SYN_WAIT_NS_MAX)
    }

    /// Resets the wait to its initial value, because the program's stack accepted a client.
    pub(crate) fn on_place(&mut self, program: SocketAddr) {
        if let Some(line) = self.lines.get_mut(&program) {
            line.in_vain = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slab::KeyedSlab;

    #[test]
    fn clients_are_called_in_the_order_in_which_they_came() {
        let (mut lines, mut slab) = (ClientLines::default(), KeyedSlab::new());
        let [http, other] = [80, 81].map(|port| SocketAddr::from(([10, 0, 2, 15], port)));
        let clients: Vec<_> = (0..5).map(|n| (lines.arrival(), slab.insert(n))).collect();
        for n in [3, 1, 4, 0] {
            lines.enter(http, clients[n].0, clients[n].1);
        }
        lines.enter(other, clients[2].0, clients[2].1);
        assert_eq!(lines.call(http), Some(clients[0].1));
        lines.leave(http, clients[3].0);
        assert_eq!(lines.call(http), Some(clients[1].1));
        // The SYN of the second client was not answered, so it enters the queue again.
        lines.enter(http, clients[1].0, clients[1].1);
        assert_eq!(lines.first(http), Some(clients[1].1));
        assert_eq!([lines.call(http), lines.call(http)], [1, 4].map(|n| Some(clients[n].1)));
        assert!(lines.call(http).is_none() && lines.is_empty(http) && !lines.is_empty(other));
    }

    #[test]
    fn the_first_client_waits_longer_each_time_until_one_gets_in() {
        let (mut lines, mut slab) = (ClientLines::default(), KeyedSlab::new());
        let http = SocketAddr::from(([10, 0, 2, 15], 80));
        let (arrival, key) = (lines.arrival(), slab.insert(0));
        let mut wait = || {
            lines.enter(http, arrival, key);
            lines.wait_ns(http) / SYN_WAIT_NS
        };
        assert_eq!([(); 8].map(|()| wait()), [1, 2, 4, 8, 16, 32, 50, 50]);
        lines.on_place(http);
        assert_eq!(lines.wait_ns(http), SYN_WAIT_NS);
        // Adding further clients to the queue does not change the wait.
        let next = lines.arrival();
        lines.enter(http, next, slab.insert(1));
        assert_eq!(lines.wait_ns(http), SYN_WAIT_NS);
    }
}
