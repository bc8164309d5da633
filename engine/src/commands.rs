//! What programs tell through their command rings.

use towpath_ring::Attach;
use towpath_shm::layout::{Command, Kind, event, flags, op, shut};
use towpath_tcp::Instant;

use crate::channels::Attached;
use crate::engine::Engine;
use crate::ids::ChannelId;

/// Commands taken from the rings of one family of processes before the others have their turn: some 12 µs, about
/// as long as it takes to wake a program.
pub(crate) const COMMANDS_A_TURN: usize = 128;
/// Steps of work for the same. A command is one or more: a process with clones gives each of them what it
/// opens.
const WORK_A_TURN: u64 = 256;

impl Engine {
    /// Takes commands from all rings. True: there are more.
    pub(crate) fn drain_commands(&mut self, now: Instant) -> bool {
        let mut more = false;
        for id in self.host.channels.ids() {
            if self.host.channels.get(id).is_some_and(Attached::asks) {
                self.note_request(id);
            }
            more |= self.drain_share(now, id);
        }
        self.send_put_off(now);
        more
    }

    /// Takes some of what was said before [`crate::channels::Channels::mark`], which is all as a rule.
    pub(crate) fn drain_marked(&mut self, now: Instant) {
        for id in self.host.channels.ids() {
            let link = self.host.channels.get(id).and_then(|attached| attached.link.as_ref());
            if link.is_some_and(|link| link.ring.is_behind_mark()) {
                self.drain_share(now, id);
            }
        }
    }

    /// Takes a process's share. A program does not get more of the engine by making more processes: each process of a
    /// family of a hundred has a hundredth of the family's share, and at least one command.
    pub(crate) fn drain_share(&mut self, now: Instant, id: ChannelId) -> bool {
        let kin = self.host.channels.kin(id);
        let commands = (COMMANDS_A_TURN / kin).max(1);
        self.drain_ring(now, id, commands, (WORK_A_TURN / kin as u64).max(1))
    }

    /// Takes up to `max` commands of one program, and begins none after `work` steps of work. True: there are
    /// more.
    pub(crate) fn drain_ring(
        &mut self,
        now: Instant,
        id: ChannelId,
        max: usize,
        work: u64,
    ) -> bool {
        let before = self.host.counters.work;
        for _ in 0..max {
            if self.host.counters.work - before >= work {
                break;
            }
            let Some(link) =
                self.host.channels.get_mut(id).and_then(|attached| attached.link.as_mut())
            else {
                return false;
            };
            match link.ring.pop_command() {
                Ok(Some(command)) => self.command(now, id, &command),
                Ok(None) => return false,
                Err(_) => {
                    self.to_cut_off.push(id);
                    return false;
                }
            }
        }
        let link = self.host.channels.get(id).and_then(|attached| attached.link.as_ref());
        link.is_some_and(|link| link.ring.has_commands())
    }

    pub(crate) fn command(&mut self, now: Instant, id: ChannelId, command: &Command) {
        self.host.counters.commands += 1;
        self.host.counters.work(1);
        let &Command { slot, generation, .. } = command;
        match command.op {
            op::LIST => return self.list(id, slot, generation),
            op::SPAWNED => return self.spawned(now, id),
            op::SETTLED => return self.settled(now, id, command.a),
            op::UNLOCKED => return self.unlocked(slot),
            _ => {}
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
        if how & (shut::READ | shut::WRITE) == shut::READ | shut::WRITE {
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
                // What it has is all that it gets: that is an answer too.
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
