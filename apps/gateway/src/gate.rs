//! Sockets that another process created and passed to us, as in systemd socket activation.
//!
//! The owner keeps such a socket and waits on it again after the run, so the gateway never shuts it
//! down. While the program does not listen, clients wait in the socket's accept queue. Thus the
//! client that triggered the start of the run is served, too.

use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, PoisonError};

use rustix::io::{Errno, ioctl_fionbio};
use rustix::net::sockopt;
use towpath_shm::Fd;

use crate::config::ForwardProtocol;
use crate::events::{Events, Interest, Token};
use crate::sys;

/// Opens and closes a passed socket for the gateway that accepts from it. The gateway and the
/// listener observer of its stack share this.
#[derive(Debug, Clone, Default)]
pub(crate) struct Gate(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    is_open: bool,
    /// Epoll set of the gateway that serves the socket; `None` before one is assigned.
    watched: Option<(Events, Token)>,
}

impl Gate {
    /// Makes a passed socket non-blocking and sets its options, so that a gateway can serve it.
    ///
    /// # Errors
    /// Returns errors of ioctl(2) and setsockopt(2).
    pub(crate) fn new(socket: &Fd, protocol: ForwardProtocol, v6: bool) -> Result<Self, Errno> {
        // accept(2) has no MSG_DONTWAIT, so set O_NONBLOCK, although the owner shares the open
        // file.
        ioctl_fionbio(socket, true)?;
        if protocol == ForwardProtocol::Udp {
            sys::enable_packet_info(socket.as_fd(), v6)?;
            sys::enable_details(socket.as_fd(), v6)?;
            if v6 && sockopt::ipv6_v6only(socket) == Ok(false) {
                sys::enable_details(socket.as_fd(), false)?;
            }
        }
        Ok(Self::default())
    }

    /// Watches `socket` in `events` while the gate is open.
    pub(crate) fn watch(&self, socket: &Fd, events: &Events, token: Token) -> Result<(), Errno> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if state.is_open {
            events.watch(socket, token, Interest::Readable)?;
        }
        state.watched = Some((events.share(), token));
        Ok(())
    }

    /// Opens or closes the gate. Opening reports clients that are already waiting.
    pub(crate) fn set(&self, socket: &Fd, is_open: bool) -> Result<(), Errno> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if std::mem::replace(&mut state.is_open, is_open) == is_open {
            return Ok(());
        }
        match &state.watched {
            Some((events, token)) if is_open => events.watch(socket, *token, Interest::Readable),
            Some((events, _)) => events.forget(socket),
            None => Ok(()),
        }
    }
}
