//! What a flow's protocol gets to serve it: the inner stack and the way to the program, and what all protocols use.
//!
//! It lies below the protocols, and who owns their tables is not known here: that is the `H` of the inner stack,
//! which calls it back. So a flow can be read, and served, without the others.

use std::io;
use std::net::SocketAddr;

use towpath_pool::Pool;
use towpath_stack::{Host, Stack};
use towpath_tcp::Instant;

use crate::config::GatewayConfig;
use crate::counters::Counters;
use crate::events::Events;
use crate::fifo::{FifoPool, FromProgram, ToProgram};
use crate::icmp::Errors;
use crate::limits::LINK_PACKETS_MAX;
use crate::link::{LINK, Link};
use crate::nameservers::{Nameserver, Nameservers};
use crate::notice::Notice;

/// What serving flows takes.
pub(crate) struct Context<'a, H: Host> {
    pub(crate) now: Instant,
    pub(crate) stack: &'a mut Stack<H>,
    pub(crate) shared: &'a mut Shared,
    pub(crate) link: &'a Link,
    pub(crate) pool: &'a mut Pool,
    /// The inner stack was given something that a turn must act on.
    pub(crate) touched: bool,
}

/// The owner of an inner stack whose connections have FIFOs of [`Shared::buffers`]: all that TCP flows know of it.
pub(crate) trait FifoHost: Host<Recv = FromProgram, Send = ToProgram> {}

impl<H: Host<Recv = FromProgram, Send = ToProgram>> FifoHost for H {}

/// What all protocols use.
pub(crate) struct Shared {
    pub(crate) config: GatewayConfig,
    pub(crate) events: Events,
    pub(crate) counters: Counters,
    /// What the program is yet to be told.
    pub(crate) errors: Errors,
    pub(crate) fifos: FifoPool,
    pub(crate) nameservers: Nameservers,
    /// One datagram, or train of them, on its way.
    pub(crate) scratch: Box<[u8]>,
    pub(crate) now_ns: u64,
    /// Is told what the user should know.
    pub(crate) tell: Box<dyn Fn(Notice) + Send>,
}

/// Longest datagram, or train of them, that a socket gives.
const SCRATCH_LEN: usize = 65_536;

impl<H: Host> Context<'_, H> {
    /// Whether datagrams had better wait in the host's sockets, which is where there is room.
    pub(crate) fn is_link_busy(&mut self) -> bool {
        let waiting = self.stack.net.output(LINK).len() + self.link.queues().to_program.len();
        waiting >= LINK_PACKETS_MAX / 2
    }
}

impl Shared {
    /// # Errors
    /// When the host gives no descriptor, or no thread to follow the file with the nameservers.
    pub(crate) fn new(config: GatewayConfig, now_ns: u64) -> io::Result<Self> {
        let events = Events::new()?;
        let nameservers = match config.has_forwarder() {
            true => Nameservers::new(&config.nameserver, &events)?,
            // Nobody asks them: no file is read, and no thread waits to.
            false => Nameservers::new(&Nameserver::At(Vec::new()), &events)?,
        };
        Ok(Self {
            config,
            events,
            counters: Counters::default(),
            errors: Errors::default(),
            fifos: FifoPool::default(),
            nameservers,
            scratch: vec![0; SCRATCH_LEN].into_boxed_slice(),
            now_ns,
            tell: Box::new(drop),
        })
    }

    /// Which address of the host a flow of the program to `dst` is meant for; None: refuse it.
    pub(crate) fn host_addr(&self, dst: SocketAddr) -> Option<SocketAddr> {
        Some(SocketAddr::new(self.config.host_addr(dst.ip())?, dst.port()))
    }

    /// Empty FIFOs for a flow.
    pub(crate) fn buffers(&self) -> (FromProgram, ToProgram) {
        (FromProgram::new(&self.fifos), ToProgram::new(&self.fifos))
    }
}
