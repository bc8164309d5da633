//! The engine as the driver has it.

use std::time::Duration;

use towpath_shm::placed;

use super::engine::{EngineStep, TurnedEngine};
use super::stack::ThreadStack;
use crate::{Deadline, Error};

/// Turns in a row for others, after which the thread looks at its own signals and time limit.
const TURNS_MAX: u32 = 32;
/// Interval of looks at processes. An engine looks at them when it sleeps; where its threads always
/// find work before, it looks this often, which costs a system call.
const LOOK_EVERY: Duration = Duration::from_micros(200);

/// Limit on going on in a row, where others have work each time that the thread is about to sleep.
/// Its own descriptors and signals are not looked at meanwhile.
const LOOKS_ON: Duration = Duration::from_micros(100);

/// How turning the engine has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turned {
    /// An event of the thread has come, or may have.
    Done,
    /// There is nothing to do: the engine has gone to sleep. Now sleep, until
    /// [`DriverLock::until`](crate::driver::DriverLock::until).
    Idle,
    /// There was much to do for others. The thread is to look at its signals and its time limit,
    /// and go on.
    Busy,
    /// The engine has ended.
    Ended,
}

/// State that only the driver touches.
pub(super) struct DriverState {
    stack: ThreadStack,
    turning: Turning,
}

/// State used on that stack.
struct Turning {
    /// None: it has ended.
    engine: Option<Box<dyn TurnedEngine>>,
    lowest: u32,
    /// [`TurnedEngine::begin_sleep`] was the last that was done to it.
    is_asleep: bool,
    /// When it is to look at its descriptors, if it has not slept by then.
    look_at: Deadline,
}

impl DriverState {
    /// `lowest`: where descriptors go that the engine opens ([`placed`]).
    pub fn new(engine: Box<dyn TurnedEngine>, lowest: u32) -> Result<Self, Error> {
        let look_at = Deadline::after(Duration::ZERO);
        let turning = Turning { engine: Some(engine), lowest, is_asleep: false, look_at };
        Ok(Self { stack: ThreadStack::new()?, turning })
    }

    /// See [`ThreadStack::used`].
    pub fn stack_used(&self) -> (usize, usize) {
        self.stack.used()
    }

    /// Turns the engine until `is_done`, which is asked after each turn, or until there is nothing
    /// to do. With that, until when the thread may sleep. `own`: its own time limit.
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
