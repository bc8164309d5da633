//! State of an engine that threads of this process turn, accessed by the driver alone.

use std::time::Duration;

use towpath_shm::placed;

use super::engine::{EngineStep, TurnedEngine};
use super::stack::ThreadStack;
use crate::{Deadline, Error};

/// Maximum number of turns in a row without an event for the thread. Afterwards the thread checks
/// its signals and its time limit.
const TURNS_MAX: u32 = 32;
/// Interval at which a busy engine checks its descriptors, which costs a system call. An engine
/// that is not busy checks them before each sleep.
const LOOK_EVERY: Duration = Duration::from_micros(200);

/// Maximum time that a thread continues to turn the engine because new work arrives whenever it is
/// about to sleep. The thread's own descriptors and signals are not checked meanwhile.
const LOOKS_ON: Duration = Duration::from_micros(100);

/// Reason why the thread stopped turning the engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turned {
    /// An event of the thread has arrived, or may have arrived.
    Done,
    /// The engine has nothing to do and expects the thread to sleep, at most until
    /// [`DriverLock::until`](crate::driver::DriverLock::until).
    Idle,
    /// The engine has more work, but none for this thread. The thread should check its signals and
    /// its time limit, and then continue.
    Busy,
    /// The engine has ended.
    Ended,
}

/// State that only the driver may access.
pub(super) struct DriverState {
    stack: ThreadStack,
    turning: Turning,
}

/// The engine, and state of its turns. Accessed on the engine's stack.
struct Turning {
    /// The engine, or `None` after it has ended.
    engine: Option<Box<dyn TurnedEngine>>,
    lowest: u32,
    /// [`TurnedEngine::begin_sleep`] was called, but not `end_sleep` afterwards.
    is_asleep: bool,
    /// Time of the next check of the engine's descriptors, unless the engine sleeps before.
    look_at: Deadline,
}

impl DriverState {
    /// Creates the state. `lowest` is the lowest number for descriptors that the engine opens
    /// ([`placed`]).
    pub fn new(engine: Box<dyn TurnedEngine>, lowest: u32) -> Result<Self, Error> {
        let look_at = Deadline::after(Duration::ZERO);
        let turning = Turning { engine: Some(engine), lowest, is_asleep: false, look_at };
        Ok(Self { stack: ThreadStack::new()?, turning })
    }

    /// Returns the used and the total number of bytes of the engine's stack.
    pub fn stack_used(&self) -> (usize, usize) {
        self.stack.used()
    }

    /// Turns the engine until `is_done` returns true, which is called after each turn, or until the
    /// engine has nothing to do. Also returns the time until which the thread may sleep. `own` is
    /// the time limit of the thread's own wait.
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
