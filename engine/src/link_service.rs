//! Services of a link: protocols that send and receive whole frames on an Ethernet link.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use towpath_pool::{Batch, Checksum, Packet, Pool, Port, PortCounters};
use towpath_tcp::Instant;

/// Maximum number of frames of a service that wait for space in a transmit queue. Further frames
/// are dropped: otherwise peers could cause any number of answers while the queue is full.
const FRAMES_MAX: usize = 256;

/// A protocol below the sockets of an engine, such as a DHCP client, which sends and receives
/// before the host has an address.
///
/// The methods must not block, because they are called on the thread that handles packets.
pub trait LinkService: Send {
    /// Returns whether a frame may be for the service. Called for each received packet, without a
    /// lock or a copy, so that other packets cost little.
    fn concerns(frame: &[u8]) -> bool;

    /// Handles a received frame. Returns true if the stack must not receive it. `is_verified` is
    /// true if the transport checksum was verified, or if a sender on this host has left it
    /// incomplete.
    fn on_frame(&mut self, now: Instant, frame: &[u8], is_verified: bool) -> bool;

    /// Called when the time returned by [`Self::next_timeout`] is reached.
    fn on_timeout(&mut self, now: Instant);

    /// Returns the next frame to send. Called after each call of another method, repeatedly until
    /// it returns `None`.
    fn poll_frame(&mut self) -> Option<Vec<u8>>;

    /// Returns the time at which [`Self::on_timeout`] must be called. `None`: never.
    fn next_timeout(&self) -> Option<Instant>;

    /// Prepares final frames, because the port is about to be closed.
    fn on_close(&mut self, now: Instant) {
        let _ = now;
    }

    /// Returns the counters of the service, with their names.
    fn counters(&self) -> PortCounters {
        PortCounters::new()
    }
}

/// A link service (such as a DHCP client) shared by the queues of a port and by threads that
/// control the service.
#[derive(Debug)]
pub struct SharedLinkService<S>(Arc<ServiceState<S>>);

#[derive(Debug)]
struct ServiceState<S> {
    service: Mutex<S>,
    /// Time in nanoseconds at which a port must call the service. `u64::MAX`: never.
    due_ns: AtomicU64,
    /// Number of port queues to which the service was added.
    queues: AtomicU64,
}

impl<S> Clone for SharedLinkService<S> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<S: LinkService> SharedLinkService<S> {
    /// Makes a service available to several queues and threads.
    pub fn new(service: S) -> Self {
        let due_ns = AtomicU64::new(due(&service));
        let (service, queues) = (Mutex::new(service), AtomicU64::new(0));
        Self(Arc::new(ServiceState { service, due_ns, queues }))
    }

    /// Wraps a queue of a port, so that received frames are passed to the service. All queues of
    /// the port must be wrapped, because a frame may arrive at any of them.
    pub fn serve<P: Port>(&self, port: P) -> LinkServicePort<P, S> {
        let is_first = self.0.queues.fetch_add(1, Relaxed) == 0;
        let (shared, frames) = (self.clone(), Batch::new());
        LinkServicePort { port, shared, frames, is_first, polled_ns: 0 }
    }

    /// Calls the service from another thread, to read or set its parameters. The call must not
    /// result in frames to send or change timeouts. Keep the call short, because the engine's
    /// thread may wait for it.
    pub fn with<T>(&self, call: impl FnOnce(&mut S) -> T) -> T {
        call(&mut self.lock())
    }

    /// Calls the service on the engine's thread, as part of
    /// [`Remote::on_first_shard`](crate::Remote::on_first_shard). The call may change timeouts, but
    /// must not result in frames to send.
    pub fn reschedule<T>(&self, call: impl FnOnce(&mut S) -> T) -> T {
        let mut service = self.lock();
        let result = call(&mut service);
        self.0.due_ns.store(due(&*service), Relaxed);
        result
    }

    fn lock(&self) -> MutexGuard<'_, S> {
        self.0.service.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn due(service: &impl LinkService) -> u64 {
    service.next_timeout().map_or(u64::MAX, |at| at.0)
}

/// A queue of a port whose link has a service.
pub struct LinkServicePort<P: Port, S: LinkService> {
    port: P,
    shared: SharedLinkService<S>,
    /// Frames of the service that wait until the port accepts them.
    frames: Batch,
    /// Whether this is the port's first queue. The first queue reports the counters of the service,
    /// and closes it.
    is_first: bool,
    /// Time of the last poll in nanoseconds.
    polled_ns: u64,
}

impl<P: Port, S: LinkService> LinkServicePort<P, S> {
    /// Passes received packets to the service, from index `first` on, and removes those that the
    /// stack must not receive.
    fn receive(&mut self, now_ns: u64, pool: &mut Pool, out: &mut Batch, first: usize) {
        let mut at = first;
        while let Some(packet) = out.get(at) {
            let is_taken = packet.meta.vlan.is_none()
                && S::concerns(packet.linear())
                && self.call(pool, |service| {
                    let is_verified = packet.meta.checksum != Checksum::Unknown;
                    service.on_frame(Instant(now_ns), packet.linear(), is_verified)
                });
            if !is_taken {
                at += 1;
            } else if let Some(packet) = out.remove(at) {
                pool.give(packet);
            }
        }
    }

    /// Calls the service, then queues the frames that it wants to send.
    fn call<T>(&mut self, pool: &mut Pool, call: impl FnOnce(&mut S) -> T) -> T {
        let mut service = self.shared.lock();
        let result = call(&mut service);
        while let Some(frame) = service.poll_frame() {
            if self.frames.len() < FRAMES_MAX {
                self.frames.push_back(packet(pool, &frame));
            }
        }
        self.shared.0.due_ns.store(due(&*service), Relaxed);
        result
    }

    fn send(&mut self, now_ns: u64, pool: &mut Pool) {
        if !self.frames.is_empty() {
            self.port.submit(now_ns, pool, &mut self.frames);
        }
    }
}

impl<P: Port, S: LinkService> Drop for LinkServicePort<P, S> {
    fn drop(&mut self) {
        if self.is_first {
            let (mut pool, now_ns) = (Pool::default(), self.polled_ns);
            self.call(&mut pool, |service| service.on_close(Instant(now_ns)));
            self.send(now_ns, &mut pool);
        }
    }
}

fn packet(pool: &mut Pool, frame: &[u8]) -> Packet {
    let mut packet = pool.take(frame.len());
    if let Some(bytes) = packet.push_back(frame.len()) {
        bytes.copy_from_slice(frame);
    }
    packet
}

impl<P: Port, S: LinkService> Port for LinkServicePort<P, S> {
    fn poll(&mut self, now_ns: u64, pool: &mut Pool, out: &mut Batch, max: usize) -> usize {
        let first = out.len();
        self.polled_ns = now_ns;
        self.port.poll(now_ns, pool, out, max);
        self.receive(now_ns, pool, out, first);
        if self.shared.0.due_ns.load(Relaxed) <= now_ns {
            self.call(pool, |service| service.on_timeout(Instant(now_ns)));
        }
        self.send(now_ns, pool);
        out.len() - first
    }

    fn submit(&mut self, now_ns: u64, pool: &mut Pool, batch: &mut Batch) -> usize {
        self.send(now_ns, pool);
        // The port is blocked, so do not send more. A call with an empty batch would clear the
        // port's record that it is blocked.
        if !self.frames.is_empty() {
            return 0;
        }
        self.port.submit(now_ns, pool, batch)
    }

    fn next_timeout_ns(&self) -> Option<u64> {
        let due_ns = self.shared.0.due_ns.load(Relaxed);
        let own = (due_ns != u64::MAX).then_some(due_ns);
        self.port.next_timeout_ns().into_iter().chain(own).min()
    }

    fn counters(&self) -> PortCounters {
        match self.is_first {
            true => self.shared.lock().counters(),
            false => PortCounters::new(),
        }
    }

    towpath_pool::forward_port!(port: offloads, link_type, wake_fd, looked, blocked);
    towpath_pool::forward_port!(port: is_gone, undelivered, undelivered_of_ended);
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::os::fd::BorrowedFd;

    use towpath_pool::{LinkType, Offloads};

    use super::*;

    /// Test service for frames that begin with 1. The service answers each frame, one at a time.
    /// The stack does not receive frames whose second byte is 1.
    struct Answers {
        frames: VecDeque<Vec<u8>>,
        at: Option<Instant>,
    }

    impl LinkService for Answers {
        fn concerns(frame: &[u8]) -> bool {
            frame.first() == Some(&1)
        }

        fn on_frame(&mut self, _: Instant, frame: &[u8], is_verified: bool) -> bool {
            self.frames.push_back(vec![2, u8::from(is_verified)]);
            frame.get(1) == Some(&1)
        }

        fn on_timeout(&mut self, now: Instant) {
            if self.at.is_some_and(|at| at <= now) {
                self.at = None;
                self.frames.push_back(vec![3]);
            }
        }

        fn poll_frame(&mut self) -> Option<Vec<u8>> {
            self.frames.pop_front()
        }

        fn next_timeout(&self) -> Option<Instant> {
            self.at
        }

        fn on_close(&mut self, _: Instant) {
            self.frames.push_back(vec![9]);
        }
    }

    /// Test port that queues packets in both directions, with space for a few.
    #[derive(Default)]
    struct Queue {
        rx: Batch,
        tx: Arc<Mutex<Vec<Vec<u8>>>>,
        room: usize,
        is_blocked: bool,
    }

    impl Port for Queue {
        fn poll(&mut self, _: u64, _: &mut Pool, out: &mut Batch, max: usize) -> usize {
            let count = self.rx.len().min(max);
            out.extend(self.rx.drain(..count));
            count
        }

        fn submit(&mut self, _: u64, pool: &mut Pool, batch: &mut Batch) -> usize {
            let count = batch.len().min(self.room);
            self.room -= count;
            for packet in batch.drain(..count) {
                self.tx.lock().expect("no panic").push(packet.linear().to_vec());
                pool.give(packet);
            }
            self.is_blocked = !batch.is_empty();
            count
        }

        fn blocked(&self) -> bool {
            self.is_blocked
        }

        fn offloads(&self) -> Offloads {
            Offloads::default()
        }

        fn link_type(&self) -> LinkType {
            LinkType::Ethernet
        }

        fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
            None
        }
    }

    impl Queue {
        fn sent(&self) -> Vec<Vec<u8>> {
            self.tx.lock().expect("no panic").clone()
        }
    }

    fn queue(pool: &mut Pool, frames: &[&[u8]]) -> Queue {
        let rx = frames.iter().map(|frame| packet(pool, frame)).collect();
        Queue { rx, room: 9, ..Queue::default() }
    }

    fn shared(at: Option<Instant>) -> SharedLinkService<Answers> {
        SharedLinkService::new(Answers { frames: VecDeque::new(), at })
    }

    #[test]
    fn passes_frames_to_the_service_and_the_stack() {
        let (mut pool, mut out) = (Pool::default(), Batch::new());
        let mut inner = queue(&mut pool, &[&[7], &[1, 1], &[1, 0], &[8]]);
        inner.rx[1].meta.checksum = Checksum::Verified;
        inner.rx.push_back(packet(&mut pool, &[1, 1]));
        inner.rx[4].meta.vlan = Some(5);
        let mut port = shared(None).serve(inner);
        assert_eq!(port.poll(0, &mut pool, &mut out, 64), 4);
        let kept: Vec<_> = out.iter().map(|packet| packet.linear().to_vec()).collect();
        assert_eq!(kept, [vec![7], vec![1, 0], vec![8], vec![1, 1]]);
        assert_eq!(port.port.sent(), [vec![2, 1], vec![2, 0]]);
    }

    #[test]
    fn service_is_called_when_due() {
        let (mut pool, mut out) = (Pool::default(), Batch::new());
        let shared = shared(Some(Instant(5)));
        let mut port = shared.serve(queue(&mut pool, &[]));
        assert_eq!(port.next_timeout_ns(), Some(5));
        port.poll(4, &mut pool, &mut out, 64);
        assert!(port.port.sent().is_empty());
        port.poll(5, &mut pool, &mut out, 64);
        assert_eq!((port.port.sent().len(), port.next_timeout_ns()), (1, None));
        assert!(shared.with(|service| service.frames.is_empty()));
    }

    #[test]
    fn rescheduled_service_is_called_when_due() {
        let mut pool = Pool::default();
        let shared = shared(None);
        let port = shared.serve(queue(&mut pool, &[]));
        assert_eq!(port.next_timeout_ns(), None);
        shared.reschedule(|service| service.at = Some(Instant(5)));
        assert_eq!(port.next_timeout_ns(), Some(5));
    }

    #[test]
    fn last_frame_is_sent_once_when_the_port_is_closed() {
        let mut pool = Pool::default();
        let shared = shared(None);
        let ports = [(); 2].map(|()| shared.serve(queue(&mut pool, &[])));
        let sent = [0, 1].map(|at: usize| Arc::clone(&ports[at].port.tx));
        drop(ports);
        let count = |at: usize| sent[at].lock().expect("no panic").len();
        assert_eq!((count(0), count(1)), (1, 0));
    }

    #[test]
    fn few_frames_wait_for_room() {
        let (mut pool, mut out) = (Pool::default(), Batch::new());
        let mut port = shared(None).serve(queue(&mut pool, &[]));
        port.port.room = 0;
        for _ in 0..FRAMES_MAX + 9 {
            port.port.rx.push_back(packet(&mut pool, &[1, 1]));
            port.poll(0, &mut pool, &mut out, 64);
        }
        assert_eq!(port.frames.len(), FRAMES_MAX);
    }

    /// Tests that both queues of a port pass frames to one service.
    #[test]
    fn frames_wait_for_room() {
        let (mut pool, mut out) = (Pool::default(), Batch::new());
        let shared = shared(Some(Instant(5)));
        let mut ports = [(); 2].map(|()| shared.serve(queue(&mut pool, &[])));
        ports[1].port.room = 0;
        ports[1].poll(5, &mut pool, &mut out, 64);
        ports[0].poll(5, &mut pool, &mut out, 64);
        assert!(ports.iter().all(|port| port.port.sent().is_empty()));
        ports[1].submit(5, &mut pool, &mut Batch::new());
        assert!(ports[1].blocked() && !ports[0].blocked());
        ports[1].port.room = 1;
        let mut batch: Batch = [packet(&mut pool, &[4])].into();
        assert_eq!(ports[1].submit(6, &mut pool, &mut batch), 0, "frames come first");
        assert_eq!(ports[1].port.sent(), [vec![3]]);
    }
}
