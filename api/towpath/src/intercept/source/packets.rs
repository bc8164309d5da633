//! Packets that the program passes itself, by channels or by a stream and a sink.

use std::collections::VecDeque;
use std::io;
use std::os::fd::BorrowedFd;
use std::task::{Context, Poll, Waker};

use bytes::{Bytes, BytesMut};
use towpath_pool::{Batch, LinkType, Offloads, Pool, Port};

/// Size in bytes of the buffers in which sent packets are created. A buffer holds several packets,
/// and is reused after the program has dropped all of them.
const CHUNK_LEN: usize = 64 << 10;
/// Maximum number of sent packets that wait for the program's link. The stack keeps further packets
/// in its own queue.
const WAITING_MAX: usize = 64;

/// Both directions of a link that the program provides. Packets are passed in batches, so that one
/// dynamic call handles many packets.
pub(crate) trait PacketLink: Send {
    /// Appends up to `max` received packets to `to`. Returns `Ready(Ok(false))` when the link has
    /// ended.
    fn poll_receive(
        &mut self,
        cx: &mut Context<'_>,
        to: &mut Vec<Bytes>,
        max: usize,
    ) -> Poll<io::Result<bool>>;

    /// Sends packets from the front of `packets` until it is empty or the link is full. Returns
    /// `Ready(Ok(false))` if the receiver no longer exists.
    fn poll_send(
        &mut self,
        cx: &mut Context<'_>,
        packets: &mut VecDeque<Bytes>,
    ) -> Poll<io::Result<bool>>;
}

/// Port of the stack over a [`PacketLink`]. Its packets are IP packets without a link-layer header.
pub(crate) struct PacketSource {
    link: Box<dyn PacketLink>,
    waker: Waker,
    received: Vec<Bytes>,
    waiting: VecDeque<Bytes>,
    chunk: BytesMut,
    end: Option<io::Result<()>>,
    /// Whether the last receive found fewer packets than requested. The task is then registered,
    /// and woken by further packets.
    is_empty: bool,
    /// Whether the link was full at the last send. The task is then registered, and woken when the
    /// link has room.
    is_blocked: bool,
    counters: PacketCounters,
}

towpath_pool::counters! {
    /// Counters of packets that the source has dropped.
    pub(crate) struct PacketCounters {
        /// Packets from the link that were dropped because they are longer than 64 KiB.
        rx_too_long,
    }
}

impl PacketSource {
    pub(crate) fn new(link: Box<dyn PacketLink>) -> Self {
        Self {
            link,
            waker: Waker::noop().clone(),
            received: Vec::new(),
            waiting: VecDeque::new(),
            chunk: BytesMut::new(),
            end: None,
            is_empty: false,
            is_blocked: false,
            counters: PacketCounters::default(),
        }
    }

    pub(crate) fn set_waker(&mut self, cx: &Context<'_>) {
        self.waker.clone_from(cx.waker());
    }

    pub(crate) fn take_end(&mut self) -> Option<io::Result<()>> {
        self.end.take()
    }

    /// Returns ready unless the last calls have registered the task to be woken by the link.
    pub(crate) fn poll_ready(&mut self) -> Poll<io::Result<()>> {
        if self.is_empty && (self.is_blocked || self.waiting.is_empty()) {
            Poll::Pending
        } else {
            Poll::Ready(Ok(()))
        }
    }

    /// Copies a packet into the current chunk of memory, and returns its part of the chunk.
    fn copy(&mut self, packet: &towpath_pool::Packet) -> Bytes {
        let len = packet.len();
        if self.chunk.capacity() < len {
            self.chunk.reserve(CHUNK_LEN.max(len));
        }
        self.chunk.resize(len, 0);
        packet.copy_to(0, &mut self.chunk);
        self.chunk.split().freeze()
    }

    /// Sends waiting packets to the link until it is full.
    fn flush(&mut self) {
        let mut cx = Context::from_waker(&self.waker);
        self.is_blocked = false;
        match self.link.poll_send(&mut cx, &mut self.waiting) {
            Poll::Ready(Ok(true)) => {}
            Poll::Ready(Ok(false)) => self.end = Some(Ok(())),
            Poll::Ready(Err(error)) => self.end = Some(Err(error)),
            Poll::Pending => self.is_blocked = true,
        }
    }
}

impl Port for PacketSource {
    fn poll(&mut self, now_ns: u64, pool: &mut Pool, out: &mut Batch, max: usize) -> usize {
        let mut cx = Context::from_waker(&self.waker);
        self.is_empty = false;
        match self.link.poll_receive(&mut cx, &mut self.received, max) {
            Poll::Ready(Ok(true)) => {}
            Poll::Ready(Ok(false)) => self.end = Some(Ok(())),
            Poll::Ready(Err(error)) => self.end = Some(Err(error)),
            Poll::Pending => self.is_empty = true,
        }
        let before = out.len();
        for bytes in self.received.drain(..) {
            let mut packet = pool.take(bytes.len());
            match packet.push_back(bytes.len()).filter(|_| bytes.len() <= Pool::LARGE) {
                Some(room) => {
                    room.copy_from_slice(&bytes);
                    packet.meta.arrival_ns = now_ns;
                    out.push_back(packet);
                }
                None => self.counters.rx_too_long += 1,
            }
        }
        out.len() - before
    }

    fn submit(&mut self, _now_ns: u64, pool: &mut Pool, batch: &mut Batch) -> usize {
        let mut taken = 0;
        loop {
            while self.waiting.len() < WAITING_MAX
                && let Some(packet) = batch.pop_front()
            {
                let bytes = self.copy(&packet);
                self.waiting.push_back(bytes);
                pool.give(packet);
                taken += 1;
            }
            // A sink that was full must be flushed even if it has accepted every packet.
            let is_flushed = self.waiting.is_empty() && !self.is_blocked;
            if is_flushed || self.end.is_some() {
                return taken;
            }
            self.flush();
            if self.is_blocked || batch.is_empty() {
                return taken;
            }
        }
    }

    fn offloads(&self) -> Offloads {
        Offloads::default()
    }

    fn link_type(&self) -> LinkType {
        LinkType::Ip
    }

    fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn counters(&self) -> towpath_pool::PortCounters {
        vec![("packets", self.counters.iter().collect())]
    }
}
