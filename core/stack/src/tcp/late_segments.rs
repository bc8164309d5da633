//! Segments that arrive for connections in TIME-WAIT, and the end of TIME-WAIT.

use towpath_tcp::{Instant, TimeWaitVerdict};

use crate::cx::Cx;
use crate::drop::DropReason;
use crate::host::Host;
use crate::incoming::IncomingSegment;
use crate::limits;
use crate::ports::binds::PortUse;
use crate::reply::SegmentReply;
use crate::stack::Stack;
use crate::tables::flow::{Flow, FlowRef};
use crate::tcp::time_wait::TimeWaitFlow;

impl<H: Host> Stack<H> {
    /// Handles a segment that arrives for a connection in TIME-WAIT.
    pub(crate) fn on_time_wait_segment(
        &mut self,
        cx: &mut Cx<'_, H>,
        at: u32,
        incoming: IncomingSegment,
    ) {
        let Some(entry) = self.time_waits.get_mut(at) else {
            return self.drop_local(incoming.local, DropReason::TcpNoSocket, cx.pool);
        };
        let before = entry.state.expires();
        let mut verdict = entry.state.on_segment(cx.now, &incoming.segment);
        let (after, iss_min) = (entry.state.expires(), entry.state.iss_min());
        if after != before {
            self.time_waits.renew(at);
            self.show_time_wait(at, Some(cx.now));
        }
        if verdict == TimeWaitVerdict::Reopen {
            match self.taker(cx.now, &incoming, Some(iss_min)) {
                Ok(taker) => {
                    self.counters.tcp_time_wait_reused += 1;
                    self.remove_time_wait(at);
                    return self.take_syn(cx, taker, incoming, Some(iss_min));
                }
                // The listener was closed, so answer the SYN like any SYN to a port without a
                // listener. Keep the TIME-WAIT state, so that late segments of the peer are still
                // recognized.
                Err(DropReason::TcpNoSocket) => {
                    let Some(entry) = self.time_waits.get_mut(at) else { return };
                    verdict = entry.state.refuse_syn(cx.now);
                }
                // Drop the SYN. The peer retransmits it, and by then the accept queue may have a
                // free place.
                Err(reason) => return self.drop_local(incoming.local, reason, cx.pool),
            }
        }
        match (verdict, self.time_waits.get(at)) {
            (TimeWaitVerdict::Ack(outgoing), Some(&TimeWaitFlow { packet, iface, .. })) => {
                let iface = iface.or(self.pinned(incoming.local.iface, &incoming.flow));
                let flow = &incoming.flow;
                let outgoing = &outgoing;
                let reply = SegmentReply { flow, iface, packet, outgoing, option: None };
                self.reply(cx.now, reply, cx.pool);
                cx.pool.give(incoming.local.packet);
            }
            (TimeWaitVerdict::Drop(reason), _) => {
                self.drop_local(incoming.local, reason.into(), cx.pool);
            }
            (TimeWaitVerdict::Ack(_) | TimeWaitVerdict::Reopen, _) => {
                self.drop_local(incoming.local, DropReason::TcpUnacceptable, cx.pool);
            }
        }
    }

    /// Publishes the time `since` at which a connection entered TIME-WAIT to the other shards;
    /// `None` means that the TIME-WAIT has ended.
    pub(crate) fn show_time_wait(&self, at: u32, since: Option<Instant>) {
        let Some(TimeWaitFlow { flow, state, uses_port, .. }) = self.time_waits.get(at) else {
            return;
        };
        // Publish only connections with timestamps. Without timestamps, a connection in TIME-WAIT
        // cannot be replaced by a new one, so the other shards need not know about it.
        if uses_port.is_some() && state.has_timestamps() {
            let ends = self.keys.table.ends(flow);
            self.ports.tcp.note_time_wait(flow.local_port, ends, since);
        }
    }

    /// Ends the TIME-WAIT of a connection. Removes its flow, and its use of the port.
    pub(crate) fn remove_time_wait(&mut self, at: u32) {
        if let Some(flow) = self.succeed_time_wait(at) {
            self.shards.give_back(&flow);
        }
    }

    /// Ends the TIME-WAIT of a connection that a new connection replaces. The flow remains in this
    /// shard. Otherwise another shard could use it before this shard claims it for the new
    /// connection.
    pub(crate) fn succeed_time_wait(&mut self, at: u32) -> Option<Flow> {
        self.show_time_wait(at, None);
        let TimeWaitFlow { flow, uses_port, .. } = self.time_waits.remove(at)?;
        self.flows.remove(self.keys.table.ends(&flow), FlowRef::TimeWait(at));
        self.ports.end_use(flow.local_port, PortUse { local: flow.local, sharing: uses_port });
        Some(flow)
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
