//! Reads commands from the command rings of programs.

use towpath_shm::layout::{Command, op};

use crate::ids::ChannelId;
use crate::shard::processes::channels::Attached;
use crate::shard::requests::{RequestCx, Requests};

/// Maximum number of commands that are read from one family of processes before other families are
/// served. Handling them takes about 12 µs, as long as waking a program.
pub(crate) const COMMANDS_A_TURN: usize = 128;
/// Maximum number of work steps for commands of one family of processes before other families are
/// served. A command may take several steps, for example if a new socket is also given to child
/// processes that have not begun.
const WORK_A_TURN: u64 = 256;

impl Requests {
    /// Reads commands from the rings of all processes. Returns true if more are left.
    pub(crate) fn drain_commands(&mut self, cx: &mut RequestCx<'_>) -> bool {
        let mut more = false;
        for id in cx.processes.channels.ids() {
            if cx.processes.channels.get(id).is_some_and(Attached::has_request) {
                self.rounds.note_request(&mut cx.processes.channels, id);
            }
            more |= self.drain_share(cx, id);
        }
        cx.sockets.send_put_off(cx.net);
        more
    }

    /// Reads the commands that were in the rings at the last [`Channels::mark`], as far as the
    /// limit of work allows.
    pub(crate) fn drain_marked(&mut self, cx: &mut RequestCx<'_>) {
        for id in cx.processes.channels.ids() {
            let link = cx.processes.channels.get(id).and_then(|attached| attached.link.as_ref());
            if link.is_some_and(|link| link.ring.is_behind_mark()) {
                self.drain_share(cx, id);
            }
        }
    }

    /// Reads commands of a process: at least one, and at most its part of the limit for its family.
    /// Therefore a program does not get more of the engine's time by creating processes. Returns
    /// true if commands are left.
    pub(crate) fn drain_share(&mut self, cx: &mut RequestCx<'_>, id: ChannelId) -> bool {
        let kin = cx.processes.channels.kin(id);
        let commands = (COMMANDS_A_TURN / kin).max(1);
        self.drain_ring(cx, id, commands, (WORK_A_TURN / kin as u64).max(1))
    }

    /// Reads up to `max` commands of one process, and stops earlier after `work` work steps.
    /// Returns true if more are left.
    pub(crate) fn drain_ring(
        &mut self,
        cx: &mut RequestCx<'_>,

        id: ChannelId,
        max: usize,
        work: u64,
    ) -> bool {
        let before = cx.sockets.counters.work;
        for _ in 0..max {
            if cx.sockets.counters.work - before >= work {
                break;
            }
            let Some(link) =
                cx.processes.channels.get_mut(id).and_then(|attached| attached.link.as_mut())
            else {
                return false;
            };
            match link.ring.pop_command() {
                Ok(Some(command)) => self.command(cx, id, &command),
                Ok(None) => return false,
                Err(_) => {
                    cx.processes.channels.to_cut_off.push(id);
                    return false;
                }
            }
        }
        let link = cx.processes.channels.get(id).and_then(|attached| attached.link.as_ref());
        link.is_some_and(|link| link.ring.has_commands())
    }

    pub(crate) fn command(&mut self, cx: &mut RequestCx<'_>, id: ChannelId, command: &Command) {
        let &Command { op, slot, generation, a, .. } = command;
        cx.sockets.counters.commands += 1;
        cx.sockets.counters.work(1);
        match op {
            op::LIST => cx.processes.list(cx.sockets, cx.net, id, slot, generation),
            op::SPAWNED => cx.processes.spawned(cx.sockets, id),
            op::SETTLED => cx.processes.settled(cx.sockets, id, a),
            _ => self.about_socket(cx, id, command),
        }
    }
}

impl Requests {
    /// Handles a command about a socket. Ignores it if the process does not have the socket open,
    /// because the command is late or forged.
    pub(crate) fn about_socket(
        &mut self,
        cx: &mut RequestCx<'_>,
        id: ChannelId,
        command: &Command,
    ) {
        let &Command { slot, generation, .. } = command;
        if command.op == op::UNLOCKED {
            return cx.sockets.unlocked(&mut cx.processes.channels, slot);
        }
        if cx.sockets.slots.find(slot, generation).is_none() {
            cx.sockets.counters.commands_stale += 1;
            return;
        }
        let held = cx.processes.is_held(id, slot);
        match command.op {
            op::ACCEPTED if !held => cx.processes.adopt(cx.sockets, cx.net, id, slot),
            op::TX if held => cx.sockets.transmit(cx.net, slot),
            op::RX_SPACE if held => cx.sockets.received(cx.net, slot),
            op::CLOSE if held => cx.processes.let_go(cx.sockets, cx.net, id, slot),
            op::SHUTDOWN if held => cx.sockets.shut_down(cx.net, slot, command.a),
            op::SETTING if held => cx.sockets.options(cx.net, slot).set(command.a, command.b),
            op::TX_WINDOW if held => cx.sockets.attach_memory(cx.net, slot),
            _ => cx.sockets.counters.commands_stale += 1,
        }
    }
}
