//! Exchanges frames with the peer of a link.

use std::io;
use std::os::fd::BorrowedFd;
use std::path::Path;

use towpath_pool::{Batch, LinkType, Offloads, Pool, Port, PortCounters};

use crate::frames::FRAME_MAX;
use crate::link::{ConnectedPeer, StreamLink};
use crate::open::{self, OpenError};

/// End of a link over a Unix socket. Frames are dropped while it has no peer.
#[derive(Debug)]
pub struct StreamPort {
    link: StreamLink,
    counters: Counters,
}

towpath_pool::counters! {
    /// Frame counters of an end since its creation.
    #[non_exhaustive]
    pub struct Counters {
        /// Frames received.
        rx_frames,
        /// Bytes of frames received.
        rx_bytes,
        /// Connections ended because the peer sent an impossible length.
        rx_malformed,
        /// Frames sent.
        tx_frames,
        /// Bytes of frames sent.
        tx_bytes,
        /// Frames dropped because they exceed [`FRAME_MAX`].
        tx_too_long,
        /// Frames dropped because no peer was connected.
        tx_no_peer,
        /// Times the socket was full. The frames stay with the stack.
        tx_blocked,
        /// Peers that connected.
        peers,
    }
}

/// Result of looking for the next frame.
enum NextFrame {
    Frame,
    /// The socket is empty.
    Wait,
    /// The connection has to end.
    End,
}

impl StreamPort {
    /// Connects to the peer that listens at `path`. Otherwise listens there, and removes a socket
    /// that a killed process has left.
    ///
    /// # Errors
    /// [`OpenError`] if the path is taken, or if the kernel refuses.
    pub fn open(path: &Path) -> Result<Self, OpenError> {
        let failed = |source| OpenError::System { path: path.display().to_string(), source };
        let (side, stream) = open::open(path)?;
        let peers = stream.is_some().into();
        let link = StreamLink::new(side, stream).map_err(failed)?;
        Ok(Self { link, counters: Counters { peers, ..Counters::default() } })
    }

    /// Returns the counters since creation.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Appends the next frame to `out`.
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

    /// Moves frames from the front of `batch` to the buffer of the peer until it is full. Returns
    /// their number.
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
            // With room in the socket nothing would wake the stack, so continue at once.
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

    /// The descriptor is that of an epoll set, which is readable once the socket has room.
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
