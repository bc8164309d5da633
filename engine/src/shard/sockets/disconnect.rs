//! Makes a stream socket unconnected, in the same slot. Used for connect(2) with AF_UNSPEC,
//! shutdown(2) of a listener or of a pending connect, and after a failed connect.

use std::sync::atomic::Ordering::Release;

use towpath_ring::{SocketRecv, SocketSend};
use towpath_shm::control::ControlReply;
use towpath_shm::layout::{Kind, RawAddr, event, flags};
use towpath_stack::{Family, Linger, SocketId, SocketKind, SocketState};
use towpath_tcp::State;

use crate::errno::{EBADF, ECONNRESET, EINVAL, Errno};
use crate::report::STACK_TURN;
use crate::shard::net::Net;
use crate::shard::peers::ShardPeers;
use crate::shard::sockets::Sockets;
use crate::shard::sockets::linux::state;
use crate::shard::sockets::slots::{AF_INET6, present};

impl Sockets {
    /// Disconnects a stream: resets its connection, or all connections in a listener's accept
    /// queue. Keeps the local address and port.
    pub(crate) fn disconnect(
        &mut self,
        net: &mut Net,
        peers: &ShardPeers,
        slot: u32,
    ) -> Result<ControlReply, Errno> {
        let now = self.now;
        let entry = self.slots.get(slot).ok_or(Errno(EBADF))?;
        let (kind, id) = (entry.kind, entry.id.ok_or(Errno(EINVAL))?);
        let at = net.stack.info(now, id).map(|info| info.state);
        if at == Some(SocketState::Unconnected) && entry.flags & flags::DEAD == 0 {
            return Ok(ControlReply::default());
        }
        let errno = if at.is_some_and(is_cut_off) { ECONNRESET } else { 0 };
        if kind == Kind::Listener {
            self.close_queue(net, slot);
            if let Some(entry) = self.slots.get_mut(slot) {
                entry.kind = Kind::Stream;
                entry.owned = None;
            }
            self.slots.shared(slot).kind.store(Kind::Stream as u32, Release);
        }
        // First send bytes that a thread has written to the send buffer without a notification.
        self.transmit(net, slot);
        self.replace(net, slot, id)?;
        // Run the stack, which sends the reset and ends the old connection.
        self.counters.work(STACK_TURN);
        self.turn_stack(net, peers);
        self.slots.shared(slot).error.store(errno, Release);
        let bits = event::RX | event::TX | event::HUP;
        self.slots.post(slot, bits | if errno == 0 { 0 } else { event::ERROR });
        Ok(ControlReply::default())
    }

    /// Returns the stack's socket for a new connect. After a failed connect, creates a new one,
    /// because Linux allows a retry.
    pub(crate) fn renew(&mut self, net: &mut Net, slot: u32) -> Result<SocketId, Errno> {
        let entry = self.slots.get(slot).ok_or(Errno(EBADF))?;
        let id = entry.id.ok_or(Errno(EINVAL))?;
        if entry.flags & flags::DEAD == 0 {
            return Ok(id);
        }
        self.replace(net, slot, id)
    }

    /// Replaces the stack's socket of a slot by a new one with the same local address and options,
    /// and closes the old one.
    pub(crate) fn replace(
        &mut self,
        net: &mut Net,
        slot: u32,
        old: SocketId,
    ) -> Result<SocketId, Errno> {
        let now = self.now;
        let entry = self.slots.get_mut(slot).ok_or(Errno(EBADF))?;
        let family = if entry.family == AF_INET6 { Family::V6 } else { Family::V4 };
        let fresh = net.stack.open(SocketKind::Stream, family, slot)?;
        entry.id = Some(fresh);
        // Count the replaced socket of the stack, so that its later `Closed` event is ignored.
        entry.former += 1;
        if entry.rare().stamps.is_some() {
            entry.set_rare(|rare| rare.stamps.iter_mut().for_each(|it| it.forget_sends()));
        }
        let (family, congestion) = (entry.family, entry.rare().congestion);
        net.stack.hand_over(old, fresh);
        net.stack.close(now, old, Linger::Abort);
        // Send the written bytes now, before their buffer is detached and other connections send.
        // The program may connect from the same port to the same peer next.
        net.stack.send_now(now, self, old, &mut net.pool);
        retire_buffers(net, old);
        let shared = self.slots.shared(slot);
        shared.state.store(state::CLOSE, Release);
        let held = net.stack.info(now, fresh).and_then(|info| info.local);
        let mut local = held.map_or(RawAddr::default(), |local| present(family, local));
        let bound = if local.port == 0 { 0 } else { flags::BOUND };
        if bound == 0 {
            // Keep the port: on Linux, too, getsockname(2) returns the number of a released port.
            local = RawAddr { family: family as u16, port: shared.local.load().port, ..local };
        }
        shared.local.store(&local);
        shared.remote.store(&RawAddr::default());
        self.slots.set_flags(slot, bound, !bound);
        self.options(net, slot).set_again(congestion);
        Ok(fresh)
    }
}

/// Detaches a socket of the stack from its FIFOs, because the slot is about to get new ones. The
/// stack may keep the socket until its reset is sent.
fn retire_buffers(net: &mut Net, old: SocketId) {
    if let Some(recv) = net.stack.recv_buffer(old).and_then(SocketRecv::slot) {
        recv.retire();
    }
    if let Some(send) = net.stack.send_buffer(old).and_then(SocketSend::slot) {
        send.retire();
    }
}

/// Returns whether a disconnect in this state must make other threads' and processes' calls on the
/// connection fail.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shard::sockets::slots::AF_INET;
    use crate::{Engine, EngineConfig};
    use std::sync::atomic::Ordering::Relaxed;
    use towpath_ring::RecvBuffer;
    use towpath_shm::layout::LOCK_ENGINE;

    /// Creates an engine with a socket whose connect is in progress.
    fn connecting() -> (Engine, u32) {
        let mut engine = Engine::new(EngineConfig::default(), Vec::new(), [7; 32]).expect("memory");
        let slot = engine.shard.sockets.slots.allocate(Kind::Stream, AF_INET, 6).expect("room");
        let id = engine.shard.net.stack.open(SocketKind::Stream, Family::V4, slot).expect("room");
        engine.shard.sockets.slots.get_mut(slot).expect("it is there").id = Some(id);
        engine.shard.sockets.slots.publish(slot);
        connect(&mut engine, slot);
        (engine, slot)
    }

    fn connect(engine: &mut Engine, slot: u32) {
        let remote = "127.0.0.1:9".parse().expect("an address");
        engine
            .shard
            .connect_stream(engine.shard.sockets.now, slot, remote, false)
            .expect("a fresh socket");
    }

    /// Tests that an old connection that ends after the new one exists does not free the new
    /// connection's memory. The end may be late, because the stack's work per iteration is limited.
    #[test]
    fn an_old_connection_leaves_the_new_one_its_memory() {
        let (mut engine, slot) = connecting();
        let now = engine.shard.sockets.now;
        let old =
            engine.shard.sockets.slots.get(slot).and_then(|entry| entry.id).expect("it is open");
        engine.shard.replace(now, slot, old).expect("room for one more");
        connect(&mut engine, slot);
        let cap = engine.shard.sockets.slots.shared(slot).tx_cap.load(Relaxed);
        assert_ne!(cap, 0, "there is plenty");
        engine.shard.turn_stack();
        assert!(engine.shard.net.stack.info(now, old).is_none(), "the old one is gone");
        assert_eq!(engine.shard.sockets.slots.shared(slot).tx_cap.load(Relaxed), cap);
        assert_eq!(engine.shard.sockets.windows.usage().assigned, 1);
    }

    /// Tests a disconnect while more connections have data to send than the stack handles in one
    /// iteration.
    #[test]
    fn a_disconnected_socket_connects_again_while_others_wait_for_their_turn() {
        let (mut engine, slot) = connecting();
        let now = engine.shard.sockets.now;
        let id =
            engine.shard.sockets.slots.get(slot).and_then(|entry| entry.id).expect("it is open");
        let local =
            engine.shard.net.stack.info(now, id).and_then(|info| info.local).expect("it connects");
        engine.shard.disconnect(now, slot).expect("it is open");
        let id =
            engine.shard.sockets.slots.get(slot).and_then(|entry| entry.id).expect("it is open");
        engine.shard.net.stack.bind(id, local, Default::default()).expect("it was let go");
        for _ in 0..2 * towpath_stack::Budget::default().tx_packets {
            let other =
                engine.shard.sockets.slots.allocate(Kind::Stream, AF_INET, 6).expect("room");
            let id =
                engine.shard.net.stack.open(SocketKind::Stream, Family::V4, other).expect("room");
            engine.shard.sockets.slots.get_mut(other).expect("it is there").id = Some(id);
            connect(&mut engine, other);
        }
        connect(&mut engine, slot);
        engine.shard.disconnect(now, slot).expect("it is open");
        connect(&mut engine, slot);
    }

    /// A thread is in send(2) and another in recv(2), possibly in the middle of a copy, when the
    /// socket is disconnected.
    #[test]
    fn who_is_inside_while_it_is_disconnected_does_no_harm_to_the_next_connection() {
        let (mut engine, slot) = connecting();
        let now = engine.shard.sockets.now;
        let old =
            engine.shard.sockets.slots.get(slot).and_then(|entry| entry.id).expect("it is open");
        let owner = 1 << towpath_shm::layout::LOCK_CHANNEL_SHIFT | 5;
        let shared = engine.shard.sockets.slots.shared(slot);
        let window = shared.tx_base.load(Relaxed);
        shared.rx_lock.store(owner, Relaxed);
        shared.tx_lock.store(owner, Relaxed);
        let _owner = engine.open_channel();
        engine.shard.replace(now, slot, old).expect("room for one more");
        connect(&mut engine, slot);
        let shared = engine.shard.sockets.slots.shared(slot);
        assert_eq!(shared.tx_cap.load(Relaxed), 0, "memory comes when nobody is inside");
        assert_eq!(shared.tx_lock.load(Relaxed), owner | LOCK_ENGINE);
        // A thread completes its send, which publishes bytes for the old connection.
        shared.tx_tail.store(5, Relaxed);
        let fresh =
            engine.shard.sockets.slots.get(slot).and_then(|entry| entry.id).expect("it is open");
        assert!(
            engine
                .shard
                .net
                .stack
                .send_buffer(fresh)
                .and_then(SocketSend::slot)
                .expect("it is connecting")
                .pull()
        );
        engine.shard.sockets.slots.shared(slot).tx_lock.store(0, Relaxed);
        let byte = towpath_ring::Payload::new(b"n", towpath_shm::Fragments::empty());
        let recv = engine
            .shard
            .net
            .stack
            .recv_buffer(fresh)
            .and_then(SocketRecv::slot)
            .expect("it is connecting");
        assert!(!recv.write_at(0, &byte), "its reader may be at the old positions");
        engine.shard.sockets.slots.shared(slot).rx_lock.store(0, Relaxed);
        let recv = engine
            .shard
            .net
            .stack
            .recv_buffer(fresh)
            .and_then(SocketRecv::slot)
            .expect("it is connecting");
        assert!(recv.write_at(0, &byte));
        let send = engine
            .shard
            .net
            .stack
            .send_buffer(fresh)
            .and_then(SocketSend::slot)
            .expect("it is connecting");
        assert_eq!(send.attach(), towpath_ring::Attach::Done);
        assert!(send.pull());
        assert_eq!(towpath_ring::SendBuffer::len(send), 0);
        let shared = engine.shard.sockets.slots.shared(slot);
        assert_ne!(shared.tx_base.load(Relaxed), window, "the old memory is not free yet");
        assert_eq!(towpath_ring::program_fifo::queued(shared), 0);
    }
}
