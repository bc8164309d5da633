//! Commands of programs, from their command rings.

use towpath_shm::layout::{Command, op};
use towpath_tcp::Instant;

use crate::ids::ChannelId;
use crate::shard::Shard;
use crate::shard::channels::Attached;

/// Commands taken from the rings of one family of processes before the others have their turn. A
/// share takes some 12 µs, about as long as waking a program.
pub(crate) const COMMANDS_A_TURN: usize = 128;
/// Steps of work for the same. A command is one or more: a process with clones gives each of them
/// what it opens.
const WORK_A_TURN: u64 = 256;

impl Shard {
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

    /// Takes some of what was said before [`crate::shard::channels::Channels::mark`], which is all
    /// as a rule.
    pub(crate) fn drain_marked(&mut self, now: Instant) {
        for id in self.host.channels.ids() {
            let link = self.host.channels.get(id).and_then(|attached| attached.link.as_ref());
            if link.is_some_and(|link| link.ring.is_behind_mark()) {
                self.drain_share(now, id);
            }
        }
    }

    /// Takes a process's share. A program does not get more of the engine by making more processes.
    /// In a family of a hundred each process has a hundredth of the family's share, and at least
    /// one command.
    pub(crate) fn drain_share(&mut self, now: Instant, id: ChannelId) -> bool {
        let kin = self.host.channels.kin(id);
        let commands = (COMMANDS_A_TURN / kin).max(1);
        self.drain_ring(now, id, commands, (WORK_A_TURN / kin as u64).max(1))
    }

    /// Takes up to `max` commands of one program, and begins none after `work` steps of work. True:
    /// there are more.
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
        let &Command { op, slot, generation, a, .. } = command;
        self.host.counters.commands += 1;
        self.host.counters.work(1);
        match op {
            op::LIST => self.list(id, slot, generation),
            op::SPAWNED => self.spawned(now, id),
            op::SETTLED => self.settled(now, id, a),
            _ => self.about_socket(now, id, command),
        }
    }
}
