//! Commands of programs about their sockets.

use std::sync::atomic::Ordering::Relaxed;

use towpath_ring::Attach;
use towpath_shm::layout::{Command, Kind, event, flags, op, shut};
use towpath_tcp::Instant;

use crate::ids::ChannelId;
use crate::shard::Shard;

impl Shard {
    /// A command about a socket. If the process does not hold the socket, the command has come too
    /// late, or from a program that breaks the rules: nothing happens.
    pub(crate) fn about_socket(&mut self, now: Instant, id: ChannelId, command: &Command) {
        let &Command { slot, generation, .. } = command;
        if command.op == op::UNLOCKED {
            return self.unlocked(slot);
        }
        if self.host.slots.find(slot, generation).is_none() {
            self.host.counters.commands_stale += 1;
            return;
        }
        let held = self.is_held(id, slot);
        match command.op {
            op::ACCEPTED if !held => self.adopt(id, slot),
            op::TX if held => self.transmit(now, slot),
            op::RX_SPACE if held => self.received(now, slot),
            op::CLOSE if held => self.let_go(now, id, slot),
            op::SHUTDOWN if held => self.shut_down(now, slot, command.a),
            op::SETTING if held => self.set(now, slot, command.a, command.b),
            op::TX_WINDOW if held => self.give_memory(slot),
            _ => self.host.counters.commands_stale += 1,
        }
    }

    /// New bytes or datagrams in the transmit FIFO.
    pub(crate) fn transmit(&mut self, now: Instant, slot: u32) {
        let Some(entry) = self.host.slots.get(slot) else { return };
        if entry.is_datagram() {
            self.send_datagrams(now, slot);
        } else if let Some(id) = entry.id
            && let Some(send) = self.stack.send_buffer(id)
            && send.pull()
        {
            self.stack.send_ready(id);
        }
    }

    /// The program read, and we had asked to be told.
    pub(crate) fn received(&mut self, now: Instant, slot: u32) {
        let Some(entry) = self.host.slots.get(slot) else { return };
        if entry.kind != Kind::Stream {
            return;
        }
        if let Some(id) = entry.id {
            self.stack.recv_taken(now, id);
        }
    }

    fn shut_down(&mut self, now: Instant, slot: u32, how: u32) {
        let Some(entry) = self.host.slots.get(slot) else { return };
        let (kind, id) = (entry.kind, entry.id);
        if how & shut::WRITE != 0 && kind == Kind::Stream {
            self.transmit(now, slot);
            if let Some(id) = id {
                self.stack.shutdown_send(id);
            }
            self.host.slots.set_flags(slot, flags::TX_CLOSED, 0);
            self.host.slots.post(slot, event::TX);
            self.host.to_publish.push(slot);
        }
        if how & shut::READ != 0 {
            // The other threads and processes at this socket see the program's own word for it.
            self.host.slots.post(slot, event::RX | event::RDHUP);
        }
        // READ and WRITE, shut one after the other, are as good as both at once. (`shut` is the
        // program's word, and wakes holders of the socket alone.)
        let both = shut::READ | shut::WRITE;
        if (how | self.host.slots.shared(slot).shut.load(Relaxed)) & both == both {
            self.host.slots.post(slot, event::HUP);
        }
    }

    /// Attaches transmit memory, or more of it.
    pub(crate) fn attach_send(&mut self, slot: u32) -> Attach {
        let default = self.host.buffers.datagram;
        let windows = self.host.windows.clone();
        let Some(entry) = self.host.slots.get_mut(slot) else {
            return Attach::Done;
        };
        let send = if entry.is_datagram() {
            let limit = match entry.rare().sndbuf {
                0 => default,
                sndbuf => sndbuf,
            };
            let make = || towpath_ring::EngineSend::new(&windows, slot, limit, limit).for_records();
            Some(entry.owned().tx.get_or_insert_with(make))
        } else {
            entry.id.and_then(|id| self.stack.send_buffer(id))
        };
        // Not connected (any more): nothing will be sent.
        let Some(send) = send else { return Attach::Done };
        let had = send.is_attached();
        let attached = match send.attach() {
            Attach::Done if had => match send.enlarge() {
                // `NoMemory` is an answer, too: the socket gets no more than it has.
                Attach::NoMemory => Attach::Done,
                enlarged => enlarged,
            },
            attached => attached,
        };
        let was_starved =
            self.host.slots.get(slot).is_some_and(|entry| entry.flags & flags::TX_STARVED != 0);
        match attached {
            Attach::Done => {
                self.host.slots.set_flags(slot, 0, flags::TX_STARVED);
                self.host.watch_memory(slot);
                self.host.slots.post(slot, event::TX);
            }
            // A non-blocking writer and poll have to see that a write would block.
            Attach::NoMemory if !was_starved => {
                self.host.slots.set_flags(slot, flags::TX_STARVED, 0);
                self.host.slots.post(slot, event::TX);
            }
            Attach::NoMemory | Attach::Busy => {}
        }
        attached
    }
}
