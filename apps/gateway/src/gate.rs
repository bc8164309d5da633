//! Sockets that another process created and passed to us, as in systemd socket activation.
//!
//! The process that passed the socket keeps it, and waits for clients again after our process has
//! ended. Therefore the gateway never shuts the socket down. While the program does not listen,
//! clients wait in the socket's accept queue. Thus the client whose connection caused the program
//! to be started is served, too.

use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, PoisonError};

use rustix::io::{Errno, ioctl_fionbio};
use rustix::net::sockopt;
use towpath_shm::Fd;

use crate::config::ForwardProtocol;
use crate::events::{Events, Interest, Token};
use crate::sys;

/// Switch that determines whether the gateway accepts clients from a passed socket. Shared by the
/// gateway and the part of its stack that observes whether the program listens.
#[derive(Debug, Clone, Default)]
pub(crate) struct Gate(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    is_open: bool,
    /// Epoll set of the gateway that serves the socket, and the socket's token; `None` until one is
    /// assigned.
    watched: Option<(Events, Token)>,
}

impl Gate {
    /// Makes a passed socket non-blocking and sets its options, so that a gateway can serve it.
    ///
    /// # Errors
    /// Returns errors of ioctl(2) and setsockopt(2).
    pub(crate) fn new(socket: &Fd, protocol: ForwardProtocol, v6: bool) -> Result<Self, Errno> {
        // Set O_NONBLOCK, because accept(2) has no flag like MSG_DONTWAIT. O_NONBLOCK affects the
        // process that passed the socket, too, because both share the open file description.
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

    /// Watches `socket` in the epoll set `events` while the gate is open.
    pub(crate) fn watch(&self, socket: &Fd, events: &Events, token: Token) -> Result<(), Errno> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if state.is_open {
            events.watch(socket, token, Interest::Readable)?;
        }
        state.watched = Some((events.share(), token));
        Ok(())
    }

    /// Sets whether the gateway accepts clients from the socket. Opening also reports clients that
    /// already wait in its accept queue.
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
