//! The context in which a flow's protocol serves it: the inner stack, the way to the program, and
//! state that all protocols use.
//!
//! The context lies below the protocols. The protocols' tables are fields of `H`, the host that the
//! inner stack calls back. So a flow can be read, and served, without the others.

use std::io;
use std::net::{IpAddr, SocketAddr};

use rustix::io::Errno;
use towpath_pool::Pool;
use towpath_shm::Fd;
use towpath_stack::{Host, Stack};
use towpath_tcp::Instant;

use crate::addresses::{AddressWatch, LostAddresses};
use crate::client::Client;
use crate::config::GatewayConfig;
use crate::counters::Counters;
use crate::dialer::{Dialed, Dialer, SynMarks};
use crate::events::{Events, Interest, Token};
use crate::fifo::{FifoPool, FromProgram, ToProgram};
use crate::icmp::Errors;
use crate::limits::LINK_PACKETS_MAX;
use crate::link::LINK;
use crate::loops::Loops;
use crate::nameservers::{Nameserver, Nameservers};
use crate::notice::Notice;
use crate::siblings::{Place, Topic};
use crate::source::{self, AddressChanges};

/// Arguments of a step that serves flows.
pub(crate) struct Context<'a, H: Host> {
    pub(crate) now: Instant,
    pub(crate) stack: &'a mut Stack<H>,
    pub(crate) shared: &'a mut Shared,
    /// Packets that the inner stack has given to the link and that nobody has taken yet.
    pub(crate) on_link: usize,
    pub(crate) pool: &'a mut Pool,
    /// The inner stack was given something that a turn must act on.
    pub(crate) touched: bool,
}

/// The owner of an inner stack whose connections have FIFOs of [`Shared::buffers`]: all that TCP
/// flows know of it.
pub(crate) trait FifoHost: Host<Recv = FromProgram, Send = ToProgram> {}

impl<H: Host<Recv = FromProgram, Send = ToProgram>> FifoHost for H {}

/// State that all protocols use.
pub(crate) struct Shared {
    pub(crate) config: GatewayConfig,
    pub(crate) dialer: Dialer,
    pub(crate) events: Events,
    pub(crate) counters: Counters,
    /// ICMP errors that the program is yet to be told.
    pub(crate) errors: Errors,
    pub(crate) fifos: FifoPool,
    pub(crate) nameservers: Nameservers,
    /// A datagram, or a train of them, on its way.
    pub(crate) scratch: Box<[u8]>,
    pub(crate) now_ns: u64,
    pub(crate) loops: Loops,
    addresses: Option<AddressWatch>,
    pub(crate) changes: AddressChanges,
    /// Place of this gateway among those of the host.
    pub(crate) place: Place,
    /// Called with notices for the user.
    pub(crate) tell: Box<dyn Fn(Notice) + Send>,
}

/// Longest datagram, or train of them, that a socket gives.
const SCRATCH_LEN: usize = 65_536;

impl<H: Host> Context<'_, H> {
    /// Whether datagrams had better wait in the host's sockets, which is where there is room.
    pub(crate) fn is_link_busy(&mut self) -> bool {
        let waiting = self.stack.net.output(LINK).len() + self.on_link;
        waiting >= LINK_PACKETS_MAX / 2
    }
}

impl Shared {
    /// Parts of all gateways of a host.
    ///
    /// # Errors
    /// When the host gives no descriptor, or no thread to follow the file with the nameservers.
    pub(crate) fn all(
        config: &GatewayConfig,
        places: Vec<Place>,
        watches_loops: bool,
        now_ns: u64,
    ) -> io::Result<Vec<Self>> {
        let events = places.iter().map(|_| Events::new()).collect::<Result<Vec<_>, _>>()?;
        let nameservers = match config.has_forwarder() {
            true => Nameservers::for_all(&config.nameserver, &events)?,
            // Without a forwarder no question is asked: no file is read, and no thread waits to.
            false => Nameservers::for_all(&Nameserver::At(Vec::new()), &events)?,
        };
        let each = places.into_iter().zip(events).zip(nameservers);
        each.map(|((place, events), nameservers)| {
            if let Some(notifier) = place.notifier() {
                events.watch(notifier, Token::Handed, Interest::Readable)?;
            }
            let addresses = AddressWatch::open();
            if let Some(watch) = &addresses {
                events.watch(watch.fd(), Token::Addresses, Interest::Readable)?;
            }
            let mut config = config.clone();
            // Each gateway has a secret of its own: numbers that one shows help nobody with
            // another's.
            config.seed[0] ^= place.number() as u8;
            Ok(Self {
                dialer: Dialer::new(config.egress.clone()),
                config,
                events,
                counters: Counters::default(),
                errors: Errors::default(),
                fifos: FifoPool::of_one_of(place.count()),
                nameservers,
                scratch: vec![0; SCRATCH_LEN].into_boxed_slice(),
                now_ns,
                loops: Loops::new(watches_loops),
                addresses,
                changes: AddressChanges::default(),
                place,
                tell: Box::new(drop),
            })
        })
        .collect()
    }

    /// Tells the user something, unless this or another gateway of the host has done so.
    pub(crate) fn tell_once(&self, topic: Topic, notice: Notice) {
        if self.place.siblings.is_first(topic) {
            (self.tell)(notice);
        }
    }

    /// A TCP flow is not made, because its client has as many as one may have.
    pub(crate) fn on_client_full(&mut self, client: IpAddr) {
        self.counters.tcp_client_full += 1;
        let budget = &self.place.siblings.budget;
        let notice = Notice::ClientFull { client, open: budget.of_client(Client::at(client)) };
        self.tell_once(Topic::ClientFull, notice);
    }

    /// Whether a flow that comes in is one of the gateway's own sockets. Counts it, and tells the
    /// user.
    pub(crate) fn is_loop(&mut self, from: SocketAddr, to: SocketAddr) -> bool {
        let is_loop = self.loops.has(from, to);
        if is_loop {
            self.counters.loops_refused += 1;
            self.tell_once(Topic::Loop, Notice::Loop { to });
        }
        is_loop
    }

    /// Addresses that the host has lost since the last call. The call notes that some came or
    /// went.
    pub(crate) fn lost_addresses(&mut self) -> LostAddresses {
        self.changes.note(self.now_ns);
        self.addresses.as_ref().map_or(LostAddresses::These(Vec::new()), AddressWatch::lost)
    }

    /// Whether a socket towards `to`, whose peer is silent, had better be opened anew, because the
    /// host's addresses have changed.
    pub(crate) fn leaves_elsewhere(&self, host: &Fd, to: SocketAddr) -> bool {
        self.changes.are_recent(self.now_ns) && source::leaves_elsewhere(&self.dialer, host, to)
    }

    /// Makes a connection for a flow to `to`.
    pub(crate) fn dial(&mut self, to: SocketAddr, marks: SynMarks) -> Result<Dialed, Errno> {
        let dialed = self.dialer.dial(to, marks)?;
        self.loops.note(&dialed.host, dialed.to);
        Ok(dialed)
    }

    /// The address of the host that a flow of the program to `dst` is meant for; None: refuse it.
    pub(crate) fn host_addr(&self, dst: SocketAddr) -> Option<SocketAddr> {
        Some(SocketAddr::new(self.config.host_addr(dst.ip())?, dst.port()))
    }

    /// Empty FIFOs for a flow.
    pub(crate) fn buffers(&self) -> (FromProgram, ToProgram) {
        (FromProgram::new(&self.fifos), ToProgram::new(&self.fifos))
    }
}
