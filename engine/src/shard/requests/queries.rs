//! Implements [`QueryTarget`], on which queries run, for a shard. Long queries continue in each
//! turn of the event loop.

use std::io;

use towpath_pool::Port;
use towpath_stack::IfaceId;
use towpath_stack::net::Net;
use towpath_tcp::{Instant, TcpDefaults};

use crate::config::ResolverConfig;
use crate::mail::ShardReport;
use crate::query::{ListingProgress, QueryTarget, ShardQuery};
use crate::report::{Counters, SocketEntry};
use crate::shard::requests::listings::{ENTRY, no_socket};
use crate::shard::requests::{RequestCx, Requests};

/// Maximum number of work steps for a listing in one turn of the event loop, some 50 µs.
const WORK_A_TURN: u64 = 512;

impl Requests {
    /// Runs a query, and sends its answer to the registry (process manager). If the answer is
    /// incomplete, the query continues in the next iteration of the event loop.
    pub(crate) fn ask(&mut self, cx: &mut RequestCx<'_>, mut query: Box<dyn ShardQuery>) {
        let answer = query.ask(cx);
        if !answer.is_last {
            self.unfinished.push_back(query);
        }
        cx.processes.notices.push(ShardReport::Answered(answer));
    }

    /// Runs the first unfinished query again, which returns the next portion of its answer.
    pub(crate) fn continue_query(&mut self, cx: &mut RequestCx<'_>) {
        if let Some(query) = self.unfinished.pop_front() {
            self.ask(cx, query);
        }
    }
}

impl QueryTarget for RequestCx<'_> {
    fn number(&self) -> u32 {
        self.sockets.place.number
    }

    fn now(&self) -> Instant {
        self.sockets.now
    }

    fn net(&mut self) -> &mut Net {
        &mut self.net.stack.net
    }

    fn attach(&mut self, iface: IfaceId, port: Box<dyn Port + Send>) -> io::Result<()> {
        self.net.attach(iface, port)
    }

    fn detach(&mut self, iface: IfaceId) -> Option<Box<dyn Port + Send>> {
        self.net.detach(self.sockets.now, iface)
    }

    fn tcp_defaults(&self) -> TcpDefaults {
        TcpDefaults::of(&self.net.stack.config().tcp, self.sockets.buffers.recv_max)
    }

    fn set_tcp_defaults(&mut self, defaults: &TcpDefaults) {
        // Without a new maximum, keep the sizes and the window scale of the start.
        let recv_max = defaults.recv_max.filter(|max| *max != self.sockets.buffers.recv_max);
        if let Some(bytes) = recv_max {
            self.sockets.buffers.limit_recv(bytes);
        }
        let mut tcp = self.net.stack.config().tcp;
        TcpDefaults { recv_max, ..*defaults }.apply(&mut tcp);
        self.net.stack.set_tcp(tcp);
    }

    fn set_resolver(&mut self, resolver: Option<ResolverConfig>) {
        self.processes.resolver = resolver;
    }

    fn counters(&self) -> Counters {
        self.view().counters()
    }

    fn unsent(&self) -> u64 {
        self.processes.unsent(self.sockets, self.net) + self.net.stack.net.waiting() as u64
    }

    fn list_sockets(&mut self, progress: &mut ListingProgress) -> Vec<SocketEntry> {
        let mut entries = Vec::new();
        let before = self.sockets.counters.work;
        let (first, end) = (self.sockets.slots.first(), self.sockets.slots.end());
        while self.sockets.counters.work - before < WORK_A_TURN && first + progress.slot < end {
            self.sockets.counters.work(1);
            if let Some(entry) = self.view().entry(first + progress.slot) {
                self.sockets.counters.work(ENTRY);
                entries.push(entry);
            }
            progress.slot += 1;
        }
        let left = WORK_A_TURN.saturating_sub(self.sockets.counters.work - before) / ENTRY as u64;
        // Half-open connections have no permanent numbers. If some are added or removed during the
        // listing, an entry may be listed twice or not at all.
        let mut without = self.net.stack.embryos().skip(progress.without_slot);
        for (local, remote, at) in without.by_ref().take(left as usize) {
            entries.push(no_socket(local, remote, at));
            self.sockets.counters.work(ENTRY);
            progress.without_slot += 1;
        }
        progress.is_done = first + progress.slot >= end && without.next().is_none();
        entries
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use towpath_shm::layout::Kind;

    use super::*;
    use crate::mail::ShardCommand;
    use crate::queries::SocketsQuery;
    use crate::query::{PendingQuery, Portion, ShardJob};
    use crate::shard::sockets::slots::AF_INET;
    use crate::{Engine, EngineConfig};

    #[test]
    fn makes_a_long_listing_in_portions() {
        const SOCKETS: u32 = 3000;
        let mut engine = Engine::new(EngineConfig::default(), Vec::new(), [7; 32]).expect("memory");
        let shard = &mut engine.shard;
        for _ in 0..SOCKETS {
            let slot = shard.sockets.slots.allocate(Kind::Datagram, AF_INET, 17).expect("room");
            shard.sockets.slots.publish(slot);
        }
        let (to, parts) = channel();
        let query = Box::new(PendingQuery::new(SocketsQuery::default(), to));
        shard.obey(ShardCommand::Job(ShardJob::Ask(query)));
        let ends = (0..SOCKETS).any(|_| {
            let before = shard.sockets.counters.work;
            let (requests, mut cx) = shard.requests();
            requests.continue_query(&mut cx);
            assert!(shard.sockets.counters.work - before <= WORK_A_TURN + 2 * ENTRY as u64);
            shard.do_turn();
            shard.look();
            let mut is_answered = false;
            for notice in shard.processes.notices.drain(..) {
                let ShardReport::Answered(answer) = notice else { panic!("{notice:?}") };
                is_answered |= answer.is_last;
                answer.deliver();
            }
            is_answered
        });
        assert!(ends);
        let portion = |part| match part {
            Portion::Last(entries) | Portion::More(entries) => entries,
        };
        let listed: Vec<_> = parts.try_iter().flat_map(portion).map(|entry| entry.slot).collect();
        assert_eq!(listed, (0..SOCKETS).collect::<Vec<_>>());
    }
}
