//! The connection to a peer, with the buffers for both directions.

use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::net::SocketType;

use crate::finder::PeerFinder;
use crate::frames::{FrameReader, FrameWriter};
use crate::open::{LinkRole, OpenError};

/// A connected peer, with the buffers for both directions.
#[derive(Debug)]
pub(crate) struct ConnectedPeer {
    pub(crate) stream: UnixStream,
    pub(crate) reader: FrameReader,
    pub(crate) writer: FrameWriter,
    /// Whether epoll waits until the socket accepts more bytes.
    waits_for_room: bool,
}

/// A link with at most one connected peer.
#[derive(Debug)]
pub(crate) struct StreamLink {
    finder: PeerFinder,
    peer: Option<ConnectedPeer>,
}

impl StreamLink {
    pub(crate) fn open(path: &Path) -> Result<Self, OpenError> {
        let (finder, stream) = PeerFinder::open(path, SocketType::STREAM, LinkRole::Either)?;
        let mut link = Self { finder, peer: None };
        if let Some(stream) = stream {
            let failed = |source| OpenError::System { path: path.display().to_string(), source };
            link.attach(stream).map_err(failed)?;
        }
        Ok(link)
    }

    pub(crate) fn wake_fd(&self) -> BorrowedFd<'_> {
        self.finder.wake_fd()
    }

    /// Returns the time in nanoseconds of the next attempt to connect to or accept a peer. Returns
    /// `None` with a peer, or if the listening socket will wake the stack.
    pub(crate) fn retry_ns(&self) -> Option<u64> {
        self.finder.retry_ns()
    }

    pub(crate) fn peer(&self) -> Option<&ConnectedPeer> {
        self.peer.as_ref()
    }

    pub(crate) fn peer_mut(&mut self) -> Option<&mut ConnectedPeer> {
        self.peer.as_mut()
    }

    /// Connects to a peer or accepts one, if none is connected. Returns whether there is a new
    /// peer.
    pub(crate) fn find_peer(&mut self, now_ns: u64) -> bool {
        let Some(stream) = self.finder.find(now_ns) else { return false };
        let is_attached = self.attach(stream).is_ok();
        if !is_attached {
            self.detach(now_ns);
        }
        is_attached
    }

    /// Closes the connection to the peer. Frames that are received or sent only partially are lost.
    pub(crate) fn detach(&mut self, now_ns: u64) {
        self.peer = None;
        self.finder.lose(now_ns);
    }

    /// Sends as many bytes as the socket accepts. If some are left, waits for room with epoll.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        let Some(peer) = &mut self.peer else { return Ok(()) };
        peer.writer.flush(&mut peer.stream)?;
        let waits = !peer.writer.is_empty();
        if waits != peer.waits_for_room {
            let room = if waits { EventFlags::OUT } else { EventFlags::empty() };
            let data = EventData::new_u64(0);
            epoll::modify(self.finder.wake_fd(), &peer.stream, data, EventFlags::IN | room)?;
            peer.waits_for_room = waits;
        }
        Ok(())
    }

    fn attach(&mut self, stream: UnixStream) -> io::Result<()> {
        let data = EventData::new_u64(0);
        epoll::add(self.finder.wake_fd(), &stream, data, EventFlags::IN)?;
        let (reader, writer) = (FrameReader::new(), FrameWriter::new());
        self.peer = Some(ConnectedPeer { stream, reader, writer, waits_for_room: false });
        Ok(())
    }
}
