//! Opens sockets of [`DirectCalls`], and sets their options.

use std::collections::VecDeque;
use std::net::SocketAddr;

use towpath_stack::{BindOptions, Linger, SocketId, SocketKind, SocketOption};

use crate::calls::{DirectCalls, PrivateHost};
use crate::direct::family_of;
use crate::error::SetUpError;
use crate::handle::SocketHandle;
use crate::options::{DatagramOptions, StreamOptions};
use crate::table::{DirectKind, SocketLife};

impl<H: PrivateHost> DirectCalls<'_, H> {
    /// Opens a socket with the address family of the address `like`.
    pub(crate) fn open(
        &mut self,
        of: SocketKind,
        like: SocketAddr,
        kind: DirectKind,
    ) -> Result<SocketHandle, SetUpError> {
        self.room()?;
        let handle = self.direct.add(kind, SocketLife::Open);
        match self.stack.open(of, family_of(like.ip()), self.direct.first_user + handle.index) {
            Ok(id) => {
                if let Some(entry) = self.direct.table.get_mut(handle) {
                    entry.id = id;
                }
                Ok(handle)
            }
            Err(error) => {
                self.direct.table.remove(handle.index);
                Err(error.into())
            }
        }
    }

    pub(crate) fn set_up_stream(
        &mut self,
        handle: SocketHandle,
        local: Option<SocketAddr>,
        options: &StreamOptions,
    ) -> Result<SocketId, SetUpError> {
        let id = self.direct.open(handle).ok_or(SetUpError::SynForgotten)?.id;
        if let Some(congestion) = options.congestion {
            self.stack.set_option(id, SocketOption::Congestion(congestion))?;
        }
        if options.nodelay {
            self.stack.set_option(id, SocketOption::NoDelay(true))?;
        }
        if options.device.is_some() {
            self.stack.set_option(id, SocketOption::Device(options.device))?;
        }
        if let Some(local) = local {
            let reuse = BindOptions { reuse_addr: true, ..BindOptions::default() };
            self.stack.bind(id, local, reuse)?;
        }
        Ok(id)
    }

    /// Returns the handle if the result is a success. Otherwise closes the socket without an event,
    /// and returns the error.
    pub(crate) fn keep_if(
        &mut self,
        handle: SocketHandle,
        made: Result<(), SetUpError>,
    ) -> Result<SocketHandle, SetUpError> {
        if let (Err(_), Some(entry)) = (&made, self.direct.table.get_mut(handle)) {
            entry.life = SocketLife::Silent;
            let id = entry.id;
            self.stack.close(self.now, id, Linger::Abort);
        }
        made.map(|()| handle)
    }

    fn room(&self) -> Result<(), SetUpError> {
        if self.direct.is_full() {
            return Err(SetUpError::TooMany(self.direct.config.sockets_max));
        }
        Ok(())
    }

    pub(crate) fn datagram_socket(
        &mut self,
        of: SocketKind,
        local: SocketAddr,
        options: &DatagramOptions,
    ) -> Result<SocketHandle, SetUpError> {
        let kind = DirectKind::Datagram { received: VecDeque::new(), bytes: 0 };
        let handle = self.open(of, local, kind)?;
        let made = self.set_up_datagram(handle, local, options);
        self.keep_if(handle, made)
    }

    fn set_up_datagram(
        &mut self,
        handle: SocketHandle,
        local: SocketAddr,
        options: &DatagramOptions,
    ) -> Result<(), SetUpError> {
        let id = self.direct.open(handle).ok_or(SetUpError::SynForgotten)?.id;
        if options.device.is_some() {
            self.stack.set_option(id, SocketOption::Device(options.device))?;
        }
        self.stack.bind(id, local, BindOptions::default())?;
        if let Some(peer) = options.peer {
            self.stack.connect_datagram(self.now, id, peer)?;
        }
        Ok(())
    }
}
