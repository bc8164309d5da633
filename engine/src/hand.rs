//! An engine with a manual clock, for tests and benchmarks.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use towpath_pool::Port;
use towpath_stack::net::{Change, Refused};
use towpath_tcp::Instant;

use crate::clock::Clock;
use crate::config::EngineConfig;
use crate::engine::{Engine, EngineError};
use crate::ids::ChannelId;
use crate::net::NetState;
use crate::report::{Counters, SocketEntry};

/// An [`Engine`] whose event loop runs one iteration for each call of [`Hand::turn`], and never
/// sleeps. Its clock advances only by the time that the caller passes. Equal calls have equal
/// results. Therefore a fuzzer can replay its inputs, and benchmarks can count instructions instead
/// of measuring time.
#[derive(Debug)]
pub struct Hand {
    engine: Engine,
}

impl Hand {
    /// Creates an engine with a manual clock. Otherwise as [`Engine::new`].
    ///
    /// # Errors
    /// As for [`Engine::new`].
    pub fn new(
        config: EngineConfig,
        ports: Vec<Box<dyn Port + Send>>,
        seed: [u8; 32],
    ) -> Result<Self, EngineError> {
        Ok(Self { engine: Engine::with_clock(config, vec![ports], seed, Clock::ByHand(START))? })
    }

    /// Creates a control socket for one process. Otherwise as [`Engine::attach`].
    ///
    /// # Errors
    /// As for [`Engine::attach`].
    pub fn attach(&mut self) -> io::Result<OwnedFd> {
        self.engine.attach()
    }

    /// Advances the clock by `passed`, and runs one iteration of the event loop. Requests that
    /// programs make during this iteration are handled in the next one.
    pub fn turn(&mut self, passed: Duration) {
        self.engine.pass(passed);
        for shard in std::iter::once(&mut self.engine.shard).chain(&mut self.engine.others) {
            shard.do_turn();
            shard.look();
        }
        self.engine.exchange();
        for shard in std::iter::once(&mut self.engine.shard).chain(&mut self.engine.others) {
            shard.end_of_turn();
        }
    }

    /// Returns the counters of all layers, as [`crate::Remote::counters`].
    pub fn counters(&self) -> Counters {
        self.engine.counters()
    }

    /// Returns all sockets of all programs, as [`crate::Remote::sockets`].
    pub fn sockets(&self) -> Vec<SocketEntry> {
        let shards = std::iter::once(&self.engine.shard).chain(&self.engine.others);
        shards.flat_map(|shard| shard.view().sockets()).collect()
    }

    /// Returns interfaces, routes and neighbors, as [`crate::Remote::net`].
    pub fn net(&self) -> NetState {
        let mut state =
            NetState::of(&self.engine.shard.net.stack.net, self.engine.shard.sockets.now);
        self.engine.others.iter().for_each(|other| state.add(other.net.stack.net.traffic()));
        state
    }

    /// Applies several changes of the network configuration between two turns, all or none, as
    /// [`crate::Remote::apply`].
    ///
    /// # Errors
    /// Returns the first change that is invalid, and why. Then no change was made.
    pub fn apply(&mut self, changes: &[Change]) -> Result<(), Refused> {
        self.engine.apply_at(self.engine.shard.sockets.now, changes)
    }

    /// Returns whether a process has a descriptor for the socket in a slot. `number` identifies the
    /// process: the number of its channel in the reply to
    /// [`HELLO`](towpath_shm::control::call::HELLO).
    pub fn is_held(&self, number: u32, slot: u32) -> bool {
        let Some(id) = ChannelId::of_number(number) else { return false };
        let mut shards = std::iter::once(&self.engine.shard).chain(&self.engine.others);
        shards.any(|shard| shard.processes.is_held(id, slot))
    }
}

/// Time at which a manual clock starts. The time is not 0, which means "never" in some places.
const START: Instant = Instant(1_000_000_000_000);
