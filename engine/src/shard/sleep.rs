//! Decides when a shard (event loop) polls its descriptors, and when it sleeps.

use std::time::Duration;

use towpath_tcp::Instant;

use crate::lookout::Lookout;
use crate::shard::net::sources::ShardSource;

/// Interval at which a shard (event loop) that never sleeps polls its descriptors. A system call
/// per iteration of the event loop would cost a busy shard a tenth of its time.
const LOOK_EVERY: Duration = Duration::from_micros(200);

/// State of a shard's sleep, and the events that end the sleep.
#[derive(Debug)]
pub(crate) struct Sleep {
    /// Event sources that were ready at the last poll of the descriptors.
    pub woken: Vec<ShardSource>,
    /// Time of the last poll of the descriptors.
    pub looked: Instant,
    /// Whether the registry (process manager) has work on this thread, or has sent commands to this
    /// shard.
    pub registry_calls: bool,
    /// Bit set of the other shards on this thread that have work.
    pub shards_call: u16,
    /// Whether the shard sleeps. Its thread may run other shards at the same time.
    pub is_asleep: bool,
    /// Time at which the shard must run next, as determined in its last iteration; `None` if there
    /// is no deadline.
    pub due: Option<Instant>,
    /// Number of consecutive turns of the event loop without work.
    pub idle_turns: u32,
    /// Whether the registry (process manager) has sent a command to the sleeping shard.
    pub told: bool,
    pub lookout: Lookout,
    /// Value of the counter `work` at the end of the last iteration of the event loop.
    pub worked: u64,
    /// Whether the registry (process manager) has ordered the shard to end its event loop.
    pub stopped: bool,
}

impl Sleep {
    pub fn new() -> Self {
        Self {
            woken: Vec::new(),
            looked: Instant::ZERO,
            registry_calls: false,
            shards_call: 0,
            is_asleep: false,
            due: None,
            idle_turns: 0,
            told: false,
            lookout: Lookout::new(Duration::ZERO),
            worked: 0,
            stopped: false,
        }
    }

    /// Records the result of an iteration of the event loop that ended at `now`. `timeout` is the
    /// time until the next iteration is due.
    pub fn note_turn(&mut self, now: Instant, timeout: Option<Duration>) {
        self.due = timeout.map(|timeout| now + timeout);
        self.idle_turns = match timeout {
            Some(Duration::ZERO) => 0,
            _ => self.idle_turns.saturating_add(1),
        };
    }

    /// Returns whether a sleep is over at `now`, because of a command or a deadline.
    pub fn is_over(&self, now: Instant) -> bool {
        self.told || self.due.is_some_and(|due| due <= now)
    }

    /// Returns whether the descriptors must be polled again at the time `now`.
    pub fn is_look_due(&self, now: Instant) -> bool {
        now.since(self.looked) >= LOOK_EVERY
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

    /// Creates an engine with a manual clock. On this clock, the thread never appears to be
    /// preempted between two polls.
    fn engine(config: EngineConfig, ports: Vec<Box<dyn Port + Send>>) -> Engine {
        let clock = Clock::ByHand(towpath_tcp::Instant(1_000_000_000));
        Engine::with_clock(config, vec![ports], [7; 32], clock).expect("memory")
    }

    /// Tests that a thread polls its descriptors for a short time before it sleeps, as long as that
    /// usually finds events.
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
                engine.shard.sleep.lookout = lookout;
            }
            let request = Request { call: call::REGION, ..Request::default() };
            let control = controls.pop().expect("one for each");
            send(&control, request.wire(), SendFlags::empty()).expect("room");
            let is_found = engine.busy_poll(timeout);
            settle(&mut engine);
            assert!(recv(&control, &mut [0; 2048], RecvFlags::DONTWAIT).is_ok(), "in any case");
            // No more events arrive from now on.
            (0..20).for_each(|_| assert!(!engine.busy_poll(timeout)));
            is_found
        };
        let lookout = |most| Some(Lookout::new(most));
        assert!(!is_found(lookout(Duration::ZERO), None));
        assert!(!is_found(lookout(BUSY_POLL), Some(BUSY_POLL / 2)), "it has a deadline before");
        assert!(is_found(lookout(BUSY_POLL), None));
        assert!(!is_found(None, None), "it has not paid");
    }

    /// Test port that writes a command without effect after each poll of the ring.
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

    /// A program always writes a command before the thread stops polling and sleeps. The thread
    /// must poll its descriptors nevertheless.
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
        engine.shard.sleep.lookout = Lookout::new(BUSY_POLL);
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
        panic!("it is not answered for {} turns", engine.shard.sockets.counters.turns);
    }
}
