//! Context passed to the TCP, UDP, ICMP and DNS code of a gateway: the inner stack, the link to the
//! program, and shared state. The inner stack is the gateway's own TCP/IP stack.
//!
//! The flow tables of the protocols are fields of the inner stack's host `H`, not of the context.
//! So one table and the context can be borrowed mutably at the same time.

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
use crate::urgent::EventRounds;

/// Arguments that the functions of all protocols need to serve their flows.
pub(crate) struct Context<'a, H: Host> {
    pub(crate) now: Instant,
    pub(crate) stack: &'a mut Stack<H>,
    pub(crate) shared: &'a mut Shared,
    /// Number of packets of the inner stack that are queued on the link to the program.
    pub(crate) on_link: usize,
    pub(crate) pool: &'a mut Pool,
    /// Whether the inner stack has new input, so that its event loop must run again.
    pub(crate) touched: bool,
}

/// Host callbacks of an inner stack whose connections use the FIFOs of [`Shared::buffers`]. TCP
/// flows depend only on this trait.
pub(crate) trait FifoHost: Host<Recv = FromProgram, Send = ToProgram> {}

impl<H: Host<Recv = FromProgram, Send = ToProgram>> FifoHost for H {}

/// State shared by all protocols (TCP, UDP, ICMP, DNS) of a gateway.
pub(crate) struct Shared {
    pub(crate) config: GatewayConfig,
    pub(crate) dialer: Dialer,
    pub(crate) events: Events,
    pub(crate) event_rounds: EventRounds,
    pub(crate) counters: Counters,
    /// ICMP errors queued to be sent to the program.
    pub(crate) errors: Errors,
    pub(crate) fifos: FifoPool,
    pub(crate) nameservers: Nameservers,
    /// Receive buffer for a datagram, or for several datagrams received in one call (UDP GRO).
    pub(crate) scratch: Box<[u8]>,
    pub(crate) now_ns: u64,
    pub(crate) loops: Loops,
    addresses: Option<AddressWatch>,
    pub(crate) changes: AddressChanges,
    /// Handle of this gateway to the state that it shares with the gateways of other shards.
    pub(crate) place: Place,
    /// Callback that reports notices to the user.
    pub(crate) tell: Box<dyn Fn(Notice) + Send>,
}

/// Maximum length in bytes of a received datagram, or of several datagrams received in one call.
const SCRATCH_LEN: usize = 65_536;

impl<H: Host> Context<'_, H> {
    /// Returns whether the link to the program is at least half full. Received datagrams should
    /// then stay in the host's sockets.
    pub(crate) fn is_link_busy(&mut self) -> bool {
        let waiting = self.stack.net.output(LINK).len() + self.on_link;
        waiting >= LINK_PACKETS_MAX / 2
    }
}

impl Shared {
    /// Creates the shared state of each gateway of a host, one for each shard.
    ///
    /// # Errors
    /// Returns an error if no descriptor or no thread for watching resolv.conf can be created.
    pub(crate) fn all(
        config: &GatewayConfig,
        places: Vec<Place>,
        watches_loops: bool,
        now_ns: u64,
    ) -> io::Result<Vec<Self>> {
        let events = places.iter().map(|_| Events::new()).collect::<Result<Vec<_>, _>>()?;
        let nameservers = match config.has_forwarder() {
            true => Nameservers::for_all(&config.nameserver, &events)?,
            // Without a DNS forwarder, no nameserver is needed. Do not read resolv.conf, and start
            // no thread that watches it.
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
            // Use a different secret for each gateway, so that sequence numbers observed at one
            // gateway do not help to predict those of another.
            config.seed[0] ^= place.number() as u8;
            Ok(Self {
                dialer: Dialer::new(config.egress.clone()),
                config,
                events,
                event_rounds: EventRounds::default(),
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

    /// Reports a notice to the user unless any gateway of the host has already reported one on this
    /// topic.
    pub(crate) fn tell_once(&self, topic: Topic, notice: Notice) {
        if self.place.siblings.is_first(topic) {
            (self.tell)(notice);
        }
    }

    /// Counts and reports that a client has reached the per-client limit of TCP flows.
    pub(crate) fn on_client_full(&mut self, client: IpAddr) {
        self.counters.tcp_client_full += 1;
        let budget = &self.place.siblings.budget;
        let notice = Notice::ClientFull { client, open: budget.of_client(Client::at(client)) };
        self.tell_once(Topic::ClientFull, notice);
    }

    /// Returns whether an incoming flow was sent by one of the gateway's own sockets, which means
    /// that routing leads back into the gateway. Counts and reports the loop.
    pub(crate) fn is_loop(&mut self, from: SocketAddr, to: SocketAddr) -> bool {
        let is_loop = self.loops.has(from, to);
        if is_loop {
            self.counters.loops_refused += 1;
            self.tell_once(Topic::Loop, Notice::Loop { to });
        }
        is_loop
    }

    /// Records that the host's addresses have changed. Returns the addresses removed since the last
    /// call.
    pub(crate) fn lost_addresses(&mut self) -> LostAddresses {
        self.changes.note(self.now_ns);
        self.addresses.as_ref().map_or(LostAddresses::These(Vec::new()), AddressWatch::lost)
    }

    /// Returns whether an unanswered socket towards `to` should be replaced. True if the host's
    /// addresses have changed recently, and a new socket would have another source address.
    pub(crate) fn leaves_elsewhere(&self, host: &Fd, to: SocketAddr) -> bool {
        self.changes.are_recent(self.now_ns) && source::leaves_elsewhere(&self.dialer, host, to)
    }

    /// Connects a host socket of a flow to `to`, and records the connection for loop detection.
    pub(crate) fn dial(&mut self, to: SocketAddr, marks: SynMarks) -> Result<Dialed, Errno> {
        let dialed = self.dialer.dial(to, marks)?;
        self.loops.note(&dialed.host, dialed.to);
        Ok(dialed)
    }

    /// Converts a destination of the program to an address on the host. Returns `None` if
    /// connections to it are refused.
    pub(crate) fn host_addr(&self, dst: SocketAddr) -> Option<SocketAddr> {
        Some(SocketAddr::new(self.config.host_addr(dst.ip())?, dst.port()))
    }

    /// Creates empty FIFOs for both directions of a TCP flow.
    pub(crate) fn buffers(&self) -> (FromProgram, ToProgram) {
        (FromProgram::new(&self.fifos), ToProgram::new(&self.fifos))
    }
}
