//! The order in which clients of a published port come to the program.
//!
//! A client that connects twice has the first connection accepted first: programs rely on that
//! (iperf3 tells its streams apart by it). The gateways of several shards connect to the program
//! side by side. So the one that accepts gives a client's connections to one gateway after the
//! other:
//!
//! ```text
//!  accepted ─► run: those given to one gateway ─► flights: not with the program yet
//!     waits ◄── another gateway's turn, and flights are up
//! ```
//!
//! - Within a run nothing waits, and a gateway keeps the order by itself.
//! - Where any gateway will do, those that wait are divided among all of them, in one run each.
//! - Different clients do not wait for each other, but for one that is in front of them in the same
//!   queue.
//! - The wait is bounded ([`ORDER_WAIT_NS`]). A flight that takes longer is not waited for again.
//!
//! A flight is over when the program's stack has had its last packet of the handshake and turned
//! since. Its messages to other shards about the connection come before any later ones.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use towpath_shm::Fd;

use crate::limits::{CLIENTS_IN_ORDER_MAX, ORDER_WAIT_NS};
use crate::siblings::Place;

/// The order among connections of one published port.
#[derive(Debug, Default)]
pub(crate) struct Order {
    /// The last run of each client, and of some whose flights are over.
    runs: HashMap<IpAddr, Run>,
    /// The next connection waits until then at most.
    until_ns: Option<u64>,
}

/// Connections of a client that one gateway was given in a row.
#[derive(Debug)]
struct Run {
    owner: usize,
    /// So many more of those that any gateway can have belong to it.
    left: usize,
    flights: Arc<Flights>,
}

/// Connections of a run that are not with the program yet.
#[derive(Debug)]
struct Flights {
    up: AtomicU32,
    /// The accepting gateway waits for the last of the flights.
    awaited: AtomicBool,
    bell: Arc<Fd>,
}

/// A flight, for as long as this lives.
#[derive(Debug)]
pub(crate) struct FlightGuard(Arc<Flights>);

/// Decision of [`Order::next`] about a connection.
#[derive(Debug)]
pub(crate) enum Next {
    /// The connection goes to this gateway.
    Goes(usize, Option<FlightGuard>),
    /// The connection waits, `since_now` for the first time.
    Waits { since_now: bool },
}

/// The connection that is next.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Candidate {
    pub(crate) client: IpAddr,
    /// The only gateway that can have it, if it is not any.
    pub(crate) owner: Option<usize>,
    /// How many connections there are to be given, itself included.
    pub(crate) waiting: usize,
}

impl Order {
    /// Until when the next connection waits, unless the bell of [`Place::bell`] is rung before.
    pub(crate) fn until_ns(&self) -> Option<u64> {
        self.until_ns
    }

    /// The gateway that is to have the connection that is next, and whether now.
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

    /// Forgets the clients that have nothing on its way, if there are many.
    fn make_room(&mut self) {
        if self.runs.len() >= CLIENTS_IN_ORDER_MAX {
            self.runs.retain(|_, run| run.flights.are_up());
        }
    }
}

impl Run {
    /// Whether a connection belongs to the run. `owner`: the only gateway that can have it; None:
    /// any can. If so it is counted.
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

    /// True: flights are up, and the bell is rung when they are over. Sequentially consistent, as
    /// [`FlightGuard::drop`] is: the drop sees `awaited`, or this call sees that the flights are
    /// over.
    fn are_awaited(&self) -> bool {
        self.awaited.store(true, Ordering::SeqCst);
        self.are_up()
    }
}

impl Drop for FlightGuard {
    fn drop(&mut self) {
        let Flights { up, awaited, bell } = &*self.0;
        if up.fetch_sub(1, Ordering::SeqCst) == 1 && awaited.load(Ordering::SeqCst) {
            // A write fails only when the counter is full, and then the bell is readable.
            let _ = rustix::io::write(bell.as_fd(), &1u64.to_ne_bytes());
        }
    }
}

/// Flights whose connection is made, and whose last packets the program's stack has not dealt with
/// yet.
#[derive(Debug, Default)]
pub(crate) struct Landings {
    new: Vec<FlightGuard>,
    /// Each with how many packets the program's stack has to take before.
    marked: VecDeque<(u64, FlightGuard)>,
    /// How many it has taken.
    taken: u64,
}

impl Landings {
    /// A connection is made: the packet that says so is among those for the program now.
    pub(crate) fn push(&mut self, flight: FlightGuard) {
        self.new.push(flight);
    }

    /// The program's stack takes `n` of `waiting` packets.
    pub(crate) fn on_taken(&mut self, waiting: usize, n: usize) {
        let mark = self.taken + waiting as u64;
        self.marked.extend(self.new.drain(..).map(|flight| (mark, flight)));
        self.taken += n as u64;
    }

    /// The program's stack has dealt with all that it has taken.
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
                // Earlier connections have landed.
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
        // Two are left of before, and one is its own.
        for taken in 1..=3 {
            landings.settle();
            assert!(up(&order) && !landings.is_empty(), "{taken}");
            landings.on_taken(4 - taken, 1);
        }
        landings.settle();
        assert!(!up(&order) && landings.is_empty());
    }
}
