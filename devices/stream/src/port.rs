//! Exchanges Ethernet frames with the peer of a link.

use std::io;
use std::os::fd::BorrowedFd;
use std::path::Path;

use towpath_pool::{Batch, LinkType, Offloads, Pool, Port, PortCounters};

use crate::frames::FRAME_MAX;
use crate::link::{ConnectedPeer, StreamLink};
use crate::open::OpenError;

/// An end of a link over a Unix socket. Frames are dropped while no peer is connected.
#[derive(Debug)]
pub struct StreamPort {
    link: StreamLink,
    counters: Counters,
}

towpath_pool::counters! {
    /// Frame counters of one end of a link.
    #[non_exhaustive]
    pub struct Counters {
        /// Frames received from the peer.
        rx_frames,
        /// Total length of received frames in bytes.
        rx_bytes,
        /// Connections closed because the peer sent an invalid frame length.
        rx_malformed,
        /// Frames sent to the peer.
        tx_frames,
        /// Total length of sent frames in bytes.
        tx_bytes,
        /// Frames dropped because they exceed [`FRAME_MAX`].
        tx_too_long,
        /// Frames dropped because no peer was connected.
        tx_no_peer,
        /// Number of times that the socket's send buffer was full. The frames are sent later.
        tx_blocked,
        /// Number of peers that have connected.
        peers,
    }
}

/// Result of reading the next frame from the peer's socket.
enum NextFrame {
    Frame,
    /// The socket has no complete frame.
    Wait,
    /// The connection must be closed.
    End,
}

impl StreamPort {
    /// Connects to the peer that listens at `path`. If there is none, listens at `path`. Removes a
    /// socket file that was left by a process that was killed.
    ///
    /// # Errors
    /// Returns [`OpenError`] if the path is in use, or a system call fails.
    pub fn open(path: &Path) -> Result<Self, OpenError> {
        let link = StreamLink::open(path)?;
        let peers = link.peer().is_some().into();
        Ok(Self { link, counters: Counters { peers, ..Counters::default() } })
    }

    /// Returns the frame counters of this end of the link.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Receives the next frame from the peer, and appends it to `out`.
    fn receive(&mut self, now_ns: u64, pool: &mut Pool, out: &mut Batch) -> NextFrame {
        let Some(ConnectedPeer { stream, reader, .. }) = self.link.peer_mut() else {
            return NextFrame::Wait;
        };
        while !reader.has_next() {
            match reader.fill(stream) {
                Ok(0) => return NextFrame::End,
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return NextFrame::Wait,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return NextFrame::End,
            }
        }
        let Ok(Some(frame)) = reader.next() else {
            self.counters.rx_malformed += 1;
            return NextFrame::End;
        };
        let mut packet = pool.take(frame.len());
        packet.push_back(frame.len()).expect("taken with room").copy_from_slice(frame);
        packet.meta.arrival_ns = now_ns;
        self.counters.rx_frames += 1;
        self.counters.rx_bytes += frame.len() as u64;
        out.push_back(packet);
        NextFrame::Frame
    }

    /// Moves frames from the front of `batch` to the peer's send buffer until it is full. Returns
    /// the number of frames moved.
    fn append(&mut self, pool: &mut Pool, batch: &mut Batch) -> usize {
        let mut taken = 0;
        while let Some(packet) = batch.pop_front() {
            let len = packet.len();
            if len > FRAME_MAX {
                self.counters.tx_too_long += 1;
            } else if let Some(peer) = self.link.peer_mut() {
                if !peer.writer.push(len, |to| packet.copy_to(0, to)) {
                    batch.push_front(packet);
                    break;
                }
                self.counters.tx_frames += 1;
                self.counters.tx_bytes += len as u64;
            } else {
                self.counters.tx_no_peer += 1;
            }
            taken += 1;
            pool.give(packet);
        }
        taken
    }
}

impl Port for StreamPort {
    fn poll(&mut self, now_ns: u64, pool: &mut Pool, out: &mut Batch, max: usize) -> usize {
        self.counters.peers += u64::from(self.link.find_peer(now_ns));
        if self.link.flush().is_err() {
            self.link.detach(now_ns);
        }
        for received in 0..max {
            match self.receive(now_ns, pool, out) {
                NextFrame::Frame => {}
                NextFrame::Wait => return received,
                NextFrame::End => {
                    self.link.detach(now_ns);
                    return received;
                }
            }
        }
        max
    }

    fn submit(&mut self, now_ns: u64, pool: &mut Pool, batch: &mut Batch) -> usize {
        let mut taken = 0;
        loop {
            taken += self.append(pool, batch);
            if self.link.flush().is_err() {
                self.link.detach(now_ns);
            }
            // If the socket has space again, send the remaining frames at once, because no event
            // would wake the stack.
            let is_full = self.link.peer().is_some_and(|peer| !peer.writer.is_empty());
            if is_full || batch.is_empty() {
                break;
            }
        }
        self.counters.tx_blocked += u64::from(!batch.is_empty());
        taken
    }

    fn offloads(&self) -> Offloads {
        Offloads::default()
    }

    fn link_type(&self) -> LinkType {
        LinkType::Ethernet
    }

    fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.link.wake_fd())
    }

    /// Returns whether the socket's send buffer is full. The port's epoll descriptor becomes
    /// readable when there is space.
    fn blocked(&self) -> bool {
        self.link.peer().is_some_and(|peer| !peer.writer.is_empty())
    }

    fn next_timeout_ns(&self) -> Option<u64> {
        let has_frames = self.link.peer().is_some_and(|peer| peer.reader.has_next());
        if has_frames { Some(0) } else { self.link.retry_ns() }
    }

    fn counters(&self) -> PortCounters {
        vec![("stream", self.counters.iter().collect())]
    }
}
