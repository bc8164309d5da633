//! Order in which clients' connections to a published port reach the program.
//!
//! Programs rely on the order of connections of one client: iperf3, for example, identifies its
//! streams by their order. However, the gateways of several shards connect to the program
//! concurrently. Therefore, the accepting gateway gives successive connections of a client to one
//! gateway (a *run*), before it gives further connections to another gateway. A *flight* is a
//! connection that has not reached the program yet:
//!
//! ```text
//!  accepted ─► run: those given to one gateway ─► flights: not with the program yet
//!     waits ◄── another gateway's turn, and flights are up
//! ```
//!
//! - Connections of one run do not wait for each other, because a gateway keeps their order.
//! - Connections that any gateway may own are distributed evenly: each gateway gets one run.
//! - Connections of one client do not wait for those of other clients, except behind a waiting
//!   connection in the accept queue.
//! - A connection waits for at most [`ORDER_WAIT_NS`]. A flight that takes longer delays no further
//!   connection.
//!
//! A flight ends when the program's stack has received the last packet of the handshake, and its
//! event loop has completed the iteration. Thus the stack sends its messages to other shards about
//! this connection before those about later connections.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use towpath_shm::Fd;

use crate::limits::{CLIENTS_IN_ORDER_MAX, ORDER_WAIT_NS};
use crate::siblings::Place;

/// Order in which the accepted connections of one published port reach the program.
#[derive(Debug, Default)]
pub(crate) struct Order {
    /// Latest run of each client. A run is a series of connections given to one gateway. All
    /// connections of a run may already have reached the program.
    runs: HashMap<IpAddr, Run>,
    /// Time in ns until which the next connection waits for earlier connections of its client;
    /// `None` if it does not wait.
    until_ns: Option<u64>,
}

/// A run: consecutive connections of one client that were given to the same gateway.
#[derive(Debug)]
struct Run {
    owner: usize,
    /// Number of further connections that this run may take. Connections that a particular gateway
    /// must own do not count.
    left: usize,
    flights: Arc<Flights>,
}

/// Counter of a run's flights: connections that have not reached the program yet.
#[derive(Debug)]
struct Flights {
    up: AtomicU32,
    /// Whether the accepting gateway waits for the last flight. If so, dropping the last guard
    /// notifies it.
    awaited: AtomicBool,
    bell: Arc<Fd>,
}

/// Guard of a flight: a connection that has not reached the program yet. Dropping the guard ends
/// the flight.
#[derive(Debug)]
pub(crate) struct FlightGuard(Arc<Flights>);

/// Decision of [`Order::next`] for a connection.
#[derive(Debug)]
pub(crate) enum Next {
    /// Give the connection to the gateway with this index, which keeps the guard until the program
    /// has the connection.
    Goes(usize, Option<FlightGuard>),
    /// Hold the connection, because it must wait. `since_now` is true if it did not wait until now.
    Waits { since_now: bool },
}

/// The next accepted connection that is to be given to a gateway.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Candidate {
    pub(crate) client: IpAddr,
    /// Index of the gateway that must own the connection; `None` if any gateway may own it.
    pub(crate) owner: Option<usize>,
    /// Number of accepted connections that are held, including this one.
    pub(crate) waiting: usize,
}

impl Order {
    /// Returns the time in ns until which the next connection waits. A signal on the eventfd may
    /// end the wait earlier.
    pub(crate) fn until_ns(&self) -> Option<u64> {
        self.until_ns
    }

    /// Decides whether the next connection may be given to a gateway now, and to which one.
    pub(crate) fn next(&mut self, next: Candidate, place: &mut Place, now_ns: u64) -> Next {
        let Candidate { client, owner, waiting } = next;
        if let Some(run) = self.runs.get_mut(&client) {
            if run.flights.are_up() && run.takes(owner, place) {
                self.until_ns = None;
                return Next::Goes(run.owner, Some(run.flights.one_more()));
            }
            let until = self.until_ns.unwrap_or(now_ns + ORDER_WAIT_NS);
            if now_ns < until && run.flights.are_awaited() {
                let since_now = self.until_ns.replace(until).is_none();
                return Next::Waits { since_now };
            }
        }
        self.until_ns = None;
        let Some(bell) = place.notifier() else { return Next::Goes(place.number(), None) };
        let flights = Flights::new(Arc::clone(bell));
        let flight = flights.one_more();
        let to = owner.unwrap_or_else(|| place.least_given());
        let mut run = Run { owner: to, left: waiting.div_ceil(place.count()), flights };
        run.takes(owner, place);
        self.make_room();
        if self.runs.len() < CLIENTS_IN_ORDER_MAX || self.runs.contains_key(&client) {
            self.runs.insert(client, run);
        }
        Next::Goes(to, Some(flight))
    }

    /// Removes clients without flights from the table if the table is full.
    fn make_room(&mut self) {
        if self.runs.len() >= CLIENTS_IN_ORDER_MAX {
            self.runs.retain(|_, run| run.flights.are_up());
        }
    }
}

impl Run {
    /// Returns whether a connection can be added to this run, and counts it. `owner` is the gateway
    /// that must own the connection, or `None` if any gateway may own it.
    fn takes(&mut self, owner: Option<usize>, place: &mut Place) -> bool {
        if let Some(owner) = owner {
            return owner == self.owner;
        }
        let Some(left) = self.left.checked_sub(1) else { return false };
        self.left = left;
        place.note_given(self.owner);
        true
    }
}

impl Flights {
    fn new(bell: Arc<Fd>) -> Arc<Self> {
        Arc::new(Self { up: AtomicU32::new(0), awaited: AtomicBool::new(false), bell })
    }

    fn one_more(self: &Arc<Self>) -> FlightGuard {
        self.up.fetch_add(1, Ordering::SeqCst);
        FlightGuard(Arc::clone(self))
    }

    fn are_up(&self) -> bool {
        self.up.load(Ordering::SeqCst) > 0
    }

    /// Returns whether flights of the run are pending. If so, the eventfd is signalled when the
    /// last one ends. Sequential consistency with [`FlightGuard::drop`] is needed: either the drop
    /// sees `awaited`, or this call sees that the flights have ended.
    fn are_awaited(&self) -> bool {
        self.awaited.store(true, Ordering::SeqCst);
        self.are_up()
    }
}

impl Drop for FlightGuard {
    fn drop(&mut self) {
        let Flights { up, awaited, bell } = &*self.0;
        if up.fetch_sub(1, Ordering::SeqCst) == 1 && awaited.load(Ordering::SeqCst) {
            // Ignore errors: the write fails only if the eventfd's counter is at its maximum. Then
            // the eventfd is already readable.
            let _ = rustix::io::write(bell.as_fd(), &1u64.to_ne_bytes());
        }
    }
}

/// Connections (flights) that are established, but whose last handshake packet the program's stack
/// has not processed yet.
#[derive(Debug, Default)]
pub(crate) struct Landings {
    new: Vec<FlightGuard>,
    /// Flights, each with the total number of packets that the program's stack must have taken from
    /// the link before the flight ends.
    marked: VecDeque<(u64, FlightGuard)>,
    /// Total number of packets that the program's stack has taken from the link.
    taken: u64,
}

impl Landings {
    /// Adds a flight whose connection was just established. The last packet of the handshake is
    /// queued on the link to the program.
    pub(crate) fn push(&mut self, flight: FlightGuard) {
        self.new.push(flight);
    }

    /// Records that the program's stack has taken `n` of `waiting` packets from the link.
    pub(crate) fn on_taken(&mut self, waiting: usize, n: usize) {
        let mark = self.taken + waiting as u64;
        self.marked.extend(self.new.drain(..).map(|flight| (mark, flight)));
        self.taken += n as u64;
    }

    /// Ends the flights whose last handshake packet the program's stack has processed.
    pub(crate) fn settle(&mut self) {
        while self.marked.front().is_some_and(|(mark, _)| *mark <= self.taken) {
            self.marked.pop_front();
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.new.is_empty() && self.marked.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use towpath_stack::Owners;

    use super::*;
    use crate::budget::{FlowBudget, FlowsMax};

    fn place() -> Place {
        let budget = FlowBudget::new(&FlowsMax::new(None));
        Place::all(Owners::new(&[1; 32], 4), budget).unwrap().remove(0)
    }

    fn client(n: u16) -> IpAddr {
        let [upper, lower] = n.to_be_bytes();
        IpAddr::from([192, 0, upper, lower])
    }

    fn candidate(n: u16, owner: Option<usize>) -> Candidate {
        Candidate { client: client(n), owner, waiting: 1 }
    }

    fn goes(next: Next) -> (usize, FlightGuard) {
        match next {
            Next::Goes(owner, flight) => (owner, flight.expect("there are several gateways")),
            Next::Waits { .. } => panic!("it waits"),
        }
    }

    fn has_rung(place: &Place) -> bool {
        rustix::io::read(place.notifier().unwrap().as_fd(), &mut [0; 8]).is_ok()
    }

    #[test]
    fn a_client_waits_for_its_own_flights_alone() {
        let (mut order, place) = (Order::default(), &mut place());
        let (_, first) = goes(order.next(candidate(1, Some(2)), place, 0));
        let (_, second) = goes(order.next(candidate(1, Some(2)), place, 0));
        let (_, _other) = goes(order.next(candidate(2, Some(3)), place, 0));
        let third = candidate(1, Some(3));
        assert!(matches!(order.next(third, place, 5), Next::Waits { since_now: true }));
        drop(second);
        assert!(matches!(order.next(third, place, 9), Next::Waits { since_now: false }));
        assert_eq!((order.until_ns(), has_rung(place)), (Some(5 + ORDER_WAIT_NS), false));
        drop(first);
        assert!(has_rung(place));
        assert_eq!(goes(order.next(third, place, 10)).0, 3);
        assert_eq!(order.until_ns(), None);
    }

    #[test]
    fn a_flight_that_takes_long_is_not_waited_for_again() {
        let (mut order, place) = (Order::default(), &mut place());
        let _stuck = goes(order.next(candidate(1, Some(0)), place, 0));
        let next = candidate(1, Some(1));
        assert!(matches!(order.next(next, place, 7), Next::Waits { .. }));
        assert!(matches!(order.next(next, place, 6 + ORDER_WAIT_NS), Next::Waits { .. }));
        let (owner, flight) = goes(order.next(next, place, 7 + ORDER_WAIT_NS));
        assert_eq!(owner, 1);
        drop(flight);
        assert_eq!(goes(order.next(candidate(1, Some(2)), place, 7 + ORDER_WAIT_NS)).0, 2);
    }

    #[test]
    fn those_that_any_gateway_can_have_are_divided() {
        let (mut order, place) = (Order::default(), &mut place());
        let mut owners = Vec::new();
        for waiting in (1..=8).rev() {
            let next = Candidate { client: client(1), owner: None, waiting };
            match order.next(next, place, 0) {
                // The first flights have ended, so the next connection need not wait.
                Next::Waits { .. } => owners.push(Vec::new()),
                Next::Goes(owner, flight) => owners.push(vec![(owner, flight)]),
            }
            if owners.last().is_some_and(Vec::is_empty) {
                owners.iter_mut().flatten().for_each(|(_, flight)| drop(flight.take()));
                let (owner, flight) = goes(order.next(next, place, 0));
                owners.push(vec![(owner, Some(flight))]);
            }
        }
        let owners: Vec<_> = owners.iter().flatten().map(|(owner, _)| *owner).collect();
        assert_eq!(owners, [0, 0, 1, 1, 2, 3, 2, 3]);
    }

    #[test]
    fn clients_are_forgotten_when_there_are_many() {
        let (mut order, place) = (Order::default(), &mut place());
        let max = CLIENTS_IN_ORDER_MAX as u16;
        let mut flights: Vec<_> =
            (0..=max).map(|n| goes(order.next(candidate(n, None), place, 0))).collect();
        assert_eq!(order.runs.len(), CLIENTS_IN_ORDER_MAX);
        let is_known = |order: &Order, n| order.runs.contains_key(&client(n));
        assert!(is_known(&order, 0) && !is_known(&order, max));
        flights.truncate(1);
        goes(order.next(candidate(max, None), place, 0));
        assert_eq!(order.runs.len(), 2);
        assert!(is_known(&order, 0) && is_known(&order, max));
    }

    #[test]
    fn a_flight_lands_with_its_packet() {
        let (mut order, place) = (Order::default(), &mut place());
        let mut landings = Landings::default();
        landings.on_taken(5, 3);
        landings.push(goes(order.next(candidate(1, Some(0)), place, 0)).1);
        let up = |order: &Order| order.runs[&client(1)].flights.are_up();
        // The packet that ends this flight is the third one: two packets were already queued on the
        // link.
        for taken in 1..=3 {
            landings.settle();
            assert!(up(&order) && !landings.is_empty(), "{taken}");
            landings.on_taken(4 - taken, 1);
        }
        landings.settle();
        assert!(!up(&order) && landings.is_empty());
    }
}
