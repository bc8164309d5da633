//! Sockets that another process made and handed over, as systemd does for socket activation.
//!
//! Their owner keeps them, and waits on them again when the run has ended. So such a socket is
//! never shut. Clients wait in its queue while the program does not listen, and the gateway takes
//! them when it does. The first client, for which the run was started, is served in this way.

use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, PoisonError};

use rustix::io::{Errno, ioctl_fionbio};
use rustix::net::sockopt;
use towpath_shm::Fd;

use crate::config::ForwardProtocol;
use crate::events::{Events, Interest, Token};
use crate::sys;

/// Whether a gateway takes what comes in on a socket, of which the gateway and the watch of its
/// stack have a copy each.
#[derive(Debug, Clone, Default)]
pub(crate) struct Gate(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    is_open: bool,
    /// Events of the gateway that serves the socket. None: no gateway does yet.
    watched: Option<(Events, Token)>,
}

impl Gate {
    /// Makes a socket that was handed over fit for a gateway.
    ///
    /// # Errors
    /// See setsockopt(2).
    pub(crate) fn new(socket: &Fd, protocol: ForwardProtocol, v6: bool) -> Result<Self, Errno> {
        // O_NONBLOCK is the open file's, so the owner's as well: accept(2) takes no MSG_DONTWAIT.
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

    /// Has `events` tell of `socket` while the gate is open.
    pub(crate) fn watch(&self, socket: &Fd, events: &Events, token: Token) -> Result<(), Errno> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if state.is_open {
            events.watch(socket, token, Interest::Readable)?;
        }
        state.watched = Some((events.share(), token));
        Ok(())
    }

    /// Opens or shuts the gate. Events tell at once of clients that have waited.
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
