//! The connection to a peer, and an epoll descriptor that wakes the stack.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::event::epoll::{self, EventData, EventFlags};

use crate::frames::{FrameReader, FrameWriter};
use crate::open::{LinkSide, connect};

/// Time in nanoseconds between attempts to connect to the peer.
const RETRY_NS: u64 = 500_000_000;

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
    side: LinkSide,
    peer: Option<ConnectedPeer>,
    /// Epoll descriptor for the peer's socket or, without a peer, for the listening socket.
    wakes: OwnedFd,
    retry_ns: u64,
    /// Whether accepting a peer failed, for example because no descriptor is free. The listening
    /// socket would wake the stack all the time. The socket is therefore removed from `wakes` until
    /// the time `retry_ns`.
    is_paused: bool,
}

impl StreamLink {
    pub(crate) fn new(side: LinkSide, stream: Option<UnixStream>) -> io::Result<Self> {
        let wakes = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let mut link = Self { side, peer: None, wakes, retry_ns: 0, is_paused: false };
        link.listen(true)?;
        if let Some(stream) = stream {
            link.attach(stream)?;
        }
        Ok(link)
    }

    pub(crate) fn wake_fd(&self) -> BorrowedFd<'_> {
        self.wakes.as_fd()
    }

    /// Returns the time in nanoseconds of the next attempt to connect to or accept a peer. Returns
    /// `None` with a peer, or if the listening socket will wake the stack.
    pub(crate) fn retry_ns(&self) -> Option<u64> {
        let is_timed = self.is_paused || matches!(self.side, LinkSide::Connects(_));
        let waits = self.peer.is_none() && is_timed;
        waits.then_some(self.retry_ns)
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
        if self.peer.is_some() {
            return false;
        }
        let is_timed = self.is_paused || matches!(self.side, LinkSide::Connects(_));
        if is_timed && now_ns < self.retry_ns {
            return false;
        }
        if std::mem::take(&mut self.is_paused) {
            self.is_paused = self.listen(true).is_err();
        }
        let found = match &self.side {
            LinkSide::Listens(listener) => listener.accept(),
            LinkSide::Connects(path) => connect(path),
        };
        self.retry_ns = now_ns + RETRY_NS;
        match found.and_then(|stream| self.attach(stream)) {
            Ok(()) => true,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => false,
            Err(_) => {
                self.is_paused |= matches!(self.side, LinkSide::Listens(_));
                if self.is_paused {
                    // Ignore the error: it means that the socket is already removed from epoll.
                    let _ = self.listen(false);
                }
                false
            }
        }
    }

    /// Closes the connection to the peer. Frames that are received or sent only partially are lost.
    pub(crate) fn detach(&mut self, now_ns: u64) {
        self.peer = None;
        self.retry_ns = now_ns + RETRY_NS;
        // The call fails only if kernel memory is exhausted. Peers then wait until the stack polls
        // for another reason.
        let _ = self.listen(true);
    }

    /// Sends as many bytes as the socket accepts. If some are left, waits for room with epoll.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        let Some(peer) = &mut self.peer else { return Ok(()) };
        peer.writer.flush(&mut peer.stream)?;
        let waits = !peer.writer.is_empty();
        if waits != peer.waits_for_room {
            let room = if waits { EventFlags::OUT } else { EventFlags::empty() };
            let data = EventData::new_u64(0);
            epoll::modify(&self.wakes, &peer.stream, data, EventFlags::IN | room)?;
            peer.waits_for_room = waits;
        }
        Ok(())
    }

    fn attach(&mut self, stream: UnixStream) -> io::Result<()> {
        epoll::add(&self.wakes, &stream, EventData::new_u64(0), EventFlags::IN)?;
        let (reader, writer) = (FrameReader::new(), FrameWriter::new());
        self.peer = Some(ConnectedPeer { stream, reader, writer, waits_for_room: false });
        // Stop waiting for further peers. Further peers stay in the socket's queue until this peer
        // disconnects.
        self.listen(false)
    }

    /// Adds the listening socket to epoll, or removes it.
    fn listen(&self, wanted: bool) -> io::Result<()> {
        let LinkSide::Listens(listener) = &self.side else { return Ok(()) };
        let socket = &listener.socket;
        match wanted {
            true => epoll::add(&self.wakes, socket, EventData::new_u64(0), EventFlags::IN)?,
            false => epoll::delete(&self.wakes, socket)?,
        }
        Ok(())
    }
}
