//! A stream socket becomes unconnected again under its slot: connect(2) to AF_UNSPEC, shutdown(2) of a
//! listener or of a connect under way, and a new connect after one that failed.

use std::sync::atomic::Ordering::Release;

use towpath_shm::control::Reply;
use towpath_shm::layout::{Kind, RawAddr, event, flags};
use towpath_stack::{Budget, Family, Linger, SocketId, SocketKind, SocketState};
use towpath_tcp::{Instant, State};

use crate::engine::Engine;
use crate::errno::{EBADF, ECONNRESET, EINVAL, Errno};
use crate::slots::{AF_INET6, present, state};

impl Engine {
    /// The peer gets a reset, connections that nobody took do too, and the socket is as after bind.
    pub(crate) fn disconnect(&mut self, now: Instant, slot: u32) -> Result<Reply, Errno> {
        let entry = self.host.slots.get(slot).ok_or(Errno(EBADF))?;
        let (kind, id) = (entry.kind, entry.id.ok_or(Errno(EINVAL))?);
        let at = self.stack.info(now, id).map(|info| info.state);
        if at == Some(SocketState::Unconnected) && entry.flags & flags::DEAD == 0 {
            return Ok(Reply::default());
        }
        let errno = if at.is_some_and(is_cut_off) { ECONNRESET } else { 0 };
        if kind == Kind::Listener {
            self.close_queue(now, slot);
            if let Some(entry) = self.host.slots.get_mut(slot) {
                entry.kind = Kind::Stream;
                entry.owned = None;
            }
            self.host.slots.shared(slot).kind.store(Kind::Stream as u32, Release);
        }
        self.replace(now, slot, id)?;
        // The reset goes out now, so that the peer is free for the program's next connect.
        let budget = Budget::default();
        self.stack.turn(now, &mut self.host, &mut self.ports, &mut self.pool, budget);
        self.host.slots.shared(slot).error.store(errno, Release);
        let bits = event::RX | event::TX | event::HUP;
        self.host.slots.post(slot, bits | if errno == 0 { 0 } else { event::ERROR });
        Ok(Reply::default())
    }

    /// The socket to connect: after a connect that failed a fresh one, as Linux lets programs try
    /// again.
    pub(crate) fn renew(&mut self, now: Instant, slot: u32) -> Result<SocketId, Errno> {
        let entry = self.host.slots.get(slot).ok_or(Errno(EBADF))?;
        let id = entry.id.ok_or(Errno(EINVAL))?;
        if entry.flags & flags::DEAD == 0 {
            return Ok(id);
        }
        self.replace(now, slot, id)
    }

    /// Puts a fresh socket of the stack into the slot, bound and set as the program wanted the old one,
    /// which is closed.
    fn replace(&mut self, now: Instant, slot: u32, old: SocketId) -> Result<SocketId, Errno> {
        let entry = self.host.slots.get_mut(slot).ok_or(Errno(EBADF))?;
        let family = if entry.family == AF_INET6 { Family::V6 } else { Family::V4 };
        let fresh = self.stack.open(SocketKind::Stream, family, slot)?;
        entry.id = Some(fresh);
        // The old one's `Closed` is not ours.
        entry.former += 1;
        let congestion = entry.rare().congestion;
        let local =
            entry.rare().bound.map_or(RawAddr::default(), |bound| present(entry.family, bound));
        let bound = if entry.rare().bound.is_some() { flags::BOUND } else { 0 };
        if bound != 0 {
            self.stack.hand_over(old, fresh);
        }
        self.stack.close(now, old, Linger::Abort);
        let shared = self.host.slots.shared(slot);
        shared.state.store(state::CLOSE, Release);
        shared.local.store(&local);
        shared.remote.store(&RawAddr::default());
        self.host.slots.set_flags(slot, bound, !bound);
        self.set_again(now, slot, congestion);
        Ok(fresh)
    }
}

/// Whether a disconnect in this state is an error for whoever still uses the connection.
fn is_cut_off(at: SocketState) -> bool {
    let SocketState::Tcp(at) = at else { return false };
    matches!(
        at,
        State::SynSent
            | State::SynReceived
            | State::Established
            | State::CloseWait
            | State::FinWait1
            | State::FinWait2
    )
}
