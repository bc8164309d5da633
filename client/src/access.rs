//! Access to the state and locks of a socket, which are in its slot in shared memory.

use std::sync::atomic::Ordering::Acquire;

use towpath_ring::{Door, Guard, lock_rx, program_fifo};
use towpath_shm::layout::{AcceptRecord, Kind, Slot, op};

use crate::socket::{Socket, ready};
use crate::state::{datagram_readiness, stream_readiness, take_error};
use crate::{Client, Error};

impl Socket {
    /// Returns the readiness of the socket: bits of [`ready`], as Linux's tcp_poll and
    /// datagram_poll compute them. Reads the socket's shared state without a lock or a system call,
    /// so the state may change at any time.
    pub fn readiness(self, client: &Client) -> u32 {
        use ready::{ERR, HUP, IN, OUT, RDHUP};
        if client.is_dead() {
            return IN | OUT | ERR | HUP | RDHUP;
        }
        let Some(slot) = client.slot(self) else {
            return ERR | HUP;
        };
        match Kind::from_u32(slot.kind.load(Acquire)) {
            Some(Kind::Listener) => {
                let waiting = program_fifo::unread(slot) as usize >= size_of::<AcceptRecord>();
                if waiting { IN } else { 0 }
            }
            Some(Kind::Stream) => stream_readiness(slot),
            Some(Kind::Datagram | Kind::Echo) => datagram_readiness(slot),
            Some(Kind::Free) | None => ERR | HUP,
        }
    }

    /// Returns a value that changes when the input of a socket does: when bytes have arrived, or
    /// the input or the connection has ended.
    pub(crate) fn input(self, client: &Client) -> u64 {
        use ready::{ERR, HUP, PRI, RDHUP};
        let tail = client.slot(self).map_or(0, |slot| slot.rx_tail.load(Acquire));
        u64::from(tail) << 32 | u64::from(self.readiness(client) & (ERR | HUP | PRI | RDHUP))
    }

    /// Requests an event for when the send buffer has free space. Check [`Self::readiness`] again
    /// afterwards, because space that became free before the request causes no event.
    pub fn want_room(self, client: &Client) {
        if let Some(slot) = client.slot(self) {
            program_fifo::want_room(slot);
        }
    }

    /// Clears the pending error (SO_ERROR) of the socket and returns it. If several threads call
    /// this, only one gets the error.
    ///
    /// # Errors
    /// `Refused` with the pending error. `Dead` if the socket was closed and its slot is reused, or
    /// if the engine (the network stack) has ended.
    pub fn take_error(self, client: &Client) -> Result<(), Error> {
        let slot = client.slot(self).ok_or(Error::Dead)?;
        if slot.error.load(Acquire) == 0 {
            return Ok(());
        }
        self.change(client, take_error)?
    }

    /// Prevents the engine (the network stack) from reusing the socket's slot until the result is
    /// dropped. Needed for changes of the slot, which could otherwise affect a new socket. Drop the
    /// result before a sleep.
    ///
    /// # Errors
    /// `Dead` if the socket was closed and its slot is reused, or if the engine has ended.
    pub fn enter(self, client: &Client) -> Result<impl Drop + '_, Error> {
        let slot = client.slot(self).ok_or(Error::Dead)?;
        lock_input(client, self, slot).ok_or(Error::Dead)
    }

    /// Changes fields of the socket's slot in shared memory. During the change, the slot cannot be
    /// reused for another socket.
    ///
    /// # Errors
    /// As for [`Self::enter`].
    pub fn change<T>(self, client: &Client, change: impl FnOnce(&Slot) -> T) -> Result<T, Error> {
        let slot = client.slot(self).ok_or(Error::Dead)?;
        let _inside = self.enter(client)?;
        Ok(change(slot))
    }
}

/// Implements [`Door`] for programs: with it, the locks of a socket notify the engine.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Entrance<'a> {
    pub client: &'a Client,
    pub socket: Socket,
}

impl Door for Entrance<'_> {
    fn channel(&self) -> u32 {
        self.client.process().channel()
    }

    fn engine_lives(&self) -> bool {
        self.client.check_alive()
    }

    #[cold]
    fn tell_unlocked(&self) {
        self.client.socket_command(self.socket, op::UNLOCKED, 0, 0);
    }
}

/// Locks the receive side of a socket. Returns `None` if the socket was closed and its slot is
/// reused, or if the engine has ended.
#[inline]
pub(crate) fn lock_input<'a>(
    client: &'a Client,
    socket: Socket,
    slot: &'a Slot,
) -> Option<Guard<'a, Entrance<'a>>> {
    lock_rx(slot, socket.generation, Entrance { client, socket })
}
