//! State of an engine (network stack) in this process, for the thread that holds the driver lock.

use std::time::Duration;

use towpath_shm::placed;

use super::engine::{EngineStep, TurnedEngine};
use super::stack::ThreadStack;
use crate::{Deadline, Error};

/// Maximum number of consecutive turns (iterations) of the engine's event loop without an event for
/// the thread. Then the thread checks its signals and its timeout.
const TURNS_MAX: u32 = 32;
/// Interval at which a busy engine polls its descriptors, which costs a system call. Other engines
/// poll them before each sleep.
const LOOK_EVERY: Duration = Duration::from_micros(200);

/// Maximum time for which a thread runs the engine without checking its own descriptors and
/// signals, if new work always arrives before it sleeps.
const LOOKS_ON: Duration = Duration::from_micros(100);

/// Reason why a thread has stopped running the engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turned {
    /// An event for the thread has arrived, or may have arrived.
    Done,
    /// The engine has no work. The thread should sleep, at most until
    /// [`DriverLock::until`](crate::driver::DriverLock::until).
    Idle,
    /// The engine has more work, but no event for this thread. The thread should check its signals
    /// and its timeout, then run the engine again.
    Busy,
    /// The engine has ended.
    Ended,
}

/// State that only the thread with the driver lock may access.
pub(super) struct DriverState {
    stack: ThreadStack,
    turning: Turning,
}

/// The engine and the state of its event loop, which are used only on the engine's call stack.
struct Turning {
    /// The engine. `None` after it has ended.
    engine: Option<Box<dyn TurnedEngine>>,
    lowest: u32,
    /// Whether the engine is prepared for a sleep: [`TurnedEngine::begin_sleep`] was called, but
    /// `end_sleep` was not.
    is_asleep: bool,
    /// Time at which to poll the engine's descriptors next, unless it sleeps before.
    look_at: Deadline,
}

impl DriverState {
    /// Creates the state of an engine. `lowest` is the lowest number for descriptors that the
    /// engine opens ([`placed`]).
    pub fn new(engine: Box<dyn TurnedEngine>, lowest: u32) -> Result<Self, Error> {
        let look_at = Deadline::after(Duration::ZERO);
        let turning = Turning { engine: Some(engine), lowest, is_asleep: false, look_at };
        Ok(Self { stack: ThreadStack::new()?, turning })
    }

    /// Returns how many bytes of the engine's stack were ever used, and its size in bytes.
    pub fn stack_used(&self) -> (usize, usize) {
        self.stack.used()
    }

    /// Runs the engine's event loop until `is_done` returns true, or the engine has no work.
    /// `is_done` is called after each iteration. Also returns the time until which the thread may
    /// sleep. `own` is the deadline of the thread's own wait.
    pub fn turn(
        &mut self,
        own: Option<Deadline>,
        is_done: &mut dyn FnMut() -> bool,
    ) -> (Turned, Option<Deadline>) {
        let Self { stack, turning } = self;
        stack.call(|| placed(turning.lowest, || turning.turn(own, is_done)))
    }
}

impl Turning {
    fn turn(
        &mut self,
        own: Option<Deadline>,
        is_done: &mut dyn FnMut() -> bool,
    ) -> (Turned, Option<Deadline>) {
        let now = Some(Deadline::after(Duration::ZERO));
        let until = Deadline::after(LOOKS_ON);
        let Some(engine) = self.engine.as_mut() else { return (Turned::Ended, now) };
        if std::mem::take(&mut self.is_asleep) {
            engine.end_sleep();
            self.look_at = Deadline::after(LOOK_EVERY);
        }
        for _ in 0..TURNS_MAX {
            let next = engine.turn();
            if next == EngineStep::End {
                if let Some(engine) = self.engine.take() {
                    engine.finish();
                }
                return (Turned::Ended, now);
            }
            if is_done() {
                let is_idle = matches!(next, EngineStep::Sleep(_));
                if is_idle && self.look_at.left().is_zero() && engine.begin_sleep() {
                    engine.end_sleep();
                    self.look_at = Deadline::after(LOOK_EVERY);
                }
                return (Turned::Done, now);
            }
            if let EngineStep::Sleep(timeout) = next {
                let deadline = timeout.map(Deadline::after);
                let timeout = timeout.into_iter().chain(own.map(Deadline::left)).min();
                let goes_on = !until.left().is_zero() && engine.busy_poll(timeout);
                if !goes_on && engine.begin_sleep() {
                    self.is_asleep = true;
                    return (Turned::Idle, deadline);
                }
            }
        }
        (Turned::Busy, now)
    }
}
