//! An engine that is turned by hand.

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

/// An [`Engine`] that does one turn for each call of [`Hand::turn`] and never sleeps, on a clock
/// that only moves as it is told. The same calls have the same results, so a harness can go through
/// cases that are made of bytes, and count instead of measure.
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
        ports: Vec<Box<dyn Port + Send>>,
        seed: [u8; 32],
    ) -> Result<Self, EngineError> {
        Ok(Self { engine: Engine::with_clock(config, vec![ports], seed, Clock::ByHand(START))? })
    }

    /// As [`Engine::attach`].
    ///
    /// # Errors
    /// As there.
    pub fn attach(&mut self) -> io::Result<OwnedFd> {
        self.engine.attach()
    }

    /// Lets time pass, which may be none, and does what [`Engine::run`] does between two sleeps.
    /// Requests that programs make meanwhile are for the next turn.
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

    /// Counters of all layers since the engine was made, as [`crate::Remote::counters`] tells them.
    pub fn counters(&self) -> Counters {
        self.engine.counters()
    }

    /// All sockets of all programs, as [`crate::Remote::sockets`] tells them.
    pub fn sockets(&self) -> Vec<SocketEntry> {
        let shards = std::iter::once(&self.engine.shard).chain(&self.engine.others);
        shards.flat_map(|shard| shard.view().sockets()).collect()
    }

    /// Interfaces, routes and neighbours, as [`crate::Remote::net`] tells them.
    pub fn net(&self) -> NetState {
        let mut state =
            NetState::of(&self.engine.shard.net.stack.net, self.engine.shard.sockets.now);
        self.engine.others.iter().for_each(|other| state.add(other.net.stack.net.traffic()));
        state
    }

    /// Makes changes between two turns, as [`crate::Remote::apply`].
    ///
    /// # Errors
    /// None of them was made, and why.
    pub fn apply(&mut self, changes: &[Change]) -> Result<(), Refused> {
        let shard = &mut self.engine.shard;
        shard.net.stack.net.apply(shard.sockets.now, changes)
    }

    /// Whether the process whose channel has this number, as the answer to
    /// [`HELLO`](towpath_shm::control::call::HELLO) says it, holds the socket in a slot.
    pub fn is_held(&self, number: u32, slot: u32) -> bool {
        let Some(id) = ChannelId::of_number(number) else { return false };
        let mut shards = std::iter::once(&self.engine.shard).chain(&self.engine.others);
        shards.any(|shard| shard.processes.is_held(id, slot))
    }
}

/// When an engine begins that is turned by hand: not at 0, which stands for "never" in places.
const START: Instant = Instant(1_000_000_000_000);
