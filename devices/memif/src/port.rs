//! The port: the peer, and the frames that it exchanges with the stack.

use std::fmt;
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;

use rustix::event::Timespec;
use rustix::event::epoll::{self, Event};
use rustix::net::SocketType;
use towpath_pool::{Batch, LinkType, Offloads, Pool, Port, PortCounters};
use towpath_stream::{OpenError, PeerFinder};

use crate::device::{MemifCounters, RingSpace};
use crate::error::LinkError;
use crate::options::MemifOptions;
use crate::pace::{EventLimit, FullPause, IdleCheck, RingState};
use crate::peer::{MemifPeer, RING};
use crate::ring::{MemifRole, RingFault};
use crate::socket::signal;

/// Maximum time in nanoseconds between checks for messages while frames arrive without a pause.
const LOOK_NS: u64 = 1_000_000;
/// Maximum time in nanoseconds until the next message of a client that is not connected yet.
/// Otherwise a client that hangs would keep further clients waiting forever.
const SILENT_NS: u64 = 5_000_000_000;
/// Maximum number of watched descriptors: the listening socket or that of a peer, and an eventfd.
const WATCHED_MAX: usize = 2;

/// A memif device. Frames are dropped while no peer is connected.
pub struct MemifPort {
    options: MemifOptions,
    finder: PeerFinder,
    peer: Option<MemifPeer>,
    counters: MemifCounters,
    tell: Box<dyn Fn(MemifEvent) + Send>,
    /// The last error that was told. A client that retries does not tell it again.
    told: String,
    limit: EventLimit,
    /// Whether the epoll descriptor may have events.
    is_ready: bool,
    looked_ns: u64,
    /// Time at which the peer's socket was ready last.
    heard_ns: u64,
    /// Reason why the peer has left. The frames that it sent before are received first.
    left: Option<LinkError>,
    idle: IdleCheck,
    pause: FullPause,
}

/// A change of the connection to a peer.
#[derive(Debug)]
#[non_exhaustive]
pub enum MemifEvent {
    /// The connection to a peer was set up. Contains the name of its interface.
    Connected(String),
    /// The connection to a peer has ended, or could not be set up.
    Disconnected(LinkError),
}

impl fmt::Display for MemifEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connected(name) => write!(f, "the memif peer {name} has connected"),
            Self::Disconnected(error) => write!(f, "the memif connection has ended: {error}"),
        }
    }
}

impl MemifPort {
    /// Listens for a client, or connects to a server, as the role says. `tell` is called when the
    /// connection changes.
    ///
    /// # Errors
    /// Returns [`OpenError`] if the path is in use, or a system call fails.
    pub fn open(
        options: MemifOptions,
        tell: impl Fn(MemifEvent) + Send + 'static,
    ) -> Result<Self, OpenError> {
        let (finder, socket) =
            PeerFinder::open(&options.path, SocketType::SEQPACKET, options.role)?;
        let mut port = Self {
            options,
            finder,
            peer: None,
            counters: MemifCounters::default(),
            tell: Box::new(tell),
            told: String::new(),
            limit: EventLimit::default(),
            is_ready: true,
            looked_ns: 0,
            heard_ns: 0,
            left: None,
            idle: IdleCheck::default(),
            pause: FullPause::default(),
        };
        if let Some(socket) = socket {
            port.attach(socket, 0);
        }
        Ok(port)
    }

    /// Returns the counters since the port was opened.
    pub fn counters(&self) -> MemifCounters {
        self.counters
    }

    /// Returns the role of this process.
    pub fn role(&self) -> MemifRole {
        match self.finder.is_listening() {
            true => MemifRole::Server,
            false => MemifRole::Client,
        }
    }

    /// Returns whether the connection to a peer is set up.
    pub fn is_connected(&self) -> bool {
        self.peer.as_ref().is_some_and(|peer| peer.linked().is_some())
    }

    /// Looks for a peer, or handles its messages.
    fn look(&mut self, now_ns: u64) {
        if !std::mem::take(&mut self.is_ready) && now_ns < self.looked_ns.saturating_add(LOOK_NS) {
            return;
        }
        self.looked_ns = now_ns;
        let has_socket = self.take_events();
        if self.peer.is_none()
            && let Some(socket) = self.finder.find(now_ns)
        {
            self.attach(socket, now_ns);
        } else if has_socket {
            self.serve(now_ns);
        } else if self.silent_ns().is_some_and(|due_ns| due_ns <= now_ns) {
            self.disconnect(LinkError::Silent, now_ns);
        }
    }

    /// Returns the time at which a silent client is disconnected; `None` if it is connected. A
    /// client does not limit the silence of its server, which may serve another client first.
    fn silent_ns(&self) -> Option<u64> {
        let is_setup = self.peer.as_ref().is_some_and(|peer| peer.linked().is_none());
        let is_limited = is_setup && self.role() == MemifRole::Server;
        is_limited.then(|| self.heard_ns.saturating_add(SILENT_NS))
    }

    /// Resets the events of eventfds. Returns whether a socket is ready.
    fn take_events(&self) -> bool {
        let mut space = [const { MaybeUninit::<Event>::uninit() }; WATCHED_MAX];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        // If the call is interrupted, the descriptor stays readable, and the stack asks again.
        let events = epoll::wait(self.finder.wake_fd(), &mut space[..], Some(&now));
        events.is_ok_and(|(events, _)| events.iter().any(|event| event.data.u64() != RING))
    }

    fn attach(&mut self, socket: UnixStream, now_ns: u64) {
        match MemifPeer::new(socket, self.role(), self.finder.wake_fd()) {
            Ok(peer) => {
                self.peer = Some(peer);
                self.serve(now_ns);
            }
            Err(error) => self.disconnect(error, now_ns),
        }
    }

    fn serve(&mut self, now_ns: u64) {
        self.heard_ns = now_ns;
        let Self { peer, options, finder, .. } = self;
        let Some(peer) = peer else { return };
        match peer.serve(options, finder.wake_fd()) {
            Ok(true) => {
                let name = peer.linked().map(|linked| linked.name.clone()).unwrap_or_default();
                self.counters.peers += 1;
                self.told.clear();
                self.announce(MemifEvent::Connected(name), now_ns);
            }
            Ok(false) => {}
            Err(error) => {
                let has_left = matches!(error, LinkError::Closed | LinkError::Disconnected(_));
                match has_left && self.is_connected() {
                    true => self.left = Some(error),
                    false => self.disconnect(error, now_ns),
                }
            }
        }
    }

    fn disconnect(&mut self, error: LinkError, now_ns: u64) {
        let was_connected = self.is_connected();
        if let Some(peer) = self.peer.take() {
            peer.close(error.message(), self.finder.wake_fd());
        }
        self.finder.lose(now_ns);
        self.left = None;
        self.is_ready = true;
        (self.idle, self.pause) = Default::default();
        self.counters.broken_rings += u64::from(was_connected && is_fault(&error));
        // A process that only probes whether the socket is used leaves without a message.
        let is_probe = !was_connected && matches!(error, LinkError::Closed);
        let text = error.to_string();
        if !is_probe && (was_connected || text != self.told) {
            self.told = text;
            self.announce(MemifEvent::Disconnected(error), now_ns);
        }
    }

    fn announce(&mut self, event: MemifEvent, now_ns: u64) {
        match self.limit.allows(now_ns) {
            true => (self.tell)(event),
            false => self.counters.events_untold += 1,
        }
    }

    fn fail(&mut self, fault: RingFault, now_ns: u64) {
        self.disconnect(fault.into(), now_ns);
    }

    /// Receives frames of the peer.
    fn receive(&mut self, now_ns: u64, pool: &mut Pool, out: &mut Batch, max: usize) {
        let Self { peer, counters, .. } = self;
        let Some(linked) = peer.as_mut().and_then(MemifPeer::linked_mut) else { return };
        let before = counters.rx_frames + counters.rx_malformed;
        match linked.device.receive(counters, pool, out, max) {
            Ok(_) => {
                let has_frames = counters.rx_frames + counters.rx_malformed > before;
                let (is_empty, is_certain) = (!linked.device.has_more(), linked.has_barrier);
                self.idle = self.idle.after(now_ns, RingState { has_frames, is_empty, is_certain });
            }
            Err(fault) => self.fail(fault, now_ns),
        }
    }
}

fn is_fault(error: &LinkError) -> bool {
    matches!(error, LinkError::Fault(_))
}

impl Port for MemifPort {
    fn poll(&mut self, now_ns: u64, pool: &mut Pool, out: &mut Batch, max: usize) -> usize {
        self.look(now_ns);
        self.pause.pass(now_ns);
        let before = out.len();
        self.receive(now_ns, pool, out, max);
        // Receive only one batch of the last frames, because a hostile peer could go on sending.
        if let Some(error) = self.left.take() {
            self.disconnect(error, now_ns);
        }
        out.range_mut(before..).for_each(|packet| packet.meta.arrival_ns = now_ns);
        out.len() - before
    }

    fn submit(&mut self, now_ns: u64, pool: &mut Pool, batch: &mut Batch) -> usize {
        let offered = batch.len();
        let Self { peer, counters, .. } = self;
        let Some(linked) = peer.as_mut().and_then(MemifPeer::linked_mut) else {
            counters.tx_no_peer += offered as u64;
            batch.drain(..).for_each(|packet| pool.give(packet));
            return offered;
        };
        let sent = linked.device.send(counters, pool, batch);
        if linked.device.publish() {
            counters.interrupts += 1;
            signal(&linked.sent);
        }
        match sent {
            Ok((_, RingSpace::Done)) => self.pause.end(),
            Ok((taken, RingSpace::Full)) => self.pause.full(now_ns, taken > 0),
            Err(fault) => {
                self.fail(fault, now_ns);
                // Without a peer, no event would wake the stack to offer these frames again.
                self.counters.tx_no_peer += batch.len() as u64;
                batch.drain(..).for_each(|packet| pool.give(packet));
            }
        }
        offered - batch.len()
    }

    fn offloads(&self) -> Offloads {
        Offloads::default()
    }

    fn link_type(&self) -> LinkType {
        LinkType::Ethernet
    }

    fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.finder.wake_fd())
    }

    fn looked(&mut self, ready: bool) {
        self.is_ready |= ready;
    }

    /// Returns whether the ring was full. The port then asks by a timeout to be called again.
    fn blocked(&self) -> bool {
        self.pause.due_ns().is_some()
    }

    fn next_timeout_ns(&self) -> Option<u64> {
        match &self.peer {
            Some(_) => {
                let times = [self.idle.due_ns(), self.pause.due_ns(), self.silent_ns()];
                times.into_iter().flatten().min()
            }
            None => self.finder.retry_ns(),
        }
    }

    fn counters(&self) -> PortCounters {
        vec![("memif", self.counters.iter().collect())]
    }
}
