//! Connections in TIME-WAIT: a table of small entries, all waiting equally long, and what a segment of one
//! of them means.

use towpath_pool::Pool;
use towpath_tcp::{Instant, TimeWait, TimeWaitVerdict};

use crate::binds::Sharing;
use crate::drop::DropReason;
use crate::flow::{Flow, FlowRef};
use crate::host::Host;
use crate::limits;
use crate::net::IfaceId;
use crate::rx::Incoming;
use crate::slab::{List, Queue};
use crate::socket::FlowSettings;
use crate::stack::Stack;

/// A connection in TIME-WAIT and what its late segments need.
#[derive(Debug)]
pub(crate) struct TimeWaitFlow {
    pub flow: Flow,
    pub state: TimeWait,
    /// How the connection's segments left, and so do the answers in its name.
    pub packet: FlowSettings,
    pub iface: Option<IfaceId>,
    /// It is counted as a user of its port with this sharing.
    pub uses_port: Option<Sharing>,
}

/// The table. An entry whose time is restarted moves to the back, so that the front expires first.
#[derive(Debug, Default)]
pub(crate) struct TimeWaits {
    queue: Queue<TimeWaitFlow>,
    line: List,
}

impl TimeWaits {
    /// Entries.
    pub fn len(&self) -> usize {
        self.queue.len()
    }

    /// Adds one.
    pub fn insert(&mut self, entry: TimeWaitFlow) -> u32 {
        self.queue.push(&mut self.line, entry)
    }

    /// Takes one out.
    pub fn remove(&mut self, index: u32) -> Option<TimeWaitFlow> {
        self.queue.remove(&mut self.line, index)
    }

    /// The entry at `index`.
    pub fn get(&self, index: u32) -> Option<&TimeWaitFlow> {
        self.queue.get(index)
    }

    /// The entry at `index`, to be changed; then call [`TimeWaits::renew`] if its time was restarted.
    pub fn get_mut(&mut self, index: u32) -> Option<&mut TimeWaitFlow> {
        self.queue.get_mut(index)
    }

    /// Its time was restarted.
    pub fn renew(&mut self, index: u32) {
        self.queue.renew(&mut self.line, index);
    }

    /// All entries.
    pub fn iter(&self) -> impl Iterator<Item = &TimeWaitFlow> {
        self.queue.iter()
    }

    /// The one that expires first.
    pub fn oldest(&self) -> Option<u32> {
        self.line.front()
    }

    /// When the first one expires.
    pub fn next_timeout(&self) -> Option<Instant> {
        Some(self.get(self.oldest()?)?.state.expires())
    }
}

impl<H: Host> Stack<H> {
    /// A segment of a connection in TIME-WAIT.
    pub(crate) fn on_time_wait_segment(
        &mut self,
        now: Instant,
        host: &mut H,
        at: u32,
        incoming: Incoming,
        pool: &mut Pool,
    ) {
        let Some(entry) = self.time_waits.get_mut(at) else {
            return self.drop_local(incoming.local, DropReason::TcpNoSocket, pool);
        };
        let before = entry.state.expires();
        let mut verdict = entry.state.on_segment(now, &incoming.segment);
        let (after, iss_min) = (entry.state.expires(), entry.state.iss_min());
        if after != before {
            self.time_waits.renew(at);
        }
        if verdict == TimeWaitVerdict::Reopen {
            match self.taker(now, &incoming) {
                Ok(taker) => {
                    self.counters.tcp_time_wait_reused += 1;
                    self.remove_time_wait(at);
                    return self.take_syn(now, host, taker, incoming, Some(iss_min), pool);
                }
                // Nobody listens any more: it is answered as every other SYN here, and the peer's late
                // segments still find the old connection.
                Err(DropReason::TcpNoSocket) => {
                    let Some(entry) = self.time_waits.get_mut(at) else { return };
                    verdict = entry.state.refuse_syn(now);
                }
                // The peer repeats its SYN; there may be a place for it then.
                Err(reason) => return self.drop_local(incoming.local, reason, pool),
            }
        }
        match (verdict, self.time_waits.get(at)) {
            (TimeWaitVerdict::Ack(outgoing), Some(&TimeWaitFlow { packet, iface, .. })) => {
                let iface = iface.or(self.pinned(incoming.local.iface, &incoming.flow));
                self.reply_as(now, &incoming.flow, iface, packet, &outgoing, pool);
                pool.give(incoming.local.packet);
            }
            (TimeWaitVerdict::Drop(reason), _) => {
                self.drop_local(incoming.local, reason.into(), pool);
            }
            (TimeWaitVerdict::Ack(_) | TimeWaitVerdict::Reopen, _) => {
                self.drop_local(incoming.local, DropReason::TcpUnacceptable, pool);
            }
        }
    }

    pub(crate) fn remove_time_wait(&mut self, at: u32) {
        let Some(entry) = self.time_waits.remove(at) else { return };
        self.flows.remove(self.keys.table.flow(&entry.flow), FlowRef::TimeWait(at));
        if let Some(sharing) = entry.uses_port {
            self.tcp_binds.unuse_port(entry.flow.local_port, entry.flow.local, sharing);
        }
    }

    pub(crate) fn expire_time_waits(&mut self, now: Instant) {
        for _ in 0..limits::TIMERS_A_TURN {
            match (self.time_waits.next_timeout(), self.time_waits.oldest()) {
                (Some(expires), Some(at)) if expires <= now => self.remove_time_wait(at),
                _ => break,
            }
        }
    }
}
