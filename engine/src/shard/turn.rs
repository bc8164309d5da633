//! Event loop of a shard. A turn is one iteration, which calls all parts of the shard in order.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use towpath_ring::{Status, notification};
use towpath_shm::Fd;
use towpath_stack::{Budget, ShardId, Turn};
use towpath_tcp::Instant;

use crate::ids::ChannelId;
use crate::mail::{ShardCommand, ShardReport};
use crate::query::ShardJob;
use crate::shard::net::Net;
use crate::shard::net::sources::ShardSource;
use crate::shard::peers::ShardPeers;
use crate::shard::peers::message::PeerMessage;
use crate::shard::peers::place::PeerShard;
use crate::shard::processes::Processes;
use crate::shard::requests::commands::COMMANDS_A_TURN;
use crate::shard::requests::rounds::Asker;
use crate::shard::requests::{RequestCx, Requests, ShardView};
use crate::shard::sleep::Sleep;
use crate::shard::sockets::Sockets;
use crate::shard::sockets::ends::PendingEnd;

/// Maximum number of work steps for releasing sockets and processes in one iteration of the event
/// loop, which take about 50 µs.
const ENDS_A_TURN: u64 = 512;
/// Maximum number of runs of the stack that send remaining segments when the engine ends. In one
/// run, a connection sends four packets of 65,000 bytes, so the largest window of 16 MiB takes 65
/// runs.
const LAST_TURNS: usize = 80;

/// A shard: a part of the engine with its own sockets and event loop, which one thread runs at a
/// time.
pub(crate) struct Shard {
    pub net: Net,
    pub sockets: Sockets,
    pub processes: Processes,
    pub requests: Requests,
    pub peers: ShardPeers,
    pub sleep: Sleep,
}

impl Shard {
    /// Creates a shard without processes.
    pub fn new(net: Net, sockets: Sockets) -> Self {
        Self {
            net,
            sockets,
            processes: Processes::default(),
            requests: Requests::default(),
            peers: ShardPeers::default(),
            sleep: Sleep::new(),
        }
    }

    /// Returns the parts of the shard that are read to list sockets and counters.
    pub fn view(&self) -> ShardView<'_> {
        ShardView { net: &self.net, sockets: &self.sockets, channels: &self.processes.channels }
    }

    /// Returns the request handler, and the parts of the shard that are needed to answer requests.
    pub(crate) fn requests(&mut self) -> (&mut Requests, RequestCx<'_>) {
        let Self { net, sockets, processes, requests, peers, .. } = self;
        (requests, RequestCx { net, sockets, processes, peers })
    }

    /// Runs one iteration of the event loop: handles commands of programs, runs the stack, and
    /// handles the results. Returns true if more work is left.
    pub(crate) fn do_turn(&mut self) -> bool {
        self.sockets.counters.turns += 1;
        if self.processes.are_excluded {
            return self.do_turn_without_programs();
        }
        self.net.status.begin_epoch();
        self.read_clocks();
        let (requests, mut cx) = self.requests();
        let commands = requests.drain_commands(&mut cx);
        let turn = self.turn_stack();
        self.answer_requests(false);
        self.processes.continue_batches(&mut self.sockets);
        self.begin_ends();
        let (requests, mut cx) = self.requests();
        requests.continue_query(&mut cx);
        let served = self.sockets.private.serve(&mut self.net, self.sockets.now);
        let more = self.sockets.has_more() || self.processes.has_more() || self.requests.has_more();
        self.net.status.end_epoch();
        turn.more || commands || served || more
    }

    /// Runs one iteration of the event loop in a router, which has no programs. Skips the steps for
    /// programs, because they would be a large part of the cost of the short iteration.
    fn do_turn_without_programs(&mut self) -> bool {
        self.sockets.now = self.net.clock.now();
        let turn = self.turn_stack();
        self.answer_requests(false);
        let (requests, mut cx) = self.requests();
        requests.continue_query(&mut cx);
        let served = self.sockets.private.serve(&mut self.net, self.sockets.now);
        turn.more || served || self.requests.has_more()
    }

    /// Runs the network stack, and applies the results to sockets, programs and processes. Events
    /// of sockets that end late in this call are sent in the next iteration of the event loop,
    /// which follows without a sleep.
    pub(crate) fn turn_stack(&mut self) -> Turn {
        let turn = self.sockets.turn_stack(&mut self.net, &self.peers);
        self.handle_messages();
        if self.processes.are_excluded {
            self.net.notify_observers(self.sockets.now, turn.more);
            return turn;
        }
        self.sockets.after_turn(&mut self.net);
        self.processes.signal_owners(&mut self.sockets);
        self.continue_ends();
        self.sockets.follow_up(&mut self.net, &mut self.processes.channels);
        self.processes.disinherit_unborn(self.sockets.now);
        self.processes.restrict_strangers(&mut self.sockets);
        self.begin_ends();
        while self.processes.cut_off_next(&mut self.sockets, &mut self.net) {
            self.begin_ends();
        }
        self.sockets.await_threads(&mut self.processes.channels);
        self.processes.leave(&mut self.sockets, &self.net);
        turn
    }

    /// Answers requests that are due, and executes their jobs. `looked` is true if the descriptors
    /// were just polled, and ended processes were detached.
    fn answer_requests(&mut self, looked: bool) {
        let (requests, mut cx) = self.requests();
        requests.answer_due(&mut cx, looked);
        while let Some(job) = self.requests.jobs.pop_front() {
            self.do_job(job);
        }
        self.begin_ends();
    }

    /// Updates the counter with the maximum number of work steps in one turn. The number includes
    /// the work for requests.
    pub(crate) fn end_of_turn(&mut self) {
        let counters = &mut self.sockets.counters;
        let work = counters.work - std::mem::replace(&mut self.sleep.worked, counters.work);
        counters.work_turn_max = counters.work_turn_max.max(work);
    }

    pub(crate) fn read_clocks(&mut self) -> Instant {
        self.sockets.read_clocks(&self.net.clock)
    }

    /// Handles the messages that peer shards have sent.
    pub(crate) fn handle_messages(&mut self) {
        for at in 0..self.sockets.inbox.len() {
            let (from, words) = self.sockets.inbox[at];
            self.sockets.counters.work(1);
            self.handle_message(from, words.into());
        }
        self.sockets.inbox.clear();
    }

    fn handle_message(&mut self, from: ShardId, word: PeerMessage) {
        match word {
            PeerMessage::Claimed { listener, child } => {
                self.sockets.free_child(&mut self.net, listener, child, true);
            }
            PeerMessage::Forgotten { listener, child } => {
                self.sockets.free_child(&mut self.net, listener, child, false);
            }
            PeerMessage::End(slot, generation) => {
                self.sockets.ends.push(PendingEnd::Connection(slot, generation));
                self.sockets.ends.push(PendingEnd::Told(from));
            }
            PeerMessage::EndUnclaimed(slot, generation) => {
                self.sockets.end_unclaimed(&mut self.net, slot, generation);
            }
            PeerMessage::Ended => self.sockets.ends.elsewhere.entry(from).or_default().1 += 1,
            PeerMessage::AskRound(number) => {
                self.requests.rounds.next.push_back(Asker::Shard(from, number))
            }
            PeerMessage::Echo(number) => self.net.tell_shard(from, PeerMessage::Done(number)),
            PeerMessage::Done(number) => self.requests.note_done(from, number),
        }
    }

    /// Releases sockets and processes if any were queued for release since the last call.
    pub(crate) fn begin_ends(&mut self) {
        if self.sockets.ends.is_new {
            self.continue_ends();
        }
    }

    /// Releases queued sockets and processes, up to [`ENDS_A_TURN`] work steps.
    pub(crate) fn continue_ends(&mut self) {
        self.sockets.ends.is_new = false;
        let before = self.sockets.counters.work;
        while self.sockets.counters.work - before < ENDS_A_TURN
            && let Some(end) = self.sockets.ends.first()
        {
            self.sockets.counters.work(1);
            match end {
                PendingEnd::Holds(id) if self.let_go_of_next(id) => continue,
                PendingEnd::Holds(id) => {
                    self.processes.end_of_holds(&mut self.sockets, &mut self.net, id);
                }
                PendingEnd::Connection(slot, generation) => {
                    self.sockets.end_unaccepted(&mut self.net, slot, generation);
                }
                PendingEnd::Told(shard) => self.sockets.ends.acknowledge(shard),
            }
            self.sockets.ends.end_first();
        }
    }

    /// Handles the last commands of an ended process, or releases one of its sockets. Returns false
    /// if nothing is left to do for the process.
    fn let_go_of_next(&mut self, id: ChannelId) -> bool {
        if self.processes.has_last_commands(id) {
            // If no command can be read although the ring is not empty, the ring is corrupt. The
            // process is then cut off later in this iteration.
            let before = self.sockets.counters.commands;
            let (requests, mut cx) = self.requests();
            requests.drain_ring(&mut cx, id, COMMANDS_A_TURN, ENDS_A_TURN);
            if self.sockets.counters.commands > before {
                return true;
            }
        }
        self.processes.let_go_of_next(&mut self.sockets, &mut self.net, id)
    }

    /// Resets all connections when the engine ends. Without a reset, a peer could mistake partial
    /// data for complete data. A connection with data to send needs several turns of the stack
    /// before its reset is sent.
    pub(crate) fn hang_up(&mut self) {
        let now = self.read_clocks();
        self.net.stack.reset_connections();
        for _ in 0..LAST_TURNS {
            let budget = Budget { rx_packets: 0, tx_packets: usize::MAX };
            let Net { stack, ports, pool, .. } = &mut self.net;
            let turn = stack.turn(now, &mut self.sockets, &mut ports.list, pool, budget);
            if !turn.more {
                break;
            }
        }
    }

    /// Removes all processes when the engine ends.
    pub(crate) fn forget_all(&mut self) {
        let ids: Vec<_> = self.processes.channels.ids().collect();
        ids.iter().for_each(|id| self.processes.forget(&mut self.net, *id));
        // Wake the threads of programs that sleep on sockets. Without a wake-up, they notice only
        // the end of the engine's thread, but that thread may continue to run.
        ids.into_iter().for_each(|id| self.net.status.wake(id.number()));
    }

    /// Executes a command of the registry, or begins to.
    pub(crate) fn obey(&mut self, order: ShardCommand) {
        self.sleep.told = true;
        if self.sleep.is_asleep {
            // Read the clock, because it is not updated while the shard sleeps, and the command was
            // sent now.
            self.read_clocks();
        }
        match order {
            ShardCommand::Open(newcomer) => {
                self.processes.open(&mut self.sockets, &mut self.net, newcomer);
            }
            ShardCommand::For(id, want) => {
                let (requests, mut cx) = self.requests();
                requests.note_want(&mut cx, id, want);
            }
            ShardCommand::Answer(id, number, reply) => {
                // Ignore the reply if the channel has a new process image, which has sent its own
                // requests.
                let asked = self.processes.channels.get(id).map(|attached| attached.asks.asked);
                if asked == Some(number) {
                    self.processes.channels.answer(id, Ok(*reply));
                }
            }
            ShardCommand::Gone(id) => self.processes.detach(&mut self.sockets, &mut self.net, id),
            // Ignore the command if the channel does not exist any more.
            ShardCommand::CutOff(id) if self.processes.channels.get(id).is_some() => {
                self.processes.channels.to_cut_off.push(id);
            }
            ShardCommand::CutOff(_) => {}
            ShardCommand::Job(job) => self.requests.rounds.next.push_back(Asker::Job(job)),
            ShardCommand::Work(work) => {
                let (requests, mut cx) = self.requests();
                requests.ask(&mut cx, work);
            }
            ShardCommand::Leave(number, whose) => {
                self.processes.begin_to_leave(&self.sockets, number, whose);
            }
            ShardCommand::Stay => self.processes.departure.cancel(),
            ShardCommand::Stop => self.sleep.stopped = true,
        }
        self.begin_ends();
    }

    /// Executes a job of the registry. Runs the stack first, so that a listing of sockets includes
    /// bytes written before the job.
    fn do_job(&mut self, job: ShardJob) {
        self.turn_stack();
        match job {
            ShardJob::Ask(query) => {
                let (requests, mut cx) = self.requests();
                requests.ask(&mut cx, query);
            }
            ShardJob::Settle => self.processes.notices.push(ShardReport::Settled),
        }
    }

    /// Runs one iteration of the event loop. Returns the time until the next one: zero if work is
    /// left, `None` if there is no deadline.
    pub(crate) fn turn(&mut self) -> Option<Duration> {
        let more = self.do_turn();
        let timeout = if more { Some(Duration::ZERO) } else { self.time_left(self.sockets.now) };
        self.sleep.note_turn(self.sockets.now, timeout);
        if timeout == Some(Duration::ZERO) {
            self.look_in_time();
        }
        timeout
    }

    /// Returns whether a sleeping shard has work, without polling its descriptors. Called while
    /// other shards on the same thread are active.
    pub(crate) fn should_wake(&self, now: Instant) -> bool {
        self.sleep.is_over(now) || self.has_something()
    }

    /// Polls the descriptors if the last poll was too long ago. Called if the shard does not sleep.
    pub(crate) fn look_in_time(&mut self) {
        if self.sleep.is_look_due(self.sockets.now) || self.requests.rounds.is_due() {
            self.look();
        }
    }

    /// Begins to sleep. Returns false, without sleeping, if there is work. No command of a program
    /// is missed: see [`towpath_ring::EngineStatus::fall_asleep`].
    pub(crate) fn begin_sleep(&mut self) -> bool {
        let (channels, stack) = (&self.processes.channels, &self.net.stack);
        self.net.status.begin_epoch();
        if !self.net.status.fall_asleep(|| !channels.have_something() && !stack.has_mail()) {
            return false;
        }
        self.net.status.end_epoch();
        self.sockets.counters.sleeps += 1;
        self.net.watch_ports();
        (self.sleep.is_asleep, self.sleep.told) = (true, false);
        true
    }

    /// Called before the event loop pauses without sleeping. If there are no commands, ends the
    /// epoch in the status page. Otherwise a program would wait for the end of the current
    /// iteration, although none is running.
    pub(crate) fn pause(&mut self) {
        self.net.status.begin_epoch();
        if !self.has_something() {
            self.net.status.end_epoch();
        }
    }

    /// Waits for events for at most `timeout`, then ends the sleep. `timeout` is zero if the host
    /// program has already slept for the engine.
    pub(crate) fn sleep(&mut self, timeout: Option<Duration>) {
        self.poll(timeout);
        self.wake();
        self.sleep.looked = self.sockets.now;
        self.serve();
    }

    /// Ends the sleep, without polling the descriptors.
    pub(crate) fn wake(&mut self) {
        // Call `wake_up` only once for each sleep. A second call would mark the status page as
        // asleep again.
        if self.sleep.is_asleep {
            self.net.status.wake_up();
        }
        (self.sleep.is_asleep, self.sleep.told) = (false, false);
        // Read the clock again, because its last value is from the time when the shard fell asleep.
        self.read_clocks();
    }

    /// Polls the shard's descriptors without sleeping. Returns whether any was ready.
    pub(crate) fn look(&mut self) -> bool {
        self.sleep.looked = self.sockets.now;
        self.net.watch_ports();
        self.poll(Some(Duration::ZERO));
        let found = !self.sleep.woken.is_empty();
        self.serve();
        found
    }

    /// Adds the poller of the registry, which runs on the same thread, to the shard's poller. When
    /// it is readable, `registry_calls` of [`Sleep`] is set.
    pub(crate) fn watch_registry(&mut self, fd: BorrowedFd<'_>) -> io::Result<()> {
        self.net.poller.add(fd, ShardSource::Registry)
    }

    /// Adds the notification descriptor of the shard's mailbox to its poller, so that a message
    /// wakes the shard.
    pub(crate) fn watch_mail(&mut self, bell: BorrowedFd<'_>) -> io::Result<()> {
        self.net.poller.add(bell, ShardSource::Mail)
    }

    /// Adds the poller of another shard on the same thread to this shard's poller. Its bit in
    /// `shards_call` of [`Sleep`] is set when it has work.
    pub(crate) fn watch_shard(&mut self, other: &Self) -> io::Result<()> {
        self.net.poller.add(other.as_fd(), ShardSource::Shard(other.sockets.place.number as u8))
    }

    /// Removes a descriptor from the shard's poller.
    pub(crate) fn watch_no_more(&mut self, fd: BorrowedFd<'_>) {
        self.net.poller.remove(fd);
    }

    fn poll(&mut self, timeout: Option<Duration>) {
        self.requests.rounds.gather();
        let looked = self.net.poller.wait(timeout, &mut self.sleep.woken);
        if looked.expect("the engine's own epoll works") {
            self.net.ports.looked(&self.sleep.woken);
        }
    }

    /// Handles the event sources that were ready at the last poll. Detaches ended processes before
    /// it answers requests, so that replies do not contain ended processes.
    fn serve(&mut self) {
        let woken = std::mem::take(&mut self.sleep.woken);
        for &source in &woken {
            match source {
                ShardSource::Gone(id) => {
                    self.processes.detach(&mut self.sockets, &mut self.net, id);
                    self.begin_ends();
                }
                ShardSource::Registry => self.sleep.registry_calls = true,
                ShardSource::Shard(number) => self.sleep.shards_call |= 1 << number,
                // Nothing to do, because rings, commands and ports are checked in every turn of the
                // event loop.
                ShardSource::Doorbell | ShardSource::Mail | ShardSource::Port(_) => {}
            }
        }
        self.sleep.woken = woken;
        self.answer_requests(true);
    }

    /// Returns the time until the shard's earliest deadline. `None` if there is no deadline.
    pub(crate) fn time_left(&self, now: Instant) -> Option<Duration> {
        let own =
            [self.net.next_timeout(), self.sockets.next_timeout(), self.processes.next_timeout()];
        own.into_iter().flatten().min().map(|at| at.since(now))
    }

    /// Returns whether a program has written a command or request, or a peer shard has sent a
    /// message.
    pub(crate) fn has_something(&self) -> bool {
        self.processes.channels.have_something() || self.net.stack.has_mail()
    }
}

/// Descriptor of the shard's poller, which is readable when a [sleeping](Shard::begin_sleep) shard
/// has work.
impl AsFd for Shard {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.net.poller.as_fd()
    }
}

/// Creates a notification descriptor for each shard, and passes it to all other shards, which use
/// it to wake the shard.
pub(crate) fn introduce(shards: &mut [Shard]) -> std::io::Result<()> {
    let bells = shards.iter_mut().map(|shard| {
        let bell = Arc::new(notification::create()?);
        shard.watch_mail(bell.as_fd())?;
        Ok((shard.net.status.view(), bell))
    });
    let bells = bells.collect::<std::io::Result<Vec<_>>>()?;
    for (number, shard) in shards.iter_mut().enumerate() {
        let peers = bells.iter().enumerate();
        let peer = |(n, (status, bell)): (usize, &(Status, Arc<Fd>))| {
            (n != number).then(|| PeerShard::new(status.clone(), Arc::clone(bell)))
        };
        shard.peers.list = peers.map(peer).collect();
        // Store the descriptor in its own shard, too, so that it stays open while other threads may
        // write to it.
        shard.peers.bell = bells.get(number).map(|(_, bell)| Arc::clone(bell));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering::Relaxed;

    use towpath_pool::Fragments;
    use towpath_ring::{Attach, EngineSend, SendBuffer, lock_tx, program_fifo};
    use towpath_shm::layout::Kind;

    use crate::shard::sockets::slots::AF_INET;
    use crate::{Engine, EngineConfig};

    const LEN: u32 = 64 << 10;

    /// Creates a socket whose program waits for send buffer space. All bytes were sent and
    /// acknowledged, but a packet still refers to the whole FIFO.
    fn pinned() -> (Engine, u32, Fragments) {
        let mut engine = Engine::new(EngineConfig::default(), Vec::new(), [7; 32]).expect("memory");
        let host = &mut engine.shard.sockets;
        let slot = host.slots.allocate(Kind::Datagram, AF_INET, 17).expect("room");
        let region = host.windows.region().clone();
        let shared = region.slot(slot).expect("it was allocated");
        let mut tx = EngineSend::new(&host.windows, slot, LEN, LEN);
        assert_eq!(tx.attach(), Attach::Done);
        {
            let _guard = lock_tx(shared, shared.generation.load(Relaxed), || true);
            let written = program_fifo::write(&region, shared, 0, &[7; LEN as usize]) as u32;
            assert!(program_fifo::publish(shared, written));
        }
        assert!(tx.pull());
        let packet = tx.peek(0, LEN);
        tx.release(LEN);
        program_fifo::want_room(shared);
        host.slots.get_mut(slot).expect("it is there").owned().tx = Some(tx);
        (engine, slot, packet)
    }

    /// Tests that the program is notified when the last packet that refers to its send FIFO is
    /// dropped. All bytes were acknowledged before, so no other event would notify the program.
    #[test]
    fn who_waits_for_room_is_told_when_packets_have_come_back() {
        let (mut engine, slot, packet) = pinned();
        let shard = &mut engine.shard;
        let region = shard.sockets.windows.region().clone();
        let shared = region.slot(slot).expect("it was allocated");
        shard.return_pinned();
        assert_eq!((program_fifo::room(shared), shared.tx_wanted.load(Relaxed)), (0, 1));
        drop(packet);
        shard.return_pinned();
        assert_eq!((program_fifo::room(shared), shared.tx_wanted.load(Relaxed)), (LEN, 0));
        assert_eq!(shard.sockets.counters.unpinned, 1);
    }

    /// The sweep frees the memory of the empty send FIFO while the program waits for space. Packets
    /// in a slow device still refer to the whole FIFO.
    #[test]
    fn who_waits_for_room_is_told_though_the_memory_was_swept_meanwhile() {
        let (mut engine, slot, packet) = pinned();
        let shard = &mut engine.shard;
        let region = shard.sockets.windows.region().clone();
        let shared = region.slot(slot).expect("it was allocated");
        shard.sockets.watch_memory(slot);
        shard.return_pinned();
        let start = shard.sockets.now;
        for seconds in 0..30 {
            shard.sweep(start + std::time::Duration::from_secs(seconds));
        }
        drop(packet);
        shard.return_pinned();
        assert_eq!(shared.tx_wanted.load(Relaxed), 0, "nobody else would wake the program");
    }
}
