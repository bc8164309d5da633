//! The port: the listening socket, the front end, and frames that wait for buffers of the guest.

use std::fmt;
use std::os::fd::BorrowedFd;
use std::path::Path;

use towpath_pool::{Batch, LinkType, Offloads, Packet, Pool, Port, PortCounters};
use towpath_qdisc::QueuedPacket;
use towpath_stream::{OpenError, PeerListener};

use crate::device::VhostCounters;
use crate::front_end::{FrontEnd, FrontEndError};
use crate::ring::RingError;
use crate::send::SendEnd;
use crate::watched::{WatchList, WatchSource};

/// Time in nanoseconds after which a failed accept is repeated.
const RETRY_NS: u64 = 500_000_000;
/// Maximum time in nanoseconds between checks for messages while frames arrive without a pause.
const LOOK_NS: u64 = 1_000_000;

/// Network device of a virtual machine. Frames are dropped while no guest runs.
pub struct VhostPort {
    listener: PeerListener,
    list: WatchList,
    front_end: Option<FrontEnd>,
    /// Segments of frames for a guest without the offloads that the frames need.
    segments: Batch,
    counters: VhostCounters,
    tell: Box<dyn Fn(VhostEvent) + Send>,
    /// Whether `list` may have events.
    is_ready: bool,
    looked_ns: u64,
    /// Whether the listening socket is watched.
    is_listening: bool,
    retry_ns: u64,
}

/// A change of the connection to a virtual machine.
#[derive(Debug)]
#[non_exhaustive]
pub enum VhostEvent {
    /// A front end has connected.
    Connected,
    /// The connection to the front end has ended.
    Disconnected(FrontEndError),
    /// A virtqueue has stopped until the driver resets it.
    Broken(RingError),
}

impl fmt::Display for VhostEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connected => f.write_str("a virtual machine has connected"),
            Self::Disconnected(FrontEndError::Closed) => {
                f.write_str("the virtual machine has disconnected")
            }
            Self::Disconnected(error) => {
                write!(f, "the connection to the virtual machine was closed: {error}")
            }
            Self::Broken(error) => {
                write!(f, "the guest's network device has stopped until a reset: {error}")
            }
        }
    }
}

impl VhostPort {
    /// Listens for a front end at `path`. Removes a socket file that was left by a process that was
    /// killed. `tell` is called when the connection changes.
    ///
    /// # Errors
    /// Returns [`OpenError`] if the path is in use, or a system call fails.
    pub fn open(
        path: &Path,
        tell: impl Fn(VhostEvent) + Send + 'static,
    ) -> Result<Self, OpenError> {
        let listener = PeerListener::bind(path)?;
        let failed = |source| OpenError::System { path: path.display().to_string(), source };
        let list = WatchList::new().map_err(failed)?;
        list.add(&listener, WatchSource::Listener).map_err(failed)?;
        Ok(Self {
            listener,
            list,
            front_end: None,
            segments: Batch::new(),
            counters: VhostCounters::default(),
            tell: Box::new(tell),
            is_ready: true,
            looked_ns: 0,
            is_listening: true,
            retry_ns: 0,
        })
    }

    /// Returns the counters since the port was opened.
    pub fn counters(&self) -> VhostCounters {
        self.counters
    }

    /// Accepts a front end, or carries out its requests.
    fn look(&mut self, now_ns: u64, pool: &mut Pool) {
        if !std::mem::take(&mut self.is_ready) && now_ns < self.looked_ns.saturating_add(LOOK_NS) {
            return;
        }
        self.looked_ns = now_ns;
        let ready = self.list.take();
        if let Some(front_end) = &mut self.front_end {
            if ready.front_end
                && let Err(error) = front_end.serve()
            {
                self.disconnect(error, pool);
            }
        } else if ready.listener || !self.is_listening && now_ns >= self.retry_ns {
            self.accept(now_ns);
        }
    }

    fn accept(&mut self, now_ns: u64) {
        let accepted = self.listener.accept();
        match accepted.and_then(|socket| FrontEnd::new(socket, &self.list)) {
            Ok(front_end) => {
                self.front_end = Some(front_end);
                self.counters.front_ends += 1;
                // Stop listening: further front ends wait in the socket's queue.
                self.listen(false);
                self.is_ready = true;
                (self.tell)(VhostEvent::Connected);
            }
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                self.listen(true);
                // If that has failed, do not try again at once, which would keep the stack awake.
                self.retry_ns = now_ns.saturating_add(RETRY_NS);
            }
            Err(_) => {
                // Without a free descriptor, the listening socket would wake the stack forever.
                self.listen(false);
                self.retry_ns = now_ns.saturating_add(RETRY_NS);
            }
        }
    }

    fn disconnect(&mut self, error: FrontEndError, pool: &mut Pool) {
        self.front_end = None;
        self.segments.drain(..).for_each(|packet| pool.give(packet));
        self.listen(true);
        self.is_ready = true;
        (self.tell)(VhostEvent::Disconnected(error));
    }

    fn listen(&mut self, wanted: bool) {
        if wanted == self.is_listening {
            return;
        }
        self.is_listening = wanted;
        if wanted {
            // The call fails only if kernel memory is exhausted; then `accept` is tried at times.
            self.is_listening = self.list.add(&self.listener, WatchSource::Listener).is_ok();
        } else {
            self.list.remove(&self.listener);
        }
    }

    fn report_faults(&mut self) {
        while let Some(fault) = self.front_end.as_mut().and_then(FrontEnd::take_fault) {
            (self.tell)(VhostEvent::Broken(fault));
        }
    }

    /// Drops the frames, because no guest runs.
    fn discard(&mut self, pool: &mut Pool, batch: &mut Batch) -> usize {
        let taken = batch.len();
        self.counters.tx_no_guest += taken as u64;
        batch.drain(..).chain(self.segments.drain(..)).for_each(|packet| pool.give(packet));
        taken
    }

    /// Sends the segments of an earlier frame. Returns whether none is left.
    fn send_segments(&mut self, pool: &mut Pool) -> bool {
        let Self { front_end, segments, counters, .. } = self;
        if segments.is_empty() {
            return true;
        }
        let end = match front_end.as_mut().filter(|front_end| front_end.is_up()) {
            Some(front_end) => front_end.send(counters, pool, segments).1,
            None => SendEnd::Unsupported,
        };
        if end == SendEnd::Unsupported {
            // The guest for whose driver they were made has stopped or restarted.
            counters.tx_no_guest += segments.len() as u64;
            segments.drain(..).for_each(|packet| pool.give(packet));
        }
        end != SendEnd::Full
    }

    /// Segments a packet, and completes the checksums, as the guest's driver requires.
    fn finish(&mut self, packet: Packet, pool: &mut Pool) {
        let Self { front_end, segments, counters, .. } = self;
        let Some(front_end) = front_end else { return pool.give(packet) };
        counters.tx_finished += 1;
        QueuedPacket::each(packet, LinkType::Ethernet, pool, |mut segment, pool| {
            let accepts = |packet: &Packet| front_end.device().accepts(&packet.meta);
            if !accepts(segment.packet()) {
                segment.complete_checksum();
            }
            let segment = segment.into_packet();
            if accepts(&segment) {
                segments.push_back(segment);
            } else {
                counters.tx_malformed += 1;
                pool.give(segment);
            }
        });
    }
}

impl Port for VhostPort {
    fn poll(&mut self, now_ns: u64, pool: &mut Pool, out: &mut Batch, max: usize) -> usize {
        self.look(now_ns, pool);
        let before = out.len();
        if let Some(front_end) = &mut self.front_end {
            front_end.receive(&mut self.counters, pool, out, max);
        }
        // The caller need not call `submit` again, because the port has taken the frame.
        self.send_segments(pool);
        out.range_mut(before..).for_each(|packet| packet.meta.arrival_ns = now_ns);
        self.report_faults();
        out.len() - before
    }

    fn submit(&mut self, _: u64, pool: &mut Pool, batch: &mut Batch) -> usize {
        if !self.front_end.as_ref().is_some_and(FrontEnd::is_up) {
            return self.discard(pool, batch);
        }
        let mut taken = 0;
        // Segments of an earlier frame precede the frames of the batch.
        while self.send_segments(pool)
            && let Some(front_end) = &mut self.front_end
        {
            let (sent, end) = front_end.send(&mut self.counters, pool, batch);
            taken += sent;
            match batch.pop_front() {
                Some(packet) if end == SendEnd::Unsupported => self.finish(packet, pool),
                Some(packet) => {
                    batch.push_front(packet);
                    break;
                }
                None => break,
            }
            taken += 1;
        }
        self.report_faults();
        taken
    }

    fn offloads(&self) -> Offloads {
        Offloads { checksum: true, tcp_segmentation: true, udp_segmentation: false }
    }

    fn link_type(&self) -> LinkType {
        LinkType::Ethernet
    }

    fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.list.fd())
    }

    fn looked(&mut self, ready: bool) {
        self.is_ready |= ready;
    }

    /// The descriptor of the port, which is that of epoll, becomes readable when the driver adds
    /// buffers.
    fn blocked(&self) -> bool {
        self.front_end.as_ref().is_some_and(|front_end| front_end.device().is_full())
    }

    fn next_timeout_ns(&self) -> Option<u64> {
        match &self.front_end {
            Some(front_end) => front_end.has_more().then_some(0),
            None => (!self.is_listening).then_some(self.retry_ns),
        }
    }

    fn counters(&self) -> PortCounters {
        vec![("vhost", self.counters.iter().collect())]
    }
}
