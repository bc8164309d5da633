//! The engine in the process of the program, with the functions by which threads of the program run
//! it.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use libc::c_int;
use towpath_client::driver::{self, EngineStep};
use towpath_engine::Engine;
use towpath_uplink::{LaunchSocket, Said, Tally, layers};

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
}

/// Value of PTHREAD_CANCEL_DISABLE in glibc and musl.
const CANCEL_DISABLE: c_int = 1;

/// Handles for reporting final counters to `towpath run` when the engine ends.
pub struct EngineEnd {
    home: LaunchSocket,
    ports: Arc<Tally>,
}

/// An engine that runs in this process.
pub struct Inside {
    engine: Engine,
    state: EngineEnd,
}

impl EngineEnd {
    /// Creates the handles. Final counters are sent over `home`, the socket to `towpath run`;
    /// `ports` counts the packets of the engine's ports.
    pub fn new(home: LaunchSocket, ports: Arc<Tally>) -> Self {
        Self { home, ports }
    }
}

impl Inside {
    pub fn new(engine: Engine, state: EngineEnd) -> Self {
        Self { engine, state }
    }
}

impl driver::TurnedEngine for Inside {
    fn turn(&mut self) -> EngineStep {
        let _whole = CancellationGuard::new();
        match self.engine.turn() {
            towpath_engine::Next::Turn => EngineStep::Turn,
            towpath_engine::Next::Sleep(timeout) => EngineStep::Sleep(timeout),
            towpath_engine::Next::End => EngineStep::End,
        }
    }

    fn busy_poll(&mut self, timeout: Option<Duration>) -> bool {
        let _whole = CancellationGuard::new();
        self.engine.busy_poll(timeout)
    }

    fn begin_sleep(&mut self) -> bool {
        let _whole = CancellationGuard::new();
        self.engine.begin_sleep()
    }

    fn end_sleep(&mut self) {
        let _whole = CancellationGuard::new();
        self.engine.end_sleep();
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.engine.as_fd()
    }

    fn finish(self: Box<Self>) {
        let _whole = CancellationGuard::new();
        let Self { engine, state: EngineEnd { home, ports } } = *self;
        let report = engine.finish();
        home.mention(&Said::Counters(layers(&report.counters, &ports.counted())));
    }
}

/// Guard that disables pthread_cancel(3). Otherwise the thread could be cancelled in a system call
/// while it runs the engine, and leave the engine inconsistent.
struct CancellationGuard(c_int);

impl CancellationGuard {
    fn new() -> Self {
        let mut before = 0;
        // SAFETY: the state is valid, and `before` is writable.
        unsafe { pthread_setcancelstate(CANCEL_DISABLE, &raw mut before) };
        Self(before)
    }
}

impl Drop for CancellationGuard {
    fn drop(&mut self) {
        let mut ours = 0;
        // SAFETY: the state is the former one, and `ours` is writable.
        unsafe { pthread_setcancelstate(self.0, &raw mut ours) };
    }
}
