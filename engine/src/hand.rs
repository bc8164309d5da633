//! An engine that is turned by hand.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use towpath_pool::Port;
use towpath_tcp::Instant;

use crate::clock::Clock;
use crate::config::EngineConfig;
use crate::engine::{Engine, EngineError};
use crate::ids::ChannelId;
use crate::report::{Counters, SocketEntry};

/// An [`Engine`] that does one turn for each call of [`Hand::turn`] and never sleeps, on a clock that only
/// moves as it is told. The same calls have the same results, so a harness can go through cases that are
/// made of bytes, and count instead of measure.
#[derive(Debug)]
pub struct Hand {
    engine: Engine,
}

impl Hand {
    /// As [`Engine::new`].
    ///
    /// # Errors
    /// As there.
    pub fn new(
        config: EngineConfig,
        ports: Vec<Box<dyn Port>>,
        seed: [u8; 32],
    ) -> Result<Self, EngineError> {
        Ok(Self { engine: Engine::with_clock(config, ports, seed, Clock::ByHand(START))? })
    }

    /// As [`Engine::attach`].
    ///
    /// # Errors
    /// As there.
    pub fn attach(&mut self) -> io::Result<OwnedFd> {
        self.engine.attach()
    }

    /// Lets time pass, which may be none, and does what [`Engine::run`] does between two sleeps. What programs say
    /// meanwhile is for the next turn.
    pub fn turn(&mut self, passed: Duration) {
        self.engine.pass(passed);
        self.engine.shard.do_turn();
        self.engine.shard.look();
        self.engine.control.exchange(&mut self.engine.shard);
        self.engine.shard.end_of_turn();
    }

    /// Counters of all layers since the engine was made, as [`crate::Remote::counters`] tells them.
    pub fn counters(&self) -> Counters {
        self.engine.counters()
    }

    /// All sockets of all programs, as [`crate::Remote::sockets`] tells them.
    pub fn sockets(&self) -> Vec<SocketEntry> {
        self.engine.shard.sockets()
    }

    /// Whether the process whose channel has this number, as the answer to
    /// [`HELLO`](towpath_shm::control::call::HELLO) says it, holds the socket in a slot.
    pub fn is_held(&self, number: u32, slot: u32) -> bool {
        ChannelId::of_number(number).is_some_and(|id| self.engine.shard.is_held(id, slot))
    }
}

/// When an engine begins that is turned by hand: not at 0, which stands for "never" in places.
const START: Instant = Instant(1_000_000_000_000);
