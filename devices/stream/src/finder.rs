//! Connects to peers or accepts them, one at a time, and has an epoll descriptor that wakes the
//! stack.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::net::SocketType;

use crate::open::{self, LinkRole, LinkSide, OpenError, connect};

/// Time in nanoseconds between attempts to connect to the peer.
const RETRY_NS: u64 = 500_000_000;

/// A side of a link, which has at most one peer at a time.
#[derive(Debug)]
pub struct PeerFinder {
    side: LinkSide,
    kind: SocketType,
    has_peer: bool,
    /// Epoll descriptor for the listening socket while there is no peer. The owner of this value
    /// adds the descriptors of its peer.
    wakes: OwnedFd,
    retry_ns: u64,
    /// Whether accepting a peer failed, for example because no descriptor is free. The listening
    /// socket would wake the stack all the time. The socket is therefore removed from `wakes` until
    /// the time `retry_ns`.
    is_paused: bool,
}

impl PeerFinder {
    /// Event data of the listening socket in the epoll instance. Descriptors of a peer may have the
    /// same, because the listening socket is not watched while there is a peer.
    pub const LISTENER: u64 = 0;

    /// Connects to the peer that listens at `path`, or listens there. Also returns the peer if one
    /// was found. Removes a socket file that was left by a process that was killed, unless the role
    /// is [`LinkRole::Connect`].
    ///
    /// # Errors
    /// Returns [`OpenError`] if the path is in use, or a system call fails.
    pub fn open(
        path: &Path,
        kind: SocketType,
        role: LinkRole,
    ) -> Result<(Self, Option<UnixStream>), OpenError> {
        let failed =
            |source: io::Error| OpenError::System { path: path.display().to_string(), source };
        let (side, peer) = open::open(path, kind, role)?;
        let wakes = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(|e| failed(e.into()))?;
        let has_peer = peer.is_some();
        let finder = Self { side, kind, has_peer, wakes, retry_ns: 0, is_paused: false };
        if !has_peer {
            finder.listen(true).map_err(failed)?;
        }
        Ok((finder, peer))
    }

    /// Returns the epoll descriptor that wakes the stack.
    pub fn wake_fd(&self) -> BorrowedFd<'_> {
        self.wakes.as_fd()
    }

    /// Returns whether this side listens, and the peer connects.
    pub fn is_listening(&self) -> bool {
        matches!(self.side, LinkSide::Listens(_))
    }

    /// Returns the time in nanoseconds of the next attempt to connect to or accept a peer. Returns
    /// `None` with a peer, or if the listening socket will wake the stack.
    pub fn retry_ns(&self) -> Option<u64> {
        (!self.has_peer && self.is_timed()).then_some(self.retry_ns)
    }

    fn is_timed(&self) -> bool {
        self.is_paused || !self.is_listening()
    }

    /// Connects to a peer or accepts one, if there is none. Further peers stay in the socket's
    /// queue until [`Self::lose`].
    pub fn find(&mut self, now_ns: u64) -> Option<UnixStream> {
        if self.has_peer || self.is_timed() && now_ns < self.retry_ns {
            return None;
        }
        if std::mem::take(&mut self.is_paused) {
            self.is_paused = self.listen(true).is_err();
        }
        let found = match &self.side {
            LinkSide::Listens(listener) => listener.accept(),
            LinkSide::Connects(path) => connect(path, self.kind),
        };
        self.retry_ns = now_ns + RETRY_NS;
        match found {
            Ok(peer) => {
                // If the call fails, the listening socket wakes the stack more often than needed.
                let _ = self.listen(false);
                self.has_peer = true;
                Some(peer)
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => None,
            Err(_) => {
                self.is_paused |= self.is_listening();
                if self.is_paused {
                    // Ignore the error: it means that the socket is already removed from epoll.
                    let _ = self.listen(false);
                }
                None
            }
        }
    }

    /// Waits for the next peer, after the connection to the current one was closed.
    pub fn lose(&mut self, now_ns: u64) {
        self.has_peer = false;
        self.retry_ns = now_ns + RETRY_NS;
        // The call fails only if kernel memory is exhausted. Peers then wait until the stack polls
        // for another reason.
        let _ = self.listen(true);
    }

    /// Adds the listening socket to epoll, or removes it.
    fn listen(&self, wanted: bool) -> io::Result<()> {
        let LinkSide::Listens(listener) = &self.side else { return Ok(()) };
        let socket = &listener.socket;
        let data = EventData::new_u64(Self::LISTENER);
        match wanted {
            true => epoll::add(&self.wakes, socket, data, EventFlags::IN)?,
            false => epoll::delete(&self.wakes, socket)?,
        }
        Ok(())
    }
}
