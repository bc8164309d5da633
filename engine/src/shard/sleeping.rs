//! When a shard looks at its descriptors, and when it sleeps.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use towpath_tcp::Instant;

use crate::shard::Shard;
use crate::shard::sources::{Source, watch};

/// Interval at which a shard that never sleeps looks at its descriptors. A system call per turn
/// would cost a busy one a tenth of its time.
const LOOK_EVERY: Duration = Duration::from_micros(200);

impl Shard {
    /// Does what there is to do now, some of it at least. Gives how long it may sleep then; zero:
    /// there is more to do. None: nothing has a deadline.
    pub(crate) fn turn(&mut self) -> Option<Duration> {
        let more = self.do_turn();
        let timeout = if more { Some(Duration::ZERO) } else { self.time_left(self.host.now) };
        self.due = timeout.map(|timeout| self.host.now + timeout);
        if timeout == Some(Duration::ZERO) {
            self.look_in_time();
            self.idle_turns = 0;
        } else {
            self.idle_turns = self.idle_turns.saturating_add(1);
        }
        timeout
    }

    /// Whether a sleeping shard has something to do, while its thread is awake. Its descriptors are
    /// not looked at.
    pub(crate) fn should_wake(&self, now: Instant) -> bool {
        self.told || self.due.is_some_and(|due| due <= now) || self.has_something()
    }

    /// Instead of a sleep: looks at the descriptors if that was too long ago.
    pub(crate) fn look_in_time(&mut self) {
        if self.host.now.since(self.looked) >= LOOK_EVERY || self.rounds.is_due() {
            self.look();
        }
    }

    /// False: do not sleep, there is something to do. No program's command is overlooked: see
    /// [`towpath_ring::EngineStatus::fall_asleep`].
    pub(crate) fn begin_sleep(&mut self) -> bool {
        let (channels, stack) = (&self.host.channels, &self.stack);
        self.status.begin_beat();
        if !self.status.fall_asleep(|| !channels.have_something() && !stack.has_mail()) {
            return false;
        }
        self.status.end_beat();
        self.host.counters.sleeps += 1;
        self.watch_ports();
        (self.is_asleep, self.told) = (true, false);
        true
    }

    /// Looks once more before a pause that is no sleep, as [`Self::begin_sleep`] does. Otherwise a
    /// program could wait for a turn that does not come.
    pub(crate) fn pause(&mut self) {
        self.status.begin_beat();
        if !self.has_something() {
            self.status.end_beat();
        }
    }

    /// Sleeps after that, at most so long; zero after a sleep of the host's own.
    pub(crate) fn sleep(&mut self, timeout: Option<Duration>) {
        self.poll(timeout);
        self.wake();
        self.looked = self.host.now;
        self.serve();
    }

    /// The end of a sleep without a look at the descriptors.
    pub(crate) fn wake(&mut self) {
        // Twice, and the page would say that it sleeps.
        if self.is_asleep {
            self.status.wake_up();
        }
        (self.is_asleep, self.told) = (false, false);
        // The work from here on happens now, not at the time of falling asleep.
        self.read_clocks();
    }

    /// Looks at the descriptors without sleeping. Whether there was something.
    pub(crate) fn look(&mut self) -> bool {
        self.looked = self.host.now;
        self.watch_ports();
        self.poll(Some(Duration::ZERO));
        let found = !self.woken.is_empty();
        self.serve();
        found
    }

    /// [`Shard::registry_calls`] is set when this is readable.
    pub(crate) fn watch_registry(&mut self, fd: BorrowedFd<'_>) -> io::Result<()> {
        self.poller.add(fd, Source::Registry)
    }

    /// Adds the mailbox's bell to the descriptors that wake the shard.
    pub(crate) fn watch_mail(&mut self, bell: BorrowedFd<'_>) -> io::Result<()> {
        self.poller.add(bell, Source::Mail)
    }

    /// [`Shard::shards_call`] says so when it has something to do while both sleep.
    pub(crate) fn watch_shard(&mut self, other: &Self) -> io::Result<()> {
        self.poller.add(other.as_fd(), Source::Shard(other.host.place.number as u8))
    }

    /// Removes a descriptor from those that wake the shard.
    pub(crate) fn watch_no_more(&mut self, fd: BorrowedFd<'_>) {
        self.poller.remove(fd);
    }

    fn watch_ports(&mut self) {
        // epoll can only fail for want of a valid descriptor: nothing would ever wake us again.
        let watched = watch(&mut self.poller, &self.ports, &mut self.watched);
        watched.expect("the engine's own epoll works");
    }

    fn poll(&mut self, timeout: Option<Duration>) {
        self.rounds.gather();
        let looked = self.poller.wait(timeout, &mut self.woken);
        if looked.expect("the engine's own epoll works") {
            for (place, port) in (0..).zip(&mut self.ports) {
                port.looked(self.woken.contains(&Source::Port(place)));
            }
        }
    }

    /// Detaches processes that are gone. Requests are answered after that, so that the answers
    /// reflect those ends.
    fn serve(&mut self) {
        let now = self.host.now;
        let woken = std::mem::take(&mut self.woken);
        for &source in &woken {
            match source {
                Source::Gone(id) => self.detach(now, id),
                Source::Registry => self.registry_calls = true,
                Source::Shard(number) => self.shards_call |= 1 << number,
                // Rings, orders and ports are looked at in every turn.
                Source::Doorbell | Source::Mail | Source::Port(_) => {}
            }
        }
        self.woken = woken;
        self.answer_askers(now, true);
    }

    /// Time to the earliest deadline; None: nothing has a deadline.
    pub(crate) fn time_left(&self, now: Instant) -> Option<Duration> {
        let ports = self.ports.iter().filter_map(|port| port.next_timeout_ns()).map(Instant);
        let own = [
            self.stack.next_timeout(),
            self.starved.next(),
            self.lingering_at,
            self.host.offer_again_at,
            self.to_disinherit.front().map(|(until, _)| *until),
            (!self.host.to_sweep.is_empty()).then_some(self.sweep_at),
            self.to_reset_unclaimed.front().map(|orphan| orphan.0),
            self.to_close_parked.first_key_value().map(|(&(until, _), _)| until),
            self.to_restrict.front().map(|(until, _)| *until),
            self.host.to_accept.first_key_value().map(|(&(until, _), _)| until),
            self.leaving.filter(|_| self.unused.is_some()).map(|it| it.next(self.leave_stalled)),
            (!self.to_send.is_empty()).then_some(now),
        ];
        own.into_iter().flatten().chain(ports).min().map(|at| at.since(now))
    }

    /// Whether a program or another shard has said something.
    pub(crate) fn has_something(&self) -> bool {
        self.host.channels.have_something() || self.stack.has_mail()
    }
}

/// A descriptor that is readable when there is something to do, while the shard
/// [sleeps](Shard::begin_sleep).
impl AsFd for Shard {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.poller.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::BorrowedFd;
    use std::sync::{Arc, Mutex};
    use std::time::Duration;

    use rustix::net::{RecvFlags, SendFlags, recv, send};
    use towpath_pool::{Batch, LinkType, Offloads, Pool, Port};
    use towpath_ring::{Channel, push_command};
    use towpath_shm::control::{Request, call};
    use towpath_shm::layout::{Command, op};
    use towpath_stack::net::InterfaceConfig;
    use towpath_wire::MacAddr;

    use crate::clock::Clock;
    use crate::lookout::Lookout;
    use crate::{BUSY_POLL, Engine, EngineConfig, Next};

    /// An engine on whose clock no other thread can seem to take the processor between two looks.
    fn engine(config: EngineConfig, ports: Vec<Box<dyn Port + Send>>) -> Engine {
        let clock = Clock::ByHand(towpath_tcp::Instant(1_000_000_000));
        Engine::with_clock(config, vec![ports], [7; 32], clock).expect("memory")
    }

    /// Before a sleep, what comes on a descriptor is found, too; as long as there is something as a
    /// rule.
    #[test]
    fn a_thread_looks_on_before_it_sleeps_as_long_as_that_pays() {
        let mut engine = engine(EngineConfig::default(), Vec::new());
        let mut controls: Vec<_> = (0..4).map(|_| engine.open_channel().1).collect();
        let settle = |engine: &mut Engine| {
            engine.sleep(Some(Duration::ZERO));
            while engine.turn() == Next::Turn {}
        };
        let mut is_found = |lookout: Option<Lookout>, timeout| {
            settle(&mut engine);
            if let Some(lookout) = lookout {
                engine.shard.lookout = lookout;
            }
            let request = Request { call: call::REGION, ..Request::default() };
            let control = controls.pop().expect("one for each");
            send(&control, request.wire(), SendFlags::empty()).expect("room");
            let is_found = engine.busy_poll(timeout);
            settle(&mut engine);
            assert!(recv(&control, &mut [0; 2048], RecvFlags::DONTWAIT).is_ok(), "in any case");
            // Nothing else comes.
            (0..20).for_each(|_| assert!(!engine.busy_poll(timeout)));
            is_found
        };
        let lookout = |most| Some(Lookout::new(most));
        assert!(!is_found(lookout(Duration::ZERO), None));
        assert!(!is_found(lookout(BUSY_POLL), Some(BUSY_POLL / 2)), "it has a deadline before");
        assert!(is_found(lookout(BUSY_POLL), None));
        assert!(!is_found(None, None), "it has not paid");
    }

    /// A program that says something of no consequence after each look at its ring.
    struct Chatter(Arc<Mutex<Option<Channel>>>);

    impl Port for Chatter {
        fn poll(&mut self, _: u64, _: &mut Pool, _: &mut Batch, _: usize) -> usize {
            if let Some(channel) = &*self.0.lock().expect("one thread") {
                let command = Command { op: op::RX_SPACE, ..Command::default() };
                let _ = push_command(channel, &command);
            }
            0
        }
        fn submit(&mut self, _: u64, _: &mut Pool, _: &mut Batch) -> usize {
            0
        }
        fn offloads(&self) -> Offloads {
            Offloads::default()
        }
        fn link_type(&self) -> LinkType {
            LinkType::Ip
        }
        fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
            None
        }
    }

    /// A program always says something before the moment is over for which a thread looks on before
    /// it sleeps.
    #[test]
    fn a_shard_that_always_finds_something_looks_at_its_descriptors() {
        let interface = InterfaceConfig {
            name: "chatter".into(),
            link: LinkType::Ip,
            mac: MacAddr([0; 6]),
            mtu: 1500,
            offloads: Offloads::default(),
            addresses: Vec::new(),
            slaac: false,
            any_address: false,
            kernel_cuts: false,
            in_process: false,
        };
        let config = EngineConfig { interfaces: vec![interface], ..EngineConfig::default() };
        let channel = Arc::default();
        let port = Box::new(Chatter(Arc::clone(&channel)));
        let mut engine = engine(config, vec![port]);
        engine.shard.lookout = Lookout::new(BUSY_POLL);
        let (one, _control) = engine.open_channel();
        let _given = channel.lock().expect("one thread").insert(engine.link(one).channel).clone();
        let (_other, control) = engine.open_channel();
        let request = Request { call: call::REGION, ..Request::default() };
        send(&control, request.wire(), SendFlags::empty()).expect("room");
        for _ in 0..1000 {
            engine.pass(Duration::from_micros(1));
            assert_eq!(engine.turn(), Next::Sleep(None));
            assert!(engine.busy_poll(None), "the program always says something");
            if recv(&control, &mut [0; 2048], RecvFlags::DONTWAIT).is_ok() {
                return;
            }
        }
        panic!("it is not answered for {} turns", engine.shard.host.counters.turns);
    }
}
